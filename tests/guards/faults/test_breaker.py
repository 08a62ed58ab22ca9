"""CircuitBreaker: when it opens, whom it lets through, when it closes; compared with a model, and under threads."""

from __future__ import annotations

import logging
import pickle
import sys
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError, PoolishError
from poolish.guards import CircuitBreaker, CircuitOpen
from tests.effort import times


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fail(error: BaseException | None = None) -> None:
    raise error or OSError("down")


def make(clock: Clock | None = None, **options) -> CircuitBreaker:
    return CircuitBreaker(**{"error_rate": 0.5, "window": 4, "cooldown": 30, "clock": clock or Clock(), **options})


def tell(breaker: CircuitBreaker, outcomes: str) -> None:
    """Calls that succeed (.) or fail (x)."""
    for outcome in outcomes:
        if outcome == "x":
            with pytest.raises(OSError, match="down"):
                breaker.call(fail)
        else:
            assert breaker.call(len, "abc") == 3


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ("", "closed"),
        ("xxx", "closed"),  # fewer than the window prove nothing
        ("xxxx", "open"),
        ("xx..", "closed"),  # half is not more than half
        ("xxx.", "open"),  # the window is full with the last call, though that one succeeded
        ("..xx", "closed"),
        ("..xxx", "open"),
        ("xx..xx", "closed"),
        ("xx..x.xx", "open"),
        ("x.x.x.x.x.", "closed"),
        ("........xx", "closed"),
    ],
)
def test_it_opens_when_more_than_the_rate_failed(outcomes, state):
    """Over the last four calls, once there were four."""
    breaker = make()

    tell(breaker, outcomes)

    assert breaker.state == state


@pytest.mark.parametrize(
    ("rate", "window", "n_failures"), [(0.0, 5, 1), (0.29, 100, 30), (0.5, 1, 1), (0.99, 10, 10), (1.0, 10, 10)]
)
def test_the_rate_is_exact(rate, window, n_failures):
    """More than 29 of 100 are 30, and a rate of one means all."""
    few, enough = (make(error_rate=rate, window=window) for _ in range(2))

    tell(few, "." * (window - n_failures + 1) + "x" * (n_failures - 1))
    tell(enough, "." * (window - n_failures) + "x" * n_failures)

    assert (few.state, enough.state) == ("closed", "open")


def test_open_fails_at_once_and_says_when():
    """The source is not asked; the error names breaker, reason, time and what to do."""
    clock = Clock()
    breaker, asked = make(clock, name="store"), []
    tell(breaker, "xxxx")
    clock.now += 10

    with pytest.raises(CircuitOpen) as caught:
        breaker.call(asked.append, 1)

    assert asked == []
    assert str(caught.value) == (
        "breaker 'store': 4 of the last 4 calls failed (last: OSError: down), it is tried again in 20.0 s; "
        "wait until then, or pass fallback= to answer meanwhile"
    )
    assert caught.value.probe_in_s == 20.0
    assert isinstance(caught.value, PoolishError)
    assert isinstance(caught.value, ConnectionError)
    assert pickle.loads(pickle.dumps(caught.value)).probe_in_s == 20.0


def test_the_fallback_answers_while_it_is_open():
    """With the arguments of the call; errors of a closed breaker still come out."""
    breaker = make(fallback=lambda row, *, split: f"cached {split} {row}")
    tell(breaker, "xxxx")

    assert breaker.call(fail, 7, split="train") == "cached train 7"


def test_a_good_probe_closes_it():
    """And the window starts empty: what failed before is forgotten."""
    clock = Clock()
    breaker = make(clock)
    tell(breaker, "xxxx")
    clock.now += 29.9
    assert breaker.state == "open"

    clock.now += 0.1
    assert breaker.state == "half-open"
    tell(breaker, ".xxx")

    assert breaker.state == "closed"
    tell(breaker, "x")
    assert breaker.state == "open"


def test_a_bad_probe_opens_it_for_another_cooldown():
    """Its own error comes out, the next call is refused."""
    clock = Clock()
    breaker = make(clock)
    tell(breaker, "xxxx")
    clock.now += 30

    tell(breaker, "x")

    assert breaker.state == "open"
    with pytest.raises(CircuitOpen, match=r"a probe failed \(OSError: down\)"):
        breaker.call(len, "abc")
    clock.now += 30
    tell(breaker, ".")
    assert breaker.state == "closed"


