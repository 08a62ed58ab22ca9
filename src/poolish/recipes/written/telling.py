"""A recipe as plain values: names, numbers, lists and tables, as a file has them."""

from __future__ import annotations

import os
from typing import Any

from poolish.errors import RecipeError
from poolish.expressions import Expression
from poolish.recipes.instructions import AddIngredient, Instruction, Pick, PrepareStep
from poolish.recipes.recipe import DatasetRecipe
from poolish.recipes.steps import registry as steps
from poolish.recipes.steps.registry import BUILT_IN
from poolish.recipes.steps.registry import STEPS as OPTIONS
from poolish.recipes.steps.suites import is_suite
from poolish.recipes.written.values import listed, plain
from poolish.recipes.written.words import STEP_KEYS


def to_dict(recipe: DatasetRecipe, folder: str | None = None) -> dict[str, Any]:
    """The recipe as plain values, without what is as it would be anyway; paths as a file in ``folder`` has them.

    >>> to_dict(DatasetRecipe("breads", seed=7).prepare_step("few", "limit", n=10))
    {'name': 'breads', 'seed': 7, 'instructions': [{'step': 'few', 'use': 'limit', 'n': 10}]}
    """
    problems: list[str] = []
    told = _told(recipe, folder, problems)
    if problems:
        raise RecipeError(listed(f"recipe {recipe.name!r} cannot be a file", problems))
    return told


def _told(recipe: DatasetRecipe, folder: str | None, problems: list[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"name": recipe.name, "seed": recipe.seed}
    told |= {} if recipe.total is None else {"total": recipe.total}
    told |= {} if recipe.unit == "rows" else {"unit": recipe.unit}
    told |= {} if recipe.tokens is None else {"tokens": recipe.tokens}
    told["instructions"] = [_told_instruction(each, folder, problems) for each in recipe.instructions]
    return told


def _told_instruction(each: Instruction, folder: str | None, problems: list[str]) -> dict[str, Any]:
    if isinstance(each, AddIngredient):
        return _told_ingredient(each, folder, problems)
    return _told_step(each, problems)


def _told_ingredient(each: AddIngredient, folder: str | None, problems: list[str]) -> dict[str, Any]:
    what = f"ingredient {each.name!r}"
    told: dict[str, Any] = {"ingredient": each.name, "source": None}
    source = each.source
    if isinstance(source, DatasetRecipe):
        told["source"] = {"recipe": _told(source, folder, problems)}
    elif is_path(source):
        told["source"] = _path_from(source, folder)
    elif are_paths(source):
        told["source"] = [_path_from(path, folder) for path in source]
    else:
        problems.append(
            f"{what} has its rows in memory ({type(source).__name__}); write them to a file, such as parquet, and give "
            "its path"
        )
    told |= _told_where(each.where, what, problems)
    told |= {} if each.take is None else {"take": plain(each.take)}
    told |= {} if each.weight is None else {"weight": plain(each.weight)}
    told |= {} if each.pick == Pick() else {"pick": str(each.pick)}
    return told | ({} if each.on_short == "error" else {"on_short": each.on_short})


def _told_step(each: PrepareStep, problems: list[str]) -> dict[str, Any]:
    what = f"step {each.name!r}"
    told: dict[str, Any] = {"step": each.name, "use": each.step}
    options = options_of(each)
    if getattr(each.step, "reference", None) is not None and is_suite(each.step):
        problems.append(
            f"{what} is a suite that was fitted on a reference, which a file does not hold; bake it in Python"
        )
    if is_suite(each.step) and hasattr(each.step, "to_dict"):
        told["use"], options = "validate", {"suite": each.step.to_dict(), **options}
    elif not isinstance(each.step, str):
        told["use"] = _registered_name(each.step)
        if told["use"] is None:
            problems.append(f"{what} is a function without a name; put @register_step({each.name!r}) before it")
    told |= _told_where(each.where, what, problems)
    told |= {} if each.version is None else {"version": plain(each.version)}
    for name, value in options.items():
        if name in (*STEP_KEYS, "name"):
            problems.append(f"{what}: an option cannot be called {name!r} in a file; give it another name")
        try:
            told[name] = plain(value)
        except TypeError as error:
            problems.append(f"{what}: {name} is {error}; a file holds text, numbers, true, false, lists and tables")
    return told


def _told_where(where: Any, what: str, problems: list[str]) -> dict[str, str]:
    if where is None:
        return {}
    if isinstance(where, (str, Expression)):
        return {"where": str(where)}
    problems.append(f"{what}: where is a function; write it as an expression, such as \"lang == 'en'\"")
    return {}


def options_of(each: PrepareStep) -> dict[str, Any]:
    """The options that say something: to a built-in step, None says nothing."""
    if each.step not in BUILT_IN:
        return dict(each.options)
    return {name: value for name, value in each.options.items() if value is not None}


def _registered_name(function: Any) -> str | None:
    """The name that files can use; one of a built-in step would mean that one."""
    names = (name for name in steps.registered_names() if name not in OPTIONS and steps.registered(name) is function)
    return next(names, None)


def is_path(source: Any) -> bool:
    """Whether a source is the path of something."""
    return isinstance(source, (str, bytes)) or hasattr(source, "__fspath__")


def are_paths(source: Any) -> bool:
    """Whether a source is a list of paths."""
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(map(is_path, source))


def _path_from(path: Any, folder: str | None) -> str:
    """A path as a file in ``folder`` has it: relative if it was, or if it lies in there; else from the root."""
    text = os.fsdecode(path)
    if folder is None or "://" in text:
        return text
    relative = os.path.relpath(text, folder)
    is_inside = relative.split(os.sep)[0] != os.pardir
    return relative if is_inside or not os.path.isabs(text) else text
