"""Small queues to be damaged, whose every value is known, and the ways in which files are damaged."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish import DatasetConsumer
from poolish.files import checksum, checksum_hex
from poolish.serve import DataProviderBase
from poolish.transports.batch_file import ALIGNMENT, BatchMetadata
from tests.faults import SYSTEM_CALLS

FIELDS = [{"name": "a", "dtype": "int64", "shape": [3]}, {"name": "b", "dtype": "float32", "shape": [2]}]

#: The label of a batch that was never in a queue, and a tensor of two numbers as its header describes it.
LABEL = BatchMetadata("0123456789abcdef", "fedcba9876543210", rows=2, provider="w0", counter=7)
X = '"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}'


class Counting(DataProviderBase):
    """Batches that say which they are."""

    def build_meta(self) -> dict[str, Any]:
        return {"batch_schema": FIELDS, "edition": getattr(self, "edition", 1)}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        return made(self.batch_number(split))


def made(counter: int) -> dict[str, Any]:
    """The batch of a counter."""
    return {"a": 1000 * counter + np.arange(6).reshape(2, 3), "b": np.full((2, 2), counter / 4, np.float32)}


def counter_of(batch: dict[str, Any]) -> int:
    """Which batch this is, if every value of it is right."""
    counter = int(batch["a"][0, 0]) // 1000
    for name, array in made(counter).items():
        assert np.array_equal(batch[name], array), (name, batch[name])
    return counter


def provider(path: Path, name: str = "w0", **settings: Any) -> Counting:
    """A provider of one split that never waits for space unless it is told to."""
    known = {"dataset": "numbers", "batch_size": 2, "block_size": 3, "splits": ("train",), "min_free_bytes": 0}
    return Counting({**known, "max_backlog": 10_000, **settings}, path=path, name=name)


def filled(path: Path, n_batches: int, **settings: Any) -> Path:
    """A queue with so many batches, whose provider has ended; the directory of its split."""
    with provider(path, **settings) as filling:
        for _ in range(n_batches):
            filling.publish("train")
    return path / "queue" / "train"


def consumer(path: Path, **options: Any) -> DatasetConsumer:
    """A consumer that does not wait for long."""
    known = {"output": "numpy", "rank": 0, "world_size": 1, "timeout_s": 5}
    run = {"run": "damage"} if options.get("world_size", 1) > 1 else {}
    return DatasetConsumer(path, **{**known, **run, **options})


def marks_of(split: Path) -> Path:
    """The folder of the marks of the newest run."""
    (folder,) = (folder for folder in (split / "marks").iterdir() if folder.is_dir())
    return folder


def take(reading: DatasetConsumer, n_batches: int) -> list[int]:
    """The counters of the next batches."""
    return [counter_of(reading.get_batch()) for _ in range(n_batches)]


def file_of(split: Path, number: int) -> Path:
    """The file of a batch."""
    return split / f"{number:012d}.safetensors"


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of a file where it is."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def replace(path: Path, old: str | bytes, new: str | bytes) -> None:
    """Put other bytes of the same length in the place of those that stand once in a file."""
    old, new = (part.encode() if isinstance(part, str) else part for part in (old, new))
    content = path.read_bytes()
    assert content.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def forged(header: str | bytes, content: bytes = b"", *, length: int | None = None) -> bytes:
    """A file whose checksum is right, whatever its header says."""
    text = header.encode() if isinstance(header, str) else header
    text = text.ljust(-(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT - 8)
    end = 8 + len(text)
    whole = bytearray((len(text) if length is None else length).to_bytes(8, "little") + text + content)
    for name, covered in ((b'"header":"', end), (b'"checksum":"', len(whole))):
        start = whole.find(name + b"0" * 16, 0, end) + len(name)
        if start >= len(name):
            whole[start : start + 16] = checksum_hex(whole[:covered]).encode()
    return bytes(whole)


def header(tensors: str = "", **changes: Any) -> str:
    """A header as ours, with these tensors as text, and some of its metadata changed (None: left out)."""
    told = {"checksum": "0" * 16, "header": "0" * 16, "hash": "xxh3_64", "poolish": "1"}
    told |= {"queue": LABEL.queue, "schema": LABEL.schema}
    told |= {"rows": "2", "provider": "w0", "counter": "7", **changes}
    metadata = json.dumps({name: value for name, value in told.items() if value is not None}, separators=(",", ":"))
    return f'{{"__metadata__":{metadata}{"," if tensors else ""}{tensors}}}'


def words(*numbers: int) -> bytes:
    """Numbers that prove themselves, whoever wrote them."""
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    return packed + struct.pack("<Q", checksum(packed))


def slot(text: bytes) -> bytes:
    """Text that proves itself, as one slot of ``consumed``."""
    return struct.pack("<QQ", len(text), checksum(text)) + text


def snapshot(path: Path) -> dict[str, bytes]:
    """Every file under a path and what is in it."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """A ``TimeoutError`` out of anything that hangs."""

    def late(*_: object) -> None:
        raise TimeoutError(f"hangs for more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def names(error: BaseException, *parts: object) -> None:
    """An error says what it is about."""
    for part in parts:
        assert str(part) in str(error), error


def asks_for_space(name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a full disk can be what a system call fails with."""
    if name == "open":
        return bool(arguments[1] & os.O_CREAT)
    return name not in ("close", "unlink", "rmdir", "pread", "preadv")


