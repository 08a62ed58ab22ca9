"""Batches as a sequence of row numbers: which rows go together, without reading one of them.

``batches[k]`` is computed from k, the seed and the epoch. Nothing is remembered between two calls, so any batch can be
asked for at any time, in any process, and a run that resumes at batch k needs k alone.

Stratified batches hold every class in proportion, and so does every run of batches from the start.

A class with a share of 2.3 rows a batch has 2 or 3 rows in each of them, and after ten batches exactly 23. The whole
part (2) is dealt to every batch. What is left (0.3) makes a *turn* now and then: the j-th turn of a class with
share w has a window of batches ``[(j - 1) / w, j / w)``, rounded outwards, and keeping inside its windows is exactly
what keeps a class within one row of its proportion. Dealing out the largest remainders, by batches or from the start,
does not keep all windows (a class may even have to give a row back); serving the turns in this order does, always::

    the window that closes first
    then a window that overlaps the next of its class (using its last batch would narrow the next window)
    then, of classes with a share of a half or more, the one whose overlapping windows go on for longest

This is proportionate fairness, known from sharing processors among periodic tasks (the rule is called PD2, and
Srinivasan and Anderson proved that it never misses a window). Whole numbers throughout: no share is ever rounded.

``SampledBatches`` are those of an epoch that is neither all rows nor ready-made batches::

    weights   an epoch of n draws with replacement, each row as often as its weight says
    sampler   the row numbers that an iterable gives, in its order

Both are drawn as a whole when the epoch begins, from the loader's seed and the epoch alone, and cut into batches. So
any batch can be asked for, on any rank, and a state needs the number of the batch. It also holds a checksum of the
draw: weights or a sampler that give something else when the run resumes are an error, not another order.
"""

from __future__ import annotations

import copy
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from poolish import seeds, torch_bridge
from poolish.errors import ConfigError, ResumeError
from poolish.files import checksum_hex
from poolish.load.dataset import samples, whole_number
from poolish.load.frozen import Int64
from poolish.load.views.single import progress_at
from poolish.rows.snapshot import Snapshot
from poolish.seeds import KeyedPermutation, check_seed, key

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Batches(ABC):
    """Row numbers 0 to n - 1, cut into batches, each row in one of them; the last batch may be short.

    ``set_epoch`` chooses the order of another epoch; an iteration keeps the epoch that it began with.
    """

    def __init__(self, n: int | Sized, batch_size: int, *, drop_last: bool = False) -> None:
        self.n = _whole(len(n) if isinstance(n, Sized) else n, "n, the number of rows,", least=0)
        self.batch_size = _whole(batch_size, "batch_size", least=1)
        self.drop_last = drop_last
        self.epoch = 0

    @abstractmethod
    def _rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """The rows at the positions ``start`` to ``stop - 1`` of the epoch; these are always those of one batch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; the same epoch has the same batches each time."""
        self.epoch = _whole(epoch, "epoch", least=0)

    def __len__(self) -> int:
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    def __getitem__(self, k: int) -> NDArray[np.int64]:
        """The row numbers of batch ``k``; a negative one counts from the end."""
        try:
            number = operator.index(k)
        except TypeError:
            raise TypeError(f"batches are chosen by whole numbers, got {type(k).__name__} {k!r}") from None
        if not -len(self) <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)} batches")
        start = (number % len(self)) * self.batch_size
        return self._rows(start, min(start + self.batch_size, self.n))

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        batches = copy.copy(self)
        return (batches[k] for k in range(len(batches)))

    def __repr__(self) -> str:
        last = f"{self._n_last} in the last, " if self._n_last != self.batch_size and len(self) else ""
        return f"<{type(self).__name__}: {len(self):,} of {self.batch_size} rows, {last}epoch {self.epoch}>"

    @property
    def _n_last(self) -> int:
        return min(self.n, self.batch_size * len(self)) - self.batch_size * (len(self) - 1)


class SequentialBatches(Batches):
    """The rows in their order, the same in every epoch.

    >>> batches = SequentialBatches(7, 3)
    >>> batches
    <SequentialBatches: 3 of 3 rows, 1 in the last, epoch 0>
    >>> batches[1], batches[-1]
    (array([3, 4, 5]), array([6]))
    """

    def __init__(self, n: int | Sized, batch_size: int, drop_last: bool = False) -> None:
        super().__init__(n, batch_size, drop_last=drop_last)

    def _rows(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop, dtype=np.int64)


