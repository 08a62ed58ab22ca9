"""The rows of a dataset at one moment, by id: what an order is made of and batches are read from.

A row number says where a row stands now; a row id says which row it is, for ever. An order that survives growth is an
order of ids, so everything the loader reads is first frozen::

    DatasetBuffer, Snapshot    ids are row ids; rows may be missing anywhere
    StreamStore                ids count the steps; the oldest may be gone
    StreamSet, its windows     those of its members, each below its ordinal
    windows of a stream        ids count the windows; the oldest may be gone
    views of poolish.load      the ids of what they look at, where each of their rows is one of its rows
    anything else map-style    ids are row numbers; it may only grow at its end

Ids lie in *spans*: ranges that begin where the oldest row is and grow at their end. Most datasets have one; a
composite has one for each of its parts. Each span lies in 2**48 ids of its own: the upper bits are its *ordinal*.

The number of spans is fixed, unless the frozen rows have ``members()``. Then each span is a member: one that comes gets
the next ordinal, one that goes keeps its own for ever (``files.membership`` is a record of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish.concurrency import cached_property
from poolish.files.membership import ID_BITS
from poolish.fingerprints import tables
from poolish.load.member_rows import MemberRows, MemberWindowRows
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.tokens.member_windows import MemberWindows
from poolish.tokens.store import StreamStore
from poolish.tokens.stream_set import StreamSet
from poolish.tokens.window_dataset import WindowDataset

if TYPE_CHECKING:
    import pyarrow as pa

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
Span = tuple[int, int]

#: How a dataset may change: not at all; by this process alone; or under the eyes of several processes.
FIXED, LOCAL, SHARED = "fixed", "local", "shared"


class Members(NamedTuple):
    """What is known of members that may come and go, at one moment.

    Ordinals below ``n_given`` have been given out: one of them that has no span has left, for ever. Members with the
    ordinals in ``finished`` never grow again.
    """

    n_given: int
    finished: Sequence[int] = ()


class FrozenRows(Protocol):
    """Rows by id, as they are at one moment. Safe to read from threads.

    ``members() -> Members`` is for rows whose spans are members that come and go; views pass it on. Such rows answer
    ``alive`` for ids of members that have left, too, and ``branch_below`` and ``has_branch`` for some members only: the
    ordinal of each end says which.

    ``has_all(first, end) -> bool`` is for rows that can say at once that no id in a range is missing.
    """

    #: The name of what the ids belong to; empty where it has none.
    uuid: str

    @property
    def changes(self) -> str:
        """``FIXED``, ``LOCAL`` or ``SHARED``."""

    def __len__(self) -> int:
        """How many rows there are."""

    def spans(self) -> list[Span]:
        """The ranges ``[first, end)`` in which all ids lie, in the order of their ordinals."""

    def alive(self, ids: Int64) -> Mask | None:
        """Which of these ids (inside the spans) are rows; None for all."""

    def fetch(self, ids: Int64) -> list[Any]:
        """The samples with these ids, all of which are rows."""

    def table(self, ids: Int64) -> pa.Table | None:
        """The same as columns, copied; None where samples are all there is."""


def snapshot_rows(dataset: Any) -> FrozenRows:
    """``dataset`` as it is now.

    >>> rows = snapshot_rows(["rye", "wheat", "spelt"])
    >>> rows.spans(), rows.fetch(np.array([2, 0]))
    ([(0, 3)], ['spelt', 'rye'])
    """
    own = getattr(dataset, "snapshot_rows", None)
    if own is not None:
        frozen: FrozenRows = own()
        return frozen
    if isinstance(dataset, DatasetBuffer):
        return SnapshotRows(dataset.snapshot(), LOCAL)
    if isinstance(dataset, Snapshot):
        return SnapshotRows(dataset, FIXED)
    if isinstance(dataset, StreamStore):
        return StepRows(dataset)
    if isinstance(dataset, WindowDataset):
        return WindowRows(dataset)
    if isinstance(dataset, (StreamSet, MemberWindows)):
        return _member_rows(dataset)
    return NumberedRows(dataset)


def _member_rows(dataset: StreamSet | MemberWindows) -> MemberRows:
    streams = dataset if isinstance(dataset, StreamSet) else dataset.streams
    present, changes = streams.present(), SHARED if streams.is_shared else LOCAL
    members = Members(present.n_given)
    if isinstance(dataset, StreamSet):
        steps = {ordinal: StepRows(member.store) for ordinal, member in present.members.items()}
        return MemberRows(dataset.uuid, steps, members, changes)
    windows = {ordinal: WindowRows(part) for ordinal, part in dataset.parts(present).items()}
    return MemberWindowRows(dataset.uuid, windows, members, changes, width=dataset.width)


def ids_of(dataset: Any, numbers: Sequence[int] | Int64) -> Int64:
    """The ids of the rows that have these numbers now, counted from 0."""
    wanted = np.asarray(numbers, np.int64)
    if isinstance(dataset, (DatasetBuffer, Snapshot)):
        return dataset.ids[wanted]
    if isinstance(dataset, WindowDataset):
        return wanted + dataset.first_id
    if isinstance(dataset, (StreamSet, MemberWindows)):
        return np.concatenate([np.arange(first, end) for first, end in snapshot_rows(dataset).spans()])[wanted]
    own = getattr(dataset, "ids_of", None)
    if own is not None:
        ids: Int64 = own(wanted)
        return ids
    return wanted


def ordinal_of(id_: int) -> int:
    """The member that an id belongs to."""
    return id_ >> ID_BITS


class SnapshotRows:
    """The rows of a buffer."""

    def __init__(self, snapshot: Snapshot, changes: str) -> None:
        self.uuid, self.changes = snapshot.uuid, changes
        self.snapshot = snapshot
        self._first = int(snapshot.ids[0]) if len(snapshot) else snapshot.next_id
        # Where no row is missing, a row's number is its id less the first: no search.
        self._is_whole = len(snapshot) == snapshot.next_id - self._first

    @cached_property
    def _shift(self) -> int | None:
        """How far the id of a row is from its place in the columns, where that is the same for all rows."""
        if not self._is_whole or not len(self):
            return None
        first, last = self.snapshot.places([0, len(self) - 1]).tolist()
        return self._first - first if last - first == len(self) - 1 else None

    def __len__(self) -> int:
        return len(self.snapshot)

    def has_all(self, first: int, end: int) -> bool:
        """Where no row is missing."""
        return self._is_whole and first >= self._first and end <= self.snapshot.next_id

    def branch_below(self, ends: Sequence[int]) -> str:
        """The branch of the buffer that gave out the last of these ids; the first is the uuid, and left out."""
        return f"{ends[0]}:{self.snapshot.branch_of(ends[0]).removeprefix(self.uuid)}"

    def has_branch(self, branch: str) -> bool:
        """Whether the same branch did."""
        end = branch.partition(":")[0]
        return end.isdecimal() and self.branch_below([int(end)]) == branch

    def spans(self) -> list[Span]:
        """One: from the oldest row that is left."""
        return [(self._first, self.snapshot.next_id)]

    def alive(self, ids: Int64) -> Mask | None:
        """Rows leave from anywhere."""
        if self._is_whole and (not len(ids) or ids.min() >= self._first):
            return None
        return self.snapshot.numbers_of(ids)[1]

    def fetch(self, ids: Int64) -> list[Any]:
        """Rows as dicts."""
        return self.snapshot.__getitems__(self.numbers(ids))  # type: ignore[arg-type]  # an array is faster

    def table(self, ids: Int64) -> pa.Table:
        """Rows as a table of their own."""
        return self.snapshot.get_batch(self.numbers(ids))

    def content(self, span: Span) -> str:
        """A digest of the ids and values of the rows in a span."""
        ids = self.snapshot.ids
        first, end = np.searchsorted(ids, span).tolist()
        return tables.content_of(self.snapshot.to_arrow().slice(first, end - first), ids[first:end])

    def numbers(self, ids: Int64) -> Int64:
        """The numbers of rows that are known to be there."""
        return ids - self._first if self._is_whole else np.searchsorted(self.snapshot.ids, ids)

    def places(self, ids: Int64) -> Int64:
        """Where they stand in ``snapshot.stored_columns()``."""
        if self._shift is None:
            return self.snapshot.places(self.numbers(ids))
        self.snapshot.check_file()
        return ids - self._shift  # a new array: the kernels take contiguous ones, and ids may be every nth


class NumberedRows:
    """Anything with a length and an index, which may grow at its end; ids are its row numbers."""

    uuid = ""

    def __init__(self, dataset: Any, n_rows: int | None = None, changes: str = FIXED) -> None:
        self._dataset, self.changes = dataset, changes
        self._n_rows = len(dataset) if n_rows is None else n_rows

    @property
    def dataset(self) -> Any:
        """What has the rows."""
        return self._dataset

    def __len__(self) -> int:
        return self._n_rows

    def spans(self) -> list[Span]:
        """One, from 0."""
        return [(0, self._n_rows)]

    def alive(self, ids: Int64) -> Mask | None:
        """All, unless it has become shorter."""
        return None if not len(ids) or ids.max() < self._n_rows else ids < self._n_rows

    def has_all(self, first: int, end: int) -> bool:
        """All, up to the length."""
        return end <= self._n_rows

    def fetch(self, ids: Int64) -> list[Any]:
        """In one call where the dataset knows how, else one by one."""
        numbers = ids.tolist()
        many = getattr(self._dataset, "__getitems__", None)
        return list(many(numbers)) if many is not None else [self._dataset[i] for i in numbers]

    def table(self, ids: Int64) -> None:
        """Only samples."""
        return


class WindowRows(NumberedRows):
    """Windows of a stream."""

    def __init__(self, windows: WindowDataset) -> None:
        first, end = windows.span()
        super().__init__(windows, end, SHARED if windows.store.path is not None else LOCAL)
        self.uuid = windows.uuid
        self._first, self._shift = min(first, end), windows.first_id

    @property
    def n_numbers(self) -> int:
        """How many numbers windows have, those that have left included."""
        return self._n_rows

    @property
    def first_id(self) -> int:
        """The id of window 0."""
        return self._shift

    def __len__(self) -> int:
        return self._n_rows - self._first

    def spans(self) -> list[Span]:
        """From the oldest window that is kept."""
        return [(self._shift + self._first, self._shift + self._n_rows)]

    def alive(self, ids: Int64) -> Mask | None:
        """The oldest leave a bounded stream."""
        first = self._shift + self._dataset.span()[0]
        return None if not len(ids) or ids.min() >= first else ids >= first

    def has_all(self, first: int, end: int) -> bool:
        """As long as nothing has left a bounded stream."""
        return first >= self._shift + self._dataset.span()[0] and end <= self._shift + self._n_rows

    def branch_below(self, ends: Sequence[int]) -> str:
        """The branches of the stream that wrote them."""
        return str(self._dataset.branch_below(ends[0]))

    def has_branch(self, branch: str) -> bool:
        """Whether the same branches did."""
        return bool(self._dataset.store.has_branch(branch))

    def branch_of(self, row: int) -> str:
        """The branches that wrote the rows of the stream's index below one."""
        return str(self._dataset.store._view().branches.name_below(row))

    def fetch(self, ids: Int64) -> list[Any]:
        """Many windows in one go."""
        return super().fetch(ids - self._shift)

    def columns(self, ids: Int64) -> dict[str, NDArray[np.int64]]:
        """The same as columns, a row for each window."""
        windows: WindowDataset = self._dataset
        return windows.columns(ids - self._shift)


