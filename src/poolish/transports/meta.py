"""The description of a queue, ``meta.json``, written once (only limits may change), and the validator of its batches.

    {"format": "poolish.queue", "version": 1, "queue": random id, "split": ..., "fingerprint": ...,
     "schema": fingerprint of the batch_schema, "batch_schema": [...], "meta": from build_meta(), "limits": {...},
     "content": what else decides which batches come, "checksum": of all that}

The fingerprint covers the schema and the rest of the meta data: a new vocabulary makes batches just as stale as a
new shape does. The content (seed, batch size, how rows are assigned, a digest of them) is what a provider must not
change at a restart: half an epoch in one order and half in another is no epoch. Queues of 0.1.0 have none, and gain it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from poolish.errors import ConfigError, CorruptDataError, QueueError, QueueNotFound, SchemaError, StaleSchema
from poolish.files import checksum_hex
from poolish.files.state_files import read_checksummed_json, write_checksummed_json
from poolish.rows.validate import ValueRejected
from poolish.rows.values import stored
from poolish.schema import Schema, numpy_dtype
from poolish.transports.batch_file import NAMES, Array, Columns

FILE = "meta.json"
#: Limits of the rows of a batch, and which of two is the wider one.
_ROWS: dict[str, Callable[[set[int]], int]] = {"min_rows": min, "max_rows": max}


@dataclass(frozen=True)
class QueueMeta:
    """The description of one split's queue.

    >>> meta = QueueMeta.of("train", {"batch_schema": [{"name": "x", "dtype": "int64", "shape": [8]}]})
    >>> meta.split, meta.schema["x"].shape, len(meta.queue)
    ('train', (8,), 16)
    """

    queue: str
    split: str
    fingerprint: str
    schema: Schema
    meta: dict[str, Any]
    limits: dict[str, int] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        split: str,
        meta: Mapping[str, Any],
        limits: Mapping[str, int] | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> QueueMeta:
        """The description of a new queue; ``meta`` is from ``build_meta()``, consumers check the ``limits``."""
        schema = batch_schema_of(meta)
        parts = (dict(meta), dict(limits or {}), dict(content or {}))
        return cls(secrets.token_hex(8), split, fingerprint(schema, meta), schema, *parts)

    @property
    def is_durable(self) -> bool:
        """Whether what was published survives a power cut too (``durability="power"``)."""
        return bool(self.limits.get("durable", 0))

    def allows(self, rows: int) -> bool:
        """Whether a batch of this queue may have this many rows; any number where its providers set no limit."""
        return self.limits.get("min_rows", rows) <= rows <= self.limits.get("max_rows", rows)

    def limits_with(self, limits: Mapping[str, int]) -> dict[str, int]:
        """The newest provider's limits; of rows, what this queue allowed stays allowed, as its batches may be there."""
        both = {name: {self.limits[name], limits[name]} for name in _ROWS if name in self.limits and name in limits}
        rows = {name: _ROWS[name](values) for name, values in both.items()}
        return {name: value for name, value in limits.items() if name not in _ROWS} | rows

    def write(self, directory: Path) -> None:
        """Publish the description."""
        value = {
            "format": "poolish.queue",
            "version": 1,
            "queue": self.queue,
            "split": self.split,
            "fingerprint": self.fingerprint,
            "schema": self.schema.fingerprint,
            "batch_schema": self.schema.to_batch_schema(),
            "meta": self.meta,
            "limits": self.limits,
            "content": self.content,
        }
        write_checksummed_json(directory / FILE, value, durable=self.is_durable)

    def check_content(self, content: Mapping[str, Any], directory: Path | str) -> None:
        """Raise if a provider would fill the queue with something else than those before it."""
        for name, value in content.items():
            before = self.content.get(name, value)
            if before != value:
                what = "serve the rows from before, in their order," if name == "data" else "use the value from before,"
                raise ConfigError(
                    f"{directory}: this queue was filled with {name}={before!r}, this provider has {name}={value!r}, "
                    f"which would repeat some rows of an epoch and leave others out; {what} or discard the queue: "
                    f"poolish queue purge {directory}"
                )

    def updated(self, newest: QueueMeta, directory: Path | str) -> QueueMeta:
        """The description with the newest provider's limits and content, whose fingerprint is the same."""
        self.check_content(newest.content, directory)
        content = {**self.content, **newest.content}
        return replace(self, limits=self.limits_with(newest.limits), content=content)

    @classmethod
    def read(cls, directory: Path) -> QueueMeta:
        """The description in a queue's directory."""
        path = directory / FILE
        try:
            described = read_checksummed_json(path)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found(directory) from None
        try:
            return cls._from(described, path)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, CorruptDataError):
                raise
            raise CorruptDataError(
                f"{path}: not the description of a queue ({error!r}); purge the queue: poolish queue purge {directory}"
            ) from None

    @classmethod
    def _from(cls, described: Any, path: Path) -> QueueMeta:
        if described["format"] != "poolish.queue" or described["version"] != 1:
            raise CorruptDataError(
                f"{path}: format {described['format']!r} version {described['version']!r} is not known here; "
                "read it with the poolish that wrote it"
            )
        schema, meta, limits = (
            Schema.from_batch_schema(described["batch_schema"]),
            dict(described["meta"]),
            dict(described["limits"]),
        )
        if described["fingerprint"] != fingerprint(schema, meta) or described["schema"] != schema.fingerprint:
            raise CorruptDataError(f"{path}: its fingerprint does not fit its content; restore it, or purge the queue")
        if not isinstance(described["queue"], str) or not all(type(limit) is int for limit in limits.values()):
            raise TypeError("the queue's id is text, its limits are numbers")
        content = dict(described.get("content", {}))
        return cls(described["queue"], described["split"], described["fingerprint"], schema, meta, limits, content)


