"""A file appears whole or not at all, whoever is killed and whatever fails."""

from __future__ import annotations

import errno as codes
import fcntl
import gc
import os
import random
import resource
import time
from pathlib import Path

import pytest

from poolish.errors import DurabilityLost, StoreFull
from poolish.files import Partial, publish, sweep, sync_directory
from tests.effort import times
from tests.faults import die, ended, every_kill_point, fork, in_child, kill, signals, small_disk

OLD, NEW = b"old" * 100, b"new" * 30_000  # more than the buffer holds, so that it takes several writes


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "store.json"
    path.write_bytes(OLD)
    return path


def put(path: Path, data: bytes, **options: bool) -> None:
    with publish(path, **options) as file:
        file.write(data)


def put_until(error: BaseException, path: Path, data: bytes) -> None:
    with publish(path) as file:
        file.write(data)
        raise error


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# When all goes well -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_the_new_file_takes_the_place_of_the_old(target, durable):
    """And nothing else is left in the directory."""
    put(target, NEW, durable=durable)

    assert target.read_bytes() == NEW
    assert names(target.parent) == [target.name]


def test_the_old_file_is_there_until_the_block_ends(target):
    """A reader that opens the name meanwhile gets the old content."""
    with publish(target) as file:
        file.write(NEW)
        file.flush()
        assert target.read_bytes() == OLD


def test_a_file_that_the_writer_closed_is_published_all_the_same(target):
    """Libraries that close what they write to do no harm."""
    with publish(target) as file:
        file.write(NEW)
        file.close()

    assert target.read_bytes() == NEW


def test_without_replace_an_existing_file_stays(target):
    """It is refused before anything is written, and the error says what to do."""
    with (
        pytest.raises(FileExistsError, match=r"store\.json: there is a file already; choose another name"),
        publish(target, replace=False),
    ):
        pytest.fail("the block was entered")

    assert target.read_bytes() == OLD
    assert names(target.parent) == [target.name]


def test_without_replace_a_file_that_came_first_stays(tmp_path):
    """Two writers of one name: the second to finish is told so."""
    target = tmp_path / "000042"
    with pytest.raises(FileExistsError), publish(target, replace=False):
        target.write_bytes(OLD)

    assert target.read_bytes() == OLD
    assert names(tmp_path) == ["000042"]


def test_a_link_that_was_made_but_reported_as_failed_is_ours(tmp_path, monkeypatch):
    """A network file system may repeat a request that had succeeded; our own file is no reason to complain."""
    link = os.link

    def twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    put(tmp_path / "000042", NEW, replace=False)

    assert (tmp_path / "000042").read_bytes() == NEW
    assert names(tmp_path) == ["000042"]


def test_files_are_for_their_owner_and_the_umask_is_respected(tmp_path):
    """0600 by default, and less where the umask says so."""
    before = os.umask(0o277)
    try:
        put(tmp_path / "strict", NEW)
        os.umask(0)
        put(tmp_path / "open", NEW)
    finally:
        os.umask(before)

    assert oct((tmp_path / "strict").stat().st_mode & 0o777) == "0o400"
    assert oct((tmp_path / "open").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "a\nb", "-rf", "..data"])
def test_any_file_name_will_do(tmp_path, name):
    """The temporary name never gets too long for the file system."""
    put(tmp_path / name, NEW)

    assert (tmp_path / name).read_bytes() == NEW


def test_a_partial_gets_its_name_when_it_is_written(tmp_path):
    """In steps: write, finish, link; the temporary name is gone afterwards."""
    (tmp_path / "tmp").mkdir()
    with Partial(tmp_path / "tmp", "w0") as partial:
        partial.file.write(NEW)
        partial.finish(durable=True)
        partial.link(tmp_path / "000042")

    assert (tmp_path / "000042").read_bytes() == NEW
    assert names(tmp_path / "tmp") == []


def test_a_closed_partial_is_no_longer_usable(tmp_path):
    """Closing twice is nothing; finishing after it is an error, whoever has its descriptor's number now."""
    with Partial(tmp_path, "a") as partial:
        pass
    with Partial(tmp_path, "b") as other:
        partial.close()
        with pytest.raises(ValueError, match="closed"):
            partial.rename(tmp_path / "a")
        other.file.write(NEW)
        other.finish(durable=False)
        other.rename(tmp_path / "b")

    assert (tmp_path / "b").read_bytes() == NEW


