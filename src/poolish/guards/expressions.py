"""Expressions over columns, such as ``end >= start and price > 0``: a small language of our own, never Python's.

    expression   or-parts:   and-parts joined by "or"
    and-part     not-parts joined by "and";   not-part   ["not"] comparison
    comparison   sum [op sum ...]             == != < <= > >=, chained as in Python; ["not"] "in" [value, ...]
    sum          product [+ - product ...];   product    factor [* / % factor ...];   factor   ["-"] value
    value        12   -1.5e3   "text"   true   false   column   column.part   `any name`   f(value)   ( expression )
    f            abs   length   is_null   is_finite

Evaluated for all rows at once by Arrow. Where that would not be exact (an integer that overflows, or one beyond 2**53
that meets a float) the rows are evaluated one by one with Python's numbers, which are. Null is unknown: a row for which
the answer is unknown holds. Division is that of floats, and by zero it gives infinity or NaN.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.errors import ConfigError, LimitExceeded
from poolish.guards.leaves import Mask, Rows, Unfit

MAX_CHARACTERS = 4_096
MAX_DEPTH = 64
MAX_DIGITS = 1_000

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<quoted>`(?:[^`]|``)+`)"
    r"|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)"
    r"|(?P<sign><=|>=|==|!=|[-+*/%<>()\[\],]))"
)
_SPACE = re.compile(r"\s*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_COMPARISONS: dict[str, str] = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
WORDS = frozenset({"and", "or", "not", "in", "true", "false"})

#: Names that may be called: with one part, or with a part and a text that the function given here checks.
Functions = Mapping[str, Callable[[str], str] | None]
_FUNCTIONS: Functions = dict.fromkeys(("abs", "length", "is_null", "is_finite"))


@dataclass(frozen=True)
class Node:
    """A part of an expression: a constant, a column, or something done to other parts."""

    what: str
    parts: tuple[Node, ...] = ()
    value: Any = None


class Expression:
    """A parsed expression.

    >>> expression = parse("end >= start and price > 0")
    >>> expression.columns
    ('end', 'start', 'price')
    >>> expression.holds(Rows.of({"start": [1, 5], "end": [2, 4], "price": [0.5, 0.5]}))
    array([ True, False])
    """

    def __init__(self, text: str, root: Node) -> None:
        self.text, self._root = text, root
        self.columns = tuple(dict.fromkeys(node.value for node in _walk(root) if node.what == "column"))

    def holds(self, rows: Rows) -> Mask:
        """For each row whether it is true, or unknown; ``Unfit`` if columns are missing or cannot be compared so."""
        columns = {name: rows[name] for name in self.columns}
        kind = self._kind({name: _kind_of(column) for name, column in columns.items()})
        if kind not in ("bool", "null"):
            raise Unfit(f"{self.text!r} is no claim that a row could break, but {kind}")
        try:
            found = _vector(self._root, {name: column.to_arrow() for name, column in columns.items()})
        except (pa.ArrowInvalid, OverflowError):
            return self.holds_one_by_one(rows)
        if isinstance(found, pa.Scalar):
            return np.full(len(rows), found.as_py() is not False)
        filled = found.fill_null(True) if found.null_count else found
        return np.asarray(filled.to_numpy(zero_copy_only=False), np.bool_)

    def holds_one_by_one(self, rows: Rows) -> Mask:
        """The same, row by row with Python's own numbers: slower by far, and exact for all of them."""
        values = {name: rows[name].to_arrow().to_pylist() for name in self.columns}
        answers = (
            _single(self._root, {name: listed[i] for name, listed in values.items()}) is not False
            for i in range(len(rows))
        )
        return np.fromiter(answers, np.bool_, len(rows))

    def _kind(self, kinds_of: dict[str, str]) -> str:
        try:
            return _check(self._root, kinds_of)
        except Unfit as error:
            raise Unfit(f"{self.text!r}: {error}") from None


def parse(text: str) -> Expression:
    """The expression in a text; what it cannot be is a ConfigError that shows where."""
    return Expression(text, parse_node(text))


