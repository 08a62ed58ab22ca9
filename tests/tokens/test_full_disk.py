"""A disk that is full: an error where space is asked for, a stream that is as it was, and never a signal.

On real small disks. Writing through a map into space that is not there is SIGBUS, which ends the process; so
everything runs in a child, whose end tells.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from poolish import StreamStore
from poolish.errors import StoreFull
from poolish.tokens import memmap_buffer, writer
from tests.effort import times
from tests.faults import fill, in_child, small_disk
from tests.tokens import recordings
from tests.tokens.recordings import FIELDS, append, append_many, assert_holds

MIB = 1 << 20
INDEX_BYTES = MIB // 24 * 24  # what a new stream takes first, in whole rows


def on_small_disk(tmp_path: Path, n_bytes: int, story: Callable[[Path], object]) -> None:
    """What happens on a disk of so many bytes, in a child that must come to its end."""
    with small_disk(tmp_path / "disk", n_bytes) as disk:
        # The child has the same descriptor, so the same path leads there.
        assert in_child(lambda: story(disk)) == 0


def append_while_it_fits(
    store: StreamStore, step: int, size: int, and_then: Callable[[], object] = lambda: None
) -> int:
    """Append until the disk is full; the step behind the last one that was appended."""
    while True:
        try:
            append(store, step, step + size)
        except StoreFull:
            return step
        step += size
        try:
            and_then()
        except StoreFull:
            return step


def check_good(path: Path, n_steps: int) -> None:
    for mode in "ra":
        with StreamStore.open(path, mode=mode) as store:
            assert_holds(store, recordings.tokens(0, n_steps))
            store.verify()


def test_appending_to_the_brim_and_on(tmp_path):
    """StoreFull when no chunk more fits; everything before is there, and when there is room it goes on by itself."""

    def story(disk):
        filler = disk / "other"
        filler.write_bytes(bytes(5 * MIB))
        store, step = StreamStore(disk / "stream", FIELDS), 0
        step = append_while_it_fits(store, step, 50)
        assert step > 5_000
        assert_holds(store, recordings.tokens(0, step))
        with pytest.raises(StoreFull, match="make room"):
            append(store, step, step + 50)
        store.commit()
        check_reader(disk / "stream", step)
        filler.unlink()
        append(store, step, step + 50)
        store.close()
        check_good(disk / "stream", step + 50)

    on_small_disk(tmp_path, 12 * MIB, story)


def check_reader(path: Path, n_steps: int) -> None:
    with StreamStore.open(path) as reader:
        assert_holds(reader, recordings.tokens(0, n_steps))
        reader.verify()


@pytest.mark.parametrize("free_mib", range(6))
def test_appending_much_at_once(tmp_path, free_mib):
    """However much of it would fit, in whichever lane: all of it or nothing, and no space is kept for what failed."""

    def story(disk):
        with StreamStore(disk / "stream", FIELDS) as store:
            append(store, 0, 10)
            store.commit()
            with open(disk / "filler", "wb") as filler:
                free = os.statvfs(disk).f_bavail * 4096
                filler.write(bytes(max(0, free - free_mib * MIB - 5_000)))
            free = os.statvfs(disk).f_bavail
            with pytest.raises(StoreFull):
                append_many(store, 10, 200_000)
            assert_holds(store, recordings.tokens(0, 10))
            append_many(store, 10, 3_000)
            assert os.statvfs(disk).f_bavail >= free - (free_mib + 1) * MIB // 4096
            (disk / "filler").unlink()
            append_many(store, 3_000, 200_000)
        check_good(disk / "stream", 200_000)

    on_small_disk(tmp_path, 32 * MIB, story)


def test_a_commit_without_room_for_its_record(tmp_path):
    """StoreFull; what was appended is there, and the next commit covers all of it."""

    def story(disk):
        store = StreamStore(disk / "stream", FIELDS)
        append(store, 0, 1)
        fill(disk)
        step, n_failed = 1, 0
        while n_failed < 5:
            append(store, step, step + 1)
            step += 1
            try:
                store.commit()
                assert n_failed == 0
            except StoreFull:
                n_failed += 1
        assert_holds(store, recordings.tokens(0, step))
        check_reader(disk / "stream", step)
        (disk / "filler").unlink()
        store.commit()
        assert store.verify().uncommitted_tokens == 0
        store.close()
        check_good(disk / "stream", step)

    on_small_disk(tmp_path, 4 * MIB, story)


@pytest.mark.parametrize("action", ["close", "leave"])
def test_closing_without_room_for_the_last_record(tmp_path, action):
    """It is told, or not if nobody listens; everything is there when the stream is opened again, full disk or not."""

    def story(disk):
        store, step = StreamStore(disk / "stream", FIELDS), 1
        append(store, 0, 1)
        fill(disk)
        step = append_while_it_fits(store, step, 1, and_then=store.commit)
        if action == "close":
            with pytest.raises(StoreFull):
                store.close()
        else:
            with pytest.raises(StoreFull), store:
                append(store, step, step + 1)
            step += 1
        for _ in range(2):
            check_reader(disk / "stream", step)
            again = StreamStore.open(disk / "stream", mode="a")
            assert_holds(again, recordings.tokens(0, step))
            # The first of a record's two lines may have found room. It is enough, so nothing is left to commit.
            with pytest.raises(StoreFull) if again.verify().uncommitted_tokens else nullcontext():
                again.close()
        (disk / "filler").unlink()
        check_good(disk / "stream", step)

    on_small_disk(tmp_path, 4 * MIB, story)


@pytest.mark.parametrize("free_kib", [0, 4, 8, 100, 1_000, 1_024, 1_028])
def test_making_a_stream_where_it_does_not_fit(tmp_path, free_kib):
    """StoreFull, no stream, and no way barred: it is made when there is room."""

    def story(disk):
        (disk / "keep").mkdir()
        fill(disk)
        os.truncate(disk / "filler", os.stat(disk / "filler").st_size - free_kib * 1024)
        with pytest.raises(StoreFull, match="make room"):
            StreamStore(disk / "stream", FIELDS)
        with pytest.raises(FileNotFoundError):
            StreamStore.open(disk / "stream")
        (disk / "filler").unlink()
        with StreamStore(disk / "stream", FIELDS) as store:
            append(store, 0, 10)
        check_good(disk / "stream", 10)

    on_small_disk(tmp_path, 4 * MIB, story)


def test_a_bounded_stream_lives_on_a_disk_not_much_larger(tmp_path, monkeypatch):
    """It gives back what has left it, so it never gets full."""
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 16)

    def story(disk):
        with StreamStore(disk / "stream", {"action": "int64"}, max_tokens=50_000) as store:
            for first in range(0, times(2_000_000), 10_000):
                numbers = np.arange(first, first + 10_000)
                store.append_many(numbers, {"action": numbers})
            found = store.windows([store.first], len(store))["values"][0]
            assert np.array_equal(found, np.arange(store.end - 50_000, store.end))
            store.verify()

    on_small_disk(tmp_path, 20 * MIB, story)


def test_a_bounded_stream_on_a_full_disk_keeps_what_it_has(tmp_path, monkeypatch):
    """An append that raises StoreFull has appended nothing; there is no other error, and no loss."""
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 12)

    def story(disk):
        store = StreamStore(disk / "stream", {"action": "int64"}, max_tokens=1_000)
        store.append_many(np.arange(1_000), {"action": np.arange(1_000)})
        fill(disk)
        n_failed = 0
        for _ in range(200):
            end = store.end
            numbers = np.arange(end, end + 2_000)
            try:
                store.append_many(numbers, {"action": numbers})
                assert store.end == end + 2_000
            except StoreFull:
                assert store.end == end
                n_failed += 1
        assert n_failed > 0
        found = store.windows([store.first], 1_000)["values"][0]
        assert np.array_equal(found, np.arange(store.end - 1_000, store.end))
        (disk / "filler").unlink()
        store.append_many(np.arange(store.end, store.end + 10), {"action": np.arange(store.end, store.end + 10)})
        store.close()
        with StreamStore.open(disk / "stream") as reader:
            reader.verify()

    on_small_disk(tmp_path, 5 * MIB, story)


def test_many_appends_at_the_brim_never_end_the_process(tmp_path, monkeypatch):
    """Small and large ones, full and with room again, a hundred times; what is there is always what was appended."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 1 << 14)

    def story(disk):
        rng, step = np.random.default_rng(0), 0
        with StreamStore(disk / "stream", FIELDS) as store:
            for _ in range(times(150)):
                if rng.random() < 0.3:
                    fill(disk)
                size = int(rng.integers(1, 400))
                try:
                    (append if rng.random() < 0.5 else append_many)(store, step, step + size)
                    step += size
                    store.commit()
                except StoreFull:
                    (disk / "filler").unlink(missing_ok=True)
                assert store.end == recordings.n_tokens(step)
                if store.end > 90_000:
                    break
            assert_holds(store, recordings.tokens(0, step))
            (disk / "filler").unlink(missing_ok=True)
        check_good(disk / "stream", step)

    on_small_disk(tmp_path, 6 * MIB, story)


