"""A guard between a loader and the trainer: which rows of a batch are handed out, and what the guard remembers.

    before a batch   memory, part of the loader's progress
    asked            the guard counts, and fills its window
    delivered        its memory is that of the new progress
    not delivered    the next call puts the former memory back: the batch is met again, and judged as it was

A guard with a memory has ``state_dict`` and ``load_state_dict``, as ``suite.guard()`` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import torch_bridge
from poolish.columns import Column, TableView
from poolish.errors import ConfigError
from poolish.guards.checks.guard import Guard, ask, check_guard, passed
from poolish.guards.checks.stream import StreamGuard
from poolish.guards.checks.suite import Suite
from poolish.load.batch import is_structure, named_columns
from poolish.load.frozen import Int64
from poolish.printable import counted


class LoaderGuard:
    """Asks a guard about the batches of one loader."""

    def __init__(self, guard: Any, rank: int, world_size: int) -> None:
        checked = check_guard(guard, "Loader")
        assert checked is not None
        self._guard: Guard = checked
        self._rank, self._world_size = rank, world_size
        self._remembers = hasattr(guard, "state_dict") and hasattr(guard, "load_state_dict")
        self._at: Any = None

    def kept(self, content: Any, ids: Int64, place: str) -> Int64 | None:
        """The numbers of the rows that the trainer gets, None for all; none at all: leave the batch out."""
        if not len(ids):
            return None
        columns, self._at = _named(content), None
        is_ours = isinstance(self._guard, (Suite, StreamGuard))
        rows = TableView.of(_with_structs(content, columns), _ids_of(columns, ids)) if is_ours else columns
        result = ask(self._guard, rows, self)
        mask = passed(result, place)
        if mask is None or mask.all():
            return None
        if not mask.any() and self._world_size > 1:
            raise result.error(
                f"{place}, rank {self._rank} of {self._world_size}",
                "a rank that leaves a batch out would be out of step with the others: guard what writes the dataset "
                "instead, such as DatasetBuffer(guard=)",
            )
        if mask.any() and len(mask) != len(ids):
            raise ConfigError(
                f"{place}: the guard drops rows, but the collate_fn made {counted(len(mask), 'row')} of "
                f"{counted(len(ids), 'sample')}, so it "
                'is not known which are bad; use on(error="skip") or "raise"'
            )
        return np.flatnonzero(mask)

    # -- memory

    def memory(self) -> Any:
        """What the guard remembers now, to be put back within this process."""
        if not self._remembers:
            return None
        guard: Any = self._guard
        self._at = guard.memory() if isinstance(guard, StreamGuard) else guard.state_dict()
        return self._at

    def rewind(self, memory: Any) -> None:
        """The guard remembers what it did then."""
        if not self._remembers or self._at is memory:
            return
        guard: Any = self._guard
        guard.rewind(memory) if isinstance(guard, StreamGuard) else guard.load_state_dict(memory)
        self._at = memory

    def state_of(self, memory: Any) -> dict[str, Any]:
        """A memory for a state of the loader; it is that of one rank's rows."""
        if not self._remembers:
            return {}
        now = self.memory()
        guard: Any = self._guard
        try:
            self.rewind(memory)
            return {"guard": guard.state_dict(), "guard_of": [self._rank, self._world_size]}
        finally:
            self.rewind(now)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what a state holds. That of another rank or world size is of other rows: then nothing changes."""
        if self._remembers and state.get("guard_of") == [self._rank, self._world_size]:
            guard: Any = self._guard
            self._at = None
            guard.load_state_dict(state["guard"])


def _ids_of(columns: Mapping[str, Any], ids: Int64) -> Int64 | None:
    """The ids, where the columns have a row for each: a collate_fn may do as it likes."""
    return ids if all(hasattr(values, "__len__") and len(values) == len(ids) for values in columns.values()) else None


def _named(content: Any) -> dict[str, Any]:
    """The columns of a batch by name, as a guard sees them."""
    if not (isinstance(content, (Mapping, tuple)) or is_structure(content)):
        raise ConfigError(
            f"guard= looks at the columns of a batch, the collate_fn returned {type(content).__name__}; "
            "return a dict, a tuple or a dataclass"
        )
    return {name: _read_only(values) for name, values in named_columns(content)}


def _with_structs(content: Any, columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns with those of one struct as the struct that they were, as every other boundary sees it."""
    if not isinstance(content, Mapping) or not any(isinstance(values, Mapping) for values in content.values()):
        return columns
    whole = {str(name): _struct(str(name), values, columns) for name, values in content.items()}
    return columns if any(values is None for values in whole.values()) else whole


def _struct(name: str, values: Any, columns: Mapping[str, Any]) -> Any:
    """A column, or a struct of those inside; None where they make none."""
    if not isinstance(values, Mapping):
        return columns.get(name)
    parts = {str(part): _struct(f"{name}.{part}", inner, columns) for part, inner in values.items()}
    if not parts or any(inner is None for inner in parts.values()):
        return None
    arrays = [Column(part, inner).to_arrow() for part, inner in parts.items()]
    return pa.StructArray.from_arrays(arrays, list(parts)) if len(set(map(len, arrays))) == 1 else None


def _read_only(values: Any) -> Any:
    """A column as a guard sees it: what it would write there, the trainer would get."""
    if isinstance(values, list):
        return [_read_only(value) for value in values]
    if torch_bridge.is_torch_tensor(values):
        values = values.detach().cpu()
        is_narrow = str(values.dtype).startswith(("torch.bfloat16", "torch.float8"))  # NumPy has no such dtype
        values = (values.float() if is_narrow else values).numpy()
    if isinstance(values, np.ndarray):
        values = values.view()
        values.flags.writeable = False
    return values
