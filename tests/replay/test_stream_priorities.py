"""Priorities of a stream: drawn as they should be, with the stream as it grows and is trimmed, and behind kills."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import StreamStore
from poolish.errors import ConfigError, CorruptDataError, ResumeError, StoreLocked
from poolish.replay import EpisodeWriter, StreamPriorities
from tests.effort import times

FIELDS = dict.fromkeys(("obs", "action", "reward"), "float32") | {
    "terminated": "bool",
    "truncated": "bool",
    "final_obs": "float32",
}


def stream(path: Path | None = None, **options: int) -> StreamStore:
    """A stream for episodes of numbers."""
    return StreamStore(path, fields=FIELDS, **options)


def record(store: StreamStore, *lengths: int, open_end: bool = False) -> None:
    """Append episodes of these lengths; the last one goes on if ``open_end``."""
    writer = EpisodeWriter(store)
    for number, length in enumerate(lengths):
        writer.begin([0.0])
        is_open = open_end and number == len(lengths) - 1
        for i in range(length):
            writer.step([i + 1.0], action=[0], reward=1.0, terminated=i == length - 1 and not is_open)


def counts(priorities: StreamPriorities, n: int = 20_000) -> dict[int, float]:
    """How often each step is drawn."""
    ids, n_each = np.unique(priorities.sample(n, rng=np.random.default_rng(0)).ids, return_counts=True)
    return dict(zip(ids.tolist(), (n_each / n).round(2).tolist(), strict=True))


def test_transitions_are_drawn_by_their_priority_and_weighted_by_how_rare_they_are():
    """Frequencies follow p ** alpha; the weighted mean over draws is the mean over transitions."""
    store = stream()
    record(store, 5)
    priorities = StreamPriorities(store, alpha=0.5)
    priorities.update([0, 1, 2, 3, 4], [1, 4, 9, 16, 0])

    draw = priorities.sample(50_000, rng=np.random.default_rng(1), beta=1.0)

    assert counts(priorities) == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
    assert np.allclose(np.unique(draw.probabilities), [0.1, 0.2, 0.3, 0.4])
    weighted = np.bincount(draw.ids, draw.weights) / draw.weights.sum()
    assert np.allclose(weighted, [0.25] * 4, atol=0.01)
    assert draw.weights.max() == 1.0


def test_steps_without_a_next_observation_are_never_drawn(tmp_path: Path):
    """Neither the newest step of an open episode, nor the last one of a recorder that was killed."""
    with stream(tmp_path / "run") as store:
        record(store, 2, 3, open_end=True)
    store = stream(tmp_path / "run")
    priorities = StreamPriorities(store)
    assert counts(priorities).keys() == {0, 1, 2, 3}

    record(store, 2)

    assert counts(priorities).keys() == {0, 1, 2, 3, 5, 6}
    assert priorities.update([4, 7, -1, 3], [1.0] * 4).tolist() == [4, 7, -1]
    assert len(priorities) == 6


def test_open_step_becomes_a_transition_with_the_next_one_or_with_its_final_observation():
    """Until then its outcome is known, but not where it led."""
    store = stream()
    writer = EpisodeWriter(store)
    writer.begin([0.0])
    writer.step([1.0], action=[0], reward=0.0)
    priorities = StreamPriorities(store)
    assert len(priorities) == 0

    writer.step([2.0], action=[0], reward=0.0)
    assert len(priorities) == 1
    writer.end()

    assert len(priorities) == 2


def test_new_steps_have_the_largest_priority_that_there_is_now():
    """Not the largest that there ever was."""
    store = stream()
    record(store, 2)
    priorities = StreamPriorities(store)
    assert priorities.priorities_of([0, 1]).tolist() == [1.0, 1.0]
    priorities.update([0, 1], [100.0, 2.0])
    priorities.update([0], [0.5])

    record(store, 1)

    assert priorities.priorities_of([0, 1, 2]).tolist() == [0.5, 2.0, 2.0]


def test_trimmed_steps_leave_and_their_memory_too():
    """A bounded stream that runs for long has priorities for what it keeps."""
    store = stream(max_tokens=3_000)
    priorities = StreamPriorities(store)
    for _ in range(60):
        record(store, *[10] * 100)
        first, end = store.step_span()
        draw = priorities.sample(100, rng=np.random.default_rng(0))
        assert draw.ids.min() >= first
    assert priorities.update([0, first - 1, first], [1.0, 1.0, 1.0]).tolist() == [0, first - 1]
    assert len(priorities) == end - first
    assert len(priorities._tree) < 20_000


def test_priorities_survive_a_restart_and_follow_what_was_recorded_meanwhile(tmp_path: Path):
    """What update returned for is there; a restart draws what no restart would have drawn."""
    store = stream(tmp_path / "run")
    record(store, 4, 3)
    with StreamPriorities(store, tmp_path / "td") as before:
        before.update([1, 5], [7.0, 0.25])
    kept = StreamPriorities(store, tmp_path / "copy")
    kept.update([1, 5], [7.0, 0.25])
    record(store, 2)

    after = StreamPriorities(store, tmp_path / "td")

    assert after.priorities_of(np.arange(9)).tolist() == [1, 7, 1, 1, 1, 0.25, 1, 7, 7]
    draws = [each.sample(64, rng=np.random.default_rng(3)) for each in (kept, after)]
    assert all(np.array_equal(a, b) for a, b in zip(*draws, strict=True))


LEARNER = """
import sys
import numpy as np
from poolish import StreamStore
from poolish.replay import StreamPriorities
store = StreamStore.open(sys.argv[1])
priorities = StreamPriorities(store, sys.argv[2])
rng = np.random.default_rng(int(sys.argv[3]))
print("ready", flush=True)
for i in range(10**9):
    draw = priorities.sample(8, rng=rng)
    values = rng.random(8)
    priorities.update(draw.ids, values)
    print(*(f"{id_}:{value}" for id_, value in zip(draw.ids.tolist(), values.tolist())), flush=True)
