"""Who fills a queue: a lock for as long as a provider lives, and a note of how far it came.

``providers/<name>.json`` is a hint that saves looking at old batches; what counts is the log itself and its watermark,
because a provider may be killed between publishing a batch and writing a note. So the next counter is one more than
the highest in the note, beside the watermark and in the provider's own files that are newer than the note.

There is little room beside the watermark. Where names are never used again (one for each restart), the counters of
providers that have ended go from there into their notes, which are then more than a hint.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from poolish.errors import ConfigError, CorruptDataError, StoreLocked
from poolish.files import Lock, check_name, open_regular
from poolish.files.state_files import read_checksummed_json, write_checksummed_json
from poolish.serve.batch_file import read_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolish.serve.queue_log import QueueLog

_EVERY_S = 1.0


@dataclass(frozen=True)
class Note:
    """``counter`` batches were made, all of them with numbers below ``number``; ``finished``: there will be no more."""

    counter: int = 0
    number: int = 0
    finished: bool = False


class ProviderNotes:
    """The lock and the note of one provider in one queue."""

    def __init__(self, log: QueueLog, name: str) -> None:
        self.log = log
        self._path = log.path / "providers" / f"{check_name(name, 'provider')}.json"
        self._lock = Lock(self._path.with_suffix(".lock"), timeout_s=2.0)
        self._name = name
        self._written_at = -_EVERY_S

    def claim(self) -> None:
        """Be this provider, alone."""
        try:
            self._lock.acquire()
        except StoreLocked as error:
            raise ConfigError(
                f"{self.log.path}: a provider named {self._name!r} is running ({error}); give this one another name"
            ) from None

    def next_counter(self) -> int:
        """How many batches this provider has published."""
        note = read_note(self._path)
        counters = [note.counter]
        for number in self.log.numbers():
            if number >= note.number:
                with suppress(CorruptDataError, FileNotFoundError):
                    label = read_label(self.log.path_of(number))
                    if label.provider == self._name:
                        counters.append(label.counter + 1)
        # Last, because what was deleted while we looked at the files is counted here.
        consumed = self.log.consumed()
        counters.append(consumed.counters.get(self._name, -1) + 1)
        if not max(counters) and consumed.has_moved:
            self._check_whole()
        return max(counters)

    def _check_whole(self) -> None:
        """Raise if the note is damaged where it alone may know the counter: all would be published again."""
        try:
            read_checksummed_json(self._path)
        except FileNotFoundError:
            pass  # a name that was not here before
        except CorruptDataError as error:
            raise CorruptDataError(
                f"{self._path}: damaged, and nothing else knows how many batches {self._name!r} has made; restore it, "
                "or start the provider under another name"
            ) from error

    def write(self, counter: int, number: int, *, finished: bool = False, now: bool = True) -> bool:
        """Note it down; unless it must be ``now``, not more often than once a second. Whether it was."""
        clock = time.monotonic()
        if not now and clock - self._written_at < _EVERY_S:
            return False
        write_checksummed_json(self._path, asdict(Note(counter, number, finished)), durable=False)
        self._written_at = clock
        return True

    def release(self) -> None:
        """Stop being this provider."""
        self._lock.release()


def read_note(path: Path) -> Note:
    """What a provider noted down; nothing, if nothing can be read: the log itself knows."""
    try:
        told = read_checksummed_json(path)
        note = Note(told["counter"], told["number"], told["finished"])
    except (FileNotFoundError, CorruptDataError, KeyError, TypeError):
        return Note()
    is_note = all(type(value) is int and value >= 0 for value in (note.counter, note.number))
    return note if is_note and isinstance(note.finished, bool) else Note()


def move_to_notes(folder: Path, counters: Mapping[str, int], *, durable: bool) -> dict[str, int]:
    """The counters of the living; those of providers that have ended are in their notes from now on."""
    return {name: counter for name, counter in counters.items() if not _moved(folder, name, counter, durable)}


def _moved(folder: Path, name: str, counter: int, durable: bool) -> bool:
    path = folder / f"{check_name(name, 'provider')}.json"
    try:
        with Lock(path.with_suffix(".lock")):  # so that it cannot start while its counter is in neither place
            note = read_note(path)
            if note.counter <= counter:
                write_checksummed_json(path, asdict(replace(note, counter=counter + 1)), durable=durable)
            return True
    except StoreLocked:
        return False


def providers(log: QueueLog) -> dict[str, tuple[Note, bool]]:
    """Every provider that ever filled this queue: its note, and whether it is alive."""
    found = {}
    with suppress(FileNotFoundError):
        for lock in sorted((log.path / "providers").glob("*.lock")):
            found[lock.stem] = read_note(lock.with_suffix(".json")), is_alive(lock)
    return found


def is_alive(path: Path) -> bool:
    """Whether somebody holds a lock."""
    try:
        fd = open_regular(path, os.O_RDONLY)
    except (OSError, CorruptDataError):
        return False
    try:
        # Shared, so that those who only ask do not keep each other, and for a moment only.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)
