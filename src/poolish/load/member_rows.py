"""The frozen rows of several members that come and go: each member's own ids, below its ordinal.

A state names the branch that wrote what was seen of each member in a few bytes: a hundred of them must fit into it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ResumeError
from poolish.files import checksum
from poolish.files.membership import ID_BITS
from poolish.tokens.drawing import by_owner

if TYPE_CHECKING:
    from poolish.load.frozen import FrozenRows, Int64, Mask, Members, Span

_LOW = (1 << ID_BITS) - 1

#: What is kept of a branch: its ordinal, the row that it reaches to, and 24 bits of the checksum of its name.
_KEPT = np.dtype([("ordinal", "<u2"), ("row", "<u8"), ("name", "<u4")])
_NAME_BITS = 24


class MemberRows:
    """Rows of members, by ordinal; ``members`` is what is known of those that come and go."""

    def __init__(self, uuid: str, parts: Mapping[int, FrozenRows], members: Members, changes: str) -> None:
        self.uuid, self.changes = uuid, changes
        self._parts, self._members = dict(sorted(parts.items())), members

    def members(self) -> Members:
        """The ordinals that were given out."""
        return self._members

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def spans(self) -> list[Span]:
        """One for each member."""
        found = []
        for ordinal, part in self._parts.items():
            [(first, end)] = part.spans()
            found.append((first | ordinal << ID_BITS, end | ordinal << ID_BITS))
        return found

    def alive(self, ids: Int64) -> Mask | None:
        """Each member is asked for its own; of those that have left there is no row."""
        alive, is_whole = np.ones(len(ids), np.bool_), True
        for ordinal, where, own in self._split(ids):
            part = self._parts.get(ordinal)
            answer = np.zeros(len(own), np.bool_) if part is None else part.alive(own)
            if answer is not None:
                alive[where], is_whole = answer, False
        return None if is_whole else alive

    def has_all(self, first: int, end: int) -> bool:
        """As the member says."""
        part: Any = self._parts.get(first >> ID_BITS)
        return part is not None and part.has_all(first & _LOW, end - (first & ~_LOW))

    def fetch(self, ids: Int64) -> list[Any]:
        """In one go from each member."""
        samples: list[Any] = [None] * len(ids)
        for ordinal, where, own in self._split(ids):
            for place, sample in zip(where.tolist(), self._part(ordinal).fetch(own), strict=True):
                samples[place] = sample
        return samples

    def table(self, ids: Int64) -> None:
        """Only samples."""
        return

    def branch_below(self, ends: Sequence[int]) -> str:
        """The branch of each member that is there, packed."""
        kept = []
        for end in ends:
            part: Any = self._parts.get(end >> ID_BITS)
            if part is not None:
                row, _, name = part.branch_below([end & _LOW]).partition(":")
                kept.append((end >> ID_BITS, int(row), _name(part.uuid, name)))
        lanes = np.array(kept, _KEPT)
        # One column after the other: so the zeros of all rows lie together.
        return base64.b85encode(zlib.compress(b"".join(_planes(lanes[name]) for name in _KEPT.names or ()), 9)).decode()

    def has_branch(self, branch: str) -> bool:
        """Whether the members that are there have the branches that were packed."""
        for ordinal, row, name in _unpacked(branch):
            part: Any = self._parts.get(ordinal)
            if part is not None and _name(part.uuid, part.branch_of(row)) != name:
                return False
        return True

    def _part(self, ordinal: int) -> FrozenRows:
        if ordinal not in self._parts:
            raise IndexError(f"member {ordinal} has left the set, and its rows with it")
        return self._parts[ordinal]

    def _split(self, ids: Int64) -> list[tuple[int, Int64, Int64]]:
        """For each member: its ordinal, the places of its ids, and what they are there."""
        return [(ordinal, where, ids[where] & _LOW) for ordinal, where in by_owner(ids >> ID_BITS)]


class MemberWindowRows(MemberRows):
    """Windows of members, ``width`` tokens each."""

    def __init__(
        self, uuid: str, parts: Mapping[int, FrozenRows], members: Members, changes: str, *, width: int
    ) -> None:
        super().__init__(uuid, parts, members, changes)
        self._width = width

    def columns(self, ids: Int64) -> dict[str, NDArray[np.int64]]:
        """The windows as columns, a row for each."""
        whole = {name: np.empty((len(ids), self._width), np.int64) for name in ("types", "values")}
        for ordinal, where, own in self._split(ids):
            part: Any = self._part(ordinal)
            for name, values in part.columns(own).items():
                whole[name][where] = values
        return whole


def _name(uuid: str, branch: str) -> int:
    return int(checksum(f"{uuid}/{branch}".encode())) & ((1 << _NAME_BITS) - 1)


def _planes(column: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(column).view(np.uint8).reshape(len(column), column.itemsize).T.tobytes()


def _unpacked(branch: str) -> list[tuple[int, int, int]]:
    try:
        raw = np.frombuffer(zlib.decompress(base64.b85decode(branch)), np.uint8)
        n, rest = divmod(len(raw), _KEPT.itemsize)
        if rest:
            raise ValueError(f"{len(raw)} bytes")
    except (ValueError, TypeError, zlib.error) as error:
        raise ResumeError(f"the state's branches of members make no sense ({error}); it was changed or cut") from None
    lanes, offset = np.empty(n, _KEPT), 0
    for name in _KEPT.names or ():
        size = _KEPT[name].itemsize
        plane = raw[offset : offset + n * size].reshape(size, n).T
        lanes[name] = np.ascontiguousarray(plane).view(_KEPT[name]).reshape(-1)
        offset += n * size
    ordinals, rows, names = (lanes[name].tolist() for name in _KEPT.names or ())
    return list(zip(ordinals, rows, names, strict=True))
