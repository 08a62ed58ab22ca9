"""The description of a queue, ``meta.json``, written once; only limits may change.

    {"format": "poolish.queue", "version": 1 or 2, "queue": random id, "split": ..., "fingerprint": ...,
     "schema": fingerprint of the batch_schema, "batch_schema": [...], "meta": from build_meta(), "limits": {...},
     "content": what else decides which batches come, "checksum": of all that}

The fingerprint covers the schema and the rest of the meta data: a new vocabulary makes batches just as stale as a
new shape does. The content (seed, batch size, how rows are assigned, a digest of them) is what a provider must not
change at a restart: half an epoch in one order and half in another is no epoch. Queues of 0.1.0 have none, and gain it.

Version 2 has fields whose rows may differ in length. A queue stays in the version that it was made in: in one of 0.1.0
an open first size is that of all rows of a batch.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from poolish.errors import ConfigError, CorruptDataError, QueueNotFound, SchemaError
from poolish.files import checksum_hex
from poolish.schema import Schema
from poolish.transports.batch_columns import OFFSETS, TEXT, is_variable
from poolish.transports.batch_file import NAMES

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
    version: int = 1

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
        return cls(secrets.token_hex(8), split, fingerprint(schema, meta), schema, *parts, _version_of(schema))

    @property
    def has_ragged(self) -> bool:
        """Whether rows of a batch may differ in length, where the schema leaves the first size open."""
        return self.version > 1

    @property
    def is_durable(self) -> bool:
        """Whether what was published survives a power cut too (``durability="power"``)."""
        return bool(self.limits.get("durable", 0))

    @property
    def row_limits(self) -> tuple[int, int]:
        """The fewest and most rows that a batch of this queue may have; any number where its providers set no limit."""
        return self.limits.get("min_rows", 0), self.limits.get("max_rows", sys.maxsize)

    def limits_with(self, limits: Mapping[str, int]) -> dict[str, int]:
        """The newest provider's limits; of rows, what this queue allowed stays allowed, as its batches may be there."""
        both = {name: {self.limits[name], limits[name]} for name in _ROWS if name in self.limits and name in limits}
        rows = {name: _ROWS[name](values) for name, values in both.items()}
        return {name: value for name, value in limits.items() if name not in _ROWS} | rows

    def to_record(self) -> dict[str, Any]:
        """The description as plain JSON values."""
        return {
            "format": "poolish.queue",
            "version": self.version,
            "queue": self.queue,
            "split": self.split,
            "fingerprint": self.fingerprint,
            "schema": self.schema.fingerprint,
            "batch_schema": self.schema.to_batch_schema(),
            "meta": self.meta,
            "limits": self.limits,
            "content": self.content,
        }

    def check_content(self, content: Mapping[str, Any], place: str) -> None:
        """Raise if a provider would fill the queue with something else than those before it."""
        for name, value in content.items():
            before = self.content.get(name, value)
            if before != value:
                what = "serve the rows from before, in their order," if name == "data" else "use the value from before,"
                raise ConfigError(
                    f"{place}: this queue was filled with {name}={before!r}, this provider has {name}={value!r}, "
                    f"which would repeat some rows of an epoch and leave others out; {what} or discard the queue: "
                    f"poolish queue purge {place}"
                )

    def updated(self, newest: QueueMeta, place: str) -> QueueMeta:
        """The description with the newest provider's limits and content, whose fingerprint is the same."""
        self.check_content(newest.content, place)
        content = {**self.content, **newest.content}
        return replace(self, limits=self.limits_with(newest.limits), content=content)

    @classmethod
    def from_record(cls, record: Mapping[str, Any], place: str) -> QueueMeta:
        """The description that a record holds; ``place``, where it was, is for messages."""
        try:
            return cls._from(record, place)
        except CorruptDataError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CorruptDataError(f"{place}: not the description of a queue ({error!r}); purge the queue") from None

    @classmethod
    def _from(cls, record: Mapping[str, Any], place: str) -> QueueMeta:
        version = record["version"]
        if record["format"] != "poolish.queue" or type(version) is not int or version not in (1, 2):
            raise _unknown(record, place)
        schema, meta = Schema.from_batch_schema(record["batch_schema"]), dict(record["meta"])
        if version > _version_of(schema) or (version == 1 and any(each.dtype in TEXT for each in schema)):
            raise _unknown(record, place)
        limits, content = dict(record["limits"]), dict(record.get("content", {}))
        if record["fingerprint"] != fingerprint(schema, meta) or record["schema"] != schema.fingerprint:
            raise CorruptDataError(f"{place}: its fingerprint does not fit its content; restore it, or purge the queue")
        if not isinstance(record["queue"], str) or not all(type(limit) is int for limit in limits.values()):
            raise TypeError("the queue's id is text, its limits are numbers")
        return cls(record["queue"], record["split"], record["fingerprint"], schema, meta, limits, content, version)


def _version_of(schema: Schema) -> int:
    return 2 if any(map(is_variable, schema)) else 1


def _unknown(record: Mapping[str, Any], place: str) -> CorruptDataError:
    return CorruptDataError(
        f"{place}: format {record['format']!r} version {record['version']!r} with such fields is not known here; read "
        "it with the poolish that wrote it"
    )


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
        if (entry.dtype not in NAMES and entry.dtype not in TEXT) or entry.name == "__metadata__":
            known = ", ".join([*NAMES, *TEXT])
            raise SchemaError(f"batch_schema, field {entry.name!r}: batches cannot hold {entry.dtype}; use {known}")
        if is_variable(entry) and entry.name + OFFSETS in schema:
            raise SchemaError(
                f"batch_schema, field {entry.name + OFFSETS!r}: the offsets of {entry.name!r} have this name; "
                "rename one of the two"
            )
    return schema


def fingerprint(schema: Schema, meta: Mapping[str, Any]) -> str:
    """16 hex digits that change with the schema and with anything else that the provider's meta data says."""
    rest = {name: value for name, value in meta.items() if name != "batch_schema"}
    return checksum_hex(json.dumps([schema.fingerprint, rest], sort_keys=True, separators=(",", ":")).encode())


def not_found(place: str) -> QueueNotFound:
    """The error for a missing queue, in a directory or at the address of another transport."""
    if "://" in place:
        return QueueNotFound(f"Queue not found: {place}; open a provider with this address first", filename=place)
    return QueueNotFound(
        f"Queue directory not found: {place}; run `poolish prepare CONFIG` (or `python prepare.py CONFIG`) "
        "with the same config first",
        filename=place,
    )
