"""What a recording of an environment holds, single or vectorised, whichever way it resets, and however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset

from poolish import StreamStore
from poolish.errors import ConfigError, SchemaError
from poolish.integrations.gymnasium import Record, RecordVector
from tests.replay.envs import Counting, played, recorded

MODES = list(AutoresetMode)


def run(env: Any, n: int) -> None:
    """Step an environment as ``played`` does."""
    env.reset()
    for i in range(n):
        _, _, terminated, truncated, _ = env.step(i % 4)
        if terminated or truncated:
            env.reset()


def vector(n: int, mode: AutoresetMode) -> SyncVectorEnv:
    """Environments whose episodes end at different times."""
    copies = mode is AutoresetMode.SAME_STEP  # there gymnasium keeps the last observation and resets behind its back
    makers = [lambda i=i: Counting(i, lengths=(3 + i, 1, 4), copies=copies) for i in range(n)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def test_each_transition_of_an_environment_is_recorded_with_its_next_observation():
    """Terminal and truncated transitions lead to the observation behind the last step, not to the next episode."""
    env = Record(Counting(), StreamStore())

    run(env, 20)
    env.close()

    assert recorded(env.store) == played(Counting(), 20)


@pytest.mark.parametrize("mode", MODES)
def test_each_transition_of_a_vector_environment_is_recorded(mode: AutoresetMode, tmp_path: Path):
    """In every autoreset mode each environment's stream holds what it would have recorded alone."""
    env = Record(vector(3, mode), tmp_path / "runs")
    env.reset()

    steps = [0, 0, 0]
    for _ in range(60):
        fresh = [not writer.has_begun for writer in env._writers]
        actions = np.array([n % 4 for n in steps])
        _, _, terminated, truncated, _ = env.step(actions)
        steps = [n + (not is_fresh) for n, is_fresh in zip(steps, fresh, strict=True)]
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            env.reset(options={"reset_mask": terminated | truncated})
    env.close()

    assert isinstance(env, RecordVector)
    for i in range(3):
        with StreamStore.open(tmp_path / "runs" / f"env-{i:05d}") as store:
            assert recorded(store) == played(Counting(i, lengths=(3 + i, 1, 4)), steps[i])
    assert min(steps) > 40


def test_single_environment_that_resets_itself_records_no_transition_for_the_reset():
    """The step behind the end of an episode takes no action."""
    env = Record(Autoreset(Counting()), StreamStore())
    env.reset()
    n = 0
    for _ in range(30):
        is_reset = not env._writer.has_begun
        env.step(n % 4)
        n += not is_reset

    env.close()

    assert recorded(env.store) == played(Counting(), n)


def test_episode_that_is_given_up_keeps_its_last_observation():
    """A reset in the middle, and close, end the episode where it is: no transition leads into the next one."""
    env = Record(Counting(lengths=(100,)), StreamStore())
    for _ in range(2):
        env.reset()
        env.step(0)
        env.step(1)

    env.reset()  # twice in a row
    env.reset()
    env.step(2)
    env.close()

    assert [each.next_obs for each in recorded(env.store)] == [[0, 0, 1], [0, 0, 2], [0, 1, 1], [0, 1, 2], [0, 3, 1]]
    assert not any(each.terminated or each.truncated for each in recorded(env.store))


def test_new_recording_on_a_stream_completes_the_one_before():
    """Two environments that record into one stream one after the other leave two episodes."""
    store = StreamStore()
    for number in (5, 6):
        env = Record(Counting(number), store)
        env.reset()
        env.step(0)

    env.close()

    assert [each.next_obs for each in recorded(store)] == [[5, 0, 1], [6, 0, 1]]


def test_chosen_info_is_recorded_beside_the_step_that_it_came_with():
    """Also where the environment was reset in the same call: the info of the last step, not of the reset."""
    single = Record(Counting(), StreamStore(), info=["score"])
    many = Record(vector(1, AutoresetMode.SAME_STEP), [StreamStore()], info={"score": "float32"})
    run(single, 9)
    many.reset()
    for i in range(9):
        many.step(np.array([i % 4]))

    scores = [[step["score"] for step in store] for store in (single.store, many.stores[0])]

    rewards = [each.reward for each in played(Counting(), 9)]
    assert scores == [[2 * reward for reward in rewards]] * 2
    assert many.stores[0].features == {**single.store.features, "score": many.stores[0].features["score"]}


class Goals(Counting):
    """Observations and actions of several parts."""

    observation_space = spaces.Dict(
        {"position": spaces.Box(-9, 9, (2, 2), np.float32), "hit": spaces.MultiBinary(3), "floor": spaces.Discrete(9)}
    )
    action_space = spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)))

    def _observe(self) -> Any:
        position = np.full((2, 2), self.t, np.float32)
        return {"position": position, "hit": np.array([1, 0, 1], np.int8), "floor": np.int64(self.t)}


