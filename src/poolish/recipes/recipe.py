"""DatasetRecipe: what a dataset is made of, written down; ``bake`` makes it."""

from __future__ import annotations

import os
import time
from typing import Any, Self

import numpy as np

from poolish import seeds
from poolish.errors import ConfigError, RecipeError
from poolish.files import checksum_hex
from poolish.recipes.baking import Bake, Progress
from poolish.recipes.cache import Cache
from poolish.recipes.engine import as_engine
from poolish.recipes.instructions import ON_SHORT, AddIngredient, Instruction, Pick, PrepareStep
from poolish.recipes.result import BakeResult, Lineage, Report, rejects_table
from poolish.recipes.sources import held
from poolish.rows import DatasetBuffer

UNITS = ("rows", "tokens")
ON_ERROR = ("raise", "skip", "quarantine")


class DatasetRecipe:
    """A list of instructions: ingredients that are added, and steps that prepare what is there so far.

    The same recipe with the same sources and the same seed gives the same rows, whoever bakes it. A step does not touch
    ingredients that are added after it.

    >>> from poolish import DatasetRecipe, col
    >>> recipe = DatasetRecipe("breads", seed=7)
    >>> rows = [{"flour": flour, "stars": i % 5} for i, flour in enumerate(["rye", "wheat"] * 10)]
    >>> recipe.add_ingredient("rye", rows, where=col.flour == "rye", take=3)
    <DatasetRecipe breads: 1 ingredient, 0 steps>
    >>> recipe.prepare_step("shout", lambda row: {**row, "flour": row["flour"].upper()})
    <DatasetRecipe breads: 1 ingredient, 1 step>
    >>> recipe.bake().buffer.to_pydict()
    {'flour': ['RYE', 'RYE', 'RYE'], 'stars': [0, 0, 3]}
    """

    def __init__(
        self, name: str, seed: int = 0, total: int | None = None, unit: str = "rows", *, tokens: str | None = None
    ) -> None:
        """``total`` is what ``weight=`` is a share of; ``tokens`` names the column that counts them, for that unit."""
        self.name, self.seed = name, seeds.check_seed(seed)
        if unit not in UNITS:
            raise ConfigError(f"unit={unit!r}: one of {', '.join(map(repr, UNITS))}")
        if unit == "tokens" and tokens is None:
            raise ConfigError("unit='tokens' needs tokens=, the name of the column that counts them")
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 1):
            raise ConfigError(f"total={total!r}: a whole number of {unit}, 1 or more")
        self.total, self.unit, self.tokens = total, unit, tokens
        self.instructions: list[Instruction] = []

    def add_ingredient(
        self,
        name: str,
        source: Any,
        where: Any = None,
        take: int | float | None = None,
        weight: float | None = None,
        pick: Pick | str = "hash",
        on_short: str = "error",
    ) -> Self:
        """Rows of ``source``: all, ``take`` of them (a count, or a fraction), or its share of the recipe's total."""
        what = f"ingredient {name!r}"
        if any(isinstance(each, AddIngredient) and each.name == name for each in self.instructions):
            raise RecipeError(f"{what}: there is one of that name already; names tell rows apart")
        if take is not None and weight is not None:
            raise RecipeError(f"{what}: take= and weight= are two ways to say how much; give one")
        _check_take(take, what)
        if on_short not in ON_SHORT:
            raise RecipeError(f"{what}: on_short={on_short!r}; one of {', '.join(map(repr, ON_SHORT))}")
        self.instructions.append(AddIngredient(name, held(source), where, take, weight, Pick.of(pick), on_short))
        return self

    def prepare_step(
        self, name: str, step: Any, where: Any = None, version: int | str | None = None, **options: Any
    ) -> Self:
        """Do ``step`` to the rows that are there so far, or to those that ``where`` selects."""
        self.instructions.append(PrepareStep(name, step, where, version, options))
        return self

    @property
    def fingerprint(self) -> str:
        """Changes when the recipe does; what the sources hold is not in it."""
        told = [self.name, self.seed, self.total, self.unit, self.tokens, *map(_text, self.instructions)]
        return checksum_hex(repr(told).encode())

    def bake(
        self,
        into: DatasetBuffer | None = None,
        engine: Any = "local",
        guard: Any = None,
        on_error: str = "raise",
        cache: str | os.PathLike[str] | None = None,
        *,
        budget: float | None = None,
        progress: Progress | None = None,
    ) -> BakeResult:
        """Make the dataset; ``into`` appends it to a buffer that lives on."""
        if on_error not in ON_ERROR:
            raise ConfigError(f"on_error={on_error!r}: one of {', '.join(map(repr, ON_ERROR))}")
        started = time.perf_counter()
        kept = None if cache is None else Cache(cache)
        bake_ = Bake(self.instructions, self.seed, self.total, self.unit, self.tokens, as_engine(engine))
        bake_.on_error, bake_.budget, bake_.cache, bake_.progress = on_error, budget, kept, progress
        rows = bake_.run()
        buffer = DatasetBuffer() if into is None else into
        if rows.table.num_columns:
            buffer.append(rows.table, **({} if guard is None else {"guard": guard}))
        counts = np.bincount(rows.ingredients, minlength=len(rows.ingredient_names)).tolist()
        shares = dict(zip(rows.ingredient_names, counts, strict=True))
        seconds = time.perf_counter() - started
        report = Report(
            self.name,
            self.fingerprint,
            tuple(bake_.lines),
            rows.table.num_rows,
            len(bake_.rejects),
            seconds,
            shares,
        )
        lineage = Lineage(rows, bake_.step_names)
        return BakeResult(buffer, report, rejects_table(bake_.rejects), lineage, rows.table)

    def __repr__(self) -> str:
        n_ingredients = sum(isinstance(each, AddIngredient) for each in self.instructions)
        n_steps = len(self.instructions) - n_ingredients
        ingredients = f"{n_ingredients} ingredient{'' if n_ingredients == 1 else 's'}"
        return f"<DatasetRecipe {self.name}: {ingredients}, {n_steps} step{'' if n_steps == 1 else 's'}>"


