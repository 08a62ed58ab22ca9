"""What data says is shown, never obeyed: no command lets a terminal see an escape, a bidi control or a forged line."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from poolish import DatasetBuffer
from poolish.cli import queue
from poolish.cli.app import app
from poolish.cli.bake import Watched
from poolish.cli.live import LiveLine, PlainLines, Report, sentence
from poolish.cli.terminal import Interrupt, print_stderr
from poolish.errors import DataRefused
from poolish.guards import Suite
from poolish.printable import printable
from poolish.serve.inspection import SplitStatus

#: A title for the window, a cleared screen, a colour, a reversed line, a line of its own, and markup of rich.
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x9b31m\u202eko\u2028[red]\nforged: ok\rforged: ok[/red]"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def assert_harmless(text: str) -> None:
    """Nothing but what is seen, and lines that poolish made itself."""
    bad = [each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp", "Cs") and each not in "\n\t"]
    assert not bad, (bad, text)
    assert not [line for line in text.splitlines() if line.startswith("forged")], text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file, a suite and a recipe with hostile names, and values that break the suite."""
    pq.write_table(pa.table({HOSTILE: [HOSTILE, "fine"], "n": [1, 2]}), tmp_path / "x.parquet")
    suite = (
        Suite(HOSTILE).expect(HOSTILE, one_of=["fine"]).expect("n", at_most=9).expect("missing" + HOSTILE, finite=True)
    )
    suite.save(tmp_path / "suite.yaml")
    return tmp_path


def recipe(folder: Path, **changes: object) -> Path:
    content = {
        "name": HOSTILE,
        "instructions": [
            {"ingredient": HOSTILE, "source": "x.parquet"},
            {"step": HOSTILE, "use": "filter", "keep": f"`{HOSTILE}` == 'fine'"},
        ],
    }
    (folder / "recipe.json").write_text(json.dumps(content | changes))
    return folder / "recipe.json"


@pytest.mark.parametrize("options", [(), ("--suite", "suite.yaml"), ("--json",), ("--reference", "x.parquet")])
def test_check_shows_and_does_not_obey(folder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]):
    """Column names, values and the suite's name."""
    monkeypatch.chdir(folder)

    done = run("check", "x.parquet", *options)

    assert done.exit_code in (0, 1), done.output
    assert_harmless(done.output)
    assert "owned" in done.output


def test_check_of_a_hostile_file_name_and_a_broken_file(tmp_path: Path):
    """The name of a file comes from data as well, and so does what a reader says of it."""
    name = HOSTILE.replace("/", "")
    (tmp_path / f"{name}.csv").write_text(f"a,{json.dumps('b')}\n1\n")
    (tmp_path / "y.jsonl").write_text('{"' + "a\\u001b[2J" + '": 1}\n{"a\\u001b[2J": "x"}\n')

    done = run("check", tmp_path)

    assert done.exit_code == 1
    assert_harmless(done.output)


def test_bake_and_explain_show_and_do_not_obey(folder: Path):
    """The names of recipe, ingredient, step, file and columns; in the report, in the plan and in errors."""
    good = recipe(folder)
    outputs = [
        run("bake", good, "--explain").output,
        run("bake", good, "-o", folder / "out").output,
        run("bake", good, "-o", folder / "out").output,
    ]
    bad = recipe(folder, instructions=[{"ingredient": HOSTILE, "source": f"{HOSTILE}.parquet"}])
    outputs += [run("bake", bad, "--explain").output, run("bake", bad, "-o", folder / "more").output]
    bad = recipe(folder, **{HOSTILE: 1})
    outputs.append(run("bake", bad, "-o", folder / "more").output)

    for output in outputs:
        assert_harmless(output)
    assert all("owned" in output for output in outputs[:2] + outputs[3:]), outputs


def test_queue_status_shows_and_does_not_obey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The names of splits and providers, which are those of directories and files, and problems in them."""
    found = SplitStatus(HOSTILE, "q", "f", 3, 2, 1, 1, 100, 1, {HOSTILE: 3}, [HOSTILE], 1)
    monkeypatch.setattr(queue, "queue_status", lambda path: {HOSTILE: found})
    monkeypatch.setattr(queue, "verify_queue", lambda path, on_file: {HOSTILE: [f"{HOSTILE} is broken"]})
    monkeypatch.setattr(queue, "purge_queue", lambda path: {HOSTILE: 3})
    monkeypatch.setattr(queue, "is_at_terminal", lambda: True)
    commands = (["status"], ["status", "--json"], ["verify"], ["verify", "--json"], ["purge"], ["purge", "--yes"])

    for command in commands:
        done = run("queue", command[0], tmp_path / HOSTILE.replace("/", ""), *command[1:])
        assert "owned" in done.output, done
        assert_harmless(done.output)


def test_live_displays_show_and_do_not_obey():
    """On a terminal and elsewhere: the name of the dataset, the splits, what is waited for, what a worker printed."""
    for make in (lambda console: LiveLine(HOSTILE, Interrupt(), console), lambda console: PlainLines(HOSTILE, console)):
        text = io.StringIO()
        shown = make(Console(file=text, highlight=False, width=500))
        shown.last = Report({HOSTILE: 3}, {HOSTILE: 4}, f"waiting for {HOSTILE}")
        shown.say(sentence(HOSTILE, shown.last, 1.0))
        if isinstance(shown, LiveLine):
            shown._console.print(shown._draw())

        assert "owned" in text.getvalue()
        assert_harmless(text.getvalue().replace("\nforged: ok", ""))
    assert_harmless(str(Watched(1, HOSTILE)))


def test_errors_of_the_command_show_and_do_not_obey(capsys: pytest.CaptureFixture[str]):
    """Of any error; the lines of a message stay lines."""
    print_stderr("error: first\n  second\x1b[2J\u202e")

    assert capsys.readouterr().err == "error: first\n  second\\x1b[2J\\u202e\n"


def test_guards_show_names_of_columns_without_obeying(caplog: pytest.LogCaptureFixture):
    """In errors, in logs and where results are printed; the values themselves stay what they are."""
    rows = pa.table({HOSTILE: [1.0, float("nan")]})
    suite = Suite(HOSTILE).expect(HOSTILE, finite=True)

    with pytest.raises(DataRefused) as refused:
        DatasetBuffer(guard=suite).append(rows)

    for text in (str(refused.value), str(suite.check(rows)), caplog.text, repr(suite)):
        assert "owned" in text
        assert_harmless(text)
    assert suite.check(rows).verdicts[0].columns == (HOSTILE,)


def test_printable_text_is_left_alone():
    """Names in any script, spaces of any width, emoji; markup of rich is not ours to escape."""
    for text in ("größe", "長さ\u3000と", "prix\u00a0net", "🙂", "[red]", "back\\slash", ""):
        assert printable(text) == text
