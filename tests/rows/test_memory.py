"""Memory that grows at its end while others look at its beginning; and how much of it a buffer needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.rows import columns
from poolish.rows.columns import RESERVE_FROM, Region

MB = 1 << 20


def some_bytes(n: int, first: int = 0) -> np.ndarray:
    return (np.arange(first, first + n) * 151 % 256).astype(np.uint8)


def address(view: np.ndarray) -> int:
    return view.__array_interface__["data"][0]


@given(st.lists(st.sampled_from([0, 1, 7, 63, 64, 65, 5_000, 700_000]), max_size=8))
def test_what_is_appended_stays(sizes):
    """In portions of any size, across all the moves that growing means."""
    region, whole = Region(), some_bytes(sum(sizes))

    begins = [region.append(whole[sum(sizes[:i]) :][:size]) for i, size in enumerate(sizes)]

    assert begins == [sum(sizes[:i]) for i in range(len(sizes))]
    assert (region.export() == whole).all()
    assert len(region.export()) == region.used == len(whole)


@given(st.lists(st.integers(1, 400_000), min_size=2, max_size=10))
def test_views_stay_what_they_were(sizes):
    """Whatever comes behind, and wherever the region moves to."""
    region, views = Region(), []
    for size in sizes:
        region.append(some_bytes(size, region.used))
        views.append(region.export())

    for view in views:
        assert (view == some_bytes(len(view))).all()


def test_a_large_region_never_moves():
    """From 1 MiB on it has its address for good, and growing copies nothing."""
    region = Region()
    region.append(some_bytes(RESERVE_FROM))
    first = region.export()

    for _ in range(60):
        region.append(some_bytes(MB))

    assert address(region.export()) == address(first)
    assert len(region.export()) == 61 * MB


def test_a_small_region_moves_seldom():
    """It doubles: many appends, few moves."""
    region, addresses = Region(), set()
    for _ in range(10_000):
        region.append(some_bytes(50))
        addresses.add((address(region.export()), len(region._bytes)))

    assert len(addresses) < 20


HOLDERS: dict[str, Callable[[np.ndarray], Any]] = {
    "the view": lambda view: view,
    "a part of it": lambda view: view[3:5],
    "a part of a part": lambda view: view[2:9][1:][::2],
    "another dtype": lambda view: view[:8].view(np.int64),
    "a memoryview": memoryview,
    "an Arrow buffer": pa.py_buffer,
    "an Arrow array": lambda view: pa.Array.from_buffers(pa.uint8(), 10, [None, pa.py_buffer(view)]),
    "a slice of an Arrow array": lambda view: pa.Array.from_buffers(pa.uint8(), 10, [None, pa.py_buffer(view)])[2:4],
    "a table": lambda view: pa.table([pa.Array.from_buffers(pa.uint8(), 10, [None, pa.py_buffer(view)])], ["x"]),
    "NumPy over Arrow": lambda view: np.frombuffer(pa.py_buffer(view), np.uint8)[1:],
    "an Arrow array over NumPy over Arrow": lambda view: pa.array(np.frombuffer(pa.py_buffer(view), np.uint8)),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whoever_looks_counts(holder):
    """A region knows whether anybody looks at its memory, through whatever, and when the last has gone."""
    region = Region()
    region.append(some_bytes(10))
    assert not region.is_shared

    held = HOLDERS[holder](region.export())
    assert region.is_shared

    del held
    assert not region.is_shared


def test_two_views_are_two():
    """The second look keeps the region shared when the first has gone."""
    region = Region()
    region.append(some_bytes(10))
    first, second = region.export(), region.export()

    del first
    assert region.is_shared
    del second
    assert not region.is_shared


def test_views_of_memory_that_was_left_do_not_count():
    """A region that moved on shares its new memory with nobody, though somebody still has the old one."""
    region = Region()
    region.append(some_bytes(10))
    old = region.export()

    region.append(some_bytes(1_000))

    assert not region.is_shared
    assert (old == some_bytes(10)).all()


def test_a_large_region_that_grows_stays_shared():
    """It did not move, so whoever looked before still looks at its memory."""
    region = Region()
    region.append(some_bytes(2 * MB))
    old = region.export()

    region.append(some_bytes(2 * MB))

    assert region.is_shared
    assert (old == some_bytes(2 * MB)).all()


@pytest.mark.parametrize("n_bytes", [1 << 46, 1 << 62])
def test_no_memory_leaves_the_region_as_it_was(n_bytes, monkeypatch):
    """More than a machine has is a MemoryError that says what to do, and nothing else happens."""
    region = Region()
    region.append(some_bytes(100))
    before = address(region.export())
    monkeypatch.setattr(columns, "_physical_memory", lambda: MB)
    if n_bytes == 1 << 46:
        monkeypatch.setattr(columns, "_map", refused)

    with pytest.raises(MemoryError, match="max_size"):
        region.reserve(n_bytes)

    assert (region.used, address(region.export())) == (100, before)


def refused(n_bytes: int, huge_from: int) -> None:
    raise OSError(12, "Cannot allocate memory")


def test_little_address_space_is_enough(monkeypatch):
    """Where a reservation as large as the memory is refused, a smaller one is taken, and left when it is outgrown."""
    real = columns._map
    monkeypatch.setattr(
        columns, "_map", lambda n, first: (real if n < 8 * MB or n < 2 * region.used + 4 * MB else refused)(n, first)
    )
    region, views = Region(), []

    for _ in range(30):
        region.append(some_bytes(MB))
        views.append(region.export())

    assert all((view.reshape(-1, MB) == some_bytes(MB)).all() for view in views)


# How much a buffer needs --------------------------------------------------------------------------------------

MEASURE = """
import gc, resource, sys
import numpy as np
from poolish import DatasetBuffer

