"""infer: a suite that the next good rows of the same source pass at a stated rate, for a person to edit.

What a sample shows is less than what its source can give: of two samples of one size, the second exceeds the maximum
of the first half of the time. So each bound is set by how often the next sample would cross it:

    ranges, lengths    the tail beyond a high threshold, extrapolated                                (tails.py)
    categories         a list, if one as frequent as the rarest would hardly have been missed; else none
    nulls, NaN         the share that a sample of half the size exceeds, by Jeffreys' prior
    types, no nulls    rules of the source: what never occurred is not expected, but for nulls beside a column of the
                       same type that has some

The rate is shared out evenly over all bounds; half of it is kept for what no model of a tail foresees. Each entry says
in ``why`` what it was derived from, and so does a column that has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from poolish.columns import Column, FlatValues, NotApplicable, TableView
from poolish.errors import ConfigError
from poolish.guards.checks.suite import Suite
from poolish.guards.checks.tails import Floats, upper_bound
from poolish.printable import counted
from poolish.schema import Field, Schema

#: Bounds of a column that chance may cross: two of a range, and one of nulls or NaN.
_BOUNDS_OF_A_COLUMN = 3
#: Digits of a bound, by the width of its range.
_DIGITS = 3
#: A bound this close below 0, in medians, is one at 0.
_NEAR_ZERO = 0.05
#: Nulls are judged as if samples were at most this large; the bound for larger ones would be hardly lower.
_MOST_JUDGED = 100_000


def infer(
    reference: Any,
    *,
    accept: float = 0.99,
    rows: int | None = None,
    slack: float = 0.0,
    max_categories: int = 20,
    name: str = "inferred",
) -> Suite:
    """Propose a suite from rows that are known to be good: types, nullability, ranges, categories, lengths.

    Of samples of ``rows`` rows (as many as the reference has, unless you say otherwise) that come from the same source,
    a share ``accept`` passes. The fewer rows the reference has and the heavier its tails, the more room that takes;
    benchmarks/infer_rates.py measures it. Rows that follow each other, as in an episode, are taken into account where
    large values come together. A column that goes up from row to row is a counter, so its range is not.

    Ranges have at least ``slack`` times their width of room on each side. Text with at most ``max_categories``
    different values, each of which is there often enough, is taken for categories.

    >>> rng = np.random.default_rng(0)
    >>> suite = infer({"reward": rng.uniform(0, 1, 1_000), "kind": ["left", "right"] * 500})
    >>> print(suite.to_yaml(), end="")
    suite: inferred
    version: 1
    schema:
    - column: reward
      type: float64
      why: no null in 1,000 rows
    - column: kind
      type: text
      why: no null in 1,000 rows
    expect:
    - column: reward
      finite: true
      between: [0, 1.02]
      why: 0.000190002 to 0.999501 in 1,000 rows; none below 0; the next 1,000 go above 1.016 with probability 0.00083
    - column: kind
      one_of: [left, right]
      why: one as frequent as the rarest (500 of 1,000) is missed with probability 7e-218
    """
    if not 0 < accept < 1:
        raise ConfigError(f"accept: the share of good samples that pass, between 0 and 1, got {accept!r}")
    seen = TableView.of(reference)
    n_next = len(seen) if rows is None else rows
    if rows is not None and (type(rows) is not int or rows < 1):
        raise ConfigError(f"rows: the size of the next samples, from 1, got {rows!r}")
    alpha = (1 - accept) / 2 / (_BOUNDS_OF_A_COLUMN * max(1, len(seen.names)))
    columns = [seen[column] for column in seen.names]
    with_nulls = {str(column.type) for column in columns if column.nulls is not None and column.nulls.any()}
    options = _Options(n_next, alpha, slack, max_categories, with_nulls)
    found = [_infer_column(column, options) for column in columns]
    suite = Suite(name).schema(Schema(each.field for each in found), why={each.field.name: each.why for each in found})
    for each in found:
        if each.rules:
            suite.expect(each.field.name, **each.rules)
        for ranges in each.stats:
            suite.stat(each.field.name, **ranges)
    return suite


@dataclass(frozen=True)
class _Options:
    n_next: int
    alpha: float  #: of each bound
    slack: float
    max_categories: int
    with_nulls: set[str]  #: types of columns that have nulls


@dataclass(frozen=True)
class _Inferred:
    """What is expected of one column."""

    field: Field
    why: str
    rules: dict[str, Any]
    stats: list[dict[str, Any]]


def _infer_column(column: Column, options: _Options) -> _Inferred:
    n_nulls = 0 if column.nulls is None else int(column.nulls.sum())
    rules, stats, reason = _value_rules(column, options)
    is_nullable = n_nulls > 0 or str(column.type) in options.with_nulls
    if is_nullable:
        stats = [_share_rule("null_share", "null", n_nulls, len(column), options), *stats]
    rows = counted(len(column), "row")
    nulls = f"{n_nulls:,} of {rows} null" if is_nullable else f"no null in {rows}"
    field = Field(column.name, column.type, nullable=is_nullable)
    return _Inferred(field, f"{nulls}{'; ' if reason else ''}{reason}", rules, stats)


def _value_rules(column: Column, options: _Options) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Rules and statistics of the values, and why there are none."""
    try:
        flat = column.flat
    except NotApplicable:
        return {}, [], ""
    if not isinstance(flat.values, np.ndarray):
        return _text_rules(column, options)
    if flat.values.dtype.kind == "M":
        return {}, [], "no range: time goes on"
    if flat.values.dtype.kind not in "iuf":
        return _length_rules(column, options)
    rules, stats, reason = _number_rules(column, flat, options)
    lengths, _, _ = _length_rules(column, options)
    why = "; ".join(each.pop("why") for each in (rules, lengths) if each)
    return {**rules, **lengths, **({"why": why} if why else {})}, stats, reason


