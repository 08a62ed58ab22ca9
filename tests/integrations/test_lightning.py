"""Loaders and queues in ``lightning.Trainer`` and Fabric, killed and resumed at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import IS_SOAK
from tests.integrations import rows

EPOCH = list(range(rows.N_ROWS))
N_STEPS = 5

#: What the trainer is asked for: options, how many batches it trains, and how many of them before each checkpoint.
SETTINGS = {
    "two epochs": ({"max_epochs": 2}, list(range(1, 11))),
    "part of each epoch": ({"max_epochs": 2, "limit_train_batches": 3}, list(range(1, 7))),
    "accumulated": ({"max_epochs": 2, "accumulate_grad_batches": 2}, [2, 4, 5, 7, 9, 10]),
    "validated within": ({"max_epochs": 2, "val_check_interval": 2}, list(range(1, 11))),
    "a number of steps": ({"max_steps": 7}, list(range(1, 8))),
    "without a length": ({"max_steps": 7, "loader": {"follow": True}}, list(range(1, 8))),
    "acknowledged explicitly": (
        {"max_steps": 7, "loader": {"follow": True, "acknowledge": "explicit"}},
        list(range(1, 8)),
    ),
}


def epochs_of(report):
    """The rows of each epoch, sorted."""
    found = {}
    for epoch, numbers in report["trained"]:
        found.setdefault(epoch, []).extend(numbers)
    return {epoch: sorted(numbers) for epoch, numbers in found.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_resumed_at_any_step_it_is_the_run_that_was_not_stopped(in_lightning, tmp_path, name):
    """The same batches in the same order, and the same weights at the end."""
    options, n_trained = SETTINGS[name]
    steps = list(enumerate(n_trained, 1))
    whole = in_lightning.run("fit", folder=str(tmp_path), **options)
    for step, n_before in steps if IS_SOAK or name == "two epochs" else steps[1::2]:
        rest = in_lightning.run("fit", checkpoint=str(tmp_path / f"step={step}.ckpt"), **options)

        assert rest["trained"] == whole["trained"][n_before:], step
        assert rest["weights"] == whole["weights"], step
    assert len(whole["trained"]) == n_trained[-1]


def test_each_epoch_is_trained_and_validated_in_full(in_lightning):
    """Two batches for the sanity check, then all rows at each validation, in the same order."""
    report = in_lightning.run("fit", max_epochs=3)

    assert epochs_of(report) == {0: EPOCH, 1: EPOCH, 2: EPOCH}
    assert report["validated"] == [list(range(8)), *[list(range(10))] * 3]


def test_a_killed_run_goes_on_from_its_last_checkpoint(in_lightning, tmp_path):
    """Nothing of the step that was killed counts, and nothing is lost."""
    whole = in_lightning.run("fit", max_epochs=2)
    first = in_lightning.run("fit", max_epochs=2, stop_at=7, folder=str(tmp_path))
    rest = in_lightning.run("fit", max_epochs=2, checkpoint=str(tmp_path / "step=7.ckpt"))

    assert first["trained"] + rest["trained"] == whole["trained"]


def test_rows_that_join_between_epochs_are_trained_or_the_trainer_is_stopped(in_lightning):
    """Lightning asks for the length once; an epoch that has become longer would silently be cut."""
    error = in_lightning.error("fit", max_epochs=2, grow=8)
    report = in_lightning.run("fit", max_epochs=3, grow=8, reload_dataloaders_every_n_epochs=1)

    assert "ConfigError" in error
    assert "reload_dataloaders_every_n_epochs=1" in error
    assert epochs_of(report) == {0: list(range(20)), 1: list(range(28)), 2: list(range(36))}


def test_a_bare_loader_beside_the_callback_is_refused(in_lightning):
    """The error has the line to write."""
    assert "LoaderDataModule(loader)" in in_lightning.error("fit_bare")


def test_two_processes_share_each_epoch_and_resume_in_step(in_lightning, tmp_path):
    """Lightning's DDP: all rows once an epoch over both, and each checkpoint restores both."""
    elastic = {"TORCHELASTIC_RUN_ID": "none"}  # these processes were started by torchrun, as far as Lightning knows
    options = {"ranks": 2, "environment": elastic, "strategy": "ddp", "devices": 2, "max_epochs": 2}
    whole = in_lightning.run("fit", folder=str(tmp_path), **options)
    seen = [epochs_of(report) for report in whole]

    assert [sorted(seen[0][epoch] + seen[1][epoch]) for epoch in (0, 1)] == [EPOCH, EPOCH]
    assert [report["validated"][1] for report in whole] == [list(range(0, 10, 2)), list(range(1, 10, 2))]
    assert whole[0]["weights"] == whole[1]["weights"]
    for step in range(1, 6) if IS_SOAK else (2, 3):
        rest = in_lightning.run("fit", checkpoint=str(tmp_path / f"step={step}.ckpt"), **options)
        assert [report["trained"] for report in rest] == [report["trained"][step:] for report in whole]
        assert [report["weights"] for report in rest] == [report["weights"] for report in whole]


@pytest.mark.parametrize("acknowledge", ["on_checkpoint", "explicit"])
def test_a_queue_is_trained_once_and_deleted_behind_the_checkpoints(in_lightning, tmp_path, acknowledge):
    """The batch that Lightning had read ahead comes first in the next run; the end of the queue ends it."""
    checkpoints = tmp_path / "checkpoints"
    options = {"path": str(rows.queue(tmp_path / "data", 8)), "folder": str(checkpoints), "acknowledge": acknowledge}
    first = in_lightning.run("fit_queue", **options, max_steps=5, max_epochs=-1)
    rest = in_lightning.run("fit_queue", **options, checkpoint=str(checkpoints / "step=5.ckpt"), max_steps=99)

    numbers = [number for report in (first, rest) for _, batch in report["trained"] for number in batch]
    assert numbers == list(range(32))
    assert first["left"] == [5, 6, 7]
    assert rest["left"] == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_fabric_takes_a_loader_in_a_dataloader(in_lightning, ranks):
    """The working form for Fabric is exact at every step, too."""
    options = {"ranks": ranks, "n_epochs": 2}
    options |= {"environment": {"TORCHELASTIC_RUN_ID": "none"}, "strategy": "ddp", "devices": 2} if ranks > 1 else {}
    whole = in_lightning.run("fabric", **options)
    whole = whole if ranks > 1 else [whole]
    seen = [epochs_of(report) for report in whole]
    assert [sorted(n for each in seen for n in each[epoch]) for epoch in (0, 1)] == [EPOCH, EPOCH]
    states = whole[0]["states"]
    for step, state in list(enumerate(states, 1))[:: 1 if IS_SOAK else 4]:
        rest = in_lightning.run("fabric", **options, state=state)
        rest = rest if ranks > 1 else [rest]
        assert [report["trained"] for report in rest] == [report["trained"][step:] for report in whole]
        assert [report["weights"] for report in rest] == [report["weights"] for report in whole]


def test_the_page_says_how_to_start_it():
    """The program with Lightning's own launcher, which runs the script again, is on the page and run from there."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "trainers.md").read_text()

    assert "devices=2," in page
    assert "$ python train_lightning.py" in page
