"""Alarms are as rare as alpha says, on every kind of column, and p-values are those of the exact permutation test.

A part of what ``python -m benchmarks.drift_rates`` computes, whose tables are in docs/guards.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from benchmarks.drift_peers import PEERS
from benchmarks.drift_rates import (
    ALPHA,
    COLUMNS,
    PAGE,
    alarms,
    contenders,
    methods_for,
    pairs,
    profiled,
    written,
)
from poolish.guards import Profile, ks, psi, wasserstein
from poolish.guards.stats.distances import DISTANCES
from poolish.guards.stats.permutation import calibrate, draw
from poolish.guards.stats.samples import Bins
from poolish.seeds import generator
from tests.effort import times

pytestmark = pytest.mark.kernels

BY_NAME = {column.name: column for column in COLUMNS}
#: Kinds on which limits, or bins of the reference alone, alarm too often or never.
HARD = ("lognormal(0, 2)", "70 % zeros", "rounded, tied", "300 codes", "200 words", "1,000 words, Zipf")
each_method = pytest.mark.parametrize("method", DISTANCES)


def is_plausible(n_alarms: int, n_runs: int, low: float, high: float) -> bool:
    """Whether a rate between two bounds could give so many alarms, all but once in ten thousand runs of the test."""
    at_least = scipy.stats.binom.ppf(5e-5, n_runs, low)
    return bool(at_least <= n_alarms <= scipy.stats.binom.isf(5e-5, n_runs, high))


# How often they alarm -------------------------------------------------------------------------------------------


@each_method
def test_false_alarms_are_as_rare_as_alpha_says_on_hard_columns(method: str):
    """No kind of column alarms in more than 1.5 alpha of samples, small and unequal ones; all together in alpha."""
    n_runs, found = times(40, push=20), []
    for name in (name for name in HARD if method in methods_for(BY_NAME[name])):
        for n, m in ((60, 60), (30, 500)):
            rate, _ = alarms(method, pairs(BY_NAME[name], n, m, False, n_runs, seed=2))
            found.append(round(rate * n_runs))
            assert is_plausible(found[-1], n_runs, 0.0, 1.5 * ALPHA), f"{name}, {n} and {m}: {found[-1]} of {n_runs}"

    assert is_plausible(sum(found), n_runs * len(found), ALPHA / 2, 1.25 * ALPHA), f"{sum(found)} of {len(found)}"


@each_method
def test_false_alarms_against_a_large_profile_are_as_rare(method: str):
    """Of 20,000 rows a profile keeps counts and summaries, no values."""
    n_runs, found = times(40, push=20), []
    for name in ("normal", "99 % zeros", "200 words"):
        if method in methods_for(BY_NAME[name]):
            rate, _ = alarms(method, profiled(BY_NAME[name], n_runs))
            found.append(round(rate * n_runs))

    assert is_plausible(sum(found), n_runs * len(found), 0.0, 1.5 * ALPHA), found


@each_method
def test_p_values_are_those_of_permutations_of_the_same_statistic(method: str):
    """Called on random splits of both samples together, the method gives values that are larger with this chance."""
    rng, n_splits = generator(1, "splits"), times(199, push=99)
    compare = DISTANCES[method].compare
    for name in ("70 % zeros", "300 codes", "200 words"):
        if method not in methods_for(BY_NAME[name]):
            continue
        ((before, now),) = pairs(BY_NAME[name], 60, 60, True, 1, seed=5)
        pooled = np.concatenate([before, now])

        found = compare(before, now)
        splits = (np.split(rng.permutation(pooled), 2) for _ in range(n_splits))
        values = [compare(*(_like(before, side) for side in split), min_rows=2**60).value for split in splits]

        n_large = sum(value >= found.value * (1 - 1e-9) for value in values)
        assert found.p is not None
        assert is_plausible(n_large, n_splits, max(found.p - 0.03, 0.0), found.p + 0.03), f"{name}: {found.p}"


def _like(sample: object, values: np.ndarray) -> object:
    return values.tolist() if isinstance(sample, list) else values


@pytest.mark.parametrize("name", ["normal", "70 % zeros", "20 codes, Zipf", "200 words"])
def test_small_samples_choose_bins_together(name: str):
    """So neither has an advantage: PSI and chi2, which are symmetric, do not depend on which is the reference."""
    ((before, now),) = pairs(BY_NAME[name], 60, 100, True, 1, seed=6)

    for compare in (psi, DISTANCES["chi2"].compare):
        assert compare(before, now).value == pytest.approx(compare(now, before).value)


def test_ties_cost_no_power():
    """Where many values are equal, SciPy's p-value of ks is too large; ours sees what permutations see."""
    samples = pairs(BY_NAME["99 % zeros"], 1_000, 1_000, True, times(60, push=30), seed=3)

    ours, _ = alarms("ks", samples)
    theirs = np.mean([PEERS["scipy"](before, now) for before, now in samples])

    assert ours > theirs + 0.2


