"""Streams to and from Hugging Face datasets, through Arrow, a part at a time.

``Dataset.from_generator`` writes row after row, which costs ten times as much, and keeps a cache for ever that it may
give back for another stream. So Arrow batches are written here, as it does it, to a file that goes with the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.errors import ConfigError, CorruptDataError, SchemaError, UnknownColumn
from poolish.files import StorageOptions, concealing, is_url
from poolish.schema import column_name
from poolish.schema.features import batches, is_dataset, without_arrays
from poolish.tokens.directory import keep_temporary
from poolish.tokens.encoding import shown
from poolish.tokens.fields import TokenField, fields_of, schema_of
from poolish.tokens.reading import StreamReads
from poolish.tokens.stream_files import START, STEP, TYPE, View, first_bad_row
from poolish.torch_bridge import is_torch_tensor

if TYPE_CHECKING:
    import datasets

    from poolish.tokens.writer import Writer

Int64 = NDArray[np.int64]

#: Index rows and tokens in one Arrow batch: a few MB, so that memory does not depend on the stream.
ROWS, TOKENS = 1 << 16, 1 << 19


class DatasetConversions(StreamReads):
    """The methods of a stream that read and write Hugging Face datasets."""

    @property
    def features(self) -> datasets.Features:
        """The fields as Hugging Face describes them."""
        return _features_of(self._fields)

    def to_dataset(
        self, extra: Mapping[str, Any] | None = None, *, step: str | None = None, breaks: str | None = None
    ) -> datasets.Dataset:
        """A Hugging Face dataset with a row for each step, written to disk a part at a time.

        A field that a step does not have is null. ``step`` names a column for the numbers of the steps, ``breaks`` one
        that is true for the first step behind a break; ``extra`` are further columns with a value for each step.
        """
        import datasets
        from datasets.arrow_writer import ArrowWriter

        view = self._view()
        features = _features_of(self._fields)
        for type_, field in enumerate(self._fields):
            # Hugging Face's arrays whose first dimension varies cannot be null; lists can.
            if field.shape and len(field.shape) > 1 and field.shape[0] is None and _has_gaps(view, type_):
                features[field.name] = without_arrays(features[field.name])
        columns = _extra(extra or {}, view.n_steps)
        names = [*features, *([step] if step else []), *([breaks] if breaks else []), *columns]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"column {name!r} is there twice; give extra=, step= and breaks= names of their own")
        if step:
            features[step] = datasets.Value("int64")
        if breaks:
            features[breaks] = datasets.Value("bool")
        for name, column in columns.items():
            features[name] = datasets.Features.from_arrow_schema(pa.schema([(name, column.type)]))[name]
        path = _cache_folder() / f"stream-{self.uuid}-{next(_numbers)}.arrow"
        with ArrowWriter(features=features, path=str(path)) as writer:
            n = 0
            for batch in _batches(self, view, features, step, breaks):
                parts = [_as_type(column.slice(n, batch.num_rows), features, name) for name, column in columns.items()]
                whole = pa.Table.from_arrays([*batch.columns, *parts], schema=features.arrow_schema)
                writer.write_table(whole)
                n += batch.num_rows
            if n == 0:
                writer.write_table(features.arrow_schema.empty_table())
            writer.finalize()
        return datasets.Dataset.from_file(str(path))

    def from_dataset(
        self,
        dataset: datasets.Dataset,
        *,
        step: str | None = None,
        breaks: str | None = None,
        missing: str = "error",
    ) -> None:
        """Append the rows of a dataset, a step each; all of them or, on an error, none.

        Every field must be a column; with ``missing="null"`` one that is not is left out of these steps, as it is where
        its value is null. Columns that are no field are ignored. ``step`` names the column with the numbers of the
        steps; without it they go on from the last one. ``breaks`` names a bool column that is true where a step begins
        an episode of its own.
        """
        writer = self._writer()
        if not is_dataset(dataset):
            raise SchemaError(
                f"from_dataset takes a datasets.Dataset, got {type(dataset).__name__}; choose a split of it"
            )
        for name in (step, breaks):
            if name is not None and name not in dataset.column_names:
                raise UnknownColumn(f"no column {name!r} in this dataset; there are {dataset.column_names}")
        wanted = _columns_of(list(writer.ids), dataset.column_names, missing)
        with writer.all_or_nothing() as broken:
            n = 0
            for batch in batches(dataset):
                if not batch.num_rows:
                    continue
                try:
                    numbers, flags = _steps(writer, batch, step), _breaks(batch, breaks)
                    writer.append_columns(numbers, {name: batch.column(name) for name in wanted})
                    broken += writer.rows_of_steps(len(numbers) - np.flatnonzero(flags))
                except SchemaError as error:
                    error.add_note(f"while reading rows {n} to {n + batch.num_rows} of the dataset")
                    raise
                n += batch.num_rows

    def load_dataset(
        self,
        name: str,
        split: str = "train",
        sort_by: str | None = None,
        *,
        step: str = "step",
        breaks: str = "break",
        missing: str = "error",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a split of a dataset on the Hub, or of one that ``save_dataset`` wrote to a URL, sorted if asked.

        ``step`` and ``breaks`` are the columns that ``save_dataset`` added, and are used where they are there;
        ``missing`` as in ``from_dataset``. ``storage_options`` reach the file system of a URL and are shown nowhere.
        """
        import datasets

        check_missing(missing)
        options = _options(name, storage_options, "load_dataset")
        self._writer()  # a stream that cannot be written is known before anything is downloaded
        if is_url(name):
            with concealing(options):
                dataset = datasets.load_from_disk(_place(name, split), storage_options=_as_dict(options))
        else:
            dataset = datasets.load_dataset(name, split=split)
        if sort_by is not None:
            dataset = dataset.sort(sort_by)
        steps, broken = (
            column if column in dataset.column_names and column not in self.field_to_type else None
            for column in (step, breaks)
        )
        self.from_dataset(dataset, step=steps, breaks=broken, missing=missing)

    def save_dataset(
        self,
        name: str,
        split: str = "train",
        *,
        step: str = "step",
        breaks: str = "break",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Push the stream to the Hub as a split of a dataset, with the numbers of its steps and its breaks.

        A URL of an object store instead of a name writes the split below it, as Hugging Face's ``save_to_disk``;
        ``storage_options`` reach its file system and are shown nowhere.
        """
        options = _options(name, storage_options, "save_dataset")
        if step in self.field_to_type:
            raise SchemaError(
                f"step={step!r} is a field of this stream; choose another name for the numbers of the steps"
            )
        if breaks in self.field_to_type:
            raise SchemaError(
                f"breaks={breaks!r} is a field of this stream; choose another name for the column of breaks"
            )
        dataset = self.to_dataset(step=step, breaks=breaks)
        if not is_url(name):
            dataset.push_to_hub(name, split=split)
            return
        with concealing(options):
            dataset.save_to_disk(_place(name, split), storage_options=_as_dict(options))


def _options(name: str, given: Any, what: str) -> StorageOptions | None:
    options = StorageOptions.of(given, what)
    if options is not None and not is_url(name):
        raise ConfigError(
            f"{what} {name!r}: storage_options are for URLs, and this is a dataset on the Hub; leave them out"
        )
    return options


def _as_dict(options: StorageOptions | None) -> dict[str, Any] | None:
    return None if options is None else dict(options)


def _place(url: str, split: str) -> str:
    return f"{url.rstrip('/')}/{split}"


# To a dataset --------------------------------------------------------------------------------------------------


def _features_of(fields: Sequence[TokenField]) -> datasets.Features:
    """The fields as Hugging Face describes them: as they were declared, where they were declared so."""
    import datasets

    return datasets.Features({field.name: _declared(field) or _feature(field) for field in fields})


def _feature(field: TokenField) -> Any:
    return schema_of([field]).to_features()[field.name]


def _declared(field: TokenField) -> Any:
    """The feature that a field was declared by; what a damaged file may say instead is refused."""
    import datasets

    if field.feature is None:
        return None
    try:
        feature = datasets.Features.from_dict({field.name: json.loads(field.feature)})[field.name]
        [same] = fields_of({field.name: feature})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptDataError(f"field {field.name!r}: no feature in {field.feature!r} ({error})") from error
    if (same.dtype, same.shape) != (field.dtype, field.shape):
        raise CorruptDataError(f"field {field.name!r}: its feature {feature} is not {field}; restore store.json")
    return feature


def _has_gaps(view: View, type_: int) -> bool:
    """Whether any step is without a field."""
    n = 0
    for begin in range(view.first_row, view.rows, ROWS):
        rows = view.lanes.index.room[begin : min(begin + ROWS, view.rows), TYPE]
        n += int(np.count_nonzero(rows & 0xFF == type_))
    return n < view.n_steps


def _extra(extra: Mapping[str, Any], n_steps: int) -> dict[str, pa.Array]:
    return {column_name(name): _extra_column(name, values, n_steps) for name, values in extra.items()}


def _extra_column(name: str, values: Any, n_steps: int) -> pa.Array:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise SchemaError(f"extra column {name!r}: give a list with a value for each step, got {shown(values)}")
    try:
        column = pa.array(_plain(values)) if not isinstance(values, pa.Array) else values
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"extra column {name!r}: Arrow cannot hold it ({error}); convert it first") from error
    if len(column) != n_steps:
        raise SchemaError(f"extra column {name!r}: {len(column):,} values for {n_steps:,} steps; give one for each")
    return column


def _plain(values: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if is_torch_tensor(values):
        values = values.detach().numpy()
    return values if isinstance(values, np.ndarray) and values.ndim == 1 else list(values)


def _as_type(column: pa.Array, features: Any, name: str) -> pa.Array:
    return column.cast(features.arrow_schema.field(name).type)


def _batches(
    store: DatasetConversions, view: View, features: Any, step: str | None, breaks: str | None
) -> Iterator[pa.RecordBatch]:
    """The stream as Arrow, some whole steps at a time."""
    low, fields = view.first_row, store._fields
    broken = view.breaks()
    while low < view.rows:
        high = _end_of_steps(view, low)
        rows = np.array(view.lanes.index.room[low : high + 1])
        first, end = int(rows[0, START]), int(rows[-1, START])
        tokens = np.array(view.lanes.data.room[first:end])
        store._check_kept(rows[:1, START])
        if first_bad_row(rows, view.tokens, len(fields)) >= 0:
            raise CorruptDataError(f"{view.lanes.index.path}: makes no sense behind row {low:,}; run verify()")
        types = np.repeat((rows[:-1, TYPE] & 0xFF).astype(np.uint8), np.diff(rows[:, START]))
        ordinals = (rows[:-1, TYPE] >> 8) - (int(rows[0, TYPE]) >> 8)
        n = int(ordinals[-1]) + 1
        arrays = []
        for type_, field in enumerate(fields):
            here = np.flatnonzero(rows[:-1, TYPE] & 0xFF == type_)
            lengths = rows[here + 1, START] - rows[here, START]
            arrow = features.arrow_schema.field(field.name).type
            arrays.append(_column(field, arrow, n, ordinals[here], lengths, field.decode(tokens[types == type_])))
        names = [field.name for field in fields]
        if step:
            arrays.append(pa.array(rows[np.flatnonzero(np.diff(ordinals, prepend=-1)), STEP]))
            names.append(step)
        if breaks:
            first_ordinal = int(rows[0, TYPE]) >> 8
            arrays.append(pa.array(np.isin(np.arange(first_ordinal, first_ordinal + n), broken)))
            names.append(breaks)
        yield pa.RecordBatch.from_arrays(arrays, names)
        low = high


def _end_of_steps(view: View, low: int) -> int:
    """The end of a batch that begins at row ``low``: a row where a step begins, at least one step on."""
    by_tokens = view.row_not_below(START, view.lanes.tokens_at(low) + TOKENS)
    limit = min(low + ROWS, by_tokens)
    if limit >= view.rows:
        return view.rows
    ordinal = max(view.lanes.ordinal(limit), view.lanes.ordinal(low) + 1)
    return view.row_not_below(TYPE, ordinal << 8)


def _column(
    field: TokenField, type_: pa.DataType, n: int, here: Int64, lengths: Int64, numbers: NDArray[Any]
) -> pa.Array:
    """One field of n steps; ``here`` are the steps that have it."""
    missing = np.ones(n, np.bool_)
    missing[here] = False
    if not field.shape and field.shape is not None:
        values = np.zeros(n, numbers.dtype)
        values[here] = numbers
        return pa.array(values, mask=missing).cast(type_)
    counts = np.zeros(n, np.int64)
    sizes = tuple(n or 0 for n in (field.shape or (None,))[1:])
    counts[here] = lengths // max(int(np.prod(sizes, dtype=np.int64)), 1)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _lists(type_.storage_type, counts, sizes, numbers, missing))
    return _lists(type_, counts, sizes, numbers, missing)


def _lists(
    type_: pa.DataType, counts: Int64, sizes: tuple[Any, ...], numbers: NDArray[Any], missing: NDArray[np.bool_] | None
) -> pa.Array:
    """Lists with ``counts`` items each, over the numbers of all of them."""
    n = len(counts)
    validity = None
    if missing is not None and missing.any():
        validity = pa.array(~missing).buffers()[1]
    if kinds.is_fixed_size_list(type_):
        size = type_.list_size
        each = int(np.prod(sizes, dtype=np.int64)) * size
        if validity is not None and missing is not None:
            filled = np.zeros((n, each), numbers.dtype)
            filled[~missing] = numbers.reshape(-1, each)
            numbers = filled.reshape(-1)
        items = _items(type_.value_type, n * size, sizes, numbers)
        return pa.Array.from_buffers(type_, n, [validity], children=[items])
    width = np.int64 if kinds.is_large_list(type_) else np.int32
    offsets = np.zeros(n + 1, width)
    np.cumsum(counts, out=offsets[1:])
    items = _items(type_.value_type, int(offsets[-1]), sizes, numbers)
    return pa.Array.from_buffers(type_, n, [validity, pa.py_buffer(offsets)], children=[items])


def _items(type_: pa.DataType, n: int, sizes: tuple[Any, ...], numbers: NDArray[Any]) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _items(type_.storage_type, n, sizes, numbers))
    if not kinds.is_nested(type_):
        return pa.array(numbers).cast(type_)
    return _lists(type_, np.full(n, sizes[0], np.int64), sizes[1:], numbers, None)


_folders: dict[int, Path] = {}
_numbers = iter(range(1 << 62))


def _cache_folder() -> Path:
    """Where datasets lie that were made here; it goes with the process. A forked child has one of its own."""
    process = os.getpid()
    if process not in _folders or not _folders[process].exists():
        _folders[process] = keep_temporary("lock")
    return _folders[process]


# From a dataset ------------------------------------------------------------------------------------------------


MISSING = ("error", "null")


def check_missing(missing: object) -> None:
    """Raise if this does not say what to do about fields that a dataset lacks."""
    if missing not in MISSING:
        raise ConfigError(f"missing={missing!r}: one of {', '.join(map(repr, MISSING))}")


def _columns_of(fields: list[str], columns: list[str], missing: str) -> list[str]:
    """The fields that a dataset has; by default that must be all of them."""
    check_missing(missing)
    found = [name for name in fields if name in columns]
    absent = [name for name in fields if name not in columns]
    if absent and (missing == "error" or not found):
        advice = 'rename columns, or pass missing="null" to leave these fields out' if found else "rename its columns"
        raise SchemaError(f"the fields {absent} are no columns of this dataset, which has {columns}; {advice}")
    return found


def _steps(writer: Writer, batch: pa.RecordBatch, step: str | None) -> Int64:
    if step is None:
        first = writer.recorder.last_step + 1
        if first + batch.num_rows > 2**63:
            raise SchemaError(f"no numbers are left behind step {first - 1}; give step= a column of its own")
        return np.arange(first, first + batch.num_rows)
    column = batch.column(step)
    if column.null_count or not kinds.is_integer(column.type):
        raise SchemaError(f"column {step!r}: steps are whole numbers without nulls, this is {column.type}")
    numbers: Int64 = column.to_numpy().astype(np.int64)
    if np.any(np.diff(numbers) <= 0):
        raise SchemaError(f"column {step!r}: steps must go up; sort the dataset first, or use sort_by={step!r}")
    return numbers


def _breaks(batch: pa.RecordBatch, breaks: str | None) -> NDArray[np.bool_]:
    """Which rows begin an episode because the recorder was opened anew."""
    if breaks is None:
        return np.zeros(0, np.bool_)
    column = batch.column(breaks)
    if column.null_count or not kinds.is_boolean(column.type):
        raise SchemaError(
            f"column {breaks!r}: breaks are true or false without nulls, this is {column.type}; "
            "name another column with breaks="
        )
    flags: NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return flags
