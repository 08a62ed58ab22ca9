"""A shard is one rank's part of a dataset: some of its rows, some of its columns, or both.

    horizontal   rows rank, rank + W, rank + 2 W, ...      each rank trains on other rows
    vertical     a few columns of every row                each rank holds other features
    hybrid       a few columns of every W-th row

When W does not divide the number of rows, the first shards are one row longer. That is the default, because nothing
is repeated and nothing left out; a loader gives all ranks ``n_steps`` batches anyway, so no rank waits for a batch that
does not come. ``"pad"`` and ``"drop"`` make all shards equally long, and say what that costs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args

from poolish import torch_bridge
from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.load.batch import Batch
from poolish.load.frozen import FrozenRows
from poolish.load.views.view import DelegatingRows, ReindexedView, SampleView
from poolish.ranks import Ranks

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnShard", "HorizontalShard", "HybridShard", "RowShard", "VerticalShard", "n_steps"]

Uneven = Literal["short", "pad", "drop"]


def n_steps(n: int, world_size: int, batch_size: int) -> int:
    """How many batches every rank gets from ``n`` rows; the last may be short on some ranks, and empty on others.

    >>> n_steps(100, world_size=8, batch_size=4)
    4
    """
    return -(-n // (world_size * batch_size))


@dataclass(frozen=True)
class HorizontalShard:
    """Every ``world_size``-th row, from row ``rank`` on. The length is the dataset's at the moment of the call.

    ``uneven`` says what happens when rows cannot be dealt out evenly: ``"short"`` leaves some shards one row shorter,
    ``"pad"`` repeats rows from the start, ``"drop"`` leaves rows out; the last two warn with the numbers.

    Without ``rank`` and ``world_size`` they are looked up when the first row or the length is asked for, as
    ``poolish.ranks`` describes.

    >>> shard = HorizontalShard(rank=1, world_size=3)
    >>> list(shard(["rye", "wheat", "spelt", "oat", "corn"]))
    ['wheat', 'corn']
    """

    rank: int | None = None
    world_size: int | None = None
    uneven: Uneven = "short"

    def __post_init__(self) -> None:
        # Plain values, because the text of a shard is part of a loader's state.
        rank, world_size = Ranks(self.rank, self.world_size).given or (None, None)
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "world_size", world_size)
        if self.uneven not in get_args(Uneven):
            raise ConfigError(f"uneven must be 'short', 'pad' or 'drop', got {self.uneven!r}")
        object.__setattr__(self, "uneven", str(self.uneven))

    def __call__(self, dataset: Any) -> RowShard:
        return RowShard(dataset, self)

    def share(self) -> tuple[int, int]:
        """The rank and the world size, looked up where they were not given."""
        return Ranks(self.rank, self.world_size, what="HorizontalShard").settle()[:2]

    def n_rows(self, n: int) -> int:
        """How many of ``n`` rows this shard has."""
        rank, world_size = self.share()
        if self.uneven == "short":
            return len(range(rank, n, world_size))
        return n // world_size if self.uneven == "drop" else n_steps(n, world_size, 1)


@dataclass(frozen=True)
class VerticalShard:
    """Only these columns of every row, in this order; samples must be dicts.

    Complete samples: ``joined`` for shards in one process, ``gather`` for shards on several ranks.

    >>> VerticalShard(["x"])([{"x": 1, "y": 2}])[0]
    {'x': 1}
    """

    columns: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _check_columns(self.columns))

    def __call__(self, dataset: Any) -> ColumnShard:
        return ColumnShard(dataset, self.columns)

    def gather(self, batch: Mapping[str, Any], group: Any = None) -> Batch:
        """The same rows with the columns of all ranks: complete samples on every rank.

        ``batch`` holds the columns of this shard, as a ``Loader`` over it yields them. Each rank calls this with a
        batch of the same rows, so the loaders have ``rank=0, world_size=1`` and the same seed. Ranks that differ in row
        ids or lengths, or that share a column, all raise the same error. Tensors are broadcast, anything else is sent
        as it is. ``group`` is a group of ``torch.distributed``.
        """
        if not torch_bridge.has_process_group():
            raise ConfigError("gather needs a process group; call torch.distributed.init_process_group first")
        # Ranks describe their columns first, so all of them raise the same error and none waits for a tensor in vain.
        described = torch_bridge.gather_objects(_description(batch, self.columns), group)
        _check_gathered(described)
        device = next((value.device for value in batch.values() if torch_bridge.is_torch_tensor(value)), "cpu")
        whole: dict[str, Any] = {}
        for rank, each in enumerate(described):
            for name, (is_tensor, value) in each["columns"].items():
                if is_tensor:
                    own = batch[name] if rank == torch_bridge.own_rank(group) else None
                    value = torch_bridge.broadcast(own, value, rank, device, group)
                whole[name] = value
        ids, position, step = (getattr(batch, name, None) for name in ("ids", "position", "step"))
        return Batch(whole, ids=ids, position=position, step=step)


@dataclass(frozen=True)
class HybridShard:
    """These columns of every ``world_size``-th row.

    >>> rows = [{"x": i, "y": -i} for i in range(5)]
    >>> list(HybridShard(rank=0, world_size=2, columns=["y"])(rows))
    [{'y': 0}, {'y': -2}, {'y': -4}]
    """

    rank: int | None = None
    world_size: int | None = None
    columns: Sequence[str] = ()
    uneven: Uneven = "short"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _check_columns(self.columns))
        rows = HorizontalShard(self.rank, self.world_size, self.uneven)
        for name in ("rank", "world_size", "uneven"):
            object.__setattr__(self, name, getattr(rows, name))

    def __call__(self, dataset: Any) -> ColumnShard:
        return ColumnShard(HorizontalShard(self.rank, self.world_size, self.uneven)(dataset), self.columns)

    def gather(self, batch: Mapping[str, Any], group: Any = None) -> Batch:
        """As ``VerticalShard.gather``, over the ``group`` of ranks that share this shard's rows."""
        return VerticalShard(self.columns).gather(batch, group)


