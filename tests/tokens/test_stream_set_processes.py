"""Actors in processes of their own, killed at any time: nothing acknowledged is lost, and ids stay."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from poolish import StreamSet, StreamStore
from tests.effort import times
from tests.faults import children, fork, in_child, kill, wait_until
from tests.tokens.actors import FIELDS, SHIFT, actor


def acting(path: Path, acknowledged: int, who: int) -> Callable[[], None]:
    """A program that records for ever, and writes how many steps it has after each."""

    def child() -> None:
        store = StreamStore(path, FIELDS)
        n = store.n_steps
        while True:
            store.append(n, {"who": who, "n": n, "done": n % 7 == 6})
            n += 1
            os.pwrite(acknowledged, struct.pack("q", n), 8 * who)

    return child


def test_actors_that_are_killed_lose_nothing_that_was_acknowledged(tmp_path):
    """Four record; again and again one is killed and started anew. Its steps stay under their ids, and its next
    episode begins at a break."""
    path = tmp_path / "acknowledged"
    path.write_bytes(bytes(8 * 4))
    acknowledged = os.open(path, os.O_RDWR)
    counts = lambda: np.frombuffer(os.pread(acknowledged, 8 * 4, 0), np.int64)  # noqa: E731
    folder = tmp_path / "actors"
    folder.mkdir()
    streams, draws = StreamSet(folder / "*"), random.Random(4)
    programs = [acting(folder / f"actor-{who}", acknowledged, who) for who in range(4)]
    with children(*programs) as pids:
        wait_until(lambda: len(streams.members) == 4)
        for _ in range(times(4)):
            which = draws.randrange(4)
            time.sleep(draws.random() * 0.05)
            kill(pids[which])
            n_acknowledged = counts()[which]
            [ordinal] = [m.ordinal for m in streams.members if m.name == f"actor-{which}"]
            n_kept = next(m.n_steps for m in streams.members if m.ordinal == ordinal)
            ids = ordinal * SHIFT + np.arange(n_kept)
            before = streams.fields_at(ids)

            assert n_kept >= n_acknowledged
            assert before["n"].tolist() == list(range(n_kept))
            assert set(before["who"].tolist()) <= {which}
            pids[which] = fork(programs[which])
            wait_until(lambda n=n_acknowledged, who=which: counts()[who] > n)
            begin, _ = streams.episode_bounds(ids[-1:] + 1, "done")
            assert begin.tolist() == [ids[-1] + 1]
            assert np.array_equal(streams.fields_at(ids)["n"], before["n"])
            batch = streams.sample(200, n_steps=3, within="done")
            assert (np.diff(batch["n"], axis=1) == 1).all()
            crosses = (batch["id"] == ids[-1]).any(1) & (batch["id"] == ids[-1] + 1).any(1)
            assert not crosses.any()
    os.close(acknowledged)


def test_an_actor_of_another_process_is_seen_within_a_second(tmp_path):
    """From its first step on, by reads alone."""
    actor(tmp_path / "first", 3).close()
    streams = StreamSet(tmp_path / "*")

    def late() -> None:
        actor(tmp_path / "late", 2).close()

    assert in_child(late) == 0
    began = time.monotonic()
    wait_until(lambda: len(streams) == 5)

    assert [member.name for member in streams.members] == ["first", "late"]
    assert time.monotonic() - began < 60  # how long it takes is what wait_until and LOOK_S bound


def test_readers_in_several_processes_agree_on_ordinals(tmp_path):
    """All look at the same moment, and each might have numbered them."""
    for k in range(20):
        actor(tmp_path / "actors" / f"actor-{k}", 1, who=k).close()

    def look(number: int) -> Callable[[], None]:
        def child() -> None:
            members = StreamSet(tmp_path / "actors" / "*").members
            (tmp_path / f"seen-{number}").write_text(str([(m.name, m.ordinal) for m in members]))

        return child

    with children(*(look(k) for k in range(4))) as pids:
        for pid in pids:
            os.waitpid(pid, 0)
    seen = {(tmp_path / f"seen-{k}").read_text() for k in range(4)}

    assert len(seen) == 1
    assert len(StreamSet(tmp_path / "actors" / "*").members) == 20


def test_a_set_works_in_a_forked_child(tmp_path):
    """As in a DataLoader's worker: it sees new members there."""
    actor(tmp_path / "first", 3).close()
    streams = StreamSet(tmp_path / "*")

    def child() -> None:
        actor(tmp_path / "second", 2).close()
        streams.refresh()
        assert len(streams) == 5

    assert in_child(child) == 0
    assert streams.refresh() == 2
