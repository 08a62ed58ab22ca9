"""PaddedCollate: ragged columns as one array with lengths and a mask, the same whatever holds the rows."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from poolish import DatasetBuffer, StreamStore, torch_bridge, verify_resume
from poolish.errors import ConfigError, SchemaError
from poolish.load import Loader, PaddedCollate, SubsettedDataset
from poolish.load.fetch import BatchReader
from poolish.load.frozen import SnapshotRows
from poolish.load.padding import Padded
from poolish.load.planner import ReadRequest
from poolish.ragged import Ragged
from tests.effort import times
from tests.load.loaders import load

pytestmark = pytest.mark.kernels

TOKENS = [[3, 1], [], None, [4, 1, 5]]


def rows_of(values, name="tokens"):
    return [{name: value, "n": i} for i, value in enumerate(values)]


def buffer_of(values, type_=None):
    made = DatasetBuffer()
    column = pa.array(values, type_ or pa.large_list(pa.int64()))
    made.append(pa.table({"tokens": column, "n": np.arange(len(values))}))
    return made


def plain(batch):
    """A batch as lists, with the dtypes of its columns."""
    return {
        name: (values.tolist(), str(values.dtype).removeprefix("torch.")) if hasattr(values, "tolist") else values
        for name, values in batch.items()
    }


#: Everything that rows of numbers may lie in; each makes a dataset of dicts with ``tokens`` and ``n``.
SOURCES = {
    "buffer": buffer_of,
    "snapshot": lambda values: buffer_of(values).snapshot(),
    "view": lambda values: SubsettedDataset(buffer_of(values), range(len(values))),
    "list": rows_of,
    "Hugging Face": lambda values: datasets.Dataset.from_dict({"tokens": values, "n": range(len(values))}),
    "Hugging Face, chosen": lambda values: datasets.Dataset.from_dict(
        {"tokens": [[7], *reversed(values)], "n": range(len(values), -1, -1)}
    ).select(range(len(values), 0, -1)),
    "large list of Hugging Face": lambda values: datasets.Dataset.from_dict(
        {"tokens": values, "n": range(len(values))},
        features=datasets.Features(
            {"tokens": datasets.LargeList(datasets.Value("int64")), "n": datasets.Value("int64")}
        ),
    ),
}


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("source", SOURCES)
def test_rows_are_padded_to_the_longest(source, output):
    """With their lengths and a mask; null and empty rows have neither values nor length."""
    batches = list(Loader(SOURCES[source](TOKENS), 2, collate_fn=PaddedCollate(pad_value=-1), output=output))

    assert [plain(batch) for batch in batches] == [
        {
            "tokens": ([[3, 1], [-1, -1]], "int64"),
            "tokens_length": ([2, 0], "int64"),
            "tokens_mask": ([[True, True], [False, False]], "bool"),
            "n": ([0, 1], "int64"),
        },
        {
            "tokens": ([[-1, -1, -1], [4, 1, 5]], "int64"),
            "tokens_length": ([0, 3], "int64"),
            "tokens_mask": ([[False] * 3, [True] * 3], "bool"),
            "n": ([2, 3], "int64"),
        },
    ]
    assert [batch.ids.tolist() for batch in batches] == [[0, 1], [2, 3]]
    for batch in batches:  # fresh memory
        batch["tokens"][:] = 9
        batch["n"][:] = 9


def expected(values, *, pad_value=0, side="right", multiple_of=None, max_length=None, too_long="error"):
    """The same by lists."""
    lists, cut = [[] if value is None else list(value) for value in values], []
    for i, value in enumerate(lists):
        n = len(value) if max_length is None else min(len(value), max_length)
        cut.append(len(value) - n)
        lists[i] = value[len(value) - n :] if too_long == "truncate_left" else value[:n]
    width = max(0 if multiple_of is None else 1, *(len(value) for value in lists))  # at least one multiple
    width = -(-width // (multiple_of or 1)) * (multiple_of or 1)
    padded, mask = [], []
    for value in lists:
        rest = [pad_value] * (width - len(value))
        own = [each is not None for each in value]
        value = [pad_value if each is None else each for each in value]
        padded.append(rest + value if side == "left" else value + rest)
        mask.append([False] * len(rest) + own if side == "left" else own + [False] * len(rest))
    made = {"tokens": padded, "tokens_length": [len(value) for value in lists], "tokens_mask": mask}
    return made if too_long == "error" else {**made, "tokens_cut": cut}


@settings(max_examples=times(150, push=40), deadline=None)
@given(
    st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=6), min_size=1, max_size=6),
    st.sampled_from(["right", "left"]),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([None, 2]),
    st.sampled_from(["truncate", "truncate_left"]),
    st.sampled_from(["buffer", "view", "list"]),
)
def test_padding_is_what_lists_would_be(values, side, multiple_of, max_length, too_long, source):
    """Sides, multiples, truncation and nulls, of whatever holds the rows."""
    options: dict[str, Any] = {"side": side, "multiple_of": multiple_of, "columns": ["tokens"], "pad_value": 7}
    if max_length is not None:
        options |= {"max_length": max_length, "too_long": too_long}
    pad = PaddedCollate(**options)

    (batch,) = load(SOURCES[source](values), len(values), collate_fn=pad)

    del options["columns"]
    wanted = expected(values, **options)
    assert {name: batch[name].tolist() for name in batch if name != "n"} == wanted
    n_cut = sum(n > 0 for n in wanted.get("tokens_cut", []))
    assert pad.truncated == ({"tokens": n_cut} if n_cut else {})


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "uint16", "float16", "float32", "float64", "complex64", "uint64"]
)
@pytest.mark.parametrize("n_dims", [1, 2, 3])
def test_tensors_of_any_dtype_keep_it(dtype, n_dims):
    """Arrays whose first dimension differs, of a buffer and as samples; what lies behind it is kept."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2, (n, 3, 2)[:n_dims]).astype(dtype) for n in (2, 0, 4)]
    rows = DatasetBuffer()
    rows.append([{"x": array} for array in arrays])
    wanted = np.zeros((3, 4, 3, 2)[: n_dims + 1], dtype)
    for i, array in enumerate(arrays):
        wanted[i, : len(array)] = array
    pad = PaddedCollate(columns=["x"])

    for dataset in (rows, SubsettedDataset(rows, range(3)), [{"x": array} for array in arrays]):
        for output in ("numpy", "torch"):
            (batch,) = Loader(dataset, 3, collate_fn=pad, output=output)
            assert str(batch["x"].dtype).endswith(dtype)
            np.testing.assert_array_equal(np.asarray(batch["x"]), wanted)
            assert batch["x_length"].tolist() == [2, 0, 4]
            assert batch["x_mask"].tolist() == [[i < n for i in range(4)] for n in (2, 0, 4)]


