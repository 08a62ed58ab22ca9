"""MemmapBuffer: an array in a file that grows at the end, without moving and without being read.

A file is mapped through one range of addresses that stays put while the file grows. Python's own ``mmap`` maps the
current length, so every growth would be a new map at a new address. The system itself can map past the end, and the
part behind it becomes usable as the file grows:

    addresses   |==== rows ====|---- allocated, free ----|..... reserved: no memory, no disk, not to be touched .....|
    file        |==== rows ====|---- allocated, free ----|

Touching the reserved part is SIGBUS, so arrays over it are never handed out. A file that outgrows its reservation is
mapped a second time, twice as large; arrays over the first map stay valid, because both show the same file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from poolish.arguments import check_whole
from poolish.errors import ConfigError, CorruptDataError, NumberTooLarge, SchemaError
from poolish.files import allocate, grow, local_path, open_regular, sync
from poolish.printable import printable

#: A file grows by a multiple of this.
CHUNK_BYTES = 1 << 20


class MemmapBuffer:
    """A growing memory-mapped array: rows of one dtype and shape, appended at the end.

    Arrays that indexing gave stay valid and show the same rows however far the buffer grows. The disk's space is taken
    before it is written to, so a full disk is a ``StoreFull`` in ``append``, which then changed nothing. Without a path
    the file has no name and goes with the process.

    With a path, the file holds the rows and nothing else once ``close`` has cut it (``np.fromfile`` reads it); while it
    is open, or after a kill, it is longer, with zeros at the end. ``length`` then says how many rows count.

    >>> buffer = MemmapBuffer(dtype="float32", shape=(2,))
    >>> buffer.append([[0.5, 1.0], [2.0, 4.0]])
    0
    >>> early = buffer[0]
    >>> buffer.append(np.ones((100_000, 2), np.float32))
    2
    >>> len(buffer), early, buffer[-1]
    (100002, array([0.5, 1. ], dtype=float32), array([1., 1.], dtype=float32))
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        dtype: DTypeLike = np.int64,
        shape: Sequence[int] = (),
        length: int | None = None,
        chunk_rows: int | None = None,
        mode: str = "a",
    ) -> None:
        if mode not in ("a", "r") or (mode == "r" and path is None):
            raise ConfigError(f"mode {mode!r}: 'a' to append, or 'r' to read a file that is there")
        self.dtype = _plain(dtype)
        self.shape = _sizes(shape)
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        if self.row_bytes == 0:
            raise ConfigError(f"shape {self.shape}: a row needs at least one number")
        if chunk_rows is None:
            chunk_rows = max(1, CHUNK_BYTES // self.row_bytes)
        self._chunk = check_whole(chunk_rows, "chunk_rows", unit="rows") * self.row_bytes
        if length is not None:
            length = check_whole(length, "length", least=0, unit="rows")
        self._is_named = path is not None
        self._file = _nameless() if path is None else MappedFile(_local(path), mode=mode)
        self._length = _length_of(self._file, self.row_bytes, length)
        self._rows = self._view()

    @property
    def path(self) -> Path | None:
        """Where the file is; None for one without a name."""
        return self._file.path if self._is_named else None

    @property
    def array(self) -> NDArray[Any]:
        """All rows there are now, as one array over the file."""
        return self._rows[: self._length]

    @property
    def capacity(self) -> int:
        """How many rows fit before the file grows again."""
        return len(self._rows)

    def append(self, rows: ArrayLike) -> int:
        """Copy one row, or an array of rows, to the end; the number of the first of them.

        What the dtype cannot hold exactly is refused, and so is another shape.
        """
        if self._file.fd < 0:
            raise ConfigError(f"{self._file.path}: this buffer is closed; open it again")
        if not self._file.is_writable:
            raise ConfigError(f"{self._file.path}: opened for reading; open it with mode='a' to append")
        new = _exactly(rows, self.dtype)
        if new.shape == self.shape or new.shape == (0,):
            new = new.reshape(-1, *self.shape)
        if new.shape[1:] != self.shape or new.ndim != len(self.shape) + 1:
            raise SchemaError(f"rows here have the shape {self.shape}, got an array of {new.shape}; reshape it first")
        start = self._length
        self.reserve(start + len(new))
        self._rows[start : start + len(new)] = new
        self._length = start + len(new)
        return start

    def reserve(self, n_rows: int) -> None:
        """Have room for ``n_rows`` in all; the disk's space is taken now, in whole chunks."""
        n_rows = check_whole(n_rows, "n_rows", least=0, unit="rows")
        if n_rows > len(self._rows):
            self._file.grow(-(-n_rows * self.row_bytes // self._chunk) * self._chunk)
            self._rows = self._view()

    @property
    def room(self) -> NDArray[Any]:
        """Everything the file has space for, rows and what is free behind them."""
        return self._rows

    @property
    def file(self) -> MappedFile:
        """The file underneath."""
        return self._file

    def refresh(self) -> None:
        """Reach as far as the file does now, after another process has made it longer."""
        self._file.refresh()
        self._rows = self._view()

    def flush(self) -> None:
        """Wait until the disk has every row."""
        self._file.sync()

    def close(self, *, cut: bool = True) -> None:
        """Close the file, truncated to its rows unless ``cut`` is false; arrays from before stay valid."""
        if self._file.fd < 0:
            return
        if cut and self._is_named and self._file.is_writable:
            os.ftruncate(self._file.fd, self._length * self.row_bytes)
        self._file.close()
        self._rows = self._view()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: Any) -> Any:
        return self.array[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._is_named or self._file.fd < 0:
            raise TypeError("a buffer without a name stays in its process; give it a path, and open that elsewhere")
        return _reopen, (str(self._file.path.absolute()), self.dtype.str, self.shape, self._length)

    def __repr__(self) -> str:
        where = f" in {printable(self._file.path)}" if self._is_named else ""
        return f"<MemmapBuffer of {self._length:,} rows of {self.dtype}{list(self.shape) if self.shape else ''}{where}>"

    def _view(self) -> NDArray[Any]:
        whole = len(self._file.bytes) // self.row_bytes
        return self._file.bytes[: whole * self.row_bytes].view(self.dtype).reshape(whole, *self.shape)


def _reopen(path: str, dtype: str, shape: tuple[int, ...], length: int) -> MemmapBuffer:
    """What a pickled buffer becomes in another process: the same rows, to read."""
    return MemmapBuffer(path, dtype=dtype, shape=shape, length=length, mode="r")


def _plain(dtype: DTypeLike) -> np.dtype[Any]:
    chosen = np.dtype(dtype)
    if chosen.kind not in "biufcmMV" or chosen.hasobject or chosen.itemsize == 0:
        raise ConfigError(f"dtype {chosen}: an array in a file holds plain numbers; choose a numeric dtype")
    return chosen


def _local(path: str | os.PathLike[str]) -> Path:
    return local_path(path, "MemmapBuffer path", instead="the sources of a recipe")


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    is_listed = isinstance(shape, Sequence) and not isinstance(shape, str)
    if not is_listed or not all(isinstance(size, (int, np.integer)) and size > 0 for size in shape):
        raise ConfigError(f"shape {shape!r}: give the sizes of a row, each above 0, or () for single numbers")
    return tuple(int(size) for size in shape)


def _nameless() -> MappedFile:
    with tempfile.TemporaryFile(prefix="poolish-") as file:
        return MappedFile(Path(str(file.name)), mode="a", fd=os.dup(file.fileno()))


def _length_of(file: MappedFile, row_bytes: int, expected: int | None) -> int:
    whole, rest = divmod(file.size, row_bytes)
    if expected is None and rest:
        raise CorruptDataError(f"{file.path}: {file.size:,} bytes are no whole rows of {row_bytes}; pass length=")
    if expected is not None and not 0 <= expected <= whole:
        raise CorruptDataError(f"{file.path}: {expected:,} rows were expected, {whole:,} are there; restore the file")
    return whole if expected is None else expected


def _exactly(rows: ArrayLike, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The rows in another dtype, if every number stays what it is."""
    try:
        given = np.asarray(rows)
    except ValueError as error:
        raise SchemaError(f"rows that are no array ({error}); make them alike before append") from None
    if isinstance(rows, np.ma.MaskedArray) and np.ma.is_masked(rows):
        raise SchemaError("masked values have no number; fill them before append")
    if given.dtype == dtype or (isinstance(rows, (list, tuple)) and not rows):
        return given.astype(dtype, copy=False)
    if given.dtype.kind == "O" and all(isinstance(number, int) for number in given.ravel().tolist()):
        raise NumberTooLarge(f"{dtype} cannot hold {max(given.ravel().tolist(), key=abs)}; convert it before append")
    are_numbers = given.dtype.kind in "biufc" and dtype.kind in ("c" if given.dtype.kind == "c" else "biufc")
    if not are_numbers and given.dtype.kind != dtype.kind:
        raise SchemaError(f"{given.dtype} values do not become {dtype}; convert them before append")
    with np.errstate(all="ignore"):
        cast = given.astype(dtype)
        back = cast.astype(given.dtype)
    same = (back == given) | ((back != back) & (given != given))
    if given.dtype.kind in "iuf" and dtype.kind in "iuf":
        same &= (cast < 0) == (given < 0)  # a cast there and back may wrap twice: -1 as uint64
    if not np.all(same):
        refused = NumberTooLarge if given.dtype.kind in "iu" else SchemaError
        raise refused(f"{dtype} cannot hold {given[~same].ravel()[0]} exactly; convert it before append")
    return cast


# The file underneath ---------------------------------------------------------------------------------------------


Bytes = NDArray[np.uint8]

#: Addresses reserved for a file. 128 TiB are there for a process; only what is touched costs memory.
RESERVED = 64 << 30

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = getattr(_libc, "mmap64", None) or _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """A file and its bytes in memory; ``bytes`` reaches as far as the file is long.

    >>> file = MappedFile(folder / "lane", mode="a")
    >>> file.grow(8192)
    >>> file.bytes[:5] = list(b"flour")
    >>> (folder / "lane").read_bytes()[:6]
    b'flour\\x00'
    """

    def __init__(self, path: Path, *, mode: str, reserved: int | None = None, fd: int | None = None) -> None:
        self.path = path
        self.is_writable = mode == "a"
        self._reserved = RESERVED if reserved is None else reserved
        self.fd = _open(path, self.is_writable) if fd is None else fd
        self._close = weakref.finalize(self, os.close, self.fd)  # also for those that are never closed
        self._range: Bytes = np.empty(0, np.uint8)
        self.bytes: Bytes = self._range
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """How long the file is now."""
        return os.fstat(self.fd).st_size

    def refresh(self) -> None:
        """Reach as far as the file does now."""
        size = self.size
        if size > len(self._range):
            self._range = _map(self.fd, size, max(self._reserved, 2 * size), self.is_writable, self.path)
        self.bytes = self._range[:size]

    def grow(self, size: int) -> None:
        """Make the file at least ``size`` long, over space that the disk really has, or raise ``StoreFull``."""
        if size > len(self.bytes):
            grow(self.fd, size)
            self.refresh()

    def secure(self, start: int) -> None:
        """Make sure that the space behind ``start`` is really there, also in a file that was copied with holes."""
        allocate(self.fd, start, len(self.bytes))

    def sync(self) -> None:
        """Wait until the disk has every byte, or raise ``DurabilityLost``, which is final."""
        if sys.platform != "linux" and len(self.bytes):  # there fsync need not know what was written through a map
            _libc.msync(self._range.ctypes.data, len(self.bytes), getattr(mmap, "MS_SYNC", 0x10))
        sync(self.fd, self.path)

    def close(self) -> None:
        """Close the file; arrays over it stay valid."""
        self._close()
        self.fd = -1
        self.bytes = self._range = np.empty(0, np.uint8)


def _open(path: Path, is_writable: bool) -> int:
    flags = os.O_RDWR | os.O_CREAT if is_writable else os.O_RDONLY
    return open_regular(path, flags, one_name=is_writable)


def _map(fd: int, needed: int, reserved: int, is_writable: bool, path: Path) -> Bytes:
    protection = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
    while True:
        address = _mmap(None, reserved, protection, mmap.MAP_SHARED, fd, 0)
        if address != _FAILED:
            return _array(address, reserved, is_writable)
        # A limit on addresses: take less, down to what is needed now.
        if reserved <= needed:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(path))
        reserved = max(needed, reserved // 2)


def _array(address: int, n_bytes: int, is_writable: bool) -> Bytes:
    owner: Any = (ctypes.c_uint8 * n_bytes).from_address(address)
    unmap = weakref.finalize(owner, _libc.munmap, address, n_bytes)
    unmap.atexit = False  # arrays may be read until the very end
    view = memoryview(owner)
    return np.frombuffer(view if is_writable else view.toreadonly(), np.uint8)
