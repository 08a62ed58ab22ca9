"""Loader: batches of a dataset that may grow while it is read, each row exactly once an epoch.

    dataset --snapshot_rows--> rows by id        ledger, journal    what was decided, for all ranks
                                  |                    |
    order         which ids come next  <---------------+            grows with the dataset, resumes anywhere
    planner       the rows of one step, dealt to the ranks
    fetch         rows -> columns or samples -> a batch, read on demand or ahead of time by threads
    guarding      which of its rows are handed out

The loader itself only knows how far it is (``progress``): behind the last batch it has yielded. Where batches are
acknowledged, its state is how far it was before the oldest of those ``in_flight``.

A batch is delivered when ``next`` returns it. If ``next`` raises, whatever it raises, the batch was not delivered and
comes next. An interrupt between the return and the caller's assignment finds the batch delivered: in a program that
survives Ctrl-C, ``acknowledge="explicit"`` covers that moment as well.
"""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from poolish import seeds, torch_bridge
from poolish.errors import ConfigError, ResumeError
from poolish.fixed import fixed_parameters
from poolish.health import Health, Problem
from poolish.load import arguments, dataset_state
from poolish.load.batch import Origin, chosen, labelled
from poolish.load.dataset import version_of
from poolish.load.fetch import BatchReader, Fetcher, PrefetchingFetcher
from poolish.load.frozen import FIXED, branch_below, choice_of, fixed_by, members_of, snapshot_rows
from poolish.load.journal import Journal
from poolish.load.ledger import Ledger, LedgerProtocol, Skipped, shared_ledger
from poolish.load.order import Order
from poolish.load.planner import BatchPlanner, LoaderPosition, OrderPlanner, StepPlanner
from poolish.load.progress import InFlight, Progress
from poolish.load.sampling import Draw, SampledBatches, sampled, weighted
from poolish.load.spot_check import check_spots, kept_spots, spots_of
from poolish.load.state import VERSION, check_belongs, check_rows, highest, place_in, sealed, to_order, to_place
from poolish.load.structures import map_columns
from poolish.load.views.transformed import n_epochs
from poolish.load.views.view import check_epoch, pass_epoch
from poolish.runs import new_run_id, run_id

if TYPE_CHECKING:
    from poolish.load.audit import Audit
    from poolish.load.guarding import LoaderGuard

#: What the loader gives itself instead of a batch at the end of an epoch.
_END = object()

#: And in place of one that the guard leaves out.
_LEFT_OUT = object()


