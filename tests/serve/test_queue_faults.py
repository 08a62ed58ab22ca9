"""What can happen to a queue: full disks, failing calls, removal under a running pair, strange files, 100,000 batches.

Each of them ends in an error that says so, or in nothing at all; and when the fault is over, with every batch in order.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish.errors import (
    ConfigError,
    CorruptDataError,
    PoolishError,
    QueueError,
    QueueNotFound,
    ResumeError,
    StaleSchema,
    Starved,
    StoreFull,
    StoreLocked,
)
from poolish.files import Partial
from poolish.serve import purge_queue, queue_status, verify_queue
from poolish.transports.log import DirectoryLog
from tests.effort import IS_SOAK, times
from tests.faults import (
    children,
    ended,
    fill,
    fork,
    in_child,
    kill,
    read_only_story,
    signals,
    small_disk,
    wait_until,
)
from tests.serve.damage import (
    Counting,
    consumer,
    counter_of,
    failing,
    file_of,
    filled,
    leftovers,
    made,
    names,
    provider,
    snapshot,
    take,
    within,
    words,
)

MIB = 1 << 20


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits ten seconds for a lock, or for another rank, that will not come."""
    monkeypatch.setattr("poolish.serve.ranks._TAKE_OVER_S", 0.3, raising=False)
    monkeypatch.setattr("poolish.serve.reader._FOR_RANK_0_S", 0.3, raising=False)


class Wide(Counting):
    """Batches of a size that matters to a disk."""

    def build_meta(self) -> dict[str, Any]:
        meta = super().build_meta()
        return {**meta, "batch_schema": [*meta["batch_schema"], {"name": "c", "dtype": "uint8", "shape": [self.width]}]}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        return {**made(self.batch_number(split)), "c": np.ones((2, self.width), np.uint8)}


