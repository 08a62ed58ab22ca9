"""Runs in Lightning: each gives the rows that were trained and validated, epoch by epoch, and the loss at the end."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from poolish import DatasetConsumer
from poolish.integrations.lightning import LoaderCallback, LoaderDataModule
from tests.integrations import rows
from tests.integrations.zygote import KEPT

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Model(L.LightningModule):
    """Linear regression that keeps the rows it sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.trained: list[tuple[int, list[int]]] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.trained.append((self.current_epoch, batch["n"].tolist()))
        return (self.layer(batch["x"]) - batch["labels"]).square().mean()

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated[-1] += batch["n"].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.05)

    def report(self) -> dict[str, Any]:
        weights = [parameter.tolist() for parameter in self.layer.parameters()]
        return {"trained": self.trained, "validated": self.validated, "weights": weights}


def trainer(**options: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(**{"accelerator": "cpu", "devices": 1, "enable_checkpointing": False, **quiet, **options})


class Stop(Exception):
    pass


class StopAt(L.Callback):
    """Ends the process's training after a step, as a crash would: no hook of the end is run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise Stop


def fit(
    checkpoint: str | None = None,
    *,
    stop_at: int | None = None,
    folder: str | None = None,
    loader: dict[str, Any] | None = None,
    grow: int = 0,
    **options: Any,
) -> Any:
    """Train on the rows; a checkpoint of each step goes to ``folder``, and before step ``stop_at`` the run is ended.

    After each training epoch ``grow`` rows are appended.
    """
    dataset = rows.buffer() if grow else rows.BUFFER
    data = LoaderDataModule(rows.loader(dataset, **(loader or {})), val=rows.loader(rows.VALIDATION, shuffle=False))
    return trained_on(data, checkpoint, stop_at=stop_at, folder=folder, grows=(dataset, grow), **options)


def trained_on(
    data: Any,
    checkpoint: str | None = None,
    *,
    stop_at: int | None = None,
    folder: str | None = None,
    grows: tuple[Any, int] = (None, 0),
    **options: Any,
) -> Any:
    model = Model()
    callbacks: list[Any] = [Grow(*grows)] if grows[1] else []
    if folder is not None:
        callbacks.append(ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, filename="{step}"))
        options["enable_checkpointing"] = True
    if stop_at is not None:
        callbacks.append(StopAt(stop_at))
    with contextlib.suppress(Stop):
        KEPT.append(trainer(callbacks=callbacks, **options))
        KEPT[-1].fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    return model.report()


class Grow(L.Callback):
    """Appends rows when an epoch of training ends."""

    def __init__(self, dataset: Any, n: int) -> None:
        self.dataset, self.n = dataset, n

    def on_train_epoch_end(self, *_: Any) -> None:
        self.dataset.append(rows.samples(len(self.dataset), len(self.dataset) + self.n))


def fit_queue(path: str, checkpoint: str | None = None, *, acknowledge: str = "on_checkpoint", **options: Any) -> Any:
    """Train on a queue; gives the numbers of the batches that are left in it, too."""
    consumer = DatasetConsumer(path, acknowledge=acknowledge, timeout_s=10)
    report = trained_on(LoaderDataModule(consumer), checkpoint, **options)
    consumer.close()
    return {**report, "left": rows.left_in(path)}


def fit_bare(**options: Any) -> None:
    """A loader without a data module, with the callback."""
    trainer(callbacks=[LoaderCallback()], max_epochs=1).fit(Model(), rows.loader())


def fabric(n_epochs: int, state: Any = None, *, n_steps: int | None = None, **options: Any) -> Any:
    """The loop of the documentation, for a number of steps."""
    device = L.Fabric(accelerator="cpu", **{"devices": 1, **options})
    if device.world_size > 1:
        device.launch()
    model = Model()
    layer, optimizer = device.setup(model.layer, model.configure_optimizers())
    loader = rows.loader()
    if state is not None:
        loader.load_state_dict(state["loader"])
        layer.load_state_dict({name: torch.tensor(value) for name, value in state["model"].items()})
        optimizer.load_state_dict(as_optimizer(state["optimizer"]))
    batches = device.setup_dataloaders(DataLoader(loader, batch_size=None))
    states = []
    for epoch in range(loader.epoch, n_epochs):
        for batch in batches:
            model.trained.append((epoch, batch["n"].tolist()))
            optimizer.zero_grad()
            device.backward((layer(batch["x"]) - batch["labels"]).square().mean())
            optimizer.step()
            values = {name: value.tolist() for name, value in layer.state_dict().items()}
            states.append({"loader": loader.state_dict(), "model": values, "optimizer": of_optimizer(optimizer)})
    KEPT.append((device, layer))
    return {**model.report(), "states": states}


def of_optimizer(optimizer: Any) -> Any:
    """Its state as JSON."""
    state = optimizer.state_dict()
    plain = {str(i): {name: value.tolist() for name, value in each.items()} for i, each in state["state"].items()}
    return {"state": plain, "param_groups": state["param_groups"]}


def as_optimizer(plain: Any) -> Any:
    state = {int(i): {name: torch.tensor(value) for name, value in each.items()} for i, each in plain["state"].items()}
    return {"state": state, "param_groups": plain["param_groups"]}
