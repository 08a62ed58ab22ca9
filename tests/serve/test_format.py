"""The bytes of version 1, literally: changing one of them is a decision, and needs a new version.

``queue_version_1`` is a queue as version 1 wrote it, to be read for ever.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xxhash

from poolish.errors import CorruptDataError
from poolish.serve import DataProviderBase, queue_status, ranks, verify_queue
from poolish.transports import meta as meta_module
from poolish.transports.batch_file import BatchMetadata, decode, encode
from tests.serve.damage import consumer

GOLDEN = Path(__file__).parent / "queue_version_1"
NAME = "00112233445566ff"


class Letters(DataProviderBase):
    """Two rows of each batch: which it is, and some halves."""

    def build_meta(self):
        fields = [
            {"name": "x", "dtype": "int64", "shape": [2], "role": "input"},
            {"name": "half", "dtype": "float16"},
            {"name": "is_last", "dtype": "bool"},
        ]
        return {"batch_schema": fields, "letters": ["a", "é"]}

    def sample_batch(self, split, rng):
        n = self.batch_number(split)
        x = np.array([[n, -1], [n, 2**40]])
        return {"x": x, "half": np.array([0.5, n], np.float16), "is_last": np.array([False, True])}


def record(path: Path) -> Path:
    """A queue whose every byte is known: four batches, of which one was read and is done."""
    config = {"dataset": "letters", "batch_size": 2, "block_size": 2, "splits": ("train",)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_module, "secrets", SimpleNamespace(token_hex=lambda _: NAME))
        provider = Letters(config, path=path).open()
    with provider:
        for _ in range(4):
            provider.publish("train")
    with pytest.MonkeyPatch.context() as patch, consumer(path, run="letters") as reading:
        patch.setattr(ranks, "secrets", SimpleNamespace(token_hex=lambda _: NAME))
        reading.get_batch()
    return path / "queue" / "train"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    return record(tmp_path)


def proof(data: bytes) -> int:
    """XXH3, by the library itself."""
    return xxhash.xxh3_64_intdigest(data)


def sealed(value: dict) -> str:
    """A JSON file with its checksum, made as the document says."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**value, "checksum": f"{proof(text):016x}"}, ensure_ascii=False) + "\n"


META = {
    "format": "poolish.queue",
    "version": 1,
    "queue": NAME,
    "split": "train",
    "fingerprint": "659ce31692398e16",
    "schema": "76969344e92052ad",
    "batch_schema": [
        {"name": "x", "dtype": "int64", "shape": [2], "role": "input"},
        {"name": "half", "dtype": "float16", "shape": []},
        {"name": "is_last", "dtype": "bool", "shape": []},
    ],
    "meta": {
        "batch_schema": [
            {"name": "x", "dtype": "int64", "shape": [2], "role": "input"},
            {"name": "half", "dtype": "float16"},
            {"name": "is_last", "dtype": "bool"},
        ],
        "letters": ["a", "é"],
    },
    "limits": {
        "max_backlog": 64,
        "max_backlog_bytes": 8589934592,
        "min_free_bytes": 67108864,
        "durable": 0,
        "min_rows": 2,
        "max_rows": 2,
    },
    "content": {"seed": 0, "batch_size": 2},
}


def test_description(split: Path):
    """meta.json, to the letter."""
    assert (split / "meta.json").read_text() == sealed(META)
    assert json.loads((split / "meta.json").read_text())["checksum"] == "b33ad7ecd6e2f90b"


def test_batch_file(split: Path):
    """Length, header, padding, tensors; the two checksums are taken while their digits are zeros."""
    text = (
        '{"__metadata__":{"checksum":"5a1b16daf08c221a","header":"2ffaaa2ce818c2f2","hash":"xxh3_64","poolish":"1",'
        '"queue":"00112233445566ff","schema":"76969344e92052ad","rows":"2","provider":"w0","counter":"1"},'
        '"x":{"dtype":"I64","shape":[2,2],"data_offsets":[0,32]},"half":{"dtype":"F16","shape":[2],'
        '"data_offsets":[32,36]},"is_last":{"dtype":"BOOL","shape":[2],"data_offsets":[36,38]}}'
    )
    header = struct.pack("<Q", 440) + text.encode().ljust(440)
    tensors = struct.pack("<4q2e2?", 1, -1, 1, 2**40, 0.5, 1.0, False, True)
    whole = header + tensors
    without = whole.replace(b"5a1b16daf08c221a", b"0" * 16)

    assert (split / "000000000001.safetensors").read_bytes() == whole
    assert len(header) % 64 == 0
    assert f"{proof(without):016x}" == "5a1b16daf08c221a"
    assert f"{proof(without[: len(header)].replace(b'2ffaaa2ce818c2f2', b'0' * 16)):016x}" == "2ffaaa2ce818c2f2"


