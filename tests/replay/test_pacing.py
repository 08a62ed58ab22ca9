"""Rate limiters: the ratio of samples to inserts stays within its bounds, nothing blocks for ever without a reason."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import PacingTimeout, PoolishError
from poolish.errors import ConfigError, CorruptDataError, ResumeError
from poolish.replay import MinSize, Queue, RateLimiter, SampleToInsertRatio, pacing, shared_counts
from tests.effort import times
from tests.faults import PATIENCE_S, children, fork, in_child, kill, some_kill_points, wait_until

RATIO = SampleToInsertRatio(4, min_size_to_sample=10, error_buffer=20)


def bounded(limiter: RateLimiter, *, largest: int = 1) -> bool:
    """Whether the difference is within its bounds; inserts may have ended the time below the minimum at once."""
    totals = limiter._counts.read()
    diff = totals.insert.done * limiter.samples_per_insert - totals.sample.done
    free = (limiter.min_size_to_sample + totals.evictions + largest - 1) * limiter.samples_per_insert
    return (totals.sample.done == 0 or diff >= limiter.min_diff) and diff <= max(limiter.max_diff, free)


def insert(limiter: RateLimiter, n: int = 1, **options: Any) -> None:
    with limiter.insert(n, **options):
        pass


def sample(limiter: RateLimiter, n: int = 1, **options: Any) -> None:
    with limiter.sample(n, **options):
        pass


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Callable[[RateLimiter], tuple[RateLimiter, RateLimiter]]]:
    """Gives a recorder and a sampler that share a limiter's counts in a directory."""
    with ExitStack() as stack:

        def of(limiter: RateLimiter) -> tuple[RateLimiter, RateLimiter]:
            recorder = stack.enter_context(limiter.attach(tmp_path / "pacing", recorder="actor"))
            return recorder, stack.enter_context(limiter.attach(tmp_path / "pacing", sampler="learner"))

        yield of


# -- deciding


LIMITERS = st.one_of(
    st.builds(
        lambda ratio, size, more: SampleToInsertRatio(ratio, size, max(1.0, ratio) * more),
        *(st.sampled_from([0.25, 0.5, 1, 1.5, 3, 4]), st.integers(1, 6), st.floats(1, 5)),
    ),
    st.builds(MinSize, st.integers(1, 6)),
    st.builds(Queue, st.integers(1, 6)),
)
STEPS = st.lists(st.sampled_from(["insert", "sample", "evict", "fail to insert", "fail to sample"]), max_size=60)


