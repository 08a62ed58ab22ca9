"""States and journals from before members could change within an epoch go on where they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poolish.load import Loader, order
from tests.compatibility.write_before_members import N_ROWS, composite

FOUND = json.loads(Path(__file__).with_name("before_members.json").read_text())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 8)


def resumed(case: dict[str, Any], dataset: Any, **more: Any) -> Loader:
    loader = Loader(dataset, output="numpy", **case["settings"], **more)
    loader.load_state_dict(case["state"])
    return loader


def rest_of(loader: Loader) -> list[list[int]]:
    return [batch.ids.tolist() for batch in loader]


@pytest.mark.parametrize("case", FOUND["plain"])
def test_a_state_goes_on(case):
    assert rest_of(resumed(case, list(range(N_ROWS)))) == case["rest"]


def test_a_state_of_parts_that_grow_goes_on():
    left, _, parts = composite(11, 13)
    left += range(11, 20)

    assert rest_of(resumed(FOUND["composite"], parts)) == FOUND["composite"]["rest"]


def test_a_journal_goes_on(tmp_path):
    case = FOUND["journal"]
    for name, text in case["files"].items():
        (tmp_path / name).write_text(text)
    loader = resumed(case, list(range(N_ROWS)), journal=tmp_path)

    assert rest_of(loader) == case["rest"]
    assert sorted(id_ for ids in loader.audit(0, 13).steps.values() for id_ in ids.tolist()) == list(range(N_ROWS))
