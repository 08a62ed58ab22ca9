"""A view is a dataset that looks at another one. It holds no samples, so it costs nothing and is never out of date.

A dataset is read in two ways: by number (``dataset[i]``), and by id, from the rows that ``snapshot_rows`` gives to a
loader. A view states its idea once, in one of two forms, and both ways follow from it::

    SampleView      ``_over(rows)``: the same rows with other samples (transformed, resilient, fewer columns)
    ReindexedView   ``_order(n_below)``: other rows, or another order of them (subset, shuffled, shard of rows)

Rows that a loader reads are of two kinds as well:

    DelegatingRows   the ids of what is below: one row here is one row there
    ReindexedRows    ids of its own, from 0, because the order or the choice is the view's
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from poolish.errors import ConfigError
from poolish.fingerprints import qualified_name
from poolish.load.dataset import (
    Dataset,
    check_index,
    check_map_style,
    identity_of,
    samples,
    version_of,
    whole_number,
)
from poolish.load.frozen import (
    FIXED,
    FrozenRows,
    Int64,
    Mask,
    Members,
    Span,
    WindowRows,
    branch_below,
    content_of,
    fixed_by,
    has_all,
    has_branch,
    ids_of,
    members_of,
    pass_epoch,
    snapshot_rows,
)
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.tokens.member_windows import MemberWindows
from poolish.tokens.store import StreamStore
from poolish.tokens.stream_set import StreamSet
from poolish.tokens.window_dataset import WindowDataset

if TYPE_CHECKING:
    import pyarrow as pa

# Views --------------------------------------------------------------------------------------------------------------


class View(Dataset):
    """A dataset that looks at ``dataset``, which may be anything with a length and an index."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = check_source(dataset)

    @property
    def dataset(self) -> Any:
        """What the view looks at."""
        return self._dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def version(self) -> str:
        """That of what it looks at, and whatever else decides its samples."""
        return version_of(self._dataset)

    def _identity(self) -> Any:
        """Its class and what it looks at; the version holds the settings of a view. Not so of other people's views."""
        if not type(self).__module__.startswith("poolish."):
            return NotImplemented
        return qualified_name(type(self)), identity_of(self._dataset)

    @property
    def choice(self) -> str:
        """Which rows these are and how they are numbered, where the view decides that."""
        return ""

    @property
    def ids_are_numbers(self) -> bool:
        """Whether a row's number is its id, for ever: rows come at the end and none ever leaves."""
        return has_numbers_for_ids(self._dataset)

    def ids_of(self, numbers: Int64) -> Int64:
        """The ids of the rows with these numbers."""
        return ids_of(self._dataset, numbers)

    def set_epoch(self, epoch: int) -> None:
        """Passed on to what it looks at."""
        pass_epoch(self._dataset, epoch)

    @property
    def length_costs(self) -> bool:
        """Whether asking for the length looks at every row."""
        return bool(getattr(self._dataset, "length_costs", False))

    def _numbers_below(self, indices: Sequence[int]) -> list[int]:
        """Row numbers for a view that has those of what it looks at; a length that costs is not asked for in vain."""
        if self.length_costs and all(type(index) is int and index >= 0 for index in indices):
            return list(indices)  # a dataset with such a length reports indices outside itself
        return self._numbers(indices)

    def _numbers(self, indices: Sequence[int]) -> list[int]:
        n_rows = len(self)
        return [check_index(index, n_rows) for index in indices]


class SampleView(View):
    """The rows of ``dataset``, each with another sample. Subclasses write ``_over``; both ways to read follow from it.

    >>> class Doubled(SampleView):
    ...     def _over(self, rows):
    ...         return ReadRows(rows, lambda ids, rows: [2 * sample for sample in rows.fetch(ids)])
    >>> doubled = Doubled([1, 2, 3])
    >>> doubled[-1], doubled.snapshot_rows().fetch(np.array([0, 1]))
    (6, [2, 4])
    """

    @abstractmethod
    def _over(self, rows: FrozenRows) -> FrozenRows:
        """``rows`` seen through this view. What decides the samples is taken now, so rows taken earlier keep it."""

    @property
    def _needs_ids(self) -> bool:
        """Whether a sample depends on the id of its row; else a row that is read by number is known by that."""
        return False

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """In one call below."""
        numbers = self._numbers_below(indices)
        if self._needs_ids:
            ids, rows = rows_with_ids(self._dataset, lambda: ids_of(self._dataset, numbers))
        else:
            ids, rows = np.asarray(numbers, np.int64), LiveRows(self._dataset)
        return self._over(rows).fetch(ids)

    def snapshot_rows(self) -> FrozenRows:
        """The rows below as they are now, seen through this view."""
        return self._over(snapshot_rows(self._dataset))


class RowOrder(Protocol):
    """Which rows below a view has, and in which order."""

    def __len__(self) -> int:
        """How many rows the view has."""

    def __getitem__(self, numbers: Any, /) -> Any:
        """The numbers below of one row or of an array of rows."""


