"""A TransitionSampler over a StreamSet: actors that come are drawn from, ids of those that left are reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish import StreamSet, StreamStore
from poolish.errors import ConfigError, ResumeError
from poolish.replay import EpisodeWriter, Prioritized, TransitionSampler

FIELDS = {
    "obs": ("float32", (1,)),
    "action": "int64",
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "final_obs": ("float32", (1,)),
}


def actor(path: Path, who: int, n: int = 4) -> Path:
    """A stream of one episode of ``n`` steps whose action says who acted."""
    with StreamStore(path, FIELDS) as store:
        writer = EpisodeWriter(store)
        writer.begin([[0.0]])
        for i in range(n):
            writer.step([[i + 1.0]], action=[who], reward=1.0, terminated=i == n - 1)
    return path


def owners(batch: Any) -> dict[int, int]:
    """Which ordinal the ids of each action have."""
    return dict(zip(batch["action"].tolist(), (batch["id"] >> 48).tolist(), strict=True))


@pytest.mark.parametrize("sampler", ["uniform", Prioritized()])
def test_members_that_come_are_drawn_from_and_keep_their_ordinals(tmp_path, sampler):
    """Also one whose name sorts first; the batch says with each id whose it is."""
    actor(tmp_path / "b", 1)
    streams = StreamSet(tmp_path / "*")
    drawing = TransitionSampler(streams, sampler)
    first = drawing.sample(50)
    actor(tmp_path / "a", 2)
    streams.refresh()
    batch = drawing.sample(200)

    assert owners(first) == {1: 0}
    assert owners(batch) == {1: 0, 2: 1}
    assert len(drawing) == 8
    assert np.array_equal(streams.transitions_at(batch["id"])["obs"], batch["obs"])


def test_priorities_of_a_member_that_left_are_reported_as_missing(tmp_path):
    """Those of the others are set; an id that was never given out is an error."""
    actor(tmp_path / "actors" / "a", 1)
    actor(tmp_path / "actors" / "b", 2)
    streams = StreamSet(tmp_path / "actors" / "*")
    with TransitionSampler(streams, Prioritized(), path=tmp_path / "priorities") as drawing:
        ids = drawing.sample(100)["id"]
        shutil.rmtree(tmp_path / "actors" / "a")
        streams.refresh()
        missing = drawing.update_priorities(ids, np.full(100, 2.0))

        assert set(missing.tolist()) == set(ids[ids >> 48 == 0].tolist())
        assert owners(drawing.sample(50)) == {2: 1}
        with pytest.raises(ConfigError, match="of a stream that is not drawn from"):
            drawing.update_priorities([5 << 48], [1.0])


def test_each_share_of_a_prioritised_draw_follows_the_priorities(tmp_path):
    """Of streams together, as if they were one."""
    paths = [actor(tmp_path / name, who) for who, name in enumerate("ab")]
    drawing = TransitionSampler(StreamSet(paths), Prioritized(alpha=1.0))
    ids = np.array([0, 1, 2, 3, *((1 << 48) + n for n in range(4))])
    values = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
    drawing.update_priorities(ids, values)
    batch = drawing.sample(36_000, rng=np.random.default_rng(0), beta=1.0)
    counts = np.array([np.count_nonzero(batch["id"] == id_) for id_ in ids])

    assert np.abs(counts / 1_000 - values).max() < 0.2
    assert np.allclose(batch["probability"], values[np.searchsorted(ids, batch["id"])] / 36)
    assert np.allclose(batch["weight"], 1.0 / values[np.searchsorted(ids, batch["id"])])


def test_a_state_goes_on_with_the_same_draws(tmp_path):
    """Of the same streams with the same ordinals only."""
    one, two = actor(tmp_path / "a", 1), actor(tmp_path / "b", 2)
    drawing = TransitionSampler(StreamSet([one, two]), seed=3)
    drawing.sample(8)
    state = json.loads(json.dumps(drawing.state_dict()))
    expected = drawing.sample(8)["id"]
    resumed = TransitionSampler(StreamSet([one, two]))
    resumed.load_state_dict(state)

    assert np.array_equal(resumed.sample(8)["id"], expected)
    with pytest.raises(ResumeError, match="has the ordinal 1, when the state was taken it had 0"):
        TransitionSampler(StreamSet([two, one])).load_state_dict(state)
    with pytest.raises(ResumeError, match="is not among the 1 here"):
        TransitionSampler(StreamSet([one])).load_state_dict(state)


def test_a_state_of_recorded_members_goes_on_when_one_has_left(tmp_path):
    """Its ordinal is not given to another one."""
    actor(tmp_path / "a", 1)
    actor(tmp_path / "b", 2)
    state = TransitionSampler(StreamSet(tmp_path / "*")).state_dict()
    shutil.rmtree(tmp_path / "a")
    resumed = TransitionSampler(StreamSet(tmp_path / "*"))
    resumed.load_state_dict(state)

    assert owners(resumed.sample(20)) == {2: 1}


def test_ragged_observations_of_several_streams_are_padded_to_the_widest():
    """Behind their values there are zeros, and the lengths say where."""
    flags = {"reward": "float32", "terminated": "bool", "truncated": "bool"}
    stores = []
    for width in (2, 5):
        ragged = ("float32", (None,))
        store = StreamStore(fields={"obs": ragged, "action": "int64", **flags, "final_obs": ragged})
        writer = EpisodeWriter(store)
        writer.begin([np.full(width, width)])
        for t in range(4):
            writer.step([np.full(width, width)], action=[t], reward=1.0, terminated=t == 3)
        stores.append(store)

    batch = TransitionSampler(stores).sample(50, rng=np.random.default_rng(0))

    for name in ("obs", "next_obs"):
        lengths = batch["lengths"][name]
        assert set(lengths.tolist()) == {2, 5}
        assert batch[name].shape == (50, 5)
        assert (batch[name] == np.where(np.arange(5) < lengths[:, None], lengths[:, None], 0)).all()
