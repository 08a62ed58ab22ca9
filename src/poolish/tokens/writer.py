"""The writing end of a stream: one process, one lock, and every change in an order that a kill cannot spoil.

    append   room (a full disk stops here) -> data, types, index rows -> one word of the head page: it exists

What is behind the published word is nobody's; so an append that fails has changed nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.errors import ConfigError, DurabilityLost, LimitExceeded, SchemaError
from poolish.files import Lock, sweep
from poolish.tokens.columns import Column, check_columns, columns_of
from poolish.tokens.commits import Commit, CommitLog
from poolish.tokens.directory import LOCK, create, is_store, make_directory, read_description
from poolish.tokens.draft import draft, step_number
from poolish.tokens.fields import TokenField, decided
from poolish.tokens.head import Head
from poolish.tokens.keeper import Keeper
from poolish.tokens.lanes import STEP, TYPE, Lanes, State
from poolish.tokens.recovery import recover
from poolish.tokens.starts import View
from poolish.tokens.values import shown
from poolish.tokens.verify import Verified, verify

Int64 = NDArray[np.int64]

#: What a recorder counts; an append that is taken back sets these back.
_COUNTERS = ("n_rows", "n_tokens", "n_steps", "last_step", "last_type", "step_start")

#: A bounded stream gives space back when this many tokens have left it, or a quarter of what it holds.
TRIM_TOKENS = 1 << 17


class Writer:
    """An open stream that this process writes.

    ``fields`` makes the stream if there is none. A ``temporary`` one is never synced: it does not outlive the process.
    """

    def __init__(
        self,
        path: Path,
        fields: tuple[TokenField, ...] | None,
        *,
        max_tokens: int | None = None,
        temporary: bool = False,
        lock: Lock | None = None,
    ) -> None:
        self.path = path
        self.is_temporary = temporary
        self._thread_lock = threading.RLock()
        self._end: ConfigError | None = None
        self._before_hold: State | None = None
        if lock is None:
            if fields is not None:
                make_directory(path, durable=not temporary)
            elif not is_store(path):
                read_description(path)  # says what is missing
            lock = Lock(path / LOCK)
            lock.acquire()
        self._lock = lock
        try:
            if fields is not None and not is_store(path):
                create(path, fields, durable=not temporary)
            self._open(fields, max_tokens)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, fields: tuple[TokenField, ...] | None, max_tokens: int | None) -> None:
        self.description = read_description(self.path)
        if fields is not None and fields != self.description.fields:
            raise SchemaError(
                f"{self.path}: holds a stream of other fields ({', '.join(map(str, self.description.fields))}); "
                "open it with its own, or choose another path"
            )
        sweep(self.path)
        with ExitStack() as opened:  # closes what is open if anything below fails
            self.lanes = opened.enter_context(closing(Lanes(self.path, mode="a")))
            self.head = opened.enter_context(closing(Head(self.path / "head", mode="a")))
            uuid = self.description.uuid
            self.log = opened.enter_context(closing(CommitLog(self.path / "commits", uuid, mode="a")))
            durable = not self.is_temporary
            state, last = recover(self.lanes, self.head, self.log, self.description, durable=durable)
            self.keeper = Keeper(self.path, self.lanes, self.head, self.log, last, durable=durable)
            self.fields = decided(self.description.fields, state.kinds)
            self.ids = {field.name: number for number, field in enumerate(self.fields)}
            self.recorder = self._record_from(state)
            self._bound(max_tokens)
            opened.pop_all()

    def _record_from(self, state: State) -> Any:
        """A recorder that goes on behind the last row."""
        self.lanes.reserve(state.rows, state.tokens)
        recorder = kernels.Recorder([field.slot for field in self.fields], self.append_slowly, self.trim)
        index = self.lanes.index.room
        recorder.n_rows, recorder.n_tokens = state.rows, state.tokens
        recorder.first_row, recorder.first_token = state.first, self.lanes.tokens_at(state.first)
        if state.rows > state.first:
            last = index[state.rows - 1].tolist()
            ordinal = last[TYPE] >> 8
            recorder.n_steps, recorder.last_step, recorder.last_type = ordinal + 1, last[STEP], last[TYPE] & 0xFF
            begin = self.lanes.rows_of_ordinals(np.array([ordinal]), state.first, state.rows)
            recorder.step_start = self.lanes.tokens_at(int(begin[0]))
        self._attach(recorder)
        recorder.is_busy = False
        return recorder

    def _attach(self, recorder: Any) -> None:
        lanes = self.lanes
        files = lanes.data.file.fd, lanes.types.file.fd, lanes.index.file.fd
        recorder.attach(lanes.data.room, lanes.types.room, lanes.index.room, self.head.words, files)

    def _bound(self, max_tokens: int | None) -> None:
        if max_tokens is None:
            return
        self.recorder.max_tokens = max_tokens
        self._trim_step = max(TRIM_TOKENS, max_tokens // 4)
        self.recorder.trim_at = self.recorder.first_token + self._trim_step

    # How far it reaches -----------------------------------------------------------------------------------------

    @property
    def uuid(self) -> str:
        """The stream's own name."""
        return str(self.description.uuid)

    @property
    def state(self) -> State:
        """What is published."""
        if self._before_hold is not None:
            return self._before_hold
        recorder = self.recorder
        kinds = bytes(field.kind for field in self.fields)
        return State(recorder.first_row, recorder.n_rows, recorder.n_tokens, kinds)

    def view(self) -> View:
        """What is published, to read from."""
        lanes, recorder, held = self.lanes, self.recorder, self._before_hold
        # Each length is read once, and its token from the index: another thread may append in between.
        first, rows = int(recorder.first_row), int(recorder.n_rows) if held is None else held.rows
        return View(lanes, first, lanes.tokens_at(first), rows, lanes.tokens_at(rows))

    @property
    def n_tokens(self) -> int:
        """The position behind the last published token."""
        return int(self.recorder.n_tokens) if self._before_hold is None else self._before_hold.tokens

    @property
    def first_token(self) -> int:
        """The position of the first token that is kept."""
        return int(self.recorder.first_token)

    def kept_from(self) -> int:
        """The same; another thread may have moved it since somebody looked."""
        return int(self.recorder.first_token)

    def refresh(self) -> None:
        """Nothing to do: the writer sees what it writes."""

    # Writing --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[Any]:
        """The recorder, while no other thread can append."""
        with self._thread_lock:
            trouble = self._end or self.keeper.failure
            if trouble is not None:
                raise type(trouble)(str(trouble))
            was_busy, self.recorder.is_busy = self.recorder.is_busy, True
            try:
                yield self.recorder
            finally:
                # Whoever must not append any more is sent here each time, and told why.
                self.recorder.is_busy = was_busy or self.keeper.failure is not None or self._end is not None

    def append_slowly(self, steps: Any, names: Any, values: Any) -> None:
        """Append what the kernel left to us: find out what is wrong, make room, decide kinds."""
        with self._alone() as recorder:
            with self._undisturbed():
                last = recorder.last_step, recorder.last_type
                written = draft(self.fields, self.ids, last, steps, names, values)
            self._check_steps(written.steps, written.lengths)
            self._make_room(len(written.steps), len(written.tokens))
            with self._deciding(written.kinds):
                recorder.record(written.steps, written.types, written.lengths, written.tokens)
            self._trim()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Values may run code of the user's while they are read; it must not append to this very stream."""
        n_rows = self.recorder.n_rows
        yield
        if self.recorder.n_rows != n_rows:
            raise ConfigError(f"{self.path}: reading the values of this append has appended to it; read them before")

    def append_columns(self, steps: Any, given: Mapping[str, Any]) -> None:
        """Append whole columns, a step a row."""
        with self._alone() as recorder:
            with self._undisturbed():
                numbers = _steps(steps)
                columns = columns_of(self.fields, self.ids, given, len(numbers))
            if not len(numbers):
                return
            self._check_columns(numbers, columns)
            self._make_room(len(numbers) * len(columns), sum(column.n_tokens for column in columns))
            kinds = {column.type: column.kind for column in columns if not column.is_empty}
            with self._deciding(kinds):
                bad = recorder.record_columns(numbers, [column.parts for column in columns])
                if bad >= 0:
                    self._refuse(columns[bad])
            self._trim()

    def _refuse(self, column: Column) -> NoReturn:
        field = self.fields[column.type]
        column.check_values(field)  # finds the row and says it better
        raise SchemaError(f"field {field.name!r}: {field.dtype} cannot hold a value of this column; convert it first")

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Several appends that are published together when the block ends well, or not at all."""
        with self._alone() as recorder:
            before = {name: getattr(recorder, name) for name in _COUNTERS}
            fields, self._before_hold = self.fields, self.state
            recorder.is_held = True
            try:
                yield
            except BaseException:
                for name, number in before.items():
                    setattr(recorder, name, number)
                self._forget(fields)
                raise
            finally:
                recorder.is_held = False
                self._before_hold = None
            recorder.let_out()
            self._trim()

    def _forget(self, fields: tuple[TokenField, ...]) -> None:
        """Undo what an append that failed has decided."""
        for type_, field in enumerate(fields):
            if field != self.fields[type_]:
                self.head.store_kind(type_, kernels.UNDECIDED)
                self.recorder.set_kind(type_, kernels.UNDECIDED)
        self.fields = fields

    @contextmanager
    def _deciding(self, kinds: Mapping[int, int]) -> Iterator[None]:
        """Fix what fields that were only named are, where readers and the next writer will find it.

        Before anything is published, because nobody may see the one without the other; undone if nothing is.
        """
        fields, n_rows = self.fields, self.recorder.n_rows
        try:
            self._decide(kinds)
            yield
        except BaseException:
            if self.recorder.n_rows == n_rows:
                self._forget(fields)
            raise

    def _decide(self, kinds: Mapping[int, int]) -> None:
        for type_, kind in kinds.items():
            if self.fields[type_].shape is None:
                self.head.store_kind(type_, kind)
                self.recorder.set_kind(type_, kind)
                decided = self.fields[type_].decided(kind)
                self.fields = (*self.fields[:type_], decided, *self.fields[type_ + 1 :])

    def _make_room(self, n_rows: int, n_tokens: int) -> None:
        recorder = self.recorder
        if self.lanes.reserve(recorder.n_rows + n_rows, recorder.n_tokens + n_tokens):
            self._attach(recorder)

    def _check_steps(self, steps: Int64, lengths: Int64) -> None:
        """In a bounded stream, no step may be larger than the bound."""
        recorder = self.recorder
        if not len(steps):
            return
        edges = np.flatnonzero(np.diff(steps, prepend=-1))
        sizes = np.add.reduceat(lengths, edges)
        if steps[0] == recorder.last_step:
            sizes[0] += recorder.n_tokens - recorder.step_start
        self._check_largest(int(sizes.max()))

    def _check_largest(self, n_tokens: int) -> None:
        if n_tokens > self.recorder.max_tokens:
            raise LimitExceeded(
                f"a step of {n_tokens:,} tokens in a stream of max_tokens={self.recorder.max_tokens:,}; raise the bound"
            )

    def _check_columns(self, steps: Int64, columns: list[Column]) -> None:
        recorder = self.recorder
        check_columns(self.fields, (recorder.last_step, recorder.last_type), steps, columns)
        if recorder.max_tokens < 2**62:
            sizes = np.sum([column.lengths() for column in columns], axis=0)
            sizes[0] += recorder.n_tokens - recorder.step_start if steps[0] == recorder.last_step else 0
            self._check_largest(int(sizes.max()))

    # Keeping ------------------------------------------------------------------------------------------------------

    def commit(self) -> Commit:
        """Make everything that was appended survive a power cut; the record that says so."""
        with self._alone():
            state = self.state
        try:
            return self.keeper.commit(state)  # other threads may append while the disk is waited for
        except DurabilityLost:
            self.recorder.is_busy = True  # from now on every append comes by, and is told
            raise

    def trim(self) -> None:
        """Give space back; the recorder asks for it."""
        with self._alone():
            self._trim()

    def _trim(self) -> None:
        """Give the space of what has left the stream back, once it is worth it."""
        recorder = self.recorder
        if recorder.first_token >= recorder.trim_at and not recorder.is_held:
            recorder.trim_at = recorder.first_token + self._trim_step
            self.keeper.trim(self.state)

    def verify(self) -> Verified:
        """Check every committed byte, and write the types lane anew where it is wrong."""
        with self._alone():
            state = self.state
        with self.keeper.lock:  # nothing is given back while it is looked at
            return verify(self.lanes, self.log, state, len(self.fields), heal=True)

    def close(self) -> None:
        """Commit and let go, in any case; an error in the commit is raised when all is closed."""
        with self._thread_lock:
            if not self._lock.is_held:
                return
            self.recorder.is_busy = True  # other threads' appends wait, and are then told
            try:
                if self.keeper.failure is None and not self.is_temporary:
                    self.keeper.commit(self.state)
            finally:
                self._end = ConfigError(f"{self.path}: this stream is closed; open it again")
                self.recorder.detach()
                self._close_files()
                self._lock.release()

    def disown(self) -> None:
        """In a forked child: never write, commit or unlock what is the parent's."""
        self._thread_lock = threading.RLock()  # another thread may have held it when we were forked
        self._end = ConfigError(f"{self.path}: written by the process this one was forked from; append there")
        self.recorder.detach()

    def _close_files(self) -> None:
        for part in (self.lanes, self.head, self.log):
            part.close()


def _steps(steps: Any) -> Int64:
    if isinstance(steps, (str, bytes)) or not hasattr(steps, "__len__") or getattr(steps, "ndim", 1) == 0:
        raise SchemaError(f"steps is a list with a number for each row, got {shown(steps)}")
    given = np.asarray(steps)
    if given.dtype.kind not in "iu":
        return np.array([step_number(step) for step in steps], np.int64)
    if given.ndim != 1 or (len(given) and not 0 <= int(given.min()) <= int(given.max()) < 2**63):
        raise SchemaError(f"steps are whole numbers from 0 in a row, got {shown(steps)}; number steps from 0")
    return np.ascontiguousarray(given, np.int64)
