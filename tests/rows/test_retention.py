"""Which rows stay: exact counts, the order of survivors, and randomness that one seed decides."""

from __future__ import annotations

import pickle
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from poolish import DatasetBuffer
from poolish.errors import ConfigError, SchemaError
from poolish.rows import retention
from tests.rows.facts import column, facts, plain

pytestmark = pytest.mark.kernels


def filled(n_rows, **settings):
    buffer = DatasetBuffer(**settings)
    buffer.append([{"n": i} for i in range(n_rows)])
    return buffer


def numbers(buffer):
    return column(buffer, "n")


# -- how many

COUNTS = [
    *(
        (10, 0.3, 3),
        (10, 1, 10),
        (10, 0, 0),
        (10, 0.0, 0),
        (1, 0.5, 0),
        (3, 0.5, 2),
        (5, 0.5, 2),
        (7, 0.5, 4),
        (9, 0.5, 4),
    ),
    *(
        (10, 0.25, 2),
        (10, 0.75, 8),
        (10, 0.05, 0),
        (10, 0.15, 2),
        (10, 0.95, 10),
        (10, -1, 0),
        (10, -0.0001, 0),
        (10, -5, 0),
        (0, 0.5, 0),
    ),
    *((10, np.float32(0.5), 5), (10, np.int64(1), 10), (1_000_003, 0.5, 500_002), (10, float("-inf"), 0)),
]


@pytest.mark.parametrize(("n_rows", "fraction", "n_kept"), COUNTS)
def test_a_fraction_keeps_the_count_rounded_half_to_even(n_rows, fraction, n_kept):
    """2.5 of 5 rows are 2, 3.5 of 7 are 4; a negative fraction keeps none."""
    assert retention.n_kept(n_rows, fraction) == n_kept


#: Every policy as a user names it, with the column that the buffers here have.
BY = [*retention.RETENTION, *(f"{kind}:n" for kind in retention.RETENTION_BY_COLUMN)]


@pytest.mark.parametrize("by", BY)
def test_every_policy_keeps_that_many(by):
    """Through ``retain`` and through ``append``."""
    for n_rows, fraction, n_kept in [count for count in COUNTS if count[0] <= 10]:
        retained, appended = filled(n_rows), filled(n_rows)

        retained.retain(fraction, by=by)
        appended.append([{"n": 100}], retain_prior=fraction, retain_prior_by=by)

        assert len(retained) == n_kept
        assert len(appended) == n_kept + 1
        assert numbers(appended)[-1] == 100


# -- which


