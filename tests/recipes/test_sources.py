"""Where rows come from: files, buffers, streams, tables, datasets, iterables; and what may be wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, DatasetRecipe, col
from poolish.errors import CorruptDataError, PoolishError, RecipeError, SchemaError, UnknownColumn
from poolish.recipes import stratified, top
from poolish.recipes.engine import LocalEngine
from poolish.recipes.sources import as_source
from poolish.testing import Canary
from tests.effort import IS_SOAK, times
from tests.recipes.kitchen import (
    arrow_file,
    content,
    cut,
    file_source,
    line,
    message_of,
    numbers,
    origins,
    shelf,
    write,
    xs,
)


def baked(source: Any, **options: Any) -> Any:
    """What comes of one ingredient."""
    return DatasetRecipe("r").add_ingredient("oats", source, **options).bake()


def told(source: Any, error: Any = PoolishError, **options: Any) -> str:
    """What an error and its notes say."""
    with pytest.raises(error) as caught:
        baked(source, **options)
    return message_of(caught.value)


# The same rows from everywhere ----------------------------------------------------------------------------------------


def arrow_stream(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return path


def jsonl(path: Path, table: pa.Table) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def csv(path: Path, table: pa.Table) -> Path:
    pyarrow.csv.write_csv(table, path)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


FILES = {
    "a.parquet": write,
    "a.pq": write,
    "a.arrow": arrow_file,
    "stream.arrow": arrow_stream,
    "a.feather": arrow_file,
    "a.jsonl": jsonl,
    "a.ndjson": jsonl,
    "a.jsonl.gz": jsonl,
    "a.csv": csv,
    "a.csv.gz": csv,
    "A.PARQUET": write,
}


@pytest.mark.parametrize("name", FILES)
def test_all_files_give_the_same_rows(name, tmp_path):
    """Whatever they are written as, compressed or not."""
    table = numbers(12).drop_columns(["text"])
    path = FILES[name](tmp_path / name, table)

    for source in (path, str(path), [path], tmp_path, f"{tmp_path}/*", path.as_uri()):
        result = baked(source, where=col.x > 3)
        assert result.table.to_pylist() == table.slice(4).to_pylist()
        assert [result.lineage.why(i).file for i in range(8)] == [name] * 8
        assert [result.lineage.why(i).row for i in range(8)] == list(range(4, 12))


def in_memory(table: pa.Table) -> dict[str, Any]:
    buffer = DatasetBuffer()
    buffer.append(table)
    return {
        "table": table,
        "batch": table.combine_chunks().to_batches()[0],
        "buffer": buffer,
        "snapshot": buffer.snapshot(),
        "rows": table.to_pylist(),
        "tuple": tuple(table.to_pylist()),
        "generator": (row for row in table.to_pylist()),
        "polars": pl.from_arrow(table),
        "pandas": table.to_pandas(),
        "dataset": datasets.Dataset(table),
        "reader": pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
    }


@pytest.mark.parametrize("kind", list(in_memory(numbers(1))))
def test_all_that_is_in_memory_gives_the_same_rows(kind):
    """Buffers, snapshots, tables, frames, datasets, lists and generators; and the same choice of them."""
    table = numbers(12).drop_columns(["text"])

    whole = baked(in_memory(table)[kind])
    some = baked(in_memory(table)[kind], where=col.x > 3, take=0.5)

    assert whole.table.to_pylist() == table.to_pylist()
    assert some.table.to_pylist() == baked(table, where=col.x > 3, take=0.5).table.to_pylist()
    assert [whole.lineage.why(i).row for i in range(12)] == list(range(12))


def test_an_iterable_is_read_once():
    """A generator is asked for each row once, and a recipe with one can be baked again."""
    n_asked = []

    def rows() -> Any:
        for x in range(5):
            n_asked.append(x)
            yield {"x": x}

    recipe = DatasetRecipe("r").add_ingredient("oats", rows(), take=3)

    assert xs(recipe.bake()) == xs(recipe.bake()) == xs(baked([{"x": x} for x in range(5)], take=3))
    assert n_asked == [0, 1, 2, 3, 4]


def test_a_reader_of_batches_is_read_once():
    """A stream of Arrow is an iterator as well: the second bake has the same rows or says why not."""
    table = numbers(5)
    recipe = DatasetRecipe("r").add_ingredient(
        "oats", pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    )

    assert xs(recipe.bake()) == xs(recipe.bake()) == [0, 1, 2, 3, 4]


def test_a_reader_of_batches_is_kept():
    """What can be read only once is read when it is given, and keeps its types."""
    table = pa.table({"x": pa.array([1, 2], pa.int16())})
    recipe = DatasetRecipe("r").add_ingredient("a", pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))

    assert recipe.bake().table == recipe.bake().table == table


def test_a_frame_with_an_index_of_its_own_gives_its_columns():
    """What pandas keeps beside the columns is no column."""
    frame = numbers(6).to_pandas()

    assert baked(frame[frame.x > 2]).table.column_names == ["x", "text", "group", "score"]


def test_a_dataset_with_an_order_of_its_own_is_read_in_it():
    """Selected, shuffled: rows as the dataset shows them."""
    dataset = datasets.Dataset(numbers(6).select(["x"]))

    assert xs(baked(dataset.select([4, 0, 2]))) == [4, 0, 2]


def test_a_buffer_is_read_as_it_was_when_the_bake_began():
    """A step that appends to the source does not meet its own rows."""
    buffer = DatasetBuffer()
    buffer.append([{"x": x} for x in range(5)])

    def grow(row: dict[str, Any]) -> dict[str, Any]:
        buffer.append({"x": 100})
        return row

    with cut(2):
        result = (
            DatasetRecipe("r")
            .add_ingredient("oats", buffer)
            .prepare_step("grow", grow, version=1)
            .bake(engine=LocalEngine(1))
        )

    assert xs(result) == [0, 1, 2, 3, 4]
    assert len(buffer) == 10


def test_rows_of_a_buffer_are_known_by_their_ids():
    """Also when others left, and at any place."""
    buffer = DatasetBuffer(max_size=5)
    buffer.append(numbers(12))

    for size in (1, 2, 5, 7, 65_536):
        with cut(size):
            result = baked(buffer)
        assert [(x, why[2]) for x, why in zip(xs(result), origins(result), strict=True)] == [
            (x, x) for x in range(7, 12)
        ]


# Paths ----------------------------------------------------------------------------------------------------------------


def test_files_are_read_in_the_order_of_their_names(tmp_path):
    """By the path below the root, whatever was written first."""
    for name in ("b.parquet", "a/z.parquet", "a.parquet", "a/b/c.parquet"):
        write(tmp_path / name, pa.table({"x": [name]}))

    assert xs(baked(tmp_path)) == sorted(["a.parquet", "a/b/c.parquet", "a/z.parquet", "b.parquet"])
    assert xs(baked(f"{tmp_path}/**/*.parquet")) == sorted(["a.parquet", "a/b/c.parquet", "a/z.parquet", "b.parquet"])
    assert xs(baked(f"{tmp_path}/*.parquet")) == ["a.parquet", "b.parquet"]
    assert xs(baked(f"{tmp_path}/[a]*.parquet")) == ["a.parquet"]


def test_a_relative_path_is_relative_to_where_we_are(tmp_path, monkeypatch):
    """As everywhere."""
    shelf(tmp_path / "data", 2, 3)
    monkeypatch.chdir(tmp_path)

    assert xs(baked("data/*.parquet")) == xs(baked("data")) == [*xs(baked(Path("data/000.parquet"))), 3, 4, 5]


def test_other_files_in_a_directory_are_left_alone(tmp_path):
    """A README is no data; but a file that was named must be one."""
    shelf(tmp_path, 1, 3)
    (tmp_path / "README.md").write_text("# data")
    (tmp_path / "_SUCCESS").write_text("")

    assert xs(baked(tmp_path)) == [0, 1, 2]
    assert all(word in told(tmp_path / "README.md", RecipeError) for word in ("oats", "README.md", ".parquet"))


def test_a_path_with_brackets_is_a_path_if_it_is_there(tmp_path):
    """Only what does not exist as it stands is a pattern."""
    path = write(tmp_path / "run[1]" / "a?.parquet", numbers(3))

    for source in (path, path.parent, [path]):
        assert xs(baked(source)) == [0, 1, 2]


def test_a_file_that_is_named_twice_is_read_once(tmp_path):
    """By a directory, a pattern and its own name."""
    shelf(tmp_path / "sub", 2, 3)

    result = baked([tmp_path, f"{tmp_path}/sub/*.parquet", tmp_path / "sub" / "000.parquet"])

    assert xs(result) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["nope.parquet", "*.parquet", "nope"])
def test_a_file_that_is_missing_is_told(name, tmp_path):
    """With the ingredient and the path."""
    message = told(str(tmp_path / name), RecipeError)

    assert "oats" in message
    assert name in message


def test_one_missing_file_of_several_is_told(tmp_path):
    """Not left out."""
    assert "gone.parquet" in told([write(tmp_path / "a.parquet", numbers(3)), tmp_path / "gone.parquet"], RecipeError)


def test_an_empty_directory_is_told(tmp_path):
    """Probably not what was meant."""
    assert "oats" in told(tmp_path, RecipeError)


@pytest.mark.parametrize(
    "path", ["ftp://host/a.parquet", "zip://a.parquet::a.zip", "github://a/b.parquet", "simplecache::s3://a"]
)
def test_only_known_protocols_are_opened(path):
    """A path never loads a file system that was not named."""
    message = told(path, (RecipeError, PoolishError))

    assert "oats" in message


def test_files_behind_fsspec_are_read(memory):
    """``memory://`` as any other file system: one file, a directory, a pattern; a changed one is seen by a cache."""
    for i in range(2):
        with memory.open(f"/shop/{i}.parquet", "wb") as file:
            pq.write_table(numbers(4, i * 4), file)

    for source in ("memory://shop/*.parquet", "memory://shop", ["memory://shop/0.parquet", "memory://shop/1.parquet"]):
        assert xs(baked(source)) == list(range(8))
    assert origins(baked("memory://shop"))[5][:3] == ("oats", "1.parquet", 1)


