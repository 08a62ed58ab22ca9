"""What ranks in several processes agree on through the store of their process group, without a collective.

Where the steps of a loader begin, at the start of an epoch or after a resume, a *session* begins on every rank:

    begin    epoch, step, position, rows      the first rank writes down its own, the others compare
    agree    one block of the order           the first rank that needs it decides, the others take what it saw
    counts   steps that each rank has         every rank writes its own and waits for the others (``shared="own"``)

What only one rank may say is written by compare-and-swap, so it makes no difference which is first, and deleted once
every process has read it. Counts stay: one short key for each rank and epoch. A restarted job agrees anew, and the
checkpoint that it resumes from says all that matters.

Ranks that each have rows of their own (``InStep``) only agree on the number of steps, however many rows they have:

    rank 0   |step|step|step|step|          uneven="stop"     2 steps: as many as the rank with the fewest
    rank 1   |step|step|                    uneven="repeat"   4 steps: rank 1 goes through its rows again
    rank 2   |step|step|step|               uneven="empty"    4 steps: rank 1 gets 2 batches without rows

A collective operation of the trainer (the gradients of DDP) waits for all ranks, so a rank with a step more would wait
for ever. The ranks tell each other how many steps they have when an epoch begins or goes on, never in between.
"""

from __future__ import annotations

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from poolish import torch_bridge
from poolish.errors import ConfigError, PoolishError, ResumeError, Starved
from poolish.files import checksum_hex
from poolish.load.dataset_state import spots_of
from poolish.load.frozen import LOCAL, SHARED, FrozenRows, Span, content_of, ordinal_of, snapshot_rows
from poolish.load.ledger import Ledger, OnEmpty, digest
from poolish.load.order import NOTHING, Block, GenerationCursors, ObservedBounds, Order
from poolish.load.planner import BatchPlanner, LoaderPosition, OrderPlanner, Plan, ReadRequest
from poolish.load.settings import LoaderSettings, is_in_memory
from poolish.load.views.view import all_ids
from poolish.ranks import Share

logger = logging.getLogger("poolish")

#: How long the slowest rank may take to begin an epoch, as long as the collectives of torch.distributed wait.
_PATIENCE_S = 1800.0
_SAY_S = 10.0

_n_named: Counter[str] = Counter()