def parse_node(text: str, *, functions: Functions = _FUNCTIONS, max_characters: int = MAX_CHARACTERS) -> Node:
    """The tree of an expression: the one parser for all rooms, each with the functions that it can evaluate."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"an expression is text such as 'end >= start', got {text!r}")
    if len(text) > max_characters:
        raise LimitExceeded(f"an expression of {len(text):,} characters; the limit is {max_characters:,}")
    return _Parser(text, functions).whole()


# Parsing ----------------------------------------------------------------------------------------------------------


class _Parser:
    """One token at a time, each rule of the grammar a method."""

    def __init__(self, text: str, functions: Functions) -> None:
        self._text, self._place, self._depth = text, 0, 0
        self._functions = functions
        self._kind, self._token, self._start = "", "", 0
        self._next()

    def whole(self) -> Node:
        root = self._or()
        if self._kind != "end":
            self._fail("the end was expected here")
        return root

    def _next(self) -> None:
        rest = _SPACE.match(self._text, self._place).end()  # type: ignore[union-attr]
        if rest == len(self._text):
            self._kind, self._token, self._start = "end", "", len(self._text)
            return
        match = _TOKEN.match(self._text, self._place)
        self._start = rest
        if match is None:
            self._fail(f"{self._text[rest]!r} has no meaning here")
        self._kind, self._token, self._place = str(match.lastgroup), match[str(match.lastgroup)], match.end()

    def _take(self, *tokens: str) -> str | None:
        if self._kind in ("sign", "name") and self._token in tokens:
            token = self._token
            self._next()
            return token
        return None

    def _need(self, token: str) -> None:
        if self._take(token) is None:
            self._fail(f"{token!r} was expected here")

    def _fail(self, why: str, start: int | None = None) -> NoReturn:
        place = self._start if start is None else start
        raise ConfigError(f"expression {self._text!r}, at character {place + 1}: {why}")

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise LimitExceeded(f"an expression nested more than {MAX_DEPTH} deep; split it into several")
        node = self._and()
        while self._take("or"):
            node = Node("or", (node, self._and()))
        self._depth -= 1
        return node

    def _and(self) -> Node:
        node = self._not()
        while self._take("and"):
            node = Node("and", (node, self._not()))
        return node

    def _not(self) -> Node:
        n_nots = 0
        while self._take("not"):
            n_nots += 1
        node = self._comparison()
        return Node("not", (node,)) if n_nots % 2 else node if not n_nots else Node("not", (Node("not", (node,)),))

    def _comparison(self) -> Node:
        left = self._sum()
        claims: list[Node] = []
        while (sign := self._take(*_COMPARISONS, "in", "not")) is not None:
            if sign == "not":
                self._need("in")
            if sign in ("in", "not"):
                choice = Node("in", (left,), self._choices())
                claims.append(choice if sign == "in" else Node("not", (choice,)))
                break
            right = self._sum()
            claims.append(Node(sign, (left, right)))
            left = right
        node = claims[0] if claims else left
        for claim in claims[1:]:
            node = Node("and", (node, claim))
        return node

    def _choices(self) -> tuple[Any, ...]:
        self._need("[")
        chosen = [self._constant()]
        while self._take(","):
            chosen.append(self._constant())
        self._need("]")
        return tuple(chosen)

    def _constant(self) -> Any:
        start = self._start
        node = self._factor()
        if node.what != "constant":
            self._fail("a list holds numbers and text only", start)
        return node.value

    def _sum(self) -> Node:
        node = self._product()
        while (sign := self._take("+", "-")) is not None:
            node = Node(sign, (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._factor()
        while (sign := self._take("*", "/", "%")) is not None:
            node = Node(sign, (node, self._factor()))
        return node

    def _factor(self) -> Node:
        negative = False
        while self._take("-"):
            negative = not negative
        node = self._value()
        if not negative:
            return node
        is_number = (
            node.what == "constant" and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
        )
        return Node("constant", value=-node.value) if is_number else Node("negative", (node,))

    def _value(self) -> Node:
        kind, token, start = self._kind, self._token, self._start
        if kind == "sign" and token == "(":
            self._next()
            node = self._or()
            self._need(")")
            return node
        if kind in ("end", "sign") or (kind == "name" and token in WORDS - {"true", "false"}):
            self._fail("a number, a text, a column or '(' was expected here")
        self._next()
        if kind == "number":
            if len(token) > MAX_DIGITS:
                self._fail(f"a number of more than {MAX_DIGITS:,} digits", start)
            return Node("constant", value=float(token) if set(token) & set(".eE") else int(token))
        if kind == "text":
            return Node("constant", value=re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), token[1:-1]))
        if kind == "quoted":
            return Node("column", value=token[1:-1].replace("``", "`"))
        if token in ("true", "false"):
            return Node("constant", value=token == "true")
        if self._take("("):
            return self._call(token, start)
        return Node("column", value=token)

    def _call(self, function: str, start: int) -> Node:
        if function not in self._functions:
            self._fail(f"{function!r} is no function here, there are {', '.join(self._functions)}", start)
        inner, check = self._or(), self._functions[function]
        value = None if check is None else self._checked_text(check)
        self._need(")")
        return Node(function, (inner,), value)

    def _checked_text(self, check: Callable[[str], str]) -> str:
        self._need(",")
        start = self._start
        node = self._factor()
        if node.what != "constant" or not isinstance(node.value, str):
            self._fail("a text in quotes was expected here", start)
        try:
            return check(node.value)
        except ConfigError as error:
            self._fail(str(error), start)


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _walk(part)


# Kinds: what goes with what ---------------------------------------------------------------------------------------


def _kind_of(column: Any) -> str:
    type_ = column.type
    if kinds.is_integer(type_) or kinds.is_floating(type_):
        return "number"
    for is_it, word in ((kinds.is_boolean, "bool"), (kinds.is_large_string, "text"), (kinds.is_null, "null"),
                        (kinds.is_temporal, str(type_)), (kinds.is_large_binary, "bytes")):  # fmt: skip
        if is_it(type_):
            return word
    return f"{column.told} (only length and is_null are asked of it)"


def _check(node: Node, columns: dict[str, str]) -> str:
    """The kind of what a part gives, or ``Unfit``."""
    if node.what == "constant":
        return "bool" if isinstance(node.value, bool) else "text" if isinstance(node.value, str) else "number"
    if node.what == "column":
        return columns[node.value]
    found = [_check(part, columns) for part in node.parts]
    if node.what == "is_null":
        return "bool"
    if node.what == "length":
        if found[0] in ("number", "bool"):
            raise Unfit(f"a {found[0]} has no length")
        return "number"
    if node.what in ("and", "or", "not"):
        return _all(found, "bool", node.what)
    if node.what in ("+", "-", "*", "/", "%", "negative", "abs"):
        return _all(found, "number", node.what)
    if node.what == "is_finite":
        _all(found, "number", node.what)
        return "bool"
    if node.what == "in":
        found += [_check(Node("constant", value=value), columns) for value in node.value]
    known = [kind for kind in found if kind != "null"]
    if any("(" in kind for kind in known) or len(set(known)) > 1:
        raise Unfit(f"{' and '.join(dict.fromkeys(known))} have no order")
    return "bool"


def _all(found: list[str], wanted: str, what: str) -> str:
    other = next((kind for kind in found if kind not in (wanted, "null")), None)
    if other is not None:
        raise Unfit(f"{what!r} is for {wanted}s, got {other}")
    return wanted


# All rows at once -------------------------------------------------------------------------------------------------


def _vector(node: Node, columns: dict[str, pa.Array]) -> Any:
    if node.what == "constant":
        return pa.scalar(node.value)
    if node.what == "column":
        return columns[node.value]
    parts = [_vector(part, columns) for part in node.parts]
    if node.what == "in":
        return _is_in(parts[0], node.value)
    if node.what == "length":
        return _length(parts[0])
    if node.what in _COMPARISONS:
        return pc.call_function(_COMPARISONS[node.what], _same_kind(parts))
    return _VECTOR[node.what](*parts)


def _is_in(values: Any, chosen: tuple[Any, ...]) -> Any:
    found = pc.equal(*_same_kind([values, pa.scalar(chosen[0])]))
    for value in chosen[1:]:
        found = pc.or_kleene(found, pc.equal(*_same_kind([values, pa.scalar(value)])))
    return found


def _same_kind(parts: list[Any]) -> list[Any]:
    """Arrow would round a float64 constant to the float32 of its column, and wants one kind of text."""
    if any(kinds.is_floating(part.type) for part in parts) and all(
        kinds.is_integer(part.type) or kinds.is_floating(part.type) for part in parts
    ):
        return [_float64(part) for part in parts]
    if any(kinds.is_string(part.type) for part in parts):
        return [part.cast(pa.large_string()) for part in parts]
    return parts


def _float64(values: Any) -> Any:
    """As float64, or ArrowInvalid where that is not exact."""
    return values.cast(pa.float64())


def _length(values: Any) -> Any:
    if kinds.is_string(values.type) or kinds.is_large_string(values.type):
        return pc.utf8_length(values)
    if kinds.is_binary(values.type) or kinds.is_large_binary(values.type):
        return pc.binary_length(values)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage if not kinds.is_struct(values.storage.type) else pc.struct_field(values.storage, "data")
    return pc.list_value_length(values)


def _divided(left: Any, right: Any) -> Any:
    return pc.divide(_float64(left), _float64(right))


def _remainder(left: Any, right: Any) -> Any:
    """With Python's sign, which is NumPy's and not C's; row by row where there are nulls, or integers by zero."""
    numbers = [_values(part) for part in _widened([left, right])]
    if numbers[1].dtype.kind == "i" and not numbers[1].all():
        raise pa.ArrowInvalid("an integer has no remainder by zero")
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.mod(*numbers)
    return pa.array(found) if found.ndim else pa.scalar(found.item())


