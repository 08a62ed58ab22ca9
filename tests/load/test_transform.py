"""Loader(transform=): a function from batch to batch, run where reading happens, the same after every resume."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from poolish import Suite, verify_resume
from poolish.errors import ConfigError, DataRefused
from poolish.load import Batch, Loader
from poolish.load.batch import BatchTuple
from tests.load.loaders import buffer, extend, ids, load, plain, ranks, saved


class Pair(NamedTuple):
    n: Any
    twice: Any


@dataclass
class Sample:
    n: Any


def doubled(batch):
    return {**batch, "n": batch["n"] * 2}


def noisy(batch, rng):
    return {**batch, "noise": rng.random(len(batch["n"]))}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", [lambda: buffer(10), lambda: [{"n": i} for i in range(10)]], ids=["buffer", "list"])
def test_batches_are_transformed_and_keep_their_identity(dataset, num_workers):
    """The function gets a batch that knows its rows, and what it returns knows them too."""
    seen = []

    def change(batch):
        seen.append((type(batch), batch.ids.tolist(), batch.step, batch.position))
        return doubled(batch)

    batches = list(load(dataset(), 4, transform=change, num_workers=num_workers))

    assert [(batch["n"].tolist(), batch.ids.tolist()) for batch in batches] == [
        ([0, 2, 4, 6], [0, 1, 2, 3]),
        ([8, 10, 12, 14], [4, 5, 6, 7]),
        ([16, 18], [8, 9]),
    ]
    assert sorted(seen, key=lambda each: each[2]) == [(Batch, b.ids.tolist(), b.step, b.position) for b in batches]


@pytest.mark.parametrize("output", ["numpy", "torch", "arrow"])
def test_every_output_is_transformed(output):
    """The function sees what the trainer would."""
    kinds = {"numpy": np.ndarray, "torch": torch.Tensor, "arrow": pa.Array}

    def change(batch):
        assert isinstance(batch["n"], kinds[output])
        return {"m": batch["n"]}

    batch = next(iter(Loader(buffer(4), 4, transform=change, output=output)))

    assert (batch["m"].tolist(), batch.ids.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_every_form_of_batch_is_transformed():
    """Tuples, namedtuples and dataclasses keep their class and their rows."""
    of_tuples = load([(i, -i) for i in range(4)], transform=lambda batch: (batch[0] + 1, batch[1]))
    of_pairs = load([Pair(i, 2 * i) for i in range(4)], transform=lambda batch: batch._replace(twice=batch.n * 3))
    of_samples = load([Sample(i) for i in range(4)], transform=lambda batch: Sample(batch.n + 1))

    (first, second), pair, sample = (next(iter(loader)) for loader in (of_tuples, of_pairs, of_samples))

    assert (first.tolist(), second.tolist()) == ([1, 2], [0, -1])
    assert isinstance(pair, Pair)
    assert (pair.twice.tolist(), pair.ids.tolist()) == ([0, 3], [0, 1])
    assert type(sample) is Sample
    assert (sample.n.tolist(), sample.ids.tolist()) == ([1, 2], [0, 1])
    assert isinstance(next(iter(of_tuples)), BatchTuple)


def test_a_function_of_threads_runs_in_threads():
    """With num_workers in one of them, without in the caller's, also where batches lie across blocks."""
    names = set()

    def note(batch):
        names.add(threading.current_thread() is threading.main_thread())
        return batch

    for num_workers, expected in ((2, {False}), (0, {True})):
        for dataset in (buffer(3000), [{"n": i} for i in range(200)]):
            names.clear()
            size = 100 if len(dataset) > 1000 else 16
            n = sum(len(batch.ids) for batch in load(dataset, size, transform=note, num_workers=num_workers))
            assert n == len(dataset)
            # The last step of an epoch is decided when it is asked for, so the caller may read it.
            assert names >= expected
            assert num_workers or names == expected


def test_random_numbers_follow_from_seed_epoch_step_and_rank():
    """Not from threads or how often the run was stopped; other epochs, steps, ranks and seeds have others."""

    def walked(**options):
        loader = load(buffer(8), 2, transform=noisy, **options)
        return [batch["noise"].tolist() for batch in [*loader, *loader]]

    first = walked(seed=1)
    of_ranks = [next(iter(loader))["noise"].tolist() for loader in ranks(2, buffer(8), 2, transform=noisy)]

    assert first == walked(seed=1, num_workers=2)
    assert len({tuple(noise) for noise in first}) == 8
    assert not set(map(tuple, walked(seed=2))) & set(map(tuple, first))
    assert of_ranks[0] != of_ranks[1]


def test_a_resume_gives_the_same_values():
    """At every step, in the second epoch too; verify_resume sees it, and a function that draws elsewhere."""
    rows = buffer(7)
    loader = load(rows, 2, transform=noisy, shuffle=True, seed=4)
    for _ in range(2):
        states, expected = [], []
        for batch in loader:
            expected.append(plain(batch))
            states.append(saved(loader))
        for i, state in enumerate(states[:-1]):
            other = load(rows, 2, transform=noisy, shuffle=True, seed=4)
            other.load_state_dict(state)
            assert [plain(batch) for batch in other] == expected[i + 1 :]

    assert verify_resume(loader).ok
    drawing = load(buffer(7), 2, transform=lambda batch: {**batch, "noise": np.random.default_rng().random(1)})
    assert "column 'noise' has other values" in str(verify_resume(drawing))


