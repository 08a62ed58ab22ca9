"""One column of whatever rows came: Arrow, NumPy, torch, lists; its numbers without a copy where there is none to make.

number     int, float, time, decimal     numbers, without the nulls
bool                                     numbers, 0 and 1
text       also bytes                    texts, and their lengths
list       of numbers or of anything     lengths; numbers of all elements
tensor     arrays, one for each row      shapes; numbers of all elements
null       nothing but nulls
other      structs, maps, mixed          only counted
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from poolish.concurrency import cached_property
from poolish.errors import SchemaError, UnknownColumn
from poolish.guards.stats.bins import MAX_DISCRETE, N_BINS, Bins, Histogram, histogram_of_values
from poolish.kernels import scan, sort, tally

Kind = Literal["number", "bool", "text", "list", "tensor", "null", "other"]
Array = NDArray[Any]
Floats = NDArray[np.float64]

#: So many different values are counted one by one.
MAX_CATEGORIES = 1_000
_TENSOR = "arrow.fixed_shape_tensor"


@dataclass
class Column:
    """The values of one column, with what is computed of them kept for the next question."""

    kind: Kind
    count: int
    nulls: int = 0
    numbers: Array | None = None
    texts: Any = None
    lengths: Array | None = None
    shapes: Counter[tuple[int, ...]] | None = None

    @cached_property
    def ordered(self) -> Floats:
        """The numbers in order, infinities too, without NaN."""
        if self.numbers is None:
            return np.empty(0)
        ordered: Floats = sort(self.numbers)
        n_nan = len(ordered) - int(np.searchsorted(ordered, np.nan)) if len(ordered) else 0
        return ordered[: len(ordered) - n_nan]

    @cached_property
    def finite(self) -> Floats:
        """The finite numbers in order."""
        if self.categories is not None and self.numbers is not None:  # few different ones need no sorting
            values = np.array(sorted(self.categories), np.float64)
            return np.repeat(values, [self.categories[value] for value in sorted(self.categories)])
        first, last = np.searchsorted(self.ordered, [-np.inf], side="right"), np.searchsorted(self.ordered, [np.inf])
        return self.ordered[int(first[0]) : int(last[0])]

    @cached_property
    def words(self) -> Array:
        """The numbers as what the kernels count."""
        return as_words(self.numbers) if self.numbers is not None else np.empty(0, np.uint64)

    @cached_property
    def categories(self) -> dict[Any, int] | None:
        """Each value and how often it comes, of text all of them; None for numbers with too many different values."""
        if self.texts is not None:
            return counted_texts(self.texts)
        if self.numbers is None:
            return {}
        found = self._tallied
        return None if found is None else dict(zip(self._values(found[0]), found[1].tolist(), strict=True))

    @property
    def unique_words(self) -> NDArray[np.uint64] | None:
        """The different ones among the words, if they are few."""
        return None if self._tallied is None else self._tallied[0]

    @cached_property
    def _tallied(self) -> Any:
        return tally(self.words, MAX_CATEGORIES)

    @property
    def ordinal_error(self) -> float:
        """By how much a rank may be wrong: not at all."""
        return 0.0

    @property
    def ranked(self) -> tuple[Floats, Floats]:
        """The numbers in order, and how many lie at or before each."""
        return self.ordered, np.arange(1, len(self.ordered) + 1, dtype=np.float64)

    def own_bins(self, n_bins: int = N_BINS) -> Bins:
        """The bins that this column, as a reference, gives to others."""
        if self.kind in ("text", "bool"):
            return Bins.of_values(self.categories or {})
        few = self.categories
        if few is not None and len(few) <= MAX_DISCRETE:
            return Bins.of_values(dict(sorted(few.items())))
        return Bins.of_quantiles(self.finite, n_bins)

    def histogram_on(self, bins: Bins) -> Histogram:
        """How many values are in each bin."""
        if self.texts is not None:
            return _with(histogram_of_values(bins, self.categories or {}), missing=self.nulls)
        if self.numbers is None:
            return Histogram(bins, np.zeros(len(bins), np.int64), missing=self.nulls)
        if bins.edges is not None:
            counts = np.zeros(len(bins), np.int64)
            odd = scan(self.numbers, bins.edges, counts)[3]
            return Histogram(bins, counts, missing=self.nulls + odd[0], infinite=odd[1] + odd[2])
        odd = scan(self.numbers)[3]
        few = self.categories
        if few is None:  # too many different ones to list: the bins' own values are looked up in the sorted numbers
            few = dict(_looked_up(self.finite, bins.values or ()))
            others = len(self.finite) - sum(few.values())
        else:
            others = 0
        return _with(
            histogram_of_values(bins, few, others=others), missing=self.nulls + odd[0], infinite=odd[1] + odd[2]
        )

    def _values(self, words: NDArray[np.uint64]) -> list[Any]:
        assert self.numbers is not None
        kind = self.numbers.dtype.kind
        if self.kind == "bool":
            return [bool(word) for word in words]
        return words.view({"f": np.float64, "u": np.uint64}.get(kind, np.int64)).tolist()  # type: ignore[no-any-return]


# From rows to columns -------------------------------------------------------------------------------------------


def columns_of(rows: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The columns of rows by name, not yet looked at: a table, a buffer, a dict of columns or a list of dicts.

    >>> columns_of([{"x": 1}, {"x": 2, "y": "a"}])
    {'x': [1, 2], 'y': [None, 'a']}
    """
    found = dict(_columns(rows))
    if names is None:
        return found
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in found:
            raise UnknownColumn(f"column {name!r}: these rows have {sorted(found)}")
    return {name: found[name] for name in wanted}


