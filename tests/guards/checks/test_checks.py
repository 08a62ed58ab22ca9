"""Checks of rows: all at once they say what a plain loop over the rows says."""

from __future__ import annotations

import datetime
import math
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer, Field
from poolish.columns import FlatValues, TableView
from poolish.errors import ConfigError, SchemaError
from poolish.guards import Suite, register_check

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=64)
WORDS = st.text(alphabet="abcé \n", max_size=6)
NUMBERS = st.one_of(st.integers(-1_000, 1_000), st.floats(-1e6, 1e6))


def good(column, **rules) -> list[bool]:
    """What a suite says of each row of a column."""
    return Suite().expect("c", **rules).check({"c": column}).mask.tolist()


def by_loop(values, is_good) -> list[bool]:
    """What a loop says: a null is good, a list is good if all that is in it is."""

    def judge(value) -> bool:
        if value is None:
            return True
        return all(map(judge, value)) if isinstance(value, list) else bool(is_good(value))

    return [judge(value) for value in values]


def nested(values):
    """Columns of single values, of lists, and of lists of lists, with nulls everywhere."""
    maybe = st.none() | values
    lists = st.none() | st.lists(maybe, max_size=3)
    return st.lists(maybe) | st.lists(lists) | st.lists(st.none() | st.lists(lists, max_size=2))


# Values -----------------------------------------------------------------------------------------------------------


@given(nested(FLOATS))
def test_finite(values):
    """Neither NaN nor infinity, wherever in a row."""
    assert good(values, finite=True) == by_loop(values, math.isfinite)


@given(nested(FLOATS), st.tuples(NUMBERS, NUMBERS).map(sorted))
def test_between_floats(values, bounds):
    """Both ends are inside; NaN is in no range."""
    low, high = bounds

    assert good(values, between=(low, high)) == by_loop(values, lambda value: low <= value <= high)


@given(nested(INT64), INT64 | FLOATS.filter(lambda bound: bound == bound))
def test_bounds_of_integers_are_exact(values, bound):
    """Also where a float64 could not tell two integers apart, and for bounds that no integer reaches."""
    assert good(pa.array(values, nested_type(values, pa.int64())), at_least=bound) == by_loop(
        values, lambda v: v >= bound
    )
    assert good(pa.array(values, nested_type(values, pa.int64())), at_most=bound) == by_loop(
        values, lambda v: v <= bound
    )
    assert good(pa.array(values, nested_type(values, pa.int64())), above=bound) == by_loop(values, lambda v: v > bound)
    assert good(pa.array(values, nested_type(values, pa.int64())), below=bound) == by_loop(values, lambda v: v < bound)


def nested_type(values, leaf: pa.DataType) -> pa.DataType:
    while any(isinstance(value, list) for value in values):
        leaf, values = pa.list_(leaf), [each for value in values if value for each in value]
    return leaf


def test_a_bound_tells_integers_apart_that_no_float_does():
    """A comparison in float64 would call these equal."""
    values = pa.array([2**53 + 1, 2**53])

    assert good(values, at_most=2.0**53) == [False, True]
    assert good(values, above=2.0**53) == [True, False]


def test_bounds_are_rounded_to_the_dtype_of_the_column():
    """A user who writes 0.1 means the 0.1 of the column; what no dtype holds is no bound of it."""
    values = np.array([0.1, 0.2, np.inf], np.float32)

    assert good(values, at_most=0.1) == [True, False, False]
    assert good(values, at_most=1e300) == [True, True, True]


def test_times_have_ranges():
    """Bounds are times, or text that reads as one."""
    times = pa.array([datetime.datetime(2026, 1, 1), datetime.datetime(2027, 1, 1), None])

    assert good(times, at_most="2026-06-01") == [True, False, True]
    assert good(times.cast(pa.date32()), between=(datetime.date(2026, 6, 1), "2028-01-01")) == [False, True, True]


@given(nested(st.sampled_from(["a", "b", "c", ""])), st.lists(st.sampled_from(["a", "b", "", 1, True])))
def test_one_of_texts(values, allowed):
    """Numbers are no texts."""
    texts = [each for each in allowed if isinstance(each, str)]

    assert good(pa.array(values, nested_type(values, pa.string())), one_of=allowed) == by_loop(
        values, texts.__contains__
    )