class ReindexedView(View):
    """A view that chooses or orders rows, so that its numbers are its own and are its ids. Subclasses write ``_order``.

    >>> class Reversed(ReindexedView):
    ...     def _order(self, n_below=None):
    ...         return np.arange(len(self.dataset) if n_below is None else n_below)[::-1]
    >>> backwards = Reversed(["rye", "wheat", "spelt"])
    >>> backwards[0], backwards.snapshot_rows().fetch(np.array([2, 1]))
    ('spelt', ['rye', 'wheat'])
    """

    @abstractmethod
    def _order(self, n_below: int | None = None) -> RowOrder:
        """The rows here, of ``n_below`` rows below; None for as many as there are now."""

    def __len__(self) -> int:
        return len(self._order())

    def __getitem__(self, index: int) -> Any:
        order = self._order()
        return self._dataset[int(order[check_index(index, len(order))])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """In one call below."""
        order = self._order()
        n_rows = len(order)
        numbers = np.array([check_index(index, n_rows) for index in indices], np.int64)
        return samples(self._dataset, order[numbers].tolist())

    def snapshot_rows(self) -> FrozenRows:
        """The rows of this order, with the dataset as it is now."""
        rows = snapshot_rows(self._dataset)
        numbering = Numbering(rows)
        order = self._order(numbering.n_numbers)
        return ReindexedRows(rows, len(order), lambda numbers: numbering.ids(order[numbers]))

    @property
    def ids_are_numbers(self) -> bool:
        """The choice is the view's."""
        return True

    def ids_of(self, numbers: Int64) -> Int64:
        """The numbers themselves."""
        return numbers


class CombinedView(Dataset):
    """A dataset that looks at several, its *parts*."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    @property
    def datasets(self) -> list[Any]:
        """The parts."""
        return list(self._parts)

    @property
    def version(self) -> str:
        """Those of all parts."""
        return str([version_of(part) for part in self._parts])

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the parts."""
        for part in self._parts:
            pass_epoch(part, epoch)


def check_source(dataset: Any, what: str = "dataset") -> Any:
    """``dataset``, if a view can look at it."""
    if isinstance(dataset, (StreamStore, StreamSet)):
        raise ConfigError(f"{what}: a stream has tokens, not samples; pass its windows, .as_dataset(width)")
    return check_map_style(dataset, what)


def check_sources(datasets: Any, what: str) -> list[Any]:
    """The parts of a view of several datasets, at least one."""
    parts = [check_source(part, f"{what}[{k}]") for k, part in enumerate(datasets)]
    if not parts:
        raise ConfigError(f"{what}: give at least one")
    return parts


def check_epoch(epoch: int) -> int:
    """An epoch as a plain int, if it is one; they count from 0."""
    number = whole_number(epoch, 0)
    if number is None:
        raise ConfigError(f"epochs are whole numbers from 0, got {epoch!r}")
    return number


def has_numbers_for_ids(dataset: Any) -> bool:
    """Whether the number of a row is its id for ever."""
    if isinstance(dataset, (DatasetBuffer, Snapshot, StreamStore, StreamSet, WindowDataset, MemberWindows)):
        return False
    return bool(getattr(dataset, "ids_are_numbers", True))


# Rows ---------------------------------------------------------------------------------------------------------------


def rows_with_ids(dataset: Any, ids_now: Callable[[], Int64]) -> tuple[Int64, FrozenRows]:
    """Ids, and rows that have them, also while rows come and go."""
    for _ in range(100):
        ids = ids_now()
        rows = snapshot_rows(dataset)
        alive = rows.alive(ids)
        if alive is None or alive.all():
            return ids, rows
        # Rows left between our two questions, so other rows have these numbers now.
    raise IndexError("rows leave the dataset faster than they can be read; read a snapshot of it")


def snapshot_with_version(dataset: Any) -> tuple[FrozenRows, str]:
    """Rows as they are now, and the version that they have."""
    while True:
        version, rows = version_of(dataset), snapshot_rows(dataset)
        if version_of(dataset) == version:
            return rows, version
        # It changed between our two questions; it is unknown which of the two versions was taken.


class LiveRows:
    """The rows of ``dataset`` by number, as they are when they are read."""

    uuid, changes = "", FIXED

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def spans(self) -> list[Span]:
        """One, from 0."""
        return [(0, len(self))]

    def alive(self, ids: Int64) -> None:
        """All."""
        return

    def fetch(self, ids: Int64) -> list[Any]:
        """In one call where the dataset knows how."""
        return samples(self._dataset, ids.tolist())

    def table(self, ids: Int64) -> None:
        """Only samples."""
        return


class DelegatingRows:
    """Frozen rows that are other frozen rows, seen through something."""

    #: Whether a row has the same number here as below.
    keeps_numbers = True

    def __init__(self, rows: FrozenRows) -> None:
        self.rows, self.uuid = rows, rows.uuid

    @property
    def changes(self) -> str:
        """As below."""
        return self.rows.changes

    def fixed_by(self) -> list[int] | None:
        """As below."""
        return fixed_by(self.rows)

    def branch_below(self, ends: Sequence[int]) -> Any:
        """As below."""
        return branch_below(self.rows, ends)

    def has_branch(self, branch: Any) -> bool:
        """As below."""
        return has_branch(self.rows, branch)

    def content(self, span: Span) -> str:
        """As below."""
        return content_of(self.rows, span)

    def __len__(self) -> int:
        return len(self.rows)

    def spans(self) -> list[Span]:
        """As below."""
        return self.rows.spans()

    def members(self) -> Members | None:
        """As below."""
        return members_of(self.rows)

    def alive(self, ids: Int64) -> Mask | None:
        """As below."""
        return self.rows.alive(ids)

    def has_all(self, first: int, end: int) -> bool:
        """As below; a view that leaves rows out says so."""
        return type(self).alive is DelegatingRows.alive and has_all(self.rows, first, end)

    def fetch(self, ids: Int64) -> list[Any]:
        """As below."""
        return self.rows.fetch(ids)

    def table(self, ids: Int64) -> pa.Table | None:
        """As below."""
        return self.rows.table(ids)


class ReadRows(DelegatingRows):
    """Frozen rows whose samples ``read(ids, rows)`` returns; as columns they cannot be had."""

    def __init__(self, rows: FrozenRows, read: Callable[[Int64, FrozenRows], list[Any]]) -> None:
        super().__init__(rows)
        self._read = read

    def fetch(self, ids: Int64) -> list[Any]:
        """What ``read`` makes of the rows below."""
        return self._read(ids, self.rows)

    def table(self, ids: Int64) -> pa.Table | None:
        """Only samples."""
        return None


class ReindexedRows(DelegatingRows):
    """Frozen rows under numbers of their own, ``0`` to ``n_rows - 1``; ``to_ids`` says which row each of them is.

    The numbers mean other rows when those below change, so a loader can neither follow them nor go on with others.
    """

    keeps_numbers = False

    def __init__(self, rows: FrozenRows, n_rows: int, to_ids: Callable[[Int64], Int64]) -> None:
        super().__init__(rows)
        self._n_rows, self._to_ids = n_rows, to_ids
        self.uuid = f"{rows.uuid}|renumbered" if rows.uuid else ""

    def fixed_by(self) -> list[int] | None:
        """What must stay as it is for the numbers to mean the same rows."""
        return [len(self.rows), *(edge for span in self.rows.spans() for edge in span)]

    def branch_below(self, ends: Sequence[int]) -> Any:
        """That of all rows below: any of them may have any number."""
        return branch_below(self.rows, [end for _, end in self.rows.spans()])

    def content(self, span: Span) -> str:
        """That of all rows below: any of them may be in the span."""
        return " ".join(content_of(self.rows, each) for each in self.rows.spans())

    def __len__(self) -> int:
        return self._n_rows

    def spans(self) -> list[Span]:
        """One, from 0."""
        return [(0, self._n_rows)]

    def alive(self, ids: Int64) -> Mask | None:
        """All that there were; less those that have left a bounded stream."""
        inside = ids < self._n_rows
        below = self.rows.alive(self._to_ids(ids[inside]))
        if below is None:
            return None if inside.all() else inside
        inside[inside] = below
        return inside

    def fetch(self, ids: Int64) -> list[Any]:
        """From below."""
        return self.rows.fetch(self._to_ids(ids))

    def table(self, ids: Int64) -> pa.Table | None:
        """From below."""
        return self.rows.table(self._to_ids(ids))


class Numbering:
    """Which id the row with a number has, in frozen rows: computed where no row is missing, else looked up.

    ``n_numbers`` is how many numbers there are; some of a stream's windows may have left theirs.

    >>> Numbering(snapshot_rows(["rye", "wheat"])).ids(np.array([1, 0]))
    array([1, 0])
    """

    def __init__(self, rows: FrozenRows) -> None:
        spans = rows.spans()
        self._ends = np.cumsum([end - first for first, end in spans])
        # What is added to a number to make it an id, in each span.
        self._shifts = np.array([first for first, _ in spans]) - np.concatenate([[0], self._ends[:-1]])
        self._ids: Int64 | None = None
        below = rows
        while isinstance(below, DelegatingRows) and below.keeps_numbers:
            below = below.rows
        self.n_numbers = len(rows)
        if isinstance(below, WindowRows):  # the windows that have left keep their numbers
            self.n_numbers, self._shifts = below.n_numbers, np.array([below.first_id])
        elif len(rows) != (self._ends[-1] if len(spans) else 0):
            self._ids = all_ids(rows)

    def ids(self, numbers: Int64) -> Int64:
        """The ids of the rows with these numbers."""
        if self._ids is not None:
            return self._ids[numbers]
        spans = np.searchsorted(self._ends, numbers, side="right") if len(self._shifts) > 1 else 0
        ids: Int64 = numbers + self._shifts[spans]
        return ids


def all_ids(rows: FrozenRows) -> Int64:
    """Every id that is a row, in order."""
    found = [np.empty(0, np.int64)]
    for first, end in rows.spans():
        ids = np.arange(first, end, dtype=np.int64)
        alive = rows.alive(ids)
        found.append(ids if alive is None else ids[alive])
    return np.concatenate(found)
