"""What is known of rows: yes, no, or not looked at yet, by id, a byte each, in blocks that exist where rows are."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ResumeError

#: Ids in one block.
BLOCK = 1 << 16
UNKNOWN, NO, YES = 0, 1, 2

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class PredicateCache:
    """Yes or no for ids, remembered.

    >>> verdicts = PredicateCache()
    >>> verdicts.put(7, True)
    >>> verdicts.put(1 << 48, False)
    >>> verdicts.get(np.array([7, 8, 1 << 48])).tolist() == [YES, UNKNOWN, NO]
    True
    """

    def __init__(self) -> None:
        self._blocks: dict[int, Bytes] = {}

    def put(self, id_: int, verdict: bool) -> None:
        """Remember one verdict."""
        block = self._blocks.get(id_ // BLOCK)
        if block is None:
            block = self._blocks.setdefault(id_ // BLOCK, np.zeros(BLOCK, np.uint8))
        block[id_ % BLOCK] = YES if verdict else NO

    def get(self, ids: Int64) -> Bytes:
        """What is known of each."""
        found = np.zeros(len(ids), np.uint8)
        numbers = ids // BLOCK
        for number in np.unique(numbers).tolist():
            block = self._blocks.get(number)
            if block is not None:
                inside = numbers == number
                found[inside] = block[ids[inside] % BLOCK]
        return found

    def n_known(self) -> int:
        """How many ids from 0 on are known without a gap."""
        number = 0
        while (block := self._blocks.get(number)) is not None:
            unknown = np.flatnonzero(block == UNKNOWN)
            if len(unknown):
                return number * BLOCK + int(unknown[0])
            number += 1
        return number * BLOCK

    def state(self) -> dict[str, str]:
        """All of it as text: two bits a row before compression."""
        return {str(number): _pack(block) for number, block in sorted(self._blocks.items())}

    @classmethod
    def of_state(cls, state: Any) -> PredicateCache:
        """The verdicts that ``state`` wrote down."""
        verdicts = cls()
        if not isinstance(state, dict):
            raise ResumeError(f"blocks: a dict of text, got {type(state).__name__}; pass what state_dict() gave")
        for number, packed in state.items():
            if not isinstance(number, str) or not (number.isascii() and number.isdecimal() and len(number) < 19):
                raise ResumeError(
                    f"block {number!r:.40} of the index: blocks are numbered; pass what state_dict() gave"
                )
            verdicts._blocks[int(number)] = _unpack(number, packed)
        return verdicts


def _pack(block: Bytes) -> str:
    bits = np.concatenate([np.packbits(block != UNKNOWN), np.packbits(block == YES)])
    return base64.b64encode(zlib.compress(bits.tobytes())).decode("ascii")


def _unpack(number: str, packed: str) -> Bytes:
    try:
        decompressor = zlib.decompressobj()
        # One byte more than there should be: a text from elsewhere may promise gigabytes.
        bits = decompressor.decompress(base64.b64decode(packed, validate=True), BLOCK // 4 + 1)
    except (TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise ResumeError(f"block {number} of the index is damaged ({error}); leave it out to scan anew") from None
    if len(bits) != BLOCK // 4:
        raise ResumeError(f"block {number} of the index holds {len(bits)} bytes, not {BLOCK // 4}; scan anew")
    known, yes = np.unpackbits(np.frombuffer(bits, np.uint8)).reshape(2, BLOCK)
    return known + yes
