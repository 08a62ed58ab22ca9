"""Random histories of a run that grows, loses rows, is killed, resumed and resized: nothing twice, nothing lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from poolish.load import CompositeDataset, Loader, order
from tests.effort import times
from tests.load.loaders import VIEWS, buffer, extend, ranks, rows, saved, step, stream


@dataclass
class History:
    """One training run, and what it has seen."""

    seed: int
    chance: random.Random = field(init=False)
    source: Any = field(init=False)
    loaders: list[Loader] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    n_skipped: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.source = self._source()
        self.batch_size, self.shuffle = self.chance.randint(1, 6), self.chance.random() < 0.7
        self.resume(None)

    def _source(self) -> Any:
        n, kind = self.chance.randint(0, 30), self.chance.choice(["buffer", "oldest", "random", "stream", "bounded"])
        if kind == "stream":
            return stream(n)
        if kind == "bounded":
            return stream(n, max_tokens=20)
        if kind == "buffer":
            return buffer(n)
        return buffer(n, max_size=self.chance.choice([20, 40]), drop_strategy=kind, seed=self.seed)

    def dataset(self) -> Any:
        return self.source

    def resume(self, state: Any) -> None:
        """Everything in memory is gone; as many ranks and threads as there are now go on."""
        for loader in self.loaders:
            self.n_skipped += loader.n_skipped
            loader.close()
        self.loaders = ranks(
            self.chance.choice([1, 1, 2, 3, 4]),
            self.dataset(),
            self.batch_size,
            state=state,
            shuffle=self.shuffle,
            seed=self.seed,
            follow=True,
            num_workers=self.chance.choice([0, 0, 2]),
        )

    def act(self) -> bool:
        """Something happens; whether the epoch goes on."""
        what = self.chance.random()
        if what < 0.3:
            extend(self.source, self.chance.randint(0, 9))
        elif what < 0.35 and hasattr(self.source, "retain"):
            self.source.retain(self.chance.random(), by=self.chance.choice(["latest", "oldest", "random"]))
        elif what < 0.5:
            self.resume(saved(self.chance.choice(self.loaders)))
        else:
            batches = step(self.loaders)
            if batches is None:
                return False
            for batch in batches:
                assert not len(batch.ids) or batch["n"].tolist() == batch.ids.tolist()
                self.seen += batch.ids.tolist()
        return True

    def living(self) -> set[int]:
        if hasattr(self.source, "step_span"):
            return set(range(*self.source.step_span()))
        return set(self.source.ids.tolist())

    def run(self) -> None:
        for _ in range(200):
            if not self.act():
                break
        else:  # nothing more is appended, so it ends
            while (batches := step(self.loaders)) is not None:
                self.seen += [id_ for batch in batches for id_ in batch.ids.tolist()]
        assert len(self.seen) == len(set(self.seen)), "a row came twice"
        assert not self.living() - set(self.seen), "a row never came"
        for loader in self.loaders:
            loader.close()


@pytest.mark.parametrize("size", [7, 64])
def test_no_history_loses_or_repeats_a_row(size, monkeypatch):
    """Append, evict, kill, resume from any rank's state, on other numbers of ranks and of threads."""
    monkeypatch.setattr(order, "BLOCK_ROWS", size)
    first = random.randrange(10**9)
    for seed in range(first, first + times(60)):
        try:
            History(seed).run()
        except BaseException as error:
            error.add_note(f"History({seed}) with blocks of {size}")
            raise


class FilteredHistory(History):
    """The same through a view that lets some rows through."""

    def dataset(self) -> Any:
        return VIEWS["filtered"](self.source)

    def _source(self) -> Any:
        return buffer(self.chance.randint(0, 30), max_size=self.chance.choice([None, 40]))

    def living(self) -> set[int]:
        return {id_ for id_ in super().living() if id_ % 3 != 1}