def wide(path: Path, n_bytes: int = 100_000, **settings: Any) -> Wide:
    known = {"dataset": "numbers", "batch_size": 2, "block_size": 3, "splits": ("train",), "min_free_bytes": 0}
    return Wide({**known, "max_backlog": 10_000, "width": n_bytes // 2, **settings}, path=path)


# -- unfinished files


@pytest.mark.parametrize("folder", ["tmp", ".", "providers", "dead"])
def test_unfinished_files_are_swept_when_their_writer_is_dead(tmp_path: Path, folder: str):
    """Never by age, never under a living writer, wherever in the queue it was killed."""
    split = filled(tmp_path, 1)
    with signals() as (say_begun, wait_begun), signals() as (_, wait_for_ever):

        def write() -> None:
            partial = Partial(split / folder, "w7")
            os.utime(partial.path, (0, 0))
            say_begun()
            wait_for_ever()

        writer = fork(write)
        wait_begun()
        with provider(tmp_path) as filling:
            filling.publish("train")
        assert len(leftovers(split)) == 1

        kill(writer)
    with provider(tmp_path) as filling:
        filling.publish("train")

    assert leftovers(split) == []
    with consumer(tmp_path) as reading:
        assert take(reading, 3) == [0, 1, 2]


def test_unfinished_files_are_no_batches(tmp_path: Path):
    """A killed provider leaves what it had written, and nobody reads it."""
    split = filled(tmp_path, 1)

    def die_writing() -> None:
        partial = Partial(split / "tmp", "w0")
        partial.file.write(file_of(split, 0).read_bytes()[:100])
        partial.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die_writing) == -signal.SIGKILL
    assert queue_status(tmp_path)["train"].published == 1
    with consumer(tmp_path, timeout_s=0.1) as reading:
        assert take(reading, 1) == [0]
        with pytest.raises(Starved):
            reading.get_batch()


def test_files_of_network_file_systems_and_editors_are_left_alone(tmp_path: Path):
    """Names that are no batches: neither read nor removed, by anyone."""
    split = filled(tmp_path, 3)
    strange = [".nfs000000000123", "000000000001.safetensors~", "1.safetensors", "README", "000000000001.SAFETENSORS"]
    for name in strange:
        (split / name).write_bytes(b"?")
    with consumer(tmp_path) as reading:
        assert take(reading, 3) == [0, 1, 2]
    with provider(tmp_path) as filling:
        assert filling.publish("train") == 3
    assert all((split / name).exists() for name in strange)
    assert queue_status(tmp_path)["train"].published == 4


# -- corrupt batches


def spoil(split: Path, number: int) -> bytes:
    content = bytearray(file_of(split, number).read_bytes())
    content[-1] ^= 1
    file_of(split, number).write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("acknowledge", ["on_read", "on_step", "on_checkpoint"])
def test_a_corrupt_batch_raises_and_stays_in_the_way(tmp_path: Path, prefetch: int, acknowledge: str):
    """It goes to dead/ with the reason, a tombstone keeps its number, and it raises again after a restart."""
    split = filled(tmp_path, 4)
    content = spoil(split, 1)

    with consumer(tmp_path, prefetch=prefetch, acknowledge=acknowledge) as reading:
        assert take(reading, 1) == [0]
        for _ in range(2):
            with pytest.raises(CorruptDataError, match=r"batch 1 of 'train'.*dead/000000000001\.json.*cached"):
                reading.get_batch()
            assert reading.stats["train"]["position"] == 1
        state = reading.state_dict()
    with consumer(tmp_path, prefetch=prefetch, acknowledge=acknowledge) as reading:
        reading.load_state_dict(state)
        with pytest.raises(CorruptDataError, match="batch 1 of 'train'"):
            reading.get_batch()

    told = json.loads((split / "dead" / "000000000001.json").read_text())
    assert told["number"] == 1
    assert "checksum" in told["reason"]
    assert (split / "dead" / "000000000001.safetensors").read_bytes() == content
    assert file_of(split, 1).exists()
    assert queue_status(tmp_path)["train"].dead == 1
    assert ["is dead" in problem for problem in verify_queue(tmp_path)["train"]] == [True]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("corrupt", [0, 1, 3, 5])
def test_a_corrupt_batch_is_replaced_by_the_last_good_one(tmp_path: Path, prefetch: int, corrupt: int):
    """And counted. Where there is none before it, by the next: a first batch is no exception."""
    for i in range(times(4)):
        split = filled(tmp_path / str(i), 6)
        spoil(split, corrupt)
        expected = list(range(6))
        expected[corrupt] = max(corrupt - 1, 0) if corrupt else 1

        with consumer(tmp_path / str(i), prefetch=prefetch, on_corrupt="cached") as reading:
            assert take(reading, 6) == expected
            assert reading.stats["train"]["replaced"] == 1
            assert reading.stats["train"]["position"] == 6


def test_batches_that_are_corrupt_in_a_row(tmp_path: Path):
    """The last good one again, as often as it takes; what the trainer did to its copy is not in it."""
    split = filled(tmp_path, 6)
    for number in (2, 3, 4):
        spoil(split, number)
    with consumer(tmp_path, on_corrupt="cached") as reading:
        seen = []
        for _ in range(6):
            batch = reading.get_batch()
            seen.append(counter_of(batch))
            batch["a"] += 5
        assert seen == [0, 1, 1, 1, 1, 5]
        assert reading.stats["train"]["replaced"] == 3


def test_nothing_to_replace_a_corrupt_batch_with(tmp_path: Path):
    """All of them are corrupt: that is an error under any policy."""
    split = filled(tmp_path, 2)
    for number in (0, 1):
        spoil(split, number)
    with consumer(tmp_path, on_corrupt="cached") as reading, pytest.raises(CorruptDataError, match="batch 0"):
        reading.get_batch()


def test_ranks_stay_in_step_over_a_corrupt_batch(tmp_path: Path):
    """Every rank gets as many batches as the others."""
    split = filled(tmp_path, 8, max_batches=8)
    spoil(split, 3)
    ranks = [consumer(tmp_path, rank=rank, world_size=2, on_corrupt="cached") for rank in range(2)]
    with ranks[0], ranks[1]:
        assert take(ranks[0], 4) == [0, 2, 4, 6]
        assert take(ranks[1], 4) == [1, 1, 5, 7]


def test_a_batch_that_reads_well_the_second_time_is_not_buried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It may have been the reading."""
    split = filled(tmp_path, 1)
    content = file_of(split, 0).read_bytes()
    spoiled = spoil(split, 0)
    from poolish.transports import batch_file

    real, seen = batch_file.decode, []

    def once_wrong(*arguments: Any, **options: Any) -> Any:
        try:
            return real(*arguments, **options)
        finally:
            seen.append(1)
            file_of(split, 0).write_bytes(content)

    monkeypatch.setattr(batch_file, "decode", once_wrong)
    assert spoiled != content
    with consumer(tmp_path) as reading:
        assert take(reading, 1) == [0]
    assert len(seen) >= 2
    assert queue_status(tmp_path)["train"].dead == 0


def test_a_batch_that_was_removed_by_hand_is_told(tmp_path: Path):
    """A gap in the log: ``verify`` says so, and the next provider puts a tombstone there."""
    split = filled(tmp_path, 4)
    file_of(split, 1).unlink()
    assert verify_queue(tmp_path) == {"train": ["batch 1 is missing: the log has a gap"]}
    with provider(tmp_path):
        pass
    assert file_of(split, 1).exists()
    assert not any("gap" in line for line in verify_queue(tmp_path)["train"])
    with consumer(tmp_path) as reading:
        take(reading, 1)
        with pytest.raises(CorruptDataError, match="missing"):
            reading.get_batch()


# -- purging by hand


def remove_batches(split: Path) -> None:
    """What `rm queue/train/*.safetensors` does."""
    for file in split.glob("*.safetensors"):
        file.unlink()


@pytest.mark.parametrize("n_read", [0, 2])
@pytest.mark.parametrize("first", ["provider", "consumer"])
def test_a_purge_by_hand_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str, n_read: int):
    """The next start of either side says how many went and goes on with the next number; no batch comes twice."""
    split = filled(tmp_path, 5, max_backlog=5)
    with consumer(tmp_path) as reading:
        take(reading, n_read)
    remove_batches(split)

    with caplog.at_level(logging.WARNING, "poolish.serve"):
        if first == "consumer":
            with consumer(tmp_path, timeout_s=0.1) as reading, pytest.raises(Starved, match="batch 5 "):
                reading.get_batch()
        with provider(tmp_path, max_backlog=5) as filling:
            assert filling.status()["train"]["backlog"] == 0
            assert [filling.publish("train") for _ in range(2)] == [5, 6]

    (said,) = [record.getMessage() for record in caplog.records if "removed by hand" in record.getMessage()]
    names(RuntimeError(said), split, f"all {5 - n_read} waiting batches", f"{n_read} to 4", "batch 5")
    filled(tmp_path, 1)  # one more start finds no gap
    assert verify_queue(tmp_path) == {"train": []}
    with consumer(tmp_path) as reading:
        assert take(reading, 3) == [5, 6, 7]
    assert queue_status(tmp_path)["train"].dead == 0


@pytest.mark.parametrize("provider_first", [False, True])
def test_a_state_below_a_purge_by_hand_is_refused(tmp_path: Path, provider_first: bool):
    """Its batches are gone, and the error says how to go on; a state after the last of them resumes."""
    split = filled(tmp_path, 5)
    states = []
    with consumer(tmp_path, acknowledge="on_checkpoint") as reading:
        for _ in range(5):
            take(reading, 1)
            states.append(reading.state_dict())
    remove_batches(split)
    if provider_first:
        filled(tmp_path, 1)

    with consumer(tmp_path, acknowledge="on_checkpoint") as reading:
        with pytest.raises(ResumeError, match=r"the state is at batch 2, but .*to 4 .*removed by hand"):
            reading.load_state_dict(states[1])
        reading.load_state_dict(states[4])
        filled(tmp_path, 1)
        assert take(reading, 1) == [5]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_waiting_consumer_notices_a_purge_by_hand(tmp_path: Path, monkeypatch, prefetch: int):
    """It never waits for a number that will not come; started again, it goes on."""
    monkeypatch.setattr("poolish.serve.reader._LOST_S", 0.1)
    split = filled(tmp_path, 9)
    with consumer(tmp_path, prefetch=prefetch, timeout_s=None) as reading:
        take(reading, 1)
        remove_batches(split)
        with (
            within(20),
            pytest.raises(ResumeError, match=r"waits for batch \d, but \d to 8 were removed by hand.*batch 9"),
        ):
            take(reading, 8)  # some may have been read ahead
    filled(tmp_path, 1)
    with consumer(tmp_path) as reading:
        assert take(reading, 1) == [9]


def test_a_batch_that_goes_between_look_and_read_is_a_purge_by_hand(tmp_path: Path, monkeypatch):
    """Files removed one after the other while the consumer opens the first of them are named as removed by hand."""
    monkeypatch.setattr("poolish.serve.reader._LOST_S", 0.1)
    split = filled(tmp_path, 5)
    with consumer(tmp_path, timeout_s=None) as reading:
        take(reading, 1)
        split_reader = reading._readers["train"]
        remove_batches(split)

        with pytest.raises(ResumeError, match="waits for batch 1, but 0 to 4 were removed by hand"):
            split_reader.read(1)


def test_removed_files_make_way_for_another_schema(tmp_path: Path):
    """Changing the schema or the vocabulary, and removing the files, is all that it takes."""
    remove_batches(filled(tmp_path, 3))

    filled(tmp_path, 2, edition=2)

    with consumer(tmp_path) as reading:
        assert reading.meta["edition"] == 2
        assert take(reading, 2) == [3, 4]


def strange_files(folder: Path) -> dict[str, Callable[[Path], object]]:
    outside = folder / "outside"
    outside.write_bytes(b"secret" * 100)
    return {
        "link": lambda file: file.symlink_to(outside),
        "link to nowhere": lambda file: file.symlink_to(folder / "nowhere"),
        "link to itself": lambda file: file.symlink_to(file),
        "link to a batch": lambda file: file.symlink_to(file_of(file.parent, 0)),
        "pipe": os.mkfifo,
        "directory": lambda file: file.mkdir(),
        "full directory": lambda file: (file.mkdir(), (file / "child").write_text("?")),
        "device": lambda file: os.mknod(file, 0o600 | 0o020000, os.makedev(1, 3)),
        "empty": lambda file: file.touch(),
        "too large": lambda file: (file.touch(), os.truncate(file, 3 * 2**30)),
    }


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    "kind",
    [
        *("link", "link to nowhere", "link to itself", "link to a batch", "pipe", "directory", "full directory"),
        *("device", "empty", "too large"),
    ],
)
def test_strange_files_in_place_of_a_batch(tmp_path: Path, kind: str, prefetch: int):
    """Corrupt batches like any other: told, moved away, replaced if so wished; never followed, never waited for."""
    split = filled(tmp_path, 4)
    file_of(split, 1).unlink()
    try:
        strange_files(tmp_path)[kind](file_of(split, 1))
    except PermissionError:
        pytest.skip("no devices can be made here")

    with within(20):
        assert len(verify_queue(tmp_path)["train"]) == 1
        assert queue_status(tmp_path)["train"].published == 4
        with provider(tmp_path) as filling:
            assert filling.publish("train") == 4
        with consumer(tmp_path, prefetch=prefetch) as reading:
            assert take(reading, 1) == [0]
            with pytest.raises(CorruptDataError, match="batch 1 of 'train'"):
                reading.get_batch()
        with consumer(tmp_path, prefetch=prefetch, on_corrupt="cached") as reading:
            assert take(reading, 4)[1:] == [2, 3, 4]
    assert (tmp_path / "outside").read_bytes() == b"secret" * 100
    assert (tmp_path / "outside").stat().st_nlink == 1
    assert queue_status(tmp_path)["train"].dead == 1


@pytest.mark.parametrize("name", ["marks", "tmp", "dead", "providers"])
def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path, name: str):
    """Whoever can put one there must not be able to have anything outside removed or written."""
    split = filled(tmp_path, 2)
    outside = tmp_path / "outside"
    (outside / "photos").mkdir(parents=True)
    (outside / "photos" / "holiday").write_text("!")
    (outside / ".w0.0123456789abcdef.partial").write_text("!")
    (outside / "w0.json").write_text("!")
    before = snapshot(outside)
    shutil.rmtree(split / name)
    (split / name).symlink_to(outside)

    with within(10):
        for use in (
            lambda: queue_status(tmp_path),
            lambda: provider(tmp_path).publish("train"),
            lambda: take(consumer(tmp_path), 1),
        ):
            with suppress(PoolishError, OSError):
                use()

    assert snapshot(outside) == before


@pytest.mark.parametrize("name", ["providers/zz.lock", "providers/zz.json", "next", "consumed", "run.json", "lock"])
def test_a_pipe_in_place_of_a_note_hangs_nobody(tmp_path: Path, name: str):
    """Opened without waiting, and told if it matters."""
    split = filled(tmp_path, 2)
    (split / name).unlink(missing_ok=True)
    os.mkfifo(split / name)
    if name == "providers/zz.json":
        (split / "providers" / "zz.lock").touch()

    with within(15):
        for use in (
            lambda: queue_status(tmp_path),
            lambda: verify_queue(tmp_path),
            lambda: provider(tmp_path).publish("train"),
            lambda: take(consumer(tmp_path, timeout_s=0.2), 4),
        ):
            with suppress(PoolishError, OSError):
                use()


# -- schemas


def test_another_schema_is_refused_while_batches_of_the_old_one_are_there(tmp_path: Path):
    """With both fingerprints and the command that discards them; allowed when they are read."""
    split = filled(tmp_path, 2)
    old = queue_status(tmp_path)["train"].fingerprint
    before = snapshot(split)

    with pytest.raises(StaleSchema) as caught:
        provider(tmp_path, edition=2).open()

    names(caught.value, old, "poolish queue purge", str(split), "2 batches")
    after = snapshot(split)
    assert {name: after[name] for name in after if "lock" not in name} == {
        name: before[name] for name in before if "lock" not in name
    }
    with consumer(tmp_path) as reading:
        take(reading, 2)
    with provider(tmp_path, edition=2) as filling:
        filling.publish("train")
    new = queue_status(tmp_path)["train"].fingerprint
    assert new != old
    names(caught.value, new)
    with consumer(tmp_path) as reading:
        assert take(reading, 1) == [2 if filling.batch_number("train") == 3 else 0]


def test_purge_makes_way_for_another_schema(tmp_path: Path):
    """What the message advises works."""
    split = filled(tmp_path, 2)
    assert purge_queue(split) == {"train": 2}
    with provider(tmp_path, edition=2) as filling:
        assert filling.publish("train") == 0
    with consumer(tmp_path) as reading:
        assert take(reading, 1) == [0]
    assert not list(split.parent.glob(".purged*"))


def test_batches_that_are_done_do_not_stand_in_the_way_of_another_schema(tmp_path: Path, monkeypatch):
    """A consumer that was killed before it could delete them had raised the watermark."""
    split = filled(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryLog, "delete", lambda log, numbers: None)
        with consumer(tmp_path) as reading:
            take(reading, 3)
    assert file_of(split, 0).exists()

    with provider(tmp_path, edition=2) as filling:
        filling.publish("train")
    with consumer(tmp_path) as reading:
        reading.get_batch()
        with pytest.raises(Starved):
            consumer_without_patience(reading).get_batch()


def consumer_without_patience(reading: Any) -> Any:
    reading.timeout_s = 0.1
    return reading


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_consumer_of_the_old_schema_is_told(tmp_path: Path, prefetch: int):
    """Its queue was drained and made anew under it: a typed error, not a batch of another kind."""
    filled(tmp_path, 2)
    with consumer(tmp_path, acknowledge="on_read", prefetch=prefetch, timeout_s=10) as reading:
        take(reading, 2)
        state = reading.state_dict()
    old = consumer(tmp_path, acknowledge="on_read", prefetch=prefetch, timeout_s=10)
    old.load_state_dict(state)
    with provider(tmp_path, edition=2) as filling:
        filling.publish("train")
        with within(5), pytest.raises(QueueError) as caught:
            old.get_batch()
        assert not isinstance(caught.value, Starved)
    with suppress(QueueError):  # it cannot acknowledge any more, and says so
        old.close()
    with consumer(tmp_path) as new, pytest.raises(ResumeError, match="purged or created again"):
        new.load_state_dict(state)


def test_a_provider_of_the_old_schema_is_told(tmp_path: Path):
    """It was drained and replaced while it slept: it may not put old batches into the new queue."""
    filled(tmp_path, 0)
    with provider(tmp_path, name="w0") as old:
        with provider(tmp_path, name="w1", edition=2) as new:
            new.publish("train")
        with pytest.raises(QueueError, match="purged and created again"):
            old.publish("train")
    assert queue_status(tmp_path)["train"].published == 1


# -- the queue goes away


def remove(split: Path, how: str) -> None:
    if how == "purge":
        purge_queue(split)
    elif how == "rename":
        os.rename(split.parent, split.parent.with_name("elsewhere"))
    else:
        delete = ["rm", "-rf", str(split.parent)]
        wait_until(lambda: subprocess.run(delete, capture_output=True, check=False) and not split.parent.exists())


def telling(file: Path, use: Callable[[], object]) -> Callable[[], None]:
    """A function for a child that writes down how it ended, and how much it had worked meanwhile."""

    def child() -> None:
        begun, worked = time.monotonic(), time.process_time()
        told: dict[str, Any] = {"error": ""}
        try:
            use()
        except Exception as error:
            told = {"error": type(error).__name__, "message": str(error), "is_ours": isinstance(error, QueueError)}
        told["load"] = (time.process_time() - worked) / (time.monotonic() - begun)
        file.write_text(json.dumps(told))

    return child


@contextmanager
def running_pair(tmp_path: Path, *, prefetch: int, is_waiting: bool) -> Iterator[list[int]]:
    """A provider and a consumer in processes of their own; their pids."""

    def provide() -> None:
        # Where it waits, it is for room on the disk, of which there is never enough.
        with provider(tmp_path / "set", max_backlog=30, min_free_bytes=2**60 if is_waiting else 0) as filling:
            filling.run()

    def consume() -> None:
        reading = consumer(tmp_path / "set", timeout_s=None, prefetch=prefetch)
        while True:
            reading.get_batch()

    filled(tmp_path / "set", 4)
    with children(telling(tmp_path / "provider", provide), telling(tmp_path / "consumer", consume)) as pids:
        yield pids


@pytest.mark.parametrize(("how", "prefetch"), [("purge", 0), ("rm -rf", 2), ("rename", 0)])
def test_both_sides_notice_that_the_queue_is_gone(tmp_path: Path, how: str, prefetch: int):
    """Both are waiting, the provider for room and the consumer for a batch, and neither works for it."""
    split = tmp_path / "set" / "queue" / "train"
    with running_pair(tmp_path, prefetch=prefetch, is_waiting=True) as pids:
        wait_until(lambda: queue_status(split)["train"].alive, "a provider")
        time.sleep(1)
        remove(split, how)
        for pid in pids:
            assert ended(pid) == 0
    for side in ("provider", "consumer"):
        told = json.loads((tmp_path / side).read_text())
        assert told["is_ours"], told
        assert told["error"] != "Starved"
        assert told["load"] < 0.5, told


@pytest.mark.parametrize("how", ["purge", "rm -rf", "rename"])
def test_both_sides_notice_at_full_speed_that_the_queue_is_gone(tmp_path: Path, how: str):
    """Wherever they are at that moment: an error of ours, on both sides, every time."""
    for i in range(times(4)):
        path = tmp_path / str(i)
        split = path / "set" / "queue" / "train"
        path.mkdir()
        with running_pair(path, prefetch=2 * (i % 2), is_waiting=False) as pids:
            wait_until(lambda split=split: queue_status(split)["train"].published > 40, "40 batches")
            time.sleep(random.Random(i).random() * 0.02)
            remove(split, how)
            for pid in pids:
                assert ended(pid) == 0
        for side in ("provider", "consumer"):
            told = json.loads((path / side).read_text())
            assert told["is_ours"], (i, side, told)


def test_a_queue_that_is_removed_piece_by_piece_is_told(tmp_path: Path):
    """``rm -rf`` is not done in one step: any part may be gone while the rest is still there."""
    for name in ["tmp", "lock", "marks", "providers", "dead", "next", "run.json", "consumed"]:
        path = tmp_path / name
        split = filled(path, 40)
        with provider(path) as filling, consumer(path, acknowledge="on_read") as reading:
            take(reading, 20)
            target = split / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            for use in (lambda filling=filling: filling.publish("train"), lambda reading=reading: take(reading, 20)):
                with suppress(PoolishError):
                    use()


def test_a_queue_made_anew_is_another_queue(tmp_path: Path):
    """Purged and filled again under a running pair: neither side mixes the two."""
    filled(tmp_path, 3)
    with consumer(tmp_path) as reading, provider(tmp_path, name="w1") as old:
        take(reading, 1)
        purge_queue(tmp_path)
        filled(tmp_path, 3)
        for use in (lambda: take(reading, 3), lambda: old.publish("train")):
            with pytest.raises(QueueError, match=r"queue was purged|another queue|removed"):
                use()
        with suppress(PoolishError):
            reading.close()
    assert queue_status(tmp_path)["train"].published == 3
    assert queue_status(tmp_path)["train"].acknowledged == 0


# -- many files


def test_a_hundred_thousand_batches(tmp_path: Path):
    """Status, provider and consumer start as ever, and reading lists nothing."""
    n_batches = 100_000 if IS_SOAK else 20_000
    split = filled(tmp_path, 1)
    for number in range(1, n_batches):
        source = number // 30_000 * 30_000  # a file system allows so many names of one file
        if number == source:
            shutil.copyfile(file_of(split, 0), file_of(split, number))
        else:
            os.link(file_of(split, source), file_of(split, number))
    (split / "next").write_bytes(words(n_batches))

    status = queue_status(tmp_path)["train"]
    with provider(tmp_path) as filling:
        assert filling.publish("train") == n_batches
    with consumer(tmp_path) as reading:
        reading.get_batch()
        listed: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            for name in ("listdir", "scandir"):
                real = getattr(os, name)
                patch.setattr(os, name, lambda *path, real=real: (listed.append(*map(str, path)), real(*path))[1])
            for _ in range(100):
                reading.get_batch()

    assert status.published == status.waiting == n_batches
    assert not {path for path in listed if path == str(split)}
    shutil.rmtree(split)


def test_a_listing_would_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The control of the above."""
    filled(tmp_path, 2)
    listed: list[str] = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(path), real(path))[1])
    queue_status(tmp_path)
    assert listed


