"""Reads that train: sequences, transitions and transforms are what plain loops over the recorded steps find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import StreamStore
from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.tokens import GAE, FrameStack, Hindsight, RewardToGo
from tests.effort import times
from tests.tokens import experience_model as plain
from tests.tokens.experience_model import Recorded, episodes, plain_steps

ENDS = ("terminated", "truncated")
few = settings(max_examples=times(500, push=15))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cartpole(n_episodes: int = 3, length: int = 4, **more: Any) -> StreamStore:
    """Episodes of one length, each ended by a final observation; observation i is (i, i)."""
    fields = {"obs": ("float32", (2,)), "action": "int64", "reward": "float32", "terminated": "bool"}
    store = StreamStore(fields={**fields, "final_obs": ("float32", (2,))}, **more)
    for i in range(n_episodes * length):
        step = {"obs": [i, i], "action": i % 2, "reward": 1.0, "terminated": i % length == length - 1}
        store.append(i, step | ({"final_obs": [i + 0.5, 0]} if step["terminated"] else {}))
    return store


# Steps and sequences ------------------------------------------------------------------------------------------------


@few
@given(episodes, st.lists(st.integers(0, 10**6), max_size=9))
def test_fields_of_steps_are_what_was_recorded(drawn, chosen):
    """In any order and shape; lists are padded, and what a step has not got is zeros that say so."""
    steps = plain_steps(drawn)
    ids = np.array([number % len(steps) for number in chosen], np.int64)
    with Recorded(steps) as store:
        batch = store.fields_at(ids, optional=plain.FINAL)

        for k, i in enumerate(ids.tolist()):
            assert batch["obs"]["x"][k].tolist() == steps[i]["obs"]["x"].tolist()
            assert batch["action"][k] == steps[i]["action"]
            note = batch["note"][k, : batch["lengths"]["note"][k]]
            assert note.tolist() == steps[i]["note"]
            assert not batch["note"][k, len(note) :].any()
            assert batch["present"]["final_obs"]["x"][k] == ("final_obs" in steps[i])
            assert batch["final_value"][k] == steps[i].get("final_value", 0)
        assert store.fields_at(ids.reshape(1, -1), ["obs"])["obs"]["x"].shape == (1, len(ids), 2)


def starts_of(steps: plain.Plain, n_steps: int, stride: int, is_padded: bool) -> list[int]:
    """Where sequences begin, by a loop over the steps of each episode."""
    found = []
    for begin, end in sorted({(step["begin"], step["end"]) for step in steps}):
        first = begin
        while first + n_steps <= end or (is_padded and (first == begin or first - stride + n_steps < end)):
            found.append(first)
            first += stride
    return found


@few
@given(episodes, st.integers(1, 4), st.booleans(), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**32))
def test_sequences_lie_inside_episodes(drawn, n_steps, is_padded, overlap, burn_in, seed):
    """Of those that a loop finds each is drawn; each place holds the step it should, and the mask says which do."""
    steps, overlap = plain_steps(drawn), min(overlap, n_steps - 1)
    expected = starts_of(steps, n_steps, n_steps - overlap, is_padded)
    short = "pad" if is_padded else "drop"
    with Recorded(steps) as store:
        shape: dict[str, Any] = {"within": ENDS, "short": short, "overlap": overlap}
        assert store.sequence_coverage(n_steps, **shape).windows == len(expected)
        if not expected:
            with pytest.raises(ConfigError, match="no sequence"):
                store.sample(1, n_steps=n_steps, **shape)
            return
        fields = ["obs", "action", "note"]
        batch = store.sample(150, n_steps=n_steps, burn_in=burn_in, rng=rng(seed), fields=fields, **shape)

        assert set(batch["id"][:, burn_in].tolist()) <= set(expected)
        if len(expected) <= 5:
            assert set(batch["id"][:, burn_in].tolist()) == set(expected)
        for ids, mask, x, action in zip(batch["id"], batch["mask"], batch["obs"]["x"], batch["action"], strict=True):
            start = int(ids[burn_in])
            for t, (number, is_real) in enumerate(zip(ids.tolist(), mask.tolist(), strict=True)):
                i = start + t - burn_in
                assert is_real == (steps[start]["begin"] <= i < steps[start]["end"])
                assert number == (i if is_real else -1)
                assert x[t].tolist() == (steps[i]["obs"]["x"].tolist() if is_real else [0, 0])
                assert action[t] == (steps[i]["action"] if is_real else 0)


@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**32))
def test_sequences_of_regular_episodes_are_what_the_index_says(length, n_steps, seed):
    """Where steps are alike their places are computed; read one by one, they are the same."""
    store = cartpole(5, length)
    if n_steps > length:
        return
    fields = ["reward", "obs", "action"]
    batch = store.sample(60, n_steps=n_steps, within="terminated", fields=fields, optional=["final_obs"], rng=rng(seed))

    assert same(
        batch, store.fields_at(batch["id"], fields, optional=["final_obs"]) | {k: batch[k] for k in ("id", "mask")}
    )


def test_transitions_follow_what_is_asked_for_and_what_is_appended():
    """What one read found out is not taken for the next: another discount, a flag for a number, a step more."""
    fields = {"obs": "float32", "action": "int64", "reward": "float32", "terminated": "bool", "final_obs": "float32"}
    store = StreamStore(fields=fields)
    for step in range(2):
        store.append(step, {"obs": step, "action": 0, "reward": 1.0, "terminated": False})

    assert store.transitions_at([0], gamma=0.5)["discount"].tolist() == [0.5]
    assert store.transitions_at([0], gamma=0.25)["discount"].tolist() == [0.25]
    with pytest.raises(ConfigError, match="n_step"):
        store.transitions_at([0], gamma=0.25, n_step=True)
    with pytest.raises(IndexError, match="step 1 has no successor"):
        store.transitions_at([1], gamma=0.25)
    store.append(2, {"obs": 2, "action": 0, "reward": 1.0, "terminated": True, "final_obs": 3.0})
    assert store.transitions_at([1, 2], gamma=0.25)["next_obs"].tolist() == [2.0, 3.0]


def test_sequences_leave_out_final_observations_unless_named():
    """Last steps alone have them, so that asking for all fields would otherwise find no whole sequence."""
    store = StreamStore(fields={"obs": "float32", "done": "bool", "final_obs": "float32"})
    for step in range(6):
        ends = step % 3 == 2
        store.append(step, {"obs": step, "done": ends} | ({"final_obs": 9.0} if ends else {}))

    drawn = store.sample(8, n_steps=3, within="done")
    named = store.sequences_at([0], 3, within="done", optional=["final_obs"])

    assert set(drawn) == {"obs", "done", "mask", "id"}
    assert set(store.sequences_at([0], 3)) == set(drawn)
    assert named["final_obs"].tolist() == [[0.0, 0.0, 9.0]]
    with pytest.raises(SchemaError, match="no field 'final_obs'"):
        store.sample(8, n_steps=3, fields=["final_obs"])


def test_every_sequence_has_the_same_chance():
    """Whatever the lengths of the episodes: within 5 standard deviations."""
    steps = plain_steps([(1, "t"), (6, "u"), (3, "x"), (5, "t")])
    starts = starts_of(steps, 3, 1, False)
    with Recorded(steps) as store:
        batch = store.sample(20_000, n_steps=3, within=ENDS, rng=rng(), fields=["action"])

    found, counts = np.unique(batch["id"][:, 0], return_counts=True)
    assert found.tolist() == starts
    expected = 20_000 / len(starts)
    assert (abs(counts - expected) < 5 * expected**0.5).all()


def test_a_stream_that_grows_and_is_trimmed_has_the_sequences_that_are_left():
    """Also of the episode that was cut in the middle, and of the one that is still open."""
    steps = plain_steps([(4, "t")] * 60)
    store = StreamStore(fields=plain.FIELDS, max_tokens=220)
    for i, step in enumerate(steps):
        store.append(i, {name: value for name, value in step.items() if name not in ("breaks", "begin", "end")})
        first, end = store.step_span()
        if i % 7 == 0 and end - first > 8:
            expected = [j for j in range(first, end - 2) if j // 4 == (j + 2) // 4]
            batch = store.sample(200, n_steps=3, within=ENDS, rng=rng(i), fields=["action"])
            assert set(batch["id"][:, 0].tolist()) <= set(expected)
            assert store.sequence_coverage(3, within=ENDS).windows == len(expected)
    assert store.step_span()[0] > 100


def test_sequences_begin_where_they_are_asked_to():
    """With what their episodes hold; the rest is padded."""
    store = cartpole()
    batch = store.sequences_at([2, 4], 3, within="terminated", fields=["obs"], burn_in=1)

    assert batch["id"].tolist() == [[1, 2, 3, -1], [-1, 4, 5, 6]]
    assert batch["obs"][:, :, 0].tolist() == [[1, 2, 3, 0], [0, 4, 5, 6]]


def test_the_newest_step_counts_once_it_is_whole():
    """A recorder that writes a step in two appends is not read in between."""
    store = StreamStore(fields={"obs": "float32", "action": "int64"})
    store.append(0, {"obs": 0.5, "action": 1})
    store.append(1, {"obs": 1.5})

    assert store.sequence_coverage(1).windows == 2
    assert store.sample(5, n_steps=1, rng=rng())["id"].tolist() == [[0]] * 5
    store.append(1, {"action": 0})
    assert store.sequences_at([0], 2)["action"].tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("read", "error", "says"),
    [
        (lambda s: s.sample(2), ConfigError, "width=, in tokens, or n_steps="),
        (lambda s: s.sample(2, 3, n_steps=2), ConfigError, "one of them"),
        (lambda s: s.sample(2, n_steps=0), ConfigError, "n_steps=0"),
        (lambda s: s.sample(2, n_steps=2, overlap=2), ConfigError, "overlap=2"),
        (lambda s: s.sample(2, n_steps=2, short="cut"), ConfigError, "short='cut'"),
        (lambda s: s.sample(2, n_steps=2, fields="obs"), SchemaError, "list of names"),
        (lambda s: s.sample(2, n_steps=2, fields=["no"]), UnknownColumn, "'no'"),
        (lambda s: s.sample(2, n_steps=2, within="no"), UnknownColumn, "'no'"),
        (lambda s: s.sample(200, n_steps=1, fields=["final_obs"]), SchemaError, r"no field 'final_obs'.*optional="),
        (lambda s: s.sample(2, n_steps=9, within="terminated"), ConfigError, "no sequence of 9"),
        (lambda s: s.sample(2, n_steps=2, rng=3), ConfigError, "rng=3"),
        (lambda s: s.sample(2, n_steps=2, fields=["obs"], output="list"), ConfigError, "output='list'"),
        (lambda s: s.sample(2, n_steps=2, fields=["obs"], output="numpy", device="cpu"), ConfigError, "device='cpu'"),
        (lambda s: s.fields_at([12]), IndexError, "12 of this stream, which holds 0 to 11"),
        (lambda s: s.fields_at([-1]), IndexError, "-1 of this stream"),
        (lambda s: s.fields_at([0.5]), IndexError, "whole numbers"),
        (lambda s: s.transitions(3, gamma=1.5), ConfigError, "gamma=1.5"),
        (lambda s: s.transitions(3, n_step=0), ConfigError, "n_step=0"),
        (lambda s: s.transitions(3, colour="obs"), TypeError, "'colour'"),
        (lambda s: s.transitions(3, obs="no"), UnknownColumn, "obs='no'"),
        (lambda s: s.transitions(3, hindsight=3), ConfigError, "Hindsight"),
        (lambda s: s.transitions(3, hindsight=Hindsight(lambda a, g: a)), SchemaError, "'desired_goal'"),
        (lambda s: s.transitions_at([99]), IndexError, "99"),
        (lambda s: s.transitions_at([[0]]), ConfigError, r"\(1, 1\)"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(read, error, says):
    """By the argument, its value and what would be right."""
    with pytest.raises(error, match=f"(?s){says}"):
        read(cartpole())


def test_fields_with_names_that_batches_use_are_read_one_by_one():
    """A field called mask is neither overwritten nor lost."""
    store = StreamStore(fields={"mask": "int64"})
    store.append(0, {"mask": 7})

    with pytest.raises(SchemaError, match="fields_at"):
        store.sample(1, n_steps=1)
    assert store.fields_at([0])["mask"].tolist() == [7]


def test_reads_are_tensors_where_asked_for():
    """Of the same dtypes and values, on a device."""
    store = cartpole()
    arrays, tensors = store.transitions(5, rng=rng()), store.transitions(5, rng=rng(), device="cpu")

    for name, values in arrays.items():
        assert isinstance(tensors[name], torch.Tensor)
        assert (tensors[name].numpy() == values).all()
    assert tensors["obs"].dtype == torch.float32


# In a process of its own: JAX starts threads, after which the tests that fork would warn.
IN_JAX = """
import jax, numpy as np
from poolish import StreamStore
from poolish.errors import SchemaError

