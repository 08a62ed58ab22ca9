"""The arguments of a consumer, checked, and the wait for a queue that a provider has yet to make."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from poolish.errors import ConfigError, QueueNotFound
from poolish.ranks import Share
from poolish.torch_bridge import is_installed

ACKNOWLEDGE = ("on_read", "on_step", "on_checkpoint", "explicit")
ON_CORRUPT = ("raise", "cached")
OUTPUT = ("torch", "numpy")
_LOOK_S = 0.02
_SAY_S = 10.0

logger = logging.getLogger("poolish.serve")
Found = TypeVar("Found")


class NoSuchSplit(ConfigError):
    """The queue has other splits than the one that was asked for."""


class QueueDeadline:
    """How long queues are waited for, from when this is made."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s, self._begun = wait_s, time.monotonic()

    def find(self, look: Callable[[], Found]) -> Found:
        """What ``look`` returns once there is a queue; its error where there is none in time, with how long it took."""
        say_at = time.monotonic() + _SAY_S
        while True:
            try:
                return look()
            except (QueueNotFound, NoSuchSplit) as error:
                missing = error
            waited_s = time.monotonic() - self._begun
            if not self._wait_s:
                raise missing
            if waited_s >= self._wait_s:
                text = f"{missing}; waited {waited_s:.1f} s for it, wait_for_queue_s={self._wait_s:g} is over"
                if isinstance(missing, QueueNotFound):
                    raise QueueNotFound(text, filename=missing.filename)
                raise NoSuchSplit(text)
            if time.monotonic() >= say_at:
                logger.warning("%s; waited %.1f s for it", missing, waited_s)
                say_at += 3 * _SAY_S
            time.sleep(min(_LOOK_S, self._wait_s - waited_s))


def one_of(value: str, known: tuple[str, ...], name: str) -> str:
    """The value, if it is one of those known."""
    if value not in known:
        raise ConfigError(f"{name}={value!r}: one of {', '.join(map(repr, known))}")
    return value


def output_of(output: str) -> str:
    """What batches are made of."""
    if one_of(output, OUTPUT, "output") == "torch" and not is_installed():
        raise ConfigError(
            "output='torch' is the default and needs torch, which is not installed here; pass output='numpy' "
            "(jax: jnp.asarray of each array), or install torch"
        )
    return output


def wait_of(wait_s: float) -> float:
    """How long to wait for a queue."""
    if isinstance(wait_s, bool) or not isinstance(wait_s, (int, float)) or not wait_s >= 0:
        raise ConfigError(f"wait_for_queue_s={wait_s!r}: seconds to wait for a queue, 0 not to wait")
    return float(wait_s)


def timeout_of(timeout_s: float | None) -> float | None:
    """How long to wait for a batch; None for ever."""
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
        raise ConfigError(f"timeout_s={timeout_s!r}: seconds, or None to wait for ever")
    return None if timeout_s is None or timeout_s > threading.TIMEOUT_MAX else timeout_s


def prefetch_of(prefetch: int | None, default: int) -> int:
    """How many batches to read ahead."""
    if prefetch is None:
        return default
    if type(prefetch) is not int or prefetch < 0 or (default and not prefetch):
        raise ConfigError(f"prefetch={prefetch!r}: how many batches to read ahead, at least 1 on CUDA")
    return prefetch


def device_of(device: Any, output: str) -> Any:
    """The torch device that batches go to; None for the CPU."""
    if device is None:
        return None
    if output != "torch":
        raise ConfigError(f"device={device!r} goes with output='torch', got output={output!r}")
    import torch

    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, TypeError, AssertionError) as error:  # no such name, no such GPU, or a torch without CUDA
        why = str(error).split("\n", 1)[0]
        raise ConfigError(f"device={device!r}: {why}; use one that this machine has, or None for the CPU") from None


def check_mesh(mesh: Any, share: Share) -> None:
    """Raise where several processes of a mesh would be one rank: a queue hands each batch to one of them."""
    if mesh is not None and mesh.size() > share.world_size:
        raise ConfigError(
            f"mesh= has {mesh.size()} processes for {share.world_size} data-parallel ranks, and a queue hands each "
            "batch to one process; make a consumer on one process of each rank, with rank= and world_size=, and "
            "broadcast its batches to the others"
        )
