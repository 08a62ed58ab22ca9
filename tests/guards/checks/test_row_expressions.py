"""``Suite.expect_rows``: text that is never a program, bounded, and verdicts that show the values."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from poolish.errors import ConfigError, LimitExceeded
from poolish.guards import Suite
from poolish.schema import tensor_type


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
        ("open('/etc/passwd')", 1, "'open' is no function here, there are abs, length, is_null, is_finite, lower"),
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
        Suite().expect_rows(text)

    assert why in str(caught.value)
    assert place is None or f"at character {place}:" in str(caught.value)


def test_expressions_are_bounded():
    """One that is too long or too deep ends neither the stack nor our patience."""
    with pytest.raises(LimitExceeded, match="4,194,304"):
        Suite().expect_rows("a" * 4_194_305)
    with pytest.raises(LimitExceeded, match=r"more than 200 operations in a chain; .* split it"):
        Suite().expect_rows("a + " * 200 + "a > 1")
    with pytest.raises(LimitExceeded, match="64 deep"):
        Suite().expect_rows("(" * 500 + "a > 1" + ")" * 500)
    assert Suite().expect_rows("not " * 500 + "a > 1").check({"a": [2]}).ok
    assert Suite().expect_rows("-" * 1_001 + "a < 0").check({"a": [2]}).ok


def test_suite_with_the_longest_chain_is_pickled():
    """For another process: by its text, which has no levels."""
    suite = pickle.loads(pickle.dumps(Suite().expect_rows("a" + " + a" * 198 + " > 0")))

    assert suite.check({"a": [1, 0]}).mask.tolist() == [True, False]


def test_length_of_arrays_counts_their_values():
    """Of one shape, or ragged."""
    suite = Suite().expect_rows("length(image) == 6").expect_rows("length(boxes) < 4")
    type_ = tensor_type("int64", (None, 2))
    boxes = type_.wrap_array(
        pa.array([{"data": [1, 2], "shape": [1, 2]}, {"data": [1, 2, 3, 4], "shape": [2, 2]}], type_.storage_type)
    )

    result = suite.check({"image": np.zeros((2, 2, 3)), "boxes": boxes})

    assert result.mask.tolist() == [True, False]


def test_a_row_that_overflows_is_bad_alone():
    """The others are judged as if it were not there; without others the verdict says why."""
    suite = Suite().expect_rows("a * 4 > 0")

    assert suite.check({"a": [1, 2**62, 2]}).mask.tolist() == [True, False, True]
    assert "overflow" in suite.check({"a": [2**62]}).failures[0].detail


def test_a_bad_row_shows_the_values_that_it_has():
    """Of all columns that the expression is about."""
    result = Suite().expect_rows("end >= start").check({"start": [0, 5], "end": [3, 4]})

    assert str(result.failures[0]) == "end >= start: 1 of 2 rows are bad; row 1: end=4, start=5"
    assert result.bad_rows["reason"].to_pylist() == ["end >= start: got 4, got 5"]
