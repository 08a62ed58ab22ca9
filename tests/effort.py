"""How hard the tests try: enough for every push, less under ``make quick``, much longer under ``make soak``.

make quick            a tenth of every count, without the tests marked ``slow``
make test             every count as it is written; of points that are too many, a random part
make soak             all tests, every count times 50, every point: several hours
make soak SOAK=60     at most 60 minutes: counts that should fit, all tests in a random order, none begun afterwards
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

#: A tenth of the effort: in ``make quick``, and in ``make test`` for the second run on the reference kernels.
IS_QUICK = os.environ.get("POOLISH_QUICK", "") not in ("", "0")

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


#: Chooses the points of ``some``. Where a change is judged (CI), they are the same each time, as hypothesis' examples.
POINTS = random.Random(0 if os.environ.get("CI", "") not in ("", "0") and not IS_SOAK else None)


def times(n: int, *, push: int | None = None) -> int:
    """``n`` on a push, or ``push`` where that is fewer; a tenth in ``make quick``; many times ``n`` in a soak.

    Use it where a test names its own count, ``@settings(max_examples=times(1_000))``; tests that leave the
    count to hypothesis follow the profile by themselves.
    """
    if IS_SOAK:
        return n * SOAK_FACTOR
    on_push = n if push is None else push
    return max(1, on_push // 10) if IS_QUICK else on_push


def some(points: Sequence[T], n: int) -> list[T]:
    """``n`` of the points where a fault can strike, in order, drawn anew on every run but CI's; in a soak all of them.

    >>> some(range(3), 5)
    [0, 1, 2]
    """
    if IS_SOAK or len(points) <= n:
        return list(points)
    return [points[i] for i in sorted(POINTS.sample(range(len(points)), n))]
