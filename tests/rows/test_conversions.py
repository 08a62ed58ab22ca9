"""Rows as lists, arrays and tables: exact, without a copy where that is promised, and never changing afterwards."""

from __future__ import annotations

import datetime as dt
import html.parser

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

from poolish import DatasetBuffer, Field
from tests.rows.facts import facts, plain

ROWS = [
    {
        "flag": i % 2 == 0,
        "n": i,
        "small": np.int8(i),
        "half": np.float16(i / 2),
        "real": i / 2,
        "text": f"row {i}",
        "raw": bytes([i]),
        "vector": np.array([i, -i], np.float32),
        "matrix": np.full((2, 2), i, np.uint8),
        "marks": np.array([True, i == 0]),
        "wave": np.array([i + 1j]),
        "ragged": np.arange(i),
        "words": ["w"] * i,
        "pair": {"a": i, "b": str(i)},
        "time": np.datetime64(i, "us"),
        "maybe": None if i == 1 else i,
    }
    for i in range(5)
]


def filled(drop_strategy="oldest"):
    buffer = DatasetBuffer(max_size=5, drop_strategy=drop_strategy)
    buffer.append([{**ROWS[0], "n": 99}, {**ROWS[1], "n": 98}])
    buffer.append(ROWS, retain_prior=0.0)
    return buffer


def inside(address, array):
    """Whether an address lies in the memory of an Arrow array."""
    return any(b is not None and b.address <= address < b.address + b.size for b in array.buffers())


# -- to_pydict


def test_to_pydict_gives_what_single_rows_give():
    """Columns as lists, in the order of the schema."""
    buffer = filled()
    columns = buffer.to_pydict()

    assert list(columns) == list(ROWS[0])
    assert plain([{name: values[i] for name, values in columns.items()} for i in range(5)]) == plain(
        [buffer[i] for i in range(5)]
    )
    assert columns["pair"][2] == {"a": 2, "b": "2"}
    assert columns["time"][3] == dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=3)
    assert columns["maybe"] == [0, None, 2, 3, 4]


def test_what_to_pydict_gives_belongs_to_the_caller():
    """Writing to it changes no row."""
    buffer = filled()
    before = facts(buffer)

    columns = buffer.to_pydict()
    columns["vector"][0].fill(9)
    columns["words"][2].append("mine")
    columns["pair"][0]["a"] = 9

    assert facts(buffer) == before


def test_a_buffer_without_rows_converts_to_nothing():
    """With its columns, if it has any."""
    declared = DatasetBuffer(
        schema=[
            Field("n", "int64"),
            Field("x", "float32", shape=(2,)),
            Field("r", "float32", shape=(None,)),
            Field("s", "string"),
        ]
    )

    assert DatasetBuffer().to_pydict() == DatasetBuffer().to_numpy() == {}
    assert DatasetBuffer().to_arrow().num_columns == 0
    assert declared.to_pydict() == {"n": [], "x": [], "r": [], "s": []}
    assert {name: array.shape for name, array in declared.to_numpy().items()} == {
        "n": (0,),
        "x": (0, 2),
        "r": (0,),
        "s": (0,),
    }


# -- to_numpy


def test_to_numpy_gives_arrays_of_the_stored_types():
    """Numbers, flags, times and tensors of one shape; objects for anything else."""
    arrays = filled().to_numpy()

    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "flag": ("bool", (5,)),
        "n": ("int64", (5,)),
        "small": ("int8", (5,)),
        "half": ("float16", (5,)),
        "real": ("float64", (5,)),
        "text": ("object", (5,)),
        "raw": ("object", (5,)),
        "vector": ("float32", (5, 2)),
        "matrix": ("uint8", (5, 2, 2)),
        "marks": ("bool", (5, 2)),
        "wave": ("complex128", (5, 1)),
        "ragged": ("object", (5,)),
        "words": ("object", (5,)),
        "pair": ("object", (5,)),
        "time": ("datetime64[us]", (5,)),
        "maybe": ("object", (5,)),
    }
    for name, array in arrays.items():
        expected = [np.asarray(row[name]) if array.dtype != object else row[name] for row in ROWS]
        assert plain(list(array)) == plain(
            [v[()] if isinstance(v, np.ndarray) and not v.shape else v for v in expected]
        )


