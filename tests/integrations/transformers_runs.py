"""Runs in Hugging Face's Trainer: each gives the rows that were trained, and the weights at the end."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from poolish import DatasetConsumer, Loader
from poolish.integrations.transformers import LoaderTrainerMixin
from tests.integrations import rows
from tests.integrations.zygote import KEPT

warnings.simplefilter("ignore")


class Config(PretrainedConfig):
    model_type = "tiny"


class Model(PreTrainedModel):
    """Linear regression that keeps the rows it is trained on, and those it is evaluated on."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.trained: list[list[int]] = []
        self.evaluated: list[list[int]] = []
        self.post_init()

    def forward(self, x: Any, labels: Any, n: Any) -> Any:
        (self.trained if self.training else self.evaluated).append(n.tolist())
        predicted = self.layer(torch.nn.functional.dropout(x, 0.1, self.training))
        return {"loss": (predicted - labels).square().mean(), "logits": predicted}


class LoaderTrainer(LoaderTrainerMixin, Trainer):
    """Also computes what the loss of each evaluation should be, row by row."""

    losses: tuple[float, ...] = ()

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        batch = next(iter(Loader(rows.VALIDATION, 100)))
        with torch.no_grad():
            loss = (self.model.layer(batch["x"]) - batch["labels"]).square().mean().item()
        self.losses = (*self.losses, loss)
        return super().evaluate(*arguments, **options)


class Stop(Exception):
    pass


class StopAt(TrainerCallback):
    """Ends the training before a step, as a crash would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise Stop


def arguments(folder: str, **options: Any) -> TrainingArguments:
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    steps = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.05}
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    return TrainingArguments(folder, **{**quiet, **steps, **sizes, **options})


def train(
    folder: str,
    checkpoint: Any = None,
    *,
    stop_at: int | None = None,
    loader: dict[str, Any] | None = None,
    queue: str | None = None,
    eval_batch_size: int | None = None,
    **options: Any,
) -> Any:
    """Train on the rows, or on a queue."""
    model = Model(Config())
    source: Any = rows.loader(**(loader or {}))
    if queue is not None:
        source = DatasetConsumer(queue, acknowledge="on_checkpoint", timeout_s=10)
    evaluated = None if eval_batch_size is None else Loader(rows.VALIDATION, eval_batch_size)
    trainer = LoaderTrainer(model, arguments(folder, **options), train_dataset=source, eval_dataset=evaluated)
    if stop_at is not None:
        trainer.add_callback(StopAt(stop_at))
    with contextlib.suppress(Stop):
        trainer.train(resume_from_checkpoint=checkpoint)
    weights = [parameter.tolist() for parameter in model.layer.parameters()]
    KEPT.append(trainer)
    report = {"trained": model.trained, "evaluated": model.evaluated, "weights": weights}
    report |= {"logs": [log for log in trainer.state.log_history if "eval_loss" in log], "losses": trainer.losses}
    if queue is not None:
        report["left"] = rows.left_in(queue)
    return report


def plain(folder: str) -> None:
    """A loader as the ``train_dataset`` of a Trainer without the mixin."""
    Trainer(Model(Config()), arguments(folder, max_steps=2), train_dataset=rows.loader()).train()
