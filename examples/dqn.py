"""DQN on CartPole from recorded transitions; the average return of 100 episodes reaches 195, where CartPole is solved.

The environment records itself into a stream, in memory here; with a path in place of ``StreamStore()`` another
process could learn while this one plays. ``store.transitions`` gives what the loss needs: ``discount`` is 0 behind a
pole that fell, and not behind a time limit.

    python examples/dqn.py              # about a minute
    python examples/dqn.py --smoke      # a few seconds: that it runs, not that it learns
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from poolish import StreamStore
from poolish.integrations.gymnasium import Record

STEPS, SOLVED = 60_000, 195.0


def learn(q: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> Any:
    """One step of double DQN; how wrong each value was."""
    with torch.no_grad():
        best = q(batch["next_obs"]).argmax(1, keepdim=True)
        value = batch["reward"] + batch["discount"] * target(batch["next_obs"]).gather(1, best).squeeze(1)
    predicted = q(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
    losses = nn.functional.smooth_l1_loss(predicted, value.float(), reduction="none")
    optimizer.zero_grad()
    (losses * batch.get("weight", torch.ones(()))).mean().backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
            slow.lerp_(fast, 0.005)
    return (predicted.detach() - value).abs() + 1e-3


def play(n_steps: int = STEPS, seed: int = 0) -> float:
    """Play and learn until CartPole is solved; the best average return of 100 episodes."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = Record(gymnasium.make("CartPole-v1"), StreamStore())
    q = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    target, optimizer = copy.deepcopy(q), torch.optim.Adam(q.parameters(), lr=5e-4)
    returns, best, total = [], 0.0, 0.0
    obs, _ = env.reset(seed=seed)
    for step in range(n_steps):
        is_random = rng.random() < max(0.02, 1 - step / 5_000)
        action = int(rng.integers(2)) if is_random else int(q(torch.from_numpy(obs)).argmax())
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            returns.append(total)
            best, total = max(best, float(np.mean(returns[-100:])) if len(returns) >= 100 else 0.0), 0.0
            obs, _ = env.reset()
        if step >= 500 and step % 2:
            learn(q, target, optimizer, env.store.transitions(128, rng=rng, gamma=0.99, output="torch"))
        if best >= SOLVED:
            break
    print(f"{len(returns)} episodes, {env.store.n_steps:,} steps recorded, last return {returns[-1]:.0f}")
    if best:
        print(f"best average of 100 returns {best:.0f}")
    return best


if __name__ == "__main__":
    torch.set_num_threads(1)
    play(1_000 if "--smoke" in sys.argv else STEPS)
