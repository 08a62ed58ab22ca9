"""What an expression of recipes may hold: which functions with which arguments, which constants, and how much of it.

All of it is checked when an expression is made, from text or with operators, before there is any table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolish.errors import ConfigError, LimitExceeded
from poolish.grammar import MAX_NESTING, Functions, Node
from poolish.recipes.expressions.text import nesting

MAX_WIDTH = 20_000  # x + x, sixty times over, has 2**60 parts

_TYPES = {
    **{str(type_): type_ for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(type_): type_ for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{str(type_): type_ for type_ in (pa.bool_(), pa.string(), pa.large_string())},
    **{f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date32": pa.date32(),
}
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([\w/+:-]+)\]")


def constant_node(value: Any) -> Node:
    """A value of Python or NumPy as part of an expression; a time, which the grammar has no form for, as a cast."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, datetime):
        name = "timestamp[us]" if value.tzinfo is None else "timestamp[us, tz=UTC]"
        moment = value if value.tzinfo is None else value.astimezone(UTC)
        return Node("cast", (Node("constant", value=moment.isoformat()),), name)
    if isinstance(value, date):
        return Node("cast", (Node("constant", value=value.isoformat()),), "date32")
    if value is None:
        raise ConfigError("nothing can be compared with None; ask with .is_null()")
    if not isinstance(value, (bool, int, float, str)):
        raise ConfigError(f"an expression holds numbers, text, bools and times, got {type(value).__name__} {value!r}")
    return Node("constant", value=value)


def negative_node(node: Node) -> Node:
    """As the parser has it: the negative of a number is a number."""
    if node.what == "constant" and not isinstance(node.value, (bool, str)):
        return Node("constant", value=-node.value)
    return Node("negative", (node,))


def checked_argument(function: str, text: Any) -> str:
    """The text that a function is asked with, as the parser would take it."""
    if not isinstance(text, str):
        raise ConfigError(f"{function} is asked with a text, got {text!r}")
    check = FUNCTIONS[function]
    assert check is not None
    return check(text)


def utf8(text: str) -> str:
    """The text itself, if Arrow can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{text!r} has no UTF-8 form") from None
    return text


def _regex(text: str) -> str:
    try:
        pc.match_substring_regex(pa.scalar(""), pattern=utf8(text))
    except pa.ArrowInvalid as error:
        raise ConfigError(str(error)) from None
    return text


def _type_name(text: str) -> str:
    if text not in _TYPES and not _ZONED.fullmatch(text):
        near = get_close_matches(text, _TYPES, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_TYPES)}"
        raise ConfigError(f"{text!r} is no type to cast to; {meant}")
    return text


def type_named(name: str) -> pa.DataType:
    """The type that ``cast`` calls so."""
    zoned = _ZONED.fullmatch(name)
    return pa.timestamp(zoned[1], tz=zoned[2]) if zoned else _TYPES[name]


FUNCTIONS: Functions = {
    **dict.fromkeys(("abs", "length", "is_null", "is_finite", "lower", "upper", "strip")),
    **dict.fromkeys(("contains", "starts_with", "ends_with"), utf8),
    "matches": _regex,
    "cast": _type_name,
}


def check_limits(root: Node) -> None:
    """Few enough parts to be followed, and few enough parentheses for its own text to be parsed again."""
    level = [root]
    while level and len(level) <= MAX_WIDTH:
        for value in (value for node in level for value in _constants(node)):
            _check_constant(value)
        level = [part for node in level for part in node.parts]
    if level or nesting(root) >= MAX_NESTING:
        raise LimitExceeded(
            f"an expression of more than {MAX_NESTING} parentheses in each other or {MAX_WIDTH:,} parts; "
            "say many alternatives with is_in, or use several filters"
        )


def _constants(node: Node) -> Iterable[Any]:
    return node.value if node.what == "in" else [node.value] if node.what == "constant" else []


def _check_constant(value: Any) -> None:
    if isinstance(value, str):
        utf8(value)
    elif isinstance(value, float) and math.isnan(value):
        raise ConfigError("nothing is equal to NaN, or larger, or smaller; ask with is_finite")
    elif not -(2**63) <= value < 2**64 and not isinstance(value, float):
        raise ConfigError("an integer of more than 64 bits, which no column holds; write it as a float, with a dot")
