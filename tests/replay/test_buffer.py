"""The replay buffer holds what was added, draws all of it and nothing else, and continues behind a restart."""

from __future__ import annotations

import copy
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import StreamStore
from poolish.errors import ConfigError, PacingTimeout, ResumeError, SchemaError
from poolish.replay import MinSize, Prioritized, ReplayBuffer, SampleToInsertRatio, TransitionSampler
from poolish.tokens import Hindsight
from tests.effort import times

SPEC = {"obs": ("float32", (2,)), "action": "int64"}
COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


def episode(number: int, length: int, *, truncated: bool = False) -> list[dict[str, Any]]:
    """Transitions whose observations are (episode, step)."""
    return [
        {
            "obs": np.array([number, t], np.float32),
            "action": t % 3,
            "reward": float(t + 1),
            "next_obs": np.array([number, t + 1], np.float32),
            "terminated": t == length - 1 and not truncated,
            "truncated": t == length - 1 and truncated,
        }
        for t in range(length)
    ]


def as_row(transition: dict[str, Any]) -> tuple[Any, ...]:
    """A transition that can be compared."""
    return tuple(np.asarray(transition[name]).tolist().__repr__() for name in COLUMNS)


def expected(steps: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """The same transitions: those behind which their episode was given up count as truncated."""
    after = [*(step["obs"] for step in steps[1:]), None]
    given_up = [
        not (step["terminated"] or step["truncated"] or np.array_equal(step["next_obs"], seen))
        for step, seen in zip(steps, after, strict=True)
    ]
    return {as_row(step | {"truncated": step["truncated"] or cut}) for step, cut in zip(steps, given_up, strict=True)}


def held(buffer: ReplayBuffer) -> set[tuple[Any, ...]]:
    """Everything that can be drawn."""
    batch = buffer.sample(50 * len(buffer), rng=np.random.default_rng(0))
    rows = ({name: batch[name][i] for name in COLUMNS} for i in range(len(batch["id"])))
    return {as_row(row) for row in rows}


def test_all_that_was_added_is_drawn_and_nothing_else():
    """Episodes that terminate, are truncated, or are given up for the next one."""
    steps = [*episode(0, 4), *episode(1, 3, truncated=True), *episode(2, 5)[:2], *episode(3, 1)]
    buffer = ReplayBuffer(100, SPEC)

    for step in steps:
        buffer.add(**step)

    assert held(buffer) == expected(steps)
    assert (len(buffer), buffer.n_added) == (10, 10)


def test_newest_transition_can_be_drawn_with_the_next_one_or_when_its_episode_is_ended():
    """Until then its next observation is not in the stream."""
    first, second, *_ = episode(0, 5)
    buffer = ReplayBuffer(100, SPEC)
    buffer.add(**first)
    with pytest.raises(ConfigError, match="newest step"):
        buffer.sample(1)

    buffer.add(**second)
    assert held(buffer) == {as_row(first)}
    buffer.end_episodes()

    assert held(buffer) == expected([first, second])


STEPS = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.integers(1, 6)), min_size=1, max_size=12)


@settings(max_examples=times(100, push=30))
@given(episodes=STEPS, cuts=st.lists(st.integers(0, 80), max_size=6), shuffled=st.booleans())
def test_extend_is_add_for_each_transition(episodes: Any, cuts: list[int], shuffled: bool):
    """However the transitions are cut into calls, in order or not, whole episodes or parts."""
    steps = [step for i, (n, is_cut, kept) in enumerate(episodes) for step in episode(i, n, truncated=is_cut)[:kept]]
    if shuffled:
        np.random.default_rng(0).shuffle(steps)
    one, many = ReplayBuffer(1_000, SPEC), ReplayBuffer(1_000, SPEC)
    for step in steps:
        one.add(**step)

    edges = sorted({0, len(steps), *(cut for cut in cuts if cut < len(steps))})
    for low, high in itertools.pairwise(edges):
        many.extend(**{name: np.stack([step[name] for step in steps[low:high]]) for name in COLUMNS})

    for buffer in (one, many):
        buffer.end_episodes()
    assert held(one) == held(many) == expected(steps)


