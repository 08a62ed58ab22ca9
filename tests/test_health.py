"""``health()``: every main object says what is wrong, since when and what to do, in one shape that is JSON."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from poolish import DatasetBuffer, DatasetConsumer, DatasetProvider, Loader, StreamStore
from poolish.cli.app import app
from poolish.errors import CorruptDataError, DurabilityLost, QueueError, StoreFull
from poolish.guards import CircuitBreaker, Faults, Retry, Suite
from poolish.health import Health, Problem
from poolish.load import CachedDataset
from poolish.load import disk_cache as disk_cache_module
from poolish.serve import purge_queue, queue_health
from poolish.tokens import logs
from tests.faults import wait_until

THEN = 1_700_000_000.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, which a test sets."""
    shown = [THEN]
    monkeypatch.setattr(time, "time", lambda: shown[0])
    return shown


def only(health: Health) -> Problem:
    """The one problem of something that is not ok, which goes through JSON and has a next action."""
    (problem,) = health.problems
    assert not health.ok
    assert json.loads(json.dumps(health.to_json(), allow_nan=False)) == health.to_json()
    assert problem.action
    return problem


def provider(path: Path, **options: Any) -> DatasetProvider:
    rows = [{"x": i} for i in range(8)]
    return DatasetProvider(rows, path=path, batch_size=4, order="sequential", **options)


# What reads and retries -----------------------------------------------------------------------------------------


def fails(*_: object) -> None:
    raise ConnectionError("reset")


def test_a_breaker_says_since_when_its_source_fails(now: list[float]):
    """By its own clock, from the first opening on: a probe that fails does not make it new."""
    clock = [0.0]
    breaker = CircuitBreaker(window=2, cooldown=30, name="store", clock=lambda: clock[0])
    assert breaker.health() == Health((), {"state": "closed", "failed": 0, "window": 2})

    for clock[0] in (5.0, 5.0, 40.0):  # the third is a probe
        with pytest.raises(ConnectionError):
            breaker.call(fails)
    clock[0], now[0] = 45.0, THEN + 45

    problem = only(breaker.health())
    assert problem.since == THEN + 5
    assert "store" in problem.what
    assert "tried again in 25.0 s" in problem.action
    clock[0] = 90.0
    breaker.call(int)
    assert breaker.health().ok


def test_a_retry_says_since_when_calls_are_given_up(now: list[float]):
    """A call that recovered is a figure, no problem."""
    clock = [0.0]
    retry = Retry(attempts=2, clock=lambda: clock[0], sleep=lambda s: None)
    answers = iter([ConnectionError("reset"), 7])

    def recovers() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert retry.call(recovers) == 7
    assert retry.health().ok
    for clock[0] in (3.0, 8.0):
        with pytest.raises(ConnectionError):
            retry.call(fails)
    now[0] = THEN + 8

    problem = only(retry.health())
    assert problem.what == "2 calls failed in all attempts"
    assert problem.since == THEN + 3
    assert retry.health().figures["recovered"] == 1


def read(row: int) -> dict[str, int]:
    if row == 2:
        raise OSError("no such picture")
    return {"row": row}


def test_faults_say_what_failed_and_how_much_the_budget_allows(now: list[float]):
    """Since the first failure."""
    faults = Faults(on_sample="skip", budget=3)
    assert faults.health().ok
    for _ in range(2):
        faults.read(np.arange(4), lambda rows: [read(int(row)) for row in rows], read)
        now[0] += 60

    problem = only(faults.health())
    assert problem.since == THEN
    assert problem.what.startswith("2 of 8 samples failed")
    assert "allows 1 more" in problem.action


def test_a_loader_says_what_was_not_read(now: list[float]):
    """Skipped rows and their faults, and what is in flight."""

    class Rows:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> dict[str, int]:
            return read(row)

    loader = Loader(Rows(), 2, output="numpy", acknowledge="explicit", faults=Faults(on_sample="skip", budget=3))
    assert loader.health().ok
    batches = list(loader)

    health = loader.health()
    assert [problem.since for problem in health.problems] == [THEN, THEN]
    assert "1 rows were due to rank 0 and not read" in str(health)
    assert health.figures["in_flight"] == len(batches) == 2
    json.dumps(health.to_json(), allow_nan=False)
    loader.mark_trained()
    assert loader.health().figures["in_flight"] == 1


# What holds data ------------------------------------------------------------------------------------------------


def test_a_buffer_says_what_its_guard_kept_out(now: list[float]):
    """With the rule, since the first row; ``clear`` begins anew."""
    buffer = DatasetBuffer(guard=Suite().expect("reward", finite=True).on(error="drop"), max_size=9)
    buffer.append({"reward": 1.0})
    assert buffer.health() == Health((), {"rows": 1, "max_size": 9})
    for now[0] in (THEN, THEN + 60):
        buffer.append({"reward": float("nan")})

    problem = only(buffer.health())
    assert problem.what == "the guard kept 2 rows out (reward is finite: 2)"
    assert problem.since == THEN
    buffer.rejected.clear()
    assert buffer.health().ok


def test_a_stream_says_what_is_not_committed_and_whether_a_sync_failed(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
):
    """What a power cut would take is a figure; a sync that failed ends the stream, and is a problem from then on."""
    store = StreamStore(tmp_path / "stream", fields=["x"])
    store.append(steps=[0, 1], names=["x", "x"], values=[1, 2])
    assert store.health() == Health((), {"tokens": 2, "mode": "a", "uncommitted_tokens": 2, "commits": 0})
    store.commit()
    assert store.health().figures["uncommitted_tokens"] == 0
    with StreamStore.open(tmp_path / "stream", mode="r") as reader:
        assert reader.health() == Health((), {"tokens": 2, "mode": "r"})

    def failing(fd: int, name: object) -> None:
        raise DurabilityLost(f"{name}: sync failed")

    store.append(steps=[2], names=["x"], values=[3])
    monkeypatch.setattr(logs, "sync", failing)
    with pytest.raises(DurabilityLost):
        store.commit()
    now[0] += 60

    assert only(store.health()).since == THEN
    store.close()
    assert "it is closed" in only(store.health()).what


