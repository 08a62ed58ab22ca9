"""What StreamStore is compared with: stores that take one step at a time, and ways to read windows out of a file.

Every peer is a function that returns a ``Measure``, or ``Missing`` where its library or the compiler is; they are named
in ``append_peers`` (ns for one step), ``window_peers`` and ``single_peers`` (tokens/s).

Where a choice was to be made it is the one that flatters the peer, so what poolish wins, it wins:

- a peer that wants its step as a TensorDict or as arrays gets it ready-made, outside the time;
- a ring holds as many steps as one round brings, so after the warm-up round all of its memory has been touched;
- every page of a mapping has been touched before it is read; torch keeps to one thread, like us;
- a peer that can only read aligned windows, or that would need too much memory, says so in its name.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import logging
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import DTypeLike

from benchmarks.harness import Measure, Missing, needs, per_call, per_second

Peer = Measure | Missing
#: From the starts of a batch to its windows.
Read = Callable[[np.ndarray], object]
#: action, observation (float32[4]), reward, done
Step = tuple[int, np.ndarray, float, bool]

OBSERVATION = 4
RING: list[Any] = [("action", "i8"), ("observation", "f4", OBSERVATION), ("reward", "f8"), ("done", "?")]
#: As much of the stream as is copied for a peer that cannot read the file where it is.
COPIED = 10_000_000


def around(module: str) -> Callable[[Callable[..., Measure]], Callable[..., Peer]]:
    """Hand the optional ``module`` to the decorated function, or give the reason why it cannot be had."""

    def settled(make: Callable[..., Measure], args: tuple[Any, ...], library: ModuleType) -> Measure:
        # For the whole process, and after the import, which sets the level: torchrl's notes go where figures go.
        logging.getLogger("torchrl").setLevel(logging.WARNING)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        return make(library, *args)

    return lambda make: lambda *args: needs(module, partial(settled, make, args))


def scratch() -> str:
    """A folder that lasts as long as the process."""
    folder = tempfile.mkdtemp(prefix="poolish-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# Appending one step at a time ----------------------------------------------------------------------------------


def append_peers(steps: Sequence[Step]) -> dict[str, Peer]:
    """All who take one step at a time, in ns for one."""
    return {
        "NumPy structured ring": append_ring(steps),
        "NumPy structured ring, field by field": append_ring_fields(steps),
        "NumPy, field by field into int64": append_naive(steps),
        "cpprb add": append_cpprb(steps),
        "stable-baselines3 add, ready arrays": append_sb3(steps),
        "torchrl LazyTensorStorage add, ready TensorDict": append_torchrl(steps, "LazyTensorStorage"),
        "torchrl LazyMemmapStorage add, ready TensorDict": append_torchrl(steps, "LazyMemmapStorage"),
    }


def each(function: Callable[..., object], items: Sequence[tuple[Any, ...]]) -> Measure:
    """The time of one call in ns, measured over all items."""

    def loop() -> None:
        for item in items:
            function(*item)

    measure = per_call(loop)
    return lambda: measure() / len(items)


def append_ring(steps: Sequence[Step]) -> Measure:
    """The floor in NumPy: one assignment into a preallocated structured array. It checks nothing, keeps no stream."""
    n = len(steps)
    ring = np.zeros(n, RING)

    def loop() -> None:
        for i, (action, observation, reward, done) in enumerate(steps):
            ring[i % n] = (action, observation, reward, done)

    measure = per_call(loop)
    return lambda: measure() / n


def append_ring_fields(steps: Sequence[Step]) -> Measure:
    """The same ring, filled field by field through a view of each: what is quickest in NumPy."""
    n = len(steps)
    ring = np.zeros(n, RING)
    actions, observations, rewards, dones = (ring[name] for name, *_ in RING)

    def loop() -> None:
        for i, (action, observation, reward, done) in enumerate(steps):
            at = i % n
            actions[at] = action
            observations[at] = observation
            rewards[at] = reward
            dones[at] = done

    measure = per_call(loop)
    return lambda: measure() / n


def append_naive(steps: Sequence[Step]) -> Measure:
    """What one writes at home: every field as float64 bits into preallocated int64, and a list of where steps end."""
    tokens = np.zeros(len(steps) * (3 + OBSERVATION), np.int64)
    ends = [0]

    def append(*step: object) -> None:
        end = ends[-1] % len(tokens)  # starts over where another would grow
        for value in step:
            bits = np.asarray(value).astype(np.float64).reshape(-1).view(np.int64)
            begin, end = end, end + len(bits)
            tokens[begin:end] = bits
        ends.append(end)

    return each(append, steps)


@around("cpprb")
def append_cpprb(cpprb: ModuleType, steps: Sequence[Step]) -> Measure:
    """The buffer in Cython and C++. It takes Python numbers as they come."""
    typed = {"action": {"dtype": np.int64}, "done": {"dtype": np.bool_}}
    fields: Any = {**typed, "observation": {"shape": OBSERVATION}, "reward": {}}  # float32, where nothing is said
    add = cpprb.ReplayBuffer(len(steps), fields).add
    return each(lambda a, o, r, d: add(action=a, observation=o, reward=r, done=d), steps)


@around("stable_baselines3.common.buffers")
def append_sb3(buffers: ModuleType, steps: Sequence[Step]) -> Measure:
    """One environment, its results as arrays as a VecEnv gives them; the next observation, which it wants, too."""
    spaces = importlib.import_module("gymnasium").spaces
    box = spaces.Box(-1, 1, (OBSERVATION,))
    held = buffers.ReplayBuffer(len(steps), box, spaces.Discrete(2), device="cpu", handle_timeout_termination=False)
    infos: list[dict[str, object]] = [{}]
    ready = [(o, o, np.array([a]), np.array([r]), np.array([d]), infos) for a, o, r, d in steps]
    return each(held.add, ready)


@around("torchrl.data")
def append_torchrl(data: ModuleType, steps: Sequence[Step], storage: str) -> Measure:
    """The plain ReplayBuffer: TensorDictReplayBuffer takes twice as long. Making the TensorDict would add a third."""
    torch, tensordict = map(importlib.import_module, ("torch", "tensordict"))
    names = ("action", "observation", "reward", "done")
    fields = [dict(zip(names, map(torch.as_tensor, step), strict=True)) for step in steps]
    where = {"scratch_dir": scratch()} if storage == "LazyMemmapStorage" else {}
    held = data.ReplayBuffer(storage=getattr(data, storage)(len(steps), **where))
    return each(held.add, [(tensordict.TensorDict(step, batch_size=[]),) for step in fields])


# Transitions -------------------------------------------------------------------------------------------------------


def transition_peers(columns: dict[str, np.ndarray], n: int) -> dict[str, Peer]:
    """All who hold transitions ready, with each next observation stored again, in us for a batch."""
    return {
        "NumPy arrays, next observations stored": transitions_numpy(columns, n),
        "stable-baselines3 sample": transitions_sb3(columns, n),
        "cpprb sample": transitions_cpprb(columns, n),
        "torchrl LazyTensorStorage sample": transitions_torchrl(columns, n),
    }


def _with_next(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**columns, "next": np.roll(columns["observation"], -1, axis=0)}


def transitions_numpy(columns: dict[str, np.ndarray], n: int) -> Measure:
    """The floor in NumPy: a gather from each array."""
    ready, rng = _with_next(columns), np.random.default_rng(0)
    size = len(ready["action"])

    def sample() -> dict[str, np.ndarray]:
        chosen = rng.integers(0, size, n)
        return {name: values[chosen] for name, values in ready.items()}

    return per_call(sample, calls=100, unit="us")


@around("stable_baselines3.common.buffers")
def transitions_sb3(buffers: ModuleType, columns: dict[str, np.ndarray], n: int) -> Measure:
    """Its arrays filled directly: adding them one by one would take minutes."""
    spaces = importlib.import_module("gymnasium").spaces
    size = len(columns["action"])
    box = spaces.Box(-1, 1, (OBSERVATION,))
    held = buffers.ReplayBuffer(size, box, spaces.Discrete(2), device="cpu", handle_timeout_termination=False)
    ready = _with_next(columns)
    held.observations[:, 0], held.next_observations[:, 0] = ready["observation"], ready["next"]
    held.actions[:, 0, 0], held.rewards[:, 0], held.dones[:, 0] = ready["action"], ready["reward"], ready["done"]
    held.full = True
    return per_call(lambda: held.sample(n), calls=50, unit="us")


@around("cpprb")
def transitions_cpprb(cpprb: ModuleType, columns: dict[str, np.ndarray], n: int) -> Measure:
    """The buffer in Cython and C++."""
    fields: Any = {"action": {"dtype": np.int64}, "done": {"dtype": np.bool_}, "reward": {}}
    shapes = {name: {"shape": OBSERVATION} for name in ("observation", "next")}
    held = cpprb.ReplayBuffer(len(columns["action"]), {**fields, **shapes})
    held.add(**_with_next(columns))
    return per_call(lambda: held.sample(n), calls=50, unit="us")


@around("torchrl.data")
def transitions_torchrl(data: ModuleType, columns: dict[str, np.ndarray], n: int) -> Measure:
    """The plain ReplayBuffer over tensors in memory."""
    torch, tensordict = map(importlib.import_module, ("torch", "tensordict"))
    size = len(columns["action"])
    held = data.ReplayBuffer(storage=data.LazyTensorStorage(size), batch_size=n)
    held.extend(tensordict.TensorDict({k: torch.from_numpy(v) for k, v in _with_next(columns).items()}, [size]))
    return per_call(held.sample, calls=50, unit="us")


# Reading windows and single tokens -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """The windows to be read: for each batch the token numbers at which they start, from a file of int64 tokens."""

    path: Path
    n_tokens: int
    starts: Sequence[np.ndarray]
    width: int = 128

    @cached_property
    def data(self) -> np.ndarray:
        """The tokens as a plain array, which takes half as long to slice as an np.memmap."""
        return np.asarray(mapped(self.path, np.int64, self.n_tokens))

    def rate(self, read: Read) -> Measure:
        """Tokens a second, where ``read`` is given the starts of one batch after the other."""

        def loop() -> None:
            for starts in self.starts:
                read(starts)

        return per_second(loop, sum(map(len, self.starts)) * self.width)


def mapped(path: Path, dtype: DTypeLike, n: int) -> np.ndarray:
    """The file as an np.memmap with each page touched; writable in memory, for torch warns of arrays that are not."""
    data = np.memmap(path, dtype, "c", shape=(n,))
    data[:: 4096 // data.itemsize].max()
    return data


def window_peers(windows: Windows) -> dict[str, Peer]:
    """All who read windows, in tokens/s."""
    data, offsets = windows.data, np.arange(windows.width)
    memmap = mapped(windows.path, np.int64, windows.n_tokens)
    copied = f"{min(COPIED, windows.n_tokens):,} tokens"
    return {
        "C gather by hand": windows_c(windows),
        "sliding_window_view": windows.rate(sliding_window_view(data, windows.width).__getitem__),
        "torch unfold, index_select": windows_unfold(windows),
        "np.take": windows.rate(lambda starts: np.take(data, starts[:, None] + offsets)),
        "torch.index_select": windows_index_select(windows),
        "slices of an array, torch.stack": windows_stack(windows, data),
        "slices of np.memmap, torch.stack (nanoGPT)": windows_stack(windows, memmap),
        f"datasets, aligned rows of {windows.width}": windows_datasets(windows),
        f"torchrl SliceSampler, {copied} in memory": windows_torchrl(windows),
        f"litdata, aligned blocks, {copied}": windows_litdata(windows),
    }


# Where an array keeps the address of its data is told at compile time. Taking it there costs nothing; asking in
# Python (array.ctypes.data) costs a microsecond for each array, and the whole batch takes thirty.
C_SOURCE = r"""
#include <stdint.h>
#define AHEAD 4
#define PREFETCH(from, n_bytes) \
    for (int64_t at = 0; at < (n_bytes); at += 64) __builtin_prefetch((const char *)(from) + at)
