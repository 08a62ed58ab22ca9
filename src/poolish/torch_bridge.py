"""The one module that uses torch: recognising it, arrays as tensors, copies to a device, ranks, memory.

torch is optional and slow to import, so functions import it when they run, and ``loaded`` recognises it without.

    array --pinned memory--> copy on a stream of its own --> device memory         while the previous step runs
                 ^                                             |
                 `------- reused once the copy is complete ----'

The trainer's stream waits for the copy on the device, so the caller's thread waits for nothing.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]
#: Applies a function to every value of a batch.
Each = Callable[[Callable[[Any], Any], Any], Any]

#: dtypes that NumPy lacks: arrays carry their bits as integers.
CARRIED = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})

#: Pinned buffers are multiples of this size.
_ROUND = 2**20


def loaded() -> Any:
    """Return torch if the program has imported it, else None: no tensor exists before that."""
    return sys.modules.get("torch")


def is_installed() -> bool:
    """Return whether torch can be imported, without importing it."""
    return loaded() is not None or importlib.util.find_spec("torch") is not None


def is_torch_tensor(value: object) -> bool:
    """Return whether ``value`` is a ``torch.Tensor``, without importing torch.

    >>> is_torch_tensor([1, 2])
    False
    """
    torch = loaded()
    # A thread may be importing it now.
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def from_array(array: Array, dtype: str = "") -> torch.Tensor:
    """Return a tensor over the array's memory; ``dtype`` is the meaning of bits that NumPy cannot name.

    Read-only memory is copied, because torch cannot protect it.
    """
    import torch

    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(getattr(torch, dtype)) if dtype in CARRIED else tensor


def to_bits(tensor: Any) -> tuple[Array, str]:
    """Return the values of a tensor on any device as NumPy stores them, and their dtype: the inverse of from_array."""
    import torch

    tensor, dtype = tensor.detach().cpu(), str(tensor.dtype).removeprefix("torch.")
    if dtype in CARRIED:
        tensor = tensor.view(torch.uint16 if dtype == "bfloat16" else torch.uint8)
    return tensor.numpy(), dtype


def flat(tensors: Sequence[Any]) -> torch.Tensor:
    """Return all values of some tensors of one dtype, one behind the other."""
    import torch

    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def on_host(value: Any) -> Any:
    """Return a tensor on any device as an array; any other value as it is.

    >>> on_host([1, 2])
    [1, 2]
    """
    return value.detach().cpu().numpy() if is_torch_tensor(value) else value


def empty_bytes(n_bytes: int, dtype: str, *, pin: bool) -> tuple[Array, torch.Tensor]:
    """Return new memory as bytes to be filled, and the tensor of ``dtype`` that reads it.

    Pinned memory comes from torch's own cache: it is used again once all copies out of it are complete.
    """
    import torch

    memory = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=pin)
    return memory.numpy(), memory.view(getattr(torch, dtype))


# Copies to a device -----------------------------------------------------------------------------------------------


class DeviceStage:
    """Copies batches to a device ahead of their use; on CUDA on its own stream, out of pinned memory.

    ``each(change, batch)`` applies a function to every value of a batch and returns the batch of its results; by
    default a batch is one tensor. ``pin`` copies tensors to pinned memory first, by default if the device is CUDA.
    """

    def __init__(
        self, device: Any, *, pin: bool | None = None, each: Each = lambda change, tensor: change(tensor)
    ) -> None:
        import torch

        self._cuda, self._each = torch.cuda, each
        self.device = None if device is None else torch.device(device)
        self.is_cuda = self.device is not None and self.device.type == "cuda"
        if self.device is not None and self.is_cuda and self.device.index is None:
            # Each thread has a current device of its own; ours is the one of the thread that asked for "cuda".
            self.device = torch.device("cuda", torch.cuda.current_device())
        #: Whether tensors are copied out of pinned memory.
        self.pins = torch.cuda.is_available() and (self.is_cuda if pin is None else pin)
        self._stream = torch.cuda.Stream(self.device) if self.is_cuda else None  # type: ignore[no-untyped-call]

    def begin(self, batch: Any) -> tuple[Any, Any]:
        """Start copying a batch, in any thread; the second value is the event that ``finish`` waits for."""
        if self.pins:
            batch = self._each(_pinned, batch)
        if self._stream is None:
            return self._each(self._moved, batch), None
        with self._cuda.device(self.device), self._cuda.stream(self._stream):
            moved = self._each(self._moved, batch)
            is_copied = self._cuda.Event()  # type: ignore[no-untyped-call]
            is_copied.record(self._stream)
        return moved, is_copied

    def _moved(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if is_torch_tensor(value) and self.device is not None else value

    def finish(self, staged: tuple[Any, Any]) -> Any:
        """Return the batch, for use on the current stream."""
        batch, is_copied = staged
        if is_copied is not None:
            current = self._cuda.current_stream(self.device)
            current.wait_event(is_copied)
            # Its memory belongs to our stream: it must not be reused before the trainer's stream is done with it.
            self._each(lambda value: value.record_stream(current) if is_torch_tensor(value) else None, batch)
        return batch


def _pinned(value: Any) -> Any:
    return value.pin_memory() if is_torch_tensor(value) else value  # itself, if it is pinned already


class PinnedMemory:
    """Pinned buffers that are reused: pinning one costs more than filling it.

    A buffer that is never returned, because its batch was corrupt, is freed with the array that was lent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Array] = []
        self._copying: deque[tuple[Any, Array]] = deque()  # in the order of the stream

    def take(self, n_bytes: int) -> Array:
        """Return ``n_bytes`` of pinned memory."""
        import torch

        with self._lock:
            while self._copying and self._copying[0][0].query():
                self._free.append(self._copying.popleft()[1])
            fitting = [i for i, buffer in enumerate(self._free) if n_bytes <= buffer.nbytes <= 2 * n_bytes + _ROUND]
            buffer = self._free.pop(fitting[0]) if fitting else None
        if buffer is None:
            buffer = torch.empty(-(-n_bytes // _ROUND) * _ROUND, dtype=torch.uint8, pin_memory=True).numpy()
        return buffer[:n_bytes]

    def give_back(self, lent: Array, is_copied: Any) -> None:
        """Reuse memory of ``take`` once the event ``is_copied`` has happened."""
        assert isinstance(lent.base, np.ndarray)  # the whole buffer
        with self._lock:
            self._copying.append((is_copied, lent.base))


def view_of(copied: torch.Tensor, start: int, array: Array, dtype: str) -> torch.Tensor:
    """Return the tensor at byte ``start`` of a copied buffer, with the shape of ``array``."""
    import torch

    return copied[start : start + array.nbytes].view(getattr(torch, dtype)).reshape(array.shape)


# Memory -----------------------------------------------------------------------------------------------------------


def free_device_bytes(device: Any) -> int:
    """Return the bytes that torch can still take: free on the device, or reserved and unused."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def release_device_memory() -> None:
    """Return unused memory to the device: after an error most of it is fragmented. Does nothing without torch."""
    torch = loaded()
    if torch is not None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# Processes --------------------------------------------------------------------------------------------------------


def worker_info() -> tuple[int, int]:
    """Return which of how many worker processes of a torch DataLoader this is; (0, 1) outside of them."""
    torch = loaded()
    info = None if torch is None else torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def is_worker() -> bool:
    """Return whether this is a worker process of a torch DataLoader."""
    torch = loaded()
    return torch is not None and torch.utils.data.get_worker_info() is not None


def register_iterable(class_: type) -> None:
    """Let torch's DataLoader accept objects of this class as iterable datasets."""
    from torch.utils.data import IterableDataset

    IterableDataset.register(class_)


def has_process_group() -> bool:
    """Return whether this process belongs to an initialised group of ``torch.distributed``."""
    torch = loaded()
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


def gather_objects(own: Any, group: Any) -> list[Any]:
    """Return the objects of all ranks of ``group``, in the order of the ranks."""
    from torch import distributed

    gathered: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, own, group=group)
    return gathered


def broadcast(own: torch.Tensor | None, layout: Any, rank: int, device: Any, group: Any) -> torch.Tensor:
    """Return the tensor of ``rank`` on all ranks of ``group``; ``layout`` is its shape and dtype."""
    import torch
    from torch import distributed

    shape, dtype = layout
    tensor = torch.empty(shape, dtype=dtype, device=device) if own is None else own.contiguous()
    source = rank if group is None else distributed.get_global_rank(group, rank)
    distributed.broadcast(tensor, src=source, group=group)
    return tensor


def own_rank(group: Any) -> int:
    """Return the rank of this process in ``group``; -1 where it is none of its ranks."""
    from torch import distributed

    return int(distributed.get_rank(group))


def n_ranks(group: Any) -> int:
    """Return how many ranks ``group`` has."""
    from torch import distributed

    return int(distributed.get_world_size(group))


def ranks_of(group: Any) -> list[int]:
    """Return the global ranks of ``group``, sorted."""
    from torch import distributed

    return sorted(distributed.get_process_group_ranks(group))


def mesh_ranks(mesh: Any) -> list[int]:
    """Return the global ranks of the whole mesh that ``mesh`` is a dimension of."""
    root_of = getattr(mesh, "_get_root_mesh", None)
    root = mesh if root_of is None else root_of()
    return sorted(int(rank) for rank in root.mesh.flatten().tolist())


def group_store() -> Any:
    """Return the store that all ranks of ``torch.distributed`` share; None without a group, and in worker processes.

    A forked worker of a DataLoader holds its parent's connection to the store; two users would garble it.
    """
    if not has_process_group() or is_worker():
        return None
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
