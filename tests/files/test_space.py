"""All bytes are written; a full disk is an error where space is asked for, never a signal later."""

from __future__ import annotations

import errno as codes
import mmap
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import StoreFull
from poolish.files import grow, raising_store_full, write_all, write_at
from tests.faults import fill, in_child, small_disk


@pytest.fixture
def fd(tmp_path: Path):
    fd = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


# Writing ------------------------------------------------------------------------------------------------------


def test_buffers_are_written_one_behind_the_other(fd):
    """Of any type and shape, empty ones too, without being joined first."""
    buffers = [b"head", bytearray(b"er"), np.arange(3, dtype="<i2"), np.empty((0, 3)), memoryview(b"end"), b""]

    n_bytes = write_all(fd, iter(buffers))

    assert content(fd) == b"header\0\0\1\0\2\0end"
    assert n_bytes == len(content(fd))
    assert write_all(fd, []) == 0


def test_more_buffers_than_the_system_takes_at_once(fd):
    """The limit on buffers in one call is not the caller's concern."""
    buffers = [b"%05d" % i for i in range(5_000)]

    write_all(fd, buffers)

    assert content(fd) == b"".join(buffers)


@given(st.lists(st.binary(max_size=40), max_size=20), st.lists(st.integers(1, 25), min_size=1))
def test_partial_writes_are_continued(buffers, limits):
    """However little the system takes at a time, all of it arrives, in order and once."""
    written, turn = bytearray(), iter(limits * 1_000)

    def stingy(fd, views):
        taken = b"".join(views)[: next(turn)]
        written.extend(taken)
        return len(taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", stingy)
        assert write_all(99, buffers) == len(written)

    assert bytes(written) == b"".join(buffers)


def test_what_is_not_contiguous_is_refused(fd):
    """Nothing is copied in silence, and nothing is written before all is known to be writable."""
    with pytest.raises(TypeError, match="contiguous"):
        write_all(fd, [b"first", np.arange(10)[::2]])

    assert content(fd) == b""


def test_a_write_to_a_full_disk_says_what_was_wanted(tmp_path):
    """StoreFull names the file and the size."""
    with small_disk(tmp_path / "disk", 2**20) as disk, open(disk / "data", "wb") as file:
        with pytest.raises(StoreFull, match=r"data: no space left on device for 2,097,152 bytes; make room") as full:
            write_all(file.fileno(), [bytes(2**20)] * 2)
        assert full.value.errno == codes.ENOSPC


def test_only_a_full_disk_is_explained():
    """Another error passes as it is, and one that was explained already is not explained again."""
    inner = StoreFull("inner")
    for error in (OSError(codes.EIO, "broken"), inner, ValueError()):
        with pytest.raises(type(error)) as raised, raising_store_full("data"):
            raise error
        assert raised.value is error


# Growing ------------------------------------------------------------------------------------------------------


def allocated(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def without_fallocate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)


def with_a_file_system_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*arguments):
        raise OSError(codes.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)


each_way = pytest.mark.parametrize(
    "prepare",
    [lambda patch: None, without_fallocate, with_a_file_system_that_cannot],
    ids=["as is", "macOS", "old disk"],
)


@each_way
def test_a_file_grows_over_space_that_is_there(fd, monkeypatch, prepare):
    """What it held stays, the rest is zeros, and all of it is allocated."""
    prepare(monkeypatch)
    os.write(fd, b"head")

    grow(fd, 3 * 2**20 + 5)

    assert content(fd) == b"head" + bytes(3 * 2**20 + 1)
    assert allocated(fd) >= 3 * 2**20


@each_way
def test_growing_is_done_in_pieces_without_a_gap(fd, monkeypatch, prepare):
    """More than one piece, and a last one that is shorter."""
    prepare(monkeypatch)
    monkeypatch.setattr("poolish.files.space._ALLOCATE", 10_000)

    grow(fd, 123)
    grow(fd, 35_000)

    assert content(fd) == bytes(35_000)
    assert allocated(fd) >= 35_000


