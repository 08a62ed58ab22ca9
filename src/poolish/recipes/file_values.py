"""Values of recipe files: kinds of values, and problems with their places.

A kind validates a value and describes it to editors. A model (``Entry``) has fields of such kinds; ``validated`` turns
what pydantic finds into problems that name the place, the rule, the value and the nearest known name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from poolish.errors import LimitExceeded, PoolishError
from poolish.expressions import as_expression
from poolish.files.documents import MAX_DEPTH, shorten
from poolish.guards.checks.suite import Suite
from poolish.printable import suggestion
from poolish.recipes.description import Key, plain
from poolish.recipes.serialization import path_in

Schema = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """Where a document is: its folder, the files that led here, and how many files were read in all."""

    folder: str | None
    files: tuple[str, ...] = ()
    n_files: list[int] = field(default_factory=lambda: [0])


def reading_of(info: ValidationInfo) -> Reading:
    """The place of the document that is being validated."""
    assert isinstance(info.context, Reading)
    return info.context


class Entry(BaseModel):
    """A table of a recipe file."""

    model_config = ConfigDict(extra="forbid")
    what: ClassVar[str] = "an instruction"

    @classmethod
    def keys(cls) -> list[str]:
        """The keys that the table may have."""
        return [each.alias or name for name, each in cls.model_fields.items()]

    @classmethod
    def about(cls, key: Any) -> str:
        """What a key is for."""
        fields = {each.alias or name: each for name, each in cls.model_fields.items()}
        return fields[key].description or ""

    @classmethod
    def without_nulls(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """A table without the keys that say nothing; an unknown key stays, so that it is refused."""
        known = cls.keys()
        return {key: value for key, value in table.items() if value is not None or key not in known}

    def given(self, keys: Iterable[Key]) -> dict[str, Any]:
        """The values that are not None, by the names that instructions have for them."""
        values = {key.attribute or key.name: getattr(self, key.name) for key in keys}
        return {name: value for name, value in values.items() if value is not None}


def key_named(keys: Iterable[Key], name: str) -> Key:
    """The key of this name."""
    return next(key for key in keys if key.name == name)


def described(keys: Iterable[Key], name: str, **options: Any) -> Any:
    """The field of a key, with its default, as far as a file can hold that."""
    key = key_named(keys, name)
    default = key.default if key.default is ... or isinstance(key.default, (int, str)) else None
    return Field(default, description=key.about, **options)


# Problems and their places -------------------------------------------------------------------------------------------


class Problems(Exception):
    """What is wrong with a part of a document: pairs of a place in it and a text."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__()
        self.problems = problems

    def texts(self) -> list[str]:
        """One text for each problem."""
        return [f"{place}: {text}" if place else text for place, text in self.problems]


def wrong(text: str) -> PydanticCustomError:
    """A problem with a value, at the place of the value."""
    return PydanticCustomError("at", "{text}", {"text": text})


def wrong_here(text: str) -> PydanticCustomError:
    """A problem with a value that the text names, at the place of the table it is in."""
    return PydanticCustomError("here", "{text}", {"text": text})


def wrong_inside(problems: Problems) -> PydanticCustomError:
    """Problems of a part that was validated by itself."""
    return PydanticCustomError("inside", "problems inside", {"problems": problems.problems})


def validated(model: type[Entry], document: Any, reading: Reading) -> Any:
    """The model of a table; raises ``Problems``."""
    if not isinstance(document, Mapping):
        raise Problems([("", f"{model.what} is a table of names and values, got {short(document)}")])
    try:
        return model.model_validate(document, context=reading)
    except ValidationError as error:
        found = error.errors(include_url=False)
    # Misspelt keys first: they are often why another one is missing.
    found.sort(key=lambda each: each["type"] not in ("extra_forbidden", "invalid_key"))
    raise Problems([problem for each in found for problem in _problems_of(each, model)])


def _problems_of(found: Any, model: type[Entry]) -> list[tuple[str, str]]:
    *parents, name = found["loc"] or ("",)
    place, here = joined(*found["loc"]), joined(*parents)
    if found["type"] == "at":
        return [(place, found["ctx"]["text"])]
    if found["type"] == "inside":
        return [(joined(*found["loc"], inner), text) for inner, text in found["ctx"]["problems"]]
    if found["type"] == "missing":
        return [(here, f"{name!r} is missing: {model.about(name)}")]
    if found["type"] in ("extra_forbidden", "invalid_key"):
        return [(here, unknown_key(name, model.keys()))]
    return [(here, found["ctx"]["text"] if found["type"] == "here" else f"{name}: {found['msg']}")]