def test_several_environments_have_their_own_episodes():
    """Steps of environments that end at different times, as a vector environment gives them."""
    lanes = [[*episode(10 * env, 2 + env), *episode(10 * env + 1, 9)][:7] for env in range(3)]
    buffer = ReplayBuffer(300, SPEC, n_envs=3)

    for t in range(7):
        buffer.add(**{name: np.stack([lane[t][name] for lane in lanes]) for name in COLUMNS})
    buffer.end_episodes()

    assert held(buffer) == set().union(*map(expected, lanes))


def test_observations_of_parts_are_stored_and_drawn_by_part():
    """Dicts and tuples, one environment or several."""
    spec = {"obs.position": ("float32", (2,)), "obs.goal": "int64", "action": "int64"}
    for n_envs in (1, 2):
        buffer = ReplayBuffer(100, spec, n_envs=n_envs)
        lead = () if n_envs == 1 else (2,)
        for t in range(3):
            seen, after = ({"position": np.full((*lead, 2), i), "goal": np.full(lead, i)} for i in (t, t + 1))
            terminated = np.full(lead, t == 2)
            buffer.add(obs=seen, action=np.zeros(lead), reward=np.zeros(lead), next_obs=after, terminated=terminated)
        batch = buffer.sample(20)

        assert batch["obs"]["position"].shape == (20, 2)
        assert (batch["next_obs"]["goal"] == batch["obs"]["goal"] + 1).all()


def test_capacity_keeps_the_newest():
    """And drops the oldest, whole steps at a time."""
    buffer = ReplayBuffer(50, SPEC)
    steps = [step for i in range(40) for step in episode(i, 10)]

    for step in steps:
        buffer.add(**step)

    assert 40 <= len(buffer) <= 50
    assert held(buffer) == {as_row(step) for step in steps[-len(buffer) :]}


def test_n_step_returns_are_made_when_a_batch_is_read():
    """Within the episode; the discount is what the value of next_obs is multiplied with."""
    buffer = ReplayBuffer(100, SPEC, n_step=3, gamma=0.5)
    for step in [*episode(0, 5), *episode(1, 4, truncated=True)]:
        buffer.add(**step)

    batch = buffer.sample(500)
    columns = batch["reward"], batch["discount"], batch["next_obs"][:, 1]
    found = dict(zip(batch["id"].tolist(), zip(*columns, strict=True), strict=True))

    assert found[0] == (1 + 2 / 2 + 3 / 4, 1 / 8, 3)
    assert found[2] == (3 + 4 / 2 + 5 / 4, 0, 5)
    assert found[7] == (3 + 4 / 2, 1 / 4, 4)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_priorities_decide_how_often_a_transition_is_drawn(n_envs: int):
    """Over all environments as if they were one; weighted by how rare each is, every transition counts the same."""
    buffer = ReplayBuffer(1_000, SPEC, sampler=Prioritized(alpha=1.0, beta=1.0), n_envs=n_envs)
    lanes = [episode(env, 6) for env in range(n_envs)]
    for t in range(6):
        chosen = [lane[t] for lane in lanes]
        buffer.add(**(chosen[0] if n_envs == 1 else {name: np.stack([c[name] for c in chosen]) for name in COLUMNS}))
    ids = np.unique(buffer.sample(1_000)["id"])
    values = np.arange(1.0, len(ids) + 1)

    missing = buffer.update_priorities(ids, values)
    batch = buffer.sample(60_000, rng=np.random.default_rng(0))

    expected = values / values.sum()
    drawn = np.searchsorted(ids, batch["id"])
    counts = np.bincount(drawn)
    assert len(missing) == 0
    assert len(ids) == 6 * n_envs
    assert ((counts - 60_000 * expected) ** 2 / (60_000 * expected)).sum() < 2 * len(ids)
    assert np.allclose(batch["probability"], expected[drawn])
    assert np.allclose(batch["weight"], expected.min() / expected[drawn])


def test_ids_that_left_are_reported():
    """A learner that updates late: the transitions it learnt from may be gone."""
    buffer = ReplayBuffer(20, SPEC, sampler=Prioritized())
    for step in episode(0, 15):
        buffer.add(**step)
    ids = np.array([0, 12])
    for i in range(3):
        for step in episode(i, 5):
            buffer.add(**step)

    assert buffer.update_priorities(ids, [1.0, 2.0]).tolist() == [0]


