"""Members that come, grow, finish and go within an epoch: nothing lost, nothing twice, small states."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish.errors import ConfigError, ResumeError
from poolish.load import CompositeDataset, TransformedDataset, order
from poolish.load.frozen import SHARED, snapshot_rows
from poolish.load.order import NOTHING, ObservedBounds, Order, runs_of
from tests.effort import times
from tests.load.loaders import ids, load, ranks, saved, step, whole
from tests.load.members import SHIFT, Lagging, MemberSet


def members(*sizes: int, **options: str) -> MemberSet:
    made = MemberSet(**options)
    for n in sizes:
        made.add(n)
    return made


@pytest.fixture(params=[4, 1024], ids=["small blocks", "real blocks"])
def block_rows(request, monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", request.param)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 4)


# A model: a dict of lists -------------------------------------------------------------------------------------------

CHANGES = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 12)),
    st.tuples(st.just("grow"), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
)
ACTIONS = st.one_of(
    CHANGES,
    st.tuples(st.just("resume"), st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.just("step"), st.lists(CHANGES, max_size=2)),
    st.just(("step",)),
)


class Model:
    """A run, and a plain dict of what each member must still give."""

    def __init__(self, folder: Any, *, shuffle: bool, viewed: bool) -> None:
        self.source = MemberSet(SHARED if folder is not None else "local")
        self.options = {"shuffle": shuffle, "follow": True, "seed": 3, "journal": folder}
        self.viewed = viewed
        self.seen: list[int] = []
        self.n_skipped = 0
        self.gone: set[int] = set()
        self.late: set[int] = set()
        self.loaders: list[Any] = []
        self.resume(1, 2)

    def dataset(self) -> Any:
        return TransformedDataset(self.source, dict) if self.viewed else self.source

    def resume(self, world_size: int, batch_size: int) -> None:
        state = saved(self.loaders[-1]) if self.loaders else None
        self.n_skipped += sum(loader.n_skipped for loader in self.loaders)
        self.loaders = [
            load(self.dataset(), batch_size, rank=rank, world_size=world_size, **self.options)
            for rank in range(world_size)
        ]
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(state)

    def step(self, between: Any = ()) -> bool:
        """One step of all ranks; between two of them something else may happen."""
        batches, between, before = [], list(between), self.there()
        for loader in self.loaders:
            batches.append(next(iter(loader), None))
            if between:
                self.act(*between.pop())
        assert len({batch is None for batch in batches}) == 1, "some ranks have a batch more than others"
        if batches[0] is None:
            self.late = self.there() - before  # the end was decided by then
            return False
        for batch in batches:
            assert not len(batch.ids) or batch["n"].tolist() == batch.ids.tolist()
        self.seen += ids(batches)
        return True

    def act(self, what: str, *numbers: Any) -> bool:
        """Do it; whether the epoch goes on."""
        if what == "step":
            return self.step(*numbers)
        if what == "resume":
            self.resume(*numbers)
        elif what == "add":
            self.source.add(numbers[0])
        elif self.source.lists:
            name = list(self.source.lists)[numbers[0] % len(self.source.lists)]
            if what == "grow" and name not in self.source.finished:
                self.source.grow(name, numbers[1])
            elif what == "finish":
                self.source.finish(name)
            elif what == "leave":
                self.gone |= set(self.source.lists[name])
                self.source.leave(name)
        return True

    def there(self) -> set[int]:
        return {row for rows in self.source.lists.values() for row in rows}

    def check(self) -> None:
        self.n_skipped += sum(loader.n_skipped for loader in self.loaders)
        there = self.there()
        assert len(self.seen) == len(set(self.seen)), "a row came twice"
        assert not there - self.late - set(self.seen), "a row never came"
        assert set(self.seen) <= there | self.gone
        # What left before any block had seen it is not counted.
        assert self.n_skipped <= len(self.gone - set(self.seen))


@pytest.mark.parametrize("with_journal", [False, True], ids=["one process", "journal"])
@settings(max_examples=times(80), deadline=None)
@given(
    actions=st.lists(ACTIONS, max_size=40),
    shuffle=st.booleans(),
    viewed=st.booleans(),
    size=st.sampled_from([3, 8]),
)
def test_members_come_and_go_and_each_row_comes_once(with_journal, actions, shuffle, viewed, size, tmp_path_factory):
    """Stop, resume and change the world size anywhere; ranks of a journal look at different moments."""
    folder = tmp_path_factory.mktemp("journal") if with_journal else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "BLOCK_ROWS", size)
        model = Model(folder, shuffle=shuffle, viewed=viewed)
        model.act("add", 7)
        if all(model.act(*action) for action in actions):
            while model.step():
                pass
        model.check()


# One thing at a time ------------------------------------------------------------------------------------------------


def test_a_member_that_comes_joins_the_epoch(block_rows):
    source = members(5)
    loader = load(source, 2, shuffle=True, follow=True)
    batches = iter(loader)
    seen = ids([next(batches)])
    source.add(6)

    assert sorted(seen + ids(batches)) == [*range(5), *range(SHIFT, SHIFT + 6)]


def test_where_growth_is_not_followed_a_new_member_waits_for_the_next_epoch(small_blocks):
    source = members(9)
    loader = load(source, 2, shuffle=True)
    batches = iter(loader)
    seen = ids([next(batches)])
    source.add(6)

    assert sorted(seen + ids(batches)) == list(range(9))
    assert len(ids(iter(loader))) == 15


def test_what_is_left_of_a_member_that_leaves_is_counted(small_blocks):
    """By all ranks together, and in the audit."""
    source = members(4, 20)
    loaders = ranks(3, source, 1, follow=True)
    seen = ids([batch for _ in range(3) for batch in step(loaders)])
    source.leave("member 1")
    seen += whole(loaders)

    n_decided = sum(loader.n_skipped for loader in loaders)
    assert n_decided == 24 - len(seen)
    audit = loaders[0].audit(0, 100)
    assert sum(audit.left.values()) > 0
    assert not audit.is_clean


def test_a_member_that_is_done_does_not_come_again(small_blocks):
    """One that left and seems to be back is not dealt a second time."""
    source = members(4, 4)
    loader = load(source, 2, shuffle=False, follow=True)
    batches = iter(loader)
    seen = ids([next(batches), next(batches), next(batches)])
    rows = source.lists["member 0"]
    source.leave("member 0")
    seen += ids([next(batches)])
    source.add(2)
    seen += ids([next(batches)])
    source.lists = {"member 0": rows, **source.lists}

    assert sorted(seen + ids(batches)) == [*range(4), *range(SHIFT, SHIFT + 4), 2 * SHIFT, 2 * SHIFT + 1]


def test_a_rank_catches_up_with_a_member_that_the_decision_saw(small_blocks, tmp_path):
    """The second rank looked before the member came."""
    source = members(4, changes=SHARED)
    early = Lagging(source)
    source.add(4)
    first, second = (
        load(dataset, 2, follow=True, rank=rank, world_size=2, journal=tmp_path / "journal")
        for rank, dataset in enumerate([source, early])
    )

    assert sorted(whole([first, second])) == [*range(4), *range(SHIFT, SHIFT + 4)]


def test_a_rank_does_not_wait_for_a_member_that_has_left_since(small_blocks, tmp_path):
    """Its rows are skipped, not waited for."""
    source = members(4, 4, changes=SHARED)
    loaders = ranks(2, source, 2, follow=True, journal=tmp_path / "journal")
    first = [next(iter(loaders[0]))]
    source.leave("member 0")

    assert len(first[0].ids) == 2
    assert not len(next(iter(loaders[1])).ids)
    assert loaders[1].n_skipped == 2


def test_rows_of_fixed_parts_may_not_change_their_number():
    """Only a dataset that says how its members change may change them."""
    state = saved(load(CompositeDataset([[1, 2], [3]]), 1))

    with pytest.raises(ResumeError, match="went back in time"):
        load(CompositeDataset([[1, 2]]), 1).load_state_dict(state)


def test_a_composite_of_changing_members_is_refused():
    """Its rows would get other numbers when a member leaves."""
    with pytest.raises(ConfigError, match="members may come and go"):
        len(snapshot_rows(CompositeDataset([members(3), [1]])))


def test_a_state_of_members_that_shrank_is_refused():
    """A member that is still there has all rows that were seen."""
    source, shorter = members(5, 5, uuid="one"), members(5, 4, uuid="one")
    state = saved(load(source, 2, follow=True))

    with pytest.raises(ResumeError, match="back in time"):
        load(shorter, 2, follow=True).load_state_dict(state)


# What is remembered -------------------------------------------------------------------------------------------------


def test_finished_members_leave_the_state(small_blocks):
    """A thousand of them are one run of ordinals."""
    source = members()
    loader = load(source, 3, shuffle=True, follow=True)
    batches, sizes = iter(loader), []
    name = source.add(3)
    for _ in range(times(300)):
        source.finish(name)
        name = source.add(3)
        next(batches)
        sizes.append(len(json.dumps(loader.state_dict())))

    assert max(sizes) < 1_000
    assert max(sizes[-10:]) <= max(sizes[:50]) + 20


def test_a_state_with_100_members_is_small():
    """All of them half dealt out and growing; in the middle of blocks, too."""
    source = members(*[100_003] * 100)
    loader = load(source, 300, shuffle=True, follow=True)
    longest = 0
    for k, _ in enumerate(islice(loader, 30)):
        longest = max(longest, len(json.dumps(loader.state_dict())))
        source.grow(f"member {k}", 5)

    assert longest < 4_000


def test_the_state_has_the_same_structure_wherever_it_is_taken(small_blocks):
    source = members(5)
    loader = load(source, 2, follow=True)
    shapes = set()
    for k, _ in enumerate(loader):
        state = saved(loader)
        shapes.add((tuple(state), tuple(state["order"])))
        if k < 3:
            source.finish(source.add(2))

    assert len(shapes) == 1


def test_what_was_seen_comes_back_from_json():
    """Members and the number of rows included; 0.1.0 wrote neither."""
    seen = ObservedBounds(((0, 4), (SHIFT, SHIFT + 2)), b"\x01", False, (1, 2), 6)
    value = json.loads(json.dumps(seen.to_json()))

    assert ObservedBounds.from_json(value) == seen
    old = {name: value[name] for name in ("spans", "dead", "end")}
    assert ObservedBounds.from_json(old) == seen._replace(finished=(), n_rows=None)


@given(st.sets(st.integers(0, 60)))
def test_runs_of_ordinals_are_those_ordinals(ordinals):
    edges = runs_of(ordinals)

    assert {k for a, b in zip(edges[::2], edges[1::2], strict=True) for k in range(a, b)} == ordinals
    assert list(edges) == sorted(set(edges))


def test_parts_with_members_that_are_done_come_back_from_their_text():
    source = members(3, 2000)
    source.finish("member 0")
    block = Order(1, 0, shuffle=False).decide(0, NOTHING, snapshot_rows(source))
    back = Order(1, 0, shuffle=False).parts_from(block.after.to_text(), block.after.ends)

    assert block.after.done == back.done == (0, 1)
    assert block.after.ends == (SHIFT + 2000,)
    assert np.array_equal(block.after.cursors, back.cursors)


# The epoch in the state -----------------------------------------------------------------------------------------------


def test_a_state_knows_where_its_epoch_begins_and_ends(small_blocks):
    """The total is that of the rows there when the epoch began; it is unknown where growth is followed."""
    source = members(7)
    loader = load(source, 2)
    whole([loader])
    before = saved(loader)
    next(iter(loader))
    source.add(5)
    inside = saved(loader)

    assert (before["first_step"], before["total"]) == (4, -1)
    assert (inside["first_step"], inside["total"], inside["step"]) == (4, 7, 5)
    following = load(source, 2, follow=True)
    next(iter(following))
    assert saved(following)["total"] == -1


def test_rows_that_leave_before_their_turn_are_counted_at_the_end_of_a_fixed_epoch(small_blocks):
    source = members(4, 6)
    loader = load(source, 2)
    batches = iter(loader)
    seen = ids([next(batches), next(batches)])
    source.leave("member 1")
    seen += ids(batches)

    assert (len(seen), loader.n_skipped) == (4, 6)
