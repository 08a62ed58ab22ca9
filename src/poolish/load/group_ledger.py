"""The ledger of ranks that share a process group: they agree on blocks through its store.

Where growth is followed, and where other processes write the dataset, the first rank that needs a block decides it and
the others take what it saw. Everywhere else a block follows from the first one of the epoch. Rows in memory are each
process's own, so ranks that call theirs copies compare them: a digest of what a block sees first travels with it.

What was read is known to this process only, and only while it lives. For an audit after the run, use ``journal=DIR``.
"""

from __future__ import annotations

from poolish.errors import ResumeError
from poolish.load.frozen import SHARED, FrozenRows
from poolish.load.ledger import Ledger, OnEmpty, digest
from poolish.load.order import Block, GenerationCursors, ObservedBounds, Order
from poolish.load.peers import ComparedRows, Peers


class GroupLedger(Ledger):
    """Decisions of one rank, the same as on the other ranks."""

    def __init__(self, peers: Peers, compared: ComparedRows | None) -> None:
        super().__init__()
        self._peers, self._compared = peers, compared
        self._agreed: dict[tuple[int, int, int, str], ObservedBounds] = {}

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
            place = (order.epoch, session, number, digest(before))
            seen = self._agreed.get(place)
            if seen is None:
                seen = self._agree(place, order, before, frozen, on_empty)
            if seen is None:
                return None
            block = order.decide(number, before, frozen, seen)
            self._note(place, order.epoch, number, block.seen)
            self._agreed[place] = seen
            return block

    def _agree(
        self,
        place: tuple[int, int, int, str],
        order: Order,
        before: GenerationCursors,
        frozen: FrozenRows,
        on_empty: OnEmpty,
    ) -> ObservedBounds | None:
        """What the first rank saw; None for an empty block that none of them has decided and this one may not."""
        epoch, _, number, history = place
        key = f"block/{epoch}/{number}"
        line = self._peers.found(key)
        if line is None:
            block = order.decide(number, before, frozen, is_end=on_empty == "end")
            if block.is_empty and on_empty == "wait":
                return None
            content = [] if self._compared is None else self._compared.beyond(frozen, block.seen.spans)
            line = self._peers.agree(key, {"before": history, "content": content, **block.seen.to_json()})
        if line["before"] != history:
            raise ResumeError(
                f"Loader: block {number} of epoch {epoch} was decided in another history than that of this rank; load "
                "the same state on all ranks, and restart them together"
            )
        seen = ObservedBounds.from_json(line)
        if self._compared is not None:
            self._compared.compare(frozen, seen.spans, line["content"])
        return seen

    def leave(self, who: str, epoch: int, session: int) -> None:
        """The rank has left a session: how its blocks were agreed on is not asked for again."""
        with self._lock:
            kept = {place: seen for place, seen in self._agreed.items() if place[:2] != (epoch, session)}
            self._agreed = kept
