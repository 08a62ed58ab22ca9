"""Files of arrow, jsonl and csv are read as they are written: long lines, texts that look like dates, no rows."""

from __future__ import annotations

import gzip
import io

import pyarrow as pa
import pytest

from poolish import DatasetRecipe, col, formats
from poolish.errors import CorruptDataError
from poolish.recipes.sources import files
from tests.recipes.kitchen import file_source, read_all, rows_of


def written(tmp_path, name, data):
    """A source of one file with this content."""
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return file_source(str(tmp_path / name))


@pytest.mark.parametrize("n_bytes", [10, (1 << 20) - 9, 1 << 20, 3_000_000])
def test_lines_may_be_long(tmp_path, n_bytes):
    """Longer than any block that Arrow reads by itself."""
    text = "x" * n_bytes
    lines = written(tmp_path, "a.jsonl", f'{{"t": "a"}}\n{{"t": "{text}"}}\n{{"t": "b"}}')
    table = written(tmp_path, "a.csv", f't,u\na,1\n"{text}",2\nb,3\n')

    assert [row["t"] for row in rows_of(lines)] == ["a", text, "b"]
    assert [row["t"] for row in rows_of(table)] == ["a", text, "b"]


def test_a_row_of_csv_may_have_many_lines(tmp_path):
    """A text within quotes keeps its lines, wherever a block happens to end and however many there are."""
    text = "line\n" * 300_000
    table = written(tmp_path, "a.csv", f't\na\n"{text}"\n' + '"x\ny"\n' * 100_000)

    found = [row["t"] for row in rows_of(table)]

    assert (found[:2], len(found), set(found[2:])) == (["a", text], 100_002, {"x\ny"})


@pytest.mark.parametrize("size", [1, 100, (1 << 20) + 1])
def test_the_longest_line_is_found(size, monkeypatch):
    """However the bytes are cut while looking for it."""
    monkeypatch.setattr(formats, "_SCANNED_BYTES", 1000)
    monkeypatch.setattr(formats, "_BLOCK_BYTES", 10)
    for data in (b"x" * size, b"x" * size + b"\n", b"\n" + b"x" * size + b"\n\nb", b"a\n" * 2000 + b"x" * size + b"\n"):
        assert formats._longest_line(data) == size


def test_text_stays_text(tmp_path):
    """What looks like a date is as much a text as any other, so two files of one source have the same types."""
    dated = '{"d": "2020-01-01", "l": [{"t": "2020-01-01T10:00:00Z"}], "n": null, "x": 1}\n'
    lines = written(tmp_path, "a.jsonl", dated)
    table = written(tmp_path, "a.csv", "d,t,x\n2020-01-01,10:00:00,1\n")
    written(tmp_path, "b.jsonl", '{"d": "hello", "l": [{"t": "x"}], "n": null, "x": 2}\n')

    assert rows_of(lines) == [{"d": "2020-01-01", "l": [{"t": "2020-01-01T10:00:00Z"}], "n": None, "x": 1}]
    assert rows_of(table) == [{"d": "2020-01-01", "t": "10:00:00", "x": 1}]
    assert DatasetRecipe("r").add_ingredient("a", str(tmp_path / "*.jsonl")).bake().table["d"].to_pylist() == [
        "2020-01-01",
        "hello",
    ]


def test_empty_shards_have_no_rows(tmp_path):
    """A shard may be empty: no error, and no say about the columns, wherever it stands among the others."""
    for name in ("0.jsonl", "9.jsonl"):
        written(tmp_path, name, "" if name == "0.jsonl" else " \n\n")
    written(tmp_path, "1.jsonl", '{"x": 1}\n')
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(b""))
    recipe = DatasetRecipe("r").add_ingredient("a", str(tmp_path), where=col.x > 0)

    assert recipe.bake().table.to_pylist() == [{"x": 1}]
    assert file_source(str(tmp_path)).schema().names == ["x"]
    assert file_source(str(tmp_path / "0.jsonl")).fragments() == []


@pytest.mark.parametrize(
    ("name", "data", "is_plain"),
    [
        ("a.jsonl", '{"a": 1}', True),
        ("a.jsonl", '\n{"a": 1}\r\n  { "a": 2, "b": {"c": []}} \n\n', True),
        ("a.jsonl", '{"a": 1}{"a": 2} {"a": 3}\n{"a": 4}', False),
        ("a.jsonl", '{"a": 1}null{"a": 2}\n', False),
        ("a.jsonl", '{"a":\n1}\n{"b": [{"c": 1}\n,{"c": 2}]}', False),
        ("a.jsonl", '{"a": "}{"}\n', False),
        ("a.csv", "a,b\n1,2\n\n3,4", True),
        ("a.csv", "a\r\n1\r\n \r\n", True),
        ("a.csv", 'a\n"1\n2"\n', False),
        ("a.csv", "\ufeff\na\n1\n", False),
        ("a.csv", "a,b\n", False),
    ],
)
def test_the_rows_of_a_short_text_are_counted(tmp_path, monkeypatch, name, data, is_plain):
    """As many as reading it gives; where each line is a row, it is read only once, which is when it is baked."""
    reads = []
    monkeypatch.setattr(files, "parse", lambda *about: reads.append(1) or formats.parse(*about))
    source = written(tmp_path, name, data)

    (fragment,) = source.fragments()

    assert fragment.n_rows == len(rows_of(written(tmp_path, name, data)))
    assert fragment.n_rows == formats.parse(data.encode(), name[2:], name).num_rows
    assert (len(reads) == 1) == is_plain


def test_a_csv_without_rows_says_nothing_of_types(tmp_path):
    """A header is a shard without rows, and gives the columns only where nobody else does."""
    written(tmp_path, "0.csv", "x,y\n")
    alone = DatasetRecipe("r").add_ingredient("a", str(tmp_path / "0.csv")).bake()
    written(tmp_path, "1.csv", "x,y\n1,a\n")

    assert alone.table.column_names == ["x", "y"]
    assert DatasetRecipe("r").add_ingredient("a", str(tmp_path), where=col.x > 0).bake().table.num_rows == 1


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("name", ["a.arrow", "a.ipc.gz"])
def test_both_formats_of_arrow_are_read(tmp_path, new, name):
    """Files, and streams as Hugging Face keeps them, compressed or not."""
    table, sink = pa.table({"x": [1, 2]}), io.BytesIO()
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()

    assert rows_of(written(tmp_path, name, gzip.compress(data) if name.endswith("gz") else data)) == table.to_pylist()


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.parquet", b"PAR1"), ("a.arrow", b"ARROW1"), ("a.arrow", b"x"), ("a.jsonl", b"{"), ("a.jsonl.gz", b"no")],
)
def test_a_damaged_file_is_named(tmp_path, name, data):
    """What cannot be read says which file it is."""
    with pytest.raises(CorruptDataError, match=rf"'a': .*{name} cannot be read as"):
        read_all(written(tmp_path, name, data))
