"""Guards at the two ends of a queue: what a provider does with a batch that is not good, and what a consumer does.

A provider has nobody to ask, so it puts the rows into quarantine and makes the next batch, until its budget is spent. A
consumer has a trainer that waits: it raises, or by the suite's choice leaves the batch or the rows out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from poolish.columns import Mask
from poolish.errors import BudgetSpent, ConfigError, DataRefused
from poolish.guards.checks.guard import Guard, ask, passed, refusal
from poolish.guards.checks.verdicts import Result
from poolish.guards.faults.budget import check_budget, n_allowed
from poolish.schema import readable
from poolish.serve.batch_file import Array, Columns, Label
from poolish.serve.quarantine import Quarantine


class Quarantined(DataRefused):
    """A provider's batch went to quarantine as a whole, and the provider may go on."""


class ProviderGuard:
    """Asks a guard about the batches of one split, keeps what may not pass in quarantine, and counts.

    ``max_rejected`` is a number of batches, or a share of those made; of a batch that lost some of its rows only that
    part counts. guards/tally.py tells how a share is judged while there are few.
    """

    def __init__(self, guard: Guard, folder: Path, max_rejected: float) -> None:
        self._guard, self._quarantine, self._budget = guard, Quarantine(folder), max_rejected
        self.n_seen = self.n_rejected = self.n_rejected_rows = 0
        self._rejected = 0.0

    def admit(self, columns: Columns, label: Label, place: str) -> tuple[Columns, int]:
        """The columns that may be published, and how many rows; ``Quarantined`` if there are none."""
        result = ask(self._guard, seen(columns), self, self._quarantine.folder.name)
        self.n_seen += 1
        kept = None if result.action == "log" else result.kept
        if kept is None:
            return columns, label.rows
        file = self._quarantine.put(columns, label, result, ~kept)
        n_kept = int(kept.sum())
        self.n_rejected += n_kept == 0
        self.n_rejected_rows += label.rows - n_kept
        self._rejected += (label.rows - n_kept) / label.rows
        if result.action == "raise":
            raise refusal(result, f"{place} (kept in {file})")
        if n_kept == 0:
            error = Quarantined(str(result.error(place, f"it is kept in {file}")))
            error.result = result
            raise error
        return {name: (dtype, array[kept]) for name, (dtype, array) in columns.items()}, n_kept

    def check_budget(self, place: str) -> None:
        """Raise if more was rejected than the user allows."""
        allowed = n_allowed(self._budget, self.n_seen)
        if self._rejected > allowed:
            raise BudgetSpent(
                f"{place}: {self._rejected:,.4g} of {self.n_seen:,} batches were rejected, max_rejected={self._budget} "
                f"allows {allowed:,}; look at {self._quarantine.folder}, then mend the source or raise max_rejected="
            )


class ConsumerGuard:
    """Asks a guard about the batches that a consumer is about to hand out."""

    def __init__(self, guard: Guard, rank: int, world_size: int) -> None:
        self._guard, self._rank, self._world_size = guard, rank, world_size

    def kept(self, columns: Columns, place: str, split: str) -> Mask | None:
        """Which rows the trainer gets, None for all. If none: skip the batch."""
        result: Result = ask(self._guard, seen(columns), self, split)
        kept = passed(result, place)
        if kept is not None and not kept.any() and self._world_size > 1:
            raise result.error(
                f"{place}, rank {self._rank} of {self._world_size}",
                "a rank that leaves a batch out would be out of step with the others: guard the provider instead",
            )
        return None if kept is None or kept.all() else kept


def seen(columns: Columns) -> dict[str, Array]:
    """The arrays of a batch as a guard sees them: numbers that NumPy can calculate with."""
    found = {name: readable(array, dtype).view() for name, (dtype, array) in columns.items()}
    for array in found.values():
        array.flags.writeable = False  # what a guard would write here would be published
    return found


def chosen(arrays: Mapping[str, Any], kept: Mask) -> dict[str, Any]:
    """The rows of arrays or tensors that are kept."""
    numbers = np.flatnonzero(kept)
    return {name: array[numbers] for name, array in arrays.items()}


def check_max_rejected(max_rejected: float) -> float:
    """The budget, if it is one."""
    try:
        return check_budget(max_rejected)
    except ConfigError as error:
        raise ConfigError(f"max_rejected: {str(error).partition(': ')[2]}") from None
