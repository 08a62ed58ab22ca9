"""What a provider must not change while it fills a queue, and what it may forget: seeds, sizes, names, counters."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from poolish import DataProviderBase, DatasetBuffer, DatasetConsumer, DatasetProvider, StreamStore
from poolish.errors import ConfigError, CorruptDataError, SchemaError, StaleSchema
from poolish.files.checksums import SLOT_BYTES, DoubleBufferedJson, read_checksummed_json, write_checksummed_json
from poolish.load import CompositeDataset, SubsettedDataset, TextDataset, TransformedDataset
from poolish.serve import dataset_provider, purge_queue, queue_status
from poolish.serve.inspection import verify_queue
from poolish.transports import log as log_module
from poolish.transports.batch_file import decode, encode, read_file
from poolish.transports.directory_parts import DirectoryProviders, read_meta
from poolish.transports.log import DirectoryLog
from tests.serve.queues import check_ledger, consumer, provider, publish, take

pytestmark = pytest.mark.usefixtures("few_together")

ROWS = [{"x": i} for i in range(100)]


def serve(path: Path, n_batches: int, rows=ROWS, **settings) -> None:
    """Be a provider of rows for some batches."""
    with DatasetProvider(rows, path=path, **{"batch_size": 10, **settings}) as running:
        for _ in range(n_batches):
            running.publish("train")


# What decides the batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("seed", {"seed": 1}, {"seed": 2}),
        ("batch_size", {}, {"batch_size": 20}),
        ("order", {}, {"order": "sequential"}),
        ("workers", {}, {"n_workers": 2}),
        ("rows", {}, {"rows": ROWS[:90]}),
        ("seed", {"order": "random", "seed": 1}, {"order": "random", "seed": 2}),
    ],
)
def test_an_epoch_is_not_continued_in_another_order(path, name, before, after, is_read):
    """Half of one permutation and half of another are no epoch: refused, the queue is as it was, and goes on."""
    serve(path, 4, **before)
    if is_read:
        with DatasetConsumer(path, output="numpy", timeout_s=5, acknowledge="on_read") as reader:
            for _ in range(4):
                reader.get_batch()

    with pytest.raises((ConfigError, StaleSchema), match=rf"{name}=|fingerprint.* poolish queue purge"):
        serve(path, 1, **{**before, **after})

    serve(path, 6, **before)
    purge_queue(path)
    serve(path, 1, **{**before, **after})


def test_an_epoch_over_two_starts_has_every_row_once(path):
    """As many distinct rows as there are."""
    for n_batches in (3, 7):
        serve(path, n_batches, seed=3)
    with DatasetConsumer(path, output="numpy", timeout_s=5) as reader:
        seen = np.concatenate([reader.get_batch()["x"] for _ in range(10)])
    assert sorted(seen.tolist()) == list(range(100))


def test_what_does_not_decide_the_order_may_change(path):
    """The seed of a dataset that is served in its own order, and data that grows under order="random"."""
    serve(path / "sequential", 2, order="sequential", seed=1)
    serve(path / "sequential", 2, order="sequential", seed=2)
    serve(path / "random", 2, order="random")
    serve(path / "random", 2, order="random", rows=ROWS * 2)


def test_a_provider_of_one_s_own_keeps_seed_and_batch_size(path):
    """The k-th batch of a name is decided by the seed, and a trainer counts on the batch size."""
    publish(path, 1)
    for change in ({"seed": 6}, {"batch_size": 3}):
        (name,) = change
        with pytest.raises(ConfigError, match=rf"filled with {name}=.*, this provider has {name}=.*queue purge"):
            publish(path, 1, **change)
    assert publish(path, 1) == [1]


def test_a_queue_of_an_earlier_version_gains_the_record(path):
    """It opens as it is, and from then on a change is refused."""
    publish(path, 1)
    split = path / "queue" / "train"
    told = read_checksummed_json(split / "meta.json")
    del told["content"]
    write_checksummed_json(split / "meta.json", told, durable=False)

    assert read_meta(split).content == {}
    publish(path, 1)
    assert read_meta(split).content == {"seed": 5, "batch_size": 2}
    with pytest.raises(ConfigError, match="seed=5"):
        publish(path, 1, seed=6)
    with consumer(path) as reader:
        check_ledger([take(reader) for _ in range(2)])


# The rows themselves ----------------------------------------------------------------------------------------------


class Held:
    """Rows below an object of the user's; with a lock it cannot be fingerprinted."""

    def __init__(self, rows, lock=None) -> None:
        self.rows, self.lock = rows, lock

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int):
        return self.rows[i]


