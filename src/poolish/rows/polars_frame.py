"""Columns of a buffer as a polars data frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import polars


def frame_of(columns: Mapping[str, pa.Array]) -> polars.DataFrame:
    """A frame of Arrow columns of types that polars has."""
    import polars

    return polars.DataFrame(pa.table(dict(columns)))
