"""What a recipe is made of, and how its instructions are followed in their order, by a bake and by its dry run.

ingredient --open--> source, fragments, filter --------> a subclass selects rows
row-local step ------------------------------> BoundStep  a subclass applies it, now or later
barrier --decide--> Decision --act--> rows that stay, a fitted step, an order
"""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from poolish.errors import ConfigError, RecipeError, UnknownColumn
from poolish.files import StorageOptions
from poolish.recipes.fragment_rows import (
    Fragment,
    FragmentRows,
    Int64,
    Mask,
    Rejected,
    piece_at,
    place_of,
    selected_rows,
)
from poolish.recipes.pipeline import BoundStep, FragmentPipeline, Reject, as_filter, prepared, reject_of
from poolish.recipes.selection import largest_remainder
from poolish.recipes.sources import Source
from poolish.recipes.steps.barriers import BarrierContext, Decision, SortKey
from poolish.recipes.steps.registry import step_of

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
        return cls(str(value)) if found is None else cls(found[1], found[2])


def top(column: str) -> Pick:
    """The rows with the largest values in a column."""
    return Pick("top", column)


def stratified(column: str) -> Pick:
    """Rows of each value of a column in the proportion that it has."""
    return Pick("stratified", column)


@dataclass(frozen=True)
class AddIngredient:
    """Rows of a source, filtered, and as many as are asked for; ``storage_options`` are for the store behind a URL."""

    name: str
    source: Any
    where: Any = None
    take: int | float | None = None
    weight: float | None = None
    pick: Pick = field(default_factory=Pick)
    on_short: str = "error"
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        # From here on no repr, error or report shows their values.
        options = StorageOptions.of(self.storage_options, f"ingredient {self.name!r}")
        object.__setattr__(self, "storage_options", options)

    @property
    def storage(self) -> StorageOptions | None:
        """The options of the store, if there are any."""
        options = self.storage_options
        assert options is None or isinstance(options, StorageOptions)  # ``__post_init__`` made them that
        return options


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
    take, weight = plain_number(take), plain_number(weight)
    try:
        picked = Pick.of(pick)
    except RecipeError as error:
        raise RecipeError(f"{what}: {error}") from None
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


# Following the instructions -----------------------------------------------------------------------------------------


MAX_STEPS = 62


class Recipe(Protocol):
    """What a bake needs of a recipe."""

    name: str
    seed: int
    total: int | None
    unit: str
    tokens: str | None
    instructions: list[Instruction]


@dataclass
class IngredientState:
    """One ingredient on its way through the instructions; ``pieces`` are its rows once they have been read."""

    name: str
    pipeline: FragmentPipeline
    fragments: Sequence[Fragment]
    pieces: list[FragmentRows] | None = field(default=None, kw_only=True)


State = TypeVar("State", bound=IngredientState)


