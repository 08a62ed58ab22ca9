"""``poolish check``: files, directories, streams and queues, level by level, by exit code and report."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import xxhash
from typer.testing import CliRunner, Result

from poolish import DatasetBuffer, DatasetProvider, StreamStore
from poolish.cli.app import app
from poolish.guards import Suite
from poolish.guards.checks.verdicts import LEVELS
from poolish.testing import Canary
from tests.cli.commands import finish, start

TABLE = pa.table({"reward": np.linspace(-1, 1, 200), "kind": ["a", "b"] * 100, "n": np.arange(200)})
FORMATS = ("x.parquet", "x.arrow", "x.ipc", "x.jsonl", "x.csv", "x.tsv", "x.rows")


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def write(path: Path, table: pa.Table = TABLE) -> Path:
    """A table in the format that the name says."""
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".ipc":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif path.suffix == ".rows":
        buffer = DatasetBuffer()
        buffer.append(table)
        buffer.save(path)
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        pa.csv.write_csv(table, path, pa.csv.WriteOptions(delimiter=delimiter))
    return path


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite with something to say on each level."""
    made = Suite("rollouts").schema({"reward": "float64", "kind": str, "n": "int64"})
    made.expect("reward", finite=True, between=(-5, 5)).expect("kind", one_of=["a", "b"]).expect_rows("n >= 0")
    made.save(tmp_path / "suite.yaml")
    return tmp_path / "suite.yaml"


# Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_good_files_are_good(tmp_path: Path, suite: Path, name: str):
    """In every format, on every level."""
    done = check(write(tmp_path / name), "--suite", suite)

    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.output.splitlines()]
    assert lines[0].endswith(": ok")
    assert [line for line in lines if line.startswith(("file:", "format:", "statistics:", "meaning:"))] == [
        "file: ok",
        "format: ok, 7 checks",
        "statistics: ok, 3 checks",
        "meaning: ok, 1 check",
    ]


@pytest.mark.parametrize(
    ("change", "level", "found"),
    [
        ({"n": pa.array(["x"] * 200)}, "format", "column 'n' is text, not int64"),
        ({"extra": pa.array([1] * 200)}, "format", "column 'extra' is not in the schema"),
        (
            {"reward": pa.array([9.0] * 200)},
            "statistics",
            "reward is between -5 and 5: 200 of 200 rows are bad; row 0: 9.0",
        ),
        ({"n": pa.array(np.arange(200) - 1)}, "meaning", "n >= 0: 1 of 200 rows are bad; row 0: -1"),
    ],
)
def test_a_level_that_fails_hides_no_other(tmp_path: Path, suite: Path, change: dict, level: str, found: str):
    """With exit code 1; the levels above are checked and shown as well."""
    columns = {name: TABLE[name] for name in TABLE.column_names} | change

    done = check(write(tmp_path / "x.parquet", pa.table(columns)), "--suite", suite)

    assert done.exit_code == 1
    assert found in done.output
    assert f"{level}: failed" in done.output
    shown = [line.strip().partition(":")[0] for line in done.output.splitlines()]
    assert [line for line in shown if line in LEVELS] == list(LEVELS)


def test_only_the_levels_that_are_asked_for_are_looked_at(tmp_path: Path, suite: Path):
    """A file with bad values is a good file."""
    path = write(tmp_path / "x.parquet", TABLE.set_column(0, "reward", pa.array([9.0] * 200)))

    codes = [
        check(path, "--suite", suite, "--level", level).exit_code
        for level in ("file", "format", "statistics", "meaning")
    ]

    assert codes == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.touch(), "it is empty"),
        (lambda path: os.mkfifo(path), "not a regular file"),
    ],
)
def test_what_is_no_file_fails_the_first_level(tmp_path: Path, make, why: str):
    """Missing, empty, or something that would keep who opens it waiting."""
    make(tmp_path / "x.csv")

    done = check(tmp_path / "x.csv")

    assert done.exit_code == 1
    assert why in done.output
    assert [f"{level}: skipped, because file failed" in done.output for level in LEVELS] == [False, True, True, True]


