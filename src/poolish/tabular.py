"""Tables of other libraries as streams of Arrow batches, recognised without importing the libraries.

    pa.Table, pa.RecordBatch, pa.StructArray   as they are
    pyarrow.dataset: Dataset, Scanner          scanned, with the filter and the columns that they have
    datasets.Dataset                           selections and shuffles are respected
    pandas.DataFrame                           an index that has a name is a column, one without is left out
    polars.DataFrame, polars.LazyFrame         a LazyFrame is run once for each reading, a part at a time
    ray.data.Dataset                           in the order of its blocks; arrays become tensors
    anything with ``__arrow_c_stream__``       buffers, DuckDB relations, ...

What is lazy (``is_lazy``) holds no rows: each reading scans or computes them again, so files that changed are seen.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import SchemaError
from poolish.schema import features
from poolish.schema.types import TENSOR_DTYPES, build_ragged, no_rows, tensor_array, tensor_type

#: Rows that polars computes at a time, and that Arrow scans at a time.
PART_ROWS = 65_536

#: How the extension types begin in which Ray keeps arrays.
_RAY_TENSORS = "ray.data.arrow_"


Reader = Callable[[Any], Iterable[pa.RecordBatch] | None]


def batches_of(value: Any) -> Iterable[pa.RecordBatch] | None:
    """The Arrow batches of anything tabular, at least one, as columns need no rows; None for anything else.

    >>> [batch.num_rows for batch in batches_of(pa.table({"x": [1, 2]}))]
    [2]
    """
    read = _reader_for(type(value))  # type: ignore[arg-type]  # classes are hashable
    if read is not None:
        return read(value)
    return _imported(value) if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__") else None


@lru_cache(maxsize=1024)
def _reader_for(kind: type) -> Reader | None:
    """How objects of a class are read; None where their attributes decide.

    Every sample of an append is asked whether it is a table, so the answer for a class is remembered (2.3 us without).
    """
    if issubclass(kind, pa.Table):
        return _batches_of_table
    if issubclass(kind, pa.RecordBatch):
        return lambda batch: [batch]
    if issubclass(kind, pa.StructArray):
        return lambda array: [pa.RecordBatch.from_struct_array(array)]
    if _is_a(kind, "datasets", "Dataset"):
        return features.batches
    if _is_a(kind, "pyarrow.dataset", "Dataset", "Scanner"):
        return _scanned
    if _is_a(kind, "polars", "LazyFrame"):
        return _computed
    if _is_a(kind, "ray.data", "Dataset"):
        return _ray_batches
    if _is_a(kind, "PIL.Image", "Image"):
        return lambda image: None  # images export Arrow arrays too, of their pixels
    return None


def _batches_of_table(table: pa.Table) -> list[pa.RecordBatch]:
    return table.to_batches() or [no_rows(table.schema)]


def table_of(value: Any) -> pa.Table | None:
    """All rows of anything tabular as one table; None for anything else.

    >>> table_of([1, 2]) is None
    True
    """
    batches = batches_of(value)
    return None if batches is None else pa.Table.from_batches(list(batches))


def is_lazy(value: object) -> bool:
    """Whether this is tabular and holds no rows: files that are scanned, or a query that is computed."""
    return (
        _is_of(value, "pyarrow.dataset", "Dataset", "Scanner")
        or _is_of(value, "polars", "LazyFrame")
        or _is_of(value, "ray.data", "Dataset")
    )


def is_scanner(value: object) -> bool:
    """Whether this is a scanner of pyarrow, which may be read only once and does not say what it reads."""
    return _is_of(value, "pyarrow.dataset", "Scanner")


def _is_of(value: object, module: str, *names: str) -> bool:
    """Whether this is an object of these classes."""
    return _is_a(type(value), module, *names)


def _is_a(kind: type, module: str, *names: str) -> bool:
    """Whether this is one of these classes, or of their subclasses; none can exist before their module is loaded."""
    found = sys.modules.get(module)
    # A module that another thread is just loading may lack them; an object of theirs cannot exist then.
    classes = tuple(getattr(found, name) for name in names if hasattr(found, name))
    return issubclass(kind, classes)


# Arrow ----------------------------------------------------------------------------------------------------------------


def _imported(value: Any) -> Iterator[pa.RecordBatch]:
    """The batches of another library's table, as they come; a failed export becomes our error."""
    _refuse_addresses(value)
    try:
        value = _with_index(value)
        if hasattr(value, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(value)
            batches, schema = iter(reader), reader.schema
        else:
            batches, schema = iter([pa.record_batch(value)]), None
        first = next(batches, None)
        yield no_rows(schema) if first is None and schema is not None else first
        yield from batches
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(
            f"{type(value).__name__} cannot be read as a table through Arrow ({error}); "
            "convert the column in question, or pass a table instead of a single column"
        ) from error


def _scanned(value: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset, or of a scanner, in their order; a scanner of a reader can be read once."""
    with _noted(value):
        if is_scanner(value):
            yield from _not_empty(value.to_batches(), value.projected_schema)
            return
        dataset, condition = fresh_dataset(value)
        yield from _not_empty(dataset.to_batches(filter=condition, batch_size=PART_ROWS), dataset.schema)


def fresh_dataset(dataset: Any) -> tuple[Any, Any]:
    """The same dataset without its filter and without what it remembers of its files, and its filter or None.

    A dataset that was read before keeps the footers of its files. Where a file has been replaced since, it would skip
    row groups by the statistics of the old one, without an error.
    """
    options = getattr(dataset, "_scan_options", None)  # no public attribute has the filter
    if options is None:
        raise SchemaError("this pyarrow does not say by what a dataset is filtered; pass dataset.to_table() instead")
    plain = dataset.replace_schema(dataset.schema)
    plain._scan_options.clear()
    return _fresh(plain), options.get("filter")


def _fresh(dataset: Any) -> Any:
    ds = sys.modules["pyarrow.dataset"]
    if isinstance(dataset, ds.UnionDataset):
        return ds.UnionDataset(dataset.schema, [_fresh(child) for child in dataset.children])
    if not isinstance(dataset, ds.FileSystemDataset):
        return dataset
    fragments = [
        each
        if each.buffer is not None
        else each.format.make_fragment(each.path, each.filesystem, each.partition_expression)
        for each in dataset.get_fragments()
    ]
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)


def _not_empty(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches that have rows; one without rows if none has."""
    has_rows = False
    for batch in batches:
        if batch.num_rows:
            has_rows = True
            yield batch
    if not has_rows:
        yield no_rows(schema)


@contextmanager
def _noted(value: object) -> Iterator[None]:
    """Name what is read in errors of the library that reads it, which keep their type."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while reading a {type(value).__module__.split('.')[0]} {type(value).__name__}")
        raise


# Data frames ----------------------------------------------------------------------------------------------------------


def _refuse_addresses(value: Any) -> None:
    """Polars exports Python objects as addresses in memory, which are invalid once it frees them."""
    if not _is_of(value, "polars", "DataFrame"):
        return
    for name, dtype in value.schema.items():
        if dtype == sys.modules["polars"].Object:
            raise SchemaError(f"column {name!r}: Arrow cannot carry polars' Object; convert the column first")


def _with_index(value: Any) -> Any:
    """A pandas frame whose index is a column if it has a name; left to itself, pandas decides by the index's values."""
    if not _is_of(value, "pandas", "DataFrame"):
        return value
    return value.reset_index(drop=all(name is None for name in value.index.names))


def _computed(query: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a polars query in its order, a part at a time where polars is new enough to give parts."""
    with _noted(query):
        query = _fresh_query(query)
        if hasattr(query, "collect_batches"):
            parts = query.collect_batches(chunk_size=PART_ROWS, maintain_order=True)
        else:
            parts = iter([query.collect()])
        has_rows = False
        for part in parts:
            if part.height:
                has_rows = True
                yield from _imported(part)
        if not has_rows:
            yield from _imported(query.head(0).collect())


def _fresh_query(query: Any) -> Any:
    """The same query without what polars remembers of the files it scans.

    A query that was run before keeps the footers of its files. Where a file has been replaced since, it would skip or
    cut off rows by what the old one was, without an error.
    """
    if "SCAN" not in query.explain(optimized=False):
        return query
    try:
        return type(query).deserialize(io.BytesIO(query.serialize()))
    except Exception as error:
        raise SchemaError(
            "a LazyFrame that scans files is copied before it runs, as polars remembers the files of its last run; "
            f"this one cannot be copied ({error}); pass query.collect(), or make its functions a step of the recipe"
        ) from error


# Ray ------------------------------------------------------------------------------------------------------------------


def _ray_batches(dataset: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a Ray dataset, block by block; without ``preserve_order`` these would come as they are done."""
    options = dataset.context.execution_options
    kept, options.preserve_order = options.preserve_order, True
    try:
        with _noted(dataset):
            schema = None
            for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                rows = _without_ray_types(block)
                if schema is not None and not rows.schema.equals(schema):
                    raise SchemaError(
                        f"a block has the columns {_types(rows.schema)}, those before {_types(schema)}; cast them in "
                        "Ray, or pad arrays of several shapes"
                    )
                schema = rows.schema
                yield from rows.to_batches()
            if schema is None:
                known = dataset.schema()
                yield no_rows(pa.schema([]) if known is None else known.base_schema)
    finally:
        options.preserve_order = kept


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _without_ray_types(block: pa.Table) -> pa.Table:
    for i, field in enumerate(block.schema):
        if getattr(field.type, "extension_name", "").startswith(_RAY_TENSORS):
            chunks = [_ray_tensors(chunk, field.name) for chunk in block.column(i).chunks]
            block = block.set_column(i, field.name, pa.chunked_array(chunks))
    return block


def _ray_tensors(array: Any, name: str) -> pa.Array:
    if array.null_count:
        raise SchemaError(
            f"column {name!r}: {array.null_count} of Ray's arrays are null; fill them, or filter them out"
        )
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.name in TENSOR_DTYPES:
        return tensor_array(values.dtype.name, values)
    parts = [np.asarray(each) for each in values]  # of several shapes
    dtype, rank = parts[0].dtype.name, parts[0].ndim
    data = b"".join(np.ascontiguousarray(each).tobytes() for each in parts)
    return build_ragged(tensor_type(dtype, (None,) * rank), [each.shape for each in parts], data)
