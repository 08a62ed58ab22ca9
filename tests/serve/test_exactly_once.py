"""One provider or many, one rank or many: each batch is delivered once, in one order without gaps."""

from __future__ import annotations

import itertools
import random
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from poolish.errors import QueueError, ResumeError, Starved, StoreFull, StoreLocked
from poolish.files import read_json, write_json
from poolish.serve import purge_queue, ranks, reader
from poolish.transports.log import DirectoryLog
from tests.effort import times
from tests.faults import die, ended, fork, in_child, wait_until
from tests.serve import queues
from tests.serve.queues import (
    at_every_call,
    check_ledger,
    check_log,
    consumer,
    provider,
    publish,
    read_checkpoint,
    take,
    train,
    wanted,
)

MODES = ("on_step", "on_read", "on_checkpoint")
SOAK = pytest.mark.soak
pytestmark = pytest.mark.usefixtures("few_together")


# Many providers, many ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_many_providers_fill_and_many_ranks_empty_one_queue(path, mode, prefetch):
    """Processes of their own, all at once: rank r gets r, r + W, ..., and together they get everything once."""
    n_providers, n_each, world_size = 3, times(8), 4

    def providing(name):
        with provider(path, name, max_batches=n_each) as running:
            running.run()

    def ranking(rank):
        with consumer(path, rank=rank, world_size=world_size, acknowledge=mode, prefetch=prefetch) as reader:
            ledger = [queues.entry(reader.last_number(), batch) for batch in reader]
        write_json(path / f"{rank}.json", ledger, durable=False)

    for name in range(n_providers):
        # Each is known, so that no rank thinks all have finished before the last has begun.
        provider(path, name, max_batches=n_each).open().close()
    children = [fork(lambda name=name: providing(name)) for name in range(n_providers)]
    if mode == "on_checkpoint":
        children += [fork(lambda rank=rank: ranking(rank)) for rank in range(1, world_size)]
        children.append(fork(lambda: ranking(0)))
    else:
        children += [fork(lambda rank=rank: ranking(rank)) for rank in range(world_size)]
    assert [ended(child) for child in children] == [0] * len(children)

    ledgers = [read_json(path / f"{rank}.json") for rank in range(world_size)]
    for rank, ledger in enumerate(ledgers):
        assert [line[0] for line in ledger] == list(range(rank, n_providers * n_each, world_size))
    check_ledger(sorted(itertools.chain(*ledgers)))


def test_a_queue_that_has_ended_leaves_no_batch_behind(path):
    """What is not a full round for all ranks waits for a run with fewer, and nobody gets an extra batch."""
    publish(path, 7, max_batches=7)
    ledger = []
    with ExitStack() as stack:
        ranks = [stack.enter_context(consumer(path, rank=rank, world_size=3)) for rank in range(3)]
        for rank in ranks:
            ledger += [queues.entry(rank.last_number(), batch) for batch in rank]
        for rank in ranks:
            with pytest.raises(Starved, match="the providers have finished and all full rounds"):
                rank.get_batch()
    with consumer(path) as last:
        ledger += [queues.entry(last.last_number(), batch) for batch in last]

    check_ledger(sorted(ledger))
    assert len(ledger) == 7


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_world_size_changes_between_restarts(path, prefetch):
    """1, 2, 3, 5 ranks in any order, each run killed or ended between two checkpoints: 0..N-1 in the ledger."""
    rng = random.Random(prefetch)
    sizes = [*itertools.permutations((1, 2, 3, 5))]
    publish(path, 64)
    made = 64
    for size in itertools.chain(*rng.sample(sizes, times(3) if times(3) < 24 else 24)):
        before = len(read_checkpoint(path)["ledger"])
        while made < before + 40:
            made = publish(path, 8, name=made % 3)[-1] + 1
        target = before + rng.randrange(1, 12)

        def run(size=size, target=target):
            train(path, target, world_size=size, every=rng.choice([1, 2, 3]), prefetch=prefetch)
            if rng.random() < 0.5:
                die()

        in_child(run)
        ledger = read_checkpoint(path)["ledger"]
        assert target <= len(ledger) < target + size
        check_ledger(ledger)


