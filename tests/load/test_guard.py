"""A guard between loader and trainer: what is not good is refused, dropped or left out, exactly, and counted."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from poolish import DatasetBuffer
from poolish.errors import ConfigError, DataRefused, ResumeError
from poolish.guards import Suite
from poolish.load import Loader, TransformedDataset, verify_resume
from tests.load.loaders import saved

BAD = (3, 8, 9)


def suite(**actions) -> Suite:
    made = Suite("rewards").expect("reward", finite=True, between=(-10, 10))
    return made.on(**actions) if actions else made


def samples(n=16, bad=BAD):
    return [{"n": i, "reward": 99.0 if i in bad else i / 10} for i in range(n)]


def source(kind="buffer", **options):
    if kind == "list":
        return samples(**options)
    made = DatasetBuffer()
    made.append(samples(**options))
    return made


def seen(loader):
    return [batch["n"].tolist() for batch in loader]


# Actions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["buffer", "list"])
def test_a_refused_batch_is_met_again(kind, num_workers):
    """DataRefused names the place and the row; the loader and its state stay before the batch."""
    rows = source(kind)
    loader = Loader(rows, 4, guard=suite(), num_workers=num_workers)
    state = saved(loader)
    for _ in range(2):
        with pytest.raises(DataRefused, match=r"Loader, epoch 0, step 0.*id 3: 99.0"):
            next(iter(loader))
        assert saved(loader) == state
    if kind == "list":
        rows[3]["reward"] = 0.0
        assert next(iter(loader))["n"].tolist() == [0, 1, 2, 3]
    loader.close()


@pytest.mark.parametrize("output", ["numpy", "torch", "arrow"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_rows_are_dropped(num_workers, output):
    """The others come as a short batch that knows its rows; they are counted, and the audit knows."""
    loader = Loader(source(), 4, guard=suite(error="drop"), num_workers=num_workers, output=output)
    batches = list(loader)

    assert [batch.ids.tolist() for batch in batches] == [[0, 1, 2], [4, 5, 6, 7], [10, 11], [12, 13, 14, 15]]
    assert all(batch["n"].tolist() if output != "arrow" else batch["n"].to_pylist() for batch in batches)
    assert loader.stats == {"skipped": 0, "dropped_rows": 3}
    assert loader.audit(0, 3).skipped == {0: [3], 2: [8, 9]}
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_batches_are_left_out(num_workers):
    """The loop goes on with the next; batches and rows are counted."""
    loader = Loader(source(), 4, guard=suite(error="skip"), num_workers=num_workers)

    assert seen(loader) == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert loader.stats == {"skipped": 2, "dropped_rows": 8}
    assert (loader.epoch, loader.step) == (1, 4)
    loader.close()


def test_a_batch_of_bad_rows_only_is_left_out():
    """With drop as well: there is nothing to train on. An epoch may be empty."""
    loader = Loader(source(bad=range(16)), 4, guard=suite(error="drop"))

    assert seen(loader) == []
    assert loader.stats == {"skipped": 4, "dropped_rows": 16}


def test_warnings_change_nothing(caplog):
    """What is only logged passes whole."""
    warns = Suite("only warned").expect("reward", between=(-10, 10), severity="warn")
    with caplog.at_level(logging.WARNING, "poolish.guards"):
        batches = seen(Loader(source(), 4, guard=warns))

    assert [n for batch in batches for n in batch] == list(range(16))
    assert "only warned" in caplog.text


def test_a_rank_that_would_leave_a_batch_out_refuses():
    """It would be out of step with the others; dropping rows is no trouble."""
    ranks = [Loader(source(), 2, rank=r, world_size=2, guard=suite(error="drop")) for r in range(2)]
    assert sorted(id_ for loader in ranks for batch in loader for id_ in batch.ids.tolist()) == [
        i for i in range(16) if i not in BAD
    ]
    skipping = Loader(source(), 2, rank=1, world_size=2, guard=suite(error="skip"))
    with pytest.raises(DataRefused, match=r"rank 1 of 2.*out of step"):
        next(iter(skipping))


# Forms of batches ----------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    n: int
    reward: float


@dataclass(frozen=True, slots=True)
class Sample:
    n: int
    reward: float


@pytest.mark.parametrize("class_", [Pair, Sample])
def test_structures_are_guarded_by_field(class_):
    """And dropped from, too."""
    rows = [class_(**row) for row in samples()]
    batches = list(Loader(rows, 8, guard=suite(error="drop")))

    assert [type(batch).__name__ for batch in batches] == [class_.__name__] * 2
    assert [batch.n.tolist() for batch in batches] == [[0, 1, 2, 4, 5, 6, 7], [10, 11, 12, 13, 14, 15]]


def test_tuples_and_nested_columns_have_names():
    """Numbers in tuples, ``outer.inner`` in dicts; text and ragged columns are dropped from as well."""
    tuples = Suite().expect("1", between=(0, 5)).on(error="drop")
    nested = Suite().expect("a.b", between=(0, 5)).on(error="drop")
    rows = [{"a": {"b": float(i)}, "text": str(i), "ragged": np.zeros(i)} for i in range(4, 8)]
    (pair,) = Loader([(i, float(i)) for i in range(4, 8)], 4, guard=tuples)
    (batch,) = Loader(rows, 4, guard=nested, device="cpu")

    assert (pair[0].tolist(), pair.ids.tolist()) == ([4, 5], [0, 1])
    assert (batch["a"]["b"].tolist(), batch["text"], len(batch["ragged"])) == ([4, 5], ["4", "5"], 2)


def test_what_a_collate_fn_returns_is_guarded_where_it_has_columns():
    """Else it is refused with what to return; rows are dropped only where each is one sample."""
    with pytest.raises(ConfigError, match="collate_fn returned Tensor"):
        next(iter(Loader(samples(), 4, collate_fn=lambda rows: torch.zeros(4), guard=suite())))
    halved = Loader(
        samples(),
        4,
        collate_fn=lambda rows: {"reward": [row["reward"] for row in rows[2:]]},
        guard=suite(error="drop"),
    )
    with pytest.raises(ConfigError, match="2 rows of 4 samples"):
        next(iter(halved))


def test_a_function_is_a_guard():
    """It sees columns by name, which it cannot change."""
    found = []

    def positive(columns):
        with pytest.raises(ValueError, match="read-only"):
            columns["reward"][0] = 1
        mask = columns["reward"] < 50
        found.append(list(columns))
        return SimpleNamespace(ok=bool(mask.all()), mask=mask, verdicts=["too large"], action="drop")

    assert [n for batch in seen(Loader(source(), 8, guard=positive)) for n in batch] == [
        i for i in range(16) if i not in BAD
    ]
    assert found == [["n", "reward"]] * 2


def test_what_is_no_guard_is_refused():
    """When the loader is made."""
    with pytest.raises(ConfigError, match="a guard is a Suite"):
        Loader(source(), guard=3)
    with pytest.raises(ConfigError, match=r"guard\("):
        Loader(source(), guard=Suite().drift(["reward"]))


# Windows and drift ---------------------------------------------------------------------------------------------------


def drifting(n=64):
    rng = np.random.default_rng(0)
    rewards = np.concatenate([rng.normal(size=n // 2), rng.normal(5, size=n // 2)])
    return [{"n": i, "reward": float(reward)} for i, reward in enumerate(rewards)]


def window_guard(**actions):
    return (
        Suite("window")
        .stat("reward", mean=(-2, 2), severity="error")
        .on(**(actions or {"error": "raise"}))
        .guard(window=16)
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_window_that_has_drifted_is_refused_again_and_again(num_workers):
    """The guard's window goes back with the batch: the same batches fill it, with the same verdict."""
    loader = Loader(drifting(), 4, guard=window_guard(), num_workers=num_workers)
    for _ in range(3):
        with pytest.raises(DataRefused, match="mean"):
            list(loader)
        assert (loader.step, loader.guard.n_seen, loader.guard.n_windows) == (11, 48, 3)
        assert json.loads(json.dumps(loader.state_dict()))["guard"]["seen"] == 44
    loader.close()


