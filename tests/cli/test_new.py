"""``poolish new``: the workspace that it makes runs as it is."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from poolish.cli.app import app
from poolish.errors import ConfigError
from poolish.serve import queue_status
from poolish.serve.workspace import make_workspace
from tests.cli.commands import finish, run, start
from tests.faults import wait_until


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def has_queue(dataset: Path) -> bool:
    return (dataset / "queue" / "val" / "meta.json").exists()


def test_new_workspace_is_whole_and_says_how_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All files are there, filled in, and the commands to type are printed."""
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(app, ["new", "char"])

    assert done.exit_code == 0, done.output
    assert files_in(tmp_path / "char") == {
        *(".gitignore", "README.md", "prepare.py", "train.py", "config/train_char.py"),
        *("data/char/input.txt", "data/char/prepare_streaming.py", "tests/test_provider.py"),
    }
    assert "cd char; python prepare.py config/train_char.py" in done.output
    assert "cd char; python train.py config/train_char.py" in done.output
    assert {"queue/", "runs/"} <= set((tmp_path / "char/.gitignore").read_text().split())
    for name in files_in(tmp_path / "char"):
        assert not re.search(r"\{\{|\}\}|NAME\b", (tmp_path / "char" / name).read_text()), name


def test_new_workspace_runs(tmp_path: Path):
    """Provider and trainer, two processes, as the README says; a trainer started again goes on where it was."""
    make_workspace(tmp_path / "w", "my-set")
    workspace, config, settings = tmp_path / "w", "config/train_my-set.py", ["--set", "evaluate_every=10", "--set"]
    provider = start(config, cwd=workspace, program=("prepare.py",))
    wait_until(lambda: has_queue(workspace / "data/my-set"))

    first = run(config, *settings, "max_steps=20", cwd=workspace, program=("train.py",))
    second = run(config, *settings, "max_steps=30", cwd=workspace, program=("train.py",))
    provider.send_signal(signal.SIGINT)
    ended = finish(provider)

    assert (first[0], second[0]) == (0, 0), first[1] + second[1]
    losses = [float(loss) for loss in re.findall(r"val loss ([\d.]+)", first[1] + second[1])]
    assert len(losses) == 3
    assert losses[2] < losses[0] < 4.5
    assert "checkpoint.pt, step 20" in second[1]
    assert queue_status(workspace / "data/my-set")["train"].acknowledged == 30
    assert ended[0] == 130, ended[1]


def test_tests_of_a_new_workspace_pass(tmp_path: Path):
    """pytest in the workspace is green from the start."""
    make_workspace(tmp_path / "char", "char")
    (tmp_path / "char" / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")

    code, output = run("-q", "-p", "no:cacheprovider", cwd=tmp_path / "char", program=("-m", "pytest"))

    assert code == 0, output
    assert "4 passed" in output


def test_trainer_without_queue_says_what_to_do(tmp_path: Path):
    """One line, not a traceback."""
    make_workspace(tmp_path / "char", "char")

    code, output = run("config/train_char.py", cwd=tmp_path / "char", program=("train.py",))

    assert code == 1
    assert output.startswith("error: Queue directory not found")
    assert "Traceback" not in output


def test_provider_runs_with_a_toml_config(tmp_path: Path):
    """What --toml makes is used as the other is."""
    done = CliRunner().invoke(app, ["new", str(tmp_path / "char"), "--toml"])

    assert "python prepare.py config/train_char.toml" in done.output
    assert files_in(tmp_path / "char" / "config") == {"train_char.toml"}
    done = CliRunner().invoke(app, ["prepare", str(tmp_path / "char/config/train_char.toml"), "--batches=2"])
    assert "finished: made train 2, val 2" in done.output


def test_both_configs_say_the_same(tmp_path: Path):
    """--toml changes how the settings are written, not what they are."""
    from poolish.serve import load_config

    python, toml = tmp_path / "a", tmp_path / "b"
    make_workspace(python, "char")
    make_workspace(toml, "char", is_toml=True)

    assert load_config(python / "config/train_char.py").names() == load_config(toml / "config/train_char.toml").names()


def test_new_workspace_is_formatted(tmp_path: Path):
    """What we write for others reads like what we write for ourselves."""
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if ruff is None:
        pytest.skip("no ruff here")
    make_workspace(tmp_path / "char", "char")

    for check in (["format", "--check"], ["check", "--select", "E,F,I,UP,B"]):
        options = ["--isolated", "--no-cache", "--line-length", "120"]
        done = subprocess.run([ruff, *check, *options, tmp_path / "char"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_existing_folder_is_refused(tmp_path: Path):
    """Whatever it is, it stays as it was."""
    (tmp_path / "char").mkdir()
    (tmp_path / "char" / "thesis.tex").write_text("years of work")
    (tmp_path / "dangling").symlink_to("nowhere")

    for name in ("char", "dangling"):
        done = CliRunner().invoke(app, ["new", str(tmp_path / name)])
        assert done.exit_code == 2
        assert "exists already" in done.output

    assert files_in(tmp_path) == {"char/thesis.tex"}


@pytest.mark.parametrize("name", ["", "1st", "a b", "a.b", "ä", "a'", "..", "-x", "a" * 65, "a\n"])
def test_bad_name_is_refused(tmp_path: Path, name: str):
    """A name becomes part of paths and programs, so it is kept simple."""
    with pytest.raises(ConfigError, match="letters, digits"):
        make_workspace(tmp_path / "w", name)

    assert list(tmp_path.iterdir()) == []


def test_missing_parent_is_refused(tmp_path: Path):
    """A slip in the path makes no folders."""
    with pytest.raises(ConfigError, match="no folder"):
        make_workspace(tmp_path / "nowhere" / "char", "char")


def test_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The workspace is there whole or not at all."""

    def no_rename(*paths: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "rename", no_rename)
    done = CliRunner().invoke(app, ["new", str(tmp_path / "char")])

    assert done.exit_code == 1
    assert "no space left" in done.output
    assert list(tmp_path.iterdir()) == []


def test_files_can_be_run_whatever_the_umask(tmp_path: Path):
    """A config that everyone may write to would be refused."""
    before = os.umask(0)
    try:
        files = make_workspace(tmp_path / "char", "char")
    finally:
        os.umask(before)

    assert {file.stat().st_mode & 0o022 for file in files} == {0}
