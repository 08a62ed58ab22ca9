"""Numbers beside the rows of a buffer, addressed by row id: priorities, counters, times sampled.

They belong to no schema and no snapshot. New rows have the default, and appending costs nothing: values of new rows are
added when they are first asked for.

    ids[0] ... ids[n-1]            first, first + 1, ...
    values of the rows that were   values of all ids given out since, dense
    there at the last compaction

Rows that left keep their place until there are twice as many places as rows; then the values move together, so each
row that leaves pays for moving at most two.

Priorities are drawn from, so they lie in a tree over the places of the rows in memory. It follows the rows when it is
next used: what has left gets 0, what has come the largest priority, and where the rows have moved it is made anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish.errors import ConfigError
from poolish.priorities import PriorityTree
from poolish.rows.snapshot import Snapshot, checked_ids

if TYPE_CHECKING:
    pass

Int64 = NDArray[np.int64]
Numbers = NDArray[np.int64] | NDArray[np.float64]

#: Fewer places of rows that left are not worth moving the others for.
MIN_DEAD = 1024


class SavedRowState(NamedTuple):
    """A row state in a file or a pickle: one value per row of the snapshot that goes with it."""

    name: str
    default: int | float
    values: Numbers


class FoundValues(NamedTuple):
    """Values of the rows that are still there, in the order asked for, and the ids that are gone."""

    values: Numbers
    gone: Int64


class RowValues:
    """One number per row, by id."""

    def __init__(self, default: int | float, snapshot: Snapshot, values: Numbers | None = None) -> None:
        self.default = default
        if values is None:
            values = np.full(len(snapshot), default)
        self._parts: tuple[Int64, int, Numbers] = (snapshot.ids.copy(), snapshot.next_id, values)

    def at(self, ids: Int64) -> Int64:
        """Places of live rows in ``values``."""
        known, first, _ = self._parts
        return np.where(ids >= first, ids - first + len(known), np.searchsorted(known, ids))

    def aligned(self, snapshot: Snapshot) -> Numbers:
        """The values of all rows of the snapshot, in its order."""
        values = self.covering(snapshot)
        return values[self.at(snapshot.ids)]

    def covering(self, snapshot: Snapshot) -> Numbers:
        """All values, with room for every row of the snapshot."""
        known, first, values = self._parts
        n_places = len(known) + snapshot.next_id - first
        if n_places > 2 * len(snapshot) + MIN_DEAD:
            is_old = snapshot.ids < first + len(values) - len(known)
            moved = np.full(len(snapshot), self.default)
            moved[is_old] = values[self.at(snapshot.ids[is_old])]
            self._parts = snapshot.ids.copy(), snapshot.next_id, moved
        elif n_places > len(values):
            grown = np.full(2 * n_places, self.default)
            grown[: len(values)] = values
            self._parts = known, first, grown
        return self._parts[2]


class RowState:
    """A number per row of a buffer, which stays with the row until it leaves.

    >>> from poolish import DatasetBuffer
    >>> buffer = DatasetBuffer()
    >>> buffer.append([{"x": 1}, {"x": 2}, {"x": 3}])
    >>> priority = buffer.row_state("priority", default=1.0)
    >>> priority.set([0, 2], [0.25, 4.0])
    array([], dtype=int64)
    >>> buffer.retain(0.5, by="latest"); buffer.append({"x": 4})
    >>> priority.all(), priority.get([2, 0])
    (array([1., 4., 1.]), FoundValues(values=array([4.]), gone=array([0])))
    """

    def __init__(self, snapshot: Callable[[], Snapshot], lock: threading.RLock, values: RowValues) -> None:
        self._snapshot, self._lock, self._values = snapshot, lock, values

    def all(self) -> Numbers:
        """The values of all rows, oldest first: the order of ``buffer.ids``."""
        with self._lock:
            return self._values.aligned(self._snapshot())

    def get(self, ids: ArrayLike) -> FoundValues:
        """The values of the rows with these ids that are still there, and which of the ids are gone."""
        with self._lock:
            snapshot = self._snapshot()
            asked = checked_ids(ids, snapshot.next_id)
            _, found = snapshot.numbers_of(asked)
            values = self._values.covering(snapshot)
            return FoundValues(values[self._values.at(asked[found])], asked[~found])

    def set(self, ids: ArrayLike, values: ArrayLike) -> Int64:
        """Give the rows with these ids new values, one each or one for all; which of the ids are gone.

        Where an id stands twice, its last value counts.
        """
        with self._lock:
            snapshot = self._snapshot()
            asked = checked_ids(ids, snapshot.next_id)
            known = self._values.covering(snapshot)
            new = _numbers(values, known.dtype)
            if new.shape not in ((), asked.shape):
                raise ValueError(
                    f"row state: values of shape {new.shape} for {len(asked)} ids; pass one each, or one for all"
                )
            new = np.broadcast_to(new, asked.shape)
            _, found = snapshot.numbers_of(asked)
            known[self._values.at(asked[found])] = new[found]
            return asked[~found]


def values_of(known: dict[str, RowValues], name: str, default: int | float, snapshot: Snapshot) -> RowValues:
    """The values called ``name``, made on first use; another default than before is a ConfigError."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"row_state: a name is text that is not empty, got {name!r}")
    if type(default) not in (int, float) or (type(default) is int and not -(2**63) <= default < 2**63):
        raise ConfigError(f"row_state {name!r}: default is a float or an int of 64 bits, got {default!r}")
    values = known.get(name)
    if values is None:
        values = known[name] = RowValues(default, snapshot)
    if (type(values.default), repr(values.default)) != (type(default), repr(default)):
        raise ConfigError(
            f"row_state {name!r}: its default is {values.default!r}, got {default!r}; pass the same, or another name"
        )
    return values


