"""Epochs: each loop is one, its length is constant, and a restored one comes to its end before the next begins."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DataLoader, SequentialSampler

from poolish.load import Loader, RandomBatches, order
from tests.faults import children, ended
from tests.load.loaders import buffer, extend, ids, load, plain, ranks, rows, saved, step, stream, whole

pytestmark = pytest.mark.filterwarnings("ignore:.*DataLoader will create:UserWarning", "ignore:.*set_vital:UserWarning")

#: Everything that says how many batches an epoch has, of 11 rows.
KINDS = {
    "plain": {"batch_size": 2},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "one batch": {"batch_size": 20},
    "drop_last": {"batch_size": 2, "shuffle": True, "drop_last": True},
    "weights": {"batch_size": 4, "weights": np.arange(11)},
    "weights, drop_last": {"batch_size": 4, "weights": np.arange(11), "drop_last": True},
    "sampler": {"batch_size": 3, "sampler": SequentialSampler(range(7))},
    "batches": {"batches": RandomBatches(11, 2, seed=1)},
    "threads": {"batch_size": 2, "shuffle": True, "num_workers": 2},
}

every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, source=None, **options):
    return load(buffer(11) if source is None else source, **{"batch_size": 1, **KINDS[kind], **options})


def epochs_of(kind, n, source):
    """The batches of the first epochs, read one after the other."""
    loader = make(kind, source)
    return [[plain(batch) for batch in loader] for _ in range(n)]


# Lengths ----------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("world_size", [1, 3])
def test_length_is_the_same_at_every_batch(kind, world_size):
    """Before, inside and after the epochs; what remains counts down to 0 and begins again."""
    source = buffer(11)
    loaders = [make(kind, source, rank=rank, world_size=world_size) for rank in range(world_size)]
    n_batches = len(loaders[0])
    for _ in range(2):
        for n_left in range(n_batches, 0, -1):
            assert {(len(loader), loader.remaining) for loader in loaders} == {(n_batches, n_left)}
            assert step(loaders) is not None
        assert {(len(loader), loader.remaining) for loader in loaders} == {(n_batches, 0)}
        assert step(loaders) is None
    for loader in loaders:
        loader.close()


@every_kind
def test_a_loop_of_len_batches_is_an_epoch(kind):
    """As frameworks count them: none is left over, and the next loop is the next epoch."""
    source = buffer(11)
    expected, loader = epochs_of(kind, 3, source), make(kind, source)

    for epoch in range(3):
        iterator = iter(loader)
        assert [plain(next(iterator)) for _ in range(len(loader))] == expected[epoch]
        assert loader.remaining == 0
    loader.close()


def test_length_is_that_of_the_epoch_that_comes_next():
    """Rows that were appended meanwhile count from the next epoch on."""
    source = buffer(4)
    loader = load(source, 2)
    lengths = []
    for _ in range(3):
        lengths += [(len(loader), loader.remaining) for _ in loader]
        extend(source, 2)
        lengths.append((len(loader), loader.remaining))

    assert lengths == [(2, 1), (2, 0), (3, 3), (3, 2), (3, 1), (3, 0), (4, 4), (4, 3), (4, 2), (4, 1), (4, 0), (5, 5)]


@pytest.mark.parametrize("n", [0, 1])
def test_an_epoch_without_a_batch_is_an_empty_loop(n):
    """Nothing to read, or less than ``drop_last`` keeps: each loop is one such epoch."""
    source = buffer(n)
    loader = load(source, 2, drop_last=True)

    for epoch in range(2):
        assert (loader.epoch, len(loader), loader.remaining, list(loader)) == (epoch, 0, 0, [])
    extend(source, 2)
    assert (loader.epoch, len(loader), ids(loader)) == (2, 1, [0, 1])


@pytest.mark.parametrize("drop_last", [False, True])
def test_length_at_another_world_size_is_what_was_done_and_what_remains(drop_last, monkeypatch):
    """Resumed at every step on every number of ranks: as many batches come as remain, and the length stays."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 4)
    source = buffer(23)
    options = {"shuffle": True, "drop_last": drop_last}
    before = ranks(2, source, 2, **options)
    for n_done in range(len(before[0])):
        state, n_rows = saved(before[0]), 23 - 4 * n_done
        for world_size, batch_size in [(1, 1), (1, 4), (2, 2), (3, 1), (5, 7)]:
            resumed = ranks(world_size, source, batch_size, state=state, **options)
            size = world_size * batch_size
            n_left = n_rows // size if drop_last else -(-n_rows // size)
            if not n_left:  # the epoch is complete for so many ranks: what comes is the next one
                assert {(loader.epoch, len(loader)) for loader in resumed} == {(min(n_done, 1), 23 // size)}
                continue
            for n_more in range(n_left):
                assert {(len(loader), loader.remaining) for loader in resumed} == {(n_done + n_left, n_left - n_more)}
                assert step(resumed) is not None
            assert {(len(loader), loader.remaining) for loader in resumed} == {(n_done + n_left, 0)}
            assert step(resumed) is None
        step(before)


# Loops that are left early ------------------------------------------------------------------------------------------


@every_kind
def test_a_loop_that_is_left_at_any_batch_is_followed_by_the_next_epoch(kind):
    """A limit on the batches of an epoch: each loop begins a new one, and steps count what was delivered."""
    source = buffer(11)
    expected = epochs_of(kind, 3, source)
    for limit in range(1, len(expected[0]) + 1):
        loader = make(kind, source)
        for epoch in range(3):
            seen = [plain(batch) for batch in islice(loader, limit)]
            assert [(ids_, position) for ids_, position, _, _ in seen] == [
                (ids_, position) for ids_, position, _, _ in expected[epoch][:limit]
            ]
            assert [number for _, _, number, _ in seen] == list(range(epoch * limit, (epoch + 1) * limit))
        loader.close()


@every_kind
def test_a_sanity_check_of_two_batches_leaves_a_full_validation(kind):
    """Each validation has every row, however far the one before it went."""
    source = buffer(11)
    validation = make(kind, source)
    expected = len(validation)

    assert len(list(islice(validation, 2))) == min(2, expected)
    for _ in range(3):
        assert len(list(validation)) == expected
    validation.close()


def test_a_loop_that_takes_no_batch_begins_no_epoch():
    """Frameworks make iterators that they do not use."""
    loader = load(rows(4), 2)
    iter(loader), iter(loader)
    for _ in islice(loader, 0):
        pass

    assert (loader.epoch, ids(loader)) == (0, [0, 1, 2, 3])


def test_a_batch_that_failed_is_read_again_by_its_iterator():
    """Another loop is another epoch, unless the first batch of this one never came."""

    class Failing(list):
        failures = 0

        def __getitem__(self, i):
            if i in (0, 4) and self.failures:
                self.failures -= 1
                raise OSError("the disk is away")
            return super().__getitem__(i)

    source = Failing(range(6))
    loader = load(source, 2)
    source.failures = 1
    with pytest.raises(OSError, match="the disk is away"):
        list(loader)
    iterator = iter(loader)
    seen = ids(islice(iterator, 2))
    source.failures = 1
    with pytest.raises(OSError, match="the disk is away"):
        next(iterator)

    assert (loader.epoch, seen + ids(iterator)) == (0, list(range(6)))
    assert (ids(loader), loader.epoch) == (list(range(6)), 2)


def test_zip_and_enumerate_count_batches_and_epochs():
    """``zip(range(n), loader)`` takes n batches, ``zip(loader, range(n))`` one more; both leave the epoch."""
    loader = load(rows(8), 2)
    first = [(i, batch.ids.tolist()) for i, batch in enumerate(loader)]
    second = [batch.position for _, batch in zip(range(2), loader, strict=False)]
    place = (loader.epoch, loader.step)
    third = [batch.position for batch, _ in zip(loader, range(2), strict=False)]

    assert first == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5]), (3, [6, 7])]
    assert (second, place) == ([0, 2], (1, 6))
    assert (third, loader.epoch, loader.step) == ([0, 2], 2, 9)


