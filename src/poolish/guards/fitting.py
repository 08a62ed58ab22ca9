"""Fitting a suite: from good rows, or from what an earlier fit saved, to the ``Reference`` that the suite carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poolish.errors import ConfigError
from poolish.guards.entries import Entry
from poolish.guards.fitted_outliers import DETECTOR_OPTIONS, fit
from poolish.guards.leaves import Rows
from poolish.guards.profile import Profile
from poolish.guards.reference import Reference


def reference_of(reference: Any, asked: Mapping[str, Entry], profile: Callable[[Any], Profile]) -> Reference:
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
    rows = Rows.of(reference)
    return Reference(profile(rows), {key: _fitted(entry, rows) for key, entry in asked.items()})


def _covering(reference: Reference, asked: Mapping[str, Entry]) -> Reference:
    for key, entry in asked.items():
        if key not in reference.detectors:
            raise ConfigError(
                f"reference: it holds no {entry['method']} with these columns and options ({reference!r}); it was "
                "fitted for another suite: fit this one on the good rows again"
            )
    return reference


def _fitted(entry: Entry, rows: Rows) -> Any:
    method = entry["method"]
    options = {name: entry[name] for name in DETECTOR_OPTIONS[method]}
    return fit(method, options, None if entry["columns"] is None else tuple(entry["columns"]), rows)
