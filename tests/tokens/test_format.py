"""The bytes of version 1, literally: changing one of them is a decision, and needs a new version.

``docs/formats/stream.md`` describes them in words. ``stream_version_1`` is a stream as version 1 wrote it, to be read
for ever.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from poolish import StreamStore
from poolish.tokens import directory, head, logs

pytestmark = pytest.mark.kernels

GOLDEN = Path(__file__).parent / "stream_version_1"
NAME = UUID("00112233-4455-6677-8899-aabbccddeeff")
BOOT = bytes(range(16))
ROOT = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
FIELDS = {"action": "int8", "observation": pa.list_(pa.float32()), "done": "bool"}

STORE_JSON = (
    '{"format": "poolish stream", "version": 1, "uuid": "00112233-4455-6677-8899-aabbccddeeff", "hash": "xxh3_64", '
    '"lanes": {"data": "int64", "index": "3 x int64", "types": "uint8"}, "fields": ['
    '{"name": "action", "dtype": "int8", "shape": [], "feature": null}, '
    '{"name": "observation", "dtype": "float32", "shape": [null], "feature": null}, '
    '{"name": "done", "dtype": "bool", "shape": [], "feature": null}], "checksum": "CHECKSUM"}\n'
)
DATA = [-3, 0x3FE0000000000000, -0x4010000000000000, 1, 4, 0]
INDEX = [[0, 0, 7], [1, 1, 7], [3, 2, 7], [4, 256, 9], [5, 257, 9], [5, 258, 9]]
TYPES = [0, 1, 1, 2, 0, 2]


def record(store: StreamStore) -> None:
    """Two steps; the second has an empty observation."""
    names = ["action", "observation", "done"]
    store.append([7, 7, 7], names, [-3, np.array([0.5, -1.0], np.float32), True])
    store.append(9, names, [4, [], False])


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stream whose every byte is known: its name and the machine's boot are given."""
    monkeypatch.setattr(directory, "uuid4", lambda: NAME)
    monkeypatch.setattr(logs, "uuid4", lambda: ROOT)
    monkeypatch.setattr(head, "boot_id", lambda: BOOT)
    with StreamStore(tmp_path / "stream", fields=FIELDS) as store:
        record(store)
        store.commit()
    return tmp_path / "stream"


def proof(data: bytes) -> str:
    """XXH3 as text, by the library itself."""
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def lines(rows: int, tokens: int, before: str, seq: int, data: list[str], index: list[str]) -> tuple[str, str]:
    """Both lines of a record, made as the document says, and its chain."""
    told = {"seq": seq, "uuid": str(NAME), "first": 0, "rows": rows, "tokens": tokens, "kinds": "121"}
    told |= {"data": data, "index": index, "branches": 1}
    chain = proof(json.dumps([told, before], separators=(",", ":")).encode())
    text = json.dumps({**told, "chain": chain}, separators=(",", ":"))
    line = f"{proof(text.encode())} {text}\n"
    return f"{line}\n{line}", chain


def test_description(stream: Path):
    """store.json, to the letter."""
    text = (stream / "store.json").read_text()
    told = json.loads(text)
    del told["checksum"]
    checksum = proof(json.dumps(told, sort_keys=True, separators=(",", ":")).encode())

    assert text == STORE_JSON.replace("CHECKSUM", checksum)
    assert checksum == "6a91d1d3333c5403"


def test_lanes(stream: Path):
    """Values, index rows with the start behind the last, and types."""
    data = np.fromfile(stream / "data", "<i8")
    index = np.fromfile(stream / "index", "<i8")
    types = np.fromfile(stream / "types", "u1")

    assert data[:6].tolist() == DATA
    assert index[:18].reshape(-1, 3).tolist() == INDEX
    assert index[18] == 6
    assert types[:6].tolist() == TYPES
    assert not data[6:].any()
    assert not index[19:].any()
    assert not types[6:].any()


def test_head_page(stream: Path):
    """Who wrote it, three sealed words, the kinds and a fourth."""
    page = (stream / "head").read_bytes()
    signed = b"poolish\x01" + NAME.bytes + BOOT + struct.pack("<q", os.stat(stream / "data").st_ino)

    assert len(page) == 4096
    assert page[:48] == signed
    assert page[48:56] == struct.pack("<Q", xxhash.xxh3_64_intdigest(signed))
    assert page[56:64] == struct.pack("<q", os.getpid())
    assert page[64:72].hex() == "0600000000002c34"
    assert page[128:136].hex() == "000000000000875f"
    assert page[192:200].hex() == "01000000000066de"
    assert page[256:512] == bytes([0xE1, 0xD2, 0xE1]) + bytes(253)
    assert page[512:520].hex() == "010000000000ae41"
    assert not any(page[72:128] + page[136:192] + page[200:256] + page[520:])


