"""All of it together, which is what `make run` shows: provider and trainer as two processes, one killed on the way.

In a copy of this workspace the provider fills the queue while the trainer trains from it. In the middle the trainer is
killed without warning and started again. At the end the books are balanced: every batch that was made was trained on
exactly once or is still waiting, and the steps that were lost with the killed trainer came again, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from poolish.errors import PoolishError
from poolish.serve import SharedConfig, load_config, queue_status

HERE = Path(__file__).resolve().parent
CONFIG = "config/train_char_diffusion.py"
STARTS_WITHIN_S = ENDS_WITHIN_S = 60.0

console = Console(soft_wrap=True)


# The books ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Books:
    """Of one split: how many batches were published, trained on, and wait; how many are missing, or came twice."""

    published: int
    trained: int
    waiting: int
    lost: int
    twice: int

    @property
    def are_balanced(self) -> bool:
        """Nothing lost, nothing twice."""
        return self.published == self.trained + self.waiting and not self.lost and not self.twice


def balance(published: int, trained: Iterable[tuple[int, int]], waiting: Iterable[int]) -> Books:
    """The books of batches 0 to ``published``: ranges of numbers that were trained on, and the numbers that wait.

    >>> balance(10, [(0, 4), (3, 7)], [8, 9])
    Books(published=10, trained=8, waiting=2, lost=1, twice=1)
    """
    times = [0] * published
    numbers = [number for first, end in trained for number in range(first, end)]
    waiting = list(waiting)
    for number in [*numbers, *waiting]:
        times[number] += 1
    return Books(published, len(numbers), len(waiting), times.count(0), sum(n - 1 for n in times if n > 1))


def repeated_steps(log: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """How many steps were taken a second time by another trainer, and how many of them on other numbers than before."""
    first: dict[int, dict[str, Any]] = {}
    repeated = [(first[line["step"]], line) for line in log if first.setdefault(line["step"], line) is not line]
    return len(repeated), sum(before != after for before, after in repeated)


# The processes ------------------------------------------------------------------------------------------------


@contextmanager
def running(name: str, command: list[str], folder: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block: asked first, as Ctrl-C would, and made to if it does not listen."""
    # A group of its own: Ctrl-C in the terminal then comes here only, and each process is asked once.
    process = subprocess.Popen([sys.executable, *command], cwd=folder, process_group=0, **options)
    try:
        yield process
    finally:
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            console.print(f"{name} did not end when asked to, and was killed.")
        finally:
            process.kill()
            process.wait()


def wait_until(is_so: Callable[[], bool], *processes: subprocess.Popen[bytes], timeout_s: float = float("inf")) -> bool:
    """Whether it became so while all the processes were running and before the time was over."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until and all(process.poll() is None for process in processes):
        if is_so():
            return True
        time.sleep(0.01)
    return False


def steps_in(log: Path) -> list[dict[str, Any]]:
    """The steps that the trainers noted down: the number of the batch, and its loss."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def saved_in(path: Path) -> dict[str, Any]:
    """What the trainer wrote into its checkpoint beside the tensors."""
    import checkpoint  # it brings torch, for which the processes should not have to wait

    return checkpoint.read_rest(path)


def last_step(log: Path) -> int:
    """The step that the trainer is at; cheap, for this is asked a hundred times a second."""
    if not log.exists():
        return 0
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 500))
        whole_lines = file.read().split(b"\n")[:-1]
    return json.loads(whole_lines[-1])["step"] if whole_lines else 0


# The run ------------------------------------------------------------------------------------------------------


def run(folder: Path, settings: list[str]) -> bool:
    """Provider and trainer in ``folder``, a copy of the workspace; whether all came out as promised."""
    config = load_config(folder / CONFIG, settings, workspace=folder)
    arguments = [CONFIG, *(f"--set={setting}" for setting in settings)]
    began = time.monotonic()
    with open(folder / "prepare.log", "wb") as said:
        options = {"stdout": said, "stderr": subprocess.STDOUT}
        with running("The provider", ["prepare.py", *arguments], folder, **options) as provider:
            if not wait_until(lambda: has_queue(config), provider, timeout_s=STARTS_WITHIN_S):
                return failed("the provider made no queue", folder)
            if not train_with_a_kill(folder, config, arguments, provider):
                return failed("the training did not end well", folder)
            seconds = time.monotonic() - began
    if provider.returncode not in (0, 130):
        return failed(f"the provider ended with {provider.returncode}", folder)
    return show_books(folder, config, seconds)