def test_two_loaders_in_step_end_together():
    """A shorter one begins its next epoch while the longer one is left."""
    long, short = load(rows(6), 2), load(rows(4), 2)
    for _ in range(2):
        pairs = [(one.ids.tolist(), other.ids.tolist()) for one, other in zip(long, short, strict=False)]
        assert pairs == [([0, 1], [0, 1]), ([2, 3], [2, 3])]
    assert (long.epoch, short.epoch) == (1, 2)


def test_batches_in_flight_of_an_epoch_that_was_left_do_not_hold_the_state():
    """They may still be marked; the state is that of the next epoch, whose own batches in flight it waits for."""
    loader = load(rows(6), 2, acknowledge="explicit")
    first = next(iter(loader))
    second = next(iter(loader))
    epochs = [saved(loader)["epoch"]]
    for batch in (first, second):
        loader.mark_trained(batch)
        epochs.append(saved(loader)["epoch"])

    assert (second.ids.tolist(), second.step) == ([0, 1], 1)
    assert epochs == [1, 1, 1]
    assert saved(loader)["position"] == 2


def test_where_growth_is_followed_a_loop_continues_whatever_was_taken():
    """Its epoch ends when no row is left, so each row comes once over all loops."""
    source = stream(5)
    loader = load(source, 2, follow=True)
    seen = ids(islice(loader, 2))
    extend(source, 3)
    for epoch in (0, 0):
        loader.set_epoch(epoch)  # of the epoch it is in: nothing changes
        seen += ids(islice(loader, 1))

    assert (seen, loader.epoch) == (list(range(8)), 0)
    assert (ids(loader), loader.epoch) == ([], 1)


