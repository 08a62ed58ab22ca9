"""Column shards put together again: each row has the columns of all of them.

    shard 0    id  x         VerticalShard(["id", "x"])(rows), or a file that holds only these
    shard 1    id      y
    joined     id  x   y     row i is row i of every shard: the same length, and the same row ids

Shards of one buffer that changes are read as of one moment. Shards that are spread over processes are put together by
``VerticalShard.gather`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from poolish.errors import ConfigError, SchemaError
from poolish.load.dataset import check_index, identity_of, samples
from poolish.load.frozen import FrozenRows, Int64, Mask, Span, content_of, ids_of, snapshot_rows
from poolish.load.views.view import (
    CombinedView,
    DelegatingRows,
    all_ids,
    check_sources,
    has_numbers_for_ids,
    rows_with_ids,
)

if TYPE_CHECKING:
    import pyarrow as pa


def joined(shards: Iterable[Any], on: str | None = None) -> JoinedDataset:
    """The complete samples of column shards, which may be any datasets whose samples are dicts.

    All shards have the same number of rows and the same row ids, and no column is in two of them. ``on`` names a column
    that is in all of them and identifies the row: it is compared in each row that is read, and kept once.

    >>> rows = [{"id": i, "x": i / 2, "y": -i} for i in range(3)]
    >>> from poolish.load.shards import VerticalShard
    >>> whole = joined([VerticalShard(["id", "x"])(rows), VerticalShard(["id", "y"])(rows)], on="id")
    >>> whole[-1]
    {'id': 2, 'x': 1.0, 'y': -2}
    >>> joined([[{"x": 1}], [{"x": 2}]])
    Traceback (most recent call last):
    poolish.errors.SchemaError: column 'x' is in shard 1 and in one before it; ...
    """
    return JoinedDataset(shards, on)


class JoinedDataset(CombinedView):
    """What ``joined`` returns."""

    def __init__(self, shards: Iterable[Any], on: str | None = None) -> None:
        super().__init__(check_sources(shards, "shards"))
        self._on = on
        self._by_number = all(map(has_numbers_for_ids, self._parts))
        if len(self):
            self[0]  # columns that are in two shards are found now, not in the middle of training

    def __len__(self) -> int:
        lengths = self._of_one_moment(len)
        if len(set(lengths)) > 1:
            raise ConfigError(f"shards have {lengths} rows; only shards of the same rows can be joined")
        return int(lengths[0])

    def __getitem__(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = self.__getitems__([index])[0]
        return found

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """One call for each shard."""
        n_rows = len(self)
        numbers = [check_index(index, n_rows) for index in indices]
        if not self._by_number:
            ids, rows = rows_with_ids(self, lambda: self.ids_of(np.asarray(numbers, np.int64)))
            return rows.fetch(ids)
        return _merged([samples(shard, numbers) for shard in self._parts], self._on)

    def _identity(self) -> Any:
        """Those of all shards."""
        return "joined", [identity_of(shard) for shard in self._parts], self._on

    @property
    def length_costs(self) -> bool:
        """As of the shards."""
        return any(getattr(shard, "length_costs", False) for shard in self._parts)

    @property
    def ids_are_numbers(self) -> bool:
        """Where they are in all shards."""
        return self._by_number

    def ids_of(self, numbers: Int64) -> Int64:
        """Those of the first shard, which are those of all."""
        return ids_of(self._parts[0], numbers)

    def snapshot_rows(self) -> FrozenRows:
        """All shards as they are at one moment."""
        shards = self._of_one_moment(snapshot_rows)
        _check_same_rows(shards)
        return _JoinedRows(shards, self._on)

    def _of_one_moment(self, ask: Callable[[Any], Any]) -> list[Any]:
        """What each shard answers, while none of them changes: shards of one buffer are then of one state of it."""
        while True:
            before = self.version
            answers = [ask(shard) for shard in self._parts]
            if self.version == before:
                return answers


class _JoinedRows(DelegatingRows):
    def __init__(self, shards: list[FrozenRows], on: str | None) -> None:
        super().__init__(shards[0])
        self._shards, self._on = shards, on

    def alive(self, ids: Int64) -> Mask | None:
        """Which are in every shard; the oldest may leave a stream at any time."""
        masks = [mask for shard in self._shards if (mask := shard.alive(ids)) is not None]
        return np.logical_and.reduce(masks) if masks else None

    def content(self, span: Span) -> str:
        return " ".join(content_of(shard, span) for shard in self._shards)

    def fetch(self, ids: Int64) -> list[Any]:
        return _merged([shard.fetch(ids) for shard in self._shards], self._on)

    def table(self, ids: Int64) -> pa.Table | None:
        if self._on is not None:
            return None  # rows are compared one by one
        tables = [table for shard in self._shards if (table := shard.table(ids)) is not None]
        if len(tables) < len(self._shards):
            return None
        whole = tables[0]
        for k, table in enumerate(tables[1:], 1):
            _check_new(table.column_names, whole.column_names, k, None)
            for field, column in zip(table.schema, table.columns, strict=True):
                whole = whole.append_column(field, column)
        return whole


def _merged(shards: list[list[Any]], on: str | None) -> list[Any]:
    """One sample of each shard's samples, in their order."""
    return [_one(parts, on) for parts in zip(*shards, strict=True)]


def _one(parts: Sequence[Any], on: str | None) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for k, part in enumerate(parts):
        if not isinstance(part, Mapping):
            raise SchemaError(f"shard {k}: samples to be joined are dicts, got {type(part).__name__}; name their parts")
        if on is not None:
            _check_same_value(part, parts[0], k, on)
        _check_new(part, whole, k, on)
        whole.update(part)
    return whole


def _check_new(names: Iterable[str], known: Iterable[str], k: int, on: str | None) -> None:
    """Raise if a column is in a shard before."""
    for name in names:
        if name in known and name != on:
            raise SchemaError(
                f"column {name!r} is in shard {k} and in one before it; choose other columns, or name it with "
                f"on={name!r} if it identifies the row"
            )


def _check_same_value(part: Mapping[str, Any], first: Mapping[str, Any], k: int, on: str) -> None:
    if on not in part or on not in first:
        raise SchemaError(f"on={on!r}: no such column in shard {k if on in first else 0}; it must be in all shards")
    if not np.array_equal(part[on], first[on]):
        raise SchemaError(
            f"{on!r} is {first[on]!r} in shard 0 and {part[on]!r} in shard {k}, in the same row; the shards are not of "
            "the same rows in the same order"
        )


def _check_same_rows(shards: list[FrozenRows]) -> None:
    """Raise unless all have the same ids."""
    first = shards[0]
    for k, other in enumerate(shards[1:], 1):
        is_same = other.spans() == first.spans() and len(other) == len(first)
        n_spanned = sum(end - begin for begin, end in first.spans())
        if not is_same or (n_spanned != len(first) and not np.array_equal(all_ids(other), all_ids(first))):
            raise ConfigError(
                f"shard {k} has {len(other):,} rows with ids {other.spans()}, shard 0 {len(first):,} with ids "
                f"{first.spans()}; only shards of the same rows can be joined"
            )
