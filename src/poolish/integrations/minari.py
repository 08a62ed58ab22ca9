"""Minari: recordings as its datasets of episodes, and its datasets as recordings.

Only datasets on this machine are read (``MINARI_DATASETS_PATH``); nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import gymnasium
import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer

from poolish.arguments import check_whole
from poolish.errors import ConfigError, SchemaError
from poolish.integrations.gymnasium import Spaces
from poolish.replay.recordings import Episode, episodes
from poolish.tokens.fields import TokenField
from poolish.tokens.store import StreamStore

__all__ = ["from_minari", "to_minari"]


def to_minari(
    stores: StreamStore | Sequence[StreamStore],
    dataset_id: str,
    *,
    env: str | gymnasium.Env[Any, Any] | None = None,
    observation_space: spaces.Space[Any] | None = None,
    action_space: spaces.Space[Any] | None = None,
    episodes_at_once: int = 100,
    **options: Any,
) -> minari.MinariDataset:
    """Make a Minari dataset of the episodes of recordings, one stream after the other, and return it.

    The spaces are those of ``env`` unless given. Further fields of the recording become ``infos``; a field must then
    be in each step of an episode. ``options`` go to ``minari.create_dataset_from_buffers``. Images are stored without
    loss unless ``jpeg_encoding=True``. An episode that goes on, or was cut off, ends as truncated.
    """
    check_whole(episodes_at_once, "episodes_at_once", unit="episodes")
    streams = [stores] if isinstance(stores, StreamStore) else list(stores)
    made = gymnasium.make(env) if isinstance(env, str) else env
    observation = observation_space or getattr(made, "observation_space", None)
    action = action_space or getattr(made, "action_space", None)
    if observation is None or action is None:
        raise ConfigError("to_minari: give env=, or observation_space= and action_space=, as they were recorded")
    parts = Spaces(observation, action)
    buffers = (_buffer(parts, episode) for store in streams for episode in episodes(store))
    first = list(islice(buffers, episodes_at_once))
    if not first:
        raise ConfigError(f"to_minari: no episode with a transition in {streams}; record some first")
    # Without an environment for evaluation Minari warns, and takes this one; one that was not registered it refuses.
    evaluation = made if getattr(made, "spec", None) is not None else None
    options = {"jpeg_encoding": False, "eval_env": evaluation, **options}
    dataset = minari.create_dataset_from_buffers(
        dataset_id, first, env=made, observation_space=observation, action_space=action, **options
    )
    for more in iter(lambda: list(islice(buffers, episodes_at_once)), []):
        dataset.update_dataset_from_buffer(more)
    return dataset


def from_minari(dataset: minari.MinariDataset | str, store: StreamStore, *, info: Iterable[str] = ()) -> int:
    """Append the episodes of a Minari dataset, or of the local one of this id, to a stream; how many there were.

    A stream without fields gets those of the dataset's spaces. ``info`` names infos to keep; each must be an array with
    a number, or an array of one shape, for each step.
    """
    source = minari.load_dataset(dataset, download=False) if isinstance(dataset, str) else dataset
    names = list(info)
    parts = Spaces(source.observation_space, source.action_space)
    writer = None
    for episode in source.iterate_episodes():
        extra = {name: _per_step(name, episode) for name in names}
        if writer is None:
            fields = {name: TokenField(name, column.dtype.name, column.shape[1:]) for name, column in extra.items()}
            writer = parts.writer(store, fields)
        writer.steps(
            parts.obs_parts(episode.observations),
            action=parts.action_parts(episode.actions),
            reward=episode.rewards,
            terminated=episode.terminations,
            truncated=episode.truncations,
            extra=extra,
        )
    return len(source)


def _buffer(parts: Spaces, episode: Episode) -> EpisodeBuffer:
    return EpisodeBuffer(
        observations=parts.observation_of(episode.obs),
        actions=parts.action_of(episode.action),
        rewards=episode.reward.tolist(),
        terminations=episode.terminated.tolist(),
        truncations=episode.truncated.tolist(),
        infos=dict(episode.extra),
    )


def _per_step(name: str, episode: Any) -> np.ndarray[Any, Any]:
    """One of the infos with a row for each step; Minari may keep that of the reset before them."""
    if name not in episode.infos:
        raise SchemaError(f"episode {episode.id}: no info {name!r}; there are {sorted(episode.infos)}")
    column = np.asarray(episode.infos[name])
    if column.dtype.kind not in "biuf" or len(column) not in (len(episode), len(episode) + 1):
        raise SchemaError(f"episode {episode.id}: info {name!r} holds no number or array for each of its steps")
    return column[len(column) - len(episode) :]
