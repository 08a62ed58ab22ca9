"""TorchRL's replay buffers over a stream give what they give over TorchRL's own storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("sampler", ["random", "once", "slices"])
def test_samplers_draw_the_same_batches_from_a_stream(in_torchrl: Any, sampler: str):
    """For one seed, item by item: keys, dtypes, shapes and values, while the ring fills and turns over."""
    theirs, ours = in_torchrl.run("same", sampler=sampler)

    assert ours == theirs
    assert len(ours) == 9


@pytest.mark.parametrize("loads", [True, False])
def test_buffer_continues_behind_the_stream_on_disk(in_torchrl: Any, tmp_path: Path, loads: bool):
    """The steps of the run before can be drawn at once, and the newest replace the oldest."""
    before, after, n_steps = in_torchrl.run("resumed", folder=str(tmp_path), loads=loads)

    assert before == [float(i) for i in range(7, 17)]
    assert after == [float(i) for i in range(10, 20)]
    assert n_steps == 20


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("overwrite", "append-only"),
        ("order", "append-only"),
        ("kind", "TensorDictReplayBuffer"),
        ("type", "'action'"),
        ("dump", "is temporary"),
        ("empty", "cannot be emptied"),
        ("bound", "more max_tokens"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(in_torchrl: Any, what: str, message: str):
    """The messages say why and what to do."""
    assert message in in_torchrl.error("refused", what=what)
