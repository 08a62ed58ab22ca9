"""What the tests of the queue share, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from poolish.serve import provider, reader
from tests.serve import queues


@pytest.fixture
def few_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are deleted after every second batch, so that a short run does everything that a long one does."""
    monkeypatch.setattr(reader, "_TOGETHER", 2)
    monkeypatch.setattr(reader, "_LOOK_AROUND_S", 0.01)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that has nothing to do looks again soon."""
    monkeypatch.setattr(provider, "_WAIT_S", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The folder of a dataset."""
    with queues.in_memory(tmp_path) as folder:
        yield folder / "data"
