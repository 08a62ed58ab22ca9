"""Outliers of one column: by standard deviations, by quartiles, by the median.

    zscore            (x - mean) / standard deviation, |z| > 3         moved by the outliers themselves
    iqr               outside the quartiles by 1.5 of their distance    the box of a box plot
    modified_zscore   0.6745 (x - median) / MAD, |z| > 3.5              stands up to half of the values being bad

What is missing is never an outlier here: its score is NaN. Infinities always are, and do not enter the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.columns import Column
from poolish.errors import ConfigError, SchemaError
from poolish.guards.stats.samples import ColumnSample

Floats = NDArray[np.float64]

#: Iglewicz and Hoaglin's, and what SciPy and statsmodels have: the third quartile of the normal distribution.
_HOAGLIN, _NORMAL = 0.6745, 0.6744897501960817
#: The mean distance from the centre, as a standard deviation: the square root of pi / 2, to the digits in use.
_MEAN_AD = 1.253314


@dataclass(frozen=True, eq=False)
class Outliers:
    """One answer for each row: ``mask`` says which are outliers, ``scores`` how far out they are.

    ``method`` is the rule that was used in the end, ``is_reachable`` whether any value could have passed the threshold,
    and ``notes`` explain both.
    """

    mask: NDArray[np.bool_]
    scores: Floats
    threshold: float
    convention: str
    method: str
    is_reachable: bool = True
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many outliers there are."""
        return int(self.mask.sum())

    def __len__(self) -> int:
        return len(self.mask)

    def __repr__(self) -> str:
        notes = "".join(f"; {note}" for note in self.notes)
        return f"Outliers({self.count:,} of {len(self):,} by {self.method}, threshold {self.threshold:g}{notes})"


def zscore(values: Any, *, threshold: float = 3.0, convention: str = "poolish") -> Outliers:
    """Distance from the mean in standard deviations (of a sample, ddof 1); more than ``threshold`` is an outlier.

    Conventions: "scipy" divides by n (ddof 0); "gx" (Great Expectations) is ours, with a value on the threshold out.

    >>> zscore([2, 4, 4, 4, 5, 5, 7, 9, 50]).scores[-1:]
    array([2.6432744])
    """
    _check(threshold, convention, ("poolish", "scipy", "gx"))
    numbers = _numbers(values)
    finite = numbers[np.isfinite(numbers)]
    ddof = 0 if convention == "scipy" else 1
    spread = _std(finite, ddof)
    with np.errstate(all="ignore"):
        scores = (numbers - _mean(finite)) / spread if spread > 0 else np.where(np.isfinite(numbers), 0.0, numbers)
    scores = np.where(np.isinf(numbers), numbers, scores)
    sizes = np.abs(scores)
    with np.errstate(invalid="ignore"):
        mask = sizes >= threshold if convention == "gx" else sizes > threshold
    most = (len(finite) - ddof) / math.sqrt(len(finite)) if len(finite) > 1 else 0.0
    most = math.sqrt(max(len(finite) - 1, 0)) if ddof == 0 else most
    notes = [f"with {len(finite)} values no |z| can be more than {most:.3g}"] if most <= threshold else []
    if not spread > 0:
        notes = ["all values are the same"] if len(finite) else ["no values"]
    return Outliers(mask, scores, threshold, convention, "zscore", most > threshold, tuple(notes))


def iqr(values: Any, *, threshold: float = 1.5, convention: str = "poolish") -> Outliers:
    """Outside the quartiles (type 7) by more than ``threshold`` times their distance; on the fence is inside.

    The score is that distance beyond the nearer quartile, in their distance. Where the quartiles are equal the rule
    would call every other value an outlier; then it is ``modified_zscore`` that decides, and the result says so.

    >>> iqr([2, 4, 4, 4, 5, 5, 7, 9, 50]).mask.nonzero()[0]
    array([8])
    """
    _check(threshold, convention, ("poolish", "gx"))
    numbers = _numbers(values)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return Outliers(np.isinf(numbers), numbers, threshold, convention, "iqr", notes=("no values",))
    low, high = fences(finite, 0.0)
    width = high - low
    if width == 0 and convention == "poolish":
        fallen = modified_zscore(values)
        notes = ("the quartiles are equal: decided by modified_zscore", *fallen.notes)
        return Outliers(fallen.mask, fallen.scores, fallen.threshold, convention, fallen.method, notes=notes)
    with np.errstate(all="ignore"):
        least, most = low - threshold * width, high + threshold * width
        mask = (numbers < least) | (numbers > most)
        beyond = np.maximum(low - numbers, numbers - high)
        scores = beyond / width if width > 0 else np.where(beyond > 0, np.inf, np.where(np.isnan(beyond), np.nan, 0.0))
    return Outliers(mask, scores, threshold, convention, "iqr")


