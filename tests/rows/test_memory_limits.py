"""Memory that runs out and Ctrl-C at a bad moment leave a buffer as it was before the operation, or as it is after it.

Three ways to fail: every allocation of an operation in turn, every line of the code that changes a buffer in turn (and
a line of what comes next), and the real thing in a child process: an address space that is too small, signals at random
times.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetBuffer
from poolish.guards import Suite
from poolish.rows import buffer as buffer_module
from poolish.rows import columns, storage
from tests.effort import IS_SOAK, some, times
from tests.faults import in_own_process, interrupted_at_line
from tests.rows.children import in_child
from tests.rows.facts import facts
from tests.rows.kinds import columns_of, rows_of, table_of

NAMES = ["text", "vector", "texts"]


def new_rows(first: int, n: int, nulls: float = 0.0) -> list[dict[str, Any]]:
    return rows_of(NAMES, first, n, nulls=nulls)


def filled(max_size: int | None = None, drop_strategy: str = "oldest", n: int = 9) -> DatasetBuffer:
    """A buffer with a past: rows that left from the middle, rows that wait."""
    buffer = DatasetBuffer(max_size, drop_strategy, seed=1)
    buffer.append(new_rows(0, n))
    buffer.retain(0.8, by="random")
    for row in new_rows(n, 3):
        buffer.append(row)
    return buffer


def loaded(tmp_path: Path) -> DatasetBuffer:
    path = tmp_path / "buffer.rows"
    if not path.exists():
        filled().save(path)
    return DatasetBuffer.load(path)


def watched() -> DatasetBuffer:
    """A buffer at which somebody still looks, so that values are changed in copies."""
    buffer = filled()
    buffer.somebody = buffer.snapshot()
    return buffer


@dataclass(frozen=True)
class Operation:
    """Something that changes a buffer, and a buffer that it changes."""

    prepare: Callable[[Path], DatasetBuffer]
    change: Callable[[DatasetBuffer], Any]


def odd_rows() -> pa.Table:
    return table_of(NAMES, new_rows(50, 30))


ODD_KEYS = Suite("odd").expect("key", one_of=list(range(1, 100, 2))).on(error="drop")
LOW_KEYS = Suite("low").expect("key", between=(0, 49)).on(error="drop")
IDS = [0, 3, 10, 3]
ODD = np.arange(30) % 2 == 1
OPERATIONS = {
    "first append": Operation(lambda _: DatasetBuffer(), lambda b: b.append(new_rows(0, 5))),
    "one row": Operation(lambda _: watched(), lambda b: b.append(new_rows(50, 1)[0])),
    "one row too many to wait": Operation(lambda _: filled(), lambda b: b.append(new_rows(50, 1)[0])),
    "many rows": Operation(lambda _: filled(), lambda b: b.append(new_rows(50, 30, nulls=0.3))),
    "columns": Operation(lambda _: filled(), lambda b: b.append_columns(columns_of(NAMES, new_rows(50, 30)))),
    "rows of a table by a mask": Operation(lambda _: filled(), lambda b: b.append_where(odd_rows(), ODD)),
    "many over a random half": Operation(
        lambda _: filled(max_size=12, drop_strategy="random"), lambda b: b.append(new_rows(50, 8), 0.5, "random")
    ),
    "many over the oldest half": Operation(
        lambda _: filled(max_size=12), lambda b: b.append(new_rows(50, 8), 0.5, "oldest")
    ),
    "single rows into a full buffer": Operation(
        lambda _: filled(max_size=9, drop_strategy="random"), lambda b: b.append(new_rows(50, 1)[0], 1, "latest")
    ),
    "first null": Operation(lambda _: filled(), lambda b: b.append(new_rows(50, 3, nulls=1.0))),
    "types settle": Operation(lambda _: nulls_only(), lambda b: b.append(new_rows(50, 3))),
    "to a loaded buffer": Operation(loaded, lambda b: b.append(new_rows(50, 3))),
    "retain": Operation(lambda _: filled(n=40), lambda b: b.retain(0.4, by="random")),
    "clear": Operation(lambda _: filled(), lambda b: b.clear()),
    "read": Operation(lambda _: filled(), lambda b: len(b.ids)),
    "update numbers": Operation(lambda _: filled(), lambda b: b.update(IDS, {"key": [1, 2, 3, 4]})),
    "update numbers somebody looks at": Operation(lambda _: watched(), lambda b: b.update(IDS, {"key": [1, 2, 3, 4]})),
    "update text": Operation(lambda _: filled(), lambda b: b.update(IDS, {"text": ["a", "b", "c", "d"]})),
    "update several columns": Operation(lambda _: filled(), lambda b: b.update(IDS, several())),
    "update several columns somebody looks at": Operation(lambda _: watched(), lambda b: b.update(IDS, several())),
    "update several columns of a loaded buffer": Operation(loaded, lambda b: b.update(IDS, several())),
    "rows that a guard thins": Operation(lambda _: filled(), lambda b: b.append(new_rows(50, 9), guard=ODD_KEYS)),
    "rows that a guard refuses": Operation(lambda _: filled(), lambda b: b.append(new_rows(50, 4), guard=LOW_KEYS)),
    "a guard from now on": Operation(lambda _: filled(), lambda b: setattr(b, "guard", ODD_KEYS)),
    "save": Operation(lambda path: saved_once(path), lambda b: b.save(b.path)),
}


def several() -> dict[str, Any]:
    """New values for columns that are written in place and for one that is written anew."""
    return {"key": [1, 2, 3, 4], "vector": np.ones((4, 3), np.float32), "text": ["a", "b", "c", "d"]}


def saved_once(tmp_path: Path) -> DatasetBuffer:
    buffer = filled()
    buffer.path = tmp_path / "saved.rows"
    return buffer


def nulls_only() -> DatasetBuffer:
    buffer = DatasetBuffer(seed=1)
    buffer.append([{"key": None, **dict.fromkeys(NAMES)}] * 3)
    return buffer


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Small buffers flush and move their rows, as large ones do."""
    monkeypatch.setattr(storage, "MIN_DEAD", 0)
    monkeypatch.setattr(columns, "CHOSEN_ROWS", 4)
    monkeypatch.setattr(buffer_module, "PENDING_ROWS", 3)


