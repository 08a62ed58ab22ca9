"""Resume everywhere: whatever the dataset, a state taken before any batch gives exactly the batches behind it."""

from __future__ import annotations

import copy
import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.errors import ResumeError
from poolish.load import CompositeDataset, RandomBatches, ShuffledDataset, order
from tests.effort import times
from tests.load.loaders import (
    BASES,
    VIEWS,
    buffer,
    extend,
    ids,
    load,
    plain,
    ranks,
    rows,
    saved,
    stream,
    walked,
    whole,
)

#: Where peers have been wrong: around powers of two, and fewer rows than anything else.
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]

every_dataset = pytest.mark.parametrize(
    ("base", "view"), [(base, view) for base in BASES for view in ("itself", *VIEWS)]
)


@pytest.fixture(params=[4, 1024], ids=["small blocks", "real blocks"])
def block_rows(request, monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", request.param)
    return request.param


def dataset_of(base, view):
    return VIEWS[view](base) if view != "itself" else base


def assert_resumes_everywhere(make, *, epochs=2):
    """States before every batch, after the last one and after the end, in each of some epochs.

    A complete epoch has nothing left: the next one begins, unless ``set_epoch`` asks for the rest of this one. Where
    growth is followed it is not complete until a next batch was asked for.
    """
    loader = make()
    states, batches, firsts = [], [], []
    for _ in range(epochs):
        firsts.append(len(batches))
        iterator = iter(loader)
        while True:
            states.append((len(batches), loader.epoch, saved(loader)))
            batch = next(iterator, None)
            if batch is None:
                break
            batches.append(plain(batch))
    states.append((len(batches), loader.epoch, saved(loader)))
    firsts.append(len(batches))

    for n_done, epoch, state in states:
        rests = [batches[max(n_done, firsts[e]) : firsts[e + 1]] for e in range(epoch, epochs)]
        is_complete = not loader.follow and epoch < epochs and firsts[epoch] < n_done == firsts[epoch + 1]
        for names_epoch in (False, True):
            resumed = make()
            resumed.load_state_dict(state)
            if names_epoch:
                resumed.set_epoch(epoch)
            expected = rests if names_epoch or not is_complete else rests[1:]
            got = [[plain(batch) for batch in resumed] for _ in expected]
            assert got == expected, f"resumed at batch {n_done} of epoch {epoch}, {names_epoch=}"
    return states


@every_dataset
def test_state_before_every_batch_gives_the_suffix(base, view, block_rows):
    """In the first epoch and in the next, at 0, at the last batch, behind it and after the end."""
    source = BASES[base](9)

    assert_resumes_everywhere(lambda: load(dataset_of(source, view), 2, shuffle=True, seed=11))


@settings(max_examples=times(30))
@given(
    st.sampled_from(list(BASES)),
    st.sampled_from(["itself", *VIEWS]),
    st.sampled_from(SIZES[1:]),
    st.integers(1, 6),
    st.sampled_from([3, 8, 1024]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_configuration_resumes_everywhere(base, view, n, batch_size, size, shuffle, follow, drop_last):
    """Rows around powers of two, blocks smaller and larger than batches, following or not."""
    source = BASES[base](n)
    is_renumbered = any(word in view for word in ("shuffled", "subsetted", "mixture"))
    options = {"shuffle": shuffle, "follow": follow and not is_renumbered, "drop_last": drop_last}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "BLOCK_ROWS", size)

        assert_resumes_everywhere(lambda: load(dataset_of(source, view), batch_size, **options))


@pytest.mark.parametrize("num_workers", [1, 3])
def test_threads_do_not_change_what_a_state_gives(num_workers, block_rows):
    """What was read ahead and not yielded is not in the state: it comes again."""
    source = buffer(23)

    assert_resumes_everywhere(
        lambda: load(source, 3, shuffle=True, num_workers=num_workers, prefetch_factor=3, persistent_workers=True)
    )


def test_ready_made_batches_resume_everywhere():
    """Also those whose rows are others in each epoch."""
    assert_resumes_everywhere(lambda: load(rows(17), 1, batches=RandomBatches(17, 3, seed=2)))


def test_steps_of_a_stream_resume_everywhere(tmp_path, block_rows):
    """Of a temporary stream and of one on disk."""
    for store in (stream(13), stream(13, tmp_path / "stream")):
        assert_resumes_everywhere(lambda store=store: load(store, 3, shuffle=True, follow=True))


def test_resuming_twice_is_resuming_once(block_rows):
    """A state of a resumed loader is the state, and loading does not change what was loaded."""
    source = buffer(20)
    first = load(source, 3, shuffle=True)
    running = iter(first)
    list(islice(running, 2))
    state = saved(first)
    kept = copy.deepcopy(state)

    second = load(source, 3, shuffle=True)
    second.load_state_dict(state)
    again = saved(second)
    third = load(source, 3, shuffle=True)
    third.load_state_dict(again)

    assert again == state == kept
    assert [plain(batch) for batch in third] == [plain(batch) for batch in running]


def test_a_loader_can_be_put_back_again_and_again():
    """Loading a state into a loader that has gone on, or has ended, puts it back."""
    loader = load(buffer(10), 3, shuffle=True, seed=1)
    iterator = iter(loader)
    next(iterator)
    state = saved(loader)
    rest = [plain(batch) for batch in iterator]

    for _ in range(3):
        loader.load_state_dict(state)
        assert [plain(batch) for batch in loader] == rest


def test_state_after_the_last_batch_or_the_end_begins_the_next_epoch():
    """A complete epoch neither comes again nor is an empty loop, unless set_epoch asks for its rest."""
    source = buffer(4)
    loader = load(source, 2)
    iterator = iter(loader)
    next(iterator), next(iterator)
    at_last, _ = saved(loader), next(iterator, None)
    after_end = saved(loader)

    first, second, third = load(source, 2), load(source, 2), load(source, 2)
    first.load_state_dict(at_last)
    second.load_state_dict(at_last)
    second.set_epoch(0)
    third.load_state_dict(after_end)

    assert (first.epoch, len(first), first.remaining) == (1, 2, 2)
    assert (second.epoch, len(second), second.remaining) == (0, 2, 0)
    assert [(batch.step, batch.ids.tolist()) for batch in first] == [(2, [0, 1]), (3, [2, 3])]
    assert (first.epoch, first.position) == (2, 0)
    assert (second.epoch, list(second), second.epoch) == (0, [], 1)
    assert [batch.step for batch in second] == [2, 3]
    assert (third.epoch, ids(third), third.epoch) == (1, [0, 1, 2, 3], 2)


def test_rows_appended_behind_the_last_batch_join_also_after_a_resume():
    """The end is decided by who asks for the next batch, not by who took the state."""
    source = buffer(4)
    loader = load(source, 2, follow=True)
    list(islice(loader, 2))
    state = saved(loader)
    extend(source, 3)

    resumed = load(source, 2, follow=True)
    resumed.load_state_dict(state)

    assert ids(resumed) == [4, 5, 6]


# The state itself -------------------------------------------------------------------------------------------------


def shape(value):
    """A state without its values: what torch's distributed checkpoints ask to be the same when they load."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return type(value).__name__


@every_dataset
def test_state_keeps_its_structure(base, view, block_rows):
    """The same names with the same types before, in and after an epoch; plain JSON, and the same state each time."""
    loader = load(dataset_of(BASES[base](9), view), 2, shuffle=True)
    shapes = [shape(loader.state_dict())]
    for _ in range(2):
        for _ in loader:
            state = loader.state_dict()
            assert json.loads(json.dumps(state)) == state == loader.state_dict()
            shapes.append(shape(state))
        shapes.append(shape(loader.state_dict()))

    assert all(one == shapes[0] for one in shapes)


def test_state_of_100_generations_fits_in_2_kB():
    """Each block begins a generation; with ids in the millions a state is still small, also within a block."""
    source = buffer(0)
    loader = load(source, 300, shuffle=True, follow=True)
    longest, shapes = 0, [shape(loader.state_dict())]
    for _ in range(100):
        source.append_columns({"n": np.zeros(100_003, np.int64)})
        for _ in islice(loader, 4):
            longest = max(longest, len(json.dumps(loader.state_dict())))
            shapes.append(shape(loader.state_dict()))

    assert longest <= 2_000
    assert all(one == shapes[0] for one in shapes)


def test_state_of_100_datasets_in_one_fits_in_2_kB():
    """Each part has a generation of its own."""
    loader = load(CompositeDataset([buffer(100) for _ in range(100)]), 7, shuffle=True)

    assert max(len(json.dumps(loader.state_dict())) for _ in islice(loader, 300)) <= 2_000


def test_states_stay_small_while_generations_come_and_go(monkeypatch):
    """Generations that are used up leave the state; tiny ones that nobody has drawn from are one."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 8)
    source = buffer(4)
    loader = load(source, 4, shuffle=True, follow=True)
    iterator = iter(loader)
    for _ in range(300):
        next(iterator)
        for _ in range(4):
            extend(source, 1)
    assert len(json.dumps(loader.state_dict())) < 700


# Where a state does not belong ------------------------------------------------------------------------------------


def state_of(source, **options):
    loader = load(source, 2, **options)
    next(iter(loader))
    return saved(loader)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"shuffle": True}, "shuffle"),
        ({"batches": [[0, 1], [2, 3]], "batch_size": 1}, "batches"),
    ],
)
def test_state_of_another_order_is_refused_by_name(options, name):
    """Another seed, shuffled or not, ready-made batches: the message says what differs and what both are."""
    source = buffer(8)
    other = load(source, options.pop("batch_size", 2), **options)

    with pytest.raises(ResumeError, match=rf"{name}="):
        other.load_state_dict(state_of(source))


