"""Samples in files, shared by any number of processes: one file a sample, in one folder.

    (no file) --written beside, then renamed--> <key>.sample --damaged, or evicted--> (no file)

A file's name is a hash of the dataset's identity, its version and the row's id, so another or a changed dataset asks
for other names, and what the old one left behind is evicted in time. A file's modification time decides what goes::

    fifo   when it was written
    lru    when it was last read
    lfu    how often it was read, as seconds after 1970; of equals, the one read longest ago goes first

Reading takes no lock: a file is whole or absent. Eviction takes one, and a process that finds it taken leaves the work
to the other. Each process counts what it writes and counts the folder anew after an eighth of the bound, so with n
writers the folder is at most n eighths over it.

    file = "PLS2", xxh3 of the key and all that follows (8 bytes), 1 if compressed by LZ4, length before that (8 bytes),
           the sample

The key is what the name says, so a file that came under another's name, by a copy that mixed them up, is a damaged one.

Samples as bytes and back, without code in them: what is read can only be data.

    8 bytes   length of the JSON
    JSON      the shape of the sample: numbers and text as they are, {"a": [dtype, shape]} where an array stood
    bytes     of the arrays and byte strings, one behind the other

Exactly what went in comes out, types included; what JSON and arrays cannot hold exactly is refused.

Rows that were read from data in memory go to disk once that data is known to be what it was::

    read  -->  unverified  --data as it was when the cache was opened-->  disk
                           `--changed meanwhile-->  dropped, with all that come later

The key on disk says which data a row is of, and anyone can change a list in place. So the data is hashed again after a
row was read. Where hashing takes long it is done for many rows at once, a tenth of the time at most; a process that is
killed before that loses rows that it would have cached.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, MutableSequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import torch_bridge
from poolish.concurrency import Locked
from poolish.errors import ConfigError, CorruptDataError, SchemaError, StoreFull, StoreLocked
from poolish.files import Lock, checksum, publish, read_json, sweep, write_json
from poolish.fingerprints import MAX_BYTES, MAX_VALUES, fingerprint
from poolish.health import Problem
from poolish.load.dataset import ADVICE
from poolish.load.memory_cache import CloneStrategy, check_policy
from poolish.load.views.view import CombinedView, View

_MAGIC = b"PLS2"
_HEAD = 4 + 8 + 1 + 8
_SUFFIX = ".sample"
_NOTE = "cache.json"
#: Raised whenever identities cover more than before, so that samples kept under weaker keys are never found.
_KEYS = 2
_OLD = ("poolish cache", 1)
_SECOND = 1_000_000_000


class DiskCache(Locked):
    """Samples by version and id, in a folder.

    >>> cache = DiskCache(folder / "loaves", "lru", max_items=None, max_bytes=10_000, identity="Loaves 1")
    >>> cache.put("v1", 7, {"crumb": b"open"}), cache.get("v1", 7), cache.get("v2", 7)
    (True, ({'crumb': b'open'}, None), None)
    """

    def __init__(
        self, path: str | os.PathLike[str], policy: str, *, max_items: int | None, max_bytes: int, identity: str
    ) -> None:
        super().__init__()
        check_policy(policy)
        self.path, self._identity = Path(path), identity
        self._policy, self._max_items, self._max_bytes = policy, max_items, max_bytes
        self.n_evicted = self.n_damaged = 0
        self._n_items = self._n_bytes = self._uncounted = 0
        self.path.mkdir(parents=True, exist_ok=True)
        _check_note(self.path / _NOTE)
        sweep(self.path)
        self._count()

    #: Since when the disk is full, and since when files were found damaged.
    full_since: float | None = None
    damaged_since: float | None = None

    def problems(self) -> Iterator[Problem]:
        """What is wrong with the folder."""
        if self.full_since is not None:
            yield Problem(f"{self.path}: the disk is full, so samples are not kept", self.full_since, "make room there")
        if self.n_damaged:
            action = "they were removed and are read again; check the disk"
            yield Problem(f"{self.path}: {self.n_damaged:,} files were damaged", self.damaged_since, action)

    def get(self, version: str, id_: int) -> tuple[Any, CloneStrategy] | None:
        """A sample, made anew from its file; None where there is none, or none that is whole."""
        key = _key(self._identity, version, id_)
        path = self._path(key)
        try:
            # Without waiting, should it be a pipe; it has no positions to read from, so it counts as damaged.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            sample = _parse(_read(fd), key)
            self._mark_read(fd)
        except (CorruptDataError, OSError):
            with suppress(OSError):
                os.unlink(path)
            with self._lock:
                self.n_damaged += 1
                self.damaged_since = time.time() if self.damaged_since is None else self.damaged_since
            return None
        finally:
            os.close(fd)
        return sample, None

    def has(self, version: str, id_: int) -> bool:
        """Whether there is a file for a sample, whole or not; asking is no use of it."""
        return os.path.exists(self._path(_key(self._identity, version, id_)))

    def put(self, version: str, id_: int, kept: Any, how: CloneStrategy = None) -> bool:
        """Write a sample; whether there is room for it."""
        key = _key(self._identity, version, id_)
        data = _file(encode(kept), key)
        if len(data) > self._max_bytes:
            return False
        try:
            with publish(self._path(key), durable=False) as file:
                file.write(data)
                file.flush()
                now = _SECOND if self._policy == "lfu" else time.time_ns()
                os.utime(file.fileno(), ns=(now, now))
        except StoreFull:
            self.full_since = time.time() if self.full_since is None else self.full_since
            return False
        self.full_since = None
        with self._lock:
            self._n_items, self._n_bytes = self._n_items + 1, self._n_bytes + len(data)
            self._uncounted += len(data)
            if self._is_over() or self._uncounted > self._max_bytes // 8:
                self._count()
                if self._is_over():
                    self._evict()
        return True

    def _path(self, key: str) -> str:
        return f"{self.path}/{key}{_SUFFIX}"

    def _mark_read(self, fd: int) -> None:
        if self._policy == "fifo":
            return
        now = os.fstat(fd).st_mtime_ns + _SECOND if self._policy == "lfu" else time.time_ns()
        with suppress(OSError):  # another user's file: it can be read, and goes a little early
            os.utime(fd, ns=(now, now))

    # -- bounds

    def _is_over(self) -> bool:
        return self._n_bytes > self._max_bytes or (self._max_items is not None and self._n_items > self._max_items)

    def _files(self) -> list[tuple[int, int, int, str]]:
        """Modification and change time, bytes and path of every sample."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    with suppress(OSError):  # evicted meanwhile
                        stat = entry.stat(follow_symlinks=False)
                        found.append((stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, entry.path))
        return found

    def _count(self) -> None:
        files = self._files()
        self._n_items, self._n_bytes = len(files), sum(n_bytes for _, _, n_bytes, _ in files)
        self._uncounted = 0

    def _evict(self) -> None:
        """Remove the files that the policy names until there is room, a tenth more than needed where there are many."""
        try:
            with Lock(self.path / "lock"):
                sweep(self.path)
                files = sorted(self._files())
                n_items, n_bytes = len(files), sum(size for _, _, size, _ in files)
                most_bytes = self._max_bytes - self._max_bytes // 10 if n_items >= 100 else self._max_bytes
                most_items = n_items if self._max_items is None else self._max_items - self._max_items // 10
                for _, _, size, path in files:
                    if n_bytes <= most_bytes and n_items <= most_items:
                        break
                    with suppress(FileNotFoundError):
                        os.unlink(path)
                        self.n_evicted += 1
                    n_items, n_bytes = n_items - 1, n_bytes - size
                self._n_items, self._n_bytes = n_items, n_bytes
        except StoreLocked:
            pass  # another process is at it

    def __len__(self) -> int:
        return self._n_items

    @property
    def n_bytes(self) -> int:
        """What the files take, as last counted and with what this process wrote since."""
        return self._n_bytes


