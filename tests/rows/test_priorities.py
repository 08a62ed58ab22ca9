"""Rows drawn by priority: a dict of priorities by row id, whatever happens to the rows."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.errors import ConfigError, CorruptDataError
from poolish.rows import storage
from tests.effort import times
from tests.rows.facts import facts

pytestmark = pytest.mark.kernels


def filled(n_rows, **options):
    buffer = DatasetBuffer(**options)
    buffer.append([{"n": i, "score": float(i * 7 % 5)} for i in range(n_rows)])
    return buffer


class Model:
    """Priorities by row id, and the largest that there was when they were last used."""

    def __init__(self):
        self.known, self.largest = {}, 1.0

    def use(self, ids):
        before = max(self.known.values(), default=0) or self.largest
        self.known = {id_: self.known[id_] for id_ in ids if id_ in self.known}
        self.largest = max(self.known.values(), default=0) or before
        self.known.update({id_: self.largest for id_ in ids if id_ not in self.known})

    def update(self, ids, values):
        for id_, value in zip(ids, values, strict=True):
            if id_ in self.known:
                self.known[id_] = value
        return [id_ for id_ in ids if id_ not in self.known]


SETTINGS = [{}, {"max_size": 30}, {"max_size": 30, "drop_strategy": "random"}]
SETTINGS += [{"max_size": 30, "drop_strategy": "lowest:score"}, {"max_size": 30, "max_times_sampled": 3}]
numbers = st.integers(0, 10**6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 25)),
        st.tuples(st.just("singly"), st.integers(1, 25)),
        *(st.tuples(st.just(name), numbers) for name in ("update", "update", "sample", "retain", "delete", "change")),
        *(st.tuples(st.just(name), st.none()) for name in ("pickle", "read", "look", "look")),
        st.tuples(st.sampled_from(["save", "clear", "read", "read"]), st.none()),
    ),
    min_size=40,
    max_size=60,
)


@settings(max_examples=times(200, push=60))
@given(options=st.sampled_from(SETTINGS), dead=st.sampled_from([0, 5, 1024]), steps=steps)
def test_priorities_are_a_dict_by_row_id(tmp_path_factory, options, dead, steps):
    """Through appends, evictions, deletion, compaction, saving and pickling; new rows get the largest that is left."""
    folder = tmp_path_factory.mktemp("buffers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "MIN_DEAD", dead)
        buffer, model, is_used = filled(5, **options), Model(), False
        for name, argument in steps:
            rng = np.random.default_rng(argument or 0)
            rows = [{"n": 0, "score": float(s)} for s in rng.integers(0, 9, (argument or 0) % 26)]
            if name == "append":
                buffer.append(rows)
            elif name == "singly":
                for row in rows:
                    buffer.append(row)
            elif name == "retain":
                buffer.retain(0.6, by=str(rng.choice(["random", "latest", "oldest", "top:score"])))
            elif name == "delete" and len(buffer):
                buffer.delete(rng.choice(buffer.next_id, 4))
            elif name == "change" and len(buffer):
                buffer.update(rng.choice(buffer.ids, 3), {"score": rng.random(3)})
            elif name == "clear":
                buffer.clear()
            elif name == "read":
                assert len(buffer.snapshot()) == len(buffer)
            elif name in ("save", "pickle"):
                if is_used:
                    model.use(buffer.ids.tolist())
                if name == "save":
                    buffer.save(folder / "a.rows")
                    buffer = DatasetBuffer.load(folder / "a.rows")
                else:
                    buffer = pickle.loads(pickle.dumps(buffer))
            elif name == "update" and buffer.next_id:
                model.use(buffer.ids.tolist())
                ids, is_used = rng.choice(buffer.next_id, 6), True
                values = np.round(rng.random(6) * 8) / 4
                gone = buffer.update_priorities(ids, values, priority="td")
                assert gone.tolist() == model.update(ids.tolist(), values.tolist())
            elif name == "sample" and len(buffer):
                model.use(buffer.ids.tolist())
                is_used = True
                if max(model.known.values()) > 0:
                    before = buffer.snapshot()
                    batch = buffer.sample(4, priority="td", alpha=1.0, rng=rng)
                    total = sum(model.known.values())
                    assert batch.probabilities.tolist() == pytest.approx(
                        [model.known[i] / total for i in batch.ids.tolist()]
                    )
                    assert batch.rows.equals(before.by_id(batch.ids).rows)

            if name in ("update", "save", "pickle", "look") and is_used:
                model.use(buffer.ids.tolist())
                assert buffer.priorities("td").tolist() == [model.known[i] for i in buffer.ids.tolist()]


def test_frequencies_and_weights_are_those_of_the_priorities():
    """Chi-square on single draws from a buffer with holes; weights with beta=1 undo what the priorities do."""
    buffer = filled(60)
    buffer.retain(0.5, by="random")
    ids, rng = buffer.ids, np.random.default_rng(2)
    priorities = rng.random(30) + 0.1
    buffer.update_priorities(ids, priorities, priority="td")

    batches = [buffer.sample(1, priority="td", alpha=0.7, beta=1.0, rng=rng) for _ in range(3_000)]

    shares = priorities**0.7 / (priorities**0.7).sum()
    drawn = np.concatenate([batch.ids for batch in batches])
    counts = np.array([(drawn == id_).sum() for id_ in ids])
    assert ((counts - 3_000 * shares) ** 2 / (3_000 * shares)).sum() < 68  # 29 degrees of freedom: p = 5e-5
    weights = np.concatenate([batch.weights for batch in batches])
    assert weights.max() <= 1
    values = np.concatenate([batch.rows["n"].to_numpy() for batch in batches])
    estimate = (weights * values).sum() / weights.sum()
    assert estimate == pytest.approx(buffer.to_numpy()["n"].mean(), rel=0.05)


def test_new_rows_get_the_largest_priority_that_is_there_not_the_largest_that_ever_was():
    """Once priorities have shrunk, so do those of new rows; 1.0 before there are any, and where all are 0."""
    buffer = filled(3)
    buffer.update_priorities([0, 1, 2], [100.0, 0.5, 0.25], priority="td")
    buffer.update_priorities([0], [0.125])
    buffer.append({"n": 3, "score": 0.0})
    assert buffer.priorities().tolist() == [0.125, 0.5, 0.25, 0.5]

    buffer.update_priorities([0, 1, 2, 3], 0.0)
    with pytest.raises(ValueError, match="no priority is above 0"):
        buffer.sample(1, priority="td")
    buffer.append({"n": 4, "score": 0.0})

    assert set(buffer.sample(5, priority="td").ids.tolist()) == {4}


def test_several_priorities_lie_side_by_side():
    """Each name has its own; without a name the only one is meant, or an error asks which."""
    buffer = filled(4)
    with pytest.raises(ConfigError, match=r"which priorities\? This buffer has none yet; pass priority='td'"):
        buffer.update_priorities([0], [1.0])
    buffer.update_priorities([0], [5.0], priority="td")
    buffer.update_priorities([1], [7.0], priority="novelty")

    with pytest.raises(ConfigError, match="has 'td', 'novelty'"):
        buffer.update_priorities([0], [1.0])

    assert buffer.priorities("td").tolist() == [5.0, 1.0, 1.0, 1.0]
    assert buffer.priorities("novelty").tolist() == [1.0, 7.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [float("nan"), -0.5, float("inf")])
def test_a_bad_priority_names_its_row_and_changes_none(bad):
    """All or nothing, also where the row is gone."""
    buffer = filled(4, max_size=3)
    buffer.update_priorities([1, 2, 3], [1.0, 2.0, 3.0], priority="td")

    for id_ in (0, 2):
        with pytest.raises(ValueError, match=f"the priority of row id {id_} is"):
            buffer.update_priorities([3, id_], [9.0, bad])

    assert buffer.priorities().tolist() == [1.0, 2.0, 3.0]


def test_wrong_arguments_are_errors():
    """Ids that were never given out, names that are none, exponents that are none, weights beside priorities."""
    buffer = filled(3)

    with pytest.raises(IndexError, match="row id 3 was never given out"):
        buffer.update_priorities([3], [1.0], priority="td")
    with pytest.raises(ValueError, match="shape"):
        buffer.update_priorities([0, 1], [1.0, 2.0, 3.0], priority="td")
    with pytest.raises(ConfigError, match="a name is text"):
        buffer.sample(1, priority="")
    with pytest.raises(ConfigError, match="alpha is a finite number"):
        buffer.sample(1, priority="td", alpha=-1)
    with pytest.raises(ConfigError, match="weights or priority, not both"):
        buffer.sample(1, weights="score", priority="td")
    with pytest.raises(ValueError, match="no priority is above 0"):
        DatasetBuffer(schema={"x": "int64"}).sample(1, priority="td")
    assert len(DatasetBuffer(schema={"x": "int64"}).sample(0, priority="td").ids) == 0


def test_a_snapshot_carries_no_priorities_and_says_so():
    """They change with every training step, so they belong to the buffer; nothing else of it changes either."""
    buffer = filled(3)
    before, version = facts(buffer), buffer.version
    buffer.update_priorities([0], [5.0], priority="td")
    buffer.sample(2, priority="td")

    with pytest.raises(ConfigError, match=r"a snapshot carries no priorities.*buffer.sample\(2, priority='td'\)"):
        buffer.snapshot().sample(2, priority="td")

    assert (facts(buffer), buffer.version) == (before, version)


def test_draws_follow_the_seed_or_the_generator_given():
    """The same seed draws the same rows, and so does a loaded copy from where the original was saved."""
    batches = [filled(50, seed=seed).sample(20, priority="td").ids.tolist() for seed in (1, 1, 2)]
    given = [filled(50).sample(20, priority="td", rng=np.random.default_rng(5)).ids.tolist() for _ in range(2)]
    buffer = filled(50)
    buffer.sample(3, priority="td")
    again = copy.deepcopy(buffer)

    assert batches[0] == batches[1] != batches[2]
    assert given[0] == given[1]
    assert buffer.sample(9, priority="td").ids.tolist() == again.sample(9, priority="td").ids.tolist()


def test_tensors_are_ids_and_priorities_too():
    """As a training step has them."""
    torch = pytest.importorskip("torch")
    buffer = filled(3)

    gone = buffer.update_priorities(torch.tensor([0, 2]), torch.tensor([2.0, 4.0]), priority="td")

    assert (gone.tolist(), buffer.priorities().tolist()) == ([], [2.0, 1.0, 4.0])


def report_child(buffer, pipe):
    buffer.update_priorities([0], [9.0])
    buffer.append({"n": 9, "score": 0.0})
    pipe.send(buffer.priorities().tolist())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_has_priorities_of_its_own(method):
    """A forked or spawned process begins with those of the moment, and what it changes stays there."""
    buffer = filled(2)
    buffer.update_priorities([0, 1], [2.0, 3.0], priority="td")
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context(method).Process(target=report_child, args=(buffer, there))

    process.start()
    found = here.recv() if here.poll(60) else None
    process.join()

    assert found == [9.0, 3.0, 9.0]
    assert buffer.priorities().tolist() == [2.0, 3.0]


def test_a_file_with_wrong_priorities_is_damaged(tmp_path, monkeypatch):
    """NaN, negative ones, or another number of them than rows, under a right checksum."""
    buffer = filled(3)
    buffer.update_priorities([0], [2.0], priority="td")
    for wrong in ([1.0, float("nan"), 1.0], [1.0, -1.0, 1.0], [1.0, 2.0]):
        saved = [each._replace(values=np.array(wrong)) for each in buffer._saved_priorities(buffer.snapshot())]
        monkeypatch.setattr(buffer, "_saved_priorities", lambda snapshot, saved=saved: saved)
        buffer.save(tmp_path / "a.rows")
        monkeypatch.undo()

        with pytest.raises(CorruptDataError, match=r"priorities|parts are not as long"):
            DatasetBuffer.load(tmp_path / "a.rows")
