"""A recipe's instructions in their order: what a bake and its dry run have in common.

ingredient --open--> source, fragments, filter --------> a subclass selects rows
row-local step ------------------------------> BoundStep  a subclass applies it, now or later
barrier --decide--> Decision --act--> rows that stay, a fitted step, an order
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from poolish.errors import RecipeError, UnknownColumn
from poolish.recipes.filters import as_filter, reject_of
from poolish.recipes.fragment_rows import FragmentRows, Int64, Mask, selected_rows
from poolish.recipes.instructions import AddIngredient, Instruction, PrepareStep
from poolish.recipes.pipeline import BoundStep, FragmentPipeline, Reject, prepared
from poolish.recipes.selection import largest_remainder
from poolish.recipes.sources import Fragment, Source
from poolish.recipes.steps.barriers import BarrierContext, Decision, SortKey
from poolish.recipes.steps.registry import step_of
from poolish.recipes.steps.step import Rejected, piece_at, place_of

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
        where, step = as_filter(instruction.where, f"step {instruction.name!r}"), step_of(instruction)
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
