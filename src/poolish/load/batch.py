"""What a loader yields: columns, and which rows they are."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from poolish.load.frozen import Int64
from poolish.load.structures import field_names, is_namedtuple, is_structure

#: The random name of the loader that handed a batch out, and the number of the batch.
Flight = tuple[str, int]


class Batch(dict[str, Any]):
    """Columns of one batch, with the ids of its rows and its place in the order of all rows.

    ``ids[i]`` is the row that ``batch[name][i]`` came from; ``position`` counts the rows of this epoch that came before
    the step, over all ranks; ``step`` counts steps since training began. All three are None where they are unknown: in
    a batch that a framework rebuilt as ``type(batch)(columns)``. Copies, pickles and ``batch | columns`` keep them, if
    the columns that are replaced have as many rows as before.

    >>> import numpy as np
    >>> batch = Batch({"label": np.array([1, 0])}, ids=np.array([17, 4]), position=256, step=8)
    >>> batch["label"].tolist(), batch.ids.tolist(), batch.position, len(batch.ids)
    ([1, 0], [17, 4], 256, 2)
    >>> (batch | {"weight": [0.5, 1.0]}).step, type(batch)({"label": [1, 0]}).step, (batch | {"label": [1]}).step
    (8, None, None)
    """

    #: Which batch in flight this is, where batches are acknowledged; copies have the same.
    flight: Flight | None = None

    def __init__(
        self, columns: Any = (), *, ids: Int64 | None = None, position: int | None = None, step: int | None = None
    ) -> None:
        super().__init__(columns)
        self.ids = ids
        self.position = position
        self.step = step

    def copy(self) -> Batch:
        """The same columns of the same rows."""
        copied = Batch(self, ids=self.ids, position=self.position, step=self.step)
        copied.flight = self.flight
        return copied

    def __or__(self, columns: Any) -> Any:
        """The same rows with more columns, or others."""
        if not isinstance(columns, dict):
            return NotImplemented
        both = self.copy()
        both |= columns
        return both

    def __ior__(self, columns: Any) -> Any:
        """The same in place."""
        new = dict(columns)
        if self._has_other_rows(new):
            self.ids = self.position = self.step = self.flight = None
        return super().__ior__(new)

    def _has_other_rows(self, columns: dict[str, Any]) -> bool:
        """Whether a column of one value a row is replaced by one of another length."""
        n_rows = None if self.ids is None else len(self.ids)
        replaced = [name for name in self if name in columns and _length(self[name]) == n_rows]
        return n_rows is not None and any(_length(columns[name]) != n_rows for name in replaced)


def _length(column: Any) -> int | None:
    try:
        return len(column)
    except TypeError:  # a number, or an array of no dimensions
        return None


class BatchTuple(tuple[Any, ...]):
    """The same for samples that are tuples: ``for x, y in loader``."""

    ids: Int64 | None = None
    position: int | None = None
    step: int | None = None
    flight: Flight | None = None


class Origin(NamedTuple):
    """Which rows a batch is made of, and where in the order of all rows it comes: what ``Batch`` knows of itself."""

    ids: Int64
    position: int
    step: int


def labelled(columns: Any, origin: Origin) -> Any:
    """``columns`` as a batch that knows its rows, where it has room for that; anything else stays as it is.

    A namedtuple becomes one of a subclass. A dataclass is registered by its class in many libraries, so it keeps
    exactly that; with ``slots`` it has no room. Fields that have these names keep their meaning.
    """
    if isinstance(columns, dict):
        return Batch(columns, ids=origin.ids, position=origin.position, step=origin.step)
    if isinstance(columns, tuple) and (type(columns) is tuple or is_namedtuple(columns)):
        batch = tuple.__new__(_tuple_class(type(columns)), columns)
        vars(batch).update(origin._asdict())
        return batch
    if is_structure(columns) and hasattr(columns, "__dict__") and not _has_such_names(columns):
        vars(columns).update(origin._asdict())
    return columns


def _has_such_names(columns: Any) -> bool:
    own = (*field_names(columns), *dir(type(columns)))
    return any(name in own for name in Origin._fields)


@cache
def _tuple_class(class_: type) -> type[BatchTuple]:
    """``BatchTuple``, or the class of a namedtuple with room for what a batch knows."""
    if class_ is tuple:
        return BatchTuple
    if issubclass(class_, BatchTuple):  # a collate_fn returned a batch that it was given
        return class_
    about = {"__module__": class_.__module__, "__qualname__": class_.__qualname__, "__doc__": class_.__doc__}
    return type(class_.__name__, (_Quietly, class_, BatchTuple), {**about, "_named": class_})


class _Quietly:
    """First of the bases: a class of the user's is not informed of a subclass that is made here, nor of its copies."""

    _named: type

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def _replace(self, /, **columns: Any) -> Any:
        """The same rows with other columns, as ``batch | columns`` is for dicts."""
        return _restored(self._named, self._named._replace(self, **columns), vars(self))  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restored, (self._named, tuple(self), vars(self))  # type: ignore[arg-type]


def _restored(class_: type, columns: Any, known: dict[str, Any]) -> BatchTuple:
    batch = tuple.__new__(_tuple_class(class_), columns)
    vars(batch).update(known)
    return batch
