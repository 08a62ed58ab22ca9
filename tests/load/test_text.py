r"""Lines and documents of text files, against Python's own splitting.

The model of lines: ``data.split(b"\n")``, without the last piece if it is empty, each without one ``\r`` at its end
(but for a last line that has no ``\n``, whose ``\r`` is text). Of documents: runs of lines that are not empty.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolish.errors import BadText, ConfigError, CorruptDataError
from poolish.load import text as text_module
from poolish.load.cached import CachedDataset
from poolish.load.text import TextDataset

contents = st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bc", b"\xc3\xa9", b" ", b"\n\n"]), max_size=30).map(
    b"".join
)


def lines_of(data: bytes, *, unfinished: bool = True) -> list[str]:
    *whole, last = data.split(b"\n")
    lines = [line.removesuffix(b"\r") for line in whole] + ([last] if last and unfinished else [])
    return [line.decode() for line in lines]


def documents_of(data: bytes) -> list[str]:
    runs = itertools.groupby(lines_of(data), key=bool)
    return ["\n".join(lines) for is_text, lines in runs if is_text]


def texts(dataset: TextDataset) -> list[str]:
    return [sample["text"] for sample in dataset]


@pytest.fixture
def small_chunks(monkeypatch):
    """Files are read three bytes at a time, so that everything happens at the edge of a chunk."""
    monkeypatch.setattr(text_module, "CHUNK", 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(contents, min_size=1, max_size=3), st.data())
def test_rows_are_those_of_the_model(small_chunks, tmp_path: Path, files: list[bytes], data: st.DataObject):
    """Lines and documents, over several files, by any number first."""
    paths = [tmp_path / f"{k}.txt" for k in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    for unit, model in (("line", lines_of), ("document", documents_of)):
        expected = [text for content in files for text in model(content)]
        dataset = TextDataset(paths, unit)
        if expected:
            i = data.draw(st.integers(0, len(expected) - 1))
            assert dataset[i]["text"] == expected[i]
        assert texts(dataset) == expected
        assert len(dataset) == len(expected)
        with pytest.raises(IndexError):
            dataset[len(expected)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(contents, max_size=5))
def test_a_file_that_grows_is_followed(small_chunks, tmp_path: Path, pieces: list[bytes]):
    """After every piece that is written, in whatever places it is cut; finished lines never change."""
    path = tmp_path / "growing.txt"
    path.write_bytes(b"")
    everything, finished = TextDataset(path), TextDataset(path, unfinished=False)
    content, before = b"", []
    for piece in pieces:
        content += piece
        with path.open("ab") as file:
            file.write(piece)
        assert texts(everything) == lines_of(content)
        now = lines_of(content, unfinished=False)
        assert texts(finished) == now
        assert now[: len(before)] == before
        before = now


def test_looks_no_further_than_it_must(tmp_path: Path, monkeypatch):
    """Row 0 of a long file costs one chunk, and a second file is not opened for it."""
    (tmp_path / "a.txt").write_bytes(b"line\n" * 1_000)
    (tmp_path / "b.txt").write_bytes(b"last\n")
    monkeypatch.setattr(text_module, "CHUNK", 100)
    dataset = TextDataset([tmp_path / "a.txt", tmp_path / "b.txt"])

    assert dataset[0]["text"] == "line"
    assert dataset._indexes[0].n_rows(unfinished=False) == 20
    assert dataset._indexes[1].n_rows(unfinished=True) == 0
    assert dataset[1_000]["text"] == "last"
    assert len(dataset) == 1_001


def test_one_document_per_file(tmp_path: Path):
    """Whatever is in it, empty lines included."""
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\ntwo\n")
    (tmp_path / "b.txt").write_bytes(b"")

    dataset = TextDataset(tmp_path / "*.txt", "document", documents="file")

    assert texts(dataset) == ["one\n\ntwo\n", ""]


def test_bad_bytes_name_file_and_offset(tmp_path: Path):
    """The byte in the file, not in the line; other rows can still be read."""
    path = tmp_path / "bad.txt"
    path.write_bytes(b"fine\nnot \xff fine\nfine")
    dataset = TextDataset(path)

    with pytest.raises(BadText, match=r"bad\.txt, byte 9: not utf-8") as caught:
        dataset[1]
    assert isinstance(caught.value, UnicodeError)
    assert dataset[2] == {"text": "fine"}
    assert TextDataset(path, encoding="latin-1")[1] == {"text": "not \xff fine"}


def test_marks_at_the_beginning_can_be_left_off(tmp_path: Path):
    """As Windows writes them, by the encoding that is named after them."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfrye\r\nwheat")

    assert texts(TextDataset(tmp_path / "a.txt", encoding="utf-8-sig")) == ["rye", "wheat"]


def test_files_that_become_shorter_are_an_error(tmp_path: Path):
    """Never text from somewhere else."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nthree\n")
    dataset = TextDataset(path)
    assert len(dataset) == 3

    path.write_bytes(b"one\n")

    with pytest.raises(CorruptDataError, match="open the dataset anew"):
        dataset[2]
    with pytest.raises(CorruptDataError, match="open the dataset anew"):
        len(dataset)


def test_a_name_with_brackets_is_a_name(tmp_path: Path):
    """A pattern only where there is no such file."""
    (tmp_path / "a[1].txt").write_bytes(b"one")
    (tmp_path / "a1.txt").write_bytes(b"other")

    assert texts(TextDataset(tmp_path / "a[1].txt")) == ["one"]
    assert texts(TextDataset(tmp_path / "a[12].txt")) == ["other"]


def test_another_file_is_another_version(tmp_path: Path):
    """So that a cache on disk does not serve the old one's lines."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"one")
    assert CachedDataset(TextDataset(path), path=tmp_path / "cache")[0] == {"text": "one"}

    path.write_bytes(b"other")

    assert CachedDataset(TextDataset(path), path=tmp_path / "cache")[0] == {"text": "other"}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"paths": "nothing/*.txt"}, FileNotFoundError, "pattern"),
        ({"paths": []}, FileNotFoundError, "no files"),
        ({"unit": "word"}, ConfigError, "unit='word'"),
        ({"documents": "page"}, ConfigError, "documents='page'"),
        ({"encoding": "utf-16"}, ConfigError, "utf-16"),
        ({"encoding": "klingon"}, ConfigError, "klingon"),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path: Path, options, error, match):
    """By name, with what to do."""
    (tmp_path / "a.txt").write_bytes(b"one")
    with pytest.raises(error, match=match):
        TextDataset(**{"paths": tmp_path / "a.txt", **options})
