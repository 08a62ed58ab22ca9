"""Reading rows by number: as a list does it, and as NumPy does it, with errors that name the numbers."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetBuffer
from tests.rows.facts import column, plain
from tests.rows.kinds import KINDS, row_of, schema_of

pytestmark = pytest.mark.kernels

N_ROWS = 12


def row(i):
    return {
        "n": i,
        "text": f"row {i}",
        "x": np.array([i, i + 0.5]),
        "tags": ["t"] * (i % 3),
        "maybe": None if i % 4 == 0 else i,
    }


def filled(max_size=None, drop_strategy="oldest", first=0):
    """Rows ``first`` to ``first + 12``, whatever happened before them."""
    buffer = DatasetBuffer(max_size=max_size, drop_strategy=drop_strategy)
    buffer.append([row(first + i) for i in range(N_ROWS - 2)])
    for i in range(N_ROWS - 2, N_ROWS):
        buffer.append(row(first + i))
    return buffer


def shifted():
    """The same rows behind others that have left at the front."""
    buffer = DatasetBuffer()
    buffer.append([row(900 + i) for i in range(7)])
    buffer.append([row(i) for i in range(N_ROWS)], retain_prior=0.0)
    return buffer


def riddled():
    """The same rows with dead ones between them."""
    buffer = DatasetBuffer(seed=5)
    buffer.append([row(i // 2) if i % 2 else row(900 + i) for i in range(2 * N_ROWS)])
    return buffer.filter(lambda r: r["n"] < 900)


def thinned():
    """Random survivors: rows that left from the middle leave holes in memory."""
    buffer = DatasetBuffer(seed=5)
    buffer.append([row(i) for i in range(40)])
    buffer.retain(N_ROWS / 40, by="random")
    return buffer


BUFFERS = {"pending": filled, "shifted": shifted, "filtered": riddled, "thinned": thinned}


@pytest.fixture(params=BUFFERS)
def buffer(request):
    return BUFFERS[request.param]()


@pytest.fixture
def numbers(buffer):
    """The column ``n``, which says which row is which; a list behaves as the buffer should."""
    return column(buffer, "n")


# -- one row


def test_a_number_gives_a_dict_of_plain_values(buffer, numbers):
    """Counted from the front and from the back."""
    for i in range(-N_ROWS, N_ROWS):
        assert plain(buffer[i]) == plain(row(numbers[i]))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.int64, np.array])
def test_any_whole_number_is_a_row_number(buffer, numbers, kind):
    """NumPy's integers, also in arrays without dimensions."""
    assert buffer[kind(3)]["n"] == numbers[3]


def test_a_row_beyond_the_end_is_an_index_error_with_the_numbers(buffer):
    """Which row, of how many."""
    for read in [
        lambda b, i: b[i],
        lambda b, i: b.get_batch([i]),
        lambda b, i: b[[0, i]],
        lambda b, i: b.__getitems__([i]),
    ]:
        for i in [N_ROWS, -N_ROWS - 1, 2**63 - 1, -(2**63)]:
            with pytest.raises(IndexError, match=rf"{i}.*{N_ROWS}") as caught:
                read(buffer, i)

            assert "11" in str(caught.value)


@pytest.mark.parametrize("i", [10**30, -(10**30)])
def test_a_row_beyond_all_numbers_is_an_index_error(buffer, i):
    """As in a list, whose numbers have no end either."""
    with pytest.raises(IndexError, match=str(i)):
        buffer[i]


def test_every_row_of_an_empty_buffer_is_beyond_the_end():
    """With and without a schema, and without the nonsense of a last row -1."""
    for empty in (DatasetBuffer(), DatasetBuffer(schema={"n": "int64"})):
        for i in (0, -1):
            with pytest.raises(IndexError, match=r"0 rows|no rows|empty"):
                empty[i]
            with pytest.raises(IndexError, match=r"0 rows|no rows|empty"):
                empty.get_batch([i])


