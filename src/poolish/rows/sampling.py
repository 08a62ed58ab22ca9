"""What a sampler knows about the rows of a buffer, beside the columns: priorities, and how often a row was drawn.

    sample(priority="td") --> Sample: rows, ids, probabilities, weights --> training --> update_priorities(ids, values)

Numbers of this kind belong to the buffer, not to its snapshots: they change with every training step. They stay with
their rows through eviction, compaction, ``save`` and pickling (``row_state``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from poolish import torch_bridge
from poolish.errors import ConfigError
from poolish.priorities import check_exponents, check_priorities
from poolish.rows.row_state import RowPriorities, RowState, RowValues, values_of
from poolish.rows.snapshot import Snapshot, SnapshotReads, checked_ids

Int64 = NDArray[np.int64]
Floats = NDArray[np.float64]

#: The row state in which a buffer with ``max_times_sampled`` counts.
TIMES_SAMPLED = "times_sampled"


class Sample(NamedTuple):
    """Rows that were drawn by priority, oldest first, with what a training step needs to correct for that.

    ``probabilities`` are those of drawing each row, ``weights`` are (n_rows * probability) ** -beta over the largest of
    all rows: multiply each row's loss by its weight, and return the new priorities to ``update_priorities(ids, ...)``.
    """

    rows: pa.Table
    ids: Int64
    probabilities: Floats
    weights: Floats


class SampledRows(SnapshotReads):
    """The part of a buffer that draws rows and remembers what was drawn."""

    _lock: threading.RLock
    _sample_rng: np.random.Generator
    _row_states: dict[str, RowValues]
    _priorities: dict[str, RowPriorities]
    _max_times_sampled: int | None

    def row_state(self, name: str, *, default: int | float = 0.0) -> RowState:
        """Numbers beside the columns, one per row, by row id: counters, labels' ages. Made on first use.

        They belong to no schema, snapshot or ``map``, and stay with their rows through ``save``, ``load`` and pickling.
        """
        with self._lock:
            return RowState(self.snapshot, self._lock, values_of(self._row_states, name, default, self.snapshot()))

    @overload
    def sample(
        self,
        n: int,
        weights: ArrayLike | str | None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
        *,
        with_ids: Literal[False] = False,
        priority: None = None,
        alpha: float = 0.6,
        beta: float = 0.4,
    ) -> pa.Table: ...

    @overload
    def sample(
        self,
        n: int,
        weights: ArrayLike | str | None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
        *,
        with_ids: Literal[True],
        priority: None = None,
        alpha: float = 0.6,
        beta: float = 0.4,
    ) -> tuple[pa.Table, Int64]: ...

    @overload
    def sample(
        self,
        n: int,
        weights: None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
        *,
        with_ids: bool = False,
        priority: str,
        alpha: float = 0.6,
        beta: float = 0.4,
    ) -> Sample: ...

    def sample(
        self,
        n: int,
        weights: ArrayLike | str | None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
        *,
        with_ids: bool = False,
        priority: str | None = None,
        alpha: float = 0.6,
        beta: float = 0.4,
    ) -> pa.Table | tuple[pa.Table, Int64] | Sample:
        """``n`` random rows: all alike, by ``weights`` (numbers, one per row, or a column of them), or by priority.

        ``with_ids`` adds the row ids of the drawn rows, for ``by_id`` and ``update``. Every call draws anew, from the
        generator of the buffer, which follows its seed, or from ``rng``.

        ``priority="td"`` draws with replacement, each row in proportion to its priority of that name to the power of
        ``alpha``, in O(log n), and gives a ``Sample``. ``alpha=0`` draws all rows alike; another ``alpha`` than last
        time costs O(n). ``beta`` is how much of the bias the importance weights correct, 1 for all of it. The draw is
        stratified: a row that has a hundredth of the sum comes at most twice in a hundred.

        >>> from poolish import DatasetBuffer
        >>> buffer = DatasetBuffer(seed=7)
        >>> buffer.append([{"x": i} for i in range(10)])
        >>> buffer.sample(3)["x"].to_pylist() == buffer.sample(3)["x"].to_pylist()
        False
        >>> batch = buffer.sample(4, priority="td", alpha=0.6, beta=0.4)
        >>> buffer.update_priorities(batch.ids, np.abs([0.5, -2.0, 0.1, 0.0]) + 1e-6)
        array([], dtype=int64)
        """
        if priority is not None:
            if weights is not None:
                raise ConfigError("sample: weights or priority, not both; priorities are the weights that are kept")
            return self._sample_by_priority(n, priority, rng, alpha, beta)
        if self._max_times_sampled is None and not with_ids:
            return self.snapshot().sample(n, weights, replace, rng)
        with self._lock:
            rows = self.snapshot()
            table, ids = rows.sample(n, weights, replace, rng, with_ids=True)
            self._count_sampled(rows, ids)
        return (table, ids) if with_ids else table

    def _sample_by_priority(
        self, n: int, name: str, rng: np.random.Generator | None, alpha: float, beta: float
    ) -> Sample:
        check_exponents(alpha, beta)
        with self._lock:
            rows = self.snapshot()
            tree = self._prioritised(name, rows, alpha).follow(rows)
            tree.set_alpha(alpha)
            draw = tree.sample(n, self._sample_rng if rng is None else rng, beta)
            table, ids = rows.rows_at(draw.items), rows.window[0][draw.items]
            self._count_sampled(rows, ids)
        return Sample(table, ids, draw.probabilities, draw.weights)

    def update_priorities(self, ids: ArrayLike, values: ArrayLike, *, priority: str | None = None) -> Int64:
        """Give the rows with these ids new priorities, in O(log n) each; which of the ids are gone.

        Where an id stands twice, its last value counts. All or nothing: a value that is negative, infinite or NaN is
        a ValueError that names the id. ``priority`` may be left out where there is one name only. A row with priority
        0 is never drawn, so add a small number to errors that may be 0. New rows get the largest priority in the buffer
        when priorities are next used, so that each is soon drawn.

        >>> from poolish import DatasetBuffer
        >>> buffer = DatasetBuffer(max_size=3)
        >>> buffer.append([{"x": i} for i in range(3)])
        >>> buffer.update_priorities([0, 1, 2], [0.5, 4.0, 0.1], priority="td")
        array([], dtype=int64)
        >>> buffer.append({"x": 3})
        >>> buffer.update_priorities([0, 3], [9.0, 1.0]), buffer.priorities()
        (array([0]), array([4. , 0.1, 1. ]))
        """
        values = torch_bridge.on_host(values)
        with self._lock:
            rows = self.snapshot()
            asked = checked_ids(ids, rows.next_id)
            prioritised = self._prioritised(self._only_priority(priority), rows)
            tree = prioritised.tree
            numbers = check_priorities(values, _RowIds(asked), tree.alpha, len(asked))
            tree = prioritised.follow(rows)
            places, found = rows.places_of(asked)
            tree.update(places, numbers if found.all() else numbers[found])
            return asked[~found]

    def priorities(self, priority: str | None = None) -> Floats:
        """The priorities of all rows, oldest first: the order of ``buffer.ids``."""
        with self._lock:
            rows = self.snapshot()
            tree = self._prioritised(self._only_priority(priority), rows).follow(rows)
            return tree.priorities[rows.live_places()]

    def _prioritised(self, name: str, rows: Snapshot, alpha: float = 0.6) -> RowPriorities:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"priority: a name is text that is not empty, got {name!r}")
        if name not in self._priorities:
            self._priorities[name] = RowPriorities(alpha, rows)
        return self._priorities[name]

    def _only_priority(self, name: str | None) -> str:
        if name is not None:
            return name
        if len(self._priorities) != 1:
            known = ", ".join(map(repr, self._priorities)) or "none yet"
            raise ConfigError(f"which priorities? This buffer has {known}; pass priority='td'")
        return next(iter(self._priorities))

    def _count_sampled(self, rows: Snapshot, ids: Int64) -> None:
        """Count the rows that were drawn; those that were drawn often enough leave."""
        limit = self._max_times_sampled
        if limit is None or not len(ids):
            return
        drawn, times = np.unique(ids, return_counts=True)
        counts = values_of(self._row_states, TIMES_SAMPLED, 0, rows)
        known, places = counts.covering(rows), counts.at(drawn)
        known[places] += times
        spent = drawn[known[places] >= limit]
        if len(spent):
            self._drop_ids(rows, spent, "max_times_sampled")

    def _drop_ids(self, rows: Snapshot, ids: Int64, reason: str) -> Int64:
        raise NotImplementedError("buffers say how rows leave")


class _RowIds(Sequence[str]):
    """Ids as errors name them, made only when one is named."""

    def __init__(self, ids: Int64) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, i: Any) -> Any:
        return f"row id {self._ids[i]}"
