"""Threads that take work from queues: when they start, end, fail and fork."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from poolish import workers as workers_module
from poolish.errors import ConfigError
from poolish.workers import Workers
from tests.faults import in_own_process, interrupted_at_line, wait_until
from tests.test_prefetch import PATIENCE_S, ahead, running


def test_workers_start_at_first_use_and_end_at_close():
    """Closing twice is closing once, and a use after it starts again."""
    wait_until(lambda: running() == 0)
    workers = Workers(3)
    assert (running(), repr(workers)) == (0, "<Workers: 3 threads, steal, not started>")

    for _ in range(2):
        assert list(ahead([[1]], workers=workers)) == [[1]]
        assert (running(), repr(workers)) == (3, "<Workers: 3 threads, steal>")
        workers.close()
        workers.close()
        assert running() == 0


def test_closing_in_the_middle_gives_the_parts_back(monkeypatch):
    """What nobody had begun is read by the next threads, and a part that lasts does not hold up the closing."""
    monkeypatch.setattr(workers_module, "CLOSE_TIMEOUT_S", 0.01)
    go_on = threading.Event()
    workers = Workers(2)
    results = ahead([[0], range(50)], lambda part: part and go_on.wait(PATIENCE_S), workers=workers, timeout=PATIENCE_S)
    next(results)

    workers.close()
    go_on.set()

    assert list(results) == [[0, *[True] * 49]]
    workers.close()


def test_workers_that_nobody_holds_end_by_themselves():
    """No thread is leaked, and the last result is not kept alive by one that waits."""

    class Piece:
        pass

    wait_until(lambda: running() == 0)
    workers = Workers(2)
    (piece,) = next(ahead([[1]], lambda part: Piece(), workers=workers))
    is_kept = weakref.ref(piece)
    del piece
    gc.collect()
    wait_until(lambda: is_kept() is None)

    del workers
    gc.collect()

    wait_until(lambda: running() == 0)


def test_init_runs_first_in_every_worker():
    """With the number of the worker."""
    calls = []

    with Workers(3, init=lambda i: calls.append((i, threading.current_thread().name))) as workers:
        list(ahead([range(20)], workers=workers))

    assert sorted(calls) == [(i, f"poolish-worker-{i}") for i in range(3)]


def test_an_error_of_init_comes_to_the_caller():
    """With the number of the worker, no thread is left, and the next use tries again."""
    fails = [True]

    def init(worker_id):
        if worker_id == 1 and fails:
            raise PermissionError("no such device")

    wait_until(lambda: running() == 0)
    workers = Workers(3, init=init)
    results = ahead([[1]], workers=workers)

    with pytest.raises(PermissionError, match="no such device") as caught:
        next(results)
    assert caught.value.__notes__ == ["while starting worker 1"]
    wait_until(lambda: running() == 0)
    fails.clear()
    assert list(results) == [[1]]
    workers.close()


@in_own_process
def test_ctrl_c_while_the_threads_start_comes_out_as_ctrl_c():
    """Before any line of Python's own starting, and not as an error of its locks; the next attempt works."""
    n_interrupts = 0
    for k in range(1, 500):
        workers = Workers(2)
        with interrupted_at_line(k, lambda path: path == threading.__file__) as lines:
            try:
                workers.threads()
            except KeyboardInterrupt:
                n_interrupts += 1
        assert list(ahead([[1]], workers=workers)) == [[1]]
        workers.close()
        if len(lines) < k:
            break
    assert 0 < n_interrupts < 499


def test_a_thread_that_cannot_be_started_is_an_error_of_the_caller(monkeypatch):
    """As where a machine allows no more threads: nothing waits for it, and the next use tries again."""
    start = threading.Thread.start

    def refused(thread):
        if thread.name == "poolish-worker-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    wait_until(lambda: running() == 0)
    workers = Workers(3)
    results = ahead([[1]], workers=workers)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread") as caught:
            next(results)

    assert caught.value.__notes__ == ["while starting worker 1"]
    wait_until(lambda: running() == 0)
    assert list(results) == [[1]]
    workers.close()


def test_a_forked_process_starts_threads_of_its_own():
    """Unused, used before, or in the middle of an epoch: the child goes on where the parent stood."""
    program = """
import os
from poolish.prefetch import Prefetcher
from poolish.workers import Workers

workers = Workers(2)
def read(): return Prefetcher(iter([[k] * 50 for k in range(6)]), list, abs, lambda t, p: p, workers=workers, n_ahead=3)
first = read()
next(first)
child = os.fork()
rest = [result[0] for result in first]
again = [result[0] for result in read()]
workers.close()
assert (rest, again) == ([1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]), (rest, again)
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )

        assert done.stdout == "7\n"


def test_a_program_ends_while_workers_read():
    """Threads that were never closed do not hold it up, and say nothing."""
    program = """
import time
from poolish.prefetch import Prefetcher
from poolish.workers import Workers

workers = Workers(4)
results = Prefetcher(iter([range(9)] * 9), list, lambda i: time.sleep(i / 100), len, workers=workers, n_ahead=4)
results._join = lambda task, pieces: pieces
next(results)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_workers": 0}, "n_workers must be a whole number from 1 up, got 0"),
        ({"n_workers": True}, "n_workers"),
        ({"n_workers": 1.5}, "n_workers"),
        ({"n_workers": 1, "assignment": "steel"}, "'steal' or 'static', got 'steel'"),
    ],
)
def test_bad_workers_are_refused(settings, match):
    """The error names the setting and the value."""
    with pytest.raises(ConfigError, match=match):
        Workers(**settings)
