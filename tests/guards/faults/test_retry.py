"""Retry: what is asked again, how often, after which waits, and what comes out in the end."""

from __future__ import annotations

import errno
import pickle
import random
import subprocess
import sys
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError, CorruptDataError, DurabilityLost, StoreFull
from poolish.guards import CircuitOpen, Retry


class Time:
    """A clock that moves when it is asked to sleep, and records how long."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


class Source:
    """Fails with these errors, one after the other, and then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.n_calls = 0

    def __call__(self, answer: str = "row") -> str:
        self.n_calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return answer


def retry_in(time: Time, **options) -> Retry:
    return Retry(**{"clock": time, "sleep": time.sleep, **options})


def ask_by_call(retry: Retry, source: Source) -> str:
    return retry.call(source, "row")


def ask_decorated(retry: Retry, source: Source) -> str:
    def read(*, answer: str) -> str:
        return source(answer)

    return retry(read)(answer="row")


def ask_in_a_block(retry: Retry, source: Source) -> str:
    for attempt in retry:
        with attempt:
            answer = source("row")
    return answer


def ask_and_leave_the_block(retry: Retry, source: Source) -> str:
    for attempt in retry:
        with attempt:
            return source("row")
    raise AssertionError


every_form = pytest.mark.parametrize("ask", [ask_by_call, ask_decorated, ask_in_a_block, ask_and_leave_the_block])


@every_form
def test_a_call_that_succeeds_is_made_once(ask):
    """Nothing waits, nothing is counted."""
    time, source = Time(), Source()
    retry = retry_in(time)

    assert ask(retry, source) == "row"
    assert (source.n_calls, time.slept, retry.stats.retries) == (1, [], 0)


@every_form
def test_passing_errors_are_survived(ask):
    """Two failures, two waits, the answer; all counted."""
    time, source = Time(), Source(ConnectionError("reset"), TimeoutError("slow"))
    retry = retry_in(time, attempts=3, base_delay=0.5, jitter=False)

    assert ask(retry, source) == "row"
    assert (source.n_calls, time.slept) == (3, [0.5, 1.0])
    stats = retry.stats
    assert (stats.retries, stats.recovered, stats.gave_up, stats.waited_s) == (2, 1, 0, 1.5)


@every_form
def test_the_last_error_comes_out_as_it_was(ask):
    """The same object, with a note of what was tried; one attempt more would have helped."""
    time, last = Time(), OSError(errno.EIO, "third")
    source = Source(OSError("first"), OSError("second"), last)
    retry = retry_in(time, attempts=3, base_delay=1, jitter=False)

    with pytest.raises(OSError, match="third") as caught:
        ask(retry, source)

    assert caught.value is last
    assert any("gave up after 3 of 3 attempts, 3.0 s" in note for note in last.__notes__)
    assert (source.n_calls, retry.stats.gave_up, retry.stats.recovered) == (3, 1, 0)


WHAT_CANNOT_PASS = [
    StoreFull("no space"),
    OSError(errno.ENOSPC, "no space"),
    OSError(errno.EDQUOT, "quota"),
    OSError(errno.EMFILE, "too many open files"),
    CorruptDataError("not what was written"),
    DurabilityLost("sync failed"),
    CircuitOpen("left alone"),
    FileNotFoundError("missing"),
    PermissionError("forbidden"),
    TypeError("bug"),
    IndexError("bug"),
    MemoryError(),
    KeyboardInterrupt(),
    SystemExit(1),
]


@every_form
def test_what_cannot_pass_is_not_retried(ask):
    """Full disks, corruption, answers, bugs and interrupts come out at once, even when all errors are retried."""
    for error in WHAT_CANNOT_PASS:
        time, source = Time(), Source(error)

        with pytest.raises(type(error)) as caught:
            ask(retry_in(time, retry_on=(Exception,)), source)

        assert caught.value is error
        assert (source.n_calls, time.slept) == (1, [])


