"""Only the rows that a predicate accepts, found when they are asked for and looked at once.

There are two ways to number what is left. Over a dataset that only grows at its end, kept rows are numbered as they are
found: row 0 is read without looking further than it. Over rows that come and go (a buffer), a loader works on the ids
below, and the predicate is one more reason for an id not to be there::

    [yes, no, yes, not looked at yet ...]        numbers: 0 -> row 0, 1 -> row 2
    ids 4, 7, 9 with 7 refused                   ids: 4 and 9 stay 4 and 9
"""

from __future__ import annotations

import base64
import binascii
import reprlib
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.concurrency import Locked, cached_property
from poolish.errors import ConfigError, ResumeError, Unfingerprintable
from poolish.fingerprints import check_attributes, declared_version, qualified_name
from poolish.fixed import fixed_parameters
from poolish.load.dataset import check_index, check_version, identity_of, samples, version_of
from poolish.load.frozen import FrozenRows, Int64, Mask, fixed_by, snapshot_rows
from poolish.load.views.single import extra_arguments, function_identity, n_epochs, name_of, progress_at
from poolish.load.views.view import (
    DelegatingRows,
    ReindexedRows,
    View,
    all_ids,
    check_epoch,
    rows_with_ids,
    snapshot_with_version,
)

#: Rows read at a time while scanning.
SCAN_ROWS = 64


