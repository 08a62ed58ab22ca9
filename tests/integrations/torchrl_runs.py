"""Runs with TorchRL: its replay buffers over a stream, beside the same over its own storage."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement, SliceSampler

from poolish import StreamStore
from poolish.integrations.torchrl import StreamStorage, as_is, replay_buffer

warnings.simplefilter("ignore")
torch.set_num_threads(1)


def items(first: int, n: int) -> TensorDict:
    """Steps of episodes of five, with nested keys and several dtypes."""
    t = torch.arange(first, first + n)
    return TensorDict(
        {
            "obs": t[:, None].float() * torch.tensor([1.0, -1.0]),
            "pixels": (t[:, None, None] % 256).expand(n, 2, 3).to(torch.uint8),
            "action": t % 4,
            "episode": t // 5,
            "next": {"reward": t[:, None].float() / 7, "done": (t % 5 == 4)[:, None]},
        },
        batch_size=[n],
    )


def over(kind: str, n: int = 64, **options: Any) -> Any:
    """A replay buffer over a stream, or over TorchRL's own storage."""
    if kind == "stream":
        return replay_buffer(StreamStore(), n, **options)
    return TensorDictReplayBuffer(storage=LazyTensorStorage(n), **options)


def plain(batch: Any) -> Any:
    """A TensorDict as lists."""
    return {str(key): value.tolist() for key, value in sorted(batch.flatten_keys(".").items())}


def same(sampler: str = "random", n: int = 200) -> Any:
    """What both give for the same seed, after single items and extensions, and around the end of the ring."""
    results = []
    for kind in ("torchrl", "stream"):
        torch.manual_seed(0)
        samplers = {
            "random": None,
            "once": SamplerWithoutReplacement(),
            "slices": SliceSampler(slice_len=3, traj_key="episode", strict_length=True),
        }
        chosen = {} if samplers[sampler] is None else {"sampler": samplers[sampler]}
        buffer = over(kind, batch_size=12, **chosen)
        seen = []
        for first in range(0, n, 25):
            buffer.extend(items(first, 24))
            buffer.add(items(first + 24, 1)[0])
            seen.append(plain(buffer.sample()))
        seen.append(plain(buffer[:].exclude("index")))
        results.append(seen)
    return results


def resumed(folder: str, loads: bool) -> Any:
    """A buffer that continues behind the stream of the one before."""
    with StreamStore(f"{folder}/replay") as store:
        buffer = replay_buffer(store, 10, batch_size=4)
        buffer.extend(items(0, 17))
        buffer.dumps(f"{folder}/state")
    with StreamStore(f"{folder}/replay") as store:
        buffer = replay_buffer(store, 10, batch_size=4)
        before = sorted(buffer[:]["obs"][:, 0].tolist())
        if loads:
            buffer.loads(f"{folder}/state")
        buffer.extend(items(17, 3))
        return before, sorted(buffer[:]["obs"][:, 0].tolist()), store.n_steps


def refused(what: str) -> None:
    """Each of them an error."""
    store = StreamStore(max_tokens=40) if what == "bound" else StreamStore()
    storage = StreamStorage(store, 8)
    buffer = ReplayBuffer(storage=storage, collate_fn=as_is, batch_size=4)
    buffer.extend(items(0, 8))
    if what == "overwrite":
        storage[3] = items(3, 1)[0]
    elif what == "order":
        storage.set(5, items(5, 1)[0])
    elif what == "kind":
        storage.set(0, [1, 2])
    elif what == "type":
        storage.set(range(4), items(8, 4).update({"action": torch.rand(4)}))
    elif what == "dump":
        buffer.dumps("somewhere")
    elif what == "empty":
        buffer.empty()
    elif what == "bound":
        buffer.sample()
