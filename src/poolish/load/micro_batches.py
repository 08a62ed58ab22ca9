"""A fixed batch in as many micro-batches as the memory asks for, and their gradients as those of one batch.

Which rows are in a batch decides what is learned, so it must not depend on how much memory was free. Therefore the
batch comes first, and is only cut here: the parts in order are the batch, however large they are::

    free memory x fraction / bytes of a sample  -->  size  --halved after each out-of-memory error-->  a size that works

The size is remembered, and never grows by itself: what failed once would fail again, in the middle of a night.

Gradients are added up as sums, and divided once. The loss of a batch is a mean over what counts in it: rows, or the
tokens that are not masked. Micro-batches count differently (the last is shorter, masks differ), so a mean of their
means is another number than the mean of the large batch. Sums have no such trouble::

    micro-batch 1    loss sum 1, count 1  --backward-->  +
    micro-batch 2    loss sum 2, count 2  --backward-->  +    gradients of the sum of everything
    ...                                                  |
    step                                                 `--> divided once by count 1 + count 2 + ..., then applied

So nothing need be known beforehand, neither the counts nor how many micro-batches there will be. Over several processes
it is the same sum: gradients and counts are added over all ranks before the one division.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from poolish import torch_bridge
from poolish.errors import ConfigError, ResumeError, SchemaError
from poolish.load import memory_cache
from poolish.load.batch import field_values, is_structure, map_columns
from poolish.load.dataset import whole_number
from poolish.printable import counted

if TYPE_CHECKING:
    import torch

__all__ = ["AdaptiveBatches", "GradientAccumulator", "is_out_of_memory"]

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
        if not is_state or (state["size"] is not None and whole_number(state["size"], 1) is None):
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
        return memory_cache.free_bytes()
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
    return map_columns(lambda values: values[start:stop] if _has_rows(values) else values, batch, inside_lists=False)


def _bytes_per_row(batch: Any) -> float:
    return sum(_n_bytes(column) for column in _columns(batch)) / max(_n_rows(batch), 1)


def _n_bytes(column: Any) -> int:
    n_bytes = getattr(column, "nbytes", None)
    return sum(map(sys.getsizeof, column)) if n_bytes is None else int(n_bytes)


def _check_size(size: Any, what: str) -> int:
    number = whole_number(size, 1)
    if number is None:
        raise ConfigError(f"{what} must be a whole number of rows from 1 up, got {size!r}")
    return number


class GradientAccumulator:
    """Steps ``optimizer`` once for every ``steps`` micro-batches, with the gradient of all of them as one batch.

    ``backward`` takes the *sum* of the loss (``reduction="sum"``) and what it was summed over. ``step`` steps when the
    group is full; ``flush`` steps with what there is: at the end of an epoch, or, without ``steps``, whenever the
    caller's group is complete. ``before_step(parameters)`` sees the finished gradients, to clip them.

    For DistributedDataParallel pass it as ``model`` and run each forward and backward inside ``micro_batch()``:
    gradients are exchanged once a group, and all ranks must call ``step`` and ``flush`` equally often. ``scaler`` is a
    ``torch.amp.GradScaler``.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> accumulator = GradientAccumulator(torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    >>> for x in torch.ones(3, 4, 2):
    ...     accumulator.backward(model(x).square().sum(), count=len(x))
    ...     accumulator.step()
    False
    True
    False
    >>> accumulator
    <GradientAccumulator: 1 of 2 micro-batches, 1 step so far>
    >>> accumulator.flush()
    True
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        steps: int | None = None,
        *,
        model: Any = None,
        before_step: Callable[[list[torch.Tensor]], object] | None = None,
        scaler: Any = None,
    ) -> None:
        if steps is not None and whole_number(steps, 1) is None:
            raise ConfigError(f"steps must be a whole number from 1 up, or None to step by flush alone, got {steps!r}")
        self.optimizer, self.steps = optimizer, steps
        self._model, self._before_step, self._scaler = model, before_step, scaler
        self._is_parallel = hasattr(model, "no_sync")
        self.n_steps = 0
        self._n_pending = 0
        self._total: Any = 0.0  # a tensor where counts are tensors: no wait for the device before the step
        self._is_exchanged = self._is_spoilt = False

    @property
    def n_pending(self) -> int:
        """How many micro-batches have been added since the last step."""
        return self._n_pending

    @property
    def is_full(self) -> bool:
        """Whether ``step`` would step."""
        return self._n_pending == self.steps

    def micro_batch(self) -> AbstractContextManager[Any]:
        """Around forward and backward: ranks exchange gradients in the last one of a full group alone."""
        is_last = self.steps is not None and self._n_pending + 1 == self.steps
        return self._model.no_sync() if self._is_parallel and not is_last else nullcontext()

    def backward(self, loss_sum: torch.Tensor, count: float | torch.Tensor) -> None:
        """Add the gradients of a loss that is a sum over ``count`` rows, tokens, or weights.

        If it fails before it has changed a gradient (most often: for want of memory), the micro-batch was not added and
        can be tried again. If it fails later, the group is spoilt: only ``reset`` is possible.
        """
        self._check_usable()
        if self.is_full:
            raise RuntimeError(f"the group has its {self.steps} micro-batches; call step() before the next backward()")
        if loss_sum.ndim:
            raise ValueError(
                f"the loss has shape {tuple(loss_sum.shape)}, it must be one number; sum it (reduction='sum')"
            )
        if not self._n_pending:
            self.optimizer.zero_grad(set_to_none=True)
        before = self._versions()
        try:
            (loss_sum if self._scaler is None else self._scaler.scale(loss_sum)).backward()
        except BaseException:
            self._is_spoilt = self._versions() != before
            raise
        self._is_exchanged = self._is_parallel and bool(getattr(self._model, "require_backward_grad_sync", True))
        self._total = self._total + count
        self._n_pending += 1

    def step(self) -> bool:
        """Step the optimizer if the group is full, and say whether it did."""
        self._check_usable()
        return self.is_full and self._finish()

    def flush(self) -> bool:
        """Step with the micro-batches there are, and say whether it did; over several ranks all must call it.

        A group in which nothing counts (every token masked) changes nothing: its mean does not exist.
        """
        self._check_usable()
        return bool(self._n_pending or self._is_parallel) and self._finish()

    def reset(self) -> None:
        """Forget the micro-batches since the last step."""
        self.optimizer.zero_grad(set_to_none=True)
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """How many steps were made. Refused inside a group, whose gradients no checkpoint holds."""
        if self._n_pending:
            raise ResumeError(
                f"{self._n_pending} micro-batches wait for a step, and their gradients would be lost; "
                "save after step() or flush()"
            )
        return {"n_steps": self.n_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from a former run; a group that has begun is forgotten."""
        n_steps = state.get("n_steps") if isinstance(state, Mapping) and set(state) == {"n_steps"} else None
        if type(n_steps) is not int or n_steps < 0:
            raise ResumeError(
                f"no state of a GradientAccumulator: {reprlib.repr(state)} instead of a number of steps from 0; "
                "pass what state_dict() gave"
            )
        self.reset()
        self.n_steps = n_steps

    def __repr__(self) -> str:
        of = "" if self.steps is None else f" of {self.steps}"
        return f"<GradientAccumulator: {self._n_pending}{of} micro-batches, {counted(self.n_steps, 'step')} so far>"

    def _finish(self) -> bool:
        total, gradients_are_means_of = self._exchange()
        if not (math.isfinite(total) and total >= 0):
            raise ValueError(f"the counts of the group add up to {total}; they must be finite and not negative")
        if total:
            # Whatever fails from here on has left gradients that are no longer sums, so a retry is refused.
            self._is_spoilt = True
            self._divide(total / gradients_are_means_of)
            self._step_optimizer()
            self.n_steps += 1
        self.reset()
        return total > 0

    def _exchange(self) -> tuple[float, int]:
        """The count over all ranks, and over how many ranks the gradients are averages: DDP divides by all of them."""
        total = float(self._total)
        if not self._is_parallel:
            return total, 1
        import torch
        import torch.distributed as ranks

        n_ranks = ranks.get_world_size()
        parameters = self._parameters(with_gradient=False)
        numbers = torch.tensor([total, float(self._is_exchanged)], dtype=torch.float64, device=parameters[0].device)
        ranks.all_reduce(numbers)
        total, n_exchanged = numbers.tolist()
        if n_exchanged == n_ranks:
            return total, n_ranks
        if n_exchanged:
            raise RuntimeError(
                "some ranks have exchanged their gradients and others not; call step() in the same places"
            )
        _sum_over_ranks(parameters)
        return total, 1

    def _divide(self, divisor: float) -> None:
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        for parameter in self._parameters():
            assert parameter.grad is not None
            parameter.grad.div_(divisor)

    def _step_optimizer(self) -> None:
        if self._before_step is not None:
            self._before_step(self._parameters())
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()

    def _parameters(self, *, with_gradient: bool = True) -> list[torch.Tensor]:
        every = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return [parameter for parameter in every if parameter.grad is not None] if with_gradient else every

    def _versions(self) -> list[tuple[int, int] | None]:
        """Which gradient each parameter has and how often it was changed: equal only if nothing was added."""
        gradients = [parameter.grad for parameter in self._parameters(with_gradient=False)]
        return [None if gradient is None else (id(gradient), gradient._version) for gradient in gradients]

    def _forget(self) -> None:
        self._n_pending, self._total = 0, 0.0
        self._is_exchanged = self._is_spoilt = False

    def _check_usable(self) -> None:
        if self._is_spoilt:
            raise RuntimeError(
                "a backward pass or a step failed when it had changed some of the gradients, so the group's are wrong; "
                "call reset() and begin the group again, with smaller micro-batches if the memory was too small"
            )


def _sum_over_ranks(parameters: list[torch.Tensor]) -> None:
    """Add up gradients that were not exchanged; a rank without one (it had no rows) takes part with zeros."""
    import torch
    import torch.distributed as ranks

    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        ranks.all_reduce(parameter.grad)
