"""Files that are read as a whole: arrow, jsonl and csv, as tables.

Text has no types. Numbers and true/false are taken for what they look like, all other text is text: a date stays as it
is written, so that the files of one source have the same types whatever their texts happen to look like. ``cast`` makes
dates of them where they are wanted.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}

_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 2**31 - 1
_SCANNED_BYTES = 1 << 24

_ONE_OBJECT = re.compile(rb'[ \t]*\{[ \t]*".*\}[ \t]*')
_TWO_OBJECTS = re.compile(rb"\}[ \tnul]*\{")  # also with a null in between, which Arrow takes for a row
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def format_of(path: str) -> str | None:
    """The format by the ending of a name, compressed or not.

    >>> format_of("corpus/a.jsonl.gz"), format_of("https://example.org/a.parquet?version=3"), format_of("notes.txt")
    ('jsonl', 'parquet', None)
    """
    return FORMATS.get(posixpath.splitext(_plain(path).removesuffix(".gz").removesuffix(".zst"))[1])


def _plain(path: str) -> str:
    is_url = path.startswith(("http://", "https://"))
    return (path.partition("?")[0] if is_url else path).lower()


def unpacked(data: bytes, path: str) -> bytes:
    """The bytes of a file without its compression."""
    name = _plain(path)
    compression = "gzip" if name.endswith(".gz") else "zstd" if name.endswith(".zst") else None
    if compression is None or not data:
        return data
    with pa.CompressedInputStream(pa.BufferReader(data), compression) as stream:
        content: bytes = stream.read()
    return content


def table_of(data: bytes, kind: str) -> pa.Table:
    """The rows of a file; one without a word in it has no rows and no columns."""
    if kind == "arrow":
        return _arrow(data)
    if is_blank(data):
        return pa.table({})
    table = _jsonl(data) if kind == "jsonl" else _csv(data, kind)
    _ = table.column_names  # Arrow finds out that one is no text when somebody asks
    return table


def counted_rows(data: bytes, kind: str) -> int | None:
    """How many rows a text has if it can be read at all; None where only reading it tells.

    Plain texts have a row in each line, which costs a hundredth of reading them.

    >>> counted_rows(b'{"a": 1}\\n\\n{"a": 2}', "jsonl"), counted_rows(b"a,b\\n1,2\\n", "csv")
    (2, 1)
    >>> counted_rows(b'a\\n"1\\n2"', "csv") is None
    True
    """
    if is_blank(data) or data.startswith(_BYTE_ORDER_MARK):
        return None
    if kind == "csv":
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


def _arrow(data: bytes) -> pa.Table:
    """Both formats have the same endings: that of files begins with a word of its own, that of streams does not."""
    buffer = pa.py_buffer(data)
    table = (pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream)(buffer).read_all()
    table.validate(full=True)  # Arrow takes what it is told for granted: a wrong offset would end the process
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


def csv_texts(data: bytes, kind: str, columns: Sequence[str]) -> pa.Table:
    """The rows of a csv or tsv file, where these columns are text as it is written."""
    return _in_blocks(data, lambda size: _read_csv(data, kind, size, columns))[0]


def _read_csv(data: bytes, kind: str, block_bytes: int, texts: Sequence[str] = ()) -> pa.Table:
    import pyarrow.csv as reader

    return reader.read_csv(
        io.BytesIO(data),
        read_options=reader.ReadOptions(block_size=block_bytes),
        # A text may have lines of its own, also where a block happens to end.
        parse_options=reader.ParseOptions(newlines_in_values=True, delimiter="\t" if kind == "tsv" else ","),
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
    """The type that has text wherever Arrow thought to see a time."""
    if kinds.is_temporal(type_):
        return pa.string()
    if kinds.is_struct(type_):
        return pa.struct([part.with_type(_as_text(part.type)) for part in type_.fields])
    if kinds.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_text(type_.value_type)))
    return type_
