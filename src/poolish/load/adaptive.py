"""A fixed batch in as many micro-batches as the memory asks for.

Which rows are in a batch decides what is learned, so it must not depend on how much memory was free. Therefore the
batch comes first, and is only cut here: the parts in order are the batch, however large they are::

    free memory x fraction / bytes of a sample  -->  size  --halved after each out-of-memory error-->  a size that works

The size is remembered, and never grows by itself: what failed once would fail again, in the middle of a night.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from poolish import torch_bridge
from poolish.errors import ConfigError, ResumeError, SchemaError
from poolish.load import materialised
from poolish.load.structures import field_values, is_structure, rebuilt

__all__ = ["AdaptiveBatches", "is_out_of_memory"]

Result = TypeVar("Result")

#: What the allocators of torch say; the others have a type of their own.
_SAYINGS = ("out of memory", "can't allocate memory")


class AdaptiveBatches:
    """Cuts batches into micro-batches that fit into ``fraction`` of the free memory of ``device``.

    A batch is an array or list of rows, or a dict, tuple or dataclass of them; what has no rows (a number) is in every
    part. ``measure(batch)`` gives the bytes that working on one row takes: by default those of the row itself, which is
    too few for training, so that the first batch is halved until it fits. ``initial`` is a first size instead of all
    that. ``free_memory()`` gives the bytes that are free.

    >>> adaptive = AdaptiveBatches(initial=2)
    >>> list(adaptive.split([1, 2, 3, 4, 5]))
    [[1, 2], [3, 4], [5]]
    >>> def train(rows):
    ...     if len(rows) > 1:
    ...         raise MemoryError
    ...     return sum(rows)
    >>> adaptive.run([1, 2, 3], train), adaptive
    ([1, 2, 3], <AdaptiveBatches: up to 1 row at a time>)
    """

    def __init__(
        self,
        device: Any = None,
        fraction: float = 0.8,
        initial: int | None = None,
        measure: Callable[[Any], float] | None = None,
        free_memory: Callable[[], int] | None = None,
    ) -> None:
        if not 0 < fraction <= 1:
            raise ConfigError(f"fraction must be more than 0 and at most 1, got {fraction!r}")
        self.device, self.fraction = device, fraction
        self._measure = measure or _bytes_per_row
        self._free_memory = free_memory or (lambda: _free_memory(device))
        self._size = None if initial is None else _check_size(initial, "initial")

    @property
    def size(self) -> int | None:
        """The most rows at a time; None until the first batch was seen."""
        return self._size

    def split(self, batch: Any) -> Iterator[Any]:
        """The micro-batches of ``batch``, in order; none if it has no rows."""
        start, n_rows = 0, _n_rows(batch)
        while start < n_rows:
            size = self._size_for(batch)
            yield _cut(batch, start, start + size)
            start += size

    def run(self, batch: Any, fn: Callable[[Any], Result]) -> list[Result]:
        """``fn`` of each micro-batch. One that has not enough memory is done again in halves, those before it are not.

        Whatever ``fn`` did before the error is done twice, so it should leave no trace before it is through. A backward
        pass does leave one; ``GradientAccumulator.backward`` notices, and refuses to go on with half a gradient.
        """
        results: list[Result] = []
        tried: list[int] = []
        start, n_rows = 0, _n_rows(batch)
        while start < n_rows:
            stop = min(start + self._size_for(batch), n_rows)
            try:
                results.append(fn(_cut(batch, start, stop)))
            except Exception as error:
                tried.append(stop - start)
                if not is_out_of_memory(error):
                    raise
                if stop - start == 1:
                    sizes = ", ".join(map(str, tried))
                    error.add_note(
                        f"row {start} of a batch of {n_rows} does not fit alone; tried {sizes} rows at a time"
                    )
                    raise
            else:
                start = stop
                continue
            # Outside of the except: the error holds every frame, and with them the memory that we need.
            self._size = (stop - start + 1) // 2
            torch_bridge.release_device_memory()
        return results

    def grow(self, size: int) -> None:
        """Allow up to ``size`` rows at a time, after memory has become free; an error halves it again."""
        self._size = _check_size(size, "size")

    def state_dict(self) -> dict[str, Any]:
        """What was learned about the memory."""
        return {"size": self._size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the size of a former run."""
        is_state = isinstance(state, Mapping) and set(state) == {"size"}
        if not is_state or not (state["size"] is None or _is_size(state["size"])):
            raise ResumeError(
                f"this is no state of AdaptiveBatches: {reprlib.repr(state)} instead of a size; "
                "pass what state_dict() gave"
            )
        self._size = state["size"]

    def __repr__(self) -> str:
        if self._size is None:
            return "<AdaptiveBatches: no batch seen yet>"
        return f"<AdaptiveBatches: up to {self._size:,} row{'s' if self._size > 1 else ''} at a time>"

    def _size_for(self, batch: Any) -> int:
        if self._size is None:
            per_row = self._measure(batch)
            self._size = max(1, int(self._free_memory() * self.fraction / max(per_row, 1)))
        return self._size


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch could help.

    >>> is_out_of_memory(RuntimeError("CUDA error: out of memory")), is_out_of_memory(RuntimeError("no kernel image"))
    (True, False)
    """
    torch = torch_bridge.loaded()
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error) for saying in _SAYINGS)


def _free_memory(device: Any) -> int:
    if device is None or str(device).startswith("cpu"):
        return materialised.free_bytes()
    if not str(device).startswith("cuda"):
        raise ConfigError(f"device {str(device)!r}: its free memory is unknown; pass initial or free_memory")
    return torch_bridge.free_device_bytes(device)


def _columns(batch: Any) -> Iterator[Any]:
    """Whatever in a batch has rows."""
    if isinstance(batch, Mapping):
        for value in batch.values():
            yield from _columns(value)
    elif isinstance(batch, tuple) or is_structure(batch):
        for value in field_values(batch) if is_structure(batch) else batch:
            yield from _columns(value)
    elif _has_rows(batch):
        yield batch


def _has_rows(value: Any) -> bool:
    if isinstance(value, str | bytes) or not hasattr(value, "__getitem__"):
        return False
    return getattr(value, "ndim", 1) > 0


def _n_rows(batch: Any) -> int:
    lengths = {len(column) for column in _columns(batch)}
    if not lengths:
        raise SchemaError(f"a batch of {type(batch).__name__} has no rows to cut; pass arrays, lists or a dict of them")
    if len(lengths) > 1:
        raise SchemaError(f"the columns of a batch have {sorted(lengths)} rows; they must have the same number")
    return lengths.pop()


def _cut(batch: Any, start: int, stop: int) -> Any:
    if isinstance(batch, Mapping):
        return {name: _cut(value, start, stop) for name, value in batch.items()}
    if is_structure(batch):
        return rebuilt(batch, (_cut(value, start, stop) for value in field_values(batch)))
    if isinstance(batch, tuple):
        return tuple(_cut(value, start, stop) for value in batch)
    return batch[start:stop] if _has_rows(batch) else batch


def _bytes_per_row(batch: Any) -> float:
    return sum(_n_bytes(column) for column in _columns(batch)) / max(_n_rows(batch), 1)


def _n_bytes(column: Any) -> int:
    n_bytes = getattr(column, "nbytes", None)
    return sum(map(sys.getsizeof, column)) if n_bytes is None else int(n_bytes)


def _check_size(size: Any, what: str) -> int:
    if not _is_size(size):
        raise ConfigError(f"{what} must be a whole number of rows from 1 up, got {size!r}")
    return int(size)


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1
