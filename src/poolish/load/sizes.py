"""How many bytes a sample or a batch takes, nearly: what caches and reading ahead are bounded by."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def nbytes(value: Any) -> int:
    """The bytes of all arrays, tensors and text inside, and of whatever holds them.

    >>> import numpy as np
    >>> nbytes({"x": np.zeros(1000)}) >= 8000
    True
    """
    own = getattr(value, "nbytes", None)
    if isinstance(own, int):
        return own
    if isinstance(value, Mapping):
        return sum(nbytes(inner) for inner in value.values()) + 64
    if isinstance(value, (list, tuple)):
        return sum(nbytes(inner) for inner in value) + 56
    return sys.getsizeof(value)
