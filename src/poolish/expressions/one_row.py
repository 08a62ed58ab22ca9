"""The answer of an expression for a single row, where Python's own numbers and texts give the same as the evaluator.

``evaluate`` works on columns, which costs 160 us for one row. What is compiled here takes a microsecond and knows less:
it answers only for rows and operations for which Python has exactly the same rules, and raises ``Undecided`` for all
others, such as nulls, overflow, division by zero or rounded integers. Then the evaluator decides.
``tests/expressions/test_one_row.py`` compares both on every operation and every kind of value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.expressions.expression import Expression
from poolish.expressions.nodes import COMPARISONS, Node

#: From the values of a row, in the order of its schema, to the value of a node.
OfRow = Callable[[Sequence[Any]], Any]
Compiled = tuple[str, OfRow]

#: Integers up to this are floats as well.
_EXACT = 2**53

_SIGNS: dict[str, Callable[[Any, Any], Any]] = dict(
    zip(COMPARISONS, (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge), strict=True)
)
_CALCULATIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "negative": operator.neg,
    "abs": abs,
}


class Undecided(Exception):
    """Python's rules may differ here: ask the evaluator."""


def for_one_row(expression: Expression, schema: pa.Schema) -> OfRow | None:
    """The function of a row that answers as ``expression`` does, or raises ``Undecided``; None if there is none.

    >>> from poolish.expressions import parse
    >>> of_row = for_one_row(parse("n * 2 < limit"), pa.schema({"n": pa.int64(), "limit": pa.float64()}))
    >>> of_row([3, 6.5]), of_row([3, 6.0])
    (True, False)
    """
    found = _compiled(expression._root, schema)
    return found[1] if found is not None and found[0] == "bool" else None


def _compiled(node: Node, schema: pa.Schema) -> Compiled | None:
    """The kind of a node's values (int, float, bool, text) and its function; None where Python may differ."""
    if node.op == "constant":
        kind = {int: "int", float: "float", bool: "bool", str: "text"}.get(type(node.value))
        value = node.value
        return None if kind is None else (kind, lambda row: value)
    if node.op == "column":
        return _column(node.value, schema)
    args = [_compiled(arg, schema) for arg in node.args]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    arg_kinds, functions = [kind for kind, _ in known], [function for _, function in known]
    if node.op in COMPARISONS:
        return _comparison(node.op, arg_kinds, functions)
    if node.op in ("and", "or", "not"):
        return _logic(node.op, arg_kinds, functions)
    if node.op in _CALCULATIONS and {"int", "float"}.issuperset(arg_kinds):
        return _integers(node.op, functions) if set(arg_kinds) == {"int"} else _floats(node.op, functions)
    if node.op == "in":
        return _membership(node.value, arg_kinds[0], functions[0])
    return _function(node, arg_kinds[0], functions[0])


def _column(name: str, schema: pa.Schema) -> Compiled | None:
    places = schema.get_all_field_indices(name)
    if len(places) != 1:
        return None
    place, type_ = places[0], schema.field(name).type
    if kinds.is_integer(type_):
        kind = "int"
    elif kinds.is_float32(type_) or kinds.is_float64(type_):
        kind = "float"
    elif kinds.is_boolean(type_):
        kind = "bool"
    elif kinds.is_large_string(type_) or kinds.is_string(type_):
        kind = "text"
    else:
        return None

    def value(row: Sequence[Any]) -> Any:
        found = row[place]
        if found is None:
            raise Undecided
        return found

    return kind, value


def _comparison(sign: str, arg_kinds: list[str], functions: list[OfRow]) -> Compiled | None:
    """Numbers are compared exactly, whatever their types, and text by code points, which is the order of UTF-8."""
    is_number = {"int", "float"}.issuperset(arg_kinds)
    is_alike = len(set(arg_kinds)) == 1 and (arg_kinds[0] == "text" or sign in ("==", "!="))
    if not (is_number or is_alike):
        return None
    compare, (left, right) = _SIGNS[sign], functions
    return "bool", lambda row: compare(left(row), right(row))


def _logic(op: str, arg_kinds: list[str], functions: list[OfRow]) -> Compiled | None:
    if set(arg_kinds) != {"bool"}:
        return None
    if op == "not":
        (only,) = functions
        return "bool", lambda row: not only(row)
    join, (left, right) = (operator.and_ if op == "and" else operator.or_), functions
    return "bool", lambda row: join(left(row), right(row))  # both sides: either may be undecided


def _integers(op: str, functions: list[OfRow]) -> Compiled:
    calculate = _CALCULATIONS[op]

    def result(row: Sequence[Any]) -> Any:
        values = [function(row) for function in functions]
        for value in values:
            _check_int64(value)
        if op in ("/", "%") and values[1] == 0:
            raise Undecided
        if op == "/":
            return _exact_float(values[0]) / _exact_float(values[1])
        found = calculate(*values)
        _check_int64(found)
        return found

    return "float" if op == "/" else "int", result


def _floats(op: str, functions: list[OfRow]) -> Compiled | None:
    if op == "%":
        return None
    calculate = _CALCULATIONS[op]

    def result(row: Sequence[Any]) -> Any:
        values = [_exact_float(function(row)) for function in functions]
        if op == "/" and values[1] == 0:
            raise Undecided
        return calculate(*values)

    return "float", result


def _check_int64(value: int) -> None:
    if not -(2**63) <= value < 2**63:
        raise Undecided


def _exact_float(value: float) -> float:
    if type(value) is int and not -_EXACT <= value <= _EXACT:
        raise Undecided
    return float(value)


def _membership(values: tuple[Any, ...], kind: str, function: OfRow) -> Compiled | None:
    types: dict[str, set[type]] = {"int": {int, float}, "float": {int, float}, "text": {str}}
    if not types.get(kind, set()).issuperset(map(type, values)):
        return None
    chosen = frozenset(values)
    return "bool", lambda row: function(row) in chosen


def _function(node: Node, kind: str, function: OfRow) -> Compiled | None:
    if node.op == "is_null":
        return "bool", lambda row: function(row) is None  # a null is undecided, so never
    if node.op == "is_finite" and kind in ("int", "float"):
        return "bool", lambda row: math.isfinite(function(row))
    if kind != "text":
        return None
    pattern = node.value
    if node.op == "length":
        return "int", lambda row: len(function(row))
    if node.op == "contains" and pattern:
        return "bool", lambda row: pattern in function(row)
    if node.op in ("starts_with", "ends_with") and pattern:
        ask = str.startswith if node.op == "starts_with" else str.endswith
        return "bool", lambda row: ask(function(row), pattern)
    if node.op == "matches":
        return "bool", lambda row: pc.match_substring_regex(pa.scalar(function(row)), pattern=pattern).as_py()
    if node.op in ("lower", "upper"):
        change = str.lower if node.op == "lower" else str.upper

        def changed(row: Sequence[Any]) -> str:
            text = function(row)
            if not text.isascii():  # Unicode has more rules than one
                raise Undecided
            return change(text)

        return "text", changed
    return None