def test_dtypes_of_torch_keep_their_bits():
    """bfloat16 and float8 as tensors, float32 as arrays; the pad value is one that they have."""
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        tensors = [torch.tensor([0.5, -2.0]).to(dtype), torch.tensor([1.5]).to(dtype)]
        rows = DatasetBuffer()
        rows.append([{"x": tensor} for tensor in tensors])
        for dataset in (rows, [{"x": tensor} for tensor in tensors]):
            (batch,) = Loader(dataset, 2, collate_fn=PaddedCollate(pad_value=-1.0), output="torch")
            assert batch["x"].dtype == dtype
            assert batch["x"].float().tolist() == [[0.5, -2.0], [1.5, -1.0]]
        (batch,) = load(rows, 2, collate_fn=PaddedCollate(pad_value=-1.0))
        assert batch["x"].tolist() == [[0.5, -2.0], [1.5, -1.0]]
        with pytest.raises(ConfigError, match=r"cannot hold pad_value=0\.3"):
            list(load(rows, 2, collate_fn=PaddedCollate(pad_value=0.3)))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("too_long", ["truncate", "truncate_left"])
def test_several_dimensions_may_differ(side, too_long):
    """Pictures of any height and width, with a length for each dimension."""
    sizes = [(2, 3), (0, 5), (4, 1), (1, 0)]
    arrays = [np.arange(1, 1 + h * w * 2, dtype=np.int32).reshape(h, w, 2) for h, w in sizes]
    rows = DatasetBuffer()
    rows.append([{"x": array} for array in arrays])
    pad = PaddedCollate(columns=["x"], ragged_dims=2, side=side, max_length=3, too_long=too_long)
    wanted, mask = np.zeros((4, 3, 3, 2), np.int32), np.zeros((4, 3, 3), bool)
    for i, array in enumerate(arrays):
        kept = array[-3:, -3:] if too_long == "truncate_left" else array[:3, :3]
        where = tuple(slice(3 - n, 3) if side == "left" else slice(n) for n in kept.shape[:2])
        wanted[i][where] = kept
        mask[i][where] = True

    for dataset in (rows, [{"x": array} for array in arrays]):
        (batch,) = load(dataset, 4, collate_fn=pad)
        np.testing.assert_array_equal(batch["x"], wanted)
        np.testing.assert_array_equal(batch["x_mask"], mask)
        assert batch["x_length"].tolist() == [[min(h, 3), min(w, 3)] for h, w in sizes]
        assert batch["x_cut"].tolist() == [[max(h - 3, 0), max(w - 3, 0)] for h, w in sizes]


