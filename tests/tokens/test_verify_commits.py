"""Commits: numbered without gaps, chained, each a state that can be opened again; and what makes one."""

from __future__ import annotations

import gc
import json
import pickle
import shutil
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from poolish import DatasetRecipe, Loader, StreamStore
from poolish.errors import ConfigError, CorruptDataError
from poolish.files import checksum_hex
from poolish.tokens import commits, memmap_buffer, writer
from poolish.tokens.commits import Commit, CommitLog, blocks
from poolish.tokens.logs import chained, follows
from tests.tokens import recordings
from tests.tokens.recordings import FIELDS, abandon, append, append_many, assert_holds

ROOT = Path(__file__).resolve().parents[2]
UUID_A, UUID_B = UUID(int=1), UUID(int=2)


# Numbers ----------------------------------------------------------------------------------------------------------


def test_commits_count_up_from_the_one_that_made_the_stream(tmp_path):
    """Commit 0 is the empty stream; a commit with nothing new is the last one again."""
    with StreamStore(tmp_path / "stream", FIELDS) as store:
        assert store.commit() == 0
        for number in range(1, 5):
            append(store, 10 * number, 10 * number + 10)
            assert [store.commit(), store.commit()] == [number, number]
    with StreamStore.open(tmp_path / "stream", mode="a") as store:
        assert store.commit() == 4
        append(store, 50, 60)
        assert store.commit() == 5


def test_each_commit_can_be_opened_by_its_number(tmp_path):
    """It stays what it was, whatever is appended afterwards; a number that is not there is told with those that are."""
    path = tmp_path / "stream"
    with StreamStore(path, FIELDS) as store:
        for number in range(5):
            append_many(store, 10 * number, 10 * number + 10)
            assert store.commit() == number + 1
        append_many(store, 50, 60)

        for number in range(6):
            with StreamStore.open(path, at=number) as old:
                assert_holds(old, recordings.tokens(0, 10 * number))
                assert (old.n_steps, old.verify().commits) == (10 * number, number + 1)
                assert old.verify().uncommitted_tokens == 0
        for number in (6, -1, 10**9):
            with pytest.raises(ConfigError, match=rf"no commit {number}; there are 0 to 5"):
                StreamStore.open(path, at=number)
        with pytest.raises(ConfigError, match="mode 'a', at=3"):
            StreamStore.open(path, mode="a", at=3)


def read_by_loader(old):
    return [number for batch in Loader(old, 4) for number in batch["action"].tolist()]


def read_by_following(old):
    return [number for batch in Loader(old, 4, follow=True) for number in batch["action"].tolist()]


def read_by_bake(old):
    return DatasetRecipe("r").add_ingredient("s", old).bake().buffer.to_pydict()["action"]


def read_as_dataset(old):
    return [number for window in old.as_dataset(width=1) for number in window["values"].tolist()]


def read_in_loaded_windows(old):
    return [number for batch in Loader(old.as_dataset(width=1), 4) for number in batch["values"].reshape(-1).tolist()]


def read_after_refresh(old):
    assert old.refresh() == 0
    return old[:]["values"].tolist()


def read_from_pickle(old):
    return read_after_refresh(pickle.loads(pickle.dumps(old)))


@pytest.mark.parametrize(
    "read",
    [
        read_by_loader,
        read_by_following,
        read_by_bake,
        read_as_dataset,
        read_in_loaded_windows,
        read_after_refresh,
        read_from_pickle,
    ],
)
@pytest.mark.parametrize("mmap", [True, False])
def test_an_older_commit_stays_one_for_everything_that_reads_it(tmp_path, read, mmap):
    """A stream opened ``at`` a commit ends there for loaders, bakes, windows, refresh and other processes."""
    path = tmp_path / "stream"
    with StreamStore(path, {"action": "int64"}) as store:
        store.append_many(np.arange(50), {"action": np.arange(50)})
        number = store.commit()
        store.append_many(np.arange(50, 100), {"action": np.arange(50, 100)})
        with StreamStore.open(path, at=number, mmap=mmap) as old:
            store.append(100, ["action"], [100])

            assert read(old) == list(range(50))
            assert (old.n_steps, len(old), old.last_step) == (50, 50, 49)
            assert read(old) == list(range(50))
            with pytest.raises(IndexError, match=r"index 50 is out of range for a stream of 50 tokens$"):
                old[50]


