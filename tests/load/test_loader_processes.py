"""Ranks in processes of their own over one growing stream: each row once, whoever is killed and however many go on."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from poolish import StreamStore
from poolish.load import order
from tests.effort import times
from tests.faults import children, ended, wait_until
from tests.load.loaders import extend, load, saved, stream


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 16)


def rank_of(folder: Path, rank: int, world_size: int, state=None, *, batch_size=2, n_steps=10**6, seed=0):
    """One rank, in a process of its own: writes down the rows and the state of every step."""

    def run():
        chance = random.Random(rank + seed)
        loader = load(
            StreamStore.open(folder / "stream"),
            batch_size,
            shuffle=True,
            follow=True,
            rank=rank,
            world_size=world_size,
            journal=folder / "journal",
            num_workers=chance.choice([0, 0, 2]),
        )
        if state is not None:
            loader.load_state_dict(state)
        with open(folder / f"rank-{rank}", "w", buffering=1) as log:
            for _ in range(n_steps):
                batch = next(iter(loader), None)
                if batch is None:
                    break
                assert batch["n"].tolist() == batch.ids.tolist() if len(batch.ids) else True
                log.write(json.dumps({"step": batch.step, "ids": batch.ids.tolist(), "state": saved(loader)}) + "\n")
                time.sleep(chance.random() * 0.002)

    return run


def logged(folder: Path, rank: int) -> list[dict]:
    """What a rank wrote down, whole lines only."""
    path = folder / f"rank-{rank}"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def writer_of(folder: Path, n: int):
    """Appends until there are ``n`` rows."""

    def run():
        store = StreamStore.open(folder / "stream", mode="a")
        while store.n_steps < n:
            extend(store, min(3, n - store.n_steps))
            time.sleep(0.001)

    return run


def test_ranks_in_processes_see_each_row_once_while_a_writer_appends(tmp_path):
    """Three ranks and a writer: together the epoch, step by step, with equally many batches."""
    for number in range(times(1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        stream(40, folder / "stream").close()
        with children(writer_of(folder, 160), *(rank_of(folder, rank, 3) for rank in range(3))) as pids:
            assert [ended(pid) for pid in pids] == [0] * 4
        logs = [logged(folder, rank) for rank in range(3)]
        seen = [id_ for log in logs for line in log for id_ in line["ids"]]

        assert len({len(log) for log in logs}) == 1
        assert len(seen) == len(set(seen))
        assert sorted(seen) == list(range(len(seen))), "an epoch is what was there when it ended"
        assert len(seen) >= 40
        assert len({tuple((line["step"], line["state"]["position"]) for line in log) for log in logs}) == 1


def test_killed_ranks_go_on_from_the_last_common_state_on_another_world_size(tmp_path):
    """kill -9 of all in the middle of whatever they do, again and again: the checkpoints count exactly the epoch."""
    for number in range(times(2)):
        folder, chance = tmp_path / str(number), random.Random(number)
        folder.mkdir()
        stream(40, folder / "stream").close()
        state, trained, world_size, is_over = None, [], 3, False
        with children(writer_of(folder, 130)):
            for turn in range(3):
                for old in folder.glob("rank-*"):
                    old.unlink()
                runs = [rank_of(folder, rank, world_size, state, seed=turn) for rank in range(world_size)]
                with children(*runs) as pids:
                    if turn < 2:
                        _wait_for(folder, world_size, chance.randint(1, 5), pids)
                    else:
                        assert [ended(pid) for pid in pids] == [0] * world_size
                        is_over = True
                logs = [logged(folder, rank) for rank in range(world_size)]
                common = min(len(log) for log in logs)
                trained += [id_ for log in logs for line in log[:common] for id_ in line["ids"]]
                state = chance.choice(logs)[common - 1]["state"] if common else state
                world_size = chance.choice([1, 2, 4])
        n_rows = StreamStore.open(folder / "stream").n_steps

        assert is_over
        assert len(trained) == len(set(trained)), "a row was trained twice"
        assert sorted(trained) == list(range(len(trained)))
        assert 40 <= len(trained) <= n_rows


def _wait_for(folder: Path, world_size: int, n_steps: int, pids: list[int]) -> None:
    """Until every rank has written down some steps, or has ended."""

    def is_so() -> bool:
        if min(len(logged(folder, rank)) for rank in range(world_size)) >= n_steps:
            return True
        return all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids)

    wait_until(is_so)


def test_a_rank_killed_while_it_holds_the_journal_stops_nobody(tmp_path):
    """Its lock goes with it, and half a line that it left is none."""
    for number in range(times(3)):
        folder, chance = tmp_path / str(number), random.Random(number)
        folder.mkdir()
        stream(60, folder / "stream").close()
        with children(*(rank_of(folder, rank, 2) for rank in range(2))) as pids:
            time.sleep(chance.random() * 0.05)
            os.kill(pids[0], signal.SIGKILL)
            assert ended(pids[0]) in (0, -signal.SIGKILL)
            assert ended(pids[1]) == 0
        alone = load(StreamStore.open(folder / "stream"), 4, shuffle=True, follow=True, journal=folder / "journal")
        expected = [batch.ids.tolist()[1::2] for batch in alone]
        assert [line["ids"] for line in logged(folder, 1)] == expected


def test_ranks_wait_for_what_another_process_has_seen(tmp_path):
    """A reader that is behind catches up with the decision, before it reads."""
    writer = stream(4, tmp_path / "stream")
    options = {"follow": True, "journal": tmp_path / "journal", "world_size": 2}
    ahead = load(StreamStore.open(tmp_path / "stream"), 2, rank=0, **options)
    behind = load(StreamStore.open(tmp_path / "stream"), 2, rank=1, **options)
    extend(writer, 4)
    first = [batch.ids.tolist() for batch in ahead]
    second = [batch.ids.tolist() for batch in behind]

    assert (first, second) == ([[0, 2], [4, 6]], [[1, 3], [5, 7]])