"""


@pytest.mark.parametrize("seed", range(times(2)))
def test_killed_learner_loses_no_update_that_had_returned(tmp_path: Path, seed: int):
    """Every update that it printed is in the file; at most one more is."""
    with stream(tmp_path / "run") as store:
        record(store, *[10] * 20)
        expected = dict.fromkeys(range(200), 1.0)
        command = [sys.executable, "-c", LEARNER, str(tmp_path / "run"), str(tmp_path / "td"), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as learner:
            assert learner.stdout is not None
            learner.stdout.readline()
            lines = [learner.stdout.readline() for _ in range(50 + 20 * seed)]
            learner.send_signal(signal.SIGKILL)
            lines += learner.stdout.read().splitlines()

        priorities = StreamPriorities(store, tmp_path / "td")

    for line in lines:
        expected.update((int(pair.split(":")[0]), float(pair.split(":")[1])) for pair in line.split())
    found = dict(enumerate(priorities.priorities_of(np.arange(200)).tolist()))
    assert sum(found[id_] != value for id_, value in expected.items()) <= 8


def test_torn_last_record_is_cut_off_with_a_warning_and_damage_elsewhere_is_an_error(tmp_path: Path):
    """Wherever the power failed: the updates before are there."""
    store = stream()
    record(store, 4)
    path = tmp_path / "td"
    with StreamPriorities(store, path) as priorities:
        priorities.update([0], [2.0])
        whole = path.read_bytes()
        priorities.update([1], [3.0])
    longer = path.read_bytes()
    for end in range(len(whole) + 1, len(longer)):
        path.write_bytes(longer[:end])
        with pytest.warns(UserWarning, match="not written completely"), StreamPriorities(store, path) as again:
            assert again.priorities_of([0, 1]).tolist() == [2.0, 1.0]
    path.write_bytes(longer[:-1] + bytes([longer[-1] ^ 1]))
    with pytest.warns(UserWarning, match="not written completely"):
        StreamPriorities(store, path).close()

    for place in range(0, len(whole), 7):
        path.write_bytes(longer[:place] + bytes([longer[place] ^ 4]) + longer[place + 1 :])
        with pytest.raises(CorruptDataError, match="rebuild=True"):
            StreamPriorities(store, path)

    rebuilt = StreamPriorities(store, path, rebuild=True)
    assert rebuilt.priorities_of(np.arange(4)).tolist() == [1.0] * 4


def test_file_stays_about_as_large_as_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A million updates of a thousand priorities need no gigabytes."""
    monkeypatch.setattr("poolish.replay.priority_file.SLACK", 4_000)
    store = stream()
    record(store, *[10] * 10)
    priorities = StreamPriorities(store, tmp_path / "td")

    sizes = []
    for i in range(200):
        priorities.update(np.arange(30), np.full(30, i + 1.0))
        sizes.append((tmp_path / "td").stat().st_size)
    priorities.close()

    assert max(sizes) < 10_000
    assert StreamPriorities(store, tmp_path / "td").priorities_of([0, 29, 30]).tolist() == [200.0, 200.0, 1.0]


