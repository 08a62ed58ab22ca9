"""What can be said about a stream from outside, in a form that compares exactly, and the ways into one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from poolish import StreamStore
from tests.rows.facts import plain


def facts(store: StreamStore) -> dict[str, Any]:
    """Tokens, types, steps, lengths, fields and their kinds: everything that a refused operation must leave alone."""
    tokens = store[:]
    return {
        "values": tokens["values"].tolist(),
        "types": tokens["types"].tolist(),
        "steps": [(step.number, plain(dict(step))) for step in store],
        "lengths": (len(store), store.n_steps, store.first, store.end),
        "fields": (dict(store.field_to_type), repr(store)),
    }


def lanes(store: StreamStore) -> list[list[int]]:
    """The bytes of a stream as they lie on disk: data, types and index."""
    source = store._writer()
    rows, tokens, kept = source.state.rows, source.n_tokens, source.lanes
    parts = kept.data.room[:tokens], kept.types.room[:tokens], kept.index.room[: rows + 1, 0], kept.index.room[:rows]
    return [np.array(part).reshape(-1).tolist() for part in parts]


def warm(fields: Any) -> StreamStore:
    """A stream that has room, so that the compiled half takes what it can: the very first append has to make some."""
    described = fields if isinstance(fields, dict) else dict.fromkeys(fields)
    store = StreamStore(fields={"warm": "int8", **described})
    store.append(0, ["warm"], [1])
    return store


Way = Callable[[StreamStore, int, str, Any], None]

#: The ways that one value takes into a stream; all must agree.
WAYS: dict[str, Way] = {
    "append": lambda store, step, name, value: store.append(step, [name], [value]),
    "slowly": lambda store, step, name, value: store._writer().append_slowly([step], [name], [value]),
    "column": lambda store, step, name, value: store.append_many([step], {name: [value]}),
}


def in_words(value: object) -> str:
    """A name for a test that is the same in every process: no line breaks, no addresses, no order by hash."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} of {sorted(map(repr, value))}"
    return re.sub(r" object at 0x[0-9a-f]+", "", repr(value).replace("\n", ""))[:40]
