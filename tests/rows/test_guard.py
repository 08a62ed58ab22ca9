"""A guard at the door of a buffer: refused as a whole, or only the good rows, and never half an append."""

from __future__ import annotations

import math
import pickle
import threading

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetBuffer, Field
from poolish.errors import ConfigError, DataRefused, SchemaError
from poolish.guards import Suite, register_check
from poolish.guards.checks import guard as guard_module

NAN = math.nan


def suite(**actions) -> Suite:
    return Suite("rollouts").expect("reward", finite=True, between=(-10, 10)).on(**actions)


def rows(*rewards: float) -> list[dict]:
    return [{"reward": reward, "text": f"row {i}"} for i, reward in enumerate(rewards)]


def rewards(buffer: DatasetBuffer) -> list[float]:
    return buffer.to_pydict().get("reward", [])


@pytest.mark.parametrize("door", ["constructor", "argument", "attribute"])
def test_a_bad_append_is_refused_whole(door):
    """Nothing of it enters, nothing that was there leaves, and the error names the row."""
    buffer = DatasetBuffer(guard=suite() if door == "constructor" else None)
    buffer.append(rows(1.0, 2.0))
    if door == "attribute":
        buffer.guard = suite()
    before = buffer.snapshot()

    with pytest.raises(
        DataRefused, match=r"append of 3 rows: reward is finite: 1 of 3 rows are bad; row 1: nan; .*fix them"
    ):
        buffer.append(rows(3.0, NAN, 4.0), retain_prior=0.0, guard=suite() if door == "argument" else None)

    assert buffer.snapshot() == before
    assert buffer.snapshot().ids.tolist() == [0, 1]
    assert len(buffer.rejected) == 0


def test_only_the_good_rows_enter():
    """The others are counted, and kept with their reasons."""
    buffer = DatasetBuffer(guard=suite(error="drop"))

    buffer.append(rows(1.0, NAN, 99.0))
    buffer.append(rows(2.0))
    buffer.append({"reward": -11.0, "text": "alone"})

    assert rewards(buffer) == [1.0, 2.0]
    assert buffer.snapshot().generations == [(0, 1), (1, 2)]
    assert buffer.rejected.n_rows == 3
    assert buffer.rejected.reasons == {"reward is finite": 1, "reward is between -10 and 10": 3}
    assert buffer.rejected.rows.drop_columns("reward").to_pylist() == [
        {
            "rejected_append": 0,
            "rejected_row": 1,
            "rejected_reason": "reward is finite: got nan; reward is between -10 and 10: got nan",
            "text": "row 1",
        },
        {
            "rejected_append": 0,
            "rejected_row": 2,
            "rejected_reason": "reward is between -10 and 10: got 99.0",
            "text": "row 2",
        },
        {
            "rejected_append": 1,
            "rejected_row": 0,
            "rejected_reason": "reward is between -10 and 10: got -11.0",
            "text": "alone",
        },
    ]


@pytest.mark.parametrize("action", ["drop", "skip"])
def test_an_append_of_which_nothing_is_left_did_not_happen(action):
    """Prior rows are not thinned for rows that never come."""
    buffer = DatasetBuffer(guard=suite(error=action))
    buffer.append(rows(1.0, 2.0))

    buffer.append(rows(NAN, NAN), retain_prior=0.5)

    assert rewards(buffer) == [1.0, 2.0]
    assert buffer.rejected.n_rows == 2


def test_a_skipped_append_stays_out_as_a_whole():
    """The good rows too, each with the reason of the others."""
    buffer = DatasetBuffer(guard=suite(error="skip"))

    buffer.append(rows(1.0, NAN))

    assert len(buffer) == 0
    assert buffer.rejected.rows["rejected_reason"].to_pylist()[0].startswith("with its batch: reward is finite")


def test_a_warning_lets_everything_in():
    """It is in the log."""
    buffer = DatasetBuffer(guard=Suite().expect("reward", finite=True, severity="warn"))

    buffer.append(rows(NAN))

    assert len(buffer) == 1
    assert not buffer.rejected


@pytest.mark.parametrize("kind", ["rows", "table", "columns", "single rows", "generator"])
def test_every_way_in_has_the_guard(kind):
    """One by one, many, tables and columns."""
    buffer = DatasetBuffer(guard=suite(error="drop"))
    made = rows(1.0, NAN, 2.0)

    if kind == "rows":
        buffer.append(made)
    elif kind == "generator":
        buffer.append(row for row in made)
    elif kind == "table":
        buffer.append(pa.Table.from_pylist(made))
    elif kind == "columns":
        buffer.append_columns({"reward": np.array([1.0, NAN, 2.0]), "text": ["a", "b", "c"]})
    else:
        for row in made:
            buffer.append(row)

    assert rewards(buffer) == [1.0, 2.0]
    assert buffer.rejected.n_rows == 1


