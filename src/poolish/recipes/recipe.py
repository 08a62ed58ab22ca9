"""DatasetRecipe: what a dataset is made of, written down; ``bake`` makes it."""

from __future__ import annotations

import copy
import math
import os
import reprlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

from poolish import seeds
from poolish.errors import BadText, ConfigError, RecipeError
from poolish.files import StorageOptions, local_path, publish
from poolish.fingerprints import check_attributes
from poolish.guards.checks.guard import check_guard
from poolish.guards.checks.suite import Suite
from poolish.printable import counted, printable
from poolish.recipes import serialization
from poolish.recipes.baking import Bake, BakeOptions, Progress
from poolish.recipes.cache import Cache, LastBake
from poolish.recipes.description import describe, dump, fingerprint
from poolish.recipes.differences import RecipeDifference, recipe_difference
from poolish.recipes.engine import as_engine
from poolish.recipes.explain import explain
from poolish.recipes.explanation import Explanation
from poolish.recipes.pipeline import as_filter
from poolish.recipes.plan import (
    AddIngredient,
    Instruction,
    Pick,
    PrepareStep,
    check_amount,
    check_not_empty,
    check_pick,
    check_total,
    check_unit,
    plain_number,
    taken_name,
)
from poolish.recipes.report import BakeResult
from poolish.recipes.sources import check_storage, materialize
from poolish.recipes.steps.registry import is_registered, is_suite
from poolish.rows import DatasetBuffer

ON_ERROR = ("raise", "skip", "quarantine")


