"""Random operations on a buffer and on a plain list of dicts give the same answers.

Two buffers with the same seed go through the same operations. One is read after each of them, the other only now and
then: what a buffer holds must not depend on when somebody looked. Random policies cannot be predicted by a list, so the
model checks what they promise (the right number, nothing that had to go, in the old order) and goes on with what they
kept.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from poolish import DatasetBuffer
from poolish.errors import ConfigError, SchemaError
from poolish.rows import buffer as buffer_module
from poolish.rows import columns, normalizers, storage
from poolish.rows.snapshot import Snapshot
from poolish.schema import Field, is_resolved
from tests.effort import times
from tests.rows.facts import plain
from tests.rows.kinds import KINDS, Row, cell_of, columns_of, listed, rows_of, schema_of, table_of

pytestmark = pytest.mark.kernels

FRACTIONS = st.sampled_from([1.0, 1.0, 0.5, 0.9, 0.1, 0.25, 0.0, 1, -1])
POLICIES = st.sampled_from(["latest", "oldest", "random", "top:key"])
NUMBERS = st.lists(st.integers(-10, 200), max_size=12)
WAYS = st.sampled_from(["list", "generator", "columns", "table", "masked table"])
FAULTS = st.sampled_from(["object", "number", "key", "error"])
COLUMN_KINDS = sorted(set(KINDS) - {"int", "moment"})


class Model:
    """What a buffer should hold: the rows by id, oldest first, and the id at which each append began."""

    def __init__(self, max_size: int | None, drop_strategy: str) -> None:
        self.max_size, self.drop_strategy = max_size, drop_strategy
        self.rows: dict[int, Row] = {}
        self.starts: list[int] = []
        self.next_id = 0

    def append(self, rows: Sequence[Row], fraction: float, by: str, survivors: list[int]) -> None:
        """Thin, add, bound; ``survivors`` must be what that leaves, or may leave where chance decides."""
        kept, is_random = self._kept(fraction, by)
        n_kept = len(self.rows) if not is_random else max(0, round(len(self.rows) * fraction))
        new = list(range(self.next_id, self.next_id + len(rows)))
        n_left = n_kept if is_random else len(kept)
        n_rows = n_left + len(new) if self.max_size is None else min(n_left + len(new), self.max_size)
        if n_rows < n_left + len(new) and self.drop_strategy == "lowest:key":
            if not is_random:
                arrived = {**self.rows, **dict(zip(new, rows, strict=True))}
                left = set(sorted([*kept, *new], key=lambda i: arrived[i]["key"])[-n_rows:])
                kept, new = [i for i in kept if i in left], [i for i in new if i in left]
        elif n_rows < n_left + len(new) and self.drop_strategy == "oldest":
            new = new[max(0, len(new) - n_rows) :]
            kept = kept if is_random else kept[len(kept) + len(new) - n_rows :]
        elif n_rows < n_left + len(new):
            is_random = True
        assert len(survivors) == n_rows
        assert survivors == [i for i in [*kept, *new] if i in set(survivors)]
        assert is_random or survivors == [*kept, *new]
        assert self.drop_strategy != "oldest" or survivors[len(survivors) - len(new) :] == new
        self._adopt(rows, survivors)

    def _kept(self, fraction: float, by: str) -> tuple[list[int], bool]:
        ids = list(self.rows)
        n = max(0, round(len(ids) * fraction))
        if by == "random" and 0 < n < len(ids):
            return ids, True
        if by == "top:key":
            top = sorted(ids, key=lambda i: self.rows[i]["key"])[len(ids) - n :]
            return sorted(top), False
        return (ids[:n] if by == "oldest" else ids[len(ids) - n :]), False

    def _adopt(self, rows: Sequence[Row], survivors: list[int]) -> None:
        arrived = {**self.rows, **{self.next_id + i: dict(row) for i, row in enumerate(rows)}}
        if rows:
            self.starts.append(self.next_id)
        self.next_id += len(rows)
        self.rows = {i: arrived[i] for i in survivors}

    @property
    def generations(self) -> list[tuple[int, int]]:
        """The appends of which rows may be left: those up to the oldest row are over."""
        oldest = next(iter(self.rows), self.next_id)
        ranges = zip(self.starts, [*self.starts, self.next_id][1:], strict=True)
        return [(first, last) for first, last in ranges if last > oldest]

    def facts(self) -> dict[str, Any]:
        return {
            "rows": plain(list(self.rows.values())),
            "ids": list(self.rows),
            "generations": self.generations,
            "next_id": self.next_id,
        }


def facts_of(rows: DatasetBuffer | Snapshot) -> dict[str, Any]:
    return {
        "rows": plain(listed(rows.to_pydict())),
        "ids": rows.ids.tolist(),
        "generations": rows.generations,
        "next_id": rows.next_id,
    }


class BufferMachine(RuleBasedStateMachine):
    """``unread`` is looked at now and then, ``read`` after every operation; both do as the model says."""

    sizes: st.SearchStrategy[int | None] = st.none()
    strategies: st.SearchStrategy[str] = st.just("oldest")

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.folder = Path(self.patches.enter_context(tempfile.TemporaryDirectory()))
        self.patches.enter_context(mock.patch("os.fsync"))  # power cuts are not this test's business
        self.kept: list[tuple[Snapshot, Any, dict[str, Any], bytes]] = []

    def patch(self, module: Any, name: str, value: int) -> None:
        self.patches.enter_context(mock.patch.object(module, name, value))

    @initialize(data=st.data(), salt=st.integers(0, 2), nulls=st.sampled_from([0.0, 0.2, 0.9]))
    def begin(self, data: st.DataObject, salt: int, nulls: float) -> None:
        self.salt, self.nulls = salt, nulls
        self.names = data.draw(st.lists(st.sampled_from(COLUMN_KINDS), max_size=4, unique=True), "columns")
        max_size, drop_strategy = data.draw(self.sizes, "max_size"), data.draw(self.strategies, "drop_strategy")
        is_ragged = any(KINDS[name].is_ragged for name in self.names)
        self.is_declared = is_ragged or data.draw(st.booleans(), "declared")
        self.patch(storage, "MIN_DEAD", data.draw(st.sampled_from([0, 3, 1024]), "MIN_DEAD"))
        self.patch(columns, "CHOSEN_ROWS", data.draw(st.sampled_from([1, 5, 2048]), "CHOSEN_ROWS"))
        self.patch(normalizers, "CHUNK_ROWS", data.draw(st.sampled_from([1, 4, 8192]), "CHUNK_ROWS"))
        self.patch(buffer_module, "PENDING_ROWS", data.draw(st.sampled_from([1, 3, 1024]), "PENDING_ROWS"))
        settings_ = {"seed": salt, "schema": schema_of(self.names) if self.is_declared else None}
        self.unread = DatasetBuffer(max_size, drop_strategy, **settings_)
        self.read = DatasetBuffer(max_size, drop_strategy, **settings_)
        self.model = Model(max_size, drop_strategy)
        self.next_key = 0

    def both(self) -> tuple[DatasetBuffer, DatasetBuffer]:
        return self.unread, self.read

    def new_rows(self, n: int) -> list[Row]:
        self.next_key += n
        return rows_of(self.names, self.next_key - n, n, self.salt, self.nulls)

    def settled(self, rows: Sequence[Row], fraction: float, by: str) -> None:
        """The model follows the buffer that is read; the other one may not even know how many rows wait."""
        self.model.append(rows, fraction, by, self.read.ids.tolist())
        assert len(self.unread) == len(self.model.rows)
        assert self.read.generations == self.model.generations
        assert self.read.next_id == self.model.next_id

    # -- changing

    @rule()
    def append_one(self) -> None:
        (row,) = self.new_rows(1)
        for buffer in self.both():
            buffer.append(row)
        self.settled([row], 1.0, "latest")

    @rule(n=st.integers(1, 12), fraction=FRACTIONS, by=POLICIES, how=WAYS)
    def append_many(self, n: int, fraction: float, by: str, how: str) -> None:
        rows = self.new_rows(n)
        for buffer in self.both():
            if how == "columns":
                buffer.append_columns(columns_of(self.names, rows), fraction, by)
            elif "table" in how and all(KINDS[name].arrow is not None for name in self.names):
                if how == "table":
                    buffer.append(table_of(self.names, rows), fraction, by)
                else:
                    twice = table_of(self.names, [row for row in rows for _ in range(2)])
                    buffer.append_where(twice, np.arange(2 * n) % 2 == 1, fraction, by)
            else:
                buffer.append(iter(rows) if how == "generator" else rows, fraction, by)
        self.settled(rows, fraction, by)

    @rule(fraction=FRACTIONS, by=POLICIES)
    def append_one_over_fewer(self, fraction: float, by: str) -> None:
        (row,) = self.new_rows(1)
        for buffer in self.both():
            buffer.append(row, retain_prior=fraction, retain_prior_by=by)
        self.settled([row], fraction, by)

    @rule(fraction=FRACTIONS, by=POLICIES, how=st.sampled_from(["retain", "append nothing", "clear"]))
    def thin(self, fraction: float, by: str, how: str) -> None:
        for buffer in self.both():
            if how == "retain":
                buffer.retain(fraction, by=by)
            elif how == "clear":
                buffer.clear()
            else:
                buffer.append([], fraction, by)
        self.settled([], -1 if how == "clear" else fraction, by)

    @rule(data=st.data(), as_arrays=st.booleans())
    def update(self, data: st.DataObject, as_arrays: bool) -> None:
        schema = self.read.schema
        open_names = [name for name in self.names if schema is None or not is_resolved(schema[name].type)]
        names = data.draw(st.lists(st.sampled_from(self.names), unique=True), "columns") if self.names else []
        names = [name for name in names if name not in open_names]
        if not names:
            return
        n_ids = self.model.next_id
        ids = data.draw(st.lists(st.integers(0, n_ids - 1), max_size=6), "ids") if n_ids else []
        keys = range(self.next_key, self.next_key + len(ids))
        self.next_key += len(ids)
        rows = [{name: cell_of(name, key, self.salt, self.nulls) for name in names} for key in keys]
        columns = {name: [row[name] for row in rows] for name in names}
        if as_arrays and rows:
            columns = {name: columns_of([name], [{"key": 0, **row} for row in rows])[name] for name in names}
        for buffer in self.both():
            assert buffer.update(ids, columns).tolist() == [i for i in ids if i not in self.model.rows]
        for i, row in zip(ids, rows, strict=True):
            if i in self.model.rows:
                self.model.rows[i] |= row

    @rule(n=st.integers(0, 6), at=st.integers(0, 6), fraction=FRACTIONS, by=POLICIES, fault=FAULTS)
    def append_badly(self, n: int, at: int, fraction: float, by: str, fault: str) -> None:
        rows = self.new_rows(n + 1)
        bad = rows[min(at, n)]
        if fault == "object":
            bad["key"] = object()
        elif fault == "number":
            bad["key"] = 2**63
        elif fault == "key" and self.unread.schema is not None:
            bad["another"] = 1
        else:
            with pytest.raises(ZeroDivisionError):
                self.unread.append(_raising(rows), fraction, by)
            return
        with pytest.raises(SchemaError, match="row 0" if n == 0 else f"row {min(at, n)}"):
            self.unread.append(rows if n else rows[0], fraction, by)

    @rule(bad=st.sampled_from([1.5, float("nan"), "half", True, None]))
    def thin_badly(self, bad: Any) -> None:
        for change in (lambda: self.unread.retain(bad), lambda: self.unread.append(self.new_rows(1)[0], bad)):
            with pytest.raises(ConfigError, match="retain_prior"):
                change()

    @rule(n=st.sampled_from([1, 2, 5, 1024]))
    def change_patience(self, n: int) -> None:
        """How many single rows wait for each other is nobody's business."""
        self.patch(buffer_module, "PENDING_ROWS", n)

    @rule()
    def save_and_load(self) -> None:
        self.unread.save(self.folder / "rows")
        loaded = DatasetBuffer.load(self.folder / "rows")
        assert loaded.uuid == self.unread.uuid
        self.unread = loaded

    @rule()
    def travel(self) -> None:
        self.unread = pickle.loads(pickle.dumps(self.unread))

    # -- reading

    @rule()
    def look(self) -> None:
        assert facts_of(self.unread) == facts_of(self.read) == self.model.facts()

    @rule(number=st.integers(-200, 200))
    def look_at_one(self, number: int) -> None:
        rows = list(self.model.rows.values())
        if -len(rows) <= number < len(rows):
            assert plain(self.unread[number]) == plain(rows[number])
        else:
            with pytest.raises(IndexError):
                self.unread[number]

    @rule(part=st.slices(30))
    def look_at_a_slice(self, part: slice) -> None:
        assert self.keys(self.unread[part]) == [row["key"] for row in list(self.model.rows.values())[part]]

    @precondition(lambda self: self.model.rows)
    @rule(numbers=NUMBERS, how=st.sampled_from(["batch", "array", "mask", "items"]))
    def look_at_some(self, numbers: list[int], how: str) -> None:
        rows = list(self.model.rows.values())
        numbers = [number % (2 * len(rows)) - len(rows) for number in numbers]
        if how == "mask":
            mask = np.isin(np.arange(len(rows)), numbers)
            assert self.values(self.unread[mask]) == plain([rows[i] for i in np.flatnonzero(mask)])
        elif how == "items":
            assert plain(self.unread.__getitems__(numbers)) == plain([rows[number] for number in numbers])
        else:
            table = self.unread.get_batch(numbers) if how == "batch" else self.unread[np.array(numbers, np.int32)]
            assert self.values(table) == plain([rows[number] for number in numbers])

    @precondition(lambda self: self.model.next_id)
    @rule(numbers=NUMBERS)
    def look_up_ids(self, numbers: list[int]) -> None:
        ids = [number % self.model.next_id for number in numbers]
        found = self.unread.by_id(ids)
        assert self.values(found.rows) == plain([self.model.rows[i] for i in ids if i in self.model.rows])
        assert found.gone.tolist() == [i for i in ids if i not in self.model.rows]

    @rule(n=st.integers(0, 8), replace=st.booleans(), is_weighted=st.booleans(), seed=st.none() | st.integers(0, 3))
    def sample(self, n: int, replace: bool, is_weighted: bool, seed: int | None) -> None:
        """Both buffers draw the same rows, by themselves or by a given rng; without repeating, each row comes once."""
        keys = [row["key"] for row in self.model.rows.values()]
        n = n if replace and keys else min(n, len(keys))
        weights = [key % 3 for key in keys] if is_weighted else None
        n_heavy = sum(map(bool, weights)) if weights is not None else len(keys)
        if n_heavy < (1 if replace else n) or (is_weighted and not n_heavy):
            return
        rngs = [None if seed is None else np.random.default_rng(seed) for _ in self.both()]
        samples = [b.sample(n, weights, replace, rng) for b, rng in zip(self.both(), rngs, strict=True)]
        drawn, again = map(self.keys, samples)
        assert drawn == again
        assert len(drawn) == n
        assert set(drawn) <= {key for key in keys if not is_weighted or key % 3}
        assert replace or len(set(drawn)) == n

    @rule(fraction=FRACTIONS, by=POLICIES)
    def iterate(self, fraction: float, by: str) -> None:
        """Rows that come and go while somebody iterates make no difference to him."""
        expected = [row["key"] for row in self.model.rows.values()]
        rows = iter(self.unread)
        seen = [self.keys(row) for row in [next(rows, None)] if row is not None]
        self.append_many(3, fraction, by, "list")
        seen += [self.keys(row) for row in rows]
        assert seen == [[key] for key in expected]

    @rule()
    def derive(self) -> None:
        """map and filter make buffers of their own."""
        rows = list(self.model.rows.values())
        even = self.unread.filter(lambda row: row["key"] % 2 == 0)
        assert plain(listed(even.to_pydict())) == plain([row for row in rows if row["key"] % 2 == 0])
        mapped = self.unread.map(lambda row: {"key": row["key"], "twice": 2 * row["key"]})
        assert mapped.to_pydict().get("twice", []) == [2 * row["key"] for row in rows]

    # -- snapshots that are kept for ever

    @rule()
    def keep_a_snapshot(self) -> None:
        snapshot = self.unread.snapshot()
        if len(self.kept) < 5:
            keys = snapshot.to_numpy(["key"])["key"] if self.model.next_id or self.is_declared else np.empty(0)
            self.kept.append((snapshot, keys, self.model.facts(), keys.tobytes()))

    @rule()
    def look_at_kept_snapshots(self) -> None:
        for snapshot, keys, expected, raw in self.kept:
            assert facts_of(snapshot) == expected
            assert keys.tobytes() == raw

    def keys(self, table: pa.Table) -> list[int]:
        return table.column("key").to_pylist() if table.num_columns else []

    def values(self, table: pa.Table) -> Any:
        """The rows of a table, read by a buffer of its own where Arrow's Python values would lose bits."""
        copy = DatasetBuffer(schema=table.schema)
        copy.append(table)
        return plain(listed(copy.to_pydict()))

    def teardown(self) -> None:
        try:
            if hasattr(self, "model"):
                self.look()
                self.look_at_kept_snapshots()
        finally:
            self.patches.close()