def test_priorities_of_another_stream_or_of_steps_it_lost_are_refused(tmp_path: Path):
    """They would be given to other transitions, silently."""
    store = stream(tmp_path / "run")
    record(store, 3)
    store.commit()
    os.system(f"cp -r {tmp_path / 'run'} {tmp_path / 'copy'}")
    record(store, 3)
    StreamPriorities(store, tmp_path / "td").close()

    with pytest.raises(ResumeError, match="another stream"):
        StreamPriorities(stream(), tmp_path / "td")
    copy = stream(tmp_path / "copy")
    with pytest.raises(ResumeError, match="up to step 6"):
        StreamPriorities(copy, tmp_path / "td")
    record(copy, 9)
    with pytest.raises(ResumeError, match="up to step 6"):
        StreamPriorities(copy, tmp_path / "td")


# Frameworks that other tests of this process have loaded warn of forks.
@pytest.mark.filterwarnings("ignore:os.fork", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_learner_owns_a_side_file_and_each_may_have_its_own(tmp_path: Path):
    """A second one is refused while the first lives, and so is the child of a fork."""
    store = stream()
    record(store, 3)
    one, other = StreamPriorities(store, tmp_path / "one"), StreamPriorities(store, tmp_path / "other")
    one.update([0], [9.0])
    with pytest.raises(StoreLocked):
        StreamPriorities(store, tmp_path / "one")
    pid = os.fork()
    if pid == 0:
        try:
            one.update([1], [5.0])
        except ConfigError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0

    assert other.priorities_of([0]).tolist() == [1.0]
    one.close()
    assert StreamPriorities(store, tmp_path / "one").priorities_of([0, 1]).tolist() == [9.0, 1.0]


@pytest.mark.parametrize(
    ("ids", "values", "message"),
    [([0, 1], [1.0, -1.0], "of 1 "), ([0], [float("nan")], "of 0 "), ([0], [1.0, 2.0], "shape"), ([0.5], [1], "whole")],
)
def test_update_that_cannot_be_right_changes_nothing(ids: list[float], values: list[float], message: str):
    """The error names the id."""
    store = stream()
    record(store, 3)
    priorities = StreamPriorities(store)

    with pytest.raises(ValueError, match=message):
        priorities.update(ids, values)

    assert priorities.priorities_of([0, 1, 2]).tolist() == [1.0] * 3


def test_nothing_to_draw_is_an_error_that_says_so():
    """An empty stream, and one whose priorities are all 0."""
    store = stream()
    priorities = StreamPriorities(store)
    with pytest.raises(ConfigError, match="priority above 0"):
        priorities.sample(1, rng=np.random.default_rng(0))
    record(store, 2)
    priorities.update([0, 1], 0.0)

    with pytest.raises(ConfigError, match="priority above 0"):
        priorities.sample(1, rng=np.random.default_rng(0))

    assert priorities.sample(0, rng=np.random.default_rng(0)).ids.tolist() == []


ACTIONS = st.one_of(
    st.tuples(st.just("record"), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans()),
    st.tuples(
        st.just("update"),
        st.lists(st.tuples(st.integers(0, 60), st.floats(0, 100)), min_size=1, max_size=10),
        st.none(),
    ),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


@settings(max_examples=times(100, push=25))
@given(st.lists(ACTIONS, max_size=12))
def test_priorities_are_those_of_a_plain_dict(tmp_path_factory: pytest.TempPathFactory, actions: list):
    """Whatever is recorded, trimmed, updated and restarted, in whichever order."""
    folder = tmp_path_factory.mktemp("model")
    store = stream(max_tokens=200)
    priorities = StreamPriorities(store, folder / "td")
    model: dict[int, float] = {}
    last = 0.0
    for kind, first, second in actions:
        if kind == "record":
            record(store, *first, open_end=second)
            record(store, 1)  # completes the open one
        elif kind == "restart":
            priorities.close()
            priorities = StreamPriorities(store, folder / "td")
        low, end = store.step_span()
        last = max(model.values(), default=0.0) or last
        model |= dict.fromkeys(range(max([*model, -1]) + 1, end), last or 1.0)
        model = {i: value for i, value in model.items() if i >= low}
        if kind == "update":
            known = {id_: value for id_, value in first if id_ in model}
            missing = priorities.update([id_ for id_, _ in first], [value for _, value in first])
            assert missing.tolist() == [id_ for id_, _ in first if id_ not in model]
            model |= known
        assert len(priorities) == len(model)
        assert priorities.priorities_of(np.arange(low, end)).tolist() == [model[i] for i in range(low, end)]


def test_priorities_that_are_gone_leave_their_file_to_others(tmp_path: Path):
    """Without a word: what was updated is there for the next one that opens it, and nothing stays open."""
    store = stream()
    record(store, 4)
    priorities = StreamPriorities(store, tmp_path / "td")
    priorities.update([0], [2.0])

    del priorities
    gc.collect()

    with StreamPriorities(store, tmp_path / "td") as again:
        assert again.priorities_of([0]).tolist() == [2.0]
