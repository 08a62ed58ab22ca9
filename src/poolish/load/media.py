"""Images, in folders or as CIFAR-10, and sound: one sample a file, or a record of one.

Images are arrays of height, width and channels, uint8, as every image library gives them: a transform turns them into
what a model wants. Nothing is decoded until it is asked for.

CIFAR-10 as its authors publish it for C programs: fixed records in a few files, so reading one is arithmetic.

    record = label (1 byte), red (1024), green (1024), blue (1024), each 32 rows of 32;  a file holds 10,000 of them

The files are memory-mapped: nothing is read before it is needed, and processes share what the system keeps of them.

Sound is a float32 array of channels and frames, from -1 to 1, as torchaudio has it. Only the frames that are asked for
are read, wherever the format can be entered in the middle (WAV, FLAC, OGG).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poolish.concurrency import cached_property
from poolish.errors import ConfigError, CorruptDataError
from poolish.load.base import BaseDataset, Transform, found_files, local_file

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".opus")
_OUTPUTS = ("array", "pil")
_MODES = ("RGB", "L", "RGBA")


class VisionDataset(BaseDataset):
    """Samples with an image and mostly a label: a dict ``{"image", "label"}`` or a tuple ``(image, label)``.

    Your own needs ``__len__`` and either ``read`` or ``__getitem__``, see ``BaseDataset``. ``transform`` is applied to
    the image, ``target_transform`` to the label.

    >>> class CustomVisionDataset(VisionDataset):
    ...     def __len__(self):
    ...         return 3
    ...     def read(self, number):
    ...         return np.full((2, 2, 3), number, np.uint8), number % 2
    >>> image, label = CustomVisionDataset(folder, transform=lambda image: image / 255)[-1]
    >>> image.shape, image.dtype, label
    ((2, 2, 3), dtype('float64'), 0)
    """

    input_name = "image"
    target_name = "label"


class ImageFolder(VisionDataset):
    """Images in ``root/<class>/...``: ``{"image": uint8 (height, width, channels), "label": int}``.

    Classes are the folders in ``root``, sorted; their place in ``classes`` is the label. Every image is converted to
    ``mode`` ("RGB", "L" with one channel, "RGBA"). ``output="pil"`` gives PIL images instead of arrays.

    >>> from PIL import Image
    >>> for grain in ("rye", "wheat"):
    ...     (folder / grain).mkdir()
    ...     Image.new("RGB", (4, 2), "white").save(folder / grain / "loaf.png")
    >>> loaves = ImageFolder(folder)
    >>> loaves.class_to_idx, loaves[1]["label"], loaves[1]["image"].shape
    ({'rye': 0, 'wheat': 1}, 1, (2, 4, 3))
    """

    unidentified = ("samples",)

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        mode: str = "RGB",
        output: str = "array",
        extensions: Sequence[str] = IMAGES,
    ) -> None:
        super().__init__(root, transform, target_transform)
        _pillow()  # missing is said now, not at the first image
        if mode not in _MODES or output not in _OUTPUTS:
            raise ConfigError(f"mode={mode!r}, output={output!r}: choose of {_MODES} and of {_OUTPUTS}")
        self._mode, self._output = mode, output
        self.classes = _class_names(self.root)
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        #: Path and label of every image.
        self.samples: list[tuple[str, int]] = []
        for name, label in self.class_to_idx.items():
            paths = found_files(self.root / name, tuple(extensions))
            if not paths:
                raise FileNotFoundError(f"{self.root / name}: no images ({', '.join(extensions)}); remove the folder")
            self.samples += [(path, label) for path in paths]

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, number: int) -> dict[str, Any]:
        """One image, decoded."""
        path, label = self.samples[number]
        try:
            with _pillow().open(path) as image:
                converted = image.convert(self._mode)
        except Exception as error:
            error.add_note(f"in {path}")
            raise
        return {"image": converted if self._output == "pil" else _pixels(converted), "label": label}

    def files(self) -> list[str]:
        """All images."""
        return [path for path, _ in self.samples]

    def files_of(self, number: int) -> list[str]:
        """The image."""
        return [self.samples[number][0]]


def _pixels(image: Any) -> np.ndarray[Any, Any]:
    pixels = np.array(image, np.uint8)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _class_names(root: Any) -> list[str]:
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; it should hold one folder of images for each class")
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise FileNotFoundError(f"{root}: no folders in it; put the images of each class into a folder of its name")
    return names


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('reading images needs Pillow: pip install "poolish[image]"') from error
    return Image


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


class AudioDataset(BaseDataset):
    """Sound files: ``{"audio": float32 (channels, frames), "rate": frames per second, "path": str}``.

    ``source`` is a folder, in which all sound files are found and sorted, or a list of files in the order you want.
    ``offset_s`` and ``duration_s`` read a part of each file; a file that ends sooner gives what there is.

    >>> import soundfile
    >>> soundfile.write(folder / "crust.wav", np.zeros((8000, 2)), 8000)
    >>> sounds = AudioDataset(folder, offset_s=0.25, duration_s=0.5)
    >>> sounds[0]["audio"].shape, sounds[0]["rate"]
    ((2, 4000), 8000)
    """

    input_name = "audio"
    unidentified = ("paths",)

    def __init__(
        self,
        source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        transform: Transform | None = None,
        *,
        offset_s: float = 0.0,
        duration_s: float | None = None,
        extensions: Sequence[str] = SOUNDS,
    ) -> None:
        _soundfile()  # missing is said now, not at the first sound
        if offset_s < 0 or (duration_s is not None and duration_s <= 0):
            raise ConfigError(f"offset_s={offset_s}, duration_s={duration_s}: seconds from 0, and a duration above 0")
        self._offset_s, self._duration_s = offset_s, duration_s
        if isinstance(source, (str, os.PathLike)):
            super().__init__(source, transform)
            self.paths = found_files(self.root, tuple(extensions))
        else:
            self.paths = [os.path.abspath(local_file(path, type(self).__name__)) for path in source]
            super().__init__(os.path.commonpath([*map(os.path.dirname, self.paths)]) if self.paths else ".", transform)
        if not self.paths:
            raise FileNotFoundError(f"{self.root}: no sound files ({', '.join(extensions)}); check the folder")
        missing = [path for path in self.paths if not Path(path).is_file()]
        if missing:
            raise FileNotFoundError(f"{missing[0]}: no such file; check the list")

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> dict[str, Any]:
        """One file, or the part of it."""
        path = self.paths[number]
        try:
            with _soundfile().SoundFile(path) as file:
                rate = int(file.samplerate)
                first = min(round(self._offset_s * rate), file.frames)
                file.seek(first)
                n_frames = -1 if self._duration_s is None else round(self._duration_s * rate)
                sound = file.read(n_frames, dtype="float32", always_2d=True)
        except Exception as error:
            error.add_note(f"in {path}")
            raise
        return {"audio": np.ascontiguousarray(sound.T), "rate": rate, "path": path}

    def files(self) -> list[str]:
        """The sound files."""
        return list(self.paths)

    def files_of(self, number: int) -> list[str]:
        """The sound file."""
        return [self.paths[number]]


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package without the library it wraps
        raise ImportError('reading sound needs soundfile: pip install "poolish[audio]"') from error
    return soundfile
