"""A change is drift if it is certain and worth an alarm; how large it is comes in the column's own unit."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from poolish.errors import ConfigError
from poolish.guards import Profile, Suite, drift
from poolish.guards.stats.drift import spent
from tests.effort import times

pytestmark = pytest.mark.kernels

RNG_SEED = 0


def shifted(n: int, by: float, scale: float = 10.0) -> dict[str, np.ndarray]:
    return {"kg": np.random.default_rng(round(by * 100)).normal(70 + by, scale, n)}


# In the unit of the column --------------------------------------------------------------------------------------


def test_numbers_move_in_their_own_unit():
    """By how much a row has moved on average, and what share of the reference's spread that is."""
    before, now = shifted(50_000, 0), shifted(50_000, 5)

    effect = drift(before, now)["kg"].effect

    assert effect is not None
    assert effect.value == pytest.approx(scipy.stats.wasserstein_distance(before["kg"], now["kg"]), rel=1e-6)
    assert (effect.unit, effect.is_material) == ("value", True)
    assert effect.value == pytest.approx(5, abs=0.2)
    assert effect.spreads == pytest.approx(0.5, abs=0.03)
    assert effect.least == pytest.approx(1.0, abs=0.05)
    assert str(effect).startswith(f"moved by {effect.value:.4g} (0.")


def test_extremes_hide_no_shift_of_all_others():
    """The spread is that of the quartiles: the standard deviation of these values is 50 times as large."""
    rng = np.random.default_rng(RNG_SEED)
    before, now = ({"x": rng.lognormal(shift, 3, 20_000)} for shift in (0.0, 0.5))

    found = drift(before, now)["x"]

    assert found.verdict == "drift"
    assert found.effect.spreads > 0.1  # type: ignore[union-attr, operator]


def test_text_and_booleans_change_by_shares_of_the_rows():
    """How many rows would need another value; 5 % by default."""
    words = {"word": ["a"] * 6_000 + ["b"] * 4_000, "flag": [True] * 5_000 + [False] * 5_000}
    others = {"word": ["a"] * 6_300 + ["b"] * 3_700, "flag": [True] * 6_000 + [False] * 4_000}

    report = drift(words, others, method="psi")

    assert {name: column.effect.value for name, column in report.items()} == {  # type: ignore[union-attr]
        "word": pytest.approx(0.03),
        "flag": pytest.approx(0.1),
    }
    assert report["word"].significant
    assert (report["word"].verdict, report["flag"].verdict) == ("ok", "drift")
    assert "3 % of the rows have other values" in repr(report)


def test_certain_and_small_is_no_drift_unless_any_change_is_worth_an_alarm():
    """Both answers are in the report, so that neither is a surprise."""
    before, now = shifted(50_000, 0), shifted(50_000, 0.3)

    report, strict = drift(before, now), drift(before, now, worth="any")

    assert report["kg"].raw_p < 1e-3  # type: ignore[operator]
    assert (report["kg"].significant, report["kg"].verdict) == (True, "ok")
    assert strict.drifted == ["kg"]
    assert drift(before, now, worth={"kg": 0.2}).drifted == ["kg"]
    assert drift(before, now, worth={"kg": 1}).drifted == []
    assert drift(before, now, worth={"other": 1}).drifted == []


def test_a_large_change_of_a_few_rows_is_no_drift():
    """However large it looks: forty rows move by 0.2 spreads by chance."""
    before, now = shifted(40, 0), shifted(40, 0.01)

    found = drift(before, now)["kg"]

    assert found.effect.is_material  # type: ignore[union-attr]
    assert (found.significant, found.verdict) == (False, "ok")


def test_missing_values_have_a_mark_of_their_own():
    """One row in a hundred; fewer are counted where any change is worth an alarm."""
    rng = np.random.default_rng(RNG_SEED)
    before = rng.standard_normal(20_000)
    few, many = before.copy(), before.copy()
    few[:100], many[:400] = math.nan, math.nan

    reports = [drift({"x": before}, {"x": now}, method="ks") for now in (few, many)]

    assert [report.drifted for report in reports] == [[], ["x"]]
    assert drift({"x": before}, {"x": few}, method="ks", worth="any").drifted == ["x"]
    assert "missing 0 % -> 2 %" in repr(reports[1])


def test_profiles_that_keep_no_order_change_by_shares():
    """Counts on the bins of the reference are what is left."""
    known = Profile.of(shifted(20_000, 0))
    bare = Profile.of(shifted(20_000, 5), reference=known, sketch="none")

    effect = drift(known, bare)["kg"].effect

    assert effect is not None
    assert effect.unit == "share"
    assert 0.15 < effect.value < 0.25


@pytest.mark.parametrize("worth", ["always", 0.1, {"x": -1}, {"x": "much"}, {"x": math.inf}, {"x": True}, None])
def test_wrong_marks_are_refused(worth: Any):
    """Where they enter, in a suite too."""
    with pytest.raises(ConfigError, match="worth"):
        drift({"x": [1.0]}, {"x": [1.0]}, worth=worth)
    with pytest.raises(ConfigError, match="worth"):
        Suite().drift(worth=worth)


# Many columns ---------------------------------------------------------------------------------------------------


