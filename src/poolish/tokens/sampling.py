"""Where windows may begin, and choosing among these starts at random: evenly, or by weights on ranges of steps.

    every token, or every beginning of a step      x      anywhere, or inside one episode

Starts are numbered without gaps, so that choosing one is choosing a number. Each kind answers for a stream of any
length: which numbers there are (``bounds``), how many starts lie before a position (``rank``), where start number u is
(``select``). Cost does not depend on the stream: anywhere is arithmetic and one search in the index; inside episodes is
a search in a table with an entry for each, which grows at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.arguments import is_whole
from poolish.errors import ConfigError
from poolish.tokens.fields import TokenField
from poolish.tokens.stream_files import START, STEP, TYPE, View

Int64 = NDArray[np.int64]

_SCAN_TOKENS = 1 << 22
_NONE: Int64 = np.empty(0, np.int64)


class Starts(Protocol):
    """All starts of one kind."""

    def bounds(self, view: View) -> tuple[int, int]:
        """The numbers of the starts there are: from the first up to but not including the second."""

    def rank(self, view: View, position: int) -> int:
        """The number of the first start that is not before a position."""

    def select(self, view: View, numbers: Int64) -> Int64:
        """The positions of starts, given by their numbers."""

    def short(self, view: View) -> tuple[int, int]:
        """How many episodes are kept, and how many of them are too short for a window."""


class AnyToken:
    """A window may begin at any token; its number is its position."""

    def __init__(self, width: int) -> None:
        self.width = width

    def bounds(self, view: View) -> tuple[int, int]:
        """All positions from which a window fits."""
        return view.first_token, max(view.first_token, view.tokens - self.width + 1)

    def rank(self, view: View, position: int) -> int:
        """The position itself, as far as it may be a start."""
        low, high = self.bounds(view)
        return max(low, min(position, high))

    def select(self, view: View, numbers: Int64) -> Int64:
        """The numbers themselves."""
        return numbers

    def short(self, view: View) -> tuple[int, int]:
        """There are no episodes here."""
        return 0, 0


class AnyStep:
    """A window may begin wherever a step does; its number is that of the step."""

    def __init__(self, width: int) -> None:
        self.width = width

    def bounds(self, view: View) -> tuple[int, int]:
        """All steps from which a window fits."""
        return view.first_ordinal, self.rank(view, view.tokens)

    def rank(self, view: View, position: int) -> int:
        """The number of the first step that begins at a position or behind it, as far as it may be a start."""
        limit = min(position, view.tokens - self.width + 1)
        is_inside = view.rows > view.first_row and limit > view.first_token
        return view.steps_before(limit) if is_inside else view.first_ordinal

    def select(self, view: View, numbers: Int64) -> Int64:
        """Where the steps begin."""
        return view.begins_of(numbers)

    def short(self, view: View) -> tuple[int, int]:
        """There are no episodes here."""
        return 0, 0


class Episodes:
    """Where episodes end: behind each step in which any of some fields is not zero, and at breaks. The last is still
    open.

    Scanned once, and then only what is new; a step that may still be continued is left for the next time.
    """

    def __init__(self, fields: Mapping[int, TokenField], view: View) -> None:
        self.fields = fields  # by their types
        self.base = view.first_token, view.first_ordinal
        self.n = 0
        self.table = np.empty((64, 2), np.int64)  # token and step behind each end
        self._scanned = view.first_token
        self._seen_rows = -1
        self._sizes, self._n_sized = np.zeros(64, np.int64), 0

    @property
    def ends(self) -> Int64:
        """The token and the step behind the end of each episode that has ended."""
        return self.table[: self.n]

    def begin(self, episode: int) -> tuple[int, int]:
        """The token and the step where an episode begins."""
        if episode == 0:
            return self.base
        token, step = self.table[episode - 1].tolist()
        return token, step

    def update(self, view: View) -> None:
        """Look at what was appended since."""
        if view.rows == self._seen_rows or view.rows == view.first_row:
            return
        if self._seen_rows < 0:  # a view without rows does not know the number of its first step
            self.base, self._scanned = (view.first_token, view.first_ordinal), view.first_token
        last_begin = view.begin_of(view.lanes.ordinal(view.rows - 1))
        begin = max(self._scanned, view.first_token)
        breaks = view.breaks()
        tokens = view.begins_of(breaks)
        while True:  # once at least: a break may lie just where the last scan ended, behind a step without tokens
            end = max(begin, min(last_begin, begin + _SCAN_TOKENS) if self.fields else last_begin)
            found = self._nonzero(view, begin, end)
            broken = breaks[(tokens >= begin) & (tokens <= end)]
            if len(found) or len(broken):
                self._add(view, np.union1d(self._behind(view, found), broken))
            begin = end
            if begin >= last_begin:
                break
        self._scanned, self._seen_rows = max(self._scanned, last_begin), view.rows

    def _nonzero(self, view: View, begin: int, end: int) -> Int64:
        """The positions of the tokens of these fields that are not zero."""
        parts, lanes = [_NONE], view.lanes
        for type_, field in self.fields.items():
            at = begin
            while at < end:
                found = np.empty(min(end - at, 1 << 16), np.int64)
                args = lanes.data.room, lanes.types.room, at, end, type_, field.is_float
                n, at = kernels.find_nonzero(*args, found)
                parts.append(found[:n])
        return np.concatenate(parts)

    def _behind(self, view: View, positions: Int64) -> Int64:
        """The numbers of the steps behind those that tokens belong to."""
        rows = view.rows_not_below(START, positions + 1) - 1
        return view.ordinals_of(np.maximum(rows, view.first_row)) + 1

    def _add(self, view: View, ordinals: Int64) -> None:
        """End episodes where steps begin; ends at the same token are one, and the next episode has every step there.

        A step without tokens begins where the next one does, so a window from either holds the same tokens: a break
        between them must not exclude one of the two.
        """
        begins = view.begins_of(ordinals)
        ordinals = view.steps_before_each(begins)
        is_new = np.diff(begins, prepend=self.begin(self.n)[0]) > 0
        ends = np.stack([begins[is_new], ordinals[is_new]], axis=1)
        self.table = with_room(self.table, self.n, self.n + len(ends))
        self.table[self.n : self.n + len(ends)] = ends
        self.n += len(ends)

    def step_sizes(self, view: View) -> Int64:
        """The tokens of each step of an episode, 0 where they differ: where not, no index is asked where a step begins.

        The last step may differ, as where it holds the final observation: none begins behind it.
        """
        low, high = self._n_sized, self.n
        if low < high:
            begins, ends = np.concatenate([[self.begin(low)], self.table[low : high - 1]]), self.table[low:high]
            edges = view.rows_not_below(TYPE, np.stack([begins[:, 1], ends[:, 1] - 1], axis=1).reshape(-1) << 8)
            sizes, lanes = np.zeros(high - low, np.int64), view.lanes
            kernels.step_sizes(lanes.types.room, lanes.index.room, view.first_row, view.rows, edges, sizes)
            self._sizes = with_room(self._sizes, low, high)
            self._sizes[low:high] = np.where(view.starts_of(edges[::2]) == begins[:, 0], sizes, 0)
            self._n_sized = high
        return self._sizes

    def is_behind(self, view: View) -> bool:
        """Whether trimming has passed the scanned range, so episodes can no longer be numbered."""
        return view.first_token > self._scanned

    def is_outdated(self, view: View) -> bool:
        """Whether to start over: trimming has passed the scanned range, or most episodes in the table are trimmed."""
        if view.first_token == self.base[0]:
            return False
        is_mostly_gone = self.n > 4096 and int(self.table[self.n * 3 // 4, 0]) <= view.first_token
        return is_mostly_gone or self.is_behind(view)


class InEpisodes:
    """A window begins at a token or a step, and lies inside one episode; starts are numbered through all of them."""

    def __init__(self, width: int, episodes: Episodes, *, at_steps: bool, stride: int = 1) -> None:
        self.width, self.stride = width, stride
        self._episodes, self._at_steps = episodes, at_steps
        self._n = 0
        self._totals = np.empty(64, np.int64)  # starts up to the end of each episode
        self._known: tuple[Any, tuple[int, int]] = None, (0, 0)  # how far the stream reached, and its bounds then

    def bounds(self, view: View) -> tuple[int, int]:
        """From the first that is kept to the last that fits."""
        reach, bounds = self._known
        if view.reach != reach:
            bounds = self._counted(view)
            self._known = view.reach, bounds
        return bounds

    def _counted(self, view: View) -> tuple[int, int]:
        self._update(view)
        high = self._before(self._n) + self._inside(view, self._n, view.tokens, view.tokens)
        is_whole = view.first_token <= self._episodes.base[0]
        return (0 if is_whole else min(high, self.rank(view, view.first_token))), high

    def rank(self, view: View, position: int) -> int:
        """The number of the first start that is not before a position."""
        self._update(view)
        ends = self._episodes.ends[:, 0]
        episode = int(np.searchsorted(ends, position, side="right"))
        if episode == self._n:
            return self._before(episode) + self._inside(view, episode, view.tokens, position)
        # Never more than were counted: of what has left the stream, positions are only known roughly.
        counted = self._before(episode) + self._inside(view, episode, int(ends[episode]), position)
        return min(counted, int(self._totals[episode]))

    def select(self, view: View, numbers: Int64) -> Int64:
        """The positions of starts."""
        found = np.empty(len(numbers), np.int64)
        index, sizes = (view.lanes.index.room, self._episodes.step_sizes(view)) if self._at_steps else (None, None)
        table, base = self._episodes.table, self._episodes.base
        args = self._totals[: self._n], table, *base, self.stride, index, sizes, view.first_row, view.rows
        kernels.select_starts(*args, numbers, found)
        return found

    def short(self, view: View) -> tuple[int, int]:
        """How many episodes are kept, and how many of them are too short, as far as they are kept."""
        self._update(view)
        ends = self._episodes.ends[:, 0]
        gone = int(np.searchsorted(ends, view.first_token, side="right"))
        edges = np.concatenate([[view.first_token], ends[gone:], [view.tokens]])
        lengths = np.diff(edges)[: None if edges[-1] > edges[-2] else -1]  # the open one may have no token yet
        return len(lengths), int(np.count_nonzero(lengths < self.width))

    def _before(self, episode: int) -> int:
        return int(self._totals[episode - 1]) if episode else 0

    def _inside(self, view: View, episode: int, end: int, position: int) -> int:
        """How many starts of an episode that ends at ``end`` lie before a position."""
        token, step = self._episodes.begin(episode)
        limit = min(position, end - self.width + 1)
        if limit <= token:
            return 0
        if self._at_steps:
            return max(0, view.steps_before(limit) - step) if view.rows > view.first_row else 0
        return -(-(limit - token) // self.stride)

    def _update(self, view: View) -> None:
        """Count the starts of the episodes that have ended since."""
        self._episodes.update(view)
        low, high = self._n, self._episodes.n
        if low == high:
            return
        begins = np.concatenate([[self._episodes.begin(low)], self._episodes.table[low : high - 1]])
        counts = self._counts(view, begins, self._episodes.table[low:high])
        self._totals = with_room(self._totals, low, high)
        self._totals[low:high] = np.cumsum(counts) + self._before(low)
        self._n = high

    def _counts(self, view: View, begins: Int64, ends: Int64) -> Int64:
        spare = ends[:, 0] - begins[:, 0] - self.width
        if not self._at_steps:
            counts: Int64 = np.maximum(spare // self.stride + 1, 0)
            return counts
        counts = np.maximum(view.steps_before_each(ends[:, 0] - self.width + 1) - begins[:, 1], 0)
        counts[spare < 0] = 0
        return counts


class KnownStarts:
    """The episodes and the starts of windows that a stream was asked for, kept for the next time."""

    def __init__(self) -> None:
        self._episodes: dict[tuple[int, ...], Episodes] = {}
        self._inside: dict[tuple[tuple[int, ...], int, str], InEpisodes] = {}
        self._ending: dict[Any, Mapping[int, TokenField]] = {}

    def ending(self, within: Any, find: Callable[[], Mapping[int, TokenField]]) -> Mapping[int, TokenField]:
        """The fields that end episodes, which are looked for once."""
        key = tuple(within) if isinstance(within, list) else within
        try:
            if key not in self._ending:
                self._ending[key] = find()
        except TypeError:  # no name at all: the search says so
            return find()
        return self._ending[key]

    def of(self, view: View, width: int, start: str, fields: Mapping[int, TokenField] | None) -> Starts:
        """The starts of windows that may lie anywhere, or within the episodes that ``fields`` end."""
        if start not in ("token", "step"):
            raise ConfigError(f"start={start!r}: windows begin at a 'token' or at a 'step'")
        if fields is None:
            return AnyToken(width) if start == "token" else AnyStep(width)
        episodes = self.episodes(view, fields)
        key = tuple(fields), width, start
        if key not in self._inside:
            self._inside[key] = InEpisodes(width, episodes, at_steps=start == "step")
        return self._inside[key]

    def episodes(self, view: View, fields: Mapping[int, TokenField]) -> Episodes:
        """The episodes that ``fields`` and breaks end."""
        types = tuple(fields)
        episodes = self._episodes.get(types)
        if episodes is None or episodes.is_outdated(view):
            episodes = self._episodes[types] = Episodes(fields, view)
            self._inside = {key: starts for key, starts in self._inside.items() if key[0] != types}
        return episodes


def with_room(table: NDArray[Any], used: int, needed: int) -> NDArray[Any]:
    """The table, or one at least twice as long with the same beginning."""
    if needed <= len(table):
        return table
    grown = np.empty((max(2 * len(table), needed), *table.shape[1:]), table.dtype)
    grown[:used] = table[:used]
    return grown


# Choosing --------------------------------------------------------------------------------------------------------


#: No step is behind it.
LAST_STEP = 2**63 - 1

#: (first step, step behind the last, weight)
Weight = tuple[int, int, float]


@dataclass(frozen=True)
class Coverage:
    """What can be sampled: how many windows, and how many episodes are too short for one."""

    windows: int
    episodes: int
    too_short: int


def coverage(view: View, starts: Starts) -> Coverage:
    """Count the windows there are."""
    low, high = starts.bounds(view)
    return Coverage(max(0, high - low), *starts.short(view))


def choose(
    view: View, starts: Starts, n: int, width: int, rng: np.random.Generator, weights: Sequence[Weight] | None
) -> Int64:
    """The positions of ``n`` windows, drawn with replacement."""
    low, high = starts.bounds(view)
    if high <= low:
        raise nothing_fits(view, starts, width)
    if weights is None:
        return starts.select(view, kernels.draw(rng, low, high, n))
    return starts.select(view, _by_weights(view, starts, n, rng, weights, low, high))


def _by_weights(
    view: View, starts: Starts, n: int, rng: np.random.Generator, weights: Sequence[Weight], low: int, high: int
) -> Int64:
    ranges = check_weights(weights)
    steps = np.array([[first, end] for first, end, _ in ranges], np.int64)
    positions = view.starts_of(view.rows_not_below(STEP, steps.reshape(-1))).tolist()
    ranks = np.array([starts.rank(view, position) for position in positions]).clip(low, high)
    lows, highs = ranks[::2], ranks[1::2]
    each = np.where(highs > lows, [weight for _, _, weight in ranges], 0.0)
    # Divided by the largest, so that no sum is infinite and no share is lost below the smallest number.
    mass = np.cumsum((highs - lows) * (each / (each.max() or 1.0)))
    if not mass[-1] > 0:
        raise ConfigError("weights: no window begins in a range with a weight above 0; check the ranges and the width")
    chosen = np.searchsorted(mass, rng.random(n) * mass[-1], side="right")
    numbers: Int64 = rng.integers(lows[chosen], highs[chosen])
    return numbers


def check_weights(weights: Sequence[Weight]) -> list[Weight]:
    """The ranges in order, if each makes sense and none overlap."""
    if not isinstance(weights, Sequence) or isinstance(weights, str) or not weights:
        raise ConfigError(f"weights={weights!r}: give a list of (first step, step behind the last, weight)")
    ranges = sorted(_checked(i, part) for i, part in enumerate(weights))
    for (_, end, _), (first, _, _) in pairwise(part for part in ranges if part[0] < part[1]):
        if first < end:
            raise ConfigError(f"weights: two ranges hold step {first}; cut one of them")
    return ranges


def _checked(i: int, part: object) -> Weight:
    if not (isinstance(part, (tuple, list)) and len(part) == 3):
        raise ConfigError(f"weights[{i}]: give (first step, step behind the last, weight), got {part!r}")
    first, end, weight = part
    is_range = is_whole(first) and is_whole(end)
    is_weight = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, bool)
    if not (is_range and is_weight and 0 <= first <= end and 0 <= weight < float("inf")):
        raise ConfigError(f"weights[{i}]: whole steps 0 <= first <= end, and a weight of 0 or more, got {part!r}")
    return min(int(first), LAST_STEP), min(int(end), LAST_STEP), float(weight)


def nothing_fits(view: View, starts: Starts, width: int) -> ConfigError:
    """Why there is no window of this width."""
    n_tokens = view.tokens - view.first_token
    n_episodes, n_short = starts.short(view)
    where = (
        f"its {n_episodes:,} episodes are all shorter" if n_short and n_short == n_episodes else f"it has {n_tokens:,}"
    )
    return ConfigError(f"no window of {width:,} tokens fits into this stream: {where}; append more, or ask for less")
