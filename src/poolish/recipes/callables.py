"""Filters that are functions of a row, with the manners of an expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.recipes.piece import Mask
from poolish.recipes.steps import fingerprint_of
from poolish.rows import DatasetBuffer


class RowPredicate:
    """``where`` as a function: called with each row as a dict."""

    #: Nobody knows which columns a function looks at, so all are read.
    columns: tuple[str, ...] = ()

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function
        self._print = fingerprint_of(
            function, getattr(function, "__name__", "where"), getattr(function, "version", None)
        )

    def __str__(self) -> str:
        return f"function {self._print}"

    def mask(self, table: pa.Table) -> tuple[Mask, int]:
        """Which rows it is true for; None is no, and counted."""
        buffer = DatasetBuffer()
        buffer.append(table)
        rows = buffer.snapshot()
        answers = [self._function(rows[i]) for i in range(len(rows))]
        return np.array([bool(answer) for answer in answers], bool), sum(answer is None for answer in answers)

    def bind(self, **_: Any) -> RowPredicate:
        """A function has no columns to bind."""
        return self