class Peers:
    """The other processes that read the same order, each as a rank of its own."""

    def __init__(self, share: Share, name: object) -> None:
        self._share, self._n_processes = share, share.n_processes
        # torchrun may keep its store when it restarts the ranks, with all that they said before.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._name = checksum_hex(repr((share.peers, attempt, name)).encode())
        self._ordinal: int | None = None
        self._n_sessions = 0

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin a session where the other ranks begin theirs; an error if that is elsewhere."""
        if self._ordinal is None:
            # Several loaders may read alike; programs of all ranks use them in the same order.
            self._ordinal = _n_named[self._name]
            _n_named[self._name] += 1
        self._n_sessions += 1
        try:
            mine = {"rank": self._share.rank, "facts": json.loads(json.dumps(facts))}
            agreed = self.agree("begin", mine)
            differing = [name for name, value in mine["facts"].items() if agreed["facts"].get(name) != value]
            if differing:
                error = self._difference(mine, agreed, differing)
                with self._connected() as store:
                    store.set(self._key("failed"), error)  # for those that wait for this rank
                raise ResumeError(error)
        except BaseException:
            self._n_sessions -= 1  # the next attempt is this session again
            raise

    def _difference(self, mine: dict[str, Any], agreed: dict[str, Any], differing: list[str]) -> str:
        def shown(of: dict[str, Any]) -> str:
            return f"rank {of['rank']} with " + ", ".join(f"{name} {of['facts'].get(name)!r}" for name in differing)

        advice = "all ranks load the same state, and iterate, set epochs and append in the same order"
        if differing == ["rows"]:
            advice = "all ranks append the same rows in the same order; if each has rows of its own, pass shared='own'"
        return f"Loader: the ranks do not begin alike: {shown(mine)}, {shown(agreed)}; {advice}"

    def agree(self, key: str, mine: dict[str, Any]) -> dict[str, Any]:
        """What the first rank said under ``key`` in this session."""
        with self._connected() as store:
            name = self._key(key)
            agreed: dict[str, Any] = json.loads(store.compare_set(name, "", json.dumps(mine)))
            self._arrive(store, name)
            return agreed

    def found(self, key: str) -> dict[str, Any] | None:
        """What was said under ``key``; None if no rank has."""
        with self._connected() as store:
            name = self._key(key)
            if not store.check([name]):
                return None
            agreed: dict[str, Any] = json.loads(store.get(name))
            self._arrive(store, name)
            return agreed

    def _arrive(self, store: Any, name: str) -> None:
        """Delete a key that every process has read."""
        if store.add(f"{name}/n", 1) == self._n_processes:
            store.delete_key(name)
            store.delete_key(f"{name}/n")

    def counts(self, mine: int) -> list[int]:
        """The number of each rank, in their order; waits for all of them."""
        names = [self._key(f"count/{rank}") for rank in range(self._share.world_size)]
        with self._connected() as store:
            store.set(names[self._share.rank], str(mine))
            self._wait_for(store, names)
            return [int(store.get(name)) for name in names]

    def _wait_for(self, store: Any, names: list[str]) -> None:
        """Wait until every rank has set its key."""
        begun, said = time.monotonic(), False
        while missing := [rank for rank, name in enumerate(names) if not store.check([name])]:
            waited_s = time.monotonic() - begun
            if store.check([self._key("failed")]):
                raise ResumeError(store.get(self._key("failed")).decode())
            if waited_s > min(_PATIENCE_S, store.timeout.total_seconds()):
                raise Starved(
                    f"Loader: rank {self._share.rank} waited {waited_s:.0f} s for rank{'s' * (len(missing) > 1)} "
                    f"{', '.join(map(str, missing))} to begin the epoch; all ranks iterate the loader, or call len(), "
                    "equally often"
                )
            if waited_s > _SAY_S and not said:
                logger.warning("rank %d waits for ranks %s to begin the epoch", self._share.rank, missing)
                said = True
            time.sleep(min(0.1, 0.001 + waited_s / 100))

    def _key(self, key: str) -> str:
        return f"poolish/loader/{self._name}/{self._ordinal}/{self._n_sessions}/{key}"

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """The store of the process group; an error that says what to do if it is gone."""
        store = torch_bridge.group_store()
        try:
            if store is None:
                raise ConnectionError("torch.distributed is not initialised any more")
            yield store
        except (RuntimeError, ConnectionError) as error:
            if isinstance(error, PoolishError):
                raise
            raise ResumeError(
                f"Loader, rank {self._share.rank}: the store of the process group is gone ({error}); it lives in "
                "torchrun or in rank 0: keep the group until every rank has its last batch (dist.barrier() before "
                "dist.destroy_process_group()), or pass journal=DIR"
            ) from error


# The rows of copies -----------------------------------------------------------------------------------------------


class ComparedRows:
    """Which rows in memory were compared with those of the other ranks, which call theirs copies of the same."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        #: What another rank saw and is not here yet.
        self._awaited: list[Sequence[Any]] = []

    def all(self, rows: FrozenRows) -> list[str]:
        """A digest of each span; from here on only what is new is compared."""
        spans = rows.spans()
        self._ends, self._awaited = {ordinal_of(first): end for first, end in spans}, []
        return [content_of(rows, span) for span in spans]

    def beyond(self, rows: FrozenRows, spans: Sequence[Span]) -> list[list[Any]]:
        """What these spans have beyond what was compared: the edges of each new span, and a digest of its rows."""
        new = [(max(first, self._ends.get(ordinal_of(first), first)), end) for first, end in spans]
        return [[first, end, content_of(rows, (first, end))] for first, end in new if first < end]

    def compare(self, rows: FrozenRows, spans: Sequence[Span], content: Sequence[Sequence[Any]]) -> None:
        """Compare what was new to the rank that saw these spans; later, where it has not been appended here yet."""
        self._ends = {**self._ends, **{ordinal_of(first): end for first, end in spans}}
        ends, awaited = {ordinal_of(first): end for first, end in rows.spans()}, [*self._awaited, *content]
        self._awaited = [each for each in awaited if ends.get(ordinal_of(each[0]), 0) < each[1]]
        for first, end, expected in awaited:
            if ends.get(ordinal_of(first), 0) >= end and content_of(rows, (first, end)) != expected:
                raise ResumeError(
                    f"Loader: rows {first} to {end - 1} are not those of the rank that saw them first; "
                    "shared='copy' means that all ranks append the same rows in the same order: if each has rows of "
                    "its own, pass shared='own'"
                )


