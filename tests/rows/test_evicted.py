"""How rows leave: driven out by value, deleted by id, sampled often enough; and what is known about it afterwards."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, Loader
from poolish.errors import ConfigError, CorruptDataError
from poolish.rows import retention, storage
from tests.effort import times

pytestmark = pytest.mark.kernels


def filled(n_rows, **options):
    buffer = DatasetBuffer(**options)
    buffer.append([{"n": i} for i in range(n_rows)])
    return buffer


def ns(buffer):
    return buffer.to_pydict()["n"]


# The lowest values ----------------------------------------------------------------------------------------------

SCORES = {
    "int64": st.sampled_from([0, 1, 2, -1, 2**63 - 1, -(2**63), 2**53 + 1, 2**53]),
    "uint64": st.sampled_from([0, 1, 2**64 - 1, 2**63]),
    "float64": st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), float("-inf"), 5e-324]),
    "float32": st.sampled_from([0.0, -0.0, 1.0, 0.5, -2.0]),
    "int8": st.integers(-3, 3),
}
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("append"), st.lists(st.integers(0, 7), max_size=5))] * 2,
        *[st.tuples(st.just("singly"), st.lists(st.integers(0, 7), min_size=1, max_size=5))] * 2,
        st.tuples(st.just("update"), st.integers(0, 999)),
        st.tuples(st.just("delete"), st.integers(0, 999)),
        st.tuples(st.just("retain"), st.integers(0, 999)),
        st.tuples(st.sampled_from(["save", "fail", "read", "read"]), st.none()),
    ),
    min_size=30,
    max_size=60,
)


@settings(max_examples=times(300, push=60))
@given(dtype=st.sampled_from(sorted(SCORES)), dead=st.sampled_from([0, 7, 1024]), steps=steps, data=st.data())
def test_the_lowest_leave_as_from_a_sorted_list(dtype, dead, steps, data):
    """Whatever is appended, changed, deleted, saved or fails: the lowest scores go, the oldest of them first."""
    scores = data.draw(st.lists(SCORES[dtype], min_size=8, max_size=8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "MIN_DEAD", dead)
        patch.setattr(retention, "MIN_ENTRIES", dead)
        buffer = DatasetBuffer(40, "lowest:score", schema={"score": dtype, "n": "int64"})
        buffer.append([{"score": scores[i % 8], "n": 0} for i in range(38)])
        model = [(scores[i % 8], i) for i in range(38)]  # (score, id)
        for name, argument in steps:
            if name in ("append", "singly"):
                new = [scores[i] for i in argument]
                rows = [{"score": score, "n": 0} for score in new]
                if name == "append":
                    buffer.append(rows)
                else:
                    for row in rows:
                        buffer.append(row)
                model += [(score, buffer.next_id - len(new) + i) for i, score in enumerate(new)]
                gone = sorted(model)[: max(0, len(model) - 40)]
                model = [row for row in model if row not in gone]
            elif name == "update" and model:
                rng = np.random.default_rng(argument)
                chosen = rng.choice([id_ for _, id_ in model], min(3, len(model)), replace=False)
                new = {int(id_): scores[rng.integers(8)] for id_ in chosen}
                buffer.update(list(new), {"score": list(new.values())})
                model = [(new.get(id_, score), id_) for score, id_ in model]
            elif name == "delete" and model:
                ids = {model[argument % len(model)][1]}
                assert buffer.delete(sorted(ids)).tolist() == []
                model = [row for row in model if row[1] not in ids]
            elif name == "retain" and model:
                buffer.retain(0.95, by="latest")
                model = model[len(model) - round(0.95 * len(model)) :]
            elif name == "save":
                buffer = pickle.loads(pickle.dumps(buffer))
            elif name == "fail" and model:
                with pytest.MonkeyPatch.context() as failing:
                    failing.setattr(storage.StoredRows, "dropping_places", fail)
                    try:
                        buffer.append([{"score": scores[0], "n": 0}] * 2)
                        model += [(scores[0], buffer.next_id - 2), (scores[0], buffer.next_id - 1)]
                    except MemoryError:
                        pass

            if name not in ("append", "singly"):
                assert buffer.ids.tolist() == [id_ for _, id_ in model]
        assert buffer.ids.tolist() == [id_ for _, id_ in model]


def fail(rows, places):
    raise MemoryError("no room to drop rows")


def test_appending_one_row_to_a_full_buffer_does_not_read_the_column(monkeypatch):
    """A heap knows the lowest: ranking all values again happens once, when it is made."""
    ranked = []
    ranks = retention.Policy.ranks
    monkeypatch.setattr(
        retention.Policy, "ranks", lambda self, values, *a: ranked.append(len(values)) or ranks(self, values, *a)
    )
    rng = np.random.default_rng(0)
    buffer = DatasetBuffer(10_000, "lowest:score")
    buffer.append_columns({"score": rng.random(10_000)})
    ranked.clear()

    for score in rng.random(300):
        buffer.append({"score": float(score)})
        buffer.snapshot()

    assert sorted(ranked)[-1] == 10_001
    assert sum(ranked) < 10_001 + 300 * 4


# By id ----------------------------------------------------------------------------------------------------------


def test_deleted_rows_are_gone_and_the_others_stay():
    """By id, in any order, twice or already gone; ids are never used again, and old snapshots keep what they show."""
    buffer = filled(8, max_size=6)
    before = buffer.snapshot()

    gone = buffer.delete([7, 0, 3, 3, 1])

    assert gone.tolist() == [0, 1]
    assert (ns(buffer), buffer.ids.tolist()) == ([2, 4, 5, 6], [2, 4, 5, 6])
    assert before.to_pydict()["n"] == [2, 3, 4, 5, 6, 7]
    assert buffer.by_id([3, 4]).gone.tolist() == [3]
    buffer.append({"n": 8})
    assert buffer.ids.tolist() == [2, 4, 5, 6, 8]
    assert buffer.delete([]).tolist() == []


def test_an_id_that_was_never_given_out_is_an_error_and_deletes_nothing():
    """It is a mistake, not a row that is gone."""
    buffer = filled(3)

    with pytest.raises(IndexError, match="row id 3 was never given out"):
        buffer.delete([0, 3])

    assert len(buffer) == 3


@pytest.mark.parametrize("follow", [False, True])
def test_a_loader_in_mid_epoch_leaves_out_deleted_rows_where_it_follows_the_buffer(follow):
    """Then from its next block on; else the epoch has the rows of its beginning. Every other row comes exactly once."""
    buffer = filled(4_000)
    loader = Loader(buffer, batch_size=64, shuffle=True, output="numpy", follow=follow)

    delivered: list[int] = []
    for i, batch in enumerate(loader):
        delivered += batch["n"].tolist()
        if i == 20:
            doomed = np.setdiff1d(np.arange(4_000), delivered)[::3].tolist()
            buffer.delete(doomed)

    assert len(delivered) == len(set(delivered))
    assert set(range(4_000)) - set(delivered) <= set(doomed)
    n_late = len(set(doomed) & set(delivered))
    assert n_late < 400 if follow else n_late == len(doomed)


# Times sampled --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"priority": "td"}, {"replace": True}, {"with_ids": True}])
def test_a_row_leaves_once_it_was_sampled_that_often(options):
    """Uniform, by priority and with replacement; the draw itself returns the row."""
    buffer = filled(30, max_times_sampled=3)
    drawn = np.zeros(30, int)

    while len(buffer):
        found = buffer.sample(1, **options)
        rows = found if hasattr(found, "column") else found[0]
        drawn[rows["n"].to_numpy()] += 1
        assert set(ns(buffer)) == set(np.flatnonzero(drawn < 3))

    assert drawn.tolist() == [3] * 30
    assert buffer.evicted == {"max_times_sampled": 30}


def test_times_sampled_are_counted_within_one_draw_and_by_the_buffer_alone():
    """A row that one draw returns twice counts twice; snapshots, loaders and reading do not count."""
    buffer = filled(2, max_times_sampled=4)
    snapshot = buffer.snapshot()
    snapshot.sample(2)
    buffer[0], buffer.get_batch([0, 1]), buffer.by_id([0])

    buffer.sample(3, replace=True, rng=np.random.default_rng(0))

    assert int(buffer.row_state("times_sampled", default=0).all().sum()) == 3


def test_times_sampled_survive_saving_and_pickling(tmp_path):
    """A copy goes on counting where the original was."""
    buffer = filled(3, max_times_sampled=2)
    buffer.sample(3)
    buffer.save(tmp_path / "a.rows")

    for copy in (DatasetBuffer.load(tmp_path / "a.rows"), pickle.loads(pickle.dumps(buffer))):
        assert copy.max_times_sampled == 2
        copy.sample(3)
        assert (len(copy), copy.evicted) == (0, {"max_times_sampled": 3})


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "3"])
def test_a_bound_that_is_none_is_an_error(bad):
    """A whole number of times above 0, or None."""
    with pytest.raises(ConfigError, match="max_times_sampled is a whole number of times above 0"):
        DatasetBuffer(max_times_sampled=bad)


# Reasons --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["oldest", "random", "lowest:n"])
def test_what_has_left_is_counted_by_reason(strategy, tmp_path):
    """Also rows that waited and were never stored; counts survive compaction, saving and pickling."""
    buffer = DatasetBuffer(50, strategy, max_times_sampled=1)
    for n in range(3_000):
        buffer.append({"n": n})
    buffer.append([{"n": n} for n in range(25)], retain_prior=0.5)
    buffer.delete(buffer.ids[:5])
    buffer.sample(10)
    expected = {"max_size": 2_950, "retention": 25, "deleted": 5, "max_times_sampled": 10}

    assert buffer.evicted == expected
    assert sum(expected.values()) + len(buffer) == buffer.next_id
    buffer.save(tmp_path / "a.rows")
    assert DatasetBuffer.load(tmp_path / "a.rows").evicted == expected
    assert pickle.loads(pickle.dumps(buffer)).evicted == expected
    assert (buffer.map(lambda row: row).evicted, DatasetBuffer().evicted) == ({}, {})


def test_a_file_whose_counts_are_none_is_damaged(tmp_path, monkeypatch):
    """Numbers above 0 by reason, and nothing else."""
    buffer = filled(3)
    for wrong in ({"deleted": -1}, {"deleted": 0.5}, ["deleted"]):
        settings_ = {**buffer._settings(), "evicted": wrong}
        monkeypatch.setattr(buffer, "_settings", lambda settings_=settings_: settings_)
        buffer.save(tmp_path / "a.rows")
        monkeypatch.undo()

        with pytest.raises(CorruptDataError, match="counts by reason"):
            DatasetBuffer.load(tmp_path / "a.rows")


def test_a_loaded_buffer_deletes_before_anything_else_has_changed_it(tmp_path):
    """Its rows are still those of the file, which stays as it is."""
    buffer = filled(9)
    buffer.delete([0, 4])
    buffer.save(tmp_path / "a.rows")
    loaded = DatasetBuffer.load(tmp_path / "a.rows")

    gone = loaded.delete([8, 4, 1])

    assert (gone.tolist(), ns(loaded)) == ([4], [2, 3, 5, 6, 7])
    assert ns(DatasetBuffer.load(tmp_path / "a.rows")) == [1, 2, 3, 5, 6, 7, 8]
