"""A buffer in one file: written whole or not at all, checked bit by bit before anything in it is believed.

    magic, zeros to 64 | rows, an Arrow IPC stream | ids, int64 | generation starts, int64 | row states | priorities
    footer, JSON | u64 length of the footer | u64 xxh3 of the footer | magic

The footer comes last, so that rows are written as they are hashed, in one pass and without a second copy in memory.
It holds the settings, the lengths of the parts and the xxh3 of everything before it. Reading goes: sizes, checksums,
structure (``validate(full=True)``), use; Arrow alone would take every second damaged file for good. The file is
mapped copy-on-write, so a loaded buffer costs no memory until its rows are looked at; ``MappedFile`` says what must
not happen to it meanwhile. Columns in it begin at borders of cache lines; those of 0.1.0 begin at multiples of 8 bytes.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
import xxhash

from poolish import files
from poolish.columns import one_chunk
from poolish.errors import CorruptDataError, PoolishError
from poolish.priorities import check_exponents, check_priorities
from poolish.rows.ipc import AlignedIpc, MappedFile, table_over, write_stream
from poolish.rows.row_state import SavedPriorities, SavedRowState
from poolish.rows.snapshot import Snapshot
from poolish.rows.validate import ValueRejected, check_shapes

Restored = TypeVar("Restored")
Restore = Callable[[Snapshot, dict[str, Any], list[SavedRowState], list[SavedPriorities]], Restored]

MAGIC = b"POOLROW1"
VERSION = 1
MAX_FOOTER_BYTES = 1 << 20
_URLS = "save_dataset() and the sources of a recipe"
_TAIL = struct.Struct("<QQ8s")
_FRONT = MAGIC.ljust(64, b"\0")


def write(
    path: str | os.PathLike[str],
    snapshot: Snapshot,
    settings: dict[str, Any],
    row_states: Sequence[SavedRowState] = (),
    priorities: Sequence[SavedPriorities] = (),
) -> None:
    """Publish the file: a reader of ``path`` sees the old one or the new one."""
    snapshot.check_file()
    with files.publish(files.local_path(path, "DatasetBuffer.save path", instead=_URLS)) as file:
        body = _Hashed(file)
        body.write(_FRONT)
        write_stream(snapshot.to_arrow(), pa.PythonFile(AlignedIpc(body), "w"))
        n_rows_bytes = body.n_bytes - len(_FRONT)
        starts = snapshot.generation_starts
        body.write(snapshot.ids.astype("<i8").tobytes())
        body.write(starts.astype("<i8").tobytes())
        for state in row_states:
            body.write(state.values.astype(_little_endian(state.default)).tobytes())
        for each in priorities:
            body.write(each.values.astype("<f8").tobytes())
        footer: dict[str, Any] = {
            "format": "poolish.rows",
            "version": VERSION,
            "uuid": snapshot.uuid,
            "next_id": snapshot.next_id,
            "lineage": snapshot.lineage,
            "bytes": {"rows": n_rows_bytes, "ids": len(snapshot) * 8, "generations": len(starts) * 8},
            "xxh3": body.digest.hexdigest(),
            "settings": settings,
        }
        if row_states:
            footer["bytes"]["row_states"] = len(row_states) * len(snapshot) * 8
            footer["row_states"] = [[state.name, state.default] for state in row_states]
        if priorities:
            footer["bytes"]["priorities"] = len(priorities) * len(snapshot) * 8
            footer["priorities"] = [[each.name, each.alpha, each.largest] for each in priorities]
        raw = json.dumps(footer, separators=(",", ":")).encode()
        file.write(raw + _TAIL.pack(len(raw), xxhash.xxh3_64_intdigest(raw), MAGIC))


def _little_endian(default: int | float) -> str:
    return "<f8" if isinstance(default, float) else "<i8"


class _Hashed:
    """A file that hashes what is written to it."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = xxhash.xxh3_64()
        self.n_bytes = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.n_bytes += memoryview(data).nbytes
        self._file.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Publishing flushes."""


def read(path: str | os.PathLike[str], restore: Restore[Restored], *, mmap: bool = True) -> Restored:
    """What ``restore`` makes of snapshot, settings and row states of a file; CorruptDataError if anything is wrong."""
    path = files.local_path(path, "DatasetBuffer.load path", instead=_URLS)
    try:
        memory, mapped = _memory(path, mmap)
        footer, end = _checked_footer(memory)
        _check_body(memory, footer, end)
        snapshot = _snapshot(memory, footer)
        snapshot.mapped_file = mapped
        return _restored(snapshot, footer, *_beside_rows(memory, footer, end), restore)
    except _Damaged as damage:
        advice = "restore it from a copy, or save the buffer again"
        raise CorruptDataError(f"{path}: not a whole saved buffer: {damage}; {advice}") from None


class _Damaged(Exception):
    """What is wrong with the file."""


def _beside_rows(
    memory: memoryview, footer: dict[str, Any], end: int
) -> tuple[list[SavedRowState], list[SavedPriorities]]:
    """The row states and the priorities, which end the body."""
    begin = end - footer["bytes"].get("priorities", 0)
    saved_states = [
        SavedRowState(name, default, np.frombuffer(values, _little_endian(default)))
        for (name, default), values in _named(memory, footer, begin, "row_states", (int, float))
    ]
    saved_priorities = [
        SavedPriorities(name, alpha, largest, _checked_priorities(values, alpha, largest))
        for (name, alpha, largest), values in _named(memory, footer, end, "priorities", (float,), (float,))
    ]
    return saved_states, saved_priorities


def _named(
    memory: memoryview, footer: dict[str, Any], end: int, part: str, *types: tuple[type, ...]
) -> Iterator[tuple[list[Any], memoryview]]:
    """What the footer says of each array of a part of the body, and the array, which has 8 bytes for each row."""
    named = footer.get(part, [])
    if not isinstance(named, list) or not all(
        isinstance(each, list)
        and len(each) == 1 + len(types)
        and isinstance(each[0], str)
        and all(type(value) in known for value, known in zip(each[1:], types, strict=True))
        for each in named
    ):
        raise _Damaged(f"its footer does not name its {part.replace('_', ' ')}")
    n_bytes, n_each = footer["bytes"].get(part, 0), footer["bytes"]["ids"]
    if n_bytes != len(named) * n_each:
        raise _Damaged(f"its {part.replace('_', ' ')} do not match its rows")
    for i, each in enumerate(named):
        start = end - n_bytes + i * n_each
        yield each, memory[start : start + n_each]


def _checked_priorities(raw: memoryview, alpha: float, largest: float) -> Any:
    values = np.frombuffer(raw, "<f8")
    try:
        check_exponents(alpha, 0.0)
        check_priorities(values, None, alpha)
        check_priorities([largest], None, alpha)
    except ValueError as error:
        raise _Damaged(f"its priorities make no sense ({error})") from None
    return values


def _restored(
    snapshot: Snapshot,
    footer: dict[str, Any],
    row_states: list[SavedRowState],
    priorities: list[SavedPriorities],
    restore: Restore[Restored],
) -> Restored:
    settings = footer.get("settings")
    if not isinstance(settings, dict) or not isinstance(settings.get("kind"), str | None):
        raise _Damaged("its settings are missing")
    try:
        return restore(snapshot, settings, row_states, priorities)
    except (KeyError, TypeError, ValueError) as error:
        raise _Damaged(f"its settings make no sense ({error})") from None


def _memory(path: Path, is_mapped: bool) -> tuple[memoryview, MappedFile | None]:
    """The bytes of the file: mapped, or read into memory that may be written."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise _Damaged("it is no regular file")
    with path.open("rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        mapped = MappedFile(path, file) if is_mapped and n_bytes else None
        memory = _read(file, n_bytes) if mapped is None else mapped.memory
    if len(memory) < len(_FRONT) + _TAIL.size:
        raise _Damaged("it is too short")
    return memory, mapped


def _read(file: IO[bytes], n_bytes: int) -> memoryview:
    """The bytes of a file, from the border of a cache line on."""
    memory = memoryview(pa.allocate_buffer(n_bytes)).cast("B")
    return memory[: file.readinto(memory)]  # type: ignore[attr-defined]


def _checked_footer(memory: memoryview) -> tuple[dict[str, Any], int]:
    """The footer, and where the body ends."""
    length, checksum, magic = _TAIL.unpack_from(memory, len(memory) - _TAIL.size)
    if magic != MAGIC or memory[:8] != MAGIC:
        raise _Damaged(f"it does not begin and end with {MAGIC!r}")
    end = len(memory) - _TAIL.size - length
    if length > MAX_FOOTER_BYTES or end < len(_FRONT):
        raise _Damaged(f"its footer claims {length:,} bytes")
    raw = bytes(memory[end : end + length])
    if xxhash.xxh3_64_intdigest(raw) != checksum:
        raise _Damaged("the checksum of its footer does not match")
    try:
        footer = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"its footer is no JSON ({error})") from None
    if not isinstance(footer, dict) or (footer.get("format"), footer.get("version")) != ("poolish.rows", VERSION):
        raise _Damaged(f"it is not poolish.rows, version {VERSION}, which this poolish reads")
    if not isinstance(footer.get("uuid"), str) or type(footer.get("next_id")) is not int:
        raise _Damaged("its footer does not say which buffer it is")
    _check_lineage(footer.setdefault("lineage", [[footer["uuid"], 0]]))  # which version 0.1 did not write
    return footer, end


