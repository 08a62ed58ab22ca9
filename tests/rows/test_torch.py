"""Rows as tensors: without a copy where the memory allows it, in the dtype that went in; and under a DataLoader."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from poolish import DatasetBuffer, Field, Loader
from poolish.errors import SchemaError
from tests.rows.facts import facts, plain


def inside(tensor, column):
    """Whether a tensor lies in the memory of an Arrow column."""
    address = tensor.data_ptr()
    return any(b is not None and b.address <= address < b.address + b.size for b in column.chunk(0).buffers())


def filled(n_rows=6):
    buffer = DatasetBuffer(max_size=n_rows)
    rows = [
        {
            "n": i,
            "small": np.int8(i),
            "real": np.float32(i / 2),
            "flag": i % 2 == 0,
            "vector": np.array([i, -i], np.float32),
            "matrix": np.full((2, 3), i, np.int16),
            "lent": torch.full((2,), i, dtype=torch.bfloat16),
            "tiny": torch.full((3,), i).to(torch.float8_e5m2),
            "wave": np.array([i + 1j], np.complex64),
            "marks": np.array([True, i == 0]),
        }
        for i in range(n_rows + 2)
    ]
    buffer.append(rows)
    return buffer


SHARED = ["n", "small", "real", "vector", "matrix", "lent", "tiny", "wave", "marks"]


# -- to_torch


@pytest.mark.parametrize("name", SHARED)
def test_tensors_lie_in_the_memory_of_the_buffer(name):
    """Numbers and tensors of one shape are not copied, not even where rows at the front have left."""
    buffer = filled()

    tensor = buffer.to_torch([name])[name]

    assert inside(tensor, buffer.to_arrow()[name])
    assert tensor.is_contiguous()


@pytest.mark.parametrize("name", [*SHARED, "flag"])
def test_copies_belong_to_the_caller(name):
    """With ``copy=True`` writing changes no row."""
    buffer = filled()
    before = facts(buffer)

    tensor = buffer.to_torch([name], copy=True)[name]
    tensor.zero_()

    assert not inside(tensor, buffer.to_arrow()[name])
    assert facts(buffer) == before


def test_values_and_dtypes_are_those_that_went_in():
    """Scalars are one-dimensional, tensors gain the dimension of rows."""
    tensors = filled().to_torch()

    assert {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()} == {
        "n": ("int64", (6,)),
        "small": ("int8", (6,)),
        "real": ("float32", (6,)),
        "flag": ("bool", (6,)),
        "vector": ("float32", (6, 2)),
        "matrix": ("int16", (6, 2, 3)),
        "lent": ("bfloat16", (6, 2)),
        "tiny": ("float8_e5m2", (6, 3)),
        "wave": ("complex64", (6, 1)),
        "marks": ("bool", (6, 2)),
    }
    assert tensors["n"].tolist() == [2, 3, 4, 5, 6, 7]
    assert tensors["flag"].tolist() == [True, False] * 3
    assert tensors["lent"].float().tolist() == [[i, i] for i in range(2, 8)]
    assert tensors["wave"].tolist() == [[i + 1j] for i in range(2, 8)]


def test_tensors_do_not_change_with_the_buffer():
    """What was handed out is what the buffer was, whatever comes, goes or is updated."""
    buffer = filled()
    tensors = buffer.to_torch()
    before = {name: tensor.clone() for name, tensor in tensors.items()}

    for _ in range(5):
        buffer.append(buffer[:1])
        buffer.update(
            buffer.ids,
            {"n": [-1] * 6, "vector": np.zeros((6, 2), np.float32), "lent": torch.zeros(6, 2, dtype=torch.bfloat16)},
        )
    buffer.clear()

    assert all(torch.equal(tensors[name].to(torch.complex64), before[name].to(torch.complex64)) for name in tensors)


def test_text_stays_a_list_and_structs_become_dicts():
    """As Hugging Face's torch format does."""
    buffer = DatasetBuffer()
    buffer.append(
        [
            {"s": "a", "b": b"x", "d": {"n": 1, "t": "u"}, "w": ["v"]},
            {"s": None, "b": b"y", "d": {"n": 2, "t": "w"}, "w": []},
        ]
    )

    tensors = buffer.to_torch()

    assert (tensors["s"], tensors["b"], tensors["w"]) == (["a", None], [b"x", b"y"], [["v"], []])
    assert tensors["d"]["t"] == ["u", "w"]
    assert tensors["d"]["n"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 2], [3, 4]], torch.tensor([[1, 2], [3, 4]])),
        ([[1, 2], [3]], [torch.tensor([1, 2]), torch.tensor([3])]),
        ([[], [3.5]], [torch.tensor([], dtype=torch.float64), torch.tensor([3.5], dtype=torch.float64)]),
        ([[[1], [2]], [[3], [4]]], torch.tensor([[[1], [2]], [[3], [4]]])),
        ([[[1], [2, 3]], []], [[torch.tensor([1]), torch.tensor([2, 3])], []]),
        ([[True], [False]], torch.tensor([[True], [False]])),
        ([np.arange(2), np.arange(3)], [torch.arange(2), torch.arange(3)]),
        (
            [np.ones((1, 2)), np.ones((0, 2))],
            [torch.ones(1, 2, dtype=torch.float64), torch.ones(0, 2, dtype=torch.float64)],
        ),
        (
            [torch.ones(1, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)],
            [torch.ones(1, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)],
        ),
        (
            [np.array([1j]), np.array([1j, 2])],
            [torch.tensor([1j], dtype=torch.complex128), torch.tensor([1j, 2], dtype=torch.complex128)],
        ),
        ([np.array([True]), np.array([], bool)], [torch.tensor([True]), torch.tensor([], dtype=torch.bool)]),
        (
            [[np.ones(2), np.zeros(2)], [np.ones(2), np.zeros(2)]],
            torch.tensor([[[1.0, 1], [0, 0]]] * 2, dtype=torch.float64),
        ),
        ([torch.tensor(1.5, dtype=torch.bfloat16)] * 2, torch.tensor([1.5, 1.5], dtype=torch.bfloat16)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_lists_become_one_tensor_where_all_rows_agree_and_a_list_of_tensors_otherwise(values, expected):
    """Nested lists and ragged arrays; nothing is padded."""
    buffer = DatasetBuffer()
    buffer.append([{"x": value} for value in values])

    assert alike(buffer.to_torch()["x"], expected)


def alike(got, expected):
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(alike, got, expected))
    return isinstance(got, torch.Tensor) and got.dtype == expected.dtype and torch.equal(got, expected)


