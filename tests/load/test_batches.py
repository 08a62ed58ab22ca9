"""Batches of row numbers: sequential, shuffled, and with each class in proportion."""

from __future__ import annotations

import pickle
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError
from poolish.load.batching import RandomBatches, SequentialBatches, StratifiedBatches

sizes = st.integers(1, 40)
#: Where a length that is off by one shows: none, fewer than a batch, and around powers of two.
LENGTHS = [0, 1, 2, 3, 4, 5, 31, 32, 33, 64, 65, 257]


def stratified(n: int, batch_size: int, seed: int = 0) -> StratifiedBatches:
    return StratifiedBatches(np.arange(n) % 5, batch_size, seed)


KINDS = [SequentialBatches, RandomBatches, stratified]


def listed(batches) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


# What all kinds promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 4, 7, 300])
def test_every_row_comes_once(kind, batch_size):
    """An epoch is a permutation of the rows, in full batches and one rest."""
    for n in LENGTHS:
        batches = kind(n, batch_size)

        rows = listed(batches)

        rest = [n % batch_size] * bool(n % batch_size)
        assert sorted(row for batch in rows for row in batch) == list(range(n))
        assert [len(batch) for batch in rows] == [batch_size] * (n // batch_size) + rest
        assert len(rows) == len(batches)


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(0, 300), batch_size=sizes, epoch=st.integers(0, 10**6))
def test_any_batch_can_be_asked_for_at_any_time(kind, n, batch_size, epoch):
    """By number, backwards or in another process it is what the iteration gives."""
    batches = kind(n, batch_size)
    batches.set_epoch(epoch)

    rows = listed(batches)

    assert [batches[k].tolist() for k in reversed(range(len(batches)))] == rows[::-1]
    assert [batches[k - len(rows)].tolist() for k in range(len(rows))] == rows
    assert listed(pickle.loads(pickle.dumps(batches))) == rows


@pytest.mark.parametrize("kind", KINDS)
def test_row_numbers_are_int64(kind):
    """Whatever the length, and also where there are none."""
    assert {rows.dtype for n in (3, 20) for rows in kind(n, 4)} == {np.dtype(np.int64)}


@pytest.mark.parametrize("kind", [RandomBatches, stratified])
def test_each_epoch_and_each_seed_has_an_order_of_its_own(kind):
    """And going back to an epoch gives its batches again."""
    orders = []
    for seed in (0, 1):
        batches = kind(100, 10, seed)
        for epoch in (0, 1, 0):
            batches.set_epoch(epoch)
            orders.append(str(listed(batches)))

    assert [orders[0], orders[3]] == [orders[2], orders[5]]
    assert len(set(orders)) == 4


def test_an_iteration_keeps_its_epoch():
    """set_epoch in the middle is about the next one."""
    batches = RandomBatches(100, 10)
    expected = listed(batches)

    rest = iter(batches)
    first = next(rest)
    batches.set_epoch(1)

    assert [first.tolist(), *listed(rest)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_batches_outside_are_refused(kind):
    """The error names the number and how many there are."""
    for k in (-4, 3, 10**20):
        with pytest.raises(IndexError, match=f"batch {k} of 3"):
            kind(11, 4)[k]
    for k in (1.0, None, slice(2), "1"):
        with pytest.raises(TypeError, match="whole numbers"):
            kind(11, 4)[k]


@pytest.mark.parametrize("kind", [SequentialBatches, RandomBatches])
def test_drop_last_leaves_out_the_short_batch(kind):
    """And nothing else."""
    for n in LENGTHS:
        kept = listed(kind(n, 4, drop_last=True))

        assert kept == [batch for batch in listed(kind(n, 4)) if len(batch) == 4]


def test_anything_with_a_length_can_be_counted():
    """A dataset is as good as its length."""
    assert listed(SequentialBatches(["a", "b", "c"], 2)) == [[0, 1], [2]]
    assert RandomBatches(range(10**12), 256).n == 10**12


def test_reprs_tell_what_there_is():
    """How many, of which size, and what the last one has."""
    random = RandomBatches(1_000_001, 4)
    random.set_epoch(3)

    assert repr(random) == "<RandomBatches: 250,001 of 4 rows, 1 in the last, epoch 3>"
    assert repr(SequentialBatches(9, 4, drop_last=True)) == "<SequentialBatches: 2 of 4 rows, epoch 0>"
    assert repr(SequentialBatches(0, 4)) == "<SequentialBatches: 0 of 4 rows, epoch 0>"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: SequentialBatches(-1, 4), "number of rows"),
        (lambda: SequentialBatches(3.0, 4), "number of rows, must be a whole number from 0 up, got float 3.0"),
        (lambda: SequentialBatches(3, 0), "batch_size"),
        (lambda: SequentialBatches(3, True), "batch_size"),
        (lambda: RandomBatches(3, 4, seed=-1), "seed"),
        (lambda: RandomBatches(3, 4).set_epoch(-1), "epoch"),
        (lambda: StratifiedBatches([0, 1], None), "batch_size"),
        (lambda: StratifiedBatches(np.zeros((2, 2)), 1), r"shape \(2, 2\)"),
        (lambda: StratifiedBatches(np.array([0, np.nan]), 1), "NaN"),
        (lambda: StratifiedBatches([0, float("nan")], 1), "NaN"),
    ],
)
def test_bad_settings_are_refused(make, match):
    """The error names the setting, the rule and the value."""
    with pytest.raises(ConfigError, match=match):
        make()


