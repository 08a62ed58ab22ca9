"""The hot loops, native where a compiler was found, NumPy otherwise.

Both halves mean the same: ``_native.pyx`` is compiled at install time, ``reference.py`` says in NumPy
what it must do, and the test-suite runs on either. ``POOLISH_PURE=1`` forces the reference.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from poolish.kernels import reference


def _choose() -> ModuleType:
    if os.environ.get("POOLISH_PURE", "") not in ("", "0"):
        return reference
    try:
        return importlib.import_module("poolish.kernels._native")
    except ModuleNotFoundError:  # installed without a compiler: slower, the same answers
        return reference


_chosen = _choose()

#: Whether the compiled kernels are in use.
is_native: bool = _chosen is not reference

# rows
resolve = _chosen.resolve
freeze_row = _chosen.freeze_row
gather = _chosen.gather
gather_offsets = _chosen.gather_offsets
gather_ranges = _chosen.gather_ranges
gather_bits = _chosen.gather_bits
copy_bits = _chosen.copy_bits
count_blocks = _chosen.count_blocks
select = _chosen.select
select_one = _chosen.select_one
kill = _chosen.kill
evict = _chosen.evict
mix = _chosen.mix

# seeds
permute = _chosen.permute
unpermute = _chosen.unpermute
