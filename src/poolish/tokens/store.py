"""StreamStore: multi-field data, recorded a step at a time and read in windows, by other processes too."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish import html, kernels
from poolish.arguments import is_whole
from poolish.concurrency import WeakRegistry
from poolish.errors import ConfigError, SchemaError
from poolish.files import local_path
from poolish.health import Health, Problem
from poolish.printable import printable
from poolish.seeds import generator
from poolish.tokens import directory
from poolish.tokens.directory import LOCK, is_store
from poolish.tokens.experience import ExperienceReads
from poolish.tokens.fields import TokenField, fields_of
from poolish.tokens.hf import DatasetConversions
from poolish.tokens.reader import Reader
from poolish.tokens.sampling import KnownStarts
from poolish.tokens.sequences import KnownSequences
from poolish.tokens.transitions import KnownTransitions
from poolish.tokens.window_dataset import WindowDataset
from poolish.tokens.writer import Writer

Int64 = NDArray[np.int64]
Batch = dict[str, NDArray[np.int64]]

_NO_BOUND = 2**62
_TAKES_URLS = "save_dataset() and load_dataset(), and by the sources of a recipe"

#: Stores that write, for the moment after a fork.
_writing: WeakRegistry[StreamStore] = WeakRegistry()


class StreamStore(DatasetConversions, ExperienceReads, kernels.Appender):
    """Append-only stream of int64 tokens on disk, shared by one writer and any number of readers.

    Without a path the files are temporary and go with the process. A reader sees a step once ``append`` has returned,
    and never half of one. Once ``append`` returns, the data survives ``kill -9``; once ``commit`` returns, it survives
    a power cut. Steps never decrease; within a step, fields come in the order in which they were declared.

    >>> store = StreamStore(folder / "rollouts", fields={"action": "int64", "reward": "float32"})
    >>> store.append(0, {"action": 3, "reward": 0.5})
    >>> store.append_many([1, 2], {"action": [4, 5], "reward": [0.25, 1.0]})
    >>> batch = store[np.array([[0, 2], [-2, -1]])]
    >>> batch["types"].tolist(), store.decode(batch["values"][:, 1], "reward").tolist()
    ([[0, 0], [0, 1]], [0.0, 1.0])
    >>> list(store.steps(1, 3))
    [{'action': 4, 'reward': 0.25}, {'action': 5, 'reward': 1.0}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        fields: Any = None,
        *,
        max_tokens: int | None = None,
        seed: int = 0,
        continue_episode: bool = False,
    ) -> None:
        """Make a stream, or append to the one at ``path``, which must have the same fields if they are given.

        ``fields`` is a list of names (every field then holds float64 numbers) or {name: what it holds}: a dtype, a
        dtype with a shape as in ``("float32", (4,))``, a feature, a gymnasium space, or a sample value. Mappings may be
        nested: their fields are "obs.position". A stream of ``max_tokens`` drops its oldest steps; positions keep
        counting up. ``seed`` is for ``sample`` without ``rng``.

        What is appended to a stream that was opened again begins a new episode (a *break*), because the recorder
        of the last one may have been killed in the middle of it. ``continue_episode=True`` continues it.
        """
        self._prepare(_as_path(path), max_tokens, seed, continue_episode)
        if fields is not None:
            self.define_fields(fields)
        elif self._path is not None and is_store(self._path):
            self._write(self._path, None)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        at: int | None = None,
        mmap: bool = True,
        max_tokens: int | None = None,
        seed: int = 0,
        continue_episode: bool = False,
    ) -> StreamStore:
        """Open an existing stream to read (``"r"``) or to append (``"a"``).

        A reader needs no lock and no permission to write; its length stays until ``refresh``. ``at`` opens an older
        commit, by its number, and stays there: neither ``refresh`` nor a loader or a bake goes further. ``mmap=False``
        copies the stream into memory, for directories that others may tamper with: a file that is cut while it is
        mapped ends the process that reads it. ``continue_episode`` is as in ``StreamStore``.
        """
        if mode not in ("r", "a") or (mode == "a" and (at is not None or not mmap)):
            raise ConfigError(
                f"mode {mode!r}, at={at}, mmap={mmap}: 'r' reads, at an older commit or a copy; 'a' appends"
            )
        if mode == "r" and continue_episode:
            raise ConfigError("continue_episode=True: only what appends can continue an episode; open with mode='a'")
        store = cls.__new__(cls)
        place = local_path(path, "StreamStore path", instead=_TAKES_URLS)
        store._prepare(place, max_tokens, seed, continue_episode)
        if mode == "a":
            store._write(place, None)
        else:
            store._source = Reader(place, at=None if at is None else _commit_number(at), mapped=mmap)
        return store

    def _prepare(self, path: Path | None, max_tokens: int | None, seed: int, continue_episode: bool = False) -> None:
        if max_tokens is not None and not (is_whole(max_tokens) and max_tokens > 0):
            raise ConfigError(f"max_tokens={max_tokens!r}: give a whole number above 0, or None for no bound")
        if not isinstance(continue_episode, bool):
            raise ConfigError(f"continue_episode={continue_episode!r}: True to go on with the last episode, or False")
        self._path, self._continues_episode = path, continue_episode
        self._max_tokens = None if max_tokens is None or max_tokens >= _NO_BOUND else int(max_tokens)
        self._rng = generator(seed, "sample")
        self._source: Writer | Reader | None = None
        self._is_closed = False
        self._starts = KnownStarts()
        self._sequences = KnownSequences()
        self._known_transitions = KnownTransitions()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def define_fields(self, fields: Any) -> None:
        """Say which fields the stream has, once, if that was left open when it was made."""
        if self._is_closed:
            raise ConfigError("this stream is closed; open it again, or make another")
        if self._source is not None:
            raise SchemaError(f"{self!r} has its fields already; make another stream for others")
        described = fields_of(fields)
        if self._path is not None:
            self._write(self._path, described)
            return
        path, lock = directory.make_temporary(LOCK)
        try:
            self._write(path, described, temporary=True, lock=lock)
        except BaseException:
            directory.remove_temporary(path)
            lock.release()
            raise

    def _write(self, path: Path, fields: tuple[TokenField, ...] | None, **how: Any) -> None:
        writer = Writer(path, fields, max_tokens=self._max_tokens, continue_episode=self._continues_episode, **how)
        try:
            self._finalizer = weakref.finalize(self, _close, writer)
            _writing.add(self)
            self._recorder = writer.recorder
            self._source = writer
        except BaseException:
            self._recorder = self._source = None
            _close(writer)
            raise

    # Writing ------------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:  # it is inherited: a Python frame around it would cost as much as the append itself

        @overload  # type: ignore[override]  # the kernel takes anything, to say what is wrong with it
        def append(self, steps: int, names: Mapping[str, Any]) -> None: ...
        @overload
        def append(self, steps: int | Sequence[int], names: Sequence[str], values: Sequence[Any]) -> None: ...
        def append(self, steps: Any, names: Any, values: Any = None) -> None:
            """Append field-writes; see ``kernels.Appender``."""

    def _append_unopened(self, steps: Any, names: Any, values: Any) -> None:
        self._writer().append_slowly(steps, names, values)

    def append_many(self, steps: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Append whole columns, a step a row; all of them or, on an error, none.

        A column is an array of n rows, a list, ``(values, offsets)`` for rows of different lengths, or an Arrow array,
        in which a null leaves the field out of that step.
        """
        self._writer().append_columns(steps, columns)

    def end_episode(self) -> None:
        """End the episode that goes on: nothing crosses from its last step to the next one (a *break*).

        An episode whose last step says so, as ``done`` does, ends by itself.
        """
        self._writer().end_episode()

    def commit(self) -> int:
        """Make everything appended so far survive a power cut; the number of the commit, for ``open(at=...)``."""
        return self._writer().commit().seq

    def health(self) -> Health:
        """Whether the stream can be appended to and committed; how much a power cut would take."""
        source = self._source
        if source is None:
            why = "it is closed" if self._is_closed else "its fields are not defined"
            return Health((Problem(f"the stream cannot be used: {why}", None, "open it, or call define_fields"),))
        figures: dict[str, Any] = {"tokens": len(self), "mode": "a" if isinstance(source, Writer) else "r"}
        return Health((), figures) if isinstance(source, Reader) else source.health(figures)

    def close(self) -> None:
        """Commit and close the files, also where the commit fails. A stream without a path is gone then.

        An interrupt (Ctrl-C) closes the files too; calling it again does what is left.
        """
        source = self._source
        try:
            if isinstance(source, Writer):
                _close(source)
            elif isinstance(source, Reader):
                source.close()
        finally:
            self._forget_source()

    def _forget_source(self) -> None:
        self._is_closed = True
        self._recorder = None
        if isinstance(self._source, Writer) and self._source.is_open:
            return  # interrupted: the next close, or the end of this object, does the rest
        self._source = None
        if self._finalizer is not None:
            self._finalizer.detach()

    @property
    def path(self) -> Path | None:
        """Where the stream is; None for a temporary one."""
        return self._path

    # Around -------------------------------------------------------------------------------------------------------

    def as_dataset(self, width: int, stride: int | None = None, within: str | None = None) -> WindowDataset:
        """Windows as a map-style dataset that grows with the stream; ``stride`` is the width unless given."""
        return WindowDataset(self, width, stride, within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = f" at {self.path}" if self.path else ""
        if self._source is None:
            return printable(f"<StreamStore{where}, closed or without fields>")
        reading = ", to read" if isinstance(self._source, Reader) else ""
        fields = ", ".join(map(str, self._fields[:8])) + (", ..." if len(self._fields) > 8 else "")
        return printable(f"<StreamStore of {len(self):,} tokens in {self.n_steps:,} steps ({fields}){where}{reading}>")

    def _repr_html_(self) -> str:
        rows = [(number, str(field)) for number, field in enumerate(self._fields)]
        title = html.element("p", repr(self).strip("<>"))
        return str(html.join(title, html.table(("type", "field"), rows)))

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._read()
        is_mapped = isinstance(source, Writer) or source.is_mapped
        rows = source.state.rows
        branch = source.branches.name_below(rows)
        at = None if isinstance(source, Writer) else source.at
        return _reopen, (str(source.path.absolute()), source.uuid, rows, branch, is_mapped, at)

    def _become_reader(self) -> None:
        """In a forked child the writer is the parent; here the same maps are only read."""
        if isinstance(self._source, Writer):
            if self._finalizer is not None:
                self._finalizer.detach()
            self._source.disown()
            self._source = Reader.inherited(self._source)


def _reopen(path: str, uuid: str, n_rows: int, branch: str, is_mapped: bool, at: int | None = None) -> StreamStore:
    """What a pickled handle becomes in another process: a reader at the same length, and at the same commit."""
    store = StreamStore.__new__(StreamStore)
    store._prepare(Path(path), None, 0)
    store._source = Reader(Path(path), at=at, seen=(uuid, n_rows, branch), mapped=is_mapped)
    return store


def _close(writer: Writer) -> None:
    try:
        writer.close()
    finally:
        if writer.is_temporary and not writer.is_open:
            directory.remove_temporary(writer.path)


def _as_path(path: Any) -> Path | None:
    if path is None or isinstance(path, (str, os.PathLike)):
        return None if path is None else local_path(path, "StreamStore path", instead=_TAKES_URLS)
    raise ConfigError(f"path {path!r}: give a directory, or fields= by name: StreamStore(fields=[...])")


def _commit_number(at: Any) -> int:
    if not is_whole(at):
        raise ConfigError(f"at={at!r}: give the number of a commit, as commit() returned it")
    return int(at)


def _after_fork() -> None:
    for store in _writing:
        store._become_reader()
    _writing.clear()


os.register_at_fork(after_in_child=_after_fork)