class RowShard(ReindexedView):
    """What a horizontal shard is called on gives: rows by number, computed, so nothing is kept for them."""

    def __init__(self, dataset: Any, shard: HorizontalShard) -> None:
        super().__init__(dataset)
        self._given, self._n_below = shard, len(dataset)
        self._shard_order: _ShardOrder | None = None
        if shard.rank is not None:
            self._order(stacklevel=4)

    @property
    def shard(self) -> HorizontalShard:
        """The shard, with its rank."""
        return self._order().shard

    def _order(self, n_below: int | None = None, *, stacklevel: int = 2) -> _ShardOrder:
        """Of as many rows as there were when the shard was made."""
        if self._shard_order is None:
            shard = HorizontalShard(*self._given.share(), self._given.uneven)
            if cost := _cost(self._n_below, shard):
                # Each shard says so itself: ranks are processes, and none reads the log of another.
                warnings.warn(f"{cost} (shard of rank {shard.rank})", stacklevel=stacklevel)
            self._shard_order = _ShardOrder(shard, self._n_below, shard.n_rows(self._n_below))
        return self._shard_order

    @property
    def choice(self) -> str:
        """Every nth row."""
        return str(self.shard)

    @property
    def version(self) -> str:
        """That of the dataset, and which rows of it."""
        return f"{super().version}|{self.shard} of {self._n_below}"


@dataclass(frozen=True)
class _ShardOrder:
    """The numbers of a shard's rows in the whole dataset."""

    shard: HorizontalShard
    n_below: int
    n_rows: int

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, numbers: Any) -> Any:
        # Only padding goes beyond the end, and begins again at the first row.
        rank, world_size = self.shard.share()
        return (rank + numbers * world_size) % max(self.n_below, 1)


