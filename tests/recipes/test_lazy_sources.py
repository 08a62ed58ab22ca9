"""Datasets of pyarrow, queries of polars, Ray datasets, frames and tensors as ingredients: rows, names, caches."""

from __future__ import annotations

import os
import tempfile

import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import torch

from poolish import DatasetBuffer, DatasetRecipe, Suite, col
from poolish.columns import TableView
from poolish.errors import CorruptDataError, PoolishError, RecipeError, SchemaError
from poolish.guards import validate
from poolish.recipes.sources import as_source
from poolish.recipes.sources import source as sources
from tests.recipes.kitchen import cached, cut, fingerprints, message_of, numbers, origins, read_all, rows_of, write, xs


def baked(source, cache=None, **options):
    """One ingredient, baked."""
    return DatasetRecipe("r", seed=7).add_ingredient("a", source, **options).bake(cache=cache)


@pytest.fixture
def folder(tmp_path):
    """Two parquet files of 30 rows below a partition of the year."""
    for i, year in enumerate((2023, 2024)):
        write(tmp_path / "files" / f"year={year}" / f"{i}.parquet", numbers(30, 30 * i))
    return tmp_path / "files"


@pytest.fixture
def dataset(folder):
    """The files as a dataset with the partition as a column."""
    return ds.dataset(folder, partitioning="hive")


# Files of a dataset ---------------------------------------------------------------------------------------------------


def test_a_dataset_gives_the_rows_that_arrow_reads(dataset):
    """All columns, those of partitions included, in the dataset's order."""
    assert baked(dataset).table.to_pylist() == dataset.to_table().to_pylist()


def test_rows_of_a_dataset_are_named_by_file_and_place(folder, dataset):
    """Lineage leads to the row in the file, and another file renames nothing."""
    before = origins(baked(dataset, take=0.5))
    write(folder / "year=2022" / "9.parquet", numbers(30, 90))
    after = origins(baked(ds.dataset(folder, partitioning="hive"), take=0.5))

    assert {file for _, file, *_ in before} == {str(folder / f"year={2023 + i}" / f"{i}.parquet") for i in range(2)}
    assert set(before) < set(after)
    name, row = before[0][1], before[0][2]
    assert pq.read_table(name)["x"][row].as_py() == xs(baked(dataset, take=0.5))[0]


@pytest.mark.parametrize("where", [col.x >= 25, col.year == 2024, (col.year == 2023) & (col.x > 20), "text is null"])
def test_filters_see_own_columns_and_partitions(dataset, where):
    """The same rows as from a table."""
    where = "is_null(text)" if isinstance(where, str) else where
    table = dataset.to_table()

    assert xs(baked(dataset, where=where)) == xs(baked(table, where=where))


def test_a_filter_skips_row_groups_and_keeps_numbers(tmp_path):
    """What statistics rule out is not read; the rows behind it keep their numbers."""
    path = write(tmp_path / "a.parquet", numbers(100), row_group_size=10)
    with cut(grouped_rows=30):
        result = baked(ds.dataset(path), where=col.x >= 75)

        assert len(as_source(ds.dataset(path), "a").fragments()) == 4
    assert xs(result) == list(range(75, 100)) == [row for _, _, row, *_ in origins(result)]
    assert result.report.lines[0].rows_in == 100


def test_a_filter_of_the_dataset_renames_no_row(dataset):
    """Rows keep their numbers in the file, so a fraction of a filtered dataset is one of the whole."""
    filtered = dataset.filter(ds.field("x") >= 25)

    some, all_ = origins(baked(filtered, take=0.5)), origins(baked(dataset, take=0.5, where=col.x >= 25))
    assert some == all_ != []
    assert xs(baked(filtered, where=col.year == 2023)) == list(range(25, 30))
    assert rows_of(as_source(filtered, "a"), ["group"])[0] == {"group": "g1"}


def test_a_scanner_is_read_when_it_is_added(folder):
    """As an iterator is: it may be read only once, and does not say which files it reads."""
    recipe = DatasetRecipe("r").add_ingredient("a", ds.Scanner.from_batches(numbers(5).to_reader()))

    assert xs(recipe.bake()) == xs(recipe.bake()) == list(range(5))


def test_a_dataset_reads_only_the_columns_that_are_asked_for(dataset):
    """The projection reaches the files, also one of no column at all."""
    source = as_source(dataset, "a")

    assert rows_of(source, ["x", "year"])[31] == {"x": 31, "year": 2024}
    assert [number for _, number, _ in read_all(source, [])] == [*range(30)] * 2


