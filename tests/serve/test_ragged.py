"""Rows of different lengths and text through a queue: what a provider returns is what a trainer gets, or an error."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolish import DataProviderBase, DatasetConsumer, DatasetProvider
from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.guards import Suite
from poolish.ragged import Ragged
from poolish.serve import queue_status, reading_ahead, rejections, verify_queue
from poolish.transports import meta as meta_module
from poolish.transports.batch_file import BatchMetadata, decode, encode
from poolish.transports.meta import QueueMeta
from tests.effort import times
from tests.serve.damage import LABEL, consumer, damaged, file_of, forged, names

FIELDS = [
    {"name": "tokens", "dtype": "int32", "shape": [None]},
    {"name": "boxes", "dtype": "float32", "shape": [None, 4]},
    {"name": "text", "dtype": "string"},
    {"name": "raw", "dtype": "binary"},
    {"name": "label", "dtype": "int64"},
]
TOKENS = [[3, 1], [], [4, 1, 5]]
TEXTS = ["Brot", "", "pâte à pain 🍞"]
RAW = [b"\xff\x00", b"", b"rye"]


class Served(DataProviderBase):
    """Batches of what a test gives."""

    variable_rows = True

    def build_meta(self) -> dict[str, Any]:
        return {"batch_schema": self.fields}

    def sample_batch(self, split: str, rng: np.random.Generator) -> Any:
        return self.batches[self.batch_number(split) % len(self.batches)]


def served(path: Path, fields: list[dict[str, Any]], *batches: Any, **options: Any) -> Served:
    """A provider of these batches, one after the other."""
    class_ = type("Served", (Served,), {"fields": fields, "batches": batches})
    config = {"dataset": "rows", "batch_size": 3, "block_size": 1, "splits": ("train",), "min_free_bytes": 0}
    return class_(config, path=path, **options)


def batch() -> dict[str, Any]:
    return {
        "tokens": [np.array(row, np.int32) for row in TOKENS],
        "boxes": [np.full((n, 4), n, np.float32) for n in (1, 0, 2)],
        "text": TEXTS,
        "raw": RAW,
        "label": np.arange(3),
    }


def through(path: Path, fields: list[dict[str, Any]], returned: Any, **options: Any) -> Any:
    """What a consumer gets of a batch."""
    with served(path, fields, returned) as provider:
        provider.publish("train")
        with consumer(path, **options) as reading:
            return reading.get_batch()


# Values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_batch_arrives_as_it_was_made(tmp_path: Path, output: str, prefetch: int):
    """Rows of any length, text and bytes beside plain arrays, in the output that was asked for."""
    found = through(tmp_path, FIELDS, batch(), output=output, prefetch=prefetch)

    array = np.ndarray if output == "numpy" else torch.Tensor
    assert list(found) == [field["name"] for field in FIELDS]
    assert isinstance(found["tokens"].values, array)
    assert isinstance(found["tokens"].offsets, array)
    assert str(found["tokens"].values.dtype).endswith("int32")
    assert [row.tolist() for row in found["tokens"]] == TOKENS
    assert [tuple(row.shape) for row in found["boxes"]] == [(1, 4), (0, 4), (2, 4)]
    assert found["boxes"][2].tolist() == [[2.0] * 4] * 2
    assert (found["text"], found["raw"]) == (TEXTS, RAW)
    assert found["label"].tolist() == [0, 1, 2]


FORMS: list[tuple[str, Callable[[], Any]]] = [
    ("lists", lambda: TOKENS),
    ("arrays", lambda: [np.array(row, np.int32) for row in TOKENS]),
    ("arrays and lists", lambda: [np.array([3, 1], np.int32), [], [4, 1, 5]]),
    ("tensors", lambda: [torch.tensor(row, dtype=torch.int32) for row in TOKENS]),
    ("object array", lambda: np.array([np.array(row, np.int32) for row in TOKENS], object)),
    ("pair", lambda: (np.array([3, 1, 4, 1, 5], np.int32), np.array([0, 2, 2, 5]))),
    ("pair of tensors", lambda: (torch.tensor([3, 1, 4, 1, 5], dtype=torch.int32), torch.tensor([0, 2, 2, 5]))),
    ("pair with small offsets", lambda: (np.array([3, 1, 4, 1, 5], np.int32), [0, 2, 2, 5])),
    ("Ragged", lambda: Ragged(np.array([3, 1, 4, 1, 5], np.int32), np.array([0, 2, 2, 5]))),
    ("list array", lambda: pa.array(TOKENS, pa.list_(pa.int32()))),
    ("sliced list array", lambda: pa.array([[9], *TOKENS, [7, 7]], pa.large_list(pa.int32())).slice(1, 3)),
    ("chunked list array", lambda: pa.chunked_array([[TOKENS[0]], TOKENS[1:]], pa.list_(pa.int32()))),
]


@pytest.mark.parametrize("form", [form for _, form in FORMS], ids=[name for name, _ in FORMS])
def test_every_form_of_ragged_rows(tmp_path: Path, form: Callable[[], Any]):
    """Whatever holds them, the same rows arrive."""
    found = through(tmp_path, FIELDS[:1], {"tokens": form()})["tokens"]

    assert [row.tolist() for row in found] == TOKENS
    assert (found.values.dtype, found.offsets.dtype) == (np.int32, np.int64)


TRAILING: list[tuple[str, Callable[[], Any]]] = [
    ("lists", lambda: [[[1, 2]], [], [[3, 4], [5, 6]]]),
    ("fixed-size lists", lambda: pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.float32(), 2)))),
    ("pair", lambda: (np.arange(1, 7, dtype=np.float32).reshape(3, 2), [0, 1, 1, 3])),
    (
        "tensor column",
        lambda: _snapshot_column([np.float32([[1, 2]]), np.zeros((0, 2), "f4"), np.float32([[3, 4], [5, 6]])]),
    ),
]


def _snapshot_column(rows: list[Any]) -> pa.Array:
    from poolish import DatasetBuffer, Field, Schema

    buffer = DatasetBuffer(schema=Schema([Field("boxes", "float32", (None, 2))]))
    buffer.append([{"boxes": row} for row in rows])
    return buffer.snapshot().to_arrow()["boxes"]


@pytest.mark.parametrize("form", [form for _, form in TRAILING], ids=[name for name, _ in TRAILING])
def test_every_form_of_rows_with_a_trailing_shape(tmp_path: Path, form: Callable[[], Any]):
    """The sizes behind the first are the schema's."""
    fields = [{"name": "boxes", "dtype": "float32", "shape": [None, 2]}]

    found = through(tmp_path, fields, {"boxes": form()})["boxes"]

    assert [row.tolist() for row in found] == [[[1, 2]], [], [[3, 4], [5, 6]]]


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        np.array,
        lambda rows: np.array(rows, object),
        pa.array,
        lambda rows: pa.array(["x", *rows]).slice(1),
        lambda rows: pa.array(rows).dictionary_encode(),
        lambda rows: pa.chunked_array([rows[:1], rows[1:]]),
    ],
)
def test_every_form_of_text(tmp_path: Path, form: Callable[[Any], Any]):
    """Lists, NumPy's and Arrow's text."""
    assert through(tmp_path, FIELDS[2:3], {"text": form(TEXTS)})["text"] == TEXTS


