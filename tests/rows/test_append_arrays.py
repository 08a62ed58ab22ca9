"""Appending arrays and tensors: every dtype and rank, every layout in memory, fixed and ragged shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poolish import DatasetBuffer, Field
from poolish.errors import SchemaError
from poolish.schema import describe
from tests.rows.facts import WAYS, append_all, append_singly, column, facts, plain

NUMPY_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(f"{kind}64[{unit}]" for kind in ("datetime", "timedelta") for unit in ("s", "ms", "us", "ns")),
]
TORCH_DTYPES = [
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128),
]
RANKS = range(7)


def array_of(dtype, rank, seed=0):
    """Random bits, so that NaNs, denormals and extremes come along."""
    dtype = np.dtype(dtype)
    shape = (2, 1, 3, 1, 2, 1)[:rank]
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape, dtype=int))
    return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape).copy()


def tensor_of(dtype, rank, seed=0):
    if dtype == torch.bool:
        return torch.from_numpy(array_of("bool", rank, seed))
    bits = array_of({1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}[dtype.itemsize], rank, seed)
    return torch.from_numpy(np.asarray(bits)).view(dtype)


def bits(tensor):
    """A tensor as something that compares by its bits."""
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


# -- dtypes and ranks


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_an_array_of_any_dtype_and_rank_comes_back(dtype):
    """Dtype, shape and bits survive the bulk way, the way of single rows and the way of columns."""
    for rank in RANKS:
        given = [array_of(dtype, rank, seed) for seed in range(4)]
        buffer = DatasetBuffer()

        buffer.append([{"x": given[0]}, {"x": given[1]}])
        buffer.append({"x": given[2]})
        buffer.append_columns({"x": np.stack(given[3:])})

        assert plain(list(buffer.to_numpy()["x"])) == plain(list(np.stack(given)))
        if rank:
            assert plain(column(buffer)) == plain(given)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_a_tensor_of_any_dtype_and_rank_comes_back(dtype):
    """Also the dtypes that NumPy lacks: the bits are kept, and torch gets them back."""
    for rank in RANKS:
        given = [tensor_of(dtype, rank, seed) for seed in range(4)]
        buffer = DatasetBuffer()

        buffer.append([{"x": given[0]}, {"x": given[1]}])
        buffer.append({"x": given[2]})
        buffer.append_columns({"x": torch.stack(given[3:])})

        assert bits(buffer.to_torch()["x"]) == bits(torch.stack(given))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.bfloat16, "bfloat16"), (torch.float8_e4m3fn, "float8_e4m3fn"), (torch.float8_e5m2, "float8_e5m2")],
)
def test_dtypes_that_numpy_lacks_are_read_as_float32(dtype, name):
    """Every value of theirs is a float32 exactly; the column remembers what it holds."""
    every_code = (
        torch.arange(2**16).to(torch.uint16).view(torch.bfloat16)
        if dtype == torch.bfloat16
        else (torch.arange(256).to(torch.uint8).view(dtype))
    )
    buffer = DatasetBuffer()

    buffer.append({"x": every_code})

    expected = every_code.to(torch.float32).numpy()
    assert describe(buffer.schema["x"].type) == f"{name}[{len(every_code)}]"
    assert buffer[0]["x"].dtype == np.float32
    np.testing.assert_array_equal(buffer[0]["x"], expected)
    np.testing.assert_array_equal(buffer.to_numpy()["x"][0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_a_lent_dtype_is_not_the_one_that_carries_it(dtype):
    """bfloat16 lies in memory as uint16; no array of another dtype slips into its column."""
    buffer = DatasetBuffer()
    buffer.append({"x": torch.ones(2, dtype=dtype)})
    before = facts(buffer)

    for stranger in [
        *(np.ones(2, name) for name in ("uint8", "uint16", "float16", "float64")),
        np.full(2, 0.1, np.float32),
    ]:
        with pytest.raises(SchemaError, match="column 'x'"):
            buffer.append({"x": stranger})
        with pytest.raises(SchemaError, match="column 'x'"):
            buffer.append([{"x": stranger}])

    assert facts(buffer) == before


def test_bare_arrays_and_tensors_are_rows_of_one_column():
    """``np.ndarray`` and ``torch.Tensor`` samples go to the column ``tensor``."""
    arrays, tensors = DatasetBuffer(), DatasetBuffer()

    arrays.append(np.arange(3))
    arrays.append([np.arange(3), np.ones(3, int)])
    tensors.append(torch.arange(3))
    tensors.append(torch.ones(3, dtype=torch.int64) for _ in range(2))

    assert plain(arrays.to_pydict()) == plain({"tensor": [np.arange(3), np.arange(3), np.ones(3, int)]})
    assert tensors.to_torch()["tensor"].tolist() == [[0, 1, 2], [1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("shape", [(4,), (None,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_rows_of_a_lent_dtype_can_be_appended_again(dtype, shape):
    """They are read as float32; float32 that the column holds exactly is taken, so reading and appending agree."""
    given = torch.tensor([0.5, -0.0, 3.0, -448.0]).to(dtype)
    buffer = DatasetBuffer(schema=[Field("x", dtype, shape=shape)])
    buffer.append({"x": given})

    buffer.append(buffer[0])
    buffer.append([buffer[0]])
    buffer.append_columns({"x": [buffer[0]["x"]]})

    assert [bits(tensor) for tensor in buffer.to_torch()["x"]] == [bits(given)] * 4


ALIKE = {
    "shape of flags": (np.ones((2, 3), bool), np.ones((3, 2), bool)),
    "flags and bytes": (np.ones(2, bool), np.ones(2, np.uint8)),
    "two kinds of float8": (torch.ones(2).to(torch.float8_e5m2), torch.ones(2).to(torch.float8_e4m3fn)),
    "bfloat16 and uint16": (torch.ones(2, dtype=torch.bfloat16), np.ones(2, np.uint16)),
    "complex and pairs": (np.ones(2, np.complex64), np.ones((2, 2), np.float32)),
    "datetime and timedelta": (np.ones(2, "M8[s]"), np.ones(2, "m8[s]")),
    "seconds and microseconds": (np.ones(2, "M8[s]"), np.ones(2, "M8[us]")),
}


@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("kind", ALIKE)
def test_no_column_takes_arrays_that_only_look_alike_in_memory(kind, is_ragged):
    """The same number of bytes is not the same meaning: refused as rows, as columns and as a table."""
    first, other = ALIKE[kind]
    stack = torch.stack if isinstance(other, torch.Tensor) else np.stack
    buffer, table = DatasetBuffer(), DatasetBuffer()
    buffer.append([{"x": first}, {"x": first[:1] if is_ragged else first}])
    table.append([{"x": other}, {"x": other[:1] if is_ragged else other}])
    before = facts(buffer)

    for append in (
        lambda: buffer.append({"x": other}),
        lambda: buffer.append([{"x": other}]),
        lambda: buffer.append_columns({"x": stack([other, other])}),
        lambda: buffer.append_columns({"x": [other, other]}),
        lambda: buffer.append(table),
        lambda: buffer.update([0], {"x": stack([other])}),
    ):
        with pytest.raises(SchemaError, match="row 0, column 'x'"):
            append()

    assert facts(buffer) == before


# -- layouts in memory

BASE = np.arange(24, dtype=np.int32).reshape(4, 6)
LAYOUTS = {
    "contiguous": BASE,
    "fortran": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "strided": BASE[::2, ::3],
    "reversed": BASE[::-1, ::-1],
    "one row backwards": BASE[:, ::-1],
    "broadcast": np.broadcast_to(np.arange(6, dtype=np.int32), (4, 6)),
    "big-endian": BASE.astype(">i4"),
    "big-endian reversed": BASE.astype(">i4")[::-1],
    "unaligned": np.frombuffer(b"\0" + BASE.tobytes(), np.uint8)[1:].view(np.int32).reshape(4, 6),
    "read-only": np.frombuffer(BASE.tobytes(), np.int32).reshape(4, 6),
    "no rows": BASE[:0],
    "no columns": BASE[:, :0],
    "field of a record": np.rec.fromarrays([BASE, BASE], names="a,b")["b"],
    "subclass": BASE.view(type("Tagged", (np.ndarray,), {})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_do_not_depend_on_the_layout_in_memory(layout):
    """Strides, byte order and alignment are the caller's affair; the column holds native, contiguous values."""
    for way in WAYS:
        array = LAYOUTS[layout]
        buffer = DatasetBuffer()

        WAYS[way](buffer, [{"x": array}, {"x": array}])

        assert plain(column(buffer)) == plain([np.array(array, np.int32, order="C", subok=False)] * 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_do_not_depend_on_the_layout_in_memory(layout):
    """The same where one array brings many rows."""
    array = LAYOUTS[layout]
    buffer = DatasetBuffer()

    buffer.append_columns({"x": array, "n": list(range(len(array)))})

    assert plain(list(buffer.to_numpy()["x"])) == plain(list(np.array(array, np.int32, order="C", subok=False)))


TENSORS = {
    "requires grad": torch.arange(6.0).reshape(2, 3).requires_grad_(),
    "inside a graph": torch.arange(6.0).reshape(2, 3).requires_grad_() * 2,
    "parameter": torch.nn.Parameter(torch.ones(2, 3)),
    "transposed": torch.arange(6.0).reshape(3, 2).T,
    "expanded": torch.arange(3.0).expand(2, 3),
    "strided": torch.arange(24.0).reshape(4, 6)[::2, ::2],
    "conjugate": torch.arange(6).to(torch.complex64).add(1j).reshape(2, 3).conj(),
    "negative view": torch.arange(6).to(torch.complex64).mul(1j).reshape(2, 3).conj().imag,
    "bfloat16 strided": torch.arange(24).to(torch.bfloat16).reshape(4, 6)[::2, ::2],
    "bool transposed": torch.tensor([[True, False], [False, False], [True, True]]).T,
    "nothing": torch.empty(0, 3),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_values_do_not_depend_on_the_kind_of_tensor(kind):
    """Gradients, lazy conjugates, views and strides are resolved; the caller's tensor is left alone."""
    for way in WAYS:
        tensor = TENSORS[kind]
        buffer = DatasetBuffer()

        WAYS[way](buffer, [{"x": tensor}, {"x": tensor}])

        plain_tensor = tensor.detach().resolve_conj().resolve_neg()
        assert bits(buffer.to_torch()["x"]) == bits(torch.stack([plain_tensor, plain_tensor]))
        assert TENSORS["requires grad"].requires_grad


@pytest.mark.parametrize("way", [append_all, append_singly])
def test_a_tensor_changed_after_append_does_not_reach_the_buffer(way):
    """Tensors share memory with the arrays made of them, so they are copied."""
    tensor, lent = torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)
    buffer = DatasetBuffer()
    buffer.append({"x": tensor, "y": lent})
    way(buffer, [{"x": tensor, "y": lent}])

    tensor.fill_(9)
    lent.fill_(9)

    assert buffer.to_torch()["x"].tolist() == buffer.to_torch()["y"].tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_generator_may_fill_one_tensor_again_and_again(dtype):
    """Each sample is copied before the next is made."""

    def filled():
        tensor = torch.zeros(2, dtype=dtype)
        for i in range(3):
            yield {"x": tensor.fill_(i), "n": tensor[0]}

    buffer = DatasetBuffer()
    buffer.append(filled())

    assert buffer.to_torch()["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert buffer.to_torch()["n"].tolist() == [0, 1, 2]


# -- shapes


@pytest.mark.parametrize("way", ["one call", "generator", "columns"])
@pytest.mark.parametrize(
    ("shapes", "type_name"),
    [
        ([(2,), (3,), (0,)], "float32[?]"),
        ([(2, 3), (4, 3)], "float32[?, 3]"),
        ([(2, 3), (2, 0)], "float32[2, ?]"),
        ([(1, 2, 3), (3, 2, 1)], "float32[?, 2, ?]"),
    ],
)
def test_shapes_that_differ_in_the_first_append_make_the_column_ragged(shapes, type_name, way):
    """Each size stays fixed where all rows agree."""
    given = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)]
    buffer = DatasetBuffer()

    WAYS[way](buffer, [{"x": array} for array in given])

    assert describe(buffer.schema["x"].type) == type_name
    assert plain(column(buffer)) == plain(given)


