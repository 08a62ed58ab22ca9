"""Views against plain lists: whatever is composed, numbers and ids give the rows that a list would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.errors import ConfigError, PoolishError
from poolish.load.cached import CachedDataset
from poolish.load.dataset import version_of
from poolish.load.frozen import LOCAL, SHARED, fixed_by, ids_of, snapshot_rows
from poolish.load.views.composite import CompositeDataset
from poolish.load.views.filtered import FilteredDataset
from poolish.load.views.single import AdaptedDataset, ShuffledDataset, SubsettedDataset, TransformedDataset
from tests.load.sources import Rows, buffer, is_liked, row


def numbers(dataset: Any) -> list[int]:
    return [sample["n"] for sample in dataset.__getitems__(range(len(dataset)))]


# Any composition ------------------------------------------------------------------------------------------------


@st.composite
def compositions(draw: st.DrawFn) -> tuple[Any, list[int]]:
    """A dataset under up to five views, and the list of the numbers that its rows should hold."""
    n_rows = draw(st.integers(1, 12))
    source = draw(st.sampled_from(["rows", "buffer", "whole"]))
    dataset: Any = Rows(n_rows) if source == "rows" else buffer(n_rows, holes=source == "buffer")
    model = [sample["n"] for sample in (dataset[i] for i in range(len(dataset)))]
    for _ in range(draw(st.integers(0, 5))):
        dataset, model = draw(st.sampled_from(STEPS))(draw, dataset, model)
    return dataset, model


def shift(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "n": sample["n"] + 1}


def transform(draw: st.DrawFn, dataset: Any, model: list[int]) -> tuple[Any, list[int]]:
    return TransformedDataset(dataset, shift), [n + 1 for n in model]


def keep_some(draw: st.DrawFn, dataset: Any, model: list[int]) -> tuple[Any, list[int]]:
    modulus = draw(st.integers(2, 5))
    return FilteredDataset(dataset, lambda sample: sample["n"] % modulus), [n for n in model if n % modulus]


def subset(draw: st.DrawFn, dataset: Any, model: list[int]) -> tuple[Any, list[int]]:
    chosen = draw(st.lists(st.integers(-len(model), len(model) - 1), max_size=12)) if model else []
    return SubsettedDataset(dataset, chosen), [model[i] for i in chosen]


def shuffle(draw: st.DrawFn, dataset: Any, model: list[int]) -> tuple[Any, list[int]]:
    shuffled = ShuffledDataset(dataset, seed=draw(st.integers(0, 9)))
    order = shuffled._order(len(model))[:].tolist()
    assert sorted(order) == list(range(len(model)))
    return shuffled, [model[i] for i in order]


def join(draw: st.DrawFn, dataset: Any, model: list[int]) -> tuple[Any, list[int]]:
    others = [Rows(draw(st.integers(0, 4))), buffer(3)]
    n_before = draw(st.integers(0, 2))
    parts = [*others[:n_before], dataset, *others[n_before:]]
    models = [[sample["n"] for sample in part] if part is others[0] else numbers(part) for part in others]
    return CompositeDataset(parts), [n for part in (*models[:n_before], model, *models[n_before:]) for n in part]


def cache(draw: st.DrawFn, dataset: Any, model: list[int]) -> tuple[Any, list[int]]:
    return CachedDataset(dataset, draw(st.sampled_from(["lru", "lfu", "fifo"])), draw(st.integers(1, 5))), model


STEPS = [transform, keep_some, subset, shuffle, join, cache]


@given(compositions(), st.data())
def test_any_composition_is_the_list(composed: tuple[Any, list[int]], data: st.DataObject):
    """By number, in batches, by id, in any order."""
    dataset, model = composed
    assert len(dataset) == len(model)
    wanted = data.draw(st.lists(st.integers(-len(model), len(model) - 1), max_size=8)) if model else []

    assert [sample["n"] for sample in dataset.__getitems__(wanted)] == [model[i] for i in wanted]
    assert [dataset[i]["n"] for i in wanted] == [model[i] for i in wanted]
    for outside in (len(model), -len(model) - 1):
        with pytest.raises(IndexError):
            dataset[outside]
    frozen, ids = snapshot_rows(dataset), ids_of(dataset, range(len(model)))
    assert len(frozen) == len(model)
    assert len(set(ids.tolist())) == len(model)
    assert [sample["n"] for sample in frozen.fetch(ids)] == model
    # What an order is made of: going through the spans and leaving out the dead gives each row once.
    alive = []
    for first, end in frozen.spans():
        span = np.arange(first, end)
        mask = frozen.alive(span)
        alive += (span if mask is None else span[mask]).tolist()
    assert alive == ids.tolist()


@given(compositions(), st.integers(0, 5))
def test_what_is_frozen_stays(composed: tuple[Any, list[int]], n_new: int):
    """Rows that come or go below do not reach what was frozen before; ids that stay lead to the same rows."""
    dataset, model = composed
    frozen, ids = snapshot_rows(dataset), ids_of(dataset, range(len(model)))
    below = dataset
    while hasattr(below, "_dataset"):
        below = below._dataset
    if isinstance(below, DatasetBuffer) and n_new:
        below.append([row(100 + n) for n in range(n_new)], retain_prior=0.5)

    assert [sample["n"] for sample in frozen.fetch(ids)] == model
    assert len(frozen) == len(model)


# Transformed ----------------------------------------------------------------------------------------------------


def noisy(sample: Any, rng: np.random.Generator) -> float:
    return float(rng.random())


def test_randomness_is_keyed_by_seed_epoch_and_row():
    """Each of the three changes it, and nothing else does; the values are pinned."""
    dataset = TransformedDataset(range(4), noisy, seed=7)
    first = list(dataset)
    dataset.set_epoch(1)
    second = list(dataset)

    assert [round(value, 6) for value in first] == [0.561483, 0.065385, 0.296665, 0.354818]
    assert len({*first, *second, *TransformedDataset(range(4), noisy, seed=8)}) == 12
    dataset.set_epoch(0)
    assert list(dataset) == first


def test_randomness_belongs_to_the_row_not_to_its_place():
    """When rows leave a buffer, those that stay keep their augmentation."""
    rows = buffer(6, holes=False)
    dataset = TransformedDataset(rows, noisy)
    before = list(dataset)

    rows.retain(0.5)

    assert list(dataset) == before[3:]
    assert snapshot_rows(dataset).fetch(rows.ids) == before[3:]


def test_frozen_rows_keep_their_epoch():
    """A loader that reads ahead is not disturbed by the next epoch."""
    dataset = TransformedDataset(range(3), noisy)
    expected, frozen = list(dataset), snapshot_rows(dataset)

    dataset.set_epoch(5)

    assert frozen.fetch(np.arange(3)) == expected


@pytest.mark.parametrize(
    ("epochs", "expected"), [(1, [1.0, 1.0]), (2, [0.0, 1.0, 1.0]), (5, [0.0, 0.25, 0.5, 0.75, 1.0, 1.0])]
)
def test_progress_goes_from_0_to_1(epochs: int, expected: list[float]):
    """0 in the first epoch, 1 in the last and after it; with one epoch it is the last."""
    dataset = TransformedDataset([0], lambda sample, progress: progress, epochs=epochs)

    seen = []
    for epoch in range(len(expected)):
        dataset.set_epoch(epoch)
        seen.append(dataset[0])

    assert seen == expected


def test_epochs_reach_every_view_below():
    """Announced at the top, known at the bottom."""
    inner = TransformedDataset(Rows(4), lambda sample, progress: {**sample, "p": progress}, epochs=2)
    outer = CachedDataset(SubsettedDataset(ShuffledDataset(FilteredDataset(inner + inner, is_liked)), [0, 1]))

    seen = []
    for epoch in (0, 1):
        outer.set_epoch(epoch)
        seen.append(outer[0]["p"])

    assert seen == [0.0, 1.0]


def test_errors_name_the_row():
    """The user's own error, with the place where it happened."""
    for function, dataset in (
        ("transforming", TransformedDataset([1, 0], lambda n: 1 / n)),
        ("filtering", FilteredDataset([1, 0], lambda n: 1 / n)),
    ):
        with pytest.raises(ZeroDivisionError) as caught:
            list(dataset)
        assert caught.value.__notes__[0].startswith(f"while {function} row 1 with")


