"""StreamStore against what people record and sample with today, and against the machine's own limits.

A step is action (int), observation (float32[4]), reward (float), done (bool): 4 field-writes, 7 tokens, 159 bytes in
the lanes. Windows are 256 x 128 tokens from anywhere in the stream. The largest stream is sparse: its index is real,
its values are zeros that the disk never held, and every page of them is in memory before it is read.

    python -m benchmarks.bench_tokens                   # everything
    python -m benchmarks.bench_tokens append windows    # only these
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import token_peers as peers
from benchmarks.harness import Measure, compare, per_call, per_second
from poolish import StreamStore

NAMES = ["action", "observation", "reward", "done"]
TOKENS = 7
#: Bytes of one step in the three lanes.
STEP_BYTES = TOKENS * 8 + TOKENS + 4 * 24
STEPS = 50_000
BATCH, WIDTH = 256, 128
EPISODE = 200

rng = np.random.default_rng(7)


def main(chosen: list[str]) -> None:
    """All figures, or those that are named."""
    parts = {
        "append": append,
        "append_many": append_many,
        "windows": windows,
        "sample": sample,
        "experience": experience,
        "dataset": dataset,
    }
    for name, part in parts.items():
        if not chosen or name in chosen:
            part()


def typed_fields() -> dict[str, Any]:
    """The four fields; the observation as Arrow's list, so that no optional library is needed."""
    import pyarrow as pa

    return {"action": "int64", "observation": pa.list_(pa.float32()), "reward": "float64", "done": "bool"}


def a_step(i: int) -> peers.Step:
    """Step number i."""
    return i % 2, rng.random(4, np.float32), float(i % 3), i % EPISODE == EPISODE - 1


def columns(n: int) -> dict[str, np.ndarray]:
    """The same as columns."""
    ends = np.arange(n) % EPISODE == EPISODE - 1
    return {
        "action": np.arange(n) % 2,
        "observation": rng.random((n, 4), np.float32),
        "reward": rng.random(n),
        "done": ends,
    }


# Writing -------------------------------------------------------------------------------------------------------


def warm_store(n_steps: int) -> StreamStore:
    """A stream that has room for so many steps, every page of it touched."""
    store = StreamStore(fields=typed_fields())
    writer: Any = store._writer()
    writer._make_room(4 * n_steps, TOKENS * n_steps)
    for lane in (writer.lanes.data, writer.lanes.index, writer.lanes.types):
        lane.room[:] = 0
    writer._make_room(0, 0)
    store.append(steps=0, names=["action"], values=[0])
    return store


def appending(values: Callable[[peers.Step], list[Any]], make: Callable[[], StreamStore]) -> Measure:
    """How long one append takes with its arguments ready, as the peers have theirs."""
    ready = [([i] * 4, values(a_step(i))) for i in range(1, STEPS)]

    def loop(store: StreamStore) -> None:
        append = store.append
        for steps, step in ready:
            append(steps=steps, names=NAMES, values=step)

    measure = per_call(loop, prepare=make)
    return lambda: measure() / len(ready)


def append() -> None:
    """One step at a time, and what it costs with other kinds of values."""
    warm = lambda: warm_store(STEPS)  # noqa: E731
    fresh = lambda: StreamStore(fields=typed_fields())  # noqa: E731
    steps = [a_step(i) for i in range(STEPS)]
    n_bytes = STEPS * STEP_BYTES
    limit = per_call(store_into, prepare=lambda: new_file(n_bytes))
    bare = {"the same bytes stored into a new mapped file": lambda: limit() / STEPS}
    # The headline: a program that records, as it is typed, into a stream that grows. The rings never leave warm memory.
    compare(
        "tokens.append in a recording loop, fresh pages",
        "ns",
        built_in_loop(steps, fresh),
        peers.append_peers(steps) | bare,
    )
    plain = {"Python numbers, warm pages": appending(list, warm)}
    compare("tokens.append, fresh pages", "ns", appending(list, fresh), plain)
    compare(
        "tokens.append, warm pages", "ns", appending(list, warm), {"NumPy structured ring": peers.append_ring(steps)}
    )
    compare("tokens.append in a recording loop, warm pages", "ns", built_in_loop(steps, warm), plain)
    compare("tokens.append, NumPy scalars", "ns", appending(as_numpy, warm), plain)
    compare("tokens.append, observation as a list", "ns", appending(as_lists, warm), plain)
    compare("tokens.append, observation as a torch tensor", "ns", appending(as_torch, warm), plain)


def built_in_loop(steps: list[peers.Step], make: Callable[[], StreamStore]) -> Measure:
    """How long one append takes as it is typed, with the lists made on the way."""

    def loop(store: StreamStore) -> None:
        for i, (action, observation, reward, done) in enumerate(steps, 1):
            store.append(steps=[i, i, i, i], names=NAMES, values=[action, observation, reward, done])

    measure = per_call(loop, prepare=make)
    return lambda: measure() / len(steps)


