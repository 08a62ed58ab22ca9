"""The hot loops, native where a compiler was found, NumPy otherwise.

Both halves mean the same: ``_native.pyx``, ``_tokens.pyx``, ``_stats.pyx`` and ``_replay.pyx`` are compiled at install
time, ``reference.py``, ``reference_tokens.py``, ``reference_stats.py`` and ``reference_replay.py`` say in NumPy what
they must do, and the test-suite runs on either. ``POOLISH_PURE=1`` forces the reference.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from poolish.kernels import reference, reference_replay, reference_stats, reference_tokens

if TYPE_CHECKING:
    from poolish.kernels.reference_tokens import Appender as Appender


def _choose() -> list[ModuleType]:
    if os.environ.get("POOLISH_PURE", "") in ("", "0"):
        try:
            names = ("_native", "_tokens", "_stats", "_replay")
            return [importlib.import_module(f"poolish.kernels.{name}") for name in names]
        except ModuleNotFoundError:  # installed without a compiler: slower, the same answers
            pass
    return [reference, reference_tokens, reference_stats, reference_replay]


_chosen, _tokens, _stats, _replay = _choose()

#: Whether the compiled kernels are in use.
is_native: bool = _chosen is not reference

# rows
resolve = _chosen.resolve
freeze_row = _chosen.freeze_row
gather = _chosen.gather
gather_offsets = _chosen.gather_offsets
gather_ranges = _chosen.gather_ranges
gather_bits = _chosen.gather_bits
pad_ranges = _chosen.pad_ranges
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

# load
deal = _chosen.deal

# tokens
if not TYPE_CHECKING:
    Appender = _tokens.Appender  # a class to inherit from is the reference's to a type checker
Recorder = _tokens.Recorder
load_word = _tokens.load_word
store_word = _tokens.store_word
windows = _tokens.windows
take = _tokens.take
search = _tokens.search
search_one = _tokens.search_one
select_starts = _tokens.select_starts
step_sizes = _tokens.step_sizes
find_nonzero = _tokens.find_nonzero
gather_steps = _tokens.gather_steps
gather_pairs = _tokens.gather_pairs
draw = _tokens.draw
encode = reference_tokens.encode  # vectorised as it is, and only used where exactness matters more than speed
UNDECIDED, SCALAR, SEQUENCE = reference_tokens.UNDECIDED, reference_tokens.SCALAR, reference_tokens.SEQUENCE

# guards
scan = _stats.scan
sort = _stats.sort
walk = _stats.walk
fill_registers = _stats.fill_registers
tally = _stats.tally
fill_buckets = _stats.fill_buckets
pick_buckets = _stats.pick_buckets
merge_moments = reference_stats.merge  # a few numbers at a time
scatter = reference_stats.scatter
to_words = reference_stats.to_words

# priorities and ranks
heap_push = _replay.heap_push
heap_pop = _replay.heap_pop
first_bad = _replay.first_bad
set_items = _replay.set_items
refresh = _replay.refresh
root = _replay.root
descend = _replay.descend
layout_of = reference_replay.layout_of  # a few numbers at a time
