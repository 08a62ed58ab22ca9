"""How hard the tests try: enough for every push, and much longer under ``make soak``."""

from __future__ import annotations

import os

IS_SOAK = os.environ.get("POOLISH_SOAK", "") not in ("", "0")

#: What a soak multiplies every count by.
SOAK_FACTOR = 50


def times(n: int) -> int:
    """``n`` on a push, many times that in a soak: for examples, kills, rounds of threads.

    Use it where a test names its own count, ``@settings(max_examples=times(1_000))``; tests that leave the
    count to hypothesis follow the profile by themselves.
    """
    return n * SOAK_FACTOR if IS_SOAK else n
