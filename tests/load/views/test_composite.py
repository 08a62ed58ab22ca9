"""Concatenations are found, mixtures are computed: proportions in every beginning, nothing twice."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.load.frozen import ids_of, snapshot_rows
from poolish.load.views.composite import CompositeDataset, Mixture, n_mixed, whole_weights
from tests.load.sources import Rows, buffer, row

weights_of = st.lists(
    st.one_of(st.integers(1, 60), st.floats(0.01, 5).map(lambda w: round(w, 3))), min_size=1, max_size=8
)


# The order of a mixture -----------------------------------------------------------------------------------------


@given(weights_of)
def test_rows_come_when_they_are_due(weights: list[float]):
    """The computed order is the sorted one, and each row's position is where it stands."""
    mixture, whole = Mixture(weights), whole_weights(weights)
    n_each = 40
    due = sorted((Fraction(2 * j + 1, w), k, j) for k, w in enumerate(whole) for j in range(n_each))
    end = min(Fraction(2 * n_each + 1, w) for w in whole)
    expected = [(k, j) for moment, k, j in due if moment < end]

    assert [mixture.place(n) for n in range(len(expected))] == expected
    assert [mixture.position(k, j) for k, j in expected] == list(range(len(expected)))


@given(weights_of, st.integers(0, 10**15))
def test_every_beginning_has_the_proportions(weights: list[float], n: int):
    """No two parts could both come closer to their shares; with up to three parts nobody is a whole row off."""
    whole = whole_weights(weights)
    part, row_ = Mixture(weights).place(n)
    # Counts of the first n places: how many rows of each part are due before this one.
    mixture = Mixture(weights)
    counts = [0] * len(whole)
    for k in range(len(whole)):
        low, high = 0, n + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if mixture.position(k, middle) < n else (low, middle)
        counts[k] = low
    shares = [Fraction(n * w, sum(whole)) for w in whole]

    assert sum(counts) == n
    assert counts[part] == row_
    off = [count - share for count, share in zip(counts, shares, strict=True)]
    gives, takes = max(off), min(off)
    assert not (gives > Fraction(1, 2) and takes < -Fraction(1, 2))
    if len(whole) <= 3:
        assert max(map(abs, off)) < 1


def test_mixtures_are_pinned():
    """The same order in every release."""
    assert "".join("abc"[Mixture([0.6, 0.3, 0.1]).place(n)[0]] for n in range(20)) == "abaabcaabaabaabcaaba"
    assert whole_weights([0.1, 0.2, np.float32(0.5)]) == [1, 2, 5]
    assert whole_weights([1 / 3, 2 / 3]) == [1, 2]


# The dataset ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.data())
def test_a_pass_repeats_nothing(lengths: list[int], data: st.DataObject):
    """It ends when a part would have to repeat; before that, no row comes twice."""
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths)))
    mixed = CompositeDataset([[(k, j) for j in range(n)] for k, n in enumerate(lengths)], weights, seed=3)
    rows = list(mixed)

    assert len(rows) == len(set(rows)) == len(mixed)
    part, nth = Mixture(weights).place(len(rows))
    assert nth == lengths[part]  # the next place asks for a row that is not there
    assert rows == mixed.__getitems__(range(len(rows))) == snapshot_rows(mixed).fetch(np.arange(len(rows)))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.data())
def test_stopping_at_all_brings_every_row(lengths: list[int], data: st.DataObject):
    """Smaller parts repeat, evenly: a row comes again only when all of its part have come as often."""
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths)))
    mixed = CompositeDataset([[(k, j) for j in range(n)] for k, n in enumerate(lengths)], weights, stop="all")
    counts = Counter(mixed)

    for k, n in enumerate(lengths):
        times = [counts[k, j] for j in range(n)]
        assert 1 <= min(times) <= max(times) <= min(times) + 1
    assert "smaller parts repeat" in repr(mixed)


def test_what_one_epoch_leaves_out_another_brings():
    """The larger part is cut, but not always at the same rows."""
    mixed = CompositeDataset([range(30), "ab"], weights=[1, 1])
    seen = set()
    for epoch in range(200):
        mixed.set_epoch(epoch)
        seen.update(mixed)

    assert seen == {*range(30), *"ab"}


def test_lengths_of_mixtures():
    """Ends where the first part is used up, or where the last one is."""
    assert n_mixed(Mixture([1, 3]), [10, 1000], "first") == 41
    assert n_mixed(Mixture([1, 3]), [10, 1000], "all") == 1333
    assert len(CompositeDataset([[], [1]], weights=[1, 1])) == 0


def test_a_part_that_grows_is_seen():
    """A composite asks its parts how long they are when it is asked itself, or asked for more than it knows."""
    rows = buffer(3, holes=False)
    joined = CompositeDataset([["first"], rows])
    assert len(joined) == 4

    rows.append(row(3))

    assert joined[4]["n"] == 3
    assert joined[-1]["n"] == 3
    assert len(joined) == 5


def test_each_part_is_asked_once_for_a_batch():
    """However mixed the rows of a batch are."""

    class Asked(Rows):
        batches = 0

        def __getitems__(self, indices):
            self.batches += 1
            return super().__getitems__(indices)

    parts = [Asked(10), Asked(10)]
    batch = CompositeDataset(parts).__getitems__([0, 15, 3, 19, -1])

    assert [sample["n"] for sample in batch] == [0, 5, 3, 9, 9]
    assert [part.batches for part in parts] == [1, 1]


# Ids ------------------------------------------------------------------------------------------------------------