def test_raggedness_is_found_across_chunks_of_one_append():
    """The last of 10,000 samples may be the first of another shape."""
    buffer = DatasetBuffer()

    buffer.append({"x": np.full(2 + (i == 9_999), i)} for i in range(10_000))

    assert describe(buffer.schema["x"].type) == "int64[?]"
    assert buffer[0]["x"].tolist() == [0, 0]
    assert buffer[9_999]["x"].tolist() == [9_999] * 3


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_ragged_columns_hold_every_dtype(dtype):
    """Fixed or ragged, a value has the same bits."""
    make = array_of if isinstance(dtype, str) else tensor_of
    given = [make(dtype, 3, seed)[: 1 + seed] for seed in range(2)]
    buffer = DatasetBuffer(schema=[Field("x", dtype, shape=(None, 1, 3))])

    buffer.append([{"x": array} for array in given])
    buffer.append({"x": given[0][:0]})

    if make is array_of:
        assert plain(column(buffer)) == plain([*given, given[0][:0]])
    else:
        assert [bits(t) for t in buffer.to_torch()["x"]] == [bits(t) for t in [*given, given[0][:0]]]


@pytest.mark.parametrize("way", WAYS)
def test_a_fixed_shape_stays_fixed_and_the_error_says_how_to_make_it_ragged(way):
    """The first append decides; the message holds the declaration to copy."""
    buffer = DatasetBuffer()
    buffer.append({"x": np.zeros((2, 3))})
    before = facts(buffer)

    with pytest.raises(SchemaError) as caught:
        WAYS[way](buffer, [{"x": np.zeros((2, 4))}])

    assert facts(buffer) == before
    assert "row 0, column 'x'" in str(caught.value)
    assert "float64[2, 3]" in str(caught.value)
    assert "float64[2, 4]" in str(caught.value)
    assert "schema=[Field('x', 'float64', shape=(2, None))]" in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_null_arrays_keep_their_place(way):
    """Fixed, ragged and lent dtypes: None is None, the neighbours are untouched."""
    rows = [
        {"a": np.arange(2), "b": np.arange(1), "c": torch.ones(2, dtype=torch.bfloat16), "d": np.array([True])},
        {"a": None, "b": None, "c": None, "d": None},
        {"a": np.arange(2, 4), "b": np.arange(3), "c": torch.zeros(2, dtype=torch.bfloat16), "d": np.array([False])},
    ]
    buffer = DatasetBuffer()
    buffer.append(rows)

    WAYS[way](buffer, rows[1:])

    expected = [
        plain(
            {name: value.float().numpy() if name == "c" and value is not None else value for name, value in row.items()}
        )
        for row in [*rows, *rows[1:]]
    ]
    assert [plain(buffer[i]) for i in range(5)] == expected


def test_arrays_inside_lists_and_structs_are_arrays():
    """Nesting changes nothing about an array, not even its raggedness."""
    given = [
        {"x": [np.arange(2), np.arange(3)], "y": {"z": np.eye(2), "w": [np.zeros((1, 2), np.float32)]}},
        {"x": [], "y": {"z": np.ones((2, 2)), "w": []}},
    ]
    buffer = DatasetBuffer()

    buffer.append(given)
    buffer.append(given[0])

    assert str(buffer.schema) == "Schema(x: list of int64[?], y: {z: float64[2, 2], w: list of float32[1, 2]})"
    assert [plain(buffer[i]) for i in range(3)] == [plain(row) for row in [*given, given[0]]]
