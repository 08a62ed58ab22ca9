"""Every kernel of the statistics says what NumPy says, on all values that a float can be."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from poolish.kernels import reference_stats

COMPILED: list[ModuleType] = []
if importlib.util.find_spec("poolish.kernels._stats") is not None:
    COMPILED.append(importlib.import_module("poolish.kernels._stats"))
IMPLEMENTATIONS = [reference_stats, *COMPILED]

each_kind = pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint8"]

floats = nps.arrays(np.float64, st.integers(0, 60), elements=st.floats(width=64))
usual = nps.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6))
words = nps.arrays(np.uint64, st.integers(0, 100), elements=st.integers(0, 2**64 - 1))


def plain_moments(x: np.ndarray) -> list[float]:
    apart = x - x.mean()
    return [len(x), x.mean(), (apart**2).sum(), (apart**3).sum(), (apart**4).sum()]


# One pass over numbers ----------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 8, 1_023, 1_024, 1_025, 5_000])
def test_scan_is_what_numpy_computes(kernels: ModuleType, dtype: str, n: int):
    """Moments, range and counts, at every length around a block, for every type of numbers."""
    x = np.random.default_rng(n).normal(20, 7, n).astype(dtype)
    edges = np.array([10.0, 18.5, 20.0, 20.5, 31.0])
    counts = np.zeros(6, np.int64)

    moments, low, high, odd = kernels.scan(x, edges, counts)

    wide = x.astype(np.float64)
    assert moments[0] == n
    scale = max(float((np.abs(wide - wide.mean()) ** 4).sum()), 1.0)
    np.testing.assert_allclose(moments, plain_moments(wide), rtol=1e-10, atol=1e-12 * scale)
    assert (low, high, odd) == (wide.min(), wide.max(), (0, 0, 0))
    assert counts.tolist() == np.bincount(np.searchsorted(edges, wide, side="right"), minlength=6).tolist()


@each_kind
@given(x=floats, edges=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40, unique=True))
def test_scan_takes_any_float(kernels: ModuleType, x: np.ndarray, edges: list[float]):
    """NaN and infinity are counted, the rest is binned, and the mean stays in the range whatever overflows."""
    bounds = np.array(sorted(edges), np.float64)
    counts = np.zeros(len(bounds) + 1, np.int64)

    moments, low, high, odd = kernels.scan(x, bounds, counts)

    finite = x[np.isfinite(x)]
    assert odd == (np.isnan(x).sum(), (x == np.inf).sum(), (x == -np.inf).sum())
    assert moments[0] == len(finite) == counts.sum()
    assert counts.tolist() == np.bincount(np.searchsorted(bounds, finite, side="right"), minlength=len(counts)).tolist()
    if len(finite):
        assert (low, high) == (finite.min(), finite.max())
        assert low - 1e-9 * abs(low) <= moments[1] <= high + 1e-9 * abs(high)
    else:
        assert np.isnan(low)
        assert np.isnan(high)


@each_kind
@pytest.mark.parametrize("value", [0.1, -7.3e-300, 1e308, 5e-324, 3.0])
def test_constant_values_have_no_variance_at_all(kernels: ModuleType, value: float):
    """Not even what rounding a mean leaves, over many blocks."""
    moments, low, high, _ = kernels.scan(np.full(200_000, value))

    assert moments == (200_000, value, 0.0, 0.0, 0.0)
    assert low == high == value


@each_kind
def test_scan_leaves_no_edge_behind(kernels: ModuleType):
    """Many edges, searched one by one, count as few do."""
    x = np.random.default_rng(3).standard_normal(3_000)
    for n_edges in (0, 1, 2, 15, 16, 17, 18, 31, 32, 33, 500):
        edges = np.sort(np.random.default_rng(n_edges).choice(x, n_edges, replace=False))
        counts = np.zeros(n_edges + 1, np.int64)

        kernels.scan(x, edges, counts)

        expected = np.bincount(np.searchsorted(edges, x, side="right"), minlength=n_edges + 1)
        assert counts.tolist() == expected.tolist()


@each_kind
def test_scan_reaches_nothing_but_its_counts(kernels: ModuleType):
    """Counts of another length are refused before anything is written."""
    counts = np.zeros(3, np.int64)

    with pytest.raises(IndexError):
        kernels.scan(np.arange(5.0), np.array([1.0]), counts)

    assert counts.tolist() == [0, 0, 0]


@given(a=usual, b=usual)
def test_merged_moments_are_those_of_both(a: np.ndarray, b: np.ndarray):
    """Pebay's formulas."""
    merged = reference_stats.merge(reference_stats.scan(a)[0], reference_stats.scan(b)[0])

    both = np.concatenate([a, b])
    expected = reference_stats.scan(both)[0]
    scale = max(float(np.abs(both - both.mean()).max()), 1e-300)
    for power, (found, wanted) in enumerate(zip(merged[1:], expected[1:], strict=True)):
        size = scale ** (power + 1 if power else 1) * len(both) + float(np.abs(both).max())
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9 * size)


# Order --------------------------------------------------------------------------------------------------------


@each_kind
@given(x=floats)
def test_sort_is_numpys(kernels: ModuleType, x: np.ndarray):
    """NaN last, zeros of one sign, and the argument as it was."""
    before = x.tobytes()

    ordered = kernels.sort(x)

    np.testing.assert_array_equal(ordered, np.sort(x))
    assert not np.signbit(ordered[ordered == 0]).any()
    assert x.tobytes() == before


@each_kind
@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_takes_every_type(kernels: ModuleType, dtype: str):
    """As float64."""
    x = np.random.default_rng(0).integers(0, 100, 3_000).astype(dtype)

    assert kernels.sort(x).tolist() == np.sort(x.astype(np.float64)).tolist()