def saved_states(known: Mapping[str, RowValues], snapshot: Snapshot) -> list[SavedRowState]:
    """All row states of a buffer, one value per row of the snapshot."""
    return [SavedRowState(name, values.default, values.aligned(snapshot)) for name, values in known.items()]


def restored_states(saved: Iterable[SavedRowState], snapshot: Snapshot) -> dict[str, RowValues]:
    """The row states that ``saved_states`` returned, for a buffer with the rows of the snapshot."""
    return {name: RowValues(default, snapshot, values.copy()) for name, default, values in saved}


class SavedPriorities(NamedTuple):
    """Priorities in a file or a pickle: one per row of the snapshot that goes with them."""

    name: str
    alpha: float
    largest: float
    values: NDArray[np.float64]


class RowPriorities:
    """A priority per row, drawn from in proportion; new rows get the largest that is there.

    "There" is when priorities are next used (drawn, changed, read): the largest above 0 of the rows that are left, else
    the largest there was at the last use, else 1.0.
    """

    def __init__(self, alpha: float, snapshot: Snapshot, saved: SavedPriorities | None = None) -> None:
        self._largest = 1.0 if saved is None else saved.largest
        self._ids, self._first, self._last, self._live = snapshot.window
        self._layout, self._next_id = snapshot.layout, snapshot.next_id
        values = np.zeros(self._last)
        values[snapshot.live_places()] = self._largest if saved is None else saved.values
        self.tree = PriorityTree(alpha, values)

    def follow(self, snapshot: Snapshot) -> PriorityTree:
        """The tree over the places of this snapshot: O(log n) for each row that came or left since the last."""
        ids, first, last, live = snapshot.window
        self._largest = self.tree.largest or self._largest
        if snapshot.layout is not self._layout:
            self._move(snapshot)
        elif (last, first) != (self._last, self._first) or live is not self._live:
            tree, was_last = self.tree, self._last
            tree.clear(self._first, min(first, was_last))
            if live is not None and live is not self._live:
                killed = live.killed_since(self._live, was_last)
                tree.update(killed, 0.0)
            self._largest = tree.largest or self._largest
            tree.extend(last - was_last, self._largest)
            new = np.arange(was_last, last)
            dead = new < first if live is None else (new < first) | ~live.alive(new)
            tree.update(new[dead], 0.0)
        self._ids, self._first, self._last, self._live = ids, first, last, live
        self._layout, self._next_id = snapshot.layout, snapshot.next_id
        return self.tree

    def _move(self, snapshot: Snapshot) -> None:
        """The rows lie elsewhere: carry each priority to the place where its id is now."""
        places, ids = snapshot.live_places(), snapshot.ids
        is_known = ids < self._next_id
        known = self.tree.priorities[np.searchsorted(self._ids[: self._last], ids[is_known])]
        self._largest = float(known.max(initial=0.0)) or self._largest
        values = np.zeros(snapshot.window[2])
        values[places] = self._largest
        values[places[is_known]] = known
        self.tree = PriorityTree(self.tree.alpha, values)

    def saved(self, name: str, snapshot: Snapshot) -> SavedPriorities:
        """One priority per row of the snapshot."""
        tree = self.follow(snapshot)
        largest = tree.largest or self._largest
        return SavedPriorities(name, tree.alpha, largest, tree.priorities[snapshot.live_places()])


def _numbers(values: ArrayLike, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values in the dtype of a row state; TypeError if they are no numbers, ValueError if one would change."""
    given = np.asarray(values)
    if given.dtype.kind not in "iuf" and given.size:
        raise TypeError(f"row state holds {dtype}, got {given.dtype}; pass numbers")
    with np.errstate(invalid="ignore", over="ignore"):
        exact = given.astype(dtype)
        is_wrapped = given.dtype.kind == "u" and dtype.kind == "i" and bool((exact < 0).any())
        if is_wrapped or (given.dtype.kind != dtype.kind and not np.array_equal(exact.astype(given.dtype), given)):
            raise ValueError(f"row state holds {dtype}, which cannot hold all of these values exactly; convert them")
    return exact
