"""One suite, six boundaries: append, bake, provider, consumer, Loader and `poolish check` give the same verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poolish import DatasetBuffer, DatasetConsumer, DatasetProvider, DatasetRecipe, Loader
from poolish.cli.app import app
from poolish.errors import ConfigError, DataRefused, SchemaError
from poolish.guards import Suite, register_check, validate

#: Check, severity, status, rows, and which of them are bad.
Found = list[tuple[str, str, str, int, list[int]]]


def told(verdicts: Any) -> Found:
    return sorted(
        (
            each.title,
            each.severity,
            each.status,
            each.n_rows,
            [] if each.bad is None else np.flatnonzero(each.bad).tolist(),
        )
        for each in verdicts
    )


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The results of all checks in this block."""
    results: list[Any] = []
    check = Suite.check

    def recorded(self: Suite, rows: Any, reference: Any = None, *, level: str | int = "meaning") -> Any:
        results.append(check(self, rows, reference, level=level))
        return results[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Suite, "check", recorded)
        yield results


def rows_of(table: pa.Table) -> DatasetBuffer:
    buffer = DatasetBuffer()
    buffer.append(table)
    return buffer


# The boundaries -----------------------------------------------------------------------------------------------------


def append(table: pa.Table, suite: Suite, folder: Path) -> list[int]:
    buffer = DatasetBuffer(guard=suite)
    buffer.append(table)
    return buffer.to_pydict().get("id", [])


def bake(table: pa.Table, suite: Suite, folder: Path) -> list[int]:
    return DatasetRecipe("r").add_ingredient("a", table).bake(guard=suite).table["id"].to_pylist()


def provider(table: pa.Table, suite: Suite, folder: Path) -> list[int]:
    serve(table, folder, suite)
    return read(folder, None)


def consumer(table: pa.Table, suite: Suite, folder: Path) -> list[int]:
    serve(table, folder, None)
    return read(folder, suite)


def serve(table: pa.Table, folder: Path, guard: Suite | None) -> None:
    settings = {"path": folder / "data", "batch_size": len(table), "order": "sequential", "epochs": 1}
    with DatasetProvider(rows_of(table), guard=guard, max_rejected=1.0, **settings) as made:
        made.run()


def read(folder: Path, guard: Suite | None) -> list[int]:
    with DatasetConsumer(folder / "data", output="numpy", guard=guard) as found:
        return [int(each) for batch in found for each in (batch["id"] if isinstance(batch, dict) else batch)]


def loader(table: pa.Table, suite: Suite, folder: Path) -> list[int]:
    batches = Loader(rows_of(table), max(len(table), 1), guard=suite)
    return [int(each) for batch in batches for each in batch["id"]]


BOUNDARIES = {"append": append, "bake": bake, "provider": provider, "consumer": consumer, "loader": loader}


# What is checked ----------------------------------------------------------------------------------------------------


@register_check("one_verdict.even")
def is_even(numbers: Any) -> Any:
    return numbers % 2 == 0


NAN, INF = float("nan"), float("inf")
COLUMNS: dict[str, pa.Array] = {
    "floats": pa.array([1.0, 2.0, NAN, INF, -5.0, 2.0]),
    "narrow floats": pa.array([0.1, 2.0, NAN, INF, -5.0, 2.0], pa.float32()),
    "integers": pa.array([1, 2, 3, 300, -5, 2]),
    "bytes of pixels": pa.array([1, 2, 3, 4, 255, 2], pa.uint8()),
    "flags": pa.array([True, False, True, True, False, True]),
    "nulls": pa.array([1.0, None, NAN, INF, -5.0, 2.0]),
    "null integers": pa.array([1, None, 3, 300, -5, 2]),
    "text": pa.array(["a", "b", "", "ab", "a", "c\n"]),
    "null text": pa.array(["a", None, "", "ab", "a", "c"]),
    "binary": pa.array([b"a", b"b", b"", b"ab", b"a", b"c"]),
    "lists": pa.array([[1.0], [], [NAN, 2.0], [3.0, 300.0], [1.0], [2.0]]),
    "lists of text": pa.array([["a"], [], ["b", "a"], ["c"], ["a"], ["d"]]),
    "vectors": pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2, 3, 4, NAN, 6, 7, 8, 900, 1, 1, 2]), 2),
    "times": pa.array([1, 2, 3, 4, 5, 5], pa.timestamp("ms")),
    "structs": pa.array([{"a": i, "b": "x"} for i in range(6)]),
    "no rows": pa.array([], pa.float64()),
}
#: What a boundary cannot carry is refused there with an error of its own, before any guard.
NOT_CARRIED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["nulls", "null integers"], ("provider", "consumer", "loader")),
    **dict.fromkeys(["null text", "lists of text", "times", "structs", "no rows"], ("provider", "consumer")),
}
#: No batch of no rows is ever handed out.
NEVER = {("no rows", "loader")}


