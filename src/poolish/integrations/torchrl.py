"""TorchRL: a stream as the storage of its replay buffers, with TorchRL's own samplers, writers and transforms.

    buffer = replay_buffer(store, 100_000, batch_size=256)

Item number c of the storage is the newest step whose id is c modulo ``max_size``. Each item is one step of the stream
with all of its fields; a nested key is a field with a dot (``next.observation``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import TensorDictRoundRobinWriter

from poolish.arguments import check_whole
from poolish.errors import ConfigError, ResumeError, SchemaError
from poolish.files import read_json, write_json
from poolish.tokens.fields import DTYPES, TokenField
from poolish.tokens.store import StreamStore

__all__ = ["StreamStorage", "StreamWriter", "as_is", "replay_buffer"]

Int64 = NDArray[np.int64]

#: What TorchRL adds to items by itself and takes from the sampler again.
_OWN_KEYS = {"index", "_weight", "td_error", "priority", "priority_weight", "_data"}

_STATE = "poolish_stream.json"


def replay_buffer(store: StreamStore, max_size: int, **options: Any) -> TensorDictReplayBuffer:
    """Return a replay buffer of TorchRL over the newest ``max_size`` steps of a stream, which continues behind them.

    ``options`` are those of ``TensorDictReplayBuffer``: ``sampler``, ``batch_size``, ``transform``, ...
    """
    parts = {"storage": StreamStorage(store, max_size), "writer": StreamWriter(), "collate_fn": as_is}
    return TensorDictReplayBuffer(**{**parts, **options})


def as_is(batch: TensorDictBase) -> TensorDictBase:
    """Return the batch: a ``StreamStorage`` gives one TensorDict, and TorchRL asks for a ``collate_fn``."""
    return batch


class StreamStorage(Storage):  # type: ignore[misc]  # TorchRL is untyped
    """The newest ``max_size`` steps of a stream as a storage of TorchRL.

    A stream without fields gets those of the first item. A stream that holds steps already continues behind them: they
    can be drawn at once. What was written survives ``kill -9`` if the stream is on disk, and other processes can
    read the stream. Steps never change: a writer that is not in order, or that overwrites, is an error.
    """

    def __init__(self, store: StreamStore, max_size: int) -> None:
        super().__init__(check_whole(max_size, "max_size", unit="steps"))
        self.store = store

    @property
    def cursor(self) -> int:
        """The item that is written next."""
        return self._span()[1] % int(self.max_size)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Append the items; they must be the next ones."""
        if not isinstance(data, TensorDictBase):
            raise SchemaError(
                f"StreamStorage holds TensorDicts, got {type(data).__name__}; use a TensorDictReplayBuffer"
            )
        is_one = np.ndim(cursor) == 0 and not isinstance(cursor, (range, slice))
        items = data.unsqueeze(0) if is_one else data
        places = np.atleast_1d(np.asarray(cursor)) if not isinstance(cursor, slice) else None
        end = self._span()[1]
        expected = np.arange(end, end + len(items)) % self.max_size
        if places is None or not set_cursor or not np.array_equal(places, expected):
            raise ConfigError(
                f"items {cursor} are not the next ones ({expected[:1]} and on): a stream is append-only; write through "
                "add() and extend() of one buffer, and keep priorities in the sampler"
            )
        columns = _columns(items)
        if not self.store.field_to_type:
            self.store.define_fields({name: _field(name, column) for name, column in columns.items()})
        first = self.store.last_step + 1
        names = sorted(columns, key=lambda name: self.store.field_to_type.get(name, -1))
        self.store.append_many(np.arange(first, first + len(items)), {name: columns[name] for name in names})
        self._set_last_cursor(cursor)
        self._bump_mutation_revision()

    def get(self, index: Any) -> TensorDict:
        """One item, or a batch of them, as a TensorDict."""
        low, end = self._span()
        n = end - low
        if isinstance(index, tuple):
            (index,) = index
        if isinstance(index, slice):
            index = np.arange(n)[index]
        places = np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index, np.int64)
        places = np.where(places < 0, places + n, places)
        if places.size and not 0 <= places.min() <= places.max() < n:
            raise IndexError(f"items {places.min()} to {places.max()} of {n}")
        ids = end - 1 - (end - 1 - places) % self.max_size
        return TensorDict(self.store.fields_at(ids, output="torch"), batch_size=places.shape)

    def __len__(self) -> int:
        low, end = self._span()
        return end - low

    def contains(self, item: Any) -> Any:
        """Whether the items are there."""
        places = torch.as_tensor(item)
        return (places >= 0) & (places < len(self))

    def _span(self) -> tuple[int, int]:
        first, end = self.store.step_span()
        if first and end - first < self.max_size:
            raise ConfigError(
                f"{self.store!r}: keeps {end - first:,} steps, fewer than max_size={self.max_size:,}; "
                "give it more max_tokens, or the storage a smaller max_size"
            )
        return max(first, end - self.max_size), end

    def _empty(self) -> None:
        raise ConfigError("a stream cannot be emptied; make another one")

    # Keeping ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """How far the stream reaches; its steps are on disk."""
        end = self.store.step_span()[1]
        return {"uuid": self.store.uuid, "branch": self.store.branch_below(end), "max_size": self.max_size}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Check that this is the stream of the state, with all its steps; it may hold more."""
        is_same = state_dict["uuid"] == self.store.uuid and self.store.has_branch(state_dict["branch"])
        if not is_same or state_dict["max_size"] != self.max_size:
            raise ResumeError(
                f"{self.store!r}: the state is of another stream, of steps it lost, or of another max_size"
            )

    def dumps(self, path: Any) -> None:
        """Commit the stream, and note in a folder how far it reaches."""
        if self.store.path is None:
            raise ConfigError("this stream is temporary; make it with a path, StreamStore('runs/replay')")
        self.store.commit()
        Path(path).mkdir(parents=True, exist_ok=True)
        write_json(Path(path) / _STATE, self.state_dict())

    def loads(self, path: Any) -> None:
        """Check that this is the stream of ``dumps``."""
        self.load_state_dict(read_json(Path(path) / _STATE))


class StreamWriter(TensorDictRoundRobinWriter):  # type: ignore[misc]  # TorchRL is untyped
    """TorchRL's writer, which begins behind what a ``StreamStorage`` holds, not at item 0."""

    def register_storage(self, storage: Storage) -> None:
        """Write to a storage."""
        super().register_storage(storage)
        if isinstance(storage, StreamStorage):
            self._cursor = storage.cursor


def _columns(items: TensorDictBase) -> dict[str, NDArray[Any]]:
    """The tensors as columns, nested keys with a dot."""
    columns: dict[str, NDArray[Any]] = {}
    for key, value in items.flatten_keys("\0").items():
        if key in _OWN_KEYS:
            continue
        name = key.replace("\0", ".")
        if "." in key or not isinstance(value, torch.Tensor):
            raise SchemaError(f"{key!r}: a stream holds tensors under keys without dots, got {type(value).__name__}")
        columns[name] = value.detach().cpu().numpy()
    return columns


def _field(name: str, column: NDArray[Any]) -> TokenField:
    if column.dtype.name not in DTYPES:
        raise SchemaError(f"{name!r}: a stream holds numbers and bools, got {column.dtype}")
    return TokenField(name, column.dtype.name, column.shape[1:])