def test_a_reference_finds_drift_while_loading():
    """``suite.guard(reference)`` compares windows with what the model was made for."""
    rows = drifting(400)
    guard = Suite("drift").drift(["reward"], severity="error").on(error="raise").guard(rows[:200], window=100)
    loader = Loader(rows, 20, guard=guard)

    with pytest.raises(DataRefused, match="psi"):
        list(loader)
    assert 200 < loader.position < 300


@pytest.mark.parametrize("actions", [{"error": "skip"}, {"error": "drop"}])
def test_a_guard_resumes_at_every_batch(actions):
    """The open window travels in the state: every continuation is judged as the run that was not stopped."""
    rows = drifting()
    whole = Loader(rows, 4, shuffle=True, guard=window_guard(**actions))
    expected = seen(whole)
    for n_done in range(len(expected) + 1):
        stopped = Loader(rows, 4, shuffle=True, guard=window_guard(**actions))
        iterator = iter(stopped)
        begun = [next(iterator)["n"].tolist() for _ in range(n_done)]
        resumed = Loader(rows, 4, shuffle=True, guard=window_guard(**actions), num_workers=n_done % 2)
        resumed.load_state_dict(saved(stopped))
        resumed.set_epoch(0)  # behind its last batch nothing is left of it
        rest = seen(resumed)
        resumed.close()

        assert begun + rest == expected
        assert resumed.guard.state_dict() == whole.guard.state_dict()