# -- a directory that is read-only


def test_a_read_only_queue_can_be_looked_at(tmp_path: Path):
    """Status and verify write nothing; provider and consumer say at their start why they cannot."""
    path = tmp_path / "set"
    split = filled(path, 3)
    with consumer(path) as reading:
        take(reading, 1)
    before = snapshot(path)

    def story() -> None:
        status = queue_status(path)["train"]
        assert (status.published, status.read, status.acknowledged) == (3, 1, 1)
        assert verify_queue(path) == {"train": []}
        with pytest.raises(OSError, match=r"[Rr]ead-only"):
            provider(path).open()
        with pytest.raises(OSError, match=r"[Rr]ead-only"):
            consumer(path).get_batch()
        with pytest.raises(OSError, match=r"[Rr]ead-only"):
            purge_queue(split)

    status = in_child(read_only_story(path, story))
    if status == 77:
        pytest.skip("nothing can be mounted here")
    assert status == 0
    assert snapshot(path) == before


# -- full disks


def test_a_provider_keeps_some_of_the_disk_free(tmp_path: Path):
    """It waits at ``min_free_bytes``, says so, and goes on as the trainer makes room."""
    with small_disk(tmp_path / "disk", 8 * MIB) as disk:
        with wide(disk, min_free_bytes=2 * MIB) as filling, consumer(disk, acknowledge="on_read") as reading:
            filling.run(stop=lambda: bool(filling.waiting))
            n_made = filling.status()["train"]["made"]
            assert "make room" in filling.waiting
            assert 40 < n_made < 70
            assert os.statvfs(disk).f_bavail * 4096 >= 2 * MIB - 150_000

            assert take(reading, n_made) == list(range(n_made))
            filling.run(stop=lambda: filling.status()["train"]["made"] >= n_made + 5)
            assert take(reading, 5) == list(range(n_made, n_made + 5))
        assert leftovers(disk) == []


