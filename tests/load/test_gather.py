"""Column shards on the ranks of a real process group: each rank gets complete samples, or all get the same error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from poolish.errors import ConfigError, SchemaError
from poolish.load import Batch, Loader, VerticalShard

ROOT = Path(__file__).resolve().parents[2]
ROWS = [{"id": n, "x": np.full(3, n, np.float32), "y": n * n, "text": f"row {n}"} for n in range(10)]
COLUMNS = (["id", "x"], ["y", "text"])


def rank_of_a_group() -> None:
    """One of two processes, with other columns each; what it is comes from the environment, as with torchrun."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard = VerticalShard(COLUMNS[rank])
    whole = []
    for batch in Loader(shard(ROWS), batch_size=4, shuffle=True, seed=5, rank=0, world_size=1):
        complete = shard.gather(batch)
        assert list(complete) == ["id", "x", "y", "text"]
        assert complete.ids.tolist() == complete["id"].tolist()
        assert complete["x"].shape == (len(complete["id"]), 3)
        whole += [
            [n, *x, y, text] for n, x, y, text in zip(*(as_list(complete[name]) for name in complete), strict=True)
        ]
    assert sorted(whole) == [[n, n, n, n, n * n, f"row {n}"] for n in range(10)]
    failures = []
    wrong = [
        ({"y": [1]}, VerticalShard(["y"])),
        ({"x": [1, 2][: 1 + rank]} if rank else {"z": [1]}, VerticalShard(["x" if rank else "z"])),
        (Batch({f"c{rank}": [1]}, ids=np.array([rank])), VerticalShard([f"c{rank}"])),
        ({"other": [1]} if rank else {"x": [1]}, VerticalShard(["x"])),
    ]
    for batch, other in wrong:
        try:
            other.gather(batch)
        except SchemaError as error:
            failures.append(str(error))
    print(json.dumps(failures), flush=True)
    dist.destroy_process_group()


def as_list(values):
    return values.tolist() if hasattr(values, "tolist") else list(values)


def test_two_processes_gather_complete_samples():
    """Each rank loads its columns and gets whole rows; what cannot be joined is the same error on both ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    shared |= {"PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.load.test_gather"],
            env={**os.environ, **shared, "RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()

    assert [process.returncode for process in processes] == [0, 0]
    assert printed[0] == printed[1]
    shared_column, lengths, ids, columns = json.loads(printed[0])
    assert "column 'y' is on ranks 0 and 1" in shared_column
    assert "different lengths, {'z (rank 0)': 1, 'x (rank 1)': 2}" in lengths
    assert "rank 0 has rows [0]..., rank 1 has [1]..." in ids
    assert "rank 1: this shard has the columns ['x'], the batch ['other']" in columns


def test_gathering_without_a_group_is_an_error():
    """It says how to make one."""
    with pytest.raises(ConfigError, match="init_process_group"):
        VerticalShard(["x"]).gather({"x": [1]})


if __name__ == "__main__":
    rank_of_a_group()
