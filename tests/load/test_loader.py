"""The loader from outside: what it yields, how it grows and ends, what it refuses, and what an error leaves behind."""

from __future__ import annotations

import gc
import pickle
import signal
import threading
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.errors import ConfigError, PoolishError
from poolish.guards import Faults
from poolish.load import (
    Batch,
    FilteredDataset,
    Loader,
    RandomBatches,
    SequentialBatches,
    ShuffledDataset,
    StratifiedBatches,
    TransformedDataset,
    order,
)
from tests.effort import times
from tests.faults import in_child
from tests.load.loaders import VIEWS, buffer, extend, ids, load, plain, ranks, rows, saved, step, stream, walked, whole

#: How long a test waits for what must happen; it only ends a test that would hang.
PATIENCE_S = 30


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 4)


# What it yields ---------------------------------------------------------------------------------------------------


def test_batches_know_their_rows():
    """Columns by name, and beside them the ids, the position in the epoch and the step since training began."""
    loader = load(buffer(5), 2)
    batches = [*loader, *loader]

    assert all(type(batch) is Batch and list(batch) == ["n"] for batch in batches)
    assert [batch["n"].tolist() for batch in batches] == [batch.ids.tolist() for batch in batches]
    assert [batch.position for batch in batches] == [0, 2, 4, 0, 2, 4]
    assert [batch.step for batch in batches] == [0, 1, 2, 3, 4, 5]


@pytest.mark.kernels
def test_order_is_pinned(monkeypatch):
    """A seed means the same order in every version: changing it is a decision."""
    loader, other = load(rows(10), 10, shuffle=True), load(rows(10), 10, shuffle=True, seed=7)
    orders = [ids(loader), ids(loader), ids(other)]
    monkeypatch.setattr(order, "BLOCK_ROWS", 4)
    source = buffer(6)
    growing = load(source, 4, shuffle=True, seed=3, follow=True)
    grown = ids(islice(growing, 1))
    extend(source, 4)

    assert orders == [
        [0, 4, 6, 9, 2, 1, 8, 3, 7, 5],
        [3, 5, 6, 9, 2, 0, 1, 8, 4, 7],
        [5, 6, 8, 4, 9, 7, 2, 3, 0, 1],
    ]
    assert grown + ids(growing) == [4, 1, 2, 5, 0, 9, 6, 3, 8, 7]


@pytest.mark.kernels
@given(st.integers(0, 3000), st.integers(1, 700), st.integers(0, 2**64 - 1), st.integers(0, 5))
@settings(max_examples=times(20))
def test_each_epoch_has_each_row_once_in_another_order(n, batch_size, seed, epoch):
    """For any seed, also over several blocks of the real size."""
    loader = load(range(n), batch_size, shuffle=True, seed=seed)
    loader.set_epoch(epoch)
    first, second = ids(loader), ids(loader)

    assert sorted(first) == sorted(second) == list(range(n))
    assert n < 20 or first != second


def test_without_shuffle_rows_come_in_their_order(small_blocks):
    """Also rows that are appended while it runs."""
    source = buffer(9)
    loader = load(source, 2, follow=True)
    seen = ids(islice(loader, 2))
    extend(source, 6)

    assert seen + ids(loader) == list(range(15))


def test_a_shuffled_epoch_mixes_old_and_new_rows(small_blocks):
    """New rows do not come all at the end."""
    source = buffer(40)
    loader = load(source, 4, shuffle=True, follow=True)
    list(islice(loader, 2))
    extend(source, 40)

    first_half = ids(islice(loader, 9))

    assert 5 < sum(id_ >= 40 for id_ in first_half) < 31


def test_a_new_loop_begins_the_next_epoch_and_an_iterator_goes_on():
    """Also if the loop before was left early. The rest of the epoch comes to its iterator, or behind a state of it."""
    loader = load(buffer(5), 1)
    for batch in loader:
        if batch.ids[0] == 1:
            break
    state = saved(loader)

    running = iter(loader)
    begun = (loader.epoch, ids(islice(running, 2)), ids(running), loader.epoch)
    loader.load_state_dict(state)
    restored = (loader.epoch, ids(loader), loader.epoch, ids(loader), loader.epoch)

    assert begun == (1, [0, 1], [2, 3, 4], 2)
    assert restored == (0, [2, 3, 4], 1, [0, 1, 2, 3, 4], 2)


def test_where_growth_is_followed_a_new_loop_goes_on():
    """Such an epoch ends when nothing more comes, not where a loop was left."""
    loader = load(buffer(5), 1, follow=True)
    for batch in loader:
        if batch.ids[0] == 1:
            break

    assert (ids(loader), loader.epoch, ids(loader), loader.epoch) == ([2, 3, 4], 1, [0, 1, 2, 3, 4], 2)


def test_an_iterator_that_has_ended_stays_ended():
    """The next epoch needs a new one, as for every iterator of Python."""
    loader = load(buffer(2), 2)
    iterator = iter(loader)

    assert [len(list(iterator)) for _ in range(3)] == [1, 0, 0]
    assert len(list(loader)) == 1


