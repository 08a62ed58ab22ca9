"""Four actors record, one learner trains, one actor is killed: nothing that was recorded is lost.

Each actor is a process that plays CartPole with the newest weights and records a stream of its own. The learner reads
them as one, a ``StreamSet``, and draws by priority while they come and grow; a limiter keeps it at 8 samples for each
recorded step. In the middle one actor is killed: its steps stay, the episode it was in ends there, and its successor
continues in the same stream. ``--smoke`` takes seconds instead of half a minute.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import torch
from dqn import learn
from torch import nn

from poolish import StreamSet
from poolish.integrations.gymnasium import Record
from poolish.replay import Prioritized, SampleToInsertRatio, TransitionSampler

N_ACTORS, BATCH = 4, 64
LIMITER = SampleToInsertRatio(8, min_size_to_sample=400, error_buffer=6_400)


def network() -> nn.Module:
    """The same in actors and learner."""
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def act(folder: Path, name: str) -> None:
    """Play and record until the process is ended."""
    env = Record(gymnasium.make("CartPole-v1"), folder / "actors" / name)
    paced = LIMITER.attach(folder / "pacing", recorder=name, count=env.store.n_steps)
    q, rng, seen_ns = network(), np.random.default_rng(env.store.n_steps), 0
    weights = folder / "weights.npz"
    obs, _ = env.reset(seed=int(name[-1]))
    while True:
        if weights.exists() and (now_ns := weights.stat().st_mtime_ns) != seen_ns:
            seen_ns = now_ns
            with np.load(weights) as held:
                q.load_state_dict({name: torch.from_numpy(held[name]) for name in held.files})
        action = int(rng.integers(2)) if rng.random() < 0.1 else int(q(torch.from_numpy(obs)).argmax())
        with paced.insert():
            obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()


def publish(q: nn.Module, folder: Path) -> None:
    """The weights for the actors, whole or not at all."""
    partial = folder / "partial.npz"
    np.savez(partial, **{name: tensor.numpy() for name, tensor in q.state_dict().items()})
    os.replace(partial, folder / "weights.npz")


def train(folder: Path, n_batches: int) -> None:
    """Learn from all actors, and kill one on the way."""
    start = lambda name: subprocess.Popen([sys.executable, __file__, "--actor", str(folder), name])  # noqa: E731
    actors = {name: start(name) for name in (f"actor-{number}" for number in range(N_ACTORS))}
    try:
        streams = StreamSet(folder / "actors" / "*")
        paced = LIMITER.attach(folder / "pacing", sampler="learner")
        sampler = TransitionSampler(streams, Prioritized(), limiter=paced, timeout_s=60, path=folder / "priorities")
        q = network()
        target, optimizer = copy.deepcopy(q), torch.optim.Adam(q.parameters(), lr=1e-3)
        for number in range(n_batches):
            batch = sampler.sample(BATCH, output="torch")
            errors = learn(q, target, optimizer, batch)
            sampler.update_priorities(batch["id"], errors)
            if number % 50 == 0:
                publish(q, folder)
            if number == n_batches // 2:
                killed = streams.members[0]
                actors[killed.name].kill()
                actors[killed.name].wait()
                streams.refresh()
                before = killed.n_steps
                actors[killed.name] = start(killed.name)
        print(
            f"{n_batches} batches from {[member.n_steps for member in streams]} steps of {len(streams.members)} actors"
        )
        print(f"{paced.samples:,} samples of {paced.inserts:,} steps: {paced.samples / paced.inserts:.1f} for each")
        print(f"the killed actor had recorded {before:,} steps; {killed.store.verify()}")
    finally:
        for actor in actors.values():
            actor.terminate()
            actor.wait()


def main() -> None:
    """An actor if asked to, else the learner."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "--actor" in sys.argv:
        act(Path(sys.argv[2]), sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "actors").mkdir()
        train(Path(folder), 60 if "--smoke" in sys.argv else 2_000)


if __name__ == "__main__":
    main()
