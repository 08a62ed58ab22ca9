"""One batch as one file: what goes in comes out to the bit, any tool can read it, and no file is believed too early."""

from __future__ import annotations

import json
import mmap
import resource
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from poolish.errors import CorruptDataError, LimitExceeded, SchemaError
from poolish.files import write_all
from poolish.schema import Schema
from poolish.transports import batch_file
from poolish.transports.batch_file import NAMES, BatchMetadata, BatchValidator, decode, encode, read_file, read_metadata
from tests.serve.damage import LABEL, X, consumer, file_of, filled, forged, header, within

NUMPY = [name for name in NAMES if name != "bfloat16" and not name.startswith("float8")]
TORCH_ONLY = [name for name in NAMES if name not in NUMPY]
RANDOM = np.random.default_rng(0)


def values(dtype: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    """Any bits at all, but of a bool only the two that it has."""
    if dtype == "bool":
        return RANDOM.integers(2, size=shape).astype(bool)
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(RANDOM.bytes(n_bytes), dtype).reshape(shape)


def columns(**arrays: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
    return {name: (array.dtype.name, array) for name, array in arrays.items()}


def joined(columns: dict[str, tuple[str, np.ndarray]], label: BatchMetadata | None = None) -> bytes:
    label = label or labelled(columns)
    return b"".join(bytes(buffer) for buffer in encode(columns, label))


def labelled(columns: dict[str, tuple[str, np.ndarray]]) -> BatchMetadata:
    return replace(LABEL, rows=len(next(iter(columns.values()))[1]))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# -- what goes in comes out


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", [(1,), (2, 3), (2, 0), (1, 2, 1, 3)])
def test_every_dtype_of_numpy(dtype: str, shape: tuple[int, ...]):
    """Every bit of every value, NaN payloads and all, and the label."""
    array = values(dtype, shape)

    label, found = decode(joined({"x": (dtype, array)}), "batch")

    assert label == replace(LABEL, rows=shape[0])
    assert found["x"][0] == dtype
    assert same_bits(found["x"][1], array)


@pytest.mark.parametrize("dtype", TORCH_ONLY)
def test_every_dtype_that_only_torch_has(dtype: str):
    """bfloat16 and float8 come as tensors and lie as their bits."""
    bits = torch.arange(256, dtype=torch.uint8).reshape(2, -1)
    tensor = bits.view(getattr(torch, dtype))
    schema = Schema.of([{"name": "x", "dtype": dtype, "shape": list(tensor.shape[1:])}])
    stored, rows = BatchValidator(schema).columns_of({"x": tensor}, "batch")

    found, array = decode(joined(stored), "batch")[1]["x"]

    assert (found, rows) == (dtype, 2)
    assert array.tobytes() == bits.numpy().tobytes()


@pytest.mark.parametrize("dtype", list(NAMES))
def test_torch_tensors_of_every_dtype_reach_a_consumer(tmp_path: Path, dtype: str):
    """Through a provider, a file and a consumer, as the very same tensor."""
    from poolish import DataProviderBase, DatasetConsumer

    tensor = (torch.arange(12).reshape(2, 6) % 2).to(getattr(torch, dtype))

    class Provider(DataProviderBase):
        def build_meta(self):
            return {"batch_schema": [{"name": "x", "dtype": dtype, "shape": [6]}]}

        def sample_batch(self, split, rng):
            return {"x": tensor}

    config = {"dataset": "d", "batch_size": 2, "block_size": 6, "splits": ("train",), "min_free_bytes": 0}
    with Provider(config, path=tmp_path) as provider:
        provider.publish("train")
    with DatasetConsumer(tmp_path, timeout_s=5, rank=0, world_size=1) as reading:
        found = reading.get_batch()["x"]

    assert found.dtype == tensor.dtype
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def any_columns(rows: int) -> st.SearchStrategy[dict[str, np.ndarray]]:
    """Any names, dtypes and shapes, with equally many rows."""
    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4).map(lambda shape: (rows, *shape))
    return st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
            lambda name: name != "__metadata__"
        ),
        npst.arrays(st.sampled_from([np.dtype(name) for name in NUMPY]), shapes),
        min_size=1,
        max_size=6,
    )


