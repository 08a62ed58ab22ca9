"""The streams that are read as one: found as they appear, identified by uuid, numbered for ever.

    no directory, or one without store.json    waited for: its recorder has not made it yet
    a stream                                   a member, from the first look that finds it; its ordinal is permanent
    its directory is gone                      it has left, and its ordinal with it
    another stream under its name              a new member, with an ordinal of its own

Looking costs a listing and a stat for each member, so what reads looks at most every ``LOOK_S`` seconds; what members
have appended is seen with every read.
"""

from __future__ import annotations

import errno
import glob
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from poolish.errors import ConfigError, CorruptDataError, PoolishError, SchemaError
from poolish.files import checksum_hex, local_path
from poolish.files.membership import MembershipRecord
from poolish.tokens.directory import DESCRIPTION, is_store
from poolish.tokens.fields import TokenField
from poolish.tokens.store import StreamStore

#: How long a new member may stay unseen by reads.
LOOK_S = 0.2

RECORD = "members.jsonl"
_TAKES_URLS = "the sources of a recipe"
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}


class _ReadOnlyRecord(ConfigError):
    """A record that this process may not write."""


@dataclass(frozen=True)
class Member:
    """One stream of a set: its name, its permanent ordinal, and the stream itself, to read."""

    name: str
    ordinal: int
    store: StreamStore

    @property
    def uuid(self) -> str:
        """The stream's own name."""
        return self.store.uuid

    @property
    def path(self) -> Path | None:
        """Where it is."""
        return self.store.path

    @property
    def n_steps(self) -> int:
        """How many steps it holds now."""
        return self.store.n_steps

    def __str__(self) -> str:
        return f"member {self.name!r}"


# Where members come from --------------------------------------------------------------------------------------------


class Sources(Protocol):
    """What may become a member."""

    def names(self) -> list[str]:
        """The names there may be members under, in the order in which they are numbered."""

    def source(self, name: str) -> Path | StreamStore:
        """A stream that is open, or where one is to be."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may record what is here."""


class FolderPattern:
    """Directories that match a pattern; names are relative to the folder above the first wildcard.

    >>> FolderPattern("runs/actors/*").root, FolderPattern("runs/*/actor-?").root
    (PosixPath('runs/actors'), PosixPath('runs'))
    """

    is_shared = True

    def __init__(self, pattern: str | os.PathLike[str]) -> None:
        parts = local_path(pattern, "StreamSet pattern", instead=_TAKES_URLS).parts
        n_literal = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        if n_literal == len(parts):
            raise ConfigError(
                f"StreamSet({str(pattern)!r}): no wildcard in it; give a pattern such as '{pattern}/*', or a list of "
                "streams"
            )
        self.root, self.tail = Path(*parts[:n_literal]), os.path.join(*parts[n_literal:])

    def names(self) -> list[str]:
        """Directories in the order of their names."""
        found = glob.glob(self.tail, root_dir=self.root)
        return sorted(name for name in found if os.path.isdir(self.root / name))

    def source(self, name: str) -> Path:
        """Its path."""
        return self.root / name

    def __str__(self) -> str:
        return str(self.root / self.tail)


class StreamList:
    """Streams and paths as they were given."""

    def __init__(self, given: Iterable[Any]) -> None:
        self._given: dict[str, Path | StreamStore] = {}
        for source in given:
            self.add(source)

    def add(self, source: Any) -> str:
        """One more; its name."""
        if not isinstance(source, (StreamStore, str, os.PathLike)):
            raise ConfigError(f"StreamSet: {source!r} is no stream; give StreamStores, or paths of theirs")
        kept = source if isinstance(source, StreamStore) else local_path(source, "StreamSet path", instead=_TAKES_URLS)
        path = kept.path if isinstance(kept, StreamStore) else kept
        name = f"stream {len(self._given)}" if path is None else str(path)
        if name in self._given:
            raise ConfigError(f"StreamSet: {name} is given twice; pass each stream once")
        self._given[name] = kept
        return name

    def names(self) -> list[str]:
        """In their order."""
        return list(self._given)

    def source(self, name: str) -> Path | StreamStore:
        """What was given."""
        return self._given[name]

    @property
    def is_shared(self) -> bool:
        """Unless all are streams without a path."""
        return any(not isinstance(each, StreamStore) or each.path is not None for each in self._given.values())

    def __str__(self) -> str:
        return f"a list of {len(self._given)}"