@fixed_parameters("make a new Loader, such as loader.like(...), and load_state_dict() the state of this one")
class Loader:
    """Batches of ``dataset``, shuffled or not, for one rank of any number, resumable at every batch.

    ``dataset`` is anything with a length and an index, a ``DatasetBuffer`` or a ``StreamStore``. ``follow=True`` lets
    rows that are appended while the epoch runs join it, at most 1,024 rows later, each exactly once; otherwise the
    epoch is what was there when it began. Batches are dicts of columns that also carry ``ids`` and ``position``; a
    dataset of tuples, namedtuples or dataclasses gives those. ``num_workers`` threads read ahead, in the same order as
    without.

    Leaving the loop and entering it again goes on where it was left; after the end of an epoch the next one begins.
    The newest ``iter()`` is the one that counts: an older iterator raises. ``run`` names the training run, which states
    and journals belong to; a loaded state continues its own. The parameters are attributes, fixed from here on; to go
    on with others make a new loader (``like``) and load the state of this one.

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
    ) -> None:
        self._settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.dataset = arguments.check_dataset(dataset)
        self.batch_size = arguments.check_whole(batch_size, "batch_size", least=1)
        self.shuffle, self.follow, self.drop_last = bool(shuffle), bool(follow), bool(drop_last)
        self.seed = seeds.check_seed(seed)
        self.num_workers = arguments.check_whole(num_workers, "num_workers", least=0)
        prefetch_factor = arguments.check_whole(prefetch_factor, "prefetch_factor", least=1)
        timeout = arguments.check_timeout(timeout)
        worker_init_fn = arguments.check_callable(worker_init_fn, "worker_init_fn")
        self._keeps_workers = persistent_workers
        self._is_explicit = arguments.check_acknowledge(acknowledge) == "explicit"
        self._faults = arguments.check_faults(faults)
        self._asked_run, self._created_run = arguments.check_run(run), new_run_id()
        self._restored_run: str | None = None
        self._run: str | None = None
        self._has_dataset_state = arguments.check_dataset_state(dataset, self.num_workers)
        arguments.check_batches(
            batches, follow=self.follow, batch_size=self.batch_size, shuffle=self.shuffle, drop_last=self.drop_last
        )
        arguments.check_sampling(weights, sampler, epochs, follow=self.follow, shuffle=self.shuffle, batches=batches)
        rows = snapshot_rows(dataset)
        arguments.check_follow(self.follow, dataset, rows)
        self.rank, self.world_size = arguments.check_rank(rank, world_size, rows.changes)
        self._about = {"source": rows.uuid, "choice": choice_of(dataset), "seed": self.seed, "shuffle": self.shuffle}
        self._about["batches"] = not (batches is None and weights is None and sampler is None)
        self._about["sampled"] = "weights" if weights is not None else "sampler" if sampler is not None else None
        self._first_spots = spots_of(dataset)
        self._journal = arguments.check_journal(
            journal, world_size=self.world_size, changes=rows.changes, follow=self.follow
        )
        self._ledger = self._make_ledger()
        if weights is not None:
            batches = self._sampled(weighted(weights, self.seed, n_epochs(epochs)))
        elif sampler is not None:
            batches = self._sampled(sampled(sampler, self.seed))
        self._planner = self._make_planner(batches)
        self.output = output or ("torch" if importlib.util.find_spec("torch") else "numpy")
        if hasattr(faults, "expect"):
            faults.expect(getattr(dataset, "schema", None))
        reading = BatchReader(self.output, arguments.check_callable(collate_fn, "collate_fn"), faults)
        stage = self._make_stage(device, pin_memory)
        self._fetcher = Fetcher(self._planner, reading, stage)
        if self.num_workers:
            # A buffer's batch is one gather; samples are cut finer, so that idle threads can help with a slow batch.
            self._fetcher = PrefetchingFetcher(
                self._planner,
                reading,
                stage,
                n_workers=self.num_workers,
                n_ahead=prefetch_factor * self.num_workers,
                n_rows=None if reading.takes_columns(rows) else max(1, self.batch_size // (4 * self.num_workers)),
                timeout=timeout,
                init=worker_init_fn,
            )
        self.guard = guard
        self._guard = None if guard is None else _guarding(guard, self.rank, self.world_size)
        self._progress = Progress(guard=self._guard and self._guard.memory())
        # The dataset's own state that the dataset is in now; _NOWHERE while a batch is read.
        self._dataset_at: str | None = None
        self._has_entered = self._has_resumed = False
        self._flight = InFlight()
        self._begun_at: object = None
        self._worker = (0, 1)
        self._dataset_epoch: int | None = None
        self._n_iterations = 0
        self._busy_thread: int | None = None
        vars(self).update({**self._settings, **vars(self)})  # the parameters that are used as they were given

    def _make_ledger(self) -> LedgerProtocol:
        about = {**self._about, "follow": self.follow}
        if isinstance(self._journal, (str, os.PathLike)):
            return Journal(self._journal, about)
        if self._journal is not None:
            return self._journal
        if self.world_size == 1:
            return Ledger()
        order = (about["source"] or id(self.dataset), about["choice"], self.seed, self.shuffle, self.follow)
        return shared_ledger((*order, self._asked_run), self.world_size)

    def _make_planner(self, batches: Any) -> StepPlanner:
        if batches is not None:
            return BatchPlanner(self.dataset, batches, rank=self.rank, world_size=self.world_size)
        return OrderPlanner(
            self.dataset,
            self._ledger,
            lambda epoch: Order(self.seed, epoch, shuffle=self.shuffle, follow=self.follow),
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    def _sampled(self, draw: Draw) -> SampledBatches:
        return SampledBatches(draw, self.batch_size, drop_last=self.drop_last, world_size=self.world_size)

    def _make_stage(self, device: Any, pin_memory: bool) -> Any:
        if self.output == "torch":
            torch_bridge.register_iterable(Loader)
            if device is None and not pin_memory:
                return None
            try:
                return torch_bridge.DeviceStage(device, pin=True if pin_memory else None, each=map_columns)
            except (RuntimeError, AssertionError) as error:
                raise ConfigError(f"device={device!r}: {error}") from None
        if device is not None or pin_memory:
            raise ConfigError(f"device= and pin_memory= are for tensors, output is {self.output!r}")
        return None

    # -- iterating

    def __iter__(self) -> Iterator[Any]:
        """Batches from where the loader is to the end of the epoch."""
        if torch_bridge.loaded() is not None:
            self._enter_worker(*torch_bridge.worker_info())
        self._enter_run()
        if self.num_workers:
            self._prefetch()
        self._n_iterations += 1
        return _Iteration(self, self._n_iterations)

    def _prefetch(self) -> None:
        """Let the threads begin with the first batch, as if it were asked for.

        Where ranks have to agree on a dataset that changes, they do so when the batch is asked for, not before.
        """
        if self._busy_thread is not None or not self._decides_alone:
            return
        try:
            self._enter()
            self._skip_steps()
            moment = self._moment()
            if self._fetcher.prefetch(self._progress.place, self._worker[1]):
                self._begun_at = moment
        except Exception as error:  # raised where a batch is asked for
            self._fetcher.forget(keep_workers=True)
            self._begun_at = error

    @property
    def _decides_alone(self) -> bool:
        is_shared = self.world_size > 1 or isinstance(self._ledger, Journal)
        return not is_shared or snapshot_rows(self.dataset).changes == FIXED

    def _moment(self) -> object:
        """Equal as long as nothing changes in the dataset: ids are never used again."""
        rows = snapshot_rows(self.dataset)
        return version_of(self.dataset), tuple(rows.spans()), members_of(rows), len(rows)

    def _check_begin(self) -> None:
        """What has changed between ``iter`` and the first ``next`` belongs to the epoch: it is read again."""
        begun_at = self._begun_at
        if begun_at != self._moment():
            self._fetcher.forget(keep_workers=True)
            if isinstance(self._planner, BatchPlanner):
                self._planner.forget()
        self._begun_at = None
        if isinstance(begun_at, Exception):
            raise begun_at

    def _enter_worker(self, number: int, n_workers: int) -> None:
        """In a worker process of torch's DataLoader: this loader takes every ``n_workers``-th step."""
        if (number, n_workers) == self._worker:
            return
        changes = snapshot_rows(self.dataset).changes if n_workers > 1 and self._journal is None else FIXED
        arguments.check_worker_processes(changes=changes, follow=self.follow)
        self._worker = (number, n_workers)

    def _enter_run(self) -> None:
        """Decide which run this is, where a journal has to know: not before ranks and process groups are there."""
        if self._run is None and isinstance(self._ledger, Journal):
            run = self._run_id()
            self._ledger.claim(run, is_resumed=self._has_resumed)
            self._run = run

    def _run_id(self) -> str:
        return run_id(
            self._asked_run,
            restored=self._restored_run,
            created=self._created_run,
            world_size=self.world_size,
            what=f"Loader with journal {getattr(self._ledger, 'path', None)}",
        )

    def _known_run(self) -> str | None:
        """The run as far as it is known without asking other ranks; one without a journal creates none."""
        found = self._run or run_id(self._asked_run, restored=self._restored_run, created=self._created_run)
        needs_one = isinstance(self._ledger, Journal) and self.world_size == 1
        return found if needs_one or found != self._created_run else None

    def _next(self) -> Any:
        """The next batch, or ``_END``."""
        mine = threading.get_ident()
        # A thread's own number is no obstacle: it is what an interrupt of its last call left behind.
        if self._busy_thread not in (None, mine):
            raise RuntimeError("two threads ask one loader for a batch at the same time; give each a loader of its own")
        try:
            self._busy_thread = mine
            return self._next_batch()
        except StopIteration as error:
            raise RuntimeError("StopIteration came from a function that reads; it would end the epoch early") from error
        finally:
            self._busy_thread = None

    def _next_batch(self) -> Any:
        if self._has_dataset_state:
            self._rewind_dataset()
        self._enter()
        if self._guard is not None:
            self._guard.rewind(self._progress.guard)  # what a batch that was judged and not delivered has changed
        batch = self._batch_behind()
        while batch is _LEFT_OUT:
            batch = self._batch_behind()
        return batch

    def _batch_behind(self) -> Any:
        """The batch behind the progress, which moves; ``_LEFT_OUT`` if the guard says so, ``_END`` at the end."""
        self._skip_steps()
        if self._begun_at is not None:
            self._check_begin()
        before, stride = self._progress, self._worker[1]
        got = self._fetcher.next(before.place, stride)
        if got is None:
            return self._end()
        plan, read, content = got
        ids, n_dropped, missing = read.ids, 0, read.gone
        if self._guard is not None:
            where = f"Loader, epoch {plan.place.epoch}, step {plan.place.step}"
            kept = self._guard.kept(read.content, ids, where)
            if kept is not None:
                content = chosen(content, kept) if len(kept) else None
                missing, ids = np.concatenate([missing, np.delete(ids, kept)]), ids[kept]
                n_dropped = len(read.ids) - len(ids)
        if len(missing):
            self._skipped_since = time.time() if self._skipped_since is None else self._skipped_since
            self._ledger.skip(Skipped(self._who, plan.place.epoch, plan.place.step, missing.tolist()))
        is_left_out = n_dropped > 0 and not len(ids)
        origin = Origin(ids, plan.place.position, plan.place.step)
        batch = _LEFT_OUT if is_left_out else labelled(content, origin)
        if self._is_explicit and not is_left_out:
            self._flight.track(batch, plan.place.step, before)
        own = dataset_state.to_json(self.dataset) if self._has_dataset_state else None
        after = Progress(
            plan.after,
            stride - 1,
            True,
            before.n_skipped + len(read.gone),
            own,
            before.origin if is_left_out else origin,
            self._guard and self._guard.memory(),
            before.n_left_out + is_left_out,
            before.n_dropped + n_dropped,
        )
        self._dataset_at = own
        self._progress = after
        return batch

    def _keep_dataset(self) -> None:
        """Note the state of a dataset that has one, before anything changes it: an epoch that begins, or a read."""
        if self._has_dataset_state and self._progress.dataset is None:
            self._dataset_at = dataset_state.to_json(self.dataset)
            self._progress = self._progress._replace(dataset=self._dataset_at)

    def _rewind_dataset(self) -> None:
        """Undo what a batch that was read and not delivered has changed in a dataset with a state of its own."""
        place, text = self._progress.place, self._progress.dataset
        if text is not None and self._dataset_at != text:
            self._put_dataset(place, text)
        self._dataset_at = _NOWHERE

    def _put_dataset(self, place: LoaderPosition, text: str) -> None:
        """The dataset as it was at a place. Inside an epoch its state came after the epoch began, else before."""
        if place.position:
            self._set_dataset_epoch(place.epoch)
        else:
            self._dataset_epoch = None
        dataset_state.restore(self.dataset, text)
        self._set_dataset_epoch(place.epoch)

    def _skip_steps(self) -> None:
        """Pass over the steps that belong to other worker processes."""
        n_skip = self._progress.n_skip
        n_skip = self._worker[0] if n_skip is None else n_skip
        while n_skip:
            plan = self._planner.next(self._progress.place)
            if plan is None:
                return
            n_skip -= 1
            self._progress = self._progress._replace(place=plan.after, n_skip=n_skip)

    def _end(self) -> Any:
        self._leave()
        self._fetcher.forget(keep_workers=self._keeps_workers)
        place = self._progress.place.begin(self._progress.place.epoch + 1)
        self._dataset_at = self._progress.dataset
        self._progress = self._progress._replace(place=place, n_skip=None)
        return _END

    def _enter(self) -> None:
        """Tell the dataset and the ledger where steps begin: at the start of an epoch, and wherever a run goes on."""
        place = self._progress.place
        self._set_dataset_epoch(place.epoch)
        if self._has_entered:
            return
        if isinstance(self._planner, OrderPlanner):
            self._planner.session = self._ledger.enter(self._planner.run_from(place, self._who))
        self._has_entered = True

    def _leave(self) -> None:
        if self._has_entered and isinstance(self._planner, OrderPlanner):
            self._ledger.leave(self._who, self._progress.place.epoch, self._planner.session)
        self._has_entered = False

    @property
    def _who(self) -> str:
        return f"rank {self.rank} worker {self._worker[0]}"

    def _set_dataset_epoch(self, epoch: int) -> None:
        """Before anything is frozen: views may be other rows in another epoch."""
        if self._dataset_epoch != epoch:
            self._keep_dataset()
            pass_epoch(self.dataset, epoch)
            self._dataset_epoch = epoch

    def _go_to(self, place: LoaderPosition, n_skip: int | None = None, dataset: str | None = None) -> None:
        self._fetcher.forget(keep_workers=True)
        self._begun_at = None
        self._flight.clear()
        self._leave()
        self._progress = self._progress._replace(place=place, n_skip=n_skip, dataset=dataset)

    @property
    def _frontier(self) -> Progress:
        """How far the state is: before the oldest batch that is not trained, where batches are acknowledged."""
        return self._flight.oldest(self._progress.place.step) or self._progress

    # -- how far it is

    def __len__(self) -> int:
        """Batches left in the epoch; with ``follow`` a TypeError, because it is not known."""
        if self.follow:
            raise TypeError("the length of a loader that follows a growing dataset is not known before the epoch ends")
        self._set_dataset_epoch(self._progress.place.epoch)
        return self._planner.n_left(self._progress.place)

    @property
    def has_batches(self) -> bool:
        """Whether ``batches=`` decides what is in a batch."""
        return isinstance(self._planner, BatchPlanner)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._progress.place.epoch

    @property
    def step(self) -> int:
        """Steps yielded since training began."""
        return self._progress.place.step

    @property
    def position(self) -> int:
        """Rows of this epoch handed out so far, over all ranks."""
        return self._progress.place.position

    @property
    def n_skipped(self) -> int:
        """Rows that were due to this rank and not read: they had left the dataset, or ``faults`` left them out."""
        return self._progress.n_skipped + self._planner.n_lost

    @property
    def stats(self) -> dict[str, int]:
        """What the guard has left out: batches (``skipped``), and rows, alone or with their batch (``dropped_rows``).

        >>> from poolish.guards import Suite
        >>> suite = Suite().expect("value", between=(0, 10)).on(error="drop")
        >>> loader = Loader([1, 2, 99, 4], 2, guard=suite)
        >>> [batch["value"].tolist() for batch in loader], loader.stats
        ([[1, 2], [4]], {'skipped': 0, 'dropped_rows': 1})
        """
        return {"skipped": self._progress.n_left_out, "dropped_rows": self._progress.n_dropped}

    @property
    def origin(self) -> Origin | None:
        """``ids``, ``position`` and ``step`` of the batch that was yielded last, for batches that cannot carry them.

        >>> loader = Loader([10, 20, 30], 2, collate_fn=sum)
        >>> next(iter(loader)), loader.origin.ids
        (30, array([0, 1]))
        """
        return self._progress.origin

    #: When the first row was due and not read.
    _skipped_since: float | None = None

    def health(self) -> Health:
        """What was not read, since when; what ``faults`` counts, and how many batches are in flight."""
        progress = self._progress
        found = self._faults.health() if hasattr(self._faults, "health") else Health()
        skipped = (
            None
            if not self.n_skipped
            else Problem(
                f"{self.n_skipped:,} rows were due to rank {self.rank} and not read",
                self._skipped_since,
                "they left the dataset, or faults= left them out: loader.audit() lists them; keep rows for an epoch",
            )
        )
        place = progress.place
        figures = {"epoch": place.epoch, "step": place.step, "position": place.position, "skipped": self.n_skipped}
        return found.plus(skipped, **figures, in_flight=self._flight.n_waiting(place.step))

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` with the next ``iter()``; nothing happens if the loader is in it already.

        An iterator of another epoch that still runs raises: it would go on in this one.
        """
        epoch, place = check_epoch(epoch), self._progress.place
        if epoch == place.epoch:
            return
        self._n_iterations += 1
        if not place.position and self._dataset_epoch == place.epoch:
            self._dataset_at = _NOWHERE  # it has begun an epoch of which nothing was read
        self._go_to(place.begin(epoch), dataset=self._progress.dataset)
        if isinstance(self._planner, BatchPlanner):
            self._planner.forget()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: behind the last batch that was yielded, or trained where batches are acknowledged.

        Plain JSON. Any rank's state, taken at the same step, restores all ranks, on any world size. A dataset with
        ``state_dict`` and ``load_state_dict`` is saved with it; then each rank needs its own state.
        """
        frontier, rows = self._frontier, snapshot_rows(self.dataset)
        place = frontier.place
        state = {"format": "poolish loader", "version": VERSION, **self._about, "run": self._known_run()}
        state |= {"epoch": place.epoch, "step": place.step, "position": place.position}
        state |= {"first_step": place.first_step, "total": -1 if place.total is None else place.total}
        state["fixed_by"] = fixed_by(rows)
        if isinstance(self._planner, BatchPlanner):
            state["n_rows"] = len(rows)
            if self._about["sampled"] is None:
                state["n_batches"] = self._planner.n_batches
            elif place.position:
                state["draw"] = self._planner.checksum(place.epoch)
        else:
            state["order"] = to_order(place, rows)
        seen = highest(state) if "order" in state else [end for _, end in rows.spans()]
        branch = branch_below(rows, seen)
        if branch is not None:
            state["branch"] = branch
        spots = kept_spots(self._first_spots, self.dataset)
        if spots:
            state["spots"] = spots
        if self._worker[1] > 1:
            state["skip"] = frontier.n_skip
        if hasattr(self._faults, "state_dict"):
            state["faults"] = self._faults.state_dict()
        if self._has_dataset_state:
            state["dataset"] = json.loads(frontier.dataset or dataset_state.to_json(self.dataset))
            state["dataset_of"] = [self.rank, self.world_size]
        if self._guard is not None:
            state |= self._guard.state_of(frontier.guard)
        return sealed(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``: the next batch is the one that came behind it. A refused state changes nothing."""
        check_belongs(state, self._about)
        dataset_state.check_same(self.dataset, state, (self.rank, self.world_size))
        run = state.get("run")
        if run is not None:
            run_id(self._asked_run, restored=run, what="Loader")
        own = json.dumps(state["dataset"]) if "dataset" in state else None
        before = dataset_state.to_json(self.dataset) if self._has_dataset_state else None
        was, known_epoch = (self._progress, self._dataset_at), self._dataset_epoch
        memory = self._guard and self._guard.memory()
        try:
            self._keep_dataset()
            place = self._place_of(state, own)
            if self._guard is not None:
                self._guard.restore(state)
            if "faults" in state and hasattr(self._faults, "load_state_dict"):
                self._faults.load_state_dict(state["faults"])
        except BaseException:
            if self._guard is not None:
                self._guard.rewind(memory)
            self._set_dataset_epoch(self._progress.place.epoch if known_epoch is None else known_epoch)
            if before is not None:
                dataset_state.restore(self.dataset, before)
            (self._progress, self._dataset_at), self._dataset_epoch = was, known_epoch
            raise
        self._go_to(place, state.get("skip"), own)
        if isinstance(self._planner, BatchPlanner):
            self._planner.become(self._resumed_planner)
        self._progress = self._progress._replace(guard=self._guard and self._guard.memory())
        self._dataset_at = own
        self._restored_run, self._run, self._has_resumed = run, None, True

    def _place_of(self, state: Mapping[str, Any], own: str | None) -> LoaderPosition:
        """Where a state is, in the dataset as it is there: its epoch and its own state decide which rows it has."""
        place = place_in(state)
        if own is not None:
            self._put_dataset(place, own)
        self._set_dataset_epoch(place.epoch)
        rows = snapshot_rows(self.dataset)
        check_rows(state, rows)
        check_spots(self.dataset, state.get("spots", []))
        if isinstance(self._planner, OrderPlanner):
            return to_place(state, self._planner)
        assert isinstance(self._planner, BatchPlanner)
        self._check_batches_of(state, len(rows))
        self._resumed_planner = self._planner.drawn_as(place.epoch, state.get("draw"))
        return place

    def _check_batches_of(self, state: Mapping[str, Any], n_rows: int) -> None:
        assert isinstance(self._planner, BatchPlanner)
        is_ready_made = self._about["sampled"] is None
        then = (state["n_batches"] if is_ready_made else "the", state["n_rows"])
        now = (self._planner.n_batches if is_ready_made else "the", n_rows)
        if then != now and (is_ready_made or state["position"]):
            raise ResumeError(
                f"the state is of {then[0]} batches of {then[1]:,} rows, now there are {now[0]} batches of "
                f"{now[1]:,} rows; batches=, weights= and sampler= are about row numbers, so both must be as they were"
            )

    def mark_trained(self, batch: Any = None) -> None:
        """This batch is trained; without an argument, the oldest that is not yet.

        The state moves on when all batches before it are trained, too. A copy that knows its rows stands for the batch;
        for one that a framework rebuilt, call it without an argument.
        """
        if not self._is_explicit:
            raise ConfigError("mark_trained is for acknowledge='explicit'; here a batch is done when it is yielded")
        self._flight.acknowledge(batch, self._progress.place.step)

    def audit(self, first_step: int, last_step: int) -> Audit:
        """Which rows steps ``first_step`` to ``last_step`` saw, and whether any came twice or never."""
        from poolish.load.audit import audit

        n_done = self._progress.place.step if self._progress.has_yielded else None
        return audit(self._ledger, self._planner, first_step, last_step, n_done)

    # -- the end, and travelling

    def close(self) -> None:
        """End the threads; the loader can be used again."""
        self._fetcher.forget(keep_workers=False)

    def __repr__(self) -> str:
        share = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return f"<Loader of {type(self.dataset).__name__}, epoch {self.epoch}, step {self.step}{share}>"

    def like(self, **changes: Any) -> Loader:
        """A loader with the same settings but for ``changes``, at the beginning.

        >>> Loader([1, 2, 3], 2, seed=7).like(num_workers=2).seed
        7
        """
        return Loader(**{**self._settings, **changes})

    def __getstate__(self) -> dict[str, Any]:
        kept = {"created_run": self._created_run, "has_resumed": self._has_resumed}
        return {"settings": self._settings, "state": self.state_dict(), **kept}

    def __setstate__(self, value: dict[str, Any]) -> None:
        self.__init__(**value["settings"])  # type: ignore[misc]
        self._created_run = value["created_run"]
        self.load_state_dict(value["state"])
        self._has_resumed = value["has_resumed"]


def _guarding(guard: Any, rank: int, world_size: int) -> LoaderGuard:
    from poolish.load.guarding import LoaderGuard

    return LoaderGuard(guard, rank, world_size)


#: The state of a dataset while a batch is read: none that is known.
_NOWHERE = ""


class _Iteration:
    """One pass of ``for batch in loader``; all passes of a loader go on from the same place, one at a time."""

    def __init__(self, loader: Loader, number: int) -> None:
        self._loader, self._number = loader, number
        self._is_over = False

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        loader = self._loader
        if loader._n_iterations != self._number:
            raise RuntimeError(
                "this iterator was superseded: a later iter() or set_epoch() of the same loader moved it; use a new "
                "iter(), or give each loop a loader of its own (loader.like())"
            )
        loader._keep_dataset()
        before = loader._progress
        try:
            batch = loader._next()
            if batch is not _END:
                return batch
            self._is_over = True
        except BaseException:
            # Whatever came, and whenever: a batch that next() does not return was not delivered.
            loader._progress, self._is_over = before, False
            raise
        raise StopIteration
