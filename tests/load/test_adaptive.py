"""Micro-batches by memory: cut smaller where they fail, and always the same rows in the same order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError, ResumeError, SchemaError
from poolish.load import memory_cache
from poolish.load.micro_batches import AdaptiveBatches, is_out_of_memory


def fits(n_rows: int, seen: list[list[int]] | None = None):
    """A function of a micro-batch that fails as a machine with memory for ``n_rows`` rows does."""

    def work(rows):
        if seen is not None:
            seen.append(list(rows))
        if len(rows) > n_rows:
            raise MemoryError(f"no memory for {len(rows)} rows")
        return list(rows)

    return work


# Cutting --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(1, 70), st.integers(1, 70))
def test_the_parts_are_the_batch_whatever_the_memory(n_rows, initial, n_fit):
    """Rows, their order and their number never depend on it; every row is worked on once."""
    rows = list(range(n_rows))
    adaptive = AdaptiveBatches(initial=initial)

    parts = list(adaptive.split(rows))
    results = adaptive.run(rows, fits(n_fit))

    assert [row for part in parts for row in part] == rows
    assert [row for result in results for row in result] == rows
    assert all(0 < len(part) <= initial for part in parts)


def test_the_size_comes_from_free_memory_and_the_size_of_a_row():
    """A row of 100 float32 has 400 bytes: 10 of them are half of 8,000."""
    adaptive = AdaptiveBatches(fraction=0.5, free_memory=lambda: 8_000)

    parts = list(adaptive.split(np.zeros((25, 100), np.float32)))

    assert [len(part) for part in parts] == [10, 10, 5]
    assert repr(adaptive) == "<AdaptiveBatches: up to 10 rows at a time>"


def test_a_row_may_be_measured_by_the_user():
    """Training on a row takes more than the row itself."""
    adaptive = AdaptiveBatches(fraction=1.0, free_memory=lambda: 8_000, measure=lambda batch: 4_000)

    assert [len(part) for part in adaptive.split(list(range(5)))] == [2, 2, 1]


def test_one_row_is_always_tried():
    """However little is free."""
    assert len(list(AdaptiveBatches(free_memory=lambda: 0).split(np.zeros(3)))) == 3


def test_every_column_is_cut_alike():
    """Arrays, lists and tensors in dicts and tuples; what has no rows is in every part."""
    batch = {
        "x": np.arange(6).reshape(3, 2),
        "names": ["a", "b", "c"],
        "epoch": 4,
        "mode": "train",
        "pair": ([1, 2, 3],),
    }

    first, second = AdaptiveBatches(initial=2).split(batch)

    assert first["x"].tolist() == [[0, 1], [2, 3]]
    assert (first["names"], first["epoch"], first["mode"], first["pair"]) == (["a", "b"], 4, "train", ([1, 2],))
    assert (second["x"].tolist(), second["names"], second["pair"]) == ([[4, 5]], ["c"], ([3],))


def test_columns_of_different_lengths_are_refused():
    """And so is what has no rows at all."""
    with pytest.raises(SchemaError, match=r"\[2, 3\] rows; they must have the same number"):
        list(AdaptiveBatches(initial=1).split({"x": [1, 2], "y": [1, 2, 3]}))
    with pytest.raises(SchemaError, match="int has no rows to cut"):
        list(AdaptiveBatches(initial=1).split(5))
    with pytest.raises(SchemaError, match="no rows to cut"):
        list(AdaptiveBatches(initial=1).split(np.array(5)))


# Halving --------------------------------------------------------------------------------------------------------


def test_only_the_failed_micro_batch_is_repeated():
    """In halves; those before it are done, and later ones begin with the size that worked."""
    seen: list[list[int]] = []
    work, memory = fits(99, seen), iter([9, 9, 3, 3, 3, 3])

    def shrinking(rows):
        seen.append(list(rows))
        if len(rows) > next(memory):
            raise MemoryError
        return list(rows)

    adaptive = AdaptiveBatches(initial=4)
    adaptive.run(list(range(12)), shrinking)

    assert [len(rows) for rows in seen] == [4, 4, 4, 2, 2]
    assert [rows[0] for rows in seen] == [0, 4, 8, 8, 10]
    seen.clear()
    adaptive.run(list(range(4)), work)
    assert seen == [[0, 1], [2, 3]]


def test_a_row_that_does_not_fit_alone_is_the_callers_error():
    """The error itself, with a note of what was tried; what worked before stays the size."""
    adaptive = AdaptiveBatches(initial=5)

    with pytest.raises(MemoryError, match="no memory for 1 rows") as caught:
        adaptive.run(list(range(5)), fits(0))

    assert caught.value.__notes__ == ["row 0 of a batch of 5 does not fit alone; tried 5, 3, 2, 1 rows at a time"]


def test_other_errors_are_not_repeated():
    """A bug stays a bug, and the size what it was."""
    seen = []

    def broken(rows):
        seen.append(rows)
        raise ZeroDivisionError

    adaptive = AdaptiveBatches(initial=4)
    with pytest.raises(ZeroDivisionError):
        adaptive.run(list(range(8)), broken)

    assert (len(seen), adaptive.size) == (1, 4)


def test_the_failed_attempt_is_let_go_before_the_next():
    """What the error holds is the very memory that is missing."""
    n_alive, alive = [], weakref.WeakSet()

    class Activations:
        pass

    def work(rows):
        held = Activations()
        alive.add(held)
        n_alive.append(len(alive))
        if len(rows) > 1:
            raise MemoryError

    AdaptiveBatches(initial=4).run([1, 2, 3, 4], work)

    assert n_alive == [1] * 6


def test_it_grows_only_when_asked():
    """Smaller batches in between change nothing; grow does, until the next error."""
    adaptive = AdaptiveBatches(initial=16)
    adaptive.run(list(range(16)), fits(5))
    assert adaptive.size == 4

    for _ in range(3):
        adaptive.run([1], fits(100))
    assert adaptive.size == 4

    adaptive.grow(8)
    assert len(adaptive.run(list(range(16)), fits(100))) == 2


def test_the_size_survives_a_restart():
    """As JSON; before the first batch too."""
    first = AdaptiveBatches(initial=16)
    first.run(list(range(16)), fits(5))
    again = AdaptiveBatches(free_memory=lambda: 10**9)

    again.load_state_dict(json.loads(json.dumps(first.state_dict())))

    assert (again.size, [len(part) for part in again.split(list(range(9)))]) == (4, [4, 4, 1])
    again.load_state_dict(AdaptiveBatches().state_dict())
    assert (again.size, repr(again)) == (None, "<AdaptiveBatches: no batch seen yet>")


@pytest.mark.parametrize("state", [None, 0.5, [], {"n": 1}, {"size": 0}, {"size": "4"}, {"size": True}, {"size": [[]]}])
def test_what_is_no_state_is_refused(state):
    """And the size stays what it was."""
    adaptive = AdaptiveBatches(initial=16)

    with pytest.raises(ResumeError, match=r"no state of AdaptiveBatches.*pass what state_dict"):
        adaptive.load_state_dict(state)

    assert adaptive.size == 16


# What counts as out of memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("device-side assert triggered"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_that_a_smaller_batch_may_help(error, expected):
    """By type, or by what the allocators say."""
    assert is_out_of_memory(error) is expected


def test_torch_errors_are_known_by_their_type():
    """Whatever they say; and a real one of the CPU allocator is recognised."""
    import torch

    assert is_out_of_memory(torch.OutOfMemoryError("on HIP"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_the_memory_of_a_cuda_device_is_asked_of_torch(monkeypatch):
    """What is free, and what torch holds without using it."""
    import torch

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000, 9_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)

    adaptive = AdaptiveBatches(torch.device("cuda", 0), fraction=1.0, measure=lambda batch: 100)

    assert [len(part) for part in adaptive.split(list(range(20)))] == [12, 8]


@pytest.mark.cuda
def test_a_real_device_is_filled_and_halved():
    """Twice as much as the device has is worked on in parts that fit."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    row_bytes = free // 16

    results = AdaptiveBatches("cuda", initial=32).run(
        list(range(32)), lambda rows: torch.empty(len(rows) * row_bytes, dtype=torch.uint8, device="cuda").numel()
    )

    assert sum(results) == 32 * row_bytes
    assert len(results) >= 2


