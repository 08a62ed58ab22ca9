"""A dataset that remembers what it has read, in memory or on disk.

    dataset[i]  --held-->  a copy
                `--not-->  read once, however many threads ask  -->  a copy is kept under (identity, version, id)

The version distinguishes states of one dataset: a row that a buffer has updated, or an epoch with other augmentations,
has another version, so an old row is never served. (A dataset without a version is assumed not to change.) On disk the
identity distinguishes datasets: a fingerprint of content, attributes and functions, taken when the cache is opened.
Rows of lists and arrays are written once these are known not to have changed since (unverified).
"""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from time import perf_counter, time
from typing import Any

import numpy as np

from poolish.concurrency import Locked
from poolish.errors import ConfigError, LimitExceeded
from poolish.files import local_path, parse_bytes
from poolish.fingerprints import qualified_name
from poolish.fixed import fixed_parameters
from poolish.health import Health, Problem
from poolish.load.dataset import Dataset, check_version, identity_of, samples, version_of, whole_number
from poolish.load.disk_cache import DiskCache, Entry, Key, Unverified, n_listed
from poolish.load.frozen import FrozenRows, Int64
from poolish.load.memory_cache import (
    AccessTrace,
    CacheAdvice,
    CacheStats,
    CloneStrategy,
    MemoryCache,
    Runs,
    check_policy,
    clone,
    fit,
    freeze,
)
from poolish.load.views.single import TransformedDataset
from poolish.load.views.view import ReadRows, View, has_numbers_for_ids, rows_with_ids, snapshot_with_version
from poolish.printable import printable

logger = logging.getLogger("poolish.load")

Read = Callable[[list[int]], list[Any]]

#: One hit in this number plus one (a mask) is timed: two looks at the clock cost a tenth of a hit.
_TIMED_HITS = 63
#: Accesses that are noted before they are looked at together.
_TRACED = 4096
#: Rows read at a time by ``eager``.
EAGER_ROWS = 256


