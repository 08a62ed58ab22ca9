"""Runs: which ranks may read a queue together, what a rank that returns gets, and what the next run gets."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetConsumer
from poolish.errors import ConfigError, QueueError, ResumeError, StoreLocked
from poolish.files import Lock
from poolish.files.checksums import ChecksummedCounters, write_checksummed_json
from poolish.serve import queue_status, ranks
from poolish.serve.ranks import Assignment
from poolish.transports.log import DirectoryLog
from tests.effort import times
from tests.faults import ended, fork, kill
from tests.serve import queues
from tests.serve.queues import check_content, check_ledger, check_log, consumer, publish, take

MODES = ("on_read", "on_step", "on_checkpoint")

pytestmark = pytest.mark.usefixtures("few_together")


@pytest.fixture
def impatient(monkeypatch):
    """What is refused after a while is refused soon."""
    monkeypatch.setattr(ranks, "_TAKE_OVER_S", 0.05)


def killed(reader: DatasetConsumer) -> None:
    """Leave what a kill leaves: no lock, and the mark as it was."""
    reader._close(is_clean=False)


# Ids --------------------------------------------------------------------------------------------------------------


def test_several_ranks_need_a_run_when_they_first_read(path, monkeypatch):
    """Not before: torch.distributed may be initialised later, and looking needs no id."""
    publish(path, 4)
    reader = DatasetConsumer(path, rank=0, world_size=2, output="numpy", timeout_s=5)
    assert reader.state_dict() == {"version": 2, "run": None, "splits": {}}
    assert queue_status(path)["train"].published == 4
    with pytest.raises(ConfigError, match="2 ranks share no run id; pass the same run='NAME' on every rank"):
        reader.get_batch()

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    assert take(reader)[0] == 0
    assert (reader.run, reader.state_dict()["run"]) == ("job-7", "job-7")
    reader.close()


def test_one_rank_has_a_new_run_at_each_start(path):
    """It needs no name, and what the last one was done with is done."""
    publish(path, 4)
    runs = set()
    for number in range(3):
        with DatasetConsumer(path, output="numpy", timeout_s=5) as reader:
            assert reader.run is None
            assert take(reader)[0] == number
            runs.add(reader.run)
    assert len(runs) == 3


def test_the_run_of_a_state_goes_on(path):
    """It wins over a new id, a different run= is refused, and a state of 0.1.0 belongs to none."""
    publish(path, 6)
    with consumer(path, run="first", acknowledge="on_checkpoint") as reader:
        take(reader)
        state = reader.state_dict()
    with DatasetConsumer(path, output="numpy", timeout_s=5, acknowledge="on_checkpoint") as reader:
        reader.load_state_dict(state)
        assert (take(reader)[0], reader.run) == (1, "first")
    with consumer(path, run="second", acknowledge="on_checkpoint") as reader:
        with pytest.raises(ResumeError, match="the state belongs to run 'first', run= says 'second'"):
            reader.load_state_dict(state)
        reader.load_state_dict({"version": 1, "splits": state["splits"]})
        assert (take(reader)[0], reader.run) == (1, "second")


@pytest.mark.parametrize("run", ["", "../other", "a/b", 7])
def test_a_run_is_a_name(path, run):
    """It is checked where it is given."""
    publish(path, 1)
    with pytest.raises(ConfigError, match="run "):
        consumer(path, run=run)


# One rank returns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [0, 1])
@pytest.mark.parametrize("mode", ["on_read", "on_step"])
def test_a_rank_that_was_killed_alone_rejoins_its_run(path, mode, alone):
    """It goes on where it was, and the others notice nothing: each batch once, but the one in flight by the rule."""
    publish(path, 24)
    ranks = [consumer(path, rank=rank, world_size=2, acknowledge=mode) for rank in range(2)]
    ledger = [take(rank) for _ in range(3) for rank in ranks]
    killed(ranks[alone])
    ledger.append(take(ranks[1 - alone]))
    ranks[alone] = consumer(path, rank=alone, world_size=2, acknowledge=mode)
    if mode == "on_step":  # the one in flight
        assert take(ranks[alone]) == ledger[4 + alone]
    ledger.append(take(ranks[alone]))
    ledger += [take(rank) for _ in range(8) for rank in ranks]
    for rank in reversed(ranks):
        rank.close()

    check_ledger(sorted(ledger))
    assert check_log(path) == (24, 24)


def a_round_behind_a_checkpoint(path: Path, world_size: int) -> tuple[list[DatasetConsumer], dict[str, Any]]:
    """Ranks that have read three rounds, two of which a checkpoint holds; and its state."""
    settings = {"world_size": world_size, "acknowledge": "on_checkpoint"}
    ranks = [consumer(path, rank=rank, **settings) for rank in range(world_size)]
    for rank in ranks * 2:
        take(rank)
    state = ranks[0].state_dict()
    ranks[0].commit(state)
    for rank in ranks:
        take(rank)
    return ranks, state


@pytest.mark.parametrize("alone", [0, 1])
def test_a_rank_that_returns_behind_the_others_is_refused(path, impatient, alone):
    """With on_checkpoint the group has one position; the error says what was handed out, and what to do."""
    publish(path, 24)
    ranks, state = a_round_behind_a_checkpoint(path, 2)
    killed(ranks[alone])

    for loaded in (state, None):
        with consumer(path, rank=alone, world_size=2, acknowledge="on_checkpoint") as reader:
            if loaded:
                reader.load_state_dict(loaded)
            with pytest.raises(
                ResumeError, match=rf"rank {alone} of run 'tests' returns .* position 6 and rank .* went"
            ):
                reader.get_batch()
    state = ranks[1 - alone].state_dict()
    with consumer(path, rank=alone, world_size=2, acknowledge="on_checkpoint") as reader:
        reader.load_state_dict(state)
        ledger = sorted([take(ranks[1 - alone]), take(reader)])
    killed(ranks[1 - alone])
    check_ledger(ledger, first=6)


@pytest.mark.parametrize(("run", "world_size"), [("other", 2), ("tests", 3), ("other", 1)])
def test_while_a_run_reads_no_other_begins(path, impatient, run, world_size):
    """The error names the ranks that are alive and their run, and nothing has changed for them."""
    publish(path, 12)
    with ExitStack() as stack:
        ranks = [stack.enter_context(consumer(path, rank=rank, world_size=2)) for rank in range(2)]
        ledger = [take(rank) for rank in ranks]
        killed(ranks[0])
        with (
            consumer(path, rank=0, world_size=world_size, run=run) as reader,
            pytest.raises(
                QueueError, match=r"rank 1 of run 'tests' .world_size 2. still read .* pass run='tests' to rejoin"
            ),
        ):
            reader.get_batch()
        again = stack.enter_context(consumer(path, rank=0, world_size=2))
        assert take(again) == ledger[0]
        ledger += [take(ranks[1]), take(again)]
    check_ledger(sorted(ledger))


def test_ranks_of_one_run_acknowledge_by_one_rule(path, impatient):
    """Their marks would mean different things."""
    publish(path, 4)
    with consumer(path, rank=0, world_size=2, acknowledge="on_read") as zero:
        take(zero)
        with (
            consumer(path, rank=1, world_size=2) as one,
            pytest.raises(QueueError, match=r"acknowledge='on_step', run 'tests' began with 'on_read'"),
        ):
            one.get_batch()


def test_ranks_that_load_different_states_are_refused(path, impatient):
    """One of them would leave batches out that no other trains."""
    publish(path, 12)
    states = []
    with consumer(path, acknowledge="on_checkpoint") as reader:
        for _ in range(2):
            take(reader)
            take(reader)
            states.append(reader.state_dict())
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(consumer(path, rank=rank, world_size=2, acknowledge="on_checkpoint")) for rank in (0, 1)
        ]
        for rank, state in zip(ranks, states, strict=True):
            rank.load_state_dict(state)
        assert take(ranks[0])[0] == 2
        with pytest.raises(ResumeError, match="rank 1 is at batch 4, but rank 0 of run 'tests' began at batch 2"):
            ranks[1].get_batch()


# All ranks return -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("lingering", [0, 1, None])
def test_all_ranks_restart_from_a_checkpoint_in_any_order(path, order, lingering):
    """Also while the lock of one that was killed is still held; what was not committed comes again, once."""
    publish(path, 30)
    ranks, state = a_round_behind_a_checkpoint(path, 3)
    for rank in ranks:
        killed(rank)
    holding = Lock(path / "queue" / "train" / "marks" / f"{lingering}.lock")
    if lingering is not None:
        holding.acquire()
        threading.Timer(0.1, holding.release).start()

    ranks = [consumer(path, rank=rank, world_size=3, acknowledge="on_checkpoint") for rank in range(3)]
    ledger = []
    for rank in order:
        ranks[rank].load_state_dict(state)
        ledger.append(take(ranks[rank]))
    for _ in range(3):
        ledger += [take(rank) for rank in ranks]
    for rank in ranks:
        rank.close()
    check_ledger(sorted(ledger), first=6)


def test_all_ranks_load_an_older_state_within_one_process(path):
    """After a loss that went wrong: each leaves its run when it loads, so the first to read begins anew."""
    publish(path, 12)
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(consumer(path, rank=rank, world_size=2, acknowledge="on_checkpoint")) for rank in (0, 1)
        ]
        first = [take(rank) for rank in ranks]
        state = ranks[0].state_dict()
        later = [take(rank) for rank in ranks]
        for rank in ranks:
            rank.load_state_dict(state)
        assert [take(rank) for rank in ranks] == later
        check_ledger(first + later)


def test_a_rank_is_refused_while_its_own_process_lives(path, impatient):
    """Two processes of one rank would train everything twice."""
    publish(path, 4)
    with consumer(path, rank=1, world_size=2) as first, consumer(path, rank=1, world_size=2) as second:
        take(first)
        with pytest.raises(StoreLocked, match="held by this process"):
            second.get_batch()


def test_marks_of_an_earlier_version_count(path):
    """A run of 0.1.0 has no id; its marks say where the next one begins."""
    publish(path, 12)
    split = path / "queue" / "train"
    (split / "marks" / "0-2").mkdir()
    write_checksummed_json(split / "run.json", {"start": 0, "world_size": 2}, durable=False)
    for rank, done in enumerate((6, 4)):
        with closing(ChecksummedCounters(split / "marks" / "0-2" / str(rank), 2)) as mark:
            mark.write(done, done)

    assert queue_status(path)["train"].acknowledged == 4
    with consumer(path) as reader:
        check_ledger([take(reader) for _ in range(4)], first=4)
    assert not (split / "marks" / "0-2").exists()


def test_a_state_is_refused_by_an_older_copy_of_its_queue(path):
    """What follows in the copy is not what followed where the state was taken."""
    publish(path, 4)
    shutil.copytree(path, path.with_name("copy"))
    publish(path, 4)
    with consumer(path, acknowledge="on_checkpoint") as reader:
        for _ in range(6):
            take(reader)
        state = reader.state_dict()
    with consumer(path.with_name("copy"), acknowledge="on_checkpoint") as reader:
        with pytest.raises(ResumeError, match="at batch 6, but this queue ends at 4: it is an older copy"):
            reader.load_state_dict(state)
        assert take(reader)[0] == 0


# What is left -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 9), st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 6), min_size=5, max_size=5))))
def test_what_is_left_after_any_runs_is_what_no_rank_has_done(start, runs):
    """Whatever the world sizes, and however far each rank came: every number is dealt out once."""
    assignment, done = Assignment(start), set()
    for world_size, rounds in runs:
        ends = [assignment.number(assignment.start, world_size * n) for n in rounds[:world_size]]
        for rank, n in enumerate(rounds[:world_size]):
            taken = {assignment.number(assignment.start, rank + world_size * i) for i in range(n)}
            assert not taken & done
            done |= taken
        assignment = assignment.rest(ends)
        left = list(itertools.islice((number for number in itertools.count(start) if number not in done), 20))
        assert [assignment.number(assignment.start, i) for i in range(20)] == left
        assert assignment.start == left[0]
        again = Assignment.of(assignment.start, assignment.skip(assignment.start))
        assert [again.number(again.start, i) for i in range(20)] == left


def test_a_state_taken_between_ranks_that_ran_ahead_leaves_nothing_out(path):
    """It knows which of the batches that follow were done by the run before."""
    publish(path, 12)
    reader = consumer(path, rank=1, world_size=2, acknowledge="on_read")
    before = [take(reader)[0] for _ in range(3)]
    killed(reader)
    with consumer(path, acknowledge="on_read") as reader:
        before.append(take(reader)[0])
        state = reader.state_dict()
        killed(reader)
    with consumer(path, acknowledge="on_read") as reader:
        reader.load_state_dict(state)
        after = [take(reader)[0] for _ in range(8)]

    assert (before, after) == ([1, 3, 5, 0], [2, 4, 6, 7, 8, 9, 10, 11])


@pytest.mark.parametrize("mode", ["on_read", "on_step"])
def test_killed_at_random_alone_or_together_ranks_get_each_batch_by_the_rule(path, mode):
    """on_read: never twice, and a kill loses one at most. on_step: never lost, and a kill repeats one at most."""
    rng, n_batches = random.Random(mode), times(300)
    publish(path, n_batches, max_batches=n_batches)
    ledger_file = os.open(path / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def ranking(rank: int, world_size: int) -> None:
        with consumer(path, rank=rank, world_size=world_size, acknowledge=mode) as reader:
            for batch in reader:
                line = queues.entry(reader.last_number(), batch)
                queues.tell(ledger_file, (" ".join(map(str, line)) + "\n").encode())
                time.sleep(0.001)

    n_kills = 0
    for _ in range(times(6)):
        world_size = rng.choice([1, 2, 3])
        running = [fork(lambda rank=rank, size=world_size: ranking(rank, size)) for rank in range(world_size)]
        for _ in range(rng.choice([0, 1, 2])):
            time.sleep(rng.uniform(0.01, 0.04))
            alone = rng.randrange(world_size)
            kill(running[alone])
            n_kills += 1
            running[alone] = fork(lambda rank=alone, size=world_size: ranking(rank, size))
        time.sleep(rng.uniform(0, 0.03))
        for pid in running:
            kill(pid)
            n_kills += 1
    assert ended(fork(lambda: ranking(0, 1))) == 0
    os.close(ledger_file)

    ledger = [[*map(int, line.split())] for line in (path / "ledger").read_text().splitlines()]
    check_content(ledger)
    numbers = [line[0] for line in ledger]
    lost, repeated = n_batches - len(set(numbers)), len(numbers) - len(set(numbers))
    assert set(numbers) <= set(range(n_batches))
    assert (repeated == 0 and lost <= n_kills) if mode == "on_read" else (lost == 0 and repeated <= n_kills)
    with closing(DirectoryLog.open(path / "queue" / "train")) as log:
        assert ranks.rest(log).start == n_batches


def test_queues_are_no_place_for_urls(tmp_path: Path, monkeypatch):
    """A directory ``s3:`` would be made, and both sides would find each other there."""
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: DatasetConsumer("s3://bucket/data"),
        lambda: queues.provider("s3://bucket/data"),
        lambda: queue_status("s3://bucket/data"),
    ):
        with pytest.raises(ConfigError, match="'s3://bucket/data': must be a local path"):
            use()
    assert os.listdir(tmp_path) == []
