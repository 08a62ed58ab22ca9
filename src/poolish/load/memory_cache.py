"""Samples in memory, bounded in bytes and items; which of them go is cachetools' work.

cachetools is quick enough to sit in the hit path: its LRU answers in 0.12 us, LFU in 0.21, FIFO in 0.05 (timeit,
version 8). What it lacks is added here: a lock, both bounds at once, and the count of what was evicted. Since the
lock alone would cost 0.17 us, readers go without it where a look is one step for every other thread: in LRU and FIFO a
look changes at most the order of an OrderedDict; LFU's relinks a list.

Whether all rows of a dataset fit is estimated from some of them. Free memory is the lesser of the machine's and the
control group's: in a container the machine may have plenty and the group nothing. File caches count as free, because
the kernel reclaims them on demand.

``CacheStats`` says what a cache has done, ``CacheAdvice`` what one of another size would have done with the same
accesses: the hit curve. An LRU cache of n items holds the n ids that were used last. So an access hits in every cache
that has room for its *stack distance*: how many different ids were used since this id was, itself included::

    ids          a  b  c  a  a  b
    distance     -  -  -  3  1  3      a cache of 3 items hits three times, one of 1 item once

Distances of all accesses would take memory without bound. Where there are many, only ids whose hash is below a
threshold are followed, and distances among them are scaled up (SHARDS: Waldspurger et al., FAST 2015). The threshold is
halved whenever the trace is full, so the trace covers everything since the cache was made, in bounded memory.

Samples are kept and handed out as private copies and not as read-only arrays, because torch warns about every array it
may not write to, and because tensors and lists cannot be made read-only. A sample of one small array and a label is
copied in 0.3 us; the strategy for a sample is chosen once, when it is stored, so that a hit inspects nothing.
"""

from __future__ import annotations

import copy
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import cachetools
import numpy as np
from numpy.typing import NDArray

from poolish import torch_bridge
from poolish.concurrency import Locked
from poolish.errors import ConfigError
from poolish.files import parse_bytes
from poolish.load.batch import nbytes
from poolish.load.dataset import samples

#: How to copy a sample: not at all; a dict, with these of its arrays; or by calling.
CloneStrategy = tuple[str, ...] | Callable[[Any], Any] | None
#: A private copy of a sample, how to copy it, and its bytes.
Entry = tuple[Any, CloneStrategy, int]


class _Counted:
    """What leaves to make room is counted."""

    n_evicted = 0

    def popitem(self) -> Any:
        while True:
            try:
                item = super().popitem()  # type: ignore[misc]
            except RuntimeError:
                continue  # a reader, who takes no lock, moved a key while we looked for the oldest
            self.n_evicted += 1
            return item


class _LRU(_Counted, cachetools.LRUCache[int, Entry]):
    pass


class _LFU(_Counted, cachetools.LFUCache[int, Entry]):
    pass


class _FIFO(_Counted, cachetools.FIFOCache[int, Entry]):
    pass


POLICIES: dict[str, type[_LRU | _LFU | _FIFO]] = {"lru": _LRU, "lfu": _LFU, "fifo": _FIFO}


