"""Datasets of pyarrow as sources: the files that one lists, with the columns that its partitions add.

    parquet or Arrow files, here or behind fsspec    a fragment for each file, or for some row groups of a large one
    other formats, stores or rows in memory          read once for each bake (``source.spooled``)

A row is named by the path of its file (absolute on this machine) and its number in the file, whatever the filter of the
dataset; so files may be added without a row changing its name. A fragment is known by the stamp of its file
(``files``), the columns and the filter of the dataset, and what the partitions say about the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.files import checksum_hex, local_stamp
from poolish.printable import counted
from poolish.recipes.fragment_rows import Filter, Fragment, NumberedTables, no_rows, selected, without_columns
from poolish.recipes.sources.files import located_errors, remote_stamp, row_group_ranges, unchanged
from poolish.recipes.sources.pruning import can_prune, is_out_of_range
from poolish.tabular import PART_ROWS, fresh_dataset

#: The column in which rows keep their numbers while a filter is applied.
_NUMBER = "\0number"


class ArrowDatasetSource:
    """The files of a pyarrow dataset, each read when it is needed, with the columns and row groups that are needed."""

    def __init__(self, dataset: Any, what: str) -> None:
        self._dataset, self._condition = fresh_dataset(dataset)
        self._schema, self._what = dataset.schema, what
        self._pieces: dict[str, Any] = {piece.path: piece for piece in self._dataset.get_fragments()}

    @staticmethod
    def can_read(value: Any) -> bool:
        """Whether a dataset lists files whose changes are seen without reading them, and whose rows can be counted."""
        import pyarrow.dataset as ds

        is_listed = isinstance(value, ds.FileSystemDataset) and _store(value.filesystem) is not None
        return is_listed and isinstance(value.format, (ds.ParquetFileFormat, ds.IpcFileFormat))

    def describe(self) -> str:
        """How many files there are."""
        return f"dataset of {counted(len(self._pieces), 'file')}"

    def schema(self) -> pa.Schema:
        """The columns, those of partitions included."""
        return self._schema

    def fragments(self) -> list[Fragment]:
        """Files, and groups of row groups in large ones; an empty dataset still has columns."""
        condition = b"" if self._condition is None else bytes(self._condition.__reduce__()[1][0])
        shared = checksum_hex(self._schema.serialize(), condition)
        found: list[Fragment] = []
        for path, piece in self._pieces.items():
            stamp = self._stamp(path)
            about = repr((shared, stamp, str(piece.partition_expression), type(piece.format).__name__))
            print_ = checksum_hex(about.encode())
            for number, (groups, first, n_rows) in enumerate(self._parts(piece, path)):
                place = {"file": path, "stamp": stamp, "groups": groups, "first": first}
                n_known = n_rows if self._condition is None else None
                found.append(Fragment(self._name(path), number, n_known, f"{print_}:{number}:{groups}", place))
        return found or [Fragment("", 0, 0, shared, {"file": None})]

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """The rows of a part; a file that changed since the plan was made is refused."""
        path = fragment.place["file"]
        if path is None:
            yield selected(no_rows(self._schema), columns), np.arange(0)
            return
        with (
            unchanged(self._what, path, fragment.place["stamp"], lambda: self._stamp(path)),
            self._located_errors(path),
        ):
            yield from self._read(self._pieces[path], fragment, columns, where)

    def _read(
        self, piece: Any, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None
    ) -> NumberedTables:
        names = None if columns is None else selected(no_rows(self._schema), columns).column_names
        first = fragment.place["first"]
        for rows, n_rows in self._row_groups(piece, fragment.place["groups"], where):
            if rows is not None:
                yield from self._numbered(rows, names, first)
            first += n_rows

    def _row_groups(
        self, piece: Any, groups: tuple[int, ...] | None, where: Filter | None
    ) -> Iterator[tuple[Any, int]]:
        """Each row group and how many rows it has; None in place of one without any row that is asked for."""
        if groups is None:
            yield piece, 0
            return
        own = piece.physical_schema
        can_skip = self._condition is None and can_prune(where, self._schema) and _has_own(own, self._schema, where)
        left = groups if self._condition is None else {each.id for each in piece.subset(self._condition).row_groups}
        for group in groups:
            metadata = piece.metadata.row_group(group)
            is_out = group not in left or (can_skip and is_out_of_range(where, metadata, own))  # type: ignore[arg-type]
            yield None if is_out else piece.subset(row_group_ids=[group]), metadata.num_rows

    def _numbered(self, rows: Any, names: list[str] | None, first: int) -> NumberedTables:
        wanted = names if names is None else list(dict.fromkeys([*names, *self._condition_columns]))
        for batch in rows.to_batches(schema=self._schema, columns=wanted, batch_size=PART_ROWS, use_threads=False):
            numbers = np.arange(first, first + batch.num_rows)
            table = pa.Table.from_batches([batch]) if wanted != [] else without_columns(batch.num_rows)
            if self._condition is not None:
                table = table.append_column(_NUMBER, pa.array(numbers)).filter(self._condition)
                numbers = table.column(_NUMBER).to_numpy()
                table = selected(table.drop_columns([_NUMBER]), names)
            yield table, numbers
            first += batch.num_rows

    @cached_property
    def _condition_columns(self) -> list[str]:
        """The columns that the filter of the dataset reads: those without which it cannot be answered."""
        if self._condition is None:
            return []
        rows = no_rows(self._schema)
        return [name for name in rows.column_names if not _is_answered(self._condition, rows.drop_columns([name]))]

    def _parts(self, piece: Any, path: str) -> list[tuple[tuple[int, ...] | None, int, int | None]]:
        """The row groups, the number of the first row and the number of rows of each part of a file."""
        if not hasattr(type(piece), "row_groups"):
            return [(None, 0, None)]
        with self._located_errors(path):
            return list(row_group_ranges([group.num_rows for group in piece.row_groups])) or [((), 0, 0)]

    def _name(self, path: str) -> str:
        return os.path.abspath(path) if _store(self._dataset.filesystem) == "local" else path

    def _stamp(self, path: str) -> str:
        store = _store(self._dataset.filesystem)
        with self._located_errors(path):
            if store == "local":
                return local_stamp(os.path.abspath(path))
            store.invalidate_cache(path)
            return remote_stamp(store, path)

    def _located_errors(self, path: str) -> AbstractContextManager[None]:
        return located_errors(self._what, path, self._dataset.format.default_extname)


def _store(filesystem: Any) -> Any:
    """What tells the stamps of files: ``"local"``, or a file system of fsspec; None if nothing does."""
    from pyarrow import fs

    if isinstance(filesystem, fs.LocalFileSystem):
        return "local"
    handler = getattr(filesystem, "handler", None)
    return handler.fs if isinstance(handler, fs.FSSpecHandler) else None


def _is_answered(condition: Any, rows: pa.Table) -> bool:
    try:
        rows.filter(condition)
    except pa.ArrowInvalid:
        return False
    return True


def _has_own(physical: pa.Schema, schema: pa.Schema, where: Filter) -> bool:
    """Whether a file itself has the columns of a filter, in the types of the dataset, so that its statistics hold."""
    same = (name in physical.names and physical.field(name).type == schema.field(name).type for name in where.columns)
    return all(same)