def test_files_of_older_columns_are_read_in_the_columns_of_the_dataset(tmp_path):
    """A missing column is null and a narrow one is cast, as Arrow does it; filters see the result."""
    write(tmp_path / "0.parquet", pa.table({"x": pa.array([1, 2], pa.int32())}))
    write(tmp_path / "1.parquet", pa.table({"x": pa.array([3], pa.int64()), "y": ["new"]}))
    schema = pa.schema({"x": pa.int64(), "y": pa.string()})

    result = baked(ds.dataset(tmp_path, schema=schema), where=col.x >= 2)

    assert result.table.to_pylist() == [{"x": 2, "y": None}, {"x": 3, "y": "new"}]


def test_an_empty_dataset_has_columns(tmp_path):
    """No file at all, and a file without rows."""
    schema = pa.schema({"x": pa.int64()})
    assert baked(ds.dataset([], schema=schema)).buffer.column_names == ["x"]

    write(tmp_path / "a.parquet", schema.empty_table())
    assert baked(ds.dataset(tmp_path)).buffer.shape == (0, 1)


# Changes and caches ---------------------------------------------------------------------------------------------------


def test_only_files_that_changed_are_baked_again(folder, dataset, tmp_path):
    """The dataset object is the same; what lies behind it is not."""
    cache = tmp_path / "cache"
    assert cached(baked(dataset, cache)) == (0, 2)
    assert cached(baked(dataset, cache)) == (2, 2)

    write(folder / "year=2023" / "0.parquet", numbers(30, 900))
    again = baked(dataset, cache)

    assert cached(again) == (1, 2)
    assert xs(again) == [*range(900, 930), *range(30, 60)]


def test_a_file_that_changed_without_a_trace_is_seen(tmp_path):
    """Equal size, equal statistics and a restored date."""
    found = []
    for values in ([1, 2, 3, 9], [1, 3, 2, 9]):
        path = write(tmp_path / "a.parquet", pa.table({"x": values}))
        os.utime(path, ns=(10**18, 10**18))
        found.append(xs(baked(ds.dataset(path), tmp_path / "cache")))

    assert found == [[1, 2, 3, 9], [1, 3, 2, 9]]


def test_what_a_dataset_makes_of_a_file_is_part_of_what_it_is(folder, tmp_path):
    """The same files in other columns, with other partitions or with a filter share nothing in a cache."""
    plain, hive = ds.dataset(folder), ds.dataset(folder, partitioning="hive")
    cast = ds.dataset(folder, schema=pa.schema({"x": pa.float64()}))
    variants = [plain, hive, cast, hive.filter(ds.field("x") > 3), hive.filter(ds.field("x") > 4)]

    for each in variants:
        assert baked(each, tmp_path / "cache").table.to_pylist() == each.to_table().to_pylist()
        assert cached(baked(each, tmp_path / "cache"))[0] > 0


def test_a_file_that_changes_while_it_is_read_is_refused(folder, dataset):
    """Half of one file and half of another would be no file at all."""
    source = as_source(dataset, "ingredient 'a'")
    fragment = source.fragments()[0]
    reading = source.read(fragment, None, None)
    next(reading)
    write(folder / "year=2023" / "0.parquet", numbers(30, 900))

    with pytest.raises(RecipeError, match=r"0.parquet changed while it was read"):
        list(reading)


def test_a_file_that_is_gone_is_named(folder, dataset):
    """As for any other file of a recipe."""
    os.unlink(folder / "year=2024" / "1.parquet")

    with pytest.raises(RecipeError, match=r"ingredient 'a': .*1.parquet is gone"):
        baked(dataset)


@pytest.mark.parametrize("place", [100, -20])
def test_a_damaged_file_of_a_dataset_is_named(folder, dataset, place):
    """In its pages or in its footer, as for any other file of a recipe."""
    path = folder / "year=2024" / "1.parquet"
    content = bytearray(path.read_bytes())
    content[place : place + 16 if place > 0 else None] = b"\xff" * (16 if place > 0 else -place)
    path.write_bytes(content)

    with pytest.raises(CorruptDataError, match=r"ingredient 'a': .*1.parquet cannot be read as parquet"):
        baked(dataset)


