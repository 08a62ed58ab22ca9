"""Waiting for a directory: asleep, or awake for the first milliseconds."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poolish import DataProviderBase, DatasetConsumer
from poolish.errors import QueueError, Starved
from poolish.kernels import reference
from poolish.serve import watching
from poolish.serve.batch_file import NAMES
from poolish.serve.split_reader import SplitReader
from poolish.serve.watching import Watch
from tests.serve.damage import marks_of
from tests.serve.queues import consumer, provider, publish

pytestmark = pytest.mark.kernels

KINDS = [reference]
if importlib.util.find_spec("poolish.kernels._native") is not None:
    KINDS.append(importlib.import_module("poolish.kernels._native"))

each_kind = pytest.mark.parametrize("kernels", KINDS, ids=lambda module: module.__name__.rpartition(".")[2])
LONG_S = 30.0


@pytest.fixture
def pipe():
    """Two ends, closed afterwards."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


# --- the kernel ------------------------------------------------------------------------------------------------------


@each_kind
def test_spinning_ends_when_there_is_something_to_read(kernels, pipe):
    """At once if it is there, as soon as it comes otherwise."""
    reading, writing = pipe
    later = threading.Timer(0.05, os.write, (writing, b"batch"))
    later.start()

    came, _ = kernels.spin_until_readable(reading, LONG_S)
    is_there, _ = kernels.spin_until_readable(reading, 0.0)

    later.join()
    assert came
    assert is_there


@each_kind
def test_spinning_ends_when_the_time_is_over(kernels, pipe):
    """Where nothing comes."""
    begun = time.monotonic()

    came, away_s = kernels.spin_until_readable(pipe[0], 0.02)

    waited_s = time.monotonic() - begun
    assert not came
    assert waited_s >= 0.02
    assert 0 < away_s <= waited_s


@each_kind
def test_spinning_leaves_the_other_threads_their_turn(kernels, pipe):
    """A trainer's other threads go on, and what they do can end the wait."""
    reading, writing = pipe

    def work() -> None:
        sum(range(100_000))
        os.write(writing, b"batch")

    threading.Thread(target=work).start()

    assert kernels.spin_until_readable(reading, LONG_S)[0]


# --- the watch -------------------------------------------------------------------------------------------------------


def test_an_awake_wait_sees_what_happens(tmp_path):
    """Also what happened before it began."""
    with Watch() as watch:
        watch.add(tmp_path)
        (tmp_path / "batch").write_bytes(b"rows")
        begun = time.monotonic()

        watch.spin(LONG_S)

        assert time.monotonic() - begun < LONG_S / 2


def test_an_awake_wait_looks_up_again_and_again(tmp_path):
    """So that signals are seen, however long it was asked to wait; one that watches nothing does not spin at all."""
    with Watch() as watch:
        watch.add(tmp_path / "missing")
        watch.spin(LONG_S)
        watch.add(tmp_path)
        watch.spin(LONG_S)
    watch.spin(LONG_S)


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, lost_s: Callable[[int], float]) -> Iterator[list[float]]:
    """Spin every millisecond of a clock of our own; each time, when it was and how long the processor was lost then."""
    clock, spins = [1000.0], list[float]()

    def spin(fd: int, seconds: float) -> tuple[bool, float]:
        spins.append(clock[0])
        return False, lost_s(len(spins))

    monkeypatch.setattr(watching, "spin_until_readable", spin)
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Watch, "wait", lambda self, timeout_s: None)
    with Watch() as watch:
        watch.add(folder)
        while True:
            watch.spin(0.001)
            clock[0] += 0.001
            yield spins


def test_who_loses_the_processor_once_sleeps_for_a_moment(tmp_path, monkeypatch):
    """Ten times as long as it was lost: it may have been a process that was just started."""
    for spins in watched(tmp_path, monkeypatch, lambda n: 0.002 if n == 3 else 0.0001):
        if len(spins) == 10:
            break

    gaps = np.diff(spins)
    assert gaps[2] == pytest.approx(0.02, abs=0.002)
    assert np.delete(gaps, 2) == pytest.approx([0.001] * 8)


def test_who_loses_the_processor_always_sleeps_longer_and_longer(tmp_path, monkeypatch):
    """Up to three hundred times as long; once it is not lost any more, that is forgotten."""
    for spins in watched(tmp_path, monkeypatch, lambda n: 0.002 if n < 10 or n == 510 else 0.0001):
        if len(spins) == 512:
            break

    gaps = np.diff(spins)
    assert gaps[:9] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.6, 0.6, 0.6, 0.6], abs=0.002)
    assert gaps[9:509] == pytest.approx([0.001] * 500)
    assert gaps[509] == pytest.approx(0.02, abs=0.002)


# --- the consumer ----------------------------------------------------------------------------------------------------


