"""A filter looks at each row once, no further than it must, and goes on where it stopped."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ResumeError
from poolish.load.cached import CachedDataset
from poolish.load.frozen import ids_of, snapshot_rows
from poolish.load.views.composite import CompositeDataset
from poolish.load.views.filtered import BLOCK, SCAN_ROWS, UNKNOWN, YES, FilteredDataset, PredicateCache
from poolish.load.views.single import TransformedDataset
from tests.effort import times
from tests.load.sources import Rows, buffer, row


class Likes:
    """A predicate that remembers what it was asked, and may be interrupted."""

    version = "likes even numbers"

    def __init__(self, stop_at: int | None = None) -> None:
        self.asked: list[int] = []
        self.stop_at = stop_at

    def __call__(self, sample):
        number = sample["n"] if isinstance(sample, dict) else sample
        if number == self.stop_at:
            self.stop_at = None
            raise KeyboardInterrupt
        self.asked.append(number)
        return number % 2 == 0


def test_looks_no_further_than_it_must():
    """The first row of a long dataset costs one chunk."""
    likes = Likes()
    filtered = FilteredDataset(range(10**9), likes)

    assert filtered[3] == 6
    assert len(likes.asked) == SCAN_ROWS == filtered.n_scanned


def test_views_of_a_filter_look_no_further_either():
    """Row 0 through a transform and a cache costs what it costs below; what is outside is still outside."""
    likes = Likes()
    filtered = FilteredDataset(range(10**6), likes)
    for view in (CachedDataset(TransformedDataset(filtered, abs)), TransformedDataset(filtered, lambda n, rng: n)):
        assert view[1] == 2
        assert view.__getitems__([0, 3]) == [0, 6]
        assert len(likes.asked) == SCAN_ROWS
    for view in (
        CachedDataset(FilteredDataset(range(9), Likes())),
        TransformedDataset(FilteredDataset([], Likes()), abs),
    ):
        with pytest.raises(IndexError):
            view[7]


def test_each_row_is_looked_at_once():
    """By whatever it is asked for, over numbers and over ids."""
    for source in (Rows(50), buffer(50)):
        likes = Likes()
        filtered = FilteredDataset(source, likes)
        for _ in range(2):
            n_rows = len(filtered)
            assert len(list(filtered)) == n_rows == len(snapshot_rows(filtered))
            ids_of(filtered, range(n_rows))

        assert len(likes.asked) == 50


@pytest.mark.parametrize("stop_at", [0, 1, 5, 63, 64, 99])
def test_an_interrupted_scan_goes_on_where_it_stopped(stop_at: int):
    """Ctrl-C anywhere, and nothing is asked twice or left out."""
    likes = Likes(stop_at)
    filtered = FilteredDataset(range(100), likes)
    with pytest.raises(KeyboardInterrupt):
        len(filtered)

    assert list(filtered) == list(range(0, 100, 2))
    assert likes.asked == list(range(100))


@given(st.integers(0, 90), st.integers(0, 40))
def test_a_scan_goes_on_in_another_process(n_first: int, n_more: int):
    """What is known travels as JSON, and the rest is asked there; also when the dataset has grown."""
    filtered = FilteredDataset(range(90), Likes(n_first))
    try:
        len(filtered)
    except KeyboardInterrupt:
        pass
    state = json.loads(json.dumps(filtered.state_dict()))
    likes = Likes()
    resumed = FilteredDataset(range(90 + n_more), likes)

    resumed.load_state_dict(state)

    assert resumed.n_scanned == n_first if n_first < 90 else 90
    assert list(resumed) == list(range(0, 90 + n_more, 2))
    assert likes.asked == list(range(n_first, 90 + n_more))


def test_ids_are_remembered_in_the_state_too():
    """Over a buffer, what is known is known by id."""
    rows = buffer(30)
    filtered = FilteredDataset(rows, Likes())
    expected = [sample["n"] for sample in filtered]
    likes = Likes()
    resumed = FilteredDataset(rows, likes)

    resumed.load_state_dict(filtered.state_dict())

    assert [sample["n"] for sample in resumed] == expected
    assert likes.asked == []


def test_a_state_is_small():
    """A quarter of a byte a row at most, and text."""
    rng = np.random.default_rng(0)
    liked = rng.random(200_000) < 0.5
    filtered = FilteredDataset(range(200_000), lambda n: liked[n])
    n_kept = len(filtered)

    assert n_kept == liked.sum()
    assert len(json.dumps(filtered.state_dict())) < 200_000 / 4


class Versioned(list):
    """A list that says which one it is."""

    version = "second"


def test_a_state_of_an_earlier_poolish_is_refused():
    """It holds the code of the predicate only, not what that used, nor which dataset it was asked about."""
    with pytest.raises(ResumeError, match=r"0\.1\.0.*scan begin anew"):
        FilteredDataset([1], abs).load_state_dict({"version": "", "code": "builtins.abs", "blocks": {}})


def test_states_of_something_else_are_refused():
    """Another predicate, another version, more rows than there are, damage."""
    filtered = FilteredDataset(range(90), Likes())
    len(filtered)
    state = filtered.state_dict()

    for other, match in (
        (FilteredDataset(range(90), lambda n: True), "identity"),
        (FilteredDataset(range(1, 91), Likes()), "identity"),
        (FilteredDataset(range(80), Likes()), "90 rows"),
        (FilteredDataset(TransformedDataset(range(90), abs), Likes()), "identity"),
        (FilteredDataset(Versioned(range(90)), Likes()), "version"),
    ):
        with pytest.raises(ResumeError, match=match):
            other.load_state_dict(state)
    for nonsense in (None, [], 3, {}, {**state, "version": 1}, {**state, "identity": [[]]}):
        with pytest.raises(ResumeError, match="no state of a FilteredDataset"):
            filtered.load_state_dict(nonsense)
    for blocks in (None, {"0": "?"}, {"0": "AAAA"}, {"0": 5}, {"x": state["blocks"]["0"]}, {0: state["blocks"]["0"]}):
        with pytest.raises(ResumeError):
            filtered.load_state_dict({**state, "blocks": blocks})
    assert filtered.n_scanned == 90


def test_new_rows_join_at_the_end():
    """Numbers given before stay: over a list, and over the ids of a buffer."""
    source = [1, 2, 3, 4]
    filtered = FilteredDataset(source, Likes())
    assert list(filtered) == [2, 4]

    source += [5, 6]

    assert len(filtered) == 3
    assert filtered[2] == 6
    rows = buffer(4, holes=False)
    liked = FilteredDataset(rows, Likes())
    before = ids_of(liked, [0, 1])
    rows.append([row(4), row(5)])
    assert ids_of(liked, [0, 1, 2]).tolist() == [*before.tolist(), 4]


def test_rows_that_are_updated_are_looked_at_again():
    """The answer may be another one; what was frozen before keeps the old answer."""
    rows = buffer(4, holes=False)
    filtered = FilteredDataset(rows, Likes())
    before = snapshot_rows(filtered)
    assert len(before) == 2

    rows.update([0, 1], {"n": [7, 8]})

    assert [sample["n"] for sample in filtered] == [8, 2]
    assert before.alive(np.arange(4)).tolist() == [True, False, True, False]
    assert snapshot_rows(filtered).alive(np.arange(4)).tolist() == [False, True, True, False]


def test_an_epoch_that_changes_samples_changes_the_choice():
    """A filter of augmented rows is made anew for each epoch."""
    noisy = TransformedDataset(range(200), lambda n, rng: int(rng.integers(100)))
    filtered = FilteredDataset(noisy, Likes())
    first = list(filtered)

    filtered.set_epoch(1)

    assert all(n % 2 == 0 for n in filtered)
    assert list(filtered) != first


def test_threads_share_one_scan():
    """However many ask, each row is looked at once."""
    for source in (range(2_000), CompositeDataset([range(1_000), range(1_000)])):
        likes = Likes()
        filtered = FilteredDataset(source, likes)
        barrier = threading.Barrier(6)

        def ask(k: int, filtered=filtered, barrier=barrier) -> list[int]:
            barrier.wait()
            return [filtered[i] for i in range(k, 1_000, 7)] + [len(filtered)]

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, range(6)))

        assert len(likes.asked) == 2_000
        expected = [n for n in source if n % 2 == 0]
        assert answers == [[*expected[k::7], 1_000] for k in range(6)]


@given(st.dictionaries(st.integers(0, 2**60), st.booleans(), max_size=30))
def test_verdicts_are_a_dict(model: dict[int, bool]):
    """Whatever ids there are, and through a state."""
    verdicts = PredicateCache()
    for id_, verdict in model.items():
        verdicts.put(id_, verdict)

    for known in (verdicts, PredicateCache.of_state(verdicts.state())):
        ids = np.array([*model, 2**61], np.int64)
        assert known.get(ids).tolist() == [1 + verdict for verdict in model.values()] + [UNKNOWN]
    assert PredicateCache().n_known() == 0


def test_known_ids_are_counted_over_blocks():
    """Up to the first gap."""
    verdicts = PredicateCache()
    for id_ in range(BLOCK + 3):
        verdicts.put(id_, True)
    verdicts.put(BLOCK + 4, True)

    assert verdicts.n_known() == BLOCK + 3
    assert verdicts.get(np.array([BLOCK - 1, BLOCK])).tolist() == [YES, YES]


def test_reading_while_another_thread_scans():
    """One thread filters rows that were appended, others freeze, read and load what is known: nobody is disturbed."""
    source = list(range(60_000))  # enough that NumPy lets other threads run while it copies
    even = FilteredDataset(source, lambda n: n % 2 == 0)
    errors, is_over = [], threading.Event()

    def read():
        try:
            while not is_over.is_set():
                rows = even.snapshot_rows()
                assert rows.fetch(np.arange(3)) == [0, 2, 4]
                assert even[1] == 2
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(times(60)):
        source.extend(range(len(source), len(source) + 130))
        assert len(even) == len(source) // 2
    is_over.set()
    for thread in threads:
        thread.join()

    assert not errors
    assert list(even) == list(range(0, len(source), 2))
