"""``poolish queue``: what a queue holds, whether it is whole, and getting rid of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import poolish
from poolish import DatasetConsumer, DatasetProvider
from poolish.cli.app import app


def command(*arguments: str | Path, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), input=answer)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of which three batches were made and one was read."""
    with DatasetProvider([{"n": i} for i in range(12)], path=tmp_path / "numbers", batch_size=4) as provider:
        for _ in range(3):
            provider.publish("train")
    with DatasetConsumer(tmp_path / "numbers", output="numpy", timeout_s=1) as consumer:
        consumer.get_batch("train")
    return tmp_path / "numbers"


def batch_files(dataset: Path) -> list[Path]:
    return sorted((dataset / "queue" / "train").glob("*.safetensors"))


def damage(file: Path) -> None:
    """Change the last byte of a batch."""
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    os.chmod(file, 0o600)
    file.write_bytes(data)


def test_status_is_a_table(dataset: Path):
    """One row for each split, and who fills it."""
    done = command("queue", "status", dataset)

    assert done.exit_code == 0
    header, row, fields, provider = done.output.splitlines()[1:5]
    shown = ["split", "published", "read", "acknowledged", "waiting", "on", "disk", "size", "dead", "quarantined"]
    assert header.split() == shown
    assert row.split()[:6] == ["train", "3", "1", "1", "2", "2"]
    assert fields == "fields of train: n int64"
    assert provider == "provider w0, ended: made train 3"


def test_status_shows_who_is_alive(dataset: Path):
    """A running provider is distinguished from one that has ended."""
    with DatasetProvider([{"n": i} for i in range(12)], path=dataset, batch_size=4):
        during = command("queue", "status", dataset)
    after = command("queue", "status", dataset)

    assert "provider w0, alive: made train 3" in during.output
    assert "provider w0, ended: made train 3" in after.output


def test_status_as_json(dataset: Path):
    """The same for programs, by split."""
    shown = json.loads(command("queue", "status", dataset, "--json").output)["train"]

    assert {name: shown[name] for name in ("published", "read", "acknowledged", "waiting", "on_disk", "dead")} == {
        "published": 3,
        "read": 1,
        "acknowledged": 1,
        "waiting": 2,
        "on_disk": 2,
        "dead": 0,
    }
    assert shown["made"] == {"w0": 3}


def test_status_of_nothing_is_one_message(tmp_path: Path):
    """With what to do about it."""
    done = command("queue", "status", tmp_path / "nowhere")

    assert done.exit_code == 1
    assert "Queue directory not found" in done.output
    assert "poolish prepare CONFIG" in done.output
    assert "Traceback" not in done.output


def test_verify_finds_nothing_wrong(dataset: Path):
    """A queue that is whole is exit code 0."""
    done = command("queue", "verify", dataset)

    assert (done.exit_code, done.output) == (0, "train: 2 batches, whole\n")


def test_verify_names_what_is_wrong(dataset: Path):
    """Each problem on a line of its own, and exit code 1."""
    for file in batch_files(dataset):
        damage(file)

    done = command("queue", "verify", dataset)
    shown = json.loads(command("queue", "verify", dataset, "--json").output)

    assert done.exit_code == 1
    assert "train: 2 batches, 2 wrong" in done.output
    for file in batch_files(dataset):
        assert file.name in done.output
    assert len(shown["train"]) == 2
    assert command("queue", "verify", dataset, "--json").exit_code == 1


def test_purge_needs_a_yes_without_a_terminal(dataset: Path):
    """A script that forgot --yes discards nothing."""
    done = command("queue", "purge", dataset)

    assert done.exit_code == 2
    assert "add --yes" in done.output
    assert len(batch_files(dataset)) == 2


def test_purge_says_what_went(dataset: Path):
    """And the queue is gone."""
    done = command("queue", "purge", dataset, "--yes")

    assert (done.exit_code, done.output) == (0, "train: 2 batches discarded\n")
    assert batch_files(dataset) == []
    assert command("queue", "status", dataset).exit_code == 1


@pytest.mark.parametrize(("answer", "n_left", "said"), [("n", 2, "nothing was discarded"), ("y", 0, "2 batches disc")])
def test_purge_asks(dataset: Path, monkeypatch: pytest.MonkeyPatch, answer: str, n_left: int, said: str):
    """With numbers, so that one knows what the answer costs."""
    monkeypatch.setattr("poolish.cli.queue.is_at_terminal", lambda: True)

    done = command("queue", "purge", dataset, answer=answer)

    assert "Discard 2 batches of train (" in done.output
    assert said in done.output
    assert len(batch_files(dataset)) == n_left


def test_one_split_can_be_purged(dataset: Path):
    """The path of a split stands for that split."""
    assert command("queue", "purge", dataset / "queue" / "train", "-y").output == "train: 2 batches discarded\n"


def test_version_and_versions():
    """What to tell in a bug report."""
    assert command("--version").output == f"poolish {poolish.__version__}\n"
    assert command("versions").output.startswith("poolish ")
    assert "queue" in command().output
