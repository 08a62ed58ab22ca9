"""Guards at both ends of a queue: what is not good never gets in, and what got in is looked at before it is trained."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from poolish import DataProviderBase, DatasetConsumer, DatasetProvider
from poolish.errors import BudgetSpent, ConfigError, CorruptDataError, DataRefused
from poolish.guards import CircuitBreaker, CircuitOpen, Retry, Suite, register_check
from poolish.serve import queue_status, rejections
from tests.faults import die, fork, in_child, kill

pytestmark = pytest.mark.usefixtures("eager")


def suite(**actions) -> Suite:
    return Suite("rollouts").expect("reward", finite=True, between=(-10, 10)).on(**actions)


class Rewards(DataProviderBase):
    """Batches of four rows ``(made, reward)``; in the batches ``bad`` the rows of ``rows`` have no reward."""

    bad: tuple[int, ...] = ()
    rows: tuple[int, ...] = (1,)
    guard = suite()

    def build_meta(self):
        fields = [("made", "int64", []), ("reward", "float32", [])]
        return {"batch_schema": [{"name": n, "dtype": d, "shape": s} for n, d, s in fields]}

    def sample_batch(self, split, rng):
        reward = rng.uniform(size=4).astype(np.float32)
        if self.batch_number(split) in self.bad:
            reward[list(self.rows)] = np.nan
        return {"made": np.full(4, self.batch_number(split)), "reward": reward}


CONFIG = {"dataset": "rewards", "batch_size": 4, "block_size": 1, "splits": ["train"], "max_backlog": 100, "seed": 3}


def provider(path: Path, bad=(), *, kind: type[Rewards] = Rewards, n_batches: int = 8, **options) -> Rewards:
    made = kind({**CONFIG, "max_batches": n_batches}, path=path, **options)
    made.bad = tuple(bad)
    return made


def trained(path: Path, **options) -> list[int]:
    """Which batches a trainer gets to see."""
    with DatasetConsumer(path, output="numpy", timeout_s=5, **options) as consumer:
        return [int(batch["made"][0]) for batch in consumer]


# The provider -----------------------------------------------------------------------------------------------------


def test_a_bad_batch_goes_to_quarantine_and_the_provider_goes_on(path):
    """Never into the queue; the file says which row and why."""
    with provider(path, bad=[2, 5]) as running:
        running.run()
        status = running.status()["train"]

    assert trained(path) == [0, 1, 3, 4, 6, 7]
    assert (status["made"], status["rejected"], status["rejected_rows"]) == (8, 2, 8)
    assert queue_status(path)["train"].quarantined == 2
    kept = list(rejections(path))
    assert [(told["provider"], told["counter"], told["rows"]) for told in kept] == [("w0", 2, "0-3"), ("w0", 5, "0-3")]
    assert kept[0]["rejected"] == [
        {"row": 1, "reason": "reward is finite: got nan; reward is between -10 and 10: got nan"}
    ]
    assert [check["rows"] for check in kept[0]["checks"]] == ["1", "1"]
    arrays = load_file(kept[0]["file"])
    assert arrays["made"].tolist() == [2] * 4
    assert math.isnan(arrays["reward"][1])


def test_the_batches_that_pass_are_those_of_a_provider_without_a_guard(path, tmp_path):
    """A guard looks and changes nothing."""

    class Unguarded(Rewards):
        guard = None

    with provider(path, bad=[2]) as guarded, provider(tmp_path / "other", bad=[2], kind=Unguarded) as plain:
        guarded.run()
        plain.run()
    with (
        DatasetConsumer(path, output="numpy", timeout_s=5) as ours,
        DatasetConsumer(tmp_path / "other", output="numpy", timeout_s=5) as theirs,
    ):
        expected = [batch["reward"].tolist() for batch in theirs if not np.isnan(batch["reward"]).any()]
        assert [batch["reward"].tolist() for batch in ours] == expected


def test_only_the_bad_rows_go_to_quarantine(path):
    """With ``on(error="drop")`` the batch is published without them; one that has no good row is not."""
    with provider(path, bad=[2, 5], guard=suite(error="drop")) as running:
        running.run(on_batch=lambda split, number: setattr(running, "rows", (0, 1, 2, 3) if number > 2 else (1,)))
        status = running.status()["train"]

    with DatasetConsumer(path, output="numpy", timeout_s=5) as consumer:
        sizes = {int(batch["made"][0]): len(batch["made"]) for batch in consumer}
    assert sizes == {0: 4, 1: 4, 2: 3, 3: 4, 4: 4, 6: 4, 7: 4}
    assert (status["rejected"], status["rejected_rows"]) == (1, 5)
    assert [(told["rows"], told["n_rejected"]) for told in rejections(path)] == [("1", 1), ("0-3", 4)]


def test_publish_says_that_a_batch_was_refused(path):
    """And the next call makes the next one."""
    with provider(path, bad=[0], n_batches=2) as running:
        with pytest.raises(
            DataRefused, match=r"batch 0: reward is finite: 1 of 4 rows are bad; .*it is kept in .*json"
        ):
            running.publish("train")
        assert running.publish("train") == 0
    assert trained(path) == [1]


def test_a_fatal_check_ends_the_provider(path):
    """After the batch is safe in quarantine."""
    guard = Suite().expect("reward", finite=True, severity="fatal")

    with provider(path, bad=[3], guard=guard) as running, pytest.raises(DataRefused, match="kept in"):
        running.run()
    assert len(list(rejections(path))) == 1
    assert queue_status(path)["train"].published == 3


@pytest.mark.parametrize(("max_rejected", "n_rejected"), [(2, 3), (0, 1), (0.5, 6), (0.0, 1)])
def test_a_source_that_is_only_bad_ends_the_provider(path, max_rejected, n_rejected):
    """By the budget: a count, or a share that few batches may exceed by chance."""
    told = rf"{n_rejected} of {n_rejected} batch(es)? rejected.*quarantine"

    with (
        provider(path, bad=range(100), n_batches=100, max_rejected=max_rejected) as running,
        pytest.raises(BudgetSpent, match=told),
    ):
        running.run()

    assert len(list(rejections(path))) == n_rejected


def test_dropped_rows_count_as_parts_of_batches(path):
    """One bad row in each batch of four is a quarter of them."""
    with provider(path, bad=range(100), n_batches=40, guard=suite(error="drop"), max_rejected=0.3) as running:
        running.run()
        assert running.status()["train"]["rejected_rows"] == 40


def test_a_restart_does_not_make_a_rejected_batch_again(path):
    """The provider's count includes it."""
    with provider(path, bad=[1, 2], n_batches=3) as running:
        running.run()
    with provider(path, bad=[1, 2], n_batches=5) as running:
        running.run()
        assert running.status()["train"]["rejected"] == 0

    assert trained(path) == [0, 3, 4]
    assert [told["counter"] for told in rejections(path)] == [1, 2]


