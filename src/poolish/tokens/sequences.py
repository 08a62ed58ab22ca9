"""Sequences of steps inside episodes: which there are, and where they begin.

    episode   0 1 2 3 4 5 6        n_steps=3, overlap=1        [0 1 2] [2 3 4] [4 5 6]
              0 1 2 3 4 5          short="pad"                 [0 1 2] [2 3 4] [4 5 -]        "drop" leaves the last out

Sequences are numbered without gaps through all episodes, so that choosing one is choosing a number. Cost does not
depend on the stream, but for one look at what is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.arguments import check_whole
from poolish.errors import ConfigError
from poolish.tokens.sampling import Coverage, Episodes, with_room
from poolish.tokens.steps import Steps
from poolish.tokens.stream_files import View

Int64 = NDArray[np.int64]

SHORT = ("drop", "pad")


@dataclass(frozen=True)
class SequenceShape:
    """How sequences lie in an episode: their length, how far apart they begin, and whether shorter ones count."""

    n_steps: int
    stride: int = 1
    is_padded: bool = False
    burn_in: int = 0

    @classmethod
    def of(cls, n_steps: int, overlap: int | None, short: str, burn_in: int) -> SequenceShape:
        """The shape that arguments of ``sample`` describe."""
        n_steps = check_whole(n_steps, "n_steps", unit="steps")
        overlap = n_steps - 1 if overlap is None else check_whole(overlap, "overlap", least=0, unit="steps")
        if overlap >= n_steps:
            raise ConfigError(
                f"overlap={overlap}: sequences of {n_steps} steps share at most {n_steps - 1}; give fewer"
            )
        if short not in SHORT:
            raise ConfigError(
                f"short={short!r}: 'drop' leaves out what is shorter than n_steps, 'pad' fills it with zeros"
            )
        return cls(n_steps, n_steps - overlap, short == "pad", check_whole(burn_in, "burn_in", least=0, unit="steps"))

    def count(self, lengths: Int64) -> Int64:
        """How many sequences episodes of these lengths have.

        >>> lengths = np.array([0, 2, 3, 6, 7])
        >>> SequenceShape(3, 2).count(lengths), SequenceShape(3, 2, is_padded=True).count(lengths)
        (array([0, 0, 1, 2, 3]), array([0, 1, 1, 3, 3]))
        """
        more = np.maximum(lengths - self.n_steps, 0)
        if self.is_padded:
            return np.where(lengths > 0, -(-more // self.stride) + 1, 0)
        return np.where(lengths >= self.n_steps, more // self.stride + 1, 0)

    def steps(self, ids: Int64, begins: Int64, ends: Int64) -> Steps:
        """The steps of sequences that begin at ``ids`` in episodes from ``begins`` to ``ends``."""
        before = np.minimum(self.burn_in, ids - begins)
        counts = before + np.minimum(self.n_steps, ends - ids)
        return Steps(ids - before, counts, self.burn_in - before, self.burn_in + self.n_steps)


class Sequences:
    """The sequences of a stream: their numbers, and where each begins."""

    def __init__(self, shape: SequenceShape, episodes: Episodes) -> None:
        self.shape, self.episodes = shape, episodes
        self._n = 0
        self._totals = np.empty(64, np.int64)  # sequences up to the end of each episode
        self._ends = np.empty((64, 2), np.int64)  # the step behind each end, twice: as kernels want their tables
        self._last = np.empty(64, np.int64)  # the same in one piece, which searching a column would make each time
        self._known: tuple[Any, tuple[int, int]] = None, (0, 0)  # how far the stream reached, and the numbers then

    def bounds(self, view: View, end: int) -> tuple[int, int]:
        """The numbers of the sequences there are, in a stream whose steps end before ``end``."""
        reach = view.reach, end
        if self._known[0] != reach:
            self._known = reach, self._counted(view, end)
        return self._known[1]

    def _counted(self, view: View, end: int) -> tuple[int, int]:
        self._update(view)
        _, begin = self.episodes.begin(self._n)
        high = self._before(self._n) + int(self.shape.count(np.array([max(0, end - begin)]))[0])
        first = view.first_ordinal
        episode = int(np.searchsorted(self.episodes.ends[:, 1], first, side="right"))
        _, begin = self.episodes.begin(episode)
        low = self._before(episode) + max(0, -(-(first - begin) // self.shape.stride))
        return min(low, high, self._before(episode + 1) if episode < self._n else high), high

    def select(self, view: View, numbers: Int64, end: int) -> Steps:
        """The steps of sequences, given by their numbers."""
        ids, base = np.empty(len(numbers), np.int64), self.episodes.base[1]
        table = self._totals[: self._n], self._ends, base, base
        kernels.select_starts(*table, self.shape.stride, None, None, 0, 0, numbers, ids)
        if not (self.shape.is_padded or self.shape.burn_in):
            n_steps = self.shape.n_steps
            known = self._places(view, ids, n_steps)
            return Steps(ids, np.full(len(ids), n_steps), np.zeros(len(ids), np.int64), n_steps, *known)
        begins, ends = bounds_of(self.episodes, ids, end)
        return self.shape.steps(ids, np.maximum(begins, view.first_ordinal), ends)

    def _places(self, view: View, ids: Int64, n_steps: int) -> tuple[Int64, Int64]:
        """The first token of sequences, -1 where it must be looked up, and the tokens of each of their steps."""
        episodes = self.episodes
        chosen = np.searchsorted(self._last[: self._n], ids + n_steps, side="right")
        inside = np.minimum(chosen, max(0, self._n - 1))
        begins = np.where((chosen > 0)[:, None], episodes.table[np.maximum(chosen - 1, 0)], episodes.base)
        sizes = np.where(chosen < self._n, episodes.step_sizes(view)[inside], 0)
        is_known = (sizes > 0) & (ids >= begins[:, 1])
        return np.where(is_known, begins[:, 0] + (ids - begins[:, 1]) * sizes, -1), sizes

    def nothing(self, view: View) -> ConfigError:
        """Why there is no sequence."""
        return ConfigError(
            f"no sequence of {self.shape.n_steps:,} steps fits into this stream of {view.n_steps:,} steps: its "
            f"{self._n + 1:,} episodes are all shorter; append more, ask for fewer steps, or pass short='pad'"
        )

    def coverage(self, view: View, end: int) -> Coverage:
        """How many sequences there are, and how many episodes are too short for a whole one."""
        low, high = self.bounds(view, end)
        edges = np.concatenate([[view.first_ordinal], self.episodes.ends[:, 1], [end]])
        lengths = np.diff(edges[np.searchsorted(edges, view.first_ordinal, side="right") - 1 :])
        lengths = lengths[lengths > 0]
        return Coverage(max(0, high - low), len(lengths), int(np.count_nonzero(lengths < self.shape.n_steps)))

    def _before(self, episode: int) -> int:
        return int(self._totals[episode - 1]) if episode else 0

    def _update(self, view: View) -> None:
        """Count the sequences of the episodes that have ended since."""
        self.episodes.update(view)
        low, high = self._n, self.episodes.n
        if low < high:
            lengths = np.diff(self.episodes.ends[low:high, 1], prepend=self.episodes.begin(low)[1])
            self._totals = with_room(self._totals, low, high)
            self._totals[low:high] = np.cumsum(self.shape.count(lengths)) + self._before(low)
            self._ends = with_room(self._ends, low, high)
            self._ends[low:high] = self.episodes.ends[low:high, 1:]
            self._last = with_room(self._last, low, high)
            self._last[low:high] = self.episodes.ends[low:high, 1]
            self._n = high


class KnownSequences:
    """The sequences that a stream was asked for, kept for the next time."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], SequenceShape], Sequences] = {}

    def of(self, episodes: Episodes, shape: SequenceShape) -> Sequences:
        """The sequences of a shape in these episodes."""
        key = tuple(episodes.fields), shape
        known = self._known.get(key)
        if known is None or known.episodes is not episodes:
            known = self._known[key] = Sequences(shape, episodes)
        return known


def episode_edges(episodes: Episodes, chosen: Int64, end: int) -> tuple[Int64, Int64]:
    """The numbers of the first step of episodes and of that behind their last; the open one ends before ``end``."""
    table, n = episodes.table, episodes.n
    begins = np.where(chosen > 0, table[np.maximum(chosen - 1, 0), 1], episodes.base[1])
    return begins, np.where(chosen < n, table[np.minimum(chosen, len(table) - 1), 1], end)


def bounds_of(episodes: Episodes, ids: Int64, end: int) -> tuple[Int64, Int64]:
    """The first step of the episode that each step belongs to, and the one behind its last."""
    return episode_edges(episodes, np.searchsorted(episodes.ends[:, 1], ids, side="right"), end)
