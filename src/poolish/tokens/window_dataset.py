"""Windows of a stream as a map-style dataset, for torch's DataLoader and anything else that reads ``dataset[i]``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish.arguments import check_whole
from poolish.tokens.sampling import Episodes, InEpisodes
from poolish.tokens.stream_files import START

if TYPE_CHECKING:
    from poolish.tokens.store import StreamStore

Batch = dict[str, NDArray[Any]]


class WindowDataset:
    """The windows of a stream, ``stride`` tokens apart; each is {"types": ..., "values": ...} of ``width`` tokens.

    It grows with the stream: window i stays window i, new ones come at the end, and asking for the length looks what is
    new. With ``within`` windows lie inside one episode, counted from its beginning. Windows that have left a bounded
    stream are an IndexError; ``as_dataset`` called again counts from the first window that is kept. (torch's
    ``shuffle=True`` asks for the length again at the end of an epoch: make the DataLoader's sampler from a number if
    the stream grows.)
    """

    def __init__(self, store: StreamStore, width: int, stride: int | None = None, within: str | None = None) -> None:
        self.store = store
        self.width = check_whole(width, "width", unit="tokens")
        self.stride = self.width if stride is None else check_whole(stride, "stride", unit="tokens")
        self.within = within
        view = store._view()
        # Windows begin at multiples of the stride, so that one is the same window whenever this object was made.
        self._base = -(-view.first_token // self.stride) * self.stride
        self._starts: InEpisodes | None = None
        if within is not None:
            self._base = view.first_token
            self._episodes = Episodes(store._ending(within), view)
            self._starts = InEpisodes(self.width, self._episodes, at_steps=False, stride=self.stride)

    def __len__(self) -> int:
        self.store.refresh()
        view = self.store._view()
        if self._starts is not None:
            if self._episodes.is_behind(view):
                raise IndexError("episodes have left the stream uncounted since this dataset last looked; make it anew")
            return self._starts.bounds(view)[1]
        return max(0, (view.tokens - self._base - self.width) // self.stride + 1)

    @property
    def uuid(self) -> str:
        """A name that differs where the same number means another window."""
        inside = f"/{self.within}/{self._base}" if self._starts is not None else ""
        return f"{self.store.uuid}/{self.width}/{self.stride}{inside}"

    @property
    def version(self) -> str:
        """What changes whenever the same number may be another window: the branches of the stream that it has read."""
        view = self.store._view()
        return f"{self.uuid}/{view.branches.name_below(view.rows)}"

    def branch_below(self, end: int) -> str:
        """Which branch wrote the windows with ids below ``end``; as ``StreamStore.branch_below``, for windows."""
        view = self.store._view()
        number = end - 1 - self.first_id
        if number < 0:
            return view.branch_below(0)
        if self._starts is None:
            start = self._base + number * self.stride
        else:
            self._starts.bounds(view)
            start = int(self._starts.select(view, np.array([number]))[0])
        return view.branch_below(view.row_not_below(START, start + self.width))  # all windows before it end before it

    @property
    def first_id(self) -> int:
        """The id of window 0: how many windows came before it since the stream began."""
        return 0 if self._starts is not None else self._base // self.stride

    def span(self) -> tuple[int, int]:
        """The windows that can be read now: from the first whose tokens are all kept up to the length."""
        n = len(self)
        view = self.store._view()
        if self._starts is not None:
            return self._starts.bounds(view)[0], n
        return max(0, -(-(view.first_token - self._base) // self.stride)), n

    def __getitem__(self, i: int) -> Batch:
        batch = self.columns([i])
        return {name: values[0] for name, values in batch.items()}

    def __getitems__(self, numbers: Sequence[int]) -> list[Batch]:
        """Many windows in one go, as torch's DataLoader asks for them."""
        batch = self.columns(list(numbers) or np.empty(0, np.int64))
        names = list(batch)
        return [dict(zip(names, rows, strict=True)) for rows in zip(*batch.values(), strict=True)]

    def __iter__(self) -> Iterator[Batch]:
        i = 0
        while i < len(self):  # asked each time: the stream may have grown
            yield self[i]
            i += 1

    def __repr__(self) -> str:
        inside = f" within {self.within!r}" if self.within else ""
        return f"<{len(self):,} windows of {self.width} tokens, {self.stride} apart{inside}, of {self.store!r}>"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__  # the numbering travels too: what it was counted from may have left the stream

    def columns(self, numbers: ArrayLike) -> Batch:
        """The windows with these numbers as one batch, at memory speed."""
        n = len(self)
        numbers = np.asarray(numbers)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise IndexError(f"windows are numbered 0 to {n - 1:,}, got {numbers.tolist()!r}")
        bad = (numbers < -n) | (numbers >= n)
        if bad.any():
            raise IndexError(f"window {int(numbers[np.argmax(bad)])} of {n:,}")
        numbers = np.where(numbers < 0, numbers + n, numbers).astype(np.int64)
        if self._starts is None:
            starts = self._base + numbers * self.stride
        else:
            starts = self._starts.select(self.store._view(), numbers)
        return self.store.windows(starts, self.width)