def test_a_remote_file_system_that_tells_times_is_not_looked_up_on_the_local_disk(memory, monkeypatch):
    """Some file systems have ``mtime`` in what they tell about a file: that is about the remote one."""
    with memory.open("/timed/0.parquet", "wb") as file:
        pq.write_table(numbers(4), file)
    real = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda self, path, **o: {**real(self, path, **o), "mtime": 1.5})

    assert xs(baked("memory://timed")) == [0, 1, 2, 3]


@pytest.mark.parametrize("source", [5, None, object(), 3.5])
def test_what_is_no_source_is_refused(source):
    """With the ingredient."""
    assert "oats" in told(source, RecipeError)


@pytest.mark.parametrize("source", [b"a.parquet", ["text that is no path"], [1, 2], "", ["", "x"]])
def test_what_is_hardly_a_source_is_refused_as_ours(source):
    """A PoolishError or a ValueError with the ingredient, never something from deep inside."""
    with pytest.raises((PoolishError, ValueError, TypeError)) as caught:
        baked(source)

    assert "oats" in message_of(caught.value)


def test_what_is_no_row_is_told_with_its_ingredient():
    """A list of numbers is no list of samples."""
    with pytest.raises(PoolishError) as caught:
        as_source([1, 2], "ingredient 'a'")

    assert caught.value.__notes__ == ["while reading ingredient 'a'"]


