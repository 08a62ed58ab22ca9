"""Record once, train later: a policy is cloned from recorded windows, and the recording becomes a Minari dataset.

A scripted player balances CartPole and records itself to disk. The recording is exported for other libraries, read
back, and a network learns from windows of two steps what the player does.

    python examples/offline.py
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn

from poolish import StreamStore
from poolish.integrations.gymnasium import Record


def player(obs: np.ndarray) -> int:
    """Push towards the side to which the pole falls."""
    return int(obs[2] + 0.5 * obs[3] > 0)


def record(path: Path, n_episodes: int) -> None:
    """Play, and record each step."""
    env = Record(gymnasium.make("CartPole-v1"), path)
    rng = np.random.default_rng(0)
    for episode in range(n_episodes):
        obs, _ = env.reset(seed=episode)
        ended = False
        while not ended:
            action = player(obs) if rng.random() > 0.1 else int(rng.integers(2))
            obs, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
    env.close()


def export(store: StreamStore, folder: Path) -> StreamStore:
    """The recording as a Minari dataset, and read back from it; without Minari, the recording itself."""
    if importlib.util.find_spec("minari") is None:
        print("minari is not installed: pip install 'poolish[minari]' to export the recording")
        return store
    from poolish.integrations.minari import from_minari, to_minari

    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    dataset = to_minari(store, "cartpole/player-v0", env="CartPole-v1", author="an example", description="scripted")
    again = StreamStore(folder / "again")
    n_episodes = from_minari(dataset, again)
    print(f"exported and read back {n_episodes} episodes of {again.n_steps:,} steps")
    return again


def clone(store: StreamStore, n_batches: int) -> nn.Module:
    """Learn to act as the recorded player does."""
    rng = np.random.default_rng(1)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(n_batches):
        batch = store.sample(128, n_steps=2, within="terminated", fields=["obs", "action"], rng=rng, output="torch")
        loss = nn.functional.cross_entropy(policy(batch["obs"].flatten(0, 1)), batch["action"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def score(policy: nn.Module, n_episodes: int = 10) -> float:
    """The average return of the network."""
    env = gymnasium.make("CartPole-v1")
    total = 0.0
    for episode in range(n_episodes):
        obs, _ = env.reset(seed=1_000 + episode)
        ended = False
        while not ended:
            action = int(policy(torch.from_numpy(obs)).argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
    return total / n_episodes


def main(n_episodes: int = 60, n_batches: int = 400) -> float:
    """Record, export, train offline, play."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record(folder / "cartpole", n_episodes)
        with StreamStore.open(folder / "cartpole") as store:
            print(f"recorded {n_episodes} episodes of {store.n_steps:,} steps")
            result = score(clone(export(store, folder), n_batches))
    print(f"the cloned policy balances the pole for {result:.0f} of 500 steps")
    return result


if __name__ == "__main__":
    main(*(6, 5) if "--smoke" in sys.argv else ())
