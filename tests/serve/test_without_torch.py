"""Provider and consumer where torch cannot be imported: for NumPy, jax and anything else that takes arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT = """
import sys
sys.modules["torch"] = None  # as if it were not installed: importing it is an ImportError

import numpy as np
from poolish import DataProviderBase, DatasetConsumer, DatasetProvider
from poolish.errors import ConfigError

path = sys.argv[1]
rows = [{"x": np.full(3, i, np.float32), "tokens": list(range(i)), "text": "x" * i} for i in range(4)]
with DatasetProvider(rows, path=path, batch_size=2, epochs=1, order="sequential") as provider:
    provider.run()

for options in ({}, {"output": "torch"}, {"device": "cpu"}):
    try:
        DatasetConsumer(path, **options)
    except ConfigError as error:
        assert "output='numpy'" in str(error), error
    else:
        raise AssertionError(options)

for prefetch in (0, 2):
    with DatasetConsumer(path, output="numpy", prefetch=prefetch, acknowledge="explicit", timeout_s=10) as consumer:
        for batch in consumer:
            x, tokens = batch["x"], batch["tokens"].padded(-1)
            print(type(x).__name__, x[:, 0].tolist(), tokens.tolist(), batch["text"])
            consumer.mark_trained()
        assert consumer.state_dict()["splits"]["train"]["position"] == 2
assert sys.modules["torch"] is None
"""


def test_a_consumer_of_arrays_needs_no_torch(tmp_path: Path):
    """From the import to the last batch; the default output says what to pass instead."""
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == 2 * [
        "ndarray [0.0, 1.0] [[-1], [0]] ['', 'x']",
        "ndarray [2.0, 3.0] [[0, 1, -1], [0, 1, 2]] ['xx', 'xxx']",
    ]
