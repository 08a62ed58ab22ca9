"""Episodes as a writer leaves them: what can be read back, and what nothing crosses."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import StreamStore
from poolish.errors import ConfigError, SchemaError
from poolish.replay import EpisodeWriter
from poolish.replay.recordings import episodes
from tests.effort import times

FIELDS = {
    "obs": ("float32", (2,)),
    "action": "int64",
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "value": "float32",
    "final_obs": ("float32", (2,)),
}


def at(*numbers: float) -> list[np.ndarray]:
    """An observation."""
    return [np.array(numbers, np.float32)]


def written(store: StreamStore, *lengths: int, gives_up: bool = False) -> EpisodeWriter:
    """Episodes of these lengths; all but the last end by a flag, or by the next one if it ``gives_up``."""
    writer = EpisodeWriter(store)
    for number, length in enumerate(lengths):
        writer.begin(at(number, 0))
        for t in range(length):
            is_last = t == length - 1 and number < len(lengths) - 1 and not gives_up
            writer.step(at(number, t + 1), action=[t], reward=1.0, terminated=is_last, extra={"value": 0.5})
    return writer


@pytest.mark.parametrize("gives_up", [False, True])
def test_sequences_and_transitions_stay_inside_an_episode(gives_up: bool):
    """However it ended: with a flag, or because the next one began."""
    store = StreamStore(fields=FIELDS)
    written(store, 5, 4, 6, gives_up=gives_up).end()

    batch = store.sample(
        200, n_steps=3, within=("terminated", "truncated"), fields=["obs"], rng=np.random.default_rng(0)
    )
    pairs = store.transitions(500, rng=np.random.default_rng(0), n_step=3)

    assert (batch["obs"][:, :, 0] == batch["obs"][:, :1, 0]).all()
    assert (pairs["next_obs"][:, 0] == pairs["obs"][:, 0]).all()
    assert pairs["next_obs"][:, 1].max() == 6
    assert set(pairs["id"].tolist()) == set(range(15))
    assert pairs["truncated"].any() == True  # noqa: E712
    assert pairs["terminated"].any() == (not gives_up)


def test_steps_append_whole_columns_as_single_steps_do():
    """The same fields in the same steps, also where an episode comes in parts."""
    one, many = StreamStore(fields=FIELDS), StreamStore(fields=FIELDS)
    written(one, 5).end()
    writer = EpisodeWriter(many)
    obs = np.stack([at(0, t)[0] for t in range(6)])
    columns = {"action": [np.arange(5)], "reward": np.ones(5), "terminated": np.zeros(5), "truncated": np.zeros(5)}
    parts = {name: ([c[:3] for c in v] if isinstance(v, list) else v[:3]) for name, v in columns.items()}
    rest = {name: ([c[3:] for c in v] if isinstance(v, list) else v[3:]) for name, v in columns.items()}

    writer.steps([obs[:4]], **parts, extra={"value": np.full(3, 0.5)}, ends=False)
    assert writer.continues([obs[3]])
    writer.steps([obs[3:]], **rest, extra={"value": np.full(2, 0.5)}, ends=False)
    writer.end()

    assert [{name: str(value) for name, value in step.items()} for step in one] == [
        {name: str(value) for name, value in step.items()} for step in many
    ]


def test_recordings_are_read_back_as_episodes(tmp_path: Path):
    """What was cut off by a kill loses its last outcome only; what was given up counts as truncated."""
    with StreamStore(tmp_path / "run", fields=FIELDS) as store:
        written(store, 3, 4)
    store = StreamStore(tmp_path / "run")
    written(store, 2).end()

    found = list(episodes(store))

    assert [len(episode) for episode in found] == [3, 3, 2]
    assert [episode.obs["obs"].shape for episode in found] == [(4, 2), (4, 2), (3, 2)]
    assert [bool(episode.terminated[-1]) for episode in found] == [True, False, False]
    assert [bool(episode.truncated[-1]) for episode in found] == [False, True, True]
    assert found[1].obs["obs"][:, 1].tolist() == [0, 1, 2, 3]
    assert found[0].extra["value"].tolist() == [0.5] * 3


def test_end_of_an_episode_can_be_recorded_without_a_flag():
    """For streams of one's own: nothing crosses it; twice is once, and an empty stream has nothing to end."""
    store = StreamStore(fields={"state": "int64", "done": "bool"})
    store.end_episode()
    for step in range(6):
        if step == 3:
            store.end_episode()
            store.end_episode()
        store.append(step, {"state": step, "done": False})

    bounds = store.episode_bounds(np.arange(6), within="done")

    assert [edge.tolist() for edge in bounds] == [[0, 0, 0, 3, 3, 3], [3, 3, 3, 6, 6, 6]]


