"""Gymnasium: an environment that records what happens in it, single or vectorised.

    env.reset() -> begin      env.step(action) -> one whole step of the stream, appended before the call returns

Each environment of a vector has a stream of its own, so episodes lie in one piece. In which call the next episode
begins depends on the vector's autoreset mode; what is recorded does not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset

from poolish.errors import ConfigError, SchemaError
from poolish.replay.episodes import EpisodeWriter, final_name
from poolish.tokens.fields import fields_of
from poolish.tokens.specs import flat_values
from poolish.tokens.store import StreamStore

__all__ = ["Record", "RecordVector", "fields_of_spaces"]

Info = Sequence[str] | Mapping[str, Any]
Streams = StreamStore | str | os.PathLike[str] | Sequence[StreamStore]

#: What is in every step beside observation and action.
OUTCOME = {"reward": "float64", "terminated": "bool", "truncated": "bool"}


class Record(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment, which appends each transition to a stream; of a vector environment, to one stream each.

    ``store`` is a ``StreamStore`` or a path to one. One without fields gets those of the spaces: ``obs``, ``action``,
    ``reward``, ``terminated``, ``truncated``, the chosen ``info`` columns and, in the last step of an episode,
    ``final_obs``. A dict or tuple space becomes a field for each part (``obs.position``). Once ``step`` returns, the
    step survives ``kill -9``, as a whole; ``close`` completes the episode and commits.

    ``info`` names the entries of ``info`` to record, with their dtypes (``{"score": "float32"}``) or without.

    >>> env = Record(gymnasium.make("CartPole-v1"), StreamStore())
    >>> obs, info = env.reset(seed=0)
    >>> ended = False
    >>> while not ended:
    ...     obs, reward, terminated, truncated, info = env.step(0)
    ...     ended = terminated or truncated
    >>> env.store.n_steps, np.array_equal(list(env.store)[-1]["final_obs"], obs)
    (11, True)
    """

    def __new__(cls, env: Any, *args: Any, **options: Any) -> Any:
        """The wrapper of a single environment, or a ``RecordVector``."""
        return RecordVector(env, *args, **options) if isinstance(env, VectorEnv) else super().__new__(cls)

    def __init__(self, env: gymnasium.Env[Any, Any], store: Streams, *, info: Info = ()) -> None:
        super().__init__(env)
        self._owns_store = isinstance(store, (str, os.PathLike))
        (self.store,) = _streams(store, [""])
        self._spaces, self._info = Spaces(env.observation_space, env.action_space), info
        self._writer = self._spaces.writer(self.store, info)
        self._resets_itself = _has_wrapper(env, Autoreset)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an episode that goes on ends where it is."""
        obs, info = self.env.reset(**options)
        self._writer.begin(self._spaces.obs_parts(obs))
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and append what happened."""
        if not self._writer.has_begun and not self._resets_itself:
            raise ConfigError("the episode has ended, or none has begun; call reset() before step()")
        obs, reward, terminated, truncated, info = self.env.step(action)
        parts = self._spaces.obs_parts(obs)
        if not self._writer.has_begun:  # this step was the reset of an Autoreset wrapper: it took no action
            self._writer.begin(parts)
            return obs, reward, terminated, truncated, info
        chosen = {name: info[name] for name in self._info if name in info}
        self._writer.step(
            parts,
            action=self._spaces.action_parts(action),
            reward=float(reward),
            terminated=terminated,
            truncated=truncated,
            extra=chosen,
        )
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Complete the episode that goes on, commit, and close the environment."""
        try:
            _finish([self._writer], [self.store], self._owns_store)
        finally:
            super().close()


class RecordVector(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector environment that appends each transition to the stream of its environment; made by ``Record``.

    ``store`` is a folder, in which the streams are ``env-00000``, ``env-00001``, ..., or a list of streams. It works in
    each autoreset mode: NEXT_STEP (the step behind the end of an episode is its reset and is not recorded), SAME_STEP
    and DISABLED.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], store: Streams, *, info: Info = ()) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        if mode is None:
            raise ConfigError(
                f"{env!r} does not say when it resets its environments; set env.metadata['autoreset_mode'] to one of "
                f"gymnasium.vector.{', '.join(map(str, AutoresetMode))}"
            )
        self._mode = AutoresetMode(mode)
        self.stores = _streams(store, [f"env-{i:05d}" for i in range(env.num_envs)])
        self._owns_stores = isinstance(store, (str, os.PathLike))
        self._info = info
        self._spaces = Spaces(env.single_observation_space, env.single_action_space)
        self._writers = [self._spaces.writer(stream, info) for stream in self.stores]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; their open episodes end where they are."""
        mask = np.ones(self.num_envs, bool) if options is None else options.get("reset_mask", np.ones(self.num_envs))
        obs, info = self.env.reset(seed=seed, options=options)
        parts = self._spaces.obs_parts(obs)
        for i in np.flatnonzero(mask).tolist():
            self._writers[i].begin([_at(part, i) for part in parts])
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments and append what happened in each."""
        fresh = [not writer.has_begun for writer in self._writers]
        if any(fresh) and self._mode is not AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"environment {fresh.index(True)} has ended its episode, or none has begun; call reset() before "
                "step(), with options={'reset_mask': terminated | truncated} for those that ended"
            )
        obs, rewards, terminated, truncated, info = result = self.env.step(actions)
        parts, given = self._spaces.obs_parts(obs), self._spaces.action_parts(actions)
        for i, writer in enumerate(self._writers):
            here = [_at(part, i) for part in parts]
            if fresh[i]:
                writer.begin(here)
                continue
            has_ended = bool(terminated[i] or truncated[i])
            was_reset = has_ended and self._mode is AutoresetMode.SAME_STEP
            writer.step(
                self._spaces.obs_parts(info["final_obs"][i]) if was_reset else here,
                action=[_at(part, i) for part in given],
                reward=float(rewards[i]),
                terminated=bool(terminated[i]),
                truncated=bool(truncated[i]),
                extra=_chosen(info.get("final_info", {}) if was_reset else info, self._info, i),
            )
            if was_reset:
                writer.begin(here)
        return result

    def close(self, **options: Any) -> None:
        """Complete the episodes that go on, commit, and close the environments."""
        try:
            _finish(self._writers, self.stores, self._owns_stores)
        finally:
            super().close(**options)


class Spaces:
    """The spaces of one environment as fields of a stream, and what they hold as the values of these fields."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation, self.action = observation, action
        self.obs_fields = {field.name: field for field in fields_of({"obs": observation})}
        self.action_fields = {field.name: field for field in fields_of({"action": action})}

    def writer(self, store: StreamStore, info: Info) -> EpisodeWriter:
        """A writer of episodes; a stream without fields gets them."""
        if not store.field_to_type:
            store.define_fields(self.fields(info))
        return EpisodeWriter(store, [*self.obs_fields], [*self.action_fields])

    def fields(self, info: Info) -> dict[str, Any]:
        """The fields of a stream, in order: those of the last observation come behind all others."""
        chosen = dict(info) if isinstance(info, Mapping) else dict.fromkeys(info)
        finals = {final_name(name): field for name, field in self.obs_fields.items()}
        own = {**self.obs_fields, **self.action_fields, **OUTCOME}
        twice = chosen.keys() & (own.keys() | finals.keys())
        if twice:
            raise SchemaError(f"info column {min(twice)!r}: a step has a field of this name; rename the entry of info")
        return {**own, **chosen, **finals}

    def obs_parts(self, obs: Any) -> list[Any]:
        """The values of the fields of an observation, or of a batch of them."""
        return _parts("obs", obs, self.obs_fields)

    def action_parts(self, action: Any) -> list[Any]:
        """The values of the fields of an action, or of a batch of them."""
        return _parts("action", action, self.action_fields)

    def observation_of(self, columns: Mapping[str, Any]) -> Any:
        """A batch of observations out of the columns of their fields: the inverse of ``obs_parts``."""
        return _whole(self.observation, "obs", columns)

    def action_of(self, columns: Mapping[str, Any]) -> Any:
        """A batch of actions out of the columns of their fields: the inverse of ``action_parts``."""
        return _whole(self.action, "action", columns)