# set_epoch ----------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("limit", [1, 2, None])
def test_set_epoch_before_each_loop_changes_nothing(kind, limit):
    """As torch's DistributedSampler wants it, also where loops are left early."""
    source = buffer(11)
    loader, named = make(kind, source), make(kind, source)

    for epoch in range(3):
        expected = [plain(batch) for batch in islice(loader, limit)]
        named.set_epoch(epoch)
        assert [plain(batch) for batch in islice(named, limit)] == expected
    loader.close()
    named.close()


@every_kind
@pytest.mark.parametrize("names_epoch", [False, True])
def test_a_run_of_several_epochs_resumes_at_every_step(kind, names_epoch):
    """From every state the rest of its epoch comes, then the others."""
    source = buffer(11)
    expected, loader = epochs_of(kind, 3, source), make(kind, source)
    states = []
    for epoch in range(3):
        iterator = iter(loader)
        for n_done in range(1, len(expected[0]) + 1):
            next(iterator)
            states.append((epoch, n_done, saved(loader)))
    loader.close()

    for epoch, n_done, state in states:
        resumed = make(kind, source)
        resumed.load_state_dict(state)
        rest = [expected[epoch][n_done:], *expected[epoch + 1 :]]
        assert (resumed.epoch, resumed.remaining) == (epoch, len(rest[0])) if rest[0] else (epoch + 1, len(expected[0]))
        if not rest[0] and not names_epoch:
            del rest[0]  # a complete epoch is an empty loop only if it is named
        for number, batches in enumerate(rest, 3 - len(rest)):
            if names_epoch:
                resumed.set_epoch(number)
            assert [plain(batch) for batch in resumed] == batches, (epoch, n_done, number)
        resumed.close()


@pytest.mark.parametrize("limit", [1, 3])
def test_a_resumed_run_with_a_limit_takes_what_was_left_of_its_loop(limit):
    """The restored loop counts on from the state, the following ones from 0."""
    source = buffer(11)
    loader = load(source, 2, shuffle=True)
    expected = [[plain(batch) for batch in islice(loader, limit)] for _ in range(3)]
    first = load(source, 2, shuffle=True)
    next(iter(first))
    resumed = load(source, 2, shuffle=True)
    resumed.load_state_dict(saved(first))
    n_done = len(resumed) - resumed.remaining

    rest = []
    for epoch in range(3):
        resumed.set_epoch(epoch)
        rest.append([plain(batch) for batch in islice(resumed, limit - n_done if epoch == 0 else limit)])

    assert n_done == 1
    assert rest == [expected[0][1:], *expected[1:]]


def test_set_epoch_of_a_restored_epoch_holds_for_one_loop():
    """Asked for again, the epoch begins again."""
    loader = load(rows(6), 2)
    next(iter(loader))
    loader.load_state_dict(saved(loader))
    loader.set_epoch(0)
    loader.set_epoch(0)

    assert ids(loader) == [2, 3, 4, 5]
    loader.set_epoch(0)
    assert ids(loader) == list(range(6))


def test_set_epoch_of_another_epoch_leaves_a_restored_one():
    """Also when the restored one is asked for afterwards, and before anything was read: it begins at its beginning."""
    source = rows(6)
    loader = load(source, 2)
    next(iter(loader))
    state = saved(loader)
    for epochs, expected in [((3,), 3), ((3, 0), 0)]:
        resumed = load(source, 2)
        resumed.load_state_dict(state)
        for epoch in epochs:
            resumed.set_epoch(epoch)
        iterator = iter(resumed)

        assert (resumed.epoch, len(resumed), ids(iterator)) == (expected, 3, list(range(6)))


