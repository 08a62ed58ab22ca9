"""The place where the steps of one rank begin, compared with that of the other ranks of the process group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poolish.load.frozen import LOCAL, snapshot_rows
from poolish.load.own_rows import InStep
from poolish.load.peers import ComparedRows, Peers
from poolish.load.planner import BatchPlanner, LoaderPosition, OrderPlanner
from poolish.load.settings import LoaderSettings, is_in_memory
from poolish.load.spot_check import spots_of


class GroupSession:
    """Compares the place, the settings and the rows of this rank with those of the others."""

    def __init__(
        self,
        peers: Peers,
        settings: LoaderSettings,
        about: Mapping[str, Any],
        planner: OrderPlanner | BatchPlanner,
        compared: ComparedRows | None,
    ) -> None:
        self.peers, self._settings, self._planner, self._compared = peers, settings, planner, compared
        alike = ("choice", "seed", "shuffle", "sampled")
        self._alike = {name: about[name] for name in alike}
        self._alike |= {name: getattr(settings, name) for name in ("batch_size", "drop_last", "follow")}

    def begin(self, place: LoaderPosition) -> None:
        """Begin the steps behind a place; an error if other ranks begin theirs elsewhere, or on other rows."""
        facts: dict[str, Any] = {"epoch": place.epoch, "step": place.step, **self._alike}
        if isinstance(self._planner, InStep):
            self.peers.begin({**facts, "seed": None, "shared": "own", "uneven": self._settings.uneven})
            return
        facts["position"] = place.position
        if isinstance(self._planner, BatchPlanner):
            facts |= {"batches": self._planner.n_batches_of(place.epoch), "draw": self._planner.sketch()}
        else:
            run = self._planner.run_from(place, "")
            facts |= {"block": run.block, "offset": run.offset, "left": run.parts, "ends": list(run.ends)}
        self.peers.begin({**facts, "rows": self._rows()})

    def _rows(self) -> Any:
        """What must be the same rows: by content in memory, by name on disk, by length and a few values otherwise."""
        rows = snapshot_rows(self._settings.dataset)
        if self._compared is not None and is_in_memory(self._settings.dataset):
            content = self._compared.all(rows)
            return [len(rows), *content] if rows.changes != LOCAL or any(content) else len(rows)
        if self._compared is None:
            return rows.uuid
        return [len(rows), spots_of(self._settings.dataset)]
