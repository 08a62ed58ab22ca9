"""StreamStore: multi-field data, recorded a step at a time and read in windows, by other processes too."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish import html, kernels
from poolish.arguments import check_whole, is_whole
from poolish.concurrency import WeakRegistry
from poolish.errors import ConfigError, SchemaError
from poolish.files import local_path
from poolish.health import Health, Problem
from poolish.printable import printable
from poolish.seeds import generator
from poolish.tokens import directory
from poolish.tokens.commits import Verified
from poolish.tokens.directory import LOCK, is_store
from poolish.tokens.fields import TokenField, decoded, fields_of, type_of
from poolish.tokens.hf import DatasetConversions
from poolish.tokens.reader import Reader
from poolish.tokens.sampling import Coverage, KnownStarts, Starts, Weight, choose, coverage
from poolish.tokens.stream_files import STEP, TYPE
from poolish.tokens.view import Step, View, read_ordinals, read_steps
from poolish.tokens.window_dataset import WindowDataset
from poolish.tokens.writer import Writer

Int64 = NDArray[np.int64]
Batch = dict[str, NDArray[np.int64]]

_LAST = 2**63 - 1
_NO_BOUND = 2**62
_TAKES_URLS = "save_dataset() and load_dataset(), and by the sources of a recipe"

#: Stores that write, for the moment after a fork.
_writing: WeakRegistry[StreamStore] = WeakRegistry()


class StreamStore(DatasetConversions, kernels.Appender):
    """Append-only stream of int64 tokens on disk, shared by one writer and any number of readers.

    Without a path the files are temporary and go with the process. A reader sees a step once ``append`` has returned,
    and never half of one. Once ``append`` returns, the data survives ``kill -9``; once ``commit`` returns, it survives
    a power cut. Steps never decrease; within a step, fields come in the order in which they were declared.

    >>> store = StreamStore(folder / "rollouts", fields={"action": "int64", "reward": "float32"})
    >>> store.append(steps=[0, 0], names=["action", "reward"], values=[3, 0.5])
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

        ``fields`` is a list of names (every field then holds float64 numbers) or {name: feature or dtype}. A stream of
        ``max_tokens`` drops its oldest steps; positions keep counting up. ``seed`` is for ``sample`` without ``rng``.

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

        def append(self, steps: int | Sequence[int], names: Sequence[str], values: Sequence[Any]) -> None:
            """Append field-writes; see ``kernels.Appender``."""

    def _append_unopened(self, steps: Any, names: Any, values: Any) -> None:
        self._writer().append_slowly(steps, names, values)

    def append_many(self, steps: ArrayLike, columns: Mapping[str, Any]) -> None:
        """Append whole columns, a step a row; all of them or, on an error, none.

        A column is an array of n rows, a list, ``(values, offsets)`` for rows of different lengths, or an Arrow array,
        in which a null leaves the field out of that step.
        """
        self._writer().append_columns(steps, columns)

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

    # Reading ------------------------------------------------------------------------------------------------------

    def __getitem__(self, positions: Any) -> Batch:
        """Tokens by position: an int, a slice, a mask of ``len(store)``, or whole numbers in any shape."""
        places = self._places(positions)
        source = self._read()
        values, types = np.empty(places.shape, np.int64), np.empty(places.shape, np.int64)
        if places.size:
            width = places.shape[-1] if places.ndim else 1
            first, end = source.first_token, source.n_tokens
            # Behind the lengths: another thread may append, and what is published has room before it is.
            data, type_lane = source.lanes.data.room, source.lanes.types.room
            bad = kernels.take(data, type_lane, first, end, places, width, values, types)
            if bad >= 0:
                raise self._outside(int(places.reshape(-1)[bad]))
            if source.kept_from() != first:
                self._check_kept(np.where(places < 0, places + end, places))
        return {"types": types, "values": values}

    def windows(self, starts: ArrayLike, width: int, *, types: bool = True) -> Batch:
        """``width`` consecutive tokens from each start, at the speed of memory; a new last axis of that width.

        ``types=False`` leaves the types out.
        """
        return self._windows(
            self._read(), self._whole_numbers(starts), check_whole(width, "width", unit="tokens"), types
        )

    def _windows(self, source: Writer | Reader, begins: Int64, width: int, types: bool) -> Batch:
        """The same of an array that is known to hold int64s in one piece."""
        lanes, first, end = source.lanes, source.first_token, source.n_tokens
        if width > end - first and begins.size:  # before memory is asked for
            raise self._outside(int(begins.reshape(-1)[0]), width)
        values = np.empty((*begins.shape, width), np.int64)
        batch = {"types": np.empty(values.shape, np.int64), "values": values} if types else {"values": values}
        lane = lanes.types.room if types else None
        given = begins
        bad = kernels.windows(lanes.data.room, lane, first, end, begins, width, values, batch.get("types"))
        if bad >= 0 and begins.reshape(-1)[bad] < 0:
            begins = np.where(begins < 0, begins + end, begins)
            bad = kernels.windows(lanes.data.room, lane, first, end, begins, width, values, batch.get("types"))
        if bad >= 0:
            raise self._outside(int(given.reshape(-1)[bad]), width)
        if source.kept_from() != first:
            self._check_kept(begins)
        return batch

    def sample(
        self,
        n: int,
        width: int,
        *,
        rng: np.random.Generator | None = None,
        start: str = "token",
        within: str | None = None,
        weights: Sequence[Weight] | None = None,
        types: bool = True,
    ) -> Batch:
        """``n`` random windows, drawn with replacement, each of all possible ones with the same chance.

        They begin at any token, or with ``start="step"`` where a step does. ``within="done"`` keeps each inside one
        episode: one ends with the step whose ``done`` is not zero; the last one may still be going on. ``weights`` are
        (first step, step behind the last, weight): the chance of a window is the weight of the range its start is in,
        and 0 outside of them. A step without tokens begins where the next one does, and that window counts for both.
        """
        starts = self.sample_starts(n, width, rng=rng, start=start, within=within, weights=weights)
        return self._windows(self._read(), starts, int(width), types)

    def sample_starts(
        self,
        n: int,
        width: int,
        *,
        rng: np.random.Generator | None = None,
        start: str = "token",
        within: str | None = None,
        weights: Sequence[Weight] | None = None,
    ) -> Int64:
        """The positions of the windows that ``sample`` would read, without reading them."""
        n, width = check_whole(n, "n", least=0, unit="windows"), check_whole(width, "width", unit="tokens")
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise ConfigError(f"rng={rng!r}: give a np.random.Generator, such as np.random.default_rng(0)")
        view = self._view()
        starts = self._starts_of(view, width, start, within)
        return choose(view, starts, n, width, self._rng if rng is None else rng, weights)

    def coverage(self, width: int, *, start: str = "token", within: str | None = None) -> Coverage:
        """How many different windows ``sample`` chooses from, and how many episodes are too short for one."""
        view = self._view()
        return coverage(view, self._starts_of(view, check_whole(width, "width", unit="tokens"), start, within))

    def _starts_of(self, view: View, width: int, start: str, within: str | None) -> Starts:
        type_ = -1 if within is None else self._type_of(within)
        return self._starts.of(view, width, start, None if within is None else self._fields[type_], type_)

    def decode(self, values: ArrayLike, name: str) -> NDArray[Any]:
        """Tokens of a field as its own numbers (float32, bool, ...), in the shape they have.

        Tokens of other fields among them come out as they may; ``types`` tells which are which.
        """
        if np.ma.is_masked(values):
            raise SchemaError("decode takes the int64 values of a batch, masked ones have none; compress() them first")
        tokens = np.ascontiguousarray(values)
        if not tokens.size:
            tokens = tokens.astype(np.int64)
        if tokens.dtype != np.int64:
            raise SchemaError(f"decode takes the int64 values of a batch, got {tokens.dtype}")
        return self._decode(tokens, self._fields[self._type_of(name)].dtype).reshape(np.shape(values))

    @staticmethod
    def _decode(values: NDArray[np.int64], dtype: str) -> NDArray[Any]:
        """Tokens by the dtype of their field."""
        return decoded(values, dtype)

    def steps(self, first: int | None = None, end: int | None = None) -> Iterator[Step]:
        """The steps from number ``first`` up to but not including ``end``, each a dict of the fields it has.

        ``step.number`` is its number. What is appended while this runs is not part of it.
        """
        view = self._view()
        low = view.row_not_below(STEP, _step(0 if first is None else first))
        high = view.rows if end is None else view.row_not_below(STEP, _step(end))
        return read_steps(self, view, low, max(low, high))

    def steps_at(self, ordinals: ArrayLike) -> list[Step]:
        """Steps by how many were recorded before them, in the order asked for; see ``step_span``."""
        view, asked = self._view(), np.asarray(ordinals, np.int64).reshape(-1)
        low, high = self.step_span()
        outside = (asked < low) | (asked >= high)
        if outside.any():
            raise IndexError(
                f"step number {asked[np.argmax(outside)]} of this stream, which holds {low:,} to {high - 1:,}"
            )
        return read_ordinals(self, view, asked)

    def step_span(self) -> tuple[int, int]:
        """The steps that are kept, counted since the stream began: the first, and the one behind the last."""
        if self._source is None:
            return 0, 0
        view = self._view()
        first = view.first_ordinal
        return first, first + view.n_steps

    def __iter__(self) -> Iterator[Step]:
        return self.steps()

    def __len__(self) -> int:
        source = self._source
        return 0 if source is None else source.n_tokens - source.first_token

    def __bool__(self) -> bool:
        return True  # an empty stream is a stream

    @property
    def n_steps(self) -> int:
        """How many steps there are."""
        return 0 if self._source is None else self._view().n_steps

    @property
    def last_step(self) -> int:
        """The number of the last step, and -1 as long as there is none: ``last_step + 1`` is where to go on."""
        if self._source is None:
            return -1
        view = self._view()
        return int(view.lanes.index.room[view.rows - 1, STEP]) if view.rows > view.first_row else -1

    @property
    def first(self) -> int:
        """The position of the first token that is kept: 0, unless ``max_tokens`` has moved it."""
        return 0 if self._source is None else self._source.first_token

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return 0 if self._source is None else self._source.n_tokens

    @property
    def field_to_type(self) -> Mapping[str, int]:
        """The type id of each field."""
        return MappingProxyType(dict(self._ids))

    @property
    def _type_to_field(self) -> Mapping[int, str]:
        return {number: name for name, number in self._ids.items()}

    @property
    def path(self) -> Path | None:
        """Where the stream is; None for a temporary one."""
        return self._path

    @property
    def uuid(self) -> str:
        """The name that this stream alone has."""
        return self._read().uuid

    def branch_below(self, end: int) -> str:
        """Which branch wrote the steps before number ``end`` of ``step_span``, as text for ``has_branch``.

        Two copies of a directory have the same uuid. What each of them appends after it was opened again is a *branch*
        of its own, so uuid, branch and a count identify data.
        """
        view = self._view()
        return view.branch_below(view.row_not_below(TYPE, min(_step(end), 2**50) << 8))

    def has_branch(self, branch: str) -> bool:
        """Whether a result of ``branch_below``, of this stream or a copy, holds for this stream.

        >>> store = StreamStore(folder / "rollouts", fields={"action": "int64"})
        >>> store.append(0, ["action"], [3])
        >>> store.has_branch(store.branch_below(1))
        True
        """
        return self._view().has_branch(branch)

    def refresh(self) -> int:
        """Look what has been appended since; how many tokens are new.

        A writer sees everything at once anyway, and a stream opened ``at`` a commit ends there for good.
        """
        source = self._read()
        before = source.n_tokens
        source.refresh()
        return source.n_tokens - before

    def verify(self) -> Verified:
        """Check every committed byte against its checksum, and that the lanes fit each other.

        The first thing that is wrong is a ``CorruptDataError``. A writer puts right what can be derived.
        """
        return self._read().verify()

    def as_dataset(self, width: int, stride: int | None = None, within: str | None = None) -> WindowDataset:
        """Windows as a map-style dataset that grows with the stream; ``stride`` is the width unless given."""
        return WindowDataset(self, width, stride, within)

    # Around -------------------------------------------------------------------------------------------------------

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

    # Inside -------------------------------------------------------------------------------------------------------

    @property
    def _fields(self) -> tuple[TokenField, ...]:
        return () if self._source is None else self._source.fields

    @property
    def _ids(self) -> Mapping[str, int]:
        return {} if self._source is None else self._source.ids

    def _read(self) -> Writer | Reader:
        if self._source is None:
            raise ConfigError("this stream is closed, or its fields are not defined; call define_fields, or open it")
        return self._source

    def _writer(self) -> Writer:
        source = self._read()
        if isinstance(source, Reader):
            raise ConfigError(f"{source.path}: opened to read; append where it is written, or open it with mode='a'")
        return source

    def _view(self) -> View:
        return self._read().view()

    def _type_of(self, name: str) -> int:
        return type_of(self._ids, name)

    def _places(self, positions: Any) -> Int64:
        if isinstance(positions, slice):
            first, end, stride = positions.indices(self.end)
            chosen = np.arange(first, end, stride)
            return chosen[chosen >= self.first]
        places = _array(positions)
        if places.dtype.kind == "b":
            if places.shape != (len(self),):
                raise IndexError(f"a mask needs the shape ({len(self)},) of the stream, got {places.shape}")
            return self.first + np.flatnonzero(places)
        return self._whole_numbers(places)

    def _whole_numbers(self, given: Any) -> Int64:
        numbers = _array(given)
        if numbers.dtype != np.int64:
            if numbers.dtype.kind == "u" and numbers.size and numbers.max() > _LAST:
                raise self._outside(int(numbers.max()))
            if numbers.dtype.kind == "O":
                huge = [n for n in numbers.reshape(-1).tolist() if isinstance(n, int) and abs(n) > _LAST]
                if huge:
                    raise self._outside(huge[0])
            if numbers.dtype.kind not in "iu" and numbers.size:
                raise IndexError(f"positions are whole numbers, got {numbers.dtype}")
        # Of a number without an axis NumPy would make one with one.
        return np.ascontiguousarray(numbers, np.int64).reshape(numbers.shape)

    def _outside(self, position: int, width: int = 1) -> IndexError:
        source = self._read()
        what = f"index {position}" if width == 1 else f"a window of {width} tokens from {position}"
        kept = f", kept from {source.first_token:,} on" if source.first_token else ""
        more = "; refresh() looks for more" if isinstance(source, Reader) and source.at is None else ""
        return IndexError(f"{what} is out of range for a stream of {source.n_tokens:,} tokens{kept}{more}")

    def _check_kept(self, starts: Int64) -> None:
        """Refuse tokens that were trimmed while they were read: they may be anything."""
        kept = self._read().kept_from()
        if starts.size and starts.min() < kept:
            raise IndexError(f"index {starts.min()} has left the stream, which is kept from {kept:,} on; refresh()")

    def _check_row_kept(self, row: int) -> None:
        """The same for an index row."""
        source = self._read()
        if row < source.kept_row():
            raise IndexError(f"a step has left the stream, which is kept from {source.kept_from():,} on; refresh()")

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


def _array(positions: Any) -> NDArray[Any]:
    if np.ma.is_masked(positions):
        raise IndexError("masked positions say nothing; compress() them first")
    try:
        return np.asarray(positions)
    except ValueError as error:
        raise IndexError(f"positions are whole numbers in rows of one length ({error})") from None


def _commit_number(at: Any) -> int:
    if not is_whole(at):
        raise ConfigError(f"at={at!r}: give the number of a commit, as commit() returned it")
    return int(at)


def _step(number: Any) -> int:
    if not is_whole(number):
        raise ConfigError(f"steps are whole numbers, got {number!r}")
    return max(0, min(int(number), _LAST))


def _after_fork() -> None:
    for store in _writing:
        store._become_reader()
    _writing.clear()


os.register_at_fork(after_in_child=_after_fork)
