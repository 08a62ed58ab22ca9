"""One writer and any number of readers: locks, forks, spawned workers, threads, and temporary streams."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poolish import StreamStore, kernels
from poolish.errors import ConfigError, CorruptDataError, PoolishError, ResumeError, SchemaError, StoreLocked
from poolish.kernels.reference_tokens import PUBLISHED
from poolish.tokens import memmap_buffer, writer
from poolish.tokens.commits import CommitLog
from poolish.tokens.reader import Reader
from tests.effort import times
from tests.faults import children, die, ended, fork, in_child, kill, signals
from tests.tokens import recordings
from tests.tokens.recordings import FIELDS, append, append_many, assert_holds, go_on, make

ROOT = Path(__file__).resolve().parents[2]


def outcomes(pids: list[int]) -> list[int]:
    """How children ended, once all have."""
    return [ended(pid) for pid in pids]


# One writer -------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path):
    """By its process and host; readers are welcome, and the first one notices nothing."""
    path = tmp_path / "stream"
    with signals() as (opened, wait_until_open), signals() as (go, wait_to_go):

        def first():
            with StreamStore(path, FIELDS) as store:
                append(store, 0, 5)
                opened()
                wait_to_go()
                append(store, 5, 10)

        with children(first) as pids:
            wait_until_open()
            who = rf"held by process {pids[0]} on {os.uname().nodename}; wait until it has ended"
            for refused in (lambda: StreamStore.open(path, mode="a"), lambda: StreamStore(path, FIELDS)):
                with pytest.raises(StoreLocked, match=who):
                    refused()
            with StreamStore.open(path) as reader:
                assert reader.n_steps == 5
            go()
            assert outcomes(pids) == [0]
    with StreamStore.open(path, mode="a") as store:
        assert_holds(store, recordings.tokens(0, 10))


def test_a_second_writer_in_the_same_process_is_refused(tmp_path):
    """Two handles that both append would overwrite each other."""
    with StreamStore(tmp_path / "stream", FIELDS), pytest.raises(StoreLocked, match="held by this process"):
        StreamStore.open(tmp_path / "stream", mode="a")
    StreamStore.open(tmp_path / "stream", mode="a").close()


def test_a_killed_writer_holds_no_lock(tmp_path):
    """Nobody has to remove anything by hand."""
    path = tmp_path / "stream"

    def leave():
        store = StreamStore(path, FIELDS)
        append(store, store.n_steps, store.n_steps + 5)
        die()

    for _ in range(3):
        assert in_child(leave) == -signal.SIGKILL
    with StreamStore.open(path, mode="a") as store:
        assert store.n_steps == 15


def test_a_worker_that_outlives_the_writer_holds_no_lock(tmp_path):
    """A forked child that is still there when its parent is killed reads on; the next writer opens all the same."""
    path = tmp_path / "stream"
    with signals() as (forked, wait_until_forked), signals() as (finish, wait_for_end), signals() as (good, wait_good):

        def parent():
            store = StreamStore(path, FIELDS)
            append(store, 0, 5)

            def orphan():
                forked()
                wait_for_end()
                store.refresh()
                assert_holds(store, recordings.tokens(0, 10))
                good()

            fork(orphan)
            time.sleep(60)

        with children(parent) as pids:
            wait_until_forked()
            kill(pids[0])
            with StreamStore.open(path, mode="a") as store:
                append(store, 5, 10)
                finish()
                wait_good()


# Forks ------------------------------------------------------------------------------------------------------------


def test_a_forked_child_reads_and_never_writes(tmp_path):
    """What it tries is an error that says where to append; its parent notices nothing of it, nor of its end."""
    with (
        StreamStore(tmp_path / "stream", FIELDS) as store,
        signals() as (go, wait_to_go),
        signals() as (ready, wait_until_ready),
    ):
        append(store, 0, 10)

        def child():
            for act in (
                lambda: append(store, 10, 11),
                lambda: append_many(store, 10, 12),
                lambda: store.append(10, ["action"], [160.0]),
                store.commit,
            ):
                with pytest.raises(PoolishError, match=r"append where|append there"):
                    act()
            assert_holds(store, recordings.tokens(0, 10))
            ready()
            wait_to_go()
            assert store.refresh() == recordings.n_tokens(20) - recordings.n_tokens(10)
            assert_holds(store, recordings.tokens(0, 20))
            store.verify()
            store.close()
            gc.collect()

        with children(child, child) as pids:
            wait_until_ready()
            wait_until_ready()
            append(store, 10, 20)
            go()
            go()
            assert outcomes(pids) == [0, 0]
        append(store, 20, 30)
        assert store.commit() == 1
        with StreamStore.open(tmp_path / "stream") as reader:
            assert_holds(reader, recordings.tokens(0, 30))


def test_a_method_that_was_taken_before_the_fork_writes_nothing_either(tmp_path):
    """``store.append`` bound to a name is the parent's."""
    with StreamStore(tmp_path / "stream", FIELDS) as store:
        append(store, 0, 10)
        taken = store.append

        def child():
            with pytest.raises(ConfigError, match="append there"):
                taken(10, ["action"], [160.0])

        assert in_child(child) == 0
        append(store, 10, 20)
        assert_holds(store, recordings.tokens(0, 20))