def test_a_dataset_behind_fsspec_is_seen_to_change(memory, tmp_path):
    """Stamps are those of the file system that the dataset has."""
    found = []
    for values in ([1, 2, 3, 9], [1, 3, 2, 9]):
        with memory.open("/d/a.parquet", "wb") as file:
            pq.write_table(pa.table({"x": values}), file)
        dataset = ds.dataset("/d/a.parquet", filesystem=fsspec.filesystem("memory"))
        found.append(xs(baked(dataset, tmp_path / "cache")))

    assert found == [[1, 2, 3, 9], [1, 3, 2, 9]]


# What is computed -----------------------------------------------------------------------------------------------------


def csv_dataset(folder):
    """A dataset of another format than parquet."""
    pd.DataFrame({"x": range(5), "text": list("abcde")}).to_csv(folder / "a.csv", index=False)
    return ds.dataset(folder / "a.csv", format="csv")


LAZY = {
    "filtered": lambda folder: ds.dataset(folder, partitioning="hive").filter(ds.field("x") > 20),
    "scanner": lambda folder: ds.dataset(folder).scanner(columns=["x"], filter=ds.field("x") > 20),
    "in memory": lambda folder: ds.dataset(numbers(50)),
    "union": lambda folder: ds.dataset([ds.dataset(folder), ds.dataset(folder)]),
    "csv": csv_dataset,
    "elsewhere": lambda folder: ds.dataset(
        "year=2023", filesystem=pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    ),
    "query": lambda folder: pl.scan_parquet(folder / "**/*.parquet", hive_partitioning=True).filter(
        pl.col("x") % 2 == 0
    ),
    "categories": lambda folder: pl.LazyFrame({"x": range(9), "c": list("abcabcabc")}).cast({"c": pl.Categorical}),
}


def all_rows(value):
    """What the library itself reads."""
    return value.collect().to_dicts() if isinstance(value, pl.LazyFrame) else value.to_table().to_pylist()


@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("spool_bytes", [1 << 28, 0])
def test_what_is_lazy_gives_its_rows_in_its_order(folder, kind, spool_bytes, monkeypatch):
    """In memory or through a file that leaves no name behind; cut into parts of any size."""
    monkeypatch.setattr(sources, "SPOOL_BYTES", spool_bytes)
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    value = LAZY[kind](folder)
    before = sorted(os.listdir(folder.parent))
    with cut(fragment_rows=7):
        result = baked(value)

    assert result.table.to_pylist() == all_rows(value)
    assert sorted(os.listdir(folder.parent)) == before


@pytest.mark.parametrize("kind", LAZY)
def test_content_decides_whether_what_is_lazy_is_cached(folder, kind, tmp_path):
    """Made again it is found again; behind changed files it is not."""
    assert cached(baked(LAZY[kind](folder), tmp_path / "cache"))[0] == 0
    again = baked(LAZY[kind](folder), tmp_path / "cache")
    assert cached(again) == (cached(again)[1],) * 2


@pytest.mark.parametrize("kind", ["filtered", "union", "query", "elsewhere"])
def test_what_is_lazy_never_serves_rows_of_changed_files(folder, kind, tmp_path):
    """The same object, other files behind it."""
    value = LAZY[kind](folder)
    baked(value, tmp_path / "cache")
    write(folder / "year=2023" / "0.parquet", numbers(30, 900))

    assert baked(value, tmp_path / "cache").table.to_pylist() == all_rows(LAZY[kind](folder))


READ = {
    "bake": lambda value: xs(baked(value)),
    "append": lambda value: appended(value)["x"].to_pylist(),
    "suite": lambda value: TableView.of(value)["x"].to_arrow().to_pylist(),
}


def appended(value):
    """A buffer of the rows."""
    buffer = DatasetBuffer()
    buffer.append(value)
    return buffer


