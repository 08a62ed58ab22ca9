"""A saved buffer comes back as it was, or not at all."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from poolish import DatasetBuffer, PoolishError, files
from poolish.errors import CorruptDataError, StoreFull
from poolish.testing import damages
from tests.effort import times
from tests.rows.children import in_child, start_child
from tests.rows.facts import facts, plain
from tests.rows.kinds import KINDS, rows_of, schema_of

MAGIC = b"POOLROW1"


def small_buffer(**settings: Any) -> DatasetBuffer:
    """A few rows of a few kinds, some of them gone again."""
    buffer = DatasetBuffer(schema=schema_of(["text", "vector", "waves"]), **settings)
    buffer.append(rows_of(["text", "vector", "waves"], 0, 6, nulls=0.2))
    buffer.append(rows_of(["text", "vector", "waves"], 6, 2))
    buffer.retain(0.7, by="random")
    return buffer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "buffer.rows"
    small_buffer().save(path)
    return path


def leftovers(folder: Path) -> list[str]:
    """Everything in the folder that is not the saved file."""
    return sorted(path.name for path in folder.iterdir() if path.name != "buffer.rows")


# What comes back ----------------------------------------------------------------------------------------------


def test_everything_comes_back(tmp_path):
    """Rows of every kind, ids, generations, the next id, the uuid and the settings."""
    names = sorted(KINDS)
    buffer = DatasetBuffer(max_size=30, drop_strategy="random", seed=5, schema=schema_of(names))
    buffer.append(rows_of(names, 0, 25, nulls=0.2))
    buffer.append(rows_of(names, 25, 15, nulls=0.2))
    buffer.append(rows_of(names, 40, 1)[0])
    buffer.save(tmp_path / "buffer.rows")

    loaded = DatasetBuffer.load(tmp_path / "buffer.rows")

    assert facts(loaded) == facts(buffer)
    assert (loaded.uuid, loaded.max_size, loaded.drop_strategy) == (buffer.uuid, 30, "random")


@pytest.mark.parametrize("drop_strategy", ["oldest", "random"])
def test_chance_goes_on_where_it_was(tmp_path, drop_strategy):
    """After loading, the next random rows are those that would have come without saving."""
    buffer = DatasetBuffer(max_size=50, drop_strategy=drop_strategy, seed=9)
    buffer.append(rows_of([], 0, 80), retain_prior=0.5, retain_prior_by="random")
    buffer.sample(5)
    buffer.save(tmp_path / "buffer.rows")
    loaded = DatasetBuffer.load(tmp_path / "buffer.rows")

    for each in (buffer, loaded):
        each.append(rows_of([], 100, 20), retain_prior=0.6, retain_prior_by="random")
        for row in rows_of([], 200, 40):
            each.append(row)

    assert facts(loaded) == facts(buffer)
    assert loaded.sample(10).equals(buffer.sample(10))


def test_a_loaded_buffer_still_knows_its_schema(saved):
    """What does not fit is refused after loading too, and nullable keys may still be missing."""
    loaded = DatasetBuffer.load(saved)

    loaded.append({"key": 100})
    with pytest.raises(PoolishError, match="another"):
        loaded.append({"key": 101, "another": 1})

    assert loaded[-1] == {"key": 100, "text": None, "vector": None, "waves": None}


@pytest.mark.parametrize("rows", [[], [{"text": None, "list": []}]])
def test_buffers_without_types_or_rows_come_back(tmp_path, rows):
    """Nothing appended yet, or nothing but nulls: the types are still open after loading."""
    buffer = DatasetBuffer(seed=3)
    buffer.append(rows)
    buffer.save(tmp_path / "buffer.rows")

    loaded = DatasetBuffer.load(tmp_path / "buffer.rows")
    loaded.append({"text": "rye", "list": [1]})

    assert loaded.to_pydict() == {"text": [*(None for _ in rows), "rye"], "list": [*([] for _ in rows), [1]]}


def test_a_numpy_seed_can_be_saved(tmp_path):
    """A seed that came out of an array is as good as any."""
    buffer = DatasetBuffer(seed=np.uint64(3))

    buffer.save(tmp_path / "buffer.rows")

    assert DatasetBuffer.load(tmp_path / "buffer.rows").uuid == buffer.uuid


def test_saving_over_the_file_that_is_open(saved):
    """A loaded buffer may be saved where it came from; what others still look at stays what it was."""
    loaded = DatasetBuffer.load(saved)
    before, expected = loaded.snapshot(), plain(loaded.to_pydict())
    loaded.append({"key": 100})

    loaded.save(saved)

    assert plain(before.to_pydict()) == expected
    assert facts(DatasetBuffer.load(saved)) == facts(loaded)


def test_loading_writes_nothing(saved):
    """Not a byte in the folder changes, nor the time of the file, also when the loaded rows are written to."""
    before = (saved.read_bytes(), saved.stat().st_mtime_ns)
    loaded = DatasetBuffer.load(saved)

    loaded.to_torch(["key"])["key"].fill_(7)
    assert set(loaded.to_pydict()["key"]) == {7}  # the tensor shares the buffer's memory, not the file's
    loaded.update(loaded.ids, {"key": np.zeros(len(loaded), np.int64)})

    assert (saved.read_bytes(), saved.stat().st_mtime_ns) == before
    assert leftovers(saved.parent) == []


def test_a_missing_file_is_missing(tmp_path):
    """Nothing there is no damage."""
    with pytest.raises(FileNotFoundError):
        DatasetBuffer.load(tmp_path / "nothing.rows")


def test_a_pipe_is_not_waited_for(tmp_path):
    """What is no regular file is an error at once."""
    os.mkfifo(tmp_path / "buffer.rows")

    with pytest.raises(CorruptDataError, match=r"buffer\.rows: .*it is no regular file"):
        DatasetBuffer.load(tmp_path / "buffer.rows")


# The format ---------------------------------------------------------------------------------------------------


def parts_of(content: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The footer and the parts, read as the module says they are written."""
    length, checksum, magic = struct.unpack("<QQ8s", content[-24:])
    raw = content[-24 - length : -24]
    footer = json.loads(raw)
    assert (content[:64], magic, checksum) == (MAGIC.ljust(64, b"\0"), MAGIC, xxhash.xxh3_64_intdigest(raw))
    parts, at = {}, 64
    for name in ("rows", "ids", "generations"):
        parts[name] = content[at : at + footer["bytes"][name]]
        at += footer["bytes"][name]
    assert at + length + 24 == len(content)
    return footer, parts


