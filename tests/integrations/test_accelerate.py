"""Loaders and queues with accelerate on one, two and three processes, resumed at every step."""

from __future__ import annotations

import pytest

from tests.effort import IS_SOAK
from tests.integrations import rows

EPOCH = list(range(rows.N_ROWS))


def run(zygote, ranks, **options):
    reports = zygote.run("train", ranks=ranks, **options)
    return reports if ranks > 1 else [reports]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes_share_each_epoch_and_resume_in_step(in_accelerate, tmp_path, ranks, accumulation):
    """Every row once an epoch, the last batch of an epoch makes a step, and each saved state restores all."""
    whole = run(in_accelerate, ranks, folder=str(tmp_path / "whole"), accumulation=accumulation)
    n_steps = -(-20 // (4 * ranks))
    for epoch in (0, 1):
        trained = [n for report in whole for of, numbers in report["trained"] if of == epoch for n in numbers]
        assert sorted(trained) == EPOCH
    of_epoch = [step % accumulation == 0 or step == n_steps for step in range(1, n_steps + 1)]
    assert [report["synced"] for report in whole] == [of_epoch * 2] * ranks
    for report in whole:
        assert report["ids"] == [n for _, batch in report["trained"] for n in batch]

    saved = [step for step, is_synced in enumerate(of_epoch * 2, 1) if is_synced]
    for step in saved if IS_SOAK else saved[:: 2 if ranks == 1 else 3]:
        options = {"folder": str(tmp_path / "rest"), "accumulation": accumulation}
        rest = run(in_accelerate, ranks, checkpoint=str(tmp_path / "whole" / str(step)), **options)
        assert [report["trained"] for report in rest] == [report["trained"][step:] for report in whole]
        assert [report["weights"] for report in rest] == [report["weights"] for report in whole]


def test_a_loader_that_accelerate_would_deal_out_again_is_refused(in_accelerate):
    """Each process would get a share of one process's share; the error has the line to write."""
    assert "prepare(accelerator, loader)" in in_accelerate.error("dealt_twice", ranks=2)


def test_a_queue_goes_on_behind_the_checkpoint(in_accelerate, tmp_path):
    """A batch that was read ahead and not trained when the run stopped comes first in the next."""
    path, folder = str(rows.queue(tmp_path / "data", 6)), str(tmp_path / "saved")
    first = in_accelerate.run("train", folder=folder, queue=path, n_epochs=1, n_steps=3)
    rest = in_accelerate.run("train", folder=folder, queue=path, n_epochs=1, checkpoint=f"{folder}/3")

    trained = [numbers for report in (first, rest) for _, numbers in report["trained"]]
    assert [n for numbers in trained for n in numbers] == list(range(24))
