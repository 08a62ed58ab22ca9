"""What the kernels of the token streams mean, in NumPy: the specification of ``_tokens.pyx`` and its stand-in.

Words of the head page are plain stores and loads here. On x86 that orders them as readers in other processes need;
other processors need the atomics of the compiled kernels for live readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Array = NDArray[Any]

#: name, is_float, largest finite magnitude, lowest and highest integer, kind, shape
FieldTuple = tuple[str, bool, float, int, int, int, tuple[int | None, ...]]
#: type, flat array of numbers, numbers a row or -1, offsets or None, present or None
ColumnTuple = tuple[int, Array, int, Int64 | None, Bytes | None]

#: type, is_float, numbers a step, values or None, present or None, lengths or None
WantedTuple = tuple[int, bool, int, Array | None, Bytes | None, Int64 | None]

#: place, place among the final fields or -1, numbers a step, is_float, values
PairTuple = tuple[int, int, int, bool, Array]

#: Words of the head page, counted in int64s: what is published, and where it begins.
PUBLISHED, FIRST = 8, 16

#: Whether a field holds one number or many; a field that was only named is undecided until it is first written.
UNDECIDED, SCALAR, SEQUENCE = 0, 1, 2

_SEAL = 0x9E3779B97F4A7C15
_NO_LIMIT = 1 << 62


# --- writing ---------------------------------------------------------------------------------------------------------


class Recorder:
    """The writing end of a stream: what has been written, and the lanes to write to.

    ``data``, ``types`` and ``index`` are arrays over all the room there is. Everything behind ``n_rows`` may be
    overwritten: no reader sees it before the one store that publishes it. ``append`` handles the usual values itself
    and leaves to ``slow`` whatever needs a decision: bad values, unknown names, no room. ``trim`` is called when
    the first token that is kept has come to ``trim_at``.
    """

    def __init__(self, fields: Sequence[FieldTuple], slow: Callable[..., None], trim: Callable[[], None]) -> None:
        if len(fields) > 256:
            raise IndexError("too many fields")
        self.fields = fields
        self.slow, self.trim = slow, trim
        self.n_rows = self.n_tokens = self.n_steps = self.step_start = 0
        self.last_step = self.last_type = -1
        self.first_row = self.first_token = 0
        self.max_tokens = self.trim_at = _NO_LIMIT
        self.is_busy = True
        self.is_held = False

    def attach(
        self, data: Int64, types: Bytes, index: Int64, head: Int64, files: tuple[int, int, int] = (-1, -1, -1)
    ) -> None:
        """Write here from now on. ``files`` are those that the lanes are maps of, for the compiled half to write to."""
        if head.nbytes < 512:
            raise IndexError("no head page")
        self.data, self.types, self.index, self.head = data, types, index, head

    def detach(self) -> None:
        """Write nowhere any more."""
        self.is_busy = True
        for lane in ("data", "types", "index", "head"):
            self.__dict__.pop(lane, None)

    def set_kind(self, type_: int, kind: int) -> None:
        """Fix whether a field is one number or many; only the compiled half needs to know."""
        if not 0 <= type_ < len(self.fields):
            raise IndexError("no such field")

    def append(self, steps: Any, names: Any, values: Any = None) -> None:
        """Append field-writes; see Appender.append."""
        self.slow(steps, names, values)

    def record(self, steps: Int64, types: Int64, lengths: Int64, tokens: Int64) -> None:
        """Write field-writes that were checked and encoded, and publish them."""
        n, n_new = len(steps), len(tokens)
        self._check_room(n, n_new)
        is_sane = len(types) == len(lengths) == n and (n == 0 or 0 <= lengths.min() <= lengths.max() <= 1 << 48)
        if not is_sane or lengths.sum() != n_new:
            raise IndexError("field-writes that do not add up")
        if n and not 0 <= types.min() <= types.max() < len(self.fields):
            raise IndexError("field-writes that do not add up")
        if not n:
            return
        starts = self.n_tokens + np.cumsum(lengths) - lengths
        begins = np.diff(steps, prepend=self.last_step) != 0
        ordinals = self.n_steps - 1 + np.cumsum(begins)
        self.data[self.n_tokens : self.n_tokens + n_new] = tokens
        self.types[self.n_tokens : self.n_tokens + n_new] = np.repeat(types, lengths)
        rows = self.index[self.n_rows : self.n_rows + n]
        rows[:, 0], rows[:, 1], rows[:, 2] = starts, types | ordinals << 8, steps
        if begins.any():
            self.step_start = int(starts[np.flatnonzero(begins)[-1]])
        self._publish(self.n_rows + n, self.n_tokens + n_new, int(ordinals[-1]) + 1)
        self.last_step, self.last_type = int(steps[-1]), int(types[-1])

    def record_columns(self, steps: Int64, columns: Sequence[ColumnTuple]) -> int:
        """Write whole columns, a step a row; the number of a column with a value that does not fit, or -1."""
        n = len(steps)
        if not columns:
            return -1
        lengths = np.stack([_lengths(column, n) for column in columns], axis=1)
        present = np.stack([_present(column, n) for column in columns], axis=1)
        if n == 0:
            return -1
        written = lengths * present
        starts = (np.cumsum(written) - written.ravel()).reshape(written.shape)
        tokens = np.empty(int(written.sum()), np.int64)
        for number, (type_, values, *_) in enumerate(columns):
            here = present[:, number]
            column, bad = encode(values[np.repeat(here, lengths[:, number])], *self.fields[type_][1:5])
            if bad >= 0:
                return number
            each = lengths[here, number]
            inside = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
            tokens[np.repeat(starts[here, number], each) + inside] = column
        types = np.broadcast_to([column[0] for column in columns], lengths.shape)[present]
        rows = np.broadcast_to(np.asarray(steps)[:, None], lengths.shape)[present]
        self.record(np.ascontiguousarray(rows), types.astype(np.int64), lengths[present], tokens)
        return -1

    def _check_room(self, n_rows: int, n_tokens: int) -> None:
        if not hasattr(self, "index"):
            raise IndexError("no lanes")
        if self.n_rows + n_rows >= len(self.index) or self.n_tokens + n_tokens > min(len(self.data), len(self.types)):
            raise IndexError("no room in the lanes")

    def _publish(self, n_rows: int, n_tokens: int, n_steps: int) -> None:
        # The row behind the last one holds the length in tokens, so that one store publishes both lengths.
        self.index[n_rows, 0] = n_tokens
        self.n_rows, self.n_tokens, self.n_steps = n_rows, n_tokens, n_steps
        if not self.is_held:
            self.let_out()

    def let_out(self) -> None:
        """Publish everything that was written, in one store."""
        if not hasattr(self, "head"):
            raise IndexError("no lanes")
        store_word(self.head, PUBLISHED, self.n_rows)
        if self.n_tokens - self.first_token > self.max_tokens:
            self._drop_steps()

    def _drop_steps(self) -> None:
        """Let whole steps go at the front until the rest fits."""
        rows = self.index[self.first_row : self.n_rows + 1]
        begins = np.flatnonzero(np.diff(rows[:-1, 1] >> 8, prepend=-1, append=-1))
        row = begins[np.argmax(self.n_tokens - rows[begins, 0] <= self.max_tokens)]
        self.first_row, self.first_token = self.first_row + int(row), int(rows[row, 0])
        store_word(self.head, FIRST, self.first_row)


class Appender:
    """What a stream that is written inherits: an append without a Python frame around it, where it is compiled.

    The call holds on to the stream itself, so ``StreamStore(...).append(...)`` in one expression has an open one.
    """

    _recorder: Recorder | None = None

    def append(self, steps: Any, names: Any, values: Any = None) -> None:
        """Append field-writes: for each a step, a field's name and its value; all of them or, on an error, none.

        One step for all of them may be given as a number, and its fields as one mapping. Fields may be left out, and a
        later append may go on with the last step, behind its last field. A value that its field cannot hold exactly is
        refused.
        """
        if self._recorder is None:
            self._append_unopened(steps, names, values)
        else:
            self._recorder.append(steps, names, values)

    def _append_unopened(self, steps: Any, names: Any, values: Any) -> None:
        """Say why there is nothing to append to."""
        raise NotImplementedError


def _lengths(column: ColumnTuple, n: int) -> Int64:
    _, values, width, offsets, _ = column
    if offsets is None:
        if width < 0 or len(values) != n * width:
            raise IndexError("columns that do not add up")
        return np.full(n, width, np.int64)
    lengths = np.diff(offsets)
    if len(lengths) != n or offsets[0] != 0 or offsets[-1] != len(values) or (n and lengths.min() < 0):
        raise IndexError("columns that do not add up")
    return lengths


def _present(column: ColumnTuple, n: int) -> NDArray[np.bool_]:
    present = column[4]
    if present is None:
        return np.ones(n, np.bool_)
    if len(present) != n:
        raise IndexError("columns that do not add up")
    return present.astype(np.bool_)


def encode(values: Array, is_float: bool, limit: float, low: int, high: int) -> tuple[Int64, int]:
    """Numbers as tokens, and the place of the first that the field cannot hold exactly, or -1."""
    with np.errstate(all="ignore"):
        tokens, bad = _encode_float(values, limit) if is_float else _encode_int(values, low, high)
    return tokens, int(np.argmax(bad)) if bad.any() else -1


def _encode_float(values: Array, limit: float) -> tuple[Int64, NDArray[np.bool_]]:
    wide = values.astype(np.float64)
    bad = (np.abs(wide) > limit) & ~np.isinf(wide)
    if values.dtype.kind in "iu":
        # 2**63 and 2**64 have no integer to go back to, and the cast would make something up.
        inside = wide < (2.0**64 if values.dtype.kind == "u" else 2.0**63)
        bad |= ~inside | (np.where(inside, wide, 0).astype(values.dtype) != values)
    return wide.view(np.int64), bad


def _encode_int(values: Array, low: int, high: int) -> tuple[Int64, NDArray[np.bool_]]:
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        inside = (wide >= -(2.0**63)) & (wide < 2.0**63)
        tokens = np.where(inside, wide, 0).astype(np.int64)
        bad = ~inside | (tokens.astype(np.float64) != wide)
    else:
        tokens = values.astype(np.int64)
        bad = (tokens < 0) if values.dtype.kind == "u" else np.zeros(len(tokens), np.bool_)
    return tokens, bad | (tokens < low) | (tokens > high)


# --- the head page ---------------------------------------------------------------------------------------------------


def _sealed(number: int, word: int) -> int:
    return number | (((word << 48) + number + 1) * _SEAL & (1 << 64) - 1) >> 48 << 48


def load_word(head: Int64, word: int) -> int:
    """The number in a word, or -1 if the 16 bits above it do not prove it."""
    if not 0 <= word < len(head):
        raise IndexError("no such word")
    sealed = int(head.view(np.uint64)[word])
    number = sealed & (1 << 48) - 1
    return number if _sealed(number, word) == sealed else -1


def store_word(head: Int64, word: int, number: int) -> None:
    """Publish a number below 2**48, after everything that was written before it."""
    if not 0 <= word < len(head):
        raise IndexError("no such word")
    head.view(np.uint64)[word] = _sealed(number, word)


# --- reading ---------------------------------------------------------------------------------------------------------


def windows(
    data: Int64, types: Bytes | None, first: int, end: int, starts: Int64, width: int, values: Int64, out_types: Any
) -> int:
    """Copy ``width`` tokens from each start; the place of the first start outside of [first, end), or -1."""
    starts = starts.reshape(-1)
    if width < 0 or first < 0 or end > len(data) or values.size < len(starts) * width:
        raise IndexError("out is too small")
    if types is not None and (end > len(types) or out_types.size < len(starts) * width):
        raise IndexError("out is too small")
    bad = (starts < first) | (starts > end - width)
    if bad.any():
        return int(np.argmax(bad))
    positions = (starts[:, None] + np.arange(width)).reshape(-1)
    values.reshape(-1)[: positions.size] = data[positions]
    if types is not None:
        out_types.reshape(-1)[: positions.size] = types[positions]
    return -1


def take(
    data: Int64, types: Bytes | None, first: int, end: int, positions: Int64, width: int, values: Int64, out_types: Any
) -> int:
    """Copy single tokens, positions counted from the end where negative; the place of the first bad one, or -1.

    ``width`` is how many positions belong to a row; rows of consecutive positions are copied as such.
    """
    if width < 1 or first < 0 or positions.size % width or end > len(data) or values.size < positions.size:
        raise IndexError("out is too small")
    if types is not None and (end > len(types) or out_types.size < positions.size):
        raise IndexError("out is too small")
    places = np.where(positions < 0, positions + end, positions).reshape(-1)
    bad = (places < first) | (places >= end)
    if bad.any():
        return int(np.argmax(bad))
    values.reshape(-1)[: places.size] = data[places]
    if types is not None:
        out_types.reshape(-1)[: places.size] = types[places]
    return -1


# --- searching -------------------------------------------------------------------------------------------------------


def search(table: Int64, n_columns: int, column: int, low: int, high: int, keys: Int64, out: Int64) -> None:
    """For each key the first row of [low, high) whose value is not below it, or ``high``; the column is sorted."""
    if not 0 <= column < n_columns or low < 0 or high < low or high > table.size // n_columns:
        raise IndexError("outside of the table")
    if len(out) < len(keys):
        raise IndexError("out is too small")
    # Not np.searchsorted, which would first copy the whole column to have it in one piece.
    values = table.reshape(-1)[: table.size // n_columns * n_columns].reshape(-1, n_columns)[:, column]
    lows, highs = np.full(len(keys), low), np.full(len(keys), high)
    while (is_open := lows < highs).any():
        middles = (lows + highs) >> 1
        is_below = is_open & (values[np.minimum(middles, high - 1)] < keys)
        lows = np.where(is_below, middles + 1, lows)
        highs = np.where(is_open & ~is_below, middles, highs)
    out[: len(keys)] = lows


def search_one(table: Int64, n_columns: int, column: int, low: int, high: int, key: int) -> int:
    """The same for one key."""
    found = np.empty(1, np.int64)
    search(table, n_columns, column, low, high, np.array([key]), found)
    return int(found[0])


def select_starts(
    totals: Int64,
    ends: Int64,
    base_token: int,
    base_ordinal: int,
    stride: int,
    index: Int64 | None,
    sizes: Int64 | None,
    first_row: int,
    n_rows: int,
    numbers: Int64,
    out: Int64,
) -> None:
    """The positions of window starts that are numbered through all episodes.

    ``totals`` counts the starts up to the end of each episode, ``ends`` has the token and the step behind each end;
    the first one begins at the base, and what is behind the last end belongs to one that is still open. With an index
    starts are beginnings of steps, without one they are ``stride`` tokens apart. ``sizes`` is how many tokens each step
    of an episode has, 0 where the index must be asked.
    """
    if ends.size < 2 * len(totals) or len(out) < len(numbers):
        raise IndexError("out is too small")
    if index is not None and (first_row < 0 or first_row >= n_rows or n_rows + 1 > index.size // 3):
        raise IndexError("outside of the table" if first_row != n_rows else "no rows")
    episodes = np.searchsorted(totals, numbers, side="right")
    inside, begins = numbers.copy(), np.full((len(numbers), 2), (base_token, base_ordinal))
    later = episodes > 0
    inside[later] -= totals[episodes[later] - 1]
    begins[later] = ends.reshape(-1, 2)[episodes[later] - 1]
    if index is None:
        out[: len(numbers)] = begins[:, 0] + inside * stride
        return
    if sizes is None or len(sizes) < len(totals):
        raise IndexError("out is too small")
    found = np.empty(len(numbers), np.int64)
    search(index, 3, 1, first_row, n_rows, (begins[:, 1] + inside) << 8, found)
    each = np.append(sizes[: len(totals)], 0)[episodes]
    out[: len(numbers)] = np.where(each > 0, begins[:, 0] + inside * each, index.reshape(-1, 3)[found, 0])


def step_sizes(types: Bytes, index: Int64, first_row: int, n_rows: int, edges: Int64, out: Int64) -> None:
    """How many tokens each step has in ranges of index rows, 0 where steps differ in their fields or lengths.

    Also 0 where that cannot be seen by types: in steps of one field, or with fields without tokens.
    """
    if first_row < 0 or n_rows + 1 > index.size // 3 or edges.size < 2 * len(out):
        raise IndexError("outside of the table")
    pairs, rows = edges.reshape(-1, 2)[: len(out)], index.reshape(-1, 3)
    if len(out) and not (
        first_row <= pairs[:, 0].min() and pairs[:, 1].max() <= n_rows and (np.diff(pairs) >= 0).all()
    ):
        raise IndexError("outside of the table")
    for i, (low, high) in enumerate(pairs.tolist()):
        out[i] = 0
        ordinals, lengths = rows[low:high, 1] >> 8, np.diff(rows[low : high + 1, 0])
        n_each = int(np.count_nonzero(ordinals == ordinals[:1]))
        if n_each < 2 or len(ordinals) % n_each or lengths.min() <= 0:
            continue
        writes = np.stack([rows[low:high, 1] & 0xFF, lengths], axis=1).reshape(-1, n_each, 2)
        if (writes == writes[0]).all() and (np.diff(ordinals.reshape(-1, n_each)) == 0).all():
            out[i] = int(lengths[:n_each].sum())


def gather_steps(
    data: Int64,
    types: Bytes,
    index: Int64,
    first_row: int,
    n_rows: int,
    ids: Int64,
    counts: Int64,
    skips: Int64,
    n_steps: int,
    columns: Sequence[WantedTuple],
    places: Int64 | None = None,
    sizes: Int64 | None = None,
) -> int:
    """Read sequences of steps as decoded columns; the place of a field that is missing or does not fit, or -1.

    Sequence i has ``counts[i]`` steps from number ``ids[i]`` on, which go to places ``skips[i]`` and following of the
    ``n_steps`` that each column has for it; the others are left as they are. A column is (type, is_float, width, values
    or None, present or None, lengths or None). A field of another length than the width does not fit, unless lengths
    are given: then only a longer one does not. A missing field is no fault where ``present`` is given.

    A sequence whose place is 0 or more begins at that token, and its steps are known to be alike, each of its size: the
    compiled half then does not look at the index, which says the same.
    """
    n = len(ids)
    if n_steps < 0 or len(counts) != n or len(skips) != n or first_row < 0 or n_rows + 1 > index.size // 3:
        raise IndexError("sequences that do not add up")
    if n and (skips.min() < 0 or counts.min() < 0 or (counts + skips).max() > n_steps or ids.min() < 0):
        raise IndexError("sequences that do not add up")
    _check_wanted(columns, n * n_steps)
    if first_row >= n_rows:
        return 0 if columns and n * n_steps else -1
    times = np.arange(n_steps)
    is_real = (times >= skips[:, None]) & (times < (skips + counts)[:, None])
    places = np.flatnonzero(is_real)
    steps = (ids[:, None] + times - skips[:, None])[is_real]
    rows, bad = index.reshape(-1, 3), []
    for c, (type_, is_float, width, values, present, lengths) in enumerate(columns):
        keys, found = steps << 8 | type_, np.empty(len(steps), np.int64)
        search(index, 3, 1, first_row, n_rows, keys, found)
        here = found < n_rows
        here[here] = rows[found[here], 1] == keys[here]
        starts = np.where(here, rows[np.minimum(found, n_rows), 0], 0)
        each = np.where(here, rows[np.minimum(found + 1, n_rows), 0] - starts, 0)
        is_wrong = here & ((starts < 0) | (each < 0) | (starts + each > min(len(data), len(types))))
        if lengths is None:
            is_wrong |= here & (each != width)
        elif values is not None:
            is_wrong |= each > width
        if present is None:
            is_wrong |= ~here
        bad += [int(places[i]) * len(columns) + c for i in np.flatnonzero(is_wrong)]
        if bad:
            continue
        if lengths is not None:
            lengths.reshape(-1)[places[here]] = each[here]
        if present is not None:
            present.reshape(-1)[places[here]] = 1
        if values is not None:
            inside = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
            tokens = data[np.repeat(starts, each) + inside]
            numbers = (tokens.view(np.float64) if is_float else tokens).astype(values.dtype)
            values.reshape(-1)[np.repeat(places * width, each) + inside] = numbers
    return min(bad, default=-1)


def gather_pairs(
    data: Int64,
    index: Int64,
    first_row: int,
    n_rows: int,
    ids: Int64,
    low: int,
    high: int,
    lost: Int64,
    cuts: Int64,
    plain: Int64,
    final: Int64,
    n_next: int,
    flags: Int64,
    columns: Sequence[PairTuple],
    terminated: Bytes,
    truncated: Bytes,
) -> int:
    """Read steps and what was seen behind each; the place of the first that is lost or laid out otherwise, or -1.

    A step has the fields ``plain``, as rows of type and place among its tokens, with a last row for the end. Behind
    them lie ``final`` ones if one of the flags is set or the step is one of ``cuts``, and the first ``n_next`` plain
    ones of the next step if not. ``flags`` is place and kind (0 whole, 1 float64, 2 float32) of terminated and of
    truncated, -1 for none. A column is (place, place in the final ones, width, is_float, values); the second place is
    -1 for what is read of the step itself. Ids are from [low, high), without ``lost``; what follows a bad one is
    not read.
    """
    n, (width, final_width) = len(ids), _check_pairs(index, first_row, n_rows, low, high, plain, final, n_next, flags)
    next_width = int(plain.reshape(-1, 2)[n_next, 1])
    if len(terminated) != n or len(truncated) != n:
        raise IndexError("steps that do not add up")
    _check_pair_columns(columns, n, width, next_width, final_width)
    if first_row >= n_rows or not n:
        return 0 if n else -1
    rows, before, after = index.reshape(-1, 3), plain.reshape(-1, 2), final.reshape(-1, 2)
    good = (ids >= low) & (ids < high) & ~np.isin(ids, lost)
    keys, at = np.where(good, ids, low) << 8, np.empty(n, np.int64)
    search(index, 3, 1, first_row, n_rows, keys, at)
    begins = rows[at, 0]
    good &= _are_fields(rows, at, n_rows, keys, begins, before) & (begins >= 0) & (begins + width <= len(data))
    begins = np.where(good, begins, 0)
    terminated[:] = _is_set(data, begins, int(flags[0]), int(flags[1])) & good
    truncated[:] = (_is_set(data, begins, int(flags[2]), int(flags[3])) | np.isin(ids, cuts)) & good
    stops = (terminated | truncated).astype(np.bool_)
    behind, at = begins + width, at + len(before) - 1
    goes_on = _are_fields(rows, at, n_rows, keys + (1 << 8), behind, before[: n_next + 1])
    ends = _are_fields(rows, at, n_rows, keys, behind, after)
    good &= np.where(stops, ends, goes_on) & (behind + np.where(stops, final_width, next_width) <= len(data))
    n_good = int(np.argmin(good)) if not good.all() else n
    for place, final_place, size, is_float, values in columns:
        starts = begins + place if final_place < 0 else behind + np.where(stops, final_place, place)
        tokens = data[starts[:n_good, None] + np.arange(size)]
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = (tokens.view(np.float64) if is_float else tokens).astype(values.dtype)
        values.reshape(n, size)[:n_good] = numbers
    return n_good if n_good < n else -1


def _check_pairs(
    index: Int64,
    first_row: int,
    n_rows: int,
    low: int,
    high: int,
    plain: Int64,
    final: Int64,
    n_next: int,
    flags: Int64,
) -> tuple[int, int]:
    """How many tokens the plain and the final fields have."""
    sizes = plain.size // 2 - 1, final.size // 2 - 1
    if first_row < 0 or n_rows < first_row or n_rows + 1 > index.size // 3:
        raise IndexError("outside of the table")
    if min(sizes) < 1 or not 0 <= n_next <= sizes[0] or flags.size != 4 or not 0 <= low <= high < 2**54:
        raise IndexError("steps that do not add up")
    width, final_width = int(plain.reshape(-1)[-1]), int(final.reshape(-1)[-1])
    if not 0 <= plain.reshape(-1, 2)[n_next, 1] <= width < 2**40 or not 0 <= final_width < 2**40:
        raise IndexError("steps that do not add up")
    if not (0 <= flags[0] < width and -1 <= flags[2] < width):
        raise IndexError("steps that do not add up")
    return width, final_width


def _check_pair_columns(columns: Sequence[PairTuple], n: int, width: int, next_width: int, final_width: int) -> None:
    for place, final_place, size, is_float, values in columns:
        if place < 0 or size < 0 or final_place < -1 or place + size > (width if final_place < 0 else next_width):
            raise IndexError("columns that do not add up")
        if final_place + size > final_width and final_place >= 0:
            raise IndexError("columns that do not add up")
        if values.dtype.kind not in "biuf" or (is_float and values.itemsize < 4):
            raise TypeError("numbers in this machine's byte order are needed, floats of 4 or 8 bytes")
        if values.size != n * size:
            raise IndexError("columns that do not add up")


def _are_fields(rows: Int64, at: Int64, n_rows: int, keys: Int64, begins: Int64, fields: Int64) -> NDArray[np.bool_]:
    """Whether the rows from each on are these fields of a step, each as long as there."""
    n = len(fields) - 1
    is_so: NDArray[np.bool_] = at + n <= n_rows
    at = np.where(is_so, at, 0)
    for j, (type_, place) in enumerate(fields[:n].tolist()):
        is_so &= (rows[np.minimum(at + j, n_rows), 0] == begins + place) & (
            rows[np.minimum(at + j, n_rows), 1] == keys + type_
        )
    is_so &= rows[np.minimum(at + n, n_rows), 0] == begins + fields[n, 1]
    return is_so


def _is_set(data: Int64, begins: Int64, place: int, kind: int) -> NDArray[np.bool_]:
    """Whether flags are not zero, as numbers of their field are compared."""
    if place < 0:
        return np.zeros(len(begins), np.bool_)
    tokens: Array = data[begins + place]
    if kind:
        with np.errstate(over="ignore", under="ignore"):
            tokens = tokens.view(np.float64).astype(np.float64 if kind == 1 else np.float32)
    is_set: NDArray[np.bool_] = tokens != 0
    return is_set


def _check_wanted(columns: Sequence[WantedTuple], n: int) -> None:
    seen = [column[0] for column in columns]
    if len(set(seen)) < len(seen) or not all(0 <= type_ < 256 for type_ in seen):
        raise IndexError("columns that do not add up")
    for _, is_float, width, values, present, lengths in columns:
        if values is not None and (values.dtype.kind not in "biuf" or (is_float and values.itemsize < 4)):
            raise TypeError("numbers in this machine's byte order are needed, floats of 4 or 8 bytes")
        sizes = (values, n * width), (present, n), (lengths, n)
        if width < 0 or any(array is not None and array.size != size for array, size in sizes):
            raise IndexError("columns that do not add up")


def draw(generator: np.random.Generator, low: int, high: int, n: int) -> Int64:
    """``n`` random numbers from ``low`` up to but not including ``high``, those that the generator itself draws."""
    return generator.integers(low, high, n)


def find_nonzero(
    data: Int64, types: Bytes, begin: int, end: int, type_: int, is_float: bool, out: Int64
) -> tuple[int, int]:
    """Positions of the tokens of one type that are not zero, until ``out`` is full: how many, and how far it came."""
    if begin < 0 or end > len(data) or end > len(types):
        raise IndexError("outside of the lanes")
    if begin >= end or not len(out):
        return 0, begin
    values = data[begin:end].view(np.float64) if is_float else data[begin:end]
    found = begin + np.flatnonzero((types[begin:end] == type_) & (values != 0))
    n = min(len(found), len(out))
    out[:n] = found[:n]
    return n, int(found[n - 1]) + 1 if n == len(out) else end
