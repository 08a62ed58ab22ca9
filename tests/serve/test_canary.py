"""Data is never code: whatever lies in a queue, nothing of it is unpickled, imported or run."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from poolish.errors import PoolishError
from poolish.serve import purge_queue, queue_status, verify_queue
from poolish.testing import Canary
from tests.serve.damage import consumer, file_of, filled, forged, header, marks_of, provider, slot, take, within


@pytest.fixture
def payload(marker: Path) -> bytes:
    return pickle.dumps(Canary(marker), protocol=0)  # plain text, so that it fits anywhere


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A queue that has everything: batches that were read, a run, a provider, a dead batch."""
    split = filled(tmp_path / "set", 24)
    file_of(split, 21).write_bytes(b"damaged")
    with consumer(tmp_path / "set", on_corrupt="cached") as reading:
        take(reading, 22)
    return split


def use(path: Path) -> None:
    """Everything that one does with a queue, as far as it lets."""

    def read(output: str, prefetch: int, on_corrupt: str) -> None:
        with consumer(path, timeout_s=0.05, prefetch=prefetch, on_corrupt=on_corrupt) as reading:
            assert reading.meta is not None
            assert reading.schema()
            for _ in range(4):
                reading.get_batch()

    def publish() -> None:
        with provider(path) as filling:
            filling.publish("train")

    uses: list[Callable[[], object]] = [
        lambda: queue_status(path),
        lambda: verify_queue(path),
        lambda: read("numpy", 0, "raise"),
        lambda: read("numpy", 2, "cached"),
        publish,
        lambda: queue_status(path),
        lambda: purge_queue(path),
    ]
    for each in uses:
        with within(20), suppress(PoolishError, OSError):
            each()


def test_the_canary_would_sing(payload: bytes, marker: Path):
    """The control: whoever does unpickle leaves the marker."""
    pickle.loads(payload)

    assert marker.exists()


PLACES = [
    *("meta.json", "next", "consumed", "run.json", "lock", "000000000022.safetensors", "000000000023.safetensors"),
    *(
        "marks/ATTEMPT/0",
        "marks/0.lock",
        "providers/w0.json",
        "providers/w0.lock",
        "providers/w1.json",
        "providers/w1.lock",
    ),
    *("dead/000000000021.json", "dead/000000000021.safetensors", "tmp/.w0.0123456789abcdef.partial", "free/1"),
    *("more.pkl", "000000000024.safetensors", "000000000022.pkl", "data.pickle", "model.pt", "x.npy", "cache.joblib"),
]


@pytest.mark.parametrize("name", PLACES)
def test_no_file_is_unpickled(tmp_path: Path, split: Path, marker: Path, name: str):
    """In place of each file, and beside them, as text where text is expected."""
    name = name.replace("ATTEMPT", marks_of(split).name)
    is_binary = name.endswith(("safetensors", "pkl", "pickle", "partial", "pt", "npy", "joblib"))
    (split / name).parent.mkdir(exist_ok=True)
    (split / name).write_bytes(pickle.dumps(Canary(marker), protocol=5 if is_binary else 0))

    use(tmp_path / "set")

    assert not marker.exists()


def test_there_is_no_file_that_was_left_out(split: Path):
    """A new kind of file in the queue belongs into the list above."""
    attempt = marks_of(split).name
    found = {str(file.relative_to(split)).replace(attempt, "ATTEMPT") for file in split.rglob("*") if file.is_file()}
    assert {name for name in found if not name.startswith("free/")} <= set(PLACES)


@pytest.mark.parametrize("dtype", ["O", "PICKLE", "U", "V16", "object", "|O", "M8", "S16"])
def test_no_tensor_is_unpickled(tmp_path: Path, split: Path, payload: bytes, marker: Path, dtype: str):
    """A batch that proves itself may still name any dtype, and carry anything."""
    meta = json.loads((split / "meta.json").read_text())
    tensors = json.dumps({"a": {"dtype": dtype, "shape": [len(payload)], "data_offsets": [0, len(payload)]}})[1:-1]
    told = header(tensors, queue=meta["queue"], schema=meta["schema"], provider=payload.decode())
    file_of(split, 22).write_bytes(forged(told, payload))

    use(tmp_path / "set")

    assert not marker.exists()


def test_no_text_of_a_header_is_run(tmp_path: Path, split: Path, payload: bytes, marker: Path):
    """Neither pickles nor source, in any place that holds text."""
    meta = json.loads((split / "meta.json").read_text())
    for text in (
        payload.decode(),
        f"__import__('os').mkdir({str(marker)!r})",
        f"$(mkdir {marker})",
        "%s%n{0.__class__}",
    ):
        for name in ("provider", "tombstone", "queue", "schema", "more", "rows", "counter", "hash"):
            told = header("", **{"queue": meta["queue"], "schema": meta["schema"], name: text})
            file_of(split, 22).write_bytes(forged(told))
            with suppress(PoolishError, OSError):
                verify_queue(tmp_path / "set")
            with suppress(PoolishError, OSError), consumer(tmp_path / "set", timeout_s=0.05) as reading:
                reading.get_batch()
        text_slot = slot(json.dumps({"watermark": 22, "counters": {text: 1}, "turn": 99}).encode())
        (split / "consumed").write_bytes(text_slot)
    use(tmp_path / "set")

    assert not marker.exists()


@pytest.mark.parametrize("place", ["set", "set/queue", "set/queue/train", "set/queue/train/providers"])
def test_no_python_file_is_imported(tmp_path: Path, split: Path, marker: Path, place: str):
    """Whatever its name; and no folder of a queue is where Python looks for modules."""
    before = list(sys.path)
    for name in (
        "__init__",
        "prepare_streaming",
        "config",
        "validator",
        "conftest",
        "w0",
        "provider",
        "numpy",
        "torch",
    ):
        (tmp_path / place / f"{name}.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    shutil.copyfile(tmp_path / place / "config.py", tmp_path / place / "config.toml")

    use(tmp_path / "set")

    assert not marker.exists()
    assert sys.path == before
