"""From the ids of a step to a batch: reading rows, surviving what may be survived, collating.

Rows of a buffer are gathered column by column; everything else is read as samples and collated. Reading may run in any
thread; what it needs is in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from poolish import torch_bridge
from poolish.errors import ConfigError
from poolish.load.collate import collate, empty_like, tensors
from poolish.load.columns import Columns
from poolish.load.frozen import Frozen, Int64, SnapshotRows
from poolish.load.walk import Piece, Plan
from poolish.rows import DatasetBuffer
from poolish.rows.cast import one_chunk
from poolish.rows.decode import to_array, to_tensor
from poolish.schema import readable

OUTPUTS = ("torch", "numpy", "arrow")


class Read(NamedTuple):
    """Samples or columns that were read, the rows they are, and the rows that were due but are not there."""

    content: Any
    ids: Int64
    gone: Int64


class Reading:
    """Reads the pieces of plans and makes batches of them."""

    def __init__(self, output: str, collate_fn: Callable[[list[Any]], Any] | None, faults: Any) -> None:
        if output not in OUTPUTS:
            raise ConfigError(f"output={output!r}: one of {', '.join(map(repr, OUTPUTS))}")
        self._output, self._collate_fn, self._faults = output, collate_fn, faults
        self._columns: tuple[Any, Columns] | None = None
        self._empty: tuple[Any] | None = None

    # -- reading: in any thread

    def read(self, piece: Piece) -> Read:
        """One piece of a step."""
        if self.takes_columns(piece.rows):
            return self._read_columns(piece)
        ids = piece.ids
        if not len(ids):
            return Read([], ids, piece.gone)
        if self._faults is not None:
            return self._read_surviving(piece)
        try:
            return Read(piece.rows.fetch(ids), ids, piece.gone)
        except IndexError:
            return _read_what_is_left(piece)

    def takes_columns(self, rows: Frozen) -> bool:
        """Whether these rows are gathered column by column."""
        return isinstance(rows, SnapshotRows) and self._collate_fn is None and self._faults is None

    def _read_columns(self, piece: Piece) -> Read:
        rows = piece.rows
        assert isinstance(rows, SnapshotRows)
        if self._output == "arrow":
            return Read(rows.table(piece.ids), piece.ids, piece.gone)
        known = self._columns
        if known is None or known[0] is not rows.snapshot:
            known = self._columns = (rows.snapshot, Columns(rows.snapshot, *self._converters()))
        return Read(known[1].read(rows.numbers(piece.ids)), piece.ids, piece.gone)

    def _converters(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        if self._output == "torch":
            return lambda name, array: to_tensor(name, array, None, copy=False), torch_bridge.from_array
        return to_array, readable

    def _read_surviving(self, piece: Piece) -> Read:
        samples, kept = self._faults.read(piece.ids, piece.rows.fetch, lambda id_: piece.rows.fetch(_one(id_))[0])
        return Read(list(samples), piece.ids[kept], np.concatenate([piece.gone, piece.ids[~kept]]))

    # -- batches: in the thread that asks

    def join(self, parts: Sequence[Read], example: tuple[Frozen, Int64]) -> Read:
        """One batch of all that was read for a step; ``example`` shows what a batch without rows looks like."""
        ids, gone = (np.concatenate([part[i] for part in parts]) if len(parts) != 1 else parts[0][i] for i in (1, 2))
        if len(parts) == 1 and not isinstance(parts[0].content, list):
            return Read(self._finished(parts[0].content), ids, gone)
        if any(isinstance(part.content, list) for part in parts) or not parts:
            samples = [sample for part in parts for sample in part.content]
            return Read(self._collated(samples) if samples else self._without_rows(*example), ids, gone)
        return Read(self._finished(_joined([part.content for part in parts])), ids, gone)

    def _finished(self, columns: Any) -> Any:
        if self._output != "arrow":
            return columns
        return {name: one_chunk(values) for name, values in zip(columns.column_names, columns.columns, strict=True)}

    def _without_rows(self, rows: Frozen, one: Int64) -> Any:
        """A batch of no rows, with the columns that the others have: a row is read to know them."""
        if self._empty is None:
            samples = self.read(Piece(rows, one, one[:0])).content
            if not samples:  # it has left a bounded stream, or a fault left it out
                return {}
            self._collated(samples)
        assert self._empty is not None
        return empty_like(self._empty[0])  # one of its own

    def _collated(self, samples: list[Any]) -> Any:
        columns = self._formed(samples)
        if self._empty is None:
            self._empty = (empty_like(columns),)
        return columns

    def _formed(self, samples: list[Any]) -> Any:
        if self._collate_fn is not None:
            return self._collate_fn(samples)
        if self._output == "arrow":
            rows = DatasetBuffer()
            rows.append(samples)
            return self._finished(rows.snapshot().to_arrow())
        columns = collate(samples)
        if self._output == "numpy":
            return columns
        return tensors(columns)


def _read_what_is_left(piece: Piece) -> Read:
    """Rows of a bounded stream may go between the decision and the reading; the others are read all the same."""
    alive = piece.rows.alive(piece.ids)
    if alive is None or alive.all():
        return Read(piece.rows.fetch(piece.ids), piece.ids, piece.gone)  # not because a row is gone: it says why
    left = Piece(piece.rows, piece.ids[alive], np.concatenate([piece.gone, piece.ids[~alive]]))
    try:
        return Read(piece.rows.fetch(left.ids) if len(left.ids) else [], left.ids, left.gone)
    except IndexError:
        return _read_what_is_left(left)


def _one(id_: int) -> Int64:
    return np.array([id_], np.int64)


def _joined(parts: list[Any]) -> Any:
    """Columns behind each other, whatever holds them."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [value for part in parts for value in part]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if hasattr(first, "column_names"):
        import pyarrow as pa

        return pa.concat_tables(parts).combine_chunks()
    import torch

    return torch.cat(parts) if all(isinstance(part, torch.Tensor) for part in parts) else _listed(parts)


def _listed(parts: list[Any]) -> list[Any]:
    return [row for part in parts for row in part]


def pieces_of(plan: Plan, n_rows: int) -> list[Piece]:
    """The pieces of a plan cut into parts of at most ``n_rows``, for several threads to read."""
    return [
        Piece(piece.rows, piece.ids[i : i + n_rows], piece.gone if i == 0 else piece.gone[:0])
        for piece in plan.pieces
        for i in range(0, max(1, len(piece.ids)), n_rows)
    ]
