"""Real process groups for tests: ranks in forked children, which agree through a file and gloo."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from poolish.testing.faults import ended, fork
from tests.faults import PATIENCE_S


def in_group(folder: Path, world_size: int, run: Callable[[int], Any], *, environment: bool = False) -> list[Any]:
    """What ``run(rank)`` returned in each rank of a group, through JSON; of one that raised, the error as text."""
    folder.mkdir(parents=True, exist_ok=True)
    pids = [fork(_rank(folder, rank, world_size, run, environment)) for rank in range(world_size)]
    try:
        assert [ended(pid) for pid in pids] == [0] * world_size
    finally:
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                ended(pid)
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(world_size)]


def init_group(folder: Path, rank: int, world_size: int) -> None:
    """Become a rank of a group; the store is a file."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'group'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=PATIENCE_S),
    )


def _rank(
    folder: Path, rank: int, world_size: int, run: Callable[[int], Any], environment: bool
) -> Callable[[], object]:
    def child() -> None:
        import torch.distributed as dist

        signal.alarm(int(PATIENCE_S))
        if environment:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
        else:
            init_group(folder, rank, world_size)
        try:
            result = run(rank)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        (folder / f"result-{rank}").write_text(json.dumps(result))
        if not environment:
            dist.barrier()  # the store lives as long as the last rank needs it
            dist.destroy_process_group()

    return child
