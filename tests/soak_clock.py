"""A soak that ends in time: tests in a random order, and none begins once the minutes are over.

A bounded soak seldom reaches every test. The order is random, so each soak reaches others, and the summary says how
many were left out: they were not run, so they neither pass nor count as skipped.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

_SEED = "POOLISH_SOAK_SEED"
_END = "POOLISH_SOAK_END"


class SoakClock:
    """A pytest plugin. Worker processes inherit the seed and the end through the environment."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.seed = int(os.environ.setdefault(_SEED, str(random.randrange(2**32))))
        self.end = float(os.environ.setdefault(_END, str(time.time() + 60 * minutes)))
        self.n_left_out = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Every worker shuffles by the same seed, because they must agree on the order."""
        random.Random(self.seed).shuffle(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Run the test, unless time is over."""
        if time.time() < self.end:
            return None
        self.n_left_out += 1
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker reports to the process that started it."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["soak_left_out"] = self.n_left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker reports; one that crashed has no output."""
        self.n_left_out += getattr(node, "workeroutput", {}).get("soak_left_out", 0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """How much of the suite the soak reached, and how to repeat its order."""
        left_out = f"{self.n_left_out:,} tests left out when time was over"
        terminalreporter.write_line(f"soak of {self.minutes:g} minutes: {left_out}; order {_SEED}={self.seed}")