def test_writer_refuses_what_would_not_be_an_episode():
    """A step before the first observation, a wrong number of observations, fields that are not there or too late."""
    store = StreamStore(fields={**FIELDS, "late": "float32"})
    writer = EpisodeWriter(store)
    with pytest.raises(ConfigError, match="begin"):
        writer.step(at(0, 1), action=[0], reward=0.0)
    flags = {"terminated": [True], "truncated": [False]}
    with pytest.raises(SchemaError, match="2 observations, got"):
        writer.steps([np.zeros((1, 2))], action=[[0]], reward=[0.0], **flags)
    writer.begin(at(0, 0))
    for name in ("late", "unknown"):
        with pytest.raises(SchemaError, match=f"no field '{name}' before 'final_obs'"):
            writer.step(at(0, 1), action=[0], reward=0.0, extra={name: 1.0})

    assert store.n_steps == 0


@settings(max_examples=times(100, push=25))
@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), min_size=1, max_size=12),
    lacks_value=st.booleans(),
    max_tokens=st.sampled_from([None, 60]),
)
def test_transitions_read_in_pairs_are_those_read_field_by_field(lengths, lacks_value, max_tokens):
    """Whatever ends episodes, whichever fields are missing, trimmed or not."""
    store = StreamStore(fields=FIELDS, max_tokens=max_tokens)
    writer = EpisodeWriter(store)
    for number, (length, terminates, is_flagged) in enumerate(lengths):
        writer.begin(at(number, 0))
        for t in range(length):
            is_last = is_flagged and t == length - 1
            extra = {} if lacks_value and t == 1 else {"value": 0.5}
            flags = {"terminated": is_last and terminates, "truncated": is_last and not terminates}
            writer.step(at(number, t + 1), action=[t], reward=float(t), extra=extra, **flags)
    writer.end()
    ids = store.transition_ids()
    chosen = ids.select(np.arange(ids.n))

    # One at a time: a batch with one step that is laid out otherwise is read field by field as a whole.
    in_pairs = [store.transitions_at([id_]) for id_ in chosen]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poolish.tokens.pairs.PairLayout.read", lambda *_: None)
        by_field = [store.transitions_at([id_]) for id_ in chosen]
        together = store.transitions_at(chosen)

    for one, other in [*zip(in_pairs, by_field, strict=True), (store.transitions_at(chosen), together)]:
        assert one.keys() == other.keys()
        for name, column in other.items():
            assert np.array_equal(one[name], column), name
            assert one[name].dtype == column.dtype, name


def test_a_stream_is_closed_when_it_and_its_writer_are_gone():
    """A writer in the middle of an episode keeps nothing alive; a program that makes many runs out of no files."""
    store = StreamStore(fields=["obs", "action", "reward", "terminated", "truncated", "final_obs"])
    writer = EpisodeWriter(store)
    writer.begin([1.0])
    writer.step([2.0], action=[0], reward=0.5)
    gone = weakref.ref(store)

    del store, writer
    gc.collect()

    assert gone() is None
