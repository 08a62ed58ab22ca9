"""Columns of anything tabular: checks and statistics read the same values, whatever holds them."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from poolish import DatasetBuffer, Field
from poolish.columns import Column, FlatValues, NotApplicable, NotTabular, TableView, columns_of
from poolish.errors import ConfigError, SchemaError
from poolish.guards import Profile, Suite
from poolish.guards.stats.samples import ColumnSample


def checked(values: object, **rules: object) -> list[bool]:
    """What a suite says of each row."""
    return Suite().expect("c", **rules).check({"c": values}).mask.tolist()


def profiled(values: object):
    """What a profile says of the column."""
    return Profile.of({"c": values})["c"]


# What two readers once disagreed about ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoded", [pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.large_string()])
def test_text_is_text_in_every_encoding(encoded: pa.DataType):
    """Views and dictionaries only save space."""
    values = pa.array(["rye", None, "wheat", "rye"], encoded)

    assert checked(values, max_length=3) == [True, True, False, True]
    assert profiled(values).categories == {"rye": 2, "wheat": 1}
    assert profiled(values).nulls == 1


def test_bytes_of_views_have_lengths():
    """As other bytes do."""
    values = pa.array([b"ab", None, b"abc"], pa.binary_view())

    assert checked(values, max_length=2) == [True, True, False]
    assert (profiled(values).kind, profiled(values).lengths.max) == ("other", 3)


def test_run_end_encoding_is_decoded():
    """Its nulls lie inside of the runs, where a count of nulls does not see them."""
    values = pc.run_end_encode(pa.array([7, 7, None, 9]))

    assert checked(values, at_most=8) == [True, True, True, False]
    assert checked(values, nullable=False) == [True, True, False, True]
    assert (profiled(values).mean, profiled(values).nulls) == (23 / 3, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_narrow_floats_are_read_as_numbers(dtype: torch.dtype):
    """NumPy has no such dtype; float32 holds each of their values."""
    values = torch.tensor([0.5, -2.0, 1.0]).to(dtype)

    assert checked(values, at_least=0) == [True, False, True]
    assert (profiled(values).min, profiled(values).max) == (-2.0, 1.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_tensors_of_narrow_floats_are_not_their_bits(dtype: str):
    """A buffer keeps them in integers; neither check nor profile takes those for the values."""
    buffer = DatasetBuffer(schema=[Field("c", dtype, shape=(2,))])
    buffer.append([{"c": np.array([0.5, 1.0], np.float32)}, {"c": np.array([-2.0, 1.0], np.float32)}])
    values = buffer.to_arrow()["c"]

    assert checked(values, at_least=0) == [True, False]
    assert (profiled(values).kind, profiled(values).min, profiled(values).max) == ("tensor", -2.0, 1.0)


def test_ragged_tensors_are_tensors():
    """In a buffer's column and in a list of arrays, with a null among them."""
    buffer = DatasetBuffer(schema=[Field("c", "float64", shape=(None, 2), nullable=True)])
    arrays = [np.zeros((1, 2)), None, np.full((3, 2), 5.0)]
    buffer.append([{"c": array} for array in arrays])

    for values in (buffer.to_arrow()["c"], arrays, [None if a is None else torch.from_numpy(a) for a in arrays]):
        assert checked(values, at_most=1) == [True, True, False]
        assert checked(values, type="tensor", shape=(None, 2), max_length=1) == [True, True, False]
        found = profiled(values)
        assert (found.kind, found.nulls, found.moments.n) == ("tensor", 1, 8)
        assert found.shapes == {(1, 2): 1, (3, 2): 1}


def test_arrays_of_different_ranks_have_values_and_no_type():
    """Ranges and statistics apply; what needs one type for the column says why it does not."""
    values = [np.zeros((2, 2)), None, np.full(3, 5.0)]
    column = Column("c", values)

    assert checked(values, at_most=1) == [True, True, False]
    assert profiled(values).shapes == {(2, 2): 1, (3,): 1}
    assert column.shape_counts() == Counter({(2, 2): 1, (3,): 1})
    with pytest.raises(NotApplicable, match="different ranks"):
        _ = column.type
    assert "different ranks" in str(Suite().expect("c", type="tensor").check({"c": values}))