@pytest.mark.parametrize("mode", [None, *MODES])
def test_spaces_of_parts_become_a_field_for_each(mode: AutoresetMode | None):
    """Dict and Tuple spaces, single and in a vector."""
    env: Any = Goals() if mode is None else SyncVectorEnv([Goals], autoreset_mode=mode)
    store = StreamStore()
    env = Record(env, store if mode is None else [store])
    env.action_space.seed(0)
    env.reset()

    for _ in range(3):
        action = env.action_space.sample()
        env.step(action)

    last = list(store)[-1]
    given = action if mode is None else [part[0] for part in action]
    assert last["obs.floor"] == 2
    assert last["obs.position"].tolist() == [[2, 2], [2, 2]]
    assert last["action.0"] == given[0]
    assert np.array_equal(last["action.1"], given[1])
    assert last["final_obs.floor"] == 3
    assert last["final_obs.hit"].tolist() == [1, 0, 1]


def test_step_without_an_episode_is_refused_before_the_environment_moves():
    """A step before the first reset, or behind the end of an episode, is an error that names reset()."""
    env = Record(Counting(lengths=(1,)), StreamStore())
    with pytest.raises(ConfigError, match=r"call reset\(\)"):
        env.step(0)
    env.reset()
    env.step(0)

    with pytest.raises(ConfigError, match=r"call reset\(\)"):
        env.step(0)

    assert env.unwrapped.t == 1
    assert env.store.n_steps == 1


def test_stream_of_other_fields_and_too_few_streams_are_refused():
    """The messages name the field that is missing, and what a vector environment needs."""
    with pytest.raises(SchemaError, match="no field 'obs'"):
        Record(Counting(), StreamStore(fields=["observation", "action"]))
    names = ["final_obs", "obs", "action", "reward", "terminated", "truncated"]
    with pytest.raises(SchemaError, match="behind the other fields"):
        Record(Counting(), StreamStore(fields=names))
    with pytest.raises(ConfigError, match="1 streams for 2 environments"):
        Record(vector(2, AutoresetMode.NEXT_STEP), StreamStore())
    with pytest.raises(SchemaError, match="info column 'obs'"):
        Record(Counting(), StreamStore(), info=["obs"])


RECORDER = """
import sys
from poolish.integrations.gymnasium import Record
from tests.replay.envs import Counting
env = Record(Counting(lengths=(7,)), sys.argv[1])
env.reset()
for i in range(10**9):
    _, _, terminated, truncated, _ = env.step(i % 4)
    if terminated or truncated:
        env.reset()
    if i == 50:
        print("ready", flush=True)
"""


def test_killed_recorder_leaves_whole_steps_and_an_episode_that_nothing_continues(tmp_path: Path):
    """What its step() returned for is there; the next recorder's episode begins behind a break."""
    path = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", RECORDER, str(path)], stdout=subprocess.PIPE, text=True) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "ready\n"
        recorder.send_signal(signal.SIGKILL)

    killed = StreamStore(path)
    n = killed.n_steps
    env = Record(Counting(number=1), killed)
    env.reset()
    env.step(0)

    expected = played(Counting(lengths=(7,)), n + 1)[:n]
    assert n > 50
    assert [each.obs for each in recorded(killed)[:n]] == [each.obs for each in expected]
    assert all(len(step) == 5 + (step["terminated"] or step["truncated"]) for step in list(killed)[:n])
    episodes = killed.coverage(1, start="step", within="terminated").episodes
    ended = sum(each.terminated for each in expected)
    assert episodes == ended + 1 + (n % 7 > 0 or expected[-1].truncated)


class Talking(Counting):
    """Observations and actions of words."""

    observation_space = spaces.Dict({"heard": spaces.Text(20), "seen": Counting.observation_space})
    action_space = spaces.Text(5)

    def _observe(self) -> Any:
        return {"seen": super()._observe(), "heard": f"step {self.t} é"}


@pytest.mark.parametrize("mode", [None, *MODES])
def test_text_is_recorded_as_its_bytes(mode: AutoresetMode | None):
    """Of any length, single and in a vector."""
    env: Any = Talking() if mode is None else SyncVectorEnv([Talking], autoreset_mode=mode)
    store = StreamStore()
    env = Record(env, store if mode is None else [store])
    env.reset()
    for _ in range(3):
        env.step("go" if mode is None else ("go",))

    steps = list(store)

    assert [bytes(step["obs.heard"]).decode() for step in steps] == ["step 0 é", "step 1 é", "step 2 é"]
    assert bytes(steps[-1]["final_obs.heard"]).decode() == "step 3 é"
    assert bytes(steps[0]["action"]) == b"go"
