"""Loaders and queues in Hugging Face's Trainer, killed and resumed at every step."""

from __future__ import annotations

import pytest

from tests.effort import IS_SOAK
from tests.integrations import rows

EPOCH = list(range(rows.N_ROWS))

#: What the trainer is asked for, and how many batches are trained before each checkpoint.
SETTINGS = {
    "two epochs": ({"num_train_epochs": 2}, list(range(1, 11))),
    "accumulated": ({"num_train_epochs": 2, "gradient_accumulation_steps": 2}, [2, 4, 5, 7, 9, 10]),
    "a number of steps": ({"max_steps": 7}, list(range(1, 8))),
    "without a length": ({"max_steps": 7, "loader": {"follow": True}}, list(range(1, 8))),
    "acknowledged explicitly": ({"max_steps": 7, "loader": {"acknowledge": "explicit"}}, list(range(1, 8))),
    "restored callbacks": ({"max_steps": 7, "restore_callback_states_from_checkpoint": True}, list(range(1, 8))),
}


def flat(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("name", SETTINGS)
def test_resumed_at_any_step_it_is_the_run_that_was_not_stopped(in_transformers, tmp_path, name):
    """The same batches, the same dropout, the same weights: nothing is read again to be skipped."""
    options, n_trained = SETTINGS[name]
    whole = in_transformers.run("train", folder=str(tmp_path / "whole"), **options)
    steps = list(enumerate(n_trained, 1))[:-1]
    for step, n_before in steps if IS_SOAK or name == "two epochs" else steps[1::2]:
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
        rest = in_transformers.run("train", folder=str(tmp_path / "rest"), checkpoint=checkpoint, **options)

        assert rest["trained"] == whole["trained"][n_before:], step
        assert rest["weights"] == whole["weights"], step
    assert len(whole["trained"]) == n_trained[-1]


def test_a_killed_run_goes_on_from_its_last_checkpoint(in_transformers, tmp_path):
    """``resume_from_checkpoint=True`` finds it."""
    options = {"folder": str(tmp_path), "num_train_epochs": 2}
    first = in_transformers.run("train", stop_at=7, **options)
    rest = in_transformers.run("train", checkpoint=True, **options)

    trained = first["trained"] + rest["trained"]
    assert [sorted(flat(trained[:5])), sorted(flat(trained[5:]))] == [EPOCH, EPOCH]


def test_evaluation_reads_every_row_each_time(in_transformers, tmp_path):
    """The mean loss counts the short last batch by its rows; another batch size is refused."""
    options = {"folder": str(tmp_path), "num_train_epochs": 2, "eval_strategy": "epoch"}
    report = in_transformers.run("train", eval_batch_size=4, **options)
    error = in_transformers.error("train", eval_batch_size=3, **options)

    assert [flat(report["evaluated"][:3]), flat(report["evaluated"][3:])] == [list(range(10))] * 2
    assert [log["eval_loss"] for log in report["logs"]] == pytest.approx(report["losses"])
    assert "per_device_eval_batch_size=4" in error


@pytest.mark.parametrize(
    ("checkpoint", "changed", "message"),
    [
        ("checkpoint-4", {"gradient_accumulation_steps": 2}, "go on with the same gradient_accumulation_steps"),
        ("emptied", {}, "no poolish.json"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(in_transformers, tmp_path, checkpoint, changed, message):
    """Another count of batches a step, and a checkpoint that was killed while it was written."""
    options = {"folder": str(tmp_path), "num_train_epochs": 2}
    in_transformers.run("train", stop_at=5, **options)
    (tmp_path / "checkpoint-5").rename(tmp_path / "emptied")
    (tmp_path / "emptied" / "poolish.json").unlink()

    assert message in in_transformers.error("train", checkpoint=str(tmp_path / checkpoint), **options, **changed)


def test_a_trainer_without_the_mixin_refuses_a_loader(in_transformers, tmp_path):
    """It would make batches of batches; the error has the line to write."""
    assert "class MyTrainer(LoaderTrainerMixin, Trainer)" in in_transformers.error("plain", folder=str(tmp_path))


def test_two_processes_share_each_epoch_and_resume_in_step(in_transformers, tmp_path):
    """DDP as torchrun starts it: all rows once an epoch over both, and a checkpoint restores both."""
    options = {"ranks": 2, "num_train_epochs": 2}
    whole = in_transformers.run("train", folder=str(tmp_path / "whole"), **options)

    assert sorted(flat(whole[0]["trained"][:3] + whole[1]["trained"][:3])) == EPOCH
    assert sorted(flat(whole[0]["trained"][3:] + whole[1]["trained"][3:])) == EPOCH
    assert whole[0]["weights"] == whole[1]["weights"]
    for step in range(1, 6) if IS_SOAK else (2, 3):
        checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
        rest = in_transformers.run("train", folder=str(tmp_path / "rest"), checkpoint=checkpoint, **options)
        assert [report["trained"] for report in rest] == [report["trained"][step:] for report in whole]
        assert [report["weights"] for report in rest] == [report["weights"] for report in whole]


def test_a_queue_is_trained_once_and_deleted_behind_the_checkpoints(in_transformers, tmp_path):
    """The mixin commits what a stored checkpoint covers, and the end of the queue ends the training."""
    path, folder = str(rows.queue(tmp_path / "data", 8)), str(tmp_path / "checkpoints")
    first = in_transformers.run("train", folder=folder, queue=path, max_steps=20, stop_at=5)
    rest = in_transformers.run("train", folder=folder, queue=path, max_steps=20, checkpoint=True)

    assert flat(first["trained"] + rest["trained"]) == list(range(32))
    assert first["left"] == [5, 6, 7]
    assert rest["left"] == []