def _number_rules(column: Column, flat: FlatValues, options: _Options) -> tuple[dict[str, Any], list[Any], str]:
    values = flat.present
    n_odd = 0 if values.dtype.kind != "f" else int(np.count_nonzero(~np.isfinite(values)))
    if n_odd:  # NaN lies in no range, so a range would refuse what the reference holds
        is_single = flat.values_per_row == 1
        stats = [_share_rule("nan_share", "NaN or infinite", n_odd, len(column), options)] if is_single else []
        return {}, stats, f"no range: {counted(n_odd, 'value')} of {len(values):,} NaN or infinite"
    if not len(values):
        return {}, [], ""
    finite = {"finite": True} if values.dtype.kind == "f" else {}
    if values.min() == values.max():
        why = f"always {values.min()}, and one value is no range"
        return ({**finite, "why": why} if finite else {}), [], "" if finite else why
    rule, why = _range_rule(flat, options)
    rules = finite | rule
    return ({**rules, "why": why}, [], "") if rules else ({}, [], why)


def _range_rule(flat: FlatValues, options: _Options) -> tuple[dict[str, Any], str]:
    lows, highs = _extremes(flat)
    whole = np.iinfo(flat.values.dtype) if flat.values.dtype.kind in "iu" else None
    least, most = flat.present.min().item(), flat.present.max().item()
    is_whole = whole is not None or bool((flat.present == np.rint(flat.present)).all())
    low, why_low = _reach(lows, least, -1, options, is_whole=is_whole)
    high, why_high = _reach(highs, most, 1, options, is_whole=is_whole)
    if whole is not None and flat.values_per_row == 1 and flat.nulls is None and _is_counter(flat.values):
        high, why_high = None, "it counts up, so the next rows go on above"
    span = most - least
    low = None if low is None else _rounded(low, least, span, math.floor, None if whole is None else int(whole.min))
    high = None if high is None else _rounded(high, most, span, math.ceil, None if whole is None else int(whole.max))
    why = f"{least:.6g} to {most:.6g} in {counted(len(lows), 'row')}; {why_low}; {why_high}"
    if low is None or high is None:
        return {side: bound for side, bound in (("at_least", low), ("at_most", high)) if bound is not None}, why
    return {"between": (low, high)}, why


