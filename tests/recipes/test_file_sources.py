"""Files as an ingredient: no two share a name, trees can be moved, and a change while they are read is an error."""

from __future__ import annotations

import os
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import DatasetRecipe, col
from poolish.errors import CorruptDataError, PoolishError, RecipeError
from poolish.recipes.sources import FileSource, as_source
from poolish.recipes.sources.files import ParquetFile
from tests.recipes.kitchen import file_source, message_of, read_all, write

# Names ----------------------------------------------------------------------------------------------------------------


def files(folder, *names):
    """Parquet files of these names, each with 30 numbers of its own."""
    for i, name in enumerate(names):
        write(folder / name, pa.table({"x": [i * 100 + k for k in range(30)]}))
    return folder


def names_of(paths):
    """What the files at these paths are called."""
    return [name for _, name in file_source(paths)._files()]


def test_equal_names_in_two_directories_are_told_apart(tmp_path):
    """Rows of two files never share a name, so each row is counted, chosen and named by itself."""
    files(tmp_path, "a/x.parquet", "b/x.parquet")
    paths = [str(tmp_path / "a/x.parquet"), str(tmp_path / "b/x.parquet")]

    result = DatasetRecipe("r").add_ingredient("a", paths, take=31).bake()

    assert result.table.num_rows == 31
    assert {result.lineage.why(i).file for i in range(31)} == {"a/x.parquet", "b/x.parquet"}


def test_names_begin_at_the_root_that_paths_have_in_common(tmp_path):
    """One path: its own directory. Several: the directory above all of them. So trees can be moved."""
    files(tmp_path, "d/a/x.parquet", "d/a/y.parquet", "d/b/x.parquet")
    d = tmp_path / "d"

    assert names_of(str(d / "a/x.parquet")) == ["x.parquet"]
    assert names_of([d / "a/x.parquet", d / "a/y.parquet"]) == ["x.parquet", "y.parquet"]
    assert names_of(str(d / "*/x.parquet")) == ["a/x.parquet", "b/x.parquet"]
    assert names_of([str(d / "a/*"), str(d / "b/*")]) == ["a/x.parquet", "a/y.parquet", "b/x.parquet"]
    assert names_of([d / "a", d / "b/x.parquet"]) == ["a/x.parquet", "a/y.parquet", "b/x.parquet"]


def test_paths_that_overlap_name_a_file_once(tmp_path):
    """A directory, a file in it and the same file as a URL: one file."""
    files(tmp_path, "s/x.parquet", "y.parquet")

    found = names_of(
        [tmp_path, tmp_path / "s/x.parquet", f"file://{tmp_path}/s/x.parquet", tmp_path / "s/../y.parquet"]
    )

    assert found == ["s/x.parquet", "y.parquet"]


def test_files_of_two_file_systems_have_the_name_of_theirs(tmp_path, memory):
    """Here and elsewhere are told apart by how a path begins."""
    files(tmp_path, "x.parquet")
    memory.pipe_file("/d/x.parquet", (tmp_path / "x.parquet").read_bytes())

    found = names_of([tmp_path / "x.parquet", "memory://d/x.parquet"])

    assert found == ["memory://x.parquet", "x.parquet"]


def test_brackets_in_a_name_are_a_name_if_there_is_such_a_file(tmp_path):
    """What exists is meant as it is written; what does not may be a pattern."""
    files(tmp_path, "d[1]/x.parquet", "d1/y.parquet")

    assert names_of(str(tmp_path / "d[1]/x.parquet")) == ["x.parquet"]
    assert names_of(str(tmp_path / "d[1]")) == ["x.parquet"]
    assert names_of(str(tmp_path / "d[1]/*.parquet")) == ["x.parquet"]
    assert names_of(str(tmp_path / "d[0-9]/*.parquet")) == ["d1/y.parquet"]


def test_paths_may_be_bytes(tmp_path):
    """As the system gives them."""
    files(tmp_path, "x.parquet")

    assert names_of(os.fsencode(tmp_path)) == ["x.parquet"]
    assert isinstance(as_source([os.fsencode(tmp_path / "x.parquet")], "ingredient 'a'"), FileSource)