def test_raw_and_adjusted_p_values_are_both_shown():
    """Holm's: the smallest times the number of columns."""
    rng = np.random.default_rng(RNG_SEED)
    before = {name: rng.standard_normal(1_000) for name in "abcd"}
    now = {name: rng.normal(0.4 * (name == "c"), 1, 300) for name in "abcd"}

    report = drift(before, now)

    assert report.drifted == ["c"]
    assert report["c"].p == pytest.approx(4 * report["c"].raw_p)  # type: ignore[operator]
    answer = json.loads(report.to_json())["columns"][0]
    assert (answer["p"], answer["raw_p"]) == (report["c"].p, report["c"].raw_p)
    assert answer["effect"]["value"] == report["c"].effect.value  # type: ignore[union-attr]
    assert "p, adjusted" in report.to_html()
    assert f"p {report['c'].raw_p:.3g}, adjusted {report['c'].p:.3g}" in repr(report)


def test_columns_that_depend_on_each_other_alarm_no_more_often():
    """Twenty copies of one column: the chance of any alarm stays below alpha."""
    rng = np.random.default_rng(RNG_SEED)
    n_runs, n_alarms = times(60), 0
    for _ in range(n_runs):
        before, now = rng.standard_normal(300), rng.standard_normal(300)
        copies = [{str(i): side for i in range(20)} for side in (before, now)]
        n_alarms += not drift(*copies, method="psi", worth="any").ok

    assert n_alarms <= scipy.stats.binom.isf(1e-4, n_runs, 0.05)


def test_what_is_left_out_names_what_can_judge_it():
    """Text has no order; a column of structs has no values to compare."""
    words = {"word": ["a", "b"] * 50}

    found = drift(words, words, method="ks")["word"]
    structs = {"s": [{"a": 1}] * 100}

    assert found.verdict == "not applicable"
    assert found.note == "ks left out: text has no order; use psi, kl, js, chi2"
    assert drift(words, words)["word"].note == "ks left out: text has no order"
    assert drift(structs, structs)["s"].verdict == "not applicable"


# Windows of a stream --------------------------------------------------------------------------------------------


def test_the_parts_of_all_windows_are_alpha():
    """However many there are, none is nothing."""
    parts = [spent(0.05, window) for window in range(100_000)]

    assert sum(parts) < 0.05
    assert sum(parts) == pytest.approx(0.05, rel=0.1)
    assert min(parts) == parts[-1] > 0


def watch(per: str) -> Suite:
    return Suite("watch").drift(["x"], worth="any", per=per, severity="error").on(error="skip")  # type: ignore[arg-type]


def test_a_rate_per_stream_is_that_of_all_its_windows():
    """Forty windows without drift: per window nearly every stream alarms, per stream one in twenty."""
    rng = np.random.default_rng(RNG_SEED)
    n_runs = times(30, push=12)
    alarms = {"window": 0, "stream": 0}
    for _ in range(n_runs):
        known = Profile.of({"x": rng.standard_normal(2_000)})
        windows = [{"x": rng.standard_normal(200)} for _ in range(40)]
        for per in alarms:
            guard = watch(per).guard(known, window=200)
            alarms[per] += any(guard(rows).action == "skip" for rows in windows)

    assert alarms["window"] > 0.4 * n_runs
    assert alarms["stream"] <= scipy.stats.binom.isf(1e-3, n_runs, 0.075)


def test_a_stream_that_drifts_is_seen_however_late():
    """The parts grow small, and the p-value of a real change is far smaller."""
    rng = np.random.default_rng(RNG_SEED)
    guard = watch("stream").guard(Profile.of({"x": rng.standard_normal(10_000)}), window=500)
    guard.n_windows = 1_000

    assert guard({"x": rng.standard_normal(500)}).action == "log"
    assert guard({"x": rng.normal(0.5, 1, 500)}).action == "skip"


def test_a_resumed_stream_goes_on_spending_where_it_stopped():
    """Its state says which window comes next, so the verdicts are those of the stream that never stopped."""
    rng = np.random.default_rng(RNG_SEED)
    known = Profile.of({"x": rng.standard_normal(2_000)})
    windows = [{"x": rng.normal(0.02 * i, 1, 100)} for i in range(12)]
    straight, stopped = (watch("stream").guard(known, window=100) for _ in range(2))
    expected = [straight(rows).verdicts for rows in windows]

    found = []
    for rows in windows:
        resumed = watch("stream").guard(known, window=100)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        found.append(resumed(rows).verdicts)
        stopped = resumed

    assert found == expected
    used = [verdicts[0].measured["alpha"] for verdicts in found]
    assert used == [spent(0.05, window) for window in range(12)]


def test_suites_keep_what_a_change_is_worth(tmp_path: Any):
    """In a file, and its defaults are left out."""
    suite = Suite("s").drift(["x"], worth={"x": 2.5}, per="stream").drift(["y"], worth="any")
    suite.save(tmp_path / "suite.toml")

    assert Suite.load(tmp_path / "suite.toml") == suite
    assert suite.to_dict()["drift"][0]["worth"] == {"x": 2.5}
    assert "worth" not in Suite("s").drift(["x"]).to_dict()["drift"][0]
    with pytest.raises(ConfigError, match="per"):
        Suite().drift(per="epoch")  # type: ignore[arg-type]