@every_form
def test_an_interrupt_is_never_swallowed(ask):
    """Not even by an attempt after the first."""
    source = Source(OSError("flaps"), KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        ask(retry_in(Time()), source)

    assert source.n_calls == 2


def test_a_later_error_that_cannot_pass_comes_out_at_once():
    """The first failure does not decide about the second."""
    source = Source(OSError("flaps"), StoreFull("no space"))

    with pytest.raises(StoreFull):
        retry_in(Time(), attempts=9).call(source)

    assert source.n_calls == 2


@pytest.mark.parametrize("kind", [FileNotFoundError, KeyError, TypeError])
def test_a_named_class_is_retried(kind):
    """Who names exactly a class knows why: on some stores a file appears later."""
    assert retry_in(Time(), retry_on=(OSError, kind)).call(Source(kind("later"))) == "row"


def test_a_class_is_named_by_text_where_its_library_is_not_loaded():
    """``"zlib.error"`` is zlib.error, and its module need not be imported to say so."""
    retry = retry_in(Time(), retry_on="zlib.error")

    assert retry.call(Source(zlib.error("cut"))) == "row"
    assert not retry.is_retried(OSError())


@given(
    st.integers(1, 12), st.floats(0, 100), st.floats(0, 100), st.integers(0, 2**32), st.booleans(), st.integers(0, 12)
)
def test_waits_stay_within_their_bounds(attempts, base, most, seed, jitter, n_errors):
    """Before attempt k + 1: at most base * 2**(k - 1), at most max_delay, exactly that without jitter."""
    time, source = Time(), Source(*(OSError("flaps") for _ in range(n_errors)))
    retry = retry_in(time, attempts=attempts, base_delay=base, max_delay=most, jitter=jitter, rng=random.Random(seed))

    try:
        retry.call(source)
        succeeded = True
    except OSError:
        succeeded = False

    bounds = [min(base * 2**k, most) for k in range(min(attempts - 1, n_errors))]
    assert succeeded == (n_errors < attempts)
    assert len(time.slept) == len(bounds)
    assert all(0 <= slept <= bound for slept, bound in zip(time.slept, bounds, strict=True))
    assert jitter or time.slept == pytest.approx(bounds)


def test_jitter_is_full_and_repeatable():
    """The waits are anywhere in their range, and the same for the same generator."""

    def waits(seed: int) -> list[float]:
        time = Time()
        with pytest.raises(OSError, match="flaps"):
            retry_in(time, attempts=1000, base_delay=1, max_delay=1, rng=random.Random(seed)).call(
                Source(*[OSError("flaps")] * 1000)
            )
        return time.slept

    assert waits(0) == waits(0) != waits(1)
    assert min(waits(0)) < 0.05
    assert max(waits(0)) > 0.95
    assert abs(sum(waits(0)) / 999 - 0.5) < 0.05


@given(st.floats(0, 50), st.floats(0, 5))
def test_retrying_never_adds_more_than_the_total_time(total, base):
    """A wait that would end after it is not begun."""
    time, source = Time(), Source(*[OSError("down")] * 50)

    with pytest.raises(OSError, match="down"):
        retry_in(time, attempts=50, base_delay=base, max_delay=5, jitter=False, total_time=total).call(source)

    assert sum(time.slept) <= total + 1e-6
    assert source.n_calls == 50 or sum(time.slept) + min(base * 2 ** len(time.slept), 5) > total - 1e-6


def test_slow_attempts_use_up_the_total_time():
    """Not only the waits count."""
    time = Time()

    def read() -> None:
        time.now += 10
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError) as caught:
        retry_in(time, attempts=100, base_delay=0, total_time=25).call(read)

    assert "4 of 100 attempts, 30.0 s" in caught.value.__notes__[0]


def test_success_does_not_load_tenacity():
    """A program whose calls succeed pays nothing for those that might not."""
    script = (
        "import sys; from poolish.guards import Retry; r = Retry(); assert r.call(len, 'abc') == 3\n"
        "for attempt in r:\n    with attempt: pass\n"
        "print('tenacity' in sys.modules, 'pyarrow' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "False"]


def test_threads_share_one_retry():
    """No count is lost, and no call takes the attempts of another."""
    retry = Retry(attempts=3, sleep=lambda seconds: None)
    sources = [Source(OSError("a"), OSError("b")) for _ in range(200)]
    threads = [
        threading.Thread(target=lambda part: [retry.call(source) for source in part], args=(sources[k::8],))
        for k in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [source.n_calls for source in sources] == [3] * 200
    assert (retry.stats.retries, retry.stats.recovered) == (400, 200)


def test_a_decorated_function_stays_itself():
    """Its name and help, and methods stay methods."""

    class Store:
        name = "store"

        @Retry()
        def read(self, row: int) -> str:
            """Read a row."""
            return f"{self.name} {row}"

    assert Store().read(3) == "store 3"
    assert (Store.read.__name__, Store.read.__doc__) == ("read", "Read a row.")


def test_generators_and_coroutines_are_refused():
    """They fail while they are used, after the retried call has returned."""

    async def fetch() -> None: ...

    def rows():
        yield 1

    for fn in (fetch, rows):
        with pytest.raises(ConfigError, match="fails later"):
            Retry()(fn)


def test_it_travels_to_another_process():
    """Settings and counts go, the lock is made there."""
    retry = Retry(attempts=7, retry_on=(OSError, "zlib.error"))

    assert repr(pickle.loads(pickle.dumps(retry))) == repr(retry)
    assert pickle.loads(pickle.dumps(retry)).call(len, "abc") == 3


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": 2.0}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"base_delay": -1}, "base_delay"),
        ({"max_delay": float("nan")}, "max_delay"),
        ({"total_time": float("inf")}, "total_time"),
        ({"base_delay": "1"}, "base_delay"),
        ({"retry_on": (KeyboardInterrupt,)}, "retry_on.*never"),
        ({"retry_on": (OSError, 3)}, "retry_on"),
        ({"retry_on": "oops"}, "retry_on"),
    ],
)
def test_bad_settings_are_refused(options, match):
    """The error names the argument and the value."""
    with pytest.raises(ConfigError, match=match):
        Retry(**options)
