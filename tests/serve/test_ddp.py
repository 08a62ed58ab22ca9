"""Real DDP: two processes that train one model on one queue, killed in the middle, go on exactly where they were."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from poolish.files import write_json
from tests.faults import fork, kill
from tests.serve import queues

WORLD_SIZE = 2
EVERY = 3
ROOT = Path(__file__).resolve().parents[2]


def train(path: Path, n_batches: int) -> None:
    """One rank; who it is comes from the environment, as with torchrun."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    saved = queues.read_checkpoint(path)
    ledger = saved["ledger"]
    with queues.DatasetConsumer(path, acknowledge="on_checkpoint", timeout_s=queues.PATIENCE_S) as consumer:
        assert (consumer.rank, consumer.world_size) == (rank, WORLD_SIZE)
        if saved["state"] is not None:
            consumer.load_state_dict(saved["state"])
        while len(ledger) < n_batches:
            batch = consumer.get_batch("train")
            optimizer.zero_grad()
            model(batch["x"].float() / 2**40).mean().backward()
            optimizer.step()

            arrays = {name: tensor.numpy() for name, tensor in batch.items()}
            mine = torch.tensor(queues.entry(consumer.last_number(), arrays))
            lines = [torch.empty_like(mine) for _ in range(WORLD_SIZE)]
            dist.all_gather(lines, mine)
            ledger += [line.tolist() for line in lines]
            if len(ledger) % (EVERY * WORLD_SIZE) == 0:
                state = consumer.state_dict()
                if rank == 0:
                    write_json(path / "checkpoint.json", {"ledger": ledger, "state": state}, durable=False)
                dist.barrier()
                consumer.commit(state)
            if rank == 0:
                print(len(ledger), flush=True)
    dist.destroy_process_group()


def start(path: Path, n_batches: int) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD_SIZE)}
    shared |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.serve.test_ddp", str(path), str(n_batches)],
            env={**os.environ, **shared, "RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for rank in range(WORLD_SIZE)
    ]


def wait_for(stream: IO[bytes] | None, n_batches: int) -> None:
    """Until the trainers have told that they have trained so many."""
    assert stream is not None
    end, told = time.monotonic() + queues.PATIENCE_S, b""
    os.set_blocking(stream.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while f"\n{n_batches}\n" not in f"\n{told.decode()}":
            assert selector.select(end - time.monotonic()), f"told {told!r}"
            part = os.read(stream.fileno(), 4096)
            assert part, f"it has ended, told {told!r}"
            told += part


def test_two_processes_killed_in_the_middle_train_on_everything_once(tmp_path):
    """The ledger in the last checkpoint is 0..N-1, each batch as its provider made it."""
    n_batches = 30
    queues.publish(tmp_path, 1)
    children = [fork(lambda name=name: queues.provide(tmp_path, name)) for name in range(2)]
    ranks = []
    try:
        ranks = start(tmp_path, 1_000_000)
        wait_for(ranks[0].stdout, 16)
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.communicate(timeout=queues.PATIENCE_S)
        kill(children.pop())
        before = queues.read_checkpoint(tmp_path)["ledger"]
        target = len(before) + n_batches

        ranks = start(tmp_path, target)
        for rank in ranks:
            rank.communicate(timeout=queues.PATIENCE_S)
        assert [rank.returncode for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        for child in children:
            kill(child)

    ledger = queues.read_checkpoint(tmp_path)["ledger"]
    assert len(before) >= 12
    assert ledger[: len(before)] == before
    assert len(ledger) == target
    queues.check_ledger(ledger)
    assert queues.check_log(tmp_path)[0] == target


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