def test_what_is_no_index_is_a_type_error(buffer):
    """Floats, tuples and names beside numbers are mistakes that should say what indexing means here."""
    for reader in ["buffer", "snapshot"]:
        for index in [
            1.0,
            None,
            1j,
            (1, 2),
            {1: 2},
            {1},
            ...,
            [1.5],
            ["n", 1],
            [None],
            b"1",
            np.datetime64(1, "s"),
        ]:
            with pytest.raises(TypeError, match="whole numbers"):
                (buffer if reader == "buffer" else buffer.snapshot())[index]


def test_a_row_is_a_copy():
    """Whatever the caller does to it stays with the caller."""
    buffer = filled()
    snapshot = buffer.snapshot()
    for reader in (buffer, snapshot):
        mine = reader[3]
        mine["x"].fill(9)
        mine["tags"].append("mine")
        mine["n"] = 9

        assert plain(reader[3]) == plain(row(3))
        assert plain(reader.__getitems__([3])) == plain([row(3)])


# -- many rows

SLICES = [
    *(slice(a, b) for a in (None, 0, 3, -4, 20, -20) for b in (None, 0, 5, -2, 20, -20)),
    *(slice(a, b, step) for a, b in ((None, None), (2, 9), (9, 2), (-1, 0)) for step in (-3, -1, 1, 2, 5, 100)),
    slice(np.int64(2), np.int8(5)),
]


def test_a_slice_gives_the_rows_a_list_would_give(buffer, numbers):
    """As a table; steps, ends beyond the end and backwards included."""
    for index in SLICES:
        table = buffer[index]

        assert isinstance(table, pa.Table)
        assert table["n"].to_pylist() == numbers[index]
        assert table.schema == buffer.to_arrow().schema
        table.validate(full=True)


@pytest.mark.parametrize("index", [slice(None, None, 0), slice(1.5, None), slice("a", None)], ids=str)
def test_a_slice_that_a_list_refuses_is_refused(buffer, numbers, index):
    """With the error that a list would raise."""
    with pytest.raises((ValueError, TypeError)) as expected:
        numbers[index]

    with pytest.raises(expected.type):
        buffer[index]


CHOSEN = [3, 0, -1, 3, 11, -12]


def test_get_batch_gives_the_rows_asked_for_in_that_order(buffer, numbers):
    """Lists, arrays of every integer dtype and layout; a row may be asked for twice."""
    for make in [
        list,
        tuple,
        np.array,
        *(lambda rows, d=d: np.array(rows, d) for d in ("int8", "int16", "int32", "int64", ">i4", ">i8")),
        *(lambda rows, d=d: np.array([i % N_ROWS for i in rows], d) for d in ("uint8", "uint16", "uint32", "uint64")),
        lambda rows: np.array([rows, rows]).T[:, 0],
        lambda rows: np.array(rows[::-1])[::-1],
        pa.array,
        range,
    ]:
        if make is range:
            rows, chosen = list(range(2, 9, 3)), range(2, 9, 3)
        else:
            rows, chosen = CHOSEN, make(CHOSEN)

        table = buffer.get_batch(chosen)

        assert [plain(r) for r in buffer.__getitems__(chosen)] == [plain(row(numbers[i])) for i in rows]
        assert table["n"].to_pylist() == [numbers[i] for i in rows]
        if not isinstance(chosen, tuple):
            assert buffer[chosen].equals(table)


@pytest.mark.parametrize("dtype", [bool, np.bool_])
@pytest.mark.parametrize("as_list", [True, False])
def test_a_mask_gives_the_rows_where_it_is_true(buffer, numbers, dtype, as_list):
    """One value per row, in a list or an array."""
    mask = np.arange(N_ROWS) % 3 == 1

    table = buffer[mask.tolist() if as_list else mask.astype(dtype)]

    assert table["n"].to_pylist() == numbers[1::3]


@pytest.mark.parametrize(
    "make",
    [list, lambda: np.array([], int), lambda: np.array([]), lambda: np.zeros(N_ROWS, bool), lambda: slice(0, 0)],
)
def test_no_rows_are_a_table_without_rows(buffer, make):
    """It has all columns."""
    table = buffer[make()]

    assert (table.num_rows, table.schema) == (0, buffer.to_arrow().schema)


