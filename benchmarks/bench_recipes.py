"""Recipes against polars, Ray Data, Hugging Face datasets and pyarrow by hand: baking, baking again, choosing, memory.

    python -m benchmarks.bench_recipes                   # all
    python -m benchmarks.bench_recipes bake rebake       # some: bake, function, rebake, memory, select

2,000,000 parquet rows of (text, label, score, source) in 8 files, written once below the system's temporary directory;
what is done to them is told in ``recipe_peers``. Rates are in input rows. Nothing is cached except in ``rebake``.

Whoever is timed has just done the same once: in a virtual machine memory that nobody has touched for some seconds takes
2 ms a MiB to be had again, which is more than most of what is measured here.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks import recipe_peers as peers
from benchmarks.harness import Measure, Missing, compare, needs, per_call, per_second
from benchmarks.recipe_peers import N_ROWS
from poolish import DatasetRecipe, col
from poolish.recipes.fragment_rows import Fragment

# --- baking ----------------------------------------------------------------------------------------------------------


def bake() -> None:
    """Filter, choose 30 % of one source and 100,000 rows of another, map by expressions."""
    folder = peers.data()

    def ours() -> None:
        peers.check(len(peers.recipe_of(folder).bake().buffer))

    name = "recipes, bake 2,000,000 parquet rows"
    fast: dict[str, Measure | Missing] = {
        "polars, chosen by hash": needs("polars", rate(peers.polars, folder)),
        "polars, its own sample": needs("polars", rate(peers.polars_sample, folder)),
        "pyarrow by hand": warm_rate(peers.arrow_by_hand(folder)),
    }
    compare(name, "rows/s", warm_rate(ours), fast, rounds=5)
    others = {
        "datasets, as its guide writes it": peers.hf_datasets,
        "datasets, as its guide writes it, parquet converted before": peers.hf_datasets_converted,
        "datasets, Arrow batches": peers.hf_datasets_arrow,
        "datasets, Arrow batches, parquet converted before": peers.hf_datasets_arrow_converted,
    }
    slow: dict[str, Measure | Missing] = {each: needs("datasets", rate(make, folder)) for each, make in others.items()}
    compare(name, "rows/s", warm_rate(ours), slow, rounds=3)
    try:  # last, because Ray's processes take some of the processors even when they have nothing to do
        compare(name, "rows/s", warm_rate(ours), {"Ray Data": needs("ray", rate(peers.ray_data, folder))}, rounds=3)
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()  # its processes would go on beside whatever is measured next


def rate(make: Callable[[Path, Any], Callable[[], None]], folder: Path) -> Callable[[Any], Measure]:
    """Input rows a second of a peer, around its library."""
    return lambda library: warm_rate(make(folder, library))


def warm_rate(function: Callable[[], object]) -> Measure:
    """Input rows a second, the second time."""
    return per_second(lambda _: function(), N_ROWS, prepare=function)


# --- a function of the user's ----------------------------------------------------------------------------------------


def function() -> None:
    """A Python function for each batch, of the rows with a score above 0.75."""
    folder = peers.data()
    for name, prepared in {"calls Arrow": peers.arrow_mapped, "is plain Python": shouted}.items():
        recipe = DatasetRecipe("function").add_ingredient("all", str(folder / "*.parquet"), where=col.score > 0.75)
        recipe.prepare_step("prepared", prepared, batched=True, version=1)
        by_hand: dict[str, Measure | Missing] = {
            "pyarrow, dataset scanner": warm_rate(partial(scanned, folder, prepared)),
            "pyarrow, ParquetFile in a loop": warm_rate(partial(looped, folder, prepared)),
        }
        title = f"recipes, a function for each batch that {name}"
        compare(title, "rows/s", warm_rate(partial(baked, recipe)), by_hand, rounds=5)


def shouted(table: pa.Table) -> pa.Table:
    """A function as people write them."""
    texts = table.column("text").to_pylist()
    return table.append_column("n_words", pa.array([len(text.split()) for text in texts]))


def baked(recipe: DatasetRecipe) -> None:
    """A recipe's rows, in a buffer."""
    quarter(len(recipe.bake().buffer))


def scanned(folder: Path, prepared: Callable[[pa.Table], pa.Table]) -> None:
    """All of it by a scanner, which reads ahead in threads."""
    files = ds.dataset(sorted(map(str, folder.glob("*.parquet"))), format="parquet")
    batches = files.scanner(filter=pc.field("score") > 0.75, batch_size=62_500).to_batches()
    made = [prepared(pa.Table.from_batches([batch])) for batch in batches if batch.num_rows]
    quarter(pa.concat_tables(made).combine_chunks().num_rows)


