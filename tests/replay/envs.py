"""Environments that can be checked by heart, and the transitions of a stream as a plain loop reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from poolish import StreamStore


class Transition(NamedTuple):
    """One of them, in Python's own types."""

    obs: Any
    action: Any
    reward: float
    next_obs: Any
    terminated: bool
    truncated: bool


class Counting(gymnasium.Env[Any, Any]):
    """The observation is (environment, episode, step); episodes terminate and are truncated in turn.

    It returns the same array each time, as environments may, unless it ``copies``.
    """

    observation_space = spaces.Box(0, 1_000_000, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, number: int = 0, lengths: Sequence[int] = (3, 1, 4), *, copies: bool = False) -> None:
        self.number, self.lengths, self.episode = number, lengths, -1
        self.seen, self.copies = np.zeros(3, np.float32), copies

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {"score": -1.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step on."""
        self.t += 1
        has_ended = self.t == self.lengths[self.episode % len(self.lengths)]
        is_odd = self.episode % 2 == 1
        reward = self.t + 10 * self.episode + 0.5
        return self._observe(), reward, has_ended and not is_odd, has_ended and is_odd, {"score": reward * 2}

    def _observe(self) -> Any:
        self.seen[:] = self.number, self.episode, self.t
        return self.seen.copy() if self.copies else self.seen


def played(env: gymnasium.Env[Any, Any], n: int) -> list[Transition]:
    """The transitions of ``n`` steps, as a plain loop keeps them; actions count 0, 1, 2, 3, 0, ..."""
    found, obs = [], np.array(env.reset()[0])
    for i in range(n):
        after, reward, terminated, truncated, _ = env.step(i % 4)
        found.append(Transition(obs.tolist(), i % 4, reward, after.tolist(), terminated, truncated))
        obs = np.array(env.reset()[0]) if terminated or truncated else np.array(after)
    return found


def recorded(store: StreamStore, obs: str = "obs") -> list[Transition]:
    """The transitions of a stream, by a plain loop over its steps: its specification."""
    steps = list(store.steps())
    return [Transition(*each) for each in _transitions(steps, f"final_{obs}", obs)]


def _transitions(steps: list[Any], final: str, obs: str) -> Iterator[tuple[Any, ...]]:
    for i, step in enumerate(steps):
        if final in step:
            after = step[final]
        elif i + 1 < len(steps):
            after = steps[i + 1][obs]
        else:
            return
        yield (
            _plain(step[obs]),
            _plain(step["action"]),
            step["reward"],
            _plain(after),
            step["terminated"],
            step["truncated"],
        )


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