def _raising(rows: Sequence[Row]) -> Iterator[Row]:
    yield from rows
    _ = 1 / 0


class OldestMachine(BufferMachine):
    sizes = st.sampled_from([1, 5, 20])


class RandomMachine(BufferMachine):
    sizes = st.sampled_from([1, 5, 20])
    strategies = st.just("random")


class LowestMachine(BufferMachine):
    """Keys fall within an append, so that the lowest are not the oldest."""

    sizes = st.sampled_from([1, 5, 20])
    strategies = st.just("lowest:key")

    def new_rows(self, n: int) -> list[Row]:
        return super().new_rows(n)[::-1]


class LongMachine(BufferMachine):
    """More rows than a block of tombstones holds."""

    sizes = st.sampled_from([None, 700])
    strategies = st.just("random")

    @rule(n=st.sampled_from([300, 1100]), fraction=FRACTIONS, by=POLICIES)
    def append_very_many(self, n: int, fraction: float, by: str) -> None:
        if self.model.next_id < 3_000:
            self.append_many(n, fraction, by, "list")


#: Each with the examples of a push; a soak multiplies three times as many.
MACHINES = [(BufferMachine, 100), (OldestMachine, 100), (RandomMachine, 120), (LowestMachine, 60), (LongMachine, 10)]


