"""What happens to a batch between reading and the trainer: a function of the user's, and the row ids as a column.

    read, collate --> transform --> ids column --> pinned memory, device        without a guard: where reading happens
    read, collate --> guard --> transform --> ids column --> device             with one: in the trainer's thread

A guard judges rows as they were read, and remembers them in the order of delivery, so a transform has to wait for it:
it sees only rows that the guard has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from poolish import seeds, torch_bridge
from poolish.errors import ConfigError
from poolish.load.batch import Origin, is_structure, labelled, length_of, named_columns
from poolish.load.frozen import Int64
from poolish.load.planner import LoaderPosition
from poolish.load.views.single import extra_arguments, n_epochs, name_of, progress_at
from poolish.torch_bridge import DeviceStage


class Shaped(NamedTuple):
    """A batch, and the rows that it is made of; None where a transform made other rows of them."""

    content: Any
    ids: Int64 | None


class BatchTransform:
    """A function from batch to batch.

    If it names ``rng``, it gets a generator that follows from seed, epoch, step and rank; if it names ``progress``, how
    far the epochs have come.
    """

    def __init__(self, fn: Callable[..., Any], seed: int, epochs: int | None, rank: int) -> None:
        self._fn, self._seed, self._epochs, self._rank = fn, seed, n_epochs(epochs), rank
        self._extra = extra_arguments(fn, self._epochs, "Loader(transform=)")

    def __call__(self, content: Any, origin: Origin, epoch: int) -> Any:
        try:
            made = self._fn(labelled(content, origin, origin.ids), **self._given(epoch, origin.step))
            if made is None:
                raise ConfigError(
                    f"transform={name_of(self._fn)} returned None; return the batch, also where it is changed in place"
                )
            return made
        except Exception as error:
            which = f"step {origin.step}, {rows_named(origin.ids)}"
            error.add_note(f"while transforming the batch of {which}, with {name_of(self._fn)}")
            raise

    def _given(self, epoch: int, step: int) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if "rng" in self._extra:
            given["rng"] = seeds.generator(self._seed, "batch transform", epoch, step, self._rank)
        if "progress" in self._extra:
            given["progress"] = progress_at(epoch, self._epochs)
        return given


class BatchShaper:
    """Transforms batches and adds their row ids, whichever of the two is wanted."""

    def __init__(self, transform: BatchTransform | None, ids_name: str | None, output: str) -> None:
        self._transform, self._ids_name, self._output = transform, ids_name, output

    @property
    def transforms(self) -> bool:
        """Whether the user's code runs here."""
        return self._transform is not None

    def shape(self, content: Any, ids: Int64, place: LoaderPosition) -> Shaped:
        """The batch of the step behind ``place``, read from these rows, as the trainer gets it."""
        if self._ids_name is not None:
            self._check_free(content)
        if self._transform is None:
            self._check_rows(content, ids)
            return Shaped(self._with_ids(content, ids), ids)
        before = _sizes(content)
        content = self._transform(content, Origin(ids, place.position, place.step), place.epoch)
        known = ids if _keeps_rows(before, _sizes(content), len(ids)) else None
        if self._ids_name is None:
            return Shaped(content, known)
        if isinstance(content, Mapping) and self._ids_name in content:  # the transform says which rows are left
            return Shaped(content, self._checked(content, ids))
        if known is None:
            raise ConfigError(
                f"the transform made other rows of the {len(ids)} of step {place.step}, and ids= needs the id of each; "
                f"return a column {self._ids_name!r} with them, such as batch.ids[kept]"
            )
        return Shaped(self._with_ids(content, known), known)

    # -- ids

    def _check_free(self, content: Any) -> None:
        if isinstance(content, Mapping) and self._ids_name in content:
            raise ConfigError(
                f"ids={self._ids_name!r}: the batch has a column of that name already; give the ids another name, such "
                f'as ids="row_{self._ids_name}"'
            )

    def _with_ids(self, content: Any, ids: Int64) -> Any:
        if isinstance(content, Mapping):
            return {**content, self._ids_name: self._column(ids)}
        if isinstance(content, tuple) and not is_structure(content):
            return (*content, self._column(ids))
        kind = type(content).__name__
        raise ConfigError(
            f"ids={self._ids_name!r}: a batch of {kind} has no room for a column more; return a dict or a tuple from "
            "transform= or collate_fn=, or leave ids= out and use loader.origin.ids"
        )

    def _column(self, ids: Int64) -> Any:
        if self._output == "arrow":
            return pa.array(ids)
        copied = ids.copy()  # the trainer may change it; ours say what is in flight
        return torch_bridge.from_array(copied) if self._output == "torch" else copied

    def _check_rows(self, content: Any, ids: Int64) -> None:
        """Refuse ids beside columns of another number of rows: the numbers of both would seem to match."""
        sizes = {size for name, size in _sizes(content).items() if name != self._ids_name}
        if len(sizes) == 1 and len(ids) not in sizes:
            raise ConfigError(
                f"ids={self._ids_name!r}: the batch has {sizes.pop()} rows and {len(ids)} ids, so it is not known "
                "which id is whose; return a row for each sample from collate_fn=, or let transform= return both"
            )

    def _checked(self, content: Mapping[str, Any], ids: Int64) -> Int64:
        """The ids that a transform returned, if they are some of those that it was given, one for each row."""
        known = row_ids(content[str(self._ids_name)])
        if known is None or not np.isin(known, ids).all():
            raise ConfigError(
                f"the transform returned a column {self._ids_name!r} that is not made of ids of its batch; take them "
                "from batch.ids"
            )
        self._check_rows(content, known)
        return known


