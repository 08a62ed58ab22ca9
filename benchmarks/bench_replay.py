"""Replay against TorchRL, cpprb, Stable-Baselines3 and flashbax: recording, transitions, prioritised replay.

A transition is obs (float32[4]), action (int), reward, next_obs, terminated; batches are 256. Everybody holds the same
number of them in memory and is asked for one batch after the other, its arrays included. TorchRL and SB3 give tensors,
cpprb and flashbax arrays of their own; poolish gives NumPy arrays, and tensors where it is compared on that. How the
trees of priorities scale is in bench_priorities.py.

    python -m benchmarks.bench_replay                     # everything
    python -m benchmarks.bench_replay transitions pair    # only these
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import Measure, compare, per_call
from benchmarks.token_peers import Peer, around, scratch
from poolish import StreamSet, StreamStore
from poolish.replay import Prioritized, ReplayBuffer, StreamPriorities

BATCH, CALLS, EPISODE = 256, 100, 200
SPEC = {"obs": ("float32", (4,)), "action": "int64"}
SIZE = 1_000_000

rng = np.random.default_rng(7)


def main(chosen: list[str]) -> None:
    """All figures, or those that are named."""
    parts = {"recording": recording, "transitions": transitions, "pair": pair, "growth": growth, "actors": actors}
    for name, part in parts.items():
        if not chosen or name in chosen:
            part()


def columns(n: int) -> dict[str, np.ndarray]:
    """N transitions of episodes of ``EPISODE`` steps."""
    t = np.arange(n)
    obs = rng.random((n + 1, 4), np.float32)
    terminated = t % EPISODE == EPISODE - 1
    return {
        "obs": obs[:-1],
        "action": t % 2,
        "reward": rng.random(n).astype(np.float32),
        "next_obs": obs[1:],
        "terminated": terminated,
    }


def buffer_of(n: int, **options: Any) -> ReplayBuffer:
    """A full buffer of poolish."""
    buffer = ReplayBuffer(n + n // EPISODE + 1, SPEC, **options)
    for first in range(0, n, 100_000):
        buffer.extend(**columns(min(100_000, n - first)))
    return buffer


def batches(draw: Callable[[], object], calls: int = CALLS) -> Measure:
    """How long one batch takes, in us."""
    return per_call(draw, unit="us", calls=calls)


# Recording ------------------------------------------------------------------------------------------------------


def recording() -> None:
    """One transition at a time, in ns."""
    n = 20_000
    given = columns(n)
    ready = [{name: column[i] for name, column in given.items()} for i in range(n)]

    def loop(buffer: ReplayBuffer) -> None:
        add = buffer.add
        for step in ready:
            add(**step)

    made = per_call(loop, prepare=lambda: ReplayBuffer(2 * n, SPEC))
    peers = {"cpprb": add_cpprb(ready), "stable-baselines3": add_sb3(ready), "torchrl": add_torchrl(ready)}
    compare("replay.add, one transition", "ns", lambda: made() / n, peers)


@around("cpprb")
def add_cpprb(cpprb: ModuleType, ready: list[dict[str, Any]]) -> Measure:
    """Its buffer in Cython."""
    renamed = [dict(zip(CPPRB, step.values(), strict=True)) for step in ready]

    def loop(held: Any) -> None:
        for step in renamed:
            held.add(**step)

    measure = per_call(loop, prepare=lambda: cpprb.ReplayBuffer(2 * len(ready), CPPRB_SPEC))
    return lambda: measure() / len(ready)


@around("stable_baselines3.common.buffers")
def add_sb3(buffers: ModuleType, ready: list[dict[str, Any]]) -> Measure:
    """With arrays as a VecEnv of one environment gives them."""
    infos: list[dict[str, object]] = [{}]
    given = [
        (s["obs"], s["next_obs"], np.array([s["action"]]), np.array([s["reward"]]), np.array([s["terminated"]]), infos)
        for s in ready
    ]

    def loop(held: Any) -> None:
        for step in given:
            held.add(*step)

    measure = per_call(loop, prepare=lambda: sb3_buffer(buffers, 2 * len(ready)))
    return lambda: measure() / len(ready)


@around("torchrl.data")
def add_torchrl(data: ModuleType, ready: list[dict[str, Any]]) -> Measure:
    """With TensorDicts that are ready."""
    torch, tensordict = map(importlib.import_module, ("torch", "tensordict"))
    few = ready[:2_000]
    given = [tensordict.TensorDict({k: torch.as_tensor(v) for k, v in s.items()}, batch_size=[]) for s in few]

    def loop(held: Any) -> None:
        for step in given:
            held.add(step)

    storage = lambda: data.ReplayBuffer(storage=data.LazyTensorStorage(2 * len(few)))  # noqa: E731
    measure = per_call(loop, prepare=storage)
    return lambda: measure() / len(few)


# Transitions, uniformly -----------------------------------------------------------------------------------------


def transitions() -> None:
    """A batch of 256 from a million, in us."""
    given = columns(SIZE)
    buffer = buffer_of(SIZE)
    draws = np.random.default_rng(0)
    peers = {
        "cpprb": sample_cpprb(given),
        "stable-baselines3": sample_sb3(given),
        "torchrl LazyTensorStorage": sample_torchrl(given),
        "flashbax item buffer": sample_flashbax(given),
    }
    compare("replay.transitions(256) of 10^6", "us", batches(lambda: buffer.sample(BATCH, rng=draws)), peers)
    tensors = {name: peers[name] for name in ("stable-baselines3", "torchrl LazyTensorStorage")}
    draw = lambda: buffer.sample(BATCH, rng=draws, output="torch")  # noqa: E731
    compare("replay.transitions(256) of 10^6, as tensors", "us", batches(draw), tensors)
    three = buffer_of(SIZE, n_step=3)
    n_step = {"cpprb, Nstep 3 (made when added)": sample_cpprb(given, 3)}
    compare("replay.transitions(256), 3 steps", "us", batches(lambda: three.sample(BATCH, rng=draws)), n_step)


CPPRB = ("obs", "act", "rew", "next_obs", "done")
CPPRB_SPEC: Any = {"obs": {"shape": 4}, "act": {"dtype": np.int64}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}


@around("cpprb")
def sample_cpprb(cpprb: ModuleType, given: dict[str, np.ndarray], n_step: int = 1) -> Measure:
    """Its plain buffer."""
    n = len(given["obs"])
    options = {} if n_step == 1 else {"Nstep": {"size": n_step, "gamma": 0.99, "rew": "rew", "next": "next_obs"}}
    held = cpprb.ReplayBuffer(n, CPPRB_SPEC, **options)
    held.add(**dict(zip(CPPRB, given.values(), strict=True)))
    return batches(lambda: held.sample(BATCH))


def sb3_buffer(buffers: ModuleType, n: int) -> Any:
    """A replay buffer of Stable-Baselines3."""
    spaces = importlib.import_module("gymnasium").spaces
    return buffers.ReplayBuffer(n, spaces.Box(-1, 1, (4,)), spaces.Discrete(2), device="cpu")


@around("stable_baselines3.common.buffers")
def sample_sb3(buffers: ModuleType, given: dict[str, np.ndarray]) -> Measure:
    """Filled behind its back, for add takes one step at a time."""
    n = len(given["obs"])
    held = sb3_buffer(buffers, n)
    held.observations[:, 0], held.next_observations[:, 0] = given["obs"], given["next_obs"]
    held.actions[:, 0, 0], held.rewards[:, 0], held.dones[:, 0] = given["action"], given["reward"], given["terminated"]
    held.full = True
    return batches(lambda: held.sample(BATCH))


@around("torchrl.data")
def sample_torchrl(data: ModuleType, given: dict[str, np.ndarray]) -> Measure:
    """The plain ReplayBuffer over contiguous tensors."""
    torch, tensordict = map(importlib.import_module, ("torch", "tensordict"))
    n = len(given["obs"])
    held = data.ReplayBuffer(storage=data.LazyTensorStorage(n), batch_size=BATCH)
    held.extend(tensordict.TensorDict({k: torch.from_numpy(v) for k, v in given.items()}, batch_size=[n]))
    return batches(held.sample)


@around("flashbax")
def sample_flashbax(flashbax: ModuleType, given: dict[str, np.ndarray]) -> Measure:
    """Jitted; the batch is ready when JAX says so."""
    jax = importlib.import_module("jax")
    n = len(given["obs"])
    made = flashbax.make_item_buffer(max_length=n, min_length=1, sample_batch_size=BATCH, add_batches=True)
    first = {k: jax.numpy.asarray(v[0]) for k, v in given.items()}
    state = jax.jit(made.add, donate_argnums=0)(made.init(first), {k: jax.numpy.asarray(v) for k, v in given.items()})
    sample, keys = jax.jit(made.sample), iter(jax.random.split(jax.random.key(0), 100_000))
    return batches(lambda: jax.block_until_ready(sample(state, next(keys))))


# Prioritised ----------------------------------------------------------------------------------------------------


def pair() -> None:
    """update(256) + sample(256) with its transitions from a million, in us; and ids with weights alone."""
    given = columns(SIZE)
    buffer = buffer_of(SIZE, sampler=Prioritized(alpha=0.6, beta=0.4))
    values = rng.random((64, BATCH)) + 1e-3
    peers = {"cpprb": pair_cpprb(given, values), "torchrl": pair_torchrl(given, values)}
    compare("replay.update(256) + sample(256) of 10^6", "us", batches(paired(buffer, values)), peers)
    compare("replay.update(256) + ids and weights of 256", "us", batches(drawn(buffer, values)))
    disk = buffer_of(SIZE, sampler=Prioritized(alpha=0.6, beta=0.4), path=Path(scratch(), "replay"))
    compare("replay.update(256) + sample(256), on disk", "us", batches(paired(disk, values)), {"cpprb": peers["cpprb"]})


def paired(buffer: ReplayBuffer, values: np.ndarray) -> Callable[[], None]:
    """Update what the last batch was, and draw the next one."""
    draws, seen = np.random.default_rng(0), {"ids": buffer.sample(BATCH)["id"], "n": 0}

    def run() -> None:
        buffer.update_priorities(seen["ids"], values[seen["n"] % 64])
        seen.update(ids=buffer.sample(BATCH, rng=draws)["id"], n=seen["n"] + 1)

    return run


def drawn(buffer: ReplayBuffer, values: np.ndarray) -> Callable[[], None]:
    """The same without reading the transitions."""
    priorities: StreamPriorities = buffer._sampler._priorities[0]
    draws, seen = np.random.default_rng(0), {"ids": buffer.sample(BATCH)["id"], "n": 0}

    def run() -> None:
        priorities.update(seen["ids"], values[seen["n"] % 64])
        seen.update(ids=priorities.sample(BATCH, rng=draws).ids, n=seen["n"] + 1)

    return run


@around("cpprb")
def pair_cpprb(cpprb: ModuleType, given: dict[str, np.ndarray], values: np.ndarray) -> Measure:
    """Its prioritised buffer in C++."""
    n = len(given["obs"])
    held = cpprb.PrioritizedReplayBuffer(n, CPPRB_SPEC, alpha=0.6)
    held.add(**dict(zip(CPPRB, given.values(), strict=True)))
    seen = {"ids": held.sample(BATCH, beta=0.4)["indexes"], "n": 0}

    def run() -> None:
        held.update_priorities(seen["ids"], values[seen["n"] % 64])
        seen.update(ids=held.sample(BATCH, beta=0.4)["indexes"], n=seen["n"] + 1)

    return batches(run)


@around("torchrl.data")
def pair_torchrl(data: ModuleType, given: dict[str, np.ndarray], values: np.ndarray) -> Measure:
    """Its segment trees in C++."""
    torch, tensordict = map(importlib.import_module, ("torch", "tensordict"))
    n = len(given["obs"])
    try:
        held = data.PrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=data.LazyTensorStorage(n), batch_size=BATCH)
    except RuntimeError as error:  # its extension is not built for this torch
        reason = str(error)

        def missing() -> float:
            raise RuntimeError(reason)

        return missing
    held.extend(tensordict.TensorDict({k: torch.from_numpy(v) for k, v in given.items()}, batch_size=[n]))
    tensors = [torch.from_numpy(each) for each in values]
    seen = {"info": held.sample(return_info=True)[1], "n": 0}

    def run() -> None:
        held.update_priority(seen["info"]["index"], tensors[seen["n"] % 64])
        seen.update(info=held.sample(return_info=True)[1], n=seen["n"] + 1)

    return batches(run)


# Many recorders -------------------------------------------------------------------------------------------------

ACTORS, STEPS, DRAWS = 8, 2_000, 200


def actors() -> None:
    """8 processes record 2,000 steps each while a learner draws 200 batches of 256; ms until all are done.

    Processes are started, and have opened what they record into, before the clock runs. TorchRL's actors share one
    buffer in memory, as its documentation shows; theirs add a step at a time as ours do, or 50 at once, made outside
    the time.
    """
    peers = {
        "torchrl, shared buffer, a step at a time": actors_torchrl(1),
        "torchrl, shared buffer, 50 steps at a time": actors_torchrl(50),
    }
    compare("replay.actors, 8 record and 1 draws", "ms", actors_poolish, peers, rounds=3)


def actors_poolish() -> float:
    """A stream for each actor, one StreamSet for the learner."""
    folder, given = Path(scratch(), f"actors-{time.monotonic_ns()}"), columns(STEPS)
    fields = {**{name: SPEC.get(name, "float32") for name in given}, "next_obs": SPEC["obs"], "terminated": "bool"}
    ready = [{name: column[i] for name, column in given.items()} for i in range(STEPS)]
    folder.mkdir()

    def act(number: int, start: Callable[[], object], end: Callable[[], object]) -> None:
        store = StreamStore(folder / str(number), fields)
        start()
        for i, step in enumerate(ready):
            store.append(i, step)
        end()  # closing it commits to the disk, which a buffer in memory has no part of

    def learn(is_over: Callable[[], bool]) -> None:
        streams, draws = StreamSet(folder / "*"), np.random.default_rng(0)
        while len(streams) < BATCH:
            pass
        for _ in range(DRAWS):
            streams.transitions(BATCH, rng=draws, output="torch")
        while not is_over():
            time.sleep(0.001)
        streams.refresh()
        assert len(streams) == ACTORS * STEPS

    return together(act, learn)


@around("torchrl.data")
def actors_torchrl(data: ModuleType, at_once: int) -> Measure:
    """One buffer in shared memory, which all processes extend and the learner samples from."""
    torch, tensordict = map(importlib.import_module, ("torch", "tensordict"))
    tensors = {name: torch.from_numpy(column) for name, column in columns(STEPS).items()}
    steps = tensordict.TensorDict(tensors, batch_size=[STEPS])
    ready = [steps[i : i + at_once].clone() for i in range(0, STEPS, at_once)]

    def measure() -> float:
        storage = data.LazyMemmapStorage((ACTORS + 1) * STEPS)
        held = data.ReplayBuffer(storage=storage, batch_size=BATCH, shared=True)
        held.extend(steps)  # made before the processes are, so that they share it

        def act(number: int, start: Callable[[], object], end: Callable[[], object]) -> None:
            start()
            for part in ready:
                held.extend(part)
            end()

        def learn(is_over: Callable[[], bool]) -> None:
            for _ in range(DRAWS):
                held.sample()
            while not is_over():
                time.sleep(0.001)

        return together(act, learn)

    return measure


def together(act: Callable[..., None], learn: Callable[[Callable[[], bool]], None]) -> float:
    """How long actors in processes of their own and a learner here take, in ms."""
    fork = multiprocessing.get_context("fork")
    barrier, over = fork.Barrier(ACTORS + 1), fork.Semaphore(0)
    arguments = [(number, barrier.wait, over.release) for number in range(ACTORS)]
    processes = [fork.Process(target=act, args=each) for each in arguments]
    for process in processes:
        process.start()
    barrier.wait(60)
    began = time.perf_counter()
    learn(lambda: over.get_value() == ACTORS)
    took = time.perf_counter() - began
    for process in processes:
        process.join()
    return took * 1e3


# Growth ---------------------------------------------------------------------------------------------------------


def growth() -> None:
    """The pair without rows over 10^4 to 10^7 transitions: logarithmic, in us."""
    values = rng.random((64, BATCH)) + 1e-3
    small: Peer | None = None
    for power in (4, 5, 6, 7):
        buffer = buffer_of(10**power, sampler=Prioritized())
        measure = batches(drawn(buffer, values))
        small = small or measure
        compare(f"replay.update(256) + ids of 256, 10^{power}", "us", measure, {"the same of 10^4": small}, rounds=5)
        if power > 4:
            buffer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
