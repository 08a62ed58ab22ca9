"""Who iterates over a loader: a DataLoader that would batch its batches again is refused, every other use is not."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader, default_collate

from poolish.errors import ConfigError
from poolish.load import Loader

ROWS = [{"n": n} for n in range(6)]


@pytest.mark.parametrize("options", [{"batch_size": 2}, {}, {"batch_size": 2, "collate_fn": default_collate}])
def test_batches_of_batches_are_refused(options):
    """The error has the line to write, also with the batch size of 1 that a DataLoader has by default."""
    with pytest.raises(ConfigError, match=r"DataLoader\(loader, batch_size=None\)"):
        next(iter(DataLoader(Loader(ROWS, 2), **options)))


def test_ready_batches_and_other_callers_are_not():
    """A DataLoader without a batch size, a function named as torch's, a loop."""

    def fetch(auto_collation, dataset):
        return [batch["n"].tolist() for batch in dataset]

    expected = [[0, 1], [2, 3], [4, 5]]

    assert [batch["n"].tolist() for batch in DataLoader(Loader(ROWS, 2), batch_size=None)] == expected
    assert fetch(True, Loader(ROWS, 2)) == expected
