"""Numbers in JSON: whole arrays as text, and floats that JSON has no word for."""

from __future__ import annotations

import base64
import binascii
import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError

#: No count of rows is larger; what is added up from a few such counts still fits int64.
MAX_COUNT = 2**62
_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode_float(number: float) -> float | str:
    """A float that JSON can hold, exactly.

    >>> encode_float(0.1), encode_float(float("-inf"))
    (0.1, '-inf')
    """
    number = number.item() if isinstance(number, np.generic) else number
    return number if math.isfinite(number) else str(float(number))


def decode_float(value: Any) -> float:
    """The way back; whole numbers stay what they are."""
    if isinstance(value, str) and value in _NAMED:
        return _NAMED[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise CorruptDataError(f"a number of {value.bit_length():,} bits is beyond float64")
        return value
    raise CorruptDataError(f"a number, or one of {list(_NAMED)}, got {value!r:.60}")


def encode_array(array: NDArray[Any]) -> str:
    """The bytes of a flat array, little-endian, as base64."""
    return base64.b64encode(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def decode_array(text: Any, dtype: Any) -> NDArray[Any]:
    """The way back; a copy that may be written to."""
    try:
        data = base64.b64decode(text, validate=True)
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)
    except (binascii.Error, ValueError, TypeError) as error:
        raise CorruptDataError(f"an array as base64, got {str(text)[:40]!r} ({error})") from error
