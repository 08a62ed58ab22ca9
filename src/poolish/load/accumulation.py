"""Gradients of a large batch from small ones: add up sums, divide once.

The loss of a batch is a mean over what counts in it: rows, or the tokens that are not masked. Micro-batches count
differently (the last is shorter, masks differ), so a mean of their means is another number than the mean of the large
batch. Sums have no such trouble::

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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from poolish.errors import ConfigError, ResumeError
from poolish.printable import counted

if TYPE_CHECKING:
    import torch

__all__ = ["GradientAccumulator"]


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
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
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
