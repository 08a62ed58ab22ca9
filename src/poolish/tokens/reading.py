"""Reading a stream: tokens by position, windows, steps, and random samples of windows.

All of it reads a *source*, the writer of this process or a reader: what is published, up to a length of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish import kernels
from poolish.arguments import check_whole, is_whole
from poolish.errors import ConfigError, SchemaError
from poolish.tokens.commits import Verified
from poolish.tokens.drawing import Drawable
from poolish.tokens.fields import TokenField, decoded, type_of
from poolish.tokens.reader import Reader
from poolish.tokens.sampling import Coverage, KnownStarts, Starts, Weight, choose, coverage, nothing_fits
from poolish.tokens.stream_files import START, STEP, TYPE, View
from poolish.tokens.writer import Writer

Int64 = NDArray[np.int64]
Batch = dict[str, NDArray[np.int64]]
#: A field that ends an episode where it is not zero, or several.
Within = str | Sequence[str]

_LAST = 2**63 - 1

#: Index rows that are read at a time.
_ROWS = 4096


class Step(dict[str, Any]):
    """The fields of one step, and its number.

    >>> step = Step(7, {"action": 1})
    >>> step.number, step
    (7, {'action': 1})
    """

    def __init__(self, number: int, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.number = number


class StreamReads:
    """The methods of a stream that read."""

    _source: Writer | Reader | None
    _rng: np.random.Generator
    _starts: KnownStarts

    def __getitem__(self, positions: Any) -> Batch:
        """Tokens by position: an int, a slice, a mask of ``len(store)``, or whole numbers in any shape."""
        places = self._places(positions)
        source = self._read()
        values, types = np.empty(places.shape, np.int64), np.empty(places.shape, np.int64)
        if places.size:
            width = places.shape[-1] if places.ndim else 1
            first, end = source.first_token, source.n_tokens
            # Behind the lengths: another thread may append, and what is published has room before it is.
            data, type_lane = source.lanes.data.room, source.lanes.types.room
            bad = kernels.take(data, type_lane, first, end, places, width, values, types)
            if bad >= 0:
                raise self._outside(int(places.reshape(-1)[bad]))
            if source.kept_from() != first:
                self._check_kept(np.where(places < 0, places + end, places))
        return {"types": types, "values": values}

    def windows(self, starts: ArrayLike, width: int, *, types: bool = True) -> Batch:
        """``width`` consecutive tokens from each start, at the speed of memory; a new last axis of that width.

        ``types=False`` leaves the types out.
        """
        return self._windows(
            self._read(), self._whole_numbers(starts), check_whole(width, "width", unit="tokens"), types
        )

    def _windows(self, source: Writer | Reader, begins: Int64, width: int, types: bool) -> Batch:
        """The same of an array that is known to hold int64s in one piece."""
        lanes, first, end = source.lanes, source.first_token, source.n_tokens
        if width > end - first and begins.size:  # before memory is asked for
            raise self._outside(int(begins.reshape(-1)[0]), width)
        values = np.empty((*begins.shape, width), np.int64)
        batch = {"types": np.empty(values.shape, np.int64), "values": values} if types else {"values": values}
        lane = lanes.types.room if types else None
        given = begins
        bad = kernels.windows(lanes.data.room, lane, first, end, begins, width, values, batch.get("types"))
        if bad >= 0 and begins.reshape(-1)[bad] < 0:
            begins = np.where(begins < 0, begins + end, begins)
            bad = kernels.windows(lanes.data.room, lane, first, end, begins, width, values, batch.get("types"))
        if bad >= 0:
            raise self._outside(int(given.reshape(-1)[bad]), width)
        if source.kept_from() != first:
            self._check_kept(begins)
        return batch

    def sample(
        self,
        n: int,
        width: int,
        *,
        rng: np.random.Generator | None = None,
        start: str = "token",
        within: Within | None = None,
        weights: Sequence[Weight] | None = None,
        types: bool = True,
    ) -> Batch:
        """``n`` random windows, drawn with replacement, each of all possible ones with the same chance.

        They begin at any token, or with ``start="step"`` where a step does. ``within="done"`` keeps each inside one
        episode: one ends with the step whose ``done`` is not zero; the last one may still be going on. ``weights`` are
        (first step, step behind the last, weight): the chance of a window is the weight of the range its start is in,
        and 0 outside of them. A step without tokens begins where the next one does, and that window counts for both.
        """
        starts = self.sample_starts(n, width, rng=rng, start=start, within=within, weights=weights)
        return self._windows(self._read(), starts, int(width), types)

    def sample_starts(
        self,
        n: int,
        width: int,
        *,
        rng: np.random.Generator | None = None,
        start: str = "token",
        within: Within | None = None,
        weights: Sequence[Weight] | None = None,
    ) -> Int64:
        """The positions of the windows that ``sample`` would read, without reading them."""
        n, width = check_whole(n, "n", least=0, unit="windows"), check_whole(width, "width", unit="tokens")
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise ConfigError(f"rng={rng!r}: give a np.random.Generator, such as np.random.default_rng(0)")
        view = self._view()
        starts = self._starts_of(view, width, start, within)
        return choose(view, starts, n, width, self._rng if rng is None else rng, weights)

    def _windows_to_draw(
        self, width: int, start: str = "token", within: Within | None = None, types: bool = True
    ) -> Drawable:
        """The windows of a width that there are now, each with the position of its first token."""
        width, view = check_whole(width, "width", unit="tokens"), self._view()
        starts = self._starts_of(view, width, start, within)
        low, high = starts.bounds(view)

        def read(numbers: Int64) -> dict[str, Any]:
            positions = starts.select(view, low + numbers)
            return {**self._windows(self._read(), positions, width, types), "id": positions}

        return Drawable(max(0, high - low), read, lambda: nothing_fits(view, starts, width))

    def coverage(self, width: int, *, start: str = "token", within: Within | None = None) -> Coverage:
        """How many different windows ``sample`` chooses from, and how many episodes are too short for one."""
        view = self._view()
        return coverage(view, self._starts_of(view, check_whole(width, "width", unit="tokens"), start, within))

    def _starts_of(self, view: View, width: int, start: str, within: Within | None) -> Starts:
        return self._starts.of(view, width, start, None if within is None else self._ending(within))

    def _ending(self, within: Within) -> Mapping[int, TokenField]:
        """The fields that end an episode, by their types."""
        return self._starts.ending(within, lambda: self._fields_named(within))

    def _fields_named(self, within: Within) -> Mapping[int, TokenField]:
        names = within if isinstance(within, (list, tuple)) else (within,)
        return {type_: self._fields[type_] for type_ in sorted(map(self._type_of, names))}

    def decode(self, values: ArrayLike, name: str) -> NDArray[Any]:
        """Tokens of a field as its own numbers (float32, bool, ...), in the shape they have.

        Tokens of other fields among them come out as they may; ``types`` tells which are which.
        """
        if np.ma.is_masked(values):
            raise SchemaError("decode takes the int64 values of a batch, masked ones have none; compress() them first")
        tokens = np.ascontiguousarray(values)
        if not tokens.size:
            tokens = tokens.astype(np.int64)
        if tokens.dtype != np.int64:
            raise SchemaError(f"decode takes the int64 values of a batch, got {tokens.dtype}")
        return self._decode(tokens, self._fields[self._type_of(name)].dtype).reshape(np.shape(values))

    @staticmethod
    def _decode(values: NDArray[np.int64], dtype: str) -> NDArray[Any]:
        """Tokens by the dtype of their field."""
        return decoded(values, dtype)

    def steps(self, first: int | None = None, end: int | None = None) -> Iterator[Step]:
        """The steps from number ``first`` up to but not including ``end``, each a dict of the fields it has.

        ``step.number`` is its number. What is appended while this runs is not part of it.
        """
        view = self._view()
        low = view.row_not_below(STEP, _step(0 if first is None else first))
        high = view.rows if end is None else view.row_not_below(STEP, _step(end))
        return read_steps(self, view, low, max(low, high))

    def steps_at(self, ordinals: ArrayLike) -> list[Step]:
        """Steps by how many were recorded before them, in the order asked for; see ``step_span``."""
        view, asked = self._view(), np.asarray(ordinals, np.int64).reshape(-1)
        low, high = self.step_span()
        outside = (asked < low) | (asked >= high)
        if outside.any():
            raise IndexError(
                f"step number {asked[np.argmax(outside)]} of this stream, which holds {low:,} to {high - 1:,}"
            )
        return read_ordinals(self, view, asked)

    def step_span(self) -> tuple[int, int]:
        """The steps that are kept, counted since the stream began: the first, and the one behind the last."""
        if self._source is None:
            return 0, 0
        view = self._view()
        first = view.first_ordinal
        return first, first + view.n_steps

    def __iter__(self) -> Iterator[Step]:
        return self.steps()

    def __len__(self) -> int:
        source = self._source
        return 0 if source is None else source.n_tokens - source.first_token

    def __bool__(self) -> bool:
        return True  # an empty stream is a stream

    @property
    def n_steps(self) -> int:
        """How many steps there are."""
        return 0 if self._source is None else self._view().n_steps

    @property
    def last_step(self) -> int:
        """The number of the last step, and -1 as long as there is none: ``last_step + 1`` is where to go on."""
        if self._source is None:
            return -1
        view = self._view()
        return int(view.lanes.index.room[view.rows - 1, STEP]) if view.rows > view.first_row else -1

    @property
    def first(self) -> int:
        """The position of the first token that is kept: 0, unless ``max_tokens`` has moved it."""
        return 0 if self._source is None else self._source.first_token

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return 0 if self._source is None else self._source.n_tokens

    @property
    def field_to_type(self) -> Mapping[str, int]:
        """The type id of each field."""
        return MappingProxyType(dict(self._ids))

    @property
    def _type_to_field(self) -> Mapping[int, str]:
        return {number: name for name, number in self._ids.items()}

    @property
    def uuid(self) -> str:
        """The name that this stream alone has."""
        return self._read().uuid

    def branch_below(self, end: int) -> str:
        """Which branch wrote the steps before number ``end`` of ``step_span``, as text for ``has_branch``.

        Two copies of a directory have the same uuid. What each of them appends after it was opened again is a *branch*
        of its own, so uuid, branch and a count identify data.
        """
        view = self._view()
        return view.branch_below(view.row_not_below(TYPE, min(_step(end), 2**50) << 8))

    def has_branch(self, branch: str) -> bool:
        """Whether a result of ``branch_below``, of this stream or a copy, holds for this stream.

        >>> from poolish import StreamStore
        >>> store = StreamStore(folder / "rollouts", fields={"action": "int64"})
        >>> store.append(0, ["action"], [3])
        >>> store.has_branch(store.branch_below(1))
        True
        """
        return self._view().has_branch(branch)

    def refresh(self) -> int:
        """Look what has been appended since; how many tokens are new.

        A writer sees everything at once anyway, and a stream opened ``at`` a commit ends there for good.
        """
        source = self._read()
        before = source.n_tokens
        source.refresh()
        return source.n_tokens - before

    def verify(self) -> Verified:
        """Check every committed byte against its checksum, and that the lanes fit each other.

        The first thing that is wrong is a ``CorruptDataError``. A writer puts right what can be derived.
        """
        return self._read().verify()

    @property
    def _fields(self) -> tuple[TokenField, ...]:
        return () if self._source is None else self._source.fields

    @property
    def _ids(self) -> Mapping[str, int]:
        return {} if self._source is None else self._source.ids

    def _read(self) -> Writer | Reader:
        if self._source is None:
            raise ConfigError("this stream is closed, or its fields are not defined; call define_fields, or open it")
        return self._source

    def _writer(self) -> Writer:
        source = self._read()
        if isinstance(source, Reader):
            raise ConfigError(f"{source.path}: opened to read; append where it is written, or open it with mode='a'")
        return source

    def _view(self) -> View:
        return self._read().view()

    def _type_of(self, name: str) -> int:
        return type_of(self._ids, name)

    def _places(self, positions: Any) -> Int64:
        if isinstance(positions, slice):
            first, end, stride = positions.indices(self.end)
            chosen = np.arange(first, end, stride)
            return chosen[chosen >= self.first]
        places = _array(positions)
        if places.dtype.kind == "b":
            if places.shape != (len(self),):
                raise IndexError(f"a mask needs the shape ({len(self)},) of the stream, got {places.shape}")
            return self.first + np.flatnonzero(places)
        return self._whole_numbers(places)

    def _whole_numbers(self, given: Any) -> Int64:
        numbers = _array(given)
        if numbers.dtype != np.int64:
            if numbers.dtype.kind == "u" and numbers.size and numbers.max() > _LAST:
                raise self._outside(int(numbers.max()))
            if numbers.dtype.kind == "O":
                huge = [n for n in numbers.reshape(-1).tolist() if isinstance(n, int) and abs(n) > _LAST]
                if huge:
                    raise self._outside(huge[0])
            if numbers.dtype.kind not in "iu" and numbers.size:
                raise IndexError(f"positions are whole numbers, got {numbers.dtype}")
        # Of a number without an axis NumPy would make one with one.
        return np.ascontiguousarray(numbers, np.int64).reshape(numbers.shape)

    def _outside(self, position: int, width: int = 1) -> IndexError:
        source = self._read()
        what = f"index {position}" if width == 1 else f"a window of {width} tokens from {position}"
        kept = f", kept from {source.first_token:,} on" if source.first_token else ""
        more = "; refresh() looks for more" if isinstance(source, Reader) and source.at is None else ""
        return IndexError(f"{what} is out of range for a stream of {source.n_tokens:,} tokens{kept}{more}")

    def _check_kept(self, starts: Int64) -> None:
        """Refuse tokens that were trimmed while they were read: they may be anything."""
        kept = self._read().kept_from()
        if starts.size and starts.min() < kept:
            raise IndexError(f"index {starts.min()} has left the stream, which is kept from {kept:,} on; refresh()")

    def _check_row_kept(self, row: int) -> None:
        """The same for an index row."""
        source = self._read()
        if row < source.kept_row():
            raise IndexError(f"a step has left the stream, which is kept from {source.kept_from():,} on; refresh()")


def read_steps(store: StreamReads, view: View, low: int, high: int) -> Iterator[Step]:
    """The steps in the index rows [low, high), which begin and end with whole steps."""
    fields, current = store._fields, None
    for begin in range(low, high, _ROWS):
        end = min(begin + _ROWS, high)
        rows = np.array(view.lanes.index.room[begin : end + 1])
        first = int(rows[0, START])
        tokens = np.array(view.lanes.data.room[first : int(rows[-1, START])])
        store._check_row_kept(begin)
        for (start, type_, number), stop in zip(rows[:-1].tolist(), rows[1:, START].tolist(), strict=True):
            field = fields[type_ & 0xFF]
            if current is None or current.number != number:
                if current is not None:
                    yield current
                    store._read()  # a stream that was closed meanwhile says so
                current = Step(number, {})
            current[field.name] = field.value(tokens[start - first : stop - first])
    if current is not None:
        yield current


def read_ordinals(store: StreamReads, view: View, ordinals: Int64) -> list[Step]:
    """The steps with these ordinals, in the order given."""
    edges = view.rows_not_below(TYPE, np.stack([ordinals, ordinals + 1], axis=1).reshape(-1) << 8).tolist()
    return [
        step for low, high in zip(edges[::2], edges[1::2], strict=True) for step in read_steps(store, view, low, high)
    ]


def _array(positions: Any) -> NDArray[Any]:
    if np.ma.is_masked(positions):
        raise IndexError("masked positions say nothing; compress() them first")
    try:
        return np.asarray(positions)
    except ValueError as error:
        raise IndexError(f"positions are whole numbers in rows of one length ({error})") from None


def _step(number: Any) -> int:
    if not is_whole(number):
        raise ConfigError(f"steps are whole numbers, got {number!r}")
    return max(0, min(int(number), _LAST))