def _values(part: Any) -> Any:
    if isinstance(part, pa.Scalar):
        part = pa.array([part.as_py()], part.type)
        return _values(part)[0]
    return part.to_numpy(zero_copy_only=True)  # ArrowInvalid, if there are nulls


def _arithmetic(name: str) -> Callable[..., Any]:
    def apply(*parts: Any) -> Any:
        return pc.call_function(name, _widened(list(parts)))

    return apply


def _widened(parts: list[Any]) -> list[Any]:
    """Numbers of the widest type of their kind, so that int8 does not overflow at 128."""
    if any(kinds.is_floating(part.type) for part in parts):
        return [_float64(part) for part in parts]
    return [part.cast(pa.int64()) for part in parts]


def _finite(values: Any) -> Any:
    return pc.is_finite(values) if kinds.is_floating(values.type) else pc.is_finite(_float64(values))


_VECTOR: dict[str, Callable[..., Any]] = {
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "+": _arithmetic("add_checked"),
    "-": _arithmetic("subtract_checked"),
    "*": _arithmetic("multiply_checked"),
    "/": _divided,
    "%": _remainder,
    "negative": _arithmetic("negate_checked"),
    "abs": _arithmetic("abs_checked"),
    "is_null": pc.is_null,
    "is_finite": _finite,
}