@given(
    st.integers(1, 4).flatmap(any_columns),
    st.integers(0, 10**18 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
def test_any_arrays_come_back(arrays: dict[str, np.ndarray], counter: int, text: str):
    """Whatever the names, dtypes and shapes: the same arrays, each where its type wants it to lie."""
    label = BatchMetadata(text, text[::-1], len(next(iter(arrays.values()))), "w0", counter)
    data = joined(columns(**{name: array for name, array in arrays.items()}), label)  # noqa: C416

    told, found = decode(data, "batch")

    assert told == label
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert same_bits(found[name][1], array)
        offset = found[name][1].ctypes.data - np.frombuffer(data, np.uint8).ctypes.data
        assert not array.size or offset % array.dtype.itemsize == 0
    official = safetensors.deserialize(data)
    assert {name for name, _ in official} == arrays.keys()


@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed", "transposed", "broadcast"])
def test_arrays_in_any_order_of_memory(order: str):
    """What is written is the values in order, however they lay."""
    whole = np.arange(48).reshape(4, 12)
    array = {
        "C": whole,
        "F": np.asfortranarray(whole),
        "strided": whole[::2, 1::3],
        "reversed": whole[::-1, ::-1],
        "transposed": whole.T,
        "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    }[order]

    found = decode(joined(columns(x=array)), "batch")[1]["x"][1]

    assert np.array_equal(found, array)


@pytest.mark.parametrize("dtype", [">i2", ">i8", ">f4", ">f8", ">c8", ">u4"])
def test_big_endian_arrays_of_a_provider(dtype: str):
    """They are turned before they are written, never written as they lie."""
    array = np.arange(6).reshape(2, 3).astype(dtype)
    schema = Schema.of([{"name": "x", "dtype": array.dtype.name, "shape": [3]}])

    found = decode(joined(BatchValidator(schema).columns_of({"x": array}, "batch")[0]), "batch")[1]["x"]

    assert found[0] == array.dtype.name
    assert np.array_equal(found[1], array)


@pytest.mark.parametrize("is_mapped", [True, False], ids=["mapped", "copied"])
def test_each_tensor_lies_where_its_type_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mapped: bool):
    """The widest first, the whole behind a header of a multiple of 64: also in a file that is mapped."""
    arrays = {
        f"{dtype}{n}": (dtype, values(dtype, (1, n))) for n in (1, 3, 7) for dtype in NUMPY
    }  # odd lengths, so that a wrong order would show
    monkeypatch.setattr(batch_file, "COPIED_BYTES", 0 if is_mapped else 2**30)
    path = tmp_path / "batch.safetensors"
    path.write_bytes(joined(arrays))

    found = decode(read_file(path), path)[1]

    for name, (_, array) in arrays.items():
        assert same_bits(found[name][1], array)
        assert found[name][1].flags.aligned
        assert found[name][1].flags.c_contiguous


def test_no_rows_are_refused_before_they_are_written():
    """A batch has at least one row; empty inner dimensions are fine."""
    schema = Schema.of([{"name": "x", "dtype": "int64", "shape": [3]}])
    with pytest.raises(SchemaError, match=r"field 'x': 0 rows.*at least one"):
        BatchValidator(schema).columns_of({"x": np.zeros((0, 3), np.int64)}, "batch 7")

    empty = Schema.of([{"name": "x", "dtype": "int64", "shape": [0, 3]}])
    assert BatchValidator(empty).columns_of({"x": np.zeros((2, 0, 3), np.int64)}, "batch 7")[1] == 2


def test_contiguous_arrays_are_not_copied():
    """The buffers are the arrays' own memory."""
    array = np.arange(1000)
    _, content = encode(columns(x=array), LABEL)
    assert np.shares_memory(np.frombuffer(content, np.int64), array)


@pytest.mark.parametrize("is_mapped", [True, False], ids=["mapped", "copied"])
def test_what_is_read_may_be_changed_without_changing_the_file(tmp_path: Path, monkeypatch, is_mapped: bool):
    """Copy on write: an in-place operation does not crash, and the next reader sees what was written."""
    monkeypatch.setattr(batch_file, "COPIED_BYTES", 0 if is_mapped else 2**30)
    path = tmp_path / "batch.safetensors"
    path.write_bytes(joined(columns(x=np.arange(4))))
    before = path.read_bytes()

    found = decode(read_file(path), path)[1]["x"][1]
    found += 1

    assert found.tolist() == [1, 2, 3, 4]
    assert path.read_bytes() == before


# -- any tool can read it


def test_the_official_library_reads_it(tmp_path: Path):
    """Values and metadata, of every dtype that the library has."""
    arrays = {dtype: values(dtype) for dtype in NUMPY if dtype != "complex64"}
    path = tmp_path / "batch.safetensors"
    with open(path, "wb") as file:
        write_all(file.fileno(), encode(columns(**arrays), LABEL))

    found = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata()

    assert found.keys() == arrays.keys()
    assert all(same_bits(found[name], array) for name, array in arrays.items())
    assert metadata["poolish"] == "1"
    assert metadata["rows"] == "2"
    assert metadata["provider"] == "w0"
    assert metadata["counter"] == "7"
    assert metadata["schema"] == LABEL.schema


@pytest.mark.parametrize("dtype", list(NAMES))
def test_the_official_library_reads_it_as_torch(tmp_path: Path, dtype: str):
    """With the dtype that it was written with."""
    import safetensors.torch

    tensor = (torch.arange(12).reshape(2, 6) % 2).to(getattr(torch, dtype))
    schema = Schema.of([{"name": "x", "dtype": dtype, "shape": [6]}])
    path = tmp_path / "batch.safetensors"
    path.write_bytes(joined(BatchValidator(schema).columns_of({"x": tensor}, "batch")[0]))

    found = safetensors.torch.load_file(path)["x"]

    assert found.dtype == tensor.dtype
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_files_in_a_queue_are_such_files(tmp_path: Path):
    """Not only what ``encode`` gives: what a provider publishes, and a tombstone too."""
    split = filled(tmp_path, 2)
    file_of(split, 0).write_bytes(b"damaged")
    with consumer(tmp_path) as reading, pytest.raises(CorruptDataError):
        reading.get_batch()

    assert safetensors.numpy.load_file(file_of(split, 1))["a"][0, 0] == 1000
    assert safetensors.numpy.load_file(file_of(split, 0)) == {}


# -- what is not believed


LIES = {
    "no tensors, but bytes": header(),
    "a tensor too short": header('"x":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}'),
    "a tensor too long": header('"x":{"dtype":"I64","shape":[3],"data_offsets":[0,24]}'),
    "an unknown dtype": header('"x":{"dtype":"I128","shape":[1],"data_offsets":[0,16]}'),
    "objects": header('"x":{"dtype":"O","shape":[2],"data_offsets":[0,16]}'),
    "a dtype that is a list": header('"x":{"dtype":["I64"],"shape":[2],"data_offsets":[0,16]}'),
    "the dtype of another size": header('"x":{"dtype":"I32","shape":[2],"data_offsets":[0,16]}'),
    "the shape of another size": header('"x":{"dtype":"I64","shape":[2,2],"data_offsets":[0,16]}'),
    "a negative size": header('"x":{"dtype":"I64","shape":[-2],"data_offsets":[0,16]}'),
    "two negative sizes": header('"x":{"dtype":"I64","shape":[-1,-2],"data_offsets":[0,16]}'),
    "a size that is true": header('"x":{"dtype":"I64","shape":[2,true],"data_offsets":[0,16]}'),
    "a size that is a float": header('"x":{"dtype":"I64","shape":[2.0],"data_offsets":[0,16]}'),
    "a size that is text": header('"x":{"dtype":"I64","shape":"2","data_offsets":[0,16]}'),
    "a shape that is a number": header('"x":{"dtype":"I64","shape":2,"data_offsets":[0,16]}'),
    "a shape that is a dict": header('"x":{"dtype":"I64","shape":{"2":2},"data_offsets":[0,16]}'),
    "sizes that overflow": header('"x":{"dtype":"I64","shape":[4294967296,4294967296,2],"data_offsets":[0,16]}'),
    "sizes that overflow to nothing": header(
        '"x":{"dtype":"I64","shape":[2147483648,2147483648,2147483648,0],"data_offsets":[0,0]},'
        '"y":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}'
    ),
    "a size of 2**63": header(f'"x":{{"dtype":"I64","shape":[{2**63}],"data_offsets":[0,16]}}'),
    "a size of 5,000 digits": header(f'"x":{{"dtype":"I64","shape":[{"9" * 5000}],"data_offsets":[0,16]}}'),
    "too many dimensions": header(f'"x":{{"dtype":"I64","shape":[2{",1" * 64}],"data_offsets":[0,16]}}'),
    "wrong offsets": header('"x":{"dtype":"I64","shape":[2],"data_offsets":[8,24]}'),
    "offsets beyond the file": header('"x":{"dtype":"I64","shape":[2],"data_offsets":[16,32]}'),
    "negative offsets": header('"x":{"dtype":"I64","shape":[2],"data_offsets":[-16,0]}'),
    "offsets the other way round": header('"x":{"dtype":"I64","shape":[2],"data_offsets":[16,0]}'),
    "one offset": header('"x":{"dtype":"I64","shape":[2],"data_offsets":[0]}'),
    "three offsets": header('"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16,16]}'),
    "no offsets": header('"x":{"dtype":"I64","shape":[2]}'),
    "offsets that are a number": header('"x":{"dtype":"I64","shape":[2],"data_offsets":16}'),
    "offsets of 2**64": header(f'"x":{{"dtype":"I64","shape":[2],"data_offsets":[{2**64},{2**64 + 16}]}}'),
    "overlapping tensors": header(
        '"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"y":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}'
    ),
    "the same bytes twice": header(
        '"x":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"y":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}'
    ),
    "a hole between tensors": header(
        '"x":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}'
    ),
    "a tensor twice": header(
        '"x":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"x":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}'
    ),
    "metadata twice": header('"__metadata__":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}'),
    "a tensor that is null": header('"x":null'),
    "a tensor that is a list": header('"x":["I64",[2],[0,16]]'),
    "a tensor that is text": header('"x":"I64"'),
    "NaN": header('"x":{"dtype":"I64","shape":[NaN],"data_offsets":[0,16]}'),
    "no version": header(X, poolish=None),
    "another version": header(X, poolish="2"),
    "another hash": header(X, hash="crc32"),
    "no rows": header(X, rows=None),
    "rows that are a number": header(X, rows=2),
    "rows below zero": header(X, rows="-2"),
    "rows that are a fraction": header(X, rows="2.5"),
    "rows of 5,000 digits": header(X, rows="2" * 5000),
    "no counter": header(X, counter=None),
    "a counter of 2**70": header(X, counter=str(2**70)),
    "a provider that is a list": header(X, provider=["w0"]),
    "a queue that is null": header(X, queue=None).replace('"schema"', '"queue":null,"schema"'),
    "a tombstone that is a dict": header(X, tombstone={"why": "?"}),
    "metadata that is a list": '{"__metadata__":["checksum","0000000000000000"],' + X + "}",
    "no JSON": header(X).replace('"x":', "x:"),
    "JSON that ends too soon": header(X)[:-1],
    "JSON that goes on": header(X) + "{}",
    "bytes that are no text": header(X).replace('"x"', '"\xff"').encode("latin-1"),
    "no padding": header(X).encode() + b"\0" * 3,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_told(lie: str, tmp_path: Path):
    """Also where the checksum is right: a ``CorruptDataError`` that names the file, and nothing else."""
    data = forged(LIES[lie], bytes(16))

    with within(5), pytest.raises(CorruptDataError, match="some/batch: "):
        decode(data, "some/batch")
    with within(5), pytest.raises(CorruptDataError, match="some/batch: "):
        decode(data, "some/batch", verify=False)


def test_the_truth_would_be_believed():
    """The control: the same header, not lying."""
    label, found = decode(forged(header(X), bytes(16)), "batch")
    assert label == LABEL
    assert found["x"][1].tolist() == [0, 0]


def test_offsets_are_whole_numbers():
    """``0.0`` and ``false`` equal 0 in Python; no other reader of the format takes them."""
    for offsets in ("[0.0,16]", "[0,16.0]", "[false,16]"):
        data = forged(header(f'"x":{{"dtype":"I64","shape":[2],"data_offsets":{offsets}}}'), bytes(16))
        with pytest.raises(CorruptDataError):
            decode(data, "batch")


@pytest.mark.parametrize("length", [0, 1, 55, 56 + 1, 2**16 + 56, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_header_length_that_lies(length: int, tmp_path: Path):
    """Up to the largest number that fits in eight bytes, at no cost."""
    data = forged(header(X), bytes(16), length=length)
    path = tmp_path / "batch"
    path.write_bytes(data)

    tracemalloc.start()
    with within(5), pytest.raises(CorruptDataError):
        decode(data, "batch")
    with pytest.raises(CorruptDataError):
        read_metadata(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000


@pytest.mark.parametrize(
    "bomb",
    ["[" * 30_000, '{"a":' * 12_000, "[" * 30_000 + "]" * 30_000, '"' + "\\" * 60_000, "{" * 60_000, '"x":{' * 12_000],
    ids=["lists", "dicts", "closed lists", "escapes", "braces", "tensors"],
)
def test_nested_json_bombs(bomb: str, tmp_path: Path):
    """Depth is counted before anything is parsed, in a time that grows with the length alone."""
    for text in (header(bomb), header('"x":' + bomb), header(X + ',"y":' + bomb)):
        data = forged(text[: 2**16 - 64], bytes(16))
        with within(5), pytest.raises(CorruptDataError):
            decode(data, "batch")


def test_many_tensors_of_nothing_are_cheap():
    """A header of 64 KiB cannot make arrays of more than that."""
    huge = '"x":{"dtype":"I64","shape":[2147483648,0,2147483648],"data_offsets":[0,0]}'
    tracemalloc.start()
    with within(5), pytest.raises(CorruptDataError):
        decode(forged(header(huge), bytes(16)), "batch")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("n_bytes", [0, 1, 7, 8, 36, 37, 52, 53, 64, 65, 80, 81, 128])
def test_a_file_that_is_too_short(n_bytes: int, tmp_path: Path):
    """Down to nothing at all."""
    path = tmp_path / "batch"
    path.write_bytes(joined(columns(x=np.arange(4)))[:n_bytes])
    with pytest.raises(CorruptDataError, match="not a whole batch"):
        decode(read_file(path), path)
    with pytest.raises(CorruptDataError, match="not a whole batch"):
        read_metadata(path)


def test_bytes_behind_the_last_tensor():
    """Whether or not the checksum covers them."""
    data = joined(columns(x=np.arange(4)))
    with pytest.raises(CorruptDataError):
        decode(data + b"\0", "batch")
    with pytest.raises(CorruptDataError, match="the file at"):
        decode(forged(header(X), bytes(24)), "batch")


def test_a_file_beyond_the_limit_is_not_even_mapped(tmp_path: Path):
    """2 GiB, whatever the disk says: it costs no memory to refuse it."""
    path = tmp_path / "batch"
    path.touch()
    with open(path, "r+b") as file:
        file.truncate(batch_file.MAX_FILE_BYTES + 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with within(5), pytest.raises((LimitExceeded, CorruptDataError), match="limit"):
        read_file(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_batches_beyond_the_limits_are_not_written(monkeypatch: pytest.MonkeyPatch):
    """Neither the header nor the file; the error says what to do."""
    many = {f"{i:0200}": ("int8", np.zeros(1, np.int8)) for i in range(400)}
    with pytest.raises(LimitExceeded, match="fewer fields"):
        encode(many, LABEL)
    monkeypatch.setattr(batch_file, "MAX_FILE_BYTES", 1_000)
    with pytest.raises(LimitExceeded, match="smaller batches"):
        encode(columns(x=np.zeros(1_000)), LABEL)


@given(st.binary(max_size=400))
def test_any_bytes_are_no_batch(data: bytes):
    """Nothing but a ``CorruptDataError``, whatever is there."""
    with pytest.raises(CorruptDataError):
        decode(data, "batch")
    with pytest.raises(CorruptDataError):
        decode(forged(b'{"__metadata__":{"checksum":"0000000000000000","header":"0000000000000000"' + data), "batch")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["x", "y", "", "__metadata__", "é"]), JSON, max_size=3),
    st.dictionaries(st.sampled_from(["rows", "counter", "queue", "provider", "hash", "tombstone"]), JSON, max_size=3),
)
def test_any_json_is_no_crash(tensors: dict[str, Any], changes: dict[str, Any]):
    """A header of any values in the places of ours: it is believed as a whole, or a ``CorruptDataError``."""
    text = json.dumps(tensors, separators=(",", ":"))[1:-1]
    try:
        label, _ = decode(forged(header(text, **changes), bytes(16)), "batch")
    except CorruptDataError:
        return
    assert isinstance(label.rows, int)
    assert all(isinstance(told, str) for told in (label.queue, label.schema, label.provider, label.tombstone))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*NAMES.values(), "F128"]),
            st.lists(st.sampled_from([0, 1, 2, 3, 8, 2**31, 2**62, -1]), max_size=4),
            st.integers(-2, 40),
            st.integers(-2, 40),
        ),
        max_size=3,
    )
)
def test_any_offsets_stay_inside_the_file(tensors: list[tuple[str, list[int], int, int]]):
    """Whatever they say, no array reaches beyond the bytes that are there, and none overlaps another."""
    told = {
        f"t{i}": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        for i, (dtype, shape, start, end) in enumerate(tensors)
    }
    data = forged(header(json.dumps(told, separators=(",", ":"))[1:-1]), bytes(32))
    try:
        _, found = decode(data, "batch")
    except CorruptDataError:
        return
    assert sum(array.nbytes for _, array in found.values()) == 32