def test_nan_stays_and_pads():
    """A value that is not a number is a value; the mask tells it from padding."""
    pad = PaddedCollate(pad_value=np.nan)
    for source in ("buffer", "list"):
        rows = (
            buffer_of([[np.nan, 1.0], [2.0]], pa.large_list(pa.float32()))
            if source == "buffer"
            else rows_of([np.array([np.nan, 1], np.float32), np.array([2], np.float32)])
        )
        (batch,) = load(rows, 2, collate_fn=pad)
        np.testing.assert_array_equal(batch["tokens"], np.array([[np.nan, 1], [2, np.nan]], np.float32))
        assert batch["tokens"].dtype == np.float32
        assert batch["tokens_mask"].tolist() == [[True, True], [True, False]]


def test_text_and_lists_of_lists_stay_lists():
    """They have today's form, whatever holds them; naming one is an error that says so."""
    made = [{"text": ["a", "b"], "nested": [[1], [2, 3]], "word": "rye", "x": [1]} for _ in range(2)]
    rows = DatasetBuffer()
    rows.append(made)
    for dataset in (made, rows, datasets.Dataset.from_list(made)):
        (batch,) = Loader(dataset, 2, collate_fn=PaddedCollate(), output="torch")
        assert sorted(batch) == ["nested", "text", "word", "x", "x_length", "x_mask"]
        assert batch["text"] == [["a", "b"]] * 2
        assert batch["word"] == ["rye"] * 2
        for name in ("text", "nested", "word"):
            with pytest.raises(SchemaError, match=f"column '{name}': only numbers and flags can be padded"):
                list(Loader(dataset, 2, collate_fn=PaddedCollate(columns=[name])))


def test_columns_that_are_not_named_keep_their_form():
    """A ragged column without a helper is a list of tensors, as it is today."""
    rows = DatasetBuffer()
    rows.append([{"a": np.arange(n), "b": np.arange(n)} for n in (1, 2)])

    (batch,) = Loader(rows, 2, collate_fn=PaddedCollate(columns=["a"]), output="torch")

    assert batch["a"].tolist() == [[0, 0], [0, 1]]
    assert [tensor.tolist() for tensor in batch["b"]] == [[0], [0, 1]]


def test_each_column_has_a_pad_value():
    """Labels that a loss ignores beside tokens; columns that are not there are named."""
    samples = [{"tokens": [5], "labels": [5]}, {"tokens": [5, 6], "labels": [5, 6]}]
    pad = PaddedCollate(pad_value={"labels": -100})
    rows = DatasetBuffer()
    rows.append(samples)

    for dataset in (samples, rows):
        (batch,) = load(dataset, 2, collate_fn=pad)
        assert (batch["tokens"].tolist(), batch["labels"].tolist()) == ([[5, 0], [5, 6]], [[5, -100], [5, 6]])
        for options in ({"pad_value": {"label": 0}}, {"columns": ["label"]}):
            with pytest.raises(ConfigError, match="names 'label', the batch has"):
                list(load(dataset, 2, collate_fn=PaddedCollate(**options)))


