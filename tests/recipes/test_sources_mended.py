"""Sources, cache and engine: what a change leaves behind, what damage does, and what names rows have."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, DatasetRecipe, StreamStore, col
from poolish.errors import CorruptDataError, PoolishError, RecipeError, UnknownColumn
from poolish.recipes import file_formats, file_sources, sources, stamps
from poolish.recipes.cache import Baked, Cache
from poolish.recipes.content import content_of
from poolish.recipes.engine import LocalEngine
from poolish.recipes.file_sources import FileSource
from poolish.recipes.nested import RecipeSource
from poolish.recipes.piece import Piece
from poolish.recipes.sources import BufferSource, StreamSource, TableSource, as_source

WHAT = "ingredient 'a'"


def read_all(source, columns=None, where=None):
    """All rows of a source with the names of their parts and their numbers."""
    found = []
    for fragment in source.fragments():
        for table, rows in source.read(fragment, columns, where):
            found += [(fragment.name, int(n), values) for n, values in zip(rows, table.to_pylist(), strict=True)]
    return found


def rows_of(source, columns=None):
    return [values for _, _, values in read_all(source, columns)]


def fingerprints(source):
    return [fragment.fingerprint for fragment in source.fragments()]


@pytest.fixture
def memory():
    """The files of fsspec's file system in memory, which all tests share."""
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


# Streams ----------------------------------------------------------------------------------------------------------


def test_a_step_that_gets_more_fields_is_another_fragment(tmp_path):
    """The last step of a stream may go on; what was cached of it before is not found again."""
    store = StreamStore(tmp_path / "s", fields={"a": "int64", "b": "int64"})
    store.append(steps=[0], names=["a"], values=[1])
    recipe = DatasetRecipe("r").add_ingredient("s", store)
    before = recipe.bake(cache=tmp_path / "cache").table.to_pylist()

    store.append(steps=[0], names=["b"], values=[2])

    assert before == [{"a": 1, "b": None}]
    assert recipe.bake(cache=tmp_path / "cache").table.to_pylist() == [{"a": 1, "b": 2}]


def test_ranges_before_the_last_keep_their_fingerprint(tmp_path, monkeypatch):
    """What comes later changes only the last range; a full range stays what it was when it was the last."""
    monkeypatch.setattr(sources, "FRAGMENT_ROWS", 2)
    store = StreamStore(tmp_path / "s", fields={"a": "int64"})
    store.append_many(np.arange(4), {"a": np.arange(4)})
    before = fingerprints(StreamSource(store))

    store.append_many([4], {"a": [4]})

    assert fingerprints(StreamSource(store))[:2] == before


def test_a_stream_is_read_as_it_was_when_the_bake_began(tmp_path):
    """What is appended between plan and reading is not part of it, or it would be kept under a wrong name."""
    store = StreamStore(tmp_path / "s", fields={"a": "int64", "b": "int64"})
    store.append(steps=[0], names=["a"], values=[1])
    source = StreamSource(store)
    (fragment,) = source.fragments()

    store.append(steps=[0, 1], names=["b", "a"], values=[2, 3])
    ((table, rows),) = source.read(fragment, None, None)

    assert (table.to_pylist(), rows.tolist()) == ([{"a": 1, "b": None}], [0])