def test_the_label_alone_is_read_without_the_tensors(tmp_path: Path):
    """Of a file that is cut behind its header too: it is used for counting."""
    path = tmp_path / "batch"
    whole = joined(columns(x=np.zeros(100_000)))
    n_header = 8 + int.from_bytes(whole[:8], "little")
    path.write_bytes(whole[:n_header])
    assert read_metadata(path) == replace(LABEL, rows=100_000)


def test_a_label_is_checked_where_it_is_read_alone(tmp_path: Path):
    """Whoever counts by it must not count by a flipped bit, wherever in the header it is."""
    path = tmp_path / "batch"
    whole = joined(columns(x=np.zeros(100)))
    n_header = 8 + int.from_bytes(whole[:8], "little")
    digits = range(whole.index(b'"checksum":"') + 12, whole.index(b'"checksum":"') + 28)
    for place in range(n_header):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        if place in digits:  # of the whole file, which is not read here
            with suppress(CorruptDataError):
                assert read_metadata(path) == replace(LABEL, rows=100)
            continue
        with pytest.raises(CorruptDataError):
            read_metadata(path)


def test_decoding_a_map_needs_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The arrays are the map's own memory."""
    monkeypatch.setattr(batch_file, "COPIED_BYTES", 0)
    path = tmp_path / "batch"
    path.write_bytes(joined(columns(x=np.arange(1_000))))
    data = read_file(path)
    assert isinstance(data, mmap.mmap)
    assert np.shares_memory(decode(data, path)[1]["x"][1], np.frombuffer(data, np.uint8))


