"""DatasetConsumer: the trainer's end of a queue."""

from __future__ import annotations

import os
import reprlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from poolish.errors import ConfigError, QueueError, ResumeError, Starved
from poolish.files import check_name
from poolish.files.checksums import MAX_COUNTER
from poolish.fixed import fixed_parameters
from poolish.health import Health, Problem
from poolish.in_flight import Flight, InFlight
from poolish.printable import printable
from poolish.ranks import Ranks
from poolish.runs import run_id
from poolish.serve.consumer_arguments import (
    ACKNOWLEDGE,
    ON_CORRUPT,
    NoSuchSplit,
    QueueDeadline,
    check_mesh,
    device_of,
    one_of,
    output_of,
    prefetch_of,
    timeout_of,
    wait_of,
)
from poolish.serve.inspection import health_at
from poolish.serve.ranks import Assignment
from poolish.serve.reader import Batch, EndOfQueue, SplitReader
from poolish.serve.reading_ahead import CudaStage, ReadingAhead
from poolish.torch_bridge import from_array, has_process_group
from poolish.transports import Place, has_transport, place_to_read
from poolish.transports.batch_columns import converted, numpy_columns
from poolish.transports.meta import QueueMeta, not_found

if TYPE_CHECKING:
    from poolish.guards.checks.guard import Guard
    from poolish.serve.guarding import ConsumerGuard

_AHEAD_ON_CUDA = 3


