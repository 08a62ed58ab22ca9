"""One reader for bake and check. No number of a text becomes another number: it is exact, or the file is refused."""

from __future__ import annotations

import gzip
import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from poolish import DatasetRecipe, formats
from poolish.cli.app import app
from poolish.errors import CorruptDataError, NumberTooLarge
from poolish.formats import check_exact, parse
from poolish.validation import sources

IDS = [18446744073709551613, 18446744073709551614, 18446744073709551615]
LARGE = 2**53 + 1
NAMES = ("x.jsonl", "x.csv")


def text_of(values: list[Any], kind: str) -> str:
    """Values as jsonl, or as csv, in one column ``id``; text is written as it stands."""
    shown = [value if isinstance(value, str) else json.dumps(value) for value in values]
    lines = [f'{{"id": {each}}}' for each in shown] if kind == "jsonl" else ["id", *shown]
    return "\n".join(lines) + "\n"


def write(path: Path, values: list[Any]) -> Path:
    """A file of one column."""
    path.write_text(text_of(values, path.suffix[1:]))
    return path


def baked(*paths: Path, dedup: bool = False) -> list[Any]:
    """The ids that a bake of files gives."""
    recipe = DatasetRecipe("ids").add_ingredient("ids", list(map(str, paths)))
    if dedup:
        recipe.prepare_step("dedup", "dedup", columns=["id"])
    found: list[Any] = recipe.bake().buffer.to_pydict()["id"]
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", [IDS, [LARGE, 0.5], [0.5, -LARGE], [1, 10**400], [2**63], [1e300, LARGE]])
def test_an_integer_that_would_be_rounded_is_refused(tmp_path: Path, name: str, values: list[Any]):
    """Whether it is beyond int64 or meets a float; the error names file, place, column, value and what to do."""
    path = write(tmp_path / name, values)

    with pytest.raises(NumberTooLarge) as refused:
        baked(path, dedup=True)

    bad = next(i for i, value in enumerate(values) if isinstance(value, int) and abs(value) > 2**53)
    place = f"line {bad + 1}" if path.suffix == ".jsonl" else f"row {bad}"
    shown = str(values[bad])[:30]
    assert f"'ids': {path}, {place}, column 'id': {shown}" in str(refused.value)
    assert "text" in str(refused.value).partition(";")[2]


@pytest.mark.parametrize("name", NAMES)
def test_one_file_and_two_files_give_the_same_answer(tmp_path: Path, name: str):
    """A large integer that meets a float is refused, wherever the two are written."""
    together = write(tmp_path / name, [LARGE, 0.5])
    apart = [write(tmp_path / f"{i}-{name}", [value]) for i, value in enumerate([LARGE, 0.5])]

    for paths in ([together], apart):
        with pytest.raises(ValueError, match=str(LARGE)):
            baked(*paths, dedup=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", [[2**63 - 1, -(2**63)], [2**53, 0.5], [-(2**53), 1e300], [1e19, 1e308, 1]])
def test_what_can_be_kept_is_kept(tmp_path: Path, name: str, values: list[Any]):
    """All of int64, integers up to 2**53 beside floats, and floats of any size, which are read again for nothing."""
    assert baked(write(tmp_path / name, values)) == values


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ('{"a": [0.5, 1], "b": 1}\n\n{"a": [1, 9007199254740993], "b": 2}', "a"),
        ('{"a": {"n": 1, "m": [{"k": 18446744073709551615}]}}', "a.m.k"),
        ('{"z": 9007199254740993}\n{"a": {"n": null}}\n{"a": {"n": 1e300}}{"a": {"n":\n9007199254740993}}', "a.n"),
        ('\ufeff{"\\u0061": 18446744073709551615}', "a"),
    ],
)
def test_integers_in_lists_and_structs_are_exact_too(tmp_path: Path, text: str, column: str):
    """However the lines are laid out; an integer of the same size in a column of integers is fine."""
    path = tmp_path / "x.jsonl"
    path.write_text(text)

    with pytest.raises(NumberTooLarge, match=f"column '{column}': (9007199254740993|18446744073709551615) cannot"):
        DatasetRecipe("ids").add_ingredient("ids", str(path)).bake()