def _reach(values: Floats, last: Any, sign: int, options: _Options, *, is_whole: bool) -> tuple[Any, str]:
    """How far the next values reach above (``sign`` 1) or below (-1) the last one that was seen, and why."""
    found = upper_bound(sign * values, options.n_next, options.alpha, is_whole=is_whole)
    room = options.slack * float(values.max() - values.min())
    if found.value is None:
        side = "an upper" if sign > 0 else "a lower"
        return None, f"too few rows, or too heavy a tail, for {side} bound"
    side = "above" if sign > 0 else "below"
    if sign * last <= 0 and _is_at_zero(found.value + room, last, values):
        return 0, f"none {side} 0"
    if found.is_end:
        # Numbers that were rounded pile up as well, and the next one may lie a step further.
        room = room or (0 if is_whole else float(np.abs(values[values != last] - last).min()))
        how = f"only rounding puts some {side}" if room and not options.slack else f"none is {side}"
        return last + sign * room if room else last, f"{last:.6g} came so often that {how}"
    # The chance of the last one itself is not that of a bound that lies further out.
    bound = last if found.value == sign * last and not room else sign * (found.value + room)
    return bound, f"the next {options.n_next:,} go {side} {bound:.4g} with probability {options.alpha:.2g}"


def _is_at_zero(reach: float, last: float, values: Floats) -> bool:
    """Whether values on one side of 0 end there: 0 is there itself, or the tail reaches hardly beyond it."""
    return last == 0 or 0 < reach <= _NEAR_ZERO * float(np.median(np.abs(values)))


def _rounded(bound: Any, last: Any, span: Any, outwards: Callable[[float], int], limit: int | None) -> Any:
    """A bound in few digits of its distance from the values, at least as far out as the last of them.

    >>> _rounded(1.2345, 1.2, 1.0, math.ceil, None), _rounded(1234.5, 1000, 1000, math.ceil, 1_100)
    (1.24, 1100)
    """

    def is_outside(value: Any) -> bool:
        return bool(value <= last if outwards is math.floor else value >= last)

    width = float(span) + abs(float(bound) - float(last))
    step = 10.0 ** (math.floor(math.log10(width)) - _DIGITS + 1) if 0 < width < math.inf else 0.0
    if limit is not None:
        rounded = outwards(bound) if step <= 1 else outwards(bound / step) * round(step)
        inside = min(rounded, limit) if outwards is math.ceil else max(rounded, limit)
        return inside if is_outside(inside) else last
    shown = float(f"{outwards(bound / step) * step:.12g}") if step and math.isfinite(bound / step) else bound
    shown = shown if math.isfinite(shown) and is_outside(shown) else last
    return 0 if shown == 0 else shown


def _extremes(flat: FlatValues) -> tuple[Floats, Floats]:
    """The smallest and the largest value of each row that has one: rows are what comes next, not values."""
    values = flat.values.astype(np.float64)
    if flat.values_per_row == 1:
        found = values if flat.nulls is None else values[~flat.nulls]
        return found, found
    low, high = values.copy(), values
    if flat.nulls is not None:
        low[flat.nulls], high[flat.nulls] = np.inf, -np.inf
    if flat.offsets is None:
        width = flat.values_per_row or 1
        lows, highs = low.reshape(-1, width).min(axis=1), high.reshape(-1, width).max(axis=1)
    else:
        starts = flat.offsets[:-1][np.diff(flat.offsets) > 0]
        lows, highs = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    return lows[np.isfinite(lows)], highs[np.isfinite(highs)]


def _is_counter(values: Any) -> bool:
    """Whether whole numbers go up by the same step from row to row, as ids and step numbers do."""
    steps = np.diff(values)
    return len(values) >= 3 and steps[0] > 0 and bool((steps == steps[0]).all())


# Text, lengths and shares --------------------------------------------------------------------------------------------