@given(nested(st.integers(-3, 3)), st.lists(st.sampled_from([-1, 0, 1, 2.0, 2.5, True, "1", 2**70])))
def test_one_of_numbers(values, allowed):
    """2.0 is 2, True is not 1."""
    numbers = [each for each in allowed if type(each) in (int, float)]

    assert good(pa.array(values, nested_type(values, pa.int64())), one_of=allowed) == by_loop(
        values, numbers.__contains__
    )


def test_one_of_truths():
    """And 1 is not True."""
    assert good([True, False, None], one_of=[True, 0]) == [True, False, True]


@given(nested(WORDS), st.sampled_from(["[ab]*", "a|bc", "", "é+", "(a|b){2}", "a.c", r"\w+"]))
def test_a_pattern_matches_the_whole_text(values, pattern):
    """As ``re.fullmatch`` does."""
    # RE2's \w is ASCII's.
    matches = re.compile(pattern, re.ASCII).fullmatch

    assert good(pa.array(values, nested_type(values, pa.string())), matches=pattern) == by_loop(values, matches)


def test_no_pattern_takes_long():
    """A pattern that would keep Python busy for years, such as a stranger may put into a file, comes to an end."""
    assert good(["a" * 200 + "!"], matches="(a*)*b") == [False]


@given(st.lists(st.none() | WORDS), st.integers(0, 5))
def test_lengths_of_text_are_in_characters(values, n):
    """Not in bytes."""
    array = pa.array(values, pa.string())

    assert good(array, min_length=n) == [value is None or len(value) >= n for value in values]
    assert good(array, max_length=n) == [value is None or len(value) <= n for value in values]


@given(st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4)), st.integers(0, 5))
def test_lengths_of_lists_are_in_elements(values, n):
    """Nulls inside count."""
    array = pa.array(values, pa.list_(pa.int64()))

    assert good(array, max_length=n) == [value is None or len(value) <= n for value in values]


@given(st.lists(st.none() | st.sampled_from([0.0, -0.0, 1.0, math.nan, 2.5])))
def test_unique_numbers(values):
    """The first of equals is good; a null equals nothing, NaN equals NaN."""
    assert good(pa.array(values, pa.float64()), unique=True) == first_of_equals([(value,) for value in values])


@given(st.lists(st.tuples(st.none() | st.integers(0, 2), st.sampled_from(["a", "b"]))))
def test_unique_over_columns(pairs):
    """Rows are equal if all the columns are."""
    columns = {"n": pa.array([n for n, _ in pairs], pa.int64()), "t": pa.array([t for _, t in pairs], pa.string())}

    assert Suite().expect_unique("n", "t").check(columns).mask.tolist() == first_of_equals(pairs)


def first_of_equals(rows) -> list[bool]:
    seen, found = [], []
    for row in rows:
        key = tuple("nan" if value != value else value for value in row)
        found.append(None in row or key not in seen)
        seen.append(key)
    return found


def test_unique_arrays():
    """Arrays are compared as a whole."""
    assert good(np.array([[1, 2], [2, 1], [1, 2]]), unique=True) == [True, True, False]


# What a column is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "rules"),
    [
        (np.zeros(2, np.float32), {"type": "float32"}),
        (np.zeros(2, np.float32), {"type": np.float32}),
        (np.zeros(2, np.float32), {"type": "number", "dtype": "float32"}),
        (["a"], {"type": "text"}),
        (["a"], {"type": str}),
        (["a"], {"type": "string"}),
        ([b"a"], {"type": "bytes"}),
        ([[1, 2]], {"type": "list", "dtype": "int64"}),
        ([[1, 2]], {"type": "list of int64"}),
        (np.zeros((2, 3, 4), np.uint8), {"type": "tensor", "dtype": "uint8", "shape": (3, None)}),
        (torch.zeros(2, 3, dtype=torch.bfloat16), {"shape": [3], "finite": True}),
        ([{"a": 1}], {"type": "struct"}),
        (pa.array([datetime.date(2026, 1, 1)]), {"type": "time"}),
        ([1, None], {"nullable": True}),
    ],
)
def test_a_column_of_the_right_kind_is_good(column, rules):
    """Types by any name that a schema takes, or by family."""
    assert all(good(column, **rules))


