"""Views with row numbers of their own: a subset in any order, and a random order that is computed, not stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from poolish import seeds
from poolish.errors import ConfigError
from poolish.files import checksum_hex
from poolish.fixed import fixed_parameters
from poolish.load.frozen import Int64
from poolish.load.views.view import ReindexedView, check_epoch
from poolish.seeds import KeyedPermutation


@fixed_parameters("make a new SubsettedDataset", stored=False)
class SubsettedDataset(ReindexedView):
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

    def _order(self, n_below: int | None = None) -> Int64:
        """Those chosen, whatever the dataset is now."""
        return self._indices

    @property
    def choice(self) -> str:
        """The numbers."""
        return f"subset {checksum_hex(self._indices.data)}"

    @property
    def version(self) -> str:
        """That of the dataset, and the choice."""
        return f"{super().version}|{self.choice}"


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


@fixed_parameters("make a new ShuffledDataset", stored=False)
class ShuffledDataset(ReindexedView):
    """The rows of ``dataset`` in an order that the seed, the epoch and the length decide; each row comes once.

    When the dataset grows the order is another one. (A loader's own ``shuffle=True`` survives growth; this is for
    reading by number.)

    >>> shuffled = ShuffledDataset(["rye", "wheat", "spelt", "oat"], seed=7)
    >>> list(shuffled)
    ['rye', 'wheat', 'oat', 'spelt']
    >>> shuffled.set_epoch(1)
    >>> list(shuffled)
    ['rye', 'wheat', 'spelt', 'oat']
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        super().__init__(dataset)
        self._seed = seeds.check_seed(seed)
        self._begin_epoch(0)

    def _order(self, n_below: int | None = None) -> KeyedPermutation:
        """This epoch's."""
        return KeyedPermutation(len(self._dataset) if n_below is None else n_below, self._key)

    @property
    def choice(self) -> str:
        """All rows, in the order of a seed."""
        return f"shuffled {self._seed}"

    def set_epoch(self, epoch: int) -> None:
        """From now on the order is that of ``epoch``."""
        self._begin_epoch(check_epoch(epoch))
        super().set_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        self._key = seeds.key(self._seed, "shuffle", epoch)

    @property
    def version(self) -> str:
        """Another order is another dataset."""
        return f"{super().version}|shuffled {self._key} {len(self)}"