def test_the_order_of_system_calls_survives_a_power_cut(target, monkeypatch):
    """Content is on disk before the name points to it, and the name before publish returns."""
    calls = record_calls(monkeypatch)

    put(target, b"new")

    assert calls == ["write", "fsync file", "rename", "fsync directory"]


def test_without_durable_nothing_is_synced(target, monkeypatch):
    """Who does not ask for a power cut's safety does not pay for it."""
    calls = record_calls(monkeypatch)

    put(target, b"new", durable=False)

    assert calls == ["write", "rename"]


def record_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    write, fsync, rename = os.write, os.fsync, os.rename

    def recorded(name, call):
        return lambda *arguments: calls.append(name) or call(*arguments)

    def recorded_fsync(fd):
        calls.append("fsync directory" if os.path.isdir(f"/dev/fd/{fd}") else "fsync file")
        return fsync(fd)

    monkeypatch.setattr(os, "write", recorded("write", write))
    monkeypatch.setattr(os, "rename", recorded("rename", rename))
    monkeypatch.setattr(os, "fsync", recorded_fsync)
    return calls


# When something fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("bad row"), KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_after_an_exception_nothing_happened(target, error):
    """The exception is the caller's own, the target is as it was, and nothing is left beside it."""
    with pytest.raises(type(error)) as raised:
        put_until(error, target, NEW)

    assert raised.value is error
    assert target.read_bytes() == OLD
    assert names(target.parent) == [target.name]


def test_what_was_buffered_when_it_failed_goes_nowhere(tmp_path):
    """A descriptor's number is used again soon; a writer that is thrown away must not write into the next file."""
    partial = Partial(tmp_path, "data")
    partial.file.write(b"still in the buffer")
    partial.close()
    with open(tmp_path / "other", "wb"):
        del partial
        gc.collect()

    assert (tmp_path / "other").read_bytes() == b""


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, code: int, number: int = 1) -> list[int]:
    """Make the numbered call of an ``os`` function fail; a list that counts the calls."""
    call, seen = getattr(os, name), []

    def failing(*arguments, **options):
        seen.append(1)
        if len(seen) == number:
            raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    monkeypatch.setattr(os, name, failing)
    return seen


@pytest.mark.parametrize("code", [codes.EIO, codes.ENOSPC, codes.EDQUOT])
def test_a_failed_sync_publishes_nothing(target, monkeypatch, code):
    """Durability is lost, loudly; the sync is not tried again, because its success would mean nothing."""
    seen = fail_at(monkeypatch, "fsync", code)

    with pytest.raises(DurabilityLost, match=r"store\.json\..*sync failed .* write it anew") as raised:
        put(target, NEW)

    assert (raised.value.errno, len(seen)) == (code, 1)
    assert target.read_bytes() == OLD
    assert names(target.parent) == [target.name]


def test_a_directory_that_cannot_be_synced_is_told(target, monkeypatch):
    """The file is whole and in place, but nobody may believe that its name survives a power cut."""
    fail_at(monkeypatch, "fsync", codes.EIO, number=2)

    with pytest.raises(DurabilityLost):
        put(target, NEW)

    assert target.read_bytes() == NEW


@pytest.mark.parametrize("code", [codes.ENOSPC, codes.EDQUOT, codes.EFBIG])
@pytest.mark.parametrize("call", ["open", "write", "rename"])
def test_no_space_is_a_store_full(target, monkeypatch, call, code):
    """At whichever call it shows: one error, with the system's code, and nothing changed."""
    fail_at(monkeypatch, call, code)

    with pytest.raises(StoreFull, match=r"store\.json.*; make room") as raised:
        put(target, NEW)

    assert raised.value.errno == code
    assert target.read_bytes() == OLD
    assert names(target.parent) == [target.name]


@pytest.mark.parametrize("code", [codes.EIO, codes.EROFS, codes.EACCES])
@pytest.mark.parametrize("call", ["open", "write", "rename", "fstat"])
def test_other_failures_keep_their_own_error(target, monkeypatch, call, code):
    """EROFS stays EROFS; nothing changed, and it works again when the fault is gone."""
    fail_at(monkeypatch, call, code)

    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        put(target, NEW)

    assert raised.value.errno == code
    assert target.read_bytes() == OLD
    assert names(target.parent) == [target.name]
    put(target, NEW)
    assert target.read_bytes() == NEW


