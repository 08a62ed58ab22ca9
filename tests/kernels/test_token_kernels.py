"""Every kernel of the token streams does what a loop over lists would do, and reaches nothing but its arguments."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from itertools import groupby, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from poolish.kernels import reference_tokens
from poolish.kernels.reference_tokens import FIRST, PUBLISHED, SCALAR, SEQUENCE, UNDECIDED

COMPILED: list[ModuleType] = []
if importlib.util.find_spec("poolish.kernels._tokens") is not None:
    COMPILED.append(importlib.import_module("poolish.kernels._tokens"))
IMPLEMENTATIONS = [reference_tokens, *COMPILED]

each_kind = pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])

int64s = st.integers(-(2**63), 2**63 - 1)

#: What lies behind every array that a kernel may write to.
GUARD = 0x7777777777777777


def numbers(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


# Exactness ----------------------------------------------------------------------------------------------------

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
DTYPES = ["bool", *INTEGERS, *FLOATS]


def slot(dtype: str, kind: int = SCALAR, shape: tuple[int | None, ...] = (), name: str = "x") -> tuple[Any, ...]:
    """A field as the kernels know it."""
    if dtype in FLOATS:
        limit = math.inf if dtype == "float64" else float(np.finfo(dtype).max)
        return name, True, limit, 0, 0, kind, shape
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return name, False, math.inf, low, min(high, 2**63 - 1), kind, shape


def bits(value: float) -> int:
    return int(np.array(value, np.float64).view(np.int64))


def token(value: bool | int | float, field: tuple[Any, ...]) -> int | None:
    """The token of a Python number, None where the field cannot hold it."""
    _, is_float, limit, low, high, _, _ = field
    if is_float:
        try:
            wide = float(value)
        except OverflowError:
            return None
        is_exact = isinstance(value, float) or int(wide) == value
        return bits(wide) if is_exact and not limit < abs(wide) < math.inf else None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if low <= value <= high else None


CORNERS = [
    *(0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65504, 65505, 65519, 65520, 65535, 65536, 2**24 + 1, 2**31 - 1),
    *(2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**53 + 2, 2**62, 2**63 - 1024, 2**63 - 1, 2**63, 2**63 + 1),
    *(2**63 + 2048, 2**64 - 2048, 2**64 - 1, -1, -127, -128, -129, -32768, -65504, -65505, -65520, -(2**31)),
    *(-(2**53) - 1, -(2**63) + 1, -(2**63)),
]
FLOAT_CORNERS = [
    *(0.0, -0.0, 1.0, 0.5, 1.5, -0.1, math.nan, math.inf, -math.inf, 5e-324, 2.0**-1022, 2.0**-24, 2.0**-149),
    *(65504.0, 65504.5, 65520.0, 3.4028234663852886e38, 3.402823669209385e38, 1.7976931348623157e308),
    *(2.0**53, 2.0**63, -(2.0**63), -(2.0**63) - 2048, 2.0**63 - 1024, 2.0**64, 1e300, -1e300, 127.0, 128.0, 255.0),
]


def corners(dtype: str) -> np.ndarray:
    """The corner values that a dtype has, and its own ends."""
    if dtype in FLOATS:
        info = np.finfo(dtype)
        with np.errstate(over="ignore"):
            own = [info.max, info.min, info.tiny, info.smallest_subnormal, np.nextafter(info.max, info.dtype.type(0))]
            return np.array([*FLOAT_CORNERS, *map(float, own)], np.float64).astype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    info = np.iinfo(dtype)
    return np.array([n for n in [*CORNERS, info.min, info.max] if info.min <= n <= info.max], dtype)


class Lanes:
    """Lanes in memory, with a guard behind each, and a recorder that writes to them."""

    def __init__(self, kernels: ModuleType, fields: Any, n_tokens: int = 400, n_rows: int = 200, **bound: int) -> None:
        self.kernels = kernels
        self.whole = [
            np.full(n_tokens + 8, GUARD),
            np.full(n_tokens + 8, 0x77, np.uint8),
            np.full((n_rows + 8, 3), GUARD),
            np.full(512 + 8, GUARD),
        ]
        self.data, self.types, self.index, self.head = (lane[:-8] for lane in self.whole)
        self.left: list[tuple[Any, Any, Any]] = []
        self.n_trims = 0
        self.recorder = kernels.Recorder(fields, lambda *given: self.left.append(given), self._trim)
        for name, number in bound.items():
            setattr(self.recorder, name, number)
        self.recorder.attach(self.data, self.types, self.index, self.head)
        self.recorder.is_busy = False

    def _trim(self) -> None:
        self.n_trims += 1
        self.recorder.trim_at = 2**62

    @property
    def writes(self) -> list[tuple[int, int, int, list[int]]]:
        """Every field-write: (ordinal, step, type, tokens), as index and data say; the types lane must agree."""
        assert all(
            (lane[-8:] == lane.dtype.type(GUARD & 0xFF if lane.itemsize == 1 else GUARD)).all() for lane in self.whole
        )
        rows, found = self.index[: self.recorder.n_rows + 1].tolist(), []
        for (start, type_, step), (end, _, _) in pairwise(rows):
            assert (self.types[start:end] == type_ & 0xFF).all()
            found.append((type_ >> 8, step, type_ & 0xFF, self.data[start:end].tolist()))
        assert not rows[1:] or rows[-1][0] == self.recorder.n_tokens
        return found

    @property
    def state(self) -> Any:
        """What must be the same after anything that was refused."""
        names = ("n_rows", "n_tokens", "n_steps", "last_step", "last_type", "step_start", "first_row", "first_token")
        counters = {name: getattr(self.recorder, name) for name in names}
        return counters, self.writes, self.kernels.load_word(self.head, PUBLISHED)


def encoded(kernels: ModuleType, values: np.ndarray, field: tuple[Any, ...]) -> tuple[list[int], bool]:
    """Tokens as ``record_columns`` writes them, and whether any was refused."""
    lanes = Lanes(kernels, [field], n_tokens=len(values))
    bad = lanes.recorder.record_columns(numbers([0]), [(0, values, len(values), None, None)])
    assert bad in (-1, 0)
    assert (lanes.recorder.n_rows == 0) == (bad == 0)
    return lanes.data[: lanes.recorder.n_tokens].tolist(), bad == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("field", list(map(slot, DTYPES)), ids=DTYPES)
def test_numbers_of_arrays_are_tokens_exactly_or_refused(dtype, field):
    """Each corner value of each dtype into each kind of field, by every way that arrays take."""
    values = corners(dtype)
    expected = [token(value.item(), field) for value in values]

    tokens, bad = reference_tokens.encode(values, *field[1:5])

    wrong = [i for i, one in enumerate(expected) if one is None]
    assert bad == (wrong[0] if wrong else -1)
    good = [i for i, one in enumerate(expected) if one is not None]
    kept = [expected[i] for i in good]
    assert tokens[good].tolist() == kept
    for kernels in IMPLEMENTATIONS:
        assert encoded(kernels, values[good], field) == (kept, False)
        assert all(encoded(kernels, values[i : i + 1], field) == ([], True) for i in wrong)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("field", DTYPES)
def test_appended_numbers_are_tokens_exactly_or_left_to_the_slow_way(dtype, field):
    """NumPy's scalars, Python's numbers, lists of them, arrays with and without gaps, in the compiled ``append``."""
    values = corners(dtype)
    spread = np.repeat(values, 3)
    for kernels in COMPILED:
        lanes = Lanes(kernels, [slot(field), slot(field, SEQUENCE, (None,), "many")], n_tokens=2_000, n_rows=1_000)
        step, expected = 0, []
        for i, value in enumerate(values):
            one = token(value.item(), slot(field))
            ways = [("x", value), ("x", value.item()), ("x", values[i].reshape(()))]
            ways += [
                ("many", way) for way in ([value], (value.item(),), values[i : i + 1], spread[3 * i : 3 * i + 2 : 2])
            ]
            for name, way in ways:
                n_left, before = len(lanes.left), lanes.recorder.n_rows
                lanes.recorder.append([step], [name], [way])
                if len(lanes.left) > n_left:  # what is refused, or is beyond int64 as a Python integer
                    assert one is None or abs(value.item()) >= 2**63
                    assert lanes.recorder.n_rows == before
                    assert lanes.left[-1][2][0] is way
                else:
                    tokens = [one] * (2 if np.size(way) == 2 else 1)
                    expected.append((len(expected), step, int(name == "many"), tokens))
                step += 1
        assert lanes.writes == expected
        assert None not in [one for *_, tokens in expected for one in tokens]


raw = st.sampled_from(DTYPES[1:]).flatmap(
    lambda dtype: nps.arrays(np.uint8, st.integers(0, 40).map(lambda n: n * 8)).map(lambda a: a.view(dtype))
)


@given(raw | nps.arrays(bool, st.integers(0, 20)), st.sampled_from(DTYPES))
def test_both_encode_the_same_bits(values, field):
    """Whatever the bits, NaNs with a payload too: the same tokens and the same refusals."""
    tokens, bad = reference_tokens.encode(values, *slot(field)[1:5])
    expected = ([], True) if bad >= 0 else (tokens.tolist(), False)

    for kernels in IMPLEMENTATIONS:
        assert encoded(kernels, values, slot(field)) == expected


# Recording ----------------------------------------------------------------------------------------------------

FIELDS = [slot("float64", SEQUENCE, (None,), "a"), slot("int64", SEQUENCE, (None,), "b"), slot("int8", SCALAR, (), "c")]


def with_ordinals(writes: Any) -> list[tuple[int, int, int, list[int]]]:
    """Field-writes (step, type, tokens) with the numbers of their steps."""
    order = [step for step, _ in groupby(writes, key=lambda write: write[0])]
    return [(order.index(step), step, type_, list(tokens)) for step, type_, tokens in writes]


@st.composite
def batches_of_writes(draw: Any) -> list[list[tuple[int, int, list[int]]]]:
    """Field-writes in order, in a few appends, of which each may go on with the step of the one before."""
    jumps = draw(
        st.lists(st.tuples(st.sampled_from([0, 0, 1, 2, 2**40]), st.integers(0, 2), st.integers(0, 5)), max_size=20)
    )
    writes: list[tuple[int, int, list[int]]] = []
    step, last = draw(st.integers(0, 3)), -1
    for jump, type_, length in jumps:
        if jump == 0 and type_ <= last:
            jump = 1
        step, last = step + jump, type_
        writes.append((step, type_, [len(writes) * 10 + i - 60 for i in range(length)]))
    cuts = sorted(draw(st.lists(st.integers(0, len(writes)), max_size=3)))
    return [writes[a:b] for a, b in zip([0, *cuts], [*cuts, len(writes)], strict=True)]


def record(recorder: Any, writes: list[tuple[int, int, list[int]]]) -> None:
    recorder.record(
        numbers([step for step, _, _ in writes]),
        numbers([type_ for _, type_, _ in writes]),
        numbers([len(tokens) for _, _, tokens in writes]),
        numbers([one for _, _, tokens in writes for one in tokens]),
    )


@each_kind
@given(batches_of_writes())
def test_field_writes_are_recorded(kernels, batches):
    """Data, types, index and counters say the same after each append, however the writes are cut into appends."""
    lanes = Lanes(kernels, FIELDS)
    so_far: list[Any] = []
    for batch in batches:
        record(lanes.recorder, batch)

        so_far += batch
        expected = with_ordinals(so_far)
        recorder = lanes.recorder
        assert lanes.writes == expected
        if so_far:
            assert (recorder.n_rows, recorder.n_steps) == (len(so_far), expected[-1][0] + 1)
            assert (recorder.last_step, recorder.last_type) == so_far[-1][:2]
            before = [tokens for ordinal, _, _, tokens in expected if ordinal < expected[-1][0]]
            assert recorder.step_start == sum(map(len, before))
            assert kernels.load_word(lanes.head, PUBLISHED) == len(so_far)


@each_kind
@pytest.mark.parametrize(
    ("steps", "types", "lengths", "tokens"),
    [
        ([0], [3], [1], [1]),
        ([0], [-1], [1], [1]),
        ([0], [0], [2], [1]),
        ([0], [0], [0], [1]),
        ([0, 0], [0, 1], [2, -1], [1]),
        ([0, 0], [0], [1, 0], [1]),
        ([0, 0], [0, 1], [1], [1]),
        ([], [], [], [1]),
        ([0], [0], [401], [1] * 401),
        ([0] * 4, [0, 1, 2, 2], [2**62] * 4, []),
        (range(200), [0] * 200, [0] * 200, []),
    ],
)
def test_writes_that_do_not_add_up_are_refused(kernels, steps, types, lengths, tokens):
    """Before anything is written: too many for the lanes, unknown types, lengths that are not those of the tokens."""
    lanes = Lanes(kernels, FIELDS)
    record(lanes.recorder, [(0, 0, [7])])
    before = lanes.state

    with pytest.raises(IndexError):
        lanes.recorder.record(numbers(steps) + 1, numbers(types), numbers(lengths), numbers(tokens))

    assert lanes.state == before


@each_kind
def test_the_lanes_may_be_filled_to_the_last_token_and_row(kernels):
    """Four tokens, and two rows with the one behind them."""
    lanes = Lanes(kernels, FIELDS, n_tokens=4, n_rows=3)

    record(lanes.recorder, [(0, 0, [1, 2, 3]), (1, 1, [4])])

    assert lanes.writes == [(0, 0, 0, [1, 2, 3]), (1, 1, 1, [4])]
    with pytest.raises(IndexError):
        record(lanes.recorder, [(2, 0, [])])


@st.composite
def columns(draw: Any) -> tuple[int, int, list[tuple[int, list[list[int]], list[bool] | None, bool]]]:
    """Rows, the gap before the first, and for each column its type, rows of numbers, which are there, and if ragged."""
    n = draw(st.integers(1, 9))
    chosen = []
    for type_ in sorted(draw(st.sets(st.integers(0, 2), min_size=1))):
        is_ragged = draw(st.booleans())
        width = draw(st.integers(0, 4))
        rows = [[100 * type_ + i - 120] * (draw(st.integers(0, 4)) if is_ragged else width) for i in range(n)]
        present = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
        chosen.append((type_, rows, present, is_ragged))
    return n, draw(st.integers(0, 2)), chosen


def column_tuple(type_: int, rows: list[list[int]], present: list[bool] | None, is_ragged: bool) -> tuple[Any, ...]:
    flat = np.array([one for row in rows for one in row], np.int16)
    offsets = numbers(np.cumsum([0, *map(len, rows)])) if is_ragged else None
    here = None if present is None else np.array(present, np.uint8)
    return type_, flat, -1 if is_ragged else len(rows[0]), offsets, here


@each_kind
@given(st.lists(columns(), max_size=3))
def test_columns_are_recorded_a_step_a_row(kernels, batches):
    """Even, ragged, empty and missing rows; the first row may go on with the last step."""
    lanes = Lanes(kernels, [slot("float64"), slot("int64"), slot("int16")])
    expected: list[tuple[int, int, list[int]]] = []
    next_step, last = 0, (-1, -1)
    for n, gap, chosen in batches:
        first = next_step + gap - 1 if expected and chosen[0][0] > last[1] else next_step + gap
        steps = [first + i for i in range(n)]

        bad = lanes.recorder.record_columns(numbers(steps), [column_tuple(*column) for column in chosen])

        assert bad == -1
        for i, step in enumerate(steps):
            for type_, rows, present, _ in chosen:
                if present is None or present[i]:
                    expected.append((step, type_, [bits(one) if type_ == 0 else one for one in rows[i]]))
        next_step = steps[-1] + 1
        last = expected[-1][:2] if expected else last
    assert lanes.writes == with_ordinals(expected)
    if expected:
        assert (lanes.recorder.last_step, lanes.recorder.last_type) == expected[-1][:2]
        before = [tokens for step, _, tokens in expected if step < expected[-1][0]]
        assert lanes.recorder.step_start == sum(map(len, before))
        assert kernels.load_word(lanes.head, PUBLISHED) == len(expected)


@each_kind
@given(st.integers(1, 3_000), st.integers(0, 3), st.integers(1, 700))
def test_many_even_rows_are_recorded_in_blocks(kernels, n, width, wide):
    """However many rows make a block, each number lands in its own row."""
    n = min(n, 40_000 // (width + wide))
    lanes = Lanes(kernels, [slot("float64"), slot("int64")], n_tokens=n * (width + wide), n_rows=2 * n + 1)
    left, right = np.arange(n * width, dtype=np.float32), np.arange(n * wide)

    assert (
        lanes.recorder.record_columns(np.arange(n), [(0, left, width, None, None), (1, right, wide, None, None)]) == -1
    )

    rows = lanes.data[: n * (width + wide)].reshape(n, -1)
    assert np.array_equal(rows[:, :width].view(np.float64).reshape(-1), left)
    assert np.array_equal(rows[:, width:].reshape(-1), right)
    assert np.array_equal(lanes.types[: rows.size].reshape(rows.shape), np.tile([0] * width + [1] * wide, (n, 1)))
    starts = np.arange(n)[:, None] * (width + wide) + [0, width]
    assert np.array_equal(lanes.index[: 2 * n, 0], starts.reshape(-1))
    assert np.array_equal(lanes.index[: 2 * n, 1], (np.arange(n)[:, None] * 256 + [0, 1]).reshape(-1))
    assert np.array_equal(lanes.index[: 2 * n, 2], np.repeat(np.arange(n), 2))


@each_kind
@given(st.integers(1, 40), st.integers(0, 39), st.booleans(), st.integers(0, 1))
def test_a_column_that_does_not_fit_is_named_and_nothing_is_written(kernels, n, row, is_ragged, which):
    """Wherever the bad number is, and however far the good ones before it came."""
    lanes = Lanes(kernels, [slot("int8"), slot("int8")])
    record(lanes.recorder, [(0, 0, [7])])
    before = lanes.state
    values = [np.ones(n, np.int64), np.ones(n, np.int64)]
    values[which][row % n] = 300
    offsets = numbers(range(n + 1)) if is_ragged else None

    bad = lanes.recorder.record_columns(np.arange(1, n + 1), [(i, values[i], 1, offsets, None) for i in (0, 1)])

    assert bad == which
    assert lanes.state == before


@each_kind
def test_a_bad_number_in_a_row_that_is_left_out_does_no_harm(kernels):
    """Behind a null there may be anything."""
    lanes = Lanes(kernels, [slot("int8")])
    present = np.array([1, 0, 1], np.uint8)

    assert lanes.recorder.record_columns(np.arange(3), [(0, numbers([1, 300, 2]), 1, None, present)]) == -1

    assert lanes.writes == [(0, 0, 0, [1]), (1, 2, 0, [2])]


ONES = np.ones(4)


@each_kind
@pytest.mark.parametrize(
    "column",
    [
        (0, ONES, 2, None, None),
        (0, ONES, -1, None, None),
        (0, ONES[:3], 1, None, None),
        (0, ONES[:0], 2**62, None, None),
        (2, ONES, 1, None, None),
        (-1, ONES, 1, None, None),
        (0, ONES, 1, None, np.ones(3, np.uint8)),
        (0, ONES, 1, None, np.ones(5, np.uint8)),
        (0, ONES, -1, numbers([0, 1, 2, 4]), None),
        (0, ONES, -1, numbers([0, 1, 2, 3, 3, 4]), None),
        (0, ONES, -1, numbers([1, 1, 2, 3, 4]), None),
        (0, ONES, -1, numbers([0, 1, 2, 3, 5]), None),
        (0, ONES, -1, numbers([0, 3, 2, 3, 4]), None),
        (0, ONES, -1, numbers([0, 2**62, 2**62, 3, 4]), None),
        (0, ONES, -1, numbers([0, -5, 2, 3, 4]), None),
    ],
)
def test_columns_that_do_not_add_up_are_refused(kernels, column):
    """A wrong size, an unknown type, offsets from nowhere: nothing is read and nothing written."""
    lanes = Lanes(kernels, [slot("float64"), slot("float64")])
    before = lanes.state

    with pytest.raises(IndexError):
        lanes.recorder.record_columns(np.arange(4), [(1, ONES, 1, None, None), column])

    assert lanes.state == before


@each_kind
def test_columns_without_room_are_refused(kernels):
    """One token or one row too many."""
    for n_tokens, n_rows in ((7, 100), (8, 4)):
        lanes = Lanes(kernels, [slot("float64")], n_tokens=n_tokens, n_rows=n_rows)
        with pytest.raises(IndexError):
            lanes.recorder.record_columns(np.arange(4), [(0, np.ones(8), 2, None, None)])
        assert lanes.writes == []


@each_kind
def test_no_rows_and_no_columns_write_nothing(kernels):
    """And are no mistake."""
    lanes = Lanes(kernels, FIELDS)
    before = lanes.state

    record(lanes.recorder, [])
    assert lanes.recorder.record_columns(numbers([]), [(0, ONES[:0], 3, None, None)]) == -1
    assert lanes.recorder.record_columns(numbers([5]), []) == -1

    assert lanes.state == before


@each_kind
def test_what_is_held_is_published_when_it_is_let_out(kernels):
    """Several appends in one store of one word."""
    lanes = Lanes(kernels, FIELDS)
    record(lanes.recorder, [(0, 0, [1])])
    lanes.recorder.is_held = True
    record(lanes.recorder, [(1, 0, [2])])
    lanes.recorder.record_columns(numbers([2]), [(1, numbers([3]), 1, None, None)])
    held = kernels.load_word(lanes.head, PUBLISHED)

    lanes.recorder.is_held = False
    lanes.recorder.let_out()

    assert (held, kernels.load_word(lanes.head, PUBLISHED)) == (1, 3)


@each_kind
@given(st.integers(1, 12), st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=15))
def test_a_bounded_stream_lets_whole_steps_go(kernels, max_tokens, steps):
    """The fewest of the oldest, so that the rest fits; the first row is published too."""
    steps = [lengths for lengths in steps if sum(lengths) <= max_tokens]
    lanes = Lanes(kernels, FIELDS, max_tokens=max_tokens)
    kernels.store_word(lanes.head, FIRST, 0)
    for number, lengths in enumerate(steps):
        record(lanes.recorder, [(number, type_, [1] * length) for type_, length in enumerate(lengths)])

        kept = number + 1
        while kept > 0 and sum(map(sum, steps[kept - 1 : number + 1])) <= max_tokens:
            kept -= 1
        rows, tokens = sum(map(len, steps[:kept])), sum(map(sum, steps[:kept]))
        # Steps without a token at the very front cost nothing and may stay or go with the one before them.
        assert lanes.recorder.first_token == tokens
        assert lanes.recorder.first_row == kernels.load_word(lanes.head, FIRST) <= rows


def test_a_bounded_stream_asks_to_be_trimmed_once_it_is_worth_it():
    """The compiled ``append`` calls ``trim`` when the first token that is kept has come to ``trim_at``."""
    for kernels in COMPILED:
        lanes = Lanes(kernels, FIELDS, max_tokens=4, trim_at=6)
        asked = []
        for step in range(7):
            lanes.recorder.append(step, ["a"], [[1.0, 2.0]])
            asked.append(lanes.n_trims)

        assert asked == [0, 0, 0, 0, 1, 1, 1]
        assert lanes.left == []


def test_a_step_beyond_the_bound_is_left_to_the_slow_way():
    """Wherever it is in the append, and also where it is the last step that grows."""
    for kernels in COMPILED:
        for way in (
            ([1, 2], ["a", "a"], [[1.0] * 5, [2.0]]),
            ([1, 2], ["a", "a"], [[1.0], [2.0] * 5]),
            ([1, 1], ["a", "b"], [[1.0] * 3, [2] * 2]),
            (0, ["b"], [[1, 2, 3]]),
        ):
            lanes = Lanes(kernels, FIELDS, max_tokens=4)
            lanes.recorder.append(0, ["a"], [[1.0, 2.0]])
            before = lanes.state
            lanes.recorder.append(*way)
            assert lanes.left == [way]
            assert lanes.state == before


def test_usual_values_need_no_decision():
    """What every agent appends at each step never leaves the compiled half; a field that was only named too, once it
    is decided."""
    for kernels in COMPILED:
        lanes = Lanes(kernels, [slot("float64", UNDECIDED, (), "a"), slot("float64", UNDECIDED, (), "b"), *FIELDS[2:]])
        lanes.recorder.set_kind(0, SCALAR)
        lanes.recorder.set_kind(1, SEQUENCE)
        observations = [np.ones(4), np.ones(4, np.float32), np.arange(8)[::2], [1.0, 2.0], (1, 2), np.empty(0), []]
        for step, observation in enumerate(observations):
            lanes.recorder.append([step] * 3, ["a", "b", "c"], [0.5, observation, True])

        assert lanes.left == []
        assert [len(tokens) for _, _, type_, tokens in lanes.writes if type_ == 1] == [4, 4, 4, 2, 2, 0, 0]


@each_kind
@pytest.mark.parametrize(
    ("steps", "names", "values"),
    [
        ([0], ["a"], [1.0]),
        ([0], ["z"], [[1.0]]),
        ([0], [5], [[1.0]]),
        ([0], ["c"], [[1]]),
        ([0], ["c"], [128]),
        ([0], ["c"], ["1"]),
        ([0], ["c"], [None]),
        ([0, 0], ["b", "a"], [[1], [1]]),
        ([0, 0], ["a", "a"], [[1], [1]]),
        ([1, 0], ["a", "a"], [[1], [1]]),
        ([-1], ["a"], [[1]]),
        ([2**63], ["a"], [[1]]),
        ([1.0], ["a"], [[1]]),
        (1.0, ["a"], [[1]]),
        (True, ["a"], [[1]]),
        ([np.True_], ["a"], [[1]]),
        ([0, 0], ["a"], [[1]]),
        ([0], ["a", "b"], [[1]]),
        ([0], ["a"], [[1], [2]]),
        ([0], ["a"], [np.ones((2, 2))]),
        ([0], ["a"], [np.ones(1, ">f8")]),
        ([0], ["a"], [np.ones(1, complex)]),
        ([0], ["a"], [np.ones(401)]),
        ([0], ["a"], [[1.0] * 401]),
        ([0], "a", [[1]]),
        ("0", ["a"], [[1]]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_not_usual_is_left_to_the_slow_way(kernels, steps, names, values):
    """With the arguments as they came and nothing written."""
    lanes = Lanes(kernels, FIELDS)
    record(lanes.recorder, [(0, 0, [])] if steps == [1, 0] else [])
    before = lanes.state

    lanes.recorder.append(steps, names, values)

    assert len(lanes.left) == 1
    assert all(one is other for one, other in zip(lanes.left[0], (steps, names, values), strict=True))
    assert lanes.state == before


@each_kind
def test_a_busy_or_detached_recorder_writes_nothing(kernels):
    """While a slow append is under way, and after the files are closed."""
    lanes = Lanes(kernels, FIELDS)
    lanes.recorder.is_busy = True
    lanes.recorder.append([0], ["b"], [[1]])
    lanes.recorder.detach()
    lanes.recorder.append([0], ["b"], [[1]])

    assert len(lanes.left) == 2
    with pytest.raises(IndexError):
        record(lanes.recorder, [(0, 0, [1])])
    assert (lanes.data == GUARD).all()


class FileLanes(Lanes):
    """Lanes that are maps of files, full of a pattern where nothing was written; at the end of each lies a guard."""

    def __init__(self, kernels: ModuleType, folder: Path, flags: int, n_tokens: int = 1 << 17) -> None:
        super().__init__(kernels, [slot("int64")])
        for name, n_bytes in (("data", n_tokens * 8), ("types", n_tokens), ("index", n_tokens * 24)):
            (folder / name).write_bytes(b"\x77" * (n_bytes + 4096))
        self.data = np.memmap(folder / "data", np.int64, "r+", shape=(n_tokens,))
        self.types = np.memmap(folder / "types", np.uint8, "r+", shape=(n_tokens,))
        self.index = np.memmap(folder / "index", np.int64, "r+", shape=(n_tokens, 3))
        self.files = [os.open(folder / name, flags) for name in ("data", "types", "index")]
        self.begin()

    def begin(self) -> None:
        """Take a recorder that only knows how far the lanes reach, as where a stream is opened again."""
        before = {name: getattr(self.recorder, name) for name in ("n_rows", "n_tokens", "n_steps", "last_step")}
        self.recorder = self.kernels.Recorder([slot("int64")], self.refuse, lambda: None)
        for name, number in before.items():
            setattr(self.recorder, name, number)
        self.recorder.attach(self.data, self.types, self.index, self.head, tuple(self.files))
        self.recorder.is_busy = False

    @staticmethod
    def refuse(*given: Any) -> None:
        raise AssertionError("left to the slow way")

    def close(self) -> None:
        for fd in self.files:
            os.close(fd)


WAYS_TO_RECORD = ["one at a time", "checked before", "in columns", "in ragged columns", "each in turn"]


def record_tokens(recorder: Any, way: str, low: int, high: int) -> None:
    """Record steps low to high, each of one token, its own number."""
    steps = np.arange(low, high)
    zeros, ones = np.zeros_like(steps), np.ones_like(steps)
    if way == "one at a time":
        for step in range(low, high):
            recorder.append(step, ["x"], [step])
    elif way == "checked before":
        recorder.record(steps, zeros, ones, steps)
    else:
        ends = np.arange(len(steps) + 1) if way == "in ragged columns" else None
        assert recorder.record_columns(steps, [(0, steps, 1 if ends is None else -1, ends, None)]) == -1


@pytest.mark.skipif(not COMPILED, reason="only compiled kernels bring pages along")
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDONLY], ids=["writable", "refused by the system"])
@pytest.mark.parametrize("way", WAYS_TO_RECORD)
def test_pages_are_brought_along_without_touching_what_is_written(tmp_path, way, flags):
    """Before, inside and behind what is recorded: zeros go to free space alone, whatever the way to record."""
    lanes = FileLanes(COMPILED[0], tmp_path, flags)
    edges = [0, 1, 2, 700, 8_190, 8_193, 20_000, 65_536, 100_000, (1 << 17) - 1]
    ways = WAYS_TO_RECORD[:-1] if way == "each in turn" else [way]

    for i, (low, high) in enumerate(pairwise(edges)):
        if i % 3 == 0:
            lanes.begin()
        record_tokens(lanes.recorder, ways[i % len(ways)], low, high)
        assert (lanes.data[:high] == np.arange(high)).all()
        assert not lanes.types[:high].any()
        assert (lanes.index[:high, 0] == np.arange(high)).all()
        assert lanes.index[high, 0] == high

    lanes.close()
    guards = [(tmp_path / name).read_bytes()[-4096:] for name in ("data", "types", "index")]
    assert guards == [b"\x77" * 4096] * 3


def test_the_length_is_published_behind_everything_it_covers(monkeypatch):
    """In the reference, which shows the order that the compiled half keeps: what a reader may see never changes."""
    lanes, store_word = Lanes(reference_tokens, [slot("int64")]), reference_tokens.store_word
    seen: list[tuple[int, list[int]]] = []

    def tokens_of(n_rows: int) -> list[int]:
        return [n_rows, *lanes.index[:n_rows].reshape(-1).tolist(), *lanes.data[: lanes.index[n_rows, 0]].tolist()]

    def noting(head: Any, word: int, number: int) -> None:
        seen.append((number, tokens_of(number)))
        store_word(head, word, number)

    monkeypatch.setattr(reference_tokens, "store_word", noting)
    for step in range(3):
        record(lanes.recorder, [(step, 0, [step, step + 10])])

    assert seen == [(n_rows, tokens_of(n_rows)) for n_rows in (1, 2, 3)]


# Crashes that were met ----------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(("type_", "kind"), [(-1, SCALAR), (1, SCALAR), (300, SCALAR), (10**6, SCALAR)])
def test_the_kind_of_a_field_that_is_not_there_is_refused(kernels, type_, kind):
    """There is one field."""
    recorder = kernels.Recorder([slot("float64", UNDECIDED)], print, print)
    with pytest.raises(IndexError):
        recorder.set_kind(type_, kind)


@each_kind
def test_more_fields_than_a_type_can_number_are_refused(kernels):
    """256 are many enough."""
    assert kernels.Recorder([slot("int8", name=f"f{i}") for i in range(256)], print, print).n_rows == 0
    with pytest.raises(IndexError):
        kernels.Recorder([slot("int8", name=f"f{i}") for i in range(257)], print, print)


@each_kind
def test_columns_whose_size_overflows_are_refused(kernels):
    """8 rows of 2**61 numbers are 2**64 numbers, which is 0 to a careless multiplication."""
    lanes = Lanes(kernels, [slot("float64")])
    with pytest.raises(IndexError):
        lanes.recorder.record_columns(np.arange(8), [(0, np.empty(0), 2**61, None, None)])
    with pytest.raises(IndexError):
        kernels.search(np.zeros(8, np.int64), 4, 0, 0, 2**62, numbers([1, 5]), numbers([0, 0]))


@each_kind
def test_a_head_that_is_too_small_is_refused(kernels):
    """The words that are published must lie in it."""
    recorder = kernels.Recorder([slot("float64")], print, print)
    with pytest.raises(IndexError):
        recorder.attach(
            np.zeros(8, np.int64), np.zeros(8, np.uint8), np.zeros((8, 3), np.int64), np.zeros(16, np.int64)
        )


@each_kind
def test_letting_out_without_lanes_is_refused(kernels):
    """Never attached, or detached."""
    recorder = kernels.Recorder([slot("float64")], print, print)
    with pytest.raises(IndexError):
        recorder.let_out()
    lanes = Lanes(kernels, FIELDS)
    lanes.recorder.detach()
    with pytest.raises(IndexError):
        lanes.recorder.let_out()


# The head page ------------------------------------------------------------------------------------------------


@each_kind
def test_sealed_words_are_pinned(kernels):
    """The words of the head page are part of the file format: changing these values is a decision."""
    head = np.zeros(4, np.int64)
    for word, number in enumerate((0, 1, 1_000_000, 2**48 - 1)):
        kernels.store_word(head, word, number)

    assert [hex(word) for word in head.view(np.uint64).tolist()] == PINNED
    assert [kernels.load_word(head, word) for word in range(4)] == [0, 1, 1_000_000, 2**48 - 1]


PINNED = ["0x9e37000000000000", "0xb883000000000001", "0x93800000000f4240", "0xf054ffffffffffff"]


@each_kind
@given(st.integers(0, 2**48 - 1), st.integers(0, 511), st.integers(0, 511))
def test_a_flipped_bit_of_a_sealed_word_is_seen(kernels, number, word, other):
    """Any one of the 64; a word of zeros is no number, and one that was meant for another place is none here."""
    head = np.zeros(512, np.int64)
    assert kernels.load_word(head, word) == -1

    kernels.store_word(head, word, number)

    assert kernels.load_word(head, word) == number
    assert np.flatnonzero(head).tolist() == [word]
    sealed = head[word].copy()
    for bit in range(64):
        head[word] = sealed ^ np.uint64(1 << bit).view(np.int64)
        assert kernels.load_word(head, word) == -1
    head[other] = sealed
    assert kernels.load_word(head, other) == (number if other == word else -1)


@each_kind
@pytest.mark.parametrize("word", [-1, 4, 2**61, -(2**63), 2**63 - 1])
def test_words_outside_of_the_page_are_refused(kernels, word):
    """Neither read nor written."""
    whole = np.full(12, GUARD)
    with pytest.raises(IndexError):
        kernels.load_word(whole[4:8], word)
    with pytest.raises(IndexError):
        kernels.store_word(whole[4:8], word, 5)
    assert (whole == GUARD).all()


# Reading ------------------------------------------------------------------------------------------------------

N = 700
DATA = np.arange(N) * 1_000_003
TYPES = (np.arange(N) * 151 % 256).astype(np.uint8)


def read(kernel: Any, first: int, end: int, places: np.ndarray, width: int, n: int, with_types: bool = True) -> Any:
    """What a reading kernel answers: the bad place and both outs; nothing may be written behind them."""
    values, types = np.full(n + 4, GUARD), np.full(n + 4, GUARD)
    outs = (values[:n], types[:n]) if with_types else (values[:n], None)
    bad = kernel(DATA, TYPES if with_types else None, first, end, places, width, *outs)
    assert (values[n:] == GUARD).all()
    assert (types[n if with_types else 0 :] == GUARD).all()
    return bad, values[:n].tolist(), types[:n].tolist()


bounds = st.tuples(st.integers(0, N), st.integers(0, N)).map(sorted)


@each_kind
@given(bounds, st.integers(0, 300), st.lists(st.integers(-10, N + 10) | int64s, max_size=12), st.booleans())
def test_windows_are_copied(kernels, bounds, width, starts, with_types):
    """From every start that leaves room for one; otherwise the first bad one is named."""
    first, end = bounds

    bad, values, types = read(kernels.windows, first, end, numbers(starts), width, len(starts) * width, with_types)

    wrong = [i for i, start in enumerate(starts) if not first <= start <= end - width]
    assert bad == (wrong[0] if wrong else -1)
    if not wrong:
        positions = [start + i for start in starts for i in range(width)]
        assert values == DATA[positions].tolist()
        assert not with_types or types == TYPES[positions].tolist()


@each_kind
@given(bounds, st.integers(1, 20), st.data())
def test_windows_inside_are_found(kernels, bounds, width, data):
    """As above with starts that are all good, in any shape."""
    first, end = bounds
    if end - first < width:
        return
    starts = numbers(data.draw(st.lists(st.integers(first, end - width), min_size=6, max_size=6)))
    positions = (starts[:, None] + np.arange(width)).reshape(-1)
    for shape in ((6,), (2, 3), (1, 6, 1)):
        bad, values, types = read(kernels.windows, first, end, starts.reshape(shape), width, 6 * width)
        assert (bad, values, types) == (-1, DATA[positions].tolist(), TYPES[positions].tolist())
    assert read(kernels.windows, first, end, starts[0].reshape(()), width, width)[1] == values[:width]


@st.composite
def rows_of_places(draw: Any) -> tuple[int, int, int, list[list[int]]]:
    """Bounds, and rows of one width: runs anywhere and over the edges, counted from either end, and single places."""
    first, end = draw(bounds | st.just([0, N]))
    width = draw(st.integers(1, 8) | st.sampled_from([255, 256, 257, 300]))
    edges = st.sampled_from([first, end, 0]).flatmap(lambda edge: st.integers(edge - width - 1, edge + 1))
    inside = st.integers(first, max(first, end - width))
    begins = inside | edges | edges.map(lambda begin: begin - end) | inside.map(lambda begin: begin - end) | int64s
    runs = begins.map(lambda begin: [_wrapped(begin + i) for i in range(width)])
    few = st.lists(st.integers(-N - 3, N + 3) | st.integers(-N, N - 1), min_size=width, max_size=width)
    return first, end, width, draw(st.lists(runs | few if width < 10 else runs, max_size=7))


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


@each_kind
@given(rows_of_places(), st.booleans())
def test_single_tokens_are_taken(kernels, places, with_types):
    """Negative places count from the end, rows that are runs too; the first bad place is named, as in a plain loop."""
    first, end, width, rows = places
    flat = [place for row in rows for place in row]

    bad, values, types = read(kernels.take, first, end, numbers(rows), width, len(flat), with_types)

    places = [place + end if place < 0 else place for place in flat]
    wrong = [i for i, place in enumerate(places) if not first <= place < end]
    assert bad == (wrong[0] if wrong else -1)
    if not wrong:
        assert values == DATA[places].tolist()
        assert not with_types or types == TYPES[places].tolist()


@each_kind
@pytest.mark.parametrize(
    "places", [[2**63 - 1, -(2**63)], [2**63 - 2, 2**63 - 1], [-(2**63), -(2**63) + 1], [-(2**63)], [2**63 - 1]]
)
def test_places_at_the_ends_of_the_numbers_are_refused(kernels, places):
    """Sums that overflow once read far outside."""
    assert read(kernels.take, 0, N, numbers(places), len(places), len(places))[0] == 0
    assert read(kernels.windows, 0, N, numbers(places), 3, 3 * len(places))[0] == 0


@each_kind
def test_reading_with_sizes_that_do_not_fit_is_refused(kernels):
    """Whichever array is too small, nothing is read or written outside of it."""
    three, out = numbers([0, 1, 2]), np.full(20, GUARD)
    for call in (
        lambda: kernels.windows(DATA, TYPES, 0, N, three, 2, out[:5], out[:6]),
        lambda: kernels.windows(DATA, TYPES, 0, N, three, 2, out[:6], out[:5]),
        lambda: kernels.windows(DATA, TYPES, 0, N + 1, three, 2, out[:6], out[:6]),
        lambda: kernels.windows(DATA, TYPES[:-1], 0, N, three, 2, out[:6], out[:6]),
        lambda: kernels.windows(DATA, None, -1, N, three, 2, out[:6], None),
        lambda: kernels.windows(DATA, None, 0, N, three, -1, out[:6], None),
        lambda: kernels.take(DATA, TYPES, 0, N, three, 3, out[:2], out[:3]),
        lambda: kernels.take(DATA, TYPES, 0, N, three, 3, out[:3], out[:2]),
        lambda: kernels.take(DATA, TYPES, 0, N + 1, three, 3, out[:3], out[:3]),
        lambda: kernels.take(DATA, TYPES[:-1], 0, N, three, 3, out[:3], out[:3]),
        lambda: kernels.take(DATA, None, -1, N, three, 3, out[:3], None),
        lambda: kernels.take(DATA, None, 0, N, three, 2, out[:3], None),
        lambda: kernels.take(DATA, None, 0, N, three, 0, out[:3], None),
        lambda: kernels.take(DATA, None, 0, N, three, -3, out[:3], None),
    ):
        with pytest.raises(IndexError):
            call()
        assert (out == GUARD).all()


@each_kind
def test_larger_outs_are_filled_as_far_as_needed(kernels):
    """The rest of them stays."""
    out = np.full(9, GUARD)

    assert kernels.windows(DATA, None, 0, N, numbers([5]), 3, out, None) == -1
    assert kernels.take(DATA, None, 0, N, numbers([8]), 1, out[4:], None) == -1
    kernels.search(DATA, 1, 0, 0, N, DATA[[7]], out[6:])

    assert out.tolist() == [*DATA[5:8].tolist(), GUARD, int(DATA[8]), GUARD, 7, GUARD, GUARD]


# Searching ----------------------------------------------------------------------------------------------------

sorted_columns = st.one_of(
    st.lists(int64s, max_size=60),
    st.lists(st.integers(0, 8), max_size=60),
    st.integers(0, 300).map(lambda n: list(range(0, 7 * n, 7))),
    st.lists(st.integers(0, 60).map(lambda n: 2**n), max_size=60),
).map(sorted)


@each_kind
@given(sorted_columns, st.integers(1, 3), st.data())
def test_the_first_row_not_below_a_key_is_found(kernels, column, n_columns, data):
    """In any sorted column, with values that stand twice, in part of it, between other columns."""
    which = data.draw(st.integers(0, n_columns - 1))
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(column))] * 2)))
    near = st.sampled_from(column).flatmap(lambda n: st.integers(max(n - 1, -(2**63)), min(n + 1, 2**63 - 1)))
    keys = data.draw(st.lists(int64s | near if column else int64s, max_size=20))
    table = np.full((len(column), n_columns), GUARD)
    table[:, which] = column
    out = np.full(len(keys) + 1, -7)

    kernels.search(table, n_columns, which, low, high, numbers(keys), out[: len(keys)])

    expected = [low + sum(value < key for value in column[low:high]) for key in keys]
    assert out.tolist() == [*expected, -7]
    assert [kernels.search_one(table, n_columns, which, low, high, key) for key in keys] == expected


@each_kind
@given(
    st.lists(int64s | st.integers(-3, 3), min_size=1, max_size=50),
    st.lists(int64s | st.integers(-4, 4), max_size=20),
    st.data(),
)
def test_a_search_in_garbage_ends_inside(kernels, column, keys, data):
    """In a damaged index the answer may be any, but it is a row of the range, or the one behind it."""
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(column))] * 2)))
    out = np.full(len(keys), -7)

    kernels.search(numbers(column), 1, 0, low, high, numbers(keys), out)

    assert all(low <= row <= high for row in out.tolist())
    assert all(low <= kernels.search_one(numbers(column), 1, 0, low, high, key) <= high for key in keys)


@each_kind
@pytest.mark.parametrize(
    ("n_columns", "column", "low", "high"),
    [
        (3, 3, 0, 2),
        (3, -1, 0, 2),
        (3, 0, -1, 2),
        (3, 0, 2, 1),
        (3, 0, 0, 5),
        (1, 0, 0, 13),
        (0, 0, 0, 1),
        (-1, 0, 0, 1),
    ],
)
def test_searches_outside_of_the_table_are_refused(kernels, n_columns, column, low, high):
    """Four rows of three columns are there."""
    with pytest.raises(IndexError):
        kernels.search(np.arange(12), n_columns, column, low, high, numbers([1]), numbers([0]))
    with pytest.raises(IndexError):
        kernels.search_one(np.arange(12), n_columns, column, low, high, 1)


@each_kind
def test_a_search_without_room_for_its_answers_is_refused(kernels):
    """Nothing is written behind it."""
    out = np.full(4, GUARD)
    with pytest.raises(IndexError):
        kernels.search(np.arange(12), 3, 0, 0, 4, numbers([1, 2, 3]), out[:2])
    assert (out[2:] == GUARD).all()


@st.composite
def episodes(draw: Any) -> tuple[list[list[int]], int, int]:
    """The lengths of the steps of a few episodes, and the token and step before the first of them."""
    each = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=6))
    return each, draw(st.integers(0, 3)), draw(st.integers(0, 3))


@each_kind
@given(episodes(), st.integers(1, 3), st.booleans())
def test_starts_are_numbered_through_all_episodes(kernels, episodes, stride, is_sized):
    """Every step of every episode, the open one at the end too; or tokens that lie ``stride`` apart in each.

    Where all steps of an episode have as many tokens, the index need not be asked.
    """
    each, base_token, base_ordinal = episodes
    begins = (base_token + np.cumsum([0, *[length for steps in each for length in steps]])).tolist()
    n_steps = np.cumsum([0, *map(len, each)]).tolist()
    index = np.full((len(begins) + 1, 3), GUARD)
    index[1:, 0] = begins
    index[1:-1, 1] = (base_ordinal + np.arange(len(begins) - 1)) * 256 + 5
    ends = numbers([[begins[i], base_ordinal + i] for i in n_steps[1:-1]])
    edges = [(begins[i], begins[j]) for i, j in pairwise(n_steps)]
    tokens = [position for begin, end in edges for position in range(begin, end, stride)]
    counts = [len(range(begin, end, stride)) for begin, end in edges]
    for expected, totals, table in (
        (begins[:-1], n_steps[1:-1], index),
        (tokens, np.cumsum(counts)[:-1], None),
    ):
        out = np.full(len(expected) + 1, -7)
        chosen = np.arange(len(expected))[::-1].copy()
        alike = [min(steps) if min(steps) == max(steps) else 0 for steps in each]
        sizes = numbers(alike) * is_sized

        kernels.select_starts(
            numbers(totals), ends, base_token, base_ordinal, stride, table, sizes, 1, len(begins), chosen, out[:-1]
        )

        assert out.tolist() == [*expected[::-1], -7]


@each_kind
@given(st.lists(int64s, max_size=5), st.lists(int64s, min_size=24, max_size=24), st.lists(int64s, max_size=12))
def test_starts_from_garbage_come_from_the_index(kernels, totals, rows, chosen):
    """In a damaged stream they may be any of its starts, and nothing else is read."""
    index, ends = numbers(rows).reshape(8, 3), numbers([3] * 10)
    out = np.full(len(chosen), -7)

    kernels.select_starts(numbers(totals), ends, 0, 0, 1, index, np.zeros(9, np.int64), 2, 7, numbers(chosen), out)

    assert set(out.tolist()) <= set(index[2:, 0].tolist())


@each_kind
def test_starts_outside_of_the_index_are_refused(kernels):
    """Too few rows, none at all, no room for the answers, episodes without an end."""
    index, ends, out = np.zeros((8, 3), np.int64), numbers([[3, 1]]), np.full(4, GUARD)
    for call in (
        lambda: kernels.select_starts(
            numbers([1]), ends, 0, 0, 1, index, numbers([0, 0]), 0, 8, numbers([0, 1]), out[:2]
        ),
        lambda: kernels.select_starts(
            numbers([1]), ends, 0, 0, 1, index, numbers([0, 0]), -1, 7, numbers([0, 1]), out[:2]
        ),
        lambda: kernels.select_starts(
            numbers([1]), ends, 0, 0, 1, index, numbers([0, 0]), 5, 4, numbers([0, 1]), out[:2]
        ),
        lambda: kernels.select_starts(
            numbers([1]), ends, 0, 0, 1, index, numbers([0, 0]), 4, 4, numbers([0, 1]), out[:2]
        ),
        lambda: kernels.select_starts(
            numbers([1]), ends, 0, 0, 1, index, numbers([0, 0]), 0, 2**62, numbers([0, 1]), out[:2]
        ),
        lambda: kernels.select_starts(
            numbers([1, 2]), ends, 0, 0, 1, index, numbers([0, 0]), 0, 7, numbers([0, 1]), out[:2]
        ),
        lambda: kernels.select_starts(numbers([1]), ends, 0, 0, 1, None, None, 0, 0, numbers([0, 1]), out[:1]),
    ):
        with pytest.raises(IndexError):
            call()
        assert (out == GUARD).all()


SPANS = [1, 2, 3, 498, 2**31 + 1, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**62]


# Steps as columns ---------------------------------------------------------------------------------------------------


@st.composite
def recorded_steps(draw: Any) -> list[dict[int, list[int]]]:
    """Steps of up to four fields: mostly alike, as recorders write them, with others among them."""
    usual = draw(st.sampled_from([{0: 1, 1: 2}, {0: 1, 1: 2, 2: 1, 3: 3}, {2: 2}, {1: 2, 3: 0}]))
    other = st.dictionaries(st.integers(0, 3), st.integers(0, 3), min_size=1)
    lengths = draw(st.lists(st.one_of(st.just(usual), st.just(usual), st.just(usual), other), min_size=1, max_size=12))
    numbers = iter(range(1, 1000))
    return [{type_: [next(numbers) for _ in range(n)] for type_, n in sorted(step.items())} for step in lengths]


def laid_out(steps: list[dict[int, list[int]]], first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lanes of a stream with these steps, numbered from ``first``, behind one row that is none of it."""
    tokens = [number for step in steps for numbers_ in step.values() for number in numbers_]
    types = [type_ for step in steps for type_, numbers_ in step.items() for _ in numbers_]
    writes = [(type_, len(each), first + i) for i, step in enumerate(steps) for type_, each in step.items()]
    starts = np.cumsum([0, *(length for _, length, _ in writes)])
    index = np.full((len(writes) + 2, 3), GUARD)
    index[1:, 0] = starts
    index[1:-1, 1] = [type_ | ordinal << 8 for type_, _, ordinal in writes]
    return numbers([*tokens, GUARD]), np.array([*types, 9], np.uint8), index


