"""Where ingredients come from, cut into fragments: parts that can be read, baked and cached each by itself.

    paths, globs, directories      a fragment for each file, or for the row groups of a large parquet file
    DatasetBuffer, pa.Table, ...   a fragment for each 65,536 ids, so that an append changes only the last ones
    StreamStore                    a fragment for each 65,536 steps

A fragment says what it is by a fingerprint of its content, so a change is always seen. Rows keep their numbers: of the
file, the buffer or the stream, not of the fragment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError
from poolish.files import checksum_hex
from poolish.recipes.identity import Int64
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.tokens.store import StreamStore

#: Rows of a fragment of what is in memory.
FRAGMENT_ROWS = 65_536


@dataclass(frozen=True)
class Fragment:
    """A part of a source: plain data, so that it can be sent to another process."""

    name: str
    number: int
    n_rows: int | None
    fingerprint: str
    place: Mapping[str, Any]


class Source(Protocol):
    """Rows to bake from."""

    def describe(self) -> str:
        """What it is, in a few words."""

    def schema(self) -> pa.Schema:
        """The columns."""

    def fragments(self) -> list[Fragment]:
        """All parts, in a stable order."""

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """The rows of a part with their numbers, a table at a time.

        Only ``columns`` are read where that saves work; rows that ``where`` cannot hold for may be left out.
        """


def as_source(value: Any, what: str) -> Source:
    """Whatever was given as a source; ``what`` names the ingredient in errors."""
    if hasattr(value, "fragments") and hasattr(value, "read"):
        source: Source = value
        return source
    if isinstance(value, (str, bytes)) or hasattr(value, "__fspath__"):
        from poolish.recipes.file_sources import FileSource

        return FileSource(value, what)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(v, str) or hasattr(v, "__fspath__") for v in value)
    ):
        from poolish.recipes.file_sources import FileSource

        return FileSource(value, what)
    if isinstance(value, (DatasetBuffer, Snapshot)):
        return BufferSource(value)
    if isinstance(value, StreamStore):
        return StreamSource(value)
    if hasattr(value, "instructions") and hasattr(value, "bake"):
        from poolish.recipes.nested import RecipeSource

        nested: Source = RecipeSource(value)
        return nested
    if isinstance(value, (pa.Table, pa.RecordBatch)) or hasattr(value, "__arrow_c_stream__"):
        return TableSource(pa.table(value))
    if type(value).__module__.split(".")[0] == "datasets":
        return BufferSource(buffered(value))
    if isinstance(value, Iterable):
        return BufferSource(buffered(value))
    raise RecipeError(
        f"{what}: a source is a path, a buffer, a stream, a table, a dataset or an iterable, got {value!r}"
    )


def held(value: Any) -> Any:
    """A source as it can be read again and again: an iterator is read once, now, and kept."""
    return buffered(value) if isinstance(value, Iterator) and not hasattr(value, "__arrow_c_stream__") else value


def buffered(samples: Any) -> DatasetBuffer:
    """Samples as rows."""
    buffer = DatasetBuffer()
    buffer.append(samples)
    return buffer


class BufferSource:
    """The rows of a buffer as they are when the bake begins; a row's number is its id."""

    def __init__(self, buffer: DatasetBuffer | Snapshot) -> None:
        self._buffer = buffer

    def describe(self) -> str:
        """How many rows it has."""
        return f"buffer of {len(self._buffer):,} rows"

    def schema(self) -> pa.Schema:
        """The columns."""
        return self._rows().schema.to_arrow()

    def _rows(self) -> Snapshot:
        return self._buffer.snapshot() if isinstance(self._buffer, DatasetBuffer) else self._buffer

    def fragments(self) -> list[Fragment]:
        """Rows by ranges of ids, so that what is appended or leaves changes only its own ranges."""
        rows = self._rows()
        found = []
        starts = np.unique(rows.ids // FRAGMENT_ROWS) if len(rows) else ()
        for number in (int(start) for start in starts):
            first, end = np.searchsorted(rows.ids, [number * FRAGMENT_ROWS, (number + 1) * FRAGMENT_ROWS]).tolist()
            table = rows[first:end]
            print_ = content_of(table, rows.ids[first:end])
            found.append(Fragment("", number, end - first, print_, {"first": first, "end": end}))
        self._frozen = rows
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """One slice."""
        first, end = fragment.place["first"], fragment.place["end"]
        table = self._frozen[first:end]
        yield (table if columns is None else table.select(list(columns))), self._frozen.ids[first:end]


class TableSource:
    """The rows of a table; a row's number is its place."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def describe(self) -> str:
        """How many rows it has."""
        return f"table of {self._table.num_rows:,} rows"

    def schema(self) -> pa.Schema:
        """The columns."""
        return self._table.schema

    def fragments(self) -> list[Fragment]:
        """Rows by ranges."""
        found = []
        for first in range(0, self._table.num_rows, FRAGMENT_ROWS):
            part = self._table.slice(first, FRAGMENT_ROWS)
            place = {"first": first, "end": first + part.num_rows}
            found.append(Fragment("", first // FRAGMENT_ROWS, part.num_rows, content_of(part), place))
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """One slice."""
        first, end = fragment.place["first"], fragment.place["end"]
        table = self._table.slice(first, end - first)
        yield (table if columns is None else table.select(list(columns))), np.arange(first, end)


class StreamSource:
    """The steps of a stream, each a row of its fields; a row's number is that of its step."""

    def __init__(self, store: StreamStore) -> None:
        self._store = store

    def describe(self) -> str:
        """How many steps it has."""
        return f"stream of {self._store.n_steps:,} steps"

    def schema(self) -> pa.Schema:
        """The columns of the first steps."""
        first, end = self._store.step_span()
        return self._table(first, min(end, first + 1024))[0].schema

    def fragments(self) -> list[Fragment]:
        """Steps by ranges, counted since the stream began."""
        self._store.refresh()
        first, end = self._store.step_span()
        found = []
        for number in range(first // FRAGMENT_ROWS, -(-end // FRAGMENT_ROWS)):
            low, high = max(first, number * FRAGMENT_ROWS), min(end, (number + 1) * FRAGMENT_ROWS)
            place = {"first": low, "end": high}
            found.append(Fragment("", number, high - low, f"{self._store.uuid}:{low}:{high}", place))
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """All steps of the range."""
        table, numbers = self._table(fragment.place["first"], fragment.place["end"])
        yield (table if columns is None else table.select(list(columns))), numbers

    def _table(self, first: int, end: int) -> tuple[pa.Table, Int64]:
        steps = self._store.steps_at(np.arange(first, end))
        names = list(self._store.field_to_type)
        buffer = DatasetBuffer(schema=self._store.features if steps else None)
        buffer.append([{name: step.get(name) for name in names} for step in steps])
        return buffer.snapshot().to_arrow(), np.array([step.number for step in steps], np.int64)


def content_of(table: pa.Table, ids: Int64 | None = None) -> str:
    """A fingerprint of all values of a table, however it is cut into chunks."""
    table = table.combine_chunks()
    parts: list[Any] = [str(table.schema).encode()]
    for column in table.columns:
        for chunk in column.chunks:
            # Only what belongs to these rows: a slice shares the buffers of the whole.
            sink = pa.BufferOutputStream()
            batch = pa.record_batch([chunk], names=["c"])
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            parts.append(sink.getvalue())
    if ids is not None:
        parts.append(np.ascontiguousarray(ids).data)
    return checksum_hex(*parts)