def test_state_of_another_buffer_is_refused_by_name():
    """A buffer has a name, however alike two are."""
    with pytest.raises(ResumeError, match="source="):
        load(buffer(8), 2).load_state_dict(state_of(buffer(8)))


@pytest.mark.parametrize("version", [0, 3, None, "1"])
def test_state_of_another_version_is_refused_by_name(version):
    """Both versions are told."""
    source = buffer(8)
    state = {**state_of(source), "version": version}

    with pytest.raises(ResumeError, match=r"version .*reads versions 1, 2"):
        load(source, 2).load_state_dict(state)


@pytest.mark.parametrize("nonsense", [None, {}, [], 3, "state", {"epoch": 1}, {"format": "torch"}])
def test_what_is_no_state_is_refused(nonsense):
    """Whatever it is, and the loader stays where it was."""
    loader = load(buffer(4), 2)
    running = iter(loader)
    next(running)

    with pytest.raises(ResumeError, match="no state of a poolish Loader"):
        loader.load_state_dict(nonsense)
    assert ids(running) == [2, 3]


def test_states_that_are_nested_without_end_are_refused():
    """Their text would end Python's stack; so would the JSON that their checksum is taken of."""
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    source = buffer(4)
    loader = load(source, 2)

    for state in (deep, {**state_of(source), "version": deep}, {**state_of(source), "epoch": deep}):
        with pytest.raises(ResumeError):
            loader.load_state_dict(state)
    with pytest.raises(ResumeError, match="changed or cut"):
        loader.load_state_dict({**state_of(source), "epoch": {1, 2}})
    assert ids(loader) == [0, 1, 2, 3]