@each_kind
@given(recorded_steps(), st.integers(0, 3), st.data())
def test_steps_are_gathered_as_columns(kernels, steps, first, data):
    """Of every sequence and field what a loop finds; places without a step stay as they are."""
    lanes = laid_out(steps, first)
    n_steps = data.draw(st.integers(1, 5))
    wanted = data.draw(st.lists(st.integers(0, 3), unique=True, max_size=4))
    begins = data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=20))
    skips = [data.draw(st.integers(0, n_steps - 1)) for _ in begins]
    counts = [
        data.draw(st.integers(0, min(n_steps - skip, len(steps) - i))) for i, skip in zip(begins, skips, strict=True)
    ]
    shape = (len(begins), n_steps)
    width = 3
    columns = [
        (type_, False, width, np.full((*shape, width), 77, dtype), np.zeros(shape, np.uint8), np.full(shape, -1))
        for type_, dtype in zip(wanted, (np.int64, np.int32, np.uint16, np.int8), strict=False)
    ]

    ids = numbers([first + i for i in begins])
    bad = kernels.gather_steps(*lanes, 1, len(lanes[2]) - 1, ids, numbers(counts), numbers(skips), n_steps, columns)

    assert bad == -1
    for type_, _, _, values, present, lengths in columns:
        for i, (begin, skip, count) in enumerate(zip(begins, skips, counts, strict=True)):
            for t in range(n_steps):
                here = steps[begin + t - skip].get(type_) if skip <= t < skip + count else None
                expected = np.full(width, 77, values.dtype)
                if here is not None:
                    expected[: len(here)] = np.array(here, np.int64).astype(values.dtype)
                assert values[i, t].tolist() == expected.tolist()
                assert (present[i, t], lengths[i, t]) == ((0, -1) if here is None else (1, len(here)))


