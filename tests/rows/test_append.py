"""Appending Python values: containers of samples, kinds of cells, and the promise that everything is copied."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import types
import uuid
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetBuffer, Field
from poolish.errors import SchemaError
from poolish.schema import describe
from tests.rows.facts import WAYS, append_all, append_singly, column, facts, plain

pytestmark = pytest.mark.kernels

ROWS = [{"label": 0, "text": "rye"}, {"label": 1, "text": "wheat"}, {"label": 2, "text": "spelt"}]


class Crumb(NamedTuple):
    weight: int
    name: str


@dataclasses.dataclass(frozen=True)
class Crust:
    thickness: float
    crumb: Crumb


@dataclasses.dataclass(frozen=True)
class Loaf:
    flour: str
    crust: Crust
    tags: tuple[str, ...] = ()


class Grain(enum.IntEnum):
    RYE = 3


class Name(enum.StrEnum):
    RYE = "rye"


class Shelf:
    """A sequence by the old protocol: ``__len__`` and ``__getitem__``."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, i):
        return self._rows[i]


def as_column(values: list[Any], way: str = "one call", **settings: Any) -> DatasetBuffer:
    buffer = DatasetBuffer(**settings)
    WAYS[way](buffer, [{"x": value} for value in values])
    return buffer


# -- one sample or many


@pytest.mark.parametrize(
    "container",
    [
        list,
        tuple,
        iter,
        collections.deque,
        Shelf,
        lambda rows: (row for row in rows),
        lambda rows: map(dict, rows),
        lambda rows: dict(enumerate(rows)).values(),
        lambda rows: np.array(rows, object).tolist(),
    ],
)
def test_any_iterable_of_samples_is_many_samples(container):
    """Whatever can be looped over brings its samples in order, as one generation."""
    buffer = DatasetBuffer()

    buffer.append(container(ROWS))

    assert buffer.to_pydict() == {"label": [0, 1, 2], "text": ["rye", "wheat", "spelt"]}
    assert buffer.generations == [(0, 3)]


def test_one_sample_is_a_list_of_one():
    """A dict on its own is a sample."""
    one, many = DatasetBuffer(), DatasetBuffer()

    one.append(ROWS[0])
    many.append(ROWS[:1])

    assert facts(one) == facts(many)


def test_a_set_of_samples_brings_all_of_them():
    """A set has no order, but loses nothing."""
    buffer = DatasetBuffer()

    buffer.append({Crumb(1, "a"), Crumb(2, "b"), Crumb(3, "c")})

    assert sorted(column(buffer, "weight")) == [1, 2, 3]


def test_rows_appended_singly_are_the_rows_appended_together():
    """Pending rows, the flush at 1,024 of them and the bulk way give the same contents."""
    rows = [{"n": i, "text": str(i), "half": i / 2, "array": np.full(2, i)} for i in range(2_500)]
    singly, together = DatasetBuffer(), DatasetBuffer()

    append_singly(singly, rows)
    append_all(together, rows)

    assert plain(singly.to_pydict()) == plain(together.to_pydict())
    assert singly.ids.tolist() == list(range(2_500))
    assert singly.generations == [(i, i + 1) for i in range(2_500)]


def test_a_generator_longer_than_any_chunk_arrives_whole():
    """Samples are read a few thousand at a time; the seams do not show."""
    buffer = DatasetBuffer()

    buffer.append({"n": i, "text": f"row {i}"} for i in range(20_001))

    assert column(buffer, "n") == list(range(20_001))
    assert buffer[8_192] == {"n": 8_192, "text": "row 8192"}
    assert buffer.generations == [(0, 20_001)]


def test_a_generator_may_append_to_the_same_buffer():
    """User code runs before the lock is taken: what it appends comes before what it yields."""
    buffer = DatasetBuffer()
    buffer.append({"n": 0})

    def rows():
        yield {"n": 2}
        buffer.append({"n": 1})
        yield {"n": 3}

    buffer.append(rows())

    assert column(buffer, "n") == [0, 1, 2, 3]


def test_an_empty_append_brings_nothing():
    """Without a sample there is no schema and no generation."""
    buffer = DatasetBuffer()

    buffer.append([])
    buffer.append(iter(()))

    assert (len(buffer), buffer.schema, buffer.generations, buffer.to_pydict()) == (0, None, [], {})