@each_kind
@given(a=usual, b=usual, digits=st.integers(-6, 3))
def test_walk_is_what_searching_finds(kernels: ModuleType, a: np.ndarray, b: np.ndarray, digits: int):
    """The distance of the distribution functions at every point, with ties, and the area between them."""
    a, b = np.sort(a.round(digits)), np.sort(b.round(digits))
    points = np.unique(np.concatenate([a, b]))
    apart = np.searchsorted(a, points, side="right") * len(b) - np.searchsorted(b, points, side="right") * len(a)

    above, below, area = kernels.walk(a, b)

    assert (above, below) == (max(apart.max(), 0), max(-apart.min(), 0))
    assert area == pytest.approx(np.dot(np.abs(apart[:-1]), np.diff(points)) / (len(a) * len(b)), rel=1e-9, abs=1e-9)


@each_kind
def test_walk_needs_two_samples(kernels: ModuleType):
    """Of nothing there is no distribution."""
    with pytest.raises(IndexError):
        kernels.walk(np.empty(0), np.arange(3.0))


# Counting -----------------------------------------------------------------------------------------------------


@each_kind
@given(words=words, few=st.integers(1, 20), limit=st.integers(1, 30))
def test_tally_counts_words(kernels: ModuleType, words: np.ndarray, few: int, limit: int):
    """In the order of first sight, or not at all if there are too many."""
    words = words % np.uint64(few)

    found = kernels.tally(words, limit)

    expected = Counter(words.tolist())
    if len(expected) > limit:
        assert found is None
    else:
        assert list(zip(found[0].tolist(), found[1].tolist(), strict=True)) == list(expected.items())


@pytest.mark.skipif(not COMPILED, reason="the kernels are not compiled here")
@given(words=words, bits=st.integers(4, 18))
def test_registers_are_the_same_in_both_halves(words: np.ndarray, bits: int):
    """A profile made here merges with one made where nothing could be compiled."""
    registers = [np.zeros(1 << bits, np.uint8) for _ in range(2)]

    for kernels, room in zip(IMPLEMENTATIONS, registers, strict=True):
        kernels.fill_registers(words, room)

    assert registers[0].tolist() == registers[1].tolist()


@each_kind
def test_registers_are_pinned(kernels: ModuleType):
    """What is stored in profiles means the same in every release."""
    registers = np.zeros(16, np.uint8)

    kernels.fill_registers(np.arange(100, dtype=np.uint64), registers)

    assert registers.tolist() == [2, 4, 1, 3, 4, 5, 3, 1, 5, 6, 3, 1, 3, 5, 3, 5]


@each_kind
@pytest.mark.parametrize("size", [0, 8, 17, 1 << 19])
def test_registers_are_a_power_of_two(kernels: ModuleType, size: int):
    """Nothing is written outside of them."""
    with pytest.raises(IndexError):
        kernels.fill_registers(np.arange(3, dtype=np.uint64), np.zeros(size, np.uint8))


@pytest.mark.skipif(not COMPILED, reason="the kernels are not compiled here")
def test_compiled_kernels_refuse_what_they_would_misread():
    """Arrays of another type or layout are an error, not other numbers."""
    kernels = COMPILED[0]
    for call in (
        lambda: kernels.walk(np.arange(3), np.arange(3.0)),
        lambda: kernels.walk(np.arange(6.0)[::2], np.arange(3.0)),
        lambda: kernels.tally(np.arange(3), 5),
        lambda: kernels.fill_registers(np.arange(3, dtype=np.uint64), np.zeros(16, np.int64)),
        lambda: kernels.scan(np.arange(3.0), np.array([1], np.int64), np.zeros(2, np.int64)),
    ):
        with pytest.raises(TypeError, match="a flat array"):
            call()


# Buckets ------------------------------------------------------------------------------------------------------


@each_kind
@given(x=floats, low=st.floats(-100, 100), scale=st.floats(1e-3, 1e3), n_buckets=st.integers(1, 50))
def test_buckets_keep_the_order(kernels: ModuleType, x: np.ndarray, low: float, scale: float, n_buckets: int):
    """Every finite value is in one, and no larger value in a lower one."""
    counts, members = np.zeros(n_buckets, np.int64), np.full(n_buckets, np.nan)

    kernels.fill_buckets(x, low, scale, counts, members)

    finite = x[np.isfinite(x)]
    parts = []
    for bucket in range(n_buckets):
        marks, out = np.zeros(n_buckets, np.uint8), np.full(len(x), np.nan)
        marks[bucket] = 1
        n_found = kernels.pick_buckets(x, low, scale, marks, out)
        assert n_found == counts[bucket]
        assert np.isnan(out[n_found:]).all()
        assert not n_found or members[bucket] in out[:n_found]
        parts.append(np.sort(out[:n_found]))
    assert np.concatenate(parts).tolist() == np.sort(finite).tolist()


@each_kind
def test_buckets_write_only_what_there_is_room_for(kernels: ModuleType):
    """And say how many there would have been."""
    out = np.zeros(2)

    assert kernels.pick_buckets(np.arange(5.0), 0.0, 1.0, np.ones(3, np.uint8), out) == 5
    assert out.tolist() == [0.0, 1.0]
    with pytest.raises(IndexError):
        kernels.fill_buckets(np.arange(5.0), 0.0, 1.0, np.zeros(3, np.int64), np.zeros(2))
    with pytest.raises(IndexError):
        kernels.pick_buckets(np.arange(5.0), 0.0, 1.0, np.empty(0, np.uint8), out)
