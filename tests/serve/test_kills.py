"""Trainers and providers that are killed, whenever it is: each batch is trained once, in one order, none is missing."""

from __future__ import annotations

import os
import random
import select
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from poolish.errors import QueueError, QueueNotFound, ResumeError
from poolish.files import write_json
from poolish.files.checksums import ChecksummedCounters
from poolish.serve import producer, purge_queue
from poolish.transports.log import DirectoryLog
from tests.effort import times
from tests.faults import die, die_at_call, every_kill_point, fork, in_child, kill
from tests.serve import queues
from tests.serve.queues import (
    Entry,
    check_content,
    check_ledger,
    check_log,
    consumer,
    provide,
    provider,
    publish,
    read_checkpoint,
    take,
    tell,
    train,
)

SOAK = pytest.mark.soak
pytestmark = pytest.mark.usefixtures("few_together")


class Told:
    """What children say they have done, for a parent to hear after they were killed."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)

    def say(self, number: int) -> None:
        tell(self._writing, bytes([number]))

    def heard(self) -> list[int]:
        """Everything that was said since the last time."""
        try:
            return list(os.read(self._reading, 4096))
        except BlockingIOError:
            return []

    def wait(self, timeout_s: float) -> None:
        """Until something is said, or the time is over."""
        select.select([self._reading], [], [], timeout_s)

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def told():
    pipe = Told()
    yield pipe
    pipe.close()


# At random --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_providers", "world_sizes", "prefetch"), [(1, (1,), 0), (2, (1, 2, 3, 5), 2)])
def test_killed_at_random_the_checkpoints_have_trained_on_everything_once(
    path, told, n_providers, world_sizes, prefetch
):
    """Trainer and providers die at any moment, the trainer comes back with other ranks: 0..N-1, in order, as made."""
    rng = random.Random(n_providers)
    publish(path, 1)  # a trainer does not wait for a queue to be made

    def trainer():
        train(
            path,
            None,
            world_size=rng.choice(world_sizes),
            on_batch=lambda line: told.say(line[0] % 256),
            prefetch=prefetch,
        )

    roles: list[Callable[[], object]] = [trainer]
    roles += [lambda name=name: provide(path, name) for name in range(n_providers)]
    running = {}
    n_kills, n_trained = times(20), 0
    try:
        for _ in range(n_kills):
            for i in range(len(roles)):
                if i not in running:
                    rng.random()  # children inherit the state of it: each trainer chooses its ranks anew
                    running[i] = fork(roles[i])
            told.heard()
            if rng.random() < 0.7:
                told.wait(queues.PATIENCE_S)  # often while it trains, and sometimes while it starts
            time.sleep(rng.uniform(0, 0.012))
            for i in rng.sample(sorted(running), rng.choice([1, 1, len(running)])):
                kill(running.pop(i))

            ledger = read_checkpoint(path)["ledger"]
            assert [line[0] for line in ledger] == list(range(len(ledger)))
            n_trained = max(n_trained, len(ledger))
            if n_trained > 2_000:  # a ledger is one JSON document: begin the next
                check_ledger(ledger)
                for i in sorted(running):
                    kill(running.pop(i))
                shutil.rmtree(path / "queue")
                (path / "checkpoint.json").unlink()
                publish(path, 1)
                n_trained = 0
    finally:
        for pid in running.values():
            kill(pid)

    for name in range(n_providers):
        publish(path, 8, name)
    train(path, n_trained + 8, world_size=2)

    ledger = read_checkpoint(path)["ledger"]
    check_ledger(ledger)
    assert len(ledger) > 20


def test_killed_at_random_while_it_steps_a_trainer_loses_nothing(path, told):
    """Without checkpoints, on_step: after a kill the batch in flight comes again and no other, and none is missing."""
    rng, seen = random.Random(2), []
    publish(path, 1)

    def trainer():
        with consumer(path) as reader:
            while True:
                told.say(take(reader)[0] % 256)

    pid = fork(lambda: provide(path))
    try:
        for _ in range(times(10)):
            training = fork(trainer)
            told.wait(queues.PATIENCE_S)
            time.sleep(rng.uniform(0, 0.005))
            kill(training)
            heard = told.heard()
            assert heard == [(heard[0] + i) % 256 for i in range(len(heard))]
            # The kill may have come after a batch was handed out and before that was said: then it is not in flight.
            assert not seen or (heard[0] - seen[-1]) % 256 in (0, 1, 2)
            seen += heard
    finally:
        kill(pid)
    assert len(seen) > times(10)


# Before every call ------------------------------------------------------------------------------------------------


def killed_everywhere(
    path: Path,
    prepare: Callable[[], object],
    act: Callable[[], object],
    look: Callable[[], object],
    *,
    half: bool = False,
) -> int:
    """Kill ``act`` at each point in turn, on a copy of what was prepared each time; how many points there were."""
    prepared = path.with_name("prepared")

    def look_and_prepare():
        look()
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(prepared, path)

    path.mkdir(exist_ok=True)
    prepare()
    shutil.copytree(path, prepared)
    return every_kill_point(act, look_and_prepare, half=half)


def read_on(path: Path, end: int, **options: object) -> list[Entry]:
    """What the next trainer gets, up to a number."""
    ledger: list[Entry] = []
    with consumer(path, timeout_s=5, **options) as reader:
        while not ledger or ledger[-1][0] < end - 1:
            ledger.append(take(reader))
    return ledger


def go_on(path: Path, n_made: int, name: int = 0) -> None:
    """Start a provider again and let it make batches until it has made so many in its life."""
    with provider(path, name) as running:
        while running.batch_number("train") < n_made:
            running.publish("train")


def counters(ledger: list[Entry], name: int) -> list[int]:
    return [line[2] for line in ledger if line[1] == name]


def publish_and_look(path: Path, told: Told, *, half: bool = False) -> int:
    """Kill a provider everywhere between its start and its end."""

    def prepare():
        publish(path, 2)
        with consumer(path, acknowledge="on_read") as reader:
            take(reader)

    def act():
        with provider(path) as running:
            for _ in range(2):
                told.say(running.publish("train"))

    def look():
        said = told.heard()
        watermark, end = check_log(path)
        assert watermark == 1
        assert said == list(range(2, 2 + len(said)))
        assert end - 2 in (len(said), len(said) + 1)
        assert publish(path, 1, name=1) == [end]  # somebody else comes first
        go_on(path, 6)
        assert check_log(path) == (1, 7)
        assert os.listdir(path / "queue" / "train" / "tmp") == []
        ledger = read_on(path, 7)
        check_ledger(ledger, first=1)
        assert (counters(ledger, 0), counters(ledger, 1)) == ([1, 2, 3, 4, 5], [0])

    return killed_everywhere(path, prepare, act, look, half=half)


@pytest.mark.parametrize("half", [pytest.param(False, marks=SOAK), True])
def test_killed_while_it_publishes(path, told, half):
    """What publish has returned for is there, nothing is torn, no number and no batch is used twice."""
    assert publish_and_look(path, told, half=half) > 30


def test_a_number_noted_before_it_is_used_would_be_seen(path, told, monkeypatch):
    """A publisher that writes down the next number first leaves a gap when it is killed: these tests can fail."""

    def hasty(self, partial):
        number = self.next_number()
        self._next.write(number + 1)
        partial.link(self.name_of(number))
        return number

    monkeypatch.setattr(DirectoryLog, "_link", hasty)

    with pytest.raises(AssertionError):
        publish_and_look(path, told)


@pytest.mark.parametrize("is_done", [False, True])
def test_a_number_is_not_used_again_when_its_publisher_was_killed(path, monkeypatch, is_done):
    """Killed between the link and raising the hint: the file is in the way, or the watermark has raised the hint."""

    def publish_and_die():
        with provider(path) as killed:
            killed.publish("train")
            monkeypatch.setattr(ChecksummedCounters, "write", lambda *_: die())
            killed.publish("train")

    with provider(path, name=1) as running:  # it has looked at the log before, and believes the hint
        assert running.publish("train") == 0
        in_child(publish_and_die)
        if is_done:
            with consumer(path, acknowledge="on_read") as reader:
                assert [take(reader)[0] for _ in range(3)] == [0, 1, 2]

        assert running.publish("train") == 3

    assert check_log(path) == (3 if is_done else 0, 4)


def test_a_provider_that_believed_its_note_would_be_seen(path, told, monkeypatch):
    """A provider that does not ask the log makes a batch twice when it is killed after the link."""
    monkeypatch.setattr(
        producer.ProviderRegistry, "next_counter", lambda self: self.log.providers.read(self.name).counter
    )

    with pytest.raises(AssertionError):
        publish_and_look(path, told)


@pytest.mark.parametrize(
    ("mode", "allowed", "prefetch"),
    [
        ("on_step", {-1, 0}, 0),
        ("on_read", {0, 1}, 0),
        pytest.param("on_step", {-1, 0}, 2, marks=SOAK),
        pytest.param("on_read", {0, 1}, 2, marks=SOAK),
    ],
)
def test_killed_while_it_takes_and_acknowledges(path, told, mode, allowed, prefetch):
    """on_step: the batch in flight may come again, none is lost. on_read: it may be lost, none comes again."""
    found = set()

    def act():
        with consumer(path, acknowledge=mode, prefetch=prefetch) as reader:
            for _ in range(3):
                told.say(take(reader)[0])

    def look():
        said = told.heard()
        assert said == list(range(len(said)))
        check_log(path)
        publish(path, 1)
        ledger = read_on(path, 5, acknowledge=mode, prefetch=prefetch)
        check_ledger(ledger, first=ledger[0][0])
        found.add(ledger[0][0] - len(said))
        assert found <= allowed
        assert check_log(path) == (5, 5)

    points = killed_everywhere(path, lambda: publish(path, 4), act, look)

    assert points > 30
    assert found == allowed


def train_and_look(path: Path, before: int, after: int) -> int:
    """Kill a trainer everywhere between its start from a checkpoint and its end; it goes on with other ranks."""

    def prepare():
        publish(path, 5 * before)
        train(path, before, world_size=before)
        publish(path, after, name=1)

    def act():
        train(path, 3 * before, world_size=before)

    def look():
        saved = read_checkpoint(path)["ledger"]
        assert len(saved) in (before, 3 * before)
        watermark, end = check_log(path)
        assert (watermark in (before, len(saved)), end) == (True, 5 * before + after)
        train(path, 4 * before, world_size=after)
        ledger = read_checkpoint(path)["ledger"]
        check_ledger(ledger)
        assert 4 * before <= len(ledger) < 4 * before + after
        assert check_log(path) == (len(ledger), end)

    return killed_everywhere(path, prepare, act, look, half=True)


@pytest.mark.parametrize(
    ("before", "after"), [(2, 3), *(pytest.param(*sizes, marks=SOAK) for sizes in [(1, 5), (2, 1), (3, 2), (5, 3)])]
)
def test_killed_while_it_trains_and_commits(path, before, after):
    """At each call of loading, taking, saving and committing: the next run, on any world size, trains the rest."""
    assert train_and_look(path, before, after) > 40


def test_a_commit_before_its_checkpoint_would_be_seen(path, monkeypatch):
    """Who lets the queue go on before the checkpoint is stored cannot come back."""

    def hasty(path, ledger, ranks):
        state = ranks[0].state_dict()
        ranks[0].commit(state)
        write_json(path / "checkpoint.json", {"ledger": ledger, "state": state}, durable=False)

    monkeypatch.setattr(queues, "save", hasty)

    with pytest.raises((AssertionError, ResumeError)):
        train_and_look(path, 1, 1)


def test_a_run_is_never_stuck_behind_what_a_killed_trainer_left(path):
    """One provider with little room lives on while trainers are killed at each call: they always get what is next."""
    publish(path, 3)
    size = sum(file.stat().st_size for file in (path / "queue" / "train").glob("*.safetensors"))
    shutil.rmtree(path / "queue")
    options = {"max_backlog": 3, "max_backlog_bytes": size}
    provider(path, **options).open().close()
    pid = fork(lambda: provide(path, **options))
    try:
        outcome, number = -1, 0
        while outcome:
            number += 1
            n_batches = len(read_checkpoint(path)["ledger"]) + 4

            def child(number=number, n_batches=n_batches):
                die_at_call(number)
                train(path, n_batches, every=1, timeout_s=3)

            outcome = in_child(child)
            assert outcome in (0, -9)
        train(path, n_batches + 8, every=1, timeout_s=3)
    finally:
        kill(pid)

    check_ledger(read_checkpoint(path)["ledger"])
    assert number > 30


def leave_a_mess(path: Path) -> None:
    """A queue whose provider, trainer and purge were all killed, and whose short notes were lost."""
    publish(path, 5)

    def die_publishing():
        running = provider(path).open()
        os.link = lambda *_, **__: die()
        running.publish("train")

    def die_deleting():
        with consumer(path, acknowledge="on_read") as reader:
            take(reader)
            os.unlink = os.rename = lambda *_, **__: die()
            reader.get_batch()

    def die_burying():
        rename, n_calls = os.rename, 0

        def die_at_the_second(*names, **options):
            nonlocal n_calls
            n_calls += 1
            rename(*names, **options) if n_calls < 2 else die()

        os.rename = die_at_the_second
        DirectoryLog.open(path / "queue" / "train").write_tombstone(4, "unknown")

    for way in (die_publishing, die_deleting, die_burying):
        in_child(way)
    queue = path / "queue" / "train"
    purged = path / "queue" / ".purged-train-0123456789abcdef"
    purged.mkdir()
    shutil.copy(queue / "000000000003.safetensors", purged)
    (queue / "next").unlink()
    assert list((queue / "tmp").iterdir())
    assert list(queue.glob(".*.partial"))
    assert (queue / "000000000000.safetensors").exists()


def test_killed_while_it_starts_a_provider(path):
    """A provider that cleans up after others may itself be killed anywhere: the next one finds the same queue."""

    def look():
        watermark, end = check_log(path)
        assert (watermark, end) == (2, 5)
        go_on(path, 7)
        queue = path / "queue" / "train"
        assert [name for name in os.listdir(path / "queue") if name != "train"] == []
        assert [*(queue / "tmp").iterdir(), *queue.glob(".*.partial")] == []
        assert sorted(int(file.stem) for file in queue.glob("*.safetensors")) == [2, 3, 4, 5, 6]
        ledger = read_on(path, 7, acknowledge="on_read")
        check_content(ledger)
        assert [line[:3] for line in ledger] == [[number, 0, number] for number in range(ledger[0][0], 7)]
        assert ledger[0][0] == 2

    points = killed_everywhere(path, lambda: leave_a_mess(path), lambda: provider(path).open().close(), look)

    assert points > 30


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=SOAK), 2, pytest.param(3, marks=SOAK)])
def test_killed_while_it_starts_a_trainer(path, told, world_size):
    """A run that was killed before it acknowledged anything has changed nothing for the next one."""

    def prepare():
        publish(path, 9)
        ranks = [consumer(path, rank=rank, world_size=2) for rank in range(2)]
        for _ in range(3):
            for rank in ranks:
                take(rank)
        for rank in ranks:
            rank._close(is_clean=False)  # as a kill would

    def act():
        ranks = [consumer(path, rank=rank, world_size=world_size) for rank in range(world_size)]
        for rank in ranks:
            told.say(take(rank)[0])

    def look():
        said = told.heard()
        assert said == list(range(4, 4 + len(said)))
        ledger = read_on(path, 9)
        check_ledger(ledger, first=4)
        assert check_log(path) == (9, 9)

    assert killed_everywhere(path, prepare, act, look) > 15


def test_killed_while_it_makes_a_queue(path):
    """There is no queue, or a whole one; what is left never stands in the way of making it."""

    def look():
        if not (path / "queue" / "train" / "meta.json").exists():
            with pytest.raises(QueueNotFound, match="Queue directory not found"):
                consumer(path)
        go_on(path, 3)
        check_ledger(read_on(path, 3))

    assert killed_everywhere(path, lambda: None, lambda: publish(path, 1), look, half=True) > 30


def test_killed_while_it_purges(path):
    """All of the queue is there or nothing; the rest is gone when the next provider has started."""
    seen = set()

    def prepare():
        publish(path, 3)
        with consumer(path) as reader:
            take(reader)

    def look():
        is_there = (path / "queue" / "train").exists()
        seen.add(is_there)
        if is_there:
            assert check_log(path) == (1, 3)
        go_on(path, 4)
        assert os.listdir(path / "queue") == ["train"]
        check_ledger(read_on(path, 4), first=int(is_there))

    points = killed_everywhere(path, prepare, lambda: purge_queue(path), look)

    assert points > 15
    assert seen == {True, False}


def test_a_purge_and_a_provider_that_sweeps_do_not_meet(path, monkeypatch):
    """A provider that starts in the middle of a purge removes the rest of it; neither of them fails."""
    publish(path, 3)
    rename, is_renamed = os.rename, False

    def rename_and_start(source, target, **options):
        nonlocal is_renamed
        rename(source, target, **options)
        if ".purged-" in str(target) and not is_renamed:
            is_renamed = True
            publish(path, 1)

    monkeypatch.setattr(os, "rename", rename_and_start)

    assert purge_queue(path) == {"train": 3}
    assert is_renamed
    assert os.listdir(path / "queue") == ["train"]
    check_ledger(read_on(path, 1))


def test_killed_while_it_buries_a_corrupt_batch(path, told):
    """The number stays, the corrupt bytes are kept, and the next reader puts the same batch in its place."""
    corrupt = b""

    def prepare():
        nonlocal corrupt
        publish(path, 4)
        file = path / "queue" / "train" / "000000000001.safetensors"
        corrupt = file.read_bytes()[:-1] + b"!"
        file.write_bytes(corrupt)

    def act():
        with consumer(path, on_corrupt="cached", acknowledge="on_read") as reader:
            for _ in range(3):
                told.say(take(reader)[0])

    def look():
        said = told.heard()
        assert said == list(range(len(said)))
        with consumer(path, on_corrupt="cached", acknowledge="on_read", timeout_s=5) as reader:
            ledger = [take(reader)]
            while ledger[-1][0] < 3:
                ledger.append(take(reader))
        check_content(ledger)
        first = ledger[0][0]
        assert [line[0] for line in ledger] == list(range(first, 4))
        assert first - len(said) in (0, 1)
        if first <= 1:
            assert ledger[1 - first][2] != 1
        dead = path / "queue" / "train" / "dead"
        assert (dead / "000000000001.safetensors").read_bytes() == corrupt
        assert "checksum" in (dead / "000000000001.json").read_text()
        go_on(path, 5)
        check_ledger(read_on(path, 5), first=4)

    assert killed_everywhere(path, prepare, act, look, half=True) > 30


def test_a_queue_that_is_removed_under_a_running_pair_is_an_error_in_both(path):
    """Not a wait for ever, and not a queue that comes back half."""
    running = provider(path).open()
    reader = consumer(path, timeout_s=5)
    running.publish("train")
    take(reader)
    shutil.rmtree(path / "queue" / "train")

    with pytest.raises(QueueError, match="removed meanwhile"):
        running.publish("train")
    with pytest.raises(QueueError, match="removed meanwhile"):
        reader.get_batch()
    for each in (running, reader):
        with suppress(QueueError):
            each.close()
    assert not (path / "queue" / "train").exists()
    assert publish(path, 1) == [0]
    check_ledger(read_on(path, 1))
