"""How many bytes of memory a sample or a batch takes, nearly: what caches and reading ahead are bounded by."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from poolish.load.structures import field_values, is_structure

# Of the object alone. getsizeof is not: that of an Arrow table has its columns in it, that of a tensor has not.
_size_alone = object.__sizeof__


def nbytes(value: Any) -> int:
    """The bytes of all arrays, tensors, tables and text inside, and of whatever holds them.

    >>> import numpy as np
    >>> nbytes({"crumb": np.zeros(1000), "label": 1}) - 8000 < 500
    True
    """
    own = getattr(value, "nbytes", None)
    if isinstance(own, int):
        return own + _size_alone(value)
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(map(nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(nbytes, value))
    if is_structure(value):
        return sys.getsizeof(value) + sum(map(nbytes, field_values(value)))
    return sys.getsizeof(value)