def test_a_stream_needs_no_other_library(tmp_path):
    """Fields that were declared by dtypes are described by poolish itself."""
    script = f"""
        import sys
        sys.modules["datasets"] = None
        from poolish import DatasetRecipe, StreamStore
        store = StreamStore({str(tmp_path / "s")!r}, fields={{"a": "int64"}})
        store.append_many([0, 1], {{"a": [1, 2]}})
        print(DatasetRecipe("r").add_ingredient("s", store).bake().table.to_pylist())
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[{'a': 1}, {'a': 2}]"


# Stamps -----------------------------------------------------------------------------------------------------------


def test_a_file_rewritten_with_an_old_date_is_seen(tmp_path):
    """Equal size, equal statistics and a restored date, as ``rsync -t`` leaves them: still another file."""
    path = tmp_path / "a.parquet"
    recipe = DatasetRecipe("r").add_ingredient("a", str(path))
    baked = []

    for numbers in ([1, 2, 3, 9], [1, 3, 2, 9]):
        pq.write_table(pa.table({"x": numbers}), path)
        os.utime(path, ns=(10**18, 10**18))
        baked.append(recipe.bake(cache=tmp_path / "cache").table["x"].to_pylist())

    assert baked == [[1, 2, 3, 9], [1, 3, 2, 9]]


def test_two_writes_within_a_tick_of_the_clock_have_two_stamps(tmp_path):
    """The clock of files stands still for milliseconds; a stamp that could be met again is not given out."""
    path = tmp_path / "a"
    for i in range(5):
        path.write_bytes(b"a")
        os.utime(path, ns=(10**18, 10**18))
        before = stamps.local_stamp(str(path))
        with path.open("r+b") as file:
            file.write(b"b")
        os.utime(path, ns=(10**18, 10**18))

        assert stamps.local_stamp(str(path)) != before, i


def test_files_in_memory_are_seen_to_change(memory):
    """A rewrite of equal size is another file."""
    source = FileSource("memory://d/a.parquet", WHAT)
    found = []
    for numbers in ([1, 2, 3, 9], [1, 3, 2, 9]):
        with memory.open("/d/a.parquet", "wb") as file:
            pq.write_table(pa.table({"x": numbers}), file)
        found += fingerprints(source)

    assert found[0] != found[1]
    assert rows_of(source) == [{"x": 1}, {"x": 3}, {"x": 2}, {"x": 9}]


class Store(fsspec.AbstractFileSystem):
    """A store that notes about its objects what a test says."""

    def __init__(self, noted, content=b"12345"):
        super().__init__()
        self.noted, self.content = noted, content

    def info(self, path, **_):
        return {"name": path, "size": len(self.content), "type": "file", **self.noted}

    def cat_file(self, path, start=None, end=None, **_):
        return self.content[start:end]


@pytest.mark.parametrize("name", ["ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified", "mtime"])
def test_what_a_store_notes_is_the_stamp(name):
    """Tags, versions and dates of any store, and nobody asks this machine about a path that is not its own."""
    first, second = (stamps.remote_stamp(Store({name: value}), "bucket/no/such/file") for value in ("one", "two"))

    assert first != second
    assert first == stamps.remote_stamp(Store({name: "one"}, b"54321"), "bucket/no/such/file")


@pytest.mark.parametrize("place", [0, 100, -100, -1])
def test_content_is_looked_at_where_a_store_notes_nothing(place):
    """Small files as a whole, large ones at both ends."""
    content = bytearray(3 * stamps.SAMPLED_BYTES)
    before = stamps.remote_stamp(Store({}, bytes(content)), "a")
    content[place] = 1

    assert stamps.remote_stamp(Store({}, bytes(content)), "a") != before
    assert stamps.remote_stamp(Store({}, b"12345"), "a") != stamps.remote_stamp(Store({}, b"12543"), "a")


def test_a_file_replaced_between_stamp_and_opening_is_refused(tmp_path, monkeypatch):
    """The stamp is taken first, so old row groups never go with a new stamp."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3, 4]}), path, row_group_size=1)
    opened = file_sources._Parquet._opened

    @contextmanager
    def replaced(self):
        monkeypatch.setattr(file_sources._Parquet, "_opened", opened)
        with opened(self) as file:
            pq.write_table(pa.table({"x": [5]}), tmp_path / "new")
            os.replace(tmp_path / "new", path)
            yield file

    monkeypatch.setattr(file_sources._Parquet, "_opened", replaced)

    with pytest.raises(RecipeError, match="changed while it was read"):
        read_all(FileSource(str(path), WHAT))


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_file_that_is_cut_or_gone_is_said_to_be(tmp_path, ending):
    """Between plan and reading a file may lose its end, or be removed: an error says so, and no row is lost."""
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"x": np.arange(1000)}), path)
    else:
        path.write_text('{"x": 1}\n' * 1000)
    source = FileSource(str(path), WHAT)
    (fragment,) = source.fragments()

    os.truncate(path, 500)
    with pytest.raises(RecipeError, match=r"a\.\w+ changed while it was read"):
        list(source.read(fragment, None, None))
    path.unlink()
    with pytest.raises(RecipeError, match=r"a\.\w+ is gone"):
        list(source.read(fragment, None, None))


# Names ------------------------------------------------------------------------------------------------------------


def shelf(folder, *names):
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [i * 100 + k for k in range(30)]}), folder / name)
    return folder


