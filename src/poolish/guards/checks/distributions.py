"""Checks of distributions: statistics of columns, drift and outliers, and the reference that they are measured from.

A check of columns judges all rows it is given at once, so it needs enough of them: with too few, or with a column that
never changes, its verdict is inconclusive, which is no failure. A fitted detector judges a row without
looking at the others, so its check has a mask and acts at once, at every boundary, whatever the size of a batch.

    entry of a suite --detector_of--> Detector --fit(reference)--> FittedOutliers, a check of single rows

A ``Reference`` is what good rows look like, without the rows: a profile and the fitted detectors, in one file in the
layout of safetensors with a checksum, no pickle. To use it takes neither scikit-learn nor torch, which fitting needs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
import xxhash
from numpy.typing import NDArray

from poolish.columns import Column, Mask, NotApplicable, TableView
from poolish.concurrency import cached_property
from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.guards.checks.checks import Number
from poolish.guards.checks.verdicts import Action, Level, Severity, Verdict, examples_of
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.detectors import DETECTOR_OPTIONS, DETECTORS, Arrays, Detector
from poolish.guards.stats.drift import ColumnDrift, drift, spent
from poolish.guards.stats.effects import Worth
from poolish.guards.stats.outliers import OUTLIER_METHODS, Outliers
from poolish.guards.stats.profile import Profile
from poolish.guards.stats.serialization import load_arrays, save_arrays
from poolish.guards.stats.significance import MIN_ROWS
from poolish.printable import counted

Floats = NDArray[np.float64]


# Statistics -------------------------------------------------------------------------------------------------------


def _quantile(share: float) -> Callable[[ColumnProfile], float]:
    return lambda profile: profile.quantile(share)


#: The statistics of ``Suite.stat``, taken from a ``Profile``: of the finite numbers, including those in arrays and
#: lists, or of the lengths of text; of times in seconds, since 1970 where they are moments. The shares are of all rows.
STATISTICS: dict[str, Callable[[ColumnProfile], float | None]] = {
    "mean": lambda profile: profile.mean,
    "std": lambda profile: profile.std,
    "variance": lambda profile: profile.variance,
    "skewness": lambda profile: profile.skewness,
    "kurtosis": lambda profile: profile.kurtosis,
    "min": lambda profile: profile.min,
    "max": lambda profile: profile.max,
    "median": lambda profile: profile.median,
    **{f"q{share:02d}": _quantile(share / 100) for share in (1, 5, 10, 25, 75, 90, 95, 99)},
    "null_share": lambda profile: profile.nulls / max(profile.count, 1),
    "nan_share": lambda profile: (profile.nan + profile.infinite) / max(profile.count, 1),
    "distinct": lambda profile: profile.distinct,
}


def finite_values(column: Column) -> Floats:
    """The finite numbers of a column, nulls left out; ``NotApplicable`` if it holds no numbers."""
    flat = column.flat
    if not isinstance(flat.values, np.ndarray) or flat.values.dtype.kind not in "biuf":
        raise NotApplicable(f"column {column.name!r} is {column.type_name}; a statistic is asked of numbers")
    return np.asarray(flat.values[_is_used(flat.values, flat.nulls)], np.float64)


@dataclass(frozen=True)
class StatCheck:
    """Statistics of a column lie in ranges."""

    column: str
    ranges: Mapping[str, tuple[Number | None, Number | None]]
    severity: Severity = "warn"
    min_rows: int = 1

    @property
    def columns(self) -> tuple[str, ...] | None:
        return (self.column,)

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict for each statistic."""
        try:
            profile = profile_of(rows[self.column])
        except NotApplicable as why:
            profile, reason = None, str(why)
        for name, (low, high) in self.ranges.items():
            rule = f"has a {name} {_range_text(low, high)}"
            draft = _unjudged(rule, (self.column,), self.severity, rows, action)
            value = None if profile is None else STATISTICS[name](profile)
            if profile is None:
                yield draft.failed(reason)
            elif len(rows) < self.min_rows:
                few = f"{counted(len(rows), 'row')}, and it takes {self.min_rows:,}"
                yield replace(draft, status="insufficient", detail=few)
            elif not isinstance(value, (int, float)) or math.isnan(value):
                yield replace(draft, status="insufficient", detail=f"these rows have no {name}")
            elif (low is not None and value < low) or (high is not None and value > high):
                yield draft.failed(f"it is {value:.6g}", value=value, low=low, high=high)
            else:
                yield replace(draft, measured={"value": value, "low": low, "high": high})