@pytest.mark.parametrize(("machine", "n"), MACHINES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_buffer_does_as_a_list_of_dicts(machine, n):
    """Whatever is done in whatever order, rows, ids, generations and every way to read them are those of the list."""
    run_state_machine_as_test(machine, settings=settings(max_examples=times(3 * n, push=n), stateful_step_count=40))


# Chance -------------------------------------------------------------------------------------------------------


def survivors(seed: int, *, reads: bool, patience: int = 1024) -> list[int]:
    """What is left after many random choices of every sort."""
    buffer = DatasetBuffer(max_size=60, drop_strategy="random", seed=seed)
    with mock.patch.object(buffer_module, "PENDING_ROWS", patience):
        for key in range(600):
            buffer.append({"key": key})
            if key % 97 == 0:
                buffer.append(rows_of([], 1_000 + key, 20), retain_prior=0.7, retain_prior_by="random")
            if reads:
                assert len(buffer.ids) == len(buffer)
    return buffer.to_pydict()["key"]


def test_the_seed_decides_who_survives():
    """The same seed gives the same survivors, in whatever portions single rows were stored; another seed others."""
    first = survivors(3, reads=False)

    assert survivors(3, reads=False) == survivors(3, reads=True) == survivors(3, reads=False, patience=7) == first
    assert survivors(4, reads=False) != first


def test_random_eviction_is_fair():
    """Every one of the rows that came singly is as likely as any other to be among those left."""
    counts = np.zeros(40)
    for seed in range(400):
        buffer = DatasetBuffer(max_size=10, drop_strategy="random", seed=seed)
        for key in range(40):
            buffer.append({"key": key})
        counts[buffer.to_pydict()["key"]] += 1

    # Row k was at stake once for itself and once for each row after it, from the 11th row on.
    stays = (10 / 11) ** np.minimum(30, 40 - np.arange(40))
    assert np.abs(counts - 400 * stays).max() < 5 * np.sqrt(400 * 0.25)


# Conversions --------------------------------------------------------------------------------------------------

COLUMNS = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6, unique=True)