class Pair(NamedTuple):
    tokens: Any
    label: Any


@dataclass
class Sample:
    tokens: Any
    label: Any


@pytest.mark.parametrize("form", [lambda *values: values, Pair, Sample])
def test_tuples_and_dataclasses_keep_their_form(form):
    """Where columns have no names, a padded one is values, length and mask."""
    batch = next(iter(load([form([3, 1], 0), form([4], 1)], 2, collate_fn=PaddedCollate())))
    (tokens, length, mask), label = (batch.tokens, batch.label) if form is Sample else batch

    assert tokens.tolist() == [[3, 1], [4, 0]]
    assert (length.tolist(), mask.tolist()) == ([2, 1], [[True, True], [True, False]])
    assert (label.tolist(), batch.ids.tolist()) == ([0, 1], [0, 1])
    named = PaddedCollate(columns=[0] if form not in (Pair, Sample) else ["tokens"], max_length=1, too_long="truncate")
    cut = next(iter(load([form([3, 1], 0), form([4], 1)], 2, collate_fn=named)))
    assert (cut.tokens if form is Sample else cut[0]).cut.tolist() == [1, 0]


def test_rows_that_are_no_dicts_become_a_value():
    """As without a helper."""
    batch = next(iter(load([[3, 1], [4]], 2, collate_fn=PaddedCollate())))

    assert {name: values.tolist() for name, values in batch.items()} == {
        "value": [[3, 1], [4, 0]],
        "value_length": [2, 1],
        "value_mask": [[True, True], [True, False]],
    }


def test_a_row_that_is_too_long_is_an_error_unless_it_is_truncated():
    """Silence would train on other data."""
    for dataset in (rows_of([[1], [1, 2, 3]]), buffer_of([[1], [1, 2, 3]])):
        with pytest.raises(SchemaError, match="row 1 of the batch, column 'tokens': 3 values, max_length=2"):
            list(load(dataset, 2, collate_fn=PaddedCollate(max_length=2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "middle"}, "side='middle': one of 'right', 'left'"),
        ({"too_long": "drop"}, "too_long='drop': one of"),
        ({"too_long": "truncate"}, "needs max_length="),
        ({"multiple_of": 0}, "multiple_of=0"),
        ({"max_length": 2.5}, "max_length=2.5"),
        ({"ragged_dims": 0}, "ragged_dims=0"),
        ({"columns": "tokens"}, r"such as columns=\['tokens'\]"),
        ({"pad_value": "x"}, "a number, or numbers by column"),
        ({"pad_value": {"tokens": None}}, "a number, or numbers by column"),
    ],
)
def test_wrong_options_are_refused(options, message):
    """When the helper is made."""
    with pytest.raises(ConfigError, match=message):
        PaddedCollate(**options)


@pytest.mark.parametrize(("type_", "value"), [(pa.uint8(), -1), (pa.int32(), 0.5), (pa.bool_(), 2), (pa.int8(), 300)])
def test_a_pad_value_that_a_column_cannot_hold_is_refused(type_, value):
    """No silent cast."""
    rows = pa.array([[1], [0, 1]]).cast(pa.large_list(type_))
    loader = load(buffer_of(rows, rows.type), 2, collate_fn=PaddedCollate(pad_value=value))

    with pytest.raises(ConfigError, match="cannot hold pad_value"):
        list(loader)


def test_a_column_of_that_name_is_not_overwritten():
    """The helper adds columns of its own."""
    for dataset in ([{"x": [1], "x_mask": 1}], DatasetBuffer()):
        if not isinstance(dataset, list):
            dataset.append([{"x": [1], "x_mask": 1}])
        with pytest.raises(ConfigError, match="adds a column 'x_mask', and the batch has one already"):
            list(load(dataset, 1, collate_fn=PaddedCollate()))


