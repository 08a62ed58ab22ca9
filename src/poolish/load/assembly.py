"""Putting a loader together: from its settings, and the rank that it is, to a reader of batches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poolish import torch_bridge
from poolish.errors import ConfigError
from poolish.load.batch import map_columns
from poolish.load.batching import SampledBatches, sampled, weighted
from poolish.load.fetch import BatchReader, Fetcher, PrefetchingFetcher
from poolish.load.frozen import SHARED, FrozenRows, snapshot_rows
from poolish.load.group import ComparedRows, GroupLedger, GroupSession, InStep, OwnBatchesPlanner, OwnRowsPlanner, Peers
from poolish.load.journal import N_AHEAD, Journal
from poolish.load.ledger import Ledger, LedgerProtocol, shared_ledger
from poolish.load.order import Order
from poolish.load.planner import BatchPlanner, OrderPlanner
from poolish.load.reader import RankReader
from poolish.load.settings import (
    GROUP,
    LoaderSettings,
    check_agreement,
    check_journal,
)
from poolish.load.shaping import BatchShaper, BatchTransform, LateShaper
from poolish.load.views.single import n_epochs
from poolish.ranks import Share

if TYPE_CHECKING:
    from poolish.load.guarding import LoaderGuard


@dataclass(frozen=True)
class Assembly:
    """The parts of one rank's loader; ``about`` says which order a state or a journal belongs to.

    Where the rank is not settled, what only the launcher's processes can agree on is not asked for yet.
    """

    settings: LoaderSettings
    about: Mapping[str, Any]
    share: Share
    is_settled: bool

    @property
    def _is_own(self) -> bool:
        """Whether the rank reads all of its rows, which are its own."""
        return self.settings.shared == "own" and self.share.world_size > 1

    @property
    def dealt(self) -> tuple[int, int]:
        """Which share of the rows this rank reads, of how many."""
        return (0, 1) if self._is_own else (self.share.rank, self.share.world_size)

    def reader(self) -> RankReader:
        """Return the reader of the rank's batches."""
        settings, share, rows = self.settings, self.share, snapshot_rows(self.settings.dataset)
        compared = ComparedRows() if rows.changes != SHARED and not self._is_own and share.n_processes > 1 else None
        peers = self._make_peers()
        ledger = self._make_ledger(share, rows, peers, compared)
        planner = self._make_planner(ledger)
        if isinstance(planner, InStep):
            planner.uneven = settings.uneven
        guard = None if settings.guard is None else _guarding(settings.guard, share.rank, share.world_size)
        session = None if peers is None else GroupSession(peers, settings, self.about, planner, compared)
        fetcher, late = self._make_fetcher(planner, rows)
        return RankReader(settings, share.world_size, planner, ledger, fetcher, guard, session, late)

    def _make_peers(self) -> Peers | None:
        """The ranks to agree with; their loaders may differ in all but the kind of dataset, which is then noticed."""
        settings, share = self.settings, self.share
        has_own_ledger = settings.journal is not None and not isinstance(settings.journal, (str, os.PathLike))
        if has_own_ledger or not share.peers or share.n_processes == 1:
            return None
        return Peers(share, type(settings.dataset).__name__)

    def _make_ledger(
        self, share: Share, rows: FrozenRows, peers: Peers | None, compared: ComparedRows | None
    ) -> LedgerProtocol:
        settings, about = self.settings, self.about
        journal = check_journal(settings.journal)
        if self.is_settled:
            check_agreement(journal, share, changes=rows.changes, follow=settings.follow)
        if journal is not None and journal != GROUP:
            if not isinstance(journal, (str, os.PathLike)):
                return journal
            if settings.shared == "copy":  # each process made a buffer of its own; the rows in them are compared
                about = {**about, "source": "copy"}
            n_ahead = N_AHEAD if share.world_size > 1 else 0
            return Journal(journal, {**about, "follow": settings.follow}, compared, n_ahead=n_ahead)
        if peers is not None and not self._is_own:
            return GroupLedger(peers, compared)
        if self.dealt[1] == 1:
            return Ledger()
        source = about["source"] or id(self.settings.dataset)
        order = (source, about["choice"], settings.seed, settings.shuffle, settings.follow)
        return shared_ledger((*order, settings.run), share.world_size)

    def _make_planner(self, ledger: LedgerProtocol) -> OrderPlanner | BatchPlanner:
        settings, batches = self.settings, self._make_batches()
        rank, world_size = self.dealt
        own = self._is_own
        if batches is not None:
            kind_of_batches = OwnBatchesPlanner if own else BatchPlanner
            return kind_of_batches(self.settings.dataset, batches, rank=rank, world_size=world_size)
        kind = OwnRowsPlanner if own else OrderPlanner
        return kind(
            self.settings.dataset,
            ledger,
            lambda epoch: Order(settings.seed, epoch, shuffle=settings.shuffle, follow=settings.follow),
            batch_size=settings.batch_size,
            rank=rank,
            world_size=world_size,
            drop_last=settings.drop_last,
        )

    def _make_batches(self) -> Any:
        """Ready-made batches, or those of drawn rows; None where the loader makes its own order."""
        settings = self.settings
        if settings.sampled is None:
            return settings.batches
        draw = (
            sampled(settings.sampler, settings.seed)
            if settings.sampled == "sampler"
            else weighted(settings.weights, settings.seed, n_epochs(settings.epochs))
        )
        return SampledBatches(draw, settings.batch_size, drop_last=settings.drop_last, world_size=self.dealt[1])

    def _make_fetcher(
        self, planner: OrderPlanner | BatchPlanner, rows: FrozenRows
    ) -> tuple[Fetcher, LateShaper | None]:
        """What reads batches; what a guard has to come before is not done there."""
        settings, shaper = self.settings, self._make_shaper()
        stage = self._make_stage(settings.device, settings.pin_memory)
        pins, is_cuda = stage is not None and stage.pins, stage is not None and stage.is_cuda
        transforms, late = shaper is not None and shaper.transforms, None
        if shaper is not None and transforms and settings.guard is not None:
            late, shaper, stage, transforms = LateShaper(shaper, stage), None, None, False
        reading = BatchReader(self.settings.shown_as, settings.collate_fn, settings.faults, pins=pins, shaper=shaper)
        takes_columns, n_workers = reading.takes_columns(rows), settings.num_workers
        # None of the user's code runs where columns are gathered, so a thread may do it unasked: 0.9 ms less of the
        # trainer's time for each batch of 3 MiB (bench_cuda.py).
        n_threads = n_workers or (1 if takes_columns and is_cuda and not transforms else 0)
        if not n_threads:
            return Fetcher(planner, reading, stage), late
        fetcher = PrefetchingFetcher(
            planner,
            reading,
            stage,
            n_workers=n_threads,
            n_ahead=settings.prefetch_factor * n_threads,
            # A buffer's batch is one gather, and a transform needs all of it; other samples are cut finer, so that
            # idle threads can help with a slow batch.
            n_rows=None if takes_columns or transforms else max(1, settings.batch_size // (4 * n_threads)),
            timeout=settings.timeout,
            init=settings.worker_init_fn if n_workers else None,
            is_asked_for=bool(n_workers),
        )
        return fetcher, late

    def _make_shaper(self) -> BatchShaper | None:
        settings = self.settings
        if settings.transform is None and settings.ids_name is None:
            return None
        fn = settings.transform
        change = None if fn is None else BatchTransform(fn, settings.seed, settings.epochs, self.share.rank)
        return BatchShaper(change, settings.ids_name, self.settings.shown_as)

    def _make_stage(self, device: Any, pin_memory: bool) -> torch_bridge.DeviceStage | None:
        if self.settings.shown_as == "torch":
            if device is None and not pin_memory:
                return None
            try:
                return torch_bridge.DeviceStage(device, pin=True if pin_memory else None, each=map_columns)
            except (RuntimeError, AssertionError) as error:
                raise ConfigError(f"device={device!r}: {error}") from None
        if device is not None or pin_memory:
            raise ConfigError(f"device= and pin_memory= are for tensors, output is {self.settings.shown_as!r}")
        return None


def _guarding(guard: Any, rank: int, world_size: int) -> LoaderGuard:
    from poolish.load.guarding import LoaderGuard

    return LoaderGuard(guard, rank, world_size)