class StepRows:
    """The steps of a stream, each a dict of its fields; a field that a step does not have is None."""

    def __init__(self, store: StreamStore) -> None:
        store.refresh()
        self._store, self.uuid = store, store.uuid
        self._first, self._end = store.step_span()

    # A temporary stream has one writer in one process, and no other process can open it.
    @property
    def changes(self) -> str:
        """Streams with a path are written by one process and read by others."""
        return LOCAL if self._store.path is None else SHARED

    def __len__(self) -> int:
        return self._end - self._first

    def spans(self) -> list[Span]:
        """From the oldest step that is kept."""
        return [(self._first, self._end)]

    def alive(self, ids: Int64) -> Mask | None:
        """The oldest leave a bounded stream."""
        first = self._first_kept()
        return None if not len(ids) or ids.min() >= first else ids >= first

    def has_all(self, first: int, end: int) -> bool:
        """As long as nothing has left a bounded stream."""
        return first >= self._first_kept() and end <= self._end

    def _first_kept(self) -> int:
        self._store.refresh()  # a reader learns only so what has been trimmed
        return self._store.step_span()[0]

    def branch_below(self, ends: Sequence[int]) -> str:
        """The branches of the stream that wrote them."""
        return self._store.branch_below(ends[0])

    def has_branch(self, branch: str) -> bool:
        """Whether the same branches did."""
        return self._store.has_branch(branch)

    def branch_of(self, row: int) -> str:
        """The branches that wrote the rows of the stream's index below one."""
        return self._store._view().branches.name_below(row)

    def fetch(self, ids: Int64) -> list[Any]:
        """Steps as dicts that all have the same fields; numbers are NumPy's, of the dtype that the field declares."""
        names, dtypes = self._store.field_to_type, _scalar_dtypes(self._store)
        found = self._store.steps_at(ids)
        for step in found:
            for name, dtype in dtypes:
                if isinstance(step.get(name), (int, float)):
                    step[name] = dtype(step[name])
        return [{name: step.get(name) for name in names} for step in found]

    def table(self, ids: Int64) -> None:
        """Only samples."""
        return


