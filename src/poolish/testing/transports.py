"""What every queue transport does, as tests: one that passes can carry any provider's batches to any consumer.

    from poolish.testing import TransportBehaviour

    class TestMyTransport(TransportBehaviour):
        def address(self, folder):
            return f"mine://{folder.name}"          # registered with poolish.transports.register_transport

Each test gets a fresh address. What only some transports promise (surviving kills and power cuts) is theirs to test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from poolish.errors import (
    ConfigError,
    CorruptDataError,
    PoolishError,
    QueueError,
    QueueNotFound,
    StaleSchema,
    Starved,
    StoreLocked,
)
from poolish.serve import DatasetConsumer, DatasetProvider, purge_queue, queue_health, queue_status, verify_queue
from poolish.transports import place_to_fill
from poolish.transports.batch_file import BatchMetadata, decode, encode
from poolish.transports.meta import QueueMeta
from poolish.transports.protocols import Log, Place, ProviderRecord

PATIENCE_S = 30.0
_SCHEMA = [{"name": "x", "dtype": "int64", "shape": [3]}]


class TransportBehaviour:
    """The tests; define ``address``."""

    def address(self, folder: Path) -> str | Path:
        """A fresh address; ``folder`` is empty and may be used."""
        raise ConfigError(f"{type(self).__name__}: define address(folder), which returns a fresh address")

    # -- the log

    def test_numbers_are_gapless(self, tmp_path: Path) -> None:
        """They count from 0, whichever handle publishes, and every batch can be read."""
        place = self._place(tmp_path)
        with opened(place) as first, opened(place) as second:
            numbers = [publish(log, i) for i, log in enumerate([first, second, first, second])]
            assert numbers == [0, 1, 2, 3]
            assert first.numbers() == second.numbers() == numbers
            assert first.next_number() == second.next_number() == 4
            assert [counter_at(second, number) for number in numbers] == numbers

    def test_publishers_at_the_same_time_get_different_numbers(self, tmp_path: Path) -> None:
        """Whichever is quicker, no number is used twice and none is left out."""
        place, numbers = self._place(tmp_path), list[int]()

        def publish_some() -> None:
            with opened(place) as log:
                numbers.extend([publish(log, i) for i in range(20)])

        in_threads([publish_some] * 4)
        with opened(place) as log:
            assert sorted(numbers) == log.numbers() == list(range(80))

    def test_what_is_read_is_a_copy(self, tmp_path: Path) -> None:
        """Changing it changes nothing for others; ``allocate`` decides where it goes."""
        with opened(self._place(tmp_path)) as log:
            publish(log, 7)
            allocated = list[Any]()

            def allocate(n_bytes: int) -> Any:
                allocated.append(np.zeros(n_bytes, np.uint8))
                return allocated[-1]

            for data in (log.read(0), log.read(0, allocate)):
                x: Any = decode(data, "a batch")[1]["x"][1]
                assert x.tolist() == [[7, 7, 7]]
                x[:] = 0
            assert len(allocated) == 1
            assert counter_at(log, 0) == 7

    def test_a_batch_says_who_made_it(self, tmp_path: Path) -> None:
        """Its metadata can be read alone."""
        with opened(self._place(tmp_path)) as log:
            publish(log, 5, provider="w3")
            found = log.metadata(0)
            assert found is not None
            assert (found.queue, found.provider, found.counter, found.rows) == (log.meta.queue, "w3", 5, 1)

    def test_a_missing_batch_is_missing(self, tmp_path: Path) -> None:
        """It is not there, has no metadata, and cannot be read."""
        with opened(self._place(tmp_path)) as log:
            assert (log.has(0), log.metadata(0), log.published_at(0)) == (False, None, None)
            with refused(FileNotFoundError):
                log.read(0)
            publish(log, 0)
            assert log.has(0)
            assert log.published_at(0) is not None

    # -- the watermark

    def test_the_watermark_rises_and_counts(self, tmp_path: Path) -> None:
        """It returns what became done, never falls, and keeps the highest counter of each provider."""
        with opened(self._place(tmp_path)) as log:
            for counter, provider in enumerate(["a", "b", "a"]):
                publish(log, counter, provider=provider)
            assert log.consumed().watermark == 0
            assert log.raise_watermark(2) == range(2)
            assert len(log.raise_watermark(1)) == 0
            assert log.raise_watermark(3, {2: metadata(log, 9, "a")}) == range(2, 3)
            assert (log.consumed().watermark, dict(log.consumed().counters)) == (3, {"a": 9, "b": 1})

    def test_numbers_below_the_watermark_are_never_used_again(self, tmp_path: Path) -> None:
        """Also where all batches are deleted, and by a log that is opened afterwards."""
        place = self._place(tmp_path)
        with opened(place) as log:
            for counter in range(3):
                publish(log, counter)
            log.delete(log.raise_watermark(3))
            assert log.numbers() == []
        with opened(place) as log:
            assert publish(log, 3) == 3
            assert log.removed() == range(0)

    def test_what_is_done_does_not_count(self, tmp_path: Path) -> None:
        """Bytes are those above the watermark; what was not deleted is deleted later."""
        with opened(self._place(tmp_path)) as log:
            publish(log, 0)
            one = log.n_bytes()
            publish(log, 1)
            log.raise_watermark(1)
            assert one > 0
            assert log.n_bytes() == one
            assert log.free_bytes() > 0
            log.delete_done()
            log.recover()
            log.release_space()
            log.skip_removed()
            assert log.numbers() == [1]

    def test_a_watermark_above_the_log_is_refused(self, tmp_path: Path) -> None:
        """It would acknowledge batches that were never published."""
        with opened(self._place(tmp_path)) as log:
            publish(log, 0)
            assert log.has_published(1)
            assert not log.has_published(2)
            with refused(CorruptDataError):
                log.raise_watermark(2)
            assert log.consumed().watermark == 0

    def test_a_tombstone_keeps_the_number(self, tmp_path: Path) -> None:
        """And the provider's counter; written twice it is one, and below the watermark none."""
        with opened(self._place(tmp_path)) as log:
            for counter in range(2):
                publish(log, counter)
            log.raise_watermark(1)
            log.write_tombstone(0, "too late")
            log.write_tombstone(1, "a flipped bit")
            log.write_tombstone(1, "again")
            found = log.metadata(1)
            assert found is not None
            assert (found.tombstone, found.counter, found.provider) == ("a flipped bit", 1, "w0")
            assert len(log.dead()) == 1
            assert log.tombstone_place(1)
            assert publish(log, 2) == 2

    # -- names, marks, records

    def test_a_name_has_one_holder(self, tmp_path: Path) -> None:
        """Until it is released; ranks and providers are apart."""
        place = self._place(tmp_path)
        with opened(place) as log, opened(place) as other:
            claims: list[Callable[[Log], Any]] = [lambda log: log.marks.claim(1), lambda log: log.providers.claim("1")]
            for claim in claims:
                mine, yours = claim(log), claim(other)
                mine.acquire()
                with refused(StoreLocked):
                    yours.acquire()
                yours.release()
                assert (other.marks.alive() == [1]) or other.providers.known()["1"][1]
                mine.release()
                yours.acquire()
                yours.release()
            assert other.marks.alive() == []
            assert not other.providers.known()["1"][1]

    def test_records_are_read_back(self, tmp_path: Path) -> None:
        """A provider without one has an empty record."""
        place, record = self._place(tmp_path), ProviderRecord(3, 8, finished=True)
        with opened(place) as log, opened(place) as other:
            assert log.providers.read("w0") == ProviderRecord()
            assert (log.providers.known(), log.providers.changed_at()) == ({}, None)
            claim = log.providers.claim("w0")
            claim.acquire()
            log.providers.write("w0", record)
            assert other.providers.known() == {"w0": (record, True)}
            claim.release()
            assert other.providers.known() == {"w0": (record, False)}
            assert other.providers.read("w0", strict=True) == record
            assert other.providers.changed_at() is not None

    def test_marks_belong_to_the_newest_attempt(self, tmp_path: Path) -> None:
        """Another attempt replaces the record, changes the version and removes older marks."""
        place = self._place(tmp_path)
        with opened(place) as log, opened(place) as other:
            assert (log.marks.version(), log.marks.read()) == (None, None)
            with log.locked():
                log.marks.begin("0-2-aa", {"start": 0})
            version = other.marks.version()
            assert version is not None
            assert version == log.marks.version()
            assert other.marks.read() == {"start": 0}
            mark, seen = log.marks.counters("0-2-aa", 1, 3), other.marks.counters("0-2-aa", 1, 3)
            assert seen.read() is None
            mark.write(5, 4, 0)
            assert seen.read() == (5, 4, 0)
            mark.close()
            seen.close()
            assert other.marks.counters("0-2-aa", 0, 3).read() is None
            with log.locked():
                log.marks.begin("4-1-bb", {"start": 4})
            assert other.marks.version() != version
            assert other.marks.read() == {"start": 4}
            assert other.marks.counters("0-2-aa", 1, 3).read() is None

    def test_the_lock_excludes(self, tmp_path: Path) -> None:
        """One holder at a time, in any thread and by any handle."""
        place, inside, most = self._place(tmp_path), list[int](), list[int]()

        def enter() -> None:
            with opened(place) as log:
                for _ in range(20):
                    with log.locked():
                        inside.append(1)
                        most.append(len(inside))
                        time.sleep(0.0002)
                        inside.pop()

        in_threads([enter] * 3)
        assert max(most) == 1

    def test_a_waker_sleeps_until_something_changes(self, tmp_path: Path) -> None:
        """A batch that comes, one that goes, a mark that moves; without changes the timeout ends it."""
        with opened(self._place(tmp_path)) as log:
            with log.locked():
                log.marks.begin("0-1-aa", {"start": 0})
            mark = log.marks.counters("0-1-aa", 0, 3)
            mark.write(0, 0, 0)
            waker = log.waker()
            waker.watch("train", "0-1-aa")
            changes: list[Callable[[], object]] = [
                lambda: publish(log, 0),
                lambda: mark.write(1, 1, 0),
                lambda: log.delete(log.raise_watermark(1)),
            ]
            for change in changes:
                later = threading.Timer(0.05, change)
                later.start()
                begun = time.monotonic()
                waker.wait(PATIENCE_S)
                later.join()
                assert time.monotonic() - begun < PATIENCE_S / 2
                while time.monotonic() - begun < 0.2:
                    waker.wait(0.01)  # later events of the same change
            mark.close()
            waker.close()

    # -- creating and purging

    def test_a_queue_is_created_once(self, tmp_path: Path) -> None:
        """The same description opens it again; the newest limits count."""
        place = self._place(tmp_path)
        with closing(place.create("train", described(max_backlog=8))) as first:
            publish(first, 0)
            with closing(place.create("train", described(max_backlog=9))) as second:
                assert second.meta.queue == first.meta.queue
                assert second.numbers() == [0]
                assert first.read_meta().limits == {"max_backlog": 9}
        assert place.splits() == ["train"]
        assert place.meta("train").queue == first.meta.queue
        assert place.open("train", read_only=True).place == place.name_of("train")

    def test_other_batches_are_refused_while_the_old_ones_wait(self, tmp_path: Path) -> None:
        """Once they are done, the queue is for the new ones, and old handles are refused."""
        place = self._place(tmp_path)
        other = QueueMeta.of("train", {"batch_schema": _SCHEMA, "edition": 2})
        with opened(place) as log:
            publish(log, 0)
            with refused(StaleSchema):
                place.create("train", other)
            log.raise_watermark(1)
            with closing(place.create("train", other)) as new:
                assert new.meta.queue == other.queue
            with refused(QueueError):
                log.check_same()

    def test_other_content_is_refused(self, tmp_path: Path) -> None:
        """Half an epoch in one order and half in another is no epoch."""
        place = self._place(tmp_path)
        place.create("train", replace(described(), content={"seed": 1})).close()
        with refused(ConfigError, match="seed=1"):
            place.create("train", replace(described(), content={"seed": 2}))

    def test_a_purged_queue_is_gone_for_everyone(self, tmp_path: Path) -> None:
        """Open handles notice, and a new queue is another one."""
        place = self._place(tmp_path)
        with opened(place) as log:
            publish(log, 0)
            assert place.purge("train") == 1
            assert place.splits() == []
            with refused(QueueNotFound):
                place.open("train")
            with refused(PoolishError):
                publish(log, 1)
            with opened(place) as new:
                assert new.numbers() == []
                with refused(QueueError):
                    log.check_same()

    # -- providers and consumers

    def test_every_batch_arrives_once(self, tmp_path: Path) -> None:
        """From a provider in one thread to a consumer in another, in order, to the end."""
        address = self.address(tmp_path)
        with filled_meanwhile(address), consumer(address) as reading:
            rows = [row for batch in reading for row in batch["row"].tolist()]
        assert rows == list(range(24))
        assert queue_status(address)["train"].acknowledged == 12
        assert verify_queue(address) == {"train": []}
        assert queue_health(address)["train"].figures["waiting"] == 0
        assert purge_queue(address) == {"train": 0}

    def test_ranks_share_the_batches(self, tmp_path: Path) -> None:
        """Each rank gets its share of every round."""
        address = self.address(tmp_path)
        fill(address)
        ranks = [consumer(address, rank=rank, world_size=2, run="r") for rank in range(2)]
        rows = [[reading.get_batch()["row"].tolist() for reading in ranks] for _ in range(6)]
        for reading in ranks:
            reading.close()
        assert np.ravel(rows).tolist() == list(range(24))

    def test_a_rank_is_one_consumer(self, tmp_path: Path, monkeypatch: Any) -> None:
        """A second one of the same rank would train everything twice."""
        monkeypatch.setattr("poolish.serve.ranks._TAKE_OVER_S", 0.05)
        address = self.address(tmp_path)
        fill(address)
        with consumer(address) as first, consumer(address) as second:
            first.get_batch()
            with refused(StoreLocked, QueueError):
                second.get_batch()

    def test_a_state_continues_exactly(self, tmp_path: Path) -> None:
        """Whatever was read after the checkpoint comes again, and nothing before it."""
        address = self.address(tmp_path)
        fill(address)
        with consumer(address, acknowledge="on_checkpoint") as reading:
            for _ in range(3):
                reading.get_batch()
            state = reading.state_dict()
            reading.commit(state)
            reading.get_batch()
        with consumer(address, acknowledge="on_checkpoint") as again:
            again.load_state_dict(state)
            assert again.get_batch()["row"].tolist() == [6, 7]
        assert queue_status(address)["train"].acknowledged == 3

    def test_a_provider_continues_counting(self, tmp_path: Path) -> None:
        """A restart makes the batches that follow, also where all before it are deleted."""
        address = self.address(tmp_path)
        for n_batches in (3, 2):
            with provider(address) as filling:
                for _ in range(n_batches):
                    filling.publish("train")
            with consumer(address, acknowledge="on_read") as reading:
                rows = [reading.get_batch()["row"].tolist() for _ in range(n_batches)]
        assert rows == [[6, 7], [8, 9]]

    def test_a_provider_name_is_taken_while_it_runs(self, tmp_path: Path) -> None:
        """Two providers of one name would make the same batches."""
        address = self.address(tmp_path)
        with provider(address), refused(ConfigError, match="is running"):
            provider(address).open()

    def test_a_corrupt_batch_is_replaced_by_choice(self, tmp_path: Path) -> None:
        """``on_corrupt="cached"`` trains the last good one again; the number stays."""
        address = self.address(tmp_path)
        fill(address)
        with closing(place_to_fill(address).open("train")) as log:
            log.write_tombstone(1, "a flipped bit")
        with consumer(address, on_corrupt="cached") as reading:
            rows = [reading.get_batch()["row"].tolist() for _ in range(3)]
            assert reading.stats["train"]["replaced"] == 1
        assert rows == [[0, 1], [0, 1], [4, 5]]

    def test_a_consumer_that_waits_is_woken(self, tmp_path: Path) -> None:
        """And one that waits for nothing is starved, which names its queue."""
        address = self.address(tmp_path)
        with provider(address) as filling, consumer(address, timeout_s=0.05) as reading:
            with refused(Starved, match="waited"):
                reading.get_batch()
            reading.timeout_s = PATIENCE_S
            threading.Timer(0.05, filling.publish, ("train",)).start()
            assert reading.get_batch()["row"].tolist() == [0, 1]

    def test_a_full_backlog_waits_for_the_consumer(self, tmp_path: Path) -> None:
        """A provider sleeps until batches are read."""
        address = self.address(tmp_path)
        with (
            filled_meanwhile(address, max_backlog=2),
            consumer(address, acknowledge="on_read", prefetch=2) as reading,
        ):
            rows = [row for batch in reading for row in batch["row"].tolist()]
        assert rows == list(range(24))

    def _place(self, folder: Path) -> Place:
        return place_to_fill(self.address(folder))


