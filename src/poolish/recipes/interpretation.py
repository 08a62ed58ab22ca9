"""What the words of an instruction stand for: its share of the total, its filter, its step."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from poolish.errors import PoolishError, RecipeError
from poolish.fingerprints import check_attributes
from poolish.recipes.built_in import BUILT_IN, built_in
from poolish.recipes.callables import RowPredicate
from poolish.recipes.expressions import Expression, as_expression
from poolish.recipes.instructions import AddIngredient, PrepareStep
from poolish.recipes.selection import largest_remainder
from poolish.recipes.steps import CalledStep, is_registered, registered
from poolish.recipes.suites import SuiteStep, is_suite


def quotas_of(instructions: Sequence[Any], total: int | None) -> dict[str, int]:
    """How much of the total each ingredient with a weight is to give, by its name."""
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


def step_of(instruction: PrepareStep) -> Any:
    """The step that an instruction names: a suite, one that is built in or registered, or a function of the user's."""
    step, name, options = instruction.step, instruction.name, dict(instruction.options)
    if is_suite(step):
        return SuiteStep(name, step)
    if isinstance(step, str):
        made = _built_in(step, name, options, instruction.version)
        if made is not None:
            return made
        step = registered(step) if is_registered(step) else _unknown(step, name)
    if not callable(step):
        raise RecipeError(f"step {name!r}: a function, the name of a step, or a suite, got {step!r}")
    return CalledStep(name, step, instruction.version, options.pop("batched", False), options)


def _built_in(step: str, name: str, options: dict[str, Any], version: Any) -> Any:
    try:
        return built_in(step, name, options, version)
    except PoolishError as error:
        if str(error).startswith(f"step {name!r}"):
            raise
        raise type(error)(f"step {name!r}, {step}: {error}") from None


def _unknown(step: str, name: str) -> NoReturn:
    near = get_close_matches(step, BUILT_IN, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise RecipeError(
        f"step {name!r}: no step {step!r}{hint} Steps by name are {', '.join(BUILT_IN)}, validate and those of "
        "@register_step"
    )


def as_filter(where: Any, what: str = "") -> Any:
    """What ``where=`` says as something that gives a mask, None if it says nothing; ``what`` it filters is told."""
    if where is None:
        return None
    if callable(where) and not isinstance(where, Expression):
        check_attributes(where, f"{what}, where" if what else "where")
        return RowPredicate(where, what)
    try:
        return as_expression(where)
    except PoolishError as error:
        raise type(error)(f"{what}, where: {error}" if what else str(error)) from None
