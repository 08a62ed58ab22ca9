"""The tree of an expression: its nodes, the functions and constants it may hold, its limits, and its text.

    Node("constant", value=1)   Node("column", value="a")   Node("in", (left,), (1, 2))   Node("+", (left, right))
    Node("lower", (text,))      Node("contains", (text,), "rye")                          Node("cast", (x,), "int64")

Everything is checked when a tree is made, from text or with operators, before there is a table. Trees are followed by
recursion, so none is deeper than ``MAX_DEPTH``: a deeper node cannot be made.

The text of a tree parses to the same tree. Parentheses are written only where the parser would group otherwise, so
parsed and built expressions have the same text. Expressions are hashed, compared and pickled by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolish.errors import ConfigError, LimitExceeded
from poolish.printable import suggestion

#: An expression may list many values.
MAX_CHARACTERS = 4_194_304
MAX_DIGITS = 1_000
#: Nested parentheses: each costs the parser eight or nine calls, of the thousand that Python allows.
MAX_NESTING = 64
#: Levels of a tree; a chain such as ``a + b + c`` is as deep as it is long. Following one level takes two calls of the
#: thousand, so more than half of them are left to the caller. Arrow follows a filter that is pushed down on a stack of
#: its own, and ends the process between 500 and 600 levels where that has 512 KiB, as threads have on macOS.
MAX_DEPTH = 200
#: Nodes on one level: ``x + x``, sixty times over, has 2**60 of them.
MAX_WIDTH = 20_000

#: Each comparison, and what it is with its sides exchanged.
FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
COMPARISONS = tuple(FLIPPED)
#: Words that cannot name a column, unless in backquotes.
KEYWORDS = frozenset({"and", "or", "not", "in", "true", "false"})
#: Operators by precedence; everything else is a value, and binds strongest.
PRECEDENCE = {"or": 1, "and": 2, "not": 3, **dict.fromkeys([*COMPARISONS, "in"], 4), "+": 5, "-": 5,
              "*": 6, "/": 6, "%": 6, "negative": 7}  # fmt: skip
_VALUE = 8
_LEFT_ASSOCIATIVE = ("or", "and", "+", "-", "*", "/", "%")

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


@dataclass(frozen=True)
class Node:
    """A constant, a column, or an operation on other nodes.

    >>> Node("+", (Node("column", value="a"), Node("constant", value=1))).depth
    2
    """

    op: str
    args: tuple[Node, ...] = ()
    value: Any = None
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        depth = 1 + max((arg.depth for arg in self.args), default=0)
        if depth > MAX_DEPTH:
            raise LimitExceeded(
                f"an expression of more than {MAX_DEPTH} operations in a chain; write many alternatives as one list, "
                "by 'in' or is_in, or split it into several"
            )
        object.__setattr__(self, "depth", depth)


def walk(root: Node) -> Iterator[Node]:
    """A node and all below it, each before its own arguments and in the order of the text."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.args))


def constant_node(value: Any) -> Node:
    """The node of a Python or NumPy value; a time, which the grammar has no form for, is a cast."""
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
    """The negative of a node; that of a number is a number."""
    if node.op == "constant" and not isinstance(node.value, (bool, str)):
        return Node("constant", value=-node.value)
    return Node("negative", (node,))


# Functions ----------------------------------------------------------------------------------------------------------


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
        advice = suggestion(text, _TYPES, f"there are {', '.join(_TYPES)}")
        raise ConfigError(f"{text!r} is no type to cast to; {advice}")
    return text


#: What may be called: with one expression, or also with a text, which the function given here validates.
FUNCTIONS: Mapping[str, Callable[[str], str] | None] = {
    **dict.fromkeys(("abs", "length", "is_null", "is_finite", "lower", "upper", "strip")),
    **dict.fromkeys(("contains", "starts_with", "ends_with"), utf8),
    "matches": _regex,
    "cast": _type_name,
}


def checked_argument(function: str, text: Any) -> str:
    """The text argument of a function, validated as the parser does."""
    if not isinstance(text, str):
        raise ConfigError(f"{function} is asked with a text, got {text!r}")
    check = FUNCTIONS[function]
    assert check is not None
    return check(text)


def type_named(name: str) -> pa.DataType:
    """The type that ``cast`` knows by this name."""
    zoned = _ZONED.fullmatch(name)
    return pa.timestamp(zoned[1], tz=zoned[2]) if zoned else _TYPES[name]


