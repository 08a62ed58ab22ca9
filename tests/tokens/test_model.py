"""Random operations on a stream and on a plain list of field-writes give the same answers.

A writer, readers at their own lengths, and what was committed are each compared with the list as it was at that moment.
Blocks, chunks and parts that are read at once are made small here, so that few tokens cross every edge there is.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from poolish import StreamStore
from poolish.errors import ConfigError, LimitExceeded, PoolishError
from poolish.schema import Field
from poolish.tokens import commits, memmap_buffer, reading, sampling, stream_files, writer
from tests.effort import times
from tests.rows.children import fork
from tests.tokens.plain_stream import PlainField, PlainStream, Write, facts

pytestmark = pytest.mark.kernels

FLOATS = [0.0, -0.0, 0.5, -2.0, 1.5, float("inf"), float("nan")]
NUMBERS: dict[str, list[Any]] = {
    "bool": [False, True],
    "int8": [0, 1, -128, 127],
    "int64": [0, 0, 1, -(2**63), 2**63 - 1],
    "uint8": [0, 0, 255],
    "uint64": [0, 7, 2**63 - 1],
    "float16": FLOATS,
    "float32": [*FLOATS, 2.0**-149],
    "float64": [*FLOATS, 0.1, 5e-324, -1e300],
}
BAD_NUMBERS: dict[str, list[Any]] = {
    "bool": [2, -1, 0.5],
    "int8": [128, -129, 1.5, float("nan")],
    "int64": [2**63, 0.5, float("inf")],
    "uint8": [-1, 256],
    "uint64": [-1, 2**64],
    "float16": [1e6, 2**53 + 1],
    "float32": [1e300, 2**53 + 1],
    "float64": [2**53 + 1, -(2**53) - 1],
}
SHAPES: list[Any] = [(), (), (None,), (3,), (2, 2), (None, 2)]
WIDTHS = st.integers(1, 6)
FAULTS = ["value", "value", "later value", "unknown", "order", "step", "count", "shape", "text"]
MANY_FAULTS = ["value", "count", "steps", "missing", "hole", "unknown", "old step"]


def declared(fields: list[PlainField]) -> dict[str, Any]:
    """The fields as a user declares them, one way or another."""
    return {field.name: _told(field) for field in fields}


def _told(field: PlainField) -> Any:
    if field.shape is None:
        return None
    if field.shape == (None,):
        return pa.list_(pa.from_numpy_dtype(np.dtype(field.dtype)))
    return Field(field.name, field.dtype, field.shape) if field.shape else field.dtype


class StreamMachine(RuleBasedStateMachine):
    """``store`` writes, ``readers`` are each at a length of their own; ``plain`` is what they must say."""

    bounds: st.SearchStrategy[int | None] = st.none()

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.path = Path(self.patches.enter_context(tempfile.TemporaryDirectory())) / "stream"
        self.patches.enter_context(mock.patch("os.fsync"))  # power cuts are not this test's business
        self.readers: list[tuple[StreamStore, PlainStream]] = []
        self.commits: dict[int, PlainStream] = {}

    def patch(self, name: str, value: int, *modules: Any) -> None:
        for module in modules:
            self.patches.enter_context(mock.patch.object(module, name, value))

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        named = data.draw(st.booleans(), "names only")
        kinds = st.tuples(st.sampled_from(sorted(NUMBERS)), st.sampled_from(SHAPES))
        drawn = data.draw(st.lists(kinds, min_size=1, max_size=4), "fields")
        fields = [PlainField(f"f{i}", *(("float64", None) if named else kind)) for i, kind in enumerate(drawn)]
        self.patch("BLOCK", data.draw(st.sampled_from([4096, 1 << 20]), "BLOCK"), commits, stream_files)
        self.patch("CHUNK_BYTES", data.draw(st.sampled_from([64, 4096, 1 << 20]), "CHUNK_BYTES"), memmap_buffer)
        self.patch("TRIM_TOKENS", data.draw(st.sampled_from([1, 7, 1 << 17]), "TRIM_TOKENS"), writer)
        self.patch("CHUNK_ROWS", data.draw(st.sampled_from([1, 3, 1 << 18]), "CHUNK_ROWS"), stream_files)
        self.patch("_ROWS", data.draw(st.sampled_from([1, 3, 4096]), "_ROWS"), reading)
        self.patch("_SCAN_TOKENS", data.draw(st.sampled_from([1, 5, 1 << 22]), "_SCAN_TOKENS"), sampling)
        self.plain = PlainStream(fields, data.draw(self.bounds, "max_tokens"))
        told = [field.name for field in fields] if named and data.draw(st.booleans()) else declared(fields)
        self.store = StreamStore(self.path, fields=told, max_tokens=self.plain.max_tokens)
        self.told = told
        self.open_reader()

    # -- what to append

    def numbers(self, data: st.DataObject, field: PlainField, n: int) -> list[Any]:
        return data.draw(st.lists(st.sampled_from(NUMBERS[field.dtype]), min_size=n, max_size=n), field.name)

    def decided(self, data: st.DataObject, type_: int, fields: list[PlainField]) -> PlainField:
        """The field, if it was only named now scalar or sequence."""
        if fields[type_].shape is None:
            shape = data.draw(st.sampled_from([(), (None,)]), "kind")
            fields[type_] = PlainField(fields[type_].name, "float64", shape)
        return fields[type_]

    def value(self, data: st.DataObject, field: PlainField) -> tuple[Any, tuple[int, ...]]:
        """Something to append, and the tokens that it becomes."""
        sizes = [data.draw(st.integers(0, 4), "length") if n is None else n for n in field.shape or ()]
        numbers = self.numbers(data, field, int(np.prod(sizes, dtype=int)))
        how = data.draw(st.sampled_from(["python", "numpy", "tuple"]), "form")
        if not sizes:
            value = np.dtype(field.dtype).type(numbers[0]) if how == "numpy" else numbers[0]
        else:
            array = np.array(numbers, field.dtype).reshape(sizes)
            value = array if how == "numpy" or (len(sizes) > 1 and sizes[0] == 0) else array.tolist()
            value = tuple(value) if how == "tuple" and len(sizes) == 1 else value
        return value, field.tokens(numbers)

    def draft(self, data: st.DataObject, n_steps: int) -> tuple[list[Write], list[Any], list[PlainField]]:
        """Field-writes for some steps, their values, and the fields as they are then."""
        last_step, last_type = self.plain.last
        fields, writes, values = list(self.plain.fields), [], []
        for _ in range(n_steps):
            can_go_on = last_step >= 0 and last_type + 1 < len(fields)
            gap = data.draw(st.sampled_from([0, 1, 1, 1, 5] if can_go_on else [1, 1, 5]), "gap")
            low = 0 if gap else last_type + 1
            types = data.draw(st.sets(st.integers(low, len(fields) - 1), min_size=1), "fields")
            last_step, last_type = last_step + gap, max(types)
            for type_ in sorted(types):
                value, tokens = self.value(data, self.decided(data, type_, fields))
                writes.append(Write(last_step, type_, tokens))
                values.append(value)
        return writes, values, fields

    def is_too_large(self, writes: list[Write]) -> bool:
        """Whether a step would be larger than the bound."""
        bound = self.plain.max_tokens
        grown = self.plain.copy()
        grown.max_tokens = None
        grown.append(writes)
        new = {write.step for write in writes}
        sizes = [sum(len(w.tokens) for w in parts) for number, parts in grown.steps if number in new]
        return bound is not None and max(sizes, default=0) > bound

    def give(self, store: StreamStore, writes: list[Write], values: list[Any], *, as_number: bool = False) -> None:
        names = [self.plain.fields[write.type].name for write in writes]
        numbers: Any = [write.step for write in writes]
        store.append(numbers[0] if as_number and len(set(numbers)) == 1 else numbers, names, values)

    def settle(self, writes: list[Write], fields: list[PlainField]) -> None:
        self.plain.fields = fields
        self.plain.append(writes)

    # -- writing

    @rule(data=st.data(), n_steps=st.integers(1, 3), as_number=st.booleans(), is_seen=st.booleans())
    def append(self, data: st.DataObject, n_steps: int, as_number: bool, is_seen: bool) -> None:
        writes, values, fields = self.draft(data, n_steps)
        if self.is_too_large(writes):
            with pytest.raises(LimitExceeded, match="max_tokens"):
                self.give(self.store, writes, values)
            self.look()
            return
        self.give(self.store, writes, values, as_number=as_number)
        self.settle(writes, fields)
        if is_seen:
            self.refresh()

    @rule(data=st.data(), n=st.integers(0, 5))
    def append_many(self, data: st.DataObject, n: int) -> None:
        last_step, last_type = self.plain.last
        gaps = data.draw(st.lists(st.sampled_from([1, 1, 4]), min_size=n, max_size=n), "gaps")
        numbers = (last_step + np.cumsum(gaps, dtype=np.int64)).tolist()
        fields = list(self.plain.fields)
        types = sorted(data.draw(st.sets(st.integers(0, len(fields) - 1), min_size=1), "columns"))
        if n and last_step >= 0 and types[0] > last_type and data.draw(st.booleans(), "go on"):
            numbers = [number - gaps[0] for number in numbers]
        columns, writes = {}, []
        for i, type_ in enumerate(types):
            column, parts = self.column(data, type_, fields, n, can_miss=i > 0)
            columns[fields[type_].name] = column
            writes += [
                Write(number, type_, part) for number, part in zip(numbers, parts, strict=True) if part is not None
            ]
        writes.sort(key=lambda write: write[:2])
        given = data.draw(st.sampled_from([list, np.array, tuple]), "steps")(numbers)
        if self.is_too_large(writes):
            with pytest.raises(LimitExceeded, match="max_tokens"):
                self.store.append_many(given, columns)
            self.look()
            return
        self.store.append_many(np.array(given, np.int64) if not n else given, columns)
        self.settle(writes, fields)

    def column(
        self, data: st.DataObject, type_: int, fields: list[PlainField], n: int, *, can_miss: bool
    ) -> tuple[Any, list[tuple[int, ...] | None]]:
        """A column in one form or another, and the tokens of each row; None where it is missing."""
        there = [not can_miss or data.draw(st.booleans(), "there") for _ in range(n)]
        if not any(there) and n and data.draw(st.booleans(), "of no type"):
            return pa.nulls(n), [None] * n  # decides nothing
        is_open = fields[type_].shape is None
        field = self.decided(data, type_, fields)
        rest = tuple(field.shape or ())[1:]
        length = data.draw(st.sampled_from([None, 0, 2]), "even") if field.shape and field.shape[0] is None else None
        rows = []
        for _ in range(n):
            first = 0 if not field.shape else field.shape[0]
            if first is None:
                first = length if length is not None else data.draw(st.integers(0, 3), "length")
            rows.append(self.numbers(data, field, int(np.prod([first, *rest], dtype=int)) if field.shape else 1))
        tokens: list[Any] = [field.tokens(row) for row in rows]
        forms = (
            ["arrow"] if not all(there) else ["rows", "arrow", "offsets"] if field.shape else ["rows", "array", "arrow"]
        )
        how = data.draw(st.sampled_from(forms), "form")
        if is_open and not any(there):
            fields[type_] = PlainField(field.name, "float64", None)  # nothing was written
        if how == "arrow":
            return self.arrow(field, rows, there), [
                row if here else None for row, here in zip(tokens, there, strict=True)
            ]
        if how == "array" or not field.shape:
            flat = [number for row in rows for number in row]
            return (np.array(flat, field.dtype) if how == "array" else flat), tokens
        shaped = [np.array(row, field.dtype).reshape(-1, *rest) for row in rows]
        if how == "offsets":
            joined = np.concatenate([np.empty((0, *rest), field.dtype), *shaped])
            return (joined, np.cumsum([0, *map(len, shaped)])), tokens
        if len({len(part) for part in shaped}) == 1 and data.draw(st.booleans(), "one array"):
            return np.stack(shaped), tokens
        return ([part.tolist() for part in shaped] if not rest else shaped), tokens

    def arrow(self, field: PlainField, rows: list[list[Any]], there: list[bool]) -> pa.Array:
        type_ = pa.from_numpy_dtype(np.dtype(field.dtype))
        shape = field.shape or ()
        values: list[Any] = [
            np.array(row, field.dtype).reshape([-1 if n is None else n for n in shape] or 1) for row in rows
        ]
        for n in reversed(shape):
            type_ = pa.list_(type_) if n is None else pa.list_(type_, n)
        plain = [value.tolist() if shape else value[0] for value in values]
        if field.dtype == "float16":
            plain = [_halves(value) for value in values] if shape else plain
        return pa.array([value if here else None for value, here in zip(plain, there, strict=True)], type_)

    @rule(data=st.data(), fault=st.sampled_from(FAULTS))
    def append_badly(self, data: st.DataObject, fault: str) -> None:
        """Something in it is wrong, near the end; nothing of it is kept."""
        writes, values, fields = self.draft(data, 2)
        names = [fields[write.type].name for write in writes]
        numbers: list[Any] = [write.step for write in writes]
        field = fields[writes[-1].type]
        if fault in ("value", "later value"):
            bad = data.draw(st.sampled_from(BAD_NUMBERS[field.dtype]), "bad")
            sizes = [2 if n is None else n for n in field.shape or ()]
            values[-1] = _filled_with(sizes, NUMBERS[field.dtype][0], bad)
        elif fault == "unknown":
            names[-1] = data.draw(st.sampled_from(["absent", "", None, 0]), "name")
        elif fault == "order":
            names, numbers, values = [*names, names[-1]], [*numbers, numbers[-1]], [*values, values[-1]]
        elif fault == "step":
            numbers[-1] = data.draw(st.sampled_from([numbers[0] - 6, -1, 1.5, "0", None, 2**63, True]), "step")
        elif fault == "count":
            values = values[:-1]
        elif fault == "shape":
            values[-1] = [[[0]]]
        else:
            values[-1] = data.draw(st.sampled_from(["1", b"1", None, object(), 1j, {}]), "value")
        with pytest.raises(PoolishError):
            self.store.append(numbers, names, values)
        self.look()

    @precondition(lambda self: self.plain.writes)
    @rule(data=st.data(), fault=st.sampled_from(MANY_FAULTS))
    def append_many_badly(self, data: st.DataObject, fault: str) -> None:
        fields = list(self.plain.fields)
        type_ = data.draw(st.integers(0, len(fields) - 1), "column")
        field = self.decided(data, type_, fields)
        last = self.plain.last[0]
        numbers = [last + 1, last + 2, last + 3]
        sizes = [2 if n is None else n for n in field.shape or ()]
        good = NUMBERS[field.dtype][0]
        column: Any = [_filled_with(sizes, good, good)] * 3
        if fault == "value":
            column[-1] = _filled_with(sizes, good, data.draw(st.sampled_from(BAD_NUMBERS[field.dtype]), "bad"))
        elif fault == "count":
            column = column[:-1]
        elif fault == "steps":
            numbers = data.draw(
                st.sampled_from([[last + 2, last + 1, last + 3], [last + 1] * 3, [-3, -2, -1]]), "steps"
            )
        elif fault == "missing":
            column = self.arrow(field, [np.ravel(row).tolist() for row in column], [True, False, True])
        elif fault == "hole":
            column = pa.array([[good], [None], [good]], pa.list_(pa.from_numpy_dtype(np.dtype(field.dtype))))
        elif fault == "old step":
            numbers = [last - 1, last, last + 1]
        columns = {field.name: column, **({"absent": [0, 0, 0]} if fault == "unknown" else {})}
        with pytest.raises(PoolishError):
            self.store.append_many(numbers, columns)
        self.look()

    @rule(n=st.sampled_from([300, 700]))
    def append_very_many(self, n: int) -> None:
        """More than a block or a chunk holds."""
        field, last = self.plain.fields[0], self.plain.last[0]
        if field.shape != () or len(self.plain.writes) > 1_500:
            return
        choices = NUMBERS[field.dtype]
        numbers = [choices[i % len(choices)] for i in range(n)]
        self.store.append_many(range(last + 1, last + 1 + n), {field.name: numbers})
        self.plain.append(Write(last + 1 + i, 0, field.tokens([number])) for i, number in enumerate(numbers))

    # -- keeping

    @rule()
    def commit(self) -> None:
        seq = self.store.commit()
        assert seq >= max(self.commits, default=0)
        assert seq == self.store.commit()
        self.commits[seq] = self.plain.copy()

    @rule(how=st.sampled_from(["open", "fields", "path"]), goes_on=st.booleans())
    def reopen(self, how: str, goes_on: bool) -> None:
        self.store.close()
        self.commits.clear()  # closing may commit once more, and numbers go on
        bound = {"max_tokens": self.plain.max_tokens, "continue_episode": goes_on}
        self.plain.open_again(continue_episode=goes_on)
        if how == "open":
            self.store = StreamStore.open(self.path, mode="a", **bound)
        else:
            self.store = StreamStore(self.path, fields=self.told if how == "fields" else None, **bound)
        self.look()

    @rule(data=st.data(), n=st.integers(1, 3), commits_first=st.booleans())
    def crash(self, data: st.DataObject, n: int, commits_first: bool) -> None:
        """A process that is killed right behind its appends leaves all of them."""
        writes, values, fields = self.draft(data, n)
        if self.is_too_large(writes):
            return
        self.store.close()
        self.commits.clear()
        pid = fork()
        if pid == 0:
            try:
                store = StreamStore.open(self.path, mode="a", max_tokens=self.plain.max_tokens)
                if commits_first:
                    store.commit()
                self.give(store, writes, values)
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        self.plain.open_again()
        self.settle(writes, fields)
        self.plain.open_again()
        self.store = StreamStore.open(self.path, mode="a", max_tokens=self.plain.max_tokens)
        self.look()

    # -- reading

    @rule()
    def look(self) -> None:
        assert facts(self.store) == self.plain.facts()

    @rule()
    def open_reader(self) -> None:
        if len(self.readers) < 3:
            self.readers.append((StreamStore.open(self.path), self.plain.copy()))

    @rule()
    def refresh(self) -> None:
        for i, (reader, seen) in enumerate(self.readers):
            assert reader.refresh() == self.plain.end - seen.end
            assert facts(reader) == self.plain.facts()
            self.readers[i] = reader, self.plain.copy()

    @rule(data=st.data(), of_writer=st.booleans())
    def travel(self, data: st.DataObject, of_writer: bool) -> None:
        """A handle arrives as a reader, as long as it was."""
        if of_writer or not self.readers:
            if len(self.readers) < 3:
                self.readers.append((pickle.loads(pickle.dumps(self.store)), self.plain.copy()))
            return
        i = data.draw(st.integers(0, len(self.readers) - 1), "reader")
        reader, seen = self.readers[i]
        arrived = pickle.loads(pickle.dumps(reader))
        reader.close()
        self.readers[i] = arrived, self.cut(seen)
        assert facts(arrived) == self.readers[i][1].facts()

    def cut(self, seen: PlainStream) -> PlainStream:
        """What a reader saw, without what has left since."""
        kept = seen.copy()
        kept.writes = [write for write in seen.writes if write.step >= self.plain.writes[0].step] if seen.writes else []
        kept.first = max(seen.first, self.plain.first)
        return kept

    def has_lost(self, seen: PlainStream) -> bool:
        """Whether a step that a reader saw has left since, one without tokens included."""
        return len(self.cut(seen).writes) < len(seen.writes)

    @rule()
    def look_at_readers(self) -> None:
        """Each sees what it saw when it was opened; what has left since is an error, never something else."""
        for reader, seen in self.readers:
            self.look_at_old(reader, seen)

    def look_at_old(self, reader: StreamStore, seen: PlainStream) -> None:
        assert (reader.first, reader.end, len(reader)) == (seen.first, seen.end, len(seen.tokens))
        kept = max(seen.first, min(self.plain.first, seen.end))
        batch = reader[np.arange(kept, seen.end)]
        assert batch["values"].tolist() == seen.tokens[kept - seen.first :]
        assert batch["types"].tolist() == seen.types[kept - seen.first :]
        if not self.has_lost(seen):
            assert facts(reader) == seen.facts()
            return
        if seen.writes:
            with pytest.raises(IndexError, match="left the stream"):
                list(reader)
        if self.plain.first > seen.first and seen.tokens:
            with pytest.raises(IndexError, match="left the stream"):
                reader[[seen.first]]

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def look_at_a_commit(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.commits)), "commit")
        committed = self.commits[seq]
        kept = self.cut(committed) if committed.writes else committed
        if committed.writes and not kept.writes:
            with pytest.raises(ConfigError, match=f"commit {seq}.*left"):
                StreamStore.open(self.path, at=seq)
            return
        with StreamStore.open(self.path, at=seq) as reader:
            assert facts(reader) == kept.facts()

    @rule(data=st.data(), shape=st.sampled_from([(), (0,), (3,), (2, 2), (1, 0, 2), (2, 1, 3)]))
    def look_at_some(self, data: st.DataObject, shape: tuple[int, ...]) -> None:
        n = int(np.prod(shape, dtype=int))
        first, end = self.plain.first, self.plain.end
        if n and first == end:
            with pytest.raises(IndexError, match="out of range"):
                self.store[np.zeros(shape, int)]
            return
        place = st.integers(first, max(first, end - 1)) | st.integers(first - end, -1 if end > first else 0)
        places = np.array(data.draw(st.lists(place, min_size=n, max_size=n), "places"), np.int64).reshape(shape)
        batch = self.store[places if shape else int(places)]
        inside = np.where(places < 0, places + end, places) - first
        assert batch["values"].tolist() == np.array(self.plain.tokens, np.int64)[inside].tolist()
        assert batch["types"].tolist() == np.array(self.plain.types, np.int64)[inside].tolist()

    @rule(part=st.slices(60))
    def look_at_a_slice(self, part: slice) -> None:
        first = self.plain.first
        chosen = [i - first for i in range(self.plain.end)[part] if i >= first]
        batch = self.store[part]
        assert batch["values"].tolist() == [self.plain.tokens[i] for i in chosen]
        assert batch["types"].tolist() == [self.plain.types[i] for i in chosen]

    @rule(outside=st.integers(0, 5))
    def look_outside(self, outside: int) -> None:
        first, end = self.plain.first, self.plain.end
        for place in (end + outside, first - end - 1 - outside, 2**62, -(2**62)):
            with pytest.raises(IndexError, match="out of range"):
                self.store[[place]]
            with pytest.raises(IndexError, match="out of range"):
                self.store.windows([place], 1)

    @rule(data=st.data(), width=WIDTHS, shape=st.sampled_from([(), (0,), (3,), (2, 2)]), types=st.booleans())
    def look_through_windows(self, data: st.DataObject, width: int, shape: tuple[int, ...], types: bool) -> None:
        first, end = self.plain.first, self.plain.end
        if end - first < width:
            with pytest.raises(IndexError, match="out of range"):
                self.store.windows([first], width)
            return
        n = int(np.prod(shape, dtype=int))
        place = st.integers(first, end - width) | st.integers(first - end, -width)
        begins = np.array(data.draw(st.lists(place, min_size=n, max_size=n), "starts"), np.int64).reshape(shape)
        batch = self.store.windows(begins if shape else int(begins), width, types=types)
        inside = (np.where(begins < 0, begins + end, begins) - first)[..., None] + np.arange(width)
        assert batch["values"].tolist() == np.array(self.plain.tokens, np.int64)[inside].tolist()
        if types:
            assert batch["types"].tolist() == np.array(self.plain.types, np.int64)[inside].tolist()
        else:
            assert "types" not in batch

    @rule(edges=st.tuples(st.none() | st.integers(0, 60), st.none() | st.integers(0, 60)))
    def look_at_steps(self, edges: tuple[int | None, int | None]) -> None:
        low, high = edges
        expected = [
            (number, set(fields))
            for number, fields in self.plain.values()
            if (low is None or number >= low) and (high is None or number < high)
        ]
        assert [(step.number, set(step)) for step in self.store.steps(low, high)] == expected

    @rule(data=st.data(), width=WIDTHS, start=st.sampled_from(["token", "step"]))
    def sample(self, data: st.DataObject, width: int, start: str) -> None:
        """Windows begin where they may, in the writer's and in every reader's eyes, and coverage counts them."""
        within = data.draw(st.none() | st.sampled_from([field.name for field in self.plain.fields]), "within")
        whole = [(reader, seen) for reader, seen in self.readers if not self.has_lost(seen)]
        for store, plain in [(self.store, self.plain), *whole]:
            self.sample_one(store, plain, width, start, within)

    def sample_one(self, store: StreamStore, plain: PlainStream, width: int, start: str, within: str | None) -> None:
        expected = plain.starts(width, start, within)
        told = store.coverage(width, start=start, within=within)
        assert (told.windows, told.episodes, told.too_short) == plain.coverage(width, start, within)
        if not expected:
            with pytest.raises(ConfigError, match="no window"):
                store.sample(1, width, start=start, within=within)
            return
        begins = store.sample_starts(40, width, start=start, within=within)
        assert set(begins.tolist()) <= set(expected)
        batch = store.sample(5, width, rng=np.random.default_rng(3), start=start, within=within)
        again = store.sample_starts(5, width, rng=np.random.default_rng(3), start=start, within=within)
        assert batch["values"].tolist() == store.windows(again, width)["values"].tolist()

    @rule(width=WIDTHS, stride=st.none() | st.integers(1, 7))
    def look_at_all_windows(self, width: int, stride: int | None) -> None:
        dataset = self.store.as_dataset(width, stride)
        apart = stride or width
        first = -(-self.plain.first // apart) * apart  # windows begin at multiples of the stride
        begins = range(first, self.plain.end - width + 1, apart)
        assert [window["values"].tolist() for window in dataset] == [
            self.plain.tokens[begin - self.plain.first :][:width] for begin in begins
        ]

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.look()
                self.look_at_readers()
                self.store.verify()
                self.store.close()
                for reader, _ in self.readers:
                    reader.close()
        finally:
            self.patches.close()


def _halves(value: Any) -> Any:
    """Lists of float16 as Arrow takes them: NumPy's scalars, not Python's floats."""
    return [_halves(part) for part in value] if value.ndim else np.float16(value)


def _filled_with(sizes: list[int], good: Any, last: Any) -> Any:
    """A number, or nested lists of ``good`` that end with ``last``."""
    if not sizes:
        return last
    numbers: list[Any] = [good] * (int(np.prod(sizes)) - 1) + [last]
    return _nested(iter(numbers), sizes)


def _nested(numbers: Iterator[Any], sizes: list[int]) -> Any:
    return [_nested(numbers, sizes[1:]) for _ in range(sizes[0])] if sizes else next(numbers)


class BoundedMachine(StreamMachine):
    """Steps leave at the front."""

    bounds = st.sampled_from([1, 6, 20, 400])

    @rule(data=st.data(), bound=bounds | st.none())
    def rebound(self, data: st.DataObject, bound: int | None) -> None:
        """Opened with another bound, the stream keeps to it from the next append on."""
        before, self.plain.max_tokens = self.plain.max_tokens, bound
        writes, values, fields = self.draft(data, 1)
        if self.is_too_large(writes):
            self.plain.max_tokens = before
            return
        self.plain.open_again()
        self.store.close()
        self.commits.clear()
        self.store = StreamStore.open(self.path, mode="a", max_tokens=bound)
        self.give(self.store, writes, values)
        self.settle(writes, fields)
        self.look()


@pytest.mark.parametrize(("machine", "n"), [(StreamMachine, 20), (BoundedMachine, 20)], ids=["unbounded", "bounded"])
def test_a_stream_does_as_a_list_of_field_writes(machine, n):
    """Whatever is done in whatever order, positions, steps, windows and samples are those of the list."""
    run_state_machine_as_test(machine, settings=settings(max_examples=times(2 * n, push=n), stateful_step_count=25))
