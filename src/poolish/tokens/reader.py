"""The reading end of a stream: no lock, nothing written, nothing repaired."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from poolish.errors import ConfigError, CorruptDataError, ResumeError
from poolish.tokens import opening
from poolish.tokens.commits import CommitLog
from poolish.tokens.directory import read_description
from poolish.tokens.fields import decided
from poolish.tokens.head import Head
from poolish.tokens.lanes import Lanes, State
from poolish.tokens.starts import View
from poolish.tokens.verify import Verified, verify

if TYPE_CHECKING:
    from poolish.tokens.writer import Writer


class Reader:
    """What a process sees of a stream that it does not write: a length that only ``refresh`` moves, and only forward.

    ``at`` is the number of an older commit to look at. ``seen`` is (uuid, rows) of another handle: the same stream must
    be there, and this one starts where that one was.
    """

    def __init__(self, path: Path, *, at: int | None = None, seen: tuple[str, int] | None = None) -> None:
        self.path = path
        self.description = read_description(path)
        self.fields = self.description.fields
        if seen is not None and seen[0] != str(self.description.uuid):
            raise ResumeError(f"{path}: another stream is there than the one this handle came from; open it anew")
        with ExitStack() as opened:  # closes what is open if anything below fails
            self.lanes = opened.enter_context(closing(Lanes(path, mode="r")))
            self.head = opened.enter_context(closing(_open_head(path)))
            self.log = opened.enter_context(closing(_open_log(path, self.description.uuid)))
            self._is_pinned = at is not None
            self.state = self._state(at)
            opening.check(self.lanes, self.state, len(self.fields), with_types=True)
            self.fields = decided(self.fields, self.state.kinds)
            if seen is not None and seen[1] <= self.state.rows:
                rows = max(seen[1], self.state.first)  # what that handle saw may have left a bounded stream since
                self.state = State(self.state.first, rows, self.lanes.tokens_at(rows), self.state.kinds)
            self._first_token = self.lanes.tokens_at(self.state.first)
            opened.pop_all()

    def _state(self, at: int | None) -> State:
        if at is not None:
            records = {record.seq: record for record in self.log.records()}
            if at not in records:
                raise ConfigError(f"{self.path}: no commit {at}; there are 0 to {max(records, default=0)}")
            return opening.committed(records[at])
        last = self.log.last()
        if opening.is_trusted(self.head, self.lanes, last, self.description.uuid):
            return opening.published(self.head, self.lanes, len(self.fields))
        return opening.committed(last)

    @classmethod
    def inherited(cls, writer: Writer) -> Reader:
        """What a forked child has of the writer it was forked from: the same maps, to read."""
        reader = cls.__new__(cls)
        reader.path, reader.description, reader.fields = writer.path, writer.description, writer.fields
        reader.lanes, reader.head, reader.log = writer.lanes, writer.head, writer.log
        reader._is_pinned = False
        reader.state = opening.published(reader.head, reader.lanes, len(reader.fields))
        reader._first_token = reader.lanes.tokens_at(reader.state.first)
        return reader

    @property
    def uuid(self) -> str:
        """The stream's own name."""
        return str(self.description.uuid)

    def view(self) -> View:
        """What this reader sees, to read from."""
        state = self.state
        return View(self.lanes, state.first, self._first_token, state.rows, state.tokens)

    @property
    def n_tokens(self) -> int:
        """The position behind the last token that this reader sees."""
        return self.state.tokens

    @property
    def first_token(self) -> int:
        """The position of the first token that was kept when this reader last looked."""
        return self._first_token

    def kept_from(self) -> int:
        """The position of the first token that is kept now; its writer may have let go what we were reading."""
        first = self.head.first
        if first <= self.state.first:
            return self._first_token
        return self.lanes.tokens_at(first) if first <= self.state.rows else self.state.tokens

    def refresh(self) -> None:
        """Move to what is published now."""
        state = self._state(None)
        if state.rows < self.state.rows:
            return  # a stream never goes back for one who has seen more of it
        self._is_pinned = False
        if state.rows > self.state.rows:
            self.lanes.check_sizes(state.rows, state.tokens)
        self.fields = decided(self.description.fields, state.kinds)
        self.state, self._first_token = state, self.lanes.tokens_at(state.first)

    def verify(self) -> Verified:
        """Check every committed byte."""
        return verify(self.lanes, self.log, self.state, len(self.fields), heal=False)

    def close(self) -> None:
        """Let the files go."""
        for part in (self.lanes, self.head, self.log):
            part.close()


def _open_head(path: Path) -> Head:
    try:
        return Head(path / "head", mode="r")
    except FileNotFoundError as error:
        raise CorruptDataError(
            f"{path / 'head'}: missing; restore it, or open the stream once with mode='a'"
        ) from error


def _open_log(path: Path, uuid: UUID) -> CommitLog:
    try:
        return CommitLog(path / "commits", uuid, mode="r")
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not os.path.isfile(path / "commits"):
            raise CorruptDataError(f"{path / 'commits'}: missing or no file; restore it from a copy") from error
        raise
