"""Eager or lazy, by the memory there is: all rows are read at once if they fit, else each when it is asked for.

Free memory is the lesser of the machine's and the control group's: in a container the machine may have plenty and
the group nothing. File caches count as free, because the kernel reclaims them on demand.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from poolish.errors import ConfigError, LimitExceeded
from poolish.files import parse_bytes
from poolish.load.cached import CachedDataset
from poolish.load.dataset import Dataset, samples
from poolish.load.structures import freeze, nbytes

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
    sizes = [nbytes(freeze(sample)[0]) for sample in samples(dataset, numbers)]
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


def free_bytes(root: str | Path = "/") -> int:
    """Bytes that can be taken without swapping; ``root`` is where ``proc`` and ``sys`` are.

    >>> free_bytes() > 0
    True
    """
    root = Path(root)
    free = [bytes_ for bytes_ in (_of_machine(root), *_of_groups(root)) if bytes_ is not None]
    # Systems without /proc tell at least how much memory there is.
    return max(0, min(free)) if free else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _of_machine(root: Path) -> int | None:
    kilobytes = _counts(root / "proc/meminfo").get("MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _of_groups(root: Path) -> Iterator[int | None]:
    """What is left to the group of this process, and to every group that this one is in."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:
            mount, limit, used, cached = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in kinds.split(","):
            mount, limit, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        else:
            continue
        # Inside a container the path may be that of the host, and is not there; the mount itself is the group then.
        group = Path(path.strip("/"))
        for folder in (root / mount / group, *(root / mount / parent for parent in group.parents), root / mount):
            most, taken = _number(folder / limit), _number(folder / used)
            if most is not None and taken is not None:
                yield most - taken + _counts(folder / "memory.stat").get(cached, 0)


def _counts(path: Path) -> dict[str, int]:
    words = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) >= 2 and line[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