def train_with_a_kill(
    folder: Path, config: SharedConfig, arguments: list[str], provider: subprocess.Popen[bytes]
) -> bool:
    """Train, kill the trainer in the middle between two checkpoints, and train to the end; whether that went well."""
    saved, log = folder / config.out_dir / "checkpoint.npz", folder / config.out_dir / "log.jsonl"
    n_checkpoints = max(1, round(config.max_steps / config.checkpoint_every / 2))
    kill_at = n_checkpoints * config.checkpoint_every + config.checkpoint_every // 2
    with running("The trainer", ["train.py", *arguments], folder) as trainer:
        if not wait_until(lambda: last_step(log) >= kill_at and saved.exists(), trainer, provider):
            console.print(f"It ended before it could be killed at step {kill_at}.")
            return False
        trainer.kill()
    console.show_cursor()  # which the trainer's live display had hidden
    console.print(f"\n[bold]The trainer was killed after step {last_step(log)}, and is started again.[/]\n")
    with running("The trainer", ["train.py", *arguments], folder) as trainer:
        wait_until(lambda: False, trainer, provider)
        return provider.poll() is None and trainer.wait() == 0


def has_queue(config: SharedConfig) -> bool:
    """Whether a trainer would find what it needs."""
    return all((config.dataset_path / "queue" / split / "meta.json").exists() for split in config.splits)


def show_books(folder: Path, config: SharedConfig, seconds: float) -> bool:
    """Print the accounting; whether it is balanced."""
    seen = saved_in(folder / config.out_dir / "checkpoint.npz")["seen"]
    status = queue_status(config.dataset_path)
    table = Table(title=f"{seconds:.0f} seconds, batches of {config.batch_size} x {config.block_size} characters")
    for column in ("", "produced", "trained", "waiting", "lost", "twice"):
        table.add_column(column, justify="right")
    all_books = {}
    for split in config.splits:
        files = (config.dataset_path / "queue" / split).glob("*.safetensors")
        numbers = [int(file.name.split(".")[0]) for file in files]
        # What lies below is done: the queue will never hand it out again, and deletes it when it comes to it.
        waiting = [number for number in numbers if number >= status[split].acknowledged]
        books = all_books[split] = balance(status[split].published, seen[split], waiting)
        name = split if split == "train" else f"{split} (evaluated)"
        table.add_row(name, *(f"{n:,}" for n in vars(books).values()))
    console.print(table)

    log = steps_in(folder / config.out_dir / "log.jsonl")
    n_repeated, n_different = repeated_steps(log)
    console.print(
        f"{n_repeated} steps of the killed trainer were taken again, {n_different} of them with another batch or loss."
    )
    is_balanced = all(books.are_balanced for books in all_books.values()) and not n_different
    trained = all_books["train"]
    is_complete = trained.trained == config.max_steps
    if is_balanced and is_complete:
        sum_of = f"{trained.published:,} produced = {trained.trained:,} trained + {trained.waiting:,} waiting"
        console.print(f"[bold green]{sum_of}, 0 lost, 0 twice.[/]")
    else:
        console.print("[bold red]The books are not balanced.[/]")
    return is_balanced and is_complete


def failed(what: str, folder: Path) -> bool:
    """Say what went wrong, and what the provider had to say."""
    console.print(f"[bold red]{what}[/]; the provider said:")
    console.print((folder / "prepare.log").read_text()[-2000:] or "nothing", markup=False)
    return False


def main(arguments: list[str]) -> int:
    """Copy the workspace to a folder that is gone afterwards, and run there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    settings = parser.parse_args(arguments).set
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes end then, too
    console.rule("[bold]A queue, trained on while it is filled")
    with tempfile.TemporaryDirectory(prefix="char_diffusion_") as temporary:
        folder = Path(temporary, "workspace")
        shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("queue", "runs", "__pycache__"))
        try:
            return 0 if run(folder, settings) else 1
        except KeyboardInterrupt:
            console.print("Interrupted; provider and trainer have ended.")
            return 130
        except PoolishError as error:
            console.print(f"{type(error).__name__}: {error}", markup=False)
            return 1


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"  # of the processes: what they say is seen as it is said
    sys.exit(main(sys.argv[1:]))