def test_a_child_that_ends_as_a_program_does_leaves_the_stream_alone(tmp_path):
    """With its finalizers and its atexit functions, which close what is its own: nothing here."""
    program = """
        import os, sys
        from poolish import StreamStore
        store, temporary = StreamStore(sys.argv[1], ["a"]), StreamStore(fields=["a"])
        for each in (store, temporary):
            each.append(0, ["a"], [1.0])
        if os.fork() == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        for each in (store, temporary):
            each.append(1, ["a"], [2.0])
            assert each[:]["values"].view("float64").tolist() == [1.0, 2.0]
        assert os.path.isdir(temporary._read().path)
        assert StreamStore.open(sys.argv[1]).verify().commits == 1
    """
    assert run(program, str(tmp_path / "stream")) == 0
    with StreamStore.open(tmp_path / "stream") as reader:
        assert reader.verify().commits == 2


def test_forks_while_threads_append(tmp_path, monkeypatch):
    """A fork comes at any moment of any thread: each child sees a whole stream, and none waits for a thread it lost."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(memmap_buffer, "RESERVED", 1 << 16)
    store, stop, failed = StreamStore(tmp_path / "stream", FIELDS), threading.Event(), []

    def append_on():
        step = 0
        try:
            while not stop.is_set() and step < 300_000:
                step = go_on(store, step)
        except BaseException as error:
            failed.append(error)

    def look_on():
        while not stop.is_set():
            store.windows(np.arange(max(0, len(store) - 50)), 1)
            store.verify()

    def child():
        n_steps = recordings.check(store)
        store.refresh()
        recordings.check(store, n_steps)

    threads = [threading.Thread(target=append_on), threading.Thread(target=look_on)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(times(15)):
            with children(child) as pids:
                assert outcomes(pids) == [0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert not failed
    recordings.check(store, 1)
    store.close()


# Workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "where"), [("fork", "path"), ("fork", "temporary"), ("spawn", "temporary")])
def test_data_loader_workers_read_the_stream(tmp_path, method, where):
    """Every window once, in order, whichever way the workers come to be; the writer goes on afterwards."""
    import torch.utils.data as torch_data

    with StreamStore(tmp_path / "stream" if where == "path" else None, FIELDS) as store:
        append_many(store, 0, 300)
        types, values = recordings.tokens(0, 300)
        loader = torch_data.DataLoader(
            store.as_dataset(16), batch_size=8, num_workers=2, multiprocessing_context=method, shuffle=False
        )

        batches = list(loader)

        n = len(values) // 16 * 16
        found = {name: np.concatenate([batch[name].numpy() for batch in batches]).ravel() for name in batches[0]}
        assert np.array_equal(found["values"], values[:n])
        assert np.array_equal(found["types"], types[:n])
        append_many(store, 300, 310)
        assert_holds(store, recordings.tokens(0, 310))


def test_a_handle_that_is_sent_to_another_process_is_the_same_stream(tmp_path):
    """The same length, though there is more meanwhile; the same uuid; to read, and with nothing else on board."""
    program = """
        import pickle, sys
        store = pickle.loads(bytes.fromhex(sys.argv[1]))
        print(len(store), store.uuid, store.refresh(), store[-1]["values"].item())
        store.verify()
        try:
            store.append(99, ["action"], [1.0])
        except ValueError as error:
            print("opened to read" in str(error))
    """
    with StreamStore(tmp_path / "stream", FIELDS) as store:
        append(store, 0, 10)
        sent = pickle.dumps(store)
        append(store, 10, 20)
        told = output_of(program, sent.hex()).split()
        before, now, last = recordings.n_tokens(10), recordings.n_tokens(20), recordings.tokens(0, 20)[1][-1]

        assert told == [str(before), store.uuid, str(now - before), str(last), "True"]
        assert len(sent) < 500


def test_a_handle_is_refused_by_another_stream_at_its_path(tmp_path):
    """Who resumes must not go on with somebody else's data."""
    path = tmp_path / "stream"
    with StreamStore(path, FIELDS) as store:
        append(store, 0, 10)
        sent = pickle.dumps(store)
    path.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        pickle.loads(sent)
    make(path, 5)

    with pytest.raises(ResumeError, match="another stream is there"):
        pickle.loads(sent)


