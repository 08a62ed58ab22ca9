"""What survives a power cut, and what a bounded stream gives back.

    commit   sync the lanes -> a record in the log -> sync the log -> its number on the head page
    trim     commit, so that no power cut brings back what is about to go -> give whole blocks back

Appends go on meanwhile: what is published never changes. A sync that failed is final: nobody knows what the disk has,
so the stream refuses everything from then on and must be opened again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poolish.errors import DurabilityLost
from poolish.files import checksum_hex
from poolish.tokens.commits import Commit, CommitLog, blocks, chained
from poolish.tokens.head import COMMITTED, Head
from poolish.tokens.lanes import Lanes, State
from poolish.tokens.memmap_buffer import MemmapBuffer

logger = logging.getLogger("poolish")


class Keeper:
    """Commits and trims one stream; a temporary one is never synced."""

    def __init__(self, path: Path, lanes: Lanes, head: Head, log: CommitLog, last: Commit, *, durable: bool) -> None:
        self._path, self._lanes, self._head, self._log, self._last = path, lanes, head, log, last
        self._is_durable = durable
        self._is_log_torn = False
        self.failure: DurabilityLost | None = None
        self.failed_since: float | None = None
        self.lock = threading.RLock()

    @property
    def committed(self) -> Commit:
        """The newest record."""
        return self._last

    def commit(self, state: State) -> Commit:
        """Make a state of the stream survive a power cut; the record that says so, or a newer one."""
        with self.lock:
            if self._is_log_torn:
                # Half of a record may count as a whole one; written again and synced, it is one.
                self._last = self._log.last()
                self._write(self._last)
            before = self._last
            if state.rows > before.rows or (state.rows == before.rows and state.first > before.first):
                self._write(self._next(before, state))
            return self._last

    def _next(self, before: Commit, state: State) -> Commit:
        return chained(
            before,
            before.uuid,
            first=state.first,
            rows=state.rows,
            tokens=state.tokens,
            kinds="".join(map(str, state.kinds)),
            data=_hashes(self._lanes.data, before.tokens, state.tokens),
            index=_hashes(self._lanes.index, before.rows, state.rows),
        )

    def _write(self, record: Commit) -> None:
        with self.final_failures():
            if self._is_durable:
                self._lanes.sync()
            self._is_log_torn = True  # a full disk may stop us half-way; the next commit looks what came of it
            self._log.append(record)
        self._last = record  # before the log counts as whole: a second record of this number would be damage
        self._is_log_torn = False
        self._head.store(COMMITTED, record.seq)

    @contextmanager
    def final_failures(self) -> Iterator[None]:
        """Remember a sync that failed: everything is refused from then on."""
        try:
            yield
        except DurabilityLost as error:
            self.failed_since = time.time()
            self.failure = DurabilityLost(f"{self._path}: a sync failed before ({error}); open the stream again")
            raise

    def trim(self, state: State) -> None:
        """Give back the whole blocks below the first row that is kept."""
        with self.lock:
            try:
                if self._is_durable:
                    self.commit(state)
                self._lanes.punch(state.first, self._lanes.tokens_at(state.first))
            except DurabilityLost:
                raise
            except OSError as error:
                # The append that brought us here is done and must not look as if it were not.
                logger.warning("%s: space could not be given back (%s); tried again later", self._path, error)


def _hashes(lane: MemmapBuffer, begin: int, end: int) -> list[str]:
    width = lane.row_bytes
    return [checksum_hex(lane.file.bytes[start:stop].data) for start, stop in blocks(begin * width, end * width)]
