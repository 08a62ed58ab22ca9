"""DatasetProvider: serve anything that has a length and an index, without writing a class."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import torch_bridge
from poolish.errors import ConfigError, SchemaError, Unfingerprintable
from poolish.files import checksum_hex
from poolish.fingerprints import MAX_BYTES, MAX_VALUES, fingerprint, qualified_name
from poolish.fingerprints.tables import content_of
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.rows.validate import ValueRejected
from poolish.rows.values import stored
from poolish.schema import Field, Schema
from poolish.seeds import KeyedPermutation, key
from poolish.serve.provider import DataProviderBase
from poolish.tokens.window_dataset import WindowDataset
from poolish.transports.batch_columns import CARRIED, is_variable

if TYPE_CHECKING:
    from poolish.guards.checks.guard import Guard

ORDERS = ("shuffle", "sequential", "random")


class MapStyle(Protocol):
    """What can be served: a snapshot of a buffer, windows of a stream, a torch or Hugging Face dataset, a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Any: ...


class DatasetProvider(DataProviderBase):
    """Serves the rows of map-style datasets: dicts of numbers, arrays, lists and text, or ``(x, y)`` pairs.

    ``datasets`` is one dataset (the split ``train``) or ``{split: dataset}``. ``order``:

    - ``"shuffle"``: each epoch all rows once, in an order of its own; the last batch of an epoch may be shorter;
    - ``"sequential"``: the same in the dataset's order;
    - ``"random"``: rows drawn with replacement from what the dataset holds at that moment: for data that grows.

    ``epochs`` ends the first two after that many passes. ``worker`` of ``n_workers`` serves every ``n_workers``-th
    batch, under the name ``w<worker>``. A restart must serve the same rows: a digest of them is kept in the queue,
    except for ``"random"`` and for datasets that cannot be fingerprinted (of these, the length).

    A column holds numbers, arrays of one shape, text, bytes, or rows of different lengths, which arrive as a
    ``Ragged``: those that ``ragged`` names, those that the schema of a buffer or snapshot says, and lists that differ
    in length among 100 evenly spaced rows. Choose columns with ``columns``.

    >>> rows = [{"x": np.full(3, i), "label": i % 2} for i in range(10)]
    >>> with DatasetProvider({"train": rows}, path=folder, batch_size=4, epochs=1) as provider:
    ...     provider.run()
    ...     provider.status()["train"]["made"], provider.schema
    (3, Schema(x: int64[3], label: int64))
    """

    def __init__(
        self,
        datasets: MapStyle | Mapping[str, MapStyle],
        *,
        path: str | os.PathLike[str],
        batch_size: int,
        order: str = "shuffle",
        epochs: int | None = None,
        columns: Sequence[str] | None = None,
        ragged: Sequence[str] = (),
        worker: int = 0,
        n_workers: int = 1,
        guard: Guard | None = None,
        max_rejected: float | None = None,
        **settings: Any,
    ) -> None:
        by_split = datasets if isinstance(datasets, Mapping) else {"train": datasets}
        if order not in ORDERS:
            raise ConfigError(f"order={order!r}: one of {', '.join(map(repr, ORDERS))}")
        if not 0 <= worker < n_workers:
            raise ConfigError(f"worker={worker} of n_workers={n_workers}: a worker is from 0 to n_workers - 1")
        self._datasets: dict[str, MapStyle] = {split: _map_style(each, split) for split, each in by_split.items()}
        self._lengths = {split: len(each) for split, each in self._datasets.items()}
        # Before a row is read: some datasets remember that one was.
        self._digests = {} if order == "random" else self._digests_now()
        self._order, self._epochs, self._columns, self._ragged = order, epochs, columns, frozenset(ragged)
        self._worker, self._n_workers = worker, n_workers
        known = {"dataset": os.path.basename(os.path.abspath(path)), "batch_size": batch_size, "block_size": 1}
        names = {**known, **settings, "splits": tuple(self._datasets)}
        super().__init__(names, path=path, name=f"w{worker}", guard=guard, max_rejected=max_rejected)

    variable_rows = True  # the last batch of an epoch may be shorter

    def build_meta(self) -> dict[str, Any]:
        """The schema of the rows; for orders by epoch also how many there are and how they are assigned to workers."""
        schemas = {split: self._schema_of(split) for split in self._datasets}
        first, *others = schemas.items()
        for split, schema in others:
            if schema != first[1]:
                raise SchemaError(f"split {split!r} has {schema}, split {first[0]!r} {first[1]}; serve them apart")
        meta: dict[str, Any] = {"batch_schema": first[1].to_batch_schema(), "order": self._order}
        if self._order != "random":
            meta |= {"rows": self._lengths, "workers": self._n_workers, "batch_size": self.config.batch_size}
        return meta

    def n_batches(self, split: str) -> int | None:
        """This worker's share of all epochs."""
        if self._epochs is None or self._order == "random":
            return super().n_batches(split)
        n_batches = self._epochs * self._batches_per_epoch(split)
        return len(range(self._worker, n_batches, self._n_workers))

    def sample_batch(self, split: str, rng: np.random.Generator) -> Mapping[str, Any]:
        """The rows of this worker's next batch, stacked."""
        numbers = self._numbers(split, rng).tolist()
        return _stacked(numbers, self._rows(split, numbers), self.schema)

    def _row_limits(self) -> dict[str, int]:
        return {"min_rows": 1 if self.guard is None else 0, "max_rows": self.config.batch_size}

    def _content(self, split: str) -> dict[str, Any]:
        content: dict[str, Any] = {"order": self._order, "batch_size": self.config.batch_size}
        if self._order != "sequential":
            content["seed"] = self.config.seed
        if self._order != "random":
            content |= {"rows": self._lengths[split], "workers": self._n_workers, "data": self._digests[split]}
        return content

    def _digests_now(self) -> dict[str, str | None]:
        return {split: digest_of(each, self._lengths[split]) for split, each in self._datasets.items()}

    def _numbers(self, split: str, rng: np.random.Generator) -> NDArray[np.int64]:
        size = self.config.batch_size
        if self._order == "random":
            return rng.integers(len(self._datasets[split]), size=size)
        place = self.batch_number(split) * self._n_workers + self._worker
        epoch, i = divmod(place, self._batches_per_epoch(split))
        rows = slice(i * size, (i + 1) * size)
        n_rows = self._lengths[split]
        if self._order == "sequential":
            return np.arange(*rows.indices(n_rows))
        return KeyedPermutation(n_rows, key(self.config.seed, "serve", split, "epoch", epoch))[rows]

    def _schema_of(self, split: str) -> Schema:
        """The schema of a split's rows, from the first, or from several where it holds lists."""
        rows = self._named(split, [0])
        names = list(rows[0]) if self._columns is None else list(self._columns)
        unknown = sorted(self._ragged.difference(names))
        if unknown:
            raise ConfigError(f"ragged={unknown}: split {split!r} serves {names}; name columns that are served")
        _check_names([0], rows, names)
        if any(isinstance(rows[0][name], list) for name in names):
            numbers = _spaced(self._lengths[split], _SAMPLED_ROWS).tolist()
            rows = self._named(split, numbers)
            _check_names(numbers, rows, names)
        known = getattr(self._datasets[split], "schema", None)
        schema = known if isinstance(known, Schema) else None
        return Schema(
            _field(name, [row[name] for row in rows], schema, is_ragged=name in self._ragged) for name in names
        )

    def _named(self, split: str, numbers: list[int]) -> list[Mapping[str, Any]]:
        return [_named(row) for row in self._rows(split, numbers)]

    def _batches_per_epoch(self, split: str) -> int:
        return -(-self._lengths[split] // self.config.batch_size)

    def _rows(self, split: str, numbers: list[int]) -> list[Any]:
        dataset = self._datasets[split]
        many = getattr(dataset, "__getitems__", None)
        return list(many(numbers)) if many is not None else [dataset[i] for i in numbers]


def _map_style(dataset: Any, split: str) -> MapStyle:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(f"split {split!r}: {type(dataset).__name__} has no length or no index; make it a list first")
    if len(dataset) == 0:
        raise ConfigError(f"split {split!r}: the dataset is empty; a schema needs a row")
    held: MapStyle = dataset
    return held


def _named(row: Any) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    if isinstance(row, (tuple, list)) and len(row) == 2:
        return {"x": row[0], "y": row[1]}
    raise SchemaError(f"a row is a dict or a pair (x, y), got {type(row).__name__}; wrap the dataset")


#: From how many rows the schema of columns of lists is taken.
_SAMPLED_ROWS = 100


def _field(name: str, values: Sequence[Any], schema: Schema | None, *, is_ragged: bool) -> Field:
    """The field of a column whose first value is the first of these."""
    known = schema[name] if schema is not None and name in schema else None
    if isinstance(values[0], (str, bytes)):
        return Field(name, "string" if isinstance(values[0], str) else "binary")
    if known is not None and known.shape is not None and is_variable(known):
        return Field(name, known.dtype, known.shape)
    if not is_ragged and not _differ(values):
        dtype, array = _read(name, values[0])
        return Field(name, dtype, tuple(array.shape) or None)
    listed = None if known is None or not kinds.is_large_list(known.type) else known.type.value_type
    present = next((value for value in values if not hasattr(value, "__len__") or len(value)), None)
    if present is None and listed is None:
        raise SchemaError(
            f"column {name!r}: the rows looked at are empty, which says nothing of their dtype; make them arrays, or "
            "leave it out with columns="
        )
    dtype, array = ("", np.empty(0)) if present is None else _read(name, present)
    if array.ndim == 0:
        raise SchemaError(f"column {name!r}: a row is the number {present!r}; leave it out of ragged=")
    return Field(name, dtype if listed is None else str(Field(name, listed).dtype), (None, *array.shape[1:]))


def _differ(values: Sequence[Any]) -> bool:
    """Whether these are lists of different lengths."""
    return all(isinstance(value, list) for value in values) and len(set(map(len, values))) > 1


def _read(name: str, value: Any) -> tuple[str, NDArray[Any]]:
    try:
        return stored(value)
    except (ValueRejected, ValueError) as error:
        raise SchemaError(f"column {name!r}: {error}; leave it out with columns=") from None


def _check_names(numbers: Sequence[int], rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for i, row in zip(numbers, rows, strict=True):
        if any(name not in row for name in names) or row.keys() != rows[0].keys():
            raise SchemaError(f"row {i}: has {list(row)}, expected {names}; all rows have the same columns")


def _stacked(numbers: Sequence[int], rows: Sequence[Any], schema: Schema) -> dict[str, Any]:
    """Columns of rows, whose numbers are for messages; all rows must be alike, but for what the schema leaves open."""
    named = [_named(row) for row in rows]
    _check_names(numbers, named, schema.names)
    columns = {field.name: [row[field.name] for row in named] for field in schema}
    return {
        field.name: columns[field.name] if is_variable(field) else _column(numbers, columns[field.name], field.name)
        for field in schema
    }


def _column(numbers: Sequence[int], values: Sequence[Any], name: str) -> Any:
    parts = [_part(i, value, name) for i, value in zip(numbers, values, strict=True)]
    dtype, first = parts[0]
    for i, (other, part) in zip(numbers, parts, strict=True):
        if other != dtype or part.shape != first.shape:
            advice = f"pass ragged=[{name!r}]" if other == dtype and part.ndim == first.ndim else "make them alike"
            raise SchemaError(
                f"row {i}, column {name!r}: the rows before it have {dtype}{list(first.shape)}, got "
                f"{other}{list(part.shape)}; {advice}, or leave it out with columns="
            )
    stacked = np.stack([part for _, part in parts])
    if dtype not in CARRIED:
        return stacked
    import torch  # it came from there: NumPy has no such dtype

    return torch.from_numpy(stacked).view(getattr(torch, dtype))


def _part(i: int, value: Any, name: str) -> tuple[str, NDArray[Any]]:
    try:
        return stored(value)
    except (ValueRejected, ValueError) as error:
        raise SchemaError(
            f"row {i}, column {name!r}: {error}; rows hold numbers or arrays: leave it out with columns="
        ) from None


# Digests ------------------------------------------------------------------------------------------------------
#
# A restart with other rows, or another order of them, is refused. A digest covers
#
#   buffer, snapshot          the values of its rows
#   windows of a stream       the stream, and the branches that wrote them
#   list, any other object    its fingerprint: content, attributes and code, or what ``__fingerprint__()`` returns
#   Hugging Face dataset      its own fingerprint
#   view of poolish.load      which rows it chooses, and the digest of the dataset under it
#   dataset of files          their names, sizes and content, up to 256 MiB
#
# and nothing that differs after a restart: no times, inodes or random ids of objects in memory. Of large data in
# memory, evenly spaced rows are hashed. What cannot be fingerprinted has no digest: only its length is compared.

#: How many evenly spaced rows are hashed where all are too many; fewer if these are too many too.
_SPACED_ROWS = (10_000, 100)
#: Of more files than this, none is opened.
_MANY_FILES = 10_000


def digest_of(dataset: Any, n_rows: int) -> str | None:
    """A digest of the first ``n_rows`` rows, the same in every process; None for what cannot be fingerprinted.

    >>> digest_of([1, 2, 3], 3) == digest_of([1, 2, 3], 3) != digest_of([3, 2, 1], 3)
    True
    >>> digest_of(iter([1, 2, 3]), 3) is None
    True
    """
    if isinstance(dataset, (DatasetBuffer, Snapshot)):
        return _of_rows(dataset.snapshot() if isinstance(dataset, DatasetBuffer) else dataset, n_rows)
    if isinstance(dataset, WindowDataset):
        first = dataset.first_id
        return fingerprint((dataset.uuid, first, dataset.branch_below(first + n_rows)), "windows")
    if type(dataset).__module__.startswith("poolish.load."):
        return _of_view(dataset)
    whole = _fingerprint(dataset)
    return _of_spaced_rows(dataset, n_rows) if whole is None and _is_plain(dataset) else whole


def _of_rows(rows: Snapshot, n_rows: int) -> str:
    table = rows.to_arrow().slice(0, n_rows)
    return content_of(table if table.nbytes <= MAX_BYTES else table.take(_spaced(n_rows, _SPACED_ROWS[0])))


def _of_view(dataset: Any) -> str | None:
    """Of a dataset of poolish.load, which this package cannot import."""
    inner = getattr(dataset, "dataset", None)
    parts = getattr(dataset, "datasets", []) if inner is None else [inner]
    if parts:
        below = [digest_of(part, len(part)) for part in parts]
        return None if None in below else _fingerprint((qualified_name(type(dataset)), dataset.choice, below))
    if hasattr(dataset, "files"):
        return _fingerprint((qualified_name(type(dataset)), _of_files(dataset.files(), dataset.root)))
    return _fingerprint(dataset)


def _of_files(paths: Sequence[Any], root: Any) -> str:
    """Names, sizes, and as much of each file as together makes ``MAX_BYTES``; of very many files no content."""
    n_bytes = MAX_BYTES // max(1, len(paths)) if len(paths) <= _MANY_FILES else 0
    digest = hashlib.blake2b(digest_size=12)
    for path in paths:
        described = (os.path.relpath(path, root), os.path.getsize(path), _beginning(path, n_bytes) if n_bytes else "")
        digest.update(repr(described).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _beginning(path: Any, n_bytes: int) -> str:
    with open(path, "rb") as file:
        return checksum_hex(file.read(n_bytes))


def _fingerprint(value: Any) -> str | None:
    try:
        return fingerprint(value, "dataset", max_values=MAX_VALUES, max_bytes=MAX_BYTES)
    except Unfingerprintable:
        return None


def _is_plain(dataset: Any) -> bool:
    """Whether reading a row has no effect and always gives the same."""
    torch = torch_bridge.loaded()
    tensors = () if torch is None else (torch.utils.data.TensorDataset,)
    return isinstance(dataset, (list, tuple, *tensors))


def _of_spaced_rows(dataset: Any, n_rows: int) -> str | None:
    digests = (_fingerprint([dataset[i] for i in _spaced(n_rows, n).tolist()]) for n in _SPACED_ROWS)
    return next((digest for digest in digests if digest is not None), None)


def _spaced(n_rows: int, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.unique(np.linspace(0, n_rows - 1, min(n, n_rows)).astype(np.int64))
