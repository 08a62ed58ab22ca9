"""What one append brings, checked as a whole before the buffer changes.

The samples are read once, a few thousand at a time, and become Arrow arrays at once, so that a long generator costs
no more memory than its rows. The types they ask for settle while they are read: within the first append arrays that
differ in shape make the column ragged; afterwards only columns that have held nothing but nulls may still find their
type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish.errors import LimitExceeded, SchemaError
from poolish.rows.arrays import is_array, stored
from poolish.rows.codec import RowCodec, columns_of, schema_of
from poolish.rows.gather import taker
from poolish.rows.infer import ragged, settle
from poolish.rows.limits import Limits
from poolish.rows.normalizers import ARRAYS, ROWS, TABLE, Part, parts_of
from poolish.rows.refusal import Refusal
from poolish.schema import Field, Schema, tensor_type


class Draft:
    """Samples on their way into a buffer of a schema, or into one that has none yet."""

    def __init__(self, schema: Schema | None, kind: str | None, limits: Limits, may_be_missing: frozenset[str]) -> None:
        self.schema = schema
        self.kind = kind
        self.n_rows = 0
        self._is_first = schema is None
        self._limits = limits
        self._may_be_missing = may_be_missing
        self._chunks: list[list[pa.Array]] = []
        self._chosen: list[NDArray[np.int64] | None] | None = None
        self._codec = None if schema is None else RowCodec(schema, limits, may_be_missing)

    def read(self, samples: Any) -> Draft:
        """Take in everything that was passed to ``append``."""
        for part in parts_of(samples):
            if part.kind != TABLE:
                self._check_same(part.kind, self.kind or part.kind)
            self.kind = self.kind or (ROWS if part.kind == TABLE else part.kind)
            try:
                arrays = self._from_rows(part) if part.batch is None else self._from_batch(part.batch)
            except (SchemaError, LimitExceeded) as error:
                part.note_sample(error, self.n_rows)
                raise
            self._chunks.append(arrays)
            self.n_rows += len(arrays[0]) if arrays else 0
        return self

    def arrays(self, schema: Schema, limits: Limits) -> list[list[pa.Array]]:
        """The chunks in the types of ``schema``, which may have settled further since they were read."""
        codec, first_row, chunks = RowCodec(schema, limits), 0, []
        for chunk in self._chunks:
            names = [] if self.schema is None else self.schema.names
            if names != schema.names or [array.type for array in chunk] != [field.type for field in schema]:
                chunk = codec.fit(dict(zip(names, chunk, strict=True)), len(chunk[0]), first_row)
            chunks.append(chunk)
            first_row += len(chunk[0])
        return chunks

    def table(self) -> pa.Table | None:
        """The rows as they would enter the buffer, for a guard to look at; None if there are none."""
        if self.schema is None or self.n_rows == 0:
            return None
        self._settle_choice()
        self._chunks = self.arrays(self.schema, self._limits)
        columns = [
            pa.chunked_array([chunk[i] for chunk in self._chunks], type=field.type)
            for i, field in enumerate(self.schema)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema.to_arrow())

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Leave only the rows where ``mask`` is true; the others are left out when the rows are copied."""
        self._settle_choice()
        ends = np.cumsum([len(chunk[0]) for chunk in self._chunks])
        parts = np.split(mask, ends[:-1]) if len(ends) else []
        self._chosen = [None if part.all() else np.flatnonzero(part) for part in parts]
        self.n_rows = int(np.count_nonzero(mask))

    def _settle_choice(self) -> None:
        """Rows that are not meant go now, for somebody who wants to see the others."""
        for i, positions in enumerate(self._chosen or ()):
            if positions is not None:
                self._chunks[i] = [taker(array)(positions) for array in self._chunks[i]]
        self._chosen = None

    @property
    def chosen(self) -> Sequence[NDArray[np.int64] | None] | None:
        """For each chunk which of its rows are meant, None for all; None where that holds for all chunks."""
        return self._chosen

    def check_kind(self, kind: str | None) -> None:
        """Another thread may have begun the buffer with samples of another kind."""
        if kind is not None and self.kind is not None:
            self._check_same(self.kind, kind)

    def _check_same(self, kind: str, expected: str) -> None:
        if kind != expected:
            raise SchemaError(
                f"row {self.n_rows}: this buffer holds samples of kind {expected}, got {kind}; "
                "use one buffer per kind, or a normalizer that makes dicts of both"
            )

    def _from_rows(self, part: Part) -> list[pa.Array]:
        if self._is_first or self._codec is None or not self._codec.is_resolved:
            self._settle(self._widened_by(part))
        assert self._codec is not None
        return self._codec.encode(part.rows, self.n_rows)

    def _widened_by(self, part: Part) -> Schema:
        """Shapes may turn ragged only while the schema is being made; later rows must fit what it says."""
        if self.schema is not None:
            columns_of(part.rows, self.schema.names, self._may_be_missing, self.n_rows)
        known = _of_numbers(part) if self.schema is None else self.schema
        widened = schema_of(known, part.rows, self.n_rows)
        if self._is_first or self.schema is None:
            return widened
        return Schema(_settled(old, new) for old, new in zip(self.schema, widened, strict=True))

    def _from_batch(self, batch: pa.RecordBatch) -> list[pa.Array]:
        brought = Schema.from_arrow(batch.schema)
        if len(brought) == 0:
            raise SchemaError(f"row {self.n_rows}: a table without columns; bring at least one")
        for field in brought if self.schema is not None else ():
            check_labels(field, self.schema)
        if self.schema is None:
            self._settle(brought)
        elif brought is not self.schema and (self._is_first or not (self._codec and self._codec.is_resolved)):
            self._settle(Schema(self._joined(field, brought) for field in self.schema))
        assert self._codec is not None
        columns = {field.name: batch.column(i) for i, field in enumerate(brought)}
        return self._codec.fit(columns, batch.num_rows, self.n_rows)

    def _joined(self, field: Field, brought: Schema) -> Field:
        if field.name not in brought:
            return field
        other = brought[field.name]
        joined = _settled(field, other)
        return _retyped(joined, ragged(joined.type, other.type), joined.feature) if self._is_first else joined

    def _settle(self, schema: Schema) -> None:
        if schema != self.schema:
            self.schema = schema
            self._codec = RowCodec(schema, self._limits, self._may_be_missing)


