"""One holder at a time; a dead one never in the way."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from poolish.errors import StoreLocked
from poolish.files import Lock
from tests.effort import times
from tests.faults import die, every_kill_point, fill, fork, in_child, kill, signals, small_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def is_free(path: Path) -> bool:
    """Whether another process could take the lock."""

    def child():
        try:
            Lock(path).acquire()
        except StoreLocked:
            os._exit(7)

    return in_child(child) == 0


def test_a_second_process_is_refused_and_told_who_holds_it(path):
    """StoreLocked names the file, the process and the host; the holder notices nothing."""
    with signals() as (locked, wait_until_locked), signals() as (finish, wait_for_end):

        def holder():
            with Lock(path):
                locked()
                wait_for_end()

        pid = fork(holder)
        wait_until_locked()
        with pytest.raises(StoreLocked) as refused:
            Lock(path).acquire()
        finish()
        os.waitpid(pid, 0)

    assert str(refused.value) == (
        f"{path}: held by process {pid} on {os.uname().nodename}; wait until it has ended, or end it"
    )
    assert refused.value.filename == str(path)
    assert is_free(path)


def test_a_second_handle_of_one_process_is_refused(path):
    """Two stores on one directory in one program: the message says so."""
    with Lock(path) as lock:
        with pytest.raises(StoreLocked, match=rf"held by this process \({os.getpid()}\); close the other handle"):
            Lock(path).acquire()
        with pytest.raises(StoreLocked):
            lock.acquire()
        assert lock.is_held
        assert not is_free(path)
    assert is_free(path)


def test_release_and_leaving_the_block_free_the_lock(path):
    """Also by an exception; releasing twice is nothing."""
    lock = Lock(path)
    lock.release()
    with pytest.raises(ZeroDivisionError), lock:
        1 / 0  # noqa: B018

    assert not lock.is_held
    assert is_free(path)
    lock.release()
    lock.acquire()
    assert not is_free(path)
    lock.release()
    assert is_free(path)


def test_releasing_twice_leaves_the_next_holder_alone(path, tmp_path):
    """A descriptor's number is used again: the lock that has it now must not be given up for the old one."""
    first, second = Lock(path), Lock(tmp_path / "other")
    first.acquire()
    first.release()
    with second:
        first.release()
        assert second.is_held
        assert not is_free(tmp_path / "other")


def test_a_killed_holder_is_no_holder(path):
    """Its file stays and names it; the lock is free all the same."""
    assert in_child(lambda: (Lock(path).acquire(), die())) < 0

    assert path.exists()
    with Lock(path):
        assert path.read_text().split() == [str(os.getpid()), os.uname().nodename]


def test_killed_at_any_system_call_the_lock_can_be_taken(path):
    """While acquiring and while releasing."""

    def scenario():
        with Lock(path):
            pass

    assert every_kill_point(scenario, lambda: Lock(path).acquire() or path.unlink()) >= 4


def test_an_orphaned_child_does_not_keep_the_lock(path):
    """A DataLoader worker that outlives its killed parent holds nothing."""
    with signals() as (forked, wait_until_forked), signals() as (finish, wait_for_end):

        def parent():
            lock = Lock(path)
            lock.acquire()
            fork(lambda: (forked(), wait_for_end()))
            time.sleep(60)

        pid = fork(parent)
        wait_until_forked()
        held_while_parent_lives = not is_free(path)
        kill(pid)

        free_while_orphan_lives = is_free(path)

        finish()
    assert held_while_parent_lives
    assert free_while_orphan_lives


def test_a_forked_child_neither_holds_nor_releases_its_parents_lock(path):
    """Whatever the child does with the handle it inherited, the parent's lock stays."""

    def child(lock):
        assert not lock.is_held
        with pytest.raises(StoreLocked, match=f"held by process {os.getppid()}"):
            lock.acquire()
        lock.release()

    with Lock(path) as lock:
        assert in_child(lambda: child(lock)) == 0
        assert lock.is_held
        assert not is_free(path)


