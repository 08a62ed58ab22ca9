"""Steps as dicts, read from the lanes a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolish.tokens.lanes import START, TYPE
from poolish.tokens.starts import View

if TYPE_CHECKING:
    from poolish.tokens.store import StreamStore

Int64 = NDArray[np.int64]

_ROWS = 4096


class Step(dict[str, Any]):
    """The fields of one step, and its number.

    >>> step = Step(7, {"action": 1})
    >>> step.number, step
    (7, {'action': 1})
    """

    def __init__(self, number: int, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.number = number


def read_steps(store: StreamStore, view: View, low: int, high: int) -> Iterator[Step]:
    """The steps in the index rows [low, high), which begin and end with whole steps."""
    fields, current = store._fields, None
    for begin in range(low, high, _ROWS):
        end = min(begin + _ROWS, high)
        rows = np.array(view.lanes.index.room[begin : end + 1])
        first = int(rows[0, START])
        tokens = np.array(view.lanes.data.room[first : int(rows[-1, START])])
        store._check_row_kept(begin)
        for (start, type_, number), stop in zip(rows[:-1].tolist(), rows[1:, START].tolist(), strict=True):
            field = fields[type_ & 0xFF]
            if current is None or current.number != number:
                if current is not None:
                    yield current
                    store._read()  # a stream that was closed meanwhile says so
                current = Step(number, {})
            current[field.name] = field.value(tokens[start - first : stop - first])
    if current is not None:
        yield current


def read_ordinals(store: StreamStore, view: View, ordinals: Int64) -> list[Step]:
    """The steps that are number so-and-so, in the order asked for."""
    edges = view.rows_not_below(TYPE, np.stack([ordinals, ordinals + 1], axis=1).reshape(-1) << 8).tolist()
    return [
        step for low, high in zip(edges[::2], edges[1::2], strict=True) for step in read_steps(store, view, low, high)
    ]
