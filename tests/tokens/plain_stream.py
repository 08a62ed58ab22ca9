"""A stream as a plain list, and everything that a StreamStore answers, counted out the slow way.

A list of field-writes is all there is. Steps, positions, episodes and the starts of windows are found by looking at
each token, so that there is nothing to be right or wrong about. ``facts`` asks a store the same questions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from poolish import StreamStore

Shape = tuple[int | None, ...]


class Write(NamedTuple):
    """One field-write: the step's number, the field's type id, and its tokens."""

    step: int
    type: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class PlainField:
    """A field: ``shape`` is () for one number, None as long as nobody has decided."""

    name: str
    dtype: str = "float64"
    shape: Shape | None = ()

    def tokens(self, numbers: Iterable[Any]) -> tuple[int, ...]:
        """Numbers as tokens: the bits of float64, or the whole number."""
        if self.dtype.startswith("float"):
            return tuple(np.array([float(number) for number in numbers], np.float64).view(np.int64).tolist())
        return tuple(int(number) for number in numbers)

    def numbers(self, tokens: Iterable[int]) -> np.ndarray:
        """Tokens as the field's own numbers, in a row."""
        raw = np.array(list(tokens), np.int64)
        return (raw.view(np.float64) if self.dtype.startswith("float") else raw).astype(self.dtype)

    def value(self, tokens: Iterable[int]) -> Any:
        """What reading one field-write gives."""
        numbers = self.numbers(tokens)
        if self.shape == ():
            return numbers[0].item()
        return numbers.reshape([-1 if n is None else n for n in self.shape or (None,)])


class PlainStream:
    """All field-writes that are kept, and how many tokens have left before them."""

    def __init__(self, fields: Iterable[PlainField], max_tokens: int | None = None) -> None:
        self.fields = list(fields)
        self.max_tokens = max_tokens
        self.writes: list[Write] = []
        self.first = 0
        self.broken: set[int] = set()  # steps behind which no episode goes on
        self.opened_behind = -1  # the last step when a new writer came, which has not appended yet

    def copy(self) -> PlainStream:
        other = copy.copy(self)
        other.fields, other.writes, other.broken = list(self.fields), list(self.writes), set(self.broken)
        return other

    def open_again(self, *, continue_episode: bool = False) -> None:
        """Another writer goes on from here."""
        self.opened_behind = -1 if continue_episode else self.last[0]

    def append(self, writes: Iterable[Write]) -> None:
        new = list(writes)
        if new and self.opened_behind >= 0:
            self.broken.add(self.opened_behind)
        self.opened_behind = -1 if new else self.opened_behind
        self.writes += new
        while self.max_tokens is not None and len(self.tokens) > self.max_tokens:
            _, gone = self.steps[0]
            self.writes = self.writes[len(gone) :]
            self.first += sum(len(write.tokens) for write in gone)

    @property
    def last(self) -> tuple[int, int]:
        """The step and the type behind which the next field-write has to lie."""
        return self.writes[-1][:2] if self.writes else (-1, -1)

    @property
    def tokens(self) -> list[int]:
        return [token for write in self.writes for token in write.tokens]

    @property
    def types(self) -> list[int]:
        return [write.type for write in self.writes for _ in write.tokens]

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    @property
    def steps(self) -> list[tuple[int, list[Write]]]:
        return [(number, list(writes)) for number, writes in groupby(self.writes, lambda write: write.step)]

    @property
    def step_begins(self) -> list[int]:
        """The position at which each step begins."""
        lengths = [sum(len(write.tokens) for write in writes) for _, writes in self.steps]
        return [self.first + sum(lengths[:i]) for i in range(len(lengths))]

    @property
    def step_of(self) -> dict[int, int]:
        """The step's number at each position."""
        numbers = [write.step for write in self.writes for _ in write.tokens]
        return dict(enumerate(numbers, self.first))

    def values(self) -> list[tuple[int, dict[str, Any]]]:
        """The steps as a user sees them: number and fields."""
        return [
            (number, {self.fields[w.type].name: self.fields[w.type].value(w.tokens) for w in writes})
            for number, writes in self.steps
        ]

    def episodes(self, within: str | None) -> list[tuple[int, int]]:
        """Where each episode begins and ends; without a field, all of the stream is one."""
        types = [type_ for type_, field in enumerate(self.fields) if field.name == within]
        ends = [*self.step_begins[1:], self.end]
        is_last = [
            any(number != 0 for w in writes if w.type in types for number in self.fields[w.type].numbers(w.tokens))
            or (within is not None and step in self.broken)
            for step, writes in self.steps
        ]
        cuts = [end for end, last in zip(ends, is_last, strict=False) if last]
        edges = [self.first, *cuts, *([self.end] if cuts[-1:] != [self.end] else [])]
        return [(begin, end) for begin, end in pairwise(edges) if end > begin]

    def starts(self, width: int, start: str = "token", within: str | None = None) -> list[int]:
        """Every position where a window may begin, in order; one for each step, also for one that has no tokens."""
        episodes = self.episodes(within)
        candidates = range(self.first, self.end) if start == "token" else self.step_begins
        return [p for p in candidates if any(begin <= p and p + width <= end for begin, end in episodes)]

    def coverage(self, width: int, start: str, within: str | None) -> tuple[int, int, int]:
        """Windows, episodes, and episodes that are too short for one."""
        episodes = self.episodes(within) if within is not None else []
        n_short = sum(end - begin < width for begin, end in episodes)
        return len(self.starts(width, start, within)), len(episodes), n_short

    @property
    def breaks(self) -> list[int]:
        """The steps that come right behind a break."""
        numbers = [number for number, _ in self.steps]
        return [number for before, number in pairwise(numbers) if before in self.broken]

    def facts(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "end": self.end,
            "length": len(self.tokens),
            "values": self.tokens,
            "types": self.types,
            "n_steps": len(self.steps),
            "breaks": self.breaks,
            "steps": [(number, alike(fields)) for number, fields in self.values()],
        }


def facts(store: StreamStore) -> dict[str, Any]:
    """What a store says of itself, to be compared with what a plain stream says."""
    batch = store[store.first :]
    return {
        "first": store.first,
        "end": store.end,
        "length": len(store),
        "values": batch["values"].tolist(),
        "types": batch["types"].tolist(),
        "n_steps": store.n_steps,
        "breaks": [step.number for step in store.steps_at(store._view().breaks())] if store.n_steps else [],
        "steps": [(step.number, alike(step)) for step in store],
    }


def alike(value: Any) -> Any:
    """A value as something that is equal to another exactly if type, shape and every bit are."""
    if isinstance(value, dict):
        return {name: alike(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return type(value).__name__, np.float64(value).tobytes() if isinstance(value, float) else value


def filled(
    store: StreamStore, plain: PlainStream, writes: Iterable[Write], look: Callable[[], Any] | None = None
) -> None:
    """Append field-writes to both, a step at a time; ``look`` is called after each."""
    for number, step in groupby(writes, lambda write: write.step):
        parts = list(step)
        names = [plain.fields[write.type].name for write in parts]
        store.append(number, names, [plain.fields[write.type].value(write.tokens) for write in parts])
        plain.append(parts)
        if look is not None:
            look()
