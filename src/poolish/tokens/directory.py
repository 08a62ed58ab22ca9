"""A stream's directory: which files it has, how it comes to be, and what ``store.json`` says.

    S/
      store.json   what the stream is: version, uuid, fields; written last when it is made, never again
      data         int64 values                                    \\
      index        rows (start, type + 256 * ordinal, step) int64   |  lanes: append-only, mapped
      types        uint8 per token, derived from index             /
      head         one page: what is published (see head.py)
      commits      the log of commits (see commits.py)
      branches     the log of branches (see logs.py); streams of 0.1.0 have none until they are appended to
      lock         held by the one writer

    (nothing) --mkdir, lock--> files without store.json --sync, then store.json--> a stream
                                 `-- killed here: the next creation starts over

A stream without a path lies in a temporary directory, which goes with its process, however that ends. It is locked
while its process lives. A process that ends well removes its own; one that a killed process left is removed when the
next is made, because the kernel has released the lock. Each has a name, so that spawned workers can open it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from poolish.errors import ConfigError, CorruptDataError, StoreLocked
from poolish.files import CHECKSUM, Lock, raising_store_full, read_json, sweep, sync_directory, write_at, write_json
from poolish.files.checksums import json_checksum
from poolish.kernels.reference_tokens import FIRST, PUBLISHED
from poolish.tokens import logs
from poolish.tokens.commits import Commit, CommitLog
from poolish.tokens.fields import MAX_FIELDS, TokenField
from poolish.tokens.head import BRANCHES, COMMITTED, Head, owner_of
from poolish.tokens.logs import Branches, BranchLog, chained
from poolish.tokens.stream_files import StreamFiles

FORMAT = "poolish stream"
VERSION = 1
DESCRIPTION = "store.json"
LOCK = "lock"
_FIRST_PAGES = 1 << 16
_OURS = {"data", "index", "types", "head", "commits", logs.BRANCHES_FILE, LOCK}


@dataclass(frozen=True)
class Description:
    """What ``store.json`` says."""

    uuid: UUID
    fields: tuple[TokenField, ...]


def is_store(path: Path) -> bool:
    """Whether a stream is there."""
    return os.path.lexists(path / DESCRIPTION)


def make_directory(path: Path, *, durable: bool) -> None:
    """The directory for a stream; one that holds anything else is refused."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with raising_store_full(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        if durable:
            sync_directory(folder.parent)
    strangers = sorted(name for name in os.listdir(path) if name not in _OURS and not name.endswith(".partial"))
    if strangers and not is_store(path):
        raise ConfigError(f"{path}: holds {strangers[0]!r} and no stream; choose an empty or a new directory")


def create(path: Path, fields: tuple[TokenField, ...], *, durable: bool) -> None:
    """Make a stream in a directory whose lock is held; it exists when ``store.json`` does."""
    sweep(path)
    uuid = uuid4()
    for name in _OURS - {LOCK}:  # what a creation that was killed left
        (path / name).unlink(missing_ok=True)
    with ExitStack() as opened:
        lanes = opened.enter_context(closing(StreamFiles(path, mode="w")))
        head = opened.enter_context(closing(Head(path / "head", mode="a")))
        log = opened.enter_context(closing(CommitLog(path / "commits", uuid, mode="w")))
        branch_log = opened.enter_context(closing(BranchLog(path / logs.BRANCHES_FILE, uuid, mode="w")))
        lanes.reserve(1, 0)
        # Read from the disk it would come in small pages, with all that was allocated (see get_ready in _tokens.pyx).
        write_at(lanes.index.file.fd, bytes(_FIRST_PAGES), 0)
        kinds = "".join(str(field.kind) for field in fields)
        for type_, field in enumerate(fields):
            head.store_kind(type_, field.kind)
        for word in (PUBLISHED, FIRST, COMMITTED):
            head.store(word, 0)
        head.store(BRANCHES, 1)
        head.sign(owner_of(uuid, lanes.data.file))
        root = Branches().after(str(uuid), {0: False})
        branch_log.append(root, durable=durable)
        empty = {"first": 0, "rows": 0, "tokens": 0, "kinds": kinds, "data": [], "index": [], "branches": len(root)}
        log.append(chained(Commit, None, str(uuid), **empty))
        if durable:
            lanes.sync()
            head.sync()
            # The names too, before the one name that says that the stream is whole.
            sync_directory(path)
    _write(path / DESCRIPTION, uuid, fields, durable=durable)


def _write(path: Path, uuid: UUID, fields: tuple[TokenField, ...], *, durable: bool) -> None:
    members: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "uuid": str(uuid),
        "hash": CHECKSUM,
        "lanes": {"data": "int64", "index": "3 x int64", "types": "uint8"},
        "fields": [field.to_json() for field in fields],
    }
    write_json(path, {**members, "checksum": json_checksum(members)}, durable=durable, replace=False)


def read_description(path: Path) -> Description:
    """What a stream is, checked; anything that is not right is a ``CorruptDataError`` or says what is missing."""
    file = path / DESCRIPTION
    if not is_store(path):
        raise FileNotFoundError(f"{path}: no stream here; make one with StreamStore(path, fields=...)")
    members = read_json(file)
    if not isinstance(members, dict) or members.get("format") != FORMAT:
        raise CorruptDataError(f"{file}: does not describe a stream of poolish; restore it from a copy")
    if members.get("version") != VERSION:
        raise CorruptDataError(
            f"{file}: version {members.get('version')!r}, this poolish reads {VERSION}; upgrade poolish"
        )
    proof = members.pop("checksum", None)
    if proof != json_checksum(members):
        raise CorruptDataError(f"{file}: damaged, its checksum does not fit; restore it from a copy")
    try:
        fields = tuple(TokenField.from_json(field, str(file)) for field in members["fields"])
        uuid = UUID(members["uuid"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"{file}: {error}; restore it from a copy") from error
    if not 1 <= len(fields) <= MAX_FIELDS or len({field.name for field in fields}) < len(fields):
        raise CorruptDataError(f"{file}: {len(fields)} fields that are no stream's; restore it from a copy")
    return Description(uuid, fields)


# Temporary directories -------------------------------------------------------------------------------------------


PREFIX = "poolish-stream-"


def make_temporary(lock_name: str) -> tuple[Path, Lock]:
    """A new directory of this process and the lock that keeps it."""
    folder = Path(tempfile.gettempdir())
    sweep_temporary(folder, lock_name)
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
        lock = Lock(path / lock_name)
        try:
            lock.acquire()
            return path, lock
        except (StoreLocked, FileNotFoundError):
            continue  # a sweeper took it for a dead one before it was locked


def keep_temporary(lock_name: str) -> Path:
    """A new directory of this process that stays until the process ends."""
    path, lock = make_temporary(lock_name)
    owner = os.getpid()

    def clear() -> None:
        if os.getpid() == owner:  # not a forked child that ends before us
            remove_temporary(path)
            lock.release()

    atexit.register(clear)
    return path


def sweep_temporary(folder: Path, lock_name: str) -> list[Path]:
    """Remove the directories of processes that are dead; which ones."""
    removed = []
    for name in os.listdir(folder):
        path = folder / name
        if name.startswith(PREFIX) and _is_ours(path) and _remove_if_dead(path, lock_name):
            removed.append(path)
    return removed


def remove_temporary(path: Path) -> None:
    """Remove a directory of ours; nothing happens if it is gone."""
    shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _remove_if_dead(path: Path, lock_name: str) -> bool:
    with suppress(OSError):  # StoreLocked is one: its process is alive
        with Lock(path / lock_name):
            remove_temporary(path)
        return True
    return False