n_rows, n_portion, max_size, strategy, n_appended = %s
rng = np.random.default_rng(0)
texts = [f"{i:0200d}" for i in range(n_portion)]
row_bytes = 200 + 8 + 256

def portion():
    vectors = np.zeros((n_portion, 64), np.float32)
    vectors[:] = 1
    return {"text": texts, "label": np.arange(n_portion), "vector": vectors}

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

warm = DatasetBuffer(max_size=4, drop_strategy=strategy)
warm.append_columns(portion())
del warm
gc.collect()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak of starting up
buffer = DatasetBuffer(max_size=max_size, drop_strategy=strategy)
for _ in range(n_appended // n_portion):
    buffer.append_columns(portion())
assert len(buffer) == n_rows
print((status("VmHWM") - before) / (n_rows * row_bytes), (status("VmRSS") - before) / (n_rows * row_bytes))
"""


def measured(n_rows: int, max_size: int | None, strategy: str, n_appended: int, n_portion: int = 1_000) -> list[float]:
    """Peak and present memory of a buffer, as multiples of its payload, in a process of its own."""
    program = MEASURE % repr((n_rows, n_portion, max_size, strategy, n_appended))
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return [float(part) for part in answer.split()]


def test_a_full_buffer_needs_little_more_than_its_rows():
    """Rows of 200 characters, a label and 64 floats, 93 MB of them: at most 1.3 times that, at any moment."""
    peak, present = measured(200_000, None, "oldest", 200_000)

    assert peak <= 1.3
    assert 1 <= present <= peak


@pytest.mark.parametrize("strategy", ["oldest", "random"])
def test_a_buffer_that_evicts_stays_below_three_times_its_rows(strategy):
    """However many rows go through a bounded buffer, moving the living included."""
    peak, present = measured(100_000, 100_000, strategy, 500_000)

    assert peak <= 3
    assert 1 <= present <= peak


@pytest.mark.parametrize("n_parts", [1, 300])
def test_memory_begins_where_a_huge_page_does(n_parts):
    """Or the first 2 MiB of each column would be in small ones."""
    region, whole = Region(), some_bytes(3 * MB)
    for part in np.array_split(whole, n_parts):
        region.append(part)

    assert address(region.export()) % (2 * MB) == 0
    assert (region.export() == whole).all()


@pytest.mark.parametrize(("n_first", "huge_from"), [(MB, 8 * MB), (5 * MB, 8 * MB), (8 * MB, 0), (50 * MB, 0)])
def test_huge_pages_are_used_where_they_fill(n_first, huge_from, monkeypatch):
    """From 8 MiB on, where a page that stays part empty adds at most a quarter; from the start by large columns."""
    asked, real = [], columns._map
    monkeypatch.setattr(columns, "_map", lambda n, first: asked.append(first) or real(n, first))
    region = Region()

    region.append(some_bytes(n_first))
    region.append(some_bytes(MB))

    assert asked == [huge_from]


def test_a_system_without_huge_pages_does_as_well(monkeypatch):
    """It answers that there are none."""
    monkeypatch.setattr(columns.mmap, "MADV_HUGEPAGE", 12345)
    region = Region()

    region.append(some_bytes(9 * MB))

    assert (region.export() == some_bytes(9 * MB)).all()


def test_where_addresses_are_limited_each_column_takes_a_part():
    """Twenty columns of some MiB fit into a few GiB, which one alone would have reserved."""
    program = """if True:
        import resource
        import pyarrow as pa
        from poolish import DatasetBuffer
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        buffer = DatasetBuffer()
        for _ in range(5):
            buffer.append(pa.table({f"c{i}": pa.array(range(200_000)) for i in range(20)}))
        print(len(buffer))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "1000000", done.stderr[-2000:]
