"""What a batch knows of itself: copies keep it, and what was rebuilt from columns knows that it does not know."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data._utils.collate import default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from poolish import StreamStore
from poolish.errors import ConfigError
from poolish.load import CachedDataset, CompositeDataset, Loader, SubsettedDataset, TransformedDataset
from poolish.load.batch import Batch, BatchTuple
from tests.load.loaders import buffer, load, saved

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "method": lambda batch: batch.copy(),
    "union": lambda batch: batch | {"weight": np.ones(2)},
    "torch convert": default_convert,
    "torch pin_memory": lambda batch: pin_memory(batch, "cpu") if torch.cuda.is_available() else copy.copy(batch),
}

REBUILDS = {
    "columns": lambda batch: type(batch)(batch),
    "moved": lambda batch: type(batch)({name: torch.as_tensor(values) for name, values in batch.items()}),
    "plain dict": dict,
    "items": lambda batch: {**batch},
    "other": lambda batch: 7,
}


def explicit(n=8):
    loader = load(buffer(n), 2, acknowledge="explicit")
    return loader, iter(loader)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_batch_knows_its_rows(how):
    """It stands for the batch that it was made of, also when it is acknowledged."""
    loader, iterator = explicit()
    next(iterator)
    batch = next(iterator)
    copied = COPIES[how](batch)

    assert isinstance(copied, Batch)
    assert (copied.step, copied.position, copied.ids.tolist()) == (1, 2, [2, 3])
    loader.mark_trained(copied)
    assert saved(loader)["step"] == 0
    loader.mark_trained()
    assert saved(loader)["step"] == 2


@pytest.mark.parametrize("how", REBUILDS)
def test_a_batch_rebuilt_from_columns_does_not_claim_to_be_a_step(how):
    """As Lightning, accelerate and transformers do: it is refused, above all as step 0."""
    loader, iterator = explicit()
    first = next(iterator)
    rebuilt = REBUILDS[how](first)

    assert [getattr(rebuilt, name, None) for name in ("ids", "position", "step")] == [None, None, None]
    with pytest.raises(ConfigError, match="mark_trained"):
        loader.mark_trained(rebuilt)
    assert saved(loader)["step"] == 0
    loader.mark_trained(first)
    assert saved(loader)["step"] == 1


def test_a_tuple_rebuilt_from_columns_knows_no_rows():
    """The same for batches that are tuples."""
    loader = load([(i, -i) for i in range(4)], 2, acknowledge="explicit")
    batch = next(iter(loader))
    rebuilt = type(batch)(batch)

    assert (batch.step, copy.copy(batch).step) == (0, 0)
    assert isinstance(rebuilt, BatchTuple)
    assert (rebuilt.ids, rebuilt.position, rebuilt.step) == (None, None, None)
    with pytest.raises(ConfigError, match=r"call mark_trained\(\) to acknowledge the oldest"):
        loader.mark_trained(rebuilt)


def test_a_batch_of_another_loader_is_not_taken_for_one_of_this():
    """The same step of another order has other rows."""
    loader, iterator = explicit()
    next(iterator)
    other = load(buffer(8), 2, shuffle=True, seed=3)

    with pytest.raises(ConfigError, match="not yielded by this loader"):
        loader.mark_trained(next(iter(other)))


@pytest.mark.parametrize(
    ("sample", "how"),
    [
        *((dict, how) for how in ("itself", *COPIES)),
        *((tuple, how) for how in ("itself", "copy", "deepcopy", "pickle")),
    ],
)
def test_a_batch_with_the_same_ids_of_another_loader_is_not_taken_for_one_of_this(sample, how):
    """Two datasets count their rows alike, so ids, step and position agree: the batches are others all the same."""
    copied = {"itself": lambda batch: batch, **COPIES}[how]
    first, second = (
        load([sample({"n": i, "of": name}.items()) for i in range(8)], 2, acknowledge="explicit") for name in (0, 1)
    )
    mine, other = next(iter(first)), next(iter(second))
    assert (other.step, other.position, other.ids.tolist()) == (mine.step, mine.position, mine.ids.tolist())

    with pytest.raises(ConfigError, match="not yielded by this loader"):
        first.mark_trained(copied(other))
    assert saved(first)["step"] == 0
    first.mark_trained(copied(mine))
    assert saved(first)["step"] == 1


def test_a_batch_from_before_a_state_was_loaded_is_not_in_flight():
    """The loader hands its rows out again, and that batch is not trained."""
    loader, iterator = explicit()
    state, old = saved(loader), next(iterator)
    loader.load_state_dict(state)
    new = next(iter(loader))
    assert (new.step, new.ids.tolist()) == (old.step, old.ids.tolist())

    with pytest.raises(ConfigError, match="not yielded by this loader, or is marked already"):
        loader.mark_trained(old)
    loader.mark_trained(new)
    assert saved(loader)["step"] == 1


def _in_place(batch, columns):
    copied = batch.copy()
    copied |= columns
    return copied


@pytest.mark.parametrize("join", [lambda batch, columns: batch | columns, _in_place], ids=["new", "in place"])
def test_columns_of_another_length_do_not_have_the_ids_of_the_batch(join):
    """Replaced by more or fewer rows, they are unknown; columns that are new, or no rows, change nothing."""
    loader, iterator = explicit()
    batch = next(iterator)
    batch["scale"], batch["names"] = torch.tensor(2.0), ["a", "b", "c"]

    for columns in ({"n": batch["n"][:1]}, {"n": [1, 2, 3]}, {"n": torch.tensor(1)}, {"new": [1, 2], "n": []}):
        joined = join(batch, columns)
        assert [joined.ids, joined.position, joined.step] == [None] * 3
        with pytest.raises(ConfigError, match="rebuilt from its columns"):
            loader.mark_trained(joined)
    for columns in ({"n": batch["n"] + 1}, {"weights": [1, 2, 3]}, {"scale": [1]}, {"names": "abcd"}, {}):
        assert join(batch, columns).ids.tolist() == [0, 1]
    rebuilt = Batch(batch) | {"n": [1]}
    assert rebuilt.ids is None


def test_mark_trained_without_a_batch_acknowledges_the_oldest():
    """Those that are marked already are passed over; with none in flight it is an error."""
    loader, iterator = explicit()
    batches = [next(iterator) for _ in range(3)]
    loader.mark_trained(batches[1])
    steps = []
    for _ in range(2):
        loader.mark_trained()
        steps.append(saved(loader)["step"])

    assert steps == [2, 3]
    with pytest.raises(ConfigError, match="no batch is in flight"):
        loader.mark_trained()
    with pytest.raises(ConfigError, match="marked already"):
        loader.mark_trained(batches[0])


# Dtypes -------------------------------------------------------------------------------------------------------------

DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64", "bool"]


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_steps_of_a_stream_have_the_dtypes_of_their_fields(output):
    """As a buffer's rows have, with threads or without, in full and in empty batches."""
    store = StreamStore(fields=dict(zip(DTYPES, DTYPES, strict=True)))
    store.append_many(np.arange(5), {name: np.arange(5).astype(name) for name in DTYPES})

    for options in ({}, {"num_workers": 2}, {"rank": 1, "world_size": 2}):
        loader = Loader(store, 2, output=output, **options)
        for batch in loader:
            assert {name: str(values.dtype).removeprefix("torch.") for name, values in batch.items()} == dict(
                zip(DTYPES, DTYPES, strict=True)
            )
        loader.close()


