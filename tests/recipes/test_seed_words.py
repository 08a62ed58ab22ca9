"""The words of the project's first text: recipes, instructions, ingredients, preparation steps, and ``bake``."""

from __future__ import annotations

import dataclasses
import re

import pytest

import poolish
from poolish import DatasetBuffer, DatasetRecipe, bake, col
from poolish.errors import RecipeError
from poolish.recipes import AddIngredient, PrepareStep
from tests.recipes.kitchen import numbers


def breads() -> DatasetRecipe:
    """Ingredients with filters and quantity limits, and a step on a part of them."""
    recipe = DatasetRecipe("breads", seed=7)
    recipe.add_ingredient("web", numbers(100), where=col.group == "g1", take=10)
    recipe.add_ingredient("gold", numbers(10, 1_000), take=0.5)
    recipe.prepare_step("shout", lambda row: {**row, "group": row["group"].upper()}, where=col.ingredient == "web")
    return recipe


def test_a_recipe_holds_a_list_of_instructions():
    """A ``DatasetRecipe`` contains its instructions in order: adding data, and transforming it."""
    recipe = breads()

    kinds = [type(instruction) for instruction in recipe.instructions]

    assert kinds == [AddIngredient, AddIngredient, PrepareStep]
    assert [instruction.name for instruction in recipe.instructions] == ["web", "gold", "shout"]


def test_a_recipe_is_made_of_instructions():
    """Given as a list, with a name or without one, they are what the methods would have made of them."""
    instructions = breads().instructions

    for recipe in (
        DatasetRecipe(instructions, seed=7),
        DatasetRecipe("breads", instructions, seed=7),
        DatasetRecipe(instructions=iter(instructions), seed=7),
    ):
        assert recipe.instructions == instructions
        assert recipe.instructions is not instructions
        assert bake(recipe).to_pydict() == bake(breads()).to_pydict()
    limited = DatasetRecipe([AddIngredient("a", numbers(9)), PrepareStep("few", "limit", options={"n": 2})])
    assert len(bake(limited)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5,), "instructions are a list of AddIngredient and PrepareStep, got int 5"),
        (("r", 5), "got int 5; pass the seed as seed="),
        (("r", "limit"), "got str 'limit'"),
        (("r", {"a": 1}), "got dict"),
        (("r", [AddIngredient("a", []), "limit"]), "number 1 is str 'limit'"),
        (("r", [AddIngredient("a", []), AddIngredient("a", [])]), "ingredient 'a': there is one of that name"),
        (("r", [AddIngredient("a", [], take=1.5)]), "take=1.5 is a fraction above 1"),
        ((5, [AddIngredient("a", [])]), "the name of a recipe is text, got int 5"),
        ((None,), "instructions are a list"),
    ],
)
def test_what_is_no_recipe_is_refused(arguments, message):
    """Neither a name nor instructions: no recipe that bakes no rows."""
    with pytest.raises(RecipeError, match=re.escape(message)):
        DatasetRecipe(*arguments)


def test_instructions_are_values_that_never_change():
    """What was written down stays as it was written."""
    first = breads().instructions[0]

    with pytest.raises(dataclasses.FrozenInstanceError):
        first.take = 11  # type: ignore[misc]


def test_bake_gives_a_dataset_buffer():
    """``bake`` processes a recipe into a ``DatasetBuffer``, with all that one can do to it."""
    buffer = bake(breads())
    n_baked = len(buffer)
    buffer.append({"x": 5_000, "text": "by hand", "group": "g9", "score": 0.0})

    assert isinstance(buffer, DatasetBuffer)
    assert len(buffer) == n_baked + 1
    assert buffer[n_baked]["text"] == "by hand"


def test_ingredients_are_filtered_and_limited():
    """Of an ingredient come the rows that its filter lets through, and as many as its limit says."""
    rows = bake(breads()).to_pydict()

    web = [x for x in rows["x"] if x < 1_000]

    assert len(web) == 10
    assert {x % 3 for x in web} == {1}
    assert 0 < len(rows["x"]) - 10 < 10


def test_a_preparation_step_transforms_a_subset():
    """A step changes the rows that its filter selects, and no others."""
    rows = bake(breads()).to_pydict()

    assert {group.isupper() for x, group in zip(rows["x"], rows["group"], strict=True) if x < 1_000} == {True}
    assert {group.islower() for x, group in zip(rows["x"], rows["group"], strict=True) if x >= 1_000} == {True}


def test_baking_is_repeatable():
    """The same recipe gives the same dataset, and another seed another choice."""
    other = breads()
    other.seed = 8

    assert bake(breads()).to_pydict() == bake(breads()).to_pydict()
    assert bake(other).to_pydict() != bake(breads()).to_pydict()


def test_fluent_methods_return_the_recipe():
    """A recipe can be written as one sentence."""
    recipe = DatasetRecipe("one")

    assert recipe.add_ingredient("a", [{"n": 1}]).prepare_step("same", lambda row: row) is recipe


def test_the_words_are_at_the_top_of_poolish():
    """``from poolish import DatasetRecipe, bake, col, register_step``."""
    assert {"DatasetRecipe", "bake", "col", "register_step"} <= set(dir(poolish))
    assert poolish.register_step is not None


def test_recipes_are_reused_and_combined():
    """A recipe is an ingredient of another one."""
    whole = DatasetRecipe("all").add_ingredient("breads", breads()).add_ingredient("more", numbers(3, 9_000))

    assert len(bake(whole)) == len(bake(breads())) + 3
