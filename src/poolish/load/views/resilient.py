"""A dataset whose source may fail: tried again, left alone for a while when it fails too often, replaced by policy.

    retry      an attempt that failed is made again, later           (guards/retry.py)
    breaker    a source that fails most of the time is not asked     (guards/breaker.py)
    faults     what stands in for a row that cannot be had           (guards/faults.py)

Each attempt goes through the breaker, so a storm of retries opens it; what is left of an error then follows the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poolish.errors import ConfigError
from poolish.fingerprints import unfingerprintable
from poolish.fixed import fixed_parameters
from poolish.guards import CircuitBreaker, Faults, Retry
from poolish.load.dataset import identity_of
from poolish.load.frozen import FrozenRows, Int64
from poolish.load.views.view import ReadRows, SampleView


@fixed_parameters("make a new ResilientDataset", stored=False)
class ResilientDataset(SampleView):
    """``dataset`` with its reads retried, guarded by a breaker, and replaced by policy where that is not enough.

    A dataset has a row for every number, so ``Faults(on_sample="skip")`` is for a ``Loader``; here a row is replaced by
    a placeholder or by its neighbour, or its error comes out.

    >>> from poolish.guards import Faults
    >>> class Flapping(list):
    ...     def __getitem__(self, i):
    ...         if i == 1:
    ...             raise OSError("the disk is away")
    ...         return super().__getitem__(i)
    >>> rows = ResilientDataset(Flapping([10, 20, 30]), faults=Faults(on_sample="neighbour", budget=2))
    >>> list(rows)
    [10, 30, 30]
    """

    def __init__(
        self,
        dataset: Any,
        *,
        retry: Retry | None = None,
        breaker: CircuitBreaker | None = None,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(dataset)
        if faults is not None and faults.on_sample == "skip":
            raise ConfigError(
                'on_sample="skip": a dataset has a row for every number; choose "placeholder" or "neighbour", or give '
                "these faults to the Loader"
            )
        if faults is not None:
            faults.expect(getattr(dataset, "schema", None))
        self._retry, self._breaker, self._faults = retry, breaker, faults

    def _numbers_below(self, indices: Sequence[int]) -> list[int]:
        """Checked here, because an error of the dataset is answered by policy."""
        return self._numbers(indices)

    def _over(self, rows: FrozenRows) -> FrozenRows:
        """The rows, read with the same care."""
        return ReadRows(rows, self.read)

    def read(self, ids: Int64, rows: FrozenRows) -> list[Any]:
        """Samples as well as they can be had."""
        breaker = self._breaker
        guarded = rows.fetch if breaker is None else lambda some: breaker.call(rows.fetch, some)

        def attempt(some: Int64) -> list[Any]:
            if self._retry is None:
                return guarded(some)
            if len(some) == 1:
                return self._retry.call(guarded, some)
            try:
                return guarded(some)
            except Exception as error:
                if not self._retry.is_retried(error):
                    raise
            # Row by row, each with its own attempts: of a batch, one row or another fails nearly every time.
            return [sample for i in range(len(some)) for sample in attempt(some[i : i + 1])]

        if self._faults is None or not len(ids):
            return attempt(ids)
        found, _ = self._faults.read(
            ids, attempt, lambda id_: attempt(_one(id_))[0], is_neighbour=lambda id_: _is_row(rows, id_)
        )
        return list(found)

    def _identity(self) -> Any:
        """That of the dataset: with ``faults``, some samples are substitutes, which a cache on disk must not keep."""
        if self._faults is not None:
            uses = "faults, so that some of its samples are substitutes"
            raise unfingerprintable("ResilientDataset", uses, "cache below it: ResilientDataset(CachedDataset(...))")
        return identity_of(self._dataset)


def _one(id_: int) -> Int64:
    return np.array([id_], np.int64)


def _is_row(rows: FrozenRows, id_: int) -> bool:
    if not any(first <= id_ < end for first, end in rows.spans()):
        return False
    alive = rows.alive(_one(id_))
    return alive is None or bool(alive[0])
