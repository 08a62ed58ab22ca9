"""The writing end of a stream: one process, one lock, and every change in an order that a kill cannot spoil.

    append   room (a full disk stops here) -> data, types, index rows -> one word of the head page: it exists
    the first one after opening            `-> before them its branch, synced (see logs.py)

No reader looks behind the published word, so an append that fails has changed nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.errors import ConfigError, DurabilityLost, LimitExceeded, SchemaError
from poolish.files import Lock, sweep, sync_directory
from poolish.health import Health, Problem
from poolish.tokens import logs, opening
from poolish.tokens.columns import TokenColumn, check_columns, columns_of
from poolish.tokens.commits import Commit, CommitLog, CommitManager, Verified, verify
from poolish.tokens.directory import LOCK, create, is_store, make_directory, read_description
from poolish.tokens.encoding import encode_writes, shown, step_number
from poolish.tokens.fields import TokenField, decided, type_of
from poolish.tokens.head import BRANCHES, Head
from poolish.tokens.logs import BranchLog
from poolish.tokens.specs import flat_values
from poolish.tokens.stream_files import STEP, TYPE, StreamFiles, StreamState, View

Int64 = NDArray[np.int64]

#: What a recorder counts; an append that is taken back sets these back.
_COUNTERS = ("n_rows", "n_tokens", "n_steps", "last_step", "last_type", "step_start")

#: A bounded stream gives space back when this many tokens have left it, or a quarter of what it holds.
TRIM_TOKENS = 1 << 17


class Writer:
    """An open stream that this process writes.

    ``fields`` makes the stream if there is none. A ``temporary`` one is never synced: it does not outlive the process.
    An episode ends where a stream is opened again, unless ``continue_episode``.
    """

    def __init__(
        self,
        path: Path,
        fields: tuple[TokenField, ...] | None,
        *,
        max_tokens: int | None = None,
        continue_episode: bool = False,
        temporary: bool = False,
        lock: Lock | None = None,
    ) -> None:
        self.path = path
        self.is_temporary = temporary
        self._thread_lock = threading.RLock()
        self._end: ConfigError | None = None
        self._hold: tuple[dict[str, int], tuple[TokenField, ...], StreamState] | None = None
        self._continues_episode = continue_episode
        self._is_branched = self._is_branch_log_torn = False
        self._is_attached = True  # to all the room that the lanes have
        if lock is None:
            if fields is not None:
                make_directory(path, durable=not temporary)
            elif not is_store(path):
                read_description(path)  # says what is missing
            lock = Lock(path / LOCK)
        self._lock = lock
        weakref.finalize(self, lock.release)  # for a writer that an interrupt keeps from ever being a stream's
        try:
            if not lock.is_held:
                lock.acquire()
            if fields is not None and not is_store(path):
                create(path, fields, durable=not temporary)
                self._is_branched = True  # its own
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
            self.lanes = opened.enter_context(closing(StreamFiles(self.path, mode="a")))
            self.head = opened.enter_context(closing(Head(self.path / "head", mode="a")))
            uuid = self.description.uuid
            self.log = opened.enter_context(closing(CommitLog(self.path / "commits", uuid, mode="a")))
            durable = not self.is_temporary
            found = logs.open_branches(self.path, uuid, mode="a")
            if found is not None:
                opened.enter_context(closing(found))
            self.branches = logs.read_branches(found, self.path, opening.n_branches(self.head, self.log.last()))
            parts = self.lanes, self.head, self.log, self.branches, self.description
            state, last = opening.recover(*parts, durable=durable)
            if found is None:  # 0.1.0 wrote the stream
                found = opened.enter_context(closing(BranchLog(self.path / logs.BRANCHES_FILE, uuid, mode="w")))
                sync_directory(self.path)
            self.branch_log, self._opened_at = found, state.rows
            self.commits = CommitManager(self.path, self.lanes, self.head, self.log, last, durable=durable)
            self.fields = decided(self.description.fields, state.kinds)
            self.ids = {field.name: number for number, field in enumerate(self.fields)}
            self.recorder = self._record_from(state)
            self._bound(max_tokens)
            opened.pop_all()

    def _record_from(self, state: StreamState) -> Any:
        """A recorder that appends behind the last row."""
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
        recorder.is_busy = not self._is_branched
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
    def state(self) -> StreamState:
        """What is published."""
        held = self._held()
        if held is not None:
            return held
        recorder = self.recorder
        kinds = bytes(field.kind for field in self.fields)
        return StreamState(recorder.first_row, recorder.n_rows, recorder.n_tokens, kinds)

    def view(self) -> View:
        """What is published, to read from."""
        lanes, recorder, held = self.lanes, self.recorder, self._held()
        # Each length is read once, and its token from the index: another thread may append in between.
        first, rows = int(recorder.first_row), int(recorder.n_rows) if held is None else held.rows
        return View(lanes, first, lanes.tokens_at(first), rows, lanes.tokens_at(rows), self.branches)

    @property
    def n_tokens(self) -> int:
        """The position behind the last published token."""
        held = self._held()
        return int(self.recorder.n_tokens) if held is None else held.tokens

    def _held(self) -> StreamState | None:
        """What is published while more is held back; None as soon as that is published too."""
        hold = self._hold
        return None if hold is None or self.head.published > hold[2].rows else hold[2]

    @property
    def first_token(self) -> int:
        """The position of the first token that is kept."""
        return int(self.recorder.first_token)

    def kept_from(self) -> int:
        """The same; another thread may have moved it since the last call."""
        return int(self.recorder.first_token)

    def kept_row(self) -> int:
        """The first index row that is kept."""
        return int(self.recorder.first_row)

    def refresh(self) -> None:
        """Nothing to do: the writer sees what it writes."""

    # Writing --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[Any]:
        """The recorder, while no other thread can append."""
        is_nested = self._thread_lock._is_owned()  # type: ignore[attr-defined]  # counting it would survive no interrupt
        with self._thread_lock:
            trouble = self._end or self.commits.failure
            if trouble is not None:
                raise type(trouble)(str(trouble))
            if not is_nested:
                self._end_hold()
            self.recorder.is_busy = True
            try:
                yield self.recorder
            finally:
                self.recorder.is_busy = is_nested or self._is_slow

    @property
    def _is_slow(self) -> bool:
        """Whether each append takes the slow path: to be refused, or because something has to be done before it."""
        is_over = self._end is not None or self.commits.failure is not None
        return is_over or not self._is_branched or self._hold is not None

    def append_slowly(self, steps: Any, names: Any, values: Any) -> None:
        """Append what the kernel does not handle: find errors, make room, decide kinds. A mapping is ``names``."""
        if values is None:
            self._append_mapping(steps, names)
            return
        with self._alone() as recorder:
            with self._undisturbed():
                last = recorder.last_step, recorder.last_type
                written = encode_writes(self.fields, self.ids, last, steps, names, values)
            self._check_steps(written.steps, written.lengths)
            self._make_room(len(written.steps), len(written.tokens))
            if len(written.steps):
                self._begin_branch()
            with self._deciding(written.kinds):
                recorder.record(written.steps, written.types, written.lengths, written.tokens)
            self._trim()

    def _append_mapping(self, step: Any, given: Any) -> None:
        """Append one step from a mapping: nested ones are taken apart, fields are put in the order of declaration."""
        if not isinstance(given, Mapping):
            raise SchemaError(
                f"append takes (step, {{name: value}}) or (steps, names, values), got {shown(given)} without values"
            )
        if isinstance(step, (list, tuple)) or np.ndim(step):
            raise SchemaError(f"a mapping holds the fields of one step, got steps {shown(step)}; give one number")
        step = step_number(step)
        flat = flat_values(given, self.ids)
        typed = {type_of(self.ids, name): value for name, value in flat.items()}
        if len(typed) < len(flat):
            raise SchemaError(f"append: a field is there twice in {list(flat)}; leave one out")
        names = [self.fields[type_].name for type_ in sorted(typed)]
        values = [typed[type_] for type_ in sorted(typed)]
        if not self.recorder.is_busy:
            self.recorder.append(step, names, values)  # once taken apart, it is as quick as any
        else:
            self.append_slowly(step, names, values)

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
            self._begin_branch()
            with self._deciding(kinds):
                bad = recorder.record_columns(numbers, [column.parts for column in columns])
                if bad >= 0:
                    self._refuse(columns[bad])
            self._trim()

    def _refuse(self, column: TokenColumn) -> NoReturn:
        field = self.fields[column.type]
        column.check_values(field)  # finds the row and says it better
        raise SchemaError(f"field {field.name!r}: {field.dtype} cannot hold a value of this column; convert it first")

    @contextmanager
    def all_or_nothing(self) -> Iterator[list[int]]:
        """Several appends that are published together when the block ends well, or not at all.

        The block is given a list, to which it adds the index rows at which an episode ends.
        """
        with self._alone() as recorder:
            counters = {name: getattr(recorder, name) for name in _COUNTERS}
            self._hold = counters, self.fields, self.state
            recorder.is_held = True
            breaks: list[int] = []
            try:
                yield breaks
                if recorder.n_rows > counters["n_rows"]:
                    self._branch(counters["n_rows"], breaks)
                    recorder.let_out()
                    self._is_branched = True
            finally:
                self._end_hold()
            self._trim()

    def rows_of_steps(self, back: Int64) -> list[int]:
        """The index rows where steps begin that were just appended, counted from the end: 1 is the last."""
        recorder = self.recorder
        rows = self.lanes.rows_of_ordinals(recorder.n_steps - back, recorder.first_row, recorder.n_rows)
        return [int(row) for row in rows]

    def _end_hold(self) -> None:
        """Take back what a hold has not published; an interrupt may leave this to the next append."""
        if self._hold is None:
            return
        counters, fields, _ = self._hold
        if self.head.published < self.recorder.n_rows:
            for name, number in counters.items():
                setattr(self.recorder, name, number)
            self._forget(fields)
        self.recorder.is_held = False
        self._hold = None

    def end_episode(self) -> None:
        """Record a break before the next step; nothing is written until then."""
        with self._alone() as recorder:
            if recorder.n_rows > recorder.first_row:
                self._is_branched = self._continues_episode = False
                self._opened_at = recorder.n_rows

    # Branches ---------------------------------------------------------------------------------------------------------

    def _branch(self, rows: int, breaks: Iterable[int] = ()) -> None:
        """Record, before they exist, that rows from ``rows`` on belong to this opening, and where episodes end."""
        ends = dict.fromkeys(breaks, True)
        if self._is_branched and not ends:
            return
        if not self._is_branched:
            is_break = not self._continues_episode and rows == self._opened_at > 0
            ends[rows] = ends.get(rows, False) or is_break
        # The caller decides when it counts. Until then the next record is one for these rows again, and voids this one.
        self._is_branched = False
        if self._is_branch_log_torn:
            self.branches = logs.read_branches(self.branch_log, self.path, 0)
        self._is_branch_log_torn = True
        records = self.branches.after(self.uuid, ends)
        with self.commits.final_failures():
            self.branch_log.append(records, durable=not self.is_temporary)
        self.branches = logs.read_branches(self.branch_log, self.path, records[-1].seq + 1)
        self.head.store(BRANCHES, self.branches.n_records)
        self._is_branch_log_torn = False

    def _begin_branch(self) -> None:
        """Have this opening's branch on disk before its first append; what is held does that when it is published."""
        if not self._is_branched and not self.recorder.is_held:
            self._branch(self.recorder.n_rows)
            self._is_branched = True

    # Kinds ------------------------------------------------------------------------------------------------------------

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

        Before anything is published, because readers must not see one without the other; undone if nothing was.
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
        was_attached, self._is_attached = self._is_attached, False
        if self.lanes.reserve(recorder.n_rows + n_rows, recorder.n_tokens + n_tokens) or not was_attached:
            self._attach(recorder)
        self._is_attached = True

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

    def _check_columns(self, steps: Int64, columns: list[TokenColumn]) -> None:
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
            state, n_branches = self.state, self.branches.n_records
        try:
            return self.commits.commit(state, n_branches)  # other threads may append while the disk is waited for
        except DurabilityLost:
            self.recorder.is_busy = True  # from now on every append takes the slow path, and is refused
            raise

    def health(self, figures: Mapping[str, Any]) -> Health:
        """Whether appends and commits can go on."""
        commits = self.commits
        uncommitted = 0 if self.is_temporary else self.n_tokens - commits.committed.tokens
        found = Health((), {**figures, "uncommitted_tokens": uncommitted, "commits": commits.committed.seq})
        lost, gone = None, None
        if commits.failure is not None:
            action = "close it and open it again: what was committed before is whole; check the disk"
            lost = Problem(str(commits.failure), commits.failed_since, action)
        if not self.is_open:
            action = "open the stream again, in one process at a time"
            gone = Problem(f"{self.path}: this process does not hold its lock", None, action)
        return found.plus(lost, gone)

    def trim(self) -> None:
        """Give space back; the recorder asks for it."""
        with self._alone():
            self._trim()

    def _trim(self) -> None:
        """Give the space of what has left the stream back, once it is worth it."""
        recorder = self.recorder
        if recorder.first_token >= recorder.trim_at and not recorder.is_held:
            recorder.trim_at = recorder.first_token + self._trim_step
            self.commits.trim(self.state, self.branches.n_records)

    def verify(self) -> Verified:
        """Check every committed byte, and write the types lane anew where it is wrong."""
        with self._alone():
            state = self.state
        with self.commits.lock:  # nothing is given back while it is looked at
            return verify(self.lanes, self.log, self.branch_log, state, len(self.fields), heal=True)

    @property
    def is_open(self) -> bool:
        """Whether this process holds the lock of the stream."""
        return self._lock.is_held

    def close(self) -> None:
        """Commit and close, in any case; an error in the commit, or an interrupt, is raised when all is closed."""
        with self._thread_lock:
            if not self.is_open:
                return
            self.recorder.is_busy = True  # other threads' appends wait, and are then refused
            try:
                if self._end is None and self.commits.failure is None and not self.is_temporary:
                    self._end_hold()
                    self.commits.commit(self.state, self.branches.n_records)
                self._shut()
            except BaseException:
                self._shut()  # again, where an interrupt came in the middle of it
                raise

    def _shut(self) -> None:
        """Close everything and release the lock; may be called again and again."""
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
        for part in (self.lanes, self.head, self.log, self.branch_log):
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
