"""Waiting for a batch."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from poolish import DatasetConsumer
from poolish.errors import Starved
from tests.serve.damage import marks_of
from tests.serve.queues import consumer, provider, publish

LONG_S = 30.0


def test_a_waiting_consumer_sleeps(tmp_path):
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
    """By Ctrl-C, whenever it comes; the batch comes to the next call."""
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