class Model:
    """Reverb's rules for one row at a time, in plain numbers."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter, self.inserts, self.samples, self.evictions = limiter, 0, 0, 0

    def may_insert(self) -> bool:
        is_filling = self.inserts + 1 - self.evictions <= self.limiter.min_size_to_sample
        diff = (self.inserts + 1) * self.limiter.samples_per_insert - self.samples
        return is_filling or diff <= self.limiter.max_diff

    def may_sample(self) -> bool:
        is_filled = self.inserts - self.evictions >= self.limiter.min_size_to_sample
        return is_filled and self.inserts * self.limiter.samples_per_insert - self.samples - 1 >= self.limiter.min_diff


def follow(recorder: RateLimiter, sampler: RateLimiter, steps: list[str]) -> None:
    """Do the steps on both sides and on the model, which always agree, and never block both sides."""
    model = Model(recorder)
    for step in steps:
        assert recorder.can_insert() == model.may_insert()
        assert sampler.can_sample() == model.may_sample()
        assert model.may_insert() or model.may_sample()
        kind = step.rpartition(" ")[2]
        if kind == "evict":
            if model.inserts > model.evictions:
                recorder.evicted()
                model.evictions += 1
            continue
        side = recorder.insert if kind == "insert" else sampler.sample
        is_admitted = model.may_insert() if kind == "insert" else model.may_sample()
        try:
            with side(timeout_s=0):
                assert is_admitted
                if step.startswith("fail"):
                    raise KeyError
        except KeyError:
            is_admitted = False
        except PacingTimeout:
            assert not is_admitted
        model.inserts += is_admitted and kind == "insert"
        model.samples += is_admitted and kind == "sample"
        assert (recorder.inserts, sampler.samples) == (model.inserts, model.samples)


@settings(max_examples=times(200))
@given(limiter=LIMITERS, steps=STEPS)
def test_a_limiter_admits_what_the_rules_admit(limiter: RateLimiter, steps: list[str]):
    """Whatever comes in whatever order; an operation that fails does not count; one of both sides can always go on."""
    limiter = pickle.loads(pickle.dumps(limiter))
    limiter._pid = os.getpid()

    follow(limiter, limiter, steps)


@settings(max_examples=times(25))
@given(limiter=LIMITERS, steps=STEPS)
def test_sides_of_a_directory_admit_what_the_rules_admit(tmp_path_factory, limiter: RateLimiter, steps: list[str]):
    """The same through files."""
    path = tmp_path_factory.mktemp("paced")

    with limiter.attach(path, recorder="a") as recorder, limiter.attach(path, sampler="b") as sampler:
        follow(recorder, sampler, steps)


def test_a_large_insert_that_begins_below_the_minimum_passes():
    """It would wait for samples, which wait for the rows that it brings."""
    limiter = SampleToInsertRatio(4, min_size_to_sample=10, error_buffer=20)

    insert(limiter, 9)
    insert(limiter, 64, timeout_s=0)

    assert limiter.can_sample(200)
    assert not limiter.can_insert()


def test_what_is_pending_counts_where_it_restricts():
    """Rows that are being inserted cannot be sampled yet; two that each fit do not pass together."""
    queue = Queue(4)

    with queue.insert(3):
        assert not queue.can_sample()
        assert queue.can_insert(1)
        assert not queue.can_insert(2)
    with queue.sample(2):
        assert queue.can_sample(1)
        assert not queue.can_sample(2)
        assert not queue.can_insert(2)

    assert queue.can_insert(3)


def test_evictions_can_stop_samples():
    """Below the minimum size samples wait again, and inserts do not."""
    limiter = SampleToInsertRatio(1, min_size_to_sample=3, error_buffer=2)
    limiter.inserted(5)
    assert not limiter.can_insert()

    limiter.evicted(3)

    assert (limiter.can_insert(), limiter.can_sample()) == (True, False)
    assert limiter.why_blocked() == ("waiting for inserts: 2 of 3 rows are there, 3 were evicted (min_size_to_sample)")


# -- settings that would deadlock


@pytest.mark.parametrize(
    ("arguments", "legal"),
    [
        ((4, 1_000, 2), 4),
        ((0.5, 1_000, 0.9), 1),
        ((4, 1_000, (3_999, 4_001)), (3_999, 4_007)),
        ((4, 1_000, (4_001, 5_000)), (4_000, 4_999)),
    ],
)
def test_settings_that_deadlock_are_refused_with_the_nearest_that_do_not(arguments: tuple[Any, ...], legal: Any):
    """The message has the value to use, which is accepted."""
    shown = f"({legal[0]:g}, {legal[1]:g})" if isinstance(legal, tuple) else f"{legal:g}"
    with pytest.raises(ConfigError, match=f"error_buffer=.*use {re.escape(shown)}"):
        SampleToInsertRatio(*arguments)

    assert SampleToInsertRatio(*arguments[:2], legal)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: SampleToInsertRatio(0, 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio(True, 1, 5), "samples_per_insert"),
        (lambda: SampleToInsertRatio(1, 0, 5), "min_size_to_sample"),
        (lambda: SampleToInsertRatio(1, 1, "5"), "error_buffer"),
        (lambda: SampleToInsertRatio(1, 1, float("nan")), "error_buffer"),
        (lambda: SampleToInsertRatio(1, 1, (1, 2, 3)), "error_buffer"),
        (lambda: MinSize(0), "min_size_to_sample"),
        (lambda: Queue(1.5), "size"),
        (lambda: insert(Queue(1), 0), "n="),
        (lambda: insert(Queue(1), timeout_s=-1), "timeout_s"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], object], name: str):
    """Where they enter."""
    with pytest.raises(ConfigError, match=name):
        make()


def test_a_range_below_the_minimum_is_warned_of(caplog: pytest.LogCaptureFixture):
    """Another thread may sample meanwhile, so it is allowed."""
    SampleToInsertRatio(1, 1_000, (0, 100))

    assert "inserts wait as soon as min_size_to_sample rows are there" in caplog.text


def test_more_at_once_than_the_buffer_allows_is_refused():
    """256 samples at once would wait for inserts that wait for them; with the value in the message none waits."""
    limiter = SampleToInsertRatio(4, min_size_to_sample=10, error_buffer=20)
    limiter.inserted(15)

    with pytest.raises(ConfigError, match=r"1 insert at once and 256 samples at once .* use error_buffer=130"):
        sample(limiter, 256)

    assert "at once can block each other" in (limiter.why_blocked(256) or "")
    wider = SampleToInsertRatio(4, min_size_to_sample=10, error_buffer=130)
    for _ in range(500):
        if wider.can_insert():
            insert(wider)
        if wider.can_sample(256):
            sample(wider, 256)
    assert wider.samples > 256


def test_sizes_that_block_each_other_are_refused(sides):
    """Each fits alone; together they can deadlock, and the second that comes learns it."""
    recorder, sampler = sides(Queue(10))
    insert(recorder, 1)
    insert(recorder, 8)

    with pytest.raises(ConfigError, match=r"8 inserts at once and 4 samples at once .* size=11"):
        sample(sampler, 4)


# -- waiting


def test_an_insert_waits_for_a_sample():
    """And goes on as soon as there was one."""
    queue = Queue(1)
    insert(queue)
    inserting = threading.Thread(target=lambda: insert(queue, timeout_s=PATIENCE_S))
    inserting.start()
    time.sleep(0.02)
    assert queue.inserts == 1

    sample(queue)
    inserting.join(PATIENCE_S)

    assert queue.inserts == 2


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_timeout_says_what_was_missing(sides, is_shared: bool):
    """It is caught as a TimeoutError, and as an error of poolish."""
    limiter = SampleToInsertRatio(4, min_size_to_sample=10, error_buffer=20)
    recorder, sampler = sides(limiter) if is_shared else (limiter, limiter)
    insert(recorder, 3)

    with pytest.raises(PacingTimeout, match=r"3 of 10 rows .*timeout_s=0.01 is over") as caught:
        sample(sampler, timeout_s=0.01)

    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, PoolishError)
    assert sampler.samples == 0


def test_a_wait_is_reported_in_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """When it takes long, with its reason."""
    monkeypatch.setattr(pacing, "_SAY_S", 0.0)

    with pytest.raises(PacingTimeout):
        sample(MinSize(5), timeout_s=0.01)

    assert "waiting for inserts: 0 of 5 rows are there" in caplog.text


@pytest.mark.parametrize(
    ("n_inserts", "n_samples", "why"),
    [
        (9, 0, r"waiting for inserts: 9 of 10 rows are there \(min_size_to_sample\)"),
        (15, 0, r"waiting for samples: 0 samples of 15 inserts \(ratio 4\); 1 more need 4 samples first"),
        (15, 4, None),
        (10, 19, None),
        (10, 20, r"waiting for inserts: 20 samples of 10 inserts \(ratio 4\); 1 more need 1 insert first"),
    ],
)
def test_why_a_side_is_blocked(n_inserts: int, n_samples: int, why: str | None):
    """How much of what is missing; None where nothing is."""
    limiter = SampleToInsertRatio(4, min_size_to_sample=10, error_buffer=20)
    limiter.inserted(n_inserts)
    limiter.sampled(n_samples)

    found = limiter.why_blocked()

    assert found is None if why is None else re.match(why, found or "")


def test_threads_keep_the_ratio():
    """Several of each side, with sizes that differ: all of them come through, within the bounds at every moment."""
    limiter, n_rounds = SampleToInsertRatio(2, min_size_to_sample=8, error_buffer=40), times(200)
    wrong: list[object] = []

    def recording(size: int) -> None:
        for _ in range(n_rounds):
            insert(limiter, size, timeout_s=PATIENCE_S)

    def sampling(size: int) -> None:
        for _ in range(n_rounds):
            sample(limiter, size, timeout_s=PATIENCE_S)
            if not bounded(limiter, largest=3):
                wrong.append(limiter.state_dict())

    threads = [threading.Thread(target=recording, args=(size,)) for size in (1, 3)]
    threads += [threading.Thread(target=sampling, args=(size,)) for size in (2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert wrong == []
    assert (limiter.inserts, limiter.samples) == (4 * n_rounds, 8 * n_rounds)


# -- processes


def test_counts_survive_a_restart(sides, tmp_path: Path):
    """A side that attaches again under its name continues, and its operation that was interrupted did not happen."""
    recorder, sampler = sides(RATIO)

    def killed() -> None:
        with RATIO.attach(tmp_path / "pacing", recorder="other") as other:
            insert(other, 7)
            with other.insert(5):
                os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == -signal.SIGKILL
    with RATIO.attach(tmp_path / "pacing", recorder="other") as again:
        insert(again, 2)

    assert recorder.inserts == sampler.inserts == 9
    assert sampler._counts.read().insert.pending == 0


def test_what_a_killed_process_had_pending_blocks_nobody(sides, tmp_path: Path):
    """Those that wait notice that its lock is free."""
    recorder, sampler = sides(Queue(4))
    insert(recorder, 2)

    def killed() -> None:
        with Queue(4).attach(tmp_path / "pacing", recorder="other") as other, other.insert(2):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == -signal.SIGKILL
    assert not recorder.can_insert()
    insert(recorder, 2, timeout_s=PATIENCE_S)

    assert (recorder.inserts, recorder.can_insert(), sampler.can_sample(4)) == (4, False, True)


def test_a_kill_anywhere_counts_an_insert_whole_or_not_at_all(tmp_path: Path):
    """Before every system call of attaching, inserting and closing; those that run see it at once, without a repair."""
    with Queue(1_000).attach(tmp_path, sampler="learner") as sampler:

        def scenario() -> None:
            with Queue(1_000).attach(tmp_path, recorder="actor") as recorder:
                insert(recorder, 3)

        def check() -> None:
            counted = sampler.inserts
            sampler._counts.sweep()
            assert sampler._counts.read().insert.pending == 0
            with Queue(1_000).attach(tmp_path, recorder="actor") as recorder:
                assert recorder.state_dict()["inserts"] == counted == sampler.inserts
            assert counted % 3 == 0

        assert some_kill_points(scenario, check) > 15
        assert sampler.inserts > 3


def test_actors_and_learner_are_killed_at_random(tmp_path: Path):
    """The ratio stays within its bounds, what was acknowledged stays counted, and what is not counted was in flight."""
    limiter = SampleToInsertRatio(3, min_size_to_sample=20, error_buffer=60)
    path, rng, largest = tmp_path / "pacing", random.Random(7), 4
    n_kills = dict.fromkeys(("actor-0", "actor-1", "learner"), 0)

    def ledger(name: str) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(line) for line in (tmp_path / name).read_text().split()]
        return []

    def work(name: str) -> None:
        own = random.Random(os.getpid())
        role = {"sampler": name} if name == "learner" else {"recorder": name}
        side = limiter.attach(path, **role)
        log = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        while True:
            n = own.randint(1, largest)
            with (side.sample if name == "learner" else side.insert)(n):
                os.write(log, b"%d\n" % n)

    with limiter.attach(path, sampler="observer") as observer, children() as pids:
        running = {name: fork(lambda name=name: (signal.alarm(120), work(name))) for name in n_kills}
        pids.extend(running.values())
        for _ in range(times(60, push=30)):
            time.sleep(rng.uniform(0.002, 0.04))
            name = rng.choice(sorted(running))
            kill(running[name])
            n_kills[name] += 1
            observer._counts.sweep()
            assert bounded(observer, largest=largest)
            running[name] = fork(lambda name=name: (signal.alarm(120), work(name)))
            pids.append(running[name])
        for name, pid in running.items():
            kill(pid)
            n_kills[name] += 1
        pids.clear()

        for kind, names in {"inserts": ["actor-0", "actor-1"], "samples": ["learner"]}.items():
            done, counted = sum(sum(ledger(name)) for name in names), getattr(observer, kind)
            n_unknown = sum(n_kills[name] for name in names) * largest
            assert done - n_unknown <= counted <= done
            assert counted > 50
        assert bounded(observer, largest=largest)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (None, "no recorder was ever attached"),
        ("runs", "running: actor"),
        ("ends", "recorder 'actor' has ended"),
        ("dies", r"recorder 'actor' died, it counted last \d+ s ago"),
    ],
)
def test_why_blocked_names_the_side_that_is_missing(tmp_path: Path, end: str | None, why: str):
    """Whether it runs, has ended, was killed or never came."""
    sampler = MinSize(1_000).attach(tmp_path, sampler="learner")

    def acting() -> None:
        recorder = MinSize(1_000).attach(tmp_path, recorder="actor")
        insert(recorder, 120)
        if end == "ends":
            recorder.close()
        if end == "runs":
            time.sleep(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    with children(*([] if end is None else [acting])) as pids:
        wait_until(lambda: not pids or sampler.inserts == 120)
        wait_until(lambda: re.search(why, sampler.why_blocked() or ""), sampler.why_blocked() or "")

    assert f"{0 if end is None else 120} of 1,000 rows are there" in (sampler.why_blocked() or "")
    sampler.close()


def test_many_missing_recorders_are_summed_up(tmp_path: Path):
    """The first three are named."""
    for i in range(5):
        MinSize(10).attach(tmp_path, recorder=f"actor-{i}").close()

    with MinSize(10).attach(tmp_path, sampler="learner") as sampler:
        assert "recorder 'actor-2' has ended and 2 more" in (sampler.why_blocked() or "")


def test_a_spawned_process_attaches_the_limiter_that_it_was_sent(tmp_path: Path):
    """A limiter travels as its settings; its copy refuses to count for itself."""
    insert(RATIO.attach(tmp_path, recorder="here"), 4)
    context = multiprocessing.get_context("spawn")

    process = context.Process(target=_spawned, args=(RATIO, tmp_path))
    process.start()
    process.join(PATIENCE_S)

    assert process.exitcode == 0
    assert json.loads((tmp_path / "said").read_text()) == [7, "ConfigError"]


def _spawned(limiter: RateLimiter, path: Path) -> None:
    try:
        insert(limiter)
        refused = "nothing"
    except ConfigError as error:
        refused = type(error).__name__
    with limiter.attach(path, recorder="there") as recorder:
        insert(recorder, 3)
        (path / "said").write_text(json.dumps([recorder.inserts, refused]))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_forked_child_does_not_count_for_its_parent(sides, is_shared: bool):
    """Silently it would count in a copy; it is told to attach."""
    limiter = sides(RATIO)[0] if is_shared else SampleToInsertRatio(4, 10, 20)

    def child() -> None:
        with pytest.raises(ConfigError, match="attach"):
            insert(limiter)

    assert in_child(child) == 0
    insert(limiter)
    assert limiter.inserts == 1


def test_a_name_is_one_process(sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two of one name would overwrite each other's counts."""
    monkeypatch.setattr(shared_counts, "_TAKE_OVER_S", 0.0)
    sides(RATIO)

    with pytest.raises(ConfigError, match=r"a recorder named 'actor' is attached .* give this one another name"):
        RATIO.attach(tmp_path / "pacing", recorder="actor")


