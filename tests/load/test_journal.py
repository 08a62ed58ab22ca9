"""The journal: what was decided survives the process, a torn line is none, a damaged or foreign one is told."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from itertools import islice

import pytest

from poolish import DatasetBuffer, StreamStore
from poolish.errors import ConfigError, CorruptDataError, ResumeError, StoreFull
from poolish.load import order, planner
from tests.effort import IS_SOAK
from tests.faults import some_kill_points
from tests.load.loaders import buffer, extend, ids, load, plain, ranks, rows, saved, step, stream, walked, whole


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 4)


@pytest.fixture
def store(tmp_path):
    return stream(11, tmp_path / "stream")


def test_ranks_agree_through_a_journal(store, tmp_path):
    """Each looks at another moment; together they see each row once, in the order of one."""
    loaders = ranks(3, store, 1, shuffle=True, follow=True, journal=tmp_path / "journal")
    seen: list[int] = []
    for _ in range(100):
        got = []
        for loader in loaders:
            if store.n_steps < 40:
                extend(store, 1)
            got.append(next(iter(loader), None))
        assert len({batch is None for batch in got}) == 1
        if got[0] is None:
            break
        seen += ids(got)

    assert sorted(seen) == list(range(store.n_steps))


def test_a_run_that_goes_on_from_an_older_state_sees_the_same_order(store, tmp_path):
    """What was decided after the state was taken stays decided: the same batches come again."""
    loader = load(store, 2, shuffle=True, follow=True, journal=tmp_path / "journal")
    states, batches = [saved(loader)], []
    for batch in loader:
        batches.append(plain(batch))
        states.append(saved(loader))
        if store.n_steps < 30:
            extend(store, 3)

    for n_done, state in enumerate(states):
        resumed = load(store, 2, shuffle=True, follow=True, journal=tmp_path / "journal")
        resumed.load_state_dict(state)
        assert [plain(batch) for batch in resumed] == batches[n_done:]


def test_another_world_size_goes_on_in_the_same_order(store, tmp_path):
    """From a state in the middle, and also where the first run had come to the end."""
    loaders = ranks(2, store, 2, shuffle=True, follow=True, journal=tmp_path / "journal")
    seen = [id_ for step_ids in islice(walked(loaders), 1) for id_ in step_ids]
    state = saved(loaders[1])
    expected = whole(loaders)

    for world_size, batch_size in ((1, 1), (1, 3), (3, 1), (3, 4), (5, 2)):
        resumed = ranks(
            world_size, store, batch_size, shuffle=True, follow=True, journal=tmp_path / "journal", state=state
        )
        assert whole(resumed) == expected
    assert sorted(seen + expected) == list(range(11))


def test_a_journal_of_another_order_is_refused(store, tmp_path):
    """Another seed, another source, shuffled or not, following or not: the message says what it is about."""
    load(store, 2, shuffle=True, follow=True, journal=tmp_path / "journal")
    right = {"shuffle": True, "follow": True}

    for name, wrong in {"seed": {**right, "seed": 5}, "shuffle": {"follow": True}, "follow": {"shuffle": True}}.items():
        with pytest.raises(ConfigError, match=rf"about {name}"):
            load(store, 2, journal=tmp_path / "journal", **wrong)
    with pytest.raises(ConfigError, match="about source"):
        load(stream(11, tmp_path / "other"), 2, journal=tmp_path / "journal", **right)


def test_a_state_of_another_history_is_refused(store, tmp_path):
    """A journal that has decided the blocks behind the state in another way."""
    options = {"shuffle": True, "follow": True}
    one = load(store, 4, journal=tmp_path / "one", **options)
    list(islice(one, 1))
    extend(store, 5)
    other = load(store, 4, journal=tmp_path / "other", **options)
    list(other)
    resumed = load(store, 4, journal=tmp_path / "other", **options)
    resumed.load_state_dict(saved(one))

    with pytest.raises(ResumeError, match="another history"):
        list(resumed)


def journalled(store, tmp_path):
    """A finished epoch, its journal's file, and a loader that reads it again."""
    options = {"shuffle": True, "follow": True, "journal": tmp_path / "journal"}
    expected = [plain(batch) for batch in load(store, 2, **options)]
    return expected, tmp_path / "journal" / "epoch-0.jsonl", lambda: load(store, 2, **options)