def _scalar_dtypes(store: StreamStore) -> list[tuple[str, type[np.generic]]]:
    """Fields of single numbers that Python's int and float would widen, each with its dtype."""
    declared = [(name, feature.dtype) for name, feature in store.features.items() if type(feature).__name__ == "Value"]
    return [(name, np.dtype(dtype).type) for name, dtype in declared if dtype not in ("int64", "float64", "bool")]


def members_of(rows: FrozenRows) -> Members | None:
    """The members of a dataset in which they may come and go; None where the number of spans is fixed."""
    own = getattr(rows, "members", None)
    found: Members | None = None if own is None else own()
    return found


def has_all(rows: FrozenRows, first: int, end: int) -> bool:
    """Whether every id from ``first`` up to ``end`` is a row, as far as ``rows`` know it without looking at each.

    >>> has_all(snapshot_rows(["rye", "oats"]), 0, 2), has_all(snapshot_rows(["rye", "oats"]), 1, 3)
    (True, False)
    """
    own = getattr(rows, "has_all", None)
    return own is not None and bool(own(first, end))


def fixed_by(rows: FrozenRows) -> list[int] | None:
    """What must stay as it is for ids to mean the same rows; None where ids mean their rows for ever."""
    own = getattr(rows, "fixed_by", None)
    found: list[int] | None = None if own is None else own()
    return found


