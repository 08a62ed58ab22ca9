"""Loader(ids=True): row ids as a column, the identity that survives a framework which rebuilds batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from poolish import DatasetBuffer, Suite, verify_resume
from poolish.errors import ConfigError
from poolish.load import Loader
from tests.load.loaders import buffer, load, saved


class Pair(NamedTuple):
    n: Any
    m: Any


@pytest.mark.parametrize(("output", "kind"), [("numpy", np.ndarray), ("torch", torch.Tensor), ("arrow", pa.Int64Array)])
@pytest.mark.parametrize("dataset", [lambda: buffer(5), lambda: [{"n": i} for i in range(5)]], ids=["buffer", "list"])
def test_ids_are_a_column(output, kind, dataset):
    """int64, in the order of the rows, of every output."""
    for batch in Loader(dataset(), 2, shuffle=True, ids=True, output=output):
        assert isinstance(batch["ids"], kind)
        assert str(batch["ids"].dtype if output != "arrow" else batch["ids"].type).endswith("int64")
        assert batch["ids"].tolist() == batch["n"].tolist() == batch.ids.tolist()


def test_the_column_may_have_another_name():
    """And a column of the dataset with that name is not overwritten."""
    rows = [{"ids": i + 7, "n": i} for i in range(3)]

    assert next(iter(load(rows, 3, ids="row_id")))["row_id"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r'a column of that name already; .* ids="row_ids"'):
        next(iter(load(rows, 3, ids=True)))
    for wrong in ("", 3, None):
        with pytest.raises(ConfigError, match="the name of the column"):
            load(rows, 3, ids=wrong)


def test_a_tuple_has_one_element_more():
    """The last one."""
    x, y, ids = next(iter(load([(i, -i) for i in range(4)], 2, shuffle=True, ids=True)))

    assert ids.tolist() == x.tolist() == (-y).tolist()


def test_a_batch_without_room_is_refused():
    """A class of the user's has the fields that it has, and a tensor none."""
    with pytest.raises(ConfigError, match="batch of Pair has no room"):
        next(iter(load([Pair(1, 2)], ids=True)))
    with pytest.raises(ConfigError, match="batch of list has no room"):
        next(iter(load([1, 2], 2, ids=True, collate_fn=list)))
    as_dict = load([Pair(1, 2)], ids=True, transform=lambda batch: batch._asdict())
    assert next(iter(as_dict))["ids"].tolist() == [0]


def test_ids_are_those_of_the_rows_that_are_left():
    """A guard that drops rows, and a transform that filters or reorders them and says so."""
    suite = Suite().expect("n", between=(0, 4)).on(error="drop")
    guarded = next(iter(load([{"n": n} for n in (1, 99, 3)], 3, ids=True, guard=suite)))
    assert guarded["ids"].tolist() == guarded.ids.tolist() == [0, 2]

    def newest_first(batch):
        return {"n": batch["n"][::-1][:2], "ids": batch.ids[::-1][:2]}

    chosen = next(iter(load(buffer(3), 3, ids=True, transform=newest_first)))
    assert chosen["ids"].tolist() == chosen.ids.tolist() == chosen["n"].tolist() == [2, 1]
    with pytest.raises(ConfigError, match=r"such as batch\.ids\[kept\]"):
        next(iter(load(buffer(3), 3, ids=True, transform=lambda batch: {"n": batch["n"][:1]})))
    with pytest.raises(ConfigError, match="not made of ids of its batch"):
        next(iter(load(buffer(3), 3, ids=True, transform=lambda batch: {"n": batch["n"], "ids": batch.ids + 9})))


def test_a_guard_does_not_see_the_column():
    """A suite that watches every column would find drift in ids that count up."""
    seen = []

    suite = Suite().expect("n", finite=True)

    def guard(columns):
        seen.append(sorted(columns))
        return suite(columns)

    list(load(buffer(2), guard=guard, ids=True))
    list(load(buffer(2), guard=guard, ids=True, transform=lambda batch: batch))

    assert seen == [["n"], ["n"]]


def test_an_empty_share_has_an_empty_column():
    """Ranks that get no row of the last step."""
    loaders = [load(buffer(3), 2, rank=rank, world_size=2, ids=True) for rank in range(2)]
    loaders += [load([{"n": 0}], 2, rank=1, world_size=2, ids=True)]
    shares = [list(loader)[-1]["ids"] for loader in loaders]

    assert [share.tolist() for share in shares] == [[0, 2], [1], []]
    assert {share.dtype for share in shares} == {np.dtype(np.int64)}


# Acknowledging by ids -------------------------------------------------------------------------------------------

REBUILDS = {
    "type(batch)(columns)": lambda batch: type(batch)({name: values + 0 for name, values in batch.items()}),
    "dict": dict,
    "ids": lambda batch: batch["ids"],
    "array": lambda batch: np.asarray(batch["ids"]),
    "list": lambda batch: batch["ids"].tolist(),
    "int32": lambda batch: batch["ids"].to(torch.int32),
}