def bake(
    recipe: DatasetRecipe,
    into: DatasetBuffer | None = None,
    engine: Any = "local",
    guard: Any = None,
    on_error: str = "raise",
    cache: str | os.PathLike[str] | None = None,
) -> DatasetBuffer:
    """The buffer that a recipe makes; ``recipe.bake`` tells more about it.

    >>> from poolish import DatasetRecipe, bake
    >>> bake(DatasetRecipe("all").add_ingredient("numbers", [{"n": 1}, {"n": 2}])).to_pydict()
    {'n': [1, 2]}
    """
    return recipe.bake(into, engine, guard, on_error, cache).buffer


def _check_take(take: Any, what: str) -> None:
    if take is None:
        return
    if isinstance(take, bool) or not isinstance(take, (int, float)) or not take >= 0:
        raise RecipeError(f"{what}: take={take!r}; a number of rows, or a fraction from 0 to 1")
    if isinstance(take, float) and take > 1:
        raise RecipeError(f"{what}: take={take!r} is a fraction above 1; for a number of rows write {round(take)}")


def _text(instruction: Instruction) -> str:
    if isinstance(instruction, AddIngredient):
        source = instruction.source
        told = source if isinstance(source, (str, list)) else type(source).__name__
        return repr(
            (instruction.name, told, str(instruction.where), instruction.take, instruction.weight, instruction.pick)
        )
    step = instruction.step if isinstance(instruction.step, str) else getattr(instruction.step, "__name__", "")
    options = sorted((name, str(value)) for name, value in instruction.options.items())
    return repr((instruction.name, step, str(instruction.where), instruction.version, options))