def test_progress_goes_from_0_to_1():
    """As in TransformedDataset; without epochs= it is not known."""
    loader = load(buffer(2), 2, transform=lambda batch, progress: {**batch, "at": progress}, epochs=3)

    assert [batch["at"] for _ in range(4) for batch in loader] == [0.0, 0.5, 1.0, 1.0]
    with pytest.raises(ConfigError, match="asks for progress; say over how many epochs"):
        load(buffer(2), 2, transform=lambda batch, progress: batch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_keeps_its_type_and_names_rows_and_step(num_workers):
    """The batch stays next."""
    failing = [True]

    def change(batch):
        if batch.step == 1 and failing[0]:
            raise KeyError("missing")
        return batch

    loader = load(buffer(6), 2, transform=change, num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)

    with pytest.raises(KeyError, match="missing") as caught:
        next(iterator)
    assert any("batch of step 1, rows 2, 3, with" in note for note in caught.value.__notes__)
    failing[0] = False
    assert next(iterator).ids.tolist() == [2, 3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_end_of_an_iterator_in_a_transform_is_no_end_of_the_epoch(num_workers):
    """A stray StopIteration would end the loop early."""
    loader = load(buffer(6), 2, transform=lambda batch: next(iter([])), num_workers=num_workers)

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)


def test_a_transform_that_forgets_to_return_is_refused():
    """Changing in place and returning nothing is the usual mistake."""
    with pytest.raises(ConfigError, match="return the batch"):
        next(iter(load(buffer(2), transform=lambda batch: batch.update(x=1))))
    with pytest.raises(ConfigError, match="transform=3: a function, or None"):
        load(buffer(2), transform=3)


def test_other_rows_have_no_ids():
    """Filtered or doubled, ids would name the wrong rows; step and position still hold, and so does acknowledging."""
    for change in (
        lambda batch: {"n": batch["n"][:1]},
        lambda batch: {"n": np.repeat(batch["n"], 2)},
        lambda batch: {"m": np.zeros(5)},
    ):
        loader = load(buffer(4), transform=change, acknowledge="explicit")
        batch = next(iter(loader))
        assert (batch.ids, batch.step, batch.position) == (None, 0, 0)
        assert loader.origin.ids.tolist() == [0, 1]
        loader.mark_trained(batch)
        assert saved(loader)["step"] == 1


def test_a_table_beside_the_rows_leaves_their_identity():
    """Single values and columns of another length may be added."""
    loader = load(buffer(4), transform=lambda batch: {**batch, "classes": np.zeros(9), "scale": 0.5})

    assert next(iter(loader)).ids.tolist() == [0, 1]


def test_a_guard_sees_rows_before_the_transform():
    """What it leaves out is not transformed, and no bad value is mixed into the others."""
    sizes = []

    def centred(batch):
        sizes.append(len(batch["n"]))
        return {"n": batch["n"] - batch["n"].mean(), "of": batch.ids}

    suite = Suite().expect("n", between=(0, 4)).on(error="drop")
    loader = load([{"n": n} for n in (1, 2, 99, 4, 77, 88)], 2, transform=centred, guard=suite, num_workers=2)
    batches = list(loader)

    assert [batch["n"].tolist() for batch in batches] == [[-0.5, 0.5], [0.0]]
    assert [batch["of"].tolist() for batch in batches] == [batch.ids.tolist() for batch in batches] == [[0, 1], [3]]
    assert sizes == [2, 1]
    assert loader.stats == {"skipped": 1, "dropped_rows": 3}
    refusing = load([{"n": 99}], transform=lambda batch: 1 / 0, guard=Suite().expect("n", between=(0, 4)))
    with pytest.raises(DataRefused):
        next(iter(refusing))


def test_a_guarded_transform_resumes():
    """The guard's memory and the transform's numbers belong to the batch that is delivered."""
    reference = [{"n": float(i)} for i in range(20)]
    guard = Suite().expect("n", finite=True).on(error="raise").guard(reference, window=6)
    loader = load(reference, 3, transform=noisy, guard=guard, shuffle=True)

    assert verify_resume(loader).ok


def test_rows_that_join_are_transformed():
    """Growth, evictions and short batches change nothing."""
    grown = buffer(4)
    loader = load(grown, 2, transform=doubled, follow=True)
    got = []
    for batch in loader:
        got += batch["n"].tolist()
        if len(grown) < 9:
            extend(grown, 2)

    assert sorted(got) == [2 * i for i in range(len(grown))]


def test_worker_processes_transform():
    """In worker processes of a DataLoader, with the numbers that one process would draw."""
    loader = load(buffer(8).snapshot(), 2, transform=noisy, rank=0, world_size=1)
    alone = {batch.step: batch["noise"].tolist() for batch in loader.like()}

    together = list(DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork"))

    assert {batch.step: batch["noise"].tolist() for batch in together} == alone
    assert sorted(ids(together)) == list(range(8))


def test_a_batch_on_a_device_was_transformed_before():
    """The function sees the batch on the host, so its copy to the device comes last."""
    devices = []

    def change(batch):
        devices.append(batch["n"].device.type)
        return batch

    batch = next(iter(Loader(buffer(4), 2, transform=change, device="meta", output="torch")))

    assert (devices, batch["n"].device.type) == (["cpu"], "meta")
