"""Several threads append and read: nothing is lost, everybody sees whole appends, and a fork finds no lock taken."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from poolish import DatasetBuffer
from poolish.rows import buffer as buffer_module
from poolish.rows import storage
from poolish.rows.snapshot import Snapshot
from tests.effort import times
from tests.rows.children import HANGS_AFTER_S, in_child

#: Rows that one bulk append brings.
TOGETHER = 5


@pytest.fixture(autouse=True)
def restless(monkeypatch):
    """Threads change places a hundred times as often, and small buffers flush and move as large ones do."""
    monkeypatch.setattr(storage, "MIN_DEAD", 50)
    monkeypatch.setattr(buffer_module, "PENDING_ROWS", 7)
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def together(*functions: Callable[[], Any]) -> None:
    """Run all of them at the same time; the first error of any is raised here, and so is a hang."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> None:
        try:
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def row(tag: int, writer: int = 0) -> dict[str, Any]:
    """A row whose every cell tells the tag."""
    return {"tag": tag, "writer": writer, "text": f"row {tag}", "vector": np.full(3, tag, np.float32)}


def many(tag: int, writer: int = 0, n: int = TOGETHER) -> list[dict[str, Any]]:
    return [row(tag, writer)] * n


def check(rows: Any, *, is_whole: bool = True) -> int:
    """Columns agree with each other, ids rise, appends are whole; the number of rows."""
    columns, ids = rows.to_numpy(), rows.ids
    tags = columns["tag"].tolist() if "tag" in columns else []
    assert len(tags) == len(rows) == len(ids) == rows.to_arrow().num_rows
    assert (np.diff(ids) > 0).all()
    if tags:
        assert columns["text"].tolist() == [f"row {tag}" for tag in tags]
        assert (columns["vector"] == columns["tag"][:, None]).all()
    if is_whole:
        pairs = Counter(zip(columns["writer"].tolist(), tags, strict=True) if tags else [])
        assert {n for (_, tag), n in pairs.items() if tag >= 0} <= {TOGETHER}
        assert {n for (_, tag), n in pairs.items() if tag < 0} <= {1}
    return len(tags)


class Done:
    """Readers go on until all writers have ended, and once more."""

    def __init__(self, n_writers: int) -> None:
        self._n_left = n_writers
        self._lock = threading.Lock()

    def writing(self, function: Callable[[], Any]) -> Callable[[], Any]:
        def write() -> None:
            try:
                function()
            finally:
                with self._lock:
                    self._n_left -= 1

        return write

    def rounds(self) -> Iterator[int]:
        n = 0
        while self._n_left:
            yield (n := n + 1)
        yield n + 1


def append_all(buffer: DatasetBuffer, writer: int, n: int) -> None:
    """Bulk appends with tags from 0 up, single rows with tags from -1 down."""
    for tag in range(n):
        buffer.append(many(tag, writer))
        buffer.append(row(-1 - tag, writer))


def test_nothing_is_lost():
    """Every row of every thread is there once, each thread's rows in the order in which it appended them."""
    buffer, n = DatasetBuffer(), times(300)

    together(*(lambda writer=writer: append_all(buffer, writer, n) for writer in range(4)))

    columns = buffer.to_numpy()
    assert check(buffer) == 4 * n * (TOGETHER + 1)
    assert buffer.ids.tolist() == list(range(4 * n * (TOGETHER + 1)))
    expected = [tag for i in range(n) for tag in [*[i] * TOGETHER, -1 - i]]
    for writer in range(4):
        assert columns["tag"][columns["writer"] == writer].tolist() == expected
    assert len(buffer.generations) == 4 * n * 2


