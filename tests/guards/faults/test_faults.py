"""Faults: what stands in for what cannot be read, what is counted, and what always stops."""

from __future__ import annotations

import errno
import json
import logging
import pickle
import struct
import threading
import wave
import zipfile
import zlib
from collections import namedtuple
from functools import reduce
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import BudgetSpent, ConfigError, CorruptDataError, ResumeError, SchemaError, StoreFull
from poolish.guards import DATA_ERRORS, CircuitOpen, Faults
from poolish.guards.faults.budget import n_allowed
from poolish.guards.faults.substitutes import ElementMoments, between, placeholder_of
from poolish.schema import Field, Schema


class Source:
    """Rows ``{"x": row}``, of which some are bad; counts what is asked for."""

    def __init__(self, bad=(), *, n_rows: int = 1_000, error: Exception | None = None) -> None:
        self.bad, self.n_rows, self.error = set(bad), n_rows, error
        self.asked: list[int] = []

    def one(self, row: int) -> dict:
        self.asked.append(row)
        if row >= self.n_rows:
            raise IndexError(row)
        if row in self.bad:
            raise self.error or CorruptDataError(f"row {row} is damaged")
        return {"x": float(row), "label": row}

    def many(self, rows: np.ndarray) -> list[dict]:
        return [self.one(row) for row in rows.tolist()]


def read(faults: Faults, source: Source, rows, **options):
    return faults.read(np.asarray(rows, np.int64), source.many, source.one, **options)


def labels(samples) -> list[int]:
    return [sample["label"] for sample in samples]


# What is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_sample", ["raise", "skip", "neighbour"])
@pytest.mark.parametrize("on_batch", ["raise", "shrink", "cached", "synthetic"])
def test_good_rows_are_read_at_once(on_sample, on_batch):
    """No policy changes them or reads anything twice."""
    source, faults = Source(), Faults(on_sample=on_sample, on_batch=on_batch)

    samples, kept = read(faults, source, [3, 1, 2])

    assert samples == [source.one(3), source.one(1), source.one(2)]
    assert kept.tolist() == [True] * 3
    assert source.asked[:-3] == [3, 1, 2]
    assert (faults.n_seen, faults.n_failed) == (3, 0)


def test_skip_leaves_bad_rows_out():
    """Those that are left keep their order, and ``kept`` says which they are."""
    faults = Faults(on_sample="skip", budget=2)

    samples, kept = read(faults, Source({1, 2}), [3, 1, 0, 2])

    assert labels(samples) == [3, 0]
    assert kept.tolist() == [True, False, True, False]
    assert faults.counts()["done"] == {"skip": 2}


def test_placeholder_takes_the_place_of_bad_rows():
    """A copy each time: changing one changes no other."""
    given_ = {"x": np.zeros(2), "label": -1}
    faults = Faults(on_sample="placeholder", placeholder=given_, budget=9)
    given_["label"] = 5

    samples, kept = read(faults, Source({1, 2}), [0, 1, 2])
    samples[1]["x"] += 7

    assert labels(samples) == [0, -1, -1]
    assert samples[2]["x"].tolist() == [0, 0]
    assert kept.all()


def test_placeholder_comes_from_the_schema():
    """Zeros and nothing, of the right types and shapes."""
    schema = Schema(
        [
            Field("image", "uint8", shape=(2, None)),
            Field("half", "bfloat16", shape=(2,)),
            Field("text", "string"),
            Field("blob", "binary"),
            Field("label", "int64"),
            Field("score", "float32"),
            Field("is_new", "bool"),
            Field("words", pa.list_(pa.string())),
        ]
    )

    samples, _ = read(Faults(on_sample="placeholder", schema=schema), Source({1}), [0, 1])

    row = samples[1]
    assert (row["image"].shape, row["image"].dtype) == ((2, 0), np.uint8)
    assert (row["half"].tolist(), row["half"].dtype) == ([0, 0], np.float32)
    rest = {name: row[name] for name in schema.names[2:]}
    assert rest == {"text": "", "blob": b"", "label": 0, "score": 0.0, "is_new": False, "words": []}