@each_kind
@given(recorded_steps(), st.sampled_from([1, 2, 3]), st.data())
def test_the_first_step_without_a_field_of_the_width_is_named(kernels, steps, width, data):
    """Where neither presence nor lengths are asked for, every step has the field, as long as it should be."""
    lanes = laid_out(steps, 0)
    wanted = data.draw(st.lists(st.integers(0, 3), unique=True, min_size=1, max_size=4))
    n_steps = data.draw(st.integers(1, len(steps)))
    ids = np.arange(len(steps) - n_steps + 1)
    counts = np.full(len(ids), n_steps)
    columns = [(type_, False, width, np.zeros((len(ids), n_steps, width), np.int64), None, None) for type_ in wanted]

    bad = kernels.gather_steps(*lanes, 1, len(lanes[2]) - 1, ids, counts, 0 * ids, n_steps, columns)

    faults = [
        (i * n_steps + t) * len(wanted) + c
        for i in ids
        for t in range(n_steps)
        for c, type_ in enumerate(wanted)
        if len(steps[i + t].get(type_, [])) != width
    ]
    assert (bad in faults) if faults else bad == -1


# Steps in pairs ---------------------------------------------------------------------------------------------------

#: What a step is asked for: fields 0 (two numbers), 1 and 2 (a flag), then field 3 (two numbers) if its episode ends.
PLAIN, FINAL = numbers([[0, 0], [1, 2], [2, 3], [0, 4]]), numbers([[3, 0], [0, 2]])