def _text_rules(column: Column, options: _Options) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    rules, reason = ({}, "") if not column.type_name.endswith("text") else _category_rule(column, options)
    if rules:
        return rules, [], ""
    lengths, stats, no_length = _length_rules(column, options)
    return lengths, stats, "; ".join(filter(None, (reason, no_length)))


def _category_rule(column: Column, options: _Options) -> tuple[dict[str, Any], str]:
    counts = pc.value_counts(pc.drop_null(column.flat.values))
    if not len(counts):
        return {}, ""
    n_values, each = pc.sum(counts.field("counts")).as_py(), counts.field("counts").to_numpy()
    n_distinct, rarest, n_once = len(each), int(each.min()), int((each == 1).sum())
    if n_once:
        # Good and Turing: the share of the next values that are new is about that of those that came once.
        share = f"about {100 * n_once / n_values:.2g} % of the next {'is' if n_once == n_values else 'are'} new"
        return {}, f"no list: {n_once:,} of {counted(n_values, 'value')} came once, so {share}"
    if n_distinct > options.max_categories:
        return {}, f"no list: {n_distinct:,} different values are more than {options.max_categories}"
    missed = math.exp(-rarest)
    if missed > options.alpha:
        return {}, f"no list: the rarest value came only {rarest} times, so others may not have come yet"
    chance = f"one as frequent as the rarest ({rarest:,} of {n_values:,}) is missed with probability {missed:.1g}"
    return {"one_of": sorted(count["values"].as_py() for count in counts), "why": chance}, ""


def _length_rules(column: Column, options: _Options) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    try:
        lengths, nulls = column.lengths, column.nulls
    except NotApplicable:
        return {}, [], ""
    known = np.asarray(lengths if nulls is None else lengths[~nulls], np.float64)
    if not len(known) or (known == known[0]).all():
        return {}, [], ""
    least, most = int(known.min()), int(known.max())
    low, why_low = _reach(known, least, -1, options, is_whole=True)
    high, why_high = _reach(known, most, 1, options, is_whole=True)
    rules: dict[str, Any] = {}
    if low is not None and (shortest := _rounded(low, least, 1, math.floor, 0)) > 0:
        rules["min_length"] = shortest
    if high is not None:
        rules["max_length"] = _rounded(high, most, most, math.ceil, 2**62)
    sides = [why_low] * ("min_length" in rules) + [why_high]
    why = "; ".join([f"lengths {least:,} to {most:,} in {counted(len(known), 'row')}", *sides])
    return ({**rules, "why": why}, [], "") if rules else ({}, [], why)


def _share_rule(statistic: str, what: str, n: int, n_rows: int, options: _Options) -> dict[str, Any]:
    """A bound for a share of rows, for samples of at least half the size."""
    n_judged = min(max(1, (options.n_next + 1) // 2), _MOST_JUDGED)
    most = most_of(n, n_rows, n_judged, options.alpha) / n_judged
    share = min(1.0, math.ceil(most * 1_000) / 1_000)
    seen = f"{n:,} of {counted(n_rows, 'row')} {what}"
    chance = f"of {counted(n_judged, 'row')} more than {100 * share:.3g} % are with probability {options.alpha:.2g}"
    return {statistic: (0, share), "min_rows": n_judged, "why": f"{seen}; {chance}"}


def most_of(n: int, n_rows: int, n_next: int, alpha: float) -> int:
    """How many of the next rows are like ``n`` of ``n_rows``, at most, but for a chance of ``alpha``.

    The number is beta-binomial, by Jeffreys' prior.

    >>> most_of(10, 1_000, 1_000, 0.001)
    29
    """
    a, b = n + 0.5, n_rows - n + 0.5
    k = np.arange(n_next)
    steps = np.log(n_next - k) + np.log(k + a) - np.log(k + 1) - np.log(n_next - k - 1 + b)
    log_weights = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(log_weights - log_weights.max())
    beyond = 1 - np.cumsum(weights) / weights.sum()
    return int(np.argmax(beyond <= max(alpha, 1e-12)))