def test_no_history_of_a_filtered_buffer_loses_or_repeats_a_row(monkeypatch):
    """Rows that the predicate refuses never come; all others do, once."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 7)
    first = random.randrange(10**9)
    for seed in range(first, first + times(20)):
        try:
            history = FilteredHistory(seed)
            history.run()
            assert not any(id_ % 3 == 1 for id_ in history.seen)
        except BaseException as error:
            error.add_note(f"FilteredHistory({seed})")
            raise


def test_parts_of_a_composite_grow_each_on_its_own(monkeypatch):
    """Two buffers and a list as one dataset, each appended to in turn, on changing world sizes."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 7)
    for seed in range(times(20)):
        chance = random.Random(seed)
        left, right, fixed = buffer(chance.randint(0, 9)), buffer(chance.randint(0, 9)), rows(500, 505)
        state, seen, loaders = None, [], []
        for _ in range(12):
            world_size = chance.randint(1, 3)
            loaders = ranks(
                world_size, CompositeDataset([left, fixed, right]), 2, shuffle=True, follow=True, state=state
            )
            for batches in islice(iter(lambda: step(loaders), None), chance.randint(0, 3)):  # noqa: B023
                seen += [row for batch in batches for row in rows_of(batch)]
            if loaders[0].epoch:
                break
            extend(chance.choice([left, right]), chance.randint(0, 5))
            state = saved(loaders[-1])
        while loaders[0].epoch == 0 and (batches := step(loaders)) is not None:
            seen += [row for batch in batches for row in rows_of(batch)]

        assert len(set(seen)) == len(seen), seed
        assert sorted(n for _, n in seen) == sorted([*range(len(left)), *range(500, 505), *range(len(right))]), seed


def rows_of(batch: Any) -> list[tuple[int, int]]:
    """Id and value of each row."""
    return list(zip(batch.ids.tolist(), batch["n"].tolist(), strict=True)) if len(batch.ids) else []


# Acknowledged batches ---------------------------------------------------------------------------------------------


def test_state_is_the_contiguous_frontier_of_what_was_trained():
    """Batches marked out of order wait for those before them; an unmarked one comes again, and all behind it."""
    source = buffer(20)
    loader = ranks(1, source, 2, acknowledge="explicit")[0]
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(6)]
    frontiers = [loader.state_dict()["position"]]
    for k in (2, 0, 1, 5, 3):
        loader.mark_trained(batches[k])
        frontiers.append(loader.state_dict()["position"])

    assert frontiers == [0, 0, 2, 6, 6, 8]
    resumed = ranks(1, source, 2, acknowledge="explicit", state=saved(loader))[0]
    assert [batch.ids.tolist() for batch in resumed] == [[i, i + 1] for i in range(8, 20, 2)]


def test_an_epoch_is_over_when_its_last_batch_is_trained():
    """After StopIteration the state is still inside the epoch until then; afterwards it is the next epoch's."""
    source = buffer(4)
    loader = ranks(1, source, 2, acknowledge="explicit")[0]
    first, last = list(loader)

    loader.mark_trained(first)
    inside = loader.state_dict()
    loader.mark_trained(last)
    outside = loader.state_dict()

    assert (inside["epoch"], inside["position"]) == (0, 2)
    assert (outside["epoch"], outside["position"]) == (1, 0)


def test_batches_of_two_epochs_may_be_in_flight():
    """The frontier crosses the end of an epoch like any other place."""
    source = buffer(4)
    loader = ranks(1, source, 2, acknowledge="explicit")[0]
    batches = list(loader)
    batches.append(next(iter(loader)))
    epochs = []
    for k in (2, 0, 1):
        loader.mark_trained(batches[k])
        epochs.append((loader.state_dict()["epoch"], loader.state_dict()["position"]))

    assert epochs == [(0, 0), (0, 2), (1, 2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_surviving_checkpoints_train_each_row_once(num_workers, monkeypatch):
    """Marked in any order, killed anywhere: what the surviving state counts as trained is trained exactly once."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 5)
    for seed in range(times(25)):
        chance = random.Random(seed)
        source = buffer(chance.randint(0, 25))
        state, trained, is_over = None, [], False
        options = {"shuffle": True, "follow": True, "acknowledge": "explicit", "num_workers": num_workers}
        while not is_over:
            loader = ranks(1, source, chance.randint(1, 4), state=state, **options)[0]
            iterator, flying, marked = iter(loader), [], []
            for _ in range(chance.randint(1, 12)):
                if chance.random() < 0.2 and len(source) < 60:
                    extend(source, chance.randint(0, 5))
                batch = next(iterator, None)
                if batch is None:
                    break
                flying.append(batch)
                if chance.random() < 0.7:
                    marked.append(flying.pop(chance.randrange(len(flying))))
                    loader.mark_trained(marked[-1])
            if chance.random() < 0.4:
                for batch in flying:
                    loader.mark_trained(batch)
                marked, flying = marked + flying, []
            state = saved(loader)
            # Behind the frontier nothing counts: the weights of that time are gone with the process.
            kept = [batch for batch in marked if batch.step < state["step"]]
            assert not [batch for batch in flying if batch.step < state["step"]]
            trained += [id_ for batch in kept for id_ in batch.ids.tolist()]
            is_over = state["epoch"] == 1
            loader.close()
        assert sorted(trained) == list(range(len(source))), seed