def test_an_empty_append_still_thins_the_prior_rows():
    """Retention comes first, also where nothing follows."""
    buffer = DatasetBuffer()
    buffer.append(ROWS)

    buffer.append([], retain_prior=0.34)

    assert column(buffer, "label") == [2]


@pytest.mark.parametrize("way", WAYS)
def test_keys_may_come_in_any_order(way):
    """The first row gives the order of the columns; later ones are matched by name."""
    buffer = DatasetBuffer()
    buffer.append({"a": 1, "b": "x", "c": 0.5})

    WAYS[way](buffer, [{"c": 1.5, "a": 2, "b": "y"}, {"b": "z", "c": 2.5, "a": 3}])

    assert list(buffer[2]) == ["a", "b", "c"]
    assert buffer.to_pydict() == {"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [0.5, 1.5, 2.5]}


@pytest.mark.parametrize("way", WAYS)
def test_names_that_look_equal_are_equal(way):
    """Both Unicode forms of a name mean one column."""
    buffer = DatasetBuffer()
    buffer.append({"caf\u00e9": 1, "b": 1})

    WAYS[way](buffer, [{"cafe\u0301": 2, "b": 2}])

    assert buffer.to_pydict() == {"caf\u00e9": [1, 2], "b": [1, 2]}


# -- records of other classes


@pytest.mark.parametrize("way", [append_all, append_singly])
def test_dataclasses_and_named_tuples_are_rows_and_structs(way):
    """At the top their fields are columns, below they are structs; plain tuples are lists."""
    buffer = DatasetBuffer()

    way(buffer, [Loaf("rye", Crust(0.5, Crumb(1, "a"))), Loaf("oat", Crust(1.5, Crumb(2, "b")), ("dark", "sour"))])

    assert buffer.to_pydict() == {
        "flour": ["rye", "oat"],
        "crust": [
            {"thickness": 0.5, "crumb": {"weight": 1, "name": "a"}},
            {"thickness": 1.5, "crumb": {"weight": 2, "name": "b"}},
        ],
        "tags": [[], ["dark", "sour"]],
    }


@pytest.mark.parametrize(
    "mapping",
    [
        collections.OrderedDict,
        lambda row: collections.defaultdict(int, row),
        collections.UserDict,
        types.MappingProxyType,
        lambda row: collections.ChainMap({"label": row["label"]}, row),
    ],
)
def test_any_mapping_is_a_row(mapping):
    """It need not be a dict, and it mixes with dicts."""
    buffer = DatasetBuffer()

    buffer.append(mapping(ROWS[0]))
    buffer.append([mapping(ROWS[1]), ROWS[2]])

    assert buffer.to_pydict() == {"label": [0, 1, 2], "text": ["rye", "wheat", "spelt"]}


def test_plain_objects_become_rows_of_their_attributes():
    """Anything else is its ``vars``."""
    buffer = DatasetBuffer()

    buffer.append(types.SimpleNamespace(a=1, b="x"))
    buffer.append([types.SimpleNamespace(b="y", a=2)])

    assert buffer.to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


# -- one cell

NOON = dt.datetime(2026, 1, 2, 12, 30, 0, 7)
ZURICH = dt.timezone(dt.timedelta(hours=1))

CELLS = {
    "bool": ([True, False], "bool"),
    "int": ([0, -(2**63), 2**63 - 1], "int64"),
    "float": ([0.1, -0.0, float("inf"), float("-inf"), 5e-324], "float64"),
    "nan": ([float("nan"), 1.0], "float64"),
    "text": (["", "a\0b", "שלום", "🍞" * 3, "e\u0301", "\u00e9", "line\nline", "\ufeff"], "text"),
    "bytes": ([b"", b"\0\xff"], "bytes"),
    "int8": ([np.int8(-128), 127], "int8"),
    "uint64": ([np.uint64(2**64 - 1), 0], "uint64"),
    "float32": ([np.float32(0.1), 0.5], "float32"),
    "float16": ([np.float16(0.1), 65504.0], "float16"),
    "int enum": ([Grain.RYE, 4], "int64"),
    "text enum": ([Name.RYE, "wheat"], "text"),
    "date": ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], "date32[day]"),
    "datetime": ([NOON, dt.datetime(1, 1, 1)], "timestamp[us]"),
    "datetime with zone": ([NOON.replace(tzinfo=dt.UTC), NOON.replace(tzinfo=ZURICH)], "timestamp[us, tz=UTC]"),
    "time": ([dt.time(1, 2, 3, 4)], "time64[us]"),
    "timedelta": ([dt.timedelta(days=-1, microseconds=3)], "duration[us]"),
    "uuid": ([uuid.UUID(int=7)], "extension<arrow.uuid>"),
    "list": ([[1, 2], [], [3]], "list of int64"),
    "list of lists": ([[[1], []], [], [[2, 3]]], "list of list of int64"),
    "list of text": ([["a", None, ""], []], "list of text"),
    "struct": ([{"a": 1, "b": "x"}, {"b": "y", "a": 2}], "{a: int64, b: text}"),
    "struct without keys": ([{}, {}], "{}"),
    "list of structs": ([[{"a": 1}, {"a": None}], []], "list of {a: int64}"),
    "nothing": ([None, None], "nothing yet"),
}


