"""One language: an expression means the same in a recipe's filter and map, in a suite and on the command line."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poolish import DatasetRecipe, Suite, bake
from poolish.cli.app import app
from poolish.errors import PoolishError
from poolish.expressions import parse

TABLE = pa.table(
    {
        "id": [0, 1, 2],
        "start": [0, 5, None],
        "end": [3, 4, 9],
        "zero": [0, 1, None],
        "big": [2**53 + 1, 2**62, -(2**63)],
        "price": [0.5, math.nan, 2.0],
        "none": [0.0, -0.0, None],
        "small": pa.array([100, 120, 127], pa.int8()),
        "huge": pa.array([2**64 - 1, 2**62, None], pa.uint64()),
        "near": [2.0**53, 2.0**62, 0.5],
        "word": ["Rye", " wheat", None],
        "code": pa.array(["rye", "oats", "rye"]).dictionary_encode(),
        "good": [True, False, None],
        "tokens": [[1, 2], [], None],
        "meta": [{"score": 1.0}, {"score": 2.0}, None],
        "odd name!": [1, 2, 3],
        "nothing": pa.nulls(3),
    }
)
T, F, N = True, False, None

#: An expression, and its answer for each row of the table.
CONDITIONS: list[tuple[str, list[bool | None]]] = [
    # grouping, as in Python
    ("1 + 2 * 3 == 7", [T, T, T]),
    ("(1 + 2) * 3 == 9", [T, T, T]),
    ("2 - 1 - 1 == 0", [T, T, T]),
    ("not not good", [T, F, N]),
    ("0 <= start < 5", [T, F, N]),
    ("-start * -1 == start", [T, T, N]),
    ("`odd name!` != 2", [T, F, T]),
    ("true", [T, T, T]),
    ("1 > 2", [F, F, F]),
    # nulls, as in SQL
    ("end >= start", [T, F, N]),
    ("end >= start and price > 0", [T, F, N]),
    ("price == 2 or start == 0", [T, F, T]),
    ("good", [T, F, N]),
    ("good or is_null(good)", [T, F, T]),
    ("good and false", [F, F, F]),
    ("is_null(start) == false", [T, T, F]),
    ("nothing > 1 or end == 4", [N, T, N]),
    ("is_null(end / zero)", [T, F, T]),
    ("start in [0, 7]", [T, F, N]),
    ("start not in [0, 7]", [F, T, N]),
    ("meta.score < 2", [T, F, N]),
    # NaN is a value
    ("price > 0", [T, F, T]),
    ("not price > 0", [F, T, F]),
    ("price != 2", [T, T, F]),
    ("is_finite(price)", [T, F, T]),
    ("is_finite(end)", [T, T, T]),
    # zero divisors: null for integers, IEEE for floats
    ("end / zero > 1", [N, T, N]),
    ("end % zero == 0", [N, T, N]),
    ("end / 0 > 1000", [N, N, N]),
    ("end % 0 == 0", [N, N, N]),
    ("end / none > 1000", [T, F, N]),
    ("end / 0.0 > 1000", [T, T, T]),
    ("is_finite(end % none)", [F, F, N]),
    ("end % 0.0 == end % 0.0", [F, F, F]),
    # integers are exact
    ("end / 2 == 1.5", [T, F, F]),
    ("end % 2 == 1", [T, F, T]),
    ("-end % 4 == 1", [T, F, F]),
    ("big % -1 == 0", [T, T, T]),
    ("big == near", [F, T, F]),
    ("big > near", [T, F, F]),
    ("big < huge", [T, F, N]),
    ("big == 9007199254740992.0", [F, F, F]),
    ("big / 2 > 1", [T, T, F]),
    ("huge == 18446744073709551615", [T, F, N]),
    ("small + small == 200", [T, F, F]),
    ("small * 1e3 > 110000", [F, T, T]),
    ("abs(start - end) < 3", [F, T, N]),
    ("end in [3, -9, 9.0]", [T, F, T]),
    # text
    ("lower(word) == 'rye'", [T, F, N]),
    ("upper(strip(word)) == 'WHEAT'", [F, T, N]),
    ("contains(word, 'e')", [T, T, N]),
    ("starts_with(word, 'R') or ends_with(word, 't')", [T, T, N]),
    ("matches(word, '^R.e$')", [T, F, N]),
    ("length(word) == 3", [T, F, N]),
    ("word in ['Rye', \"spelt\"]", [T, F, N]),
    ("word not in ['Rye']", [F, T, N]),
    ("code == 'rye'", [T, F, T]),
    ("length(code) == 3 and matches(code, 'y')", [T, F, T]),
    ("length(tokens) > 0", [T, F, N]),
    ("cast(end, 'string') == '3'", [T, F, F]),
]

#: An expression that cannot be evaluated on the table, and what the error says.
ERRORS = [
    ("big * 4 > 0", "overflow"),
    ("9223372036854775807 + 1 > 0", "overflow"),
    ("big + 0.5 > 0", "cannot be double as well"),
    ("cast(word, 'int64') > 0", "cannot be cast to int64"),
    ("word > 3", "cannot be compared with number 3"),
    ("good + 1 == 2", r"'\+' is for numbers, got column 'good'"),
    ("end and good", "'and' is for bools, got column 'end'"),
    ("end + 1", "gives int64, not true or false"),
    ("length(end) > 1", "column 'end' .* has no length"),
    ("tokens == 1", "cannot be compared"),
    ("absent > 1", "there is no column 'absent'"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(TABLE, place)
    return place


def kept(where: str, path: Path) -> list[int]:
    found = bake(DatasetRecipe("filter").add_ingredient("rows", str(path), where=where))
    return found.to_pydict()["id"]


@pytest.mark.parametrize(("text", "answers"), CONDITIONS, ids=[text for text, _ in CONDITIONS])
def test_a_filter_drops_unknowns_and_a_check_lets_them_pass(text, answers, path):
    """A recipe's ``where`` and ``map``, a pushed filter and a suite agree on every row."""
    mapped = DatasetRecipe("map").add_ingredient("rows", str(path)).prepare_step("answer", "map", columns={"a": text})

    assert kept(text, path) == [i for i, answer in enumerate(answers) if answer is True]
    assert bake(mapped).to_pydict()["a"] == answers
    assert Suite().expect_rows(text).check(TABLE).mask.tolist() == [answer is not False for answer in answers]
    assert parse(text).mask(TABLE)[1] == answers.count(None)


def test_the_command_line_agrees(path):
    """``poolish check`` counts the rows that are false."""
    suite = Suite("all")
    for text, _ in CONDITIONS:
        suite.expect_rows(text)
    suite.save(path.parent / "suite.yaml")

    shown = CliRunner().invoke(app, ["check", str(path), "--suite", str(path.parent / "suite.yaml"), "--json"])

    (report,) = json.loads(shown.output)["reports"]
    found = {verdict["check"]: verdict["n_bad"] for verdict in report["levels"]["meaning"]["verdicts"]}
    assert found == {text: answers.count(False) for text, answers in CONDITIONS}


@pytest.mark.parametrize(("text", "message"), ERRORS, ids=[text for text, _ in ERRORS])
def test_errors_are_the_same_everywhere(text, message, path):
    """A bake raises; a check fails, for the rows that cannot be evaluated, or with the reason if none can."""
    with pytest.raises(PoolishError, match=message):
        kept(text, path)

    result = Suite().expect_rows(text).check(TABLE.slice(1, 1))

    assert not result.ok
    assert re.search(message, result.failures[0].detail)
