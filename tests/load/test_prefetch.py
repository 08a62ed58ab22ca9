"""Threads load the first batch from ``iter()`` on; what comes out is the same as if they had begun later."""

from __future__ import annotations

import gc
import threading

import pytest

from poolish.load import FilteredDataset, Loader, TransformedDataset, verify_resume
from poolish.prefetch import Spent
from tests.load.loaders import buffer, extend, ids, load, saved, stream

PATIENCE_S = 60


class Watched:
    """Says which rows were read; a row of ``held`` is not read before ``go_on``."""

    def __init__(self, n=12, held=()):
        self.n, self.held, self.go_on = n, held, threading.Event()
        self.read = [threading.Event() for _ in range(n)]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.held:
            assert self.go_on.wait(PATIENCE_S)
        self.read[i].set()
        return i

    def has_read(self, *rows):
        return all(self.read[i].wait(PATIENCE_S) for i in rows)


def test_iter_lets_the_threads_begin():
    """The first batch is read before anybody asks for it."""
    dataset = Watched()
    loader = load(dataset, 2, num_workers=2)
    iterator = iter(loader)

    assert dataset.has_read(0, 1)
    assert next(iterator)["value"].tolist() == [0, 1]
    loader.close()


@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 2, "shuffle": True}, {"rank": 1, "world_size": 2}]
)
def test_the_next_batch_is_read_while_the_first_is_trained_on(options):
    """The first ``next()`` leaves threads at work: double buffering from the first batch on."""
    dataset = Watched()
    loader = load(dataset, 2, **{"num_workers": 1, **options})
    expected = [batch.ids.tolist() for batch in loader.like(num_workers=0)]
    iterator = iter(loader)
    next(iterator)

    assert dataset.has_read(*expected[1])
    assert [batch.ids.tolist() for batch in iterator] == expected[1:]
    loader.close()


@pytest.mark.parametrize("change", ["append", "update", "remove"])
@pytest.mark.parametrize("view", ["buffer", "transformed", "filtered"])
@pytest.mark.parametrize("follow", [False, True])
def test_what_changes_between_iter_and_next_belongs_to_the_epoch(view, change, follow):
    """As without threads, where the epoch begins with the first batch."""
    seen = []
    for num_workers in (0, 2):
        source = buffer(5)
        views = {"transformed": lambda s: TransformedDataset(s, dict), "filtered": lambda s: FilteredDataset(s, bool)}
        loader = load(views.get(view, lambda s: s)(source), 2, num_workers=num_workers, follow=follow)
        iterator = iter(loader)
        if change == "append":
            extend(source, 3)
        elif change == "update":
            source.update([1], {"n": [70]})
        else:
            source.retain(0.5)
        seen.append([batch["n"].tolist() for batch in iterator])
        loader.close()

    assert seen[0] == seen[1]


def test_a_state_between_iter_and_next_is_before_the_first_batch():
    """Nothing was handed out; whoever resumes from it gets every row."""
    loader = load(buffer(6), 2, num_workers=2, shuffle=True)
    before = saved(loader)
    iterator = iter(loader)
    resumed = load(loader.dataset, 2, shuffle=True)
    resumed.load_state_dict(saved(loader))

    assert saved(loader) == before
    assert ids(resumed) == [id_ for batch in iterator for id_ in batch.ids.tolist()]
    loader.close()


def test_set_epoch_and_a_loaded_state_after_iter_count():
    """What was begun for another place is forgotten."""
    source = buffer(6)
    loader, plain = (load(source, 2, num_workers=n, shuffle=True) for n in (2, 0))
    plain.set_epoch(3)
    running = iter(plain)
    first, state, second = next(running), saved(plain), next(running)

    iter(loader)
    loader.set_epoch(3)
    assert next(iter(loader)).ids.tolist() == first.ids.tolist()
    loader.set_epoch(4)
    iterator = iter(loader)
    loader.load_state_dict(state)
    assert next(iterator).ids.tolist() == second.ids.tolist()
    loader.close()


def test_a_superseded_iterator_takes_nothing_along():
    """The newer one goes on with what the threads have begun, each row once."""
    dataset = Watched(6)
    loader = load(dataset, 2, num_workers=2)
    old = iter(loader)
    new = iter(loader)

    assert ids(new) == list(range(6))
    with pytest.raises(RuntimeError, match="superseded"):
        next(old)
    loader.close()


def test_a_loop_that_takes_no_batch_costs_nothing():
    """It neither moves the loader nor keeps a thread alive once the loader is gone or closed."""

    def threads():
        return [thread for thread in threading.enumerate() if thread.name.startswith("poolish-worker")]

    gc.collect()
    before = len(threads())
    loader = load(buffer(6), 2, num_workers=2)
    iter(loader)
    assert (loader.epoch, loader.step, loader.position) == (0, 0, 0)
    loader.close()
    assert len(threads()) == before
    iter(loader)
    group = loader._reader.fetcher._workers.threads()
    del loader
    gc.collect()
    group.join(PATIENCE_S)
    assert len(threads()) == before


def test_an_error_of_the_first_batch_comes_out_of_next():
    """``iter()`` is no place where a program expects it; the loader stays before the batch."""

    class Failing(list):
        def __getitem__(self, i):
            if i == 1 and self.fails:
                raise OSError("the disk is away")
            return super().__getitem__(i)

    dataset = Failing(range(4))
    dataset.fails = True
    loader = load(dataset, 2, num_workers=1)
    iterator = iter(loader)
    with pytest.raises(OSError, match="the disk is away"):
        next(iterator)
    dataset.fails = False

    assert ids(loader) == [0, 1, 2, 3]
    loader.close()


def test_a_worker_that_cannot_start_is_reported_by_next():
    """Each attempt says so."""

    def init(worker):
        raise ValueError("no licence")

    iterator = iter(load(buffer(4), 2, num_workers=1, worker_init_fn=init))
    for _ in range(2):
        with pytest.raises(ValueError, match="no licence"):
            next(iterator)


def test_growing_datasets_resume_exactly_from_iter_on(tmp_path):
    """Followed, with threads, whatever is appended in between."""
    source = buffer(40)
    assert verify_resume(load(source, 4, shuffle=True, follow=True), workers=(1, 3), grow=lambda: extend(source, 3)).ok
    store = stream(40)
    loader = Loader(store, 4, follow=True, num_workers=2, output="numpy")
    seen = []
    for _ in range(30):
        iterator = iter(loader)
        extend(store, 1)
        batch = next(iterator, None)
        seen += [] if batch is None else batch.ids.tolist()
    seen += ids(loader)
    loader.close()

    assert seen == list(range(70))


def test_threads_that_make_it_slower_are_named_once_with_the_figures_and_the_remedy():
    """Where they were asked for; no batch is lost over it."""
    loader = load(list(range(40)), 2, num_workers=2, persistent_workers=True)
    first = ids(loader)
    loader._reader.fetcher._pace.slower = Spent(2e-6, 1e-6), Spent(9e-6, 8e-6)
    with pytest.warns(UserWarning, match=r"num_workers=2\) is slower.* 9.0 us .*, 2.0 us .* num_workers=0") as warned:
        second = [id_ for batch in loader for id_ in batch.ids.tolist()]

    third = ids(loader)

    assert [each.filename for each in warned] == [__file__]
    assert first == second == third == list(range(40))
    loader.close()