@pytest.mark.parametrize("is_foreseen", [True, False], ids=["foreseen", "in the middle of a batch"])
def test_a_provider_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_foreseen: bool):
    """Nothing is lost, nothing is left behind, and it goes on by itself."""
    if not is_foreseen:  # others may fill a disk between the look at it and the write
        monkeypatch.setattr(DirectoryLog, "free_bytes", lambda log: 2**50)
    with small_disk(tmp_path / "disk", 4 * MIB) as disk:
        with wide(disk) as filling, consumer(disk, acknowledge="on_read") as reading:
            filling.publish("train")
            assert take(reading, 1) == [0]
            filling.run(stop=lambda: bool(filling.waiting))
            n_made = filling.status()["train"]["made"]
            assert ("no space" if not is_foreseen else "make room") in filling.waiting
            assert n_made > 20
            assert leftovers(disk) == []
            assert verify_queue(disk) == {"train": []}
            with pytest.raises(StoreFull, match="make room"):
                filling.publish("train")
            assert filling.status()["train"]["made"] == n_made

            assert take(reading, n_made - 1) == list(range(1, n_made))
            filling.run(stop=lambda: filling.status()["train"]["made"] >= n_made + 8)
            assert take(reading, 8) == list(range(n_made, n_made + 8))
        assert leftovers(disk) == []
        assert verify_queue(disk) == {"train": []}


def test_a_running_provider_waits_out_a_full_disk(tmp_path: Path):
    """``run`` ends neither with an error nor with a gap, whoever filled the disk."""
    over, seen = threading.Event(), list[int]()
    with (
        small_disk(tmp_path / "disk", 4 * MIB) as disk,
        wide(disk, max_backlog=4) as filling,
        consumer(disk, acknowledge="on_read", timeout_s=20) as reading,
    ):
        running = threading.Thread(target=filling.run, kwargs={"stop": over.is_set})
        running.start()
        try:
            seen += take(reading, 20)
            fill(disk)
            reading.timeout_s = 0.5
            with suppress(StoreFull, Starved):
                seen += take(reading, 20)
            (disk / "filler").unlink()
            reading.timeout_s = 20
            while len(seen) < 40:
                seen += take(reading, 1)
        finally:
            over.set()
            running.join(20)
        assert not running.is_alive()
        assert seen == list(range(40))


