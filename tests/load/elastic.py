"""One rank of an elastic training, as torchrun starts it: ``python -m tests.load.elastic FOLDER N_STEPS KILLED``.

Each step gathers the rows of all ranks, so rank 0 knows what was trained; a checkpoint holds that and the loader's
state. Rank 0 also records the stream while the epoch runs. ``KILLED`` are the ranks that kill themselves, one in each
attempt, between a step and its checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from poolish import Loader, StreamStore
from poolish.files import write_json
from tests.load.loaders import extend

N_ROWS = 150
EVERY = 2


def train(folder: Path, n_steps: int, killed: list[int]) -> None:
    import torch.distributed as dist

    from poolish.load import order

    order.BLOCK_ROWS = 16  # so that many blocks are decided
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    store = StreamStore.open(folder / "stream", mode="a" if rank == 0 else "r")
    loader = Loader(store, 2, shuffle=True, follow=True, journal="group", output="numpy")
    saved = json.loads((folder / "checkpoint.json").read_text())
    trained = saved["trained"]
    if saved["state"] is not None:
        loader.load_state_dict(saved["state"])
    for n_done, batch in enumerate(islice(loader, n_steps), 1):
        shares: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(shares, batch.ids.tolist())
        trained += [id_ for share in shares for id_ in share]
        if rank == 0 and store.n_steps < N_ROWS:
            extend(store, 5)
        if attempt < len(killed) and killed[attempt] == rank and n_done == EVERY + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if n_done % EVERY == 0 or n_done == n_steps:
            save(folder, rank, trained, loader)
        dist.barrier()
    save(folder, rank, trained, loader)
    dist.barrier()
    dist.destroy_process_group()


def save(folder: Path, rank: int, trained: list[int], loader: Loader) -> None:
    if rank == 0:
        content = {"trained": trained, "state": loader.state_dict(), "epoch": loader.epoch}
        write_json(folder / "checkpoint.json", content, durable=False)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