@pytest.mark.parametrize("max_size", [None, 40])
def test_readers_see_whole_appends(max_size):
    """Whatever a reader asks for, it sees each append entirely or not at all, and time never runs backwards."""
    buffer, done, n = DatasetBuffer(max_size), Done(2), times(300)

    def snapshots() -> None:
        last_id = -1
        for _ in done.rounds():
            seen = buffer.snapshot()
            check(seen, is_whole=max_size is None)
            assert seen.next_id >= last_id
            assert max_size is None or len(seen) <= max_size
            last_id = seen.next_id

    def batches() -> None:
        rng = np.random.default_rng(0)
        for _ in done.rounds():
            if len(buffer):
                table = buffer.sample(3, replace=True) if rng.random() < 0.5 else buffer.get_batch([0, -1, 0])
                assert [f"row {tag}" for tag in table["tag"].to_pylist()] == table["text"].to_pylist()
                assert buffer[-1]["vector"].tolist() in [[tag] * 3 for tag in range(-n, n)]

    def iterations() -> None:
        for _ in done.rounds():
            tags = [table["tag"][0].as_py() for table in buffer]
            assert max_size is not None or set(Counter(tag for tag in tags if tag >= 0).values()) <= {5, 10}

    together(
        *(done.writing(lambda writer=writer: append_all(buffer, writer, n)) for writer in range(2)),
        snapshots,
        batches,
        iterations,
    )
    assert check(buffer, is_whole=max_size is None) == (2 * n * (TOGETHER + 1) if max_size is None else max_size)


def test_iteration_keeps_its_rows_while_others_go():
    """No row is skipped or repeated by whoever iterates while rows are thinned, driven out and moved."""
    buffer, done = DatasetBuffer(max_size=300, drop_strategy="random"), Done(1)
    buffer.append([row(tag) for tag in range(300)])

    def thin() -> None:
        for tag in range(times(300)):
            buffer.append([row(tag) for tag in range(tag, tag + 60)], retain_prior=0.7, retain_prior_by="random")
            buffer.retain(0.9, by="oldest")

    def iterate() -> None:
        for _ in done.rounds():
            snapshot = buffer.snapshot()
            expected = snapshot.to_pydict()["tag"]
            assert [table["tag"][0].as_py() for table in snapshot] == expected
            check(snapshot, is_whole=False)

    together(done.writing(thin), iterate, iterate)


def test_an_update_is_seen_whole():
    """Two columns that are changed in one call are never seen apart, and kept snapshots do not change."""
    buffer, done = DatasetBuffer(), Done(2)
    buffer.append_columns({"a": np.zeros(50, np.int64), "b": np.zeros((50, 2), np.int64), "text": ["0"] * 50})

    def change() -> None:
        for value in range(1, times(300)):
            columns: dict[str, Any] = {"a": np.full(50, value), "b": np.full((50, 2), value)}
            buffer.update(np.arange(50), columns | ({"text": [str(value)] * 50} if value % 3 == 0 else {}))

    def look() -> None:
        kept = []
        for _ in done.rounds():
            snapshot = buffer.snapshot()
            columns = snapshot.to_numpy(["a", "b"])
            assert len({*columns["a"].tolist(), *columns["b"].ravel().tolist()}) == 1
            kept = [*kept[-3:], (columns, int(columns["a"][0]))]
            assert all((columns["b"] == value).all() and (columns["a"] == value).all() for columns, value in kept)

    together(done.writing(change), done.writing(change), look, look)


@pytest.mark.parametrize("round_", range(times(40)))
def test_first_appends_at_the_same_time_agree_on_the_columns(round_):
    """Whoever comes first decides the order of the columns; the values of the others go where their names say."""
    buffer = DatasetBuffer()
    writers = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"b": 2, "a": 1}, {"a": 1, "b": 2}]

    together(*(lambda rows=[sample] * 50: buffer.append(rows) for sample in writers))

    assert buffer.to_pydict() == {"a": [1] * 200, "b": [2] * 200}


def test_an_append_during_an_append_keeps_the_names():
    """The same without chance: the samples themselves append to the buffer before they are in it."""
    buffer = DatasetBuffer()

    def samples() -> Iterator[dict[str, int]]:
        yield {"b": 2, "a": 1}
        buffer.append([{"a": 10, "b": 20}])

    buffer.append(samples())

    assert buffer.to_pydict() == {"a": [10, 1], "b": [20, 2]}


def test_a_first_append_of_other_columns_is_refused():
    """Columns of the same types and other names are other columns, also if both came first."""
    buffer = DatasetBuffer()

    def samples() -> Iterator[dict[str, int]]:
        yield {"x": 2}
        buffer.append([{"a": 10}])

    with pytest.raises(ValueError, match="'x'"):
        buffer.append(samples())

    assert buffer.to_pydict() == {"a": [10]}


