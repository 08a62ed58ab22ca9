"""Batches of rows that differ in length: padded to one array, with the lengths and a mask.

    rows             tokens       tokens_length    tokens_mask
    [3, 1]           3 1 0        2                1 1 0
    []               0 0 0        0                0 0 0
    [4, 1, 5]        4 1 5        3                1 1 1

Columns of a buffer, a snapshot or a Hugging Face dataset are padded from Arrow's offsets by one kernel call for the
batch, into pinned memory if they go to a CUDA device; samples are laid one behind the other first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish import kernels, torch_bridge
from poolish.arguments import check_whole
from poolish.concurrency import Locked
from poolish.errors import ConfigError, SchemaError
from poolish.fixed import fixed_parameters
from poolish.load.batch import collate, column, named_columns, tensors
from poolish.load.ragged_rows import Int64, RaggedRows, is_ragged, rows_of, rows_of_values
from poolish.ragged import Ragged
from poolish.schema import numpy_dtype, readable
from poolish.schema.types import exactly
from poolish.torch_bridge import is_torch_tensor

SIDES = ("right", "left")
TOO_LONG = ("error", "truncate", "truncate_left")

_ZERO = np.zeros(1, np.uint8)

#: From a number of bytes and a dtype to memory: as bytes to fill, and as the values that are handed out.
Room = Callable[[int, str], tuple[NDArray[np.uint8], Any]]
#: From places in a column, None for all of it, to the padded column.
TakePadded = Callable[[Int64 | None], Any]
#: From values as they are stored to values as they are handed out.
Cast = Callable[[Any, str], Any]


class Padded(NamedTuple):
    """A padded column where columns have no names: how long each row is, and which values are its own."""

    values: Any
    length: Any
    mask: Any


class Truncated(NamedTuple):
    """The same where long rows are truncated: ``cut`` is how many values each row has lost."""

    values: Any
    length: Any
    mask: Any
    cut: Any


class PaddedColumns(dict[str, Any]):
    """Columns of one part of a batch; those in ``padded`` may be wider in other parts, and are filled with a value."""

    def __init__(self, columns: Mapping[str, Any], padded: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.padded = padded


@fixed_parameters("make a new PaddedCollate")
class PaddedCollate(Locked):
    """A ``collate_fn`` that pads ragged columns and adds ``<name>_length`` and ``<name>_mask``.

    Lists of numbers and one-dimensional arrays are padded, of a buffer's columns all that are declared ragged; text and
    lists of lists stay lists. ``columns`` names what is padded instead. In a tuple or dataclass a column becomes
    ``(values, length, mask)``. The mask is true where a value is; nulls inside a row are padded, a null row is empty.
    dtypes stay as they are; Python's numbers become int64, float64 and bool.

    Rows are padded behind their values (``side="right"``) to the longest of the batch, rounded up to a ``multiple_of``
    (at least one), with ``pad_value``: one for all columns, or a dict by column. A row longer than ``max_length`` is an
    error, or loses its end (``too_long="truncate"``) or begin (``"truncate_left"``): ``<name>_cut`` has how much, and
    ``truncated`` counts such rows. ``ragged_dims`` first dimensions of arrays may differ, with a length for each.

    Called with a batch instead of samples, it pads its ragged columns: ``Loader(transform=PaddedCollate())``.

    >>> pad = PaddedCollate(pad_value={"tokens": -1}, multiple_of=4)
    >>> batch = pad([{"tokens": [3, 1], "label": 0}, {"tokens": [4, 1, 5], "label": 1}])
    >>> batch["tokens"].tolist(), batch["tokens_length"].tolist()
    ([[3, 1, -1, -1], [4, 1, 5, -1]], [2, 3])
    >>> batch["tokens_mask"].tolist()[0], batch["label"].tolist()
    ([True, True, False, False], [0, 1])
    """

    def __init__(
        self,
        *,
        pad_value: float | Mapping[str, float] = 0,
        side: str = "right",
        multiple_of: int | None = None,
        max_length: int | None = None,
        too_long: str = "error",
        columns: Iterable[str | int] | None = None,
        ragged_dims: int = 1,
    ) -> None:
        super().__init__()
        self.pad_value = dict(pad_value) if isinstance(pad_value, Mapping) else pad_value
        for value in self.pad_value.values() if isinstance(self.pad_value, dict) else [self.pad_value]:
            if not isinstance(value, (int, float, np.number, np.bool_)):
                raise ConfigError(f"pad_value={pad_value!r}: a number, or numbers by column")
        self.side, self.too_long = _one_of(side, "side", SIDES), _one_of(too_long, "too_long", TOO_LONG)
        self.multiple_of = None if multiple_of is None else check_whole(multiple_of, "multiple_of")
        self.max_length = None if max_length is None else check_whole(max_length, "max_length")
        self.ragged_dims = check_whole(ragged_dims, "ragged_dims")
        if isinstance(columns, (str, bytes)):
            raise ConfigError(f"columns={columns!r}: a list of names, such as columns=[{columns!r}]")
        self.columns = None if columns is None else tuple(map(str, columns))
        if self.max_length is None and too_long != "error":
            raise ConfigError(f"too_long={too_long!r} needs max_length=: how long a row may be")
        self._n_truncated: Counter[str] = Counter()

    @property
    def truncated(self) -> dict[str, int]:
        """How many rows were truncated so far, by column; those of batches that were read ahead are in it."""
        with self._lock:
            return dict(self._n_truncated)

    def __call__(self, samples: Any) -> Any:
        """A batch of samples, or of the columns of a batch: tensors where torch is installed."""
        if isinstance(samples, Mapping):
            return self._of_batch(samples)
        made = self.collate(samples)
        return tensors(made) if torch_bridge.is_installed() else made

    def collate(self, samples: Sequence[Any]) -> Any:
        """A batch of samples: arrays, and tensors where samples have tensors."""
        seen: list[str] = []

        def make(name: str, values: Sequence[Any]) -> Any:
            seen.append(name)
            return self._column(name, values)

        made = collate(samples, make)
        if samples:
            self.check_names(seen)
        return self._spread(made) if isinstance(made, dict) else made

    def _of_batch(self, batch: Mapping[str, Any]) -> Any:
        self.check_names(batch)
        lists = {name: values for name, values in batch.items() if isinstance(values, (list, Ragged))}
        made = self._spread({name: self._column(name, values) for name, values in lists.items()}, batch)
        is_torch = any(is_torch_tensor(values) for _, values in named_columns(batch))
        both: Any = batch if isinstance(batch, dict) else dict(batch)
        return both | (tensors(made) if is_torch else made)

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse ``columns`` and keys of ``pad_value`` that a batch does not have."""
        has, wanted = set(names), self.columns or ()
        given = self.pad_value if isinstance(self.pad_value, dict) else {}
        for option, asked in (("columns", wanted), ("pad_value", given)):
            missing = [name for name in asked if name not in has]
            if missing:
                raise ConfigError(f"{option}= of PaddedCollate names {missing[0]!r}, the batch has {sorted(has)}")

    # -- one column of samples

    def _column(self, name: str, values: Any) -> Any:
        """The values of all rows: padded, or as they are collated anyway."""
        if isinstance(values, Ragged):
            rows, is_torch = _of_offsets(values), is_torch_tensor(values.values)
        else:
            if self.columns is not None and name not in self.columns:
                return column(values)
            first = next((value for value in values if value is not None), None)
            if self.columns is None and not _is_sequence(first):
                return self._alike(name, values, column(values))
            found = rows_of_values(name, values, self._empty(name))
            if found is None:
                if self.columns is None:
                    return column(values)
                raise _unfit(name, f"{type(first).__name__} {first!r}"[:200])
            rows, is_torch = found, is_torch_tensor(first)
        room = partial(torch_bridge.empty_bytes, pin=False) if is_torch else array_room
        return self.pad(name, rows, room, _as_it_is if is_torch else readable)

    def _alike(self, name: str, values: Sequence[Any], made: Any) -> Any:
        """Arrays that were stacked; several shapes among them are not left to chance."""
        is_list_of_arrays = isinstance(made, list) and any(getattr(value, "ndim", 0) > 1 for value in values)
        if is_list_of_arrays:
            shapes = sorted({tuple(getattr(value, "shape", ())) for value in values})
            raise SchemaError(
                f"column {name!r}: arrays of shapes {', '.join(map(str, shapes[:3]))}; name it to pad it: "
                f"PaddedCollate(columns=[{name!r}]), with ragged_dims= if more than the first dimension differs"
            )
        return made

    def _spread(self, made: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
        """Padded columns as several, beside those that are called ``others``."""
        taken: set[str] = {*made, *others}
        spread: dict[str, Any] = {}
        for name, value in made.items():
            is_padded = isinstance(value, (Padded, Truncated))
            spread |= zip(self.spread_names(name, taken), value, strict=True) if is_padded else {name: value}
        return spread

    # -- one column of Arrow

    def taking(self, name: str, array: pa.Array, room: Room, cast: Cast) -> TakePadded | None:
        """From places in a column to the padded column; None if it is not padded."""
        is_named = self.columns is not None and name in self.columns
        if not is_named and (self.columns is not None or not is_ragged(array.type)):
            return None
        find = rows_of(array, self._empty(name))
        if find is None:
            raise _unfit(name, str(array.type))
        return lambda places: self.pad(name, find(places), room, cast)

    def spread_names(self, name: str, taken: Iterable[str]) -> list[str]:
        """What the parts of a padded column are called in a batch of the columns ``taken``."""
        parts = (Padded if self.too_long == "error" else Truncated)._fields[1:]
        return [name, *(_free(f"{name}_{part}", taken) for part in parts)]

    def filled(self, name: str) -> dict[str, Any]:
        """The parts of a padded column that have a value for each place, and what is where there is none."""
        return {name: self._value(name), f"{name}_mask": False}

    # -- padding

    def pad(self, name: str, rows: RaggedRows, room: Room, cast: Cast) -> Padded | Truncated:
        """Rows as one column, written into new memory of ``room``."""
        shapes, n_dims = rows.shapes, min(self.ragged_dims, rows.shapes.shape[1])
        lengths, fixed = shapes[:, :n_dims], _fixed_sizes(name, shapes, n_dims)
        kept = self._kept(name, lengths)
        widths = [self._width(int(kept[:, i].max(initial=0))) for i in range(n_dims)]
        item = np.tile(self._item(name, rows.dtype), math.prod(fixed))
        begins, sizes = self._strips(rows, kept, widths, len(item))
        memory, values = room(len(kept) * math.prod(widths) * len(item), rows.dtype)
        if len(item):
            self._write(rows.source, begins, sizes * len(item), widths[-1] * len(item), item, memory)
        mask_memory, mask = room(len(kept) * math.prod(widths), "bool")
        if rows.are_present is None:
            ones = np.ones(widths[-1], np.uint8)
            self._write(ones, np.zeros_like(begins), sizes, widths[-1], _ZERO, mask_memory)
        else:
            self._write(rows.are_present.view(np.uint8), begins // len(item), sizes, widths[-1], _ZERO, mask_memory)
            memory.reshape(-1, len(item))[mask_memory == 0] = item
        shape = (len(kept), *widths)
        padded = Padded(cast(values.reshape(*shape, *fixed), rows.dtype), _numbers(kept, room), mask.reshape(shape))
        return padded if self.too_long == "error" else Truncated(*padded, cut=_numbers(lengths - kept, room))

    def _write(
        self, source: Any, begins: Int64, sizes: Int64, row_size: int, item: NDArray[np.uint8], out: Any
    ) -> None:
        kernels.pad_ranges(source, begins, sizes, row_size, self.side == "left", item, out)

    def _strips(self, rows: RaggedRows, kept: Int64, widths: Sequence[int], item_bytes: int) -> tuple[Int64, Int64]:
        """Where each run of values that stays together begins, and how many it has: a row, or a line of a picture."""
        n_dims, shapes = kept.shape[1], rows.shapes
        steps = np.full(kept.shape, item_bytes, np.int64)  # the bytes from a place to the next, in each dimension
        for i in range(n_dims - 2, -1, -1):
            steps[:, i] = steps[:, i + 1] * shapes[:, i + 1]
        begins, sizes = rows.begins, kept[:, -1]
        if self.too_long == "truncate_left":
            begins = begins + ((shapes[:, :n_dims] - kept) * steps).sum(axis=1)
        for i in range(n_dims - 1):
            first = widths[i] - kept[:, i, None] if self.side == "left" else 0
            places = np.arange(widths[i]) - first  # which value of a row stands in each place
            is_inside = ((places >= 0) & (places < kept[:, i, None])).reshape(len(kept), *(1,) * i, -1)
            moves = (places * steps[:, i, None]).reshape(is_inside.shape)
            begins = np.where(is_inside, begins.reshape(len(kept), *widths[:i], 1) + moves, 0)
            sizes = np.where(is_inside, sizes.reshape(len(kept), *sizes.shape[1 : i + 1], 1), 0)
        return np.ascontiguousarray(begins.reshape(-1)), np.ascontiguousarray(sizes.reshape(-1))

    def _width(self, longest: int) -> int:
        each = self.multiple_of
        return longest if each is None else max(1, -(-longest // each)) * each

    def _kept(self, name: str, lengths: Int64) -> Int64:
        limit = self.max_length
        if limit is None or not (lengths > limit).any():
            return np.ascontiguousarray(lengths)
        if self.too_long == "error":
            row = int(np.flatnonzero((lengths > limit).any(axis=1))[0])
            raise SchemaError(
                f"row {row} of the batch, column {name!r}: {int(lengths[row].max())} values, max_length={limit}; "
                'filter such rows, or pass too_long="truncate"'
            )
        with self._lock:
            self._n_truncated[name] += int((lengths > limit).any(axis=1).sum())
        return np.minimum(lengths, limit)

    def _value(self, name: str) -> Any:
        return self.pad_value.get(name, 0) if isinstance(self.pad_value, dict) else self.pad_value

    def _empty(self, name: str) -> str:
        """The dtype of lists without elements: that of the pad value."""
        return np.asarray(self._value(name)).dtype.name

    def _item(self, name: str, dtype: str) -> NDArray[np.uint8]:
        """The pad value as the bytes of one value."""
        value = self._value(name)
        stored = _stored(value, dtype)
        if stored is None:
            raise ConfigError(f"column {name!r} is {dtype}, which cannot hold pad_value={value!r}; pass another one")
        return stored.reshape(1).view(np.uint8)

    # -- several parts of one batch

    def joined(self, parts: Sequence[PaddedColumns], join: Callable[[list[Any]], Any]) -> dict[str, Any]:
        """One batch of several parts, each padded to its own longest row."""
        padded = parts[0].padded
        columns = {name: [part[name] for part in parts] for name in parts[0]}
        return {
            name: join(self._widened(name, values, padded[name]) if name in padded else values)
            for name, values in columns.items()
        }

    def _widened(self, name: str, parts: list[Any], value: Any) -> list[Any]:
        n_dims = min(self.ragged_dims, len(parts[0].shape) - 1)
        fixed = [tuple(part.shape[1 + n_dims :]) for part in parts if math.prod(part.shape)]
        if len(set(fixed)) > 1:
            raise _uneven(name, n_dims, min(fixed), max(fixed))
        shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
        return [part if list(part.shape[1:]) == shape else self._within(shape, part, value) for part in parts]

    def _within(self, shape: list[int], part: Any, value: Any) -> Any:
        whole = (len(part), *shape)
        made = part.new_full(whole, value) if is_torch_tensor(part) else np.full(whole, value, part.dtype)
        sizes = zip(shape, part.shape[1:], strict=True)
        inner = [slice(n - own, n) if self.side == "left" else slice(own) for n, own in sizes]
        made[(slice(None), *inner)] = part
        return made


def array_room(n_bytes: int, dtype: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """New memory as bytes to be filled, and the array of ``dtype`` that reads it."""
    memory = np.empty(n_bytes, np.uint8)
    return memory, memory.view(numpy_dtype(dtype))


def _as_it_is(values: Any, dtype: str) -> Any:
    return values


def _numbers(numbers: Int64, room: Room) -> Any:
    """Lengths in new memory: one a row, or one for each dimension."""
    memory, values = room(numbers.nbytes, "int64")
    memory.view(np.int64)[:] = numbers.reshape(-1)
    return values if numbers.shape[1] == 1 else values.reshape(numbers.shape)


def _fixed_sizes(name: str, shapes: Int64, n_dims: int) -> tuple[int, ...]:
    """The sizes of the dimensions that are not padded, of all rows that have values."""
    behind = shapes[(shapes[:, :n_dims] > 0).all(axis=1), n_dims:]
    if not len(behind):
        return tuple(shapes[:, n_dims:].max(axis=0, initial=0).tolist())
    if (behind != behind[0]).any():
        raise _uneven(name, n_dims, behind.min(axis=0).tolist(), behind.max(axis=0).tolist())
    return tuple(behind[0].tolist())


def _uneven(name: str, n_dims: int, a: Sequence[int], b: Sequence[int]) -> SchemaError:
    return SchemaError(
        f"column {name!r}: rows differ behind dimension {n_dims} too, such as {list(a)} and {list(b)}; pass "
        f"ragged_dims={n_dims + 1} to pad more dimensions"
    )


def _stored(value: Any, dtype: str) -> NDArray[Any] | None:
    """A pad value as ``dtype`` stores it; None if it cannot."""
    if isinstance(value, (str, bytes)) or value is None:
        return None
    if dtype in torch_bridge.CARRIED:
        return exactly(np.array([value], np.float32), dtype)
    wanted = numpy_dtype(dtype)
    try:
        with np.errstate(all="ignore"):
            stored = np.array([value]).astype(wanted)
    except (TypeError, ValueError, OverflowError):
        return None
    is_exact = wanted.kind in "fc" or stored[0] == value
    return stored if is_exact else None


def _is_sequence(value: Any) -> bool:
    """Whether a sample's value is padded without being named: a list, or an array of one dimension."""
    return isinstance(value, list) or getattr(value, "ndim", None) == 1


def _of_offsets(column: Ragged) -> RaggedRows:
    """The rows of a ragged column, on whatever device it is."""
    flat, dtype = torch_bridge.to_bits(column.values) if is_torch_tensor(column.values) else (column.values, "")
    offsets = np.asarray(torch_bridge.on_host(column.offsets), np.int64)
    n_bytes, rest = flat.dtype.itemsize * math.prod(flat.shape[1:]), np.array(flat.shape[1:], np.int64)
    lengths = np.diff(offsets)[:, None]
    shapes = np.concatenate([lengths, np.tile(rest, (len(lengths), 1))], axis=1)
    source = np.ascontiguousarray(flat).reshape(-1).view(np.uint8)
    return RaggedRows(source, offsets[:-1] * n_bytes, shapes, dtype or flat.dtype.name)


def _free(name: str, taken: Iterable[str]) -> str:
    if name in taken:
        raise ConfigError(f"PaddedCollate adds a column {name!r}, and the batch has one already; rename that one")
    return name


def _unfit(name: str, has: str) -> SchemaError:
    return SchemaError(
        f"column {name!r}: only numbers and flags can be padded, got {has}; leave it out of columns=, or encode it"
    )


def _one_of(value: Any, what: str, options: Sequence[str]) -> str:
    if value not in options:
        raise ConfigError(f"{what}={value!r}: one of {', '.join(map(repr, options))}")
    return str(value)
