"""infer: a suite that rows would pass, for a person to edit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow.compute as pc

from poolish.columns import Column, NotApplicable, TableView
from poolish.guards.checks.suite import Suite
from poolish.schema import Field, Schema

#: Bounds are rounded outwards to this number of digits, as a person would write them.
_DIGITS = 3


def infer(reference: Any, *, slack: float = 0.1, max_categories: int = 20, name: str = "inferred") -> Suite:
    """Propose a suite from rows that are known to be good: types, nullability, ranges, categories, lengths.

    Ranges are widened by ``slack`` times their width on each side, but not across zero, and rounded outwards. Text with
    at most ``max_categories`` different values, each ten times there on average, is taken for categories.

    >>> suite = infer({"reward": np.linspace(0, 1, 100), "kind": ["left", "right"] * 50})
    >>> print(suite.to_yaml(), end="")
    suite: inferred
    version: 1
    schema:
    - column: reward
      type: float64
    - column: kind
      type: text
    expect:
    - column: reward
      finite: true
      between: [0, 1.1]
    - column: kind
      one_of: [left, right]
    """
    rows = TableView.of(reference)
    suite = Suite(name).schema(Schema(_field(rows[column]) for column in rows.names))
    for column in rows.names:
        rules = _rules(rows[column], slack, max_categories)
        if rules:
            suite.expect(column, **rules)
    return suite


def _field(column: Column) -> Field:
    return Field(column.name, column.type, nullable=column.nulls is not None)


def _rules(column: Column, slack: float, max_categories: int) -> dict[str, Any]:
    rules = _value_rules(column, slack, max_categories)
    if "one_of" in rules:
        return rules
    try:
        lengths, nulls = column.lengths, column.nulls
    except NotApplicable:
        return rules
    known = lengths if nulls is None else lengths[~nulls]
    if len(known) and not (known == known[0]).all():
        low, high = _widened(float(known.min()), float(known.max()), slack, whole=True)
        rules |= {"min_length": int(low), "max_length": int(high)}
    return rules


def _value_rules(column: Column, slack: float, max_categories: int) -> dict[str, Any]:
    try:
        flat = column.flat
    except NotApplicable:
        return {}
    values = flat.values
    if not isinstance(values, np.ndarray):
        return _category_rules(column, max_categories)
    if flat.nulls is not None:
        values = values[~flat.nulls]
    if values.dtype.kind not in "iuf" or not len(values):
        return {}
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not len(finite) or finite.min() == finite.max():  # one value is no range
        return {}
    if values.dtype.kind in "iu":
        low, high = _widened(int(finite.min()), int(finite.max()), slack, whole=True)
        return {"between": (int(low), int(high))}
    if len(finite) < len(values):  # NaN lies in no range, so a range would refuse what the reference holds
        return {}
    return {"finite": True, "between": _widened(float(finite.min()), float(finite.max()), slack, whole=False)}


def _category_rules(column: Column, max_categories: int) -> dict[str, Any]:
    counts = pc.value_counts(pc.drop_null(column.flat.values))
    n_values = len(column.flat.values)
    if column.type_name.endswith("text") and 0 < len(counts) <= max_categories and n_values >= 10 * len(counts):
        return {"one_of": sorted(count["values"].as_py() for count in counts)}
    return {}


def _widened(low: float, high: float, slack: float, *, whole: bool) -> tuple[float, float]:
    """A range with room on both sides, not across zero, rounded outwards.

    >>> _widened(0.0, 1.0, 0.1, whole=False), _widened(3, 250, 0.1, whole=True)
    ((0, 1.1), (0, 275))
    """
    room = (high - low) * slack
    wide_low = max(low - room, 0) if low >= 0 else low - room
    wide_high = min(high + room, 0) if high <= 0 else high + room
    if not (math.isfinite(wide_low) and math.isfinite(wide_high)):
        return low, high
    if whole:
        # Beyond 2**53 adding the room may have rounded inwards.
        return min(math.floor(wide_low), low), max(math.ceil(wide_high), high)
    return _short(min(wide_low, low), math.floor, low), _short(max(wide_high, high), math.ceil, high)


def _short(bound: float, outwards: Any, limit: float) -> float:
    """A bound in few digits, at least as far out as it was."""
    if bound == 0:
        return 0
    step = 10.0 ** (math.floor(math.log10(abs(bound))) - _DIGITS + 1)
    rounded = float(f"{outwards(bound / step) * step:.{_DIGITS}g}") if step else bound
    is_outside = rounded <= limit if outwards is math.floor else rounded >= limit
    return rounded if is_outside and math.isfinite(rounded) else bound
