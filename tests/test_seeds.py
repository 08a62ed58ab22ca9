"""One seed, named generators, and an order that is computed instead of stored."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import kernels
from poolish.errors import ConfigError, PoolishError
from poolish.kernels import reference
from poolish.seeds import MAX_LENGTH, KeyedPermutation, check_seed, generator, key

keys = st.integers(0, 2**64 - 1)
lengths = st.integers(1, 3_000)
#: Where a bit width that is off by one shows: around powers of two, and at one more than an even power.
EDGES = sorted({1, 2, 3, 65_537, 262_145} | {2**k + d for k in range(2, 15) for d in (-1, 0, 1)})


def whole(n: int, key: int) -> np.ndarray:
    return KeyedPermutation(n, key)[:]


# Named generators ---------------------------------------------------------------------------------------------


def test_generators_are_pinned():
    """A seed means the same numbers in every release: changing these values is a decision."""
    assert generator(0).bit_generator.random_raw(2).tolist() == [10762291550482256623, 15233431811687261503]
    path = generator(2**64 - 1, "drop", 17, "café", -1)
    assert path.bit_generator.random_raw(2).tolist() == [11225149507377624595, 5124223075465106599]
    assert key(0) == 9795080812905913788
    assert key(7, "order", 0) == 14162144425750084933


def test_generators_are_the_same_in_every_process():
    """Neither Python's hash seed nor the process enters."""
    program = "from poolish.seeds import *; print(key(3, 'a', 1), generator(3, 'a', 1).random())"

    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert answers == {f"{key(3, 'a', 1)} {generator(3, 'a', 1).random()}\n"}


def test_what_is_drawn_elsewhere_does_not_matter():
    """A generator starts at its beginning each time it is asked for."""
    generator(3, "drop").random(1_000)

    assert generator(3, "drop").random() == generator(3, "drop").random()


def test_paths_that_look_alike_are_different():
    """Names are kept apart: joining them, or reading a number as text, would mix two uses up."""
    paths = [(), ("",), ("a", "b"), ("ab",), ("a,b",), ('a", "b',), ("1",), (1,), (-1,), (0,), (1, 1), (11,), ("a", 1)]

    assert len({key(seed, *path) for seed in (0, 1, 11) for path in paths}) == 3 * len(paths)
    assert len({generator(0, *path).integers(2**63) for path in paths}) == len(paths)


def test_neighbouring_paths_are_independent():
    """The generators of batch k and batch k + 1 do not move together."""
    first = np.array([generator(0, "batch", k).random() for k in range(2_000)])

    correlation = np.corrcoef(first[:-1], first[1:])[0, 1]

    assert abs(correlation) < 0.1
    assert abs(first.mean() - 0.5) < 0.03


def test_numpy_integers_are_integers():
    """A seed that came out of an array is as good as any."""
    assert key(np.uint64(7), "order", np.int32(0)) == key(7, "order", 0)
    assert type(check_seed(np.int64(7))) is int


@pytest.mark.parametrize("seed", [-1, 2**64, True, False, np.True_, 1.0, "7", None, [7]])
def test_bad_seeds_are_refused(seed):
    """The error names the rule and the value."""
    for use in (check_seed, key, generator):
        with pytest.raises(ConfigError, match=r"seed must be .*got"):
            use(seed)


@pytest.mark.parametrize("name", [True, 1.0, None, b"drop", ("drop",)])
def test_bad_names_are_refused(name):
    """A name that has two spellings, or that changes from run to run, would not be repeatable."""
    with pytest.raises(ConfigError, match="str or int, got"):
        generator(0, name)


# The keyed permutation ----------------------------------------------------------------------------------------


def test_orders_are_pinned():
    """The same order in every release, on both kernels."""
    assert whole(10, 14162144425750084933).tolist() == [1, 5, 3, 8, 9, 0, 2, 7, 4, 6]
    assert KeyedPermutation(2**40, 1)[[0, 1, 2**40 - 1]].tolist() == [534924735569, 261624333358, 611532926502]
    assert KeyedPermutation(2**40 + 1, 1)[[0, 1, 2**40]].tolist() == [676224495063, 17095473319, 101268306394]
    assert KeyedPermutation(MAX_LENGTH, 2**64 - 1)[[0, MAX_LENGTH - 1]].tolist() == [
        2711931001593893359,
        772202883733699622,
    ]


@pytest.mark.parametrize("n", EDGES)
def test_every_id_comes_once(n):
    """The order of n rows is a permutation, at the lengths where one bit too few or too many would show."""
    for number in (0, 1, 2**64 - 1):
        assert np.array_equal(np.sort(whole(n, number)), np.arange(n))


@given(lengths, keys)
def test_every_id_comes_once_at_any_length(n, number):
    """And at any other."""
    order = whole(n, number)

    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(KeyedPermutation(n, number).positions(order), np.arange(n))


@given(st.integers(1, MAX_LENGTH), keys, st.lists(st.floats(0, 1, exclude_max=True), max_size=40))
def test_any_part_of_a_huge_order_can_be_computed(n, number, places):
    """Different positions have different ids, all of them inside, and each id leads back to its position."""
    positions = np.array(sorted({min(int(place * n), n - 1) for place in places}), dtype=np.int64)
    order = KeyedPermutation(n, number)

    ids = order[positions]

    assert len(set(ids.tolist())) == len(positions)
    assert all(0 <= i < n for i in ids.tolist())
    assert np.array_equal(order.positions(ids), positions)