class MemoryCache(Locked):
    """Samples by id, of one version of a dataset; another version begins with nothing.

    >>> cache = MemoryCache("lru", max_items=1, max_bytes=1000)
    >>> cache.renew("v1")
    >>> cache.put("v1", 7, "rye", None), cache.put("v1", 8, "wheat", None), cache.get("v1", 7), cache.n_evicted
    (True, True, None, 1)
    """

    n_damaged = 0

    def __init__(self, policy: str, *, max_items: int | None, max_bytes: int) -> None:
        super().__init__()
        self._policy, self._max_items, self._max_bytes = policy, max_items, max_bytes
        self.version = ""
        #: Whether a look needs no lock.
        self.is_free = policy != "lfu"
        self._n_before = 0
        self.entries = self._empty()

    def _empty(self) -> Any:
        return check_policy(self._policy)(self._max_bytes, getsizeof=lambda entry: entry[2])

    def renew(self, version: str) -> None:
        """From now on hold rows of this version."""
        with self._lock:
            if version != self.version:
                self._n_before += self.entries.n_evicted + len(self.entries)
                self.entries, self.version = self._empty(), version

    def get(self, version: str, id_: int) -> tuple[Any, CloneStrategy] | None:
        """A kept sample and how to copy it; None where there is none."""
        with self._lock:
            if version != self.version:
                return None
            try:
                return self.entries[id_][:2]  # type: ignore[no-any-return]
            except KeyError:
                return None

    def has(self, version: str, id_: int) -> bool:
        """Whether a sample is kept; asking is no use of it."""
        with self._lock:
            return version == self.version and id_ in self.entries

    def put(self, version: str, id_: int, kept: Any, how: CloneStrategy) -> bool:
        """Hold what ``copies.keep`` gave; whether there is room for it."""
        n_bytes = nbytes(kept)
        if n_bytes > self._max_bytes:
            return False
        with self._lock:
            if version == self.version:
                self.entries[id_] = (kept, how, n_bytes)
                while self._max_items is not None and len(self.entries) > self._max_items:
                    self.entries.popitem()
        return True

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def n_bytes(self) -> int:
        """What the samples take."""
        return int(self.entries.currsize)

    @property
    def n_evicted(self) -> int:
        """How many samples had to go."""
        return int(self._n_before + self.entries.n_evicted)

    def __getstate__(self) -> dict[str, Any]:
        # Samples stay behind: what travels to a worker should be small, and it soon has those that it needs.
        return {**super().__getstate__(), "entries": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.entries = self._empty()

    def _after_fork(self) -> None:
        # Free at the fork means that no thread was in the middle of a change; a child then has its parent's samples.
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self.entries = self._empty()
        super()._after_fork()


def check_policy(policy: str) -> type[_LRU | _LFU | _FIFO]:
    """The cache that evicts by ``policy``."""
    if policy not in POLICIES:
        raise ConfigError(f"policy={policy!r}: choose one of {', '.join(map(repr, POLICIES))}")
    return POLICIES[policy]


# What fits ----------------------------------------------------------------------------------------------------------

#: Rows that are read to estimate the size of all.
_SAMPLED = 32


@dataclass(frozen=True)
class Fit:
    """Whether the rows of a dataset fit into memory, and the numbers that decided it; true if they do."""

    n_rows: int
    #: Bytes of one row, on average over those that were read.
    row_bytes: float
    #: Bytes that all rows may take.
    allowed: int

    @property
    def n_bytes(self) -> int:
        """What all rows take, as far as some of them show."""
        return round(self.n_rows * self.row_bytes)

    def __bool__(self) -> bool:
        return self.n_bytes <= self.allowed

    def __str__(self) -> str:
        return (
            f"{self.n_rows:,} rows of about {self.row_bytes:,.0f} bytes: {self.n_bytes:,} bytes in all, "
            f"{self.allowed:,} allowed; they {'fit' if self else 'do not fit'}"
        )


def fit(dataset: Any, if_fits: float | str) -> Fit:
    """Reads a few rows, evenly spread, as a cache would keep them."""
    n_rows, allowed = len(dataset), _allowed(if_fits)
    numbers = np.unique(np.linspace(0, n_rows - 1, _SAMPLED, dtype=np.int64)) if n_rows else np.empty(0, np.int64)
    sizes = [nbytes(freeze(sample)[0]) for sample in samples(dataset, numbers)]
    return Fit(n_rows, mean(sizes) if sizes else 0.0, allowed)


def _allowed(if_fits: float | str) -> int:
    if isinstance(if_fits, float):
        if not 0 < if_fits <= 1:
            raise ConfigError(f"if_fits={if_fits}: a float is a fraction of free memory, above 0 and up to 1")
        return int(if_fits * free_bytes())
    return parse_bytes(if_fits)


def free_bytes(root: str | Path = "/") -> int:
    """Bytes that can be taken without swapping; ``root`` is where ``proc`` and ``sys`` are.

    >>> free_bytes() > 0
    True
    """
    root = Path(root)
    free = [bytes_ for bytes_ in (_of_machine(root), *_of_groups(root)) if bytes_ is not None]
    # Systems without /proc tell at least how much memory there is.
    return max(0, min(free)) if free else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _of_machine(root: Path) -> int | None:
    kilobytes = _counts(root / "proc/meminfo").get("MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _of_groups(root: Path) -> Iterator[int | None]:
    """What is left to the group of this process, and to every group that this one is in."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:
            mount, limit, used, cached = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in kinds.split(","):
            mount, limit, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        else:
            continue
        # Inside a container the path may be that of the host, and is not there; the mount itself is the group then.
        group = Path(path.strip("/"))
        for folder in (root / mount / group, *(root / mount / parent for parent in group.parents), root / mount):
            most, taken = _number(folder / limit), _number(folder / used)
            if most is not None and taken is not None:
                yield most - taken + _counts(folder / "memory.stat").get(cached, 0)


def _counts(path: Path) -> dict[str, int]:
    words = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) >= 2 and line[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


#: Accesses that are kept; beyond, every second id is no longer followed.
MAX_TRACE = 1 << 16
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIXES = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


@dataclass(frozen=True)
class CacheStats:
    """What a cache has done in this process."""

    hits: int
    misses: int
    evictions: int
    #: Entries on disk that were not what had been written; each was removed and counts as a miss.
    damaged: int
    #: Samples that were read but too large to be kept.
    refused: int
    #: Rows that were read before they were asked for, because rows of their file were asked for in order.
    read_ahead: int
    items: int
    bytes: int
    hit_seconds: float
    miss_seconds: float

    @property
    def hit_rate(self) -> float:
        """Hits among all accesses; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def average_seconds(self) -> float:
        """What an access takes: hit rate x time of a hit + (1 - hit rate) x time of a miss."""
        return self.hit_rate * self.hit_seconds + (1 - self.hit_rate) * self.miss_seconds

    def __str__(self) -> str:
        return (
            f"{self.hit_rate:.1%} of {self.hits + self.misses:,} accesses hit ({self.hit_seconds * 1e6:.1f} us, a miss "
            f"{self.miss_seconds * 1e6:.1f} us), {self.items:,} items, {self.bytes:,} bytes, {self.evictions:,} evicted"
        )


@dataclass(frozen=True, eq=False)
class CacheAdvice:
    """What caches of other sizes would have done with the accesses of this one, and which size to choose.

    ``max_items`` is the smallest size that gets ``share`` of all hits that any size could get; ``max_bytes`` the same
    in bytes, by the average size of the rows now held. Both are 0 where no row came twice: then a cache is of no use.
    """

    accesses: int
    #: Which fraction of the ids was followed; 1 means that the curve is exact.
    followed: float
    share: float
    max_items: int
    max_bytes: int
    #: What a cache with room for everything would have had.
    best_hit_rate: float
    #: Stack distances of the accesses that came again, sorted.
    distances: NDArray[np.float64]
    #: What each of them, and the accesses beyond, count for.
    n_expected: float

    def hit_rate(self, n_items: int) -> float:
        """What an LRU cache of this many rows would have had of the same accesses."""
        n_hits = float(np.searchsorted(self.distances, n_items, side="right"))
        return _bounded(n_hits + self._shift if n_items else 0.0, self.n_expected)

    @property
    def _shift(self) -> float:
        """Ids that come often may be followed or not: the difference is made up for at the shortest distance."""
        return self.best_hit_rate * self.n_expected - len(self.distances)

    def curve(self, n_sizes: int = 8) -> dict[int, float]:
        """The hit rate by size, for sizes up to the largest that brings more."""
        most = self.distances[-1] if len(self.distances) else 0
        sizes = {max(1, round(most * k / n_sizes)) for k in range(1, n_sizes + 1)} if most else set()
        return {size: self.hit_rate(size) for size in sorted(sizes)}

    def __str__(self) -> str:
        if not self.max_items:
            return f"no row came twice in {self.accesses:,} accesses: a cache of any size is of no use"
        how = "exact" if self.followed == 1 else f"from {self.followed:.1%} of the ids"
        return (
            f"max_items={self.max_items:,} (about {self.max_bytes:,} bytes) would hit "
            f"{self.hit_rate(self.max_items):.1%} of {self.accesses:,} accesses, room for everything "
            f"{self.best_hit_rate:.1%} ({how})"
        )


class AccessTrace:
    """The ids that a cache was asked for, as many as are needed for the hit curve.

    >>> trace = AccessTrace()
    >>> trace.extend([0, 1, 2, 0, 0, 1])
    >>> advice = trace.advice(share=1, item_bytes=100)
    >>> advice.distances.tolist(), advice.hit_rate(1), advice.hit_rate(3), advice.max_items
    ([1.0, 3.0, 3.0], 0.16666666666666666, 0.5, 3)
    """

    def __init__(self) -> None:
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._halvings = self._n_accesses = 0
        self._generation = 0

    def renew(self) -> None:
        """From now on ids are other rows: the cache begins with nothing."""
        self._generation += 1

    def extend(self, ids: Iterable[int]) -> None:
        """These ids were asked for, in this order."""
        wanted = np.fromiter(ids, np.int64)
        self._n_accesses += len(wanted)
        self._hashes = np.concatenate([self._hashes, self._followed(_hashes(wanted, self._generation))])
        while len(self._hashes) > MAX_TRACE:
            self._halvings += 1
            self._hashes = self._followed(self._hashes)

    def _followed(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes[hashes >> np.uint64(64 - self._halvings) == 0] if self._halvings else hashes

    def advice(self, share: float, item_bytes: float) -> CacheAdvice:
        """The hit curve, and the smallest size that gets ``share`` of all hits."""
        if isinstance(share, bool) or not 0 < share <= 1:
            raise ConfigError(f"share={share!r}: a fraction of the hits that are possible, above 0 and up to 1")
        scale = 2**self._halvings
        distances = np.sort(np.asarray(stack_distances(self._hashes.tolist()), np.float64)) * scale
        n_expected = self._n_accesses / scale
        best = _bounded(len(distances) + n_expected - len(self._hashes), n_expected)
        found = CacheAdvice(self._n_accesses, 1 / scale, share, 0, 0, best, distances, n_expected)
        if not len(distances):
            return found
        n_wanted = share * best * n_expected - found._shift
        n_items = int(distances[min(len(distances), max(1, int(np.ceil(n_wanted - 1e-9)))) - 1])
        return CacheAdvice(
            self._n_accesses, 1 / scale, share, n_items, int(n_items * item_bytes), best, distances, n_expected
        )


def stack_distances(ids: Iterable[Any]) -> list[int]:
    """For each id that came before: how many different ids came since, itself included.

    >>> stack_distances("abcaab")
    [3, 1, 3]
    """
    last: dict[Any, int] = {}
    latest: list[int] = []  # where each id came last, sorted
    found = []
    for now, id_ in enumerate(ids):
        before = last.get(id_)
        if before is not None:
            place = bisect_right(latest, before) - 1
            found.append(len(latest) - place)
            del latest[place]
        latest.append(now)
        last[id_] = now
    return found


def _hashes(ids: NDArray[np.int64], generation: int) -> NDArray[np.uint64]:
    """Well-mixed numbers, others in each generation (splitmix64)."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _ODD + np.uint64(generation * int(_ODD) ** 2 % 2**64)
    for shift, factor in _MIXES:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
    return mixed ^ (mixed >> np.uint64(31))


def _bounded(n_hits: float, n_accesses: float) -> float:
    return min(1.0, max(0.0, n_hits / n_accesses)) if n_accesses else 0.0


#: Rows in order before any is read ahead, and the most that are read ahead at a time.
FIRST, MOST = 4, 64
_MAX_RUNS = 16


class Runs:
    """Which rows a cache reads before they are asked for: those that follow in a file that is read in order.

        asked for     0  1  2  3   4  5  6  7  8    ...    18
        read          0  1  2  3-7             8-17        18-36       one call each, twice as many rows each time

    A *run* is a number of rows asked for one after the other. A row that continues a run of some length is read
    together with as many rows as the run has had, up to a bound; where no run is continued, as in a shuffled epoch,
    nothing is read ahead. Several runs may go on at once, as those of several threads. Not safe for threads by itself.

    >>> runs = Runs()
    >>> [runs.ahead([n]) for n in range(5)], runs.ahead([9])
    ([0, 0, 0, 4, 5], 0)
    """

    def __init__(self) -> None:
        self._lengths: OrderedDict[int, int] = OrderedDict()

    def ahead(self, numbers: list[int]) -> int:
        """How many rows to read after these, which are asked for now."""
        first, n_rows = numbers[0], len(numbers)
        if numbers[-1] - first != n_rows - 1 or numbers != list(range(first, first + n_rows)):
            return 0
        length = self._lengths.pop(first, 0) + n_rows
        self._note(first + n_rows, length)
        # One call for many rows is no run yet: it may be all that is ever asked for.
        return min(length, MOST) if length >= FIRST and length > n_rows else 0

    def went_ahead(self, end: int, next_end: int) -> None:
        """The run that would go on at ``end`` goes on at ``next_end``: rows between are held and will not be missed."""
        length = self._lengths.pop(end, 0)
        self._note(next_end, length + next_end - end)

    def _note(self, end: int, length: int) -> None:
        self._lengths[end] = length
        while len(self._lengths) > _MAX_RUNS:
            self._lengths.popitem(last=False)


_CONSTANT = (str, bytes, int, float, complex, bool, type(None), np.generic)


def freeze(sample: Any) -> tuple[Any, CloneStrategy]:
    """A private copy of a sample, and how to make others of it.

    >>> kept, how = freeze({"crumb": np.zeros(3), "label": 1})
    >>> how
    ('crumb',)
    >>> clone(kept, how)["crumb"] is kept["crumb"]
    False
    """
    if isinstance(sample, _CONSTANT):
        return sample, None
    if type(sample) is dict and all(
        type(value) is np.ndarray or isinstance(value, _CONSTANT) for value in sample.values()
    ):
        names = tuple(name for name, value in sample.items() if type(value) is np.ndarray and value.dtype != object)
        if not any(type(value) is np.ndarray and value.dtype == object for value in sample.values()):
            return clone(sample, names), names
    if type(sample) is tuple:
        places = [i for i, value in enumerate(sample) if not isinstance(value, _CONSTANT)]
        if not places:
            return sample, None
        if len(places) == 1 and type(sample[places[0]]) is np.ndarray and sample[places[0]].dtype != object:
            return copied(sample), _copying_one(places[0])
    return copied(sample), copied


@cache
def _copying_one(place: int) -> Callable[[Any], Any]:
    """How to copy a tuple in which only this place can change: (image, label) in 0.4 us, where looking costs 1.3."""

    def with_copy(kept: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*kept[:place], kept[place].copy(), *kept[place + 1 :])

    return with_copy


def clone(kept: Any, how: CloneStrategy) -> Any:
    """Return a copy that the caller may change."""
    if how is None:
        return kept
    if isinstance(how, tuple):
        sample = kept.copy()
        for name in how:
            sample[name] = sample[name].copy()
        return sample
    return how(kept)


def copied(value: Any) -> Any:
    """A copy of anything, as deep as it can be changed."""
    if isinstance(value, _CONSTANT):
        return value
    if type(value) is np.ndarray and value.dtype != object:
        return value.copy()
    if type(value) is dict:
        return {name: copied(item) for name, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    if type(value) is tuple:
        return tuple(copied(item) for item in value)
    torch = torch_bridge.loaded()
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().clone() if not value.requires_grad else value.clone()
    return copy.deepcopy(value)
