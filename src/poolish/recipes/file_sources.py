"""Files as sources: paths, globs and directories of parquet, arrow, jsonl and csv, here or behind fsspec.

Files are read in the order of their names. A row is named by the file's path below the root of the glob and its row
number there, so files may be added, and whole trees moved, without a row changing its name.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import CorruptDataError, RecipeError
from poolish.files import checksum_hex
from poolish.recipes.identity import Int64
from poolish.recipes.pruning import can_skip
from poolish.recipes.sources import Fragment

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}

#: Row groups are read together until they have this many rows: small enough to share work, large enough to be quick.
GROUPED_ROWS = 131_072

#: Where data may come from besides the local disk; a path never loads a file system that is not named here.
PROTOCOLS = ("file", "memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "hf", "http", "https")

_GLOB = re.compile(r"[*?\[]")


class FileSource:
    """All files that paths, globs and directories name."""

    def __init__(self, paths: Any, what: str) -> None:
        listed = list(paths) if isinstance(paths, (list, tuple)) else [paths]
        self._paths = [os.fspath(path) for path in listed]
        self._what = what
        self._found: list[tuple[str, str]] | None = None

    def describe(self) -> str:
        """How many files there are."""
        n_files = len(self._files())
        return f"{n_files} file{'' if n_files == 1 else 's'} of {', '.join(self._paths)}"

    def _files(self) -> list[tuple[str, str]]:
        """Path and name below the root of every file, in the order of names."""
        if self._found is None:
            found = [pair for path in self._paths for pair in self._expanded(path)]
            self._found = sorted(set(found), key=lambda pair: (pair[1], pair[0]))
        return self._found

    def _expanded(self, path: str) -> list[tuple[str, str]]:
        fs, inner, prefix = _file_system(path, self._what)
        if _GLOB.search(inner):
            root = posixpath.dirname(inner[: _GLOB.search(inner).start()])  # type: ignore[union-attr]
            files = sorted(each for each in fs.glob(inner) if not fs.isdir(each))
        elif fs.isdir(inner):
            root, files = inner, sorted(each for each in fs.find(inner) if _format_of(each) is not None)
        elif fs.exists(inner):
            root, files = posixpath.dirname(inner), [inner]
        else:
            files = []
        if not files:
            raise RecipeError(f"{self._what}: no file at {path}; check the path, which is relative to {os.getcwd()}")
        return [(prefix + each, posixpath.relpath(each, root) if root else each) for each in files]

    def schema(self) -> pa.Schema:
        """The columns of the first file."""
        return _reader(self._files()[0][0], self._what).schema()

    def fragments(self) -> list[Fragment]:
        """Files, and groups of row groups in large ones."""
        return [fragment for path, name in self._files() for fragment in _reader(path, self._what).fragments(name)]

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """The rows of a fragment; a file that changed since the plan was made is refused."""
        reader = _reader(fragment.place["path"], self._what)
        yield from reader.read(fragment, columns, where)
        if reader.stamp() != fragment.place["stamp"]:
            raise RecipeError(
                f"{self._what}: {fragment.place['path']} changed while it was read; bake again when it is complete"
            )


def _file_system(path: str, what: str) -> tuple[Any, str, str]:
    """The file system of a path, the path in it, and what makes it whole again."""
    import fsspec

    protocol, separator, _ = path.partition("://")
    if not separator:
        return fsspec.filesystem("file"), os.path.abspath(path), ""
    if protocol not in PROTOCOLS:
        raise RecipeError(f"{what}: {path}: data comes from {', '.join(PROTOCOLS)}, not from {protocol!r}")
    fs, inner = fsspec.core.url_to_fs(path)
    return fs, inner, f"{protocol}://" if protocol not in ("http", "https") else ""


def _format_of(path: str) -> str | None:
    plain = path.lower().removesuffix(".gz").removesuffix(".zst")
    return FORMATS.get(posixpath.splitext(plain)[1])


def _reader(path: str, what: str) -> _File:
    kind = _format_of(path)
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

    def stamp(self) -> str:
        """Changes whenever the file is written."""
        info = self._fs.info(self._inner)
        changed = info.get("mtime") or info.get("ETag") or info.get("etag") or info.get("LastModified") or ""
        if "mtime" in info:
            changed = os.stat(self._inner).st_mtime_ns
        return f"{info['size']}:{changed}"

    def open(self) -> Any:
        return self._fs.open(self._inner, "rb")

    def failed(self, error: Exception) -> Exception:
        return CorruptDataError(
            f"{self.what}: {self.path} cannot be read as {self.kind}: {error}; mend or leave it out"
        )

    def schema(self) -> pa.Schema:
        raise AssertionError

    def fragments(self, name: str) -> list[Fragment]:
        raise AssertionError

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        raise AssertionError


class _Parquet(_File):
    def _opened(self) -> Any:
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self._inner if self._is_local() else self.open(), memory_map=self._is_local())
        except (pa.ArrowInvalid, OSError) as error:
            raise self.failed(error) from error

    def _is_local(self) -> bool:
        return "://" not in self.path

    def schema(self) -> pa.Schema:
        return self._opened().schema_arrow

    def fragments(self, name: str) -> list[Fragment]:
        metadata = self._opened().metadata
        stamp, first, n_rows = self.stamp(), 0, 0
        found: list[Fragment] = []
        groups: list[int] = []
        print_ = checksum_hex(str(metadata.to_dict()).encode(), stamp.encode())
        for group in range(metadata.num_row_groups):
            groups.append(group)
            n_rows += metadata.row_group(group).num_rows
            if n_rows >= GROUPED_ROWS or group == metadata.num_row_groups - 1:
                place = {"path": self.path, "stamp": stamp, "groups": tuple(groups), "first": first}
                found.append(Fragment(name, len(found), n_rows, f"{print_}:{groups[0]}-{groups[-1]}", place))
                groups, first, n_rows = [], first + n_rows, 0
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        file = self._opened()
        metadata, first = file.metadata, fragment.place["first"]
        for group in fragment.place["groups"]:
            n_rows = metadata.row_group(group).num_rows
            if not can_skip(where, metadata.row_group(group), file.schema_arrow):
                try:
                    table = file.read_row_group(
                        group, columns=None if columns is None else list(columns), use_threads=False
                    )
                except (pa.ArrowInvalid, OSError) as error:
                    raise self.failed(error) from error
                yield table, np.arange(first, first + n_rows)
            first += n_rows


class _Whole(_File):
    def _table(self) -> pa.Table:
        import pyarrow.csv
        import pyarrow.json

        try:
            with self.open() as raw:
                stream = pa.CompressedInputStream(raw, _compression(self.path)) if _compression(self.path) else raw
                if self.kind == "arrow":
                    return pa.ipc.open_file(pa.py_buffer(raw.read())).read_all()
                if self.kind == "csv":
                    return pyarrow.csv.read_csv(stream)
                return pyarrow.json.read_json(stream)
        except (pa.ArrowInvalid, OSError) as error:
            raise self.failed(error) from error

    def schema(self) -> pa.Schema:
        return self._table().schema

    def fragments(self, name: str) -> list[Fragment]:
        stamp = self.stamp()
        with self.open() as file:
            print_ = checksum_hex(file.read())
        return [Fragment(name, 0, None, print_, {"path": self.path, "stamp": stamp})]

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        table = self._table()
        yield (table if columns is None else table.select(list(columns))), np.arange(table.num_rows)


def _compression(path: str) -> str | None:
    return "gzip" if path.endswith(".gz") else "zstd" if path.endswith(".zst") else None
