"""Elastic torchrun with ranks that share no directory: any rank is killed, the world changes, each row comes once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from poolish import StreamStore
from poolish.files import write_json
from tests.effort import IS_SOAK
from tests.load.loaders import stream

ROOT = Path(__file__).resolve().parents[2]


def torchrun(folder: Path, world_size: int, *, n_steps: int = 10**6, killed: tuple[int, ...] = ()) -> None:
    """One job of torchrun, which restarts all ranks whenever one is killed."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    launch += ["--max-restarts", str(len(killed)), "--monitor-interval", "0.1"]
    # Without the variable the ranks of a restart find addresses of killed ones in torchrun's store (torch 2.13).
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [*launch, "-m", "tests.load.elastic", str(folder), str(n_steps), json.dumps(killed)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize(
    ("worlds", "killed"),
    [([2, 3], (1, 0))] + ([([2, 4, 3], (0, 1)), ([4, 2], (3, 2, 1, 0))] if IS_SOAK else []),
    ids=str,
)
def test_elastic_torchrun_trains_each_row_once(worlds, killed, tmp_path):
    """Ranks are killed in turn, rank 0 and its process of the store included; the next job has another world size."""
    stream(40, tmp_path / "stream").close()
    write_json(tmp_path / "checkpoint.json", {"trained": [], "state": None})

    torchrun(tmp_path, worlds[0], n_steps=5, killed=killed)
    for world_size in worlds[1:-1]:
        torchrun(tmp_path, world_size, n_steps=3)
    n_before = len(json.loads((tmp_path / "checkpoint.json").read_text())["trained"])
    torchrun(tmp_path, worlds[-1])

    saved = json.loads((tmp_path / "checkpoint.json").read_text())
    with StreamStore.open(tmp_path / "stream") as store:
        assert sorted(saved["trained"]) == list(range(store.n_steps))
    assert 0 < n_before < len(saved["trained"])
    assert saved["epoch"] == 1