def thinned(names: list[str], n: int, nulls: float, by: str) -> tuple[DatasetBuffer, list[Row]]:
    """A buffer some of whose rows have left, and the rows it should have."""
    buffer = DatasetBuffer(schema=schema_of(names))
    rows = rows_of(names, 0, n, nulls=nulls)
    buffer.append(rows)
    buffer.retain(0.6, by=by)
    return buffer, [rows[i] for i in buffer.ids]


@settings(max_examples=times(60))
@given(COLUMNS, st.integers(0, 20), st.sampled_from([0.0, 0.3]), POLICIES)
def test_numpy_and_arrow_show_the_same_rows(names, n, nulls, by):
    """Every conversion holds what the buffer holds, in one chunk, also when rows have left from the middle."""
    buffer, rows = thinned(names, n, nulls, by)

    arrays, table = buffer.to_numpy(), pa.table(buffer)

    assert all(column.num_chunks <= 1 for column in buffer.to_arrow().columns)
    for name in names:
        shown = [value.item() if isinstance(value, np.generic) else value for value in arrays[name]]
        assert plain(shown) == plain([row[name] for row in rows])
    copy = DatasetBuffer()
    copy.append(table)
    assert plain(listed(copy.to_pydict())) == plain(rows)
    assert table.column("key").to_pylist() == [row["key"] for row in rows]


