"""Windows of the streams of a set as one dataset, which grows with each of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from poolish.tokens.members import Member, Present
from poolish.tokens.window_dataset import Batch, WindowDataset

if TYPE_CHECKING:
    from poolish.tokens.stream_set import StreamSet


class MemberWindows:
    """The windows of all members of a ``StreamSet``; see ``WindowDataset`` for those of one.

    A ``Loader`` reads it by ids, which stay. Numbers run through the members in the order of their ordinals as they are
    now, so they move while members grow: do not keep them.
    """

    def __init__(self, streams: StreamSet, width: int, stride: int | None = None, within: str | None = None) -> None:
        self.streams = streams
        self.width, self.stride, self.within = width, stride, within
        self._made: dict[int, tuple[Member, WindowDataset]] = {}
        self.parts()  # what is wrong with the arguments is wrong now

    def parts(self, present: Present | None = None) -> dict[int, WindowDataset]:
        """The windows of each member there is now, by ordinal; or of those that were ``present``."""
        members = (present or self.streams.present()).members.values()
        for member in members:
            if self._made.get(member.ordinal, (None,))[0] is not member:
                windows = WindowDataset(member.store, self.width, self.stride, self.within)
                self._made[member.ordinal] = member, windows
        return {member.ordinal: self._made[member.ordinal][1] for member in members}

    @property
    def uuid(self) -> str:
        """A name that differs where the same id means another window."""
        stride = self.width if self.stride is None else self.stride
        return f"{self.streams.uuid}/{self.width}/{stride}/{self.within or ''}" if self.streams.uuid else ""

    @property
    def version(self) -> str:
        """What changes whenever the same number may be another window."""
        return str([(ordinal, part.version, part.span()) for ordinal, part in self.parts().items()])

    def __len__(self) -> int:
        return sum(end - first for first, end in (part.span() for part in self.parts().values()))

    def __getitem__(self, i: int) -> Batch:
        return self.__getitems__([i])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Batch]:
        """Many windows."""
        parts = list(self.parts().values())
        spans = [part.span() for part in parts]
        ends = list(accumulate(end - first for first, end in spans))
        n, found = ends[-1] if ends else 0, []
        for i in numbers:
            if not -n <= i < n:
                raise IndexError(f"window {i} of {n:,}")
            k = bisect_right(ends, i % n)
            found.append(parts[k][spans[k][1] - ends[k] + i % n])
        return found

    def __iter__(self) -> Iterator[Batch]:
        for part in self.parts().values():
            yield from (part[i] for i in range(*part.span()))

    def __repr__(self) -> str:
        inside = f" within {self.within!r}" if self.within else ""
        return f"<{len(self):,} windows of {self.width} tokens{inside}, of {self.streams!r}>"