@fixed_parameters("make a new FilteredDataset", stored=False)
class FilteredDataset(Locked, View):
    """The rows of ``dataset`` for which ``predicate(sample)`` is true, in their order.

    Each row is looked at once, when a length or a number asks for it. A scan that is interrupted goes on where it
    stopped, also in another process: ``state_dict`` holds what is known, two bits a row. New rows are looked at when
    the dataset has grown; if its version changes, all are looked at again. Safe in threads: one scans, others wait.

    A saved state and a cache on disk identify ``predicate`` by its code and everything it uses. Where that cannot be
    read, they ask for ``version``, or for an attribute of that name on ``predicate``: change it whenever that changes.
    In a state, ``version`` stands for the dataset too.

    A ``predicate`` with an argument ``progress`` gets how far training has come: 0.0 in the first of ``epochs``, 1.0 in
    the last and after it. Then each epoch has rows of its own, and they are looked at once an epoch: a curriculum.

    >>> even = FilteredDataset(range(10), lambda n: n % 2 == 0)
    >>> even[1], even.n_scanned
    (2, 10)
    >>> list(even)
    [0, 2, 4, 6, 8]
    """

    def __init__(
        self,
        dataset: Any,
        predicate: Callable[..., Any],
        *,
        epochs: int | None = None,
        version: str | float | None = None,
    ) -> None:
        Locked.__init__(self)
        View.__init__(self, dataset)
        if not callable(predicate):
            raise ConfigError(f"predicate is called with each sample, got {predicate!r}; pass a function")
        check_attributes(predicate, "FilteredDataset")
        self._predicate, self._version, self._epochs = predicate, check_version(version), n_epochs(epochs)
        self._depends_on_progress = "progress" in extra_arguments(predicate, self._epochs)
        self._arguments = {"progress": 0.0} if self._depends_on_progress else {}
        self._index = Index(self._full_version(version_of(dataset)))

    def __len__(self) -> int:
        if self.ids_are_numbers:
            return len(self._scanned(None).kept)
        return len(self._kept_ids())

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._places([index])[0]] if self.ids_are_numbers else self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """In one call below."""
        if self.ids_are_numbers:
            return samples(self._dataset, self._places(indices))

        def wanted() -> Int64:
            ids = self._kept_ids()
            return ids[np.array([check_index(index, len(ids)) for index in indices], np.int64)]

        ids, rows = rows_with_ids(self._dataset, wanted)
        return rows.fetch(ids)

    def _places(self, indices: Sequence[int]) -> list[int]:
        """The numbers below of rows that have these numbers here."""
        plain = all(type(index) is int and index >= 0 for index in indices)
        found = self._scanned(max(indices, default=-1) + 1 if plain else None).kept
        return [found[check_index(index, len(found))] for index in indices]

    def set_epoch(self, epoch: int) -> None:
        """Passed on; where the predicate asks for progress, the rows are those of ``epoch`` from now on."""
        if self._depends_on_progress:
            self._arguments = {"progress": progress_at(check_epoch(epoch), self._epochs)}
        super().set_epoch(epoch)

    # -- scanning

    def _full_version(self, version: str) -> str:
        """The version of the dataset, and how far training has come where that decides."""
        return f"{version}|progress {self._arguments['progress']!r}" if self._depends_on_progress else version

    @property
    def n_scanned(self) -> int:
        """How many rows the predicate has been asked about, from the first on."""
        return self._index.n_scanned

    def _current(self, version: str) -> Index:
        """What is known of this version of the dataset; what was known of another is forgotten."""
        if self._index.version != version:
            self._index = Index(version)
        return self._index

    def _scanned(self, n_wanted: int | None) -> Index:
        """The index, with ``n_wanted`` rows found or with everything looked at."""
        index, arguments = self._index, self._arguments
        version = self._full_version(version_of(self._dataset))
        if n_wanted is not None and len(index.kept) >= n_wanted and index.version == version:
            return index
        with self._lock:
            index = self._current(version)
            index.restore()
            n_rows = len(self._dataset)
            while index.n_scanned < n_rows and (n_wanted is None or len(index.kept) < n_wanted):
                numbers = range(index.n_scanned, min(index.n_scanned + SCAN_ROWS, n_rows))
                for number, sample in zip(numbers, samples(self._dataset, numbers), strict=True):
                    index.add(number, self._evaluate(number, sample, arguments))
            return index

    def _evaluate(self, row: int, sample: Any, arguments: dict[str, float]) -> bool:
        try:
            return bool(self._predicate(sample, **arguments))
        except Exception as error:
            error.add_note(f"while filtering row {row} with {name_of(self._predicate)}")
            raise

    def evaluate_ids(self, rows: FrozenRows, ids: Int64, verdicts: PredicateCache, arguments: dict[str, float]) -> Mask:
        """Which of these ids, all of them rows, the predicate accepts; each is asked about once."""
        unknown = ids[verdicts.get(ids) == UNKNOWN]
        if len(unknown):
            with self._lock:
                unknown = np.unique(unknown[verdicts.get(unknown) == UNKNOWN])  # others may have looked meanwhile
                for first in range(0, len(unknown), SCAN_ROWS):
                    chunk = unknown[first : first + SCAN_ROWS]
                    for id_, sample in zip(chunk.tolist(), rows.fetch(chunk), strict=True):
                        verdicts.put(id_, self._evaluate(id_, sample, arguments))
        accepted: Mask = verdicts.get(ids) == YES
        return accepted

    def _kept_ids(self) -> Int64:
        """The ids of the rows that are here now."""
        arguments = self._arguments
        rows, version = snapshot_with_version(self._dataset)
        version = self._full_version(version)
        # Ids are never used again: with the same ends and as many rows, these are the same rows.
        moment = (version, tuple(rows.spans()), len(rows))
        with self._lock:
            index = self._current(version)
            if index.moment != moment:
                ids = all_ids(rows)
                index.ids = ids[self.evaluate_ids(rows, ids, index.verdicts, arguments)]
                index.moment = moment
            return index.ids

    # -- what a loader and a cache ask

    @property
    def length_costs(self) -> bool:
        """Each row has to be looked at."""
        return True

    @property
    def choice(self) -> str:
        """The predicate: its version, else its fingerprint; its name where it has neither."""
        return f"filtered {self._code}"

    @cached_property
    def _code(self) -> str:
        version = declared_version(self._predicate) if self._version is None else self._version
        if version is not None:
            return str(version)
        try:
            return function_identity(self._predicate)
        except Unfingerprintable:
            return qualified_name(self._predicate)

    @property
    def version(self) -> str:
        """That of the dataset and, where the predicate asks for it, the progress."""
        return self._full_version(super().version)

    def _identity(self) -> Any:
        """What it looks at, and the predicate."""
        return "filtered", identity_of(self._dataset), function_identity(self._predicate, self._version)

    def _index_identity(self, n_rows: int) -> str:
        """What an index of the first rows was made of; a list may have grown since."""
        if self._version is not None:
            return f"version {self._version}"
        is_plain = isinstance(self._dataset, (list, tuple, range, np.ndarray))
        rows = self._dataset[:n_rows] if is_plain else self._dataset
        return f"{identity_of(rows)} {function_identity(self._predicate)}"

    def ids_of(self, numbers: Int64) -> Int64:
        """The numbers themselves, or the ids below."""
        return numbers if self.ids_are_numbers else self._kept_ids()[numbers]

    def snapshot_rows(self) -> FrozenRows:
        """The rows as they are now."""
        if not self.ids_are_numbers:
            rows, version = snapshot_with_version(self._dataset)
            with self._lock:
                return FilteredRows(self, rows, self._current(self._full_version(version)).verdicts, self._arguments)
        index = self._scanned(None)
        below = snapshot_rows(self._dataset)
        # A copy in one call: an array that is exported, as to NumPy, cannot grow under a scan in another thread.
        kept = np.frombuffer(index.kept.tobytes(), np.int64)
        return _NumberedKeptRows(below, len(kept), lambda numbers: kept[numbers])

    # -- keeping the index

    def state_dict(self) -> dict[str, Any]:
        """What is known until now, as JSON."""
        with self._lock:
            index, blocks = self._index, self._index.verdicts.state()
            identity = self._index_identity(index.n_scanned)
        return {"version": index.version, "identity": identity, "blocks": blocks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Know what ``state_dict`` knew; the dataset and the predicate must be the same."""
        _check_state(state)
        index = Index.of_verdicts(state["version"], PredicateCache.of_state(state.get("blocks")))
        if self.ids_are_numbers and index.n_scanned > len(self._dataset):
            raise ResumeError(
                f"the index knows {index.n_scanned:,} rows, the dataset has {len(self._dataset):,}; scan it anew"
            )
        own = {
            "version": self._full_version(version_of(self._dataset)),
            "identity": self._index_identity(index.n_scanned),
        }
        for name, value in own.items():
            if state[name] != value:
                raise ResumeError(
                    f"the index was made with {name} {state[name]!r}, here it is {value!r}; let the scan begin anew"
                )
        with self._lock:
            self._index = index


def _check_state(state: Any) -> None:
    if isinstance(state, Mapping) and "code" in state and "identity" not in state:
        raise ResumeError(
            "an index of poolish 0.1.0, which does not identify its dataset and predicate; let the scan begin anew"
        )
    if not isinstance(state, Mapping) or not all(isinstance(state.get(name), str) for name in ("version", "identity")):
        raise ResumeError(f"no state of a FilteredDataset: {reprlib.repr(state)}; pass what state_dict() gave")


class Index:
    """What is known of one version of a dataset."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.verdicts = PredicateCache()
        self.kept = array("q")
        self.n_scanned = 0
        self.moment: object = None
        self.ids = np.empty(0, np.int64)

    @classmethod
    def of_verdicts(cls, version: str, verdicts: PredicateCache) -> Index:
        """The same from the verdicts alone."""
        index = cls(version)
        index.verdicts = verdicts
        index.n_scanned = verdicts.n_known()
        known = np.arange(index.n_scanned, dtype=np.int64)
        index.kept = array("q", known[verdicts.get(known) == YES].tobytes())
        return index

    def add(self, number: int, verdict: bool) -> None:
        """The verdict on the next row."""
        self.verdicts.put(number, verdict)
        if verdict:
            self.kept.append(number)
        self.n_scanned = number + 1

    def restore(self) -> None:
        """Take back a row whose adding was interrupted between its steps, by Ctrl-C or a fork."""
        while self.kept and self.kept[-1] >= self.n_scanned:
            self.kept.pop()


class _NumberedKeptRows(ReindexedRows):
    """Kept rows under numbers of their own, which go on when the dataset grows."""

    def fixed_by(self) -> list[int] | None:
        """As below: what comes at the end of the dataset comes at the end here, unless its own numbers are fixed."""
        return fixed_by(self.rows)


class FilteredRows(DelegatingRows):
    """Frozen rows of which some are not there, because the predicate refuses them."""

    keeps_numbers = False

    def __init__(
        self, dataset: FilteredDataset, rows: FrozenRows, verdicts: PredicateCache, arguments: dict[str, float]
    ) -> None:
        super().__init__(rows)
        self.uuid = f"{rows.uuid}|filtered" if rows.uuid else ""
        self._dataset, self._verdicts, self._arguments = dataset, verdicts, arguments
        self._n_rows: int | None = None

    def __len__(self) -> int:
        if self._n_rows is None:
            self._n_rows = len(all_ids(self))
        return self._n_rows

    def alive(self, ids: Int64) -> Mask | None:
        """Those that are there and accepted."""
        below = self.rows.alive(ids)
        mask = np.ones(len(ids), bool) if below is None else below.copy()
        mask[mask] = self._dataset.evaluate_ids(self.rows, ids[mask], self._verdicts, self._arguments)
        return mask


# What is known of rows: a byte each, in blocks that exist where rows are --------------------------------------------

#: Ids in one block.
BLOCK = 1 << 16
UNKNOWN, NO, YES = 0, 1, 2

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