def test_a_reader_in_an_append_is_not_locked_out():
    """Samples are asked for before the lock is taken: a slow generator holds nobody up, and may read the buffer."""
    buffer = DatasetBuffer()
    buffer.append(many(0))

    def samples() -> Iterator[dict[str, Any]]:
        for tag in range(1, 4):
            together(lambda: check(buffer))
            yield row(tag, buffer[0]["writer"])

    buffer.append(samples())

    assert len(buffer) == TOGETHER + 3


# Forks --------------------------------------------------------------------------------------------------------


def test_a_fork_finds_a_whole_buffer_and_no_lock():
    """While threads append, children are forked: each sees whole appends, and can go on appending by itself."""
    buffer, done = DatasetBuffer(), Done(3)

    def in_fork() -> tuple[int, int]:
        n_rows = check(buffer)
        together(lambda: append_all(buffer, 9, 3))
        assert check(buffer) == n_rows + 3 * (TOGETHER + 1)
        return n_rows, len(buffer)

    def fork() -> None:
        for _ in range(times(20)):
            n_rows, n_after = in_child(in_fork)
            assert n_after == n_rows + 3 * (TOGETHER + 1)

    def write(writer: int) -> None:
        for tag in range(10**9):
            buffer.append(many(tag, writer))
            buffer.append(row(-1 - tag, writer))
            if tag % 50 == 0:
                buffer.clear()
                if not forking.is_alive():
                    return

    forking = threading.Thread(target=fork, daemon=True)
    forking.start()
    together(*(done.writing(lambda writer=writer: write(writer)) for writer in range(3)))
    forking.join(HANGS_AFTER_S)
    assert not forking.is_alive()
    check(buffer)


def test_a_fork_while_somebody_reads_can_read():
    """Columns that one thread is gathering keep nobody in the child from those of another buffer."""
    large, small = DatasetBuffer(), DatasetBuffer()
    large.append_columns({"x": np.arange(1_000_000)})
    large.retain(0.9, by="random")
    small.append({"x": 1})
    is_reading, may_go_on = threading.Event(), threading.Event()

    def slowly(rows: Any, places: Any) -> Any:
        is_reading.set()
        may_go_on.wait(HANGS_AFTER_S)
        return whole(rows, places)

    whole = Snapshot.get_batch
    with mock.patch.object(Snapshot, "get_batch", slowly):
        reader = threading.Thread(target=large.to_arrow, daemon=True)
        reader.start()
        assert is_reading.wait(HANGS_AFTER_S)
        assert in_child(lambda: small.to_arrow().num_rows) == 1
        may_go_on.set()
        reader.join(HANGS_AFTER_S)
    assert not reader.is_alive()


def test_forks_from_several_threads_do_not_wait_for_each_other():
    """Two threads that fork at the same time, and others that make buffers, all get on."""
    buffers = [DatasetBuffer() for _ in range(50)]
    complaints: list[Any] = []

    def fork() -> None:
        for _ in range(times(10)):
            assert in_child(lambda: [buffer.append({"a": 1}) for buffer in buffers] and len(buffers[-1])) == 1

    def make() -> None:
        while any(thread.is_alive() for thread in forking):
            DatasetBuffer().append({"a": 1})

    # Python ignores what goes wrong in the functions around a fork, and reports it here.
    with mock.patch.object(sys, "unraisablehook", complaints.append):
        forking = [threading.Thread(target=fork, daemon=True) for _ in range(3)]
        for thread in forking:
            thread.start()
        together(make, make)
        for thread in forking:
            thread.join(HANGS_AFTER_S)

    assert complaints == []
    assert not any(thread.is_alive() for thread in forking)
    together(lambda: [buffer.append({"a": 1}) for buffer in buffers])


def test_a_fork_inside_an_append_is_no_deadlock():
    """A sample that forks, as a normalizer with worker processes may, finds the buffer usable in the child."""
    buffer = DatasetBuffer()
    buffer.append(many(0))
    pids = []

    def samples() -> Iterator[dict[str, Any]]:
        pids.append(in_child(lambda: (check(buffer), os.getpid())))
        yield row(-1)

    buffer.append(samples())

    assert pids[0][0] == TOGETHER
    assert pids[0][1] != os.getpid()