def test_samples_that_do_not_go_together_are_named():
    """Shapes that nothing says how to pad, dtypes and ranks that differ."""
    pictures = [{"x": np.zeros((n, 2))} for n in (1, 2)]
    with pytest.raises(SchemaError, match=r"PaddedCollate\(columns=\['x'\]\)"):
        list(load(pictures, 2, collate_fn=PaddedCollate()))
    uneven = [{"x": np.zeros((1, n))} for n in (1, 2)]
    with pytest.raises(SchemaError, match="ragged_dims=2 to pad more dimensions"):
        list(load(uneven, 2, collate_fn=PaddedCollate(columns=["x"])))
    mixed = [{"x": np.zeros(1, np.int32)}, {"x": np.zeros(2)}]
    with pytest.raises(SchemaError, match="row 1 of the batch, column 'x': float64 of 1 dimensions"):
        list(load(mixed, 2, collate_fn=PaddedCollate()))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_of_several_parts_is_padded_as_one(side, num_workers):
    """A step that lies across appends is read from several snapshots, each with rows of its own length."""
    rows = DatasetBuffer()
    lengths = np.random.default_rng(0).integers(0, 9, 2600).tolist()
    rows.append([{"x": np.full(n, i, np.int32), "n": i} for i, n in enumerate(lengths[:1500])])
    pad = PaddedCollate(pad_value=-1, side=side)
    loader = load(rows, 100, shuffle=True, follow=True, collate_fn=pad, num_workers=num_workers)
    seen = []

    for batch in loader:
        n_rows = len(rows)
        if n_rows < len(lengths):
            rows.append(
                [{"x": np.full(n, i, np.int32), "n": i} for i, n in enumerate(lengths[n_rows : n_rows + 60], n_rows)]
            )
        wanted = expected([[i] * lengths[i] for i in batch.ids.tolist()], pad_value=-1, side=side)
        assert batch["x"].tolist() == wanted["tokens"]
        assert batch["x_mask"].tolist() == wanted["tokens_mask"]
        seen += batch["n"].tolist()

    assert sorted(seen) == list(range(len(lengths)))


def test_batches_without_rows_have_the_columns():
    """Ranks that get no row of the last step, of a buffer and of samples."""
    for dataset in (buffer_of([[3, 1]]), rows_of([[3, 1]])):
        (batch,) = load(dataset, 2, collate_fn=PaddedCollate(), rank=1, world_size=2)
        assert {name: len(values) for name, values in batch.items()} == dict.fromkeys(
            ("tokens", "tokens_length", "tokens_mask", "n"), 0
        )
        assert batch["tokens"].ndim == 2


def test_rows_of_which_no_value_is_known_have_the_dtype_of_the_pad_value():
    """Lists that were all empty so far."""
    rows = DatasetBuffer()
    rows.append([{"x": []}, {"x": None}, {"x": []}])
    for pad_value, dtype in ((0, "int64"), (0.0, "float64"), (False, "bool")):
        for dataset in (rows, [{"x": []}, {"x": []}]):
            (batch,) = load(dataset, 3, collate_fn=PaddedCollate(pad_value=pad_value, multiple_of=2))
            assert batch["x"].shape == (len(dataset), 2)
            assert batch["x"].dtype == dtype
            assert not batch["x_mask"].any()


def test_windows_have_nothing_to_pad():
    """They are of one width, and read as columns."""
    store = StreamStore(fields=["token"])
    store.append_many(np.arange(20), {"token": np.arange(20)})

    batch = next(iter(load(store.as_dataset(4), 2, collate_fn=PaddedCollate())))

    assert sorted(batch) == ["types", "values"]
    assert "values_mask" in next(iter(load(store.as_dataset(4), 2, collate_fn=PaddedCollate(columns=["values"]))))


def test_a_formatted_or_decoded_dataset_is_read_as_it_shows_itself():
    """Hugging Face datasets that return arrays, tensors, or what a function makes."""
    plain_rows = datasets.Dataset.from_dict({"tokens": [[3, 1], [4]]})
    for dataset in (
        plain_rows.with_format("numpy"),
        plain_rows.with_format("torch"),
        plain_rows.with_transform(lambda batch: {"tokens": [[*row, 9][:-1] for row in batch["tokens"]]}),
        plain_rows.with_format(None, columns=["tokens"]),
    ):
        (batch,) = load(dataset, 2, collate_fn=PaddedCollate())
        assert batch["tokens"].tolist() == [[3, 1], [4, 0]]


