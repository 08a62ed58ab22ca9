"""``guards.validate``: the four levels for programs, the same that ``poolish check`` prints."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from poolish import DatasetBuffer, StreamStore
from poolish.cli.app import app
from poolish.errors import ConfigError
from poolish.guards import Profile, Suite, validate
from poolish.guards.checks.verdicts import LEVELS, level_named

ROWS = {"reward": np.linspace(-1, 1, 200), "start": np.arange(200), "end": np.arange(200) + 5}
SUITE = (
    Suite("rollouts")
    .schema({"reward": "float64", "start": "int64", "end": "int64"})
    .expect("reward", between=(-5, 5))
    .expect_rows("end >= start")
)


def parquet(path: Path, **changed: object) -> Path:
    pa.parquet.write_table(pa.table({**ROWS, **changed}), path)
    return path


def test_each_level_includes_the_previous_ones(tmp_path: Path):
    """A file with a fault of one level passes the levels below, by name and by number."""
    faulty = {
        1: tmp_path / "missing.parquet",
        2: parquet(tmp_path / "format.parquet", reward=["text"] * 200),
        3: parquet(tmp_path / "statistics.parquet", reward=np.full(200, 99.0)),
        4: parquet(tmp_path / "meaning.parquet", end=np.zeros(200, np.int64)),
    }

    found = {level: [validate(faulty[level], n, suite=SUITE).ok for n in (1, 2, 3, 4)] for level in faulty}
    named = {level: [validate(faulty[level], name, suite=SUITE).ok for name in LEVELS] for level in faulty}

    assert found == named == {level: [n < level for n in (1, 2, 3, 4)] for level in faulty}


def test_levels_have_names_and_numbers():
    """The seed's numbers, our names, and its word for the last one."""
    assert [level_named(level) for level in (1, "2", "statistics", "semantics")] == list(LEVELS)
    for wrong in (0, 5, True, 2.0, "everything", None):
        with pytest.raises(ConfigError, match="1 file, 2 format, 3 statistics, 4 meaning"):
            validate(ROWS, wrong)


@pytest.mark.parametrize("kind", ["parquet", "table", "buffer", "columns", "list", "glob", "directory", "jsonl.gz"])
def test_everything_that_holds_rows_can_be_validated(tmp_path: Path, kind: str):
    """The same bad row is found in a file, a glob, a table, a buffer and plain Python values."""
    table = pa.table(ROWS | {"reward": np.where(np.arange(200) == 7, 99.0, ROWS["reward"])})
    pa.parquet.write_table(table, tmp_path / "rows.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
    (tmp_path / "other").mkdir()
    (tmp_path / "other/rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    buffer = DatasetBuffer()
    buffer.append(table)
    data = {
        "parquet": str(tmp_path / "rows.parquet"),
        "table": table,
        "buffer": buffer,
        "columns": dict(zip(table.column_names, map(np.asarray, table.columns), strict=True)),
        "list": table.to_pylist(),
        "glob": tmp_path / "*.parquet",
        "directory": tmp_path / "other",
        "jsonl.gz": tmp_path / "other/rows.jsonl.gz",
    }[kind]

    found = validate(data, suite=SUITE)

    (bad,) = [verdict for verdict in found.verdicts if not verdict.ok]
    assert not found.ok
    assert np.flatnonzero(bad.bad).tolist() == [7]
    assert found.reports[0].failed_levels == ["statistics"]
    assert len(found.problems) == 1
    assert "reward is between -5 and 5" in found.problems[0]


def test_the_command_prints_what_validate_returns(tmp_path: Path):
    """One implementation: text and JSON of both agree, for files, a glob and a stream."""
    SUITE.save(tmp_path / "suite.yaml")
    parquet(tmp_path / "a.parquet")
    parquet(tmp_path / "b.parquet", reward=np.full(200, 99.0))
    with StreamStore(tmp_path / "stream", fields=["reward"]) as store:
        store.append(steps=[0, 1], names=["reward", "reward"], values=[1, 2])
    for data in (tmp_path / "a.parquet", tmp_path / "*.parquet", tmp_path / "stream"):
        found = validate(data, suite=tmp_path / "suite.yaml")

        plain = CliRunner().invoke(app, ["check", str(data), "--suite", str(tmp_path / "suite.yaml")])
        as_json = CliRunner().invoke(app, ["check", str(data), "--suite", str(tmp_path / "suite.yaml"), "--json"])

        assert plain.output.strip() == repr(found)
        assert json.loads(as_json.output) == json.loads(found.to_json())
        assert plain.exit_code == (1 if found.failed else 0)


@pytest.mark.parametrize("reference", ["path", "rows", "profile"])
def test_a_reference_says_what_is_usual(tmp_path: Path, reference: str):
    """As a path, as rows or as a profile; without a suite it suggests one."""
    rng = np.random.default_rng(0)
    good = {"reward": rng.normal(size=2_000)}
    pa.parquet.write_table(pa.table(good), tmp_path / "good.parquet")
    known = {"path": tmp_path / "good.parquet", "rows": good, "profile": Profile.of(good)}[reference]
    watching = Suite("watch").drift(["reward"], severity="error")

    for suite in (watching, None):
        same = validate({"reward": rng.normal(size=2_000)}, suite=suite, reference=known)
        moved = validate({"reward": rng.normal(0.5, 1, 2_000)}, suite=suite, reference=known)

        assert same.ok
        assert [verdict.ok for verdict in moved.verdicts if "reference" in verdict.check] == [False]


def test_what_cannot_be_asked_is_the_callers_mistake(tmp_path: Path):
    """Not a report: an error that names the argument and what it takes."""
    wrong = {
        "rows are a pa.Table": lambda: validate(42),
        "no file matches": lambda: validate(tmp_path / "*.csv"),
        "must be a local path": lambda: validate("s3://bucket/x.parquet"),
        "suite: a Suite, or the path": lambda: validate(ROWS, suite={"reward": 1}),
        "suite .*missing.yaml: No such file": lambda: validate(ROWS, suite=tmp_path / "missing.yaml"),
        "reference .*missing.parquet": lambda: validate(ROWS, reference=tmp_path / "missing.parquet"),
    }
    for message, ask in wrong.items():
        with pytest.raises(ConfigError, match=message):
            ask()


def test_columns_of_unequal_length_fail_the_format():
    """They are rows of a wrong format, which is what the report says."""
    found = validate({"a": [1, 2], "b": [1]}, level="format")

    assert found.reports[0].stopped_at == "format"
    assert "columns differ in length" in found.problems[0]
