"""What tests of recipes share: data to bake from, a bake in plain Python to compare with, and ways to cut the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import seeds
from poolish.recipes.fragment_rows import FragmentRows, Prepared, canonical_table
from poolish.recipes.report import BakeResult
from poolish.recipes.sources import FileSource, Source, files
from poolish.recipes.sources import source as sources
from poolish.recipes.steps import called as called_steps
from poolish.recipes.steps.called import CalledStep

Row = dict[str, Any]

# Data -----------------------------------------------------------------------------------------------------------------


def numbers(n: int, first: int = 0) -> pa.Table:
    """Rows that are told apart by ``x``, with a text, a null here and there, and a few groups."""
    xs = range(first, first + n)
    return pa.table(
        {
            "x": pa.array(xs, pa.int64()),
            "text": [None if x % 11 == 5 else f"row {x}" for x in xs],
            "group": [f"g{x % 3}" for x in xs],
            "score": pa.array([((x * 37) % 101) / 8 for x in xs], pa.float64()),
        }
    )


def write(path: Path, table: pa.Table, row_group_size: int | None = None) -> Path:
    """A parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def arrow_file(path: Path, table: pa.Table) -> Path:
    """An Arrow file."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path


def shelf(folder: Path, n_files: int, n_rows: int, row_group_size: int | None = None) -> Path:
    """A directory of parquet files, each with ``n_rows`` of its own numbers."""
    for i in range(n_files):
        write(folder / f"{i:03}.parquet", numbers(n_rows, i * n_rows), row_group_size)
    return folder


def made(code: str, name: str = "step", **names: Any) -> Any:
    """A function or class of this code, as another version of somebody's module would have it."""
    names["__name__"] = "somebody"
    exec(code, names)
    return names[name]


# What a bake gave -----------------------------------------------------------------------------------------------------


def content(result: BakeResult) -> tuple[Any, ...]:
    """All that must not depend on how the work was cut, who did it, or what was kept: rows, schema, origin, rejects.

    Rows as text, because NaN is not equal to itself.
    """
    return (
        [repr(row) for row in result.table.to_pylist()],
        result.table.schema.to_string(),
        origins(result),
        rejects(result),
    )


def origins(result: BakeResult) -> list[tuple[Any, ...]]:
    """For each row of the result where it came from and what was done to it."""
    found = [result.lineage.why(i) for i in range(len(result.lineage))]
    return [(why.ingredient, why.file, why.row, why.part, why.steps) for why in found]


def rejects(result: BakeResult) -> list[tuple[Any, ...]]:
    """Rejected rows, in no order."""
    return sorted(tuple(reject.values()) for reject in result.rejects.to_pylist())


def xs(result: BakeResult) -> list[Any]:
    """The column ``x``, by which rows are told apart."""
    return list(result.table.column("x").to_pylist())


def line(result: BakeResult, name: str) -> Any:
    """The line of the report about one instruction."""
    (found,) = [each for each in result.report.lines if each.name == name]
    return found


def cached(result: BakeResult) -> tuple[int, int]:
    """Fragments that came from the cache, and all."""
    found = [each for each in result.report.lines if each.kind == "ingredient"]
    return sum(each.cached for each in found), sum(each.fragments for each in found)


def message_of(error: BaseException) -> str:
    """What an error says, with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


# Parts of a bake, each by itself --------------------------------------------------------------------------------------


def file_source(paths: Any) -> FileSource:
    """Files as the ingredient ``a``."""
    return FileSource(paths, "ingredient 'a'")


def read_all(source: Source, columns: list[str] | None = None) -> list[tuple[str, int, Row]]:
    """All rows of a source with the names of their parts and their numbers."""
    found = []
    for fragment in source.fragments():
        for table, rows in source.read(fragment, columns, None):
            found += [(fragment.name, int(n), values) for n, values in zip(rows, table.to_pylist(), strict=True)]
    return found


def rows_of(source: Source, columns: list[str] | None = None) -> list[Row]:
    """All rows of a source, without their names."""
    return [values for _, _, values in read_all(source, columns)]


def fingerprints(source: Source) -> list[str]:
    """By what a cache finds each part of a source again."""
    return [fragment.fingerprint for fragment in source.fragments()]


def piece(table: pa.Table, first: int = 10) -> FragmentRows:
    """Rows of a file, numbered from 10, so that a place in the piece is not taken for a row of the file."""
    return FragmentRows.read("oats", "f.parquet", canonical_table(table), np.arange(first, first + table.num_rows))


def called(
    function: Any, table: pa.Table, on_error: str = "raise", batched: bool | str = False, **options: Any
) -> Prepared:
    """What a step makes of a table."""
    return CalledStep("knead", function, None, batched, options).prepare(piece(table), on_error)


# Ways to cut the work -------------------------------------------------------------------------------------------------


@contextmanager
def cut(fragment_rows: int = 65_536, grouped_rows: int = 131_072, batch_rows: int = 16_384) -> Iterator[None]:
    """Other sizes of the parts that a bake is cut into."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "FRAGMENT_ROWS", fragment_rows)
        patch.setattr(files, "GROUPED_ROWS", grouped_rows)
        patch.setattr(called_steps, "BATCH_ROWS", batch_rows)
        yield


