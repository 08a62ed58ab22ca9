"""drift compares tables with one error rate for all columns; its tests alarm as often as they say they do."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.guards import Profile, drift, ks, psi
from poolish.guards.stats.drift import holm, missing_test
from tests.effort import times

pytestmark = pytest.mark.kernels


def table(rng: np.random.Generator, n: int, shift: float = 0.0) -> dict[str, object]:
    return {
        "same": rng.standard_normal(n),
        "moved": rng.normal(shift, 1, n),
        "word": rng.choice(["a", "b", "c"], n).tolist(),
        "n": rng.integers(0, 5, n),
    }


# The report ---------------------------------------------------------------------------------------------------


def test_the_column_that_moved_is_named_first():
    """And no other."""
    rng = np.random.default_rng(0)

    report = drift(table(rng, 5_000), table(rng, 1_000, shift=0.3))

    assert report.drifted == ["moved"]
    assert next(iter(report)) == "moved"
    assert not report.ok
    assert {name: column.verdict for name, column in report.items()} == {
        "moved": "drift",
        "same": "ok",
        "word": "ok",
        "n": "ok",
    }
    assert list(report["moved"].tests) == ["psi", "ks"]
    assert list(report["word"].tests) == ["psi"]
    assert report["moved"].value == report["moved"].tests["psi"].value
    assert report["moved"].moments[1].mean == pytest.approx(0.3, abs=0.1)  # type: ignore[union-attr]


def test_profiles_and_tables_give_the_same_report():
    """A reference need not be kept."""
    rng = np.random.default_rng(0)
    before, now = table(rng, 5_000), table(rng, 1_000, shift=0.3)
    known = Profile.from_json(Profile.of(before).to_json())

    reports = [drift(before, now), drift(known, pa.table(now)), drift(known, Profile.of(now, reference=known))]

    answers = [json.loads(report.to_json()) for report in reports]
    for answer in answers[1:]:
        for mine, other in zip(answers[0]["columns"], answer["columns"], strict=True):
            assert mine["name"] == other["name"]
            assert mine["p"] == pytest.approx(other["p"], rel=1e-9)
            assert mine["tests"]["psi"]["value"] == pytest.approx(other["tests"]["psi"]["value"], rel=1e-9)


def test_a_report_can_be_shown():
    """As text, JSON and HTML, hostile names included."""
    report = drift({"<i>": np.arange(100.0), "b": [None] * 100}, {"<i>": np.arange(100.0), "b": [None] * 100})

    assert "0 of 2 columns drifted" in repr(report)
    assert json.loads(report.to_json())["ok"] is True
    assert "&lt;i&gt;" in report.to_html()
    assert "<i>" not in report._repr_html_()
    assert drift({}, {}).ok
    assert "column" in drift({}, {}).to_html()


def test_missing_values_are_drift_of_their_own():
    """A changed share of None or NaN, also where nothing else is left to compare."""
    rng = np.random.default_rng(0)
    before = {"x": rng.standard_normal(1_000), "y": rng.standard_normal(1_000)}
    holes = before["x"].copy()
    holes[::10] = np.nan

    report = drift(before, {"x": holes, "y": [None] * 1_000}, method="ks")

    assert report.drifted == ["y", "x"]
    assert report["x"].missing == (0.0, 0.1)
    assert report["x"].missing_p < 1e-9  # type: ignore[operator]


def test_profiles_of_little_are_compared_by_what_they_have():
    """Columns that were all null, and windows that were taken out of others and keep no quantiles."""
    rng = np.random.default_rng(0)
    known = Profile.of({"x": rng.standard_normal(20_000), "empty": [None] * 20_000})
    parts = [Profile.of({"x": rng.standard_normal(1_000), "empty": [None] * 1_000}, reference=known) for _ in range(2)]

    report = drift(known, parts[0].merge(parts[1]).subtract(parts[1]))

    assert (report["x"].verdict, report["empty"].verdict) == ("ok", "constant")
    assert list(report["x"].tests) == ["psi"]
    assert "left out" in report["x"].note
    assert drift(known, {"x": [None] * 100, "empty": np.arange(100.0)}).drifted == ["empty", "x"]


def test_a_profile_decides_how_many_bins_there_are():
    """Unless asked otherwise."""
    rng = np.random.default_rng(0)
    for n in (1_000, 20_000):
        known = Profile.of({"x": rng.standard_normal(n)}, bins=20)

        assert drift(known, {"x": rng.standard_normal(100)})["x"].tests["psi"].bins == 20
        assert drift(known, {"x": rng.standard_normal(100)}, bins=5)["x"].tests["psi"].bins == 5


def test_only_chosen_columns_are_compared():
    """And an unknown one is an error, as are kinds that do not fit."""
    before, now = {"x": np.arange(100.0), "y": np.arange(100.0)}, {"x": np.arange(100.0)}

    assert list(drift(before, now, columns=["x"])) == ["x"]
    with pytest.raises(UnknownColumn, match="'y'"):
        drift(before, now)
    with pytest.raises(ConfigError, match="method"):
        drift(before, before, method="psi+gini")
    with pytest.raises(SchemaError, match="cannot be compared"):
        drift(before, {"x": ["a"] * 100, "y": np.arange(100.0)})
    with pytest.raises(UnknownColumn):
        drift(now, now)["z"]


def test_too_few_rows_are_no_verdict():
    """Insufficient, and constant where nothing ever changes; columns of other kinds are left out."""
    few = {"x": np.arange(10.0), "c": [1] * 10}
    many = {"x": np.arange(100.0), "c": [1] * 100}

    assert {column.verdict for column in drift(many, few).values()} == {"insufficient"}
    assert drift(many, many)["c"].verdict == "constant"
    assert drift(many, few, min_rows=5)["x"].verdict in ("ok", "drift")
    structs = {"s": [{"a": 1}] * 100}
    assert drift(structs, structs)["s"].note.startswith("not compared")


def test_effects_can_be_asked_for_by_method():
    """A difference that is too small by all that are asked for is no drift."""
    rng = np.random.default_rng(0)
    before, now = {"x": rng.standard_normal(50_000)}, {"x": rng.normal(0.05, 1, 50_000)}

    assert drift(before, now, worth="any").drifted == ["x"]
    assert drift(before, now, worth="any", effect_min={"psi": 0.1, "ks": 0.1}).drifted == []
    assert drift(before, now, worth="any", effect_min={"psi": 0.1}).drifted == ["x"]
    assert drift(before, now, convention="evidently-0.7", method="psi").drifted == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.001, 0.5))
def test_adjusted_p_values_are_holms(p_values: list[float], alpha: float):
    """Step by step: the smallest against alpha / k, the next against alpha / (k - 1), until one fails."""
    rejected = set()
    for place, i in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[i] * (len(p_values) - place) >= alpha:
            break
        rejected.add(int(i))

    adjusted = holm(p_values)

    assert {i for i, p in enumerate(adjusted) if p < alpha} == rejected  # type: ignore[operator]


def test_missing_shares_are_tested_as_two_proportions():
    """The square of z is Pearson's statistic without correction."""
    expected = scipy.stats.chi2_contingency([[10, 990], [30, 970]], correction=False).pvalue

    assert missing_test(1000, 10, 1000, 30) == pytest.approx(expected, rel=1e-9)
    assert missing_test(10, 0, 10, 0) is None
    assert missing_test(0, 0, 10, 1) is None