def _check_note(path: Path) -> None:
    """Mark a folder as a cache, also one of poolish 0.1.0, whose samples are never found; refuse anything else."""
    note = {"format": "poolish cache", "version": _KEYS}
    found = read_json(path) if path.exists() else None
    if found == note:
        return
    if found is not None and not (isinstance(found, dict) and (found.get("format"), found.get("version")) == _OLD):
        raise ConfigError(
            f"{path.parent}: not a cache that this poolish reads ({path.name} differs); give another path"
        )
    write_json(path, note)


def _key(identity: str, version: str, id_: int) -> str:
    name = repr((_KEYS, identity, version, id_))
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _file(sample: bytes, key: str) -> bytes:
    packed = pa.compress(sample, codec="lz4", asbytes=True)
    is_packed = len(packed) < len(sample)
    rest = bytes([is_packed]) + len(sample).to_bytes(8, "little") + (packed if is_packed else sample)
    return _MAGIC + checksum(key.encode(), rest).to_bytes(8, "little") + rest


def _read(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0) if size < 1 << 30 else b"".join(iter(lambda: os.read(fd, 1 << 30), b""))


def _parse(data: bytes, key: str) -> Any:
    view = memoryview(data)
    noted = int.from_bytes(view[4:12], "little")
    if len(data) < _HEAD or data[:4] != _MAGIC or noted != checksum(key.encode(), view[12:]):
        raise CorruptDataError("a file of the cache is damaged")
    size, body = int.from_bytes(view[13:21], "little"), view[21:]
    return decode(pa.decompress(body, decompressed_size=size, codec="lz4") if data[12] else body)