def test_a_placeholder_that_cannot_be_made_is_refused_before_reading():
    """There is neither a sample nor a schema, or the schema says image and nothing is no image."""
    with pytest.raises(ConfigError, match="pass placeholder="):
        Faults(on_sample="placeholder").expect(None)
    with pytest.raises(ConfigError, match=r"'photo'.*pass placeholder="):
        placeholder_of(Schema([Field("photo", "binary", feature='{"_type": "Image"}')]))


@pytest.mark.parametrize(
    ("bad", "row", "stand_in"),
    [({5}, 5, 6), ({5, 6}, 5, 4), ({4, 5, 6}, 5, 7), ({0}, 0, 1), ({0, 1, 2}, 0, 3), ({999}, 999, 998)],
)
def test_neighbour_is_the_nearest_good_row(bad, row, stand_in):
    """The next before the previous one; beyond both ends there are no rows."""
    samples, kept = read(Faults(on_sample="neighbour", budget=9), Source(bad), [100, row])

    assert labels(samples) == [100, stand_in]
    assert kept.all()


def test_a_neighbour_does_not_depend_on_the_batch():
    """Every reader of a bad row gets the same in its place; neighbours that fail are not counted for it."""
    faults, source = Faults(on_sample="neighbour", budget=9), Source({5, 6})

    assert labels(read(faults, source, [4, 5, 7])[0]) == [*labels(read(faults, source, [4, 5])[0]), 7]
    assert faults.n_failed == 2


def test_only_neighbours_that_are_allowed_stand_in():
    """``is_neighbour`` keeps other ranks' rows and those that have gone out of it."""
    faults = Faults(on_sample="neighbour", budget=9)

    samples, _ = read(faults, Source({5}), [100, 5], is_neighbour=lambda row: row % 5 == 2)

    assert labels(samples) == [100, 7]


def test_no_neighbour_within_reach_is_a_failure_of_the_batch():
    """The search is bounded, and the error says how far it went."""
    source = Source(range(100, 200))
    with pytest.raises(CorruptDataError, match="row 150 is damaged") as caught:
        read(Faults(on_sample="neighbour", budget=9), source, [1, 150])
    assert "no good row within 8" in caught.value.__notes__[-1]

    samples, kept = read(Faults(on_sample="neighbour", on_batch="shrink", budget=9), source, [1, 150])

    assert (labels(samples), kept.tolist()) == ([1], [True, False])
    assert len(source.asked) < 60


def test_interpolation_averages_floats_and_nothing_else():
    """Between the nearest on both sides, by distance; an integer may be a name, so it is the nearest one's."""
    faults = Faults(on_sample="neighbour", interpolate=True, budget=9)

    samples, _ = read(faults, Source({5, 6}), [100, 5, 6])
    assert samples[1:] == [{"x": 5.0, "label": 4}, {"x": 6.0, "label": 7}]

    samples, _ = read(faults, Source({0}), [100, 0])
    assert samples[1] == {"x": 1.0, "label": 1}  # there is nothing on the other side


def test_interpolation_keeps_types_and_shapes():
    """Arrays and tuples too; where two samples differ in form, the nearer one stands alone."""
    pair = namedtuple("pair", "x y")
    near, far = np.float32([1, 2]), np.float32([3, 4])

    mixed = between(pair(near, np.int64([1])), pair(far, np.int64([9])), 0.5)

    assert type(mixed) is pair
    assert (mixed.x.tolist(), mixed.x.dtype, mixed.y.tolist()) == ([2, 3], np.float32, [1])
    assert between((1.0,), (2.0, 3.0), 0.5) == (1.0,)
    assert between({"x": near}, {"x": np.float32([1, 2, 3])}, 0.5)["x"] is near
    assert between(np.float64(1), np.float64(2), 0.5) == 1.5


# When the batch fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_sample", ["skip", "neighbour"])
def test_when_all_samples_fail_the_batch_has_failed(on_sample):
    """Then ``on_batch`` decides: by default the error comes out and says what could be done."""
    with pytest.raises(CorruptDataError, match="row 4 is damaged") as caught:
        read(Faults(on_sample=on_sample, budget=9), Source({3, 4}), [3, 4])

    assert "row 4, in a batch of 2; fix the row, or choose" in caught.value.__notes__[-1]


