"""One seed decides everything random: each use takes a generator of its own, named by a path.

``generator(seed, "drop", 17)`` depends on the seed and the path alone: not on the process, the platform, Python's hash
seed, or what was drawn elsewhere. So a worker, a restart or a new feature never shifts the randomness of another place.
Different paths are independent, and ``"17"`` is not ``17``.

``KeyedPermutation`` is a shuffled order of ``0..n-1`` that is computed, not stored: any part of it costs what that part
costs, whatever ``n`` is. ``permute`` explains how, in ``kernels/reference.py``.
"""

from __future__ import annotations

import hashlib
import json
import operator
from typing import TYPE_CHECKING, overload

import numpy as np

from poolish.errors import ConfigError
from poolish.kernels import permute, unpermute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike, NDArray

__all__ = ["MAX_LENGTH", "KeyedPermutation", "check_seed", "generator", "key"]

#: The longest order; row ids are 64-bit and count up for ever, so this is never met in practice.
MAX_LENGTH = 2**62


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Random numbers of their own for one use, the same in every process.

    >>> generator(7, "drop", 17).integers(100, size=3)
    array([45, 31, 97])
    """
    # The bit generator is named: default_rng may become another one in a later NumPy.
    return np.random.Generator(np.random.PCG64(int.from_bytes(_digest(seed, names, 16), "little")))


def key(seed: int, *names: str | int) -> int:
    """A 64-bit number for one use, for kernels that make their own randomness from it.

    >>> key(7, "order", 0)
    14162144425750084933
    """
    return int.from_bytes(_digest(seed, names, 8), "little")


def check_seed(seed: int) -> int:
    """The seed as a plain int, if it is one from 0 to 2**64 - 1.

    >>> check_seed(np.int64(3))
    3
    """
    return _integer(seed, "seed", 2**64 - 1)


class KeyedPermutation:
    """A shuffled order of ``0..n-1``, decided by ``key`` and never held in memory.

    Indexing gives ids: one for a position, an array for a slice or for an array of positions, in its shape. Positions
    count from 0; a negative one is an error, because in an order it is a mistake. Immutable, shared freely by threads.

    >>> order = KeyedPermutation(10, key(7, "order", 0))
    >>> order[:]
    array([1, 5, 3, 8, 9, 0, 2, 7, 4, 6])
    >>> order[3], order[[3, 0]]
    (8, array([8, 1]))
    >>> order.positions([8, 1])
    array([3, 0])
    """

    __slots__ = ("_key", "_n")

    def __init__(self, n: int, key: int) -> None:
        self._n = _integer(n, "n, the length of the order,", MAX_LENGTH)
        self._key = _integer(key, "key", 2**64 - 1)

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"KeyedPermutation({self._n}, {self._key})"

    @overload
    def __getitem__(self, positions: int) -> int: ...
    @overload
    def __getitem__(self, positions: slice | ArrayLike) -> NDArray[np.int64]: ...
    def __getitem__(self, positions: int | slice | ArrayLike) -> int | NDArray[np.int64]:
        if isinstance(positions, slice):
            wanted = np.arange(*positions.indices(self._n), dtype=np.int64)
            permute(wanted, self._n, self._key, wanted)
            return wanted
        ids = self._map(permute, positions, "positions")
        return ids if ids.ndim else int(ids)

    def __iter__(self) -> Iterator[int]:
        for ids in self.chunks():
            yield from ids.tolist()

    def chunks(self, size: int = 65_536) -> Iterator[NDArray[np.int64]]:
        """The whole order, ``size`` ids at a time; the last chunk may be shorter."""
        for start in range(0, self._n, _integer(size, "size", MAX_LENGTH, least=1)):
            yield self[start : start + size]

    def positions(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Where each of ``ids`` stands in the order."""
        return self._map(unpermute, ids, "ids")

    def _map(
        self, kernel: Callable[[NDArray[np.int64], int, int, NDArray[np.int64]], None], numbers: ArrayLike, what: str
    ) -> NDArray[np.int64]:
        wanted = _int64(numbers, what)
        out = np.empty_like(wanted)
        kernel(wanted.reshape(-1), self._n, self._key, out.reshape(-1))
        return out


def _digest(seed: int, names: tuple[str | int, ...], n_bytes: int) -> bytes:
    # JSON keeps apart what would run together when joined: ("a", "b") from ("ab",), and "1" from 1.
    path = json.dumps([check_seed(seed), *map(_name, names)])
    return hashlib.blake2b(path.encode("ascii"), digest_size=n_bytes, person=b"poolish").digest()


def _name(name: str | int) -> str | int:
    if isinstance(name, str):
        return str(name)
    try:
        return _index(name)
    except TypeError:
        raise ConfigError(
            f"names of a generator are str or int, got {type(name).__name__} {name!r}; name the use in words"
        ) from None


def _integer(value: int, what: str, most: int, *, least: int = 0) -> int:
    try:
        number = _index(value)
    except TypeError:
        raise ConfigError(f"{what} must be an int, got {type(value).__name__} {value!r}") from None
    if not least <= number <= most:
        raise ConfigError(f"{what} must be from {least} to {most}, got {number}")
    return number


def _index(value: int) -> int:
    """An int from whatever is one, NumPy's too; True is an answer, not a number."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _int64(numbers: ArrayLike, what: str) -> NDArray[np.int64]:
    array = np.asarray(numbers)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, got an array of {array.dtype}")
    # A uint64 beyond int64 becomes negative here, and the kernel refuses what is negative.
    return np.ascontiguousarray(array, dtype=np.int64).reshape(array.shape)