def test_a_handle_of_a_bounded_stream_that_moved_on(tmp_path):
    """What it had seen may all be gone: it is empty then, a read is an IndexError, and refresh goes on."""
    with StreamStore(tmp_path / "stream", {"action": "int64"}, max_tokens=100) as store:
        extend(store, 50)
        sent = pickle.dumps(store)
        extend(store, 120)

        partly = pickle.loads(sent)

        assert (len(partly), partly.first, partly[45]["values"].item()) == (30, 20, 45)
        extend(store, 500)

        gone = pickle.loads(sent)

        assert (len(gone), gone.n_steps, list(gone.steps())) == (0, 0, [])
        with pytest.raises(IndexError):
            gone[45]
        gone.refresh()
        assert (gone.first, gone.end) == (400, 500)
        assert np.array_equal(gone[:]["values"], np.arange(400, 500))


def test_a_window_that_has_left_since_the_reader_looked_is_told(tmp_path):
    """Its tokens are still in the reader's reach and may be overwritten by zeros any moment."""
    with StreamStore(tmp_path / "stream", {"action": "int64"}, max_tokens=100) as store:
        extend(store, 100)
        with StreamStore.open(tmp_path / "stream") as reader:
            extend(store, 150)

            for read in (lambda: reader.windows([0], 10), lambda: reader[[5, 60]], lambda: list(reader.steps(0, 5))):
                with pytest.raises(IndexError, match="left the stream"):
                    read()
            assert reader.windows([60], 10)["values"].tolist() == [list(range(60, 70))]


def extend(store: StreamStore, end: int) -> None:
    """Append steps of one token, whose value is its position, up to a position."""
    numbers = np.arange(store.end, end)
    store.append_many(numbers, {"action": numbers})


# Readers while it is written --------------------------------------------------------------------------------------


