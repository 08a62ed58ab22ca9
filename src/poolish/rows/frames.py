"""Columns of a buffer as data frames of pandas and polars, each in the dtype that holds its values exactly.

Left to itself, pandas makes float64 of integers with a null, so that 2**53 + 1 becomes another number, and NaN of a
null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.schema import is_tensor

if TYPE_CHECKING:
    import pandas
    import polars

#: From the name and the values of a column to an array of them.
ToArray = Callable[[str, pa.Array], Any]


def pandas_frame(columns: Mapping[str, pa.Array], n_rows: int, to_array: ToArray) -> pandas.DataFrame:
    """A frame of its own memory, with one row for each value of the columns; ``to_array`` reads what NumPy holds."""
    import pandas

    data = {name: _series_data(name, array, to_array) for name, array in columns.items()}
    return pandas.DataFrame(data, index=pandas.RangeIndex(n_rows), copy=True)


def polars_frame(columns: Mapping[str, pa.Array]) -> polars.DataFrame:
    """A frame of Arrow columns of types that polars has."""
    import polars

    return polars.DataFrame(pa.table(dict(columns)))


def _series_data(name: str, array: pa.Array, to_array: ToArray) -> Any:
    import pandas

    type_ = array.type
    if is_tensor(type_):
        objects = np.empty(len(array), object)
        objects[:] = list(to_array(name, array).copy())
        return objects
    if kinds.is_large_string(type_) or kinds.is_large_binary(type_):
        return array.to_pandas()
    if _is_plain(type_) and array.null_count == 0:
        return to_array(name, array)
    return pandas.arrays.ArrowExtensionArray(pa.chunked_array([array]))


def _is_plain(type_: pa.DataType) -> bool:
    """Whether NumPy has a dtype for these values."""
    has_zone = kinds.is_timestamp(type_) and type_.tz is not None
    is_time = (kinds.is_timestamp(type_) and not has_zone) or kinds.is_duration(type_)
    return bool(is_time or kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_))
