"""Ctrl-C before any line of opening, appending, committing and closing: all or nothing, and no lock that stays."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import poolish.files
import poolish.tokens
from poolish import StreamStore
from poolish.tokens import memmap_buffer
from tests.effort import IS_SOAK, some
from tests.faults import in_own_process, interrupted_at_line
from tests.tokens.recordings import FIELDS, append, append_many, assert_holds, tokens

#: What Ctrl-C may come into; other modules end what they do, or do not change a stream.
DECIDING = {"writer.py", "commits.py", "locks.py"}
TRACED = {os.path.dirname(module.__file__) for module in (poolish.tokens, poolish.files)}


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Files that grow in nearly every append."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(memmap_buffer, "RESERVED", 1 << 16)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def interrupted_at(k: int) -> AbstractContextManager[list[str]]:
    """Ctrl-C before the k-th line that runs in the modules of a stream."""
    return interrupted_at_line(k, lambda path: os.path.dirname(path) in TRACED)


def moments(lines: list[str]) -> list[int]:
    """Each line of the modules that decide, some of the others; in a soak every line, every time."""
    if IS_SOAK:
        return list(range(1, len(lines) + 1))
    last = {line: k for k, line in enumerate(lines, 1)}
    return sorted(k for line, k in last.items() if line.rpartition("/")[2].split(":")[0] in DECIDING or k % 6 == 0)


def make(path: Path) -> None:
    with StreamStore(path, FIELDS) as store:
        append_many(store, 0, 10)


def each_interrupt(tmp_path: Path, act: Callable[[StreamStore | None, Path], object], *, opens: bool) -> Iterator[Any]:
    """Interrupt ``act`` before each of its lines, each time on a stream of its own: (stream or None, path, line)."""
    make(tmp_path / "whole")
    store = None if opens else StreamStore(tmp_path / "whole")
    with interrupted_at(0) as lines:
        act(store, tmp_path / "whole")
    for k in some(moments(lines), 80):
        path = tmp_path / str(k)
        make(path)
        store = None if opens else StreamStore(path)
        gc.disable()  # what is collected meanwhile is not what is interrupted
        try:
            with interrupted_at(k):
                act(store, path)
        except KeyboardInterrupt:
            pass
        finally:
            gc.enable()
        yield store, path, lines[k - 1]


def check(path: Path, possible: tuple[int, ...], line: str) -> None:
    """The stream can be opened to write, here and now, and is one of those that are possible."""
    with StreamStore(path) as store:
        assert store.n_steps in possible, line
        assert_holds(store, tokens(0, store.n_steps))
        append(store, store.n_steps, store.n_steps + 2)
        store.verify()
        assert_holds(store, tokens(0, store.n_steps))


@in_own_process
def test_an_interrupted_close_releases_the_lock(tmp_path):
    """At the latest when it is called again; what was appended is there."""
    n_released = 0
    for store, path, line in each_interrupt(tmp_path, lambda store, _: store.close(), opens=False):
        n_released += not store._source or not store._source.is_open
        store.close()

        check(path, (10,), line)
    assert n_released > 20


@in_own_process
def test_a_stream_whose_close_was_interrupted_closes_when_it_goes(tmp_path):
    """Leaving a ``with`` block by Ctrl-C needs no second call."""

    def leave(_: None, path: Path) -> None:
        with StreamStore(path) as store:
            append(store, 10, 11)

    for _, path, line in each_interrupt(tmp_path, leave, opens=True):
        gc.collect()  # frames of the interrupt hold the stream until then

        check(path, (10, 11), line)


@pytest.mark.parametrize("what", ["append", "append_many", "commit"])
@in_own_process
def test_an_interrupted_write_is_all_or_nothing_and_the_stream_goes_on(tmp_path, what):
    """With a first append, which records the branch and grows the files, and a later one."""
    acts = {
        "append": lambda store, _: append(store, 10, 90),
        "append_many": lambda store, _: append_many(store, 10, 900),
        "commit": lambda store, _: (append(store, 10, 12), store.commit()),
    }
    possible = {"append": (10, 90), "append_many": (10, 900), "commit": (10, 12)}[what]
    for store, path, line in each_interrupt(tmp_path, acts[what], opens=False):
        n_steps = store.n_steps
        assert n_steps in possible, line
        assert_holds(store, tokens(0, n_steps))
        append(store, n_steps, n_steps + 60)
        store.commit()
        assert_holds(store, tokens(0, n_steps + 60))
        assert_holds(StreamStore.open(path), tokens(0, n_steps + 60))
        store.close()
        check(path, (n_steps + 60,), line)


@in_own_process
def test_an_interrupted_from_dataset_is_all_or_nothing(tmp_path):
    """Rows that are held back until the end are published together, or forgotten."""
    source = StreamStore(fields=FIELDS)
    append_many(source, 0, 50)
    dataset = source.to_dataset(step="step").select(range(10, 50))

    for store, path, line in each_interrupt(
        tmp_path, lambda store, _: store.from_dataset(dataset, step="step"), opens=False
    ):
        n_steps = store.n_steps
        assert n_steps in (10, 50), line
        append(store, n_steps, n_steps + 5)
        assert_holds(store, tokens(0, n_steps + 5))
        store.close()
        check(path, (n_steps + 5,), line)


@in_own_process
def test_an_interrupted_opening_leaves_the_stream_free(tmp_path):
    """The next one opens it, in the same process."""
    for _, path, line in each_interrupt(tmp_path, lambda _, path: StreamStore(path).close(), opens=True):
        gc.collect()

        check(path, (10,), line)
