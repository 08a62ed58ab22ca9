"""Several datasets as one: behind each other, or mixed in proportions.

    CompositeDataset([a, b])                    a_0 a_1 a_2 ... b_0 b_1 ...      found by bisection
    CompositeDataset([a, b], weights=[2, 1])    a b a  a b a  a b a ...          computed, see ``Mixture``

A loader reads a concatenation by ids that say which part a row is from: the part in the upper 15 bits, the row's own
id in the lower 48. So parts may grow, and lose rows, each on its own.

Which part of a mixture comes next: row j of a part with weight w is due at the moment (2j + 1) / w, and rows come in
the order of their moments (of equal moments, the earlier part first). Then the first n places always hold as many rows
of each part as the apportionment of Webster and Sainte-Lague gives n seats: no other choice of whole numbers moves any
two parts closer to their exact shares, and for two or three parts none is ever off by a whole row.

The order is computed, not stored. Up to a moment t a part has had floor(w t / 2 + 1/2) rows, so we know all the counts
a little before place n, within as many places as there are parts, and walk from there::

    counts at a moment just before place n  --  at most n_parts steps, each to the part that is due next  -->  place n

All numbers are whole: weights are taken as the decimals that were written, so nothing is rounded at any length.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from poolish import seeds
from poolish.errors import ConfigError
from poolish.files import checksum_hex
from poolish.fixed import fixed_parameters
from poolish.load.dataset import check_index, identity_of, samples
from poolish.load.frozen import (
    FIXED,
    LOCAL,
    SHARED,
    FrozenRows,
    Int64,
    Mask,
    Span,
    branch_below,
    content_of,
    fixed_by,
    has_branch,
    ids_of,
    members_of,
    snapshot_rows,
)
from poolish.load.views.view import CombinedView, Numbering, ReindexedRows, check_epoch, check_sources
from poolish.seeds import KeyedPermutation

if TYPE_CHECKING:
    import pyarrow as pa

_ID_BITS = 48
_LOW = (1 << _ID_BITS) - 1
_MAX_SPANS = 1 << 15
_STOPS = ("first", "all")

Scalar = int | np.integer[Any]
Numbers = Scalar | Sequence[int] | Int64


@fixed_parameters("make a new CompositeDataset", stored=False)
class CompositeDataset(CombinedView):
    """The samples of several datasets, which may be anything with a length and an index.

    Without ``weights`` the parts stand behind each other; their lengths are asked for with the length
    (or for a row beyond it), and rows are found by bisection.

    With ``weights`` they are mixed: every beginning has each part in its proportion, as closely as whole numbers
    allow, and each pass takes other rows of the parts, in an order that the seed and the epoch decide. Nothing comes
    twice: the pass ends before the first part would have to repeat. With ``stop="all"`` it goes on until all rows of
    all parts have come, and the smaller parts repeat.

    >>> flours = CompositeDataset([["rye", "wheat"], ["spelt"]])
    >>> len(flours), flours[2], flours.__getitems__([0, -1])
    (3, 'spelt', ['rye', 'spelt'])
    >>> mixed = CompositeDataset([range(100), "abcdef"], weights=[2, 1])
    >>> len(mixed), "".join(str(row) for row in mixed if isinstance(row, str))
    (19, 'baecdf')
    >>> mixed
    <CompositeDataset of 19 rows, 2 parts mixed 2:1>
    """

    def __init__(
        self, datasets: Sequence[Any], weights: Sequence[float] | None = None, seed: int = 0, stop: str = "first"
    ) -> None:
        super().__init__(check_sources(datasets, "datasets"))
        if stop not in _STOPS:
            raise ConfigError(f"stop={stop!r}: choose one of {', '.join(map(repr, _STOPS))}")
        if weights is not None and len(weights) != len(self._parts):
            raise ConfigError(f"weights: one for each of {len(self._parts)} datasets, got {len(weights)}")
        # Plain numbers, because the text of a mixture is part of a loader's state.
        self._weights = None if weights is None else [w.item() if isinstance(w, np.generic) else w for w in weights]
        self._mixture = None if weights is None else Mixture(weights)
        self._seed, self._epoch, self._stop = seeds.check_seed(seed), 0, stop
        self._ends: list[int] = []

    @property
    def choice(self) -> str:
        """How parts are mixed."""
        return "" if self._weights is None else f"mixed {self._weights} {self._seed} {self._stop}"

    def __len__(self) -> int:
        if self._mixture is not None:
            return n_mixed(self._mixture, [len(part) for part in self._parts], self._stop)
        return self._new_ends()[-1]

    def __getitem__(self, index: int) -> Any:
        part, row = self._bisect(self._ends, index) if self._mixture is None else self._find([index])[0]
        return self._parts[part][row]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """One call for each part."""
        return grouped(self._find(indices), lambda part, rows: samples(self._parts[part], rows))

    @overload
    def global_to_local(self, index: Scalar) -> Place: ...
    @overload
    def global_to_local(self, index: Sequence[int] | Int64) -> tuple[Int64, Int64]: ...
    def global_to_local(self, index: Numbers) -> Place | tuple[Int64, Int64]:
        """Which dataset a row is from, and its number there; of several rows, two arrays in the same shape.

        Of a mixture, this is the pass of the current epoch (``set_epoch``).

        >>> flours = CompositeDataset([["rye", "wheat"], ["spelt"]])
        >>> flours.global_to_local(2), flours.global_to_local(-3)
        ((1, 0), (0, 0))
        >>> flours.global_to_local([0, 1, 2])
        (array([0, 0, 1]), array([0, 1, 0]))
        """
        wanted = _whole_numbers(index, "index")
        places = self._find(wanted.ravel().tolist())
        if not wanted.ndim:
            return places[0]
        found = np.asarray(places, np.int64).reshape(-1, 2)
        return found[:, 0].reshape(wanted.shape), found[:, 1].reshape(wanted.shape)

    @overload
    def local_to_global(self, dataset_id: Scalar, local_index: Scalar) -> int: ...
    @overload
    def local_to_global(self, dataset_id: Numbers, local_index: Sequence[int] | Int64) -> Int64: ...
    @overload
    def local_to_global(self, dataset_id: Sequence[int] | Int64, local_index: Numbers) -> Int64: ...
    def local_to_global(self, dataset_id: Numbers, local_index: Numbers) -> int | Int64:
        """The number here of a row of one dataset, the inverse of ``global_to_local``; arrays broadcast.

        In a mixture that stops first, a row that this pass leaves out is an IndexError. In one that repeats rows, it is
        the first place of the row.

        >>> flours = CompositeDataset([["rye", "wheat"], ["spelt"]])
        >>> flours.local_to_global(1, 0), flours.local_to_global(0, [0, -1])
        (2, array([0, 1]))
        """
        parts, rows = np.broadcast_arrays(
            _whole_numbers(dataset_id, "dataset_id"), _whole_numbers(local_index, "local_index")
        )
        numbers = self._positions(list(zip(parts.ravel().tolist(), rows.ravel().tolist(), strict=True)))
        return np.asarray(numbers, np.int64).reshape(parts.shape) if parts.ndim else numbers[0]

    def _positions(self, places: list[Place]) -> list[int]:
        """The number here of each place, the inverse of ``_find``."""
        if self._mixture is not None:
            lengths = [len(part) for part in self._parts]
            mixed = self._mixed(lengths)
            return mixed.positions([_check_place(part, row, lengths) for part, row in places])
        ends = self._ends or self._new_ends()
        lengths = _lengths(ends)
        if any(not 0 <= part < len(lengths) or not 0 <= row < lengths[part] for part, row in places):
            ends = self._new_ends()  # a part may have grown, as when a row beyond the end is read
            lengths = _lengths(ends)
        checked = [_check_place(part, row, lengths) for part, row in places]
        return [ends[part] - lengths[part] + row for part, row in checked]

    def _new_ends(self) -> list[int]:
        self._ends = ends = list(itertools.accumulate(len(part) for part in self._parts))
        return ends

    def _find(self, indices: Sequence[int]) -> list[Place]:
        """The part and the row in it, for each number."""
        if self._mixture is not None:
            mixed = self._mixed([len(part) for part in self._parts])
            return mixed.places([check_index(index, len(mixed)) for index in indices])
        # One list, fetched once: another thread may ask for the length meanwhile.
        ends = self._ends
        return [self._bisect(ends, index) for index in indices]

    def _bisect(self, ends: list[int], index: int) -> Place:
        if type(index) is not int or not ends or not 0 <= index < ends[-1]:
            index = check_index(index, len(self))
            ends = self._ends
        part = bisect_right(ends, index)
        return part, index - (ends[part - 1] if part else 0)

    def _mixed(self, lengths: list[int]) -> MixedRows:
        assert self._mixture is not None
        return MixedRows(self._mixture, lengths, self._stop, self._seed, self._epoch)

    def __repr__(self) -> str:
        if self._weights is None:
            return f"<{type(self).__name__} of {len(self):,} rows, {len(self._parts)} parts>"
        proportions = ":".join(f"{weight:g}" for weight in self._weights)
        repeats = ", smaller parts repeat" if self._stop == "all" else ""
        return f"<{type(self).__name__} of {len(self):,} rows, {len(self._parts)} parts mixed {proportions}{repeats}>"

    @property
    def version(self) -> str:
        """All those of the parts; and of a mixture, what its order depends on."""
        versions = super().version
        if self._weights is None:
            # Numbers of rows move when a part that is not the last one grows.
            return f"{versions}|{[len(part) for part in self._parts[:-1]]}"
        lengths = [len(part) for part in self._parts]
        return f"{versions}|mixed {self._weights} {self._stop} {self._seed} {self._epoch} {lengths}"

    def _identity(self) -> Any:
        """Those of the parts, in their order."""
        return "composite", [identity_of(part) for part in self._parts]

    def set_epoch(self, epoch: int) -> None:
        """Take the rows of another epoch into a mixture, and pass the epoch on to the parts."""
        self._epoch = check_epoch(epoch)
        super().set_epoch(epoch)

    @property
    def ids_are_numbers(self) -> bool:
        """In a mixture, whose order is its own."""
        return self._mixture is not None

    def ids_of(self, numbers: Int64) -> Int64:
        """Part and row in one number; in a mixture, the numbers themselves."""
        if self._mixture is not None:
            return numbers
        places, rows = self._find(numbers.tolist()), self._rows()
        found = grouped(places, lambda part, wanted: rows.outer(part, ids_of(self._parts[part], wanted)).tolist())
        return np.asarray(found, np.int64)

    def snapshot_rows(self) -> FrozenRows:
        """All parts as they are now."""
        rows = self._rows()
        if self._mixture is None:
            return rows
        numberings = [Numbering(part) for part in rows.parts]
        mixed = self._mixed([numbering.n_numbers for numbering in numberings])

        def to_ids(numbers: Int64) -> Int64:
            def read(part: int, wanted: list[int]) -> list[int]:
                ids: list[int] = rows.outer(part, numberings[part].ids(np.asarray(wanted))).tolist()
                return ids

            return np.asarray(grouped(mixed.places(numbers.tolist()), read), np.int64)

        return ReindexedRows(rows, len(mixed), to_ids)

    def _rows(self) -> CompositeRows:
        return CompositeRows([snapshot_rows(part) for part in self._parts])


def _lengths(ends: list[int]) -> list[int]:
    return [end - first for first, end in itertools.pairwise([0, *ends])]


def _check_place(part: int, row: int, lengths: list[int]) -> Place:
    """A part and a row of it from 0 up; an IndexError says which of the two is outside."""
    n_parts = len(lengths)
    if not -n_parts <= part < n_parts:
        raise IndexError(f"dataset_id {part} of {n_parts} datasets; the last one is {n_parts - 1}")
    try:
        return part % n_parts, check_index(row, lengths[part])
    except IndexError as error:
        raise IndexError(f"datasets[{part % n_parts}]: {error}") from None


def _whole_numbers(numbers: Any, what: str) -> Int64:
    array = np.asarray(numbers)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{what} is a whole number or an array of them, got {array.dtype} {numbers!r}")
    return array.astype(np.int64)


class CompositeRows:
    """The frozen rows of several parts; each span of a part is a span here, under a number of its own."""

    def __init__(self, parts: list[FrozenRows]) -> None:
        self.parts = parts
        for k, part in enumerate(parts):
            if members_of(part) is not None:
                raise ConfigError(
                    f"datasets[{k}]: its members may come and go, so its rows have no place of their own among others; "
                    "load it alone"
                )
        # A part that is a composite itself has several spans, apart in their upper bits: each becomes one of ours.
        self._slots = [(k, first >> _ID_BITS) for k, part in enumerate(parts) for first, _ in part.spans()]
        if len(self._slots) > _MAX_SPANS:
            raise ConfigError(f"{len(self._slots):,} datasets in one composite, the most is {_MAX_SPANS:,}")
        self._slot_of = {slot: number for number, slot in enumerate(self._slots)}
        self._part_of_slot = np.array([part for part, _ in self._slots], np.int64)
        self._high_of_slot = np.array([high for _, high in self._slots], np.int64)
        uuids = [part.uuid for part in parts]
        self.uuid = checksum_hex("+".join(uuids).encode()) if any(uuids) else ""

    @property
    def changes(self) -> str:
        """Like the part that changes most."""
        return max((part.changes for part in self.parts), key=(FIXED, LOCAL, SHARED).index)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def fixed_by(self) -> list[int] | None:
        """What any of the parts is."""
        found = [fixed for part in self.parts if (fixed := fixed_by(part)) is not None]
        return [number for fixed in found for number in fixed] if found else None

    def branch_below(self, ends: Sequence[int]) -> Any:
        """Those of all parts, each below its own ends."""
        own: list[list[int]] = [[] for _ in self.parts]
        for slot, ((part, high), end) in enumerate(zip(self._slots, ends, strict=True)):
            own[part].append(end - ((slot - high) << _ID_BITS))
        found = [branch_below(part, each) for part, each in zip(self.parts, own, strict=True)]
        return found if any(each is not None for each in found) else None

    def has_branch(self, branch: Any) -> bool:
        """Whether each part has its own."""
        return len(branch) == len(self.parts) and all(map(has_branch, self.parts, branch))

    def content(self, span: Span) -> str:
        """That of the part which the span belongs to."""
        part, high = self._slots[span[0] >> _ID_BITS]
        first, end = (edge - (span[0] >> _ID_BITS << _ID_BITS) + (high << _ID_BITS) for edge in span)
        return content_of(self.parts[part], (first, end))

    def outer(self, part: int, ids: Int64) -> Int64:
        """Ids here, of rows that have these ids in a part."""
        highs = np.asarray(ids, np.int64) >> _ID_BITS
        slots = np.zeros_like(highs)
        for high in np.unique(highs).tolist():
            slots[highs == high] = self._slot_of[part, high]
        return (slots << _ID_BITS) | (ids & _LOW)

    def spans(self) -> list[Span]:
        """Those of all parts, in their order."""
        found = []
        for slot, (first, end) in enumerate(span for part in self.parts for span in part.spans()):
            if end - (first >> _ID_BITS << _ID_BITS) > _LOW:
                raise ConfigError(f"datasets[{self._slots[slot][0]}] has ids up to {end}, beyond 48 bits")
            shift = (slot - (first >> _ID_BITS)) << _ID_BITS
            found.append((first + shift, end + shift))
        return found

    def alive(self, ids: Int64) -> Mask | None:
        """Each part is asked for its own."""
        answers = [(where, self.parts[part].alive(inner)) for part, where, inner in self._split(ids)]
        if all(alive is None for _, alive in answers):
            return None
        mask = np.ones(len(ids), bool)
        for where, alive in answers:
            if alive is not None:
                mask[where] = alive
        return mask

    def fetch(self, ids: Int64) -> list[Any]:
        """One call for each part."""
        found: list[Any] = [None] * len(ids)
        for part, wheres, inner in self._split(ids):
            for where, sample in zip(wheres.tolist(), self.parts[part].fetch(inner), strict=True):
                found[where] = sample
        return found

    def table(self, ids: Int64) -> pa.Table | None:
        """As columns, if all parts have the same."""
        import pyarrow as pa

        split = self._split(ids)
        tables = [table for part, _, inner in split if (table := self.parts[part].table(inner)) is not None]
        if not split or len(tables) < len(split) or any(table.schema != tables[0].schema for table in tables):
            return None
        if len(tables) == 1:
            return tables[0]
        back = np.argsort(np.concatenate([where for _, where, _ in split]))
        return pa.concat_tables(tables).take(pa.array(back))

    def _split(self, ids: Int64) -> list[tuple[int, Int64, Int64]]:
        """Part, where its ids stand, and what they are inside it."""
        slots = ids >> _ID_BITS
        parts = self._part_of_slot[slots]
        inner = (self._high_of_slot[slots] << _ID_BITS) | (ids & _LOW)
        if len(self.parts) == 1 or not len(ids):
            return [(0, np.arange(len(ids)), inner)] if len(ids) else []
        return [(part, where := np.flatnonzero(parts == part), inner[where]) for part in np.unique(parts).tolist()]


#: A part and a row of it.
Place = tuple[int, int]
Value = TypeVar("Value")


class Mixture:
    """An endless sequence of (part, row), rows of each part counted from 0.

    >>> mixture = Mixture([0.5, 0.25, 0.25])
    >>> [mixture.place(n) for n in range(6)]
    [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1)]
    >>> mixture.position(2, 0)
    2
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = whole_weights(weights)
        self._total = sum(self._weights)
        # Moments are (2j + 1) / w; times this they are whole, and stay in the same order.
        scale = math.lcm(*self._weights)
        self._steps = [scale // weight for weight in self._weights]

    def place(self, n: int) -> tuple[int, int]:
        """The part and the row of it at place ``n``."""
        # Twice the moment, less half a row of each part: not one row more than n was due before it.
        moment = max(0, 2 * n - len(self._weights))
        counts = [(weight * moment + self._total) // (2 * self._total) for weight in self._weights]
        due = [(2 * count + 1) * step for count, step in zip(counts, self._steps, strict=True)]
        for _ in range(n - sum(counts)):
            part = due.index(min(due))
            counts[part] += 1
            due[part] += 2 * self._steps[part]
        part = due.index(min(due))
        return part, counts[part]

    def position(self, part: int, row: int) -> int:
        """The place at which a row of a part comes: how many rows are due before it."""
        moment = (2 * row + 1) * self._steps[part]
        # Of an earlier part, what is due at the same moment comes first.
        return sum(
            (moment + step - (other > part)) // (2 * step) if other != part else row
            for other, step in enumerate(self._steps)
        )


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Weights as the smallest whole numbers in the same proportions.

    >>> whole_weights([0.7, 0.2, 0.1])
    [7, 2, 1]
    """
    exact = [_fraction(weight, k) for k, weight in enumerate(weights)]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    shared = math.gcd(*whole)
    return [weight // shared for weight in whole]


def _fraction(weight: Any, k: int) -> Fraction:
    try:
        # 0.1 stands for a tenth, which its repr says, not as the nearest number in base two.
        exact = Fraction(repr(weight.item() if isinstance(weight, np.generic) else weight))
    except (ValueError, TypeError):
        exact = Fraction(weight) if isinstance(weight, Fraction) else Fraction(0)
    if exact <= 0 or isinstance(weight, (bool, str)):
        raise ConfigError(f"weights[{k}]={weight!r}: a weight is a number above 0; leave out a part that has none")
    return exact


def n_mixed(mixture: Mixture, lengths: Sequence[int], stop: str) -> int:
    """How long a pass over a mixture is.

    >>> n_mixed(Mixture([1, 1]), [2, 9], "first"), n_mixed(Mixture([1, 1]), [2, 9], "all")
    (4, 18)
    """
    if stop == "first":
        return min(mixture.position(part, n_rows) for part, n_rows in enumerate(lengths))
    if 0 in lengths:
        raise ConfigError(f"datasets[{list(lengths).index(0)}] has no rows to repeat; leave it out of the mixture")
    return max(mixture.position(part, n_rows - 1) + 1 for part, n_rows in enumerate(lengths))


class MixedRows:
    """Where the rows of one pass over a mixture are: which part, and which row of it."""

    def __init__(self, mixture: Mixture, lengths: list[int], stop: str, seed: int, epoch: int) -> None:
        self._mixture, self._lengths = mixture, lengths
        self._n_rows = n_mixed(mixture, lengths, stop)
        self._path = seed, "mix", epoch

    def __len__(self) -> int:
        return self._n_rows

    def places(self, numbers: Sequence[int]) -> list[Place]:
        """The part and the row at each place."""
        mixed = [self._mixture.place(number) for number in numbers]
        rows = grouped(mixed, self._drawn)
        return [(part, row) for (part, _), row in zip(mixed, rows, strict=True)]

    def positions(self, places: Sequence[Place]) -> list[int]:
        """The first place at which each row of a part comes; an IndexError where this pass leaves it out."""

        def read(part: int, rows: list[int]) -> list[int]:
            order = KeyedPermutation(self._lengths[part], seeds.key(*self._path, part, 0))
            return [self._mixture.position(part, nth) for nth in order.positions(rows).tolist()]

        found = grouped(places, read)
        for (part, row), number in zip(places, found, strict=True):
            if number >= self._n_rows:
                raise IndexError(
                    f"row {row} of datasets[{part}] does not come in epoch {self._path[-1]} of this mixture, which "
                    'ends when the first part is used up; set_epoch(...) takes other rows, stop="all" takes every row'
                )
        return found

    def _drawn(self, part: int, nths: list[int]) -> list[int]:
        """Which rows of a part come as its nth ones; each time it begins again the order is another."""
        n_rows = self._lengths[part]

        def read(turn: int, within: list[int]) -> list[int]:
            rows: list[int] = KeyedPermutation(n_rows, seeds.key(*self._path, part, turn))[within].tolist()
            return rows

        return grouped([divmod(nth, n_rows) for nth in nths], read)


def grouped(places: Sequence[Place], read: Callable[[int, list[int]], list[Value]]) -> list[Value]:
    """What ``read(part, rows)`` gives for the rows of each part, put back into the order of ``places``.

    >>> grouped([(1, 7), (0, 2), (1, 5)], lambda part, rows: [f"{part}:{row}" for row in rows])
    ['1:7', '0:2', '1:5']
    """
    asked: dict[int, list[int]] = {}
    for where, (part, _) in enumerate(places):
        asked.setdefault(part, []).append(where)
    found: dict[int, Value] = {}
    for part, wheres in asked.items():
        found.update(zip(wheres, read(part, [places[where][1] for where in wheres]), strict=True))
    return [found[where] for where in range(len(places))]
