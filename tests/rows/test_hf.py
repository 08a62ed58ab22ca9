"""Hugging Face datasets in and out: rows, order and features are kept exactly, through Arrow."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Array2D, Array3D, Array4D, Array5D, ClassLabel, Dataset, Features, LargeList, List, Value
from PIL import Image

from poolish import DatasetBuffer, Field
from poolish.errors import SchemaError
from poolish.rows import bridges
from tests.rows.facts import column, facts, plain


def picture(value=1, mode="RGB"):
    return Image.fromarray(np.arange(60, dtype=np.uint8).reshape(5, 4, 3) + value).convert(mode)


def dataset_of(values, feature):
    return Dataset.from_dict({"x": values}, features=Features({"x": feature}))


def buffer_of(samples):
    buffer = DatasetBuffer()
    buffer.append(samples)
    return buffer


def seen(rows):
    """Rows of a dataset as something that compares exactly, pictures by their pixels."""
    if isinstance(rows, Image.Image):
        return (rows.mode, rows.size, rows.tobytes())
    if isinstance(rows, dict):
        return {name: seen(value) for name, value in rows.items()}
    if isinstance(rows, list):
        return [seen(value) for value in rows]
    return plain(rows)


COLUMNS = {
    "text": (Value("string"), ["a", None, "🍞"]),
    "large text": (Value("large_string"), ["a", None, ""]),
    "bytes": (Value("binary"), [b"a", b"\0", None]),
    "bool": (Value("bool"), [True, None, False]),
    **{
        name: (Value(name), [1, None, 127])
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    **{name: (Value(name), [0.5, None, float("nan")]) for name in ("float32", "float64")},
    "float16": (Value("float16"), [np.float16(0.5), np.float16(-1)]),
    "timestamp": (Value("timestamp[us]"), [dt.datetime(2026, 1, 2), None]),
    "date": (Value("date32"), [dt.date(2026, 1, 2), None]),
    "time": (Value("time64[us]"), [dt.time(1, 2), None]),
    "duration": (Value("duration[s]"), [dt.timedelta(1), None]),
    "decimal": (Value("decimal128(10, 2)"), [Decimal("1.25"), None]),
    "null": (Value("null"), [None, None]),
    "class label": (ClassLabel(names=["rye", "oat"]), ["oat", "rye", None]),
    "list": (List(Value("int32")), [[1, 2], [], None]),
    "large list": (LargeList(Value("int32")), [[1, 2], [], None]),
    "list of class labels": (List(ClassLabel(names=["rye", "oat"])), [["oat"], []]),
    "list of length 3": (List(Value("float32"), length=3), [[1, 2, 3], [4, 5, 6]]),
    "list of length 3 with null": (List(Value("int64"), length=3), [[1, 2, 3], None, [4, 5, 6]]),
    "texts of length 2": (List(Value("string"), length=2), [["a", "b"], ["c", "d"]]),
    "texts of length 2 with null": (List(Value("string"), length=2), [["a", "b"], None, ["c", "d"]]),
    "pairs of length 2 with null": (
        List(List(Value("int64"), length=2), length=2),
        [None, [[1, 2], [3, 4]], [[5, 6], [7, 8]], None],
    ),
    "list of lists": (List(List(Value("string"))), [[["a"], []], []]),
    "struct": (
        {"a": Value("int8"), "b": {"c": List(Value("string"))}},
        [{"a": 1, "b": {"c": ["x"]}}, {"a": None, "b": {"c": []}}],
    ),
    "list of structs": (List({"a": Value("int32")}), [[{"a": 1}, {"a": 2}], []]),
    "sequence of structs": (datasets.Sequence({"a": Value("int32")}), [{"a": [1, 2]}, {"a": []}]),
    "translation": (datasets.Translation(["de", "en"]), [{"de": "a", "en": "b"}] * 2),
    "Array2D": (Array2D((2, 3), "float32"), [np.ones((2, 3)), np.zeros((2, 3))]),
    "Array2D with null": (Array2D((2, 2), "int32"), [np.ones((2, 2), int), None]),
    "Array2D of bool": (Array2D((2, 2), "bool"), [np.eye(2, dtype=bool)] * 2),
    "Array2D of any height": (Array2D((None, 2), "int64"), [np.ones((3, 2), int), np.zeros((1, 2), int)]),
    "Array3D": (Array3D((1, 2, 2), "uint8"), [np.ones((1, 2, 2), np.uint8)] * 2),
    "Array4D": (Array4D((1, 2, 1, 2), "int16"), [np.ones((1, 2, 1, 2), np.int16)] * 2),
    "Array5D": (Array5D((1, 2, 1, 2, 1), "float64"), [np.ones((1, 2, 1, 2, 1))] * 2),
    "list of Array2D": (List(Array2D((2, 2), "int32")), [[np.eye(2, dtype=int)], []]),
    "struct of Array2D": ({"y": Array2D((2, 2), "int32")}, [{"y": np.eye(2, dtype=int)}] * 2),
    "images": (datasets.Image(), [picture(1), None, picture(2, "L")]),
    "list of images": (List(datasets.Image()), [[picture(1), picture(2)], []]),
}

SELECTIONS = {
    "whole": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(seed=3),
    "selected": lambda ds: ds.select([len(ds) - 1, 0, 0]),
    "range": lambda ds: ds.select(range(1, len(ds))),
    "concatenated": lambda ds: datasets.concatenate_datasets([ds, ds]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_and_features_make_the_round_trip(kind):
    """What came as a dataset leaves as the same dataset: values, nulls, features."""
    for selection in ["whole", "selected"]:
        feature, values = COLUMNS[kind]
        given = SELECTIONS[selection](dataset_of(values, feature))

        back = buffer_of(given).to_hf_dataset()

        assert back.features == given.features
        assert seen(back[:]) == seen(given[:])
        back.data.table.validate(full=True)


def test_lists_of_another_length_than_their_feature_says_do_not_leave():
    """They would be cut in other places than they were."""
    buffer = DatasetBuffer()
    buffer.append(Dataset.from_dict({"x": [["a", "b"]]}, features=Features(x=List(Value("string"), length=2))))
    buffer.append([{"x": ["c"]}, {"x": ["d", "e", "f"]}])

    with pytest.raises(SchemaError, match="a list of 1 where the feature of its column says 2"):
        buffer.to_hf_dataset()


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_order_of_a_selection_is_kept(selection):
    """Indices, shuffles and chunks are respected; one append is one generation."""
    given = SELECTIONS[selection](Dataset.from_dict({"n": list(range(10)), "text": [str(i) for i in range(10)]}))
    buffer = buffer_of(given)

    assert buffer.to_pydict() == given.to_dict()
    assert buffer.generations == [(0, len(given))]


def test_features_survive_filters_updates_saving_and_further_rows(tmp_path):
    """A column remembers what it came as, whatever happens to its rows."""
    features = Features({"label": ClassLabel(names=["rye", "oat"]), "image": datasets.Image()})
    given = Dataset.from_dict({"label": [0, 1], "image": [picture(1), picture(2)]}, features=features)
    buffer = buffer_of(given)

    buffer.append(given[0])
    buffer.save(tmp_path / "rows")
    loaded = DatasetBuffer.load(tmp_path / "rows").filter(np.array([False, True, True]))

    assert loaded.to_hf_dataset().features == features
    assert seen(loaded.to_hf_dataset()[:]) == seen({"label": [1, 0], "image": [picture(2), picture(1)]})


@pytest.mark.parametrize("is_dataset_first", [True, False])
@pytest.mark.parametrize(
    "other", [lambda: {"image": picture(7)}, lambda: [{"image": picture(7)}], lambda: {"image": None}]
)
def test_images_of_a_dataset_and_pictures_share_a_column(is_dataset_first, other):
    """Generated pictures join the dataset that they extend, in either order."""
    given, sample = dataset_of([picture(1)], datasets.Image()).rename_column("x", "image"), other()
    picture_or_none = sample[0]["image"] if isinstance(sample, list) else sample["image"]
    buffer = DatasetBuffer()

    for part in (given, sample) if is_dataset_first else (sample, given):
        buffer.append(part)

    images = buffer.to_hf_dataset()["image"][:]
    assert seen(images if is_dataset_first else images[::-1]) == seen([picture(1), picture_or_none])


@pytest.mark.parametrize(
    "empty", [lambda ds: ds.select([]), lambda ds: ds.filter(lambda row: False), lambda ds: ds.select(range(0))]
)
def test_a_dataset_without_rows_still_decides_the_schema(empty):
    """Its features say what may follow."""
    given = empty(dataset_of(["rye"], ClassLabel(names=["rye", "oat"])))

    buffer = buffer_of(given)

    assert buffer.to_hf_dataset().features == given.features
    with pytest.raises(SchemaError, match="column 'x'"):
        buffer.append({"x": "text"})


def test_labels_that_mean_something_else_are_refused():
    """Class 0 of one dataset may be class 1 of another: only the names tell, so they must agree."""
    buffer = buffer_of(dataset_of(["rye"], ClassLabel(names=["rye", "oat"])))
    before = facts(buffer)

    with pytest.raises(SchemaError, match=r"column 'x'.*rye.*oat.*; "):
        buffer.append(dataset_of(["rye"], ClassLabel(names=["oat", "rye"])))

    assert facts(buffer) == before


def test_an_iterable_dataset_is_an_iterable_of_rows():
    """It streams; its pictures are pictures."""
    given = Dataset.from_dict(
        {"n": [1, 2], "image": [picture(1), picture(2)]},
        features=Features({"n": Value("int64"), "image": datasets.Image()}),
    )

    buffer = buffer_of(given.to_iterable_dataset())

    assert column(buffer, "n") == [1, 2]
    assert seen(buffer.to_hf_dataset()["image"][:]) == seen([picture(1), picture(2)])


@pytest.mark.parametrize("wrap", [lambda splits: splits, lambda splits: [{"x": 1}, splits]])
def test_a_dictionary_of_splits_is_no_row(wrap):
    """The message says which part was meant."""
    given = dataset_of([1], Value("int64"))
    for splits in (datasets.DatasetDict(train=given), datasets.IterableDatasetDict(train=given.to_iterable_dataset())):
        with pytest.raises(SchemaError, match=r"splits.*; .*\['train'\]"):
            buffer_of(wrap(splits))


@pytest.mark.parametrize("form", ["torch", "numpy", "arrow", "pandas"])
def test_the_format_of_a_dataset_changes_nothing(form):
    """Rows come through Arrow, so a format meant for reading neither slows nor alters them."""
    given = Dataset.from_dict({"n": [1, 2], "words": [["a"], []]})

    assert buffer_of(given.with_format(form)).to_pydict() == given.to_dict()


def test_a_list_of_datasets_is_all_their_rows():
    """Datasets and rows may stand in one list."""
    given = Dataset.from_dict({"n": [1, 2]})

    assert column(buffer_of([given, {"n": 3}, given.select([1])]), "n") == [1, 2, 3, 2]


# -- out, from rows that were never a dataset

LEAVING = {
    "numbers": ([{"x": 1}, {"x": None}], Value("int64"), [1, None]),
    "text": ([{"x": "a"}, {"x": None}], Value("string"), ["a", None]),
    "bytes": ([{"x": b"a"}], Value("binary"), [b"a"]),
    "bool": ([{"x": True}, {"x": None}], Value("bool"), [True, None]),
    "nothing": ([{"x": None}], Value("null"), [None]),
    "lists": ([{"x": [1, None]}, {"x": []}, {"x": None}], List(Value("int64")), [[1, None], [], None]),
    "structs": (
        [{"x": {"a": 1, "b": ["c"]}}, {"x": None}],
        {"a": Value("int64"), "b": List(Value("string"))},
        [{"a": 1, "b": ["c"]}, None],
    ),
    "list of structs": ([{"x": [{"a": 1}]}, {"x": []}], List({"a": Value("int64")}), [[{"a": 1}], []]),
    "rank 1": ([{"x": np.arange(3)}], List(Value("int64"), length=3), [[0, 1, 2]]),
    "rank 1 with null": ([{"x": np.arange(2)}, {"x": None}], List(Value("int64"), length=2), [[0, 1], None]),
    "rank 1 ragged": ([{"x": np.arange(2)}, {"x": np.arange(1)}], List(Value("int64")), [[0, 1], [0]]),
    "rank 2": ([{"x": np.eye(2, dtype=np.float32)}], Array2D((2, 2), "float32"), [[[1, 0], [0, 1]]]),
    "rank 2 with null": ([{"x": np.eye(2)}, {"x": None}], Array2D((2, 2), "float64"), [[[1, 0], [0, 1]], None]),
    "rank 2 ragged": (
        [{"x": np.ones((1, 2))}, {"x": np.ones((2, 2))}],
        Array2D((None, 2), "float64"),
        [[[1, 1]], [[1, 1], [1, 1]]],
    ),
    "rank 2 ragged inside": (
        [{"x": np.ones((2, 1))}, {"x": np.ones((2, 2))}],
        List(List(Value("float64"))),
        [[[1], [1]], [[1, 1], [1, 1]]],
    ),
    "rank 3": ([{"x": np.ones((1, 1, 2), np.uint8)}], Array3D((1, 1, 2), "uint8"), [[[[1, 1]]]]),
    "rank 4": ([{"x": np.ones((1, 1, 1, 2), np.int8)}], Array4D((1, 1, 1, 2), "int8"), [[[[[1, 1]]]]]),
    "rank 5": ([{"x": np.ones((1, 1, 1, 1, 2))}], Array5D((1, 1, 1, 1, 2), "float64"), [[[[[[1, 1]]]]]]),
    "bool tensor": ([{"x": np.array([[True, False]])}], Array2D((1, 2), "bool"), [[[True, False]]]),
    "bool vector": ([{"x": np.array([True, False])}], List(Value("bool"), length=2), [[True, False]]),
    "bfloat16": (
        [{"x": torch.tensor([0.5, 1.5], dtype=torch.bfloat16)}],
        List(Value("float32"), length=2),
        [[0.5, 1.5]],
    ),
    "float8": ([{"x": torch.tensor([[0.5, 1.5]]).to(torch.float8_e5m2)}], Array2D((1, 2), "float32"), [[[0.5, 1.5]]]),
    "bfloat16 number": ([{"x": torch.tensor(0.5, dtype=torch.bfloat16)}], Value("float32"), [0.5]),
    "complex vector": ([{"x": np.array([1 + 2j], np.complex64)}], Array2D((1, 2), "float32"), [[[1, 2]]]),
    "complex number": ([{"x": 1 + 2j}], List(Value("float64"), length=2), [[1, 2]]),
    "list of arrays": ([{"x": [np.arange(2)]}, {"x": []}], List(List(Value("int64"), length=2)), [[[0, 1]], []]),
    "time": ([{"x": dt.datetime(2026, 1, 2)}], Value("timestamp[us]"), [dt.datetime(2026, 1, 2)]),
    "decimal": ([{"x": Decimal("1.25")}], Value("decimal128(38, 2)"), [Decimal("1.25")]),
}


@pytest.mark.parametrize("kind", LEAVING)
def test_rows_leave_with_the_features_their_types_ask_for(kind):
    """Tensors of rank 1 to 5, lists, structs and nulls; dtypes that datasets lacks widen exactly or become pairs."""
    rows, feature, values = LEAVING[kind]

    leaving = buffer_of(rows).to_hf_dataset()

    assert leaving.features == Features({"x": feature})
    assert leaving.to_dict() == {"x": values}
    leaving.data.table.validate(full=True)


def test_slices_of_tensors_leave_whole():
    """Rows that have left, and a beginning in the middle of the memory, do not shift the values."""
    buffer = DatasetBuffer(max_size=3)
    buffer.append(
        [
            {"v": np.full(2, i), "m": np.full((2, 1), i), "b": np.full((1, 2), i % 2 == 0), "r": np.arange(i)}
            for i in range(6)
        ]
    )
    buffer.append({"v": np.full(2, 6), "m": np.full((2, 1), 6), "b": np.full((1, 2), True), "r": np.arange(6)})

    leaving = buffer.to_hf_dataset().to_dict()

    assert leaving["v"] == [[i, i] for i in (4, 5, 6)]
    assert leaving["m"] == [[[i], [i]] for i in (4, 5, 6)]
    assert leaving["b"] == [[[i % 2 == 0] * 2] for i in (4, 5, 6)]
    assert leaving["r"] == [list(range(i)) for i in (4, 5, 6)]


@pytest.mark.parametrize("drop", ["oldest", "random"])
def test_a_dataset_made_of_a_buffer_does_not_change_with_it(drop):
    """It is what the buffer was."""
    buffer = DatasetBuffer(max_size=4, drop_strategy=drop)
    buffer.append([{"n": i, "x": np.full(2, i)} for i in range(4)])
    leaving = buffer.to_hf_dataset()

    buffer.append([{"n": i, "x": np.full(2, i)} for i in range(4, 8)])
    buffer.update(buffer.ids[:1], {"n": [99]})

    assert leaving.to_dict() == {"n": [0, 1, 2, 3], "x": [[i, i] for i in range(4)]}


def test_an_empty_buffer_leaves_as_an_empty_dataset():
    """With its columns, if it has any."""
    declared = DatasetBuffer(schema=[Field("x", "float32", shape=(2, 2)), Field("y", "string")])

    assert DatasetBuffer().to_hf_dataset().to_dict() == {}
    assert declared.to_hf_dataset().features == Features({"x": Array2D((2, 2), "float32"), "y": Value("string")})


def test_a_rank_that_hugging_face_lacks_is_refused():
    """Six dimensions fit a buffer but no feature."""
    with pytest.raises(SchemaError, match=r"column 'x'.*rank 6.*; "):
        buffer_of({"x": np.zeros((1,) * 6)}).to_hf_dataset()


def test_a_dataset_that_left_can_be_used_as_any_other():
    """map, filter, train_test_split and with_format work on it."""
    leaving = buffer_of([{"n": i, "x": np.full((2, 2), i, np.float32)} for i in range(6)]).to_hf_dataset()

    halved = leaving.filter(lambda row: row["n"] % 2 == 0).map(lambda row: {"n": row["n"] // 2})

    assert halved["n"][:] == [0, 1, 2]
    assert leaving.with_format("torch")[5]["x"].tolist() == [[5, 5], [5, 5]]
    assert len(leaving.train_test_split(test_size=2, seed=0)["train"]) == 4


def test_pictures_leave_as_pictures():
    """Bare images and images in rows have an Image feature; their bytes are PNG."""
    bare, inside = buffer_of(picture(3)), buffer_of([{"image": picture(3), "n": 1}])

    assert Image.open(io.BytesIO(bare[0]["image"])).format == "PNG"
    for buffer in (bare, inside):
        leaving = buffer.to_hf_dataset()
        assert leaving.features["image"] == datasets.Image()
        assert seen(leaving[0]["image"]) == seen(picture(3))


def test_table_metadata_of_hugging_face_is_understood():
    """A parquet or Arrow file written by datasets carries its features; they are kept as if the dataset had come."""
    given = dataset_of(["rye"], ClassLabel(names=["rye", "oat"]))

    back = buffer_of(given.data.table.replace_schema_metadata(given.features.arrow_schema.metadata)).to_hf_dataset()

    assert back.features == given.features


def kept_or_refused(table):
    """The column ``x`` as it leaves for Hugging Face, or the words of a SchemaError; any other error is a bug."""
    try:
        return buffer_of(table).to_hf_dataset().with_format("arrow")[:]["x"].to_pylist()
    except SchemaError as error:
        return str(error)


@pytest.mark.parametrize(
    "metadata",
    [
        b"no json",
        b"[]",
        b"{}",
        b'{"info": 5}',
        b'{"info": {"features": []}}',
        b'{"info": {"features": {"x": 5}}}',
        b'{"info": {"features": {"x": {"_type": "Unheard"}}}}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda metadata: repr(metadata[:40]),
)
def test_metadata_that_is_no_description_of_features_does_no_harm(metadata):
    """Anybody may write into metadata: it is refused by name, or the columns speak for themselves."""
    table = pa.table({"x": [1]}).replace_schema_metadata({b"huggingface": metadata})

    outcome = kept_or_refused(table)

    assert outcome == [1] or "feature" in outcome


@pytest.mark.parametrize(
    "lie",
    [
        Value("string"),
        Value("float16"),
        Array2D((2, 2), "int64"),
        List(Value("int64")),
        {"a": Value("int64")},
        datasets.Image(),
        ClassLabel(names=["rye"]),
    ],
    ids=repr,
)
def test_metadata_that_lies_about_a_column_changes_no_value(lie):
    """The column says int64; whatever the features claim, 2**53 + 1 stays that number or the table is refused."""
    metadata = Features({"x": lie}).arrow_schema.metadata

    outcome = kept_or_refused(pa.table({"x": [2**53 + 1]}).replace_schema_metadata(metadata))

    assert outcome == [2**53 + 1] or "'x'" in outcome


@pytest.mark.parametrize("key", [b"\xff", b"poolish.role", b"poolish.feature", b"note"])
def test_metadata_of_a_field_may_hold_any_bytes(key):
    """Other tools keep binary notes there."""
    field = pa.field("x", pa.int64(), metadata={key: b"\xfe\xff"})

    outcome = kept_or_refused(pa.Table.from_arrays([pa.array([1])], schema=pa.schema([field])))

    assert outcome == [1] or (key.startswith(b"poolish") and "'x'" in outcome)


# Large columns ------------------------------------------------------------------------------------------------


LARGE = {
    "text": lambda i: "x" * (i % 7 * 30),
    "bytes": lambda i: b"y" * (i % 5 * 40),
    "texts": lambda i: [f"{i}" * 9, "z" * (i % 3 * 50)],
    "flags": lambda i: [bool(i % 2)] * (i % 11 * 20),
    "nothing": lambda i: [None] * (i % 4 * 60),
    "struct": lambda i: {"name": "s" * (i % 6 * 30), "parts": [i] * (i % 3 * 20)},
    "picture": lambda i: picture(i),
    "array": lambda i: np.full((4, 3), i, np.uint8),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(("chunk_bytes", "max_offset"), [(500, 2**31 - 1), (1 << 30, 500), (900, 700)])
def test_a_column_beyond_32_bit_offsets_becomes_chunks(name, chunk_bytes, max_offset, monkeypatch):
    """Whichever rows are the long ones: the rows and features are those of a small dataset, no chunk is too long."""
    buffer = buffer_of([{"n": i, "x": LARGE[name](i)} for i in range(60)])
    buffer.append([{"n": -1, "x": LARGE[name](6)}] * 3)
    buffer.retain(0.8, by="latest")
    expected = buffer.to_hf_dataset()
    monkeypatch.setattr(bridges, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(bridges, "MAX_OFFSET", max_offset)

    dataset = buffer.to_hf_dataset()

    assert dataset.features == expected.features
    assert seen(dataset[:]) == seen(expected[:])
    assert len(dataset.data.column("x").chunks) > 1
    dataset.data.validate(full=True)


def test_a_row_that_no_chunk_holds_is_an_error(monkeypatch):
    """The number, the limit and the other way are named."""
    monkeypatch.setattr(bridges, "MAX_OFFSET", 100)

    with pytest.raises(SchemaError, match=r"one row has 150 bytes or elements .* up to 100; .*to_arrow"):
        buffer_of([{"x": "a"}, {"x": "b" * 150}]).to_hf_dataset()


@pytest.mark.soak
def test_more_than_two_gib_of_text_become_a_dataset():
    """The real thing, with the long rows at the end, where an average would put too many of them into one chunk."""
    buffer = DatasetBuffer()
    buffer.append({"n": i, "text": "short"} for i in range(1_000))
    long = "x" * (32 << 20)
    for i in range(70):
        buffer.append([{"n": i, "text": long}])

    dataset = buffer.to_hf_dataset()

    assert dataset.features["text"] == Value("string")
    assert (len(dataset), dataset[-1]["n"], len(dataset[-1]["text"])) == (1_070, 69, len(long))
