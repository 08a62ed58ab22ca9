"""Writes ``before_members.json``: states and a journal from before the members of a dataset could change in an epoch.

Run it with the code of commit 5a283bd, never with a newer one, from its folder ``tests/compatibility``::

    PYTHONPATH=<checkout>/src:<checkout> python write_before_members.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from poolish.load import CompositeDataset, Loader, order

N_ROWS = 40


def one(settings: dict[str, Any], n_batches: int, dataset: Any, grow: Any = None) -> dict[str, Any]:
    """A state after some batches, and what the rest of the epoch is."""
    loader = Loader(dataset, output="numpy", **settings)
    batches = iter(loader)
    for _ in range(n_batches):
        next(batches)
    if grow is not None:
        grow()
    state = loader.state_dict()
    return {"settings": settings, "state": state, "rest": [batch.ids.tolist() for batch in batches]}


def composite(n_left: int, n_right: int) -> tuple[list[int], list[int], CompositeDataset]:
    """Two lists as one dataset."""
    left, right = list(range(n_left)), list(range(100, 100 + n_right))
    return left, right, CompositeDataset([left, right])


def main() -> None:
    """Write the file beside this one."""
    order.BLOCK_ROWS = 8
    cases = [
        ({"batch_size": 7, "shuffle": True, "seed": 5}, 0),
        ({"batch_size": 7, "shuffle": True, "seed": 5}, 3),
        ({"batch_size": 7, "shuffle": False}, 2),
        ({"batch_size": 5, "shuffle": True, "rank": 1, "world_size": 2}, 2),
        ({"batch_size": 8, "shuffle": True, "drop_last": True}, 2),
        ({"batch_size": 8, "shuffle": True}, 5),
    ]
    plain = [one(settings, n, list(range(N_ROWS))) for settings, n in cases]
    left, _, parts = composite(11, 13)
    follow = {"batch_size": 3, "shuffle": True, "seed": 2, "follow": True}
    grown = one(follow, 4, parts, lambda: left.extend(range(11, 20)))
    with tempfile.TemporaryDirectory() as folder:
        settings = {"batch_size": 3, "shuffle": True, "run": "old"}
        journaled = one({**settings, "journal": folder}, 4, list(range(N_ROWS)))
        files = {path.name: path.read_text() for path in sorted(Path(folder).iterdir()) if path.name != "lock"}
    journaled = {**journaled, "settings": settings, "files": files}
    found = {"plain": plain, "composite": grown, "journal": journaled}
    Path(__file__).with_name("before_members.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
