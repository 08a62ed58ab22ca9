"""Stable-Baselines3: a replay buffer for DQN, SAC, TD3, ... whose transitions lie in streams, on disk if asked to.

DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs={"path": "runs/dqn/replay"})
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from poolish.errors import ConfigError
from poolish.replay.buffer import ReplayBuffer as Transitions
from poolish.tokens.fields import TokenField

__all__ = ["ReplayBuffer"]


class ReplayBuffer(buffers.ReplayBuffer):
    """A replay buffer of Stable-Baselines3, for spaces of arrays and dicts of them, any number of environments.

    With a ``path`` the transitions survive ``kill -9``, and the same line continues with them. ``n_steps`` and
    ``gamma`` make n-step returns when a batch is read (give ``gamma`` the value of the algorithm). An observation is
    kept once, not twice. Only transitions that terminated are ``dones``; behind those that a time limit cut off, the
    target is bootstrapped.

    ``transitions`` is the buffer underneath, with everything that a poolish ``ReplayBuffer`` can do.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        *,
        path: str | os.PathLike[str] | None = None,
        n_steps: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
    ) -> None:
        # Past SB3's own ReplayBuffer, which would allocate all of its arrays.
        super(buffers.ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs)
        if optimize_memory_usage:
            raise ConfigError("optimize_memory_usage=True: observations are kept once anyway; leave it out")
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage, self.handle_timeout_termination = False, True
        self._arguments: dict[str, Any] = {"path": path, "n_steps": n_steps, "gamma": gamma, "seed": seed}
        self.transitions = self._open()

    def _open(self) -> Transitions:
        path, n_steps, gamma, seed = (self._arguments[name] for name in ("path", "n_steps", "gamma", "seed"))
        self._n_steps, self._gamma = n_steps, gamma
        if seed is None:  # as everything of SB3 that is random
            seed = int(np.random.randint(2**31))  # noqa: NPY002
        fields = {f"obs{name}": TokenField("", dtype, shape) for name, dtype, shape in self._obs_parts()}
        action_dtype = np.dtype(self._maybe_cast_dtype(self.action_space.dtype)).name
        spec = {**fields, "action": TokenField("", action_dtype, (self.action_dim,))}
        return Transitions(
            self.buffer_size * self.n_envs, spec, n_step=n_steps, gamma=gamma, path=path, n_envs=self.n_envs, seed=seed
        )

    def _obs_parts(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """For each array of an observation the rest of its field's name, dtype and shape."""
        space = self.observation_space
        if not isinstance(space, spaces.Dict):
            return [("", np.dtype(space.dtype).name, self.obs_shape)]
        shapes: Any = self.obs_shape
        return [(f".{name}", np.dtype(inner.dtype).name, shapes[name]) for name, inner in space.spaces.items()]

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Add a transition of each environment."""
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        done = np.asarray(done, np.bool_)
        self.transitions.add(
            obs=self._shaped(obs),
            action=self._one(np.asarray(action).reshape(self.n_envs, self.action_dim)),
            reward=self._one(np.asarray(reward, np.float32).reshape(self.n_envs)),
            next_obs=self._shaped(next_obs),
            terminated=self._one(done & ~truncated),
            truncated=self._one(done & truncated),
        )
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def _one(self, values: Any) -> Any:
        """The values of the environment, if there is one; of all of them otherwise."""
        return values[0] if self.n_envs == 1 else values

    def _shaped(self, obs: Any) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            shapes: Any = self.obs_shape
            return {name: self._one(np.asarray(obs[name]).reshape(self.n_envs, *shapes[name])) for name in shapes}
        return self._one(np.asarray(obs).reshape(self.n_envs, *self.obs_shape))

    def size(self) -> int:
        """How many transitions of each environment there are."""
        return len(self.transitions) // self.n_envs

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions, normalised as ``env`` does if it does."""
        batch = self.transitions.sample(batch_size)
        dones = batch["terminated"].astype(np.float32).reshape(-1, 1)
        rewards = self._normalize_reward(batch["reward"].astype(np.float32).reshape(-1, 1), env)
        seen, after = (self._to_torch(self._normalize_obs(batch[name], env)) for name in ("obs", "next_obs"))
        given = [self.to_torch(each) for each in (batch["action"], dones, rewards)]
        # Where it terminated there is nothing to discount; elsewhere these are gamma ** steps.
        discounts = self.to_torch(batch["discount"].astype(np.float32).reshape(-1, 1)) if self._n_steps > 1 else None
        made: Any = DictReplayBufferSamples if isinstance(seen, dict) else ReplayBufferSamples
        return made(seen, given[0], after, *given[1:], discounts)

    def _to_torch(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {name: self.to_torch(values) for name, values in obs.items()}
        return self.to_torch(obs)

    def reset(self) -> None:
        """Refused where something would be lost: a stream forgets by its capacity."""
        super().reset()
        if getattr(self, "transitions", None):
            raise ConfigError("a replay buffer in streams cannot be emptied; make another one, at another path")

    def __getstate__(self) -> dict[str, Any]:
        """What SB3's ``save_replay_buffer`` pickles: where the transitions are, not the transitions."""
        if self._arguments["path"] is None:
            raise ConfigError(
                "this replay buffer lives in memory and cannot be saved; give it a path: replay_buffer_kwargs="
                "{'path': 'runs/replay'}, then it is on disk at every moment"
            )
        self.transitions.commit()
        return {name: value for name, value in self.__dict__.items() if name != "transitions"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What ``load_replay_buffer`` makes of it: the streams opened again."""
        self.__dict__.update(state)
        self.transitions = self._open()
