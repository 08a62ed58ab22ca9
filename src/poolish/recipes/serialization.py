"""Recipes as text: YAML, TOML and JSON, by the ending of a file's name.

recipe --description.dump--> names, numbers, lists --to_text--> .yaml .toml .json
       <-------- models.validate <--------------------parse----

name: breads
seed: 7
instructions:
- {ingredient: rye, source: data/*.parquet, where: flour == 'rye', take: 100, pick: top(stars)}
- {step: loud, use: shout, version: 2}
"""

from __future__ import annotations

import json
import os
from typing import Any

from poolish.errors import ConfigError, LimitExceeded, RecipeError
from poolish.files import parse_json
from poolish.files.documents import check_size, leaves

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
        if any(each is None for _, each in leaves(values)):
            raise RecipeError("TOML has no null, and an option of a step is one; keep this recipe as YAML or JSON")
        return dump_toml(values)
    return dump_yaml(values)


def parse(text: str, ending: str, source: str = "recipe") -> Any:
    """The values in a text; nothing in it is executed."""
    from poolish.files.yaml_toml import parse_toml, parse_yaml

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


def listed(source: str, problems: list[str]) -> str:
    """All problems of a source in one text."""
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    return "\n  ".join([f"{source}: {len(problems)} problems", *problems])


def path_in(path: str, folder: str | None) -> str:
    """A path of a file in ``folder``, as this process can open it."""
    return path if folder is None or "://" in path else os.path.normpath(os.path.join(folder, path))


def path_from(path: Any, folder: str | None) -> str:
    """A path as a file in ``folder`` has it: relative if it was, or if it lies in there; else from the root."""
    text = os.fsdecode(path)
    if folder is None or "://" in text:
        return text
    relative = os.path.relpath(text, folder)
    is_inside = relative.split(os.sep)[0] != os.pardir
    return relative if is_inside or not os.path.isabs(text) else text