@fixed_parameters("make a new CachedDataset", stored=False)
class CachedDataset(Locked, View):
    """``dataset``, each of whose rows is read once as long as there is room to keep it.

    Rows are kept in memory, or with ``path`` in files that other processes share: compressed, checksummed, and only for
    samples made of dicts, lists and tuples of arrays, numbers, text, bytes and None. ``policy`` says which go when
    there are more than ``max_items`` or ``max_bytes``: those used longest ago, least often, or kept first. Every sample
    is a copy: changing one changes no other. Threads that miss the same row wait for one of them to read it.

    While rows of a file are asked for in order (a dataset with ``following``, as ``TextDataset`` and ``CIFAR10``, also
    transformed), a miss reads the next rows of the file in the same call, up to 64 and never more than a quarter of the
    cache. Rows asked for at random are read alone.

    Files are found again only by an equal dataset: equal content of a list, equal attributes and code of an object and
    of each function. A list, tuple, array or tensor that is changed in place later writes nothing more. A dataset that
    cannot be fingerprinted is refused until you pass ``version``, which then identifies it: change it whenever a sample
    changes.

    >>> from poolish.load.views.single import AdaptedDataset
    >>> reads = []
    >>> slow = AdaptedDataset(reads, length=lambda _: 3, get=lambda reads, n: reads.append(n) or {"square": n * n})
    >>> cached = CachedDataset(slow)
    >>> cached[2], cached[-1], reads, cached.stats.hit_rate
    ({'square': 4}, {'square': 4}, [2], 0.5)
    """

    def __init__(
        self,
        dataset: Any,
        policy: str = "lru",
        max_items: int | None = None,
        max_bytes: int | str = "1gb",
        path: str | os.PathLike[str] | None = None,
        *,
        version: str | float | None = None,
    ) -> None:
        Locked.__init__(self)
        View.__init__(self, dataset)
        check_policy(policy)
        bounds: Any = {"max_items": _n_items(max_items), "max_bytes": parse_bytes(max_bytes)}
        self._policy, self._version = policy, check_version(version)
        self._n_identified: int | None = None
        self._unverified: Unverified | None = None
        self._memory: MemoryCache | None
        self._tier: MemoryCache | DiskCache
        if path is None:
            self._tier = self._memory = MemoryCache(policy, **bounds)
        else:
            place = local_path(path, "CachedDataset path", instead="the sources of a recipe")
            # Hashed before the identity is, so that a change between the two is seen.
            self._unverified = None if version is not None else Unverified(dataset)
            self._tier, self._memory = DiskCache(place, policy, identity=self._below(), **bounds), None
            self._n_identified = n_listed(dataset)
            if self._unverified is not None:
                weakref.finalize(self, self._unverified.write, self._tier)
        self._by_number = has_numbers_for_ids(dataset)
        self._fast_tier = self._memory if self._by_number else None
        # Asking for the version costs as much as the rest of a hit: those who have only the inherited one never change.
        self._is_constant = _never_changes(dataset)
        # Hits apart, because the short way to one counts it without a lock.
        self._hits, self._counts = 0, Counter[str]()
        # LFU would evict a row that was not used yet, before all others.
        self._runs = (
            Runs() if self._by_number and policy != "lfu" and hasattr(_untransformed(dataset), "following") else None
        )
        self._bounds = bounds
        self._loading: dict[Key, Future[Entry | None]] = {}
        # Bounded, because nothing looks at it while every access hits and none is timed.
        self._accesses: deque[int] = deque(maxlen=4 * _TRACED)
        self._trace = AccessTrace()
        if self._memory is not None:
            self._memory.renew(version_of(dataset))

    def _identity(self) -> Any:
        """That of what it caches."""
        return "cached", self._below()

    def _below(self) -> str:
        if self._version is not None:
            return f"version {self._version} of {qualified_name(type(self._dataset))}"
        return identity_of(self._dataset)

    def __getitem__(self, index: int) -> Any:
        # The short way of a hit: no call but those into cachetools and the copying, and the clock only now and then.
        memory = self._fast_tier
        if memory is not None and type(index) is int and (self._is_constant or self._dataset.version == memory.version):
            begin = 0.0 if self._hits & _TIMED_HITS else perf_counter()
            try:
                if memory.is_free:
                    kept, how, _ = memory.entries[index]
                else:
                    with memory._lock:
                        kept, how, _ = memory.entries[index]
            except KeyError:
                return self.__getitems__([index])[0]
            # Without a lock, which would cost a quarter of a hit: where threads meet here, a hit may go uncounted.
            self._hits += 1
            self._accesses.append(index)
            if type(how) is tuple:
                sample = kept.copy()
                for name in how:
                    sample[name] = sample[name].copy()
            else:
                sample = clone(kept, how)
            if begin:
                self._note_time(1, perf_counter() - begin)
            return sample
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """What is held is copied, the rest is read in one call."""
        numbers = self._numbers_below(indices)
        if not self._by_number:
            ids, rows = rows_with_ids(self, lambda: self.ids_of(np.asarray(numbers, np.int64)))
            return rows.fetch(ids)
        version = version_of(self._dataset)
        self._renew(version)
        return self.through(
            version, numbers, lambda some: samples(self._dataset, some), lambda: version_of(self._dataset) == version
        )

    def through(
        self,
        version: str,
        ids: list[int],
        read: Read,
        is_current: Callable[[], bool] = lambda: True,
        end: int | None = None,
    ) -> list[Any]:
        """The rows with these ids in that version: from the cache, else by ``read``, of which copies are kept.

        What was read is not kept unless ``is_current()`` afterwards: the dataset may have changed while it was read.
        No row from ``end`` on is read ahead.
        """
        begin = perf_counter()
        self._accesses.extend(ids)
        if len(self._accesses) >= _TRACED:
            self._trace_accesses()
        found: dict[int, Entry] = {}
        for id_ in ids:
            held = self._held(version, id_)
            if held is not None:
                found[id_] = held
        missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in found]
        self._count(hits=len(ids) - len(missing))
        if not missing:
            copies = [clone(*found[id_]) for id_ in ids]
            self._note_time(len(ids), perf_counter() - begin)
            return copies
        following = self._following(version, missing, end)
        while missing:
            missing, following = self._load(version, missing, read, is_current, found, following), []
        return [clone(*found[id_]) for id_ in ids]

    def _load(
        self,
        version: str,
        missing: list[int],
        read: Read,
        is_current: Callable[[], bool],
        found: dict[int, Entry],
        following: Sequence[int] = (),
    ) -> list[int]:
        """Read what no other thread is reading, then wait for the others; what they failed to read is still missing."""
        with self._lock:
            theirs = {id_: other for id_ in missing if (other := self._loading.get((version, id_))) is not None}
            ours = [id_ for id_ in missing if id_ not in theirs]
            ahead = [id_ for id_ in following if (version, id_) not in self._loading] if ours else []
            claims: dict[int, Future[Entry | None]] = {id_: Future() for id_ in (*ours, *ahead)}
            self._loading.update({(version, id_): claim for id_, claim in claims.items()})
        loaded: dict[int, Entry] = {}
        try:
            if ours:
                loaded = self._load_ours(version, ours, ahead, read, is_current)
        finally:
            with self._lock:
                for id_, claim in claims.items():
                    self._loading.pop((version, id_), None)
                    claim.set_result(loaded.get(id_))
        found.update(loaded)
        # Only now: a waiting thread holds nothing that others wait for.
        found.update({id_: entry for id_, claim in theirs.items() if (entry := claim.result()) is not None})
        self._count(hits=sum(id_ in found for id_ in theirs))
        return [id_ for id_ in theirs if id_ not in found]

    def _following(self, version: str, missing: list[int], end: int | None) -> list[int]:
        """The rows to read together with those that are missing, if these continue a run in one file."""
        if self._runs is None:
            return []
        with self._lock:
            n_ahead = min(self._runs.ahead(missing), self._room())
        if not n_ahead:
            return []
        last = missing[-1]
        following = [id_ for id_ in _untransformed(self._dataset).following(last, n_ahead) if end is None or id_ < end]
        with self._lock:
            self._runs.went_ahead(last + 1, last + 1 + len(following))
        return [id_ for id_ in following if not self._tier.has(version, id_)]

    def _room(self) -> int:
        """A quarter of the rows that the cache has room for, by the size of those it holds."""
        bounds = [n for n in (self._bounds["max_items"],) if n is not None]
        if len(self._tier):
            bounds.append(int(self._bounds["max_bytes"] / max(1, self._tier.n_bytes / len(self._tier))))
        return min(bounds) // 4 if bounds else 0

    def _load_ours(
        self, version: str, ours: list[int], ahead: list[int], read: Read, is_current: Callable[[], bool]
    ) -> dict[int, Entry]:
        begin = perf_counter()
        # Another thread may have kept some of them between our look and our claim.
        held = {id_: entry for id_ in ours if (entry := self._held(version, id_)) is not None}
        wanted = [id_ for id_ in ours if id_ not in held]
        more = [id_ for id_ in ahead if not self._tier.has(version, id_)]
        loaded = self._read_with(wanted, more, read) if wanted else {}
        n_refused = 0
        if wanted and is_current() and self._is_identified():
            n_refused = self._store({(version, id_): entry for id_, entry in loaded.items()})
        n_ahead = sum(id_ in loaded for id_ in ahead)
        self._count(len(held), misses=len(wanted), miss_s=perf_counter() - begin, refused=n_refused, ahead=n_ahead)
        return {**held, **loaded}

    def _read_with(self, wanted: list[int], ahead: list[int], read: Read) -> dict[int, Entry]:
        """Copies of all these rows; a fault in one that was not asked for is left to those who ask for it."""
        try:
            rows = read([*wanted, *ahead])
        except Exception:
            if not ahead:
                raise
            return self._read_with(wanted, [], read)
        return {id_: freeze(sample) for id_, sample in zip([*wanted, *ahead], rows, strict=True)}

    def _is_identified(self) -> bool:
        """Whether the identity on disk still describes the dataset; rows that a list got later are not in it."""
        return self._n_identified is None or self._n_identified == n_listed(self._dataset)

    def _held(self, version: str, id_: int) -> Entry | None:
        waiting = None if self._unverified is None else self._unverified.get((version, id_))
        return self._tier.get(version, id_) if waiting is None else waiting

    def _store(self, rows: dict[Key, Entry]) -> int:
        """Keep rows; how many had no room."""
        ready = rows if self._unverified is None else self._unverified.add(rows)
        return sum(not self._put(version, id_, kept, how) for (version, id_), (kept, how) in ready.items())

    def _put(self, version: str, id_: int, kept: Any, how: CloneStrategy) -> bool:
        try:
            return self._tier.put(version, id_, kept, how)
        except Exception as error:
            error.add_note(f"while caching row {id_}")
            raise

    def _count(self, hits: int = 0, **more: float) -> None:
        with self._tier._lock:
            self._hits += hits
            self._counts.update(more)
            if more.get("refused") and self._refused_since is None:
                self._refused_since = time()

    def _note_time(self, n_hits: int, seconds: float) -> None:
        self._count(timed=n_hits, hit_s=seconds)
        if len(self._accesses) >= _TRACED:
            self._trace_accesses()

    def _trace_accesses(self) -> None:
        with self._lock:
            accesses, self._accesses = self._accesses, deque(maxlen=4 * _TRACED)
            self._trace.extend(accesses)

    def _renew(self, version: str) -> None:
        """From now on hold rows of this version, where there are others in memory."""
        if self._memory is not None and self._memory.version != version:
            self._trace_accesses()
            self._trace.renew()
            self._memory.renew(version)

    # -- what it has done, and doing it beforehand

    @property
    def stats(self) -> CacheStats:
        """Counts and times of this process."""
        counts, tier = self._counts, self._tier
        return CacheStats(
            hits=self._hits,
            misses=int(counts["misses"]),
            evictions=tier.n_evicted,
            damaged=tier.n_damaged,
            refused=int(counts["refused"]),
            read_ahead=int(counts["ahead"]),
            items=len(tier),
            bytes=tier.n_bytes,
            hit_seconds=counts["hit_s"] / max(1, counts["timed"]),
            miss_seconds=counts["miss_s"] / max(1, counts["misses"]),
        )

    def suggest(self, share: float = 0.95) -> CacheAdvice:
        """Which size to choose: what this process has asked for so far, and how often caches of other sizes had hit.

        The recommended size is the smallest that gets ``share`` of the hits that room for everything would bring. The
        curve is that of LRU. It is exact up to some 60,000 accesses; beyond, it is estimated from some of the ids and
        sizes are off by a percent or two.

        >>> cached = CachedDataset(range(100), max_items=10)
        >>> rows = [cached[i % 40] for i in range(200)]
        >>> advice = cached.suggest()
        >>> cached.stats.hit_rate, advice.hit_rate(10), advice.max_items, advice.hit_rate(advice.max_items)
        (0.0, 0.0, 40, 0.8)
        """
        self._trace_accesses()
        with self._lock:
            return self._trace.advice(share, self._tier.n_bytes / max(1, len(self._tier)))

    #: When a sample was first too large for the cache, or found no room on the disk.
    _refused_since: float | None = None

    def health(self) -> Health:
        """Whether everything that was read could be kept and was found whole; how often the cache answered."""
        stats, tier = self.stats, self._tier
        found = Health((), {**asdict(stats), "hit_rate": stats.hit_rate})
        if isinstance(tier, DiskCache):
            found = found.plus(*tier.problems(), place=str(tier.path))
        if stats.refused and found.ok:
            action = "raise max_bytes, or cache smaller samples; until then they are read each time"
            found = found.plus(Problem(f"{stats.refused:,} samples could not be kept", self._refused_since, action))
        return found

    def eager(self) -> CachedDataset:
        """Read everything now, and return the dataset itself.

        Ctrl-C stops it; what was read is kept. A dataset that does not fit is a ``LimitExceeded`` as soon as a row has
        had to go for another. On a terminal a bar shows how far it is, where rich is installed.
        """
        n_rows = len(self)
        before = self._tier.n_evicted, self._counts["refused"]
        with _progress(n_rows) as advance:
            for first in range(0, n_rows, EAGER_ROWS):
                chunk = range(first, min(first + EAGER_ROWS, n_rows))
                self.__getitems__(chunk)
                if (self._tier.n_evicted, self._counts["refused"]) != before:
                    raise LimitExceeded(
                        f"rows up to {chunk[-1]:,} of {n_rows:,} do not fit into the cache of {self._tier.n_bytes:,} "
                        "bytes; raise max_bytes or max_items, or let rows be read when they are needed"
                    )
                advance(len(chunk))
        if self._unverified is not None and isinstance(self._tier, DiskCache):
            self._unverified.write(self._tier)
        return self

    # -- what a loader asks

    def snapshot_rows(self) -> FrozenRows:
        """The rows below as they are now, read through the cache."""
        rows, version = snapshot_with_version(self._dataset)
        self._renew(version)
        end = max((end for _, end in rows.spans()), default=0)

        def read(ids: Int64, below: FrozenRows) -> list[Any]:
            return self.through(version, ids.tolist(), lambda some: below.fetch(np.asarray(some, np.int64)), end=end)

        return ReadRows(rows, read)

    def __repr__(self) -> str:
        where = f"in {printable(self._tier.path)}" if isinstance(self._tier, DiskCache) else "in memory"
        return f"<{type(self).__name__} of {len(self):,} rows, {self._policy} {where}>"

    def __getstate__(self) -> dict[str, Any]:
        # What was asked for here was not asked for there.
        fresh = {"_loading": {}, "_accesses": deque(maxlen=4 * _TRACED), "_trace": AccessTrace()}
        return {**super().__getstate__(), **fresh}

    def _after_fork(self) -> None:
        super()._after_fork()
        self._loading = {}  # the threads that were reading are not in the child


