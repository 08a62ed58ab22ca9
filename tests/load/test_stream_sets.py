"""A StreamSet as a Loader's dataset: each step or window once, while members come, grow, are trimmed and go."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import Loader, StreamSet, StreamStore, verify_resume
from poolish.errors import ConfigError, ResumeError
from poolish.load import CompositeDataset, FilteredDataset, TransformedDataset, order
from poolish.load.frozen import snapshot_rows
from poolish.tokens import members as members_module
from tests.effort import times
from tests.load.loaders import ids, load, ranks, saved, step, whole
from tests.tokens.actors import SHIFT, actor, record, recorded


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Whether something was synced makes no difference here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def always_looking(monkeypatch):
    """What members there are does not depend on how fast the test runs."""
    monkeypatch.setattr(members_module, "LOOK_S", 0.0)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 4)


def all_ids(dataset: Any) -> list[int]:
    return [id_ for first, end in snapshot_rows(dataset).spans() for id_ in range(first, end)]


SOURCES: dict[str, Any] = {
    "steps": lambda streams: streams,
    "windows": lambda streams: streams.as_dataset(6),
    "windows within episodes": lambda streams: streams.as_dataset(3, within="done"),
    "transformed windows": lambda streams: TransformedDataset(streams.as_dataset(6), dict),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_row_of_all_members_comes_once_with_its_own_values(tmp_path, small_blocks, source):
    """Steps and windows are those that the set reads by the same ids."""
    recorded(tmp_path, 9, 0, 14, ends=4)
    streams = StreamSet(tmp_path / "*")
    dataset = SOURCES[source](streams)
    loader, seen = load(dataset, 3, shuffle=True), []
    for batch in loader:
        seen += batch.ids.tolist()
        if source == "steps":
            assert np.array_equal(np.asarray(batch["n"]), batch.ids % SHIFT)
            assert np.array_equal(np.asarray(batch["who"]), batch.ids >> 48)
        elif source == "windows":
            starts = (batch.ids & ~(SHIFT - 1)) | (batch.ids % SHIFT * 6)
            assert np.array_equal(np.asarray(batch["values"]), streams.windows(starts, 6)["values"])

    assert sorted(seen) == all_ids(dataset)
    assert len(dataset) == len(seen)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_stopping_at_every_step_loses_and_repeats_nothing_while_members_come(
    tmp_path, small_blocks, source, world_size
):
    """Each stop resumes at another number of ranks; between stops an actor begins and another one goes on."""
    recorded(tmp_path / "actors", 9, 5, ends=4)
    stores = [StreamStore.open(tmp_path / "actors" / "actor-0", mode="a")]
    dataset, options = SOURCES[source](StreamSet(tmp_path / "actors" / "*")), {"shuffle": True, "follow": True}
    options["journal"] = tmp_path / "journal"
    loaders, seen, state = ranks(world_size, dataset, 2, **options), [], None
    for k in range(200):
        if state is not None:
            fresh = SOURCES[source](StreamSet(tmp_path / "actors" / "*"))
            loaders = ranks(1 + (world_size + k) % 3, fresh, 2, state=state, **options)
        batches = step(loaders)
        if batches is None:
            break
        seen += ids(batches)
        if k < 4:
            record(stores[0], 4, who=0, ends=4)
            stores.append(actor(tmp_path / "actors" / f"late-{k}", 5, who=10 + k, ends=4))
        state = saved(loaders[0])

    assert sorted(seen) == all_ids(dataset)
    for store in stores:
        store.close()


def test_ranks_with_a_set_each_agree_by_a_journal(tmp_path, small_blocks):
    """As in several processes: each looks for itself, and a member may be new to one of them."""
    recorded(tmp_path / "actors", 9, 5)
    options = {"shuffle": True, "follow": True, "world_size": 2, "journal": tmp_path / "journal"}
    loaders = [load(StreamSet(tmp_path / "actors" / "*"), 2, rank=rank, **options) for rank in range(2)]
    iterators, seen = [iter(loader) for loader in loaders], []
    for k in range(100):
        batches = []
        for rank in range(2):
            batches.append(next(iterators[rank], None))
            if k < 3 and rank == 0:
                actor(tmp_path / "actors" / f"late-{k}", 6).close()
        assert len({batch is None for batch in batches}) == 1
        if batches[0] is None:
            break
        seen += ids(batches)

    assert sorted(seen) == all_ids(StreamSet(tmp_path / "actors" / "*"))


def test_a_rank_waits_for_a_member_that_another_rank_has_seen(tmp_path, small_blocks, monkeypatch):
    """It has not looked since; the member has not left."""
    monkeypatch.setattr(members_module, "LOOK_S", 0.3)
    recorded(tmp_path / "actors", 2)
    sets = [StreamSet(tmp_path / "actors" / "*") for _ in range(2)]
    options = {"shuffle": True, "follow": True, "world_size": 2, "journal": tmp_path / "journal"}
    loaders = [load(streams, 2, rank=rank, **options) for rank, streams in enumerate(sets)]
    seen = ids(step(loaders))
    actor(tmp_path / "actors" / "late", 6).close()
    for streams in sets:
        streams.refresh()
    actor(tmp_path / "actors" / "later", 6).close()
    sets[0].refresh()
    seen += whole(loaders)

    assert sorted(seen) == all_ids(sets[0])
    assert [loader.n_skipped for loader in loaders] == [0, 0]


CHANGES = st.one_of(
    st.tuples(st.just("come"), st.integers(0, 9)),
    st.tuples(st.just("grow"), st.integers(0, 5), st.integers(1, 9)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("resume"), st.integers(1, 3)),
    st.just(("step",)),
)


@settings(max_examples=times(15), deadline=None)
@given(actions=st.lists(CHANGES, max_size=25))
def test_whatever_members_do_each_row_comes_once(actions, tmp_path_factory):
    """A model with real streams: what is left of a member that is deleted may be missing, nothing else."""
    folder = tmp_path_factory.mktemp("actors")
    options: dict[str, Any] = {"shuffle": True, "follow": True, "journal": tmp_path_factory.mktemp("journal")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "BLOCK_ROWS", 4)
        stores, n_made = {"actor 0": actor(folder / "actor 0", 5)}, 1
        loaders = ranks(1, StreamSet(folder / "*"), 2, **options)
        seen: list[int] = []
        gone: set[int] = set()
        is_over = False
        for what, *more in [*actions, *[("step",)] * 200]:
            if is_over:
                break
            if what == "step":
                batches = step(loaders)
                is_over = batches is None
                seen += ids(batches or [])
            elif what == "come":
                stores[f"actor {n_made}"] = actor(folder / f"actor {n_made}", more[0])
                n_made += 1
            elif what == "resume":
                state = saved(loaders[0])
                loaders = ranks(more[0], StreamSet(folder / "*"), 2, state=state, **options)
            elif stores:
                name = sorted(stores)[more[0] % len(stores)]
                if what == "grow":
                    record(stores[name], more[1])
                else:
                    [ordinal] = [m.ordinal for m in StreamSet(folder / "*").members if m.name == name]
                    gone |= {ordinal * SHIFT + n for n in range(stores[name].n_steps)}
                    stores.pop(name).close()
                    shutil.rmtree(folder / name)
        there = set(all_ids(StreamSet(folder / "*")))

        assert len(seen) == len(set(seen))
        assert there <= set(seen) <= there | gone
        for store in stores.values():
            store.close()


def test_steps_that_were_trimmed_are_skipped_and_counted(tmp_path, small_blocks, monkeypatch):
    """In a member that is not the first."""
    monkeypatch.setattr("poolish.tokens.writer.TRIM_TOKENS", 1)
    recorded(tmp_path, 4)
    bounded = actor(tmp_path / "bounded", 10, max_tokens=30)
    loader = load(StreamSet(tmp_path / "*"), 2, shuffle=True)
    batches = iter(loader)
    seen = ids([next(batches)])
    record(bounded, 6)
    seen += ids(batches)

    assert loader.n_skipped + len(seen) == 14
    assert loader.n_skipped > 0
    assert len(seen) == len(set(seen))


def test_resuming_is_exact(tmp_path):
    recorded(tmp_path, 11, 6)
    windows = StreamSet(tmp_path / "*").as_dataset(4)
    report = verify_resume(Loader(windows, 3, shuffle=True, follow=True, output="numpy"), workers=(0, 2))

    assert report, str(report)


def test_a_state_with_100_members_is_small(tmp_path):
    """All of them growing, half dealt out, with the branch of each."""
    stores = [actor(tmp_path / f"actor-{k:03}") for k in range(100)]
    for k, store in enumerate(stores):
        n = 1_003 + 37 * k
        columns = {"who": np.full(n, k), "n": np.arange(n), "done": np.zeros(n, bool)}
        store.append_many(np.arange(n), columns)
    loader = load(StreamSet(tmp_path / "*"), 300, shuffle=True, follow=True)
    longest = 0
    for k, _ in zip(range(12), loader, strict=False):
        longest = max(longest, len(json.dumps(loader.state_dict())))
        record(stores[k], 5, who=k)

    assert longest < 4_000
    for store in stores:
        store.close()


def test_a_loader_made_before_the_first_actor_waits_for_no_other_set(tmp_path):
    """The set has its identity before it has members."""
    streams = StreamSet(tmp_path / "*")
    loader = load(streams, 2, shuffle=True, follow=True)
    state = saved(loader)
    actor(tmp_path / "first", 3).close()
    resumed = load(StreamSet(tmp_path / "*"), 2, shuffle=True, follow=True)
    resumed.load_state_dict(state)

    assert sorted(ids(resumed)) == [0, 1, 2]


def test_a_state_of_a_copy_is_refused_and_names_the_reason(tmp_path):
    """One member was copied with the folder, and both copies were appended to."""
    recorded(tmp_path / "one", 6, 6)
    StreamSet(tmp_path / "one" / "*").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for folder, who in (("one", 3), ("two", 4)):
        with StreamStore.open(tmp_path / folder / "actor-1", mode="a") as store:
            record(store, 6, who=who)
    loader = load(StreamSet(tmp_path / "one" / "*"), 2, shuffle=True)
    next(iter(loader))
    state = saved(loader)

    with pytest.raises(ResumeError, match="another copy of this stream"):
        load(StreamSet(tmp_path / "two" / "*"), 2, shuffle=True).load_state_dict(state)
    load(StreamSet(tmp_path / "one" / "*"), 2, shuffle=True).load_state_dict(state)


def test_a_state_of_a_list_in_another_order_is_refused(tmp_path):
    """Its ordinals follow the list; with ``record=`` they do not."""
    one, two = recorded(tmp_path / "actors", 6, 6)
    state = saved(load(StreamSet([one, two]), 2))
    with pytest.raises(ResumeError):
        load(StreamSet([two, one]), 2).load_state_dict(state)

    state = saved(load(StreamSet([one, two], record=tmp_path / "members.jsonl"), 2))
    load(StreamSet([two, one], record=tmp_path / "members.jsonl"), 2).load_state_dict(state)


def test_a_state_whose_branches_were_changed_is_refused(tmp_path):
    recorded(tmp_path, 6)
    rows = snapshot_rows(StreamSet(tmp_path / "*"))

    with pytest.raises(ResumeError, match="branches of members make no sense"):
        rows.has_branch("nonsense")  # type: ignore[attr-defined]


def test_numbers_run_through_the_windows_that_are_kept(tmp_path, monkeypatch):
    """For torch's DataLoader and for views, which ask by number."""
    monkeypatch.setattr("poolish.tokens.writer.TRIM_TOKENS", 1)
    actor(tmp_path / "a", 20, max_tokens=30).close()
    actor(tmp_path / "b", 4, who=1).close()
    windows = StreamSet(tmp_path / "*").as_dataset(3)
    by_number = [int(window["values"][1]) for window in windows]

    assert len(windows) == len(by_number) == len(all_ids(windows))
    assert by_number[-4:] == [0, 1, 2, 3]
    assert int(windows[-1]["values"][1]) == 3
    with pytest.raises(IndexError, match=f"window {len(windows)} of {len(windows)}"):
        windows[len(windows)]


def test_views_that_need_fixed_places_refuse_a_set(tmp_path):
    recorded(tmp_path, 4)
    streams = StreamSet(tmp_path / "*")

    with pytest.raises(ConfigError, match=r"pass its windows, \.as_dataset"):
        FilteredDataset(streams, bool)
    with pytest.raises(ConfigError, match="members may come and go"):
        len(snapshot_rows(CompositeDataset([streams.as_dataset(3), [1]])))


def test_streams_in_memory_are_loaded_by_one_process(tmp_path: Path):
    """Nothing is shared, so nothing has to be agreed upon."""
    streams = StreamSet([actor(None, 5), actor(None, 3, who=1)])
    loaders = ranks(2, streams, 2, shuffle=True, follow=True)

    assert sorted(whole(loaders)) == all_ids(streams)
