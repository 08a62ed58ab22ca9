"""What survives a power cut: with ``durability="power"`` each step is on the disk before the next one builds on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from poolish import DatasetConsumer, DatasetProvider

Calls = list[tuple[str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is synced, linked and removed from now on, in order, by the last part of its path."""
    told: Calls = []

    def watched(name: str, place_of: Callable[..., str]) -> None:
        call = getattr(os, name)

        def telling(*arguments: object, **options: object) -> object:
            told.append((name, Path(place_of(*arguments)).name))
            return call(*arguments, **options)

        monkeypatch.setattr(os, name, telling)

    watched("fsync", lambda fd: os.readlink(f"/proc/self/fd/{fd}"))
    watched("link", lambda source, target: target)
    watched("rename", lambda source, target: str(source))
    watched("unlink", lambda path: path)
    return told


def provider(path: Path, durability: str) -> DatasetProvider:
    rows = [{"x": i} for i in range(64)]
    return DatasetProvider(rows, path=path, batch_size=4, order="sequential", durability=durability)


def test_a_published_batch_is_on_the_disk(tmp_path: Path, calls: Calls):
    """Its content before its name, its name before ``publish`` returns."""
    with provider(tmp_path, "power") as filling:
        calls.clear()
        filling.publish("train")
        order = [(name, place) for name, place in calls if name in ("fsync", "link")]

    assert [name for name, _ in order] == ["fsync", "link", "fsync"]
    assert order[0][1].endswith(".partial")
    assert order[1:] == [("link", "000000000000.safetensors"), ("fsync", "train")]


def test_what_is_done_is_on_the_disk_before_anything_is_deleted(tmp_path: Path, calls: Calls):
    """Otherwise a power cut could bring back a watermark below batches that are gone."""
    with provider(tmp_path, "power") as filling:
        for _ in range(4):
            filling.publish("train")
        with DatasetConsumer(tmp_path, output="numpy", acknowledge="on_checkpoint", timeout_s=10) as consumer:
            for _ in range(3):
                consumer.get_batch("train")
            calls.clear()
            consumer.commit()

    deleted = [i for i, (_, place) in enumerate(calls) if place.endswith(".safetensors")]
    assert len(deleted) == 3
    assert calls.index(("fsync", "consumed")) < deleted[0]


def test_nothing_waits_for_the_disk_unless_it_was_asked_for(tmp_path: Path, calls: Calls):
    """``durability="process"`` is safe against kills alone, and pays for nothing else."""
    with provider(tmp_path, "process") as filling:
        for _ in range(4):
            filling.publish("train")
        with DatasetConsumer(tmp_path, output="numpy", timeout_s=10) as consumer:
            for _ in range(3):
                consumer.get_batch("train")

    assert [place for name, place in calls if name == "fsync"] == []
