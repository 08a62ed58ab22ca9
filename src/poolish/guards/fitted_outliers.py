"""Outliers by a model of good rows: the check of a ``Suite`` that a fitted ``Detector`` answers.

    entry of a suite --detector_of--> Detector --fit(reference)--> FittedOutliers, asked of each row by itself

A fitted detector judges a row without looking at the others, so it is a check of rows: it has a mask and acts at once,
at every door, whatever the size of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from poolish.errors import ConfigError, SchemaError
from poolish.guards.detector import Detector
from poolish.guards.leaves import Mask, Rows, Unfit
from poolish.guards.outliers_autoencoder import AutoencoderOutliers
from poolish.guards.outliers_forest import IsolationForestOutliers
from poolish.guards.outliers_svm import OneClassSVMOutliers
from poolish.guards.verdicts import Level

DETECTORS: dict[str, type[Detector]] = {
    kind.kind: kind for kind in (IsolationForestOutliers, OneClassSVMOutliers, AutoencoderOutliers)
}

#: What each detector can be set to, with what it is set to otherwise.
DETECTOR_OPTIONS: dict[str, dict[str, Any]] = {name: kind().arguments() for name, kind in DETECTORS.items()}


def detector_of(method: str, options: Mapping[str, Any]) -> Detector:
    """An unfitted detector; an option that it does not have, or a wrong value, is a ``ConfigError``."""
    known = DETECTOR_OPTIONS[method]
    for name in options:
        if name not in known:
            raise ConfigError(f"outliers: {method} has no option {name!r}; it has {', '.join(known)}")
    try:
        return DETECTORS[method](**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"outliers: {method}: {error}") from None


def fit(method: str, options: Mapping[str, Any], columns: tuple[str, ...] | None, rows: Rows) -> Detector:
    """A detector that has learnt these columns of good rows; all that hold numbers, where none are named."""
    detector = detector_of(method, options)
    try:
        return detector.fit(rows.to_arrow(columns))
    except Unfit as why:
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

    def bad(self, rows: Rows) -> Mask | None:
        """The rows that score beyond the threshold."""
        if not len(rows):
            return None
        table = rows.to_arrow(self.columns)
        try:
            found = self.detector.mask(table)
        except SchemaError as error:
            raise Unfit(f"{', '.join(self.columns)}: {error}") from None
        for name in self.columns:
            if table.column(name).null_count:
                found &= np.asarray(table.column(name).is_valid())
        return found