def test_columns_are_padded_straight_into_pinned_memory(monkeypatch):
    """Where they go to a device: each part of a padded column is asked for as pinned memory, once."""
    asked = []

    def memory(n_bytes, dtype, *, pin):
        asked.append((n_bytes, dtype, pin))
        return torch_bridge_empty_bytes(n_bytes, dtype, pin=False)

    torch_bridge_empty_bytes = torch_bridge.empty_bytes
    monkeypatch.setattr(torch_bridge, "empty_bytes", memory)
    rows = SnapshotRows(buffer_of([[3, 1], [], [4, 1, 5]], pa.large_list(pa.int32())).snapshot(), "fixed")
    reading = BatchReader("torch", PaddedCollate(max_length=2, too_long="truncate"), None, pins=True)

    read = reading.read(ReadRequest(rows, np.array([2, 0, 1]), np.array([], np.int64)))

    assert read.content["tokens"].tolist() == [[4, 1], [3, 1], [0, 0]]
    assert sorted(asked) == [
        (6, "bool", True),
        (24, "int32", True),
        (24, "int64", True),
        (24, "int64", True),
        (24, "int64", True),
    ]


def test_it_is_a_collate_fn_of_torch_too():
    """In worker processes, and pickled with its settings."""
    pad = pickle.loads(pickle.dumps(PaddedCollate(pad_value=-1, side="left")))

    (batch,) = DataLoader(rows_of([[3, 1], [4]]), 2, collate_fn=pad, num_workers=1)

    assert isinstance(batch["tokens"], torch.Tensor)
    assert batch["tokens"].tolist() == [[3, 1], [-1, 4]]


def test_the_columns_of_a_batch_are_padded():
    """As a transform, or of a batch from elsewhere: lists of arrays and values with offsets."""
    rows = DatasetBuffer()
    rows.append([{"x": np.arange(n), "text": "rye"} for n in (1, 3, 2)])
    batch = next(iter(Loader(rows, 3, transform=PaddedCollate(pad_value=-1), output="torch")))
    assert batch["x"].tolist() == [[0, -1, -1], [0, 1, 2], [0, 1, -1]]
    assert (batch["text"], batch.ids.tolist()) == (["rye"] * 3, [0, 1, 2])
    values, offsets = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 3, 3, 4])
    for kind in (np.asarray, torch.as_tensor):
        column = Ragged(kind(values), kind(offsets))
        made = PaddedCollate()({"x": column, "n": kind(np.arange(3))})
        assert type(made["x"]) is type(made["n"])
        assert made["x"].tolist() == [values[:3].tolist(), [[0, 0]] * 3, [*values[3:].tolist(), [0, 0], [0, 0]]]
        assert made["x_length"].tolist() == [3, 0, 1]


def test_padded_batches_resume():
    """With and without threads, on any number of ranks."""
    rows = buffer_of([[i] * (i % 5) for i in range(23)])

    report = verify_resume(Loader(rows, 4, shuffle=True, collate_fn=PaddedCollate(), ids=True))

    assert report.ok, report


def test_the_settings_are_fixed():
    """As those of a loader."""
    pad = PaddedCollate()

    with pytest.raises(AttributeError, match="make a new PaddedCollate"):
        pad.side = "left"
    with pytest.raises(ConfigError, match='output="arrow" keeps lists as they are'):
        Loader(buffer_of(TOKENS), collate_fn=pad, output="arrow")


def test_padded_columns_of_tuples_move_to_a_device():
    """Nested as they are."""
    (padded, label) = next(iter(Loader([([1], 0)], device="meta", collate_fn=PaddedCollate(), output="torch")))

    assert isinstance(padded, Padded)
    assert {part.device.type for part in (*padded, label)} == {"meta"}