class DatasetRecipe:
    """A list of instructions: ingredients that are added, and steps that prepare what is there so far.

    The same recipe with the same sources and the same seed gives the same rows. A step does not touch
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

    The instructions may also be given as values, with a name or without one:

    >>> from poolish.recipes import AddIngredient, PrepareStep
    >>> DatasetRecipe([AddIngredient("rye", rows, take=3), PrepareStep("once", "dedup")])
    <DatasetRecipe recipe: 1 ingredient, 1 step>
    """

    def __init__(
        self,
        name: str | Iterable[Instruction] = "recipe",
        instructions: Iterable[Instruction] = (),
        *,
        seed: int = 0,
        total: int | None = None,
        unit: str = "rows",
        tokens: str | None = None,
    ) -> None:
        """``total`` is what ``weight=`` is a share of; ``tokens`` names the column that counts them, for that unit."""
        self.name, instructions = _named(name, instructions)
        self.seed = seeds.check_seed(seed)
        total = plain_number(total)
        check_unit(unit, tokens)
        check_total(total, unit)
        self.total, self.unit, self.tokens = total, unit, tokens
        self.instructions: list[Instruction] = []
        for instruction in _checked_instructions(instructions, self.name):
            self._add(instruction)

    def _add(self, instruction: Instruction) -> None:
        if isinstance(instruction, AddIngredient):
            self.add_ingredient(**vars(instruction))
        else:
            step = instruction
            self.prepare_step(step.name, step.step, step.where, step.version, **step.options)

    def add_ingredient(
        self,
        name: str,
        source: Any,
        where: Any = None,
        take: int | float | None = None,
        weight: float | None = None,
        pick: Pick | str = "hash",
        on_short: str = "error",
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Rows of ``source``: all, ``take`` of them (a count, or a fraction), or its share of the recipe's total.

        A recipe as a source is taken as it is now: changing it afterwards does not change this one.
        ``storage_options`` reach the file system of a URL (fsspec) and are shown nowhere.
        """
        what = f"ingredient {name!r}"
        options = StorageOptions.of(storage_options, what)
        check_storage(source, what, options)
        if source is self:
            raise RecipeError(f"{what}: recipe {self.name!r} cannot be made of itself; pass another, or a copy()")
        if any(isinstance(each, AddIngredient) and each.name == name for each in self.instructions):
            raise RecipeError(taken_name(name))
        take, weight, picked = check_amount(what, take=take, weight=weight, pick=pick, on_short=on_short)
        check_pick(what, take, weight, picked)
        as_filter(where, what)  # an error now rather than in the bake
        kept = source.copy() if isinstance(source, DatasetRecipe) else materialize(source)
        self.instructions.append(AddIngredient(name, kept, where, take, weight, picked, on_short, options))
        return self

    def prepare_step(
        self, name: str, step: Any, where: Any = None, version: int | str | None = None, **options: Any
    ) -> Self:
        """Do ``step`` to the rows that are there so far, or to those that ``where`` selects.

        A ``Suite`` is in use from here on: it refuses changes, and ``suite.copy()`` can be changed.
        """
        check_attributes(step, f"step {name!r}")
        as_filter(where, f"step {name!r}")  # an error now rather than in the bake
        if isinstance(step, str) and step == "validate" and not is_registered(step):
            step, options = _validating(name, options), {}
        kept = step.in_use(f"recipe {self.name!r}, step {name!r}") if isinstance(step, Suite) else step
        self.instructions.append(PrepareStep(name, kept, where, version, options))
        return self

    def copy(self) -> Self:
        """A recipe of the same instructions that can be changed by itself.

        >>> breads = DatasetRecipe("breads").add_ingredient("rye", [{"stars": 5}])
        >>> breads.copy().add_ingredient("wheat", [{"stars": 4}]), breads
        (<DatasetRecipe breads: 2 ingredients, 0 steps>, <DatasetRecipe breads: 1 ingredient, 0 steps>)
        """
        copied = copy.copy(self)
        copied.instructions = list(self.instructions)
        return copied

    @property
    def fingerprint(self) -> str:
        """16 digits that change with everything that decides the result, except what the sources hold."""
        return fingerprint(self)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values; a RecipeError lists what cannot be written, such as rows in memory."""
        return dump(self)

    @classmethod
    def from_dict(cls, document: Any) -> DatasetRecipe:
        """The recipe in a document of plain values; a RecipeError lists all problems, each with its place."""
        return _validated(document)

    def to_yaml(self) -> str:
        """The recipe as YAML text."""
        return serialization.to_text(self.to_dict(), ".yaml")

    def to_toml(self) -> str:
        """The recipe as TOML text."""
        return serialization.to_text(self.to_dict(), ".toml")

    def to_json(self) -> str:
        """The recipe as JSON text."""
        return serialization.to_text(self.to_dict(), ".json")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe into a ``.yaml``, ``.yml``, ``.toml`` or ``.json`` file, whole or not at all.

        Paths of sources become relative to the file if they were relative, or lie in its folder. The file is published
        once it has been read back as the same recipe.
        """
        local_path(path, "DatasetRecipe.save path", instead="the sources of a recipe; save it here and upload the file")
        name, folder = os.fspath(path), _folder_of(path)
        ending = serialization.ending_of(path)
        text = serialization.to_text(dump(self, folder), ending)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise BadText(f"{name}: {error}; remove the lone surrogate") from None
        again = _validated(serialization.parse(text, ending, name), source=f"{name}, as it would be", folder=folder)
        if again.fingerprint != self.fingerprint:
            raise RecipeError(f"{name}: the file would be another recipe than {self.name!r}; please report this")
        with publish(path) as file:
            file.write(data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DatasetRecipe:
        """The recipe in a file. Nothing in it is executed: steps are built in, or were registered before."""
        local_path(path, "DatasetRecipe.load path", instead="the sources of a recipe; download the file first")
        files = (os.path.realpath(path),)
        return _validated(serialization.read(path), source=os.fspath(path), folder=_folder_of(path), files=files)

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
        """Make the dataset; ``into`` appends it to a buffer that lives on.

        ``budget`` is how many rows may be rejected: a count, or a fraction of those that are read. What a guard of
        ``into`` rejects is counted in the report, and is not among the rows of the result.
        """
        if on_error not in ON_ERROR:
            raise ConfigError(f"on_error={on_error!r}: one of {', '.join(map(repr, ON_ERROR))}")
        budget = _checked_budget(budget, on_error)
        if into is not None and not isinstance(into, DatasetBuffer):
            raise ConfigError(f"into={type(into).__name__}: a DatasetBuffer, which the rows are appended to")
        check_not_empty(self.name, self.instructions)
        started = time.perf_counter()
        kept = None if cache is None else Cache(cache)
        guard = None if guard is None else check_guard(guard, "bake")
        options = BakeOptions(as_engine(engine), on_error, budget, kept, progress, guard, into)
        outcome = Bake(self, options).run()
        seconds = time.perf_counter() - started
        if kept is not None:
            about = {state.name: state.pipeline.describe(state.fragments) for state in outcome.ingredients}
            LastBake(kept, self.name).write(about)
        return BakeResult.of(outcome, self.name, describe(self), seconds)

    def explain(self, cache: str | os.PathLike[str] | None = None, *, on_error: str = "raise") -> Explanation:
        """What baking will do, before it is done: rows, tokens, bytes, seconds, and what is cached and why not.

        Nothing is baked or written. What is estimated from a sample is marked ``~``.

        >>> recipe = DatasetRecipe("breads").add_ingredient("rye", [{"stars": i} for i in range(9)], where="stars > 5")
        >>> print(recipe.explain())
        breads: 3 rows, ~24 bytes, about ...
          ingredient rye: 9 -> 3 rows, ~24 bytes, ..., 0 of 1 fragment cached (1 no cache)
          result: stars int64
        """
        return explain(self, cache, on_error=on_error)

    def diff(self, other: DatasetRecipe) -> RecipeDifference:
        """What this recipe says otherwise than ``other``, its earlier state: which instructions, and what of them.

        >>> before = DatasetRecipe("breads").add_ingredient("rye", "rye/*.parquet", take=100)
        >>> print(DatasetRecipe("breads", seed=1).add_ingredient("rye", "rye/*.parquet", take=200).diff(before))
        changed  recipe: seed 0 -> 1
        changed  ingredient rye: quantity 100 -> 200
        """
        return recipe_difference(describe(self), describe(other))

    def __repr__(self) -> str:
        n_ingredients = sum(isinstance(each, AddIngredient) for each in self.instructions)
        n_steps = len(self.instructions) - n_ingredients
        parts = f"{counted(n_ingredients, 'ingredient')}, {counted(n_steps, 'step')}"
        return f"<DatasetRecipe {printable(self.name)}: {parts}>"


def bake(
    recipe: DatasetRecipe,
    into: DatasetBuffer | None = None,
    engine: Any = "local",
    guard: Any = None,
    on_error: str = "raise",
    cache: str | os.PathLike[str] | None = None,
    *,
    budget: float | None = None,
    progress: Progress | None = None,
) -> DatasetBuffer:
    """The buffer that a recipe makes; ``recipe.bake`` tells more about it.

    >>> from poolish import DatasetRecipe, bake
    >>> bake(DatasetRecipe("all").add_ingredient("numbers", [{"n": 1}, {"n": 2}])).to_pydict()
    {'n': [1, 2]}
    """
    return recipe.bake(into, engine, guard, on_error, cache, budget=budget, progress=progress).buffer


def _validated(document: Any, **place: Any) -> DatasetRecipe:
    from poolish.recipes import models  # pydantic, a fifth of a second

    recipe: DatasetRecipe = models.validate(document, **place).build(DatasetRecipe)
    return recipe


def _folder_of(path: str | os.PathLike[str]) -> str:
    return os.path.realpath(os.path.dirname(os.path.abspath(path)))


def _named(name: str | Iterable[Instruction], instructions: Iterable[Instruction]) -> tuple[str, Iterable[Instruction]]:
    """The name and the instructions of a recipe, of which the name may be left out."""
    if isinstance(name, str):
        return name, instructions
    if instructions != ():
        raise RecipeError(f"the name of a recipe is text, got {type(name).__name__} {reprlib.repr(name)}")
    return "recipe", name


def _checked_instructions(instructions: object, name: str) -> list[Instruction]:
    what = f"recipe {name!r}: instructions are a list of AddIngredient and PrepareStep"
    if isinstance(instructions, str | bytes | Mapping) or not isinstance(instructions, Iterable):
        hint = "; pass the seed as seed=" if isinstance(instructions, int) else ""
        raise RecipeError(f"{what}, got {type(instructions).__name__} {reprlib.repr(instructions)}{hint}")
    checked = list(instructions)
    for i, each in enumerate(checked):
        if not isinstance(each, AddIngredient | PrepareStep):
            raise RecipeError(f"{what}, number {i} is {type(each).__name__} {reprlib.repr(each)}")
    return checked


def _validating(name: str, options: Mapping[str, Any]) -> Any:
    """The suite of a step that is called as files call it."""
    if set(options) == {"suite"} and is_suite(options["suite"]):
        return options["suite"]
    raise RecipeError(
        f"step {name!r}: validate has one option, suite=, which is a Suite; for one in a file write Suite.load(path)"
    )


def _checked_budget(budget: float | None, on_error: str) -> float | None:
    budget = plain_number(budget)
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget < math.inf:
        raise ConfigError(f"budget={budget!r}: a number of rows, or a fraction such as 0.01 of those that are read")
    if on_error == "raise":
        raise ConfigError(
            f"budget={budget!r} is for on_error='skip' or 'quarantine'; with 'raise' the first bad row ends the bake"
        )
    return budget
