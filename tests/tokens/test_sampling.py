"""Windows at random: exactly those that may be drawn, each with the same chance, whatever the stream has been through.

What may be drawn is counted out on a plain list of field-writes, token by token.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import StreamStore
from poolish.errors import ConfigError, PoolishError, SchemaError
from poolish.tokens import sampling
from tests.effort import times
from tests.tokens.plain_stream import PlainField, PlainStream, Write, alike, filled

pytestmark = pytest.mark.kernels

KINDS = [("token", None), ("token", "done"), ("step", None), ("step", "done")]
WIDTHS = (1, 2, 3, 5, 8)


def pair(max_tokens: int | None = None, dtype: str = "bool", shape: Any = ()) -> tuple[StreamStore, PlainStream]:
    """A store and its plain twin: a list, an episode's end, and a number behind it in the same step."""
    plain = [PlainField("x", "int64", (None,)), PlainField("done", dtype, shape), PlainField("y", "int64")]
    done = pa.list_(pa.from_numpy_dtype(np.dtype(dtype))) if shape else dtype
    told = {"x": pa.list_(pa.int64()), "done": done, "y": "int64"}
    return StreamStore(fields=told, max_tokens=max_tokens), PlainStream(plain, max_tokens)


def steps_of(seed: int, n: int, ends: float = 0.2, first: int = 0, done: tuple[int, int] = (0, 1)) -> list[Write]:
    """Random steps with gaps in their numbers; some lack a field, some have no tokens."""
    rng = np.random.default_rng(seed)
    numbers = first + np.cumsum(rng.choice([1, 1, 3], n))
    writes = []
    for number in numbers.tolist():
        present = rng.random(3) < 0.7
        if not present.any():
            present[0] = True
        length = int(rng.integers(0, 4))
        tokens = [tuple(rng.integers(0, 9, length).tolist()), (done[int(rng.random() < ends)],), (7,)]
        writes += [Write(number, type_, tokens[type_]) for type_ in np.flatnonzero(present).tolist()]
    return writes


def check(store: StreamStore, plain: PlainStream, widths: tuple[int, ...] = WIDTHS) -> None:
    """Coverage, and the set of what is ever drawn, in every kind of sampling."""
    for (start, within), width in itertools.product(KINDS, widths):
        expected = plain.starts(width, start, within)
        told = store.coverage(width, start=start, within=within)
        assert (told.windows, told.episodes, told.too_short) == plain.coverage(width, start, within)
        if expected:
            # Enough draws that missing one of them by chance is out of the question (the rng is fixed anyway).
            n = 30 * len(expected)
            drawn = store.sample_starts(n, width, rng=np.random.default_rng(5), start=start, within=within)
            assert sorted(set(drawn.tolist())) == sorted(set(expected)), (start, within, width)
        else:
            with pytest.raises(ConfigError, match=f"no window of {width}"):
                store.sample_starts(1, width, start=start, within=within)


# What may be drawn --------------------------------------------------------------------------------------------


@settings(max_examples=times(40))
@given(st.integers(0, 2**32), st.integers(0, 25), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_exactly_the_windows_that_fit_are_drawn(seed, n, ends):
    """Every start that brute force finds is drawn, and no other; coverage counts them."""
    store, plain = pair()
    filled(store, plain, steps_of(seed, n, ends))

    check(store, plain)


@settings(max_examples=times(15))
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 10]), st.sampled_from([0.1, 0.5]))
def test_a_growing_stream_is_sampled_as_one_that_was_always_there(seed, every, ends):
    """What is found by looking again and again at what is new is what one look at everything finds."""
    store, plain = pair()
    turn = itertools.count()

    def look() -> None:
        if next(turn) % every == 0:
            check(store, plain, (1, 4))

    filled(store, plain, steps_of(seed, 20, ends), look)

    check(store, plain)


@pytest.mark.parametrize("scan", [1, 3, 1 << 22])
@settings(max_examples=times(12))
@given(seed=st.integers(0, 2**32), every=st.sampled_from([1, 4, 9]), max_tokens=st.sampled_from([8, 20, 31]))
def test_a_bounded_stream_is_sampled_as_far_as_it_is_kept(scan, seed, every, max_tokens):
    """Episodes that have left are gone, the one that was cut begins where the stream does, whenever one looked."""
    store, plain = pair(max_tokens=max_tokens)
    turn = itertools.count()

    def look() -> None:
        if next(turn) % every == 0:
            check(store, plain, (1, 3))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_SCAN_TOKENS", scan)
        filled(store, plain, steps_of(seed, 30, 0.25), look)
        check(store, plain)


