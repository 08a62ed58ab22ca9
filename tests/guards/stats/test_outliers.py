"""Outliers of one column: golden values, SciPy, and what each rule does where it has nothing to stand on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from poolish.errors import ConfigError, SchemaError
from poolish.guards import Outliers, iqr, modified_zscore, zscore
from poolish.guards.stats.outliers import fences

X = [2, 4, 4, 4, 5, 5, 7, 9, 50]
Y = [5] * 8 + [6, 20]

RULES: list[Callable[..., Outliers]] = [zscore, iqr, modified_zscore]
each = pytest.mark.parametrize("rule", RULES, ids=lambda function: function.__name__)


def test_golden_scores():
    """Of the two samples in the notes."""
    assert zscore(X).scores[-1] == pytest.approx(2.643274401820, abs=1e-9)
    assert zscore(X, convention="scipy").scores[-1] == pytest.approx(2.803615881096, abs=1e-9)
    assert modified_zscore(X).scores[-1] == pytest.approx(30.3525, abs=1e-9)
    assert fences(np.array(X)) == (-0.5, 11.5)
    assert modified_zscore(Y).scores[-1] == pytest.approx(7.480168577068, abs=1e-9)
    assert "mean distance" in modified_zscore(Y).notes[0]


@given(x=nps.arrays(np.float64, st.integers(3, 50), elements=st.floats(-1e3, 1e3).map(lambda v: round(v, 2))))
def test_scores_are_scipys(x: np.ndarray):
    """z with ddof 0 and 1; the median's with the constant of the normal distribution."""
    if np.ptp(x) > 0:  # the standard deviation of equal numbers may be rounded to more than 0
        np.testing.assert_allclose(zscore(x, convention="scipy").scores, scipy.stats.zscore(x), atol=1e-9)
        np.testing.assert_allclose(zscore(x).scores, scipy.stats.zscore(x, ddof=1), atol=1e-9)
    mad = scipy.stats.median_abs_deviation(x, scale="normal")
    if mad > 0:
        expected = (x - np.median(x)) / mad
        np.testing.assert_allclose(modified_zscore(x, scale="normal").scores, expected, rtol=1e-9, atol=1e-9)


@each
def test_what_is_far_out_is_found(rule: Callable[..., Outliers]):
    """And nothing else is."""
    x = np.concatenate([np.random.default_rng(0).uniform(0, 1, 200), [30.0]])

    found = rule(x)

    assert found.mask.nonzero()[0].tolist() == [200]
    assert found.count == 1
    assert "1 of 201" in repr(found)
    assert found.scores[200] > found.threshold


@each
@pytest.mark.parametrize("make", [list, np.array, pd.Series, lambda x: pa.array(x), lambda x: pa.chunked_array([x])])
def test_values_come_in_many_forms(rule: Callable[..., Outliers], make: Callable[..., Any]):
    """One answer for each row."""
    assert rule(make([1.0] * 5 + [2.0] * 5 + [3.0] * 5 + [99.0])).mask.tolist() == [False] * 15 + [True]


@each
@pytest.mark.parametrize("make", [list, lambda x: pa.array(x), lambda x: pa.chunked_array([x[:3], x[3:]])])
def test_missing_values_are_no_outliers_and_infinities_are(rule: Callable[..., Outliers], make: Callable[..., Any]):
    """Neither moves the mean."""
    values = [None, math.inf, -math.inf, *(float(i % 7) for i in range(60)), math.nan]

    found = rule(make(values))

    assert found.mask.tolist() == [False, True, True] + [False] * 61
    assert np.isnan(found.scores[[0, -1]]).all()
    assert np.isfinite(found.scores[3:-1]).all()


@each
def test_odd_columns_have_no_outliers(rule: Callable[..., Outliers]):
    """And no warnings."""
    for values in ([], [1.0], [None], [math.nan] * 3, [7.0] * 20, [1e308, -1e308] * 10, [True, False]):
        found = rule(values)

        assert (len(found), found.count) == (len(values), 0)


@each
def test_huge_values_are_distinguished(rule: Callable[..., Outliers]):
    """Near the end of float64 as anywhere."""
    x = np.concatenate([np.random.default_rng(0).uniform(0, 1e306, 300), [1.5e308]])

    assert rule(x).mask.nonzero()[0].tolist() == [300]


def test_thresholds_that_cannot_be_reached_are_noted():
    """Ten values have no z beyond 2.85, whatever they are."""
    found = zscore([0.0] * 9 + [1e9])

    assert (found.is_reachable, found.count) == (False, 0)
    assert "no |z|" in found.notes[0]
    assert zscore([0.0] * 10 + [1e9]).is_reachable
    assert zscore([0.0] * 10 + [1e9]).count == 1


def test_equal_quartiles_leave_it_to_the_median():
    """Where more than half of the values are the same, a box has no width; the result says who decided."""
    found = iqr(Y)

    assert found.method == "modified_zscore"
    assert found.mask.nonzero()[0].tolist() == [9]
    assert "quartiles are equal" in found.notes[0]
    assert iqr(Y, convention="gx").mask.nonzero()[0].tolist() == [8, 9]


def test_values_on_the_fence():
    """Inside for quartiles; by Great Expectations' z outside."""
    x = [2.0, 4, 4, 4, 5, 5, 7, 9, 11.5]
    low, high = fences(np.array(x))
    z = float(zscore(X).scores[-1])

    assert not iqr([*x[:-1], high]).mask[-1] or fences(np.array([*x[:-1], high]))[1] < high
    assert not zscore(X, threshold=z).mask[-1]
    assert zscore(X, threshold=z, convention="gx").mask[-1]
    assert low < high


def test_wrong_arguments_are_refused():
    """Where they enter."""
    with pytest.raises(ConfigError, match="convention"):
        iqr(X, convention="tfdv")
    with pytest.raises(ConfigError, match="threshold"):
        zscore(X, threshold=0)
    with pytest.raises(ConfigError, match="scale"):
        modified_zscore(X, scale="iqr")
    with pytest.raises(SchemaError, match="text"):
        zscore(["a", "b"])
    with pytest.raises(SchemaError, match="one number"):
        zscore(np.zeros((3, 2)))
