"""The rows of a buffer as they lie in memory: columns side by side, a window onto them, and the dead among them.

    place     0 ........ start ............................ end ........ reserved
              dead       live, but for the tombstones       not written

``extend`` writes behind ``end``; dropping the oldest moves ``start``; dropping others sets tombstones. Nothing that a
snapshot shows is ever overwritten. When the dead outnumber three fifths of the living, the living move into new
memory: each row that leaves pays for moving at most 5/3 rows, and memory stays below three times the payload.

Policies, locks and conversions live elsewhere. Whoever changes rows marks them first and restores the mark on failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish.rows.columns import Column, Fixed, column_of
from poolish.rows.fit import fit, one_chunk
from poolish.rows.gather import taker
from poolish.rows.live import Lease, LiveSet
from poolish.rows.memory import give_back
from poolish.rows.retention import RowNumbers
from poolish.rows.snapshot import Snapshot
from poolish.schema import Schema

Int64 = NDArray[np.int64]

#: Fewer dead rows, or dead bytes, than these are not worth moving the others for.
MIN_DEAD = 1024
MIN_DEAD_BYTES = 1 << 20


@dataclass
class Mark:
    """A state to come back to; the lease keeps its tombstones from changing."""

    state: dict[str, Any]
    n_generations: int
    lease: Lease | None


class StoredRows:
    """Columns, row ids and generations that grow at one end and thin out anywhere."""

    def __init__(self, schema: Schema, next_id: int = 0) -> None:
        self.schema = schema
        self.columns: list[Column] = [column_of(field.type) for field in schema]
        self.ids = Fixed(pa.int64())
        self.generations = Fixed(pa.int64())
        self.next_id = next_id
        self.start = 0
        self.end = 0
        self.n_dead = 0
        self.n_before = 0
        self.live: LiveSet | None = None

    def __len__(self) -> int:
        return self.end - self.start - self.n_dead

    # -- growing

    def extend(
        self,
        chunks: Sequence[Sequence[pa.Array]],
        chosen: Sequence[Int64 | None] | None = None,
        *,
        one_by_one: bool = False,
    ) -> None:
        """Add rows: one generation, or one per row where they were appended one by one.

        ``chosen`` are the places of the rows that are meant of each chunk, None for all. If it fails, ``restore`` what
        was marked before.
        """
        chosen = chosen or [None] * len(chunks)
        n_all = sum(len(arrays[0]) for arrays in chunks)
        n = sum(len(arrays[0] if places is None else places) for arrays, places in zip(chunks, chosen, strict=True))
        if n == 0:
            return
        new_ids = np.arange(self.next_id, self.next_id + n)
        for column, arrays in zip(self.columns, zip(*chunks, strict=True), strict=True):
            if len(arrays) > 1 and n > 0.9 * n_all:
                column.expect(arrays)
            for array, positions in zip(arrays, chosen, strict=True):
                if positions is None:
                    column.extend(array)
                else:
                    column.extend_rows(array, positions)
        self.ids.extend_numbers(new_ids)
        self.generations.extend_numbers(new_ids if one_by_one else new_ids[:1])
        if self.live is not None:
            self.live = self.live.reserve(self.end + n)
        self.end += n
        self.next_id += n

    @classmethod
    def of(cls, snapshot: Snapshot) -> StoredRows:
        """The rows of a snapshot, with the ids they have, in memory of their own."""
        rows = cls(snapshot.schema, snapshot.next_id)
        for column, array in zip(rows.columns, snapshot.to_arrow().columns, strict=True):
            column.extend(one_chunk(array))
        rows.ids.extend(pa.array(snapshot.ids))
        rows.generations.extend(pa.array([first for first, _ in snapshot.generations], pa.int64()))
        rows.end = len(snapshot)
        return rows

    def mark(self) -> Mark:
        """Where everything stands, to come back to if a change fails half-way."""
        lease = None if self.live is None else self.live.lease()
        return Mark(self.__dict__.copy(), self.generations.length, lease)

    def restore(self, mark: Mark) -> None:
        """Undo everything since ``mark``; what was written behind the end is forgotten."""
        self.__dict__.update(mark.state)
        for column in (*self.columns, self.ids):
            column.truncate(self.end)
        self.generations.truncate(mark.n_generations)

    def retype(self, schema: Schema) -> None:
        """Give columns that were open so far (nulls, empty lists) the types of ``schema``."""
        columns = list(self.columns)
        for i, field in enumerate(schema):
            if self.columns[i].type != field.type:
                columns[i] = column_of(field.type)
                columns[i].extend(fit(self.columns[i].view(0, self.end), field.type))
        self.columns, self.schema = columns, schema

    # -- thinning

    def keep(self, kept: RowNumbers, n_prior: int) -> None:
        """Of the ``n_prior`` oldest rows only those with these numbers stay; younger rows stay anyway."""
        if isinstance(kept, range):
            first, last = (kept.start, kept.stop) if len(kept) else (n_prior, n_prior)
            self._kill_places(self.places(np.arange(last, n_prior)))
            self._drop_front(first)
        else:
            gone = np.ones(n_prior, bool)
            gone[kept] = False
            self._kill_places(self.places(np.flatnonzero(gone)))
        self._tidy()

    def drop(self, dropped: RowNumbers) -> None:
        """The rows with these numbers go."""
        if isinstance(dropped, range) and dropped.start == 0:
            self._drop_front(dropped.stop)
        else:
            self._kill_places(self.places(np.asarray(dropped, np.int64)))
        self._tidy()

    def evict_one_by_one(self, n: int, max_size: int, key: int) -> None:
        """The last ``n`` rows came in singly: each drove out a random row once the buffer was full."""
        live = self._tombstones()
        n_live = len(self) - n
        n_left = live.evict(self.n_before, n_live, max_size, key, self.next_id - n, n)
        self.live = live
        self.n_dead += n_live + n - n_left
        self._tidy()

    def places(self, numbers: Int64) -> Int64:
        """Where the rows with these numbers lie."""
        if self.live is None:
            return numbers + self.start
        return self.live.select(numbers + self.n_before)

    def _all_places(self) -> Int64:
        return np.arange(self.start, self.end) if self.live is None else self.live.places(self.start, self.end)

    def _drop_front(self, n: int) -> None:
        if n == 0:
            return
        start = self.end if n == len(self) else int(self.places(np.array([n]))[0])
        self.n_dead -= start - self.start - n
        self.n_before += n
        self.start = start

    def _kill_places(self, places: Int64) -> None:
        if len(places) == 0:
            return
        live = self._tombstones()
        live.kill(places)
        self.live = live
        self.n_dead += len(places)

    def _tombstones(self) -> LiveSet:
        if self.live is None:
            self.n_before = self.start
            return LiveSet(2 * self.end)
        return self.live.to_change()

    # -- changing values

    def replace(self, numbers: Int64, which: Int64, values: Mapping[str, pa.Array]) -> None:
        """Give the rows ``numbers`` the values at ``which``, column by column."""
        places = self.places(numbers)
        columns = list(self.columns)
        in_place = []
        for i, field in enumerate(self.schema):
            if field.name not in values:
                continue
            new = taker(values[field.name])(which)
            if columns[i].can_put(new):
                in_place.append((columns[i], new))
            else:
                columns[i] = self._rewritten(columns[i], places, new)
        for column, _ in in_place:
            column.own()
        self.columns = columns
        for column, new in in_place:
            column.put(places, new)

    def _rewritten(self, old: Column, places: Int64, new: pa.Array) -> Column:
        order = np.arange(self.end)
        order[places] = self.end + np.arange(len(places))
        column = column_of(old.type)
        column.extend(taker(pa.concat_arrays([old.view(0, self.end), new]))(order))
        return column

    def view(self, uuid: str) -> Snapshot:
        """What is there now, for as long as somebody wants to see it."""
        arrays = [column.view(0, self.end) for column in self.columns]
        ids = self.ids.region.export().view(np.int64)
        starts = self.generations.region.export().view(np.int64)
        return Snapshot(
            self.schema,
            arrays,
            ids,
            starts,
            next_id=self.next_id,
            uuid=uuid,
            span=(self.start, self.end),
            live=self.live,
            n_before=self.n_before,
            n_rows=len(self),
        )

    # -- moving into new memory

    def _tidy(self) -> None:
        if self._is_mostly_dead():
            try:
                self._move()
            except MemoryError:
                pass  # no room to move: the rows are right where they are, and the next change tries again

    def _is_mostly_dead(self) -> bool:
        """By rows, or by bytes: a few rows that left may have been the large ones."""
        n_dead = self.start + self.n_dead
        if n_dead > MIN_DEAD and 5 * n_dead > 3 * len(self):
            return True
        dead, live = self._dead_and_live_bytes()
        return dead > MIN_DEAD_BYTES and 5 * dead > 3 * live

    def _dead_and_live_bytes(self) -> tuple[float, float]:
        """What lies before the window is dead; in the window, tombstones count as rows of average size."""
        before, window = self._n_bytes(0, self.start), self._n_bytes(self.start, self.end)
        dead = window * self.n_dead / max(1, self.end - self.start)
        return before + dead, window - dead

    def _n_bytes(self, start: int, stop: int) -> int:
        return sum(column.n_bytes(start, stop) for column in (*self.columns, self.ids))

    def _move(self) -> None:
        moved = StoredRows(self.schema, self.next_id)
        for old, new in zip([*self.columns, self.ids], [*moved.columns, moved.ids], strict=True):
            self._copy_living(old, new)
        moved.generations.extend(self._living_generations())
        moved.end = len(self)
        self.__dict__.update(moved.__dict__)
        give_back()  # what the rows have left would be kept beside what they take now

    def _copy_living(self, old: Column, new: Column) -> None:
        if self.n_dead == 0:
            new.extend(old.view(self.start, self.end))
            return
        new.extend_rows(old.view(0, self.end), self._all_places())

    def _living_generations(self) -> pa.Array:
        starts = self.generations.view(0, self.generations.length)
        if len(self) == 0:
            return starts[:0]
        first_id = self.ids.view(self.start, self.end)[0].as_py() if self.n_dead == 0 else self._first_id()
        return starts[max(0, int(np.searchsorted(starts.to_numpy(), first_id, side="right")) - 1) :]

    def _first_id(self) -> int:
        place = int(self.places(np.array([0]))[0])
        return int(self.ids.view(place, place + 1)[0].as_py())

    @property
    def n_bytes(self) -> int:
        """Memory in use by the rows, the dead among them included."""
        return self._n_bytes(0, self.end)
