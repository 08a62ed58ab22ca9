"""Whether any cell of an Arrow array is larger than a buffer allows.

Rows of Python values are checked one by one as they are frozen; a whole array is looked at only if it is larger than
the smallest limit, and then in one pass over its offsets.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import LimitExceeded
from poolish.rows.limits import Limits
from poolish.rows.refusal import Refusal


def check_sizes(array: pa.Array, limits: Limits) -> None:
    """Refuse the first row over a limit: text and bytes by ``cell_bytes``, arrays and lists by ``row_bytes``."""
    if array.nbytes <= min(limits.cell_bytes, limits.row_bytes):
        return
    if isinstance(array.type, pa.BaseExtensionType):
        check_sizes(array.storage, limits)
    elif kinds.is_large_string(array.type) or kinds.is_large_binary(array.type):
        _check(_lengths(array), limits.cell_bytes, "cell_bytes")
    elif kinds.is_fixed_size_list(array.type):
        width = array.type.list_size * _width(array.type.value_type)
        _check(np.full(min(1, len(array)), width), limits.row_bytes, "row_bytes")
    elif kinds.is_large_list(array.type):
        _check(_lengths(array) * _width(array.type.value_type), limits.row_bytes, "row_bytes")
        check_sizes(array.flatten(), limits)
    elif kinds.is_struct(array.type):
        for i in range(array.type.num_fields):
            check_sizes(array.field(i), limits)


def size_refusal(n_bytes: int, limit: int, name: str, value: object) -> Refusal:
    """What is said of a cell that is too large."""
    advice = f"split it, or raise the limit: DatasetBuffer(limits=Limits({name}={n_bytes}))"
    return Refusal(f"{n_bytes:,} bytes in one cell, the limit is {limit:,}", value, advice, LimitExceeded)


def _check(n_bytes: np.ndarray[tuple[int], np.dtype[np.int64]], limit: int, name: str) -> None:
    over = np.flatnonzero(n_bytes > limit)
    if len(over):
        row = int(over[0])
        raise size_refusal(int(n_bytes[row]), limit, name, int(n_bytes[row])).with_index(row)


def _lengths(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    return np.diff(offsets)


def _width(type_: pa.DataType) -> int:
    """Bytes of one value in its parent; eight for those that lie elsewhere, for their offset."""
    return max(1, type_.bit_width // 8) if kinds.is_primitive(type_) else 8
