"""What a recipe is made of: ingredients and preparation steps, as plain values that never change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poolish.errors import RecipeError

ON_SHORT = ("error", "repeat", "accept")


@dataclass(frozen=True)
class Pick:
    """Which rows are taken where not all are: by ``hash``, ``latest``, ``oldest``, ``top`` or ``stratified``."""

    how: str = "hash"
    column: str | None = None

    def __post_init__(self) -> None:
        known = ("hash", "latest", "oldest") if self.column is None else ("top", "stratified")
        if self.how not in known:
            raise RecipeError(f"pick={str(self)!r}: one of hash, latest, oldest, top(column), stratified(column)")

    def __str__(self) -> str:
        return self.how if self.column is None else f"{self.how}({self.column})"

    @classmethod
    def of(cls, value: Pick | str) -> Pick:
        """A pick as it was given: an object, or its text.

        >>> Pick.of("top(score)")
        Pick(how='top', column='score')
        """
        if isinstance(value, Pick):
            return value
        found = re.fullmatch(r"(\w+)(?:\((.+)\))?", str(value), re.DOTALL)
        if found is None:
            raise RecipeError(f"pick={value!r}: one of hash, latest, oldest, top(column), stratified(column)")
        return cls(found[1], found[2])


def top(column: str) -> Pick:
    """The rows with the largest values in a column."""
    return Pick("top", column)


def stratified(column: str) -> Pick:
    """Rows of each value of a column in the proportion that it has."""
    return Pick("stratified", column)


@dataclass(frozen=True)
class AddIngredient:
    """Rows of a source, filtered, and as many as are asked for."""

    name: str
    source: Any
    where: Any = None
    take: int | float | None = None
    weight: float | None = None
    pick: Pick = field(default_factory=Pick)
    on_short: str = "error"


@dataclass(frozen=True)
class PrepareStep:
    """Something done to the rows that are there so far, or to those that ``where`` selects."""

    name: str
    step: Any
    where: Any = None
    version: int | str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


Instruction = AddIngredient | PrepareStep


def check_not_empty(name: str, instructions: Iterable[Instruction]) -> None:
    """Raise if a recipe adds nothing: no rows come of it, whatever its steps do."""
    if not any(isinstance(each, AddIngredient) for each in instructions):
        raise RecipeError(f"recipe {name!r} has no ingredient; add one with add_ingredient(name, source)")
