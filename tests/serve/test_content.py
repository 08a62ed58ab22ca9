"""What a provider must not change while it fills a queue, and what it may forget: seeds, sizes, names, counters."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from poolish import DataProviderBase, DatasetConsumer, DatasetProvider
from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.serve import purge_queue, queue_log, queue_status
from poolish.serve.provider_notes import read_note
from poolish.serve.queue_log import QueueLog
from poolish.serve.queue_meta import QueueMeta
from poolish.serve.sealed import read_sealed, write_sealed
from poolish.serve.slots import SLOT_BYTES, Slots
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

    with pytest.raises((ConfigError, queue_log.StaleSchema), match=rf"{name}=|fingerprint.* poolish queue purge"):
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
    told = read_sealed(split / "meta.json")
    del told["content"]
    write_sealed(split / "meta.json", told, durable=False)

    assert QueueMeta.read(split).content == {}
    publish(path, 1)
    assert QueueMeta.read(split).content == {"seed": 5, "batch_size": 2}
    with pytest.raises(ConfigError, match="seed=5"):
        publish(path, 1, seed=6)
    with consumer(path) as reader:
        check_ledger([take(reader) for _ in range(2)])


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
        assert running.publish("train") == 0


# Names that are used once -----------------------------------------------------------------------------------------


def counters(path: Path) -> dict[str, int]:
    with closing(QueueLog.open(path / "queue" / "train")) as log:
        return dict(log.consumed().counters)


def test_names_that_are_used_once_fill_nothing(path, monkeypatch):
    """However many there were; a name that comes back goes on with its next batch, also if it was killed."""
    monkeypatch.setattr(queue_log, "SLOT_BYTES", 1_024)
    n_names, ledger = 60, []
    for name in range(n_names):
        publish(path, 1, name=name)
        note = path / "queue" / "train" / "providers" / f"w{name}.json"
        if name % 2:  # as a kill before the note was written
            write_sealed(note, {"counter": 0, "number": 0, "finished": False}, durable=False)
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
    monkeypatch.setattr(queue_log, "SLOT_BYTES", 64)
    publish(path, 2, name=1)
    with provider(path) as running:
        running.publish("train")
        with consumer(path, acknowledge="on_read") as reader:
            for _ in range(3):
                take(reader)
        assert counters(path) == {"w0": 0}
        assert running.publish("train") == 3
    assert read_note(path / "queue" / "train" / "providers" / "w1.json").counter == 2


def test_a_queue_that_an_earlier_version_filled_with_names_goes_on(path):
    """Not one more fitted in: all but the living go into their notes."""
    publish(path, 2)
    names = {f"{i:05d}".ljust(100, "x"): i for i in range(int(SLOT_BYTES / 111))}
    slots = Slots(path / "queue" / "train" / "consumed")
    slots.write({"watermark": 0, "counters": names})
    assert len(json.dumps(slots.read())) > SLOT_BYTES * 0.95

    with consumer(path, acknowledge="on_read") as reader:
        check_ledger([take(reader) for _ in range(2)])

    assert counters(path) == {}
    for name, counter in names.items():
        assert read_note(path / "queue" / "train" / "providers" / f"{name}.json").counter == counter + 1


def test_a_note_that_alone_knows_the_counter_is_not_doubted_away(path, monkeypatch):
    """Damaged, it is an error: a provider that began at 0 would publish its batches again."""
    monkeypatch.setattr(queue_log, "SLOT_BYTES", 32)
    publish(path, 1)
    with consumer(path, acknowledge="on_read") as reader:
        take(reader)
    assert counters(path) == {}
    (path / "queue" / "train" / "providers" / "w0.json").write_text("damaged")

    with pytest.raises(CorruptDataError, match=r"w0.json: damaged, .* under another name"):
        publish(path, 1)