def fences(values: NDArray[Any], threshold: float = 1.5) -> tuple[float, float]:
    """The lowest and the highest value that are no outliers by ``iqr``.

    >>> fences(np.array([2, 4, 4, 4, 5, 5, 7, 9, 50]))
    (-0.5, 11.5)
    """
    # Halves, because the distance of two values near the ends of float64 is beyond it.
    low, high = (float(2 * q) for q in np.quantile(np.asarray(values, np.float64) / 2, (0.25, 0.75)))
    return low - threshold * (high - low), high + threshold * (high - low)


def modified_zscore(
    values: Any, *, threshold: float = 3.5, convention: str = "poolish", scale: str = "hoaglin"
) -> Outliers:
    """Distance from the median in median absolute deviations, as Iglewicz and Hoaglin scale it (0.6745).

    ``scale="normal"`` is the constant of SciPy and statsmodels (0.67449). Where more than half of the values are the
    same, the mean distance takes the place of the median one; where all are, equal values score 0 and others infinity.

    >>> modified_zscore([2, 4, 4, 4, 5, 5, 7, 9, 50]).scores[-1:]
    array([30.3525])
    """
    _check(threshold, convention, ("poolish",))
    if scale not in ("hoaglin", "normal"):
        raise ConfigError(f"scale: hoaglin or normal, got {scale!r}")
    numbers = _numbers(values)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return Outliers(np.isinf(numbers), numbers, threshold, convention, "modified_zscore", notes=("no values",))
    notes: tuple[str, ...] = ()
    with np.errstate(all="ignore"):
        centre = float(2 * np.median(finite / 2))
        apart = np.abs(finite - centre)
        mad, mean_ad = float(2 * np.median(apart / 2)), _mean(apart)
        unit = mad / (_HOAGLIN if scale == "hoaglin" else _NORMAL)
        if mad == 0:
            unit = _MEAN_AD * mean_ad
            notes = ("more than half of the values are the same: scaled by their mean distance from the median",)
        if unit > 0:
            scores = (numbers - centre) / unit
        else:
            scores = np.where(numbers == centre, 0.0, np.where(np.isnan(numbers), np.nan, np.sign(numbers) * np.inf))
            notes = ("all values are the same",)
        scores = np.where(np.isinf(numbers), numbers, scores)
        mask = np.abs(scores) > threshold
    return Outliers(mask, scores, threshold, convention, "modified_zscore", notes=notes)


#: The rules that judge a column by itself, by the name that suites and files use.
OUTLIER_METHODS: dict[str, Callable[..., Outliers]] = {
    "zscore": zscore,
    "iqr": iqr,
    "modified_zscore": modified_zscore,
}


def row_numbers(values: Any) -> Floats:
    """A row of float64 for each row of a column, NaN where nothing is; more than one where it holds arrays.

    >>> row_numbers([1, None, 3]).T
    array([[ 1., nan,  3.]])
    """
    column = Column("", values)
    sample = ColumnSample.of(column)
    n_present = sample.count - sample.nulls
    if sample.kind == "null":
        return np.full((sample.count, 1), np.nan)
    width = 1
    if sample.shapes is not None and len(sample.shapes) == 1:
        width = math.prod(next(iter(sample.shapes)))
    if sample.numbers is None or sample.kind == "list" or not width or len(sample.numbers) != n_present * width:
        raise SchemaError(f"one number, or arrays of one shape, for each row; got a column of {sample.kind}")
    numbers = sample.numbers.astype(np.float64).reshape(n_present, width)
    if not sample.nulls:
        return numbers
    nulls = column.nulls if column.nulls is not None else column.measures.nulls  # of NumPy, NaT
    spread = np.full((sample.count, width), np.nan)
    spread[~np.asarray(nulls, np.bool_)] = numbers
    return spread


def _numbers(values: Any) -> Floats:
    """One float64 for each row."""
    rows = row_numbers(values)
    if rows.shape[1] != 1:
        raise SchemaError(f"outliers: one number for each row, got arrays of {rows.shape[1]}")
    return rows[:, 0]


def _mean(values: Floats) -> float:
    """The mean, also where the sum is beyond float64."""
    if not len(values):
        return math.nan
    with np.errstate(all="ignore"):
        mean = float(values.mean())
        return mean if math.isfinite(mean) else float((values / len(values)).sum())


def _std(values: Floats, ddof: int) -> float:
    if len(values) <= ddof or values.min() == values.max():
        return 0.0
    with np.errstate(all="ignore"):
        # Scaled, because the squares of large values are beyond float64 where their root is not.
        largest = float(np.abs(values).max())
        scaled = values / largest
        return float(scaled.std(ddof=ddof)) * largest


def _check(threshold: float, convention: str, conventions: tuple[str, ...]) -> None:
    if convention not in conventions:
        raise ConfigError(f"convention: one of {', '.join(conventions)}, got {convention!r}")
    if not threshold > 0:
        raise ConfigError(f"threshold: more than 0, got {threshold!r}")
