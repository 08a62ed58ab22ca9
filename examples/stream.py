"""A stream that is trained on while it is recorded: the second half of what `make run` shows.

Another process plays CartPole and records it. This one opens the same directory, samples windows of two steps inside
episodes and learns to tell what comes next. In the middle the recorder is killed, without warning; a new one goes on
where it was, and nothing that was recorded is lost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow as pa
import torch
from rich.console import Console
from rich.progress import Progress

from poolish import StreamStore

FIELDS = {"action": "int64", "observation": pa.list_(pa.float32()), "reward": "float32", "done": "bool"}
NAMES = list(FIELDS)
STEP_TOKENS = 7
STEPS = 40_000

console = Console()


def record(path: Path) -> None:
    """Play until the stream has enough steps; go on behind the last one if there is one."""
    store = StreamStore(path, fields=FIELDS)
    environment = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(store.n_steps)
    step = store.last_step + 1
    while store.n_steps < STEPS:
        observation, _ = environment.reset(seed=step)
        done = False
        while not done:
            action, seen = int(rng.integers(2)), observation
            observation, reward, ended, cut, _ = environment.step(action)
            done = ended or cut
            store.append(step, NAMES, [action, seen, reward, done])
            step += 1
    store.close()


def start_recorder(path: Path) -> subprocess.Popen[bytes]:
    """The recorder, in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, str(path)])


def opened(path: Path, recorder: subprocess.Popen[bytes]) -> StreamStore:
    """The stream, as soon as there is one."""
    while recorder.poll() is None:
        try:
            return StreamStore.open(path)
        except FileNotFoundError:
            time.sleep(0.02)
    raise SystemExit("the recorder has ended before it began")


def learn(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, stream: StreamStore, rng: np.random.Generator
) -> float:
    """One batch: from an observation and an action to the next observation."""
    batch = stream.sample(256, width=2 * STEP_TOKENS, rng=rng, start="step", within="done")
    steps = batch["values"].reshape(-1, 2, STEP_TOKENS)
    action = torch.from_numpy(steps[:, 0, :1].astype(np.float32))
    now, after = torch.from_numpy(stream.decode(steps[:, :, 1:5], "observation")).unbind(1)
    loss = (now + model(torch.cat([now, action], 1)) - after).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(path: Path) -> None:
    """Train for as long as the recorder records, and kill it once on the way."""
    rng = np.random.default_rng(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = start_recorder(path)
    stream, losses, killed_at = opened(path, recorder), [], 0
    with Progress(console=console, transient=True) as progress:
        shown = progress.add_task("recorded steps", total=STEPS)
        while recorder.poll() is None:
            stream.refresh()
            progress.update(shown, completed=stream.n_steps)
            if stream.n_steps > 100:
                losses.append(learn(model, optimizer, stream, rng))
            if not killed_at and stream.n_steps > STEPS // 2:
                recorder.kill()
                recorder.wait()
                stream.refresh()
                killed_at = stream.n_steps
                recorder = start_recorder(path)
    stream.refresh()
    console.print(
        f"{len(losses):,} batches were trained while {stream.n_steps:,} steps were recorded by another process."
    )
    console.print(f"The recorder was killed at step {killed_at:,} and started again; {stream.verify()}.")
    console.print(f"Prediction error {np.mean(losses[:20]):.1e} -> {np.mean(losses[-20:]):.1e}.")


def main() -> None:
    """Record if asked to, else train and have it recorded."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(sys.argv) > 1:
        record(Path(sys.argv[1]))
        return
    console.rule("A stream, trained on while it is recorded")
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder, "cartpole"))


if __name__ == "__main__":
    main()
