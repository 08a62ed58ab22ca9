"""Everything that changes about a buffer, in one frozen object.

    state  --a change makes the next state aside-->  next state  --one assignment-->  published

A reader or a Ctrl-C comes before the assignment or after it, so it finds a whole state. Nothing is ever rolled back.
Two things are finished after the assignment, and by the next reader if they are interrupted: ``patches``, which write
the same values however often they run, and ``pending`` rows, which wait in a list that only grows.
"""

from __future__ import annotations

import dataclasses
import operator
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from poolish.rows.codec import RowCodec
from poolish.rows.columns import Patch
from poolish.rows.normalizers import ROWS
from poolish.rows.snapshot import Lineage, Snapshot
from poolish.rows.stored import StoredRows
from poolish.schema import Schema

if TYPE_CHECKING:
    from poolish.guards.checks.guard import Guard


#: Branches that a lineage keeps, the newest; a state that names an older one is refused.
MAX_BRANCHES = 1_000


@dataclass(frozen=True, slots=True)  # slots: read 4 ns an attribute, without them 15, and every appended row reads six
class State:
    """A buffer at one moment; ``loaded`` are the rows of a file or another process until the first change."""

    rng: np.random.Generator
    version: str
    lineage: Lineage
    is_copy: bool = False
    rows: StoredRows | None = None
    loaded: Snapshot | None = None
    kind: str | None = None
    codec: RowCodec | None = None
    guard: Guard | None = None
    pending: list[Any] = field(default_factory=list)
    patches: tuple[Patch, ...] = ()
    takes_rows: bool = False

    def but(self, **changes: Any) -> State:
        """The same state with other values."""
        known = dict(zip(_FIELDS, _values_of(self), strict=True))
        known.update(changes)
        is_settled = known["kind"] == ROWS and known["codec"] is not None and known["codec"].is_resolved
        known["takes_rows"] = is_settled and known["guard"] is None
        return State(**known)

    def on_own_branch(self, n_new: int) -> State:
        """The state after ``n_new`` rows: the first rows that a copy adds are not those that the original adds."""
        if not self.is_copy or n_new == 0 or self.rows is None:
            return self
        first_id = self.rows.next_id - n_new
        kept, own = tuple(branch for branch in self.lineage if branch[1] < first_id), secrets.token_hex(16)
        return self.but(is_copy=False, version=own, lineage=(*kept[-MAX_BRANCHES:], (own, first_id)))

    @property
    def schema(self) -> Schema | None:
        """The columns and their types; None until the first append."""
        return None if self.codec is None else self.codec.schema

    @property
    def n_pending(self) -> int:
        """Rows that wait; their cells lie one behind the other."""
        return len(self.pending) // self.codec.n_columns if self.codec is not None else 0

    @property
    def n_stored(self) -> int:
        """Rows that do not wait."""
        if self.rows is not None:
            return len(self.rows)
        return 0 if self.loaded is None else len(self.loaded)

    def own_rows(self, schema: Schema) -> StoredRows:
        """The rows, to be changed; a loaded buffer moves from the mapped file into memory of its own."""
        if self.rows is not None:
            return self.rows
        return StoredRows.empty(schema) if self.loaded is None else StoredRows.of(self.loaded)


# Twice as fast as dataclasses.replace.
_FIELDS = tuple(field.name for field in dataclasses.fields(State))
_values_of = operator.attrgetter(*_FIELDS)
