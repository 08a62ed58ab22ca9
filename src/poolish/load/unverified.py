"""Rows that were read from data in memory and may go to disk once that data is known to be what it was.

    read  -->  unverified  --data as it was when the cache was opened-->  disk
                           `--changed meanwhile-->  dropped, with all that come later

The key on disk says which data a row is of, and anyone can change a list in place. So the data is hashed again after a
row was read. Where hashing takes long it is done for many rows at once, a tenth of the time at most; a process that is
killed before that loses rows that it would have cached.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence
from time import perf_counter
from typing import Any

import numpy as np

from poolish import torch_bridge
from poolish.concurrency import Locked
from poolish.fingerprints import MAX_BYTES, MAX_VALUES, fingerprint
from poolish.load.dataset import ADVICE
from poolish.load.disk_cache import DiskCache
from poolish.load.structures import CloneStrategy
from poolish.load.views.composite import CompositeDataset
from poolish.load.views.view import View

Key = tuple[str, int]
Entry = tuple[Any, CloneStrategy]

#: Hashing that takes no longer than this is done after every read.
QUICK_S = 0.002
#: Rows that wait for one hashing, at most.
MAX_ROWS = 256


class Unverified(Locked):
    """Rows of ``dataset`` on their way to a cache on disk; ``known`` is the fingerprint that its key stands for."""

    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self._data = plain_data(dataset)
        self._rows: dict[Key, Entry] = {}
        self._due_at, self._cost_s = 0.0, math.inf
        self._is_changed = False
        self._known = self._hashed()
        self._due_at = 0.0  # the first row is written at once, and tells whether files can hold such samples

    def get(self, key: Key) -> Entry | None:
        """A row that waits."""
        return self._rows.get(key)

    def add(self, rows: dict[Key, Entry]) -> dict[Key, Entry]:
        """Take rows that were just read; those that may be written now, which may be none or many more."""
        if not self._data:
            return rows
        with self._lock:
            if self._is_changed:
                return {}
            self._rows.update(rows)
            return self.verified() if len(self._rows) >= MAX_ROWS or perf_counter() >= self._due_at else {}

    def verified(self) -> dict[Key, Entry]:
        """All that wait, if the data is still the same; they wait no longer."""
        with self._lock:
            rows, self._rows = self._rows, {}
            if rows and not self._is_changed:
                self._is_changed = self._hashed() != self._known
            return {} if self._is_changed else rows

    def write(self, tier: DiskCache) -> None:
        """Verify what waits, and write it."""
        for (version, id_), (kept, how) in self.verified().items():
            tier.put(version, id_, kept, how)

    def _hashed(self) -> str:
        begin = perf_counter()
        limits: Any = {"max_values": MAX_VALUES, "max_bytes": MAX_BYTES}
        # A size that is beyond the limits now is a change too.
        digest = fingerprint(self._data, "rows", version="of other data", advice=ADVICE, **limits) if self._data else ""
        end = perf_counter()
        self._cost_s = min(self._cost_s, end - begin)  # the least: other processes can only delay it
        self._due_at = end + 9 * self._cost_s if self._cost_s > QUICK_S else 0.0
        return digest

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rows": {}, "_due_at": 0.0}

    def _after_fork(self) -> None:
        super()._after_fork()
        self._rows = {}  # the parent writes them


def plain_data(dataset: Any) -> list[Any]:
    """The lists, tuples, arrays and tensors that a dataset is made of, below any views."""
    if isinstance(dataset, View):
        return plain_data(dataset.dataset)
    if isinstance(dataset, CompositeDataset):
        return [data for part in dataset.datasets for data in plain_data(part)]
    torch = torch_bridge.loaded()
    tensors = () if torch is None else (torch.Tensor, torch.utils.data.TensorDataset)
    return [dataset] if isinstance(dataset, (MutableSequence, tuple, np.ndarray, *tensors)) else []