@pytest.mark.parametrize("value", [1, 0.5, True, np.zeros(2), [1, 2], {"a": 1}], ids=repr)
def test_a_column_with_nulls_is_refused(value):
    """A tensor has no null; the message counts them and says what to do."""
    buffer = DatasetBuffer()
    buffer.append([{"x": value, "y": 1}, {"x": None, "y": 2}, {"x": None, "y": 3}])

    with pytest.raises(SchemaError, match=r"column 'x'.*2 of 3 rows are null.*columns="):
        buffer.to_torch()

    assert buffer.to_torch(["y"])["y"].tolist() == [1, 2, 3]


def test_a_null_inside_a_list_is_refused():
    """As loudly as one instead of a list."""
    buffer = DatasetBuffer()
    buffer.append([{"x": [1, None]}, {"x": [2, 3]}])

    with pytest.raises(SchemaError, match=r"column 'x'.*null"):
        buffer.to_torch()


def test_nothing_but_nulls_stays_a_list():
    """A column that has not found its type has no dtype."""
    buffer = DatasetBuffer()
    buffer.append([{"x": None}, {"x": None}])

    assert buffer.to_torch() == {"x": [None, None]}


def test_only_the_columns_asked_for_are_converted():
    """In the order asked for."""
    assert list(filled().to_torch(["vector", "n"])) == ["vector", "n"]
    assert filled().to_torch([]) == {}


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "meta"])
@pytest.mark.parametrize("copy", [False, True])
def test_tensors_go_where_they_are_sent(device, copy):
    """``device="cpu"`` shares as no device does; another device holds a copy; lists of tensors go too."""
    buffer = filled()
    ragged = DatasetBuffer()
    ragged.append([{"x": np.arange(1), "t": "a"}, {"x": np.arange(2), "t": "b"}])

    tensors = buffer.to_torch(device=device, copy=copy)

    assert {tensor.device.type for tensor in tensors.values()} == {torch.device(device).type}
    assert inside(tensors["n"], buffer.to_arrow()["n"]) == (torch.device(device).type == "cpu" and not copy)
    assert [t.device.type for t in ragged.to_torch(device=device)["x"]] == [torch.device(device).type] * 2
    assert ragged.to_torch(device=device)["t"] == ["a", "b"]


