"""The trainer's side: `python train.py config/train_char_diffusion.py`, beside a `prepare.py` with the same config.

Each step takes a batch from the queue and trains on it. A checkpoint holds model, optimizer and the position in the
queue together, and only then are the batches before it acknowledged:

    get_batch --> learn --> ... --> checkpoint.save --> consumer.commit     the provider may delete them now
                                        |
              killed, started again --> checkpoint.load --> the same batches in the same order, the same losses
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import checkpoint
import torch
from model import Filler, fill
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.nn import functional

from poolish import DatasetConsumer
from poolish.errors import PoolishError
from poolish.serve import SharedConfig, config_from_command_line, queue_status

MASK = "_"  # how a masked character is written; the text has none


# What is decided ----------------------------------------------------------------------------------------------


def learning_rate_at(step: int, config: SharedConfig) -> float:
    """A short rise, then half a cosine down to a tenth; a function of the step alone, so there is nothing to save."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    share = min(1.0, step / config.max_steps)
    return config.learning_rate * (0.55 + 0.45 * math.cos(math.pi * share))


def with_number(ranges: list[list[int]], number: int) -> list[list[int]]:
    """Ranges [first, behind the last] of batch numbers, and one number more.

    >>> with_number([[0, 7]], 7), with_number([[0, 7]], 9)
    ([[0, 8]], [[0, 7], [9, 10]])
    """
    if ranges and ranges[-1][1] == number:
        return [*ranges[:-1], [ranges[-1][0], number + 1]]
    return [*ranges, [number, number + 1]]


# Training -----------------------------------------------------------------------------------------------------


