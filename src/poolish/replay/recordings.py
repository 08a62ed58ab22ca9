"""Recordings read back, an episode at a time, for export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.replay.episodes import final_name, observations_of
from poolish.tokens.reading import Step
from poolish.tokens.store import StreamStore


@dataclass(frozen=True)
class Episode:
    """One episode as columns: ``n`` steps and, of observations, one more."""

    obs: dict[str, NDArray[Any]]
    action: dict[str, NDArray[Any]]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    extra: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.reward)


def episodes(store: StreamStore) -> Iterator[Episode]:
    """The episodes of a stream that ``EpisodeWriter`` or ``gymnasium.Record`` has written, in order.

    The last step of an episode that was cut off (its recorder was killed, or still records) has no observation behind
    it: its own observation is the last one of the episode, and its outcome is left out. An episode that neither
    terminated nor was truncated counts as truncated.
    """
    observations = observations_of(store)
    view = store._view()
    cuts = {int(ordinal) for ordinal in view.breaks()}
    held: list[Step] = []
    for ordinal, step in enumerate(store.steps(), view.first_ordinal):
        if ordinal in cuts:
            yield from _episode(store, held, observations)
            held = []
        held.append(step)
        if final_name(observations[0]) in step:
            yield from _episode(store, held, observations)
            held = []
    yield from _episode(store, held, observations)


def _episode(store: StreamStore, steps: list[Step], observations: Sequence[str]) -> Iterator[Episode]:
    """The steps of one episode as columns, if it has a transition."""
    finals = [final_name(name) for name in observations]
    is_complete = bool(steps) and finals[0] in steps[-1]
    taken = steps if is_complete else steps[:-1]
    if not taken:
        return
    after = [steps[-1][name] for name in (finals if is_complete else observations)]
    obs = {
        name: np.array([*(step[name] for step in taken), last]) for name, last in zip(observations, after, strict=True)
    }
    names = [name for name in store.field_to_type if name not in obs and name not in finals]
    columns = {name: np.array([step[name] for step in taken]) for name in names if name in taken[0]}
    truncated = columns.pop("truncated")
    truncated[-1] |= not columns["terminated"][-1]
    action = {name: columns.pop(name) for name in names if name == "action" or name.startswith("action.")}
    reward, terminated = columns.pop("reward"), columns.pop("terminated")
    yield Episode(obs, action, reward, terminated, truncated, columns)