def joined(*parts: Any) -> str:
    """``instructions[0].columns.x``."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part:
            text += f".{part}" if text and not str(part).startswith(("[", ": ")) else str(part)
    return text


def unknown_key(key: Any, known: list[str]) -> str:
    """The text for a key that a table cannot have, with the nearest one that it can."""
    if not isinstance(key, str):
        return f"names are text, got {short(key)}; put it in quotes"
    otherwise = f"there are {', '.join(known)}"
    return f"no key {key!r} here; {suggestion(key, known, otherwise)}"


def short(value: Any) -> str:
    """A value in a message."""
    return shorten(repr(value))


def check_depth(document: Any, source: str) -> None:
    """Refuse nesting beyond the limit, also of what contains itself."""
    depth, level = 0, [document]
    while level and depth <= MAX_DEPTH:
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
        depth, level = depth + 1, inner
    if depth > MAX_DEPTH:
        raise LimitExceeded(f"{source}: nested more than {MAX_DEPTH} deep; no recipe is")


# Values --------------------------------------------------------------------------------------------------------------


#: What makes a field of a model: its validation and its schema.
Kind = tuple[Any, ...]


def kind_of(check: Callable[[Any, ValidationInfo], Any], schema: Schema) -> Kind:
    """Values that are validated by a function and described to editors by a schema."""
    return PlainValidator(check), WithJsonSchema(schema)


def _must(is_so: Callable[[Any], bool], what: str) -> Callable[[Any, ValidationInfo], Any]:
    def check(value: Any, info: ValidationInfo) -> Any:
        if not is_so(value):
            raise wrong(f"{what}, got {short(value)}")
        return value

    return check


def _each(check: Callable[[Any, ValidationInfo], Any]) -> Callable[[Any, ValidationInfo], Any]:
    """A table of names and values, each of which is checked."""

    def check_table(value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise wrong(f"a table of names and values, got {short(value)}")
        problems = []
        for name, each in value.items():
            try:
                check(each, info)
            except PydanticCustomError as error:
                problems.append((name, str((error.context or {})["text"])))
        if problems:
            raise wrong_inside(Problems(problems))
        return value

    return check_table


def expression_value(value: Any, info: ValidationInfo) -> Any:
    """A value that is an expression."""
    try:
        as_expression(value)
    except PoolishError as error:
        raise wrong(str(error)) from None
    return value


def column_value(value: Any, info: ValidationInfo) -> Any:
    """The expression of a new column, or a constant."""
    return value if value is None or isinstance(value, bool) or _is_number(value) else expression_value(value, info)


def plain_value(value: Any, info: ValidationInfo) -> Any:
    """A value that any file can hold."""
    try:
        plain(value)
    except TypeError as error:
        raise wrong(f"text, numbers, true, false, lists and tables, got {error}; write it as text") from None
    return value


def suite_value(value: Any, info: ValidationInfo) -> Any:
    """The suite in a table, or in the file of a path."""
    try:
        return Suite.load(path_in(value, reading_of(info).folder)) if isinstance(value, str) else Suite.from_dict(value)
    except (PoolishError, OSError) as error:
        raise wrong(str(error)) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_is_text = _must(lambda value: isinstance(value, str), "a text")
TEXT: Schema = {"type": "string", "minLength": 1}
EXPRESSION: Schema = {**TEXT, "examples": ["lang == 'en' and quality > 0.7"]}
COUNT: Schema = {"type": "integer", "minimum": 0}
_CONSTANT: Schema = {"type": ["number", "boolean", "null"]}
TABLE: Schema = {"type": "object"}

#: The kinds of values that options have.
KINDS: dict[str, Kind] = {
    "text": kind_of(_is_text, {"type": "string"}),
    "texts": kind_of(_each(_is_text), {**TABLE, "additionalProperties": {"type": "string"}}),
    "names": kind_of(_must(_are_names, "a list of names"), {"type": "array", "items": {"type": "string"}}),
    "number": kind_of(_must(_is_number, "a number"), {"type": "number"}),
    "count": kind_of(_must(_is_count, "a whole number, 0 or more"), COUNT),
    "values": kind_of(_each(plain_value), TABLE),
    "expression": kind_of(expression_value, EXPRESSION),
    "expressions": kind_of(_each(column_value), {**TABLE, "additionalProperties": {"anyOf": [EXPRESSION, _CONSTANT]}}),
    "suite": kind_of(suite_value, {"anyOf": [TEXT, TABLE]}),
}


def where_value(value: Any, info: ValidationInfo) -> Any:
    """A filter, or None."""
    return None if value is None else expression_value(value, info)


def named(about: str) -> Kind:
    """What makes a field a text that has to be there."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and value:
            return value
        raise wrong_here(f"{info.field_name}={short(value)}: a text, {about}")

    return kind_of(check, TEXT)


def by_rule(rule: Callable[..., Any], schema: Schema) -> Kind:
    """A value whose rule belongs to recipes in general; the rule's error names it."""

    def check(value: Any, info: ValidationInfo) -> Any:
        try:
            rule(value, info.data)
        except (PoolishError, TypeError, ValueError) as error:
            raise wrong_here(str(error)) from None
        return value

    return kind_of(check, schema)


def or_null(*schemas: Schema) -> Schema:
    """A schema of these and null."""
    return {"anyOf": [*schemas, {"type": "null"}]}