# A bake in plain Python -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Modelled:
    """One row of the model, and its origin."""

    values: Row
    ingredient: str
    file: str
    row: int
    steps: tuple[str, ...] = ()


@dataclass
class Model:
    """The whole pipeline for lists of rows, as slow and plain as can be."""

    seed: int
    rows: list[Modelled] = field(default_factory=list)

    def hash(self, row: Modelled) -> int:
        """The 64 bits by which a row is chosen: splitmix64 behind the key of its part."""
        word = (row.row + seeds.key(self.seed, "recipes", "pick", row.ingredient, row.file)) % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    def add(
        self,
        ingredient: str,
        parts: dict[str, list[tuple[int, Row]]],
        where: Callable[[Row], Any] | None = None,
        take: int | float | None = None,
        pick: str = "hash",
        on_short: str = "error",
    ) -> None:
        """Rows of files (or of one part without a name), each with its number there."""
        found = [Modelled(row, ingredient, file, i) for file in sorted(parts) for i, row in parts[file]]
        self.rows += self._taken([row for row in found if where is None or where(row.values)], take, pick, on_short)

    def _taken(self, rows: list[Modelled], take: Any, pick: str, on_short: str) -> list[Modelled]:
        if take is None:
            return rows
        if isinstance(take, float) and pick == "hash":
            return [row for row in rows if self.hash(row) < int(take * 2**64)]
        n_rows = round(len(rows) * take) if isinstance(take, float) else take
        if n_rows > len(rows):
            if on_short == "accept":
                return rows
            if on_short == "error" or not rows:
                raise ValueError("too few")
            return rows * (n_rows // len(rows)) + self._chosen(rows, n_rows % len(rows), pick)
        return self._chosen(rows, n_rows, pick)

    def _chosen(self, rows: list[Modelled], n_rows: int, pick: str) -> list[Modelled]:
        places = range(len(rows))
        how, _, column = pick.removesuffix(")").partition("(")
        if how == "stratified":
            chosen = self._strata(rows, n_rows, column)
        else:
            keys: dict[str, Callable[[int], Any]] = {
                "hash": lambda i: (self.hash(rows[i]), i),
                "latest": lambda i: -i,
                "oldest": lambda i: i,
                "top": lambda i: (rows[i].values[column] is None, -(rows[i].values[column] or 0), self.hash(rows[i])),
            }
            chosen = set(sorted(places, key=keys[how])[:n_rows])
        return [rows[i] for i in places if i in chosen]

    def _strata(self, rows: list[Modelled], n_rows: int, column: str) -> set[int]:
        values = list(dict.fromkeys(row.values[column] for row in rows))
        members = [[i for i, row in enumerate(rows) if row.values[column] == value] for value in values]
        chosen: set[int] = set()
        for mine, n_mine in zip(members, shared_out([len(m) for m in members], n_rows), strict=True):
            chosen |= set(sorted(mine, key=lambda i: self.hash(rows[i]))[:n_mine])
        return chosen

    def step(self, name: str, function: Callable[[Row], Any], where: Callable[[Modelled], Any] | None = None) -> None:
        """A function of a row that gives a row, or rows."""
        done = []
        for row in self.rows:
            if where is not None and not where(row):
                done.append(row)
                continue
            made = function(dict(row.values))
            many = [made] if isinstance(made, dict) else made
            done += [replace(row, values=values, steps=(*row.steps, name)) for values in many]
        self.rows = done

    def dedup(self, columns: list[str], where: Callable[[Modelled], Any] | None = None) -> None:
        """The first of each kind."""
        seen = set()
        kept = []
        for row in self.rows:
            kind = tuple(row.values[name] for name in columns)
            if where is not None and not where(row):
                kept.append(row)
            elif kind not in seen:
                seen.add(kind)
                kept.append(row)
        self.rows = kept

    def limit(self, n_rows: int, where: Callable[[Modelled], Any] | None = None) -> None:
        """The first rows of those that are asked about; the others stay."""
        left = n_rows
        kept = []
        for row in self.rows:
            asked = where is None or where(row)
            if not asked or left > 0:
                kept.append(row)
            left -= bool(asked)
        self.rows = kept


def shared_out(weights: list[int], total: int) -> list[int]:
    """Largest remainder in whole numbers, which cannot round."""
    shares = [total * weight // sum(weights) for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % sum(weights)), i))
    for i in by_rest[: total - sum(shares)]:
        shares[i] += 1
    return shares
