"""Streams of several recorders, read as one while they come, grow, break, are trimmed and go."""

from __future__ import annotations

import gc
import os
import pickle
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from poolish import StreamSet, StreamStore
from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.tokens import members as members_module
from poolish.tokens import writer
from tests.effort import times
from tests.faults import in_child, read_only_story
from tests.tokens.actors import SHIFT, actor, held, record, recorded


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Whether something was synced makes no difference here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


# A model: a list of steps for each stream ----------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.tuples(st.just("come"), st.sampled_from("abcdef"), st.booleans()),
    st.tuples(st.just("half"), st.sampled_from("abcdef")),
    st.tuples(st.just("grow"), st.integers(0, 5), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("come_back"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
)


class Model:
    """Streams in a folder, and for each what was recorded in it: (its number, step, episode)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.streams = StreamSet(folder / "*", seed=3)
        self.stores: dict[str, StreamStore] = {}
        self.steps: dict[str, list[tuple[int, int, int]]] = {}
        self.now: dict[str, tuple[int, int]] = {}
        self.ordinals: dict[str, int] = {}

    def act(self, what: str, which: Any, *more: Any) -> None:
        if what in ("come", "half"):
            if which not in self.stores:
                getattr(self, what)(which, *more)
        elif self.stores:
            names = sorted(self.stores)
            getattr(self, what)(names[which % len(names)], *more)

    def come(self, name: str, is_bounded: bool) -> None:
        self.stores[name] = actor(self.folder / name, max_tokens=30 if is_bounded else None)
        self.steps[name], self.now[name] = [], (sum(number for number, _ in self.now.values()) + 1, 0)

    def half(self, name: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)

    def grow(self, name: str, n: int, ends: bool) -> None:
        steps, (number, episode) = self.steps[name], self.now[name]
        for i in range(n):
            self.stores[name].append(len(steps), {"who": number, "n": len(steps), "done": ends and i == n - 1})
            steps.append((number, len(steps), episode))
        self.now[name] = number, episode + ends

    def come_back(self, name: str) -> None:
        """Killed or not, its recorder begins another episode."""
        self.stores[name].close()
        self.stores[name] = StreamStore.open(self.folder / name, mode="a")
        self.now[name] = self.now[name][0], self.now[name][1] + 1

    def leave(self, name: str) -> None:
        self.stores.pop(name).close()
        shutil.rmtree(self.folder / name)

    def check(self) -> None:
        self.streams.refresh()
        again = StreamSet(self.folder / "*")
        kept = {name: self.steps[name][slice(*store.step_span())] for name, store in self.stores.items()}
        for streams in (self.streams, again):
            for member in streams.members:
                assert self.ordinals.setdefault(member.uuid, member.ordinal) == member.ordinal
            assert held(streams) == {name: [(who, n) for who, n, _ in steps] for name, steps in kept.items()}
        assert len(set(self.ordinals.values())) == len(self.ordinals)
        assert len(self.streams) == sum(map(len, kept.values()))
        if any(kept.values()):
            self.check_draws({member.ordinal: kept[member.name] for member in self.streams.members})
        again.close()

    def check_draws(self, kept: dict[int, list[tuple[int, int, int]]]) -> None:
        """Each sequence is three steps behind each other, of one member and one episode; so says each of its ids."""
        batch = self.streams.sample(12, n_steps=3, within="done", short="pad")
        begins, ends = self.streams.episode_bounds(batch["id"][:, 0], "done")
        for row in range(12):
            mask = batch["mask"][row]
            ids = batch["id"][row][mask]
            steps = [
                kept[ordinal][step - kept[ordinal][0][1]] for ordinal, step in zip(ids >> 48, ids % SHIFT, strict=False)
            ]
            seen = zip(batch["who"][row][mask].tolist(), batch["n"][row][mask].tolist(), strict=False)
            assert [(who, n) for who, n, _ in steps] == list(seen)
            assert len({(who, episode) for who, _, episode in steps}) == 1
            assert (np.diff(ids) == 1).all()
            assert begins[row] <= ids[0] <= ids[-1] < ends[row]


@settings(max_examples=times(40), deadline=None)
@given(actions=st.lists(ACTIONS, max_size=25))
def test_members_come_and_go_and_ids_stay_valid(actions, tmp_path_factory):
    """Every step that is kept is read by its id; draws stay inside episodes; two readers agree on every ordinal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "TRIM_TOKENS", 1)
        patch.setattr(members_module, "LOOK_S", 0.0)
        model = Model(tmp_path_factory.mktemp("actors"))
        for i, action in enumerate(actions):
            model.act(*action)
            if i % 3 == 2:
                model.check()
        model.check()
        for store in model.stores.values():
            store.close()