@pytest.mark.parametrize("mode", ["on_step", "on_read"])
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
def test_what_a_dead_run_was_done_with_is_handed_out_no_more(path, mode, ahead, first):
    """A rank ran ahead and was killed; the next run gets what is left, whichever rank comes first: nothing is gone."""
    publish(path, 13)
    reader = consumer(path, rank=ahead, world_size=2, acknowledge=mode)
    before = [take(reader) for _ in range(4)]
    reader._close(is_clean=False)
    in_flight = before[3:] if mode == "on_step" else []

    ledger = []
    with ExitStack() as stack:
        for rank in (first, 1 - first):
            reader = stack.enter_context(consumer(path, rank=rank, world_size=2, acknowledge=mode, timeout_s=5))
            ledger += [take(reader) for _ in range(4)]

    assert [line for line in ledger if line in before] == in_flight
    left = sorted(line[0] for line in ledger)
    assert left == [n for n in range(13) if n not in {line[0] for line in before} - {line[0] for line in in_flight}][:8]


@pytest.mark.parametrize("mode", ["on_step", "on_read"])
def test_runs_that_end_well_need_no_state(path, mode):
    """After a clean end the next run goes on with the next batch, on any world size and in any order of starting."""
    publish(path, 60)
    ledger, rng = [], random.Random(3)
    for size in (1, 2, 3, 5, 2, 5, 1, 3):
        order = rng.sample(range(size), size)
        with ExitStack() as stack:
            ranks = {
                rank: stack.enter_context(consumer(path, rank=rank, world_size=size, acknowledge=mode))
                for rank in order
            }
            for _ in range(rng.choice([1, 2])):
                ledger += sorted(take(ranks[rank]) for rank in order)

    check_ledger(ledger)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_ranks_may_start_and_end_in_any_order(path, mode, order):
    """A rank that was quicker than rank 0 does not lose its place."""
    publish(path, 9)
    for first in (0, 3):
        ledger, ranks = [], {}
        for rank in order:
            ranks[rank] = consumer(path, rank=rank, world_size=3, acknowledge=mode)
            ledger.append(take(ranks[rank]))
        ranks[0].commit()
        for rank in reversed(order):
            ranks[rank].close()
        check_ledger(sorted(ledger), first=first)

    with consumer(path) as reader:
        assert take(reader)[0] == 6


# In between -------------------------------------------------------------------------------------------------------


def kill_with_old_note(path: Path) -> None:
    """Leave a provider's batches behind that are newer than its note."""

    def child():
        running = provider(path).open()
        for _ in range(2):
            running.publish("train")
        die()

    in_child(child)


def test_a_provider_starts_while_its_batches_are_deleted(path):
    """Whenever the trainer acknowledges its last batches, a provider that was killed goes on with the next."""

    def prepare():
        with suppress(FileNotFoundError):
            purge_queue(path)
        publish(path, 1)
        kill_with_old_note(path)
        return path / "queue" / "train"

    def read_all():
        with consumer(path, acknowledge="on_read") as reader:
            for number in range(3):
                assert take(reader)[0] == number

    def check():
        with consumer(path, acknowledge="on_read", timeout_s=5) as reader:
            assert take(reader) == [3, 0, 3, wanted(0, 3)]

    points = at_every_call(prepare, lambda: publish(path, 1), read_all, check)

    assert points > 30


def test_a_provider_finds_what_several_ranks_have_deleted(path):
    """Rank 0 deletes, also what other ranks have read; what a provider made is not forgotten with it."""
    publish(path, 1)
    kill_with_old_note(path)
    publish(path, 1, name=1)
    with ExitStack() as stack:
        ranks = [stack.enter_context(consumer(path, rank=rank, world_size=2)) for rank in range(2)]
        for rank in (*ranks, *ranks):
            take(rank)
    assert check_log(path) == (4, 4)

    publish(path, 1)
    with consumer(path) as reader:
        assert take(reader) == [4, 0, 3, wanted(0, 3)]


