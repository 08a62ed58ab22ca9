"""Files as tables, the same for ``bake`` and ``poolish check``: parquet, Arrow, JSON lines, csv and tsv.

    bytes --decompress (.gz, .zst)--> --parse, by format--> table --check_exact--> no number is another than in the text
    parquet --check_row_groups--> no column contradicts the schema

Text has no types. Numbers and true/false are taken for what they look like, all other text is text: a date stays as it
is written, so that the files of one source have the same types whatever their texts happen to look like. ``cast`` makes
dates of them where they are wanted.

Arrow reads a column of text as float64 where it has floats beside integers, or an integer beyond int64. Both would
round integers beyond 2**53, so that different ids become one: that is a ``NumberTooLarge``. Such an integer cannot
hide: read as a float it is still 2**53 or more. So the check costs a look at the extremes of each float column, and
only a file with such extremes is read again, as text.
"""

from __future__ import annotations

import io
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.errors import NumberTooLarge

#: Endings, each also with .gz or .zst after it.
FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
}
#: The formats that are text, with what to do about a number that a table cannot hold.
_TEXTS = {
    "jsonl": "write the column's values in quotes, as text",
    "csv": "keep the column as text, in jsonl (in quotes) or in parquet",
    "tsv": "keep the column as text, in jsonl (in quotes) or in parquet",
}
_DELIMITERS = {"csv": ",", "tsv": "\t"}

_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 2**31 - 1
_SCANNED_BYTES = 1 << 24

_ONE_OBJECT = re.compile(rb'[ \t]*\{[ \t]*".*\}[ \t]*')
_TWO_OBJECTS = re.compile(rb"\}[ \tnul]*\{")  # also with a null in between, which Arrow takes for a row
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EXACT = 2**53
_SUSPECT = r"^[ \t]*(?:[+-]?[0-9]{16,}|-?0[xX][0-9a-fA-F]+)[ \t]*$"
_SPACE = re.compile(r"\s*")


def format_of(path: str) -> str | None:
    """The format by the ending of a name, compressed or not.

    >>> format_of("corpus/a.jsonl.gz"), format_of("https://example.org/a.parquet?version=3"), format_of("notes.txt")
    ('jsonl', 'parquet', None)
    """
    return FORMATS.get(ending_of(path))


def ending_of(path: str) -> str:
    """The ending of a name, in lower case and without that of its compression."""
    return posixpath.splitext(_plain(path).removesuffix(".gz").removesuffix(".zst"))[1]


def _plain(path: str) -> str:
    is_url = path.startswith(("http://", "https://"))
    return (path.partition("?")[0] if is_url else path).lower()


def is_hidden(file: str, root: str, pattern: str = "") -> bool:
    """Whether the name of a file, or of a directory above it and below the root, marks it as no data.

    Checkpoints, copies of attributes, success markers and unfinished writes begin with "." or "_". A pattern that
    spells such a name asks for it.

    >>> is_hidden("d/.ipynb_checkpoints/a.csv", "d"), is_hidden("d/_old/a.csv", "d", "/_o*/*.csv")
    (True, False)
    """
    asked = [part for part in pattern.split("/") if part.startswith((".", "_"))]
    names = [name for name in file.removeprefix(root).split("/") if name.startswith((".", "_"))]
    return not all(any(fnmatchcase(name, part) for part in asked) for name in names)


def is_text(kind: str) -> bool:
    """Whether a format is text, which has no types and may have no rows."""
    return kind in _TEXTS


def decompress(data: bytes, path: str) -> bytes:
    """The bytes of a file without its compression."""
    name = _plain(path)
    compression = "gzip" if name.endswith(".gz") else "zstd" if name.endswith(".zst") else None
    if compression is None or not data:
        return data
    with pa.CompressedInputStream(pa.BufferReader(data), compression) as stream:
        content: bytes = stream.read()
    return content


def parse(data: bytes, kind: str, where: str) -> pa.Table:
    """The rows of a file, whose numbers may be rounded (see ``check_exact``); blank text has no rows and no columns.

    ``where`` names the file in errors.
    """
    if kind == "arrow":
        return _arrow(data)
    if is_blank(data):
        return pa.table({})
    try:
        table = _jsonl(data) if kind == "jsonl" else _csv(data, kind)
        _ = table.column_names  # Arrow notices that a name is not UTF-8 only here
    except pa.ArrowInvalid:
        if kind == "jsonl":
            _check_finite(data, where)
        raise
    return table