def signed(footer: dict[str, Any] | bytes, parts: dict[str, bytes], magic: bytes = MAGIC) -> bytes:
    """A file whose checksums are right, whatever is in it."""
    body = magic.ljust(64, b"\0") + b"".join(parts.values())
    if isinstance(footer, dict):
        told = {**footer, "xxh3": xxhash.xxh3_64_hexdigest(body)}
        told.setdefault("bytes", {name: len(part) for name, part in parts.items()})
        footer = json.dumps(told).encode()
    return body + footer + struct.pack("<QQ8s", len(footer), xxhash.xxh3_64_intdigest(footer), MAGIC)


def test_the_format_is_as_it_is_described(tmp_path):
    """Any tool can read the file by the description: changing it is a decision and needs another version."""
    buffer = DatasetBuffer(max_size=10, seed=4)
    buffer.append([{"text": "rye", "vector": np.arange(2, dtype=np.float32)}] * 3)
    buffer.append({"text": None, "vector": np.ones(2, np.float32)}, retain_prior=0.7)
    buffer.save(tmp_path / "buffer.rows")

    footer, parts = parts_of((tmp_path / "buffer.rows").read_bytes())

    assert {name: footer[name] for name in ("format", "version", "uuid", "next_id")} == {
        "format": "poolish.rows",
        "version": 1,
        "uuid": buffer.uuid,
        "next_id": 4,
    }
    assert footer["xxh3"] == xxhash.xxh3_64_hexdigest(MAGIC.ljust(64, b"\0") + b"".join(parts.values()))
    assert struct.unpack("<3q", parts["ids"]) == (1, 2, 3)
    assert struct.unpack("<2q", parts["generations"]) == (0, 3)
    table = pa.ipc.open_stream(parts["rows"]).read_all()
    assert table.column("text").to_pylist() == ["rye", "rye", None]
    assert table.column("vector").type == pa.fixed_shape_tensor(pa.float32(), (2,))
    assert {key: footer["settings"][key] for key in ("max_size", "drop_strategy", "seed", "kind")} == {
        "max_size": 10,
        "drop_strategy": "oldest",
        "seed": 4,
        "kind": "rows",
    }


