"""Complete samples from column shards that are spread over the ranks of a process group.

    rank 0    x    \\
                     >   x, y on both
    rank 1    y    /

Every rank first says what it has: names, row ids, and for each tensor its shape and type. Then each tensor is broadcast
by the rank that has it. What cannot be joined is said in the first step, so all ranks raise the same error and none
waits for a tensor that does not come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as ranks

from poolish.errors import ConfigError, SchemaError
from poolish.load.batch import Batch


def gather_columns(batch: Mapping[str, Any], columns: Sequence[str], group: Any = None) -> Batch:
    """The columns of all ranks of ``group``; in the order of the ranks, with the ids of this rank's batch."""
    if not (ranks.is_available() and ranks.is_initialized()):
        raise ConfigError("gather needs a process group; call torch.distributed.init_process_group first")
    described = _gathered(_description(batch, columns), group)
    _check(described)
    device = next((value.device for value in batch.values() if isinstance(value, torch.Tensor)), torch.device("cpu"))
    whole: dict[str, Any] = {}
    for rank, each in enumerate(described):
        for name, (is_tensor, value) in each["columns"].items():
            if is_tensor:
                own = batch[name] if rank == ranks.get_rank(group) else None
                value = _broadcast(own, value, rank, device, group)
            whole[name] = value
    return Batch(whole, ids=_of(batch, "ids"), position=_of(batch, "position"), step=_of(batch, "step"))


def _description(batch: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    if not isinstance(batch, Mapping) or set(batch) != set(columns):
        found = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
        return {"error": f"this shard has the columns {list(columns)}, the batch {found}"}
    ids = _of(batch, "ids")
    return {
        "error": "",
        "ids": None if ids is None else ids.tolist(),
        "rows": {name: len(batch[name]) for name in columns},
        "columns": {name: _described(batch[name]) for name in columns},
    }


def _described(value: Any) -> tuple[bool, Any]:
    """A tensor's shape and type; anything else as it is."""
    return (True, (tuple(value.shape), value.dtype)) if isinstance(value, torch.Tensor) else (False, value)


def _gathered(own: dict[str, Any], group: Any) -> list[dict[str, Any]]:
    described: list[Any] = [None] * ranks.get_world_size(group)
    ranks.all_gather_object(described, own, group=group)
    return described


def _check(described: list[dict[str, Any]]) -> None:
    """Raise, on all ranks alike, unless these are different columns of the same rows."""
    owner: dict[str, int] = {}
    for rank, each in enumerate(described):
        if each["error"]:
            raise SchemaError(f"rank {rank}: {each['error']}; gather what the shard gave")
        for name in each["columns"]:
            if name in owner:
                raise SchemaError(f"column {name!r} is on ranks {owner[name]} and {rank}; give it to one of them")
            owner[name] = rank
    counts = {f"{name} (rank {rank})": n for rank, each in enumerate(described) for name, n in each["rows"].items()}
    if len(set(counts.values())) > 1:
        raise SchemaError(f"batches of different lengths, {counts}; all ranks must load the same rows")
    for rank, each in enumerate(described):
        if None not in (each["ids"], described[0]["ids"]) and each["ids"] != described[0]["ids"]:
            raise SchemaError(
                f"rank 0 has rows {described[0]['ids'][:5]}..., rank {rank} has {each['ids'][:5]}...; all ranks must "
                "load the same rows, so give their loaders rank=0, world_size=1 and the same seed"
            )


def _broadcast(own: torch.Tensor | None, layout: Any, rank: int, device: torch.device, group: Any) -> torch.Tensor:
    shape, dtype = layout
    tensor = torch.empty(shape, dtype=dtype, device=device) if own is None else own.contiguous()
    source = rank if group is None else ranks.get_global_rank(group, rank)
    ranks.broadcast(tensor, src=source, group=group)
    return tensor


def _of(batch: Mapping[str, Any], name: str) -> Any:
    return getattr(batch, name, None)
