"""Guards for streams: rows at once, distributions over windows, and a state that goes on exactly."""

from __future__ import annotations

import json
import math
import threading

import numpy as np
import pytest

from poolish.errors import ConfigError, ResumeError
from poolish.guards import Suite


def batches(n_batches: int, n_rows: int = 30, shift_from: int = 10**9, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    made = [
        {"reward": rng.normal(size=n_rows), "kind": rng.choice(["a", "b"], n_rows).tolist()} for _ in range(n_batches)
    ]
    for batch in made[shift_from:]:
        batch["reward"] += 2.0
    return made


def suite(**actions) -> Suite:
    made = Suite("rollouts").expect("reward", finite=True, severity="error")
    return made.stat("reward", mean=(-1, 1), severity="error").drift(["reward"], severity="error").on(**actions)


REFERENCE = {"reward": np.random.default_rng(99).normal(size=5_000), "kind": ["a", "b"] * 2_500}


def shown(guard, made) -> list:
    """What a guard says of batches, in a form that can be compared."""
    return [[(v.title, v.status, v.acts, v.measured) for v in guard(batch).verdicts] for batch in made]


def test_rows_are_judged_at_once_and_distributions_by_windows():
    """A window closes with the batch that fills it."""
    guard = suite().guard(REFERENCE, window=100)

    n_verdicts = [len(guard(batch).verdicts) for batch in batches(8)]

    assert n_verdicts == [1, 1, 1, 3, 1, 1, 1, 3]
    assert (guard.n_seen, guard.n_bad, guard.n_windows) == (240, 0, 2)


def test_a_shift_is_noticed_by_the_window_that_holds_it():
    """And the batch that fills the window is what the action is done to."""
    guard = suite(error="skip").guard(REFERENCE, window=90)

    actions = [guard(batch).action for batch in batches(9, shift_from=3)]

    assert actions == ["log"] * 5 + ["skip"] + ["log"] * 2 + ["skip"]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_what_does_not_last_does_not_act(k):
    """With ``persist=k`` the k-th failing window in a row is the first to act; a good one starts the count anew."""
    guard = Suite().stat("x", mean=(-1, 1), severity="error").on(persist=k).guard(window=2)

    actions = [guard({"x": [x, x]}).action for x in (5, 5, 0, 5, 5, 5, 5)]

    failing = [1, 2, 0, 1, 2, 3, 4]
    assert actions == ["refuse" if n >= k else "log" for n in failing]
    assert guard.streaks == {"x has a mean between -1 and 1": 4}


def test_a_failure_that_waits_says_so():
    """It is in the result, as one that does not act."""
    guard = Suite().stat("x", mean=(-1, 1), severity="error").on(persist=2).guard(window=1)

    result = guard({"x": [5.0]})

    assert not result.ok
    assert result.action == "log"
    assert "has not lasted long enough to act on" in str(result)


def test_persist_does_not_excuse_bad_rows():
    """A bad row is bad, the first time too."""
    guard = suite(persist=3).guard(REFERENCE, window=100)

    assert guard({"reward": [math.nan, 0.0]}).action == "refuse"


def test_rows_that_did_not_pass_are_in_no_window():
    """The statistics are those of what goes on to the training."""
    guard = suite(error="drop").guard({"reward": [0.5] * 4}, window=4)

    guard({"reward": [math.nan, 0.5, math.nan, 0.5]})
    assert guard.n_windows == 0
    result = guard({"reward": [0.5, 0.5]})

    assert guard.n_windows == 1
    assert [v.measured["value"] for v in result.verdicts if "mean" in v.title] == [0.5]
    assert guard.n_bad == 2


def test_a_window_blames_no_row():
    """Most of its rows have passed already."""
    guard = Suite().outliers("x", severity="error").on(error="drop").guard(window=50)
    rng = np.random.default_rng(0)

    guard({"x": rng.normal(size=40)})
    result = guard({"x": [100.0] * 10})

    assert result.failures[0].bad is None
    assert not result.kept.any()


# State ------------------------------------------------------------------------------------------------------------


def test_a_state_gives_the_rest_exactly():
    """Taken after any batch, also in the middle of a window, and sent as JSON."""
    made = batches(10, shift_from=4)
    whole = shown(suite(persist=2).guard(REFERENCE, window=70), made)

    for stop in range(len(made)):
        guard = suite(persist=2).guard(REFERENCE, window=70)
        first = shown(guard, made[:stop])
        state = json.loads(json.dumps(guard.state_dict()))
        again = suite(persist=2).guard(REFERENCE, window=70)
        again.load_state_dict(state)
        assert first + shown(again, made[stop:]) == whole
        assert again.n_seen == 300


def test_a_state_is_no_larger_than_a_window():
    """However long the stream, and only the columns that are judged are in it."""
    guard = suite().guard(REFERENCE, window=1_000)
    sizes = []
    for batch in batches(100, n_rows=100):
        guard({**batch, "pixels": np.zeros((100, 1_000))})
        sizes.append(len(json.dumps(guard.state_dict())))

    assert max(sizes) < 1_000 * 8 * 4 / 3 + 2_000


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"suite": "0" * 16}, "of another suite"),
        ({"rows": "AAAA"}, "damaged"),
        ({"version": 2}, "no state of a guard"),
        ({"seen": -1}, "no state of a guard"),
        ({"streaks": {"a": "b"}}, "streaks are numbers"),
        ({"streaks": None}, "no state of a guard"),
        ({"rows": "\ud800"}, "damaged"),
    ],
)
def test_a_state_that_does_not_belong_is_refused(change, why):
    """And changes nothing."""
    guard = suite().guard(REFERENCE, window=100)
    guard(batches(1)[0])
    before = guard.state_dict()

    with pytest.raises(ResumeError, match=why):
        guard.load_state_dict({**before, **change})

    assert guard.state_dict() == before


def test_a_state_that_is_nested_without_end_is_refused():
    """Its text would end Python's stack."""
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    guard = suite().guard(REFERENCE)

    for state in (deep, {**guard.state_dict(), "seen": deep}):
        with pytest.raises(ResumeError, match="no state of a guard"):
            guard.load_state_dict(state)


def test_a_state_whose_rows_are_no_rows_is_refused():
    """Even if the checksum was made right."""
    from poolish.files import checksum_hex

    guard = suite().guard(REFERENCE)

    for rows in ("AAAA", "not base64", "/////w=="):
        with pytest.raises(ResumeError, match="no rows in the state"):
            guard.load_state_dict({**guard.state_dict(), "rows": rows, "checksum": checksum_hex(rows.encode())})


def test_threads_share_a_guard():
    """No row is lost between them."""
    guard = suite().guard(REFERENCE, window=100)
    made = batches(40, n_rows=25)
    threads = [
        threading.Thread(target=lambda part=part: [guard(batch) for batch in part]) for part in (made[:20], made[20:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (guard.n_seen, guard.n_windows) == (1_000, 10)


@pytest.mark.parametrize("window", [0, -1, 2.5, "100", None])
def test_a_window_is_a_number_of_rows(window):
    """From one."""
    with pytest.raises(ConfigError, match="a number of rows from 1"):
        suite().guard(window=window)


@pytest.mark.parametrize("persist", [0, -1, 1.5, True])
def test_persist_is_a_number_of_windows(persist):
    """From one."""
    with pytest.raises(ConfigError, match="a number of windows from 1"):
        suite().on(persist=persist)