def profile_of(column: Column) -> ColumnProfile:
    """The profile of one column; of times in seconds, whatever unit they are kept in."""
    return Profile.of({column.name: _in_seconds(column.to_arrow())})[column.name]


#: How many of a unit of time are in a second.
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _in_seconds(values: pa.Array) -> pa.Array:
    type_ = values.type
    if kinds.is_date(type_):
        values, type_ = values.cast(pa.timestamp("s")), pa.timestamp("s")
    if not (kinds.is_timestamp(type_) or kinds.is_duration(type_)):
        return values
    return pc.divide(values.cast(pa.int64()).cast(pa.float64(), safe=False), float(_PER_SECOND[type_.unit]))


# Drift ------------------------------------------------------------------------------------------------------------

#: What ``alpha`` is the rate of: false alarms per window, or of a whole stream of windows.
Per = Literal["window", "stream"]


@dataclass(frozen=True)
class DriftCheck:
    """Columns look as they do in the reference."""

    chosen: tuple[str, ...] | None = None
    method: str = "psi"
    alpha: float = 0.05
    effect_min: float | None = None
    min_rows: int = MIN_ROWS
    severity: Severity = "warn"
    worth: Worth = "auto"
    per: Per = "window"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.chosen

    def at_window(self, number: int) -> DriftCheck:
        """The check of one window of a stream, counted from 0, with the part of ``alpha`` that it may use."""
        return self if self.per == "window" else replace(self, alpha=spent(self.alpha, number))

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict for each column, judged together: the more columns, the less one of them proves."""
        rule = f"is as in the reference ({self.method})"
        draft = _unjudged(rule, self.chosen or ("every column",), self.severity, rows, action)
        if reference is None:
            yield replace(draft, status="no reference", detail="pass reference= to compare with")
            return
        names = self.chosen if self.chosen is not None else names_of(reference)
        missing = [name for name in names if name not in rows]
        yield from (replace(draft, columns=(name,)).failed("there is no such column any more") for name in missing)
        known = [name for name in names if name in rows]
        for found in self._found(known, rows, reference) if known else ():
            yield self._verdict(found, replace(draft, columns=(found.name,)))

    def _found(self, names: list[str], rows: TableView, reference: Any) -> Iterable[ColumnDrift]:
        report = drift(
            reference,
            rows.to_arrow(names),
            columns=names,
            method=self.method,
            alpha=self.alpha,
            effect_min=self.effect_min,
            worth=self.worth,
            min_rows=self.min_rows,
        )
        return report.values()

    def _verdict(self, found: ColumnDrift, draft: Verdict) -> Verdict:
        measured: dict[str, Any] = {"p": found.p, "raw_p": found.raw_p, "alpha": self.alpha}
        if found.effect is not None:
            measured |= {"change": found.effect.value, "worth": found.effect.least}
        for name, test in found.tests.items():
            measured |= {name: test.value, f"{name}_threshold": test.threshold, "n": test.n, "m": test.m}
        if found.verdict == "ok":
            too_small = f"significant, too small to be worth an alarm: {found.effect}" if found.significant else ""
            return replace(draft, detail=too_small, measured=measured)
        effect = [] if found.effect is None else [str(found.effect)]
        details = "; ".join([*(str(test) for test in found.tests.values()), *effect])
        if found.missing_p is not None and found.missing_p < self.alpha:
            details += f"; {100 * found.missing[0]:.2g} % were missing, now {100 * found.missing[1]:.2g} %"
        if found.verdict == "drift":
            return draft.failed(details, **measured)
        return replace(draft, status=found.verdict, detail=details or found.note, measured=measured)


def names_of(reference: Any) -> list[str]:
    """The columns of a reference, rows or a ``Profile``."""
    return list(reference) if isinstance(reference, Mapping) else TableView.of(reference).names


# Outliers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutlierCheck:
    """Not more than a share ``most`` of a column's numbers are outliers among the others."""

    column: str
    method: str = "modified_zscore"
    threshold: float | None = None
    most: float = 0.01
    severity: Severity = "warn"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return (self.column,)

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict; its bad rows are the outliers, if there are too many of them."""
        rule = f"has at most {100 * self.most:g} % outliers ({self.method})"
        draft = _unjudged(rule, (self.column,), self.severity, rows, action)
        try:
            column = rows[self.column]
            values, flat = finite_values(column), column.flat
        except NotApplicable as why:
            yield draft.failed(str(why))
            return
        found = self._found(values) if len(values) else None
        if found is None or not found.is_reachable:
            few = f"among {counted(len(values), 'number')} none can be an outlier"
            yield replace(draft, status="insufficient", detail=few)
            return
        share = found.count / len(values)
        if share <= self.most:
            yield replace(draft, measured={"share": share, "most": self.most})
            return
        flags = np.zeros(len(flat.values), np.bool_)
        flags[_is_used(flat.values, flat.nulls)] = found.mask
        bad = flat.rows_with(flags)
        examples = examples_of(rows, (self.column,), bad)
        yield draft.failed(f"{100 * share:.2g} % are", examples=examples, bad=bad, share=share, most=self.most)

    def _found(self, values: Floats) -> Outliers:
        method = OUTLIER_METHODS[self.method]
        return method(values) if self.threshold is None else method(values, threshold=self.threshold)


@dataclass(frozen=True)
class UnfittedCheck:
    """Rows are like the reference, by a detector that is not fitted yet, so the verdict is inconclusive."""

    chosen: tuple[str, ...]
    method: str
    severity: Severity = "warn"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.chosen

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict, which names what is missing."""
        rule = f"are like the reference ({self.method})"
        draft = _unjudged(rule, self.chosen, self.severity, rows, action)
        yield replace(draft, status="no reference", detail="pass reference=, or use suite.fit(reference)")


