"""What the tests of the queue share: a provider whose batches say who made them, and a trainer that keeps a ledger."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from poolish import DataProviderBase, DatasetConsumer
from poolish.files import read_json, write_json
from poolish.serve.inspection import verify_queue
from poolish.transports.log import DirectoryLog
from tests.faults import PATIENCE_S, SYSTEM_CALLS

CONFIG = {"dataset": "counts", "batch_size": 2, "block_size": 3, "splits": ["train"], "max_backlog": 8, "seed": 5}

#: One line of a ledger: the number in the queue, whose batch it is, which of its batches, and what was in it.
Entry = list[int]

tell = os.write  # the real one, also where a test counts the system calls of this process
_open, _close, _flock = os.open, os.close, fcntl.flock


class Counting(DataProviderBase):
    """Random batches that say by whom they were made, and how many that one had made before; not all of one size."""

    variable_rows = True

    def build_meta(self) -> dict[str, Any]:
        fields = [("x", [self.config.block_size]), ("made", [2])]
        return {"batch_schema": [{"name": name, "dtype": "int64", "shape": shape} for name, shape in fields]}

    def sample_batch(self, split: str, rng: np.random.Generator) -> Mapping[str, Any]:
        counter = self.batch_number(split)
        n_rows = self.config.batch_size + 16 * (counter % 3)
        x = rng.integers(2**40, size=(n_rows, self.config.block_size))
        return {"x": x, "made": np.array([[int(self.name.removeprefix("w")), counter]] * n_rows)}


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A folder that no disk makes slow, where there is one: who is only killed does not notice the difference."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir=shared, prefix="poolish-test-") as folder:
        yield Path(folder)


def provider(path: Path, name: int = 0, **settings: Any) -> Counting:
    """The provider ``w<name>`` of a dataset, which has not claimed its name yet."""
    return Counting({**CONFIG, **settings}, path=path, name=f"w{name}")


def consumer(path: Path, **options: Any) -> DatasetConsumer:
    """A consumer of arrays that does not wait for ever; all are of one run, unless a test says otherwise."""
    return DatasetConsumer(path, **{"output": "numpy", "timeout_s": PATIENCE_S, "run": "tests", **options})


def publish(path: Path, n_batches: int, name: int = 0, **settings: Any) -> list[int]:
    """Be a provider for so many batches; their numbers."""
    with provider(path, name, **settings) as running:
        return [running.publish("train") for _ in range(n_batches)]


def entry(number: int | None, batch: Mapping[str, Any]) -> Entry:
    """What a ledger says of a batch."""
    assert number is not None
    made = batch["made"]
    assert (made == made[0]).all()
    return [number, *made[0].tolist(), zlib.crc32(np.ascontiguousarray(batch["x"]).tobytes())]


def take(reader: DatasetConsumer, split: str = "train") -> Entry:
    """The next batch, as a line of a ledger."""
    batch = reader.get_batch(split)
    return entry(reader.last_number(split), batch)


@cache
def wanted(name: int, counter: int, seed: int = 5) -> int:
    """What is in a batch that was made without any interruption."""
    maker = provider(Path("nowhere"), name, seed=seed)
    return entry(0, maker.make_batch("train", counter))[-1]


def check_ledger(ledger: Sequence[Entry], first: int = 0) -> None:
    """Every number once, in order; each provider's batches once, in order; each as its provider made it."""
    numbers = [line[0] for line in ledger]
    assert numbers == list(range(first, first + len(ledger)))
    check_content(ledger)
    if first == 0:
        for name in {line[1] for line in ledger}:
            counters = [line[2] for line in ledger if line[1] == name]
            assert counters == list(range(len(counters)))


def check_content(ledger: Iterable[Entry]) -> None:
    """Each batch is what its provider makes when nobody interrupts it."""
    for _, name, counter, content in ledger:
        assert content == wanted(name, counter)


