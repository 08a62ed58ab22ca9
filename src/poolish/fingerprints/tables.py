"""Fingerprints of tables: equal for equal values, however these lie in memory.

The same rows come in chunks of any size, as slices of something larger, with anything at all where a null is. So each
column is split into lanes, which are hashed as if all chunks were one:

    nulls      the numbers of the rows that have no value
    lengths    how long each text or list is
    values     the bytes of all values that are there, and for what is nested the lanes of its parts

Values are hashed where they lie; only a chunk with nulls in it is copied without them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
import xxhash
from numpy.typing import NDArray

from poolish.files import checksum_hex
from poolish.schema import offsets_of
from poolish.schema.types import is_rare


def content_of(table: pa.Table, ids: NDArray[np.int64] | None = None) -> str:
    """A fingerprint of all values of a table and of its columns, and of the rows' ids where they have some.

    >>> numbers = pa.table({"n": [1, 2, None, 4]})
    >>> content_of(numbers) == content_of(pa.concat_tables([numbers.slice(0, 1), numbers.slice(1)]))
    True
    >>> content_of(numbers) == content_of(pa.table({"n": [1, 2, 0, 4]}))
    False
    """
    lanes = _Lanes()
    for i, column in enumerate(table.columns):
        for chunk in column.chunks:
            lanes.add(str(i), chunk)
    if ids is not None:
        lanes.hash("ids", np.ascontiguousarray(ids))
    shape = repr((table.num_rows, lanes.digests())).encode()
    return checksum_hex(table.schema.serialize(), shape)


class _Lanes:
    """What was hashed so far, by the path of a part: ``2/item/values`` is what the lists in column 2 hold."""

    def __init__(self) -> None:
        self._hashers: defaultdict[str, Any] = defaultdict(xxhash.xxh3_128)
        self._lengths: defaultdict[str, int] = defaultdict(int)

    def digests(self) -> list[tuple[str, str | int]]:
        """All that was hashed, and how many values each part has."""
        hashed = sorted((path, hasher.hexdigest()) for path, hasher in self._hashers.items())
        return [*hashed, *sorted(self._lengths.items())]

    def hash(self, path: str, data: Any) -> None:
        """Go on with a lane. One that nothing was ever put into is as if it were not there."""
        view = memoryview(data)
        if view.nbytes:
            self._hashers[path].update(view)

    def add(self, path: str, array: pa.Array) -> None:
        """Go on with a part of a column."""
        array = _plain(array)
        n_before = self._lengths[path]
        self._lengths[path] += len(array)
        if kinds.is_null(array.type):
            return
        if is_rare(array.type):
            for value in array.to_pylist():
                self.hash(f"{path}/values", f"{value!r}\n".encode(errors="surrogatepass"))
            return
        if array.null_count:
            missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            self.hash(f"{path}/nulls", missing.astype(np.int64) + n_before)
            array = array.drop_null()
        self._add_values(path, array)

    def _add_values(self, path: str, array: pa.Array) -> None:
        """An array without nulls."""
        type_ = array.type
        if kinds.is_struct(type_):
            for i, part in enumerate(array.flatten()):
                self.add(f"{path}/{i}", part)
        elif kinds.is_fixed_size_list(type_):
            self.add(f"{path}/item", array.flatten())
        elif kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_map(type_):
            ends = array.offsets.to_numpy()
            self.hash(f"{path}/lengths", np.diff(ends))
            self.add(f"{path}/item", array.values.slice(int(ends[0]), int(ends[-1] - ends[0])))
        elif _is_text(type_):
            ends = offsets_of(array)
            self.hash(f"{path}/lengths", np.diff(ends))
            if ends[-1] > ends[0]:
                self.hash(f"{path}/values", array.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0])))
        elif kinds.is_boolean(type_):
            self.hash(f"{path}/values", array.to_numpy(zero_copy_only=False))
        elif len(array) and type_.bit_width:
            width = type_.bit_width // 8
            self.hash(f"{path}/values", array.buffers()[1].slice(array.offset * width, len(array) * width))


def _plain(array: pa.Array) -> pa.Array:
    """The same values without what is only a way to keep them."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if kinds.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    if kinds.is_run_end_encoded(array.type):
        return _plain(pc.run_end_decode(array))
    if kinds.is_string_view(array.type) or kinds.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def _is_text(type_: pa.DataType) -> bool:
    texts = (kinds.is_string, kinds.is_binary, kinds.is_large_string, kinds.is_large_binary)
    return any(is_kind(type_) for is_kind in texts)
