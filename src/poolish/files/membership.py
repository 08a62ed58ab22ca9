"""The members of a dataset and their permanent numbers, in the order in which they were first seen.

    {"format":"poolish members","version":1,"uuid":"5f0c..."} 1b7e...      what the file is
    {"name":"actor-0"} 77ab...                                             ordinal 0
    {"name":"actor-1"} 04d1...                                             ordinal 1

Several streams that are read as one need numbers that stay: row ids carry the ordinal of their member in their upper
bits, and orders and states hold ids. So lines are only ever appended, an ordinal is durable before anyone learns it,
and it is never given to another name, also after its member has gone.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from poolish.errors import ConfigError, CorruptDataError, LimitExceeded
from poolish.files.checksums import ChecksummedLines
from poolish.files.locks import Lock
from poolish.files.publishing import sync, sync_directory
from poolish.files.space import open_regular

#: An ordinal is the upper part of a signed 64-bit row id, whose lower 48 bits count the member's rows.
ID_BITS = 48
MAX_MEMBERS = 2 ** (63 - ID_BITS)
_FORMAT, _VERSION = "poolish members", 1
_LOCK_TIMEOUT_S = 60.0


class MembershipRecord:
    """Name -> ordinal, in a file that any number of processes read and extend. One object serves one thread.

    A kill leaves a name recorded or not, never half. Once ``add`` returns, its ordinals survive a power cut.

    >>> record = MembershipRecord(folder / "members.jsonl")
    >>> record.add(["actor-0", "actor-1"]), record.add(["actor-1", "actor-2"])
    ([0, 1], [1, 2])
    >>> MembershipRecord(folder / "members.jsonl").names()
    ['actor-0', 'actor-1', 'actor-2']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lines = ChecksummedLines(self.path)
        self._lock = Lock(self.path.with_name(self.path.name + ".lock"), timeout_s=_LOCK_TIMEOUT_S)
        self._ordinals: dict[str, int] = {}
        self._uuid: str | None = None

    @property
    def uuid(self) -> str | None:
        """What identifies this record; None while it has no members."""
        self.refresh()
        return self._uuid

    def names(self) -> list[str]:
        """The names recorded by now, by any process; a name's place is its ordinal."""
        self.refresh()
        return list(self._ordinals)

    def create(self) -> None:
        """Give the record its identity, unless it has one; ``add`` does so with the first member."""
        with self._lock:
            self.refresh()
            if self._uuid is None:
                self._lines.write(_head())
        self.refresh()

    def add(self, names: Iterable[str]) -> list[int]:
        """The ordinals of these names; a name that has none gets the next one."""
        wanted = [_check_name(name) for name in names]
        self.refresh()
        if any(name not in self._ordinals for name in wanted):
            with self._lock:
                self.refresh()
                self._append([name for name in dict.fromkeys(wanted) if name not in self._ordinals])
                self.refresh()
        return [self._ordinals[name] for name in wanted]

    def refresh(self) -> None:
        """Read what was recorded since, by any process."""
        new = list(self._lines.unread())
        if not new:
            return
        if self._uuid is None:
            self._uuid = self._check_head(new.pop(0))
        # The process that wrote it may have been killed before it was on disk.
        self._sync()
        for line in new:
            self._ordinals[line["name"]] = len(self._ordinals)

    def _sync(self) -> None:
        fd = open_regular(self.path, os.O_RDONLY)
        try:
            sync(fd, self.path)
        finally:
            os.close(fd)
        sync_directory(self.path.parent)

    def _append(self, new: list[str]) -> None:
        if len(self._ordinals) + len(new) > MAX_MEMBERS:
            raise LimitExceeded(
                f"{self.path}: {len(self._ordinals):,} members and {len(new):,} new ones, the most is {MAX_MEMBERS:,} "
                "over the life of a record; begin a new one for a new run"
            )
        if new:
            self._lines.write(*([_head()] if self._uuid is None else []), *({"name": name} for name in new))

    def _check_head(self, line: dict[str, object]) -> str:
        if line.get("format") != _FORMAT or "uuid" not in line:
            raise CorruptDataError(f"{self.path}: not a membership record; give a file of its own")
        if line.get("version") != _VERSION:
            raise ConfigError(f"{self.path}: version {line.get('version')!r}; this poolish reads version {_VERSION}")
        return str(line["uuid"])


def _head() -> dict[str, object]:
    return {"format": _FORMAT, "version": _VERSION, "uuid": secrets.token_hex(8)}


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a member is called {name!r}; pass a non-empty name")
    return name