@fixed_parameters("make a new DatasetConsumer and load_state_dict() the state of this one", free=["timeout_s"])
class DatasetConsumer:
    """Hands out the batches of a queue, each once, in the one order that all ranks share.

    ``path`` is the dataset's directory (``data/<dataset>``) or its ``queue``, or ``memory://NAME`` for a provider in
    this process. ``get_batch`` returns ``(X, Y)`` where the schema is x and y, else a dict of tensors
    (``output="numpy"``: arrays), whose memory is yours to change. Rank r of ``world_size`` gets every
    ``world_size``-th batch; they come from ``rank=`` and ``world_size=``, else from ``group=`` (a process group) or
    ``mesh=`` (its data-parallel dimension), else from ``torch.distributed`` where it is initialised, else from RANK and
    WORLD_SIZE: when the first batch is requested, and fixed from then on.

    All ranks of one training share a ``run`` id, which the state carries through restarts: pass it, or start them with
    torchrun or after ``torch.distributed`` is initialised. One rank needs none. While ranks of a run read, those of
    another are refused; a rank that was killed alone rejoins its run where it was, or is refused with the reason.

    ``acknowledge`` decides when a batch is done, so that a restart does not get it again and its file may be deleted:

    - ``"on_step"``: when the next one is requested. A killed trainer gets the one in flight again.
    - ``"on_read"``: when it is handed out. A killed trainer loses the one in flight.
    - ``"on_checkpoint"``: when ``commit(state)`` says that a checkpoint holds it. A killed trainer that loads its
      checkpoint gets exactly the batches that followed it, on any ``world_size``: nothing lost, nothing twice.
    - ``"explicit"``: the same, where the state is that of the batches which ``mark_trained()`` said are trained, not
      of those handed out. For frameworks that ask for batches before they train them.

    ``wait_for_queue_s`` is how long to wait for a provider that has yet to make the queue, or a split of it.

    ``guard`` checks every batch before it is handed out: a ``Suite``, or an object with its interface. A rejected batch
    is a ``DataRefused``, and the next call gets the same batch again; with ``Suite.on(error="skip")`` the
    batch is left out, with ``"drop"`` its bad rows, and ``stats`` count them. One rank of several leaves no batch out.

    >>> from poolish import DatasetProvider
    >>> with DatasetProvider([(i, i * i) for i in range(8)], path=folder, batch_size=4, order="sequential") as provider:
    ...     provider.publish("train"), provider.publish("train")
    (0, 1)
    >>> with DatasetConsumer(folder, output="numpy", timeout_s=1) as consumer:
    ...     X, Y = consumer.get_batch("train")
    ...     state = consumer.state_dict()
    >>> Y.tolist(), state["splits"]["train"]["position"]
    ([0, 1, 4, 9], 1)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: Any = None,
        output: str = "torch",
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
        mesh: Any = None,
        acknowledge: str = "on_step",
        on_corrupt: str = "raise",
        timeout_s: float | None = None,
        wait_for_queue_s: float = 0.0,
        prefetch: int | None = None,
        guard: Guard | None = None,
        run: str | None = None,
    ) -> None:
        self.output = output_of(output)
        self.wait_for_queue_s = wait_of(wait_for_queue_s)
        self._appearing = QueueDeadline(self.wait_for_queue_s)
        self._place = self._appearing.find(lambda: place_to_read(path))
        self.path: Path | str = str(self._place) if has_transport(path) else Path(str(self._place))
        self.guard, self._given_run = guard, None if run is None else check_name(run, "run")
        self._run: str | None = None
        self._ranks = Ranks(rank, world_size, group=group, mesh=mesh, what="DatasetConsumer")
        self.rank, self.world_size = self._ranks.now()[:2]
        self.group, self.mesh = group, mesh
        self._had_group: bool | None = None  # a process group, when the rank was fixed or checked last
        self.acknowledge = one_of(acknowledge, ACKNOWLEDGE, "acknowledge")
        self._is_explicit = acknowledge == "explicit"
        self.on_corrupt = one_of(on_corrupt, ON_CORRUPT, "on_corrupt")
        self.timeout_s = timeout_of(timeout_s)
        self.device = device_of(device, output)
        is_cuda = self.device is not None and self.device.type == "cuda"
        self.prefetch = prefetch_of(prefetch, _AHEAD_ON_CUDA if is_cuda else 0)
        self._is_ahead = self.prefetch > 0
        self._stage = CudaStage(self.device, keeps_columns=guard is not None) if is_cuda else None
        self._arrays_of = _arrays_of(self._stage, output, self.device)
        self._deleting = ThreadPoolExecutor(1, "poolish-delete") if self._is_ahead else None
        self._readers: dict[str, SplitReader] = {}
        self._ahead: dict[str, ReadingAhead] = {}
        self._in_flight: dict[str, InFlight[_Flight]] = {}
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._is_closed = False
        self._guard = None if guard is None else _guard(guard, self.rank, self.world_size)

    # -- batches

    def get_batch(self, split: str = "train") -> Any:
        """The next batch of a split; waits until it is there, and ``timeout_s`` at most."""
        try:
            return self._next(split)
        except EndOfQueue:
            place = self._place.name_of(split)
            raise Starved(
                f"{place}: the providers have finished and all full rounds of batches are read; "
                "start a provider again, or loop with `for batch in consumer`, which ends here",
                filename=place,
            ) from None

    def batches(self, split: str = "train") -> Iterator[Any]:
        """The batches of a split, until every provider has finished and all full rounds are read."""
        while True:
            try:
                yield self._next(split)
            except EndOfQueue:
                return

    def __iter__(self) -> Iterator[Any]:
        return self.batches("train")

    def _next(self, split: str) -> Any:
        with self._lock:
            self._settle()
            reader = self._reader(split)
            if not reader.has_begun:
                reader.begin(self._run_id())
            source = self._ahead_of(split) if self._is_ahead else reader
            while True:
                reader.asked()
                batch, made = source.take(self.timeout_s)
                kept = None
                if self._guard is not None:
                    kept = self._guard.kept(batch.columns, f"{reader.log.place}, batch {batch.number}", split)
                arrays = self._arrays_of(batch, made)
                is_left_out = kept is not None and not kept.any()
                if kept is not None and not is_left_out:
                    chosen = np.flatnonzero(kept)
                    arrays = {name: _rows(column, chosen) for name, column in arrays.items()}
                handed_out = _as_pair(arrays)
                if self._is_explicit and not is_left_out:
                    self._in_flight.setdefault(split, InFlight()).track(_Flight(handed_out, reader.position))
                source.handed_out(batch)
                if kept is not None:
                    reader.n_dropped += len(kept) - int(kept.sum())
                if not is_left_out:
                    return handed_out
                reader.n_skipped += 1  # the guard leaves it out: it is done with, and not handed out

    # -- what the batches are

    @property
    def splits(self) -> list[str]:
        """The splits that the queue has."""
        return self._place.splits()

    @property
    def meta(self) -> dict[str, Any]:
        """What the provider's ``build_meta()`` said."""
        splits = self.splits
        if not splits:
            raise not_found(str(self._place))
        return self._meta("train" if "train" in splits else splits[0]).meta

    def schema(self, split: str = "train") -> list[dict[str, Any]]:
        """The ``batch_schema`` of a split: name, dtype, shape and role of each field."""
        return self._meta(split).schema.to_batch_schema()

    def last_number(self, split: str = "train") -> int | None:
        """The number, in the queue's one order, of the batch that was handed out last."""
        return self._readers[split].last_number if split in self._readers else None

    @property
    def stats(self) -> dict[str, dict[str, float]]:
        """By split: the position, how many corrupt batches were replaced, and how long this waited for batches.

        With a guard also how many batches it left out, and how many rows; with ``acknowledge="explicit"`` how many
        batches are in flight.
        """
        found: dict[str, dict[str, float]] = {
            split: {"position": reader.position, "replaced": reader.n_replaced, "waited_s": reader.waited_s}
            for split, reader in self._readers.items()
        }
        if self._guard is not None:
            for split, reader in self._readers.items():
                found[split] |= {"skipped": reader.n_skipped, "dropped_rows": reader.n_dropped}
        for split, flights in self._in_flight.items():
            found[split]["in_flight"] = len(flights.waiting(self._readers[split].position))
        return found

    def health(self) -> Health:
        """What is wrong with the queue and with reading it, by split; from any thread, also while this waits."""
        readers = dict(self._readers)
        parts = {split: _split_health(self._place, split, readers.get(split)) for split in readers or self.splits}
        missing = Problem(str(not_found(str(self._place))), None, "start a provider")
        return Health.joined(parts) if parts else Health((missing,))

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Where this is, after the batch that was handed out last: small, JSON, the same on every rank in step.

        With ``acknowledge="explicit"``: before the oldest batch that is not marked as trained.
        """
        with self._lock:
            splits = {split: _state_of(reader, self._done(split)) for split, reader in self._readers.items()}
            return {"version": 2, "run": self._run, "splits": splits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``, on any world size; validated now, before a batch is requested."""
        with self._lock:
            positions = {
                self._reader(split): Assignment.of(entry["position"], entry["skip"])
                for split, entry in self._checked(state).items()
            }
            for reader, assignment in positions.items():
                reader.check_start(assignment.start)
            if state.get("run") is not None:
                self._run_id(state["run"])
            for split in self._ahead:
                self._ahead[split].forget()
            self._in_flight.clear()
            for reader, assignment in positions.items():
                reader.restore(assignment)

    @property
    def run(self) -> str | None:
        """The id of the run that this reads for; None until a batch is requested or a state is loaded."""
        return self._run

    def _run_id(self, restored: str | None = None) -> str:
        if self._run is None or restored is not None:
            self._run = run_id(self._given_run, restored=restored, world_size=self.world_size, what=repr(self))
        return self._run

    def commit(self, state: Mapping[str, Any] | None = None) -> None:
        """A checkpoint that holds ``state`` (by default the present one) is safely stored: what it covers may go.

        Needed with ``acknowledge="on_checkpoint"``, harmless otherwise. Call it on rank 0 or on every rank.
        """
        with self._lock:
            self._check_usable()
            for split, entry in self._checked(self.state_dict() if state is None else state).items():
                if split in self._readers:
                    self._readers[split].commit(entry["position"])

    def mark_trained(self, batch: Any = None, *, split: str = "train") -> None:
        """A batch is trained, so ``state_dict`` and ``commit`` may include it; for ``acknowledge="explicit"``.

        Without ``batch`` it is the oldest in flight. A ``batch`` is what ``get_batch`` returned, or a dict or tuple of
        the same columns. Where later batches are marked before earlier ones, the state stays before the earliest that
        is not. Any thread may mark.
        """
        if not self._is_explicit:
            raise ConfigError(
                f"mark_trained is for acknowledge='explicit', this consumer has {self.acknowledge!r}; make it with "
                "acknowledge='explicit'"
            )
        if split not in self._in_flight:
            raise ConfigError(
                f"mark_trained: no batch of split {split!r} was handed out; call get_batch({split!r}) first"
            )
        flights = self._in_flight[split]
        flights.acknowledge(_found(flights.waiting(self._readers[split].position), batch))

    def _done(self, split: str) -> int:
        """The position that a state says: of what was handed out, or of what was trained."""
        position = self._readers[split].position
        oldest = self._in_flight[split].oldest(position) if split in self._in_flight else None
        return position if oldest is None else oldest.step

    def close(self) -> None:
        """Acknowledge by the rule that was chosen, and let another process be this rank."""
        self._close(is_clean=True)

    def _close(self, *, is_clean: bool) -> None:
        if os.getpid() != self._pid:  # the parent's threads, locks and marks are the parent's
            return
        # All of it, from the last to the first, whatever one of them raises.
        with self._lock, ExitStack() as closing:
            self._is_closed = True
            readers, ahead = list(self._readers.values()), list(self._ahead.values())
            self._readers, self._ahead, self._in_flight = {}, {}, {}
            for reader in readers:
                closing.callback(reader.close)
            if self._deleting is not None:
                closing.callback(self._deleting.shutdown)
            for reader in readers if is_clean else ():
                closing.callback(reader.finish)
            for each in ahead:
                closing.callback(each.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # A step that failed is not over: its batch comes again.
        self._close(is_clean=kind is None)

    def __repr__(self) -> str:
        return f"<DatasetConsumer of {printable(self.path)}, rank {self.rank} of {self.world_size}, {self.acknowledge}>"

    def __reduce__(self) -> str:
        raise TypeError(f"{self!r} cannot be copied or sent to a process; make one there, with a rank of its own")

    # -- inside

    def _settle(self) -> None:
        """Fix which rank this is; where it was not known yet, read as that rank from here on."""
        has_group = has_process_group()
        if has_group is self._had_group:
            return
        share = self._ranks.settle()
        check_mesh(self.mesh, share)
        self._had_group = has_group
        if share[:2] != (self.rank, self.world_size):
            vars(self).update(rank=share.rank, world_size=share.world_size)
            for reader in self._readers.values():
                reader.become(share.rank, share.world_size)
            self._guard = None if self.guard is None else _guard(self.guard, share.rank, share.world_size)

    def _reader(self, split: str) -> SplitReader:
        self._check_usable()
        if split not in self._readers:
            self._meta(split)
            self._readers[split] = SplitReader(
                self._place.open(split),
                self.rank,
                self.world_size,
                acknowledge="on_checkpoint" if self._is_explicit else self.acknowledge,
                on_corrupt=self.on_corrupt,
                later=self._deleting.submit if self._deleting else None,
            )
        return self._readers[split]

    def _check_usable(self) -> None:
        if self._is_closed:
            raise QueueError(f"{self!r} is closed; make a new one")
        if os.getpid() != self._pid:
            raise QueueError(f"{self!r} belongs to the process that this one was forked from; make one here")

    def _ahead_of(self, split: str) -> ReadingAhead:
        if split not in self._ahead:
            self._ahead[split] = ReadingAhead(self._readers[split], self.prefetch, self._stage)
        return self._ahead[split]

    def _meta(self, split: str) -> QueueMeta:
        if split in self._readers:
            return self._readers[split].log.meta
        return self._appearing.find(lambda: self._meta_now(split))

    def _meta_now(self, split: str) -> QueueMeta:
        splits = self.splits
        if splits and split not in splits:
            raise NoSuchSplit(f"{self._place}: no split {split!r}; there are {splits}")
        return self._place.meta(split)

    def _checked(self, state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What a state says about each split, if it is of these queues."""
        splits = _splits_in(state)
        for split, entry in splits.items():
            queue = self._meta(split).queue
            if entry["queue"] != queue:
                raise ResumeError(
                    f"{self._place.name_of(split)}: the state is of queue {entry['queue']}, this is {queue}: it was "
                    "purged or created again since; start from its beginning, without the state"
                )
        return splits


class _Flight(Flight):
    """A batch that was handed out at a position."""

    __slots__ = ()

    def is_of(self, batch: Any) -> bool:
        """Whether this is the batch, or a dict or tuple of the same columns."""
        if self.batch is batch:
            return True
        own, other = _columns(self.batch), _columns(batch)
        return bool(own) and len(own) == len(other) and all(a is b for a, b in zip(own, other, strict=True))


def _columns(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, (tuple, list)) else []


def _found(waiting: list[_Flight], batch: Any) -> _Flight:
    """The oldest flight of a batch, or the oldest of all where ``batch`` is None."""
    for flight in waiting:
        if batch is None or flight.is_of(batch):
            return flight
    if batch is None:
        raise ConfigError("mark_trained: no batch is in flight; every batch handed out is marked already")
    raise ConfigError(
        "mark_trained: this batch was not handed out by this consumer, is marked already, or was changed by a "
        "framework on its way; call mark_trained() to acknowledge the oldest batch in flight"
    )


def _as_pair(arrays: dict[str, Any]) -> Any:
    return (arrays["x"], arrays["y"]) if list(arrays) == ["x", "y"] else arrays


def _rows(column: Any, numbers: Any) -> Any:
    return [column[number] for number in numbers] if isinstance(column, list) else column[numbers]


def _arrays_of(stage: CudaStage | None, output: str, device: Any) -> Callable[[Batch, Any], dict[str, Any]]:
    """The function that turns a batch, and what its stage made of it, into what the trainer gets."""
    if stage is not None:
        return lambda batch, made: stage.finish(made)
    if output == "numpy":
        return lambda batch, _: numpy_columns(batch.columns)
    if device is None:
        return lambda batch, _: converted(batch.columns, from_array)
    return lambda batch, _: converted(batch.columns, lambda array, dtype: from_array(array, dtype).to(device))


def _guard(guard: Guard, rank: int, world_size: int) -> ConsumerGuard:
    from poolish.guards.checks.guard import check_guard  # half a second, only needed here
    from poolish.serve.guarding import ConsumerGuard

    checked = check_guard(guard, "DatasetConsumer")
    assert checked is not None
    return ConsumerGuard(checked, rank, world_size)


def _state_of(reader: SplitReader, position: int) -> dict[str, Any]:
    state = {"queue": reader.log.meta.queue, "position": position}
    skip = reader.assignment.skip(position)
    return {**state, "skip": skip} if skip else state


def _splits_in(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    try:
        splits = {
            split: {
                "queue": entry["queue"],
                "position": entry["position"],
                "skip": bytes.fromhex(entry.get("skip", "")).hex(),
            }
            for split, entry in state["splits"].items()
        }
        are_positions = all(
            isinstance(entry["queue"], str) and type(entry["position"]) is int and 0 <= entry["position"] < MAX_COUNTER
            for entry in splits.values()
        )
        if not are_positions or not all(isinstance(split, str) for split in splits):
            raise ValueError("no positions")
        run = None if state["version"] == 1 else state["run"]  # those of 0.1.0 belong to no run
        if state["version"] not in (1, 2) or not isinstance(run, str | None):
            raise ValueError("another version, or no run")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResumeError(f"not the state of a DatasetConsumer ({error!r}): {reprlib.repr(state)}") from None
    return splits


def _split_health(place: Place, split: str, reader: SplitReader | None) -> Health:
    """What the queue looks like, and what this rank makes of it."""
    health = health_at(place, split)
    if reader is None:
        return health
    counts = {"replaced": reader.n_replaced, "skipped": reader.n_skipped, "dropped_rows": reader.n_dropped}
    lost = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
    problems = [
        Problem(f"rank {reader.rank} waits for batch {number}", since, "look whether its providers make progress")
        for number, since in sorted(reader.waits.items())[:1]
    ]
    if lost:
        what = f"not every batch was handed out as it was made: {lost}"
        problems.append(Problem(what, None, "look at dead batches and at what the guard says"))
    return health.plus(*problems, position=reader.position, waited_s=reader.waited_s, **counts)