def test_booleans_in_bytes_are_booleans():
    """Arrow's bool8 is no column of integers."""
    values = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))

    assert checked(values, type="bool") == [True, True, True]
    assert (profiled(values).kind, profiled(values).categories) == ("bool", {True: 1, False: 1})


def test_list_views_are_lists():
    """Their entries may lie in any order in memory."""
    values = pa.ListViewArray.from_arrays(pa.array([2, 0]), pa.array([1, 2]), pa.array([1.0, 2.0, 9.0]))

    assert checked(values, at_most=5) == [False, True]
    assert checked(values, max_length=1) == [True, False]
    assert (profiled(values).kind, profiled(values).max, profiled(values).lengths.max) == ("list", 9.0, 2)


def test_byte_order_does_not_matter():
    """Numbers from a file of another machine."""
    values = np.array([1.5, 4.0], ">f8")

    assert checked(values, at_most=2) == [True, False]
    assert Suite().expect_rows("c < 2").check({"c": values}).mask.tolist() == [True, False]
    assert profiled(values).mean == 2.75


def test_integers_beyond_64_bits_are_floats():
    """Arrow has no integers of that size. A statistic may round them; a rounded one could pass a check it must fail."""
    assert checked([2**70, 1, None], at_most=2**66) == [False, True, True]
    assert profiled([10**30, 1]).max == 1e30
    for too_precise in ([2**70 + 1, 1], [10**400]):
        with pytest.raises(SchemaError, match="convert them"):
            checked(too_precise, at_most=1)


def test_decimals_and_times_of_day_are_measured_and_not_compared_inexactly():
    """A statistic may round them, a check of single values does not."""
    decimals = pa.array([Decimal("0.10"), Decimal("2.50"), None])
    times = pa.array([datetime.time(0, 0, 1), datetime.time(0, 0, 3)])

    assert (profiled(decimals).mean, profiled(times).mean) == (1.3, 2e6)
    assert profiled(pa.array([[Decimal("0.10")], None])).moments.n == 1
    for values in (decimals, times):
        with pytest.raises(NotApplicable, match="cast it first"):
            _ = Column("c", values).flat


def test_dates_are_counted_in_days_and_compared_as_times():
    """The unit of a statistic is that of the column."""
    values = pa.array([datetime.date(1970, 1, 2), datetime.date(1970, 1, 4)])

    assert (profiled(values).min, profiled(values).max) == (1, 3)
    assert checked(values, at_most="1970-01-03") == [True, False]


def test_missing_times_of_numpy_are_missing():
    """NaT is what NumPy has for null."""
    found = profiled(np.array(["2026-01-01", "NaT"], "datetime64[s]"))

    assert (found.count, found.nulls, found.moments.n) == (2, 1, 1)


# Rows and columns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [42, "text", [1, 2], np.zeros(3)])
def test_what_holds_no_rows_is_refused_by_name(rows: object):
    """Both kinds of error that callers handle."""
    for error in (ConfigError, SchemaError):
        with pytest.raises(error, match=f"list of dicts, got {type(rows).__name__}"):
            columns_of(rows)


@pytest.mark.parametrize("values", [5, "text", np.array(5), {"a": 1}, torch.tensor(1.0)])
def test_what_holds_no_column_is_refused_by_name(values: object):
    """One value per row."""
    with pytest.raises(NotTabular, match="column 'x': an array or a list with one value per row"):
        TableView.of({"x": values})


def test_a_mixture_of_types_is_refused_with_the_types():
    """And with the column."""
    with pytest.raises(SchemaError, match=r"column 'x': values of one type, got int, str"):
        TableView.of({"x": [1, "a"]})


def test_fields_of_structs_and_records_are_columns():
    """By ``column.field``."""
    records = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])

    assert TableView.of({"r": records})["r.b"].flat.values.tolist() == [2.5, 4.5]
    assert ColumnSample.of(records).kind == "other"
    with pytest.raises(NotApplicable, match=r"no column 'r.c'"):
        TableView.of({"r": records})["r.c"]


def test_present_values_leave_out_nulls():
    """Of numbers and of text."""
    assert Column("c", [1, None, 3]).flat.present.tolist() == [1, 3]
    assert Column("c", ["a", None]).flat.present.to_pylist() == ["a"]
    assert FlatValues(np.arange(2)).present.tolist() == [0, 1]