def looped(folder: Path, prepared: Callable[[pa.Table], pa.Table]) -> None:
    """File by file and group by group."""
    made = []
    for path in sorted(folder.glob("*.parquet")):
        file = pq.ParquetFile(path, memory_map=True)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            made.append(prepared(table.filter(pc.greater(table["score"], 0.75))))
    quarter(pa.concat_tables(made).combine_chunks().num_rows)


def quarter(n_got: int) -> None:
    """Refuse a figure of anybody who did something else."""
    assert abs(n_got - N_ROWS / 4) < 0.01 * N_ROWS, n_got


# --- baking again ----------------------------------------------------------------------------------------------------


def rebake() -> None:
    """The same recipe with a cache: nothing changed, or 1 % appended.

    Whoever is timed has a cache of its own, whose files are links to those of one bake. None is removed before the end:
    ext4 looks at every file that was deleted in the last minutes before it makes one, which costs 0.5 ms a file here.
    """
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        same, grown, full = root / "same", root / "grown", root / "full"
        linked(peers.data(), same)
        linked(peers.data(), grown)
        peers.recipe_of(same).bake(cache=full)
        pq.write_table(peers.rows_of(N_ROWS // 100, seed=99), grown / "part-99.parquet")
        numbers = itertools.count()

        def cold() -> Path:
            return root / f"cache-{next(numbers)}"

        def warm() -> Path:
            return Path(shutil.copytree(full, cold(), copy_function=os.link))

        def none() -> None:
            return None

        def timed(folder: Path, before: Callable[[], Path | None], new_cache: Callable[[], Path | None]) -> Measure:
            def baked_with(kept: Path | None) -> None:
                # Results that are held would be mapped files of a cache that is removed.
                peers.recipe_of(folder).bake(cache=kept)

            def prepare() -> Path | None:
                baked_with(before())
                return new_cache()

            return per_call(baked_with, unit="ms", prepare=prepare)

        for what, folder in {"nothing changed": same, "1 % appended": grown}.items():
            first: dict[str, Measure | Missing] = {
                "poolish, the same with a cold cache": timed(folder, none, cold),
                "poolish, the same without a cache": timed(folder, none, none),
            }
            compare(f"recipes, bake again, {what}", "ms", timed(folder, warm, warm), first, rounds=5)


def linked(folder: Path, into: Path, times: int = 1) -> None:
    """The files of a folder under other names: the same bytes, so many times."""
    into.mkdir()
    for i in range(times):
        for path in folder.glob("*.parquet"):
            os.link(path, into / (path.name if times == 1 else f"{i:02}-{path.name}"))


# --- memory ----------------------------------------------------------------------------------------------------------


def memory() -> None:
    """The peak of a process that bakes 2 and 20 million rows into the same number of rows."""
    with tempfile.TemporaryDirectory(dir=tempfile.gettempdir()) as temporary:
        many = Path(temporary) / "data"
        linked(peers.data(), many, times=10)
        compare(
            "recipes, peak memory of a bake of 20,000,000 rows into 250,000",
            "MiB",
            in_child("bake_at_most", many, 20_000_000),
            {
                "poolish, 2,000,000 rows into as many": in_child("bake_at_most", peers.data(), N_ROWS),
                "polars, chosen by hash": in_child("polars_at_most", many, 20_000_000),
                "python that has imported poolish and Arrow": in_child("nothing_at_all"),
            },
            rounds=1,
        )


def in_child(name: str, *arguments: object) -> Measure:
    """The peak of memory in MiB of a function of this module in a process of its own; measured once."""

    @cache
    def measure() -> float:
        return ran(name, *arguments)["MiB"]

    return measure


def ran(name: str, *arguments: object) -> dict[str, float]:
    """Seconds and MiB of a call in a process of its own."""
    values = ", ".join(repr(str(each) if isinstance(each, Path) else each) for each in arguments)
    program = f"from benchmarks import bench_recipes as b; b.told(b.{name}, {values})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    seconds, mib = done.stdout.split()[-2:]
    return {"s": float(seconds), "MiB": float(mib)}


def told(function: Callable[..., object], *arguments: Any) -> None:
    """Print how long a call took, and the largest size of the process until then (Linux)."""
    threading.Thread(target=stay_small, daemon=True).start()
    begin = time.perf_counter()
    function(*arguments)
    seconds = time.perf_counter() - begin
    print(seconds, mib("VmHWM"))


def stay_small(limit_mib: float = 12 * 1024) -> None:
    """End the process if it grows too large: who needs an index of 10^9 rows after all must not take the machine along.

    It is watched rather than limited by the system, which counts addresses that a buffer reserves and never uses.
    """
    while mib("VmRSS") < limit_mib:
        time.sleep(0.1)
    print(f"ended at {limit_mib:.0f} MiB", file=sys.stderr, flush=True)
    os._exit(1)


def mib(name: str) -> float:
    """One of the sizes that Linux tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def bake_at_most(folder: str, n_rows: int) -> None:
    """A bake with about 250,000 rows, however many there are."""
    files = f"{folder}/*.parquet"
    recipe = DatasetRecipe("bench", seed=7)
    fraction = peers.FRACTION * N_ROWS / n_rows
    recipe.add_ingredient("web", files, where=(col.source == "web") & (col.score > 0.5), take=fraction)
    recipe.add_ingredient("books", files, where=(col.source == "books") & (col.score > 0.2), take=peers.N_BOOKS)
    recipe.prepare_step("scaled", "map", columns={"text": col.text.lower(), "length": col.text.length()})
    assert len(recipe.bake().buffer) > peers.N_BOOKS


def polars_at_most(folder: str, n_rows: int) -> None:
    """The same there."""
    import polars as pl

    rows = pl.scan_parquet(f"{folder}/*.parquet", row_index_name="i")
    hashed = pl.col("i").hash(7)
    fraction = peers.FRACTION * N_ROWS / n_rows
    web = rows.filter((pl.col("source") == "web") & (pl.col("score") > 0.5), hashed < int(fraction * 2**64))
    books = rows.filter((pl.col("source") == "books") & (pl.col("score") > 0.2))
    books = books.with_columns(hash=hashed).bottom_k(peers.N_BOOKS, by="hash").drop("hash")
    text = pl.col("text")
    made = [each.with_columns(text.str.to_lowercase(), length=text.str.len_chars()) for each in (web, books)]
    assert len(pl.concat(pl.collect_all(made))) > peers.N_BOOKS


def nothing_at_all() -> None:
    """What the process has before it begins."""


# --- choosing --------------------------------------------------------------------------------------------------------


class Numbers:
    """A source of as many rows as you like: each row is its number, and made when it is read."""

    def __init__(self, n_rows: int, n_each: int = 1_000_000) -> None:
        self._n_rows, self._n_each = n_rows, n_each

    def describe(self) -> str:
        """How many there are."""
        return f"{self._n_rows:,} numbers"

    def schema(self) -> pa.Schema:
        """One column."""
        return pa.schema({"n": pa.int64()})

    def fragments(self) -> list[Fragment]:
        """Ranges of numbers."""
        firsts = range(0, self._n_rows, self._n_each)
        return [self._fragment(i, first, min(self._n_rows, first + self._n_each)) for i, first in enumerate(firsts)]

    def _fragment(self, number: int, first: int, end: int) -> Fragment:
        return Fragment("", number, end - first, f"numbers {first}-{end}", {"first": first, "end": end})

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Any]]:
        """The numbers of a range."""
        rows = np.arange(fragment.place["first"], fragment.place["end"])
        yield pa.table({"n": rows}), rows


def choose(n_rows: int, take: int | float) -> None:
    """So many of the numbers, by hash."""
    recipe = DatasetRecipe("choose", seed=7).add_ingredient("numbers", Numbers(n_rows), take=take)
    n_got, n_asked = len(recipe.bake().buffer), round(n_rows * take) if isinstance(take, float) else take
    assert n_got == n_asked or (isinstance(take, float) and abs(n_got - n_asked) < 6 * n_asked**0.5), n_got


def choose_by_hand(n_rows: int, n_asked: int) -> None:
    """The same hash of the same numbers with nothing around it: what NumPy needs on one core."""
    threshold = np.uint64(int(n_asked / n_rows * 2**64))
    found = []
    for first in range(0, n_rows, 1_000_000):
        hashes = peers.hashes_of(first, min(1_000_000, n_rows - first))
        found.append(np.flatnonzero(hashes < threshold) + first)
    assert abs(len(np.concatenate(found)) - n_asked) < 6 * n_asked**0.5


def select() -> None:
    """A few rows of 10^9, without an index of all of them anywhere."""
    many, part = 10**9, 10**8
    for what, take in {"a millionth": 1e-6, "1,000 rows": 1_000}.items():
        n_asked = take if isinstance(take, int) else round(part * take)
        compare(
            f"recipes, {what} of 10^9 rows by hash (rate on 10^8)",
            "rows/s",
            per_second(partial(choose, part, take), part),
            {"NumPy, the same hash, one core": per_second(partial(choose_by_hand, part, n_asked), part)},
            rounds=2,
        )
        compare(
            f"recipes, {what} of 10^9 rows by hash, peak memory",
            "MiB",
            in_child("choose", many, take),
            {
                "poolish, 10^7 rows": in_child("choose", 10**7, take if isinstance(take, int) else 1e-4),
                "an index of 10^9 numbers": lambda: many * 8 / 2**20,
            },
            rounds=1,
        )


PARTS = {"bake": bake, "function": function, "rebake": rebake, "memory": memory, "select": select}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or PARTS:
        PARTS[chosen]()
