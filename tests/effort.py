"""How hard the tests try: enough for every push, and much longer under ``make soak``.

make soak             all tests, every count times 50: several hours
make soak SOAK=60     at most 60 minutes: counts that should fit, all tests in a random order, none begun afterwards
"""

from __future__ import annotations

import os

IS_SOAK = os.environ.get("POOLISH_SOAK", "") not in ("", "0")

#: How many minutes a soak may last; 0 is without end.
SOAK_MINUTES = float(os.environ.get("POOLISH_SOAK_MINUTES") or 0) if IS_SOAK else 0.0


def soak_factor(minutes: float) -> int:
    """What a soak multiplies every count by. A factor of 50 takes about four hours on two cores.

    >>> soak_factor(0), soak_factor(60), soak_factor(5), soak_factor(600)
    (50, 12, 1, 50)
    """
    return 50 if not minutes else max(1, min(50, round(minutes / 5)))


SOAK_FACTOR = soak_factor(SOAK_MINUTES)


def times(n: int) -> int:
    """``n`` on a push, many times that in a soak: for examples, kills, rounds of threads.

    Use it where a test names its own count, ``@settings(max_examples=times(1_000))``; tests that leave the
    count to hypothesis follow the profile by themselves.
    """
    return n * SOAK_FACTOR if IS_SOAK else n
