"""Loader: batches of a dataset that may grow while it is read, each row exactly once an epoch.

    dataset --snapshot_rows--> rows by id        ledger, journal    what was decided, for all ranks
                                  |                    |
    order         which ids come next  <---------------+            grows with the dataset, resumes anywhere
    planner       the rows of one step, dealt to the ranks
    fetch         rows -> columns or samples -> a batch, read on demand or ahead of time by threads
    guarding      which of its rows are handed out
    reader        one batch after the other, and how far it is: behind the last batch it has delivered

``assembly`` puts these together from the ``settings`` and the rank; the loader turns how far it is into a state and
back. Where batches are acknowledged, its state is how far it was before the oldest of those in flight.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from poolish import torch_bridge
from poolish.errors import ConfigError
from poolish.fixed import fixed_parameters
from poolish.health import Health, Problem
from poolish.load.assembly import Assembly
from poolish.load.batch import Origin
from poolish.load.frozen import FrozenRows, choice_of, snapshot_rows
from poolish.load.group import InStep
from poolish.load.journal import Journal
from poolish.load.ledger import LedgerProtocol
from poolish.load.planner import BatchPlanner
from poolish.load.reader import Iteration
from poolish.load.settings import (
    LoaderSettings,
    check_follow,
    check_no_shard,
    check_shared,
)
from poolish.load.shaping import ids_in
from poolish.load.state import StateKeeper
from poolish.load.views.view import check_epoch
from poolish.ranks import Ranks, Share
from poolish.runs import new_run_id, run_id

if TYPE_CHECKING:
    from poolish.load.audit import Audit


@fixed_parameters("make a new Loader, such as loader.like(...), and load_state_dict() the state of this one")
class Loader:
    """Batches of ``dataset``, shuffled or not, for one rank of any number, resumable at every batch.

    ``dataset`` is anything with a length and an index, a ``DatasetBuffer`` or a ``StreamStore``. ``follow=True`` lets
    rows that are appended while the epoch runs join it, at most 1,024 rows later, each exactly once; otherwise the
    epoch is what was there when it began. Batches are dicts of columns that also carry ``ids`` and ``position``; a
    dataset of tuples, namedtuples or dataclasses gives those. ``num_workers`` threads read ahead, in the same order as
    without.

    Each ``for`` is an epoch: it begins the next one, also if the last was left early. After ``load_state_dict`` it
    continues where the state was taken, and with ``follow`` always where it was left. ``len`` is the length of the
    epoch and constant, ``remaining`` what is left of it. The newest ``iter()`` is the one that counts: an older
    iterator raises. ``run`` names the training run, which states and journals belong to; a loaded state continues its
    own. The parameters are attributes, fixed from here on; to go on with others make a new loader (``like``) and load
    the state of this one.

    Rank and world size come from the arguments, else from ``group`` or ``mesh`` (the data-parallel dimension: peers
    along the others get the same rows), else from ``torch.distributed``, else from RANK and WORLD_SIZE; they are looked
    up at the first ``len`` or ``iter``. On several processes rows in memory are declared: ``shared="copy"`` if every
    process holds the same rows and reads its share of them, ``shared="own"`` if each reads all of its own, and
    ``uneven`` ("stop", "repeat", "empty") keeps the ranks in step. ``journal`` is how ranks agree on a dataset that
    grows: a directory, or ``"group"``, the store of the process group.

    ``guard`` is asked about every batch before it is handed out: a ``Suite``, ``suite.guard(reference)`` for drift over
    windows, or anything that answers as they do. What it refuses is a ``DataRefused``, and the loader stays before that
    batch; ``on(error="drop")`` leaves bad rows out, ``"skip"`` the batch. ``stats`` counts both.

    ``weights`` makes an epoch of as many draws as there are rows, with replacement: numbers by row, the name of a
    column, or a function that names ``rows``, ``epoch`` or ``progress`` (from 0 to 1 over ``epochs``). ``sampler`` is
    any iterable of row numbers, such as a sampler of torch. Both are drawn when an epoch begins, repeatably.

    >>> from poolish import DatasetBuffer
    >>> buffer = DatasetBuffer()
    >>> buffer.append([{"n": i} for i in range(4)])
    >>> loader = Loader(buffer, batch_size=2, follow=True, output="numpy")
    >>> for batch in loader:
    ...     if len(buffer) < 7:
    ...         buffer.append([{"n": len(buffer)}])
    ...     print(batch.position, batch["n"])
    0 [0 1]
    2 [2 3]
    4 [4 5]
    6 [6]
    >>> loader.state_dict()["epoch"]
    1
    """

    #: Which rank of how many this is; known for certain after the first ``len`` or ``iter``.
    rank: int
    world_size: int

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        batches: Any = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        journal: str | os.PathLike[str] | LedgerProtocol | None = None,
        run: str | None = None,
        output: str | None = None,
        follow: bool = False,
        acknowledge: str = "on_yield",
        faults: Any = None,
        device: Any = None,
        guard: Any = None,
        weights: Any = None,
        sampler: Any = None,
        epochs: int | None = None,
        group: Any = None,
        mesh: Any = None,
        shared: str | None = None,
        uneven: str = "stop",
        transform: Callable[..., Any] | None = None,
        ids: bool | str = False,
    ) -> None:
        settings = LoaderSettings(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            batches=batches,
            seed=seed,
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            journal=journal,
            run=run,
            output=output,
            follow=follow,
            acknowledge=acknowledge,
            faults=faults,
            device=device,
            guard=guard,
            weights=weights,
            sampler=sampler,
            epochs=epochs,
            group=group,
            mesh=mesh,
            shared=shared,
            uneven=uneven,
            transform=transform,
            ids=ids,
        ).checked()
        self._settings = settings
        self.dataset, self.guard, self.follow = settings.dataset, settings.guard, settings.follow
        rows = snapshot_rows(dataset)
        check_follow(settings.follow, dataset, rows)
        self._ranks = Ranks(rank, world_size, group=group, mesh=mesh, what="Loader")
        self.output = settings.shown_as
        self._created_run = new_run_id()
        self._restored_run: str | None = None
        self._run: str | None = None
        self._has_resumed = False
        self._restored: Mapping[str, Any] | None = None
        self._about = _about(settings, rows)
        if settings.shown_as == "torch":
            torch_bridge.register_iterable(Loader)
        self._build(self._ranks.now())
        vars(self).update({**settings.arguments(), **vars(self)})
        if hasattr(faults, "expect"):
            faults.expect(getattr(dataset, "schema", None))

    # -- putting it together

    def _build(self, share: Share) -> None:
        """Make everything that depends on the rank; what is not settled yet may come again with another share."""
        self._share = share
        vars(self).update(rank=share.rank, world_size=share.world_size)
        is_settled = self._ranks.is_settled or share.source == "arguments"
        assembly = Assembly(self._settings, self._about, share, is_settled=is_settled)
        self._reader = assembly.reader()
        self._states = StateKeeper(self._reader, self._settings, self._about, share, is_settled=is_settled)

    def _settle(self) -> None:
        """Fix the rank; where it was not known when the loader was made, build the reader anew for it."""
        was_settled, share = self._ranks.is_settled, self._ranks.settle()
        if was_settled and share == self._share:
            return
        check_shared(self._settings, share)
        check_no_shard(self.dataset, share)
        if share == self._share and share.source == "arguments":
            self._restored = None
            return  # it was made as this rank
        state, requested = self._restored or self.state_dict(), self._reader.requested
        was = self._reader.progress.place
        self._build(share)
        if state["step"] or self._restored is not None:
            self._states.check(state)
            self._states.restore(state)
        now = self._reader.progress.place
        if (now.epoch, now.position) != (was.epoch, was.position):  # set_epoch has moved on from the state
            self._reader.begin_epoch(was.epoch)
        self._reader.requested, self._restored = requested, None

    # -- iterating

    def __iter__(self) -> Iterator[Any]:
        """Batches of the next epoch; of the rest of this one behind a state, and where growth is followed."""
        self._settle()  # first: it may make another reader
        if torch_bridge.loaded() is not None:
            self._reader.become_worker(*torch_bridge.worker_info())
        check_caller(self.world_size)
        self._enter_run()
        self._reader.begin_iteration()
        if self._reader.fetcher.reads_ahead:
            self._reader.prefetch()
        return Iteration(self._reader)

    def _enter_run(self) -> None:
        """Decide which run this is, where a journal has to know: not before ranks and process groups are there."""
        ledger = self._reader.ledger
        if self._run is None and isinstance(ledger, Journal):
            run = self._run_id(ledger)
            ledger.claim(run, is_resumed=self._has_resumed)
            self._run = run

    def _run_id(self, journal: Journal) -> str:
        return run_id(
            self._settings.run,
            restored=self._restored_run,
            created=self._created_run,
            world_size=self.world_size,
            what=f"Loader with journal {journal.path}",
        )

    def _known_run(self) -> str | None:
        """The run as far as it is known without asking other ranks; one without a journal creates none."""
        found = self._run or run_id(self._settings.run, restored=self._restored_run, created=self._created_run)
        needs_one = isinstance(self._reader.ledger, Journal) and self.world_size == 1
        return found if needs_one or found != self._created_run else None

    # -- how far it is

    def __len__(self) -> int:
        """Batches of this rank's epoch, those done and those left; with ``follow`` a TypeError: it is not known."""
        n_left, place = self.remaining, self._reader.upcoming
        return place.step - place.first_step + n_left

    @property
    def remaining(self) -> int:
        """Batches left in the epoch; with ``follow`` a TypeError, because it is not known.

        >>> loader = Loader([1, 2, 3, 4, 5], 2)
        >>> [(len(loader), loader.remaining) for _ in loader]
        [(3, 2), (3, 1), (3, 0)]
        """
        if self.follow:
            raise TypeError("the length of a loader that follows a growing dataset is not known before the epoch ends")
        self._settle()
        place = self._reader.upcoming
        if isinstance(self._reader.planner, InStep):  # the ranks say together how long it is
            if place is not self._reader.progress.place:
                self._reader.begin_next_epoch()
            self._reader.enter()
        self._reader.set_dataset_epoch(place.epoch)
        return self._reader.planner.n_left(place)

    @property
    def has_batches(self) -> bool:
        """Whether ``batches=`` decides what is in a batch."""
        return isinstance(self._reader.planner, BatchPlanner)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, so that ``range(loader.epoch, n)`` continues behind any state.

        >>> loader = Loader([1, 2, 3], 2)
        >>> states = [loader.state_dict() for batch in loader]
        >>> loader.load_state_dict(states[-1])
        >>> loader.epoch
        1
        """
        return self._reader.upcoming.epoch

    @property
    def step(self) -> int:
        """Steps yielded since training began."""
        return self._reader.progress.place.step

    @property
    def position(self) -> int:
        """Rows of this epoch handed out so far, over all ranks."""
        return self._reader.progress.place.position

    @property
    def n_skipped(self) -> int:
        """Rows that were due to this rank and not read: they had left the dataset, or ``faults`` left them out."""
        return self._reader.progress.n_skipped + self._reader.planner.n_lost

    @property
    def stats(self) -> dict[str, int]:
        """What the guard has left out: batches (``skipped``), and rows, alone or with their batch (``dropped_rows``).

        >>> from poolish.guards import Suite
        >>> suite = Suite().expect("value", between=(0, 10)).on(error="drop")
        >>> loader = Loader([1, 2, 99, 4], 2, guard=suite)
        >>> [batch["value"].tolist() for batch in loader], loader.stats
        ([[1, 2], [4]], {'skipped': 0, 'dropped_rows': 1})
        """
        return {"skipped": self._reader.progress.n_left_out, "dropped_rows": self._reader.progress.n_dropped}

    @property
    def origin(self) -> Origin | None:
        """``ids``, ``position`` and ``step`` of the batch that was yielded last, for batches that cannot carry them.

        >>> loader = Loader([10, 20, 30], 2, collate_fn=sum)
        >>> next(iter(loader)), loader.origin.ids
        (30, array([0, 1]))
        """
        return self._reader.progress.origin

    def health(self) -> Health:
        """What was not read, since when; what ``faults`` counts, and how many batches are in flight."""
        progress = self._reader.progress
        found = self._settings.faults.health() if hasattr(self._settings.faults, "health") else Health()
        skipped = (
            None
            if not self.n_skipped
            else Problem(
                f"{self.n_skipped:,} rows were due to rank {self.rank} and not read",
                self._reader.skipped_since,
                "they left the dataset, or faults= left them out: loader.audit() lists them; keep rows for an epoch",
            )
        )
        place = progress.place
        figures = {"epoch": place.epoch, "step": place.step, "position": place.position, "skipped": self.n_skipped}
        return found.plus(skipped, **figures, in_flight=self._reader.flight.n_waiting(place.step))

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` with the next ``iter()``; inside an epoch that a state restored nothing changes.

        An iterator of another epoch that still runs raises: it would go on in this one.
        """
        self._reader.set_epoch(check_epoch(epoch))

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: behind the last batch that was yielded, or trained where batches are acknowledged.

        Plain JSON. Any rank's state, taken at the same step, restores all ranks, on any world size. A dataset with
        ``state_dict`` and ``load_state_dict`` is saved with it; then each rank needs its own state.
        """
        return self._states.take(self._known_run())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``: the next batch is the one that came behind it. A refused state changes nothing."""
        self._states.check(state)
        run = state.get("run")
        if run is not None:
            run_id(self._settings.run, restored=run, what="Loader")
        self._states.restore(state)
        self._restored_run, self._run, self._has_resumed = run, None, True
        self._restored = None if self._ranks.is_settled else state

    def mark_trained(self, batch: Any = None) -> None:
        """This batch is trained; without an argument, the oldest that is not yet.

        The state moves on when all batches before it are trained, too. A copy that knows its rows stands for the batch,
        and so do its row ids: ``mark_trained(batch["ids"])``, or a batch that a framework rebuilt of its columns, with
        ``ids=True``. For a rebuilt one without ids, call it without an argument.
        """
        if not self._settings.is_explicit:
            raise ConfigError("mark_trained is for acknowledge='explicit'; here a batch is done when it is yielded")
        step = self._reader.progress.place.step
        self._reader.flight.acknowledge(batch, step, ids_in(batch, self._settings.ids_name))

    def audit(self, first_step: int, last_step: int) -> Audit:
        """Which rows steps ``first_step`` to ``last_step`` saw, and whether any came twice or never."""
        from poolish.load.audit import audit

        n_done = self._reader.progress.place.step if self._reader.progress.has_yielded else None
        return audit(self._reader.ledger, self._reader.planner, first_step, last_step, n_done)

    # -- the end, and travelling

    def close(self) -> None:
        """End the threads; the loader can be used again."""
        self._reader.close()

    def __repr__(self) -> str:
        share = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return f"<Loader of {type(self.dataset).__name__}, epoch {self.epoch}, step {self.step}{share}>"

    def like(self, **changes: Any) -> Loader:
        """A loader with the same settings but for ``changes``, at the beginning.

        >>> Loader([1, 2, 3], 2, seed=7).like(num_workers=2).seed
        7
        """
        return Loader(**{**self._settings.arguments(), **changes})

    def __getstate__(self) -> dict[str, Any]:
        kept = {"created_run": self._created_run, "has_resumed": self._has_resumed, "ranks": self._ranks}
        settings = {**self._settings.arguments(), "group": None, "mesh": None}  # they belong to this process
        return {"settings": settings, "state": self.state_dict(), **kept}

    def __setstate__(self, value: dict[str, Any]) -> None:
        self.__init__(**value["settings"])  # type: ignore[misc]
        self._created_run, self._ranks = value["created_run"], value["ranks"]
        self.load_state_dict(value["state"])
        self._has_resumed = value["has_resumed"]


