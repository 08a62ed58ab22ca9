"""The program of docs/trainers.md under torchrun: a rank is killed, all are started again, each row is trained once."""

from __future__ import annotations

import pytest

from tests.effort import IS_SOAK
from tests.test_documents import ROOT, commands_of, files_of, start

#: A rank of the first attempt dies behind a step, before its checkpoint or behind it.
DEATH = """
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and (dist.get_rank(), loader.step) == {at}:
            os.kill(os.getpid(), 9)
"""
STEPPED, SAVED = "        optimizer.step()\n", '            os.replace("new.pt", "checkpoint.pt")'

DEATHS = [(1, 3, STEPPED), (0, 9, SAVED), (0, 8, STEPPED), (1, 24, SAVED), (1, 16, STEPPED)]


@pytest.mark.parametrize(
    ("rank", "step", "place"),
    [pytest.param(*death, id=f"rank {death[0]}, step {death[1]}") for death in (DEATHS if IS_SOAK else DEATHS[:2])],
)
def test_a_killed_rank_costs_nothing(tmp_path, rank, step, place):
    """SIGKILL of either rank within an epoch: the program's own assertion counts every row of three epochs."""
    text = (ROOT / "docs" / "trainers.md").read_text()
    files = files_of(text)
    (tmp_path / "make_rows.py").write_text(files["make_rows.py"])
    program = files["train_ddp.py"]
    (line,) = [line for line in program.splitlines(keepends=True) if line.startswith(place)]
    (tmp_path / "train_ddp.py").write_text(program.replace(line, line + DEATH.format(at=(rank, step))))
    (command,) = [command for command in commands_of(text) if command.endswith("train_ddp.py")]
    assert start("python make_rows.py", tmp_path).returncode == 0

    done = start(command, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "(exitcode: -9)" in done.stderr