# Pushed down ----------------------------------------------------------------------------------------------------------


CELLS = {
    "i": st.one_of(st.none(), st.integers(-3, 3)),
    "f": st.one_of(st.none(), st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.5, float("nan"), float("inf")])),
    "t": st.one_of(st.none(), st.sampled_from(["", "a", "ab", "b", "é", "z" * 80])),
    "b": st.one_of(st.none(), st.booleans()),
}
QUESTIONS = [
    *(
        "i > 1",
        "i < -1",
        "i == 2",
        "i != 2",
        "not (i > 1)",
        "i >= 0.5",
        "i in [1, 3]",
        "not (i in [1, 3])",
        "is_null(i)",
    ),
    *("f > 1", "not (f > 1)", "f != 1", "f == 0", "not (f <= 1)", "f < 0 or f > 2", "is_null(f) or f > 2"),
    *(
        "t == 'a'",
        "t != 'a'",
        "t > 'b'",
        "starts_with(t, 'a')",
        "not starts_with(t, 'a')",
        "contains(t, 'b')",
        "t < 'a'",
    ),
    *("b", "not b", "b and i > 0", "b or f > 1", "i > 1 and t == 'a'", "not (i > 1 and t == 'a')", "true", "false"),
]


@settings(max_examples=times(20))
@given(
    rows=st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=12),
    where=st.sampled_from(QUESTIONS),
    size=st.integers(1, 5),
    statistics=st.booleans(),
)
def test_a_filter_pushed_into_parquet_answers_as_it_does_in_memory(rows, where, size, statistics, tmp_path_factory):
    """Row groups that are left out by their statistics hold no row that the filter is true for; counts are the same."""
    schema = pa.schema({"i": pa.int32(), "f": pa.float32(), "t": pa.string(), "b": pa.bool_()})
    table = pa.Table.from_pylist(rows, schema)
    path = tmp_path_factory.getbasetemp() / f"pushed-{os.getpid()}.parquet"
    pq.write_table(table, path, row_group_size=size, write_statistics=statistics)

    for take in (None, 2):
        got, want = (baked(source, where=where, take=take, on_short="accept") for source in (path, table))
        if take is None:
            assert repr(got.table.to_pylist()) == repr(want.table.to_pylist())
            assert [each[2] for each in origins(got)] == [each[2] for each in origins(want)]
        for count in ("rows_in", "nulls", "filtered"):
            assert getattr(line(got, "oats"), count) == getattr(line(want, "oats"), count)


