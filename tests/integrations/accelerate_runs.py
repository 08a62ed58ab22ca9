"""Runs with accelerate: each gives the rows that each process trained, and the weights at the end."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from poolish import DatasetConsumer
from poolish.integrations.accelerate import prepare
from tests.integrations import rows
from tests.integrations.zygote import KEPT

warnings.simplefilter("ignore")


def train(
    folder: str,
    checkpoint: str | None = None,
    *,
    n_epochs: int = 2,
    accumulation: int = 1,
    queue: str | None = None,
    n_steps: int = 10**9,
) -> Any:
    """The loop of the documentation; each step's checkpoint goes to ``folder``."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    layer = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(layer, torch.optim.Adam(layer.parameters(), 0.05))
    source = rows.loader() if queue is None else DatasetConsumer(queue, acknowledge="on_checkpoint", timeout_s=10)
    batches = prepare(accelerator, source)
    if checkpoint is not None:
        accelerator.load_state(checkpoint)
    trained, synced, ids, step = [], [], [], 0
    for epoch in range(batches.epoch if queue is None else 0, n_epochs):
        for batch in batches:
            with accelerator.accumulate(model):
                loss = (model(batch["x"]) - batch["labels"]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            trained.append([epoch, batch["n"].tolist()])
            synced.append(accelerator.sync_gradients)
            ids += [] if queue is not None else batch.ids.tolist()
            step += 1
            if accelerator.sync_gradients:
                accelerator.save_state(f"{folder}/{step}")
                batches.commit()
            if step == n_steps:
                break
    weights = [parameter.tolist() for parameter in layer.parameters()]
    KEPT.append((model, accelerator))
    return {"trained": trained, "synced": synced, "weights": weights, "ids": ids}


def dealt_twice() -> None:
    """What accelerate itself makes of a loader in a DataLoader."""
    accelerator = Accelerator(cpu=True)
    next(iter(accelerator.prepare(DataLoader(rows.loader(), batch_size=None))))