def watch(path: Path, seconds: float) -> None:
    """Look at a stream that grows: whole calls only, right values everywhere, and never less than before."""
    rng, end = np.random.default_rng(os.getpid()), time.monotonic() + seconds
    n_looks = seen = 0
    with StreamStore.open(path) as reader:
        while time.monotonic() < end:
            if rng.random() < 0.1:
                with StreamStore.open(path) as another:
                    assert another.n_steps >= seen
                    assert another.end == recordings.n_tokens(another.n_steps)
            reader.refresh()
            n_steps = reader.n_steps
            assert n_steps >= seen, "it went back"
            assert recordings.is_between_calls(n_steps), "in the middle of a call"
            assert reader.end == recordings.n_tokens(n_steps)
            for first in {max(0, n_steps - 60), int(rng.integers(0, max(1, n_steps - 60)))}:
                types, values = recordings.tokens(first, min(n_steps, first + 60))
                if len(values):
                    found = reader.windows([recordings.n_tokens(first)], len(values))
                    assert np.array_equal(found["values"][0], values), "torn"
                    assert np.array_equal(found["types"][0], types), "torn"
            seen, n_looks = n_steps, n_looks + 1
    assert n_looks > 10


def write_on(path: Path) -> None:
    step = 0
    with StreamStore.open(path, mode="a") as store:
        while step < 1_000_000:
            step = go_on(store, step)
    time.sleep(60)


def publish_first(path: Path) -> None:
    """A writer as it must not be: it tells of an append before it is there."""
    step = 0
    with StreamStore.open(path, mode="a") as store:
        source = store._writer()
        while step < 100_000:
            _, n = recordings.call_at(step)
            n_rows = 2 * n + sum(number % 5 == 4 for number in range(step, step + n))
            rows = source.recorder.n_rows + n_rows
            if rows < source.lanes.index.capacity - 1:
                kernels.store_word(source.head.words, PUBLISHED, rows)
            time.sleep(0.001)
            step = go_on(store, step)