def test_a_rejected_batch_is_counted_at_once(path):
    """Also if the provider is killed before it has published anything else."""

    def reject_and_die() -> None:
        running = provider(path, bad=[0]).open()
        with pytest.raises(DataRefused):
            running.publish("train")
        die()

    in_child(reject_and_die)

    with provider(path, bad=[0]) as running:
        assert running.batch_number("train") == 1


def test_a_kill_between_batches_loses_and_repeats_nothing(path):
    """Whenever it comes, the queue holds the good batches once, and the quarantine the bad ones once."""
    bad = range(0, 60, 3)
    for _ in range(12):
        child = fork(lambda: provider(path, bad=bad, n_batches=60).open().run())
        time.sleep(0.01)
        kill(child)
    with provider(path, bad=bad, n_batches=60) as running:
        running.run()

    assert trained(path) == [n for n in range(60) if n % 3]
    assert [told["counter"] for told in rejections(path)] == list(bad)


@pytest.mark.parametrize("change", [{"counter": "1"}, {"counter": None}, {"time": 3}, {"checks": {}}])
def test_reasons_that_are_no_reasons_are_told_with_their_file(path, change):
    """Not as an error of whoever sorts or counts them."""
    with provider(path, bad=[2, 5]) as running:
        running.run()
    first, *_ = sorted((path / "quarantine" / "train").glob("*.json"))
    first.write_text(json.dumps({**json.loads(first.read_text()), **change}))

    with pytest.raises(CorruptDataError, match=rf"{first.name}: .*{next(iter(change))} is .*; remove it"):
        list(rejections(path))


def test_a_pipe_in_quarantine_is_not_waited_for(path):
    """What is no regular file is an error at once."""
    folder = path / "quarantine" / "train"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "a.json")

    with pytest.raises(CorruptDataError, match=r"a\.json: not a regular file"):
        list(rejections(path))


def test_a_refusal_in_ones_own_code_is_not_the_guards(path):
    """``sample_batch`` may use a guarded buffer; its error ends the provider as any other."""

    class Refusing(Rewards):
        def sample_batch(self, split, rng):
            raise DataRefused("mine")

    with provider(path, kind=Refusing) as running, pytest.raises(DataRefused, match="mine"):
        running.run()
    assert list(rejections(path)) == []