def test_a_batch_of_one_sample_follows_the_policy_for_samples():
    """One failure says nothing about a batch."""
    faults = Faults(on_sample="skip", budget=9)

    samples, kept = read(faults, Source({3}), [3])

    assert (samples, kept.tolist()) == ([], [False])


def test_shrink_gives_what_is_left_even_nothing():
    """A batch becomes shorter, never absent."""
    faults, source = Faults(on_batch="shrink", budget=99), Source({3, 4})

    assert [labels(read(faults, source, rows)[0]) for rows in ([2, 3], [3, 4], [5])] == [[2], [], [5]]
    assert read(faults, source, [3, 4])[1].tolist() == [False, False]


def test_cached_repeats_the_last_good_batch():
    """As it was when it was read, whatever the trainer did to it; cut or repeated to the length that was asked for."""
    faults, source = Faults(on_batch="cached", budget=99), Source({3, 4, 5})
    good, _ = read(faults, source, [1, 2])
    good[0]["label"] = -7

    for rows, expected in [([3, 4], [1, 2]), ([3], [1]), ([3, 4, 5], [1, 2, 1]), ([6, 3], [1, 2])]:
        samples, kept = read(faults, source, rows)
        assert labels(samples) == expected
        assert kept.all()
        samples[0]["label"] = -8

    read(faults, source, [7, 8])
    assert labels(read(faults, source, [3, 4])[0]) == [7, 8]


@pytest.mark.parametrize("on_batch", ["cached", "synthetic"])
def test_with_nothing_to_repeat_the_error_says_so(on_batch):
    """The first batch cannot be replaced by an earlier one."""
    with pytest.raises(CorruptDataError) as caught:
        read(Faults(on_batch=on_batch, budget=99), Source({3, 4}), [3, 4])

    assert f"on_batch='{on_batch}'" in caught.value.__notes__[-1]


def test_synthetic_learns_from_good_samples():
    """Mean, spread, range, types and shapes are those of the data; each row has a draw of its own, always the same."""
    rng = np.random.default_rng(0)
    rows = [
        {"x": rng.normal(5, 2), "v": np.float32(rng.normal([0, 100], 1)), "k": int(rng.integers(3)), "t": "a"}
        for _ in range(1_000)
    ]

    def get(row: int) -> dict:
        if row >= 1_000:
            raise CorruptDataError("gone")
        return rows[row]

    faults = Faults(on_batch="synthetic", budget=1.0)
    for start in range(0, 1_000, 100):
        faults.read(np.arange(start, start + 100), lambda ids: [get(i) for i in ids], get)
    drawn, kept = faults.read(np.arange(1_000, 3_000), lambda ids: [get(i) for i in ids], get)
    again, _ = faults.read(np.arange(1_000, 1_010), lambda ids: [get(i) for i in ids], get)

    assert kept.all()
    assert abs(np.mean([s["x"] for s in drawn]) - 5) < 0.3
    assert abs(np.std([s["x"] for s in drawn]) - 2) < 0.3
    assert np.abs(np.mean([s["v"] for s in drawn], axis=0) - [0, 100]).max() < 0.3
    assert {s["v"].dtype for s in drawn} == {np.dtype(np.float32)}
    assert {s["k"] for s in drawn} == {0, 1, 2}
    assert {s["t"] for s in drawn} == {"a"}
    assert [s["x"] for s in again] == [s["x"] for s in drawn[:10]]
    assert len({s["x"] for s in drawn}) > 1_900


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9), min_size=1, max_size=5))
def test_moments_learned_in_parts_are_those_of_the_whole(parts):
    """Batches of any sizes."""
    merged = reduce(ElementMoments.merge, (ElementMoments.of(np.array(part)) for part in parts))
    whole = np.concatenate(parts)

    assert merged.mean == pytest.approx(whole.mean(), abs=1e-8)
    assert merged.variance == pytest.approx(whole.var(), abs=1e-6)
    assert (merged.n, merged.min, merged.max) == (len(whole), whole.min(), whole.max())


def test_synthetic_draws_from_a_profile():
    """From the first batch on: its columns are known before any sample is."""
    profile = {"x": SimpleNamespace(mean=50.0, variance=4.0), "name": SimpleNamespace(count=3)}

    samples, _ = read(Faults(on_batch="synthetic", profile=profile, budget=1.0), Source(range(500)), range(500))

    assert samples[0].keys() == {"x"}
    assert abs(np.mean([s["x"] for s in samples]) - 50) < 0.5
    assert abs(np.var([s["x"] for s in samples]) - 4) < 1