def test_an_epoch_is_another_version():
    """Of a function that asks for randomness."""
    noisy_one = TransformedDataset(range(3), noisy)
    before = noisy_one.version
    noisy_one.set_epoch(1)

    assert noisy_one.version != before


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TransformedDataset(5, shift), "no length"),
        (lambda: TransformedDataset([1], 5), "pass a function"),
        (lambda: TransformedDataset([1], lambda sample, progress: 0), "epochs="),
        (lambda: TransformedDataset([1], shift, epochs=0), "epochs=0"),
        (lambda: TransformedDataset([1], shift).set_epoch(-1), "from 0"),
        (lambda: TransformedDataset([1], shift).set_epoch(1.5), "from 0"),
        (lambda: FilteredDataset([1], None), "pass a function"),
        (lambda: CompositeDataset([]), "at least one"),
        (lambda: CompositeDataset([[1], 3]), r"datasets\[1\]"),
        (lambda: CompositeDataset([[1]], stop="never"), "stop='never'"),
        (lambda: CompositeDataset([[1]], weights=[1, 2]), "weights"),
        (lambda: CompositeDataset([[1]], weights=[0]), r"weights\[0\]=0"),
        (lambda: CompositeDataset([[1]], weights=[float("nan")]), r"weights\[0\]=nan"),
        (lambda: CompositeDataset([[1]], weights=["1"]), r"weights\[0\]='1'"),
        (lambda: len(CompositeDataset([[1], []], weights=[1, 1], stop="all")), "no rows to repeat"),
        (lambda: AdaptedDataset([1], length="size", get="get"), "length='size'"),
        (lambda: AdaptedDataset([1], length=len, get=3), "got 3"),
        (lambda: AdaptedDataset([1], length=len, get=list, get_many=lambda o, n: []).__getitems__([0]), "0 samples"),
    ],
)
def test_wrong_arguments_are_refused_at_once(make: Any, match: str):
    """The message says which, and what to do."""
    with pytest.raises(PoolishError, match=match):
        make()


