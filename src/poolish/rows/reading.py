"""Reading a buffer: everything is read from the snapshot of this moment, so nothing here can see half a change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from poolish.rows.snapshot import Found, Snapshot

if TYPE_CHECKING:
    import datasets
    import torch


class ReadsSnapshots(ABC):
    """The reading half of ``DatasetBuffer``."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The rows as they are now."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows as dicts, the way torch's DataLoader asks for a whole batch: numbers have the dtype of their column."""
        return self.snapshot().__getitems__(indices)

    def __iter__(self) -> Iterator[pa.Table]:
        """The rows one by one, as one-row tables; rows that come or go meanwhile make no difference."""
        return iter(self.snapshot())

    def get_batch(self, indices: ArrayLike) -> pa.Table:
        """The rows with these numbers, in this order, copied into a table of their own."""
        return self.snapshot().get_batch(indices)

    def sample(
        self,
        n: int,
        weights: ArrayLike | str | None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
    ) -> pa.Table:
        """``n`` random rows; ``weights`` are one number per row, or the name of a column; ``rng`` follows the seed."""
        return self.snapshot().sample(n, weights, replace, rng)

    def by_id(self, ids: ArrayLike) -> Found:
        """The rows with these ids that are still there, and which of the ids are gone."""
        return self.snapshot().by_id(ids)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The row id of every row, oldest first; ids count up for ever and are never used again."""
        return self.snapshot().ids

    @property
    def generations(self) -> list[tuple[int, int]]:
        """The ids ``[first, last)`` that each append brought, for appends of which rows may be left."""
        return self.snapshot().generations

    @property
    def next_id(self) -> int:
        """The id that the next row will get."""
        return self.snapshot().next_id

    # -- conversions

    def to_arrow(self) -> pa.Table:
        """All rows as a table of one chunk, without a copy unless rows have left from the middle."""
        return self.snapshot().to_arrow()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For polars, pandas, DuckDB and everything else that speaks Arrow's C interface."""
        return self.snapshot().__arrow_c_stream__(requested_schema)

    def to_pydict(self) -> dict[str, list[Any]]:
        """Columns as lists of the values that ``buffer[i]`` would give."""
        return self.snapshot().to_pydict()

    def to_numpy(self, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Columns as arrays: read-only views of numbers and tensors, object arrays of anything else."""
        return self.snapshot().to_numpy(columns)

    def to_torch(
        self, columns: Sequence[str] | None = None, *, device: Any = None, copy: bool = False
    ) -> dict[str, torch.Tensor | Any]:
        """Columns as tensors, sharing memory where they can; see ``Snapshot.to_torch``."""
        return self.snapshot().to_torch(columns, device=device, copy=copy)

    def to_hf_dataset(self) -> datasets.Dataset:
        """A Hugging Face dataset with the features the rows came with, or those their types ask for."""
        return self.snapshot().to_hf_dataset()
