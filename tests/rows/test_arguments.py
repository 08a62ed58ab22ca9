"""Arguments that make no sense: each is refused where it enters, by a message that names it and what would do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import poolish
from poolish import DatasetBuffer, Field
from poolish.errors import ConfigError, PoolishError, SchemaError, UnknownColumn
from poolish.rows.retention import n_kept
from tests.rows.facts import column, facts


@pytest.fixture
def buffer():
    """Ten rows, the first three gone, two of them pending."""
    buffer = DatasetBuffer()
    buffer.append([{"n": i, "weight": i / 10, "text": str(i)} for i in range(11)])
    buffer.retain(8 / 11)
    for i in (11, 12):
        buffer.append({"n": i, "weight": i / 10, "text": str(i)})
    return buffer


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_size": 0}, "max_size.*0"),
        ({"max_size": -1}, "max_size.*-1"),
        ({"max_size": 1.5}, "max_size.*1.5"),
        ({"max_size": 2.0}, "max_size.*2.0"),
        ({"max_size": True}, "max_size.*True"),
        ({"max_size": "10"}, "max_size.*'10'"),
        ({"max_size": float("nan")}, "max_size.*nan"),
        ({"drop_strategy": "newest"}, "drop_strategy='newest'.*'oldest', 'random'"),
        ({"drop_strategy": None}, "drop_strategy=None.*'oldest', 'random'"),
        ({"drop_strategy": ["oldest"]}, "drop_strategy=.*'oldest', 'random'"),
        ({"seed": -1}, "seed.*-1"),
        ({"seed": 1.5}, "seed.*1.5"),
        ({"seed": True}, "seed.*True"),
        ({"seed": None}, "seed.*None"),
        ({"seed": "x"}, "seed.*'x'"),
        ({"seed": 2**64}, "seed.*18446744073709551616"),
        ({"limits": 5}, "limits.*5"),
        ({"limits": {"cell_bytes": 5}}, "limits.*cell_bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_buffer_with_senseless_settings_is_not_made(arguments, says):
    """ConfigError, which is a ValueError, names the argument and the value."""
    with pytest.raises(ConfigError, match=says) as caught:
        DatasetBuffer(**arguments)

    assert isinstance(caught.value, PoolishError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("max_size", [np.int64(5), np.int32(5), 5])
def test_whole_numbers_of_numpy_are_whole_numbers(max_size):
    """A size that came out of an array is a size."""
    buffer = DatasetBuffer(max_size=max_size, seed=np.uint8(3))

    buffer.append([{"n": i} for i in range(7)])

    assert (len(buffer), buffer.max_size) == (5, 5)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (5, "schema|describes"),
        ("int64", "schema|describes|batch_schema"),
        ({"x": "int65"}, "'x'.*int65"),
        ({"x": None}, "'x'.*None"),
        ({1: "int64"}, "text.*int 1"),
        ([Field("x", "int64"), Field("x", "int64")], "'x' stands there twice"),
        ([Field("caf\u00e9", "int64"), Field("cafe\u0301", "int64")], "stands there twice"),
        ([Field("x", "int64"), 5], "batch_schema|Field"),
        (pa.schema([("x", pa.dense_union([pa.field("a", pa.int8())]))]), "'x'.*dense_union"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_describes_nothing_is_refused(schema, says):
    """Names the field and the entry."""
    with pytest.raises(SchemaError, match=says):
        DatasetBuffer(schema=schema)


FRACTIONS = [
    1.5,
    1.0000001,
    float("nan"),
    float("inf"),
    "x",
    "0.5",
    None,
    True,
    False,
    [0.5],
    np.array([0.5]),
    1j,
    np.float64(1.5),
]


@pytest.mark.parametrize("fraction", FRACTIONS, ids=repr)
@pytest.mark.parametrize("way", ["append", "append row", "append_columns", "append nothing", "retain"])
def test_a_fraction_is_a_number_up_to_1(buffer, fraction, way):
    """Refused before the samples are even looked at; the message shows the value."""
    before = facts(buffer)
    row = {"n": 0, "weight": 0.0, "text": ""}
    attack = {
        "append": lambda: buffer.append([row], retain_prior=fraction),
        "append row": lambda: buffer.append(row, retain_prior=fraction),
        "append_columns": lambda: buffer.append_columns(
            {name: [value] for name, value in row.items()}, retain_prior=fraction
        ),
        "append nothing": lambda: buffer.append([], retain_prior=fraction),
        "retain": lambda: buffer.retain(fraction),
    }[way]

    with pytest.raises(ConfigError, match=r"fraction|number") as caught:
        attack()

    assert ("retain_prior" if way != "retain" else "fraction") in str(caught.value)
    assert repr(fraction) in str(caught.value)
    assert facts(buffer) == before


@pytest.mark.parametrize("by", ["newest", "", None, 5, ["latest"], "LATEST"], ids=repr)
@pytest.mark.parametrize("way", ["append", "append row", "append first", "retain"])
def test_an_unknown_policy_is_refused_with_the_known_ones(buffer, by, way):
    """Even where nothing would be thinned."""
    row = {"n": 0, "weight": 0.0, "text": ""}
    empty = DatasetBuffer()
    before = facts(buffer)
    attack = {
        "append": lambda: buffer.append([row], retain_prior_by=by),
        "append row": lambda: buffer.append(row, retain_prior_by=by),
        "append first": lambda: empty.append(row, retain_prior_by=by),
        "retain": lambda: buffer.retain(0.5, by=by),
    }[way]

    with pytest.raises(ConfigError, match="'latest', 'oldest', 'random'"):
        attack()

    assert facts(buffer) == before
    assert facts(empty) == facts(DatasetBuffer())


def test_a_bad_fraction_is_told_before_a_generator_is_touched():
    """The samples are still there for the next try."""
    samples = ({"n": i} for i in range(3))
    buffer = DatasetBuffer()

    with pytest.raises(ConfigError):
        buffer.append(samples, retain_prior=1.5)
    buffer.append(samples)

    assert column(buffer, "n") == [0, 1, 2]


# -- sample


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": 11}, "11.*10.*replace=True"),
        ({"n": -1}, "-1"),
        ({"n": 1.5}, "1.5"),
        ({"n": "3"}, "'3'"),
        ({"n": True}, "True"),
        ({"n": None}, "None"),
        ({"n": 1, "weights": [1.0]}, "weights.*10.*1"),
        ({"n": 1, "weights": np.ones((10, 1))}, r"weights.*10.*\(10, 1\)"),
        ({"n": 1, "weights": [-1.0] + [1.0] * 9}, "weights"),
        ({"n": 1, "weights": [float("nan")] + [1.0] * 9}, "weights"),
        ({"n": 1, "weights": [float("inf")] + [1.0] * 9}, "weights"),
        ({"n": 1, "weights": [0.0] * 10}, "weights"),
        ({"n": 1, "weights": ["a"] * 10}, "weights"),
        ({"n": 3, "weights": [1.0, 1.0] + [0.0] * 8}, "3.*2.*replace=True"),
        ({"n": 1, "weights": "text"}, "weights|text"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("take", [lambda b: b, lambda b: b.snapshot()], ids=["buffer", "snapshot"])
def test_a_senseless_sample_is_refused(buffer, take, arguments, says):
    """More rows than there are, weights that are none: told with the numbers, and no random number is used up."""
    twin = DatasetBuffer()
    twin.append(buffer)

    with pytest.raises((ValueError, TypeError), match=says):
        take(buffer).sample(**arguments)

    assert buffer.sample(5)["n"].to_pylist() == twin.sample(5)["n"].to_pylist()


def test_a_sample_weighed_by_a_column_that_is_not_there_is_refused(buffer):
    """With the names that are."""
    with pytest.raises(UnknownColumn, match=r"'wait'.*'weight'"):
        buffer.sample(1, weights="wait")


def test_a_sample_of_nothing_from_nothing_is_an_empty_table():
    """0 rows can be had everywhere; 1 row cannot."""
    declared = DatasetBuffer(schema={"n": "int64"})

    assert declared.sample(0).num_rows == 0
    for replace in (False, True):
        with pytest.raises(ValueError, match=r"1.*0"):
            declared.sample(1, replace=replace)


# -- ids


@pytest.mark.parametrize(
    ("ids", "error", "says"),
    [
        ([13], IndexError, "13.*never given out"),
        ([3, -1], IndexError, "-1.*never given out"),
        ([2**63 - 1], IndexError, "never given out"),
        (np.array([2**63], np.uint64), IndexError, "9223372036854775808.*never given out"),
        ([2**64], (IndexError, OverflowError, TypeError), "18446744073709551616|object"),
        ([1.0], TypeError, "whole numbers.*float64"),
        ([True], TypeError, "whole numbers.*bool"),
        (["3"], TypeError, "whole numbers"),
        ([[3, 4]], TypeError, r"one dimension.*\(1, 2\)"),
        (None, TypeError, "whole numbers"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("way", ["by_id", "update"])
def test_ids_that_cannot_be_are_refused(buffer, way, ids, error, says):
    """An id that was never given out is a mistake; one that is gone is an answer."""
    before = facts(buffer)

    attack = {"by_id": buffer.by_id, "update": lambda ids: buffer.update(ids, {"n": [0] * np.size(ids)})}[way]

    with pytest.raises(error, match=says):
        attack(ids)

    assert facts(buffer) == before


def test_ids_that_are_gone_are_told(buffer):
    """``by_id`` gives the rest in the order asked for; one id need not stand in a list."""
    rows, gone = buffer.by_id([12, 0, 3, 12, 1])

    assert rows["n"].to_pylist() == [12, 3, 12]
    assert gone.tolist() == [0, 1]
    assert buffer.by_id(12).rows["n"].to_pylist() == [12]
    assert buffer.by_id([]).rows.num_rows == 0


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"m": [0, 0]}, UnknownColumn, "'m'.*'n'"),
        ({"n": [0]}, SchemaError, "column 'n'.*1.*2"),
        ({"n": [0, 0, 0]}, SchemaError, "column 'n'.*3.*2"),
        ({"n": np.zeros((2, 2), int)}, SchemaError, "column 'n'"),
        ({"n": 5}, SchemaError, "column 'n'"),
        ({"text": "ab"}, SchemaError, "column 'text'"),
        ({"n": [0, 2.5]}, SchemaError, "row 1, column 'n'.*2.5"),
        ({"weight": [0.5, 0.5], "text": ["a", b"b"]}, SchemaError, "row 1, column 'text'.*bytes"),
        ({"weight": np.array([0.5, 0.5]), "n": np.array([0.5, 0.5])}, SchemaError, "row 0, column 'n'.*int64"),
        ({"weight": pa.array([0.5, 0.5]), "n": pa.array(["a", "b"])}, SchemaError, "row 0, column 'n'.*text"),
        (None, SchemaError, "column"),
        ([("n", [0, 0])], SchemaError, "column"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_update_that_does_not_fit_changes_no_column(buffer, columns, error, says):
    """All columns are checked before the first is written."""
    before = facts(buffer)

    with pytest.raises(error, match=says):
        buffer.update([3, 4], columns)

    assert facts(buffer) == before


# -- columns by name


@pytest.mark.parametrize("convert", ["to_torch", "to_numpy"])
@pytest.mark.parametrize(("columns", "says"), [(["m"], "'m'.*'n'"), (["n", "m"], "'m'"), (["n", 5], "5")], ids=repr)
def test_a_column_that_is_not_there_is_refused_with_those_that_are(buffer, convert, columns, says):
    """UnknownColumn is a SchemaError and a KeyError, and its text is not quoted."""
    with pytest.raises(UnknownColumn, match=says) as caught:
        getattr(buffer, convert)(columns)

    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, SchemaError)
    assert not str(caught.value).startswith(("'", '"'))


@pytest.mark.parametrize("convert", ["to_torch", "to_numpy"])
def test_one_name_is_not_a_list_of_letters(buffer, convert):
    """``columns="text"`` asks for one column, or says how to ask."""
    with pytest.raises((TypeError, SchemaError), match=r"columns.*\['text'\]"):
        getattr(buffer, convert)("text")


# -- files


@pytest.mark.parametrize("content", [b"", b"text", b"POOLROW1" + b"\0" * 200])
def test_a_file_that_is_no_buffer_is_refused(tmp_path, content):
    """By its name, and with what to do."""
    path = tmp_path / "rows"
    path.write_bytes(content)

    with pytest.raises(poolish.errors.CorruptDataError, match=f"{path}.*; "):
        DatasetBuffer.load(path)


def test_a_file_that_is_not_there_is_a_missing_file(tmp_path):
    """As with ``open``."""
    with pytest.raises(FileNotFoundError):
        DatasetBuffer.load(tmp_path / "nothing")


def test_saving_into_a_folder_that_is_not_there_is_an_error(buffer, tmp_path):
    """And leaves nothing behind."""
    with pytest.raises(FileNotFoundError):
        buffer.save(tmp_path / "nothing" / "rows")

    assert list(tmp_path.iterdir()) == []


# -- functions of the user


@pytest.mark.parametrize("method", ["map", "filter"])
def test_an_error_in_a_users_function_keeps_its_type_and_gains_the_row(buffer, method):
    """No buffer is changed."""
    before = facts(buffer)

    def inspect(row):
        if row["n"] == 7:
            raise ZeroDivisionError("the user's own")
        return row

    with pytest.raises(ZeroDivisionError, match="the user's own") as caught:
        getattr(buffer, method)(inspect)

    assert "inspect" in caught.value.__notes__[0]
    assert "row 4" in caught.value.__notes__[0]
    assert facts(buffer) == before


@pytest.mark.parametrize("mask", [[True], np.ones((10, 1), bool), np.ones(11, bool)], ids=repr)
def test_a_mask_has_one_value_per_row(buffer, mask):
    """With both numbers."""
    with pytest.raises(IndexError, match="10"):
        buffer.filter(mask)


@pytest.mark.parametrize("mask", [[1] * 10, ["True"] * 10, [0.5] * 10, [None] * 10, 5, "text"], ids=repr)
def test_what_is_no_mask_is_refused(buffer, mask):
    """Row numbers or words given as a mask would silently keep other rows than meant."""
    with pytest.raises((TypeError, ValueError, IndexError)):
        buffer.filter(mask)


def test_map_must_give_rows(buffer):
    """What a row cannot be is refused with its number."""
    with pytest.raises(SchemaError, match="row 2"):
        buffer.map(lambda row: row if row["n"] < 5 else None)


# Numbers of NumPy ---------------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_python_s_own_inside(tmp_path):
    """Whatever integers, floats and text NumPy passes: settings, files and pickles hold none of its types."""
    buffer = DatasetBuffer(np.int64(50), np.str_("random"), seed=np.uint32(7))
    buffer.append([{"x": i} for i in range(40)])
    buffer.append({"x": -1}, np.float32(0.5), np.str_("latest"))
    buffer.retain(np.float16(0.5), by=np.str_("random"))
    buffer.save(tmp_path / "a.rows")
    twin = DatasetBuffer(50, "random", seed=7)
    twin.append([{"x": i} for i in range(40)])
    twin.append({"x": -1}, 0.5, "latest")
    twin.retain(0.5, by="random")

    again = DatasetBuffer.load(tmp_path / "a.rows")

    assert facts(buffer) == facts(twin) == facts(again)
    for each in (buffer, again):
        assert {type(each.max_size), type(each.next_id), type(each._settings()["seed"])} == {int}
        assert {type(each.drop_strategy), type(each._settings()["kind"])} == {str}


def test_a_fraction_in_single_precision_keeps_the_exact_number_of_rows():
    """The product is made in double precision: float32 would round it to the next multiple of 16 here."""
    n_rows = 300_000_001

    assert n_kept(n_rows, np.float32(0.75)) == round(n_rows * 0.75)
    assert n_kept(n_rows, np.float16(0.5)) == n_rows // 2
