"""Reference: what good rows look like to a suite, without the rows: a profile of its columns and its fitted detectors.

One file, in the layout of safetensors with a checksum, no pickle: to load and use it takes neither scikit-learn nor
torch, which only fitting needs.

    entry of a suite --detector_of--> Detector --fit(reference)--> FittedOutliers, a check of single rows

A fitted detector judges a row without looking at the others, so its check has a mask and acts at once, at every
boundary, whatever the size of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xxhash

from poolish.columns import Mask, NotApplicable, TableView
from poolish.concurrency import cached_property
from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.guards.checks.verdicts import Level
from poolish.guards.stats.detectors import DETECTOR_OPTIONS, DETECTORS, Arrays, Detector
from poolish.guards.stats.profile import Profile
from poolish.guards.stats.serialization import load_arrays, save_arrays
from poolish.printable import counted

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
        error.add_note(f"while fitting {method} on a reference of {len(rows):,} rows, columns {columns or rows.names}")
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