def test_tombstone():
    """A header of its own, with the reason, and nothing else."""
    (data,) = encode({}, BatchMetadata(NAME, "76969344e92052ad", 0, "w0", 7, "lost"))

    assert data[8:].rstrip().endswith(b',"rows":"0","provider":"w0","counter":"7","tombstone":"lost"}}')
    assert decode(data, "stone")[0].tombstone == "lost"


def test_next_number(split: Path):
    """One number and its proof."""
    assert (split / "next").read_bytes().hex() == "0400000000000000" + "78715ed90a2922ca"
    assert struct.pack("<Q", proof(struct.pack("<Q", 4))).hex() == "78715ed90a2922ca"


def test_mark(split: Path):
    """Read, done, whether it has ended, and their proof."""
    mark = (split / "marks" / f"0-1-{NAME}" / "0").read_bytes()
    assert mark.hex() == "0100000000000000" * 3 + "50c1fd072ea29250"
    assert struct.pack("<Q", proof(struct.pack("<3Q", 1, 1, 1))).hex() == "50c1fd072ea29250"


def test_watermark(split: Path):
    """Two slots of 64 KiB; the first value goes into the second of them."""
    text = b'{"watermark":1,"counters":{"w0":0},"turn":1}'
    slot = (split / "consumed").read_bytes()[65_536:]

    assert slot[: 16 + len(text)] == struct.pack("<QQ", len(text), proof(text)) + text
    assert slot[:16].hex() == "2c00000000000000" + "b828c960ef4ece0d"
    assert not any((split / "consumed").read_bytes()[:65_536])


def test_run_and_provider(split: Path):
    """Small JSON objects, each with a checksum of itself."""
    run = {"run": "letters", "start": 0, "world_size": 1, "acknowledge": "on_step", "skip": "", "marks": f"0-1-{NAME}"}
    assert (split / "run.json").read_text() == sealed(run)
    assert json.loads((split / "run.json").read_text())["checksum"] == "756767d51ac5b4af"
    note = {"counter": 4, "number": 4, "finished": False}
    assert (split / "providers" / "w0.json").read_text() == sealed(note)
    assert json.loads((split / "providers" / "w0.json").read_text())["checksum"] == "98204bc1577770cc"


def test_version_1_is_read_for_ever(tmp_path: Path):
    """A queue that was written long ago, on another machine, and copied without its empty folders and its locks."""
    shutil.copytree(GOLDEN, tmp_path / "set")

    assert verify_queue(tmp_path / "set") == {"train": []}
    status = queue_status(tmp_path / "set")["train"]
    with consumer(tmp_path / "set") as reading:
        batches = [reading.get_batch() for _ in range(3)]
        meta = reading.meta
    config = {"dataset": "letters", "batch_size": 2, "block_size": 2, "splits": ("train",), "min_free_bytes": 0}
    with Letters(config, path=tmp_path / "set") as provider:
        assert provider.batch_number("train") == 4
        assert provider.publish("train") == 4

    assert (status.published, status.read, status.acknowledged, status.queue) == (4, 1, 1, NAME)
    assert meta["letters"] == ["a", "é"]
    for n, batch in enumerate(batches, 1):
        assert batch["x"].tolist() == [[n, -1], [n, 2**40]]
        assert batch["half"].tolist() == [0.5, n]
        assert batch["is_last"].tolist() == [False, True]


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused(split: Path, version: object):
    """A queue of a version that is not known here is not guessed at."""
    told = json.loads((split / "meta.json").read_text())
    del told["checksum"]
    (split / "meta.json").write_text(sealed({**told, "version": version}))

    with pytest.raises(CorruptDataError, match="is not known here; read it with the poolish that wrote it"):
        queue_status(split)


def test_a_queue_is_readable_without_poolish(split: Path):
    """What the document says is enough to read a batch with the standard library alone."""
    reader = """
import json, struct, sys
from pathlib import Path
S = Path(sys.argv[1])
slot = (S / "consumed").read_bytes()[65_536:]
watermark = json.loads(slot[16 : 16 + struct.unpack_from("<Q", slot)[0]])["watermark"]
for file in sorted(S.glob("*.safetensors")):
    if int(file.stem) >= watermark:
        data = file.read_bytes()
        length = struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8 : 8 + length])
        start, end = (8 + length + offset for offset in header["x"]["data_offsets"])
        print(header["__metadata__"]["counter"], *struct.unpack(f"<{(end - start) // 8}q", data[start:end]))
"""
    done = subprocess.run([sys.executable, "-S", "-c", reader, str(split)], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [f"{n} {n} -1 {n} {2**40}" for n in (1, 2, 3)]