ColumnCheck = StatCheck | DriftCheck | OutlierCheck | UnfittedCheck


def _unjudged(rule: str, columns: tuple[str, ...], severity: Severity, rows: TableView, action: Action) -> Verdict:
    """A verdict but for its outcome."""
    return Verdict(rule, columns, severity, "statistics", "ok", len(rows), action=action)


def _is_used(values: NDArray[Any], nulls: Any) -> Any:
    used = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
    return used if nulls is None else used & ~nulls


def _range_text(low: Number | None, high: Number | None) -> str:
    if low is not None and high is not None:
        return f"between {low} and {high}"
    return f"of at least {low}" if low is not None else f"of at most {high}"


# The reference ----------------------------------------------------------------------------------------------------

_KIND = "suite reference"
_PROFILE = "profile"


class Reference:
    """The profile and the detectors that ``Suite.fit`` made of good rows; immutable.

    >>> from poolish.guards import Suite
    >>> rows = {"x": np.random.default_rng(0).normal(size=500)}
    >>> suite = Suite("watch").outliers(columns=["x"], method="isolation_forest")
    >>> suite.fit(rows).reference.save(folder / "reference.safetensors")
    >>> suite.fit(Reference.load(folder / "reference.safetensors")).check({"x": [0.1, 9.0]}).failures[0].n_bad
    1
    """

    def __init__(self, profile: Profile, detectors: Mapping[str, Detector]) -> None:
        self.profile = profile  #: of the columns that the suite names
        self.detectors = dict(detectors)  #: by the check that each was fitted for

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with the profile and with everything a detector learnt."""
        settings, arrays = self._parts()
        whole = xxhash.xxh3_64(repr(settings).encode())
        for name in sorted(arrays):
            whole.update(name.encode())
            whole.update(np.ascontiguousarray(arrays[name]).tobytes())
        return whole.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all."""
        save_arrays(path, _KIND, *self._parts())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Reference:
        """The reference in a file; needs NumPy only. What is damaged is a ``CorruptDataError``."""
        settings, arrays = load_arrays(path, _KIND)
        source = os.fspath(path)
        try:
            profile = Profile.from_json(arrays.pop(_PROFILE).tobytes().decode())
            detectors = {
                key: DETECTORS[saved["kind"]].from_parts(saved["settings"], _of(arrays, number), source)
                for number, (key, saved) in enumerate(settings["detectors"].items())
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CorruptDataError(
                f"{source}: no reference of a suite ({error!r:.200}); fit and save it again"
            ) from error
        return cls(profile, detectors)

    def _parts(self) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {_PROFILE: np.frombuffer(self.profile.to_json().encode(), np.uint8)}
        saved = {}
        for number, (key, detector) in enumerate(self.detectors.items()):
            settings, own = detector.parts()
            saved[key] = {"kind": detector.kind, "settings": settings}
            arrays |= {f"{number}.{name}": array for name, array in own.items()}
        return {"detectors": saved}, arrays

    def __deepcopy__(self, memo: Any) -> Reference:
        return self

    def __repr__(self) -> str:
        kinds = ", ".join(each.kind for each in self.detectors.values())
        return f"<Reference of {counted(len(self.profile), 'column')}{f', fitted: {kinds}' if kinds else ''}>"


def _of(arrays: Arrays, number: int) -> Arrays:
    start = f"{number}."
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def reference_of(
    reference: Any, asked: Mapping[str, Mapping[str, Any]], profile: Callable[[Any], Profile]
) -> Reference:
    """What the entries of a suite need of a reference; a part that a saved one lacks is a ``ConfigError``."""
    if isinstance(reference, Reference):
        return _covering(reference, asked)
    if isinstance(reference, Profile):
        if asked:
            methods = ", ".join(sorted({entry["method"] for entry in asked.values()}))
            raise ConfigError(
                f"reference: {methods} cannot be fitted on a Profile, which holds no rows; pass rows, or what "
                "suite.fit(rows).reference saved"
            )
        return Reference(reference, {})
    rows = TableView.of(reference)
    return Reference(profile(rows), {key: _fitted(entry, rows) for key, entry in asked.items()})


def _covering(reference: Reference, asked: Mapping[str, Mapping[str, Any]]) -> Reference:
    for key, entry in asked.items():
        if key not in reference.detectors:
            raise ConfigError(
                f"reference: it holds no {entry['method']} with these columns and options ({reference!r}); it was "
                "fitted for another suite: fit this one on the good rows again"
            )
    return reference


def _fitted(entry: Mapping[str, Any], rows: TableView) -> Any:
    method = entry["method"]
    options = {name: entry[name] for name in DETECTOR_OPTIONS[method]}
    return fit(method, options, None if entry["columns"] is None else tuple(entry["columns"]), rows)


def detector_of(method: str, options: Mapping[str, Any]) -> Detector:
    """An unfitted detector; an option that it does not have, or a wrong value, is a ``ConfigError``."""
    known = DETECTOR_OPTIONS[method]
    for name in options:
        if name not in known:
            raise ConfigError(f"{method} has no option {name!r}; it has {', '.join(known)}")
    try:
        return DETECTORS[method](**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{method}: {error}") from None


def fit(method: str, options: Mapping[str, Any], columns: tuple[str, ...] | None, rows: TableView) -> Detector:
    """A detector that has learnt these columns of good rows; all that hold numbers, where none are named."""
    detector = detector_of(method, options)
    try:
        return detector.fit(rows.to_arrow(columns))
    except NotApplicable as why:
        raise SchemaError(f"outliers by {method}: the reference cannot be learnt from: {why}") from None
    except SchemaError as error:
        size = counted(len(rows), "row")
        error.add_note(f"while fitting {method} on a reference of {size}, columns {columns or rows.names}")
        raise


@dataclass(frozen=True, eq=False)
class FittedOutliers:
    """A row is like those that the detector was fitted on. A null passes; NaN and infinities do not."""

    detector: Detector
    level: ClassVar[Level] = "statistics"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.detector.columns or ())

    @property
    def rule(self) -> str:
        return f"are like the reference ({self.detector.kind})"

    def bad(self, rows: TableView) -> Mask | None:
        """The rows that score beyond the threshold."""
        if not len(rows):
            return None
        table = rows.to_arrow(self.columns)
        try:
            found = self.detector.mask(table)
        except SchemaError as error:
            raise NotApplicable(f"{', '.join(self.columns)}: {error}") from None
        for name in self.columns:
            if table.column(name).null_count:
                found &= np.asarray(table.column(name).is_valid())
        return found
