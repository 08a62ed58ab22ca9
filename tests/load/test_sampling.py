"""Weights, samplers and curricula: an epoch of other rows than all of them once, and exact all the same."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from poolish.errors import ConfigError, ResumeError
from poolish.load import FilteredDataset, Loader, TransformedDataset, verify_resume
from tests.load.loaders import buffer, extend, ids, load, rows, saved

# Weights ----------------------------------------------------------------------------------------------------------


def drawn(loader):
    return [batch.ids.tolist() for batch in loader]


@pytest.mark.parametrize("source", [buffer, rows])
def test_rows_come_as_often_as_their_weights_say(source):
    """As many draws as rows, with replacement; a row of weight 0 never comes."""
    loader = load(source(1_000), 100, weights=np.arange(1_000) % 4, seed=3)
    counts = Counter(id_ % 4 for _ in range(20) for id_ in ids(loader))

    assert len(loader) == 10
    assert sum(counts.values()) == 20_000
    assert counts[0] == 0
    for rest in (1, 2, 3):
        assert abs(counts[rest] / 20_000 - rest / 6) < 0.02


def test_epochs_and_seeds_draw_differently_and_repeatably():
    """The draw is decided by seed and epoch, whatever the batch size and the number of threads."""
    loader = load(buffer(50), 10, weights=np.ones(50), seed=1)
    first, second = drawn(loader), drawn(loader)
    flat = [id_ for batch in first for id_ in batch]

    assert first != second
    assert drawn(loader.like()) == first
    assert drawn(loader.like(seed=2)) != first
    assert ids(loader.like(batch_size=7, num_workers=2)) == flat


class Row(NamedTuple):
    n: int
    importance: float


def test_a_column_holds_the_weights():
    """Of a buffer, of samples that are dicts, of structures."""
    samples = [{"n": i, "importance": float(i >= 8)} for i in range(10)]
    source = buffer(0)
    source.append(samples)
    for dataset in (source, samples, [Row(**sample) for sample in samples]):
        assert set(ids(load(dataset, 2, weights="importance"))) == {8, 9}
    with pytest.raises(ConfigError, match="there is no such column"):
        next(iter(load(source, 2, weights="nothing")))
    with pytest.raises(ConfigError, match="no such column"):
        next(iter(load(samples, 2, weights="nothing")))


def test_a_function_gives_the_weights_of_each_epoch():
    """A curriculum: it may ask for rows, epoch and progress, and is asked once an epoch."""
    asked = []

    def hard_ones(rows, epoch, progress):
        asked.append((len(rows), epoch, progress))
        return np.arange(len(rows)) >= progress * 8

    loader = load(rows(10), 5, weights=hard_ones, epochs=3)
    least = [min(ids(loader)) for _ in range(3)]

    assert asked == [(10, 0, 0.0), (10, 1, 0.5), (10, 2, 1.0)]
    assert least[1] >= 4
    assert least[2] >= 8


def test_a_grown_buffer_is_drawn_from_in_the_next_epoch():
    """Row numbers mean the rows that there are when the epoch begins."""
    source = buffer(4)
    loader = load(source, 2, weights=lambda rows: np.ones(len(rows)))
    n_rows = [len(ids(loader))]
    extend(source, 6)
    n_rows.append(len(ids(loader)))

    assert n_rows == [4, 10]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1, 2], r"one for each of 4 rows"),
        ([1, -1, 1, 1], r"row 1 has -1"),
        ([1, 1, float("nan"), 1], r"row 2 has nan"),
        ([0, 0, 0, 0], r"all 4 are 0"),
        (lambda rows: "abc", r"numbers, one for each row"),
    ],
)
def test_wrong_weights_are_refused(weights, said):
    """With the row and what is wrong."""
    with pytest.raises(ConfigError, match=said):
        next(iter(load(buffer(4), 2, weights=weights)))


def test_what_contradicts_is_refused():
    """When the loader is made."""
    source = buffer(4)
    for options in (
        {"weights": [1] * 4, "shuffle": True},
        {"weights": [1] * 4, "sampler": range(4)},
        {"weights": [1] * 4, "follow": True},
        {"sampler": range(4), "follow": True},
        {"sampler": range(4), "batches": [[0]], "batch_size": 1},
        {"weights": lambda progress: [1] * 4},
        {"weights": lambda other: [1] * 4},
        {"epochs": 3},
        {"sampler": 3},
        {"sampler": iter([1, 2])},
        {"sampler": DistributedSampler(range(4), num_replicas=2, rank=0)},
    ):
        with pytest.raises(ConfigError):
            Loader(source, **{"batch_size": 2, **options})


# Samplers ---------------------------------------------------------------------------------------------------------

SAMPLERS = {
    "list": lambda: [3, 1, 4, 1, 5, 9, 2, 6],
    "sequential": lambda: SequentialSampler(range(12)),
    "random": lambda: RandomSampler(range(12)),
    "random with generator": lambda: RandomSampler(range(12), generator=torch.Generator().manual_seed(5)),
    "subset": lambda: SubsetRandomSampler([1, 3, 5, 7]),
    "weighted": lambda: WeightedRandomSampler(torch.arange(12.0), 20),
    "distributed": lambda: DistributedSampler(range(12), num_replicas=1, rank=0),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_decides_the_rows(name):
    """In its order; each epoch of a random one is another, and the same each time."""
    loader = load(rows(12), 5, sampler=SAMPLERS[name](), seed=2)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, second = drawn(loader), drawn(loader)

    assert torch.equal(torch.random.get_rng_state(), before)
    assert (first == second) is (name in ("list", "sequential"))
    assert drawn(load(rows(12), 5, sampler=SAMPLERS[name](), seed=2)) == first
    assert [len(batch) for batch in first][:-1] == [5] * (len(first) - 1)
    if name == "list":
        assert first == [[3, 1, 4, 1, 5], [9, 2, 6]]


def test_a_sampler_of_batches_is_refused():
    """Those are for ``batches=``."""
    with pytest.raises(ConfigError, match="batches="):
        next(iter(load(rows(4), 2, sampler=[[0, 1], [2, 3]])))
    with pytest.raises(IndexError, match="row 7, the dataset has 4 rows"):
        next(iter(load(rows(4), 2, sampler=[7])))


# Exactness ---------------------------------------------------------------------------------------------------------

KINDS = {
    "weights": lambda: {"weights": np.arange(24)},
    "function": lambda: {"weights": lambda rows, epoch: np.arange(len(rows)) + epoch},
    "column": lambda: {"weights": "n"},
    **{name: (lambda make=make: {"sampler": make()}) for name, make in SAMPLERS.items()},
    "batches": lambda: {"batches": [[1, 2], [3], [4, 5, 6]], "batch_size": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_proven(kind):
    """At every batch, with threads, on other world sizes, in the first epoch and in a later one."""
    loader = load(buffer(24), **{"batch_size": 4, **KINDS[kind]()})
    for _ in range(2):
        report = verify_resume(loader)
        assert report.ok, report
        assert "world_size 1, 2, 3" in str(report)
        list(loader)


def test_a_state_moves_between_world_sizes():
    """Ranks take whole batches in turn, so what is left is left for any number of them."""
    source = buffer(30)
    options = {"weights": np.arange(30), "seed": 4}
    expected = drawn(load(source, 3, **options))
    two = [load(source, 3, rank=rank, world_size=2, **options) for rank in range(2)]
    begun = [next(iter(loader)).ids.tolist() for loader in two]
    three = [load(source, 3, rank=rank, world_size=3, **options) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(saved(two[0]))
    rest = [batch for step in zip(*map(drawn, three), strict=True) for batch in step if batch]

    assert begun + rest == expected


def test_drop_last_leaves_full_batches_on_all_ranks():
    """Each rank has as many, each of the batch size."""
    ranks = [load(buffer(23), 3, weights=np.ones(23), rank=r, world_size=2, drop_last=True) for r in range(2)]

    assert [[len(batch) for batch in drawn(loader)] for loader in ranks] == [[3, 3, 3]] * 2


def test_weights_that_are_others_are_refused_on_resume():
    """A state knows what was drawn: another draw is an error, and changes nothing."""
    importance = np.ones(20)
    loader = load(buffer(20), 4, weights=lambda rows: importance)
    iterator = iter(loader)
    next(iterator)
    state = saved(loader)
    importance[:10] = 0
    assert len(list(iterator)) == 4  # the epoch goes on as it was drawn
    resumed = load(loader.dataset, 4, weights=lambda rows: importance)
    with pytest.raises(ResumeError, match="draw other rows for epoch 0"):
        resumed.load_state_dict(state)
    assert resumed.step == 0
    importance[:10] = 1
    resumed.load_state_dict(state)
    assert len(drawn(resumed)) == 4
    for size, other in ((5, {"weights": np.ones(20)}), (4, {"sampler": range(20)}), (4, {})):
        with pytest.raises(ResumeError):
            load(loader.dataset, size, **other).load_state_dict(state)


def test_a_refused_state_leaves_the_epoch_as_it_was_drawn():
    """Also where the weights have changed since it began."""
    importance = np.ones(20)
    loader = load(buffer(20), 4, weights=lambda rows: importance)
    expected = drawn(loader.like())
    iterator = iter(loader)
    next(iterator)
    state = saved(loader)
    importance[:10] = 0
    with pytest.raises(ResumeError):
        loader.load_state_dict(state)

    assert drawn(iterator) == expected[1:]


def test_a_sampler_that_cannot_be_repeated_is_refused_on_resume():
    """It says what would make it repeatable."""
    rng = np.random.default_rng(0)

    class Chance:
        def __iter__(self):
            return iter(rng.permutation(20).tolist())

    loader = load(buffer(20), 4, sampler=Chance())
    next(iter(loader))
    with pytest.raises(ResumeError, match=r"set_epoch\(epoch\)"):
        load(loader.dataset, 4, sampler=Chance()).load_state_dict(saved(loader))
    assert not verify_resume(loader).ok


# Curricula ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [buffer, rows])
def test_a_filter_may_ask_for_progress(source):
    """Each epoch has rows of its own: the easy ones first, all of them in the end."""
    easy = FilteredDataset(source(12), lambda sample, progress: sample["n"] < 4 + 8 * progress, epochs=3)
    loader = load(easy, 4, shuffle=True)
    seen = [sorted(n for batch in loader for n in batch["n"].tolist()) for _ in range(4)]

    assert seen == [list(range(4)), list(range(8)), list(range(12)), list(range(12))]
    loader.set_epoch(1)
    assert len(loader) == 2
    report = verify_resume(loader)
    assert report.ok, report


def test_a_filter_with_progress_follows_a_growing_buffer():
    """Rows that join are judged by the progress of the epoch that they join."""
    source = buffer(6)
    loader = load(FilteredDataset(source, lambda s, progress: s["n"] % 2 <= progress, epochs=2), 2, follow=True)
    first = ids(loader)
    iterator = iter(loader)
    next(iterator)
    extend(source, 4)
    second = [id_ for batch in iterator for id_ in batch.ids.tolist()]

    assert first == [0, 2, 4]
    assert second == list(range(2, 10))


def test_a_filter_that_asks_for_progress_needs_epochs():
    """And its index is that of one progress."""
    with pytest.raises(ConfigError, match="epochs="):
        FilteredDataset(rows(4), lambda sample, progress: True)
    view = FilteredDataset(rows(4), lambda sample, progress: progress > 0, epochs=2)
    assert (len(view), view.n_scanned) == (0, 4)
    state, version = view.state_dict(), view.version
    view.set_epoch(1)
    assert (len(view), view.version != version) == (4, True)
    with pytest.raises(ResumeError, match="progress"):
        view.load_state_dict(state)


def test_transforms_above_and_below_share_the_epoch():
    """The loader announces it to all of them."""
    below = TransformedDataset(rows(8), lambda sample, progress: {**sample, "stage": progress}, epochs=2)
    view = FilteredDataset(below, lambda sample, progress: sample["stage"] == progress, epochs=2)
    loader = load(view, 8)

    assert [next(iter(loader.like()))["stage"].tolist()[0], len(ids(loader)), len(ids(loader))] == [0.0, 8, 8]