@pytest.mark.parametrize("other", ["another provider", "the trainer"])
def test_a_batch_is_published_while_somebody_else_is_busy(path, other):
    """Whatever the other one does between two calls of publish: no gap, no number twice, nothing lost."""
    readers = []

    def prepare():
        with suppress(FileNotFoundError):
            purge_queue(path)
        publish(path, 5)
        with consumer(path) as reader:  # what is done may be used again
            take(reader)
            take(reader)
        readers.append(consumer(path, acknowledge="on_read", timeout_s=5))
        return path / "queue" / "train"

    def meanwhile():
        if other == "another provider":
            publish(path, 1, name=1)
        else:
            for number in range(2, 5):
                assert take(readers[-1])[0] == number
            readers[-1].close()

    def check():
        _, end = check_log(path)
        readers[-1].close()
        with consumer(path, timeout_s=5) as reader:
            first = 5 if other == "the trainer" else 2
            ledger = [take(reader) for _ in range(end - first)]
        check_ledger(ledger, first=first)
        assert end == (6 if other == "the trainer" else 7)

    assert at_every_call(prepare, lambda: publish(path, 1), meanwhile, check) > 30


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_is_purged_and_made_anew_under_a_trainer(path, mode):
    """Whenever it happens, the trainer is told, and nothing that it still does reaches the new queue."""
    readers = []

    def prepare():
        with suppress(FileNotFoundError):
            purge_queue(path)
        publish(path, 6)
        readers.append(consumer(path, acknowledge=mode, timeout_s=5))
        take(readers[-1])
        return path / "queue" / "train"

    def act():
        with suppress(QueueError):
            for _ in range(3):
                take(readers[-1])
            readers[-1].commit()
        with suppress(QueueError):
            readers[-1].close()

    def meanwhile():
        purge_queue(path)
        assert publish(path, 5, name=1) == list(range(5))

    def check():
        assert check_log(path) == (0, 5)
        with consumer(path, timeout_s=5) as reader:
            check_ledger([take(reader) for _ in range(5)])

    assert at_every_call(prepare, act, meanwhile, check) > 30


@pytest.mark.parametrize(
    ("mode", "size_before"),
    [("on_step", 2), ("on_read", 3), pytest.param("on_read", 2, marks=SOAK), pytest.param("on_step", 3, marks=SOAK)],
)
def test_a_rank_starts_while_rank_0_starts(path, mode, size_before):
    """Each looks for where the last run ended, the other changes it meanwhile: they agree all the same."""
    ranks = []

    def prepare():
        with suppress(FileNotFoundError):
            purge_queue(path)
        publish(path, 24)
        old = [consumer(path, rank=rank, world_size=size_before, acknowledge=mode) for rank in range(size_before)]
        for _ in range(3):
            for rank in old:
                take(rank)
        for rank in old:
            rank._close(is_clean=False)
        ranks[:] = [consumer(path, rank=rank, world_size=2, acknowledge=mode, timeout_s=5) for rank in range(2)]
        return path / "queue" / "train"

    first = 3 * size_before if mode == "on_read" else 2 * size_before
    got = {}

    def check():
        ledger = [got.pop(0), got.pop(1)]
        for _ in range(3):
            ledger += [take(rank) for rank in ranks]
        for rank in reversed(ranks):
            rank.close()
        check_ledger(ledger, first=first)
        assert check_log(path) == (first + 8, 24)

    for one, other in ((1, 0), (0, 1)):
        points = at_every_call(
            prepare,
            lambda one=one: got.update({one: take(ranks[one])}),
            lambda other=other: got.update({other: take(ranks[other])}),
            check,
        )
        assert points > 15
        for rank in ranks:
            rank._close(is_clean=False)


# States -----------------------------------------------------------------------------------------------------------


