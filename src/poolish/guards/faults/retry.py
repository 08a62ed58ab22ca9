"""Retry: call again, with growing waits, after errors that may pass.

    call -> answer                                               nothing happened, nothing is paid
    call -> passing error -> wait -> call -> ... -> answer       counted in ``stats``
                                              `--> attempts or total_time used up: the last error, with a note

The wait before attempt k + 1 lies anywhere between 0 and ``base_delay * 2**(k - 1)``, at most ``max_delay``: "full
jitter", so that a thousand workers whose store came back do not all come back at once.

The loop of waits is tenacity's, engaged by the first failure: it is given that failure as its first attempt. Clock,
sleep and randomness are ours, because tenacity would read its own.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, ParamSpec, Protocol, TypeVar

from poolish.concurrency import Locked
from poolish.errors import ConfigError
from poolish.guards.faults.blame import ErrorKind, check_returns_answer, error_kinds, is_transient, name_of
from poolish.health import Health, Problem, wall_time
from poolish.printable import counted

if TYPE_CHECKING:
    import tenacity

logger = logging.getLogger("poolish.guards")

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class Random(Protocol):
    """What draws the jitter: ``random.Random``, NumPy's Generator, or the module ``random``."""

    def random(self) -> float:
        """A number in [0, 1)."""


@dataclass
class RetryStats:
    """What a ``Retry`` did: calls that succeeded at once are not counted, so that they cost nothing."""

    retries: int = 0  #: further attempts that were made
    recovered: int = 0  #: calls that failed first and succeeded in the end
    gave_up: int = 0  #: calls whose attempts or time were used up
    waited_s: float = 0.0  #: seconds spent between attempts, all threads together


