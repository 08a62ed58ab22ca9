"""An order that survives growth: every row exactly once an epoch, whatever is appended meanwhile.

    rows by id   |=== part: 0..999 ====|== 1000..1299 ==|= 1300.. =|          each has a keyed permutation of its own
                        cursor ^            cursor ^      cursor ^            and a cursor: how much of it is dealt out
                               \\                |            /
    block 7      what is left of all parts, shared out at random: 1,024 ids, less those that are not rows any more

Others make the order a function of how many rows there are, so that an append reshuffles the past: some rows come
twice, some never. Here rows that are new when a block is decided become a part, and what is dealt out stays dealt out.
The *position* is a place in this one order; the number of ranks that read it plays no part here.

A block follows from the parts before it and from what was *seen* when it was decided: which members the dataset had,
how far their ids reached, which of them never grow again, and which of the chosen ids were no rows. Ranks that agree on
what was seen (``ledger``) agree on the order.

Each span of ids is a *member*, known by its ordinal, the upper bits of its ids. Where members may come and go, one that
comes is a new part, and what is left of one that has gone is left out. A member that is finished and dealt out, or has
gone, is remembered as its ordinal only, so that it does not come twice.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolish import kernels, seeds
from poolish.errors import ResumeError
from poolish.files.membership import ID_BITS
from poolish.load.frozen import FrozenRows, Int64, Span, has_all, members_of, ordinal_of

#: Ids in a block. Small, so that what is appended comes soon; large enough that Python's share of a block is small.
BLOCK_ROWS = 1024

#: Blocks that are decided together with one from which they follow: enough that deciding costs a step next to nothing.
MAX_AHEAD = 63

Words = NDArray[np.uint64]

_JUMP, _HALF = 2**ID_BITS, 2 ** (ID_BITS - 1)


#: Ordinals as the edges of their runs: (0, 3, 7, 8) are 0, 1, 2 and 7.
OrdinalRuns = tuple[int, ...]


class ObservedBounds(NamedTuple):
    """What decides a block: the spans of the dataset at that moment, and which chosen ids were no rows.

    ``is_end`` is for a block without ids: whether the epoch ends there, because a step that was to begin found nothing,
    or one that had begun goes out short and the next one looks again. ``finished`` are members that never grow again;
    ``n_rows`` is how many rows there were, where an epoch begins that does not follow growth.
    """

    spans: tuple[Span, ...]
    dead: bytes = b""
    is_end: bool = False
    finished: OrdinalRuns = ()
    n_rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        packed = base64.b64encode(zlib.compress(self.dead)).decode() if self.dead else ""
        edges = [edge for span in self.spans for edge in span]
        members = {"finished": delta_encode(self.finished), "rows": -1 if self.n_rows is None else self.n_rows}
        return {"spans": delta_encode(edges), "dead": packed, "end": self.is_end, **members}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ObservedBounds:
        """What ``to_json`` gave."""
        dead = zlib.decompress(base64.b64decode(value["dead"])) if value["dead"] else b""
        edges = delta_decode(value["spans"])
        spans = tuple(zip(edges[::2], edges[1::2], strict=True))
        # 0.1.0 knew nothing of finished members and of the number of rows.
        finished, n_rows = tuple(delta_decode(value.get("finished", ""))), value.get("rows", -1)
        return cls(spans, dead, bool(value["end"]), finished, None if n_rows < 0 else n_rows)

    @property
    def lasting(self) -> ObservedBounds:
        """What holds for the next block as well, while nothing changes."""
        return ObservedBounds(self.spans, finished=self.finished)


class GenerationCursors(NamedTuple):
    """What is left to deal out: ranges of ids, and how much of each is gone.

    ``ends`` is how far each member is known, in the order of their ordinals; ``done`` are the members of which nothing
    will ever be dealt again.
    """

    ends: tuple[int, ...]
    starts: Int64
    sizes: Int64
    cursors: Int64
    keys: Words
    done: OrdinalRuns = ()

    @property
    def n_left(self) -> int:
        """How many ids are left, dead ones included."""
        return int(self.sizes.sum() - self.cursors.sum())

    @property
    def key(self) -> tuple[Any, ...]:
        """Tells apart what is left in one history from what is left in another, within this process."""
        return self.ends, self.done, self.starts.tobytes(), self.sizes.tobytes(), *self.cursors.tolist()

    def advanced(self, n: int) -> GenerationCursors:
        """What is left of a single part when ``n`` more ids of it are dealt out."""
        cursors = self.cursors + n
        return _only(self._replace(cursors=cursors), cursors < self.sizes)

    def to_text(self) -> str:
        """Three numbers a part; then the members that are done."""
        edges = np.stack([self.starts, self.starts + self.sizes], axis=1).ravel()
        text = delta_encode(edges.tolist()) + ";" + ",".join(map(str, self.cursors.tolist()))
        return f"{text};{delta_encode(self.done)}" if self.done else text


NOTHING = GenerationCursors(
    (), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)
)


class Block(NamedTuple):
    """One block: its ids in their order, and what is left behind it.

    ``is_empty`` when nothing was left to choose from; ``is_fresh`` when it was decided here and now. ``n_gone`` ids
    were left of members that have gone since the block before. ``n_ahead`` blocks behind it were decided with it, and
    saw the same.
    """

    number: int
    before: GenerationCursors
    seen: ObservedBounds
    ids: Int64
    after: GenerationCursors
    is_empty: bool
    is_fresh: bool
    n_gone: int = 0
    n_ahead: int = 0

    def left_behind(self, n_blocks: int) -> GenerationCursors:
        """What is left when ``n_blocks`` of those ahead are over."""
        return self.after.advanced(n_blocks * BLOCK_ROWS)

    def keys_ahead(self, n_blocks: int) -> Iterator[tuple[int, Hashable]]:
        """The numbers of the next blocks, each with the key of what is left before it."""
        *parts, cursor = self.after.key
        for i in range(n_blocks):
            yield self.number + 1 + i, (*parts, cursor + i * BLOCK_ROWS)


class Order:
    """The order of one epoch.

    >>> from poolish.load.frozen import snapshot_rows
    >>> rows = list("abcdef")
    >>> order = Order(seed=7, epoch=0)
    >>> block = order.decide(0, NOTHING, snapshot_rows(rows))
    >>> block.ids
    array([5, 2, 0, 4, 1, 3])
    >>> rows += list("gh")  # while the epoch runs
    >>> order.decide(1, block.after, snapshot_rows(rows)).ids
    array([7, 6])
    """

    def __init__(self, seed: int, epoch: int, *, shuffle: bool = True, follow: bool = True) -> None:
        self.seed, self.epoch = seed, epoch
        self.shuffle, self.follow = shuffle, follow
        self._key = seeds.key(seed, "load", "epoch", epoch)

    def look(self, before: GenerationCursors, frozen: FrozenRows) -> ObservedBounds:
        """What there is now; where growth is not followed, what there was when the epoch began."""
        known, has_begun = _by_ordinal(before.ends), bool(before.ends or before.done)
        spans, members, done = frozen.spans(), members_of(frozen), _listed(before.done)
        if members is None and has_begun and [ordinal_of(end) for _, end in spans] != list(known):
            raise ResumeError(f"the dataset has {len(spans)} parts, this epoch began with {len(before.ends)}")
        spans = [span for span in spans if ordinal_of(span[0]) not in done]
        if has_begun and not self.follow:
            ends = [(first, known.get(ordinal_of(first))) for first, _ in spans]
            spans = [(min(first, end), end) for first, end in ends if end is not None]
        ordinals = {ordinal_of(first) for first, _ in spans}
        finished = runs_of(ordinals & set(members.finished)) if members is not None else ()
        n_rows = None if has_begun or self.follow else len(frozen)
        return ObservedBounds(tuple(spans), finished=finished, n_rows=n_rows)

    def decide(
        self,
        number: int,
        before: GenerationCursors,
        frozen: FrozenRows | None,
        seen: ObservedBounds | None = None,
        *,
        is_end: bool = True,
    ) -> Block:
        """Block ``number`` of what is left, by what was ``seen``: in ``frozen``, now, unless it is given."""
        is_fresh = seen is None
        if seen is None:
            assert frozen is not None
            seen = self.look(before, frozen)
        parts, n_gone = before, 0
        if tuple(end for _, end in seen.spans) != before.ends:
            present = _without_gone(before, seen.spans)
            parts, n_gone = self._grown(present, seen.spans), before.n_left - present.n_left
        ids, after = self._draw(number, parts)
        if is_fresh:
            alive = frozen.alive(ids) if frozen is not None and len(ids) else None
            dead = b"" if alive is None or alive.all() else np.packbits(~alive).tobytes()
            seen = seen._replace(dead=dead, is_end=is_end and not len(ids))
        is_empty = not len(ids)
        if seen.dead:
            ids = ids[np.unpackbits(np.frombuffer(seen.dead, np.uint8), count=len(ids)) == 0]
        return Block(number, before, seen, ids, _without_finished(after, seen.finished), is_empty, is_fresh, n_gone)

    def _grown(self, parts: GenerationCursors, spans: tuple[Span, ...]) -> GenerationCursors:
        """The parts with what is new: a part of its own, or more of the last one if nothing of that is dealt out."""
        known, sizes, new = _by_ordinal(parts.ends), parts.sizes, []
        highest = []
        for first, end in spans:
            begin = max(known.get(ordinal_of(first), first), first)  # what came and went unseen is no row
            highest.append(max(end, known.get(ordinal_of(first), first)))
            if end <= begin:
                continue
            last = np.flatnonzero(parts.starts + parts.sizes == begin)
            if len(last) and (parts.cursors[last[-1]] == 0 or not self.shuffle):
                sizes = sizes.copy()
                sizes[last[-1]] += end - begin
            else:
                new.append((begin, end - begin))
        grown = parts._replace(ends=tuple(highest), sizes=sizes)
        return self._with_new(grown, new) if new else grown

    def _with_new(self, parts: GenerationCursors, new: list[tuple[int, int]]) -> GenerationCursors:
        starts, sizes = np.array(new, np.int64).T
        keys = np.array([self.part_key(start) for start, _ in new], np.uint64)
        return parts._replace(
            starts=np.concatenate([parts.starts, starts]),
            sizes=np.concatenate([parts.sizes, sizes]),
            cursors=np.concatenate([parts.cursors, np.zeros(len(new), np.int64)]),
            keys=np.concatenate([parts.keys, keys]),
        )

    def part_key(self, start: int) -> int:
        """The key of the permutation of the part that begins at ``start``."""
        return seeds.key(self.seed, "load", "epoch", self.epoch, "part", start) if self.shuffle else 0

    def _draw(self, number: int, parts: GenerationCursors) -> tuple[Int64, GenerationCursors]:
        n_parts = len(parts.starts)
        n = min(BLOCK_ROWS, parts.n_left)
        ids, cursors = np.empty(n, np.int64), parts.cursors.copy()
        if n and self.shuffle:
            scratch = np.empty(2 * (n + n_parts), np.int64)
            key = kernels.mix(self._key ^ number)
            kernels.deal(parts.starts, parts.sizes, cursors, parts.keys, key, ids, scratch)
        elif n:
            _in_order(parts, cursors, ids)
        dealt = parts._replace(cursors=cursors)
        return ids, _only(dealt, cursors < parts.sizes)

    def n_ahead(self, block: Block, frozen: FrozenRows) -> int:
        """How many blocks follow from this one alone: where nothing can come, and nothing has gone, before their turn.

        What goes later is missed when it is read, as the rows of any block that was decided are.
        """
        parts = block.after
        if self.follow or block.is_empty or len(parts.starts) != 1 or members_of(frozen) is not None:
            return 0
        start, size = int(parts.starts[0]), int(parts.sizes[0])
        if not has_all(frozen, start, start + size):
            return 0
        return min(MAX_AHEAD, -(-(size - int(parts.cursors[0])) // BLOCK_ROWS))

    def undealt(self, parts: GenerationCursors) -> Iterator[Int64]:
        """The ids that are left, a chunk at a time."""
        for start, size, cursor, key in zip(parts.starts, parts.sizes, parts.cursors, parts.keys, strict=True):
            ids = seeds.KeyedPermutation(int(size), int(key))
            for first in range(int(cursor), int(size), 65_536):
                chunk = slice(first, first + 65_536)
                yield start + (ids[chunk] if self.shuffle else np.arange(*chunk.indices(int(size))))

    def parts_from(self, text: str, ends: tuple[int, ...]) -> GenerationCursors:
        """What ``Parts.to_text`` wrote."""
        first, _, rest = text.partition(";")
        second, _, third = rest.partition(";")
        try:
            edges = np.array(delta_decode(first), np.int64).reshape(-1, 2)
            cursors = np.array(second.split(",") if second else [], np.int64)
            done = tuple(delta_decode(third))
        except (ValueError, OverflowError):
            raise ResumeError(f"these are no parts of an order: {text[:60]!r}") from None
        starts, sizes = edges[:, 0].copy(), edges[:, 1] - edges[:, 0]
        if len(cursors) != len(sizes) or (sizes < 1).any() or (cursors < 0).any() or (cursors >= sizes).any():
            raise ResumeError(f"the state's parts make no sense: {text[:60]!r}; it was changed or cut")
        keys = np.array([self.part_key(start) for start in starts.tolist()], np.uint64)
        return GenerationCursors(ends, starts, sizes, cursors, keys, done)


class BlocksAhead:
    """The ids of the ``n_ahead`` blocks behind a block: computed when they are asked for, a rank's share alone."""

    def __init__(self, order: Order, block: Block) -> None:
        parts = block.after
        self._order, self._block = order, block
        self._start, self._size, self._cursor = int(parts.starts[0]), int(parts.sizes[0]), int(parts.cursors[0])
        self._key = int(parts.keys[0])
        self.n_ids = min(block.n_ahead * BLOCK_ROWS, self._size - self._cursor)

    def ids(self, first: int, stop: int, step: int) -> Int64:
        """Some of them, numbered from 0."""
        ids = np.arange(self._cursor + first, self._cursor + stop, step, dtype=np.int64)
        if self._order.shuffle:
            kernels.permute(ids, self._size, self._key, ids)
        return ids + self._start if self._start else ids

    def next_block(self, offset: int) -> tuple[int, GenerationCursors]:
        """The number of the block behind the one in which the ``offset``-th ends, and what is left there."""
        n_begun = -(-offset // BLOCK_ROWS)
        return self._block.number + n_begun + 1, self._block.left_behind(n_begun)

    def at(self, offset: int) -> tuple[Block, int]:
        """The block in which the ``offset``-th ends, and how many ids of it there are up to there."""
        i = (offset - 1) // BLOCK_ROWS
        number, before, seen = self._block.number + 1 + i, self._block.left_behind(i), self._block.seen.lasting
        return self._order.decide(number, before, None, seen), offset - i * BLOCK_ROWS


def runs_of(ordinals: Iterable[int]) -> OrdinalRuns:
    """Ordinals as the edges of their runs.

    >>> runs_of([7, 0, 2, 1])
    (0, 3, 7, 8)
    """
    edges: list[int] = []
    for ordinal in sorted(ordinals):
        if edges and edges[-1] == ordinal:
            edges[-1] += 1
        else:
            edges += [ordinal, ordinal + 1]
    return tuple(edges)


def _listed(runs: OrdinalRuns) -> set[int]:
    return {ordinal for first, end in zip(runs[::2], runs[1::2], strict=True) for ordinal in range(first, end)}


def _by_ordinal(ends: tuple[int, ...]) -> dict[int, int]:
    return {ordinal_of(end): end for end in ends}


def _without_gone(parts: GenerationCursors, spans: tuple[Span, ...]) -> GenerationCursors:
    """The parts without those of members that have no span any more; these are done."""
    gone = _by_ordinal(parts.ends).keys() - {ordinal_of(first) for first, _ in spans}
    return _done_with(parts, gone) if gone else parts


def _without_finished(parts: GenerationCursors, finished: OrdinalRuns) -> GenerationCursors:
    """The parts after members that never grow again and are dealt out are done."""
    over = _listed(finished) - set((parts.starts >> ID_BITS).tolist()) if finished else set()
    return _done_with(parts, over) if over else parts


def _done_with(parts: GenerationCursors, members: set[int]) -> GenerationCursors:
    kept = _only(parts, ~np.isin(parts.starts >> ID_BITS, list(members)))
    ends = tuple(end for end in parts.ends if ordinal_of(end) not in members)
    return kept._replace(ends=ends, done=runs_of(_listed(parts.done) | members))


def _only(parts: GenerationCursors, is_kept: NDArray[np.bool_]) -> GenerationCursors:
    if is_kept.all():
        return parts
    kept = {name: getattr(parts, name)[is_kept] for name in ("starts", "sizes", "cursors", "keys")}
    return parts._replace(**kept)


def delta_encode(numbers: Sequence[int]) -> str:
    """Ids that mostly grow, as what each adds to the one before; ids of a composite jump by 2**48, encoded apart.

    >>> delta_encode([0, 50, 2**48, 2**48 + 60])
    '0,50,1:-50,60'
    """
    encoded, last = [], 0
    for number in numbers:
        jumps, rest = divmod(number - last + _HALF, _JUMP)
        encoded.append(f"{jumps}:{rest - _HALF}" if jumps else str(rest - _HALF))
        last = number
    return ",".join(encoded)


def delta_decode(text: str) -> list[int]:
    """Return the numbers that ``delta_encode`` encoded.

    >>> delta_decode('0,50,1:-50,60') == [0, 50, 2**48, 2**48 + 60]
    True
    """
    numbers, last = [], 0
    for encoded in text.split(",") if text else ():
        jumps, _, rest = encoded.rpartition(":")
        last += int(jumps or 0) * _JUMP + int(rest)
        numbers.append(last)
    return numbers


def _in_order(parts: GenerationCursors, cursors: Int64, ids: Int64) -> None:
    filled = 0
    for i in range(len(parts.starts)):
        n = min(len(ids) - filled, int(parts.sizes[i] - cursors[i]))
        first = parts.starts[i] + cursors[i]
        ids[filled : filled + n] = np.arange(first, first + n)
        cursors[i] += n
        filled += n