# Members ------------------------------------------------------------------------------------------------------------


def test_ordinals_follow_the_order_of_first_sight_whatever_the_names(tmp_path):
    """A new actor whose name sorts first does not move the ids of the others."""
    actor(tmp_path / "b", 3, who=1).close()
    streams = StreamSet(tmp_path / "*")
    ids = streams.sample(5, n_steps=1)["id"]
    before = streams.fields_at(ids)
    actor(tmp_path / "a", 3, who=2).close()
    streams.refresh()

    assert [(member.name, member.ordinal) for member in streams.members] == [("b", 0), ("a", 1)]
    assert np.array_equal(streams.fields_at(ids)["n"], before["n"])
    assert [member.name for member in StreamSet(tmp_path / "*").members] == ["b", "a"]


def test_a_new_member_is_seen_by_reads_within_a_second(tmp_path):
    """Without a call of ``refresh``."""
    recorded(tmp_path, 3)
    streams = StreamSet(tmp_path / "*")
    actor(tmp_path / "late", 5, who=7)
    began, seen = time.monotonic(), 0

    while seen < 8 and time.monotonic() - began < 1:
        seen = len(streams)

    assert seen == 8


def test_what_members_append_is_seen_at_once(tmp_path):
    store = actor(tmp_path / "a", 3)
    streams = StreamSet(tmp_path / "*")
    record(store, 4)

    assert len(streams) == 7
    record(store, 2)
    assert streams.refresh() == 2


def test_reads_between_two_looks_list_no_directory(tmp_path, monkeypatch):
    """Looking for members is bounded, however often a learner draws."""
    recorded(tmp_path, 5, 5)
    streams, looks = StreamSet(tmp_path / "*"), []
    real = members_module.FolderPattern.names
    monkeypatch.setattr(members_module.FolderPattern, "names", lambda self: (looks.append(1), real(self))[1])
    began = time.monotonic()

    for _ in range(50):
        streams.sample(2, n_steps=1)

    assert len(looks) <= (time.monotonic() - began) / members_module.LOOK_S + 1


def test_a_directory_without_a_stream_is_waited_for(tmp_path):
    """Its recorder has been started, and has not made it yet."""
    recorded(tmp_path, 2)
    (tmp_path / "actor-9").mkdir()
    (tmp_path / "actor-9" / "lock").touch()
    streams = StreamSet(tmp_path / "*")

    assert streams.health().figures["waiting"] == ["actor-9"]
    assert "waiting for 1" in repr(streams)
    actor(tmp_path / "actor-9", 4).close()
    assert streams.refresh() == 4


def test_another_stream_under_a_name_is_another_member(tmp_path):
    """Ids of the old one are not ids of the new one."""
    recorded(tmp_path, 4, 4)
    streams = StreamSet(tmp_path / "*")
    shutil.rmtree(tmp_path / "actor-0")
    actor(tmp_path / "actor-0", 4, who=5).close()
    streams.refresh()

    assert [(member.name, member.ordinal) for member in streams.members] == [("actor-1", 1), ("actor-0", 2)]
    with pytest.raises(IndexError, match="member 0 of this StreamSet has left"):
        streams.fields_at([0])
    assert streams.fields_at([2 * SHIFT])["who"].tolist() == [5]


def test_a_directory_that_is_renamed_is_the_same_member(tmp_path):
    recorded(tmp_path, 4, 4)
    streams = StreamSet(tmp_path / "*")
    (tmp_path / "actor-0").rename(tmp_path / "renamed")
    streams.refresh()

    assert {member.name: member.ordinal for member in streams.members} == {"renamed": 0, "actor-1": 1}


def test_an_id_that_was_never_given_out_is_refused(tmp_path):
    recorded(tmp_path, 4)
    streams = StreamSet(tmp_path / "*")

    with pytest.raises(IndexError, match=r"of member 3, and this StreamSet has 1; refresh"):
        streams.fields_at([3 * SHIFT])
    with pytest.raises(IndexError, match="step number 4") as caught:
        streams.fields_at([4])
    assert caught.value.__notes__ == ["in member 'actor-0' of a StreamSet, ordinal 0"]


def test_a_corrupt_member_is_an_error_that_names_it(tmp_path):
    """Also for ``health``, which raises nothing."""
    paths = recorded(tmp_path, 4, 4)
    streams = StreamSet(tmp_path / "*")
    description = paths[1] / "store.json"
    description.write_text(description.read_text().replace("n", "m", 1))

    with pytest.raises(CorruptDataError) as caught:
        streams.refresh()
    assert "member 'actor-1' of a StreamSet; repair it as the error says, or move" in caught.value.__notes__[0]
    [problem] = StreamSetHealth.problems(streams)
    assert "store.json" in problem.what
    assert "actor-1" in problem.action