@pytest.mark.parametrize(
    ("column", "rules", "reason"),
    [
        (np.zeros(2, np.float32), {"type": "float64"}, "is float32, not float64"),
        (np.zeros((2, 3)), {"dtype": "float32"}, "holds float64, not float32"),
        (np.zeros((2, 3)), {"shape": (4,)}, "2 of 2 rows are bad"),
        (np.zeros((2, 3)), {"shape": (3, 1)}, "have 1 dimensions"),
        (["a", None], {"nullable": False}, "row 1: None"),
        (["a", "b"], {"finite": True}, "is text; finite is asked of numbers"),
        ([1, 2], {"matches": "a"}, "only text matches"),
        ([1, 2], {"max_length": 1}, "which has no length"),
        ([[1], [1, 2]], {"unique": True}, "only values of one size can be unique"),
        ([{"a": 1}], {"finite": True}, "whose values this check does not know"),
    ],
)
def test_a_column_of_another_kind_is_bad_and_says_why(column, rules, reason):
    """A wrong column is a verdict, not an exception: it came with the data."""
    result = Suite().expect("c", **rules).check({"c": column})

    assert not result.ok
    assert reason in str(result)


def test_a_column_that_is_not_there_is_bad():
    """Every row is, and the verdict names the columns that are there."""
    result = Suite().expect("reward", finite=True).check({"rewrad": [1.0, 2.0]})

    assert result.mask.tolist() == [False, False]
    assert "there is no column 'reward', only ['rewrad']" in str(result)


def test_a_part_of_a_struct_is_a_column():
    """By a dotted name; a column whose own name has the dot comes first."""
    column = [{"score": 0.5}, {"score": 7.0}, None]

    assert Suite().expect("meta.score", at_most=1).check({"meta": column}).mask.tolist() == [True, False, True]
    assert Suite().expect("meta.score", at_most=1).check({"meta": column, "meta.score": [9, 9, 0]}).mask.tolist() == [
        False,
        False,
        True,
    ]


# Arrays -----------------------------------------------------------------------------------------------------------


def test_one_bad_pixel_spoils_its_row():
    """Of arrays of one shape, of several, and in any dtype."""
    images = np.zeros((4, 3, 2, 2), np.float32)
    images[2, 1, 0, 1] = np.nan
    ragged = DatasetBuffer(schema=[Field("c", "float32", shape=(None, 2), nullable=True)])
    ragged.append([{"c": np.zeros((n, 2), np.float32)} for n in (1, 0, 3)] + [{"c": None}])
    ragged.append({"c": np.array([[0, 0], [np.inf, 0]], np.float32)})
    halves = torch.tensor([[1.0, 2.0], [float("nan"), 0.0]], dtype=torch.bfloat16)

    assert good(images, finite=True) == [True, True, False, True]
    assert good(ragged.to_arrow()["c"], finite=True) == [True, True, True, True, False]
    assert good(ragged.to_arrow()["c"], shape=(None, 2), max_length=1) == [True, True, False, True, False]
    assert good(halves, finite=True) == [True, False]
    assert good(np.zeros((2, 0)), finite=True) == [True, True]


def test_arrays_of_dtypes_that_arrow_lacks_are_checked():
    """Bool, complex and bfloat16, from a buffer's own columns."""
    buffer = DatasetBuffer()
    buffer.append({"b": np.array([True]), "c": np.array([1j, np.nan]), "h": torch.zeros(2, dtype=torch.bfloat16)})

    result = Suite().expect("b", one_of=[True]).expect("c", finite=True).expect("h", between=(0, 0)).check(buffer)

    assert [verdict.ok for verdict in result.verdicts] == [True, False, True]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"c": [1.0, None, 9.0]}),
        pa.table({"c": pa.chunked_array([[1.0], [None, 9.0]])}),
        pa.table({"c": [1.0, None, 9.0]}).to_batches()[0],
        pa.table({"c": pa.array([1.0, None, 9.0]).dictionary_encode()}),
        pd.DataFrame({"c": [1.0, None, 9.0]}),
        pl.DataFrame({"c": [1.0, None, 9.0]}),
        [{"c": 1.0}, {}, {"c": 9.0}],
        {"c": [1.0, None, 9.0]},
        {"c": pd.Series([1.0, None, 9.0])},
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_rows_of_any_origin(rows):
    """Arrow, pandas, polars, lists and dicts are the same rows."""
    result = Suite().expect("c", at_most=5).expect("c", nullable=False).check(rows)

    assert result.mask.tolist() == [True, False, False]


def test_a_buffer_tells_the_ids_of_bad_rows():
    """Ids outlive row numbers."""
    buffer = DatasetBuffer(max_size=3)
    buffer.append([{"x": float(i)} for i in range(5)])

    result = Suite().expect("x", at_most=3).check(buffer)

    assert result.bad_rows.to_pylist() == [{"row": 2, "id": 4, "reason": "x is at most 3: got 4.0"}]
    assert result.verdicts[0].examples[0].id == 4


