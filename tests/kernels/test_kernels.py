"""Every kernel does what a loop over lists would do, compiled or not, and never reads outside what it was given."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.kernels import reference
from poolish.rows.encode import encoder_of
from poolish.rows.validate import Limits, ValueRejected
from poolish.schema import tensor_type

IMPLEMENTATIONS = [reference]
if importlib.util.find_spec("poolish.kernels._native") is not None:
    IMPLEMENTATIONS.append(importlib.import_module("poolish.kernels._native"))

each_kind = pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])

int64s = st.integers(-(2**63), 2**63 - 1)
sizes = st.integers(0, 40)


def numbers(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def some_bytes(n: int) -> np.ndarray:
    """Bytes in which neighbours differ."""
    return (np.arange(n) * 151 + 7).astype(np.uint8)


# Gathering ----------------------------------------------------------------------------------------------------


@each_kind
@given(st.lists(st.integers(-12, 12) | int64s, max_size=20), sizes, st.integers(0, 2**40))
def test_indices_become_places(kernels, indices, n_rows, first):
    """Negative ones count from the end; the first one outside is named."""
    out = np.full(len(indices), -7)

    bad = kernels.resolve(numbers(indices), n_rows, first, out)

    wrong = [i for i, index in enumerate(indices) if not -n_rows <= index < n_rows]
    assert bad == (wrong[0] if wrong else -1)
    if not wrong:
        assert out.tolist() == [first + range(n_rows)[index] for index in indices]


@each_kind
@given(st.integers(1, 20), st.sampled_from([0, 1, 2, 3, 4, 8, 12, 64, 200, 1500]), st.data())
def test_items_are_gathered(kernels, n_items, width, data):
    """Items of any width, in any order, repeated or not; what lies behind the last whole item is no item."""
    positions = data.draw(st.lists(st.integers(0, n_items - 1), max_size=30))
    source = some_bytes(n_items * width + min(width, 3) // 2)
    out = np.zeros(len(positions) * width, np.uint8)

    kernels.gather(source, width, numbers(positions), out)

    assert out.tobytes() == b"".join(source[p * width : (p + 1) * width].tobytes() for p in positions)


lengths = st.lists(st.sampled_from([0, 0, 1, 2, 7, 70, 1100]), max_size=12)


@each_kind
@given(lengths, st.sampled_from([1, 2, 8]), st.integers(0, 5), st.data())
def test_ranges_are_gathered(kernels, lengths, width, first, data):
    """Ranges of any length, laid one behind the other, and the offsets at which they begin."""
    offsets = numbers(first + np.r_[0, np.cumsum(lengths, dtype=np.int64)])
    positions = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=20)) if lengths else []
    source = some_bytes(int(offsets[-1]) * width)
    begins = np.full(len(positions) + 1, -7)

    total = kernels.gather_offsets(offsets, numbers(positions), begins)
    out = np.zeros(total * width, np.uint8)
    kernels.gather_ranges(source, width, offsets, numbers(positions), out)

    parts = [source[offsets[p] * width : offsets[p + 1] * width].tobytes() for p in positions]
    assert out.tobytes() == b"".join(parts)
    assert begins.tolist() == [0, *np.cumsum([lengths[p] for p in positions])]


@each_kind
@given(lengths, st.sampled_from([b"\0", b"\7\7", b"\1\2\3\4"]), st.integers(0, 3), st.booleans())
def test_ranges_are_padded(kernels, lengths, item, n_more, is_left):
    """Ranges of any length, from anywhere, each in a row of its own; the rest of the row repeats the item."""
    width, n_items = len(item), max(lengths, default=0) + n_more
    begins = numbers(np.cumsum(lengths[::-1], dtype=np.int64) * width)[::-1].copy()
    source = some_bytes(int(begins.max(initial=0)) + max(lengths, default=0) * width)
    out = np.full(len(lengths) * n_items * width + 3, 0x55, np.uint8)

    kernels.pad_ranges(
        source, begins, numbers(lengths) * width, n_items * width, is_left, np.frombuffer(item, np.uint8), out
    )

    rows = []
    for begin, n in zip(begins.tolist(), lengths, strict=True):
        row, rest = source[begin : begin + n * width].tobytes(), item * (n_items - n)
        rows.append(rest + row if is_left else row + rest)
    assert out.tobytes() == b"".join(rows) + b"\x55" * 3


@each_kind
@pytest.mark.parametrize(
    ("begins", "sizes", "row_size", "item", "room", "error"),
    [
        ([8], [4], 4, 4, 4, IndexError),
        ([-4], [4], 4, 4, 4, IndexError),
        ([0], [-4], 4, 4, 4, IndexError),
        ([0], [8], 4, 4, 4, IndexError),
        ([2**62], [4], 4, 4, 4, IndexError),
        ([0, 0], [4], 4, 4, 8, IndexError),
        ([0], [4], 8, 4, 4, IndexError),
        ([0], [3], 4, 4, 4, ValueError),
        ([0], [4], 6, 4, 6, ValueError),
        ([0], [0], 4, 0, 4, ValueError),
    ],
)
def test_ranges_are_padded_only_inside_the_arrays(kernels, begins, sizes, row_size, item, room, error):
    """Nothing is read or written outside, whatever the numbers say."""
    out = np.full(room, 0x55, np.uint8)

    with pytest.raises(error):
        kernels.pad_ranges(
            some_bytes(11), numbers(begins), numbers(sizes), row_size, False, np.zeros(item, np.uint8), out
        )
    assert set(out.tolist()) == {0x55}


def bits_of(source: np.ndarray) -> list[int]:
    return np.unpackbits(source, bitorder="little").tolist()


@each_kind
@given(st.integers(1, 12), st.integers(0, 20), st.data())
def test_bits_are_gathered(kernels, n_bytes, first, data):
    """Bits in any order from any first one, packed from the least significant; the rest of the last byte is 0."""
    source = some_bytes(n_bytes)
    n_bits = n_bytes * 8 - first
    positions = data.draw(st.lists(st.integers(0, n_bits - 1), max_size=40)) if n_bits > 0 else []
    out = np.full((len(positions) + 7) // 8, 0xFF, np.uint8)

    kernels.gather_bits(source, first, numbers(positions), out)

    expected = [bits_of(source)[first + p] for p in positions]
    assert bits_of(out) == expected + [0] * (len(out) * 8 - len(expected))


@each_kind
@given(st.integers(0, 70), st.integers(0, 20), st.integers(0, 20), st.sampled_from([0, 0xFF, 0x5A]))
def test_bits_are_copied_between_bits(kernels, n_bits, source_bit, out_bit, around):
    """From any bit to any bit, and the bits around stay as they are: a snapshot may be looking at them."""
    source = some_bytes((source_bit + n_bits + 7) // 8)
    out = np.full((out_bit + n_bits + 7) // 8 + 1, around, np.uint8)
    expected = bits_of(out)
    expected[out_bit : out_bit + n_bits] = bits_of(source)[source_bit : source_bit + n_bits]

    kernels.copy_bits(source, source_bit, out, out_bit, n_bits)

    assert bits_of(out) == expected


# Nothing outside ----------------------------------------------------------------------------------------------

outside = st.sampled_from([-1, -(2**63), 5, 6, 2**31, 2**62, 2**63 - 1])


@each_kind
@given(outside, st.integers(0, 20))
def test_positions_outside_are_refused(kernels, bad, n_before):
    """Before anything is read there: also behind many good ones, which the compiled kernels fetch ahead."""
    positions = numbers([*[0] * n_before, bad])
    n, offsets = len(positions), numbers(np.arange(6))
    calls = [
        lambda: kernels.gather(some_bytes(40), 8, positions, np.empty(n * 8, np.uint8)),
        lambda: kernels.gather(some_bytes(15), 3, positions, np.empty(n * 3, np.uint8)),
        lambda: kernels.gather_offsets(offsets, positions, np.empty(n + 1, np.int64)),
        lambda: kernels.gather_ranges(some_bytes(5), 1, offsets, positions, np.empty(n, np.uint8)),
        lambda: kernels.gather_bits(some_bytes(1), 3, positions, np.empty((n + 7) // 8, np.uint8)),
    ]
    for call in calls:
        with pytest.raises(IndexError):
            call()


@each_kind
@pytest.mark.parametrize("offsets", [[0, 9], [-1, 2], [3, 1], [0, 2**62], [2**62, 2**62 + 1]])
def test_ranges_that_make_no_sense_are_refused(kernels, offsets):
    """Offsets from a damaged file: beyond the data, before it, or backwards."""
    with pytest.raises((IndexError, ValueError)):
        kernels.gather_ranges(some_bytes(8), 1, numbers(offsets), numbers([0]), np.empty(8, np.uint8))


@each_kind
@pytest.mark.parametrize(("source_bit", "out_bit", "n_bits"), [(0, 0, 9), (1, 0, 8), (0, 1, 8), (8, 0, 1), (0, 8, 1)])
def test_bits_outside_are_refused(kernels, source_bit, out_bit, n_bits):
    """Neither end may reach past its last byte, and nothing is written."""
    out = np.zeros(1, np.uint8)
    with pytest.raises(IndexError):
        kernels.copy_bits(np.full(1, 0xFF, np.uint8), source_bit, out, out_bit, n_bits)
    assert out[0] == 0


@each_kind
def test_room_that_is_too_small_is_never_written_past(kernels):
    """The bytes behind ``out`` stay as they are."""
    positions, words, tree = numbers([0] * 9), *tombstones(512)
    whole = np.full(100, 77, np.uint8)
    calls = [
        lambda: kernels.resolve(positions, 5, 0, whole[:64].view(np.int64)),
        lambda: kernels.gather(some_bytes(40), 8, positions, whole[:64]),
        lambda: kernels.gather(some_bytes(40), 3, positions, whole[:24]),
        lambda: kernels.gather_offsets(numbers([0, 1]), positions, whole[:72].view(np.int64)),
        lambda: kernels.gather_ranges(some_bytes(5), 1, numbers([0, 1]), positions, whole[:8]),
        lambda: kernels.gather_bits(some_bytes(1), 0, positions, whole[:1]),
        lambda: kernels.select(words, tree, positions, whole[:64].view(np.int64)),
    ]
    for call in calls:
        with pytest.raises((IndexError, ValueError)):
            call()
        assert (whole[72:] == 77).all()


# Tombstones ---------------------------------------------------------------------------------------------------


def tombstones(n_places: int, dead: Any = (), kernels: ModuleType = reference) -> tuple[np.ndarray, np.ndarray]:
    """Words and tree with all places live but the dead."""
    n_blocks = -(-n_places // 512)
    words, tree = np.full(n_blocks * 8, ~np.uint64(0)), np.empty(n_blocks + 1, np.int64)
    for place in dead:
        words[place >> 6] &= ~(np.uint64(1) << np.uint64(place & 63))
    kernels.count_blocks(words, tree)
    return words, tree


def living(words: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


places = st.lists(st.integers(0, 2_999), max_size=40) | st.integers(0, 2_999).map(lambda n: list(range(n)))


@each_kind
@given(places)
def test_the_nth_living_is_found(kernels, dead):
    """Whichever places are dead, rank r is the r-th of the others."""
    words, tree = tombstones(3_000, dead, kernels)
    alive = living(words)
    ranks = sorted({rank % len(alive) for rank in (0, 1, 511, 512, len(alive) // 2, len(alive) - 1)})
    out = np.empty(len(ranks), np.int64)

    kernels.select(words, tree, numbers(ranks), out)

    assert out.tolist() == [alive[rank] for rank in ranks]
    assert [kernels.select_one(words, tree, rank) for rank in ranks] == out.tolist()


@each_kind
@given(places, places)
def test_the_dead_are_dead_once(kernels, dead, more):
    """Killing takes exactly those places, also when some were dead or stand twice, and the counts stay right."""
    words, tree = tombstones(3_000, dead, kernels)

    kernels.kill(words, tree, numbers([*more, *more[:2]]))

    assert living(words) == sorted(set(range(len(words) * 64)) - {*dead, *more})
    assert tree.tolist() == tombstones(3_000, [*dead, *more])[1].tolist()


def driven_out(alive: Any, n_before: int, n_live: int, max_live: int, key: int, first_id: int, n: int) -> list[int]:
    """What eviction means, on a list: each row that comes drives out a random one of those there, itself included."""
    alive = list(alive)
    for row_id in range(first_id, first_id + n):
        n_live += 1
        if n_live > max_live:
            alive.pop(n_before + (reference.mix(key ^ reference.mix(row_id)) * n_live >> 64))
            n_live -= 1
    return alive


@each_kind
@given(
    st.lists(st.integers(0, 99), max_size=20),
    st.integers(0, 50),
    st.integers(1, 40),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**60),
    st.integers(0, 900),
)
def test_eviction_is_one_by_one(kernels, dead, n_before, max_live, key, first_id, n):
    """The same rows go as if each had come alone, however many come in one call."""
    words, tree = tombstones(2_048, dead, kernels)
    alive = living(words)
    n_live = min(max_live, 100 - n_before)

    n_left = kernels.evict(words, tree, n_before, n_live, max_live, key, first_id, n)

    assert living(words) == driven_out(alive, n_before, n_live, max_live, key, first_id, n)
    assert n_left == min(n_live + n, max_live)
    assert tree.tolist() == tombstones(2_048, set(range(2_048)) - set(living(words)))[1].tolist()


@each_kind
@pytest.mark.parametrize("rank", [-1, -(2**63), 512 - 3, 2**62])
def test_ranks_outside_are_refused(kernels, rank):
    """There are 509 living: no rank beyond, none before."""
    words, tree = tombstones(512, [1, 2, 3], kernels)
    with pytest.raises(IndexError):
        kernels.select(words, tree, numbers([0, rank]), np.empty(2, np.int64))
    with pytest.raises(IndexError):
        kernels.select_one(words, tree, rank)


@each_kind
@pytest.mark.parametrize("place", [-1, 512, 2**62, -(2**63)])
def test_places_outside_are_refused(kernels, place):
    """And nobody is killed by mistake."""
    words, tree = tombstones(512, kernels=kernels)
    with pytest.raises(IndexError):
        kernels.kill(words, tree, numbers([5, place]))
    assert living(words) == list(range(512))


@each_kind
def test_evicting_more_than_there_is_room_for_is_refused(kernels):
    """A set of 512 places cannot take 600 rows."""
    words, tree = tombstones(512, kernels=kernels)
    with pytest.raises(IndexError):
        kernels.evict(words, tree, 0, 0, 600, 1, 0, 1_200)


# Pinned: a seed means the same rows in every release ----------------------------------------------------------


@each_kind
def test_mix_is_pinned(kernels):
    """The finisher of splitmix64."""
    values = [kernels.mix(value) for value in (0, 1, 2**64 - 1)]
    assert values == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20]


@each_kind
def test_evictions_are_pinned(kernels):
    """Who goes depends on key and id alone: changing these values is a decision."""
    words, tree = tombstones(512, kernels=kernels)

    kernels.evict(words, tree, 0, 10, 10, 0x0123456789ABCDEF, 10, 30)

    assert [place for place in living(words) if place < 40] == [0, 10, 21, 25, 27, 29, 31, 35, 36, 39]


def test_survivors_of_a_seed_are_pinned():
    """Single rows, bulk rows and samples of a buffer with a seed are the same in every release."""
    buffer = DatasetBuffer(max_size=8, drop_strategy="random", seed=7)
    for key in range(40):
        buffer.append({"key": key})
    singly = buffer.to_pydict()["key"]
    buffer.append([{"key": key} for key in range(40, 50)], retain_prior=0.5, retain_prior_by="random")

    assert singly == [17, 26, 29, 30, 31, 33, 38, 39]
    assert buffer.to_pydict()["key"] == [26, 33, 39, 40, 41, 44, 48, 49]
    assert buffer.sample(4)["key"].to_pylist() == [44, 39, 26, 41]


# One row ------------------------------------------------------------------------------------------------------


class Text(str):
    """Text of another class."""


class Number(int):
    """A number of another class."""


THREE = np.arange(3, dtype=np.float32)
VALUES: list[Any] = [
    None, "rye", "süß", "x" * 33, Text("rye"), "\ud800", b"rye", [1], (1,), {}, object(), True,
    0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**40, Number(3), np.int64(5), np.int8(5),
    1.5, 2.0, float("nan"), np.float64(2), np.float32(0.5),
    THREE, THREE.astype(float), THREE.astype(">f4"), THREE.astype(np.int32), THREE.astype(bool), THREE[::-1], THREE[:2],
    THREE[:, None], THREE[0:1].reshape(()), np.zeros(3, "datetime64[s]"), np.array(["a", "b", "c"]),
    np.array([1, 2, None]), np.ma.array(THREE, mask=[0, 1, 0]),
]  # fmt: skip
TYPES = [
    pa.large_string(), pa.int64(), pa.int32(), pa.uint64(), pa.float64(), pa.float32(), pa.bool_(),
    tensor_type("float32", (3,)), tensor_type("bool", (3,)), tensor_type("float32", ()), tensor_type("float32", (0,)),
    tensor_type("datetime64[s]", (3,)), tensor_type("bfloat16", (3,)), tensor_type("float32", (None,)),
]  # fmt: skip


@each_kind
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_the_shortcut_gives_what_freezing_gives(kernels, type_):
    """For every value and column: the same frozen value, or the same rejection."""
    cell = encoder_of(type_, Limits(cell_bytes=32))
    plan = (cell.step("x"),)
    for value in VALUES:
        row = {"x": value}
        assert outcome(lambda: kernels.freeze_row(row, plan)[0]) == outcome(lambda: cell.validate_and_copy(value))  # noqa: B023


def outcome(freeze: Any) -> tuple[str, str]:
    try:
        frozen = freeze()
    except ValueRejected as rejection:
        return "refused", rejection.rule
    return type(frozen).__name__, repr(frozen)


@each_kind
def test_a_row_is_frozen_in_the_order_of_the_plan(kernels):
    """Whatever order its keys have; a missing key is a KeyError that names it."""
    plan = tuple(encoder_of(pa.int64(), Limits()).step(name) for name in ("b", "a"))

    assert kernels.freeze_row({"a": 1, "b": 2}, plan) == [2, 1]
    with pytest.raises(KeyError, match="a"):
        kernels.freeze_row({"b": 2, "c": 1}, plan)


@each_kind
def test_frozen_arrays_are_copies(kernels):
    """What the caller does to his array afterwards is his business."""
    array = np.arange(3, dtype=np.float32)
    frozen = kernels.freeze_row({"x": array}, (encoder_of(tensor_type("float32", (3,)), Limits()).step("x"),))

    array[:] = 9

    assert np.frombuffer(frozen[0], np.float32).tolist() == [0, 1, 2]


# Dealing out ----------------------------------------------------------------------------------------------------


def dealt(kernels, parts, key, n):
    """``n`` ids from parts of (start, size, cursor, key), and where the cursors are afterwards."""
    starts, sizes, cursors, keys = (list(column) for column in zip(*parts, strict=True)) if parts else ([], [], [], [])
    moved, out = numbers(cursors), np.full(n, -7)
    scratch = np.full(2 * (n + len(parts)), -7)
    kernels.deal(numbers(starts), numbers(sizes), moved, np.array(keys, np.uint64), key, out, scratch)
    return out.tolist(), moved.tolist()


words = st.integers(0, 2**64 - 1)


@st.composite
def parts_to_deal(draw, largest=3000):
    parts, start = [], 0
    for _ in range(draw(st.integers(1, 9))):
        start += draw(st.integers(0, 2**40))
        size = draw(st.integers(1, largest) | st.sampled_from([1, 2, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025]))
        parts.append((start, size, draw(st.integers(0, size)), draw(words)))
        start += size
    return parts


@each_kind
@given(parts_to_deal(largest=200), words, st.integers(1, 300))
def test_parts_are_dealt_out_exactly_once(kernels, parts, key, n):
    """Block after block until nothing is left: what was left of each part, each id once."""
    left = [(start, size, key_) for start, size, _, key_ in parts]
    cursors, seen = [cursor for _, _, cursor, _ in parts], [set() for _ in parts]
    while (total := sum(size - cursor for (_, size, _), cursor in zip(left, cursors, strict=True))) > 0:
        state = [(start, size, c, key_) for (start, size, key_), c in zip(left, cursors, strict=True)]
        ids, moved = dealt(kernels, state, key, min(n, total))
        for k, (start, size, _) in enumerate(left):
            mine = {id_ for id_ in ids if start <= id_ < start + size}
            assert len(mine) == moved[k] - cursors[k]
            assert not mine & seen[k]
            seen[k] |= mine
        cursors, key = moved, (key + 1) % 2**64

    for (_, size, cursor, _), found in zip(parts, seen, strict=True):
        assert len(found) == size - cursor


@given(parts_to_deal(), words, st.data())
def test_both_deal_alike(parts, key, data):
    """To the last id, also over more than one round of the compiled loop."""
    n = data.draw(st.integers(0, min(1500, sum(size - cursor for _, size, cursor, _ in parts))))

    assert len({str(dealt(kernels, parts, key, n)) for kernels in IMPLEMENTATIONS}) == 1


@each_kind
def test_dealing_is_pinned(kernels):
    """A seed means the same order for ever."""
    assert dealt(kernels, [(0, 10, 0, 7)], 1, 6) == ([0, 9, 7, 4, 8, 5], [6])
    three = [(0, 10, 3, 7), (100, 5, 0, 8), (1000, 20, 19, 9)]
    assert dealt(kernels, three, 1, 8) == ([1008, 4, 8, 102, 103, 104, 5, 101], [6, 4, 20])


@each_kind
@pytest.mark.parametrize(
    ("parts", "n"),
    [
        ([(0, 5, 0, 1)], 6),
        ([(0, 5, 6, 1)], 1),
        ([(0, 5, -1, 1)], 1),
        ([], 1),
        ([(0, 5, 2, 1), (9, 5, 5, 1)], 4),
    ],
)
def test_more_than_there_is_cannot_be_dealt(kernels, parts, n):
    """Refused before anything is written."""
    with pytest.raises(IndexError):
        dealt(kernels, parts, 1, n)


@each_kind
def test_dealing_needs_its_scratch(kernels):
    """Too little room is refused."""
    starts, sizes, cursors, keys = numbers([0, 9]), numbers([5, 5]), numbers([0, 0]), np.array([1, 2], np.uint64)
    with pytest.raises(IndexError):
        kernels.deal(starts, sizes, cursors, keys, 1, np.empty(3, np.int64), np.empty(9, np.int64))
    assert cursors.tolist() == [0, 0]


def test_both_have_the_same_kernels():
    """What one half offers the other has, too."""
    for name in ("resolve", "gather", "gather_offsets", "gather_ranges", "gather_bits", "copy_bits", "freeze_row"):
        assert all(callable(getattr(module, name)) for module in IMPLEMENTATIONS)
    for name in ("count_blocks", "select", "select_one", "kill", "evict", "mix", "permute", "unpermute", "deal"):
        assert all(callable(getattr(module, name)) for module in IMPLEMENTATIONS)
