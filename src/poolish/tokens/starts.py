"""Where windows may begin, numbered without gaps, so that choosing one is choosing a number.

    every token, or every beginning of a step      x      anywhere, or inside one episode

Each kind answers two questions for any length of the stream: how many starts lie before a position (``rank``), and
where is start number u (``select``). Cost does not depend on the stream: anywhere is arithmetic and one search in the
index; inside episodes is a search in a table with an entry for each episode, which only grows at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.errors import CorruptDataError
from poolish.tokens.fields import TokenField
from poolish.tokens.lanes import START, TYPE, Lanes

Int64 = NDArray[np.int64]

_SCAN_TOKENS = 1 << 22


@dataclass(frozen=True)
class View:
    """A stream as it is now: rows and tokens from the first that is kept to the last that is published."""

    lanes: Lanes
    first_row: int
    first_token: int
    rows: int
    tokens: int

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

    def begins_of(self, ordinals: Int64) -> Int64:
        """Where steps begin, given by their numbers."""
        return self.starts_of(self.lanes.rows_of_ordinals(ordinals, self.first_row, self.rows))

    def steps_before(self, positions: Int64) -> Int64:
        """How many steps begin before each position, as the number of the next one."""
        rows = self.rows_not_below(START, positions)
        begun = self.ordinals_of(np.maximum(rows - 1, self.first_row)) + 1
        return np.where(rows > self.first_row, begun, self.first_ordinal)


class Starts(Protocol):
    """All starts of one kind."""

    def rank(self, view: View, position: int) -> int:
        """How many starts lie before a position."""

    def select(self, view: View, numbers: Int64) -> Int64:
        """The positions of starts, given by their numbers."""

    def short(self, view: View) -> tuple[int, int]:
        """How many episodes there are, and how many of them are too short for a window."""


class AnyToken:
    """A window may begin at any token."""

    def __init__(self, width: int) -> None:
        self.width = width

    def rank(self, view: View, position: int) -> int:
        """How many starts lie before a position."""
        return max(0, min(position, view.tokens - self.width + 1))

    def select(self, view: View, numbers: Int64) -> Int64:
        """The positions of starts: the numbers themselves."""
        return numbers

    def short(self, view: View) -> tuple[int, int]:
        """There are no episodes here."""
        return 0, 0


class AnyStep:
    """A window may begin wherever a step does."""

    def __init__(self, width: int) -> None:
        self.width = width

    def rank(self, view: View, position: int) -> int:
        """How many starts lie before a position."""
        if view.rows == view.first_row:
            return 0
        limit = min(position, view.tokens - self.width + 1)
        return int(view.steps_before(np.array([limit]))[0]) if limit > view.first_token else view.first_ordinal

    def select(self, view: View, numbers: Int64) -> Int64:
        """The positions of starts, given by the numbers of their steps."""
        return view.begins_of(numbers)

    def short(self, view: View) -> tuple[int, int]:
        """There are no episodes here."""
        return 0, 0


class Episodes:
    """Where episodes end: behind each step in which a field is not zero. The last episode is still open.

    Scanned once, and then only what is new; a step that may still be continued is left for the next time.
    """

    def __init__(self, field: TokenField, type_: int, view: View) -> None:
        self.field, self.type = field, type_
        self.base = view.first_token, view.first_ordinal
        self._scanned = view.first_token
        self.n = 0
        self._ends = np.empty((64, 2), np.int64)  # token and ordinal behind each end

    @property
    def ends(self) -> Int64:
        """The token and the step behind the end of each episode that has ended."""
        return self._ends[: self.n]

    def update(self, view: View) -> None:
        """Look at what was appended since."""
        if view.rows == view.first_row:
            return
        last_begin = int(view.begins_of(np.array([view.lanes.ordinal(view.rows - 1)]))[0])
        begin = max(self._scanned, view.first_token)
        while begin < last_begin:
            until = min(last_begin, begin + _SCAN_TOKENS)
            found = np.empty(until - begin, np.int64) if until - begin < 4096 else np.empty(1 << 16, np.int64)
            data, types = view.lanes.data.room, view.lanes.types.room
            n, begin = kernels.find_nonzero(data, types, begin, until, self.type, self.field.is_float, found)
            if n:
                self._add(view, found[:n])
        self._scanned = max(self._scanned, last_begin)

    def _add(self, view: View, positions: Int64) -> None:
        """The ends of the steps that tokens belong to."""
        rows = view.rows_not_below(START, positions + 1) - 1
        ordinals = np.unique(view.ordinals_of(np.maximum(rows, view.first_row))) + 1
        known = self._ends[self.n - 1, 1] if self.n else self.base[1]
        ordinals = ordinals[ordinals > known]
        tokens = view.begins_of(ordinals)
        if self.n + len(ordinals) > len(self._ends):
            grown = np.empty((max(2 * len(self._ends), self.n + len(ordinals)), 2), np.int64)
            grown[: self.n] = self.ends
            self._ends = grown
        self._ends[self.n : self.n + len(ordinals)] = np.stack([tokens, ordinals], axis=1)
        self.n += len(ordinals)

    def is_mostly_gone(self, view: View) -> bool:
        """Whether most of the table is about what a bounded stream has let go, so that it is better begun anew."""
        return self.n > 4096 and int(self._ends[self.n * 3 // 4, 0]) <= view.first_token

    def begins(self, low: int, high: int) -> Int64:
        """The token and the step where episodes low to high begin."""
        begins = np.empty((high - low, 2), np.int64)
        if high > low:
            begins[1:] = self._ends[low : high - 1]
            begins[0] = self._ends[low - 1] if low else self.base
        return begins


class InEpisodes:
    """A window begins at a token or a step, and lies inside one episode."""

    def __init__(self, width: int, episodes: Episodes, *, at_steps: bool, stride: int = 1) -> None:
        self.width, self.stride = width, stride
        self._episodes, self._at_steps = episodes, at_steps
        self._n = self._n_short = 0
        self._totals = np.empty(64, np.int64)  # starts up to the end of each episode

    def rank(self, view: View, position: int) -> int:
        """How many starts lie before a position."""
        self._update(view)
        ends = self._episodes.ends
        episode = int(np.searchsorted(ends[: self._n, 0], position, side="right"))
        before = int(self._totals[episode - 1]) if episode else 0
        begin = self._episodes.begins(episode, episode + 1)
        end = int(ends[episode, 0]) if episode < self._n else view.tokens
        limit = min(position, end - self.width + 1)
        if limit <= begin[0, 0]:
            return before
        if self._at_steps:
            return before + int(view.steps_before(np.array([limit]))[0] - begin[0, 1])
        return before + -(-(limit - int(begin[0, 0])) // self.stride)

    def select(self, view: View, numbers: Int64) -> Int64:
        """The positions of starts."""
        episodes = np.empty(len(numbers), np.int64)
        kernels.search(self._totals[: self._n], 1, 0, 0, self._n, np.ascontiguousarray(numbers + 1), episodes)
        before = np.where(episodes > 0, self._totals[np.maximum(episodes - 1, 0)], 0) if self._n else 0
        ends, base = self._episodes._ends, self._episodes.base
        begins = ends[np.maximum(episodes - 1, 0)]
        begins[episodes == 0] = base
        inside = numbers - before
        if self._at_steps:
            return view.begins_of(begins[:, 1] + inside)
        positions: Int64 = begins[:, 0] + inside * self.stride
        return positions

    def short(self, view: View) -> tuple[int, int]:
        """How many episodes there are, and how many are too short."""
        self._update(view)
        tail = self._episodes.begins(self._n, self._n + 1)[0]
        n_open = view.tokens - int(tail[0])
        return self._n + (n_open > 0), self._n_short + (0 < n_open < self.width)

    def _update(self, view: View) -> None:
        """Count the starts of the episodes that have ended since."""
        self._episodes.update(view)
        low, high = self._n, self._episodes.n
        if low == high:
            return
        begins, ends = self._episodes.begins(low, high), self._episodes.ends[low:high]
        counts = self._counts(view, begins, ends)
        if high > len(self._totals):
            grown = np.empty(max(2 * len(self._totals), high), np.int64)
            grown[:low] = self._totals[:low]
            self._totals = grown
        self._totals[low:high] = np.cumsum(counts) + (self._totals[low - 1] if low else 0)
        self._n, self._n_short = high, self._n_short + int(np.count_nonzero(counts == 0))

    def _counts(self, view: View, begins: Int64, ends: Int64) -> Int64:
        spare = ends[:, 0] - begins[:, 0] - self.width
        if not self._at_steps:
            counts: Int64 = np.maximum(spare // self.stride + 1, 0)
            return counts
        upto = view.steps_before(ends[:, 0] - self.width + 1)
        counts = np.maximum(upto - begins[:, 1], 0)
        counts[spare < 0] = 0
        return counts


def check_starts(view: View, starts: Int64, width: int) -> None:
    """Starts that we have found ourselves lie inside, unless the index is damaged."""
    if len(starts) and (starts.min() < view.first_token or starts.max() > view.tokens - width):
        raise CorruptDataError(f"{view.lanes.index.path}: leads outside of the stream; run verify()")
