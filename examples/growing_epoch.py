"""One epoch that grows and is killed in the middle, through poolish and through torch's loaders, side by side.

A trainer reads 10,000 rows, shuffled. Half-way 100 rows are appended, a little later the process is killed, and what
goes on from its last checkpoint is to finish the epoch: each row once. Poolish goes on with two processes where there
was one. What is counted is what the checkpoints hold: rows that the model has been trained on.

    python examples/growing_epoch.py

Every trainer is a process of its own and writes a checkpoint after every step, in one atomic file.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import multiprocessing
import signal
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from poolish import DatasetBuffer
from poolish.files import read_json, write_json
from poolish.load import Loader

N_ROWS, N_APPENDED, BATCH = 10_000, 100, 50
#: Steps after which rows are appended, after which the trainer may be killed, and after which it only waits for that.
GROW_AT, KILL_FROM, WAIT_AT = 100, 110, 180

#: One step: the numbers of the rows that it trained on.
Rows = list[int]

FORK = multiprocessing.get_context("fork")

console = Console(width=120)


# A trainer, with any loader ------------------------------------------------------------------------------------------


class Stage(ABC):
    """A loader in a form that suits the trainer: batches of row numbers, a state, and the buffer they come from."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder = folder
        self.rank, self.world_size = rank, world_size
        self.buffer = DatasetBuffer.load(folder / "rows.poolish")

    @abstractmethod
    def batches(self) -> Iterator[Rows]:
        """What is left of the epoch."""

    @abstractmethod
    def save(self) -> Any:
        """Where the epoch is, as JSON."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Go on from there."""


class Poolish(Stage):
    """The loader follows the buffer; a journal lets processes agree, before and after."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        super().__init__(folder, rank, world_size)
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size, "journal": folder / "journal"}
        self.loader = Loader(self.buffer, BATCH, shuffle=True, seed=7, follow=True, output="numpy", **ranks)

    def batches(self) -> Iterator[Rows]:
        return (batch["number"].tolist() for batch in self.loader)

    def save(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class Stateful(Stage):
    """StatefulDataLoader of torchdata: the buffer is its dataset, and its state is in the checkpoint."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        import torch
        from torchdata.stateful_dataloader import StatefulDataLoader

        super().__init__(folder, rank, world_size)
        torch.manual_seed(7)
        rows: Any = Numbers(self.buffer)
        self.loader: Any = StatefulDataLoader(rows, BATCH, shuffle=True, collate_fn=list)

    def batches(self) -> Iterator[Rows]:
        return iter(self.loader)

    def save(self) -> Any:
        import torch

        file = io.BytesIO()  # there are tensors in the state
        torch.save(self.loader.state_dict(), file)
        return file.getvalue().hex()

    def load(self, state: Any) -> None:
        import torch

        self.loader.load_state_dict(torch.load(io.BytesIO(bytes.fromhex(state)), weights_only=True))


class Skipping(Stage):
    """DataLoader of torch, as it is resumed by hand: the same seed, and the batches that were done are skipped."""

    n_done = 0

    def batches(self) -> Iterator[Rows]:
        import torch
        from torch.utils.data import DataLoader

        rows: Any = Numbers(self.buffer)
        same_seed = torch.Generator().manual_seed(7)
        loader: Any = DataLoader(rows, BATCH, shuffle=True, generator=same_seed, collate_fn=list)
        for batch in islice(loader, self.n_done, None):
            self.n_done += 1
            yield batch

    def save(self) -> Any:
        return self.n_done

    def load(self, state: Any) -> None:
        self.n_done = state


class Numbers:
    """A buffer as a dataset of row numbers."""

    def __init__(self, buffer: DatasetBuffer) -> None:
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._buffer)

    def __getitem__(self, i: int) -> int:
        return int(self._buffer[i]["number"])


STAGES: dict[str, Callable[[Path, int, int], Stage]] = {"poolish": Poolish, "stateful": Stateful, "skipping": Skipping}


