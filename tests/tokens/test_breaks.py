"""Breaks: an episode never goes on across the opening of a stream, however the writer before it ended."""

from __future__ import annotations

import gc
import os
import pickle
import random
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from poolish import MemmapBuffer, StreamStore
from poolish.errors import ConfigError, DurabilityLost, ResumeError, SchemaError, StoreFull
from poolish.tokens import logs
from tests.effort import times
from tests.faults import children, die, in_child, some_kill_points, wait_until
from tests.tokens.recordings import another_boot, descriptors

FIELDS = {"x": "int64", "done": "bool"}
GOLDEN = Path(__file__).parent / "stream_version_1"


def record(path: Path, first: int, end: int, **how: object) -> None:
    """Append steps of two tokens, none of which ends an episode, and close."""
    with StreamStore(path, FIELDS, **how) as store:
        extend(store, first, end)


def record_and_die(path: Path, first: int, end: int) -> None:
    """Append the same in a process that is killed, so that nothing of it is committed."""

    def child() -> None:
        store = StreamStore(path, FIELDS)
        extend(store, first, end)
        die()

    in_child(child)


def extend(store: StreamStore, first: int, end: int) -> None:
    for step in range(first, end):
        store.append(step, ["x", "done"], [step, False])


def episodes(store: StreamStore) -> list[list[int]]:
    """The steps of each episode, as windows of two steps within episodes tell."""
    starts = store.sample_starts(2_000, 4, start="step", within="done", rng=np.random.default_rng(0))
    linked = {int(store[[start]]["values"][0]) for start in starts}
    found: list[list[int]] = []
    for step in store:
        if found and found[-1][-1] in linked:
            found[-1].append(step["x"])
        else:
            found.append([step["x"]])
    return found


def runs(*edges: int) -> list[list[int]]:
    return [list(range(first, end)) for first, end in pairwise(edges)]


def test_a_killed_recorder_ends_its_episode(tmp_path):
    """Windows within an episode never hold steps of two recorders, for writers and for every kind of reader."""
    path = tmp_path / "stream"

    record_and_die(path, 0, 10)
    reader = StreamStore.open(path)
    assert episodes(reader) == runs(0, 10)
    record_and_die(path, 10, 25)

    reader.refresh()
    assert episodes(reader) == runs(0, 10, 25)
    assert episodes(StreamStore.open(path, mmap=False)) == runs(0, 10, 25)
    with StreamStore(path) as store:
        assert episodes(store) == runs(0, 10, 25)
        extend(store, 25, 30)
        assert episodes(store) == runs(0, 10, 25, 30)
        assert store.coverage(4, start="step", within="done").episodes == 3
        windows = store.as_dataset(width=4, stride=2, within="done")
        assert len(windows) == 9 + 14 + 4