def fields_of_spaces(observation: spaces.Space[Any], action: spaces.Space[Any], *, info: Info = ()) -> dict[str, Any]:
    """Return the fields of a stream that records an environment with these spaces.

    >>> [*fields_of_spaces(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))]
    ['obs', 'action', 'reward', 'terminated', 'truncated', 'final_obs']
    """
    return Spaces(observation, action).fields(info)


def _parts(name: str, value: Any, fields: Mapping[str, Any]) -> list[Any]:
    """The values of the fields of an observation or action, or of a batch of them."""
    flat = flat_values({name: value}, fields)
    return [flat[field] for field in fields]


def _whole(space: spaces.Space[Any], name: str, columns: Mapping[str, Any]) -> Any:
    """The inverse of ``_parts``."""
    if isinstance(space, spaces.Dict):
        return {key: _whole(inner, f"{name}.{key}", columns) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_whole(inner, f"{name}.{i}", columns) for i, inner in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return [bytes(text).decode() for text in columns[name]]
    return columns[name]


def _at(part: Any, i: int) -> Any:
    """What belongs to environment ``i`` of a batch; text as the bytes that a stream keeps."""
    value = part[i]
    return np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else value


def _chosen(info: Mapping[str, Any], names: Info, i: int) -> dict[str, Any]:
    """What the environment number ``i`` of a vector said in its info."""
    return {name: info[name][i] for name in names if name in info and info[f"_{name}"][i]}


def _streams(store: Streams, names: Sequence[str]) -> list[StreamStore]:
    """The given streams, one for each environment; in a folder, those with these names."""
    if isinstance(store, (str, os.PathLike)):
        return [StreamStore(Path(store, name)) for name in names]
    given, n = [store] if isinstance(store, StreamStore) else list(store), len(names)
    if len(given) != n or len({id(stream) for stream in given}) != n:
        raise ConfigError(
            f"{len(given)} streams for {n} environments; pass a folder, in which each has its own, or a list of {n} "
            "StreamStores: episodes of several environments in one stream would be torn apart"
        )
    return given


def _finish(writers: Sequence[EpisodeWriter], stores: Sequence[StreamStore], owned: bool) -> None:
    for writer, store in zip(writers, stores, strict=True):
        writer.end()
        if owned:
            store.close()
        else:
            store.commit()


def _has_wrapper(env: gymnasium.Env[Any, Any], kind: type) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            return True
        env = env.env
    return False
