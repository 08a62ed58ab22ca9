"""Parameters are fixed when a loader, a view or a consumer is made: an assignment is refused, never ignored."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest

from poolish import DatasetConsumer, DatasetProvider
from poolish.guards import Faults
from poolish.load import (
    AdaptedDataset,
    CachedDataset,
    CompositeDataset,
    FilteredDataset,
    Loader,
    ResilientDataset,
    ShuffledDataset,
    SubsettedDataset,
    TransformedDataset,
)

VIEWS = {
    "transformed": lambda: TransformedDataset(range(4), str),
    "filtered": lambda: FilteredDataset(range(4), bool),
    "subset": lambda: SubsettedDataset(range(4), [1, 2]),
    "shuffled": lambda: ShuffledDataset(range(4)),
    "cached": lambda: CachedDataset(range(4)),
    "composite": lambda: CompositeDataset([range(4), range(2)], weights=[1, 2]),
    "resilient": lambda: ResilientDataset(range(4), faults=Faults(budget=1)),
    "adapted": lambda: AdaptedDataset([1, 2], length=len, get=lambda rows, i: rows[i]),
}


def parameters(made: object) -> list[str]:
    return list(inspect.signature(type(made)).parameters)


def test_a_loader_refuses_every_parameter_after_it_is_made():
    """The error says what to do, and the loader goes on as it was."""
    loader = Loader(list(range(8)), 2, output="numpy")
    for name in parameters(loader):
        with pytest.raises(AttributeError, match=rf"Loader\.{name} is fixed.*load_state_dict"):
            setattr(loader, name, 3)
        with pytest.raises(AttributeError, match="is fixed"):
            delattr(loader, name)

    assert [batch["value"].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_loader_shows_its_parameters():
    """As it uses them: a default that it chose is there as well."""
    loader = Loader(range(4), 2, collate_fn=list, prefetch_factor=3, world_size=2, rank=1)

    assert (loader.batch_size, loader.collate_fn, loader.prefetch_factor, loader.rank) == (2, list, 3, 1)
    assert (loader.output, loader.timeout, loader.journal) == ("torch", 0, None)
    assert Loader.batch_size is not None


@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_is_fixed_as_well(travel):
    """Copies and pickles are loaders of their own, with the parameters of the first."""
    copied = travel(Loader(list(range(8)), 2, seed=5))

    assert copied.seed == 5
    with pytest.raises(AttributeError, match="seed is fixed"):
        copied.seed = 6


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_refuses_what_it_would_ignore(name):
    """None of its parameters can be assigned; its rows stay."""
    view = VIEWS[name]()
    before = list(view)
    for parameter in parameters(view):
        with pytest.raises(AttributeError):
            setattr(view, parameter, 3)

    assert list(view) == before
    assert list(pickle.loads(pickle.dumps(view)) if name in ("subset", "shuffled") else view) == before


def test_a_subclass_of_a_view_has_attributes_of_its_own():
    """Its names are its own business."""

    class Noisy(TransformedDataset):
        def __init__(self, dataset, seed):
            super().__init__(dataset, str, seed=seed)
            self.seed = seed

    assert Noisy(range(2), 7).seed == 7
    assert not hasattr(TransformedDataset(range(2), str), "seed")


def test_a_consumer_refuses_what_it_would_ignore(tmp_path):
    """All but the timeout, which every wait asks for anew."""
    with DatasetProvider([(i, i) for i in range(4)], path=tmp_path, batch_size=2, order="sequential") as provider:
        provider.publish("train")
        with DatasetConsumer(tmp_path, output="numpy", timeout_s=1) as consumer:
            for name in set(parameters(consumer)) - {"timeout_s", "run"}:
                with pytest.raises(AttributeError, match=rf"DatasetConsumer\.{name} is fixed.*load_state_dict"):
                    setattr(consumer, name, 1)
            with pytest.raises(AttributeError, match="run"):
                consumer.run = "other"
            consumer.timeout_s = 2
            x, _ = consumer.get_batch("train")

    assert np.asarray(x).tolist() == [0, 1]