@pytest.mark.parametrize("name", ["n", "small", "half", "real", "vector", "matrix", "marks", "wave", "time"])
def test_to_numpy_does_not_copy_numbers(name):
    """The array lies in the memory of the column."""
    buffer = filled()

    array = buffer.to_numpy([name])[name]

    assert inside(array.__array_interface__["data"][0], buffer.to_arrow()[name].chunk(0))


def test_arrays_of_to_numpy_cannot_be_written():
    """They show the buffer's own memory, so NumPy protects it."""
    for array in filled().to_numpy().values():
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]


def test_only_the_columns_asked_for_are_converted():
    """In the order asked for."""
    assert list(filled().to_numpy(["text", "n"])) == ["text", "n"]
    assert list(filled().to_numpy([])) == []


@pytest.mark.parametrize("drop_strategy", ["oldest", "random"])
def test_what_was_converted_does_not_change_with_the_buffer(drop_strategy):
    """Appending, evicting, thinning, updating and clearing leave earlier views alone."""
    buffer = filled(drop_strategy)
    table, arrays = buffer.to_arrow(), buffer.to_numpy()
    before = (
        plain(table.drop_columns(["wave"]).to_pylist()),
        plain({name: list(array) for name, array in arrays.items()}),
    )

    for i in range(20):
        buffer.append({**ROWS[4], "n": 100 + i})
        buffer.update(buffer.ids, {"n": [-1] * 5, "vector": np.zeros((5, 2), np.float32), "text": ["new"] * 5})
    buffer.retain(0.5, by="random")
    buffer.clear()

    assert before == (
        plain(table.drop_columns(["wave"]).to_pylist()),
        plain({name: list(array) for name, array in arrays.items()}),
    )


# -- to_arrow and the C stream


def test_to_arrow_is_one_chunk_without_a_copy():
    """Called again it shows the same memory; a slice shows it too."""
    buffer = filled()
    table = buffer.to_arrow()

    for name in table.column_names:
        assert table[name].num_chunks == 1
    again = buffer.to_arrow()
    assert again["n"].chunk(0).buffers()[1].address == table["n"].chunk(0).buffers()[1].address
    assert buffer[1:3]["n"].chunk(0).buffers()[1].address == table["n"].chunk(0).buffers()[1].address
    table.validate(full=True)


def test_to_arrow_stays_one_chunk_however_the_rows_came_and_went():
    """Taking from many chunks would cost a hundred times as much."""
    buffer = DatasetBuffer(max_size=50, drop_strategy="random")
    for i in range(30):
        buffer.append([{"n": i, "s": str(i)}] * (i % 4))
        buffer.append({"n": i, "s": str(i)})

    table = buffer.to_arrow()

    assert {column.num_chunks for column in table.columns} == {1}
    assert table.num_rows == 50


PLAIN = ["n", "real", "text", "words", "pair", "maybe", "flag", "raw"]


@pytest.mark.parametrize("take", [lambda b: b, lambda b: b.snapshot()], ids=["buffer", "snapshot"])
@pytest.mark.parametrize(
    "read",
    [
        lambda rows: pa.table(rows).select(PLAIN).to_pylist(),
        lambda rows: pa.RecordBatchReader.from_stream(rows).read_all().select(PLAIN).to_pylist(),
        lambda rows: pl.DataFrame(rows).select(PLAIN).to_dicts(),
        lambda rows: duckdb.sql(f"select {', '.join(PLAIN)} from rows").to_arrow_table().to_pylist(),
        lambda rows: (
            pd.DataFrame.from_arrow(rows)[PLAIN].astype(object).where(lambda f: f.notna(), None).to_dict("records")
        ),
    ],
    ids=["pyarrow", "stream", "polars", "duckdb", "pandas"],
)
def test_other_libraries_read_the_rows_through_arrow(read, take):
    """Anything that speaks the C stream sees the same rows."""
    buffer = DatasetBuffer()
    buffer.append([{name: row[name] for name in PLAIN} for row in ROWS])

    seen = read(take(buffer))

    tidy = [{**row, "words": list(row["words"]), "pair": dict(row["pair"]), "raw": bytes(row["raw"])} for row in seen]
    assert tidy == [{name: row[name] for name in PLAIN} for row in ROWS]