@settings(max_examples=times(60))
@given(COLUMNS, st.integers(0, 20), st.sampled_from([0.0, 0.3]), POLICIES)
def test_torch_shows_the_same_rows(names, n, nulls, by):
    """Numbers come as tensors of their dtype, the rest as lists; a null that no tensor can hold is an error."""
    buffer, rows = thinned(names, n, nulls, by)
    broken = [name for name in names if any(has_no_tensor(name, row[name]) for row in rows)]
    whole = [name for name in names if name not in broken]

    tensors = buffer.to_torch(columns=whole)

    for name in whole:
        shown = [from_torch(tensors[name], i, row[name]) for i, row in enumerate(rows)]
        assert plain(shown) == plain([row[name] for row in rows])
    for name in broken:
        with pytest.raises(SchemaError, match=name):
            buffer.to_torch(columns=[name])


def has_no_tensor(name: str, value: Any) -> bool:
    if name in ("text", "bytes", "moment", "texts", "loaves"):
        return False
    if name == "struct" and value is not None:
        return value["x"] is None
    return value is None or (isinstance(value, list) and None in value)


def from_torch(column: Any, i: int, like: Any) -> Any:
    import torch

    if isinstance(column, dict):
        return {name: from_torch(part, i, like[name]) for name, part in column.items()}
    value = column[i]
    if not isinstance(value, torch.Tensor):
        return value
    return value.numpy() if isinstance(like, np.ndarray) else value.tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # datasets, over a NaN that signals