def test_a_consumer_reads_on_when_the_disk_is_full(tmp_path: Path):
    """It is the one who makes room; what it needs to do so it has from its start."""
    with small_disk(tmp_path / "disk", 4 * MIB) as disk:
        with wide(disk, 20_000) as filling:
            for _ in range(60):
                filling.publish("train")
        with consumer(disk) as reading:
            assert take(reading, 1) == [0]
            fill(disk)
            assert take(reading, 59) == list(range(1, 60))
        assert queue_status(disk)["train"].acknowledged == 60
        assert queue_status(disk)["train"].on_disk == 0


def test_a_consumer_that_starts_on_a_full_disk(tmp_path: Path):
    """It works, or it says that there is no room and works when there is."""
    with small_disk(tmp_path / "disk", 4 * MIB) as disk:
        with wide(disk, 20_000) as filling:
            for _ in range(30):
                filling.publish("train")
        fill(disk)
        with consumer(disk) as reading:
            seen: list[int] = []
            with suppress(StoreFull):
                seen += take(reading, 30)
            (disk / "filler").unlink()
            seen += take(reading, 30 - len(seen))
            assert seen == list(range(30))


def test_a_provider_that_starts_on_a_full_disk(tmp_path: Path):
    """An error that says so; when there is room it starts."""
    with small_disk(tmp_path / "disk", 2 * MIB) as disk:
        fill(disk)
        with pytest.raises(StoreFull, match="make room"):
            wide(disk, 20_000).open()
        (disk / "filler").unlink()
        with wide(disk, 20_000) as filling:
            assert filling.publish("train") == 0


def test_a_consumer_that_never_commits_is_told_to(tmp_path: Path):
    """The providers wait for its checkpoint: it is told so instead of waiting for ever, and goes on after a commit."""
    with wide(tmp_path, 20_000, max_backlog_bytes=100_000) as filling:
        reading = consumer(tmp_path, acknowledge="on_checkpoint", timeout_s=10)
        filling.run(stop=lambda: bool(filling.waiting))
        n_made = filling.status()["train"]["made"]
        assert n_made in (5, 6)
        assert "commit" in filling.waiting
        assert take(reading, n_made) == list(range(n_made))
        with within(5), pytest.raises(QueueError, match=r"checkpoint.*commit") as caught:
            reading.get_batch()
        assert not isinstance(caught.value, Starved)

        reading.commit(reading.state_dict())
        filling.run(stop=lambda: filling.status()["train"]["made"] > n_made)
        assert take(reading, 1) == [n_made]
        reading.close()


def test_every_rank_is_told_to_commit(tmp_path: Path):
    """The round that cannot be completed may lack the batch of another rank than 0, which waits for all of them."""
    with wide(tmp_path, 20_000, max_backlog_bytes=50_000) as filling:  # three of them
        ranks = [
            consumer(tmp_path, rank=rank, world_size=2, acknowledge="on_checkpoint", timeout_s=2) for rank in range(2)
        ]
        filling.run(stop=lambda: bool(filling.waiting))
        n_made = filling.status()["train"]["made"]
        assert n_made == 3
        with ranks[0], ranks[1]:
            assert [take(rank, 1) for rank in ranks] == [[0], [1]]
            for rank in ranks:
                with pytest.raises(QueueError, match=r"call consumer\.commit") as caught:
                    rank.get_batch()
                assert not isinstance(caught.value, Starved)
            ranks[0].commit()
            filling.run(stop=lambda: filling.status()["train"]["made"] >= 4)
            assert [take(rank, 1) for rank in ranks] == [[2], [3]]


# -- failing system calls


CODES = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT]


def check_error(error: OSError | PoolishError, code: int) -> None:
    """Of a full disk, one of ours; otherwise at least the system's own."""
    if code in (errno.ENOSPC, errno.EDQUOT):
        assert isinstance(error, PoolishError), f"{error!r}: not typed"


def fresh_copies(source: Path, folder: Path) -> Iterator[Path]:
    """Copies of a queue, one after the other; the files of its log are shared, because nobody changes them."""
    i = 0
    while True:
        i += 1
        target = folder / f"copy{i}"

        def copy(file: str, to: str) -> None:
            os.link(file, to) if file.endswith(".safetensors") else shutil.copyfile(file, to)

        shutil.copytree(source, target, copy_function=copy)
        yield target
        shutil.rmtree(target)


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_publishing_with_failing_calls(tmp_path: Path, code: int, durability: str, for_ever: bool):
    """Whichever call fails: one error, then everything goes on; each batch is there once, and nothing else."""
    filled(tmp_path / "queue0", 2, durability=durability)
    copies = fresh_copies(tmp_path / "queue0", tmp_path)
    number = 0
    while True:
        number += 1
        path = next(copies)
        with provider(path, durability=durability) as filling:
            filling.publish("train")
            with failing(number, code, for_ever=for_ever) as calls:
                try:
                    filling.publish("train")
                except (OSError, PoolishError) as error:
                    check_error(error, code)
            while filling.batch_number("train") < 6:
                filling.publish("train")
        with provider(path, durability=durability) as filling:
            assert filling.batch_number("train") == 6
        assert leftovers(path) == []
        assert verify_queue(path) == {"train": []}
        with consumer(path) as reading:
            assert take(reading, 6) == list(range(6)), calls
        if len(calls) < number:
            break
    assert number > 4


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("acknowledge", ["on_read", "on_step", "on_checkpoint"])
@pytest.mark.parametrize("code", CODES[:2], ids=[errno.errorcode[code] for code in CODES[:2]])
def test_reading_with_failing_calls(tmp_path: Path, acknowledge: str, prefetch: int, code: int):
    """Whichever call fails: one error, and the next call goes on with the very next batch."""
    n_batches = 20
    filled(tmp_path / "queue0", n_batches)
    copies = fresh_copies(tmp_path / "queue0", tmp_path)

    def read(reading: Any, seen: list[int], end: int) -> None:
        n_errors = 0
        while len(seen) < end:
            try:
                seen += take(reading, 1)
                if acknowledge == "on_checkpoint" and len(seen) % 6 == 0:
                    reading.commit()
            except (OSError, PoolishError) as error:
                check_error(error, code)
                n_errors += 1
                if n_errors > 2:
                    raise

    number = 1
    while True:
        path = next(copies)
        reading = consumer(path, acknowledge=acknowledge, prefetch=prefetch, timeout_s=5)
        seen = take(reading, 1)
        with within(30):
            with failing(number, code) as calls:
                read(reading, seen, 18)
            read(reading, seen, n_batches)  # what was read ahead may have failed
            assert seen == list(range(n_batches)), (number, calls[:number])
            reading.commit()
            reading.close()
            with provider(path):
                pass
            status = queue_status(path)["train"]
        assert (status.acknowledged, status.on_disk) == (n_batches, 0), (number, calls[number - 1 : number])
        if len(calls) < number:
            break
        step = (2 if code == errno.ENOSPC else 5) * (3 if prefetch else 1)
        number += 1 if IS_SOAK else step
    assert number > 5


def start_provider(path: Path) -> None:
    with provider(path) as filling:
        filling.publish("train")


def start_consumer(path: Path) -> None:
    with consumer(path, on_corrupt="cached") as reading:
        take(reading, 2)


def purge(path: Path) -> None:
    if (path / "queue" / "train").exists():
        purge_queue(path)