def counted_rows(data: bytes, kind: str) -> int | None:
    """How many rows a text has if it can be read at all; None where only parsing it shows.

    Plain texts have a row in each line, which costs a hundredth of reading them.

    >>> counted_rows(b'{"a": 1}\\n\\n{"a": 2}', "jsonl"), counted_rows(b"a,b\\n1,2\\n", "csv")
    (2, 1)
    >>> counted_rows(b'a\\n"1\\n2"', "csv") is None
    True
    """
    if is_blank(data) or data.startswith(_BYTE_ORDER_MARK):
        return None
    if kind in _DELIMITERS:
        # In quotes a line may go on in the next one; one line alone may be names, or nothing that Arrow takes.
        n_lines = 0 if b'"' in data else sum(map(bool, data.splitlines()))
        return n_lines - 1 if n_lines > 1 else None
    lines = [line for line in data.splitlines() if line.strip()]
    # Arrow also takes several objects in a line, and one in several lines.
    is_plain = all(map(_ONE_OBJECT.fullmatch, lines)) and not _TWO_OBJECTS.search(data)
    return len(lines) if is_plain else None


def is_blank(data: bytes) -> bool:
    """Whether there is nothing but space."""
    return not data[:_BLOCK_BYTES].strip() and not data.strip()


# Arrow and text -----------------------------------------------------------------------------------------------------


def _arrow(data: bytes) -> pa.Table:
    """Arrow files and streams have the same endings; only files begin with a magic word."""
    buffer = pa.py_buffer(data)
    table = (pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream)(buffer).read_all()
    table.validate(full=True)  # Arrow trusts its input: a wrong offset would end the process
    return table


def _jsonl(data: bytes) -> pa.Table:
    import pyarrow.json as reader

    def read(block_bytes: int, schema: pa.Schema | None = None) -> pa.Table:
        options = reader.ReadOptions(block_size=block_bytes)
        return reader.read_json(
            io.BytesIO(data), read_options=options, parse_options=reader.ParseOptions(explicit_schema=schema)
        )

    table, block_bytes = _in_blocks(data, read)
    if not any(_has_times(field.type) for field in table.schema):
        return table
    return read(block_bytes, pa.schema([field.with_type(_as_text(field.type)) for field in table.schema]))


def _csv(data: bytes, kind: str) -> pa.Table:
    table, block_bytes = _in_blocks(data, lambda size: _read_csv(data, kind, size))
    texts = [field.name for field in table.schema if _has_times(field.type)]
    return _read_csv(data, kind, block_bytes, texts) if texts else table


def _csv_texts(data: bytes, kind: str, columns: Sequence[str]) -> pa.Table:
    """The rows of a csv or tsv file, where these columns are text as it is written."""
    return _in_blocks(data, lambda size: _read_csv(data, kind, size, columns))[0]


def _read_csv(data: bytes, kind: str, block_bytes: int, texts: Sequence[str] = ()) -> pa.Table:
    import pyarrow.csv as reader

    return reader.read_csv(
        io.BytesIO(data),
        read_options=reader.ReadOptions(block_size=block_bytes),
        # A text may have lines of its own, also where a block happens to end.
        parse_options=reader.ParseOptions(newlines_in_values=True, delimiter=_DELIMITERS[kind]),
        convert_options=reader.ConvertOptions(column_types=dict.fromkeys(texts, pa.string())),
    )


def _in_blocks(data: bytes, read: Callable[[int], pa.Table]) -> tuple[pa.Table, int]:
    """A table, and how large blocks had to be: Arrow refuses rows that reach over a whole one."""
    block_bytes = min(max(_BLOCK_BYTES, _longest_line(data) + 2), _MAX_BLOCK_BYTES)
    try:
        return read(block_bytes), block_bytes
    except pa.ArrowInvalid as error:
        # A row of csv may be longer than its longest line.
        if "straddl" not in str(error) or block_bytes > len(data):
            raise
    block_bytes = min(len(data) + 1, _MAX_BLOCK_BYTES)
    return read(block_bytes), block_bytes


def _longest_line(data: bytes) -> int:
    """How many bytes the longest line has."""
    if len(data) <= _BLOCK_BYTES:
        return max(map(len, data.split(b"\n")))
    longest, begin = 0, 0
    for first in range(0, len(data), _SCANNED_BYTES):
        part = np.frombuffer(data, np.uint8, min(_SCANNED_BYTES, len(data) - first), first)
        ends = np.flatnonzero(part == 10) + first
        if len(ends):
            lengths = np.diff(ends, prepend=begin - 1) - 1
            longest, begin = max(longest, int(lengths.max())), int(ends[-1]) + 1
    return max(longest, len(data) - begin)