def _untransformed(dataset: Any) -> Any:
    """What is below transforms, which leave rows their numbers."""
    while isinstance(dataset, TransformedDataset):
        dataset = dataset.dataset
    return dataset


def _never_changes(dataset: Any) -> bool:
    if isinstance(dataset, Dataset):
        return type(dataset).version is Dataset.version
    return not isinstance(getattr(dataset, "version", None), str) and not hasattr(dataset, "_fingerprint")


def _n_items(max_items: int | None) -> int | None:
    n_items = None if max_items is None else whole_number(max_items, 1)
    if n_items is None and max_items is not None:
        raise ConfigError(f"max_items={max_items!r}: give a whole number from 1, or None for no bound")
    return n_items


@contextmanager
def _progress(n_rows: int) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal, where rich is installed; call its result with the number of rows done."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda n: None
        return
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("caching", total=n_rows)
        yield lambda n: bar.advance(task, n)


def materialised(dataset: Dataset, if_fits: float | str) -> Dataset:
    """The rows in memory, or the dataset itself."""
    decided, name = fit(dataset, if_fits), type(dataset).__name__
    if not decided:
        logger.info("%s stays lazy: %s", name, decided)
        return dataset
    try:
        rows = CachedDataset(dataset, max_bytes=decided.allowed).eager()
    except LimitExceeded as error:
        logger.info("%s stays lazy: rows are larger than estimated (%s); %s", name, decided, error)
        return dataset
    logger.info("%s is in memory: %s", name, decided)
    return rows
