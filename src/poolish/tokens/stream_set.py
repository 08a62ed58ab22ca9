"""StreamSet: the streams of several recorders, read as one.

id of a step     ordinal of its member << 48  |  how many steps its stream recorded before it
id of a window   ordinal of its member << 48  |  the position of its first token
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish.arguments import check_whole
from poolish.errors import ConfigError, PoolishError
from poolish.files import checksum_hex
from poolish.files.membership import ID_BITS
from poolish.health import Health, Problem
from poolish.printable import printable
from poolish.seeds import generator
from poolish.tokens.drawing import (
    Choice,
    Drawable,
    assembled,
    draw_by_recency,
    draw_by_weight,
    draw_uniformly,
    places_of,
)
from poolish.tokens.member_windows import MemberWindows
from poolish.tokens.members import (
    RECORD,
    FolderPattern,
    ListedOrdinals,
    Member,
    Membership,
    Present,
    RecordedOrdinals,
    Sources,
    StreamList,
)
from poolish.tokens.steps import as_output, check_output, each
from poolish.tokens.store import StreamStore

Int64 = NDArray[np.int64]
Batch = dict[str, Any]
#: How members share a draw: "uniform", "recency", a weight for each by name, or a function of the members.
By = str | Mapping[str, float] | Callable[[Sequence[Member]], Sequence[float]]

_LOW = (1 << ID_BITS) - 1

#: How often a batch is drawn again whose steps left while it was read.
_ATTEMPTS = 5


class StreamSet:
    """Streams that several processes record, read as one while they appear, grow, are trimmed and go.

    ``streams`` is a pattern of directories, each the stream of one recorder, or a list of streams and paths. Every read
    sees what was appended before it, and members that are up to 0.2 s old; a directory in which there is no stream yet
    is waited for. What a killed recorder had appended stays.

    Each member has an *ordinal* for ever. It is the upper part of the ids of its steps, so ids stay valid whatever
    comes and goes. Ordinals are kept in ``record``: beside the directories of a pattern in ``members.jsonl``, for a
    list in memory, where they follow the list, unless a path is given.

    >>> for name in ("actor-0", "actor-1"):
    ...     with StreamStore(folder / name, fields={"obs": "float32", "done": "bool"}) as store:
    ...         for step in range(3):
    ...             store.append(step, {"obs": step / 2, "done": step == 2})
    >>> streams = StreamSet(folder / "actor-*")
    >>> streams
    <StreamSet of 2 streams, 6 steps, at ...actor-*>
    >>> batch = streams.sample(2, n_steps=2, within="done", rng=np.random.default_rng(0))
    >>> batch["obs"].tolist(), (batch["id"] >> 48).tolist()
    ([[0.5, 1.0], [0.0, 0.5]], [[1, 1], [1, 1]])
    >>> streams.fields_at(batch["id"])["obs"].tolist()
    [[0.5, 1.0], [0.0, 0.5]]
    """

    def __init__(
        self,
        streams: str | os.PathLike[str] | Sequence[StreamStore | str | os.PathLike[str]],
        *,
        record: str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> None:
        """``seed`` is for draws without ``rng``."""
        self._given = streams, record, seed
        self._rng = generator(seed, "sample")
        path = None if record is None else Path(record)
        self._sources: Sources
        if isinstance(streams, (str, os.PathLike)):
            pattern = FolderPattern(streams)
            self._sources, path = pattern, path or pattern.root / RECORD
            if not pattern.root.is_dir():
                raise ConfigError(f"{pattern.root}: no such directory; make it before the recorders start")
        else:
            self._sources = StreamList(streams)
        ordinals = RecordedOrdinals(path) if path is not None else ListedOrdinals(_listed(self._sources))
        self._membership = Membership(self._sources, ordinals)
        self._is_closed = False
        self.refresh()

    def add(self, stream: StreamStore | str | os.PathLike[str]) -> int | None:
        """Read one more stream with those of a list; its ordinal, or None while it is not there yet."""
        if not isinstance(self._sources, StreamList):
            raise ConfigError(f"{self!r}: finds its members by a pattern; record into a directory that matches it")
        if isinstance(stream, StreamStore) and any(stream.uuid == member.uuid for member in self.members):
            raise ConfigError(f"{stream!r}: is read already; pass each stream once")
        name = self._sources.add(stream)
        self.refresh()
        return next((member.ordinal for member in self.members if member.name == name), None)

    # Members ------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[Member, ...]:
        """Those there are now, by ordinal."""
        return tuple(self.present().members.values())

    @property
    def uuid(self) -> str:
        """What identifies the numbering and what is read by it; the same in every process that reads with the record.

        Of a record without members it is empty.
        """
        uuid = self._membership.ordinals.uuid
        tail = self._sources.tail if isinstance(self._sources, FolderPattern) else ""
        return checksum_hex(f"{uuid}/{tail}".encode()) if uuid else ""

    @property
    def has_record(self) -> bool:
        """Whether ordinals are recorded; else they follow the list."""
        return isinstance(self._membership.ordinals, RecordedOrdinals)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may append: to all but streams without a path."""
        return self._sources.is_shared

    def refresh(self) -> int:
        """Look for members that came or went, and for what was appended since; how many steps are new."""
        before = self._ends()
        self._look(is_due=True)
        return sum(end - before.get(ordinal, 0) for ordinal, end in self._ends().items())

    def _ends(self) -> dict[int, int]:
        return {ordinal: member.store.step_span()[1] for ordinal, member in self._membership.present.members.items()}

    def present(self) -> Present:
        """The members by ordinal, with all that they have appended, and how many ordinals were given out."""
        self._look()
        return self._membership.present

    def _look(self, *, is_due: bool = False) -> None:
        if self._is_closed:
            raise ConfigError("this StreamSet is closed; make another")
        self._membership.look(is_due=is_due)
        self._membership.refresh_members()

    def __len__(self) -> int:
        """How many steps all members hold together."""
        return sum(member.n_steps for member in self.present().members.values())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    # Random reads -------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        width: int | None = None,
        *,
        n_steps: int | None = None,
        by: By = "uniform",
        half_life: float = 10_000,
        rng: np.random.Generator | None = None,
        output: str | None = None,
        device: Any = None,
        **how: Any,
    ) -> Batch:
        """``n`` random sequences of ``n_steps`` steps, or windows of ``width`` tokens, drawn with replacement.

        What is in the batch, and the other arguments (``within``, ``fields``, ``short``, ...), are as for
        ``StreamStore.sample``; ``id`` is that of each step, or of each window.

        ``by="uniform"`` gives each sequence of all members the same chance. ``by="recency"`` halves it with each
        ``half_life`` newer ones of the same member. ``by={"actor-0": 3, "actor-1": 1}`` are the shares of the members,
        ``by=function`` computes them from the list of members. Shares of members without a sequence go to the others;
        a member without a share is an error, so that a new one is not left out by mistake.
        """
        if (width is None) == (n_steps is None):
            raise ConfigError("sample takes width=, in tokens, or n_steps=, in steps; give one of them")
        if n_steps is None:
            find = lambda store: store._windows_to_draw(width, **how)  # noqa: E731
        else:
            find = lambda store: store._sequences_to_draw(n_steps, **how)  # noqa: E731
        return self._draw(check_whole(n, "n", least=0), find, by, half_life, rng, output, device)

    def transitions(
        self,
        n: int,
        *,
        by: By = "uniform",
        half_life: float = 10_000,
        rng: np.random.Generator | None = None,
        output: str | None = None,
        device: Any = None,
        **how: Any,
    ) -> Batch:
        """``n`` random transitions, as ``StreamStore.transitions`` gives them; ``by`` is as in ``sample``."""
        chosen = self._generator(rng)
        find = lambda store: store._transitions_to_draw(chosen, **how)  # noqa: E731
        return self._draw(check_whole(n, "n", least=0), find, by, half_life, chosen, output, device)

    def _draw(
        self,
        n: int,
        find: Callable[[StreamStore], Drawable],
        by: By,
        half_life: float,
        rng: np.random.Generator | None,
        output: str | None,
        device: Any,
    ) -> Batch:
        check_output(output, device)
        chosen = self._generator(rng)
        for _ in range(_ATTEMPTS):
            members = self.members
            found = [find(member.store) for member in members]
            try:
                return as_output(self._drawn(n, chosen, found, by, half_life, members), output, device)
            except IndexError as error:  # a recorder that trims its stream took a step between the draw and the read
                trimmed = error
        raise trimmed

    def _drawn(
        self,
        n: int,
        rng: np.random.Generator,
        found: list[Drawable],
        by: By,
        half_life: float,
        members: Sequence[Member],
    ) -> Batch:
        counts = np.array([each.n for each in found], np.int64)
        if not counts.any():
            if len(found) == 1:
                raise found[0].nothing()
            raise ConfigError(f"{self!r}: nothing to draw in any member; record more, or ask for less")
        choice = _choice(rng, counts, n, by, half_life, members)
        parts = []
        for owner, places in places_of(choice.owners):
            part = found[owner].read(choice.numbers[places])
            part["id"] = _outer(members[owner].ordinal, part["id"])
            parts.append((places, part))
        return self._whole(parts or [(slice(None), self._empty(found))], n)

    @staticmethod
    def _empty(found: list[Drawable]) -> Batch:
        return found[0].read(np.empty(0, np.int64))

    @staticmethod
    def _whole(parts: Sequence[tuple[Int64 | slice, Batch]], n: int) -> Batch:
        if len(parts) == 1:
            return parts[0][1]
        whole: Batch = assembled(parts, n)
        return whole

    # Reads by id --------------------------------------------------------------------------------------------------

    def fields_at(
        self,
        ids: ArrayLike,
        fields: Sequence[str] | None = None,
        *,
        output: str | None = None,
        device: Any = None,
        **how: Any,
    ) -> Batch:
        """The fields of steps, by ids in an array of any shape: {"obs": float32[*ids.shape, 4], ...}."""
        asked = _ids(ids)
        batch = self._read(asked.reshape(-1), lambda store, own: store.fields_at(own, fields, **how))
        return as_output(each(lambda a: a.reshape(*asked.shape, *a.shape[1:]), batch), output, device)

    def sequences_at(
        self, ids: ArrayLike, n_steps: int, *, output: str | None = None, device: Any = None, **how: Any
    ) -> Batch:
        """The sequences that begin at these steps; see ``StreamStore.sequences_at``."""
        return as_output(
            self._read(_ids(ids), lambda store, own: store.sequences_at(own, n_steps, **how)), output, device
        )

    def transitions_at(
        self,
        ids: ArrayLike,
        *,
        rng: np.random.Generator | None = None,
        output: str | None = None,
        device: Any = None,
        **how: Any,
    ) -> Batch:
        """The transitions of these steps; see ``StreamStore.transitions_at``."""
        chosen = self._generator(rng)
        batch = self._read(_ids(ids), lambda store, own: store.transitions_at(own, rng=chosen, **how))
        return as_output(batch, output, device)

    def windows(self, ids: ArrayLike, width: int, *, types: bool = True) -> Batch:
        """``width`` consecutive tokens from each position; ids as ``sample(n, width)`` gives them."""
        return self._read(_ids(ids), lambda store, own: store.windows(own, width, types=types))

    def episode_bounds(self, ids: ArrayLike, within: str | Sequence[str] | None = None) -> tuple[Int64, Int64]:
        """The id of the first step of the episode that each step belongs to, and of the one behind its last."""

        def read(store: StreamStore, own: Int64) -> Batch:
            begins, ends = store.episode_bounds(own, within)
            return {"begin": begins, "end": ends}

        asked = _ids(ids)
        found = self._read(asked, read)
        shift = asked & ~_LOW
        return found["begin"] | shift, found["end"] | shift

    def _read(self, ids: Int64, read: Callable[[StreamStore, Int64], Batch]) -> Batch:
        """One batch of what each member reads."""
        members, owners = self.present().members, ids >> ID_BITS
        if not ids.size:
            if not members:
                raise ConfigError(f"{self!r}: no member whose fields could be read; wait for one")
            return read(next(iter(members.values())).store, ids)
        parts = []
        for owner, places in places_of(owners):
            if owner not in members:
                raise self._absent(owner, int(ids[places][0]))
            try:
                part = read(members[owner].store, ids[places] & _LOW)
            except IndexError as error:
                error.add_note(f"in {members[owner]} of a StreamSet, ordinal {owner}")
                raise
            if "id" in part:
                part["id"] = _outer(owner, part["id"])
            parts.append((places, part))
        return self._whole(parts, len(ids))

    def _absent(self, ordinal: int, id_: int) -> IndexError:
        if 0 <= ordinal < self._membership.present.n_given:
            return IndexError(f"id {id_}: member {ordinal} of this StreamSet has left it, or is not in it")
        return IndexError(
            f"id {id_}: of member {ordinal}, and this StreamSet has {self._membership.present.n_given}; refresh(), or "
            "read with the record that the id was given out by"
        )

    # Around -------------------------------------------------------------------------------------------------------

    def as_dataset(self, width: int, stride: int | None = None, within: str | None = None) -> MemberWindows:
        """Windows of all members as a dataset that grows with them, for a ``Loader``; see ``StreamStore.as_dataset``.

        The set itself is a dataset of steps.
        """
        return MemberWindows(self, width, stride, within)

    def health(self) -> Health:
        """Whether each member can be read; which directories have no stream yet. A corrupt member is a problem."""
        try:
            members = self.members
        except (PoolishError, OSError) as error:
            return Health((Problem(str(error), None, "; ".join(getattr(error, "__notes__", [])) or "see there"),))
        found = Health.joined({member.name: member.store.health() for member in members})
        figures = {"members": len(members), "steps": sum(member.n_steps for member in members)}
        return Health(found.problems, {**figures, "waiting": list(self._membership.present.waiting)})

    def close(self) -> None:
        """Close the streams that the set has opened; those that were passed open stay open."""
        self._is_closed = True
        self._membership.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._is_closed:
            return "<StreamSet, closed>"
        members = self._membership.present.members.values()
        n_steps = sum(member.n_steps for member in members)
        waiting = f", waiting for {len(self._membership.present.waiting)}" if self._membership.present.waiting else ""
        where = f", at {self._sources}" if isinstance(self._sources, FolderPattern) else ""
        return printable(f"<StreamSet of {len(members)} streams, {n_steps:,} steps{waiting}{where}>")

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, self._given

    def _generator(self, rng: Any) -> np.random.Generator:
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise ConfigError(f"rng={rng!r}: give a np.random.Generator, such as np.random.default_rng(0)")
        return self._rng if rng is None else rng


