"""A state of data without an id does not go on in other rows, or in another order of them."""

from __future__ import annotations

import copy
import datetime
import pickle

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from poolish.errors import ResumeError
from poolish.load import CompositeDataset, SubsettedDataset, TransformedDataset
from poolish.load.dataset_state import spots_of
from tests.load.loaders import buffer, ids, load, saved

N = 100


def _same(sample):
    return sample


def _texts(numbers):
    return [f"row {i}" for i in numbers]


KINDS = {
    "list": list,
    "tuple": tuple,
    "range": lambda numbers: numbers,
    "list of dicts": lambda numbers: [{"n": i, "x": np.full(3, i)} for i in numbers],
    "list of tuples": lambda numbers: [(torch.full((2, 2), i), f"row {i}") for i in numbers],
    "array": np.array,
    "matrix": lambda numbers: np.array([[0.5, i] for i in numbers]),
    "tensor": lambda numbers: torch.tensor(list(numbers)),
    "TensorDataset": lambda numbers: TensorDataset(torch.zeros(N), torch.tensor(list(numbers))),
    "Hugging Face": lambda numbers: datasets.Dataset.from_dict(
        {"t": _texts(numbers), "n": [[i, i + 1] for i in numbers], "s": [{"a": i, "b": None} for i in numbers]}
    ),
    "transformed": lambda numbers: TransformedDataset(list(numbers), _same),
    "subset": lambda numbers: SubsettedDataset(list(numbers), range(50)),
    "composite": lambda numbers: CompositeDataset([list(range(7)), list(numbers)]),
    "torch subset": lambda numbers: Subset(list(numbers), range(50)),
    "torch concatenation": lambda numbers: ConcatDataset([list(range(7)), list(numbers)]),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_in_the_same_rows_only(kind, shuffle):
    """Other rows of the same length are refused, and so is another order; equal rows, made anew, go on."""
    make = KINDS[kind]
    loader = load(make(range(N)), 10, shuffle=shuffle)
    running = iter(loader)
    next(running)
    state = saved(loader)

    again = load(make(range(N)), 10, shuffle=shuffle)
    again.load_state_dict(state)
    assert ids(again) == ids(running)
    for other in (range(N)[::-1], range(500, 500 + N)):
        wrong = load(make(other), 10, shuffle=shuffle)
        before = saved(wrong)
        with pytest.raises(ResumeError, match="the state is of other rows, or of another order of them"):
            wrong.load_state_dict(state)
        assert saved(wrong) == before


@pytest.mark.parametrize("follow", [False, True])
def test_a_list_that_has_grown_goes_on(follow):
    """Rows at its end are new; those before are compared, and may not have changed."""
    source = list(range(20))
    loader = load(source, 4, follow=follow)
    next(iter(loader))
    state = saved(loader)

    grown = load(list(range(30)), 4, follow=follow)
    grown.load_state_dict(state)
    assert ids(grown) == list(range(4, 30 if follow else 20))
    wrong = load(list(range(1, 31)), 4, follow=follow)
    with pytest.raises(ResumeError, match="other rows"):
        wrong.load_state_dict(state)


def test_a_state_of_more_rows_than_were_seen_goes_on_in_those():
    """Rows that came after the epoch began need not be there."""
    source = list(range(8))
    loader = load(source, 2)
    next(iter(loader))
    source.append(8)
    state = saved(loader)

    shorter = load(list(range(8)), 2)
    shorter.load_state_dict(state)
    assert ids(shorter) == [2, 3, 4, 5, 6, 7]


def test_rows_that_are_changed_in_place_go_on_as_they_were_or_as_they_are():
    """Completed as they are read, and new after a restart; or replaced by the program, and again so after it."""

    def tokenized(row):
        row["tokens"] = len(row["text"])
        return row

    def made():
        return [{"text": "a" * i} for i in range(6)]

    source = made()
    loader = load(TransformedDataset(source, tokenized), 2)
    next(iter(loader))
    state = saved(loader)

    for rows in (made(), copy.deepcopy(source)):
        resumed = load(TransformedDataset(rows, tokenized), 2)
        resumed.load_state_dict(state)
        assert ids(resumed) == [2, 3, 4, 5]
    assert ids(pickle.loads(pickle.dumps(load(source, 2)))) == list(range(6))
    with pytest.raises(ResumeError, match="other rows"):
        load(TransformedDataset(made()[::-1], tokenized), 2).load_state_dict(state)


class Own(list):
    """A class of the user's, whose rows may be random."""


def test_what_cannot_be_compared_has_no_digest_and_goes_on():
    """Rows that are objects, classes of users, what has an id anyway, and nothing at all."""
    uncompared = [
        [object()],
        [{1, 2}],
        Own([1]),
        buffer(3),
        [],
        np.array([object()]),
        TransformedDataset(Own([1]), _same),
    ]
    for dataset in uncompared:
        assert "spots" not in saved(load(dataset, output="numpy"))

    load(Own([1, 2])).load_state_dict(saved(load([1, 2])))
    load([1, 2]).load_state_dict(saved(load(Own([1, 2]))))


def test_values_of_every_plain_kind_are_compared():
    """Each differs from each."""
    values = [
        *(
            None,
            True,
            1,
            1.5,
            2j,
            float("inf"),
            "a",
            "b",
            b"a",
            "a" * 200,
            "a" * 201,
            [1],
            [2],
            [1, 2],
            {"a": 1},
            {"a": 2},
        ),
        *({"b": 1}, np.arange(3), np.arange(1, 4), np.zeros((0, 2)), np.zeros(0), np.array(7), np.arange(3.0)),
        *(torch.zeros(2), torch.ones(2), torch.zeros(2, 1), torch.zeros(0), torch.tensor(5), torch.zeros(2).bfloat16()),
        *(datetime.date(2020, 1, 1), np.datetime64("2021-01-01"), "\ud800", [[1], [2]], [[1], [3]], {"a": {"b": 1}}),
    ]
    digests = [spots_of([value])[0][1] for value in values]

    assert len(set(digests)) == len(values)
    assert spots_of([{"a": 1, "b": 2}]) == spots_of([{"b": 2, "a": 1}])
    assert spots_of([np.arange(6).reshape(2, 3).T]) == spots_of([np.arange(6).reshape(2, 3).T.copy()])


def test_states_of_0_1_0_have_no_digest_and_go_on():
    """What they do not hold is not compared."""
    from poolish.load.state import sealed

    state = saved(load(list(range(6)), 2))
    del state["spots"], state["check"]
    loader = load(list(range(10, 16)), 2)
    loader.load_state_dict(sealed(state))

    assert ids(loader) == list(range(6))
