"""Tables of other libraries, wherever rows are taken: the same rows, in the same order, or an error."""

from __future__ import annotations

import importlib.util
import logging
import sys
from types import ModuleType, SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from poolish import DatasetBuffer, DatasetRecipe, Suite
from poolish.errors import SchemaError
from poolish.guards import validate

ROWS = {"x": [1, 2, None], "text": ["rye", None, "oats"]}

TABLES = {
    "pa.Table": pa.table(ROWS),
    "pa.RecordBatch": pa.record_batch(ROWS),
    "dataset": ds.dataset(pa.table(ROWS)),
    "filtered dataset": ds.dataset(pa.table({"x": [*ROWS["x"], 9], "text": [*ROWS["text"], "x"]})).filter(
        (ds.field("x") < 9) | ds.field("x").is_null()
    ),
    "pl.DataFrame": pl.DataFrame(ROWS),
    "pl.LazyFrame": pl.LazyFrame(ROWS),
    "pd.DataFrame": pd.DataFrame({"x": pd.array([1, 2, None], "Int64"), "text": ROWS["text"]}, index=[7, 8, 9]),
    "datasets.Dataset": datasets.Dataset.from_dict(ROWS),
}


def appended(value):
    """The rows of a buffer that a table was appended to."""
    buffer = DatasetBuffer()
    buffer.append(value)
    return buffer.to_pydict()


@pytest.mark.parametrize("name", TABLES)
def test_every_door_takes_every_table(name):
    """append, a recipe, a suite and validate see the same columns and rows."""
    value = TABLES[name]
    suite = Suite("s").expect("x", at_most=1)

    assert appended(value) == ROWS
    assert DatasetRecipe("r").add_ingredient("a", value).bake().buffer.to_pydict() == ROWS
    assert next(verdict.n_bad for verdict in suite.check(value).verdicts) == 1
    assert "3 rows, 2 columns: x, text" in str(validate(value, "format"))


@pytest.mark.parametrize("value", [pl.Series("x", [1]), pd.Series([1], name="x"), pa.array([1]), np.ones(3), "text"])
def test_one_column_is_no_table(value):
    """It has no name; the error says what to pass."""
    with pytest.raises(SchemaError):
        Suite("s").expect("x", at_most=1).check(value)


# Ray ------------------------------------------------------------------------------------------------------------------


class Blocks:
    """What poolish uses of a Ray dataset: blocks come as they are done, unless their order is asked for."""

    def __init__(self, blocks):
        self.blocks = blocks
        self.context = SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))

    def iter_batches(self, *, batch_size, batch_format):
        """The blocks as Arrow tables."""
        assert batch_size is None
        assert batch_format == "pyarrow"
        in_order = self.context.execution_options.preserve_order
        return iter(self.blocks if in_order else self.blocks[::-1])

    def schema(self):
        """None for a dataset of nothing."""
        return


def stand_in(monkeypatch):
    """A module ``ray.data`` whose datasets behave as Ray's where Ray is not installed."""
    module = ModuleType("ray.data")
    module.Dataset = Blocks
    monkeypatch.setitem(sys.modules, "ray.data", module)
    return lambda: Blocks([pa.table({"x": range(i, i + 10)}) for i in range(0, 50, 10)])


def real(monkeypatch):
    """Ray itself: five blocks, of which the first takes longest."""
    import ray
    import ray.data

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)

    def slow(batch):
        import time

        time.sleep(0.05 * (4 - batch["id"][0] // 10))
        return {"x": batch["id"]}

    return lambda: ray.data.range(50, override_num_blocks=5).map_batches(slow, batch_size=10)


#: A cluster takes its time to start, so the real one is asked in a soak.
RAYS = [stand_in, *([pytest.param(real, marks=pytest.mark.soak)] if importlib.util.find_spec("ray") else [])]


@pytest.mark.parametrize("make", RAYS)
@pytest.mark.filterwarnings("ignore")  # Ray warns about itself
def test_a_ray_dataset_gives_its_rows_in_its_order(make, monkeypatch):
    """Rows are named by their place, so the order must not depend on which block was done first."""
    dataset = make(monkeypatch)()

    assert DatasetRecipe("r").add_ingredient("a", dataset).bake().buffer.to_pydict() == {"x": list(range(50))}
    assert appended(dataset) == {"x": list(range(50))}
    assert not dataset.context.execution_options.preserve_order
    assert Suite("s").expect("x", at_most=9).check(dataset).verdicts[0].n_bad == 40


def test_blocks_of_other_types_are_refused(monkeypatch):
    """Both are named, and what to do."""
    make = stand_in(monkeypatch)
    dataset = make()
    dataset.blocks[3] = pa.table({"x": [0.5]})

    with pytest.raises(SchemaError, match=r"x: double, those before x: int64; cast them in Ray"):
        appended(dataset)
    dataset.blocks = []
    with pytest.raises(SchemaError, match="without columns"):
        appended(dataset)
