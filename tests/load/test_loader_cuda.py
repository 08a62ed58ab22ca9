"""Batches on a CUDA device: the right values, also when the next one is copied while the last one is used."""

from __future__ import annotations

import numpy as np
import pytest

from poolish import DatasetBuffer
from poolish.load import Loader, PaddedCollate

pytestmark = pytest.mark.cuda


def filled(n_rows: int) -> DatasetBuffer:
    buffer = DatasetBuffer()
    x = np.arange(n_rows * 64, dtype=np.float32).reshape(n_rows, 64)
    buffer.append_columns({"x": x, "y": np.arange(n_rows), "text": [str(i) for i in range(n_rows)]})
    return buffer


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_come_to_the_device_with_the_rows_they_name(num_workers):
    """Every batch holds the rows of its ids, on the device, while a slow kernel still works on the one before."""
    import torch

    loader = Loader(filled(4096), 256, shuffle=True, num_workers=num_workers, device="cuda")
    busy = torch.randn(2048, 2048, device="cuda")
    seen = []

    for batch in loader:
        assert batch["x"].device.type == batch["y"].device.type == "cuda"
        expected = torch.from_numpy(batch.ids).cuda()
        busy = busy @ busy / 2048  # the copy of the next batch runs meanwhile
        assert torch.equal(batch["y"], expected)
        assert torch.equal(batch["x"][:, 0], (expected * 64).float())
        assert batch["text"] == [str(i) for i in batch.ids]
        seen += batch.ids.tolist()

    assert sorted(seen) == list(range(4096))


def test_padded_texts_come_to_the_device():
    """Gathered into pinned memory by a thread, and right while the batch before is used."""
    import torch

    rows = DatasetBuffer()
    rows.append([{"tokens": np.full(n % 50, n, np.int32), "n": n} for n in range(4096)])
    loader = Loader(rows, 256, shuffle=True, device="cuda", collate_fn=PaddedCollate(pad_value=-1), ids=True)
    busy = torch.randn(2048, 2048, device="cuda")

    for batch in loader:
        assert {values.device.type for values in batch.values()} == {"cuda"}
        busy = busy @ busy / 2048
        lengths = batch["n"] % 50
        mask = torch.arange(batch["tokens"].shape[1], device="cuda") < lengths[:, None]
        assert torch.equal(batch["tokens_mask"], mask)
        assert torch.equal(batch["tokens"], torch.where(mask, batch["n"][:, None], -1).int())
        assert torch.equal(batch["tokens_length"], lengths)
        assert batch["ids"].tolist() == batch["n"].tolist()


def test_samples_come_to_the_device_too():
    """A dataset of samples is collated, pinned and copied."""
    import torch

    rows = [{"x": np.full(8, i, np.float32), "y": i} for i in range(100)]

    batches = list(Loader(rows, 32, num_workers=2, device="cuda"))

    assert torch.cat([batch["y"] for batch in batches]).tolist() == list(range(100))
    assert all(batch["x"].is_cuda for batch in batches)


def test_pinned_batches_stay_on_the_host():
    """pin_memory without a device gives tensors that are quick to copy."""
    batch = next(iter(Loader(filled(256), 64, pin_memory=True)))

    assert batch["x"].is_pinned()
    assert not batch["x"].is_cuda