def names_of(paths):
    return [name for _, name in FileSource(paths, WHAT)._files()]


def test_equal_names_in_two_directories_are_told_apart(tmp_path):
    """Rows of two files never share a name, so each row is counted, chosen and named by itself."""
    shelf(tmp_path, "a/x.parquet", "b/x.parquet")
    paths = [str(tmp_path / "a/x.parquet"), str(tmp_path / "b/x.parquet")]

    result = DatasetRecipe("r").add_ingredient("a", paths, take=31).bake()

    assert result.table.num_rows == 31
    assert {result.lineage.why(i).file for i in range(31)} == {"a/x.parquet", "b/x.parquet"}


def test_names_begin_at_the_root_that_paths_have_in_common(tmp_path):
    """One path: its own directory. Several: the directory above all of them. So trees can be moved."""
    shelf(tmp_path, "d/a/x.parquet", "d/a/y.parquet", "d/b/x.parquet")
    d = tmp_path / "d"

    assert names_of(str(d / "a/x.parquet")) == ["x.parquet"]
    assert names_of([d / "a/x.parquet", d / "a/y.parquet"]) == ["x.parquet", "y.parquet"]
    assert names_of(str(d / "*/x.parquet")) == ["a/x.parquet", "b/x.parquet"]
    assert names_of([str(d / "a/*"), str(d / "b/*")]) == ["a/x.parquet", "a/y.parquet", "b/x.parquet"]
    assert names_of([d / "a", d / "b/x.parquet"]) == ["a/x.parquet", "a/y.parquet", "b/x.parquet"]


def test_paths_that_overlap_name_a_file_once(tmp_path):
    """A directory, a file in it and the same file as a URL: one file."""
    shelf(tmp_path, "s/x.parquet", "y.parquet")

    found = names_of(
        [tmp_path, tmp_path / "s/x.parquet", f"file://{tmp_path}/s/x.parquet", tmp_path / "s/../y.parquet"]
    )

    assert found == ["s/x.parquet", "y.parquet"]


def test_files_of_two_file_systems_have_the_name_of_theirs(tmp_path, memory):
    """Here and elsewhere are told apart by how a path begins."""
    shelf(tmp_path, "x.parquet")
    memory.pipe_file("/d/x.parquet", (tmp_path / "x.parquet").read_bytes())

    found = names_of([tmp_path / "x.parquet", "memory://d/x.parquet"])

    assert found == ["memory://x.parquet", "x.parquet"]


def test_brackets_in_a_name_are_a_name_if_there_is_such_a_file(tmp_path):
    """What exists is meant as it is written; what does not may be a pattern."""
    shelf(tmp_path, "d[1]/x.parquet", "d1/y.parquet")

    assert names_of(str(tmp_path / "d[1]/x.parquet")) == ["x.parquet"]
    assert names_of(str(tmp_path / "d[1]")) == ["x.parquet"]
    assert names_of(str(tmp_path / "d[1]/*.parquet")) == ["x.parquet"]
    assert names_of(str(tmp_path / "d[0-9]/*.parquet")) == ["d1/y.parquet"]


def test_paths_may_be_bytes(tmp_path):
    """As the system gives them."""
    shelf(tmp_path, "x.parquet")

    assert names_of(os.fsencode(tmp_path)) == ["x.parquet"]
    assert isinstance(as_source([os.fsencode(tmp_path / "x.parquet")], WHAT), FileSource)


# Formats ----------------------------------------------------------------------------------------------------------


def written(tmp_path, name, data):
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return FileSource(str(tmp_path / name), WHAT)


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
    monkeypatch.setattr(file_formats, "_SCANNED_BYTES", 1000)
    monkeypatch.setattr(file_formats, "_BLOCK_BYTES", 10)
    for data in (b"x" * size, b"x" * size + b"\n", b"\n" + b"x" * size + b"\n\nb", b"a\n" * 2000 + b"x" * size + b"\n"):
        assert file_formats._longest_line(data) == size


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
    assert FileSource(str(tmp_path), WHAT).schema().names == ["x"]
    assert FileSource(str(tmp_path / "0.jsonl"), WHAT).fragments() == []


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


