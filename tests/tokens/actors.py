"""Streams of several actors whose steps say who recorded them, and when, for the tests of a ``StreamSet``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from poolish import StreamSet, StreamStore

FIELDS = {"who": "int64", "n": "int64", "done": "bool"}
SHIFT = 1 << 48


def actor(path: Path | None, n: int = 0, *, who: int = 0, ends: int = 0, **options: Any) -> StreamStore:
    """A stream of ``n`` steps; each ``ends``-th ends an episode."""
    store = StreamStore(path, FIELDS, **options)
    record(store, n, who=who, ends=ends)
    return store


def record(store: StreamStore, n: int, *, who: int = 0, ends: int = 0) -> None:
    """``n`` more steps."""
    first = store.step_span()[1]
    for step in range(first, first + n):
        store.append(step, {"who": who, "n": step, "done": bool(ends) and step % ends == ends - 1})


def recorded(folder: Path, *sizes: int, ends: int = 0) -> list[Path]:
    """A folder of closed streams ``actor-0``, ``actor-1``, ... of these sizes."""
    paths = [folder / f"actor-{k}" for k in range(len(sizes))]
    for k, (path, n) in enumerate(zip(paths, sizes, strict=True)):
        actor(path, n, who=k, ends=ends).close()
    return paths


def held(streams: StreamSet) -> dict[str, list[tuple[int, int]]]:
    """What each member holds, read by id."""
    found = {}
    for member in streams.members:
        ids = member.ordinal * SHIFT + np.arange(*member.store.step_span())
        batch = streams.fields_at(ids)
        found[member.name] = list(zip(batch["who"].tolist(), batch["n"].tolist(), strict=True))
    return found
