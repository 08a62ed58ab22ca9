"""From the plain values of a file to a recipe; all that is wrong is listed at once, each with its place."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from poolish.errors import ConfigError, LimitExceeded, PoolishError, RecipeError
from poolish.files.documents import MAX_DEPTH
from poolish.recipes.recipe import DatasetRecipe
from poolish.recipes.steps import registry as steps
from poolish.recipes.steps.registry import STEPS as OPTIONS
from poolish.recipes.steps.registry import built_in
from poolish.recipes.written.texts import read
from poolish.recipes.written.values import (
    KINDS,
    Place,
    Reading,
    check_keys,
    check_plain,
    check_where,
    depth_of,
    is_number,
    listed,
    short,
    text_at,
)
from poolish.recipes.written.words import INGREDIENT_KEYS, STEP_KEYS, TOP_KEYS, VERSION

#: Recipes that one file may bring along, and how deep: files that name each other twice would double with each level.
MAX_FILES = 256
MAX_LEVELS = 16


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
    reading = Reading()
    if depth_of(told) > MAX_DEPTH:
        raise LimitExceeded(f"{source}: nested more than {MAX_DEPTH} deep; no recipe is")
    recipe = _recipe(told, Place(reading, folder, files))
    if reading.problems:
        raise RecipeError(listed(source, reading.problems))
    return recipe


def _recipe(told: Any, place: Place) -> DatasetRecipe:
    if not isinstance(told, Mapping):
        place.wrong(f"a recipe is a table of names and values, got {short(told)}")
        return DatasetRecipe("wrong")
    check_keys(told, TOP_KEYS, place)
    if told.get("version", VERSION) != VERSION:
        place.wrong(f"version {short(told['version'])} of recipe files is not known here, only {VERSION}")
    name = text_at(told, "name", place, "what the dataset is called")
    settings: dict[str, Any] = {}
    for group in (("seed",), ("total",), ("unit", "tokens")):  # one by one, so that each problem is seen
        given = {key: told[key] for key in group if key in told}
        try:
            if not isinstance(given.get("tokens", ""), str):
                raise ConfigError(f"tokens={short(given['tokens'])}: the name of a column")
            DatasetRecipe(name, **given)
            settings |= given
        except (PoolishError, TypeError, ValueError) as error:
            place.wrong(str(error))
    recipe = DatasetRecipe(name, **settings)
    instructions = told.get("instructions")
    if not isinstance(instructions, list):
        place.wrong(f"instructions is a list of ingredients and steps, got {short(instructions)}")
        return recipe
    for i, entry in enumerate(instructions):
        _instruction(recipe, entry, place.at(f"instructions[{i}]"))
    return recipe


def _instruction(recipe: DatasetRecipe, entry: Any, place: Place) -> None:
    if not isinstance(entry, Mapping):
        place.wrong(f"an instruction is a table of names and values, got {short(entry)}")
    elif "ingredient" in entry:
        _ingredient(recipe, entry, place)
    elif "step" in entry:
        _step(recipe, entry, place)
    else:
        near = [key for key in map(str, entry) if get_close_matches(key, ("ingredient", "step"), 1)]
        hint = f"; is {near[0]!r} one of them?" if near else ""
        place.wrong(f"an instruction begins with 'ingredient' or 'step' and its name{hint}")


def _ingredient(recipe: DatasetRecipe, entry: Mapping[str, Any], place: Place) -> None:
    check_keys(entry, INGREDIENT_KEYS, place)
    n_before = len(place.reading.problems)
    name = text_at(entry, "ingredient", place, "its name")
    source = _source(entry.get("source"), place.at("source"))
    given = {key: entry[key] for key in INGREDIENT_KEYS[2:] if entry.get(key) is not None}
    check_where(given.get("where"), place.at("where"))
    weight = given.get("weight")
    if weight is not None and not (is_number(weight) and weight > 0):
        place.wrong(f"weight={short(weight)}: a number above 0")
    for key in ("take", "pick", "on_short"):
        if key in given:
            try:
                # A pick alone says nothing, so it is tried with some number of rows.
                DatasetRecipe("alone").add_ingredient(name, "", **{"take": 1, key: given[key]})
            except (PoolishError, TypeError) as error:
                place.wrong(str(error))
    if len(place.reading.problems) == n_before:
        try:
            recipe.add_ingredient(name, source, **given)
        except PoolishError as error:
            place.wrong(str(error))


def _source(told: Any, place: Place) -> Any:
    if isinstance(told, str) and told:
        return _path_in(told, place.folder)
    if isinstance(told, list) and told and all(isinstance(path, str) and path for path in told):
        return [_path_in(path, place.folder) for path in told]
    if isinstance(told, Mapping) and "recipe" in told:
        check_keys(told, ("recipe",), place)
        nested = told["recipe"]
        return _included(nested, place) if isinstance(nested, str) else _recipe(nested, place.at("recipe"))
    place.wrong(f"a source is a path, a list of paths, or {{recipe: ...}}, got {short(told)}")
    return None


def _path_in(path: str, folder: str | None) -> str:
    return path if folder is None or "://" in path else os.path.normpath(os.path.join(folder, path))


def _included(path: str, place: Place) -> DatasetRecipe | None:
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
            if depth_of(told) > MAX_DEPTH:
                raise LimitExceeded(f"{path}: nested more than {MAX_DEPTH} deep; no recipe is")
        except OSError as error:
            place.wrong(f"{path} cannot be read: {error.strerror or error}")
        except PoolishError as error:
            place.wrong(str(error))
        else:
            inside = Place(place.reading, os.path.dirname(found), (*place.files, found), f"{place.name}: {path}")
            return _recipe(told, inside)
    return None


def _step(recipe: DatasetRecipe, entry: Mapping[str, Any], place: Place) -> None:
    n_before = len(place.reading.problems)
    name = text_at(entry, "step", place, "its name")
    use: Any = text_at(entry, "use", place, f"the name of a step, one of {', '.join(OPTIONS)} or a registered one")
    where, version = entry.get("where"), entry.get("version")
    check_where(where, place.at("where"))
    if version is not None and (isinstance(version, bool) or not isinstance(version, (int, str))):
        place.wrong(f"version={short(version)}: a whole number or a text")
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


def _built_in_options(use: str, name: str, options: dict[str, Any], place: Place) -> dict[str, Any]:
    n_before = len(place.reading.problems)
    known = OPTIONS[use]
    check_keys(options, (*STEP_KEYS, *known), place)
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


def _check_registered(use: str, options: Mapping[str, Any], place: Place) -> None:
    """The options of a function that somebody registered: plain values, by the names of its arguments."""
    for key, value in options.items():
        check_plain(value, place.at(str(key)))
    given = {key: value for key, value in options.items() if key != "batched"}
    if options.get("batched", False) not in (False, True, "arrow", "columns"):
        place.wrong(f"batched={short(options['batched'])}: one of false, true (a table), 'columns'")
    try:
        function = steps.registered(use)
        # The first argument of a function is the row; a class of barriers is called with the options alone.
        arguments = list(inspect.signature(function).parameters.values())[not isinstance(function, type) :]
    except (TypeError, ValueError):  # compiled, so nobody knows
        return
    names = [each.name for each in arguments if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in arguments)
    check_keys(given, tuple(map(str, given)) if takes_any else (*STEP_KEYS, "batched", *names), place)
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


def _suite(told: Any, place: Place) -> Any:
    from poolish.guards.checks.suite import Suite

    try:
        if isinstance(told, str):
            return Suite.load(_path_in(told, place.folder))
        return Suite.from_dict(told)
    except (PoolishError, OSError) as error:
        place.wrong(str(error))
        return None