# -- labels that lie


def described(*tensors: tuple[str, list[int], list[int]]) -> str:
    """What a header says of tensors: dtype, shape and offsets of each."""
    told = {f"x{i}": dict(zip(("dtype", "shape", "data_offsets"), each, strict=True)) for i, each in enumerate(tensors)}
    return json.dumps(told, separators=(",", ":"))[1:-1]


TWO_ROWS = described(("I64", [2], [0, 16]))


@pytest.mark.parametrize(
    ("tensors", "lies"),
    [
        (TWO_ROWS, {"rows": "3"}),
        (TWO_ROWS, {"rows": "0"}),
        (TWO_ROWS, {"rows": "0", "tombstone": "lost"}),
        (TWO_ROWS, {"rows": "2", "tombstone": "lost"}),
        (TWO_ROWS, {"rows": "2", "provider": "../w0"}),
        (TWO_ROWS, {"rows": "2", "provider": ".w0"}),
        (TWO_ROWS, {"rows": "2", "provider": ""}),
        (TWO_ROWS, {"rows": "2", "counter": "-1"}),
        (TWO_ROWS, {"rows": "2", "counter": "1" * 19}),
        (described(("I64", [], [0, 8]), ("I64", [1], [8, 16])), {"rows": "1"}),
        (described(("I64", [1], [0, 8]), ("I32", [2], [8, 16])), {"rows": "1"}),
        (described(("I64", [2], [0, 16]), ("I64", [2], [0, 16])), {"rows": "2"}),
        ("", {"rows": "2", "tombstone": "lost"}),
        ("", {"rows": "0"}),
    ],
)
def test_a_sealed_label_that_disagrees_with_its_tensors_is_corrupt(tensors: str, lies: dict[str, str]):
    """Its checksums are right; what it says is not, and is believed in no part."""
    with pytest.raises(CorruptDataError):
        decode(forged(header(tensors, **lies), bytes(16 if tensors else 0)), "batch")
