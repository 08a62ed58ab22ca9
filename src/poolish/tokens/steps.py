"""Steps by their numbers as arrays that a model takes: decoded, in the declared dtype and shape, nested as declared.

    numbers of steps, how many behind each  --gather-->  {"obs": {"position": float32[n, T, 2]}, "action": int64[n, T]}
                                            --output-->  the same as tensors on a device, or as jax arrays

The number of a step is how many were recorded before it since the stream began: it stays when older ones are trimmed. A
field whose length varies is padded with zeros behind its values, and ``lengths`` says how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolish import jax_bridge, kernels, torch_bridge
from poolish.errors import ConfigError, SchemaError
from poolish.tokens.fields import DTYPES, TokenField
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

#: What kernels read a field as.
CARRIERS = {dtype: np.dtype("float64" if dtype == "float16" else dtype) for dtype in DTYPES}


@dataclass(frozen=True)
class Steps:
    """Sequences of steps: ``counts`` of them from ``ids`` on, behind ``skips`` empty places, in ``n_steps`` places.

    Where the steps of a sequence are known to be alike, ``places`` is its first token and ``sizes`` the tokens of each;
    a place of -1 is looked up in the index.
    """

    ids: Int64
    counts: Int64
    skips: Int64
    n_steps: int
    places: Int64 | None = None
    sizes: Int64 | None = None

    @classmethod
    def single(cls, ids: Int64) -> Steps:
        """One step each."""
        return cls(np.ascontiguousarray(ids), np.ones(len(ids), np.int64), np.zeros(len(ids), np.int64), 1)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which places hold a step."""
        if not self.is_padded:
            return np.ones((len(self.ids), self.n_steps), np.bool_)
        times = np.arange(self.n_steps)
        mask: NDArray[np.bool_] = (times >= self.skips[:, None]) & (times < (self.skips + self.counts)[:, None])
        return mask

    @property
    def numbers(self) -> Int64:
        """The number of the step in each place, -1 where there is none."""
        numbers: Int64 = (self.ids - self.skips)[:, None] + np.arange(self.n_steps)
        return np.where(self.mask, numbers, -1) if self.is_padded else numbers

    @cached_property
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
        place = len(steps.ids), steps.n_steps
        lengths = {type_: np.zeros(place, np.int64) for type_ in types if self.is_ragged(type_)}
        present = {type_: np.zeros(place, np.bool_) for type_ in optional}
        longest = self._longest(steps, lengths, present)
        new = np.zeros if steps.is_padded or lengths or present else np.empty
        shapes = {type_: place + self._shape(type_, longest) for type_ in types}
        values = {type_: new(shape, CARRIERS[self.fields[type_].dtype]) for type_, shape in shapes.items()}
        self._gather(steps, values, present, lengths)
        batch: Batch = {
            self.fields[type_].name: in_declared_dtype(self.fields[type_], numbers) for type_, numbers in values.items()
        }
        if lengths:
            sizes = {type_: each // math.prod(values[type_].shape[3:]) for type_, each in lengths.items()}
            batch["lengths"] = {self.fields[type_].name: each for type_, each in sizes.items()}
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

    def _longest(self, steps: Steps, lengths: Mapping[int, Int64], present: Mapping[int, Any]) -> Mapping[int, int]:
        """How many numbers the longest value of each ragged field has; ``lengths`` of all of them are filled in."""
        if not lengths:
            return {}
        self._gather(steps, dict.fromkeys(lengths), present, lengths)
        longest = {type_: int(each.max(initial=0)) for type_, each in lengths.items()}
        for type_, most in longest.items():
            n = lengths[type_].size
            if most * n > _MOST_PADDED:
                raise SchemaError(
                    f"field {self.fields[type_].name!r}: {n:,} values padded to {most:,} numbers do not fit into "
                    "memory; read fewer at a time, or leave the field out with fields="
                )
        return longest

    def _shape(self, type_: int, longest: Mapping[int, int]) -> tuple[int, ...]:
        """The shape of one value in a batch."""
        declared = self.fields[type_].shape
        shape: Sequence[int | None] = (None,) if declared is None else declared
        rest = tuple(size for size in shape if size is not None)
        return rest if type_ not in longest else (longest[type_] // math.prod(rest), *rest)

    def _gather(
        self, steps: Steps, values: Mapping[int, Any], present: Mapping[int, Any], lengths: Mapping[int, Int64]
    ) -> None:
        lanes, fields, n = self.view.lanes, self.fields, max(1, len(steps.ids) * steps.n_steps)
        columns = [
            (
                type_,
                fields[type_].is_float,
                0 if numbers is None else numbers.size // n,
                numbers,
                present[type_].view(np.uint8) if type_ in present else None,
                lengths.get(type_),
            )
            for type_, numbers in values.items()
        ]
        rows = self.view.first_row, self.view.rows
        which = steps.ids, steps.counts, steps.skips, steps.n_steps
        room = lanes.data.room, lanes.types.room, lanes.index.room
        bad = kernels.gather_steps(*room, *rows, *which, columns, steps.places, steps.sizes)
        self.check_kept(steps.ids)
        if bad >= 0:
            place, column = divmod(bad, len(columns))
            raise self._missing(int(steps.numbers.reshape(-1)[place]), fields[columns[column][0]])

    def check_kept(self, ids: Int64) -> None:
        """Refuse steps that were trimmed while they were read: they may be anything."""
        row = self.source.kept_row()
        if row == self.view.first_row or not len(ids):
            return
        kept = self.view.lanes.ordinal(row) if row < self.view.rows else self.span[1]
        if int(ids.min()) < kept:
            raise IndexError(
                f"step {int(ids.min()):,} has left the stream, which is kept from step {kept:,} on; refresh()"
            )

    def _missing(self, number: int, field: TokenField) -> SchemaError:
        row = self.view.row_not_below(TYPE, number << 8)
        step = int(self.view.lanes.index.room[row, 2])
        return SchemaError(
            f"step {step} (number {number:,} of the stream) has no field {field.name!r} of the declared shape; "
            "read other fields with fields=, or name it in optional= to have zeros there and `present` say so"
        )


def in_declared_dtype(field: TokenField, numbers: NDArray[Any]) -> NDArray[Any]:
    """The numbers in the dtype of their field: kernels know no halves."""
    return numbers.astype(np.float16) if field.dtype == "float16" else numbers


# What a user gets ------------------------------------------------------------------------------------------------


def nested(batch: Mapping[str, Any]) -> Batch:
    """Fields by name, with dotted names as nested mappings, unless what is before the dot is a field itself.

    >>> nested({"obs.x": 1, "obs.goal.0": 2, "action": 3})
    {'obs': {'x': 1, 'goal': {'0': 2}}, 'action': 3}
    """
    if not any("." in name or isinstance(value, Mapping) for name, value in batch.items()):
        return dict(batch)
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


def padded(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Rows with zeros behind them, as far as they are shorter than ``shape``."""
    return np.pad(values, [(0, 0), *((0, n - m) for n, m in zip(shape, values.shape[1:], strict=True))])