def test_all_sides_have_the_same_settings(sides, tmp_path: Path):
    """While one is attached; another run may begin with others."""
    recorder, sampler = sides(RATIO)

    with pytest.raises(ConfigError, match=r"actor, learner pace with other settings \(samples_per_insert=4 there, 2 "):
        SampleToInsertRatio(2, 10, 40).attach(tmp_path / "pacing", recorder="other")

    recorder.close()
    sampler.close()
    with SampleToInsertRatio(2, 10, 40).attach(tmp_path / "pacing", recorder="other") as other:
        assert other.inserts == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "give the name of one of the two"),
        ({"recorder": "a", "sampler": "b"}, "give the name of one of the two"),
        ({"recorder": "../a"}, "recorder"),
        ({"recorder": "a", "count": -1}, "count"),
    ],
)
def test_attaching_needs_a_role_and_a_name(tmp_path: Path, options: dict[str, Any], what: str):
    """Anything else is refused before a file is made."""
    with pytest.raises(ValueError, match=what):
        RATIO.attach(tmp_path / "pacing", **options)

    assert not (tmp_path / "pacing").exists()


def test_a_side_does_one_thing(sides):
    """A recorder does not sample; who does both attaches twice."""
    recorder, sampler = sides(RATIO)

    with pytest.raises(ConfigError, match="attached as a recorder, a sampler is needed"):
        sample(recorder)
    with pytest.raises(ConfigError, match="attached as a sampler, a recorder is needed"):
        insert(sampler)