def test_without_threads_nothing_is_read_ahead():
    """A sample is read when its batch is asked for."""
    asked: list[int] = []

    class Watched:
        def __len__(self):
            return 10

        def __getitem__(self, i):
            asked.append(i)
            return i

    iterator = iter(load(Watched(), 2))
    next(iterator), next(iterator)

    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_yielded_never_aliases_the_buffer(num_workers):
    """Writing into a batch changes no row, and a later update changes no batch."""
    source = DatasetBuffer()
    source.append([{"x": np.full(3, i, np.float32), "n": i} for i in range(4)])
    for output in ("numpy", "torch"):
        loader = Loader(source, 4, output=output, num_workers=num_workers)
        (batch,) = loader
        batch["x"][:] = -1
        batch["n"][:] = -1
        (kept,) = loader
        source.update([0], {"n": [100], "x": np.full((1, 3), 100, np.float32)})
        assert kept["n"].tolist() == [0, 1, 2, 3]
        source.update([0], {"n": [0], "x": np.zeros((1, 3), np.float32)})
        loader.close()

    assert [source[i]["n"] for i in range(4)] == [0, 1, 2, 3]
    assert [source[i]["x"].tolist() for i in range(4)] == [[i] * 3 for i in range(4)]


# Following --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("kind", ["buffer", "stream", "list"])
def test_growth_at_every_position_joins_once_at_the_next_block(shuffle, world_size, kind, small_blocks):
    """Whenever rows are appended, also behind the last batch: each comes once, and not before the block is used up."""
    n_steps = -(-11 // (2 * world_size))
    for at in range(n_steps + 1):
        source = {"buffer": buffer, "stream": stream, "list": rows}[kind](11)
        loaders = ranks(world_size, source, 2, shuffle=shuffle, follow=True)
        seen: list[int] = []
        for number in range(100):
            if number == at:
                position = loaders[0].position
                extend(source, 7)
            if (batches := step(loaders)) is None:
                break
            seen += [id_ for batch in batches for id_ in batch.ids.tolist()]
        in_order = sorted(seen)

        assert in_order == list(range(18)), f"appended before step {at}"
        decided = min(-(-position // 4) * 4, 11)
        assert all(id_ < 11 for id_ in seen[:decided])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_appended_between_the_last_batch_and_the_end_join(num_workers):
    """Again and again: an epoch that is always refilled in time does not end."""
    source = buffer(3)
    loader = load(source, 2, follow=True, num_workers=num_workers)
    iterator = iter(loader)
    seen = ids([next(iterator), next(iterator)])
    for _ in range(4):
        extend(source, 2)
        seen += ids([next(iterator)])

    assert seen == list(range(11))
    assert next(iterator, None) is None


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_empty_dataset_is_waited_for_by_nobody(world_size):
    """An epoch over nothing ends at once, with no batch, on every rank; the next may have rows."""
    source = buffer(0)
    loaders = ranks(world_size, source, 2, follow=True)

    assert whole(loaders) == []
    extend(source, 4)
    assert sorted(whole(loaders)) == [0, 1, 2, 3]


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("by", ["oldest", "latest", "random"])
def test_rows_that_are_dead_when_a_block_is_decided_do_not_come(follow, by, small_blocks):
    """With follow they are left out and nobody counts them; without, the epoch is the snapshot of its start."""
    source = buffer(24)
    loader = load(source, 2, shuffle=True, follow=follow)
    running = iter(loader)
    seen = ids(islice(running, 2))
    source.retain(0.5, by=by)
    living = set(source.ids.tolist())
    rest = ids(running)

    assert len(rest) == len(set(rest))
    assert loader.n_skipped == 0
    assert set(rest) == (living - set(seen) if follow else set(range(24)) - set(seen))


def test_rows_that_vanish_after_their_block_was_decided_leave_a_short_batch_and_are_counted():
    """A state holds the decision; the row is gone when the run goes on. Ranks keep their number of batches."""
    source = buffer(16)
    loaders = ranks(2, source, 2, follow=True)
    step(loaders)
    state = saved(loaders[0])
    del loaders
    source.retain(0.5, by="latest")  # 8 to 15
    resumed = ranks(2, source, 2, follow=True, state=state)
    sizes = [[len(batch.ids) for batch in batches] for batches in iter(lambda: step(resumed), None)]

    assert sizes == [[0, 0], [2, 2], [2, 2]]
    assert [loader.n_skipped for loader in resumed] == [2, 2]


@pytest.mark.parametrize("kind", ["steps", "windows"])
def test_what_leaves_a_bounded_stream_in_mid_block_is_counted_and_stops_nobody(kind):
    """The oldest go while the writer goes on; what is left comes, once."""
    store = stream(100, max_tokens=200)
    loader = load(store if kind == "steps" else store.as_dataset(2), 3, follow=True)
    iterator, seen = iter(loader), []
    for _ in range(8):
        extend(store, 40)
        seen += ids([next(iterator)])
    seen += ids(iterator)

    assert len(seen) == len(set(seen))
    assert loader.n_skipped > 0
    windows = store.as_dataset(2)
    living = range(*store.step_span()) if kind == "steps" else [windows.first_id + i for i in range(*windows.span())]
    assert set(living) <= set(seen)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_follow_an_epoch_is_the_snapshot_at_its_start(world_size, num_workers, small_blocks):
    """Whatever is appended or evicted; the next epoch is another snapshot."""
    source = buffer(11)
    loaders = ranks(world_size, source, 2, shuffle=True, num_workers=num_workers)
    seen: list[int] = []
    for step_ids in walked(loaders):
        seen += step_ids
        extend(source, 3)
        source.retain(0.8, by="oldest" if len(seen) % 3 else "latest")

    assert sorted(seen) == list(range(11))
    assert sorted(whole(loaders)) == sorted(source.ids.tolist())


def test_without_follow_a_resumed_epoch_is_still_that_snapshot(small_blocks):
    """Rows that came after its start are the next epoch's, also in another process."""
    source = buffer(11)
    loader = load(source, 2, shuffle=True)
    seen = ids(islice(loader, 2))
    extend(source, 5)
    resumed = load(source, 3, shuffle=True)
    resumed.load_state_dict(saved(loader))

    assert sorted(seen + ids(resumed)) == list(range(11))
    assert sorted(ids(resumed)) == list(range(16))


def test_ranks_see_one_snapshot_although_they_begin_at_different_moments():
    """The first one decides, for all ranks of the process."""
    source = buffer(6)
    first, second = ranks(2, source, 1, shuffle=True)
    running = iter(first)
    seen = ids(islice(running, 1))
    extend(source, 6)

    assert sorted(seen + ids(running) + ids(second)) == list(range(6))


@pytest.mark.parametrize("follow", [False, True])
def test_an_epoch_that_is_begun_again_sees_what_was_appended(follow):
    """Also where ranks of one process agree: what an earlier pass decided is not what this one decides."""
    for world_size in (1, 2):
        source = buffer(6)
        loaders = ranks(world_size, source, 2, follow=follow)
        whole(loaders)
        extend(source, 3)
        for loader in loaders:
            loader.set_epoch(0)
        assert sorted(whole(loaders)) == list(range(9)), world_size


def test_going_back_to_a_state_lets_rows_join_that_came_since():
    """A run that is put back to a checkpoint in the same process follows what has grown meanwhile."""
    for world_size in (1, 2):
        source = buffer(8)
        loaders = ranks(world_size, source, 2, follow=True)
        seen = [id_ for batch in step(loaders) or [] for id_ in batch.ids.tolist()]
        state = saved(loaders[0])
        whole(loaders)
        extend(source, 3)
        for loader in loaders:
            loader.load_state_dict(state)
        assert sorted(seen + whole(loaders)) == list(range(11)), world_size


def test_loaders_of_different_views_do_not_disturb_each_other():
    """A filtered and a plain loader of one buffer, with one seed, both with two ranks in this process."""
    source = buffer(12)
    filtered = ranks(2, FilteredDataset(source, lambda row: row["n"] % 2 == 0), 2)
    everything = ranks(2, source, 2)

    assert sorted(whole(filtered)) == list(range(0, 12, 2))
    assert sorted(whole(everything)) == list(range(12))


def test_two_runs_over_one_buffer_do_not_disturb_each_other():
    """Train and validate with the same seed in one process: each decides its own end."""
    source = buffer(6)
    one, other = ranks(2, source, 2, follow=True), ranks(2, source, 2, follow=True)
    whole(one)
    extend(source, 4)

    assert sorted(whole(other)) == list(range(10))


def test_two_runs_that_take_turns_end_each_on_its_own():
    """One rank of each run has seen the end; what is appended then belongs to the next epoch of both."""
    source = buffer(4)
    one, other = ranks(2, source, 2, follow=True), ranks(2, source, 2, follow=True)
    assert step(one)
    assert step(other)
    assert next(iter(one[0]), None) is None
    assert next(iter(other[1]), None) is None
    extend(source, 3)

    assert next(iter(one[1]), None) is None
    assert next(iter(other[0]), None) is None


@pytest.mark.parametrize("follow", [False, True])
def test_new_ranks_see_what_is_there_although_older_ones_are_still_alive(follow):
    """A cell of a notebook that is run again, an error that keeps the old loaders: what they decided is theirs."""
    source = buffer(6)
    old = ranks(2, source, 2, follow=follow)
    step(old)
    extend(source, 4)

    assert sorted(whole(ranks(2, source, 2, follow=follow))) == list(range(10))
    assert old[0].step == 1


@pytest.mark.parametrize("view", ["shuffled", "subsetted", "mixture", "transformed shuffled"])
def test_following_through_a_view_that_reorders_is_refused(view):
    """Where growth changes which row has which number, following it cannot be exact."""
    with pytest.raises(ConfigError, match="follow"):
        load(VIEWS[view](buffer(12)), 2, follow=True)


# The end, lengths, epochs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 3])
def test_length_is_constant_and_what_remains_counts_down(drop_last, world_size, small_blocks):
    """Batches of the epoch and those left, with rows missing anywhere, before and after a resume."""
    source = buffer(60, max_size=31, drop_strategy="random", seed=5)
    loaders = ranks(world_size, source, 2, shuffle=True, drop_last=drop_last)
    total = 31 // (2 * world_size) if drop_last else -(-31 // (2 * world_size))
    for n_left in range(total, 0, -1):
        resumed = load(source, 2, shuffle=True, drop_last=drop_last, rank=0, world_size=world_size)
        resumed.load_state_dict(saved(loaders[0]))
        assert [loader.remaining for loader in (*loaders, resumed)] == [n_left] * (world_size + 1)
        assert [len(loader) for loader in (*loaders, resumed)] == [total] * (world_size + 1)
        assert step(loaders) is not None
    assert {(len(loader), loader.remaining) for loader in loaders} == {(total, 0)}
    assert step(loaders) is None
    assert {(len(loader), loader.remaining) for loader in loaders} == {(total, total)}


@pytest.mark.parametrize("view", list(VIEWS))
def test_length_is_right_for_every_view(view, small_blocks):
    """Counted by walking."""
    loader = load(VIEWS[view](buffer(13)), 3, shuffle=True)
    n_batches = len(loader)
    for done, _ in enumerate(loader, 1):
        assert (len(loader), loader.remaining) == (n_batches, n_batches - done)
    assert done == n_batches


def test_length_knows_what_one_part_of_a_composite_has_lost(small_blocks):
    """The oldest rows of a part are gone when the run goes on, those of the other part are there."""
    source = buffer(10)
    loader = load(VIEWS["composite"](source), 1)
    list(islice(loader, 2))
    state = saved(loader)
    source.retain(0.5)
    resumed = load(VIEWS["composite"](source), 1)
    resumed.load_state_dict(state)
    n_batches, n_left = len(resumed), resumed.remaining

    assert n_batches == 2 + n_left
    assert n_left == len(list(resumed))


def test_length_of_a_loader_that_follows_is_not_known():
    """TypeError, as Python has it for what has no length; list() and torch cope."""
    loader = load(buffer(3), 2, follow=True)

    with pytest.raises(TypeError, match="follow"):
        len(loader)
    assert len(list(loader)) == 2


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_drop_last_leaves_out_what_fills_no_step(world_size, follow, small_blocks):
    """All ranks drop the same step; other rows in each epoch."""
    loaders = ranks(world_size, buffer(23), 3, shuffle=True, drop_last=True, follow=follow)
    epochs = [whole(loaders) for _ in range(3)]

    size = 3 * world_size
    assert [len(epoch) for epoch in epochs] == [23 // size * size] * 3
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    assert {loader.epoch for loader in loaders} == {3}


def test_what_drop_last_left_out_is_there_for_another_world_size():
    """A state before the dropped step goes on with its rows, if they fill the steps of the new ranks."""
    source = buffer(11)
    loaders = ranks(2, source, 2, drop_last=True)
    list(islice(walked(loaders), 2))

    assert whole(ranks(1, source, 1, drop_last=True, state=saved(loaders[0]))) == [8, 9, 10]


def test_set_epoch_begins_an_epoch_unless_a_state_restored_it():
    """Called before every epoch, as torch's sampler wants it, it changes nothing; one that was begun begins again."""
    loader = load(buffer(6), 2, shuffle=True)
    plainly = [ids(loader) for _ in range(3)]
    told = load(buffer(6), 2, shuffle=True)
    by_number = []
    for epoch in range(3):
        told.set_epoch(epoch)
        by_number.append(ids(told))

    assert by_number == plainly
    told.set_epoch(1)
    next(iter(told))
    state = saved(told)
    told.set_epoch(1)
    assert ids(told) == plainly[1]
    told.load_state_dict(state)
    told.set_epoch(1)
    assert ids(told) == plainly[1][2:]
    told.set_epoch(0)
    assert ids(told) == plainly[0]
    assert told.epoch == 1


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("n_read", [0, 1])
def test_set_epoch_is_about_the_next_iter(n_read, num_workers):
    """An iterator that runs does not slip into another epoch, whose rows would be missing from its own: it raises."""
    loader = load(buffer(6), 2, shuffle=True, num_workers=num_workers)
    expected = [ids(load(buffer(6), 2, shuffle=True))]
    list(loader)
    expected.append(ids(loader))
    loader.set_epoch(0)
    running = iter(loader)
    seen = [id_ for _ in range(n_read) for id_ in next(running).ids.tolist()]
    loader.set_epoch(0)
    seen += next(running).ids.tolist()
    assert seen == expected[0][: len(seen)]

    loader.set_epoch(1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"superseded: a later iter\(\) or set_epoch\(\)"):
            next(running)
    assert ids(loader) == expected[1]
    loader.close()


def test_set_epoch_leaves_an_iterator_over_that_is_over():
    """Its epoch was complete."""
    loader = load(buffer(6), 2)
    over = iter(loader)
    assert len(list(over)) == 3
    loader.set_epoch(4)

    assert list(over) == []


@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_epochs_are_whole_numbers(bad):
    """The message says what was given."""
    with pytest.raises(ConfigError, match="epoch"):
        load(rows(3)).set_epoch(bad)


@pytest.mark.parametrize("how", ["loop", "set_epoch", "load_state_dict", "inside"])
def test_views_are_told_the_epoch_before_anything_is_read(how):
    """However the loader comes into it: the samples are those of the epoch."""

    def noisy(row, rng):
        return {"n": row["n"], "noise": int(rng.integers(2**40))}

    def make():
        return load(TransformedDataset(ShuffledDataset(rows(6), seed=2), noisy), 2, shuffle=True)

    expected_loader = make()
    list(expected_loader)
    state = saved(expected_loader)
    expected = [plain(batch)[3] for batch in expected_loader]

    loader = make()
    if how == "loop":
        list(loader)
    elif how == "set_epoch":
        loader.set_epoch(1)
    elif how == "load_state_dict":
        loader.load_state_dict(state)
    iterator = iter(loader)
    if how == "inside":
        next(iterator)
        loader.load_state_dict(state)

    assert [plain(batch)[3] for batch in iterator] == expected


# Samples of every kind --------------------------------------------------------------------------------------------


def test_tuples_give_tuples():
    """``for x, y in loader``, and the batch still knows its rows."""
    loader = load([(np.full(2, i, np.float32), i) for i in range(4)], 2)
    for batch in loader:
        x, y = batch
        assert x.shape == (2, 2)
        assert y.tolist() == batch.ids.tolist()


@pytest.mark.parametrize("output", ["numpy", "torch", "arrow"])
def test_every_output_has_the_same_values(output):
    """Numbers, text, vectors and flags, from a buffer and from samples, with and without threads."""
    samples = [{"n": i, "x": np.full(3, i, np.float32), "text": f"row {i}", "flag": i % 2 == 0} for i in range(7)]
    source = DatasetBuffer()
    source.append(samples)
    for dataset in (source, samples):
        for num_workers in (0, 2):
            loader = Loader(dataset, 3, output=output, num_workers=num_workers, shuffle=True)
            for batch in loader:
                numbers = [_plain(batch["n"]), _plain(batch["text"]), _plain(batch["flag"]), _plain(batch["x"])]
                wanted = batch.ids.tolist()
                assert numbers[0] == wanted
                assert numbers[1] == [f"row {i}" for i in wanted]
                assert numbers[2] == [i % 2 == 0 for i in wanted]
                assert [list(row) for row in numbers[3]] == [[i] * 3 for i in wanted]
            loader.close()


def _plain(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def test_text_none_and_ragged_arrays_stay_lists():
    """What cannot be stacked is a list of what there was."""
    samples = [{"text": "rye", "maybe": None, "ragged": np.arange(i), "n": 1} for i in range(3)]
    samples[1]["maybe"] = 5
    (batch,) = load(samples, 3)

    assert batch["text"] == ["rye"] * 3
    assert list(batch["maybe"]) == [None, 5, None]
    assert [array.tolist() for array in batch["ragged"]] == [[], [0], [0, 1]]
    assert batch["n"].tolist() == [1, 1, 1]


def test_a_batch_over_two_blocks_is_one_batch(small_blocks):
    """Also where rows that were appended in between are the first with a missing value."""
    for output in ("numpy", "arrow"):
        source = DatasetBuffer()
        source.append([{"n": i, "text": str(i)} for i in range(6)])
        loader = Loader(source, 5, follow=True, output=output)
        first = next(iter(loader))
        source.append([{"n": None, "text": None}, {"n": 7, "text": "7"}])
        rest = list(loader)
        assert [str(value) for value in first["text"]] == ["0", "1", "2", "3", "4"]
        numbers = [value for batch in rest for value in _as_python(batch["n"])]
        assert numbers == [5, None, 7]


def _as_python(values: Any) -> list[Any]:
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        (kind, output)
        for kind in ("buffer", "samples", "tuples", "filtered")
        for output in ("numpy", "torch", "arrow")
        if (kind, output) != ("tuples", "arrow")  # Arrow's columns have names
    ],
)
def test_ranks_without_rows_yield_empty_batches_of_the_same_form(kind, output):
    """One row, three ranks: all have one batch with the same columns, of which two are empty."""
    samples = [{"x": np.ones(2, np.float32), "n": 1, "text": "rye"}]
    source: Any = DatasetBuffer()
    source.append(samples)
    dataset = {
        "buffer": source,
        "samples": samples,
        "tuples": [(np.ones(2, np.float32), 1)],
        "filtered": FilteredDataset(source, lambda row: True),
    }[kind]
    loaders = [Loader(dataset, 2, rank=rank, world_size=3, output=output) for rank in range(3)]
    batches = step(loaders)

    assert [len(batch.ids) for batch in batches] == [1, 0, 0]
    if kind == "tuples":
        assert [len(batch) for batch in batches] == [2, 2, 2]
        assert [len(column) for batch in batches[1:] for column in batch] == [0] * 4
    else:
        assert len({tuple(batch) for batch in batches}) == 1
        assert all(len(column) == 0 for batch in batches[1:] for column in batch.values())
        if output != "arrow":
            assert all(batch["x"].dtype == batches[0]["x"].dtype for batch in batches[1:])
    assert step(loaders) is None


def test_collate_fn_makes_the_batch():
    """It is given samples, and a dict or tuple of its own also knows its rows."""
    loader = load(rows(5), 2, collate_fn=lambda samples: {"total": sum(sample["n"] for sample in samples)})

    assert [(batch["total"], batch.ids.tolist()) for batch in loader] == [(1, [0, 1]), (5, [2, 3]), (4, [4])]


def test_collate_fn_is_not_asked_for_a_batch_of_nothing():
    """A rank without rows does not end the run of all, whatever the function does with an empty list."""
    for n in (1, 5):
        loaders = ranks(2, [np.arange(3.0)] * n, 2, collate_fn=lambda samples: {"x": np.stack(samples)})
        assert len(list(walked(loaders))) == -(-n // 4)


def test_faults_leave_out_what_cannot_be_read():
    """Skipped rows make a batch short, are counted, and no rank has fewer batches."""

    class Broken:
        def __len__(self):
            return 12

        def __getitem__(self, i):
            if i in (3, 4, 9):
                raise ValueError(f"row {i} is broken")
            return {"n": i}

    for num_workers in (0, 2):
        loaders = [
            load(
                Broken(), 2, rank=rank, world_size=2, num_workers=num_workers, faults=Faults(on_sample="skip", budget=9)
            )
            for rank in range(2)
        ]
        steps = list(walked(loaders))
        assert sorted(id_ for step_ids in steps for id_ in step_ids) == [0, 1, 2, 5, 6, 7, 8, 10, 11]
        assert len(steps) == 3
        assert sum(loader.n_skipped for loader in loaders) == 3


def test_faults_also_hold_for_ranks_without_rows():
    """What an empty batch looks like is learned from a row of another rank, which may be the broken one."""

    class Broken:
        def __len__(self):
            return 1

        def __getitem__(self, i):
            raise ValueError("broken")

    for rank in range(3):
        faults = Faults(on_sample="skip", on_batch="shrink", budget=9)
        (batch,) = load(Broken(), 2, rank=rank, world_size=3, faults=faults)
        assert len(batch.ids) == 0


def test_the_budget_of_faults_survives_a_resume():
    """Failures that a state has counted are not forgiven by going on from it."""

    class Broken:
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i % 2:
                raise ValueError(f"row {i} is broken")
            return {"n": i}

    first = load(Broken(), 2, faults=Faults(on_sample="skip", budget=3))
    list(islice(first, 2))
    second = load(Broken(), 2, faults=Faults(on_sample="skip", budget=3))
    second.load_state_dict(saved(first))
    running = iter(second)
    next(running)

    with pytest.raises((ValueError, PoolishError)):
        next(running)


# Ready-made batches -----------------------------------------------------------------------------------------------

BATCHES = {
    "random": lambda: RandomBatches(17, 3, seed=1),
    "sequential": lambda: SequentialBatches(17, 4),
    "stratified": lambda: StratifiedBatches([i % 3 for i in range(17)], 3, seed=2),
    "lists": lambda: [[0, 5], [3], [], [16, 2, 1]],
}


@pytest.mark.parametrize("kind", list(BATCHES))
@pytest.mark.parametrize("world_size", [1, 2, 3, 11])
def test_ready_made_batches_are_dealt_to_the_ranks(kind, world_size):
    """Rank r takes every world_size-th; all yield equally many, empty ones where none is left. Resumed anywhere."""
    batches = BATCHES[kind]()
    expected = [list(map(int, batch)) for batch in batches]
    n_steps = -(-len(expected) // world_size)
    for stop in range(n_steps + 1):
        loaders = ranks(world_size, buffer(17), 1, batches=BATCHES[kind]())
        got = [batch.ids.tolist() for _ in range(stop) for batch in step(loaders)]
        resumed = ranks(world_size, loaders[0].dataset, 1, batches=BATCHES[kind](), state=saved(loaders[-1]))
        for loader in resumed:
            loader.set_epoch(0)
        assert {(len(loader), loader.remaining) for loader in resumed} == {(n_steps, n_steps - stop)}
        got += [batch.ids.tolist() for together in iter(lambda: step(resumed), None) for batch in together]  # noqa: B023
        assert got[: len(expected)] == expected
        assert got[len(expected) :] == [[]] * (n_steps * world_size - len(expected))


def test_batches_that_two_loaders_share_are_each_ones_own():
    """One goes into the next epoch; the other stays in the order it is in."""
    batches = RandomBatches(6, 2)
    one, other = load(rows(6), 1, batches=batches), load(rows(6), 1, batches=batches)
    expected = ids(load(rows(6), 1, batches=RandomBatches(6, 2)))
    running = iter(one)
    seen = ids(islice(running, 1))
    other.set_epoch(1)
    list(other)

    assert seen + ids(running) == expected


def test_a_row_number_that_is_none_is_an_error():
    """A batch with row 99 of 10 rows is a mistake, not a row that has left."""
    for source in (rows(10), buffer(10)):
        loader = load(source, 1, batches=[[0, 99]])
        with pytest.raises((IndexError, ConfigError), match="99"):
            next(iter(loader))


def test_other_batches_than_those_of_the_state_are_refused():
    """As many must there be, at least."""
    loader = load(rows(10), 1, batches=SequentialBatches(10, 2))
    next(iter(loader))

    with pytest.raises(PoolishError, match="5 batches"):
        load(rows(10), 1, batches=SequentialBatches(10, 3)).load_state_dict(saved(loader))


# Errors -----------------------------------------------------------------------------------------------------------


class Failing:
    """Raises at one row, as often as it is told."""

    def __init__(self, row: int, times_: int, error: BaseException | None = None):
        self.row, self.left = row, times_
        self.error = error or RuntimeError("the disk is gone")

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == self.row and self.left:
            self.left -= 1
            raise type(self.error)(*self.error.args)
        return {"n": i}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("row", [0, 5, 9])
def test_an_error_names_the_rows_and_loses_nothing(row, num_workers):
    """Asking again reads the same batch again: before that the state is the one before it."""
    loader = load(Failing(row, 2), 2, num_workers=num_workers)
    iterator = iter(loader)
    seen = ids(islice(iterator, row // 2))
    before = saved(loader)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the disk is gone") as told:
            next(iterator)
        assert any(str(row) in note and "row" in note for note in told.value.__notes__)
        assert saved(loader) == before

    assert seen + ids(iterator) == list(range(10))


def test_an_interrupt_in_mid_batch_loses_nothing():
    """Ctrl-C while a sample is read: the loader is before the batch, and goes on with it."""
    loader = load(Failing(4, 1, KeyboardInterrupt()), 3)
    iterator = iter(loader)
    seen = ids([next(iterator)])
    with pytest.raises(KeyboardInterrupt):
        next(iterator)

    assert seen + ids(iterator) == list(range(10))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupt_at_any_moment_leaves_the_loader_before_or_behind_a_batch(num_workers):
    """Ctrl-C whenever it comes: the next batch is the one that the loader's state says, with the rows it always has."""

    def child():
        source = buffer(6000)
        expected = [batch.ids.tolist() for batch in load(source, 3, shuffle=True)]
        loader = load(source, 3, shuffle=True, follow=True, num_workers=num_workers)
        end, n_interrupts, is_armed = time.monotonic() + 0.4 * times(1), 0, False

        def interrupt(*_):
            if is_armed:
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
        while time.monotonic() < end:
            if loader.epoch:
                loader.set_epoch(0)
            batch, number, position = None, loader.step, loader.position
            try:
                is_armed = True
                batch = next(iter(loader), None)
                is_armed = False
            except KeyboardInterrupt:
                is_armed = False
                n_interrupts += 1
            if batch is not None:
                assert (batch.step, batch.position) == (number, position)
                assert batch.ids.tolist() == expected[position // 3]
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert n_interrupts > 5

    assert in_child(child) == 0


def test_what_worker_init_fn_raises_comes_out():
    """Where the first batch is asked for, with the worker's number; nothing is lost."""
    calls = []

    def init(worker_id):
        calls.append(worker_id)
        if len(calls) == 1:
            raise RuntimeError("no license")

    loader = load(rows(6), 2, num_workers=2, worker_init_fn=init)
    with pytest.raises(RuntimeError, match="no license") as told:
        next(iter(loader))

    assert any("worker" in note for note in told.value.__notes__)
    assert ids(loader) == list(range(6))


def test_a_slow_source_ends_in_a_timeout_that_names_the_rows_and_loses_nothing():
    """Asking again goes on waiting."""
    go = threading.Event()

    class Slow:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            if i == 2:
                assert go.wait(PATIENCE_S)
            return {"n": i}

    loader = load(Slow(), 2, num_workers=1, timeout=0.05)
    iterator = iter(loader)
    seen = ids([next(iterator)])
    with pytest.raises(TimeoutError, match=r"0\.05 s.*2"):
        next(iterator)
    go.set()

    assert seen + ids(iterator) == list(range(6))


def test_threads_end_with_the_epoch_unless_they_are_to_persist():
    """And with close(); the loader can be used again."""

    def n_threads():
        return sum(thread.name.startswith("poolish-worker") for thread in threading.enumerate())

    before = n_threads()
    passing, staying = load(rows(4), 2, num_workers=2), load(rows(4), 2, num_workers=2, persistent_workers=True)
    list(passing)
    assert n_threads() == before
    list(staying)
    assert n_threads() == before + 2
    staying.close()
    assert n_threads() == before
    assert len(list(staying)) == 2
    staying.close()


def test_closing_in_mid_epoch_loses_nothing():
    """What was read ahead is read again by whoever goes on."""
    loader = load(rows(9), 2, num_workers=2)
    iterator = iter(loader)
    seen = ids([next(iterator)])
    loader.close()

    assert seen + ids(iterator) == list(range(9))


def test_threads_end_when_nobody_has_the_loader():
    """Also in mid-epoch, without close()."""

    def threads():
        return {thread for thread in threading.enumerate() if thread.name.startswith("poolish-worker")}

    before = threads()
    loader = load(rows(9), 2, num_workers=2)
    next(iter(loader))
    started = threads() - before
    del loader
    gc.collect()
    for thread in started:
        thread.join(PATIENCE_S)

    assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)


def test_a_forked_process_goes_on_with_threads_of_its_own():
    """From where the loader was when it was forked; the parent's goes on, too."""
    loader = load(rows(9), 2, num_workers=2)
    iterator = iter(loader)
    seen = ids([next(iterator)])

    def child():
        assert ids(iterator) == list(range(2, 9))
        assert ids(loader) == list(range(9))

    assert in_child(child) == 0
    assert seen + ids(iterator) == list(range(9))


# Arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("batch_size", bad) for bad in (0, -1, 1.5, "2", None, True)),
        *(("num_workers", bad) for bad in (-1, 0.5, None)),
        *(("prefetch_factor", bad) for bad in (0, None)),
        *(("seed", bad) for bad in (-1, 2**64, 0.5)),
        *(("output", bad) for bad in ("jax", 3)),
        *(("acknowledge", bad) for bad in ("later", True)),
        *(("timeout", bad) for bad in (-1, "1")),
        *(("collate_fn", bad) for bad in (3, "stack")),
        *(("worker_init_fn", bad) for bad in (3,)),
        *(("faults", bad) for bad in ("skip", 3)),
        *(("journal", bad) for bad in (3,)),
        *(("batches", bad) for bad in (5, iter([[1]]))),
        *(("rank", bad) for bad in (0,)),
        *(("world_size", bad) for bad in (2,)),
    ],
)
def test_a_wrong_argument_is_refused_at_once_and_named(name, bad):
    """Before anything is read."""
    with pytest.raises(ConfigError, match=name):
        load(rows(4), **{"batch_size": 1, name: bad})


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0), (0.5, 2)])
def test_ranks_count_from_0(rank, world_size):
    """To world_size - 1."""
    with pytest.raises(ConfigError, match=r"rank|world_size"):
        load(rows(4), rank=rank, world_size=world_size)


@pytest.mark.parametrize("clash", [{"follow": True}, {"batch_size": 2}, {"shuffle": True}, {"drop_last": True}])
def test_what_has_no_meaning_beside_ready_made_batches_is_refused(clash):
    """By name."""
    with pytest.raises(ConfigError, match=next(iter(clash))):
        load(rows(4), **{"batch_size": 1, "batches": [[0]], **clash})


@pytest.mark.parametrize("bad", [None, 3, iter([1]), {"a": 1, "b": 2}, {1, 2}])
def test_what_is_no_dataset_is_refused(bad):
    """It needs a length and an index by number."""
    with pytest.raises(ConfigError, match="dataset"):
        load(bad)


def test_tensors_alone_go_to_a_device():
    """device and pin_memory need torch's output."""
    for option in ({"device": "cpu"}, {"pin_memory": True}):
        with pytest.raises(ConfigError, match="device"):
            load(rows(2), **option)


def test_mark_trained_is_for_explicit_acknowledgement_and_for_own_batches():
    """What was not yielded, or is marked and gone, is told."""
    loader = load(rows(4), 2)
    with pytest.raises(ConfigError, match="explicit"):
        loader.mark_trained(next(iter(loader)))
    explicit = load(rows(4), 2, acknowledge="explicit")
    batch = next(iter(explicit))
    explicit.mark_trained(batch)
    for wrong in (batch, Batch(step=7), {"n": 1}):
        with pytest.raises(ConfigError, match="not yielded"):
            explicit.mark_trained(wrong)


def test_ranks_come_from_the_environment_where_processes_share_the_rows(monkeypatch):
    """torchrun sets RANK and WORLD_SIZE; a buffer in memory is cut by them if all processes hold the same rows."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    shared, copied, undeclared = load(rows(6), 1), load(buffer(6), 1, shared="copy"), load(buffer(6), 1)

    assert (shared.rank, shared.world_size, ids(shared)) == (1, 2, [1, 3, 5])
    assert (copied.rank, copied.world_size, ids(copied)) == (1, 2, [1, 3, 5])
    with pytest.raises(ConfigError, match=r"pass shared='copy' if .* or shared='own' if"):
        iter(undeclared)


def test_several_processes_that_follow_need_a_journal(monkeypatch, tmp_path):
    """Without one they would see an append at different moments; the message says what to pass."""
    store = stream(6, tmp_path / "stream")
    for follow in (False, True):
        with pytest.raises(ConfigError, match="journal=DIR"):
            load(store, rank=0, world_size=2, follow=follow)
    assert step(ranks(2, buffer(6), follow=True))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="journal=DIR"):
        load(buffer(6), rank=0, world_size=2, follow=True)
    with pytest.raises(ConfigError, match="journal=DIR"):
        iter(load(buffer(6), follow=True, shared="copy"))


# Travelling -------------------------------------------------------------------------------------------------------


def test_a_pickled_loader_goes_on_where_it_was():
    """In another process or here; the original does not notice."""
    for source in (rows(9), buffer(9)):
        loader = load(source, 2, shuffle=True, num_workers=1)
        running = iter(loader)
        list(islice(running, 2))
        copied = pickle.loads(pickle.dumps(loader))
        assert [plain(batch) for batch in copied] == [plain(batch) for batch in running]
        loader.close()
        copied.close()


def test_a_loader_says_where_it_is():
    """In one line."""
    loader = load(buffer(6), 1, rank=1, world_size=2)
    next(iter(loader))

    assert repr(loader) == "<Loader of DatasetBuffer, epoch 0, step 1, rank 1 of 2>"
    assert (loader.epoch, loader.step, loader.position) == (0, 1, 2)
