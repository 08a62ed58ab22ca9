"""Drawings of columns: densities over equal widths, and a "~" before estimates."""

from __future__ import annotations

import re

import numpy as np
import pytest

from poolish.guards import Profile
from poolish.guards.stats.drawing import N_BARS, bars_of, draw, figure

RNG = np.random.default_rng(0)


def bars(values):
    found = bars_of(Profile.of({"x": values})["x"])
    assert found is not None
    return found


@pytest.mark.parametrize("n_rows", [2_000, 200_000])
def test_a_column_is_drawn_as_its_density(n_rows: int):
    """Not as counts of quantile bins, which are all equal: a bell is a bell, exact or from a sketch."""
    x = RNG.normal(size=n_rows)

    drawn = bars(x)

    expected, _ = np.histogram(x, np.linspace(x.min(), x.max(), N_BARS + 1))
    np.testing.assert_allclose(np.diff(drawn.edges), np.diff(drawn.edges)[0])
    np.testing.assert_allclose(drawn.counts, expected, atol=0 if drawn.is_exact else 0.01 * n_rows)
    assert sum(drawn.counts) == pytest.approx(n_rows, rel=0.01)
    assert max(drawn.counts) > 10 * (drawn.counts[0] + drawn.counts[-1])


def test_far_tails_do_not_flatten_the_rest():
    """The drawing is of where the values are, and says how many lie outside."""
    x = RNG.standard_cauchy(2_000)

    drawn = bars(x)

    assert x.min() < drawn.ends[0] < drawn.ends[1] < x.max()
    assert 0 < drawn.beyond < 100
    assert sum(drawn.counts) + drawn.beyond == 2_000
    assert sum(count > 20 for count in drawn.counts) >= 2
    assert "of them outside of this range" in str(draw(Profile.of({"x": x})["x"]))


def test_few_whole_numbers_have_a_bar_each():
    """Zeros among them, and one value alone."""
    assert bars(np.array([0, 0, 2])).counts == [2, 0, 1]
    assert bars(np.array([7, 7])).counts == [2]


def test_bars_of_whole_numbers_hold_as_many_of_them_each():
    """Else a flat column would look like a saw."""
    counts = bars(np.arange(60)).counts

    assert counts == [3] * 20


def test_words_are_drawn_by_how_often_they_come():
    """The most frequent first; those without a bar are counted."""
    words = [f"w{i}" for i in range(40) for _ in range(40 - i)]

    drawn = bars(words)

    assert drawn.counts == list(range(40, 20, -1))
    assert (drawn.ends[0], drawn.beyond) == ("w0", sum(range(1, 21)))


def test_a_part_taken_out_is_still_drawn():
    """Its range is not known any more: the open bins at both ends are left out and counted."""
    whole = Profile.of({"x": RNG.normal(size=3_000)})
    part = Profile.of({"x": RNG.normal(size=10)}, reference=whole)

    drawn = bars_of(whole.merge(part).subtract(part)["x"])

    assert drawn is not None
    assert sum(drawn.counts) + drawn.beyond == pytest.approx(3_000, abs=10)


def test_estimates_carry_a_tilde():
    """Median and distinct values from a sketch do, in text and on the page; what was counted does not."""
    few, many = (Profile.of({"x": RNG.normal(size=n)}) for n in (1_000, 300_000))

    assert "~" not in repr(few)
    assert "~" not in few._repr_html_()
    assert re.search(r"median ~-?[\d.e-]+, max [\d.]+, distinct ~[\d,]+", repr(many))
    assert many["x"].estimates == {"median", "distinct"}
    assert many._repr_html_().count("~") == 3  # median, distinct values, histogram
    assert (figure(5), figure(5, is_exact=False)) == ("5", "~5")
