"""What a loader yields: columns, and which rows they are."""

from __future__ import annotations

from typing import Any

from poolish.load.frozen import Int64


class Batch(dict[str, Any]):
    """Columns of one batch, with the ids of its rows and its place in the order of all rows.

    ``ids[i]`` is the row that ``batch[name][i]`` came from; ``position`` counts the rows of this epoch that came before
    the step, over all ranks; ``step`` counts steps since training began. All three are None where they are unknown: in
    a batch that a framework rebuilt as ``type(batch)(columns)``. Copies, pickles and ``batch | columns`` keep them.

    >>> import numpy as np
    >>> batch = Batch({"label": np.array([1, 0])}, ids=np.array([17, 4]), position=256, step=8)
    >>> batch["label"].tolist(), batch.ids.tolist(), batch.position, len(batch.ids)
    ([1, 0], [17, 4], 256, 2)
    >>> (batch | {"weight": [0.5, 1.0]}).step, type(batch)({"label": [1, 0]}).step
    (8, None)
    """

    def __init__(
        self, columns: Any = (), *, ids: Int64 | None = None, position: int | None = None, step: int | None = None
    ) -> None:
        super().__init__(columns)
        self.ids = ids
        self.position = position
        self.step = step

    def copy(self) -> Batch:
        """The same columns of the same rows."""
        return Batch(self, ids=self.ids, position=self.position, step=self.step)

    def __or__(self, columns: Any) -> Any:
        """The same rows with more columns, or others."""
        if not isinstance(columns, dict):
            return NotImplemented
        both = self.copy()
        both.update(columns)
        return both


class BatchTuple(tuple[Any, ...]):
    """The same for samples that are tuples: ``for x, y in loader``."""

    ids: Int64 | None = None
    position: int | None = None
    step: int | None = None


def labelled(columns: Any, ids: Int64, position: int, step: int) -> Any:
    """``columns`` as a batch that knows its rows; what is neither a dict nor a tuple stays as it is."""
    if isinstance(columns, dict):
        return Batch(columns, ids=ids, position=position, step=step)
    if isinstance(columns, tuple) and type(columns) is tuple:
        batch = BatchTuple(columns)
        batch.ids, batch.position, batch.step = ids, position, step
        return batch
    return columns
