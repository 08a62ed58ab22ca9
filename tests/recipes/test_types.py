"""Columns of odd types: whatever a file or a frame keeps its values in, a bake gives what the values are."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import DatasetBuffer, DatasetRecipe, col
from poolish.errors import CorruptDataError, UnknownColumn


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["de", "en"])])
def test_categories_of_polars_are_texts(dtype):
    """Arrow cannot take rows of the words that polars keeps them as."""
    frame = pl.DataFrame({"lang": pl.Series(["en", "de", None], dtype=dtype)})
    recipe = DatasetRecipe("r").add_ingredient("a", frame)

    assert recipe.bake().table.to_pylist() == [{"lang": "en"}, {"lang": "de"}, {"lang": None}]
    chosen = DatasetRecipe("r").add_ingredient("a", frame, where=col.lang == "en")
    assert chosen.bake().table.to_pylist() == [{"lang": "en"}]
    assert (col.lang == "en").mask(frame.to_arrow().slice(0, 1))[0].tolist() == [True]  # fewer rows than words
    assert col.lang.values(frame.to_arrow()).to_pylist() == ["en", "de", None]


def test_a_file_with_nothing_but_nulls_is_a_stratum(tmp_path):
    """Its column has no type, the others know it."""
    pq.write_table(pa.table({"lang": ["en", "de"] * 50}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"lang": pa.nulls(100)}), tmp_path / "b.parquet")
    recipe = DatasetRecipe("r").add_ingredient("a", str(tmp_path), take=40, pick="stratified(lang)")

    langs = recipe.bake().table.column("lang").to_pylist()

    assert {lang: langs.count(lang) for lang in ("en", "de", None)} == {"en": 10, "de": 10, None: 20}


def test_a_file_without_rows_needs_no_counts_of_tokens(tmp_path):
    """Nor a column that says of which type they would be."""
    pq.write_table(pa.table({"n": [1, 2], "tokens": [3, 3]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": pa.array([], pa.int64()), "tokens": pa.nulls(0)}), tmp_path / "b.parquet")
    recipe = DatasetRecipe("r", total=6, unit="tokens", tokens="tokens").add_ingredient("a", str(tmp_path), weight=1)

    assert recipe.bake().table.to_pylist() == [{"n": 1, "tokens": 3}, {"n": 2, "tokens": 3}]


def test_a_column_that_a_step_does_not_find_is_told_with_those_there_are(tmp_path):
    """All of them, not only what would have been read for it."""
    pq.write_table(pa.table({"lang": ["en"], "text": ["rye"]}), tmp_path / "a.parquet")
    recipe = DatasetRecipe("r").add_ingredient("a", str(tmp_path), where=col.lang == "en")

    with pytest.raises(UnknownColumn, match=r"there are \['lang', 'text'\]"):
        recipe.prepare_step("s", "select", columns=["texts"]).bake()


def test_slices_of_lists_of_one_length_in_such_lists():
    """Arrow's own filter takes other rows than it should, or what lies behind them."""
    boxes = [[[4 * i, 4 * i + 1], [4 * i + 2, 4 * i + 3]] for i in range(6)]
    table = pa.table({"n": range(6), "box": pa.array(boxes, pa.list_(pa.list_(pa.int64(), 2), 2))}).slice(3)

    for recipe in (
        DatasetRecipe("r").add_ingredient("a", table, where="n != 4"),
        DatasetRecipe("r").add_ingredient("a", table).prepare_step("f", "filter", keep="n != 4"),
        DatasetRecipe("r").add_ingredient("a", table).prepare_step("s", "shuffle").prepare_step("d", "dedup"),
    ):
        rows = {row["n"]: row["box"] for row in recipe.bake().table.to_pylist()}
        assert rows == {n: boxes[n] for n in rows}
        assert set(rows) >= {3, 5}


def test_a_filter_beside_tensors_of_arrow(tmp_path):
    """Arrow itself has no empty ones of those that it makes of NumPy's arrays."""
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.float32).reshape(3, 2))
    pq.write_table(pa.table({"n": [1, 2, 3], "t": tensors}), tmp_path / "t.parquet")

    result = DatasetRecipe("r").add_ingredient("a", tmp_path / "t.parquet", where="n > 1").bake()

    assert result.buffer.to_numpy()["t"].tolist() == [[2, 3], [4, 5]]
    nothing = DatasetRecipe("r").add_ingredient("a", tmp_path / "t.parquet", where="n > 9")
    assert len(nothing.bake().buffer) == 0


def test_differences_of_arrays():
    """Row by row, as of anything else."""
    before, after = DatasetBuffer(), DatasetBuffer()
    before.append_columns({"x": np.ones((5, 4), np.float32)})
    after.append_columns({"x": np.ones((5, 4), np.float32) + np.eye(5, 4, dtype=np.float32)})
    baked = [DatasetRecipe("r").add_ingredient("a", buffer).bake() for buffer in (before, after)]

    assert baked[1].diff(baked[0]).changed == 4
    assert baked[0].diff(baked[0]).changed == 0


@pytest.mark.parametrize("is_file", [True, False])
def test_bytes_that_are_no_text_are_told(tmp_path, is_file):
    """Arrow does not look whether text is text; a buffer with such a cell could be saved, and not loaded again."""
    damaged = pa.array([b"rye", b"\xff\xfe", b"oats"], pa.binary()).view(pa.string())
    table = pa.table({"x": [1, 2, 3], "text": damaged})
    if is_file:
        pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    source = tmp_path / "a.parquet" if is_file else table

    with pytest.raises(CorruptDataError, match=r"ingredient 'a'.*column 'text'.*UTF8"):
        DatasetRecipe("r").add_ingredient("a", source).bake()
    assert len(DatasetRecipe("r").add_ingredient("a", source, where="x != 2").bake().buffer) == 2