def batch_schema_of(meta: Mapping[str, Any]) -> Schema:
    """The ``batch_schema`` of a provider, if a batch file can hold it."""
    if not isinstance(meta, Mapping) or "batch_schema" not in meta:
        raise SchemaError(
            f"build_meta() must return a dict with 'batch_schema', a list of fields, got {meta!r:.200}; "
            'add "batch_schema": [{"name": "x", "dtype": "int64", "shape": [block_size], "role": "input"}, ...]'
        )
    schema = Schema.from_batch_schema(meta["batch_schema"])
    if not len(schema):
        raise SchemaError("batch_schema is empty; a batch needs at least one field")
    for entry in schema:
        if entry.dtype not in NAMES or entry.name == "__metadata__":
            known = ", ".join(NAMES)
            raise SchemaError(f"batch_schema, field {entry.name!r}: batches cannot hold {entry.dtype}; use {known}")
    return schema


def fingerprint(schema: Schema, meta: Mapping[str, Any]) -> str:
    """16 hex digits that change with the schema and with anything else that the provider's meta data says."""
    rest = {name: value for name, value in meta.items() if name != "batch_schema"}
    return checksum_hex(json.dumps([schema.fingerprint, rest], sort_keys=True, separators=(",", ":")).encode())


def stale(place: str, n_batches: int, found: QueueMeta, meta: QueueMeta) -> StaleSchema:
    """The error for a queue that still holds batches of another fingerprint."""
    return StaleSchema(
        f"{place}: holds {n_batches:,} batches of fingerprint {found.fingerprint}, this provider makes "
        f"{meta.fingerprint}; let the trainer read them, or discard them: poolish queue purge {place}"
    )


def not_found(place: Path | str) -> QueueNotFound:
    """The error for a missing queue, in a directory or at the address of another transport."""
    if "://" in str(place):
        return QueueNotFound(f"Queue not found: {place}; open a provider with this address first", filename=place)
    return QueueNotFound(
        f"Queue directory not found: {place}; run `poolish prepare CONFIG` (or `python prepare.py CONFIG`) "
        "with the same config first",
        filename=place,
    )