# Each kind for itself -------------------------------------------------------------------------------------------


@pytest.mark.kernels
def test_orders_are_pinned():
    """The same batches in every release: changing these values is a decision."""
    random = RandomBatches(10, 4, seed=7)
    huge = RandomBatches(2**40 + 1, 3, seed=7)
    mixed = StratifiedBatches(["b", "a", "b", "c", "b", "a", "b", "b", "a", "b"], 4, seed=7)

    assert listed(random) == [[1, 3, 9, 6], [5, 2, 7, 0], [8, 4]]
    assert [huge[0].tolist(), huge[-1].tolist()] == [
        [875596624802, 524181300074, 708058922988],
        [124765344350, 595093802658],
    ]
    assert listed(mixed) == [[2, 7, 9, 1], [3, 5, 0, 4], [6, 8]]
    for batches in (random, mixed):
        batches.set_epoch(1)
    assert [random[0].tolist(), mixed[0].tolist()] == [[3, 8, 2, 1], [7, 4, 8, 9]]


def test_sequential_batches_keep_the_order():
    """In every epoch."""
    batches = SequentialBatches(10, 4)
    batches.set_epoch(5)

    assert listed(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@given(st.lists(st.integers(0, 12), max_size=120), sizes, st.integers(0, 9))
def test_every_batch_has_each_class_in_proportion(labels, batch_size, epoch):
    """Rounded up or down, in each batch and in each run of batches from the start."""
    batches = StratifiedBatches(labels, batch_size)
    batches.set_epoch(epoch)
    shares = {label: count / len(labels) for label, count in Counter(labels).items()}

    so_far: Counter[int] = Counter()
    for rows in batches:
        batch = Counter(labels[row] for row in rows)
        so_far += batch
        for counted, n_rows in ((batch, len(rows)), (so_far, so_far.total())):
            assert all(abs(counted[label] - share * n_rows) < 1 for label, share in shares.items())


def test_more_classes_than_places():
    """Each class has its turn once before any has it twice."""
    labels = [f"class {i}" for i in range(50)] * 4
    rows = np.concatenate(list(StratifiedBatches(labels, 5)))

    turns = [labels[row] for row in rows]

    assert all(len(set(turns[start : start + 50])) == 50 for start in range(0, 200, 50))


def test_rows_are_shuffled_within_their_class_and_their_batch():
    """Neither the rows of a class nor the classes of a batch come in order."""
    labels = np.arange(1_000) // 500
    batches = StratifiedBatches(labels, 100)

    assert abs(np.corrcoef(np.concatenate(list(batches)) % 500, np.arange(1_000))[0, 1]) < 0.2
    assert not any((np.diff(labels[rows]) >= 0).all() for rows in batches)


@given(st.lists(st.sampled_from(["red", "green", "blue", "grün"]), max_size=60), sizes)
def test_labels_mean_the_same_in_every_form(labels, batch_size):
    """As a list, an array of text, an array of objects, or numbers that stand for the names."""
    numbers = [["red", "green", "blue", "grün"].index(label) for label in labels]
    forms = [np.array(labels, dtype="U8"), np.array(labels, dtype=object), iter(labels), numbers, np.array(numbers)]

    expected = listed(StratifiedBatches(labels, batch_size))

    assert all(listed(StratifiedBatches(form, batch_size)) == expected for form in forms)


def test_labels_that_print_alike_are_different():
    """1 and "1" are two classes; an array of both would make them one."""
    batches = StratifiedBatches([1, "1"] * 10, 2)

    assert all(sorted(rows % 2) == [0, 1] for rows in batches)


def test_a_billion_rows_cost_what_one_batch_costs():
    """Printed, not judged: the time of one batch far into a long order."""
    batches = RandomBatches(10**12, 256)
    start = time.perf_counter()

    rows = [batches[k] for k in range(10**9, 10**9 + 200)]

    print(f"{(time.perf_counter() - start) / 200 * 1e6:.1f} us for 256 rows of 10^12")
    assert len(np.unique(np.concatenate(rows))) == 200 * 256