@pytest.mark.parametrize("sampler", ["uniform", Prioritized()])
def test_buffer_on_disk_continues_with_its_state(tmp_path: Path, sampler: Any):
    """Closed and opened again, with a state that went through JSON, it draws what it would have drawn."""
    steps = [step for i in range(6) for step in episode(i, 5)]
    make = lambda name: ReplayBuffer(1_000, SPEC, sampler=sampler, path=tmp_path / name, n_step=2)  # noqa: E731
    going, stopped = make("going"), make("stopped")
    for buffer in (going, stopped):
        for step in steps:
            buffer.add(**step)
        batch = buffer.sample(16)
        if sampler != "uniform":
            buffer.update_priorities(batch["id"], batch["reward"])
    state = json.loads(json.dumps(stopped.state_dict()))
    stopped.close()

    resumed = make("stopped")
    resumed.load_state_dict(state)

    assert resumed.n_sampled == 16
    assert len(resumed) == len(going) == 30
    for _ in range(5):
        one, other = going.sample(16), resumed.sample(16)
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_reopened_buffer_does_not_join_episodes(tmp_path: Path):
    """The transition that was pending when the process was killed is not given the next process's observation."""
    with ReplayBuffer(100, SPEC, path=tmp_path / "replay") as buffer:
        for step in episode(0, 5)[:3]:
            buffer.add(**step)
    buffer = ReplayBuffer(100, SPEC, path=tmp_path / "replay")
    for step in episode(1, 2):
        buffer.add(**step)

    assert held(buffer) == {as_row(step) for step in [*episode(0, 5)[:2], *episode(1, 2)]}


def test_state_of_other_streams_is_refused(tmp_path: Path):
    """A state fits the streams it was taken of."""
    one, other = ReplayBuffer(10, SPEC, path=tmp_path / "one"), ReplayBuffer(10, SPEC, path=tmp_path / "other")

    with pytest.raises(ResumeError, match="not among"):
        other.load_state_dict(one.state_dict())
    with pytest.raises(ResumeError, match="version"):
        one.load_state_dict({})


def test_tensors_are_made_on_request():
    """With the dtypes of the spec, on a device."""
    torch = pytest.importorskip("torch")
    buffer = ReplayBuffer(10, SPEC, sampler=Prioritized())
    for step in episode(0, 3):
        buffer.add(**step)

    batch = buffer.sample(4, device="cpu")

    assert batch["obs"].dtype == torch.float32
    assert batch["obs"].shape == (4, 2)
    assert buffer.update_priorities(batch["id"], torch.ones(4)).tolist() == []


def test_streams_of_other_processes_are_drawn_from_as_they_grow(tmp_path: Path):
    """A sampler without a buffer: readers of streams that others write, each with its share."""
    writers = [ReplayBuffer(100, SPEC, path=tmp_path / f"actor-{i}") for i in range(2)]
    readers = []
    for i, writer in enumerate(writers):
        for step in episode(i, 10):
            writer.add(**step)
        readers.append(StreamStore.open(tmp_path / f"actor-{i}" / "env-00000"))
    sampler = TransitionSampler(readers[:1])
    assert len(sampler) == 10

    assert sampler.add_stream(readers[1]) == 1
    for step in episode(7, 5):
        writers[0].add(**step)
    batch = sampler.sample(2_000)

    assert len(sampler) == 25
    assert set(batch["obs"][:, 0].tolist()) == {0.0, 1.0, 7.0}
    assert ((batch["id"] >> 48) == (batch["obs"][:, 0] == 1)).all()
    with pytest.raises(ConfigError, match="already"):
        sampler.add_stream(readers[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec": {"obs": "float32"}}, "'obs' and 'action'"),
        ({"spec": {"obs": None, "action": "int64"}}, "needs a shape"),
        ({"capacity": 0}, "capacity=0"),
        ({"n_envs": 11}, "fewer steps"),
        ({"sampler": "prioritised"}, "Prioritized"),
    ],
)
def test_arguments_are_checked_where_they_enter(options: dict[str, Any], message: str):
    """Before a stream is made."""
    with pytest.raises((ConfigError, SchemaError), match=message):
        ReplayBuffer(**{"capacity": 10, "spec": SPEC, **options})