def _has_times(type_: pa.DataType) -> bool:
    return kinds.is_temporal(type_) or any(_has_times(type_.field(i).type) for i in range(type_.num_fields))


def _as_text(type_: pa.DataType) -> pa.DataType:
    """The type with text wherever Arrow inferred a time."""
    if kinds.is_temporal(type_):
        return pa.string()
    if kinds.is_struct(type_):
        return pa.struct([part.with_type(_as_text(part.type)) for part in type_.fields])
    if kinds.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_text(type_.value_type)))
    return type_


# Exact numbers ------------------------------------------------------------------------------------------------------


def check_exact(table: pa.Table, data: bytes, kind: str, where: str) -> None:
    """Raise ``NumberTooLarge`` if a number of the text is another in the table; ``where`` names the file.

    >>> data = b"id\\n18446744073709551615\\n18446744073709551614\\n"
    >>> check_exact(pa.table({"id": [2.0**64, 2.0**64]}), data, "csv", "ids.csv")
    Traceback (most recent call last):
    poolish.errors.NumberTooLarge: ids.csv, row 0, column 'id': 18446744073709551615 cannot be kept exactly: ...
    """
    if not is_text(kind):
        return
    columns = [
        field
        for field, values in zip(table.schema, table.columns, strict=True)
        if any(_is_suspect(part, data, kind) for part in _numbers(values))
    ]
    if columns and kind == "jsonl":
        _check_jsonl(data, columns, where)
    elif columns:
        _check_csv(table, [field.name for field in columns], data, kind, where)


def _numbers(values: pa.ChunkedArray | pa.Array) -> Iterator[pa.Array]:
    """The arrays of numbers in a column, also those in its lists and structs."""
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        if kinds.is_floating(chunk.type) or kinds.is_integer(chunk.type):
            yield chunk
        elif kinds.is_struct(chunk.type):
            for part in chunk.flatten():
                yield from _numbers(part)
        elif chunk.type.num_fields == 1:
            yield from _numbers(chunk.flatten())


def _is_suspect(numbers: pa.Array, data: bytes, kind: str) -> bool:
    """Whether one of these may stand for another: a float beyond 2**53, or a negative that was a hexadecimal."""
    is_integer = kinds.is_integer(numbers.type)
    if is_integer and kind == "jsonl":
        return False
    extremes = pc.min_max(numbers)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if low is None:
        return False
    return low < 0 and _has_hexadecimals(data) if is_integer else bool(low <= -_EXACT or high >= _EXACT)


def _has_hexadecimals(data: bytes) -> bool:
    # One byte is found ten times as fast as two, and most files of numbers have no x.
    return (b"x" in data and b"0x" in data) or (b"X" in data and b"0X" in data)


def _check_csv(table: pa.Table, names: list[str], data: bytes, kind: str, where: str) -> None:
    texts = _csv_texts(data, kind, names)
    for name in names:
        column, is_float = texts[name], kinds.is_floating(table.schema.field(name).type)
        suspects = pc.match_substring_regex(column, _SUSPECT)
        if is_float:
            suspects = pc.or_(suspects, pc.fill_null(pc.is_inf(table[name]), False))
        for row in pc.indices_nonzero(suspects).to_pylist():
            text = column[row].as_py().strip()
            if _is_other(text, is_float=is_float):
                raise _too_large(f"{where}, row {row}", name, text, kind)


def _is_other(text: str, *, is_float: bool) -> bool:
    """Whether the text is a number that its column cannot hold."""
    if "x" in text.lower():
        return int(text, 16) >= 2**63
    digits = text.lstrip("+-")
    if digits.isdecimal():
        return is_float and _is_inexact(text)
    return bool(re.search("[0-9]", text))  # a float beyond all floats, such as 1e400; "inf" is what it says


def _is_inexact(integer: str) -> bool:
    digits = integer.lstrip("+-").lstrip("0")
    return len(digits) > 16 or int(digits or "0") > _EXACT


class _Inexact(str):
    """The digits of an integer that a float would round, or of a number beyond all floats."""

    __slots__ = ()


