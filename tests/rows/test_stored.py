"""Rows as they lie in memory: thinned like a list, moved when most are dead, and never changed under a snapshot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.rows import columns, storage
from poolish.rows.snapshot import Snapshot
from poolish.rows.storage import StoredRows
from poolish.schema import Schema
from tests.rows.facts import plain
from tests.rows.kinds import listed

pytestmark = pytest.mark.kernels

SCHEMA = Schema.of({"key": "int64", "text": "string"})


def arrays(first: int, n: int) -> list[pa.Array]:
    keys = range(first, first + n)
    return [pa.array(keys, pa.int64()), pa.array([f"row {key}" for key in keys], pa.large_string())]


def stored_rows(n: int = 10) -> StoredRows:
    return StoredRows.empty(SCHEMA).extended([arrays(0, n)])


def keys(rows: StoredRows | Snapshot) -> list[int]:
    """The keys of the rows, checked against their texts and their number."""
    view = rows.view("") if isinstance(rows, StoredRows) else rows
    columns = view.to_pydict()
    assert columns["text"] == [f"row {key}" for key in columns["key"]]
    assert len(columns["key"]) == len(rows) == len(view.ids)
    return columns["key"]


def addresses(snapshot: Snapshot) -> list[int]:
    stored = snapshot.stored_columns().values()
    return [buffer.address for array in stored for buffer in array.buffers() if buffer is not None]


@pytest.fixture
def tidy(monkeypatch):
    """Rows move as soon as the dead are many, not only when they are a thousand."""
    monkeypatch.setattr(storage, "MIN_DEAD", 0)


# Thinning -----------------------------------------------------------------------------------------------------

numbers = st.lists(st.integers(0, 200), max_size=15)
steps = st.lists(
    st.tuples(st.just("extend"), st.integers(0, 30))
    | st.tuples(st.just("keep the last"), st.floats(0, 1))
    | st.tuples(st.just("keep the first"), st.floats(0, 1))
    | st.tuples(st.just("keep some"), numbers)
    | st.tuples(st.just("drop the first"), st.floats(0, 1))
    | st.tuples(st.just("drop some"), numbers)
    | st.tuples(st.just("look"), st.none()),
    max_size=14,
)


@given(steps, st.sampled_from([0, 5, 1024]), st.sampled_from([1, 3, 2048]))
def test_thinning_is_that_of_a_list(steps, min_dead, move_rows):
    """Ranges and scattered rows, kept or dropped, before and after the rows have moved; snapshots stay as they were."""
    rows, expected, next_key, looks = StoredRows.empty(SCHEMA), [], 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "MIN_DEAD", min_dead)
        patch.setattr(columns, "CHOSEN_ROWS", move_rows)
        for step, argument in steps:
            n = len(expected)
            some = sorted({number % n for number in argument}) if isinstance(argument, list) and n else []
            size = int(argument * n) if isinstance(argument, float) else 0
            if step == "extend":
                rows = rows.extended(
                    [arrays(next_key, argument // 2), arrays(next_key + argument // 2, argument - argument // 2)]
                )
                expected = [*expected, *range(next_key, next_key + argument)]
                next_key += argument
            elif step == "keep the last":
                rows = rows.keeping(range(n - size, n), n)
                expected = expected[n - size :]
            elif step == "keep the first":
                rows = rows.keeping(range(size), n)
                expected = expected[:size]
            elif step == "keep some":
                rows = rows.keeping(np.array(some, np.int64), n)
                expected = [expected[number] for number in some]
            elif step == "drop the first":
                rows = rows.dropping(range(size))
                expected = expected[size:]
            elif step == "drop some":
                rows = rows.dropping(np.array(some, np.int64))
                expected = [key for number, key in enumerate(expected) if number not in some]
            else:
                looks.append((rows.view(""), expected))
            assert len(rows) == len(expected)
    assert keys(rows) == expected
    assert rows.view("").ids.tolist() == expected
    assert all(keys(snapshot) == before for snapshot, before in looks)


def test_the_young_stay_when_the_old_are_thinned():
    """``keep`` decides about the prior rows alone."""
    rows = stored_rows(10)

    rows = rows.keeping(np.array([1, 3]), 4)

    assert keys(rows) == [1, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("kept", [range(0), range(3, 3), np.empty(0, np.int64)])
def test_none_may_be_kept(kept):
    """All prior rows go, and the buffer goes on."""
    rows = stored_rows(10)

    rows = rows.keeping(kept, 10)
    rows = rows.extended([arrays(10, 2)])

    assert keys(rows) == [10, 11]


def test_eviction_counts_rows_one_by_one():
    """In one portion or in many, the same rows are driven out, and never more than there may be."""
    whole, parts = stored_rows(5), stored_rows(5)
    whole = whole.extended([arrays(5, 30)], one_by_one=True)
    whole = whole.evicted_one_by_one(30, 8, key=99)
    for first in range(5, 35, 3):
        parts = parts.extended([arrays(first, 3)], one_by_one=True)
        parts = parts.evicted_one_by_one(3, 8, key=99)

    assert keys(whole) == keys(parts)
    assert len(whole) == 8


# Moving -------------------------------------------------------------------------------------------------------


def test_rows_move_when_most_are_dead(monkeypatch):
    """Not before: each row that leaves pays for moving a bounded number of others."""
    monkeypatch.setattr(storage, "MIN_DEAD", 10)
    rows, moves = stored_rows(1_000), 0
    n_dropped = 0
    while len(rows) > 100:
        before = rows.columns["key"]
        rows = rows.dropping(np.array([5]))
        n_dropped += 1
        moves += rows.columns["key"] is not before

    assert keys(rows) == [0, 1, 2, 3, 4, *range(905, 1_000)]
    assert 1 <= moves <= 8
    assert rows.end < 2 * len(rows)


def test_few_dead_rows_are_left_where_they_are(monkeypatch):
    """Below the least number that is worth it nothing moves."""
    monkeypatch.setattr(storage, "MIN_DEAD", 1024)
    rows = stored_rows(1_000)
    column = rows.columns["key"]

    rows = rows.keeping(range(995, 1_000), 1_000)

    assert rows.columns["key"] is column
    assert keys(rows) == [995, 996, 997, 998, 999]


def test_a_few_large_rows_that_left_make_room():
    """What counts is memory too: ten rows of a megabyte do not stay because they are only ten."""
    rows = StoredRows.empty(SCHEMA)
    rows = rows.extended([[pa.array(range(10)), pa.array(["x" * 1_000_000] * 10, pa.large_string())]])
    rows = rows.extended([arrays(10, 50)])

    rows = rows.dropping(range(10))

    assert rows.n_bytes < 10_000
    assert keys(rows) == list(range(10, 60))


def test_no_room_to_move_is_no_reason_to_keep_rows(tidy, monkeypatch):
    """Thinning needs no new memory: without it the rows stay where they are, and the next change tries again."""
    rows = stored_rows(100)
    with monkeypatch.context() as patch:
        patch.setattr(columns, "_allocate", no_memory)
        rows = rows.keeping(np.arange(0, 100, 10), 100)
        assert rows.end == 100

    assert keys(rows) == list(range(0, 100, 10))
    rows = rows.dropping(range(1))
    assert rows.end == 9
    assert keys(rows) == list(range(10, 100, 10))


def no_memory(n_bytes: int) -> None:
    raise MemoryError(n_bytes)


@pytest.mark.parametrize("thin", ["window", "tombstones"])
def test_a_view_stays_valid_when_the_rows_move(tidy, thin):
    """By address and by content: the old memory lives as long as somebody looks at it."""
    rows = stored_rows(1_000)
    rows = rows.dropping(range(3) if thin == "window" else np.array([0, 1, 2]))
    before = rows.view("")
    shown, places = keys(before), addresses(before)

    rows = rows.keeping(range(900, 997) if thin == "window" else np.arange(900, 997), 997)
    rows = rows.extended([arrays(1_000, 5_000)])

    assert addresses(rows.view("")) != places
    assert addresses(before) == places
    assert keys(before) == shown == list(range(3, 1_000))


def test_a_view_stays_valid_when_rows_are_added():
    """Many times over, at its address, with the rows it had."""
    rows = stored_rows(10)
    views = []
    for first in range(10, 20_000, 999):
        views.append((rows.view(""), addresses(rows.view("")), keys(rows)))
        rows = rows.extended([arrays(first, 999)])

    for view, places, shown in views:
        assert addresses(view) == places
        assert keys(view) == shown


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(0, 40), st.booleans())
def test_generations_survive_moving(sizes, n_gone, is_random):
    """The generations told are those of the appends whose last row is not older than the oldest row left."""
    rows, starts = StoredRows.empty(SCHEMA), []
    for size in sizes:
        starts.append(rows.next_id)
        rows = rows.extended([arrays(rows.next_id, size)])
    n = len(rows)
    n_gone = min(n_gone, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "MIN_DEAD", 0)
        rows = rows.dropping(np.arange(n_gone) if is_random else range(n_gone))

    ends = [*starts[1:], n]
    expected = [(first, last) for first, last in zip(starts, ends, strict=True) if last > n_gone]
    assert rows.view("").generations == expected


# Not publishing ------------------------------------------------------------------------------------------------------


def everything(rows: StoredRows) -> dict[str, Any]:
    view = rows.view("")
    return {
        "rows": plain(listed(view.to_pydict())),
        "ids": view.ids.tolist(),
        "next": rows.next_id,
        "g": view.generations,
    }


CHANGES = {
    "extend": lambda rows: rows.extended([arrays(100, 50)]),
    "extend singly": lambda rows: rows.extended([arrays(100, 50)], one_by_one=True),
    "keep a range": lambda rows: rows.keeping(range(2, 5), 9),
    "keep some": lambda rows: rows.keeping(np.array([1, 5]), 9),
    "drop all": lambda rows: rows.dropping(range(9)),
    "evict": lambda rows: rows.extended([arrays(100, 5)]).evicted_one_by_one(5, 6, 3),
    "retype": lambda rows: rows.retyped(Schema.of({"key": "float64", "text": "string"})),
    "replace text": lambda rows: replaced(rows, [1], [0], {"text": pa.array(["x"], pa.large_string())}),
}


def replaced(rows: StoredRows, numbers: list[int], which: list[int], values: dict[str, pa.Array]) -> StoredRows:
    """The rows with other values, all of them written."""
    after, patches = rows.replacing(np.array(numbers), np.array(which), values)
    for patch in patches:
        patch.write()
    return after


@pytest.mark.parametrize("first", CHANGES)
@pytest.mark.parametrize("then", CHANGES)
@pytest.mark.usefixtures("tidy")
def test_changes_that_were_not_published_leave_no_trace(first, then):
    """Two changes are made and dropped, whatever they wrote or moved, and the rows go on as if they had never been."""
    rows, twin = stored_rows(10).dropping(np.array([4])), stored_rows(10).dropping(np.array([4]))
    before = everything(rows)

    changed = CHANGES[first](rows)
    if len(changed) >= 9 or not then.startswith(("keep", "drop", "replace")):
        CHANGES[then](changed)

    assert everything(rows) == before
    rows, twin = (each.keeping(np.array([0, 8]), 9).extended([arrays(50, 3)]) for each in (rows, twin))
    assert everything(rows) == everything(twin)


@pytest.mark.parametrize("is_thinned", [True, False])
def test_ids_cannot_be_written(is_thinned):
    """They are the buffer's own, and other snapshots share them."""
    rows = stored_rows(10)
    rows = rows.dropping(np.array([4] if is_thinned else [], np.int64))

    with pytest.raises(ValueError, match="read-only"):
        rows.view("").ids[0] = 7