@pytest.mark.parametrize("kind", CELLS)
def test_a_value_comes_back_as_it_went_in(kind):
    """Each kind of value has one type of column, and keeps every bit, on whichever way it came."""
    for way in WAYS:
        values, type_name = CELLS[kind]

        buffer = as_column(values, way)

        assert describe(buffer.schema["x"].type) == type_name
        assert plain(column(buffer)) == plain(_plain_values(values))


def _plain_values(values):
    """Numbers and text in other classes come back as plain ones."""
    return [v.item() if isinstance(v, np.generic) else v.value if isinstance(v, enum.Enum) else v for v in values]


@pytest.mark.parametrize("kind", CELLS)
def test_null_has_a_place_in_every_column(kind):
    """None comes back as None, before, between and after values, and is no NaN and no empty value."""
    for way in WAYS:
        values = [None, CELLS[kind][0][0], None]

        buffer = as_column(values, way)

        assert [value is None for value in column(buffer)] == [value is None for value in values]
        assert buffer.to_arrow()["x"].null_count == sum(value is None for value in values)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (np.str_("ab"), "ab"),
        (np.bytes_(b"ab"), b"ab"),
        (np.True_, True),
        (np.float64(0.5), 0.5),
        ((1, 2), [1, 2]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["a", None], object), ["a", None]),
        (np.array(5, np.int16), 5),
        (Crumb(1, "a"), {"weight": 1, "name": "a"}),
        (collections.OrderedDict(a=1), {"a": 1}),
        (np.datetime64("2026-01-02T03:04:05", "s"), dt.datetime(2026, 1, 2, 3, 4, 5)),
        (np.timedelta64(90, "s"), dt.timedelta(seconds=90)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_close_relatives_are_kept_as_plain_values(given, kept):
    """What is text, bytes, a number, a list or a record in another class comes back as the plain one."""
    for way in WAYS:
        buffer = as_column([given, given], way)

        assert plain(column(buffer)) == plain([kept, kept])


@pytest.mark.parametrize("way", WAYS)
def test_complex_numbers_keep_both_parts(way):
    """Arrow has none; they come back as NumPy's."""
    buffer = as_column([1 + 2j, np.complex128(-3j)], way)

    assert column(buffer) == [1 + 2j, -3j]


def test_decimals_of_different_length_share_a_column():
    """The first value gives the scale; more digits before the point are no other type."""
    values = [decimal.Decimal("1.25"), decimal.Decimal("-100000.5"), 3, None]

    buffer = as_column(values)

    assert column(buffer) == values


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("values", "kept"),
    [([0.5, 2], [0.5, 2.0]), ([1, 2.0], [1, 2]), ([0.5, 2**53], [0.5, 2.0**53]), ([np.int8(1), 127], [1, 127])],
)
def test_a_number_of_the_other_kind_is_taken_where_it_is_exact(way, values, kept):
    """2 is a float and 2.0 an integer; nothing is rounded."""
    buffer = as_column(values, way)

    assert plain(column(buffer)) == plain(kept)


