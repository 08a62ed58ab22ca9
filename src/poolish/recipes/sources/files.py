"""Files as sources: paths, globs and directories of parquet, arrow, jsonl and csv, here or behind fsspec.

Files are read in the order of their names. A row is named by the file's path below a root and its row number there, so
files may be added, and whole trees moved, without a row changing its name. The root is

    a directory            the directory itself
    a glob                 the directory above its first wildcard
    a file                 the directory it is in
    several of these       the directory that the roots of all of them have in common

so two files have never the same name, and a list that gets a path outside of the common root gives its rows new names.
Files and folders below the root whose names begin with "." or "_" are no data, unless the path or the glob spells them.

A stamp shows a change without reading the file: equal stamps, equal content. On this machine it is
``poolish.files.local_stamp``. Elsewhere it is the tag or version that a store gives an object, else its date. Where a
store notes none of these, it is the checksum of both ends of the file.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import CorruptDataError, PoolishError, RecipeError
from poolish.files import StorageOptions, checksum_hex, local_stamp
from poolish.formats import (
    FORMATS,
    check_exact,
    check_row_groups,
    counted_rows,
    decompress,
    format_of,
    is_hidden,
    is_text,
    parse,
)
from poolish.printable import counted
from poolish.recipes.fragment_rows import (
    Filter,
    Fragment,
    NumberedTables,
    no_rows,
    selected,
    without_columns,
    workable,
)
from poolish.recipes.sources.pruning import can_prune, is_out_of_range

#: The rows of texts up to this size are counted, as there may be thousands of them, and some without any.
_SHORT_BYTES = 1 << 14
#: Row groups are read together until they have this many rows: small enough to share work, large enough to be quick.
GROUPED_ROWS = 131_072


class FileSource:
    """All files that paths, globs and directories name, each once."""

    def __init__(self, paths: Any, what: str, options: StorageOptions | None = None) -> None:
        listed = list(paths) if isinstance(paths, (list, tuple)) else [paths]
        self.paths = tuple(os.fsdecode(path) for path in listed)
        self.options = options
        self._concealed: Callable[[], AbstractContextManager[None]] = options.concealed if options else nullcontext
        check_options(self.paths, what, options)
        self._what = what
        self._found: list[tuple[str, str]] | None = None
        self._schema: pa.Schema | None = None

    def look_like(self, other: FileSource) -> None:
        """Take over what another source of the same paths has found there."""
        self._found, self._schema = other._found, other._schema

    def describe(self) -> str:
        """How many files there are."""
        return f"{counted(len(self._files()), 'file')} of {', '.join(self.paths)}"

    def _files(self) -> list[tuple[str, str]]:
        """Path and name below the root of every file, in the order of names."""
        if self._found is None:
            with self._concealed():
                self._found = named_files(self.paths, self._what, self.options)
        return self._found

    def schema(self) -> pa.Schema:
        """The columns of the first file that has rows, or else of the first that has columns."""
        if self._schema is None:
            found = pa.schema([])
            for path, _ in self._files():
                with self._concealed():
                    schema, has_rows = self._file(path).look()
                found = schema if has_rows or not len(found) else found
                if has_rows:
                    break
            self._schema = found
        return self._schema

    def fragments(self) -> list[Fragment]:
        """Files, and groups of row groups in large ones.

        A text without rows does not say what its columns hold, so it counts only if there is nothing else.
        """
        with self._concealed():
            readers = [(self._file(path), name) for path, name in self._files()]
            found = [self._stored(fragment) for reader, name in readers for fragment in reader.fragments(name)]
        return [each for each in found if each.n_rows != 0 or "groups" in each.place] or found[:1]

    def _stored(self, fragment: Fragment) -> Fragment:
        """The fragment as that of a store, which another one of the same paths is not."""
        if self.options is None or "://" not in fragment.place["path"]:
            return fragment
        store = self.options.identity
        place = {**fragment.place, "store": store}
        return replace(fragment, fingerprint=f"{fragment.fingerprint}:{store}", place=place)

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """The rows of a fragment; a file that changed since the plan was made is refused."""
        with self._concealed():
            reader = self._file(fragment.place["path"])
            with unchanged(self._what, reader.path, fragment.place["stamp"], lambda: reader.stamp(fresh=True)):
                yield from reader.read(fragment, columns, where)

    def _file(self, path: str) -> DataFile:
        kind = format_of(path)
        if kind is None:
            raise RecipeError(
                f"{self._what}: {path}: its ending is none of {', '.join(FORMATS)}; convert it, or read it yourself"
            )
        return (ParquetFile if kind == "parquet" else WholeFile)(path, kind, self._what, self.options)


# One file -----------------------------------------------------------------------------------------------------------


@contextmanager
def located_errors(what: str, path: str, kind: str) -> Iterator[None]:
    """Name the file in errors. An error of the system keeps its type, as reading again may help."""
    try:
        yield
    except FileNotFoundError as error:
        raise RecipeError(f"{what}: {path} is gone; bring it back, or leave it out") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.add_note(f"while reading {path} for {what}")
            raise
        raise CorruptDataError(
            f"{what}: {path} cannot be read as {kind}: {error}; repair it or leave it out"
        ) from error


@contextmanager
def unchanged(what: str, path: str, stamp: str, now: Callable[[], str]) -> Iterator[None]:
    """Refuse a file whose stamp changes while it is read: half of one and half of another would be no file at all."""
    changed = RecipeError(f"{what}: {path} changed while it was read; bake again when it is complete")
    try:
        yield
    except (PoolishError, OSError, IndexError) as error:
        if now() != stamp:
            raise changed from error
        raise
    if now() != stamp:
        raise changed


class DataFile(ABC):
    """One file: its stamp, its fragments, its rows; errors name it."""

    def __init__(self, path: str, kind: str, what: str, options: StorageOptions | None = None) -> None:
        self.path, self.kind, self.what = path, kind, what
        self._fs, self._inner, _ = file_system(path, what, options)
        self._is_local = "://" not in path

    def stamp(self, *, fresh: bool = False) -> str:
        """Changes whenever the file is written; ``fresh`` asks a store itself, not what it said when it was listed."""
        with self._located_errors():
            if self._is_local:
                return local_stamp(self._inner)
            if fresh:
                self._fs.invalidate_cache(self._inner)
            return remote_stamp(self._fs, self._inner)

    def _located_errors(self) -> AbstractContextManager[None]:
        return located_errors(self.what, self.path, self.kind)

    @abstractmethod
    def look(self) -> tuple[pa.Schema, bool]:
        """Its columns, and whether it has rows."""

    @abstractmethod
    def fragments(self, name: str) -> list[Fragment]:
        """Its parts, under the name that it has below its root."""

    @abstractmethod
    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """The rows of a part, and their numbers; those that a filter cannot hold for may be left out."""


class WholeFile(DataFile):
    """A file of a format that is read as a whole."""

    def _data(self) -> bytes:
        with self._located_errors(), self._fs.open(self._inner, "rb") as file:
            data: bytes = file.read()
        return data

    def _text(self) -> bytes:
        data = self._data()
        with self._located_errors():
            return decompress(data, self.path)

    def _table(self, text: bytes) -> pa.Table:
        with self._located_errors():
            return workable(parse(text, self.kind, f"{self.what}: {self.path}"))

    def look(self) -> tuple[pa.Schema, bool]:
        table = self._table(self._text())
        return table.schema, table.num_rows > 0

    def fragments(self, name: str) -> list[Fragment]:
        stamp, data = self.stamp(), self._data()
        n_rows = None
        if is_text(self.kind) and len(data) < _SHORT_BYTES:
            with self._located_errors():
                n_rows = self._counted(decompress(data, self.path))
            if n_rows is None:
                return []
        # Caches of 0.1.0 may hold rounded integers, so texts have other fingerprints since.
        fingerprint = checksum_hex(data) + (":exact" if is_text(self.kind) else "")
        return [Fragment(name, 0, n_rows, fingerprint, {"path": self.path, "stamp": stamp})]

    def _counted(self, text: bytes) -> int | None:
        """How many rows a text has; None if it has no columns either."""
        n_rows = counted_rows(text, self.kind)
        if n_rows is not None:
            return n_rows
        table = parse(text, self.kind, self.path)
        return table.num_rows if table.num_columns or table.num_rows else None

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        text = self._text()
        table = selected(self._table(text), columns)
        with self._located_errors():
            check_exact(table, text, self.kind, f"{self.what}: {self.path}")
        yield table, np.arange(table.num_rows)


# Parquet ------------------------------------------------------------------------------------------------------------


class ParquetFile(DataFile):
    """A file of row groups, of which a filter may need only some; texts may stay dictionary-encoded."""

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        """The open file, and its reader."""
        import pyarrow.parquet as pq

        # Not mapped: a file that is cut while it is mapped ends the process that reads it.
        with self._located_errors():
            raw = pa.OSFile(self._inner) if self._is_local else self._fs.open(self._inner, "rb")
        with raw:
            with self._located_errors():
                file = pq.ParquetFile(raw)
            yield raw, file

    def look(self) -> tuple[pa.Schema, bool]:
        with self._opened() as (_, file):
            return file.schema_arrow, file.metadata.num_rows > 0

    def fragments(self, name: str) -> list[Fragment]:
        stamp = self.stamp()  # before it is opened: a file that is replaced in between is then seen to have changed
        with self._opened() as (raw, file):
            metadata = file.metadata
            with self._located_errors():
                fingerprint = checksum_hex(_footer(raw), stamp.encode())
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        found: list[Fragment] = []
        for groups, first, n_rows in row_group_ranges(sizes):
            place = {"path": self.path, "stamp": stamp, "groups": groups, "first": first}
            found.append(Fragment(name, len(found), n_rows, f"{fingerprint}:{groups[0]}-{groups[-1]}", place))
        nothing = {"path": self.path, "stamp": stamp, "groups": (), "first": 0}
        return found or [Fragment(name, 0, 0, fingerprint, nothing)]

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        first = fragment.place["first"]
        with self._opened() as (raw, file):
            schema = file.schema_arrow
            names = None if columns is None else selected(no_rows(schema), columns).column_names
            with self._located_errors():
                check_row_groups(raw, file, fragment.place["groups"])
                file, encoded = _with_dictionaries(raw, file, fragment.place["groups"])
            condition = where if can_prune(where, schema) else None
            if not fragment.place["groups"]:
                yield selected(no_rows(schema), columns), np.arange(0)
            for group in fragment.place["groups"]:
                with self._located_errors():
                    metadata = file.metadata.row_group(group)
                    is_out = condition is not None and is_out_of_range(condition, metadata, schema)
                if not is_out:
                    with self._located_errors():
                        table = (
                            file.read_row_group(group, columns=names, use_threads=False)
                            if names != []
                            else without_columns(metadata.num_rows)
                        )
                        for name in encoded & set(table.column_names):
                            table.column(name).validate(full=True)  # Arrow checks indices only where it decodes
                    yield table, np.arange(first, first + metadata.num_rows)
                first += metadata.num_rows


def row_group_ranges(sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Row groups that are read together, the number of their first row, and how many rows they have.

    >>> list(row_group_ranges([100_000, 30_000, 200_000]))
    [((0, 1), 0, 130000), ((2,), 130000, 200000)]
    """
    groups: list[int] = []
    first = n_rows = 0
    for group, size in enumerate(sizes):
        groups.append(group)
        n_rows += size
        next_size = sizes[group + 1] if group + 1 < len(sizes) else 2 * GROUPED_ROWS
        if n_rows + next_size // 2 >= GROUPED_ROWS:  # it would be further from it with the next
            yield tuple(groups), first, n_rows
            groups, first, n_rows = [], first + n_rows, 0


