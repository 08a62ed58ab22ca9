"""Batches for JAX, where torch cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integrations import rows

#: What stands before each program: torch is not there.
WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
import jax
import numpy as np
from poolish import DatasetBuffer, DatasetConsumer, Loader
from poolish.errors import SchemaError
from poolish.integrations.jax import on_device
"""

PROGRAM = """
buffer = DatasetBuffer()
buffer.append([{"n": n, "x": np.float32(n), "text": str(n)} for n in range(20)])
loader = Loader(buffer, 8, shuffle=True, output="numpy")
seen, states = [], []
for batch in on_device(loader):
    assert isinstance(batch["x"], jax.Array) and batch["n"].dtype == np.int32
    assert batch["n"].tolist() == batch.ids.tolist() == [int(text) for text in batch["text"]]
    seen += batch["n"].tolist()
    states.append(loader.state_dict())
assert sorted(seen) == list(range(20))
for step, state in enumerate(states, 1):
    again = loader.like()
    again.load_state_dict(state)
    rest = [n for batch in on_device(again) for n in batch["n"].tolist()]
    assert rest[: 20 - 8 * step] == seen[8 * step :] or step == len(states)

numbers = [[2**31, 1], [0.1, 0.2]]
for values, message in zip(numbers, ["cut int64 2147483648 to int32", "round float64 to float32"]):
    try:
        next(on_device(Loader(values, 2, output="numpy")))
    except SchemaError as error:
        assert message in str(error), error
    else:
        raise AssertionError(values)
jax.config.update("jax_enable_x64", True)
for values in numbers:
    assert next(on_device(Loader(values, 2, output="numpy")))["value"].tolist() == values

with DatasetConsumer(sys.argv[1], output="numpy", timeout_s=10) as consumer:
    batches = list(on_device(consumer))
assert [n for batch in batches for n in batch["n"].tolist()] == list(range(12))
assert all(isinstance(batch["x"], jax.Array) for batch in batches)
assert "torch" not in sys.modules
"""


def test_loader_and_consumer_feed_jax_without_torch(tmp_path: Path):
    """Arrays on the device, ids and states as ever; 64-bit numbers that JAX would change are refused."""
    queue = rows.queue(tmp_path / "data", 3)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + PROGRAM, str(queue)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
