"""Data is never code: whatever lies in a stream's directory, nothing of it is unpickled, imported or run."""

from __future__ import annotations

import json
import pickle
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from poolish import StreamStore
from poolish.errors import PoolishError
from poolish.files.checksums import json_checksum
from poolish.testing import Canary


@pytest.fixture
def payload(marker: Path) -> bytes:
    return pickle.dumps(Canary(marker), protocol=0)  # plain text, so that it fits anywhere


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    with StreamStore(tmp_path / "stream", fields=["a", "b"]) as store:
        store.append(0, ["a", "b"], [1.0, [2.0, 3.0]])
    return tmp_path / "stream"


def use(path: Path) -> None:
    """Everything that one does with a stream, as far as it lets."""
    for mode, mmap in (("r", True), ("r", False), ("a", True)):
        with warnings.catch_warnings(), suppress(PoolishError, OSError):
            warnings.simplefilter("ignore")
            with StreamStore.open(path, mode=mode, mmap=mmap) as store:
                for look in (
                    store.verify,
                    lambda store=store: list(store),
                    store.to_dataset,
                    lambda store=store: store[:],
                ):
                    with suppress(PoolishError, IndexError):
                        look()


def test_the_canary_would_sing(payload: bytes, marker: Path):
    """The control: whoever does unpickle leaves the marker."""
    pickle.loads(payload)

    assert marker.exists()


@pytest.mark.parametrize("name", ["store.json", "data", "index", "types", "head", "commits", "lock", "more.pkl"])
def test_no_file_is_unpickled(stream: Path, payload: bytes, marker: Path, name: str):
    """In place of each file, and beside them."""
    (stream / name).write_bytes(payload + b"\n" * 5_000)

    use(stream)

    assert not marker.exists()


def test_no_feature_is_unpickled_or_imported(stream: Path, payload: bytes, marker: Path, tmp_path: Path):
    """A description that proves itself may still name anything as a field's feature."""
    told = json.loads((stream / "store.json").read_text())
    del told["checksum"]
    for feature in (payload.decode(), json.dumps({"_type": "os.mkdir", "path": str(marker)}), '{"_type": "Pickle"}'):
        told["fields"][0]["feature"] = feature
        (stream / "store.json").write_text(json.dumps({**told, "checksum": json_checksum(told)}))

        use(stream)
        with pytest.raises(PoolishError, match="no feature in"):
            StreamStore.open(stream).to_dataset()

    assert not marker.exists()