@pytest.mark.parametrize(
    ("code", "for_ever"),
    [(errno.ENOSPC, False), (errno.EIO, True)],
    ids=["ENOSPC once", "EIO for ever"],
)
@pytest.mark.parametrize(
    ("n_batches", "use"),
    [(0, start_provider), (4, start_provider), (4, start_consumer), (4, purge)],
    ids=["making a queue", "opening a queue", "reading and burying", "purging"],
)
def test_starting_with_failing_calls(tmp_path: Path, n_batches: int, use: Any, code: int, for_ever: bool):
    """Making, opening, burying and purging: one error, and then it works, with all batches that there are."""
    template = tmp_path / "template"
    template.mkdir()
    if n_batches:
        split = filled(template, n_batches)
        if use is start_consumer:
            spoil(split, 1)
    copies = fresh_copies(template, tmp_path)
    number = 1
    while True:
        path = next(copies)
        with failing(number, code, for_ever=for_ever) as calls:
            try:
                use(path)
            except (OSError, PoolishError) as error:
                check_error(error, code)
        with provider(path) as filling:
            while filling.batch_number("train") < 6:
                filling.publish("train")
        assert leftovers(path) == []
        with consumer(path, on_corrupt="cached") as reading:
            status = queue_status(path)["train"]
            seen = take(reading, status.published - status.acknowledged)
        assert seen[-4:] == [2, 3, 4, 5], (number, calls[number - 1 : number])
        if len(calls) < number:
            break
        number += 1 if IS_SOAK or code == errno.ENOSPC else 5
    assert number > 2


def test_a_short_write_of_the_watermark_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The system may write less than it was asked to; what is deleted then must be noted first."""
    split = filled(tmp_path, 40)
    pwrite = os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        return pwrite(fd, data[: len(data) // 2] if b"watermark" in data else data, offset)

    with monkeypatch.context() as patch, consumer(tmp_path) as reading:
        seen = take(reading, 10)
        patch.setattr(os, "pwrite", half)
        for _ in range(30):
            with suppress(StoreFull):
                seen += take(reading, 1)
        patch.undo()
        seen += take(reading, 40 - len(seen))
        assert seen == list(range(40))
    assert DirectoryLog.open(split).consumed().watermark == 40


# -- races of deleting and counting


def test_a_file_that_is_deleted_while_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The consumer deletes while a provider, or ``status``, adds up how much there is."""
    split = filled(tmp_path, 3)
    scandir = os.scandir

    class Vanishing:
        def __init__(self, path: Any) -> None:
            self._entries = scandir(path)

        def __enter__(self) -> Vanishing:
            return self

        def __exit__(self, *error: object) -> None:
            self._entries.close()

        def __iter__(self) -> Iterator[Any]:
            for entry in self._entries:
                if entry.name == "000000000001.safetensors":
                    file_of(split, 1).unlink(missing_ok=True)
                yield entry

    monkeypatch.setattr(os, "scandir", Vanishing)
    assert queue_status(tmp_path)["train"].n_bytes == 2 * file_of(split, 0).stat().st_size


@pytest.mark.parametrize("moment", ["listing", "metadata"])
def test_a_provider_that_starts_while_its_batches_are_deleted(tmp_path: Path, monkeypatch, moment: str):
    """Its own files are read, deleted and counted elsewhere in between: it must not make them again."""

    def die_publishing() -> None:
        filling = provider(tmp_path).open()
        for _ in range(6):
            filling.publish("train")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die_publishing) == -signal.SIGKILL
    from poolish.transports import log as log_module

    real_numbers, real_metadata, is_over = DirectoryLog.numbers, log_module.read_metadata, []

    def read_all() -> None:
        if not is_over:
            is_over.append(True)
            with consumer(tmp_path) as reading:
                take(reading, 6)

    def numbers(log: DirectoryLog) -> list[int]:
        if in_next_counter():
            read_all()
        return real_numbers(log)

    def metadata(path: str) -> Any:
        read_all()
        return real_metadata(path)

    if moment == "listing":
        monkeypatch.setattr(DirectoryLog, "numbers", numbers)
    else:
        monkeypatch.setattr(log_module, "read_metadata", metadata)

    with provider(tmp_path) as filling:
        assert is_over
        assert filling.batch_number("train") == 6


def in_next_counter() -> bool:
    import inspect

    return any(frame.function == "next_counter" for frame in inspect.stack(0)[:6])


# -- files that are written over


def test_the_file_that_was_deleted_last_is_written_over_first(tmp_path: Path):
    """It is the likeliest to be in the processor's caches still."""
    split = filled(tmp_path, 16)
    with consumer(tmp_path) as reading:
        take(reading, 16)
    free = {int(file.name): file.stat().st_ino for file in (split / "free").iterdir()}

    filled(tmp_path, 2)

    inodes = [(split / f"{number:012d}.safetensors").stat().st_ino for number in (16, 17)]
    assert inodes == [free[number] for number in sorted(free)[:-3:-1]]


@pytest.mark.parametrize(
    "kind", ["link", "link to nowhere", "pipe", "directory", "full directory", "empty", "hard link"]
)
def test_strange_files_among_those_to_be_written_over(tmp_path: Path, kind: str):
    """They are not followed, not waited for, and what else has a name for them keeps it."""
    split = filled(tmp_path, 4)
    with consumer(tmp_path) as reading:
        take(reading, 4)
    make = {**strange_files(tmp_path), "hard link": lambda file: os.link(tmp_path / "outside", file)}[kind]
    for file in (split / "free").iterdir():
        file.unlink()
        make(file)

    with within(20), provider(tmp_path) as filling, consumer(tmp_path) as reading:
        for _ in range(8):
            filling.publish("train")
        assert take(reading, 8) == list(range(4, 12))
    with provider(tmp_path):
        pass
    assert (tmp_path / "outside").read_bytes() == b"secret" * 100
    assert leftovers(split) == []


def test_a_batch_that_has_another_name_is_not_written_over(tmp_path: Path):
    """A backup of hard links (``cp -l *.safetensors``) keeps what it had."""
    split = filled(tmp_path / "set", 10)
    backup = tmp_path / "backup"
    backup.mkdir()
    for file in split.glob("*.safetensors"):
        os.link(file, backup / file.name)
    before = {name: content for name, content in snapshot(backup).items() if name.endswith("safetensors")}

    with provider(tmp_path / "set") as filling, consumer(tmp_path / "set") as reading:
        for _ in range(40):
            filling.publish("train")
            take(reading, 1)

    after = snapshot(backup)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("name", ["lock", "next", "consumed", "marks/0.lock", "providers/w0.lock"])
def test_a_file_that_is_rewritten_in_place_has_one_name(tmp_path: Path, name: str):
    """Writing would change its other name too, perhaps that of a backup (``cp -al``): the error names the file."""
    split = filled(tmp_path / "set", 6)
    with consumer(tmp_path / "set", acknowledge="on_read") as reading:
        take(reading, 1)
    other = tmp_path / "other"
    os.link(split / name, other)
    before = other.read_bytes()

    def use() -> None:
        with provider(tmp_path / "set") as filling, consumer(tmp_path / "set", acknowledge="on_read") as reading:
            filling.publish("train")
            take(reading, 1)

    with pytest.raises(CorruptDataError, match=rf"{name}: has 2 names .* replace it by a copy of its own"):
        use()
    assert other.read_bytes() == before

    other.unlink()
    use()


