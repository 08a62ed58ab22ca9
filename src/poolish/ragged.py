"""Rows of different lengths as two arrays: all values one behind the other, and where each row begins.

    rows      [3, 1]  []  [4, 1, 5]
    values    3 1 4 1 5
    offsets   0 2 2 5               row i is values[offsets[i]:offsets[i + 1]]

Two arrays are copied to a device, pinned and written to a file as fast as any other two; a list of arrays is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from poolish import torch_bridge
from poolish.errors import SchemaError
from poolish.torch_bridge import is_torch_tensor


class Ragged:
    """A column whose rows differ in their first dimension; ``values`` and ``offsets`` are both arrays or both tensors.

    Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``, of shape ``[lengths[i], *values.shape[1:]]``. One row and
    several consecutive rows (``ragged[2:5]``) share the memory of the column, rows chosen by numbers or a mask do not.
    ``to`` and ``pin_memory`` let frameworks move a column as they move a tensor.

    >>> column = Ragged(np.array([3, 1, 4, 1, 5]), np.array([0, 2, 2, 5]))
    >>> len(column), column.lengths.tolist(), column[2].tolist()
    (3, [2, 0, 3], [4, 1, 5])
    >>> column.padded(-1)
    array([[ 3,  1, -1],
           [-1, -1, -1],
           [ 4,  1,  5]])
    >>> column[[2, 0]].values.tolist()
    [4, 1, 5, 3, 1]
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Any, offsets: Any) -> None:
        self.values, self.offsets = values, offsets

    @property
    def lengths(self) -> Any:
        """How long each row is."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def nbytes(self) -> int:
        """The bytes of both arrays."""
        return int(self.values.nbytes + self.offsets.nbytes)

    def padded(self, value: Any = 0, *, length: int | None = None) -> Any:
        """One array ``[rows, length, ...]``, in which ``value`` follows the values of each row.

        ``length`` is that of the longest row by default; a row that is longer is a ``SchemaError``.
        """
        n_values = self.lengths
        longest = int(n_values.max()) if len(self) else 0
        width = longest if length is None else length
        if longest > width:
            raise SchemaError(
                f"row {int(n_values.argmax())} has {longest} values, length={length}; cut it, or pad to more"
            )
        shape = (len(self), width, *self.values.shape[1:])
        padded = self.values.new_full(shape, value) if self._is_torch else np.full(shape, value, self.values.dtype)
        padded[self._numbers(width)[None] < n_values[:, None]] = self.values
        return padded

    def take(self, numbers: Any) -> Ragged:
        """The rows with these numbers, in this order; a copy."""
        lengths, begins = self.lengths[numbers], self.offsets[:-1][numbers]
        offsets = self._numbers(len(lengths) + 1)
        offsets[0], offsets[1:] = 0, lengths.cumsum(0)
        shifts = begins - offsets[:-1]
        shifts = shifts.repeat_interleave(lengths) if self._is_torch else np.repeat(shifts, lengths)
        return Ragged(self.values[shifts + self._numbers(len(shifts))], offsets)

    def to(self, *args: Any, **options: Any) -> Ragged:
        """The values on another device or of another dtype, as ``torch.Tensor.to`` has it; the offsets go with them."""
        values = self.values.to(*args, **options)
        return Ragged(values, self.offsets.to(values.device, non_blocking=options.get("non_blocking", False)))

    def pin_memory(self) -> Ragged:
        """The column in pinned memory, for columns of tensors."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    def problem(self) -> str | None:
        """Why these are not the values and offsets of a column; None where they are."""
        offsets = self.offsets
        if offsets.ndim != 1 or not len(offsets) or not self.values.ndim:
            return f"values {list(self.values.shape)} and offsets {list(offsets.shape)} are no column"
        if offsets[0] != 0:
            return f"its offsets begin at {int(offsets[0])}, not at 0"
        falls = np.flatnonzero(offsets[1:] < offsets[:-1])
        if len(falls):
            row = int(falls[0])
            return f"row {row} has offsets that decrease, from {int(offsets[row])} to {int(offsets[row + 1])}"
        if offsets[-1] != len(self.values):
            return f"its offsets end at {int(offsets[-1])}, its values at {len(self.values)}"
        return None

    @property
    def _is_torch(self) -> bool:
        return is_torch_tensor(self.values)

    def _numbers(self, n: int) -> Any:
        """0 to n - 1 as int64, in the library and on the device of the offsets."""
        if self._is_torch:
            return torch_bridge.loaded().arange(n, device=self.offsets.device)
        return np.arange(n)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, which: Any) -> Any:
        """One row by its number, as an array; some rows by a slice, numbers or a mask, as a column."""
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            if step != 1:
                return self.take(list(range(start, stop, step)))
            offsets = self.offsets[start : max(start, stop) + 1]
            return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        if np.ndim(which) == 0 and not isinstance(which, (list, tuple)):
            i = range(len(self))[which]  # IndexError, and numbers from the end
            return self.values[int(self.offsets[i]) : int(self.offsets[i + 1])]
        return self.take(which)

    def __iter__(self) -> Iterator[Any]:
        bounds = self.offsets.tolist()
        return (self.values[begin:end] for begin, end in itertools.pairwise(bounds))

    def __repr__(self) -> str:
        dtype = str(self.values.dtype).removeprefix("torch.")
        sizes = ", ".join(map(str, ("any", *self.values.shape[1:])))
        return f"<Ragged of {len(self)} rows, {dtype}[{sizes}], {len(self.values)} values>"