typedef struct { char head[HEAD]; void *data; } array;

void gather(int64_t n, int64_t width, array *starts, array *tokens, array *out) {
    const int64_t *start = starts->data, *token = tokens->data;
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) PREFETCH(token + start[i + AHEAD], width * 8);
        __builtin_memcpy((int64_t *)out->data + i * width, token + start[i], width * 8);
    }
}

void gather_typed(int64_t n, int64_t width, array *starts, array *tokens, array *out, array *types, array *wide) {
    const int64_t *start = starts->data, *token = tokens->data;
    const uint8_t *type = types->data;
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) PREFETCH(token + start[i + AHEAD], width * 8);
        if (i + AHEAD < n) PREFETCH(type + start[i + AHEAD], width);
        __builtin_memcpy((int64_t *)out->data + i * width, token + start[i], width * 8);
        const uint8_t *from = type + start[i];  // out of the loop, or it is not vectorized
        int64_t *to = (int64_t *)wide->data + i * width;
        for (int64_t j = 0; j < width; j++) to[j] = from[j];
    }
}
"""


def compiled(name: str, n_arrays: int) -> Any:
    """A function of ``C_SOURCE``, or ``Missing``."""
    source = Path(scratch(), "gather.c")
    source.write_text(C_SOURCE)
    flags = ["-O3", "-march=native", "-shared", "-fPIC", f"-DHEAD={object.__basicsize__}"]
    try:
        subprocess.run(["cc", *flags, str(source), "-o", f"{source}.so"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return Missing(f"no C compiler: {error}")
    prototype = ctypes.PYFUNCTYPE(None, *[ctypes.c_int64] * 2, *[ctypes.py_object] * n_arrays)
    return prototype((name, ctypes.PyDLL(f"{source}.so")))


def windows_c(windows: Windows) -> Peer:
    """The machine's own limit: copy each window, fetching ahead. No bounds are checked."""
    gather, data, width = compiled("gather", 3), windows.data, windows.width

    def read(starts: np.ndarray) -> np.ndarray:
        out = np.empty((len(starts), width), np.int64)
        gather(len(starts), width, starts, data, out)
        return out

    return gather if isinstance(gather, Missing) else windows.rate(read)


