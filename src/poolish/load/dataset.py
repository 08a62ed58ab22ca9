"""Dataset: a length and an index, and everything else derived from them.

    Dataset D: {0, ..., n-1} -> samples

An object with those two methods is a dataset here, derived from this class or not: torch's and Hugging Face's datasets,
lists, snapshots of a buffer, windows of a stream.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from poolish.errors import ConfigError, Unfingerprintable
from poolish.fingerprints import MAX_BYTES, MAX_VALUES, fingerprint, qualified_name
from poolish.load.frozen import FrozenRows, NumberedRows
from poolish.printable import printable
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.tokens.member_windows import MemberWindows
from poolish.tokens.window_dataset import WindowDataset

if TYPE_CHECKING:
    from poolish.load.memory_cache import Fit
    from poolish.load.views.composite import CompositeDataset

#: What to do about a dataset or a function that cannot be fingerprinted.
ADVICE = (
    "pass version=1 to the CachedDataset, TransformedDataset, FilteredDataset or AdaptedDataset that uses it, and "
    "another number whenever it changes"
)


class Operations(NamedTuple):
    """What a dataset's methods need of views, which build on this module; the package provides them when it loads."""

    concatenate: Callable[[list[Any]], CompositeDataset]
    fit: Callable[[Any, float | str], Fit]
    materialise: Callable[[Any, float | str], Dataset]


_operations: Operations


def provide(operations: Operations) -> None:
    """Set the operations that all datasets use."""
    global _operations
    _operations = operations


class Dataset(ABC):
    """Samples by number. Access is stateless: the same number gives the same sample, in any thread or process.

    Write ``__len__`` and ``__getitem__``; where many samples can be read faster together, ``__getitems__`` as well.

    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return {"square": check_index(index, 4) ** 2}
    >>> squares = Squares()
    >>> squares, squares[-1], [row["square"] for row in squares + squares]
    (<Squares of 4 rows: square>, {'square': 9}, [0, 1, 4, 9, 0, 1, 4, 9])
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def __getitem__(self, index: int) -> Any:
        """One sample; a negative number counts from the end, a number outside is an IndexError."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many samples, in the order asked for."""
        return [self[i] for i in indices]

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self)):
            yield self[i]

    def __add__(self, other: Any) -> CompositeDataset:
        return _operations.concatenate([self, other])

    def __repr__(self) -> str:
        columns = printable(", ".join(map(str, self.metadata["columns"] or ())))
        return f"<{type(self).__name__} of {len(self):,} rows{': ' if columns else ''}{columns}>"

    @property
    def metadata(self) -> dict[str, Any]:
        """What the dataset is: its class, its length, and the columns of its samples where they have names."""
        first = self[0] if len(self) else None
        columns = list(first) if isinstance(first, Mapping) else None
        return {"name": type(self).__name__, "rows": len(self), "columns": columns, "version": self.version}

    def fits(self, if_fits: float | str = 0.5) -> Fit:
        """Whether all rows fit into memory, and why: estimated from some of the rows, which are read for it.

        ``if_fits`` is a number of bytes (``1_000_000``, ``"2gb"``) or a fraction of the memory that is free now (a
        float up to 1).
        """
        return _operations.fit(self, if_fits)

    def materialise(self, if_fits: float | str = 0.5) -> Dataset:
        """All rows read into memory now, if they fit; else this dataset itself, whose rows are read when asked for.

        What fits is said as for ``fits``, which also says how it was decided. The rows are kept by a ``CachedDataset``,
        so they are copies, and rows that come or change later are read then. A dataset whose rows turn out larger than
        estimated stays lazy. Both decisions are logged by ``poolish.load``.

        >>> from poolish.load.views.single import SubsettedDataset
        >>> rows = SubsettedDataset([{"x": bytes(1_000)} for _ in range(50)], range(50))
        >>> print(rows.fits("1mb"))
        50 rows of about 1,2... bytes: 6... bytes in all, 1,048,576 allowed; they fit
        >>> rows.materialise(if_fits="1mb").stats.items, rows.materialise(if_fits="10kb") is rows
        (50, True)
        """
        return _operations.materialise(self, if_fits)

    @property
    def version(self) -> str:
        """Text that changes whenever a sample of this object does. Empty: the samples never change.

        It distinguishes states of one dataset. A cache on disk also distinguishes datasets: see ``identity_of``.
        """
        return ""

    def _identity(self) -> Any:
        """What identifies this dataset besides its version; not implemented: its class and all attributes."""
        return NotImplemented

    def __fingerprint__(self) -> Any:
        own = self._identity()
        return own if own is NotImplemented else (own, self.version)

    def set_epoch(self, epoch: int) -> None:  # noqa: B027  # most datasets are the same in every epoch
        """Loaders say here which epoch begins; views whose samples depend on it pass it on."""

    def snapshot_rows(self) -> FrozenRows:
        """The rows as they are now, by id; a loader reads nothing else."""
        return NumberedRows(self)


