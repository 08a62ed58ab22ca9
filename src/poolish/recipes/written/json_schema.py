"""The JSON schema of recipe files, with which an editor completes names and marks mistakes while one types.

Write it beside the recipes once, ``poolish bake --schema > recipe.schema.json``, and refer to it from the first line:

    YAML    # yaml-language-server: $schema=recipe.schema.json
    TOML    #:schema recipe.schema.json
    JSON    {"$schema": "recipe.schema.json", "name": ...}

It is made from the same tables that files are read by. It knows nothing of registered steps, so their options are all
allowed; and it cannot parse expressions. What it refuses ``load`` refuses; ``load`` sees more.
"""

from __future__ import annotations

from typing import Any

from poolish.recipes.instructions import ON_SHORT
from poolish.recipes.recipe import UNITS
from poolish.recipes.steps.registry import STEPS as OPTIONS
from poolish.recipes.steps.registry import Option
from poolish.recipes.written.words import INGREDIENT_KEYS, STEP_KEYS, TOP_KEYS, VERSION

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_EXPRESSION: Schema = {**_TEXT, "examples": ["lang == 'en' and quality > 0.7"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_CONSTANT: Schema = {"type": ["number", "boolean", "null"]}

#: What ``values.KINDS`` checks, as schemas.
_KINDS: dict[str, Schema] = {
    "text": {"type": "string"},
    "texts": {"type": "object", "additionalProperties": {"type": "string"}},
    "names": {"type": "array", "items": {"type": "string"}},
    "number": _NUMBER,
    "count": _COUNT,
    "values": {"type": "object"},
    "expression": _EXPRESSION,
    "expressions": {"type": "object", "additionalProperties": {"anyOf": [_EXPRESSION, _CONSTANT]}},
    "suite": {"anyOf": [_TEXT, {"type": "object"}]},
}


def json_schema() -> Schema:
    """The schema of a recipe file, in the words of draft 2020-12.

    >>> json_schema()["required"]
    ['name', 'instructions']
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:poolish:recipe:{VERSION}",
        "title": "poolish recipe",
        **_recipe(),
        "$defs": {"recipe": _recipe(), "ingredient": _ingredient(), "step": _step()},
    }


def _recipe() -> Schema:
    about = {
        "name": {**_TEXT, "description": "what the dataset is called"},
        "seed": {**_COUNT, "default": 0, "description": "what everything random depends on"},
        "total": _or_null({"type": "integer", "minimum": 1}, "what weights are shares of"),
        "unit": {"enum": list(UNITS), "default": "rows", "description": "what the total counts"},
        "tokens": {**_TEXT, "description": "the column that counts tokens"},
        "instructions": {
            "type": "array",
            "description": "ingredients and steps, in the order of work",
            "items": {"anyOf": [{"$ref": "#/$defs/ingredient"}, {"$ref": "#/$defs/step"}]},
        },
        "version": {"const": VERSION, "description": "of the file format"},
        "$schema": {"type": "string"},
    }
    return _table(about, TOP_KEYS, ["name", "instructions"])


def _ingredient() -> Schema:
    nested = {"anyOf": [{**_TEXT, "description": "the path of its file"}, {"$ref": "#/$defs/recipe"}]}
    paths = {"type": "array", "items": _TEXT, "minItems": 1}
    picks = {"enum": ["hash", "latest", "oldest"]}, {"type": "string", "pattern": r"^(top|stratified)\([\s\S]+\)$"}
    about = {
        "ingredient": {**_TEXT, "description": "its name; rows keep it"},
        "source": {
            "anyOf": [_TEXT, paths, _table({"recipe": nested}, ("recipe",), ["recipe"])],
            "description": "a path, glob or directory, relative to this file; a list of them; or another recipe",
        },
        "where": _or_null(_EXPRESSION, "which rows of the source"),
        "take": {
            # 1 is one row and 1.0 is all of them, which JSON schema cannot tell apart.
            "anyOf": [_COUNT, {"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}],
            "description": "a number of rows, or with a dot a fraction of them",
        },
        "weight": _or_null({"type": "number", "exclusiveMinimum": 0}, "its share of the recipe's total"),
        "pick": {"anyOf": [*picks, {"type": "null"}], "default": "hash", "description": "which rows, if not all"},
        "on_short": {"enum": [*ON_SHORT, None], "default": "error", "description": "what if there are too few"},
    }
    return _table(about, INGREDIENT_KEYS, ["ingredient", "source"])


def _step() -> Schema:
    """One alternative for each built-in step, with its options, and one for all that are registered."""
    others = {"type": "string", "minLength": 1, "not": {"enum": list(OPTIONS)}}
    registered = {
        "type": "object",
        "properties": _step_keys({**others, "description": "the name of a registered step"}),
        "required": ["step", "use"],
    }
    return {"anyOf": [*(_built_in(use, options) for use, options in OPTIONS.items()), registered]}


def _built_in(use: str, options: dict[str, Option]) -> Schema:
    about = _step_keys({"const": use}) | {name: _option(option) for name, option in options.items()}
    needed = [name for name, option in options.items() if option.is_needed]
    return _table(about, (*STEP_KEYS, *options), ["step", "use", *needed])


def _option(option: Option) -> Schema:
    kind = _KINDS[option.kind]
    return {**kind, "description": option.about} if option.is_needed else _or_null(kind, option.about)


def _step_keys(use: Schema) -> Schema:
    return {
        "step": {**_TEXT, "description": "its name"},
        "use": use,
        "where": _or_null(_EXPRESSION, "which rows it is for; the column ingredient is known"),
        "version": {"type": ["integer", "string", "null"], "description": "another one whenever the function changes"},
    }


def _or_null(schema: Schema, about: str) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], "description": about}


def _table(about: Schema, keys: tuple[str, ...], needed: list[str]) -> Schema:
    """An object of exactly these keys; a key that nobody described is an error here, not in an editor."""
    properties = {key: about[key] for key in keys}
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