_KINDS = "biufcSUmM"
_PLAIN = (str, int, float, bool, type(None))


def encode(sample: Any) -> bytes:
    """A sample as bytes.

    >>> decode(encode({"grain": ("rye", 2), "image": np.zeros((2, 3), np.uint8)}))
    {'grain': ('rye', 2), 'image': array([[0, 0, 0], [0, 0, 0]], dtype=uint8)}
    >>> encode({"grain": {1, 2}})
    Traceback (most recent call last):
    poolish.errors.SchemaError: sample['grain']: files keep dicts, lists and tuples of arrays, numbers, text, bytes and
    None, got set; convert it, or cache in memory (path=None)
    """
    buffers: list[bytes] = []
    shape = json.dumps(_shape(sample, "sample", buffers), separators=(",", ":")).encode("ascii")
    return b"".join([len(shape).to_bytes(8, "little"), shape, *buffers])


def decode(data: bytes | memoryview) -> Any:
    """The sample that ``encode`` was given; arrays are new ones, and writable."""
    view = memoryview(data)
    n_shape = int.from_bytes(view[:8], "little")
    try:
        shape = json.loads(bytes(view[8 : 8 + n_shape]))
        reader = _Reader(view[8 + n_shape :])
        sample = reader.value(shape)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise CorruptDataError(f"not a sample ({error})") from None
    return sample


def _shape(value: Any, place: str, buffers: list[bytes]) -> Any:
    """What stands for a value in the JSON; its bytes go to ``buffers``."""
    if type(value) in _PLAIN:
        return value
    if type(value) is np.ndarray and value.dtype.kind in _KINDS:
        buffers.append(value.tobytes())
        return {"a": [value.dtype.str, list(value.shape)]}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        buffers.append(value.tobytes())
        return {"n": value.dtype.str}
    if type(value) is bytes:
        buffers.append(value)
        return {"b": len(value)}
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        return {"d": [[key, _shape(item, f"{place}[{key!r}]", buffers)] for key, item in value.items()]}
    if type(value) in (list, tuple):
        items = [_shape(item, f"{place}[{i}]", buffers) for i, item in enumerate(value)]
        return {"l" if type(value) is list else "t": items}
    got = f"{type(value).__name__} of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise SchemaError(
        f"{place}: files keep dicts, lists and tuples of arrays, numbers, text, bytes and None, got {got}; "
        "convert it, or cache in memory (path=None)"
    )


class _Reader:
    """Walks the JSON and takes the bytes in the order they were written."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._offset = view, 0

    def value(self, shape: Any) -> Any:
        if not isinstance(shape, dict):
            return shape
        ((tag, inside),) = shape.items()
        if tag == "a":
            dtype = np.dtype(inside[0])
            n_bytes = dtype.itemsize * math.prod(inside[1])
            return np.frombuffer(self._take(n_bytes), dtype).reshape(inside[1]).copy()
        if tag == "n":
            dtype = np.dtype(inside)
            return np.frombuffer(self._take(dtype.itemsize), dtype)[0]
        if tag == "b":
            return bytes(self._take(inside))
        if tag == "d":
            return {key: self.value(item) for key, item in inside}
        items: Iterator[Any] = (self.value(item) for item in inside)
        if tag == "l":
            return list(items)
        if tag == "t":
            return tuple(items)
        raise ValueError(f"tag {tag!r}")

    def _take(self, n_bytes: int) -> memoryview:
        begin, self._offset = self._offset, self._offset + n_bytes
        if self._offset > len(self._view):
            raise ValueError("its bytes are cut off")
        return self._view[begin : self._offset]


# Rows on their way to the disk -------------------------------------------------------------------------------------

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
    if isinstance(dataset, CombinedView):
        return [data for part in dataset.datasets for data in plain_data(part)]
    torch = torch_bridge.loaded()
    tensors = () if torch is None else (torch.Tensor, torch.utils.data.TensorDataset)
    return [dataset] if isinstance(dataset, (MutableSequence, tuple, np.ndarray, *tensors)) else []


def n_listed(dataset: Any) -> int:
    """How many rows are in lists, which can grow, below any views."""
    return sum(len(data) for data in plain_data(dataset) if isinstance(data, MutableSequence))
