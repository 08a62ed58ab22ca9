"""Steps by their numbers as arrays that a model takes: decoded, in the declared dtype and shape, nested as declared.

    numbers of steps, how many behind each  --gather-->  {"obs": {"position": float32[n, T, 2]}, "action": int64[n, T]}
                                            --output-->  the same as tensors on a device, or as jax arrays

The number of a step is how many were recorded before it since the stream began: it stays when older ones are trimmed. A
field whose length varies is padded with zeros behind its values, and ``lengths`` says how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolish import jax_bridge, kernels, torch_bridge
from poolish.errors import ConfigError, SchemaError
from poolish.tokens.fields import TokenField
from poolish.tokens.stream_files import TYPE

if TYPE_CHECKING:
    from poolish.tokens.reader import Reader
    from poolish.tokens.writer import Writer

Int64 = NDArray[np.int64]
Batch = dict[str, Any]

OUTPUTS = ("numpy", "torch", "jax")

#: Rows of a ragged field are padded to the longest one; more than this many numbers are refused before they are asked
#: for.
_MOST_PADDED = 1 << 33


@dataclass(frozen=True)
class Steps:
    """Sequences of steps: ``counts`` of them from ``ids`` on, behind ``skips`` empty places, in ``n_steps`` places."""

    ids: Int64
    counts: Int64
    skips: Int64
    n_steps: int

    @classmethod
    def single(cls, ids: Int64) -> Steps:
        """One step each."""
        return cls(ids, np.ones(len(ids), np.int64), np.zeros(len(ids), np.int64), 1)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which places hold a step."""
        times = np.arange(self.n_steps)
        mask: NDArray[np.bool_] = (times >= self.skips[:, None]) & (times < (self.skips + self.counts)[:, None])
        return mask

    @property
    def numbers(self) -> Int64:
        """The number of the step in each place, -1 where there is none."""
        return np.where(self.mask, (self.ids - self.skips)[:, None] + np.arange(self.n_steps), -1)

    @property
    def is_padded(self) -> bool:
        """Whether any place is empty."""
        return bool((self.counts < self.n_steps).any())