def everything() -> Suite:
    """Every kind of check; most of them do not apply to most columns, which is a verdict as well."""
    suite = (
        Suite("everything")
        .expect("x", type="float64", dtype="float32", shape=[2], nullable=False)
        .expect("x", finite=True, between=(0, 10), one_of=[1, 2, "a", "b", True], matches="[ab]+", unique=True)
        .expect("x", min_length=1, max_length=1, at_least="1970-01-01T00:00:00.003", severity="warn")
        .expect("x.a", at_most=3)
        .expect("y", finite=True)
        .expect("id", at_most=2, severity="fatal", check="one_verdict.even")
        .expect_unique("x", "id")
        .expect_rows("x > 0 and id < 5")
        .expect_rows("not is_null(x) or id < 2", severity="warn")
        .expect_rows("length(x) >= 1 or x.a < 3")
        .expect_check("one_verdict.even", ["id"])
        .stat("x", mean=(0, 1), null_share=(0, 0.1), nan_share=(0, 0.1), distinct=(0, 3), max=(0, 5))
        .stat("x", std=(0, 1), min_rows=5, severity="error")
        .outliers("x", method="iqr", severity="error")
    )
    for family in ("number", "integer", "text", "list", "list of float64", "tensor", "time", "struct", "bool"):
        suite.expect("x", type=family)
    return suite


# The promise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COLUMNS)
def test_a_suite_gives_the_same_verdicts_at_every_boundary(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Checks, statuses, counts and bad rows; what the boundaries store and carry the rows in makes no difference."""
    column = COLUMNS[name]
    table = pa.table({"id": pa.array(range(len(column)), pa.int64()), "x": column})
    suite = everything().on(error="log", fatal="log")
    expected = told(suite.check(table).verdicts)

    found = {}
    for boundary, passes in BOUNDARIES.items():
        if boundary in NOT_CARRIED.get(name, ()) or (name, boundary) in NEVER:
            continue
        with listening(monkeypatch) as results:
            assert passes(table, suite, tmp_path / boundary) == table["id"].to_pylist()
        found[boundary] = told(results[-1].verdicts)

    assert len(found) >= 2
    assert found == dict.fromkeys(found, expected)


@pytest.mark.parametrize("name", COLUMNS)
def test_the_command_gives_the_verdicts_of_the_boundaries(name: str, tmp_path: Path):
    """`poolish check` of a file, and validate of it and of a buffer; the JSON has the same counts."""
    column = COLUMNS[name]
    table = pa.table({"id": pa.array(range(len(column)), pa.int64()), "x": column})
    pq.write_table(table, tmp_path / "x.parquet")
    suite = everything()
    suite.save(tmp_path / "suite.yaml")
    result = suite.check(rows_of(table))

    of_file, of_buffer = (validate(each, suite=suite) for each in (tmp_path / "x.parquet", rows_of(table)))
    arguments = ["check", str(tmp_path / "x.parquet"), "--suite", str(tmp_path / "suite.yaml"), "--json"]
    shown = json.loads(CliRunner().invoke(app, arguments).output)

    assert told(of_file.verdicts) == told(of_buffer.verdicts) == told(result.verdicts)
    counts = [(each["check"], each["columns"], each["status"], each["n_rows"], each["n_bad"]) for each in listed(shown)]
    wanted = [(v.check, list(v.columns), v.status, v.n_rows, v.n_bad) for v in result.verdicts]
    assert sorted(counts) == sorted(wanted)
    assert shown["outcome"] == result.outcome == of_file.outcome


def listed(shown: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for level in shown["reports"][0]["levels"].values():
        yield from level["verdicts"]


GOOD, ALL = [0, 1, 5], [0, 1, 2, 3, 4, 5]
#: By the table in docs/guards.md: the rows that pass, None where they are refused.
ACTIONS: dict[str, tuple[list[int] | None, list[int] | None]] = {
    "log": (ALL, ALL),
    "drop": (GOOD, GOOD),
    "skip": ([], []),
    "refuse": (None, []),
    "raise": (None, None),
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_is_the_same_at_every_boundary(action: str, boundary: str, tmp_path: Path):
    """Only a provider does not raise for ``refuse``: no caller could act on it, so it quarantines."""
    table = pa.table({"id": pa.array(ALL, pa.int64()), "x": COLUMNS["floats"]})
    suite = Suite("actions").expect("x", between=(0, 10)).stat("x", nan_share=(0, 0.01)).on(error=action)

    expected = ACTIONS[action][boundary == "provider"]
    if expected is None:
        with pytest.raises(DataRefused, match="x is between 0 and 10: 3 of 6 rows are bad; row 2"):
            BOUNDARIES[boundary](table, suite, tmp_path)
    else:
        assert BOUNDARIES[boundary](table, suite, tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "boundary"), [(name, boundary) for name, those in NOT_CARRIED.items() for boundary in those]
)
def test_what_a_boundary_cannot_carry_is_refused_by_name(name: str, boundary: str, tmp_path: Path):
    """And not judged as something else."""
    column = COLUMNS[name]
    table = pa.table({"id": pa.array(range(len(column)), pa.int64()), "x": column})

    with pytest.raises((SchemaError, ConfigError), match=r"'x'|the dataset is empty"):
        BOUNDARIES[boundary](table, everything().on(error="log", fatal="log"), tmp_path)