class RandomBatches(Batches):
    """The rows in a shuffled order, another one in each epoch; it is computed, so 10^12 rows take no memory.

    ``drop_last`` leaves out the last, shorter batch: other rows in each epoch.

    >>> batches = RandomBatches(7, 3, seed=1)
    >>> [rows.tolist() for rows in batches]
    [[3, 1, 4], [5, 6, 0], [2]]
    >>> batches.set_epoch(1)
    >>> batches[0]
    array([5, 2, 0])
    """

    def __init__(self, n: int | Sized, batch_size: int, seed: int = 0, drop_last: bool = False) -> None:
        super().__init__(n, batch_size, drop_last=drop_last)
        self.seed = check_seed(seed)

    def _rows(self, start: int, stop: int) -> NDArray[np.int64]:
        return KeyedPermutation(self.n, key(self.seed, "batches", self.epoch))[start:stop]


class StratifiedBatches(Batches):
    """Every batch has each class in proportion, rounded up or down, and so has every run of batches from the start.

    ``labels`` holds the class of each row: numbers, text, or anything else that can be a key of a dict. Rows are
    shuffled within their class and within their batch. How many rows of a class are in batch k is the same in every
    epoch, which of them they are is not. Two numbers a row are kept in memory.

    >>> labels = ["cat", "dog", "cat", "dog", "cat", "cat"]
    >>> [[labels[row] for row in rows] for rows in StratifiedBatches(labels, 3)]
    [['cat', 'dog', 'cat'], ['cat', 'cat', 'dog']]
    """

    def __init__(self, labels: Iterable[Any], batch_size: int, seed: int = 0) -> None:
        codes = _codes(labels)
        super().__init__(len(codes), batch_size)
        self.seed = check_seed(seed)
        self._counts = np.bincount(codes)
        self._firsts = np.cumsum(self._counts) - self._counts
        # Both are grouped by class: place p of the one is a row, place p of the other the position where it comes up.
        self._rows_by_class = np.argsort(codes, kind="stable")
        positions_by_class = np.argsort(proportional(self._counts, self.batch_size), kind="stable")
        self._places = np.empty_like(positions_by_class)
        self._places[positions_by_class] = np.arange(self.n)

    def _rows(self, start: int, stop: int) -> NDArray[np.int64]:
        places = np.sort(self._places[start:stop])
        classes = np.searchsorted(self._firsts, places, side="right") - 1
        epoch_key = key(self.seed, "stratified", self.epoch)
        for begin, end in _runs(classes):
            c, first = classes[begin], self._firsts[classes[begin]]
            # Permutations of keys that count up are unrelated; a digest for each class would take half of the time.
            shuffled = KeyedPermutation(self._counts[c], (epoch_key + int(c)) % 2**64)
            # Within a batch the rows of a class are neighbours, so their places are a slice.
            places[begin:end] = first + shuffled[places[begin] - first : places[end - 1] - first + 1]
        mixed = KeyedPermutation(len(places), key(self.seed, "stratified batch", self.epoch, start // self.batch_size))
        return self._rows_by_class[places[mixed[:]]]


def _runs(classes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where equal neighbours begin and end."""
    starts = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(classes)]
    return pairwise(starts)


def _codes(labels: Iterable[Any]) -> NDArray[np.int64]:
    """Each label as a number, counted in the order of first appearance, so a list and an array mean the same."""
    array = np.asarray(labels) if hasattr(labels, "__array__") else None
    if array is not None and array.ndim != 1:
        raise ConfigError(f"labels must be one for each row, got an array of shape {array.shape}")
    known: dict[Any, int]
    if array is not None and array.dtype != object:
        names, firsts, codes = np.unique(array, return_index=True, return_inverse=True)
        known = dict.fromkeys(names.tolist(), 0)
        codes = np.argsort(np.argsort(firsts))[codes]
    else:
        known = {}
        codes = np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)
    if any(label != label for label in known):
        raise ConfigError("labels: NaN is no class, because it is not equal to itself; give those rows a label")
    return codes.astype(np.int64)


def _whole(value: Any, what: str, *, least: int) -> int:
    number = whole_number(value, least)
    if number is None:
        raise ConfigError(f"{what} must be a whole number from {least} up, got {type(value).__name__} {value!r}")
    return number


#: When the window closes, its two tie-breaks, the class, the number of the turn: the least is served first.
_Turn = tuple[int, bool, int, int, int]


def proportional(counts: NDArray[np.int64], batch_size: int) -> NDArray[np.int32]:
    """The class at each position of an epoch with ``counts[c]`` rows of class ``c``; the last batch may be short.

    >>> proportional(np.array([6, 3, 1]), 4).tolist()
    [0, 0, 1, 0, 0, 0, 1, 2, 0, 1]
    """
    n_rows, classes = int(counts.sum()), np.arange(len(counts), dtype=np.int32)
    n_full = n_rows // batch_size
    plan = np.empty(n_rows, np.int32)
    full = plan[: n_full * batch_size].reshape(n_full, batch_size)
    if n_full:
        whole, rest = np.divmod(counts * batch_size, n_rows)
        dealt = np.repeat(classes, whole)
        n_turns = batch_size - len(dealt)
        turns = chain.from_iterable(_turns(rest.tolist(), n_rows, n_turns, n_full))
        full[:, : len(dealt)] = dealt
        full[:, len(dealt) :] = np.fromiter(turns, np.int32, n_full * n_turns).reshape(n_full, n_turns)
    # Before it every class was within one row of its proportion, and at the end it is exact: so the rest is as well.
    plan[full.size :] = np.repeat(classes, counts - np.bincount(full.ravel(), minlength=len(counts)))
    return plan


def _turns(rests: list[int], n_rows: int, n_turns: int, n_batches: int) -> Iterator[list[int]]:
    """For each batch the ``n_turns`` classes whose turn it is; class c has a share of ``rests[c] / n_rows`` turns."""
    ready = [_turn(c, 1, rest, n_rows) for c, rest in enumerate(rests) if rest]
    heapify(ready)
    later: dict[int, list[_Turn]] = {}
    for batch in range(n_batches):
        for turn in later.pop(batch, ()):
            heappush(ready, turn)
        served = [heappop(ready) for _ in range(n_turns)]
        for *_, c, number in served:
            opens = max(number * n_rows // rests[c], batch + 1)
            later.setdefault(opens, []).append(_turn(c, number + 1, rests[c], n_rows))
        yield [turn[3] for turn in served]


def _turn(c: int, number: int, rest: int, n_rows: int) -> _Turn:
    closes = _ceil(number * n_rows, rest)
    is_apart = number * n_rows % rest == 0
    overlap_ends = 0
    if 2 * rest >= n_rows:
        idle = n_rows - rest
        overlap_ends = _ceil(_ceil(closes * idle, n_rows) * n_rows, idle)
    return closes, is_apart, -overlap_ends, c, number


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


#: From the rows of an epoch and its number to the numbers of the rows that it is made of.
Draw = Callable[[Any, int], Int64]

_ASKED = ("rows", "epoch", "progress")


class SampledBatches:
    """Batches of the rows that ``draw`` gives for an epoch; the last one may be short."""

    def __init__(self, draw: Draw, batch_size: int, *, drop_last: bool, world_size: int) -> None:
        self._draw, self._batch_size = draw, batch_size
        #: With drop_last all ranks have as many batches, all of them full.
        self._multiple = world_size if drop_last else 0
        self._numbers = np.empty(0, np.int64)
        self.checksums: dict[int, str] = {}

    def draw(self, rows: Any, epoch: int) -> None:
        """Begin an epoch."""
        self._numbers = self._draw(rows, epoch)
        self.checksums = {**self.checksums, epoch: checksum_hex(str(self._batch_size).encode(), self._numbers.data)}

    def __len__(self) -> int:
        n_rows, size = len(self._numbers), self._batch_size
        return n_rows // size // self._multiple * self._multiple if self._multiple else -(-n_rows // size)

    def __getitem__(self, k: int) -> Int64:
        return self._numbers[k * self._batch_size : (k + 1) * self._batch_size]

    def check_same(self, epoch: int, expected: str | None) -> None:
        """Refuse a state of another draw of the epoch."""
        if expected is not None and expected != self.checksums.get(epoch):
            raise ResumeError(
                f"the weights or the sampler draw other rows for epoch {epoch} than when the state was taken, or the "
                "batch size is another; weights that change while training belong into the checkpoint: restore them "
                "before load_state_dict(), and give a sampler of your own a set_epoch(epoch) that decides its order"
            )


# Weights ------------------------------------------------------------------------------------------------------------


def weighted(weights: Any, seed: int, epochs: int | None) -> Draw:
    """As many draws as there are rows, with replacement, each row in proportion to its weight."""
    of_epoch = _weights_of(weights, epochs)

    def draw(rows: Any, epoch: int) -> Int64:
        found = _check_weights(of_epoch(rows, epoch), len(rows))
        ends = np.cumsum(found)
        points = seeds.generator(seed, "weights", epoch).random(len(found)) * ends[-1:]
        # Rounding may carry a point to the very end: that is the last row with a weight.
        last = np.flatnonzero(found)[-1:]
        numbers: Int64 = np.minimum(np.searchsorted(ends, points, side="right"), last).astype(np.int64)
        return numbers

    return draw


def _weights_of(weights: Any, epochs: int | None) -> Callable[[Any, int], Any]:
    if isinstance(weights, str):
        return lambda rows, epoch: _column(rows, weights)
    if not callable(weights):
        fixed = np.array(weights, np.float64)  # as they are now
        return lambda rows, epoch: fixed
    names = inspect.signature(weights).parameters
    if not names or any(name not in _ASKED for name in names):
        raise ConfigError(
            f"weights: the function takes {', '.join(names) or 'nothing'}; it may name {', '.join(_ASKED)}"
        )
    if "progress" in names and epochs is None:
        raise ConfigError("weights: the function asks for progress; say over how many epochs it goes: epochs=...")

    def called(rows: Any, epoch: int) -> Any:
        given = {"rows": rows, "epoch": epoch, "progress": progress_at(epoch, epochs)}
        return weights(**{name: given[name] for name in names})

    return called


def _column(rows: Any, name: str) -> Any:
    if isinstance(rows, Snapshot):
        table = rows.to_arrow()
        if name not in table.column_names:
            raise ConfigError(f"weights={name!r}: there is no such column, only {table.column_names}")
        return table[name].to_numpy()
    try:
        return [_value(sample, name) for sample in samples(rows, range(len(rows)))]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"weights={name!r}: the samples have no such column ({error}); pass an array") from None


def _value(sample: Any, name: str) -> Any:
    return sample[name] if hasattr(sample, "keys") else getattr(sample, name)


def _check_weights(weights: Any, n_rows: int) -> Any:
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"weights are numbers, one for each row: {error}") from None
    if found.shape != (n_rows,):
        raise ConfigError(f"weights: one for each of {n_rows:,} rows, got an array of shape {found.shape}")
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(wrong):
        raise ConfigError(f"weights: finite and 0 or more, row {wrong[0]} has {found[wrong[0]]}")
    if n_rows and not found.any():
        raise ConfigError(f"weights: all {n_rows:,} are 0, so no row can be drawn")
    return found


# Samplers -----------------------------------------------------------------------------------------------------------


def sampled(sampler: Any, seed: int) -> Draw:
    """The row numbers of a sampler, in its order, repeatable where it draws from torch."""
    if not hasattr(sampler, "__iter__"):
        raise ConfigError(f"sampler={sampler!r}: an iterable of row numbers, such as a sampler of torch")
    if iter(sampler) is sampler:
        raise ConfigError("sampler: an iterator gives its numbers once; pass a list, or an object with __iter__")
    if getattr(sampler, "num_replicas", 1) > 1:
        raise ConfigError(
            f"sampler: {type(sampler).__name__} deals rows to {sampler.num_replicas} ranks, and so does the loader, by "
            "rank= and world_size=; pass a sampler of all rows, or shuffle=True"
        )

    def draw(rows: Any, epoch: int) -> Int64:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with _torch_seeded(seed, epoch, getattr(sampler, "generator", None)):
            numbers = list(sampler)
        try:
            found = np.asarray(numbers if numbers else [], None if numbers else np.int64)
        except ValueError:
            found = np.empty((0, 0))
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise ConfigError(
                f"sampler: {type(sampler).__name__} gives {type(numbers[0]).__name__}, and not row numbers; "
                "whole batches are for batches="
            )
        return found.astype(np.int64)

    return draw


@contextmanager
def _torch_seeded(seed: int, epoch: int, generator: Any) -> Iterator[None]:
    """Torch's samplers draw from its global state or from a generator: both begin where the seed and epoch say."""
    torch = torch_bridge.loaded()
    if torch is None:
        yield
        return
    own = generator if isinstance(generator, torch.Generator) else None
    key = seeds.key(seed, "sampler", epoch, own.initial_seed() if own is not None else 0) % 2**63
    before = None if own is None else own.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(key)
        if own is not None:
            own.manual_seed(key)
        try:
            yield
        finally:
            if own is not None:
                own.set_state(before)