def test_synthetic_looks_like_the_schema():
    """With a profile and a schema a batch has all columns, in their types."""
    schema = Schema([Field("x", "float32", shape=(3,)), Field("n", "uint8", shape=(1,)), Field("text", "string")])
    profile = {
        "x": SimpleNamespace(mean=1.0, variance=0.0),
        "n": SimpleNamespace(mean=1e9, variance=0.0),  # beyond what the column holds: cut, never wrapped
    }

    samples, _ = read(Faults(on_batch="synthetic", profile=profile, schema=schema, budget=9), Source({0, 1}), [0, 1])

    assert samples[0]["x"].tolist() == [1, 1, 1]
    assert samples[0]["x"].dtype == np.float32
    assert samples[0]["n"].tolist() == [255]
    assert samples[0]["text"] == ""


def test_rows_that_fail_only_together_are_read_one_by_one():
    """Nothing is lost and no sample has failed; it is counted all the same."""
    source, faults = Source(), Faults(on_sample="skip", budget=0)

    def broken(ids):
        raise OSError("connection reset")

    samples, kept = faults.read(np.array([4, 2]), broken, source.one)

    assert (labels(samples), kept.tolist()) == ([4, 2], [True, True])
    assert faults.counts()["done"] == {"read one by one": 1}
    assert faults.n_failed == 0


def test_an_open_breaker_is_survived_by_the_cached_batch():
    """A source that is left alone fails whole batches."""
    faults, source = Faults(on_batch="cached", budget=1.0), Source()
    read(faults, source, [1, 2])
    source.bad, source.error = set(range(1_000)), CircuitOpen("left alone")

    assert labels(read(faults, source, [3, 4])[0]) == [1, 2]


# Whose fault it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        CorruptDataError("a"),
        SchemaError("a"),
        OSError(errno.EIO, "bad sector"),
        FileNotFoundError("missing"),
        TimeoutError("slow"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        json.JSONDecodeError("bad", "{", 0),
        EOFError(),
        ValueError("12x"),
        OverflowError(),
        zlib.error("cut"),
        struct.error("cut"),
        zipfile.BadZipFile("cut"),
        wave.Error("cut"),
        PIL.Image.DecompressionBombError("huge"),
        PIL.UnidentifiedImageError("what"),
        pa.ArrowInvalid("cut"),
        safetensors.SafetensorError("cut"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_the_data_follow_the_policy(error):
    """What damaged, missing and malformed files raise, in the libraries that read them."""
    samples, _ = read(Faults(on_sample="skip", budget=9), Source({3}, error=error), [2, 3])

    assert labels(samples) == [2]


@pytest.mark.parametrize(
    "error",
    [
        TypeError("a"),
        IndexError("a"),
        AttributeError("a"),
        NameError("a"),
        KeyError("a"),
        RuntimeError("a"),
        ConfigError("a"),
        BudgetSpent("of another"),
        StoreFull("a"),
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EDQUOT, "quota"),
        OSError(errno.EMFILE, "files"),
        MemoryError(),
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'errno', '')}",
)
def test_bugs_and_full_machines_always_stop(error):
    """No policy hides them, wherever they come up, and nothing is read after them."""
    faults = Faults(on_sample="skip", on_batch="shrink", budget=1.0)
    for bad in ([3], [2, 3]):
        source = Source(bad, error=error)
        with pytest.raises(type(error)) as caught:
            read(faults, source, [1, 3, 4])
        assert caught.value is error
        assert source.asked == [1, 3]
    assert "while reading" in error.__notes__[0]


def test_a_bug_in_one_row_stops_though_another_row_is_bad():
    """The rows are read one by one by then."""
    source = Source({1})

    def one(row: int) -> dict:
        if row == 2:
            raise TypeError("bug")
        return source.one(row)

    with pytest.raises(TypeError) as caught:
        Faults(on_sample="skip", budget=9).read(np.array([1, 2]), source.many, one)

    assert "row 2" in caught.value.__notes__[0]


