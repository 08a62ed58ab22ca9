"""Inside torch's loaders: each batch once and in order, with workers, while the dataset grows, stopped and resumed."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from poolish import DatasetBuffer, StreamStore
from poolish.errors import ConfigError
from poolish.load import Batch, Loader, order
from tests.load.loaders import buffer, extend, rows, stream

pytestmark = pytest.mark.filterwarnings("ignore:.*DataLoader will create:UserWarning", "ignore:.*set_vital:UserWarning")


def read_in_workers(loader):
    """All batches, by two workers that end also after an error; torch would leave them to the garbage collector."""
    iterator = iter(DataLoader(loader, batch_size=None, num_workers=2))
    try:
        return list(iterator)
    finally:
        iterator._shutdown_workers()


def numbers(batches):
    return [batch["n"].tolist() for batch in batches]


def make(source, **options):
    return Loader(source, 2, shuffle=True, seed=5, **options)


# torch's DataLoader -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 21])
def test_workers_yield_each_batch_once_and_in_order(num_workers, n):
    """Also where there are more workers than batches; two epochs."""
    for source in (buffer(n), rows(n)):
        alone, inside = make(source), DataLoader(make(source), batch_size=None, num_workers=num_workers)
        for _ in range(2 if num_workers == 0 else 1):
            assert numbers(inside) == numbers(alone)


def test_persistent_workers_go_on_with_the_next_epoch():
    """Each worker's loader counts its epochs."""
    source = buffer(13)
    alone = make(source)
    inside = DataLoader(make(source), batch_size=None, num_workers=2, persistent_workers=True)

    for _ in range(3):
        assert numbers(inside) == numbers(alone)


def test_batches_keep_their_rows():
    """Ids, position and step travel with a batch out of a worker."""
    for batch in DataLoader(make(buffer(6)), batch_size=None, num_workers=1):
        assert type(batch) is Batch
        assert torch.as_tensor(batch.ids).tolist() == batch["n"].tolist()
        assert batch.position == 2 * batch.step


def test_persistent_workers_while_the_stream_grows(tmp_path, monkeypatch):
    """Two workers with a journal: every epoch has each row once, in one order."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 8)
    writer = stream(10, tmp_path / "stream")
    loader = Loader(
        StreamStore.open(tmp_path / "stream"),
        2,
        shuffle=True,
        follow=True,
        journal=tmp_path / "journal",
        output="torch",
    )
    inside = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        seen, steps = [], []
        for batch in inside:
            seen += batch["n"].tolist()
            steps.append(batch.step)
            if writer.n_steps < 20 + 10 * epoch:
                extend(writer, 1)
        assert sorted(seen) == list(range(len(seen)))
        assert len(seen) >= 19 + 10 * epoch - 8
        assert steps == list(range(steps[0], steps[0] + len(steps)))
    audit = Loader(
        StreamStore.open(tmp_path / "stream"), 2, shuffle=True, follow=True, journal=tmp_path / "journal"
    ).audit(0, steps[-1])
    assert not audit.duplicates
    assert not audit.gaps


@pytest.mark.parametrize("follow", [False, True])
def test_workers_over_a_stream_that_others_write_need_a_journal(tmp_path, follow):
    """Each worker would see it at another moment, also at the start of an epoch."""
    stream(10, tmp_path / "stream")
    loader = make(StreamStore.open(tmp_path / "stream"), follow=follow)

    with pytest.raises(ConfigError, match="journal=DIR"):
        read_in_workers(loader)


def test_workers_that_start_at_different_moments_see_one_epoch(tmp_path):
    """A journal makes them agree, following or not."""
    writer = stream(20, tmp_path / "stream")
    reader, go = StreamStore.open(tmp_path / "stream"), tmp_path / "go"

    def wait(worker_id):
        while worker_id == 1 and not go.exists():
            time.sleep(0.002)

    loader = make(reader, journal=tmp_path / "journal")
    iterator = iter(DataLoader(loader, batch_size=None, num_workers=2, worker_init_fn=wait, prefetch_factor=1))
    while not any(b'\n{"block"' in b"\n" + path.read_bytes() for path in (tmp_path / "journal").glob("epoch-0.jsonl")):
        time.sleep(0.002)
    extend(writer, 20)
    go.touch()
    seen = [number for batch in iterator for number in batch["n"].tolist()]

    assert sorted(seen) == list(range(20))


def test_it_is_an_iterable_dataset_for_torch():
    """So that torch does not ask for rows by number."""
    assert isinstance(make(rows(3)), IterableDataset)


def test_an_error_in_a_worker_comes_out():
    """With the type and the rows."""

    class Broken:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            if i == 3:
                raise ValueError("row three is broken")
            return {"n": i}

    with pytest.raises(ValueError, match="row three is broken"):
        read_in_workers(make(Broken()))


# torchdata's StatefulDataLoader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_loader_stops_and_resumes_at_every_batch(num_workers):
    """Its state holds ours, one for each worker. A complete epoch is followed by the next one or, with workers, by an
    empty loop: none of them knows whether the others have delivered their last batch.
    """
    import torchdata.stateful_dataloader as stateful

    source = buffer(9)
    alone = make(source)
    expected, following = numbers(alone), numbers(alone)

    def new():
        return stateful.StatefulDataLoader(make(source), batch_size=None, num_workers=num_workers)

    for n_done in range(len(expected) + 1):
        first = new()
        iterator = iter(first)
        done = [next(iterator)["n"].tolist() for _ in range(n_done)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del iterator
        second = new()
        second.load_state_dict(state)
        rest = following if n_done == len(expected) and not num_workers else expected[n_done:]
        assert (done, numbers(second)) == (expected[:n_done], rest), n_done


def test_the_loader_is_stateful_itself():
    """torchdata's protocol: state_dict and load_state_dict."""
    import torchdata.stateful_dataloader.stateful as stateful

    assert isinstance(make(rows(3)), stateful.Stateful)


