"""A trainer that starts before its provider: it waits for the queue, or says what makes it."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import pytest

from poolish.errors import ConfigError, QueueNotFound
from poolish.serve import DatasetConsumer, consumer_arguments
from tests.faults import PATIENCE_S
from tests.serve import queues


def waiting(path: Path | str, **options: object) -> DatasetConsumer:
    return DatasetConsumer(
        path, **{"output": "numpy", "timeout_s": PATIENCE_S, "wait_for_queue_s": PATIENCE_S, **options}
    )


@pytest.mark.parametrize("where", ["dataset", "queue", "memory"])
def test_a_queue_that_is_made_later_is_waited_for(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch):
    """In a directory that is not there yet, or at another address; the first batch is the first that is published."""
    begun = threading.Event()
    look = consumer_arguments.time.sleep
    monkeypatch.setattr(consumer_arguments.time, "sleep", lambda seconds: (begun.set(), look(seconds)))
    path = "memory://appears-later" if where == "memory" else tmp_path / "late" / "set"

    def provide() -> None:
        assert begun.wait(PATIENCE_S)
        with queues.provider(path) as running:
            running.publish("train")

    providing = threading.Thread(target=provide)
    providing.start()
    with waiting(path / "queue" if where == "queue" else path) as reader:
        assert queues.take(reader)[1:3] == [0, 0]
    providing.join()


def test_a_split_that_is_made_later_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A provider makes its splits one after the other."""
    look = consumer_arguments.time.sleep
    with queues.provider(tmp_path) as running:
        running.publish("train")

    def sleep(seconds: float) -> None:
        with queues.provider(tmp_path, 1, splits=["val"]) as running:
            running.publish("val")
        look(0)

    with waiting(tmp_path) as reader:
        queues.take(reader)
        monkeypatch.setattr(consumer_arguments.time, "sleep", sleep)
        queues.take(reader, "val")


def test_a_queue_that_never_comes_is_an_error_that_says_what_makes_it(tmp_path: Path):
    """How long it waited, where, and the command; the same error as without waiting."""
    with pytest.raises(
        QueueNotFound, match=r"^Queue directory not found: .*/queue; run `poolish prepare CONFIG`"
    ) as now:
        waiting(tmp_path / "set", wait_for_queue_s=0)
    with pytest.raises(
        QueueNotFound, match=r"poolish prepare.*waited 0\.\d s for it, wait_for_queue_s=0.05 is over"
    ) as late:
        waiting(tmp_path / "set", wait_for_queue_s=0.05)

    assert "waited" not in str(now.value)
    assert late.value.filename == now.value.filename == str(tmp_path / "set" / "queue")


def test_a_split_that_never_comes_is_named(tmp_path: Path):
    """With those that there are."""
    queues.publish(tmp_path, 1)

    with (
        waiting(tmp_path, wait_for_queue_s=0.05) as reader,
        pytest.raises(ConfigError, match=r"'tran'.*'train'.*waited"),
    ):
        reader.get_batch("tran")
    with (
        waiting(tmp_path, wait_for_queue_s=0) as reader,
        pytest.raises(ConfigError, match=r"'tran'; there are \['train'\]$"),
    ):
        reader.get_batch("tran")


def test_a_long_wait_says_what_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """In the log, as waiting for batches does."""
    monkeypatch.setattr(consumer_arguments, "_SAY_S", 0.0)
    with caplog.at_level(logging.WARNING, "poolish.serve"), pytest.raises(QueueNotFound):
        waiting(tmp_path / "set", wait_for_queue_s=0.05)

    assert "Queue directory not found" in caplog.text
    assert "waited" in caplog.text


def test_ctrl_c_ends_the_wait(tmp_path: Path):
    """At once, as what it is."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            waiting(tmp_path / "set")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("wait_s", [-1, "soon", None, True, float("nan")])
def test_what_is_no_time_is_refused(tmp_path: Path, wait_s: object):
    """Before anything is waited for."""
    with pytest.raises(ConfigError, match="wait_for_queue_s="):
        waiting(tmp_path, wait_for_queue_s=wait_s)
