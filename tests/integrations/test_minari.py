"""Recordings become datasets of Minari and come back, transition by transition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from poolish import StreamStore
from poolish.errors import ConfigError, SchemaError
from poolish.integrations.gymnasium import Record
from poolish.integrations.minari import from_minari, to_minari
from tests.integrations.test_gymnasium import Goals, run
from tests.replay.envs import Counting, recorded

#: Minari's reminders to name an author and a licence, and of what jax and h5py keep open or deprecate.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")

SPACES = {"observation_space": Counting.observation_space, "action_space": Counting.action_space}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets go where nothing else reads them."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def recording(env: Any, n: int = 22, **options: Any) -> StreamStore:
    """A recording whose last episode goes on."""
    recorder = Record(env, StreamStore(), **options)
    run(recorder, n)
    return recorder.store


def test_recording_becomes_a_dataset_and_comes_back():
    """Minari reads the episodes with n + 1 observations; what is read from it has the same transitions."""
    store = recording(Counting(), info={"score": "float64"})

    dataset = to_minari(store, "counting/test-v0", **SPACES, episodes_at_once=2)
    again = StreamStore()
    n = from_minari("counting/test-v0", again, info=["score"])

    found = list(dataset.iterate_episodes())
    assert n == len(found) == len(dataset) == 9
    assert [len(episode.observations) - len(episode) for episode in found] == [1] * n
    assert dataset.total_steps == 21  # the last recorded step has no observation behind it yet
    assert [each._replace(truncated=False) for each in recorded(again)] == [
        each._replace(truncated=False) for each in recorded(store)
    ]
    assert [step["score"] for step in again] == [step["score"] for step in store][:21]
    assert list(again)[-1]["truncated"] is True


def test_several_streams_and_observations_of_parts_become_one_dataset():
    """The streams of a vector environment, one after the other; dict and tuple spaces keep their structure."""
    stores = [recording(Goals(), n=0) for _ in range(2)]
    for store in stores:
        env = Record(Goals(), store)
        env.action_space.seed(0)
        env.reset()
        for _ in range(3):
            env.step(env.action_space.sample())
        env.close()

    dataset = to_minari(stores, "goals/test-v0", env=Goals())
    again = StreamStore()
    from_minari(dataset, again)

    assert dataset.total_episodes == 2
    episode = dataset[1]
    assert episode.observations["position"].shape == (4, 2, 2)
    assert isinstance(episode.actions, tuple)
    assert [set(step) for step in again] == [set(step) for store in stores for step in store]
    assert list(again)[-1]["final_obs.floor"] == 3


def test_frames_are_stored_without_loss():
    """Minari's own default is JPEG."""

    class Frames(Counting):
        observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)

        def _observe(self) -> Any:
            return np.random.default_rng(self.t).integers(0, 256, (16, 16, 3), np.uint8)

    store = recording(Frames(), 5)

    dataset = to_minari(store, "frames/test-v0", env=Frames())

    assert np.array_equal(dataset[0].observations[0], next(iter(store))["obs"])


def test_what_cannot_be_exported_or_read_is_refused():
    """No episodes, no spaces, an info that is not there, a dataset that is not on this machine."""
    with pytest.raises(ConfigError, match="no episode"):
        to_minari(recording(Counting(), 0), "counting/none-v0", **SPACES)
    with pytest.raises(ConfigError, match="observation_space"):
        to_minari(recording(Counting(), 5), "counting/none-v0")
    with pytest.raises(SchemaError, match="no recording of episodes"):
        to_minari(StreamStore(fields=["obs"]), "counting/none-v0", **SPACES)
    dataset = to_minari(recording(Counting(), 5), "counting/some-v0", **SPACES)
    with pytest.raises(SchemaError, match="no info 'lives'"):
        from_minari(dataset, StreamStore(), info=["lives"])
    with pytest.raises(FileNotFoundError):
        from_minari("counting/absent-v0", StreamStore())
