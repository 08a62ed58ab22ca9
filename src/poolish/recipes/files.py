"""Recipes as files of YAML, TOML or JSON: plain values, read strictly, and never code.

    DatasetRecipe --to_dict--> names, numbers, lists --to_text--> text --write--> .yaml .toml .json
                 <--from_dict--                      <--parse---      <--read---

    name: breads
    seed: 7
    instructions:
    - {ingredient: rye, source: data/*.parquet, where: flour == 'rye', take: 100, pick: top(stars)}
    - {step: loud, use: shout, version: 2}

A step is named: one of ``OPTIONS``, or what ``@register_step`` has registered; a file cannot name anything to import.
What is wrong is listed at once, each with its place. Relative paths are relative to the file.

The fingerprint is made of what the instructions mean, not of how they are written: a function and the name that it is
registered by, an expression and its text, a path and the same path from elsewhere have one fingerprint.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from poolish.errors import BadText, ConfigError, LimitExceeded, PoolishError, RecipeError
from poolish.files import checksum_hex, parse_json, publish
from poolish.files.documents import MAX_DEPTH
from poolish.recipes import steps
from poolish.recipes.built_in import BUILT_IN, built_in
from poolish.recipes.callables import RowPredicate
from poolish.recipes.expressions import Expression, as_expression
from poolish.recipes.instructions import AddIngredient, Instruction, Pick, PrepareStep
from poolish.recipes.recipe import DatasetRecipe
from poolish.recipes.suites import is_suite

VERSION = 1
ENDINGS = (".yaml", ".yml", ".toml", ".json")

#: Recipes that one file may bring along, and how deep: files that name each other twice would double with each level.
MAX_FILES = 256
MAX_LEVELS = 16

TOP_KEYS = ("name", "seed", "total", "unit", "tokens", "instructions", "version", "$schema")
INGREDIENT_KEYS = ("ingredient", "source", "where", "take", "weight", "pick", "on_short")
STEP_KEYS = ("step", "use", "where", "version")


@dataclass(frozen=True)
class Option:
    """What a built-in step may be told: a ``kind`` of value (see ``KINDS``), and what it is for."""

    kind: str
    about: str
    is_needed: bool = False


#: Steps that files can name without registering anything, and their options.
OPTIONS: dict[str, dict[str, Option]] = {
    "map": {"columns": Option("expressions", "new columns and the expression that each is made by", True)},
    "filter": {"keep": Option("expression", "which rows stay", True)},
    "select": {"columns": Option("names", "the columns that stay, in this order", True)},
    "drop": {"columns": Option("names", "the columns that go", True)},
    "rename": {"columns": Option("texts", "old names and new names", True)},
    "cast": {"columns": Option("texts", "columns and their new types", True)},
    "fill_nulls": {"columns": Option("values", "columns and what stands for null", True)},
    "tokenize": {
        "tokenizer": Option("text", "the name of one of tiktoken's encodings", True),
        "column": Option("text", "where the text is"),
        "into": Option("text", "the column for the tokens"),
        "count": Option("text", "the column for how many there are"),
    },
    "dedup": {"columns": Option("names", "what equal rows are equal in; all columns by default")},
    "limit": {"n": Option("count", "how many rows stay", True)},
    "shuffle": {"seed": Option("count", "another seed than the recipe's")},
    "winsorize": {
        "column": Option("text", "the column that is cut", True),
        "lower": Option("number", "the quantile below which values are cut"),
        "upper": Option("number", "the quantile above which values are cut"),
        "low": Option("number", "the lowest value, if it is not to be fitted"),
        "high": Option("number", "the highest value, if it is not to be fitted"),
    },
    "standardise": {
        "column": Option("text", "the column on its new scale", True),
        "mean": Option("number", "the mean, if it is not to be fitted"),
        "std": Option("number", "the standard deviation, if it is not to be fitted"),
    },
    "validate": {"suite": Option("suite", "a suite, or the path of its file", True)},
}


# What a recipe tells -----------------------------------------------------------------------------------------------


def to_dict(recipe: DatasetRecipe, folder: str | None = None) -> dict[str, Any]:
    """The recipe as plain values, without what is as it would be anyway; paths as a file in ``folder`` has them.

    >>> to_dict(DatasetRecipe("breads", seed=7).prepare_step("few", "limit", n=10))
    {'name': 'breads', 'seed': 7, 'instructions': [{'step': 'few', 'use': 'limit', 'n': 10}]}
    """
    problems: list[str] = []
    told = _told(recipe, folder, problems)
    if problems:
        raise RecipeError(_listed(f"recipe {recipe.name!r} cannot be a file", problems))
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
    elif _is_path(source):
        told["source"] = _path_from(source, folder)
    elif _are_paths(source):
        told["source"] = [_path_from(path, folder) for path in source]
    else:
        problems.append(
            f"{what} has its rows in memory ({type(source).__name__}); write them to a file, such as parquet, and give "
            "its path"
        )
    told |= _told_where(each.where, what, problems)
    told |= {} if each.take is None else {"take": _plain(each.take)}
    told |= {} if each.weight is None else {"weight": _plain(each.weight)}
    told |= {} if each.pick == Pick() else {"pick": str(each.pick)}
    return told | ({} if each.on_short == "error" else {"on_short": each.on_short})


def _told_step(each: PrepareStep, problems: list[str]) -> dict[str, Any]:
    what = f"step {each.name!r}"
    told: dict[str, Any] = {"step": each.name, "use": each.step}
    options = _options(each)
    if is_suite(each.step) and hasattr(each.step, "to_dict"):
        told["use"], options = "validate", {"suite": each.step.to_dict(), **options}
    elif not isinstance(each.step, str):
        told["use"] = _registered_name(each.step)
        if told["use"] is None:
            problems.append(f"{what} is a function without a name; put @register_step({each.name!r}) before it")
    told |= _told_where(each.where, what, problems)
    told |= {} if each.version is None else {"version": _plain(each.version)}
    for name, value in options.items():
        if name in (*STEP_KEYS, "name"):
            problems.append(f"{what}: an option cannot be called {name!r} in a file; give it another name")
        try:
            told[name] = _plain(value)
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


def _options(each: PrepareStep) -> dict[str, Any]:
    """The options that say something: to a built-in step, None says nothing."""
    if each.step not in BUILT_IN:
        return dict(each.options)
    return {name: value for name, value in each.options.items() if value is not None}


def _registered_name(function: Any) -> str | None:
    """The name that files can use; one of a built-in step would mean that one."""
    names = (name for name in steps.registered_names() if name not in OPTIONS and steps.registered(name) is function)
    return next(names, None)


def _plain(value: Any) -> Any:
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
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        wrong = next((name for name in value if not isinstance(name, str)), None)
        if wrong is not None:
            raise TypeError(f"a table with the name {wrong!r}, which is no text")
        return {str(name): _plain(each) for name, each in value.items()}
    raise TypeError(f"a {type(value).__name__}")


def _is_path(source: Any) -> bool:
    return isinstance(source, (str, bytes)) or hasattr(source, "__fspath__")


def _are_paths(source: Any) -> bool:
    return isinstance(source, (list, tuple)) and len(source) > 0 and all(map(_is_path, source))


def _path_from(path: Any, folder: str | None) -> str:
    """A path as a file in ``folder`` has it: relative if it was, or if it lies in there; else from the root."""
    text = os.fsdecode(path)
    if folder is None or "://" in text:
        return text
    relative = os.path.relpath(text, folder)
    is_inside = relative.split(os.sep)[0] != os.pardir
    return relative if is_inside or not os.path.isabs(text) else text


# The fingerprint ---------------------------------------------------------------------------------------------------


def fingerprint(recipe: DatasetRecipe) -> str:
    """16 digits that change with everything that decides the result, except what the sources hold."""
    told = [recipe.name, recipe.seed, recipe.total, recipe.unit, recipe.tokens, *map(_meaning, recipe.instructions)]
    return checksum_hex(json.dumps(told, sort_keys=True).encode())


def _meaning(each: Instruction) -> list[Any]:
    if isinstance(each, AddIngredient):
        amount = [_value_print(each.take), _value_print(each.weight), str(each.pick), each.on_short]
        return ["ingredient", each.name, _source_print(each.source), _where_print(each.where), *amount]
    options = {name: _value_print(value) for name, value in _options(each).items()}
    if each.step == "map" and isinstance(each.options.get("columns"), Mapping):
        # A list, because the order of new columns is theirs in the result.
        options["columns"] = [[name, _where_print(made)] for name, made in each.options["columns"].items()]
    if each.step == "filter":
        options["keep"] = _where_print(each.options.get("keep"))
    return ["step", each.name, _step_print(each), _where_print(each.where), _value_print(each.version), options]


def _source_print(source: Any) -> Any:
    if isinstance(source, DatasetRecipe):
        return {"recipe": source.fingerprint}
    if not _is_path(source) and not _are_paths(source):
        return "in memory"
    # Files are read in the order of their names, each once, however they were listed.
    return sorted({_absolute(os.fsdecode(path)) for path in ([source] if _is_path(source) else source)})


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _where_print(where: Any) -> str | None:
    if where is None:
        return None
    if callable(where) and not isinstance(where, Expression):
        return str(RowPredicate(where))
    return as_expression(where).fingerprint


def _step_print(each: PrepareStep) -> str:
    step = each.step
    if is_suite(step):
        return f"suite {step.fingerprint}"
    if isinstance(step, str):
        if step in BUILT_IN or not steps.is_registered(step):
            return f"built in {step}"
        step = steps.registered(step)
    return f"function {steps.fingerprint_of(step, each.name, each.version)}"


def _value_print(value: Any) -> Any:
    """Something for JSON that is equal for equal values; of objects that only they themselves know, their type."""
    try:
        return _plain(value)
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
            return steps.fingerprint_of(value, "option", None)
        except RecipeError:
            return f"function {value.__qualname__}"
    text = repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}" if " at 0x" in text else text


# What a file tells -------------------------------------------------------------------------------------------------


@dataclass
class _Reading:
    """What all recipes that are read together share."""

    problems: list[str] = field(default_factory=list)
    n_files: int = 0


@dataclass(frozen=True)
class _Place:
    """Where we are in a document: what it is called, its folder, and the files that led here."""

    reading: _Reading
    folder: str | None
    files: tuple[str, ...] = ()
    name: str = ""

    def wrong(self, what: str) -> None:
        """Note a problem here."""
        self.reading.problems.append(f"{self.name}: {what}" if self.name else what)

    def at(self, name: str) -> _Place:
        """A place in this one."""
        return replace(self, name=f"{self.name}.{name}" if self.name and not name.startswith("[") else self.name + name)


def from_dict(
    told: Any, *, source: str = "recipe", folder: str | None = None, files: tuple[str, ...] = ()
) -> DatasetRecipe:
    """The recipe that ``to_dict`` told of; all that is wrong is listed at once, each with its place.

    >>> from_dict({"name": "few", "instructions": [{"step": "few", "use": "limit", "m": 10}]})
    Traceback (most recent call last):
    poolish.errors.RecipeError: recipe: 2 problems
      instructions[0]: no key 'm' here; there are step, use, where, version, n
      instructions[0]: 'n' is missing: how many rows stay
    """
    reading = _Reading()
    if _depth(told) > MAX_DEPTH:
        raise LimitExceeded(f"{source}: nested more than {MAX_DEPTH} deep; no recipe is")
    recipe = _recipe(told, _Place(reading, folder, files))
    if reading.problems:
        raise RecipeError(_listed(source, reading.problems))
    return recipe


def _listed(source: str, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    return "\n  ".join([f"{source}: {len(problems)} problems", *problems])


def _recipe(told: Any, place: _Place) -> DatasetRecipe:
    if not isinstance(told, Mapping):
        place.wrong(f"a recipe is a table of names and values, got {_short(told)}")
        return DatasetRecipe("wrong")
    _check_keys(told, TOP_KEYS, place)
    if told.get("version", VERSION) != VERSION:
        place.wrong(f"version {_short(told['version'])} of recipe files is not known here, only {VERSION}")
    name = _text(told, "name", place, "what the dataset is called")
    settings: dict[str, Any] = {}
    for group in (("seed",), ("total",), ("unit", "tokens")):  # one by one, so that each problem is seen
        given = {key: told[key] for key in group if key in told}
        try:
            if not isinstance(given.get("tokens", ""), str):
                raise ConfigError(f"tokens={_short(given['tokens'])}: the name of a column")
            DatasetRecipe(name, **given)
            settings |= given
        except (PoolishError, TypeError, ValueError) as error:
            place.wrong(str(error))
    recipe = DatasetRecipe(name, **settings)
    instructions = told.get("instructions")
    if not isinstance(instructions, list):
        place.wrong(f"instructions is a list of ingredients and steps, got {_short(instructions)}")
        return recipe
    for i, entry in enumerate(instructions):
        _instruction(recipe, entry, place.at(f"instructions[{i}]"))
    return recipe


def _instruction(recipe: DatasetRecipe, entry: Any, place: _Place) -> None:
    if not isinstance(entry, Mapping):
        place.wrong(f"an instruction is a table of names and values, got {_short(entry)}")
    elif "ingredient" in entry:
        _ingredient(recipe, entry, place)
    elif "step" in entry:
        _step(recipe, entry, place)
    else:
        near = [key for key in map(str, entry) if get_close_matches(key, ("ingredient", "step"), 1)]
        hint = f"; is {near[0]!r} one of them?" if near else ""
        place.wrong(f"an instruction begins with 'ingredient' or 'step' and its name{hint}")


def _ingredient(recipe: DatasetRecipe, entry: Mapping[str, Any], place: _Place) -> None:
    _check_keys(entry, INGREDIENT_KEYS, place)
    n_before = len(place.reading.problems)
    name = _text(entry, "ingredient", place, "its name")
    source = _source(entry.get("source"), place.at("source"))
    given = {key: entry[key] for key in INGREDIENT_KEYS[2:] if entry.get(key) is not None}
    _check_where(given.get("where"), place.at("where"))
    weight = given.get("weight")
    if weight is not None and not (_is_number(weight) and weight > 0):
        place.wrong(f"weight={_short(weight)}: a number above 0")
    for key in ("take", "pick", "on_short"):
        if key in given:
            try:
                DatasetRecipe("alone").add_ingredient(name, "", **{key: given[key]})
            except (PoolishError, TypeError) as error:
                place.wrong(str(error))
    if len(place.reading.problems) == n_before:
        try:
            recipe.add_ingredient(name, source, **given)
        except PoolishError as error:
            place.wrong(str(error))


def _source(told: Any, place: _Place) -> Any:
    if isinstance(told, str) and told:
        return _path_in(told, place.folder)
    if isinstance(told, list) and told and all(isinstance(path, str) and path for path in told):
        return [_path_in(path, place.folder) for path in told]
    if isinstance(told, Mapping) and "recipe" in told:
        _check_keys(told, ("recipe",), place)
        nested = told["recipe"]
        return _included(nested, place) if isinstance(nested, str) else _recipe(nested, place.at("recipe"))
    place.wrong(f"a source is a path, a list of paths, or {{recipe: ...}}, got {_short(told)}")
    return None


def _path_in(path: str, folder: str | None) -> str:
    return path if folder is None or "://" in path else os.path.normpath(os.path.join(folder, path))


def _included(path: str, place: _Place) -> DatasetRecipe | None:
    """The recipe of another file."""
    found = os.path.realpath(_path_in(path, place.folder))
    place.reading.n_files += 1
    if found in place.files:
        place.wrong(f"{path} is this recipe itself, or has it as an ingredient; a recipe cannot be made of itself")
    elif len(place.files) >= MAX_LEVELS or place.reading.n_files > MAX_FILES:
        place.wrong(f"{path}: more than {MAX_LEVELS} recipes in each other, or {MAX_FILES} in one; bake some first")
    else:
        try:
            told = read(found)
            if _depth(told) > MAX_DEPTH:
                raise LimitExceeded(f"{path}: nested more than {MAX_DEPTH} deep; no recipe is")
        except OSError as error:
            place.wrong(f"{path} cannot be read: {error.strerror or error}")
        except PoolishError as error:
            place.wrong(str(error))
        else:
            inside = _Place(place.reading, os.path.dirname(found), (*place.files, found), f"{place.name}: {path}")
            return _recipe(told, inside)
    return None


def _step(recipe: DatasetRecipe, entry: Mapping[str, Any], place: _Place) -> None:
    n_before = len(place.reading.problems)
    name = _text(entry, "step", place, "its name")
    use: Any = _text(entry, "use", place, f"the name of a step, one of {', '.join(OPTIONS)} or a registered one")
    where, version = entry.get("where"), entry.get("version")
    _check_where(where, place.at("where"))
    if version is not None and (isinstance(version, bool) or not isinstance(version, (int, str))):
        place.wrong(f"version={_short(version)}: a whole number or a text")
    options = {key: value for key, value in entry.items() if key not in STEP_KEYS}
    if use in OPTIONS:
        options = _built_in_options(use, name, options, place)
    elif steps.is_registered(use):
        _check_registered(use, options, place)
    elif use:
        place.wrong(_unknown_step(use))
    if use == "validate":
        use = _suite(options.pop("suite", None), place.at("suite"))
    if len(place.reading.problems) == n_before:
        recipe.prepare_step(name, use, where, version, **options)


def _built_in_options(use: str, name: str, options: dict[str, Any], place: _Place) -> dict[str, Any]:
    n_before = len(place.reading.problems)
    known = OPTIONS[use]
    _check_keys(options, (*STEP_KEYS, *known), place)
    given = {key: value for key, value in options.items() if value is not None}
    for key, option in known.items():
        if key in given:
            KINDS[option.kind](given[key], place.at(key))
        elif option.is_needed:
            place.wrong(f"{key!r} is missing: {option.about}")
    # Whatever else a step asks of its options; but a tokenizer may be fetched, which reading a file must not cause.
    if len(place.reading.problems) == n_before and use not in ("tokenize", "validate"):
        try:
            built_in(use, name, given)
        except PoolishError as error:
            place.wrong(str(error))
    return given


def _check_registered(use: str, options: Mapping[str, Any], place: _Place) -> None:
    """The options of a function that somebody registered: plain values, by the names of its arguments."""
    for key, value in options.items():
        _check_plain(value, place.at(str(key)))
    given = {key: value for key, value in options.items() if key != "batched"}
    if options.get("batched", False) not in (False, True, "arrow", "columns"):
        place.wrong(f"batched={_short(options['batched'])}: one of false, true (a table), 'columns'")
    try:
        arguments = list(inspect.signature(steps.registered(use)).parameters.values())[1:]
    except (TypeError, ValueError):  # compiled, so nobody knows
        return
    names = [each.name for each in arguments if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in arguments)
    _check_keys(given, tuple(map(str, given)) if takes_any else (*STEP_KEYS, "batched", *names), place)
    for each in arguments:
        if each.name in names and each.default is each.empty and each.name not in given:
            place.wrong(f"{each.name!r} is missing: step {use!r} cannot do without it")
    if "name" in given or "self" in given:
        place.wrong("an option cannot be called 'name' or 'self'; give the argument another name")


def _unknown_step(use: str) -> str:
    known = [*OPTIONS, *steps.registered_names()]
    near = get_close_matches(use, known, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
    return (
        f"no step {use!r}; {meant} Files name steps and import nothing: load the module that has @register_step first, "
        "which is what poolish bake --steps does"
    )


def _suite(told: Any, place: _Place) -> Any:
    from poolish.guards.suite import Suite

    try:
        if isinstance(told, str):
            return Suite.load(_path_in(told, place.folder))
        return Suite.from_dict(told)
    except (PoolishError, OSError) as error:
        place.wrong(str(error))
        return None


# Values ------------------------------------------------------------------------------------------------------------


def _check_keys(told: Mapping[Any, Any], known: Sequence[str], place: _Place) -> None:
    for key in told:
        if not isinstance(key, str):
            place.wrong(f"names are text, got {_short(key)}; put it in quotes")
        elif key not in known:
            near = get_close_matches(key, known, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            place.wrong(f"no key {key!r} here; {meant}")


def _text(told: Mapping[str, Any], key: str, place: _Place, about: str) -> str:
    value = told.get(key)
    if isinstance(value, str) and value:
        return value
    place.wrong(f"{key!r} is missing: {about}" if value is None else f"{key}={_short(value)}: a text, {about}")
    return ""


def _check_where(told: Any, place: _Place) -> None:
    if told is not None:
        _check_expression(told, place)


def _check_expression(told: Any, place: _Place) -> None:
    try:
        as_expression(told)
    except PoolishError as error:
        place.wrong(str(error))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _must(is_so: Callable[[Any], bool], what: str) -> Callable[[Any, _Place], None]:
    def check(value: Any, place: _Place) -> None:
        if not is_so(value):
            place.wrong(f"{what}, got {_short(value)}")

    return check


def _each(check: Callable[[Any, _Place], None]) -> Callable[[Any, _Place], None]:
    """A table of names and values that are all checked."""

    def check_table(value: Any, place: _Place) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            place.wrong(f"a table of names and values, got {_short(value)}")
            return
        for name, each in value.items():
            check(each, place.at(name))

    return check_table


def _check_plain(value: Any, place: _Place) -> None:
    try:
        _plain(value)
    except TypeError as error:
        place.wrong(f"text, numbers, true, false, lists and tables, got {error}; write it as text")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_check_text = _must(lambda value: isinstance(value, str), "a text")
_check_nothing: Callable[[Any, _Place], None] = lambda value, place: None  # noqa: E731

#: How values of each kind are checked.
KINDS: dict[str, Callable[[Any, _Place], None]] = {
    "text": _check_text,
    "texts": _each(_check_text),
    "names": _must(_is_names, "a list of names"),
    "number": _must(_is_number, "a number"),
    "count": _must(lambda value: type(value) is int and value >= 0, "a whole number, 0 or more"),
    "values": _each(_check_plain),
    "expression": _check_expression,
    "expressions": _each(_check_expression),
    "suite": _check_nothing,  # it is read by its own room
}


def _depth(told: Any) -> int:
    """How deep tables and lists lie in each other; it ends soon after the limit, also for what contains itself."""
    depth, level = 0, [told]
    while level and depth <= MAX_DEPTH:
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
        depth, level = depth + 1, inner
    return depth


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# Text and files ----------------------------------------------------------------------------------------------------


def to_text(told: dict[str, Any], ending: str) -> str:
    """Plain values as YAML, TOML or JSON, by the ending of a file's name."""
    from poolish.files.yaml_toml import dump_toml, dump_yaml

    if ending == ".json":
        try:
            return json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        except ValueError:
            raise RecipeError("JSON has no NaN and no infinity; keep this recipe as YAML or TOML") from None
    if ending == ".toml":
        if any(each is None for each in _leaves(told)):
            raise RecipeError("TOML has no null, and an option of a step is one; keep this recipe as YAML or JSON")
        return dump_toml(told)
    return dump_yaml(told)


