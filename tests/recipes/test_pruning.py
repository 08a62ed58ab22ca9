"""Row groups that a filter cannot hold for are not read, and no row is ever lost by that."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish.expressions import as_expression
from poolish.recipes import col
from poolish.recipes.sources import FileSource
from poolish.recipes.sources.pruning import Range, answers, can_prune, is_out_of_range

DAY = date(2020, 1, 1)
MOMENT = datetime(2020, 1, 1)

#: For each column: its type, values that rows have, and values that it may be compared with.
texts = st.sampled_from(["", "a", "ab", "b", "é", "z" * 70, "z" * 69 + "y", "\U0001f35e", "\uffff", "aé"])
numbers = st.one_of(
    st.sampled_from([0, -0.0, 1, -1, 0.5, 0.1, 2**31, 2**53 + 1, -(2**63), 2**63 - 1, 1e300]),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
)
days = st.integers(-3, 3).map(lambda n: DAY + timedelta(n))
moments = st.integers(-3, 3).map(lambda n: MOMENT + timedelta(microseconds=n))
bools = st.booleans()
zoned = moments.map(lambda moment: moment.replace(tzinfo=UTC))
small = st.integers(-5, 5)
floats = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, math.nan, 0.1, 1.0]))
COLUMNS = {
    "int64": (pa.int64(), st.one_of(small, st.integers(-(2**63), 2**63 - 1)), numbers),
    "int8": (pa.int8(), st.integers(-128, 127), numbers),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1), numbers),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1), numbers),
    "float64": (pa.float64(), floats, numbers),
    "float32": (pa.float32(), st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan])), numbers),
    "float16": (pa.float16(), st.floats(width=16), numbers),
    "string": (pa.string(), texts, texts),
    "large_string": (pa.large_string(), texts, texts),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), texts, texts),
    "bool": (pa.bool_(), bools, bools),
    "date": (pa.date32(), days, days),
    "time_s": (pa.timestamp("s"), moments.map(lambda moment: moment.replace(microsecond=0)), moments),
    "time_us": (pa.timestamp("us"), moments, moments),
    "time_ns": (pa.timestamp("ns"), moments, moments),
    "time_zoned": (pa.timestamp("us", tz="Europe/Berlin"), zoned, zoned),
}


def can_skip(where, group, schema):
    """Whether a row group need not be read."""
    return can_prune(where, schema) and is_out_of_range(where, group, schema)


@st.composite
def tables(draw):
    """A table of one to three columns with nulls here and there."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True))
    n_rows = draw(st.integers(1, 12))
    columns = {}
    for name in names:
        type_, values, _ = COLUMNS[name]
        values = draw(st.sampled_from([values, st.one_of(st.none(), values), st.none()]))
        columns[name] = _array(draw(st.lists(values, min_size=n_rows, max_size=n_rows)), type_)
    return pa.table(columns)


def _array(values, type_):
    if pa.types.is_float16(type_):
        values = [None if value is None else np.float16(value) for value in values]
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode()
    return pa.array(values, type_)


@st.composite
def conditions(draw, names, depth=3):
    """An expression over some of these columns."""
    kind = draw(st.sampled_from(["and", "or", "not", "leaf", "leaf"] if depth else ["leaf"]))
    if kind == "not":
        return ~draw(conditions(names, depth - 1))
    if kind != "leaf":
        left, right = draw(conditions(names, depth - 1)), draw(conditions(names, depth - 1))
        return left & right if kind == "and" else left | right
    name = draw(st.sampled_from(names))
    type_, _, constants = COLUMNS[name]
    column, constant = col[name], draw(constants)
    asked = [
        lambda: column == constant,
        lambda: column != constant,
        lambda: column < constant,
        lambda: column <= constant,
        lambda: column > constant,
        lambda: column >= constant,
        lambda: constant < column,
        lambda: column.is_null(),
    ]
    if not isinstance(constant, date):
        asked.append(lambda: column.is_in([constant, draw(constants)]))
    if isinstance(constant, str):
        asked += [lambda: column.starts_with(constant), lambda: column.lower() == constant]
        asked += [lambda: column.length() > 3, lambda: column.contains(constant)]
    if pa.types.is_floating(type_):
        asked.append(lambda: column.is_finite())
    if name == "bool":
        asked.append(lambda: column)
    return draw(st.sampled_from(asked))()


