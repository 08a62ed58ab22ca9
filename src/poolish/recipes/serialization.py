"""Recipes as plain values, text and fingerprints.

    recipe --dump--> names, numbers, lists --to_text--> .yaml .toml .json
           <------------- models.validate <--parse----

    name: breads
    seed: 7
    instructions:
    - {ingredient: rye, source: data/*.parquet, where: flour == 'rye', take: 100, pick: top(stars)}
    - {step: loud, use: shout, version: 2}

A fingerprint covers what instructions mean, not how they are written: a function and the name it is registered by, an
expression and its text, a path and the same path from elsewhere have one fingerprint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import ConfigError, LimitExceeded, RecipeError
from poolish.expressions import Expression, as_expression, as_value
from poolish.files import checksum_hex, parse_json
from poolish.fingerprints import function_fingerprint
from poolish.recipes.filters import RowPredicate
from poolish.recipes.plan import AddIngredient, Instruction, Pick, PrepareStep, Recipe
from poolish.recipes.sources import are_paths, is_path, is_recipe
from poolish.recipes.steps import registry
from poolish.recipes.steps.registry import BUILT_IN, STEPS, is_suite

#: Keys of a step in a file that are no options.
STEP_KEYS = ("step", "use", "where", "version")

# Plain values -------------------------------------------------------------------------------------------------------


def dump(recipe: Recipe, folder: str | None = None) -> dict[str, Any]:
    """The recipe as plain values, without defaults; paths as a file in ``folder`` has them.

    >>> from poolish import DatasetRecipe
    >>> dump(DatasetRecipe("breads", seed=7).prepare_step("few", "limit", n=10))
    {'name': 'breads', 'seed': 7, 'instructions': [{'step': 'few', 'use': 'limit', 'n': 10}]}
    """
    problems: list[str] = []
    dumped = _dumped(recipe, folder, problems)
    if problems:
        raise RecipeError(listed(f"recipe {recipe.name!r} cannot be a file", problems))
    return dumped


def _dumped(recipe: Recipe, folder: str | None, problems: list[str]) -> dict[str, Any]:
    dumped: dict[str, Any] = {"name": recipe.name, "seed": recipe.seed}
    dumped |= {} if recipe.total is None else {"total": recipe.total}
    dumped |= {} if recipe.unit == "rows" else {"unit": recipe.unit}
    dumped |= {} if recipe.tokens is None else {"tokens": recipe.tokens}
    dumped["instructions"] = [_dumped_instruction(each, folder, problems) for each in recipe.instructions]
    return dumped


def _dumped_instruction(each: Instruction, folder: str | None, problems: list[str]) -> dict[str, Any]:
    if isinstance(each, AddIngredient):
        return _dumped_ingredient(each, folder, problems)
    return _dumped_step(each, problems)


def _dumped_ingredient(each: AddIngredient, folder: str | None, problems: list[str]) -> dict[str, Any]:
    what = f"ingredient {each.name!r}"
    dumped: dict[str, Any] = {"ingredient": each.name, "source": None}
    source = each.source
    if is_recipe(source):
        dumped["source"] = {"recipe": _dumped(source, folder, problems)}
    elif is_path(source):
        dumped["source"] = _path_from(source, folder)
    elif are_paths(source):
        dumped["source"] = [_path_from(path, folder) for path in source]
    else:
        problems.append(
            f"{what} has its rows in memory ({type(source).__name__}); write them to a file, such as parquet, and give "
            "its path"
        )
    dumped |= _dumped_where(each.where, what, problems)
    dumped |= {} if each.take is None else {"take": plain(each.take)}
    dumped |= {} if each.weight is None else {"weight": plain(each.weight)}
    dumped |= {} if each.pick == Pick() else {"pick": str(each.pick)}
    return dumped | ({} if each.on_short == "error" else {"on_short": each.on_short})


def _dumped_step(each: PrepareStep, problems: list[str]) -> dict[str, Any]:
    what = f"step {each.name!r}"
    dumped: dict[str, Any] = {"step": each.name, "use": each.step}
    options = options_of(each)
    if getattr(each.step, "reference", None) is not None and is_suite(each.step):
        problems.append(
            f"{what} is a suite that was fitted on a reference, which a file does not hold; bake it in Python"
        )
    if is_suite(each.step) and hasattr(each.step, "to_dict"):
        dumped["use"], options = "validate", {"suite": each.step.to_dict(), **options}
    elif not isinstance(each.step, str):
        dumped["use"] = _registered_name(each.step)
        if dumped["use"] is None:
            problems.append(f"{what} is a function without a name; put @register_step({each.name!r}) before it")
    dumped |= _dumped_where(each.where, what, problems)
    dumped |= {} if each.version is None else {"version": plain(each.version)}
    for name, value in options.items():
        if name in (*STEP_KEYS, "name"):
            problems.append(f"{what}: an option cannot be called {name!r} in a file; give it another name")
        try:
            dumped[name] = plain(value)
        except TypeError as error:
            problems.append(f"{what}: {name} is {error}; a file holds text, numbers, true, false, lists and tables")
    return dumped


def _dumped_where(where: Any, what: str, problems: list[str]) -> dict[str, str]:
    if where is None:
        return {}
    if isinstance(where, (str, Expression)):
        return {"where": str(where)}
    problems.append(f"{what}: where is a function; write it as an expression, such as \"lang == 'en'\"")
    return {}


def options_of(each: PrepareStep) -> dict[str, Any]:
    """The options that are set: to a built-in step, None says nothing."""
    if each.step not in BUILT_IN:
        return dict(each.options)
    return {name: value for name, value in each.options.items() if value is not None}


def _registered_name(function: Any) -> str | None:
    """The name that files can use; one of a built-in step would mean that one."""
    names = (
        name for name in registry.registered_names() if name not in STEPS and registry.registered(name) is function
    )
    return next(names, None)


def path_in(path: str, folder: str | None) -> str:
    """A path of a file in ``folder``, as this process can open it."""
    return path if folder is None or "://" in path else os.path.normpath(os.path.join(folder, path))


def _path_from(path: Any, folder: str | None) -> str:
    """A path as a file in ``folder`` has it: relative if it was, or if it lies in there; else from the root."""
    text = os.fsdecode(path)
    if folder is None or "://" in text:
        return text
    relative = os.path.relpath(text, folder)
    is_inside = relative.split(os.sep)[0] != os.pardir
    return relative if is_inside or not os.path.isabs(text) else text


def plain(value: Any) -> Any:
    """The same value as files have it; a TypeError says what it is instead."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Expression):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        wrong = next((name for name in value if not isinstance(name, str)), None)
        if wrong is not None:
            raise TypeError(f"a table with the name {wrong!r}, which is no text")
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, pa.DataType):
        return _TYPE_NAMES.get(str(value), str(value))
    raise TypeError(f"a {type(value).__name__}")


