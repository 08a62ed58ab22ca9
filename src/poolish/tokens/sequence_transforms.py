"""Transforms of sequences of steps: what is added to them, or replaced, when they are read.

They are applied one after the other to the fields of a batch, before nested names are taken apart. Each may read more
than the sequence holds: what its episode holds before and behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from poolish.arguments import check_whole
from poolish.errors import ConfigError, SchemaError
from poolish.tokens.steps import Batch, StepReader, Steps
from poolish.tokens.transforms import advantages, check_fraction, reward_to_go, stack_ids
from poolish.tokens.transitions import CONVENTIONS, group_of

Int64 = NDArray[np.int64]


class SequenceContext:
    """The sequences that are being read, and the episodes around them."""

    def __init__(
        self, reader: StepReader, ids: Mapping[str, int], steps: Steps, bounds: Callable[[Int64], tuple[Int64, Int64]]
    ) -> None:
        self.reader, self.steps, self._ids = reader, steps, ids
        self.begins, ends = bounds(steps.ids)
        counts = ends - steps.ids
        #: The same sequences, but to the end of their episodes.
        self.tails = Steps(steps.ids, counts, np.zeros_like(counts), int(counts.max(initial=0)))

    def find(self, role: str, given: str | None) -> str | None:
        """The field that plays a role, or None."""
        if given is not None:
            return self.fields(given)[0]
        return next((name for name in CONVENTIONS[role] if name in self._ids), None)

    def fields(self, name: str) -> list[str]:
        """The fields that a name stands for."""
        found = group_of(self._ids, name)
        if not found:
            raise SchemaError(f"no field {name!r} for a transform; there are {list(self._ids)}")
        return [self.reader.fields[type_].name for type_ in found.values()]

    def read(self, steps: Steps, names: Sequence[str], optional: Sequence[str] = ()) -> Batch:
        """Fields of other steps."""
        return self.reader.read(steps, [self._ids[name] for name in names], [self._ids[name] for name in optional])

    def numbers(self, name: str) -> NDArray[Any]:
        """A field of one number a step, to the ends of the episodes; zeros behind them."""
        values: NDArray[Any] = self.read(self.tails, [name])[name]
        if values.ndim != 2:
            raise SchemaError(f"field {name!r} holds {values.shape[2:]} numbers a step; this transform needs one")
        return values

    def required(self, role: str, given: str | None) -> str:
        """The field that plays a role, or an error that says how to name it."""
        name = self.find(role, given)
        if name is None:
            raise SchemaError(f"this transform needs {role}=: none of {list(self._ids)} is it by its name")
        return name

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the tails in the places of the sequences."""
        placed = np.zeros((len(values), self.steps.n_steps), values.dtype)
        rows = np.arange(len(values))[:, None]
        inside = np.arange(self.steps.n_steps) - self.steps.skips[:, None]
        mask = self.steps.mask
        placed[mask] = values[rows, np.clip(inside, 0, max(0, values.shape[1] - 1))][mask]
        return placed


class Transform(Protocol):
    """Changes the fields of a batch of sequences."""

    def apply(self, batch: Batch, context: SequenceContext) -> None:
        """Add to the batch, or replace what is in it."""


@dataclass(frozen=True)
class RewardToGo:
    """Adds ``return_to_go`` to sequences: the discounted rewards from each step to the end of its episode.

    In an episode that is still open, or was broken off, those that were recorded.
    """

    gamma: float = 1.0
    reward: str | None = None

    def __post_init__(self) -> None:
        check_fraction(self.gamma, "gamma")

    def apply(self, batch: Batch, context: SequenceContext) -> None:
        """Add ``return_to_go``."""
        rewards = context.numbers(context.required("reward", self.reward))
        batch["return_to_go"] = context.spread(_like(reward_to_go(rewards.astype(np.float64), self.gamma), rewards))