def test_rank_0_may_look_where_it_is_before_it_loads_its_state(path):
    """Asking changes nothing: the marks of the ranks that have begun still count."""
    publish(path, 12)
    train(path, 4, world_size=2)
    state = read_checkpoint(path)["state"]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(consumer(path, rank=rank, world_size=2, acknowledge="on_checkpoint"))
            for rank in range(2)
        ]
        ranks[1].load_state_dict(state)
        take(ranks[1])
        ranks[0].schema("train")
        ranks[0].state_dict()
        ranks[0].load_state_dict(state)
        numbers = [take(ranks[rank])[0] for rank in (0, 1, 0)]
        ranks[0].commit()

    assert numbers == [4, 7, 6]
    assert check_log(path) == (8, 12)


def test_an_older_state_is_refused_once_its_batches_are_gone(path):
    """The error names what is gone; the consumer is as it was, and takes a state that is right."""
    publish(path, 8)
    train(path, 4)
    state = read_checkpoint(path)["state"]
    old = {**state, "splits": {"train": {**state["splits"]["train"], "position": 1}}}
    ahead = {**state, "splits": {"train": {**state["splits"]["train"], "position": 6}}}
    with consumer(path, acknowledge="on_checkpoint") as reader:
        with pytest.raises(ResumeError, match="at batch 1, but 1 to 3 are acknowledged and deleted"):
            reader.load_state_dict(old)
        reader.commit()
        with pytest.raises(ResumeError, match="commit of batch 6, but only those below 4 were handed out"):
            reader.commit(ahead)
        reader.load_state_dict(state)
        assert take(reader)[0] == 4
        reader.commit(state)
        assert check_log(path) == (4, 8)
        reader.commit()
    assert check_log(path) == (5, 8)


def test_what_is_no_state_is_refused(path):
    """However deep it is nested, and the consumer is as it was."""
    publish(path, 2)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]

    with consumer(path) as reader:
        good = reader.state_dict()
        for state in (None, [], {}, deep, {**good, "splits": deep}, {**good, "version": deep}, {**good, "version": 3}):
            with pytest.raises(ResumeError, match="not the state of a DatasetConsumer"):
                reader.load_state_dict(state)
        with pytest.raises(ResumeError, match="not the state of a DatasetConsumer"):
            reader.load_state_dict({"version": 1, "splits": {3: {"queue": "q", "position": 0}}})
        check_ledger([take(reader) for _ in range(2)])


def test_a_state_of_a_queue_that_was_purged_is_refused(path):
    """Its numbers mean other batches now."""
    publish(path, 4)
    train(path, 2)
    purge_queue(path)
    publish(path, 4)

    with consumer(path) as reader:
        with pytest.raises(ResumeError, match="it was purged or created again since"):
            reader.load_state_dict(read_checkpoint(path)["state"])
        with pytest.raises(ResumeError, match="it was purged or created again since"):
            reader.commit(read_checkpoint(path)["state"])
        check_ledger([take(reader) for _ in range(4)])


def test_a_rank_is_one_process(path, monkeypatch):
    """A second reader of the same rank would train everything twice: it is refused, until the first is gone."""
    monkeypatch.setattr(ranks, "_TAKE_OVER_S", 0.02)
    publish(path, 4)
    with consumer(path, rank=1, world_size=2) as first:
        take(first)
        with consumer(path, rank=1, world_size=2) as second, pytest.raises(StoreLocked, match="held by this process"):
            second.get_batch()
        with consumer(path, rank=0, world_size=2) as other:
            assert take(other)[0] == 0
    with consumer(path, rank=1, world_size=2) as third:
        assert take(third)[0] == 3


def test_a_rank_left_over_from_a_larger_world_keeps_a_new_run_from_starting(path, monkeypatch):
    """Both would train the same batches: the new run is refused and the error names the rank, until that has ended."""
    monkeypatch.setattr(ranks, "_TAKE_OVER_S", 0.02)
    publish(path, 6)
    with ExitStack() as stack:
        for rank in (1, 3):
            take(stack.enter_context(consumer(path, rank=rank, world_size=4)))
        for run in ("tests", "another"):
            with consumer(path, run=run) as reader, pytest.raises(QueueError, match=r"ranks 1, 3 of run 'tests' "):
                reader.get_batch()
    assert check_log(path) == (0, 6)
    with consumer(path) as reader:
        assert [take(reader)[0] for _ in range(4)] == [0, 2, 4, 5]


