"""Of one row, Python's own numbers and texts answer as the evaluator does, or they do not answer."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish.errors import ConfigError, LimitExceeded, RecipeError
from poolish.expressions import parse
from poolish.expressions.expression import Expression
from poolish.expressions.nodes import Node
from poolish.expressions.one_row import Undecided, for_one_row
from tests.effort import times

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "j": pa.int64(),
        "small": pa.int8(),
        "u": pa.uint64(),
        "x": pa.float64(),
        "y": pa.float64(),
        "half": pa.float32(),
        "b": pa.bool_(),
        "t": pa.large_string(),
        "s": pa.large_string(),
        "when": pa.timestamp("us"),
        "any name": pa.int32(),
    }
)
INTS = [0, 1, -1, 2, 3, -7, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 0.5, -2.5, 0.1, 1e308, -1e308, 5e-324, 2.0**53, math.inf, -math.inf, math.nan]
TEXTS = ["", "a", "A", "rye", "Rye bread", "ß", "É", "🥖", "a\0b", "  rye ", "\u3000", "z" * 40]

values = {
    "i": st.sampled_from(INTS),
    "j": st.sampled_from(INTS),
    "small": st.integers(-128, 127),
    "u": st.sampled_from([0, 1, 2**53 + 1, 2**63, 2**64 - 1]),
    "x": st.sampled_from(FLOATS),
    "y": st.sampled_from(FLOATS),
    "half": st.sampled_from(FLOATS).map(lambda x: float(np.float32(np.clip(x, -1e38, 1e38)))),
    "b": st.booleans(),
    "t": st.sampled_from(TEXTS),
    "s": st.sampled_from(TEXTS),
    "when": st.none(),
    "any name": st.integers(-3, 3),
}
rows = st.tuples(*(st.one_of(*[each] * 9, st.none()) for each in values.values()))

leaves = st.one_of(
    st.sampled_from(SCHEMA.names).map(lambda name: Node("column", value=name)),
    st.sampled_from([*INTS, *FLOATS[:-1], True, False, *TEXTS, 2.0, 2**63]).map(lambda v: Node("constant", value=v)),
)


def grown(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    pairs = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "and", "or"])
    ones = st.sampled_from(["not", "negative", "abs", "is_null", "is_finite", "length", "lower", "upper", "strip"])
    texts = st.sampled_from(["contains", "starts_with", "ends_with", "matches"])
    lists = st.lists(st.sampled_from([*INTS, *FLOATS[:-1], *TEXTS, True]), min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.builds(lambda op, a, b: Node(op, (a, b)), pairs, inner, inner),
        st.builds(lambda op, a: Node(op, (a,)), ones, inner),
        st.builds(lambda op, a, text: Node(op, (a,), text), texts, inner, st.sampled_from(["", "a", "ye", "r.e", "É"])),
        st.builds(lambda a, chosen: Node("in", (a,), chosen), inner, lists),
        st.builds(lambda a: Node("cast", (a,), "int64"), inner),
    )


@settings(max_examples=times(400))
@given(root=st.recursive(leaves, grown, max_leaves=6), row=rows)
def test_what_is_answered_for_one_row_is_what_the_evaluator_answers(root: Node, row: tuple):
    """For all operations, types and values: the same bool, or no answer."""
    try:
        expression = Expression(root)
    except (ConfigError, LimitExceeded):
        return
    of_row = for_one_row(expression, SCHEMA)
    table = pa.table({f.name: pa.array([v], f.type) for f, v in zip(SCHEMA, row, strict=True)}, schema=SCHEMA)
    try:
        answer = None if of_row is None else of_row(row)
    except Undecided:
        answer = None

    if answer is not None:
        try:
            expression.values(table.slice(0, 0))
        except RecipeError:  # the types do not fit, which suites ask before there are rows
            return
        assert expression.values(table).to_pylist() == [answer]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("i * 2 < 20 and x >= 0.5", {"i": 3, "x": 0.5}),
        ("i + j == 3 or not b", {"i": 1, "j": 2, "b": True}),
        ("t in ['rye', 'wheat'] and length(s) < 4", {"t": "rye", "s": "abc"}),
        ("contains(t, 'y') and starts_with(t, 'r') and ends_with(t, 'e') and matches(t, 'r.e')", {"t": "rye"}),
        ("lower(t) == 'rye' and upper(t) == 'RYE'", {"t": "Rye"}),
        ("abs(i) / j > 1.4 and i % j == 2 and -x < 0", {"i": -7, "j": 3, "x": 1.0}),
        ("is_finite(x) and not is_null(i) and half < 0.7 and `any name` >= 0", {"x": 1.0, "i": 1, "half": 0.5}),
        ("u > i", {"u": 2**64 - 1, "i": 2**63 - 1}),
    ],
)
def test_usual_rules_are_answered(text: str, row: dict):
    """Comparisons, logic, arithmetic, lists and texts need no columns."""
    of_row = for_one_row(parse(text), SCHEMA)

    assert of_row is not None
    assert of_row([row.get(name, 0) for name in SCHEMA.names]) is True


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("i + 1 > 0", {"i": 2**63 - 1}),
        ("i > 0 or j > 0", {"i": 1, "j": None}),
        ("i / j > 0", {"i": 1, "j": 0}),
        ("x / y > 0", {"x": 1.0, "y": 0.0}),
        ("i + x > 0", {"i": 2**53 + 1, "x": 0.5}),
        ("lower(t) == 'é'", {"t": "É"}),
    ],
)
def test_where_python_may_differ_nothing_is_answered(text: str, row: dict):
    """Nulls, overflow, division by zero, integers that a float rounds, letters beyond ASCII."""
    of_row = for_one_row(parse(text), SCHEMA)

    with pytest.raises(Undecided):
        of_row([row.get(name) for name in SCHEMA.names])


@pytest.mark.parametrize(
    "text", ["x % 2 == 0", "strip(t) == 'a'", "cast(i, 'float64') > 0", "when > when", "i + 1", "missing > 0", "b < b"]
)
def test_what_python_has_other_rules_for_is_not_compiled(text: str):
    """Remainders of floats, white space, casts, times, rules that are not true or false, columns that are not there."""
    assert for_one_row(parse(text), SCHEMA) is None
