"""A small workspace, and the real command in it, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from poolish.errors import PoolishError
from poolish.serve import queue_status

TIMEOUT_S = 60

#: Whatever a test has started and not finished is ended after it (conftest).
STARTED: list[subprocess.Popen[str]] = []

CONFIG = """
dataset = "numbers"
batch_size = 2
block_size = 3
max_backlog = 8
"""

PROVIDER = """
import os, sys, time
import numpy as np
from poolish import DataProviderBase

class Numbers(DataProviderBase):
    def setup(self):
        SETUP

    def build_meta(self):
        fields = [{"name": name, "dtype": "int64", "shape": [self.block_size]} for name in ("x", "y")]
        return {"batch_schema": fields}

    def sample_batch(self, split, rng):
        SAMPLE
        x = rng.integers(10, size=(self.batch_size, self.block_size))
        return {"x": x, "y": 2 * x}
"""


def workspace(folder: Path, *, sample: str = "pass", setup: str = "pass", config: str = CONFIG) -> Path:
    """A workspace whose provider does what is asked, once when it is set up and before each batch; its config."""
    dataset = folder / "data" / "numbers"
    dataset.mkdir(parents=True)
    (dataset / "prepare_streaming.py").write_text(PROVIDER.replace("SETUP", setup).replace("SAMPLE", sample))
    path = folder / "config.py"
    path.write_text(config)
    return path


def start(*arguments: str | Path, cwd: Path, program: tuple[str, ...] = ("-m", "poolish")) -> subprocess.Popen[str]:
    """The command, running."""
    command = [sys.executable, *program, *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    STARTED.append(process)
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How the command ended and what it said; killed if it does not end."""
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"the command did not end; it said:\n{output}") from None
    return process.returncode, output


def run(*arguments: str | Path, cwd: Path, program: tuple[str, ...] = ("-m", "poolish")) -> tuple[int, str]:
    """The command from beginning to end."""
    return finish(start(*arguments, cwd=cwd, program=program))


def published(folder: Path, split: str = "train") -> int:
    """How many batches there ever were."""
    try:
        return queue_status(folder / "data" / "numbers")[split].published
    except (PoolishError, KeyError):
        return 0


def alive(folder: Path) -> list[str]:
    """Which providers are running."""
    try:
        status = queue_status(folder / "data" / "numbers")
    except PoolishError:
        return []
    return sorted({name for found in status.values() for name in found.alive})


def is_running(pid: int) -> bool:
    """Whether there is such a process, a zombie not counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