def test_a_state_that_is_loaded_after_set_epoch_counts():
    """It is the later word."""
    loader = load(rows(6), 2)
    next(iter(loader))
    state = saved(loader)
    loader.set_epoch(7)
    loader.load_state_dict(state)

    assert (loader.epoch, ids(loader), loader.epoch) == (0, [2, 3, 4, 5], 1)


def test_ranks_begin_the_next_epoch_together_when_they_leave_it_at_the_same_step():
    """Each row once over the ranks of the new epoch."""
    source = buffer(10)
    loaders = ranks(2, source, 2, shuffle=True)
    for loader in loaders:
        next(iter(loader))
    extend(source, 3)

    assert sorted(whole(loaders)) == list(range(13))
    assert {loader.epoch for loader in loaders} == {2}


@pytest.mark.parametrize("uneven", ["stop", "repeat", "empty"])
def test_ranks_with_rows_of_their_own_come_to_the_end_of_a_restored_epoch_together(uneven, tmp_path):
    """Also where one has read all of its rows and the other has not: the epoch ends where it ends for both."""
    sources = [buffer(4), buffer(11)]

    def walk(rank):
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=rank, world_size=2)
        whole = load(sources[rank], 3, shared="own", uneven=uneven)
        states, batches = [], []
        for batch in whole:
            batches.append(batch.ids.tolist())
            states.append(saved(whole))
        following, found = [batch.ids.tolist() for batch in whole], []
        for state in states:
            resumed = load(sources[rank], 3, shared="own", uneven=uneven)
            resumed.load_state_dict(state)
            found.append([batch.ids.tolist() for batch in resumed])
        expected = [*(batches[n_done:] for n_done in range(1, len(batches))), following]
        (tmp_path / f"rank-{rank}").write_text(json.dumps([len(batches), found == expected]))
        dist.barrier()
        dist.destroy_process_group()

    with children(lambda: walk(0), lambda: walk(1)) as pids:
        assert [ended(pid) for pid in pids] == [0, 0]
        pids.clear()

    n_steps = 2 if uneven == "stop" else 4
    assert [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)] == [[n_steps, True]] * 2


# Worker processes of torch ------------------------------------------------------------------------------------------


def numbers(batches):
    return [batch["n"].tolist() for batch in batches]


def torch_loader(source, **options):
    return Loader(source, 2, shuffle=True, seed=3, **options)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_persistent_workers_begin_the_next_epoch_with_each_loop(num_workers):
    """Also behind a loop that was left early, although the workers have read on."""
    source = rows(13)
    alone = torch_loader(source)
    expected = [numbers(alone) for _ in range(3)]
    inside = DataLoader(torch_loader(source), batch_size=None, num_workers=num_workers, persistent_workers=True)

    assert numbers(islice(inside, 3)) == expected[0][:3]
    assert [numbers(inside), numbers(inside)] == expected[1:]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_that_end_with_the_loop_read_the_epoch_that_is_set(num_workers):
    """The loader of this process does not move, so it says which epoch is read; without, it is the same again."""
    source = rows(13)
    alone, inner = torch_loader(source), torch_loader(source)
    expected = [numbers(alone) for _ in range(2)]
    outer = DataLoader(inner, batch_size=None, num_workers=num_workers)

    assert [numbers(outer), numbers(islice(outer, 2))] == [expected[0], expected[0][:2]]
    for epoch in (0, 1):
        inner.set_epoch(epoch)
        assert numbers(outer) == expected[epoch]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_continue_a_restored_epoch(num_workers, persistent):
    """The state of the loader that they copy: the rest of its epoch, or the next one where nothing is left."""
    if persistent and not num_workers:
        return
    source = rows(13)
    alone = torch_loader(source)
    expected = [numbers(alone) for _ in range(3)]
    stopped = torch_loader(source)
    iterator = iter(stopped)
    for n_done in range(1, len(expected[0]) + 1):
        next(iterator)
        inner = torch_loader(source)
        inner.load_state_dict(stopped.state_dict())
        if n_done not in (1, 4, len(expected[0])):
            continue
        outer = DataLoader(inner, batch_size=None, num_workers=num_workers, persistent_workers=persistent)
        runs = [expected[0][n_done:], *expected[1:]] if n_done < len(expected[0]) else expected[1:]
        assert numbers(outer) == runs[0]
        if persistent or not num_workers:
            assert numbers(outer) == runs[1]
