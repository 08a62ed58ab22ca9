"""LeRobot: robot demonstrations in its layout of parquet files, read without its package.

    meta/info.json                               features, numbers of episodes and frames, the version of the layout
    data/chunk-000/episode_000000.parquet        v2.x: a file for each episode
    data/chunk-000/file-000.parquet              v3.0: several episodes in each file

Videos lie beside the parquet files and are not read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from poolish.errors import CorruptDataError, SchemaError
from poolish.files import local_path, read_json
from poolish.tokens.fields import DTYPES, TokenField
from poolish.tokens.store import StreamStore

__all__ = ["EPISODE_END", "from_lerobot"]

#: The field that is true in the last frame of each episode: ``store.sample(..., within=EPISODE_END)``.
EPISODE_END = "episode_end"

#: Columns that say which frame a row is.
EPISODE, FRAME = "episode_index", "frame_index"

_VERSIONS = ("v2", "v3")


def from_lerobot(path: str | os.PathLike[str], store: StreamStore, *, columns: Sequence[str] | None = None) -> int:
    """Append the frames of a LeRobot dataset on this machine to a stream, a step each; how many episodes there were.

    A stream without fields gets one for each column (``observation.state``, ``action``, ``episode_index``, ...), and
    ``episode_end``. ``columns`` chooses some; without it each feature must be in the parquet files. All files are there
    and have the right columns before the first frame is appended.
    """
    dataset = _Dataset.at(local_path(path, "LeRobot dataset", instead="huggingface_hub.snapshot_download"), columns)
    if not store.field_to_type:
        end = TokenField(EPISODE_END, "bool")
        store.define_fields({**dataset.fields, EPISODE_END: end})
    step, n_episodes = store.last_step + 1, 0
    for table in dataset.tables():
        ends = table.pop(EPISODE_END)
        store.append_many(np.arange(step, step + len(ends)), {**table, EPISODE_END: ends})
        step, n_episodes = step + len(ends), n_episodes + int(ends.sum())
    if n_episodes != dataset.n_episodes:
        raise CorruptDataError(
            f"{dataset.path}: meta/info.json has {dataset.n_episodes} episodes, the files hold {n_episodes}; "
            "download the dataset again"
        )
    return n_episodes


@dataclass(frozen=True)
class _Dataset:
    """A dataset whose files are there, with the columns to read."""

    path: Path
    files: list[Path]
    fields: dict[str, TokenField]
    n_episodes: int

    @classmethod
    def at(cls, path: Path, columns: Sequence[str] | None) -> _Dataset:
        info = _info(path)
        fields = _fields(info["features"], columns, path)
        files = sorted((path / "data").glob("*/*.parquet"))
        n_frames = sum(_n_rows(file, [*fields, EPISODE, FRAME]) for file in files)
        if n_frames != info["total_frames"]:
            raise CorruptDataError(
                f"{path}: meta/info.json has {info['total_frames']} frames, the {len(files)} files in data/ hold "
                f"{n_frames}; download the dataset again"
            )
        return cls(path, files, fields, info["total_episodes"])

    def tables(self) -> Iterator[dict[str, Any]]:
        """The frames in order, some at a time, with the end of each episode."""
        last: pa.Table | None = None
        for file in self.files:
            for batch in pq.ParquetFile(file).iter_batches(columns=[*{*self.fields, EPISODE, FRAME}]):
                table = pa.Table.from_batches([batch])
                if last is not None:
                    table = pa.concat_tables([last, table])
                # Whether a frame is the last of its episode is known with the next one.
                last = table.slice(len(table) - 1)
                if len(table) > 1:
                    yield self._frames(table, file)
        if last is not None:
            yield self._frames(pa.concat_tables([last, _behind(last)]), self.files[-1])

    def _frames(self, table: pa.Table, file: Path) -> dict[str, Any]:
        """All frames but the last one of a table."""
        episode, frame = (table[name].to_numpy() for name in (EPISODE, FRAME))
        ends: NDArray[np.bool_] = episode[1:] != episode[:-1]
        if not np.array_equal(frame[1:], np.where(ends, 0, frame[:-1] + 1)):
            raise CorruptDataError(f"{file}: frames are missing or out of order; download the dataset again")
        taken = table.slice(0, len(table) - 1)
        columns = {name: _numbers(taken[name], field, file) for name, field in self.fields.items()}
        return {**columns, EPISODE_END: ends}


def _info(path: Path) -> dict[str, Any]:
    file = path / "meta" / "info.json"
    info = read_json(file)
    kinds = {"codebase_version": str, "features": dict, "total_frames": int, "total_episodes": int}
    if not isinstance(info, dict) or not all(isinstance(info.get(name), kind) for name, kind in kinds.items()):
        raise CorruptDataError(f"{file}: describes no LeRobot dataset; it needs {sorted(kinds)}")
    if not info["codebase_version"].startswith(_VERSIONS):
        raise SchemaError(
            f"{file}: layout {info['codebase_version']!r}; v2.0, v2.1 and v3.0 are read: convert it with LeRobot"
        )
    return info


def _fields(features: dict[str, Any], columns: Sequence[str] | None, path: Path) -> dict[str, TokenField]:
    """The features to read as fields."""
    found = {name: _field(name, feature) for name, feature in features.items()}
    known = [name for name, field in found.items() if field is not None]
    for name in features if columns is None else columns:
        if found.get(name) is None:
            what = (
                f"is {features[name].get('dtype')!r}, not numbers in the files" if name in features else "is not there"
            )
            raise SchemaError(f"{path}: feature {name!r} {what}; choose columns= from {known}")
    return {name: field for name in (columns or known) if (field := found[name]) is not None}


def _field(name: str, feature: Any) -> TokenField | None:
    """A feature as a field; None for video, images and text."""
    if not isinstance(feature, dict) or feature.get("dtype") not in DTYPES:
        return None
    shape = feature.get("shape", [1])
    if not isinstance(shape, list) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise SchemaError(f"feature {name!r}: no shape in {shape!r}")
    return TokenField(name, feature["dtype"], () if shape == [1] else tuple(shape))


def _n_rows(file: Path, names: Sequence[str]) -> int:
    """How many frames a file holds, if it has the columns."""
    try:
        footer = pq.read_metadata(file)
    except pa.ArrowInvalid as error:
        raise CorruptDataError(f"{file}: no parquet file ({error}); download the dataset again") from None
    missing = [name for name in names if name not in footer.schema.to_arrow_schema().names]
    if missing:
        raise CorruptDataError(f"{file}: no column {missing[0]!r}; meta/info.json has it, download the dataset again")
    return int(footer.num_rows)


def _numbers(column: pa.ChunkedArray, field: TokenField, file: Path) -> NDArray[Any]:
    """A column as an array of the field's shape for each row; lists may be nested."""
    n, shape, array = len(column), [size or 0 for size in field.shape or ()], column.combine_chunks()
    while hasattr(array, "flatten") and pa.types.is_nested(array.type):
        if array.null_count:
            break
        array = array.flatten()
    if array.null_count or len(array) != n * math.prod(shape):
        raise CorruptDataError(f"{file}: column {field.name!r} does not hold {field} in each row")
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers.reshape(n, *shape)


def _behind(last: pa.Table) -> pa.Table:
    """A frame of the episode behind the last one, which ends it."""
    episode = pa.array([last[EPISODE][0].as_py() + 1], last[EPISODE].type)
    frame = pa.array([0], last[FRAME].type)
    names = last.column_names
    return last.set_column(names.index(EPISODE), EPISODE, episode).set_column(names.index(FRAME), FRAME, frame)