# Limits -------------------------------------------------------------------------------------------------------------


def needs_parentheses(node: Node, i: int) -> bool:
    """Whether argument ``i`` binds weaker, or as weak where the parser would group it otherwise."""
    own, inner = PRECEDENCE.get(node.op, 0), PRECEDENCE.get(node.args[i].op, _VALUE)
    return inner < own or (inner == own and not (node.op in _LEFT_ASSOCIATIVE and i == 0))


def _nesting(node: Node) -> int:
    """How deep the parentheses in the text of a tree are nested, those of functions included."""
    is_call = bool(node.args) and node.op not in PRECEDENCE
    return max((_nesting(arg) + (is_call or needs_parentheses(node, i)) for i, arg in enumerate(node.args)), default=0)


def check_limits(root: Node) -> None:
    """Refuse trees too wide to follow, nested too deep to be parsed from their own text, or with bad constants."""
    level = [root]
    while level and len(level) <= MAX_WIDTH:
        for value in (value for node in level for value in _constants(node)):
            _check_constant(value)
        level = [arg for node in level for arg in node.args]
    if level or _nesting(root) >= MAX_NESTING:
        raise LimitExceeded(
            f"an expression of more than {MAX_NESTING} nested parentheses or {MAX_WIDTH:,} parts; "
            "write many alternatives with is_in, or use several filters"
        )


def _constants(node: Node) -> Iterable[Any]:
    return node.value if node.op == "in" else [node.value] if node.op == "constant" else []


def _check_constant(value: Any) -> None:
    if isinstance(value, str):
        utf8(value)
    elif isinstance(value, float) and math.isnan(value):
        raise ConfigError("nothing is equal to NaN, or larger, or smaller; ask with is_finite")
    elif not -(2**63) <= value < 2**64 and not isinstance(value, float):
        raise ConfigError("an integer of more than 64 bits, which no column holds; write it as a float, with a dot")


# Text ---------------------------------------------------------------------------------------------------------------


_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def text_of(node: Node) -> str:
    """The text of a tree, which parses to the same tree.

    >>> text_of(Node("negative", (Node("+", (Node("column", value="any name"), Node("constant", value=1))),)))
    '-(`any name` + 1)'
    """
    if node.op == "constant":
        return constant_text(node.value)
    if node.op == "column":
        is_plain = _NAME.fullmatch(node.value) and node.value not in KEYWORDS
        return str(node.value) if is_plain else f"`{node.value.replace('`', '``')}`"
    args = [f"({text_of(arg)})" if needs_parentheses(node, i) else text_of(arg) for i, arg in enumerate(node.args)]
    if node.op == "in":
        return f"{args[0]} in [{', '.join(map(constant_text, node.value))}]"
    if node.op == "negative":
        return f"-{args[0]}"
    if node.op == "not":
        return f"not {args[0]}"
    if node.op in PRECEDENCE:
        return f" {node.op} ".join(args)
    return f"{node.op}({args[0]}{'' if node.value is None else ', ' + constant_text(node.value)})"


def constant_text(value: Any) -> str:
    """A number, a text or a bool as the parser reads it.

    >>> print(constant_text("it's"), constant_text(True), constant_text(float("inf")))
    'it\\'s' true 1e999
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value.translate(_ESCAPES)}'"
    return repr(value).replace("inf", "1e999")


def short(text: str) -> str:
    """A text as errors quote it."""
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def canonical(node: Node) -> Node:
    """One tree for all equivalent ones, for its text only: sides, conditions and lists in one order."""
    if node.op in ("and", "or"):
        ordered = sorted({text_of(arg): arg for arg in map(canonical, _chain(node, node.op))}.items())
        # One node of many arguments: in pairs it could be deeper than the original. The text is the same.
        return ordered[0][1] if len(ordered) == 1 else Node(node.op, tuple(arg for _, arg in ordered))
    args = tuple(map(canonical, node.args))
    if node.op in FLIPPED and args[0].op == "constant" != args[1].op:
        return Node(FLIPPED[node.op], args[::-1])
    if node.op == "in":
        by_text = {constant_text(value): value for value in node.value}
        return Node("in", args, tuple(by_text[text] for text in sorted(by_text)))
    return Node(node.op, args, node.value)


def _chain(node: Node, op: str) -> Iterator[Node]:
    if node.op != op:
        yield node
    else:
        for arg in node.args:
            yield from _chain(arg, op)