class GroupSession:
    """Compares the place, the settings and the rows of this rank with those of the others."""

    def __init__(
        self,
        peers: Peers,
        settings: LoaderSettings,
        about: Mapping[str, Any],
        planner: OrderPlanner | BatchPlanner,
        compared: ComparedRows | None,
    ) -> None:
        self.peers, self._settings, self._planner, self._compared = peers, settings, planner, compared
        alike = ("choice", "seed", "shuffle", "sampled")
        self._alike = {name: about[name] for name in alike}
        self._alike |= {name: getattr(settings, name) for name in ("batch_size", "drop_last", "follow")}

    def begin(self, place: LoaderPosition) -> None:
        """Begin the steps behind a place; an error if other ranks begin theirs elsewhere, or on other rows."""
        facts: dict[str, Any] = {"epoch": place.epoch, "step": place.step, **self._alike}
        if isinstance(self._planner, InStep):
            self.peers.begin({**facts, "seed": None, "shared": "own", "uneven": self._settings.uneven})
            return
        facts["position"] = place.position
        if isinstance(self._planner, BatchPlanner):
            facts |= {"batches": self._planner.n_batches_of(place.epoch), "draw": self._planner.sketch()}
        else:
            run = self._planner.run_from(place, "")
            facts |= {"block": run.block, "offset": run.offset, "left": run.parts, "ends": list(run.ends)}
        self.peers.begin({**facts, "rows": self._rows()})

    def _rows(self) -> Any:
        """What must be the same rows: by content in memory, by name on disk, by length and a few values otherwise."""
        rows = snapshot_rows(self._settings.dataset)
        if self._compared is not None and is_in_memory(self._settings.dataset):
            content = self._compared.all(rows)
            return [len(rows), *content] if rows.changes != LOCAL or any(content) else len(rows)
        if self._compared is None:
            return rows.uuid
        return [len(rows), spots_of(self._settings.dataset)]


