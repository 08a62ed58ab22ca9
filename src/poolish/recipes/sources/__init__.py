"""Where rows come from.

    source    the protocol; tables, buffers, streams, recipes     files     paths, globs and directories as one source
    pruning   row groups that a filter cannot hold for

All are cut into fragments, which are read, baked and cached each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from poolish.errors import RecipeError
from poolish.recipes.sources.files import FileSource
from poolish.recipes.sources.source import (
    BufferSource,
    RecipeSource,
    Source,
    StreamSource,
    TableSource,
    buffered,
)
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
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
    "is_path",
    "is_recipe",
    "materialize",
]


def as_source(value: Any, what: str) -> Source:
    """The source that a value stands for; ``what`` names the ingredient in errors."""
    if hasattr(value, "fragments") and hasattr(value, "read"):
        source: Source = value
        return source
    if is_path(value) or are_paths(value):
        return FileSource(value, what)
    if isinstance(value, (DatasetBuffer, Snapshot)):
        return BufferSource(value)
    if isinstance(value, StreamStore):
        return StreamSource(value)
    if is_recipe(value):
        return RecipeSource(value)
    if isinstance(value, (pa.Table, pa.RecordBatch)) or hasattr(value, "__arrow_c_stream__"):
        return TableSource(pa.table(value))
    if type(value).__module__.split(".")[0] == "datasets" or isinstance(value, Iterable) or _is_map_style(value):
        try:
            return BufferSource(buffered(value))
        except Exception as error:
            error.add_note(f"while reading {what}")
            raise
    raise RecipeError(
        f"{what}: a source is a path, a buffer, a stream, a table, a dataset or an iterable, got {value!r}"
    )


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
    """A source that can be read again and again: an iterator is read once, now, and kept."""
    if not isinstance(value, Iterator):
        return value
    return pa.table(value) if hasattr(value, "__arrow_c_stream__") else buffered(value)