# Calibration ----------------------------------------------------------------------------------------------------


def _share_apart(counts: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.abs(counts[..., 0] / counts.sum(axis=-1) - others[..., 0] / others.sum(axis=-1))


def _pearson(counts: np.ndarray, others: np.ndarray) -> np.ndarray:
    pooled = (counts + others) / (counts + others).sum(axis=-1, keepdims=True)
    n, m = counts.sum(axis=-1, keepdims=True), others.sum(axis=-1, keepdims=True)
    return ((counts - n * pooled) ** 2 / (n * pooled) + (others - m * pooled) ** 2 / (m * pooled)).sum(axis=-1)


@pytest.mark.parametrize(("a", "b"), [((8, 2), (1, 5)), ((3, 997), (12, 988)), ((0, 50), (4, 46))])
def test_two_cells_are_fishers_exact_test(a: tuple[int, int], b: tuple[int, int]):
    """Every possible draw is counted, so nothing is random; ties of the statistic are on both sides."""
    counts, others = np.array(a), np.array(b)
    hypergeometric = scipy.stats.hypergeom(sum(a) + sum(b), a[0] + b[0], sum(b))
    drawn = np.arange(a[0] + b[0] + 1)
    values = np.abs((a[0] + b[0] - drawn) / sum(a) - drawn / sum(b))
    expected = hypergeometric.pmf(drawn)[values >= _share_apart(counts, others) - 1e-12].sum()

    found = calibrate(_share_apart, counts, others, ALPHA)

    assert found.p == pytest.approx(expected, rel=1e-9)
    assert found.draws == 0


def test_many_rows_in_every_cell_are_pearsons_limit():
    """The p-value that permutations give is chi-square's there, and near it far below what draws can count."""
    for shift, ratio in ((5, 1.3), (25, 1.3), (60, 1.5), (120, 10)):
        counts, others = np.array([500, 500, 500, 500]), np.array([500 + shift, 500, 500, 500 - shift])
        expected = scipy.stats.chi2_contingency(np.stack([counts, others]), correction=False).pvalue

        found = calibrate(_pearson, counts, others, ALPHA)

        assert expected / ratio < found.p < expected * ratio


def test_no_drift_costs_few_draws_and_the_same_samples_give_the_same_p():
    """It stops once the p-value cannot be below alpha any more; the generator is seeded."""
    counts, others = np.array([5, 7, 6, 8]), np.array([6, 6, 7, 7])

    found = [calibrate(_pearson, counts, others, ALPHA) for _ in range(2)]

    assert found[0] == found[1]
    assert found[0].p > 0.5
    assert found[0].draws <= 100


def test_draws_of_more_rows_than_numpy_takes_have_the_same_shares():
    """Beyond a billion rows."""
    totals = np.array([2_000_000_000, 1_000_000_000, 40])

    drawn = draw(generator(0, "test"), totals, 500_000_000, 100)

    assert drawn.sum(axis=1) / 5e8 == pytest.approx(np.ones(100), abs=1e-3)
    assert (drawn <= totals).all()


# What cannot be judged ------------------------------------------------------------------------------------------


def test_texts_that_never_repeat_cannot_be_judged_by_their_shares():
    """The verdict says so, and what to compare instead."""
    before, now = ([f"{side} {i}" for i in range(200)] for side in "ab")

    found = psi(before, now)

    assert (found.verdict, found.p, bool(found)) == ("not applicable", None, False)
    assert "lengths by ks" in found.problem
    assert found.to_json()["problem"] == found.problem


def test_texts_of_which_a_profile_kept_only_some_cannot_be_judged():
    """It keeps the thousand most frequent of 3,000, by chance: no word is surely one of them."""
    rng = np.random.default_rng(0)
    words = np.char.add("w", rng.integers(0, 3_000, 30_000).astype(str))
    known = Profile.of({"x": words.tolist()})["x"]

    found = psi(known, np.char.add("w", rng.integers(0, 3_000, 2_000).astype(str)).tolist())

    assert found.verdict == "not applicable"
    assert "compare the texts themselves" in found.problem


def test_frequent_words_of_a_truncated_profile_are_judged():
    """Those that are clearly among the thousand, and all others together."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, 3_001)

    def words(n: int) -> list[str]:
        return np.char.add("w", rng.choice(3_000, n, p=weights / weights.sum()).astype(str)).tolist()

    known = Profile.of({"x": words(30_000)})["x"]
    n_runs = times(30)
    n_alarms = sum(bool(psi(known, words(500))) for _ in range(n_runs))

    assert is_plausible(n_alarms, n_runs, 0.0, 1.5 * ALPHA)
    assert psi(known, [*words(400), *["w7"] * 100]).verdict == "drift"


def test_wasserstein_refuses_a_summary_that_lost_heavy_tails():
    """A profile keeps ranks, and the area is in the extremes; it names what can judge them."""
    rng = np.random.default_rng(0)
    known = Profile.of({"x": rng.standard_cauchy(50_000)})["x"]
    now = rng.standard_cauchy(1_000)

    found = wasserstein(known, now)

    assert found.verdict == "not applicable"
    assert "use ks, psi or values" in found.problem
    assert ks(known, now).verdict == "ok"


# Lists and tensors ----------------------------------------------------------------------------------------------


def images(rng: np.random.Generator, n: int, shift: float = 0.0) -> np.ndarray:
    """Pictures, some darker than others: the pixels of one resemble each other."""
    return rng.normal(shift, 1, (n, 1, 1)) + rng.standard_normal((n, 4, 4))


def episodes(rng: np.random.Generator, n: int, shift: float = 0.0) -> list[list[float] | None]:
    """Rewards of good and bad episodes; some rows are null, some empty."""
    lengths = rng.integers(0, 12, n)
    rows = [(rng.normal(shift, 1) + rng.standard_normal(length)).tolist() for length in lengths]
    return [None if length == 3 else row for length, row in zip(lengths, rows, strict=True)]


@each_method
@pytest.mark.parametrize("rows", [images, episodes])
@pytest.mark.parametrize("profile", [False, True])
def test_elements_of_one_row_are_no_samples_of_their_own(method: str, rows: Any, profile: bool):
    """Taken as such, sixteen like pixels would be sixteen times the evidence, and four in five windows alarms."""
    rng, n_runs, n_alarms = np.random.default_rng(4), times(40, push=12), 0
    compare = DISTANCES[method].compare
    for _ in range(n_runs):
        before = rows(rng, 150)
        n_alarms += bool(compare(Profile.of({"x": before})["x"] if profile else before, rows(rng, 100)))

    found = compare(before, rows(rng, 100, 1.5))

    assert is_plausible(n_alarms, n_runs, 0.0, 1.5 * ALPHA)
    assert (found.verdict, found.basis, found.n, found.m) == ("drift", "permutation", 150, 100)


@each_method
def test_two_profiles_of_lists_cannot_be_judged(method: str):
    """Neither knows which elements belong together; it says what does."""
    rng = np.random.default_rng(0)
    known = Profile.of({"x": images(rng, 200)})

    found = DISTANCES[method].compare(known["x"], Profile.of({"x": images(rng, 200)}, reference=known)["x"])

    assert found.verdict == "not applicable"
    assert "one number for each row by ks" in found.problem


# Frequent values ------------------------------------------------------------------------------------------------


def test_a_value_that_fills_bins_has_one_of_its_own():
    """Of a column that is nearly always zero, a profile counts what is not; its bins are called by the value."""
    rng = np.random.default_rng(0)

    def rarely(n: int, share: float) -> np.ndarray:
        return np.where(rng.random(n) < share, rng.exponential(1.0, n), 0.0)

    known = Profile.of({"x": rarely(200_000, 0.01)})["x"]

    assert known.histogram is not None
    assert known.histogram.labels == ["-inf .. 0", "0", "4.94066e-324 .. inf"]
    assert psi(known, rarely(5_000, 0.02)).verdict == "drift"
    assert psi(known, rarely(5_000, 0.01)).verdict == "ok"
    assert Bins.of_quantiles(np.array([1e308] * 9 + [math.inf]), 4).edges is not None


def test_the_page_has_the_tables_that_the_benchmark_writes():
    """Every column, method and library has its figures in docs/guards.md."""
    page = PAGE.read_text()
    for name, lines in (
        ("drift rates", [column.name for column in COLUMNS]),
        ("drift power", [column.name for column in COLUMNS]),
        ("drift peers", list(contenders())),
    ):
        part = page.split(f"<!-- {name} -->")[1].split("<!-- end -->")[0]
        found = [line.split(" | ")[0].removeprefix("| ") for line in part.strip().splitlines()[2:]]

        assert found == lines


def test_the_tables_of_the_page_are_replaced_between_their_marks():
    """And a page without such a place is an error."""
    page = "before\n<!-- rates -->\nold\n<!-- end -->\nafter"

    assert written(page, {"rates": "new"}) == "before\n<!-- rates -->\nnew\n<!-- end -->\nafter"
    with pytest.raises(ValueError, match="0 places for 'power'"):
        written(page, {"power": "new"})
