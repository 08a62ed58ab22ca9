"""The fingerprint of a recipe: what its instructions mean, not how they are written.

A function and the name that it is registered by, an expression and its text, a path and the same path from elsewhere
have one fingerprint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from poolish.errors import RecipeError
from poolish.expressions import Expression, as_expression, as_value
from poolish.files import checksum_hex
from poolish.fingerprints import function_fingerprint
from poolish.recipes.filters import RowPredicate
from poolish.recipes.instructions import AddIngredient, Instruction, PrepareStep
from poolish.recipes.recipe import DatasetRecipe
from poolish.recipes.steps import registry as steps
from poolish.recipes.steps.registry import BUILT_IN
from poolish.recipes.steps.suites import is_suite
from poolish.recipes.written.telling import are_paths, is_path, options_of
from poolish.recipes.written.values import plain


def fingerprint(recipe: DatasetRecipe) -> str:
    """16 digits that change with everything that decides the result, except what the sources hold."""
    told = [recipe.name, recipe.seed, recipe.total, recipe.unit, recipe.tokens, *map(_meaning, recipe.instructions)]
    return checksum_hex(json.dumps(told, sort_keys=True).encode())


def _meaning(each: Instruction) -> list[Any]:
    if isinstance(each, AddIngredient):
        amount = [_value_print(each.take), _value_print(each.weight), str(each.pick), each.on_short]
        return ["ingredient", each.name, _source_print(each.source), _where_print(each.where), *amount]
    options = {name: _value_print(value) for name, value in options_of(each).items()}
    if each.step == "map" and isinstance(each.options.get("columns"), Mapping):
        # A list, because the order of new columns is theirs in the result.
        options["columns"] = [[name, _value_of(made)] for name, made in each.options["columns"].items()]
    if each.step == "filter":
        options["keep"] = _where_print(each.options.get("keep"))
    return ["step", each.name, _step_print(each), _where_print(each.where), _value_print(each.version), options]


def _source_print(source: Any) -> Any:
    if isinstance(source, DatasetRecipe):
        return {"recipe": source.fingerprint}
    if not is_path(source) and not are_paths(source):
        return "in memory"
    # Files are read in the order of their names, each once, however they were listed.
    return sorted({_absolute(os.fsdecode(path)) for path in ([source] if is_path(source) else source)})


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _where_print(where: Any) -> str | None:
    if where is None:
        return None
    if callable(where) and not isinstance(where, Expression):
        return str(RowPredicate(where))
    return as_expression(where).fingerprint


def _value_of(made: Any) -> str | None:
    value = as_value(made)
    return None if value is None else value.fingerprint


def _step_print(each: PrepareStep) -> str:
    step = each.step
    if is_suite(step):
        return f"suite {step.fingerprint}"
    if isinstance(step, str):
        if step in BUILT_IN or not steps.is_registered(step):
            return f"built in {step}"
        step = steps.registered(step)
    return f"function {function_fingerprint(step, f'step {each.name!r}', each.version)}"


def _value_print(value: Any) -> Any:
    """Something for JSON that is equal for equal values; of objects that only they themselves know, their type."""
    try:
        return plain(value)
    except TypeError:
        pass
    if isinstance(value, Mapping):
        return sorted([repr(name), _value_print(each)] for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return [_value_print(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, np.ndarray):  # its repr leaves out the middle
        return ["array", str(value.dtype), list(value.shape), checksum_hex(np.ascontiguousarray(value).tobytes())]
    if hasattr(value, "__code__"):
        try:
            return function_fingerprint(value, "option")
        except RecipeError:
            return f"function {value.__qualname__}"
    text = repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}" if " at 0x" in text else text