def test_a_count_can_be_taken_from_the_data(sides, tmp_path: Path):
    """A stream knows better than the count how many rows survived a kill."""
    recorder, sampler = sides(RATIO)
    insert(recorder, 12)
    recorder.close()

    with RATIO.attach(tmp_path / "pacing", recorder="actor", count=11) as again:
        assert (again.inserts, sampler.inserts) == (11, 11)


def test_a_damaged_count_is_named(sides, tmp_path: Path):
    """It is not taken for nothing; ``count=`` replaces it."""
    recorder, sampler = sides(RATIO)
    insert(recorder, 12)
    recorder.close()
    file = tmp_path / "pacing" / "recorders" / "actor"
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    with pytest.raises(CorruptDataError, match=r"recorders/actor: damaged, .* count="):
        RATIO.attach(tmp_path / "pacing", recorder="actor")

    with RATIO.attach(tmp_path / "pacing", recorder="actor", count=12):
        assert sampler.inserts == 12


def test_damaged_totals_are_added_up_again(sides, tmp_path: Path):
    """They are only the sum of what the sides have."""
    recorder, sampler = sides(RATIO)
    insert(recorder, 12)
    sample(sampler, 2)
    (tmp_path / "pacing" / "totals").write_bytes(b"?" * 72)

    assert (sampler.inserts, recorder.samples) == (12, 2)


