"""Providers: what they publish depends on nothing but their names and their seeds, and always fits the schema."""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetProvider, StreamStore
from poolish.errors import ConfigError, QueueError, SchemaError, StaleSchema
from poolish.serve import DataProviderBase, queue_status
from poolish.transports.directory_parts import DirectoryProviders, read_meta
from poolish.transports.protocols import ProviderRecord
from tests.effort import times
from tests.faults import die, fork, in_child, kill, wait_until
from tests.serve import queues
from tests.serve.queues import Counting, check_ledger, check_log, consumer, provide, provider, publish, take, wanted

pytestmark = pytest.mark.usefixtures("eager")


def raw_batches(path: Path, split: str = "train") -> list[bytes]:
    """The bytes of all batch files, without what names the queue: its random id, and checksums of that."""
    queue = path / "queue" / split
    name = read_meta(queue).queue.encode()
    files = sorted(queue.glob("*.safetensors"))
    contents = [file.read_bytes().replace(name, b"the queue's name") for file in files]
    return [re.sub(rb'"(checksum|header)":"[0-9a-f]{16}"', b"", content, count=2) for content in contents]


# Restarts ---------------------------------------------------------------------------------------------------------


def test_the_bytes_of_batches_do_not_depend_on_restarts(tmp_path):
    """Two providers, ended or killed whenever: the files are those of two that were never interrupted."""
    rng = random.Random(7)
    order = [rng.randrange(2) for _ in range(30)]
    with ExitStack() as stack:
        running = [stack.enter_context(provider(tmp_path / "never", name)) for name in range(2)]
        for name in order:
            running[name].publish("train")
    expected = raw_batches(tmp_path / "never")
    assert len(set(expected)) == 30

    for number in range(times(3)):
        path, n_done = tmp_path / str(number), 0
        while n_done < len(order):
            part, is_killed = order[n_done : n_done + rng.randrange(1, 5)], rng.random() < 0.5
            in_child(lambda path=path, part=part, is_killed=is_killed: publish_by_both(path, part, is_killed))
            n_done += len(part)
        assert raw_batches(path) == expected


def publish_by_both(path: Path, order: list[int], is_killed: bool) -> None:
    """Start two providers, publish in an order, and end."""
    running = [provider(path, name).open() for name in range(2)]
    for name in order:
        running[name].publish("train")
    if is_killed:
        die()
    for each in running:
        each.close()


def test_a_batch_can_be_made_again_without_publishing_it(path):
    """``make_batch`` gives the batch of any number, and changes nothing."""
    with provider(path) as running, consumer(path) as reader:
        for counter in range(3):
            ahead = running.make_batch("train", counter)
            assert running.publish("train") == counter
            again = running.make_batch("train", counter)
            published = reader.get_batch()
            for name in ("x", "made"):
                assert np.array_equal(published[name], ahead[name])
                assert np.array_equal(published[name], again[name])
        assert running.batch_number("train") == 3
        assert queues.entry(0, running.make_batch("train", 700))[2] == 700
        assert running.batch_number("train") == 3


def test_the_number_of_a_batch_goes_on_after_a_restart(path):
    """In ``sample_batch`` it is the number of the batch that is made; outside, of the next one; per split."""
    seen = []

    class Watching(Counting):
        def sample_batch(self, split, rng):
            seen.append((split, self.batch_number(split)))
            return super().sample_batch(split, rng)

    config = {**queues.CONFIG, "splits": ["train", "val"]}
    for _ in range(2):
        with Watching(config, path=path) as running:
            for split in ("train", "val", "train"):
                running.publish(split)
            numbers = running.batch_number("train"), running.batch_number("val")

    assert seen == [("train", 0), ("val", 0), ("train", 1), ("train", 2), ("val", 1), ("train", 3)]
    assert numbers == (4, 2)


def test_randomness_is_the_provider_s_the_split_s_and_the_seed_s(path):
    """Each of them changes what is drawn; the same again gives the same."""
    config = {**queues.CONFIG, "splits": ["train", "val"]}
    drawn = {
        (seed, name, split, counter): Counting({**config, "seed": seed}, path=path, name=f"w{name}")
        .make_batch(split, counter)["x"]
        .tobytes()
        for seed in (0, 1)
        for name in (0, 1)
        for split in ("train", "val")
        for counter in (0, 1)
    }
    assert len(set(drawn.values())) == len(drawn) == 16


