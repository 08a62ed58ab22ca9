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

from poolish.recipes.cache import Baked, Cache, key_of
from poolish.recipes.chain import Chain
from poolish.recipes.engine import Engine, taken
from poolish.recipes.piece import Piece
from poolish.recipes.selection import ByHash, Candidates, Chooser
from poolish.recipes.sources import Fragment


def look(
    picking: Chooser,
    chain: Chain,
    fragments: Sequence[Fragment],
    column: str | None,
    tokens: str | None,
    engine: Engine,
    cache: Cache | None,
) -> None:
    """Show all candidates of an ingredient to whoever picks among them."""
    names = {chain.candidates_key(fragment, column, tokens): fragment for fragment in fragments}
    memory = None
    if cache is not None and isinstance(picking, ByHash) and picking.most is not None:
        memory = _Memory(cache, chain, picking)
    seen = set() if memory is None else memory.recall(names)
    fresh = {name: fragment for name, fragment in names.items() if name not in seen}
    # What is kept is taken here: to hand it to a worker and back takes longer than to read it.
    is_kept = {name: cache is not None and cache.has(name) for name in fresh}
    tasks = [(chain, fragment) for name, fragment in fresh.items() if not is_kept[name]]
    run = engine.run(partial(_candidates, column, tokens, cache), tasks)
    with taken(run) as found:
        for name, fragment in fresh.items():
            picking.add(chain.candidates(fragment, column, tokens, cache) if is_kept[name] else next(found))
    if memory is not None and len(fresh) > len(names) // 8:  # a few may be looked at again, for less than this costs
        memory.keep(names)


def _candidates(
    column: str | None, tokens: str | None, cache: Cache | None, task: tuple[Chain, Fragment]
) -> Candidates:
    chain, fragment = task
    return chain.candidates(fragment, column, tokens, cache)


class _Memory:
    """What a choice by hash has seen of an ingredient, in the cache."""

    def __init__(self, cache: Cache, chain: Chain, picking: ByHash) -> None:
        self._cache, self._ingredient, self._picking = cache, chain.ingredient, picking
        self._key = key_of("seen", chain.ingredient, chain.seed, str(chain.where), picking.most)

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
        self._cache.put(self._key, Baked(Piece.read(self._ingredient, "", table, np.zeros(len(hashes), np.int64))))