class Declared(Held):
    """One that says itself what it is."""

    def __fingerprint__(self):
        return self.rows


def a_buffer(rows) -> DatasetBuffer:
    buffer = DatasetBuffer()
    buffer.append(rows)
    return buffer


def a_saved_buffer(rows, folder) -> DatasetBuffer:
    place = folder / f"{rows[0]['x']}-{len(rows)}.poolish"
    if not place.exists():
        a_buffer(rows).save(place)
    return DatasetBuffer.load(place)


def windows(rows, folder):
    place = folder / f"stream-{rows[0]['x']}"
    if not place.exists():
        with StreamStore(place, fields=["x"]) as store:
            store.append(steps=list(range(len(rows) * 2)), names=["x"] * len(rows) * 2, values=[1] * len(rows) * 2)
    return StreamStore.open(place).as_dataset(width=2)


def a_text(rows, folder) -> TransformedDataset:
    """The lines of a file; another order has the same name and size."""
    place = folder / str(rows[0]["x"]) / "rows.txt"
    if not place.exists():
        place.parent.mkdir()
        place.write_text("".join(f"{row['x']}\n" for row in rows))
    return TransformedDataset(TextDataset(place), lambda row: {"x": int(row["text"])})


KINDS = {
    "list": lambda rows, folder: list(rows),
    "tensors": lambda rows, folder: TensorDataset(*torch.tensor([[row["x"], 0] for row in rows]).T),
    "text": a_text,
    "pairs": lambda rows, folder: [(np.full(2, row["x"]), row["x"]) for row in rows],
    "buffer": lambda rows, folder: a_buffer(rows),
    "snapshot": lambda rows, folder: a_buffer(rows).snapshot(),
    "saved buffer": a_saved_buffer,
    "windows": windows,
    "Hugging Face": lambda rows, folder: pytest.importorskip("datasets").Dataset.from_list(rows),
    "torch": lambda rows, folder: Subset(rows, list(range(len(rows)))),
    "object": lambda rows, folder: Held(rows),
    "declared": lambda rows, folder: Declared(rows, threading.Lock()),
    "transformed buffer": lambda rows, folder: TransformedDataset(a_buffer(rows), dict),
    "subset": lambda rows, folder: SubsettedDataset(a_buffer(rows), list(range(100))),
    "composite": lambda rows, folder: CompositeDataset([a_buffer(rows[:50]), rows[50:]]),
}