# Every allocation ---------------------------------------------------------------------------------------------

ALLOCATING = ("empty", "full", "ones", "zeros", "arange", "concatenate")


@contextmanager
def failing_allocation(k: int) -> Iterator[list[int]]:
    """The k-th time that rows ask for memory there is none; gives the count."""
    count = [0]

    def failing(allocate: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith("poolish.rows"):
                count[0] += 1
                if count[0] == k:
                    raise MemoryError("none left")
            return allocate(*arguments, **options)

        return counted

    with (
        mock.patch.multiple(np, **{name: failing(getattr(np, name)) for name in ALLOCATING}),
        mock.patch.object(columns, "_allocate", failing(columns._allocate)),
    ):
        yield count


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_memory_is_no_change(name, tmp_path):
    """Whichever allocation fails, the buffer is as it was, and the same operation then does what it would have done."""
    operation = OPERATIONS[name]
    before = facts(operation.prepare(tmp_path))
    done, n_failed = operation.prepare(tmp_path), 0
    with failing_allocation(0) as count:
        operation.change(done)
    after = facts(done)

    for k in range(1, count[0] + 1):
        buffer = operation.prepare(tmp_path)
        with failing_allocation(k):
            try:
                operation.change(buffer)
            except MemoryError:
                n_failed += 1
                assert facts(buffer) == before
                operation.change(buffer)
        assert facts(buffer) == after

    assert n_failed or name in ("one row", "a guard from now on")  # which ask for nothing


# Every line ---------------------------------------------------------------------------------------------------

CHANGING = {"buffer.py", "storage.py", "columns.py", "guard.py"}


def interrupted_at(k: int) -> AbstractContextManager[list[str]]:
    """Ctrl-C before the k-th line that runs in the modules that change a buffer."""
    return interrupted_at_line(k, lambda path: os.path.basename(path) in CHANGING)


def moments(lines: list[str]) -> list[int]:
    """Each line the first and the last time that it runs; in a soak every time."""
    if IS_SOAK:
        return list(range(1, len(lines) + 1))
    times_of: dict[str, list[int]] = {}
    for k, line in enumerate(lines, 1):
        times_of.setdefault(line, []).append(k)
    return sorted({k for found in times_of.values() for k in (found[0], found[-1])})


def all_facts(buffer: DatasetBuffer) -> dict[str, Any]:
    """What a reader can notice, the guard and the rows that it kept out included."""
    out = buffer.rejected
    return facts(buffer) | {"guarded": buffer.guard is not None, "out": [out.n_rows, len(out.rows), dict(out.reasons)]}


@dataclass(frozen=True)
class Outcomes:
    """What an operation may leave, what comes of it when rows are appended, and the lines that it runs."""

    before: dict[str, Any]
    after: dict[str, Any]
    later: dict[str, Any]
    lines: list[str]


def outcomes(operation: Operation, tmp_path: Path) -> Outcomes:
    operation.change(operation.prepare(tmp_path))  # the first time imports modules, whose lines would count
    before, done = all_facts(operation.prepare(tmp_path)), operation.prepare(tmp_path)
    with interrupted_at(0) as lines:
        operation.change(done)
    return Outcomes(before, all_facts(done), later(done), lines)


def later(buffer: DatasetBuffer) -> dict[str, Any]:
    """The facts after an append that any buffer takes, random numbers included."""
    buffer.guard = None
    buffer.append(new_rows(90, 4), 0.9, "random")
    return all_facts(buffer)


def check_whole(buffer: DatasetBuffer, operation: Operation, version: str, known: Outcomes, place: str) -> None:
    """The buffer is as before or as after, its version as well, and it goes on as one that was never interrupted."""
    found = all_facts(buffer)
    assert found in (known.before, known.after), place
    if known.before["ids"] == known.after["ids"] and known.before["rows"] != known.after["rows"]:
        assert (buffer.version != version) == (found == known.after), place
    if found == known.before:
        operation.change(buffer)
        assert all_facts(buffer) == known.after, f"{place}, then done again"
    assert later(buffer) == known.later, place


@pytest.mark.parametrize("name", OPERATIONS)
@in_own_process
def test_an_interrupt_leaves_the_whole_operation_or_none_of_it(name, tmp_path):
    """Before whichever line Ctrl-C comes, no reader ever sees half of a change, and the buffer goes on working."""
    operation = OPERATIONS[name]
    known = outcomes(operation, tmp_path)

    for k in some(moments(known.lines), 60):
        buffer = operation.prepare(tmp_path)
        version = buffer.version
        with interrupted_at(k), pytest.raises(KeyboardInterrupt):
            operation.change(buffer)

        check_whole(buffer, operation, version, known, f"interrupted before {known.lines[k - 1]}")


@pytest.mark.parametrize("name", OPERATIONS)
@in_own_process
def test_interrupts_after_an_interrupt_change_nothing_more(name, tmp_path):
    """Ctrl-C again, in whatever reads the buffer first, and again: still the whole operation or none of it."""
    operation, rng = OPERATIONS[name], random.Random(None if IS_SOAK else name)
    known = outcomes(operation, tmp_path)
    with interrupted_at(0) as reading:
        facts(operation.prepare(tmp_path))
    pairs = [(k, j) for k in moments(known.lines) for j in moments(reading)]

    for k, j in rng.sample(pairs, min(times(15), len(pairs))):  # all of them would take hours
        buffer = operation.prepare(tmp_path)
        version = buffer.version
        with interrupted_at(k), pytest.raises(KeyboardInterrupt):
            operation.change(buffer)
        for line in (j, rng.randint(1, j)):
            with interrupted_at(line), suppress(KeyboardInterrupt):
                facts(buffer)

        check_whole(buffer, operation, version, known, f"interrupted before {known.lines[k - 1]} and {reading[j - 1]}")


@pytest.mark.parametrize("sample", [{"other": "x"}, np.arange(3)], ids=["row", "array"])
@in_own_process
def test_an_interrupted_first_append_decides_nothing(sample):
    """Neither columns nor kind: whatever comes next is the first."""
    done, expected = DatasetBuffer(), DatasetBuffer()
    with interrupted_at(0) as lines:
        done.append(new_rows(0, 3))
    expected.append(sample)

    for k in moments(lines):
        buffer = DatasetBuffer()
        with interrupted_at(k), pytest.raises(KeyboardInterrupt):
            buffer.append(new_rows(0, 3))
        if len(buffer) == 0:
            buffer.append(sample)
            assert facts(buffer) == facts(expected), f"interrupted before {lines[k - 1]}"


# The real thing -----------------------------------------------------------------------------------------------


def append_until_interrupted(buffer: DatasetBuffer, tags: Iterator[int]) -> None:
    for tag in tags:
        row = {"tag": tag, "text": str(tag), "mark": 0, "same": np.zeros(2), "mark_text": "0"}
        buffer.append([row] * 3, retain_prior=0.9, retain_prior_by="latest")
        buffer.append({**row, "tag": -1, "text": "single"})
        ids = buffer.ids[::2]
        new = [tag] * len(ids)
        buffer.update(ids, {"mark": new, "same": np.full((len(ids), 2), tag, float), "mark_text": list(map(str, new))})


def interrupt_at_random(n: int) -> int:
    """Appends that a timer interrupts; how many of them had ended whole when they were asked."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:  # only inside: the checks below are not what is tested
            if frame.f_code is append_until_interrupted.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    signal.signal(signal.SIGVTALRM, interrupt)
    buffer, rng, n_whole = DatasetBuffer(max_size=200, seed=3), random.Random(0), 0
    tags = iter(range(10**9))
    for _ in range(n):
        try:
            # Again and again: code of others may swallow one (pyarrow does while it looks for pandas).
            # And at once: the next may come while the first is still being handled.
            signal.setitimer(signal.ITIMER_VIRTUAL, rng.uniform(1e-5, 3e-3), rng.choice([1e-4, 0.02]))
            append_until_interrupted(buffer, tags)
        except KeyboardInterrupt:
            pass
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        columns, ids = buffer.to_pydict(), buffer.ids
        tagged = [tag for tag in columns.get("tag", []) if tag >= 0]
        assert all(tagged.count(tag) == 3 for tag in set(tagged[3:]))
        assert columns.get("text", []) == ["single" if tag < 0 else str(tag) for tag in columns.get("tag", [])]
        marks = columns.get("mark", [])
        assert [row.tolist() for row in columns.get("same", [])] == [[mark, mark] for mark in marks]
        assert columns.get("mark_text", []) == list(map(str, marks))
        assert len(buffer) == len(ids) == len(columns.get("tag", [])) <= 200
        assert (np.diff(ids) > 0).all()
        n_whole += 1
    return n_whole


def test_a_signal_at_any_time_leaves_whole_appends():
    """Between any two instructions, in compiled code or not: rows of one append are there together or not at all."""
    assert in_child(interrupt_at_random, times(300)) == times(300)


def with_little_memory(n_steps: int) -> tuple[int, int]:
    """Change a buffer in an address space that grows by small steps until it is enough; how often it was not."""
    rows = {
        "text": [f"{i:0100d}" for i in range(20_000)],
        "number": np.arange(20_000),
        "vector": np.ones((20_000, 64), np.float32),
    }
    buffer = DatasetBuffer(max_size=50_000, drop_strategy="random", seed=2)
    twin = DatasetBuffer(max_size=50_000, drop_strategy="random", seed=2)
    for each in (buffer, twin):
        each.append_columns(rows)
    changes: list[Callable[[DatasetBuffer], Any]] = [
        lambda b: b.append_columns(rows),
        lambda b: b.append_columns(rows, 0.5, "random"),
        lambda b: b.update(b.ids[::2], {"vector": np.zeros((len(b.ids[::2]), 64), np.float32)}),
        lambda b: b.update(b.ids[::3], {"text": ["new"] * len(b.ids[::3])}),
        lambda b: b.append_columns(rows),
        lambda b: b.retain(0.3, by="random"),
    ]
    n_refused = n_done = 0
    for change in changes:
        for step in range(n_steps):
            before = summary(buffer)
            is_done = within_limit(step * (256 << 10), lambda: change(buffer))  # noqa: B023
            if is_done:
                break
            n_refused += 1
            assert summary(buffer) == before
        else:
            change(buffer)
        change(twin)
        assert summary(buffer) == summary(twin)
        assert buffer.to_arrow().equals(twin.to_arrow())
        n_done += 1
    return n_refused, n_done


def summary(buffer: DatasetBuffer) -> tuple[int, int, int, float]:
    """Enough to see a change, with little memory of its own."""
    columns = buffer.to_numpy(["number", "vector"])
    return len(buffer), buffer.next_id, int(buffer.ids.sum()), float(columns["vector"].sum() + columns["number"].sum())


def within_limit(more: int, change: Callable[[], Any]) -> bool:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))
    try:
        change()
        return True
    except MemoryError:
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_an_address_space_that_is_too_small_changes_nothing():
    """Each time it is refused the buffer is as it was, and when there is room it does what another one did at once."""
    n_refused, n_done = in_child(with_little_memory, 60)

    assert n_done == 6
    assert n_refused > 20
