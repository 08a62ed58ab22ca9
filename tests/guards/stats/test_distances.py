"""Each statistic hits its golden values, SciPy's and Evidently's, and never answers with an exception or a warning."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.spatial.distance
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from poolish.errors import ConfigError, SchemaError
from poolish.guards import Profile, chi2, js, kl, ks, psi, wasserstein
from poolish.guards.stats.distances import DISTANCES
from poolish.guards.stats.significance import Comparison

pytestmark = pytest.mark.kernels

REFERENCE = np.arange(1000) / 10
CURRENT = 0.22 * np.arange(500) + 3
LETTERS = ["a"] * 70 + ["b"] * 30
OTHERS = ["a"] * 50 + ["b"] * 40 + ["c"] * 10
EVIDENTLY = "evidently-0.7"

ALL: list[Callable[..., Comparison]] = [distance.compare for distance in DISTANCES.values()]
BINNED = [distance.compare for distance in DISTANCES.values() if not distance.needs_order]
each = pytest.mark.parametrize("compare", ALL, ids=lambda function: function.__name__)


def digits(value: float) -> Any:
    return pytest.approx(value, abs=1e-9, rel=1e-9)


# Golden values ------------------------------------------------------------------------------------------------


def test_golden_values_of_our_convention():
    """Deciles of the reference, Jeffreys' smoothing, a threshold that knows both sizes."""
    found = psi(REFERENCE, CURRENT)
    surprise = kl(REFERENCE, CURRENT)
    steps = ks(REFERENCE, CURRENT)

    assert (found.value, found.threshold) == (digits(0.100214448965), digits(0.050756932814))
    assert (found.n, found.m, found.bins, found.convention) == (1000, 500, 10, "poolish")
    assert surprise.value == surprise.current_from_reference == digits(0.054149684178)
    assert surprise.reference_from_current == digits(0.046064764787)
    assert steps.value == digits(0.118)
    assert steps.p == pytest.approx(1.784226643478e-04, rel=1e-9)
    assert ks(REFERENCE, CURRENT, method="asymp").p == pytest.approx(1.696294275075e-04, rel=1e-9)
    histogram = Profile.of({"x": CURRENT}, reference=Profile.of({"x": REFERENCE}))["x"].histogram
    np.testing.assert_allclose(histogram.edges, 9.99 * np.arange(1, 10))
    assert histogram.counts.tolist() == [32, 46, 45, 45, 46, 45, 46, 45, 46, 104]


@pytest.mark.parametrize(
    ("compare", "numbers", "letters"),
    [
        (psi, 0.612688689634, 0.786147406940),
        (kl, 0.101700461797, 0.148420321339),
        (js, 0.183892124920, 0.215901330056),
    ],
)
def test_golden_values_of_evidently(compare: Callable[..., Comparison], numbers: float, letters: float):
    """Equal widths over both samples, zeros filled its way."""
    found = compare(REFERENCE, CURRENT, convention=EVIDENTLY)

    assert found.value == digits(numbers)
    assert (found.bins, found.threshold, found.verdict) == (12, 0.1, "drift")
    assert compare(LETTERS, OTHERS, convention=EVIDENTLY).value == digits(letters)


def test_golden_values_of_evidently_without_bins():
    """Wasserstein's distance by the reference's deviation, and the divergence in bits that TFDV would have."""
    assert wasserstein(REFERENCE, CURRENT, convention=EVIDENTLY).value == digits(0.275049805767)
    assert js(REFERENCE, CURRENT, convention=EVIDENTLY).bits == digits(0.048786627943)


# SciPy --------------------------------------------------------------------------------------------------------


@given(
    counts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=2, max_size=8).filter(
        lambda c: any(a for a, _ in c) and any(b for _, b in c)
    )
)
def test_unsmoothed_divergences_are_scipys(counts: list[tuple[int, int]]):
    """``convention="scipy"``: infinite where the reference has nothing, as SciPy says."""
    names = [chr(ord("a") + i) for i in range(len(counts))]
    before = [name for name, (n, _) in zip(names, counts, strict=True) for _ in range(n)]
    now = [name for name, (_, n) in zip(names, counts, strict=True) for _ in range(n)]
    p = np.array([n for n, _ in counts], float)
    # Values that the reference does not have share one bin.
    known = p > 0
    q = np.append(np.array([n for _, n in counts], float)[known], sum(n for m, n in counts if not m))
    p = np.append(p[known], 0.0)

    divergence = kl(before, now, convention="scipy")
    distance = js(before, now, convention="scipy")

    assert divergence.current_from_reference == pytest.approx(scipy.stats.entropy(q, p), abs=1e-9)
    assert distance.value == pytest.approx(scipy.spatial.distance.jensenshannon(p, q), abs=1e-6)
    if sum(known) > 1 or q[-1]:
        table = np.stack([p, q])[:, (p + q) > 0]
        expected = scipy.stats.chi2_contingency(table, correction=False)
        found = chi2(before, now, convention="scipy")
        assert (found.value, found.df) == (pytest.approx(expected.statistic, abs=1e-9), expected.dof)
        assert found.p == pytest.approx(expected.pvalue, abs=1e-12)


