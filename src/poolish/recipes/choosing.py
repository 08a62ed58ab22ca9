"""Showing candidates to whoever picks among them, and remembering what came of it.

What a choice by hash knows of the fragments it has seen is how many rows there were and which hashes are the smallest.
That can be added to, so it is kept: as long as none of those fragments has changed, only new ones are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.recipes.cache import BakedFragment, Cache, key_of
from poolish.recipes.engine import Engine, taken
from poolish.recipes.fragment_rows import FragmentRows
from poolish.recipes.pipeline import FragmentPipeline
from poolish.recipes.selection import ByHash, Candidates, Chooser
from poolish.recipes.sources import Fragment


def look(
    picking: Chooser,
    pipeline: FragmentPipeline,
    fragments: Sequence[Fragment],
    column: str | None,
    tokens: str | None,
    engine: Engine,
    cache: Cache | None,
) -> None:
    """Show all candidates of an ingredient to whoever picks among them."""
    names = {pipeline.candidates_key(fragment, column, tokens): fragment for fragment in fragments}
    memory = None
    if cache is not None and isinstance(picking, ByHash) and picking.most is not None:
        memory = _Memory(cache, pipeline, picking)
    seen = set() if memory is None else memory.recall(names)
    fresh = {name: fragment for name, fragment in names.items() if name not in seen}
    # What is kept is taken here: to hand it to a worker and back takes longer than to read it.
    is_kept = {name: cache is not None and cache.has(name) for name in fresh}
    tasks = [(pipeline, fragment) for name, fragment in fresh.items() if not is_kept[name]]
    run = engine.run(partial(_candidates, column, tokens, cache), tasks)
    with taken(run) as found:
        for name, fragment in fresh.items():
            picking.add(pipeline.candidates(fragment, column, tokens, cache) if is_kept[name] else next(found))
    if memory is not None and len(fresh) > len(names) // 8:  # a few may be looked at again, for less than this costs
        memory.keep(names)


def _candidates(
    column: str | None, tokens: str | None, cache: Cache | None, task: tuple[FragmentPipeline, Fragment]
) -> Candidates:
    pipeline, fragment = task
    return pipeline.candidates(fragment, column, tokens, cache)


class _Memory:
    """What a choice by hash has seen of an ingredient, in the cache."""

    def __init__(self, cache: Cache, pipeline: FragmentPipeline, picking: ByHash) -> None:
        self._cache, self._ingredient, self._picking = cache, pipeline.ingredient, picking
        self._key = key_of("seen", pipeline.ingredient, pipeline.seed, str(pipeline.where), picking.most)

    def recall(self, names: Any) -> set[str]:
        """Let the chooser know what was seen before, if all of that is still there; what that was."""
        found = self._cache.get(self._key)
        if found is None:
            return set()
        table = found.piece.table
        seen = set(json.loads(table.schema.metadata[b"seen"]))
        if not seen <= set(names):
            return set()
        self._picking.resume(int(table.schema.metadata[b"available"]), table.column("hash").to_numpy())
        return seen

    def keep(self, names: Any) -> None:
        """Remember it for the next time."""
        available, hashes = self._picking.state()
        about = {"seen": json.dumps(list(names)), "available": str(available)}
        table = pa.table({"hash": hashes}).replace_schema_metadata(about)
        self._cache.put(
            self._key, BakedFragment(FragmentRows.read(self._ingredient, "", table, np.zeros(len(hashes), np.int64)))
        )
