"""What the fitted detectors share: rows to numbers, a threshold by contamination, and files without pickle.

A detector learns what usual rows look like and gives each row a score, higher for stranger ones. The threshold is the
score that a share ``contamination`` of the rows it was fitted on exceeds; one in a hundred, unless told, because what
the libraries assume (14 % or half of all rows) would bury who has to look at them. A row with a number that is missing
or infinite cannot be scored: it is infinitely strange, and not learnt from.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.guards.arrays_file import load_arrays, save_arrays
from poolish.guards.columns import columns_of
from poolish.guards.outliers import Outliers, row_numbers
from poolish.seeds import check_seed

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


class Detector(ABC):
    """Fit, score, save. Subclasses learn arrays from a matrix, and score a matrix by them."""

    kind: ClassVar[str] = ""

    def __init__(self, *, contamination: float = 0.01, seed: int = 0) -> None:
        if not 0 < contamination < 0.5:
            raise ConfigError(f"contamination: the share of rows that are outliers, up to 0.5, got {contamination!r}")
        self.contamination, self.seed = float(contamination), check_seed(seed)
        self.threshold = float("nan")  #: a higher score is an outlier
        self.columns: list[str] | None = None  #: of the rows it was fitted on; None for a plain matrix
        self._arrays: Arrays = {}

    def fit(self, rows: Any) -> Self:
        """Learn from rows: a matrix, a table, a dict of columns or a list of dicts; columns that are not numbers stay
        out. The same rows and seed give the same detector.
        """
        columns, matrix = _matrix(rows, None)
        usable = matrix[np.isfinite(matrix).all(axis=1)]
        if len(usable) < 2 or not usable.shape[1]:
            raise SchemaError(
                f"{len(usable)} rows of {matrix.shape[1]} numbers without anything missing: at least 2 rows of 1 number"
            )
        arrays = self._learn(usable)
        scores = self._score(arrays, usable)
        threshold = float(np.quantile(scores, 1 - self.contamination))
        self._arrays, self.columns, self.threshold = arrays, columns, threshold
        return self

    def scores(self, rows: Any) -> Floats:
        """How strange each row is."""
        if not self._arrays:
            raise ConfigError(f"{type(self).__name__}: not fitted; call fit(rows) or load(path) first")
        _, matrix = _matrix(rows, self.columns)
        width = self._width(self._arrays)
        if matrix.shape[1] != width:
            raise SchemaError(f"rows of {matrix.shape[1]} numbers, fitted on rows of {width}")
        usable = np.isfinite(matrix).all(axis=1)
        scores = np.full(len(matrix), np.inf)
        if usable.any():
            scores[usable] = self._score(self._arrays, matrix[usable])
        return scores

    def mask(self, rows: Any) -> NDArray[np.bool_]:
        """Which rows are outliers."""
        return self.scores(rows) > self.threshold

    def outliers(self, rows: Any) -> Outliers:
        """Mask and scores at once."""
        scores = self.scores(rows)
        return Outliers(scores > self.threshold, scores, self.threshold, "poolish", self.kind)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to a file, in the layout of safetensors."""
        save_arrays(path, self.kind, *self.parts())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The detector that ``save`` wrote; needs NumPy only. What is damaged is a ``CorruptDataError``."""
        return cls.from_parts(*load_arrays(path, cls.kind), os.fspath(path))

    def parts(self) -> tuple[dict[str, Any], Arrays]:
        """The settings and arrays that a file of a fitted detector holds."""
        if not self._arrays:
            raise ConfigError(f"{type(self).__name__}: not fitted, so there is nothing to save; call fit(rows) first")
        settings = {"arguments": self.arguments(), "threshold": self.threshold, "columns": self.columns}
        return settings, self._arrays

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: Arrays, source: str) -> Self:
        """The detector that ``parts`` describes; parts that do not fit each other are a ``CorruptDataError``."""
        try:
            detector = cls(**settings["arguments"])
            detector.threshold = float(settings["threshold"])
            detector.columns = settings["columns"]
            cls._check(arrays)
            detector._arrays = arrays
            probe = detector._score(arrays, np.zeros((1, cls._width(arrays))))
            if probe.shape != (1,):
                raise ValueError("its arrays do not fit each other")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptDataError(f"{source}: no {cls.__name__} ({error}); fit and save it again") from error
        return detector

    # What a subclass says ------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """The settings it was made with, by name."""
        return {"contamination": self.contamination, "seed": self.seed}

    @abstractmethod
    def _learn(self, matrix: Floats) -> Arrays:
        """The arrays that say what usual rows look like."""

    @abstractmethod
    def _score(self, arrays: Mapping[str, NDArray[Any]], matrix: Floats) -> Floats:
        """How strange each row of a matrix is by those arrays."""

    @staticmethod  # noqa: B027  # most detectors have nothing to refuse
    def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
        """Refuse arrays that would lead outside of themselves."""

    @staticmethod
    def _width(arrays: Mapping[str, NDArray[Any]]) -> int:
        return int(arrays["centre"].size)


def standardized(arrays: Mapping[str, NDArray[Any]], matrix: Floats) -> Floats:
    """Each column with mean 0 and standard deviation 1, as they were in the fit."""
    with np.errstate(all="ignore"):
        scaled: Floats = (matrix - arrays["centre"]) / arrays["spread"]
    return scaled


def scaling(matrix: Floats) -> Arrays:
    """What ``standardized`` needs; a column that never changes is left as it is."""
    with np.errstate(all="ignore"):
        spread = matrix.std(axis=0)
    return {"centre": matrix.mean(axis=0), "spread": np.where(spread > 0, spread, 1.0)}


def _matrix(rows: Any, names: list[str] | None) -> tuple[list[str] | None, Floats]:
    """Rows as a matrix of float64, missing numbers as NaN; columns with arrays give one number for each element."""
    if not isinstance(rows, Mapping) and hasattr(rows, "shape") and not hasattr(rows, "column_names"):
        array = np.asarray(rows.detach().cpu() if hasattr(rows, "detach") else rows)
        if array.ndim == 2 and array.dtype.kind in "biuf" and not hasattr(rows, "columns"):
            if names is not None:
                raise SchemaError(f"fitted on the columns {names}; pass rows with these names, not a matrix")
            return None, array.astype(np.float64)
    parts: dict[str, Floats] = {}
    for name, values in columns_of(rows, names).items():
        try:
            parts[name] = row_numbers(values)
        except SchemaError as error:
            if names is not None:
                error.add_note(f"in column {name!r}")
                raise
    if not parts:
        raise SchemaError("no column of these rows holds one number, or arrays of one shape, for each row")
    return list(parts), np.concatenate(list(parts.values()), axis=1)