def test_a_consumer_stays_awake_for_milliseconds_only(tmp_path):
    """A wait for a batch that does not come costs hardly any processor."""
    publish(tmp_path, 1)
    with consumer(tmp_path, timeout_s=1.0) as running:
        running.get_batch()
        begun, used = time.monotonic(), time.thread_time()

        with pytest.raises(TimeoutError):
            running.get_batch()

        assert time.thread_time() - used < 0.3 * (time.monotonic() - begun)


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.005, 0.05])
def test_a_waiting_consumer_can_be_interrupted(tmp_path, after_s):
    """By Ctrl-C, awake or asleep; the batch comes to the next call."""
    publish(tmp_path, 1)
    with consumer(tmp_path) as running:
        running.get_batch()

        def interrupt() -> None:
            time.sleep(after_s)
            os.kill(os.getpid(), signal.SIGINT)

        def interrupted() -> None:
            threading.Thread(target=interrupt).start()
            running.get_batch()

        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            interrupted()

        assert time.monotonic() - begun < LONG_S / 2
        publish(tmp_path, 1)
        assert running.get_batch()["made"][0].tolist() == [0, 1]


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_batch_that_is_held_never_changes(tmp_path, output):
    """Whatever is read after it, and however it is held: as it is, as a view, as a buffer."""
    n_batches, sizes = 40, {"batch_size": 512, "block_size": 64, "max_backlog": 100}
    publish(tmp_path, n_batches, **sizes)
    held, noted = [], []
    with DatasetConsumer(tmp_path, output=output, timeout_s=LONG_S) as running:
        for number in range(n_batches):
            x = np.asarray(running.get_batch()["x"])
            held.append((x, x[::3, 1:], memoryview(x))[number % 3])
            noted.append(bytes(held[-1]))
            publish(tmp_path, 1, **sizes)  # over the files of those that are done

    assert [bytes(each) for each in held] == noted
    assert len(set(noted)) == n_batches


def test_a_provider_that_is_awaited_gets_the_processor(tmp_path):
    """Also where both have to share one."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no choice of processors here")
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with provider(tmp_path) as making, consumer(tmp_path) as running:
            for number in range(20):
                threading.Timer(0.002, making.publish, ("train",)).start()
                assert running.get_batch()["made"][0].tolist() == [0, number]
    finally:
        os.sched_setaffinity(0, allowed)


class OfAnyKind(DataProviderBase):
    """Batches of one field, whose dtype and shape the config says."""

    def build_meta(self) -> dict[str, Any]:
        return {"batch_schema": [{"name": "x", "dtype": self.config.dtype, "shape": self.config.shape}]}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        raise AssertionError("nothing is made here")


def waiting_for(folder: Path, dtype: str, shape: list[int | None]) -> DatasetConsumer:
    """A consumer of a queue that has no batches."""
    names = {"dataset": "d", "batch_size": 2, "block_size": 3, "splits": ["train"], "dtype": dtype, "shape": shape}
    OfAnyKind(names, path=folder, name="w0").open().close()
    return consumer(folder, timeout_s=0.02)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", [[], [3], [None, 2], [3, 0]])
def test_who_waits_rehearses_with_a_batch_of_the_same_kind(tmp_path, monkeypatch, dtype, shape):
    """Read and verified as a real one, and handed out to nobody."""
    rehearsed = []
    decoded = SplitReader._decoded

    def counted(self: SplitReader, number: int, data: Any, path: Any) -> Any:
        rehearsed.append(path)
        return decoded(self, number, data, path)

    monkeypatch.setattr(SplitReader, "_decoded", counted)
    with waiting_for(tmp_path, dtype, shape) as waiting:
        with pytest.raises(Starved):
            waiting.get_batch()

        assert rehearsed
        assert set(rehearsed) == {"rehearsal"}
        assert waiting.last_number() is None
        assert waiting.stats["train"]["position"] == 0


def test_large_rows_are_not_rehearsed(tmp_path, monkeypatch):
    """It would take longer than it gains."""
    monkeypatch.setattr(SplitReader, "_decoded", None)
    with waiting_for(tmp_path, "float32", [3, 512, 512]) as waiting, pytest.raises(Starved):
        waiting.get_batch()


def test_a_rehearsal_notices_that_the_queue_is_gone(tmp_path):
    """It reads the note of the queue, and says so if that is missing."""
    with waiting_for(tmp_path, "int64", [3]) as waiting:
        reader = waiting._reader("train")
        reader.begin("tests")
        note = Path(reader.log.meta_file)
        kept = note.rename(tmp_path / "kept")

        with pytest.raises(QueueError, match="removed meanwhile"):
            reader._rehearse()

        kept.rename(note)


def test_a_rank_that_waits_does_not_mind_that_rank_0_starts_anew(tmp_path):
    """Rank 0 returns to its run; the marks of the others stay, and the queue is the same."""
    publish(tmp_path, 2)
    options: dict[str, Any] = {"world_size": 2, "acknowledge": "on_read", "timeout_s": 0.05, "run": "r"}
    with consumer(tmp_path, rank=1, **options) as waiting:
        with consumer(tmp_path, rank=0, **options) as first:
            first.get_batch()
            waiting.get_batch()
        with consumer(tmp_path, rank=0, **options) as again:
            for each in (again, waiting):
                with pytest.raises(Starved):
                    each.get_batch()

        assert len([*marks_of(tmp_path / "queue" / "train").iterdir()]) == 2