def test_the_same_buffer_is_the_same_bytes(tmp_path):
    """Saving twice, or loading and saving, changes nothing, so files can be compared by their checksums."""
    buffer = small_buffer()

    for name, each in (("a", buffer), ("b", buffer)):
        each.save(tmp_path / name)
    DatasetBuffer.load(tmp_path / "a").save(tmp_path / "c")

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert parts_of((tmp_path / "a").read_bytes()) == parts_of((tmp_path / "c").read_bytes())


def test_a_file_of_version_1_can_be_read_for_ever():
    """Written by poolish 0.1.0: what it holds, and what chance would have brought next, is known."""
    loaded = DatasetBuffer.load(Path(__file__).with_name("saved_version_1.rows"))

    assert loaded.to_pydict()["text"] == ["süß", None, "🥖"]
    assert plain(loaded.to_pydict()["vector"]) == plain([np.full(2, i, np.float32) for i in (1, 3, 4)])
    assert plain(loaded.to_pydict()["waves"]) == plain([np.arange(i, dtype=np.int16) for i in (1, 3, 4)])
    assert loaded.to_pydict()["struct"] == [{"x": 1, "tags": []}, None, {"x": 4, "tags": ["a", "b"]}]
    assert (loaded.ids.tolist(), loaded.generations, loaded.next_id) == ([1, 3, 4], [(0, 3), (3, 5)], 5)
    assert (loaded.uuid, loaded.max_size, loaded.drop_strategy) == ("00112233445566778899aabbccddeeff", 3, "random")
    for key in range(5, 30):
        loaded.append({"key": key, "text": "", "vector": np.zeros(2, np.float32), "waves": None, "struct": None})
    assert loaded.to_pydict()["key"] == [20, 27, 29]
    assert loaded.sample(2)["key"].to_pylist() == [29, 20]


# Damage -------------------------------------------------------------------------------------------------------


def verdict(path: Path, content: bytes) -> str:
    """What loading makes of damaged content: "found", or what went wrong with finding it."""
    overwrite(path, content)
    try:
        DatasetBuffer.load(path)
    except CorruptDataError as error:
        return "found" if str(path) in str(error) else f"no place named: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "taken for good"


