"""A digest of what a served dataset holds, so that a restart with other rows, or another order of them, is refused.

    buffer, snapshot          the values of its rows
    windows of a stream       the stream, and the branches that wrote them
    list, any other object    its fingerprint: content, attributes and code, or what ``__fingerprint__()`` returns
    Hugging Face dataset      its own fingerprint
    view of poolish.load      which rows it chooses, and the digest of what it looks at
    dataset of files          their names, sizes and content, up to 256 MiB

A digest depends on nothing that differs after a restart: no times, inodes or random ids of objects in memory. Of large
data in memory, evenly spaced rows are hashed. What cannot be fingerprinted has no digest: only its length is compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from poolish import torch_bridge
from poolish.errors import Unfingerprintable
from poolish.files import checksum_hex
from poolish.fingerprints import MAX_BYTES, MAX_VALUES, fingerprint, qualified_name
from poolish.fingerprints.tables import content_of
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.tokens.window_dataset import WindowDataset

#: How many evenly spaced rows are hashed where all are too many; fewer if these are too many too.
_SPACED_ROWS = (10_000, 100)
#: Of more files than this, none is opened.
_MANY_FILES = 10_000


def digest_of(dataset: Any, n_rows: int) -> str | None:
    """A digest of the first ``n_rows`` rows, the same in every process; None for what cannot be fingerprinted.

    >>> digest_of([1, 2, 3], 3) == digest_of([1, 2, 3], 3) != digest_of([3, 2, 1], 3)
    True
    >>> digest_of(iter([1, 2, 3]), 3) is None
    True
    """
    if isinstance(dataset, (DatasetBuffer, Snapshot)):
        return _of_rows(dataset.snapshot() if isinstance(dataset, DatasetBuffer) else dataset, n_rows)
    if isinstance(dataset, WindowDataset):
        first = dataset.first_id
        return fingerprint((dataset.uuid, first, dataset.branch_below(first + n_rows)), "windows")
    if type(dataset).__module__.startswith("poolish.load."):
        return _of_view(dataset)
    whole = _fingerprint(dataset)
    return _of_spaced_rows(dataset, n_rows) if whole is None and _is_plain(dataset) else whole


def _of_rows(rows: Snapshot, n_rows: int) -> str:
    table = rows.to_arrow().slice(0, n_rows)
    return content_of(table if table.nbytes <= MAX_BYTES else table.take(_spaced(n_rows, _SPACED_ROWS[0])))


def _of_view(dataset: Any) -> str | None:
    """Of a dataset of poolish.load, which this package cannot import."""
    inner = getattr(dataset, "dataset", None)
    parts = getattr(dataset, "datasets", []) if inner is None else [inner]
    if parts:
        below = [digest_of(part, len(part)) for part in parts]
        return None if None in below else _fingerprint((qualified_name(type(dataset)), dataset.choice, below))
    if hasattr(dataset, "files"):
        return _fingerprint((qualified_name(type(dataset)), _of_files(dataset.files(), dataset.root)))
    return _fingerprint(dataset)


def _of_files(paths: Sequence[Any], root: Any) -> str:
    """Names, sizes, and as much of each file as together makes ``MAX_BYTES``; of very many files no content."""
    n_bytes = MAX_BYTES // max(1, len(paths)) if len(paths) <= _MANY_FILES else 0
    digest = hashlib.blake2b(digest_size=12)
    for path in paths:
        told = (os.path.relpath(path, root), os.path.getsize(path), _beginning(path, n_bytes) if n_bytes else "")
        digest.update(repr(told).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _beginning(path: Any, n_bytes: int) -> str:
    with open(path, "rb") as file:
        return checksum_hex(file.read(n_bytes))


def _fingerprint(value: Any) -> str | None:
    try:
        return fingerprint(value, "dataset", max_values=MAX_VALUES, max_bytes=MAX_BYTES)
    except Unfingerprintable:
        return None


def _is_plain(dataset: Any) -> bool:
    """Whether reading a row has no effect and always gives the same."""
    torch = torch_bridge.loaded()
    tensors = () if torch is None else (torch.utils.data.TensorDataset,)
    return isinstance(dataset, (list, tuple, *tensors))


def _of_spaced_rows(dataset: Any, n_rows: int) -> str | None:
    digests = (_fingerprint([dataset[i] for i in _spaced(n_rows, n).tolist()]) for n in _SPACED_ROWS)
    return next((digest for digest in digests if digest is not None), None)


def _spaced(n_rows: int, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.unique(np.linspace(0, n_rows - 1, min(n, n_rows)).astype(np.int64))