def test_the_sequence_of_a_provider_is_pinned():
    """Seeded orders are part of the format: whoever changes this changes everybody's batches."""
    assert provider(Path("nowhere")).make_batch("train", 3)["x"].tolist() == [
        [588614108907, 618583534101, 627763398600],
        [750599190504, 190595897901, 547197186704],
    ]


def test_a_name_in_use_is_refused_and_the_first_is_not_disturbed(path):
    """Two of one name would make each batch twice; the name is free again when its provider has ended or was killed."""
    with provider(path) as first:
        with pytest.raises(ConfigError, match=r"a provider named 'w0' is running .*give this one another name"):
            provider(path).open()
        assert first.publish("train") == 0
        assert publish(path, 1, name=1) == [1]
    assert publish(path, 1) == [2]
    assert in_child(lambda: provider(path).open() and die()) == -9
    assert publish(path, 1) == [3]


@pytest.mark.parametrize("name", ["", ".w0", "a/b", "..", "w0\n", "x" * 129])
def test_a_name_that_is_no_file_name_is_refused(path, name):
    """Before anything is made."""
    with pytest.raises(ConfigError, match="provider "):
        Counting(queues.CONFIG, path=path, name=name)
    assert not path.exists()


def test_a_provider_that_is_killed_again_and_again_makes_each_batch_once(path):
    """Killed at any moment of its work, while a trainer reads and deletes what it made."""
    rng, ledger = random.Random(11), []
    publish(path, 1)
    with consumer(path, acknowledge="on_read") as reader:
        for _ in range(times(15)):
            pid = fork(lambda: provide(path))
            try:
                ledger += [take(reader) for _ in range(rng.randrange(1, 20))]
            finally:
                kill(pid)
    check_ledger(ledger)
    assert len(ledger) > times(15) * 5


@pytest.mark.parametrize("durability", ["process", "power"])
def test_durability_is_what_the_newest_provider_says(path, monkeypatch, durability):
    """Also in a queue that was made with the other one."""
    other = {"process": "power", "power": "process"}[durability]
    publish(path, 1, durability=other)
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))

    with provider(path, durability=durability) as running:
        synced.clear()
        running.publish("train")

    assert bool([name for name in synced if "/train/tmp/" in name]) == (durability == "power")
    assert str(path / "queue" / "train") in synced or durability == "process"


# The schema -------------------------------------------------------------------------------------------------------

GOOD = {"x": np.zeros((2, 3), np.int64), "made": np.zeros((2, 2), np.int64)}


