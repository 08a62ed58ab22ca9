"""The audit tells the rows that each step really saw: across resumes, world sizes, epochs, and processes."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from poolish.errors import ConfigError
from poolish.guards import Faults
from poolish.load import FilteredDataset, order
from tests.effort import times
from tests.load.loaders import buffer, dealt, extend, load, ranks, rows, saved, step, stream, whole


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 8)


def told(loader, first, last):
    return {number: ids.tolist() for number, ids in loader.audit(first, last).steps.items()}


def walk(loaders, n_steps=10**6):
    """Steps to the end of the epoch or so many of them, by their numbers."""
    return {batches[0].step: dealt(batches) for batches in islice(iter(lambda: step(loaders), None), n_steps)}


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_audit_tells_what_was_yielded(world_size, shuffle):
    """Over several epochs, while rows are appended."""
    source = buffer(21)
    loaders = ranks(world_size, source, 2, shuffle=shuffle, follow=True)
    seen = {}
    for _ in range(3):
        seen |= walk(loaders, 2)
        extend(source, 5)
        seen |= walk(loaders)
    audit = loaders[0].audit(0, loaders[0].step - 1)

    assert {number: ids.tolist() for number, ids in audit.steps.items()} == seen
    assert audit.is_clean
    assert sorted(set(audit.epochs.values())) == [0, 1, 2]
    assert (
        repr(audit)
        == f"<Audit: {len(seen)} steps, {sum(map(len, seen.values()))} rows, 0 repeated, 0 skipped, 0 steps unknown>"
    )


def test_a_part_can_be_asked_for():
    """Both ends included."""
    loader = load(buffer(21), 2, shuffle=True)
    seen = walk([loader])

    assert told(loader, 3, 5) == {number: seen[number] for number in (3, 4, 5)}


@pytest.mark.parametrize("kind", ["every second", "a stretch"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_rows_that_are_missing_in_the_same_places_are_missing_in_the_audit(kind, world_size):
    """Blocks that saw the same are told apart from blocks that saw nothing missing."""
    liked = {"every second": lambda row: row["n"] % 2 == 0, "a stretch": lambda row: not 8 <= row["n"] < 32}[kind]
    loaders = ranks(world_size, FilteredDataset(buffer(48), liked), 3)
    seen = walk(loaders)

    assert told(loaders[0], 0, loaders[0].step - 1) == seen


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_was_not_yielded_is_not_told(num_workers):
    """In mid-epoch, whatever was decided or read ahead: the steps to come are gaps."""
    for n_done in (0, 1, 3):
        loader = load(buffer(30), 2, num_workers=num_workers)
        seen = walk([loader], n_done)
        audit = loader.audit(0, 9)
        assert {number: ids.tolist() for number, ids in audit.steps.items()} == seen
        assert audit.gaps == list(range(n_done, 10))
        loader.close()


def test_a_step_that_came_again_after_a_resume_is_told_as_it_came_last():
    """What was trained behind a checkpoint and forgotten with it does not count."""
    source = buffer(16)
    loader = load(source, 2, shuffle=True, follow=True)
    seen = walk([loader], 4)
    state = saved(loader)
    walk([loader], 3)
    extend(source, 10)
    loader.load_state_dict(state)
    seen |= walk([loader])
    audit = loader.audit(0, loader.step - 1)

    assert {number: ids.tolist() for number, ids in audit.steps.items()} == seen
    assert audit.is_clean
    assert sorted(id_ for ids in seen.values() for id_ in ids) == list(range(26))


def test_audit_after_the_process_is_gone(tmp_path):
    """A journal knows it all: a run of several world sizes, resumes and epochs, read by a loader that ran nothing."""
    for seed in range(times(6)):
        chance = random.Random(seed)
        store, journal = stream(11, tmp_path / f"stream-{seed}"), tmp_path / f"journal-{seed}"
        state, seen = None, {}
        for _ in range(8):
            loaders = ranks(
                chance.randint(1, 3),
                store,
                chance.randint(1, 4),
                shuffle=True,
                follow=True,
                journal=journal,
                state=state,
            )
            seen |= walk(loaders, chance.randint(0, 3))
            state = saved(chance.choice(loaders))
            if chance.random() < 0.3:  # trained, but never saved
                walk(loaders, 1)
            extend(store, chance.randint(0, 4))
        last = state["step"] - 1
        fresh = load(store, 1, shuffle=True, follow=True, journal=journal)
        audit = fresh.audit(0, last)

        assert {number: ids.tolist() for number, ids in audit.steps.items()} == seen, seed
        assert audit.is_clean


def test_rows_that_could_not_be_read_are_told_once():
    """Under the step at which they were due; a run that went on from before tells them as it found them last."""
    source = buffer(16)
    loader = load(source, 2)
    next(iter(loader))
    state = saved(loader)
    source.retain(0.5)  # 8 to 15; 2 to 7 were decided and are gone
    for _ in range(2):
        loader.load_state_dict(state)
        list(loader)
    audit = loader.audit(0, loader.step - 1)

    assert audit.skipped == {1: [2, 3], 2: [4, 5], 3: [6, 7]}
    assert not audit.is_clean
    assert not audit.duplicates


def test_rows_that_were_skipped_in_forgotten_steps_are_not_told():
    """A fault that is repaired before the run goes on from its checkpoint left no trace."""
    broken = {3}

    class Mended:
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i in broken:
                raise ValueError(f"row {i}")
            return {"n": i}

    loader = load(Mended(), 2, faults=Faults(on_sample="skip", budget=9))
    state = saved(loader)
    list(loader)
    assert loader.audit(0, 3).skipped == {1: [3]}
    broken.clear()
    loader.load_state_dict(state)
    list(loader)

    assert loader.audit(0, 3).skipped == {}


def test_steps_that_nobody_knows_are_gaps():
    """Before a resume in another process, without a journal; and behind the end."""
    source = buffer(12)
    first = load(source, 2)
    list(islice(first, 2))
    second = load(source, 2)
    second.load_state_dict(saved(first))
    seen = walk([second])
    audit = second.audit(0, 8)

    assert audit.gaps == [0, 1, 6, 7, 8]
    assert {number: ids.tolist() for number, ids in audit.steps.items()} == seen


def test_an_epoch_begun_again_is_audited_as_another_pass():
    """set_epoch back and forth: steps count on, and rows of two passes are no duplicates."""
    loaders = ranks(2, buffer(9), 2, shuffle=True)
    seen = walk(loaders)
    for loader in loaders:
        loader.set_epoch(0)
    seen |= walk(loaders)
    audit = loaders[0].audit(0, loaders[0].step - 1)

    assert {number: ids.tolist() for number, ids in audit.steps.items()} == seen
    assert not audit.duplicates


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_an_epoch_that_was_left_early_ends_where_the_next_began(world_size, journal, tmp_path):
    """Its other rows are neither skipped nor of a step, and those that come again in the next one are no duplicates."""
    source = stream(21, tmp_path / "stream") if journal else buffer(21)
    options = {"journal": tmp_path / "journal"} if journal else {}
    loaders = ranks(world_size, source, 2, shuffle=True, **options)
    seen, firsts = {}, []
    for n_steps in (2, 1, 100, 3):
        firsts.append(loaders[0].step)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(n_steps):
            if (batches := [next(iterator, None) for iterator in iterators])[0] is None:
                break
            seen[batches[0].step] = dealt(batches)
    audit = loaders[0].audit(0, loaders[0].step - 1)

    assert {number: ids.tolist() for number, ids in audit.steps.items()} == seen
    assert [audit.epochs[first] for first in firsts] == [0, 1, 2, 3]
    assert audit.is_clean


def test_ready_made_batches_tell_it_themselves():
    """There is no order of ours to audit."""
    loader = load(rows(4), 1, batches=[[0, 1], [2, 3]])
    with pytest.raises(ConfigError, match="batches"):
        loader.audit(0, 1)


def test_an_audit_of_nothing_is_empty():
    """No steps, no gaps; before anything was read all steps are gaps."""
    loader = load(buffer(4), 2)

    assert loader.audit(0, -1).is_clean
    assert loader.audit(0, 1).gaps == [0, 1]
    assert whole([loader]) == [0, 1, 2, 3]
