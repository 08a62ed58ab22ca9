"""Files as sources: paths, globs and directories of parquet, arrow, jsonl and csv, here or behind fsspec.

Files are read in the order of their names. A row is named by the file's path below a root and its row number there, so
files may be added, and whole trees moved, without a row changing its name. The root is

    a directory            the directory itself
    a glob                 the directory above its first wildcard
    a file                 the directory it is in
    several of these       the directory that the roots of all of them have in common

so two files have never the same name, and a list that gets a path outside of the common root gives its rows new names.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import CorruptDataError, PoolishError, RecipeError
from poolish.files import checksum_hex
from poolish.recipes.file_formats import FORMATS, format_of, table_of, unpacked
from poolish.recipes.identity import Int64
from poolish.recipes.piece import workable
from poolish.recipes.pruning import can_prune, is_out_of_range
from poolish.recipes.sources import Fragment, no_rows, selected, without_columns
from poolish.recipes.stamps import changed, local_stamp, remote_stamp

#: Row groups are read together until they have this many rows: small enough to share work, large enough to be quick.
GROUPED_ROWS = 131_072

#: Where data may come from besides the local disk; a path never loads a file system that is not named here.
PROTOCOLS = ("file", "memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "hf", "http", "https")

#: Texts up to this size are read to see whether they have any rows.
_SHORT_BYTES = 1 << 14

_GLOB = re.compile(r"[*?\[]")


class FileSource:
    """All files that paths, globs and directories name, each once."""

    def __init__(self, paths: Any, what: str) -> None:
        listed = list(paths) if isinstance(paths, (list, tuple)) else [paths]
        self.paths = tuple(os.fsdecode(path) for path in listed)
        self._what = what
        self._found: list[tuple[str, str]] | None = None
        self._schema: pa.Schema | None = None

    def look_like(self, other: FileSource) -> None:
        """Take over what another source of the same paths has found there."""
        self._found, self._schema = other._found, other._schema

    def describe(self) -> str:
        """How many files there are."""
        n_files = len(self._files())
        return f"{n_files} file{'' if n_files == 1 else 's'} of {', '.join(self.paths)}"

    def _files(self) -> list[tuple[str, str]]:
        """Path and name below the root of every file, in the order of names."""
        if self._found is None:
            expanded = [_expanded(path, self._what) for path in self.paths]
            self._found = sorted(set(_named(expanded)), key=lambda pair: (pair[1], pair[0]))
        return self._found

    def schema(self) -> pa.Schema:
        """The columns of the first file that has rows, or else of the first that has columns."""
        if self._schema is None:
            found = pa.schema([])
            for path, _ in self._files():
                schema, has_rows = _reader(path, self._what).look()
                found = schema if has_rows or not len(found) else found
                if has_rows:
                    break
            self._schema = found
        return self._schema

    def fragments(self) -> list[Fragment]:
        """Files, and groups of row groups in large ones.

        A text without rows does not say what its columns hold, so it counts only if there is nothing else.
        """
        readers = [(_reader(path, self._what), name) for path, name in self._files()]
        found = [fragment for reader, name in readers for fragment in reader.fragments(name)]
        return [each for each in found if each.n_rows != 0 or "groups" in each.place] or found[:1]

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """The rows of a fragment; a file that changed since the plan was made is refused."""
        path, stamp = fragment.place["path"], fragment.place["stamp"]
        reader = _reader(path, self._what)
        try:
            yield from reader.read(fragment, columns, where)
        except (PoolishError, OSError, IndexError) as error:
            # Half of one file and half of another is not what anybody wrote.
            if reader.stamp(fresh=True) != stamp:
                raise changed(self._what, path) from error
            raise
        if reader.stamp(fresh=True) != stamp:
            raise changed(self._what, path)


# Which files ------------------------------------------------------------------------------------------------------


def _expanded(path: str, what: str) -> tuple[str, str, list[str]]:
    """What makes paths whole again, the root, and all files that a path, a glob or a directory names."""
    fs, inner, prefix = _file_system(path, what)
    if prefix:
        fs.invalidate_cache()  # what a store listed earlier may not be what it holds now
    if format_of(inner) is not None and fs.isfile(inner):  # before wildcards: a name may well have brackets in it
        root, files = posixpath.dirname(inner), [inner]
    elif fs.isdir(inner):
        root, files = inner, [each for each in fs.find(inner) if format_of(each) is not None]
    elif fs.exists(inner):
        root, files = posixpath.dirname(inner), [inner]
    elif _GLOB.search(inner):
        root, pattern = _split(fs, inner)
        found = fs.glob(pattern, detail=True)
        files = [each for each, info in found.items() if info["type"] != "directory"]
    else:
        root, files = "", []
    if not files:
        raise RecipeError(f"{what}: no file at {path}; check the path, which is relative to {os.getcwd()}")
    return prefix, root, files


def _split(fs: Any, inner: str) -> tuple[str, str]:
    """The directory above the first wildcard, and a pattern in which that directory means itself alone."""
    parts = inner.split("/")
    root = ""
    for i, part in enumerate(parts[:-1]):
        below = "/".join(parts[: i + 1])
        if _GLOB.search(part) and not fs.isdir(below):
            break
        root = below
    rest = inner[len(root) :]
    return root or ("/" if inner.startswith("/") else ""), glob.escape(root) + rest


def _named(expanded: list[tuple[str, str, list[str]]]) -> Iterator[tuple[str, str]]:
    """Whole path and name of each file: its path below what all roots of its file system have in common."""
    prefixes = {prefix for prefix, _, _ in expanded}
    for prefix in sorted(prefixes):
        root = posixpath.commonpath([each for other, each, _ in expanded if other == prefix])
        for file in {file for other, _, files in expanded if other == prefix for file in files}:
            name = posixpath.relpath(file, root) if root else file
            yield prefix + file, name if len(prefixes) == 1 else prefix + name


def _file_system(path: str, what: str) -> tuple[Any, str, str]:
    """The file system of a path, the path in it, and what makes it whole again: nothing for files of this machine."""
    import fsspec

    protocol, separator, _ = path.partition("://")
    if not separator:
        return fsspec.filesystem("file"), os.path.abspath(path), ""
    if "::" in path:
        raise RecipeError(f"{what}: {path}: a path leads to one place; unpack what is inside of another file first")
    if protocol not in PROTOCOLS:
        raise RecipeError(f"{what}: {path}: data comes from {', '.join(PROTOCOLS)}, not from {protocol!r}")
    fs, inner = fsspec.core.url_to_fs(path)
    if protocol == "file":
        return fs, os.path.abspath(inner), ""
    return fs, inner, f"{protocol}://" if protocol not in ("http", "https") else ""


# One file ---------------------------------------------------------------------------------------------------------


def _reader(path: str, what: str) -> _File:
    kind = format_of(path)
    if kind is None:
        raise RecipeError(
            f"{what}: {path}: its ending is none of {', '.join(FORMATS)}; convert it, or read it yourself"
        )
    return (_Parquet if kind == "parquet" else _Whole)(path, kind, what)


class _File:
    """One file."""

    def __init__(self, path: str, kind: str, what: str) -> None:
        self.path, self.kind, self.what = path, kind, what
        self._fs, self._inner, _ = _file_system(path, what)
        self._is_local = "://" not in path

    def stamp(self, *, fresh: bool = False) -> str:
        """Changes whenever the file is written; ``fresh`` asks a store itself, not what it said when it was listed."""
        with self._explained():
            if self._is_local:
                return local_stamp(self._inner)
            if fresh:
                self._fs.invalidate_cache(self._inner)
            return remote_stamp(self._fs, self._inner)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors name the file. A system that cannot give it keeps its own error, as reading again may help."""
        try:
            yield
        except FileNotFoundError as error:
            raise RecipeError(f"{self.what}: {self.path} is gone; bring it back, or leave it out") from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                error.add_note(f"while reading {self.path} for {self.what}")
                raise
            raise CorruptDataError(
                f"{self.what}: {self.path} cannot be read as {self.kind}: {error}; mend or leave it out"
            ) from error

    def look(self) -> tuple[pa.Schema, bool]:
        """Its columns, and whether it has rows."""
        raise AssertionError

    def fragments(self, name: str) -> list[Fragment]:
        raise AssertionError

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        raise AssertionError


class _Parquet(_File):
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


class _Whole(_File):
    def _data(self) -> bytes:
        with self._explained(), self._fs.open(self._inner, "rb") as file:
            data: bytes = file.read()
        return data

    def _table(self) -> pa.Table:
        data = self._data()
        with self._explained():
            return workable(table_of(unpacked(data, self.path), self.kind))

    def look(self) -> tuple[pa.Schema, bool]:
        table = self._table()
        return table.schema, table.num_rows > 0

    def fragments(self, name: str) -> list[Fragment]:
        stamp, data = self.stamp(), self._data()
        n_rows = None
        if self.kind != "arrow" and len(data) < _SHORT_BYTES:
            with self._explained():
                table = table_of(unpacked(data, self.path), self.kind)
            if not table.num_columns and not table.num_rows:
                return []
            n_rows = table.num_rows
        return [Fragment(name, 0, n_rows, checksum_hex(data), {"path": self.path, "stamp": stamp})]

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        table = self._table()
        yield selected(table, columns), np.arange(table.num_rows)
