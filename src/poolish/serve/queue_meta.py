"""What a queue says about itself before its first batch: ``meta.json``, written once; only limits may change.

    {"format": "poolish.queue", "version": 1, "queue": random id, "split": ..., "fingerprint": ...,
     "schema": fingerprint of the batch_schema, "batch_schema": [...], "meta": what build_meta() said, "limits": {...},
     "content": what else decides which batches come, "checksum": of all that}

The fingerprint covers the schema and the rest of the meta data: a new vocabulary makes batches just as stale as a
new shape does. The content (seed, batch size, how rows are dealt out, a digest of them) is what a provider must not
change at a restart: half an epoch in one order and half in another is no epoch. Queues of 0.1.0 have none, and gain it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poolish.errors import ConfigError, CorruptDataError, QueueNotFound, SchemaError
from poolish.files import checksum_hex
from poolish.files.state_files import read_checksummed_json, write_checksummed_json
from poolish.schema import Schema
from poolish.serve.batch_file import NAMES

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
        """A new queue for what ``build_meta()`` said; ``limits`` are those that consumers should know of."""
        schema = batch_schema_of(meta)
        told = (dict(meta), dict(limits or {}), dict(content or {}))
        return cls(secrets.token_hex(8), split, fingerprint(schema, meta), schema, *told)

    @property
    def is_durable(self) -> bool:
        """Whether what was published survives a power cut too (``durability="power"``)."""
        return bool(self.limits.get("durable", 0))

    def allows(self, rows: int) -> bool:
        """Whether a batch of this queue may have this many rows; any number where its providers have not said."""
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

    def check_content(self, content: Mapping[str, Any], directory: Path) -> None:
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

    @classmethod
    def read(cls, directory: Path) -> QueueMeta:
        """The description in a queue's directory."""
        path = directory / FILE
        try:
            told = read_checksummed_json(path)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found(directory) from None
        try:
            return cls._from(told, path)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, CorruptDataError):
                raise
            raise CorruptDataError(
                f"{path}: not the description of a queue ({error!r}); purge the queue: poolish queue purge {directory}"
            ) from None

    @classmethod
    def _from(cls, told: Any, path: Path) -> QueueMeta:
        if told["format"] != "poolish.queue" or told["version"] != 1:
            raise CorruptDataError(
                f"{path}: format {told['format']!r} version {told['version']!r} is not known here; "
                "read it with the poolish that wrote it"
            )
        schema, meta, limits = Schema.from_batch_schema(told["batch_schema"]), dict(told["meta"]), dict(told["limits"])
        if told["fingerprint"] != fingerprint(schema, meta) or told["schema"] != schema.fingerprint:
            raise CorruptDataError(f"{path}: its fingerprint does not fit its content; restore it, or purge the queue")
        if not isinstance(told["queue"], str) or not all(type(limit) is int for limit in limits.values()):
            raise TypeError("the queue's id is text, its limits are numbers")
        content = dict(told.get("content", {}))
        return cls(told["queue"], told["split"], told["fingerprint"], schema, meta, limits, content)


def batch_schema_of(meta: Mapping[str, Any]) -> Schema:
    """The schema that a provider promises, if a batch file can hold it."""
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
            raise SchemaError(f"batch_schema, field {entry.name!r}: {entry.dtype} has no place in a batch; use {known}")
    return schema


def fingerprint(schema: Schema, meta: Mapping[str, Any]) -> str:
    """16 hex digits that change with the schema and with anything else that the provider's meta data says."""
    rest = {name: value for name, value in meta.items() if name != "batch_schema"}
    return checksum_hex(json.dumps([schema.fingerprint, rest], sort_keys=True, separators=(",", ":")).encode())


def not_found(directory: Path) -> QueueNotFound:
    """The error for a queue that is not there."""
    return QueueNotFound(
        f"Queue directory not found: {directory}; run `poolish prepare CONFIG` (or `python prepare.py CONFIG`) "
        "with the same config first",
        filename=directory,
    )