class StepReader:
    """Reads the steps that a stream has at one moment."""

    def __init__(self, source: Writer | Reader) -> None:
        self.source = source
        self.view = source.view()
        self.fields = source.fields

    @property
    def span(self) -> tuple[int, int]:
        """The number of the first step that is kept, and that behind the last."""
        first = self.view.first_ordinal
        return first, first + self.view.n_steps

    def read(self, steps: Steps, types: Sequence[int], optional: Sequence[int] = ()) -> Batch:
        """Fields by name, flat, as arrays [n, n_steps, *shape]; ``lengths`` and ``present`` of those that need them."""
        n, n_steps = len(steps.ids), steps.n_steps
        lengths = {type_: np.zeros((n, n_steps), np.int64) for type_ in types if self.is_ragged(type_)}
        present = {type_: np.zeros((n, n_steps), np.bool_) for type_ in optional}
        widths = self._widths(steps, types, lengths, present)
        new = np.zeros if steps.is_padded or lengths or present else np.empty
        values = {type_: new((n, n_steps, widths[type_]), _carrier(self.fields[type_])) for type_ in types}
        self._gather(steps, types, widths, values, present, lengths)
        batch: Batch = {self.fields[type_].name: self._shaped(type_, values[type_]) for type_ in types}
        if lengths:
            names = {self.fields[type_].name: (type_, each) for type_, each in lengths.items()}
            batch["lengths"] = {name: each // self._row_size(type_) for name, (type_, each) in names.items()}
        if present:
            batch["present"] = {self.fields[type_].name: here for type_, here in present.items()}
        return batch

    def is_ragged(self, type_: int) -> bool:
        """Whether the length of a field varies."""
        shape = self.fields[type_].shape
        return shape is None or shape[:1] == (None,)

    def complete_end(self, types: Sequence[int]) -> int:
        """The number behind the last step that has these fields: the newest may still be in the making."""
        view = self.view
        first, end = self.span
        if end == first:
            return end
        row = view.row_not_below(TYPE, (end - 1) << 8)
        there = set((view.lanes.index.room[row : view.rows, TYPE] & 0xFF).tolist())
        return end if there.issuperset(types) else end - 1

    def _widths(
        self, steps: Steps, types: Sequence[int], lengths: Mapping[int, Int64], present: Mapping[int, Any]
    ) -> dict[int, int]:
        widths = {type_: self._row_size(type_) for type_ in types if type_ not in lengths}
        if lengths:
            nothing = dict.fromkeys(lengths)
            self._gather(steps, list(lengths), dict.fromkeys(lengths, 0), nothing, present, lengths)
            for type_, each in lengths.items():
                widths[type_] = int(each.max(initial=0))
                if widths[type_] * each.size > _MOST_PADDED:
                    raise SchemaError(
                        f"field {self.fields[type_].name!r}: {each.size:,} values padded to {widths[type_]:,} numbers "
                        "do "
                        "not fit into memory; read fewer at a time, or leave the field out with fields="
                    )
        return widths

    def _gather(
        self,
        steps: Steps,
        types: Sequence[int],
        widths: Mapping[int, int],
        values: Mapping[int, Any],
        present: Mapping[int, Any],
        lengths: Mapping[int, Int64],
    ) -> None:
        view, lanes = self.view, self.view.lanes
        columns = [
            (
                type_,
                self.fields[type_].is_float,
                widths[type_],
                values[type_],
                _bytes(present.get(type_)),
                lengths.get(type_),
            )
            for type_ in types
        ]
        rows = view.first_row, view.rows
        which = steps.ids, steps.counts, steps.skips, steps.n_steps
        bad = kernels.gather_steps(lanes.data.room, lanes.types.room, lanes.index.room, *rows, *which, columns)
        self._check_kept(steps)
        if bad >= 0:
            place, column = divmod(bad, len(types))
            raise self._missing(int(steps.numbers.reshape(-1)[place]), self.fields[types[column]])

    def _check_kept(self, steps: Steps) -> None:
        """Refuse steps that were trimmed while they were read: they may be anything."""
        row = self.source.kept_row()
        if row == self.view.first_row or not len(steps.ids):
            return
        kept = self.view.lanes.ordinal(row) if row < self.view.rows else self.span[1]
        if int(steps.ids.min()) < kept:
            raise IndexError(
                f"step {int(steps.ids.min()):,} has left the stream, which is kept from step {kept:,} on; refresh()"
            )

    def _missing(self, number: int, field: TokenField) -> SchemaError:
        row = self.view.row_not_below(TYPE, number << 8)
        step = int(self.view.lanes.index.room[row, 2])
        return SchemaError(
            f"step {step} (number {number:,} of the stream) has no field {field.name!r} of the declared shape; "
            "read other fields with fields=, or name it in optional= to have zeros there and `present` say so"
        )

    def _row_size(self, type_: int) -> int:
        return int(np.prod([size for size in self.fields[type_].shape or () if size is not None], dtype=np.int64))

    def _shaped(self, type_: int, values: NDArray[Any]) -> NDArray[Any]:
        field = self.fields[type_]
        shape = (None,) if field.shape is None else field.shape
        if shape[:1] == (None,):
            shape = (values.shape[-1] // self._row_size(type_), *shape[1:])
        shaped = values.reshape(*values.shape[:-1], *[size or 0 for size in shape])
        return shaped if shaped.dtype == field.dtype else shaped.astype(field.dtype)


def _bytes(mask: NDArray[np.bool_] | None) -> NDArray[np.uint8] | None:
    return None if mask is None else mask.view(np.uint8)


def _carrier(field: TokenField) -> str:
    return "float64" if field.dtype == "float16" else field.dtype


# What a user gets ------------------------------------------------------------------------------------------------


def nested(batch: Mapping[str, Any]) -> Batch:
    """Fields by name, with dotted names as nested mappings, unless what is before the dot is a field itself.

    >>> nested({"obs.x": 1, "obs.goal.0": 2, "action": 3})
    {'obs': {'x': 1, 'goal': {'0': 2}}, 'action': 3}
    """
    found: Batch = {}
    for name, value in batch.items():
        *path, last = [name] if any(name.startswith(f"{other}.") for other in batch) else name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = nested(value) if isinstance(value, Mapping) else value
    return found


def each(change: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with every array changed."""
    if isinstance(batch, Mapping):
        return {name: each(change, value) for name, value in batch.items()}
    return change(batch)


def check_output(output: str | None, device: Any) -> str:
    """``output``, which is torch where only a device is given."""
    chosen = ("numpy" if device is None else "torch") if output is None else output
    if chosen not in OUTPUTS or (chosen == "numpy" and device is not None):
        raise ConfigError(
            f"output={output!r}, device={device!r}: give 'numpy', or 'torch' or 'jax' with a device of theirs"
        )
    return chosen


def as_output(batch: Batch, output: str | None, device: Any) -> Batch:
    """The batch as NumPy arrays, as tensors on a device, or as jax arrays."""
    chosen = check_output(output, device)
    if chosen == "numpy":
        return batch
    if chosen == "jax":
        placed: Batch = each(lambda array: jax_bridge.on_device(array, device), batch)
        return placed
    tensors: Batch = each(torch_bridge.from_array, batch)
    if device is not None:
        tensors = each(lambda tensor: tensor.to(device), tensors)
    return tensors


def check_free(names: Sequence[str], taken: Sequence[str]) -> None:
    """Refuse fields whose names a batch needs for itself."""
    for name in names:
        if name.split(".")[0] in taken:
            raise SchemaError(
                f"field {name!r} has a name that batches use themselves ({', '.join(taken)}); leave it out with "
                "fields=, "
                "and read it with fields_at"
            )
