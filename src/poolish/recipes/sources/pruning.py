"""Row groups that need not be read: their footer says that a filter is false for each of their rows.

    statistics of a column --> Range: no value is below ``low`` or above ``high``, and whether there are nulls
    Range + expression     --> which of true, false and unknown a row may answer

A footer may say less than the truth (long texts are cut, NaN is left out of both ends), so ranges are bounds and
nothing more. A group is left out only if *false* is all that its rows can answer: an unknown row is not kept either,
but it is counted. What could stop a bake, a cast for example, is never left out: errors must not depend on groups.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import PoolishError
from poolish.expressions import Expression
from poolish.expressions.nodes import COMPARISONS, FLIPPED, Node
from poolish.recipes.fragment_rows import Filter, no_rows

Answers = frozenset[bool | None]

ANY: Answers = frozenset({True, False, None})
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
#: What is asked of a text, and what is made of one: with the right types these cannot fail.
_QUESTIONS = ("contains", "matches", "starts_with", "ends_with")
_CHANGES = ("lower", "upper", "strip", "length")


@dataclass(frozen=True)
class Range:
    """Bounds of a column: ``low <= value <= high`` for all values but nulls and NaN; None where there is no bound.

    Times are in nanoseconds and dates in days since 1970, whatever they are kept in.
    """

    low: Any = None
    high: Any = None
    has_values: bool = True
    has_nulls: bool = True
    has_nan: bool = False


def can_prune(where: Filter | None, schema: pa.Schema) -> TypeGuard[Expression]:
    """Whether a filter can be answered by statistics of columns with this schema at all."""
    if not isinstance(where, Expression) or not _cannot_fail(where._root):
        return False
    try:
        # Evaluating the filter reports that it does not fit the columns, so nothing is skipped.
        where.mask(no_rows(schema))
    except PoolishError:
        return False
    return True


def is_out_of_range(where: Expression, group: Any, schema: pa.Schema) -> bool:
    """Whether such a filter is false for all rows of a row group."""
    return answers(where._root, ranges_of(group, schema, where.columns)) == {False}


def answers(node: Node, ranges: Mapping[str, Range]) -> Answers:
    """All that a row within these ranges may answer to a condition, and possibly more.

    >>> from poolish.expressions import parse
    >>> sorted(answers(parse("n > 5 or n < 1")._root, {"n": Range(2, 4, has_nulls=False)}))
    [False]
    >>> sorted(answers(parse("n > 3")._root, {"n": Range(2, 4, has_nulls=False)}))
    [False, True]
    """
    if node.op == "constant":
        return frozenset({node.value}) if isinstance(node.value, bool) else ANY
    if node.op in ("and", "or", "not"):
        return _logic(node, *(answers(arg, ranges) for arg in node.args))
    if node.op == "column":
        return _asked(ranges.get(node.value), lambda low, high: (high is not False, low is not True))
    if node.op in COMPARISONS:
        return _comparison(node, ranges)
    if not node.args or node.args[0].op != "column":
        return ANY
    range_ = ranges.get(node.args[0].value)
    if node.op == "is_null" and range_ is not None:
        return frozenset({True} if not range_.has_values else {False, True} if range_.has_nulls else {False})
    if node.op == "in":
        return _asked(range_, lambda low, high: _among(node.value, low, high))
    if node.op == "starts_with":
        return _asked(range_, lambda low, high: (_may_start(node.value, low, high), True))
    return ANY


def _logic(node: Node, *args: Answers) -> Answers:
    if node.op == "not":
        return frozenset(None if answer is None else not answer for answer in args[0])
    decisive = node.op == "or"
    found: set[bool | None] = set()
    for left in args[0]:
        for right in args[1]:
            known = {left, right}
            found.add(decisive if decisive in known else None if None in known else not decisive)
    return frozenset(found)


def _asked(range_: Range | None, ask: Callable[[Any, Any], tuple[bool, bool]]) -> Answers:
    """What values between two bounds may answer; ``ask`` says whether true and whether false is possible."""
    if range_ is None:
        return ANY
    found: set[bool | None] = {None} if range_.has_nulls else set()
    if range_.has_values:
        may_be_true, may_be_false = ask(range_.low, range_.high)
        # NaN is not equal to anything, nor smaller or larger: only != is true of it.
        found |= {answer for answer, may in ((True, may_be_true), (False, may_be_false or range_.has_nan)) if may}
    return frozenset(found)


def _comparison(node: Node, ranges: Mapping[str, Range]) -> Answers:
    sign, (left, right) = node.op, node.args
    if left.op != "column":
        sign, left, right = FLIPPED[sign], right, left
    if left.op != "column":
        return ANY
    constant = _constant(right)
    if constant is None:
        return ANY
    if sign == "!=":
        return _logic(
            Node("not"), _asked(ranges.get(left.value), lambda low, high: _compared("==", low, high, constant))
        )
    return _asked(ranges.get(left.value), lambda low, high: _compared(sign, low, high, constant))


def _compared(sign: str, low: Any, high: Any, constant: Any) -> tuple[bool, bool]:
    """Whether a value between bounds may be so, and whether one may not be so.

    >>> _compared("<", 2, 4, 2), _compared("==", 2, None, 2), _compared(">=", 2, 4, 1)
    ((False, True), (True, True), (True, False))
    """
    if not _is_comparable(low, constant) or not _is_comparable(high, constant):
        return True, True
    starts_below, ends_above = low is None or low < constant, high is None or high > constant
    starts_above, ends_below = low is not None and low > constant, high is not None and high < constant
    if sign == "<":
        return starts_below, not ends_below
    if sign == ">":
        return ends_above, not starts_above
    if sign == "<=":
        return not starts_above, ends_above
    if sign == ">=":
        return not ends_below, starts_below
    return not (starts_above or ends_below), starts_below or ends_above


def _is_comparable(bound: Any, constant: Any) -> bool:
    """Python compares true with 1 and an integer with a float, both exactly; a bool is only compared with a bool."""
    if bound is None:
        return True
    if isinstance(bound, str) or isinstance(constant, str):
        return isinstance(bound, str) and isinstance(constant, str)
    return isinstance(bound, bool) is isinstance(constant, bool)


def _among(values: tuple[Any, ...], low: Any, high: Any) -> tuple[bool, bool]:
    found = [_compared("==", low, high, value) for value in values]
    return any(may for may, _ in found), all(may_not for _, may_not in found)


def _may_start(prefix: str, low: Any, high: Any) -> bool:
    """Texts with a prefix lie behind it, and before all larger ones of its length."""
    if not all(bound is None or isinstance(bound, str) for bound in (low, high)):
        return True
    return (high is None or high >= prefix) and (low is None or low[: len(prefix)] <= prefix)


def _constant(node: Node) -> Any:
    """The value of a constant, as ranges have it; None if it is none."""
    if node.op == "constant":
        return node.value
    if node.op != "cast" or node.args[0].op != "constant":
        return None
    try:
        scalar = Expression(node).values(pa.table({"row": [0]}))[0]
    except PoolishError:
        return None
    return _time(scalar.value, scalar.type) if _is_time(scalar.type) else None


def _is_time(type_: pa.DataType) -> bool:
    return bool(kinds.is_timestamp(type_) or kinds.is_date32(type_))


def _time(value: int, type_: pa.DataType) -> int | None:
    """Nanoseconds, or days; None where comparing with a finer unit would not fit into 64 bits, which is an error."""
    if kinds.is_date32(type_):
        return value
    nanoseconds = value * _NANOSECONDS[type_.unit]
    return nanoseconds if abs(nanoseconds) < 2**63 else None


# What a footer says -----------------------------------------------------------------------------------------------


def ranges_of(group: Any, schema: pa.Schema, names: tuple[str, ...]) -> dict[str, Range]:
    """The ranges of columns in a row group, as far as its statistics tell."""
    columns = [group.column(i) for i in range(group.num_columns)]
    # The field ``b`` of a struct ``a`` has the same path as a column "a.b".
    n_of = Counter(column.path_in_schema for column in columns)
    found = {}
    for column in columns:
        name = column.path_in_schema
        if name in names and n_of[name] == 1 and len(schema.get_all_field_indices(name)) == 1:
            range_ = _range(column.statistics, schema.field(name).type, group.num_rows)
            if range_ is not None:
                found[name] = range_
    return found


def _range(statistics: Any, type_: pa.DataType, n_rows: int) -> Range | None:
    if statistics is None or kinds.is_nested(type_):
        return None
    n_nulls = statistics.null_count if statistics.has_null_count else None
    has_values, has_nulls = n_nulls != n_rows, n_nulls != 0
    low = high = None
    if statistics.has_min_max:
        try:
            low, high = _bounds(statistics, type_.value_type if kinds.is_dictionary(type_) else type_)
        except (UnicodeDecodeError, OverflowError, ValueError):
            low = high = None  # a text that was cut within a character, a time that Python has no word for
    return Range(low, high, has_values, has_nulls, kinds.is_floating(type_))


def _bounds(statistics: Any, type_: pa.DataType) -> tuple[Any, Any]:
    """Both ends, or None and None for types whose order is not certain."""
    if kinds.is_timestamp(type_):
        unit = _UNITS.get(json.loads(statistics.logical_type.to_json()).get("timeUnit"))
        if unit is None:
            return None, None
        ends = [_time(raw, pa.timestamp(unit)) for raw in (statistics.min_raw, statistics.max_raw)]
        return (ends[0], ends[1]) if None not in ends else (None, None)
    if kinds.is_date32(type_):
        return statistics.min_raw, statistics.max_raw
    is_float = kinds.is_float32(type_) or kinds.is_float64(type_)
    is_text = kinds.is_string(type_) or kinds.is_large_string(type_)
    if not (is_float or is_text or kinds.is_integer(type_) or kinds.is_boolean(type_)):
        return None, None
    low, high = statistics.min, statistics.max
    if is_float and (math.isnan(low) or math.isnan(high)):
        return None, None
    wanted = str if is_text else float if is_float else bool if kinds.is_boolean(type_) else int
    return (low, high) if isinstance(low, wanted) and isinstance(high, wanted) else (None, None)


# What cannot fail -------------------------------------------------------------------------------------------------


def _cannot_fail(node: Node) -> bool:
    """Whether a condition has an answer for every row, whatever the values are, given that its types fit."""
    if node.op in ("constant", "column"):
        return True
    if node.op in COMPARISONS:
        sides = [arg for arg in node.args if _constant(arg) is None]
        return len(sides) <= 1 and all(map(_cannot_fail, sides))
    known = ("and", "or", "not", "in", "is_null", "is_finite", *_QUESTIONS, *_CHANGES)
    return node.op in known and all(map(_cannot_fail, node.args))
