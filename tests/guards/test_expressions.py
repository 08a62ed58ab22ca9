"""Expressions over columns: all rows at once and one by one they mean the same, and they can do nothing else."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError, LimitExceeded
from poolish.guards import Suite
from poolish.guards.expressions import parse
from poolish.guards.leaves import Rows, Unfit

ROWS = Rows.of(
    {
        "start": [0, 5, None],
        "end": [3, 4, 9],
        "price": [0.5, math.nan, 2.0],
        "word": ["rye", "wheat", None],
        "good": [True, False, None],
        "small": np.array([100, 120, 127], np.int8),
        "tokens": [[1, 2], [], None],
        "meta": [{"score": 1.0}, {"score": 2.0}, None],
        "odd name!": [1, 2, 3],
    }
)


def holds(text: str) -> list[bool]:
    expression = parse(text)
    found = expression.holds(ROWS)
    assert found.tolist() == expression.holds_one_by_one(ROWS).tolist()
    return found.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("end >= start", [True, False, True]),
        ("end >= start and price > 0", [True, False, True]),
        ("not price > 0", [False, True, False]),
        ("not not good", [True, False, True]),
        ("0 <= start < 5", [True, False, True]),
        ("1 + 2 * 3 == 7", [True] * 3),
        ("(1 + 2) * 3 == 9", [True] * 3),
        ("-start * -1 == start", [True, True, True]),
        ("2 - 1 - 1 == 0", [True] * 3),
        ("end / 2 == 1.5", [True, False, False]),
        ("end / 0 > 1000", [True] * 3),
        ("end % 2 == 1", [True, False, True]),
        ("-end % 4 == 1", [True, False, False]),
        ("word == \"rye\" or word == 'wh\\eat'", [True, True, True]),
        ("word in ['rye', \"spelt\"]", [True, False, True]),
        ("end in [3, -9, 9.0]", [True, False, True]),
        ("good", [True, False, True]),
        ("good or is_null(good)", [True, False, True]),
        ("is_null(start) == false", [True, True, False]),
        ("length(word) == 3", [True, False, True]),
        ("length(tokens) > 0", [True, False, True]),
        ("abs(start - end) < 3", [False, True, True]),
        ("is_finite(price)", [True, False, True]),
        ("is_finite(end)", [True] * 3),
        ("small + small == 200", [True, False, False]),
        ("small * 1e3 > 110000", [False, True, True]),
        ("meta.score < 2", [True, False, True]),
        ("`odd name!` != 2", [True, False, True]),
        ("price == 2 or start == 0", [True, False, True]),
        ("true", [True] * 3),
        ("1 > 2", [False] * 3),
        (" * ".join(["9223372036854775807"] * 20) + " * 1.5 > 1e300", [True] * 3),
        (" * ".join(["-9223372036854775807", *["9223372036854775807"] * 20]) + " / 3 < -1e300", [True] * 3),
        ("word not in ['rye']", [False, True, True]),
    ],
)
def test_what_expressions_mean(text, expected):
    """Precedence and chains as in Python; what is unknown because of a null holds."""
    assert holds(text) == expected


NUMBER = st.one_of(
    st.sampled_from(["i", "f", "u", "0", "1", "-2", "2.5", "9007199254740993", "9223372036854775807", "1e300"]),
)
SUM = st.recursive(
    NUMBER,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/%"), inner)
        | st.builds("-{}".format, inner)
        | st.builds("abs({})".format, inner)
    ),
    max_leaves=4,
)
CLAIM = st.recursive(
    st.builds("{} {} {}".format, SUM, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), SUM)
    | st.sampled_from(["b", "is_null(i)", "is_finite(f)", "i in [1, 2.0, 9007199254740993]"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner)
        | st.builds("not ({})".format, inner)
    ),
    max_leaves=4,
)
INTEGERS = st.sampled_from([None, 0, 1, -2, 2**53 + 1, 2**63 - 1, -(2**63)])


@given(
    CLAIM,
    st.lists(
        st.tuples(
            INTEGERS,
            st.none() | st.floats(allow_subnormal=False),
            st.sampled_from([None, 0, 2**64 - 1, 2**53 + 1]),
            st.sampled_from([None, True, False]),
        ),
        max_size=5,
    ),
)
def test_all_rows_at_once_say_what_each_row_says(text, rows):
    """Integers that overflow, integers that no float holds, NaN, nulls: the same answers as with Python's numbers."""
    types = {"i": pa.int64(), "f": pa.float64(), "u": pa.uint64(), "b": pa.bool_()}
    table = {name: pa.array([row[n] for row in rows], type_) for n, (name, type_) in enumerate(types.items())}
    expression = parse(text)

    expected = expression.holds_one_by_one(Rows.of(table))
    assert expression.holds(Rows.of(table)).tolist() == expected.tolist()