def test_a_requested_schema_is_honoured_or_refused():
    """The C stream may ask for other types; pyarrow casts safely."""
    buffer = DatasetBuffer()
    buffer.append([{"n": 1}, {"n": 300}])

    wider = pa.table(buffer, schema=pa.schema([("n", pa.int32())]))

    assert wider["n"].to_pylist() == [1, 300]
    with pytest.raises((pa.ArrowInvalid, ValueError)):
        pa.table(buffer, schema=pa.schema([("n", pa.int8())]))


# -- showing


def test_repr_says_how_many_rows_of_what():
    """One line, also for an empty buffer and for one that is bounded."""
    buffer = DatasetBuffer(max_size=2_000, drop_strategy="random")

    assert repr(buffer) == "DatasetBuffer(0 rows, no schema yet, max_size=2000, drop_strategy='random')"
    buffer.append([{"n": 1, "x": np.zeros((2, 3), np.float32), "t": "a"}] * 1_500)
    assert (
        repr(buffer)
        == "DatasetBuffer(1,500 rows of {n: int64, x: float32[2, 3], t: text}, max_size=2000, drop_strategy='random')"
    )
    assert repr(buffer.snapshot()) == "Snapshot(1,500 rows of {n: int64, x: float32[2, 3], t: text})"


class Tags(html.parser.HTMLParser):
    """Which tags a page has, and that each is closed where it should be."""

    VOID = frozenset({"br", "hr", "img", "meta", "link", "input"})

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.attributes, self.text = [], set(), [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


HOSTILE = [
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "&lt;b&gt;",
    "'`${x}",
    "<!--",
    "]]>",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("take", [lambda b: b, lambda b: b.snapshot()], ids=["buffer", "snapshot"])
def test_a_notebook_shows_hostile_text_as_text(text, take):
    """In cells, in names of columns, in lists, structs and bytes: nothing becomes a tag or an attribute."""
    innocent, hostile = DatasetBuffer(), DatasetBuffer()
    for buffer, words in ((innocent, "words"), (hostile, text)):
        buffer.append(
            [{"cell": words, f"{words} as a name": 1, "list": [words], "struct": {words: words}, "raw": words.encode()}]
        )

    page = Tags(take(hostile)._repr_html_())

    expected = Tags(take(innocent)._repr_html_())
    assert page.seen == expected.seen
    assert sorted(page.attributes) == sorted(expected.attributes)
    assert any(text in part for part in page.text)


def test_a_notebook_shows_the_first_and_the_last_rows():
    """With their ids; a long value is cut, an array and a picture are told by their kind."""
    buffer = DatasetBuffer()
    buffer.append(
        [
            {"n": i, "long": "y" * 500, "x": np.zeros((3, 4)), "image": Image.new("L", (2, 2)), "none": None}
            for i in range(1_000)
        ]
    )
    buffer.retain(0.9)

    page = buffer._repr_html_()
    text = " ".join(Tags(page).text)

    assert "900 rows" in text
    assert "float64[3, 4]" in text
    assert " 100 " in text
    assert " 999 " in text
    assert " 500 " not in text
    assert len(page) < 20_000


def test_an_empty_buffer_can_be_shown():
    """In a notebook and in a terminal."""
    for buffer in (DatasetBuffer(), DatasetBuffer(schema={"n": "int64"})):
        assert "0 rows" in " ".join(Tags(buffer._repr_html_()).text)
        assert "0 rows" in repr(buffer)