class StreamSetHealth:
    """What ``health`` says after a look."""

    @staticmethod
    def problems(streams: StreamSet) -> Any:
        time.sleep(members_module.LOOK_S)
        return streams.health().problems


def test_members_with_other_fields_are_refused(tmp_path):
    """The message names both."""
    actor(tmp_path / "a", 1).close()
    StreamStore(tmp_path / "b", {"who": "int64", "n": "float32", "done": "bool"}).close()

    with pytest.raises(SchemaError, match=r"member 'b' .* n: float32, .* member 'a' .* n: int64"):
        StreamSet(tmp_path / "*")


def test_a_copy_of_a_member_is_refused(tmp_path):
    recorded(tmp_path, 2)
    shutil.copytree(tmp_path / "actor-0", tmp_path / "copy")

    with pytest.raises(ConfigError, match=r"'actor-0' and 'copy' are the same stream"):
        StreamSet(tmp_path / "*")


def test_a_pattern_needs_a_wildcard_and_a_directory(tmp_path):
    with pytest.raises(ConfigError, match="no wildcard in it"):
        StreamSet(tmp_path / "actors")
    with pytest.raises(ConfigError, match="no such directory; make it before the recorders start"):
        StreamSet(tmp_path / "missing" / "*")


def test_a_wildcard_above_the_last_folder_keeps_the_record_above_it(tmp_path):
    for run in ("run-1", "run-2"):
        actor(tmp_path / run / "actor-0", 2).close()
    streams = StreamSet(tmp_path / "run-*" / "actor-*")

    assert [member.name for member in streams.members] == ["run-1/actor-0", "run-2/actor-0"]
    assert (tmp_path / "members.jsonl").exists()


def test_a_read_only_folder_is_read_where_all_members_are_recorded(tmp_path):
    """A member that is new there needs a record elsewhere, and the error says so."""
    folder = tmp_path / "actors"
    recorded(folder, 3)
    StreamSet(folder / "*").close()

    def story() -> None:
        assert held(StreamSet(folder / "*")) == {"actor-0": [(0, 0), (0, 1), (0, 2)]}

    def story_with_a_new_member() -> None:
        with pytest.raises(ConfigError, match=r"members.jsonl: .* pass record= with a path"):
            StreamSet(folder / "*")
        assert len(StreamSet(folder / "*", record=tmp_path / "members.jsonl")) == 5

    statuses = [in_child(read_only_story(folder, story))]
    actor(folder / "new", 2).close()
    statuses.append(in_child(read_only_story(folder, story_with_a_new_member)))

    if 77 in statuses:
        pytest.skip("this machine mounts nothing")
    assert statuses == [0, 0]


# Lists --------------------------------------------------------------------------------------------------------------


def test_a_list_of_streams_and_paths_is_numbered_in_its_order(tmp_path):
    """A path without a stream keeps its place."""
    [path] = recorded(tmp_path, 3)
    own = actor(None, 2, who=4)
    streams = StreamSet([path, tmp_path / "late", own])

    assert [member.ordinal for member in streams.members] == [0, 2]
    actor(tmp_path / "late", 1).close()
    streams.refresh()
    assert [member.ordinal for member in streams.members] == [0, 1, 2]
    assert streams.fields_at([2 * SHIFT + 1])["who"].tolist() == [4]
    assert streams.add(actor(None, 5)) == 3


def test_a_listed_stream_that_is_deleted_has_left(tmp_path):
    """Its place in the list is not given to another one."""
    paths = recorded(tmp_path, 3, 2)
    streams = StreamSet(paths)
    shutil.rmtree(paths[0])
    streams.refresh()
    assert [member.ordinal for member in streams.members] == [1]
    actor(paths[0], 1, who=5).close()
    streams.refresh()

    assert [(member.ordinal, member.n_steps) for member in streams.members] == [(1, 2), (2, 1)]


def test_a_list_can_have_a_record(tmp_path):
    """Then another order of the list has the same ids."""
    one, two = recorded(tmp_path / "actors", 3, 3)
    record_path = tmp_path / "members.jsonl"
    first, second = StreamSet([one, two], record=record_path), StreamSet([two, one], record=record_path)

    assert [(m.uuid, m.ordinal) for m in first.members] == [(m.uuid, m.ordinal) for m in second.members]
    assert first.uuid == second.uuid


