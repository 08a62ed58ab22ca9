"""Images in folders, one folder for each class.

Images are arrays of height, width and channels, uint8, as every image library gives them: a transform turns them into
what a model wants. Nothing is decoded until it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from poolish.errors import ConfigError
from poolish.load.base import BaseDataset, Transform, found_files

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
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
        extensions: Sequence[str] = EXTENSIONS,
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
