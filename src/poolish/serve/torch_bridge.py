"""Batches as torch tensors: over the batch's own memory on the CPU, through pinned memory onto a CUDA device.

    file --read--> pinned memory --copy on a stream of its own--> device memory        while the step before still runs
                        ^                                             |
                        `------- used again once the copy is over ----'

One copy carries the whole batch; its tensors are views of it. The trainer's stream waits for the copy on the device, so
``get_batch`` itself waits for nothing but the file.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import torch

from poolish.serve.batch_file import Array
from poolish.serve.split_reader import Batch

_ROUND = 2**20
_CARRIED = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}  # NumPy has none of them: their bits came in integers


def tensors(batch: Batch, device: torch.device | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a batch; without a device (or on the CPU) they share its memory, which is theirs to change."""
    on_cpu = {name: _tensor(dtype, array) for name, (dtype, array) in batch.columns.items()}
    if device is None or device.type == "cpu":
        return on_cpu
    return {name: tensor.to(device) for name, tensor in on_cpu.items()}


def _tensor(dtype: str, array: Array) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype in _CARRIED else tensor


class CudaStage:
    """Copies batches to a CUDA device ahead of their use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned = _PinnedMemory()

    def allocate(self, n_bytes: int) -> Array:
        """Pinned memory to read a file into."""
        return self._pinned.take(n_bytes)

    def begin(self, batch: Batch) -> tuple[Batch, torch.Tensor, torch.cuda.Event]:
        """Start copying a batch that was read into memory of ``allocate``."""
        assert isinstance(batch.data, np.ndarray)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            copied = torch.from_numpy(batch.data).to(self._device, non_blocking=True)
            is_over = torch.cuda.Event()  # type: ignore[no-untyped-call]
            is_over.record(self._stream)
        self._pinned.give_back(batch.data, is_over)
        return batch, copied, is_over

    def finish(self, staged: tuple[Batch, torch.Tensor, torch.cuda.Event]) -> dict[str, torch.Tensor]:
        """The tensors on the device, to be used on the current stream."""
        batch, copied, is_over = staged
        current = torch.cuda.current_stream(self._device)
        current.wait_event(is_over)
        # The memory was allocated on our stream: it must not be given away before the trainer's has used it.
        copied.record_stream(current)
        return {name: _on_device(copied, batch, dtype, array) for name, (dtype, array) in batch.columns.items()}


def _on_device(copied: torch.Tensor, batch: Batch, dtype: str, array: Array) -> torch.Tensor:
    assert isinstance(batch.data, np.ndarray)
    start = array.ctypes.data - batch.data.ctypes.data
    part = copied[start : start + array.nbytes]
    return part.view(getattr(torch, dtype)).reshape(array.shape)


class _PinnedMemory:
    """Pinned buffers that are used again: to pin one costs more than to fill it.

    What is lent and never comes back, because the batch was corrupt, is freed with the array that was lent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Array] = []
        self._copying: deque[tuple[torch.cuda.Event, Array]] = deque()  # in the order of the stream

    def take(self, n_bytes: int) -> Array:
        with self._lock:
            while self._copying and self._copying[0][0].query():  # type: ignore[no-untyped-call]
                self._free.append(self._copying.popleft()[1])
            fitting = [i for i, buffer in enumerate(self._free) if n_bytes <= buffer.nbytes <= 2 * n_bytes + _ROUND]
            buffer = self._free.pop(fitting[0]) if fitting else None
        if buffer is None:
            buffer = torch.empty(-(-n_bytes // _ROUND) * _ROUND, dtype=torch.uint8, pin_memory=True).numpy()
        return buffer[:n_bytes]

    def give_back(self, lent: Array, when: torch.cuda.Event) -> None:
        assert isinstance(lent.base, np.ndarray)  # the whole buffer
        with self._lock:
            self._copying.append((when, lent.base))
