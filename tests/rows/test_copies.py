"""Files below loaded buffers, URLs, and the random rows of a snapshot and its copies."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetRecipe, Loader
from poolish.errors import ConfigError, CorruptDataError
from poolish.rows.storage import MAX_BRANCHES
from tests.rows.children import in_child
from tests.rows.facts import facts

SAVED_BY_0_1 = Path(__file__).parent / "saved_version_1.rows"


def filled(n: int = 100, seed: int = 3) -> DatasetBuffer:
    buffer = DatasetBuffer(seed=seed)
    buffer.append([{"x": i, "text": f"row {i}"} for i in range(n)])
    return buffer


def numbers(table) -> list[int]:
    return table["x"].to_pylist()


# Files ----------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[DatasetBuffer], object]] = {
    "snapshot": lambda buffer: buffer.snapshot(),
    "row": lambda buffer: buffer[3],
    "table": lambda buffer: buffer.to_arrow(),
    "batch": lambda buffer: buffer.get_batch([1, 2]),
    "numpy": lambda buffer: buffer.to_numpy(),
    "dict": lambda buffer: buffer.to_pydict(),
    "sample": lambda buffer: buffer.sample(3),
    "weighted sample": lambda buffer: buffer.sample(3, weights="x"),
    "ids": lambda buffer: buffer.by_id([2, 5]),
    "iteration": list,
    "filter": lambda buffer: buffer.filter(lambda row: row["x"] > 2),
    "samples": lambda buffer: Loader(buffer, 10, collate_fn=list).__iter__().__next__(),
    "loader": lambda buffer: list(Loader(buffer, 1_000, output="numpy")),
    "shuffled loader": lambda buffer: list(Loader(buffer, 10, shuffle=True, output="arrow")),
    "bake": lambda buffer: DatasetRecipe("r").add_ingredient("b", buffer).bake(),
    "save": lambda buffer: buffer.save("copy.rows"),
    "pickle": pickle.dumps,
}

CHANGES: dict[str, Callable[[DatasetBuffer], object]] = {
    "append": lambda buffer: buffer.append({"x": 1, "text": "new"}, 0.5),
    "update": lambda buffer: buffer.update([1], {"x": [5]}),
    "retain": lambda buffer: buffer.retain(0.5, by="random"),
}


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def write_over(path: Path) -> None:
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content[:-200])
    os.utime(path, ns=(1, 1))


def refusal(read: Callable[[], object]) -> str:
    """What a CorruptDataError says."""
    with pytest.raises(CorruptDataError) as caught:
        read()
    return str(caught.value)


@pytest.mark.parametrize("damage", [truncate, write_over])
@pytest.mark.parametrize("is_known", [False, True], ids=["unread", "read before"])
@pytest.mark.parametrize("read", [*READS, *CHANGES])
def test_a_file_that_changes_below_a_loaded_buffer_is_an_error(damage, is_known, read, tmp_path, monkeypatch):
    """What looks at the rows next names the file and what to do, instead of showing other rows or dying."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "buffer.rows"
    filled(2_000).save(path)

    def child() -> tuple[str, int]:
        buffer = DatasetBuffer.load(path)
        if is_known:
            READS.get(read, DatasetBuffer.snapshot)(buffer)
        damage(path)
        return refusal(lambda: {**READS, **CHANGES}[read](buffer)), len(buffer)

    told, n_rows = in_child(child)

    assert re.search(r"buffer\.rows: this file was .*mmap=False", told)
    assert n_rows == 2_000


