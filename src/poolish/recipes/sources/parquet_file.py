"""A parquet file: in groups of rows, of which a filter may need only some, with words that stay numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.files import checksum_hex
from poolish.recipes.fragment_rows import Int64
from poolish.recipes.sources.one_file import OneFile
from poolish.recipes.sources.pruning import can_prune, is_out_of_range
from poolish.recipes.sources.source import Fragment, no_rows, selected, without_columns

#: Row groups are read together until they have this many rows: small enough to share work, large enough to be quick.
GROUPED_ROWS = 131_072


class ParquetFile(OneFile):
    """A file of row groups."""

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        """The open file, and its reader."""
        import pyarrow.parquet as pq

        # Not mapped: a file that is cut while it is mapped ends the process that reads it.
        with self._explained():
            raw = pa.OSFile(self._inner) if self._is_local else self._fs.open(self._inner, "rb")
        with raw:
            with self._explained():
                file = pq.ParquetFile(raw)
            yield raw, file

    def look(self) -> tuple[pa.Schema, bool]:
        with self._opened() as (_, file):
            return file.schema_arrow, file.metadata.num_rows > 0

    def fragments(self, name: str) -> list[Fragment]:
        stamp = self.stamp()  # before it is opened: a file that is replaced in between is then seen to have changed
        with self._opened() as (raw, file):
            metadata = file.metadata
            with self._explained():
                print_ = checksum_hex(_footer(raw), stamp.encode())
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        found: list[Fragment] = []
        groups: list[int] = []
        first = n_rows = 0
        for group, size in enumerate(sizes):
            groups.append(group)
            n_rows += size
            next_size = sizes[group + 1] if group + 1 < len(sizes) else 2 * GROUPED_ROWS
            if n_rows + next_size // 2 >= GROUPED_ROWS:  # it would be further from it with the next
                place = {"path": self.path, "stamp": stamp, "groups": tuple(groups), "first": first}
                found.append(Fragment(name, len(found), n_rows, f"{print_}:{groups[0]}-{groups[-1]}", place))
                groups, first, n_rows = [], first + n_rows, 0
        nothing = {"path": self.path, "stamp": stamp, "groups": (), "first": 0}
        return found or [Fragment(name, 0, 0, print_, nothing)]

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        first = fragment.place["first"]
        with self._opened() as (raw, file):
            schema = file.schema_arrow
            names = None if columns is None else selected(no_rows(schema), columns).column_names
            with self._explained():
                _check_columns(raw, file, fragment.place["groups"])
                file, coded = _coded(raw, file, fragment.place["groups"])
            prunes = can_prune(where, schema)
            if not fragment.place["groups"]:
                yield selected(no_rows(schema), columns), np.arange(0)
            for group in fragment.place["groups"]:
                with self._explained():
                    told = file.metadata.row_group(group)
                    is_out = prunes and is_out_of_range(where, told, schema)
                if not is_out:
                    with self._explained():
                        table = (
                            file.read_row_group(group, columns=names, use_threads=False)
                            if names != []
                            else without_columns(told.num_rows)
                        )
                        for name in coded & set(table.column_names):
                            table.column(name).validate(full=True)  # Arrow looks at the numbers only if it spells them
                    yield table, np.arange(first, first + told.num_rows)
                first += told.num_rows


def _footer(raw: Any) -> bytes:
    """What stands at the end of a parquet file: where everything is, and statistics of it."""
    raw.seek(-8, os.SEEK_END)
    n_bytes = int.from_bytes(raw.read(4), "little")
    raw.seek(-8 - n_bytes, os.SEEK_END)
    footer: bytes = raw.read(n_bytes)
    return footer


def _check_columns(raw: Any, file: Any, groups: Sequence[int]) -> None:
    """Raise if the columns of a footer contradict its schema.

    Asked what such a footer says of a column, Arrow ends the process; asked to read the column, it raises. So it is
    asked to read no rows of them all, through a stream, for which it makes readers and reads nothing (25 us a group).
    """
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(raw, metadata=file.metadata, buffer_size=4096, pre_buffer=False).reader
    columns = list(range(file.metadata.num_columns))
    for group in groups:
        next(reader.iter_batches(0, row_groups=[group], column_indices=columns, use_threads=False), None)
        for i in columns:  # the type decides how its statistics are read, where the same would happen
            known, told = file.metadata.schema.column(i), file.metadata.row_group(group).column(i).physical_type
            if told != known.physical_type:
                raise pa.ArrowInvalid(f"column {known.path!r} is {told} in group {group}, {known.physical_type} above")


def _coded(raw: Any, file: Any, groups: Sequence[int]) -> tuple[Any, set[str]]:
    """The same file, whose texts of a few words that come again and again are left as numbers and words; and which.

    To make a text of each costs more than all that is done with them: a filter looks at the words, and only the rows
    that it keeps are spelled out (``canonical_table``).
    """
    import pyarrow.parquet as pq

    told = [file.metadata.row_group(group) for group in groups]
    texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
    places = {file.metadata.schema.column(i).path: i for i in range(file.metadata.num_columns)}
    coded = [name for name in texts if name in places and all(_is_coded(group.column(places[name])) for group in told)]
    if not told or not coded:
        return file, set()
    return pq.ParquetFile(raw, metadata=file.metadata, read_dictionary=coded), set(coded)


def _is_coded(chunk: Any) -> bool:
    """Whether it holds numbers of words. Spelled out each text would have its length before it, which takes 4 bytes."""
    return "RLE_DICTIONARY" in chunk.encodings and chunk.total_uncompressed_size < 4 * chunk.num_values
