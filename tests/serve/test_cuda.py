"""Batches on a CUDA device: the same values as on the CPU, in the same order, whatever is read ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poolish import DataProviderBase, DatasetConsumer
from poolish.errors import Starved
from poolish.guards import Suite

pytestmark = pytest.mark.cuda
N_BATCHES = 120


class Mixed(DataProviderBase):
    """Batches of all widths, of as many rows as their counter says, that tell their counter."""

    def build_meta(self) -> dict[str, Any]:
        fields = {"a": ("bfloat16", [3]), "b": ("float8_e4m3fn", [2]), "c": ("int64", []), "d": ("bool", [5])}
        named = [{"name": name, "dtype": dtype, "shape": shape} for name, (dtype, shape) in fields.items()]
        return {"batch_schema": [*named, {"name": "e", "dtype": "int64", "shape": [None]}]}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        return expected(self.batch_number(split))


def expected(k: int) -> dict[str, Any]:
    n = k % 7 + 1
    return {
        "a": torch.arange(n * 3).reshape(n, 3).to(torch.bfloat16) + k,
        "b": torch.ones(n, 2).to(torch.float8_e4m3fn),
        "c": torch.full((n,), k),
        "d": torch.ones(n, 5, dtype=torch.bool),
        "e": torch.full((n, k % 11), k),
    }


def check(batch: dict[str, torch.Tensor], k: int) -> None:
    for name, wanted in expected(k).items():
        assert batch[name].is_cuda
        assert batch[name].dtype == wanted.dtype
        assert torch.equal(batch[name].cpu().float(), wanted.float())


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    config = {"dataset": "mixed", "batch_size": 1, "block_size": 1, "splits": ("train",), "max_backlog": 1000}
    with Mixed(config, path=tmp_path) as provider:
        for _ in range(N_BATCHES):
            provider.publish("train")
    return tmp_path


@pytest.mark.parametrize("prefetch", [1, 3, 12])
def test_batches_on_the_device_are_those_of_the_queue(queue: Path, prefetch: int):
    """All of them are kept and looked at in the end: memory that is used again was not needed any more."""
    with DatasetConsumer(queue, device="cuda", prefetch=prefetch, timeout_s=10) as consumer:
        batches = [consumer.get_batch("train") for _ in range(N_BATCHES)]

    for k, batch in enumerate(batches):
        check(batch, k)


def test_what_was_read_ahead_is_not_handed_out(queue: Path):
    """A state says where the trainer is, not where the threads are; a state that is loaded is obeyed."""
    with DatasetConsumer(queue, device="cuda", acknowledge="on_checkpoint", timeout_s=10) as consumer:
        for k in range(10):
            check(consumer.get_batch("train"), k)
        state = consumer.state_dict()
        check(consumer.get_batch("train"), 10)
        consumer.load_state_dict(state)
        check(consumer.get_batch("train"), 10)

    assert state["splits"]["train"]["position"] == 10


def test_a_corrupt_batch_is_replaced_by_the_one_before_it(queue: Path):
    """Read ahead or not."""
    damaged = queue / "queue" / "train" / "000000000050.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")

    with DatasetConsumer(queue, device="cuda", prefetch=5, on_corrupt="cached", timeout_s=10) as consumer:
        batches = [consumer.get_batch("train") for _ in range(N_BATCHES)]

    for k, batch in enumerate(batches):
        check(batch, 49 if k == 50 else k)


def test_a_batch_that_does_not_come_is_told(queue: Path):
    """The trainer's patience counts from when it asks."""
    with DatasetConsumer(queue, device="cuda", timeout_s=0.3) as consumer:
        for _ in range(N_BATCHES):
            consumer.get_batch("train")
        with pytest.raises(Starved, match=f"batch {N_BATCHES}"):
            consumer.get_batch("train")


class Documents(DataProviderBase):
    """Ragged rows, text and an array, of as many rows as the counter says."""

    variable_rows = True

    def build_meta(self) -> dict[str, Any]:
        fields = {"tokens": ("int32", [None]), "boxes": ("bfloat16", [None, 4]), "x": ("float32", [2])}
        named = [{"name": name, "dtype": dtype, "shape": shape} for name, (dtype, shape) in fields.items()]
        return {"batch_schema": [*named, {"name": "text", "dtype": "string"}]}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        return documents(self.batch_number(split))


def documents(k: int) -> dict[str, Any]:
    lengths = [(k + i) % 5 for i in range(k % 7 + 1)]
    return {
        "tokens": [torch.full((n,), 100 * k + n, dtype=torch.int32) for n in lengths],
        "boxes": [torch.full((n, 4), k, dtype=torch.bfloat16) for n in lengths],
        "x": torch.full((len(lengths), 2), float(k)),
        "text": [f"{k} é " * n for n in lengths],
    }


def check_documents(batch: dict[str, Any], k: int) -> None:
    wanted = documents(k)
    assert list(batch) == list(wanted)
    assert batch["text"] == wanted["text"]
    assert torch.equal(batch["x"].cpu(), wanted["x"])
    for name in ("tokens", "boxes"):
        column = batch[name]
        assert column.values.is_cuda
        assert column.offsets.is_cuda
        assert column.values.dtype == wanted[name][0].dtype
        assert [row.tolist() for row in column.to("cpu")] == [row.tolist() for row in wanted[name]]
        longest = max(len(row) for row in wanted[name])
        padded = column.padded(0)
        assert padded.is_cuda
        assert padded.shape[:2] == (len(wanted[name]), longest)
        assert padded.float().sum().item() == sum(row.float().sum().item() for row in wanted[name])


@pytest.mark.parametrize("prefetch", [1, 3, 12])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_ragged_rows_and_text_arrive_with_everything_else(tmp_path: Path, prefetch: int, is_guarded: bool):
    """Values and offsets on the device, text on the CPU, although the memory it was read into is used again."""
    config = {"dataset": "documents", "batch_size": 1, "block_size": 1, "splits": ("train",), "max_backlog": 1000}
    with Documents(config, path=tmp_path) as provider:
        for _ in range(N_BATCHES):
            provider.publish("train")
    guard = Suite().expect("text", max_length=100).expect("tokens", at_least=0) if is_guarded else None

    with DatasetConsumer(tmp_path, device="cuda", prefetch=prefetch, guard=guard, timeout_s=10) as consumer:
        batches = [consumer.get_batch("train") for _ in range(N_BATCHES)]

    for k, batch in enumerate(batches):
        check_documents(batch, k)


def test_pinned_memory_is_what_is_copied_from(queue: Path):
    """Otherwise nothing would overlap."""
    with DatasetConsumer(queue, device="cuda") as consumer:
        assert torch.from_numpy(consumer._stage.allocate(1000)).is_pinned()