def test_only_columns_that_are_needed_are_read(tmp_path):
    """A column that nobody asks for may even be unreadable."""
    path = write(tmp_path / "a.parquet", numbers(2_000).append_column("junk", pa.array(["junk"] * 2_000)))
    whole = path.read_bytes()
    offset = pq.ParquetFile(path).metadata.row_group(0).column(4).dictionary_page_offset
    path.write_bytes(whole[:offset] + b"\xff" * 20 + whole[offset + 20 :])

    recipe = DatasetRecipe("r").add_ingredient("oats", path, where=col.score > 3)
    result = recipe.prepare_step("few", "select", columns=["x"]).bake()

    assert result.table.column_names == ["x"]
    assert "a.parquet" in told(path, CorruptDataError)


def test_a_function_filter_gets_all_columns_before_a_select(tmp_path):
    """Column choice is pushed down only as far as the filter allows."""
    path = write(tmp_path / "a.parquet", numbers(9))
    for source in (path, numbers(9)):
        recipe = DatasetRecipe("r").add_ingredient("oats", source, where=lambda row: row["group"] == "g1")
        assert xs(recipe.prepare_step("few", "select", columns=["x"]).bake()) == [1, 4, 7]


def test_a_filter_on_a_field_of_a_struct_and_a_select(tmp_path):
    """``meta.lang`` is read though only ``x`` is selected."""
    table = pa.table({"x": [0, 1, 2], "meta": [{"lang": "en"}, {"lang": "de"}, {"lang": "en"}]})
    for source in (table, write(tmp_path / "a.parquet", table)):
        recipe = DatasetRecipe("r").add_ingredient("oats", source, where="meta.lang == 'en'")
        assert xs(recipe.prepare_step("few", "select", columns=["x"]).bake()) == [0, 2]


def test_two_ingredients_of_one_file_do_not_meet(tmp_path):
    """Each with its own filter, choice and columns."""
    folder = shelf(tmp_path, 2, 20, 5)
    recipe = (
        DatasetRecipe("r").add_ingredient("a", folder, where=col.x > 30).prepare_step("one", "select", columns=["x"])
    )
    recipe.add_ingredient("b", f"{folder}/*.parquet", where=col.group == "g1", take=5)
    recipe.prepare_step("two", "select", columns=["x"], where=col.ingredient == "b").add_ingredient(
        "c", folder, take=0.2
    )
    recipe.prepare_step("three", "select", columns=["x"], where=col.ingredient == "c")

    result = recipe.bake()

    wanted = [
        baked_as(name, folder, **o)
        for name, o in (
            ("a", {"where": col.x > 30}),
            ("b", {"where": col.group == "g1", "take": 5}),
            ("c", {"take": 0.2}),
        )
    ]
    assert xs(result) == [x for each in wanted for x in each]


