"""At the border of a choice: never a row too many or too few."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetRecipe
from poolish.errors import RecipeError
from poolish.recipes.selection import ByHash, Candidates, largest_remainder
from tests.recipes.kitchen import line


def test_weights_are_taken_as_they_are_written():
    """0.3 and 0.1 are three parts and one part, whatever a float makes of them."""
    assert largest_remainder([0.3, 0.1], 2) == largest_remainder([3, 1], 2) == [2, 0]


def test_two_rows_of_one_hash_at_the_border_are_told():
    """Never a row more than was asked for."""
    picking = ByHash(2)
    picking.add(Candidates(("", 0), np.arange(4), np.array([5, 1, 5, 9], np.uint64)))

    assert picking.choose(1).threshold == 5
    with pytest.raises(RecipeError, match="same hash"):
        picking.choose(2)


def test_hashes_that_are_not_spread_evenly_are_chosen_too():
    """Where the smallest are expected is only where they are looked for first."""
    picking = ByHash(3)
    picking.add(Candidates(("", 0), np.arange(1_000), np.uint64(2**64 - 1) - np.arange(1_000, dtype=np.uint64)))

    assert picking.choose(3).threshold == 2**64 - 1 - 996


def test_tokens_that_are_reached_exactly_need_no_further_row():
    """Ten rows of five are fifty."""
    table = pa.table({"x": range(20), "n": [5] * 20})
    recipe = DatasetRecipe("r", total=50, unit="tokens", tokens="n").add_ingredient("a", table, weight=1)

    result = recipe.bake()

    assert result.table.num_rows == 10
    assert line(result, "a").tokens == 50


def test_counts_of_tokens_are_whole_numbers():
    """A column of floats is told, with the ingredient and the column."""
    table = pa.table({"x": range(4), "n": [5.0, 1.0, 2.0, 5.0]})
    recipe = DatasetRecipe("r", total=10, unit="tokens", tokens="n").add_ingredient("oats", table, weight=1)

    with pytest.raises(RecipeError, match=r"'oats', column 'n'.*double"):
        recipe.bake()