@pytest.mark.parametrize("hidden", [".a.jsonl", "_a.jsonl", ".ipynb_checkpoints/a.jsonl", "b/_temporary/0/a.jsonl"])
def test_hidden_files_are_no_data(tmp_path, hidden):
    """Names that begin with a dot or an underscore are left out of directories and globs, as are folders of such."""
    for name in ("a.jsonl", "b/a.jsonl", hidden):
        (tmp_path / "_data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "_data" / name).write_text('{"x": 1}')

    for path in ("_data", "_data/**/*.jsonl", "_da*/**/*.jsonl"):
        names = [name for name, _, _ in read_all(file_source(str(tmp_path / path)))]
        assert [name.removeprefix("_data/") for name in names] == ["a.jsonl", "b/a.jsonl"]


@pytest.mark.parametrize(
    "path",
    [
        "_old/.x",
        "_old/.x/a.jsonl",
        "_old/.x/*.jsonl",
        "_o*/.x/*",
        "_old/.*/*.jsonl",
        "**/_old/**/.x/*",
    ],
)
def test_hidden_files_that_are_named_are_read(tmp_path, path):
    """Whoever writes the name, or its beginning, means it."""
    (tmp_path / "_old" / ".x").mkdir(parents=True)
    (tmp_path / "_old" / ".x" / "a.jsonl").write_text('{"x": 1}')

    assert [row for _, _, row in read_all(file_source(str(tmp_path / path)))] == [{"x": 1}]


def test_nothing_but_hidden_files_is_told(tmp_path, memory):
    """Here and elsewhere: the error says that they were left out, and names one."""
    (tmp_path / "d" / ".x").mkdir(parents=True)
    (tmp_path / "d" / ".x" / "a.jsonl").write_text('{"x": 1}')
    memory.pipe({"/d/_x/a.jsonl": b'{"x": 1}'})

    for path in (str(tmp_path / "d"), str(tmp_path / "d" / "*" / "*.jsonl"), "memory://d", "memory://d/*/*.jsonl"):
        with pytest.raises(RecipeError, match=r"'a': nothing but hidden files at .*, [._]x/a\.jsonl.*left out"):
            file_source(path).fragments()


def test_errors_of_sources_are_errors_of_poolish(tmp_path):
    """One ``except`` for all of them."""
    with pytest.raises(PoolishError, match="no file at"):
        file_source(str(tmp_path / "*.parquet")).fragments()


# Files that change while they are read --------------------------------------------------------------------------------


def test_a_file_replaced_between_stamp_and_opening_is_refused(tmp_path, monkeypatch):
    """The stamp is taken first, so old row groups never go with a new stamp."""
    path = write(tmp_path / "a.parquet", pa.table({"x": [1, 2, 3, 4]}), 1)
    opened = ParquetFile._opened

    @contextmanager
    def replaced(self):
        monkeypatch.setattr(ParquetFile, "_opened", opened)
        with opened(self) as file:
            os.replace(write(tmp_path / "new", pa.table({"x": [5]})), path)
            yield file

    monkeypatch.setattr(ParquetFile, "_opened", replaced)

    with pytest.raises(RecipeError, match="changed while it was read"):
        read_all(file_source(str(path)))


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_file_that_is_cut_or_gone_is_said_to_be(tmp_path, ending):
    """Between plan and reading a file may lose its end, or be removed: an error says so, and no row is lost."""
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        write(path, pa.table({"x": np.arange(1000)}))
    else:
        path.write_text('{"x": 1}\n' * 1000)
    source = file_source(str(path))
    (fragment,) = source.fragments()

    os.truncate(path, 500)
    with pytest.raises(RecipeError, match=r"a\.\w+ changed while it was read"):
        list(source.read(fragment, None, None))
    path.unlink()
    with pytest.raises(RecipeError, match=r"a\.\w+ is gone"):
        list(source.read(fragment, None, None))


def test_a_path_leads_to_one_place(tmp_path):
    """A chain of file systems would load those that nobody named."""
    with pytest.raises(RecipeError, match="leads to one place"):
        DatasetRecipe("r").add_ingredient("a", f"file://{tmp_path}/a.parquet::zip://b.zip").bake()


def test_damage_in_words_that_are_left_as_numbers_is_told_with_the_file(tmp_path):
    """Bits are flipped all over the column: each bake is right, or says which file cannot be read."""
    langs = [("en", "de", "fr", None)[i * i % 7 % 4] for i in range(1_000)]
    path = write(tmp_path / "a.parquet", pa.table({"lang": langs, "n": range(1_000)}))
    whole, column = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0).column(0)
    recipe = DatasetRecipe("r").add_ingredient("q", str(path), where=col.lang == "en")
    rows, n_told = recipe.bake().table, 0
    for place in range(column.dictionary_page_offset, column.dictionary_page_offset + column.total_compressed_size):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            recipe.bake()
        except CorruptDataError as error:
            n_told += "a.parquet" in message_of(error)

    assert rows.num_rows == langs.count("en")
    assert n_told > 20