@pytest.mark.parametrize("values", [[5, 6, 7, 8], [5, 6, 7, 8, 9, 10], [9]])
@pytest.mark.parametrize("use", READ)
def test_footers_of_files_that_were_replaced_skip_no_rows(tmp_path, values, use):
    """Arrow and polars keep the footers of files that they have read; by the old one no row would be above 4."""
    path, layout = tmp_path / "a.parquet", {"row_group_size": 2, "use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table({"x": [1, 2, 3, 4]}), path, **layout)
    dataset, query = ds.dataset(path).filter(ds.field("x") > 4), pl.scan_parquet(path).filter(pl.col("x") > 4)
    assert len(dataset.to_table()) == len(query.collect()) == 0
    pq.write_table(pa.table({"x": values}), path, **layout)

    assert READ[use](dataset) == READ[use](query) == values


def test_a_query_is_computed_once_for_a_bake():
    """Rows are chosen, counted and read from one computation, so that they are the same rows."""
    n_calls = []

    def noted(frame):
        n_calls.append(1)
        return frame

    query = pl.LazyFrame({"x": range(100)}).map_batches(noted, schema={"x": pl.Int64})
    recipe = DatasetRecipe("r").add_ingredient("a", query, take=10, pick="top(x)").prepare_step("s", "shuffle")

    assert sorted(xs(recipe.bake())) == list(range(90, 100))
    assert len(n_calls) == 1
    recipe.bake()
    assert len(n_calls) == 2
    validate(query, "statistics", suite=Suite("s").expect("x", at_most=9))
    assert len(n_calls) == 3


def test_a_polars_without_batches_gives_the_same_rows(folder, monkeypatch):
    """Older ones compute the whole query at once."""
    monkeypatch.delattr(pl.LazyFrame, "collect_batches")

    assert baked(LAZY["query"](folder)).table.to_pylist() == all_rows(LAZY["query"](folder))
    assert baked(pl.LazyFrame(schema={"x": pl.Int64})).buffer.column_names == ["x"]


def test_a_query_that_cannot_be_copied_is_refused(folder, monkeypatch):
    """A query of what lies in memory need not be."""
    monkeypatch.setattr(pl.LazyFrame, "serialize", lambda *_: 1 / 0)

    assert len(baked(pl.LazyFrame({"x": [1]})).buffer) == 1
    with pytest.raises(SchemaError, match=r"cannot be copied.*pass query.collect\(\)"):
        baked(LAZY["query"](folder))


def test_errors_of_a_query_keep_their_type_and_name_the_ingredient(tmp_path):
    """A file that is not there, a column that no one has."""
    for query in (pl.scan_parquet(tmp_path / "none.parquet"), pl.LazyFrame({"x": [1]}).select("y")):
        with pytest.raises((OSError, pl.exceptions.PolarsError)) as caught:
            baked(query)
        assert "while reading a polars LazyFrame" in message_of(caught.value)
        assert "while reading ingredient 'a'" in message_of(caught.value)


def test_addresses_of_objects_are_no_rows():
    """Polars would export Python objects as numbers."""
    frame = pl.DataFrame({"x": [object()]}, schema={"x": pl.Object})
    for value in (frame, frame.lazy()):
        with pytest.raises(PoolishError, match="polars' Object"):
            baked(value)


def test_a_recipe_of_what_is_lazy_is_explained(dataset):
    """Nothing is baked."""
    for value in (dataset, dataset.filter(ds.field("x") > 20)):
        recipe = DatasetRecipe("r").add_ingredient("a", value, where=col.x > 30)
        assert int(recipe.explain().rows.value) == 29


# Frames and tensors ---------------------------------------------------------------------------------------------------


def test_an_index_without_a_name_is_no_column():
    """As for ``append``; one with a name is."""
    frame = pd.DataFrame({"x": [1, 2]}, index=["a", "b"])

    assert baked(frame).buffer.column_names == ["x"]
    assert baked(frame.rename_axis("key")).buffer.to_pydict() == {"key": ["a", "b"], "x": [1, 2]}


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_arrays_are_a_row_for_each_entry(make):
    """A dict of arrays has a column for each, one array is the column ``tensor``."""
    x, image = make(np.arange(4)), make(np.arange(16.0).reshape(4, 2, 2))

    both = baked({"x": x, "image": image}, where=col.x >= 2)
    assert xs(both) == [2, 3]
    assert both.buffer[0]["image"].tolist() == [[8, 9], [10, 11]]
    assert [row["tensor"].tolist() for row in map(baked(image).buffer.__getitem__, range(4))] == image.tolist()
    with pytest.raises(PoolishError, match="a"):
        baked({"x": x, "image": image[:3]})


def test_changed_tensors_are_other_rows(tmp_path):
    """Content decides, and the same content is found again."""
    x = torch.arange(4)
    baked({"x": x}, tmp_path / "cache")
    assert cached(baked({"x": x.clone()}, tmp_path / "cache")) == (1, 1)

    x[0] = 9
    assert xs(baked({"x": x}, tmp_path / "cache")) == [9, 1, 2, 3]
    assert fingerprints(as_source({"x": x.to(torch.bfloat16)}, "a")) != fingerprints(as_source({"x": x}, "a"))