def test_a_write_that_failed_is_not_repeated(target, monkeypatch):
    """What is still in the buffer when the file is given up is dropped, not written a second time."""
    seen = fail_at(monkeypatch, "write", codes.EIO)

    with pytest.raises(OSError, match=os.strerror(codes.EIO)):
        put(target, b"less than the buffer")

    assert len(seen) == 1


def test_a_leftover_that_cannot_be_removed_hides_no_error(target, monkeypatch):
    """On a broken disk the first error is the one that is told."""
    fail_at(monkeypatch, "unlink", codes.EIO)

    with pytest.raises(ValueError, match="bad row"), publish(target):
        raise ValueError("bad row")

    assert target.read_bytes() == OLD


def test_a_full_disk_changes_nothing(tmp_path):
    """On a real disk of one megabyte: StoreFull, the old file, and all of the space back."""
    with small_disk(tmp_path / "disk", 2**20) as disk:
        put(disk / "file", OLD)
        free = os.statvfs(disk).f_bfree

        with pytest.raises(StoreFull, match=r"no space left on device for .* bytes; make room"):
            put(disk / "file", b"x" * 2**21)

        assert (disk / "file").read_bytes() == OLD
        assert (names(disk), os.statvfs(disk).f_bfree) == (["file"], free)
        put(disk / "file", NEW)
        assert (disk / "file").read_bytes() == NEW


def test_a_limit_on_file_size_changes_nothing(target):
    """The same under RLIMIT_FSIZE, which needs no disk of its own."""

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(StoreFull, match="file too large"):
            put(target, NEW)

    assert in_child(child) == 0
    assert target.read_bytes() == OLD
    assert names(target.parent) == [target.name]


def test_a_missing_directory_is_the_usual_error(tmp_path):
    """No directory is made in passing."""
    with pytest.raises(FileNotFoundError):
        put(tmp_path / "missing" / "file", NEW)
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "missing")


# When the writer is killed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("options", [{}, {"durable": False}])
def test_killed_at_any_system_call_the_old_file_or_the_new_is_there(target, options, half):
    """Before each call, and half way through each write; what is left over is swept, and writing goes on."""

    def check():
        assert target.read_bytes() in (OLD, NEW)
        assert len(sweep(target.parent)) <= 1
        assert names(target.parent) == [target.name]
        target.write_bytes(OLD)

    n_points = every_kill_point(lambda: put(target, NEW, **options), check, half=half)

    assert n_points >= 6


def test_killed_at_any_system_call_a_new_name_is_whole_or_absent(tmp_path):
    """Without replace, too; between the link and the removal of the temporary name the file has two names."""
    target = tmp_path / "000042"

    def check():
        assert not target.exists() or target.read_bytes() == NEW
        sweep(tmp_path)
        assert set(names(tmp_path)) <= {"000042"}
        target.unlink(missing_ok=True)

    assert every_kill_point(lambda: put(target, NEW, replace=False), check) >= 6


def test_killed_at_random_the_file_is_whole_and_no_older_than_was_told(tmp_path):
    """A writer that publishes one version after another is killed a hundred times; what it had told of is there."""
    target, rng = tmp_path / "version", random.Random(0)
    target.write_bytes(content(0))
    last = 0
    for _ in range(times(100)):
        told, writer = start_writer(target, last)
        time.sleep(rng.uniform(0, 0.006))
        kill(writer)
        acknowledged = [int(line) for line in told.read().split()]
        told.close()

        found = int(target.read_bytes()[:8])

        assert target.read_bytes() == content(found)
        assert found >= max(acknowledged, default=last)
        last = found
        sweep(tmp_path)
        assert names(tmp_path) == ["version"]
    assert last > 0


def content(version: int) -> bytes:
    return b"%08d" % version * 5_000


def start_writer(target: Path, version: int):
    reading, writing = os.pipe()

    def child():
        number = version
        while True:
            number += 1
            put(target, content(number), durable=False)
            os.write(writing, b"%d\n" % number)

    pid = fork(child)
    os.close(writing)
    return os.fdopen(reading), pid


# What is left over --------------------------------------------------------------------------------------------


