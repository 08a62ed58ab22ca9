"""CIFAR-10 as its authors publish it for C programs: fixed records in a few files, so reading one is arithmetic.

    record = label (1 byte), red (1024), green (1024), blue (1024), each 32 rows of 32;  a file holds 10,000 of them

The files are memory-mapped: nothing is read before it is needed, and processes share what the system keeps of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from poolish.concurrency import cached_property
from poolish.errors import CorruptDataError
from poolish.load.base import Transform
from poolish.load.vision import VisionDataset

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
RECORDS = 10_000
FOLDER = "cifar-10-batches-bin"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


class CIFAR10(VisionDataset):
    """The 50,000 training or 10,000 test images: ``{"image": uint8 (32, 32, 3), "label": int}``.

    ``root`` is the unpacked folder of the binary version, or the one it lies in; nothing is downloaded.

    >>> CIFAR10(folder)
    Traceback (most recent call last):
    FileNotFoundError: .../data_batch_1.bin: not there; unpack https://.../cifar-10-binary.tar.gz into ...
    """

    unidentified = ("_paths", "_records")

    def __init__(
        self,
        root: str | os.PathLike[str],
        train: bool = True,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        super().__init__(root, transform, target_transform)
        self.train = train
        self.classes = list(CLASSES)
        self.class_to_idx = {name: label for label, name in enumerate(CLASSES)}
        inside = self.root / FOLDER
        names = [f"data_batch_{k}.bin" for k in range(1, 6)] if train else ["test_batch.bin"]
        self._paths = [(inside if inside.is_dir() else self.root) / name for name in names]
        for path in self._paths:
            _check(path, self.root)
        _ = self._stamps  # before the first byte is mapped, so that rows and version are of the same files

    def __len__(self) -> int:
        return RECORDS * len(self._paths)

    def read(self, number: int) -> dict[str, Any]:
        """One record; the pixels are copied out of the file."""
        record = self._records[number // RECORDS][number % RECORDS]
        label = int(record[0])
        if label >= len(CLASSES):
            raise CorruptDataError(f"{self._paths[number // RECORDS]}: label {label} of 10 classes; unpack it again")
        pixels = record[1:].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
        return {"image": np.array(pixels, order="C"), "label": label}

    def files(self) -> list[Path]:
        """The batches."""
        return list(self._paths)

    def files_of(self, number: int) -> list[Path]:
        """The batch that it is in."""
        return [self._paths[number // RECORDS]]

    def following(self, number: int, n_rows: int) -> range:
        """Those of the same batch."""
        return range(number + 1, min(number + 1 + n_rows, (number // RECORDS + 1) * RECORDS))

    @cached_property
    def _records(self) -> list[np.ndarray[Any, Any]]:
        mapped = [np.memmap(path, np.uint8, "r", shape=(RECORDS, RECORD)) for path in self._paths]
        self._compare(self._paths)
        return list(mapped)

    def __getstate__(self) -> dict[str, Any]:
        # A map would travel as all of its bytes; the other process maps the files itself.
        return {name: value for name, value in self.__dict__.items() if name != "_records"}


def _check(path: Path, root: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not there; unpack {URL} into {root}")
    if path.stat().st_size != RECORDS * RECORD:
        raise CorruptDataError(f"{path}: {path.stat().st_size:,} bytes, not {RECORDS * RECORD:,}; unpack {URL} again")