def _footer(raw: Any) -> bytes:
    """The footer of a parquet file: where everything is, and its statistics."""
    raw.seek(-8, os.SEEK_END)
    n_bytes = int.from_bytes(raw.read(4), "little")
    raw.seek(-8 - n_bytes, os.SEEK_END)
    footer: bytes = raw.read(n_bytes)
    return footer


def _with_dictionaries(raw: Any, file: Any, groups: Sequence[int]) -> tuple[Any, set[str]]:
    """The same file, whose texts of a few repeated values stay dictionary-encoded; and the names of these columns.

    Decoding them costs more than all that is done with them: a filter looks at the dictionary, and only the rows that
    it keeps are decoded (``canonical_table``).
    """
    import pyarrow.parquet as pq

    chosen = [file.metadata.row_group(group) for group in groups]
    texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
    places = {file.metadata.schema.column(i).path: i for i in range(file.metadata.num_columns)}
    encoded = [name for name in texts if name in places and all(_is_dictionary(g.column(places[name])) for g in chosen)]
    if not chosen or not encoded:
        return file, set()
    return pq.ParquetFile(raw, metadata=file.metadata, read_dictionary=encoded), set(encoded)


def _is_dictionary(chunk: Any) -> bool:
    """Whether a column chunk is dictionary-encoded. Plain, each text would have its length before it, 4 bytes long."""
    return "RLE_DICTIONARY" in chunk.encodings and chunk.total_uncompressed_size < 4 * chunk.num_values