@given(
    a=nps.arrays(np.float64, st.integers(50, 120), elements=st.floats(-100, 100)),
    b=nps.arrays(np.float64, st.integers(50, 120), elements=st.floats(-100, 100)),
    places=st.integers(0, 4),
)
def test_distances_of_distribution_functions_are_scipys(a: np.ndarray, b: np.ndarray, places: int):
    """Kolmogorov and Smirnov's with its p-value, Wasserstein's; with ties."""
    a, b = a.round(places), b.round(places)
    with warnings.catch_warnings(action="ignore"):  # SciPy's, that it had to use the limit after all
        expected = scipy.stats.ks_2samp(a, b)

    found = ks(a, b, convention="scipy")

    assert found.value == pytest.approx(expected.statistic, abs=1e-12)
    if found.verdict != "constant":
        assert found.p == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-12)
    distance = wasserstein(a, b, convention="scipy")
    assert distance.value == pytest.approx(scipy.stats.wasserstein_distance(a, b), rel=1e-9, abs=1e-9)


def test_large_samples_use_the_limit():
    """As SciPy does beyond ten thousand."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(12_000), rng.normal(0.03, 1, 12_000)

    found, expected = ks(a, b), scipy.stats.ks_2samp(a, b, method="asymp")

    assert (found.value, found.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))


# Verdicts -----------------------------------------------------------------------------------------------------


@each
def test_drift_is_seen_and_no_drift_is_not(compare: Callable[..., Comparison]):
    """The verdict, what it rests on, and that it is true or false."""
    rng = np.random.default_rng(1)
    before, same, shifted = rng.standard_normal(2_000), rng.standard_normal(1_000), rng.normal(0.5, 1, 1_000)

    calm, alarm = compare(before, same), compare(before, shifted)

    assert (calm.verdict, calm.significant, bool(calm)) == ("ok", False, False)
    assert (alarm.verdict, alarm.significant, bool(alarm)) == ("drift", True, True)
    assert calm.value < calm.threshold < alarm.value
    assert alarm.p < 0.05 <= calm.p  # type: ignore[operator]


@each
def test_effects_too_small_to_matter_are_no_drift(compare: Callable[..., Comparison]):
    """Significant and material are two questions."""
    rng = np.random.default_rng(1)
    before, now = rng.standard_normal(60_000), rng.normal(0.05, 1, 60_000)

    plain, asked = compare(before, now), compare(before, now, effect_min=0.4)

    assert (plain.verdict, plain.material) == ("drift", None)
    assert (asked.verdict, asked.significant, asked.material) == ("ok", True, False)
    assert compare(before, now + 3, effect_min=0.15).material


ODD_SAMPLES: list[tuple[list[Any], list[Any], str]] = [
    ([], [], "insufficient"),
    ([1.0], [2.0], "insufficient"),
    ([np.nan] * 10, [1.0] * 10, "insufficient"),
    ([1.0] * 29, [2.0] * 100, "insufficient"),
    ([3.0] * 100, [3.0] * 100, "constant"),
    ([1e308, -1e308] * 50, [1e308, -1e308] * 50, "ok"),
    ([0, 1] * 50, [0, 1] * 50, "ok"),
    ([True, False] * 50, [True, False] * 50, "ok"),
]


@each
def test_odd_samples_have_verdicts(compare: Callable[..., Comparison]):
    """By every convention, never an exception, never a warning (pytest makes them errors)."""
    for convention in ("poolish", "scipy", EVIDENTLY):
        found = [compare(before, now, convention=convention).verdict for before, now, _ in ODD_SAMPLES]

        assert found == [verdict for _, _, verdict in ODD_SAMPLES], convention


@each
def test_any_values_are_compared(compare: Callable[..., Comparison]):
    """NaN, infinities, huge and tiny numbers, nulls, on either side."""
    wild = [np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 0.0, -0.0, None, *range(100)]
    for before, now in ((wild, wild), (wild, list(range(100))), (list(range(100)), wild)):
        found = compare(pa.array(before, pa.float64()), pa.array(now, pa.float64()))

        assert found.verdict in ("ok", "drift")
        assert not math.isnan(found.value)


def test_a_constant_that_changed_is_drift():
    """Only where both sides hold the same single value there is nothing to judge."""
    for compare in ALL:
        assert compare([3.0] * 100, [4.0] * 100).verdict == "drift"
        assert compare([3.0] * 100, [3.0] * 50 + [4.0] * 50).verdict == "drift"


def test_missing_values_are_a_bin_of_their_own():
    """More None and NaN than before is drift, also if the values that are there did not change."""
    rng = np.random.default_rng(0)
    before, now = rng.standard_normal(1_000), rng.standard_normal(1_000)
    now[:100] = np.nan

    found = psi(before, now)

    assert (found.verdict, found.bins) == ("drift", 11)
    assert ks(before, now).missing == (0, 100)
    assert psi(before, [None] * 1_000).verdict == "drift"
    assert psi([None] * 100, [None] * 100).verdict == "constant"


def test_text_is_compared_by_its_values():
    """New values share a bin; an order there is none."""
    assert psi(LETTERS, LETTERS).verdict == "ok"
    assert psi(LETTERS, OTHERS).bins == 3
    for compare in (ks, wasserstein):
        with pytest.raises(SchemaError, match="use psi"):
            compare(LETTERS, OTHERS)
    with pytest.raises(SchemaError, match="cannot be compared"):
        psi(LETTERS, [1.0, 2.0])


@pytest.mark.parametrize(
    "options",
    [
        {"convention": "tfdv"},
        {"alpha": 0},
        {"alpha": 1.5},
        {"effect_min": -1},
        {"bins": 1},
        {"bins": [2, 1]},
        {"bins": "x"},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]):
    """Where they enter."""
    with pytest.raises(ConfigError):
        psi(REFERENCE, CURRENT, **options)


def test_bins_can_be_given():
    """A number, or inner edges."""
    assert psi(REFERENCE, CURRENT, bins=20).bins == 20
    assert psi(REFERENCE, CURRENT, bins=[10.0, 90.0]).bins == 3


def test_results_are_json():
    """Also where a number is infinite."""
    found = kl(["a"] * 60, ["b"] * 60, convention="scipy")

    assert found.value == math.inf
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["value"] == "inf"


# Profiles as sides --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compare", ALL, ids=lambda function: function.__name__)
@pytest.mark.parametrize("n", [3_000, 40_000])
def test_profiles_answer_as_their_values_do(compare: Callable[..., Comparison], n: int):
    """With frozen bins exactly; by summaries to their error."""
    rng = np.random.default_rng(0)
    before, now = rng.standard_normal(n), rng.normal(0.1, 1, n)
    known = Profile.of({"x": before})
    seen = Profile.of({"x": now}, reference=known)

    exact = compare(before, now)
    sides = [compare(known["x"], now), compare(known["x"], seen["x"])]
    if n <= 10_000:
        sides.append(compare(before, Profile.of({"x": now})["x"]))

    for found in sides:
        if compare in BINNED or n <= 10_000:
            assert found.value == pytest.approx(exact.value, rel=1e-9)
        else:
            assert found.value == pytest.approx(exact.value, abs=0.002)
        assert (found.n, found.m, found.verdict) == (exact.n, exact.m, exact.verdict)


def test_summaries_give_no_p_value_that_they_cannot_know():
    """Where the error of the summaries is no small part of the threshold, only a clear difference is drift."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(2_000_000), rng.standard_normal(2_000_000)
    sides = [Profile.of({"x": values})["x"] for values in (a, b, b + 0.05)]

    calm, alarm = ks(sides[0], sides[1]), ks(sides[0], sides[2])

    assert calm.p is None
    assert calm.error > 0.1 * calm.threshold
    assert abs(calm.value - ks(a, b).value) <= calm.error
    assert (calm.verdict, alarm.verdict) == ("not applicable", "drift")
    assert "use psi" in calm.problem
    small = Profile.of({"x": a[:30_000]})["x"]
    assert ks(small, small).p is not None


