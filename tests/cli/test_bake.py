"""``poolish bake``: a recipe file becomes a directory, complete or not at all, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from poolish import DatasetBuffer, DatasetRecipe
from poolish.cli.app import app
from poolish.cli.bake import WRITTEN, Order, Watched, bake, write_result
from poolish.files import publish_directory, publishing
from poolish.recipes.steps import registry as steps
from tests.cli.commands import finish, start
from tests.effort import times
from tests.faults import die_at_call, fork, in_child, kill, wait_until

RECIPE = """
name: breads
seed: 7
instructions:
- {ingredient: rye, source: data/*.parquet, where: n >= 10}
- {step: twice, use: map, columns: {n: n * 2}}
"""
FILES = ["data.parquet", "lineage.parquet", "rejects.parquet", "report.html", "report.json"]


@pytest.fixture(autouse=True)
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and its data, in which we are; steps that are registered are forgotten afterwards."""
    monkeypatch.setattr(steps, "_REGISTRY", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for i in range(3):
        part = pa.table({"n": range(10 * i, 10 * i + 10), "text": [f"row {k}" for k in range(10)]})
        pa.parquet.write_table(part, tmp_path / "data" / f"{i}.parquet")
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bake", *map(str, arguments)])


def with_step(body: str, folder: Path = Path()) -> Path:
    """The recipe with a step of the user's, and the file that registers it."""
    (folder / "r.yaml").write_text(RECIPE + "- {step: mine, use: mine}\n")
    code = f"import os, time\nfrom poolish import register_step\n\n@register_step('mine')\ndef mine(row):\n    {body}\n"
    (folder / "mine.py").write_text(code)
    return folder / "mine.py"


def numbers(out: str | Path = "out") -> list[int]:
    found: list[int] = pa.parquet.read_table(Path(out, "data.parquet")).column("n").to_pylist()
    return found


BAKED = list(range(20, 60, 2))


# What is written ----------------------------------------------------------------------------------------------------


def test_a_recipe_becomes_a_directory():
    """Rows, lineage, rejects and reports, and a summary on the screen."""
    done = run("r.yaml", "-o", "out")

    assert done.exit_code == 0, done.output
    assert sorted(os.listdir("out")) == FILES
    assert numbers() == BAKED
    lineage = pa.parquet.read_table("out/lineage.parquet")
    assert lineage.column("file").to_pylist() == ["1.parquet"] * 10 + ["2.parquet"] * 10
    report = json.loads(Path("out/report.json").read_text())
    assert (report["n_rows"], report["fingerprint"]) == (20, DatasetRecipe.load("r.yaml").fingerprint)
    assert "<!doctype html>" in Path("out/report.html").read_text()
    assert "breads: 20 rows" in done.stdout
    assert "written to out" in done.stdout
    assert sorted(os.listdir()) == ["data", "out", "r.yaml"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "buffer"])
def test_rows_come_in_the_format_that_is_asked_for(kind: str):
    """The same rows in each."""
    assert run("r.yaml", "-o", "out", "--format", kind).exit_code == 0

    if kind == "parquet":
        found = numbers()
    elif kind == "arrow":
        found = pa.ipc.open_file(pa.memory_map("out/data.arrow")).read_all().column("n").to_pylist()
    else:
        found = DatasetBuffer.load("out/data.rows").to_pydict()["n"]
    assert found == BAKED


def test_the_number_of_workers_changes_no_byte():
    """Nor does a cache."""
    assert run("r.yaml", "-o", "one", "--workers", "1").exit_code == 0
    assert run("r.yaml", "-o", "many", "--workers", "4", "--cache", "kept").exit_code == 0
    again = run("r.yaml", "-o", "again", "--cache", "kept")

    assert "fragments from the cache" in again.stdout
    for name in ("data.parquet", "lineage.parquet", "rejects.parquet"):
        assert Path("one", name).read_bytes() == Path("many", name).read_bytes() == Path("again", name).read_bytes()


def test_a_nested_folder_of_a_recipe_is_where_its_paths_begin(kitchen: Path, monkeypatch: pytest.MonkeyPatch):
    """Wherever the command is started."""
    (kitchen / "elsewhere").mkdir()
    monkeypatch.chdir(kitchen / "elsewhere")

    assert run("../r.yaml", "-o", "out").exit_code == 0

    assert numbers() == BAKED


def test_explain_bakes_nothing():
    """It prints what a bake would do, and needs no target."""
    done = run("r.yaml", "--explain")

    assert done.exit_code == 0, done.output
    assert "rye" in done.stdout
    assert sorted(os.listdir()) == ["data", "r.yaml"]


def test_explain_fails_where_it_tells_of_problems(kitchen: Path):
    """So that a script can ask before it bakes; a bake that skips bad rows has none."""
    (kitchen / "r.yaml").write_text(RECIPE + "- {step: kept, use: select, columns: [nothing]}\n")
    wrong = run("r.yaml", "--explain")
    path = with_step("return row if row['n'] < 40 else 1 / 0")
    rejecting, skipping = (
        run("r.yaml", "--explain", "--steps", path, *options) for options in ((), ("--on-error", "skip"))
    )

    assert (wrong.exit_code, rejecting.exit_code, skipping.exit_code) == (1, 1, 0), wrong.output
    assert "problem: step 'kept'" in wrong.stdout
    assert "problem: step 'mine'" in rejecting.stdout


def test_the_schema_for_editors_is_printed():
    """It needs no recipe."""
    assert json.loads(run("--schema").stdout)["title"] == "poolish recipe"


# Steps of the user's ------------------------------------------------------------------------------------------------


def test_steps_are_registered_by_code_that_the_user_names():
    """A file, run as it is."""
    done = run("r.yaml", "-o", "out", "--steps", with_step("return {**row, 'n': -row['n']}"))

    assert done.exit_code == 0, done.output
    assert numbers() == [-n for n in BAKED]


def test_steps_may_be_a_module(kitchen: Path, monkeypatch: pytest.MonkeyPatch):
    """Found where Python finds modules."""
    with_step("return row").rename("my_steps_of_bake.py")
    monkeypatch.syspath_prepend(kitchen)

    assert run("r.yaml", "-o", "out", "--steps", "my_steps_of_bake").exit_code == 0
    assert "no module of this name" in run("r.yaml", "-o", "o", "--steps", "my_stepz").stderr


def test_a_recipe_alone_runs_no_code():
    """Without --steps the file beside the recipe is not looked at."""
    with_step("return row")

    done = run("r.yaml", "-o", "out")

    assert done.exit_code == 2
    assert "no step 'mine'" in done.stderr
    assert "--steps" in done.stderr


def test_code_that_others_may_write_is_not_run():
    """A steps file is checked as a config is."""
    path = with_step("return row")
    path.chmod(0o666)

    done = run("r.yaml", "-o", "out", "--steps", path)

    assert done.exit_code == 2
    assert "chmod o-w" in done.stderr


# What goes wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["r.yaml"], "-o OUT is missing"),
        (["none.yaml", "-o", "out"], "none.yaml cannot be read"),
        (["r.yaml", "-o", "no/such/out"], "make it first"),
        (["r.yaml", "-o", "r.yaml"], "is a file"),
        (["r.yaml", "-o", "data"], "holds '0.parquet', which no bake wrote"),
        (["r.yaml", "-o", "data", "--overwrite"], "holds '0.parquet', which no bake wrote"),
        (["r.yaml", "-o", ".", "--overwrite"], "which no bake wrote"),
        (["r.yaml", "-o", "out", "--cache", "out/cache"], "put it elsewhere"),
        (["r.yaml", "-o", "out", "--format", "csv"], "one of parquet, arrow, buffer"),
        (["r.yaml", "-o", "out", "--on-error", "cry"], "one of raise, skip, quarantine"),
        (["r.yaml", "-o", "out", "--budget", "3"], "is for --on-error skip"),
        (["r.yaml", "-o", "out", "--on-error", "skip", "--budget", "1.5"], "a number of rows, or a part"),
    ],
)
def test_a_wrong_command_is_refused_before_any_work(arguments: list[str], words: str):
    """Exit code 2, one line, nothing made."""
    done = run(*arguments)

    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir()) == ["data", "r.yaml"]


def test_all_that_is_wrong_with_a_recipe_is_named():
    """Exit code 2 and a list."""
    Path("r.yaml").write_text("name: r\nsede: 1\ninstructions: [{step: s, use: limt}]")

    done = run("r.yaml", "-o", "out")

    assert done.exit_code == 2
    assert "r.yaml: 2 problems" in done.stderr
    assert "did you mean 'seed'?" in done.stderr


def test_a_step_that_fails_is_shown_with_its_row():
    """Exit code 1, the user's own line, the ingredient, file and row; nothing is made."""
    path = with_step("return {**row, 'n': 1 // (row['n'] - 42)}")

    done = run("r.yaml", "-o", "out", "--steps", path, "--workers", "1")

    assert done.exit_code == 1
    assert "ZeroDivisionError" in done.stderr
    assert re.search(r"ingredient 'rye', 2.parquet, row 1, step 'mine'", done.stderr)
    assert not os.path.exists("out")


def test_bad_rows_are_put_aside_within_a_budget():
    """With --on-error they are in rejects.parquet; beyond the budget the bake fails."""
    path = with_step("return {**row, 'n': 1 // (row['n'] % 20)}")
    options = ["--steps", path, "--on-error", "quarantine"]

    done = run("r.yaml", "-o", "out", *options, "--budget", "2")
    spent = run("r.yaml", "-o", "spent", *options, "--budget", "1")

    assert done.exit_code == 0, done.output
    assert pa.parquet.read_table("out/rejects.parquet").column("row").to_pylist() == [0, 0]
    assert spent.exit_code == 1
    assert "budget" in spent.stderr
    assert not os.path.exists("spent")


# The target ---------------------------------------------------------------------------------------------------------


def test_a_target_that_is_there_is_replaced_only_if_asked():
    """And then it is all new: nothing of the old one is left."""
    assert run("r.yaml", "-o", "out", "--format", "arrow").exit_code == 0
    Path("r.yaml").write_text(RECIPE.replace("n * 2", "n * 3"))

    refused = run("r.yaml", "-o", "out")
    before = sorted(os.listdir("out"))
    replaced = run("r.yaml", "-o", "out", "--overwrite")

    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert "data.arrow" in before
    assert replaced.exit_code == 0, replaced.output
    assert sorted(os.listdir("out")) == FILES
    assert numbers() == [3 * n for n in range(10, 30)]
    assert sorted(os.listdir()) == ["data", "out", "r.yaml"]


def test_an_empty_target_is_as_good_as_none():
    """It was made with mkdir."""
    os.mkdir("out")

    assert run("r.yaml", "-o", "out").exit_code == 0
    assert numbers() == BAKED


def test_a_link_to_a_target_stays_a_link():
    """What it leads to is replaced."""
    os.mkdir("disk")
    os.symlink("disk/out", "out")

    assert run("r.yaml", "-o", "out").exit_code == 0
    assert run("r.yaml", "-o", "out", "--overwrite").exit_code == 0

    assert os.path.islink("out")
    assert os.listdir("disk") == ["out"]


def test_a_target_that_filled_up_meanwhile_is_not_replaced():
    """It is looked at again before the directories change places."""
    path = with_step("os.makedirs('out', exist_ok=True); open('out/diary.txt', 'w').close(); return row")

    done = run("r.yaml", "-o", "out", "--overwrite", "--steps", path)

    assert done.exit_code != 0
    assert "which no bake wrote" in done.stderr
    assert os.listdir("out") == ["diary.txt"]
    assert sorted(set(os.listdir()) - {"__pycache__"}) == ["data", "mine.py", "out", "r.yaml"]


# Unplanned ends -------------------------------------------------------------------------------------------


def whole(out: Path) -> list[int] | None:
    """The rows of a target, None if there is none; it is never anything between."""
    if not out.exists():
        return None
    assert sorted(os.listdir(out)) == FILES
    for name in FILES:
        if name.endswith(".parquet"):
            pa.parquet.read_table(out / name)
    assert json.loads((out / "report.json").read_text())["n_rows"] == len(numbers(out))
    assert (out / "report.html").read_text().endswith("\n")
    return numbers(out)


@pytest.mark.parametrize("is_there", [False, True])
def test_killed_before_any_call_the_target_is_as_it_was_or_complete(kitchen: Path, is_there: bool):
    """Before each call that changes a file or a directory, in turn; the next one removes what was left."""
    out, old = kitchen / "out", kitchen / "old"
    if is_there:
        (kitchen / "r.yaml").write_text(RECIPE.replace("n * 2", "n * 3"))
        assert bake(Order(kitchen / "r.yaml", old)) == 0
        (kitchen / "r.yaml").write_text(RECIPE)
    before = whole(old)
    result = DatasetRecipe.load("r.yaml").bake()
    outcomes: list[int] = []
    is_new: list[bool] = []

    def write() -> None:
        shutil.rmtree(out, ignore_errors=True)
        if is_there:
            shutil.copytree(old, out)
        die_at_call(len(outcomes) + 1, also=[(publishing, "exchange")])
        with publish_directory(out) as folder:
            write_result(result, folder, "parquet")

    while 0 not in outcomes:
        outcomes.append(in_child(write))
        assert whole(out) in (before, BAKED)
        is_new.append(whole(out) == BAKED)

    assert set(outcomes) == {0, -signal.SIGKILL}
    assert is_new == sorted(is_new)  # there is one moment when it becomes the new one
    assert 10 < sum(not each for each in is_new) < len(is_new) - 1
    assert sorted({*os.listdir()} - {"old"}) == ["data", "out", "r.yaml"]


def test_killed_at_any_moment_the_target_is_as_it_was_or_complete(kitchen: Path):
    """The same by the clock, which also strikes inside of Arrow."""
    out = kitchen / "out"
    order = Order(kitchen / "r.yaml", out, cache=kitchen / "kept", overwrite=True)
    assert bake(order) == 0
    started = time.monotonic()
    assert in_child(lambda: bake(order)) == 0
    seconds = time.monotonic() - started

    for i in range(times(12)):
        pid = fork(lambda: bake(order))
        time.sleep(seconds * (i % 12) / 12)
        kill(pid)
        assert whole(out) == BAKED

    assert bake(order) == 0
    assert sorted(os.listdir()) == ["data", "kept", "out", "r.yaml"]


def test_what_a_living_bake_writes_is_not_swept(kitchen: Path):
    """Two bakes into one target do not disturb each other; the later one stays."""
    with publish_directory(kitchen / "out") as folder:
        assert bake(Order(kitchen / "r.yaml", kitchen / "out")) == 0
        assert folder.exists()
        for name in FILES:
            (folder / name).write_text("later")

    assert Path("out/report.json").read_text() == "later"


def test_an_interrupted_bake_leaves_the_target_and_keeps_finished_fragments(kitchen: Path):
    """Ctrl-C ends it with the code that shells expect; the next bake goes on from the cache."""
    assert run("r.yaml", "-o", "out").exit_code == 0
    wait = "open('begun', 'w').close() if row['n'] >= 40 else None; time.sleep(60 if row['n'] == 40 and "
    path = with_step(wait + "not os.path.exists('mended') else 0); return row")
    options = ["--steps", path, "--cache", "kept", "--workers", "1"]
    process = start("bake", "r.yaml", "-o", "out", "--overwrite", *options, cwd=kitchen)
    wait_until(lambda: os.path.exists("begun"))

    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    before = numbers()
    Path("mended").touch()
    done = run("r.yaml", "-o", "out", "--overwrite", *options)

    assert code == 130, output
    assert "out is as it was; finished fragments are in kept" in output
    assert before == BAKED
    assert done.exit_code == 0, done.output
    assert "2 of 3 fragments from the cache" in done.stdout
    assert sorted(set(os.listdir()) - {"__pycache__"}) == [
        *("begun", "data", "kept", "mended", "mine.py", "out", "r.yaml")
    ]


def test_a_step_that_hangs_is_left_at_the_second_wish(kitchen: Path):
    """The first one waits for fragments that are being baked; no bake waits for ever."""
    path = with_step("open('begun', 'w').close(); time.sleep(600); return row")
    process = start("bake", "r.yaml", "-o", "out", "--steps", path, "--workers", "2", cwd=kitchen)
    wait_until(lambda: os.path.exists("begun"))

    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, output = finish(process)

    assert code == 130, output
    assert not os.path.exists("out")


# Progress -----------------------------------------------------------------------------------------------------------


def test_progress_tells_fragments_rows_and_rate(capsys: pytest.CaptureFixture[str]):
    """Without a terminal, a line every ten seconds."""
    now = iter(range(0, 1000, 4))
    with Watched(1, "breads", clock=lambda: next(now)) as engine:
        DatasetRecipe.load("r.yaml").bake(engine=engine, progress=engine.progress)

    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert re.fullmatch(r"breads: \d of 3 fragments, [\d,]+ rows, [\d,]+ rows/s(, rye)?", lines[0])
    assert engine.n_rows == 20


def test_names_that_are_replaced_are_those_that_are_written():
    """Else --overwrite would refuse what a bake has made."""
    for kind in ("parquet", "arrow", "buffer"):
        assert run("r.yaml", "-o", kind, "--format", kind).exit_code == 0
        assert set(os.listdir(kind)) <= set(WRITTEN)
