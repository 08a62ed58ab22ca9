"""The rules of expressions: for each operation, types and values in, type and value out.

Numbers are compared as the numbers they are, whatever holds them: a float32 of 0.7 is not the constant 0.7, and an
integer beyond 2**53 is not rounded to meet a float. A constant is moved to the next value that its column can hold, so
columns are not converted and parquet can skip by its statistics. Integers calculate in int64, else in float64; what
Arrow could only answer by rounding or overflow is refused. Null is unknown, as in SQL; an integer % 0 is unknown too.
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

from poolish.errors import RecipeError
from poolish.grammar import COMPARISONS, FLIPPED, Node
from poolish.recipes.expressions.nodes import type_named
from poolish.recipes.expressions.parts import Part, as_array, constant_part, is_bytes, kind_of, need_kind
from poolish.recipes.expressions.text import constant_text

Found = tuple[pa.DataType, Any]

_PYTHON = dict(
    zip(COMPARISONS, (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge), strict=True)
)
_ARROW = dict(
    zip(COMPARISONS, (pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal), strict=True)
)


def _alike(type_: pa.DataType, *parts: Part) -> list[Any]:
    """Values of one type, and all Arrow expressions if one is: Arrow looks at the first argument only."""
    values = [part.arrow(type_) for part in parts]
    if not any(isinstance(value, pc.Expression) for value in values):
        return values
    return [pc.scalar(value) if isinstance(value, pa.Scalar) else value for value in values]


def _logic(node: Node, *parts: Part) -> Found:
    need_kind("bool", node.what, *parts)
    function = {"and": pc.and_kleene, "or": pc.or_kleene, "not": pc.invert}[node.what]
    return pa.bool_(), function(*_alike(pa.bool_(), *parts))


def _compare(node: Node, left: Part, right: Part) -> Found:
    type_ = _common(left, right)
    if left.is_constant and right.is_constant:
        return pa.bool_(), pa.scalar(bool(_PYTHON[node.what](left.node.value, right.node.value)))
    if kind_of(type_) == "number" and (left.is_constant or right.is_constant):
        if left.is_constant:
            return pa.bool_(), _compare_number(FLIPPED[node.what], right, left.node.value)
        return pa.bool_(), _compare_number(node.what, left, right.node.value)
    return pa.bool_(), _ARROW[node.what](*_alike(type_, left, right))


def _common(left: Part, right: Part) -> pa.DataType:
    """The type in which two parts can be compared; kinds that cannot be are an error."""
    found = {kind for kind in (kind_of(left.type), kind_of(right.type)) if kind != "null"}
    types = [part.type for part in (left, right) if not kinds.is_null(part.type)] or [pa.bool_()]
    if len(found) > 1 or any(kinds.is_nested(type_) or isinstance(type_, pa.ExtensionType) for type_ in types):
        raise RecipeError(f"{left} cannot be compared with {right}; {_advice(left, right)}")
    if len(set(types)) == 1:
        return types[0]
    if found == {"number"}:
        return pa.float64() if any(map(kinds.is_floating, types)) else pa.int64()
    if found == {"text"}:
        # The column's own type where the other is a constant, so that the column is not copied.
        columns = [part.type for part in (left, right) if not part.is_constant]
        return columns[0] if len(columns) == 1 else pa.large_string()
    if found == {"bytes"}:
        return pa.large_binary()
    units = ["s", "ms", "us", "ns"]
    return pa.timestamp(max((type_.unit for type_ in types), key=units.index), tz=types[0].tz)


def _advice(left: Part, right: Part) -> str:
    """How two parts of different kinds could be compared; a time that was written as text has to say that it is one."""
    for text, other in ((left, right), (right, left)):
        if text.is_constant and kind_of(text.type) == "text":
            told = constant_text(text.node.value)
            if kinds.is_timestamp(other.type) and other.type.tz is not None:
                return f"write a time with its zone, such as cast('2026-01-31T00:00:00Z', '{other.type}')"
            if kinds.is_timestamp(other.type) or kinds.is_date32(other.type):
                return f"write cast({told}, '{'date32' if kinds.is_date32(other.type) else other.type}')"
    return "cast one of them first"


def _compare_number(sign: str, part: Part, constant: float) -> Any:
    """Compare with a constant that the type of the column may not hold: with the next values that it does."""
    if kinds.is_null(part.type):
        return part.arrow(pa.bool_())
    below, above = _neighbours(constant, part.type)
    if below == above:
        return _ARROW[sign](part.value, pa.scalar(below, part.type))
    if sign in ("<", "<=") and below is not None:
        return pc.less_equal(part.value, pa.scalar(below, part.type))
    if sign in (">", ">=") and above is not None:
        return pc.greater_equal(part.value, pa.scalar(above, part.type))
    # Beyond all values of the type, or between two of them: no row is like that, except that null stays unknown.
    never = pc.less(part.value, part.value)
    is_true = sign == "!=" or (sign in ("<", "<=") and above is None) or (sign in (">", ">=") and below is None)
    return pc.invert(never) if is_true else never


def _neighbours(constant: float, type_: pa.DataType) -> tuple[float | None, float | None]:
    """The values of a type next to a number, below and above; twice itself if the type holds it.

    >>> _neighbours(2.5, pa.int8()), _neighbours(300, pa.int8()), _neighbours(0.5, pa.float32())
    ((2, 3), (127, None), (0.5, 0.5))
    """
    return _float_neighbours(constant, type_) if kinds.is_floating(type_) else _integer_neighbours(constant, type_)


def _integer_neighbours(constant: float, type_: pa.DataType) -> tuple[int | None, int | None]:
    limits = np.iinfo(type_.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    if constant > high:
        return high, None
    if constant < low:
        return None, low
    return math.floor(constant), math.ceil(constant)


def _float_neighbours(constant: float, type_: pa.DataType) -> tuple[float, float]:
    dtype = type_.to_pandas_dtype()
    with np.errstate(over="ignore", under="ignore"):
        near = dtype(float(constant))
        # Python compares an integer with a float exactly.
        if float(near) == constant:
            return float(near), float(near)
        other = np.nextafter(near, dtype(math.inf if float(near) < constant else -math.inf))
    return min(float(near), float(other)), max(float(near), float(other))


def _is_in(node: Node, part: Part) -> Found:
    for value in node.value:
        _common(part, constant_part(Node("constant", value=value)))
    if kinds.is_null(part.type):
        return pa.bool_(), part.arrow(pa.bool_())
    values, chosen = part.value, pa.array(_held(node.value, part.type), part.type)
    found = pc.is_in(values, value_set=chosen)
    if isinstance(values, (pa.Array, pa.ChunkedArray)) and not values.null_count:
        return pa.bool_(), found
    return pa.bool_(), pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))


def _held(values: tuple[Any, ...], type_: pa.DataType) -> list[Any]:
    """Those that a type can hold: no row is equal to another."""
    if kind_of(type_) != "number":
        return list(values)
    neighbours = (_neighbours(value, type_) for value in values)
    held = [below for below, above in neighbours if below == above]
    # To Arrow's table of values 0.0 and -0.0 are two.
    return [*held, 0.0, -0.0] if kinds.is_floating(type_) and 0 in held else held


def _arithmetic(node: Node, *parts: Part) -> Found:
    need_kind("number", node.what, *parts)
    is_float = node.what == "/" or any(kinds.is_floating(part.type) for part in parts)
    type_ = pa.float64() if is_float else pa.int64()
    values = _alike(type_, *parts)
    if node.what == "%":
        return type_, _float_remainder(*values) if is_float else _integer_remainder(*values)
    return type_, _CALCULATIONS[node.what](*values)


def _integer_remainder(left: Any, right: Any) -> Any:
    """With the sign of the divisor, as Python has it; by zero it is unknown."""
    # A divisor of -1 gives 0 like 1 does, and would overflow for the smallest integer.
    known = pc.if_else(pc.equal(right, 0), pa.scalar(None, pa.int64()), pc.if_else(pc.equal(right, -1), 1, right))
    rest = pc.subtract(left, pc.multiply(pc.divide(left, known), known))
    has_other_sign = pc.and_kleene(pc.not_equal(rest, 0), pc.less(pc.bit_wise_xor(rest, known), 0))
    return pc.if_else(has_other_sign, pc.add(rest, known), rest)


def _float_remainder(left: Any, right: Any) -> Any:
    sides = (left, right)
    if any(isinstance(side, pc.Expression) for side in sides):
        raise RecipeError("the remainder of floats cannot be pushed down; use mask or values on the rows")
    n_rows = next((len(side) for side in sides if not isinstance(side, pa.Scalar)), 1)
    arrays = [as_array(side, n_rows) for side in sides]
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.mod(*(array.fill_null(1.0).to_numpy() for array in arrays))
    is_known = pc.and_kleene(*map(pc.is_valid, arrays))
    found = pc.if_else(is_known, pa.array(rest), pa.scalar(None, pa.float64()))
    return found[0] if all(isinstance(side, pa.Scalar) for side in sides) else found


_CALCULATIONS: dict[str, Callable[..., Any]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": pc.divide,
    "negative": pc.negate_checked,
    "abs": pc.abs_checked,
}


def _finite(node: Node, part: Part) -> Found:
    need_kind("number", node.what, part)
    return pa.bool_(), pc.is_finite(part.arrow(pa.int64() if kinds.is_null(part.type) else None))


def _ask_text(node: Node, part: Part) -> Found:
    need_kind("text", node.what, part)
    return pa.bool_(), _QUESTIONS[node.what](_as_text(part), pattern=node.value)


def _change_text(node: Node, part: Part) -> Found:
    need_kind("text", node.what, part)
    texts = _as_text(part)
    function = _ASCII_CHANGES[node.what] if node.what in _ASCII_CHANGES and _is_ascii(texts) else _CHANGES[node.what]
    return pa.string() if kinds.is_null(part.type) else part.type, function(texts)


def _as_text(part: Part) -> Any:
    return part.arrow(pa.string() if kinds.is_null(part.type) else None)


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "contains": pc.match_substring,
    "matches": pc.match_substring_regex,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
}
_CHANGES: dict[str, Callable[..., Any]] = {
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "strip": pc.utf8_trim_whitespace,
}
#: The same for texts without other letters, in a fifteenth of the time. (Not strip: four of the spaces differ.)
_ASCII_CHANGES: dict[str, Callable[..., Any]] = {"lower": pc.ascii_lower, "upper": pc.ascii_upper}


def _is_ascii(texts: Any) -> bool:
    if not isinstance(texts, (pa.Array, pa.ChunkedArray)):
        return False
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        if len(chunk):
            _, offsets, content = chunk.buffers()
            places = np.frombuffer(offsets, np.int64 if kinds.is_large_string(chunk.type) else np.int32)
            first, last = places[chunk.offset], places[chunk.offset + len(chunk)]
            if first < last and np.frombuffer(content, np.uint8)[first:last].max() > 127:
                return False
    return True


def _length(node: Node, part: Part) -> Found:
    type_ = part.type.storage_type if isinstance(part.type, pa.ExtensionType) else part.type
    values = part.arrow(pa.string() if kinds.is_null(type_) else type_)
    if kind_of(type_) in ("text", "null"):
        found = pc.binary_length(values) if _is_ascii(values) else pc.utf8_length(values)
    elif is_bytes(type_):
        found = pc.binary_length(values)
    elif kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        found = pc.list_value_length(values)
    else:
        raise RecipeError(f"{part} has no length; text, bytes and lists have one")
    is_large = kinds.is_large_string(type_) or kinds.is_large_binary(type_) or kinds.is_large_list(type_)
    return pa.int64() if is_large else pa.int32(), found


def _cast(node: Node, part: Part) -> Found:
    type_ = type_named(node.value)
    try:
        return type_, part.value.cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RecipeError(f"{part} cannot be cast to {node.value}: {error}") from None


RULES: dict[str, Callable[..., Found]] = {
    **dict.fromkeys(("and", "or", "not"), _logic),
    **dict.fromkeys(COMPARISONS, _compare),
    **dict.fromkeys(("+", "-", "*", "/", "%", "negative", "abs"), _arithmetic),
    **dict.fromkeys(_QUESTIONS, _ask_text),
    **dict.fromkeys(_CHANGES, _change_text),
    "in": _is_in,
    "is_null": lambda node, part: (pa.bool_(), pc.is_null(part.value)),
    "is_finite": _finite,
    "length": _length,
    "cast": _cast,
}

#: Rules that give null for null and no error for any value of the right kind: a word that no row has does no harm.
BY_WORD = {*COMPARISONS, *_QUESTIONS, *_CHANGES, "in", "length"}
