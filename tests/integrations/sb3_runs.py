"""Runs with Stable-Baselines3: our replay buffer beside its own, fed with the same steps."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from poolish.integrations.sb3 import ReplayBuffer
from tests.replay.envs import Counting

warnings.simplefilter("ignore")
torch.set_num_threads(1)


class Parts(Counting):
    """Observations of two arrays."""

    observation_space = spaces.Dict({"seen": Counting.observation_space, "t": spaces.Discrete(100)})

    def _observe(self) -> Any:
        return {"seen": super()._observe(), "t": self.t}


def make(kind: str, n_envs: int) -> DummyVecEnv:
    """Environments that time limits cut off, as gymnasium says it."""
    made = {"arrays": Counting, "parts": Parts}[kind]
    return DummyVecEnv([lambda i=i: gymnasium.wrappers.TimeLimit(made(i, lengths=(3, 5, 1)), 4) for i in range(n_envs)])


def fed(held: Any, env: Any, n: int) -> Any:
    """The buffer with n steps of an environment, as an algorithm of SB3 adds them."""
    algorithm = DQN.__new__(DQN)
    algorithm._vec_normalize_env = env if isinstance(env, VecNormalize) else None
    algorithm._last_obs = env.reset()
    algorithm._last_original_obs = env.get_original_obs() if isinstance(env, VecNormalize) else algorithm._last_obs
    for i in range(n):
        actions = np.full(env.num_envs, i % 4)
        algorithm._store_transition(held, actions, *env.step(actions))
    return held


def seen(held: Any, env: Any = None, draws: int = 40) -> list[list[Any]]:
    """All different transitions that are drawn, as lists."""
    found = set()
    for _ in range(draws):
        batch = held.sample(64, env)
        if batch.discounts is not None:  # behind a terminal transition there is nothing to discount
            batch = batch._replace(discounts=batch.discounts * (1 - batch.dones))
        tensors = [each for part in batch for each in (part.values() if isinstance(part, dict) else [part])]
        parts = [torch.zeros(64, 1) if each is None else each.reshape(64, -1).double() for each in tensors]
        found |= {tuple(row) for row in torch.cat(parts, 1).numpy().round(4).tolist()}
    return [list(row) for row in sorted(found)]


def both(kind: str = "arrays", n_envs: int = 1, n_steps: int = 1, normalised: bool = False, n: int = 45) -> Any:
    """What is drawn from SB3's own buffer, and from ours."""
    results = []
    for is_ours in (False, True):
        env: Any = make(kind, n_envs)
        if normalised:
            env = VecNormalize(env)
        options: dict[str, Any] = {"n_steps": n_steps, "gamma": 0.9} if n_steps > 1 else {}
        theirs = buffers.DictReplayBuffer if kind == "parts" else buffers.ReplayBuffer
        class_ = ReplayBuffer if is_ours else buffers.NStepReplayBuffer if n_steps > 1 else theirs
        held = class_(1000 * n_envs, env.observation_space, env.action_space, "cpu", n_envs=n_envs, **options)
        fed(held, env, n)
        if is_ours:
            held.transitions.end_episodes()
        np.random.seed(0)  # noqa: NPY002
        results.append(seen(held, env if normalised else None))
    return results


def learn(path: str | None, n: int) -> Any:
    """DQN on CartPole; how many transitions there are then, and whether the network changed."""
    env = gymnasium.make("CartPole-v1")
    options = {"replay_buffer_class": ReplayBuffer, "replay_buffer_kwargs": {"path": path}, "learning_starts": 50}
    model = DQN("MlpPolicy", env, buffer_size=10_000, device="cpu", seed=0, **options)
    before = torch.cat([each.detach().reshape(-1).clone() for each in model.q_net.parameters()])
    model.learn(n)
    after = torch.cat([each.detach().reshape(-1) for each in model.q_net.parameters()])
    held: Any = model.replay_buffer
    held.transitions.end_episodes()
    result = held.size(), bool((before != after).any())
    held.transitions.close()
    return result


def saved(folder: str, in_memory: bool = False) -> Any:
    """The transitions before ``save_replay_buffer``, and those behind ``load_replay_buffer``."""
    env = make("arrays", 2)
    options = {"replay_buffer_kwargs": {"path": None if in_memory else f"{folder}/replay", "seed": 3}}
    model = DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer, device="cpu", **options)
    held: Any = fed(model.replay_buffer, env, 30)
    before = seen(held)
    model.save_replay_buffer(f"{folder}/replay.pkl")
    held.transitions.close()
    model.load_replay_buffer(f"{folder}/replay.pkl")
    return before, seen(model.replay_buffer)


def bounded() -> Any:
    """How many transitions a small buffer keeps of many."""
    env = make("arrays", 2)
    held = fed(ReplayBuffer(40, env.observation_space, env.action_space, "cpu", n_envs=2), env, 500)
    return held.size(), held.full, held.pos, len(seen(held))


def refused(**options: Any) -> None:
    """Options that have no meaning here."""
    space = Counting.observation_space
    ReplayBuffer(10, space, Counting.action_space, "cpu", **options)


def emptied() -> None:
    """A buffer cannot be emptied."""
    env = make("arrays", 1)
    fed(ReplayBuffer(10, env.observation_space, env.action_space, "cpu"), env, 3).reset()