# One row ----------------------------------------------------------------------------------------------------------


def _single(node: Node, row: dict[str, Any]) -> Any:
    if node.what == "constant":
        return node.value
    if node.what == "column":
        return row[node.value]
    if node.what in ("and", "or"):
        return _kleene(node.what, *(_single(part, row) for part in node.parts))
    parts = [_single(part, row) for part in node.parts]
    if node.what == "is_null":
        return parts[0] is None
    if any(part is None for part in parts):
        return None
    if node.what == "in":
        return any(parts[0] == value for value in node.value)
    return _SINGLE[node.what](*parts)


def _kleene(what: str, left: bool | None, right: bool | None) -> bool | None:
    decisive = what == "or"
    if left is decisive or right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _quotient(left: float, right: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return float(np.float64(left) / np.float64(right))


def _modulo(left: float, right: float) -> float:
    if right == 0 or (isinstance(left, float) and not math.isfinite(left)):
        return math.nan
    return left % right


def _or_infinite(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operation for which an integer beyond all floats is infinite where it meets one."""

    def apply(left: Any, right: Any) -> Any:
        try:
            return operation(left, right)
        except OverflowError:
            return operation(_as_float(left), _as_float(right))

    return apply


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number > 0 or -1)


_SINGLE: dict[str, Callable[..., Any]] = {
    "not": lambda value: not value,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "+": _or_infinite(operator.add),
    "-": _or_infinite(operator.sub),
    "*": _or_infinite(operator.mul),
    "/": _or_infinite(_quotient),
    "%": _or_infinite(_modulo),
    "negative": lambda value: -value,
    "abs": abs,
    "length": len,
    "is_finite": lambda value: math.isfinite(value),
}