def value_of(window: Any) -> float:
    return float(window["values"].view(np.float64)[0])


def test_streams_are_looked_at_through_their_windows(tmp_path):
    """A stream has tokens, not samples; its windows are a dataset like any other."""
    from poolish import StreamStore

    with StreamStore(tmp_path / "stream", fields=["a"]) as store:
        store.append(steps=range(10), names=["a"] * 10, values=range(10))
        windows = store.as_dataset(2)
        with pytest.raises(ConfigError, match="as_dataset"):
            TransformedDataset(store, shift)
        view = ShuffledDataset(FilteredDataset(windows, lambda window: value_of(window) % 4 == 0))
        assert sorted(map(value_of, view)) == [0, 4, 8]
        assert snapshot_rows(TransformedDataset(windows, noisy)).changes == SHARED
        assert sorted(map(value_of, snapshot_rows(view).fetch(np.arange(3)))) == [0, 4, 8]
        subset = SubsettedDataset(windows, [3, 0])
        assert list(map(value_of, snapshot_rows(subset).fetch(np.arange(2)))) == [6, 0]


# Subset, shuffle ------------------------------------------------------------------------------------------------


@given(st.integers(0, 8), st.lists(st.integers(-12, 12), max_size=8))
def test_subsets_are_checked_at_once(n_rows: int, chosen: list[int]):
    """Numbers that a list would take are taken, others are an error that names the place."""
    fits = all(-n_rows <= number < n_rows for number in chosen)
    for dtype in (list, np.int8, np.int64):
        indices = chosen if dtype is list else np.array(chosen, dtype)
        if fits:
            assert list(SubsettedDataset(range(n_rows), indices)) == [range(n_rows)[number] for number in chosen]
        else:
            with pytest.raises(IndexError, match="place"):
                SubsettedDataset(range(n_rows), indices)


@pytest.mark.parametrize("bad", [[0.5], ["a"], [[0, 1]], [True], np.array([2**64 - 1], np.uint64), [None]])
def test_what_chooses_no_rows_is_refused(bad: Any):
    """Floats, text, a mask of another length, a number that would wrap round."""
    with pytest.raises((ConfigError, IndexError), match="indices"):
        SubsettedDataset(range(5), bad)


def test_a_mask_or_a_generator_chooses_too():
    """Whatever says which rows."""
    assert list(SubsettedDataset("abc", np.array([True, False, True]))) == ["a", "c"]
    assert list(SubsettedDataset("abc", (i for i in (2, 1)))) == ["c", "b"]
    assert list(SubsettedDataset("abc", [])) == []
    assert list(SubsettedDataset([], np.array([], bool))) == []


def test_a_shuffled_billion_rows_cost_nothing():
    """No index array: any place of it is computed."""
    shuffled = ShuffledDataset(range(10**12), seed=1)

    assert shuffled.__getitems__([0, -1]) == [shuffled[0], shuffled[10**12 - 1]]
    assert snapshot_rows(shuffled).fetch(np.array([5])) == [shuffled[5]]


def test_every_epoch_is_another_order():
    """And the seed decides it."""
    orders = []
    for seed in (1, 2):
        shuffled = ShuffledDataset(range(50), seed=seed)
        for epoch in (0, 1):
            shuffled.set_epoch(epoch)
            orders.append(tuple(shuffled))

    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)


# What a loader needs to know ------------------------------------------------------------------------------------


def test_how_it_may_change_is_passed_on():
    """A view of a buffer grows as the buffer does; a choice or an order of its own is fixed."""
    rows = buffer(4)

    for view in (
        TransformedDataset(rows, shift),
        CachedDataset(rows),
        FilteredDataset(rows, is_liked),
        CompositeDataset([[1], rows]),
    ):
        assert snapshot_rows(view).changes == LOCAL
        assert snapshot_rows(view).uuid  # so a state that is given another buffer is refused
        assert fixed_by(snapshot_rows(view)) is None
    shuffled = ShuffledDataset(rows)
    for view in (
        shuffled,
        SubsettedDataset(rows, [0]),
        CompositeDataset([rows, [1]], weights=[1, 1]),
        CachedDataset(TransformedDataset(shuffled, shift)),
        FilteredDataset(shuffled, is_liked),
        CompositeDataset([rows, shuffled]),
    ):
        before = fixed_by(snapshot_rows(view))
        assert before is not None
    rows.append(row(99))
    assert fixed_by(snapshot_rows(shuffled)) != before


def test_buffers_tell_their_version():
    """It changes when a value does, not when rows come or go; a copy in a file begins a history of its own."""
    rows = buffer(4, holes=False)
    before, snapshot = rows.version, rows.snapshot()

    rows.append(row(9))
    rows.retain(0.5)
    rows.update([0], {"n": [5]})  # gone: nothing changed

    assert rows.version == before == snapshot.version == version_of(rows)
    rows.update([3], {"n": [5]})
    assert rows.version != before
    assert rows.snapshot().version == rows.version
    assert snapshot.version == before
