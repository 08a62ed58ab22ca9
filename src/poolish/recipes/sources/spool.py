"""Rows that can only be read from their beginning to their end, read once: in memory, or in a temporary file.

    batches --up to SPOOL_BYTES--> memory         batches --more--> file, mapped, and without a name from then on

A bake looks at its rows more than once: to know what they are, to choose among them, and to prepare them. A query or a
scan that ran again could give other rows, so it runs once; the file is gone when the rows are, even after a kill.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa

from poolish.files import raising_store_full
from poolish.recipes.fragment_rows import workable

#: How much is kept in memory; what is larger goes to a temporary file as a whole.
SPOOL_BYTES = 1 << 28


def spooled(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """All rows as a table, in memory or mapped from a temporary file that has no name any more.

    >>> spooled(iter([pa.record_batch({"x": [1]}), pa.record_batch({"x": [2]})])).to_pydict()
    {'x': [1, 2]}
    """
    kept: list[pa.RecordBatch] = []
    n_bytes = 0
    coming = _workable(batches)
    for batch in coming:
        kept.append(batch)
        n_bytes += batch.nbytes
        if n_bytes > SPOOL_BYTES:
            return _in_file(chain(kept, coming), kept[0].schema)
    return pa.Table.from_batches(kept)


def _workable(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from workable(pa.Table.from_batches([batch])).to_batches() or [batch]


def _in_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    folder = tempfile.gettempdir()
    number, path = tempfile.mkstemp(prefix="poolish-spool-", dir=folder)
    try:
        with raising_store_full(folder), os.fdopen(number, "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with pa.memory_map(path) as mapped:
            return pa.ipc.open_stream(mapped.read_buffer()).read_all()
    finally:
        os.unlink(path)  # what is mapped stays
