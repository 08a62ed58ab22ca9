"""The log of branches: which opening wrote which rows, and where episodes end.

Each opening for append adds a record before its first append, so that two copies of a directory that both go on are
two branches, and so that the steps of a recorder that was killed do not count as the beginning of the next episode::

    {"seq": 2, "uuid": ..., "rows": 400, "branch": <32 random digits>, "ends_episode": true, "chain": <xxh3>}

    rows         how many index rows there were: what this branch wrote comes behind them
    ends_episode whether an episode ends there, at the latest with the step that was being written (a *break*)

A record counts until a later one has as many rows or fewer: then its own rows were lost, by a power cut or in a copy,
and others took their place. So no record that was voided comes back when the stream grows past it. Record 0 has no
rows and is made with the stream; streams of 0.1.0 have none, so what lies below their first record is known by its
content alone. See log_file.py for how a record lies in the file.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex
from poolish.tokens.log_file import LogFile, chained, line_of

NAME = "branches"

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Branch:
    """One record."""

    seq: int
    uuid: str
    rows: int
    branch: str
    ends_episode: bool
    chain: str


class Branches:
    """The records that count, as they were at one moment.

    >>> log = Branches().after("uuid", {0: False, 5: True}, branch="a" * 32)
    >>> found = Branches([*log, *Branches(log).after("uuid", {3: True}, branch="b" * 32)])
    >>> found.breaks, found.name_below(3) == Branches(log).name_below(5), found.n_records
    (array([3]), True, 3)
    """

    def __init__(self, records: Sequence[Branch] = ()) -> None:
        self.n_records = len(records)
        self._last = records[-1] if records else None
        counting: list[Branch] = []
        for record in records:
            while counting and counting[-1].rows >= record.rows:
                counting.pop()
            counting.append(record)
        self._rows = [record.rows for record in counting]
        self._names = _names(counting)
        #: The index rows at which an episode ends, ascending.
        self.breaks: NDArray[np.int64] = np.array([each.rows for each in counting if each.ends_episode], np.int64)

    @property
    def first_known(self) -> int:
        """The first row whose branch is known; 0 unless the stream began with 0.1.0."""
        return self._rows[0] if self._rows else 2**62

    def name_below(self, rows: int) -> str:
        """A name that two copies of a stream share as long as their first ``rows`` rows are the same rows."""
        return self._names[bisect_left(self._rows, rows)]

    def after(self, uuid: str, ends: Mapping[int, bool], branch: str | None = None) -> list[Branch]:
        """The records for a new branch behind these: for each number of rows whether an episode ends there."""
        branch, before, records = branch or uuid4().hex, self._last, []
        for rows, ends_episode in sorted(ends.items()):
            before = chained(Branch, before, uuid, rows=rows, branch=branch, ends_episode=ends_episode)
            records.append(before)
        return records


def _names(counting: Sequence[Branch]) -> list[str]:
    names = [""]
    for record in counting:
        names.append(checksum_hex(f"{names[-1]}/{record.rows}:{record.branch}".encode()))
    return names


class BranchLog(LogFile[Branch]):
    """The file of branches."""

    noun, record_type = "branch", Branch

    def append(self, records: Sequence[Branch], *, durable: bool) -> None:
        """Write records, and wait until the disk has them if ``durable``."""
        self.write([line_of(record) for record in records], durable=durable)

    def is_sound(self, record: Branch) -> bool:
        """Whether the members have the right types and ranges."""
        return (
            all(isinstance(number, int) and 0 <= number < 2**48 for number in (record.seq, record.rows))
            and isinstance(record.branch, str)
            and _ID.fullmatch(record.branch) is not None
            and isinstance(record.ends_episode, bool)
            and isinstance(record.uuid, str)
            and isinstance(record.chain, str)
        )


def open_log(path: Path, uuid: UUID, *, mode: str) -> BranchLog | None:
    """The log of the stream at ``path``; None if it has none, as streams of 0.1.0."""
    try:
        return BranchLog(path / NAME, uuid, mode=mode)
    except FileNotFoundError:
        return None


def read(log: BranchLog | None, path: Path, n_synced: int) -> Branches:
    """The records that count; ``n_synced`` is how many there must be."""
    branches = Branches(log.records() if log is not None else ())
    if branches.n_records < n_synced:
        raise CorruptDataError(
            f"{path / NAME}: {n_synced} branches were recorded and {branches.n_records} are there; "
            "restore the file from a copy"
        )
    return branches
