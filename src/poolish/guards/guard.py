"""Guard: what a door asks before it lets rows pass, and what it does with the answer.

Doors are ``DatasetBuffer.append``, a provider, a consumer, a loader, ``bake``. Each takes anything that looks at rows
and answers with ``ok``, ``mask`` and ``verdicts``: a ``Suite``, a guard for streams that a suite made, or a function of
your own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from poolish.errors import ConfigError, DataRefused
from poolish.guards.entries import one_of
from poolish.guards.leaves import Mask, Rows
from poolish.guards.stream_guard import StreamGuard
from poolish.guards.suite import Suite
from poolish.guards.verdicts import ACTIONS, Action, Result, Verdict
from poolish.printable import printable

logger = logging.getLogger("poolish.guards")


class Finding(Protocol):
    """What a guard answers: whether the rows are good, which of them, and why not. ``Result`` is one."""

    @property
    def ok(self) -> bool:
        """Whether all is well."""

    @property
    def mask(self) -> Mask:
        """True for every good row."""

    @property
    def verdicts(self) -> Sequence[Any]:
        """What was found; each has a text."""


class Guard(Protocol):
    """Looks at rows (a ``pa.Table``, or columns by name) on their way through a door."""

    def __call__(self, rows: Any, /) -> Finding:
        """What it finds."""


def check_guard(guard: Any, door: str) -> Guard | None:
    """The guard, if it is one. A suite is in use from here on, and refuses changes."""
    if guard is not None and not callable(guard):
        raise ConfigError(f"{door}: a guard is a Suite, or a function of rows, got {guard!r}")
    checked: Guard | None = guard.in_use(door) if isinstance(guard, Suite) else guard
    return checked


def ask(guard: Guard, rows: Any, owner: object = None, stream: str = "") -> Result:
    """What a guard says of rows; the answer of a function that is no suite's is refused as a whole if it is not ok.

    A guard with a memory serves one ``stream`` of one ``owner``: windows of rows of several would mean nothing.
    """
    if owner is not None and isinstance(guard, StreamGuard):
        guard.claim(owner, stream)
    found = guard(rows)
    if isinstance(found, Result):
        _log.say(found)
        return found
    seen = Rows.of(rows)
    try:
        mask, is_ok = np.asarray(found.mask), bool(found.ok)
        texts = [str(verdict) for verdict in found.verdicts]
    except AttributeError as error:
        raise ConfigError(f"a guard answers with ok, mask and verdicts ({error})") from None
    if mask.shape != (len(seen),) or mask.dtype != bool:
        raise ConfigError(
            f"a guard's mask has True or False for each of {len(seen)} rows, got {mask.dtype}{mask.shape}"
        )
    if is_ok and not mask.all():
        raise ConfigError(f"a guard said ok and blamed {int((~mask).sum())} rows; its ok is False where its mask is")
    action: Action = one_of(getattr(found, "action", "refuse"), ACTIONS, "the action of a guard's answer")
    status = "ok" if is_ok else "failed"
    detail = "; ".join(texts)
    name = getattr(guard, "__name__", type(guard).__name__)
    verdict = Verdict(
        name, (), "error", "meaning", status, len(seen), int((~mask).sum()), detail, action=action, bad=~mask
    )
    answer = Result([verdict], seen, name=name)
    _log.say(answer)
    return answer


def passed(result: Result, place: str) -> Mask | None:
    """Which rows may pass a door at which somebody waits for the answer: None for all, else True for those that may.

    ``refuse`` and ``raise`` are a ``DataRefused``; after ``skip`` no row passes.
    """
    action = result.action
    if action == "log":
        return None
    if action in ("refuse", "raise"):
        raise refusal(result, place)
    return result.kept


def refusal(result: Result, place: str) -> DataRefused:
    """The error for rows that may not pass."""
    return result.error(place, 'mend them, or let the good ones in with suite.copy().on(error="drop")')


class _Log:
    """Each failing check is logged once per process with its first examples; all are counted by the doors."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def say(self, result: Result) -> None:
        for verdict in result.failures:
            key = (result.name, verdict.title)
            with self._lock:
                is_new = key not in self._said and len(self._said) < 10_000
                self._said.add(key) if is_new else None
            if is_new:
                logger.warning(
                    "%s: %s (%s; more of this kind are counted and not logged)",
                    printable(result.name),
                    verdict,
                    verdict.action,
                )


_log = _Log()
