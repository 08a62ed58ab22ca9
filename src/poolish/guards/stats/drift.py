"""Drift: every column of two tables compared, with one error rate for all of them.

Each column gets a p-value from its tests (Simes' rule joins them: the least p-value times the number of tests over its
place among them), then Benjamini and Hochberg's rule holds the share of false alarms among all alarms at ``alpha``,
however many columns there are. A changed share of missing values is a test of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolish import html
from poolish.columns import columns_of
from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.distances import DISTANCES, Distance, Side, side_of
from poolish.guards.stats.profile import Profile
from poolish.guards.stats.serialization import encode_float
from poolish.guards.stats.significance import Comparison, Verdict
from poolish.guards.stats.sketches import Moments
from poolish.printable import counted, printable


@dataclass(frozen=True)
class ColumnDrift:
    """The results of all tests of one column; ``p`` is adjusted for the number of tests and of columns."""

    name: str
    verdict: Verdict
    p: float | None
    tests: dict[str, Comparison]
    missing: tuple[float, float]  #: the share of None and NaN, before and now
    missing_p: float | None  #: how likely such a change is by chance; None where nothing is missing
    moments: tuple[Moments | None, Moments | None]  #: of both sides, where they are numbers
    note: str = ""

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
        lines = [
            f"  {printable(column.name)}: {column.verdict}" + "".join(f"; {test}" for test in column.tests.values())
            for column in self.values()
        ]
        return "\n".join(
            [f"{len(self.drifted)} of {counted(len(self), 'column')} drifted (alpha {self.alpha:g})", *lines]
        )


def compare_columns(
    reference: Any,
    current: Any,
    columns: Iterable[str] | None,
    method: str,
    effect_min: float | Mapping[str, float] | None,
    *,
    alpha: float,
    **rules: Any,
) -> DriftReport:
    """What ``drift`` does."""
    methods = _methods(method)
    before = _sides(reference, columns)
    now = _sides(current, before if columns is None else columns)
    found = [_compared(name, before[name], now[name], methods, effect_min, alpha=alpha, **rules) for name in before]
    adjusted = benjamini_hochberg([column.p for column in found])
    judged = [_judged(column, p, alpha) for column, p in zip(found, adjusted, strict=True)]
    return DriftReport(judged, alpha=alpha, method=method)


# Deciding -------------------------------------------------------------------------------------------------------


def benjamini_hochberg(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted so that those below alpha hold alpha as the share of false alarms; None stays None.

    >>> benjamini_hochberg([0.01, None, 0.04, 0.03])
    [0.03, None, 0.04, 0.04]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 1.0
    for place in range(len(known), 0, -1):
        p, i = known[place - 1]
        least = min(least, p * len(known) / place)
        adjusted[i] = least
    return adjusted


def simes(p_values: Sequence[float]) -> float | None:
    """One p-value for several tests of one thing, also where the tests are related.

    >>> simes([0.01, 0.5]), simes([0.04, 0.04]), simes([])
    (0.02, 0.04, None)
    """
    ordered = sorted(p_values)
    return min((p * len(ordered) / place for place, p in enumerate(ordered, 1)), default=None)


def missing_test(n: int, missing: int, m: int, missing_now: int) -> float | None:
    """The p-value of a changed share of missing values (two proportions); None where nothing or everything is missing.

    >>> round(missing_test(1000, 10, 1000, 30), 5)
    0.0014
    """
    pooled = (missing + missing_now) / (n + m) if n and m else 0.0
    if not 0 < pooled < 1:
        return None
    z = (missing / n - missing_now / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return math.erfc(abs(z) / math.sqrt(2))


def _compared(
    name: str,
    before: Side,
    now: Side,
    methods: Mapping[str, Distance],
    effect_min: float | Mapping[str, float] | None,
    *,
    bins: Any,
    **rules: Any,
) -> ColumnDrift:
    tests: dict[str, Comparison] = {}
    note = ""
    if "other" in (before.kind, now.kind):
        note = "not compared: neither numbers nor text"
        methods = {}
    has_order = "text" not in (before.kind, now.kind)
    if has_order and not (_keeps_order(before) and _keeps_order(now)):
        left_out = [word for word, distance in methods.items() if distance.needs_order]
        note, has_order = f"{' and '.join(left_out)} left out: a profile keeps no quantiles" if left_out else "", False
    for word, distance in methods.items():
        least = effect_min.get(word) if isinstance(effect_min, Mapping) else effect_min
        options = rules | {"effect_min": least} | ({} if distance.needs_order else {"bins": bins})
        try:
            if has_order or not distance.needs_order:
                tests[word] = distance.compare(before, now, **options)
        except SchemaError as error:
            error.add_note(f"while comparing column {name!r}")
            raise
    counts = [(side.count, _n_missing(side)) for side in (before, now)]
    shares = (counts[0][1] / max(counts[0][0], 1), counts[1][1] / max(counts[1][0], 1))
    is_enough = min(counts[0][0], counts[1][0]) >= rules["min_rows"]
    missing_p = missing_test(*counts[0], *counts[1]) if is_enough and methods else None
    verdict = _joined(list(tests.values()))
    p = simes([*_p_values(tests.values()), *([] if missing_p is None else [missing_p])])
    moments = (_moments(before), _moments(now))
    return ColumnDrift(name, verdict, p, tests, shares, missing_p, moments, note)


def _judged(column: ColumnDrift, p: float | None, alpha: float) -> ColumnDrift:
    """The verdict on a column after all columns have been seen."""
    verdict = column.verdict
    if p is not None and verdict in ("ok", "drift"):
        is_material = any(test.material is not False for test in column.tests.values() if test.significant)
        by_missing = column.missing_p is not None and column.missing_p < alpha
        verdict = "drift" if p < alpha and (is_material or by_missing) else "ok"
    elif p is not None and column.missing_p is not None and p < alpha:
        verdict = "drift"  # too few values to compare, because they are missing
    # A fixed mark, or a summary whose p-value is not known, says drift without one.
    if any(test.p is None and test.verdict == "drift" for test in column.tests.values()):
        verdict = "drift"
    return ColumnDrift(**{**vars(column), "verdict": verdict, "p": p})


def _joined(tests: Sequence[Comparison]) -> Verdict:
    verdicts = [test.verdict for test in tests]
    order: tuple[Verdict, ...] = ("drift", "ok", "constant", "insufficient")
    return next((verdict for verdict in order if verdict in verdicts), "insufficient")


def _p_values(tests: Iterable[Comparison]) -> list[float]:
    return [test.p for test in tests if test.p is not None and test.verdict in ("ok", "drift")]


def _rank(column: ColumnDrift) -> tuple[object, ...]:
    order = {"drift": 0, "ok": 1, "constant": 2, "insufficient": 3}
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
        ("p", "" if column.p is None else f"{column.p:.3g}"),
        ("tests", tests or column.note),
        ("mean", "" if None in means else f"{means[0]} -> {means[1]}"),
        ("missing", f"{100 * column.missing[0]:.3g} % -> {100 * column.missing[1]:.3g} %"),
    ]


def drift(
    reference: Any,
    current: Any,
    *,
    columns: Iterable[str] | None = None,
    method: str = "psi+ks",
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | Mapping[str, float] | None = None,
    min_rows: int = 50,
    bins: Any = None,
) -> DriftReport:
    """Compare the columns of two tables or profiles, those of the reference unless ``columns`` names some.

    ``method`` are statistics joined by "+"; those that need an order are left out for text. ``effect_min`` is the least
    difference that matters, for all statistics or for each by name. ``alpha`` is the share of false alarms among all
    alarms, however many columns there are.

    >>> import numpy as np
    >>> before = {"x": np.arange(1000) / 10}
    >>> drift(before, {"x": 0.22 * np.arange(500) + 3})
    1 of 1 column drifted (alpha 0.05)
      x: drift; psi 0.1002 (threshold 0.05076, p 0.000114): drift; ks 0.118 (threshold 0.0739, p 0.000178): drift
    """
    rules = {"convention": convention, "alpha": alpha, "min_rows": min_rows, "bins": bins}
    return compare_columns(reference, current, columns, method, effect_min, **rules)