@pytest.mark.parametrize("is_known", [False, True], ids=["unread", "read before"])
def test_a_snapshot_of_a_mapped_file_notices_too(is_known, tmp_path):
    """Also one that was taken before the file changed, a loader in the middle of it, and ``save`` writes no copy."""
    path = tmp_path / "buffer.rows"
    filled(2_000).save(path)
    buffer = DatasetBuffer.load(path)
    snapshot = buffer.snapshot()
    batches = iter(Loader(snapshot, 4, output="numpy"))
    reads = [
        snapshot.to_arrow,
        lambda: snapshot[0],
        lambda: snapshot[-1],
        lambda: snapshot.get_batch([1_900]),
        lambda: snapshot.__getitems__([1_900]),
        lambda: next(batches),
        lambda: buffer.save(tmp_path / "copy.rows"),
    ]
    if is_known:
        for read in reads:
            read()
        (tmp_path / "copy.rows").unlink()

    truncate(path)

    for told in in_child(lambda: [refusal(read) for read in reads]):
        assert re.search(r"resized from .* to 100 bytes", told)
    assert not (tmp_path / "copy.rows").exists()


def test_a_mapped_buffer_keeps_its_ids(tmp_path):
    """Ids are searched and handed out without a look at the file, so they are in memory."""
    path = tmp_path / "buffer.rows"
    filled(2_000).save(path)
    buffer = DatasetBuffer.load(path)
    snapshot, ids = buffer.snapshot(), buffer.ids

    truncate(path)

    def known() -> tuple[int, int, object]:
        return int(ids.sum()), len(snapshot.numbers_of(np.arange(0, 2_000, 2))[0]), snapshot.generations

    assert in_child(known) == (1_999 * 1_000, 1_000, [(0, 2_000)])


def test_a_buffer_that_was_read_into_memory_needs_its_file_no_more(tmp_path):
    """With ``mmap=False`` the file may be truncated, and the bytes that were read are those that were checked."""
    path = tmp_path / "buffer.rows"
    filled().save(path)
    expected = facts(DatasetBuffer.load(path, mmap=False))
    buffer = DatasetBuffer.load(path, mmap=False)

    truncate(path)

    assert facts(buffer) == expected == facts(filled())
    buffer.append({"x": 1, "text": "new"})
    assert len(buffer) == 101
    with pytest.raises(CorruptDataError, match="not a whole saved buffer"):
        DatasetBuffer.load(path, mmap=False)


def test_a_damaged_file_is_refused_without_mmap_as_well(tmp_path):
    """Every byte is checked, however it was read."""
    path = tmp_path / "buffer.rows"
    filled().save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    for is_mapped in (True, False):
        with pytest.raises(CorruptDataError, match="checksum"):
            DatasetBuffer.load(path, mmap=is_mapped)


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_buffer_may_be_saved_to_where_it_was_loaded_from(is_changed, tmp_path):
    """The file is replaced: the loaded buffer and its snapshots keep their rows, and the new file has the new ones."""
    path = tmp_path / "buffer.rows"
    filled().save(path)
    buffer = DatasetBuffer.load(path)
    before = buffer.snapshot()
    if is_changed:
        buffer.append({"x": -1, "text": "new"})

    buffer.save(path)

    assert numbers(before.to_arrow()) == list(range(100))
    assert facts(DatasetBuffer.load(path)) == facts(buffer)
    assert len(buffer.snapshot()) == 100 + is_changed