# Columns ----------------------------------------------------------------------------------------------------------

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
    if request.param == "parquet":
        pq.write_table(NESTED, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_file(str(tmp_path / "a.arrow"), NESTED.schema) as writer:
            writer.write_table(NESTED)
    return FileSource(str(tmp_path / f"a.{request.param}"), WHAT)


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
        pq.write_table(empty, tmp_path / "a.parquet")
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
    if kind == "arrow":
        with pa.ipc.new_file(str(tmp_path / "a.arrow"), views.schema) as writer:
            writer.write_table(views)

    source = views if kind == "table" else str(tmp_path / "a.arrow")
    result = DatasetRecipe("r").add_ingredient("a", source, where=col.t == "b").bake()

    assert result.table.to_pylist() == [{"t": "b", "l": []}]


def test_a_reader_of_batches_is_kept(tmp_path):
    """What can be read only once is read when it is given, and keeps its types."""
    table = pa.table({"x": pa.array([1, 2], pa.int16())})
    recipe = DatasetRecipe("r").add_ingredient("a", pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))

    assert recipe.bake().table == recipe.bake().table == table


def test_what_is_no_row_is_told_with_its_ingredient():
    """A list of numbers is no list of samples."""
    with pytest.raises(PoolishError) as caught:
        as_source([1, 2], WHAT)

    assert caught.value.__notes__ == ["while reading ingredient 'a'"]


# Content ----------------------------------------------------------------------------------------------------------

TYPES = st.recursive(
    st.sampled_from(
        [
            *(pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64(), pa.bool_(), pa.null(), pa.date32()),
            *(pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.timestamp("us"), pa.decimal128(5, 2)),
            *(pa.dictionary(pa.int8(), pa.string()), pa.string_view()),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda type_: pa.list_(type_, 2)),
        st.lists(inner, max_size=2).map(lambda parts: pa.struct([(f"f{i}", part) for i, part in enumerate(parts)])),
        inner.map(lambda type_: pa.map_(pa.string(), type_)),
    ),
    max_leaves=3,
)


def values_of(type_):
    """A few values of a type, so that equal and nearly equal columns are common; None among them."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_null(type_):
        return st.none()
    if pa.types.is_fixed_size_list(type_):
        found = st.lists(values_of(type_.value_type), min_size=2, max_size=2)
    elif pa.types.is_map(type_):
        found = st.lists(st.tuples(st.sampled_from(["", "k"]), values_of(type_.item_type)), max_size=2)
    elif pa.types.is_struct(type_):
        found = st.fixed_dictionaries({part.name: values_of(part.type) for part in type_.fields})
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        found = st.lists(values_of(type_.value_type), max_size=2)
    elif pa.types.is_fixed_size_binary(type_):
        found = st.sampled_from([b"abc", b"\0\0\0"])
    elif pa.types.is_binary(type_):
        found = st.sampled_from([b"", b"\0", b"a", b"ab"])
    elif pa.types.is_boolean(type_):
        found = st.booleans()
    elif "string" in str(type_):
        found = st.sampled_from(["", "a", "ab", "b", "é"])
    else:
        found = st.integers(0, 2)
    return st.one_of(found, st.none()) if not pa.types.is_map(type_) else found


@st.composite
def two_columns(draw):
    type_ = draw(TYPES)
    one = draw(st.lists(values_of(type_), max_size=5))
    other = draw(st.one_of(st.just(one), st.lists(values_of(type_), max_size=5)))
    return type_, one, other


def laid_out(values, type_, cuts, junk):
    """The values as chunks, each a slice of something larger."""
    whole = pa.array([*junk, *values, *junk], type_)
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    chunks = [whole.slice(len(junk) + low, high - low) for low, high in pairwise(edges)]
    return pa.table({"c": pa.chunked_array(chunks, type_)})


@settings(max_examples=150, deadline=None)
@given(two_columns(), st.lists(st.integers(0, 5), max_size=3), st.data())
def test_fingerprints_are_equal_for_equal_values_only(case, cuts, data):
    """However values are cut into chunks, sliced out of others, and whatever lies where nulls are."""
    type_, one, other = case
    junk = data.draw(st.lists(values_of(type_), max_size=3))

    first, second = laid_out(one, type_, cuts, junk), laid_out(other, type_, [], [])

    assert first["c"].to_pylist() == pa.chunked_array([pa.array(one, type_)]).to_pylist()
    assert (content_of(first) == content_of(second)) == (first["c"].to_pylist() == second["c"].to_pylist())


def test_what_lies_where_nulls_are_does_not_count():
    """The bytes under a null are anybody's."""
    valid = pa.py_buffer(bytes([0b101]))
    arrays = [pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(np.array([1, junk, 3]))]) for junk in (0, 77)]

    assert content_of(pa.table({"x": arrays[0]})) == content_of(pa.table({"x": arrays[1]}))
    assert content_of(pa.table({"x": [1, None, 3]})) == content_of(pa.table({"x": arrays[1]}))
    assert content_of(pa.table({"x": [1, 77, 3]})) != content_of(pa.table({"x": arrays[1]}))