def _leaves(told: Any) -> Iterable[Any]:
    inner = told.values() if isinstance(told, Mapping) else told if isinstance(told, list) else None
    if inner is None:
        yield told
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


def write(recipe: DatasetRecipe, path: str | os.PathLike[str]) -> None:
    """Publish a recipe, whole or not at all, after proving that the file gives the same recipe back."""
    ending, folder = _ending(path), _folder(path)
    text = to_text(to_dict(recipe, folder), ending)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise BadText(f"{os.fspath(path)}: {error}; remove the lone surrogate") from None
    again = from_dict(parse(text, ending, os.fspath(path)), source=f"{os.fspath(path)}, as it would be", folder=folder)
    if again.fingerprint != recipe.fingerprint:
        raise RecipeError(f"{os.fspath(path)}: the file would be another recipe than {recipe.name!r}; tell us how")
    with publish(path) as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> DatasetRecipe:
    """The recipe in a file."""
    return from_dict(read(path), source=os.fspath(path), folder=_folder(path), files=(os.path.realpath(path),))


def read(path: str | os.PathLike[str]) -> Any:
    """The values in a file of bounded size."""
    from poolish.files.yaml_toml import read_text

    ending = _ending(path)
    try:
        text = read_text(path, what="recipe")
    except ConfigError as error:
        raise RecipeError(str(error)) from None
    return parse(text, ending, os.fspath(path))


def _ending(path: str | os.PathLike[str]) -> str:
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending not in ENDINGS:
        raise RecipeError(f"{os.fspath(path)}: a recipe is kept in a file that ends in {', '.join(ENDINGS)}")
    return ending


def _folder(path: str | os.PathLike[str]) -> str:
    return os.path.realpath(os.path.dirname(os.path.abspath(path)))