#: Types whose names do not say how large they are, which a recipe has to.
_TYPE_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def listed(source: str, problems: list[str]) -> str:
    """All problems of a source in one text."""
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    return "\n  ".join([f"{source}: {len(problems)} problems", *problems])


# Fingerprints --------------------------------------------------------------------------------------------------------


def fingerprint(recipe: Recipe) -> str:
    """16 digits that change with everything that decides the result, except what the sources hold."""
    dumped = [recipe.name, recipe.seed, recipe.total, recipe.unit, recipe.tokens, *map(_meaning, recipe.instructions)]
    return checksum_hex(json.dumps(dumped, sort_keys=True).encode())


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
    if is_recipe(source):
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
        if step in BUILT_IN or not registry.is_registered(step):
            return f"built in {step}"
        step = registry.registered(step)
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


# Text ----------------------------------------------------------------------------------------------------------------


ENDINGS = (".yaml", ".yml", ".toml", ".json")


def to_text(values: dict[str, Any], ending: str) -> str:
    """Plain values as YAML, TOML or JSON, by the ending of a file's name."""
    from poolish.files.yaml_toml import dump_toml, dump_yaml

    if ending == ".json":
        try:
            return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        except ValueError:
            raise RecipeError("JSON has no NaN and no infinity; keep this recipe as YAML or TOML") from None
    if ending == ".toml":
        if any(each is None for each in _leaves(values)):
            raise RecipeError("TOML has no null, and an option of a step is one; keep this recipe as YAML or JSON")
        return dump_toml(values)
    return dump_yaml(values)


def _leaves(values: Any) -> Iterable[Any]:
    inner = values.values() if isinstance(values, Mapping) else values if isinstance(values, list) else None
    if inner is None:
        yield values
        return
    for each in inner:
        yield from _leaves(each)


def parse(text: str, ending: str, source: str = "recipe") -> Any:
    """The values in a text; nothing in it is executed."""
    from poolish.files.yaml_toml import check_size, parse_toml, parse_yaml

    check_size(len(text), source, "recipe")
    if ending == ".json":
        try:
            return parse_json(text, source)
        except LimitExceeded:
            raise
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"{source}: not valid JSON ({error}); correct it there") from None
    try:
        return (parse_toml if ending == ".toml" else parse_yaml)(text, source, what="recipe")
    except ConfigError as error:
        raise RecipeError(str(error)) from None


def read(path: str | os.PathLike[str]) -> Any:
    """The values in a file of bounded size."""
    from poolish.files.yaml_toml import read_text

    ending = ending_of(path)
    try:
        text = read_text(path, what="recipe")
    except ConfigError as error:
        raise RecipeError(str(error)) from None
    return parse(text, ending, os.fspath(path))


def ending_of(path: str | os.PathLike[str]) -> str:
    """How the name of a recipe file ends."""
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending not in ENDINGS:
        raise RecipeError(f"{os.fspath(path)}: a recipe is kept in a file that ends in {', '.join(ENDINGS)}")
    return ending
