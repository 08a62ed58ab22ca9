"""Which rows an epoch is made of, where that is neither all of them nor ready-made batches: weights, or a sampler.

    weights   an epoch of n draws with replacement, each row as often as its weight says
    sampler   the row numbers that an iterable gives, in its order

Both are drawn as a whole when the epoch begins, from the loader's seed and the epoch alone, and cut into batches. So
any batch can be asked for, on any rank, and a state needs the number of the batch. It also holds a checksum of the
draw: weights or a sampler that give something else when the run resumes are an error, not another order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from poolish import seeds, torch_bridge
from poolish.errors import ConfigError, ResumeError
from poolish.files import checksum_hex
from poolish.load.dataset import samples
from poolish.load.frozen import Int64
from poolish.load.views.transformed import progress_at
from poolish.rows.snapshot import Snapshot

#: From the rows of an epoch and its number to the numbers of the rows that it is made of.
Draw = Callable[[Any, int], Int64]

_ASKED = ("rows", "epoch", "progress")


class SampledBatches:
    """Batches of the rows that ``draw`` gives for an epoch; the last one may be short."""

    def __init__(self, draw: Draw, batch_size: int, *, drop_last: bool, world_size: int) -> None:
        self._draw, self._batch_size = draw, batch_size
        #: With drop_last all ranks have as many batches, all of them full.
        self._multiple = world_size if drop_last else 0
        self._numbers = np.empty(0, np.int64)
        self.checksums: dict[int, str] = {}

    def draw(self, rows: Any, epoch: int) -> None:
        """Begin an epoch."""
        self._numbers = self._draw(rows, epoch)
        self.checksums = {**self.checksums, epoch: checksum_hex(str(self._batch_size).encode(), self._numbers.data)}

    def __len__(self) -> int:
        n_rows, size = len(self._numbers), self._batch_size
        return n_rows // size // self._multiple * self._multiple if self._multiple else -(-n_rows // size)

    def __getitem__(self, k: int) -> Int64:
        return self._numbers[k * self._batch_size : (k + 1) * self._batch_size]

    def check_same(self, epoch: int, expected: str | None) -> None:
        """Refuse a state of another draw of the epoch."""
        if expected is not None and expected != self.checksums.get(epoch):
            raise ResumeError(
                f"the weights or the sampler draw other rows for epoch {epoch} than when the state was taken, or the "
                "batch size is another; weights that change while training belong into the checkpoint: restore them "
                "before load_state_dict(), and give a sampler of your own a set_epoch(epoch) that decides its order"
            )


# Weights ------------------------------------------------------------------------------------------------------------


def weighted(weights: Any, seed: int, epochs: int | None) -> Draw:
    """As many draws as there are rows, with replacement, each row in proportion to its weight."""
    of_epoch = _weights_of(weights, epochs)

    def draw(rows: Any, epoch: int) -> Int64:
        found = _check_weights(of_epoch(rows, epoch), len(rows))
        ends = np.cumsum(found)
        points = seeds.generator(seed, "weights", epoch).random(len(found)) * ends[-1:]
        # Rounding may carry a point to the very end: that is the last row with a weight.
        last = np.flatnonzero(found)[-1:]
        numbers: Int64 = np.minimum(np.searchsorted(ends, points, side="right"), last).astype(np.int64)
        return numbers

    return draw


def _weights_of(weights: Any, epochs: int | None) -> Callable[[Any, int], Any]:
    if isinstance(weights, str):
        return lambda rows, epoch: _column(rows, weights)
    if not callable(weights):
        fixed = np.array(weights, np.float64)  # as they are now
        return lambda rows, epoch: fixed
    names = inspect.signature(weights).parameters
    if not names or any(name not in _ASKED for name in names):
        raise ConfigError(
            f"weights: the function takes {', '.join(names) or 'nothing'}; it may name {', '.join(_ASKED)}"
        )
    if "progress" in names and epochs is None:
        raise ConfigError("weights: the function asks for progress; say over how many epochs it goes: epochs=...")

    def called(rows: Any, epoch: int) -> Any:
        given = {"rows": rows, "epoch": epoch, "progress": progress_at(epoch, epochs)}
        return weights(**{name: given[name] for name in names})

    return called


def _column(rows: Any, name: str) -> Any:
    if isinstance(rows, Snapshot):
        table = rows.to_arrow()
        if name not in table.column_names:
            raise ConfigError(f"weights={name!r}: there is no such column, only {table.column_names}")
        return table[name].to_numpy()
    try:
        return [_value(sample, name) for sample in samples(rows, range(len(rows)))]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"weights={name!r}: the samples have no such column ({error}); pass an array") from None


def _value(sample: Any, name: str) -> Any:
    return sample[name] if hasattr(sample, "keys") else getattr(sample, name)


def _check_weights(weights: Any, n_rows: int) -> Any:
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"weights are numbers, one for each row: {error}") from None
    if found.shape != (n_rows,):
        raise ConfigError(f"weights: one for each of {n_rows:,} rows, got an array of shape {found.shape}")
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(wrong):
        raise ConfigError(f"weights: finite and 0 or more, row {wrong[0]} has {found[wrong[0]]}")
    if n_rows and not found.any():
        raise ConfigError(f"weights: all {n_rows:,} are 0, so no row can be drawn")
    return found


# Samplers -----------------------------------------------------------------------------------------------------------


def sampled(sampler: Any, seed: int) -> Draw:
    """The row numbers of a sampler, in its order, repeatable where it draws from torch."""
    if not hasattr(sampler, "__iter__"):
        raise ConfigError(f"sampler={sampler!r}: an iterable of row numbers, such as a sampler of torch")
    if iter(sampler) is sampler:
        raise ConfigError("sampler: an iterator gives its numbers once; pass a list, or an object with __iter__")
    if getattr(sampler, "num_replicas", 1) > 1:
        raise ConfigError(
            f"sampler: {type(sampler).__name__} deals rows to {sampler.num_replicas} ranks, and so does the loader, by "
            "rank= and world_size=; pass a sampler of all rows, or shuffle=True"
        )

    def draw(rows: Any, epoch: int) -> Int64:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with _torch_seeded(seed, epoch, getattr(sampler, "generator", None)):
            numbers = list(sampler)
        try:
            found = np.asarray(numbers if numbers else [], None if numbers else np.int64)
        except ValueError:
            found = np.empty((0, 0))
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise ConfigError(
                f"sampler: {type(sampler).__name__} gives {type(numbers[0]).__name__}, and not row numbers; "
                "whole batches are for batches="
            )
        return found.astype(np.int64)

    return draw


@contextmanager
def _torch_seeded(seed: int, epoch: int, generator: Any) -> Iterator[None]:
    """Torch's samplers draw from its global state or from a generator: both begin where the seed and epoch say."""
    torch = torch_bridge.loaded()
    if torch is None:
        yield
        return
    own = generator if isinstance(generator, torch.Generator) else None
    key = seeds.key(seed, "sampler", epoch, own.initial_seed() if own is not None else 0) % 2**63
    before = None if own is None else own.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(key)
        if own is not None:
            own.manual_seed(key)
        try:
            yield
        finally:
            if own is not None:
                own.set_state(before)