@contextmanager
def failing(number: int, code: int, *, for_ever: bool = False) -> Iterator[list[str]]:
    """Fail system calls on files in this process, the given one (and all that follow); which calls there were."""
    calls: list[str] = []

    def faulty(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if code in (errno.ENOSPC, errno.EDQUOT) and not asks_for_space(name, arguments):
                return call(*arguments, **options)
            calls.append(name)
            is_bad = len(calls) == number or (for_ever and len(calls) > number)
            if is_bad and name == "close":
                call(*arguments)  # the descriptor is gone, whatever close says
            if is_bad:
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in (*SYSTEM_CALLS, "pread", "preadv", "truncate"):
            patch.setattr(os, name, faulty(name, getattr(os, name)))
        yield calls


def leftovers(path: Path) -> list[Path]:
    """Files that somebody began to write and did not finish."""
    return [file for file in path.rglob(".*") if file.name.endswith(".partial")]


def one_bit(rng: random.Random, content: bytearray) -> bytes:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def eight_bits(rng: random.Random, content: bytearray) -> bytes:
    for _ in range(8):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def cut(rng: random.Random, content: bytearray) -> bytes:
    return bytes(content[: rng.randrange(len(content))])


def zeros(rng: random.Random, content: bytearray) -> bytes:
    start, length = rng.randrange(len(content)), rng.choice([1, 8, 64, 4096])
    end = min(start + length, len(content))
    return bytes(content[:start] + bytes(end - start) + content[end:])


def swapped_words(rng: random.Random, content: bytearray) -> bytes:
    if len(content) >= 16:
        a, b = (8 * rng.randrange(len(content) // 8) for _ in range(2))
        content[a : a + 8], content[b : b + 8] = content[b : b + 8], content[a : a + 8]
    return bytes(content)


def inserted(rng: random.Random, content: bytearray) -> bytes:
    start = rng.randrange(len(content) + 1)
    return bytes(content[:start] + rng.randbytes(rng.choice([1, 8, 64])) + content[start:])


#: What disks, copies and editors do to files.
DAMAGES: list[Callable[[random.Random, bytearray], bytes]] = [
    one_bit,
    eight_bits,
    cut,
    zeros,
    swapped_words,
    inserted,
]


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with one damage to it, which may have changed nothing (zeros over zeros)."""
    return rng.choice(DAMAGES)(rng, bytearray(content))