def test_kinds_of_an_older_commit_are_those_of_then(tmp_path):
    """A field that nobody had written yet was neither one number nor many."""
    path = tmp_path / "stream"
    with StreamStore(path, ["a", "b"]) as store:
        store.append(0, ["a"], [1.0])
        store.commit()
        store.append(1, ["a", "b"], [1.0, [2.0, 3.0]])

    with StreamStore.open(path, at=1) as old, StreamStore.open(path) as new:
        assert [dict(step) for step in old.steps()] == [{"a": 1.0}]
        last = list(new.steps())[-1]
        assert (last["a"], last["b"].tolist()) == (1.0, [2.0, 3.0])
        assert (repr(old), repr(new)) != (repr(new), repr(old))


def test_an_older_commit_of_a_bounded_stream(tmp_path, monkeypatch):
    """What has left the stream is no damage: it cannot be opened any more, and the error says so."""
    path = tmp_path / "stream"
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 14)
    with StreamStore(path, {"action": "int64"}, max_tokens=10_000) as store:
        for end in range(20_000, 400_001, 20_000):
            numbers = np.arange(store.end, end)
            store.append_many(numbers, {"action": numbers})
            last = store.commit()
        assert store.verify().tokens == 10_000

        with StreamStore.open(path, at=last) as reader:
            assert np.array_equal(reader[:]["values"], np.arange(390_000, 400_000))
            reader.verify()
        for gone in (1, last // 2):
            with pytest.raises(ConfigError, match=r"left|kept|gone"):
                StreamStore.open(path, at=gone)


def test_refresh_at_a_commit_of_a_bounded_stream_moves_its_beginning_only(tmp_path, monkeypatch):
    """What leaves the stream leaves the commit too; nothing newer takes its place."""
    path = tmp_path / "stream"
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 10)
    with StreamStore(path, {"action": "int64"}, max_tokens=10_000) as store:
        store.append_many(np.arange(10_000), {"action": np.arange(10_000)})
        with StreamStore.open(path, at=store.commit()) as old:
            store.append_many(np.arange(10_000, 15_000), {"action": np.arange(5_000)})
            assert old.refresh() == 0
            assert (old.first, old.end) == (store.first, 10_000) == (5_000, 10_000)
            assert len(old.as_dataset(width=1)) == 5_000

            store.append_many(np.arange(15_000, 25_000), {"action": np.arange(10_000)})
            with pytest.raises(ConfigError, match="all steps of commit 1 have left the stream"):
                old.refresh()


# What makes a commit ----------------------------------------------------------------------------------------------


def close_it(store):
    store.close()


def leave_it(store):
    with store:
        pass


@pytest.mark.parametrize("end", [close_it, leave_it])
def test_closing_commits(tmp_path, end):
    """So does the end of a with block; afterwards the handle is closed, and closing again is nothing."""
    store = StreamStore(tmp_path / "stream", FIELDS)
    append(store, 0, 10)

    end(store)

    store.close()
    for use in (lambda: append(store, 10, 11), lambda: store[0], store.commit, store.refresh, store.verify):
        with pytest.raises(ConfigError, match="closed"):
            use()
    assert len(store) == 0
    assert_committed(tmp_path / "stream", 10)


def assert_committed(path: Path, n_steps: int, n_commits: int = 2) -> None:
    with StreamStore.open(path) as reader:
        verified = reader.verify()
        assert_holds(reader, recordings.tokens(0, n_steps))
        assert (verified.commits, verified.uncommitted_tokens) == (n_commits, 0)


def test_a_block_that_ends_with_an_error_commits_what_was_appended(tmp_path):
    """Each append is whole; the error is the caller's own."""
    store = StreamStore(tmp_path / "stream", FIELDS)
    append(store, 0, 10)
    with pytest.raises(RuntimeError, match="oops"), store:
        raise RuntimeError("oops")

    assert_committed(tmp_path / "stream", 10)


def test_a_handle_that_nobody_holds_any_more_commits(tmp_path):
    """Its files are closed and its lock is free."""
    store = StreamStore(tmp_path / "stream", FIELDS)
    append(store, 0, 10)
    del store
    gc.collect()

    assert_committed(tmp_path / "stream", 10)
    StreamStore.open(tmp_path / "stream", mode="a").close()