def test_integers_are_exact():
    """A float64 could not tell these apart."""
    rows = Rows.of({"a": [2**53 + 1, 2**62], "b": [2.0**53, 2.0**62]})

    assert parse("a == b").holds(rows).tolist() == [False, True]
    assert parse("a * 4 > 0").holds(rows).tolist() == [True, True]


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("", None, "text such as 'end >= start'"),
        ("end >=", 7, "a number, a text, a column or '(' was expected"),
        ("end = start", 5, "'=' has no meaning here"),
        ("(end > 1", 9, "')' was expected"),
        ("end > 1)", 8, "the end was expected"),
        ("end > 1; start", 8, "';' has no meaning"),
        ("end in 3", 8, "'[' was expected"),
        ("end in [start]", 9, "a list holds numbers and text only"),
        ("__import__('os')", 1, "'__import__' is no function here"),
        ("open('/etc/passwd')", 1, "'open' is no function here, there are abs, length, is_null, is_finite"),
        ("end.__class__()", 1, "'end.__class__' is no function"),
        ("lambda: 1", 7, "':' has no meaning"),
        ("[x for x in y]", 1, "a number, a text, a column"),
        ("end ** 2 > 1", 6, "a number, a text, a column"),
        ("f'{end}'", 2, "the end was expected"),
    ],
)
def test_what_is_no_expression_is_refused(text, place, why):
    """With the place; above all what would be a program in Python."""
    with pytest.raises(ConfigError) as caught:
        parse(text)

    assert why in str(caught.value)
    assert place is None or f"at character {place}:" in str(caught.value)


def test_expressions_are_bounded():
    """One that is too long or too deep ends neither the stack nor our patience."""
    with pytest.raises(LimitExceeded, match="4,096"):
        parse("a + " * 2_000 + "a > 1")
    with pytest.raises(LimitExceeded, match="64 deep"):
        parse("(" * 500 + "a > 1" + ")" * 500)
    assert parse("not " * 500 + "a > 1").holds(Rows.of({"a": [2]})).tolist() == [True]
    assert parse("-" * 1_001 + "a < 0").holds(Rows.of({"a": [2]})).tolist() == [True]


def from_deep_stack(call: Callable[[], Any], n_frames: int = 300) -> Any:
    """What a call gives to a program that is itself deep in calls, as trainers and test runners are."""
    return call() if n_frames == 0 else from_deep_stack(call, n_frames - 1)


CHAINS: dict[str, Callable[[int], str]] = {
    "sum": lambda n: "a" + " + a" * (n - 2) + " > 0",
    "product": lambda n: "a" + " * a" * (n - 2) + " > 0",
    "and": lambda n: "b" + " and b" * (n - 1),
    "or": lambda n: "b" + " or b" * (n - 1),
    "comparisons": lambda n: "a" + " < a" * (n - 1),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_longest_chain_is_checked_from_a_deep_stack(chain):
    """What is parsed can be used: all rows at once, one by one, and in another process."""
    rows = Rows.of({"a": [1, 1], "b": [True, True]})
    expression = parse(chain(200))

    at_once = from_deep_stack(lambda: expression.holds(rows))
    one_by_one = from_deep_stack(lambda: expression.holds_one_by_one(rows))
    again = from_deep_stack(lambda: pickle.loads(pickle.dumps(expression)))

    assert at_once.tolist() == one_by_one.tolist()
    assert again.text == expression.text
    assert again.holds(rows).tolist() == at_once.tolist()


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_longer_chain_is_refused_when_it_is_parsed(chain):
    """Before any row is met, with the way out; never by Python's stack."""
    with pytest.raises(LimitExceeded, match=r"more than 200 operations in a chain; .* split it"):
        parse(chain(201))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("word > 3", "text and number have no order"),
        ("good + 1 == 2", "'+' is for numbers, got bool"),
        ("end and good", "'and' is for bools, got number"),
        ("end + start", "is no claim that a row could break, but number"),
        ("length(end) > 1", "a number has no length"),
        ("tokens == 1", "list of int64"),
        ("nobody > 1", "there is no column 'nobody'"),
        ("word in [1]", "text and number have no order"),
    ],
)
def test_what_cannot_be_compared_says_so(text, why):
    """As a verdict on the data: another file may have other columns."""
    with pytest.raises(Unfit, match=why.replace("'+'", r"'\+'")):
        parse(text).holds(ROWS)

    result = Suite().expect_rows(text).check({name: ROWS[name].to_arrow() for name in ROWS.names})
    assert not result.ok


def test_a_bad_row_shows_the_values_that_it_has():
    """Of all columns that the expression is about."""
    result = Suite().expect_rows("end >= start").check({"start": [0, 5], "end": [3, 4]})

    assert str(result.failures[0]) == "end >= start: 1 of 2 rows are bad; row 1: end=4, start=5"
    assert result.bad_rows["reason"].to_pylist() == ["end >= start: got 4, got 5"]