def _reopened(streams: Any, record: Any, seed: int) -> StreamSet:
    """What a pickled set becomes in another process: one of the same members."""
    return StreamSet(streams, record=record, seed=seed)


def _listed(sources: Sources) -> StreamList:
    assert isinstance(sources, StreamList)
    return sources


def _ids(ids: ArrayLike) -> Int64:
    asked = np.asarray(ids)
    if asked.dtype.kind not in "iu" and asked.size:
        raise IndexError(f"ids are whole numbers, got {asked.dtype}")
    return np.ascontiguousarray(asked, np.int64).reshape(asked.shape)


def _outer(ordinal: int, ids: Int64) -> Int64:
    """Ids in the set of ids in a member; -1 stands for no step, and stays."""
    return np.where(ids < 0, ids, ids | (ordinal << ID_BITS))


def _choice(
    rng: np.random.Generator, counts: Int64, n: int, by: By, half_life: float, members: Sequence[Member]
) -> Choice:
    """For each place of a batch the member it is drawn from, by its place among them, and the number there."""
    if isinstance(by, str):
        if by == "uniform":
            return draw_uniformly(rng, counts, n)
        if by != "recency":
            raise ConfigError(
                f"by={by!r}: 'uniform', 'recency', a dict of weights by member, or a function of the members"
            )
        if not half_life > 0:
            raise ConfigError(f"half_life={half_life!r}: how many newer ones halve the chance, a number above 0")
        return draw_by_recency(rng, counts, n, half_life)
    weights = _weights(by, members)
    if not (weights * (counts > 0)).sum() > 0:
        raise ConfigError("by: no member with a weight above 0 has anything to draw; check the weights, or record more")
    return draw_by_weight(rng, counts, n, weights)


def _weights(by: Any, members: Sequence[Member]) -> NDArray[np.float64]:
    if isinstance(by, Mapping):
        missing = [member.name for member in members if member.name not in by]
        if missing:
            raise ConfigError(
                f"by: no weight for member {missing[0]!r}; give it one, 0 to leave it out, or pass a function of the "
                "members"
            )
        given: Any = [by[member.name] for member in members]
    elif callable(by):
        given = by(members)
    else:
        raise ConfigError(f"by={by!r}: 'uniform', 'recency', a dict of weights by member, or a function of the members")
    weights = np.asarray(given, np.float64)
    if weights.shape != (len(members),) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ConfigError(f"by: {len(members)} finite weights of 0 or more are needed, one a member, got {given!r}")
    return weights