def test_a_reader_sees_a_break_live(tmp_path):
    """A reader in another process never joins two episodes, however it refreshes while recorders come and go."""
    path = tmp_path / "stream"
    record(path, 0, 10)

    def recorder():
        for first in range(10, 210, 10):
            record(path, first, first + 10)

    with children(recorder), StreamStore.open(path) as reader:
        seen: list[int] = []

        def look() -> bool:
            reader.refresh()
            starts = reader.sample_starts(400, 4, start="step", within="done", rng=np.random.default_rng(len(seen)))
            steps = reader.windows(starts, 4)["values"][:, ::2]
            assert (steps[:, 0] // 10 == steps[:, 1] // 10).all()
            seen.append(reader.n_steps)
            return reader.n_steps == 210

        wait_until(look)


def test_whoever_creates_a_stream_or_appends_nothing_records_no_break(tmp_path):
    """Opening alone leaves every file but the lock and the head page as it was."""
    path = tmp_path / "stream"
    record(path, 0, 10)
    before = {name: (path / name).read_bytes() for name in ("branches", "commits", "data", "index")}
    for _ in range(5):
        StreamStore(path, FIELDS).close()
        with StreamStore.open(path, mode="a") as store:
            store.append([], [], [])
            store.append_many(np.empty(0, np.int64), {})
            with pytest.raises(SchemaError):
                store.append(11, ["x"], [0.5])

    assert {name: (path / name).read_bytes() for name in before} == before
    assert episodes(StreamStore.open(path)) == runs(0, 10)


def test_continue_episode_goes_on(tmp_path):
    """The one who knows that it goes on says so, and only then is there no break."""
    path = tmp_path / "stream"
    record(path, 0, 10)
    record(path, 10, 20, continue_episode=True)
    with StreamStore.open(path, mode="a", continue_episode=True) as store:
        extend(store, 20, 30)
    record(path, 30, 40)

    assert episodes(StreamStore.open(path)) == runs(0, 30, 40)
    with pytest.raises(ConfigError, match="mode='a'"):
        StreamStore.open(path, continue_episode=True)
    with pytest.raises(ConfigError, match="continue_episode='yes'"):
        StreamStore(path, continue_episode="yes")


def test_a_break_waits_for_the_step_that_is_being_written(tmp_path):
    """A writer may complete the last step; its break comes behind that step."""
    path = tmp_path / "stream"
    with StreamStore(path, FIELDS) as store:
        extend(store, 0, 3)
        store.append(3, ["x"], [3])
    with StreamStore(path) as store:
        store.append(3, ["done"], [False])
        assert store._view().breaks().tolist() == []
        extend(store, 4, 8)

        assert episodes(store) == runs(0, 4, 8)


@pytest.mark.parametrize("is_sampled_before", [False, True])
def test_a_break_behind_a_step_without_tokens_excludes_no_window(tmp_path, is_sampled_before):
    """A step without tokens begins where the next one does: both are starts of one window, whenever it was counted."""
    with StreamStore(tmp_path / "s", ["notes", "done"]) as store:
        store.append(0, ["notes", "done"], [np.ones(2), 0.0])
        store.append(1, ["notes"], [np.ones(0)])
    with StreamStore(tmp_path / "s", ["notes", "done"]) as store:
        if is_sampled_before:
            store.coverage(3, start="step", within="done")
        store.append(2, ["notes", "done"], [np.ones(2), 0.0])
        store.append(3, ["notes", "done"], [np.ones(2), 0.0])

        coverage = store.coverage(3, start="step", within="done")

    assert (coverage.windows, coverage.episodes) == (4, 2)  # step 0; steps 1 and 2, at one token; step 3


def test_a_reader_that_arrived_empty_counts_the_steps_it_sees(tmp_path):
    """All steps of a handle left while it travelled: after refresh its windows are those of the stream, no more."""
    with StreamStore(tmp_path / "s", FIELDS, max_tokens=4) as store:
        extend(store, 0, 2)
        parcel = pickle.dumps(StreamStore.open(tmp_path / "s"))
        extend(store, 2, 6)
        reader = pickle.loads(parcel)
        n_before = reader.coverage(2, start="step", within="done").windows

        reader.refresh()

        assert (n_before, reader.coverage(2, start="step", within="done").windows) == (0, 2)
        reader.close()


def test_an_older_commit_has_the_breaks_of_its_time(tmp_path):
    """``at=`` shows the stream as it was."""
    path, commits = tmp_path / "stream", []
    for first in (0, 10, 20):
        with StreamStore(path, FIELDS) as store:
            extend(store, first, first + 10)
            commits.append(store.commit())

    assert episodes(StreamStore.open(path, at=commits[1])) == runs(0, 10, 20)
    assert episodes(StreamStore.open(path, at=commits[0])) == runs(0, 10)


def test_a_break_that_a_power_cut_took_never_comes_back(tmp_path, monkeypatch):
    """A record above the recovered length is void for ever, also when the stream grows past it again."""
    path = tmp_path / "stream"
    another_boot(monkeypatch, b"first")
    record(path, 0, 10)

    record_and_die(path, 10, 15)
    record_and_die(path, 15, 20)
    assert episodes(StreamStore.open(path)) == runs(0, 10, 15, 20)
    another_boot(monkeypatch, b"second")
    reader = StreamStore.open(path)
    assert episodes(reader) == runs(0, 10)
    with StreamStore(path, continue_episode=True) as store:
        extend(store, 10, 30)

        assert episodes(store) == runs(0, 30)
    reader.refresh()
    assert episodes(reader) == runs(0, 30)


def test_a_reader_that_saw_what_was_lost_says_so(tmp_path, monkeypatch):
    """What it has read is not what is there now; it does not mix the two."""
    path = tmp_path / "stream"
    another_boot(monkeypatch, b"first")
    record(path, 0, 10)

    record_and_die(path, 10, 15)
    reader = StreamStore.open(path)
    assert reader.n_steps == 15
    another_boot(monkeypatch, b"second")
    with StreamStore(path) as store:
        extend(store, 10, 30)

        with pytest.raises(ResumeError, match="recovered to a shorter length"):
            reader.refresh()


def test_copies_of_the_directory_have_its_breaks(tmp_path):
    """Copied as files, also while the writer lives."""
    path = tmp_path / "stream"
    record(path, 0, 10)
    with StreamStore(path) as store:
        extend(store, 10, 20)
        store.commit()
        shutil.copytree(path, tmp_path / "copy")
    with StreamStore(tmp_path / "copy") as copy:
        extend(copy, 20, 30)

        assert episodes(copy) == runs(0, 10, 20, 30)


def test_a_bounded_stream_keeps_the_breaks_of_what_it_keeps(tmp_path):
    """Those before its first step do not matter any more."""
    path = tmp_path / "stream"
    for first in range(0, 100, 10):
        record(path, first, first + 10, max_tokens=50)
    with StreamStore(path, max_tokens=50) as store:
        assert episodes(store) == [list(range(75, 80)), *runs(80, 90, 100)]


@pytest.mark.parametrize("url", ["s3://bucket/runs", "hf://datasets/me/runs", "gs:/bucket/runs"])
def test_a_url_is_no_directory(tmp_path, monkeypatch, url):
    """It is refused with what takes URLs, instead of becoming a local directory of that name."""
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: StreamStore(url, fields=FIELDS),
        lambda: StreamStore(Path(url)),
        lambda: StreamStore.open(url),
        lambda: StreamStore.open(url, mode="a"),
        lambda: MemmapBuffer(url),
    ):
        with pytest.raises(ConfigError, match=r"must be a local path; URLs are accepted by .*sources of a recipe"):
            call()

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mmap", [True, False])
def test_a_reader_that_is_never_closed_leaves_no_file_open(tmp_path, mmap):
    """A process that opens streams again and again does not run out of descriptors."""
    record(tmp_path / "stream", 0, 10)
    before = descriptors()
    for _ in range(3):
        assert StreamStore.open(tmp_path / "stream", mmap=mmap).n_steps == 10
    gc.collect()

    assert descriptors() <= before