@pytest.mark.parametrize("method", ["sha256", "xxh3"])
def test_a_checksum_beside_a_file_is_compared(tmp_path: Path, method: str):
    """As sha256sum and xxhsum write it."""
    path = write(tmp_path / "x.parquet")
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest() if method == "sha256" else xxhash.xxh3_64_hexdigest(data)
    beside = tmp_path / f"x.parquet.{method}"
    beside.write_text(f"{digest}  x.parquet\n")
    good = check(path)
    beside.write_text(f"{'0' * len(digest)}  x.parquet\n")
    bad = check(path)
    beside.write_text("what?")
    broken = check(path)

    assert good.exit_code == 0
    assert f"{method} is right" in good.output
    assert bad.exit_code == 1
    assert f"its {method} is {digest}" in bad.output
    assert broken.exit_code == 1


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("damage", ["cut", "flip", "garbage"])
def test_damaged_files_are_no_crash(tmp_path: Path, suite: Path, name: str, damage: str):
    """Whatever they say, they say it in a report; what a saved buffer holds is never believed."""
    path = write(tmp_path / name)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) * 2 // 3]
    elif damage == "flip":
        data[len(data) // 2] ^= 0x40
    else:
        data = bytearray(os.urandom(len(data)))
    path.write_bytes(data)

    done = check(path, "--suite", suite)

    assert done.exit_code in (0, 1)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    if name == "x.rows" or damage == "garbage" or (damage == "cut" and name in ("x.parquet", "x.arrow")):
        assert done.exit_code == 1


def test_a_file_of_a_format_that_is_not_known_is_not_read(tmp_path: Path, marker: Path):
    """A pickle among the data stays closed."""
    import pickle

    (tmp_path / "x.pkl").write_bytes(pickle.dumps(Canary(marker)))

    done = check(tmp_path / "x.pkl")

    assert done.exit_code == 1
    assert "no format that is known here" in done.output
    assert not marker.exists()


# Directories, streams, queues -------------------------------------------------------------------------------------


def test_a_directory_is_all_its_files(tmp_path: Path):
    """Each has a report; one that is bad is enough."""
    folder = tmp_path / "data"
    (folder / "part").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    write(folder / "a.parquet")
    write(folder / "part" / "b.csv")
    write(folder / ".hidden" / "c.csv")
    write(folder / "_unfinished.csv")
    good = check(folder)
    (folder / "part" / "d.csv").write_text("a,b\n1\n")
    bad = check(folder)

    assert good.exit_code == 0
    assert "2 checked: 2 ok" in good.output
    assert bad.exit_code == 1
    assert "3 checked: 2 ok, 1 failed" in bad.output


def test_a_stream_is_verified_and_its_fields_are_columns(tmp_path: Path):
    """A row for each step."""
    with StreamStore(tmp_path / "stream", fields=["action", "reward"]) as store:
        for i in range(20):
            store.append([i, i], ["action", "reward"], [i % 3, 0.5 * i])
        store.commit()
    Suite().expect("reward", at_most=100).expect_rows("action < 3").save(tmp_path / "s.toml")
    good = check(tmp_path / "stream", "--suite", tmp_path / "s.toml")
    data = tmp_path / "stream" / "data"
    content = bytearray(data.read_bytes())
    content[40] ^= 1
    data.write_bytes(content)
    bad = check(tmp_path / "stream", "--suite", tmp_path / "s.toml")

    assert good.exit_code == 0, good.output
    assert "20 rows, 3 columns: step, action, reward" in good.output
    assert bad.exit_code == 1
    assert "format: skipped, because file failed" in bad.output


def test_a_queue_is_verified_and_its_batches_are_rows(tmp_path: Path):
    """By the dataset, the queue or a split; nothing is taken out of it."""
    rows = [{"x": np.full(3, i), "reward": float(i)} for i in range(12)]
    with DatasetProvider(rows, path=tmp_path / "data", batch_size=4, epochs=1) as provider:
        provider.run()
    Suite().expect("reward", at_most=10).expect("x", shape=[3]).save(tmp_path / "s.yaml")

    for path in (tmp_path / "data", tmp_path / "data" / "queue", tmp_path / "data" / "queue" / "train"):
        done = check(path, "--suite", tmp_path / "s.yaml")
        assert done.exit_code == 1
        assert "reward is at most 10: 1 of 12 rows are bad" in done.output
    batch = next((tmp_path / "data" / "queue" / "train").glob("*.safetensors"))
    content = bytearray(batch.read_bytes())
    content[-1] ^= 1
    batch.unlink()
    batch.write_bytes(content)
    assert "format: skipped, because file failed" in check(tmp_path / "data").output


# A reference, and the report --------------------------------------------------------------------------------------


def test_a_reference_says_what_is_usual(tmp_path: Path):
    """Without a suite: its columns, its ranges, and no drift from it."""
    rng = np.random.default_rng(0)
    reference = write(tmp_path / "ref.parquet", pa.table({"x": rng.normal(size=2_000)}))
    same = write(tmp_path / "same.parquet", pa.table({"x": rng.normal(size=500) * 0.9}))
    shifted = write(tmp_path / "shifted.parquet", pa.table({"x": rng.normal(1, 0.2, 500)}))
    other = write(tmp_path / "other.parquet", pa.table({"y": rng.normal(size=500)}))

    assert check(same, "--reference", reference).exit_code == 0
    moved = check(shifted, "--reference", reference)
    assert moved.exit_code == 0
    assert f"{shifted} (parquet): warning" in moved.output
    assert "statistics: warning, 1 of 3 checks warned" in moved.output
    assert "warn: x is as in the reference (psi): psi" in moved.output
    assert check(shifted, "--reference", reference, "--fail-on", "warn").exit_code == 1
    assert "format: failed, 3 of 3 checks failed" in check(other, "--reference", reference).output


def test_the_report_is_json_or_a_page(tmp_path: Path, suite: Path):
    """For programs and for people."""
    path = write(tmp_path / "x.csv", TABLE.set_column(0, "reward", pa.array([9.5] * 200)))

    done = check(path, "--suite", suite, "--json", "--html", tmp_path / "report.html")

    shown = json.loads(done.output)
    assert (shown["outcome"], shown["ok"]) == ("failed", False)
    outcomes = {level: each["outcome"] for level, each in shown["reports"][0]["levels"].items()}
    assert outcomes == {"file": "ok", "format": "ok", "statistics": "failed", "meaning": "ok"}
    assert "reward is between -5 and 5" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--level", "everything"),
        ("--suite", "missing.yaml"),
        ("--suite", "suite.json"),
        ("--suite", "wrong.yaml"),
        ("--suite", "custom.yaml"),
        ("--reference", "missing.parquet"),
    ],
)
def test_a_wrong_question_is_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]):
    """Distinguished from bad data; a check that this program does not have cannot be asked for."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.csv")
    (tmp_path / "wrong.yaml").write_text("expekt: []")
    (tmp_path / "custom.yaml").write_text("checks: [{check: os.system}]")

    done = check(tmp_path / "x.csv", *arguments)

    assert done.exit_code == 2
    assert done.output.startswith("error: ")


def test_an_empty_directory_is_a_wrong_question(tmp_path: Path):
    """There is nothing to say about it."""
    assert check(tmp_path).exit_code == 2


def test_exit_codes_are_those_of_the_manual(tmp_path: Path):
    """Through the real command: 0 ok or warning, 1 failed or a warning with --fail-on warn, 2 a wrong question."""
    path = write(tmp_path / "x.parquet")
    for severity in ("warn", "error"):
        Suite().expect("reward", at_most=0, severity=severity).save(tmp_path / f"{severity}.yaml")
    Suite().expect("reward", at_most=1).save(tmp_path / "good.yaml")
    expected = {
        ("--suite", "good.yaml", "--fail-on", "warn"): (0, "ok"),
        ("--suite", "warn.yaml"): (0, "warning"),
        ("--suite", "warn.yaml", "--fail-on", "warn"): (1, "warning"),
        ("--suite", "error.yaml", "--fail-on", "error"): (1, "failed"),
        ("--suite", "missing.yaml"): (2, ""),
        ("--fail-on", "never"): (2, ""),
    }

    running = {options: start("check", path, *options, cwd=tmp_path) for options in expected}
    ended = {options: finish(process) for options, process in running.items()}

    for options, (code, outcome) in expected.items():
        assert ended[options][0] == code, (options, ended[options])
        assert (f"x.parquet (parquet): {outcome}\n" in ended[options][1]) == bool(outcome)


def test_help_states_the_exit_codes():
    """With the two levels of --fail-on."""
    shown = " ".join(check("--help").output.split())

    assert "Exit code: 0 ok, or warnings only; 1 failed, or a warning with --fail-on warn; 2" in shown
