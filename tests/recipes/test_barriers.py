"""Barriers of the user's own: steps that decide about all rows at once, by the same protocol as the built-in ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import DatasetRecipe, col, register_step
from poolish.errors import RecipeError
from poolish.recipes import BarrierContext, Decision, sampling
from poolish.recipes.fragment_rows import FragmentRows
from poolish.recipes.steps import registry


class Balance:
    """At most ``most`` rows of each value, the first ones."""

    def __init__(self, column: str, most: int) -> None:
        self.column, self.most = column, most

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        values = [value for piece in pieces for value in piece.table.column(self.column).to_pylist()]
        seen, rejected = Counter[object](), {}
        for position in context.positions(pieces).tolist():
            seen[values[position]] += 1
            if seen[values[position]] > self.most:
                rejected[position] = f"more than {self.most} of {values[position]}"
        keep = np.ones(len(values), bool)
        keep[list(rejected)] = False
        return Decision(keep, rejected)


class Backwards:
    """The last row first."""

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        return Decision(sort_key=lambda piece: (2**32 - piece.rows).astype(np.uint64))


@pytest.fixture(autouse=True)
def _steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", {})
    register_step("balance")(Balance)


ROWS = [{"word": word, "n": n} for n, word in enumerate("aabababbb")]


def words(recipe: DatasetRecipe, **options: object) -> list[str]:
    return recipe.bake(**options).buffer.to_pydict()["word"]


@pytest.mark.parametrize("step", ["balance", Balance, Balance("word", 2)], ids=["name", "class", "object"])
def test_a_barrier_decides_about_all_rows(step):
    """By its registered name, as a class with options or as an object; across ingredients, and explained as baked."""
    recipe = DatasetRecipe("r").add_ingredient("x", ROWS).add_ingredient("y", ROWS)
    options = {} if isinstance(step, Balance) else {"column": "word", "most": 2}
    recipe.prepare_step("few", step, **options)

    result = recipe.bake(on_error="skip")

    assert result.buffer.to_pydict()["n"] == [0, 1, 2, 4]
    assert result.report.lines[-1].rejected == 14
    assert set(result.rejects.column("reason").to_pylist()) == {"more than 2 of a", "more than 2 of b"}
    assert result.lineage.why(0).steps == ("few",)
    assert str(recipe.explain(on_error="skip").rows) == "4"


def test_a_rejected_row_stops_the_bake_by_default():
    """As for any other step, with its place."""
    recipe = DatasetRecipe("r").add_ingredient("x", ROWS).prepare_step("few", Balance("word", 2))

    with pytest.raises(RecipeError, match="ingredient 'x', row 3, step 'few': more than 2 of a"):
        recipe.bake()


def test_rows_that_are_not_selected_stay():
    """A barrier is asked about the rows of its filter."""
    recipe = DatasetRecipe("r").add_ingredient("x", ROWS)
    recipe.prepare_step("few", Balance("word", 0), where=col.word == "b")

    assert words(recipe, on_error="skip") == ["a"] * 4


def test_a_barrier_may_order_rows_and_the_next_one_sees_that_order():
    """From there on; ingredients that are added later come behind."""
    recipe = DatasetRecipe("r").add_ingredient("x", ROWS).prepare_step("back", Backwards())
    recipe.add_ingredient("y", ROWS).prepare_step("few", Balance("word", 1))

    assert recipe.bake(on_error="skip").buffer.to_pydict()["n"] == [8, 5]


def test_what_a_barrier_leaves_of_a_sample_is_no_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It needs all rows, so explain gives a bound and says why."""
    for i in range(4):
        pq.write_table(pa.table({"word": list("ab") * 500}), tmp_path / f"{i}.parquet")
    monkeypatch.setattr(sampling, "READ_ROWS", 1000)
    recipe = DatasetRecipe("r").add_ingredient("x", str(tmp_path)).prepare_step("few", Balance("word", 5))

    text = str(recipe.explain(on_error="skip"))

    assert "r: at most ~4,000 rows" in text
    assert "cannot be estimated" in text


def test_a_file_can_name_a_registered_barrier(tmp_path: Path):
    """Its options are checked by the arguments of the class."""
    source = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"word": list("aab")}), source)
    recipe = DatasetRecipe("r").add_ingredient("x", source).prepare_step("few", "balance", column="word", most=1)

    recipe.save(tmp_path / "r.yaml")

    again = DatasetRecipe.load(tmp_path / "r.yaml")
    assert again.fingerprint == recipe.fingerprint
    assert words(again, on_error="skip") == ["a", "b"]
    text = (tmp_path / "r.yaml").read_text().replace("most:", "mots:")
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"no key 'mots' here; did you mean 'most'\?[\s\S]*'most' is missing"):
        DatasetRecipe.load(tmp_path / "r.yaml")


def test_a_mask_of_another_length_is_refused():
    """Before any row is dropped."""

    class Wrong:
        def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
            return Decision(np.ones(3, bool))

    recipe = DatasetRecipe("r").add_ingredient("x", ROWS).prepare_step("wrong", Wrong())

    with pytest.raises(RecipeError, match="step 'wrong': keep has True or False for each of 9 rows"):
        recipe.bake()
    with pytest.raises(RecipeError, match="a barrier object has no options, got n"):
        DatasetRecipe("r").add_ingredient("x", ROWS).prepare_step("back", Backwards(), n=1).bake()
