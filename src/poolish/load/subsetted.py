"""Some rows of a dataset, in any order, under numbers of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from poolish.errors import ConfigError
from poolish.files import checksum_hex
from poolish.fixed import fixed_parameters
from poolish.load.dataset import check_index, samples
from poolish.load.frozen import Frozen, Int64, freeze
from poolish.load.views import Numbering, Renumbered, RenumberingView


@fixed_parameters("make a new SubsettedDataset", stored=False)
class SubsettedDataset(RenumberingView):
    """The rows of ``dataset`` with these numbers, in this order; a boolean mask chooses as well.

    Numbers are checked at once: a split that does not fit its dataset is found before training. They are where rows
    stand now; of a buffer whose rows leave, take a subset of its snapshot.

    >>> flours = SubsettedDataset(["rye", "wheat", "spelt"], [2, -3])
    >>> list(flours), flours
    (['spelt', 'rye'], <SubsettedDataset of 2 rows>)
    >>> list(SubsettedDataset(["rye", "wheat", "spelt"], np.array([True, False, True])))
    ['rye', 'spelt']
    """

    def __init__(self, dataset: Any, indices: ArrayLike) -> None:
        super().__init__(dataset)
        self._indices = row_numbers(indices, len(dataset))

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[int(self._indices[check_index(index, len(self._indices))])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """In one call below."""
        return samples(self._dataset, self._indices[self._numbers(indices)] if len(indices) else [])

    @property
    def choice(self) -> str:
        """The numbers."""
        return f"subset {checksum_hex(self._indices.data)}"

    @property
    def version(self) -> str:
        """That of the dataset, and the choice."""
        return f"{super().version}|subset {checksum_hex(self._indices.data)}"

    def freeze(self) -> Frozen:
        """The chosen rows, with the dataset as it is now."""
        rows, indices = freeze(self._dataset), self._indices
        numbering = Numbering(rows)
        return Renumbered(rows, len(indices), lambda numbers: numbering.ids(indices[numbers]))


def row_numbers(indices: ArrayLike, n_rows: int) -> Int64:
    """Row numbers from 0 up, of whatever chooses rows; an error says which one is wrong.

    >>> row_numbers([0, -1], 3)
    array([0, 2])
    """
    chosen = np.asarray(indices if hasattr(indices, "__len__") else list(indices))  # type: ignore[arg-type]
    if chosen.size == 0 and chosen.dtype != bool:
        return np.empty(0, np.int64)
    if chosen.dtype == bool and chosen.shape != (n_rows,):
        raise ConfigError(f"indices: a mask has one value per row ({n_rows:,}), got shape {chosen.shape}")
    if chosen.dtype == bool:
        return np.flatnonzero(chosen).astype(np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise ConfigError(
            f"indices: row numbers in one dimension, got {chosen.dtype} of shape {chosen.shape}; "
            "pass whole numbers or a mask of True and False"
        )
    # Compared before the cast: a uint64 beyond int64 would turn negative, and count from the end.
    beyond = (chosen < -n_rows) | (chosen >= n_rows) if chosen.dtype.kind == "i" else chosen >= n_rows
    if beyond.any():
        place = int(np.argmax(beyond))
        raise IndexError(f"indices, place {place}: row {chosen[place]} of {n_rows:,} rows")
    numbers = chosen.astype(np.int64)
    return np.where(numbers < 0, numbers + n_rows, numbers)
