"""Numbers beside the rows: they stay with their rows whatever happens to the buffer."""

from __future__ import annotations

import multiprocessing
import pickle
import random

import numpy as np
import pytest

from poolish import DatasetBuffer
from poolish.errors import ConfigError, CorruptDataError
from poolish.rows import row_state, storage
from tests.rows.facts import facts


def filled(n_rows, **settings):
    buffer = DatasetBuffer(**settings)
    buffer.append([{"n": i} for i in range(n_rows)])
    return buffer


def test_new_rows_have_the_default():
    """Appended before or after the state was made, singly or together."""
    buffer = filled(2)
    counts, priorities = buffer.row_state("count", default=0), buffer.row_state("priority", default=1.5)

    buffer.append({"n": 2})
    buffer.append([{"n": 3}, {"n": 4}])

    assert counts.all().tolist() == [0] * 5
    assert priorities.all().tolist() == [1.5] * 5
    assert (counts.all().dtype, priorities.all().dtype) == (np.int64, np.float64)


def test_values_are_set_and_read_by_id():
    """One each or one for all; the last value of an id that stands twice counts; ids that are gone come back."""
    buffer = filled(6)
    state = buffer.row_state("priority")
    buffer.retain(0.5)

    gone = state.set([5, 0, 3, 5], [1, 2, 3, 4.5])
    state.set([4], 9)
    values, missing = state.get([5, 1, 3])

    assert (gone.tolist(), values.tolist(), missing.tolist()) == ([0], [4.5, 3.0], [1])
    assert state.all().tolist() == [3.0, 9.0, 4.5]


def test_it_is_no_column_and_no_change_of_the_rows():
    """Schema, snapshots, version and tables are those of a buffer without it."""
    buffer = filled(3)
    before, version = facts(buffer), buffer.version

    buffer.row_state("n").set([0], [7])

    assert (facts(buffer), buffer.version) == (before, version)
    assert buffer.to_arrow().column_names == ["n"]


SETTINGS = [
    {},
    {"max_size": 40},
    {"max_size": 40, "drop_strategy": "random"},
    {"max_size": 40, "drop_strategy": "lowest:n"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_values_stay_with_their_rows(settings, seed, tmp_path, monkeypatch):
    """Through appends, evictions, thinning, compaction, saving and pickling, as in a dict by id."""
    monkeypatch.setattr(row_state, "MIN_DEAD", seed)
    monkeypatch.setattr(storage, "MIN_DEAD", seed)
    chance, expected = random.Random(seed), {}
    buffer = DatasetBuffer(**settings)
    for step in range(120):
        state = buffer.row_state("priority", default=1.0)
        rows = [{"n": chance.randrange(100)} for _ in range(chance.randrange(12))]
        match chance.randrange(6):
            case 0:
                buffer.append(rows, chance.choice([1.0, 0.5]), chance.choice(["latest", "random"]))
            case 1:
                for row in rows:
                    buffer.append(row)
            case 2:
                buffer.append(rows)
            case 3 if buffer.next_id:
                ids = [chance.randrange(buffer.next_id) for _ in range(8)]
                live = set(buffer.ids.tolist())
                assert state.set(ids, [step + i / 8 for i in range(8)]).tolist() == [i for i in ids if i not in live]
                expected |= {id_: step + i / 8 for i, id_ in enumerate(ids) if id_ in live}
            case 4:
                buffer.save(tmp_path / "rows")
                buffer = DatasetBuffer.load(tmp_path / "rows", mmap=chance.random() < 0.5)
            case 5:
                buffer = pickle.loads(pickle.dumps(buffer))
        ids = buffer.ids.tolist()
        expected = {id_: value for id_, value in expected.items() if id_ in set(ids)}
        assert buffer.row_state("priority", default=1.0).all().tolist() == [expected.get(id_, 1.0) for id_ in ids]


def test_places_do_not_pile_up():
    """However many rows go through a bounded buffer, memory follows the rows that are there."""
    buffer = DatasetBuffer(max_size=100)
    state = buffer.row_state("count", default=0)

    for first in range(0, 100_000, 1_000):
        buffer.append_columns({"n": np.arange(first, first + 1_000)})
        state.set(buffer.ids, first)

    assert state.all().tolist() == [99_000] * 100
    assert len(buffer._row_states["count"]._parts[2]) < 10_000


def test_a_forked_child_has_its_own():
    """What it sets there stays there."""
    buffer = filled(3)
    state = buffer.row_state("priority")
    state.set([1], [5])

    def work(queue):
        state.set([0], [7])
        queue.put(buffer.row_state("priority").all().tolist())

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()

    assert queue.get(timeout=60) == [7.0, 5.0, 0.0]
    child.join()
    assert state.all().tolist() == [0.0, 5.0, 0.0]


def test_a_file_has_row_state_only_where_there_is_some(tmp_path):
    """A file without it is what it always was, and loads."""
    buffer = filled(3)
    buffer.save(tmp_path / "without")
    buffer.row_state("priority").set([1], [0.5])
    buffer.save(tmp_path / "with")

    assert b"row_states" not in (tmp_path / "without").read_bytes()
    assert b'"row_states":[["priority",0.0]]' in (tmp_path / "with").read_bytes()
    assert DatasetBuffer.load(tmp_path / "without").row_state("priority").all().tolist() == [0.0] * 3


def test_damage_to_row_state_is_found(tmp_path):
    """Its bytes are part of the checksum."""
    buffer = filled(3)
    buffer.row_state("priority").set([1], [0.123456789])
    buffer.save(tmp_path / "rows")
    raw = bytearray((tmp_path / "rows").read_bytes())
    raw[raw.index(np.float64(0.123456789).tobytes())] ^= 1
    (tmp_path / "rows").write_bytes(raw)

    with pytest.raises(CorruptDataError, match="checksum"):
        DatasetBuffer.load(tmp_path / "rows")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (["a", "b"], TypeError),
        ([None, 1], TypeError),
        ([True, False], TypeError),
        ([1.5, 2.0], ValueError),
        ([float("nan"), 1], ValueError),
        (np.array([2**63, 1], np.uint64), ValueError),
        ([1, 2, 3], ValueError),
        ([[1, 2]], ValueError),
    ],
)
def test_values_that_do_not_fit_change_nothing(values, error):
    """An integer state holds integers, one per id."""
    buffer = filled(3)
    state = buffer.row_state("count", default=0)

    with pytest.raises(error, match="row state"):
        state.set([0, 1], values)

    assert state.all().tolist() == [0, 0, 0]


@pytest.mark.parametrize("ids", [[3], [-1], [0.5], [[0]]])
def test_ids_that_were_never_given_out_are_refused(ids):
    """As by ``by_id`` and ``update``."""
    with pytest.raises((IndexError, TypeError), match="row id"):
        filled(3).row_state("count").set(ids, 1)


@pytest.mark.parametrize(
    ("name", "default"), [("", 0.0), (5, 0.0), ("x", None), ("x", True), ("x", "0"), ("x", 2**63), ("known", 1.0)]
)
def test_a_bad_name_or_default_is_refused(name, default):
    """Also another default than the one that rows already have."""
    buffer = filled(1)
    buffer.row_state("known")

    with pytest.raises(ConfigError, match="row_state"):
        buffer.row_state(name, default=default)