@st.composite
def recorded_episodes(draw: Any) -> list[dict[int, list[int]]]:
    """Steps as recorders of experience write them, with others among them."""
    number = iter(range(1, 1000))
    kinds = st.sampled_from([*["goes on"] * 4, "ends", "ends", "given up", "lacks a field", "is wider", "not final"])
    steps = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=12)):
        step = {0: [next(number), next(number)], 1: [next(number)], 2: [int(kind in ("ends", "not final"))]}
        if kind in ("ends", "given up"):
            step[3] = [next(number), next(number)]
        if kind == "lacks a field":
            del step[draw(st.sampled_from([0, 1, 2]))]
        if kind == "is wider":
            step[1].append(next(number))
        steps.append(step)
    return steps


def behind(steps: list[dict[int, list[int]]], i: int, is_cut: bool) -> list[int] | None:
    """What was seen behind a step, or None if it, or what follows, is not laid out as expected."""
    step, after = steps[i], steps[i + 1] if i + 1 < len(steps) else {}
    if [len(step.get(type_, [])) for type_ in range(3)] != [2, 1, 1]:
        return None
    if step[2] == [1] or is_cut:
        return step.get(3)
    return None if 3 in step or len(after.get(0, [])) != 2 else after[0]


def pair_arguments(lanes: Any, ids: Any, columns: Any, **changed: Any) -> list[Any]:
    """Arguments of a gather of pairs, in order."""
    given = {"lanes": (lanes[0], lanes[2]), "first_row": 1, "n_rows": len(lanes[2]) - 1, "ids": numbers(ids)}
    given |= {"low": 0, "high": 100, "lost": numbers([]), "cuts": numbers([]), "plain": PLAIN, "final": FINAL}
    given |= {"n_next": 1, "flags": numbers([3, 0, -1, 0]), "columns": columns}
    given |= {"terminated": np.zeros(len(ids), np.uint8), "truncated": np.zeros(len(ids), np.uint8)} | changed
    return [*given.pop("lanes"), *given.values()]


