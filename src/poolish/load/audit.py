"""Which rows did steps a to b see? The recorded decisions are dealt out again to find out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from poolish.errors import ConfigError
from poolish.load.frozen import Int64
from poolish.load.ledger import LedgerProtocol, OnEmpty, Run, Skipped
from poolish.load.order import GenerationCursors, ObservedBounds
from poolish.load.planner import LoaderPosition, OpenBlock, OrderPlanner, Plan, StepPlanner
from poolish.load.shaping import row_ids


@dataclass
class Audit:
    """The rows of a range of steps, over all ranks.

    ``steps`` has the row ids of each step, in order; ``duplicates`` are ids that came more than once in one epoch,
    ``gaps`` steps of which nothing is known any more, ``skipped`` rows that were due and could not be read. ``left``
    counts the rows that went with members of the dataset which had gone when a step was planned.
    """

    steps: dict[int, Int64] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    duplicates: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    skipped: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Nothing came twice, nothing is unknown, nothing was left out."""
        return not (self.duplicates or self.gaps or self.skipped or self.left)

    def steps_of(self, ids: ArrayLike) -> dict[int, list[int]]:
        """Which of the steps saw each of these rows, none where none did: an array, a tensor or a list of row ids.

        >>> from poolish import Loader
        >>> loader = Loader(["rye", "oats", "spelt"], batch_size=2)
        >>> _ = list(loader), list(loader)
        >>> loader.audit(0, 3).steps_of([2, 0])
        {2: [1, 3], 0: [0, 2]}
        """
        asked = row_ids(ids)
        if asked is None:
            raise TypeError(f"steps_of takes row ids, whole numbers in one dimension; got {type(ids).__name__}")
        found: dict[int, list[int]] = {id_: [] for id_ in asked.tolist()}
        for step, rows in self.steps.items():
            unread = self.skipped.get(step, [])
            for id_ in np.unique(rows[np.isin(rows, asked)]).tolist():
                if id_ not in unread:
                    found[id_].append(step)
        return {id_: sorted(steps) for id_, steps in found.items()}

    def __repr__(self) -> str:
        n_rows = sum(len(ids) for ids in self.steps.values())
        shown = f"{len(self.steps)} steps, {n_rows:,} rows, {len(self.duplicates)} repeated"
        n_skipped = sum(len(ids) for ids in self.skipped.values()) + sum(self.left.values())
        return f"<Audit: {shown}, {n_skipped} skipped, {len(self.gaps)} steps unknown>"


def audit(ledger: LedgerProtocol, walk: StepPlanner, first_step: int, last_step: int, n_done: int | None) -> Audit:
    """The rows of ``first_step`` to ``last_step``, both included, as far as they were decided and, if given, done."""
    if not isinstance(walk, OrderPlanner):
        raise ConfigError("audit is for loaders that make their own order; with batches= the batches say it themselves")
    found = Audit()
    notes = ledger.notes()
    runs = [note for note in notes if isinstance(note, Run)]
    runs = [run for run in runs if run.who == min(run.who for run in runs)]
    last = last_step + 1 if n_done is None else min(last_step + 1, n_done)
    passes: dict[int, int] = {}
    for i, run in enumerate(runs):
        # A run that was noted later and begins earlier went on from a checkpoint: what came behind it is void.
        end = min([later.step for later in runs[i + 1 :]] + [last])
        # An epoch may be begun again, on purpose; what goes on from a checkpoint is still the same pass.
        n_passes = sum(earlier.position == 0 for earlier in runs[: i + 1])
        again = _Replay(run, ledger, walk)
        for step, ids in again.steps(end):
            if step >= first_step:
                found.steps[step], found.epochs[step], passes[step] = ids, run.epoch, n_passes
        found.left |= {step: n for step, n in again.left.items() if first_step <= step < end}
    found.gaps = [step for step in range(first_step, last_step + 1) if step not in found.steps]
    found.duplicates = _duplicates(found.steps, passes)
    found.skipped = {step: ids for step, ids in _skipped(notes).items() if first_step <= step <= last_step}
    return found


def _skipped(notes: list[Run | Skipped]) -> dict[int, list[int]]:
    """Rows that could not be read, without those that a later resume went back before."""
    left: dict[str, dict[int, list[int]]] = {}
    for note in notes:
        mine = left.setdefault(note.who, {})
        if isinstance(note, Skipped):
            mine[note.step] = note.ids
        else:
            left[note.who] = {step: ids for step, ids in mine.items() if step < note.step}
    found: dict[int, list[int]] = {}
    for by_step in left.values():
        for step, ids in by_step.items():
            found.setdefault(step, []).extend(ids)
    return dict(sorted(found.items()))


class _Unknown(Exception):
    """It is unknown how a block was decided."""


class _Replay(OrderPlanner):
    """Walks the blocks of a run as they were decided, and reads nothing."""

    def __init__(self, run: Run, ledger: LedgerProtocol, walk: OrderPlanner) -> None:
        self._seen = ledger.seen
        super().__init__(
            None,
            ledger,
            walk.order,
            batch_size=run.world_size * run.batch_size,
            rank=0,
            world_size=1,
            drop_last=run.drop_last,
        )
        self._run, self._first = run, (run.block, self.order(run.epoch).parts_from(run.parts, run.ends))
        self.left: dict[int, int] = {}

    def steps(self, end: int) -> Iterator[tuple[int, Int64]]:
        """Each step before ``end`` and its rows, as far as they are known."""
        place = self.begin()
        while (plan := self.next(place)) is not None and place.step < end:
            yield place.step, np.concatenate([piece.ids for piece in plan.pieces])
            place = plan.after
        n_left = self.left.pop(place.step, 0)
        if plan is None and n_left:  # found when the epoch was to end
            self.left[place.step - 1] = self.left.get(place.step - 1, 0) + n_left

    def begin(self) -> LoaderPosition:
        """Where the run began."""
        run, open_block = self._run, None
        if run.seen is not None:
            open_block = self._decided(LoaderPosition(run.epoch), ObservedBounds.from_json(run.seen))
        return LoaderPosition(run.epoch, run.step, run.position, open_block, run.offset)

    def next(self, place: LoaderPosition, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place, as far as anybody knows."""
        try:
            return super().next(place, is_ahead=is_ahead)
        except _Unknown:
            return None

    def _total(self, first: OpenBlock) -> None:
        """Nothing counts the rows of an epoch that is over."""

    def _next_block(self, place: LoaderPosition, on_empty: OnEmpty) -> OpenBlock:
        seen = self._seen(place.epoch, self._open(place)[0])
        if seen is None:
            raise _Unknown
        decided = self._decided(place, seen)
        if decided.block.n_gone:
            self.left[place.step] = self.left.get(place.step, 0) + decided.block.n_gone
        return decided

    def _open(self, place: LoaderPosition) -> tuple[int, GenerationCursors]:
        return self._first if place.open_block is None else place.next_block

    def _decided(self, place: LoaderPosition, seen: ObservedBounds) -> OpenBlock:
        order: Any = self.order(place.epoch)
        return OpenBlock(order.decide(*self._open(place), None, seen), None, None)  # type: ignore[arg-type]  # reads nothing


def _duplicates(steps: dict[int, Int64], passes: dict[int, int]) -> list[int]:
    repeated: set[int] = set()
    for one in set(passes.values()):
        ids = np.concatenate([ids for step, ids in steps.items() if passes[step] == one])
        unique, counts = np.unique(ids, return_counts=True)
        repeated.update(unique[counts > 1].tolist())
    return sorted(repeated)