def test_a_buffer_without_rows_becomes_tensors_without_rows():
    """Their dtype and shape are known from the schema."""
    fields = [
        Field("n", "int32"),
        Field("x", "float32", shape=(2, 3)),
        Field("lent", "bfloat16", shape=(4,)),
        Field("s", "string"),
    ]
    buffer = DatasetBuffer(schema=[*fields, Field("flag", "bool"), Field("ragged", "float32", shape=(None,))])

    tensors = buffer.to_torch()

    assert [(t.dtype, tuple(t.shape)) for t in (tensors["n"], tensors["x"], tensors["lent"], tensors["flag"])] == [
        *((torch.int32, (0,)), (torch.float32, (0, 2, 3)), (torch.bfloat16, (0, 4)), (torch.bool, (0,)))
    ]
    assert (tensors["s"], tensors["ragged"]) == ([], [])
    assert DatasetBuffer().to_torch() == {}


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_tensors_without_values_keep_their_shape(shape):
    """An empty array per row is still a row."""
    buffer = DatasetBuffer()
    buffer.append([{"x": np.empty(shape, np.float32)}] * 4)

    assert buffer.to_torch()["x"].shape == (4, *shape)
    assert buffer[2]["x"].shape == shape


def test_a_loaded_buffer_becomes_tensors_without_a_warning(tmp_path):
    """Its memory is a mapped file, which torch may be handed or given a copy of, never a warning."""
    filled().save(tmp_path / "rows")

    tensors = DatasetBuffer.load(tmp_path / "rows").to_torch()

    assert tensors["n"].tolist() == [2, 3, 4, 5, 6, 7]
    assert tensors["lent"].dtype == torch.bfloat16


# -- DataLoader

N_ROWS = 40


def loaded_buffer():
    buffer = DatasetBuffer(max_size=N_ROWS)
    buffer.append([{"n": i, "x": np.full(3, i, np.float32), "text": f"row {i}"} for i in range(N_ROWS)])
    return buffer