@each_kind
@given(recorded_episodes(), st.integers(0, 3), st.data())
def test_steps_are_gathered_with_what_was_seen_behind_them(kernels, steps, first, data):
    """What a loop finds, up to the first that is lost or not laid out as expected, whose place is the answer."""
    chosen = data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=20))
    lost, cut = (data.draw(st.sets(st.integers(0, len(steps) - 1), max_size=2)) for _ in range(2))
    cut |= {i for i, step in enumerate(steps) if 3 in step and step.get(2) == [0] and data.draw(st.booleans())}
    n = len(chosen)
    now, after, action = np.zeros((n, 2), np.float64), np.zeros((n, 2), np.int64), np.zeros(n, np.uint16)
    terminated, truncated = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
    columns = [(0, -1, 2, True, now), (0, 0, 2, False, after), (2, -1, 1, False, action)]
    which = {"lost": numbers(sorted(first + i for i in lost)), "cuts": numbers(sorted(first + i for i in cut))}
    which |= {"terminated": terminated, "truncated": truncated}

    ids = [first + i for i in chosen]
    bad = kernels.gather_pairs(*pair_arguments(laid_out(steps, first), ids, columns, **which))

    expected = [None if i in lost else behind(steps, i, i in cut) for i in chosen]
    assert bad == (expected.index(None) if None in expected else -1)
    for place, i in enumerate(chosen[:bad] if bad >= 0 else chosen):
        assert now[place].view(np.int64).tolist() == steps[i][0]
        assert after[place].tolist() == expected[place]
        assert (action[place], terminated[place]) == (steps[i][1][0], steps[i][2][0])
        assert truncated[place] == (i in cut)