def _of_numbers(part: Part) -> Schema | None:
    """The schema for samples that are arrays without dimensions, which stay arrays; inside a row they are numbers."""
    value = part.rows[0].get("tensor") if part.kind in ARRAYS else None
    if not is_array(value) or value.shape != ():  # type: ignore[union-attr]
        return None
    try:
        return Schema([Field("tensor", tensor_type(stored(value)[0], ()), nullable=True)])
    except Refusal:
        return None  # the codec refuses it, with the row


def check_labels(brought: Field, known: Schema | None) -> None:
    """Numbers that stand for other names must not mix: label 0 would change its meaning."""
    if known is None or brought.name not in known:
        return
    ours, theirs = known[brought.name].label_names, brought.label_names
    if ours and theirs and ours != theirs:
        raise SchemaError(
            f"column {brought.name!r}: this buffer's labels are {ours}, the dataset's are {theirs}; "
            "bring them into one order first (align_labels_with_mapping)"
        )


def _settled(old: Field, new: Field) -> Field:
    return _retyped(old, settle(old.type, new.type), new.feature)


def _retyped(field: Field, type_: pa.DataType, feature: str | None) -> Field:
    if type_ == field.type:
        return field
    return Field(field.name, type_, nullable=field.nullable, role=field.role, feature=feature)


def joined(known: Schema | None, drafted: Schema) -> Schema:
    """The schema of the buffer after the draft; another thread may have given the buffer one in the meantime."""
    if known is None:
        return drafted
    return Schema(_settled(field, drafted[field.name]) if field.name in drafted else field for field in known)


def runs_of(batches: Sequence[pa.RecordBatch], mask: NDArray[np.bool_]) -> list[pa.RecordBatch]:
    """The rows for which ``mask`` is true, in batches of consecutive ones: of a slice Arrow does not copy anything.

    >>> batch = pa.record_batch({"x": [1, 2, 3, 4]})
    >>> [run["x"].to_pylist() for run in runs_of([batch], np.array([True, True, False, True]))]
    [[1, 2], [4]]
    """
    found, first = [], 0
    for batch in batches:
        part = mask[first : first + batch.num_rows]
        borders = np.flatnonzero(np.diff(part, prepend=False, append=False)).reshape(-1, 2).tolist() or [[0, 0]]
        found += [batch.slice(begin, end - begin) for begin, end in borders]
        first += batch.num_rows
    return found