def copy_with_holes(source: Path, target: Path) -> None:
    """What ``cp --sparse=always`` makes: zeros take no space."""
    target.mkdir()
    for file in source.iterdir():
        data = file.read_bytes()
        with open(target / file.name, "wb", buffering=0) as copy:
            copy.truncate(len(data))
            for start in range(0, len(data), 4096):
                page = data[start : start + 4096]
                if page.strip(b"\0"):
                    os.pwrite(copy.fileno(), page, start)


def make_hole(file: Path) -> None:
    """The same length, and nothing in it."""
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)


@pytest.mark.parametrize("lost", ["nothing", "head", "types"])
def test_a_copy_with_holes_on_a_full_disk(tmp_path, lost):
    """A copy may have holes where zeros were. Opening it to write asks for the space first, or says that it is full."""
    with StreamStore(tmp_path / "stream", FIELDS) as store:
        append_many(store, 0, 20_000)

    def story(disk):
        path = disk / "stream"
        copy_with_holes(tmp_path / "stream", path)
        if lost != "nothing":
            make_hole(path / lost)
        fill(disk)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)  # that the head page is damaged
            with pytest.raises(StoreFull):
                StreamStore.open(path, mode="a")
            (disk / "filler").unlink()
            with StreamStore.open(path, mode="a") as store:
                assert_holds(store, recordings.tokens(0, 20_000))
                append_many(store, 20_000, 21_000)
        check_good(path, 21_000)

    on_small_disk(tmp_path, 8 * MIB, story)


