"""Threads that read ahead: the same results in the same order, and nothing lost whatever interrupts them."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import prefetch
from poolish.errors import ConfigError
from poolish.prefetch import OrderedMap, Pace, Prefetcher, Spent
from poolish.workers import Workers
from tests.faults import wait_until

#: How long a test waits for what must happen. Nothing is judged by time: it only ends a test that would hang.
PATIENCE_S = 30


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(4) as made:
        yield made


def ahead(tasks, read=lambda part: part, *, workers, n_ahead=2, split=list, join=lambda task, pieces: pieces, **more):
    return Prefetcher(iter(tasks), split, read, join, workers=workers, n_ahead=n_ahead, **more)


def running(prefix: str = "poolish-worker") -> int:
    return sum(thread.name.startswith(prefix) for thread in threading.enumerate())


# Order ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(), max_size=5), max_size=12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(["steal", "static"]),
)
def test_results_come_in_the_order_of_the_tasks(tasks, n_workers, n_ahead, assignment):
    """However many workers there are, however work is given out, and also where a task has no parts."""
    with Workers(n_workers, assignment=assignment) as workers:
        results = list(ahead(tasks, lambda i: i * 2, workers=workers, n_ahead=n_ahead))

    assert results == [[i * 2 for i in task] for task in tasks]


def test_tasks_are_drawn_and_joined_by_the_caller_alone(workers):
    """So what they decide does not depend on the threads; reading is done by the workers alone."""
    threads: dict[str, set[str]] = {"draw": set(), "join": set(), "split": set(), "read": set()}

    def note(what, value):
        threads[what].add(threading.current_thread().name)
        return value

    tasks = (note("draw", [k]) for k in range(20))
    list(
        ahead(
            tasks,
            lambda part: note("read", part),
            split=lambda task: note("split", task),
            join=lambda task, pieces: note("join", pieces),
            workers=workers,
        )
    )

    caller = {threading.current_thread().name}
    assert (threads["draw"], threads["split"], threads["join"]) == (caller, caller, caller)
    assert threads["read"] <= {f"poolish-worker-{i}" for i in range(4)}


def test_no_more_tasks_are_begun_than_asked_for(workers):
    """n_ahead counts the task that is next."""
    drawn = []
    results = ahead(([drawn.append(k) or k] for k in range(10)), workers=workers, n_ahead=3)

    assert drawn == []
    for k in range(4):
        assert next(results) == [k]
        assert drawn == list(range(k + 3))


def test_the_next_task_is_read_while_the_consumer_works(workers):
    """Double buffering: with n_ahead=2 nobody need ask for the second task for it to be read."""
    is_read = threading.Event()

    results = ahead([["a"], ["b"]], lambda part: is_read.set() if part == "b" else None, workers=workers)
    next(results)

    assert is_read.wait(PATIENCE_S)


def test_idle_workers_take_over_from_a_busy_one():
    """One part that lasts does not hold up the others, of its own task or of the next."""
    go_on, others = threading.Event(), []

    def read(part):
        if part == "slow":
            assert go_on.wait(PATIENCE_S)
        else:
            others.append(part)
        return part

    with Workers(2) as workers:
        results = ahead([["slow", 1, 2, 3], [4, 5]], read, workers=workers)
        consumer = threading.Thread(target=lambda: others.append(list(results)))
        consumer.start()
        wait_until(lambda: len(others) == 5)
        taken = list(others)
        go_on.set()
        consumer.join(PATIENCE_S)

    assert taken == [1, 2, 3, 4, 5]
    assert others[-1] == [["slow", 1, 2, 3], [4, 5]]


def test_static_parts_stay_with_their_worker():
    """Part i of every task is read by worker i % n."""
    with Workers(3, assignment="static") as workers:
        names = list(ahead([range(7)] * 5, lambda part: threading.current_thread().name, workers=workers))

    assert names == [[f"poolish-worker-{i % 3}" for i in range(7)]] * 5


# Errors ---------------------------------------------------------------------------------------------------------


def test_an_error_comes_when_its_task_is_next(workers):
    """With its type, and a note that names the part; the results before it come first."""

    def read(part):
        if part == 2:
            raise FileNotFoundError("rye.png")
        return part

    results = ahead([[0], [1], [2], [3]], read, workers=workers, n_ahead=4, describe=lambda part: f"row {part}")

    assert [next(results), next(results)] == [[0], [1]]
    with pytest.raises(FileNotFoundError, match=r"rye\.png") as caught:
        next(results)
    assert caught.value.__notes__ == ["while reading row 2"]


def test_asking_again_reads_again_what_failed(workers):
    """Only that: the parts that were read are kept, and nothing is lost."""
    fails, reads = {1, 3}, []

    def read(part):
        reads.append(part)
        if part in fails:
            raise ValueError(part)
        return part

    results = ahead([[0, 1, 2, 3], [4]], read, workers=workers)

    for _ in range(2):
        with pytest.raises(ValueError, match="1"):
            next(results)
    fails.clear()
    assert list(results) == [[0, 1, 2, 3], [4]]
    assert sorted(reads) == [0, 1, 1, 1, 2, 3, 3, 3, 4]


def test_notes_do_not_pile_up(workers):
    """Also where a reader raises the same object each time."""
    error = ValueError("always")

    def read(part):
        raise error

    results = ahead([[7]], read, workers=workers)
    for _ in range(3):
        with pytest.raises(ValueError, match="always"):
            next(results)

    assert error.__notes__ == ["while reading 7"]


@pytest.mark.parametrize("where", ["read", "split", "join"])
def test_stop_iteration_from_a_function_does_not_end_the_epoch(workers, where):
    """An epoch that ends early would be a silent loss."""

    def stop(*_):
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        list(ahead([[1], [2]], workers=workers, **{where: stop}))

    assert isinstance(caught.value.__cause__, StopIteration)


def test_leaving_the_interpreter_is_carried_too(workers):
    """A worker never dies of what a reader raises."""

    def read(part):
        if part == 0:
            sys.exit(3)
        return part

    results = ahead([[0], [1]], read, workers=workers)

    with pytest.raises(SystemExit):
        next(results)


@pytest.mark.parametrize("where", ["draw", "split"])
def test_an_error_of_a_task_itself_waits_for_its_turn(workers, where):
    """The tasks before it are in order, so their results come first; then it goes on behind it."""
    bad = {2}

    class Tasks:
        k = -1

        def __iter__(self):
            return self

        def __next__(self):
            self.k += 1
            if self.k == 4:
                raise StopIteration
            if where == "draw" and self.k in bad:
                raise LookupError("no such task")
            return [self.k]

    def split(task):
        if where == "split" and task[0] in bad:
            raise LookupError("no such task")
        return task

    results = ahead(Tasks(), workers=workers, n_ahead=4, split=split)

    assert [next(results), next(results)] == [[0], [1]]
    with pytest.raises(LookupError, match="no such task"):
        next(results)
    bad.clear()
    assert list(results) == ([[2], [3]] if where == "split" else [[3]])


# Waiting and interrupting ---------------------------------------------------------------------------------------


def test_a_timeout_says_what_it_waited_for(workers):
    """And asking again goes on."""
    go_on = threading.Event()

    def read(part):
        assert part == "fast" or go_on.wait(PATIENCE_S)
        return part

    results = ahead([["fast", "slow", "slower"]], read, workers=workers, timeout=0.02, describe="row {}".format)

    with pytest.raises(
        TimeoutError, match=r"no result in 0\.02 s; still reading row slow and 1 more parts; raise timeout"
    ):
        list(results)
    go_on.set()
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            assert next(results) == ["fast", "slow", "slower"]
            break
        except TimeoutError:
            pass


def test_ctrl_c_ends_the_waiting_and_loses_nothing(workers):
    """Whenever it comes; each next goes on where the interrupted one stood."""
    go_on, waits = threading.Event(), threading.Event()

    def read(part):
        if part == 1:
            waits.set()
            assert go_on.wait(PATIENCE_S)
        return part

    def interrupt():
        waits.wait(PATIENCE_S)
        signal.pthread_kill(main, signal.SIGINT)
        # A signal that comes just before the system call in which a thread sleeps does not wake it: press again, once.
        if not go_on.wait(PATIENCE_S / 6):
            signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    results = ahead([[0, 1], [2]], read, workers=workers)
    presses = threading.Thread(target=interrupt, daemon=True)
    presses.start()

    with pytest.raises(KeyboardInterrupt):
        next(results)
    go_on.set()
    presses.join()
    assert list(results) == [[0, 1], [2]]


def test_interrupts_at_any_moment_lose_nothing(workers):
    """Alarms while tasks are drawn, sent, read and joined: every result comes once, in order."""

    class Interrupted(BaseException):
        pass

    def alarm(_, frame):
        if frame.f_code.co_filename == prefetch.__file__:
            raise Interrupted

    # Tasks that are drawn by C alone: a generator that is interrupted is over, which is its own affair.
    results = ahead(zip(range(3_000), strict=True), workers=workers, n_ahead=4)
    seen, n_interrupts, is_over = [next(results)], 0, False
    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.00013)
    try:
        while not is_over:
            try:
                seen.extend(results)
                is_over = True
            except Interrupted:
                n_interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert seen == [[k] for k in range(3_000)]
    assert n_interrupts > 0


def test_a_closed_reader_is_over(workers):
    """It forgets what it had begun, waits for nothing, and the workers serve the next one."""
    go_on, reads = threading.Event(), []

    def read(part):
        reads.append(part)
        assert go_on.wait(PATIENCE_S)

    results = ahead([range(100), range(100)], read, workers=workers, timeout=0.01)
    with pytest.raises(TimeoutError):
        next(results)
    results.close()
    results.close()

    assert list(results) == []
    go_on.set()
    assert list(ahead([[1], [2]], workers=workers)) == [[1], [2]]
    assert len(reads) <= 4


def test_a_reader_that_nobody_holds_reads_no_further(workers):
    """Its parts in the queue are skipped."""
    go_on, reads = threading.Event(), []

    def read(part):
        reads.append(part)
        assert go_on.wait(PATIENCE_S)

    results = ahead([range(100)], read, workers=workers, timeout=0.01)
    with pytest.raises(TimeoutError):
        next(results)
    del results
    gc.collect()
    go_on.set()

    assert list(ahead([[1]], workers=workers)) == [[1]]
    assert len(reads) <= 4


# Bytes ----------------------------------------------------------------------------------------------------------


def test_bytes_are_bounded(workers):
    """Once the size of a part is known, no more tasks are begun than fit."""
    drawn = []
    tasks = ([drawn.append(k) or k] * 4 for k in range(20))

    results = ahead(tasks, workers=workers, n_ahead=10, max_bytes=100, size_of=lambda piece: 10)

    ahead_of = []
    for k, result in enumerate(results):
        assert result == [k] * 4
        ahead_of.append(len(drawn) - k - 1)
    # Two tasks of 40 bytes fit, which is known when the first is read.
    assert ahead_of == [*[1] * 19, 0]


def test_a_task_too_large_is_read_alone(workers):
    """It goes on, one task at a time."""
    drawn = []
    results = ahead(
        ([drawn.append(k) or k] for k in range(5)), workers=workers, n_ahead=4, max_bytes=1, size_of=lambda piece: 10
    )

    for k in range(5):
        assert next(results) == [k]
        assert drawn == list(range(k + 1))


def test_a_caller_can_wait_without_taking(workers):
    """``wait`` says whether ``next`` would wait, and ``next_task`` which task is next."""
    go_on = threading.Event()
    results = ahead(["a", "b"], lambda part: go_on.wait(PATIENCE_S) and part, workers=workers)

    assert (results.next_task, results.wait(0.01), results.next_task) == (None, False, "a")
    go_on.set()
    assert (results.wait(PATIENCE_S), next(results), results.next_task) == (True, ["a"], "b")


def test_a_failure_of_a_map_comes_at_once_and_stays():
    """Whatever task is next, and however often the caller asks; its threads end."""
    results = OrderedMap(lambda n: 1 // (n - 1), range(4), 2, name="poolish-test")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            list(results)
    wait_until(lambda: running("poolish-test") == 0)


# Settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"), [({"n_ahead": 0}, "n_ahead"), ({"max_bytes": 5}, "size_of"), ({"timeout": -1}, "timeout")]
)
def test_bad_settings_are_refused(workers, settings, match):
    """Before anything is read."""
    with pytest.raises(ConfigError, match=match):
        ahead([], workers=workers, **settings)


# Speed ----------------------------------------------------------------------------------------------------------


def test_speed_of_a_slow_source_and_of_a_fast_one():
    """Printed, not judged: how far from the ideal, and what one part costs."""
    with Workers(8) as workers:
        start = time.perf_counter()
        for _ in range(64):
            time.sleep(0.001)
        one = (time.perf_counter() - start) / 64
        start = time.perf_counter()
        n_read = sum(map(len, ahead([range(256)] * 8, lambda i: time.sleep(0.001), workers=workers)))
        print(f"slow source: {(time.perf_counter() - start) / (n_read * one / 8):.3f} of the ideal time")
        start = time.perf_counter()
        n_fast = sum(map(len, ahead([range(256)] * 100, workers=workers)))
        print(f"fast source: {(time.perf_counter() - start) / n_fast * 1e6:.2f} us a part")

    assert (n_read, n_fast) == (2_048, 25_600)


# Whether threads are slower -----------------------------------------------------------------------------------------


class Machine:
    """Clocks that stand still unless something takes time."""

    def __init__(self) -> None:
        self.now = Spent(0.0, 0.0)
        self.pace = Pace(lambda: self.now, lambda: self.now)

    def take(self, wall_s: float, cpu_s: float) -> None:
        self.now += Spent(wall_s, cpu_s)

    def read_alone(self, wall_s: float, cpu_s: float, n_items: int = 10) -> None:
        """Parts until enough are measured, each item of which takes so long."""
        while self.pace.alone is None:
            self.pace.read(lambda: self.take(n_items * wall_s, n_items * cpu_s), n_items)

    def wait(self, wall_s: float, cpu_s: float, n_times: int = 200, n_items: int = 10) -> None:
        """Results that the caller waits for, so long for each item; a tenth of it is spent on joining."""

        def result() -> None:
            self.take(0.9 * n_items * wall_s, 0.9 * n_items * cpu_s)
            self.pace.join(lambda: self.take(0.1 * n_items * wall_s, 0.1 * n_items * cpu_s))

        for _ in range(n_times):
            self.pace.wait(result, lambda _: n_items)


def test_threads_that_take_longer_and_more_cpu_time_are_called_slower():
    """Two stretches have to say so; between them the items are measured alone once more."""
    machine = Machine()
    machine.read_alone(0.001, 0.001)
    machine.wait(0.002, 0.002)
    first = (machine.pace.slower, machine.pace.alone)
    machine.read_alone(0.001, 0.001)
    machine.wait(0.002, 0.002)

    without, threads = machine.pace.slower

    assert first == (None, None)
    assert without == pytest.approx((0.0012, 0.0012))
    assert threads == pytest.approx((0.002, 0.002))


@pytest.mark.parametrize(
    ("alone", "threads"),
    [
        ((0.001, 0.001), (0.0005, 0.0014)),  # they read side by side
        ((0.001, 0.001), (0.003, 0.00105)),  # the machine is busy with something else
        ((0.001, 0.00001), (0.0005, 0.0001)),  # they wait for a disk side by side
        ((0.001, 0.001), (0.00125, 0.00125)),  # a little slower is not worth a word
    ],
)
def test_threads_that_help_or_are_not_to_blame_are_not_called_slower(alone, threads):
    """However often it is looked at."""
    machine = Machine()
    for _ in range(5):
        machine.read_alone(*alone)
        machine.wait(*threads)

    assert machine.pace.slower is None


def test_a_machine_that_is_busy_from_some_moment_on_is_measured_anew():
    """Then reading alone takes as long as waiting."""
    machine = Machine()
    machine.read_alone(0.001, 0.001)
    machine.wait(0.002, 0.002)
    machine.read_alone(0.002, 0.002)
    machine.wait(0.002, 0.002, n_times=500)

    assert machine.pace.slower is None


def test_parts_are_measured_one_at_a_time_and_slow_ones_not_at_all(monkeypatch):
    """A thread that would wait too long for its turn reads at once, and nothing is measured any more."""
    monkeypatch.setattr(prefetch, "_PATIENCE_S", 0.001)
    pace, is_inside, may_end = Pace(), threading.Event(), threading.Event()

    def slow() -> str:
        is_inside.set()
        return "slow" if may_end.wait(60) else "never"

    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(pace.read(slow, 1)))
    thread.start()
    assert is_inside.wait(60)
    results.append(pace.read(lambda: "quick", 1))
    may_end.set()
    thread.join()
    for _ in range(100):
        pace.read(lambda: None, 1)

    assert sorted(results) == ["quick", "slow"]
    assert pace.alone is None


def test_a_part_that_fails_is_not_measured_and_the_next_one_has_its_turn():
    """The error is the caller's."""
    machine = Machine()
    with pytest.raises(ZeroDivisionError):
        machine.pace.read(lambda: 1 / 0, 1)
    machine.read_alone(0.001, 0.0005)

    assert machine.pace.alone == pytest.approx((0.001, 0.0005))
