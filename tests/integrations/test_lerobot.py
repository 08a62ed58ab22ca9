"""Datasets in LeRobot's layout become streams, frame by frame, with the end of each episode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import StreamStore
from poolish.errors import CorruptDataError, SchemaError
from poolish.integrations.lerobot import EPISODE_END, from_lerobot

LENGTHS = (3, 1, 5)
FEATURES: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
    "observation.pose": {"dtype": "float32", "shape": [2, 3], "names": None},
    "action": {"dtype": "float32", "shape": [2], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
}
VIDEO = {"observation.images.top": {"dtype": "video", "shape": [480, 640, 3], "names": None}}


def frames(episode: int, first: int) -> pa.Table:
    """The frames of an episode; the state is (episode, frame)."""
    n = LENGTHS[episode]
    state = np.stack([np.full(n, episode), np.arange(n)], 1).astype(np.float32)
    pose = pa.array([[[i, i, i], [0.0, 0.0, 0.0]] for i in range(n)], pa.list_(pa.list_(pa.float32())))
    return pa.table(
        {
            "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.reshape(-1)), 2),
            "observation.pose": pose,
            "action": pa.array(list(state * 2), pa.list_(pa.float32())),
            "next.done": np.arange(n) == n - 1,
            "timestamp": np.arange(n, dtype=np.float32) / 30,
            "frame_index": np.arange(n),
            "episode_index": np.full(n, episode),
            "index": np.arange(first, first + n),
        }
    )


@pytest.fixture(params=["v2.1", "v3.0"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of three episodes, in a file each or together in two."""
    root = tmp_path / "robot"
    (root / "meta").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    tables = [frames(i, sum(LENGTHS[:i])) for i in range(3)]
    info = {
        "codebase_version": request.param,
        "total_episodes": 3,
        "total_frames": sum(LENGTHS),
        "fps": 30,
        "features": FEATURES,
    }
    (root / "meta" / "info.json").write_text(json.dumps(info))
    if request.param == "v2.1":
        files = {f"episode_{i:06d}": table for i, table in enumerate(tables)}
    else:
        files = {"file-000": pa.concat_tables(tables[:2]), "file-001": tables[2]}
    for name, table in files.items():
        pq.write_table(table, root / "data" / "chunk-000" / f"{name}.parquet")
    return root


def change(root: Path, **members: Any) -> None:
    """Change what info.json says."""
    file = root / "meta" / "info.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **members}))


def test_frames_become_steps_and_episodes_end_where_they_do(dataset: Path):
    """Each frame with all its columns, in the declared shapes; windows stay inside one episode."""
    store = StreamStore()

    n = from_lerobot(dataset, store)

    steps = list(store)
    expected = [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]
    assert n == 3
    assert [tuple(step["observation.state"]) for step in steps] == expected
    assert [step["observation.pose"][0].tolist() for step in steps] == [[frame] * 3 for _, frame in expected]
    assert [step["action"].tolist() for step in steps] == [[2 * a, 2 * b] for a, b in expected]
    assert [step[EPISODE_END] for step in steps] == [frame == LENGTHS[episode] - 1 for episode, frame in expected]
    assert store.coverage(1, start="step", within=EPISODE_END).episodes == 3


def test_chosen_columns_of_a_dataset_with_videos(dataset: Path):
    """Videos are not in the files: they are refused by name, unless other columns are chosen."""
    change(dataset, features={**FEATURES, **VIDEO})

    with pytest.raises(SchemaError, match=r"'observation.images.top' is 'video'.*choose columns= from \['observ"):
        from_lerobot(dataset, StreamStore())
    store = StreamStore()
    from_lerobot(dataset, store, columns=["action", "observation.state"])

    assert list(store.field_to_type) == ["action", "observation.state", EPISODE_END]


def test_incomplete_and_strange_datasets_are_refused_before_the_first_frame(dataset: Path):
    """A missing file, a missing column, another layout, frames out of order."""
    store = StreamStore()
    with pytest.raises(SchemaError, match="'lift' is not there"):
        from_lerobot(dataset, store, columns=["lift"])
    change(dataset, codebase_version="v1.6")
    with pytest.raises(SchemaError, match="layout 'v1"):
        from_lerobot(dataset, store)
    change(dataset, codebase_version="v2.1", features={**FEATURES, "torque": FEATURES["action"]})
    with pytest.raises(CorruptDataError, match="no column 'torque'"):
        from_lerobot(dataset, store)
    change(dataset, features=FEATURES)
    first, *_, last = sorted((dataset / "data" / "chunk-000").iterdir())
    last.unlink()
    with pytest.raises(CorruptDataError, match="9 frames"):
        from_lerobot(dataset, store)
    first.write_bytes(b"PAR1")
    with pytest.raises(CorruptDataError, match="no parquet file"):
        from_lerobot(dataset, store)
    change(dataset, total_frames="9")
    with pytest.raises(CorruptDataError, match="describes no LeRobot dataset"):
        from_lerobot(dataset, store)

    assert not store.field_to_type


def test_frames_that_are_missing_are_noticed(dataset: Path):
    """A file of the right size in the wrong place."""
    file, *_ = sorted((dataset / "data" / "chunk-000").iterdir())
    table = pq.read_table(file)
    pq.write_table(table.take(np.arange(len(table))[::-1]), file)

    with pytest.raises(CorruptDataError, match="out of order"):
        from_lerobot(dataset, StreamStore())


def test_number_of_episodes_must_be_that_of_the_description(dataset: Path):
    """An episode that was cut into two, or two that became one."""
    change(dataset, total_episodes=4)

    with pytest.raises(CorruptDataError, match="4 episodes, the files hold 3"):
        from_lerobot(dataset, StreamStore())
