"""Mixtures: shares of a total in rows or in tokens, asked and achieved."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetRecipe, col
from poolish.errors import PoolishError, RecipeError, UnknownColumn
from tests.effort import times
from tests.recipes.kitchen import cut, line, numbers, shared_out, xs


def mixture(weights, total, n_rows=100, **options):
    """A recipe with an ingredient for each weight."""
    recipe = DatasetRecipe("mixture", total=total)
    for i, weight in enumerate(weights):
        recipe.add_ingredient(f"i{i}", numbers(n_rows, i * 1_000), weight=weight, **options)
    return recipe


@settings(max_examples=times(30))
@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=5), total=st.integers(1, 100))
def test_weights_share_out_the_total(weights, total):
    """By largest remainder: shares add up to the total exactly."""
    result = mixture(weights, total).bake()
    found = [result.report.shares.get(f"i{i}", 0) for i in range(len(weights))]

    assert found == shared_out(weights, total)
    assert [line(result, f"i{i}").asked for i in range(len(weights))] == found
    assert [line(result, f"i{i}").rows_out for i in range(len(weights))] == found


def test_only_proportions_of_weights_matter():
    """0.2 and 0.3 are 2 and 3."""
    assert xs(mixture([2, 3], 50).bake()) == xs(mixture([0.2, 0.3], 50).bake())


def test_fractions_and_counts_are_outside_of_the_total():
    """The total is shared by those that have a weight."""
    recipe = mixture([1, 1], 20).add_ingredient("more", numbers(50, 7_000), take=5)

    result = recipe.add_ingredient("half", numbers(2_000, 8_000), take=0.5).bake()

    assert [result.report.shares[name] for name in ("i0", "i1", "more")] == [10, 10, 5]
    assert 800 < result.report.shares["half"] < 1_200


def test_a_larger_total_takes_the_same_rows_and_more():
    """Quotas are counts, so the rows of a small mixture are in a large one."""
    assert set(xs(mixture([1, 2], 30).bake())) <= set(xs(mixture([1, 2], 60).bake()))


@pytest.mark.parametrize("pick", ["latest", "top(x)"])
def test_a_share_is_picked_as_asked(pick):
    """A weight says how many, the pick says which."""
    assert xs(mixture([1], 3, pick=pick).bake()) == [97, 98, 99]


def test_a_short_share_is_an_error_unless_a_policy_says_otherwise():
    """Asked and there are, in the message; or fewer; or again."""
    with pytest.raises(RecipeError, match=r"'i0'.*50.*20"):
        mixture([1, 1], 100, n_rows=20).bake()

    assert mixture([1, 1], 100, n_rows=20, on_short="accept").bake().report.shares == {"i0": 20, "i1": 20}
    assert mixture([1, 1], 100, n_rows=20, on_short="repeat").bake().report.shares == {"i0": 50, "i1": 50}


def test_weights_without_a_total_are_refused():
    """A share of what?"""
    with pytest.raises(RecipeError, match="total"):
        DatasetRecipe("r").add_ingredient("a", numbers(5), weight=1).bake()


# In tokens ------------------------------------------------------------------------------------------------------------


def texts(n_rows: int, first: int = 0) -> pa.Table:
    """Rows of 1 to 9 tokens."""
    return pa.table({"x": range(first, first + n_rows), "n": [1 + (i * 7) % 9 for i in range(n_rows)]})


def by_tokens(total: int, **options: object) -> DatasetRecipe:
    recipe = DatasetRecipe("tokens", total=total, unit="tokens", tokens="n")
    recipe.add_ingredient("a", texts(100), weight=3, **options)  # type: ignore[arg-type]
    return recipe.add_ingredient("b", texts(100, 1_000), weight=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [1, 7, 65_536])
def test_tokens_are_reached_and_passed_by_less_than_a_row(sizes):
    """Rows come until the share is there; what was asked and achieved is in the report."""
    with cut(sizes):
        result = by_tokens(200).bake()
    tokens = {
        name: sum(n for x, n in zip(xs(result), result.table["n"].to_pylist(), strict=True) if (x >= 1_000) is later)
        for name, later in (("a", False), ("b", True))
    }

    assert [line(result, name).asked for name in "ab"] == [150, 50]
    assert [line(result, name).tokens for name in "ab"] == [tokens["a"], tokens["b"]]
    assert 150 <= tokens["a"] < 150 + 9
    assert 50 <= tokens["b"] < 50 + 9


def test_fewer_tokens_are_a_part_of_more():
    """The same rows and further ones."""
    assert set(xs(by_tokens(100).bake())) <= set(xs(by_tokens(300).bake()))


def test_too_few_tokens_are_an_error_or_accepted():
    """With both numbers in the message."""
    with pytest.raises(RecipeError, match=r"'a'.*7,500.*tokens"):
        by_tokens(10_000).bake()

    assert by_tokens(10_000, on_short="accept").bake().table.num_rows == 200


@pytest.mark.parametrize("options", [{"on_short": "repeat"}, {"pick": "latest"}, {"pick": "top(x)"}])
def test_what_is_not_done_in_tokens_is_refused(options):
    """Shares in tokens are picked by hash and not repeated, and it is said rather than ignored."""
    with pytest.raises(RecipeError, match=r"'a'.*tokens"):
        by_tokens(100, **options).bake()


def test_a_count_of_tokens_that_is_null_is_told():
    """Never a silent number for a row without one."""
    table = pa.table({"x": range(4), "n": [5, None, 5, 5]})
    recipe = DatasetRecipe("r", total=10, unit="tokens", tokens="n").add_ingredient("oats", table, weight=1)

    with pytest.raises(PoolishError, match="oats"):
        recipe.bake()


def test_a_column_of_tokens_that_is_not_there_is_told():
    """UnknownColumn, with the ingredient."""
    recipe = DatasetRecipe("r", total=10, unit="tokens", tokens="n").add_ingredient("oats", numbers(3), weight=1)

    with pytest.raises(UnknownColumn) as caught:
        recipe.bake()

    assert "oats" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


def test_nothing_has_no_tokens():
    """An empty ingredient, and one whose rows are all filtered away."""
    recipe = by_tokens(40).add_ingredient("none", texts(5), where=col.x > 99, weight=1, on_short="accept")

    assert recipe.bake().report.shares.get("none", 0) == 0