@pytest.mark.parametrize("how", REBUILDS)
def test_a_rebuilt_batch_is_acknowledged_by_its_ids(how):
    """In whatever order they are done."""
    loader = Loader(buffer(8), 2, shuffle=True, acknowledge="explicit", ids=True, output="torch")
    first, second, third, _ = [REBUILDS[how](batch) for batch in loader]

    loader.mark_trained(second)
    assert saved(loader)["step"] == 0
    loader.mark_trained(first)
    assert saved(loader)["step"] == 2
    with pytest.raises(ConfigError, match="was not yielded by this loader, or is marked already"):
        loader.mark_trained(first)
    loader.mark_trained(third)
    assert saved(loader)["step"] == 3


def test_a_rebuilt_tuple_is_acknowledged_by_its_last_element():
    """As tuples are rebuilt by what moves them."""
    loader = load([(i, -i) for i in range(4)], 2, acknowledge="explicit", ids=True)
    batch = next(iter(loader))

    loader.mark_trained(tuple(values + 0 for values in batch))

    assert saved(loader)["step"] == 1


def test_ids_of_another_batch_are_not_accepted():
    """A batch that was split, merged or reordered is not taken for the one, nor for another."""
    loader = load(buffer(8), 4, acknowledge="explicit", ids=True)
    first, second = loader

    for wrong, why in (
        (first["ids"][:2], "rows of the batch of step 0, and not all of them"),
        (first["ids"][::-1], "rows of the batch of step 0, in another order"),
        (np.concatenate([first["ids"][2:], second["ids"][:2]]), "2 of 4 rows are of the batch of step 0"),
        (np.array([70, 71]), "no batch in flight has rows 70, 71"),
        (np.array([], np.int64), "no batch in flight has rows"),
        (first["ids"] + 0.5, "was not yielded by this loader"),
    ):
        with pytest.raises(ConfigError, match=why):
            loader.mark_trained(wrong)
    assert saved(loader)["step"] == 0


def test_a_batch_that_says_which_it_is_is_not_looked_up_by_ids():
    """One of another loader may have the same ids at the same step."""
    first, second = (load(buffer(4), 2, acknowledge="explicit", ids=True) for _ in range(2))
    next(iter(first))

    with pytest.raises(ConfigError, match="not yielded by this loader"):
        first.mark_trained(next(iter(second)))


def test_ids_without_the_option_are_acknowledged_too():
    """A trainer that keeps batch.ids beside its own data."""
    loader = load(buffer(4), 2, acknowledge="explicit")
    ids = next(iter(loader)).ids

    loader.mark_trained(ids)

    assert saved(loader)["step"] == 1


def test_a_dataloader_around_it_hands_the_ids_through():
    """With worker processes too, whatever it does with the batch."""
    loader = Loader(buffer(6).snapshot(), 2, ids=True, output="torch")

    got = [batch["ids"].tolist() for batch in DataLoader(loader, batch_size=None)]

    assert got == [[0, 1], [2, 3], [4, 5]]
    assert verify_resume(loader).ok


# Looking rows up -------------------------------------------------------------------------------------------------


def test_rows_are_looked_up_by_a_tensor_of_ids():
    """by_id, update and row_state take what the loader gave."""
    rows = DatasetBuffer()
    rows.append([{"n": i, "loss": 0.0} for i in range(5)])
    batch = next(iter(Loader(rows, 2, ids=True, output="torch", shuffle=True, seed=1)))

    found, gone = rows.by_id(batch["ids"])

    assert found["n"].to_pylist() == batch["n"].tolist()
    assert not len(gone)
    rows.update(batch["ids"], {"loss": [1.0, 2.0]})
    assert rows.by_id(batch["ids"]).rows["loss"].to_pylist() == [1.0, 2.0]
    rows.row_state("seen").set(batch["ids"], 1.0)
    assert rows.row_state("seen").get(batch["ids"]).values.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="whole numbers"):
        rows.by_id(batch["loss"])


def test_an_audit_says_which_steps_saw_a_row():
    """Over epochs, for ids in any form; a row that was not read was not seen."""
    loader = load(buffer(6), 2, shuffle=True, ids=True)
    seen: dict[int, list[int]] = {}
    for batch in [*loader, *loader]:
        for id_ in batch["ids"].tolist():
            seen.setdefault(id_, []).append(batch.step)

    audit = loader.audit(0, 5)

    assert audit.steps_of(torch.arange(6)) == {id_: seen[id_] for id_ in range(6)}
    assert audit.steps_of([77]) == {77: []}
    assert loader.audit(0, 2).steps_of(np.array([3])) == {3: seen[3][:1]}
    with pytest.raises(TypeError, match="row ids"):
        audit.steps_of("3")
    suite = Suite().expect("n", between=(0, 3)).on(error="drop")
    guarded = load(buffer(6), 3, guard=suite)
    list(guarded)
    assert guarded.audit(0, 1).steps_of([3, 4]) == {3: [1], 4: []}