def test_dtypes_that_numpy_lacks(tmp_path: Path):
    """bfloat16 keeps its bits, and is float32 in NumPy."""
    fields = [{"name": "x", "dtype": "bfloat16", "shape": [None]}]
    rows = [torch.tensor([1.5, -2.0], dtype=torch.bfloat16), torch.zeros(0, dtype=torch.bfloat16)]
    with served(tmp_path, fields, {"x": rows}) as provider:
        for _ in range(2):
            provider.publish("train")
    with consumer(tmp_path, output="torch") as reading:
        exact = reading.get_batch()["x"]
    with consumer(tmp_path) as reading:
        widened = reading.get_batch()["x"]

    assert exact.values.dtype == torch.bfloat16
    assert exact[0].tolist() == widened[0].tolist() == [1.5, -2.0]
    assert widened.values.dtype == np.float32


def test_a_batch_is_the_trainers_to_change(tmp_path: Path):
    """As with plain arrays, nothing that the trainer writes is seen by anybody else."""
    with served(tmp_path, FIELDS, batch()) as provider:
        provider.publish("train")
    with consumer(tmp_path, acknowledge="on_checkpoint", output="torch") as reading:
        reading.get_batch()["tokens"].values.zero_()
    with consumer(tmp_path) as reading:
        assert reading.get_batch()["tokens"][0].tolist() == [3, 1]


