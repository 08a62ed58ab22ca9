"""Shards: every row on one rank, whatever the numbers; what is repeated or left out is said."""

from __future__ import annotations

import json
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.errors import ConfigError, PoolishError, SchemaError, UnknownColumn
from poolish.load import CompositeDataset, FilteredDataset, Loader, RandomBatches, ShuffledDataset
from poolish.load.dataset import Dataset
from poolish.load.frozen import snapshot_rows
from poolish.load.shards import HorizontalShard, HybridShard, VerticalShard, n_steps
from poolish.load.views.joined import joined
from poolish.testing import DatasetBehaviour, same
from tests.effort import times
from tests.load.sources import Rows, buffer

counts = st.integers(0, 60)
worlds = st.integers(1, 12)


def shards(n: int, world_size: int, uneven: str = "short") -> list[list[int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [list(HorizontalShard(rank, world_size, uneven)(range(n))) for rank in range(world_size)]


# Rows -----------------------------------------------------------------------------------------------------------


@given(counts, worlds)
def test_every_row_is_in_one_shard(n, world_size):
    """Nothing repeated, nothing left out, and lengths differ by one at most."""
    parts = shards(n, world_size)

    assert sorted(row for part in parts for row in part) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(counts, worlds)
def test_padded_shards_have_every_row_and_the_same_length(n, world_size):
    """What is repeated are rows from the start, no more than needed."""
    parts = shards(n, world_size, "pad")
    n_each = -(-n // world_size)

    assert {len(part) for part in parts} == {n_each}
    dealt = [parts[i % world_size][i // world_size] for i in range(n_each * world_size)]
    assert dealt == [i % n for i in range(n_each * world_size)]


@given(counts, worlds)
def test_dropped_shards_repeat_nothing_and_have_the_same_length(n, world_size):
    """What is left out are the last rows, fewer than ranks."""
    parts = shards(n, world_size, "drop")

    assert {len(part) for part in parts} == {n // world_size}
    assert sorted(row for part in parts for row in part) == list(range(n - n % world_size))


@pytest.mark.parametrize(
    ("n", "world_size", "uneven", "said"),
    [
        (10, 4, "pad", "10 rows on 4 ranks, uneven='pad': rows 0 to 1 are repeated, 2 in all (shard of rank 0)"),
        (11, 4, "pad", "11 rows on 4 ranks, uneven='pad': row 0 is repeated, 1 in all (shard of rank 0)"),
        (
            2,
            5,
            "pad",
            "2 rows on 5 ranks, uneven='pad': rows 0 to 1 are repeated, the first ones more than once, "
            "3 in all (shard of rank 0)",
        ),
        (10, 4, "drop", "10 rows on 4 ranks, uneven='drop': rows 8 to 9 are left out (shard of rank 0)"),
        (2_001, 4, "drop", "2,001 rows on 4 ranks, uneven='drop': row 2000 is left out (shard of rank 0)"),
    ],
)
def test_repeating_and_leaving_out_is_said_with_the_numbers(n, world_size, uneven, said):
    """Once for each shard, where the shard is made."""
    with pytest.warns(UserWarning, match=uneven) as warned:
        HorizontalShard(0, world_size, uneven)(range(n))

    assert [str(warning.message) for warning in warned] == [said]
    assert warned[0].filename == __file__


def test_even_shards_are_silent():
    """Warnings are errors here: none comes."""
    for uneven in ("short", "pad", "drop"):
        assert list(HorizontalShard(1, 4, uneven)(range(8))) == [1, 5]
    assert list(HorizontalShard(1, 4)(range(7))) == [1, 5]


def test_shards_are_datasets():
    """They count from the end, refuse what is outside, read many at once, and can be cut again."""
    shard = HorizontalShard(1, 3)(list("abcdefgh"))

    assert isinstance(shard, Dataset)
    assert (shard[-1], shard.__getitems__([2, 0]), list(HorizontalShard(1, 2)(shard))) == ("h", ["h", "b"], ["e"])
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of 3"):
            shard[index]


def test_an_empty_shard_is_a_shard():
    """Fewer rows than ranks, or none at all."""
    assert list(HorizontalShard(2, 3)(range(2))) == []
    assert list(HorizontalShard(2, 3, "pad")(range(0))) == []


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"rank": 4, "world_size": 4}, "rank=4 of world_size=4: ranks count from 0"),
        ({"rank": -1, "world_size": 4}, "rank=-1: give a whole number, 0 or more"),
        ({"rank": 0, "world_size": 0}, "world_size=0: give a whole number, 1 or more"),
        ({"rank": 0.0, "world_size": 4}, "rank=0.0: give a whole number"),
        ({"rank": True, "world_size": 4}, "rank=True: give a whole number"),
        ({"rank": 0, "world_size": 4, "uneven": "shrt"}, "'short', 'pad' or 'drop', got 'shrt'"),
    ],
)
def test_bad_ranks_are_refused(settings, match):
    """Before anything is read, on both kinds."""
    with pytest.raises(ConfigError, match=match):
        HorizontalShard(**settings)
    with pytest.raises(ConfigError, match=match):
        HybridShard(**settings, columns=["x"])


def test_a_shard_without_a_rank_is_that_of_the_process(monkeypatch):
    """RANK and WORLD_SIZE are looked up when a row or the length is asked for, not when the shard is made."""
    horizontal, hybrid = HorizontalShard(), HybridShard(columns=["x"])
    early, rows = horizontal(range(7)), [{"x": i, "y": -i} for i in range(7)]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")

    assert list(early) == list(horizontal(range(7))) == [1, 4]
    assert list(hybrid(rows)) == [{"x": 1}, {"x": 4}]
    assert early.version == HorizontalShard(1, 3)(range(7)).version


def test_a_shard_is_not_dealt_out_again(monkeypatch):
    """A loader that finds its own rank would read a third of a third; what the arguments say counts."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    shard = HorizontalShard()(list(range(9)))

    with pytest.raises(ConfigError, match=r"RowShard is the share of rank 1 of 3.*deals rows to 3 ranks again"):
        iter(Loader(shard, 2))
    assert [batch.tolist() for batch in Loader(shard, 3, rank=0, world_size=1, output="numpy")] == [[1, 4, 7]]


@given(counts, worlds, st.integers(1, 9))
def test_all_ranks_have_the_same_number_of_steps(n, world_size, batch_size):
    """As many as the longest shard needs."""
    longest = max(len(part) for part in shards(n, world_size))

    assert n_steps(n, world_size, batch_size) == -(-longest // batch_size)


# Columns --------------------------------------------------------------------------------------------------------

ROWS = [{"x": i, "y": -i, "name": str(i)} for i in range(5)]


def test_columns_come_in_the_order_asked_for():
    """And no others."""
    shard = VerticalShard(["name", "x"])(ROWS)

    assert [list(row.items()) for row in shard.__getitems__([3, -1])] == [
        [("name", "3"), ("x", 3)],
        [("name", "4"), ("x", 4)],
    ]
    assert shard[1] == {"name": "1", "x": 1}
    assert len(shard) == 5


def test_a_hybrid_shard_is_both():
    """Columns of every other row."""
    shard = HybridShard(1, 2, columns=["y"], uneven="short")(ROWS)

    assert list(shard) == [{"y": -1}, {"y": -3}]
    with pytest.warns(UserWarning, match="row 4 is left out"):
        assert len(HybridShard(1, 2, columns=["y"], uneven="drop")(ROWS)) == 2


def test_unknown_columns_are_named_with_the_nearest():
    """The error is a KeyError too, and lists what there is."""
    with pytest.raises(UnknownColumn, match=r"no column 'nam'; did you mean 'name'\? there are \['x', 'y', 'name'\]"):
        VerticalShard(["x", "nam"])(ROWS)[0]
    with pytest.raises(KeyError, match="no column 'q'; there are"):
        VerticalShard(["q"])(ROWS).__getitems__([0])


def test_samples_without_names_are_refused():
    """With what to do."""
    with pytest.raises(TypeError, match="dicts, got tuple; name their parts"):
        VerticalShard(["x"])([(1, 2)])[0]


@pytest.mark.parametrize("columns", ["x", [], ["x", "x"], [1], ["x", None]])
def test_bad_columns_are_refused(columns):
    """One name without its list is a mistake, not its letters."""
    with pytest.raises(PoolishError, match="columns must be a list of different names"):
        VerticalShard(columns)
    with pytest.raises(PoolishError, match="columns must be a list of different names"):
        HybridShard(0, 1, columns)


# Frozen for a loader --------------------------------------------------------------------------------------------


def test_a_loader_reads_the_same_rows():
    """Frozen, by id, as samples or as a table, also where the buffer has lost rows."""
    buffer = DatasetBuffer()
    for row in ROWS * 4:
        buffer.append(row)
    buffer.retain(0.8)
    rows = buffer.snapshot()
    shard = HybridShard(1, 3, columns=["name", "x"])(rows)

    frozen = snapshot_rows(shard)
    ids = np.array([4, 0, 2])

    assert frozen.spans() == [(0, len(shard))]
    assert frozen.fetch(ids) == [shard[int(i)] for i in ids]
    assert frozen.table(ids).to_pylist() == frozen.fetch(ids)
    with pytest.raises(UnknownColumn, match="no column 'nme'; did you mean 'name'"):
        snapshot_rows(VerticalShard(["nme"])(rows)).table(ids)


def test_versions_tell_shards_apart():
    """A cache never gives the rows of one shard for those of another."""
    made = [HorizontalShard(0, 2), HorizontalShard(1, 2), HorizontalShard(0, 3), VerticalShard(["x"])]

    assert len({shard(ROWS).version for shard in made}) == 4


def test_the_epoch_is_passed_on():
    """What is below may depend on it."""
    epochs = []

    class Below(list):
        def set_epoch(self, epoch):
            epochs.append(epoch)

    HybridShard(0, 2, columns=["x"])(Below(ROWS)).set_epoch(3)

    assert epochs == [3]


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int8", "uint64", "bool_"])
def test_shards_made_of_numpy_numbers_are_the_same_shards(dtype):
    """Their states, versions and texts are those of plain numbers, and each resumes the other's."""
    kind = getattr(np, dtype)
    if dtype == "bool_":
        for shard in (HorizontalShard, HybridShard):
            with pytest.raises(ConfigError, match="whole number"):
                shard(*[kind(True), 2, ["x"]][: 3 if shard is HybridShard else 2])
        return
    rows = [{"x": i} for i in range(300)]
    pairs = [
        (HorizontalShard(1, 2), HorizontalShard(kind(1), kind(2), np.str_("short"))),
        (HybridShard(1, 2, ["x"]), HybridShard(kind(1), kind(2), [np.str_("x")], np.str_("short"))),
    ]
    for plain, typed in pairs:
        assert repr(plain) == repr(typed)
        first, second = (Loader(shard(rows), 2, output="numpy") for shard in (plain, typed))
        running = iter(second)
        next(running)
        state = json.loads(json.dumps(second.state_dict()))
        first.load_state_dict(state)
        assert [batch.ids.tolist() for batch in first] == [batch.ids.tolist() for batch in running]
        assert plain(rows).version == typed(rows).version


def test_a_state_is_exactly_json_whatever_the_arguments_are_made_of():
    """Sizes, seeds, epochs, flags, weights and names as NumPy's: the state is that of plain values."""
    rows = [{"x": i} for i in range(12)]

    def states(whole, flag, text, fraction):
        mixed = CompositeDataset([rows, rows], weights=[fraction(2), fraction(1)], seed=whole(3), stop=text("first"))
        loaders = [
            Loader(ShuffledDataset(mixed, seed=whole(4)), whole(2), flag(True), seed=whole(5), drop_last=flag(True)),
            Loader(rows, batches=RandomBatches(whole(12), whole(3), seed=whole(2)), rank=whole(0), world_size=whole(2)),
            Loader(rows, whole(2), num_workers=whole(0), prefetch_factor=whole(2), run=text("ppo")),
        ]
        for loader in loaders:
            loader.set_epoch(whole(2))
            next(iter(loader))
        return [loader.state_dict() for loader in loaders]

    plain = states(int, bool, str, float)
    typed = states(np.int64, np.bool_, np.str_, np.float64)

    assert typed == plain == json.loads(json.dumps(plain))
    assert states(np.uint8, np.bool_, np.str_, np.float32) == plain
    assert json.dumps(typed) == json.dumps(plain)


# Complete samples -----------------------------------------------------------------------------------------------


def column_shards(dataset, *columns: str):
    return [VerticalShard(names.split())(dataset) for names in columns]


def test_joined_shards_are_the_rows_again():
    """All columns of each row, by number, in batches, as a table and through a loader."""
    source = buffer(20)
    whole = joined(column_shards(source, "x n", "text"))

    rows = source.__getitems__(range(20))
    assert len(whole) == 20
    assert same(list(whole), [{name: sample[name] for name in ("x", "n", "text")} for sample in rows])
    assert same(whole.__getitems__([3, -1]), [whole[3], whole[19]])
    table = snapshot_rows(whole).table(source.ids[:4])
    assert table.column_names == ["x", "n", "text"]
    assert table["n"].to_pylist() == [sample["n"] for sample in source.__getitems__(range(4))]
    batches = [[batch["n"].tolist() for batch in Loader(each, 6, shuffle=True)] for each in (whole, source)]
    assert batches[0] == batches[1]


def test_joined_shards_follow_a_buffer():
    """Rows that come and go are seen in all shards at once, under their ids."""
    source = DatasetBuffer(max_size=5)
    source.append([{"x": n, "y": -n} for n in range(5)])
    whole = joined(column_shards(source, "x", "y"))

    source.append([{"x": n, "y": -n} for n in range(5, 8)])

    assert [(sample["x"], sample["y"]) for sample in whole] == [(n, -n) for n in range(3, 8)]
    assert snapshot_rows(whole).spans() == snapshot_rows(source).spans()


def test_joined_rows_are_of_one_moment():
    """While another thread appends and updates, no row has columns of two states of the buffer."""
    source = DatasetBuffer(max_size=50)
    source.append([{"x": n, "y": n} for n in range(50)])
    whole = joined(column_shards(source, "x", "y"))
    is_over = threading.Event()

    def change():
        for n in range(50, 50 + times(20)):
            source.append({"x": n, "y": n})
            source.update(source.ids[:1], {"x": [-n], "y": [-n]})
        is_over.set()

    thread = threading.Thread(target=change)
    thread.start()
    n_read = 0
    while not is_over.is_set() or not n_read:
        assert all(sample["x"] == sample["y"] for sample in whole.__getitems__([0, 1, 49]))
        n_read += 1
    thread.join()


def test_shards_of_other_rows_are_not_joined():
    """Other lengths, other ids, rows missing elsewhere, another value of the column that identifies the row."""
    with pytest.raises(ConfigError, match=r"shards have \[2, 1\] rows"):
        joined([[{"x": 1}, {"x": 2}], [{"y": 1}]])
    bounded = DatasetBuffer(max_size=2)
    bounded.append([{"y": n} for n in range(5)])
    with pytest.raises(ConfigError, match=r"shard 1 has 2 rows with ids \[\(3, 5\)\]"):
        joined([[{"x": 1}, {"x": 2}], bounded])
    numbers = DatasetBuffer()
    numbers.append([{"x": n, "y": n} for n in range(8)])
    ends = (0, 7)
    some = [FilteredDataset(numbers, lambda row, k=k: row["x"] in ends or row["x"] % 2 == k) for k in range(2)]
    with pytest.raises(ConfigError, match="only shards of the same rows"):
        joined([VerticalShard([name])(each) for name, each in zip("xy", some, strict=True)])
    with pytest.raises(SchemaError, match=r"'id' is 1 in shard 0 and 2 in shard 1"):
        joined([[{"id": 1, "x": 0}], [{"id": 2, "y": 0}]], on="id")
    with pytest.raises(SchemaError, match="no such column in shard 1"):
        joined([[{"id": 1, "x": 0}], [{"y": 0}]], on="id")


def test_a_column_in_two_shards_is_an_error():
    """Which of them is right cannot be known; said when they are joined."""
    with pytest.raises(SchemaError, match=r"column 'y' is in shard 1 and in one before it.*on='y'"):
        joined([[{"x": 1, "y": 1}], [{"y": 1}]])
    with pytest.raises(SchemaError, match="samples to be joined are dicts, got int"):
        joined([[{"x": 1}], [3]])
    with pytest.raises(ConfigError, match="at least one"):
        joined([])


class TestJoined(DatasetBehaviour):
    """A joined dataset of column shards of a buffer."""

    def make(self, folder):
        return joined(column_shards(buffer(20), "n", "x text"))


class TestJoinedFiles(DatasetBehaviour):
    """A joined dataset of numbered rows, with a column that identifies the row."""

    def make(self, folder):
        return joined(column_shards(Rows(9), "n x", "n text"), on="n")
