"""A writer that is killed, whenever it is: what ``append`` had returned for is there, and nothing is torn."""

from __future__ import annotations

import os
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poolish import StreamStore, kernels
from poolish.tokens import head as head_page
from poolish.tokens import memmap_buffer, stream_files, writer
from poolish.tokens.stream_files import StreamFiles
from tests.effort import times
from tests.faults import die, fork, in_child, kill, some_kill_points
from tests.tokens import recordings
from tests.tokens.recordings import FIELDS, another_boot, append_many, check, go_on, make

#: What changes a stream without a system call of Python's: stores through the map, and the hole in a bounded one.
ALSO = (
    *((kernels, "store_word"), (head_page.Head, "sign"), (stream_files, "punch"), (memmap_buffer, "_map")),
    *(
        (memmap_buffer.MemmapBuffer, "reserve"),
        (StreamFiles, "sync"),
        (StreamFiles, "wrong_types"),
    ),
)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Whether something was synced makes no difference to who is only killed."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def small_chunks(monkeypatch):
    """Files that grow, and are mapped anew, many times in a test."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(memmap_buffer, "RESERVED", 1 << 16)


def start_writer(path: Path, step: int):
    """A child that appends for ever and tells after each call how many steps there are."""
    reading, writing = os.pipe()

    def child():
        os.close(reading)  # so that it ends when nobody listens any more
        number = step
        store = StreamStore.open(path, mode="a")
        while True:
            number = go_on(store, number)
            os.write(writing, struct.pack("q", number))

    pid = fork(child)
    os.close(writing)
    return pid, reading


def told_by(reading: int, heard: bytes = b"") -> int:
    """The last number that a child has told, 0 if it told none."""
    with os.fdopen(reading, "rb") as file:
        told = heard + file.read()
    return struct.unpack("q", told[-8:])[0] if told else 0


def check_and_go_on(path: Path, at_least: int, n_calls: int = 3) -> int:
    """What a reader and the next writer find is right, and it can be appended to; how many steps there are."""
    with StreamStore.open(path) as reader:
        n_steps = check(reader, at_least)
        reader.verify()
    with StreamStore.open(path, mode="a") as store:
        assert check(store, at_least) == n_steps
        store.verify()
        for _ in range(n_calls):
            n_steps = go_on(store, n_steps)
        assert check(store) == n_steps
    return n_steps


@pytest.mark.parametrize("chunks", ["chunks of a megabyte", "small chunks"])
def test_killed_at_random_nothing_that_was_told_is_lost(tmp_path, request, chunks):
    """A writer that appends and commits is killed a hundred times; the stream is a whole prefix, and no shorter."""
    if chunks == "small chunks":
        request.getfixturevalue("small_chunks")
    rng, n_heard, n_told = random.Random(chunks), 0, 0
    for number in range(times(5, push=2)):
        path = tmp_path / str(number)
        n_steps = make(path)
        for _ in range(10):
            pid, reading = start_writer(path, n_steps)
            # Often while it appends, and sometimes while it opens.
            heard = os.read(reading, 8) if rng.random() < 0.7 else b""
            time.sleep(rng.uniform(0, 0.02))
            kill(pid)
            told = told_by(reading, heard)
            n_heard += bool(heard)
            n_told += told > n_steps

            n_steps = check_and_go_on(path, max(told, n_steps))
        shutil.rmtree(path)
    assert n_told >= n_heard > times(5, push=2)  # kills struck writers that had appended, more than one a stream


def test_a_killed_writer_takes_nobody_with_it(tmp_path):
    """A reader that looks on all the while sees only whole calls, never fewer than before, and outlives every kill."""
    path = tmp_path / "stream"
    n_steps, rng = make(path, 5), random.Random(1)
    with StreamStore.open(path) as reader:
        for _ in range(times(10)):
            pid, reading = start_writer(path, n_steps)
            seen, end = [], time.monotonic() + rng.uniform(0.004, 0.02)
            try:
                while time.monotonic() < end:
                    reader.refresh()
                    seen.append(reader.n_steps)
            finally:
                kill(pid)
            assert seen == sorted(seen)
            told = told_by(reading)
            reader.refresh()
            n_steps = check(reader, max(told, n_steps))
        reader.verify()


# Before every call ------------------------------------------------------------------------------------------------


def killed_everywhere(
    path: Path,
    prepare: Callable[[], object],
    act: Callable[[], object],
    look: Callable[[], object],
    *,
    half: bool = False,
) -> int:
    """Kill ``act`` at some of its points, in a soak at each, always on a fresh copy; the number of points."""

    def look_and_prepare():
        look()
        shutil.rmtree(path, ignore_errors=True)
        prepare()

    prepare()
    return some_kill_points(act, look_and_prepare, half=half, also=ALSO)


@pytest.mark.parametrize("half", [False, True])
def test_killed_while_it_is_made_a_stream_is_whole_or_not_there(tmp_path, half):
    """What is left never stands in the way of making it."""
    path = tmp_path / "deep" / "stream"

    def look():
        if (path / "store.json").exists():
            with StreamStore.open(path) as reader:
                assert (len(reader), list(reader.field_to_type)) == (0, FIELDS)
                reader.verify()
        else:
            with pytest.raises(FileNotFoundError, match="no stream here"):
                StreamStore.open(path)
            with pytest.raises(FileNotFoundError, match="no stream here"):
                StreamStore.open(path, mode="a")
        with StreamStore(path, FIELDS) as store:
            go_on(store, 0)
        check_and_go_on(path, 1)
        expected = ["branches", "commits", "data", "head", "index", "lock", "store.json", "types"]
        assert sorted(os.listdir(path)) == expected

    points = killed_everywhere(path, lambda: None, lambda: StreamStore(path, FIELDS), look, half=half)

    assert points > 40


@pytest.mark.parametrize(("n_calls", "half"), [(0, True), (12, False)])
def test_killed_while_it_grows_and_commits(tmp_path, small_chunks, half, n_calls):
    """At each call of opening, of an append that needs room, of a commit and of closing: all of it or nothing."""
    path = tmp_path / "stream"
    n_steps = make(path, n_calls)
    shutil.rmtree(path)

    def act():
        step = n_steps
        with StreamStore.open(path, mode="a") as store:
            for size in (1, 3_000):
                append_many(store, step, step + size)
                step += size
            store.commit()

    def look():
        for mode in "ra":
            with StreamStore.open(path, mode=mode) as store:
                found = store.n_steps
                assert found in (n_steps, n_steps + 1, n_steps + 3_001)
                recordings.assert_holds(store, recordings.tokens(0, found))
                store.verify()
        with StreamStore.open(path, mode="a") as store:
            append_many(store, found, found + 50)
            store.commit()
            recordings.assert_holds(store, recordings.tokens(0, found + 50))

    points = killed_everywhere(path, lambda: make(path, n_calls), act, look, half=half)

    assert points > 40


def leave_behind(path: Path) -> tuple[int, int]:
    """A stream of a process that was killed: so many steps committed, so many appended."""
    make(path)

    def child():
        store = StreamStore.open(path, mode="a")
        step = append_until(store, 0, 700)
        store.commit()
        append_until(store, step, 1_500)
        die()

    in_child(child)
    return 700, 1_500


def append_until(store: StreamStore, step: int, end: int) -> int:
    while step < end:
        size = min(250, end - step)
        append_many(store, step, step + size)
        step += size
    return step


@pytest.mark.parametrize("without", ["nothing", "types", "head"])
def test_killed_while_it_recovers_from_a_power_cut(tmp_path, monkeypatch, without):
    """Recovery may be killed anywhere, again and again: what was committed is there, once it is done for good."""
    path = tmp_path / "stream"

    def prepare():
        leave_behind(path)
        if without != "nothing":
            (path / without).unlink()

    def look():
        with StreamStore.open(path, mode="a") as store:
            assert store.n_steps == 700
            recordings.assert_holds(store, recordings.tokens(0, 700))
            store.verify()
        with StreamStore.open(path) as reader:
            recordings.assert_holds(reader, recordings.tokens(0, 700))
            reader.verify()

    another_boot(monkeypatch, b"the next boot")
    monkeypatch.setattr("warnings.warn", lambda *_, **__: None)  # that the head page is damaged

    points = killed_everywhere(path, prepare_on_first_boot(monkeypatch, prepare), lambda: reopen(path), look)

    assert points > 10


def prepare_on_first_boot(monkeypatch, prepare):
    def prepare_there():
        with monkeypatch.context() as patch:
            another_boot(patch, b"the first boot")
            prepare()

    return prepare_there


def reopen(path: Path) -> None:
    with StreamStore.open(path, mode="a") as store:
        store.commit()


def test_killed_while_a_bounded_stream_gives_space_back(tmp_path, monkeypatch):
    """The steps that are kept are whole, also after a power cut: nothing is given back that a commit still needs."""
    path, n_kept, ends = tmp_path / "stream", 10_000, (190_000, 191_000)
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 16)

    def prepare():
        with StreamStore(path, {"action": "int64"}, max_tokens=n_kept) as store:
            extend(store, 0, 120_000)

    def act():
        with StreamStore.open(path, mode="a", max_tokens=n_kept) as store:
            for end in ends:
                extend(store, store.end, end)

    def look():
        with StreamStore.open(path) as reader:
            published = check_kept(reader)
        with StreamStore.open(path, mode="a", max_tokens=n_kept) as store:
            assert check_kept(store) == published
        with monkeypatch.context() as patch:
            another_boot(patch, b"the next boot")
            with StreamStore.open(path, mode="a", max_tokens=n_kept) as store:
                check_kept(store)
                extend(store, store.end, 300_000)
                assert check_kept(store) == (290_000, 300_000)

    def check_kept(store):
        assert 0 < len(store) <= n_kept
        assert store.end in (120_000, *ends, 300_000)
        found = store.windows([store.first], len(store))
        assert np.array_equal(found["values"][0], np.arange(store.first, store.end))
        store.verify()
        return store.first, store.end

    points = killed_everywhere(path, prepare, act, look)

    assert points > 30


def extend(store: StreamStore, first: int, end: int) -> None:
    """Append steps of one token whose value is its position."""
    numbers = np.arange(first, end)
    store.append_many(numbers, {"action": numbers})


# In the middle of a store into the map ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", range(8, 64, 8))
def test_killed_while_it_signs_the_head_page(tmp_path, n_bytes):
    """The next writer puts its name on the page; half a name takes nothing away that the last one had appended."""
    path = tmp_path / "stream"
    n_committed, n_steps = leave_behind(path)
    before = (path / "head").read_bytes()

    def sign_and_die():
        with StreamStore.open(path, mode="a"):
            die()

    in_child(sign_and_die)
    after = (path / "head").read_bytes()
    with open(path / "head", "r+b") as file:
        file.write(after[:n_bytes] + before[n_bytes:])

    with StreamStore.open(path) as reader:
        assert reader.n_steps == n_steps > n_committed
    with StreamStore.open(path, mode="a") as store:
        recordings.assert_holds(store, recordings.tokens(0, n_steps))


def test_a_torn_word_is_never_taken_for_a_length(tmp_path):
    """Whatever else than a sealed number is in the word that publishes, the stream goes on from its last commit."""
    path = tmp_path / "stream"
    n_committed, _ = leave_behind(path)
    page = bytearray((path / "head").read_bytes())
    rng = random.Random(2)
    for _ in range(times(20)):
        page[64:72] = rng.randbytes(8)
        (path / "head").write_bytes(page)

        with pytest.warns(RuntimeWarning, match="the head page is damaged"), StreamStore.open(path) as reader:
            assert reader.n_steps == n_committed
