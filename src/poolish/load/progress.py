"""How far a loader is, as one value: handing a batch over is one assignment, and undoing it is another.

next()   progress --read the step behind it--> batch, new progress      assigned last, before the batch is returned
         whatever is raised on the way, Ctrl-C included, puts the former progress back: the same batch comes next
"""

from __future__ import annotations

from typing import Any, NamedTuple

from poolish.load.batch import Origin
from poolish.load.walk import Place


class Progress(NamedTuple):
    """Everything that one batch changes."""

    place: Place = Place()
    #: In a worker process: the steps of other workers to pass over before the next batch; None where an epoch begins.
    n_skip: int | None = None
    has_yielded: bool = False
    #: Rows that were due and not read.
    n_skipped: int = 0
    #: The dataset's own state behind the last batch, as JSON; None where it has none, or nothing was read yet.
    dataset: str | None = None
    #: The rows of the last batch.
    origin: Origin | None = None
    #: What the guard remembers behind the last batch, and the batches and rows that it has left out.
    guard: Any = None
    n_left_out: int = 0
    n_dropped: int = 0