def test_dtypes_that_numpy_lacks_are_guarded(path):
    """bfloat16 is looked at as the numbers that it holds."""
    rows = [{"x": torch.tensor([i, float("nan") if i == 3 else 0.0], dtype=torch.bfloat16)} for i in range(8)]
    guard = Suite().expect("x", finite=True).on(error="drop")

    with DatasetProvider(rows, path=path, batch_size=4, order="sequential", epochs=1, guard=guard) as running:
        running.run()

    with DatasetConsumer(path, timeout_s=5) as consumer:
        assert [batch["x"][:, 0].tolist() for batch in consumer] == [[0, 1, 2], [4, 5, 6, 7]]


@pytest.mark.parametrize("options", [{"guard": 7}, {"max_rejected": -1}, {"max_rejected": 1.5}, {"max_rejected": "2"}])
def test_wrong_arguments_are_refused(path, options):
    """Where they are given."""
    with pytest.raises(ConfigError, match=r"guard|max_rejected"):
        provider(path, **options)


# The consumer -----------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(path):
    """A queue of six batches, the third with a bad row, filled by nobody's guard."""

    class Unguarded(Rewards):
        guard = None

    with provider(path, bad=[2], kind=Unguarded, n_batches=6) as running:
        running.run()
    return path


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_bad_batch_is_an_error_in_the_trainer(filled, prefetch):
    """And stays one until somebody decides: the next call meets it again."""
    with DatasetConsumer(filled, output="numpy", timeout_s=5, guard=suite(), prefetch=prefetch) as consumer:
        assert [int(consumer.get_batch()["made"][0]) for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(DataRefused, match="batch 2: reward is finite: 1 of 4 rows are bad"):
                consumer.get_batch()
        state = consumer.state_dict()
    assert state["splits"]["train"]["position"] == 2
    assert trained(filled, guard=suite(error="skip")) == [3, 4, 5]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("acknowledge", ["on_read", "on_step", "on_checkpoint"])
def test_a_skipped_batch_is_done_with_and_counted(filled, prefetch, acknowledge):
    """A restart does not get it again."""
    options = {"output": "numpy", "timeout_s": 5, "guard": suite(error="skip"), "prefetch": prefetch}
    with DatasetConsumer(filled, acknowledge=acknowledge, **options) as consumer:
        seen = [int(consumer.get_batch()["made"][0]) for _ in range(3)]
        stats = consumer.stats["train"]
        consumer.commit()
    with DatasetConsumer(filled, acknowledge=acknowledge, **options) as consumer:
        rest = [int(batch["made"][0]) for batch in consumer]

    assert seen == [0, 1, 3]
    assert rest == [4, 5]
    assert (stats["skipped"], stats["dropped_rows"], stats["position"]) == (1, 4, 4)


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_bad_rows_are_dropped_from_a_batch(filled, output):
    """The others keep their order."""
    with DatasetConsumer(filled, output=output, timeout_s=5, guard=suite(error="drop")) as consumer:
        sizes = [len(batch["reward"]) for batch in consumer]
        stats = consumer.stats["train"]

    assert sizes == [4, 4, 3, 4, 4, 4]
    assert (stats["skipped"], stats["dropped_rows"]) == (0, 1)


def test_one_rank_of_several_leaves_no_batch_out(filled):
    """It would be out of step with the others for ever."""
    with DatasetConsumer(
        filled, output="numpy", timeout_s=5, guard=suite(error="skip"), rank=0, world_size=2, run="r"
    ) as consumer:
        consumer.get_batch()
        with pytest.raises(DataRefused, match=r"rank 0 of 2: .*out of step"):
            consumer.get_batch()


def test_pairs_stay_pairs(path):
    """(X, Y), also where rows were dropped."""
    rows = [(float(i), math.nan if i == 2 else 0.0) for i in range(4)]
    with DatasetProvider(rows, path=path, batch_size=4, order="sequential", epochs=1) as running:
        running.run()

    with DatasetConsumer(path, timeout_s=5, guard=Suite().expect("y", finite=True).on(error="drop")) as consumer:
        x, y = consumer.get_batch()

    assert x.tolist() == [0.0, 1.0, 3.0]
    assert y.tolist() == [0.0, 0.0, 0.0]


# A day in the life ------------------------------------------------------------------------------------------------

N_BATCHES, GOOD = 40, 16


@register_check("test.serve.picture")
def is_picture(images):
    """A picture has more than one colour."""
    return images.reshape(len(images), -1).std(axis=1) > 0


class FlappingStore:
    """Rewards from a service that loses every third connection, and is away for a while in the middle."""

    def __init__(self) -> None:
        self.n_calls = 0

    def rewards(self, n: int, rng: np.random.Generator) -> np.ndarray:
        self.n_calls += 1
        if self.n_calls % 3 == 0 or 30 <= self.n_calls < 37:
            raise ConnectionError("reset by peer")
        return rng.normal(size=n)


class Life(DataProviderBase):
    """A provider that turns bad half-way: NaN, broken pictures, and in the end a reward of another scale."""

    def setup(self) -> None:
        self.now = 0.0
        self.store = FlappingStore()
        self.breaker = CircuitBreaker(error_rate=0.6, window=6, cooldown=2.0, clock=self.clock, counts=ConnectionError)
        self.retry = Retry(attempts=4, base_delay=0.1, clock=self.clock, sleep=self.sleep, retry_on=ConnectionError)
        self.n_open = 0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def build_meta(self):
        fields = [("image", "uint8", [8, 8]), ("reward", "float32", []), ("row", "int64", [])]
        return {"batch_schema": [{"name": n, "dtype": d, "shape": s} for n, d, s in fields]}

    def asked(self, rng: np.random.Generator) -> np.ndarray:
        self.now += 1.0
        try:
            return self.retry.call(self.breaker.call, self.store.rewards, 16, rng)
        except (CircuitOpen, ConnectionError):
            self.n_open += 1
            return rng.normal(size=16)  # the store is away: a guess does for now

    def sample_batch(self, split, rng):
        counter = self.batch_number(split)
        image = rng.integers(0, 255, (16, 8, 8)).astype(np.uint8)
        reward = self.asked(rng).astype(np.float32)
        if counter >= GOOD:
            if counter % 4 == 0:
                reward[counter % 16] = np.nan
            if counter % 4 == 1:
                image[[3, 7]] = 0
            if counter >= 28:
                reward += 3.0
        return {"image": image, "reward": reward, "row": np.arange(16) + 16 * counter}


def test_a_provider_that_turns_bad_half_way_trains_through(path, caplog):
    """Good batches are trained, each once; every bad row is in quarantine with its reason; the shift is noticed."""
    reference = {"reward": np.random.default_rng(1).normal(size=4_000)}
    suite = (
        Suite("life")
        .expect("reward", finite=True, between=(-50, 50))
        .expect("image", check="test.serve.picture")
        .drift(["reward"], severity="error")
        .on(error="drop", persist=2)
    )
    guard = suite.guard(reference, window=64)
    caplog.set_level(logging.WARNING, "poolish.guards")

    weights, seen = np.zeros(2), []
    with Life({**CONFIG, "batch_size": 16, "max_batches": N_BATCHES}, path=path, guard=guard) as running:
        running.run()
        status = running.status()["train"]
        is_survived = running.n_open > 0 and running.retry.stats.recovered > 0 and running.breaker.state == "closed"
    with DatasetConsumer(path, output="numpy", timeout_s=5) as consumer:
        for batch in consumer:
            features = np.stack([batch["image"].mean(axis=(1, 2)) / 255, np.ones(len(batch["row"]))], axis=1)
            error = features @ weights - batch["reward"]
            weights -= 0.1 * features.T @ error / len(error)
            seen += batch["row"].tolist()

    assert is_survived
    assert np.isfinite(weights).all()
    assert len(set(seen)) == len(seen)
    kept = list(rejections(path))
    blamed = {told["counter"] * 16 + each["row"]: each["reason"] for told in kept for each in told["rejected"]}
    broken = {16 * counter + row for counter in range(GOOD, N_BATCHES) if counter % 4 == 1 for row in (3, 7)}
    lost = {16 * counter + counter % 16 for counter in range(GOOD, N_BATCHES) if counter % 4 == 0}
    in_quarantine = sum(told["n_rejected"] for told in kept)
    assert {row for row, reason in blamed.items() if "test.serve.picture" in reason} == broken
    assert {row for row, reason in blamed.items() if "reward is finite: got nan" in reason} == lost
    assert not blamed.keys() & set(seen)
    # Everything that was made is in exactly one place.
    assert len(seen) + in_quarantine == 16 * N_BATCHES
    assert status["rejected_rows"] == in_quarantine
    # The shift came with batch 28: the second window in a row that shows it keeps a batch out, and none before.
    drifted = [
        told["counter"] for told in kept if any("as in the reference" in check["check"] for check in told["checks"])
    ]
    assert drifted
    assert min(drifted) >= 30
    assert guard.streaks["reward is as in the reference (psi)"] >= 2
    assert "reward is finite" in caplog.text
    json.dumps(guard.state_dict())


def test_a_flapping_store_is_an_error_only_when_all_else_fails():
    """Without retry and breaker the same store ends the provider at its third batch."""
    store, rng = FlappingStore(), np.random.default_rng(0)

    for _ in range(2):
        store.rewards(1, rng)
    with pytest.raises(ConnectionError):
        store.rewards(1, rng)
    with suppress(ConnectionError):
        store.rewards(1, rng)