def test_a_rank_whose_run_was_replaced_stops(path):
    """Should its lock be lost all the same, it does not wait for batches of another run."""
    publish(path, 2)
    with consumer(path, acknowledge="on_read") as late:
        take(late)
        late._readers["train"]._progress._claim.release()
        with consumer(path, acknowledge="on_read") as reader:
            assert take(reader)[0] == 1

        with pytest.raises(QueueError, match="another run has begun on this queue, rank 0 is left over"):
            late.get_batch()


# Faults of the trainer's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", [StoreFull("no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["raise_watermark", "delete"])
def test_an_error_while_a_batch_is_handed_out_loses_nothing(path, monkeypatch, mode, prefetch, error, place):
    """A full disk, or a user who stops and goes on: the batch that was not handed out comes next."""
    publish(path, 24)
    n_errors = 0
    real = getattr(DirectoryLog, place)

    def failing(*arguments, **options):
        nonlocal n_errors
        n_errors += 1
        if n_errors % 2:
            raise error
        return real(*arguments, **options)

    with consumer(path, acknowledge=mode, prefetch=prefetch, timeout_s=5) as reader:
        ledger = [take(reader)]
        with monkeypatch.context() as patch:
            patch.setattr(DirectoryLog, place, failing)
            while len(ledger) < 12:
                try:
                    ledger.append(take(reader))
                    if len(ledger) % 3 == 0:
                        reader.commit()
                except (StoreFull, KeyboardInterrupt):
                    assert n_errors < 100
            wait_until(lambda: n_errors > 2, "the third try")  # one who reads ahead deletes in the background

        check_ledger(ledger)
    assert check_log(path) == (12 if mode != "on_checkpoint" else check_log(path)[0], 24)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_step_that_failed_is_not_over(path, prefetch):
    """An exception out of the ``with`` block gives the batch in flight back, as a kill does."""
    publish(path, 4)

    def fail_in_the_second_step():
        with consumer(path, prefetch=prefetch) as reader:
            assert [take(reader)[0], take(reader)[0]] == [0, 1]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_the_second_step()
    with consumer(path, prefetch=prefetch) as reader:
        assert take(reader)[0] == 1


@pytest.mark.parametrize("ahead", [0, 1])
def test_no_batch_is_removed_that_a_rank_is_not_done_with(path, ahead):
    """However far the other rank is."""
    publish(path, 6)
    ranks = [consumer(path, rank=rank, world_size=2, acknowledge="on_read") for rank in range(2)]
    with ranks[0], ranks[1]:
        for _ in range(3):
            take(ranks[ahead])

        assert [take(ranks[1 - ahead])[0] for _ in range(3)] == [1 - ahead, 3 - ahead, 5 - ahead]


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("block_size", [3, 200_000])
def test_a_batch_is_the_trainer_s_own(path, output, block_size):
    """Its file may go, and be used again by a provider, while the trainer still reads and changes the arrays."""
    with (
        provider(path, block_size=block_size) as running,
        consumer(path, acknowledge="on_read", output=output) as reader,
    ):
        kept = []
        for counter in range(9):
            running.publish("train")
            batch = reader.get_batch()
            kept.append((batch["x"], running.make_batch("train", counter)["x"]))
            if counter % 4 == 3:
                kept[-1][0][:] = counter
                kept[-1][1][:] = counter
        assert check_log(path)[0] > 6
        for given, made in kept:
            assert np.array_equal(np.asarray(given), made)


# Against a model --------------------------------------------------------------------------------------------------