def test_a_stream_is_given_once():
    store = actor(None, 1)

    with pytest.raises(ConfigError, match="are the same stream"):
        StreamSet([store, store])
    with pytest.raises(ConfigError, match="7 is no stream"):
        StreamSet([7])  # type: ignore[list-item]


def test_a_closed_set_closes_what_it_opened(tmp_path):
    """And nothing else."""
    [path] = recorded(tmp_path, 3)
    own = actor(None, 2)
    with StreamSet([path, own]) as streams:
        opened = streams.members[0].store

    assert own.n_steps == 2
    with pytest.raises(ConfigError, match="closed"):
        opened.sample(1, n_steps=1)
    with pytest.raises(ConfigError, match="this StreamSet is closed"):
        streams.refresh()


def test_a_set_can_be_pickled(tmp_path):
    """As for a loader's worker processes: it looks for the same members there."""
    recorded(tmp_path, 3, 2)
    streams = StreamSet(tmp_path / "*", seed=4)

    again = pickle.loads(pickle.dumps(streams))

    assert held(again) == held(streams)
    assert again.uuid == streams.uuid


def test_members_that_left_give_their_files_back(tmp_path):
    """A learner that runs for weeks sees thousands of actors."""
    streams = StreamSet(tmp_path / "*") if recorded(tmp_path, 1) else None
    assert streams is not None
    n_files = len(os.listdir("/proc/self/fd"))
    for k in range(5):
        actor(tmp_path / f"short-{k}", 2).close()
        streams.refresh()
        streams.sample(1, n_steps=1)
        shutil.rmtree(tmp_path / f"short-{k}")
        streams.refresh()
    gc.collect()

    assert len(os.listdir("/proc/self/fd")) == n_files


# Draws --------------------------------------------------------------------------------------------------------------

N = 20_000


def frequencies(streams: StreamSet, n_steps: int = 1, **how: Any) -> Counter[int]:
    return Counter(streams.sample(N, n_steps=n_steps, rng=np.random.default_rng(5), **how)["id"][:, 0].tolist())


def fits(seen: Counter[int], expected: dict[int, float]) -> bool:
    """Whether the frequencies could come from these shares."""
    assert set(seen) <= {id_ for id_, share in expected.items() if share > 0}
    ids = [id_ for id_, share in expected.items() if share > 0]
    total = sum(expected.values())
    result = stats.chisquare([seen[id_] for id_ in ids], [expected[id_] / total * N for id_ in ids])
    return bool(result.pvalue > 1e-4)


@pytest.fixture
def three(tmp_path):
    """Members of 20, 5 and 0 steps."""
    recorded(tmp_path, 20, 5, 0)
    return StreamSet(tmp_path / "*")


def test_a_uniform_draw_gives_every_step_of_all_members_the_same_chance(three):
    assert fits(frequencies(three), {**dict.fromkeys(range(20), 1), **dict.fromkeys(range(SHIFT, SHIFT + 5), 1)})


def test_a_uniform_draw_counts_sequences_not_steps(tmp_path):
    """A member of short episodes has fewer of them."""
    recorded(tmp_path, 8, 8, ends=4)
    record(StreamStore.open(tmp_path / "actor-1", mode="a"), 4, who=1, ends=2)
    streams = StreamSet(tmp_path / "*")
    whole = [0, 1, 4, 5]

    seen = frequencies(streams, 3, within="done")

    assert fits(seen, dict.fromkeys([*whole, *(SHIFT + n for n in whole)], 1))


def test_recency_halves_the_chance_with_each_half_life(three):
    """Of each member on its own; one with few steps has little to give."""
    expected = {n: 0.5 ** ((19 - n) / 3) for n in range(20)}
    expected |= {SHIFT + n: 0.5 ** ((4 - n) / 3) for n in range(5)}

    assert fits(frequencies(three, by="recency", half_life=3), expected)


def test_weights_share_the_draw_among_members(three):
    """A share of a member without steps goes to the others."""
    expected = {**dict.fromkeys(range(20), 1 / 20), **dict.fromkeys(range(SHIFT, SHIFT + 5), 3 / 5)}

    assert fits(frequencies(three, by={"actor-0": 1, "actor-1": 3, "actor-2": 9, "unborn": 1}), expected)
    assert fits(frequencies(three, by=lambda members: [1, 3, 9]), expected)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("newest", "'uniform', 'recency', a dict"),
        ({"actor-0": 1, "actor-1": 1}, "no weight for member 'actor-2'"),
        ({"actor-0": -1, "actor-1": 1, "actor-2": 1}, "finite weights of 0 or more"),
        (lambda members: [1.0], "3 finite weights"),
        ({"actor-0": 0, "actor-1": 0, "actor-2": 1}, "no member with a weight above 0"),
        (7, "by=7"),
    ],
)
def test_weights_that_make_no_sense_are_refused(three, by, message):
    with pytest.raises(ConfigError, match=message):
        three.sample(3, n_steps=1, by=by)