class Churn:
    """Changes a buffer at every batch that the main process is handed."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __call__(self):
        self.buffer.append(
            [{"n": -1, "x": np.full(3, -1, np.float32), "text": "new"}] * 7, retain_prior=0.8, retain_prior_by="random"
        )
        self.buffer.update(self.buffer.ids, {"n": [-2] * len(self.buffer)})


def test_a_buffer_itself_can_be_loaded_from():
    """It is a map-style dataset too; whoever does not change it meanwhile needs no snapshot."""
    buffer = loaded_buffer()

    for workers in ({}, {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}):
        batches = list(DataLoader(buffer, batch_size=16, **workers))
        assert torch.cat([batch["n"] for batch in batches]).tolist() == list(range(N_ROWS))


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_a_loader_over_a_snapshot_gives_its_rows_while_the_buffer_changes(start):
    """In this process, in forked and in spawned workers: every row once, as it was, whatever happens meanwhile."""
    buffer = loaded_buffer()
    workers = {} if start is None else {"num_workers": 2, "multiprocessing_context": start, "timeout": 60}
    loader = DataLoader(
        buffer.snapshot(), batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(0), **workers
    )
    churn, seen = Churn(buffer), []

    for batch in loader:
        churn()
        assert torch.equal(batch["x"], batch["n"].float()[:, None].expand(-1, 3))
        assert batch["text"] == [f"row {n}" for n in batch["n"].tolist()]
        seen += batch["n"].tolist()

    assert sorted(seen) == list(range(N_ROWS))
    assert seen != sorted(seen)


def test_a_loader_asks_for_whole_batches():
    """``__getitems__`` is what makes it fast; single rows would not be."""
    snapshot = loaded_buffer().snapshot()
    asked = []

    class Counted(type(snapshot)):
        def __getitems__(self, indices):
            asked.append(len(indices))
            return super().__getitems__(indices)

    snapshot.__class__ = Counted
    batches = list(DataLoader(snapshot, batch_size=16))

    assert asked == [16, 16, 8]
    assert [len(batch["n"]) for batch in batches] == [16, 16, 8]


def test_samples_of_a_loader_are_copies():
    """Writing to a batch, in place and in any worker, changes no row."""
    buffer = loaded_buffer()
    snapshot = buffer.snapshot()
    before = facts(buffer)

    for batch in DataLoader(snapshot, batch_size=8):
        batch["x"].zero_()
    for sample in DataLoader(snapshot, batch_size=None):
        sample["x"].zero_()
    snapshot[0]["x"].fill(9)

    assert facts(buffer) == before
    assert snapshot[0]["x"].tolist() == [0, 0, 0]


def _describe(snapshot, connection):
    connection.send(
        (plain(snapshot.to_pydict()), snapshot.ids.tolist(), snapshot.generations, snapshot.next_id, snapshot.uuid)
    )


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_snapshot_arrives_whole_in_another_process(start):
    """Rows, ids, generations, next id and uuid: a worker can tell which rows it holds."""
    buffer = loaded_buffer()
    buffer.append([{"n": 99, "x": np.zeros(3, np.float32), "text": "late"}], retain_prior=0.3, retain_prior_by="random")
    snapshot = buffer.snapshot()
    context = multiprocessing.get_context(start)
    receiver, sender = context.Pipe(duplex=False)

    process = context.Process(target=_describe, args=(snapshot, sender))
    process.start()
    arrived = receiver.recv() if receiver.poll(60) else None
    process.join(60)

    assert arrived == (
        plain(snapshot.to_pydict()),
        snapshot.ids.tolist(),
        snapshot.generations,
        snapshot.next_id,
        snapshot.uuid,
    )


def test_a_pickled_snapshot_holds_its_rows_and_no_others():
    """A few rows of a large buffer travel as a few rows."""
    buffer = DatasetBuffer()
    buffer.append_columns({"x": np.zeros((10_000, 64), np.float32)})
    buffer.retain(0.001)

    travelling = pickle.dumps(buffer.snapshot())
    arrived = pickle.loads(travelling)

    assert len(travelling) < 20_000
    assert arrived.ids.tolist() == list(range(9_990, 10_000))
    assert arrived.to_torch()["x"].shape == (10, 64)


# -- samples without dimensions

NUMBERS = {
    **{str(d): (lambda i, d=d: torch.tensor(i % 2, dtype=d)) for d in (torch.float32, torch.int16, torch.bool)},
    "torch.bfloat16": lambda i: torch.tensor(i + 0.5, dtype=torch.bfloat16),
    "numpy": lambda i: np.array(i + 0.5, np.float32),
}


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_a_sample_without_dimensions_stays_a_tensor(make, tmp_path):
    """A column of shape (): arrays of no dimension in rows, tensors of one in batches, in the dtype that went in."""
    samples = [make(i) for i in range(5)]
    expected = torch.stack([torch.as_tensor(sample) for sample in samples])
    buffer = DatasetBuffer()

    buffer.append(samples[0])
    buffer.append(samples[1:])

    assert buffer.schema["tensor"].shape == ()
    for read in (buffer, pickle.loads(pickle.dumps(buffer.snapshot()))):
        row = read[3]["tensor"]
        assert (type(row), row.shape, row.item()) == (np.ndarray, (), expected[3].item())
    tensor = buffer.to_torch()["tensor"]
    assert (tensor.dtype, tensor.tolist()) == (expected.dtype, expected.tolist())
    batches = [batch["tensor"] for batch in Loader(buffer, 2)]
    assert [batch.dtype for batch in batches] == [expected.dtype] * 3
    assert torch.cat(batches).tolist() == expected.tolist()
    assert [batch["tensor"].shape for batch in DataLoader(buffer.snapshot(), 5)] == [(5,)]
    assert buffer.to_hf_dataset()["tensor"][:] == expected.tolist()

    buffer.save(tmp_path / "numbers")
    loaded = DatasetBuffer.load(tmp_path / "numbers")
    loaded.append(samples[0])
    assert torch.equal(loaded.to_torch()["tensor"], torch.cat([expected, expected[:1]]))


def test_samples_without_dimensions_keep_to_their_shape():
    """A vector does not fit beside numbers; inside a dict an array without dimensions is the number that it holds."""
    buffer = DatasetBuffer()
    buffer.append(torch.tensor(1.5))

    with pytest.raises(SchemaError, match=r"row 0, column 'tensor'.*float32\[\]"):
        buffer.append(torch.tensor([1.5]))

    rows = DatasetBuffer()
    rows.append({"label": torch.tensor(3), "score": np.array(0.5, np.float32)})
    assert rows[0] == {"label": 3, "score": 0.5}
    assert [field.dtype for field in rows.schema] == ["int64", "float32"]