@pytest.mark.parametrize("chunks", [1 << 14, 1 << 20])
def test_readers_never_see_half_of_anything(tmp_path, monkeypatch, chunks):
    """Three of them look for two seconds at what one writer appends and commits."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", chunks)
    monkeypatch.setattr(memmap_buffer, "RESERVED", 4 * chunks)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path, seconds = tmp_path / "stream", times(1)
    make(path)

    with children(lambda: write_on(path)), children(*[lambda: watch(path, seconds)] * 3) as readers:
        assert outcomes(readers) == [0, 0, 0]


def test_a_writer_that_publishes_first_would_be_seen(tmp_path):
    """The readers of the test above do find half an append, if there is one."""
    path = tmp_path / "stream"
    make(path)

    with children(lambda: publish_first(path)), children(lambda: watch(path, 20)) as readers:
        assert outcomes(readers) == [1]


def watch_bounded(path: Path, seconds: float) -> None:
    """Read anywhere in a stream that lets its steps go: the value is its position, or it is an IndexError."""
    rng, end = np.random.default_rng(os.getpid()), time.monotonic() + seconds
    n_right = n_gone = 0
    with StreamStore.open(path) as reader:
        while time.monotonic() < end:
            if rng.random() < 0.5:
                reader.refresh()
            # Also where it was some time ago.
            starts = rng.integers(max(0, reader.first - 10), max(1, reader.end - 200), 20)
            try:
                for found in (
                    reader.windows(starts, 200)["values"],
                    reader[starts[:, None] + np.arange(200)]["values"],
                ):
                    assert np.array_equal(found, starts[:, None] + np.arange(200))
                first = int(rng.integers(reader.first, max(reader.first + 1, reader.end - 50)))
                for step in itertools.islice(reader.steps(first, first + 50), 50):
                    assert step["action"] == step.number
                n_right += 1
            except IndexError:
                n_gone += 1
    assert n_right > 10, (n_right, n_gone)


def write_bounded(path: Path) -> None:
    os.fsync = lambda _: None
    with StreamStore.open(path, mode="a", max_tokens=200_000) as store:
        while store.end < 400_000_000:
            extend(store, store.end + 2_000)


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_reader_that_is_overtaken_is_told(tmp_path, monkeypatch, is_checked):
    """What has left a bounded stream is an IndexError, never a wrong value; without the check it would be one."""
    path = tmp_path / "stream"
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 15)
    with StreamStore(path, {"action": "int64"}, max_tokens=200_000) as store:
        extend(store, 200_000)
    if not is_checked:
        monkeypatch.setattr(Reader, "kept_from", lambda self: self.first_token)

    with (
        children(lambda: write_bounded(path)),
        children(*[lambda: watch_bounded(path, times(1) if is_checked else 20)] * 2) as readers,
    ):
        assert outcomes(readers) == [0, 0] if is_checked else outcomes(readers[:1]) != [0]


def test_a_bounded_stream_that_moves_on_while_it_is_opened_is_not_damaged(tmp_path, monkeypatch):
    """Space that the writer gives back just then reads as zeros; the reader looks again at what is kept."""
    path, look, n_looks = tmp_path / "stream", Reader._look_at_branches, []
    monkeypatch.setattr(writer, "TRIM_TOKENS", 1 << 15)
    with StreamStore(path, {"action": "int64"}, max_tokens=200_000) as store:
        extend(store, 200_000)

        def overtaken(self, *arguments):
            look(self, *arguments)
            n_looks.append(1)
            if len(n_looks) == 1:
                extend(store, 600_000)

        monkeypatch.setattr(Reader, "_look_at_branches", overtaken)
        with StreamStore.open(path) as reader:
            assert (reader.first, reader.end, len(n_looks)) == (400_000, 600_000, 2)


def test_a_reader_that_looks_again_does_not_parse_the_log_again(tmp_path, monkeypatch):
    """Loaders look at every step; a commit that is made meanwhile is parsed, once."""
    parsed = []
    parse = CommitLog.parsed
    monkeypatch.setattr(CommitLog, "parsed", lambda log, start=0: parsed.append(start) or parse(log, start))
    with StreamStore(tmp_path / "stream", fields=["a"]) as writer:
        writer.append(0, ["a"], [1])
        writer.commit()
        reader = StreamStore.open(tmp_path / "stream")
        del parsed[:]

        sizes = [reader.refresh() for _ in range(3)]
        assert (sizes, parsed) == ([0, 0, 0], [])
        writer.append(1, ["a"], [2])
        writer.commit()
        sizes = [reader.refresh() for _ in range(3)]

    assert sizes == [1, 0, 0]
    assert len(parsed) <= 2  # by the writer and by the reader


def test_readers_need_no_permission_to_write(tmp_path):
    """In a directory and of files that they may only read, as another user; a writer is refused at once."""
    path = tmp_path / "stream"
    n_steps = make(path, 5)
    for file in path.iterdir():
        file.chmod(0o444)
    path.chmod(0o555)
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}
    folder = os.open(path, os.O_RDONLY)

    def nobody():
        os.fchdir(folder)  # the directories above are not theirs to enter
        if os.getuid() == 0:
            os.seteuid(65534)
        with StreamStore.open(".") as reader:
            assert recordings.check(reader) == n_steps
            reader.refresh()
            reader.verify()
        with StreamStore.open(".", at=1) as reader:
            reader.verify()
        with pytest.raises(PermissionError):
            StreamStore.open(".", mode="a")

    assert in_child(nobody) == 0
    os.close(folder)
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()} == before
    path.chmod(0o755)


# Threads ----------------------------------------------------------------------------------------------------------


def test_threads_that_append_at_once_lose_nothing(tmp_path, monkeypatch):
    """Append, append_many and commit from several threads: what returned is there, once, and whole."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 1 << 14)
    numbers, appended, failed = itertools.count(), [], []
    start = threading.Barrier(5)

    with StreamStore(tmp_path / "stream", {"step": "int64", "thread": "int64"}) as store:

        def work(thread: int, act: Callable[[int, int], range]) -> None:
            start.wait()
            try:
                for _ in range(times(400)):
                    # Another thread may be quicker with a later step; then this one is refused, and takes a new one.
                    with contextlib.suppress(SchemaError):
                        appended.extend((step, thread) for step in act(thread, next(numbers) * 10))
            except BaseException as error:
                failed.append(error)

        def one(thread, step):
            store.append([step, step], ["step", "thread"], [step, thread])
            return range(step, step + 1)

        def many(thread, step):
            steps = np.arange(step, step + 10)
            store.append_many(steps, {"step": steps, "thread": np.full(10, thread)})
            return range(step, step + 10)

        def commit(thread, step):
            store.commit()
            store.verify()
            return range(0)

        threads = [threading.Thread(target=work, args=(i, act)) for i, act in enumerate([one, one, many, many, commit])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert not failed
        found = store[:]["values"].reshape(-1, 2)
        assert [tuple(pair) for pair in found.tolist()] == sorted(appended)
        assert len(found) > times(100)
        store.verify()
    with StreamStore.open(tmp_path / "stream") as reader:
        assert len(reader) == 2 * len(appended)
        reader.verify()


def test_closing_while_threads_append_ends_them_with_an_error(tmp_path):
    """What they had appended is committed; nothing is written to a stream that is closed, and no process ends."""
    path = tmp_path / "stream"
    for _ in range(times(5)):
        store, told = StreamStore(path, FIELDS), []

        def append_on(store=store, told=told):
            step = store.n_steps
            with contextlib.suppress(ConfigError, CorruptDataError):
                while True:
                    step = go_on(store, step)
                    told.append(step)

        thread = threading.Thread(target=append_on)
        thread.start()
        time.sleep(random.uniform(0, 0.02))
        store.close()
        thread.join(20)

        assert not thread.is_alive()
        with StreamStore.open(path) as reader:
            recordings.check(reader, max(told, default=0))
            assert reader.verify().uncommitted_tokens == 0


# Temporary streams ------------------------------------------------------------------------------------------------


def start(program: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False, **options)


def run(program: str, *arguments: str, **options) -> int:
    """How a program of its own ends."""
    done = start(program, *arguments, **options)
    print(done.stdout, done.stderr)
    return done.returncode


def output_of(program: str, *arguments: str) -> str:
    """What a program of its own prints."""
    done = start(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pass", 0),
        ("raise ValueError('oops')", 1),
        ("sys.exit(3)", 3),
        ("del store", 0),
        ("store.close()", 0),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_a_temporary_stream_is_gone_with_its_process(tmp_path, end, status):
    """However the program comes to its end."""
    program = f"""
        import os, signal, sys
        from poolish import StreamStore
        store = StreamStore(fields=["a"])
        other = StreamStore(fields=["a"])
        store.append(0, ["a"], [1.0])
        assert len(os.listdir(os.environ["TMPDIR"])) == 2
        {end}
    """

    assert run(program, env={**os.environ, "TMPDIR": str(tmp_path)}) == status
    assert os.listdir(tmp_path) == []


def test_a_temporary_stream_goes_with_its_last_handle(tmp_path, monkeypatch):
    """And stays while there is one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = StreamStore(fields=["a"])
    assert len(os.listdir(tmp_path)) == 1
    with pytest.raises(RuntimeError, match="oops"), StreamStore(fields=["a"]):
        raise RuntimeError("oops")
    assert len(os.listdir(tmp_path)) == 1
    del store
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_swept_by_the_next(tmp_path, monkeypatch):
    """And only that: not what lives, in whichever process, and nothing of another name."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "somebody's").mkdir()
    alive = StreamStore(fields=FIELDS)
    append(alive, 0, 10)
    for _ in range(3):
        assert in_child(lambda: (StreamStore(fields=["a"]), die())) == -signal.SIGKILL
    with signals() as (opened, wait_until_open):

        def live_on():
            store = StreamStore(fields=FIELDS)
            append(store, 0, 5)
            opened()
            time.sleep(60)

        with children(live_on):
            wait_until_open()
            n_before = len(os.listdir(tmp_path))
            with StreamStore(fields=["a"]):
                assert len(os.listdir(tmp_path)) == n_before + 1 <= 4
    assert_holds(alive, recordings.tokens(0, 10))
    alive.close()
    StreamStore(fields=["a"]).close()
    assert os.listdir(tmp_path) == ["somebody's"]