def test_ids_say_which_part():
    """The part above, the row's own id below; also of composites in composites, which keep them apart."""
    rows = buffer(4)
    inner = CompositeDataset([rows, Rows(2)])
    outer = CompositeDataset([Rows(3), inner])

    ids = ids_of(outer, range(len(outer)))

    assert (ids >> 48).tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert (ids & (2**48 - 1)).tolist() == [0, 1, 2, *rows.ids.tolist(), 0, 1]
    assert [sample["n"] for sample in snapshot_rows(outer).fetch(ids[::-1])] == [sample["n"] for sample in outer][::-1]


def test_rows_that_leave_a_part_are_dead_by_their_ids():
    """And new ones are at the end of their own part's span."""
    rows = buffer(4, holes=False)
    joined = CompositeDataset([rows, ["last"]])
    ids = ids_of(joined, range(5))

    rows.append([row(4), row(5)], retain_prior=0.5)
    frozen = snapshot_rows(joined)

    assert frozen.alive(ids).tolist() == [False, False, True, True, True]
    assert frozen.spans() == [(2, 6), (2**48, 2**48 + 1)]
    assert frozen.fetch(ids[4:]) == ["last"]


def test_tables_of_equal_parts_are_joined():
    """So a loader can read columns; parts without columns, or with others, are read as samples."""
    a, b = buffer(3, holes=False), buffer(4, holes=False)
    frozen = snapshot_rows(CompositeDataset([a, b]))
    ids = np.array([2**48 + 3, 0, 2**48, 2])

    assert frozen.table(ids)["n"].to_pylist() == [3, 0, 0, 2]
    assert snapshot_rows(CompositeDataset([a, Rows(2)])).table(np.array([0, 2**48])) is None


def test_too_many_spans_are_refused():
    """The upper bits of an id can name so many parts and no more."""
    with pytest.raises(ValueError, match="the most is 32,768"):
        snapshot_rows(CompositeDataset([[0]] * 32_769))


# Which dataset a row is from ------------------------------------------------------------------------------------


def textbook(datasets, global_index: int) -> tuple[int, int]:
    """As the fourth seed prints it."""
    for i, dataset in enumerate(datasets):
        if global_index < len(dataset):
            return i, global_index
        global_index -= len(dataset)
    raise IndexError("Index out of range")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_a_global_index_is_a_dataset_and_a_local_index(lengths: list[int]):
    """As in the textbook, also from the end and past empty parts; and back again."""
    parts = [range(100 * k, 100 * k + n) for k, n in enumerate(lengths)]
    joined = CompositeDataset(parts)
    n_rows = sum(lengths)
    expected = [textbook(parts, number) for number in range(n_rows)]

    assert [joined.global_to_local(number) for number in range(n_rows)] == expected
    assert [joined.global_to_local(number - n_rows) for number in range(n_rows)] == expected
    assert [joined.local_to_global(*place) for place in expected] == list(range(n_rows))
    datasets, rows = joined.global_to_local(np.arange(n_rows))
    assert list(zip(datasets.tolist(), rows.tolist(), strict=True)) == expected
    assert joined.local_to_global(datasets, rows).tolist() == list(range(n_rows))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from(["first", "all"]), st.integers(0, 3))
def test_the_places_of_a_mixture_are_found_too(lengths: list[int], stop: str, epoch: int):
    """They are the rows that reading gives; back again is the first place, and a row left out is an error."""
    parts = [[(k, n) for n in range(m)] for k, m in enumerate(lengths)]
    mixed = CompositeDataset(parts, weights=range(1, len(lengths) + 1), stop=stop)
    mixed.set_epoch(epoch)
    rows = list(mixed)

    assert [mixed.global_to_local(number) for number in range(len(rows))] == rows
    assert [mixed.local_to_global(*place) for place in rows] == [rows.index(place) for place in rows]
    for place in {place for part in parts for place in part} - set(rows):
        with pytest.raises(IndexError, match=r"does not come in epoch .* stop=\"all\""):
            mixed.local_to_global(*place)


def test_arrays_of_places_keep_their_shape():
    """Scalars give ints; arrays broadcast; none give none."""
    joined = CompositeDataset(["abc", "de"])

    datasets, rows = joined.global_to_local(np.array([[0, 3], [-1, 2]]))
    one = joined.global_to_local(np.int64(4))

    assert (datasets.tolist(), rows.tolist()) == ([[0, 1], [1, 0]], [[0, 0], [1, 2]])
    assert (one, type(one[0]), type(joined.local_to_global(np.int64(1), 0))) == ((1, 1), int, int)
    assert joined.local_to_global([[0], [-1]], [0, -1]).tolist() == [[0, 2], [3, 4]]
    assert [part.shape for part in joined.global_to_local([])] == [(0,), (0,)]


def test_a_part_that_has_grown_is_found():
    """Rows that came at the end have numbers as soon as they are asked for."""
    rows = [1, 2]
    joined = CompositeDataset(["ab", rows])
    assert joined.local_to_global(1, 1) == 3

    rows.append(3)

    assert joined.local_to_global(1, 2) == 4
    assert joined.global_to_local(4) == (1, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda joined: joined.global_to_local(5), IndexError, "row 5 of 5 rows"),
        (lambda joined: joined.global_to_local([0, -6]), IndexError, "row -6 of 5 rows"),
        (lambda joined: joined.global_to_local(1.0), TypeError, "index is a whole number"),
        (lambda joined: joined.local_to_global(2, 0), IndexError, "dataset_id 2 of 2 datasets"),
        (lambda joined: joined.local_to_global(1, 2), IndexError, r"datasets\[1\]: row 2 of 2 rows"),
        (lambda joined: joined.local_to_global(0, "a"), TypeError, "local_index is a whole number"),
    ],
)
def test_places_outside_are_errors(call, error, message):
    """They name the index, the dataset and its length."""
    with pytest.raises(error, match=message):
        call(CompositeDataset(["abc", "de"]))