class Retry(Locked):
    """Call again what failed with an error that may pass, at most ``attempts`` times in all.

    ``retry.call(fn, ...)``, ``retry(fn)`` as a decorator, or a loop over a block. The last error is raised as it was,
    with a note of how often it was tried. ``total_time`` bounds the seconds that retrying may add, counted from
    the first failure: a wait that would run past it is not begun. Shared freely by threads.

    ``retry_on`` are classes of errors, or their dotted names. Never retried: a full disk and other limits of the
    machine, corruption, an open breaker. A missing file or a refused permission is an answer, and a TypeError is a bug:
    they are retried only if ``retry_on`` names exactly their class.

    >>> answers = iter([TimeoutError("slow"), ConnectionError("reset"), "row 7"])
    >>> def read():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> retry = Retry(attempts=3, base_delay=0.1, jitter=False, sleep=lambda seconds: print(f"{seconds:.1f} s"))
    >>> retry.call(read)
    0.1 s
    0.2 s
    'row 7'
    >>> retry.stats.retries, retry.stats.recovered
    (2, 1)
    >>> for attempt in retry:
    ...     with attempt:
    ...         found = "in a block"
    """

    def __init__(
        self,
        attempts: int = 3,
        base_delay: float = 0.1,
        max_delay: float = 10.0,
        *,
        jitter: bool = True,
        total_time: float | None = None,
        retry_on: ErrorKind | tuple[ErrorKind, ...] = (OSError,),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: Random | None = None,
    ) -> None:
        super().__init__()
        if type(attempts) is not int or attempts < 1:
            raise ConfigError(f"attempts: a whole number from 1, counting the first call, got {attempts!r}")
        self.attempts = attempts
        self.base_delay = _seconds("base_delay", base_delay)
        self.max_delay = _seconds("max_delay", max_delay)
        self.jitter = jitter
        self.total_time = None if total_time is None else _seconds("total_time", total_time)
        self.retry_on = error_kinds(retry_on, "retry_on")
        self._clock, self._sleep = clock, sleep
        # The default is drawn anew in forked workers; a Random of our own would give them all the same waits.
        self._random = random.random if rng is None else rng.random
        self._stats = RetryStats()

    @property
    def stats(self) -> RetryStats:
        """The counts so far, a copy."""
        with self._lock:
            return replace(self._stats)

    #: When a call first used up its attempts, by the clock.
    _gave_up_at: float | None = None

    def health(self) -> Health:
        """Whether every call was answered in the end; the counts of ``stats``."""
        stats, at = self.stats, self._gave_up_at
        if at is None:
            return Health((), vars(stats))
        problem = Problem(
            f"{counted(stats.gave_up, 'call')} failed in all attempts",
            wall_time(at, self._clock),
            "look at the errors that were raised; raise attempts= or total_time= if the source only needs longer",
        )
        return Health((problem,), vars(stats))

    def is_retried(self, error: BaseException) -> bool:
        """Whether this error may pass, by the rules above."""
        return is_transient(error, self.retry_on)

    def call(self, fn: Callable[Asked, Answer], /, *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        """The answer of ``fn(*args, **kwargs)``, asked again while its errors may pass."""
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            if not self.is_retried(error):
                raise
            first = error
        try:
            for attempt in self._go_on(first):
                with attempt:
                    answer = fn(*args, **kwargs)
            return answer
        finally:
            del first  # its traceback holds this frame, which would hold it: the arguments would live on for a while

    def __call__(self, fn: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
        """As a decorator: ``fn``, retried."""
        check_returns_answer(fn, "retried", "retry")

        @functools.wraps(fn)
        def retried(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
            return self.call(fn, *args, **kwargs)

        return retried

    def __iter__(self) -> Iterator[AbstractContextManager[object]]:
        """Attempts: ``for attempt in retry: with attempt: ...``, where the block is the last thing in the loop."""
        first = _FirstAttempt(self)
        yield first
        if first.error is not None:
            yield from self._go_on(first.error)

    def __repr__(self) -> str:
        return f"Retry(attempts={self.attempts}, base_delay={self.base_delay}, max_delay={self.max_delay})"

    def _go_on(self, first: Exception) -> Iterator[AbstractContextManager[object]]:
        """The attempts after the first, with the waits before them; ends when one succeeds."""
        attempts = iter(self._engine(self._clock()))
        with next(attempts):
            raise first  # tenacity's first attempt: it waits, or gives up, by what has already happened
        for attempt in attempts:
            try:
                yield attempt
            except GeneratorExit:  # the caller left the loop with break or return
                break
        self._count(recovered=1)

    def _engine(self, failed_at: float) -> tenacity.Retrying:
        # Loading it takes 30 ms, which a program whose calls succeed never pays.
        import tenacity

        grows = tenacity.wait_exponential(multiplier=self.base_delay, max=self.max_delay)

        def wait(state: tenacity.RetryCallState) -> float:
            return grows(state) * (self._random() if self.jitter else 1.0)

        def is_over(state: tenacity.RetryCallState) -> bool:
            used = self._clock() - failed_at + state.upcoming_sleep
            return state.attempt_number >= self.attempts or (self.total_time is not None and used > self.total_time)

        def give_up(state: tenacity.RetryCallState) -> NoReturn:
            self._count(gave_up=1)
            self._gave_up_at = self._clock() if self._gave_up_at is None else self._gave_up_at
            error = _error_of(state)
            n, used = state.attempt_number, self._clock() - failed_at
            error.add_note(
                f"poolish.guards.Retry: gave up after {n} of {self.attempts} attempts, {used:.1f} s of retrying"
            )
            raise error

        def note(state: tenacity.RetryCallState) -> None:
            self._count(retries=1, waited_s=state.upcoming_sleep)
            error = _error_of(state)
            logger.info("attempt %d failed, again in %.2f s: %s: %s",
                        state.attempt_number, state.upcoming_sleep, name_of(error), error)  # fmt: skip

        return tenacity.Retrying(
            sleep=self._sleep,
            stop=is_over,
            wait=wait,
            retry=tenacity.retry_if_exception(self.is_retried),
            before_sleep=note,
            retry_error_callback=give_up,
        )

    def _count(self, **more: float) -> None:
        with self._lock:
            for name, n in more.items():
                setattr(self._stats, name, getattr(self._stats, name) + n)


class _FirstAttempt:
    """A block that is tried: an error that may pass is kept for the loop, any other goes its way."""

    __slots__ = ("_retry", "error")

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.error: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception) or not self._retry.is_retried(error):
            return False
        self.error = error
        return True


def _error_of(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome is not None else None
    if error is None:
        raise AssertionError("only failed attempts are retried")
    return error


def _seconds(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name}: seconds, a number from 0, got {value!r}")
    return float(value)