def overwrite(path: Path, content: bytes) -> None:
    """Other content in the same file; emptying it first would make some file systems sync, and 20,000 tests slow."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, content)
    os.ftruncate(fd, len(content))
    os.close(fd)


def verdicts(path: Path, damaged: Iterator[bytes]) -> dict[str, int]:
    """How often each verdict was given."""
    counts: dict[str, int] = {}
    for content in damaged:
        told = verdict(path, content)
        counts[told] = counts.get(told, 0) + 1
    return counts


def flipped(content: bytes) -> Iterator[bytes]:
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        yield bytes(damaged)


def test_every_flipped_bit_is_found(saved):
    """Each single bit of the file is covered by a check, and none of them takes the process down."""
    content = saved.read_bytes()

    counts = in_child(lambda: verdicts(saved, flipped(content)))

    assert counts == {"found": len(content) * 8}


def test_every_cut_is_found(saved):
    """A file that ends early, anywhere, is no file."""
    content = saved.read_bytes()

    counts = in_child(lambda: verdicts(saved, (content[:length] for length in range(len(content)))))

    assert counts == {"found": len(content)}


def test_bytes_that_were_added_are_found(saved):
    """In front, behind, or the file twice."""
    content = saved.read_bytes()
    longer = [content + b"\0", b"\0" + content, content + content[-24:], content + content, content + bytes(4096)]

    assert verdicts(saved, iter(longer)) == {"found": len(longer)}


def test_accidents_are_found(saved):
    """Zeroed, overwritten, cut out, inserted, swapped: always an error, never other rows, never a crash."""
    content = saved.read_bytes()

    counts = in_child(lambda: verdicts(saved, damages(content, times(6_000), seed=1)))

    assert counts.keys() == {"found"}


@pytest.mark.parametrize("names", [sorted(KINDS)[i::5] for i in range(5)], ids=" ".join)
def test_damage_behind_right_checksums_takes_no_process_down(tmp_path, names):
    """Rows that were damaged before they were signed are refused, or read as something; Arrow alone would crash."""
    path = tmp_path / "buffer.rows"
    buffer = DatasetBuffer(schema=schema_of(names))
    buffer.append(rows_of(names, 0, 8, nulls=0.2))
    buffer.save(path)
    footer, parts = parts_of(path.read_bytes())
    del footer["bytes"]

    def read_all() -> dict[str, int]:
        counts: dict[str, int] = {}
        for rows in damages(parts["rows"], times(500), seed=len(names[0])):
            overwrite(path, signed(footer, {**parts, "rows": rows}))
            told = read_everything(path)
            counts[told] = counts.get(told, 0) + 1
        return counts

    assert in_child(read_all).keys() <= {"found", "read"}


def read_everything(path: Path) -> str:
    """Load, read in every way, and change; what came of it."""
    try:
        loaded = DatasetBuffer.load(path)
    except CorruptDataError:
        return "found"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    try:
        loaded.to_pydict(), loaded.to_numpy(), loaded.get_batch([0, -1]), list(loaded)
        loaded.append(loaded.to_arrow())
        loaded.retain(0.5, by="random")
    except PoolishError as error:
        return "read" if "not nullable" in str(error) else f"{type(error).__name__}: {error}"
    return "read"


FOOTERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another version": lambda footer: footer.update(version=2),
    "another format": lambda footer: footer.update(format="poolish.tokens"),
    "no settings": lambda footer: footer.pop("settings"),
    "settings of another type": lambda footer: footer.update(settings=[1]),
    "no max_size": lambda footer: footer["settings"].pop("max_size"),
    "max_size of another type": lambda footer: footer["settings"].update(max_size="10"),
    "unknown strategy": lambda footer: footer["settings"].update(drop_strategy="newest"),
    "seed out of range": lambda footer: footer["settings"].update(seed=-1),
    "no random state": lambda footer: footer["settings"].update(rng={}),
    "random state of another type": lambda footer: footer["settings"].update(sample_rng=7),
    "kind of another type": lambda footer: footer["settings"].update(kind=[1]),
    "names of another type": lambda footer: footer["settings"].update(may_be_missing=7),
    "no uuid": lambda footer: footer.pop("uuid"),
    "uuid of another type": lambda footer: footer.update(uuid=5),
    "no next id": lambda footer: footer.pop("next_id"),
    "next id of another type": lambda footer: footer.update(next_id="8"),
    "next id below the last": lambda footer: footer.update(next_id=1),
    "no lengths": lambda footer: footer.update(bytes={}),
    "lengths of other parts": lambda footer: footer["bytes"].update(rows=0, more=footer["bytes"]["rows"]),
    "lengths without names": lambda footer: footer.update(bytes={"all": sum(footer["bytes"].values())}),
    "negative length": lambda footer: footer["bytes"].update(ids=-8, rows=footer["bytes"]["rows"] + 16),
    "length that cuts an id": lambda footer: footer["bytes"].update(
        ids=footer["bytes"]["ids"] - 4, generations=footer["bytes"]["generations"] + 4
    ),
}


@pytest.mark.parametrize("fault", FOOTERS)
def test_a_footer_that_makes_no_sense_is_damage(saved, fault):
    """Right checksums are no reason to believe: types, ranges and lengths are looked at, too."""
    footer, parts = parts_of(saved.read_bytes())
    FOOTERS[fault](footer)

    assert verdict(saved, signed(footer, parts)) == "found"


@pytest.mark.parametrize("footer", [b"", b"{", b"[]", b"7", b"null", b"\xff", b"[" * 100_000, b'{"version": 1}'])
def test_a_footer_that_is_none_is_damage(saved, footer):
    """Not JSON, not an object, nested without end, or empty."""
    assert verdict(saved, signed(footer, parts_of(saved.read_bytes())[1])) == "found"


def test_a_file_of_another_kind_is_damage(saved):
    """Checksums that happen to be right do not make a buffer of it."""
    footer, parts = parts_of(saved.read_bytes())

    assert verdict(saved, signed(footer, parts)) == "taken for good"
    assert verdict(saved, signed(footer, parts, b"POOLROW2")) == "found"


IDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "twice": lambda ids: np.r_[ids[:1], ids[:-1]],
    "falling": lambda ids: ids[::-1],
    "negative": lambda ids: ids - 10,
    "beyond the next": lambda ids: ids + 1_000,
    "too few": lambda ids: ids[1:],
    "too many": lambda ids: np.r_[ids, ids[-1:] + 1],
}


@pytest.mark.parametrize("fault", IDS)
@pytest.mark.parametrize("part", ["ids", "generations"])
def test_ids_that_make_no_sense_are_damage(saved, part, fault):
    """Ids count up, one per row; generations count up to the next id and the first begins before the first row."""
    footer, parts = parts_of(saved.read_bytes())
    del footer["bytes"]
    numbers = np.frombuffer(parts[part], "<i8")
    parts[part] = IDS[fault](numbers).astype("<i8").tobytes()
    if part == "generations" and fault in ("too few", "too many"):
        numbers = np.r_[numbers, 8] if fault == "too many" else numbers[1:]
        parts[part] = numbers.astype("<i8").tobytes()

    assert verdict(saved, signed(footer, parts)) == "found"


class Canary:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_what_is_read_is_never_executed(tmp_path):
    """A pickle in place of the file, of its rows, or of its footer stays what it is: bytes."""
    canary, path = tmp_path / "sang", tmp_path / "buffer.rows"
    small_buffer().save(path)
    footer, parts = parts_of(path.read_bytes())
    song = pickle.dumps(Canary(canary))
    del footer["bytes"]
    told_type = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": song}
    table = pa.table([pa.array([1])], pa.schema([pa.field("x", pa.int64(), metadata=told_type)]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    rows = sink.getvalue().to_pybytes()

    told = [
        verdict(path, song),
        verdict(path, MAGIC.ljust(64, b"\0") + song + MAGIC),
        verdict(path, signed(song, parts)),
        verdict(path, signed(footer, {**parts, "rows": song})),
        verdict(path, signed(footer, {"rows": rows, "ids": bytes(8), "generations": bytes(8)})),
    ]

    assert not canary.exists()
    assert set(told) == {"found"}
    pickle.loads(song)
    assert canary.exists()  # it would have sung


@pytest.mark.parametrize("content", [b"", b"x", bytes(10_000), MAGIC * 100, b"ARROW1\0\0" * 50, b"PK\x03\x04" * 50])
def test_other_files_are_no_buffers(tmp_path, content):
    """An empty file, zeros, or what another program wrote."""
    assert verdict(tmp_path / "buffer.rows", content) == "found"


# Saving that goes wrong ---------------------------------------------------------------------------------------


def versioned(version: int, n_rows: int = 20_000) -> DatasetBuffer:
    """A buffer every value of which tells the version."""
    buffer = DatasetBuffer()
    buffer.append_columns({"version": np.full(n_rows, version), "more": np.full((n_rows, 4), version, np.float32)})
    return buffer


def version_in(path: Path) -> int:
    """The version that all of a saved file agrees on."""
    columns = DatasetBuffer.load(path).to_numpy()
    (version,) = {*columns["version"].tolist(), *columns["more"].ravel().tolist()}
    return int(version)


def save_for_ever(path: Path, acknowledged: int) -> None:
    version = 0
    while True:
        version += 1
        versioned(version).save(path)
        os.write(acknowledged, b".")


def test_a_killed_save_leaves_the_old_file_or_the_new_one(tmp_path):
    """Whenever the process dies, the file is whole, and at least as new as the last save that returned."""
    path, rng, n_unfinished = tmp_path / "buffer.rows", random.Random(0), 0
    for _ in range(times(100)):
        versioned(0).save(path)
        to_read, to_write = os.pipe()
        pid, answers = start_child(save_for_ever, path, to_write)
        os.close(to_write)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        answers.close()
        with os.fdopen(to_read, "rb") as acknowledged:
            n_saved = len(acknowledged.read())

        assert version_in(path) in (n_saved, n_saved + 1)
        n_unfinished += len(leftovers(tmp_path))
        files.sweep(tmp_path)
        assert leftovers(tmp_path) == []
    assert n_unfinished > 0  # some of them died in the middle of it


SYSTEM_CALLS = ("open", "write", "fsync", "rename")


@contextmanager
def failing_call(k: int, code: int, *, for_ever: bool) -> Iterator[list[int]]:
    """The k-th of the calls that saving makes fails, or all from the k-th on; gives the count of calls."""
    count = [0]

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] == k or (for_ever and count[0] > k):
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return counted

    with mock.patch.multiple(os, **{name: failing(getattr(os, name)) for name in SYSTEM_CALLS}):
        yield count


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_failed_system_call_leaves_the_old_file_or_the_new_one(tmp_path, code, for_ever):
    """Whichever call fails, the error is an OSError, no scraps are left, and the next save works."""
    path, old, new = tmp_path / "buffer.rows", versioned(1), versioned(2)
    with failing_call(0, code, for_ever=False) as count:
        new.save(path)
    assert count[0] > 6  # open, several writes, sync, rename, open and sync of the folder

    for k in range(1, count[0] + 1):
        old.save(path)
        with failing_call(k, code, for_ever=for_ever), pytest.raises(OSError, match=r".") as caught:
            new.save(path)

        assert caught.value.errno == code
        assert version_in(path) in (1, 2)
        assert leftovers(tmp_path) == []
        new.save(path)
        assert version_in(path) == 2


def mount_small_disk(folder: Path) -> bool:
    """Mount 1 MB in a namespace of this process's own, where that is allowed; it goes when the process ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, new_user, is_private = 0x00020000, 0x10000000, (1 << 14) | (1 << 18)
    if libc.unshare(new_namespace) and libc.unshare(new_namespace | new_user):
        return False
    libc.mount(b"none", b"/", None, is_private, None)
    return libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=1m") == 0


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return bool(in_child(mount_small_disk, Path(folder)))