store = StreamStore(fields={"obs": {"x": ("float32", (2,))}, "action": "int64", "big": "int64"})
for i in range(4):
    store.append(i, {"obs": {"x": [i, -i]}, "action": i, "big": 2**40})
batch = store.sample(3, n_steps=2, fields=["obs", "action"], rng=np.random.default_rng(0), output="jax")
same = store.sample(3, n_steps=2, fields=["obs", "action"], rng=np.random.default_rng(0))
assert isinstance(batch["obs"]["x"], jax.Array) and (np.asarray(batch["obs"]["x"]) == same["obs"]["x"]).all()
assert (np.asarray(batch["action"]) == same["action"]).all()
try:
    store.fields_at([0], output="jax")
except SchemaError as error:
    print(error)
"""


def test_reads_are_jax_arrays_where_asked_for():
    """JAX's silent narrowing is refused where it would change a value."""
    done = subprocess.run([sys.executable, "-c", IN_JAX], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "JAX would cut int64 1099511627776 to int32" in done.stdout


# Transitions --------------------------------------------------------------------------------------------------------


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(same(found[name], expected[name]) for name in expected)
    return bool(np.allclose(found, expected))


def row(batch: Any, k: int) -> Any:
    return {name: row(value, k) for name, value in batch.items()} if isinstance(batch, dict) else batch[k]


@few
@given(episodes, st.integers(1, 4), st.sampled_from([1.0, 0.9]), st.integers(0, 2**32))
def test_transitions_are_those_of_a_loop(drawn, n_step, gamma, seed):
    """Every step with a known successor, the last of each episode too, and no other; summed over n steps."""
    steps = plain_steps(drawn)
    valid = [i for i in range(len(steps)) if plain.has_successor(steps, i)]
    with Recorded(steps) as store:
        ids = store.transition_ids()
        assert ids.select(np.arange(ids.n)).tolist() == valid
        assert ids.are_valid(np.arange(-2, len(steps) + 2)).tolist() == [i in valid for i in range(-2, len(steps) + 2)]
        assert ids.lost + ids.pending == len(steps) - len(valid)
        assert ids.pending == (not plain.has_successor(steps, len(steps) - 1))
        for lost in set(range(len(steps))) - set(valid):
            with pytest.raises(IndexError, match="no successor"):
                store.transitions_at([lost])
        if not valid:
            with pytest.raises(ConfigError, match="no transition yet"):
                store.transitions(2)
            return
        batch = store.transitions(80, rng=rng(seed), n_step=n_step, gamma=gamma)

        assert set(batch["id"].tolist()) <= set(valid)
        for k, i in enumerate(batch["id"].tolist()):
            expected = plain.plain_transition(steps, i, n_step, gamma)
            del expected["last"]
            assert same({name: row(batch[name], k) for name in expected}, expected)


def test_a_dqn_sees_terminal_transitions():
    """As often as they were recorded: one in four here, where two-step windows have none."""
    batch = cartpole(50).transitions(8_000, rng=rng(), gamma=0.5)

    ended = batch["id"] % 4 == 3
    assert abs(ended.mean() - 0.25) < 0.03
    assert (batch["terminated"] == ended).all()
    assert (batch["discount"] == np.where(ended, 0, 0.5)).all()
    assert (batch["next_obs"][:, 0] == batch["id"] + np.where(ended, 0.5, 1)).all()
    assert batch["next_obs"].dtype == batch["obs"].dtype == np.float32


def test_roles_are_named_or_found():
    """Next observations recorded with each step need no successor; a final observation may be repeated by choice."""
    fields = {"state": "float32", "act": "int64", "pay": "float32", "done": "bool", "after": "float32"}
    store = StreamStore(fields=fields)
    for i in range(4):
        store.append(i, {"state": i, "act": i, "pay": i, "done": i == 1, "after": i + 0.25})
    names = {"action": "act", "reward": "pay"}

    batch = store.transitions_at([0, 1, 3], **names, next_obs="after")
    assert batch["next_obs"].tolist() == [0.25, 1.25, 3.25]
    with pytest.raises(SchemaError, match=r"'final_obs'.*repeat_final=True"):
        store.transitions(1, **names)
    assert store.transitions_at([0, 1, 2], **names, repeat_final=True)["next_obs"].tolist() == [1, 1, 3]
    with pytest.raises(SchemaError, match="reward="):
        store.transitions(1, action="act")


@few
@given(episodes, st.integers(2, 4), st.integers(1, 3), st.integers(0, 2**32))
def test_stacks_are_made_of_single_frames(drawn, stack, n_step, seed):
    """The newest frames of the episode; the first repeats before it, and the final one is the newest behind its end."""
    steps = plain_steps(drawn)
    with Recorded(steps) as store:
        if not store.transition_ids().n:
            return
        batch = store.transitions(40, rng=rng(seed), stack=stack, n_step=n_step)

        for k, i in enumerate(batch["id"].tolist()):
            begin, last = steps[i]["begin"], plain.plain_transition(steps, i, n_step, 0.99)["last"]
            frames = [steps[max(begin, j)]["obs"]["x"] for j in range(i - stack + 1, i + 1)]
            older = [steps[max(begin, j)]["obs"]["x"] for j in range(last - stack + 2, last + 1)]
            assert same(batch["obs"]["x"][k], frames)
            assert same(batch["next_obs"]["x"][k], [*older, plain.seen_behind(steps, last)["x"]])


def test_stacks_never_hold_frames_that_were_trimmed():
    """Steps whose earlier frames have left the stream are no transitions with a stack, and are counted."""
    store = cartpole(40, 10, max_tokens=300)
    first, end = store.step_span()
    ids = store.transition_ids(stack=4)

    assert (first > 0, ids.cut, ids.n) == (True, 3, end - first - 3)
    assert ids.select([0]).tolist() == [first + 3]


@few
@given(episodes, st.sampled_from(["future", "final", "episode"]), st.integers(1, 3), st.integers(0, 2**32))
def test_goals_are_relabelled_as_by_a_loop(drawn, strategy, n_step, seed):
    """With what was reached behind this step or later, behind the last, or behind any; rewards fit the goal."""
    steps = plain_steps(drawn)

    with Recorded(steps) as store:
        if not store.transition_ids().n:
            return
        with pytest.raises(SchemaError, match="desired_goal"):
            store.transitions(1, hindsight=Hindsight(lambda a, g: a))
        hindsight = Hindsight(lambda a, g: -abs(a - g), strategy, 0.7, goal="goal", achieved="obs.goal")
        batch = store.transitions(60, rng=rng(seed), n_step=n_step, gamma=0.5, hindsight=hindsight)

        for k, i in enumerate(batch["id"].tolist()):
            if not batch["relabelled"][k]:
                assert batch["obs"]["goal"][k] == steps[i]["obs"]["goal"]
                continue
            usable = [j for j in range(steps[i]["begin"], steps[i]["end"]) if plain.has_successor(steps, j)]
            chosen = {"future": [j for j in usable if j >= i], "final": usable[-1:], "episode": usable}[strategy]
            goal = batch["obs"]["goal"][k]
            assert goal in {plain.seen_behind(steps, j)["goal"] for j in chosen}
            assert batch["next_obs"]["goal"][k] == goal
            last = plain.plain_transition(steps, i, n_step, 0.5)["last"]
            rewards = [-abs(plain.seen_behind(steps, j)["goal"] - goal) for j in range(i, last + 1)]
            assert np.isclose(batch["reward"][k], sum(0.5**j * reward for j, reward in enumerate(rewards)))
            assert batch["terminated"][k] == steps[last]["terminated"]
        assert store.fields_at([0], ["obs"])["obs"]["goal"][0] == steps[0]["obs"]["goal"]  # nothing stored has changed


def test_a_reward_function_answers_for_the_whole_batch():
    """One number for each goal, or an error that says how many there should be."""
    store = StreamStore(
        fields={
            "obs": {"desired_goal": ("f4", (2,)), "achieved_goal": ("f4", (2,))},
            "action": 0,
            "reward": 0.0,
            "done": True,
        }
    )
    for i in range(6):
        goals = {"desired_goal": [9, 9], "achieved_goal": [i, 0]}
        store.append(i, {"obs": goals, "action": 0, "reward": 0.0, "done": False})
    reached = Hindsight(lambda achieved, goal: (achieved == goal).all(-1) * 1.0, ratio=1.0)

    batch = store.transitions(200, rng=rng(), hindsight=reached, repeat_final=True)
    assert batch["relabelled"].all()
    assert (batch["reward"] == (batch["next_obs"]["achieved_goal"] == batch["obs"]["desired_goal"]).all(-1)).all()
    with pytest.raises(SchemaError, match=r"5 goals.*shape \(5, 2\).*one number each"):
        store.transitions(5, rng=rng(), hindsight=Hindsight(lambda a, g: a - g, ratio=1.0), repeat_final=True)


@pytest.mark.parametrize("bad", [{"strategy": "later"}, {"ratio": 1.5}, {"ratio": True}])
def test_hindsight_is_checked_where_it_is_made(bad):
    """Not when the first batch is read."""
    with pytest.raises(ConfigError, match=str(*bad)):
        Hindsight(lambda a, g: a, **bad)


# Transforms of sequences ----------------------------------------------------------------------------------------------


@few
@given(episodes, st.integers(1, 4), st.integers(0, 2), st.sampled_from([1.0, 0.8]), st.integers(0, 2**32))
def test_transforms_of_sequences_are_those_of_a_loop(drawn, n_steps, burn_in, gamma, seed):
    """They see the episode behind the sequence, compose, and mask what cannot be known."""
    steps = plain_steps(drawn)
    transforms = [FrameStack("obs.x", 3), RewardToGo(gamma), GAE(gamma, 0.9, final_value="final_value")]
    shape: dict[str, Any] = {"within": ENDS, "short": "pad", "burn_in": burn_in, "fields": ["obs", "reward"]}
    with Recorded(steps) as store:
        batch = store.sample(30, n_steps=n_steps, rng=rng(seed), transforms=transforms, **shape)

        for k, ids in enumerate(batch["id"].tolist()):
            for t, i in enumerate(ids):
                advantage = plain.plain_advantage(steps, i, gamma, 0.9) if i >= 0 else None
                assert batch["mask"][k, t] == (advantage is not None)
                assert np.isclose(batch["advantage"][k, t], advantage or 0)
                target = 0 if advantage is None else advantage + steps[i]["value"]
                assert np.isclose(batch["value_target"][k, t], target)
                assert np.isclose(batch["return_to_go"][k, t], plain.plain_return(steps, i, gamma) if i >= 0 else 0)
                frames = [steps[max(steps[i]["begin"], j)]["obs"]["x"] for j in range(i - 2, i + 1)] if i >= 0 else 0
                assert same(batch["obs"]["x"][k, t], np.zeros((3, 2)) if i < 0 else frames)


def test_transforms_say_what_they_miss():
    """The value behind a truncated step, an end inside an episode, a role that no field has."""
    with Recorded(plain_steps([(3, "u"), (3, "t")])) as store:
        how: dict[str, Any] = {"n_steps": 2, "fields": ["reward"], "rng": rng()}
        with pytest.raises(ConfigError, match=r"truncated its episode.*final_value"):
            store.sample(9, within=ENDS, transforms=[GAE()], **how)
        with pytest.raises(ConfigError, match=r"goes on behind a step.*within="):
            store.sample(9, transforms=[GAE(final_value="final_value")], **how)
        with pytest.raises(SchemaError, match="'no'"):
            store.sample(9, within=ENDS, transforms=[RewardToGo(reward="no")], **how)
        with pytest.raises(SchemaError, match=r"2.*numbers a step"):
            store.sample(9, within=ENDS, transforms=[RewardToGo(reward="obs.x")], **how)
    for make in (lambda: FrameStack("obs", 0), lambda: GAE(gamma=2), lambda: RewardToGo(gamma=-1)):
        with pytest.raises(ConfigError):
            make()


def test_the_end_of_an_episode_is_any_of_several_fields():
    """For windows of tokens too, and for bounds."""
    with Recorded(plain_steps([(2, "u"), (3, "t"), (4, "x"), (2, "t")])) as store:
        begins, ends = store.episode_bounds(np.arange(11), ENDS)

        assert begins.tolist() == [0, 0, 2, 2, 2, 5, 5, 5, 5, 9, 9]
        assert ends.tolist() == [2, 2, 5, 5, 5, 9, 9, 9, 9, 11, 11]
        assert store.coverage(1, start="step", within=ENDS).episodes == 4
        assert store.coverage(1, start="step", within="truncated").episodes == 3


def test_another_process_reads_the_same(tmp_path: Path):
    """A reader of the directory, with the same generator, has the same transitions."""
    store = StreamStore(tmp_path / "stream", fields=plain.FIELDS)
    for i, step in enumerate(plain_steps([(4, "t"), (3, "u")])):
        store.append(i, {name: value for name, value in step.items() if name not in ("breaks", "begin", "end")})

    mine, theirs = (each.transitions(20, rng=rng()) for each in (store, StreamStore.open(tmp_path / "stream")))

    assert same(mine, theirs)
    store.close()
