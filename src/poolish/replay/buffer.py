"""ReplayBuffer: the replay buffer of an off-policy learner in one object, over streams.

    add -> EpisodeWriter of the environment -> its stream -> TransitionSampler -> sample
                                                |   priorities, in a side file  <-- update_priorities

Nothing is stored twice: the observation after a step is that of the next one, n-step returns and hindsight goals are
made when a batch is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish.arguments import check_whole
from poolish.errors import ConfigError, SchemaError
from poolish.replay.episodes import EpisodeWriter, final_name
from poolish.replay.pacing import RateLimiter
from poolish.replay.sampler import Prioritized, TransitionSampler
from poolish.tokens.fields import TokenField, fields_of
from poolish.tokens.specs import flat_values
from poolish.tokens.store import StreamStore

Int64 = NDArray[np.int64]

#: What each transition has beside observations, actions and what the user adds.
OUTCOME = {"reward": "float32", "terminated": "bool", "truncated": "bool"}


_UNPACED = nullcontext()


class ReplayBuffer:
    """The newest ``capacity`` steps of ``n_envs`` environments, and batches of transitions from them.

    ``spec`` describes ``obs``, ``action`` and further columns as the fields of a stream. ``add`` takes one transition
    of each environment. With a ``path``, what ``add`` returned for survives ``kill -9``, and the same line opens the
    buffer again, with its transitions and priorities. The newest transition of an environment can be drawn when the
    next one comes, or its episode ends. With a ``limiter``, ``add`` and ``sample`` wait for each other, in different
    threads, for ``timeout_s`` at most. The observation at the end of an episode counts towards the capacity.

    >>> buffer = ReplayBuffer(1_000, {"obs": ("float32", (2,)), "action": "int64"}, sampler=Prioritized(), n_step=3)
    >>> obs = np.zeros(2)
    >>> for i in range(10):
    ...     buffer.add(obs=obs, action=0, reward=1.0, next_obs=obs + 1, terminated=i == 9)
    ...     obs = obs + 1
    >>> batch = buffer.sample(32)
    >>> batch["obs"].shape, sorted(set(batch["reward"].tolist()))
    ((32, 2), [1.0, 1.99..., 2.97...])
    >>> buffer.update_priorities(batch["id"], np.abs(batch["reward"]))
    array([], dtype=int64)
    """

    def __init__(
        self,
        capacity: int,
        spec: Any,
        *,
        sampler: str | Prioritized = "uniform",
        limiter: RateLimiter | None = None,
        timeout_s: float | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        her: Any = None,
        path: str | os.PathLike[str] | None = None,
        n_envs: int = 1,
        seed: int = 0,
    ) -> None:
        self.capacity, self.n_envs = check_whole(capacity, "capacity", unit="steps"), check_whole(n_envs, "n_envs")
        if self.capacity < self.n_envs:
            raise ConfigError(f"capacity={capacity}: fewer steps than the {n_envs} environments")
        fields, self._extra = _fields(spec)
        self._obs, self._action = (
            dict.fromkeys([f for f in fields if f.split(".")[0] == name], 0) for name in ("obs", "action")
        )
        folder = None if path is None else Path(path)
        self.streams = _open_streams(folder, fields, self.n_envs, self.capacity // self.n_envs)
        self._writers = [EpisodeWriter(stream, [*self._obs], [*self._action]) for stream in self.streams]
        options: dict[str, Any] = {"n_step": n_step, "gamma": gamma}
        if her is not None:
            options["hindsight"] = her
        self._limiter, self._timeout_s = limiter, timeout_s
        options |= {"limiter": limiter, "timeout_s": timeout_s, "seed": seed}
        self._sampler = TransitionSampler(
            self.streams, sampler, path=None if folder is None else folder / "priorities", **options
        )
        self._count_what_is_there()

    def _count_what_is_there(self) -> None:
        """For a limiter that has counted nothing, what an earlier process added is enough to sample from."""
        limiter, held = self._limiter, sum(stream.n_steps for stream in self.streams)
        if limiter is None:
            return
        if limiter.min_size_to_sample > self.capacity:
            raise ConfigError(f"capacity={self.capacity}: {limiter!r} waits for more, so sample() would wait for ever")
        if held and not limiter.inserts:
            limiter.inserted(min(held, limiter.min_size_to_sample))

    # Adding -------------------------------------------------------------------------------------------------------

    def add(
        self,
        *,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any = False,
        **extra: Any,
    ) -> None:
        """Add one transition; with several environments one of each, as arrays over the environments.

        An ``obs`` that is not the last ``next_obs`` of its environment begins a new episode.
        """
        given = obs, action, reward, next_obs, terminated, truncated, extra
        with self._paced(self.n_envs):
            if self.n_envs == 1:
                self._add(0, *given)
            else:
                for i in range(self.n_envs):
                    self._add(i, *(_of_env(each, i) for each in given))

    def _paced(self, n: int) -> AbstractContextManager[None]:
        """Wait until the limiter admits n transitions."""
        return _UNPACED if self._limiter is None else self._limiter.insert(n, timeout_s=self._timeout_s)

    def _add(self, env: int, *given: Any) -> None:
        obs, action, reward, after, terminated, truncated, extra = given
        writer, parts = self._writers[env], _parts("obs", obs, self._obs)
        if not writer.continues(parts):
            writer.begin(parts)
        writer.step(
            _parts("obs", after, self._obs),
            action=_parts("action", action, self._action),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            extra=extra,
        )

    def extend(
        self,
        *,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any = None,
        env: int = 0,
        **extra: Any,
    ) -> None:
        """Add n transitions of one environment in the order in which they happened, as arrays of n."""
        terminated = np.asarray(terminated, np.bool_)
        truncated = np.zeros_like(terminated) if truncated is None else np.asarray(truncated, np.bool_)
        before = [np.asarray(part) for part in _parts("obs", obs, self._obs)]
        after = [np.asarray(part) for part in _parts("obs", next_obs, self._obs)]
        actions, rewards = [np.asarray(part) for part in _parts("action", action, self._action)], np.asarray(reward)
        n = len(terminated)
        if any(len(each) != n for each in (*before, *after, *actions, rewards, truncated, *extra.values())):
            raise SchemaError(f"extend: columns of different lengths; pass {n} of each, as of terminated")
        ends = terminated | truncated
        for one, other in zip(before, after, strict=True):
            ends[:-1] |= _differ(one[1:], other[:-1])
        columns = {"reward": rewards, "terminated": terminated, "truncated": truncated}
        added = {name: np.asarray(values) for name, values in extra.items()}
        with self._paced(max(n, 1)):
            for low, high in _between(np.flatnonzero(ends) + 1, n):
                seen = [
                    np.append(one[low:high], two[high - 1 : high], 0) for one, two in zip(before, after, strict=True)
                ]
                self._writers[env].steps(
                    seen,
                    action=[each[low:high] for each in actions],
                    **{name: column[low:high] for name, column in columns.items()},
                    extra={name: column[low:high] for name, column in added.items()},
                    ends=bool(ends[high - 1]),
                )

    # Sampling -----------------------------------------------------------------------------------------------------

    def sample(
        self,
        batch_size: int,
        *,
        rng: np.random.Generator | None = None,
        beta: float | None = None,
        output: str | None = None,
        device: Any = None,
    ) -> dict[str, Any]:
        """Draw transitions with replacement; see ``TransitionSampler.sample`` for what is in the dict."""
        return self._sampler.sample(batch_size, rng=rng, beta=beta, output=output, device=device)

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> Int64:
        """Give transitions new priorities by the ``id`` of a batch; the ids that have left meanwhile."""
        return self._sampler.update_priorities(ids, priorities)

    def __len__(self) -> int:
        """How many transitions there are to draw from."""
        return len(self._sampler)

    def __bool__(self) -> bool:
        return True

    @property
    def n_added(self) -> int:
        """How many transitions were ever added."""
        return sum(stream.step_span()[1] for stream in self.streams)

    @property
    def n_sampled(self) -> int:
        """How many transitions were drawn, since the buffer was made or the state that was loaded began."""
        return self._sampler.n_sampled

    # Keeping ------------------------------------------------------------------------------------------------------

    def end_episodes(self) -> None:
        """End the episodes that go on where they are: so their newest transitions can be drawn."""
        for writer in self._writers:
            writer.end()

    def commit(self) -> None:
        """Make everything added and updated so far survive a power cut."""
        for stream in self.streams:
            stream.commit()
        self._sampler.commit()

    def close(self) -> None:
        """Commit and close. A buffer without a path is gone then."""
        self._sampler.close()
        for stream in self.streams:
            stream.close()

    def state_dict(self) -> dict[str, Any]:
        """The random numbers to come, the counts, and how far the streams reach; transitions are kept by ``path``."""
        limiter = None if self._limiter is None else self._limiter.state_dict()
        return {**self._sampler.state_dict(), "capacity": self.capacity, "limiter": limiter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue behind a state that was taken of this buffer, opened again at its path."""
        self._sampler.load_state_dict(state)
        if self._limiter is not None and state["limiter"] is not None:
            self._limiter.load_state_dict(state["limiter"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReplayBuffer of {len(self):,} transitions, capacity {self.capacity:,}>"

    def __reduce__(self) -> str:
        raise TypeError(
            "a ReplayBuffer cannot be copied or pickled; give it a path=, and the same line opens it again in another "
            "process, with its transitions and priorities"
        )


def _fields(spec: Any) -> tuple[dict[str, TokenField], list[str]]:
    """The fields of a stream of transitions, in order, and the names of what the user added."""
    given = {field.name: field for field in fields_of(spec)}
    names = {name.split(".")[0] for name in given}
    if not {"obs", "action"} <= names:
        raise SchemaError(f"spec: describe 'obs' and 'action', got {sorted(given)}")
    for name, field in given.items():
        if field.shape is None or None in field.shape:
            raise SchemaError(
                f"spec, {name!r}: a capacity in steps needs a shape, such as ('float32', (4,)); got {field}"
            )
    outcome = {field.name: field for field in fields_of(OUTCOME)}
    finals = {final_name(name): given[name] for name in _of_kind("obs", given)}
    extra = [name for name in given if name.split(".")[0] not in ("obs", "action") and name not in outcome]
    fields = {**{name: field for name, field in given.items() if name not in outcome}, **outcome, **given, **finals}
    return {name: replace(field, name=name) for name, field in fields.items()}, extra


def _open_streams(folder: Path | None, fields: Mapping[str, TokenField], n: int, capacity: int) -> list[StreamStore]:
    """A stream for each environment, with room for ``capacity`` steps."""
    held = [] if folder is None else sorted(folder.glob("env-*"))
    if held and len(held) != n:
        raise ConfigError(
            f"{folder}: holds the transitions of {len(held)} environments; open it with n_envs={len(held)}"
        )
    finals = {final_name(name) for name in fields if name.split(".")[0] == "obs"}
    shapes = [field.shape or () for name, field in fields.items() if name not in finals]
    width = sum(math.prod(size or 0 for size in shape) for shape in shapes)
    return [
        StreamStore(
            None if folder is None else folder / f"env-{i:05d}", fields=dict(fields), max_tokens=capacity * width
        )
        for i in range(n)
    ]


def _of_kind(kind: str, fields: Mapping[str, TokenField]) -> dict[str, int]:
    """The names of the fields that make up an observation, or an action."""
    return dict.fromkeys([name for name in fields if name.split(".")[0] == kind], 0)


def _parts(name: str, value: Any, fields: Mapping[str, int]) -> list[Any]:
    """The values of the fields ``obs``, or ``obs.goal`` and ``obs.seen``, out of one value or nested ones."""
    if name in fields:
        return [value]
    flat = flat_values({name: value}, fields)
    if flat.keys() != fields.keys():
        raise SchemaError(f"{name!r} has the parts {list(fields)}, got {list(flat)}")
    return [flat[field] for field in fields]


def _between(cuts: Int64, n: int) -> list[tuple[int, int]]:
    """The pieces of ``range(n)`` between cuts.

    >>> _between(np.array([2, 5]), 5), _between(np.array([3]), 4)
    ([(0, 2), (2, 5)], [(0, 3), (3, 4)])
    """
    edges = sorted({0, *cuts.tolist(), n})
    return list(pairwise(edges))


def _differ(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are not the same; NaN is the same as NaN."""
    is_other = (one != other) & ((one == one) | (other == other))
    return np.asarray(is_other.any(axis=tuple(range(1, is_other.ndim))))


def _of_env(values: Any, i: int) -> Any:
    """What belongs to environment ``i``, of arrays over the environments in dicts and tuples."""
    if isinstance(values, Mapping):
        return {name: _of_env(each, i) for name, each in values.items()}
    if isinstance(values, tuple):
        return tuple(_of_env(each, i) for each in values)
    return values[i] if np.ndim(values) else values