def test_a_buffer_that_went_back_in_time_is_refused(tmp_path):
    """An older save of the same buffer: rows that the state has dealt out are not there yet."""
    source = buffer(6)
    source.save(tmp_path / "older")
    extend(source, 6)
    source.save(tmp_path / "newer")
    state = state_of(source)

    with pytest.raises(ResumeError, match="back in time"):
        load(DatasetBuffer.load(tmp_path / "older"), 2).load_state_dict(state)
    newer = load(DatasetBuffer.load(tmp_path / "newer"), 2)
    newer.load_state_dict(state)
    assert ids(newer) == list(range(2, 12))


def test_a_shorter_list_is_refused():
    """Rows are missing that the epoch is made of."""
    with pytest.raises(ResumeError, match="back in time"):
        load(rows(7), 2).load_state_dict(state_of(rows(8)))


@pytest.mark.parametrize("view", ["shuffled", "mixture"])
def test_an_order_that_growth_has_changed_is_refused_or_kept(view):
    """These views make another order when what is below has grown: a state must not go on in it."""
    source = buffer(12)
    loader = load(VIEWS[view](source), 2)
    running = iter(loader)
    values = [batch["n"].tolist() for batch in islice(running, 2)]
    state = saved(loader)
    values += [batch["n"].tolist() for batch in running]
    extend(source, 12)

    resumed = load(VIEWS[view](source), 2)
    try:
        resumed.load_state_dict(state)
    except ResumeError:
        return
    assert [batch["n"].tolist() for batch in resumed] == values[2:]


def test_state_of_a_filtered_view_is_not_one_of_what_is_below():
    """They deal out the same ids, but not the same rows."""
    source = buffer(12)

    with pytest.raises(ResumeError):
        load(source, 2).load_state_dict(state_of(VIEWS["filtered"](source)))