# Paths and file systems ---------------------------------------------------------------------------------------------


#: Where data may come from besides the local disk; a path never loads a file system that is not named here.
PROTOCOLS = ("file", "memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "hf", "http", "https")

#: What stores call a name of the content, then what they call a date; the first that is there counts.
_TAGS = (
    *("ETag", "etag", "generation", "blob_id", "md5Hash", "md5", "Content-MD5", "content_md5", "Digest", "checksum"),
    *("VersionId", "version_id", "versionId", "version"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "modified", "mtime"),
)

#: Files up to this size are looked at as a whole where a store notes nothing, larger ones at both ends.
SAMPLED_BYTES = 1 << 20

_GLOB = re.compile(r"[*?\[]")


def check_options(paths: Sequence[str], what: str, options: StorageOptions | None) -> None:
    """Raise if options would be ignored, or reach a store that they are not for."""
    if options is None:
        return
    stores = {path.partition("://")[0] for path in paths if "://" in path} - {"file"}
    if not stores:
        raise RecipeError(
            f"{what}: storage_options are for URLs, and {', '.join(paths)} is on this machine; leave them out"
        )
    if len(stores) > 1:
        raise RecipeError(
            f"{what}: storage_options are for one store, and these paths lead to {', '.join(sorted(stores))}; make an "
            "ingredient of each"
        )


def named_files(paths: tuple[str, ...], what: str, options: StorageOptions | None = None) -> list[tuple[str, str]]:
    """Whole path and name of every file, in the order of names."""
    found = _named([_expanded(path, what, options) for path in paths])
    return sorted(set(found), key=lambda pair: (pair[1], pair[0]))


def _expanded(path: str, what: str, options: StorageOptions | None) -> tuple[str, str, list[str]]:
    """What makes paths whole again, the root, and all files that a path, a glob or a directory names."""
    fs, inner, prefix = file_system(path, what, options)
    if prefix:
        fs.invalidate_cache()  # what a store listed earlier may not be what it holds now
    if format_of(inner) is not None and fs.isfile(inner):  # before wildcards: a name may well have brackets in it
        root, files, found = posixpath.dirname(inner), [inner], [inner]
    elif fs.isdir(inner):
        root, found = inner, [each for each in fs.find(inner) if format_of(each) is not None]
        files = [each for each in found if not is_hidden(each, root)]
    elif fs.exists(inner):
        root, files, found = posixpath.dirname(inner), [inner], [inner]
    elif _GLOB.search(inner):
        root, pattern = _split(fs, inner)
        found = [each for each, info in fs.glob(pattern, detail=True).items() if info["type"] != "directory"]
        files = [each for each in found if not is_hidden(each, root, inner[len(root) :])]
    else:
        root, files, found = "", [], []
    if found and not files:
        raise RecipeError(
            f"{what}: nothing but hidden files at {path}, {posixpath.relpath(min(found), root or '.')} for one; names "
            "that begin with '.' or '_' are left out unless the path itself has them: rename them, or name them"
        )
    if not files:
        if fs.isdir(inner):
            raise RecipeError(f"{what}: {path} is a directory without any file of {', '.join(FORMATS)}")
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


def file_system(path: str, what: str, options: StorageOptions | None = None) -> tuple[Any, str, str]:
    """The file system of a path, the path in it, and what makes it whole again: nothing for files of this machine."""
    import fsspec

    protocol, separator, _ = path.partition("://")
    if not separator:
        return fsspec.filesystem("file"), os.path.abspath(path), ""
    if "::" in path:
        raise RecipeError(f"{what}: {path}: a path leads to one place; unpack what is inside of another file first")
    if protocol not in PROTOCOLS:
        raise RecipeError(f"{what}: {path}: data comes from {', '.join(PROTOCOLS)}, not from {protocol!r}")
    fs, inner = fsspec.core.url_to_fs(path, **({} if options is None or protocol == "file" else dict(options)))
    if protocol == "file":
        return fs, os.path.abspath(inner), ""
    return fs, inner, f"{protocol}://" if protocol not in ("http", "https") else ""


# Stamps -------------------------------------------------------------------------------------------------------------


def remote_stamp(fs: Any, path: str) -> str:
    """The stamp of a file in a file system of fsspec; never asks this machine about a path that is not its own."""
    info = fs.info(path)
    for name in _TAGS:
        if info.get(name):
            return f"{info.get('size')}:{name}:{info[name]}"
    modified = ""
    with suppress(NotImplementedError, AttributeError):
        modified = str(fs.modified(path))
    return f"{info.get('size')}:{modified}:{_sample(fs, path, info.get('size'))}"


def _sample(fs: Any, path: str, size: int | None) -> str:
    if size is None or size <= SAMPLED_BYTES:
        return checksum_hex(fs.cat_file(path))
    # The footer of a parquet file is at the end.
    ends = fs.cat_file(path, 0, SAMPLED_BYTES // 8), fs.cat_file(path, size - SAMPLED_BYTES, size)
    return checksum_hex(*ends)