# Changing values ----------------------------------------------------------------------------------------------


def test_numbers_are_written_where_they_are():
    """Nobody looks, so nothing is copied."""
    rows = stored_rows(1_000)
    place = addresses(rows.view(""))[0]

    rows = replaced(rows, [5, 7], [1, 0], {"key": pa.array([70, 50])})

    view = rows.view("")
    assert addresses(view)[0] == place
    assert view.to_pydict()["key"] == [*range(5), 50, 6, 70, *range(8, 1_000)]


def test_a_snapshot_never_sees_an_update():
    """While it lives the values are written into a copy; afterwards in place again."""
    rows = stored_rows(100)
    before = rows.view("")
    places, shown = addresses(before), before.to_pydict()

    rows = replaced(rows, [5], [0], {"key": pa.array([-5]), "text": pa.array(["new"], pa.large_string())})

    assert addresses(before) == places
    assert before.to_pydict() == shown
    assert (rows.view("").to_pydict()["key"][5], rows.view("").to_pydict()["text"][5]) == (-5, "new")
    place = addresses(rows.view(""))[0]
    rows = replaced(rows, [6], [0], {"key": pa.array([-6])})
    assert addresses(rows.view(""))[0] == place


def test_types_settle_for_rows_that_are_there():
    """Nulls and empty lists take the type that comes later; the rows already there stay null and empty."""
    rows = StoredRows.empty(Schema.of({"a": "null", "b": pa.large_list(pa.null())}))
    rows = rows.extended([[pa.nulls(2), pa.array([[], [None]], pa.large_list(pa.null()))]])
    before = rows.view("")

    rows = rows.retyped(Schema.of({"a": "int64", "b": pa.large_list(pa.large_string())}))
    rows = rows.extended([[pa.array([7]), pa.array([["x"]], pa.large_list(pa.large_string()))]])

    assert rows.view("").to_pydict() == {"a": [None, None, 7], "b": [[], [None], ["x"]]}
    assert before.to_pydict() == {"a": [None, None], "b": [[], [None]]}