def test_commits(stream: Path):
    """Record 0 is empty; record 1 has a hash for each lane and the chain."""
    data = np.array(DATA, "<i8").tobytes()
    index = np.array(INDEX, "<i8").tobytes()
    first, chain = lines(0, 0, "", 0, [], [])
    second, _ = lines(6, 6, chain, 1, [proof(data)], [proof(index)])

    assert (stream / "commits").read_text() == first + second
    assert second.startswith("3162a940fc391790 ")


def test_branches(stream: Path, monkeypatch: pytest.MonkeyPatch):
    """Record 0 is made with the stream; the next opening that appends has its own, with the rows that were there."""
    monkeypatch.setattr(logs, "uuid4", lambda: UUID(int=7))
    with StreamStore(stream) as store:
        store.append(10, ["action"], [5])
    text, before = "", ""
    for seq, rows, branch, ends_episode in [(0, 0, ROOT.hex, False), (1, 6, f"{7:032x}", True)]:
        told = {"seq": seq, "uuid": str(NAME), "rows": rows, "branch": branch, "ends_episode": ends_episode}
        before = proof(json.dumps([told, before], separators=(",", ":")).encode())
        record = json.dumps({**told, "chain": before}, separators=(",", ":"))
        line = f"{proof(record.encode())} {record}\n"
        text += f"{line}\n{line}"

    assert (stream / "branches").read_text() == text
    assert before == "80bf0f8a88caeac7"


def test_blocks_are_cut_at_whole_mebibytes(tmp_path: Path):
    """Each hash covers what was added within one MiB of the file."""
    with StreamStore(tmp_path / "stream", fields={"x": "int64"}) as store:
        store.append_many(np.arange(100_000), {"x": np.arange(100_000)})
        store.commit()
        store.append_many(np.arange(100_000, 300_000), {"x": np.arange(100_000, 300_000)})
    record = json.loads((tmp_path / "stream" / "commits").read_text().splitlines()[-1][17:])
    data = np.arange(300_000, dtype="<i8").tobytes()
    edges = [800_000, 1 << 20, 2 << 20, 2_400_000]

    assert record["data"] == [proof(data[a:b]) for a, b in pairwise(edges)]


def test_version_1_is_read_for_ever(tmp_path: Path):
    """A stream that was written long ago, on another machine, gives its steps back, and goes on."""
    shutil.copytree(GOLDEN, tmp_path / "stream")
    expected = [
        (7, {"action": -3, "observation": [0.5, -1.0], "done": True}),
        (9, {"action": 4, "observation": [], "done": False}),
    ]

    with StreamStore.open(tmp_path / "stream") as reader:
        reader.verify()
        read = [(step.number, {**step, "observation": step["observation"].tolist()}) for step in reader]
    with StreamStore.open(tmp_path / "stream", mode="a") as writer:
        writer.append(9 + 1, ["action"], [5])
        writer.verify()

    assert read == expected
    assert StreamStore.open(tmp_path / "stream").n_steps == 3


def test_another_version_is_refused(stream: Path):
    """A stream of a version that is not known here is not guessed at."""
    told = json.loads((stream / "store.json").read_text())
    (stream / "store.json").write_text(json.dumps({**told, "version": 2}))

    with pytest.raises(ValueError, match="version 2, this poolish reads 1; upgrade"):
        StreamStore.open(stream)


def test_a_stream_is_readable_without_poolish(stream: Path):
    """What the document says is enough to read a stream with the standard library alone."""
    reader = """
import json, struct, sys
from pathlib import Path
S = Path(sys.argv[1])
fields = json.loads((S / "store.json").read_text())["fields"]
published = struct.unpack_from("<Q", (S / "head").read_bytes(), 64)[0] & (1 << 48) - 1
index = [struct.unpack_from("<3q", (S / "index").read_bytes(), 24 * r) for r in range(published + 1)]
data = (S / "data").read_bytes()
for (start, type_, step), (end, *_) in zip(index, index[1:]):
    field = fields[type_ & 255]
    form = "d" if field["dtype"].startswith("float") else "q"
    print(step, field["name"], *struct.unpack_from(f"<{end - start}{form}", data, 8 * start))
"""
    done = subprocess.run([sys.executable, "-S", "-c", reader, str(stream)], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [
        "7 action -3",
        "7 observation 0.5 -1.0",
        "7 done 1",
        "9 action 4",
        "9 observation",
        "9 done 0",
    ]
