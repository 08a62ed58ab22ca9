"""Arrays and numbers in files: exact floats and base64 arrays in JSON, and named arrays in safetensors files.

A file of named arrays has settings and a checksum in its header; any tool reads it, and nothing in it can run::

    8 bytes   length of the header, little-endian
    header    JSON: "__metadata__": a checksum, what the file is, and its settings as JSON text;
              name -> dtype, shape, begin and end
    data      the arrays, one behind the other

The checksum is that of the whole file, taken while its own sixteen digits were zeros; it comes first, so it is found
and checked before anything else is believed.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import struct
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex, local_path, parse_json, publish

#: No count of rows is larger; what is added up from a few such counts still fits int64.
MAX_COUNT = 2**62
_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode_float(number: float) -> float | str:
    """A float that JSON can hold, exactly.

    >>> encode_float(0.1), encode_float(float("-inf"))
    (0.1, '-inf')
    """
    number = number.item() if isinstance(number, np.generic) else number
    return number if math.isfinite(number) else str(float(number))


def decode_float(value: Any) -> float:
    """The way back; whole numbers stay what they are."""
    if isinstance(value, str) and value in _NAMED:
        return _NAMED[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise CorruptDataError(f"a number of {value.bit_length():,} bits is beyond float64")
        return value
    raise CorruptDataError(f"a number, or one of {list(_NAMED)}, got {value!r:.60}")


def encode_array(array: NDArray[Any]) -> str:
    """The bytes of a flat array, little-endian, as base64."""
    return base64.b64encode(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def decode_array(text: Any, dtype: Any) -> NDArray[Any]:
    """The way back; a copy that may be written to."""
    try:
        data = base64.b64decode(text, validate=True)
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)
    except (binascii.Error, ValueError, TypeError) as error:
        raise CorruptDataError(f"an array as base64, got {str(text)[:40]!r} ({error})") from error


_DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 1_000_000
_CHECKSUM, _KIND, _SETTINGS = "checksum", "poolish", "settings"

_START = b'{"__metadata__": {"checksum": "'
_DIGITS = slice(8 + len(_START), 8 + len(_START) + 16)
_ZEROS = b"0" * 16
_INSTEAD = "fsspec, with which a saved file is copied"


def save_arrays(
    path: str | os.PathLike[str], kind: str, settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write the file; it appears whole or not at all.

    >>> save_arrays(folder / "a.safetensors", "example", {"k": 3}, {"x": np.arange(2.0)})
    >>> load_arrays(folder / "a.safetensors", "example")
    ({'k': 3}, {'x': array([0., 1.])})
    """
    about = {_CHECKSUM: _ZEROS.decode(), _KIND: kind, _SETTINGS: json.dumps(settings, allow_nan=False)}
    header: dict[str, Any] = {"__metadata__": about}
    parts, end = [], 0
    for name, array in arrays.items():
        part = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        begin, end = end, end + part.nbytes
        dtype = _NAMES[part.dtype.str]
        header[name] = {"dtype": dtype, "shape": list(part.shape), "data_offsets": [begin, end]}
        parts.append(part.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with publish(local_path(path, f"{kind} file", instead=_INSTEAD)) as file:
        file.write(sealed(b"".join([struct.pack("<Q", len(text)), text, *parts])))


def is_arrays_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as those that ``save_arrays`` writes."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(_DIGITS.start)[8:] == _START


def sealed(data: bytes) -> bytes:
    """The bytes of a file with the checksum that they should have."""
    whole = bytearray(data)
    whole[_DIGITS] = _ZEROS
    whole[_DIGITS] = checksum_hex(whole).encode()
    return bytes(whole)


def load_arrays(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The settings and arrays of a file of that kind; anything else is a ``CorruptDataError``."""
    path = local_path(path, f"{kind} file", instead=_INSTEAD)
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise CorruptDataError(f"{os.fspath(path)}: not a regular file; give the path of a file of {kind}")
    data = path.read_bytes()
    try:
        return _parsed(data, kind, os.fspath(path))
    except CorruptDataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise CorruptDataError(f"{os.fspath(path)}: not a file of {kind} ({error}); save it again") from error


def _parsed(data: bytes, kind: str, path: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    (length,) = struct.unpack_from("<Q", data)
    if length > _MAX_HEADER or 8 + length > len(data):
        raise CorruptDataError(
            f"{path}: a header of {length:,} bytes in a file of {len(data):,}; it was cut or is no file"
        )
    if data[8 : _DIGITS.start] != _START:
        raise CorruptDataError(f"{path}: it has no checksum where a file of {kind} has one; save it again")
    if sealed(data) != data:
        raise CorruptDataError(f"{path}: its checksum is not that of its bytes, so it is damaged; save it again")
    header = parse_json(data[8 : 8 + length].decode("utf-8"), path)
    about = header.pop("__metadata__")
    if about[_KIND] != kind:
        raise CorruptDataError(f"{path}: holds {about[_KIND]!r:.60}, not {kind}")
    arrays = {}
    body = memoryview(data)[8 + length :]
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        are_whole = all(type(n) is int and n >= 0 for n in (begin, end, *shape))
        if not are_whole or end > len(body) or end - begin != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
            raise CorruptDataError(f"{path}: array {name!r:.60} does not lie in the file")
        arrays[name] = np.frombuffer(body[begin:end], dtype).reshape(shape).astype(dtype.newbyteorder("="))
    return parse_json(about[_SETTINGS], path), arrays