@pytest.mark.parametrize("text", ["1e400", "-1e400", '"9007199254740993"', "+9007199254740993", "0xFFFFFFFFFFFFFFFF"])
def test_csv_has_more_ways_to_write_a_number(tmp_path: Path, text: str):
    """Quotes do not make text of it, 1e400 is not infinity, and a hexadecimal does not become negative."""
    path = write(tmp_path / "x.csv", ["1", text] if "x" in text else ["0.5", text])

    with pytest.raises(NumberTooLarge, match="row 1"):
        baked(path)


@pytest.mark.parametrize("value", ["1e400", "-1e400", "[0.5, 1e999]", '{"b": [1e400]}', "9" * 400 + ".0"])
def test_jsonl_has_no_number_beyond_all_floats(tmp_path: Path, value: str):
    """It is no damage: the error names line, column and number."""
    path = write(tmp_path / "x.jsonl", ["null", value])

    with pytest.raises(NumberTooLarge, match=r"line 2, column 'id.*cannot be kept exactly"):
        baked(path)


def test_a_damaged_jsonl_file_is_damaged(tmp_path: Path):
    """Whatever its numbers are."""
    with pytest.raises(CorruptDataError):
        baked(write(tmp_path / "x.jsonl", ["1", "{"]))


def test_csv_keeps_what_is_written_otherwise(tmp_path: Path):
    """Leading zeros, spaces, infinity in words."""
    floats = write(tmp_path / "a.csv", ["0000000000000000000000001", " 1e300 ", "inf"])

    assert baked(floats) == [1, 1e300, float("inf")]
    assert baked(write(tmp_path / "b.csv", ["0009007199254740993", "0x1F", "-5"])) == [LARGE, 31, -5]


def test_json_of_python_is_read(tmp_path: Path):
    """NaN and Infinity are numbers of their own; what no JSON library writes is refused where it cannot be checked."""
    found = baked(write(tmp_path / "x.jsonl", ["NaN", "Infinity", "-Infinity", "0.5"]))

    assert str(found) == "[nan, inf, -inf, 0.5]"
    with pytest.raises(NumberTooLarge, match="cannot be seen"):
        baked(write(tmp_path / "x.jsonl", ["Inf"]))


@given(st.lists(st.one_of(st.integers(-(2**65), 2**65), st.integers(2**53 - 2, 2**53 + 2), st.floats(allow_nan=False))))
def test_numbers_are_exact_or_refused(values: list[Any]):
    """Any mixture of integers and floats; and a file that could be kept is never refused."""
    for kind in ("jsonl", "csv"):
        data = text_of(values, kind).encode()
        is_kept = _fit(values)
        try:
            table = parse(data, kind, "x")
            check_exact(table, data, kind, "x")
        except NumberTooLarge:
            assert not is_kept
            continue
        assert is_kept
        if values:
            assert list(map(_exact, table["id"].to_pylist())) == list(map(_exact, values))


def _fit(values: list[Any]) -> bool:
    integers = [value for value in values if isinstance(value, int)]
    if len(integers) == len(values) and all(-(2**63) <= value < 2**63 for value in integers):
        return True
    return all(abs(value) <= 2**53 for value in integers)


def _exact(value: Any) -> Any:
    return value if isinstance(value, float) and abs(value) == float("inf") else Fraction(value)


