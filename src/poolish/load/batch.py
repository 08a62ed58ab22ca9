"""What a loader yields: columns that know their rows, collated from samples.

Numbers and arrays are stacked, text stays a list, dicts and tuples are collated inside. Arrays of one shape become one
array; of several shapes a list of arrays. Namedtuples and dataclasses are collated field by field and keep their class.
The output is NumPy's; ``tensors`` converts it. Any other sample becomes the column ``value``.

A batch of structures (namedtuples, dataclasses) is an object of the same class with columns for values. It is built
without calling the class: ``__init__``, ``__new__`` and ``__post_init__`` have seen every sample, and would mistake a
column for a value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from poolish import torch_bridge
from poolish.errors import SchemaError
from poolish.load.frozen import Int64
from poolish.torch_bridge import from_array, is_torch_tensor

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
        replaced = [name for name in self if name in columns and length_of(self[name]) == n_rows]
        return n_rows is not None and any(length_of(columns[name]) != n_rows for name in replaced)


def length_of(column: Any) -> int | None:
    """How many values a column has; None for a single one."""
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


def labelled(columns: Any, origin: Origin, ids: Int64 | None) -> Any:
    """``columns`` as a batch that knows where it comes from, where it has room for that; anything else stays as it is.

    ``ids`` are its rows: those of ``origin``, unless a transform made others of them; None if they are not known.
    A namedtuple becomes one of a subclass. A dataclass is registered by its class in many libraries, so it keeps
    exactly that; with ``slots`` it has no room. Fields that have these names keep their meaning.
    """
    if isinstance(columns, dict):
        return Batch(columns, ids=ids, position=origin.position, step=origin.step)
    known = {"ids": ids, "position": origin.position, "step": origin.step}
    if isinstance(columns, tuple) and (type(columns) in (tuple, BatchTuple) or is_namedtuple(columns)):
        batch = tuple.__new__(_tuple_class(type(columns)), columns)
        vars(batch).update(known)
        return batch
    if is_structure(columns) and hasattr(columns, "__dict__") and not _has_such_names(columns):
        vars(columns).update(known)
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


def _column(name: str, values: Sequence[Any]) -> Any:
    return column(values)


def collate(samples: Sequence[Any], make: Callable[[str, Sequence[Any]], Any] = _column) -> Any:
    """One batch of samples that are alike; ``make(name, values)`` makes each column, named by its place in a tuple.

    >>> collate([{"x": np.zeros(2), "text": "rye"}, {"x": np.ones(2), "text": "wheat"}])
    {'x': array([[0., 0.], [1., 1.]]), 'text': ['rye', 'wheat']}
    >>> collate([(1.0, 0), (2.0, 1)])
    (array([1., 2.]), array([0, 1]))
    """
    first = samples[0] if samples else {}
    if isinstance(first, Mapping):
        return _columns(samples, first, make)
    if is_structure(first):
        return _structure(samples, first, make)
    if isinstance(first, tuple):
        return _tuple(samples, first, make)
    return {"value": make("value", samples)}


def _columns(samples: Sequence[Mapping[str, Any]], first: Mapping[str, Any], make: Any) -> dict[str, Any]:
    names = list(first)
    for i, sample in enumerate(samples):
        if not isinstance(sample, Mapping) or sample.keys() != first.keys():
            has = list(sample) if isinstance(sample, Mapping) else type(sample).__name__
            raise SchemaError(f"sample {i} of the batch has {has}, the first has {names}; pass a collate_fn")
    return {name: make(name, [sample[name] for sample in samples]) for name in names}


def _structure(samples: Sequence[Any], first: Any, make: Any) -> Any:
    for i, sample in enumerate(samples):
        if type(sample) is not type(first):
            raise SchemaError(
                f"sample {i} of the batch is of {type(sample).__name__}, the first is of {type(first).__name__} with "
                f"the fields {list(field_names(first))}; make them one class, or pass a collate_fn"
            )
    return rebuilt(first, map(make, field_names(first), zip(*map(field_values, samples), strict=True)))


def _tuple(samples: Sequence[Any], first: tuple[Any, ...], make: Any) -> tuple[Any, ...]:
    for i, sample in enumerate(samples):
        if not isinstance(sample, tuple) or len(sample) != len(first):
            raise SchemaError(
                f"sample {i} of the batch is no tuple of {len(first)} as the first one is; pass a collate_fn"
            )
    return tuple(make(str(i), list(values)) for i, values in enumerate(zip(*samples, strict=True)))


def column(values: Sequence[Any]) -> Any:
    """One column: an array where values are numbers or arrays of one shape, else a list."""
    first: Any = values[0] if values else None
    if isinstance(first, (bool, int, float, np.generic)) and not isinstance(first, (np.str_, np.bytes_)):
        return _numbers(values)
    if isinstance(first, np.ndarray) and first.dtype.kind in "biufc":
        alike = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return np.stack(values) if alike else list(values)
    if is_torch_tensor(first):
        import torch

        alike = all(is_torch_tensor(v) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return torch.stack(list(values)) if alike else list(values)
    if isinstance(first, Mapping) and all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
        return {name: column([value[name] for value in values]) for name in first}
    if type(first) is tuple and all(type(v) is tuple and len(v) == len(first) for v in values):
        return tuple(column(list(inner)) for inner in zip(*values, strict=True))
    if is_structure(first) and all(type(v) is type(first) for v in values):
        return rebuilt(first, (column(inner) for inner in zip(*map(field_values, values), strict=True)))
    return list(values)


def _numbers(values: Sequence[Any]) -> Any:
    """Whole numbers, fractions or flags; anything among them that is none of these leaves a list."""
    if any(isinstance(value, (str, bytes)) or value is None for value in values):
        return list(values)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):  # arrays among the numbers, or a number beyond 64 bits
        return list(values)
    return array if array.dtype.kind in "biufcmM" else list(values)


def chosen(columns: Any, numbers: Any) -> Any:
    """Some rows of a batch, by their numbers in it."""

    def take(values: Any) -> Any:
        if is_array(values):
            return values[numbers]
        return values.take(numbers) if hasattr(values, "take") else [values[number] for number in numbers]

    return map_columns(take, columns, inside_lists=False)


def empty_like(columns: Any) -> Any:
    """A batch of no rows, in the form of one that has some."""

    def emptied(values: Any) -> Any:
        try:
            return values[:0]
        except (TypeError, IndexError):  # a collate_fn may give anything, such as one number for the whole batch
            return values

    return map_columns(emptied, columns, inside_lists=False)


def tensors(columns: Any) -> Any:
    """A batch with its numeric arrays as tensors, however nested; everything else stays as it is."""
    return map_columns(_tensor, columns)


def _tensor(values: Any) -> Any:
    is_numeric = isinstance(values, np.ndarray) and values.dtype.kind in "biufc"
    return from_array(values) if is_numeric else values


def is_namedtuple(value: object) -> bool:
    """Whether a value is a tuple whose fields have names."""
    return isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple)


def is_structure(value: object) -> bool:
    """Whether a value is a namedtuple, or an object of a dataclass."""
    return is_namedtuple(value) or (is_dataclass(value) and not isinstance(value, type))


def field_names(value: Any) -> tuple[str, ...]:
    """The fields of a structure, in their order."""
    return value._fields if is_namedtuple(value) else tuple(field.name for field in fields(value))


def field_values(value: Any) -> tuple[Any, ...]:
    """What the fields of a structure hold.

    >>> from typing import NamedTuple
    >>> class Loaf(NamedTuple):
    ...     flour: str
    ...     grams: int
    >>> field_values(Loaf("rye", 900))
    ('rye', 900)
    """
    return tuple(value) if is_namedtuple(value) else tuple(getattr(value, name) for name in field_names(value))


def rebuilt(like: Any, values: Iterable[Any]) -> Any:
    """A structure of the class of ``like`` with other values, in the order of its fields; frozen ones as well."""
    if is_namedtuple(like):
        return tuple.__new__(type(like), values)
    made = object.__new__(type(like))
    for name, value in zip(field_names(like), values, strict=True):
        object.__setattr__(made, name, value)
    return made


def map_columns(change: Callable[[Any], Any], columns: Any, *, inside_lists: bool = True) -> Any:
    """A batch with ``change`` applied to every column, also inside dicts, tuples and dataclasses.

    A list of arrays is a column of rows that differ in shape; ``change`` is applied to each of them, or to the list.
    """
    change_inner = partial(map_columns, change, inside_lists=inside_lists)
    if isinstance(columns, Mapping):
        return {name: change_inner(values) for name, values in columns.items()}
    if is_structure(columns):
        return rebuilt(columns, map(change_inner, field_values(columns)))
    if isinstance(columns, tuple):
        return tuple(map(change_inner, columns))
    if inside_lists and isinstance(columns, list) and columns and is_array(columns[0]):
        return [change(values) for values in columns]
    return change(columns)


def named_columns(columns: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The columns of a batch by name: ``outer.inner`` inside others, numbers in tuples.

    >>> list(named_columns({"crumb": {"size": [1, 2]}, "pair": ([3], [4])}))
    [('crumb.size', [1, 2]), ('pair.0', [3]), ('pair.1', [4])]
    """
    if isinstance(columns, Mapping):
        inner = list(columns.items())
    elif is_structure(columns):
        inner = list(zip(field_names(columns), field_values(columns), strict=True))
    elif isinstance(columns, tuple):
        inner = list(enumerate(columns))
    else:
        yield name, columns
        return
    for key, values in inner:
        yield from named_columns(values, f"{name}.{key}" if name else str(key))


def is_array(value: object) -> bool:
    """Whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray) or torch_bridge.is_torch_tensor(value)


# Of the object alone. getsizeof is not: that of an Arrow table has its columns in it, that of a tensor has not.
_size_alone = object.__sizeof__
#: Types whose values hold nothing else.
_ALONE = frozenset({int, float, bool, str, bytes, complex, type(None)})


def nbytes(value: Any) -> int:
    """The bytes of all arrays, tensors, tables and text inside, and of whatever holds them.

    >>> import numpy as np
    >>> nbytes({"crumb": np.zeros(1000), "label": 1}) - 8000 < 500
    True
    """
    if type(value) in _ALONE:  # most values; what follows takes ten times as long
        return sys.getsizeof(value)
    own = getattr(value, "nbytes", None)
    if isinstance(own, int):
        return own + _size_alone(value)
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(map(nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(nbytes, value))
    if is_structure(value):
        return sys.getsizeof(value) + sum(map(nbytes, field_values(value)))
    return sys.getsizeof(value)
