"""Claims about rows, such as ``end >= start and price > 0``, in the grammar of poolish/grammar.py.

Its functions here are ``abs``, ``length``, ``is_null`` and ``is_finite``.

Evaluated for all rows at once by Arrow. Where that would not be exact (an integer that overflows, or one beyond 2**53
that meets a float) the rows are evaluated one by one with Python's numbers, which are. Null is unknown: a row for which
the answer is unknown holds. Division is that of floats, and by zero it gives infinity or NaN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.grammar import Functions, Node, parse_node, walk
from poolish.guards.leaves import Mask, Rows, Unfit

_FUNCTIONS: Functions = dict.fromkeys(("abs", "length", "is_null", "is_finite"))


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
        self.columns = tuple(dict.fromkeys(node.value for node in walk(root) if node.what == "column"))

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        # Pickle would go several calls deep for each level of the tree; the text has no levels.
        return parse, (self.text,)

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
    return Expression(text, parse_node(text, functions=_FUNCTIONS))


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

_COMPARISONS = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


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