def test_recoverable_says_which_errors_are_the_datas():
    """In place of the usual ones, or beside them; bugs still stop when all Exceptions are named."""
    source = Source({1}, error=KeyError("no text"))
    with pytest.raises(KeyError) as caught:
        read(Faults(on_sample="skip"), source, [0, 1])
    assert "recoverable=(*DATA_ERRORS, KeyError)" in caught.value.__notes__[0]

    assert labels(read(Faults(on_sample="skip", recoverable=(*DATA_ERRORS, KeyError)), source, [0, 1])[0]) == [0]

    everything, only_keys = Faults(recoverable=(Exception,)), Faults(recoverable=KeyError)
    assert everything.handles(RuntimeError())
    assert not everything.handles(IndexError())
    assert not only_keys.handles(OSError())


# Counting -----------------------------------------------------------------------------------------------------


def test_a_count_is_a_budget():
    """Two failures are allowed, the third ends the run and says what happened."""
    faults = Faults(on_sample="skip", budget=2)
    read(faults, Source({1}), [0, 1])
    read(faults, Source({1}, error=OSError("bad sector")), [0, 1])

    with pytest.raises(BudgetSpent) as caught:
        read(faults, Source({7}), [6, 7])

    message = str(caught.value)
    for part in ("3 of 6 samples", "2 CorruptDataError", "1 OSError", "row 1: bad sector", "raise budget="):
        assert part in message
    assert str(caught.value.__cause__) == "row 7 is damaged"


@given(st.floats(0, 1), st.integers(0, 10**9))
def test_a_fraction_allows_what_was_asked_for_and_chance(budget, n_seen):
    """Never less than the fraction itself, never more than one standard deviation above it, rounded up."""
    allowed, expected = n_allowed(budget, n_seen), budget * n_seen

    assert expected - 1e-3 <= allowed <= min(n_seen, expected + expected**0.5 + 1.001)
    assert n_allowed(0.0, n_seen) == 0


def test_fractions_are_pinned():
    """The table in the module."""
    assert [n_allowed(0.01, n) for n in (0, 1, 38, 39, 100, 1_000, 10_000, 1_000_000)] == [
        *(0, 1, 1, 2, 2, 14, 110, 10_100)
    ]
    assert n_allowed(0.07, 700) == 49 + 7


def test_a_fraction_ends_a_run_that_is_bad_and_no_other():
    """Half the budget goes on for ever, twice the budget does not."""

    def survives(rate: float) -> bool:
        bad = set(np.flatnonzero(np.random.default_rng(0).random(20_000) < rate).tolist())
        faults, source = Faults(on_sample="skip", on_batch="shrink", budget=0.01), Source(bad, n_rows=20_000)
        try:
            for start in range(0, 20_000, 50):
                read(faults, source, range(start, start + 50))
        except BudgetSpent:
            return False
        return True

    assert survives(0.005)
    assert not survives(0.02)


def test_kinds_are_logged_once_with_examples(caplog):
    """The log of a run with a million bad rows stays readable."""
    faults = Faults(on_sample="skip", on_batch="shrink", budget=1.0)

    with caplog.at_level(logging.WARNING, "poolish.guards"):
        for start in range(0, 100, 10):
            read(faults, Source(range(0, 100, 2)), range(start, start + 10))
        read(faults, Source({1}, error=OSError("bad sector")), [0, 1])

    first, second = (record.message for record in caplog.records)
    assert first.startswith("CorruptDataError: row 0: row 0 is damaged; row 2: ")
    assert "OSError: row 1: bad sector" in second
    assert faults.counts()["kinds"] == {"CorruptDataError": 50, "OSError": 1}


def test_the_counts_stay_small():
    """Many kinds of long errors: a state of a few kilobytes, and no failure uncounted."""
    faults = Faults(on_sample="skip", budget=1.0)
    for k in range(100):
        kind = type(f"Error{k}", (ValueError,), {})
        read(faults, Source({1}, error=kind("x" * 10_000)), [0, 1])

    state = faults.state_dict()

    assert len(json.dumps(state)) < 20_000
    assert sum(state["kinds"].values()) == state["failed"] == 100