@pytest.mark.parametrize(
    "mask",
    [np.ones(N_ROWS - 1, bool), np.ones(N_ROWS + 1, bool), [True], np.ones((N_ROWS, 1), bool)],
    ids=lambda m: str(np.shape(m)),
)
def test_a_mask_of_another_length_is_refused(buffer, mask):
    """With both lengths."""
    with pytest.raises(IndexError, match=f"{N_ROWS}.*{np.shape(mask)[0]}"):
        buffer[mask]


@pytest.mark.parametrize("index", [[[0, 1]], np.zeros((2, 2), int), [[0], [1, 2]]], ids=str)
def test_two_dimensions_are_refused(buffer, index):
    """Rows stand in one line."""
    with pytest.raises((TypeError, ValueError), match=r"one dimension|inhomogeneous"):
        buffer.get_batch(index)
    with pytest.raises((TypeError, ValueError), match=r"one dimension|inhomogeneous"):
        buffer[index]


@pytest.mark.parametrize("bad", [N_ROWS, -N_ROWS - 1])
def test_the_place_of_a_bad_number_in_a_batch_is_told(buffer, bad):
    """Among a thousand numbers one wants to know which."""
    with pytest.raises(IndexError, match=rf"row {bad} of {N_ROWS}.*place 7"):
        buffer.get_batch([0, 1, 2, 3, 4, 5, 6, bad, 8])


def test_large_unsigned_numbers_do_not_wrap(buffer):
    """2**64 - 1 is no row, and not the last one."""
    with pytest.raises((IndexError, TypeError), match="18446744073709551615"):
        buffer.get_batch(np.array([2**64 - 1], np.uint64))


def test_a_batch_is_a_copy_that_outlives_everything():
    """Its memory is its own: the buffer may change and go."""
    buffer = filled(max_size=N_ROWS)
    batch = buffer.get_batch([0, 5])
    buffer.update([0, 5], {"n": [99, 99]})
    buffer.append([row(i) for i in range(500)])
    del buffer

    assert batch["n"].to_pylist() == [0, 5]


def test_ids_can_be_looked_at_but_not_changed(buffer):
    """They are the buffer's own numbers: one per row, counting up."""
    ids = buffer.ids

    assert len(ids) == N_ROWS
    assert (np.diff(ids) > 0).all()
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 5


# -- iterating


def test_iteration_yields_tables_of_one_row(buffer, numbers):
    """In order, each with all columns."""
    tables = list(buffer)

    assert all(isinstance(table, pa.Table) and table.num_rows == 1 for table in tables)
    assert [table["n"].to_pylist() for table in tables] == [[n] for n in numbers]
    assert tables[0].schema == buffer.to_arrow().schema
    assert [table["n"].to_pylist() for table in buffer.snapshot()] == [[n] for n in numbers]