def test_state_of_another_shuffle_is_refused():
    """The same rows under other numbers."""
    with pytest.raises(ResumeError):
        load(ShuffledDataset(rows(9), seed=2), 2).load_state_dict(state_of(ShuffledDataset(rows(9), seed=1)))


DAMAGES = ["missing", None, "x", -1, 10**9, [], {}, [[1]], "1,2", 1.5]


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("n_taken", [0, 1])
def test_damaged_states_are_refused_by_name(follow, n_taken):
    """No field can be missing or be something else: a ResumeError, and the loader stays where it was."""
    source = buffer(12)
    loader = load(source, 2, shuffle=True, follow=follow)
    list(islice(loader, n_taken))
    good = saved(loader)
    for name in good:
        for damage in DAMAGES:
            bad = copy.deepcopy(good)
            if damage == "missing":
                del bad[name]
            else:
                bad[name] = damage
            if bad.get(name, "missing") == good[name]:
                continue
            resumed = load(source, 2, shuffle=True, follow=follow)
            with pytest.raises(ResumeError):
                resumed.load_state_dict(bad)
            assert ids(resumed) == ids(load(source, 2, shuffle=True, follow=follow))


# Any world size ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_world_size_walks_the_same_order(n, shuffle, block_rows):
    """Primes, more ranks than rows, batches larger than everything: together they give the epoch, each row once."""
    source = buffer(n)
    alone = whole([load(source, 1, shuffle=shuffle)])
    assert sorted(alone) == list(range(n))

    for world_size, batch_size in [(1, 3), (2, 1), (2, 5), (3, 2), (5, 1), (7, 3), (11, 1)]:
        loaders = ranks(world_size, source, batch_size, shuffle=shuffle)
        steps = list(walked(loaders))
        assert [id_ for ids_ in steps for id_ in ids_] == alone
        assert len(steps) == -(-n // (world_size * batch_size))
        assert {loader.epoch for loader in loaders} == {1}


@settings(max_examples=times(30))
@given(st.data(), st.sampled_from([5, 1024]), st.integers(0, 40), st.booleans())
def test_state_of_any_rank_restores_any_number_of_ranks(data, size, n, shuffle):
    """Stopped again and again, each time with another world size and batch size: the order is that of one rank."""
    source = buffer(n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "BLOCK_ROWS", size)
        expected = whole([load(source, 1, shuffle=shuffle)])
        seen, state, is_over = [], None, False
        while not is_over:
            world_size, batch_size = data.draw(st.sampled_from([1, 2, 3, 5, 13])), data.draw(st.integers(1, 7))
            loaders = ranks(world_size, source, batch_size, shuffle=shuffle, state=state)
            for loader in loaders:
                loader.set_epoch(0)  # behind its last batch nothing is left of it
            steps = list(islice(walked(loaders), data.draw(st.integers(1, 4))))
            seen += [id_ for ids_ in steps for id_ in ids_]
            states = [saved(loader) for loader in loaders]
            assert all(one == states[0] for one in states)
            state, is_over = states[0], loaders[0].epoch == 1
    assert seen == expected


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("prefetch_factor", [1, 4])
@pytest.mark.parametrize("n", [0, 1, 3, 33])
def test_threads_read_the_same_batches(n, num_workers, prefetch_factor, block_rows):
    """More threads than rows, and more ahead than there is."""
    for source in (buffer(n), rows(n)):
        expected = [plain(batch) for batch in load(source, 3, shuffle=True)]
        loader = load(source, 3, shuffle=True, num_workers=num_workers, prefetch_factor=prefetch_factor)
        assert [plain(batch) for batch in loader] == expected


def test_real_blocks_of_many_parts_walk_the_same_order():
    """Several blocks of the real size, appended to in between, on two world sizes."""
    source = buffer(0)
    source.append_columns({"n": np.arange(3_000)})
    alone, loaders = load(source, 100, shuffle=True, follow=True), ranks(3, source, 50, shuffle=True, follow=True)
    seen: list[list[int]] = [[], []]
    for _ in range(10):
        for one, order_seen in zip(([alone], loaders), seen, strict=True):
            order_seen += [id_ for ids_ in islice(walked(one), 3 if one == [alone] else 2) for id_ in ids_]
        source.append_columns({"n": np.arange(500)})
    for one, order_seen in zip(([alone], loaders), seen, strict=True):
        order_seen += whole(one)

    assert seen[0] == seen[1]
    assert sorted(seen[0]) == list(range(8_000))
