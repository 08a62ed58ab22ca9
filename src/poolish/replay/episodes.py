"""Recording episodes: what lies in a stream so that each transition can be read back, and no other.

    step 0    obs action reward terminated truncated
    step 1    obs action reward terminated truncated
    step 2    obs action reward terminated truncated final_obs      the episode ends behind it
    step 3    obs ...                                               the next one

The observation after a step is that of the next step, so each is kept once. Behind the last step of an episode there
is no next one: that step has ``final_obs``, whether the episode terminated, was truncated, or was given up by a reset.
Behind one that was given up lies a break, so that nothing crosses from it to the next; it counts as truncated.
A step that has neither (its recorder was killed) is an observation without a transition.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poolish.errors import ConfigError, SchemaError
from poolish.tokens.store import StreamStore

#: What each step of an episode has beside observations and what the recorder adds.
OUTCOME = ("action", "reward", "terminated", "truncated")

#: The episode that is open in a stream, so that a new writer can complete what the last one left. It does not refer to
#: the stream, which would keep it for ever.
_open_episodes: weakref.WeakKeyDictionary[StreamStore, _OpenEpisode] = weakref.WeakKeyDictionary()

#: Leaves of an observation: one array, or those of a dict in a fixed order.
Leaves = Sequence[Any]


def final_name(name: str) -> str:
    """The field for the last observation that an episode ends with.

    >>> final_name("obs"), final_name("obs.goal")
    ('final_obs', 'final_obs.goal')
    """
    return f"final_{name}"


def observations_of(store: StreamStore) -> list[str]:
    """The fields of a recording that make up an observation."""
    names = [name for name in store.field_to_type if final_name(name) in store.field_to_type]
    if not names:
        raise SchemaError(f"{store!r}: no field has a final_ field beside it, so this is no recording of episodes")
    return names


class _OpenEpisode:
    """How far the episode of a writer has come: the observation behind its last step, while it goes on."""

    def __init__(self, step: int, finals: Sequence[str]) -> None:
        self.step, self.finals = step, finals
        self.obs: list[Any] | None = None
        self.has_steps = False

    def end(self, store: StreamStore) -> None:
        """Give the last step the observation that came behind it, if an episode goes on."""
        if self.has_steps and self.obs is not None:
            store.append(self.step - 1, self.finals, self.obs)
            store.end_episode()
        self.obs, self.has_steps = None, False


class EpisodeWriter:
    """Appends the transitions of one environment to a stream, a step each, in whole steps only.

    ``observations`` and ``actions`` name the fields of what is one array in simple environments and several in others.
    Each call copies what it is given.

    >>> from poolish import StreamStore
    >>> store = StreamStore(fields=["obs", "action", "reward", "terminated", "truncated", "final_obs"])
    >>> writer = EpisodeWriter(store)
    >>> writer.begin([1.0])
    >>> writer.step([2.0], action=[0], reward=0.5)
    >>> writer.step([3.0], action=[1], reward=1.0, terminated=True)
    >>> [step.get("final_obs") for step in store.steps()]
    [None, 3.0]
    """

    def __init__(
        self, store: StreamStore, observations: Sequence[str] = ("obs",), actions: Sequence[str] = ("action",)
    ) -> None:
        self._store = store
        self._finals = [final_name(name) for name in observations]
        known = store.field_to_type
        required = [*observations, *actions, *OUTCOME[1:], *self._finals]
        missing = [name for name in required if name not in known]
        if missing:
            raise SchemaError(
                f"{store!r}: no field {missing[0]!r}; to record episodes a stream needs {required}. "
                "Pass a stream without fields, and it gets them"
            )
        names = [*observations, *actions, *OUTCOME[1:]]
        self._order = sorted(range(len(names)), key=lambda i: known[names[i]])
        self._names = [names[i] for i in self._order]
        if [known[name] for name in (*self._names, *self._finals)] != sorted(
            known[name] for name in (*self._names, *self._finals)
        ):
            raise SchemaError(
                f"{store!r}: declare {self._finals} behind the other fields; a step is completed with them when its "
                "episode is given up"
            )
        self._known = known
        before = _open_episodes.get(store)
        if before is not None:
            before.end(store)
        self._open = _open_episodes[store] = _OpenEpisode(store.last_step + 1, self._finals)

    @property
    def has_begun(self) -> bool:
        """Whether an episode has begun and not ended."""
        return self._open.obs is not None

    def begin(self, obs: Leaves) -> None:
        """Start an episode at an observation; one that is going on ends here."""
        self.end()
        self._open.obs = [np.array(leaf) for leaf in obs]

    def end(self) -> None:
        """End the episode that is going on, if any: its last step gets the observation that came behind it."""
        self._open.end(self._store)

    def step(
        self,
        next_obs: Leaves,
        *,
        action: Leaves,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Append one transition, which ended at ``next_obs``; ``extra`` are values of further fields of the stream."""
        if self._open.obs is None:
            raise ConfigError("a step before the first observation of its episode; call begin(obs), or reset() the env")
        after = [np.array(leaf) for leaf in next_obs]
        values = [*self._open.obs, *action, reward, terminated, truncated]
        names, writes = self._names, [values[i] for i in self._order]
        is_last = bool(terminated or truncated)
        if is_last:
            names, writes = names + self._finals, writes + after
        if extra:
            names, writes = self._with_extra(names, writes, extra)
        self._store.append(self._open.step, names, writes)
        self._open.step += 1
        self._open.obs, self._open.has_steps = (None, False) if is_last else (after, True)

    def _with_extra(self, names: list[str], writes: list[Any], extra: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
        """The writes of a step in the order of the stream's fields."""
        end = self._known[self._finals[0]]
        wrong = [name for name in extra if self._known.get(name, end) >= end]
        if wrong:
            raise SchemaError(
                f"{self._store!r}: no field {wrong[0]!r} before {self._finals[0]!r}; there are {list(self._known)}"
            )
        pairs = [*zip(names, writes, strict=True), *extra.items()]
        pairs.sort(key=lambda pair: self._known[pair[0]])
        return [name for name, _ in pairs], [value for _, value in pairs]

    def continues(self, obs: Leaves) -> bool:
        """Whether an episode goes on whose last observation is this one."""
        return self._open.obs is not None and all(map(_is_same, self._open.obs, obs))

    def steps(
        self,
        obs: Leaves,
        *,
        action: Leaves,
        reward: Any,
        terminated: Any,
        truncated: Any,
        extra: Mapping[str, Any] | None = None,
        ends: bool = True,
    ) -> None:
        """Append n steps of one episode: arrays of n, observations of n + 1, the last behind the last step.

        They go on with the episode that is open if they begin where it is, and end it if ``ends``.
        """
        n = len(reward)
        if any(len(leaf) != n + 1 for leaf in obs):
            raise SchemaError(f"{n} steps of an episode need {n + 1} observations, got {[len(leaf) for leaf in obs]}")
        if not n:
            return
        if not self.continues([leaf[0] for leaf in obs]):
            self.end()
        columns = [np.asarray(leaf)[:-1] for leaf in obs] + [np.asarray(leaf) for leaf in action]
        columns += [np.asarray(reward, np.float64), np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)]
        names, columns = self._names, [columns[i] for i in self._order]
        if extra:
            names, columns = self._with_extra(names, columns, extra)
        n_plain = n - ends
        plain = {name: column[:n_plain] for name, column in zip(names, columns, strict=True)}
        self._store.append_many(np.arange(self._open.step, self._open.step + n_plain), plain)
        after = [np.array(leaf[n]) for leaf in obs]
        if ends:  # the last step by itself: it alone has the observation behind it
            last = dict(zip([*names, *self._finals], [*(column[n - 1] for column in columns), *after], strict=True))
            last["truncated"] = last["truncated"] or not last["terminated"]
            self._store.append(self._open.step + n - 1, [*last], [*last.values()])
        self._open.obs, self._open.has_steps = (None, False) if ends else (after, True)
        self._open.step += n


def _is_same(one: Any, other: Any) -> bool:
    # Nearly always they are the same bytes; array_equal takes ten times as long as to compare those.
    is_alike = isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape
    if is_alike and one.tobytes() == other.tobytes():
        return True
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))