def test_ids_types_and_columns_are_part_of_the_content():
    """The same numbers under another name, in another type or with other ids are something else."""
    tables = [pa.table({"x": [1, 2]}), pa.table({"y": [1, 2]}), pa.table({"x": pa.array([1, 2], pa.int32())})]
    tables += [pa.table({"x": ["1", "2"]}), pa.table({"x": [1, 2], "y": [1, 2]})]
    found = {content_of(table) for table in tables} | {content_of(tables[0], np.array(ids)) for ids in ([0, 1], [1, 0])}

    assert len(found) == 7


# Cache ------------------------------------------------------------------------------------------------------------


def baked_piece(table, n_rows):
    piece = Piece("a", "x.parquet", table, np.arange(n_rows), np.arange(n_rows) * 2, np.arange(n_rows) * 3)
    return Baked(piece, [{"in": n_rows, "out": n_rows}], [{"row": 1, "reason": "bad"}], threshold=77)


def told(baked):
    piece = baked.piece
    arrays = [getattr(piece, name).tolist() for name in ("rows", "subs", "steps")]
    table = piece.table.to_pylist() if piece.table.num_columns else []
    return piece.ingredient, piece.name, table, arrays, baked.counts, baked.rejects, baked.threshold


@pytest.mark.parametrize("n_rows", [0, 1, 5])
@pytest.mark.parametrize("kind", ["columns", "none", "counted"])
def test_a_piece_comes_back_as_it_was(tmp_path, n_rows, kind):
    """With columns that are called like our own, and without any columns."""
    names = ("rows", "subs", "steps", "__row", "__sub", "__steps")
    table = pa.table({name: pa.array(range(n_rows), pa.int64()) for name in names})
    table = {"columns": table, "none": pa.table({}), "counted": table.select([])}[kind]
    cache, baked = Cache(tmp_path), baked_piece(table, n_rows)

    cache.put("ab12", baked)
    found = cache.get("ab12")

    assert told(found) == told(baked)
    assert found.is_cached
    assert found.piece.table.schema == table.schema
    assert found.piece.table.num_rows == n_rows
    assert cache.look("ab12") == (77, True)


