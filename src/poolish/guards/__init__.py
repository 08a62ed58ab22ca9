"""Guards: what happens when a sample, a source or a whole batch fails, by policies that the user chose.

A stage takes a guard as an argument. ``Retry`` asks again, ``CircuitBreaker`` stops asking a source that is down, and
``Faults`` decides what stands in for what could not be read, counts it, and ends the run when its budget is spent. A
``Suite`` says what good data is; doors ask it before they let rows pass.

Faults need no Arrow; what looks at rows does, and is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from poolish.guards.blame import DATA_ERRORS
from poolish.guards.breaker import CircuitBreaker
from poolish.guards.circuit_open import CircuitOpen
from poolish.guards.faults import Faults
from poolish.guards.retry import Retry, RetryStats

if TYPE_CHECKING:
    from poolish.guards.custom import register_check as register_check
    from poolish.guards.guard import Guard as Guard
    from poolish.guards.inferring import infer as infer
    from poolish.guards.rejected import Rejected as Rejected
    from poolish.guards.stream_guard import StreamGuard as StreamGuard
    from poolish.guards.suite import Suite as Suite
    from poolish.guards.verdicts import Result as Result
    from poolish.guards.verdicts import Verdict as Verdict

#: Name -> the module it lives in, for those that are loaded late. The imports above say the same to type checkers.
_HOMES = {
    "Guard": "guard",
    "Rejected": "rejected",
    "Result": "verdicts",
    "StreamGuard": "stream_guard",
    "Suite": "suite",
    "Verdict": "verdicts",
    "infer": "inferring",
    "register_check": "custom",
}

__all__ = [
    "DATA_ERRORS",
    "CircuitBreaker",
    "CircuitOpen",
    "Faults",
    "Guard",
    "Rejected",
    "Result",
    "Retry",
    "RetryStats",
    "StreamGuard",
    "Suite",
    "Verdict",
    "infer",
    "register_check",
]

if not TYPE_CHECKING:  # hidden from type checkers, so that they see a misspelt name for what it is

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'poolish.guards' has no attribute {name!r}")
        value = getattr(import_module(f"poolish.guards.{_HOMES[name]}"), name)
        globals()[name] = value  # so that each name is looked up once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
