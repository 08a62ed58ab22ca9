"""Numbers of jsonl and csv that a table would hold rounded are an error, never another number.

Arrow reads a column as float64 where it has floats beside integers, or an integer beyond int64. Both would round
integers beyond 2**53, so that different ids become one. Such an integer cannot hide: read as a float it is still 2**53
or more. So the check costs a look at the extremes of each float column, and only a file with such extremes is read
again, as text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.errors import NumberTooLarge
from poolish.recipes.sources.formats import csv_texts

_EXACT = 2**53
_SUSPECT = r"^[ \t]*(?:[+-]?[0-9]{16,}|-?0[xX][0-9a-fA-F]+)[ \t]*$"
_SPACE = re.compile(r"\s*")
_NEXT = {
    "jsonl": "write the column's values in quotes, as text",
    "csv": "keep the column as text, in jsonl (in quotes) or in parquet",
}


def check_exact(table: pa.Table, data: bytes, kind: str, where: str) -> None:
    """Raise ``NumberTooLarge`` if a number of the text is another in the table; ``where`` names the file.

    >>> data = b"id\\n18446744073709551615\\n18446744073709551614\\n"
    >>> check_exact(pa.table({"id": [2.0**64, 2.0**64]}), data, "csv", "ids.csv")
    Traceback (most recent call last):
    poolish.errors.NumberTooLarge: ids.csv, row 0, column 'id': 18446744073709551615 cannot be kept exactly: ...
    """
    if kind == "arrow":
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


# csv --------------------------------------------------------------------------------------------------------------


def _check_csv(table: pa.Table, names: list[str], data: bytes, kind: str, where: str) -> None:
    texts = csv_texts(data, kind, names)
    for name in names:
        column, is_float = texts[name], kinds.is_floating(table.schema.field(name).type)
        suspects = pc.match_substring_regex(column, _SUSPECT)
        if is_float:
            suspects = pc.or_(suspects, pc.fill_null(pc.is_inf(table[name]), False))
        for row in pc.indices_nonzero(suspects).to_pylist():
            text = column[row].as_py().strip()
            if _is_other(text, is_float=is_float):
                raise _too_large(f"{where}, row {row}", name, text, "csv")


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


# jsonl ------------------------------------------------------------------------------------------------------------


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


def check_finite(data: bytes, kind: str, where: str) -> None:
    """Raise ``NumberTooLarge`` if a jsonl text has a number beyond all floats, for which Arrow cannot read it.

    >>> check_finite(b'{"mass": [1e400]}', "jsonl", "stars.jsonl")
    Traceback (most recent call last):
    poolish.errors.NumberTooLarge: stars.jsonl, line 1, column 'mass': 1e400 cannot be kept exactly: ...
    """
    if kind != "jsonl":
        return
    decoder = json.JSONDecoder(parse_int=_if_infinite, parse_float=_if_infinite, strict=False)
    for line, text in enumerate(data.decode("utf-8-sig", "replace").split("\n"), 1):
        try:
            row = decoder.decode(text)
        except (ValueError, RecursionError):
            continue  # what else is wrong, Arrow has reported
        for name, digits in _infinite(row, ""):
            raise _too_large(f"{where}, line {line}", name, digits, kind)


def _if_infinite(digits: str) -> _Inexact | int:
    return _Inexact(digits) if math.isinf(float(digits)) else 0


def _infinite(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, _Inexact):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _infinite(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for item in value:
            yield from _infinite(item, path)


def _inexact(value: Any, type_: pa.DataType, path: str) -> Iterator[tuple[str, str]]:
    """The integers in a value that the floats of its type would round, each with its path."""
    if isinstance(value, _Inexact):
        if kinds.is_floating(type_):
            yield path, value
    elif isinstance(value, dict) and kinds.is_struct(type_):
        for part in type_.fields:
            yield from _inexact(value.get(part.name), part.type, f"{path}.{part.name}")
    elif isinstance(value, list) and type_.num_fields == 1:
        for item in value:
            yield from _inexact(item, type_.field(0).type, path)


def _too_large(where: str, column: str, text: str, kind: str) -> NumberTooLarge:
    shown = text if len(text) <= 60 else f"{text[:30]}... ({len(text)} characters)"
    return NumberTooLarge(
        f"{where}, column {column!r}: {shown} cannot be kept exactly: the column holds floats, or integers beyond "
        f"int64, so it would be read as float64; {_NEXT[kind]}"
    )
