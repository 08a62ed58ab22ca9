"""A dataset's own state travels with the loader's: what comes after a resume is what would have come."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

from poolish import DatasetBuffer, verify_resume
from poolish.errors import ConfigError, ResumeError
from poolish.load import CachedDataset, CompositeDataset, FilteredDataset, SubsettedDataset, TransformedDataset
from tests.load.loaders import buffer, load, plain, rows, saved


class Drawing:
    """Rows that differ each time they are read, by a state that can be saved."""

    def __init__(self, n=9, *, fails_at=None):
        self.rng, self._n, self.fails_at, self.epoch = np.random.default_rng(3), n, fails_at, None
        self.error = RuntimeError

    def __len__(self):
        return self._n

    def __getitem__(self, index):
        drawn = float(self.rng.random())
        if index == self.fails_at:
            self.fails_at = None
            raise self.error("the disk is gone")
        return {"n": index, "drawn": drawn}

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.rng.random(7)

    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


def _same(sample):
    return sample


VIEWS = {
    "itself": lambda base: base,
    "transformed": lambda base: TransformedDataset(base, _same),
    "subset": lambda base: SubsettedDataset(base, range(len(base) - 1, 0, -1)),
    "filtered": lambda base: FilteredDataset(base, lambda sample: sample["n"] % 4),
    "composite": lambda base: CompositeDataset([rows_with_draws(3), base, TransformedDataset(Drawing(4), _same)]),
}


class Wrapped:
    """A user's wrapper that knows nothing of states."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


class Chained:
    """The same, of several datasets of one length."""

    def __init__(self, datasets):
        self.datasets = datasets

    def __len__(self):
        return len(self.datasets[0])

    def __getitem__(self, index):
        return {"n": index, "drawn": [dataset[index]["drawn"] for dataset in self.datasets]}


VIEWS |= {
    "torch subset": lambda base: torch_data.Subset(base, range(len(base) - 1, 0, -1)),
    "torch split": lambda base: torch_data.random_split(base, [5, 4], torch.Generator().manual_seed(1))[1],
    "torch concatenation": lambda base: torch_data.ConcatDataset([rows_with_draws(3), base, Drawing(4)]),
    "torch stack": lambda base: TransformedDataset(torch_data.StackDataset(a=base, b=Drawing(9)), _unstacked),
    "torch stack of tuples": lambda base: TransformedDataset(torch_data.StackDataset(base, Drawing(9)), _unstacked),
    "wrapper": Wrapped,
    "wrapper of several": lambda base: Chained((base, Drawing(9))),
    "deep": lambda base: TransformedDataset(
        torch_data.Subset(Wrapped(TransformedDataset(base, _same)), range(7)), _same
    ),
}


def _unstacked(sample):
    first, second = sample.values() if isinstance(sample, dict) else sample
    return {**first, "other": second["drawn"]}


def rows_with_draws(n):
    return [{"n": 100 + i, "drawn": 0.0} for i in range(n)]


