"""Samples with named fields: namedtuples and dataclasses are batched field by field and stay what they are."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from poolish.errors import ConfigError, SchemaError
from poolish.load import AdaptiveBatches, CachedDataset, Loader, TransformedDataset, verify_resume
from poolish.load.batch import nbytes
from tests.load.loaders import saved


class Pair(NamedTuple):
    x: Any
    y: int


@dataclass
class Plain:
    x: Any
    y: int


@dataclass(frozen=True)
class FrozenRows:
    x: Any
    y: int


@dataclass(slots=True)
class Slotted:
    x: Any
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlotted:
    x: Any
    y: int


@dataclass
class Checked:
    """One that a column would not pass."""

    x: Any
    y: int
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.y < 100:
            raise ValueError(self.y)
        self.doubled = 2 * self.y


CLASSES = [Pair, Plain, FrozenRows, Slotted, FrozenSlotted, Checked]


def samples(class_: Any, n: int = 6) -> list[Any]:
    return [class_(x=np.full(2, i, np.float32), y=i) for i in range(n)]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"device": "cpu"}], ids=repr)
@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("class_", CLASSES)
def test_a_batch_of_structures_is_one_of_columns(class_, output, options):
    """Each field is a column, the class is that of the samples, and the rows are known."""
    if output == "numpy" and "device" in options:
        options = {}
    loader = Loader(samples(class_), 4, output=output, **options)
    kind = torch.Tensor if output == "torch" else np.ndarray

    for first, batch in zip([0, 4], loader, strict=True):
        assert isinstance(batch, class_)
        assert isinstance(batch.x, kind)
        assert batch.x.tolist() == [[i, i] for i in range(first, min(first + 4, 6))]
        assert batch.y.tolist() == loader.origin.ids.tolist() == list(range(first, min(first + 4, 6)))
        assert (loader.origin.position, loader.origin.step) == (first, first // 4)
    loader.close()


@pytest.mark.parametrize("class_", [Pair, Plain, FrozenRows, Checked])
def test_a_structure_with_room_carries_its_rows(class_):
    """As a batch of columns does; copies keep them."""
    loader = Loader(samples(class_), 2)
    batches = list(loader)

    for copied in (
        batches[1],
        copy.copy(batches[1]),
        copy.deepcopy(batches[1]),
        pickle.loads(pickle.dumps(batches[1])),
    ):
        assert isinstance(copied, class_)
        assert (copied.ids.tolist(), copied.position, copied.step) == ([2, 3], 2, 1)
        assert copied.y.tolist() == [2, 3]


@pytest.mark.parametrize("class_", [Plain, FrozenRows, Slotted, FrozenSlotted, Checked])
def test_a_dataclass_keeps_exactly_its_class(class_):
    """Libraries look classes up: jax and torch register dataclasses by them."""
    assert type(next(iter(Loader(samples(class_), 2)))) is class_


@pytest.mark.parametrize("class_", CLASSES)
def test_batches_of_structures_are_acknowledged(class_):
    """In any order, by the batch itself or without it."""
    loader = Loader(samples(class_), 2, acknowledge="explicit")
    first, second, _ = batches = list(loader)
    loader.mark_trained(second)
    loader.mark_trained(first)
    assert saved(loader)["step"] == 2
    loader.mark_trained()
    assert saved(loader)["step"] == 3
    with pytest.raises(ConfigError, match="marked already"):
        loader.mark_trained(batches[0])


class Step(NamedTuple):
    step: int
    ids: str


@dataclass
class Move:
    position: int
    reward: float


@pytest.mark.parametrize("sample", [Step(3, "a"), Move(3, 0.5)], ids=repr)
def test_fields_that_are_called_as_what_a_batch_knows_keep_their_meaning(sample):
    """The loader still knows which rows they are."""
    loader = Loader([sample] * 4, 2, acknowledge="explicit")
    iterator = iter(loader)
    first, second = next(iterator), next(iterator)
    column = first.step if isinstance(sample, Step) else first.position

    assert column.tolist() == [3, 3]
    assert loader.origin.ids.tolist() == [2, 3]
    loader.mark_trained(second)
    loader.mark_trained(first)
    assert saved(loader)["step"] == 2


@dataclass
class Outer:
    inner: Pair
    other: FrozenRows
    text: str


def test_structures_are_collated_as_deep_as_they_go():
    """Inside each other, and inside dicts and tuples."""
    row = Outer(Pair(np.zeros(2), 1), FrozenRows(np.ones(3), 2), "rye")
    batch = next(iter(Loader([row] * 2, 2)))
    inside = next(iter(Loader([{"a": (row,)}] * 2, 2, output="numpy")))

    assert type(batch.inner) is Pair
    assert type(batch.other) is FrozenRows
    assert (batch.inner.x.shape, batch.other.x.shape, batch.text) == ((2, 2), (2, 3), ["rye", "rye"])
    assert inside["a"][0].inner.y.tolist() == [1, 1]


def test_a_batch_without_rows_has_the_class_of_the_others():
    """On a rank that the last step leaves without a row; each is an object of its own."""
    ranks = [Loader(samples(Plain, 3), 2, rank=rank, world_size=2) for rank in range(2)]
    extra = [Loader(samples(Plain, 1), 1, rank=1, world_size=2) for _ in range(1)]
    last = [list(loader)[-1] for loader in [*ranks, *extra]]

    assert [type(batch) for batch in last] == [Plain] * 3
    assert (last[2].x.shape, last[2].ids.tolist()) == ((0, 2), [])


@pytest.mark.parametrize("class_", CLASSES)
def test_a_dataloader_around_gives_the_same_structures(class_):
    """In this process and in worker processes."""
    for n_workers in (0, 1):
        outer = DataLoader(Loader(samples(class_), 3), batch_size=None, num_workers=n_workers)
        batches = list(outer)

        assert all(isinstance(batch, class_) for batch in batches)
        assert [batch.y.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("class_", CLASSES)
def test_resume_is_verified_of_structures(class_):
    """Their fields are compared, and a difference is named."""
    assert verify_resume(Loader(samples(class_), 2, shuffle=True)).ok
    draws = np.random.default_rng(0)
    noisy = TransformedDataset(samples(class_), lambda sample: class_(x=draws.random(), y=sample.y))
    report = verify_resume(Loader(noisy, 2))

    assert "field 'x'" in str(report)


def test_structures_that_are_not_alike_are_refused_by_number():
    """The error says what to do."""
    with pytest.raises(SchemaError, match=r"sample 1 of the batch is of Pair.*Plain.*collate_fn"):
        next(iter(Loader([Plain(1, 2), Pair(1, 2)], 2)))


@pytest.mark.parametrize("class_", CLASSES)
def test_structures_are_cached_measured_and_cut(class_):
    """Wherever batches and samples of other forms are."""
    cached = CachedDataset(samples(class_), max_items=4)
    batch = next(iter(Loader(cached, 4)))
    pieces = list(AdaptiveBatches(initial=3).split(batch))

    assert nbytes(class_(x=np.zeros(1000), y=1)) > 8000
    assert [piece.y.tolist() for piece in pieces] == [[0, 1, 2], [3]]
    assert all(isinstance(piece, class_) for piece in pieces)


def test_other_columns_of_the_same_rows():
    """``_replace`` is for namedtuples what ``|`` is for dicts."""
    batch = next(iter(Loader(samples(Pair), 2)))._replace(y=[7, 8])

    assert (batch.y, batch.step, batch.ids.tolist()) == ([7, 8], 0, [0, 1])
    assert type(batch)(1, 2).ids is None