def test_a_torn_tail_is_none(store, tmp_path):
    """A writer that was killed in mid-line: cut anywhere, the whole lines count and the rest is decided anew."""
    expected, file, again = journalled(store, tmp_path)
    whole_file = file.read_bytes()
    lengths = range(len(whole_file)) if IS_SOAK else random.sample(range(len(whole_file)), 30)
    for length in (*lengths, len(whole_file) - 1):
        file.write_bytes(whole_file[:length])
        batches = list(again())
        assert sorted(ids(batches)) == list(range(11))
        assert [plain(batch) for batch in batches] == expected
        assert all(line.endswith(b"\n") for line in file.read_bytes().splitlines(keepends=True))


def test_what_a_killed_writer_left_is_cut_off_however_long_it_is(store, tmp_path):
    """Also where the line that comes next is shorter."""
    expected, file, again = journalled(store, tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2]) + b'{"block":7,"dead":"' + b"A" * 3000)

    assert [plain(batch) for batch in again()] == expected
    assert [plain(batch) for batch in again()] == expected
    assert b"AAA" not in file.read_bytes()


def test_a_rank_that_is_behind_waits_for_what_the_others_have_seen(tmp_path):
    """Its view of the dataset comes later than the decision: it looks until the rows are there."""

    class Behind(list):
        asked = 0

        def __len__(self):
            self.asked += 1
            return 4 if self.asked < 8 else 8

    options = {"follow": True, "journal": tmp_path / "journal", "world_size": 2}
    ahead, behind = load(rows(8), 2, rank=0, **options), load(Behind(rows(8)), 2, rank=1, **options)

    assert [batch.ids.tolist() for batch in ahead] == [[0, 2], [4, 6]]
    assert [batch["n"].tolist() for batch in behind] == [[1, 3], [5, 7]]
    assert behind.n_skipped == 0


def test_an_older_copy_of_the_dataset_is_told_with_the_journal(tmp_path, monkeypatch):
    """Its rows end before those that the journal knows: whoever reads it learns which journal, and what to do."""
    monkeypatch.setattr(planner, "_CATCH_UP_S", 0.0)
    source, options = buffer(6), {"follow": True, "journal": tmp_path / "journal"}
    source.save(tmp_path / "older")
    extend(source, 6)
    ids(load(source, 2, **options))

    with pytest.raises(ResumeError, match=r"journal .*journal: block .*here they reach 6; .*as it was, or later"):
        ids(load(DatasetBuffer.load(tmp_path / "older"), 2, **options))


def test_a_damaged_line_is_told(store, tmp_path):
    """Any byte of any line that is not the last: CorruptDataError names the file and where, and nothing is guessed."""
    _, file, again = journalled(store, tmp_path)
    good = file.read_bytes()
    last = good.rstrip(b"\n").rfind(b"\n") + 1
    chance = random.Random(1)
    places = range(last) if IS_SOAK else chance.sample(range(last), 40)
    for place in places:
        for value in {good[place] ^ (1 << chance.randrange(8)), *b"\r\n ", 0} - {good[place]}:
            file.write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
            with pytest.raises(CorruptDataError, match=r"epoch-0\.jsonl"):
                list(again())