def test_starts_behind_a_cut_episode_are_drawn():
    """An episode that was counted whole and then lost its beginning takes no starts from the next one."""
    store, plain = pair(max_tokens=12)
    writes = [Write(i, 1, (int(i == 9),)) for i in range(20)]
    turn = itertools.count()

    filled(store, plain, writes, lambda: next(turn) == 11 and store.coverage(5, start="step", within="done"))

    drawn = store.sample_starts(300, 5, rng=np.random.default_rng(0), start="step", within="done")
    assert sorted(set(drawn.tolist())) == [10, 11, 12, 13, 14, 15]
    check(store, plain)


def test_thousands_of_episodes_that_leave_are_forgotten():
    """The table of episodes is begun anew when most of it is about what has left, and nobody can tell."""
    store, plain = pair(max_tokens=60)

    for begin in range(0, 12_000, 3_000):
        numbers = np.arange(begin, begin + 3_000)
        store.append_many(numbers, {"done": numbers % 2 == 0})
        plain.first, plain.writes = begin + 2_940, [Write(i, 1, (int(i % 2 == 0),)) for i in numbers[-60:].tolist()]
        check(store, plain, (1, 2, 3))


@pytest.mark.parametrize(
    ("dtype", "shape", "values"),
    [
        ("bool", (), (0, 1)),
        ("int8", (), (0, -3)),
        ("float32", (), (0.0, 0.5)),
        ("float64", (), (-0.0, 5e-324)),
        ("float64", (), (0.0, float("nan"))),
        ("float16", (), (-0.0, float("-inf"))),
        ("uint64", (), (0, 2**63 - 1)),
        ("int64", (), (0, -(2**63))),
    ],
)
def test_whatever_is_not_zero_ends_an_episode(dtype, shape, values):
    """-0.0 is zero, NaN is not."""
    store, plain = pair(dtype=dtype, shape=shape)
    coded = [plain.fields[1].tokens([value])[0] for value in values]
    filled(store, plain, steps_of(3, 30, done=(coded[0], coded[1])))
    n_ends = sum(write.type == 1 and write.tokens[0] == coded[1] for write in plain.writes)

    check(store, plain)

    assert n_ends > 2
    assert len(plain.episodes("done")) in (n_ends, n_ends + 1)


def test_a_sequence_ends_an_episode_if_any_of_it_is_not_zero():
    """Also its first or last number; an empty one ends nothing."""
    store, plain = pair(dtype="float32", shape=(None,))
    bits = plain.fields[1].tokens
    ends = [bits([]), bits([0, 0]), bits([0.5, 0]), bits([-0.0]), bits([0, 0, 2]), bits([]), bits([1, 1]), bits([0])]
    filled(store, plain, [w for i, end in enumerate(ends) for w in (Write(i, 0, (1, 2)), Write(i, 1, end))])

    check(store, plain)

    assert store.coverage(1, within="done").episodes == 4


def test_an_undecided_field_ends_nothing():
    """A field that was named and never written leaves one long episode, and decides when it is written."""
    store = StreamStore(fields=["x", "done"])
    for i in range(6):
        store.append(i, ["x"], [float(i)])

    before = store.coverage(2, within="done")
    store.append(6, ["x", "done"], [6.0, True])
    store.append(7, ["x"], [7.0])

    assert (before.windows, before.episodes, before.too_short) == (5, 1, 0)
    assert store.coverage(2, within="done").windows == 7
    assert store.coverage(2, within="done").too_short == 1


def test_a_step_that_goes_on_after_its_end_was_written_belongs_to_its_episode():
    """``done`` may come before other fields of the same step, and these may be appended much later."""
    store, plain = pair()
    filled(store, plain, [Write(0, 0, (1, 2)), Write(0, 1, (0,)), Write(1, 0, (3,)), Write(1, 1, (1,))])
    check(store, plain, (1, 2, 3, 4))
    store.append(1, ["y"], [9])
    plain.append([Write(1, 2, (9,))])
    check(store, plain, (1, 2, 3, 4, 5))

    filled(store, plain, [Write(4, 0, (4, 5, 6)), Write(4, 2, (1,))])

    check(store, plain, (1, 2, 3, 4, 5))
    assert plain.episodes("done") == [(0, 6), (6, 10)]


