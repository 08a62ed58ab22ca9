"""Bad input: an error of the right type that says where, which rule, which value and what next; nothing has changed.

The buffer under attack has a history (rows thinned at random, rows still pending) and a twin that is never attacked;
afterwards both do the same work and must agree, down to what they draw at random.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import re
import types
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolish import DatasetBuffer, Field
from poolish.errors import BadText, LimitExceeded, NumberTooLarge, PoolishError, SchemaError
from poolish.rows.validate import Limits
from tests.rows.facts import column, facts

CAFE = "caf\u00e9", "cafe\u0301"


def with_history(good: Any, **settings: Any) -> DatasetBuffer:
    """A buffer of ``good`` values that has seen life: generations, random survivors, rows that are pending now."""
    buffer = DatasetBuffer(max_size=20, drop_strategy="random", seed=3, **settings)
    buffer.append([{"x": good, "n": n} for n in range(15)])
    buffer.append([{"x": good, "n": n} for n in range(15, 30)], retain_prior=0.6, retain_prior_by="random")
    for n in range(30, 33):
        buffer.append({"x": good, "n": n})
    return buffer


def afterwards(buffer: DatasetBuffer, good: Any) -> dict[str, Any]:
    """The facts, after work that shows the random state and the pending rows too."""
    buffer.append({"x": good, "n": 50})
    buffer.append([{"x": good, "n": n} for n in range(60, 70)], retain_prior=0.5, retain_prior_by="random")
    return facts(buffer)


#: How a bad value gets in, and the row that the message must name.
DOORS = {
    "one row": lambda b, bad, good: b.append({"x": bad, "n": 0}),
    "in a list": lambda b, bad, good: b.append([{"x": good, "n": 0}, {"x": bad, "n": 1}, {"x": good, "n": 2}]),
    "in the middle of a thousand": lambda b, bad, good: b.append(
        {"x": bad if n == 500 else good, "n": n} for n in range(1_000)
    ),
    "in a later chunk": lambda b, bad, good: b.append({"x": bad if n == 8_200 else good, "n": n} for n in range(8_201)),
    "with thinning": lambda b, bad, good: b.append([{"x": bad, "n": 0}], retain_prior=0.5, retain_prior_by="random"),
    "in a column": lambda b, bad, good: b.append_columns({"n": [0, 1], "x": [good, bad]}),
    "in an update": lambda b, bad, good: b.update(b.ids[:2], {"n": [100, 101], "x": [good, bad]}),
}
ROW = {
    "in a list": 1,
    "in the middle of a thousand": 500,
    "in a later chunk": 8_200,
    "in a column": 1,
    "in an update": 1,
}


@dataclasses.dataclass
class Case:
    """A column begun with ``good``, a ``bad`` value for it, and what must be said."""

    good: Any
    bad: Any
    says: str
    error: type[Exception] = SchemaError
    builtin: type[Exception] = ValueError
    limits: Limits | None = None


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no repr")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


CASES = {
    # numbers
    "2**63": Case(1, 2**63, "int64.*9223372036854775808", NumberTooLarge, OverflowError),
    "-2**63 - 1": Case(-1, -(2**63) - 1, "int64.*-9223372036854775809", NumberTooLarge, OverflowError),
    "10**4000": Case(1, 10**4000, "int64", NumberTooLarge, OverflowError),
    "np.uint64 beyond int64": Case(1, np.uint64(2**63), "int64", NumberTooLarge, OverflowError),
    "200 into int8": Case(np.int8(1), 200, "int8.*200", NumberTooLarge, OverflowError),
    "-1 into uint8": Case(np.uint8(1), -1, "uint8.*-1", NumberTooLarge, OverflowError),
    "2**53 + 1 into float": Case(0.5, 2**53 + 1, "float64.*9007199254740993", NumberTooLarge, OverflowError),
    "10**400 into float": Case(0.5, 10**400, "float64", NumberTooLarge, OverflowError),
    "0.1 into float32": Case(np.float32(0.5), 0.1, "float32.*0.1", NumberTooLarge, OverflowError),
    "1e300 into float32": Case(np.float32(0.5), 1e300, "float32", NumberTooLarge, OverflowError),
    "65536 into float16": Case(np.float16(0.5), 65536.0, "float16", NumberTooLarge, OverflowError),
    "1.9 into int": Case(1, 1.9, "int64.*1.9.*round it"),
    "2.5 after 1": Case(1, 2.5, "int64.*2.5.*round it"),
    "np.float32 into int": Case(1, np.float32(2.5), "int64"),
    "tensor number into int": Case(1, torch.tensor(2.5), "int64"),
    "NaN into int": Case(1, float("nan"), "int64.*nan"),
    "inf into int": Case(1, float("inf"), "int64.*inf"),
    "text into int": Case(1, "7", "int64.*str '7'"),
    "text into float": Case(0.5, "7", "float64.*str '7'"),
    "True into int": Case(1, True, "int64.*bool True"),
    "True into float": Case(0.5, True, "float64.*bool True"),
    "1 into bool": Case(True, 1, "bool.*int 1"),
    "0.0 into bool": Case(True, 0.0, "bool.*float 0.0"),
    "complex into float": Case(0.5, 1j, "float64"),
    "int into complex": Case(1j, 1, "complex128"),
    "Decimal into float": Case(0.5, decimal.Decimal("0.5"), "float64"),
    "float into Decimal": Case(decimal.Decimal("0.5"), 0.5, "decimal128"),
    "too fine a Decimal": Case(decimal.Decimal("0.5"), decimal.Decimal("0.55"), "decimal128"),
    # text and bytes
    "bytes into text": Case("a", b"b", "text.*bytes b'b'.*decode"),
    "text into bytes": Case(b"a", "b", "bytes.*str 'b'.*encode"),
    "int into text": Case("a", 1, "text.*int 1"),
    "lone surrogate": Case("a", "rye \ud800", "UTF-8.*character 4", BadText, UnicodeError),
    "lone low surrogate": Case("a", "\udfff", "UTF-8.*character 0", BadText, UnicodeError),
    "lone surrogate in a list": Case(["a"], ["a", "\ud800"], r"at \[1\].*UTF-8", BadText, UnicodeError),
    "surrogate pair in halves": Case("a", "\ud83c\udf5e", "UTF-8", BadText, UnicodeError),
    "long text": Case(
        "a", "b" * 101, "101 bytes.*limit is 100.*cell_bytes=101", LimitExceeded, limits=Limits(cell_bytes=100)
    ),
    "long text in few characters": Case(
        "a", "ä" * 51, "102 bytes.*limit is 100", LimitExceeded, limits=Limits(cell_bytes=100)
    ),
    "long bytes": Case(b"a", b"b" * 101, "101 bytes.*limit is 100", LimitExceeded, limits=Limits(cell_bytes=100)),
    "long text in a list": Case(
        ["a"], ["b" * 101], r"at \[0\].*limit is 100", LimitExceeded, limits=Limits(cell_bytes=100)
    ),
    "long text in a struct": Case(
        {"a": "b"}, {"a": "b" * 101}, r"at \.a.*limit is 100", LimitExceeded, limits=Limits(cell_bytes=100)
    ),
    # times
    "datetime into date": Case(dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3), "date32"),
    "date into datetime": Case(dt.datetime(2026, 1, 2), dt.date(2026, 1, 2), "timestamp"),
    "zone into none": Case(dt.datetime(2026, 1, 2), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "timestamp.*time zone"),
    "none into zone": Case(dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.datetime(2026, 1, 2), "timestamp.*time zone"),
    "text into datetime": Case(dt.datetime(2026, 1, 2), "2026-01-02", "timestamp"),
    "int into datetime": Case(dt.datetime(2026, 1, 2), 5, "timestamp"),
    "huge int into datetime": Case(dt.datetime(2026, 1, 2), 2**62, "timestamp"),
    "huge float into time": Case(dt.time(1), -6.3e16, "time64"),
    "huge int into date": Case(dt.date(2026, 1, 2), 2**31 - 1, "date32"),
    "huge int into timedelta": Case(dt.timedelta(1), 2**63 - 1, "duration"),
    **{
        f"{np.asarray(bad).dtype} into {type(good).__name__}": Case(good, bad, "holds")
        for good in (dt.date(2026, 1, 2), dt.datetime(2026, 1, 2), dt.time(1), dt.timedelta(1), decimal.Decimal("1.5"))
        for bad in (np.False_, np.int8(1), np.float32(1), np.complex64(1), np.str_("1"))
        if not (isinstance(good, decimal.Decimal) and isinstance(bad, np.integer))
    },
    "int into timedelta": Case(dt.timedelta(1), 5, "duration"),
    "nanoseconds into microseconds": Case(np.datetime64(1, "us"), np.datetime64(1_001, "ns"), "timestamp"),
    "NaT": Case(np.datetime64(1, "us"), np.datetime64("NaT"), "NaT.*None"),
    "bytes into uuid": Case(uuid.UUID(int=1), b"0" * 16, "uuid"),
    # lists and structs
    "[1, 2.5]": Case([1], [1, 2.5], r"at \[1\].*int64.*2.5"),
    "[True] into list of int": Case([1], [True], r"at \[0\].*int64.*True"),
    "number into list": Case([1], 1, "list of int64.*int 1.*list"),
    "list into number": Case(1, [1], "int64.*list"),
    "text into list": Case(["a"], "a", "list of text.*str 'a'"),
    "array into list": Case([1], np.array([1]), "list of int64.*tolist"),
    "list into array": Case(np.array([1]), [1], "int64.1..*asarray"),
    "set into list": Case([1], {1}, "list of int64.*set"),
    "deeper list": Case([1], [[1]], r"at \[0\].*int64.*list"),
    "far too deep": Case([[1]], nested(5_000), r"at \[0\]\[0\].*int64.*list"),
    "missing key in a struct": Case({"a": 1, "b": 2}, {"a": 1}, "{a: int64, b: int64}.*missing.*'b'"),
    "extra key in a struct": Case({"a": 1}, {"a": 1, "b": 2}, "{a: int64}.*unknown.*'b'"),
    "other type in a struct": Case({"a": 1}, {"a": "x"}, r"at \.a.*int64.*str 'x'"),
    "other type far inside": Case({"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": "x"}]}, r"at \.a\[1\]\.b.*int64.*str 'x'"),
    "number into struct": Case({"a": 1}, 1, "{a: int64}.*int 1.*dict"),
    "struct into number": Case(1, {"a": 1}, "int64.*dict"),
    "key that is no text in a struct": Case({"a": 1}, {"a": 1, 2: 2}, "text.*int 2"),
    "empty key in a struct": Case({"a": 1}, {"a": 1, "": 2}, "not empty"),
    "key twice in a struct": Case({CAFE[0]: 1}, {CAFE[0]: 1, CAFE[1]: 2}, "twice"),
    # arrays
    "float64 array into float32": Case(np.zeros(2, np.float32), np.zeros(2), "float32.2..*float64.2..*astype"),
    "int array into float": Case(np.zeros(2), np.zeros(2, int), "float64.2..*int64.2."),
    "bool array into uint8": Case(np.zeros(2, np.uint8), np.zeros(2, bool), "uint8.2..*bool.2."),
    "another rank": Case(np.zeros(2), np.zeros((1, 2)), "float64.2..*float64.1, 2..*rank"),
    "another rank of ragged": Case(np.zeros((2, 1)), np.zeros(2), "float64.2, 1..*float64.2."),
    "number into array": Case(np.zeros(2), 1.5, "float64.2..*float 1.5"),
    "array into number": Case(1.5, np.zeros(2), "float64.*float64.2."),
    "another shape": Case(np.zeros(2), np.zeros(3), "float64.2..*float64.3."),
    "masked array": Case(np.zeros(2), np.ma.array([1.0, 2.0], mask=[0, 1]), "masked.*filled"),
    "masked number": Case(0.5, np.ma.masked, "masked"),
    "object array": Case(np.zeros(2), np.array([1, {}], object), "object.2."),
    "structured array": Case(np.zeros(2), np.zeros(2, [("a", int)]), "float64.2.|arrays of"),
    "sparse tensor": Case(np.zeros((2, 2), np.float32), torch.eye(2).to_sparse(), "sparse.*to_dense"),
    "meta tensor": Case(np.zeros(2, np.float32), torch.empty(2, device="meta"), "meta"),
    # things no cell holds
    "object": Case(1, object(), "int64.*object"),
    "object whose repr fails": Case(1, Unshowable(), "int64.*Unshowable"),
    "function": Case(1, len, "int64.*builtin"),
    "generator": Case([1], (i for i in range(2)), "list of int64.*generator"),
    "class": Case(1, int, "int64.*type"),
    "class of arrays": Case(1, np.ndarray, "int64.*type"),
}
LONG = ["in the middle of a thousand", "in a later chunk"]
SHORT = [door for door in DOORS if door not in LONG]
LONG_ONES = [(kind, door) for kind in ("2**63", "bytes into text", "another rank", "far too deep") for door in LONG]


@pytest.mark.parametrize("kind", CASES)
def test_a_bad_value_is_named_and_changes_nothing(kind):
    """On every way in: the right error, with row, column, rule, value and advice; the buffer goes on as its twin."""
    case = CASES[kind]
    for door in SHORT:
        attacked, twin = (with_history(case.good, limits=case.limits) for _ in range(2))

        with pytest.raises(case.error) as caught:
            DOORS[door](attacked, case.bad, case.good)

        error = caught.value
        assert type(error) is case.error
        assert isinstance(error, PoolishError)
        assert isinstance(error, case.builtin)
        assert re.search(case.says, str(error)), str(error)
        place = rf"row {ROW.get(door, 0)}, column 'x'( at \S+)?"
        assert re.match(f"{place}: .+, got .+; .+", str(error), re.DOTALL), str(error)
        assert len(str(error)) < 1_000
        assert afterwards(attacked, case.good) == afterwards(twin, case.good)


@pytest.mark.parametrize(("kind", "door"), LONG_ONES, ids=lambda part: part)
def test_one_bad_value_among_thousands_changes_nothing(kind, door):
    """The row is counted from the first sample, whatever the chunk, and none of those before it stays."""
    case = CASES[kind]
    attacked, twin = with_history(case.good), with_history(case.good)

    with pytest.raises(case.error, match=f"row {ROW[door]}, column 'x'"):
        DOORS[door](attacked, case.bad, case.good)

    assert afterwards(attacked, case.good) == afterwards(twin, case.good)


FIRST = {
    **{
        name: CASES[name]
        for name in ("2**63", "10**4000", "lone surrogate", "long text", "sparse tensor", "meta tensor")
    },
    **{name: Case(0, CASES[name].bad, "a cell holds") for name in ("object", "object whose repr fails", "function")},
    **{name: Case(0, CASES[name].bad, "a cell holds") for name in ("generator", "class", "class of arrays")},
    "masked number": CASES["masked number"],
    "object array": Case(0, np.array([1, {}], object), "int64.*dict"),
    "array of objects": Case(0, np.array([object()], object), "object"),
    "mixed list": Case(0, [1, 2.5], r"at \[1\].*int64.*2.5"),
    "text and bytes": Case(0, ["a", b"b"], r"at \[1\].*text.*bytes"),
    "bool and int": Case(0, [True, 1], r"at \[1\].*bool.*int 1"),
    "int and bool": Case(0, [1, True], r"at \[1\].*int64.*bool"),
    "lists that differ": Case(0, [[1], ["a"]], r"at \[1\]\[0\].*int64.*str"),
    "structs that differ": Case(0, [{"a": 1}, {"b": 1}], r"at \[1\].*{a: int64}.*'b'"),
    "arrays that differ": Case(0, [np.zeros(2), np.zeros((2, 2))], r"at \[1\].*float64.2..*float64.2, 2."),
    "structured array": Case(0, np.zeros(2, [("a", int)]), "arrays of"),
    "long double": Case(0, np.longdouble(1), "float128|longdouble"),
    "array of long doubles": Case(0, np.zeros(2, np.longdouble), "float128|longdouble"),
    "days": Case(0, np.array(["2026-01-02"], "M8[D]"), r"datetime64\[D\]"),
    "key that is no text": Case(0, {1: 2}, "text.*int 1"),
    "empty key": Case(0, {"": 2}, "not empty"),
    "key twice": Case(0, {CAFE[0]: 1, CAFE[1]: 2}, "twice"),
    "17 levels": Case(0, nested(17), "16", LimitExceeded),
    "5,000 levels": Case(0, nested(5_000), "16", LimitExceeded),
}


@pytest.mark.parametrize("kind", FIRST)
def test_a_bad_first_value_leaves_an_empty_buffer(kind):
    """Where there is no schema yet, a failed append does not make one: the next may bring anything."""
    case = FIRST[kind]
    buffer = DatasetBuffer(limits=case.limits)
    row = re.compile(r"row 0, column 'x'( at \S+)?: .+, got .+; .+", re.DOTALL)

    for append in (buffer.append, lambda r: buffer.append([r]), lambda r: buffer.append_columns({"x": [r["x"]]})):
        with pytest.raises(case.error, match=case.says) as caught:
            append({"x": case.bad})
        assert row.match(str(caught.value)), str(caught.value)
        assert isinstance(caught.value, case.builtin)

    assert facts(buffer) == facts(DatasetBuffer())
    buffer.append({"another": "column"})
    assert buffer.to_pydict() == {"another": ["column"]}


def test_a_list_that_holds_itself_is_refused():
    """It would nest for ever."""
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(LimitExceeded, match=r"row 0, column 'x'.*16"):
        DatasetBuffer().append({"x": endless})


def test_the_limit_of_a_cell_is_64_mb():
    """One byte more is refused, as text and as bytes."""
    for value in ("x" * ((64 << 20) + 1), b"x" * ((64 << 20) + 1)):
        with pytest.raises(LimitExceeded, match="row 0, column 'x': 67,108,865 bytes"):
            DatasetBuffer().append({"x": value})


@pytest.mark.parametrize(
    "append",
    [
        lambda b: b.append({"x": np.zeros(13)}),
        lambda b: b.append([{"x": np.zeros(13)}]),
        lambda b: b.append({"x": [np.zeros(13)]}),
        lambda b: b.append([np.zeros(13)]),
        lambda b: b.append_columns({"x": np.zeros((2, 13))}),
        lambda b: b.append_columns({"x": [np.zeros(13), np.zeros(2)]}),
        lambda b: b.append(pa.table({"x": pa.array([[0.0] * 13], pa.list_(pa.float64(), 13))})),
        lambda b: b.append(pa.table({"x": ["a", "b" * 101]})),
        lambda b: b.append(pa.table({"x": pa.array([b"b" * 101], pa.binary_view())})),
        lambda b: b.append(pa.table({"x": [["a", "b" * 101]]})),
        lambda b: b.append(pa.table({"x": [{"a": "b" * 101}]})),
        lambda b: b.append_columns({"x": pa.array(["b" * 101])}),
        lambda b: b.append_columns({"x": np.array(["b" * 101])}),
    ],
)
def test_the_limits_hold_on_every_way_in(append):
    """A table is no back door: what is too large in a dict is too large in Arrow."""
    buffer = DatasetBuffer(limits=Limits(cell_bytes=100, row_bytes=100))

    with pytest.raises(LimitExceeded, match=r"row \d, column '(x|tensor)'.*limit is 100"):
        append(buffer)

    assert facts(buffer) == facts(DatasetBuffer())


# -- keys


KEYS = {
    "missing": ({"n": 1}, "row {i}: column 'x' is missing.*\\['x', 'n'\\]"),
    "extra": ({"x": 1, "n": 1, "y": 1}, "row {i}: column 'y' is unknown.*\\['x', 'n'\\]"),
    "renamed": ({"x": 1, "m": 1}, "row {i}: column 'n' is missing, column 'm' is unknown"),
    "none": ({}, "row {i}: column 'x' is missing, column 'n' is missing"),
    "twice": ({"x": 1, "n": 1, CAFE[0]: 1, CAFE[1]: 1}, "row {i}: two keys are called 'café'"),
    "number": ({"x": 1, "n": 1, 5: 1}, "row {i}: .*text.*int 5"),
    "number instead": ({"x": 1, 5: 1}, "row {i}: .*text.*int 5"),
    "empty": ({"x": 1, "n": 1, "": 1}, "row {i}: .*not empty"),
    "nothing": ({"x": 1, "n": 1, None: 1}, "row {i}: .*text.*NoneType"),
    "bytes": ({b"x": 1, "n": 1}, "row {i}: .*text.*bytes b'x'"),
    "surrogate": ({"x": 1, "n": 1, "\ud800": 1}, "row {i}: .*(UTF-8|unknown)"),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("door", ["one", "last of three", "mapping", "object"])
def test_keys_that_do_not_fit_are_named_and_change_nothing(kind, door):
    """Missing, extra and impossible keys: which row, which keys, and which would fit."""
    row, says = KEYS[kind]
    attacked, twin = with_history(1), with_history(1)
    good = {"x": 1, "n": 1}

    with pytest.raises(SchemaError, match=says.format(i=2 if door == "last of three" else 0)) as caught:
        attacked.append(
            {"one": row, "last of three": [good, good, row], "mapping": types.MappingProxyType(row), "object": [row]}[
                door
            ]
        )

    assert "; " in str(caught.value)
    assert afterwards(attacked, 1) == afterwards(twin, 1)


@pytest.mark.parametrize(
    "row", [{1: 2}, {"": 1}, {None: 1}, {b"a": 1}, {"a": 1, CAFE[0]: 1, CAFE[1]: 1}, {"\ud800": 1}, {}], ids=repr
)
def test_a_first_row_with_impossible_keys_makes_no_schema(row):
    """A row needs names, and each once."""
    buffer = DatasetBuffer()

    for samples in (row, [row]):
        with pytest.raises(SchemaError, match="row 0: ") as caught:
            buffer.append(samples)
        assert "; " in str(caught.value)
    with pytest.raises(SchemaError):
        buffer.append_columns({name: [value] for name, value in row.items()})

    assert facts(buffer) == facts(DatasetBuffer())


@pytest.mark.parametrize(
    "append",
    [
        lambda b, n: b.append({f"c{i}": i for i in range(n)}),
        lambda b, n: b.append(pa.table({f"c{i}": [i] for i in range(n)})),
    ],
)
def test_4096_columns_are_the_most(append):
    """One more is refused before anything is made of them."""
    buffer, refused = DatasetBuffer(), DatasetBuffer()

    append(buffer, 4_096)
    with pytest.raises(LimitExceeded, match=r"4,097 columns.*4,096.*; "):
        append(refused, 4_097)

    assert len(buffer.schema) == 4_096
    assert refused.schema is None


@pytest.mark.parametrize("way", ["row", "rows", "columns", "table", "update"])
def test_a_declared_column_that_is_not_nullable_has_no_null(way):
    """None is refused, and so is a missing key."""
    buffer = DatasetBuffer(schema=[Field("a", "int64"), Field("b", "string", nullable=True)])
    buffer.append([{"a": 1, "b": "x"}, {"a": 2}])
    before = facts(buffer)
    attack = {
        "row": lambda: buffer.append({"a": None, "b": "x"}),
        "rows": lambda: buffer.append([{"a": 3, "b": "x"}, {"a": None, "b": "x"}]),
        "columns": lambda: buffer.append_columns({"a": [3, None], "b": ["x", "y"]}),
        "table": lambda: buffer.append(pa.table({"a": [3, None], "b": ["x", "y"]})),
        "update": lambda: buffer.update([0, 1], {"a": [3, None]}),
    }[way]

    with pytest.raises(SchemaError, match=rf"row {0 if way == 'row' else 1}, column 'a'.*not nullable.*None.*; "):
        attack()
    with pytest.raises(SchemaError, match="row 0: column 'a' is missing"):
        buffer.append({"b": "x"})

    assert facts(buffer) == before


# -- samples that fail on their own


def test_a_generator_that_fails_keeps_its_own_error_and_leaves_nothing():
    """The exception is the user's; no row that came before it stays."""

    def samples():
        for n in range(600):
            yield {"x": 1, "n": n}
        raise ZeroDivisionError("the user's own")

    attacked, twin = with_history(1), with_history(1)

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        attacked.append(samples(), retain_prior=-1)

    assert afterwards(attacked, 1) == afterwards(twin, 1)