@pytest.mark.parametrize("n_bytes", [1_000, 5 * MIB], ids=["copied", "mapped"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_that_were_handed_out_stay_as_they_are(tmp_path: Path, n_bytes: int, prefetch: int):
    """Whatever becomes of their files: a trainer may keep them."""
    held = []
    with (
        wide(tmp_path, n_bytes) as filling,
        consumer(tmp_path, acknowledge="on_read", prefetch=prefetch, output="torch") as reading,
    ):
        for _ in range(3):
            for _ in range(20):
                filling.publish("train")
            held += [reading.get_batch() for _ in range(18)]
        assert [counter_of({name: tensor.numpy() for name, tensor in batch.items()}) for batch in held] == [*range(54)]
        assert all(batch["c"].min() == batch["c"].max() == 1 for batch in held)


def test_batches_of_changing_size(tmp_path: Path):
    """A file that was larger, or smaller, leaves nothing of itself in the next one."""

    class Changing(Counting):
        def build_meta(self) -> dict[str, Any]:
            return {"batch_schema": [{"name": "a", "dtype": "int64", "shape": [None]}]}

        def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
            return {"a": np.full((2, int(rng.integers(1, 2_000))), self.batch_number(split))}

    config = {"dataset": "d", "batch_size": 2, "block_size": 1, "splits": ("train",), "min_free_bytes": 0}
    with Changing(config, path=tmp_path) as filling, consumer(tmp_path, acknowledge="on_read") as reading:
        for i in range(200):
            filling.publish("train")
            batch = reading.get_batch()["a"]
            assert (batch == i).all()
        assert filling.publish("train") == 200
    assert verify_queue(tmp_path) == {"train": []}


def test_a_queue_can_be_verified_while_it_is_used(tmp_path: Path):
    """What is deleted or written over meanwhile is nothing wrong."""
    with running_pair(tmp_path, prefetch=0, is_waiting=False):
        path = tmp_path / "set"
        wait_until(lambda: queue_status(path)["train"].acknowledged > 30, "batches")
        for _ in range(times(30)):
            assert verify_queue(path) == {"train": []}
            status = queue_status(path)["train"]
            assert 0 <= status.acknowledged <= status.read <= status.published


def test_closing_lets_all_splits_go(tmp_path: Path):
    """Also when the queue of one of them is gone."""
    splits = ("train", "val", "test")
    with provider(tmp_path, splits=splits) as filling:
        for split in splits:
            filling.publish(split)
    reading = consumer(tmp_path)
    for split in splits:
        reading.get_batch(split)
    purge_queue(tmp_path / "queue" / "val")
    with suppress(QueueError):
        reading.close()

    with consumer(tmp_path) as again:
        for split in ("train", "test"):
            again.timeout_s = 0.1
            with pytest.raises(Starved):
                again.get_batch(split)


# -- clocks


def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Days forward and back between any two looks at it, and files from any century."""
    rng = random.Random(0)
    jump = lambda: 1.7e9 + rng.uniform(-1, 1) * 1e9  # noqa: E731
    monkeypatch.setattr(time, "time", jump)
    monkeypatch.setattr(time, "time_ns", lambda: int(jump() * 1e9))
    seen = []
    for _ in range(4):
        with provider(tmp_path) as filling, consumer(tmp_path) as reading:
            for _ in range(10):
                filling.publish("train")
                for file in (tmp_path / "queue" / "train").rglob("*"):
                    with suppress(FileNotFoundError):
                        os.utime(file, (jump(), jump()))
                seen += take(reading, 1)
    assert seen == list(range(40))
    assert verify_queue(tmp_path) == {"train": []}


# -- what is not there


@pytest.mark.parametrize("name", ["", "queue", "missing", "missing/queue"])
def test_a_missing_queue_is_told_with_the_command(tmp_path: Path, name: str):
    """Whatever is given: the dataset's directory, its queue, or something that never was."""
    (tmp_path / "queue").mkdir()
    with pytest.raises(QueueNotFound, match=r"Queue directory not found: .*poolish prepare CONFIG") as caught:
        consumer(tmp_path / name)
    assert isinstance(caught.value, FileNotFoundError)
    names(caught.value, tmp_path, "python prepare.py")


def test_an_unknown_split_is_told_with_those_there_are(tmp_path: Path):
    """No wait for a directory that will never come, no path out of the queue."""
    filled(tmp_path, 1)
    with consumer(tmp_path) as reading:
        for split in ("val", "../queue/train", "", ".", "/", "train/"):
            with pytest.raises(ConfigError, match=r"no split .*there are \['train'\]"):
                reading.get_batch(split)
            with pytest.raises((ConfigError, ResumeError)):
                reading.load_state_dict({"version": 1, "splits": {split: {"queue": "x", "position": 0}}})
        assert take(reading, 1) == [0]
    with provider(tmp_path) as filling, pytest.raises(ConfigError, match=r"no split 'val'.*\['train'\]"):
        filling.publish("val")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_timeout_says_what_was_waited_for(tmp_path: Path, prefetch: int):
    """The number, how long, and that nobody is there to bring it; with one running, who."""
    filled(tmp_path, 1)
    with consumer(tmp_path, timeout_s=0.3, prefetch=prefetch) as reading:
        take(reading, 1)
        begun = time.monotonic()
        with pytest.raises(Starved, match=r"batch 1 .*no provider is running, start one with `poolish prepare CONFIG`"):
            reading.get_batch()
        assert time.monotonic() - begun > 0.2
        with provider(tmp_path, name="w3") as filling:
            with pytest.raises(Starved, match=r"batch 1 .*running: w3.*timeout_s=0\.3"):
                reading.get_batch()
            filling.publish("train")
            assert take(reading, 1) == [0]  # the first of w3


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e12, 0])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_timeouts_at_both_ends(tmp_path: Path, timeout_s: float, prefetch: int):
    """For ever, and not at all."""
    filled(tmp_path, 2)
    with consumer(tmp_path, timeout_s=timeout_s, prefetch=prefetch) as reading:
        seen: list[int] = []
        while len(seen) < 2:
            with suppress(Starved):
                seen += take(reading, 1)
        assert seen == [0, 1]
        adding = threading.Timer(0.2, filled, (tmp_path, 1))
        adding.start()
        while len(seen) < 3:
            with suppress(Starved):
                seen += take(reading, 1)
        adding.join()
        assert seen == [0, 1, 2]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_long_wait_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch, prefetch: int):
    """Somebody who looks at the log of a trainer that stands still finds out why."""
    monkeypatch.setattr("poolish.serve.reader._SAY_S", 0.1)
    filled(tmp_path, 1)
    with (
        caplog.at_level(logging.WARNING, "poolish.serve"),
        consumer(tmp_path, timeout_s=1, prefetch=prefetch) as reading,
    ):
        take(reading, 1)
        with pytest.raises(Starved):
            reading.get_batch()
    said = [record.getMessage() for record in caplog.records]
    assert 1 <= len(said) <= 10
    assert any("batch 1 " in line for line in said)
    assert "no provider is running" in said[0]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_waiting_costs_no_work(tmp_path: Path, prefetch: int):
    """Neither side turns a core hot while it waits for the other, whatever happens in the directory."""
    split = filled(tmp_path, 1)
    with consumer(tmp_path, timeout_s=1, prefetch=prefetch) as reading:
        take(reading, 1)
        worked, begun = time.process_time(), time.monotonic()
        with pytest.raises(Starved):
            reading.get_batch()
        assert (time.process_time() - worked) / (time.monotonic() - begun) < 0.3
    assert split.exists()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_wait_can_be_interrupted(tmp_path: Path, prefetch: int):
    """Ctrl-C ends a trainer that waits for a batch, at once."""
    filled(tmp_path, 1)
    with signals() as (say_waiting, wait_waiting):

        def train() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            reading = consumer(tmp_path, timeout_s=None, prefetch=prefetch)
            take(reading, 1)
            say_waiting()
            with pytest.raises(KeyboardInterrupt):
                reading.get_batch()
            reading.close()

        trainer = fork(train)
        wait_waiting()
        time.sleep(0.3)
        os.kill(trainer, signal.SIGINT)
        with within(20):
            assert ended(trainer) == 0