@st.composite
def filtered_tables(draw):
    table = draw(tables())
    return table, draw(conditions(table.column_names))


@settings(max_examples=120, deadline=None)
@given(filtered_tables(), st.integers(1, 5))
def test_no_row_group_with_a_row_that_matters_is_skipped(case, group_size):
    """Whatever types, nulls, NaN and filters are: where a row is kept, or unknown and counted, the group is read."""
    table, where = case
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group_size, version="2.6")
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))

    for i in range(file.num_row_groups):
        is_skipped = can_skip(where, file.metadata.row_group(i), file.schema_arrow)
        mask, n_unknown = where.mask(file.read_row_group(i))

        assert not (is_skipped and (mask.any() or n_unknown))


@pytest.mark.parametrize(
    ("where", "groups"),
    [
        (col.n > 29, []),
        (col.n > 28, [2]),
        (col.n < 10, [0]),
        ((col.n >= 10) & (col.n < 20), [1]),
        ((col.n == 5) | (col.n == 25), [0, 2]),
        (col.n.is_in([3, 4]), [0]),
        (~(col.n < 20), [2]),
        (col.n.is_null(), []),
        (col.word == "b5", [1]),
        (col.word.starts_with("c"), [2]),
        (col.day < date(2020, 1, 11), [0]),
        (col.moment >= datetime(2020, 1, 21), [2]),
        (col.n != 5, [0, 1, 2]),
        ((col.n > 100) & (col.word.lower() == "x"), []),
        ("n > 28", [2]),
    ],
)
def test_only_row_groups_that_may_hold_are_read(tmp_path, where, groups):
    """A sorted column saves reading: groups whose smallest and largest value rule a filter out are left alone."""
    n = np.arange(30)
    columns = {
        "n": n,
        "word": ["abc"[i // 10] + str(i % 10) for i in n],
        "day": [DAY + timedelta(int(i)) for i in n],
        "moment": [MOMENT + timedelta(int(i)) for i in n],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=10)
    source = FileSource(tmp_path / "a.parquet", "ingredient 'a'")
    from poolish.expressions import as_expression

    read = [part for fragment in source.fragments() for part in source.read(fragment, None, as_expression(where))]

    assert [int(rows[0]) // 10 for _, rows in read] == groups


def test_nulls_are_read_so_that_they_are_counted(tmp_path):
    """An unknown row is dropped and counted, so its group is read even if no other row matches."""
    pq.write_table(pa.table({"n": [1, 2, None]}), tmp_path / "a.parquet")
    source = FileSource(tmp_path / "a.parquet", "ingredient 'a'")

    (fragment,) = source.fragments()

    assert len(list(source.read(fragment, None, col.n > 5))) == 1
    assert len(list(source.read(fragment, None, (col.n > 5) & col.n.is_not_null()))) == 1


def test_nan_is_in_no_statistics_and_still_matters(tmp_path):
    """NaN is neither above nor below anything, so what is asked the other way round holds for it."""
    pq.write_table(pa.table({"x": [6.0, 9.0, math.nan]}), tmp_path / "a.parquet")
    source = FileSource(tmp_path / "a.parquet", "ingredient 'a'")
    (fragment,) = source.fragments()

    assert len(list(source.read(fragment, None, ~(col.x > 5)))) == 1
    assert len(list(source.read(fragment, None, col.x < 5))) == 0


def test_what_could_fail_is_never_skipped(tmp_path):
    """An error depends on the rows, not on how they are grouped: casts, arithmetic and unknown columns are read."""
    pq.write_table(pa.table({"n": [1, 2], "word": ["x", "y"]}), tmp_path / "a.parquet")
    source = FileSource(tmp_path / "a.parquet", "ingredient 'a'")
    (fragment,) = source.fragments()

    for where in (col.word.cast("int64") > 1, col.n * 2 > 1, col.nothing > 1, col.word > 1, col.n < col.n):
        assert len(list(source.read(fragment, None, (col.n > 5) & where))) == 1


def test_cut_statistics_are_bounds_only():
    """A writer may cut long texts, so the largest is above all values; what lies between is not ruled out."""
    cut = {"word": Range("aaa", "aab", has_nulls=False)}

    assert answers((col.word == "aaaz")._root, cut) == {True, False}
    assert answers((col.word > "aab")._root, cut) == {False}
    assert answers((col.word >= "aab")._root, cut) == {True, False}


class Footer:
    """A row group as pyarrow shows it, with statistics of our own."""

    def __init__(self, **statistics):
        self.path_in_schema, self.num_columns, self.num_rows, self._given = "x", 1, 3, statistics

    def column(self, _):
        return self

    @property
    def statistics(self):
        return self

    has_min_max = has_null_count = True
    null_count = 0

    def __getattr__(self, name):
        value = self._given[name]
        if isinstance(value, Exception):
            raise value
        return value


@pytest.mark.parametrize(
    ("type_", "statistics"),
    [
        (pa.float64(), {"min": math.nan, "max": 1.0}),
        (pa.float64(), {"min": 0.0, "max": math.nan}),
        (pa.string(), {"min": "a", "max": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "cut")}),
        (pa.int64(), {"min": b"1", "max": b"2"}),
    ],
)
def test_statistics_that_cannot_be_true_are_ignored(type_, statistics):
    """NaN at an end, text cut within a character, values of another type: then nothing is known."""
    where = col.x > "z" if type_ == pa.string() else col.x > 100

    assert not can_skip(where, Footer(**statistics), pa.schema({"x": type_}))


def test_a_field_is_not_taken_for_a_column_with_a_dot():
    """``a.b`` may be a column and a field of a struct; the footer calls both the same, so neither is believed."""
    table = pa.table({"a": [{"b": 1}], "a.b": [9]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))

    assert not can_skip(col["a.b"] == 9, file.metadata.row_group(0), file.schema_arrow)
    assert not can_skip(col["a.b"] == 1, file.metadata.row_group(0), file.schema_arrow)


@pytest.mark.parametrize(
    ("where", "groups"),
    [
        (col.n <= 10, [0, 1]),
        (col.n >= 19, [1, 2]),
        (col.n <= 9, [0]),
        ("19 < n", [2]),
        ("10 >= n", [0, 1]),
        (col.word.starts_with("a9"), [0]),
        (col.flag, [2]),
        (~col.flag, [0, 1]),
        (col.rare.is_not_null(), [1]),
    ],
)
def test_a_row_group_is_read_for_the_value_at_its_end(tmp_path, where, groups):
    """The smallest and the largest value of a group belong to it."""
    n = range(30)
    columns = {
        "n": n,
        "word": [f"{'abc'[i // 10]}{i % 10}" for i in n],
        "flag": [i >= 20 for i in n],
        "rare": [i if 10 <= i < 20 else None for i in n],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=10)
    source = FileSource(tmp_path / "a.parquet", "ingredient 'a'")

    read = [part for fragment in source.fragments() for part in source.read(fragment, None, as_expression(where))]

    assert [int(rows[0]) // 10 for _, rows in read] == groups


def test_nulls_that_nobody_counted_may_be_there():
    """A footer without a count of nulls says nothing about them, so such a group is read."""
    uncounted = Footer(min=0, max=9)
    assert can_skip(col.x > 100, uncounted, pa.schema({"x": pa.int64()}))
    uncounted.has_null_count = False
    assert not can_skip(col.x > 100, uncounted, pa.schema({"x": pa.int64()}))