def described(**limits: int) -> QueueMeta:
    """The description of a queue for rows of three integers."""
    return QueueMeta.of("train", {"batch_schema": _SCHEMA}, limits)


@contextmanager
def opened(place: Place) -> Iterator[Log]:
    """The queue of one split, created where there is none."""
    with closing(place.create("train", described())) as log:
        yield log


def metadata(log: Log, counter: int, provider: str = "w0") -> BatchMetadata:
    """The metadata of a batch of one row."""
    return BatchMetadata(log.meta.queue, log.meta.schema.fingerprint, 1, provider, counter)


def publish(log: Log, counter: int, provider: str = "w0") -> int:
    """Publish a batch that holds its counter."""
    columns = {"x": ("int64", np.full((1, 3), counter))}
    return log.publish(encode(columns, metadata(log, counter, provider)), provider)


def counter_at(log: Log, number: int) -> int:
    """The counter that the batch of a number holds."""
    return int(decode(log.read(number), log.name_of(number))[1]["x"][1][0, 0])


def provider(address: str | Path, **settings: Any) -> DatasetProvider:
    """A provider of 24 rows in 12 batches."""
    rows = [{"row": i} for i in range(24)]
    options = {"batch_size": 2, "order": "sequential", "epochs": 1, "min_free_bytes": 0, **settings}
    return DatasetProvider(rows, path=address, **options)


def fill(address: str | Path) -> None:
    """Publish all batches."""
    with provider(address) as filling:
        filling.run()


@contextmanager
def filled_meanwhile(address: str | Path, **settings: Any) -> Iterator[None]:
    """Publish all batches in another thread, by a provider that ends when it has."""
    filling = provider(address, **settings).open()

    def run() -> None:
        with filling:
            filling.run()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def consumer(address: str | Path, **options: Any) -> DatasetConsumer:
    """A consumer of arrays that does not wait for ever."""
    return DatasetConsumer(address, **{"output": "numpy", "timeout_s": PATIENCE_S, **options})


@contextmanager
def refused(*errors: type[Exception], match: str = "") -> Iterator[None]:
    """Check that the block raises one of the errors, with ``match`` in its message; poolish does not import pytest."""
    try:
        yield
    except errors as error:
        if match in str(error):
            return
        raise
    raise AssertionError(f"expected {' or '.join(error.__name__ for error in errors)}, nothing was raised")


def in_threads(functions: list[Callable[[], None]]) -> None:
    """Run functions at the same time; their first error is raised."""
    errors = list[BaseException]()

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
