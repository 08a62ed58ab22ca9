"""StreamGuard: a suite that checks batch after batch, with a state.

    batch --> checks of rows, at once --> rows that may pass --> window --full--> statistics, drift, outliers
                                                                   |                       |
                                                                   `-- begins anew <-------+--> failed k times in a row?

A window takes the rows that passed, until there are ``window`` of them; it is judged together with the batch that fills
it, and what its verdicts ask for is done to that batch. Windows do not overlap, so each is news of its own, and k of
them in a row (``Suite.on(persist=k)``) are far less likely to be chance than one: at alpha = 0.05 one window in 20
alarms although nothing changed, with k = 2 one in 400. ``Suite.drift(per="stream")`` bounds all windows together: each
uses a part of alpha (``stats.drift.spent``), and the state says which window comes next.
"""

from __future__ import annotations

import base64
import binascii
import reprlib
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from poolish.columns import TableView
from poolish.concurrency import Locked
from poolish.errors import ConfigError, ResumeError
from poolish.files import checksum_hex
from poolish.guards.checks.distributions import Reference
from poolish.guards.checks.values import plain
from poolish.guards.checks.verdicts import Result, Verdict
from poolish.guards.stats.profile import Profile
from poolish.printable import counted
from poolish.schema.types import unsliced

if TYPE_CHECKING:
    from poolish.guards.checks.suite import Suite

VERSION = 1