class ColumnShard(SampleView):
    """What a vertical shard is called on gives: samples with fewer columns."""

    def __init__(self, dataset: Any, columns: Sequence[str]) -> None:
        super().__init__(dataset)
        self.columns = _check_columns(columns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # A third of the time of asking for a list of one.
        return _select(self._dataset[self._numbers_below([index])[0]], self.columns)

    def _over(self, rows: FrozenRows) -> FrozenRows:
        """The rows, with these columns."""
        return _ColumnRows(rows, self.columns)

    @property
    def version(self) -> str:
        """That of the dataset, and the columns."""
        return f"{super().version}|columns {list(self.columns)}"


class _ColumnRows(DelegatingRows):
    def __init__(self, rows: FrozenRows, columns: Sequence[str]) -> None:
        super().__init__(rows)
        self._columns = columns

    def fetch(self, ids: Any) -> list[Any]:
        return [_select(sample, self._columns) for sample in self.rows.fetch(ids)]

    def table(self, ids: Any) -> pa.Table | None:
        table = self.rows.table(ids)
        if table is None:
            return None
        _check_known(self._columns, table.column_names)
        return table.select(list(self._columns))


def _cost(n: int, shard: HorizontalShard) -> str:
    """What making the shards equally long repeats or leaves out, in words; empty if nothing."""
    _, world_size = shard.share()
    n_over = n % world_size
    if shard.uneven == "short" or not n_over:
        return ""
    dealt = f"{n:,} rows on {world_size} ranks, uneven={shard.uneven!r}"
    if shard.uneven == "drop":
        return f"{dealt}: {_named(n - n_over, n)} left out"
    n_more = world_size - n_over
    again = ", the first ones more than once" if n_more > n else ""
    return f"{dealt}: {_named(0, min(n_more, n))} repeated{again}, {n_more:,} in all"


def _named(first: int, end: int) -> str:
    return f"row {first} is" if end - first == 1 else f"rows {first} to {end - 1} are"


def _select(sample: Any, columns: Sequence[str]) -> dict[str, Any]:
    if not isinstance(sample, Mapping):
        raise TypeError(
            f"a shard of columns needs samples that are dicts, got {type(sample).__name__}; "
            "name their parts with a TransformedDataset first"
        )
    try:
        return {name: sample[name] for name in columns}
    except KeyError:
        _check_known(columns, list(sample))
        raise


def _check_known(columns: Iterable[str], known: list[str]) -> None:
    for name in columns:
        if name not in known:
            nearest = get_close_matches(name, map(str, known), n=1)
            advice = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise UnknownColumn(f"no column {name!r}; {advice}there are {known}")


def _check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    names = () if isinstance(columns, str) else tuple(columns)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"columns must be a list of different names, at least one, got {columns!r}")
    return tuple(map(str, names))


def _description(batch: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """What a rank contributes to ``gather``: rows and columns, a tensor as its shape and dtype."""
    if not isinstance(batch, Mapping) or set(batch) != set(columns):
        found = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
        return {"error": f"this shard has the columns {list(columns)}, the batch {found}"}
    ids = getattr(batch, "ids", None)
    described = {
        name: (True, (tuple(value.shape), value.dtype)) if torch_bridge.is_torch_tensor(value) else (False, value)
        for name, value in ((name, batch[name]) for name in columns)
    }
    return {
        "error": "",
        "ids": None if ids is None else ids.tolist(),
        "rows": {name: len(batch[name]) for name in columns},
        "columns": described,
    }


def _check_gathered(described: list[dict[str, Any]]) -> None:
    """Raise, on all ranks alike, unless these are different columns of the same rows."""
    owner: dict[str, int] = {}
    for rank, each in enumerate(described):
        if each["error"]:
            raise SchemaError(f"rank {rank}: {each['error']}; gather what the shard gave")
        for name in each["columns"]:
            if name in owner:
                raise SchemaError(f"column {name!r} is on ranks {owner[name]} and {rank}; give it to one of them")
            owner[name] = rank
    counts = {f"{name} (rank {rank})": n for rank, each in enumerate(described) for name, n in each["rows"].items()}
    if len(set(counts.values())) > 1:
        raise SchemaError(f"batches of different lengths, {counts}; all ranks must load the same rows")
    for rank, each in enumerate(described):
        if None not in (each["ids"], described[0]["ids"]) and each["ids"] != described[0]["ids"]:
            raise SchemaError(
                f"rank 0 has rows {described[0]['ids'][:5]}..., rank {rank} has {each['ids'][:5]}...; all ranks must "
                "load the same rows, so give their loaders rank=0, world_size=1 and the same seed"
            )