def test_a_cache_says_that_the_disk_is_full_until_it_is_not(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
):
    """And how often it answered."""
    cached = CachedDataset([{"x": i} for i in range(4)], path=tmp_path / "cache")
    cached[0], cached[0]
    assert cached.health().ok
    assert cached.health().figures["hit_rate"] == 0.5

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(disk_cache_module, "publish", full)
        cached[1]
    now[0] += 60
    assert "the disk is full" in only(cached.health()).what
    assert only(cached.health()).since == THEN

    cached[2]
    assert only(cached.health()).what == "1 samples could not be kept"


def test_a_cache_says_that_files_were_damaged(tmp_path: Path, now: list[float]):
    """Each was read again."""
    cached = CachedDataset([{"x": 1}], path=tmp_path / "cache")
    cached[0]
    for file in (tmp_path / "cache").glob("*.sample"):
        file.write_bytes(b"damaged")

    assert cached[0] == {"x": 1}
    assert only(cached.health()).since == THEN


# Queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_without_a_living_provider_is_not_ok(tmp_path: Path):
    """Unless all have finished; the time is that of the last note."""
    with provider(tmp_path) as filling:
        filling.publish("train")
        assert queue_health(tmp_path)["train"].ok
        assert filling.health().ok
        assert filling.health().figures["train"]["made"] == 1

    problem = only(queue_health(tmp_path)["train"])
    assert problem.what == "no provider is alive, and w0 has not finished"
    assert problem.since == (tmp_path / "queue/train/providers/w0.json").stat().st_mtime
    with provider(tmp_path, epochs=1) as filling:
        filling.run()
    assert queue_health(tmp_path)["train"].ok


def test_a_full_backlog_is_a_problem_where_no_trainer_reads(tmp_path: Path):
    """While one reads, it only says that the provider is faster."""
    with provider(tmp_path, max_backlog=2) as filling:
        for _ in range(3):
            filling.publish("train")
        alone = only(queue_health(tmp_path)["train"])
        with DatasetConsumer(tmp_path, output="numpy", timeout_s=1) as consumer:
            consumer.get_batch()

            assert queue_health(tmp_path)["train"].ok
            assert queue_health(tmp_path)["train"].figures["ranks_alive"] == [0]

    assert "3 batches wait (max_backlog) and no trainer reads" in alone.what
    assert alone.since is not None


def test_a_consumer_says_since_when_it_waits(tmp_path: Path, now: list[float]):
    """From another thread, while ``get_batch`` holds it."""
    with provider(tmp_path) as filling, DatasetConsumer(tmp_path, output="numpy") as consumer:
        filling.publish("train")
        consumer.get_batch()
        assert consumer.health().ok
        waiting = threading.Thread(target=consumer.get_batch)
        waiting.start()
        wait_until(lambda: not consumer.health().ok)
        problem = only(consumer.health())
        filling.publish("train")
        waiting.join()

        assert problem.what == "train: rank 0 waits for batch 1"
        assert problem.since == THEN
        assert consumer.health().ok


def test_dead_batches_and_quarantine_come_with_their_folder(tmp_path: Path):
    """Since the first of them was found."""
    guard = Suite().expect("x", below=4).on(error="drop")
    with provider(tmp_path, guard=guard) as filling:
        filling.run(stop=lambda: filling.batch_number("train") >= 3)
        file = min((tmp_path / "queue/train").glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:-1])
        with DatasetConsumer(tmp_path, output="numpy", timeout_s=1) as consumer:
            with pytest.raises(CorruptDataError):
                consumer.get_batch()
            dead, kept_out = consumer.health().problems

    assert "1 batches are damaged" in dead.what
    assert str(tmp_path / "queue/train/dead") in dead.action
    assert "the guard kept rows of" in kept_out.what
    assert kept_out.since is not None


def test_a_queue_that_is_gone_is_a_problem_and_no_error(tmp_path: Path):
    """Also for the provider and the consumer that hold it open."""
    with provider(tmp_path) as filling:
        filling.publish("train")
        consumer = DatasetConsumer(tmp_path, output="numpy", timeout_s=1)
        consumer.get_batch()
        purge_queue(tmp_path)

        problems = [only(filling.health()), only(consumer.health())]
        with pytest.raises(QueueError, match="removed meanwhile"):
            consumer.close()

    assert all(problem.what.startswith("train: Queue directory not found") for problem in problems)


def test_queue_status_prints_the_health(tmp_path: Path):
    """A line for each problem, and the same as JSON."""
    with provider(tmp_path) as filling:
        filling.publish("train")
    plain = CliRunner().invoke(app, ["queue", "status", str(tmp_path)])
    as_json = CliRunner().invoke(app, ["queue", "status", str(tmp_path), "--json"])

    assert plain.exit_code == as_json.exit_code == 0
    assert "train: no provider is alive, and w0 has not finished (since " in plain.output
    printed, health = json.loads(as_json.output)["train"]["health"], queue_health(tmp_path)["train"].to_json()
    assert printed["problems"] == health["problems"]
    assert printed["figures"].keys() == health["figures"].keys()