@pytest.mark.parametrize("address", ["directory", "memory"])
def test_any_rows_arrive_as_they_were(tmp_path: Path, address: str):
    """Random lengths, also of nothing but empty rows, through every transport: the rows of a plain list."""
    rng = np.random.default_rng(5)
    batches = []
    for i in range(times(30)):
        lengths = rng.integers(0, 4 if i % 5 else 1, rng.integers(1, 6))
        tokens = [rng.integers(-(2**31), 2**31, n).astype(np.int32) for n in lengths]
        text = ["".join(rng.choice(["a", "é", "🍞", "\n", "\0"], n)) for n in lengths]
        boxes = [rng.random((n, 4), np.float32) for n in lengths]
        made = {"tokens": tokens, "boxes": boxes, "text": text, "raw": [row.encode() for row in text]}
        batches.append({**made, "label": lengths})
    path: Any = tmp_path if address == "directory" else "memory://any-rows"

    with served(path, FIELDS, *batches) as provider:
        for _ in batches:
            provider.publish("train")
        with consumer(path) as reading:
            found = [reading.get_batch() for _ in batches]

    for made, got in zip(batches, found, strict=True):
        for name in ("tokens", "boxes"):
            assert [row.tolist() for row in got[name]] == [row.tolist() for row in made[name]]
            assert [row.shape for row in got[name]] == [row.shape for row in made[name]]
        assert (got["text"], got["raw"]) == (made["text"], made["raw"])
        assert got["label"].tolist() == made["label"].tolist()


# Arrays where the first size is open -----------------------------------------------------------------------------


def test_what_is_one_array_stays_one(tmp_path: Path):
    """A field with an open size takes batches that were padded alike, as it always did, and they arrive as arrays."""
    padded = np.arange(6, dtype=np.int32).reshape(3, 2)

    found = through(tmp_path, FIELDS[:1], {"tokens": padded})["tokens"]

    assert isinstance(found, np.ndarray)
    assert found.tolist() == padded.tolist()


def test_rows_that_happen_to_be_alike_are_rows_still(tmp_path: Path):
    """Whether a trainer gets an array depends on what the provider returns, never on its lengths."""
    found = through(tmp_path, FIELDS[:1], {"tokens": [[1, 2], [3, 4], [5, 6]]})["tokens"]

    assert isinstance(found, Ragged)
    assert found.padded().tolist() == [[1, 2], [3, 4], [5, 6]]


def made_by_0_1_0(path: Path, patch: pytest.MonkeyPatch) -> None:
    """An empty queue with an open size as 0.1.0 made it."""
    with patch.context() as before:
        before.setattr(meta_module, "_version_of", lambda schema: 1)
        served(path, FIELDS[:1], {"tokens": np.zeros((3, 2), np.int32)}).open().close()
    assert json.loads((path / "queue/train/meta.json").read_text())["version"] == 1