def test_a_field_that_a_step_does_not_have_is_none():
    """The others of the batch keep their dtype as numbers."""
    store = StreamStore(fields={"action": "int32", "reward": "float32"})
    store.append([0, 0, 1], ["action", "reward", "action"], [1, 0.5, 2])
    batch = next(iter(Loader(store, 2, output="numpy")))

    assert batch["action"].dtype == np.int32
    assert batch["reward"] == [np.float32(0.5), None]
    assert batch["reward"][0].dtype == np.float32


@pytest.mark.parametrize("name", ["list", "transformed", "subset", "cached", "composite"])
def test_numbers_of_samples_keep_their_dtype(name):
    """NumPy numbers that a sample holds come out as they are, below any view."""
    samples = [{dtype: np.dtype(dtype).type(i) for dtype in DTYPES} for i in range(4)]
    views = {
        "list": lambda: samples,
        "transformed": lambda: TransformedDataset(samples, dict),
        "subset": lambda: SubsettedDataset(samples, [3, 1]),
        "cached": lambda: CachedDataset(samples, max_items=2),
        "composite": lambda: CompositeDataset([samples, samples]),
    }

    for batch in Loader(views[name](), 2):
        assert [str(values.dtype) for values in batch.values()] == [f"torch.{dtype}" for dtype in DTYPES]


def test_an_arrow_table_is_refused():
    """Its index gives columns: batches of columns would look like batches of rows."""
    for table in (buffer(4).snapshot().to_arrow(), buffer(4).snapshot().to_arrow().to_batches()[0]):
        with pytest.raises(ConfigError, match="append it to a DatasetBuffer"):
            load(table)