def test_all_probes_have_to_succeed():
    """With three probes two good ones are not enough, and one bad one is too many."""
    clock = Clock()
    breaker = make(clock, probes=3)
    tell(breaker, "xxxx")
    clock.now += 30
    tell(breaker, "..")
    assert breaker.state == "half-open"
    tell(breaker, "x")
    assert breaker.state == "open"

    clock.now += 30
    tell(breaker, "...")

    assert breaker.state == "closed"


def test_while_a_probe_is_on_its_way_others_are_refused():
    """Also by a call made from within the probe; no lock is held while it runs."""
    clock = Clock()
    breaker = make(clock)
    tell(breaker, "xxxx")
    clock.now += 30

    def probe() -> str:
        with pytest.raises(CircuitOpen, match="probes are on their way"):
            breaker.call(len, "abc")
        return breaker.state

    assert breaker.call(probe) == "half-open"
    assert breaker.state == "closed"


def test_a_probe_that_never_returns_does_not_keep_it_open_for_ever():
    """After another cooldown there are new probes, and the lost one counts no more when it comes back."""
    clock = Clock()
    breaker = make(clock)
    tell(breaker, "xxxx")
    clock.now += 30

    def hang() -> None:
        clock.now += 30
        tell(breaker, ".")  # another thread, a cooldown later
        raise OSError("came back at last")

    with pytest.raises(OSError, match="at last"):
        breaker.call(hang)

    assert breaker.state == "closed"


def test_a_probe_that_succeeds_too_late_does_not_close_it():
    """Later probes have found the source down."""
    clock = Clock()
    breaker = make(clock)
    tell(breaker, "xxxx")
    clock.now += 30

    def hang() -> None:
        clock.now += 30
        tell(breaker, "x")

    breaker.call(hang)

    assert breaker.state == "open"


def test_what_comes_back_late_does_not_count():
    """A call that began before the breaker opened says nothing about the source of now."""
    clock = Clock()
    breaker = make(clock, window=1)

    def slow() -> None:
        tell(breaker, "x")
        clock.now += 30
        tell(breaker, ".")
        assert breaker.state == "closed"
        raise OSError("of long ago")

    with pytest.raises(OSError, match="long ago"):
        breaker.call(slow)

    assert breaker.state == "closed"


@pytest.mark.parametrize("error", [TypeError("bug"), IndexError("bug"), KeyboardInterrupt(), CircuitOpen("behind")])
def test_errors_that_do_not_speak_against_the_source_do_not_count(error):
    """They pass through a closed breaker; as a probe they leave the place to another."""
    clock = Clock()
    breaker = make(clock)
    for _ in range(10):
        with pytest.raises(type(error)):
            breaker.call(fail, error)
    assert breaker.state == "closed"
    tell(breaker, "xxxx")
    clock.now += 30

    with pytest.raises(type(error)):
        breaker.call(fail, error)

    assert breaker.state == "half-open"
    tell(breaker, ".")
    assert breaker.state == "closed"


def test_counts_says_what_counts():
    """Only these errors, by class or by name; a bug too if it is named."""
    for counts, counted, other in [
        ((TimeoutError,), TimeoutError(), OSError()),
        ((LookupError,), IndexError(), TypeError()),
        ("zlib.error", zlib.error(), OSError()),
    ]:
        breaker = make(counts=counts, window=1)
        with pytest.raises(type(other)):
            breaker.call(fail, other)
        assert breaker.state == "closed"
        with pytest.raises(type(counted)):
            breaker.call(fail, counted)
        assert breaker.state == "open"


class Model:
    """What the docstring says, in a list and a few numbers, for one thread."""

    def __init__(self, rate: float, window: int, cooldown: int, probes: int) -> None:
        self.rate, self.window, self.cooldown, self.probes = rate, window, cooldown, probes
        self.calls: list[bool] = []
        self.opened: float | None = None
        self.n_good: int | None = None
        self.probed = 0.0

    def state(self, now: float) -> str:
        if self.opened is None:
            return "closed"
        return "half-open" if self.n_good is not None or now - self.opened >= self.cooldown else "open"

    def call(self, fails: bool, now: float) -> str:
        state = self.state(now)
        if state == "open":
            return "refused"
        if state == "closed":
            self.calls = [*self.calls, fails][-self.window :]
            if len(self.calls) == self.window and sum(self.calls) > self.rate * self.window:
                self.opened = now
        else:
            if self.n_good is None or now - self.probed >= self.cooldown:
                self.n_good, self.probed = 0, now
            self.n_good += 1
            if fails:
                self.opened, self.n_good = now, None
            elif self.n_good == self.probes:
                self.opened, self.n_good, self.calls = None, None, []
        return "failed" if fails else "answered"


