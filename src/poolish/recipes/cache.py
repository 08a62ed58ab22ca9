"""Baked fragments, kept on disk: found again by what they are made of, and never believed without a checksum.

    cache/ab/abcdef....piece     a checksum and one line of JSON: its name, whose rows, up to which hash, all counts
                                 rejected rows as JSON
                                 an Arrow stream: the columns, then for each row its number, part and steps, as far as
                                 the line does not say that one of these is the same for all rows

The checksum is that of the line, and the line has that of all behind it, so a look at the line alone can be believed
too. The name is a hash of everything that decides the content: the fragment's own fingerprint, the ingredient, the
filter, the seed and each step. So a changed filter or file never finds an old result; unused entries do no harm.
What is done with rows that fail is not part of it: where none did, that makes no difference.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.errors import CorruptDataError, PoolishError
from poolish.expressions import EVALUATOR_VERSION
from poolish.files import checksum_hex, local_path, publish, read_json, sweep, write_json
from poolish.recipes.fragment_rows import BakedFragment, FragmentRows, Int64, is_one_to_one

#: What a piece has besides its columns, for each row.
_HIDDEN = ("rows", "subs", "steps")
#: Raised whenever fingerprints cover more than before, so that results kept under weaker keys are never found.
_KEYS = 2
_DIGITS = len(checksum_hex(b""))
_MAX_LINE, _USUAL_LINE = 1 << 20, 1 << 12


def key_of(*parts: Any) -> str:
    """The key of a result that depends on these parts and on nothing else."""
    described = json.dumps((_KEYS, EVALUATOR_VERSION, *parts), sort_keys=True, default=str)
    return blake2b(described.encode(), digest_size=20).hexdigest()


def local_cache(path: str | os.PathLike[str]) -> Path:
    """The directory of a cache, which is on this machine."""
    return local_path(path, "cache", instead="the sources of a recipe")


class Cache:
    """A directory of baked fragments, shared by any number of bakes and processes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_cache(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._opened: set[str] = set()

    def folder(self, name: str) -> str:
        """A folder to write into, without what a killed bake left there half-written."""
        place = os.path.join(self.path, name)
        if name not in self._opened:
            os.makedirs(place, exist_ok=True)
            sweep(place)
            self._opened.add(name)
        return place

    def _place(self, key: str) -> str:
        return f"{self.path}/{key[:2]}/{key}.piece"  # a Path takes longer to make than the file to open

    def get(self, key: str) -> BakedFragment | None:
        """What was kept under a key; a damaged entry is no entry, and is removed."""
        place = self._place(key)
        try:
            data = _mapped(place)
        except (OSError, MemoryError):  # nothing there, or nothing to be had now: no reason to remove it
            return None
        try:
            return _decode(data, place, key)
        except MemoryError:
            return None
        except Exception:  # whatever damage leads to: it is baked again
            with contextlib.suppress(OSError):
                os.unlink(place)
            return None

    def has(self, key: str) -> bool:
        """Whether there is something under a key, damaged or not."""
        return os.path.exists(self._place(key))

    def look(self, key: str, *, with_rejects: bool = True) -> tuple[int, bool] | None:
        """Up to which hash a kept result holds, and whether for a lower one too (no row was dropped or added), or None.

        One that rejected rows is no result for who wants an error. Only its first line is looked at.
        """
        place = self._place(key)
        try:
            with open(place, "rb") as file:
                header = _header(file.readline(_MAX_LINE), place, key)
            if header["n_rejects"] and not with_rejects:
                return None
            return int(header["threshold"]), not header["n_rejects"] and is_one_to_one(header["counts"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, baked: BakedFragment) -> None:
        """Keep it: whole or not at all."""
        self.folder(key[:2])
        with publish(self._place(key), durable=False) as file:
            for part in _encode(baked, key):
                file.write(part)


def _encode(baked: BakedFragment, key: str) -> tuple[bytes, bytes, pa.Buffer]:
    piece = baked.piece
    arrays = {name: getattr(piece, name) for name in _HIDDEN}
    alike = {name: int(arrays[name][0]) for name in ("subs", "steps") if len(piece) and _is_constant(arrays[name])}
    # Found again by their place, not by their names: a user's column may be called anything. A table without columns
    # says nothing of its rows, these do.
    behind = {name: pa.array(arrays[name]) for name in _HIDDEN if name not in alike}
    schema = piece.table.schema
    for name, values in behind.items():
        schema = schema.append(pa.field(name, values.type))
    table = pa.Table.from_arrays([*piece.table.columns, *behind.values()], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        # In one chunk: it is read more often than it is written, and each chunk of a column costs who reads it 10 us.
        writer.write_table(table.combine_chunks())
    rejects, rows = _padded(json.dumps(baked.rejects).encode()), sink.getvalue()
    header = {
        "key": key,
        "checksum": checksum_hex(rejects, rows),
        "rejects": len(rejects),
        "n_rejects": len(baked.rejects),
        "ingredient": piece.ingredient,
        "name": piece.name,
        "alike": alike,
        "given": baked.given,
        "counts": baked.counts,
        "threshold": str(baked.threshold),
    }
    line = _padded(b" " * (_DIGITS + 1) + json.dumps(header).encode())
    return checksum_hex(line[_DIGITS:]).encode() + line[_DIGITS:], rejects, rows


def _is_constant(numbers: Int64) -> bool:
    return bool((numbers == numbers[0]).all())


def _padded(line: bytes) -> bytes:
    """So that the stream behind it is aligned and can be used where it lies."""
    return line + b" " * (63 - len(line) % 64) + b"\n"


def _header(line: bytes, place: str, key: str) -> Any:
    """What the first line says, if that is what was written, and under this key."""
    if not line.endswith(b"\n") or checksum_hex(line[_DIGITS:]).encode() != line[:_DIGITS]:
        raise CorruptDataError(f"{place}: damaged")
    header = json.loads(line[_DIGITS:])  # ours: parse_json, which looks for traps first, takes as long as all the rest
    if header["key"] != key:
        raise CorruptDataError(f"{place}: the entry of {header['key']}")
    return header


def _mapped(place: str) -> pa.Buffer:
    """A file as it lies in memory. Python's own way of mapping takes 40 us less, but holds the file open meanwhile."""
    with pa.memory_map(place) as file:
        return file.read_buffer()


def _decode(data: pa.Buffer, place: str, key: str) -> BakedFragment:
    view = memoryview(data)
    end = bytes(view[:_USUAL_LINE]).find(b"\n") + 1 or bytes(view[:_MAX_LINE]).find(b"\n") + 1
    header = _header(bytes(view[:end]), place, key)
    if checksum_hex(view[end:]) != header["checksum"]:
        raise CorruptDataError(f"{place}: damaged")
    begin = end + header["rejects"]
    rejects = json.loads(bytes(view[end:begin]))
    table = pa.ipc.open_stream(data.slice(begin)).read_all()
    alike = header["alike"]
    behind = [name for name in _HIDDEN if name not in alike]
    n_columns = table.num_columns - len(behind)
    hidden = {name: table.column(n_columns + i).to_numpy() for i, name in enumerate(behind)}
    hidden |= {name: np.full(table.num_rows, value) for name, value in alike.items()}
    rows = table.select(list(range(n_columns)))
    piece = FragmentRows(header["ingredient"], header["name"], rows, hidden["rows"], hidden["subs"], hidden["steps"])
    return BakedFragment(
        piece, header["counts"], rejects, int(header["threshold"]), is_cached=True, given=header["given"]
    )


# The last bake ------------------------------------------------------------------------------------------------------

_INDEX = "index"


class LastBake:
    """What each ingredient of a recipe was when it was baked last, so that ``explain`` knows why fragments are missing.

    One small file for each recipe beside the cache. It explains and decides nothing.
    """

    def __init__(self, cache: Cache | None, recipe: str) -> None:
        self._cache = cache
        self._path = None if cache is None else cache.path / _INDEX / f"{key_of('recipe', recipe)}.json"

    def write(self, ingredients: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the descriptions of all ingredients (``FragmentPipeline.describe``)."""
        if self._cache is not None and self._path is not None:
            self._cache.folder(_INDEX)
            write_json(self._path, ingredients, durable=False)

    @cached_property
    def _ingredients(self) -> Any:
        try:
            return {} if self._path is None else read_json(self._path)
        except (OSError, PoolishError):
            return {}

    def changed(self, ingredient: str, now: Mapping[str, Any], fragment: str) -> str | None:
        """What of an ingredient has changed since, as far as it concerns a fragment; None if nothing has."""
        try:
            return _changed(self._ingredients[ingredient], now, fragment)
        except (LookupError, TypeError, AttributeError):  # a new ingredient, or a file that is not ours
            return "new content"


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], fragment: str) -> str | None:
    if before["fragments"].get(fragment) != now["fragments"][fragment]:
        return "new content" if fragment not in before["fragments"] else "changed content"
    for word in ("filter", "seed", "on_error"):
        if before[word] != now[word]:
            return f"changed {word}"
    if before["steps"] != now["steps"]:
        old = {step[0]: step for step in before["steps"]}
        other = [step[0] for step in now["steps"] if old.get(step[0]) != step]
        return f"changed step {other[0]}" if other else "changed steps"
    return None
