"""What a recipe is made of: ingredients and preparation steps, as plain values that never change."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poolish.errors import ConfigError, RecipeError

ON_SHORT = ("error", "repeat", "accept")
UNITS = ("rows", "tokens")


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


def check_amount(
    what: str,
    *,
    take: float | None = None,
    weight: float | None = None,
    pick: Pick | str = "hash",
    on_short: str = "error",
) -> tuple[float | None, float | None, Pick]:
    """How much of an ingredient, and which rows: take, weight and pick as plain values; an error names ``what``."""
    if take is not None and weight is not None:
        raise RecipeError(f"{what}: take= and weight= are two ways to say how much; give one")
    take, weight, picked = plain_number(take), plain_number(weight), _picked(pick, what)
    _check_take(take, what)
    _check_weight(weight, what)
    if on_short not in ON_SHORT:
        raise RecipeError(f"{what}: on_short={on_short!r}; one of {', '.join(map(repr, ON_SHORT))}")
    return take, weight, picked


def check_pick(what: str, take: float | None, weight: float | None, pick: Pick) -> None:
    """Raise if a pick has nothing to pick from: all rows are taken."""
    if pick != Pick() and take is None and weight is None:
        raise RecipeError(
            f"{what}: pick={str(pick)!r} says which rows, where not all are taken; say how many with take= or "
            "weight=, or leave out pick="
        )


def taken_name(name: str) -> str:
    """The error of a second ingredient with the same name."""
    return f"ingredient {name!r}: there is one of that name already; names tell rows apart"


def check_unit(unit: str, tokens: str | None = "") -> None:
    """Raise if a total cannot be counted in this unit."""
    if unit not in UNITS:
        raise ConfigError(f"unit={unit!r}: one of {', '.join(map(repr, UNITS))}")
    if unit == "tokens" and tokens is None:
        raise ConfigError("unit='tokens' needs tokens=, the name of the column that counts them")


def check_total(total: int | None, unit: str = "rows") -> None:
    """Raise if this is no total."""
    if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 1):
        raise ConfigError(f"total={total!r}: a whole number of {unit}, 1 or more")


def plain_number(number: Any) -> Any:
    """A NumPy number as a Python one, which files and reports hold."""
    return number.item() if isinstance(number, np.generic) else number


def _picked(pick: Pick | str, what: str) -> Pick:
    try:
        return Pick.of(pick)
    except RecipeError as error:
        raise RecipeError(f"{what}: {error}") from None


def _check_weight(weight: Any, what: str) -> None:
    if weight is None:
        return
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not is_number or not 0 < weight <= sys.float_info.max:
        raise RecipeError(f"{what}: weight={weight!r}; a number above 0")


def _check_take(take: Any, what: str) -> None:
    if take is None:
        return
    if isinstance(take, bool) or not isinstance(take, (int, float)) or not take >= 0:
        raise RecipeError(f"{what}: take={take!r}; a number of rows, or a fraction from 0 to 1")
    if isinstance(take, float) and take > 1:
        hint = f"; for a number of rows write {round(take)}" if math.isfinite(take) else ""
        raise RecipeError(f"{what}: take={take!r} is a fraction above 1{hint}")
