"""``poolish prepare``: one worker or several, ended in every way there is."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from poolish.cli.app import app
from poolish.cli.live import PlainLines, Report
from poolish.serve import queue_status, verify_queue
from tests.cli.commands import (
    CONFIG,
    TIMEOUT_S,
    alive,
    finish,
    is_running,
    published,
    run,
    start,
    workspace,
)
from tests.faults import wait_until


def here(*arguments: str | Path) -> tuple[int, str]:
    """The command in this process, where what matters is what it says."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    return done.exit_code, done.output


def is_whole(folder: Path) -> bool:
    return not any(verify_queue(folder / "data" / "numbers").values())


# One worker ---------------------------------------------------------------------------------------------------


def test_fills_the_queue_and_says_what_was_done(tmp_path: Path):
    """--batches is the number in all: started again, the command has nothing left to do."""
    config = workspace(tmp_path)

    first = run("prepare", config, "--batches", "5", cwd=tmp_path)
    second = run("prepare", config, "--batches", "5", cwd=tmp_path)

    assert first[0] == second[0] == 0
    assert "finished: made train 5, val 5 in" in first[1]
    assert "finished: made nothing" in second[1]
    assert "still to be read: train 5, val 5" in second[1]
    status = queue_status(tmp_path / "data" / "numbers")["train"]
    assert (status.published, status.made) == (5, {"w0": 5})


def test_settings_name_and_workspace_can_be_given(tmp_path: Path):
    """From anywhere, with other settings, under another name."""
    config = workspace(tmp_path / "there")
    options = ["--set", "batch_size=7", "--set", "splits=['train']", "--batches", "2", "--name", "night"]

    code, output = here("prepare", config, *options, "--workspace", tmp_path / "there")

    assert code == 0, output
    status = queue_status(tmp_path / "there" / "data" / "numbers")
    assert {split: found.made for split, found in status.items()} == {"train": {"night0": 2}}


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
@pytest.mark.parametrize("workers", [1, 2])
def test_ends_cleanly_when_asked_to(tmp_path: Path, number: int, code: int, name: str, workers: int):
    """The caller gets the exit code that a shell expects, a summary, and a queue that is whole."""
    config = workspace(tmp_path)
    process = start("prepare", config, f"--workers={workers}", cwd=tmp_path)
    wait_until(lambda: published(tmp_path) >= 8 and len(alive(tmp_path)) == workers)

    process.send_signal(number)
    found, output = finish(process)

    assert found == code, output
    assert re.search(rf"ended by {name}: made train \d+, val \d+ in .*; still to be read: train \d+, val \d+", output)
    assert "Traceback" not in output
    assert alive(tmp_path) == []
    assert is_whole(tmp_path)


def test_second_wish_ends_a_batch_that_takes_long(tmp_path: Path):
    """The first Ctrl-C lets the batch be finished, the second does not; nothing of it is published."""
    config = workspace(tmp_path, sample="print('making', flush=True); time.sleep(600)")
    process = start("prepare", config, cwd=tmp_path)
    assert process.stdout is not None
    assert any("making" in line for line in process.stdout)

    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)

    assert code == 130
    assert "ended by Ctrl-C: made nothing" in output
    assert published(tmp_path) == 0


def test_one_wish_is_enough_while_nothing_is_made(tmp_path: Path):
    """Setting up may take long too, and leaves nothing to be finished."""
    config = workspace(tmp_path, setup="print('reading', flush=True); time.sleep(600)")
    process = start("prepare", config, cwd=tmp_path)
    assert process.stdout is not None
    assert any("reading" in line for line in process.stdout)

    process.send_signal(signal.SIGTERM)

    assert finish(process)[0] == 143


# What goes wrong ----------------------------------------------------------------------------------------------


def test_config_problems_are_listed_at_once(tmp_path: Path):
    """All of them, without a traceback, and once however many workers were asked for."""
    config = workspace(tmp_path, config='dataset = "numbers"\nbacth_size = 2\nblock_size = 0\n')

    code, output = here("prepare", config, "--workers=2")

    assert code == 2
    for problem in ("has 3 problems", "did you mean batch_size?", "batch_size: missing", "block_size: should be"):
        assert output.count(problem) == 1
    assert "Traceback" not in output


def test_config_that_cannot_be_run_is_shown(tmp_path: Path):
    """With the line of the config, and none of ours."""
    code, output = here("prepare", workspace(tmp_path, config="batch_size = 2 * size"))

    assert code == 2
    assert re.search(r"Traceback .*\n  File \".*config.py\", line 1", output)
    assert "NameError: name 'size' is not defined" in output