@each_kind
@pytest.mark.parametrize(("dtype", "kind"), [("int64", 0), ("float64", 1), ("float32", 2)])
def test_flags_are_compared_as_numbers_of_their_field(kernels, dtype, kind):
    """-0.0 is not set, NaN is, and what float32 rounds to zero is not."""
    values = {"int64": [0, 3], "float64": [-0.0, math.nan, 1e-60], "float32": [-0.0, math.nan, 1e-60]}[dtype]
    tokens = [value if dtype == "int64" else bits(value) for value in values]
    steps = [{0: [1, 2], 1: [3], 2: [each], 3: [4, 5]} for each in tokens]
    flags, out = numbers([3, kind, -1, 0]), np.zeros(1, np.uint8)

    for i, value in enumerate(np.array(values).astype(dtype)):
        ids = {"cuts": numbers([i]), "flags": flags, "terminated": out}
        assert kernels.gather_pairs(*pair_arguments(laid_out(steps, 0), [i], [], **ids)) == -1
        assert out[0] == (value != 0)


@each_kind
@pytest.mark.parametrize(
    "changed",
    [
        {"first_row": -1},
        {"n_rows": 99},
        {"low": -1},
        {"low": 101},
        {"high": 2**60},
        {"plain": PLAIN[-1:]},
        {"final": FINAL[-1:]},
        {"n_next": 4},
        {"flags": numbers([4, 0, -1, 0])},
        {"flags": numbers([3, 0, 4, 0])},
        {"flags": numbers([3, 0])},
        {"terminated": np.zeros(2, np.uint8)},
        {"truncated": np.zeros(0, np.uint8)},
        {"columns": [(-1, -1, 1, False, np.zeros(1))]},
        {"columns": [(3, -1, 2, False, np.zeros(2))]},
        {"columns": [(1, 0, 2, False, np.zeros(2))]},
        {"columns": [(0, 1, 2, False, np.zeros(2))]},
        {"columns": [(0, -1, 2, False, np.zeros(1))]},
    ],
)
def test_pairs_that_do_not_add_up_are_refused(kernels, changed):
    """Before anything is read or written outside of an array."""
    lanes, column = laid_out([{0: [1, 2], 1: [3], 2: [0]}] * 3, 0), (0, 0, 2, False, np.zeros((1, 2), np.int64))
    assert kernels.gather_pairs(*pair_arguments(lanes, [0], [column])) == -1
    with pytest.raises(IndexError):
        kernels.gather_pairs(*pair_arguments(lanes, [0], **{"columns": [column], **changed}))