@given(
    st.sampled_from([0.0, 0.25, 0.5, 0.75]),
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(1, 3),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=80),
)
def test_it_does_what_the_model_does(rate, window, cooldown, probes, events):
    """For any calls at any times: the same answers and the same states."""
    clock = Clock()
    breaker = make(clock, error_rate=rate, window=window, cooldown=cooldown, probes=probes)
    model = Model(rate, window, cooldown, probes)
    for fails, seconds in events:
        clock.now += seconds
        expected = model.call(fails, clock.now)
        try:
            breaker.call(fail) if fails else breaker.call(int)
            got = "answered"
        except CircuitOpen:
            got = "refused"
        except OSError:
            got = "failed"

        assert got == expected
        assert breaker.state == model.state(clock.now)


@pytest.mark.parametrize("probes", [1, 3])
def test_exactly_the_probes_get_through_under_threads(probes):
    """Sixteen threads meet a half-open breaker: so many probes reach the source, and the others are refused."""
    for _ in range(times(20)):
        clock = Clock()
        breaker = make(clock, probes=probes)
        tell(breaker, "xxxx")
        clock.now += 30
        start, all_refused = threading.Barrier(16), threading.Event()
        answers: list[str] = []

        def probe(all_refused=all_refused):
            # A probe ends only when everybody else was refused, so none of them met a closed breaker.
            assert all_refused.wait(timeout=30)

        def ask(start=start, breaker=breaker, all_refused=all_refused, answers=answers, probe=probe):
            start.wait()
            try:
                breaker.call(probe)
                answers.append("probe")
            except CircuitOpen:
                answers.append("refused")
                if answers.count("refused") == 16 - probes:
                    all_refused.set()

        run_all([threading.Thread(target=ask) for _ in range(16)])

        assert sorted(answers) == ["probe"] * probes + ["refused"] * (16 - probes)
        assert breaker.state == "closed"


def test_threads_open_it_once(caplog):
    """However many threads fail at the same time, it opens one time."""
    breaker = make(Clock(), window=50, name="shared")

    def ask():
        for _ in range(100):
            with pytest.raises(OSError):  # noqa: PT011 - down or open
                breaker.call(fail)

    with caplog.at_level(logging.WARNING, "poolish.guards"):
        run_all([threading.Thread(target=ask) for _ in range(8)])

    assert breaker.state == "open"
    assert len([record for record in caplog.records if "open for 30 s" in record.message]) == 1


def run_all(threads: list[threading.Thread]) -> None:
    """Run them to the end, changing over as often as can be: a missing lock shows within a few rounds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def test_transitions_are_logged(caplog):
    """Each once, with the name of the breaker and the reason."""
    clock = Clock()
    breaker = make(clock, name="store")

    with caplog.at_level(logging.INFO, "poolish.guards"):
        tell(breaker, "xxxx")
        clock.now += 30
        tell(breaker, "x")
        clock.now += 30
        tell(breaker, "...")

    assert [record.message for record in caplog.records] == [
        "breaker 'store': open for 30 s: 4 of the last 4 calls failed (last: OSError: down)",
        "breaker 'store': half-open, a probe is let through",
        "breaker 'store': open again for 30 s: a probe failed (OSError: down)",
        "breaker 'store': half-open, a probe is let through",
        "breaker 'store': closed",
    ]


def test_it_decorates_functions():
    """And refuses those that fail after they have returned."""
    breaker = make()

    @breaker
    def read(row: int) -> int:
        """Read a row."""
        return row + 1

    async def fetch() -> None: ...

    assert (read(3), read.__name__, read.__doc__) == (4, "read", "Read a row.")
    with pytest.raises(ConfigError, match="fails later"):
        breaker(fetch)


def test_it_travels_to_another_process():
    """With what it knows; the lock is made there."""
    breaker = CircuitBreaker(window=2)
    tell(breaker, "xx")

    assert pickle.loads(pickle.dumps(breaker)).state == "open"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"error_rate": 1.1}, "error_rate"),
        ({"error_rate": -0.1}, "error_rate"),
        ({"error_rate": float("nan")}, "error_rate"),
        ({"window": 0}, "window"),
        ({"window": 2.0}, "window"),
        ({"probes": 0}, "probes"),
        ({"cooldown": -1}, "cooldown"),
        ({"cooldown": float("inf")}, "cooldown"),
        ({"fallback": 3}, "fallback"),
        ({"counts": (KeyboardInterrupt,)}, "counts"),
    ],
)
def test_bad_settings_are_refused(options, match):
    """The error names the argument."""
    with pytest.raises(ConfigError, match=match):
        CircuitBreaker(**options)
