"""A dataset whose members come, grow, finish and go, for the tests of the order and of the loader."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from poolish.load.frozen import LOCAL, Members, Span

SHIFT = 2**48
_numbers = itertools.count()


class MemberSet:
    """Lists by name as one dataset; a row's id is its member's ordinal and its place in the list."""

    def __init__(self, changes: str = LOCAL, uuid: str | None = None) -> None:
        self.uuid = uuid or f"members {next(_numbers)}"
        self.lists: dict[str, list[int]] = {}
        self.ordinals: dict[str, int] = {}
        self.finished: set[str] = set()
        self.changes = changes

    def add(self, n: int) -> str:
        """A new member of ``n`` rows."""
        name = f"member {len(self.ordinals)}"
        self.ordinals[name] = len(self.ordinals)
        self.lists[name] = []
        self.grow(name, n)
        return name

    def grow(self, name: str, n: int) -> None:
        """``n`` more rows of a member, each with its own id as value."""
        rows, first = self.lists[name], self.ordinals[name] * SHIFT
        rows += range(first + len(rows), first + len(rows) + n)

    def finish(self, name: str) -> None:
        """The member never grows again."""
        self.finished.add(name)

    def leave(self, name: str) -> None:
        """The member and its rows are gone, for ever."""
        del self.lists[name]

    def __len__(self) -> int:
        return sum(map(len, self.lists.values()))

    def __getitem__(self, number: int) -> int:
        return [row for rows in self.lists.values() for row in rows][number]

    def snapshot_rows(self) -> MemberRows:
        return MemberRows(self)


class MemberRows:
    """The rows of a member set at one moment."""

    def __init__(self, of: MemberSet) -> None:
        self._of, self.uuid, self.changes = of, of.uuid, of.changes
        self._members = Members(len(of.ordinals), [of.ordinals[name] for name in of.lists if name in of.finished])
        self._sizes = {of.ordinals[name]: len(rows) for name, rows in of.lists.items()}

    def members(self) -> Members:
        return self._members

    def __len__(self) -> int:
        return sum(self._sizes.values())

    def spans(self) -> list[Span]:
        return [(ordinal * SHIFT, ordinal * SHIFT + n) for ordinal, n in self._sizes.items()]

    def alive(self, ids: Any) -> Any:
        there = {self._of.ordinals[name] for name in self._of.lists}  # files that are gone are gone for every snapshot
        sizes = {ordinal: n for ordinal, n in self._sizes.items() if ordinal in there}
        return np.array([id_ % SHIFT < sizes.get(id_ // SHIFT, 0) for id_ in ids.tolist()], bool)

    def fetch(self, ids: Any) -> list[dict[str, int]]:
        if not self.alive(ids).all():
            raise IndexError("a row has left")
        return [{"n": id_} for id_ in ids.tolist()]

    def table(self, ids: Any) -> None:
        return None


class Lagging:
    """The same as another process sees it: as it was when it was last looked at."""

    def __init__(self, dataset: MemberSet) -> None:
        self._dataset, self._seen = dataset, dataset.snapshot_rows()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> int:
        return self._dataset[number]

    def snapshot_rows(self) -> MemberRows:
        found, self._seen = self._seen, self._dataset.snapshot_rows()
        return found
