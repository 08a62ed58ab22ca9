"""The step behind a place, read and ready to be handed out: when it is asked for, or ahead of time by threads.

    walk --plans--> reading (here, or in ``workers``) --columns--> stage (the device) --> whoever asks

Where it is, the loader knows. A supply that has read ahead of another step than the one it is asked for forgets what
it has, and reads again from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poolish.load.frozen import Int64
from poolish.load.reading import Read, Reading, pieces_of
from poolish.load.sizes import nbytes
from poolish.load.walk import Piece, Place, Plan, Walks
from poolish.prefetch import Prefetcher, Workers

#: What may be read ahead of the trainer, however many batches that is.
MAX_BYTES_AHEAD = 2**30

#: A step, what was read for it, and its columns where they are wanted (or on their way there).
Supplied = tuple[Plan, Read, Any]


class Supply:
    """Steps of ``walk``, read by ``reading`` when they are asked for, and moved by ``stage`` if there is one."""

    def __init__(self, walk: Walks, reading: Reading, stage: Any) -> None:
        self._walk, self._reading, self._stage = walk, reading, stage

    def next(self, place: Place, stride: int) -> Supplied | None:
        """The step behind a place; None at the end. The one after it will be ``stride`` steps on."""
        plan = self._walk.next(place)
        if plan is None:
            return None
        read = self._reading.join([self._describing(piece) for piece in plan.pieces], plan.example)
        content = read.content if self._stage is None else self._stage.finish(self._stage.begin(read.content))
        return plan, read, content

    def prefetch(self, place: Place, stride: int) -> bool:
        """Begin to read the step behind a place, if anybody reads ahead; whether that was begun here and now."""
        return False

    def _describing(self, piece: Piece) -> Read:
        try:
            return self._reading.read(piece)
        except Exception as error:
            error.add_note(f"while reading {_where(piece)}")
            raise

    def forget(self, *, keep_workers: bool) -> None:
        """What was read ahead and not handed out is read again, by whoever goes on from the state."""


class SupplyAhead(Supply):
    """The same, read by ``n_workers`` threads up to ``n_ahead`` steps before they are asked for.

    A thread takes ``n_rows`` rows at once, or all that a step has from one dataset where it is None.
    """

    def __init__(
        self,
        walk: Walks,
        reading: Reading,
        stage: Any,
        *,
        n_workers: int,
        n_ahead: int,
        n_rows: int | None,
        timeout: float,
        init: Callable[[int], None] | None,
    ) -> None:
        super().__init__(walk, reading, stage)
        self._n_workers, self._n_ahead, self._n_rows = n_workers, n_ahead, n_rows
        self._timeout, self._init = timeout, init
        self._workers: Workers | None = None
        self._ahead: Prefetcher[Plan, Piece, Read, tuple[Plan, Read]] | None = None
        self._staged: Supplied | None = None

    def next(self, place: Place, stride: int) -> Supplied | None:
        """The step behind a place; None at the end. The threads go on with every ``stride``-th."""
        if self._ahead is None:
            self._ahead = self._begin(place, stride)
        current = self._staged or self._staging()
        self._staged = None
        if current is not None and current[0].place.step != place.step:
            # The batch before was ready when Ctrl-C came, and not handed out.
            self.forget(keep_workers=True)
            return self.next(place, stride)
        if current is None:
            # Nothing was sure ahead of time. Now somebody waits, so a short step or the end may be decided.
            self._ahead = None
            return super().next(place, stride)
        if self._stage is None:
            return current
        plan, read, moving = current
        if self._ahead.is_ready:  # its copy runs while the trainer works on this batch
            self._staged = self._staging()
        return plan, read, self._stage.finish(moving)

    def prefetch(self, place: Place, stride: int) -> bool:
        """The threads begin, unless they have."""
        if self._ahead is not None:
            return False
        self._ahead = self._begin(place, stride)
        self._ahead.begin()
        return True

    def _staging(self) -> Supplied | None:
        assert self._ahead is not None
        try:
            plan, read = next(self._ahead)
        except StopIteration:
            return None
        return plan, read, read.content if self._stage is None else self._stage.begin(read.content)

    def _begin(self, place: Place, stride: int) -> Prefetcher[Plan, Piece, Read, tuple[Plan, Read]]:
        if self._workers is None:
            self._workers = Workers(self._n_workers, self._init)
        reading, n_rows = self._reading, self._n_rows
        return Prefetcher(
            _Plans(self._walk, place, stride),
            lambda plan: plan.pieces if n_rows is None else pieces_of(plan, n_rows),
            reading.read,
            lambda plan, parts: (plan, reading.join(parts, plan.example)),
            workers=self._workers,
            n_ahead=self._n_ahead,
            max_bytes=MAX_BYTES_AHEAD,
            size_of=lambda read: nbytes(read.content),
            timeout=self._timeout,
            describe=_where,
        )

    def forget(self, *, keep_workers: bool) -> None:
        """Nothing is ready any more; the threads wait for the next step, or end."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._staged = None
        if self._workers is not None and not keep_workers:
            self._workers.close()
            self._workers = None


class _Plans:
    """The steps from a place to the end of the epoch, every ``stride``-th; an error of one leaves it the next."""

    def __init__(self, walk: Walks, place: Place, stride: int) -> None:
        self._walk, self._place, self._stride = walk, place, stride
        self._n_skip = 0

    def __iter__(self) -> _Plans:
        return self

    def __next__(self) -> Plan:
        while True:
            plan = self._walk.next(self._place, is_ahead=True)
            if plan is None:
                raise StopIteration
            self._place = plan.after
            if not self._n_skip:
                self._n_skip = self._stride - 1
                return plan
            self._n_skip -= 1


def _where(piece: Piece) -> str:
    ids: Int64 = piece.ids
    shown = ", ".join(map(str, ids[:5].tolist())) + (", ..." if len(ids) > 5 else "")
    return f"{'row' if len(ids) == 1 else 'rows'} {shown}; the loader is still before this batch"