CHANGES = {
    "append": lambda b: b.append(row(77)),
    "append many": lambda b: b.append([row(i) for i in range(3_000)]),
    "thin": lambda b: b.retain(0.5),
    "thin at random": lambda b: b.retain(0.5, by="random"),
    "clear": lambda b: b.clear(),
    "update": lambda b: b.update(b.ids[-1:], {"n": [-1]}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("n_rows", [12, 2_500])
def test_iteration_keeps_its_rows_while_the_buffer_changes(change, n_rows):
    """No row is skipped, repeated or altered, whatever happens in the loop."""
    buffer = DatasetBuffer(max_size=n_rows)
    buffer.append([row(i) for i in range(n_rows)])
    seen = []

    for i, table in enumerate(buffer):
        seen.append(table["n"][0].as_py())
        if i % 500 == 3:
            CHANGES[change](buffer)

    assert seen == list(range(n_rows))


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_keeps_its_rows_while_the_buffer_changes(change):
    """Every way to read it still gives the rows of that moment."""
    buffer = filled(max_size=N_ROWS, drop_strategy="random")
    before = buffer.snapshot()
    expected = [plain(row(i)) for i in range(N_ROWS)]

    for _ in range(3):
        CHANGES[change](buffer)

    assert len(before) == N_ROWS
    assert [plain(before[i]) for i in range(N_ROWS)] == expected
    assert [plain(r) for r in before.__getitems__(range(N_ROWS))] == expected
    assert before[::2]["n"].to_pylist() == list(range(0, N_ROWS, 2))
    assert before.to_pydict()["n"] == before.to_arrow()["n"].to_pylist() == list(range(N_ROWS))
    assert before.ids.tolist() == list(range(N_ROWS))


# Rows that wait to be stored ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_row_that_waits_reads_as_it_will_once_it_is_stored(name):
    """Of every kind of column: the same types, dtypes, bits and nulls, and an array of its own."""
    buffer = DatasetBuffer(schema=schema_of([name]))
    for key in range(40):
        buffer.append(row_of([name], key, nulls=0.2))

    waiting = [buffer[i] for i in range(40)]
    assert buffer._state.n_pending == 39
    buffer.snapshot()

    assert plain(waiting) == plain([buffer[i] for i in range(40)])
    assert [type(row[name]) for row in waiting] == [type(buffer[i][name]) for i in range(40)]
    assert all(row[name].flags.writeable for row in waiting if isinstance(row[name], np.ndarray))


def test_narrow_numbers_and_times_that_wait_read_as_once_stored():
    """Types that a row of the kinds above does not have: narrow numbers, times, decimals, dtypes that NumPy lacks."""
    torch = pytest.importorskip("torch")
    row = {
        "half": np.float16(0.1),
        "single": np.float32(0.1),
        "small": np.int8(-3),
        "large": np.uint64(2**64 - 1),
        "day": np.datetime64("2026-01-31", "D").astype("datetime64[s]"),
        "instant": np.datetime64("2026-01-31T01:02:03.123456789", "ns"),
        "price": decimal.Decimal("12.50"),
        "brain": torch.tensor([1.5, 2.0], dtype=torch.bfloat16),
        "z": 1 + 2j,
        "none": None,
        "empty": [],
    }
    buffer = DatasetBuffer()
    buffer.append([row, row])
    buffer.snapshot()
    buffer._state.codec.validate_and_copy(row)  # what a row must pass before it may wait

    waiting = buffer._state.codec.decode(buffer._state.codec.validate_and_copy(row), 0)

    assert plain(waiting) == plain(buffer[0])
    assert {name: type(value) for name, value in waiting.items()} == {n: type(v) for n, v in buffer[0].items()}


@pytest.mark.parametrize("settings", [{}, {"max_size": 7}, {"max_size": 7, "drop_strategy": "random"}])
def test_reading_a_row_behind_every_append_is_reading_a_list(settings):
    """Any row at any moment, stored or waiting, also while rows leave; and reading decides nothing."""
    read, unread = DatasetBuffer(**settings), DatasetBuffer(**settings)
    rng = np.random.default_rng(3)

    for step in range(60):
        for buffer in (read, unread):
            buffer.append(row(step))
        i = int(rng.integers(-len(read), len(read)))
        one = read[i]
        if rng.random() < 0.2:
            assert plain(one) == plain(read.snapshot()[i])
        if "drop_strategy" not in settings:
            rows = [row(n) for n in range(step + 1)][-settings.get("max_size", 10**6) :]
            assert plain(one) == plain(rows[i])
        with pytest.raises(IndexError, match=f"row {len(read)} of {len(read)} rows"):
            read[len(read)]

    assert plain(read.to_pydict()) == plain(unread.to_pydict())


def test_rows_that_wait_are_read_without_being_stored():
    """A loop that appends and looks back stores 1,024 rows at a time, like one that does not look."""
    buffer = DatasetBuffer()
    buffer.append([row(0), row(1)])
    for n in range(2, 100):
        buffer.append(row(n))
        assert (buffer[-1]["n"], buffer[n // 2]["n"], buffer[0]["n"]) == (n, n // 2, 0)

    assert buffer._state.n_pending == 98
