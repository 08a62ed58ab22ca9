"""How much memory a CUDA device can still give to torch."""

from __future__ import annotations

import gc

import torch

__all__ = ["free_bytes", "give_back"]


def free_bytes(device: torch.device | str) -> int:
    """What the device has free, and what torch holds of it without using it."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def give_back() -> None:
    """Give unused memory back to the device, so that it can be cut anew: after an error most of it lies in pieces."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