def test_a_resumed_run_goes_on_towards_the_same_budget():
    """The state is JSON; with it the third failure is the third."""
    first = Faults(on_sample="skip", budget=2)
    for _ in range(2):
        read(first, Source({1}), [0, 1])
    second = Faults(on_sample="skip", budget=2)

    second.load_state_dict(json.loads(json.dumps(first.state_dict())))

    assert second.state_dict() == first.state_dict()
    assert second.summary() == first.summary()
    with pytest.raises(BudgetSpent):
        read(second, Source({1}), [0, 1])


def nested(depth: int) -> list:
    """Lists in each other, deeper than Python's stack."""
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"seen": -1},
        None,
        [],
        {"seen": 1, "failed": 0, "kinds": {"a": "b"}, "examples": {}, "done": {}},
        {"seen": 1, "failed": 0, "kinds": [], "examples": {}, "done": {}},
        {"seen": 1, "failed": 0, "kinds": {}, "examples": {"a": [1]}, "done": {}},
        {"seen": 1, "failed": 0, "kinds": {}, "examples": {"a": "b"}, "done": {}},
        {"seen": True, "failed": 0, "kinds": {}, "examples": {}, "done": {}},
        {"seen": 5, "failed": 10**400, "kinds": {}, "examples": {}, "done": {}},
        nested(100_000),
        {"seen": nested(100_000)},
    ],
)
def test_a_state_of_something_else_is_refused(state):
    """And changes nothing."""
    faults = Faults(on_sample="skip", budget=9)
    read(faults, Source({1}), [0, 1])
    before = faults.state_dict()

    with pytest.raises(ResumeError, match="state_dict"):
        faults.load_state_dict(state)

    assert faults.state_dict() == before


def test_threads_share_one_policy():
    """All are counted, and each reader gets what it would get alone."""
    faults, bad = Faults(on_sample="neighbour", budget=1.0), set(range(0, 1_000, 7))
    answers: dict[int, list[int]] = {}

    def work(k: int) -> None:
        for start in range(k * 10, 1_000, 80):
            answers[start] = labels(read(faults, Source(bad), range(start, start + 10))[0])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (faults.n_seen, faults.n_failed) == (1_000, len(bad))
    assert [x for start in sorted(answers) for x in answers[start]] == [
        row + 1 if row in bad else row for row in range(1_000)
    ]


@given(st.data())
def test_samples_and_kept_agree(data):
    """Whatever fails under whatever policy: one sample for each row that is kept, good rows are themselves."""
    on_sample = data.draw(st.sampled_from(["raise", "skip", "neighbour", "placeholder"]))
    on_batch = data.draw(st.sampled_from(["shrink", "cached", "synthetic"]))
    faults = Faults(on_sample=on_sample, on_batch=on_batch, budget=1.0, placeholder={"x": 0.0, "label": -1})
    source = Source(data.draw(st.sets(st.integers(0, 30))))
    read(faults, Source(), [40, 41])
    for rows in data.draw(st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=6)):
        samples, kept = read(faults, source, rows)

        assert len(kept) == len(rows)
        assert len(samples) == kept.sum()
        assert kept.dtype == np.bool_
        good = [row not in source.bad for row in rows]
        if all(good):
            assert labels(samples) == rows
        if on_sample == "skip" and any(good):
            assert kept.tolist() == good


def test_it_travels_to_another_process():
    """With its settings and counts."""
    faults = Faults(on_sample="skip", on_batch="synthetic", budget=3)
    read(faults, Source({1}), [0, 1])

    copy = pickle.loads(pickle.dumps(faults))

    assert (repr(copy), copy.state_dict()) == (repr(faults), faults.state_dict())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"on_sample": "ignore"}, "on_sample: one of raise, skip"),
        ({"on_batch": "skip"}, "on_batch: one of raise, shrink"),
        ({"budget": -1}, "budget"),
        ({"budget": 1.5}, "budget"),
        ({"budget": True}, "budget"),
        ({"budget": float("nan")}, "budget"),
        ({"budget": "1%"}, "budget"),
        ({"recoverable": (TypeError,)}, "recoverable: TypeError .*always stops"),
        ({"recoverable": (KeyboardInterrupt,)}, "recoverable"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_settings_are_refused(options, match):
    """The error names the argument."""
    with pytest.raises(ConfigError, match=match):
        Faults(**options)
