"""Queues in a directory: ``<dataset>/queue/<split>/``, one log each, without a server.

Creating, opening and purging. A purge renames the directory in one step, under the queue's lock, so that a process that
still reads or fills it notices; what a killed purge left is removed by the next provider.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

from poolish.errors import QueueError
from poolish.files import Lock, local_path, raising_store_full
from poolish.files.checksums import DoubleBufferedJson
from poolish.transports.directory_parts import META_FILE, read_meta, write_meta
from poolish.transports.log import LOCK_TIMEOUT_S, DirectoryLog, make_folders
from poolish.transports.meta import QueueMeta, not_found
from poolish.transports.protocols import Place


class DirectoryPlace(Place):
    """``Place`` of a directory with one folder per split."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_dataset(cls, path: Path) -> DirectoryPlace:
        """Where a provider of the dataset at ``path`` publishes."""
        return cls(path / "queue")

    @classmethod
    def find(cls, path: Path) -> DirectoryPlace:
        """Where a consumer reads, given a dataset's directory or its queue; ``QueueNotFound`` if neither has one."""
        for place in (path / "queue", path):
            if place.is_dir() and any(place.glob(f"[!.]*/{META_FILE}")):
                return cls(place)
        raise not_found(str(path if path.name == "queue" else path / "queue"))

    def __str__(self) -> str:
        return str(self.path)

    def splits(self) -> list[str]:
        return sorted(path.parent.name for path in self.path.glob(f"[!.]*/{META_FILE}"))

    def name_of(self, split: str) -> str:
        return str(self.path / split)

    def meta(self, split: str) -> QueueMeta:
        return read_meta(self.path / split)

    def open(self, split: str, *, read_only: bool = False) -> DirectoryLog:
        return DirectoryLog.open(self.path / split, read_only=read_only)

    def create(self, split: str, meta: QueueMeta) -> DirectoryLog:
        """Open or create a split's queue, and remove what killed purges left."""
        with raising_store_full(self.path):
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        _sweep_purged(self.path)
        return create_log(self.path / split, meta)

    def purge(self, split: str) -> int:
        return purge(self.path / split)


def create_log(path: Path, meta: QueueMeta) -> DirectoryLog:
    """The queue for batches as ``meta`` describes them: the existing one, if it is for such batches, else a new one."""
    for _ in range(100):
        make_folders(path, parents=True)
        try:
            with Lock(path / "lock", timeout_s=LOCK_TIMEOUT_S):
                return _create(path, meta)
        except FileNotFoundError:
            continue  # it was purged while we waited for its lock
    raise QueueError(f"{path}: removed again and again while a provider opens it; find the process that removes it")


def _create(path: Path, meta: QueueMeta) -> DirectoryLog:
    if not (path / META_FILE).exists():
        DoubleBufferedJson(path / "consumed").reserve()
        write_meta(path, meta)
        return DirectoryLog(path, meta)
    found = read_meta(path)
    with closing(DirectoryLog(path, found)) as log:
        newest = log.meta_with(meta)
    if newest != found:
        write_meta(path, newest)
    return DirectoryLog(path, newest)


def purge(path: Path) -> int:
    """Remove a split's queue in one step, whatever is in it; how many batches went with it."""
    if path.is_symlink():
        raise QueueError(f"{path}: a symbolic link, whose target would stay; purge {path.resolve()} instead")
    with Lock(path / "lock", timeout_s=LOCK_TIMEOUT_S), raising_store_full(path):
        n_batches = sum(1 for _ in path.glob("[0-9]*.safetensors"))
        away = path.with_name(f".purged-{path.name}-{os.urandom(8).hex()}")
        os.rename(path, away)
    shutil.rmtree(away, ignore_errors=True)  # a provider that starts now sweeps it too
    return n_batches


def _sweep_purged(queue: Path) -> None:
    for name in os.listdir(queue):
        if name.startswith(".purged-"):
            shutil.rmtree(queue / name, ignore_errors=True)


def queue_folders(path: str | os.PathLike[str]) -> list[Path]:
    """The split folders at a path, intact or not: of a dataset's directory, of its queue, or one split itself."""
    at = local_path(path, "queue", instead="the sources of a recipe")
    if os.path.lexists(at / META_FILE):
        return [at if at.name else at.absolute()]
    for place in (at / "queue", at):
        found = sorted(place.glob(f"[!.]*/{META_FILE}")) if place.is_dir() else []
        if found:
            return [file.parent for file in found]
    if not at.exists():
        raise not_found(str(at))
    raise QueueError(f"{at}: no queue in it; give data/<dataset>, its queue, or a split of that")
