"""Small files of every kind that datasets read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from poolish.load.media import CIFAR10, FOLDER, RECORD, RECORDS, AudioDataset, ImageFolder
from poolish.load.text import TextDataset


def make_images(folder: Path, **options: Any) -> ImageFolder:
    """Six images of random pixels in two classes, one of them in a folder further down."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for place in ("cat/a", "cat/b", "dog/a", "dog/b", "dog/more/c", "dog/z"):
        path = folder / "images" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)).save(path)
    return ImageFolder(folder / "images", **options)


def make_cifar(folder: Path) -> Any:
    """The first rows of test files that are as long as they should be, but for the most part empty."""
    from poolish.load.views.single import SubsettedDataset

    return SubsettedDataset(cifar_files(folder), range(8))


def cifar_files(folder: Path, *, train: bool = False) -> CIFAR10:
    """Files of the right size, which take no space: a few records, then zeros that are not written."""
    inside = folder / FOLDER
    inside.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for name in [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]:
        records = rng.integers(0, 256, (10, RECORD), dtype=np.uint8)
        records[:, 0] = np.arange(10)
        with open(inside / f"{name}.bin", "wb") as file:
            file.write(records.tobytes())
            file.truncate(RECORDS * RECORD)
    return CIFAR10(folder, train)


def make_text(folder: Path, **options: Any) -> TextDataset:
    """Three files with every kind of line end."""
    for name, data in {
        "a.txt": b"one\ntwo\r\n\r\nfour\n",
        "b.txt": b"\n\n\nfive \xc3\xa9\rstill five\n\nsix",
        "c.txt": b"seven\n\n\neight\n\nnine\n\nten",
        "d.txt": b"eleven",
        "e.txt": b"twelve",
    }.items():
        (folder / name).write_bytes(data)
    return TextDataset(folder / "*.txt", **options)


def make_audio(folder: Path, **options: Any) -> AudioDataset:
    """Five sounds of different lengths and channels."""
    import soundfile

    (folder / "sounds").mkdir(exist_ok=True)
    for k in range(5):
        sound = np.linspace(-0.5, 0.5, (k + 1) * 400 * (1 + k % 2)).reshape(-1, 1 + k % 2)
        soundfile.write(folder / "sounds" / f"{k}.wav", sound, 8000, subtype="FLOAT")
    return AudioDataset(folder / "sounds", **options)
