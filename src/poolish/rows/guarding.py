"""Asking a guard about an append, before anything changes."""

from __future__ import annotations

import pyarrow as pa

from poolish.guards.checks.guard import Guard, ask, passed
from poolish.guards.checks.verdicts import Result
from poolish.guards.leaves import Mask
from poolish.rows.draft import Draft

#: The rows of an append, what the guard found in them, and which of them may not enter.
Turned = tuple[pa.Table, Result, Mask]


def admit(draft: Draft, guard: Guard, buffer: object) -> Turned | None:
    """Leave in the draft what may enter; what may not, if there is any. ``DataRefused`` if all of it is refused."""
    table = draft.table()
    if table is None:
        return None
    result = ask(guard, table, buffer)
    kept = passed(result, f"append of {draft.n_rows:,} rows")
    if kept is None:
        return None
    draft.keep(kept)
    return table, result, ~kept