def test_only_files_of_dead_writers_are_swept(tmp_path):
    """Not one that is being written, here or in another process, however old; and nothing of other names."""
    for name in ("data", ".hidden", ".x.partial", "x.0123456789abcdef.partial", ".x.0123456789ABCDEF.partial"):
        (tmp_path / name).write_bytes(OLD)
    (tmp_path / ".x.0123456789abcdef.partial").mkdir()
    others = names(tmp_path)
    dead = fork(lambda: (Partial(tmp_path, "dead"), die()))
    ended(dead)
    with Partial(tmp_path, "alive") as alive:
        os.utime(alive.path, (0, 0))

        swept = sweep(tmp_path)

        assert [path.name.split(".")[1] for path in swept] == ["dead"]
        assert names(tmp_path) == sorted([*others, alive.path.name])
    assert names(tmp_path) == others


def test_a_sweep_follows_no_link_and_waits_for_no_pipe(tmp_path):
    """What somebody put under such a name leads nowhere."""
    (tmp_path / "data").write_bytes(OLD)
    (tmp_path / ".x.0123456789abcdef.partial").symlink_to(tmp_path / "data")
    os.mkfifo(tmp_path / ".y.0123456789abcdef.partial")

    sweep(tmp_path)

    assert (tmp_path / "data").read_bytes() == OLD


def test_two_sweepers_do_not_disturb_each_other(tmp_path, monkeypatch):
    """What another one removed in the meantime is no error, and is not counted twice."""
    leftover, flock = tmp_path / ".x.0123456789abcdef.partial", fcntl.flock
    leftover.touch()

    def late(fd, operation):
        leftover.unlink()
        return flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)

    assert sweep(tmp_path) == []


def test_a_sweep_between_create_and_lock_does_no_harm(target, monkeypatch):
    """The writer sees that its file was taken for a dead one, and begins again under another name."""
    flock, calls = fcntl.flock, []

    def late(fd, operation):
        calls.append(fd)
        if len(calls) == 1:
            assert len(sweep(target.parent)) == 1
        return flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    put(target, NEW)

    assert target.read_bytes() == NEW
    assert names(target.parent) == [target.name]


def test_writers_are_never_disturbed_by_sweepers(tmp_path):
    """Two processes publish while this one sweeps all the time: no write fails, nothing is left."""

    def write_many(name):
        for i in range(times(150)):
            put(tmp_path / name, b"%d" % i, durable=False)

    writers = [fork(lambda name=name: write_many(name)) for name in ("a", "b")]
    outcomes = []
    while len(outcomes) < 2:
        sweep(tmp_path)
        pid, status = os.waitpid(-1, os.WNOHANG)
        outcomes += [status] if pid in writers else []

    assert outcomes == [0, 0]
    assert names(tmp_path) == ["a", "b"]


# Forks --------------------------------------------------------------------------------------------------------


def test_a_forked_child_cannot_publish_or_remove_its_parents_file(target):
    """It gets an error if it tries, and the parent goes on as if nothing had been."""

    def child(file):
        file.write(b"from the child")
        file.flush()
        raise ValueError("the child leaves the block")

    with publish(target) as file:
        file.write(b"parent, ")
        assert in_child(lambda: leave(target)) == 0
        writer = fork(lambda: child(file))
        assert ended(writer) == 1
        file.write(b"parent")

    assert target.read_bytes() == b"parent, parent"


def test_what_a_forked_child_inherited_writes_into_no_other_file(tmp_path):
    """The descriptor's number stays taken: a file that the child opens cannot get it, and the buffered rest with it."""
    other = tmp_path / "other"

    def child(partial):
        with open(other, "wb", buffering=0):
            partial.file.flush()

    with Partial(tmp_path, "data") as partial:
        partial.file.write(b"still in the buffer")
        assert in_child(lambda: child(partial)) == 0

    assert other.read_bytes() == b""


def leave(target: Path) -> None:
    with Partial(target.parent, "child") as partial:
        pid = fork(lambda: finish_in_child(partial, target))
        assert ended(pid) == 0
        assert partial.path.exists()


def finish_in_child(partial: Partial, target: Path) -> None:
    with pytest.raises(ValueError, match="forked"):
        partial.rename(target)
    partial.close()


def test_an_orphan_does_not_keep_its_parents_leftovers(tmp_path):
    """A worker that outlives a killed writer does not make its unfinished file look alive."""
    with signals() as (forked, wait_until_forked), signals() as (finish, wait_for_end):

        def writer():
            partial = Partial(tmp_path, "data")
            partial.file.write(NEW)
            fork(lambda: (forked(), wait_for_end()))
            time.sleep(60)

        pid = fork(writer)
        wait_until_forked()
        kill(pid)

        swept = sweep(tmp_path)

        finish()
    assert len(swept) == 1
    assert names(tmp_path) == []
