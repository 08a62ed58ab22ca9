"""Baked fragments, kept on disk: found again by what they are made of, and never believed without a checksum.

    cache/ab/abcdef....piece     one line of JSON (checksum, length, what was counted), then an Arrow stream

The name is a hash of everything that decides the content: the fragment's own fingerprint, the ingredient, the filter,
the seed and each step. So a changed filter or file never finds an old result; what nobody asks for is only old.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex, parse_json, publish
from poolish.recipes.piece import Piece

_HIDDEN = ("__row", "__sub", "__steps")


@dataclass
class Baked:
    """A fragment after its row-local steps, and what was counted on the way.

    ``threshold`` is up to which hash its rows were chosen: for a lower one it holds too, with fewer rows.
    """

    piece: Piece
    counts: list[dict[str, int]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    threshold: int = 2**64
    is_cached: bool = False


def key_of(*parts: Any) -> str:
    """A name for whatever is made of these parts and of nothing else."""
    return blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=20).hexdigest()


class Cache:
    """A directory of baked fragments, shared by any number of bakes and processes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def _place(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}.piece"

    def get(self, key: str) -> Baked | None:
        """What was kept under a key; a damaged entry is no entry, and is removed."""
        place = self._place(key)
        try:
            with pa.memory_map(str(place)) as file:
                return _decode(file.read_buffer(), place)
        except FileNotFoundError:
            return None
        except (CorruptDataError, pa.ArrowInvalid, OSError, ValueError):
            place.unlink(missing_ok=True)
            return None

    def threshold(self, key: str) -> int | None:
        """Up to which hash a kept result holds, None if there is none; only its first line is looked at."""
        try:
            with self._place(key).open("rb") as file:
                return int(parse_json(file.readline().decode(), self._place(key))["threshold"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, baked: Baked) -> None:
        """Keep it: whole or not at all."""
        place = self._place(key)
        place.parent.mkdir(exist_ok=True)
        header, body = _encode(baked)
        with publish(place, durable=False) as file:
            file.write(header)
            file.write(body)


def _encode(baked: Baked) -> tuple[bytes, pa.Buffer]:
    piece = baked.piece
    table = piece.table
    for name, values in zip(_HIDDEN, (piece.rows, piece.subs, piece.steps), strict=True):
        table = table.append_column(name, pa.array(values))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue()
    told = {
        "checksum": checksum_hex(body),
        "ingredient": piece.ingredient,
        "name": piece.name,
        "counts": baked.counts,
        "rejects": baked.rejects,
        "threshold": str(baked.threshold),
    }
    # Padded, so that the stream behind it is aligned and can be used where it lies.
    line = json.dumps(told).encode()
    return line + b" " * (63 - len(line) % 64) + b"\n", body


def _decode(data: pa.Buffer, place: Path) -> Baked:
    view = memoryview(data)
    end = bytes(view[: 1 << 20]).find(b"\n") + 1 or _line_end(view)
    told = parse_json(bytes(view[:end]).decode(), place)
    body = data.slice(end)
    if checksum_hex(body) != told["checksum"]:
        raise CorruptDataError(f"{place}: damaged")
    table = pa.ipc.open_stream(body).read_all()
    rows, subs, steps = (table.column(name).to_numpy() for name in _HIDDEN)
    piece = Piece(told["ingredient"], told["name"], table.drop_columns(list(_HIDDEN)), rows, subs, steps)
    return Baked(piece, told["counts"], told["rejects"], int(told["threshold"]), is_cached=True)


def _line_end(view: memoryview) -> int:
    return int(np.flatnonzero(np.frombuffer(view, np.uint8) == 10)[0]) + 1


def total(counts: Sequence[dict[str, int]], name: str) -> int:
    """One figure summed over fragments."""
    return sum(count.get(name, 0) for count in counts)