@pytest.mark.skipif(not COMPILED, reason="what memory is read is up to the compiled kernels")
@given(st.lists(int64s | st.integers(0, 700), min_size=24, max_size=24), st.lists(st.integers(0, 99), max_size=9))
def test_pairs_in_garbage_are_read_from_nothing_but_the_lanes(rows, ids):
    """In a damaged stream the answer may be anything; what lies beside the lanes stays out of it."""
    index, out = numbers(rows).reshape(8, 3), np.zeros((len(ids), 2), np.int64)
    lanes = np.full(16, 5), None, index

    COMPILED[0].gather_pairs(*pair_arguments(lanes, ids, [(0, 0, 2, False, out)], first_row=2, n_rows=7))

    assert set(out.ravel().tolist()) <= {0, 5}


@each_kind
@given(recorded_steps(), st.integers(0, 3), st.data())
def test_sizes_are_those_of_steps_that_are_all_alike(kernels, steps, first, data):
    """As many tokens as a loop finds in each, where all have the same fields and lengths; else 0."""
    _, types, index = laid_out(steps, first)
    begins = 1 + np.cumsum([0, *map(len, steps)])
    ranges = [sorted(data.draw(st.lists(st.integers(0, len(steps)), min_size=2, max_size=2))) for _ in range(4)]
    out = np.full(5, GUARD)

    kernels.step_sizes(types, index, 1, len(index) - 1, begins[numbers(ranges)].ravel(), out[:4])

    for (low, high), size in zip(ranges, out[:4].tolist(), strict=True):
        shapes = [{type_: len(each) for type_, each in step.items()} for step in steps[low:high]]
        is_even = bool(shapes) and all(shape == shapes[0] for shape in shapes)
        is_clear = is_even and len(shapes[0]) > 1 and all(shapes[0].values())
        assert size == (sum(shapes[0].values()) if is_clear else 0)
    assert out[4] == GUARD