def test_only_files_with_large_numbers_are_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The check of an ordinary file looks at its extremes."""
    monkeypatch.setattr(formats, "_check_jsonl", None)
    monkeypatch.setattr(formats, "_check_csv", None)

    for name in NAMES:
        assert baked(write(tmp_path / name, [2**53 - 1, 0.5])) == [2**53 - 1, 0.5]


@pytest.mark.parametrize("name", [*NAMES, "x.tsv"])
def test_poolish_check_reads_as_a_bake_does(tmp_path: Path, name: str):
    """It refuses on the level format what a bake would refuse, and finds text where a bake does."""
    bad, dated = write(tmp_path / name, IDS), write(tmp_path / f"dated-{name}", ['"2026-01-31"'])

    done, good = (CliRunner().invoke(app, ["check", str(path)]) for path in (bad, dated))

    assert (done.exit_code, good.exit_code) == (1, 0), done.output + good.output
    assert "format: failed" in done.output
    assert "18446744073709551613 cannot be kept exactly" in done.output


def test_a_cache_of_rounded_numbers_is_not_used(tmp_path: Path):
    """Fragments of texts that 0.1.0 kept have other names, so nothing rounded comes back."""
    from poolish.files import checksum_hex
    from tests.recipes.kitchen import file_source

    path = write(tmp_path / "x.csv", [0.5])

    (fragment,) = file_source(str(path)).fragments()

    assert fragment.fingerprint != checksum_hex(path.read_bytes())


# One reader -------------------------------------------------------------------------------------------------------

ROWS = [{"day": "2026-01-31", "n": 7, "x": 0.5, "word": "rye"}, {"day": "late", "n": 8, "x": 1.0, "word": "oats"}]


def write_as(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the format and compression that the name says."""
    table, plain = pa.Table.from_pylist(rows), path.name.removesuffix(".gz").removesuffix(".zst")
    sink = io.BytesIO()
    if plain.endswith(".parquet"):
        pq.write_table(table, sink)
    elif plain.endswith((".arrow", ".ipc")):
        with (pa.ipc.new_file if plain.endswith(".arrow") else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table)
    elif plain.endswith(".jsonl"):
        sink.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    else:
        lines = [list(rows[0]), *(row.values() for row in rows)]
        sink.write("".join(("\t" if "tsv" in plain else ",").join(map(str, line)) + "\n" for line in lines).encode())
    return write_packed(path, sink.getvalue())


def write_packed(path: Path, data: bytes) -> Path:
    """Bytes, compressed as the name says."""
    if path.suffix == ".zst":
        data = pa.compress(data, codec="zstd", asbytes=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def checked(path: Path) -> Any:
    (source,) = sources(path)
    return source


@pytest.mark.parametrize(
    "name",
    [
        *("x.parquet", "x.arrow", "x.ipc", "x.jsonl", "x.csv", "x.tsv", "x.arrow.gz", "x.ipc.zst"),
        *("x.jsonl.gz", "x.jsonl.zst", "x.csv.gz", "x.csv.zst", "x.tsv.gz", "x.tsv.zst"),
    ],
)
@pytest.mark.parametrize("n_rows", [1, 2])
def test_check_and_bake_read_the_same_rows(tmp_path: Path, name: str, n_rows: int):
    """Of every format and compression; what looks like a date is text to both."""
    path = write_as(tmp_path / name, ROWS[:n_rows])

    baked_rows = DatasetRecipe("r").add_ingredient("a", str(path)).bake().table.to_pylist()

    assert baked_rows == ROWS[:n_rows]
    assert checked(path).rows.to_arrow().to_pylist() == ROWS[:n_rows]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.csv", "x.tsv", "x.tsv.zst"])
@pytest.mark.parametrize("value", ["1e400", str(2**63)])
def test_check_and_bake_refuse_the_same_numbers(tmp_path: Path, name: str, value: str):
    """In the same words, but for the ingredient."""
    path = write_packed(tmp_path / name, text_of([value], name.split(".")[1]).encode())

    with pytest.raises(NumberTooLarge) as refused:
        baked(path)

    assert checked(path).read().problems == [str(refused.value).removeprefix("ingredient 'ids': ")]