def test_a_forked_child_can_take_the_lock_for_itself(path):
    """With the handle that it inherited, once the parent has released its own."""
    with signals() as (release, wait_for_release):
        lock = Lock(path)

        def child():
            wait_for_release()
            with lock:
                assert lock.is_held

        with lock:
            pid = fork(child)
        release()
        assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_in_the_moment_of_opening_does_not_leak_the_lock(path):
    """Another thread forks between the opening of the lock file and its being noted; its child holds nothing."""
    with signals() as (forked, wait_until_forked), signals() as (finish, wait_for_end):

        def orphan():
            forked()
            wait_for_end()

        def holder():
            really_open, threads = os.open, []

            def slow_open(name, *arguments, **options):
                fd = really_open(name, *arguments, **options)
                if name == path:
                    threads.append(threading.Thread(target=fork, args=(orphan,)))
                    threads[0].start()
                    threads[0].join(0.1)  # time enough to fork, unless something keeps it from forking now
                return fd

            os.open = slow_open
            Lock(path).acquire()
            wait_until_forked()
            die()

        assert in_child(holder) < 0
        free_while_orphan_lives = is_free(path)
        finish()

    assert free_while_orphan_lives


def test_a_wait_ends_when_the_lock_is_free(path):
    """With a timeout, acquire waits for a holder that is soon done."""
    holder = Lock(path)
    holder.acquire()
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 5:
            holder.release()

    lock = Lock(path, timeout_s=1.0, clock=lambda: 0.0, sleep=sleep)
    lock.acquire()

    assert lock.is_held
    assert len(pauses) == 5
    assert pauses == sorted(pauses)
    assert max(pauses) <= 1e-3
    lock.release()


def test_a_wait_ends_at_the_timeout(path):
    """And then says who holds the lock."""
    now = [0.0]
    waiting = Lock(path, timeout_s=0.5, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))

    with Lock(path), pytest.raises(StoreLocked, match="held by this process"):
        waiting.acquire()

    assert 0.5 <= now[0] < 0.6
    assert not waiting.is_held


def test_only_one_at_a_time_across_processes_and_threads(path, tmp_path):
    """A counter that is read, raised and written under the lock misses nothing."""
    counter, n_rounds = tmp_path / "counter", times(100)
    counter.write_text("0")

    def count(lock):
        for _ in range(n_rounds):
            with lock:
                counter.write_text(str(int(counter.read_text()) + 1))

    def count_in_threads():
        shared = Lock(path, timeout_s=60)
        threads = [threading.Thread(target=count, args=(shared,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children = [fork(count_in_threads) for _ in range(2)]
    outcomes = [os.waitpid(pid, 0)[1] for pid in children]

    assert outcomes == [0, 0]
    assert int(counter.read_text()) == 4 * n_rounds


def test_a_lock_file_that_was_removed_meanwhile_is_not_trusted(path, monkeypatch):
    """Between opening and locking somebody removed the file: the lock is taken on the one that has the name now."""
    import fcntl

    flock, calls = fcntl.flock, []

    def late(fd, operation):
        calls.append(fd)
        if len(calls) == 1:
            path.unlink()
        return flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with Lock(path):
        assert not is_free(path)


@pytest.mark.parametrize(
    "text", [b"", b"\0" * 300, b"1 host", b"1 host\nmore", b"x" * 10_000, b"99 a/../b\n", "1 h\u00f6st\n".encode()]
)
def test_what_is_written_in_a_lock_file_is_not_trusted(path, text):
    """Anything that is not a note of ours is not shown."""
    with Lock(path):
        path.write_bytes(text)
        with pytest.raises(StoreLocked, match="held by another process; wait until it has ended"):
            Lock(path).acquire()


def test_a_lock_is_taken_on_a_full_disk(tmp_path):
    """Then it carries no name, but it locks: who wants to make room must be able to open the store."""
    with small_disk(tmp_path / "disk", 2**20) as disk:
        (disk / "lock").touch()
        fill(disk)

        with Lock(disk / "lock"), pytest.raises(StoreLocked, match="another process"):
            Lock(disk / "lock").acquire()


def test_a_lock_is_not_followed_to_another_file(path, tmp_path):
    """A link in the place of the lock file is refused, and what it leads to stays as it is."""
    (tmp_path / "precious").write_bytes(b"precious")
    path.symlink_to(tmp_path / "precious")

    with pytest.raises(OSError, match="symbolic links"):
        Lock(path).acquire()

    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy])
def test_a_lock_is_not_copied_or_sent(path, send):
    """A copy would believe that it holds what another process has under the same number."""
    with pytest.raises(TypeError, match="make a Lock of its path there"):
        send(Lock(path))
