"""DatasetBuffer against what people use today, at three sizes: what is asked for should cost the same in all of them.

Rows are {"text": 200 characters, "label": int, "embedding": float32[64]}. Peers hold the same rows: a deque of dicts
(the floor for one row at a time: it checks and copies nothing), Hugging Face datasets, Arrow tables, TorchRL's
ListStorage, Lance.

    python -m benchmarks.bench_rows            # all sizes
    python -m benchmarks.bench_rows 10000      # one size
"""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Measure, Missing, compare, needs, per_call
from poolish import DatasetBuffer, Suite
from poolish.rows.access import gather_fn

SIZES = (10_000, 100_000, 1_000_000)
TEXT_LENGTH = 200
EMBEDDING = 64
BATCH = 256
CHUNK = 10_000
#: Bytes of one row: text, label, embedding.
PAYLOAD = TEXT_LENGTH + 8 + 4 * EMBEDDING

rng = np.random.default_rng(7)


def main(sizes: Iterable[int]) -> None:
    """All figures, one size after the other."""
    warm_up_memory()
    for n in sizes:
        stage = Stage(n)
        append_one(stage)
        append_columns(stage)
        evict(stage)
        get_batch(stage)
        address_order(stage)
        get_one(stage)
        look_back(stage)
        evict_lowest(stage)
        snapshot(stage)
        to_torch(stage)
        memory(stage)


def warm_up_memory() -> None:
    """Touch as much memory as will be used: on a virtual machine the first touch of a page ever can cost 2 us."""
    np.ones(3 << 30, np.uint8)


def chunk_of_rows() -> pa.Table:
    """Rows that are all different."""
    letters = rng.integers(97, 123, (CHUNK, TEXT_LENGTH), dtype=np.uint8)
    values = pa.array(rng.random(CHUNK * EMBEDDING, np.float32))
    embedding = pa.FixedShapeTensorArray.from_numpy_ndarray(values.to_numpy().reshape(CHUNK, EMBEDDING))
    texts = pa.array([bytes(row).decode() for row in letters], pa.large_string())
    return pa.table({"text": texts, "label": pa.array(np.arange(CHUNK)), "embedding": embedding})


class Stage:
    """Everybody's rows, for one size."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.chunk = chunk_of_rows()
        buffer = DatasetBuffer()
        buffer.append(self.chunk)
        self.dicts = buffer.snapshot().__getitems__(range(CHUNK))
        self.table = pa.concat_tables([self.chunk] * (n // CHUNK)).combine_chunks()
        self.indices = [rng.integers(0, n, BATCH) for _ in range(400)]
        self.numbers = rng.integers(0, n, 5_000).tolist()

    def name(self, figure: str) -> str:
        return f"rows.{figure}, {self.n:,} rows"

    def buffer(self, **settings: Any) -> DatasetBuffer:
        """A buffer that holds all rows; appended in parts, as it would be."""
        buffer = DatasetBuffer(**settings)
        for _ in range(self.n // CHUNK):
            buffer.append(self.chunk)
        return buffer

    def deque(self, **settings: Any) -> deque[dict[str, Any]]:
        return deque((self.dicts[i % CHUNK] for i in range(self.n)), **settings)

    def hf(self, datasets: ModuleType) -> Any:
        return datasets.Dataset(plain_lists(self.table), fingerprint="bench")

    def list_storage(self, torchrl: ModuleType) -> Any:
        from torchrl.data import ListStorage, ReplayBuffer

        storage = ReplayBuffer(storage=ListStorage(self.n), batch_size=BATCH, collate_fn=list)
        storage.extend([self.dicts[i % CHUNK] for i in range(self.n)])
        return storage

    def lance(self, lance: ModuleType, folder: str) -> Any:
        return lance.write_dataset(plain_lists(self.table), folder)


def each(function: Callable[[Any], object], items: list[Any], unit: str = "us") -> Measure:
    """The time of one call, measured over all items."""

    def loop() -> None:
        for item in items:
            function(item)

    measure = per_call(loop, unit=unit)
    return lambda: measure() / len(items)


def append_one(stage: Stage) -> None:
    """One validated row at a time, into a buffer that already holds n."""
    buffer, plain, some = stage.buffer(), stage.deque(), stage.dicts[:4096]

    def hf(datasets: ModuleType) -> Measure:
        held = stage.hf(datasets)
        return each(lambda row: held.add_item({**row, "embedding": row["embedding"].tolist()}), stage.dicts[:2])

    def torchrl(module: ModuleType) -> Measure:
        held = stage.list_storage(module)
        return each(held.add, stage.dicts[:256])

    peers = {
        "deque of dicts": each(plain.append, some),
        "pa.concat_tables": each(lambda row: concat_one(stage, row), stage.dicts[:64]),
        "datasets.add_item": needs("datasets", hf),
        "torchrl ListStorage.add": needs("torchrl", torchrl),
    }
    compare(stage.name("append one row"), "us", each(buffer.append, some), peers, rounds=5)
    suite = Suite().expect("label", between=(0, CHUNK)).expect("text", max_length=TEXT_LENGTH)
    suite.expect("embedding", finite=True).expect_rows("label * 2 >= label")
    guarded = stage.buffer(guard=suite)
    unguarded: dict[str, Measure | Missing] = {"without a guard": each(buffer.append, some)}
    compare(stage.name("append one row, guarded"), "us", each(guarded.append, some), unguarded, rounds=5)


def storage_schema(table: pa.Table) -> pa.Schema:
    """The table's schema with plain lists for tensors, which Arrow can build from Python values."""
    return pa.schema([pa.field(f.name, getattr(f.type, "storage_type", f.type)) for f in table.schema])