@pytest.mark.parametrize("order", ["shuffle", "sequential"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_is_filled_with_the_same_rows_after_a_restart(path, tmp_path, kind, order):
    """Equal rows continue the epoch, whatever object holds them; as many others, or in another order, are refused."""
    path.mkdir(parents=True, exist_ok=True)
    make = KINDS[kind]
    serve(path, 3, rows=make(ROWS, tmp_path), order=order)

    with pytest.raises(ConfigError, match=r"data='.*serve the rows from before.*queue purge"):
        serve(path, 1, rows=make(ROWS[::-1], tmp_path), order=order)

    serve(path, 7, rows=make(ROWS, tmp_path), order=order, epochs=1)
    assert queue_status(path)["train"].published == 10


def test_large_data_is_told_apart_too(path, monkeypatch):
    """By evenly spaced rows: another order is never served as the same rows."""
    monkeypatch.setattr(dataset_provider, "MAX_VALUES", 50)
    monkeypatch.setattr(dataset_provider, "MAX_BYTES", 700)
    monkeypatch.setattr(dataset_provider, "_SPACED_ROWS", (1_000, 8))
    tensors = lambda rows: TensorDataset(*torch.tensor([[row["x"], 0] for row in rows]).T)  # noqa: E731
    for place, make in ((path / "list", list), (path / "buffer", a_buffer), (path / "tensors", tensors)):
        serve(place, 2, rows=make(ROWS))
        with pytest.raises(ConfigError, match="data='"):
            serve(place, 1, rows=make(ROWS[::-1]))
        serve(place, 1, rows=make(ROWS))


def test_what_cannot_be_fingerprinted_is_compared_by_length(path):
    """And is not the same as what was."""
    serve(path, 1, rows=Held(ROWS, threading.Lock()))
    serve(path, 1, rows=Held(ROWS, threading.Lock()))
    for rows in (ROWS, Held(ROWS[:90], threading.Lock())):
        with pytest.raises((ConfigError, StaleSchema), match="queue purge"):
            serve(path, 1, rows=rows)


def test_a_row_that_was_updated_is_another_row(path):
    """The uuid and the counts of a buffer stay the same; its values do not."""
    buffer = a_buffer(ROWS)
    serve(path, 1, rows=buffer)
    buffer.update([5], {"x": [1_000]})
    with pytest.raises(ConfigError, match="data='"):
        serve(path, 1, rows=buffer)


def test_a_queue_without_the_digest_gains_it(path):
    """One that was filled before there were digests."""
    serve(path, 1)
    split = path / "queue" / "train"
    told = read_checksummed_json(split / "meta.json")
    del told["content"]["data"]
    write_checksummed_json(split / "meta.json", told, durable=False)

    serve(path, 1)

    with pytest.raises(ConfigError, match="data='"):
        serve(path, 1, rows=ROWS[::-1])


# The size of a batch ----------------------------------------------------------------------------------------------


class Sized(DataProviderBase):
    """Batches of ``n_rows`` rows."""

    def build_meta(self):
        return {"batch_schema": [{"name": "x", "dtype": "int64", "shape": []}]}

    def sample_batch(self, split, rng):
        return {"x": np.zeros(self.n_rows, np.int64)}


@pytest.mark.parametrize("n_rows", [1, 31, 33])
def test_batches_have_as_many_rows_as_configured(path, n_rows):
    """Any other stops the provider, unless its class says that rows vary."""
    config = {"dataset": "d", "batch_size": 32, "block_size": 1, "splits": ("train",), "n_rows": n_rows}
    with Sized(config, path=path) as running:
        with pytest.raises(SchemaError, match=rf"field 'x': expected 32 rows \(batch_size\), got {n_rows}"):
            running.publish("train")
        with pytest.raises(SchemaError, match="variable_rows = True"):
            running.run()
        assert queue_status(path)["train"].published == 0
        running.variable_rows = True
        with pytest.raises(SchemaError, match="before the queue is opened"):
            running.publish("train")
    with Varying(config, path=path) as running:
        assert running.publish("train") == 0


class Varying(Sized):
    variable_rows = True


def forge(path: Path, number: int, n_rows: int) -> None:
    """Replace a batch by one of other rows, with a label and checksums as they should be."""
    split = path / "queue" / "train"
    label, columns = decode(read_file(split / f"{number:012d}.safetensors"), "a batch")
    dtype, array = columns["x"]
    forged = encode({"x": (dtype, np.resize(array, (n_rows, *array.shape[1:])))}, replace(label, rows=n_rows))
    (split / f"{number:012d}.safetensors").write_bytes(b"".join(map(bytes, forged)))


@pytest.mark.parametrize("n_rows", [1, 3, 5])
def test_a_batch_of_another_size_is_not_handed_out(path, n_rows):
    """However right its checksums are; where rows vary, all are."""
    config = {"dataset": "d", "batch_size": 4, "block_size": 1, "splits": ("train",), "n_rows": 4}
    for kind in (Sized, Varying):
        with kind(config, path=path / kind.__name__) as running:
            running.publish("train")
        forge(path / kind.__name__, 0, n_rows)
    assert verify_queue(path / "Sized")["train"] != []
    assert verify_queue(path / "Varying")["train"] == []
    told = rf"{n_rows} rows, the providers of this queue make 4"
    with (
        DatasetConsumer(path / "Sized", output="numpy", timeout_s=5) as reader,
        pytest.raises(CorruptDataError, match=told),
    ):
        reader.get_batch()
    with DatasetConsumer(path / "Varying", output="numpy", timeout_s=5) as reader:
        assert len(reader.get_batch()["x"]) == n_rows


def test_a_provider_whose_rows_vary_may_come_later(path):
    """A consumer that runs already takes its batches, and those from before stay good."""
    config = {"dataset": "d", "batch_size": 4, "block_size": 1, "splits": ("train",)}
    with Sized({**config, "n_rows": 4}, path=path, name="a") as running:
        running.publish("train")
        with DatasetConsumer(path, output="numpy", timeout_s=5) as reader:
            assert len(reader.get_batch()["x"]) == 4
            with Varying({**config, "n_rows": 9}, path=path, name="b") as other:
                other.publish("train")
            running.publish("train")
            assert [len(reader.get_batch()["x"]) for _ in range(2)] == [9, 4]
    with Sized({**config, "n_rows": 4}, path=path, name="a") as running:
        running.publish("train")
    assert verify_queue(path)["train"] == []


# Names that are used once -----------------------------------------------------------------------------------------


def counters(path: Path) -> dict[str, int]:
    with closing(DirectoryLog.open(path / "queue" / "train")) as log:
        return dict(log.consumed().counters)


def test_names_that_are_used_once_fill_nothing(path, monkeypatch):
    """However many there were; a name that comes back goes on with its next batch, also if it was killed."""
    monkeypatch.setattr(log_module, "SLOT_BYTES", 1_024)
    n_names, ledger = 60, []
    for name in range(n_names):
        publish(path, 1, name=name)
        note = path / "queue" / "train" / "providers" / f"w{name}.json"
        if name % 2:  # as a kill before the note was written
            write_checksummed_json(note, {"counter": 0, "number": 0, "finished": False}, durable=False)
        with consumer(path, acknowledge="on_read") as reader:
            ledger.append(take(reader))
    check_ledger(ledger)
    assert len(counters(path)) < 30

    for name in range(n_names):
        with provider(path, name) as running:
            assert running.batch_number("train") == 1
            assert running.publish("train") == n_names + name
    with consumer(path, acknowledge="on_read") as reader:
        ledger += [take(reader) for _ in range(n_names)]
    check_ledger(ledger)


def test_a_provider_that_is_alive_keeps_its_counter_beside_the_watermark(path, monkeypatch):
    """It has read its note already, and writes it over."""
    monkeypatch.setattr(log_module, "SLOT_BYTES", 64)
    publish(path, 2, name=1)
    with provider(path) as running:
        running.publish("train")
        with consumer(path, acknowledge="on_read") as reader:
            for _ in range(3):
                take(reader)
        assert counters(path) == {"w0": 0}
        assert running.publish("train") == 3
    assert DirectoryProviders(path / "queue" / "train").read("w1").counter == 2


def test_a_queue_that_an_earlier_version_filled_with_names_goes_on(path):
    """Not one more fitted in: all but the living go into their notes."""
    publish(path, 2)
    names = {f"{i:05d}".ljust(100, "x"): i for i in range(int(SLOT_BYTES / 111))}
    slots = DoubleBufferedJson(path / "queue" / "train" / "consumed")
    slots.write({"watermark": 0, "counters": names})
    assert len(json.dumps(slots.read())) > SLOT_BYTES * 0.95

    with consumer(path, acknowledge="on_read") as reader:
        check_ledger([take(reader) for _ in range(2)])

    assert counters(path) == {}
    for name, counter in names.items():
        assert DirectoryProviders(path / "queue" / "train").read(name).counter == counter + 1


def test_a_note_that_alone_knows_the_counter_is_not_doubted_away(path, monkeypatch):
    """Damaged, it is an error: a provider that began at 0 would publish its batches again."""
    monkeypatch.setattr(log_module, "SLOT_BYTES", 32)
    publish(path, 1)
    with consumer(path, acknowledge="on_read") as reader:
        take(reader)
    assert counters(path) == {}
    (path / "queue" / "train" / "providers" / "w0.json").write_text("damaged")

    with pytest.raises(CorruptDataError, match=r"w0.json: damaged, .* under another name"):
        publish(path, 1)