def test_numbers_of_numpy_are_numbers(tmp_path):
    """Bounds, lengths and commits may be NumPy's; nothing of them leaks into a file or a comparison."""
    with StreamStore(tmp_path / "stream", FIELDS, max_tokens=np.int64(50)) as store:
        extend(store, 0, 10)
        seq = np.int32(store.commit())
    with StreamStore.open(tmp_path / "stream", at=seq) as reader:
        assert reader.n_steps == 10
    for at in ("1", 1.0, True):
        with pytest.raises(ConfigError, match="number of a commit"):
            StreamStore.open(tmp_path / "stream", at=at)
    buffer = MemmapBuffer(tmp_path / "lane", length=None, chunk_rows=np.int64(10))
    buffer.append(np.arange(3))
    assert buffer.capacity == 10


# Faults -----------------------------------------------------------------------------------------------------------


def test_killed_anywhere_the_next_writer_breaks_the_episode(tmp_path, monkeypatch):
    """Before each system call of opening, appending and closing, and half way through a write."""
    path = tmp_path / "stream"
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def prepare():
        shutil.rmtree(path, ignore_errors=True)
        record(path, 0, 10)

    def look():
        n_steps = StreamStore.open(path).n_steps
        record(path, n_steps, n_steps + 5)
        with StreamStore.open(path) as reader:
            reader.verify()
            assert episodes(reader) == runs(*sorted({0, 10, n_steps, n_steps + 5}))
        prepare()

    for half in (False, True):
        prepare()
        assert some_kill_points(lambda: record(path, 10, 20), look, half=half) > 10


def test_the_break_is_on_disk_before_what_comes_behind_it(tmp_path, monkeypatch):
    """One sync, before the first append of an opening is seen; none for the appends after it."""
    path, seen = tmp_path / "stream", []
    record(path, 0, 10)
    sync = logs.sync
    with StreamStore(path) as store, StreamStore.open(path) as reader:

        def looking(fd, name):
            reader.refresh()
            seen.append((os.path.basename(name), reader.n_steps))
            sync(fd, name)

        monkeypatch.setattr(logs, "sync", looking)
        extend(store, 10, 20)
        monkeypatch.undo()

    assert seen == [("branches", 10)]


@pytest.mark.parametrize("way", ["append", "append_many", "from_dataset"])
def test_a_disk_that_is_full_for_the_break_is_full_for_the_append(tmp_path, monkeypatch, way):
    """Nothing is appended without its break; with room again, the same append works and has one break."""
    import datasets

    path = tmp_path / "stream"
    record(path, 0, 10)
    rows = {"x": [10, 11], "done": [False, False]}
    ways = {
        "append": lambda store: store.append([10, 10, 11, 11], ["x", "done"] * 2, [10, False, 11, False]),
        "append_many": lambda store: store.append_many([10, 11], rows),
        "from_dataset": lambda store: store.from_dataset(datasets.Dataset.from_dict(rows)),
    }
    store, write = StreamStore(path), logs.write_all

    def full(fd, buffers):
        write(fd, [b"".join(buffers)[:150]])
        raise StoreFull("no space")

    monkeypatch.setattr(logs, "write_all", full)
    for _ in range(3):
        with pytest.raises(StoreFull):
            ways[way](store)
        assert (store.n_steps, StreamStore.open(path).n_steps) == (10, 10)
    monkeypatch.undo()
    ways[way](store)
    extend(store, 12, 15)

    assert episodes(store) == runs(0, 10, 15)
    store.close()
    assert episodes(StreamStore.open(path)) == runs(0, 10, 15)
    assert StreamStore.open(path).verify().healed > 0