@pytest.mark.parametrize("n_bytes", [10 << 20, 64 << 20])
def test_text_up_to_the_limit_is_kept(n_bytes):
    """10 MB of text is a cell like any other, and the limit itself is allowed."""
    text = "ä" * (n_bytes // 2)

    buffer = as_column(["", text])

    assert buffer[1]["x"] == text


# -- columns that find their type later


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("first", "later", "type_name"),
    [
        (None, 1, "int64"),
        (None, "a", "text"),
        (None, np.zeros(2), "float64[2]"),
        (None, [None], "list of nothing yet"),
        ([], ["a"], "list of text"),
        ([[]], [[1.5]], "list of list of float64"),
        ({"a": None}, {"a": 1}, "{a: int64}"),
        ({"a": []}, {"a": [True]}, "{a: list of bool}"),
        ([{"a": None}], [{"a": "x"}], "list of {a: text}"),
    ],
)
def test_a_column_of_nothing_takes_its_type_from_the_first_real_value(way, first, later, type_name):
    """Nulls and empty lists decide nothing, in this append or in a later one; afterwards the type is fixed."""
    buffer = as_column([first])

    WAYS[way](buffer, [{"x": None}, {"x": later}])

    assert describe(buffer.schema["x"].type) == type_name
    assert plain(column(buffer)) == plain([first, None, later])
    assert plain(as_column([first, None, later]).to_pydict()) == plain(buffer.to_pydict())


def test_a_type_that_was_found_is_fixed():
    """The first real value counts once."""
    buffer = as_column([None])
    buffer.append({"x": 1})
    before = facts(buffer)

    with pytest.raises(ValueError, match="column 'x': this column holds int64, got str 'a'"):
        buffer.append({"x": "a"})

    assert facts(buffer) == before


# -- declared columns


@pytest.mark.parametrize("way", WAYS)
def test_a_declared_nullable_column_may_be_left_out(way):
    """A missing key is null where the schema says so."""
    buffer = DatasetBuffer(schema=[Field("a", "int64"), Field("b", "float32", nullable=True)])

    WAYS[way](buffer, [{"a": 1}, {"a": 2}])
    buffer.append({"a": 3, "b": 0.5})

    assert buffer.to_pydict() == {"a": [1, 2, 3], "b": [None, None, 0.5]}


@pytest.mark.parametrize("way", WAYS)
def test_declared_types_hold_whatever_comes_first(way):
    """Narrow numbers, ragged arrays and lists are what was declared, not what the first value looks like."""
    buffer = DatasetBuffer(
        schema=[Field("n", "uint8"), Field("x", "float32", shape=(None, 2)), Field("words", pa.list_(pa.string()))]
    )

    rows = [{"n": i, "x": np.full((i, 2), i, np.float32), "words": ["w"] * i} for i in range(3)]
    WAYS[way](buffer, rows)

    assert str(buffer.schema) == "Schema(n: uint8, x: float32[?, 2], words: list of text)"
    assert plain(buffer.to_pydict()) == plain({name: [row[name] for row in rows] for name in rows[0]})


# -- what was passed is copied

MUTABLE = {
    "list": ([1, 2], lambda value: value.append(9)),
    "list in a list": ([[1]], lambda value: value[0].append(9)),
    "dict": ({"a": 1}, lambda value: value.update(a=9)),
    "bytearray": (bytearray(b"ab"), lambda value: value.__setitem__(0, 9)),
    "array": (np.arange(3), lambda value: value.fill(9)),
    "array in a list": ([np.arange(3)], lambda value: value[0].fill(9)),
    "array in a dict": ({"a": np.arange(3)}, lambda value: value["a"].fill(9)),
    "ragged array": (np.arange(4), lambda value: value.fill(9)),
    "array of text": (np.array(["a", "b"], object), lambda value: value.fill("9")),
    "number in an array": (np.array(1), lambda value: value.fill(9)),
    "view": (np.arange(8).reshape(2, 4)[:, ::2], lambda value: value.fill(9)),
    "bool array": (np.array([True, False]), lambda value: value.fill(True)),
}


