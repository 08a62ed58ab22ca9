"""One file of a source: its stamp, its fragments, its rows; and errors that name it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import CorruptDataError, RecipeError
from poolish.files import checksum_hex, local_stamp
from poolish.recipes.fragment_rows import Int64, workable
from poolish.recipes.sources.exact_numbers import check_exact, check_finite
from poolish.recipes.sources.formats import counted_rows, table_of, unpacked
from poolish.recipes.sources.paths import file_system
from poolish.recipes.sources.source import Fragment, selected
from poolish.recipes.sources.stamps import remote_stamp

#: The rows of texts up to this size are counted, as there may be thousands of them, and some without any.
_SHORT_BYTES = 1 << 14


class OneFile(ABC):
    """One file."""

    def __init__(self, path: str, kind: str, what: str) -> None:
        self.path, self.kind, self.what = path, kind, what
        self._fs, self._inner, _ = file_system(path, what)
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
                f"{self.what}: {self.path} cannot be read as {self.kind}: {error}; repair it or leave it out"
            ) from error

    @abstractmethod
    def look(self) -> tuple[pa.Schema, bool]:
        """Its columns, and whether it has rows."""

    @abstractmethod
    def fragments(self, name: str) -> list[Fragment]:
        """Its parts, under the name that it has below its root."""

    @abstractmethod
    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """The rows of a part, and their numbers; those that a filter cannot hold for may be left out."""


class WholeFile(OneFile):
    """A file of a format that is read as a whole."""

    def _data(self) -> bytes:
        with self._explained(), self._fs.open(self._inner, "rb") as file:
            data: bytes = file.read()
        return data

    def _text(self) -> bytes:
        data = self._data()
        with self._explained():
            return unpacked(data, self.path)

    def _table(self, text: bytes) -> pa.Table:
        with self._explained():
            try:
                return workable(table_of(text, self.kind))
            except pa.ArrowInvalid:
                check_finite(text, self.kind, f"{self.what}: {self.path}")
                raise

    def look(self) -> tuple[pa.Schema, bool]:
        table = self._table(self._text())
        return table.schema, table.num_rows > 0

    def fragments(self, name: str) -> list[Fragment]:
        stamp, data = self.stamp(), self._data()
        n_rows = None
        if self.kind != "arrow" and len(data) < _SHORT_BYTES:
            with self._explained():
                n_rows = self._counted(unpacked(data, self.path))
            if n_rows is None:
                return []
        # What 0.1.0 kept in a cache may have rounded integers, so texts have other fingerprints since.
        print_ = checksum_hex(data) + ("" if self.kind == "arrow" else ":exact")
        return [Fragment(name, 0, n_rows, print_, {"path": self.path, "stamp": stamp})]

    def _counted(self, text: bytes) -> int | None:
        """How many rows a text has; None if it has no columns either."""
        n_rows = counted_rows(text, self.kind)
        if n_rows is not None:
            return n_rows
        table = table_of(text, self.kind)
        return table.num_rows if table.num_columns or table.num_rows else None

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        text = self._text()
        table = selected(self._table(text), columns)
        with self._explained():
            check_exact(table, text, self.kind, f"{self.what}: {self.path}")
        yield table, np.arange(table.num_rows)
