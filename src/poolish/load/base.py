"""What datasets that read files have in common: where they read, what is done to a sample, and whose fault an error is.

    BaseDataset                     root, transform, target_transform
    |-- VisionDataset               an image, and mostly a label
    |   |-- ImageFolder             one folder for each class
    |   `-- CIFAR10                 the binary version
    |-- TextDataset                 lines or documents
    `-- AudioDataset                sound, or parts of it

All of them can stand for each other: ``poolish.testing.DatasetBehaviour`` passes for each.
"""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from poolish.errors import ConfigError
from poolish.lazy import cached_property
from poolish.load.dataset import Dataset, check_index
from poolish.load.transformed import fingerprint

Transform = Callable[[Any], Any]


class BaseDataset(Dataset):
    """Samples from files under ``root``, read when they are asked for.

    Write ``__len__`` and ``read(number)``, which gives a dict, and say in ``files`` what is read. ``transform`` is
    applied to the value named ``input_name``, ``target_transform`` to the one named ``target_name``. Both see one value
    and no random numbers; ``TransformedDataset`` gives those.

    >>> class Loaves(BaseDataset):
    ...     input_name = "loaf"
    ...     def __len__(self):
    ...         return 2
    ...     def read(self, number):
    ...         return {"loaf": f"loaf {number}"}
    >>> Loaves(folder, transform=str.upper)[-1]
    {'loaf': 'LOAF 1'}
    """

    #: Which value of a sample ``transform`` and ``target_transform`` are for.
    input_name = "input"
    target_name = "label"

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        self.root = Path(root)
        for name, function in (("transform", transform), ("target_transform", target_transform)):
            if function is not None and not callable(function):
                raise ConfigError(f"{name} is called with each value, got {function!r}; pass a function")
        self.transform, self.target_transform = transform, target_transform

    @abstractmethod
    def read(self, number: int) -> dict[str, Any]:
        """The sample with this number, from 0 up, before it is transformed."""

    def files(self) -> Sequence[str | os.PathLike[str]]:
        """The files that samples come from; their sizes and times make the version."""
        return ()

    def __getitem__(self, index: int) -> Any:
        return self._finished(check_index(index, len(self)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """One after the other; the length is asked for once."""
        n_rows = len(self)
        return [self._finished(check_index(index, n_rows)) for index in indices]

    def _finished(self, number: int) -> dict[str, Any]:
        try:
            sample = self.read(number)
            for name, function in ((self.input_name, self.transform), (self.target_name, self.target_transform)):
                if function is not None and name in sample:
                    sample[name] = function(sample[name])
        except Exception as error:
            error.add_note(f"while reading row {number} of {type(self).__name__} under {self.root}")
            raise
        return sample

    @cached_property
    def _files_version(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for path in self.files():
            stat = os.stat(path)
            digest.update(repr((os.fspath(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)).encode())
        for function in (self.transform, self.target_transform):
            digest.update(fingerprint(function).encode() if function is not None else b"\0")
        return digest.hexdigest()

    @property
    def version(self) -> str:
        """Tells files of other sizes or times apart, as they are when first asked, and other transforms."""
        return self._files_version


def found_files(root: Path, extensions: Sequence[str]) -> list[str]:
    """All files under a folder that end in one of ``extensions``, sorted; names that begin with a dot are left out."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; check the path")
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            os.path.join(folder, name)
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in extensions
        ]
    return sorted(found)
