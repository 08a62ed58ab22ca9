"""Ranks that each have rows of their own, kept in step: all make the same number of steps, however many rows they have.

    rank 0   |step|step|step|step|          uneven="stop"     2 steps: as many as the rank with the fewest
    rank 1   |step|step|                    uneven="repeat"   4 steps: rank 1 goes through its rows again
    rank 2   |step|step|step|               uneven="empty"    4 steps: rank 1 gets 2 batches without rows

A collective operation of the trainer (the gradients of DDP) waits for all ranks, so a rank with a step more would wait
for ever. The ranks tell each other how many steps they have when an epoch begins or goes on, never in between.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from poolish.errors import ConfigError
from poolish.load.order import NOTHING
from poolish.load.planner import BatchPlanner, LoaderPosition, OrderPlanner, Plan, ReadRequest
from poolish.load.views.view import all_ids

if TYPE_CHECKING:
    from poolish.load.peers import Peers

logger = logging.getLogger("poolish")

UNEVEN = ("stop", "repeat", "empty")


class InStep(ABC):
    """Steps of one rank's own rows, as many as the ranks agree on; mixed into a planner for rank 0 of 1."""

    #: What a rank does that has fewer steps than another.
    uneven = "stop"
    #: The epoch that was agreed on, and the step at which it ends.
    _agreed = (-1, 0)
    #: The epoch and the step of a restored state that was taken behind the last batch.
    restored_end = (-1, 0)

    def agree(self, place: LoaderPosition, peers: Peers | None) -> None:
        """Agree on the step at which the epoch ends; every rank is at this step now."""
        if peers is None:
            return
        n_own = 0 if place.total is not None and place.position >= place.total else self._own_left(place)
        counts = peers.counts(n_own)
        n_steps = min(counts) if self.uneven == "stop" else max(counts)
        idle = [rank for rank, count in enumerate(counts) if not count] if place.step == place.first_step else []
        if idle and max(counts) > 0:
            self._note_idle(idle, max(counts))
        self._agreed = place.epoch, place.step + n_steps

    def _note_idle(self, idle: list[int], n_most: int) -> None:
        """Some ranks have no batch when an epoch begins: every rank says so."""
        who = f"rank{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
        if self.uneven != "stop":
            raise ConfigError(
                f"Loader: {who} of shared='own' came without a batch of rows, another rank has {n_most}, so uneven="
                f"{self.uneven!r} has nothing to repeat and no row to make an empty batch of; append rows on every "
                "rank first, or use uneven='stop'"
            )
        logger.warning("the epoch is empty: %s came without a batch, and uneven='stop' ends it with the shortest", who)

    def next(self, place: LoaderPosition, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place; None where the ranks end together."""
        epoch, end = self._agreed
        if epoch != place.epoch:
            return self._own_next(place, is_ahead=is_ahead)
        if place.step >= end:
            self._note_early_end(place)
            return None
        plan = self._own_next(place, is_ahead=is_ahead)
        if plan is not None or is_ahead:
            return plan
        if self.uneven != "repeat":
            return self._empty(place)
        begun = max(place.position, place.total or 0)  # from here on nothing of its own is left to do
        return self._again(replace(place, position=begun))

    def is_over(self, place: LoaderPosition) -> bool:
        """Whether the ranks have ended together here; asks none of them."""
        epoch, end = self._agreed
        has_ended = epoch == place.epoch and place.step >= end
        return has_ended or (place.epoch, place.step) == self.restored_end

    def n_left(self, place: LoaderPosition) -> int:
        """Steps left until the ranks end together."""
        epoch, end = self._agreed
        return self._own_left(place) if epoch != place.epoch else max(0, end - place.step)

    @abstractmethod
    def _own_next(self, place: LoaderPosition, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place, as if there were no other ranks."""

    @abstractmethod
    def _own_left(self, place: LoaderPosition) -> int:
        """The steps behind a place, likewise."""

    @abstractmethod
    def _again(self, place: LoaderPosition) -> Plan | None:
        """The first step of another pass."""

    @abstractmethod
    def _empty(self, place: LoaderPosition) -> Plan:
        """A step without rows."""

    @abstractmethod
    def _note_early_end(self, place: LoaderPosition) -> None:
        """Count the rows that a rank with more steps leaves out."""


class OwnRowsPlanner(InStep, OrderPlanner):
    """The order of a rank's own rows."""

    _own_next, _own_left = OrderPlanner.next, OrderPlanner.n_left

    def _again(self, place: LoaderPosition) -> Plan | None:
        number = 0 if place.open_block is None else place.open_block.block.number
        place = replace(place, open_block=self.used_up(number, NOTHING), offset=0)
        self.session = self._ledger.enter(self.run_from(place, "rank 0 worker 0"))
        return self._own_next(place)

    def _empty(self, place: LoaderPosition) -> Plan:
        rows = self._current_rows(place.open_block)
        nothing = ReadRequest(rows, NOTHING.starts, NOTHING.starts)
        return Plan(place, [nothing], replace(place, step=place.step + 1), (rows, all_ids(rows)[:1]))

    def _note_early_end(self, place: LoaderPosition) -> None:
        total = self.rows_left(place) + place.position if place.total is None else place.total
        self._lost[place.epoch, -1] = max(0, total - place.position)


class OwnBatchesPlanner(InStep, BatchPlanner):
    """Batches of a rank's own rows."""

    _own_next, _own_left = BatchPlanner.next, BatchPlanner.n_left

    def _again(self, place: LoaderPosition) -> Plan | None:
        plan = self._own_next(replace(place, position=place.position % self.n_batches))
        assert plan is not None
        return plan._replace(place=place, after=replace(plan.after, position=place.position + 1))

    def _empty(self, place: LoaderPosition) -> Plan:
        nothing = ReadRequest(self._rows, NOTHING.starts, NOTHING.starts)
        return Plan(place, [nothing], replace(place, step=place.step + 1), (self._rows, self._ids(0)[:1]))

    def _note_early_end(self, place: LoaderPosition) -> None:
        """Batches that are left out have no rows yet."""