def concat_one(stage: Stage, row: dict[str, Any]) -> pa.Table:
    """The usual way with Arrow: a table of one row, concatenated."""
    one = pa.Table.from_pylist([{**row, "embedding": row["embedding"].tolist()}], schema=storage_schema(stage.table))
    return pa.concat_tables([stage.table.select(["text", "label"]), one.select(["text", "label"])])


def append_columns(stage: Stage) -> None:
    """Whole columns at a time: 10,000 rows that come as an Arrow table, into memory that was never used before."""
    n_calls = 10

    def rate(measure: Measure) -> Measure:
        return lambda: CHUNK * 1e6 / measure()

    def new_memory() -> float:
        # The machine's own limit: as many bytes, into a mapping like the buffer's own.
        data = np.ones(CHUNK * PAYLOAD, np.uint8)
        pages = mmap.mmap(-1, 2 * n_calls * len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        target = np.frombuffer(pages, np.uint8)

        def copy(i: int) -> None:
            target[i * len(data) : (i + 1) * len(data)] = data

        return rate(each(copy, list(range(n_calls))))()

    def lance(module: ModuleType) -> Measure:
        folder = tempfile.mkdtemp(prefix="poolish-bench-")
        stage.lance(module, folder)
        part = plain_lists(stage.chunk)
        return rate(each(lambda _: module.write_dataset(part, folder, mode="append"), [0]))

    def extend(module: ModuleType) -> Measure:
        storage = stage.list_storage(module)
        return rate(each(lambda _: storage.extend(stage.dicts), [0]))

    buffer = stage.buffer()
    peers: dict[str, Measure | Missing] = {
        "copy into new memory": new_memory,
        "torchrl ListStorage.extend": needs("torchrl", extend),
        "lance append": needs("lance", lance),
    }
    compare(stage.name("append columns"), "rows/s", rate(each(buffer.append, [stage.chunk] * n_calls)), peers, rounds=5)


def plain_lists(table: pa.Table) -> pa.Table:
    """The table with lists in place of tensors, which other libraries do not know."""
    return table.set_column(2, "embedding", table["embedding"].combine_chunks().storage)


def evict(stage: Stage) -> None:
    """What it costs that a row leaves when another comes, moving the rest now and then included."""
    n_chunks = max(2, stage.n // CHUNK)
    free = [stage.chunk] * n_chunks

    for strategy in ("oldest", "random"):
        full = stage.buffer(max_size=stage.n, drop_strategy=strategy)

        def poolish(full: DatasetBuffer = full) -> float:
            unbounded = DatasetBuffer()
            growing = each(unbounded.append, free)()
            return (each(full.append, free)() - growing) / CHUNK

        plain = stage.deque(maxlen=stage.n)
        oldest = each(plain.append, stage.dicts)
        compare(
            stage.name(f"evict one row, {strategy}"),
            "us",
            poolish,
            {"deque append with maxlen": oldest}
            if strategy == "oldest"
            else {"Arrow filter, one row": each(lambda i: drop_with_arrow(stage, i), [5])},
            rounds=5,
        )

        def singles(full: DatasetBuffer = full) -> float:
            return each(full.append, stage.dicts)()

        compare(
            stage.name(f"append one row when full, {strategy}"),
            "us",
            singles,
            {"deque append with maxlen": oldest},
            rounds=5,
        )


def drop_with_arrow(stage: Stage, i: int) -> pa.Table:
    """The usual way with Arrow: filter out one row."""
    mask = np.ones(stage.n, bool)
    mask[i] = False
    return stage.table.select(["text", "label"]).filter(pa.array(mask))


def get_batch(stage: Stage) -> None:
    """256 random rows at a time."""
    buffer = stage.buffer()
    plain = list(stage.deque())

    def rate(measure: Measure) -> Measure:
        return lambda: BATCH * 1e6 / measure()

    def hf(datasets: ModuleType) -> Measure:
        held = stage.hf(datasets).with_format("numpy")
        return rate(each(lambda i: held[i.tolist()], stage.indices[:5]))

    def torchrl(module: ModuleType) -> Measure:
        held = stage.list_storage(module)
        return rate(each(lambda i: held[i.tolist()], stage.indices))

    def lance(module: ModuleType) -> Measure:
        held = stage.lance(module, tempfile.mkdtemp(prefix="poolish-bench-"))
        return rate(each(lambda i: held.take(np.sort(i)), stage.indices[:5]))

    chunked = pa.concat_tables([stage.chunk] * max(1, stage.n // CHUNK))
    peers = {
        "Arrow take, one chunk": rate(each(stage.table.take, stage.indices)),
        f"Arrow take, {stage.n // CHUNK} chunks": rate(each(chunked.take, stage.indices[:3])),
        "list of dicts": rate(each(lambda i: [plain[k] for k in i.tolist()], stage.indices)),
        "datasets": needs("datasets", hf),
        "torchrl ListStorage": needs("torchrl", torchrl),
        "lance take": needs("lance", lance),
    }
    compare(stage.name("get_batch of 256 random rows"), "rows/s", rate(each(buffer.get_batch, stage.indices)), peers)
    thinned = stage.buffer(max_size=stage.n, drop_strategy="random")
    thinned.append(stage.chunk.slice(0, CHUNK // 3))
    compare(
        stage.name("get_batch after random evictions"),
        "rows/s",
        rate(each(thinned.get_batch, stage.indices)),
        {"Arrow take, one chunk": rate(each(stage.table.take, stage.indices))},
    )


def address_order(stage: Stage) -> None:
    """Shuffled batches read as asked for, against reading them in the order of addresses and putting them back."""
    held = stage.buffer().snapshot()

    def sort_first(numbers: Any) -> object:
        order = np.argsort(numbers)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        batch = held.get_batch(numbers[order]).combine_chunks()
        return [gather_fn(column.chunk(0))(back) for column in batch.columns]

    for size in (BATCH, 8_192):
        batches = [rng.integers(0, stage.n, size) for _ in range(20)]
        peers: dict[str, Measure | Missing] = {"sorted, read, put back": each(sort_first, batches)}
        compare(stage.name(f"shuffled batch of {size:,} rows"), "us", each(held.get_batch, batches), peers)


def get_one(stage: Stage) -> None:
    """One row as a dict."""
    buffer = stage.buffer()

    def hf(datasets: ModuleType) -> Measure:
        held = stage.hf(datasets)
        return each(lambda i: held[i], stage.numbers[:50])

    peers = {
        "Arrow slice + to_pylist": each(lambda i: stage.table.slice(i, 1).to_pylist(), stage.numbers[:100]),
        "datasets": needs("datasets", hf),
    }
    compare(stage.name("one random row"), "us", each(buffer.__getitem__, stage.numbers), peers)


def evict_lowest(stage: Stage) -> None:
    """A row at a time into a full buffer that drops the lowest label, against one that drops the oldest."""
    low, old = (stage.buffer(max_size=stage.n, drop_strategy=name) for name in ("lowest:label", "oldest"))
    labels = rng.integers(0, CHUNK, 4096).tolist()
    some = [{**row, "label": label} for row, label in zip(stage.dicts[:4096], labels, strict=True)]
    peers: dict[str, Measure | Missing] = {"drop the oldest": each(old.append, some)}
    compare(stage.name("append one row when full, lowest"), "us", each(low.append, some), peers, rounds=9)


def look_back(stage: Stage) -> None:
    """A row appended and one read at each step, against a deque, which checks and copies nothing."""
    buffer, plain = stage.buffer(max_size=stage.n), stage.deque(maxlen=stage.n)
    row = stage.dicts[0]

    def step(rows: Any) -> None:
        rows.append(row)
        rows[-1]

    peers: dict[str, Measure | Missing] = {"deque of dicts": each(step, [plain] * 2_000)}
    compare(stage.name("append one row, read one row"), "us", each(step, [buffer] * 2_000), peers, rounds=5)


def snapshot(stage: Stage) -> None:
    """A snapshot after every append."""
    buffer = stage.buffer()
    row = stage.dicts[0]

    def changed(_: object) -> None:
        buffer.append(row)
        buffer.snapshot()

    compare(
        stage.name("append one row + snapshot"),
        "us",
        each(changed, [0] * 200),
        {"list(deque)": each(list, [stage.deque()])},
        rounds=5,
    )


def to_torch(stage: Stage) -> None:
    """Tensors of all rows, sharing memory: the address is the buffer's."""
    buffer = stage.buffer()
    tensors = buffer.to_torch(columns=["label", "embedding"])
    region = buffer.to_arrow()["embedding"].chunk(0).storage.values.buffers()[1]
    assert tensors["embedding"].data_ptr() == region.address, "to_torch has copied"

    def hf(datasets: ModuleType) -> Measure:
        held = stage.hf(datasets).with_format("torch", columns=["label", "embedding"])
        return each(lambda _: held[: stage.n], [0])

    compare(
        stage.name("to_torch, label and embedding"),
        "us",
        each(lambda _: buffer.to_torch(columns=["label", "embedding"]), [0] * 20),
        {"datasets": needs("datasets", hf)},
        rounds=3,
    )


def memory(stage: Stage) -> None:
    """Peak memory over payload, in a process of its own: full, and while the rows move after evictions."""
    limit = {"full": 1.3, "compacting": 3.0}
    for phase in limit:
        compare(
            stage.name(f"peak memory / payload, {phase}"),
            "bytes/byte",
            lambda phase=phase: peak_memory(stage.n, phase),
            {"the bound": lambda phase=phase: limit[phase]},
            rounds=1,
        )


def peak_memory(n: int, phase: str) -> float:
    """Bytes that the process grew by, for each byte of payload."""
    program = f"from benchmarks.bench_rows import grow; grow({n}, {phase!r})"
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def grow(n: int, phase: str) -> None:
    """The child: fill a buffer, and in the second phase let it turn over more than once."""
    part = chunk_of_rows().slice(0, CHUNK // 10)
    fill(DatasetBuffer(max_size=CHUNK, drop_strategy="random"), part, 4 * CHUNK)  # what is loaded and allocated once
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    buffer = DatasetBuffer(max_size=n, drop_strategy="random" if phase == "compacting" else "oldest")
    fill(buffer, part, 3 * n if phase == "compacting" else n)
    print((status("VmHWM") - before) / (n * PAYLOAD))


def fill(buffer: DatasetBuffer, part: pa.Table, n_rows: int) -> None:
    """Append ``n_rows`` in parts."""
    for _ in range(n_rows // len(part)):
        buffer.append(part)


def status(name: str) -> int:
    """A figure from the kernel, in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    random.seed(7)
    main([int(size) for size in sys.argv[1:]] or SIZES)