@pytest.mark.parametrize("kind", MUTABLE)
def test_what_the_caller_changes_afterwards_does_not_reach_the_buffer(kind):
    """Values are copied at append, those of waiting rows too."""
    for way in WAYS:
        value, change = MUTABLE[kind]
        value = _copied(value)
        buffer = as_column([_copied(value)] if kind != "ragged array" else [np.arange(3), np.arange(2)])
        row = {"x": value}
        WAYS[way](buffer, [row])
        expected = plain(
            _copied(value) if not isinstance(value, (bytearray, np.ndarray)) else column(as_column([value]))[0]
        )

        change(value)
        row["x"] = "another value"
        row["y"] = "another key"

        assert plain(buffer[-1]["x"]) == expected


def _copied(value):
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else getattr(value, "copy", lambda: value)()


def test_columns_given_as_arrays_are_copied():
    """The bulk way takes numbers from the caller's memory, and lets go of it."""
    given = {"n": np.arange(4), "x": np.arange(8.0).reshape(4, 2)}
    buffer = DatasetBuffer()
    buffer.append_columns(given)
    before = facts(buffer)

    for array in given.values():
        array.fill(9)

    assert facts(buffer) == before


def test_an_arrow_table_over_the_callers_memory_is_copied():
    """Arrow may share memory with NumPy; the buffer does not."""
    numbers = np.arange(4)
    table = pa.table({"n": pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(numbers)])})
    buffer = DatasetBuffer()
    buffer.append(table)

    numbers.fill(9)

    assert table["n"].to_pylist() == [9, 9, 9, 9]
    assert column(buffer, "n") == [0, 1, 2, 3]


REUSED = {
    "row": (lambda: {"x": 0}, lambda row, i: row.update(x=i)),
    "array": (lambda: {"x": np.zeros(2)}, lambda row, i: row["x"].fill(i)),
    "list": (lambda: {"x": [0]}, lambda row, i: row["x"].__setitem__(0, i)),
    "struct": (lambda: {"x": {"a": 0}}, lambda row, i: row["x"].update(a=i)),
    "bytes": (lambda: {"x": bytearray(1)}, lambda row, i: row["x"].__setitem__(0, i)),
    "array in a list": (lambda: {"x": [np.zeros(2)]}, lambda row, i: row["x"][0].fill(i)),
    "object": (lambda: types.SimpleNamespace(x=0), lambda row, i: setattr(row, "x", i)),
    "bare array": (lambda: np.zeros(2), lambda row, i: row.fill(i)),
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", REUSED)
def test_a_generator_may_reuse_what_it_yields(kind, is_first):
    """Environments hand out the same observation array at every step: each sample is copied before the next is made."""
    make, change = REUSED[kind]
    reused, expected = DatasetBuffer(), DatasetBuffer()
    if not is_first:
        reused.append(make())
        expected.append(make())

    def samples():
        sample = make()
        for i in range(3):
            change(sample, i)
            yield sample

    reused.append(samples())
    fresh = [make() for _ in range(3)]
    for i, sample in enumerate(fresh):
        change(sample, i)
    expected.append(fresh)

    assert facts(reused) == facts(expected)


def test_samples_that_are_numbered_are_read_to_their_length():
    """A dataset with a length and an index need not be iterable, nor raise an IndexError behind its end."""

    class Endless:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return {"n": i}

    buffer = DatasetBuffer()
    buffer.append(Endless())

    assert buffer.to_pydict() == {"n": [0, 1, 2]}


def test_a_list_of_one_row_is_that_row():
    """Once the schema is fixed as before: the same rows, ids and generations, and the same errors."""
    one, other = DatasetBuffer(max_size=4), DatasetBuffer(max_size=4)
    for row in [*ROWS, *ROWS]:
        one.append(row)
        other.append([row])
    assert other.to_pydict() == one.to_pydict()
    assert other.ids.tolist() == one.ids.tolist() == [2, 3, 4, 5]
    assert other.generations == one.generations

    for bad in ({"label": "x", "text": "rye"}, {"label": 1}, {"label": 1, "text": "oat", "more": 2}):
        messages = []
        for buffer, samples in ((one, bad), (other, [bad])):
            with pytest.raises(SchemaError) as error:
                buffer.append(samples)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
    assert len(one) == len(other) == 4
