"""Moments agree with SciPy and pandas, merge and come apart; quantiles and distinct counts keep their bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from poolish.errors import CorruptDataError
from poolish.guards.stats.quantiles import Quantiles, Ranks
from poolish.guards.stats.sketches import LEAST_DIGITS, Distinct, Moments

pytestmark = pytest.mark.kernels

samples = nps.arrays(np.float64, st.integers(0, 80), elements=st.floats(-1e4, 1e4))


def close(a: Moments, b: Moments, scale: float) -> None:
    assert a.n == b.n
    for power, (found, wanted) in enumerate(zip(a.as_tuple[1:], b.as_tuple[1:], strict=True)):
        assert found == pytest.approx(wanted, rel=1e-8, abs=1e-9 * scale ** max(power + 1, 1), nan_ok=True)


# Against others -----------------------------------------------------------------------------------------------


def test_golden_moments():
    """The values that notes and other libraries agree on."""
    moments = Moments.of((0.22 * np.arange(500) + 3) ** 2)

    assert moments.kurtosis() == pytest.approx(-0.886863551914, abs=1e-9)
    assert moments.kurtosis(unbiased=True) == pytest.approx(-0.883699793600, abs=1e-9)
    assert moments.skewness() == pytest.approx(0.611624554658, abs=1e-9)
    assert moments.skewness(unbiased=True) == pytest.approx(0.613466489945, abs=1e-9)


@given(x=nps.arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e3, 1e3).map(lambda v: round(v, 3))))
def test_moments_are_scipys_and_pandas(x: np.ndarray):
    """Biased as SciPy has them, unbiased as pandas has them."""
    moments = Moments.of(x)

    assert moments.mean == pytest.approx(x.mean(), abs=1e-9)
    assert moments.variance() == pytest.approx(x.var(), rel=1e-9, abs=1e-9)
    if len(x) > 3 and x.std() > 1e-3 * max(abs(x).max(), 1e-9):
        assert moments.skewness() == pytest.approx(scipy.stats.skew(x), rel=1e-6, abs=1e-6)
        assert moments.kurtosis() == pytest.approx(scipy.stats.kurtosis(x), rel=1e-6, abs=1e-6)
        assert moments.variance(unbiased=True) == pytest.approx(pd.Series(x).var(), rel=1e-9)
        assert moments.kurtosis(unbiased=True) == pytest.approx(pd.Series(x).kurt(), rel=1e-6, abs=1e-6)


def test_moments_far_from_zero_do_not_cancel():
    """A billion away from zero, the variance is still that of the noise."""
    x = np.random.default_rng(0).standard_normal(100_000)

    assert Moments.of(x + 1e9).variance() == pytest.approx(x.var(), rel=1e-6)


def test_moments_of_nothing_and_of_constants_are_unknown():
    """NaN, and no warning."""
    assert math.isnan(Moments.of(np.empty(0)).mean)
    assert math.isnan(Moments().variance())
    assert Moments.of(np.full(9, 0.1)).variance() == 0.0
    assert math.isnan(Moments.of(np.full(9, 0.1)).kurtosis())
    assert math.isnan(Moments.of(np.array([1.0])).variance(unbiased=True))


def test_huge_values_keep_their_mean():
    """What overflows is infinite; what does not is right."""
    moments = Moments.of(np.array([1e308, -1e308, 1e308, 1e308] * 600))

    assert moments.mean == pytest.approx(0.5e308)
    assert moments.variance() == math.inf
    assert math.isnan(moments.kurtosis())


# Joining and parting ------------------------------------------------------------------------------------------


@given(a=samples, b=samples)
def test_merge_is_the_moments_of_both_and_subtract_undoes_it(a: np.ndarray, b: np.ndarray):
    """Either way, to rounding of the whole; what is left of the variance has the digits that it claims, or is NaN."""
    both, part = Moments.of(np.concatenate([a, b])), Moments.of(a)
    scale = 2e4

    merged = part.merge(Moments.of(b))
    left = merged.subtract(Moments.of(b))

    close(merged, both, scale)
    lost = {name: math.nan for name in vars(left) if math.isnan(getattr(left, name))}
    close(left, replace(part, **lost), scale)
    assert math.isnan(left.m2) == (left.digits < LEAST_DIGITS)
    if left.digits >= LEAST_DIGITS:
        assert left.m2 == pytest.approx(part.m2, rel=10**-left.digits)


@pytest.mark.parametrize(("n_left", "shift"), [(1_000_000, 0.0), (1_000, 0.0), (1_000, 1e6), (2, 1e9), (2, 1e13)])
def test_what_subtraction_leaves_says_how_many_digits_it_has(n_left: int, shift: float):
    """The smaller the rest and the further from zero, the fewer; without three of them a figure is NaN."""
    x = np.random.default_rng(0).normal(shift, 1, 2_000_000)
    whole, part, rest = Moments.of(x), Moments.of(x[n_left:]), Moments.of(x[:n_left])

    left = whole.subtract(part)

    if left.digits < LEAST_DIGITS:
        assert shift >= 1e9
        assert math.isnan(left.variance())
        assert math.isnan(left.kurtosis())
    else:
        assert left.variance() == pytest.approx(rest.variance(), rel=10**-left.digits)
    assert math.isnan(left.mean) or left.mean == pytest.approx(rest.mean, abs=2e-3)


def test_more_cannot_be_taken_than_is_there():
    """A part that is larger than the whole never was a part."""
    with pytest.raises(ValueError, match="cannot be taken out"):
        Moments.of(np.arange(3.0)).subtract(Moments.of(np.arange(4.0)))


# Quantiles ----------------------------------------------------------------------------------------------------


@given(x=nps.arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e300, 1e300)), q=st.floats(0, 1))
def test_few_values_give_numpys_quantiles(x: np.ndarray, q: float):
    """Type 7."""
    assert Quantiles.of(x).at(q) == pytest.approx(np.quantile(x, q), rel=1e-12, abs=1e-290)


@pytest.mark.parametrize("n_parts", [1, 2, 7, 60])
def test_summaries_keep_their_bound_through_merges(n_parts: int):
    """However the values came, no rank is wrong by more than ``error``, and the summary stays small."""
    rng = np.random.default_rng(n_parts)
    x = np.concatenate([rng.standard_normal(80_000), rng.integers(0, 5, 40_000)])
    rng.shuffle(x)

    merged = Quantiles.of(np.empty(0))
    for part in np.array_split(x, n_parts):
        merged = merged.merge(Quantiles.of(part))

    ordered = np.sort(x)
    values, reached = merged.ranked
    assert reached[-1] == merged.n == len(x)
    assert 0 < merged.error < 0.01
    assert len(values) < 7_000
    low = np.searchsorted(ordered, values, side="left")
    high = np.searchsorted(ordered, values, side="right")
    # Of equal values in the summary only the last knows how many rows lie at or before.
    is_last = np.append(np.diff(values) > 0, True)
    wrong = np.maximum(low - reached, reached - high)[is_last]
    assert wrong.max() <= merged.error * merged.n + 1


def test_summaries_can_be_made_twice():
    """The same rows in the same order give the same summary, to the last bit."""
    x = np.random.default_rng(0).standard_normal(50_000)

    once, again = (Quantiles.of(x[:25_000]).merge(Quantiles.of(x[25_000:])) for _ in range(2))

    assert once.to_json() == again.to_json()


@pytest.mark.parametrize("n", [0, 1, 10_000, 10_001])
def test_quantiles_survive_json(n: int):
    """Exact or summary."""
    before = Quantiles.of(np.random.default_rng(0).standard_normal(n))

    after = Quantiles.from_json(before.to_json())

    assert after.to_json() == before.to_json()
    assert after.is_exact == (n <= 10_000)


def test_quantiles_that_claim_other_counts_are_refused():
    """A level that is gone is seen."""
    state = Quantiles.of(np.arange(20_000.0)).to_json()

    with pytest.raises(CorruptDataError, match="do not hold"):
        Quantiles.from_json({**state, "levels": state["levels"][1:]})


SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "far from zero": lambda rng, n: rng.normal(1e9, 1, n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(n),
    "one tail": lambda rng, n: rng.lognormal(0, 3, n),
    "two heaps": lambda rng, n: np.where(rng.random(n) < 0.5, rng.normal(-1e6, 1, n), rng.normal(1e6, 1, n)),
    "whole": lambda rng, n: rng.integers(0, 5_000, n),
    "one value often": lambda rng, n: np.where(rng.random(n) < 0.2, 0.0, rng.standard_normal(n)),
    "in order": lambda rng, n: np.arange(n),
    "periodic": lambda rng, n: np.sin(np.arange(n)),
    "float32": lambda rng, n: rng.standard_normal(n).astype(np.float32),
    "with holes": lambda rng, n: np.where(rng.random(n) < 0.1, rng.choice([np.nan, np.inf], n), rng.random(n)),
    "huge": lambda rng, n: rng.choice([-1e308, 1e308], n) * rng.random(n),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_places_are_found_without_sorting(shape: str):
    """Deciles exactly, any other place to the slack that is stated; or it says that sorting is as quick."""
    x = SHAPES[shape](np.random.default_rng(0), 120_000)
    ordered = np.sort(x[np.isfinite(x)].astype(np.float64))
    shares = np.arange(1, 10) / 10

    ranks = Ranks.of(x, shares)

    if ranks is None:
        assert shape in ("heavy tails", "one tail", "two heaps", "whole", "huge")
        return
    assert ranks.n == len(ordered)
    np.testing.assert_allclose([ranks.quantile(share) for share in shares], np.quantile(ordered, shares), rtol=1e-12)
    assert ranks.slack <= len(ordered) / 4_096
    places = np.arange(0, ranks.n, 97)
    values = ranks.at(places)
    off = np.maximum(
        np.searchsorted(ordered, values, side="left") - places,
        places - np.searchsorted(ordered, values, side="right") + 1,
    )
    assert off.max() <= ranks.slack


# Distinct -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 999, 1_000, 1_001, 5_000, 50_000, 1_000_000])
def test_distinct_counts_are_exact_or_near(n: int):
    """Exact to a thousand, within four standard errors beyond."""
    words = np.random.default_rng(0).integers(0, 2**63, n).astype(np.uint64)
    found = Distinct.of(np.concatenate([words, words]))

    assert found.is_exact == (n <= 1_000)
    assert abs(found.estimate - n) <= 4 * found.error * n


@given(a=st.lists(st.integers(0, 3_000), max_size=300), b=st.lists(st.integers(0, 3_000), max_size=300))
def test_merged_distinct_counts_are_those_of_both(a: list[int], b: list[int]):
    """The order of merging never matters."""
    parts = [Distinct.of(np.array(part, np.uint64)) for part in (a, b)]

    merged = parts[0].merge(parts[1])

    assert merged.to_json() == parts[1].merge(parts[0]).to_json()
    assert merged.to_json() == Distinct.of(np.array(a + b, np.uint64)).to_json()
    assert merged.estimate == len({*a, *b})


def test_distinct_counts_near_those_of_datasketches():
    """Ours and a well-kept HyperLogLog agree within their errors."""
    import datasketches

    values = np.random.default_rng(0).integers(0, 40_000, 50_000)
    theirs = datasketches.hll_sketch(12)
    for value in values.tolist():
        theirs.update(value)

    assert Distinct.of(values.astype(np.uint64)).estimate == pytest.approx(theirs.get_estimate(), rel=0.08)