def test_the_open_episode_counts():
    """The last episode can be sampled before it has ended, up to the last token."""
    store, plain = pair()
    filled(store, plain, [Write(0, 1, (1,)), Write(1, 0, (1, 2, 3))])

    drawn = store.sample_starts(50, 2, rng=np.random.default_rng(0), within="done")

    assert set(drawn.tolist()) == {1, 2}


def test_no_window_crosses_an_end():
    """Seen in what is read: nothing follows a ``done`` inside a window but the rest of its step."""
    store = StreamStore(fields={"x": "int64", "done": "bool"})
    numbers = np.arange(400)
    store.append_many(numbers, {"x": numbers // 10, "done": numbers % 10 == 9})

    batch = store.sample(500, 8, rng=np.random.default_rng(1), within="done")

    episodes = np.where(batch["types"] == 0, batch["values"], -1)
    assert all(len(set(row[row >= 0].tolist())) == 1 for row in episodes)


def test_a_reader_samples_what_it_sees(tmp_path):
    """And after ``refresh`` what there is then; its table only grows."""
    plain = PlainStream([PlainField("x", "int64", ()), PlainField("done", "bool")])
    store = StreamStore(tmp_path / "s", fields={"x": "int64", "done": "bool"})
    writes = [w for i in range(30) for w in (Write(i, 0, (i,)), Write(i, 1, (int(i % 7 == 6),)))]
    filled(store, plain, writes[:30])
    reader, seen = StreamStore.open(tmp_path / "s"), plain.copy()
    check(reader, seen)
    filled(store, plain, writes[30:])

    check(reader, seen)
    reader.refresh()

    check(reader, plain)


# With the same chance -----------------------------------------------------------------------------------------


def far_from_even(drawn: np.ndarray, chances: dict[int, float]) -> float:
    """How many standard deviations chi-square is above what chance gives."""
    positions, counts = np.unique(drawn, return_counts=True)
    assert set(positions.tolist()) <= {position for position, chance in chances.items() if chance > 0}
    expected = {position: chance * len(drawn) for position, chance in chances.items() if chance > 0}
    found = dict(zip(positions.tolist(), counts.tolist(), strict=True))
    chi = sum((found.get(position, 0) - n) ** 2 / n for position, n in expected.items())
    freedom = len(expected) - 1
    return (chi - freedom) / max(1.0, np.sqrt(2 * freedom))


def evenly(positions: list[int]) -> dict[int, float]:
    return {position: positions.count(position) / len(positions) for position in set(positions)}


@pytest.mark.parametrize("max_tokens", [None, 40])
@pytest.mark.parametrize(("start", "within"), KINDS)
def test_every_window_has_the_same_chance(start, within, max_tokens):
    """Long episodes are not drawn less often than short ones, nor the first window less than the last."""
    store, plain = pair(max_tokens=max_tokens)
    filled(store, plain, steps_of(11, 40, 0.2))

    for width in (1, 4):
        drawn = store.sample_starts(20_000, width, rng=np.random.default_rng(8), start=start, within=within)
        assert far_from_even(drawn, evenly(plain.starts(width, start, within))) < 5


def test_uneven_draws_are_seen():
    """The measure above can fail."""
    drawn = np.random.default_rng(0).choice(4, 20_000, p=[0.27, 0.25, 0.25, 0.23])

    assert far_from_even(drawn, dict.fromkeys(range(4), 0.25)) > 5


# Weights ------------------------------------------------------------------------------------------------------


def weighted(plain: PlainStream, positions: list[int], weights: list[tuple[int, int, float]]) -> dict[int, float]:
    """The chance of each start: the weight of the range its step is in."""
    step_of = plain.step_of
    largest = max(weight for _, _, weight in weights)
    weight_of = {p: sum(w / largest for low, high, w in weights if low <= step_of[p] < high) for p in set(positions)}
    mass = {position: weight * positions.count(position) for position, weight in weight_of.items()}
    total = sum(mass.values())
    return {position: part / total for position, part in mass.items()}


@pytest.mark.parametrize(
    "weights",
    [
        [(0, 10, 1.0), (10, 1000, 3.0)],
        [(10, 1000, 3.0), (0, 10, 1.0)],
        [(5, 20, 2.0)],
        [(0, 8, 0.0), (8, 30, 1.0), (30, 40, 0)],
        [(0, 8, 1.0), (12, 14, 5.0), (14, 20, 2.5)],
        [(0, 10, 1e308), (10, 1000, 1e308)],
        [(0, 10, 5e-324), (10, 1000, 5e-324)],
        [(0, 10, 1e-30), (10, 1000, 3e-30), (5_000, 6_000, 1e300)],
        [(0, 2**63 - 1, 0.25)],
        [(3, 3, 9.0), (0, 1000, 1.0)],
    ],
)
@pytest.mark.parametrize("max_tokens", [None, 50])
def test_a_weight_is_the_chance_of_each_window_in_its_range(weights, max_tokens):
    """Of two windows the one in a range of three times the weight is drawn three times as often; outside none is."""
    store = StreamStore(fields={"x": "int64", "done": "bool"}, max_tokens=max_tokens)
    plain = PlainStream([PlainField("x", "int64"), PlainField("done", "bool")], max_tokens)
    numbers = np.cumsum(np.random.default_rng(2).choice([1, 1, 2], 30)).tolist()
    filled(
        store, plain, [w for i, n in enumerate(numbers) for w in (Write(n, 0, (n,)), Write(n, 1, (int(i % 6 == 5),)))]
    )

    for start, within in KINDS:
        drawn = store.sample_starts(8_000, 3, rng=np.random.default_rng(4), start=start, within=within, weights=weights)
        chances = weighted(plain, plain.starts(3, start, within), [w for w in weights if w[0] < 5_000])
        assert far_from_even(drawn, chances) < 5


@pytest.mark.parametrize("weights", [[(0, 10, 0.0)], [(500, 600, 1.0)], [(4, 4, 1.0)], [(9, 10, 1.0)]])
def test_weights_that_leave_no_window_are_an_error(weights):
    """All zero, outside of the stream, empty, or where no window of this width begins."""
    store = StreamStore(fields={"x": "int64"})
    store.append_many(range(10), {"x": range(10)})

    with pytest.raises(ConfigError, match="weights: no window"):
        store.sample(2, 3, weights=weights)


@pytest.mark.parametrize(
    "weights",
    [
        [],
        [(0, 5, 1.0), (4, 9, 1.0)],
        [(0, 9, 1.0), (3, 4, 2.0)],
        [(0, 5, 1.0), (0, 5, 1.0)],
        [(0, 5, -1.0)],
        [(0, 5, float("nan"))],
        [(0, 5, float("inf"))],
        [(5, 0, 1.0)],
        [(-1, 5, 1.0)],
        [(0, 5)],
        [(0, 5, 1.0, 1.0)],
        [(0.5, 5, 1.0)],
        [("0", 5, 1.0)],
        [("x", 5, 1.0)],
        [(0, 5, "heavy")],
        [(0, 5, None)],
        [None],
        [3],
        5,
        "weights",
        {0: 1.0},
    ],
    ids=repr,
)
def test_weights_that_make_no_sense_are_refused(weights):
    """As a ConfigError that says weights, before anything is drawn."""
    store = StreamStore(fields={"x": "int64"})
    store.append_many(range(10), {"x": range(10)})
    rng, same = np.random.default_rng(0), np.random.default_rng(0)

    with pytest.raises(ConfigError, match="weights"):
        store.sample(2, 3, weights=weights, rng=rng)

    assert rng.bit_generator.state == same.bit_generator.state


# Arguments ----------------------------------------------------------------------------------------------------


def numbered(n: int = 10) -> StreamStore:
    store = StreamStore(fields={"x": "int64", "done": "bool"})
    store.append_many(range(n), {"x": range(n)})
    return store


def test_the_same_rng_draws_the_same_windows():
    """Given or the stream's own; another seed draws others; ``sample`` reads at what ``sample_starts`` tells."""
    stores = [numbered(500), numbered(500)]

    own = [[store.sample_starts(20, 3).tolist() for _ in range(2)] for store in stores]
    given_ = [store.sample(20, 3, rng=np.random.default_rng(9)) for store in stores]
    told = stores[0].sample_starts(20, 3, rng=np.random.default_rng(9))

    assert own[0] == own[1]
    assert own[0][0] != own[0][1]
    assert alike(given_[0]) == alike(given_[1]) == alike(stores[0].windows(told, 3))
    other = StreamStore(fields={"x": "int64"}, seed=1)
    other.append_many(range(500), {"x": range(500)})
    assert other.sample_starts(20, 3).tolist() != own[0][0]


def test_what_is_drawn_is_pinned():
    """A run that is repeated with a later poolish draws the same windows: changing this is a decision."""
    store = numbered(500)
    rng = np.random.default_rng(7)

    plainly = store.sample_starts(4, 3, rng=rng).tolist()
    by_weight = store.sample_starts(4, 3, rng=rng, weights=[(0, 10, 1.0), (400, 500, 2.0)]).tolist()

    assert plainly == np.random.default_rng(7).integers(0, 498, 4).tolist()
    assert by_weight == [489, 400, 448, 480]


def test_types_may_be_left_out():
    """As in ``windows``."""
    assert list(numbered().sample(3, 2, types=False)) == ["values"]
    assert list(numbered().sample(3, 2)) == ["types", "values"]


@pytest.mark.parametrize(("start", "within"), KINDS)
def test_no_windows_can_be_asked_for(start, within):
    """n = 0 is an empty batch of the right shape."""
    batch = numbered().sample(0, 3, start=start, within=within)

    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        "types": ((0, 3), np.int64),
        "values": ((0, 3), np.int64),
    }


@pytest.mark.parametrize(("start", "within"), KINDS)
@pytest.mark.parametrize("width", [1, 11, 2**40, 2**62, 2**63 - 1, 2**70])
def test_a_window_that_does_not_fit_is_an_error_that_says_so(start, within, width):
    """In an empty stream, and in one that is shorter; coverage is 0 there and no error."""
    store = StreamStore(fields={"x": "int64", "done": "bool"}) if width == 1 else numbered()

    with pytest.raises(ConfigError, match=rf"no window of {width:,} tokens fits.*append more, or ask for less"):
        store.sample(1, width, start=start, within=within)

    assert store.coverage(width, start=start, within=within).windows == 0


def test_only_short_episodes_are_counted_in_the_error():
    """The message tells why, when it is the episodes and not the stream that is short."""
    store, plain = pair()
    filled(store, plain, [Write(i, 1, (1,)) for i in range(10)])

    with pytest.raises(ConfigError, match=r"no window of 2 tokens fits.*10 episodes are all shorter"):
        store.sample(1, 2, within="done")


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"n": -1}, "n=-1"),
        ({"n": 1.5}, "n=1.5"),
        ({"n": True}, "n=True"),
        ({"n": None}, "n=None"),
        ({"width": 0}, "width=0"),
        ({"width": -2}, "width=-2"),
        ({"width": 2.0}, "width=2.0"),
        ({"width": True}, "width=True"),
        ({"width": "3"}, "width='3'"),
        ({"start": "episode"}, "start='episode'"),
        ({"start": None}, "start=None"),
        ({"start": ["step"]}, "start="),
        ({"within": "absent"}, "absent"),
        ({"within": 1}, "1"),
        ({"within": ["done", "no"]}, "no"),
        ({"rng": 3}, "rng"),
        ({"rng": np.random.RandomState}, "rng"),
    ],
    ids=str,
)
def test_arguments_are_checked(bad, word):
    """The error is one of ours and names the argument."""
    with pytest.raises(PoolishError, match=word):
        numbered().sample(**{"n": 2, "width": 3, **bad})


