"""Values nobody thought of: hypothesis appends them, and each is kept exactly or refused as a whole.

Two things may happen to an append, whatever is in it: the rows come back equal to what went in, or a PoolishError is
raised and the buffer is what it was. There is no third.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nst

from poolish import DatasetBuffer, Field
from poolish.errors import PoolishError
from tests.rows.facts import WAYS, facts

TEXT = st.text(st.characters(codec=None), max_size=5)  # lone surrogates and NUL included
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**65), 2**65),
    st.floats(width=64),
    st.sampled_from(
        [2**53, 2**53 + 1, 2.0**53, -(2**63), 2**63 - 1, 2**63, np.int8(5), np.uint64(2**63), np.float32(0.1)]
    ),
    TEXT,
    st.binary(max_size=3),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000),
    st.sampled_from(
        [object(), ..., {1}, range(2), 1j, np.datetime64("NaT"), np.timedelta64(5, "D"), np.array(3), np.str_("x")]
    ),
)
ARRAYS = nst.arrays(
    st.sampled_from(["?", "<i2", ">i4", "<f4", "f8", "c8", "M8[us]", "<U2", "O"]),
    nst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2),
)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "", "\u00e9", "e\u0301"]), inner, max_size=2)
    ),
    max_leaves=6,
)


def mostly_alike(draw):
    """A few values of one kind, perhaps with a stranger among them: all strangers would only be refused."""
    return st.lists(draw, min_size=1, max_size=4)


COLUMNS = st.one_of(
    mostly_alike(VALUES),
    mostly_alike(SCALARS),
    *(
        mostly_alike(st.one_of(st.none(), kind))
        for kind in (st.integers(-(2**63), 2**63 - 1), st.floats(), TEXT, st.datetimes(), ARRAYS)
    ),
    mostly_alike(st.lists(st.lists(st.integers(0, 9) | st.none(), max_size=2), max_size=2)),
    mostly_alike(st.fixed_dictionaries({"a": st.none() | st.floats(), "b": st.lists(TEXT, max_size=2)})),
)


def is_kept(got, gave):
    """Whether a value read is the value given: equal in value, and of the same sort."""
    if gave is None or got is None:
        return got is gave
    if isinstance(gave, np.ndarray) and gave.dtype.kind in "OU" and gave.ndim:
        gave = gave.tolist()
    if isinstance(gave, np.ndarray) and gave.ndim:
        native = gave.astype(gave.dtype.newbyteorder("="))
        return (
            isinstance(got, np.ndarray)
            and got.dtype == native.dtype
            and got.shape == native.shape
            and got.tobytes() == native.tobytes()
        )
    if isinstance(gave, np.ndarray):  # without dimensions: a number, or an array too where no number has its dtype
        gave, got = gave[()], got[()] if isinstance(got, np.ndarray) and got.shape == () else got
    if isinstance(gave, (list, tuple)):
        return isinstance(got, list) and len(got) == len(gave) and all(map(is_kept, got, gave))
    if isinstance(gave, dict):
        given = {"\u00e9" if name == "e\u0301" else name: part for name, part in gave.items()}
        return (
            isinstance(got, dict)
            and got.keys() == given.keys()
            and all(is_kept(got[name], given[name]) for name in got)
        )
    # NumPy fills arrays of objects with views of bytes, which are kept as bytes.
    return is_same_scalar(got, gave.tobytes() if isinstance(gave, memoryview) else gave)


def is_same_scalar(got, gave):
    sorts = [
        (bool, np.bool_),
        (int, float, complex, np.number, decimal.Decimal),
        str,
        bytes,
        (dt.date, np.datetime64),
        dt.time,
        (dt.timedelta, np.timedelta64),
    ]
    if not any(isinstance(got, sort) and isinstance(gave, sort) for sort in sorts):
        return False
    if isinstance(got, np.complexfloating):
        return got.tobytes() == got.dtype.type(gave).tobytes()
    if isinstance(gave, (float, np.floating)) and math.isnan(gave):
        return math.isnan(got)
    if isinstance(gave, (np.datetime64, np.timedelta64)) and np.isnat(gave):
        return bool(np.isnat(got))
    return bool(got == gave)


@given(COLUMNS)
def test_what_is_appended_is_kept_exactly_or_refused_whole(values):
    """On every way in; and those that take rows at once agree with each other."""
    outcomes = {}
    for way, append in WAYS.items():
        buffer = DatasetBuffer()
        buffer.append([{"n": 0, "x": None}])
        before = facts(buffer)
        try:
            append(buffer, [{"n": i, "x": value} for i, value in enumerate(values)])
        except PoolishError as error:
            outcomes[way] = type(error)
            assert way == "row by row" or facts(buffer) == before
        else:
            outcomes[way] = facts(buffer)["rows"]
            assert all(map(is_kept, buffer.to_pydict()["x"][1:], values))
            buffer.to_arrow().validate(full=True)

    assert outcomes["one call"] == outcomes["generator"] == outcomes["columns"]


@given(st.dictionaries(TEXT | st.integers() | st.none() | st.binary(max_size=1), st.integers(0, 3), max_size=4))
def test_a_row_of_any_keys_is_kept_or_refused(row):
    """Keys are names, or the row is refused; what was kept can be read, shown and taken elsewhere."""
    buffer = DatasetBuffer()
    try:
        buffer.append(row)
    except PoolishError:
        assert facts(buffer) == facts(DatasetBuffer())
    else:
        assert list(buffer[0].values()) == list(row.values())
        assert len(buffer.schema.fingerprint) == 16
        assert repr(buffer)
        assert buffer._repr_html_().isprintable() or "<table" in buffer._repr_html_()


@given(mostly_alike(VALUES), mostly_alike(VALUES))
@example([{"a": np.array([None, memoryview(b"")], "O")}], [{"a": np.array([None, memoryview(b"")], "O")}])
def test_an_update_is_made_exactly_or_not_at_all(first, second):
    """New values fit the column or nothing changes."""
    buffer = DatasetBuffer()
    try:
        buffer.append([{"x": value} for value in first])
    except PoolishError:
        return
    before, new = facts(buffer), (second * 4)[: len(first)]
    try:
        buffer.update(buffer.ids, {"x": new})
    except PoolishError:
        assert facts(buffer) == before
    else:
        assert all(map(is_kept, buffer.to_pydict()["x"], new))
        buffer.to_arrow().validate(full=True)


def arrow_values(type_):
    """Values of an Arrow type, the awkward ones among them."""
    if pa.types.is_integer(type_):
        bounds = np.iinfo(type_.to_pandas_dtype())
        return st.integers(int(bounds.min), int(bounds.max)) | st.integers(0, 3)
    if pa.types.is_floating(type_):
        return st.floats(width=type_.bit_width) | st.sampled_from([0.0, 1.0, 2.0**31, 2.0**53, 2.0**63])
    if pa.types.is_list(type_):
        return st.lists(st.none() | arrow_values(type_.value_type), max_size=3)
    if pa.types.is_fixed_size_list(type_):
        return st.lists(arrow_values(type_.value_type), min_size=type_.list_size, max_size=type_.list_size)
    if pa.types.is_struct(type_):
        return st.fixed_dictionaries({field.name: st.none() | arrow_values(field.type) for field in type_})
    return _OTHER_VALUES[type_]


_OTHER_VALUES = {
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("s"): st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)).map(
        lambda t: t.replace(microsecond=0)
    ),
    pa.timestamp("us"): st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),
    pa.duration("ms"): st.timedeltas(dt.timedelta(-9), dt.timedelta(9)).map(lambda t: dt.timedelta(seconds=t.seconds)),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.decimal128(6, 1): st.decimals(-1000, 1000, places=1),
}
NUMBERS = [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()]
ARROW_TYPES = [
    *NUMBERS,
    *_OTHER_VALUES,
    *(pa.list_(type_) for type_ in (pa.int8(), pa.int64(), pa.float32(), pa.string())),
    *(pa.list_(type_, 2) for type_ in (pa.int8(), pa.float32())),
    *(pa.struct([("a", type_)]) for type_ in (pa.int8(), pa.int64(), pa.float32())),
]


@given(st.data(), st.sampled_from(ARROW_TYPES), st.sampled_from(ARROW_TYPES) | st.sampled_from(NUMBERS))
def test_a_table_goes_into_any_column_exactly_or_not_at_all(data, given_type, declared):
    """Whatever the types on both sides: no value is rounded, wrapped, parsed or lost on the way."""
    values = data.draw(st.lists(st.none() | arrow_values(given_type), max_size=4))
    table = pa.table({"x": pa.array(values, given_type)})
    buffer = DatasetBuffer(schema=[Field("x", declared, nullable=True)])
    before = facts(buffer)

    try:
        buffer.append(table)
    except PoolishError:
        assert facts(buffer) == before
    else:
        kept = [value.tolist() if isinstance(value, np.ndarray) else value for value in buffer.to_pydict()["x"]]
        assert all(map(is_kept, kept, table["x"].to_pylist()))
        assert buffer.to_arrow().schema == buffer.schema.to_arrow()
        buffer.to_arrow().validate(full=True)
