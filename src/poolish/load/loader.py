"""Loader: batches of a dataset that may grow while it is read, each row exactly once an epoch.

    dataset --freeze--> rows by id        ledger, journal    what was decided, for all ranks
                           |                    |
    order         which ids come next  <--------+            grows with the dataset, resumes anywhere
    walk          the rows of one step, dealt to the ranks
    reading       rows -> columns or samples -> a batch      here, or ahead of time in ``workers``
    torch_bridge  tensors, pinned memory, the device

The loader itself only knows where it is: the place behind the last batch it has yielded (or, where batches are
acknowledged, behind the last that was trained without a gap). That place is its state.
"""

from __future__ import annotations

import importlib.util
import operator
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from poolish import seeds
from poolish.errors import ConfigError, ResumeError
from poolish.load.batch import labelled
from poolish.load.dataset import check_map_style
from poolish.load.frozen import FIXED, LOCAL, SHARED, Frozen, Int64, SnapshotRows, choice_of, fixed_by, freeze
from poolish.load.journal import Journal
from poolish.load.ledger import Keeps, Ledger, Skipped, shared_ledger
from poolish.load.order import Order
from poolish.load.reading import Read, Reading, pieces_of
from poolish.load.sizes import nbytes
from poolish.load.state import VERSION, check_belongs, sealed, to_order, to_place
from poolish.load.views import check_epoch, pass_epoch
from poolish.load.walk import BatchWalk, Piece, Place, Plan, Walk, Walks
from poolish.load.workers import ReadAhead, Workers
from poolish.tokens.store import StreamStore

if TYPE_CHECKING:
    from poolish.load.audit import Audit

ACKNOWLEDGE = ("on_yield", "explicit")

#: What may be read ahead of the trainer, however many batches that is.
MAX_BYTES_AHEAD = 2**30