def test_misuse_is_refused(tmp_path: Path):
    """With the next action in the message."""
    buffer = ReplayBuffer(10, SPEC)
    with pytest.raises(ConfigError, match="no priorities"):
        buffer.update_priorities([0], [1.0])
    with pytest.raises(ConfigError, match="importance weights"):
        buffer.sample(1, beta=0.5)
    with pytest.raises(SchemaError, match="different lengths"):
        buffer.extend(obs=np.zeros((2, 2)), action=[0], reward=[0], next_obs=np.zeros((2, 2)), terminated=[0, 0])
    with pytest.raises(TypeError, match="path="):
        copy.copy(buffer)
    ReplayBuffer(10, SPEC, path=tmp_path / "replay", n_envs=2).close()
    with pytest.raises(ConfigError, match="n_envs=2"):
        ReplayBuffer(10, SPEC, path=tmp_path / "replay", n_envs=3)


def test_limiter_paces_threads_that_add_and_sample():
    """A learner waits for the actor and the actor for it; the counts stay within the limiter's bounds."""
    limiter = SampleToInsertRatio(4, min_size_to_sample=20, error_buffer=100)
    buffer = ReplayBuffer(1_000, SPEC, limiter=limiter, timeout_s=30)
    differences = []

    def act() -> None:
        for i in range(40):
            for step in episode(i, 10):
                buffer.add(**step)

    actor = threading.Thread(target=act)
    actor.start()
    for _ in range(47):
        assert buffer.sample(32)["obs"].shape == (32, 2)
        differences.append(limiter.inserts * 4 - limiter.samples)
    actor.join()

    assert (limiter.inserts, limiter.samples) == (400, 47 * 32)
    assert all(-20 <= difference <= 180 for difference in differences)


def test_sample_that_nothing_will_admit_says_what_is_missing():
    """After its time-out; in a program of one thread nothing else could come."""
    buffer = ReplayBuffer(100, SPEC, limiter=MinSize(50), timeout_s=0.01)
    for step in episode(0, 5):
        buffer.add(**step)

    with pytest.raises(PacingTimeout, match="5 of 50 rows"):
        buffer.sample(1)
    with pytest.raises(ConfigError, match="wait for ever"):
        ReplayBuffer(10, SPEC, limiter=MinSize(50))


def test_limiter_counts_what_an_earlier_process_added(tmp_path: Path):
    """With a state exactly; without one, enough to sample."""
    make = lambda: ReplayBuffer(100, SPEC, path=tmp_path / "replay", limiter=MinSize(5), timeout_s=0.01)  # noqa: E731
    with make() as buffer:
        for step in episode(0, 8):
            buffer.add(**step)
        buffer.sample(3)
        state = buffer.state_dict()

    again = make()
    again.sample(3)
    assert again._limiter.inserts == 5
    again.load_state_dict(state)

    assert (again._limiter.inserts, again._limiter.samples) == (8, 3)


def test_hindsight_relabels_goals_when_a_batch_is_read():
    """Goals are what was reached later in the same episode; the rewards are those of the new goals."""
    spec = {
        "obs": {"achieved_goal": ("float32", (1,)), "desired_goal": ("float32", (1,)), "seen": "float32"},
        "action": "int64",
    }
    her = Hindsight(lambda reached, goal: (reached == goal).all(-1).astype(np.float32) - 1, ratio=0.5)
    buffer = ReplayBuffer(1_000, spec, her=her)
    for number in range(5):
        for t in range(6):
            seen, after = (
                {"achieved_goal": [10.0 * number + i], "desired_goal": [-1.0], "seen": float(i)} for i in (t, t + 1)
            )
            buffer.add(obs=seen, action=0, reward=-1.0, next_obs=after, terminated=False, truncated=t == 5)

    batch = buffer.sample(2_000, rng=np.random.default_rng(0))

    goal, reached = batch["obs"]["desired_goal"][:, 0], batch["next_obs"]["achieved_goal"][:, 0]
    is_new = goal >= 0
    assert 0.45 < is_new.mean() < 0.55
    assert (goal[is_new] // 10 == reached[is_new] // 10).all()
    assert (goal[is_new] >= reached[is_new]).all()
    assert np.array_equal(batch["reward"], np.where(goal == reached, 0.0, -1.0).astype(np.float32))
