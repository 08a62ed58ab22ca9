"""Values as a column would hold them, exactly or not at all.

``pa.scalar(0.5, pa.int64())`` is 0: Arrow cuts off what does not fit (fractions, times of day, seconds, the fields of a
struct), in lists too. So the scalar is compared with the value that it was made of.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

_TIMES = (datetime.date, datetime.time, datetime.timedelta)


def exact_scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """``value`` in a type of Arrow; a ValueError if it would be another one there.

    Floats may be rounded to the precision of the type, but neither overflow nor become 0.

    >>> exact_scalar(2.0, pa.int8()).as_py(), exact_scalar(0.1, pa.float64()).as_py()
    (2, 0.1)
    >>> exact_scalar(0.5, pa.int8())
    Traceback (most recent call last):
    ValueError: it would become 0
    """
    scalar = pa.scalar(value, type_)
    held = scalar.as_py()
    if not _is_kept(value, held):
        raise ValueError(f"it would become {held!r}")
    return scalar


def _is_kept(value: Any, held: Any) -> bool:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    elif isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, bool) or isinstance(held, bool):
        return value is held
    if isinstance(held, (float, np.floating)):
        return _is_rounded(float(value), float(held))
    if isinstance(value, (Mapping, list, tuple)):
        return _are_kept(value, held)
    if isinstance(value, str) and isinstance(held, bytes):
        return value.encode() == held
    if isinstance(value, bytes) and isinstance(held, str):
        return value == held.encode()
    # A whole number stands for a time in the unit of the column.
    return bool(value == held) or (isinstance(value, int) and isinstance(held, _TIMES))


def _is_rounded(value: float, held: float) -> bool:
    if math.isnan(value) or math.isinf(value):
        return math.isnan(held) if math.isnan(value) else held == value
    return math.isfinite(held) and (held != 0 or value == 0)


def _are_kept(value: Any, held: Any) -> bool:
    """A list, or the fields of a struct: Arrow leaves out those that it does not have."""
    if isinstance(value, Mapping) and isinstance(held, Mapping):
        return value.keys() <= held.keys() and all(_is_kept(value[name], held[name]) for name in value)
    parts = list(value.items()) if isinstance(value, Mapping) else value
    return len(parts) == len(held) and all(map(_is_kept, parts, held))