def test_a_half_life_is_above_zero(three):
    with pytest.raises(ConfigError, match="half_life=0"):
        three.sample(3, n_steps=1, by="recency", half_life=0)


def test_windows_are_drawn_and_read_by_position(three):
    """The same windows again, by their ids."""
    batch = three.sample(6, 4, rng=np.random.default_rng(1))
    again = three.windows(batch["id"], 4)

    assert np.array_equal(batch["values"], again["values"])
    assert np.array_equal(batch["types"], again["types"])


def test_sequences_are_read_again_by_id(three):
    batch = three.sample(6, n_steps=3, rng=np.random.default_rng(1))
    again = three.sequences_at(batch["id"][:, 0], 3)

    assert all(np.array_equal(batch[name], again[name]) for name in batch)


def test_padded_places_have_no_id(tmp_path):
    """In a member whose ordinal is not 0, too."""
    recorded(tmp_path, 2, 2)
    batch = StreamSet(tmp_path / "*").sample(20, n_steps=3, short="pad", rng=np.random.default_rng(1))

    assert (batch["id"][~batch["mask"]] == -1).all()
    assert set((batch["id"][batch["mask"]] >> 48).tolist()) == {0, 1}


def test_nothing_to_draw_is_an_error_that_says_so(tmp_path):
    streams = StreamSet(tmp_path / "*")

    with pytest.raises(ConfigError, match="nothing to draw in any member"):
        streams.sample(1, n_steps=1)
    with pytest.raises(ConfigError, match="no member whose fields could be read"):
        streams.fields_at([])
    with pytest.raises(ConfigError, match=r"width=, in tokens, or n_steps="):
        streams.sample(1)


def test_ragged_fields_are_padded_to_the_longest_of_all_members(tmp_path):
    for k, size in enumerate((2, 3)):
        with StreamStore(tmp_path / f"actor-{k}", {"x": ("int64", (None,))}) as store:
            store.append(0, {"x": [k + 1] * size})

    batch = StreamSet(tmp_path / "*").fields_at([SHIFT, 0])

    assert batch["x"].tolist() == [[2, 2, 2], [1, 1, 0]]
    assert batch["lengths"]["x"].tolist() == [3, 2]


def test_transitions_come_from_all_members_and_can_be_read_again(tmp_path):
    """With nested observations and as tensors; the newest step of each member is none yet."""
    fields = {"obs": {"x": "float32"}, "action": "int64", "reward": "float32", "terminated": "bool"}
    for k in range(3):
        with StreamStore(tmp_path / f"actor-{k}", {**fields, "next_obs": {"x": "float32"}}) as store:
            for step in range(4):
                data = {"obs": {"x": 10 * k + step}, "action": k, "reward": step, "terminated": step == 3}
                store.append(step, {**data, "next_obs": {"x": 10 * k + step + 1}})
    streams = StreamSet(tmp_path / "*")
    batch = streams.transitions(64, rng=np.random.default_rng(2))

    assert set((batch["id"] >> 48).tolist()) == {0, 1, 2}
    assert (batch["obs"]["x"] == 10 * (batch["id"] >> 48) + batch["id"] % SHIFT).all()
    assert (batch["next_obs"]["x"] - batch["obs"]["x"] == 1).all()
    again = streams.transitions_at(batch["id"], output="torch")
    assert np.array_equal(again["obs"]["x"].numpy(), batch["obs"]["x"])
    assert again["id"].tolist() == batch["id"].tolist()


def test_ids_of_any_shape_keep_it(three):
    ids = np.array([[0, SHIFT + 1], [2, 3]])

    assert three.fields_at(ids, ["n"])["n"].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(IndexError, match="whole numbers"):
        three.fields_at([0.5])


def test_the_order_of_a_draw_says_nothing_about_members(three):
    """Places of a batch are independent of each other, as in a draw from one stream."""
    owners = three.sample(2_000, n_steps=1, rng=np.random.default_rng(3))["id"][:, 0] >> 48
    shuffled = list(owners)
    random.Random(0).shuffle(shuffled)

    assert (
        abs(int(np.count_nonzero(np.diff(owners))) - int(np.count_nonzero(np.diff(np.array(shuffled, np.int64))))) < 150
    )
