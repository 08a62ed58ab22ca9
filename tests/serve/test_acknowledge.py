"""``acknowledge="explicit"``: the state is that of the batches trained, however many were asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from poolish.errors import ConfigError, ResumeError
from poolish.files import read_json, write_json
from poolish.serve import DatasetConsumer, queue_status
from poolish.transports.log import DirectoryLog
from tests.effort import times
from tests.faults import die, in_child
from tests.serve import queues
from tests.serve.queues import check_ledger, consumer, publish

pytestmark = pytest.mark.usefixtures("few_together")


class Killed(Exception):
    """A trainer that is killed does nothing more; not even its consumer is closed as after a clean end."""


@contextmanager
def framework(
    path: Path, world_size: int, n_ahead: int, **options: Any
) -> Iterator[tuple[list[Any], Callable[[], list]]]:
    """All ranks of a trainer that asks for ``n_ahead`` batches more than it trains; consumers, and the next step."""
    saved = saved_at(path)
    with ExitStack() as stack:
        opened = [
            consumer(path, rank=rank, world_size=world_size, acknowledge="explicit", **options)
            for rank in range(world_size)
        ]
        ranks = [stack.enter_context(each) for each in opened]
        for rank in ranks:
            if saved["state"] is not None:
                rank.load_state_dict(saved["state"])
        waiting: list[list[Any]] = []

        def step() -> list:
            while len(waiting) <= n_ahead:
                batches = [rank.get_batch() for rank in ranks]
                waiting.append(
                    [queues.entry(rank.last_number(), each) for rank, each in zip(ranks, batches, strict=True)]
                )
            return waiting.pop(0)

        yield ranks, step


def saved_at(path: Path) -> dict[str, Any]:
    file = path / "checkpoint.json"
    return read_json(file) if file.exists() else {"ledger": [], "state": None}


def save(path: Path, ledger: list, ranks: list[DatasetConsumer]) -> None:
    states = [rank.state_dict() for rank in ranks]
    assert all(state == states[0] for state in states)
    write_json(path / "checkpoint.json", {"ledger": ledger, "state": json.loads(json.dumps(states[0]))}, durable=False)


PLACES = ("trained", "marked", "saved", "committed")


def train(
    path: Path, world_size: int, n_ahead: int, n_steps: int, at: Callable[[int, str], object], **options: Any
) -> None:
    """Train from the last checkpoint and save each step; ``at(step, place)`` may end it."""
    with framework(path, world_size, n_ahead, **options) as (ranks, step):
        ledger = saved_at(path)["ledger"]
        for i in range(n_steps):
            ledger += step()
            at(i, "trained")
            for rank in ranks:
                rank.mark_trained()
            at(i, "marked")
            save(path, ledger, ranks)
            at(i, "saved")
            ranks[0].commit()
            at(i, "committed")


@pytest.mark.parametrize(
    ("world_size", "n_ahead", "prefetch"), [(1, 0, 0), (1, 2, 2), (2, 1, 0), (2, 1, 2), (3, 2, 0), (3, 0, 2)]
)
def test_ended_at_every_step_each_batch_is_trained_once(path, world_size, n_ahead, prefetch):
    """By the checkpoints that survive, wherever between a step and its commit the trainer ended."""
    n_steps = 3
    for place in PLACES:
        for last in range(n_steps):
            dataset = path / f"{place}-{last}"
            publish(dataset, world_size * (2 * n_steps + n_ahead))

            def at(i: int, reached: str, place=place, last=last) -> None:
                if (i, reached) == (last, place):
                    raise Killed

            with suppress(Killed):
                train(dataset, world_size, n_ahead, n_steps, at, prefetch=prefetch)
            n_done = len(saved_at(dataset)["ledger"]) // world_size
            train(dataset, world_size, n_ahead, 2 * n_steps - n_done, lambda *_: None, prefetch=prefetch)

            ledger = saved_at(dataset)["ledger"]
            assert len(ledger) == 2 * n_steps * world_size
            check_ledger(ledger)


@pytest.mark.parametrize("place", PLACES)
def test_killed_at_every_step_each_batch_is_trained_once(path, place):
    """The same with a process that is killed, so that nothing is written after the moment."""
    publish(path, 3 * times(3) + 2)
    for last in range(3 * times(1)):

        def child(last=last) -> None:
            train(path, 1, 1, 10, lambda i, reached: die() if (i, reached) == (last % 3, place) else None)

        in_child(child)
        check_ledger(saved_at(path)["ledger"])
    left = 3 * times(3) + 1 - len(saved_at(path)["ledger"])
    train(path, 1, 1, left, lambda *_: None)

    ledger = saved_at(path)["ledger"]
    assert len(ledger) == 3 * times(3) + 1
    check_ledger(ledger)


def test_a_state_resumes_on_another_world_size(path):
    """Batches in flight when the state was taken are handed out again, to as many ranks as there are then."""
    publish(path, 20)
    train(path, 2, 1, 3, lambda *_: None)
    train(path, 3, 2, 2, lambda *_: None)
    train(path, 1, 1, 2, lambda *_: None)

    check_ledger(saved_at(path)["ledger"])
    assert len(saved_at(path)["ledger"]) == 6 + 6 + 2


def test_files_stay_until_what_was_trained_is_committed(path):
    """Neither handing out nor marking deletes anything."""
    publish(path, 6)
    with consumer(path, acknowledge="explicit") as reader:
        for _ in range(4):
            reader.get_batch()
        reader.commit()
        assert queue_status(path)["train"].acknowledged == 0
        reader.mark_trained()
        reader.mark_trained()
        assert queue_status(path)["train"].acknowledged == 0
        assert reader.stats["train"]["in_flight"] == 2
        reader.commit()
        with closing(DirectoryLog.open(path / "queue/train")) as log:
            assert log.consumed().watermark == 2
            assert log.numbers() == [2, 3, 4, 5]


def test_a_batch_names_itself(path):
    """What was handed out, or the same columns in another dict; out of order, the state waits for the earliest."""
    publish(path, 3)
    with consumer(path, acknowledge="explicit") as reader:
        first, second, third = (reader.get_batch() for _ in range(3))

        reader.mark_trained(dict(second))
        assert position(reader) == 0
        reader.mark_trained(first)
        assert position(reader) == 2
        for wrong in (first, {"x": third["x"]}, {name: column.copy() for name, column in third.items()}, 3):
            with pytest.raises(ConfigError, match="was not handed out by this consumer"):
                reader.mark_trained(wrong)
        reader.mark_trained()
        assert position(reader) == 3
        with pytest.raises(ConfigError, match="no batch is in flight"):
            reader.mark_trained()


def position(reader: DatasetConsumer, split: str = "train") -> int:
    return reader.state_dict()["splits"][split]["position"]


def test_splits_are_marked_apart(path):
    """Batches of a validation that are not marked hold up only their own split."""
    config = {"splits": ["train", "val"]}
    with queues.provider(path, **config) as running:
        for split in ("train", "val", "train", "val"):
            running.publish(split)
    with consumer(path, acknowledge="explicit") as reader:
        for split in ("train", "val"):
            with pytest.raises(ConfigError, match=f"no batch of split '{split}'"):
                reader.mark_trained(split=split)
        reader.get_batch("val")
        reader.get_batch("train")
        reader.mark_trained()
        assert (position(reader), position(reader, "val")) == (1, 0)
        reader.mark_trained(split="val")
        assert position(reader, "val") == 1


def test_loading_a_state_forgets_what_is_in_flight(path):
    """The batches come again, and only these can be marked."""
    publish(path, 4)
    with consumer(path, acknowledge="explicit") as reader:
        start = reader.state_dict()
        first = reader.get_batch()
        state = reader.state_dict()
        reader.get_batch()
        reader.load_state_dict(state)
        assert start["splits"] == {}
        with pytest.raises(ConfigError, match="no batch"):
            reader.mark_trained(first)
        again = reader.get_batch()
        assert (again["x"] == first["x"]).all()
        reader.mark_trained()
        assert position(reader) == 1


def test_batches_that_a_guard_leaves_out_need_no_mark(path):
    """They were never handed out: the state passes them with the batch before the next one."""
    publish(path, 3)

    def without_the_second(rows: Any) -> SimpleNamespace:
        is_good = rows["made"][:, 1] != 1
        return SimpleNamespace(ok=is_good.all(), mask=is_good, verdicts=["the second"], action="skip")

    with consumer(path, acknowledge="explicit", guard=without_the_second) as reader:
        assert [reader.get_batch()["made"][0, 1] for _ in range(2)] == [0, 2]
        assert position(reader) == 0
        reader.mark_trained()
        assert position(reader) == 2
        reader.mark_trained()
        assert position(reader) == 3


def test_marking_is_for_explicit_consumers(path):
    """Elsewhere it would change nothing, silently."""
    publish(path, 1)
    for mode in ("on_step", "on_read", "on_checkpoint"):
        with (
            consumer(path, acknowledge=mode) as reader,
            pytest.raises(ConfigError, match=f"acknowledge='explicit'.*{mode}"),
        ):
            reader.mark_trained()


def test_a_rank_killed_with_batches_in_flight_restarts_with_the_others(path, monkeypatch):
    """Alone it would repeat what the others went past, so it is refused, as with on_checkpoint."""
    from poolish.serve import ranks

    monkeypatch.setattr(ranks, "_TAKE_OVER_S", 0.05)
    publish(path, 8)
    with framework(path, 2, 1) as (both, step):
        step()
        for rank in both:
            rank.mark_trained()
        state = both[0].state_dict()
        both[0].commit()
        both[1]._close(is_clean=False)
        with consumer(path, rank=1, world_size=2, acknowledge="explicit") as alone:
            alone.load_state_dict(state)
            with pytest.raises(ResumeError, match="restart all ranks"):
                alone.get_batch()


def test_marks_come_from_any_thread(path):
    """While another thread asks for batches, none is lost and none is marked twice."""
    n_batches = times(50)
    publish(path, n_batches)
    with consumer(path, acknowledge="explicit") as reader:
        ready = threading.Semaphore(0)

        def mark() -> None:
            for _ in range(n_batches):
                ready.acquire()
                reader.mark_trained()

        marking = threading.Thread(target=mark)
        marking.start()
        for _ in range(n_batches):
            reader.get_batch()
            ready.release()
        marking.join()

        assert position(reader) == n_batches
        assert reader.stats["train"]["in_flight"] == 0
