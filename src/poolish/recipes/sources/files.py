"""Files as sources: paths, globs and directories of parquet, arrow, jsonl and csv, here or behind fsspec.

Files are read in the order of their names. A row is named by the file's path below a root and its row number there, so
files may be added, and whole trees moved, without a row changing its name. The root is

    a directory            the directory itself
    a glob                 the directory above its first wildcard
    a file                 the directory it is in
    several of these       the directory that the roots of all of them have in common

so two files have never the same name, and a list that gets a path outside of the common root gives its rows new names.
Files and folders below the root whose names begin with "." or "_" are no data, unless the path or the glob spells them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from poolish.errors import PoolishError, RecipeError
from poolish.recipes.fragment_rows import Int64
from poolish.recipes.sources.formats import FORMATS, format_of
from poolish.recipes.sources.one_file import OneFile, WholeFile
from poolish.recipes.sources.parquet_file import ParquetFile
from poolish.recipes.sources.paths import named_files
from poolish.recipes.sources.source import Fragment
from poolish.recipes.sources.stamps import changed


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
            self._found = named_files(self.paths, self._what)
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


def _reader(path: str, what: str) -> OneFile:
    kind = format_of(path)
    if kind is None:
        raise RecipeError(
            f"{what}: {path}: its ending is none of {', '.join(FORMATS)}; convert it, or read it yourself"
        )
    return (ParquetFile if kind == "parquet" else WholeFile)(path, kind, what)