def check_log(path: Path, split: str = "train") -> tuple[int, int]:
    """No gap, nothing torn; the watermark and the number after the newest."""
    with closing(DirectoryLog.open(path / "queue" / split)) as log:
        watermark = log.consumed().watermark
        kept = [number for number in log.numbers() if number >= watermark]
    assert kept == list(range(watermark, watermark + len(kept)))
    assert verify_queue(path)[split] == []
    return watermark, watermark + len(kept)


# The trainer ------------------------------------------------------------------------------------------------------


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a trainer has saved: its ledger and the state of its consumers."""
    file = path / "checkpoint.json"
    return read_json(file) if file.exists() else {"ledger": [], "state": None}


def train(
    path: Path,
    n_batches: int | None,
    *,
    world_size: int = 1,
    every: int = 2,
    on_batch: Callable[[Entry], object] = lambda line: None,
    **options: Any,
) -> None:
    """Train from the last checkpoint until the ledger has ``n_batches`` (for ever: None), saving ``every`` few rounds.

    All ranks are in this process and go in step, as with DDP. What is read, kept and deleted is each rank's own.
    """
    saved = read_checkpoint(path)
    ledger, state = list(saved["ledger"]), saved["state"]
    with ExitStack() as stack:
        opened = [
            consumer(path, rank=rank, world_size=world_size, acknowledge="on_checkpoint", **options)
            for rank in range(world_size)
        ]
        ranks = [stack.enter_context(rank) for rank in opened]
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(state)
        n_rounds = 0
        while n_batches is None or len(ledger) < n_batches:
            for rank in ranks:
                ledger.append(take(rank))
                on_batch(ledger[-1])
            n_rounds += 1
            if n_rounds % every == 0 or (n_batches is not None and len(ledger) >= n_batches):
                save(path, ledger, ranks)


def save(path: Path, ledger: list[Entry], ranks: Sequence[DatasetConsumer]) -> None:
    """Store a checkpoint, and only then let the queue go on."""
    states = [rank.state_dict() for rank in ranks]
    assert all(state == states[0] for state in states)
    write_json(path / "checkpoint.json", {"ledger": ledger, "state": states[0]}, durable=False)
    ranks[0].commit(states[0])


def provide(path: Path, name: int = 0, **settings: Any) -> None:
    """Be a provider until killed, or until nobody can want any more."""
    end = time.monotonic() + 2 * PATIENCE_S
    with provider(path, name, **settings) as running:
        running.run(stop=lambda: time.monotonic() > end)


# Two at once ------------------------------------------------------------------------------------------------------


def at_every_call(
    prepare: Callable[[], Path], act: Callable[[], object], meanwhile: Callable[[], object], check: Callable[[], object]
) -> int:
    """Let something else happen before each call of ``act`` to the system in turn; how many places there were.

    ``prepare`` gives the directory of a queue. Whoever holds its lock is not disturbed: others would wait for it.
    """
    number = 0
    while True:
        number += 1
        queue = prepare()
        with _hooked(number, queue / "lock", meanwhile) as has_happened:
            act()
        if not has_happened():
            return number - 1
        check()


@contextmanager
def _hooked(number: int, lock: Path, meanwhile: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    n_calls, has_happened = 0, False

    def hooked(call: Callable[..., Any]) -> Callable[..., Any]:
        def after_the_other(*arguments: Any, **options: Any) -> Any:
            nonlocal n_calls, has_happened
            n_calls += 1
            if n_calls >= number and not has_happened and _is_free(lock):
                has_happened = True
                meanwhile()
            return call(*arguments, **options)

        return after_the_other

    real = {name: getattr(os, name) for name in (*SYSTEM_CALLS, "listdir", "scandir", "stat", "lstat", "pread")}
    for name, call in real.items():
        setattr(os, name, hooked(call))
    fcntl.flock = hooked(_flock)
    try:
        yield lambda: has_happened
    finally:
        fcntl.flock = _flock
        for name, call in real.items():
            setattr(os, name, call)


def _is_free(lock: Path) -> bool:
    try:
        fd = _open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        _close(fd)