@pytest.mark.parametrize(("end", "status"), [("pass", 0), ("sys.exit(3)", 3), ("raise ValueError", 1), ("1/0", 1)])
def test_a_program_that_ends_commits(tmp_path, end, status):
    """However it ends by itself; nobody had to close anything."""
    program = f"""
        import sys
        from poolish import DatasetRecipe, Loader, StreamStore
        from tests.tokens.recordings import FIELDS, append
        store = StreamStore(sys.argv[1], FIELDS)
        append(store, 0, 10)
        {end}
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "stream")]

    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode == status
    assert_committed(tmp_path / "stream", 10)


def test_what_a_killed_writer_appended_is_committed_by_the_next(tmp_path):
    """Until then it has no checksum, and ``verify`` says how much that is."""
    path = tmp_path / "stream"
    abandon(path)

    with StreamStore.open(path) as reader:
        verified = reader.verify()
        waiting = recordings.n_tokens(20) - recordings.n_tokens(10)
        assert (verified.commits, verified.tokens) == (2, recordings.n_tokens(10))
        assert verified.uncommitted_tokens == waiting
        assert str(verified) == f"{verified.tokens} tokens in 2 commits are whole, {waiting} more not yet committed"
    StreamStore.open(path, mode="a").close()
    assert_committed(path, 20, n_commits=3)


def test_verify_checks_every_byte(tmp_path, monkeypatch):
    """Over many blocks of data and index, however commits cut them."""
    path = tmp_path / "stream"
    monkeypatch.setattr(commits, "BLOCK", 4096)
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 1 << 14)
    with StreamStore(path, FIELDS) as store:
        for first in range(0, 2_000, 333):
            append_many(store, first, first + 333)
            store.commit()
        n_tokens, n_rows = store.end, store._read().state.rows
        verified = store.verify()
        assert verified.bytes_checked == n_tokens * 8 + n_rows * 24
        assert (verified.tokens, verified.healed) == (n_tokens, 0)
    whole = (path / "data").read_bytes()
    for place in range(0, n_tokens * 8, 3_001):
        with open(path / "data", "r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 1]))
        with (
            StreamStore.open(path) as reader,
            pytest.raises(CorruptDataError, match=r"data: bytes .* commit \d+ wrote"),
        ):
            reader.verify()
        with open(path / "data", "r+b") as file:
            file.write(whole)


# The log ----------------------------------------------------------------------------------------------------------


PARTS = {"first": 0, "rows": 0, "tokens": 0, "kinds": "12", "data": [], "index": []}


def record(before: Commit | None = None, uuid: UUID = UUID_A, rows: int = 0) -> Commit:
    return chained(Commit, before, str(uuid), **{**PARTS, "rows": rows, "tokens": rows})


def row_of(n: int, uuid: UUID = UUID_A) -> list[Commit]:
    records: list[Commit] = []
    for i in range(n):
        records.append(record(records[-1] if records else None, uuid, rows=i))
    return records


@pytest.fixture
def log(tmp_path):
    (tmp_path / "commits").touch()
    log = CommitLog(tmp_path / "commits", UUID_A, mode="a")
    yield log
    log.close()


def test_the_log_gives_back_what_was_appended(log):
    """All of it in order, and the newest without reading the rest."""
    records = row_of(5)
    for each in records:
        log.append(each)

    assert log.records() == records
    assert log.last() == records[-1]
    assert log.n_damaged() == 0


def test_a_line_of_the_log_is_pinned(log):
    """The format of version 1: a checksum, a space, JSON, twice."""
    log.append(record())

    told = (
        b'{"seq":0,"uuid":"00000000-0000-0000-0000-000000000001","first":0,"rows":0,"tokens":0,'
        b'"kinds":"12","data":[],"index":[],"chain":"%s"}' % record().chain.encode()
    )
    assert record().chain == "1f8a71fb0580a3e3"
    assert log.path.read_bytes().split() == 2 * [checksum_hex(told).encode(), told]


def test_records_of_0_1_0_do_not_say_how_many_branches_there_were(log):
    """They are read as they are; those that follow say it."""
    old = record()
    new = chained(Commit, old, str(UUID_A), **{**PARTS, "rows": 1}, branches=2)
    log.append(old)
    log.append(new)

    assert [found.branches for found in log.records()] == [None, 2]
    assert log.last() == new


def test_the_chain_tells_records_of_other_histories_apart():
    """Every part of a record and everything before it is under the chain."""
    first = record()
    second = record(first, rows=1)

    assert follows(None, first)
    assert follows(first, second)
    assert not follows(None, second)
    assert not follows(second, second)
    assert not follows(record(uuid=UUID_B), second)
    for name, value in {"rows": 2, "first": 1, "tokens": 7, "kinds": "11", "data": ["0" * 16], "uuid": "x"}.items():
        assert not follows(first, Commit(**{**vars(second), name: value}))


@pytest.mark.parametrize("missing", range(1, 4))
def test_a_missing_commit_in_the_middle_is_told(log, missing):
    """With what can still be read."""
    for number, each in enumerate(row_of(5)):
        if number != missing:
            log.append(each)

    with pytest.raises(CorruptDataError, match=rf"commit {missing} is damaged or missing .*at={missing - 1}\)"):
        log.records()


def test_two_commits_of_one_number_are_told(log):
    """One of them is of another history; nobody can know which."""
    log.append(record())
    log.append(record(record(), rows=1))
    log.append(record(record(), rows=2))

    with pytest.raises(CorruptDataError, match="two commits 1 that differ"):
        log.records()


def test_a_commit_of_another_history_is_told(log):
    """Of a copy that went its own way: its number fits, and what came before it does not."""
    first = record()
    log.append(first)
    log.append(record(first, rows=1))
    log.append(record(record(first, rows=2), rows=3))

    with pytest.raises(CorruptDataError, match="commit 2 is damaged or missing"):
        log.records()


def test_commits_of_another_stream_are_told(tmp_path, log):
    """A log that was copied here from elsewhere."""
    for each in row_of(3, UUID_B):
        log.append(each)

    with pytest.raises(CorruptDataError, match=str(UUID_B)):
        log.last()


def test_an_empty_log_is_told(log):
    """So is one that has only rubbish."""
    with pytest.raises(CorruptDataError, match="not one whole commit"):
        log.last()
    log.path.write_bytes(b"rubbish\n" * 30_000)
    with pytest.raises(CorruptDataError, match="not one whole commit"):
        log.last()


def test_the_newest_commit_is_found_behind_any_amount_of_rubbish(log):
    """It is looked for from the end, and further in front until there is one."""
    records = row_of(3)
    for each in records:
        log.append(each)
    with open(log.path, "ab") as file:
        file.write(b"\n" + b"x" * 300_000)

    assert log.last() == records[-1]
    assert log.records() == records
    log.append(record(records[-1], rows=3))
    assert log.last().seq == 3


def line_of(told: object) -> bytes:
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return checksum_hex(text).encode() + b" " + text + b"\n"


@pytest.mark.parametrize(
    "told",
    [
        [],
        3,
        None,
        "text",
        {},
        {"seq": 1},
        {**vars(record()), "more": 1},
        {**vars(record()), "seq": -1},
        {**vars(record()), "seq": "1"},
        {**vars(record()), "seq": True, "rows": 2.5},
        {**vars(record()), "rows": 2**48},
        {**vars(record()), "first": 5},
        {**vars(record()), "data": "0" * 16},
        {**vars(record()), "data": ["short"]},
        {**vars(record()), "index": [1]},
        {**vars(record()), "kinds": "13"},
        {**vars(record()), "kinds": None},
        {**vars(record()), "chain": ""},
        {**vars(record()), "branches": "1"},
        {**vars(record()), "branches": -1},
        {**vars(record()), "uuid": 7},
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"seq": NaN}',
        b"",
    ],
    ids=lambda told: repr(told)[:40],
)
def test_a_line_that_proves_itself_and_says_nonsense_is_no_commit(log, told):
    """Somebody who can compute a checksum gets no further than that."""
    records = row_of(2)
    log.append(records[0])
    with open(log.path, "ab") as file:
        file.write(line_of(told))
    log.append(records[1])

    assert log.records() == records
    assert log.last() == records[1]


def test_blocks_are_cut_at_whole_mebibytes():
    """Whatever was committed when, so that a block that was given back is one that nobody checks."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        edges = np.unique(rng.integers(0, 5 << 20, 4)).tolist()
        parts = [part for start, end in pairwise(edges) for part in blocks(start, end)]
        assert [start for start, _ in parts[1:]] == [end for _, end in parts[:-1]]
        assert all(end - start <= 1 << 20 and start >> 20 == end - 1 >> 20 for start, end in parts)
    assert list(blocks(5, 5)) == []


def test_an_older_directory_with_a_newer_log_is_told(tmp_path):
    """Files of two moments are no stream: the log says more than there is."""
    path = tmp_path / "stream"
    with StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
    shutil.copytree(path, tmp_path / "old")
    with StreamStore.open(path, mode="a") as store:
        append(store, 10, 20)
    shutil.copyfile(path / "commits", tmp_path / "old" / "commits")

    for mode in "ra":
        with pytest.raises(CorruptDataError), StreamStore.open(tmp_path / "old", mode=mode) as store:
            store.verify()


def test_an_older_log_with_a_newer_directory_is_told(tmp_path):
    """The head page remembers that there was a later commit."""
    path = tmp_path / "stream"
    with StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
        store.commit()
        old = (path / "commits").read_bytes()
        append(store, 10, 20)
    (path / "commits").write_bytes(old)

    for mode in "ra":
        with pytest.raises(CorruptDataError, match="commit 2 was made and the log ends with 1"):
            StreamStore.open(path, mode=mode)