def branch_below(rows: FrozenRows, ends: Sequence[int]) -> Any:
    """Which branches wrote the rows below ``ends``, one for each span; None where there are no branches.

    A buffer or stream that is copied, and then appended to in both copies, is two of one uuid: the same ids are other
    rows.
    """
    own = getattr(rows, "branch_below", None)
    return None if own is None else own(ends)


def has_branch(rows: FrozenRows, branch: Any) -> bool:
    """Whether what ``branch_below`` said holds for these rows."""
    own = getattr(rows, "has_branch", None)
    return own is None or branch is None or bool(own(branch))


def content_of(rows: FrozenRows, span: Span) -> str:
    """A digest of the logical rows of a span, views left aside; empty where no buffer holds them.

    >>> one, other = DatasetBuffer(), DatasetBuffer()
    >>> one.append([{"n": 1}, {"n": 2}])
    >>> other.append([{"n": 1}])
    >>> other.append([{"n": 2}])
    >>> content_of(snapshot_rows(one), (0, 2)) == content_of(snapshot_rows(other), (0, 2))
    True
    """
    own = getattr(rows, "content", None)
    return "" if own is None else str(own(span))


def pass_epoch(dataset: Any, epoch: int) -> None:
    """Tell ``dataset`` which epoch begins, if it wants to know."""
    own = getattr(dataset, "set_epoch", None)
    if own is not None:
        own(epoch)


def choice_of(dataset: Any) -> str:
    """Which rows, under which numbers, the views of a dataset make of what is below them; empty where all, as they are.

    >>> choice_of([1, 2, 3])
    ''
    """
    inner = getattr(dataset, "dataset", None)
    parts = getattr(dataset, "datasets", None) if inner is None else [inner]
    below = [choice_of(part) for part in parts] if isinstance(parts, list) else []
    own = getattr(dataset, "choice", "")
    if len(below) > 1:
        return f"{own}({','.join(below)})" if own or any(below) else ""
    return " of ".join(each for each in (own if isinstance(own, str) else "", *below) if each)


#: Features whose Arrow values are what the dataset shows; others are decoded, such as images.
_PLAIN = ("Value", "ClassLabel", "List", "LargeList", "Sequence")


def is_arrow(rows: FrozenRows) -> bool:
    """Whether these rows are those of a Hugging Face dataset that shows them as they are stored."""
    if type(rows) is not NumberedRows:
        return False
    dataset = rows.dataset
    if type(dataset).__module__ != "datasets.arrow_dataset" or dataset.format["type"] is not None:
        return False
    return all(map(_is_plain, dataset.features.values()))


def _is_plain(feature: Any) -> bool:
    inner = getattr(feature, "feature", None)
    return type(feature).__name__ in _PLAIN and (inner is None or _is_plain(inner))


def table_of(rows: FrozenRows, ids: Int64) -> pa.Table:
    """These rows of such a dataset."""
    assert isinstance(rows, NumberedRows)
    shown = rows.dataset.with_format("arrow", columns=rows.dataset.format["columns"])
    table: pa.Table = shown[ids.tolist()]
    return table