def test_columns_of_every_kind_lose_their_bad_rows():
    """Tensors, ragged tensors, lists, structs, nulls: what stays is what was good."""
    n = 9_000  # more than one part of a draft
    keep = np.random.default_rng(0).random(n) < 0.7
    made = [
        {
            "keep": bool(keep[i]),
            "i": i,
            "image": np.full((2, 2), i, np.uint8 if i < 0 else np.uint16),
            "ragged": np.arange(i % 4, dtype=np.float32),
            "tokens": list(range(i % 3)),
            "meta": {"a": i},
            "text": None if i % 5 == 0 else str(i),
        }
        for i in range(n)
    ]
    plain, guarded = DatasetBuffer(), DatasetBuffer(guard=Suite().expect("keep", one_of=[True]).on(error="drop"))

    plain.append(made)
    guarded.append(made)

    expected = plain[keep]
    assert guarded.to_arrow().equals(expected)


def test_a_guard_that_comes_and_goes():
    """The quick way of single rows is open only while there is none."""
    buffer = DatasetBuffer()
    buffer.append(rows(1.0)[0])
    buffer.append({"reward": NAN, "text": "unguarded"})
    buffer.guard = suite()
    with pytest.raises(DataRefused):
        buffer.append({"reward": NAN, "text": "guarded"})
    buffer.guard = None
    buffer.append({"reward": NAN, "text": "unguarded"})

    assert len(buffer) == 3


def test_a_guard_of_one_append_stands_in_for_the_buffers_own():
    """It is asked instead, not as well."""
    buffer = DatasetBuffer(guard=suite())

    buffer.append(rows(NAN), guard=Suite().expect("text", min_length=1))

    assert len(buffer) == 1


def test_the_schema_is_asked_before_the_guard():
    """What does not fit is no row at all."""
    buffer = DatasetBuffer(guard=suite(error="drop"))
    buffer.append(rows(1.0))

    with pytest.raises(SchemaError):
        buffer.append({"reward": "much", "text": "x"})

    assert not buffer.rejected


def test_a_guard_with_windows_watches_appends():
    """Statistics of the rows that entered."""
    guard = Suite().stat("reward", mean=(-1, 1), severity="error").guard(window=4)
    buffer = DatasetBuffer(guard=guard)

    buffer.append(rows(0.0, 0.0))
    with pytest.raises(DataRefused, match="has a mean between -1 and 1: it is 5"):
        buffer.append(rows(10.0, 10.0))
    buffer.append(rows(0.0, 0.0))

    assert rewards(buffer) == [0.0] * 4


def test_a_guard_that_raises_changes_nothing():
    """A mistake in a check is the user's to see."""

    @register_check("test.rows.fails")
    def fails(values):
        raise RuntimeError("a bug")

    buffer = DatasetBuffer(guard=Suite().expect("reward", check="test.rows.fails"))

    with pytest.raises(RuntimeError, match="a bug"):
        buffer.append(rows(1.0))

    assert len(buffer) == 0
    assert buffer.schema is None


def test_only_so_many_rejected_rows_are_kept(monkeypatch):
    """The newest; the counts go on."""
    monkeypatch.setattr(guard_module, "MAX_ROWS", 5)
    buffer = DatasetBuffer(guard=suite(error="drop"))

    for i in range(4):
        buffer.append([{"reward": 100.0 + 10 * i + j, "text": ""} for j in range(3)])

    assert buffer.rejected.n_rows == 12
    assert buffer.rejected.rows["reward"].to_pylist() == [121.0, 122.0, 130.0, 131.0, 132.0]
    buffer.rejected.clear()
    assert len(buffer.rejected) == 0


def test_large_rejected_rows_are_kept_by_their_size(monkeypatch):
    """Pictures would fill the memory."""
    monkeypatch.setattr(guard_module, "MAX_BYTES", 100_000)
    buffer = DatasetBuffer(guard=Suite().expect("image", at_most=0).on(error="drop"))

    for _ in range(3):
        buffer.append_columns({"image": np.ones((10, 1_000))})

    assert 10 <= buffer.rejected.rows.num_rows <= 13
    assert buffer.rejected.n_rows == 30


def test_a_guard_is_a_setting_of_the_object(tmp_path):
    """A file holds rows: what is loaded, mapped or sent has no guard until it is given one."""
    buffer = DatasetBuffer(guard=suite())
    buffer.append(rows(1.0))
    buffer.save(tmp_path / "rows")

    for other in (
        DatasetBuffer.load(tmp_path / "rows"),
        buffer.map(lambda row: row),
        buffer.filter(lambda row: True),
        pickle.loads(pickle.dumps(buffer)),
    ):
        assert other.guard is None
        other.append(rows(NAN))


@pytest.mark.parametrize("guard", [7, "suite", object()])
def test_what_is_no_guard_is_refused(guard):
    """Where it is given."""
    with pytest.raises(ConfigError, match="a guard is a Suite, or a function of rows"):
        DatasetBuffer(guard=guard)
    with pytest.raises(ConfigError, match="a guard is a Suite, or a function of rows"):
        DatasetBuffer().append(rows(1.0), guard=guard)


def test_threads_append_through_one_guard():
    """All good rows enter, all bad ones are counted."""
    buffer = DatasetBuffer(guard=suite(error="drop"), schema=[Field("reward", "float64"), Field("text", "string")])

    def work() -> None:
        for _ in range(50):
            buffer.append(rows(1.0, NAN, 2.0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(buffer) == 400
    assert buffer.rejected.n_rows == 200
