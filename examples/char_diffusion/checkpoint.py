"""A training run in one file: model, optimizer, random numbers, and how far the queue was trained.

    model.<name>                  the parameters
    optimizer.<parameter>.<name>  what the optimizer keeps for each of them
    random                        torch's random state
    rest                          JSON: the optimizer's settings, and what the trainer wants to find again

One file, because two could disagree: a model that is newer than the queue's position would train batches twice, an
older one would miss some. It is an .npz of plain numbers, so reading it never runs code, whoever wrote it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from poolish.files import publish


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rest: dict[str, Any]) -> None:
    """Write the checkpoint; whenever the process dies, the file is the old one or the new one, and whole."""
    told = optimizer.state_dict()
    arrays = {f"model.{name}": tensor.numpy(force=True) for name, tensor in model.state_dict().items()}
    for i, kept in told["state"].items():
        arrays |= {f"optimizer.{i}.{name}": tensor.numpy(force=True) for name, tensor in kept.items()}
    arrays["random"] = torch.get_rng_state().numpy()
    text = json.dumps(rest | {"param_groups": told["param_groups"]})
    arrays["rest"] = np.frombuffer(text.encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with publish(path) as file:
        np.savez(file, **arrays)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put model, optimizer and random state back to what they were; the rest is returned."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "rest"}
        rest = json.loads(file["rest"].tobytes())
    weights, kept = {}, {}
    for name, tensor in arrays.items():
        kind, _, name = name.partition(".")
        if kind == "model":
            weights[name] = tensor
        elif kind == "optimizer":
            i, _, name = name.partition(".")
            kept.setdefault(int(i), {})[name] = tensor
    model.load_state_dict(weights)
    optimizer.load_state_dict({"state": kept, "param_groups": rest.pop("param_groups")})
    torch.set_rng_state(arrays["random"])
    return rest


def read_rest(path: Path) -> dict[str, Any]:
    """What the trainer wrote beside the tensors."""
    with np.load(path, allow_pickle=False) as file:
        return json.loads(file["rest"].tobytes())