class Loader:
    """Batches of ``dataset``, shuffled or not, for one rank of any number, resumable at every batch.

    ``dataset`` is anything with a length and an index, a ``DatasetBuffer`` or a ``StreamStore``. ``follow=True`` lets
    rows that are appended while the epoch runs join it, at most 1,024 rows later, each exactly once; otherwise the
    epoch is what was there when it began. Batches are dicts of columns that also carry ``ids`` and ``position``; a
    dataset of tuples gives tuples. ``num_workers`` threads read ahead, in the same order as without.

    Leaving the loop and entering it again goes on where it was left; after the end of an epoch the next one begins.

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
        journal: str | os.PathLike[str] | Keeps | None = None,
        output: str | None = None,
        follow: bool = False,
        acknowledge: str = "on_yield",
        faults: Any = None,
        device: Any = None,
    ) -> None:
        self._settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.dataset = _checked_dataset(dataset)
        self.batch_size = _whole(batch_size, "batch_size", 1)
        self.shuffle, self.follow, self.drop_last = bool(shuffle), bool(follow), bool(drop_last)
        self.seed = seeds.check_seed(seed)
        self.num_workers = _whole(num_workers, "num_workers", 0)
        self._prefetch_factor = _whole(prefetch_factor, "prefetch_factor", 1)
        self._timeout = _seconds(timeout)
        self._worker_init_fn = _callable(worker_init_fn, "worker_init_fn")
        self._keeps_workers = persistent_workers
        if acknowledge not in ACKNOWLEDGE:
            raise ConfigError(f"acknowledge={acknowledge!r}: one of {', '.join(map(repr, ACKNOWLEDGE))}")
        self._is_explicit = acknowledge == "explicit"
        if faults is not None and not hasattr(faults, "read"):
            raise ConfigError(f"faults={faults!r}: pass a poolish.guards.Faults")
        self._faults = faults
        self._check_batches(batches, batch_size, shuffle, drop_last)
        rows = self._checked_rows()
        self.rank, self.world_size = _rank(rank, world_size, rows.changes)
        self._about = {"source": rows.uuid, "choice": choice_of(dataset), "seed": self.seed, "shuffle": self.shuffle}
        self._about["batches"] = batches is not None
        self._journal = journal
        self._ledger = self._make_ledger(rows.changes)
        self._walk = self._make_walk(batches)
        self._output = output or ("torch" if importlib.util.find_spec("torch") else "numpy")
        if hasattr(faults, "expect"):
            faults.expect(getattr(dataset, "schema", None))
        self._reading = Reading(self._output, _callable(collate_fn, "collate_fn"), faults)
        self._is_columnar = isinstance(rows, SnapshotRows) and collate_fn is None and faults is None
        self._stage = self._make_stage(device, pin_memory)
        self._workers: Workers | None = None
        self._ahead: ReadAhead[Plan, Piece, Read, tuple[Plan, Read]] | None = None
        self._staged: tuple[Plan, Read, Any] | None = None
        self._place = self._frontier = Place()
        self._has_entered = self._has_yielded = self._is_busy = False
        self._flight: deque[_InFlight] = deque()
        self._n_skipped = 0
        self._n_skip: int | None = None  # in a worker process: steps to pass over; None where an epoch begins
        self._worker = (0, 1)
        self._told_epoch: int | None = None
        self._go_to(Place())

    def _check_batches(self, batches: Any, batch_size: int, shuffle: bool, drop_last: bool) -> None:
        if batches is None:
            return
        clashing = {"follow": self.follow, "batch_size": batch_size != 1, "shuffle": shuffle, "drop_last": drop_last}
        given = [name for name, is_given in clashing.items() if is_given]
        if given:
            raise ConfigError(f"batches= decides what is in a batch, so {given[0]}= has no meaning beside it")
        if not hasattr(batches, "__len__") or not hasattr(batches, "__getitem__"):
            raise ConfigError(f"batches: {type(batches).__name__} has no length or no index; make it a list of lists")

    def _checked_rows(self) -> Frozen:
        rows = freeze(self.dataset)
        if self.follow and fixed_by(rows) is not None:
            raise ConfigError(
                f"follow=True on {type(self.dataset).__name__}: a subset, shuffle or mixture numbers the rows it was "
                "made of, so it cannot grow; pass what is below it, with shuffle=True"
            )
        return rows

    def _make_ledger(self, changes: str) -> Keeps:
        about = {**self._about, "follow": self.follow}
        if isinstance(self._journal, (str, os.PathLike)):
            return Journal(self._journal, about)
        if self._journal is not None:
            if not hasattr(self._journal, "settle"):
                raise ConfigError(f"journal={self._journal!r}: pass a directory that all ranks can reach")
            return self._journal
        if self.world_size == 1:
            return Ledger()
        is_apart = changes == SHARED or (self.follow and _rank_from_environment()[1] > 1)
        if is_apart and (self.follow or changes == SHARED):
            raise ConfigError(
                f"world_size={self.world_size} on a dataset that grows: ranks in different processes would see an "
                "append at different moments, and rows would be lost and repeated; pass journal=DIR, the same for all"
            )
        name = (about["source"] or id(self.dataset), about["choice"], self.seed, self.shuffle, self.follow)
        return shared_ledger(name, self.world_size)

    def _make_walk(self, batches: Any) -> Walks:
        if batches is not None:
            return BatchWalk(self.dataset, batches, rank=self.rank, world_size=self.world_size)
        return Walk(
            self.dataset,
            self._ledger,
            lambda epoch: Order(self.seed, epoch, shuffle=self.shuffle, follow=self.follow),
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    def _make_stage(self, device: Any, pin_memory: bool) -> Any:
        if self._output == "torch":
            from poolish.load.torch_bridge import Stage, make_iterable

            make_iterable(Loader)
            try:
                return Stage(device, pin_memory) if device is not None or pin_memory else None
            except (RuntimeError, AssertionError) as error:
                raise ConfigError(f"device={device!r}: {error}") from None
        if device is not None or pin_memory:
            raise ConfigError(f"device= and pin_memory= are for tensors, output is {self._output!r}")
        return None

    # -- iterating

    def __iter__(self) -> Iterator[Any]:
        """Batches from where the loader is to the end of the epoch."""
        if "torch" in sys.modules:
            from poolish.load.torch_bridge import worker_place

            self._enter_worker(*worker_place())
        return _Iteration(self)

    def _enter_worker(self, number: int, n_workers: int) -> None:
        """In a worker process of torch's DataLoader: this loader takes every ``n_workers``-th step."""
        if (number, n_workers) == self._worker:
            return
        changes = freeze(self.dataset).changes if n_workers > 1 and self._journal is None else FIXED
        if changes == SHARED or (self.follow and changes != FIXED):
            raise ConfigError(
                "several worker processes on a dataset that grows: they would see an append at different moments, and "
                "rows would be lost and repeated; pass journal=DIR"
            )
        self._worker = (number, n_workers)

    def _next(self) -> Any:
        """The next batch. An error leaves the loader where it was: the same batch comes next."""
        if self._is_busy:
            raise RuntimeError("two threads ask one loader for a batch at the same time; give each a loader of its own")
        self._is_busy = True
        try:
            return self._next_batch()
        finally:
            self._is_busy = False

    def _next_batch(self) -> Any:
        self._enter()
        self._skip_steps()
        got = self._read_ahead() if self.num_workers else self._read_now()
        if got is None:
            return self._end()
        plan, read, content = got
        if len(read.gone):
            self._n_skipped += len(read.gone)
            self._ledger.skip(Skipped(self._who, plan.place.epoch, plan.place.step, read.gone.tolist()))
        batch = labelled(content, read.ids, plan.place.position, plan.place.step)
        stride = self._worker[1]
        if self._is_explicit:
            self._take_off(_InFlight(batch, plan.place.step, plan.after))
        # Without a call from here on Python looks for no signal: Ctrl-C finds the batch handed out, or still to come.
        self._place = plan.after
        if not self._is_explicit:
            self._frontier = plan.after
        self._n_skip, self._has_yielded = stride - 1, True
        return batch

    def _skip_steps(self) -> None:
        """Pass over the steps that belong to other worker processes."""
        n_skip = self._worker[0] if self._n_skip is None else self._n_skip
        while n_skip:
            plan = self._walk.next(self._place)
            if plan is None:
                return
            n_skip -= 1
            self._place = plan.after
            if not self._is_explicit:
                self._frontier = plan.after
            self._n_skip = n_skip

    def _take_off(self, flight: _InFlight) -> None:
        while self._flight and self._flight[-1].step >= flight.step:  # it was not handed out then
            self._flight.pop()
        self._flight.append(flight)

    def _end(self) -> Any:
        self._leave()
        place = self._place.next_epoch()
        if not self._flight:
            self._frontier = place
        self._place, self._n_skip = place, None
        self._forget_ahead(keep_workers=self._keeps_workers)
        raise StopIteration

    def _read_now(self) -> tuple[Plan, Read, Any] | None:
        plan = self._walk.next(self._place)
        if plan is None:
            return None
        read = self._reading.join([self._describing(piece) for piece in plan.pieces], plan.example)
        content = read.content if self._stage is None else self._stage.finish(self._stage.begin(read.content))
        return plan, read, content

    def _describing(self, piece: Piece) -> Read:
        try:
            return self._reading.read(piece)
        except Exception as error:
            error.add_note(f"while reading {_where(piece)}")
            raise

    def _read_ahead(self) -> tuple[Plan, Read, Any] | None:
        if self._ahead is None:
            self._ahead = self._make_ahead()
        current = self._staged or self._staging()
        self._staged = None
        if current is not None and current[0].place.step != self._place.step:
            # The batch before was ready when Ctrl-C came, and not handed out.
            self._forget_ahead(keep_workers=True)
            return self._read_ahead()
        if current is None:
            # Nothing was sure ahead of time. Now somebody waits, so a short step or the end may be decided.
            self._ahead = None
            return self._read_now()
        if self._stage is None:
            return current
        plan, read, moving = current
        if self._ahead.is_ready:  # its copy runs while the trainer works on this batch
            self._staged = self._staging()
        return plan, read, self._stage.finish(moving)

    def _staging(self) -> tuple[Plan, Read, Any] | None:
        assert self._ahead is not None
        try:
            plan, read = next(self._ahead)
        except StopIteration:
            return None
        return plan, read, read.content if self._stage is None else self._stage.begin(read.content)

    def _make_ahead(self) -> ReadAhead[Plan, Piece, Read, tuple[Plan, Read]]:
        if self._workers is None:
            self._workers = Workers(self.num_workers, self._worker_init_fn)
        # A buffer's batch is one gather; samples are cut finer, so that idle threads can help with a slow batch.
        size = self.batch_size if self._is_columnar else max(1, self.batch_size // (4 * self.num_workers))
        return ReadAhead(
            _Plans(self._walk, self._place, self._worker[1]),
            lambda plan: plan.pieces if self._is_columnar else pieces_of(plan, size),
            self._reading.read,
            lambda plan, parts: (plan, self._reading.join(parts, plan.example)),
            workers=self._workers,
            n_ahead=self._prefetch_factor * self.num_workers,
            max_bytes=MAX_BYTES_AHEAD,
            size_of=lambda read: nbytes(read.content),
            timeout=self._timeout,
            describe=_where,
        )

    def _forget_ahead(self, *, keep_workers: bool) -> None:
        """What was read ahead and not yielded is read again, by whoever goes on from the state."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._staged = None
        if self._workers is not None and not keep_workers:
            self._workers.close()
            self._workers = None

    def _enter(self) -> None:
        """Tell the dataset and the ledger where steps begin: at the start of an epoch, and wherever a run goes on."""
        self._tell_epoch(self._place.epoch)
        if self._has_entered:
            return
        if isinstance(self._walk, Walk):
            self._walk.session = self._ledger.enter(self._walk.run_from(self._place, self._who))
        self._has_entered = True

    def _leave(self) -> None:
        if self._has_entered and isinstance(self._walk, Walk):
            self._ledger.leave(self._who, self._place.epoch, self._walk.session)
        self._has_entered = False

    @property
    def _who(self) -> str:
        return f"rank {self.rank} worker {self._worker[0]}"

    def _tell_epoch(self, epoch: int) -> None:
        """Before anything is frozen: views may be other rows in another epoch."""
        if self._told_epoch != epoch:
            pass_epoch(self.dataset, epoch)
            self._told_epoch = epoch

    def _go_to(self, place: Place) -> None:
        self._forget_ahead(keep_workers=True)
        self._flight.clear()
        self._leave()
        self._place = self._frontier = place
        self._n_skip = None

    # -- how far it is

    def __len__(self) -> int:
        """Batches left in the epoch; with ``follow`` nobody can know."""
        if self.follow:
            raise TypeError("the length of a loader that follows a growing dataset is not known before the epoch ends")
        self._tell_epoch(self._place.epoch)
        return self._walk.n_left(self._place)

    @property
    def has_batches(self) -> bool:
        """Whether ``batches=`` decides what is in a batch."""
        return isinstance(self._walk, BatchWalk)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._place.epoch

    @property
    def step(self) -> int:
        """Steps yielded since training began."""
        return self._place.step

    @property
    def position(self) -> int:
        """Rows of this epoch handed out so far, over all ranks."""
        return self._place.position

    @property
    def n_skipped(self) -> int:
        """Rows that were due to this rank and not read: they had left the dataset, or ``faults`` left them out."""
        return self._n_skipped

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` with the next batch; nothing happens if the loader is in it already."""
        epoch = check_epoch(epoch)
        if epoch != self._place.epoch:
            self._go_to(Place(epoch, self._place.step))

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: behind the last batch that was yielded, or trained where batches are acknowledged.

        Plain JSON. Any rank's state, taken at the same step, restores all ranks, on any world size.
        """
        place, rows = self._frontier, freeze(self.dataset)
        state = {"format": "poolish loader", "version": VERSION, **self._about}
        state |= {"epoch": place.epoch, "step": place.step, "position": place.position}
        state["fixed_by"] = fixed_by(rows)
        if isinstance(self._walk, BatchWalk):
            state["n_batches"], state["n_rows"] = self._walk.n_batches, len(rows)
        else:
            state["order"] = to_order(place, rows)
        if self._worker[1] > 1:
            state["skip"] = self._n_skip
        if hasattr(self._faults, "state_dict"):
            state["faults"] = self._faults.state_dict()
        return sealed(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``: the next batch is the one that came behind it."""
        if isinstance(state, Mapping) and isinstance(state.get("epoch"), int):
            self._tell_epoch(state["epoch"])
        rows = freeze(self.dataset)
        check_belongs(state, self._about, rows)
        if isinstance(self._walk, Walk):
            place = to_place(state, self._walk)
        else:
            self._check_batches_of(state, len(rows))
            place = Place(state["epoch"], state["step"], state["position"])
        self._go_to(place)
        self._n_skip = state.get("skip")
        if "faults" in state and hasattr(self._faults, "load_state_dict"):
            self._faults.load_state_dict(state["faults"])

    def _check_batches_of(self, state: Mapping[str, Any], n_rows: int) -> None:
        assert isinstance(self._walk, BatchWalk)
        then, now = (state["n_batches"], state["n_rows"]), (self._walk.n_batches, n_rows)
        if then != now:
            raise ResumeError(
                f"the state is of {then[0]} batches of {then[1]:,} rows, now there are {now[0]} batches of "
                f"{now[1]:,} rows; batches= are made of row numbers, so both must be as they were"
            )

    def mark_trained(self, batch: Any) -> None:
        """This batch is trained. The state moves on when all batches before it are, too."""
        if not self._is_explicit:
            raise ConfigError("mark_trained is for acknowledge='explicit'; here a batch is done when it is yielded")
        for flight in self._flight:
            if flight.batch is batch or flight.step == getattr(batch, "step", None):
                flight.is_trained = True
                break
        else:
            raise ConfigError("mark_trained: this batch was not yielded by this loader, or is marked already")
        while self._flight and self._flight[0].is_trained:
            self._frontier = self._flight.popleft().after
        if not self._flight and self._place.held is None:
            self._frontier = self._place  # the epoch is over, and all of it is trained

    def audit(self, first_step: int, last_step: int) -> Audit:
        """Which rows steps ``first_step`` to ``last_step`` saw, and whether any came twice or never."""
        from poolish.load.audit import audit

        return audit(self._ledger, self._walk, first_step, last_step, self._place.step if self._has_yielded else None)

    # -- the end, and travelling

    def close(self) -> None:
        """End the threads; the loader can be used again."""
        self._forget_ahead(keep_workers=False)

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
        return {"settings": self._settings, "state": self.state_dict()}

    def __setstate__(self, value: dict[str, Any]) -> None:
        self.__init__(**value["settings"])  # type: ignore[misc]
        self.load_state_dict(value["state"])


class _Iteration:
    """One pass of ``for batch in loader``; all passes of a loader go on from the same place."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._is_over = False

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            return self._loader._next()
        except StopIteration:
            self._is_over = True
            raise


class _Plans:
    """The steps from a place to the end of the epoch, every ``stride``-th; an error of one leaves it the next."""

    def __init__(self, walk: Walks, place: Place, stride: int) -> None:
        self._walk, self._place, self._stride = walk, place, stride
        self._n_skip = 0

    def __iter__(self) -> _Plans:
        return self

    def __next__(self) -> Plan:
        while True:
            plan = self._walk.next(self._place, is_ahead=True)
            if plan is None:
                raise StopIteration
            self._place = plan.after
            if not self._n_skip:
                self._n_skip = self._stride - 1
                return plan
            self._n_skip -= 1


class _InFlight:
    """A batch that was yielded and is not known to be trained."""

    __slots__ = ("after", "batch", "is_trained", "step")

    def __init__(self, batch: Any, step: int, after: Place) -> None:
        self.batch, self.step, self.after = batch, step, after
        self.is_trained = False


def _checked_dataset(dataset: Any) -> Any:
    if isinstance(dataset, StreamStore):
        return dataset
    if isinstance(dataset, Mapping):
        raise ConfigError("dataset is a dict, which has keys and no row numbers; append its columns to a DatasetBuffer")
    return check_map_style(dataset)


def _callable(function: Any, what: str) -> Any:
    if function is not None and not callable(function):
        raise ConfigError(f"{what}={function!r}: a function, or None")
    return function


def _seconds(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ConfigError(f"timeout={timeout!r}: seconds to wait for a batch, 0 for as long as it takes")
    return timeout


def _rank(rank: int | None, world_size: int | None, changes: str) -> tuple[int, int]:
    """Which rank of how many; a buffer in memory is each process's own, so the environment does not cut it."""
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is None or world_size is None:
        rank, world_size = (0, 1) if changes == LOCAL else _rank_from_environment()
    rank, world_size = _whole(rank, "rank", 0), _whole(world_size, "world_size", 1)
    if rank >= world_size:
        raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0 to world_size - 1")
    return rank, world_size


def _rank_from_environment() -> tuple[int, int]:
    """RANK and WORLD_SIZE as torchrun and its kin set them; one of one where nobody did."""
    named = {name: os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
    for name, value in named.items():
        if not value.isdecimal():
            raise ConfigError(
                f"the environment says {name}={value!r}: a whole number; unset it, or pass rank= and world_size="
            )
    return int(named["RANK"]), int(named["WORLD_SIZE"])


def _whole(value: Any, what: str, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigError(f"{what}={value!r}: a whole number, {least} or more")
    return number


def _where(piece: Piece) -> str:
    ids: Int64 = piece.ids
    shown = ", ".join(map(str, ids[:5].tolist())) + (", ..." if len(ids) > 5 else "")
    return f"{'row' if len(ids) == 1 else 'rows'} {shown}; the loader is still before this batch"
