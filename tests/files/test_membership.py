"""Ordinals of members: in order of first sight, permanent, the same for every process, whole after a kill."""

from __future__ import annotations

import multiprocessing
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError, CorruptDataError, LimitExceeded, StoreFull
from poolish.files import membership, space
from poolish.files.membership import MembershipRecord
from tests.effort import times


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=4), max_size=8))
def test_ordinals_are_those_of_a_dict_in_order_of_first_sight(tmp_path_factory, rounds):
    """Whoever adds, through the same object or a new one."""
    path = tmp_path_factory.mktemp("record") / "members.jsonl"
    kept, expected = MembershipRecord(path), {}
    for k, names in enumerate(rounds):
        record = kept if k % 2 else MembershipRecord(path)
        for name in names:
            expected.setdefault(name, len(expected))
        assert record.add(names) == [expected[name] for name in names]
        assert kept.names() == MembershipRecord(path).names() == list(expected)


def test_a_record_without_members_has_no_file_and_no_identity(tmp_path):
    record = MembershipRecord(tmp_path / "members.jsonl")

    assert (record.add([]), record.names(), record.uuid) == ([], [], None)
    assert not record.path.exists()


def test_the_identity_stays(tmp_path):
    first, second = MembershipRecord(tmp_path / "a"), MembershipRecord(tmp_path / "b")
    first.add(["x"])
    second.add(["x"])
    uuid = first.uuid
    first.add(["y"])

    assert uuid == first.uuid == MembershipRecord(tmp_path / "a").uuid != second.uuid


def add_all(path, names):
    record = MembershipRecord(path)
    for name in names:
        record.add([name])


def test_processes_agree(tmp_path):
    """Several add the same names in other orders at the same time."""
    path, names = tmp_path / "members.jsonl", [f"actor {k}" for k in range(20)]
    processes = [
        multiprocessing.get_context("fork").Process(target=add_all, args=(path, random.sample(names, 20)))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert sorted(MembershipRecord(path).names()) == sorted(names)
    assert MembershipRecord(path).add(names) == [MembershipRecord(path).names().index(name) for name in names]


def test_a_kill_at_any_byte_leaves_whole_names(tmp_path):
    """What is torn is cut off by the next name; what is whole keeps its ordinal."""
    path = tmp_path / "members.jsonl"
    MembershipRecord(path).add(["rye", "wheat"])
    data = path.read_bytes()
    for end in random.Random(1).sample(range(len(data) + 1), min(len(data), times(60))):
        path.write_bytes(data[:end])
        known = MembershipRecord(path).names()
        assert known == ["rye", "wheat"][: len(known)]
        added = MembershipRecord(path).add(["spelt"])
        assert added == [len(known)]
        assert MembershipRecord(path).names() == [*known, "spelt"]


def test_a_damaged_line_is_refused(tmp_path):
    path = tmp_path / "members.jsonl"
    MembershipRecord(path).add(["rye", "wheat"])
    path.write_bytes(path.read_bytes().replace(b"rye", b"rya"))

    with pytest.raises(CorruptDataError, match="damaged line"):
        MembershipRecord(path).names()


@pytest.mark.parametrize("bad", ["", None, 7, b"x"])
def test_a_name_is_a_text(tmp_path, bad):
    with pytest.raises(ConfigError, match="non-empty name"):
        MembershipRecord(tmp_path / "members.jsonl").add([bad])


def test_there_are_as_many_ordinals_as_ids_have_room_for(tmp_path, monkeypatch):
    """All or nothing: a name too many adds none."""
    monkeypatch.setattr(membership, "MAX_MEMBERS", 3)
    record = MembershipRecord(tmp_path / "members.jsonl")
    record.add(["a", "b"])

    with pytest.raises(LimitExceeded, match="the most is 3"):
        record.add(["c", "d"])
    assert record.add(["c"]) == [2]


def test_a_write_that_fails_records_nothing(tmp_path, monkeypatch):
    """A full disk takes a part of a line; the next name is whole."""
    record = MembershipRecord(tmp_path / "members.jsonl")
    record.add(["a"])
    real = os.pwrite

    def full(fd, data, offset):
        real(fd, bytes(data)[:5], offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(space.os, "pwrite", full)
        with pytest.raises(StoreFull):
            record.add(["b"])
    assert record.names() == ["a"]
    assert record.add(["c"]) == [1]


def test_a_file_of_something_else_is_refused(tmp_path):
    from poolish.files.checksums import ChecksummedLines

    ChecksummedLines(tmp_path / "other").write({"block": 1})
    with pytest.raises(CorruptDataError, match="not a membership record"):
        MembershipRecord(tmp_path / "other").names()