class StreamGuard(Locked):
    """A guard with a memory, for boundaries that see batch after batch; safe for threads, one batch at a time.

    ``reference`` is what drift is measured from: rows, or a ``Profile``. The state holds the rows of the open window
    (only the columns whose distribution is judged), so a restart resumes in the middle of it.

    >>> from poolish.guards import Suite
    >>> suite = Suite("rewards").stat("reward", mean=(-1, 1), severity="error").on(persist=2)
    >>> guard = suite.guard(window=4)
    >>> [guard({"reward": [0.0, 5.0]}).ok for _ in range(6)]
    [True, False, True, False, True, False]
    >>> guard.n_windows, guard.streaks
    (3, {'reward has a mean between -1 and 1': 3})
    """

    def __init__(self, suite: Suite, reference: Any = None, *, window: int = 1_000) -> None:
        super().__init__()
        if not callable(getattr(suite, "check_rows", None)):
            raise ConfigError(f"a guard for a stream is made by a Suite, got {suite!r}")
        window = plain(window)
        if type(window) is not int or window < 1:
            raise ConfigError(f"window: a number of rows from 1, got {window!r}")
        suite.in_use("StreamGuard", reference)
        self.suite, self.window = suite.fitted_on(reference).in_use("StreamGuard", reference), window
        self.reference = _kept(reference, self.suite.distribution_columns())
        self.n_seen = self.n_bad = self.n_windows = 0
        self.streaks: dict[str, int] = {}
        self._open: list[pa.Table] = []
        self._n_open = 0

    #: Whose rows it has seen, and which of them; weakly, as a guard may outlive a boundary and serve the next one.
    _claim: tuple[weakref.ref[Any], str] | None = None

    def claim(self, owner: object, stream: str = "") -> None:
        """Serve the rows of this owner; a ``ConfigError`` while it serves another one's, or another stream of it."""
        with self._lock:
            first, watched = (None, "") if self._claim is None else (self._claim[0](), self._claim[1])
            if first is None:
                self._claim = weakref.ref(owner), stream
            elif first is not owner or watched != stream:
                raise ConfigError(
                    f"this guard of suite {self.name!r} watches {_place(first, watched)}, and its windows would mix "
                    f"its rows with those of {_place(owner, stream)}; make a guard for each with suite.guard()"
                )

    @property
    def name(self) -> str:
        """The suite's."""
        return self.suite.name

    def __call__(self, rows: Any, /) -> Result:
        """What is wrong with the next batch, and with the window that it fills, if it fills one."""
        seen = TableView.of(rows)
        verdicts = self.suite.check_rows(seen)
        of_rows = Result(verdicts, seen, name=self.suite.name)
        with self._lock:
            self.n_seen += len(seen)
            self.n_bad += int((~of_rows.mask).sum())
            closed = self._closed(seen, of_rows)
        return Result([*verdicts, *closed], seen, name=self.suite.name) if closed else of_rows

    def _closed(self, rows: TableView, found: Result) -> list[Verdict]:
        """The verdicts of the window that these rows fill; none while it is open."""
        if not self.suite.has_distributions():
            return []
        passing = found.kept if found.action != "log" else None
        table = rows.to_arrow(self._watched(rows))
        self._open.append(table if passing is None else unsliced(table).filter(pa.array(passing)))
        self._n_open += self._open[-1].num_rows
        if self._n_open < self.window:
            return []
        window = TableView.of(pa.concat_tables(self._open, promote_options="permissive"))
        self._open, self._n_open = [], 0
        verdicts = self.suite.check_columns(window, self.reference, window=self.n_windows)
        self.n_windows += 1
        return [self._lasting(verdict) for verdict in verdicts]

    def _watched(self, rows: TableView) -> list[str]:
        """The columns whose distribution is judged; all, where one of the checks is about all."""
        asked = self.suite.distribution_columns()
        return rows.names if asked is None else [name for name in asked if name in rows]

    def _lasting(self, verdict: Verdict) -> Verdict:
        """The verdict, which acts only if it has failed often enough in a row; no row of this batch is to blame."""
        if verdict.status == "failed":
            self.streaks[verdict.title] = self.streaks.get(verdict.title, 0) + 1
        elif verdict.status == "ok":
            self.streaks.pop(verdict.title, None)
        acts = self.streaks.get(verdict.title, 0) >= self.suite.persist
        return replace(verdict, acts=acts, bad=None, examples=())

    # -- state

    def memory(self) -> tuple[Any, ...]:
        """What ``state_dict`` holds, for ``rewind`` in this process: nothing is copied but lists."""
        with self._lock:
            counts = self.n_seen, self.n_bad, self.n_windows
            return *counts, dict(self.streaks), list(self._open), self._n_open

    def rewind(self, memory: tuple[Any, ...]) -> None:
        """Forget what was seen since ``memory`` was taken."""
        with self._lock:
            *counts, streaks, tables, n_open = memory
            self.n_seen, self.n_bad, self.n_windows = counts
            self.streaks, self._open, self._n_open = dict(streaks), list(tables), n_open

    def state_dict(self) -> dict[str, Any]:
        """Counts, streaks and the open window: JSON, no larger than a window."""
        with self._lock:
            kept = [table for table in self._open if table.num_rows]
            data = _packed(pa.concat_tables(kept, promote_options="permissive")) if kept else ""
            return {
                "version": VERSION,
                "suite": self.suite.fingerprint,
                "seen": self.n_seen,
                "bad": self.n_bad,
                "windows": self.n_windows,
                "streaks": dict(self.streaks),
                "rows": data,
                "checksum": checksum_hex(data.encode()),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where ``state`` was taken; a state of another suite is refused and changes nothing."""
        seen, bad, windows, streaks, table = self._checked(state)
        with self._lock:
            self.n_seen, self.n_bad, self.n_windows, self.streaks = seen, bad, windows, streaks
            self._open = [] if table is None else [table]
            self._n_open = 0 if table is None else table.num_rows

    def _checked(self, state: Mapping[str, Any]) -> tuple[int, int, int, dict[str, int], pa.Table | None]:
        found = dict(state) if isinstance(state, Mapping) else {}
        numbers = [found.get(key) for key in ("seen", "bad", "windows")]
        streaks, data = found.get("streaks"), found.get("rows")
        is_state = all(type(n) is int and n >= 0 for n in numbers) and found.get("version") == VERSION
        if not is_state or not isinstance(streaks, dict) or not isinstance(data, str):
            raise ResumeError(f"no state of a guard: {reprlib.repr(state)}; pass what state_dict() gave")
        if found.get("suite") != self.suite.fingerprint:
            raise ResumeError(
                f"the state is of another suite than {self.suite.name!r}, or of an older form of it; begin without it"
            )
        if not all(isinstance(title, str) and type(n) is int for title, n in streaks.items()):
            raise ResumeError("a guard's streaks are numbers by check; pass what state_dict() gave")
        if checksum_hex(data.encode("utf-8", "surrogatepass")) != found.get("checksum"):
            raise ResumeError(
                "the rows in the state of a guard are damaged: their checksum is another; begin without it"
            )
        seen, bad, windows = (int(n or 0) for n in numbers)
        return seen, bad, windows, dict(streaks), _unpacked(data) if data else None

    def __repr__(self) -> str:
        return (
            f"<StreamGuard of {self.suite.name!r}: {self.n_bad:,} of {counted(self.n_seen, 'row')} bad, "
            f"{counted(self.n_windows, 'window')} of {counted(self.window, 'row')}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_claim"}


def _place(owner: object, stream: str) -> str:
    return type(owner).__name__.removesuffix("Guard") + (f" of {stream!r}" if stream else "")


def _kept(reference: Any, columns: list[str] | None) -> Any:
    """The reference as it is now, the columns that are compared: a buffer may grow, an array may be written to."""
    if reference is None or isinstance(reference, (Profile, Reference)):
        return reference
    rows = TableView.of(reference)
    table = rows.to_arrow([name for name in (rows.names if columns is None else columns) if name in rows])
    return pa.ipc.open_stream(_serialized(table)).read_all()


def _serialized(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _packed(table: pa.Table) -> str:
    return base64.b64encode(_serialized(table)).decode("ascii")


def _unpacked(data: str) -> pa.Table:
    """The rows again; their checksum was right, so what is wrong here was wrong when it was written."""
    try:
        table = pa.ipc.open_stream(base64.b64decode(data, validate=True)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, binascii.Error, OSError, ValueError) as error:
        raise ResumeError(f"no rows in the state of a guard ({error}); begin without it") from None
    return table
