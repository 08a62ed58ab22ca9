"""A power cut, whenever it comes: what ``commit`` had returned for is there, and nothing else is taken for good.

The disk is simulated: of everything that was not synced it may hold any mixture of old and new, sector by sector, and
rubbish where nothing was before. Each such state is a directory that is then opened on another boot.
"""

from __future__ import annotations

import errno as codes
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from poolish import StreamStore, kernels
from poolish.errors import CorruptDataError, DurabilityLost, StoreFull
from poolish.files import publishing
from poolish.tokens import commits, directory, logs, memmap_buffer, stream_files, writer
from poolish.tokens import head as head_page
from poolish.tokens.stream_files import StreamFiles
from tests.effort import IS_SOAK, times
from tests.faults import SYSTEM_CALLS, die, in_child
from tests.tokens import recordings
from tests.tokens.recordings import FIELDS, abandon, another_boot, append, append_many, assert_holds

SECTOR = 512


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Files of a few sectors, so that a disk can be drawn in no time."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(memmap_buffer, "RESERVED", 1 << 16)


# The disk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """What a stream was given in its lives, and how far it may reach after a power cut."""

    parts: tuple[tuple[int, int, int], ...] = ()  # first step, step behind the last, salt
    is_made: bool = False  # whether the call that makes it has returned
    told: int = 0  # how many steps the last commit that returned covers
    possible: frozenset[int] = frozenset({0})  # how many steps any commit covers that was begun

    def expected(self, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
        kept = [recordings.tokens(first, min(end, n_steps), salt) for first, end, salt in self.parts if first < n_steps]
        types, values = zip(*kept, strict=True) if kept else ([[]], [[]])
        return np.concatenate(types), np.concatenate(values)

    def breaks(self, n_steps: int) -> list[int]:
        """Where another life began, as far as anything of it is left."""
        pairs = pairwise(self.parts)
        return [first for (_, _, before), (first, _, salt) in pairs if before != salt and first < n_steps]

    def cut(self, n_steps: int) -> History:
        """The same, after a power cut that left so many steps."""
        parts = tuple((first, min(end, n_steps), salt) for first, end, salt in self.parts if first < n_steps)
        return History(parts, True, n_steps, frozenset({n_steps}))


@dataclass(frozen=True)
class Moment:
    """What the disk may hold if the power goes now, and what has happened until now."""

    names: list[dict[str, int]]
    files: dict[int, list[bytes]]
    history: History


class Disk:
    """Every version of every file of a stream since it was last synced, the synced one first."""

    def __init__(self, path: Path, history: History) -> None:
        self.path, self.history = path, history
        self.names: list[dict[str, int]] = [{}]
        self.files: dict[int, list[bytes]] = {}
        self.moments: list[Moment] = []
        self.look()
        self.names = self.names[-1:]
        self.files = {file: versions[-1:] for file, versions in self.files.items()}
        self.moments.clear()

    def look(self) -> None:
        """Note what there is now."""
        names = {}
        for entry in os.scandir(self.path) if self.path.exists() else ():
            names[entry.name] = entry.inode()
            versions = self.files.setdefault(entry.inode(), [b""])
            content = Path(entry.path).read_bytes()
            if content != versions[-1]:
                versions.append(content)
        if names != self.names[-1]:
            self.names.append(names)
        files = {file: list(versions) for file, versions in self.files.items()}
        self.moments.append(Moment(list(self.names), files, self.history))

    def sync(self, fd: int) -> None:
        """What ``fsync`` promises."""
        self.look()
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            self.names = self.names[-1:]
        else:
            file = os.fstat(fd).st_ino
            self.files[file] = self.files[file][-1:]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look before and after everything that changes a file."""
        with pytest.MonkeyPatch.context() as patch:
            for place, name in [
                *((os, "writev"), (os, "posix_fallocate"), (os, "link"), (os, "unlink"), (os, "write")),
                *((kernels, "store_word"), (head_page.Head, "sign")),
            ]:
                patch.setattr(place, name, self.watched(getattr(place, name)))
            patch.setattr(os, "fsync", self.sync)
            yield
            self.look()

    def watched(self, call: Callable[..., object]) -> Callable[..., object]:
        def looking(*arguments: object, **options: object) -> object:
            self.look()
            return call(*arguments, **options)

        return looking


def draw(moment: Moment, rng: random.Random, path: Path) -> None:
    """One of the states in which a power cut may leave the directory."""
    path.mkdir()
    names = {name for version in moment.names for name in version}
    is_orderly = rng.random() < 0.3
    for name in sorted(names):
        file = (moment.names[-1] if is_orderly else rng.choice(moment.names)).get(name)
        if file is not None:
            (path / name).write_bytes(draw_file(moment.files[file], rng))


def draw_file(versions: list[bytes], rng: random.Random) -> bytes:
    if len(versions) == 1:
        return versions[0]
    kind = rng.choice(["oldest", "newest", "any", "mixed", "mixed", "rubbish"])
    if kind in ("oldest", "newest", "any"):
        return {"oldest": versions[0], "newest": versions[-1], "any": rng.choice(versions)}[kind]
    n_sectors = max(map(len, versions)) // SECTOR + 1
    sectors = np.stack([np.frombuffer(v.ljust(n_sectors * SECTOR, b"\0"), np.uint8) for v in versions])
    sectors = sectors.reshape(len(versions), n_sectors, SECTOR)
    chosen = [rng.randrange(len(versions)) for _ in range(n_sectors)]
    mixed = sectors[chosen, np.arange(n_sectors)]
    if kind == "rubbish":
        # Only behind what was synced: a disk writes a sector whole or not at all.
        for i in range(-(-len(versions[0]) // SECTOR), n_sectors):
            mixed[i] = rng.choice([mixed[i], np.zeros(SECTOR), np.frombuffer(rng.randbytes(SECTOR), np.uint8)])
    return mixed.tobytes()[: len(rng.choice(versions))]


# Lives of a stream ------------------------------------------------------------------------------------------------


def live(path: Path, history: History, salt: int, rng: random.Random) -> list[Moment]:
    """Open a stream, append and commit for a while; the moments at which the power might have gone."""
    disk = Disk(path, history)
    with disk.watching():
        store = StreamStore(path, FIELDS)
        disk.history = replace(disk.history, is_made=True)
        n_steps = store.n_steps
        for _ in range(rng.randrange(2, 7)):
            size = rng.choice([1, 2, 5, 20, 60])
            # Before it is done: the disk may get to see it at any time.
            disk.history = replace(disk.history, parts=(*disk.history.parts, (n_steps, n_steps + size, salt)))
            rng.choice([append, append_many])(store, n_steps, n_steps + size, salt)
            n_steps += size
            if rng.random() < 0.6:
                disk.history = replace(disk.history, possible=disk.history.possible | {n_steps})
                store.commit()
                disk.history = replace(disk.history, told=n_steps)
        disk.history = replace(disk.history, possible=disk.history.possible | {n_steps})
        store.close()
        disk.history = replace(disk.history, told=n_steps)
    return disk.moments


def recover(path: Path, history: History) -> History | None:
    """Open what a power cut left, first to read; the history until there, or None if there is no stream yet."""
    if not history.is_made and not (path / "store.json").exists():
        return None
    with StreamStore.open(path) as reader:
        n_steps = reader.n_steps
        assert n_steps >= history.told
        assert n_steps in history.possible
        assert_holds(reader, history.expected(n_steps))
        assert reader._view().breaks().tolist() == history.breaks(n_steps)
    with StreamStore.open(path, mode="a") as store:
        assert store.n_steps == n_steps
        assert_holds(store, history.expected(n_steps))
        store.verify()
    with StreamStore.open(path) as reader:
        assert reader.n_steps == n_steps
        reader.verify()
    return history.cut(n_steps)


@contextmanager
def boot(number: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        another_boot(patch, b"boot %d" % number)
        # That a head page is damaged is no surprise here.
        patch.setattr("warnings.warn", lambda *_, **__: None)
        yield


def cut_power_often(folder: Path, n_states: int, seed: int, n_lives: int = 3) -> int:
    """Let a stream live, die by a power cut and live again, in many ways; how many disks were looked at."""
    rng, n_seen = random.Random(seed), 0
    while n_seen < n_states:
        path, history = folder / f"{seed}-{n_seen}", History()
        for life in range(n_lives):
            with boot(2 * life):
                moments = live(path, history, life, rng)
            shutil.rmtree(path)
            # More states of the first moments of a life than of later ones would say the same again.
            for _ in range(12):
                moment = rng.choice(moments)
                draw(moment, rng, path)
                with boot(2 * life + 1):
                    found = recover(path, moment.history)
                n_seen += 1
                last, kept = found, path.with_name("kept")
                shutil.rmtree(kept, ignore_errors=True)
                path.rename(kept)
            if last is None:
                break
            history = last
            kept.rename(path)
        shutil.rmtree(path, ignore_errors=True)
    return n_seen


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_power_cut_leaves_every_commit_is_there(tmp_path, seed):
    """In hundreds of states of the disk, in a row of three lives: all that was committed, and only that."""
    n_seen = cut_power_often(tmp_path, times(125, push=36), seed)

    assert n_seen >= times(125, push=36)


def lanes_after_the_record(patch: pytest.MonkeyPatch) -> None:
    sync, log_append = StreamFiles.sync, commits.CommitLog.append
    opened: list[StreamFiles] = []
    patch.setattr(StreamFiles, "sync", lambda self: opened.append(self))

    def append_first(self, record):
        log_append(self, record)
        while opened:
            part = opened.pop()
            if part.data.file.fd >= 0:
                sync(part)

    patch.setattr(commits.CommitLog, "append", append_first)


MISTAKES = {
    "lanes are not synced": lambda patch: patch.setattr(StreamFiles, "sync", lambda _: None),
    "one lane is not synced": lambda patch: patch.setattr(StreamFiles, "sync", lambda self: self.data.flush()),
    "lanes are synced after the record": lanes_after_the_record,
    "the branch is not synced": lambda patch: patch.setattr(
        logs.BranchLog,
        "append",
        lambda self, records, durable: self.write([logs.line_of(r) for r in records], durable=False),
    ),
    "the log is not synced": lambda patch: patch.setattr(logs, "sync", lambda *_: None),
    "the directory is not synced before": lambda patch: patch.setattr(directory, "sync_directory", lambda _: None),
    "the directory is not synced after": lambda patch: patch.setattr(publishing, "sync_directory", lambda _: None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_order_would_be_seen(tmp_path, monkeypatch, mistake):
    """The test above can fail: with one step left out, some state of the disk shows it."""
    MISTAKES[mistake](monkeypatch)

    with pytest.raises((AssertionError, CorruptDataError, FileNotFoundError)):
        cut_power_often(tmp_path, 3_000, seed=0, n_lives=2 if "branch" in mistake else 1)


# The same by hand -------------------------------------------------------------------------------------------------


def recorded(path: Path, act: Callable[[], object]) -> list[str]:
    """The system calls that bring things to the disk, in order: what is done, and to which file."""
    calls: list[str] = []

    def noting(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def noted(target: object, *arguments: object, **options: object) -> object:
            where = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(arguments[0])
            # The directory itself is ".", the one above "..", a partial file what it will be.
            calls.append(f"{name} {os.path.relpath(where, path)}")
            return call(target, *arguments, **options)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "writev", "link"):
            patch.setattr(os, name, noting(name, getattr(os, name)))
        act()
    return calls


def test_a_commit_syncs_the_lanes_then_writes_its_record_then_syncs_that(tmp_path):
    """A record on disk is the proof that what it covers is there; so it comes second."""
    with StreamStore(tmp_path / "stream", FIELDS) as store:
        append(store, 0, 10)

        calls = recorded(tmp_path / "stream", store.commit)

    assert sorted(calls[:-2]) == ["fsync data", "fsync index", "fsync types"]
    assert calls[-2:] == ["writev commits", "fsync commits"]


def test_a_new_stream_is_on_disk_with_all_its_names_before_it_is_one(tmp_path):
    """Files, then their names, then the description; and at last the directories in which the directory is."""
    path = tmp_path / "runs" / "today" / "stream"

    calls = recorded(path, lambda: StreamStore(path, FIELDS))

    made = calls.index("link store.json")
    assert {"fsync data", "fsync index", "fsync types", "fsync head", "fsync commits", "fsync ."} <= set(calls[:made])
    assert {"fsync .", "fsync ..", "fsync ../..", "fsync ../../.."} <= set(calls)
    assert "fsync ." in calls[made:]


def test_nothing_to_commit_is_nothing_written(tmp_path):
    """A second commit of the same is the same commit."""
    with StreamStore(tmp_path / "stream", FIELDS) as store:
        append(store, 0, 10)
        first = store.commit()

        assert recorded(tmp_path / "stream", store.commit) == []
        assert store.commit() == first


def test_temporary_streams_sync_nothing():
    """They do not outlive their process."""
    with StreamStore(fields=FIELDS) as store:
        append(store, 0, 10)

        calls = recorded(store._read().path, store.commit)

    assert "fsync data" not in calls


def test_a_commit_whose_record_nobody_synced_is_synced_before_it_is_told_again(tmp_path):
    """Killed between record and sync, opened on the same boot: the next commit has nothing to add but a promise."""
    path = tmp_path / "stream"

    def die_before_the_last_sync():
        store = StreamStore(path, FIELDS)
        append(store, 0, 10)
        os.fsync = lambda fd: die() if os.readlink(f"/proc/self/fd/{fd}").endswith("commits") else None
        store.commit()

    in_child(die_before_the_last_sync)

    def commit_again():
        with StreamStore.open(path, mode="a") as store:
            assert (store.commit(), store.n_steps) == (1, 10)

    assert "fsync commits" in recorded(path, commit_again)


def break_off_commit(store: StreamStore, part: float) -> None:
    """A commit on a disk that is full when it has taken a part of the record."""
    write = os.write

    def break_off(fd, buffers):
        whole = b"".join(buffers)
        patch.setattr(os, "writev", full)
        return write(fd, whole[: int(len(whole) * part)])

    def full(fd, buffers):
        raise OSError(codes.ENOSPC, os.strerror(codes.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", break_off)
        with pytest.raises(StoreFull):
            store.commit()


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
def test_a_commit_that_broke_off_is_finished_by_the_next(tmp_path, part):
    """A full disk takes half of a record: StoreFull. When there is room again, commit returns with a synced record."""
    path = tmp_path / "stream"
    with StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
        break_off_commit(store, part)

        calls = recorded(path, store.commit)

        assert calls[-1] == "fsync commits"
        append(store, 10, 20)
        store.commit()
        assert store.verify().commits == 3
    with boot(1), StreamStore.open(path) as reader:
        assert_holds(reader, recordings.tokens(0, 20))


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
def test_a_commit_of_more_than_the_one_that_broke_off_has_another_number(tmp_path, part):
    """Half of the first record may count: a second one of its number, about more steps, would damage the log."""
    path = tmp_path / "stream"
    with StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
        break_off_commit(store, part)
        append(store, 10, 20)

        store.commit()

        store.verify()
    with boot(1), StreamStore.open(path) as reader:
        assert_holds(reader, recordings.tokens(0, 20))
        reader.verify()


@pytest.mark.parametrize("next_boot", [False, True])
def test_a_record_that_was_torn_anywhere_is_no_commit(tmp_path, next_boot):
    """At each byte: until the first of its two lines is whole the commit before counts; what comes next is right."""
    path = tmp_path / "stream"
    with boot(0), StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
        store.commit()
        before = (path / "commits").read_bytes()
        append(store, 10, 20)
    whole = (path / "commits").read_bytes()
    line = (len(whole) - len(before)) // 2
    head = (path / "head").read_bytes()
    head = head[:192] + sealed(1) + head[200:]
    for size in range(len(before), len(whole) + 1, 1 if IS_SOAK else 7):
        (path / "commits").write_bytes(whole[:size])
        (path / "head").write_bytes(head)
        n_steps = 20 if size - len(before) >= line - 1 or not next_boot else 10

        with boot(next_boot), StreamStore.open(path, mode="a") as store:
            assert store.n_steps == n_steps
            store.verify()
            append(store, n_steps, n_steps + 5)
            store.commit()
            store.verify()
        with boot(next_boot + 1), StreamStore.open(path, mode="a") as store:
            assert_holds(store, recordings.tokens(0, n_steps + 5))


def sealed(number: int) -> bytes:
    """The number of a commit as the head page keeps it."""
    page = np.zeros(512, np.int64)
    kernels.store_word(page, head_page.COMMITTED, number)
    return page[head_page.COMMITTED : head_page.COMMITTED + 1].tobytes()


def test_a_commit_that_was_dropped_never_comes_back(tmp_path):
    """Its record did not reach the disk. The steps are appended anew, with other values, and committed; power cut."""
    path = tmp_path / "stream"
    with boot(0), StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
        store.commit()
        before = (path / "commits").read_bytes()
        append(store, 10, 20)
    dropped = (path / "commits").read_bytes()[len(before) :]
    (path / "commits").write_bytes(before + dropped[: len(dropped) // 3])
    head = (path / "head").read_bytes()
    (path / "head").write_bytes(head[:192] + sealed(1) + head[200:])

    with boot(1), StreamStore.open(path, mode="a") as store:
        assert store.n_steps == 10
        append(store, 10, 20, salt=1)
        store.commit()
    with boot(2), StreamStore.open(path) as reader:
        assert_holds(reader, History(((0, 10, 0), (10, 20, 1))).expected(20))
        reader.verify()
    with open(path / "commits", "ab") as file:
        file.write(dropped)
    with boot(3), pytest.raises(CorruptDataError, match="two commits 2 that differ"):
        StreamStore.open(path).verify()


def test_a_stream_of_another_boot_is_what_was_committed_to_readers_too(tmp_path):
    """And once a writer has opened it, the rest is gone for good, also on the old boot."""
    path = tmp_path / "stream"
    abandon(path)

    with StreamStore.open(path) as reader:
        assert reader.n_steps == 20
    with boot(1), StreamStore.open(path) as reader:
        assert reader.n_steps == 10
    with boot(1), StreamStore.open(path, mode="a") as store:
        assert store.n_steps == 10
    with StreamStore.open(path) as reader:
        assert reader.n_steps == 10


def test_a_stream_never_gets_shorter_for_a_reader(tmp_path):
    """One that has seen more than the newest commit keeps it when the head page is damaged beside it."""
    path = tmp_path / "stream"
    store = StreamStore(path, FIELDS)
    append(store, 0, 10)
    store.commit()
    append(store, 10, 20)
    with StreamStore.open(path) as reader:
        damage_head(path)

        with pytest.warns(RuntimeWarning, match="head page is damaged"):
            reader.refresh()

        assert reader.n_steps == 20
        assert_holds(reader, recordings.tokens(0, 20))


def damage_head(path: Path) -> None:
    with open(path / "head", "r+b") as file:
        file.seek(48)
        file.write(bytes(8))


def test_a_copy_of_the_directory_holds_what_was_committed(tmp_path):
    """A copy that is made while a writer appends may have an old page and new lanes, or the other way round."""
    path, copy = tmp_path / "stream", tmp_path / "copy"
    with StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
        store.commit()
        append(store, 10, 20)
        shutil.copytree(path, copy)

        with pytest.warns(RuntimeWarning, match="a copy that was made"):
            copied = StreamStore.open(copy, mode="a")
        with copied:
            assert_holds(copied, recordings.tokens(0, 10))
            append(copied, 10, 15, salt=1)
            assert copied.uuid == store.uuid
        assert_holds(store, recordings.tokens(0, 20))


@pytest.mark.parametrize("how", [{"mode": "r"}, {"mode": "r", "mmap": False}, {"mode": "a"}], ids=str)
def test_a_copy_that_leaves_steps_out_warns_when_it_is_opened(tmp_path, how):
    """It names the copy, the commit it ends with and what to do; what it advises brings every step over."""
    path, copy = tmp_path / "stream", tmp_path / "copy"
    abandon(path)  # killed with 20 steps, of which 10 were committed
    shutil.copytree(path, copy)

    with pytest.warns(RuntimeWarning, match=r"copy: .* commit 1 .* field-writes behind it do not count.*mode='a'"):
        opened = StreamStore.open(copy, **how)
    with opened:
        assert opened.n_steps == 10
        opened.refresh()  # which says nothing more: warnings are errors here

    StreamStore.open(path, mode="a").close()
    shutil.rmtree(copy)
    shutil.copytree(path, copy)
    with StreamStore.open(copy, **how) as opened:
        assert_holds(opened, recordings.tokens(0, 20))


def test_a_copy_warns_once_about_what_it_leaves_out(tmp_path):
    """Not at a commit that was asked for, nor where nothing is left out, nor after a writer has settled it."""
    path, copy = tmp_path / "stream", tmp_path / "copy"
    abandon(path)
    shutil.copytree(path, copy)

    with StreamStore.open(copy, at=1) as old:
        assert old.n_steps == 10
    with pytest.warns(RuntimeWarning) as caught:
        StreamStore.open(copy, mode="a").close()
    assert len(caught) == 1
    for mode in "ra":
        with StreamStore.open(copy, mode=mode) as settled:
            assert settled.n_steps == 10


# A disk that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [codes.EIO, codes.ENOSPC, codes.EDQUOT])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_failed_sync_is_final(tmp_path, monkeypatch, number, code):
    """DurabilityLost, and for ever after; it is not tried again. What was appended is there for the next handle."""
    path, calls = tmp_path / "stream", []
    store = StreamStore(path, FIELDS)
    append(store, 0, 10)

    def fsync(fd):
        calls.append(fd)
        if len(calls) == number:
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(DurabilityLost, match="sync failed") as raised:
            store.commit()
        assert raised.value.errno == code
        for act in (
            store.commit,
            lambda: append(store, 10, 11),
            lambda: append_many(store, 10, 12),
            lambda: store.append(10, ["action"], [160.0]),
        ):
            with pytest.raises(DurabilityLost, match="open the stream again"):
                act()
        assert_holds(store, recordings.tokens(0, 10))
        store.close()

    assert len(calls) == number
    with StreamStore.open(path, mode="a") as store:
        assert_holds(store, recordings.tokens(0, 10))
        append(store, 10, 20)
        store.commit()
        store.verify()
    with boot(1), StreamStore.open(path) as reader:
        assert_holds(reader, recordings.tokens(0, 20))


@contextmanager
def failing(number: int, code: int) -> Iterator[list[str]]:
    """Let the numbered system call on files fail, once; the list names it when it has."""
    failed: list[str] = []
    n_calls = 0

    def counted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def maybe(*arguments: object, **options: object) -> object:
            nonlocal n_calls
            n_calls += 1
            if n_calls == number:
                is_new = name == "open" and arguments[1] & os.O_CREAT
                failed.append("create" if is_new else name)
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return maybe

    with pytest.MonkeyPatch.context() as patch:
        for place, name in [*((os, name) for name in (*SYSTEM_CALLS, "pread")), (stream_files, "punch")]:
            if name != "close" and hasattr(place, name):
                patch.setattr(place, name, counted(name, getattr(place, name)))
        yield failed


def fails_once_at_each_call(code: int, prepare: Callable[[], object], act: Callable, look: Callable) -> int:
    """Let each call of ``act`` fail in turn; the error is of its kind, and then it works. How many calls there were."""
    number = 0
    while True:
        number += 1
        given, error = prepare(), None
        before = recordings.descriptors()
        with failing(number, code) as failed:
            try:
                result = act(given)
            except OSError as raised:
                error = raised
        if not failed:
            look(given, result, None)
            return number - 1
        if error is not None:
            assert error.errno == code, failed
            usual = StoreFull if code in (codes.ENOSPC, codes.EDQUOT) else OSError
            others = dict.fromkeys(["open", "pread", "unlink"], OSError)  # these need no space
            expected = {"fsync": DurabilityLost, **others}.get(failed[0], usual)
            assert isinstance(error, expected), (failed, error)
            assert recordings.descriptors() == before, failed
            result = None
        look(given, result, error)


CODES = [codes.ENOSPC, codes.EIO, codes.EROFS, codes.EDQUOT]


@pytest.mark.parametrize("code", CODES)
def test_each_call_of_making_a_stream_may_fail(tmp_path, code):
    """Nothing stands in the way of making it again."""
    numbers = iter(range(1_000))

    def look(path, store, error):
        if store is None:
            store = StreamStore(path, FIELDS)
        with store:
            append(store, 0, 10)
            assert_holds(store, recordings.tokens(0, 10))
        with StreamStore.open(path) as reader:
            reader.verify()

    n_calls = fails_once_at_each_call(
        code, lambda: tmp_path / str(next(numbers)), lambda path: StreamStore(path, FIELDS), look
    )

    assert n_calls > 20


@pytest.mark.parametrize("next_boot", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_each_call_of_opening_may_fail(tmp_path, code, next_boot):
    """To read or to write, after a kill or a power cut: the error leaves everything as it was, and no file open."""
    path = tmp_path / "stream"
    abandon(path)
    template, n_steps = tmp_path / "template", 10 if next_boot else 20
    path.rename(template)

    def prepare():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(template, path)
        recordings.trust(path)  # in a copy only commits count

    def look(_, store, error):
        with store or StreamStore.open(path, mode="a") as opened:
            assert_holds(opened, recordings.tokens(0, n_steps))
            opened.verify()

    with boot(1) if next_boot else boot_as_it_is():
        n_calls = fails_once_at_each_call(code, prepare, lambda _: StreamStore.open(path, mode="a"), look)
        n_calls += fails_once_at_each_call(code, prepare, lambda _: StreamStore.open(path), look)

    assert n_calls > 15


@contextmanager
def boot_as_it_is() -> Iterator[None]:
    yield


@pytest.mark.parametrize("code", CODES)
def test_each_call_of_appending_and_committing_may_fail(tmp_path, code):
    """All of a call or nothing of it; the same handle goes on, unless a sync failed: then another does."""
    numbers = iter(range(1_000))

    def prepare():
        store = StreamStore(tmp_path / str(next(numbers)), FIELDS)
        append(store, 0, 10)
        return store

    def act(store):
        for first, end in ((10, 11), (11, 1_000)):  # the second needs room
            if store.n_steps == first:
                append_many(store, first, end)
            store.commit()
        return store

    def look(store, result, error):
        assert store.n_steps in (10, 11, 1_000)
        assert_holds(store, recordings.tokens(0, store.n_steps))
        if isinstance(error, DurabilityLost):
            store.close()
            store = StreamStore.open(store.path, mode="a")
        act(store)
        assert store.verify().uncommitted_tokens == 0
        store.close()
        with boot(1), StreamStore.open(store.path) as reader:
            assert_holds(reader, recordings.tokens(0, 1_000))

    assert fails_once_at_each_call(code, prepare, act, look) > 10


@pytest.mark.parametrize("code", CODES)
def test_each_call_of_giving_space_back_may_fail(tmp_path, monkeypatch, code):
    """A bounded stream commits by itself before it gives space back. An append that raises has appended nothing."""
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 16)
    numbers = iter(range(1_000))

    def prepare():
        store = StreamStore(tmp_path / str(next(numbers)), {"action": "int64"}, max_tokens=1_000)
        extend(store, 0, 60_000)
        return store

    def extend(store, first, end):
        store.append_many(np.arange(first, end), {"action": np.arange(first, end)})

    def act(store):
        extend(store, 60_000, 140_000)
        return store

    def look(store, result, error):
        if isinstance(error, DurabilityLost):
            store.close()
            store = StreamStore.open(store.path, mode="a", max_tokens=1_000)
            assert store.end in (60_000, 140_000)
        else:
            assert store.end == (60_000 if error else 140_000)
        extend(store, store.end, 150_000)
        found = store.windows([store.first], 1_000)["values"]
        assert np.array_equal(found[0], np.arange(149_000, 150_000))
        store.verify()
        store.close()

    assert fails_once_at_each_call(code, prepare, act, look) > 5


@pytest.mark.parametrize("code", CODES)
def test_each_call_of_closing_may_fail(tmp_path, code):
    """The error is told, and all the same everything is closed: the next writer finds everything."""
    numbers = iter(range(1_000))

    def prepare():
        store = StreamStore(tmp_path / str(next(numbers)), FIELDS)
        append(store, 0, 10)
        return store

    number = 0
    while True:
        number += 1
        store = prepare()
        raised: OSError | None = None
        with failing(number, code) as failed:
            try:
                store.close()
            except OSError as error:
                raised = error
        assert raised is None or raised.errno == code
        assert isinstance(raised, DurabilityLost) == (failed == ["fsync"])
        assert not any(str(tmp_path) in name for name in recordings.descriptors())
        with StreamStore.open(store.path, mode="a") as opened:
            assert_holds(opened, recordings.tokens(0, 10))
            opened.verify()
        if not failed:
            break
    assert number > 5