def test_drift_is_a_function_whichever_import_comes_first():
    """The module of the same name never hides it, and importing guards loads no Arrow."""
    program = (
        "import sys, poolish.guards as g; assert 'pyarrow' not in sys.modules;"
        "import poolish.guards.stats.drift; from poolish.guards.stats.drift import drift;"
        "assert g.drift is drift and callable(drift)"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


# How often it alarms --------------------------------------------------------------------------------------------

N_REFERENCE = 10_000
ALPHA = 0.05


def rejections(compare: object, n: int, n_runs: int, shift: float) -> int:
    """How many of so many samples are drift to the test; a new reference for every tenth, which chance draws too."""
    rng = np.random.default_rng(n)
    alarms = 0
    for run in range(n_runs):
        if run % 10 == 0:
            values = rng.standard_normal(N_REFERENCE)
            known = Profile.of({"x": values})["x"]
        alarms += bool(compare(known, rng.normal(shift, 1, n)))  # type: ignore[operator]
    return alarms


def is_plausible(alarms: int, n_runs: int, low: float, high: float) -> bool:
    """Whether a rate between two bounds could give so many alarms, all but once in ten thousand runs of the test."""
    at_least = scipy.stats.binom.ppf(5e-5, n_runs, low)
    at_most = scipy.stats.binom.isf(5e-5, n_runs, high)
    return bool(at_least <= alarms <= at_most)


@pytest.mark.parametrize("n", [50, 200, 1_000, 5_000])
@pytest.mark.parametrize("compare", [psi, ks], ids=["psi", "ks"])
def test_false_alarms_are_as_many_as_alpha_says(compare: object, n: int):
    """Between half of alpha and one and a half of it, at every size of the sample."""
    # SciPy counts the paths of every p-value, which takes it 30 ms at 5,000 rows.
    n_runs = times(400 if compare is psi else {50: 300, 200: 200, 1_000: 120, 5_000: 60}[n])

    alarms = rejections(compare, n, n_runs, shift=0.0)

    assert is_plausible(alarms, n_runs, ALPHA / 2, 1.5 * ALPHA), f"{alarms} of {n_runs}"


@pytest.mark.parametrize("compare", [psi, ks], ids=["psi", "ks"])
def test_a_shift_of_a_third_of_a_deviation_is_seen(compare: object):
    """Nineteen times out of twenty, at a thousand rows."""
    n_runs = times(60)

    assert rejections(compare, 1_000, n_runs, shift=0.3) >= 0.95 * n_runs


def test_many_columns_do_not_mean_many_alarms():
    """A hundred columns without drift: the whole table alarms about as often as one column would."""
    n_runs = times(8)
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(n_runs):
        before, now = ({f"c{i}": rng.standard_normal(n) for i in range(100)} for n in (1_000, 300))
        alarms += not drift(Profile.of(before), now, method="psi").ok

    assert alarms <= scipy.stats.binom.isf(1e-4, n_runs, 1.5 * ALPHA)
