"""Drift: every column of two tables compared, with one error rate for all of them.

Two questions are answered apart. *Significant*: each column gets a p-value from its tests (Simes' rule joins them: the
least p-value times the number of tests over its place among them), and Holm's rule adjusts it for the number of
columns: the chance of any false alarm among all columns is at most ``alpha``, however the columns depend on each other.
*Worth an alarm*: the change in the column's own unit is compared with ``worth`` (see ``effects``). Drift is both.

A changed share of missing values is a test of its own. Windows of a stream are many tests too: ``spent`` is the part of
``alpha`` that each may use, so that all windows together, without end, alarm falsely with a chance of ``alpha``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish import html
from poolish.columns import columns_of
from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.guards.stats.cells import MANY_EXPECTED, Side, side_of
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.distances import DISTANCES, Distance
from poolish.guards.stats.effects import MISSING_SHARE, Effect, Worth, check_worth, effect_of
from poolish.guards.stats.permutation import calibrate
from poolish.guards.stats.profile import Profile
from poolish.guards.stats.serialization import encode_float
from poolish.guards.stats.significance import MIN_ROWS, Comparison, Verdict
from poolish.guards.stats.sketches import Moments
from poolish.printable import counted, printable

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class ColumnDrift:
    """The results of all tests of one column, how certain a change is and how large."""

    name: str
    verdict: Verdict
    p: float | None  #: adjusted for the number of columns (Holm)
    tests: dict[str, Comparison]
    missing: tuple[float, float]  #: the share of None and NaN, before and now
    missing_p: float | None  #: how likely such a change is by chance; None where nothing is missing
    moments: tuple[Moments | None, Moments | None]  #: of both sides, where they are numbers
    note: str = ""
    raw_p: float | None = None  #: of this column alone, all its tests joined (Simes)
    effect: Effect | None = None  #: the change in the column's unit; None where there are no values to compare
    significant: bool = False  #: whether p is below alpha; drift is that, and large enough

    @property
    def decisive(self) -> Comparison | None:
        """The most informative test: the first that found drift, else the first."""
        return next((test for test in self.tests.values() if test), next(iter(self.tests.values()), None))

    @property
    def value(self) -> float:
        """The value of the decisive test."""
        return math.nan if self.decisive is None else self.decisive.value

    @property
    def threshold(self) -> float:
        """The threshold of the decisive test."""
        return math.nan if self.decisive is None else self.decisive.threshold

    @property
    def n(self) -> int:
        """Values of the reference."""
        return 0 if self.decisive is None else self.decisive.n

    @property
    def m(self) -> int:
        """Values of the current sample."""
        return 0 if self.decisive is None else self.decisive.m

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "p": self.p if self.p is None else encode_float(self.p),
            "raw_p": self.raw_p if self.raw_p is None else encode_float(self.raw_p),
            "significant": self.significant,
            "effect": None if self.effect is None else _effect_json(self.effect),
            "tests": {name: test.to_json() for name, test in self.tests.items()},
            "missing": list(self.missing),
            "missing_p": self.missing_p,
            "mean": [None if side is None else encode_float(side.mean) for side in self.moments],
            "note": self.note,
        }


class DriftReport(Mapping[str, ColumnDrift]):
    """The drift of each column by its name, the largest first.

    >>> from poolish.guards import drift
    >>> before = {"x": np.arange(1000) / 10, "y": np.arange(1000) % 7}
    >>> report = drift(before, {"x": 0.22 * np.arange(500) + 3, "y": np.arange(500) % 7})
    >>> report.ok, report.drifted, report["y"].verdict
    (False, ['x'], 'ok')
    """

    def __init__(self, columns: Iterable[ColumnDrift], *, alpha: float, method: str) -> None:
        self._columns = {column.name: column for column in sorted(columns, key=_rank)}
        self.alpha, self.method = alpha, method

    @property
    def ok(self) -> bool:
        """Whether no column drifted."""
        return not self.drifted

    @property
    def drifted(self) -> list[str]:
        """The names of the columns that did, the worst first."""
        return [column.name for column in self.values() if column.verdict == "drift"]

    def __getitem__(self, name: str) -> ColumnDrift:
        try:
            return self._columns[name]
        except KeyError:
            raise UnknownColumn(f"column {name!r}: compared were {list(self._columns)}") from None

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def to_json(self) -> str:
        """The report as JSON."""
        columns = [column.to_json() for column in self.values()]
        return json.dumps(
            {"ok": self.ok, "alpha": self.alpha, "method": self.method, "columns": columns}, allow_nan=False
        )

    def to_html(self) -> str:
        """The report as a table."""
        rows = [[cell for _, cell in _line(column)] for column in self.values()]
        headers = [header for header, _ in _line(next(iter(self.values())))] if self._columns else ["column"]
        caption = f"{len(self.drifted)} of {counted(len(self), 'column')} drifted ({self.method}, alpha {self.alpha:g})"
        return str(html.table(headers, rows, caption=caption))

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        lines = [f"  {printable(column.name)}: {'; '.join(_facts(column))}" for column in self.values()]
        return "\n".join(
            [f"{len(self.drifted)} of {counted(len(self), 'column')} drifted (alpha {self.alpha:g})", *lines]
        )


def compare_columns(
    reference: Any,
    current: Any,
    columns: Iterable[str] | None,
    method: str,
    effect_min: float | Mapping[str, float] | None,
    worth: Worth,
    *,
    alpha: float,
    **rules: Any,
) -> DriftReport:
    """What ``drift`` does."""
    methods, worth = _methods(method), check_worth(worth)
    before = _sides(reference, columns)
    now = _sides(current, before if columns is None else columns)
    found = [
        _compared(name, before[name], now[name], methods, effect_min, worth, alpha=alpha, **rules) for name in before
    ]
    adjusted = holm([column.raw_p for column in found])
    judged = [_judged(column, p, alpha, worth) for column, p in zip(found, adjusted, strict=True)]
    return DriftReport(judged, alpha=alpha, method=method)


# Deciding -------------------------------------------------------------------------------------------------------


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted so that any below alpha is a false alarm with a chance of at most alpha; None stays None.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (p, i) in enumerate(known):
        largest = max(largest, min(p * (len(known) - place), 1.0))
        adjusted[i] = largest
    return adjusted


def spent(alpha: float, window: int) -> float:
    """The part of ``alpha`` that one window of a stream may use, counted from 0; all parts together are ``alpha``.

    Later windows may use less, but never nothing: the parts fall about as ``1 / (k log(k) ** 2)``. Adding up error
    rates needs no independence, which windows that share one reference do not have.

    >>> [round(spent(0.05, window), 6) for window in (0, 1, 10, 1_000)]
    [0.018454, 0.006546, 0.000435, 1e-06]
    """
    return alpha * math.log(2) * (1 / math.log(window + 2) - 1 / math.log(window + 3))


def simes(p_values: Sequence[float]) -> float | None:
    """One p-value for several tests of one thing, also where the tests are related.

    >>> simes([0.01, 0.5]), simes([0.04, 0.04]), simes([])
    (0.02, 0.04, None)
    """
    ordered = sorted(p_values)
    return min((p * len(ordered) / place for place, p in enumerate(ordered, 1)), default=None)


def missing_test(n: int, missing: int, m: int, missing_now: int, alpha: float = 0.05) -> float | None:
    """The p-value of a changed share of missing values; None where nothing or everything is missing.

    >>> round(missing_test(1000, 10, 1000, 30), 5), round(missing_test(1000, 0, 1000, 3), 5)
    (0.0014, 0.24962)
    """
    pooled = (missing + missing_now) / (n + m) if n and m else 0.0
    if not 0 < pooled < 1:
        return None
    if min(pooled, 1 - pooled) * min(n, m) < MANY_EXPECTED:
        counts, others = (np.array([k, size - k]) for k, size in ((missing, n), (missing_now, m)))
        return calibrate(_share_apart, counts, others, alpha).p
    z = (missing / n - missing_now / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return math.erfc(abs(z) / math.sqrt(2))


def _share_apart(counts: Int64, others: Int64) -> Floats:
    apart: Floats = np.abs(counts[..., 0] / counts.sum(axis=-1) - others[..., 0] / others.sum(axis=-1))
    return apart


def _compared(
    name: str,
    before: Side,
    now: Side,
    methods: Mapping[str, Distance],
    effect_min: float | Mapping[str, float] | None,
    worth: Worth,
    *,
    bins: Any,
    **rules: Any,
) -> ColumnDrift:
    chosen, note = _applicable(methods, before, now)
    tests: dict[str, Comparison] = {}
    try:
        for word, distance in chosen.items():
            least = effect_min.get(word) if isinstance(effect_min, Mapping) else effect_min
            options = rules | {"effect_min": least} | ({} if distance.needs_order else {"bins": bins})
            tests[word] = distance.compare(before, now, **options)
        effect = effect_of(name, before, now, worth)
    except SchemaError as error:
        error.add_note(f"while comparing column {name!r}")
        raise
    counts = [(side.count, _n_missing(side)) for side in (before, now)]
    shares = (counts[0][1] / max(counts[0][0], 1), counts[1][1] / max(counts[1][0], 1))
    is_enough = min(counts[0][0], counts[1][0]) >= rules["min_rows"]
    missing_p = missing_test(*counts[0], *counts[1], rules["alpha"]) if is_enough and chosen else None
    verdict = _joined(list(tests.values())) if chosen else "not applicable"
    p = simes([*_p_values(tests.values()), *([] if missing_p is None else [missing_p])])
    moments = (_moments(before), _moments(now))
    return ColumnDrift(name, verdict, None, tests, shares, missing_p, moments, note, p, effect)


def _applicable(methods: Mapping[str, Distance], before: Side, now: Side) -> tuple[Mapping[str, Distance], str]:
    """The methods that can compare these sides, and why others are left out, with those that can."""
    if "other" in (before.kind, now.kind):
        return {}, "not compared: neither numbers nor text; compare a column of numbers or text made of it"
    ordered = [word for word, distance in methods.items() if distance.needs_order]
    why = ""
    if "text" in (before.kind, now.kind):
        why = "text has no order"
    elif not (_keeps_order(before) and _keeps_order(now)):
        why = "a profile keeps no quantiles"
    if not why or not ordered:
        return methods, ""
    others = [word for word, distance in DISTANCES.items() if not distance.needs_order]
    left = {word: distance for word, distance in methods.items() if word not in ordered}
    instead = "" if left else f"; use {', '.join(others)}"
    return left, f"{' and '.join(ordered)} left out: {why}{instead}"


def _judged(column: ColumnDrift, p: float | None, alpha: float, worth: Worth) -> ColumnDrift:
    """The verdict on a column after all columns have been seen."""
    is_large = column.effect is None or column.effect.is_material
    verdict, significant = column.verdict, p is not None and p < alpha
    by_value = any(test.significant and test.material is not False for test in column.tests.values())
    by_missing = column.missing_p is not None and column.missing_p < alpha and _is_missing_material(column, worth)
    if p is not None and verdict in ("ok", "drift"):
        verdict = "drift" if significant and ((by_value and is_large) or by_missing) else "ok"
    elif significant and by_missing:
        verdict = "drift"  # too few values to compare, because they are missing
    # A fixed mark, or a summary whose p-value is not known, says drift without one.
    marks = [test for test in column.tests.values() if test.p is None and test.verdict == "drift"]
    if any(is_large or test.convention != "poolish" for test in marks):
        verdict = "drift"
    return replace(column, verdict=verdict, p=p, significant=significant or bool(marks))


def _is_missing_material(column: ColumnDrift, worth: Worth) -> bool:
    return worth == "any" or abs(column.missing[1] - column.missing[0]) >= MISSING_SHARE


def _joined(tests: Sequence[Comparison]) -> Verdict:
    verdicts = [test.verdict for test in tests]
    order: tuple[Verdict, ...] = ("drift", "ok", "constant", "not applicable", "insufficient")
    return next((verdict for verdict in order if verdict in verdicts), "insufficient")


def _p_values(tests: Iterable[Comparison]) -> list[float]:
    return [test.p for test in tests if test.p is not None and test.verdict in ("ok", "drift")]


def _rank(column: ColumnDrift) -> tuple[object, ...]:
    order = {"drift": 0, "ok": 1, "constant": 2, "insufficient": 3, "not applicable": 4}
    effect = math.inf if math.isnan(column.value) else -column.value
    return order[column.verdict], 1.0 if column.p is None else column.p, effect, column.name


# Sides ----------------------------------------------------------------------------------------------------------


def _methods(method: str) -> dict[str, Distance]:
    words = method.split("+")
    unknown = [word for word in words if word not in DISTANCES]
    if unknown:
        raise ConfigError(f"method: statistics joined by '+', of {', '.join(DISTANCES)}; got {method!r}")
    return {word: DISTANCES[word] for word in words}


def _sides(rows: Any, names: Iterable[str] | None) -> dict[str, Side]:
    if isinstance(rows, Profile):
        return {name: rows[name] for name in (rows if names is None else names)}
    return {name: side_of(values) for name, values in columns_of(rows, names).items()}


def _keeps_order(side: Side) -> bool:
    return not isinstance(side, ColumnProfile) or side.quantiles is not None or side.kind == "null"


def _n_missing(side: Side) -> int:
    if isinstance(side, ColumnProfile):
        return side.missing if side.kind in ("number", "bool", "null", "text") else side.nulls
    n_nan = 0
    if side.kind == "number" and side.numbers is not None and side.numbers.dtype.kind == "f":
        n_nan = int(np.isnan(side.numbers).sum())
    return side.nulls + n_nan


def _moments(side: Side) -> Moments | None:
    if isinstance(side, ColumnProfile):
        return side.moments if side.is_numeric else None
    return None if side.numbers is None else Moments.of(side.numbers)


def _line(column: ColumnDrift) -> list[tuple[str, object]]:
    means = [None if side is None or not side.n else f"{side.mean:.5g}" for side in column.moments]
    tests = "; ".join(f"{name} {test.value:.3g}" for name, test in column.tests.items())
    return [
        ("column", column.name),
        ("verdict", column.verdict),
        ("p", "" if column.raw_p is None else f"{column.raw_p:.3g}"),
        ("p, adjusted", "" if column.p is None else f"{column.p:.3g}"),
        ("change", "" if column.effect is None else str(column.effect)),
        ("tests", "; ".join(filter(None, (tests, column.note)))),
        ("mean", "" if None in means else f"{means[0]} -> {means[1]}"),
        ("missing", f"{100 * column.missing[0]:.3g} % -> {100 * column.missing[1]:.3g} %"),
    ]


def _facts(column: ColumnDrift) -> Iterator[str]:
    yield column.verdict
    if column.effect is not None:
        yield str(column.effect)
    if column.p is not None and column.raw_p is not None:
        yield f"p {column.raw_p:.3g}, adjusted {column.p:.3g}"
    yield from map(str, column.tests.values())
    if column.missing_p is not None:
        yield f"missing {100 * column.missing[0]:.3g} % -> {100 * column.missing[1]:.3g} % (p {column.missing_p:.3g})"
    if column.note:
        yield column.note


def _effect_json(effect: Effect) -> dict[str, Any]:
    found = {"value": effect.value, "unit": effect.unit, "spreads": effect.spreads, "least": effect.least}
    return {name: encode_float(value) if isinstance(value, float) else value for name, value in found.items()}


def drift(
    reference: Any,
    current: Any,
    *,
    columns: Iterable[str] | None = None,
    method: str = "psi+ks",
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | Mapping[str, float] | None = None,
    worth: Worth = "auto",
    min_rows: int = MIN_ROWS,
    bins: Any = None,
) -> DriftReport:
    """Compare the columns of two tables or profiles, those of the reference unless ``columns`` names some.

    ``method`` are statistics joined by "+"; those that need an order are left out for text. ``alpha`` is the chance of
    any false alarm, however many columns there are (Holm). ``worth`` is the least change that is worth an alarm, by
    column and in its own unit, a share of the rows for text: ``worth={"price": 5.0}``. By default that is a tenth of
    the reference's spread for numbers, 5 % of the rows for text and booleans; ``worth="any"`` counts every change.
    ``effect_min`` is the same in the unit of the statistics, for all or for each by name.

    >>> import numpy as np
    >>> before = {"x": np.arange(1000) / 10}
    >>> report = drift(before, {"x": 0.22 * np.arange(500) + 3})
    >>> report.drifted, str(report["x"].effect)
    (['x'], 'moved by 7.94 (0.214 spreads; worth an alarm: 3.707)')
    >>> print(report["x"].tests["ks"])
    ks 0.118 (threshold 0.0739, p 0.000178): drift
    """
    rules = {"convention": convention, "alpha": alpha, "min_rows": min_rows, "bins": bins}
    return compare_columns(reference, current, columns, method, effect_min, worth, **rules)