class PolicyContract:
    """What every policy promises; a new one only has to be added to the table."""

    BY_COLUMN: ClassVar = {**retention.RETENTION_BY_COLUMN, **retention.DROP_BY_COLUMN}

    @pytest.fixture(params=sorted({*retention.RETENTION, *retention.DROP, *BY_COLUMN}))
    def policy(self, request):
        """By age or chance it gets the number of rows; by column it gets values, equal ones among them."""
        if request.param in self.BY_COLUMN:
            pick, values = self.BY_COLUMN[request.param], np.random.default_rng(1).integers(0, 50, 1_000)
            return lambda n_rows, n, rng: pick(values[:n_rows], n, rng)
        return {**retention.RETENTION, **retention.DROP}[request.param]

    @pytest.mark.parametrize("n_rows", [0, 1, 2, 10, 1_000])
    def test_it_gives_that_many_different_rows_in_order(self, policy, n_rows):
        """Numbers in, row numbers out, oldest first."""
        for n_kept in {0, 1, n_rows // 2, max(0, n_rows - 1), n_rows} & set(range(n_rows + 1)):
            rows = list(policy(n_rows, n_kept, np.random.default_rng(0)))

            assert len(rows) == n_kept
            assert rows == sorted(set(rows))
            assert all(0 <= row < n_rows for row in rows)

    def test_the_same_generator_gives_the_same_rows(self, policy):
        """Randomness comes in as an argument."""
        first, second = (list(policy(100, 40, np.random.default_rng(7))) for _ in range(2))

        assert first == second


class TestPolicies(PolicyContract):
    """The policies of poolish."""


@pytest.mark.parametrize(("by", "survivors"), [("latest", [7, 8, 9]), ("oldest", [0, 1, 2])])
def test_latest_and_oldest_keep_an_end(by, survivors):
    """In their old order."""
    buffer = filled(10)

    buffer.retain(0.3, by=by)

    assert numbers(buffer) == survivors
    assert buffer.ids.tolist() == survivors


def test_random_survivors_keep_their_order_and_ids():
    """Oldest to newest, through several thinnings."""
    buffer = filled(1_000)

    for expected in (700, 490, 343):
        buffer.retain(0.7, by="random")
        assert len(buffer) == expected
        assert numbers(buffer) == sorted(numbers(buffer))
        assert buffer.ids.tolist() == numbers(buffer)


def test_random_survivors_are_decided_by_the_seed():
    """The same seed and history give the same rows, another seed gives others."""

    def survivors(seed):
        buffer = filled(200, seed=seed)
        buffer.retain(0.5, by="random")
        buffer.append([{"n": i} for i in range(200, 300)], retain_prior=0.5, retain_prior_by="random")
        return numbers(buffer)

    assert survivors(1) == survivors(1)
    assert survivors(1) != survivors(2)


@pytest.mark.parametrize("fraction", [0.2, 0.8])
def test_every_row_is_as_likely_to_survive_as_any_other(fraction):
    """2,000 seeds: no row survives more or less often than chance allows (5 standard deviations)."""
    counts = np.zeros(20)
    for seed in range(2_000):
        kept = retention.random(20, round(20 * fraction), np.random.default_rng(seed))
        counts[kept] += 1

    spread = np.sqrt(2_000 * fraction * (1 - fraction))
    assert np.abs(counts - 2_000 * fraction).max() < 5 * spread


def test_random_rows_of_a_seed_are_pinned():
    """Changing them is a decision: a rerun of an old experiment would see other rows."""
    thinned, bounded = filled(20, seed=7), DatasetBuffer(max_size=6, drop_strategy="random", seed=7)

    thinned.retain(0.5, by="random")
    for i in range(20):
        bounded.append({"n": i})

    assert numbers(thinned) == [2, 3, 5, 10, 11, 13, 15, 16, 17, 19]
    assert numbers(bounded) == [7, 11, 12, 14, 17, 19]
    assert numbers(filled(20, max_size=6, drop_strategy="random", seed=7)) == [4, 7, 12, 14, 17, 19]
    assert filled(20, seed=7).sample(5)["n"].to_pylist() == [5, 2, 0, 13, 17]


# -- max_size


def test_the_oldest_leave_when_there_are_too_many():
    """One by one or in bulk, the newest ``max_size`` stay."""
    singly, together = DatasetBuffer(max_size=5), DatasetBuffer(max_size=5)

    for i in range(12):
        singly.append({"n": i})
        assert len(singly) == min(i + 1, 5)
    together.append([{"n": i} for i in range(12)])

    assert numbers(singly) == numbers(together) == [7, 8, 9, 10, 11]
    assert singly.ids.tolist() == [7, 8, 9, 10, 11]
    assert singly.is_full


@pytest.mark.parametrize("n_rows", [1, 5, 6, 100, 3_000])
@pytest.mark.parametrize("way", ["singly", "together", "mixed"])
def test_random_rows_leave_and_the_rest_keep_their_order(n_rows, way):
    """New rows are as likely to go as old ones; never more than ``max_size`` are there."""
    buffer = DatasetBuffer(max_size=5, drop_strategy="random")
    for first in range(0, n_rows, {"singly": 1, "together": n_rows, "mixed": 7}[way]):
        chunk = [
            {"n": i} for i in range(first, min(n_rows, first + {"singly": 1, "together": n_rows, "mixed": 7}[way]))
        ]
        buffer.append(chunk[0] if way == "singly" else chunk)
        assert len(buffer) <= 5

    assert len(buffer) == min(n_rows, 5)
    assert numbers(buffer) == sorted(set(numbers(buffer)))
    assert buffer.ids.tolist() == numbers(buffer)
    assert buffer.next_id == n_rows


@pytest.mark.parametrize("n_between", [1, 50])
def test_dropped_rows_do_not_depend_on_when_the_buffer_is_read(n_between):
    """Pending rows are evicted as if each had been stored when it came, so looking changes nothing."""
    watched, unwatched = (DatasetBuffer(max_size=50, drop_strategy="random", seed=3) for _ in range(2))

    for i in range(3_000):
        watched.append({"n": i})
        unwatched.append({"n": i})
        if i % n_between == 0:
            len(watched), watched.ids, watched[-1]

    assert facts(watched) == facts(unwatched)


def test_each_row_that_comes_drives_out_any_row_with_the_same_chance():
    """Of five rows one goes, the new one included: a row survives a step with 4/5, over 1,000 seeds (5 deviations)."""
    counts = np.zeros(8)
    for seed in range(1_000):
        buffer = DatasetBuffer(max_size=4, drop_strategy="random", seed=seed)
        for i in range(8):
            buffer.append({"n": i})
        counts[numbers(buffer)] += 1

    chances = 0.8 ** np.array([4, 4, 4, 4, 4, 3, 2, 1])
    assert (np.abs(counts - 1_000 * chances) < 5 * np.sqrt(1_000 * chances * (1 - chances))).all()


def test_dropped_rows_are_decided_by_the_seed():
    """The same seed and history give the same rows, another seed gives others."""

    def survivors(seed):
        buffer = DatasetBuffer(max_size=100, drop_strategy="random", seed=seed)
        buffer.append([{"n": i} for i in range(150)])
        for i in range(150, 400):
            buffer.append({"n": i})
        return numbers(buffer)

    assert survivors(1) == survivors(1)
    assert survivors(1) != survivors(2)


def test_retention_comes_before_the_new_rows_and_the_size_after_them():
    """Of ten rows half stay; with four new ones that makes nine, and the oldest two go."""
    buffer = filled(10, max_size=10)

    buffer.append([{"n": i} for i in range(10, 16)], retain_prior=0.5)

    assert numbers(buffer) == [6, 7, 8, 9, 10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("by", BY)
def test_the_fraction_is_of_the_prior_rows_only(by):
    """However many come, and whether the prior ones are stored or pending."""
    buffer = filled(4)
    for i in range(4, 10):
        buffer.append({"n": i})

    buffer.append([{"n": i} for i in range(100, 200)], retain_prior=0.2, retain_prior_by=by)

    kept = [n for n in numbers(buffer) if n < 100]
    assert kept == {"latest": [8, 9], "oldest": [0, 1], "top:n": [8, 9]}.get(by, kept)
    assert len(kept) == 2
    assert len(buffer) == 102


def test_new_rows_beyond_the_size_drive_each_other_out():
    """An append larger than the buffer leaves its newest rows."""
    buffer = filled(3, max_size=4)

    buffer.append([{"n": i} for i in range(10, 30)], retain_prior=0.5)

    assert numbers(buffer) == [26, 27, 28, 29]
    assert buffer.next_id == 23


# -- by column


def scored(*scores, **settings):
    buffer = DatasetBuffer(**settings)
    buffer.append([{"n": i, "score": score} for i, score in enumerate(scores)])
    return buffer


@pytest.mark.parametrize("way", ["singly", "together"])
def test_the_lowest_leave_and_of_equal_ones_the_oldest(way):
    """Whether rows come one by one or in bulk, the same rows stay, in their order and with their ids."""
    scores = [5, 1, 1, 4, 1, 9, 4, 1]
    buffer = scored(*scores, max_size=5, drop_strategy="lowest:score")
    if way == "singly":
        buffer = DatasetBuffer(max_size=5, drop_strategy="lowest:score")
        for i, score in enumerate(scores):
            buffer.append({"n": i, "score": score})

    assert numbers(buffer) == buffer.ids.tolist() == [0, 3, 5, 6, 7]


@pytest.mark.parametrize("history", ["plain", "shifted", "riddled"])
def test_the_top_rows_stay_and_of_equal_ones_the_newest(history):
    """After rows have left from the front or from the middle too."""
    buffer = scored(0.5, 9.0, 2.0, -1.0, 2.0, float("inf"), 2.0, float("-inf"))
    expected = {"plain": [1, 4, 5, 6], "shifted": [5, 6], "riddled": [5]}[history]
    if history == "shifted":
        buffer.retain(0.5)
    elif history == "riddled":
        buffer.retain(0.375, by="top:n")
        buffer.retain(0.67, by="top:score")

    buffer.retain(0.5, by="top:score")

    assert numbers(buffer) == buffer.ids.tolist() == expected


def test_ranking_of_large_integers_is_exact():
    """2**53 and its neighbours are the same float."""
    buffer = scored(2**53 + 1, 2**53, 2**53 + 1, 2**53, max_size=2, drop_strategy="lowest:score")

    assert numbers(buffer) == [0, 2]


def test_updated_values_decide_what_leaves_next():
    """Priorities change while rows wait."""
    buffer = scored(3.0, 2.0, 1.0, max_size=3, drop_strategy="lowest:score")

    buffer.update([0, 2], {"score": [0.0, 5.0]})
    buffer.append({"n": 3, "score": 4.0})

    assert numbers(buffer) == [1, 2, 3]


@pytest.mark.parametrize("bad", [None, float("nan")])
@pytest.mark.parametrize("way", ["row", "rows", "columns", "table", "mask", "update"])
def test_a_row_without_a_rank_is_rejected_before_it_enters(bad, way):
    """With its row and the policy, and nothing changes; a row that a mask leaves out does not count."""
    buffer = scored(3.0, 2.0, max_size=4, drop_strategy="lowest:score")
    before = facts(buffer)
    rows = [{"n": 7, "score": 1.0}, {"n": 8, "score": bad}]
    table = pa.table({"n": [7, 8], "score": pa.array([1.0, bad], from_pandas=False)})
    ways = {
        "row": lambda: buffer.append(rows[1]),
        "rows": lambda: buffer.append(rows),
        "columns": lambda: buffer.append_columns({"n": [7, 8], "score": [1.0, bad]}),
        "table": lambda: buffer.append(table),
        "mask": lambda: buffer.append_where(table, [False, True]),
        "update": lambda: buffer.update([0, 1], {"score": [1.0, bad]}),
    }

    with pytest.raises(SchemaError, match=r"row [01], column 'score': drop_strategy='lowest:score' cannot rank"):
        ways[way]()

    assert facts(buffer) == before
    buffer.append_where(table, [True, False])
    assert len(buffer) == 3


@pytest.mark.parametrize("bad", [None, float("nan")])
def test_rows_without_a_rank_cannot_be_retained_by_it(bad):
    """The first of them is named, and nothing changes."""
    buffer = scored(3.0, 2.0, bad, 1.0)
    before = facts(buffer)

    for attack in (
        lambda: buffer.retain(0.5, by="top:score"),
        lambda: buffer.append({"n": 9, "score": 1.0}, 0.5, "top:score"),
    ):
        with pytest.raises(SchemaError, match=r"row 2, column 'score': .*='top:score' cannot rank"):
            attack()

    assert facts(buffer) == before


@pytest.mark.parametrize(
    ("column", "rule"), [("scores", "no column 'scores'; there are"), ("text", "holds text; name a column of numbers")]
)
def test_a_policy_needs_a_column_of_numbers(column, rule):
    """Checked as soon as the columns are known: declared, appended, or there already."""
    row = {"text": "rye", "score": 1.0}
    buffer, ranked = DatasetBuffer(), DatasetBuffer(max_size=9, drop_strategy=f"lowest:{column}")
    buffer.append(row)
    for attack in (
        lambda: DatasetBuffer(drop_strategy=f"lowest:{column}", schema={"text": "string", "score": "float64"}),
        lambda: ranked.append(row),
        lambda: buffer.retain(1.0, by=f"top:{column}"),
        lambda: buffer.append(row, 0.5, f"top:{column}"),
    ):
        with pytest.raises(ConfigError, match=rule):
            attack()

    assert (len(buffer), len(ranked), ranked.schema) == (1, 0, None)


@pytest.mark.parametrize("way", ["save", "pickle"])
def test_a_policy_by_column_survives(way, tmp_path):
    """In a file and in another process."""
    buffer = scored(3, 1, 2, max_size=3, drop_strategy="lowest:score")
    buffer.save(tmp_path / "rows")

    copy = DatasetBuffer.load(tmp_path / "rows") if way == "save" else pickle.loads(pickle.dumps(buffer))
    copy.append([{"n": 3, "score": 2}, {"n": 4, "score": 0}])

    assert (copy.drop_strategy, numbers(copy)) == ("lowest:score", [0, 2, 3])
    with pytest.raises(SchemaError, match="cannot rank"):
        copy.append({"n": 5, "score": None})


def test_clearing_keeps_schema_ids_and_settings():
    """Ids are never used again, and what comes next must fit."""
    buffer = filled(3, max_size=5)

    buffer.clear()

    assert (len(buffer), buffer.next_id, buffer.generations, buffer.max_size) == (0, 3, [], 5)
    with pytest.raises(ValueError, match="column 'n'"):
        buffer.append({"n": "text"})
    buffer.append({"n": 9})
    assert buffer.ids.tolist() == [3]


def test_generations_tell_what_each_append_brought():
    """Ranges of ids, as long as rows of them may be left."""
    buffer = DatasetBuffer()
    buffer.append([{"n": 0}, {"n": 1}])
    buffer.append({"n": 2})
    buffer.append([{"n": 3}, {"n": 4}, {"n": 5}])

    assert buffer.generations == [(0, 2), (2, 3), (3, 6)]
    buffer.retain(0.5)
    assert buffer.generations == [(3, 6)]
    buffer.append({"n": 6})
    assert buffer.generations == [(3, 6), (6, 7)]


# -- changing rows


@pytest.mark.parametrize("history", ["plain", "shifted", "riddled"])
def test_update_changes_exactly_the_rows_it_names(history):
    """By id, in the order given; the last value of an id that stands twice counts; the ids that are gone come back."""
    buffer = DatasetBuffer(seed=1)
    buffer.append([{"n": i, "t": str(i), "x": np.full(2, i), "w": ["a"] * i, "m": None} for i in range(8)])
    if history != "plain":
        buffer.retain(0.5, by="latest" if history == "shifted" else "random")
    expected = [buffer[i] for i in range(len(buffer))]
    ids = buffer.ids.tolist()
    new = {
        "n": [10, 20, 30],
        "t": ["x", "y", None],
        "x": np.array([[1, 1], [2, 2], [3, 3]]),
        "w": [[], ["b"], ["c"]],
        "m": [None] * 3,
    }

    gone = buffer.update([ids[2], ids[0], ids[2]], new)

    expected[0].update(n=20, t="y", x=np.array([2, 2]), w=["b"])
    expected[2].update(n=30, t=None, x=np.array([3, 3]), w=["c"])
    assert gone.tolist() == []
    assert plain([buffer[i] for i in range(len(buffer))]) == plain(expected)
    assert buffer.ids.tolist() == ids


def test_update_tells_which_rows_are_gone():
    """Priorities may come back for rows that have left meanwhile; the others are changed."""
    buffer = filled(6)
    buffer.retain(0.5)

    gone = buffer.update([0, 4, 2], {"n": [100, 104, 102]})

    assert gone.tolist() == [0, 2]
    assert numbers(buffer) == [3, 104, 5]


@pytest.mark.parametrize(
    "values",
    [
        [7, 8],
        (7, 8),
        np.array([7, 8], np.int32),
        np.array([7.0, 8.0]),
        pa.array([7, 8], pa.uint8()),
        pa.chunked_array([[7], [8]]),
        range(7, 9),
    ],
    ids=lambda v: type(v).__name__,
)
def test_new_values_may_come_in_any_form(values):
    """Lists, arrays, Arrow; the column's type stays."""
    buffer = filled(3)

    buffer.update([0, 2], {"n": values})

    assert numbers(buffer) == [7, 1, 8]
    assert str(buffer.schema) == "Schema(n: int64)"


def test_update_reaches_pending_rows_and_no_earlier_snapshot():
    """Later snapshots see the new values, earlier ones the old."""
    buffer = filled(2)
    before = buffer.snapshot()
    buffer.append({"n": 2})

    buffer.update([0, 2], {"n": [10, 12]})

    assert before.to_pydict() == {"n": [0, 1]}
    assert numbers(buffer) == [10, 1, 12]


def test_map_makes_a_new_buffer_of_what_the_function_returns():
    """Settings stay, rows are new; the old buffer is untouched."""
    buffer = filled(4, max_size=10)
    before = facts(buffer)

    doubled = buffer.map(lambda row: {"n": row["n"] * 2, "text": str(row["n"])})

    assert doubled.to_pydict() == {"n": [0, 2, 4, 6], "text": ["0", "1", "2", "3"]}
    assert (doubled.max_size, doubled.uuid != buffer.uuid) == (10, True)
    assert facts(buffer) == before


@pytest.mark.parametrize(
    "keep",
    [
        lambda row: row["n"] % 2,
        np.array([False, True] * 3),
        [False, True] * 3,
        pc.field("n").isin([1, 3, 5]),
        pa.array([False, True] * 3),
    ],
    ids=["function", "array", "list", "expression", "arrow"],
)
def test_filter_makes_a_new_buffer_of_the_rows_that_fit(keep):
    """A function of a row, a mask or an Arrow expression; the schema stays, also where nothing does."""
    buffer = filled(6)

    kept = buffer.filter(keep)

    assert numbers(kept) == [1, 3, 5]
    assert kept.schema == buffer.schema
    assert numbers(buffer) == [0, 1, 2, 3, 4, 5]


def test_filter_that_keeps_nothing_keeps_the_schema():
    """The next append must still fit."""
    buffer = filled(3)

    for keep in (lambda row: False, np.zeros(3, bool), pc.field("n") > 5):
        nothing = buffer.filter(keep)
        assert (len(nothing), nothing.schema) == (0, buffer.schema)


def test_map_of_nothing_is_an_empty_buffer():
    """There is no row to tell a schema from."""
    buffer = filled(3)
    buffer.clear()

    assert len(buffer.map(lambda row: row)) == 0


# -- sampling


def test_samples_without_repeats_are_different_rows():
    """As many as asked for, up to all of them."""
    buffer = filled(20)

    assert sorted(buffer.sample(20)["n"].to_pylist()) == list(range(20))
    assert len(set(buffer.sample(7)["n"].to_pylist())) == 7
    assert buffer.sample(0).num_rows == 0


def test_samples_with_repeats_may_be_more_than_the_rows():
    """Every row as likely as any other."""
    counts = np.bincount(filled(5).sample(5_000, replace=True)["n"].to_numpy(), minlength=5)

    assert np.abs(counts - 1_000).max() < 5 * np.sqrt(5_000 * 0.2 * 0.8)


def test_weights_decide_how_often_rows_come():
    """Given as numbers or as the name of a column; a weight of 0 never comes."""
    buffer = DatasetBuffer()
    buffer.append([{"n": i, "w": float(i)} for i in range(4)])

    for weights in ([0, 1, 2, 3], np.array([0.0, 1, 2, 3], np.float32), "w"):
        counts = np.bincount(buffer.sample(6_000, weights=weights, replace=True)["n"].to_numpy(), minlength=4)
        assert counts[0] == 0
        assert np.abs(counts[1:] - [1_000, 2_000, 3_000]).max() < 5 * np.sqrt(6_000 * 0.25)
    assert sorted(buffer.sample(3, weights="w")["n"].to_pylist()) == [1, 2, 3]


def test_samples_follow_the_seed_or_the_generator():
    """The buffer's own draws go on from call to call; a generator of the caller's decides alone."""
    first, second = filled(50, seed=4), filled(50, seed=4)

    drawn = [first.sample(5)["n"].to_pylist() for _ in range(2)]

    assert drawn[0] != drawn[1]
    assert drawn == [second.sample(5)["n"].to_pylist() for _ in range(2)]
    assert drawn[0] != filled(50, seed=5).sample(5)["n"].to_pylist()
    assert first.sample(5, rng=np.random.default_rng(1)).equals(second.sample(5, rng=np.random.default_rng(1)))


@pytest.mark.parametrize("history", ["plain", "riddled"])
def test_samples_come_with_their_ids_where_asked(history):
    """From a buffer or a snapshot; the same rows as without, and ids that find them again."""
    buffer, same = filled(50, seed=4), filled(50, seed=4)
    if history == "riddled":
        buffer.retain(0.5, by="random")
        same.retain(0.5, by="random")

    table, ids = buffer.sample(9, replace=True, with_ids=True)
    again, again_ids = buffer.snapshot().sample(9, rng=np.random.default_rng(1), with_ids=True)

    assert table.equals(same.sample(9, replace=True))
    assert buffer.by_id(ids).rows.equals(table)
    assert buffer.by_id(again_ids).rows.equals(again)
    assert [len(each) for each in buffer.sample(0, with_ids=True)] == [0, 0]