def test_a_damaged_last_line_is_told_or_none(store, tmp_path):
    """Where its end is gone it is a torn one; else it is told."""
    expected, file, again = journalled(store, tmp_path)
    good = file.read_bytes()
    last = good.rstrip(b"\n").rfind(b"\n") + 1
    for place in range(last, len(good) - 1):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CorruptDataError):
            list(again())
    file.write_bytes(good[:-1] + b"x")
    assert [plain(batch) for batch in again()] == expected


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "poolish journal"}', '{"format": "other"}'])
def test_a_directory_that_is_no_journal_is_refused(store, tmp_path, text):
    """Whatever its order.json is."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "order.json").write_text(text)

    with pytest.raises((ConfigError, CorruptDataError)):
        load(store, 2, follow=True, journal=tmp_path / "journal")


def test_killed_at_every_system_call_a_run_goes_on(tmp_path):
    """Between any two changes of files: whoever goes on from the beginning or from a state sees each row once."""
    path = tmp_path / "stream"
    stream(3, path).close()
    journal = tmp_path / "journal"

    def scenario():
        list(load(StreamStore.open(path), 4, shuffle=True, follow=True, journal=journal))

    def check():
        loader = load(StreamStore.open(path), 2, shuffle=True, follow=True, journal=journal)
        assert sorted(ids(loader)) == list(range(3))
        shutil.rmtree(journal)

    assert some_kill_points(scenario, check) > 10


def test_rows_that_are_gone_are_noted_by_every_rank(tmp_path):
    """Also by one that resumes in mid-block, and so has not asked the journal for anything yet."""
    source = buffer(20)
    first = ranks(2, source, 1, journal=tmp_path / "journal")
    step(first)
    state = saved(first[0])
    source.retain(0.9)  # 0 and 1 are gone; 2 and 3 are in the block that is open
    source.retain(16 / 18)
    resumed = ranks(2, source, 1, journal=tmp_path / "journal", state=state)
    whole(resumed)

    assert [loader.n_skipped for loader in resumed] == [1, 1]
    told = resumed[0].audit(0, 20).skipped
    assert sorted(id_ for ids_ in told.values() for id_ in ids_) == [2, 3]


def test_a_journal_stays_small(store, tmp_path):
    """A line for each block, of about a hundred bytes."""
    expected, file, _ = journalled(store, tmp_path)
    lines = file.read_bytes().splitlines()

    assert len(lines) <= len(expected) + 4
    assert max(map(len, lines)) < 400
    json.loads(lines[0].rpartition(b" ")[0])


@pytest.mark.parametrize("fault", ["short", "full", "half and full"])
def test_a_write_that_fails_leaves_a_journal_that_goes_on(tmp_path, monkeypatch, fault):
    """Whichever write it is: the error says why, and asking again, here or after a restart, gives each row once."""
    real, writes = os.pwrite, {"left": 0, "is_full": False}

    def failing(fd, data, start):
        if bytes(data[:1]) != b"{" and not writes["is_full"]:  # the note in the lock, or the rest of a line
            return real(fd, data, start)
        writes["left"] -= 1
        if writes["is_full"] or (writes["left"] == 0 and fault == "full"):
            writes["is_full"] = False
            raise OSError(errno.ENOSPC, "no space left on device")
        if writes["left"] == 0:
            writes["is_full"] = fault == "half and full"
            data = bytes(data)[: len(data) // 2]
        return real(fd, data, start)

    monkeypatch.setattr(os, "pwrite", failing)
    source, n_writes = buffer(11), 0
    while True:
        n_writes += 1
        options = {"shuffle": True, "follow": True, "journal": tmp_path / f"journal-{n_writes}"}
        loader, seen, n_failed = load(source, 2, **options), [], 0
        writes["left"] = n_writes
        while True:
            try:
                batch = next(iter(loader), None)
            except StoreFull:
                n_failed += 1
                if n_writes % 2:  # a restart, from the state before the batch
                    state, loader = saved(loader), load(source, 2, **options)
                    loader.load_state_dict(state)
                continue
            if batch is None:
                break
            seen += ids([batch])
        is_reached = writes["left"] <= 0
        writes["left"] = 0
        assert sorted(seen) == list(range(11))
        assert n_failed == (is_reached and fault != "short")
        assert [id_ for batch in load(source, 2, **options) for id_ in batch.ids.tolist()] == seen
        assert not load(source, 2, **options).audit(0, 5).duplicates
        if not is_reached:
            break
    assert n_writes > 4
