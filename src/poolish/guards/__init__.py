"""Guards: what happens when a sample, a source or a whole batch fails, by policies that the user chose.

A stage takes a guard as an argument. ``Retry`` asks again, ``CircuitBreaker`` stops asking a source that is down, and
``Faults`` decides what stands in for what could not be read, counts it, and ends the run when its budget is spent.
"""

from poolish.guards.blame import DATA_ERRORS
from poolish.guards.breaker import CircuitBreaker
from poolish.guards.circuit_open import CircuitOpen
from poolish.guards.faults import Faults
from poolish.guards.retry import Retry, RetryStats

__all__ = ["DATA_ERRORS", "CircuitBreaker", "CircuitOpen", "Faults", "Retry", "RetryStats"]