class Training:
    """A model, its optimizer, and what they have seen of the queue: everything that a checkpoint holds."""

    def __init__(self, config: SharedConfig, consumer: DatasetConsumer) -> None:
        torch.manual_seed(config.seed)
        self.config, self.consumer = config, consumer
        self.path = config.workspace / config.out_dir / "checkpoint.npz"
        self.shape = {name: getattr(config, name) for name in ("block_size", "n_layer", "n_head", "n_embd", "dropout")}
        self.shape["vocab_size"] = consumer.meta["vocab_size"]
        self.model = Filler(**self.shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98))
        self.step = 0
        self.seen: dict[str, list[list[int]]] = {"train": [], "val": []}
        self.mark()

    def learn(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        """One step on one batch; its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.step, self.config)
        self.model.train()
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.item()

    @torch.no_grad()
    def evaluate(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """The mean loss on batches that nothing is learned from."""
        self.model.eval()
        return sum(self.loss(batch).item() for batch in batches) / len(batches)

    def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """How badly the masked characters are told; the others have ``ignore_index`` as their target."""
        x, y = batch
        logits = self.model(x)
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=self.config.ignore_index)

    def next_batch(self, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch of a split, waiting for it if need be."""
        batch = self.consumer.get_batch(split)
        self.seen[split] = with_number(self.seen[split], self.consumer.last_number(split))
        return batch

    def mark(self) -> None:
        """What has been read is now part of the model. A checkpoint knows of nothing that was read after the mark."""
        self.marked = {"step": self.step, "consumer": self.consumer.state_dict(), "seen": dict(self.seen)}

    def save(self) -> None:
        """Write the checkpoint, then let the batches go: in this order, whatever happens, none is missing."""
        checkpoint.save(self.path, self.model, self.optimizer, self.marked | {"shape": self.shape})
        self.consumer.commit(self.marked["consumer"])

    def resume(self) -> bool:
        """Go on from the checkpoint, if there is one."""
        if not self.path.exists():
            return False
        shape = checkpoint.read_rest(self.path)["shape"]
        if shape != self.shape:
            raise SystemExit(f"{self.path} is of a model with {shape}, the config asks for {self.shape}; move it away")
        rest = checkpoint.load(self.path, self.model, self.optimizer)
        self.step, self.seen = rest["step"], rest["seen"]
        self.consumer.load_state_dict(rest["consumer"])
        # A run that was killed between save and commit has not said it yet.
        self.consumer.commit(rest["consumer"])
        self.mark()
        return True


def train(training: Training, interrupt: Interrupt, show: Display) -> None:
    """All steps until ``max_steps``, an evaluation and a checkpoint every so often and at the end."""
    config = training.config
    with open(training.path.with_name("log.jsonl"), "a", buffering=1) as log:
        while True:
            is_last = training.step >= config.max_steps
            # Before the step and after the checkpoint of the same number: a resumed run evaluates on the same batches.
            if is_last or training.step % config.evaluate_every == 0:
                with interrupt.at_once():
                    batches = [training.next_batch("val") for _ in range(config.evaluate_batches)]
                val_loss = training.evaluate(batches)
                log.write(json.dumps({"step": training.step, "val_loss": val_loss}) + "\n")
                show.evaluated(training.step, val_loss)
            if is_last:
                break
            with interrupt.at_once():
                batch = training.next_batch("train")
            loss = training.learn(batch)
            training.mark()
            number = training.consumer.last_number("train")
            log.write(json.dumps({"step": training.step, "number": number, "loss": loss}) + "\n")
            show.trained(training.step, loss)
            if training.step % config.checkpoint_every == 0:
                training.save()
            interrupt.check()
    training.mark()
    training.save()


class Interrupt:
    """Ctrl-C comes between two steps, never inside one; while a batch is waited for it comes at once.

    A second Ctrl-C does not wait for anything.
    """

    def __init__(self) -> None:
        self._is_asked = self._may_raise = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked:
            raise SystemExit(130)  # not KeyboardInterrupt: half a step must not become a checkpoint
        self._is_asked = True
        if self._may_raise:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Here it may come."""
        if self._is_asked:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In here it may come at any moment."""
        self._may_raise = True
        try:
            self.check()
            yield
        finally:
            self._may_raise = False


# What is shown ------------------------------------------------------------------------------------------------


class Display:
    """How it goes: a bar where somebody watches, a line every few seconds where it is written to a file."""

    _LINE_EVERY_S = 3.0
    _LOOK_EVERY_S = 0.5

    def __init__(self, console: Console, training: Training) -> None:
        self._console, self._training = console, training
        self._losses: deque[float] = deque(maxlen=50)
        self._val_loss = math.nan
        self._steps_at = deque([(time.monotonic(), training.step)], maxlen=20)
        self._shown_at = 0.0
        self._looked_at = time.monotonic()
        columns = [MofNCompleteColumn(), BarColumn(10), TextColumn("{task.fields[facts]}")]
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task: TaskID = self._bar.add_task("", total=training.config.max_steps, completed=training.step, facts="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def evaluated(self, step: int, val_loss: float) -> None:
        """An evaluation is worth a line of its own."""
        self._val_loss = val_loss
        self._bar.console.print(f"step {step:>5}  val loss {val_loss:.3f}")

    def trained(self, step: int, loss: float) -> None:
        """One step more; shown now and then."""
        self._losses.append(loss)
        now = time.monotonic()
        if now - self._looked_at < self._LOOK_EVERY_S:
            return
        self._looked_at = now
        self._steps_at.append((now, step))
        facts = self._facts()
        if self._console.is_terminal:
            self._bar.update(self._task, completed=step, facts=facts)
        elif now - self._shown_at >= self._LINE_EVERY_S:
            self._shown_at = now
            self._console.print(f"step {step:>5}  {facts}")

    def _facts(self) -> str:
        (began, first), (now, last) = self._steps_at[0], self._steps_at[-1]
        loss = sum(self._losses) / len(self._losses)
        waiting = queue_status(self._training.config.dataset_path)["train"].waiting
        speed = (last - first) / max(now - began, 1e-9)
        val = "" if math.isnan(self._val_loss) else f"  val {self._val_loss:.3f}"
        return f"loss {loss:.3f}{val}  {speed:.0f} steps/s  {waiting} waiting"


def show_filled(console: Console, training: Training) -> None:
    """What the model makes of the config's masked sentences."""
    meta = training.consumer.meta
    vocabulary, mask_token_id = meta["vocabulary"], meta["mask_token_id"]
    for text in training.config.fill_in:
        tokens = torch.tensor([mask_token_id if char == MASK else vocabulary.index(char) for char in text])
        filled = "".join(vocabulary[token] for token in fill(training.model, tokens, mask_token_id))
        console.print(f"  {text}\n  {filled}\n", markup=False, highlight=False)


def main(arguments: list[str]) -> int:
    """Train by the config that the command line names; 130 after Ctrl-C, as a shell expects."""
    # The provider needs the other core, and torch's threads would wait for each other more than they compute.
    torch.set_num_threads(1)
    console = Console(soft_wrap=True)
    config = config_from_command_line(arguments)
    with DatasetConsumer(config.dataset_path, acknowledge="on_checkpoint", timeout_s=60) as consumer:
        training = Training(config, consumer)
        n_parameters = sum(parameter.numel() for parameter in training.model.parameters())
        console.print(f"{n_parameters:,} parameters, {consumer.meta['vocab_size']} tokens", end="; ")
        was_resumed = training.resume()
        console.print(f"going on after step {training.step}" if was_resumed else "starting from nothing")
        training.path.parent.mkdir(parents=True, exist_ok=True)
        if training.step < config.max_steps:
            with Interrupt() as interrupt:
                try:
                    with Display(console, training) as display:
                        train(training, interrupt, display)
                except KeyboardInterrupt:
                    training.save()
                    console.print(f"Interrupted: {training.path} has step {training.step}; the same command goes on.")
                    return 130
        show_filled(console, training)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PoolishError as error:
        sys.exit(f"{type(error).__name__}: {error}")