def as_numpy(step: peers.Step) -> list[Any]:
    """The step in NumPy's own scalars."""
    return [np.int64(step[0]), step[1], np.float32(step[2]), np.bool_(step[3])]


def as_lists(step: peers.Step) -> list[Any]:
    """The step in nothing but Python."""
    return [step[0], step[1].tolist(), step[2], step[3]]


def as_torch(step: peers.Step) -> list[Any]:
    """The step with a tensor in it."""
    import torch

    return [step[0], torch.from_numpy(step[1].copy()), step[2], step[3]]


def append_many() -> None:
    """Whole episodes at once, where pages are warm and where they are new."""
    n = 20_000
    given, numbers = columns(n), np.arange(1, n + 1)
    warm = warm_store(n + 10)
    rewind = rewinding(warm)
    measure = per_call(lambda: (rewind(), warm.append_many(numbers, given)), calls=20)
    compare("tokens.append_many, warm pages", "ns", lambda: measure() / n)

    n = 1_000_000
    many, steps = columns(n), np.arange(n)
    total = n * STEP_BYTES
    ours = per_second(
        lambda store: store.append_many(steps, many), total, prepare=lambda: StreamStore(fields=typed_fields())
    )
    limits = {
        "zeros stored into a new mapped file": per_second(store_into, total, prepare=lambda: new_file(total)),
        "pwrite of 1 MiB parts into a new file": per_second(write_into, total, prepare=lambda: new_file(total)),
    }
    compare("tokens.append_many, fresh pages", "bytes/s", ours, limits, rounds=5)


def rewinding(store: StreamStore) -> Callable[[], None]:
    """Set a stream back to where it is now, so that the same pages are written again."""
    recorder: Any = store._writer().recorder
    names = ("n_rows", "n_tokens", "n_steps", "last_step", "last_type", "step_start")
    before = {name: getattr(recorder, name) for name in names}

    def rewind() -> None:
        for name, number in before.items():
            setattr(recorder, name, number)

    return rewind


def new_file(n_bytes: int) -> tuple[int, int]:
    """An open file that nobody else sees, with space on the disk."""
    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
    os.posix_fallocate(fd, 0, n_bytes)
    return fd, n_bytes


def store_into(file: tuple[int, int]) -> None:
    """Store into every byte of a file through a map: what no writer of a map can beat on one core."""
    fd, n_bytes = file
    np.frombuffer(mmap.mmap(fd, n_bytes), np.int64)[:] = 1
    os.close(fd)


def write_into(file: tuple[int, int]) -> None:
    """Write a file without a map."""
    fd, n_bytes = file
    part = bytes(1 << 20)
    for start in range(0, n_bytes, 1 << 20):
        os.pwrite(fd, part, start)
    os.close(fd)


# Reading -------------------------------------------------------------------------------------------------------