def test_a_break_that_cannot_be_synced_ends_the_stream(tmp_path, monkeypatch):
    """After a failed sync the disk may hold anything: every append is refused until it is opened again."""
    path = tmp_path / "stream"
    record(path, 0, 10)
    store = StreamStore(path)

    def failing(fd, name):
        raise DurabilityLost(f"{name}: sync failed")

    monkeypatch.setattr(logs, "sync", failing)
    for _ in range(2):
        with pytest.raises(DurabilityLost):
            extend(store, 10, 12)
    monkeypatch.undo()
    with pytest.raises(DurabilityLost, match="open the stream again"):
        extend(store, 10, 12)
    store.close()

    record(path, 10, 15)
    assert episodes(StreamStore.open(path)) == runs(0, 10, 15)


def test_records_count_until_a_later_one_replaces_their_rows():
    """As a list of rows with owners says it: what was lost and written anew has the new owner, and no old break."""
    rng = random.Random(0)
    for _ in range(times(40)):
        log: list[logs.Branch] = []
        owners: list[str] = []
        breaks: set[int] = set()
        for name in "abcdefgh":
            n_kept = rng.randrange(len(owners) + 1)
            del owners[n_kept:]
            breaks = {row for row in breaks if row < n_kept}
            is_break = rng.random() < 0.6
            log += logs.Branches(log).after("uuid", {n_kept: is_break}, branch=name * 32)
            breaks |= {n_kept} if is_break else set()
            owners += [name] * rng.randrange(5)
        found = logs.Branches(log)

        assert found.breaks.tolist() == sorted(breaks)
        assert found.n_records == 8


# Hugging Face, and what 0.1.0 wrote ---------------------------------------------------------------------------


def test_a_dataset_carries_the_breaks(tmp_path):
    """``to_dataset`` has the fields alone, unless asked for a column of breaks, which ``from_dataset`` reads back."""
    path = tmp_path / "stream"
    for first in (0, 10, 20):
        record(path, first, first + 10)
    with StreamStore.open(path) as reader:
        plain, dataset = reader.to_dataset(), reader.to_dataset(breaks="break", step="n")
    again = StreamStore(tmp_path / "again", FIELDS)
    again.from_dataset(dataset, breaks="break")
    extend(again, 30, 35)
    unbroken = StreamStore(fields=FIELDS)
    unbroken.from_dataset(dataset)

    assert plain.column_names == ["x", "done"]
    assert dataset.column_names == ["x", "done", "n", "break"]
    assert np.flatnonzero(dataset["break"]).tolist() == [10, 20]
    assert episodes(again) == runs(0, 10, 20, 35)
    assert episodes(unbroken) == runs(0, 30)
    again.close()
    assert episodes(StreamStore.open(tmp_path / "again")) == runs(0, 10, 20, 35)
    with pytest.raises(SchemaError, match="true or false"):
        unbroken.from_dataset(dataset, breaks="n")


def test_breaks_of_a_dataset_that_was_refused_do_not_count(tmp_path):
    """All of it or nothing: also where the error comes when the breaks are already on disk."""
    record(tmp_path / "one", 0, 10)
    record(tmp_path / "one", 10, 20)
    dataset = StreamStore.open(tmp_path / "one").to_dataset(breaks="break")
    store = StreamStore(tmp_path / "two", FIELDS)
    extend(store, 100, 103)
    append = store._writer().branch_log.append

    def interrupted(records, *, durable):
        append(records, durable=durable)
        raise KeyboardInterrupt

    store._writer().branch_log.append = interrupted
    with pytest.raises(KeyboardInterrupt):
        store.from_dataset(dataset, breaks="break")
    store._writer().branch_log.append = append
    extend(store, 103, 130)

    assert episodes(store) == runs(100, 130)


def test_a_stream_of_0_1_0_gets_breaks_from_now_on(tmp_path):
    """It has no file of branches; it is read, appended to, and broken where it was opened."""
    shutil.copytree(GOLDEN, tmp_path / "stream")
    assert not (GOLDEN / "branches").exists()
    with StreamStore.open(tmp_path / "stream") as reader:
        assert reader._view().breaks().tolist() == []
        StreamStore(tmp_path / "stream").append(10, ["action"], [5])
        StreamStore(tmp_path / "stream", continue_episode=True).append(11, ["action"], [5])
        reader.refresh()

        assert reader.n_steps == 4
        assert reader._view().breaks().tolist() == [2]
        reader.verify()
