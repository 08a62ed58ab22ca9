"""Batches as torch tensors. The only place in load, besides memory and gradients, that imports torch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from poolish.load.structures import field_values, is_structure, rebuilt
from poolish.rows.torch_bridge import to_tensor

_CARRIED = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}  # NumPy has none of them: their bits came in integers


def cast(array: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """A tensor over memory that is the batch's own."""
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype in _CARRIED else tensor


def convert(name: str, array: pa.Array) -> Any:
    """A column that came from Arrow: tensors for numbers, lists for text."""
    return to_tensor(name, array, None, copy=False)


def tensors(columns: Any) -> Any:
    """Arrays as tensors, wherever they are in a batch; what is no number stays as it is."""
    return each_column(_tensor, columns)


def _tensor(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufc":
        return torch.from_numpy(values if values.flags.writeable else values.copy())
    return values


def each_column(change: Callable[[Any], Any], columns: Any) -> Any:
    """A batch with ``change`` applied to every column, also inside dicts, tuples, dataclasses and lists of columns."""
    if isinstance(columns, Mapping):
        return {name: each_column(change, values) for name, values in columns.items()}
    if is_structure(columns):
        return rebuilt(columns, (each_column(change, values) for values in field_values(columns)))
    if type(columns) is tuple:
        return tuple(each_column(change, values) for values in columns)
    if isinstance(columns, list) and columns and isinstance(columns[0], (np.ndarray, torch.Tensor)):
        return [change(values) for values in columns]
    return change(columns)


class Stage:
    """Moves batches to a device, by way of pinned memory and on a stream of its own where the device is a GPU."""

    def __init__(self, device: Any, pin_memory: bool) -> None:
        self.device = None if device is None else torch.device(device)
        self._pins = torch.cuda.is_available() and (pin_memory or self._is_cuda)
        self._stream = torch.cuda.Stream(self.device) if self._is_cuda else None  # type: ignore[no-untyped-call]

    @property
    def _is_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def begin(self, columns: Any) -> tuple[Any, Any]:
        """Start moving a batch, in whatever thread; the second value is what ``finish`` waits for."""
        if self._pins:
            columns = each_column(lambda v: v.pin_memory() if isinstance(v, torch.Tensor) else v, columns)
        if self._stream is None:
            return each_column(self._moved, columns), None
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            moved = each_column(self._moved, columns)
            is_over = torch.cuda.Event()  # type: ignore[no-untyped-call]
            is_over.record(self._stream)
        return moved, is_over

    def _moved(self, values: Any) -> Any:
        if not isinstance(values, torch.Tensor) or self.device is None:
            return values
        return values.to(self.device, non_blocking=True)

    def finish(self, staged: tuple[Any, Any]) -> Any:
        """The batch, to be used on the current stream."""
        columns, is_over = staged
        if is_over is None:
            return columns
        current = torch.cuda.current_stream(self.device)
        current.wait_event(is_over)
        # Its memory was allocated on our stream: it must not be given away before the trainer's has used it.
        each_column(lambda v: v.record_stream(current) if isinstance(v, torch.Tensor) else None, columns)
        return columns


def worker_place() -> tuple[int, int]:
    """Which of how many worker processes of a torch DataLoader this is; one of one outside of them."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def make_iterable(class_: type) -> None:
    """The DataLoader of torch takes objects of this class as datasets to iterate over."""
    IterableDataset.register(class_)
