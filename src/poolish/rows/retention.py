"""Which rows stay and which go: policies as plain functions, numbers in, row numbers out.

Rows are numbered from 0, the oldest, and survivors keep their order. A range is kept without looking at single rows.
To add a policy, write a function of the same shape and name it in the table below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError

RowNumbers = range | NDArray[np.int64]
Policy = Callable[[int, int, np.random.Generator], RowNumbers]
Any_ = TypeVar("Any_")


def latest(n_rows: int, n_kept: int, rng: np.random.Generator) -> RowNumbers:
    """The newest ``n_kept`` rows.

    >>> latest(10, 3, np.random.default_rng(0))
    range(7, 10)
    """
    return range(n_rows - n_kept, n_rows)


def oldest(n_rows: int, n_kept: int, rng: np.random.Generator) -> RowNumbers:
    """The oldest ``n_kept`` rows.

    >>> oldest(10, 3, np.random.default_rng(0))
    range(0, 3)
    """
    return range(n_kept)


def random(n_rows: int, n_kept: int, rng: np.random.Generator) -> RowNumbers:
    """``n_kept`` rows, every row as likely as any other, in their old order.

    >>> random(10, 3, np.random.default_rng(0))
    array([5, 6, 9])
    """
    if n_kept > n_rows // 2:
        dropped = rng.choice(n_rows, n_rows - n_kept, replace=False, shuffle=False)
        return np.delete(np.arange(n_rows), dropped)
    return np.sort(rng.choice(n_rows, n_kept, replace=False, shuffle=False))


#: What ``retain_prior_by=`` and ``retain(by=)`` may name: (rows there are, rows to keep, rng) -> rows kept.
RETENTION: dict[str, Policy] = {"latest": latest, "oldest": oldest, "random": random}

#: What ``drop_strategy=`` may name: (rows there are, rows to drop, rng) -> rows dropped.
DROP: dict[str, Policy] = {"oldest": oldest, "random": random}


def n_kept(n_rows: int, fraction: float) -> int:
    """How many of ``n_rows`` a fraction keeps: half to even; a negative fraction keeps none.

    >>> n_kept(5, 0.5), n_kept(7, 0.5), n_kept(3, -1)
    (2, 4, 0)
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float, np.integer, np.floating)):
        raise ConfigError(
            f"retain_prior is a number, got {type(fraction).__name__} {fraction!r}; pass a fraction from 0 to 1"
        )
    if not fraction <= 1:
        raise ConfigError(
            f"retain_prior is a fraction up to 1, got {fraction!r}; 0.5 keeps half, a negative number none"
        )
    return 0 if fraction < 0 else round(n_rows * float(fraction))  # float32 would round the number of rows


def named(policies: Mapping[str, Any_], name: str, argument: str) -> Any_:
    """The policy with that name, or an error that lists all."""
    if not isinstance(name, str) or name not in policies:
        raise ConfigError(f"{argument}={name!r} is unknown; one of {', '.join(map(repr, policies))}")
    return policies[name]