def windows_c_typed(windows: Windows, types_path: Path) -> Peer:
    """The same with the type of every token, a uint8 in another file, widened to int64. A token counts once."""
    gather, data, width = compiled("gather_typed", 5), windows.data, windows.width
    types = np.asarray(mapped(types_path, np.uint8, windows.n_tokens))

    def read(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out, wide = np.empty((len(starts), width), np.int64), np.empty((len(starts), width), np.int64)
        gather(len(starts), width, starts, data, out, types, wide)
        return out, wide

    return gather if isinstance(gather, Missing) else windows.rate(read)


@around("torch")
def windows_unfold(torch: ModuleType, windows: Windows) -> Measure:
    """Torch's quickest: ``sliding_window_view`` by another name."""
    view = torch.from_numpy(windows.data).unfold(0, windows.width, 1)
    return windows.rate(lambda starts: view.index_select(0, torch.from_numpy(starts)))


@around("torch")
def windows_index_select(torch: ModuleType, windows: Windows) -> Measure:
    """A token number for every token; advanced indexing by the same numbers takes half as long again."""
    data, offsets, width = torch.from_numpy(windows.data), torch.arange(windows.width), windows.width

    def read(starts: np.ndarray) -> Any:
        return data.index_select(0, (torch.from_numpy(starts)[:, None] + offsets).view(-1)).view(-1, width)

    return windows.rate(read)


@around("torch")
def windows_stack(torch: ModuleType, windows: Windows, data: np.ndarray) -> Measure:
    """A slice for every window."""
    stack, from_numpy, width = torch.stack, torch.from_numpy, windows.width
    return windows.rate(lambda starts: stack([from_numpy(data[i : i + width]) for i in starts.tolist()]))


@around("datasets")
def windows_datasets(datasets: ModuleType, windows: Windows) -> Measure:
    """Rows of one window each, over the same mapping."""
    n_rows = windows.n_tokens // windows.width
    rows = pa.FixedSizeListArray.from_arrays(pa.array(windows.data[: n_rows * windows.width]), windows.width)
    held = datasets.Dataset(pa.table({"tokens": rows}), fingerprint="bench").with_format("numpy")
    return windows.rate(lambda starts: held[(starts // windows.width % n_rows).tolist()]["tokens"])


@around("torchrl.data")
def windows_torchrl(data: ModuleType, windows: Windows) -> Measure:
    """One trajectory in memory, its end known once and for all. The sampler draws its own starts, inside the time."""
    torch, tensordict = map(importlib.import_module, ("torch", "tensordict"))
    tokens = torch.from_numpy(windows.data[:COPIED])
    n, n_drawn = len(tokens), len(windows.starts[0]) * windows.width
    steps = tensordict.TensorDict({"token": tokens, "is_end": torch.arange(n) == n - 1}, [n])
    unused = {"truncated_key": None, "init_key": None, "step_key": None}
    sampler = data.SliceSampler(slice_len=windows.width, end_key="is_end", cache_values=True, **unused)
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(n), sampler=sampler, batch_size=n_drawn)
    buffer.extend(steps)
    return windows.rate(lambda _: buffer.sample()["token"].view(-1, windows.width))


@around("litdata")
def windows_litdata(litdata: ModuleType, windows: Windows) -> Measure:
    """One chunk, which stays mapped, in blocks of one window each."""
    n, folder, loader = min(COPIED, windows.n_tokens), scratch(), litdata.TokensLoader
    before = multiprocessing.get_start_method(allow_none=True)  # optimize changes it for the whole process
    part = partial(np.memmap, windows.path, np.int64, "r", shape=(n,))
    litdata.optimize(part, [0], folder, chunk_size=n, item_loader=loader(), num_workers=1, verbose=False)
    multiprocessing.set_start_method(before, force=True)
    held = litdata.StreamingDataset(folder, item_loader=loader(block_size=windows.width))
    n_blocks = len(held)
    return windows.rate(lambda starts: np.stack([held[i] for i in (starts // windows.width % n_blocks).tolist()]))


def single_peers(tokens: Windows) -> dict[str, Peer]:
    """All who read tokens from anywhere in the file, which are windows of width 1, in tokens/s."""
    return {"np.take": tokens.rate(partial(np.take, tokens.data)), "torch.index_select": singles_index_select(tokens)}


@around("torch")
def singles_index_select(torch: ModuleType, tokens: Windows) -> Measure:
    """The way of torch; advanced indexing takes four times as long."""
    data = torch.from_numpy(tokens.data)
    return tokens.rate(lambda starts: data.index_select(0, torch.from_numpy(starts)))