def train_and_be_killed(stage: Stage) -> None:
    """Train; append rows half-way; write a checkpoint after every step."""
    trained: list[int] = []
    for step, rows in enumerate(stage.batches(), 1):
        trained += rows
        if step == GROW_AT:
            # The rows are safe before a checkpoint knows of them: one that did would be refused without them.
            stage.buffer.append([{"number": N_ROWS + i} for i in range(N_APPENDED)])
            stage.buffer.save(stage.folder / "rows.poolish")
        checkpoint = {"trained": trained, "data": stage.save()}  # and the model, the optimizer, ...
        write_json(stage.folder / "checkpoint.json", checkpoint, durable=False)
        if step >= GROW_AT:
            time.sleep(0.002)  # a model would take longer
        if step == WAIT_AT:
            time.sleep(600)


def go_on(stage: Stage) -> None:
    """Train what the checkpoint has left of the epoch."""
    stage.load(read_json(stage.folder / "checkpoint.json")["data"])
    write_json(stage.folder / f"rest-{stage.rank}.json", [number for rows in stage.batches() for number in rows])


# The history ---------------------------------------------------------------------------------------------------------


def history(kind: str, folder: Path, world_size: int) -> tuple[list[int], int]:
    """Let a trainer begin, kill it, let ``world_size`` others go on; the rows trained on, and the step of the kill."""
    buffer = DatasetBuffer()
    buffer.append_columns({"number": np.arange(N_ROWS)})
    buffer.save(folder / "rows.poolish")

    first = start(train_and_be_killed, kind, folder, 0, 1)
    while first.is_alive() and n_trained(folder) < KILL_FROM * BATCH:
        time.sleep(0.005)
    first.kill()
    first.join()
    if first.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the first trainer of {kind} ended by itself; see above")
    trained = read_json(folder / "checkpoint.json")["trained"]

    others = [start(go_on, kind, folder, rank, world_size) for rank in range(world_size)]
    for other in others:
        other.join()
    if any(other.exitcode for other in others):
        raise RuntimeError(f"a trainer of {kind} could not go on; see above")
    rest = [read_json(folder / f"rest-{rank}.json") for rank in range(world_size)]
    return trained + [number for rows in rest for number in rows], len(trained) // BATCH


def start(train: Callable[[Stage], None], kind: str, folder: Path, rank: int, world_size: int) -> Any:
    """A trainer in a process of its own; forked, so that torch is imported once for all of them."""
    process = FORK.Process(target=lambda: train(STAGES[kind](folder, rank, world_size)))
    process.start()
    return process


def n_trained(folder: Path) -> int:
    """How many rows the checkpoint holds."""
    try:
        return len(read_json(folder / "checkpoint.json")["trained"])
    except FileNotFoundError:
        return 0


def counted(trained: list[int]) -> tuple[int, int]:
    """How many rows were trained on more than once, and how many never.

    >>> counted([0, 0, *range(2, 10_100)])
    (1, 1)
    """
    times = Counter(trained)
    return sum(n > 1 for n in times.values()), N_ROWS + N_APPENDED - len(times)


def main() -> None:
    """Tell the same history three times."""
    contenders = {"poolish": ("poolish Loader, follow=True", 2)}
    if importlib.util.find_spec("torch") is None:
        console.print("torch is not installed, so poolish is alone here")
    else:
        importlib.import_module("torch.utils.data")  # once, before the trainers are forked
        warnings.filterwarnings("ignore", module="torchdata")  # what it says of itself is not the story here
        if importlib.util.find_spec("torchdata") is None:
            console.print("torchdata is not installed, so its StatefulDataLoader is not shown")
        else:
            importlib.import_module("torchdata.stateful_dataloader")
            contenders["stateful"] = ("torchdata StatefulDataLoader", 1)
        contenders["skipping"] = ("torch DataLoader, seeded, skipping", 1)

    title = f"an epoch of {N_ROWS:,} rows: {N_APPENDED} appended half-way, killed, resumed"
    table = Table("loader", "killed after", "resumed on", title=title)
    for name in ("trained", "repeated", "never seen"):
        table.add_column(name, justify="right")
    for kind, (name, world_size) in contenders.items():
        with tempfile.TemporaryDirectory() as folder:
            trained, step = history(kind, Path(folder), world_size)
        n_repeated, n_never = counted(trained)
        ranks = f"{world_size} process{'es' * (world_size > 1)}"
        table.add_row(name, f"{step} steps", ranks, f"{len(trained):,}", f"{n_repeated:,}", f"{n_never:,}")
    console.print(table)


if __name__ == "__main__":
    main()