def _check_jsonl(data: bytes, columns: list[pa.Field], where: str) -> None:
    text = data.decode("utf-8-sig", "replace")
    # Arrow reads a number of 400 digits and a point as infinity.
    decoder = json.JSONDecoder(
        parse_int=lambda digits: _Inexact(digits) if _is_inexact(digits) else 0, parse_float=_if_infinite, strict=False
    )
    place = _SPACE.match(text).end()  # type: ignore[union-attr]  # it always matches
    line, counted = 1, 0
    while place < len(text):
        try:
            row, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            names = ", ".join(repr(field.name) for field in columns)
            raise NumberTooLarge(
                f"{where}, column {names}: it has numbers beyond 2**53, and whether they are exact cannot be seen, as "
                f"this is not JSON to every reader ({error}); write it again with a JSON library"
            ) from None
        line, counted = line + text.count("\n", counted, place), place
        for field in columns:
            for path, digits in _inexact(row.get(field.name) if row else None, field.type, field.name):
                raise _too_large(f"{where}, line {line}", path, digits, "jsonl")
        place = _SPACE.match(text, end).end()  # type: ignore[union-attr]


def _check_finite(data: bytes, where: str) -> None:
    """Raise ``NumberTooLarge`` if JSON lines have a number beyond all floats, for which Arrow cannot read them."""
    decoder = json.JSONDecoder(parse_int=_if_infinite, parse_float=_if_infinite, strict=False)
    for line, text in enumerate(data.decode("utf-8-sig", "replace").split("\n"), 1):
        try:
            row = decoder.decode(text)
        except (ValueError, RecursionError):
            continue  # Arrow reports every other mistake
        for name, digits in _inexact(row, None, ""):
            raise _too_large(f"{where}, line {line}", name, digits, "jsonl")


def _if_infinite(digits: str) -> _Inexact | int:
    return _Inexact(digits) if math.isinf(float(digits)) else 0


def _inexact(value: Any, type_: pa.DataType | None, path: str) -> Iterator[tuple[str, str]]:
    """The numbers in a value that its type would change, each with its path; without a type all that are noted."""
    if isinstance(value, _Inexact):
        if type_ is None or kinds.is_floating(type_):
            yield path, value
    elif isinstance(value, dict) and (type_ is None or kinds.is_struct(type_)):
        parts = [(name, None) for name in value] if type_ is None else [(part.name, part.type) for part in type_.fields]
        for name, inner in parts:
            yield from _inexact(value.get(name), inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and (type_ is None or type_.num_fields == 1):
        for item in value:
            yield from _inexact(item, None if type_ is None else type_.field(0).type, path)


def _too_large(where: str, column: str, text: str, kind: str) -> NumberTooLarge:
    shown = text if len(text) <= 60 else f"{text[:30]}... ({len(text)} characters)"
    return NumberTooLarge(
        f"{where}, column {column!r}: {shown} cannot be kept exactly: the column holds floats, or integers beyond "
        f"int64, so it would be read as float64; {_TEXTS[kind]}"
    )


# Parquet ------------------------------------------------------------------------------------------------------------


def check_row_groups(raw: Any, file: Any, groups: Sequence[int]) -> None:
    """Raise if columns of these row groups of a ``ParquetFile`` on ``raw`` contradict its schema.

    Asked for the statistics of such a column, Arrow ends the process; asked to read it, it raises. So it reads no rows
    of all columns, through a stream, for which it makes readers and reads nothing (25 us a group).
    """
    import pyarrow.parquet as pq

    reader = pq.ParquetFile(raw, metadata=file.metadata, buffer_size=4096, pre_buffer=False).reader
    columns = list(range(file.metadata.num_columns))
    for group in groups:
        next(reader.iter_batches(0, row_groups=[group], column_indices=columns, use_threads=False), None)
        for i in columns:  # the type decides how its statistics are read, where the same would happen
            known, found = file.metadata.schema.column(i), file.metadata.row_group(group).column(i).physical_type
            if found != known.physical_type:
                raise pa.ArrowInvalid(f"column {known.path!r} is {found} in group {group}, {known.physical_type} above")


def read_parquet(path: str) -> pa.Table:
    """All rows of a local parquet file, with the checksums of its pages verified."""
    import pyarrow.parquet as pq

    with pa.OSFile(path) as raw:  # not mapped: a file that is truncated while it is mapped ends the process
        file = pq.ParquetFile(raw, page_checksum_verification=True)
        check_row_groups(raw, file, range(file.metadata.num_row_groups))
        table = file.read()
    table.validate(full=True)
    return table