def baked_as(name: str, source: Any, **options: Any) -> list[Any]:
    return xs(DatasetRecipe("r").add_ingredient(name, source, **options).bake())


# Files with something wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FILES if name != "A.PARQUET"])
def test_a_file_that_is_not_what_it_is_called_is_told(name, tmp_path):
    """CorruptDataError with ingredient and file; also cut in the middle, or empty."""
    (tmp_path / name).write_bytes(b"\x00\x01\x02 this is nothing \xff")
    assert name in told(tmp_path / name, CorruptDataError)

    whole = FILES[name](tmp_path / name, numbers(500)).read_bytes()
    if not name.endswith(("csv", "json", "jsonl", "ndjson")):
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        message = told(tmp_path / name, CorruptDataError)
        assert "oats" in message
        assert name in message


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow", "a.jsonl.gz", "a.csv"])
def test_random_damage_is_one_typed_error_or_rows(tmp_path, monkeypatch, name):
    """Bits that flip in a file: an error of ours that names the file, or rows; never another error, or no process."""
    monkeypatch.setattr("poolish.files.checksums.TICK_NS", 0)  # no other write within the tick of the clock
    path = FILES[name](tmp_path / name, numbers(300))
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    for i in range(times(200)):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            damaged[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        try:
            baked(path, where=col.text.length() > 3 if i % 2 else None)
        except PoolishError as error:
            if not isinstance(error, UnknownColumn):  # its name was damaged
                assert name in message_of(error)  # noqa: PT017


def test_nulls_in_a_column_that_is_declared_to_have_none_are_told(tmp_path):
    """Arrow lets anybody say so; ours are told as such, with the ingredient and the file."""
    schema = pa.schema([pa.field("x", pa.int32(), nullable=False)])
    table = pa.Table.from_arrays([pa.array([1, None, 3], pa.int32())], schema=schema)
    arrow_file(tmp_path / "a.arrow", table)

    for source in (table, tmp_path / "a.arrow"):
        with pytest.raises(SchemaError, match=r"'oats'.*'x' is declared not nullable and has 1 nulls"):
            baked(source)
        with pytest.raises(SchemaError, match=r"'oats'.*'x' is declared not nullable and has 1 nulls"):
            DatasetRecipe("r").add_ingredient("oats", source).explain()
        assert xs(baked(source, where=col.x > 1)) == [3]


def test_no_bit_of_a_footer_ends_the_process(tmp_path, monkeypatch):
    """Arrow does not survive to be asked for columns that contradict the schema; we do not ask."""
    monkeypatch.setattr("poolish.files.checksums.TICK_NS", 0)  # no other write within the tick of the clock
    path = write(tmp_path / "a.parquet", numbers(20))
    whole = path.read_bytes()
    n_footer = int.from_bytes(whole[-8:-4], "little")
    for bit in range(0, 8 * n_footer, 1 if IS_SOAK else 3):
        damaged = bytearray(whole)
        damaged[len(whole) - 8 - n_footer + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            baked(path, where=(col.x > 3) & (col.group == "g1"))
        except PoolishError as error:
            assert "a.parquet" in message_of(error)  # noqa: PT017


def test_a_long_line_of_json_is_a_row(tmp_path):
    """Documents are long: 3 MB are nothing special."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": "y" * 3_000_000}) + "\n" + json.dumps({"x": "z"}) + "\n")

    assert [len(x) for x in xs(baked(tmp_path))] == [3_000_000, 1]


def test_text_that_looks_like_a_date_stays_text(tmp_path):
    """No silent casts: what is a text in JSON is a text."""
    (tmp_path / "a.jsonl").write_text('{"x": "2020-01-01"}\n{"x": "2021-01-01 10:00:00"}\n')
    (tmp_path / "b.jsonl").write_text('{"x": "hello"}\n')

    assert xs(baked(tmp_path)) == ["2020-01-01", "2021-01-01 10:00:00", "hello"]


def test_an_empty_shard_has_no_rows(tmp_path):
    """A jsonl file of 0 bytes, a parquet file without row groups, a csv file with a header alone."""
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "a.jsonl").write_text("")
    (tmp_path / "j" / "b.jsonl").write_text('{"x": 1}\n')
    write(tmp_path / "p" / "a.parquet", pa.table({"x": pa.array([], pa.int64())}))
    write(tmp_path / "p" / "b.parquet", pa.table({"x": [1]}))

    assert xs(baked(tmp_path / "j")) == xs(baked(tmp_path / "p")) == [1]


def test_integers_of_json_and_csv_are_exact(tmp_path):
    """2**53 + 1 is not rounded."""
    (tmp_path / "a.jsonl").write_text(f'{{"x": {2**53 + 1}}}\n')
    (tmp_path / "b.csv").write_text(f"x\n{2**62 + 1}\n")

    assert xs(baked(tmp_path)) == [2**53 + 1, 2**62 + 1]


def test_files_of_one_ingredient_with_other_types_are_told(tmp_path):
    """The error names the ingredient, the column and a file."""
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("x\none\n")

    message = told(tmp_path)

    assert all(word in message for word in ("oats", "x", "b.csv"))


def test_files_of_one_ingredient_with_other_columns_are_told(tmp_path):
    """The error names the ingredient, the columns and a file."""
    write(tmp_path / "a.parquet", pa.table({"x": [1], "y": [1]}))
    write(tmp_path / "b.parquet", pa.table({"x": [1], "z": [1]}))

    message = told(tmp_path)

    assert all(word in message for word in ("oats", "z", "b.parquet"))


@pytest.mark.parametrize("change", ["append", "replace", "remove"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_file_that_changes_while_it_is_read_is_told(kind, change, tmp_path):
    """Rows of two versions are never mixed: an error names ingredient and file."""
    path = tmp_path / f"a.{kind}"
    make = (lambda n: write(path, numbers(n), 2)) if kind == "parquet" else (lambda n: jsonl(path, numbers(n)))
    make(8)
    seen: list[int] = []

    def where(row: dict[str, Any]) -> bool:
        if not seen:
            if change == "remove":
                path.unlink()
            elif change == "append":
                make(12)
            else:
                other = tmp_path / "other"
                shutil.copy(path, other)
                make(10)
                os.replace(path, other)
                os.replace(other, path)
        seen.append(row["x"])
        return True

    where.version = 1  # type: ignore[attr-defined]
    with pytest.raises((PoolishError, FileNotFoundError)) as caught:
        DatasetRecipe("r").add_ingredient("oats", path, where=where).bake(engine=LocalEngine(1))

    message = message_of(caught.value)
    assert f"a.{kind}" in message
    assert "oats" in message


def test_a_file_that_is_cut_while_it_is_read_does_not_kill_the_process(tmp_path):
    """In a child: a mapped file that somebody shortens must be an error, and no signal."""
    path = write(tmp_path / "a.parquet", numbers(40_000), 10_000)
    child = os.fork()
    if child == 0:
        code = 3
        try:
            done: list[int] = []

            def where(row: dict[str, Any]) -> bool:
                if not done:
                    done.append(1)
                    os.truncate(path, 1_000)
                return row["x"] < 10

            where.version = 1  # type: ignore[attr-defined]
            try:
                DatasetRecipe("r").add_ingredient("oats", path, where=where).bake(engine=LocalEngine(1))
                code = 2
            except PoolishError:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def test_data_is_never_code(tmp_path, marker):
    """What would run when unpickled does not run when baked, nor does anything in a name or an expression."""
    (tmp_path / "a.arrow").write_bytes(pickle.dumps(Canary(marker)))
    (tmp_path / "a.parquet").write_bytes(pickle.dumps(Canary(marker)))
    for name in ("a.arrow", "a.parquet"):
        told(tmp_path / name, CorruptDataError)

    assert not marker.exists()


def test_types_that_arrow_knows_go_through(tmp_path):
    """Decimals, dates, times, binary, dictionaries, lists, structs, large and small: from memory and from files."""
    table = pa.table(
        {
            "decimal": pa.array([Decimal("1.50"), None]),
            "date": pa.array([date(2020, 1, 1), None]),
            "time": pa.array([time(1, 2, 3), None]),
            "stamp": pa.array([datetime(2020, 1, 1, tzinfo=UTC), None]),
            "span": pa.array([timedelta(seconds=5), None]),
            "bytes": pa.array([b"\x00\xff", None]),
            "coded": pa.array(["a", None]).dictionary_encode(),
            "list": pa.array([[1, None], None]),
            "struct": pa.array([{"a": [{"b": 1}]}, None]),
            "small": pa.array([1, None], pa.uint8()),
            "half": pa.array([np.float16(0.5), None], pa.float16()),
        }
    )
    want = table.to_pylist()

    for source in (table, write(tmp_path / "a.parquet", table), arrow_file(tmp_path / "a.arrow", table)):
        plain = baked(source)
        assert plain.table.to_pylist() == want
        for _ in range(2):
            kept = DatasetRecipe("r").add_ingredient("oats", source).bake(cache=tmp_path / "cache")
            assert content(kept) == content(plain)


def few_words(n_rows: int) -> pa.Table:
    """A column that parquet keeps as numbers of words, and one that it does not."""
    kinds = [("rye", "wheat", None)[i % 3] for i in range(n_rows)]
    return pa.table({"kind": pa.array(kinds), "text": [f"loaf {i}" for i in range(n_rows)], "x": range(n_rows)})


@pytest.mark.parametrize(
    "choice", [{}, {"take": 500}, {"take": 200, "pick": top("kind")}, {"pick": stratified("kind")}]
)
def test_words_of_parquet_are_texts_by_the_time_anybody_sees_them(tmp_path, choice):
    """Filters, choices, steps and the cache: all as if each text were spelled out in the file."""
    seen = []

    def look(table: pa.Table) -> pa.Table:
        seen.append(table.schema.field("kind").type)
        return table

    made = {}
    choice = {"take": 0.5, **choice} if "pick" in choice and "take" not in choice else choice
    for is_coded in (True, False):
        folder = tmp_path / str(is_coded)
        folder.mkdir()
        for i in range(2):
            pq.write_table(few_words(3_000), folder / f"{i}.parquet", use_dictionary=is_coded, row_group_size=1_000)
        recipe = DatasetRecipe("r").add_ingredient(
            "a", str(folder), where=(col.kind == "rye") | col.kind.is_null(), **choice
        )
        recipe.prepare_step("look", look, batched=True, version=1)
        recipe.prepare_step("loud", "map", where="kind == 'rye'", columns={"kind": col.kind.upper()})
        made[is_coded] = [content(recipe.bake(cache=tmp_path / f"cache {is_coded}")) for _ in range(2)]

    source = file_source(str(tmp_path / "True"))
    table, _ = next(source.read(source.fragments()[0], None, None))
    assert [pa.types.is_dictionary(field.type) for field in table.schema] == [True, False, False]
    assert made[True] == made[False]
    assert set(seen) == {pa.large_string()}


def test_a_map_style_dataset_is_a_source():
    """A dataset of torch has a length and an index and is not iterable; it is read again by every bake."""

    class Growing(torch.utils.data.Dataset):
        n_rows = 3

        def __len__(self):
            return self.n_rows

        def __getitem__(self, i):
            return {"x": i, "image": torch.full((2,), float(i))}

    dataset = Growing()
    recipe = DatasetRecipe("r").add_ingredient("a", dataset, where=col.x > 0)

    assert xs(recipe.bake()) == [1, 2]
    assert recipe.bake().buffer[0]["image"].tolist() == [1.0, 1.0]
    assert recipe.explain().rows.value == 2
    dataset.n_rows = 5
    assert xs(recipe.bake()) == [1, 2, 3, 4]
    assert xs(DatasetRecipe("r").add_ingredient("a", torch.utils.data.Subset(dataset, [4, 2])).bake()) == [4, 2]