def test_each_flipped_bit_is_seen(tmp_path):
    """A damaged entry is no entry, wherever the damage is, and is removed."""
    cache, baked = Cache(tmp_path), baked_piece(pa.table({"x": [1, 2, 3]}), 3)
    cache.put("ab12", baked)
    (place,) = tmp_path.rglob("*.piece")
    whole = place.read_bytes()
    n_line = whole.index(b"\n") + 1

    for i in range(len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 1 << i % 8
        place.write_bytes(damaged)
        if i < n_line:
            assert cache.look("ab12") is None, i
        assert cache.get("ab12") is None, i
        assert not place.exists()


def test_a_cut_entry_is_no_entry(tmp_path):
    """As a power cut leaves it."""
    cache = Cache(tmp_path)
    cache.put("ab12", baked_piece(pa.table({"x": [1, 2, 3]}), 3))
    (place,) = tmp_path.rglob("*.piece")
    whole = place.read_bytes()

    for n_bytes in range(0, len(whole), 7):
        place.write_bytes(whole[:n_bytes])
        assert cache.get("ab12") is None, n_bytes


def test_a_column_may_be_called_anything(tmp_path):
    """Columns called like what poolish keeps beside them are baked from the cache too."""
    recipe = DatasetRecipe("r").add_ingredient("a", pa.table({"__row": [5, 6], "__sub": [7, 8], "rows": [1, 2]}))

    first, second = (recipe.bake(cache=tmp_path).table.to_pylist() for _ in range(2))

    assert first == second == [{"__row": 5, "__sub": 7, "rows": 1}, {"__row": 6, "__sub": 8, "rows": 2}]


# Recipes in recipes -----------------------------------------------------------------------------------------------


class Watched(LocalEngine):
    """An engine that remembers which tasks it was given."""

    def __init__(self):
        super().__init__(1)
        self.n_tasks = 0

    def run(self, function, tasks):
        self.n_tasks += len(tasks)
        return super().run(function, tasks)


def test_a_nested_recipe_is_baked_as_the_outer_one(tmp_path):
    """By the same engine, with the same cache, and with the same treatment of bad rows."""

    def careful(row):
        if row["x"] == 2:
            raise ValueError("two")
        return row

    inner = DatasetRecipe("inner").add_ingredient("a", [{"x": 1}, {"x": 2}]).prepare_step("careful", careful)
    engine, cache = Watched(), Cache(tmp_path)
    source = RecipeSource(inner)

    source.prepare(engine, cache, "skip")

    assert engine.n_tasks > 0
    assert list(tmp_path.rglob("*.piece"))
    assert rows_of(source) == [{"x": 1}]
    assert source.lineage.why(0).row == 0
    assert source.rejects.num_rows == 1


def test_a_recipe_made_of_itself_is_refused():
    """Directly or through another; twice the same recipe is no circle."""
    one, two = DatasetRecipe("one"), DatasetRecipe("two")
    one.add_ingredient("two", two)
    two.add_ingredient("one", one)
    twice = DatasetRecipe("all").add_ingredient("a", DatasetRecipe("b").add_ingredient("c", [{"x": 1}]))
    twice.add_ingredient("d", twice.instructions[0].source)

    with pytest.raises(RecipeError, match="recipe 'two' is made of itself \\('two' > 'one' > 'two'\\)"):
        RecipeSource(two).prepare()
    RecipeSource(twice).prepare()


# Engine -----------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_tasks():
    """However long each takes, and only a few ahead of whoever takes them."""
    begun = []

    def slow(i):
        begun.append(i)
        time.sleep(0.001 * (i % 3))
        return i

    results = LocalEngine(4).run(slow, range(100))
    first = next(results)
    time.sleep(0.1)

    assert (first, len(begun)) == (0, 8)
    assert [first, *results] == list(range(100))


@pytest.mark.parametrize("n_workers", [1, 4])
def test_a_stop_iteration_does_not_end_a_bake(n_workers):
    """A function that runs out of something fails; it does not cut the rows short."""

    def fails(i):
        return next(iter(())) if i == 2 else i

    with pytest.raises(RuntimeError):
        list(LocalEngine(n_workers).run(fails, range(5)))


def test_a_failure_waits_for_nobody():
    """One task fails while an earlier one takes for ever: the error comes at once and nothing more is begun."""
    release, begun = threading.Event(), []

    def task(i):
        begun.append(i)
        if i == 0:
            release.wait(60)
        if i == 1:
            raise ValueError("one")
        return i

    started = time.monotonic()
    with pytest.raises(ValueError, match="one"):
        list(LocalEngine(2).run(task, range(1000)))
    took_s = time.monotonic() - started
    release.set()

    assert took_s < 10
    assert len(begun) <= 4


def test_who_stops_taking_results_waits_for_nobody():
    """Closing the results is enough."""
    release, begun = threading.Event(), []

    def task(i):
        begun.append(i)
        if i:
            release.wait(60)
        return i

    started = time.monotonic()
    results = LocalEngine(2).run(task, range(1000))
    next(results)
    results.close()
    took_s = time.monotonic() - started
    release.set()

    assert took_s < 10
    assert len(begun) <= 4


def test_ctrl_c_ends_a_bake_promptly():
    """Also where steps hang: the process is gone long before they would be done."""
    script = """
        import os, time
        from poolish.recipes.engine import LocalEngine
        def hang(i):
            os.write(1, b"begun\\n")
            time.sleep(60)
        try:
            list(LocalEngine(2).run(hang, range(10)))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"

    process.send_signal(signal.SIGINT)
    told_, _ = process.communicate(timeout=50)

    assert "interrupted" in told_
    assert process.returncode == 0


def test_errors_of_sources_are_errors_of_poolish(tmp_path):
    """One ``except`` for all of them."""
    with pytest.raises(PoolishError, match="no file at"):
        FileSource(str(tmp_path / "*.parquet"), WHAT).fragments()
