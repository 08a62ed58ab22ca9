"""What datasets that read files have in common: where they read, what is done to a sample, and whose fault an error is.

    BaseDataset                     root, transform, target_transform
    |-- VisionDataset               an image, and mostly a label
    |   |-- ImageFolder             one folder for each class
    |   |-- CIFAR10                 the binary version
    |   `-- yours                   one method: ``read`` or ``__getitem__``
    |-- TextDataset                 lines or documents
    `-- AudioDataset                sound, or parts of it

All of them can stand for each other: ``poolish.testing.DatasetBehaviour`` passes for each.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from poolish.concurrency import cached_property
from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.files import is_rewritten, local_path, local_stamp
from poolish.load.dataset import Dataset, check_index
from poolish.load.views.single import function_identity

#: Files that are all checked after each read where a dataset does not say which of them a row comes from.
_FEW_FILES = 8
#: Attributes that the version covers, or that are identified apart.
_COVERED = ("_stamps", "_files_version", "_changed", "_transform", "_target_transform", "_lock")

Transform = Callable[[Any], Any]


class BaseDataset(Dataset):
    """Samples from files under ``root``, read when they are asked for.

    Write ``__len__`` and one of two methods:

    - ``read(number)`` returns the raw sample. The base class checks the index, counts negative ones from the end,
      applies the transforms, and names the row in errors.
    - ``__getitem__(index)`` returns the finished sample. It does all of that itself, with ``check_index`` and
      ``self.transformed(sample)``.

    A sample is a dict or a tuple ``(input, target)``. ``transform`` is applied to the value named ``input_name``, or
    to the first of a tuple; ``target_transform`` to the one named ``target_name``, or to the second. Both see one
    value and no random numbers; ``TransformedDataset`` gives those.

    Return from ``files`` what is read (from ``files_of``, what one row is read from, where there are many files), so
    that a cache on disk notices when a file changes.

    >>> class Loaves(BaseDataset):
    ...     input_name = "loaf"
    ...     def __len__(self):
    ...         return 2
    ...     def read(self, number):
    ...         return {"loaf": f"loaf {number}"}
    >>> Loaves(folder, transform=str.upper)[-1]
    {'loaf': 'LOAF 1'}
    >>> class Pairs(BaseDataset):
    ...     def __len__(self):
    ...         return 2
    ...     def __getitem__(self, index):
    ...         number = check_index(index, len(self))
    ...         return self.transformed((f"loaf {number}", number))
    >>> Pairs(folder, transform=str.upper, target_transform=str)[-1]
    ('LOAF 1', '1')
    """

    #: Which value of a sample ``transform`` and ``target_transform`` are for.
    input_name = "input"
    target_name = "label"
    #: Attributes that do not decide what a sample is: maps of files, positions, paths that ``files`` returns.
    unidentified: tuple[str, ...] = ()

    # For classes of yours whose ``__init__`` does not call this one.
    root = Path()
    _transform: Transform | None = None
    _target_transform: Transform | None = None
    _changed = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "__getitem__" in own and "__getitems__" not in own:
            # Many rows at once are the same rows: loaders would otherwise read past the new method.
            cls.__getitems__ = Dataset.__getitems__  # type: ignore[method-assign]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuses a class that has neither of the two methods."""
        if cls.read is BaseDataset.read and cls.__getitem__ is BaseDataset.__getitem__:
            raise TypeError(
                f"{cls.__name__} cannot read its samples; write read(self, number), which returns a dict or a tuple "
                "before transforms, or __getitem__(self, index), which returns the finished sample"
            )
        return super().__new__(cls)

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        self.root = local_file(root, type(self).__name__)
        for name, function in (("transform", transform), ("target_transform", target_transform)):
            if function is not None and not callable(function):
                raise ConfigError(f"{name} is called with each value, got {function!r}; pass a function")
        self._transform, self._target_transform = transform, target_transform

    @property
    def transform(self) -> Transform | None:
        """Applied to the value named ``input_name``; assigning another one changes the version."""
        return self._transform

    @transform.setter
    def transform(self, function: Transform | None) -> None:
        self._transform, self._changed = function, f"|{secrets.token_hex(8)}"

    @property
    def target_transform(self) -> Transform | None:
        """Applied to the value named ``target_name``; assigning another one changes the version."""
        return self._target_transform

    @target_transform.setter
    def target_transform(self, function: Transform | None) -> None:
        self._target_transform, self._changed = function, f"|{secrets.token_hex(8)}"

    def read(self, number: int) -> Any:
        """The sample with this number, from 0 up, before it is transformed: a dict, or a tuple with the input first."""
        raise TypeError(f"{type(self).__name__} has a __getitem__ of its own and no read; call dataset[{number}]")

    def files(self) -> Sequence[str | os.PathLike[str]]:
        """The files that samples come from; their sizes, times and inodes make the version."""
        return ()

    def files_of(self, number: int) -> Sequence[str | os.PathLike[str]]:
        """The files that one row comes from, checked after each read; by default all, unless there are many."""
        return [*self._stamps] if len(self._stamps) <= _FEW_FILES else ()

    def following(self, number: int, n_rows: int) -> range:
        """Up to ``n_rows`` rows that come after this one in its file; a cache that is read in order reads them too.

        By default those of the only file; none where there are several, unless your class knows which row is where.
        """
        return range(number + 1, min(number + 1 + n_rows, len(self)) if len(self.files()) == 1 else number + 1)

    def __getitem__(self, index: int) -> Any:
        return self._finished(check_index(index, len(self)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """One after the other; the length is asked for once."""
        n_rows = len(self)
        return [self._finished(check_index(index, n_rows)) for index in indices]

    def transformed(self, sample: Any) -> Any:
        """A raw sample with ``transform`` and ``target_transform`` applied, each to its value; the rest is as it was.

        A sample without the value that a transform is for is an error, not a sample that was left alone.
        """
        functions = (self._transform, self._target_transform)
        for place, (name, function) in enumerate(zip((self.input_name, self.target_name), functions, strict=True)):
            if function is not None:
                sample = _replaced(sample, name, place, function)
        return sample

    def _finished(self, number: int) -> Any:
        try:
            sample = self.read(number)
            self._check_unchanged(number)
            return self.transformed(sample)
        except Exception as error:
            error.add_note(f"while reading row {number} of {type(self).__name__} under {self.root}")
            raise

    @property
    def version(self) -> str:
        """A digest of path, size, times and inode of all files, as they are when it is first asked for.

        From then on, each read checks that the file of its row is still the same, and raises if it is not.
        """
        return self._files_version + self._changed

    @cached_property
    def _files_version(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for path in self.files():
            digest.update(repr((os.fspath(path), self._stamps[os.fspath(path)])).encode())
        return digest.hexdigest()

    @cached_property
    def _stamps(self) -> dict[str, str]:
        return {os.fspath(path): local_stamp(path) for path in self.files()}

    def _check_unchanged(self, number: int) -> None:
        """Raise if a file is not the one that the version describes."""
        if "_files_version" in self.__dict__:
            self._compare(self.files_of(number))

    def _compare(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        """Raise if one of these files is not what it was when its stamp was taken."""
        for path in paths:
            if is_rewritten(self._stamps[os.fspath(path)], local_stamp(path)):
                raise CorruptDataError(f"{path}: changed while the dataset was open; open the dataset anew")

    def _identity(self) -> Any:
        """Its class, its functions, and all attributes but those that the version covers or that only speed it up."""
        own = {name: value for name, value in self.__dict__.items() if name not in (*_COVERED, *self.unidentified)}
        functions = (self._transform, self._target_transform)
        return type(self), own, [None if each is None else function_identity(each) for each in functions]


def _replaced(sample: Any, name: str, place: int, function: Transform) -> Any:
    """The sample with one value changed, found by its name in a dict or by its place in a tuple."""
    which = "target_transform" if place else "transform"
    if isinstance(sample, Mapping):
        if name not in sample:
            raise SchemaError(
                f"{which} is for the value {name!r}, and this sample has {list(sample)}; name the value {name!r}, or "
                f"set {'target_name' if place else 'input_name'} in the class"
            )
        return {**sample, name: function(sample[name])}
    if not isinstance(sample, tuple) or len(sample) <= place:
        shown = f"tuple of {len(sample)}" if isinstance(sample, tuple) else type(sample).__name__
        raise SchemaError(
            f"{which} needs a dict with {name!r} or a tuple (input, target), and this sample is a {shown}; return one "
            f"of those, or leave {which} out"
        )
    values = [function(value) if k == place else value for k, value in enumerate(sample)]
    return sample._make(values) if hasattr(sample, "_make") else tuple(values)


def local_file(path: str | os.PathLike[str], dataset: str) -> Path:
    """A path that a dataset of files is given, if it is on this machine."""
    return local_path(
        path, f"{dataset} path", instead="the sources of a recipe; download the files first, or bake them"
    )


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
