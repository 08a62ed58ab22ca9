"""Columns that grow: whatever is appended in whatever pieces is there in one piece, and views of it never change."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.rows import columns
from poolish.rows.columns import GrowableColumn, column_of
from tests.rows.facts import plain
from tests.rows.kinds import KINDS, array_of, arrow_of, cell_of, listed_array

pytestmark = pytest.mark.kernels

kinds = st.sampled_from(sorted(KINDS))
spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=6)
each_kind = pytest.mark.parametrize("kind", sorted(KINDS))


def values(array: pa.Array) -> list:
    array.validate(full=True)
    return plain(listed_array(array))


def new_column(kind: str) -> GrowableColumn:
    return column_of(KINDS[kind].field(kind).type)


def addresses(array: pa.Array) -> list[int]:
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    return [buffer.address for buffer in storage.buffers() if buffer is not None and buffer.size]


@given(kinds, st.sampled_from([0.0, 0.2, 1.0]), spans)
def test_pieces_become_one(kind, nulls, spans):
    """Slices with offsets, empty ones, with and without nulls: the column is their concatenation."""
    column, source, expected = new_column(kind), array_of(kind, 30, nulls), []
    for first, last in spans:
        column.extend(source.slice(first, last - first))
        expected += listed_array(source)[first:last]

    assert column.length == len(expected)
    assert values(column.view(0, column.length)) == plain(expected)


@given(kinds, st.sampled_from([0.0, 0.2, 1.0]), st.lists(st.lists(st.integers(0, 24), max_size=12), max_size=4))
def test_chosen_rows(kind, nulls, choices):
    """Rows in any order, some of them twice, of a slice whose memory begins elsewhere, between whole arrays."""
    column, source, expected = new_column(kind), array_of(kind, 30, nulls).slice(3, 25), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "CHOSEN_ROWS", 5)
        for positions in choices:
            column.extend_rows(source, np.array(positions, np.int64))
            column.extend(source.slice(2, 3))
            expected += [listed_array(source)[position] for position in [*positions, 2, 3, 4]]

    assert column.length == len(expected)
    assert values(column.view(0, column.length)) == plain(expected)


@given(kinds, spans, st.integers(0, 30), st.integers(0, 30))
def test_a_part_of_a_column(kind, spans, start, stop):
    """Any rows from the middle, without a copy."""
    column, source = new_column(kind), array_of(kind, 30)
    column.extend(source)
    start, stop = sorted((start, stop))

    assert values(column.view(start, stop)) == plain(listed_array(source)[start:stop])


@given(kinds, st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_views_stay_what_they_were(kind, sizes):
    """Each view shows its rows for ever, however the column grows behind it."""
    column, source, views = new_column(kind), array_of(kind, 60), []
    for size in sizes:
        column.extend(source.slice(3, size))
        view = column.view(0, column.length)
        views.append((view, values(view)))

    for view, before in views:
        assert values(view) == before


@each_kind
def test_a_large_column_grows_where_it_is(kind):
    """Beyond 1 MiB a column stays at its address, so that views of it share memory with what comes later."""
    column, source = new_column(kind), array_of(kind, 1_000, nulls=0.1)
    while column.n_bytes(0, column.length) < 40 << 20 and column.length < 1_000_000:
        column.extend(source)
        source = pa.concat_arrays([source, source]) if len(source) < 100_000 else source
    before = column.view(0, column.length)
    shown = addresses(before)

    column.extend(source.slice(0, 100))

    large = {address for address, size in zip(shown, sizes(before), strict=True) if size > 1 << 20}
    assert large <= set(addresses(column.view(0, column.length)))
    assert values(column.view(column.length - 100, column.length)) == values(source.slice(0, 100))


def sizes(array: pa.Array) -> list[int]:
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    return [buffer.size for buffer in storage.buffers() if buffer is not None and buffer.size]


@given(kinds, st.integers(0, 30), st.integers(0, 30), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.3]))
def test_what_was_taken_back_leaves_no_trace(kind, n_kept, n_undone, nulls, later_nulls):
    """After truncate the column goes on as if the rows had never come, also if they brought the first null."""
    column = new_column(kind)
    column.extend(array_of(kind, n_kept, nulls))
    view = column.view(0, n_kept)
    before = values(view)

    column.extend(array_of(kind, n_undone, 0.5, first_key=100))
    column.truncate(n_kept)
    column.extend(array_of(kind, 20, later_nulls, first_key=200))

    expected = listed_array(array_of(kind, n_kept, nulls)) + listed_array(
        array_of(kind, 20, later_nulls, first_key=200)
    )
    assert values(column.view(0, column.length)) == plain(expected)
    assert values(view) == before


@each_kind
@pytest.mark.parametrize("is_watched", [True, False])
def test_values_are_put_over_others(kind, is_watched):
    """In place where rows have one width and nobody looks, in a copy where somebody does; what he sees stays."""
    column = new_column(kind)
    column.extend(array_of(kind, 20, nulls=0))
    before = listed_array(array_of(kind, 20, nulls=0))
    new = array_of(kind, 3, nulls=0, first_key=50)
    view = column.view(0, 20) if is_watched else None
    place = addresses(column.view(0, 20))
    if not column.can_put(new):
        assert kind in NOT_IN_PLACE
        return

    column.own()
    column.patch(np.array([4, 0, 4]), new).write()

    expected = [*before]
    for position, value in zip([4, 0, 4], listed_array(new), strict=True):
        expected[position] = value
    assert values(column.view(0, 20)) == plain(expected)
    assert view is None or values(view) == plain(before)
    assert (addresses(column.view(0, 20)) == place) != is_watched


NOT_IN_PLACE = {"bool", "text", "bytes", "ints", "texts", "flags", "struct", "loaves", "waves", "boxes", "masks"}


@each_kind
def test_nulls_are_not_put(kind):
    """A null needs a bitmap, so neither a column with nulls nor a new null is written in place."""
    column, with_null = new_column(kind), new_column(kind)
    column.extend(array_of(kind, 5, nulls=0))
    with_null.extend(arrow_of(kind, [None, cell_of(kind, 0)]))

    assert not column.can_put(arrow_of(kind, [None]))
    assert not with_null.can_put(array_of(kind, 1, nulls=0))


@each_kind
def test_bytes_are_counted_by_row(kind):
    """What a part of the column takes, so that dropping it can be weighed; parts add up."""
    column = new_column(kind)
    column.extend(array_of(kind, 30))

    whole = column.n_bytes(0, 30)

    assert whole == sum(column.n_bytes(i, i + 1) for i in range(30))
    assert column.n_bytes(7, 7) == 0
    assert kind == "bool" or whole > 0


def test_nothing_but_nulls():
    """A column without a type yet has a length and nothing else."""
    column = column_of(pa.null())
    column.extend(pa.nulls(5))
    column.extend(pa.nulls(3).slice(1))
    column.truncate(6)

    assert column.view(1, 6).to_pylist() == [None] * 5