class GroupLedger(Ledger):
    """Decisions of one rank, the same as on the other ranks.

    Where growth is followed, and where other processes write the dataset, the first rank that needs a block decides it
    and the others take what it saw. Everywhere else a block follows from the first one of the epoch. Rows in memory are
    each process's own, so ranks that call theirs copies compare them: a digest of what a block sees first travels with
    it. What was read is known to this process only, and only while it lives: for an audit after the run, use
    ``journal=DIR``.
    """

    def __init__(self, peers: Peers, compared: ComparedRows | None) -> None:
        super().__init__()
        self._peers, self._compared = peers, compared
        #: What was agreed on a block, and how many behind it were decided with it.
        self._agreed: dict[tuple[int, int, int, Hashable], tuple[ObservedBounds, int]] = {}

    def decide_block(
        self,
        order: Order,
        number: int,
        before: GenerationCursors,
        frozen: FrozenRows,
        on_empty: OnEmpty,
        session: int = 0,
    ) -> Block | None:
        """Decide, unless another process has."""
        begins = not (before.ends or before.done)
        if not (order.follow or begins or frozen.changes == SHARED):
            return super().decide_block(order, number, before, frozen, on_empty, session)
        with self._lock:
            place = (order.epoch, session, number, before.key)
            agreed = self._agreed.get(place) or self._agree(order, number, before, frozen, on_empty)
            if agreed is None:
                return None
            seen, n_ahead = agreed
            block = order.decide(number, before, frozen, seen)
            for later, left in block.keys_ahead(n_ahead):
                self._agreed[order.epoch, session, later, left] = seen.lasting, n_ahead + number - later
            n_ahead = min(n_ahead, order.n_ahead(block, frozen))
            self._note(order.epoch, block, n_ahead)
            self._agreed[place] = agreed
            return block._replace(n_ahead=n_ahead)

    def _agree(
        self,
        order: Order,
        number: int,
        before: GenerationCursors,
        frozen: FrozenRows,
        on_empty: OnEmpty,
    ) -> tuple[ObservedBounds, int] | None:
        """What the first rank saw, and the blocks that it decided with this one; None for an empty block that none of
        them has decided and this one may not.
        """
        epoch, history = order.epoch, digest(before)
        key = f"block/{epoch}/{number}"
        line = self._peers.found(key)
        if line is None:
            block = order.decide(number, before, frozen, is_end=on_empty == "end")
            if block.is_empty and on_empty == "wait":
                return None
            content = [] if self._compared is None else self._compared.beyond(frozen, block.seen.spans)
            ahead = {"before": history, "content": content, "ahead": order.n_ahead(block, frozen)}
            line = self._peers.agree(key, {**ahead, **block.seen.to_json()})
        if line["before"] != history:
            raise ResumeError(
                f"Loader: block {number} of epoch {epoch} was decided in another history than that of this rank; load "
                "the same state on all ranks, and restart them together"
            )
        seen = ObservedBounds.from_json(line)
        if self._compared is not None:
            self._compared.compare(frozen, seen.spans, line["content"])
        return seen, line["ahead"]

    def leave(self, who: str, epoch: int, session: int) -> None:
        """The rank has left a session: how its blocks were agreed on is not asked for again."""
        with self._lock:
            kept = {place: agreed for place, agreed in self._agreed.items() if place[:2] != (epoch, session)}
            self._agreed = kept


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
        return self._again(place._replace(position=begun))

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
        number = max(0, place.next_block[0] - 1)
        place = place._replace(open_block=self.used_up(number, NOTHING), offset=0)
        self.session = self._ledger.enter(self.run_from(place, "rank 0 worker 0"))
        return self._own_next(place)

    def _empty(self, place: LoaderPosition) -> Plan:
        rows = self._current_rows(place.open_block)
        nothing = ReadRequest(rows, NOTHING.starts, NOTHING.starts)
        return Plan(place, [nothing], place._replace(step=place.step + 1), lambda: (rows, all_ids(rows)[:1]))

    def _note_early_end(self, place: LoaderPosition) -> None:
        total = self.rows_left(place) + place.position if place.total is None else place.total
        self._lost[place.epoch, -1] = max(0, total - place.position)


class OwnBatchesPlanner(InStep, BatchPlanner):
    """Batches of a rank's own rows."""

    _own_next, _own_left = BatchPlanner.next, BatchPlanner.n_left

    def _again(self, place: LoaderPosition) -> Plan | None:
        plan = self._own_next(place._replace(position=place.position % self.n_batches))
        assert plan is not None
        return plan._replace(place=place, after=plan.after._replace(position=place.position + 1))

    def _empty(self, place: LoaderPosition) -> Plan:
        nothing = ReadRequest(self._rows, NOTHING.starts, NOTHING.starts)
        rows = self._rows
        return Plan(place, [nothing], place._replace(step=place.step + 1), lambda: (rows, self._ids(0)[:1]))

    def _note_early_end(self, place: LoaderPosition) -> None:
        """Batches that are left out have no rows yet."""
