"""Samples as bytes and back, without code in them: what is read can only be data.

    8 bytes   length of the JSON
    JSON      the shape of the sample: numbers and text as they are, {"a": [dtype, shape]} where an array stood
    bytes     of the arrays and byte strings, one behind the other

Exactly what went in comes out, types included; what JSON and arrays cannot hold exactly is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from poolish.errors import CorruptDataError, SchemaError

_KINDS = "biufcSUmM"
_PLAIN = (str, int, float, bool, type(None))


def encode(sample: Any) -> bytes:
    """A sample as bytes.

    >>> decode(encode({"grain": ("rye", 2), "image": np.zeros((2, 3), np.uint8)}))
    {'grain': ('rye', 2), 'image': array([[0, 0, 0], [0, 0, 0]], dtype=uint8)}
    >>> encode({"grain": {1, 2}})
    Traceback (most recent call last):
    poolish.errors.SchemaError: sample['grain']: files keep dicts, lists and tuples of arrays, numbers, text, bytes and
    None, got set; convert it, or cache in memory (path=None)
    """
    buffers: list[bytes] = []
    shape = json.dumps(_shape(sample, "sample", buffers), separators=(",", ":")).encode("ascii")
    return b"".join([len(shape).to_bytes(8, "little"), shape, *buffers])


def decode(data: bytes | memoryview) -> Any:
    """The sample that ``encode`` was given; arrays are new ones, and writable."""
    view = memoryview(data)
    n_shape = int.from_bytes(view[:8], "little")
    try:
        shape = json.loads(bytes(view[8 : 8 + n_shape]))
        reader = _Reader(view[8 + n_shape :])
        sample = reader.value(shape)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise CorruptDataError(f"not a sample ({error})") from None
    return sample


def _shape(value: Any, place: str, buffers: list[bytes]) -> Any:
    """What stands for a value in the JSON; its bytes go to ``buffers``."""
    if type(value) in _PLAIN:
        return value
    if type(value) is np.ndarray and value.dtype.kind in _KINDS:
        buffers.append(value.tobytes())
        return {"a": [value.dtype.str, list(value.shape)]}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        buffers.append(value.tobytes())
        return {"n": value.dtype.str}
    if type(value) is bytes:
        buffers.append(value)
        return {"b": len(value)}
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        return {"d": [[key, _shape(item, f"{place}[{key!r}]", buffers)] for key, item in value.items()]}
    if type(value) in (list, tuple):
        items = [_shape(item, f"{place}[{i}]", buffers) for i, item in enumerate(value)]
        return {"l" if type(value) is list else "t": items}
    got = f"{type(value).__name__} of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise SchemaError(
        f"{place}: files keep dicts, lists and tuples of arrays, numbers, text, bytes and None, got {got}; "
        "convert it, or cache in memory (path=None)"
    )


class _Reader:
    """Walks the JSON and takes the bytes in the order they were written."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._offset = view, 0

    def value(self, shape: Any) -> Any:
        if not isinstance(shape, dict):
            return shape
        ((tag, inside),) = shape.items()
        if tag == "a":
            dtype = np.dtype(inside[0])
            n_bytes = dtype.itemsize * math.prod(inside[1])
            return np.frombuffer(self._take(n_bytes), dtype).reshape(inside[1]).copy()
        if tag == "n":
            dtype = np.dtype(inside)
            return np.frombuffer(self._take(dtype.itemsize), dtype)[0]
        if tag == "b":
            return bytes(self._take(inside))
        if tag == "d":
            return {key: self.value(item) for key, item in inside}
        items: Iterator[Any] = (self.value(item) for item in inside)
        if tag == "l":
            return list(items)
        if tag == "t":
            return tuple(items)
        raise ValueError(f"tag {tag!r}")

    def _take(self, n_bytes: int) -> memoryview:
        begin, self._offset = self._offset, self._offset + n_bytes
        if self._offset > len(self._view):
            raise ValueError("its bytes are cut off")
        return self._view[begin : self._offset]
