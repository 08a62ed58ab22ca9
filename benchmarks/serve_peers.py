"""Other ways to bring batches from one process to another: each a *lane* with two ends.

A lane is opened in the parent, which reads; ``fill`` runs in a forked child, which writes until it is killed. All of
them carry the same arrays, may run 64 batches ahead, and end with the reader touching every page of what it got.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
AHEAD = 64
_fork = multiprocessing.get_context("fork")


def touch(arrays: Any) -> None:
    """Look at every page: a file that is mapped and not looked at has not been read."""
    for array in arrays.values() if isinstance(arrays, dict) else arrays:
        int(array.reshape(-1)[::512].sum())


class Files:
    """One file per batch, written beside and renamed; the reader polls for the next number and deletes it."""

    def __init__(
        self, folder: Path, write: Callable[[str, Arrays], object], read: Callable[[str], Arrays], pause_s: float = 2e-4
    ) -> None:
        self._folder, self._write, self._read, self._pause_s = folder, write, read, pause_s
        self._room = _fork.Semaphore(AHEAD)
        folder.mkdir(parents=True)

    def fill(self, arrays: Arrays) -> None:
        """Write for ever."""
        i = 0
        while True:
            self._room.acquire()
            self._write(f"{self._folder}/writing", arrays)
            os.rename(f"{self._folder}/writing", f"{self._folder}/{i:012d}")
            i += 1

    def batches(self) -> Iterator[Arrays]:
        """Read for ever."""
        i = 0
        while True:
            path = f"{self._folder}/{i:012d}"
            while not os.path.exists(path):
                time.sleep(self._pause_s)
            yield self._read(path)
            os.unlink(path)
            self._room.release()
            i += 1


def bare_files(folder: Path) -> Files:
    """The least that files can cost: no header, no checksum, one writev and one map."""

    def write(path: str, arrays: Arrays) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.writev(fd, list(arrays.values()))
        os.close(fd)

    def read(path: str) -> Arrays:
        x, y = np.split(np.memmap(path, np.int64, "c").reshape(128, -1), 2)
        return {"x": x, "y": y}

    return Files(folder, write, read)


def npz_files(folder: Path) -> Files:
    """np.savez."""

    def write(path: str, arrays: Arrays) -> None:
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    return Files(folder, write, lambda path: dict(np.load(path)))


def safetensors_files(folder: Path) -> Files:
    """The official library."""
    from safetensors.numpy import load_file, save_file

    return Files(folder, lambda path, arrays: save_file(arrays, path), load_file)


def arrow_files(folder: Path) -> Files:
    """Arrow IPC, read by a memory map."""
    import pyarrow as pa

    def write(path: str, arrays: Arrays) -> None:
        batch = pa.record_batch({name: array.reshape(-1) for name, array in arrays.items()})
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)

    def read(path: str) -> Arrays:
        with pa.memory_map(path) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        return {name: batch.column(name).to_numpy().reshape(64, -1) for name in batch.schema.names}

    return Files(folder, write, read)


class Queue:
    """multiprocessing.Queue."""

    def __init__(self, folder: Path) -> None:
        self._queue = _fork.Queue(AHEAD)

    def fill(self, arrays: Arrays) -> None:
        """Put for ever."""
        while True:
            self._queue.put(arrays)

    def batches(self) -> Iterator[Arrays]:
        """Get for ever."""
        while True:
            yield self._queue.get()


def torch_loader(arrays: Arrays) -> Iterator[Arrays]:
    """A DataLoader of torch with one worker: tensors through shared memory."""
    import torch

    class Endless(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 1_000_000_000

        def __getitem__(self, i: int) -> Any:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}

    sampler = torch.utils.data.SequentialSampler(range(1_000_000_000))
    loader = torch.utils.data.DataLoader(
        Endless(), batch_size=None, sampler=sampler, num_workers=1, prefetch_factor=AHEAD
    )
    return iter(loader)