class LateShaper:
    """The same in the trainer's thread, for batches that a guard has seen."""

    def __init__(self, shaper: BatchShaper, stage: DeviceStage | None) -> None:
        self._shaper, self._stage = shaper, stage

    def shape(self, content: Any, ids: Int64, place: LoaderPosition) -> Shaped:
        """The batch as the trainer gets it, on the device."""
        shaped = self._shaper.shape(content, ids, place)
        if self._stage is None:
            return shaped
        return shaped._replace(content=self._stage.finish(self._stage.begin(shaped.content)))


def row_ids(values: Any) -> Int64 | None:
    """An array, tensor (on any device) or list of row ids as an array; None if it is something else."""
    values = torch_bridge.on_host(values)
    if not isinstance(values, np.ndarray):
        is_column = isinstance(values, (pa.Array, pa.ChunkedArray))
        if not is_column and not (isinstance(values, list) and all(type(value) is int for value in values)):
            return None
        values = np.asarray(values, np.int64) if not len(values) else np.asarray(values)
    return values.astype(np.int64) if values.ndim == 1 and values.dtype.kind in "iu" else None


def ids_in(batch: Any, name: str | None) -> Int64 | None:
    """The row ids that a batch carries as the column ``name``, or that are passed in its place; None if there are none.

    >>> ids_in({"x": [0.5, 1.5], "ids": np.array([3, 1])}, "ids")
    array([3, 1])
    """
    if isinstance(batch, Mapping):
        return row_ids(batch[name]) if name is not None and name in batch else None
    if isinstance(batch, tuple):
        return row_ids(batch[-1]) if name is not None and len(batch) and not is_structure(batch) else None
    return row_ids(batch)


def rows_named(ids: Int64) -> str:
    """The first of some rows, for a message.

    >>> rows_named(np.array([3])), rows_named(np.arange(9))
    ('row 3', 'rows 0, 1, 2, 3, 4, ...')
    """
    shown = ", ".join(map(str, ids[:5].tolist())) + (", ..." if len(ids) > 5 else "")
    return f"{'row' if len(ids) == 1 else 'rows'} {shown}"


def _sizes(content: Any) -> dict[str, int]:
    """How many rows each column has; single values have none."""
    found = ((name, length_of(values)) for name, values in named_columns(content))
    return {name: n for name, n in found if n is not None}


def _keeps_rows(before: dict[str, int], after: dict[str, int], n_rows: int) -> bool:
    """Whether what had a value for each row still has, or something else has."""
    if any(size == n_rows != after.get(name, n_rows) for name, size in before.items()):
        return False
    return n_rows in after.values() or not after