# Their ordinals -----------------------------------------------------------------------------------------------------


class Ordinals(Protocol):
    """Permanent numbers of streams, by uuid."""

    @property
    def uuid(self) -> str:
        """A name of this numbering."""

    def n_given(self) -> int:
        """Below it each ordinal belongs to a member that is there or has left."""

    def assign(self, streams: Sequence[tuple[str, str]]) -> list[int]:
        """The ordinals of streams, given by name and uuid."""

    def unseen(self, known: Iterable[str]) -> set[str]:
        """The uuids that have an ordinal and are not among these."""


class RecordedOrdinals:
    """Ordinals in a membership record, which all readers share; its names are those of members and their uuids."""

    def __init__(self, path: Path) -> None:
        self._record = MembershipRecord(path)

    @property
    def uuid(self) -> str:
        """That of the record; empty while there is none, and this process may not write it."""
        if self._record.uuid is None:
            with suppress(_ReadOnlyRecord):
                self._write(self._record.create)
        return self._record.uuid or ""

    def n_given(self) -> int:
        """All that were recorded."""
        return len(self._record.names())

    def assign(self, streams: Sequence[tuple[str, str]]) -> list[int]:
        """From the record, in which new streams are entered first."""
        known = self._known()
        new = [f"{name} {uuid}" for name, uuid in streams if uuid not in known]
        if new:
            self._write(lambda: self._record.add(new))
            known = self._known()
        return [known[uuid] for _, uuid in streams]

    def unseen(self, known: Iterable[str]) -> set[str]:
        """What other processes have recorded."""
        return self._known().keys() - set(known)

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            raise _ReadOnlyRecord(
                f"{self._record.path}: the ordinals of new members cannot be recorded here ({error.strerror}); pass "
                "record= with a path that this process may write to"
            ) from error

    def _known(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for ordinal, name in enumerate(self._record.names()):
            found.setdefault(name.rpartition(" ")[2], ordinal)  # a stream that was moved keeps its first
        return found


class ListedOrdinals:
    """Ordinals that follow a list, in memory."""

    def __init__(self, sources: StreamList) -> None:
        self._sources = sources
        self._ordinals: dict[str, int] = {}
        self._slots: list[str | None] = [None] * len(sources.names())
        self._uuid = checksum_hex("\n".join(sources.names()).encode())

    @property
    def uuid(self) -> str:
        """A digest of the list as it was first."""
        return self._uuid

    def n_given(self) -> int:
        """Those before the first that is not there yet."""
        return self._slots.index(None) if None in self._slots else len(self._slots)

    def assign(self, streams: Sequence[tuple[str, str]]) -> list[int]:
        """The place in the list; behind it for another stream under a name that was taken."""
        places = {name: place for place, name in enumerate(self._sources.names())}
        for name, uuid in streams:
            if uuid not in self._ordinals:
                place = places[name]
                self._slots += [None] * (place + 1 - len(self._slots))
                if self._slots[place] is not None:
                    place = len(self._slots)
                    self._slots.append(None)
                self._slots[place], self._ordinals[uuid] = uuid, place
        return [self._ordinals[uuid] for _, uuid in streams]

    def unseen(self, known: Iterable[str]) -> set[str]:
        """None: there is no one else."""
        return set()


# The members now ----------------------------------------------------------------------------------------------------

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class _Open:
    store: StreamStore
    stamp: Stamp | None
    uuid: str


class Present(NamedTuple):
    """The members by ordinal as one look found them, and what it knew of those that were not there."""

    members: Mapping[int, Member]
    n_given: int
    waiting: tuple[str, ...]


class Membership:
    """The members of a set at the moment of the last look. Safe to use from threads."""

    def __init__(self, sources: Sources, ordinals: Ordinals) -> None:
        self.sources, self.ordinals = sources, ordinals
        self.present = Present({}, 0, ())
        self._fields: tuple[str, tuple[TokenField, ...]] | None = None
        self._open: dict[str, _Open] = {}
        self._looked_at = float("-inf")
        self._lock, self._pid = threading.Lock(), os.getpid()

    def look(self, *, is_due: bool) -> None:
        """Find what has come and what has left, if that is due or was not done for ``LOOK_S``."""
        if not is_due and self._is_recent():
            return
        if self._pid != os.getpid():  # the thread that held it stayed in the process that this one was forked from
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if not is_due and self._is_recent():  # another thread has looked while we waited
                return
            while True:
                recorded = self.ordinals.unseen(())
                found, waiting = self._found()
                ordinals = self.ordinals.assign([(name, each.uuid) for name, each in found.items()])
                n_given = self.ordinals.n_given()
                # A member that another process recorded meanwhile has not left: it may have come behind our look.
                if not self.ordinals.unseen({*recorded, *(each.uuid for each in found.values())}):
                    break
            pairs = zip(found.items(), ordinals, strict=True)
            members = [Member(name, ordinal, each.store) for (name, each), ordinal in pairs]
            kept = {member.ordinal: self._kept(member) for member in sorted(members, key=lambda m: m.ordinal)}
            # In one assignment: an ordinal below n_given that is not among the members has left, for every thread.
            self.present, self._open = Present(kept, n_given, waiting), found
            self._looked_at = time.monotonic()

    def _is_recent(self) -> bool:
        # Without any member each look counts: a limiter may have admitted a draw because the first one has begun.
        return bool(self.present.members) and time.monotonic() - self._looked_at < LOOK_S

    def _kept(self, member: Member) -> Member:
        """The same object as before, while it is the same member."""
        before = self.present.members.get(member.ordinal)
        return before if before == member else member

    def _found(self) -> tuple[dict[str, _Open], tuple[str, ...]]:
        """The streams there are by name, and the names without one so far."""
        found: dict[str, _Open] = {}
        waiting: list[str] = []
        names: dict[str, str] = {}
        for name in self.sources.names():
            opened = self._opened(name)
            if opened is None:
                waiting.append(name)
                continue
            if opened.uuid in names:
                raise ConfigError(
                    f"StreamSet: {names[opened.uuid]!r} and {name!r} are the same stream ({opened.uuid}), one of them "
                    "copied or linked; leave one out"
                )
            found[name], names[opened.uuid] = opened, name
        return found, tuple(waiting)

    def _opened(self, name: str) -> _Open | None:
        source, known = self.sources.source(name), self._open.get(name)
        if isinstance(source, StreamStore):
            return known or self._checked(name, source, None)
        stamp = _stamp(source)
        if known is not None and known.stamp == stamp:
            return known
        if stamp is None:
            return None
        try:
            store = StreamStore.open(source)
        except FileNotFoundError:
            return None  # it has gone since
        except CorruptDataError as error:
            if not is_store(source):
                return None
            error.add_note(
                f"while opening member {name!r} of a StreamSet; repair it as the error says, or move {source} out of "
                "the set"
            )
            raise
        return self._checked(name, store, stamp)

    def _checked(self, name: str, store: StreamStore, stamp: Stamp | None) -> _Open:
        """The stream, if it has the fields of the others."""
        fields = store._read().description.fields
        if self._fields is None:
            self._fields = name, fields
        if fields != self._fields[1]:
            other, wanted = self._fields
            raise SchemaError(
                f"member {name!r} of a StreamSet has the fields ({', '.join(map(str, fields))}), member {other!r} has "
                f"({', '.join(map(str, wanted))}); record both with the same fields in the same order, or read them as "
                "two sets"
            )
        return _Open(store, stamp, store.uuid)

    def refresh_members(self) -> None:
        """See what members have appended."""
        for member in self.present.members.values():
            try:
                member.store.refresh()
            except PoolishError as error:
                error.add_note(f"while reading {member} of a StreamSet")
                raise

    def close(self) -> None:
        """Close what was opened here."""
        for each in self._open.values():
            if each.stamp is not None:
                each.store.close()
        self.present, self._open = Present({}, 0, ()), {}


def _stamp(path: Path) -> Stamp | None:
    """What changes when another stream is made at a path; None where there is none."""
    try:
        found = os.stat(path / DESCRIPTION)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