def test_healing_types_on_a_full_disk(tmp_path):
    """``verify`` writes the types anew, also where there is a hole: StoreFull if that does not fit, no signal."""

    def story(disk):
        path = disk / "stream"
        with StreamStore(path, FIELDS) as store:
            append_many(store, 0, 20_000)
        make_hole(path / "types")
        fill(disk)
        with pytest.raises(StoreFull), StreamStore.open(path, mode="a") as store:
            store.verify()
        (disk / "filler").unlink()
        with StreamStore.open(path, mode="a") as store:
            store.verify()
            assert_holds(store, recordings.tokens(0, 20_000))

    on_small_disk(tmp_path, 8 * MIB, story)


@pytest.mark.parametrize("limit", [0, 100, 4095, 4096, MIB - 1, MIB, 3 * MIB])
def test_a_limit_on_the_size_of_files(tmp_path, limit):
    """RLIMIT_FSIZE, which needs no disk of its own: StoreFull, whatever asks first, and everything is whole."""
    path = tmp_path / "stream"

    def story():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        store, step = None, 0
        if limit < INDEX_BYTES:
            with pytest.raises(StoreFull, match="file too large"):
                StreamStore(path, FIELDS)
        else:
            store = StreamStore(path, FIELDS)
            step = append_while_it_fits(store, 0, 100)
        assert (step > 0) == (limit >= MIB)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store = store or StreamStore(path, FIELDS)
        append_many(store, step, step + 1_000)
        store.close()
        check_good(path, step + 1_000)

    assert in_child(story) == 0