@pytest.mark.parametrize("rows", [7, "text", [1, 2], {"c": 3.0}, {"c": "text"}, {"c": np.float64(1)}])
def test_what_is_no_rows_is_refused(rows):
    """By an error that says what rows are."""
    with pytest.raises(ConfigError, match=r"rows are a pa.Table|one value per row"):
        Suite().check(rows)


def test_columns_of_unequal_length_are_refused():
    """They are no table."""
    with pytest.raises(SchemaError, match="differ in length"):
        Suite().check({"a": [1], "b": [1, 2]})


def test_no_rows_are_good_rows():
    """An empty window has nothing wrong with it, and divides by nothing."""
    suite = Suite().expect("c", finite=True, unique=True, between=(0, 1)).expect_rows("c > 0").stat("c", mean=(0, 1))

    result = suite.outliers("c").drift().check(pa.table({"c": pa.array([], pa.float64())}), reference={"c": [1.0]})

    assert result.ok
    assert result.mask.shape == (0,)


def test_rows_of_flags_without_any():
    """Rows without values have no bad ones."""
    flat = FlatValues(np.array([]), None, None, np.array([0, 0, 0]))

    assert flat.rows_with(np.array([], bool)).tolist() == [False, False]
    assert len(TableView.of({})) == 0


# Checks of one's own ----------------------------------------------------------------------------------------------


@register_check("test.even")
def is_even(values):
    return values % 2 == 0


@register_check("test.sorted")
def is_sorted(table: pa.Table) -> bool:
    return table["n"].to_pylist() == sorted(table["n"].to_pylist())


def test_a_function_is_asked_by_its_name():
    """It gets columns, or the whole table, and answers for each row or for all."""
    suite = Suite().expect("n", check="test.even").expect_check("test.sorted", severity="warn")

    result = suite.check({"n": [4, 3, 2]})

    assert result.mask.tolist() == [True, False, True]
    assert [str(verdict) for verdict in result.failures] == [
        "n test.even: 1 of 3 rows are bad; row 1: 3",
        "test.sorted: 3 of 3 rows are bad; row 0, row 1, row 2",
    ]


def test_an_error_of_ones_own_function_keeps_its_type():
    """And says which check it was."""

    @register_check("test.broken")
    def broken(values):
        raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError) as caught:
        Suite().expect("n", check="test.broken").check({"n": [1]})

    assert caught.value.__notes__ == ["while check 'test.broken' looked at n"]


@pytest.mark.parametrize("answer", [np.ones(2), np.ones(3, bool), "yes", None])
def test_a_function_that_answers_otherwise_is_a_mistake(answer):
    """One truth for each row, or one for all."""
    register_check("test.odd")(lambda values: answer)

    with pytest.raises(ConfigError, match="return True or False for each of 2 rows"):
        Suite().expect("n", check="test.odd").check({"n": [1, 2]})


def test_a_name_that_is_not_registered_is_refused_with_the_nearest():
    """Before any row is looked at."""
    with pytest.raises(ConfigError, match=r"'test.evn' is not registered here; did you mean 'test.even'\?"):
        Suite().expect("n", check="test.evn")
    with pytest.raises(ConfigError, match="a name is up to 128"):
        register_check("os system")


@pytest.mark.parametrize(("dtype", "first"), [("float64", 2**53), ("float32", 2**24), ("float16", 2**11)])
def test_integers_are_exact_beside_floats(dtype: str, first: int):
    """A rule about an integer that the column's floats cannot hold is not a rule about the next one that they can."""
    rows = {"x": np.array([first, first + 2], dtype)}

    rules = {"one_of": [first + 1, first + 2], "at_least": first + 1, "at_most": first + 1, "above": first}
    rules["below"] = first + 2
    answers = {name: Suite().expect("x", **{name: value}).check(rows).mask.tolist() for name, value in rules.items()}

    assert answers == {
        "one_of": [False, True],
        "at_least": [False, True],
        "at_most": [True, False],
        "above": [False, True],
        "below": [True, False],
    }
    assert Suite().expect("x", above=first + 1).check(rows).mask.tolist() == [False, True]
    assert Suite().expect("x", below=first + 1).check(rows).mask.tolist() == [True, False]