def test_an_unknown_field_is_named_with_those_there_are():
    """So that a typo is seen at once."""
    with pytest.raises(SchemaError, match=r"'don'.*\['x', 'done'\]"):
        numbered().coverage(3, within="don")


def test_whole_numbers_of_numpy_are_whole_numbers():
    """n and width often come out of arrays."""
    assert numbered().sample(np.int32(2), np.uint8(3))["values"].shape == (2, 3)


@given(st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["alike", "final", "odd"])), min_size=1, max_size=6))
def test_windows_begin_at_steps_whether_or_not_they_are_alike(episodes):
    """In episodes of equal steps, of equal ones but for the last, and of others: at all that fit, and nowhere else."""
    store = StreamStore(fields={"x": ("int64", (2,)), "y": "int64", "done": "bool", "final": "int64", "odd": "int64"})
    expected, width = set(), 5
    for length, kind in episodes:
        starts = []
        for t in range(length):
            starts.append(store.end)
            step = {"x": [t, t], "y": t, "done": t == length - 1}
            step |= {"final": 9} if kind == "final" and step["done"] else {}
            step |= {"odd": 9} if kind == "odd" and t % 2 else {}
            store.append(store.last_step + 1, step)
        expected |= {start for start in starts if start + width <= store.end}
    if not expected:
        return

    drawn = store.sample_starts(400, width, rng=np.random.default_rng(0), start="step", within="done")

    assert set(drawn.tolist()) <= expected
    assert len(expected) > 12 or set(drawn.tolist()) == expected