# Spawned, tensors, devices ----------------------------------------------------------------------------------------

SPAWNED = """
import sys, pickle
loader = pickle.load(sys.stdin.buffer)
print([batch["n"].tolist() for batch in loader])
"""


def test_a_loader_goes_on_in_a_spawned_process():
    """Its rows travel with it, and its place."""
    loader = make(buffer(9), output="numpy")
    iterator = iter(loader)
    next(iterator)
    sent = pickle.dumps(loader)
    got = subprocess.run(
        [sys.executable, "-c", SPAWNED], input=sent, capture_output=True, check=True, cwd=Path(__file__).parents[2]
    )

    assert got.stdout.decode().strip() == str(numbers(iterator))


def test_the_default_output_is_tensors():
    """Numbers of every width, vectors and flags; text stays a list."""
    source = DatasetBuffer()
    source.append([{"x": np.full((2, 2), i, np.float16), "n": np.int32(i), "b": bool(i), "t": "rye"} for i in range(3)])
    (batch,) = Loader(source, 3)

    assert {name: column.dtype for name, column in batch.items() if name != "t"} == {
        "x": torch.float16,
        "n": torch.int32,
        "b": torch.bool,
    }
    assert batch["x"].shape == (3, 2, 2)
    assert list(batch["t"]) == ["rye"] * 3


def test_bfloat16_comes_as_bfloat16():
    """NumPy has none; a tensor has."""
    source = DatasetBuffer()
    source.append([{"x": torch.full((3,), i, dtype=torch.bfloat16)} for i in range(4)])
    (batch,) = Loader(source, 4, shuffle=True)

    assert batch["x"].dtype == torch.bfloat16
    assert batch["x"][:, 0].tolist() == batch.ids.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_device_moves_tensors_wherever_they_are(num_workers):
    """In columns, tuples and dicts within dicts; the batch still knows its rows."""
    samples = [{"x": np.ones(2), "inner": {"y": i}, "text": "rye"} for i in range(5)]
    loader = Loader(samples, 2, device="cpu", pin_memory=True, num_workers=num_workers)
    batches = list(loader)

    assert [batch["inner"]["y"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert all(batch["x"].device.type == "cpu" and len(batch.ids) for batch in batches)
    assert type(batches[0]) is Batch


def test_an_unknown_device_is_refused_by_name():
    """At once."""
    with pytest.raises(ConfigError, match="device"):
        Loader(rows(3), device="toaster")
