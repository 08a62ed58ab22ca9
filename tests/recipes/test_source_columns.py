"""Every kind of source gives the columns that it is asked for, also of no rows, or says which is not there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from poolish import DatasetBuffer, DatasetRecipe, StreamStore, col
from poolish.errors import UnknownColumn
from poolish.recipes.sources import BufferSource, TableSource
from poolish.recipes.sources.source import RecipeSource
from tests.recipes.kitchen import arrow_file, file_source, rows_of, write

NESTED = pa.table({"m": [{"l": "a", "n": 1}, {"l": "b", "n": 2}], "x": [1, 2], "y": [3, 4]})


@pytest.fixture(params=["table", "buffer", "parquet", "arrow", "recipe"])
def nested_source(request, tmp_path):
    """The same rows in each kind of source."""
    if request.param == "table":
        return TableSource(NESTED)
    if request.param == "recipe":
        return RecipeSource(DatasetRecipe("inner").add_ingredient("a", NESTED))
    if request.param == "buffer":
        buffer = DatasetBuffer()
        buffer.append(NESTED)
        return BufferSource(buffer)
    make = {"parquet": write, "arrow": arrow_file}[request.param]
    return file_source(str(make(tmp_path / f"a.{request.param}", NESTED)))


def test_a_field_is_read_with_its_struct(nested_source):
    """``m.l`` is in the column ``m``; each column is given once, and what nobody asks for is not."""
    assert rows_of(nested_source, ["m.l", "x", "m.n"]) == NESTED.select(["m", "x"]).to_pylist()


def test_without_columns_rows_are_still_counted(nested_source):
    """Who only counts reads nothing."""
    (fragment,) = nested_source.fragments()
    ((table, rows),) = nested_source.read(fragment, [], None)

    assert (table.num_rows, table.num_columns, len(rows)) == (2, 0, 2)


def test_a_column_that_is_not_there_is_an_error(nested_source):
    """Never a table with fewer columns than were asked for."""
    with pytest.raises(UnknownColumn, match="'z'"):
        rows_of(nested_source, ["x", "z"])


@pytest.mark.parametrize("kind", ["table", "buffer", "parquet", "recipe", "stream"])
def test_a_source_without_rows_has_columns(tmp_path, kind):
    """Nothing is still something of certain types."""
    empty = pa.table({"x": pa.array([], pa.int64())})
    source = {"table": empty, "parquet": str(tmp_path / "a.parquet")}.get(kind)
    if kind == "buffer":
        source = DatasetBuffer()
        source.append([{"x": 1}])
        source.retain(0.0)
    elif kind == "parquet":
        write(tmp_path / "a.parquet", empty)
    elif kind == "recipe":
        source = DatasetRecipe("inner").add_ingredient("a", [{"x": 1}], where=col.x > 1)
    elif kind == "stream":
        source = StreamStore(tmp_path / "s", fields={"x": "int64"})

    result = DatasetRecipe("r").add_ingredient("a", source).bake()

    assert (result.table.schema.names, result.table.num_rows) == (["x"], 0)


@pytest.mark.parametrize("kind", ["table", "arrow"])
def test_views_are_read_as_what_they_show(tmp_path, kind):
    """Arrow cannot filter views yet, and frames and files of polars are full of them."""
    views = pa.table({"t": pa.array(["a", None, "b"], pa.string_view()), "l": [["x"], None, []]})
    source = views if kind == "table" else str(arrow_file(tmp_path / "a.arrow", views))

    result = DatasetRecipe("r").add_ingredient("a", source, where=col.t == "b").bake()

    assert result.table.to_pylist() == [{"t": "b", "l": []}]
