"""The reading end of a stream: no lock, nothing written, nothing repaired."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from poolish.errors import ConfigError, CorruptDataError, ResumeError
from poolish.tokens import logs, opening
from poolish.tokens.commits import Commit, CommitLog, Verified, verify
from poolish.tokens.directory import read_description
from poolish.tokens.fields import decided
from poolish.tokens.head import Head
from poolish.tokens.stream_files import CopiedHead, StreamFiles, StreamState, View

if TYPE_CHECKING:
    from poolish.tokens.writer import Writer


class Reader:
    """What a process sees of a stream that it does not write: a length that only ``refresh`` moves, and only forward.

    ``mapped=False`` copies the stream into memory. ``at`` is the number of a commit, behind which this reader never
    looks. ``seen`` is (uuid, rows, branch) of another handle: the same stream must be there, and this one starts where
    that one was.
    """

    def __init__(
        self, path: Path, *, at: int | None = None, seen: tuple[str, int, str] | None = None, mapped: bool = True
    ) -> None:
        self.path, self.is_mapped, self.at = path, mapped, at
        self.description = read_description(path)
        self.fields = self.description.fields
        self.ids = {field.name: number for number, field in enumerate(self.fields)}
        if seen is not None and seen[0] != str(self.description.uuid):
            raise ResumeError(f"{path}: another stream is there than the one this handle came from; open it anew")
        with ExitStack() as opened:  # closes what is open if anything below fails
            self.lanes = opened.enter_context(closing(StreamFiles(path, mode="r", mapped=mapped)))
            self.head = opened.enter_context(closing(_open_head(path, mapped)))
            self.log = opened.enter_context(closing(CommitLog(path / "commits", self.description.uuid, mode="r")))
            self.branch_log = logs.open_branches(path, self.description.uuid, mode="r")
            opened.callback(self._close_branches)
            self.branches = logs.Branches()
            self._seen_page: bytes | None = None
            self._pinned = None if at is None else self._commit(at)
            self.state = self._checked()
            self.fields = decided(self.fields, self.state.kinds)
            if seen is not None and seen[2] != self.branches.name_below(seen[1]):
                raise ResumeError(
                    f"{path}: another branch of the stream is there than the one this handle came from; open it anew"
                )
            if seen is not None and seen[1] <= self.state.rows:
                rows = max(seen[1], self.state.first)  # what that handle saw may have left a bounded stream since
                self.state = StreamState(self.state.first, rows, self.lanes.tokens_at(rows), self.state.kinds)
            self._first_token = self._begin()
            if at is None and seen is None and not self._is_live:
                opening.warn_of_copy(self.head, self.lanes, self.log.last())
            opened.pop_all()

    def _checked(self) -> StreamState:
        """What there is, after making sure that it makes sense."""
        while True:
            state = self._state()
            try:
                opening.check(self.lanes, state, len(self.fields), with_types=True)
                return state
            except CorruptDataError:
                if not self._is_live or self.head.first <= state.first:
                    raise
                # A bounded stream gave space back while we looked at it: what is kept now lies further on.

    def _state(self) -> StreamState:
        last, self._is_live = opening.newest(self.head, self.lanes, self.log, self.description)
        if self._is_live:
            newest = opening.published(self.head, self.lanes, len(self.fields))
        else:
            newest = opening.committed(last)
        self._look_at_branches(last)
        return newest if self._pinned is None else self._kept(self._pinned, newest)

    def _look_at_branches(self, last: Commit) -> None:
        """See what was recorded since. After the length: a branch is recorded before its first row is published."""
        n_synced = opening.n_branches(self.head, last)
        if self._is_live and 0 < n_synced == self.branches.n_records:
            return
        if self.branch_log is None:
            self.branch_log = logs.open_branches(self.path, self.description.uuid, mode="r")
        self.branches = logs.read_branches(self.branch_log, self.path, n_synced)

    def _commit(self, at: int) -> StreamState:
        """What an older commit said."""
        records = {record.seq: record for record in self.log.records()}
        if at not in records:
            raise ConfigError(f"{self.path}: no commit {at}; there are 0 to {max(records, default=0)}")
        return opening.committed(records[at])

    def _kept(self, state: StreamState, newest: StreamState) -> StreamState:
        """An older state, as far as a bounded stream still has it."""
        if state.first == state.rows or newest.first <= state.first:
            return state
        if newest.first >= state.rows:
            raise ConfigError(f"{self.path}: all steps of commit {self.at} have left the stream; choose a newer one")
        return StreamState(newest.first, state.rows, state.tokens, state.kinds)

    @classmethod
    def inherited(cls, writer: Writer) -> Reader:
        """What a forked child has of the writer it was forked from: the same maps, to read."""
        reader = cls.__new__(cls)
        reader.path, reader.description, reader.fields = writer.path, writer.description, writer.fields
        reader.ids = writer.ids
        reader.lanes, reader.head, reader.log = writer.lanes, writer.head, writer.log
        reader.branch_log, reader.branches = writer.branch_log, writer.branches
        reader.is_mapped, reader.at, reader._pinned = True, None, None
        reader._seen_page = None
        reader.state = opening.published(reader.head, reader.lanes, len(reader.fields))
        reader._is_live = True
        reader._first_token = reader._begin()
        return reader

    @property
    def uuid(self) -> str:
        """The stream's own name."""
        return str(self.description.uuid)

    def _begin(self) -> int:
        """The token where the stream begins. The index of an empty one may have been given back."""
        state = self.state
        return state.tokens if state.first == state.rows else self.lanes.tokens_at(state.first)

    def view(self) -> View:
        """What this reader sees, to read from."""
        state = self.state
        return View(self.lanes, state.first, self._first_token, state.rows, state.tokens, self.branches)

    @property
    def n_tokens(self) -> int:
        """The position behind the last token that this reader sees."""
        return self.state.tokens

    @property
    def first_token(self) -> int:
        """The position of the first token that was kept when this reader last looked."""
        return self._first_token

    def kept_from(self) -> int:
        """The position of the first token that is kept now; trimming may have passed what we were reading."""
        first = self.head.first if self._is_live else 0
        if first <= self.state.first:
            return self._first_token
        return self.lanes.tokens_at(first) if first <= self.state.rows else self.state.tokens

    def kept_row(self) -> int:
        """The first index row that is kept now: steps without tokens leave the stream at the position they had."""
        return max(self.state.first, self.head.first if self._is_live else 0)

    def refresh(self) -> None:
        """Move to what is published now; at a commit only the beginning moves, where a bounded stream does."""
        page = self.head.published_page
        if self._is_live and page == self._seen_page:
            return  # loaders look before each batch, which took 13 us without this comparison and takes 0.5
        before = self.branches.name_below(self.state.rows)
        state = self._state()
        if self.branches.name_below(self.state.rows) != before:
            raise ResumeError(
                f"{self.path}: the stream was recovered to a shorter length than this reader had seen, and written "
                "anew from there; open it again"
            )
        if state.rows < self.state.rows:
            return  # a stream never gets shorter for a reader
        if state.rows > self.state.rows:
            self.lanes.check_sizes(state.rows, state.tokens)
            self.lanes.fetch(state.first, state.rows, state.tokens)
        self.fields = decided(self.description.fields, state.kinds)
        self.state = state
        self._first_token = self._begin()
        self._seen_page = page  # read before the state: what is published meanwhile is seen the next time

    def verify(self) -> Verified:
        """Check every committed byte."""
        return verify(self.lanes, self.log, self.branch_log, self.state, len(self.fields), heal=False)

    def close(self) -> None:
        """Close the files."""
        for part in (self.lanes, self.head, self.log):
            part.close()
        self._close_branches()

    def _close_branches(self) -> None:
        if self.branch_log is not None:
            self.branch_log.close()


def _open_head(path: Path, mapped: bool) -> Head:
    try:
        return Head(path / "head", mode="r") if mapped else CopiedHead(path / "head")
    except FileNotFoundError as error:
        raise CorruptDataError(
            f"{path / 'head'}: missing; restore it, or open the stream once with mode='a'"
        ) from error
