"""TransitionSampler: transitions of one stream or several, drawn uniformly or by priority.

    streams (recorded by any processes) --refresh--> ids that are transitions --draw--> transitions_at --> one batch

An id of several streams is the number of the stream in the upper bits and the id of the step in the lower 44; of one
stream alone it is the id of the step. A stream keeps its number, so ids stay valid when others are added.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish.arguments import check_whole
from poolish.errors import ConfigError, ResumeError
from poolish.priorities import check_exponents
from poolish.replay.pacing import RateLimiter
from poolish.replay.stream_priorities import StreamPriorities
from poolish.seeds import generator
from poolish.tokens.steps import as_output, check_output
from poolish.tokens.store import StreamStore
from poolish.tokens.transitions import CONVENTIONS
from poolish.torch_bridge import on_host

Int64 = NDArray[np.int64]
Batch = dict[str, Any]

#: Where the number of the stream begins in an id.
STREAM_BIT = 44

STATE_VERSION = 1

#: How often a batch is drawn again whose steps left while it was read.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Prioritized:
    """Draw in proportion to priority ** ``alpha``, with importance weights to the power of ``beta``.

    >>> Prioritized(alpha=0.7)
    Prioritized(alpha=0.7, beta=0.4)
    """

    alpha: float = 0.6
    beta: float = 0.4

    def __post_init__(self) -> None:
        check_exponents(self.alpha, self.beta)


class TransitionSampler:
    """Batches of transitions from streams that other processes may be recording.

    ``sampler`` is ``"uniform"`` or ``Prioritized()``; the priorities of a stream lie in ``path``, a folder, and survive
    kills, or without a path in memory. Each call looks at what was recorded meanwhile. A ``limiter`` makes ``sample``
    wait for recorders, for ``timeout_s`` at most. ``transitions`` are options of ``store.transitions_at``: ``n_step``,
    ``gamma``, ``stack``, ``hindsight``, roles of fields.

    >>> from poolish import StreamStore
    >>> from poolish.replay import EpisodeWriter
    >>> names = ["obs", "action", "reward", "terminated", "truncated", "final_obs"]
    >>> store = StreamStore(fields=dict.fromkeys(names, "float32"))
    >>> writer = EpisodeWriter(store)
    >>> writer.begin([0.0])
    >>> for i in range(4):
    ...     writer.step([i + 1.0], action=[0], reward=1.0, terminated=i == 3)
    >>> batch = TransitionSampler([store]).sample(3, rng=np.random.default_rng(0))
    >>> batch["id"].tolist(), (batch["next_obs"] - batch["obs"]).tolist()
    ([3, 2, 2], [1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        streams: Sequence[StreamStore],
        sampler: str | Prioritized = "uniform",
        *,
        limiter: RateLimiter | None = None,
        timeout_s: float | None = None,
        path: str | os.PathLike[str] | None = None,
        seed: int = 0,
        **transitions: Any,
    ) -> None:
        if sampler != "uniform" and not isinstance(sampler, Prioritized):
            raise ConfigError(f"sampler={sampler!r}: 'uniform', or Prioritized(alpha=0.6, beta=0.4)")
        self._prioritized = sampler if isinstance(sampler, Prioritized) else None
        self._path = None if path is None else Path(path)
        self._rng = generator(seed, "sample transitions")
        self._limiter, self._timeout_s = limiter, timeout_s
        self._options = transitions
        self.streams: list[StreamStore] = []
        self._priorities: list[StreamPriorities] = []
        self.n_sampled = 0
        for stream in streams:
            self.add_stream(stream)

    def add_stream(self, stream: StreamStore) -> int:
        """Draw from one more stream; its number."""
        if any(stream.uuid == other.uuid for other in self.streams):
            raise ConfigError(f"{stream!r}: is drawn from already; pass each stream once")
        if self._prioritized is not None:
            path = None if self._path is None else self._path / f"{stream.uuid}.priorities"
            self._priorities.append(StreamPriorities(stream, path, alpha=self._prioritized.alpha, **self._roles()))
        self.streams.append(stream)
        return len(self.streams) - 1

    @property
    def is_prioritized(self) -> bool:
        """Whether transitions have priorities."""
        return self._prioritized is not None

    def __len__(self) -> int:
        """How many transitions there are to draw from."""
        self._refresh()
        return sum(self._counts())

    def __bool__(self) -> bool:
        return True

    # Drawing ------------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        *,
        rng: np.random.Generator | None = None,
        beta: float | None = None,
        output: str | None = None,
        device: Any = None,
    ) -> Batch:
        """Draw ``n`` transitions, with replacement; with priorities also their ``probability`` and ``weight``.

        The dict has obs, action, reward, next_obs, terminated, truncated, discount and id: NumPy arrays, or with
        ``output="torch"`` (or ``"jax"``) tensors, on a ``device``. Observations of several parts are dicts.
        """
        check_whole(n, "n", unit="transitions")
        if beta is not None and self._prioritized is None:
            raise ConfigError(f"beta={beta!r}: a uniform draw has no importance weights; pass sampler=Prioritized()")
        check_output(output, device)
        if self._limiter is None:
            return self._sampled(n, self._rng if rng is None else rng, beta, output, device)
        with self._limiter.sample(n, timeout_s=self._timeout_s):
            return self._sampled(n, self._rng if rng is None else rng, beta, output, device)

    def _sampled(self, n: int, rng: np.random.Generator, beta: float | None, output: str | None, device: Any) -> Batch:
        for _ in range(_ATTEMPTS):
            self._refresh()
            try:
                parts = [self._read(*drawn, rng) for drawn in self._draw(n, rng, beta)]
                break
            except IndexError as error:  # a recorder that trims its stream took a step between the draw and the read
                trimmed = error
        else:
            raise trimmed
        self.n_sampled += n
        return as_output(_joined(parts), output, device)

    def _read(self, number: int, ids: Int64, extra: Batch, rng: np.random.Generator) -> Batch:
        batch = self.streams[number].transitions_at(ids, rng=rng, **self._options)
        return {**batch, "id": ids + (number << STREAM_BIT), **extra}

    def _draw(self, n: int, rng: np.random.Generator, beta: float | None) -> list[tuple[int, Int64, Batch]]:
        """For each stream that has any: its number, the ids of its steps, and the columns of the draw."""
        if self._prioritized is None:
            return self._draw_uniformly(n, rng)
        return self._draw_by_priority(n, rng, self._prioritized.beta if beta is None else beta)

    def _draw_uniformly(self, n: int, rng: np.random.Generator) -> list[tuple[int, Int64, Batch]]:
        indexes = [stream.transition_ids(**self._roles()) for stream in self.streams]
        ends = np.cumsum([index.n for index in indexes])
        if not len(ends) or not ends[-1]:
            raise self._nothing()
        numbers = rng.integers(ends[-1], size=n)
        if len(ends) == 1:
            return [(0, indexes[0].select(numbers), {})]
        owners = np.searchsorted(ends, numbers, side="right")
        return [
            (int(owner), indexes[owner].select(numbers[owners == owner] - (ends[owner] - indexes[owner].n)), {})
            for owner in np.unique(owners)
        ]

    def _draw_by_priority(self, n: int, rng: np.random.Generator, beta: float) -> list[tuple[int, Int64, Batch]]:
        """Each stream gives its share of the draw, as if all priorities lay in one tree."""
        totals = np.array([priorities.total for priorities in self._priorities])
        if not totals.sum() > 0:
            raise self._nothing()
        smallest = min(each.smallest for each, total in zip(self._priorities, totals, strict=True) if total)
        marks = (rng.random(n) + np.arange(n)) * (totals.sum() / n)
        shares = np.bincount(np.searchsorted(np.cumsum(totals), marks, side="right").clip(max=len(totals) - 1))
        drawn = []
        for number in np.flatnonzero(shares).tolist():
            own = self._priorities[number]
            draw = own.sample(int(shares[number]), rng=rng, beta=beta)
            extra = {
                "probability": draw.probabilities * (totals[number] / totals.sum()),
                "weight": draw.weights * (smallest / own.smallest) ** beta,
            }
            drawn.append((number, draw.ids, extra))
        return drawn

    def _nothing(self) -> ConfigError:
        pending = sum(stream.n_steps for stream in self.streams)
        return ConfigError(
            f"no transition to draw from in {len(self.streams)} streams with {pending} steps; the newest step of a "
            "stream becomes one with the step behind it, or when its episode ends: record more, then sample"
        )

    # Priorities ---------------------------------------------------------------------------------------------------

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> Int64:
        """Give transitions new priorities; the ids that have left meanwhile. Of an id twice, the last one counts."""
        if self._prioritized is None:
            raise ConfigError("a uniform sampler has no priorities; pass sampler=Prioritized()")
        given = np.atleast_1d(np.asarray(on_host(ids)))
        values = np.broadcast_to(np.asarray(on_host(priorities), np.float64), given.shape)
        if len(self.streams) == 1:
            return self._priorities[0].update(given, values)
        owners = given >> STREAM_BIT
        if given.size and not 0 <= owners.min() <= owners.max() < len(self.streams):
            raise ConfigError(f"id {given[np.argmax(owners)]}: of a stream that is not drawn from")
        missing = [
            self._priorities[owner].update(given[owners == owner] & ((1 << STREAM_BIT) - 1), values[owners == owner])
            + (owner << STREAM_BIT)
            for owner in np.unique(owners).tolist()
        ]
        return np.concatenate([np.empty(0, np.int64), *missing])

    # Keeping ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The random numbers to come and how many were drawn; what the streams and side files hold is kept by them."""
        streams = [[stream.uuid, stream.branch_below(stream.step_span()[1])] for stream in self.streams]
        rng = self._rng.bit_generator.state
        return {"version": STATE_VERSION, "rng": rng, "n_sampled": self.n_sampled, "streams": streams}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue behind a state; a ResumeError if a stream has lost steps, or is another one."""
        if state.get("version") != STATE_VERSION:
            raise ResumeError(f"a state of version {state.get('version')!r}; this is version {STATE_VERSION}")
        self._refresh()
        held = {stream.uuid: stream for stream in self.streams}
        for uuid, branch in state["streams"]:
            if uuid not in held or not held[uuid].has_branch(branch):
                raise ResumeError(
                    f"stream {uuid} is not among the {len(held)} here, or lost steps that the state has seen; "
                    "open the streams that it was taken with"
                )
        self._rng.bit_generator.state = state["rng"]
        self.n_sampled = int(state["n_sampled"])

    def commit(self) -> None:
        """Make the priorities survive a power cut."""
        for priorities in self._priorities:
            priorities.commit()

    def close(self) -> None:
        """Commit and close the side files; the streams stay open."""
        for priorities in self._priorities:
            priorities.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refresh(self) -> None:
        for stream in self.streams:
            stream.refresh()

    def _roles(self) -> dict[str, Any]:
        """The options that decide which steps are transitions."""
        return {name: value for name, value in self._options.items() if name in _ROLES}

    def _counts(self) -> list[int]:
        if self._prioritized is not None:
            return [priorities.refresh() for priorities in self._priorities]
        return [stream.transition_ids(**self._roles()).n for stream in self.streams]


_ROLES = {*CONVENTIONS, "stack", "repeat_final"}


def _joined(parts: list[Batch]) -> Batch:
    """The batches of several streams as one."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: _joined([part[name] for part in parts])
        if isinstance(values, Mapping)
        else np.concatenate([part[name] for part in parts])
        for name, values in parts[0].items()
    }
