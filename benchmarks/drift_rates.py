"""How often drift tests alarm without drift, and how often they see one: poolish against the exact test and its peers.

A *column* is a kind of data with a change that is hard to see; a *cell* of the table is a column, two sizes and a
method. In each repetition two samples are drawn, without and with the change. The rate is the share of alarms without
it, the power the share with it, both at alpha = 0.05. "Exact" is the permutation test of the very same statistic: the
method is called on random splits of both samples together, and its value compared with theirs.

    python -m benchmarks.drift_rates                    # the tables of docs/guards.md, and its plot, written anew
    python -m benchmarks.drift_rates --repetitions 50   # quickly, to the screen only
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolish.guards import Profile
from poolish.guards.stats.distances import DISTANCES
from poolish.seeds import generator

ALPHA = 0.05
Sample = Any
Draw = Callable[[np.random.Generator, int, bool], Sample]


@dataclass(frozen=True)
class Column:
    """A kind of column: ``draw(rng, n, changed)``."""

    name: str
    draw: Draw
    has_order: bool = True


def _continuous(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return rng.normal(0.0, 1.0, n) + (_effect(n) if changed else 0.0)


def _effect(n: int) -> float:
    """A shift that samples of n rows each show about two times in three."""
    return 3.5 / np.sqrt(n)


def _lognormal(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return rng.lognormal(2 * _effect(n) if changed else 0.0, 2.0, n)


def _cauchy(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return rng.standard_cauchy(n) + (1.6 * _effect(n) if changed else 0.0)


def _zeros(share: float) -> Draw:
    def draw(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
        filled = (1 - share) + (1.1 * _effect(n) * np.sqrt(share * (1 - share)) if changed else 0.0)
        return np.where(rng.random(n) < filled, rng.exponential(1.0, n), 0.0)

    return draw


def _codes(n_values: int, *, zipf: bool, text: bool) -> Draw:
    weights = 1 / np.arange(1, n_values + 1) if zipf else np.ones(n_values)
    shares = weights / weights.sum()
    tilted = np.linspace(-1, 1, n_values)

    def draw(rng: np.random.Generator, n: int, changed: bool) -> Any:
        p = shares
        if changed:
            p = shares * np.exp(tilted * 1.5 * _effect(n) * min(n_values, 30) ** 0.2)
            p = p / p.sum()
        found = rng.choice(n_values, n, p=p)
        return np.char.add("w", found.astype(str)).tolist() if text else found

    return draw


def _rounded(rng: np.random.Generator, n: int, changed: bool) -> np.ndarray:
    return (2 * _continuous(rng, n, changed)).round() / 2


COLUMNS = (
    Column("normal", _continuous),
    Column("lognormal(0, 2)", _lognormal),
    Column("Cauchy", _cauchy),
    Column("70 % zeros", _zeros(0.7)),
    Column("99 % zeros", _zeros(0.99)),
    Column("rounded, tied", _rounded),
    Column("2 values", _codes(2, zipf=False, text=False)),
    Column("20 codes, Zipf", _codes(20, zipf=True, text=False)),
    Column("300 codes", _codes(300, zipf=False, text=False)),
    Column("20 words", _codes(20, zipf=False, text=True), has_order=False),
    Column("200 words", _codes(200, zipf=False, text=True), has_order=False),
    Column("1,000 words, Zipf", _codes(1_000, zipf=True, text=True), has_order=False),
)
SIZES = ((30, 30), (60, 60), (30, 1_000), (1_000, 60), (1_000, 1_000), (5_000, 500))


@dataclass(frozen=True)
class Rates:
    """Shares of alarms without and with drift, and how often the column could not be judged."""

    rate: float
    power: float
    silent: float = 0.0


def pairs(column: Column, n: int, m: int, changed: bool, repetitions: int, seed: int = 0) -> Sequence[tuple[Any, Any]]:
    """Samples of the reference and of the current rows."""
    rng = generator(seed, column.name, n, m, int(changed))
    return [(column.draw(rng, n, False), _changed(column, rng, n, m, changed)) for _ in range(repetitions)]


def _changed(column: Column, rng: np.random.Generator, n: int, m: int, changed: bool) -> Sample:
    """A current sample whose change is as hard to see as between two samples of the harmonic mean of the sizes."""
    size = round(2 * n * m / (n + m))
    if not changed:
        return column.draw(rng, m, False)
    parts = [column.draw(rng, size, True) for _ in range(-(-m // size))]
    joined = [value for part in parts for value in part] if isinstance(parts[0], list) else np.concatenate(parts)
    return joined[:m]


def alarms(method: str, samples: Sequence[tuple[Any, Any]], *, profile: bool = False) -> tuple[float, float]:
    """The share of pairs that are drift to a method of poolish, and of those that it does not judge."""
    compare = DISTANCES[method].compare
    found = []
    for before, now in samples:
        known = Profile.of({"x": before})["x"] if profile else before
        found.append(compare(known, now, alpha=ALPHA))
    return (
        float(np.mean([each.verdict == "drift" for each in found])),
        float(np.mean([each.verdict in ("not applicable", "insufficient") for each in found])),
    )


def exact_alarms(method: str, samples: Sequence[tuple[Any, Any]], *, splits: int = 99, seed: int = 0) -> float:
    """The share of pairs whose statistic is among the largest of its values on random splits of both together."""
    rng = generator(seed, "exact", method)
    value = _value_of(method)
    n_alarms = 0
    for before, now in samples:
        observed = value(before, now)
        pooled = [*before, *now] if isinstance(before, list) else np.concatenate([before, now])
        large = 0
        for _ in range(splits):
            order = rng.permutation(len(pooled))
            mixed = [pooled[i] for i in order] if isinstance(pooled, list) else pooled[order]
            large += value(mixed[: len(before)], mixed[len(before) :]) >= observed * (1 - 1e-9)
        n_alarms += (large + 1) / (splits + 1) <= ALPHA
    return n_alarms / len(samples)


def _value_of(method: str) -> Callable[[Any, Any], float]:
    compare = DISTANCES[method].compare
    return lambda before, now: compare(before, now, min_rows=2**60).value  # too many rows asked for: no p-value
