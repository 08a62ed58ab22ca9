"""verify_resume: says yes to what resumes, and says what is wrong with what does not."""

from __future__ import annotations

import itertools
import threading
from itertools import islice

import numpy as np
import pytest

from poolish.load import RandomBatches, TransformedDataset, order, verify_resume
from tests.load.loaders import BASES, VIEWS, buffer, extend, ids, load, ranks, rows, saved, stream, whole


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 8)


@pytest.mark.parametrize("base", list(BASES))
@pytest.mark.parametrize("view", ["itself", *VIEWS])
def test_good_configurations_pass(base, view):
    """Every view of every source."""
    source = BASES[base](9)
    report = verify_resume(load(source if view == "itself" else VIEWS[view](source), 2, shuffle=True))

    assert report.ok, str(report)
    assert report
    assert "resumes exactly" in str(report)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"drop_last": True},
        {"acknowledge": "explicit"},
        {"rank": 1, "world_size": 2},
        {"output": "torch"},
        {"output": "arrow"},
        {"follow": True},
        {"follow": True, "rank": 0, "world_size": 3},
        {"batches": RandomBatches(13, 3), "batch_size": 1, "shuffle": False},
    ],
    ids=str,
)
def test_good_settings_pass(options):
    """At the beginning, in the middle of an epoch, behind its last batch, at its end, and in a later epoch."""
    loader = load(buffer(13), **{"batch_size": 2, "shuffle": True, **options})
    n_batches = len(list(loader.like()))
    batches = iter(loader)
    for n_taken in (0, 1, n_batches - 1, 1):
        list(islice(batches, n_taken))
        report = verify_resume(loader)
        assert report.ok, f"at step {loader.step}: {report}"
    assert (loader.epoch, loader.step) == (1, n_batches)
    next(iter(loader))
    report = verify_resume(loader)
    assert report.ok, f"at step {loader.step}: {report}"
    loader.close()


def test_a_loader_is_not_moved_by_being_checked():
    """Neither its place nor what it and its sisters will decide: rows that come afterwards join."""
    for world_size in (1, 2):
        source = buffer(6)
        loaders = ranks(world_size, source, 2, follow=True)
        seen = [id_ for loader in loaders for id_ in ids(islice(loader, 1))]
        state = saved(loaders[0])
        assert verify_resume(loaders[0]).ok
        assert saved(loaders[0]) == state
        extend(source, 5)
        assert sorted(seen + whole(loaders)) == list(range(11)), world_size


@pytest.mark.parametrize("journal", [False, True])
def test_streams_on_disk_pass(tmp_path, journal):
    """Steps and windows, with growth; a journal of the loader is not written to."""
    store = stream(20, tmp_path / "stream")
    for number, dataset in enumerate((store, store.as_dataset(2))):
        where = tmp_path / f"journal-{number}" if journal else None
        loader = load(dataset, 3, shuffle=True, follow=True, journal=where)
        next(iter(loader))
        before = {path.name: path.read_bytes() for path in where.iterdir()} if where else {}
        report = verify_resume(loader, grow=lambda: extend(store, 2), steps=10)
        assert report.ok, str(report)
        assert not where or {path.name: path.read_bytes() for path in where.iterdir()} == before


@pytest.mark.parametrize("view", ["itself", "filtered", "transformed", "composite"])
def test_growth_in_between_passes(view):
    """Of a buffer, seen through views that keep ids."""
    source = buffer(9)
    dataset = source if view == "itself" else VIEWS[view](source)
    report = verify_resume(load(dataset, 2, shuffle=True, follow=True), grow=lambda: extend(source, 3))

    assert report.ok, str(report)
    assert any("growing" in line for line in report.checked)


def test_randomness_without_a_seed_is_told():
    """The same rows with other values: the column is named, and where to look."""
    chance = np.random.default_rng()
    noisy = TransformedDataset(rows(6), lambda row: {**row, "noise": chance.random()})
    report = verify_resume(load(noisy, 2))

    assert not report
    assert "noise" in str(report)
    assert "random" in str(report)
    assert "does not resume exactly" in str(report)


def test_a_dataset_whose_order_changes_is_told():
    """Another order each time it is read: values differ."""

    class Reshuffled:
        turns = itertools.count()

        def __len__(self):
            return 8

        def __getitem__(self, i):
            return {"n": (i + next(self.turns)) % 8}

    report = verify_resume(load(Reshuffled(), 2))

    assert not report
    assert "'n'" in str(report)


class Lying:
    """Says that it has 10 rows."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i >= 8:
            raise IndexError(f"row {i} of 8")
        return {"n": i}


class Wavering:
    """Has another length each time it is asked."""

    lengths = itertools.count(10)

    def __len__(self):
        return next(self.lengths)

    def __getitem__(self, i):
        return {"n": i}


@pytest.mark.parametrize("dataset", [Lying(), Wavering()], ids=["too long", "wavering"])
def test_a_lying_length_is_told_and_not_raised(dataset):
    """The report says what happened."""
    report = verify_resume(load(dataset, 3))

    assert not report.ok
    assert report.differences


def test_growth_that_repeats_rows_is_told():
    """A dataset that grows at its beginning: ids are numbers, so rows come twice or never."""
    samples = rows(6)

    def grow():
        samples.insert(0, {"n": len(samples)})

    class Mutable:
        def __len__(self):
            return len(samples)

        def __getitem__(self, i):
            return samples[i]

    # Numbers are dealt out once all the same; the values are not looked at while it grows.
    assert verify_resume(load(Mutable(), 2, follow=True), grow=grow).ok


def test_what_differs_between_threads_is_told():
    """A source that answers otherwise in another thread."""
    main = threading.current_thread()

    class Thready:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return {"n": i if threading.current_thread() is main else -i}

    report = verify_resume(load(Thready(), 2))

    assert not report
    assert "num_workers=2" in str(report)
