"""Eager or lazy, by the memory there is: all rows are read at once if they fit, else each when it is asked for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from poolish.errors import ConfigError, LimitExceeded
from poolish.files import parse_bytes
from poolish.load.cached import CachedDataset
from poolish.load.copies import keep
from poolish.load.dataset import Dataset, samples
from poolish.load.host_memory import free_bytes
from poolish.load.sizes import nbytes

logger = logging.getLogger("poolish.load")

#: Rows that are read to estimate the size of all.
_SAMPLED = 32


@dataclass(frozen=True)
class Fit:
    """Whether the rows of a dataset fit into memory, and the numbers that decided it; true if they do."""

    n_rows: int
    #: Bytes of one row, on average over those that were read.
    row_bytes: float
    #: Bytes that all rows may take.
    allowed: int

    @property
    def n_bytes(self) -> int:
        """What all rows take, as far as some of them show."""
        return round(self.n_rows * self.row_bytes)

    def __bool__(self) -> bool:
        return self.n_bytes <= self.allowed

    def __str__(self) -> str:
        return (
            f"{self.n_rows:,} rows of about {self.row_bytes:,.0f} bytes: {self.n_bytes:,} bytes in all, "
            f"{self.allowed:,} allowed; they {'fit' if self else 'do not fit'}"
        )


def fit(dataset: Any, if_fits: float | str) -> Fit:
    """Reads a few rows, evenly spread, as a cache would keep them."""
    n_rows, allowed = len(dataset), _allowed(if_fits)
    numbers = np.unique(np.linspace(0, n_rows - 1, _SAMPLED, dtype=np.int64)) if n_rows else np.empty(0, np.int64)
    sizes = [nbytes(keep(sample)[0]) for sample in samples(dataset, numbers)]
    return Fit(n_rows, mean(sizes) if sizes else 0.0, allowed)


def materialised(dataset: Dataset, if_fits: float | str) -> Dataset:
    """The rows in memory, or the dataset itself."""
    decided, name = fit(dataset, if_fits), type(dataset).__name__
    if not decided:
        logger.info("%s stays lazy: %s", name, decided)
        return dataset
    try:
        rows = CachedDataset(dataset, max_bytes=decided.allowed).eager()
    except LimitExceeded as error:
        logger.info("%s stays lazy: rows are larger than estimated (%s); %s", name, decided, error)
        return dataset
    logger.info("%s is in memory: %s", name, decided)
    return rows


def _allowed(if_fits: float | str) -> int:
    if isinstance(if_fits, float):
        if not 0 < if_fits <= 1:
            raise ConfigError(f"if_fits={if_fits}: a float is a fraction of free memory, above 0 and up to 1")
        return int(if_fits * free_bytes())
    return parse_bytes(if_fits)
