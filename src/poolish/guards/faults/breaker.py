"""CircuitBreaker: stop calling a source that fails too often, for a while.

                    more than error_rate of the last window calls failed
      +--------+ -------------------------------------------------------------> +------+
      | closed |                                                                | open | <-----------+
      +--------+ <-------------------- +-----------+ <------------------------- +------+             |
                   all probes succeeded | half-open |      cooldown has passed                       |
                                        +-----------+ -----------------------------------------------+
                                                              a probe failed

closed: calls pass, their outcomes are kept. open: calls fail at once (or the fallback answers), so that neither the
source nor the caller waits. half-open: ``probes`` calls are let through, the others still fail at once.

Written by hand: it judges a rate over the last calls, and a call that succeeds may cost no more than an append. The
outcomes of one closed period live in one deque, and a call remembers which it began with: what comes back late, from
before the breaker opened, lands in a deque that is no longer read.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

from poolish.concurrency import Locked
from poolish.errors import CircuitOpen, ConfigError
from poolish.guards.faults.blame import PROGRAM_ERRORS, ErrorKind, check_returns_answer, error_kinds, is_of, name_of
from poolish.health import Health, Problem, wall_time
from poolish.printable import counted

logger = logging.getLogger("poolish.guards")

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")
State = Literal["closed", "open", "half-open"]


class CircuitBreaker(Locked):
    """Let calls through while a source answers, and fail at once while it does not.

    It opens when of the last ``window`` calls more than the fraction ``error_rate`` failed, or all of them; fewer calls
    than that prove nothing. After ``cooldown`` seconds ``probes`` calls try the source: if all succeed it closes, with
    an empty window, and if one fails it opens again. Probes that never come back are replaced after another cooldown.

    ``counts`` are the errors that speak against the source, by default all but bugs (TypeError, IndexError, ...); other
    errors pass through and count neither way. While it is open, ``fallback(*args)`` answers if there is one, else the
    call raises ``CircuitOpen``. Safe for threads: never more than ``probes`` probes in one cooldown.

    >>> now = 0.0
    >>> breaker = CircuitBreaker(error_rate=0.5, window=4, cooldown=30, name="store", clock=lambda: now)
    >>> for row in ["good", "12x", "13x", "14x"]:
    ...     try:
    ...         seen = breaker.call(dict(good=1).__getitem__, row)
    ...     except KeyError:
    ...         pass
    >>> breaker.call(print, "is not called")
    Traceback (most recent call last):
    poolish.errors.CircuitOpen: breaker 'store': 3 of the last 4 calls failed (last: KeyError: '14x'), ...
    >>> now = 30.0
    >>> breaker.state
    'half-open'
    >>> breaker.call(len, "abc"), breaker.state
    (3, 'closed')
    """

    def __init__(
        self,
        error_rate: float = 0.5,
        window: int = 20,
        cooldown: float = 30.0,
        *,
        probes: int = 1,
        clock: Callable[[], float] = time.monotonic,
        fallback: Callable[..., Any] | None = None,
        name: str | None = None,
        counts: ErrorKind | tuple[ErrorKind, ...] = (Exception,),
    ) -> None:
        super().__init__()
        self.error_rate = _number("error_rate", error_rate, most=1.0)
        self.window = _count("window", window)
        self.cooldown = _number("cooldown", cooldown)
        self.probes = _count("probes", probes)
        if fallback is not None and not callable(fallback):
            raise ConfigError(f"fallback: a function that answers in place of the call, got {fallback!r}")
        self.fallback, self.name = fallback, name
        self.counts = error_kinds(counts, "counts")
        # "More than", as a whole number; the last digit of 0.29 * 100 must not decide.
        self._n_to_open = min(self.window, math.floor(self.error_rate * self.window + 1e-9) + 1)
        self._clock = clock
        #: True for each failed call, of the last ``window`` calls of this closed period; None while it is not closed.
        self._outcomes: deque[bool] | None = deque(maxlen=self.window)
        self._since = 0.0  # when it opened, or when the present probes were let through
        self._is_probing = False
        self._round = self._n_left = self._n_good = 0  # of probes
        self._why = ""

    @property
    def state(self) -> State:
        """ "closed", "open" or "half-open", as the next call would meet it."""
        with self._lock:
            if self._outcomes is not None:
                return "closed"
            return "half-open" if self._is_probing or self._clock() - self._since >= self.cooldown else "open"

    #: When it opened, by its clock, and has not closed since.
    _opened_at: float | None = None

    def health(self) -> Health:
        """Whether it is closed; else since when the source has failed, and when it is tried again."""
        state = self.state
        with self._lock:
            outcomes, at, why = self._outcomes, self._opened_at, self._why
            in_s = max(0.0, self._since + self.cooldown - self._clock())
        figures = {"state": state, "failed": 0 if outcomes is None else outcomes.count(True), "window": self.window}
        if outcomes is not None or at is None:
            return Health((), figures)
        action = "it is being tried" if state == "half-open" else f"it is tried again in {in_s:.1f} s"
        problem = Problem(
            f"{self._title} is {state}: {why}", wall_time(at, self._clock), f"{action}; repair the source meanwhile"
        )
        return Health((problem,), figures)

    def call(self, fn: Callable[Asked, Answer], /, *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        """``fn(*args, **kwargs)`` if the breaker lets it through; else the fallback's answer, or ``CircuitOpen``."""
        outcomes = self._outcomes
        if outcomes is None:
            return self._call_open(fn, args, kwargs)
        try:
            answer = fn(*args, **kwargs)
        except Exception as error:
            if self._speaks_against(error):
                self._note(outcomes, error)
            raise
        if len(outcomes) == self.window:
            # One more success cannot raise the rate of a full window, so there is nothing to judge and nothing to lock.
            outcomes.append(False)
        else:
            self._note(outcomes, None)
        return answer

    def __call__(self, fn: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
        """As a decorator: ``fn``, guarded."""
        check_returns_answer(fn, "guarded", "guard")

        @functools.wraps(fn)
        def guarded(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
            return self.call(fn, *args, **kwargs)

        return guarded

    def __repr__(self) -> str:
        rule = f"error_rate={self.error_rate}, window={self.window}, cooldown={self.cooldown}"
        return f"<CircuitBreaker {self.state}: {rule}>"

    # -- closed

    def _speaks_against(self, error: Exception) -> bool:
        if isinstance(error, CircuitOpen):  # another breaker's: the source behind this one was not asked
            return False
        named = any(kind in self.counts for kind in type(error).__mro__ if kind not in (Exception, BaseException))
        return any(is_of(error, kind) for kind in self.counts) and (named or not isinstance(error, PROGRAM_ERRORS))

    def _note(self, outcomes: deque[bool], error: Exception | None) -> None:
        with self._lock:
            outcomes.append(error is not None)
            n_failed = outcomes.count(True)
            if outcomes is not self._outcomes or len(outcomes) < self.window or n_failed < self._n_to_open:
                return
            last = f" (last: {name_of(error)}: {error})" if error is not None else ""
            self._open(f"{n_failed:,} of the last {counted(self.window, 'call')} failed{last}")
        logger.warning("%s: open for %g s: %s", self._title, self.cooldown, self._why)

    def _open(self, why: str) -> None:
        is_new = self._outcomes is not None
        self._outcomes, self._is_probing, self._n_left = None, False, 0
        self._since, self._why = self._clock(), why
        self._opened_at = self._since if is_new else self._opened_at

    # -- open and half-open

    def _call_open(self, fn: Callable[..., Answer], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        with self._lock:
            is_closed = self._outcomes is not None  # by another thread, just now
            probe = None if is_closed else self._take_probe()
            refusal = None if is_closed or probe is not None else self._refusal()
        if is_closed:
            return self.call(fn, *args, **kwargs)
        if probe is not None:
            return self._probe(probe, fn, args, kwargs)
        if self.fallback is not None:
            answer: Answer = self.fallback(*args, **kwargs)
            return answer
        raise refusal or AssertionError("a call is let through or refused")

    def _take_probe(self) -> int | None:
        """The number of the round in which one more probe may go, or None."""
        now = self._clock()
        if now - self._since >= self.cooldown:
            self._since, self._is_probing = now, True
            self._round, self._n_left, self._n_good = self._round + 1, self.probes, 0
        if self._n_left == 0:
            return None
        self._n_left -= 1
        return self._round

    def _probe(self, round_: int, fn: Callable[..., Answer], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        logger.info("%s: half-open, a probe is let through", self._title)
        try:
            answer = fn(*args, **kwargs)
        except BaseException as error:
            self._probe_failed(round_, error)
            raise
        self._probe_succeeded(round_)
        return answer

    def _probe_failed(self, round_: int, error: BaseException) -> None:
        with self._lock:
            if round_ != self._round or not self._is_probing:
                return  # an older round, or another probe of this one has failed before
            if not isinstance(error, Exception) or not self._speaks_against(error):
                self._n_left += 1  # it says nothing about the source, so another may try
                return
            self._open(f"a probe failed ({name_of(error)}: {error})")
        logger.warning("%s: open again for %g s: %s", self._title, self.cooldown, self._why)

    def _probe_succeeded(self, round_: int) -> None:
        with self._lock:
            if round_ != self._round or not self._is_probing:
                return
            self._n_good += 1
            if self._n_good < self.probes:
                return
            self._is_probing, self._outcomes = False, deque(maxlen=self.window)
        logger.info("%s: closed", self._title)

    def _refusal(self) -> CircuitOpen:
        in_s = max(0.0, self._since + self.cooldown - self._clock())
        when = "its probes are on their way" if self._is_probing else f"it is tried again in {in_s:.1f} s"
        error = CircuitOpen(
            f"{self._title}: {self._why}, {when}; wait until then, or pass fallback= to answer meanwhile"
        )
        error.probe_in_s = in_s
        return error

    @property
    def _title(self) -> str:
        return "breaker" if self.name is None else f"breaker {self.name!r}"


def _count(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}: a number of calls from 1, got {value!r}")
    return value


def _number(name: str, value: float, most: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most or math.isinf(value):
        raise ConfigError(f"{name}: a number from 0{'' if math.isinf(most) else f' to {most:g}'}, got {value!r}")
    return float(value)