@pytest.mark.parametrize("acknowledge", ["on_yield", "explicit"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_resume_at_every_batch_restores_the_dataset(view, acknowledge):
    """Over two epochs, below any view and in the parts of a composite; explicit states are those of the frontier."""
    loader = load(VIEWS[view](Drawing()), 2, shuffle=True, acknowledge=acknowledge)
    states, batches = [saved(loader)], []
    for _ in range(2):
        for batch in loader:
            batches.append(plain(batch))
            if acknowledge == "explicit":
                loader.mark_trained()
            states.append(saved(loader))

    for n_done, state in enumerate(states):
        resumed = load(VIEWS[view](Drawing()), 2, shuffle=True)
        resumed.load_state_dict(state)
        rest = [plain(batch) for _ in range(3 - resumed.epoch) for batch in resumed]
        assert rest[: len(batches) - n_done] == batches[n_done:]


def test_the_state_is_that_of_the_oldest_batch_in_flight():
    """Batches that were read and not acknowledged come again with the same values."""
    loader = load(Drawing(), 2, acknowledge="explicit")
    iterator = iter(loader)
    batches = [plain(next(iterator)) for _ in range(3)]
    loader.mark_trained()
    resumed = load(Drawing(), 2)
    resumed.load_state_dict(saved(loader))

    assert [plain(batch) for batch in resumed][:2] == batches[1:]


def test_a_batch_that_failed_is_read_again_from_the_same_state():
    """What the failed attempt drew is put back."""
    expected = [plain(batch) for batch in load(Drawing(), 2)]
    iterator = iter(load(Drawing(fails_at=5), 2))
    got = [plain(next(iterator)) for _ in range(2)]
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(iterator)

    assert got + [plain(batch) for batch in iterator] == expected


def _begun_plainly(loader):
    return loader


def _asked_for_its_length(loader):
    len(loader)
    return loader


def _in_its_second_epoch(loader):
    list(loader)
    return loader


def _with_another_epoch(loader):
    loader.set_epoch(2)
    return loader


def _asked_and_with_another_epoch(loader):
    len(loader)
    return _with_another_epoch(loader)


def _after_a_refused_state(loader):
    with pytest.raises(ResumeError):
        loader.load_state_dict(saved(load(Drawing(12), 2)))
    return loader


BEGINNINGS = [
    _begun_plainly,
    _asked_for_its_length,
    _in_its_second_epoch,
    _with_another_epoch,
    _asked_and_with_another_epoch,
    _after_a_refused_state,
]


@pytest.mark.parametrize("begin", BEGINNINGS, ids=lambda begin: begin.__name__[1:])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("view", VIEWS)
def test_a_first_batch_that_failed_is_read_again_from_the_same_state(view, error, begin):
    """However the epoch was begun, and whatever came: rows, values and states are those of a run without it."""
    plainly = _with_another_epoch if "another" in begin.__name__ else begin
    expected = plainly(load(VIEWS[view](Drawing()), 2))
    dataset = Drawing()
    loader = begin(load(VIEWS[view](dataset), 2))
    expected_state = saved(expected)
    dataset.fails_at, dataset.error = 1, error

    iterator = iter(loader)
    got = []
    while dataset.fails_at is not None:
        try:
            got.append(plain(next(iterator)))
        except error:
            assert got or saved(loader) == expected_state
    got += [plain(batch) for batch in iterator]

    assert got == [plain(batch) for batch in expected]


def test_an_epoch_set_after_a_failed_batch_begins_where_the_last_delivered_one_ended():
    """What the failed batch drew is put back, also when another epoch comes instead of it."""
    expected, loader = load(Drawing(), 2), load(Drawing(fails_at=3), 2)
    next(iter(expected))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(iterator)

    for each in (expected, loader):
        each.set_epoch(4)
    assert saved(loader) == saved(expected)
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in expected]


def test_a_dataset_state_and_a_loader_that_do_not_match_are_refused():
    """A part that is not wanted, one that is missing, another rank's, and a dataset that cannot be restored."""
    plain_state, drawing_state = saved(load(rows(9))), saved(load(Drawing()))

    with pytest.raises(ResumeError, match="the state holds a part for a dataset with load_state_dict, list has none"):
        load(rows(9)).load_state_dict(drawing_state)
    with pytest.raises(ResumeError, match="Drawing has a state of its own, which this loader state does not hold"):
        load(Drawing()).load_state_dict(plain_state)
    with pytest.raises(ResumeError, match="the state is of rank 0 of 1, this is rank 1 of 2"):
        load(Drawing(), rank=1, world_size=2).load_state_dict(drawing_state)

    class Saved(list):
        def state_dict(self):
            return {}

    with pytest.raises(ConfigError, match="Saved has state_dict and no load_state_dict"):
        load(Saved(rows(3)))


def test_threads_do_not_read_ahead_of_a_dataset_state():
    """Its state would be that of rows that were not delivered."""
    with pytest.raises(ConfigError, match="num_workers=2 on Drawing, which has a state_dict"):
        load(Drawing(), num_workers=2)
    with pytest.raises(ConfigError, match="num_workers=2 on Subset, which has a state_dict, or looks at one that has"):
        load(torch_data.Subset(Drawing(), [1, 2]), num_workers=2)


@pytest.mark.parametrize(
    "state", [{1: 2}, (1, 2), {"a": {1, 2}}, float("nan"), np.int64(3), random.Random(0).getstate()]
)
def test_a_dataset_state_is_exactly_json(state):
    """What JSON would change, or cannot hold, is refused where it is saved."""
    dataset = Drawing()
    dataset.state_dict = lambda: state

    with pytest.raises(ConfigError, match=r"Drawing\.state_dict\(\): (not JSON|JSON changes it)"):
        load(dataset).state_dict()


def test_a_refused_state_changes_neither_the_loader_nor_its_dataset():
    """It is checked first; what had to be changed to check it is put back."""
    dataset = Drawing()
    loader = load(dataset, 2)
    next(iter(loader))
    before, epoch = saved(loader), dataset.epoch
    wrong = load(Drawing(12), 2)
    wrong.set_epoch(3)
    next(iter(wrong))

    with pytest.raises(ResumeError, match="went back in time"):
        loader.load_state_dict(saved(wrong))
    assert dataset.state_dict() == before["dataset"]
    for state in (saved(load(Drawing(), 2, seed=5)), {**saved(wrong), "check": ""}, {"epoch": 7}, None):
        with pytest.raises(ResumeError):
            loader.load_state_dict(state)
        assert (saved(loader), dataset.epoch) == (before, epoch)


def test_an_attribute_that_is_no_dataset_has_no_state():
    """A name, a table or nothing may be called dataset as well."""
    for value in ("imagenet", None, [1, 2], {"a": 1}, np.arange(3)):
        for name in ("dataset", "datasets"):
            named = type("Named", (list,), {name: value})
            assert "dataset" not in saved(load(named(rows(3))))


def test_a_wrapper_with_a_state_is_asked_itself():
    """Not what it looks at: it knows what belongs to it."""

    class Knowing(Wrapped):
        def state_dict(self):
            return {"inner": self.dataset.state_dict(), "mine": 7}

        def load_state_dict(self, state):
            self.dataset.load_state_dict(state["inner"])

    assert saved(load(Knowing(Drawing())))["dataset"]["mine"] == 7


def test_caches_and_buffers_have_no_state_of_their_own():
    """What poolish's own datasets hold follows from the rows: the state stays small."""
    for dataset in (
        buffer(9),
        FilteredDataset(buffer(9), bool),
        CachedDataset(buffer(9), max_items=3),
        DatasetBuffer(),
    ):
        assert "dataset" not in saved(load(dataset))


def test_verify_resume_checks_a_dataset_with_a_state_and_leaves_it_alone():
    """On copies of it."""
    loader = load(Drawing(), 2, shuffle=True)
    next(iter(loader))
    before = saved(loader)

    report = verify_resume(loader)

    assert report.ok, report
    assert saved(loader) == before == {**before, "dataset": loader.dataset.state_dict()}