def _about(settings: LoaderSettings, rows: FrozenRows) -> dict[str, Any]:
    """Which order a state or a journal belongs to."""
    about = {"source": rows.uuid, "choice": choice_of(settings.dataset), "seed": settings.seed}
    has_batches = settings.batches is not None or settings.sampled is not None
    return {**about, "shuffle": settings.shuffle, "batches": has_batches, "sampled": settings.sampled}


#: From ``iter(loader)`` up to accelerate's loop there are this many frames of torch's DataLoader, and some to spare.
_DEPTH = 8


def check_caller(world_size: int) -> None:
    """Refuse a DataLoader that makes batches of a loader's batches, and one that deals out a rank's share.

    A loader looks like an iterable dataset to torch, so ``DataLoader(loader, batch_size=8)`` makes batches of batches,
    and ``accelerator.prepare(DataLoader(loader, None))`` hands each process a share of one process's share. Neither
    fails by itself: rows are lost or stacked silently. Neither says so to the loader either, but both are on the stack
    when they call ``iter``.
    """
    if "torch.utils.data" not in sys.modules:
        return
    frame: FrameType | None = sys._getframe(2)  # the caller of the loader's __iter__
    for depth in range(_DEPTH):
        if frame is None:
            return
        module = frame.f_globals.get("__name__")
        if depth == 0 and module == "torch.utils.data._utils.fetch" and frame.f_locals.get("auto_collation"):
            raise ConfigError(
                "a Loader yields ready batches, and this DataLoader would make batches of them; write "
                "DataLoader(loader, batch_size=None). In Hugging Face's Trainer: class MyTrainer(LoaderTrainerMixin, "
                "Trainer), from poolish.integrations.transformers"
            )
        if world_size > 1 and module == "accelerate.data_loader" and _deals_out(frame):
            raise ConfigError(
                f"accelerate would deal out the batches of a Loader that is one of {world_size} ranks already, so rows "
                "would be lost; write prepare(accelerator, loader), from poolish.integrations.accelerate"
            )
        frame = frame.f_back


def _deals_out(frame: FrameType) -> bool:
    kind = type(frame.f_locals.get("self")).__name__
    return kind in {"IterableDatasetShard", "DataLoaderDispatcher"}