@pytest.mark.parametrize("size", [0, 3, 4])
def test_a_file_never_gets_shorter(fd, size):
    """Asking for less than there is changes nothing: a reader that maps the rest would die."""
    os.write(fd, b"head")

    grow(fd, size)

    assert content(fd) == b"head"


@each_way
def test_growing_on_a_full_disk_changes_nothing(tmp_path, monkeypatch, prepare):
    """StoreFull at the growing call; length and free space are what they were."""
    prepare(monkeypatch)
    monkeypatch.setattr("poolish.files.space._ALLOCATE", 2**18)
    with small_disk(tmp_path / "disk", 2**20) as disk, open(disk / "data", "w+b", buffering=0) as file:
        file.write(b"head")
        free = os.statvfs(disk).f_bfree

        with pytest.raises(StoreFull, match=r"data: no space left on device for 8,388,604 bytes; make room"):
            grow(file.fileno(), 2**23)

        assert (content(file.fileno()), os.statvfs(disk).f_bfree) == (b"head", free)
        grow(file.fileno(), 2**19)
        assert os.fstat(file.fileno()).st_size == 2**19


def test_growing_beyond_a_limit_changes_nothing(fd):
    """The same under RLIMIT_FSIZE, which needs no disk of its own."""
    os.write(fd, b"head")

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(StoreFull, match="file too large"):
            grow(fd, 100_000)

    assert in_child(child) == 0
    assert content(fd) == b"head"


def fill_through_a_map(disk: Path, lengthen) -> int:
    """Lengthen a file, take all other space away, then write to all of the file through a map: how that ends."""
    fd = os.open(disk / "data", os.O_RDWR | os.O_CREAT)
    lengthen(fd, 2**18)
    fill(disk)

    def child():
        with mmap.mmap(fd, 2**18) as view:
            view[:] = b"x" * 2**18

    try:
        return in_child(child)
    finally:
        os.close(fd)


def test_a_grown_file_can_be_filled_through_a_map_on_a_full_disk(tmp_path):
    """Its space is its own. A file that was only made longer dies with SIGBUS here, so this test can fail."""
    with small_disk(tmp_path / "grown", 2**20) as disk:
        assert fill_through_a_map(disk, grow) == 0
    with small_disk(tmp_path / "lengthened", 2**20) as disk:
        assert fill_through_a_map(disk, os.ftruncate) == -signal.SIGBUS


def test_every_byte_is_written_however_little_the_system_takes_at_once(tmp_path, monkeypatch):
    """A short write is continued where it stopped, for streams and for writes at a place."""
    pwrite, writev = os.pwrite, os.writev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, start: pwrite(fd, data[:3], start))
    monkeypatch.setattr(os, "writev", lambda fd, views: writev(fd, [views[0][:3]]))

    with open(tmp_path / "placed", "wb") as placed, open(tmp_path / "streamed", "wb") as streamed:
        write_at(placed.fileno(), b"twelve bytes", 2)
        write_all(streamed.fileno(), [b"twelve", b" bytes"])

    assert (tmp_path / "placed").read_bytes() == b"\0\0twelve bytes"
    assert (tmp_path / "streamed").read_bytes() == b"twelve bytes"


def test_a_system_that_writes_nothing_is_an_error_and_no_endless_loop(tmp_path, monkeypatch):
    """Zero bytes written without an error is reported, as an input/output error."""
    monkeypatch.setattr(os, "pwrite", lambda fd, data, start: 0)
    monkeypatch.setattr(os, "writev", lambda fd, views: 0)

    with open(tmp_path / "file", "wb") as file:
        with pytest.raises(OSError, match="wrote nothing"):
            write_at(file.fileno(), b"bytes", 0)
        with pytest.raises(OSError, match="wrote nothing"):
            write_all(file.fileno(), [b"bytes"])
