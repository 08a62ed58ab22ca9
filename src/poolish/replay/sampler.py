"""TransitionSampler: transitions of one stream or several, drawn uniformly or by priority.

    streams (recorded by any processes) --refresh--> ids that are transitions --draw--> transitions_at --> one batch

The streams are those of a ``StreamSet``, and so are the ids: the ordinal of the stream in the upper bits, the id of the
step below. They stay valid when streams come and go.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish import kernels
from poolish.arguments import check_whole
from poolish.errors import ConfigError, ResumeError
from poolish.files.membership import ID_BITS
from poolish.priorities import check_exponents
from poolish.replay.pacing import RateLimiter
from poolish.replay.stream_priorities import StreamPriorities
from poolish.seeds import generator
from poolish.tokens.drawing import assembled, by_owner, draw_uniformly
from poolish.tokens.steps import as_output, check_output
from poolish.tokens.store import StreamStore
from poolish.tokens.stream_set import StreamSet
from poolish.tokens.transitions import CONVENTIONS
from poolish.torch_bridge import on_host

Int64 = NDArray[np.int64]
Batch = dict[str, Any]

_LOW = (1 << ID_BITS) - 1

STATE_VERSION = 1

#: How often a batch is drawn again whose steps left while it was read.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Prioritized:
    """Draw in proportion to priority ** ``alpha``, with importance weights to the power of ``beta``.

    >>> Prioritized(alpha=0.7)
    Prioritized(alpha=0.7, beta=0.4)
    """

    alpha: float = 0.6
    beta: float = 0.4

    def __post_init__(self) -> None:
        check_exponents(self.alpha, self.beta)


class _Drawn(NamedTuple):
    """What is drawn from one stream: its places in the batch, the ids there, and the columns of the draw."""

    ordinal: int
    places: Int64
    ids: Int64
    extra: Batch


class TransitionSampler:
    """Batches of transitions from streams that other processes may be recording.

    ``streams`` is a ``StreamSet``, whose new members are drawn from as they appear, or a list of streams.
    ``sampler`` is ``"uniform"`` or ``Prioritized()``; the priorities of a stream lie in ``path``, a folder, and survive
    kills, or without a path in memory. Each call looks at what was recorded meanwhile. A ``limiter`` makes ``sample``
    wait for recorders, for ``timeout_s`` at most. ``transitions`` are options of ``store.transitions_at``: ``n_step``,
    ``gamma``, ``stack``, ``hindsight``, roles of fields.

    >>> from poolish import StreamStore
    >>> from poolish.replay import EpisodeWriter
    >>> names = ["obs", "action", "reward", "terminated", "truncated", "final_obs"]
    >>> store = StreamStore(fields=dict.fromkeys(names, "float32"))
    >>> writer = EpisodeWriter(store)
    >>> writer.begin([0.0])
    >>> for i in range(4):
    ...     writer.step([i + 1.0], action=[0], reward=1.0, terminated=i == 3)
    >>> batch = TransitionSampler([store]).sample(3, rng=np.random.default_rng(0))
    >>> batch["id"].tolist(), (batch["next_obs"] - batch["obs"]).tolist()
    ([3, 2, 2], [1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        streams: StreamSet | Sequence[StreamStore],
        sampler: str | Prioritized = "uniform",
        *,
        limiter: RateLimiter | None = None,
        timeout_s: float | None = None,
        path: str | os.PathLike[str] | None = None,
        seed: int = 0,
        **transitions: Any,
    ) -> None:
        if sampler != "uniform" and not isinstance(sampler, Prioritized):
            raise ConfigError(f"sampler={sampler!r}: 'uniform', or Prioritized(alpha=0.6, beta=0.4)")
        self._prioritized = sampler if isinstance(sampler, Prioritized) else None
        self._path = None if path is None else Path(path)
        self._rng = generator(seed, "sample transitions")
        self._limiter, self._timeout_s = limiter, timeout_s
        self._options = transitions
        self.streams = streams if isinstance(streams, StreamSet) else StreamSet(streams)
        self._priorities: dict[int, StreamPriorities] = {}
        self.n_sampled = 0
        self._refresh()

    def add_stream(self, stream: StreamStore) -> int:
        """Draw from one more stream of a list; its ordinal."""
        ordinal = self.streams.add(stream)
        assert ordinal is not None
        self._refresh()
        return ordinal

    @property
    def is_prioritized(self) -> bool:
        """Whether transitions have priorities."""
        return self._prioritized is not None

    def __len__(self) -> int:
        """How many transitions there are to draw from."""
        stores = self._refresh()
        if self._prioritized is not None:
            return sum(priorities.refresh() for priorities in self._priorities.values())
        return sum(store.transition_ids(**self._roles()).n for store in stores.values())

    def __bool__(self) -> bool:
        return True

    # Drawing ------------------------------------------------------------------------------------------------------

    def sample(
        self,
        n: int,
        *,
        rng: np.random.Generator | None = None,
        beta: float | None = None,
        output: str | None = None,
        device: Any = None,
    ) -> Batch:
        """Draw ``n`` transitions, with replacement; with priorities also their ``probability`` and ``weight``.

        The dict has obs, action, reward, next_obs, terminated, truncated, discount and id: NumPy arrays, or with
        ``output="torch"`` (or ``"jax"``) tensors, on a ``device``. Observations of several parts are dicts.
        """
        check_whole(n, "n", unit="transitions")
        if beta is not None and self._prioritized is None:
            raise ConfigError(f"beta={beta!r}: a uniform draw has no importance weights; pass sampler=Prioritized()")
        check_output(output, device)
        if self._limiter is None:
            return self._sampled(n, self._rng if rng is None else rng, beta, output, device)
        with self._limiter.sample(n, timeout_s=self._timeout_s):
            return self._sampled(n, self._rng if rng is None else rng, beta, output, device)

    def _sampled(self, n: int, rng: np.random.Generator, beta: float | None, output: str | None, device: Any) -> Batch:
        for _ in range(_ATTEMPTS):
            stores = self._refresh()
            drawn = self._drawn_uniformly(stores, n, rng) if self._prioritized is None else self._drawn(n, rng, beta)
            try:
                parts = [(each.places, self._read(stores[each.ordinal], each, rng)) for each in drawn]
                break
            except IndexError as error:  # a recorder that trims its stream took a step between the draw and the read
                trimmed = error
        else:
            raise trimmed
        self.n_sampled += n
        return as_output(parts[0][1] if len(parts) == 1 else assembled(parts), output, device)

    def _read(self, store: StreamStore, drawn: _Drawn, rng: np.random.Generator) -> Batch:
        batch = store.transitions_at(drawn.ids, rng=rng, **self._options)
        return {**batch, "id": drawn.ids | (drawn.ordinal << ID_BITS), **drawn.extra}

    def _drawn_uniformly(self, stores: Mapping[int, StreamStore], n: int, rng: np.random.Generator) -> list[_Drawn]:
        roles = self._roles()
        indexes = {ordinal: store.transition_ids(**roles) for ordinal, store in stores.items()}
        ordinals, counts = list(indexes), np.array([index.n for index in indexes.values()], np.int64)
        if not counts.any():
            raise self._nothing()
        if len(ordinals) == 1:  # sorting the places of a batch would take a third of its time
            numbers = kernels.draw(rng, 0, int(counts[0]), n)
            return [_Drawn(ordinals[0], np.arange(n), indexes[ordinals[0]].select(numbers), {})]
        choice, drawn = draw_uniformly(rng, counts, n), []
        for owner, places in by_owner(choice.owners):
            ordinal = ordinals[owner]
            drawn.append(_Drawn(ordinal, places, indexes[ordinal].select(choice.numbers[places]), {}))
        return drawn

    def _drawn(self, n: int, rng: np.random.Generator, beta: float | None) -> list[_Drawn]:
        """Each stream gives its share of the draw, as if all priorities lay in one tree."""
        assert self._prioritized is not None
        beta = self._prioritized.beta if beta is None else beta
        # Totals of 0 are left out, and each is looked at once: it follows what its stream appended.
        each = [(ordinal, own, total) for ordinal, own in self._priorities.items() if (total := own.total) > 0]
        if not each:
            raise self._nothing()
        if len(each) == 1:
            ordinal, own, _ = each[0]
            return [_drawn_from(ordinal, np.arange(n), own, rng, beta)]
        totals = np.array([total for _, _, total in each])
        smallest, total = min(own.smallest for _, own, _ in each), totals.sum()
        marks = (rng.random(n) + np.arange(n)) * (total / n)
        owners = np.searchsorted(np.cumsum(totals), marks, side="right").clip(max=len(totals) - 1)
        drawn = []
        for owner, places in by_owner(owners):
            ordinal, own, _ = each[owner]
            part = _drawn_from(ordinal, places, own, rng, beta)
            part.extra["probability"] *= totals[owner] / total
            part.extra["weight"] *= (smallest / own.smallest) ** beta
            drawn.append(part)
        return drawn

    def _nothing(self) -> ConfigError:
        return ConfigError(
            f"no transition to draw from in {len(self.streams.members)} streams with {len(self.streams)} steps; the "
            "newest step of a stream becomes one with the step behind it, or when its episode ends: record more, then "
            "sample"
        )

    # Priorities ---------------------------------------------------------------------------------------------------

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> Int64:
        """Give transitions new priorities; the ids that have left meanwhile. Of an id twice, the last one counts."""
        if self._prioritized is None:
            raise ConfigError("a uniform sampler has no priorities; pass sampler=Prioritized()")
        given = np.atleast_1d(np.asarray(on_host(ids)))
        values = np.asarray(on_host(priorities), np.float64)
        if values.shape != given.shape:
            values = np.broadcast_to(values, given.shape)
        owners, missing = given >> ID_BITS, [np.empty(0, np.int64)]
        self._refresh()
        n_given = self.streams.present().n_given
        if given.size and not 0 <= owners.min() <= owners.max() < n_given:
            raise ConfigError(f"id {given[np.argmax(owners)]}: of a stream that is not drawn from")
        for owner, places in by_owner(owners):
            asked, own = given[places], self._priorities.get(owner)
            if own is None:  # the stream has left
                missing.append(asked)
            else:
                missing.append(own.update(asked & _LOW, values[places]) | (owner << ID_BITS))
        return np.concatenate(missing)

    # Keeping ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The random numbers to come and how many were drawn; what the streams and side files hold is kept by them."""
        streams = [
            [member.uuid, member.ordinal, member.store.branch_below(member.store.step_span()[1])]
            for member in self.streams.members
        ]
        rng = self._rng.bit_generator.state
        return {"version": STATE_VERSION, "rng": rng, "n_sampled": self.n_sampled, "streams": streams}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue behind a state; a ResumeError if a stream has lost steps, or is another one."""
        if state.get("version") != STATE_VERSION:
            raise ResumeError(f"a state of version {state.get('version')!r}; this is version {STATE_VERSION}")
        held = {member.uuid: member for member in self.streams.members}
        for uuid, ordinal, branch in state["streams"]:
            if uuid not in held and self.streams.has_record:
                continue  # it has left the set, which keeps its ordinal
            if uuid not in held or not held[uuid].store.has_branch(branch):
                raise ResumeError(
                    f"stream {uuid} is not among the {len(held)} here, or lost steps that the state has seen; "
                    "open the streams that it was taken with"
                )
            if held[uuid].ordinal != ordinal:
                raise ResumeError(
                    f"{held[uuid]} has the ordinal {held[uuid].ordinal}, when the state was taken it had {ordinal}; "
                    "pass the streams in the same order, or a StreamSet with record="
                )
        self._rng.bit_generator.state = state["rng"]
        self.n_sampled = int(state["n_sampled"])

    def commit(self) -> None:
        """Make the priorities survive a power cut."""
        for priorities in self._priorities.values():
            priorities.commit()

    def close(self) -> None:
        """Commit and close the side files; the streams stay open."""
        for priorities in self._priorities.values():
            priorities.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refresh(self) -> dict[int, StreamStore]:
        """The streams by ordinal as they are now; those that came have priorities, those that left have none."""
        stores = {ordinal: member.store for ordinal, member in self.streams.present().members.items()}
        if self._prioritized is not None:
            for ordinal in self._priorities.keys() - stores.keys():
                self._priorities.pop(ordinal).close()
            for ordinal in stores.keys() - self._priorities.keys():
                self._priorities[ordinal] = self._priorities_of(stores[ordinal], self._prioritized.alpha)
        return stores

    def _priorities_of(self, store: StreamStore, alpha: float) -> StreamPriorities:
        path = None if self._path is None else self._path / f"{store.uuid}.priorities"
        return StreamPriorities(store, path, alpha=alpha, **self._roles())

    def _roles(self) -> dict[str, Any]:
        """The options that decide which steps are transitions."""
        return {name: value for name, value in self._options.items() if name in _ROLES}


def _drawn_from(ordinal: int, places: Int64, own: StreamPriorities, rng: np.random.Generator, beta: float) -> _Drawn:
    """A transition of one stream for each place, by its own priorities."""
    draw = own.sample(len(places), rng=rng, beta=beta)
    return _Drawn(ordinal, places, draw.ids, {"probability": draw.probabilities, "weight": draw.weights})


_ROLES = {*CONVENTIONS, "stack", "repeat_final"}
