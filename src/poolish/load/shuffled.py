"""A dataset in a random order that is computed, not stored: it costs the same for ten rows and for ten billion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poolish import seeds
from poolish.fixed import fixed_parameters
from poolish.load.dataset import check_index, samples
from poolish.load.frozen import Frozen, freeze
from poolish.load.views import Numbering, Renumbered, RenumberingView, check_epoch
from poolish.seeds import KeyedPermutation


@fixed_parameters("make a new ShuffledDataset", stored=False)
class ShuffledDataset(RenumberingView):
    """The rows of ``dataset`` in an order that the seed, the epoch and the length decide; each row comes once.

    When the dataset grows the order is another one. (A loader's own ``shuffle=True`` survives growth; this is for
    whoever reads by number.)

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
        self._turn_to(0)

    def __getitem__(self, index: int) -> Any:
        order = self._order(len(self._dataset))
        return self._dataset[order[check_index(index, len(order))]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """In one call below."""
        order = self._order(len(self._dataset))
        return samples(self._dataset, order[[check_index(index, len(order)) for index in indices]])

    @property
    def choice(self) -> str:
        """All rows, in the order of a seed."""
        return f"shuffled {self._seed}"

    def set_epoch(self, epoch: int) -> None:
        """From now on the order is that of ``epoch``."""
        self._turn_to(check_epoch(epoch))
        super().set_epoch(epoch)

    def _turn_to(self, epoch: int) -> None:
        self._key = seeds.key(self._seed, "shuffle", epoch)

    @property
    def version(self) -> str:
        """Another order is another dataset."""
        return f"{super().version}|shuffled {self._key} {len(self)}"

    def freeze(self) -> Frozen:
        """This epoch's order of the rows that are there now."""
        rows = freeze(self._dataset)
        numbering = Numbering(rows)
        order = self._order(numbering.n_numbers)
        return Renumbered(rows, numbering.n_numbers, lambda numbers: numbering.ids(order[numbers]))

    def _order(self, n_rows: int) -> KeyedPermutation:
        return KeyedPermutation(n_rows, self._key)