def test_free_memory_of_this_machine_is_used_by_default(monkeypatch):
    """Of the CPU where no device is named."""
    monkeypatch.setattr(memory_cache, "free_bytes", lambda: 1_000)

    for device in (None, "cpu"):
        assert len(next(AdaptiveBatches(device, 1.0, measure=lambda batch: 100).split(list(range(99))))) == 10


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"fraction": 0}, "fraction"),
        ({"fraction": 1.1}, "fraction"),
        ({"initial": 0}, "initial must be a whole number of rows from 1 up, got 0"),
        ({"initial": True}, "initial"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    """The error names the setting and the value."""
    with pytest.raises(ConfigError, match=match):
        AdaptiveBatches(**settings)


def test_a_device_that_nobody_knows_needs_a_size():
    """The error says which arguments help."""
    with pytest.raises(ConfigError, match="'mps': its free memory is unknown; pass initial or free_memory"):
        list(AdaptiveBatches("mps").split([1]))
    assert list(AdaptiveBatches("mps", initial=2).split([1])) == [[1]]


def test_torch_is_not_loaded_for_it():
    """Also when it halves."""
    program = """
import sys
from poolish.load.micro_batches import AdaptiveBatches
def work(rows):
    if len(rows) > 1:
        raise MemoryError
print(len(AdaptiveBatches().run([1, 2], work)), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=True)

    assert done.stdout == "2 False\n"