def test_a_queue_of_0_1_0_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There an open size is that of all rows of a batch, however they are returned; other rows are refused."""
    made_by_0_1_0(tmp_path, monkeypatch)
    batches = ({"tokens": [[1, 2], [3, 4]]}, {"tokens": np.ones((2, 5), np.int32)}, {"tokens": TOKENS})

    with served(tmp_path, FIELDS[:1], *batches) as provider:
        provider.publish("train")
        provider.publish("train")
        with pytest.raises(SchemaError, match=r"'tokens'.*0\.1\.0.*one length, got 0 to 3; .*purge"):
            provider.publish("train")

    with consumer(tmp_path) as reading:
        assert reading.get_batch()["tokens"].tolist() == [[1, 2], [3, 4]]
        assert reading.get_batch()["tokens"].shape == (2, 5)
    assert json.loads((tmp_path / "queue/train/meta.json").read_text())["version"] == 1


# Errors of providers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "parts"),
    [
        ("tokens", [[1], [2.5], []], ["row 1", "int32[any]", "float64[1]"]),
        ("tokens", [[1], [], [2**31]], ["row 2", "int32[any]", "2147483648"]),
        ("tokens", [np.zeros(2, np.int64), [], []], ["row 0", "int32[any]", "int64[2]"]),
        ("tokens", [np.zeros(2, np.int32), np.zeros((1, 2), np.int32), []], ["row 1", "int32[any]", "int32[1, 2]"]),
        ("tokens", [[1], None, []], ["row 1"]),
        ("tokens", [[1], [True], ["x"]], ["row 1", "bool[1]"]),
        ("tokens", [[1], 2, []], ["row 1", "int32[any]", "int64[]"]),
        ("tokens", (np.zeros(3, np.int32), [0, 2, 1, 3]), ["offsets that decrease"]),
        ("tokens", (np.zeros(3, np.int32), [1, 2, 3, 3]), ["begin at 1"]),
        ("tokens", (np.zeros(3, np.int32), [0, 1, 2, 4]), ["end at 4, its values at 3"]),
        ("tokens", (np.zeros(3, np.int64), [0, 1, 2, 3]), ["int32[any]", "int64[3]"]),
        ("tokens", (np.zeros(3, np.int32), [0.0, 1, 2, 3]), ["offsets are whole numbers"]),
        ("tokens", ([1], [2], [3]), ["(values, offsets)", "a tuple of 3"]),
        ("tokens", pa.array([[1], None, [2]], pa.list_(pa.int32())), ["row 1", "nulls"]),
        ("tokens", pa.array([[1], [None], [2]], pa.list_(pa.int32())), ["nulls"]),
        ("tokens", pa.array([[1], [2], [2]], pa.list_(pa.int64())), ["int32[any]", "list<"]),
        ("tokens", pa.array([1, 2, 3]), ["int32[any]", "int64"]),
        ("boxes", [np.zeros((1, 4), "f4"), np.zeros((1, 3), "f4"), []], ["row 1", "float32[any, 4]", "float32[1, 3]"]),
        ("boxes", [[], [[1, 2, 3]], []], ["row 1", "float32[any, 4]", "[1, 3]"]),
        ("text", ["a", 1, "b"], ["row 1", "text (str)", "int 1"]),
        ("text", ["a", "b", None], ["row 2", "text (str)", "None"]),
        ("text", ["a", "\ud800", "b"], ["row 1", "UTF-8"]),
        ("text", "abc", ["a list of text"]),
        ("text", RAW, ["row 0", "text (str)", "bytes"]),
        ("text", pa.array(RAW), ["text (str)", "binary"]),
        ("text", pa.array(["a", None, "b"]), ["row 1", "nulls"]),
        ("raw", TEXTS, ["row 0", "bytes", "str"]),
        ("label", [[1], [2, 3], []], ["'label'"]),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, field: str, value: Any, parts: list[str]):
    """Field, row, expected and got; nothing is published."""
    with served(tmp_path, FIELDS, {**batch(), field: value}) as provider:
        with pytest.raises(SchemaError) as raised:
            provider.publish("train")
        names(raised.value, "batch 0", repr(field), *parts)
    assert queue_status(tmp_path)["train"].published == 0


def test_columns_of_different_lengths_are_refused(tmp_path: Path):
    """Every field of a batch has as many rows as the others, whether they are counted by offsets or not."""
    with served(tmp_path, FIELDS, {**batch(), "text": TEXTS[:2]}) as provider:
        expected = pytest.raises(SchemaError, match=r"'text': 2 rows, where 'tokens' has 3")
        with expected:
            provider.publish("train")


def test_only_the_first_size_may_differ_between_rows(tmp_path: Path):
    """Images of any size are one array a batch, as before; rows of several open sizes are refused."""
    fields = [{"name": "image", "dtype": "uint8", "shape": [None, None]}]

    assert through(tmp_path / "a", fields, {"image": np.zeros((2, 3, 4), np.uint8)})["image"].shape == (2, 3, 4)
    rows = [np.zeros((1, 2), np.uint8), np.zeros((3, 2), np.uint8)]
    with served(tmp_path / "b", fields, {"image": rows}) as provider, pytest.raises(SchemaError, match="'image'"):
        provider.publish("train")


def test_the_name_of_the_offsets_is_taken(tmp_path: Path):
    """Two tensors of a file would have it."""
    fields = [FIELDS[0], {"name": "tokens.offsets", "dtype": "int64"}]

    with pytest.raises(SchemaError, match=r"'tokens\.offsets'.*rename"):
        served(tmp_path, fields, {})


# Guards, quarantine, commands ------------------------------------------------------------------------------------


def test_guards_see_ragged_rows_and_text(tmp_path: Path):
    """At both ends, by value and by row; what is left is right."""
    suite = Suite().expect("tokens", at_most=4).on(error="drop")
    bread = Suite().expect("text", max_length=3).on(error="drop")

    with served(tmp_path, FIELDS, batch(), guard=suite) as provider:
        provider.publish("train")
    with consumer(tmp_path, guard=bread) as reading:
        found = reading.get_batch()

    assert [row.tolist() for row in found["tokens"]] == [[]]
    assert (found["text"], found["raw"], found["label"].tolist()) == ([""], [b""], [1])
    (report,) = rejections(tmp_path)
    rejected = decode(Path(report["file"]).read_bytes(), "quarantine")[1]
    assert rejected["tokens"][1][0].tolist() == [4, 1, 5]
    assert bytes(rejected["text"][1][0]).decode() == TEXTS[2]


def test_commands_show_ragged_fields_and_check_their_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """``poolish queue status`` says what a batch holds; ``validate`` judges rows and text in the queue."""
    from poolish.cli.queue import show_status
    from poolish.guards import validate

    with served(tmp_path, FIELDS, batch(), {**batch(), "tokens": np.zeros((3, 2), np.int32)}) as provider:
        provider.publish("train")
        provider.publish("train")

    show_status(tmp_path)
    fields = "fields of train: tokens int32[any], boxes float32[any, 4], text string, raw binary, label int64"
    assert fields in capsys.readouterr().out
    assert queue_status(tmp_path)["train"].fields["boxes"] == "float32[any, 4]"
    good = Suite().expect("tokens", at_most=5).expect("text", max_length=20)
    assert validate(tmp_path, suite=good).ok
    assert not validate(tmp_path, suite=Suite().expect("tokens", at_most=4)).ok
    assert not validate(tmp_path, suite=Suite().expect("text", max_length=3)).ok


def test_a_guard_for_boxes(tmp_path: Path):
    """Rows of a trailing shape are judged row by row."""
    suite = Suite().expect("boxes", at_most=1.5).on(error="drop")

    with served(tmp_path, FIELDS, batch()) as provider:
        provider.publish("train")
    with consumer(tmp_path, guard=suite, output="torch") as reading:
        found = reading.get_batch()

    assert [tuple(row.shape) for row in found["boxes"]] == [(1, 4), (0, 4)]
    assert found["text"] == TEXTS[:2]


def test_a_dataset_of_lists_and_text_is_served(tmp_path: Path):
    """Rows as they come from a tokenizer need no class and no padding."""
    rows = [{"tokens": list(range(i % 3)), "text": "x" * i, "label": i} for i in range(7)]

    with DatasetProvider(rows, path=tmp_path, batch_size=3, epochs=1, order="sequential") as provider:
        provider.run()
        schema = provider.schema
    with consumer(tmp_path) as reading:
        batches = list(reading)

    assert (schema["tokens"].shape, schema["text"].dtype) == ((None,), "string")
    assert [row.tolist() for each in batches for row in each["tokens"]] == [row["tokens"] for row in rows]
    assert [text for each in batches for text in each["text"]] == [row["text"] for row in rows]


def rows_served(path: Path, dataset: Any, **options: Any) -> tuple[Any, list[Any]]:
    """The schema that a dataset is served with, and its rows of the column t as they arrive."""
    with DatasetProvider(dataset, path=path, batch_size=2, epochs=1, order="sequential", **options) as provider:
        provider.run()
        schema = provider.schema["t"]
    with consumer(path) as reading:
        return schema, [row if isinstance(row, str) else row.tolist() for each in reading for row in each["t"]]


def test_the_schema_of_a_buffer_decides(tmp_path: Path):
    """Ragged tensors and typed lists keep their dtypes, whatever the first row is."""
    from poolish import DatasetBuffer

    arrays, lists = DatasetBuffer(), DatasetBuffer()
    arrays.append([{"t": np.zeros((n, 2), np.float32)} for n in (2, 2, 1)])
    lists.append(pa.table({"t": pa.array([[], [], [7]], pa.list_(pa.int16()))}))

    schema, rows = rows_served(tmp_path / "a", arrays.snapshot())
    assert (schema.dtype, schema.shape, [len(row) for row in rows]) == ("float32", (None, 2), [2, 2, 1])
    schema, rows = rows_served(tmp_path / "b", lists.snapshot())
    assert (schema.dtype, schema.shape, rows) == ("int16", (None,), [[], [], [7]])


def test_lists_of_one_length_are_arrays_as_before(tmp_path: Path):
    """A queue of such rows keeps its schema; ``ragged=`` says that they may differ, and a row that does asks for it."""
    alike = [{"t": [i, i]} for i in range(4)]
    late = [{"t": np.zeros(2 if i < 3 else 5)} for i in range(4)]

    assert rows_served(tmp_path / "a", alike)[0].shape == (2,)
    assert rows_served(tmp_path / "b", alike, ragged=["t"])[0].shape == (None,)
    with pytest.raises(SchemaError, match=r"row 3, column 't'.*pass ragged=\['t'\]"):
        rows_served(tmp_path / "c", late)
    assert [len(row) for row in rows_served(tmp_path / "d", late, ragged=["t"])[1]] == [2, 2, 2, 5]


def test_what_a_dataset_cannot_serve_is_named(tmp_path: Path):
    """A column that is not there, one of single numbers, one that is empty throughout."""
    with pytest.raises(ConfigError, match=r"ragged=\['u'\].*\['t'\]"):
        rows_served(tmp_path, [{"t": 1}], ragged=["u"])
    with pytest.raises(SchemaError, match="'t'"):
        rows_served(tmp_path, [{"t": 1}], ragged=["t"])
    with pytest.raises(SchemaError, match=r"'t'.*empty"):
        rows_served(tmp_path, [{"t": []}], ragged=["t"])


# The file -----------------------------------------------------------------------------------------------------------


def test_golden_bytes():
    """Offsets beside values in plain safetensors; version 2 of the header names the ragged columns."""
    columns = {
        "tokens": ("int32", Ragged(np.array([3, 1, 4], np.int32), np.array([0, 2, 2, 3]))),
        "text": ("string", Ragged(np.frombuffer("é".encode(), np.uint8), np.array([0, 0, 2, 2]))),
        "label": ("bool", np.array([True, False, True])),
    }
    label = BatchMetadata("00112233445566ff", "76969344e92052ad", 3, "w0", 7)

    data = b"".join(bytes(buffer) for buffer in encode(columns, label))

    n_header = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:n_header])
    assert header.pop("__metadata__") == {
        "checksum": data[37:53].decode(),
        "header": data[65:81].decode(),
        "hash": "xxh3_64",
        "poolish": "2",
        "ragged": '["tokens", "text"]',
        "queue": "00112233445566ff",
        "schema": "76969344e92052ad",
        "rows": "3",
        "provider": "w0",
        "counter": "7",
    }
    assert header == {
        "tokens.offsets": {"dtype": "I64", "shape": [4], "data_offsets": [0, 32]},
        "text.offsets": {"dtype": "I64", "shape": [4], "data_offsets": [32, 64]},
        "tokens": {"dtype": "I32", "shape": [3], "data_offsets": [64, 76]},
        "text": {"dtype": "U8", "shape": [2], "data_offsets": [76, 78]},
        "label": {"dtype": "BOOL", "shape": [3], "data_offsets": [78, 81]},
    }
    assert data[n_header:] == struct.pack("<8q3i", 0, 2, 2, 3, 0, 0, 2, 2, 3, 1, 4) + "é".encode() + b"\1\0\1"
    assert data[37:53] == b"120e2f8df9bb7c94"
    assert decode(data, "golden")[0] == label


def test_every_safetensors_tool_reads_it(tmp_path: Path):
    """The official library gives the values and the offsets."""
    from safetensors.numpy import load

    with served(tmp_path, FIELDS, batch()) as provider:
        provider.publish("train")

    found = load(file_of(tmp_path / "queue/train", 0).read_bytes())

    assert found["tokens"].tolist() == [3, 1, 4, 1, 5]
    assert found["tokens.offsets"].tolist() == [0, 2, 2, 5]
    assert found["text"].tobytes().decode() == "".join(TEXTS)


def test_the_description_says_version_2(tmp_path: Path):
    """So that 0.1.0 refuses the queue instead of taking its batches for corrupt ones."""
    meta = QueueMeta.of("train", {"batch_schema": FIELDS})

    assert meta.to_record()["version"] == 2
    assert QueueMeta.from_record(meta.to_record(), "here") == meta
    with pytest.raises(CorruptDataError, match=r"version 1 .*not known here"):
        QueueMeta.from_record({**meta.to_record(), "version": 1}, "here")


# Damage -------------------------------------------------------------------------------------------------------------


def sealed(tensors: dict[str, tuple[str, list[int], bytes]], ragged: Any, *, rows: int, version: str = "2") -> bytes:
    """A batch file with right checksums, whatever its tensors say."""
    described, content = [], b""
    for name, (dtype, shape, data) in tensors.items():
        offsets = [len(content), len(content) + len(data)]
        described.append(f'"{name}":{json.dumps({"dtype": dtype, "shape": shape, "data_offsets": offsets})}')
        content += data
    told = {"checksum": "0" * 16, "header": "0" * 16, "hash": "xxh3_64", "poolish": version, "ragged": ragged}
    told |= {"queue": LABEL.queue, "schema": LABEL.schema, "rows": str(rows), "provider": "w0", "counter": "7"}
    metadata = json.dumps({name: value for name, value in told.items() if value is not None}, separators=(",", ":"))
    return forged(f'{{"__metadata__":{metadata},{",".join(described)}}}', content)


def offsets(*numbers: int) -> tuple[str, list[int], bytes]:
    return "I64", [len(numbers)], struct.pack(f"<{len(numbers)}q", *numbers)


VALUES = ("I32", [3], struct.pack("<3i", 3, 1, 4))


def test_a_sealed_file_is_read():
    """The control: what the cases below change makes a right file."""
    file = sealed({"t.offsets": offsets(0, 2, 3), "t": VALUES}, '["t"]', rows=2)

    assert [row.tolist() for row in decode(file, "here")[1]["t"][1]] == [[3, 1], [4]]


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        ({"t.offsets": offsets(0, 3, 2)}, {}),
        ({"t.offsets": offsets(0, 3, 2, 3)}, {"rows": 3}),
        ({"t.offsets": offsets(1, 2, 3)}, {}),
        ({"t.offsets": offsets(-1, 2, 3)}, {}),
        ({"t.offsets": offsets(0, 2, 4)}, {}),
        ({"t.offsets": offsets(0, 2, 2)}, {}),
        ({"t.offsets": offsets(0, -(2**63), 3)}, {}),
        ({"t.offsets": offsets(0, 2**63 - 1, 3)}, {}),
        ({"t.offsets": offsets()}, {"rows": -1}),
        ({"t.offsets": offsets()}, {"rows": 0}),
        ({"t.offsets": ("U64", [3], struct.pack("<3Q", 0, 2, 3))}, {}),
        ({"t.offsets": ("I64", [3, 1], struct.pack("<3q", 0, 2, 3))}, {}),
        ({"t.offsets": offsets(0, 2, 3)}, {"rows": 3}),
        ({"t.offsets": offsets(0, 2, 3), "x": ("I32", [3], bytes(12))}, {}),
        ({"t.offsets": offsets(0, 2, 3), "t": ("I32", [], bytes(4))}, {}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": '["t","u"]'}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": '["t","t"]'}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": '["t","t.offsets"]'}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": "[]"}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": "[" * 30_000}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": "[7]"}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": "t"}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": '{"t":1}'}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": ["t"]}),
        ({"t.offsets": offsets(0, 2, 3)}, {"ragged": None}),
        ({"t.offsets": offsets(0, 2, 3)}, {"version": "1"}),
        ({"t.offsets": offsets(0, 2, 3)}, {"version": "3"}),
        ({"t.offset": offsets(0, 2, 3)}, {}),
    ],
)
def test_sealed_lies_are_refused(tensors: dict[str, Any], options: dict[str, Any]):
    """Whoever can make a right checksum still cannot make wrong rows."""
    known = {"ragged": '["t"]', "rows": 2, **options}
    file = sealed({"t": VALUES, **tensors}, known.pop("ragged"), **known)

    with pytest.raises(CorruptDataError, match="here"):
        decode(file, "here")


def test_sealed_text_that_is_no_utf_8_is_refused(tmp_path: Path):
    """Also where an offset cuts a letter in two: never a wrong text, and the row is named."""
    for i, (text, ends) in enumerate([(b"a\xffb", (0, 1, 3, 3)), ("aé".encode(), (0, 2, 3, 3))]):
        path = tmp_path / str(i)
        with served(path, FIELDS[2:3], {"text": TEXTS}) as provider:
            provider.publish("train")
        file = file_of(path / "queue/train", 0)
        label = decode(file.read_bytes(), "it")[0]
        column = Ragged(np.frombuffer(text, np.uint8), np.array(ends))
        file.write_bytes(b"".join(bytes(part) for part in encode({"text": ("string", column)}, label)))

        with consumer(path) as reading, pytest.raises(CorruptDataError, match="'text' in row"):
            reading.get_batch()
        assert "UTF-8" in verify_queue(path)["train"][0]


def test_a_sealed_batch_of_other_columns_is_refused(tmp_path: Path):
    """Ragged where the schema has an array, bytes where it has numbers, another trailing shape."""
    right = Ragged(np.zeros(5, np.int32), np.array([0, 2, 2, 5]))
    cases: list[dict[str, Any]] = [
        {"tokens": ("int64", Ragged(np.zeros(5, np.int64), right.offsets))},
        {"tokens": ("int32", Ragged(np.zeros((5, 1), np.int32), right.offsets))},
        {"tokens": ("int32", right), "label": ("int64", Ragged(np.zeros(5, np.int64), right.offsets))},
        {"tokens": ("int32", right), "text": ("uint8", np.zeros((3, 2), np.uint8))},
        {"tokens": ("int32", right), "text": ("uint8", Ragged(np.zeros((5, 2), np.uint8), right.offsets))},
        {"tokens": ("int32", right[:2])},
    ]
    for i, case in enumerate(cases):
        path = tmp_path / str(i)
        with served(path, FIELDS, batch()) as provider:
            provider.publish("train")
        file = file_of(path / "queue/train", 0)
        label, columns = decode(file.read_bytes(), "it")
        file.write_bytes(b"".join(bytes(part) for part in encode({**columns, **case}, changed(label, rows=3))))
        with consumer(path) as reading, pytest.raises(CorruptDataError, match=r"batch_schema says|rows"):
            reading.get_batch()


def test_damage_is_never_a_wrong_row(tmp_path: Path):
    """Bits, words and parts of a file with ragged columns: the rows that were written, or an error."""
    whole_batch = batch()
    with served(tmp_path, FIELDS, whole_batch) as provider:
        provider.publish("train")
    whole, rng = file_of(tmp_path / "queue/train", 0).read_bytes(), random.Random(3)

    for _ in range(times(300)):
        content = damaged(rng, whole)
        if content != whole:
            with pytest.raises(CorruptDataError):
                decode(content, "here")


def test_every_flipped_byte_is_told(tmp_path: Path):
    """Of the header, the offsets, the values and the text."""
    with served(tmp_path, FIELDS, batch()) as provider:
        provider.publish("train")
    whole = file_of(tmp_path / "queue/train", 0).read_bytes()

    for i in range(len(whole)):
        content = bytearray(whole)
        content[i] ^= 1 << (i % 8)
        with pytest.raises(CorruptDataError):
            decode(bytes(content), "here")


def test_a_corrupt_batch_is_replaced_by_the_last_good_one(tmp_path: Path):
    """The policy is the same as for plain arrays, with ragged rows and text."""
    with served(tmp_path, FIELDS, batch(), {**batch(), "text": ["a", "b", "c"]}) as provider:
        provider.publish("train")
        provider.publish("train")
    file = file_of(tmp_path / "queue/train", 1)
    file.write_bytes(file.read_bytes()[:-1])

    with DatasetConsumer(tmp_path, output="numpy", on_corrupt="cached", timeout_s=5) as reading:
        batches = [reading.get_batch() for _ in range(2)]

    assert [each["text"] for each in batches] == [TEXTS, TEXTS]
    assert batches[1]["tokens"][2].tolist() == [4, 1, 5]


# Reading ahead for a device -----------------------------------------------------------------------------------------


class Copies:
    """What copies to a device are, without one: a copy of a tensor."""

    def __init__(self, device: Any, *, pin: bool) -> None:
        self.copied: list[Any] = []

    def begin(self, tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor.clone(), None

    def finish(self, staged: tuple[torch.Tensor, None]) -> torch.Tensor:
        return staged[0]


class OverwrittenMemory:
    """Memory that another batch takes as soon as it was copied."""

    def take(self, n_bytes: int) -> np.ndarray:
        return np.empty(n_bytes, np.uint8)

    def give_back(self, lent: np.ndarray, is_copied: None) -> None:
        lent[:] = 0xFF


@pytest.mark.parametrize("keeps_columns", [False, True])
def test_a_device_gets_values_and_offsets_in_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_columns: bool
):
    """Text is decoded, and what a guard looks at is copied, before the memory they were read into is overwritten."""
    monkeypatch.setattr(reading_ahead, "DeviceStage", Copies)
    monkeypatch.setattr(reading_ahead, "PinnedMemory", OverwrittenMemory)
    with served(tmp_path, FIELDS, batch()) as provider:
        provider.publish("train")
        stage = reading_ahead.CudaStage("cuda", keeps_columns=keeps_columns)
        with consumer(tmp_path) as reading:
            kept, begun = stage.begin(reading._reader("train").read(0, stage.allocate))
            found = stage.finish(begun)

    assert list(found) == [field["name"] for field in FIELDS]
    assert [row.tolist() for row in found["tokens"]] == TOKENS
    assert found["boxes"][2].tolist() == [[2.0] * 4] * 2
    assert (found["text"], found["raw"], found["label"].tolist()) == (TEXTS, RAW, [0, 1, 2])
    if keeps_columns:
        assert kept.columns["tokens"][1][2].tolist() == [4, 1, 5]
        assert bytes(kept.columns["text"][1][0]).decode() == TEXTS[0]
