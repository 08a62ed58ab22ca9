"""The batches of one rank, one after the other, and how far it is: behind the last one that was delivered.

A batch is delivered when ``next`` returns it. If ``next`` raises, whatever it raises, the batch was not delivered and
comes next: the progress is assigned last, and the dataset's own state and the guard's memory are put back before the
next attempt. An interrupt between the return and the caller's assignment finds the batch delivered: in a program that
survives Ctrl-C, ``acknowledge="explicit"`` covers that moment as well.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from poolish.concurrency import Locked
from poolish.load.batch import Origin, chosen, labelled
from poolish.load.dataset import version_of
from poolish.load.dataset_state import TrackedDataset
from poolish.load.fetch import Fetcher
from poolish.load.frozen import FIXED, members_of, snapshot_rows
from poolish.load.group_session import GroupSession
from poolish.load.journal import Journal
from poolish.load.ledger import LedgerProtocol, Skipped
from poolish.load.own_rows import InStep
from poolish.load.planner import BatchPlanner, LoaderPosition, OrderPlanner
from poolish.load.progress import BatchesInFlight, Progress
from poolish.load.settings import GROUP, LoaderSettings, check_worker_processes

if TYPE_CHECKING:
    from poolish.load.guarding import LoaderGuard
    from poolish.load.shaping import LateShaper

#: Instead of a batch: the end of an epoch.
_END = object()

#: And in place of one that the guard leaves out.
_LEFT_OUT = object()


class RankReader(Locked):
    """Reads the steps of one rank, epoch after epoch."""

    def __init__(
        self,
        settings: LoaderSettings,
        world_size: int,
        planner: OrderPlanner | BatchPlanner,
        ledger: LedgerProtocol,
        fetcher: Fetcher,
        guard: LoaderGuard | None,
        session: GroupSession | None = None,
        late: LateShaper | None = None,
    ) -> None:
        super().__init__()
        self.planner, self.ledger, self.fetcher, self.guard = planner, ledger, fetcher, guard
        self.dataset, self.flight = TrackedDataset(settings.dataset), BatchesInFlight()
        self.progress = Progress(guard=guard and guard.memory())
        #: Which of how many worker processes this is.
        self.worker = (0, 1)
        #: How often iterators were superseded; the newest knows this number.
        self.n_iterations = 0
        #: When the first row was due and not read.
        self.skipped_since: float | None = None
        #: What is done to a batch that the guard has seen.
        self._late = late
        self._dataset, self._follow, self._journal = settings.dataset, settings.follow, settings.journal
        self._is_explicit, self._keeps_workers = settings.is_explicit, settings.persistent_workers
        self._is_shared = world_size > 1 or isinstance(ledger, Journal)
        self._has_entered = False
        self._begun_at: object = None
        self._session = session
        #: The step from which batches of this epoch are delivered: its first, or the one behind a state.
        self._first_step = 0
        #: The epoch that the next iteration begins; None for the one that it comes to by itself.
        self.requested: int | None = None

    # -- before the first batch

    def supersede(self) -> None:
        """Make iterators that still run raise."""
        self.n_iterations += 1

    def become_worker(self, number: int, n_workers: int) -> None:
        """In a worker process of torch's DataLoader: take every ``n_workers``-th step."""
        if (number, n_workers) == self.worker:
            return
        has_journal = self._journal not in (None, GROUP)
        changes = snapshot_rows(self._dataset).changes if n_workers > 1 and not has_journal else FIXED
        check_worker_processes(changes=changes, follow=self._follow)
        self.worker = (number, n_workers)

    def begin_iteration(self) -> None:
        """Where nothing grows, an iteration is an epoch: the next one, unless this one is untouched or restored."""
        requested, self.requested = self.requested, None
        place = self.progress.place
        if requested is not None:
            if requested != place.epoch or place.step > self._first_step:
                self.begin_epoch(requested)
        elif not self._follow and (place.step > self._first_step or self._is_restored_at_end(place)):
            self.begin_next_epoch()
            self.flight.abandon()  # what a framework asked for and did not train belongs to the epoch that was left
        if self.worker[1] > 1:
            self._first_step = -1  # whatever this worker delivers, others deliver batches of this epoch

    def _is_restored_at_end(self, place: LoaderPosition) -> bool:
        if place.step == place.first_step or self.progress.n_skip is not None:
            return False  # one of several worker processes cannot know whether the others are at the end as well
        if isinstance(self.planner, InStep):
            return self.planner.is_over(place)  # the other ranks are not asked: they may be elsewhere
        self.set_dataset_epoch(place.epoch)
        return self.planner.n_left(place) == 0

    @property
    def upcoming(self) -> LoaderPosition:
        """Where the next batch is; behind a state that was taken after the last one, the next epoch's begin."""
        place = self.progress.place
        is_untouched = self.requested is None and not self._follow and place.step == self._first_step
        return place.begin(place.epoch + 1) if is_untouched and self._is_restored_at_end(place) else place

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin an epoch, or continue it where a state restored it."""
        place = self.progress.place
        if epoch != place.epoch:
            self.supersede()
            self.begin_epoch(epoch)
        elif self._follow:
            return
        self.requested = epoch

    def prefetch(self) -> None:
        """Let the threads begin with the first batch, as if it were asked for.

        Where ranks have to agree on a dataset that changes, they do so when the batch is asked for, not before.
        """
        if self._is_shared and snapshot_rows(self._dataset).changes != FIXED:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self.enter()
            self._skip_steps()
            moment = self._moment()
            if self.fetcher.prefetch(self.progress.place, self.worker[1]):
                self._begun_at = moment
        except Exception as error:  # raised where a batch is asked for
            self.fetcher.forget(keep_workers=True)
            self._begun_at = error
        finally:
            self._lock.release()

    def _moment(self) -> object:
        """Equal as long as nothing changes in the dataset: ids are never used again."""
        rows = snapshot_rows(self._dataset)
        return version_of(self._dataset), tuple(rows.spans()), members_of(rows), len(rows)

    def _check_begin(self) -> None:
        """What has changed between ``iter`` and the first ``next`` belongs to the epoch: it is read again."""
        begun_at = self._begun_at
        if begun_at != self._moment():
            self.fetcher.forget(keep_workers=True)
            if isinstance(self.planner, BatchPlanner):
                self.planner.forget()
        self._begun_at = None
        if isinstance(begun_at, Exception):
            raise begun_at

    # -- one batch

    def next(self) -> Any:
        """The next batch, or ``_END``; where it raises, the caller puts the progress back."""
        # The thread that has its turn is no obstacle to itself: an interrupt of its last call may have left it taken.
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("two threads ask one loader for a batch at the same time; give each a loader of its own")
        try:
            return self._next()
        except StopIteration as error:
            raise RuntimeError("StopIteration came from a function that reads; it would end the epoch early") from error
        finally:
            self._lock.release()

    def _next(self) -> Any:
        place = self.progress.place
        if self.dataset.has_state:
            self.dataset.rewind(place.epoch, self.progress.dataset, is_inside=bool(place.position))
        self.enter()
        if self.guard is not None:
            self.guard.rewind(self.progress.guard)  # what a batch that was judged and not delivered has changed
        batch = self._batch_behind()
        while batch is _LEFT_OUT:
            batch = self._batch_behind()
        return batch

    def _batch_behind(self) -> Any:
        """The batch behind the progress, which moves; ``_LEFT_OUT`` if the guard says so, ``_END`` at the end."""
        self._skip_steps()
        if self._begun_at is not None:
            self._check_begin()
        before, stride = self.progress, self.worker[1]
        got = self.fetcher.next(before.place, stride)
        if got is None:
            self.begin_next_epoch()
            return _END
        plan, read, content = got
        ids, known, n_dropped, missing = read.ids, read.known, 0, read.gone
        if self.guard is not None:
            where = f"Loader, epoch {plan.place.epoch}, step {plan.place.step}"
            kept = self.guard.kept(read.seen, ids, where)
            if kept is not None:
                content = chosen(content, kept) if len(kept) else None
                missing, ids = np.concatenate([missing, np.delete(ids, kept)]), ids[kept]
                known, n_dropped = ids, len(read.ids) - len(ids)
        is_left_out = n_dropped > 0 and not len(ids)
        if self._late is not None and not is_left_out:
            content, known = self._late.shape(content, ids, plan.place)
        if len(missing):
            self.skipped_since = time.time() if self.skipped_since is None else self.skipped_since
            self.ledger.skip(Skipped(self._who, plan.place.epoch, plan.place.step, missing.tolist()))
        origin = Origin(ids, plan.place.position, plan.place.step)
        batch = _LEFT_OUT if is_left_out else labelled(content, origin, known)
        if self._is_explicit and not is_left_out:
            self.flight.track(batch, plan.place.step, before, ids if known is None else known)
        self.progress = Progress(
            plan.after,
            stride - 1,
            True,
            before.n_skipped + len(read.gone),
            self.dataset.after_read() if self.dataset.has_state else None,
            before.origin if is_left_out else origin,
            self.guard and self.guard.memory(),
            before.n_left_out + is_left_out,
            before.n_dropped + n_dropped,
        )
        return batch

    def _skip_steps(self) -> None:
        """Pass over the steps that belong to other worker processes."""
        n_skip = self.progress.n_skip
        n_skip = self.worker[0] if n_skip is None else n_skip
        while n_skip:
            plan = self.planner.next(self.progress.place)
            if plan is None:
                return
            n_skip -= 1
            self.progress = self.progress._replace(place=plan.after, n_skip=n_skip)

    # -- epochs and other moves

    def note_dataset(self) -> None:
        """Note the dataset's own state before anything changes it."""
        if not self.dataset.has_state:
            return
        noted = self.dataset.noted(self.progress.dataset)
        if noted is not self.progress.dataset:
            self.progress = self.progress._replace(dataset=noted)

    def set_dataset_epoch(self, epoch: int) -> None:
        """Before anything is frozen, pass the epoch on to views."""
        if self.dataset.epoch != epoch:
            self.note_dataset()
            self.dataset.enter(epoch)

    def enter(self) -> None:
        """Where steps begin, at the start of an epoch or where a run goes on, dataset, ledger and peers learn it."""
        place = self.progress.place
        self.set_dataset_epoch(place.epoch)
        if self._has_entered:
            return
        if self._session is not None:
            self._session.begin(place)
        if isinstance(self.planner, InStep):
            self.planner.agree(place, None if self._session is None else self._session.peers)
        if isinstance(self.planner, OrderPlanner):
            self.planner.session = self.ledger.enter(self.planner.run_from(place, self._who))
        self._has_entered = True

    def _leave(self) -> None:
        if self._has_entered and isinstance(self.planner, OrderPlanner):
            self.ledger.leave(self._who, self.progress.place.epoch, self.planner.session)
        self._has_entered = False

    @property
    def _who(self) -> str:
        return f"rank {self.planner.rank} worker {self.worker[0]}"

    def begin_next_epoch(self) -> None:
        """Move on to the next epoch; batches in flight stay in flight."""
        self._leave()
        self._begun_at = None
        self.fetcher.forget(keep_workers=self._keeps_workers)
        place = self.progress.place
        self.dataset.leave(self.progress.dataset)
        self.progress = self.progress._replace(place=place.begin(place.epoch + 1), n_skip=None)
        self._first_step = place.step

    def begin_epoch(self, epoch: int) -> None:
        """Move to the begin of any epoch."""
        place = self.progress.place
        if not place.position and self.dataset.epoch == place.epoch:
            self.dataset.leave(None, has_begun_unread=True)
        self.go_to(place.begin(epoch), dataset=self.progress.dataset)
        if isinstance(self.planner, BatchPlanner):
            self.planner.forget()

    def go_to(self, place: LoaderPosition, n_skip: int | None = None, dataset: str | None = None) -> None:
        """Move to a place; what was read ahead and what is in flight is forgotten."""
        self.fetcher.forget(keep_workers=True)
        self._begun_at = None
        self.flight.clear()
        self._leave()
        self.progress = self.progress._replace(place=place, n_skip=n_skip, dataset=dataset)
        self._first_step, self.requested = place.step, None

    @property
    def frontier(self) -> Progress:
        """How far the state is: before the oldest batch that is not trained, where batches are acknowledged."""
        return self.flight.oldest(self.progress.place.step) or self.progress

    def close(self) -> None:
        """End the threads; they begin again when they are needed."""
        self.fetcher.forget(keep_workers=False)


class Iteration:
    """One pass of ``for batch in loader``; all passes of a loader go on from the same place, one at a time."""

    def __init__(self, reader: RankReader) -> None:
        reader.supersede()
        self._reader, self._number, self._is_over = reader, reader.n_iterations, False

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        if self._reader.n_iterations != self._number:
            raise RuntimeError(
                "this iterator was superseded: a later iter() or set_epoch() of the same loader moved it; use a new "
                "iter(), or give each loop a loader of its own (loader.like())"
            )
        self._reader.note_dataset()
        before = self._reader.progress
        try:
            batch = self._reader.next()
            if batch is not _END:
                return batch
            self._is_over = True
        except BaseException:
            # Whatever came, and whenever: a batch that next() does not return was not delivered.
            self._reader.progress, self._is_over = before, False
            raise
        raise StopIteration