@pytest.mark.parametrize(
    "url", ["s3://bucket/buffer.rows", "gs://bucket/b", "https://host/b.rows", "file:///tmp/b.rows"]
)
def test_urls_are_refused(url, tmp_path, monkeypatch):
    """They would become a directory called ``s3:``."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"DatasetBuffer\.save path .*must be a local path"):
        filled().save(url)
    with pytest.raises(ConfigError, match=r"DatasetBuffer\.load path .*must be a local path"):
        DatasetBuffer.load(url)

    assert list(tmp_path.iterdir()) == []


# Copies ---------------------------------------------------------------------------------------------------------


def test_a_file_of_0_1_has_one_branch():
    """It opens as before, and the first append begins a branch of its own."""
    buffer = DatasetBuffer.load(SAVED_BY_0_1)
    n, row = buffer.next_id, buffer[0]

    assert buffer.snapshot().lineage == ((buffer.uuid, 0),)
    buffer.append(row)

    assert buffer.snapshot().lineage[0] == (buffer.uuid, 0)
    assert buffer.snapshot().lineage[1][1] == n
    assert buffer.snapshot().branch_of(n) == buffer.uuid != buffer.snapshot().branch_of(n + 1)


def test_only_appends_make_a_branch(tmp_path):
    """Reading, thinning and changing values give out no ids; an append that is refused gives out none either."""
    filled().save(tmp_path / "a.rows")
    buffer = DatasetBuffer.load(tmp_path / "a.rows")
    lineage = buffer.snapshot().lineage

    buffer.retain(0.5, by="random")
    buffer.update(buffer.ids[:3], {"text": ["a", "b", "c"]})
    buffer.append([])
    with pytest.raises(ValueError, match="column 'x'"):
        buffer.append([{"x": "?", "text": "y"}])
    assert buffer.snapshot().lineage == lineage

    buffer.append({"x": 1, "text": "y"})
    buffer.append({"x": 2, "text": "y"})
    assert len(buffer.snapshot().lineage) == len(lineage) + 1


def test_a_lineage_is_bounded():
    """However often a buffer is copied and appended to, its footer stays small; the newest branches are known."""
    buffer = DatasetBuffer(max_size=1)
    for i in range(MAX_BRANCHES + 20):
        buffer.append({"x": i})
        buffer = pickle.loads(pickle.dumps(buffer))

    assert len(buffer.snapshot().lineage) == MAX_BRANCHES + 1


# Random rows ----------------------------------------------------------------------------------------------------


def test_a_snapshot_draws_anew_each_time():
    """Two calls give other rows, and the same seed gives the same calls again."""
    drawn = []
    for _ in range(2):
        snapshot = filled().snapshot()
        drawn.append([numbers(snapshot.sample(5)) for _ in range(4)])

    assert len({tuple(rows) for rows in drawn[0]}) == 4
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != numbers(filled(seed=4).snapshot().sample(5))


def test_a_new_snapshot_goes_on_drawing():
    """Sampling through ``buffer.snapshot()`` each step, as through the buffer itself, never begins again."""
    buffer, twin = filled(), filled()

    drawn = [numbers(buffer.snapshot().sample(5)) for _ in range(4)]

    assert drawn == [numbers(twin.sample(5)) for _ in range(4)]
    assert len({tuple(rows) for rows in drawn}) == 4


def test_a_generator_that_is_passed_decides():
    """With ``rng`` the same rows come whatever was drawn before."""
    snapshot = filled().snapshot()
    snapshot.sample(3)

    first, second = (numbers(snapshot.sample(5, rng=np.random.default_rng(1))) for _ in range(2))

    assert first == second


def test_pickled_copies_draw_rows_of_their_own():
    """Every copy, as each spawned worker gets one, has its own random numbers, and they follow from the seed."""
    drawn = []
    for _ in range(2):
        snapshot = filled().snapshot()
        copies = [pickle.loads(pickle.dumps(snapshot)) for _ in range(3)]
        drawn.append([tuple(numbers(each.sample(5))) for each in (snapshot, *copies)])

    assert len(set(drawn[0])) == 4
    assert drawn[0] == drawn[1]


def test_a_forked_child_appends_on_a_branch_of_its_own():
    """Parent and child give out the same ids for other rows; branch and version tell them apart."""
    buffer = DatasetBuffer()
    buffer.append([{"n": 0}, {"n": 1}])
    before = buffer.snapshot().branch_of(2)

    def child() -> None:
        buffer.append({"n": 100})
        mine = buffer.snapshot()
        assert mine.branch_of(2) == before
        assert mine.branch_of(3) != before
        assert mine.version == mine.branch_of(3)

    in_child(child)  # raises what the child raised
    buffer.append({"n": 200})
    assert buffer.snapshot().branch_of(3) == before