@pytest.mark.parametrize("arguments", [["--workers=0"], ["--batches=-1"], ["--no-such-option"], ["extra"]])
def test_wrong_usage_is_exit_code_2(tmp_path: Path, arguments: list[str]):
    """And the usage is shown."""
    code, output = here("prepare", workspace(tmp_path), *arguments)

    assert code == 2
    assert "Usage: " in output


def test_error_of_the_provider_keeps_its_traceback(tmp_path: Path):
    """It begins with the user's own line and ends with the note that says which batch it was."""
    config = workspace(tmp_path, sample="1 // (3 - self.batch_number(split))")

    code, output = here("prepare", config)

    assert code == 1
    first = re.search(r"Traceback .*\n  File \"(.*)\", line \d+, in sample_batch", output)
    assert first is not None, output
    assert first[1].endswith("prepare_streaming.py")
    assert "ZeroDivisionError" in output
    assert "while provider 'w0' made batch 3 of split" in output
    assert "failed: made " in output
    assert published(tmp_path) >= 3


def test_batch_that_does_not_fit_is_one_message(tmp_path: Path):
    """What poolish refuses it explains itself."""
    config = workspace(tmp_path, sample="return {'x': np.zeros((2, 3)), 'y': np.zeros((2, 3))}")

    code, output = here("prepare", config)

    assert code == 1
    assert "error: provider 'w0', split 'train', batch 0" in output
    assert "Traceback" not in output


def test_file_that_is_not_python_is_shown(tmp_path: Path):
    """A slip in the provider's file is shown where it is, without our own lines around it."""
    config = workspace(tmp_path, setup="return (")

    code, output = here("prepare", config)

    assert code == 1
    assert "SyntaxError" in output
    assert "prepare_streaming.py" in output
    assert "cli/prepare.py" not in output


# Several workers ----------------------------------------------------------------------------------------------


def test_workers_fill_one_queue(tmp_path: Path):
    """Each makes its own batches, and each line names the worker that printed it."""
    config = workspace(tmp_path, setup="print('I am', self.name)")

    code, output = run("prepare", config, "--workers=3", "--batches=2", cwd=tmp_path)

    assert code == 0, output
    assert "finished: made train 6, val 6 in" in output
    for name in ("w0", "w1", "w2"):
        assert f"{name} | I am {name}" in output
    assert queue_status(tmp_path / "data" / "numbers")["val"].made == {"w0": 2, "w1": 2, "w2": 2}


def test_workers_import_what_one_worker_would(tmp_path: Path):
    """A provider may use modules that lie beside prepare.py, wherever the command is started."""
    config = workspace(tmp_path / "there", setup="import beside; print(beside.WORD)")
    (tmp_path / "there" / "beside.py").write_text("WORD = 'found'")
    script = tmp_path / "there" / "prepare.py"
    script.write_text("from poolish.cli import prepare_main\nprepare_main()")

    code, output = run(config, "--workers=2", "--batches=1", cwd=tmp_path, program=(str(script),))

    assert code == 0, output
    assert output.count("found") == 2


def test_failing_worker_ends_all(tmp_path: Path):
    """The error is shown once, with the worker's name, and no worker is left."""
    fails = "time.sleep(0.01); assert self.name != 'w1' or self.batch_number(split) < 2, 'out of ideas'"
    config = workspace(tmp_path, sample=fails, config=CONFIG.replace("8", "100_000"))

    code, output = run("prepare", config, "--workers=3", cwd=tmp_path)

    assert code == 1
    assert output.count("AssertionError: out of ideas") == 1
    assert "worker w1 failed; the others were ended" in output
    assert "failed: made train" in output
    assert alive(tmp_path) == []
    assert is_whole(tmp_path)


def test_killed_worker_ends_all(tmp_path: Path):
    """Also where a worker can say nothing any more."""
    config = workspace(tmp_path, setup="print('pid', os.getpid(), flush=True)")
    process = start("prepare", config, "--workers=2", cwd=tmp_path)
    assert process.stdout is not None
    pid = next(int(found[1]) for line in process.stdout if (found := re.search(r"w1 \| pid (\d+)", line)))
    wait_until(lambda: alive(tmp_path) == ["w0", "w1"])

    os.kill(pid, signal.SIGKILL)
    code, output = finish(process)

    assert code == 1
    assert "error: worker w1 was killed by SIGKILL" in output
    assert alive(tmp_path) == []