def _check_lineage(lineage: Any) -> None:
    is_listed = isinstance(lineage, list) and all(isinstance(branch, list) and len(branch) == 2 for branch in lineage)
    if not is_listed or not all(isinstance(name, str) and type(first) is int for name, first in lineage):
        raise _Damaged("its footer does not say which copy of the buffer it is")


def _check_body(memory: memoryview, footer: dict[str, Any], end: int) -> None:
    if xxhash.xxh3_64_hexdigest(memory[:end]) != footer.get("xxh3"):
        raise _Damaged("the checksum of its rows does not match")
    sizes = footer.get("bytes")
    if not isinstance(sizes, dict) or sizes.keys() - {"row_states", "priorities"} != {"rows", "ids", "generations"}:
        raise _Damaged("its footer does not name its parts")
    if not all(type(size) is int and size >= 0 for size in sizes.values()):
        raise _Damaged("its footer does not say how long its parts are")
    if len(_FRONT) + sum(sizes.values()) != end:
        raise _Damaged("its parts are not as long as its footer says")


def _snapshot(memory: memoryview, footer: dict[str, Any]) -> Snapshot:
    sizes = footer["bytes"]
    first = len(_FRONT) + sizes["rows"]
    try:
        table = table_over(memory[len(_FRONT) : first])
        # Copied: ids are handed out and searched all the time, without asking first whether the file is still whole.
        ids = np.frombuffer(memory[first : first + sizes["ids"]], "<i8").astype(np.int64)
        starts = np.frombuffer(memory[first + sizes["ids"] :][: sizes["generations"]], "<i8").astype(np.int64)
        for column in table.columns:
            check_shapes(one_chunk(column))
        lineage = tuple((name, first) for name, first in footer["lineage"])
        snapshot = Snapshot.of_table(table, ids, starts, footer["next_id"], footer["uuid"], lineage)
    except (ValueRejected, pa.ArrowException, PoolishError, KeyError, TypeError, ValueError, OSError) as error:
        raise _Damaged(f"its rows cannot be read ({error})") from None
    _check_ids(ids, starts, table.num_rows, footer["next_id"])
    return snapshot


def _check_ids(ids: Any, starts: Any, n_rows: int, next_id: int) -> None:
    for numbers in (ids, starts):
        if (np.diff(numbers) <= 0).any() or (len(numbers) and not 0 <= numbers[0] <= numbers[-1] < next_id):
            raise _Damaged("its row ids or generations do not count up")
    if len(ids) != n_rows or (n_rows > 0) != (len(starts) > 0) or (n_rows and starts[0] > ids[0]):
        raise _Damaged("its row ids or generations do not match its rows")