class Erring(Counting):
    """Makes what it is told to."""

    batch: object = GOOD

    def sample_batch(self, split, rng):
        return self.batch


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": GOOD["x"]}, r"batch_schema has \['x', 'made'\], field 'made' is missing"),
        ({**GOOD, "z": 1}, r"batch_schema has \['x', 'made'\], field 'z' is not in it"),
        ({**GOOD, "x": np.zeros((2, 3))}, r"field 'x': batch_schema says int64\[rows, 3\], got float64\[2, 3\]"),
        (
            {**GOOD, "x": np.zeros((2, 3), np.int32)},
            r"field 'x': batch_schema says int64\[rows, 3\], got int32\[2, 3\]",
        ),
        (
            {**GOOD, "x": np.zeros((2, 4), np.int64)},
            r"field 'x': batch_schema says int64\[rows, 3\], got int64\[2, 4\]",
        ),
        ({**GOOD, "x": np.zeros(2, np.int64)}, r"field 'x': batch_schema says int64\[rows, 3\], got int64\[2\]"),
        ({**GOOD, "x": np.int64(3)}, r"field 'x': batch_schema says int64\[rows, 3\], got int64\[\]"),
        ({**GOOD, "made": np.zeros((3, 2), np.int64)}, r"field 'made': 3 rows, where 'x' has 2"),
        ({name: array[:0] for name, array in GOOD.items()}, r"field 'x': 0 rows.* at least one"),
        ({**GOOD, "x": [[1, 2, 3], [4, 5]]}, r"field 'x': "),
        ({**GOOD, "x": np.full((2, 3), "one")}, r"field 'x': "),
        ({**GOOD, "x": np.full((2, 3), None)}, r"field 'x': "),
        ({**GOOD, "x": None}, r"field 'x': "),
        ({**GOOD, "x": [[2**70, 0, 0], [0, 0, 0]]}, r"field 'x': "),
        (None, "returns a dict of arrays by name, got NoneType"),
        ((GOOD["x"], GOOD["made"]), "returns a dict of arrays by name, got tuple"),
    ],
)
def test_what_does_not_fit_the_schema_never_leaves_the_provider(path, batch, message):
    """The error names field, expected, got and whose batch it was; nothing was published, the number is not used."""
    with Erring(queues.CONFIG, path=path) as running:
        running.publish("train")
        running.batch = batch
        for _ in range(2):
            with pytest.raises(SchemaError, match=rf"provider 'w0', split 'train', batch 1.*{message}"):
                running.publish("train")
        with pytest.raises(SchemaError, match=message):
            running.run()
        assert running.batch_number("train") == 1
        assert os.listdir(path / "queue" / "train" / "tmp") == []
        running.batch = GOOD
        assert running.publish("train") == 1
    assert check_log(path) == (0, 2)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6).reshape(2, 3).astype(">i8"),
        np.arange(6).reshape(3, 2).T.copy().T.reshape(2, 3),
        np.arange(12).reshape(2, 6)[:, ::2] // 2,
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6).reshape(2, 3).tolist(),
    ],
)
def test_how_an_array_lies_in_memory_makes_no_difference(path, x):
    """Byte order, strides, plain lists: the trainer gets the values."""
    with Erring(queues.CONFIG, path=path) as running, consumer(path) as reader:
        running.batch = {**GOOD, "x": x}
        running.publish("train")
        batch = reader.get_batch()
    assert batch["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["x"].dtype == np.int64


def test_an_error_of_sample_batch_keeps_its_type_and_gains_its_place(path):
    """The next call makes the same batch again."""

    class Failing(Counting):
        is_broken = False

        def sample_batch(self, split, rng):
            if self.is_broken:
                raise ZeroDivisionError("by three")
            return super().sample_batch(split, rng)

    with Failing(queues.CONFIG, path=path) as running:
        running.publish("train")
        running.is_broken = True
        with pytest.raises(ZeroDivisionError, match="by three") as caught:
            running.run()
        running.is_broken = False
        assert running.publish("train") == 1
    assert caught.value.__notes__ == ["while provider 'w0' made batch 1 of split 'train'"]
    with consumer(path) as reader:
        check_ledger([take(reader) for _ in range(2)])


def test_another_schema_waits_until_the_old_batches_are_read(path):
    """Both fingerprints are named, and the command that discards the old ones."""

    class Wider(Counting):
        def build_meta(self):
            return {**super().build_meta(), "edition": 2}

    publish(path, 2)
    with pytest.raises(StaleSchema, match=r"holds 2 batches of fingerprint ([0-9a-f]{16}), .*poolish queue purge"):
        Wider(queues.CONFIG, path=path).open()
    with consumer(path) as reader:
        check_ledger([take(reader) for _ in range(2)])

    with Wider(queues.CONFIG, path=path) as running:
        number = running.publish("train")
    with consumer(path) as reader:
        assert reader.meta["edition"] == 2
        assert take(reader)[0] == number == 2


# Room -------------------------------------------------------------------------------------------------------------


def fill(running: DataProviderBase, backlog: int) -> list[str]:
    """Let a provider run until all splits have so much waiting; what it published, in order."""
    made: list[str] = []

    def is_full():
        return all(told["backlog"] >= backlog for told in running.status().values()) and bool(running.status())

    running.run(stop=is_full, on_batch=lambda split, number: made.append(split))
    return made


def test_splits_are_filled_in_proportion_to_demand(path):
    """The split with the least waiting comes first: what the trainer took is what is made."""
    config = {**queues.CONFIG, "splits": ["train", "val", "test"], "max_backlog": 4}
    with Counting(config, path=path) as running, consumer(path) as reader:
        assert fill(running, 4) == ["train", "val", "test"] * 4
        for n_taken in ({"train": 3, "val": 1}, {"test": 4, "train": 1}, {"val": 2}):
            for split, n in n_taken.items():
                for _ in range(n):
                    reader.get_batch(split)
            made = fill(running, 4)
            assert Counter(made) == n_taken
            assert made[0] == max(n_taken, key=n_taken.__getitem__)


@pytest.mark.parametrize("acknowledge", ["on_read", "on_step", "on_checkpoint"])
@pytest.mark.parametrize("n_providers", [1, 3])
def test_no_more_than_max_backlog_waits_unread(path, acknowledge, n_providers):
    """Whatever is read counts no more, acknowledged or not; several providers may each have one in the making."""
    publish(path, 1)
    children = [fork(lambda name=name: provide(path, name, max_backlog=4)) for name in range(n_providers)]
    most = 4 + n_providers - 1
    try:
        with consumer(path, acknowledge=acknowledge) as reader:
            ledger = []
            for _ in range(times(40)):
                ledger.append(take(reader))
                waiting = queue_status(path)["train"].waiting
                # One may have come between the two looks.
                assert waiting <= most + 1
                if acknowledge == "on_checkpoint" and len(ledger) % 15 == 0:
                    reader.commit()
    finally:
        for child in children:
            kill(child)
    check_ledger(ledger)
    assert queue_status(path)["train"].waiting <= most


def test_unacknowledged_bytes_are_a_limit_that_says_what_to_do(path):
    """Where the trainer does not commit, the provider waits and says so, and the trainer is told instead of waiting."""
    publish(path, 3)
    size = queue_status(path)["train"].n_bytes // 3
    over = threading.Event()
    with provider(path, max_backlog=3, max_backlog_bytes=6 * size) as running:
        thread = threading.Thread(target=running.run, kwargs={"stop": over.is_set})
        thread.start()
        try:
            with consumer(path, acknowledge="on_checkpoint", timeout_s=20) as reader:
                ledger = []
                with pytest.raises(QueueError, match=r"save a checkpoint more often and call consumer\.commit"):
                    ledger.extend(take(reader) for _ in range(20))
                assert 4 <= len(ledger) <= 8
                wait_until(lambda: "are kept until the trainer acknowledges them" in running.waiting)
                reader.commit()
                ledger += [take(reader) for _ in range(3)]
        finally:
            over.set()
            thread.join()
    check_ledger(ledger)


def test_a_provider_that_has_made_all_is_finished_and_may_be_given_more(path):
    """``max_batches`` counts a provider's life, not its starts; the trainer's loop ends with it."""
    for limit, made in ((3, 3), (3, 0), (5, 2)):
        seen = []
        with provider(path, max_batches=limit) as running:
            running.run(on_batch=lambda split, number, seen=seen: seen.append(number))
        assert len(seen) == made
    with consumer(path) as reader:
        assert len(list(reader)) == 5
    with provider(path, max_batches=6) as running:
        running.run()
    with consumer(path) as reader:
        assert [queues.entry(reader.last_number(), batch)[:3] for batch in reader] == [[5, 0, 5]]


def test_a_note_that_is_damaged_or_gone_costs_nothing(path):
    """The log itself knows what was made; also where the batches are deleted already."""
    for damage in (lambda note: note.unlink(), lambda note: note.write_text("{}"), lambda note: note.write_bytes(b"")):
        before = check_log(path)[1] if path.exists() else 0
        publish(path, 3)
        with consumer(path, acknowledge="on_read") as reader:
            take(reader)
        damage(path / "queue" / "train" / "providers" / "w0.json")
        with provider(path) as running:
            assert running.batch_number("train") == before + 3
        damage(path / "queue" / "train" / "providers" / "w0.json")
    with consumer(path, acknowledge="on_read") as reader:
        while take(reader)[0] < 8:
            pass
    (path / "queue" / "train" / "providers" / "w0.json").unlink(missing_ok=True)
    assert publish(path, 1) == [9]
    with consumer(path) as reader:
        assert take(reader) == [9, 0, 9, wanted(0, 9)]
    assert DirectoryProviders(path / "nowhere").read("w0") == ProviderRecord()


# Datasets ---------------------------------------------------------------------------------------------------------

N_ROWS = 10


def as_dicts():
    return [{"x": np.full(3, i), "label": i} for i in range(N_ROWS)]


def as_hf():
    import datasets

    return datasets.Dataset.from_dict({"x": [[i] * 3 for i in range(N_ROWS)], "label": list(range(N_ROWS))})


def as_hf_numpy():
    return as_hf().with_format("numpy")


def as_snapshot():
    buffer = DatasetBuffer()
    buffer.append(as_dicts())
    return buffer.snapshot()


DATASETS = [as_dicts, as_hf, as_hf_numpy, as_snapshot]


def labels(path: Path, split: str = "train") -> list[list[int]]:
    """All batches of a queue that has ended, each as its labels."""
    with consumer(path) as reader:
        batches = list(reader.batches(split))
    for batch in batches:
        assert (batch["x"] == batch["label"][:, None]).all()
        assert batch["x"].dtype == batch["label"].dtype == np.int64
    return [batch["label"].tolist() for batch in batches]


@pytest.mark.parametrize("make", DATASETS)
def test_a_dataset_in_its_order(path, make):
    """Rows are stacked; the last batch of an epoch is shorter, and the next epoch begins with the first row."""
    with DatasetProvider(make(), path=path, batch_size=4, order="sequential", epochs=2) as running:
        running.run()
    assert labels(path) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2


@pytest.mark.parametrize("make", DATASETS)
def test_a_shuffled_dataset_gives_each_row_once_an_epoch(path, make):
    """In an order of its own for each epoch, which the seed decides."""
    orders = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        with DatasetProvider(make(), path=path / folder, batch_size=4, epochs=3, seed=seed) as running:
            running.run()
        batches = labels(path / folder)
        assert [len(batch) for batch in batches] == [4, 4, 2] * 3
        orders.append([list(chain(*batches[i : i + 3])) for i in (0, 3, 6)])
        assert all(sorted(epoch) == list(range(N_ROWS)) for epoch in orders[-1])
        assert len({tuple(epoch) for epoch in orders[-1]}) == 3
    assert orders[0] == orders[1] != orders[2]


def test_tensors_and_pairs_are_x_and_y(path):
    """A torch dataset of pairs comes out as ``(X, Y)``, as tensors by default."""
    import torch

    X, Y = torch.arange(12, dtype=torch.float32).reshape(6, 2), torch.arange(6, dtype=torch.bfloat16)
    dataset = torch.utils.data.TensorDataset(X, Y)
    with DatasetProvider(dataset, path=path, batch_size=4, order="sequential", epochs=1) as running:
        running.run()

    with consumer(path, output="torch") as reader:
        batches = list(reader)

    assert torch.equal(torch.cat([x for x, _ in batches]), X)
    assert torch.equal(torch.cat([y for _, y in batches]), Y)
    assert batches[0][1].dtype == torch.bfloat16


def test_windows_of_a_stream(path):
    """All windows once an epoch, with types and values."""
    with StreamStore(path / "stream", {"action": "int64"}) as store:
        store.append_many(np.arange(20), {"action": np.arange(20)})
        windows = store.as_dataset(4)
        with DatasetProvider(windows, path=path / "data", batch_size=2, order="sequential", epochs=1) as running:
            running.run()
        with consumer(path / "data") as reader:
            values = np.concatenate([batch["values"] for batch in reader])
    assert np.array_equal(values, np.arange(20).reshape(5, 4))


def test_rows_drawn_at_random_come_from_what_is_there_now(path):
    """A buffer that grows is drawn from as it is when the batch is made."""
    buffer = DatasetBuffer()
    buffer.append([{"label": 0}])
    with DatasetProvider(buffer, path=path, batch_size=64, order="random") as running, consumer(path) as reader:
        running.publish("train")
        buffer.append([{"label": i} for i in range(1, 8)])
        running.publish("train")
        first, second = reader.get_batch()["label"], reader.get_batch()["label"]
    assert len(first) == len(second) == 64
    assert set(first.tolist()) == {0}
    assert set(second.tolist()) <= set(range(8))
    assert len(set(second.tolist())) > 4


@pytest.mark.parametrize("order", ["shuffle", "sequential"])
@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
def test_several_workers_share_an_epoch_also_when_they_are_restarted(path, order, n_workers):
    """Together they serve each row once an epoch, in whatever order they come, and however often they are killed."""
    rng, epochs, n_rows = random.Random(n_workers), 2, 17
    rows = [{"x": np.full(3, i), "label": i} for i in range(n_rows)]

    def worker(number):
        return DatasetProvider(
            rows, path=path, batch_size=3, order=order, epochs=epochs, worker=number, n_workers=n_workers
        )

    unfinished = set(range(n_workers))
    while unfinished:
        number = rng.choice(sorted(unfinished))

        n_batches, is_killed = rng.randrange(4), rng.random() < 0.5

        def child(number=number, n_batches=n_batches, is_killed=is_killed):
            running = worker(number).open()
            for _ in range(min(n_batches, running.n_batches("train") - running.batch_number("train"))):
                running.publish("train")
            if is_killed:
                die()
            running.close()

        in_child(child)
        with worker(number) as running:
            if running.batch_number("train") == running.n_batches("train"):
                unfinished.discard(number)

    served = Counter(chain(*labels(path)))
    assert served == Counter(list(range(n_rows)) * epochs)


def test_a_restart_in_the_middle_of_an_epoch_goes_on_there(path):
    """The order of the epoch is not drawn anew."""
    with DatasetProvider(as_dicts(), path=path / "never", batch_size=3, epochs=2) as running:
        running.run()
    for _ in range(8):
        with DatasetProvider(as_dicts(), path=path / "often", batch_size=3, epochs=2) as running:
            running.publish("train")
    assert labels(path / "often") == labels(path / "never")


def test_splits_have_their_own_rows(path):
    """Each its own dataset, of one schema."""
    rows = as_dicts()
    with DatasetProvider(
        {"train": rows[:6], "val": rows[6:]}, path=path, batch_size=4, order="sequential", epochs=1
    ) as running:
        running.run()
    assert labels(path, "train") == [[0, 1, 2, 3], [4, 5]]
    assert labels(path, "val") == [[6, 7, 8, 9]]


@pytest.mark.parametrize(
    ("datasets", "options", "error", "message"),
    [
        ([], {}, ConfigError, "split 'train': the dataset is empty"),
        ((i for i in range(3)), {}, ConfigError, "generator has no length or no index; make it a list first"),
        ([{"x": 1}], {"order": "sorted"}, ConfigError, "order='sorted': one of 'shuffle', 'sequential', 'random'"),
        ([{"x": 1}], {"worker": 2, "n_workers": 2}, ConfigError, "worker=2 of n_workers=2"),
        ([{"x": 1}], {"batch_size": 0}, ConfigError, "batch_size: should be greater than or equal to 1"),
        ([1, 2], {}, SchemaError, r"a row is a dict or a pair \(x, y\), got int"),
        ([{"x": {"y": 1}}], {}, SchemaError, "column 'x': .*leave .* out with columns="),
        ([{"x": None}], {}, SchemaError, "column 'x': .*leave .* out with columns="),
        ({"train": [{"x": 1}], "val": [{"x": 1.5}]}, {}, SchemaError, "split 'val' has .*serve them apart"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(path, datasets, options, error, message):
    """Before a queue is made."""
    with pytest.raises(error, match=message):
        DatasetProvider(datasets, path=path, **{"batch_size": 2, **options})
    assert not path.exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": np.arange(2)}, {"x": np.arange(3)}], "column 'x'"),
        ([{"x": [[1, 2]]}, {"x": [[1, 2, 3]]}], "column 'x'"),
        ([{"x": "one"}, {"x": 1}], "field 'x', row 1"),
        ([{"x": 1}, {"x": 1.5}], "column 'x'|field 'x'"),
        ([{"x": 1}, {"x": True}], "column 'x'|field 'x'"),
        ([{"x": 1.5}, {"x": 1}], "column 'x'|field 'x'"),
        ([{"x": np.float32(0.5)}, {"x": np.float64(0.5)}], "column 'x'|field 'x'"),
        ([{"x": np.int64(1)}, {"x": np.uint64(1)}], "column 'x'|field 'x'"),
        ([{"x": 1, "y": 1}, {"x": 1}], "y"),
    ],
)
def test_rows_that_are_not_alike_never_leave_the_provider(path, rows, message):
    """A number is not changed to fit its neighbours, and a missing column is not made up."""
    with DatasetProvider(rows, path=path, batch_size=2, order="sequential") as running:
        with pytest.raises((SchemaError, KeyError), match=message):
            running.publish("train")
        assert queue_status(path)["train"].published == 0


def test_columns_are_chosen(path):
    """Text stays at home."""
    rows = [{"text": "a", "label": 1, "weight": 0.5}] * 3
    with DatasetProvider(rows, path=path, batch_size=3, columns=["weight", "label"], epochs=1) as running:
        running.run()
    with consumer(path) as reader:
        [batch] = list(reader)
    assert {name: array.tolist() for name, array in batch.items()} == {"weight": [0.5] * 3, "label": [1] * 3}
