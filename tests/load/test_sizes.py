"""What a sample is counted as: nearly the memory that it takes, whatever it is made of."""

from __future__ import annotations

import sys
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolish.load.batch import nbytes

N = 10_000
ARRAY = np.zeros(N, np.uint8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ARRAY,
        lambda: np.broadcast_to(np.uint8(0), N),
        lambda: torch.from_numpy(ARRAY),
        lambda: pa.array(ARRAY),
        lambda: pa.table({"crumb": ARRAY}),
        lambda: b"\0" * N,
        lambda: "r" * N,
        lambda: memoryview(ARRAY),
        lambda: (ARRAY, 1),
        lambda: [ARRAY[: N // 2], ARRAY[N // 2 :]],
        lambda: {"crumb": ARRAY, "label": 1},
        lambda: MappingProxyType({"crumb": ARRAY}),
        lambda: {"outer": [({"crumb": ARRAY},)]},
    ],
)
def test_values_count_once_and_what_holds_them_a_little(make):
    """Neither twice, as an Arrow table that is asked in two ways, nor not at all, as a tensor that is asked in one."""
    assert N <= nbytes(make()) < 1.1 * N


@pytest.mark.parametrize("small", [1, 1.5, None, np.float64(1), np.int8(1), "rye", ()])
def test_small_samples_count_as_objects(small):
    """A million labels take more than their bits, so a cache of them is bounded by what they really take."""
    assert sys.getsizeof(None) <= nbytes(small) <= 2 * sys.getsizeof(small)
