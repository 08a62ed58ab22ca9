"""Where rows come from.

    source          the protocol; tables, buffers, streams, recipes
    files           paths, globs and directories as one source
    arrow_dataset   the files of a pyarrow dataset                 spool     what can be read only once, such as a query
    pruning         row groups that a filter cannot hold for

All are cut into fragments, which are read, baked and cached each by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from poolish import tabular
from poolish.errors import RecipeError
from poolish.files import StorageOptions
from poolish.recipes.sources.arrow_dataset import ArrowDatasetSource
from poolish.recipes.sources.files import FileSource, check_options
from poolish.recipes.sources.source import (
    BufferSource,
    RecipeSource,
    Source,
    StreamSource,
    TableSource,
    buffered,
)
from poolish.recipes.sources.spool import spooled
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.rows.values import is_array
from poolish.tokens.store import StreamStore

__all__ = [
    "BufferSource",
    "FileSource",
    "RecipeSource",
    "Source",
    "StreamSource",
    "TableSource",
    "are_paths",
    "as_source",
    "check_storage",
    "is_path",
    "is_recipe",
    "materialize",
]


def as_source(value: Any, what: str, options: StorageOptions | None = None) -> Source:
    """The source that a value stands for; ``what`` names the ingredient in errors, ``options`` are for URLs."""
    check_storage(value, what, options)
    if hasattr(value, "fragments") and hasattr(value, "read"):
        source: Source = value
        return source
    if is_path(value) or are_paths(value):
        return FileSource(value, what, options)
    if isinstance(value, (DatasetBuffer, Snapshot)):
        return BufferSource(value)
    if isinstance(value, StreamStore):
        return StreamSource(value)
    if is_recipe(value):
        return RecipeSource(value)
    try:
        found = _rows_of(value, what)
    except Exception as error:
        error.add_note(f"while reading {what}")
        raise
    if found is not None:
        return found
    raise RecipeError(
        f"{what}: a source is a path, a buffer, a stream, a table, a dataset or an iterable, got {value!r}"
    )


def _rows_of(value: Any, what: str) -> Source | None:
    """Arrays, tables and samples; what is lazy is computed now, but for files that are read when they are needed."""
    columns = _array_columns(value)
    if columns is not None:
        buffer = DatasetBuffer()
        buffer.append_columns(columns)
        return BufferSource(buffer)
    if tabular.is_lazy(value):
        return ArrowDatasetSource(value, what) if ArrowDatasetSource.can_read(value) else _computed(value)
    is_hf = type(value).__module__.split(".")[0] == "datasets"
    table = None if is_hf else tabular.table_of(value)
    if table is not None:
        return TableSource(table)
    return BufferSource(buffered(value)) if is_hf or isinstance(value, Iterable) or _is_map_style(value) else None


def _computed(value: Any) -> Source:
    batches = tabular.batches_of(value)
    assert batches is not None
    return TableSource(spooled(batches), of=f"{type(value).__module__.split('.')[0]} {type(value).__name__}")


def _array_columns(value: Any) -> dict[str, Any] | None:
    """The columns in an array or tensor, or in a dict of nothing else: a row for each entry of the first dimension."""
    columns = dict(value) if isinstance(value, Mapping) else {"tensor": value}
    are_arrays = columns and all(is_array(each) and each.ndim for each in columns.values())
    return columns if are_arrays else None


def check_storage(value: Any, what: str, options: StorageOptions | None) -> None:
    """Raise if options would be ignored, or reach a store that they are not for."""
    if options is None:
        return
    if not is_path(value) and not are_paths(value):
        raise RecipeError(
            f"{what}: storage_options are for URLs, and {type(value).__name__} has none; give them where it is made"
        )
    check_options([os.fsdecode(path) for path in ([value] if is_path(value) else value)], what, options)


def is_path(value: Any) -> bool:
    """Whether a source is a path, glob or URL."""
    return isinstance(value, (str, bytes)) or hasattr(value, "__fspath__")


def are_paths(value: Any) -> bool:
    """Whether a source is a list of paths."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_path, value))


def is_recipe(value: Any) -> bool:
    """Whether a source is another recipe."""
    return hasattr(value, "instructions") and hasattr(value, "bake")


def _is_map_style(value: Any) -> bool:
    """Whether this has a length and an index, as the datasets of torch, which need not be iterable."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def materialize(value: Any) -> Any:
    """A source that can be read again and again: an iterator or a scanner is read once, now, and kept."""
    if tabular.is_scanner(value):
        return spooled(tabular.batches_of(value) or ())
    if not isinstance(value, Iterator):
        return value
    return pa.table(value) if hasattr(value, "__arrow_c_stream__") else buffered(value)