@contextmanager
def stream(n_tokens: int, **fields: Any) -> Iterator[StreamStore]:
    """A stream of so many tokens on disk, closed and opened again to read, its pages touched."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stream")
        with StreamStore(path, fields=typed_fields() | fields) as store:
            n, part = n_tokens // TOKENS, 1_000_000
            given = columns(min(n, part))
            for first in range(0, n, part):
                many = min(part, n - first)
                store.append_many(np.arange(first, first + many), {k: v[:many] for k, v in given.items()})
        with StreamStore.open(path) as reader:
            touch(reader)
            yield reader


@contextmanager
def sparse_stream(n_tokens: int) -> Iterator[StreamStore]:
    """A stream of zeros in steps of 1,000 tokens, of which only the index takes space on the disk."""
    import pyarrow as pa

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stream")
        store = StreamStore(path, fields={"text": pa.list_(pa.int64())})
        writer: Any = store._writer()
        os.truncate(path / "data", n_tokens * 8)
        os.truncate(path / "types", n_tokens)
        writer.lanes.refresh()
        n = n_tokens // 1_000
        writer.lanes.reserve(n, n_tokens)
        rows = np.stack([np.arange(n) * 1_000, np.arange(n) << 8, np.arange(n)], axis=1)
        writer.lanes.index.room[:n] = rows
        writer.lanes.index.room[n, 0] = n_tokens
        writer._attach(writer.recorder)
        writer.recorder.n_rows, writer.recorder.n_tokens, writer.recorder.n_steps = n, n_tokens, n
        writer.recorder.let_out()
        reader = StreamStore.open(path)
        touch(reader)
        yield reader


def touch(store: StreamStore) -> None:
    """Bring every page of a stream into memory."""
    lanes: Any = store._read().lanes
    for lane in (lanes.data, lanes.types, lanes.index):
        lane.file.bytes[::4096].max()


def batches(store: StreamStore, n: int = 300) -> list[np.ndarray]:
    """Starts of windows, all over the stream."""
    return [rng.integers(0, len(store) - WIDTH, BATCH) for _ in range(n)]


def windows() -> None:
    """Windows and single tokens out of 100 M, then windows at other sizes."""
    with stream(100_000_000) as store:
        starts = batches(store)
        asked = peers.Windows(lane(store, "data"), len(store), starts, WIDTH)
        ours = asked.rate(lambda starts: store.windows(starts, WIDTH, types=False))
        compare("tokens.windows, values", "tokens/s", ours, peers.window_peers(asked))
        typed = {"C gather by hand, types widened": peers.windows_c_typed(asked, lane(store, "types"))}
        compare(
            "tokens.windows, values and types",
            "tokens/s",
            asked.rate(lambda starts: store.windows(starts, WIDTH)),
            typed,
        )
        rows = [starts[:, None] + np.arange(WIDTH) for starts in asked.starts]
        compare("tokens[index], rows of consecutive tokens", "tokens/s", indexed(store, rows), typed)
        single = peers.Windows(
            asked.path, len(store), [rng.integers(0, len(store), BATCH * WIDTH) for _ in range(200)], 1
        )
        one = single.rate(lambda places: store.windows(places, 1, types=False))
        compare("tokens.windows of 1, values", "tokens/s", one, peers.single_peers(single))
        compare(
            "tokens[index], random tokens with types",
            "tokens/s",
            single.rate(store.__getitem__),
            peers.single_peers(single),
        )
    for n_tokens, make in ((1_000_000, stream), (1_000_000_000, sparse_stream)):
        with make(n_tokens) as store:
            asked = peers.Windows(lane(store, "data"), len(store), batches(store), WIDTH)
            ours = asked.rate(lambda starts, store=store: store.windows(starts, WIDTH, types=False))
            name = f"tokens.windows, values, {n_tokens:,} tokens"
            compare(name, "tokens/s", ours, {"C gather by hand": peers.windows_c(asked)})


def lane(store: StreamStore, name: str) -> Path:
    """The file of a lane."""
    assert store.path is not None
    return store.path / name


def indexed(store: StreamStore, rows: list[np.ndarray]) -> Measure:
    """Tokens a second by index arrays."""

    def loop() -> None:
        for places in rows:
            store[places]

    return per_second(loop, sum(places.size for places in rows))


def sample() -> None:
    """Windows inside episodes against windows from anywhere, at two sizes, and while the stream grows."""
    for n_tokens in (1_000_000, 100_000_000):
        with stream(n_tokens) as store:
            starts = batches(store)
            asked = peers.Windows(lane(store, "data"), len(store), starts, WIDTH)
            anywhere = {"windows": asked.rate(lambda starts, store=store: store.windows(starts, WIDTH))}
            for kind in ("token", "step"):
                name = f"tokens.sample within episodes, start={kind}, {n_tokens:,} tokens"
                compare(name, "tokens/s", asked.rate(sampling(store, kind)), anywhere)
    with stream(10_000_000) as reader:
        path = reader.path
        assert path is not None
        grown = StreamStore.open(path, mode="a")
        asked = peers.Windows(path / "data", len(grown), batches(reader), WIDTH)
        anywhere = {"windows": asked.rate(lambda starts: grown.windows(starts, WIDTH))}
        compare(
            "tokens.sample within episodes, a step appended before each",
            "tokens/s",
            asked.rate(growing(grown)),
            anywhere,
        )
        grown.close()


def sampling(store: StreamStore, kind: str) -> peers.Read:
    """A batch of windows that lie inside episodes."""
    draw = np.random.default_rng(0)
    return lambda starts: store.sample(len(starts), WIDTH, rng=draw, start=kind, within="done")


def growing(store: StreamStore) -> peers.Read:
    """The same, after another step has been recorded."""
    read = sampling(store, "step")
    observation = np.zeros(4, np.float32)

    def grow(starts: np.ndarray) -> object:
        step = next(numbers)
        store.append(steps=step, names=NAMES, values=[1, observation, 0.5, step % EPISODE == 0])
        return read(starts)

    numbers = iter(range(100_000_000, 200_000_000))
    return grow


# Experience ----------------------------------------------------------------------------------------------------


def experience() -> None:
    """Decoded sequences against raw windows of as many tokens, and transitions against arrays that hold them ready."""
    n_steps = WIDTH // TOKENS
    for n_tokens in (1_000_000, 100_000_000):
        with stream(n_tokens, observation=("float32", (4,))) as store:
            asked = peers.Windows(lane(store, "data"), len(store), batches(store), n_steps * TOKENS)
            raw = {"windows of as many tokens, not decoded": asked.rate(raw_windows(store, n_steps * TOKENS))}
            name = f"tokens.sample(n_steps=), decoded, {n_tokens:,} tokens"
            compare(name, "tokens/s", asked.rate(decoded(store, n_steps)), raw)
            draw = np.random.default_rng(0)
            read = partial(store.transitions, BATCH, rng=draw, repeat_final=True)
            ready = peers.transition_peers(columns(min(store.n_steps, 5_000_000)), BATCH)
            compare(
                f"tokens.transitions of 256, {store.n_steps:,} steps", "us", per_call(read, calls=100, unit="us"), ready
            )
    frames()


def raw_windows(store: StreamStore, width: int) -> peers.Read:
    """Tokens and types, as they are stored."""
    return lambda starts: store.windows(starts, width)


def decoded(store: StreamStore, n_steps: int) -> peers.Read:
    """Sequences inside episodes, in the declared dtypes and shapes."""
    draw = np.random.default_rng(0)
    return lambda starts: store.sample(len(starts), n_steps=n_steps, within="done", rng=draw)


def frames() -> None:
    """What a stream of frames takes on disk, of which stacks are made when they are read, over the frames alone."""
    shape, n = (84, 84), 200
    store = StreamStore(fields={"obs": ("uint8", shape), "action": "int64", "reward": "float32", "done": "bool"})
    for i in range(n):
        store.append(i, {"obs": np.zeros(shape, np.uint8), "action": 0, "reward": 0.0, "done": False})
    stored = len(store) * 9 + store.n_steps * 4 * 24
    single = {"the tokens of the frames alone": lambda: float(n * shape[0] * shape[1] * 9)}
    compare("tokens, frames that are stacked when read", "bytes", lambda: float(stored), single, rounds=1)


# Hugging Face --------------------------------------------------------------------------------------------------


def dataset() -> None:
    """To and from a dataset, against a loop over rows; and the memory that it takes."""
    import datasets

    datasets.disable_progress_bars()
    n = 20_000
    store = StreamStore(fields=typed_fields())
    store.append_many(np.arange(n), columns(n))
    held = store.to_dataset()
    loops = {"a loop over rows": per_second(lambda: row_loop_to(store, datasets), n)}
    compare("tokens.to_dataset", "rows/s", per_second(store.to_dataset, n), loops, rounds=3)
    loops = {"a loop over rows": per_second(lambda: row_loop_from(held), n)}
    bulk = per_second(lambda: StreamStore(fields=typed_fields()).from_dataset(held), n)
    compare("tokens.from_dataset", "rows/s", bulk, loops, rounds=3)
    for n_steps in (250_000, 1_000_000, 4_000_000):
        compare(
            f"tokens.to_dataset, peak memory over the stream's own, {n_steps:,} steps",
            "MiB",
            lambda n=n_steps: peak(n),
            rounds=1,
        )


def row_loop_to(store: StreamStore, datasets: Any) -> object:
    """What one writes at home: a generator of rows."""
    rows = store.steps
    # A fingerprint that nobody has used: from_generator gives back what it once made for the same one.
    own = {"fingerprint": uuid.uuid4().hex, "cache_dir": peers.scratch()}
    return datasets.Dataset.from_generator(lambda: (dict(row) for row in rows()), features=store.features, **own)


def row_loop_from(held: Any) -> None:
    """The way back, row by row."""
    store = StreamStore(fields=typed_fields())
    for i, row in enumerate(held):
        store.append(steps=i, names=NAMES, values=list(row.values()))


def peak(n_steps: int) -> float:
    """MiB of private memory that ``to_dataset`` adds at its worst, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(n_steps)], capture_output=True, text=True, check=True)
    return float(done.stdout)


# Anonymous memory only: pages of the stream's own files are the system's, which takes them back when it likes.
PEAK = """
import sys, threading, time
import numpy as np
from benchmarks.bench_tokens import StreamStore, columns, typed_fields
store = StreamStore(fields=typed_fields())
n = int(sys.argv[1])
for first in range(0, n, 250_000):
    store.append_many(np.arange(first, first + 250_000), columns(250_000))
store.from_dataset  # the way there and back is loaded before anything is measured
import datasets
datasets.disable_progress_bars()
StreamStore(fields=["x"]).to_dataset()
def anonymous():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024
seen, is_done = [anonymous()], threading.Event()
def watch():
    while not is_done.wait(0.005):
        seen.append(anonymous())
thread = threading.Thread(target=watch)
thread.start()
store.to_dataset()
is_done.set()
thread.join()
print(max(seen) - seen[0])
"""


if __name__ == "__main__":
    main(sys.argv[1:])