def check_index(index: int, n_rows: int) -> int:
    """A row number from 0 up, whatever integer was asked for; an IndexError names it and the length.

    >>> check_index(-1, 4)
    3
    """
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(f"rows are chosen by whole numbers, got {type(index).__name__} {index!r}") from None
    if not -n_rows <= number < n_rows:
        raise IndexError(f"row {number} of {n_rows:,} rows" if n_rows else f"row {number}: there are no rows")
    return number + n_rows if number < 0 else number


def whole_number(value: Any, least: int) -> int | None:
    """``value`` as a plain int, if it is a whole number from ``least`` up; True and False are none.

    >>> whole_number(np.int64(3), 1), whole_number(True, 0), whole_number(0, 1)
    (3, None, None)
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
    return None if number is None or number < least else number


def check_map_style(dataset: Any, what: str = "dataset") -> Any:
    """``dataset``, if it has a length and an index."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"{what}: {type(dataset).__name__} has no length or no index; make it a list, or wrap it in AdaptedDataset"
        )
    return dataset


def samples(dataset: Any, numbers: Sequence[int] | np.ndarray[Any, Any]) -> list[Any]:
    """Many samples of anything map-style, in one call where it knows how."""
    wanted = [int(i) for i in numbers]
    many = getattr(dataset, "__getitems__", None)
    return list(many(wanted)) if many is not None else [dataset[i] for i in wanted]


def identity_of(dataset: Any) -> str:
    """A fingerprint that two datasets share only if they have the same samples, in this process and in any other.

    Data in memory is identified by its content, an object by its class and attributes, a buffer or stream by its id.
    What cannot be fingerprinted is identified by its class and its own ``version``; without one, it is refused.

    >>> identity_of([1, 2]) == identity_of([1, 2]) != identity_of([1, 3])
    True
    """
    if isinstance(dataset, (DatasetBuffer, Snapshot, WindowDataset, MemberWindows)):
        return f"{qualified_name(type(dataset))} {dataset.uuid}"
    own = dataset._identity() if isinstance(dataset, Dataset) else NotImplemented
    try:
        return fingerprint(
            dataset if own is NotImplemented else own,
            type(dataset).__name__,
            advice=ADVICE,
            max_values=MAX_VALUES,
            max_bytes=MAX_BYTES,
        )
    except Unfingerprintable:
        if not _declares_version(dataset):
            raise
        return f"version of {qualified_name(type(dataset))}"


def _declares_version(dataset: Any) -> bool:
    """Whether the user's own class says when its samples change; the classes of this package only pass that on."""
    if not isinstance(dataset, Dataset):
        return bool(version_of(dataset))
    owner = next(each for each in type(dataset).__mro__ if "version" in vars(each))
    return not owner.__module__.startswith("poolish.")


def check_version(version: Any) -> Any:
    """A version that the user passes: text, a number, or None."""
    if isinstance(version, bool) or not isinstance(version, (str, int, float, type(None))):
        raise ConfigError(f"version={version!r}: give text or a number that changes whenever the samples do")
    return version


def version_of(dataset: Any) -> str:
    """What changes whenever a sample of ``dataset`` does, as far as its class reports it."""
    own = getattr(dataset, "version", None)
    if isinstance(own, str):
        return own
    return str(getattr(dataset, "_fingerprint", "") or getattr(dataset, "uuid", ""))
