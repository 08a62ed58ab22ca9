"""Copies of one saved buffer that went different ways: a state belongs to the one it was taken from."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from poolish import DatasetBuffer, Loader
from poolish.errors import ResumeError


def rows(first: int, n: int) -> list[dict[str, int]]:
    return [{"x": x} for x in range(first, first + n)]


def original(path: Path) -> DatasetBuffer:
    buffer = DatasetBuffer()
    buffer.append(rows(0, 20))
    buffer.save(path)
    return buffer


def state_after_a_step(buffer: DatasetBuffer) -> dict[str, Any]:
    loader = Loader(buffer, batch_size=4, seed=1, follow=True)
    next(iter(loader))
    return loader.state_dict()


def resumes(buffer: DatasetBuffer, state: dict[str, Any]) -> bool:
    Loader(buffer, batch_size=4, seed=1, follow=True).load_state_dict(state)
    return True


@pytest.mark.parametrize("way", ["load", "pickle"])
def test_a_state_of_a_diverged_copy_is_refused(way, tmp_path):
    """Two copies append other rows under the same ids: the state of one never goes on in the other."""
    path = tmp_path / "buffer.rows"
    first = original(path)
    second = DatasetBuffer.load(path) if way == "load" else pickle.loads(pickle.dumps(first))
    first.append(rows(100, 20))
    second.append(rows(500, 30))

    state = state_after_a_step(first)

    assert resumes(first, state)
    with pytest.raises(ResumeError, match="another copy"):
        resumes(second, state)


def test_a_state_from_before_the_copy_goes_on_in_every_copy(tmp_path):
    """Rows from before the fork are the same rows: a state that has seen only those resumes in either copy."""
    path = tmp_path / "buffer.rows"
    state = state_after_a_step(original(path))
    copies = [DatasetBuffer.load(path) for _ in range(2)]
    for n, copy in enumerate(copies):
        copy.append(rows(1_000 * n, 5))

    assert all(resumes(copy, state) for copy in copies)
    assert resumes(DatasetBuffer.load(path), state)


def test_a_copy_that_is_saved_and_loaded_stays_on_its_branch(tmp_path):
    """A run that is killed and loads its own buffer again goes on, however often."""
    path = tmp_path / "buffer.rows"
    original(path)
    for n in range(3):
        buffer = DatasetBuffer.load(path)
        buffer.append(rows(100 * n, 4))
        state = state_after_a_step(buffer)
        buffer.save(path)
        assert resumes(DatasetBuffer.load(path), state)

    assert len(DatasetBuffer.load(path).snapshot().lineage) == 4


def test_a_state_of_ids_that_another_copy_gave_out_is_refused_at_any_length(tmp_path):
    """The saved buffer goes on from before the state, with other rows, past the length that the state has seen."""
    path = tmp_path / "buffer.rows"
    buffer = original(path)
    buffer.append(rows(20, 10))
    state = state_after_a_step(buffer)
    again = DatasetBuffer.load(path)
    again.append({"x": -1})
    for row in rows(-50, 40):
        again.append(row)

    with pytest.raises(ResumeError, match="another copy"):
        resumes(again, state)
