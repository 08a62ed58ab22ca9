"""Counting by processes, in a directory.

    <path>/
      pacing.json               the settings that all agree on
      lock                      held for microseconds while a count changes
      totals                    the sums; whole, or being changed
      recorders/<name>          what one recorder has inserted   (counters, written by it alone)
      recorders/<name>.lock     held while it is attached
      samplers/<name>, .lock    what one sampler has sampled

Each owner's file is the truth about it, the sums are derived: they are marked as being changed before an owner's file
changes, so after a kill in between the next holder of the lock adds the owners up again. Counts survive kills. They are
not synced: after a power cut they may be older, as what was recorded may be.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from poolish.errors import ConfigError, CorruptDataError, StoreFull, StoreLocked
from poolish.files import Lock, check_name, raising_store_full
from poolish.files.checksums import ChecksummedCounters, read_checksummed_json, write_checksummed_json
from poolish.files.space import is_at
from poolish.replay.counts import ROLES, Counts, Kind, Owner, Side, Totals
from poolish.transports.directory_parts import DirectoryWaker, is_held, modified_at

_LOCK_TIMEOUT_S = 60.0
_TAKE_OVER_S = 2.0  # a killed process may take a while to end
#: Kind -> the folder of its owners.
FOLDERS: dict[Kind, str] = {"insert": "recorders", "sample": "samplers"}


class _Record(NamedTuple):
    """The file of an owner."""

    done: int = 0
    pending: int = 0
    largest: int = 0
    evictions: int = 0
    has_ended: int = 0


class _Sums(NamedTuple):
    """The file of the totals."""

    inserts: int = 0
    inserting: int = 0
    largest_insert: int = 0
    samples: int = 0
    sampling: int = 0
    largest_sample: int = 0
    evictions: int = 0
    is_whole: int = 0

    @classmethod
    def of(cls, totals: Totals) -> _Sums:
        return cls(*totals.insert, *totals.sample, totals.evictions, 1)

    def totals(self) -> Totals:
        return Totals(Side(*self[:3]), Side(*self[3:6]), self.evictions)


class DirectoryCounts(Counts):
    """Counts for processes: one owner's side of them, which it has until ``close`` or the end of its process."""

    def __init__(self, path: Path, kind: Kind, name: str, settings: Mapping[str, Any], count: int | None) -> None:
        self.path, self.place, self.kinds = path, str(path), (kind,)
        self.name = check_name(name, ROLES[kind])
        for folder in FOLDERS.values():
            with raising_store_full(path):
                (path / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._threads, self._lock = threading.RLock(), Lock(path / "lock", timeout_s=_LOCK_TIMEOUT_S, keep_open=True)
        self._depth = 0
        self._sums = ChecksummedCounters(path / "totals", len(_Sums._fields))
        self._file = self._file_of(kind, self.name)
        self._presence = Lock(path / FOLDERS[kind] / f"{self.name}.lock", timeout_s=_TAKE_OVER_S)
        try:
            self._attach(kind, settings, count)
        except BaseException:
            self._presence.release()
            self._close_files()
            raise

    def _attach(self, kind: Kind, settings: Mapping[str, Any], count: int | None) -> None:
        try:
            self._presence.acquire()
        except StoreLocked as error:
            raise ConfigError(
                f"{self.place}: a {ROLES[kind]} named {self.name!r} is attached ({error}); give this one another name"
            ) from None
        with self._holding():
            self._agree(settings)
            before = self._record_of(self._file, may_be_damaged=count is not None)
            # Something that was pending when this owner was killed has not happened.
            done = before.done if count is None else count
            self._mark_changing()
            self._file.write(*_Record(done, 0, before.largest, before.evictions))
            self._recount()

    def _agree(self, settings: Mapping[str, Any]) -> None:
        """Compare settings with those of the owners that are attached; where there are none, they are replaced."""
        file = self.path / "pacing.json"
        try:
            found = read_checksummed_json(file)
        except FileNotFoundError:
            found = None
        wanted = {"format": "poolish.pacing", "version": 1, **settings}
        if found == wanted:
            return
        others = [owner.name for kind in FOLDERS for owner in self.owners(kind) if owner.is_attached]
        others.remove(self.name)
        if found is not None and others:
            shown = [f"{name}={found.get(name)!r} there, {value!r} here" for name, value in wanted.items()]
            different = [text for text, name in zip(shown, wanted, strict=True) if found.get(name) != wanted[name]]
            raise ConfigError(
                f"{self.place}: {', '.join(others)} pace with other settings ({'; '.join(different)}); use the same on "
                "all sides, or end the others first"
            )
        write_checksummed_json(file, wanted, durable=False)

    # -- counting

    @contextmanager
    def locked(self) -> Iterator[Totals]:
        with self._holding():
            yield self._totals()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        with self._threads:
            if not self._depth:
                self._acquire()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._lock.release()

    def _acquire(self) -> None:
        self._check_open()
        try:
            self._lock.acquire()
        except FileNotFoundError:
            raise self._gone() from None
        if not is_at(self.path, self._folder_fd):
            self._lock.release()
            raise self._gone()

    def _check_open(self) -> None:
        if self._folder_fd < 0:
            raise ConfigError(f"{self.place}: {ROLES[self.kinds[0]]} {self.name!r} is closed; attach again")

    def _gone(self) -> ConfigError:
        return ConfigError(f"{self.place}: the directory was removed meanwhile; attach all sides again")

    def _totals(self) -> Totals:
        sums = self._sums.read()
        if sums is None or not _Sums(*sums).is_whole:
            return self._recount()
        return _Sums(*sums).totals()

    def _recount(self) -> Totals:
        """Add up what the owners have, without what was pending when one was killed; locked."""
        totals = Totals()
        for kind, folder in FOLDERS.items():
            for lock in sorted((self.path / folder).glob("*.lock")):
                file = self._file_of(kind, lock.stem)
                record = self._record_of(file)
                if record.pending and not is_held(lock):
                    record = record._replace(pending=0)
                    file.write(*record)
                if file is not self._file:
                    file.close()
                totals = _with(totals, kind, record)
        self._sums.write(*_Sums.of(totals))
        return totals

    def change(self, kind: Kind, *, done: int = 0, pending: int = 0, largest: int = 0, evictions: int = 0) -> None:
        with self._holding():
            old = self._record_of(self._file)
            new = _Record(old.done + done, old.pending + pending, max(old.largest, largest), old.evictions + evictions)
            self._replace(old, new)

    def _replace(self, old: _Record, new: _Record) -> None:
        """Write this owner's record, and the totals with it; locked."""
        before, kind = self._totals(), self.kinds[0]
        self._mark_changing()
        self._file.write(*new)
        was = before.side(kind)
        side = Side(
            was.done + new.done - old.done, was.pending + new.pending - old.pending, max(was.largest, new.largest)
        )
        evictions = before.evictions + new.evictions - old.evictions
        after = before.with_side(kind, side)._replace(evictions=evictions)
        self._sums.write(*_Sums.of(after))

    def _mark_changing(self) -> None:
        """From here until the totals are written, a kill makes the next holder of the lock add the owners up."""
        self._sums.write(*_Sums())

    def _file_of(self, kind: Kind, name: str) -> ChecksummedCounters:
        own = getattr(self, "_file", None)
        path = self.path / FOLDERS[kind] / name
        return own if own is not None and own.path == path else ChecksummedCounters(path, len(_Record._fields))

    def _record_of(self, file: ChecksummedCounters, *, may_be_damaged: bool = False) -> _Record:
        found = file.read()
        if found is not None:
            return _Record(*found)
        try:
            n_bytes = file.path.stat().st_size
        except FileNotFoundError:
            n_bytes = 0
        if n_bytes and not may_be_damaged:
            raise CorruptDataError(
                f"{file.path}: damaged, so it is not known how much {file.path.name!r} has counted; attach it with "
                "count=, or remove the file if it will not come back"
            )
        return _Record()

    def read(self) -> Totals:
        self._check_open()
        sums = self._sums.read()
        if sums is None or not _Sums(*sums).is_whole:
            with self.locked() as totals:
                return totals
        return _Sums(*sums).totals()

    def own(self) -> Totals:
        return _with(Totals(), self.kinds[0], self._record_of(self._file))

    def sweep(self) -> None:
        with self._holding():
            totals = self._totals()
            if totals.insert.pending or totals.sample.pending:
                self._recount()

    # -- the others

    def waiter(self) -> DirectoryWaker:
        waker = DirectoryWaker(self.path)
        waker.add(self.path)
        return waker

    def owners(self, kind: Kind) -> list[Owner]:
        found = []
        for lock in sorted((self.path / FOLDERS[kind]).glob("*.lock")):
            file = self._file_of(kind, lock.stem)
            numbers = file.read()
            if file is not self._file:
                file.close()
            wrote_at = max(modified_at([file.path]), default=time.time())
            has_ended = numbers is not None and bool(_Record(*numbers).has_ended)
            found.append(Owner(lock.stem, is_held(lock), has_ended, max(0.0, time.time() - wrote_at)))
        return found

    def close(self) -> None:
        if self._folder_fd < 0:
            return
        try:
            # Where the directory was removed, or its disk is full, there is nothing to write that anyone reads.
            with suppress(ConfigError, StoreFull), self._holding():
                record = self._record_of(self._file)
                self._replace(record, record._replace(pending=0, has_ended=1))
        finally:
            self._presence.release()
            self._close_files()

    def _close_files(self) -> None:
        self._file.close()
        self._sums.close()
        self._lock.close()
        fd, self._folder_fd = self._folder_fd, -1
        if fd >= 0:
            os.close(fd)


def _with(totals: Totals, kind: Kind, record: _Record) -> Totals:
    side = totals.side(kind).joined(Side(*record[:3]))
    return totals.with_side(kind, side)._replace(evictions=totals.evictions + record.evictions)