class BatchValidator:
    """Validates batches against their ``batch_schema``: before a provider publishes them, and when they are read.

    >>> validator = BatchValidator(Schema.of([{"name": "x", "dtype": "int64", "shape": [2]}]))
    >>> validator.columns_of({"x": [[1, 2], [3, 4], [5, 6]]}, "batch 7")[1]
    3
    >>> validator.columns_of({"x": [[1.5, 2.0]]}, "batch 7")
    Traceback (most recent call last):
    poolish.errors.SchemaError: batch 7, field 'x': batch_schema says int64[rows, 2], got float64[1, 2]; make it so ...
    """

    def __init__(self, schema: Schema) -> None:
        self._fields = [(field.name, str(field.dtype), field.shape or ()) for field in schema]
        self.names = {name: None for name, _, _ in self._fields}.keys()
        # Arrays of these need no second look; bfloat16 and float8 have no dtype of their own in NumPy.
        self._own = {name: numpy_dtype(dtype) for name, dtype, _ in self._fields if numpy_dtype(dtype) == _named(dtype)}

    def columns_of(self, batch: Any, place: str) -> tuple[dict[str, tuple[str, Array]], int]:
        """The arrays of what ``sample_batch`` returned, and how many rows; anything that does not fit is an error."""
        if isinstance(batch, tuple) and list(self.names) == ["x", "y"] and len(batch) == 2:
            batch = {"x": batch[0], "y": batch[1]}
        if not isinstance(batch, Mapping):
            raise SchemaError(f"{place}: sample_batch returns a dict of arrays by name, got {type(batch).__name__}")
        if batch.keys() != self.names:
            raise self._other_names(batch, place)
        columns = {name: self._stored(batch[name], place, name, dtype) for name, dtype, _ in self._fields}
        return columns, self.check(columns, place, "make it so in sample_batch")

    def _other_names(self, batch: Mapping[str, Any], place: str) -> SchemaError:
        missing = [name for name in self.names if name not in batch]
        extra = [name for name in batch if name not in self.names]
        wrong = f"field {missing[0]!r} is missing" if missing else f"field {extra[0]!r} is not in it"
        return SchemaError(
            f"{place}: batch_schema has {list(self.names)}, {wrong}; return exactly these from sample_batch"
        )

    def _stored(self, value: Any, place: str, name: str, dtype: str) -> tuple[str, Array]:
        if type(value) is np.ndarray and value.dtype is self._own.get(name):
            return dtype, value
        try:
            return stored(value)
        except (ValueRejected, ValueError) as error:
            raise SchemaError(f"{place}, field {name!r}: {error}; return an array or a tensor of numbers") from error

    def check(self, columns: Columns, place: str, advice: str) -> int:
        """How many rows there are, if every field fits the schema and all have as many."""
        rows = -1
        for name, expected_dtype, sizes in self._fields:
            dtype, array = columns[name]
            if dtype != expected_dtype or not _has_shape(array.shape, sizes):
                expected, got = _shown(expected_dtype, ("rows", *sizes)), _shown(dtype, array.shape)
                raise SchemaError(f"{place}, field {name!r}: batch_schema says {expected}, got {got}; {advice}")
            rows = array.shape[0] if rows < 0 else rows
            if array.shape[0] != rows or rows == 0:
                raise SchemaError(
                    f"{place}, field {name!r}: {array.shape[0]} rows, where {self._fields[0][0]!r} has {rows}; "
                    "all fields of a batch have equally many, at least one"
                )
        return rows


def _named(dtype: str) -> object:
    try:
        return np.dtype(dtype)
    except TypeError:
        return None


def _has_shape(shape: tuple[int, ...], sizes: tuple[int | None, ...]) -> bool:
    if len(shape) != 1 + len(sizes):
        return False
    return shape[1:] == sizes or all(a is None or a == b for a, b in zip(sizes, shape[1:], strict=True))


def _shown(dtype: str, shape: tuple[Any, ...]) -> str:
    return f"{dtype}[{', '.join('any' if size is None else str(size) for size in shape)}]"


class raising_queue_missing:
    """Raise that the queue at ``place`` is gone where a file of it is missing. A class: a generator costs 2 us."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError) and not isinstance(error, QueueError):
            raise QueueError(
                f"{self._place}: the queue was removed meanwhile ({error.filename} is missing); "
                "start `poolish prepare CONFIG` again, then the trainer"
            ) from error