def limit_file_sizes(folder: Path) -> bool:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    return True


@pytest.mark.parametrize("limit", [limit_file_sizes, mount_small_disk] if can_mount() else [limit_file_sizes])
def test_a_full_disk_leaves_the_old_file(tmp_path, limit):
    """A real one, and a limit on the size of files: StoreFull, the old file whole, nothing else, and it goes on."""

    def fill() -> tuple[str, int, list[str], int]:
        assert limit(tmp_path)
        path = tmp_path / "buffer.rows"
        versioned(1, 5_000).save(path)
        try:
            versioned(2, 500_000).save(path)
            told = "saved"
        except StoreFull as error:
            told = str(error)
        kept, rest = version_in(path), leftovers(tmp_path)
        versioned(3, 5_000).save(path)
        return told, kept, rest, version_in(path)

    told, kept, rest, last = in_child(fill)

    assert str(tmp_path) in told
    assert (kept, rest, last) == (1, [], 3)


def test_a_read_only_folder_can_be_read_from(tmp_path):
    """Loading needs no right to write, and saving there is refused without a trace."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "buffer.rows"
    versioned(1).save(path)
    path.chmod(0o444)
    folder.chmod(0o555)

    def try_both() -> tuple[int, str]:
        if os.geteuid() == 0:
            os.setuid(65534)  # the superuser may write anywhere
        version = version_in(path)
        try:
            versioned(2).save(path)
        except PermissionError as error:
            return version, str(error)
        return version, "saved"

    try:
        version, told = in_child(try_both)
        kept, rest = version_in(path), leftovers(folder)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)

    assert (version, kept, rest) == (1, 1, [])
    assert str(folder) in told


def test_a_buffer_can_be_saved_while_it_grows(tmp_path):
    """The file holds one moment: what comes while it is written is not in it."""
    buffer, path = versioned(1), tmp_path / "buffer.rows"
    real = os.write

    def write_and_append(fd: int, data: Any) -> int:
        buffer.append([{"version": 2, "more": np.full(4, 2, np.float32)}])
        return real(fd, data)

    with mock.patch.object(os, "write", write_and_append):
        buffer.save(path)

    assert version_in(path) == 1
    assert len(DatasetBuffer.load(path)) == 20_000 < len(buffer)