@dataclass(frozen=True)
class GAE:
    """Adds ``advantage`` and ``value_target`` to sequences, from the values that were recorded with the steps.

    Behind a step that terminated its episode the value is 0; behind one that truncated it, what ``final_value``
    recorded with that step. The newest step of an episode that is open, or was broken off, has no value behind it:
    ``mask`` is false there.
    """

    gamma: float = 0.99
    lam: float = 0.95
    value: str = "value"
    final_value: str | None = None
    reward: str | None = None
    terminated: str | None = None
    truncated: str | None = None

    def __post_init__(self) -> None:
        check_fraction(self.gamma, "gamma")
        check_fraction(self.lam, "lam")

    def apply(self, batch: Batch, context: SequenceContext) -> None:
        """Add ``advantage`` and ``value_target``."""
        rewards = context.numbers(context.required("reward", self.reward))
        given = context.numbers(context.fields(self.value)[0])
        values, counts, rows = given.astype(np.float64), context.tails.counts, np.arange(len(given))
        terminated, truncated = self._ends(context)
        behind = np.concatenate([values[:, 1:], np.zeros((len(values), 1))], axis=1)
        behind[rows, counts - 1] = 0
        behind[truncated] = self._final_values(context, truncated)
        is_known = context.tails.mask
        is_known[rows, counts - 1] = (terminated | truncated)[rows, counts - 1]
        goes_on = np.concatenate([is_known[:, 1:], np.zeros((len(values), 1), np.bool_)], axis=1)
        found = advantages(rewards.astype(np.float64), values, behind, goes_on, self.gamma, self.lam)
        found = np.where(is_known, found, 0)
        batch["advantage"] = context.spread(_like(found, given))
        batch["value_target"] = context.spread(_like(np.where(is_known, found + values, 0), given))
        batch["mask"] &= context.spread(is_known)

    def _ends(self, context: SequenceContext) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which steps of the tails terminated their episodes, and which truncated them: only last ones may."""
        terminated = context.numbers(context.required("terminated", self.terminated)) != 0
        name = context.find("truncated", self.truncated)
        truncated = (context.numbers(name) != 0) & ~terminated if name is not None else np.zeros_like(terminated)
        is_last = np.arange(terminated.shape[1]) == context.tails.counts[:, None] - 1
        if ((terminated | truncated) & ~is_last).any():
            raise ConfigError(
                "GAE: an episode goes on behind a step that terminated or truncated it; name all fields that end one, "
                "as in "
                "within=('terminated', 'truncated')"
            )
        return terminated, truncated

    def _final_values(self, context: SequenceContext, truncated: NDArray[np.bool_]) -> NDArray[Any]:
        """The values behind the steps that truncated their episodes."""
        numbers = context.tails.numbers[truncated]
        if not len(numbers):
            return np.empty(0)
        if self.final_value is None:
            raise ConfigError(
                f"GAE: step {int(numbers[0]):,} truncated its episode, and the value behind it is not known; record it "
                "with that "
                "step and name the field, as in GAE(final_value='final_value')"
            )
        name = context.fields(self.final_value)[0]
        values: NDArray[Any] = context.read(Steps.single(numbers), [name])[name][:, 0]
        return values


@dataclass(frozen=True)
class FrameStack:
    """Replaces a field of sequences by stacks of the newest ``n`` frames, in a new axis before the field's own.

    Before the first step of an episode its first frame repeats. Only single frames are stored.
    """

    field: str
    n: int = 4

    def __post_init__(self) -> None:
        check_whole(self.n, "n", unit="frames")

    def apply(self, batch: Batch, context: SequenceContext) -> None:
        """Replace single frames by stacks, where the batch has them."""
        steps, reader = context.steps, context.reader
        mask, first = steps.mask, reader.span[0]
        begins = np.broadcast_to(context.begins[:, None], mask.shape)[mask]
        numbers = steps.numbers[mask]
        frames = stack_ids(numbers, begins, self.n)
        for name in context.fields(self.field):
            single = context.read(Steps.single(frames.reshape(-1)), [name])[name][:, 0]
            stacked = np.zeros((*mask.shape, self.n, *single.shape[1:]), single.dtype)
            stacked[mask] = single.reshape(*frames.shape, *single.shape[1:])
            batch[name] = stacked
        if first:  # of the episode that was cut by trimming, the frames before the first that is kept are gone
            batch["mask"][mask] &= (begins > first) | (numbers >= first + self.n - 1)


def _like(numbers: NDArray[np.float64], given: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the precision of those they were made of."""
    return numbers.astype(given.dtype) if given.dtype.kind == "f" else numbers