def test_objects_whose_attributes_change_are_checked_each_time():
    """The first object decides the columns; one that has gained an attribute is refused."""
    buffer = DatasetBuffer()
    buffer.append(types.SimpleNamespace(a=1))
    before = facts(buffer)

    with pytest.raises(SchemaError, match="row 1: column 'b' is unknown"):
        buffer.append([types.SimpleNamespace(a=1), types.SimpleNamespace(a=1, b=2)])

    assert facts(buffer) == before


# -- columns


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({}, "columns"),
        (None, "columns.*NoneType"),
        ([1, 2], "columns.*list"),
        ({"x": [1], "n": [1, 2]}, "differ in length.*'x': 1.*'n': 2"),
        ({"x": 5, "n": [1]}, "column 'x'.*one value per row"),
        ({"x": np.array(5), "n": [1]}, "column 'x'.*one value per row"),
        ({"x": torch.tensor(5), "n": [1]}, "column 'x'.*one value per row"),
        ({"x": "ab", "n": [1, 2]}, "column 'x'.*str 'ab'"),
        ({"x": {"a": 1}, "n": [1]}, "column 'x'.*dict"),
        ({"x": [1], "n": None}, "column 'n'.*NoneType"),
        ({"x": [1]}, "column 'n' is missing"),
        ({"x": [1], "n": [1], "y": [1]}, "column 'y' is unknown"),
        ({"x": np.array([2**63], np.uint64), "n": [1]}, "row 0, column 'x'.*int64"),
        ({"x": np.array([1.5]), "n": [1]}, "row 0, column 'x'.*int64"),
        ({"x": np.array([True]), "n": [1]}, "row 0, column 'x'.*int64.*bool"),
        ({"x": np.array(["7"]), "n": [1]}, "row 0, column 'x'.*int64"),
        ({"x": np.ma.array([1], mask=[1]), "n": [1]}, "column 'x'.*masked"),
        ({"x": torch.eye(1).to_sparse(), "n": [1]}, "column 'x'.*sparse"),
        ({"x": pa.array(["a"]), "n": [1]}, "row 0, column 'x'.*int64.*text"),
        ({"x": np.zeros((1, 2), int), "n": [1]}, "row 0, column 'x'.*int64.*int64.2."),
        ({CAFE[0]: [1], CAFE[1]: [1]}, "twice"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_columns_that_do_not_fit_are_refused(columns, says):
    """One value per row and per column, and types that hold."""
    attacked, twin = with_history(1), with_history(1)

    with pytest.raises(SchemaError, match=says) as caught:
        attacked.append_columns(columns)

    assert "; " in str(caught.value)
    assert afterwards(attacked, 1) == afterwards(twin, 1)


# -- NaN is a value


def test_nan_is_kept_and_is_no_null():
    """In rows, lists, arrays and columns; None stays None."""
    nan = float("nan")
    buffer = DatasetBuffer()
    buffer.append([{"x": nan, "y": [nan, None], "z": np.array([nan])}, {"x": None, "y": None, "z": None}])
    buffer.append_columns({"x": np.array([nan, 1.0]), "y": [[nan], []], "z": np.array([[nan], [1.0]])})

    table = buffer.to_arrow()
    assert table["x"].null_count == 1
    assert [value != value if value is not None else None for value in column(buffer, "x")] == [True, None, True, False]
    assert np.isnan(buffer[0]["y"][0])
    assert buffer[0]["y"][1] is None
    assert np.isnan(buffer[2]["z"][0])


# Text that is none --------------------------------------------------------------------------------------------


def unchecked_text(values: list[bytes | None], type_: pa.DataType) -> pa.Array:
    """Bytes that claim to be text, as a Parquet file of another library may hold them."""
    raw = pa.array(values, pa.large_binary() if type_ == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(type_, len(raw), raw.buffers(), raw.null_count)


def _text_columns(bad: bytes) -> dict[str, tuple[pa.Array, str]]:
    values = [b"rye", None, b"", *[b"wheat"] * 20, bad, b"x"]
    text = unchecked_text(values, pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 24, 25]), text)
    return {
        "text": (text, "row 23, column 'x'"),
        "large text": (unchecked_text(values, pa.large_string()), "row 23, column 'x'"),
        "a slice": (text.slice(3), "row 20, column 'x'"),
        "a dictionary": (pa.DictionaryArray.from_arrays([1, 0], text.slice(22, 2)), "row 0, column 'x'"),
        "a list": (lists, r"row 2, column 'x' at \[21\]"),
        "a struct": (pa.StructArray.from_arrays([text], ["name"]), r"row 23, column 'x' at \.name"),
    }