class RecipeRun(ABC, Generic[State]):
    """Follows the instructions; a subclass says what becomes of an ingredient and of a step."""

    def __init__(self, recipe: Recipe, on_error: str) -> None:
        self.recipe, self.on_error = recipe, on_error
        self.states: list[State] = []
        self.step_names: list[str] = []
        self._given_names: list[str] = []
        #: The rows of the first ingredients are ordered by a key.
        self._sorted: tuple[int, SortKey] | None = None

    @abstractmethod
    def add(self, ingredient: AddIngredient, quota: int | None) -> None:
        """Add an ingredient; ``quota`` is its share of the recipe's total."""

    @abstractmethod
    def prepare(self, bound: BoundStep) -> None:
        """Apply a step to the ingredients so far."""

    def follow(self) -> None:
        """Carry out all instructions."""
        quotas = quotas_of(self.recipe.instructions, self.recipe.total)
        for instruction in self.recipe.instructions:
            if isinstance(instruction, AddIngredient):
                self.add(instruction, quotas.get(instruction.name))
            else:
                self.prepare(self._bound(instruction))

    def _bound(self, instruction: PrepareStep) -> BoundStep:
        if len(self.step_names) == MAX_STEPS:
            raise RecipeError(f"more than {MAX_STEPS} steps in one recipe; bake it in two")
        where, step = (
            as_filter(instruction.where, f"step {instruction.name!r}"),
            step_of(instruction.step, instruction.name, dict(instruction.options), instruction.version),
        )
        # Names identify steps in the report, among the rejects and in the cache.
        n_same = self._given_names.count(instruction.name)
        name = instruction.name if not n_same else f"{instruction.name} ({n_same + 1})"
        self._given_names.append(instruction.name)
        self.step_names.append(name)
        return BoundStep(name, step, where, bit=len(self.step_names) - 1)

    def pipeline_of(self, ingredient: AddIngredient, source: Source) -> FragmentPipeline:
        """The pipeline of an ingredient that takes all rows its filter keeps."""
        where = as_filter(ingredient.where, f"ingredient {ingredient.name!r}")
        return FragmentPipeline(ingredient.name, source, where, self.recipe.seed, 2**64, None, (), self.on_error)

    # -- rows

    def pieces(self) -> list[FragmentRows]:
        """The rows of all ingredients so far."""
        return [piece for state in self.states for piece in state.pieces or ()]

    @property
    def is_sorted(self) -> bool:
        """Whether the rows have another order than their fragments."""
        return self._sorted is not None

    def order(self, pieces: Sequence[FragmentRows]) -> Int64 | None:
        """The order of all rows; None if it is that of the pieces."""
        if self._sorted is None:
            return None
        n_states, key = self._sorted
        ordered = [piece for state in self.states[:n_states] for piece in state.pieces or ()]
        if not ordered:
            return None
        keys = np.concatenate([key(piece) for piece in ordered])
        n_rest = sum(len(piece) for piece in pieces) - len(keys)
        return np.concatenate([np.argsort(keys, kind="stable"), len(keys) + np.arange(n_rest)])

    # -- barriers

    def decide(self, bound: BoundStep, on_error: str) -> Decision:
        """What a barrier decides about all rows so far."""
        pieces = self.pieces()
        context = BarrierContext(bound.name, self.recipe.seed, self.order(pieces), bound.where, on_error)
        try:
            decision: Decision = bound.step.decide(pieces, context)
        except UnknownColumn as error:
            raise UnknownColumn(f"step {bound.name!r}: {error}") from None
        n_rows = sum(map(len, pieces))
        if decision.keep is not None and (decision.keep.dtype != bool or decision.keep.shape != (n_rows,)):
            raise RecipeError(
                f"step {bound.name!r}: keep has True or False for each of {n_rows:,} rows, got "
                f"{decision.keep.dtype}{decision.keep.shape}"
            )
        return decision

    def act(self, decision: Decision, bound: BoundStep, on_error: str) -> list[Reject]:
        """Apply a decision to the rows of all ingredients; the rows it rejects."""
        rejects = self._rejects_of(decision, bound.name)
        if rejects and on_error == "raise":
            first, k, i = rejects[0]["reason"], *piece_at(self.pieces(), next(iter(decision.rejected)))
            raise RecipeError(f"{place_of(self.pieces()[k], bound.name, i)}: {first}; or bake with on_error='skip'")
        if decision.sort_key is not None:
            self._sorted = len(self.states), decision.sort_key
        first = 0
        for state in self.states:
            kept = []
            for piece in state.pieces or ():
                mask = None if decision.keep is None else decision.keep[first : first + len(piece)]
                first += len(piece)
                kept.append(_acted(piece, mask, decision, bound, on_error, rejects))
            state.pieces = kept
        return rejects

    def _rejects_of(self, decision: Decision, step: str) -> list[Reject]:
        if not decision.rejected:
            return []
        pieces, rejects = self.pieces(), []
        for position, reason in decision.rejected.items():
            k, i = piece_at(pieces, position)
            row = Rejected(int(pieces[k].rows[i]), int(pieces[k].subs[i]), reason)
            rejects.append(reject_of(pieces[k], step, row))
        return rejects


def _acted(
    piece: FragmentRows, mask: Mask | None, decision: Decision, bound: BoundStep, on_error: str, rejects: list[Reject]
) -> FragmentRows:
    piece = piece if mask is None else piece.keep(mask)
    if decision.step is not None:
        return prepared(piece, replace(bound, step=decision.step), on_error, rejects)
    if not len(piece):
        return piece
    # Rows that a barrier looked at and kept remember it.
    marked = np.where(selected_rows(piece, bound.where), piece.steps | (1 << bound.bit), piece.steps)
    return replace(piece, steps=marked)


def quotas_of(instructions: Sequence[Any], total: int | None) -> dict[str, int]:
    """The share of the total of each ingredient with a weight, by its name."""
    weighted = [each for each in instructions if isinstance(each, AddIngredient) and each.weight is not None]
    if not weighted:
        if total is not None:
            raise RecipeError(
                f"total={total} is what weights are shares of, and no ingredient has a weight=; give them weights, or "
                "leave out total= and say take= or a step 'limit'"
            )
        return {}
    if total is None:
        raise RecipeError("weights are shares of a total; give the recipe total=, or ingredients take=")
    shares = largest_remainder([float(each.weight or 0) for each in weighted], total)
    return {each.name: share for each, share in zip(weighted, shares, strict=True)}
