"""A stream at one moment: its rows, tokens and steps as numbers to search in, and its steps as dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.files import checksum_hex
from poolish.tokens.branches import Branches
from poolish.tokens.stream_files import START, TYPE, StreamFiles

if TYPE_CHECKING:
    from poolish.tokens.store import StreamStore


Int64 = NDArray[np.int64]

_NONE: Int64 = np.empty(0, np.int64)


class View(NamedTuple):
    """A stream as it is now: rows and tokens from the first that is kept to the last that is published."""

    lanes: StreamFiles
    first_row: int
    first_token: int
    rows: int
    tokens: int
    branches: Branches

    @property
    def reach(self) -> tuple[int, int, int, int]:
        """What is kept and published; equal reaches of one stream are equal views."""
        return self.first_row, self.first_token, self.rows, self.tokens

    def identity(self, low: int, high: int) -> str:
        """A name for the index rows [low, high) among all copies of this stream, also those that diverged.

        It stays the same as the stream grows. Rows of 0.1.0, which recorded no branches, are named by their content.
        """
        branch = self.branches.name_below(high)
        if low >= self.branches.first_known:
            return branch
        index, data = self.lanes.index.room, self.lanes.data.room
        tokens = data[int(index[low, START]) : int(index[high, START])]
        return f"{branch}/{checksum_hex(np.ascontiguousarray(index[low:high]).data, tokens.data)}"

    def branch_below(self, row: int) -> str:
        """Which branch wrote the index rows below one, as text that ``has_branch`` compares."""
        return f"{row}:{self.branches.name_below(row)}"

    def has_branch(self, branch: str) -> bool:
        """Whether the same branches wrote the same rows here."""
        row, _, name = branch.partition(":")
        return row.isdecimal() and self.branches.name_below(int(row)) == name

    def breaks(self) -> Int64:
        """The numbers of the steps that no episode crosses the beginning of, as far as they have begun."""
        rows = self.branches.breaks
        if not len(rows) or self.rows == self.first_row:
            return _NONE
        rows = rows[np.searchsorted(rows, self.first_row, side="right") : np.searchsorted(rows, self.rows)]
        # The step that was being written may have been continued, by one writer after the other.
        ordinals = np.unique(self.ordinals_of(rows - 1)) + 1
        return ordinals[ordinals <= self.lanes.ordinal(self.rows - 1)]

    def row_not_below(self, column: int, key: int) -> int:
        """The first row whose column is not below a key."""
        return int(kernels.search_one(self.lanes.index.room, 3, column, self.first_row, self.rows, key))

    def rows_not_below(self, column: int, keys: Int64) -> Int64:
        """For each key the first row whose column is not below it."""
        return self.lanes.rows_not_below(column, keys, self.first_row, self.rows)

    def starts_of(self, rows: Int64) -> Int64:
        """Where rows begin."""
        starts: Int64 = self.lanes.index.room[rows, START]
        return starts

    def ordinals_of(self, rows: Int64) -> Int64:
        """The numbers of the steps that rows belong to."""
        ordinals: Int64 = self.lanes.index.room[rows, TYPE] >> 8
        return ordinals

    @property
    def first_ordinal(self) -> int:
        """The number of the first step that is kept."""
        return self.lanes.ordinal(self.first_row) if self.rows > self.first_row else 0

    @property
    def n_steps(self) -> int:
        """How many steps there are."""
        return self.lanes.ordinal(self.rows - 1) - self.first_ordinal + 1 if self.rows > self.first_row else 0

    def begin_of(self, ordinal: int) -> int:
        """Where a step begins, given by its number."""
        return self.lanes.tokens_at(self.row_not_below(TYPE, ordinal << 8))

    def begins_of(self, ordinals: Int64) -> Int64:
        """Where steps begin, given by their numbers."""
        return self.starts_of(self.rows_not_below(TYPE, ordinals << 8))

    def steps_before(self, position: int) -> int:
        """How many steps begin before a position, as the number of the next one."""
        row = self.row_not_below(START, position)
        return self.lanes.ordinal(row - 1) + 1 if row > self.first_row else self.first_ordinal

    def steps_before_each(self, positions: Int64) -> Int64:
        """The same for many positions."""
        rows = self.rows_not_below(START, positions)
        begun = self.ordinals_of(np.maximum(rows - 1, self.first_row)) + 1
        return np.where(rows > self.first_row, begun, self.first_ordinal)


# Steps -----------------------------------------------------------------------------------------------------------


_ROWS = 4096


class Step(dict[str, Any]):
    """The fields of one step, and its number.

    >>> step = Step(7, {"action": 1})
    >>> step.number, step
    (7, {'action': 1})
    """

    def __init__(self, number: int, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.number = number


def read_steps(store: StreamStore, view: View, low: int, high: int) -> Iterator[Step]:
    """The steps in the index rows [low, high), which begin and end with whole steps."""
    fields, current = store._fields, None
    for begin in range(low, high, _ROWS):
        end = min(begin + _ROWS, high)
        rows = np.array(view.lanes.index.room[begin : end + 1])
        first = int(rows[0, START])
        tokens = np.array(view.lanes.data.room[first : int(rows[-1, START])])
        store._check_row_kept(begin)
        for (start, type_, number), stop in zip(rows[:-1].tolist(), rows[1:, START].tolist(), strict=True):
            field = fields[type_ & 0xFF]
            if current is None or current.number != number:
                if current is not None:
                    yield current
                    store._read()  # a stream that was closed meanwhile says so
                current = Step(number, {})
            current[field.name] = field.value(tokens[start - first : stop - first])
    if current is not None:
        yield current


def read_ordinals(store: StreamStore, view: View, ordinals: Int64) -> list[Step]:
    """The steps with these ordinals, in the order given."""
    edges = view.rows_not_below(TYPE, np.stack([ordinals, ordinals + 1], axis=1).reshape(-1) << 8).tolist()
    return [
        step for low, high in zip(edges[::2], edges[1::2], strict=True) for step in read_steps(store, view, low, high)
    ]