def test_a_directory_that_is_removed_is_noticed(sides, tmp_path: Path):
    """Also where another process has made it again, in which these counts are missing."""
    recorder, sampler = sides(RATIO)
    shutil.rmtree(tmp_path / "pacing")

    with pytest.raises(ConfigError, match="removed meanwhile; attach all sides again"):
        insert(recorder)
    with RATIO.attach(tmp_path / "pacing", sampler="new"), pytest.raises(ConfigError, match="removed meanwhile"):
        sample(sampler)


def test_a_closed_side_says_so(sides):
    """It could not count what it admits."""
    recorder, _ = sides(RATIO)
    recorder.close()
    recorder.close()

    with pytest.raises(ConfigError, match="recorder 'actor' is closed"):
        insert(recorder)


# -- states


def test_a_state_continues_the_counts():
    """With a checkpoint of the buffer."""
    before = SampleToInsertRatio(4, 10, 20)
    before.inserted(14)
    before.sampled(30)
    before.evicted(2)

    after = SampleToInsertRatio(4, 10, 20)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))

    assert (after.inserts, after.samples, after.evictions) == (14, 30, 2)
    with pytest.raises(ResumeError, match="not the state of a rate limiter"):
        after.load_state_dict({"inserts": 3})


def test_a_state_of_one_side(sides):
    """Is what this side has counted; another role's is refused, and nothing changes."""
    recorder, sampler = sides(RATIO)
    insert(recorder, 12)
    state = recorder.state_dict()
    insert(recorder, 1)

    recorder.load_state_dict(state)

    assert sampler.inserts == 12
    with pytest.raises(ResumeError, match="that of a recorder"):
        sampler.load_state_dict(state)
    assert (sampler.inserts, sampler.samples) == (12, 0)