def test_profiles_on_other_bins_are_refused_where_nothing_is_known():
    """With what to do."""
    rng = np.random.default_rng(0)
    known = Profile.of({"x": rng.integers(0, 9, 20_000)})
    many = Profile.of({"x": rng.standard_normal(20_000)})

    estimated = psi(known["x"], many["x"])
    assert estimated.verdict == "not applicable"
    assert "reference=" in estimated.problem
    with pytest.raises(SchemaError, match="every value"):
        psi(many["x"], many["x"], convention=EVIDENTLY)
    bare = Profile.of({"x": rng.standard_normal(20_000)}, reference=many, sketch="none")
    assert psi(many["x"], bare["x"]).verdict == "ok"
    with pytest.raises(SchemaError, match="no quantiles"):
        ks(many["x"], bare["x"])


def test_what_needs_no_tables_works_without_scipy():
    """Profiles, outliers, Wasserstein's distance and Evidently's marks do; the others say what to install."""
    program = """
import sys
sys.modules.update({name: None for name in ("scipy", "scipy.special", "scipy.stats", "sklearn", "datasketches")})
import numpy as np
from poolish.guards import Profile, iqr, modified_zscore, psi, wasserstein, zscore
x = np.arange(20_000.0)
assert Profile.of({"x": x})["x"].kurtosis < 0
assert zscore(x).count == iqr(x).count == modified_zscore(x).count == 0
assert wasserstein(x, x + 5_000).verdict == "drift"
assert psi(x, x + 5_000, convention="evidently-0.7").verdict == "drift"
try:
    psi(x, x)
except ImportError as error:
    assert "pip install poolish[guards]" in str(error)
else:
    raise AssertionError("no error")
"""

    subprocess.run([sys.executable, "-c", program], check=True)