def test_the_state_of_a_guard_is_that_of_the_oldest_batch_in_flight():
    """With acknowledge="explicit" the window goes on from there."""
    loader = Loader(drifting(), 4, guard=window_guard(), acknowledge="explicit")
    iterator = iter(loader)
    first, _, _ = next(iterator), next(iterator), next(iterator)

    assert saved(loader)["guard"]["seen"] == 0
    loader.mark_trained(first)
    assert (saved(loader)["guard"]["seen"], loader.guard.n_seen) == (4, 12)


def test_the_window_of_another_rank_is_not_taken_over():
    """A state restores all ranks; the windows of the others begin anew."""
    first = Loader(drifting(), 4, guard=window_guard(), rank=0, world_size=2)
    next(iter(first))
    second = Loader(drifting(), 4, guard=window_guard(), rank=1, world_size=2)
    second.load_state_dict(saved(first))

    assert (second.step, second.guard.n_seen) == (1, 0)


def test_a_refused_state_leaves_the_guard_as_it_was():
    """One of another suite changes nothing."""
    loader = Loader(drifting(), 4, guard=window_guard())
    next(iter(loader))
    other = Loader(drifting(), 4, guard=Suite("other").stat("n", mean=(0, 1)).guard(window=8))
    next(iter(other))
    before = copy.deepcopy(saved(other))
    with pytest.raises(ResumeError, match="another suite"):
        other.load_state_dict(saved(loader))

    assert saved(other) == before


def test_one_guard_serves_one_loader():
    """Its windows would mix two streams of batches."""
    guard = window_guard()
    first, second = Loader(drifting(), 4, guard=guard), Loader(drifting(), 4, guard=guard)
    next(iter(first))
    with pytest.raises(ConfigError, match=r"suite\.guard\(\)"):
        next(iter(second))


@pytest.mark.parametrize("guard", [suite(error="drop"), window_guard(error="skip")], ids=["rows", "windows"])
def test_resume_is_verified_with_a_guard(guard):
    """Dropped and left-out rows included; the loader's own guard is not moved."""
    loader = Loader(TransformedDataset(drifting(), dict), 4, shuffle=True, guard=guard)
    report = verify_resume(loader)

    assert report.ok, report
    assert getattr(guard, "n_seen", 0) == 0