class QueueMachine(RuleBasedStateMachine):
    """Random providers, ranks, checkpoints and kills, against a list of what was published."""

    def __init__(self):
        super().__init__()
        self._stack = ExitStack()
        self._stack.enter_context(patched(reader, _TOGETHER=2, _LOOK_AROUND_S=0.005))
        self.path = self._stack.enter_context(queues.in_memory(Path(tempfile.gettempdir()))) / str(id(self))
        self.published: list[tuple[int, int]] = []
        self.providers = {}
        self.ranks = []
        self.done: set[int] = set()
        self.stored, self.ledger, self.left, self.end = None, [], [], 0
        self.attempt = None  # the newest one that a rank entered, as it was when it ended

    @initialize(
        mode=st.sampled_from(MODES), prefetch=st.sampled_from([0, 0, 2]), world_size=st.sampled_from([1, 2, 3, 5])
    )
    def begin(self, mode, prefetch, world_size):
        self.mode, self.prefetch = mode, prefetch
        self.publish_some(0, 12)
        self.open_ranks(world_size)

    # -- providers

    @rule(name=st.integers(0, 2), n_batches=st.integers(1, 24))
    def publish_some(self, name, n_batches):
        for _ in range(n_batches):
            self.publish(name)

    def publish(self, name):
        if name not in self.providers:
            self.providers[name] = provider(self.path, name).open()
        counter = sum(1 for maker, _ in self.published if maker == name)
        assert self.providers[name].batch_number("train") == counter
        assert self.providers[name].publish("train") == len(self.published)
        self.published.append((name, counter))

    @rule(name=st.integers(0, 2), is_killed=st.booleans())
    def end_provider(self, name, is_killed):
        ending = self.providers.pop(name, None)
        if ending is not None and is_killed:
            for producer in ending._producers.values():  # what a kill leaves: no lock, no note
                producer._registry.release()
                producer.log.close()
        elif ending is not None:
            ending.close()

    # -- ranks

    def open_ranks(self, world_size):
        self.ranks = [
            consumer(
                self.path, rank=rank, world_size=world_size, acknowledge=self.mode, prefetch=self.prefetch, timeout_s=5
            )
            for rank in range(world_size)
        ]
        self.taken = [0] * world_size
        self.entered: set[int] = set()
        self.begun = None

    def take(self, rank):
        """One batch of one rank, if its round is there already."""
        world_size = len(self.ranks)
        if self.begun is None:
            self.begun = self.find_start()
        if not self.entered and self.continues_attempt(rank):
            self.left, self.end, self.taken = self.attempt["left"], self.attempt["end"], list(self.attempt["taken"])
        number = self.number(rank, self.taken[rank])
        if self.number(world_size - 1, self.taken[rank]) >= len(self.published):
            return False
        name, counter = self.published[number]
        self.entered.add(rank)
        assert take(self.ranks[rank]) == [number, name, counter, wanted(name, counter)]
        if self.mode == "on_read":
            self.done.add(number)
        elif self.mode == "on_step" and self.taken[rank]:
            self.done.add(self.number(rank, self.taken[rank] - 1))
        self.taken[rank] += 1
        return True

    def continues_attempt(self, rank):
        """Whether a rank comes late to ranks that ended well: it may have started with them, so all continue."""
        last = self.attempt
        if self.mode == "on_checkpoint" or last is None or not last["is_clean"]:
            return False
        return len(self.ranks) == len(last["taken"]) and not last["taken"][rank]

    def number(self, rank, round_number):
        """Which batch a rank gets in a round of this run."""
        i, n_left = rank + len(self.ranks) * round_number, len(self.left)
        return self.left[i] if i < n_left else self.end + i - n_left

    def find_start(self):
        """Where a run begins that all ranks must agree about."""
        if self.mode == "on_checkpoint":
            self.ledger = list(self.stored["ledger"]) if self.stored else []
            for rank in self.ranks if self.stored else []:
                rank.load_state_dict(self.stored["state"])
            self.left, self.end = [], self.stored["position"] if self.stored else 0
            return self.end
        # Nothing is lost, and nothing that a rank was done with comes again.
        self.end = len(self.published)
        self.left = [number for number in range(self.end) if number not in self.done]
        return self.left[0] if self.left else self.end

    @precondition(lambda self: self.ranks and self.mode != "on_checkpoint")
    @rule(rank=st.integers(0, 4), n_batches=st.integers(1, 4))
    def take_alone(self, rank, n_batches):
        """One rank runs ahead of the others."""
        for _ in range(n_batches):
            self.take(rank % len(self.ranks))

    @precondition(lambda self: self.ranks)
    @rule(n_rounds=st.integers(1, 4))
    def take_rounds(self, n_rounds):
        """All ranks in step, those behind first."""
        end = max(self.taken) + n_rounds
        for n_taken in range(min(self.taken), end):
            for rank in range(len(self.ranks)):
                if self.taken[rank] == n_taken and self.take(rank):
                    self.ledger.append(self.ranks[rank].last_number())
        if self.mode == "on_checkpoint":
            assert self.ledger == list(range(len(self.ledger)))

    @precondition(lambda self: self.ranks and self.mode == "on_checkpoint" and self.begun is not None)
    @rule(is_committed=st.booleans())
    def store(self, is_committed):
        """A checkpoint; the trainer may be killed before it says so, or say so later."""
        states = [rank.state_dict() for rank in self.ranks]
        assert all(state == states[0] for state in states)
        if not states[0]["splits"]:
            return
        position = self.begun + len(self.ranks) * self.taken[0]
        assert states[0]["splits"]["train"]["position"] == position == len(self.ledger)
        self.stored = {"state": states[0], "position": position, "ledger": list(self.ledger)}
        if is_committed:
            self.commit(on_every_rank=False)

    @precondition(lambda self: self.stored and self.begun is not None)
    @rule(on_every_rank=st.booleans())
    def commit(self, on_every_rank):
        """Say that the last checkpoint is stored, whatever was taken since."""
        for rank in reversed(self.ranks) if on_every_rank else self.ranks[:1]:
            rank.commit(self.stored["state"])
        if self.stored["position"] > self.begun:
            assert check_log(self.path)[0] == self.stored["position"]

    @rule(is_clean=st.booleans(), world_size=st.sampled_from([0, 0, 1, 2, 3, 5]), order=st.randoms())
    def restart(self, is_clean, world_size, order):
        """End the run, by a kill or well, and start another one, often with other ranks."""
        size = len(self.ranks)
        if self.begun is not None and self.mode != "on_checkpoint":
            for rank, n_taken in enumerate(self.taken):
                n_done = n_taken if self.mode == "on_read" or is_clean else max(0, n_taken - 1)
                self.done |= {self.number(rank, i) for i in range(n_done)}
        if self.entered:
            self.attempt = {"left": self.left, "end": self.end, "taken": self.taken, "is_clean": is_clean}
        for rank in order.sample(self.ranks, size):
            rank._close(is_clean=is_clean)
        self.open_ranks(world_size or size)

    # -- always

    @invariant()
    def the_log_is_whole(self):
        if not self.published:
            return
        watermark, end = check_log(self.path)
        assert end == len(self.published)
        if self.mode == "on_checkpoint":
            assert watermark <= (self.stored["position"] if self.stored else 0)
        else:
            assert set(range(watermark)) <= self.done | self.in_flight()

    def in_flight(self):
        """What was handed out in this run; its acknowledgement is on its way."""
        if self.begun is None:
            return set()
        return {self.number(rank, i) for rank, n in enumerate(self.taken) for i in range(n - (self.mode == "on_step"))}

    def teardown(self):
        for rank in self.ranks:
            rank._close(is_clean=False)
        for running in self.providers.values():
            running.close()
        self._stack.close()


class patched:
    """Attributes of a module with other values for a while."""

    def __init__(self, module, **values):
        self._module, self._values = module, values

    def __enter__(self):
        self._before = {name: getattr(self._module, name) for name in self._values}
        for name, value in self._values.items():
            setattr(self._module, name, value)

    def __exit__(self, *error):
        for name, value in self._before.items():
            setattr(self._module, name, value)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=times(40, push=12), stateful_step_count=25)