@pytest.mark.parametrize("name", _text_columns(b"?"))
def test_text_from_arrow_is_utf_8(name):
    """Latin-1, surrogates and cut characters are refused with row and column, and nothing changes."""
    ways = (
        lambda buffer, array: buffer.append(pa.table({"x": array})),
        lambda buffer, array: buffer.append_columns({"x": array}),
        lambda buffer, array: buffer.append_where(pa.table({"x": array}), np.ones(len(array), bool)),
        lambda buffer, array: buffer.update(buffer.ids, {"x": array}),
    )
    for bad in (b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\xf0\x9f\x8d"):
        array, place = _text_columns(bad)[name]
        buffer = DatasetBuffer()
        buffer.append(pa.table({"x": pa.nulls(len(array), array.type)}))
        before = facts(buffer)
        for way in ways:
            with pytest.raises(BadText, match=rf"{place}: text is UTF-8, got bytes .*; decode it"):
                way(buffer, array)

            assert facts(buffer) == before


def test_text_that_is_null_or_masked_out_may_be_anything():
    """Only rows that enter are looked at."""
    table = pa.table({"x": unchecked_text([b"rye", b"\xff"], pa.string())})
    buffer = DatasetBuffer()

    buffer.append_where(table, [True, False])

    assert buffer.to_pydict() == {"x": ["rye"]}
