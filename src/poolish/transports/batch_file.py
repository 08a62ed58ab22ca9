"""One batch as one file, in the public safetensors layout: any tool can read it, and reading it runs nothing.

``encode`` and ``decode`` know the layout. ``BatchValidator`` compares arrays with a ``batch_schema``, ``BatchVerifier``
also compares what is read with its queue.

    8 bytes     length of the header, little-endian
    header      JSON, padded with spaces so that the tensors begin at a multiple of 64
    tensors     one behind the other, no gaps, widest elements first, so that each is aligned for its type

A column whose rows differ in length is two tensors, ``NAME`` and ``NAME.offsets`` (batch_columns.py); the header then
has version 2 and names these columns.

The header's ``__metadata__`` says which queue, which schema, how many rows, and which provider made it. It begins
with two checksums, each taken while its own sixteen digits were zeros: of the whole file, so that one flipped bit
anywhere is detected, and of the header alone, for reading only the metadata.

``safetensors.save`` copies every tensor twice and has no place for a checksum (1,260 us for 1 MiB against 300), so the
writer is ours; the tests read its files with the official library.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poolish.errors import CorruptDataError, LimitExceeded, QueueError, SchemaError, StaleSchema
from poolish.files import CHECKSUM, check_name, checksum_hex, open_regular, parse_json
from poolish.ragged import Ragged
from poolish.rows.validate import ValueRejected, shown
from poolish.rows.values import stored
from poolish.schema import Schema, numpy_dtype
from poolish.transports.batch_columns import (
    CARRIED,
    OFFSETS,
    TEXT,
    Array,
    Columns,
    RowRejected,
    first_bad_text,
    is_variable,
    ragged_column,
    text_column,
    type_text,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from poolish.transports.protocols import Log

MAX_FILE_BYTES = 2 * 2**30
#: Files up to this size are read by copying, so that they can be written over when they are done (log.delete);
#: larger ones are mapped, which for them is quicker, and deleted.
COPIED_BYTES = 4 * 2**20
MAX_HEADER_BYTES = 65_536
ALIGNMENT = 64
VERSION = "1"
#: Of a file with ragged columns.
RAGGED_VERSION = "2"

#: dtype -> its name in a header, and back.
NAMES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    **{f"{kind}{size}": f"{kind[0].upper()}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)},
    **{f"float{size}": f"F{size}" for size in (16, 32, 64)},
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}

_START = b'{"__metadata__":{"checksum":"'
_BETWEEN = b'","header":"'
_DIGITS = slice(8 + len(_START), 8 + len(_START) + 16)
_HEADER_DIGITS = slice(_DIGITS.stop + len(_BETWEEN), _DIGITS.stop + len(_BETWEEN) + 16)
_ZEROS = b"0" * 16
#: A header as ``encode`` writes it for a living batch; any other is read as JSON.
_USUAL = re.compile(
    rb'\{"__metadata__":\{"checksum":"[0-9a-f]{16}","header":"[0-9a-f]{16}","hash":"xxh3_64","poolish":'
    rb'(?:"1"|"2","ragged":("(?:[^"\\]|\\.)+")),"queue":"([0-9a-z]{1,64})",'
    rb'"schema":"([0-9a-f]{16})","rows":"([0-9]{1,18})","provider":"([A-Za-z0-9_-][A-Za-z0-9._-]{0,127})",'
    rb'"counter":"([0-9]{1,18})"\}(?:,([^ ].*))?\} *',
    re.DOTALL,
)


@dataclass(frozen=True)
class BatchMetadata:
    """What a batch file says about itself.

    ``counter`` numbers the batches that a provider made for a split. ``tombstone`` is empty, or says why there is
    nothing here but a number: the batch was lost or corrupt.
    """

    queue: str
    schema: str
    rows: int
    provider: str
    counter: int
    tombstone: str = ""


def encode(columns: Columns, metadata: BatchMetadata) -> list[Buffer]:
    """The file, as buffers to be written one behind the other; arrays that are contiguous are not copied.

    >>> metadata = BatchMetadata("q", "96dd0d37ceec8683", rows=2, provider="w0", counter=0)
    >>> header, values = encode({"x": ("int64", np.arange(2))}, metadata)
    >>> len(header) % ALIGNMENT, decode(header + bytes(values), "example")[1]["x"]
    (0, ('int64', array([0, 1])))
    """
    ragged = [name for name, (_, array) in columns.items() if isinstance(array, Ragged)]
    tensors: Any = _tensors(columns) if ragged else columns
    ordered = sorted(tensors.items(), key=lambda tensor: -tensor[1][1].itemsize)
    arrays = [np.ascontiguousarray(array) for _, (_, array) in ordered]
    described = _described(tuple((name, dtype, array.shape) for name, (dtype, array) in ordered))
    header = _header(described, metadata, ragged)
    n_bytes = len(header) + sum(array.nbytes for array in arrays)
    if len(header) > MAX_HEADER_BYTES or n_bytes > MAX_FILE_BYTES:
        raise LimitExceeded(
            f"a batch of {n_bytes:,} bytes with a header of {len(header):,}: the limits of one batch file are "
            f"{MAX_FILE_BYTES:,} and {MAX_HEADER_BYTES:,}; make smaller batches, or fewer fields"
        )
    # Views of bytes: a zero-dimensional or empty array has no buffer that every writer takes.
    contents = [array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes]
    header[_HEADER_DIGITS] = checksum_hex(header).encode()
    header[_DIGITS] = checksum_hex(header, *contents).encode()
    return [bytes(header), *contents]


#: The reason in a tombstone whose batch is missing.
LOST = "its file is missing: lost in a power cut, or removed by hand"


def tombstone(queue: str, schema: str, reason: str, lost: BatchMetadata | None) -> list[Buffer]:
    """The file that keeps the number of a batch that was lost or is corrupt; ``lost`` is its metadata, if readable."""
    provider, counter = (lost.provider, lost.counter) if lost else ("", 0)
    return encode({}, BatchMetadata(queue, schema, 0, provider, counter, reason))


def _tensors(columns: Columns) -> dict[str, tuple[str, Array]]:
    """The arrays that a file holds: of a ragged column its values, and its offsets beside them."""
    tensors = {}
    for name, (dtype, array) in columns.items():
        if isinstance(array, Ragged):
            tensors[name] = ("uint8" if dtype in TEXT else dtype, array.values)
            tensors[name + OFFSETS] = ("int64", array.offsets)
        else:
            tensors[name] = (dtype, array)
    return tensors


@lru_cache(maxsize=256)
def _described(tensors: tuple[tuple[str, str, tuple[int, ...]], ...]) -> str:
    """The part of the header that is the same for all batches of the same shapes."""
    tensors_by_name, start = {}, 0
    for name, dtype, shape in tensors:
        end = start + math.prod(shape) * numpy_dtype(dtype).itemsize
        tensors_by_name[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    return json.dumps(tensors_by_name, separators=(",", ":"))[1:]


def _header(described: str, metadata: BatchMetadata, ragged: Sequence[str]) -> bytearray:
    version = f'"{RAGGED_VERSION}","ragged":{json.dumps(json.dumps(ragged))}' if ragged else f'"{VERSION}"'
    fields = (
        f'"checksum":"{_ZEROS.decode()}","header":"{_ZEROS.decode()}","hash":"{CHECKSUM}","poolish":{version},"queue":{json.dumps(metadata.queue)},'
        f'"schema":{json.dumps(metadata.schema)},"rows":"{metadata.rows}","provider":{json.dumps(metadata.provider)},'
        f'"counter":"{metadata.counter}"'
    )
    stone = f',"tombstone":{json.dumps(metadata.tombstone)}' if metadata.tombstone else ""
    comma = "," if len(described) > 1 else ""
    text = f'{{"__metadata__":{{{fields}{stone}}}{comma}{described}'.encode("ascii")
    length = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT - 8
    return bytearray(length.to_bytes(8, "little") + text.ljust(length))


def decode(
    data: bytes | mmap.mmap | Array, place: Path | str, *, verify: bool = True
) -> tuple[BatchMetadata, dict[str, tuple[str, Array | Ragged]]]:
    """The metadata of a batch and its arrays, which share the memory of ``data``; what cannot be trusted is an error.

    The checksum is verified before anything else is used. ``verify=False`` leaves it out. Text is a ``Ragged`` of
    bytes: only the schema of a queue knows that they are text.
    """
    view = as_bytes(data)
    header = bytes(view[: _header_end(view, place)])
    if verify:
        _check(header, view, place)
    metadata, tensors, ragged = _parsed(header, place)
    try:
        layout, n_bytes, rows, ragged_names = _layout(tensors, ragged)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(place, f"its tensors are described wrongly: {error!r}") from None
    if len(header) + n_bytes != view.nbytes:
        raise _corrupt(place, f"its tensors end at {len(header) + n_bytes:,}, the file at {view.nbytes:,}")
    if rows != (None if metadata.tombstone else metadata.rows):
        raise _corrupt(place, f"its metadata says {metadata.rows} rows, its tensors have {rows or 'none'}")
    columns: dict[str, tuple[str, Array | Ragged]] = {
        name: (dtype, np.ndarray(shape, carrier, data, len(header) + begin))
        for name, dtype, carrier, shape, begin in layout
    }
    for name in ragged_names:
        dtype, values = columns[name]
        column = Ragged(values, columns.pop(name + OFFSETS)[1])
        problem = column.problem()
        if problem is not None:
            raise _corrupt(place, f"of column {name!r}, {problem}")
        columns[name] = dtype, column
    return metadata, columns


def read_metadata(path: Path | str) -> BatchMetadata:
    """The metadata alone, without reading the tensors: for counting and deleting."""
    fd = open_regular(path, os.O_RDONLY)
    try:
        start = os.pread(fd, 4096, 0)
        if len(start) >= 8 and int.from_bytes(start[:8], "little") > len(start) - 8:
            start = os.pread(fd, 8 + MAX_HEADER_BYTES, 0)
    finally:
        os.close(fd)
    header = bytearray(start[: _header_end(memoryview(start), path)])
    written, header[_DIGITS], header[_HEADER_DIGITS] = bytes(header), _ZEROS, _ZEROS
    if checksum_hex(header).encode() != written[_HEADER_DIGITS]:
        raise _corrupt(path, "the checksum of its header is wrong")
    return _parsed(written, path)[0]


#: Returns writable memory of a number of bytes.
Allocate = Callable[[int], Array]


def read_file(path: Path | str, allocate: Allocate | None = None) -> mmap.mmap | Array:
    """The bytes of a file, writable without changing the file.

    In memory of ``allocate``; by default in new memory, or for large files mapped, copy on write.
    """
    fd = open_regular(path, os.O_RDONLY)
    try:
        n_bytes = _check_size(fd, path)
        if allocate is None and n_bytes > COPIED_BYTES:
            return mmap.mmap(fd, n_bytes, access=mmap.ACCESS_COPY)
        target = np.empty(n_bytes, np.uint8) if allocate is None else allocate(n_bytes)
        view, filled = as_bytes(target), 0
        while filled < n_bytes:
            n_read = os.preadv(fd, [view[filled:]], filled)
            if n_read == 0:
                raise _corrupt(path, "it became shorter while it was read")
            filled += n_read
        return target
    finally:
        os.close(fd)


def _check_size(fd: int, path: Path | str) -> int:
    """How large an open file is, if a batch can be so large."""
    n_bytes = os.fstat(fd).st_size
    if n_bytes > MAX_FILE_BYTES:
        raise _corrupt(path, f"{n_bytes:,} bytes, the limit is {MAX_FILE_BYTES:,}")
    if n_bytes < 8:
        raise _corrupt(path, f"{n_bytes} bytes are no batch")
    return n_bytes


def as_bytes(data: bytes | mmap.mmap | Array) -> memoryview:
    """The same memory, byte by byte."""
    return data.data.cast("B") if isinstance(data, np.ndarray) else memoryview(data)


def _header_end(view: memoryview, place: Path | str) -> int:
    if view.nbytes < _HEADER_DIGITS.stop:
        raise _corrupt(place, f"{view.nbytes} bytes are no batch")
    length = int.from_bytes(view[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise _corrupt(place, f"a header of {length:,} bytes, the limit is {MAX_HEADER_BYTES:,}")
    begins_well = view[8 : _DIGITS.start] == _START and view[_DIGITS.stop : _HEADER_DIGITS.start] == _BETWEEN
    if 8 + length > view.nbytes or (8 + length) % ALIGNMENT or not begins_well:
        raise _corrupt(place, "it does not begin like a batch")
    return 8 + length


def _check(header: bytes, view: memoryview, place: Path | str) -> None:
    zeroed = bytearray(header)
    zeroed[_DIGITS] = _ZEROS
    found = checksum_hex(zeroed, view[len(header) :])
    if found.encode() != header[_DIGITS]:
        noted = header[_DIGITS].decode("ascii", "replace")
        raise _corrupt(place, f"its checksum is {found}, written was {noted}")


def _parsed(header: bytes, place: Path | str) -> tuple[BatchMetadata, bytes, bytes | None]:
    """The metadata, the rest of the header, which describes the tensors, and which columns are ragged, both as JSON."""
    usual = _USUAL.fullmatch(header, 8)
    if usual:
        ragged, queue, schema, rows, provider, counter, tensors = usual.groups()
        metadata = BatchMetadata(queue.decode(), schema.decode(), int(rows), provider.decode(), int(counter))
        return metadata, tensors or b"", ragged
    try:
        whole = parse_json(header[8:].decode("ascii"), place)
        fields = whole.pop("__metadata__")
        metadata = _metadata(fields)
        ragged = json.dumps(fields["ragged"]).encode() if "ragged" in fields else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(place, f"its header is wrong: {error!r}") from None
    return metadata, json.dumps(whole)[1:-1].encode("ascii"), ragged


def _metadata(fields: Mapping[str, Any]) -> BatchMetadata:
    if fields["poolish"] != (RAGGED_VERSION if "ragged" in fields else VERSION) or fields["hash"] != CHECKSUM:
        raise ValueError(f"version {fields['poolish']!r} with {fields['hash']!r} is not known here")
    if not all(isinstance(value, str) for value in fields.values()):
        raise ValueError("not all of its metadata is text")
    rows, counter, stone = _count(fields["rows"]), _count(fields["counter"]), fields.get("tombstone", "")
    if stone and rows:
        raise ValueError(f"a tombstone of {rows} rows")
    if fields["provider"] or not stone:  # a tombstone may not know whose batch it was
        check_name(fields["provider"], "provider")
    return BatchMetadata(fields["queue"], fields["schema"], rows, fields["provider"], counter, stone)


def _count(digits: object) -> int:
    if not isinstance(digits, str) or not digits.isdecimal() or len(digits) > 18:
        raise ValueError(f"{digits!r} is no count")
    return int(digits)


#: name, dtype, what carries it in NumPy, shape, first byte
Layout = tuple[tuple[str, str, np.dtype[Any], tuple[int, ...], int], ...]


@lru_cache(maxsize=256)  # most batches of a queue have the same, where none is ragged
def _layout(tensors: bytes, ragged: bytes | None) -> tuple[Layout, int, int | None, tuple[str, ...]]:
    """Where each tensor is, where they end, how many rows all have (None: no tensor), which columns are ragged."""
    names = () if ragged is None else _ragged_names(ragged)
    offsets_of = {name + OFFSETS for name in names}
    layout, begin, rows = [], 0, None
    for name, described in parse_json("{" + tensors.decode("ascii") + "}", "header").items():
        if name == "__metadata__":
            raise ValueError("it has two __metadata__ members")
        dtype, shape, offsets = DTYPES[described["dtype"]], tuple(described["shape"]), list(described["data_offsets"])
        if len(shape) > 32 or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{name!r} has shape {shape}")
        if math.prod(max(size, 1) for size in shape) > MAX_FILE_BYTES:
            raise ValueError(f"{name!r} is too large")
        end = begin + math.prod(shape) * numpy_dtype(dtype).itemsize
        if offsets != [begin, end] or not all(type(offset) is int for offset in offsets):  # no gaps, no overlaps
            raise ValueError(f"{name!r} has offsets {offsets}")
        if not shape or (name in offsets_of and (dtype != "int64" or len(shape) != 1)):
            raise ValueError(f"{name!r} is {dtype} of shape {shape}")
        if name not in names:
            n_rows = shape[0] - (name in offsets_of)
            if n_rows != (n_rows if rows is None else rows):
                raise ValueError(f"{name!r} has shape {shape}, the others have {rows} rows")
            rows = n_rows
        layout.append((name, dtype, numpy_dtype(dtype), shape, begin))
        begin = end
    missing = {*names, *offsets_of}.difference(name for name, *_ in layout)
    if missing:
        raise ValueError(f"ragged columns lack {sorted(missing)}")
    return tuple(layout), begin, rows, names


def _ragged_names(ragged: bytes) -> tuple[str, ...]:
    """The names of the ragged columns, from a JSON list in JSON text, as the values of safetensors metadata are."""
    names = parse_json(json.loads(ragged), "ragged")
    if type(names) is not list or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{ragged!r:.80} are no names")
    if len({*names, *(name + OFFSETS for name in names)}) != 2 * len(names):
        raise ValueError(f"{ragged!r:.80} stand there twice")
    return tuple(names)


def _corrupt(place: Path | str, why: str) -> CorruptDataError:
    return CorruptDataError(f"{place}: not a whole batch, {why[:500]}")


# Validating ---------------------------------------------------------------------------------------------------------


class BatchValidator:
    """Validates batches against their ``batch_schema``: before a provider publishes them, and when they are read.

    ``has_ragged``: where the first size is open, rows may differ. In queues of 0.1.0 all rows of a batch are alike.

    >>> validator = BatchValidator(Schema.of([{"name": "x", "dtype": "int64", "shape": [2]}]))
    >>> validator.columns_of({"x": [[1, 2], [3, 4], [5, 6]]}, "batch 7")[1]
    3
    >>> validator.columns_of({"x": [[1.5, 2.0]]}, "batch 7")
    Traceback (most recent call last):
    poolish.errors.SchemaError: batch 7, field 'x': batch_schema says int64[rows, 2], got float64[1, 2]; make it so ...
    """

    def __init__(self, schema: Schema, *, has_ragged: bool = True) -> None:
        self._fields = [(field.name, str(field.dtype), field.shape or ()) for field in schema]
        self.names = {name: None for name, _, _ in self._fields}.keys()
        # Arrays of these need no second look.
        self._own = {name: numpy_dtype(dtype) for name, dtype, _ in self._fields if dtype not in {*CARRIED, *TEXT}}
        variable = [field for field in schema if has_ragged and is_variable(field)]
        self._variable = {field.name: tuple(size or 0 for size in (field.shape or ())[1:]) for field in variable}

    def columns_of(self, batch: Any, place: str) -> tuple[dict[str, tuple[str, Array | Ragged]], int]:
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

    def _stored(self, value: Any, place: str, name: str, dtype: str) -> tuple[str, Array | Ragged]:
        if type(value) is np.ndarray and value.dtype is self._own.get(name):
            return dtype, value
        if name in self._variable:
            column = self._variable_length(value, place, name, dtype)
            if column is not None:
                return dtype, column
        try:
            return stored(value)
        except (ValueRejected, ValueError) as error:
            raise SchemaError(f"{place}, field {name!r}: {error}; return an array or a tensor of numbers") from error

    def _variable_length(self, value: Any, place: str, name: str, dtype: str) -> Ragged | None:
        """A column whose rows may differ in length; None where the value is one array, whose rows do not."""
        try:
            return text_column(value, dtype) if dtype in TEXT else ragged_column(value, dtype, self._variable[name])
        except ValueRejected as rejection:
            row = f", row {rejection.index}" if isinstance(rejection, RowRejected) else ""
            raise rejection.error(
                f"{place}, field {name!r}{row}: {rejection.rule}, got {shown(rejection.value)}; {rejection.advice}"
            ) from None

    def labelled(self, columns: Columns, place: str) -> dict[str, tuple[str, Array | Ragged]]:
        """What a file holds, in the order of the schema, with text as what it is; it must be text."""
        if not self._variable:
            return {name: columns[name] for name in self.names}
        return {name: self._labelled(name, dtype, columns[name], place) for name, dtype, _ in self._fields}

    def _labelled(
        self, name: str, expected: str, found: tuple[str, Array | Ragged], place: str
    ) -> tuple[str, Array | Ragged]:
        dtype, column = found
        if expected not in TEXT or dtype != "uint8" or not isinstance(column, Ragged) or column.values.ndim != 1:
            return found
        row = first_bad_text(column) if expected == "string" else None
        if row is not None:
            raise _corrupt(place, f"the text of field {name!r} in row {row} is not UTF-8")
        return expected, column

    def check(self, columns: Columns, place: str, advice: str) -> int:
        """How many rows there are, if every field fits the schema and all have as many."""
        rows = -1
        for name, expected_dtype, sizes in self._fields:
            dtype, array = columns[name]
            if dtype != expected_dtype or not self._has_shape(name, array, sizes):
                expected = type_text(expected_dtype, ("rows", *sizes))
                shape = (len(array), None, *array.values.shape[1:]) if isinstance(array, Ragged) else array.shape
                got = type_text(dtype, shape)
                raise SchemaError(f"{place}, field {name!r}: batch_schema says {expected}, got {got}; {advice}")
            rows = len(array) if rows < 0 else rows
            if len(array) != rows or rows == 0:
                raise SchemaError(
                    f"{place}, field {name!r}: {len(array)} rows, where {self._fields[0][0]!r} has {rows}; "
                    "all fields of a batch have equally many, at least one"
                )
        return rows

    def _has_shape(self, name: str, array: Array | Ragged, sizes: tuple[int | None, ...]) -> bool:
        if isinstance(array, Ragged):
            return name in self._variable and array.values.shape[1:] == self._variable[name]
        shape = array.shape
        if len(shape) != 1 + len(sizes):
            return False
        return shape[1:] == sizes or all(a is None or a == b for a, b in zip(sizes, shape[1:], strict=True))


class TombstoneError(CorruptDataError):
    """The batch was replaced by a tombstone."""


class BatchVerifier:
    """Decodes the batches of a queue, and refuses those that are not whole, of another queue, or not as described."""

    def __init__(self, log: Log) -> None:
        self._log, self._meta = log, log.meta
        self._validator = BatchValidator(log.meta.schema, has_ragged=log.meta.has_ragged)
        self._row_limits = log.meta.row_limits

    def verified(
        self, data: mmap.mmap | Array, name: str
    ) -> tuple[BatchMetadata, dict[str, tuple[str, Array | Ragged]]]:
        """The metadata and the arrays of a batch, which share the memory of ``data``."""
        metadata, columns = decode(data, name)
        if metadata.tombstone:
            raise TombstoneError(f"{name}: this batch is dead: {metadata.tombstone}")
        if metadata.queue != self._meta.queue:
            raise QueueError(
                f"{name}: a batch of another queue; if the queue was purged meanwhile, restart this process"
            )
        if metadata.schema != self._meta.schema.fingerprint:
            raise StaleSchema(
                f"{name}: its schema is {metadata.schema}, this queue's {self._meta.schema.fingerprint}; discard the "
                f"queue with `poolish queue purge {self._log.place}` and fill it again"
            )
        if columns.keys() != self._validator.names:
            raise SchemaError(f"{name}: has {sorted(columns)}, batch_schema {self._meta.schema.names}")
        columns = self._validator.labelled(columns, name)
        if self._validator.check(columns, name, "the provider wrote something else") != metadata.rows:
            raise SchemaError(f"{name}: its metadata says {metadata.rows} rows, its arrays do not")
        self._check_rows(metadata.rows, name)
        return metadata, columns

    def _check_rows(self, rows: int, name: str) -> None:
        """Raise if a batch has a number of rows that no provider of its queue makes."""
        low, high = self._row_limits
        if not low <= rows <= high:
            # A provider that makes others may have come since this side was started.
            low, high = self._row_limits = self._log.read_meta().row_limits
        if not low <= rows <= high:
            expected = high if low == high else f"{low} to {high}"
            raise SchemaError(f"{name}: {rows} rows, the providers of this queue make {expected} (batch_size)")
