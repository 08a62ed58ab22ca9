"""One interpreter for each framework, for all tests of a test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.zygote import Zygote


def _zygote(module: str) -> Iterator[Zygote]:
    zygote = Zygote(module)
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def in_lightning() -> Iterator[Zygote]:
    yield from _zygote("lightning_runs")


@pytest.fixture(scope="session")
def in_transformers() -> Iterator[Zygote]:
    yield from _zygote("transformers_runs")


@pytest.fixture(scope="session")
def in_accelerate() -> Iterator[Zygote]:
    yield from _zygote("accelerate_runs")


@pytest.fixture(scope="session")
def in_trl() -> Iterator[Zygote]:
    yield from _zygote("trl_runs")


@pytest.fixture(scope="session")
def in_sb3() -> Iterator[Zygote]:
    yield from _zygote("sb3_runs")


@pytest.fixture(scope="session")
def in_torchrl() -> Iterator[Zygote]:
    yield from _zygote("torchrl_runs")