@pytest.mark.parametrize("last_line", ["pass", "raise RuntimeError('the trainer failed')"], ids=["ends", "fails"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_trainer_that_forgets_to_close_ends_all_the_same(tmp_path: Path, prefetch: int, last_line: str):
    """What reads ahead and waits for the next batch must not keep the process."""
    filled(tmp_path, 3)
    trainer = f"""
import sys
from poolish import DatasetConsumer
consumer = DatasetConsumer({str(tmp_path)!r}, output="numpy", prefetch={prefetch}, rank=0, world_size=1)
for _ in range(3):
    consumer.get_batch()
{last_line}
"""
    process = subprocess.Popen([sys.executable, "-c", trainer], stderr=subprocess.PIPE)
    try:
        _, said = process.communicate(timeout=8)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail("it never ends")
    assert process.returncode == (0 if last_line == "pass" else 1)
    assert (b"the trainer failed" in said) == (last_line != "pass")


# -- the end


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_iteration_ends_when_the_providers_have_finished(tmp_path: Path, world_size: int, prefetch: int):
    """Every rank gets the same number of batches: what does not fill a round is left."""
    for name, n_batches in (("w0", 5), ("w1", 6)):
        with provider(tmp_path, name=name, max_batches=n_batches) as filling:
            filling.run()
    ranks = [consumer(tmp_path, rank=r, world_size=world_size, prefetch=prefetch) for r in range(world_size)]

    with within(20):
        n_batches = [sum(1 for _ in rank) for rank in ranks]

    assert n_batches == [11 // world_size] * world_size
    for rank in ranks:
        with pytest.raises(Starved, match="have finished"):
            rank.get_batch()
        rank.close()


def test_iteration_goes_on_while_one_provider_has_not_finished(tmp_path: Path):
    """One that was killed may come back: that is a wait, not an end."""
    with provider(tmp_path, name="w0", max_batches=2) as filling:
        filling.run()

    def die_publishing() -> None:
        filling = provider(tmp_path, name="w1", max_batches=4).open()
        filling.publish("train")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die_publishing) == -signal.SIGKILL
    with consumer(tmp_path, timeout_s=0.3) as reading:
        take(reading, 3)
        with pytest.raises(Starved, match="no provider is running"):
            next(iter(reading))
        with provider(tmp_path, name="w1", max_batches=4) as filling:
            filling.run()
        assert [counter_of(batch) for batch in reading] == [1, 2, 3]


# -- devices


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "opengl", 99, ("cpu",)])
def test_a_device_that_is_not_there_is_refused_by_name(tmp_path: Path, device: Any):
    """When the consumer is made, before it takes a batch: the error names the device and what to do."""
    filled(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"^device=.*; use one that this machine has, or None for the CPU$") as caught:
        consumer(tmp_path, output="torch", device=device)
    names(caught.value, repr(device))
    with consumer(tmp_path, output="torch", device="cpu") as reading:
        assert reading.get_batch()["a"].device.type == "cpu"


# -- one consumer per rank


@pytest.mark.parametrize("rank", [0, 1])
def test_two_consumers_of_one_rank_are_refused(tmp_path: Path, rank: int):
    """They would train everything twice; the first goes on undisturbed."""
    filled(tmp_path, 6)
    with consumer(tmp_path, rank=rank, world_size=2) as first:
        assert take(first, 1) == [rank]
        with consumer(tmp_path, rank=rank, world_size=2) as second, pytest.raises(StoreLocked, match="held by"):
            second.get_batch()

        def in_another_process() -> None:
            with pytest.raises(StoreLocked, match=str(os.getppid())):
                consumer(tmp_path, rank=rank, world_size=2).get_batch()

        assert in_child(in_another_process) == 0
        assert take(first, 2) == [rank + 2, rank + 4]
    with consumer(tmp_path, rank=rank, world_size=2, timeout_s=0.2) as third, pytest.raises(Starved):
        take(third, 4)


def settled(split: Path) -> dict[str, bytes]:
    """What is in a queue once nothing is done to it in the background any more."""
    found: list[dict[str, bytes]] = [{}]

    def is_settled() -> bool:
        time.sleep(0.05)
        with suppress(FileNotFoundError):  # deleted between the listing and the look
            found.append({name: content for name, content in snapshot(split).items() if "lock" not in name})
            return found[-1] == found[-2]
        return False

    wait_until(is_settled, "quiet")
    return found[-1]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("acknowledge", ["on_read", "on_step", "on_checkpoint"])
def test_a_consumer_in_a_forked_child_is_refused(tmp_path: Path, acknowledge: str, prefetch: int):
    """It reads nothing, acknowledges nothing and deletes nothing there, and can be closed; the parent goes on."""
    split = filled(tmp_path, 40)
    with consumer(tmp_path, acknowledge=acknowledge, prefetch=prefetch) as reading:
        assert take(reading, 5) == list(range(5))
        state = reading.state_dict()
        before = settled(split)

        def child() -> None:
            with within(10):
                for use in (
                    reading.get_batch,
                    lambda: reading.load_state_dict(state),
                    lambda: reading.commit(state),
                    reading.commit,
                ):
                    with pytest.raises(QueueError, match="forked"):
                        use()
                reading.close()

        assert in_child(child) == 0
        assert settled(split) == before
        assert take(reading, 35) == list(range(5, 40))


def test_a_provider_in_a_forked_child_is_refused(tmp_path: Path):
    """Two processes under one name would publish the same batches twice."""
    with provider(tmp_path) as filling:
        filling.publish("train")

        def child() -> None:
            with within(10), suppress(PoolishError, ValueError, OSError):
                filling.publish("train")
                os._exit(3)

        assert in_child(child) == 0
        filling.publish("train")
    with consumer(tmp_path, timeout_s=0.2) as reading:
        assert take(reading, 2) == [0, 1]
        with pytest.raises(Starved):
            reading.get_batch()


# -- states


@pytest.mark.parametrize(
    "position", [2**63, 2**64, 10**30, -1, 1.5, "1", None, True], ids=lambda position: f"{position!r}"
)
def test_a_state_with_a_strange_position_is_refused(tmp_path: Path, position: Any):
    """One of ours, before anything is changed."""
    filled(tmp_path, 3)
    with consumer(tmp_path) as reading:
        take(reading, 1)
        state = reading.state_dict()
        state["splits"]["train"]["position"] = position
        with pytest.raises(ResumeError):
            reading.load_state_dict(state)
        with pytest.raises(ResumeError):
            reading.commit(state)
        assert take(reading, 2) == [1, 2]


@pytest.mark.parametrize(
    "state",
    [
        {},
        [],
        None,
        {"version": 2, "splits": {}},
        {"version": 1, "splits": []},
        {"version": 1, "splits": {"train": None}},
        {"version": 1, "splits": {"train": {"queue": 1, "position": 0}}},
        {"version": 1, "splits": {"train": {"queue": "0" * 16, "position": 0}}},
    ],
    ids=range(8),
)
def test_a_strange_state_is_refused(tmp_path: Path, state: Any):
    """A ``ResumeError``, and the consumer is where it was."""
    filled(tmp_path, 3)
    with consumer(tmp_path) as reading:
        take(reading, 1)
        with pytest.raises(ResumeError):
            reading.load_state_dict(state)
        assert take(reading, 2) == [1, 2]


def test_a_position_below_the_watermark_names_what_is_gone(tmp_path: Path):
    """Old checkpoints do not get other batches than those they had."""
    filled(tmp_path, 40)
    with consumer(tmp_path) as reading:
        take(reading, 2)
        state = reading.state_dict()
        take(reading, 30)
    with consumer(tmp_path) as reading, pytest.raises(ResumeError, match=r"batch 2, but 2 to 31 .*on_checkpoint"):
        reading.load_state_dict(state)