def _columns(rows: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(rows, Mapping):
        yield from ((str(name), values) for name, values in rows.items())
        return
    table = _table(rows)
    if table is not None:
        yield from zip(table.column_names, table.columns, strict=True)
        return
    if isinstance(rows, (list, tuple)) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        yield from ((str(name), [row.get(name) for row in rows]) for name in names)
        return
    raise SchemaError(
        f"rows: a table, a buffer, a dict of columns or a list of dicts, got {type(rows).__name__}; "
        "for one array pass {'x': array}"
    )


def _table(rows: Any) -> Any:
    """Rows as an Arrow table, None if they are none. Buffers and other libraries' tables come by their methods."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if callable(getattr(rows, "to_arrow", None)):
        table = rows.to_arrow()
        return table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    return None


def column_of(values: Any) -> Column:
    """One column of anything that holds values.

    >>> column_of([1.0, None, 2.5]).numbers, column_of(["a", None]).nulls
    (array([1. , 2.5]), 1)
    """
    if isinstance(values, Column):
        return values
    if _is_tensor(values):
        values = _from_torch(values)
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return _from_numpy(values)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return _from_arrow(values)
    if hasattr(values, "__arrow_c_stream__"):  # a Series of pandas or polars
        return _from_arrow(pa.chunked_array(values))
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise SchemaError(f"a column: an array, a list or an Arrow array, got {type(values).__name__} {values!r:.60}")
    return _from_list(list(values))


def _from_numpy(values: Array) -> Column:
    if values.ndim == 0:
        raise SchemaError("a column: one value for each row, got a single number")
    n, shape = len(values), values.shape[1:]
    if values.dtype.kind in "Mm":
        return _from_arrow(pa.array(values.reshape(-1)))
    if values.dtype.kind in "US":
        return _from_arrow(pa.array(values.reshape(-1).tolist()))
    if values.dtype.kind not in "biuf":
        return Column("other", n)
    kind: Kind = "tensor" if shape else "bool" if values.dtype.kind == "b" else "number"
    return Column(kind, n, numbers=_native(values.reshape(-1)), shapes=Counter({shape: n}) if shape else None)


def _from_list(values: list[Any]) -> Column:
    present = [value for value in values if value is not None]
    if present and any(getattr(value, "ndim", 0) for value in present):
        return _from_tensors(present, len(values))
    if any(_is_tensor(value) for value in present):
        values = [value.item() if _is_tensor(value) else value for value in values]
    try:
        return _from_arrow(pa.array(values))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        if all(isinstance(value, (int, float, np.number)) for value in present):  # beyond 64 bits
            return Column("number", len(values), len(values) - len(present), np.array(present, np.float64))
        kinds = sorted({type(value).__name__ for value in present})
        raise SchemaError(f"a column: values of one type, got {', '.join(kinds)} ({error})") from error


def _from_tensors(present: list[Any], count: int) -> Column:
    arrays = [_from_torch(value) if _is_tensor(value) else np.asarray(value) for value in present]
    if any(array.dtype.kind not in "biuf" for array in arrays):
        return Column("other", count, count - len(present))
    shapes = Counter(array.shape for array in arrays)
    numbers = np.concatenate([array.reshape(-1) for array in arrays])
    return Column("tensor", count, count - len(present), _native(numbers), shapes=shapes)


def _from_arrow(values: Any) -> Column:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # too long for one
        array = pa.concat_arrays(array.chunks)
    kind, count, nulls = array.type, len(array), array.null_count
    if getattr(kind, "extension_name", "") == _TENSOR:
        return _from_fixed(array.storage.drop_null(), tuple(kind.shape), count, nulls)
    if isinstance(array, pa.ExtensionArray):
        return _from_arrow(array.storage)
    if pa.types.is_dictionary(kind):
        return _from_arrow(array.dictionary_decode())
    array = array.drop_null() if nulls else array
    if pa.types.is_null(kind):
        return Column("null", count, count)
    if pa.types.is_boolean(kind):
        return Column("bool", count, nulls, array.cast(pa.uint8()).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Column("number", count, nulls, _native(array.to_numpy(zero_copy_only=False)))
    if pa.types.is_decimal(kind):
        return Column("number", count, nulls, array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        whole = array.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
        return Column("number", count, nulls, whole.to_numpy(zero_copy_only=False))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Column("text", count, nulls, texts=array, lengths=_lengths(pc.utf8_length(array)))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Column("other", count, nulls, lengths=_lengths(pc.binary_length(array)))
    if pa.types.is_fixed_size_list(kind):
        return _from_fixed(array, (kind.list_size,), count, nulls)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _from_arrow(array.flatten())
        lengths = _lengths(pc.list_value_length(array))
        numbers = np.empty(0) if inner.kind == "null" else inner.numbers
        return Column("list", count, nulls, numbers, lengths=lengths)
    return Column("other", count, nulls)


def _from_fixed(array: Any, shape: tuple[int, ...], count: int, nulls: int) -> Column:
    inner = _from_arrow(array.flatten())
    shapes = Counter({shape: len(array)})
    return Column("tensor" if inner.numbers is not None else "other", count, nulls, inner.numbers, shapes=shapes)


def _lengths(lengths: Any) -> Array:
    return lengths.cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _native(values: Array) -> Array:
    """A flat array of a type that the kernels know, in this machine's byte order."""
    if values.dtype.kind == "b":
        return values.view(np.uint8) if values.flags.c_contiguous else values.astype(np.uint8)
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float64)
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_torch(tensor: Any) -> Array:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return tensor.numpy()  # type: ignore[no-any-return]


# What values are counted by ---------------------------------------------------------------------------------------


def as_words(numbers: Array) -> Array:
    """Numbers as what the kernels count: float64 as they are, whole numbers as 64-bit words."""
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64, copy=False)
    if numbers.dtype.kind == "i":
        return numbers.astype(np.int64, copy=False).view(np.uint64)
    return numbers.astype(np.float64, copy=False)


def counted_texts(texts: Any) -> dict[Any, int]:
    """Each text and how often it comes."""
    counts = pc.value_counts(texts)
    return dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))


def _looked_up(ordered: Floats, values: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    for value in values:
        first, last = (int(np.searchsorted(ordered, value, side=side)) for side in ("left", "right"))
        yield value, last - first


def _with(histogram: Histogram, *, missing: int, infinite: int = 0) -> Histogram:
    return Histogram(histogram.bins, histogram.counts, histogram.other, missing, infinite, is_exact=histogram.is_exact)
