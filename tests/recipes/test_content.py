"""Fingerprints of tables are equal for equal values only, however these lie in memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish.fingerprints.tables import content_of

TYPES = st.recursive(
    st.sampled_from(
        [
            *(pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64(), pa.bool_(), pa.null(), pa.date32()),
            *(pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.timestamp("us"), pa.decimal128(5, 2)),
            *(pa.dictionary(pa.int8(), pa.string()), pa.string_view()),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda type_: pa.list_(type_, 2)),
        st.lists(inner, max_size=2).map(lambda parts: pa.struct([(f"f{i}", part) for i, part in enumerate(parts)])),
        inner.map(lambda type_: pa.map_(pa.string(), type_)),
    ),
    max_leaves=3,
)


def values_of(type_):
    """A few values of a type, so that equal and nearly equal columns are common; None among them."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_null(type_):
        return st.none()
    if pa.types.is_fixed_size_list(type_):
        found = st.lists(values_of(type_.value_type), min_size=2, max_size=2)
    elif pa.types.is_map(type_):
        found = st.lists(st.tuples(st.sampled_from(["", "k"]), values_of(type_.item_type)), max_size=2)
    elif pa.types.is_struct(type_):
        found = st.fixed_dictionaries({part.name: values_of(part.type) for part in type_.fields})
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        found = st.lists(values_of(type_.value_type), max_size=2)
    elif pa.types.is_fixed_size_binary(type_):
        found = st.sampled_from([b"abc", b"\0\0\0"])
    elif pa.types.is_binary(type_):
        found = st.sampled_from([b"", b"\0", b"a", b"ab"])
    elif pa.types.is_boolean(type_):
        found = st.booleans()
    elif "string" in str(type_):
        found = st.sampled_from(["", "a", "ab", "b", "é"])
    else:
        found = st.integers(0, 2)
    return st.one_of(found, st.none()) if not pa.types.is_map(type_) else found


@st.composite
def two_columns(draw):
    """Two columns of one type, often equal."""
    type_ = draw(TYPES)
    one = draw(st.lists(values_of(type_), max_size=5))
    other = draw(st.one_of(st.just(one), st.lists(values_of(type_), max_size=5)))
    return type_, one, other


def laid_out(values, type_, cuts, junk):
    """The values as chunks, each a slice of something larger."""
    whole = pa.array([*junk, *values, *junk], type_)
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    chunks = [whole.slice(len(junk) + low, high - low) for low, high in pairwise(edges)]
    return pa.table({"c": pa.chunked_array(chunks, type_)})


@settings(max_examples=150, deadline=None)
@given(two_columns(), st.lists(st.integers(0, 5), max_size=3), st.data())
def test_fingerprints_are_equal_for_equal_values_only(case, cuts, data):
    """However values are cut into chunks, sliced out of others, and whatever lies where nulls are."""
    type_, one, other = case
    junk = data.draw(st.lists(values_of(type_), max_size=3))

    first, second = laid_out(one, type_, cuts, junk), laid_out(other, type_, [], [])

    assert first["c"].to_pylist() == pa.chunked_array([pa.array(one, type_)]).to_pylist()
    assert (content_of(first) == content_of(second)) == (first["c"].to_pylist() == second["c"].to_pylist())


def test_what_lies_where_nulls_are_does_not_count():
    """The bytes under a null are anybody's."""
    valid = pa.py_buffer(bytes([0b101]))
    arrays = [pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(np.array([1, junk, 3]))]) for junk in (0, 77)]

    assert content_of(pa.table({"x": arrays[0]})) == content_of(pa.table({"x": arrays[1]}))
    assert content_of(pa.table({"x": [1, None, 3]})) == content_of(pa.table({"x": arrays[1]}))
    assert content_of(pa.table({"x": [1, 77, 3]})) != content_of(pa.table({"x": arrays[1]}))


def test_ids_types_and_columns_are_part_of_the_content():
    """The same numbers under another name, in another type or with other ids are something else."""
    tables = [pa.table({"x": [1, 2]}), pa.table({"y": [1, 2]}), pa.table({"x": pa.array([1, 2], pa.int32())})]
    tables += [pa.table({"x": ["1", "2"]}), pa.table({"x": [1, 2], "y": [1, 2]})]
    found = {content_of(table) for table in tables} | {content_of(tables[0], np.array(ids)) for ids in ([0, 1], [1, 0])}

    assert len(found) == 7