@given(st.integers(1, 2**63 - 1), keys, st.lists(st.floats(0, 1, exclude_max=True), max_size=600))
def test_both_kernels_give_the_same_order(n, number, places):
    """The kernel in use means what the reference says: the compiled one, where there is one."""
    positions = np.array([min(int(place * n), n - 1) for place in places], dtype=np.int64)
    for name in ("permute", "unpermute"):
        native, meant = np.empty_like(positions), np.empty_like(positions)

        getattr(kernels, name)(positions, n, number, native)
        getattr(reference, name)(positions, n, number, meant)

        assert np.array_equal(native, meant)


@given(st.integers(0, 50), keys, st.slices(60))
def test_slices_are_those_of_a_list(n, number, part):
    """``order[a:b]`` is that part of the whole, with steps and negative ends too."""
    assert KeyedPermutation(n, number)[part].tolist() == whole(n, number).tolist()[part]


def test_indexing_keeps_the_shape():
    """One position gives an int, an array of positions an array like it, strided or of another integer type."""
    order, all_ids = KeyedPermutation(100, 5), whole(100, 5)
    positions = np.arange(100, dtype=np.uint8).reshape(4, 25).T

    assert np.array_equal(order[positions], all_ids[positions])
    assert order[7] == all_ids[7]
    assert type(order[np.int16(7)]) is int
    assert order[[]].tolist() == []


def test_iteration_is_the_whole_order():
    """By ids or by chunks, whatever their size."""
    order = KeyedPermutation(1_000, 5)

    assert list(order) == order[:].tolist()
    assert [len(chunk) for chunk in order.chunks(300)] == [300, 300, 300, 100]
    assert np.array_equal(np.concatenate(list(order.chunks(300))), order[:])


def test_an_empty_order_is_an_order():
    """No rows, no ids."""
    order = KeyedPermutation(0, 5)

    assert (len(order), list(order), order[:].tolist()) == (0, [], [])
    with pytest.raises(IndexError):
        order[0]


@pytest.mark.parametrize("bad", [-1, 100, 2**62, 2**63 - 1, np.uint64(2**64 - 1)])
def test_positions_outside_are_refused(bad):
    """Nothing is computed for them, forwards or backwards."""
    order = KeyedPermutation(100, 5)
    for ask in (order.__getitem__, order.positions):
        with pytest.raises(IndexError):
            ask(np.array([bad]))


@pytest.mark.parametrize("bad", [1.0, "1", None, [True], [0.0, 1.0], 2**70])
def test_positions_that_are_not_integers_are_refused(bad):
    """No silent cast: 1.9 is no position."""
    with pytest.raises(TypeError, match="positions must be integers"):
        KeyedPermutation(100, 5)[bad]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [((-1, 0), "length"), ((2**62 + 1, 0), "length"), ((1.0, 0), "length"), ((5, -1), "key"), ((5, 2**64), "key")],
)
def test_bad_orders_are_refused(arguments, match):
    """The error names the argument."""
    with pytest.raises(PoolishError, match=match):
        KeyedPermutation(*arguments)
    with pytest.raises(ConfigError, match="size"):
        next(KeyedPermutation(5, 0).chunks(0))


def test_kernels_check_before_they_write():
    """A bad position anywhere leaves the output as it was; an output that is too small is never written past."""
    for kernel in (kernels.permute, reference.permute, kernels.unpermute, reference.unpermute):
        out = np.full(3, 77)
        with pytest.raises(IndexError):
            kernel(np.array([0, 1, 100]), 100, 5, out)
        with pytest.raises((IndexError, ValueError)):
            kernel(np.arange(4), 100, 5, out)
        assert out.tolist() == [77, 77, 77]


# How random the order is: counts over many keys, compared with what chance gives --------------------------------

#: The reference is slow at short orders and gives the same ones, so it need not be asked as often.
N_KEYS = 6_000 if kernels.is_native else 600


def surprise(counts: np.ndarray) -> float:
    """By how many standard deviations chi-square differs from that of equally likely outcomes."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def test_the_measure_sees_a_bias():
    """The tests below can fail: one outcome that is 40 % more likely is seen."""
    counts = np.random.default_rng(0).multinomial(6_000, [1.4 / 24.4, *[1 / 24.4] * 23])

    assert surprise(counts) > 5


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_a_few_rows_is_equally_likely(n):
    """All n! orders come equally often over keys that count up (four rounds of the cipher fail this)."""
    orders = np.array([whole(n, number) for number in range(N_KEYS)])
    codes = orders @ n ** np.arange(n)

    counts = np.unique(codes, return_counts=True)[1]

    assert len(counts) == math.factorial(n)
    assert abs(surprise(counts)) < 5


@pytest.mark.parametrize("n", [20, 64, 100, 1_000])
def test_neighbours_are_unrelated(n):
    """How far apart two neighbouring ids are is as chance has it (six rounds fail this at 64)."""
    orders = np.array([whole(n, number) for number in range(N_KEYS)])
    apart = np.diff(orders, axis=1) % n

    counts = np.bincount(apart.ravel(), minlength=n)[1:]

    assert abs(surprise(counts)) < 6


def test_every_row_comes_anywhere():
    """Each id stands at each position equally often."""
    orders = np.array([whole(20, number) for number in range(N_KEYS)])

    counts = np.array([np.bincount(column, minlength=20) for column in orders.T])

    assert max(abs(surprise(row)) for row in counts) < 5


def test_one_long_order_has_no_trend():
    """Within a single order the first half is not the smaller half, and neighbours do not follow each other."""
    order = whole(200_001, 3).astype(float)

    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.01
    assert abs(order[:100_000].mean() / 100_000 - 1) < 0.01
