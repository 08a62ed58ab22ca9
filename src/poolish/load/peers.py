"""What ranks in several processes agree on through the store of their process group, without a collective.

Where the steps of a loader begin, at the start of an epoch or after a resume, a *session* begins on every rank:

    begin    epoch, step, position, rows      the first rank writes down its own, the others compare
    agree    one block of the order           the first rank that needs it decides, the others take what it saw
    counts   steps that each rank has         every rank writes its own and waits for the others (``shared="own"``)

What only one rank may say is written by compare-and-swap, so it makes no difference which is first, and deleted once
every process has read it. Counts stay: one short key for each rank and epoch. A restarted job agrees anew, and the
checkpoint that it resumes from says all that matters.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from poolish import torch_bridge
from poolish.errors import PoolishError, ResumeError, Starved
from poolish.files import checksum_hex
from poolish.load.frozen import FrozenRows, Span, content_of, ordinal_of
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