@settings(max_examples=times(30))
@given(COLUMNS, st.integers(0, 20), st.sampled_from([0.0, 0.3]), POLICIES)
def test_hugging_face_shows_the_same_rows(names, n, nulls, by):
    """A dataset of the same rows, arrays as lists; and back again it is the same buffer."""
    buffer, rows = thinned(names, n, nulls, by)

    dataset = buffer.to_hf_dataset()

    for name in names:
        assert plain(dataset[:][name]) == plain([as_lists(row[name]) for row in rows])
    again = DatasetBuffer(schema=schema_of(names))
    if not {"spectrum", "masks"} & set(names):  # lists know neither complex numbers nor the width of no rows
        again.append(dataset)
        assert plain(again.to_pydict()) == plain(buffer.to_pydict())


@pytest.mark.parametrize("shape", [(2, 3), (None, 3), (None, None)])
def test_bools_come_back_from_hugging_face(shape):
    """Arrays of bool leave as lists and come back as arrays of bool, also where shapes differ."""
    buffer = DatasetBuffer(schema=[Field("mask", "bool", shape=shape, nullable=True)])
    buffer.append([{"mask": np.eye(2, 3, dtype=bool)}, {"mask": None}, {"mask": np.ones((2, 3), bool)}])
    again = DatasetBuffer(schema=buffer.schema)

    again.append(buffer.to_hf_dataset())

    assert plain(again.to_pydict()) == plain(buffer.to_pydict())


def as_lists(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return np.stack([value.real, value.imag], -1).tolist() if value.dtype.kind == "c" else value.tolist()
