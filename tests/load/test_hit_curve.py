"""A cache says how often caches of other sizes would have hit, and which size to choose."""

from __future__ import annotations

import numpy as np
import pytest

from poolish.errors import ConfigError
from poolish.load.cached import CachedDataset
from poolish.load.memory_cache import MAX_TRACE, AccessTrace, stack_distances
from tests.load.sources import buffer

PATTERNS = {
    "zipf": lambda rng: rng.zipf(1.3, 6_000) % 400,
    "uniform": lambda rng: rng.integers(0, 300, 6_000),
    "shuffled epochs": lambda rng: np.concatenate([rng.permutation(200) for _ in range(20)]),
    "in order": lambda rng: np.tile(np.arange(150), 20),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_hit_curve_is_what_caches_of_other_sizes_do(pattern: str):
    """Exactly, for any size, whatever the size of the cache that has seen the accesses, one by one or many at once."""
    accesses = PATTERNS[pattern](np.random.default_rng(3)).tolist()
    seen = CachedDataset(range(400), max_items=37)
    for k in range(0, len(accesses), 20):
        if k % 40:
            seen.__getitems__(accesses[k : k + 20])
        else:
            [seen[i] for i in accesses[k : k + 20]]
    advice = seen.suggest()

    for n_items in (1, 10, 37, 100, 199, 400):
        other = CachedDataset(range(400), max_items=n_items)
        for i in accesses:
            other[i]
        assert advice.hit_rate(n_items) == pytest.approx(other.stats.hit_rate, abs=1e-12)
    assert (advice.accesses, advice.followed) == (len(accesses), 1)


def test_the_recommended_size_is_the_smallest_that_gets_the_share():
    """One row less gets less; and its bytes are those of as many rows."""
    cached = CachedDataset([{"x": np.zeros(100)} for _ in range(400)], max_items=37)
    for i in PATTERNS["zipf"](np.random.default_rng(3)):
        cached[int(i)]
    advice = cached.suggest(share=0.9)

    assert advice.hit_rate(advice.max_items) >= 0.9 * advice.best_hit_rate > advice.hit_rate(advice.max_items - 1)
    assert advice.max_bytes == pytest.approx(advice.max_items * cached.stats.bytes / cached.stats.items, abs=1)
    assert advice.curve()[max(advice.curve())] == advice.best_hit_rate
    assert f"max_items={advice.max_items}" in str(advice)


def test_long_traces_are_estimated_in_bounded_memory():
    """Within three percentage points of what a cache does, from a part of the ids."""
    rng = np.random.default_rng(5)
    for accesses in (rng.zipf(1.2, 200_000) % 20_000, np.concatenate([rng.permutation(20_000) for _ in range(8)])):
        trace = AccessTrace()
        for part in np.split(accesses, 80):
            trace.extend(part.tolist())
        advice = trace.advice(0.95, 1)

        exact = np.sort(stack_distances(accesses.tolist()))
        assert len(trace._hashes) <= MAX_TRACE < len(accesses)
        assert advice.followed < 1
        for n_items in (1_000, 8_000, 15_000, 40_000):
            assert advice.hit_rate(n_items) == pytest.approx(
                np.searchsorted(exact, n_items, side="right") / len(accesses), abs=0.03
            )


def test_rows_of_another_version_are_not_hits():
    """A cache begins anew when the dataset changes, and so does the curve."""
    source = buffer(20)
    cached = CachedDataset(source)
    for _ in range(2):
        cached[0]
    source.update(source.ids[:1], {"n": [7]})
    cached[0]

    assert cached.suggest().hit_rate(20) == cached.stats.hit_rate == pytest.approx(1 / 3)


def test_no_reuse_is_said():
    """Where no row came twice, no size is recommended."""
    cached = CachedDataset(range(9))
    list(cached)

    assert (cached.suggest().max_items, cached.suggest().best_hit_rate) == (0, 0)
    assert "of no use" in str(cached.suggest())
    with pytest.raises(ConfigError, match="share=0"):
        cached.suggest(share=0)