@each_kind
@pytest.mark.parametrize(
    ("first", "end", "edges"),
    [(1, 7, [0, 7]), (1, 7, [1, 8]), (1, 7, [5, 4]), (1, 9, [1, 2]), (-1, 7, [1, 2]), (1, 7, [1])],
)
def test_sizes_of_rows_outside_of_the_index_are_refused(kernels, first, end, edges):
    """Before anything is read."""
    _, types, index = laid_out([{0: [1], 1: [2, 3]}] * 3, 0)
    with pytest.raises(IndexError):
        kernels.step_sizes(types, index, first, end, numbers(edges), np.zeros(1, np.int64))


@each_kind
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_become_numbers_of_a_dtype(kernels, dtype):
    """Those of whole numbers by their value, those of floats by the bits of a float64."""
    is_float = dtype in FLOATS
    given = np.array([0, 1, 1, 0, 1]) if dtype == "bool" else np.array([0, 1, 100, 7, 3])
    tokens = (given * 1.5).view(np.int64) if is_float else given
    index = np.array([[0, 0, 0], [5, 0, 0]])
    out = np.zeros((1, 1, 5), dtype)
    column = (0, is_float, 5, out, None, None)
    lanes = np.ascontiguousarray(tokens), np.zeros(5, np.uint8), index

    if dtype == "float16":  # the caller reads float64 and rounds once
        with pytest.raises(TypeError):
            kernels.gather_steps(*lanes, 0, 1, numbers([0]), numbers([1]), numbers([0]), 1, [column])
        return
    assert kernels.gather_steps(*lanes, 0, 1, numbers([0]), numbers([1]), numbers([0]), 1, [column]) == -1
    assert out.ravel().tolist() == (given * 1.5 if is_float else given).astype(dtype).tolist()


def _sequence(**changed: Any) -> list[Any]:
    """Arguments of a gather that is right, but for what is changed."""
    lanes = laid_out([{0: [1], 1: [2, 3]}] * 3, 0)
    n = {"ids": numbers([0]), "counts": numbers([2]), "skips": numbers([1]), "n_steps": 3, "first_row": 1, "n_rows": 7}
    n.update({key: value for key, value in changed.items() if key != "column"})
    column = changed.get("column", (1, False, 2, np.zeros((1, 3, 2), np.int64), None, None))
    return [*lanes, n["first_row"], n["n_rows"], n["ids"], n["counts"], n["skips"], n["n_steps"], [column]]


@each_kind
@pytest.mark.parametrize(
    "changed",
    [
        {"counts": numbers([3])},
        {"counts": numbers([-1])},
        {"counts": numbers([1, 1])},
        {"skips": numbers([-1])},
        {"skips": numbers([])},
        {"ids": numbers([-1])},
        {"n_steps": -1},
        {"first_row": -1},
        {"n_rows": 9},
        {"n_rows": 2**62},
        {"column": (256, False, 2, np.zeros((1, 3, 2), np.int64), None, None)},
        {"column": (1, False, -1, np.zeros((1, 3, 2), np.int64), None, None)},
        {"column": (1, False, 3, np.zeros((1, 3, 2), np.int64), None, None)},
        {"column": (1, False, 2, np.zeros((1, 3, 2), np.int64), np.zeros(2, np.uint8), None)},
        {"column": (1, False, 2, np.zeros((1, 3, 2), np.int64), None, np.zeros(2, np.int64))},
    ],
)
def test_gathers_that_do_not_add_up_are_refused(kernels, changed):
    """Before anything is read or written outside of an array."""
    with pytest.raises(IndexError):
        kernels.gather_steps(*_sequence(**changed))
    assert kernels.gather_steps(*_sequence()) == -1


@pytest.mark.skipif(not COMPILED, reason="what memory is read is up to the compiled kernels")
@given(st.lists(int64s, min_size=24, max_size=24), st.lists(st.integers(0, 2**54 - 1), max_size=9))
def test_a_gather_in_garbage_reads_nothing_but_the_lanes(rows, ids):
    """In a damaged stream the answer may be anything; what lies beside the lanes stays out of it."""
    index, out = numbers(rows).reshape(8, 3), np.zeros((len(ids), 2, 3), np.int64)
    column = (1, False, 3, out, np.zeros((len(ids), 2), np.uint8), np.zeros((len(ids), 2), np.int64))
    which = numbers(ids), np.full(len(ids), 2), np.zeros(len(ids), np.int64)

    COMPILED[0].gather_steps(np.full(16, 5), np.zeros(16, np.uint8), index, 2, 7, *which, 2, [column])

    assert set(out.ravel().tolist()) <= {0, 5}


@each_kind
@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
@given(st.integers(0, 2**62 - 1), st.lists(st.tuples(st.sampled_from(SPANS), st.integers(0, 40)), max_size=8))
def test_numbers_are_drawn_as_the_generator_itself_draws_them(kernels, bits, low, draws):
    """In spans that throw many of its words away too, and it goes on where its own ``integers`` would have."""
    ours, its = (np.random.Generator(getattr(np.random, bits)(5)) for _ in range(2))
    for span, n in draws:
        drawn, expected = kernels.draw(ours, low, low + span, n), its.integers(low, low + span, n)

        assert drawn.dtype == expected.dtype
        assert drawn.tolist() == expected.tolist()
    assert ours.bit_generator.random_raw() == its.bit_generator.random_raw()
    assert ours.integers(9) == its.integers(9)


@each_kind
def test_a_generator_with_ways_of_its_own_is_asked(kernels):
    """As whoever derives from NumPy's expects."""

    class Lowest(np.random.Generator):
        def integers(self, low: Any, *_: Any, **__: Any) -> Any:
            return np.array([low])

    assert kernels.draw(Lowest(np.random.PCG64(0)), 3, 9, 1).tolist() == [3]


@each_kind
@pytest.mark.parametrize(
    ("low", "high", "n", "reason"),
    [
        (5, 5, 1, "low >= high"),
        (5, 4, 1, "low >= high"),
        (0, 9, -1, "negative dimensions"),
        (0, 9, 2**62, "array is too big"),
        (0, 9, 2**64, "Maximum allowed dimension"),
    ],
)
def test_numbers_that_cannot_be_drawn_are_refused(kernels, low, high, n, reason):
    """In the generator's own words."""
    with pytest.raises(ValueError, match=reason):
        kernels.draw(np.random.default_rng(0), low, high, n)


some_tokens = st.sampled_from([0, 1, -1, bits(-0.0), bits(0.5), bits(math.nan), bits(5e-324), 2**63 - 1])


@each_kind
@given(st.lists(st.tuples(some_tokens, st.integers(0, 2)), max_size=30), st.booleans(), st.integers(0, 12), st.data())
def test_tokens_that_are_not_zero_are_found(kernels, tokens, is_float, room, data):
    """Of one type, until there is no room; the next call goes on where this one ended. -0.0 is zero for a float."""
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(tokens))] * 2)))
    lane, types = numbers([one for one, _ in tokens]), np.array([type_ for _, type_ in tokens], np.uint8)
    whole = np.full(room + 2, GUARD)

    n, reached = kernels.find_nonzero(lane, types, begin, end, 1, is_float, whole[:room])

    zeros = (0, bits(-0.0)) if is_float else (0,)
    found = [i for i in range(begin, end) if tokens[i][1] == 1 and tokens[i][0] not in zeros]
    assert n == min(len(found), room)
    assert whole.tolist() == [*found[:n], *[GUARD] * (room + 2 - n)]
    # As far as nothing was passed over, and to the end only if that was looked at.
    assert reached == (end if n < room else found[n - 1] + 1 if n else begin)


@each_kind
@pytest.mark.parametrize(("begin", "end", "n_types"), [(-1, 4, 5), (0, 6, 6), (0, 5, 4), (0, 2**62, 5)])
def test_scans_outside_of_the_lanes_are_refused(kernels, begin, end, n_types):
    """Five tokens are there."""
    with pytest.raises(IndexError):
        kernels.find_nonzero(np.arange(5), np.zeros(n_types, np.uint8), begin, end, 0, False, np.empty(9, np.int64))


def test_both_have_the_same_token_kernels():
    """What one half offers the other has, too."""
    names = ("Recorder", "load_word", "store_word", "windows", "take", "search", "search_one")
    names += ("select_starts", "step_sizes", "gather_steps", "gather_pairs", "draw", "find_nonzero")
    methods = ("attach", "detach", "set_kind", "append", "record", "record_columns", "let_out")
    for kernels in IMPLEMENTATIONS:
        assert all(callable(getattr(kernels, name)) for name in names)
        assert all(callable(getattr(kernels.Recorder, name)) for name in methods)
