"""No test leaves a provider running, whether it passes or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.commands import STARTED


@pytest.fixture(autouse=True)
def _end_what_was_started() -> Iterator[None]:
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()  # its workers notice
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
