"""Which rank a consumer is: looked up with the first batch, by the rule of all of poolish, and fixed from then on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from poolish.errors import ConfigError
from poolish.guards import Suite
from tests.serve.queues import consumer, publish, take

GROUP = "poolish.torch_bridge"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def join(patch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """As if ``torch.distributed`` had been initialised just now."""
    patch.setattr(f"{GROUP}.has_process_group", lambda: True)
    patch.setattr("poolish.serve.consumer.has_process_group", lambda: True)
    patch.setattr(f"{GROUP}.own_rank", lambda group: rank)
    patch.setattr(f"{GROUP}.n_ranks", lambda group: world_size)


def test_ranks_of_a_launcher_are_found_with_the_first_batch(path, monkeypatch):
    """A consumer may be made before the process group is: it reads the batches of its rank all the same."""
    publish(path, 4)
    with consumer(path) as reader:
        assert (reader.rank, reader.world_size) == (0, 1)
        join(monkeypatch, 1, 2)
        assert take(reader)[0] == 1
        assert (reader.rank, reader.world_size) == (1, 2)
        assert "rank 1 of 2" in repr(reader)


def test_a_state_that_is_loaded_before_the_group_is_made_holds(path, monkeypatch):
    """Its position is the group's, and the rank is found afterwards; a guard knows it too."""
    publish(path, 6)
    with consumer(path, acknowledge="on_checkpoint") as reader:
        take(reader)
        take(reader)
        state = json.loads(json.dumps(reader.state_dict()))
        reader.commit(state)
    suite = Suite().expect("x", at_most=-1).on(error="skip")
    with consumer(path, acknowledge="on_checkpoint", guard=suite) as reader:
        reader.load_state_dict(state)
        join(monkeypatch, 1, 2)
        with pytest.raises(Exception, match=r"batch 3, rank 1 of 2"):
            reader.get_batch()


def test_a_world_size_without_a_rank_is_an_error(path, monkeypatch):
    """Otherwise every process would be rank 0; nothing is read, and no rank is taken."""
    publish(path, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with consumer(path) as reader:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"WORLD_SIZE=2 and no RANK"):
                reader.get_batch()
        monkeypatch.setenv("RANK", "1")
        assert take(reader)[0] == 1


def test_a_rank_that_changes_after_the_first_batch_is_an_error(path, monkeypatch):
    """What was read before were another rank's batches."""
    publish(path, 4)
    with consumer(path) as reader:
        take(reader)
        join(monkeypatch, 1, 2)
        with pytest.raises(ConfigError, match=r"begun as rank 0 of 1 .* now torch\.distributed says rank 1 of 2"):
            reader.get_batch()


def test_arguments_are_what_counts(path, monkeypatch):
    """Whatever the environment and the group say; one without the other is an error."""
    publish(path, 3)
    join(monkeypatch, 1, 2)
    with consumer(path, rank=2, world_size=3) as reader:
        assert take(reader)[0] == 2
    for options in ({"rank": 0}, {"world_size": 2}, {"rank": 2, "world_size": 2}, {"rank": True, "world_size": 2}):
        with pytest.raises(ConfigError, match="rank"):
            consumer(path, **options)


def test_a_group_is_asked_for_its_rank(path, monkeypatch):
    """That of the group, not of the default one; without an initialised group it is an error."""
    publish(path, 3)
    mine = object()
    with consumer(path, group=mine) as reader:
        with pytest.raises(ConfigError, match="not initialised"):
            reader.get_batch()
        join(monkeypatch, 0, 4)
        monkeypatch.setattr(f"{GROUP}.own_rank", lambda group: 2 if group is mine else 0)
        monkeypatch.setattr(f"{GROUP}.n_ranks", lambda group: 3 if group is mine else 4)
        monkeypatch.setattr(f"{GROUP}.ranks_of", lambda group: [0, 1, 3])
        assert take(reader)[0] == 2


def test_a_mesh_deals_along_its_data_parallel_dimension(path):
    """One that has several processes for a rank is refused with what to do: a batch goes to one process."""
    publish(path, 2)

    def mesh(size: int) -> Any:
        return SimpleNamespace(
            ndim=2,
            mesh_dim_names=("dp", "tp"),
            get_coordinate=lambda: [1, 0],
            size=lambda i=None: 2 * size if i is None else (2, size)[i],
            mesh=[],
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{GROUP}.mesh_ranks", lambda mesh: [0, 1])
        with consumer(path, mesh=mesh(1)) as reader:
            assert take(reader)[0] == 1
        with consumer(path, mesh=mesh(2), run="other") as reader, pytest.raises(ConfigError, match=r"broadcast"):
            reader.get_batch()


PROGRAM = """
import os, sys
import torch.distributed as dist
from poolish import DatasetConsumer

path, rank = sys.argv[1], int(sys.argv[2])
consumer = DatasetConsumer(path, output="numpy", timeout_s=60, acknowledge="explicit")
dist.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=2)
numbers = []
with consumer:
    for batch in consumer:
        numbers.append(consumer.last_number())
        consumer.mark_trained()
        dist.barrier()
print(consumer.rank, consumer.world_size, numbers, flush=True)
dist.destroy_process_group()
"""


def test_ranks_of_a_real_group_share_a_queue(tmp_path: Path):
    """Two processes with torch.distributed and nothing in the environment."""
    from tests.serve.queues import provider

    with provider(tmp_path, max_batches=6) as running:
        running.run()
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120) for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], printed
    assert [out for out, _ in printed] == ["0 2 [0, 2, 4]\n", "1 2 [1, 3, 5]\n"]