def test_workers_end_when_their_command_is_killed(tmp_path: Path):
    """No worker stays behind to fill an unattended queue."""
    config = workspace(tmp_path, setup="print('pid', os.getpid(), flush=True)")
    process = start("prepare", config, "--workers=2", cwd=tmp_path)
    assert process.stdout is not None
    lines = (re.search(r"pid (\d+)", line) for line in process.stdout)
    pids = [int(found[1]) for _, found in zip(range(2), filter(None, lines), strict=False)]
    wait_until(lambda: alive(tmp_path) == ["w0", "w1"])

    process.kill()
    process.communicate(timeout=TIMEOUT_S)

    wait_until(lambda: not any(map(is_running, pids)))
    assert alive(tmp_path) == []
    assert is_whole(tmp_path)


# What is seen -------------------------------------------------------------------------------------------------


#: Makes the terminal on stdin its own, so that Ctrl-C typed there becomes a signal, and runs the command.
AT_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "poolish", *sys.argv[1:]])
"""


def on_terminal(*arguments: str | Path, cwd: Path, until: str) -> tuple[int, str]:
    """The command on a terminal, ended by Ctrl-C at the keyboard once it has shown a text."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", AT_TERMINAL, *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    seen, has_typed = "", False
    try:
        while data := os.read(ours, 65_536):
            seen += data.decode(errors="replace")
            if until in seen and not has_typed:
                os.write(ours, b"\x03")
                has_typed = True
    except OSError:
        pass  # Linux says so when the other end is closed
    os.close(ours)
    return process.wait(TIMEOUT_S), seen


@pytest.mark.parametrize("workers", [1, 2])
def test_terminal_shows_a_live_line(tmp_path: Path, workers: int):
    """Batches, rate, backlog and what it waits for; Ctrl-C at the keyboard ends it, workers and all."""
    config = workspace(tmp_path, config=CONFIG.replace("8", "4"))

    code, seen = on_terminal("prepare", config, "-w", str(workers), cwd=tmp_path, until="wait for the trainer")

    assert code == 130, seen
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", seen)
    assert re.search(r"numbers  train \d, val \d  [\d.]+ batches/s  backlog train \d, val \d", text)
    assert re.search(r"waiting: train: \d batches wait for the trainer; val: ", text)
    assert "ended by Ctrl-C: made train" in text
    assert "Traceback" not in text


def test_terminal_says_that_a_batch_is_finished_first(tmp_path: Path):
    """And how to end it at once, though the batch takes long."""
    config = workspace(tmp_path, sample="print('making'); time.sleep(1)")

    code, seen = on_terminal("prepare", config, cwd=tmp_path, until="making")

    assert code == 130
    assert "the batch in the making is finished first; Ctrl-C again ends at once" in seen
    assert "made train 1, val 0 in" in seen


def test_plain_lines_come_seldom():
    """Every ten seconds, and when it begins to wait for something else; numbers alone are no news."""
    now = 0.0
    written = StringIO()
    lines = PlainLines("char", Console(file=written), clock=lambda: now)
    reasons = ["", "train: 8 batches wait", "", "train: 7 batches wait", "the disk has 3 MiB left", ""] + [""] * 8

    for second, waiting in enumerate(reasons):
        now = second + 0.9
        lines.show(Report({"train": second}, {"train": 4}, waiting))

    said = [line.rpartition("; ")[2] for line in written.getvalue().splitlines()]
    assert said == ["waiting: train: 8 batches wait", "waiting: the disk has 3 MiB left"]
    now += 10
    lines.show(Report({"train": 1_014}, {"train": 4}))
    assert written.getvalue().splitlines()[-1] == "char: made train 1,014; 100 batches/s; backlog train 4"


def test_script_of_a_workspace_is_the_same_command(tmp_path: Path):
    """prepare.py shows its own name in its help."""
    workspace(tmp_path)
    (tmp_path / "prepare.py").write_text("from poolish.cli import prepare_main\nprepare_main()")

    helped = run("--help", cwd=tmp_path, program=("prepare.py",))
    done = run("config.py", "--batches=1", cwd=tmp_path, program=("prepare.py",))

    assert helped[0] == 0
    assert "Usage: prepare.py [OPTIONS]" in helped[1]
    assert "--worker " not in helped[1]
    assert done[0] == 0


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_missing_library_is_named(tmp_path: Path, library: str):
    """Without the extra the command says how to get it."""
    script = f"import sys; sys.modules['{library}'] = None; from poolish.cli import main; main(['--version'])"

    code, output = run(cwd=tmp_path, program=("-c", script))

    assert code == 1
    assert output.count("\n") == 1
    assert 'pip install "poolish[cli]"' in output
