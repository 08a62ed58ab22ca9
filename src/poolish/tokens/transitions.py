"""Transitions: what was seen, done and paid in a step, and what was seen behind it.

    step t, not an end    next_obs is the observation of step t + 1
    step t ends           next_obs is the *final* observation, recorded with step t; of step t + 1 it would be the next
                          episode's
    step t is given up    the same: it has a final observation without a flag, and a break behind it; it is truncated
    successor lost        no transition: the newest step of a recorder that was killed (a break), or the newest so far

A stream knows nothing of actions or rewards. Which field plays which role is an argument; where it is left out, the
names in ``CONVENTIONS`` are looked for among the fields. A role may be several fields: "obs" stands for "obs.position"
and "obs.velocity" too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import SchemaError, UnknownColumn
from poolish.tokens.pairs import PairLayout
from poolish.tokens.sampling import Episodes
from poolish.tokens.sequences import bounds_of
from poolish.tokens.steps import Batch, StepReader, Steps, nested, padded
from poolish.tokens.stream_files import View
from poolish.tokens.transforms import Hindsight, goal_steps, n_step_returns, stack_ids

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: The fields of a role, by their names inside it; "" is the role itself.
Group = Mapping[str, int]

CONVENTIONS = {
    "obs": ("obs", "observation", "state"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "termination", "done"),
    "truncated": ("truncated", "truncation"),
    "final_obs": ("final_obs", "final_observation"),
    "next_obs": ("next_obs", "next_observation"),
}
_REQUIRED = ("obs", "action", "reward", "terminated")


def group_of(ids: Mapping[str, int], name: str) -> Group:
    """The fields that a name stands for: one, or all that begin with it and a dot.

    >>> group_of({"obs.x": 0, "obs.y": 1, "reward": 2}, "obs"), group_of({"reward": 2}, "reward")
    ({'x': 0, 'y': 1}, {'': 2})
    """
    if name in ids:
        return {"": ids[name]}
    return {field[len(name) + 1 :]: type_ for field, type_ in ids.items() if field.startswith(f"{name}.")}


def final_types(ids: Mapping[str, int]) -> set[int]:
    """The fields that are final observations by convention, where there are observations that they end.

    >>> final_types({"obs": 0, "final_obs": 1}), final_types({"final_obs": 0})
    ({1}, set())
    """
    groups = {role: [group_of(ids, name) for name in CONVENTIONS[role]] for role in ("obs", "final_obs")}
    return {type_ for group in groups["final_obs"] for type_ in group.values()} if any(groups["obs"]) else set()


@dataclass(frozen=True)
class Roles:
    """Which fields play which role in a transition."""

    obs: Group
    action: Group
    reward: int
    terminated: int
    truncated: int | None
    final_obs: Group
    next_obs: Group
    repeats_final: bool = False

    @classmethod
    def find(cls, ids: Mapping[str, int], given: Mapping[str, str | None], repeats_final: bool) -> Roles:
        """The roles as they are given, and by convention where they are not."""
        found = {role: _group(ids, role, given.get(role)) for role in CONVENTIONS}
        for role in _REQUIRED:
            if not found[role]:
                raise SchemaError(
                    f"transitions need {role}=: none of {list(ids)} is called "
                    f"{' or '.join(map(repr, CONVENTIONS[role]))}; "
                    "name the field that it is"
                )
        if not (found["final_obs"] or found["next_obs"] or repeats_final):
            raise SchemaError(
                "the last step of an episode has no observation behind it: record it with that step in a field "
                "'final_obs' "
                "(final_obs=), or each next observation (next_obs=); or pass repeat_final=True to have the last "
                "observation "
                "again, which is right where its discount is 0, and wrong where an episode was truncated"
            )
        for role in ("final_obs", "next_obs"):
            if found[role] and set(found[role]) != set(found["obs"]):
                raise SchemaError(
                    f"{role} has the members {sorted(found[role])}, obs {sorted(found['obs'])}; declare the same"
                )
        one = {role: next(iter(found[role].values()), None) for role in ("reward", "terminated", "truncated")}
        assert one["reward"] is not None
        assert one["terminated"] is not None
        groups = {role: found[role] for role in ("obs", "action", "final_obs", "next_obs")}
        return cls(
            **groups,
            reward=one["reward"],
            terminated=one["terminated"],
            truncated=one["truncated"],
            repeats_final=repeats_final,
        )

    @property
    def ends(self) -> tuple[int, ...]:
        """The fields that end an episode."""
        return tuple(sorted({self.terminated} | ({self.truncated} if self.truncated is not None else set())))

    @property
    def needed(self) -> list[int]:
        """The fields that every step has."""
        return list({*self.obs.values(), *self.action.values(), *self.next_obs.values(), self.reward, *self.ends})


def _group(ids: Mapping[str, int], role: str, given: str | None) -> Group:
    if given is not None:
        found = group_of(ids, given)
        if not found:
            raise UnknownColumn(f"{role}={given!r}: no such field in this stream; there are {list(ids)}")
        return found
    return next((found for name in CONVENTIONS[role] if (found := group_of(ids, name))), {})


_NOT_LOOKED: Bools = np.empty((0, 2), np.bool_)


class TransitionIds:
    """The steps that are transitions: numbered without gaps, ``n`` of them.

    ``lost`` counts those whose successor never came, because the stream was opened again behind them, ``pending`` the
    newest step if its successor may still come, and ``cut`` those whose earlier frames were trimmed.
    """

    def __init__(self, reader: StepReader, roles: Roles, stack: int = 1, before: TransitionIds | None = None) -> None:
        """``before`` is what was known when the stream was looked at last: breaks that it knows are not read again."""
        self._reader, self._roles = reader, roles
        is_known = before is not None and before.layout.fields == reader.fields
        self.layout: PairLayout = before.layout if before is not None and is_known else PairLayout(reader.fields, roles)
        self.first, last = reader.span
        self.end = max(self.first, reader.complete_end(roles.needed))
        self._broken = reader.view.breaks() - 1
        known = before._known_of(self._broken) if before is not None else _NOT_LOOKED
        self._looked = np.concatenate([known, self._look(self._broken[len(known) :])])
        steps, looked = self._broken, self._looked
        if self.end > self.first and not (len(steps) and steps[-1] == self.end - 1):
            newest = np.array([self.end - 1])
            steps, looked = np.concatenate([steps, newest]), np.concatenate([looked, self._look(newest)])
        has_end, has_final = looked.T
        #: Steps that end their episode by their final observation alone.
        self.cuts = steps[has_final & ~has_end]
        self.cut = min(stack - 1, self.end - self.first) if self.first else 0
        has_next = has_end | has_final | bool(roles.next_obs)
        lost = steps[~has_next & (steps >= self.first + self.cut) & (steps < self.end)]
        self._gaps = lost - self.first - self.cut
        #: What the ids of transitions lie in, and those in between that are none.
        self.reach, self.lost_ids = (self.first + self.cut, self.end), lost
        is_pending = int(len(lost) > 0 and lost[-1] == self.end - 1)
        self.pending, self.lost = is_pending + last - self.end, len(lost) - is_pending
        self.n = self.end - self.first - self.cut - len(lost)

    def _known_of(self, broken: Int64) -> Bools:
        """What was found of the first of these steps."""
        n = len(self._broken)
        is_same = n <= len(broken) and np.array_equal(self._broken, broken[:n])
        return self._looked if is_same else _NOT_LOOKED

    def select(self, numbers: Any) -> Int64:
        """The ids of transitions, given by their numbers from 0 to ``n``."""
        chosen = np.asarray(numbers, np.int64)
        if chosen.size and int(chosen.view(np.uint64).max()) >= self.n:  # negative ones are the largest
            raise IndexError(
                f"transitions are numbered 0 to {self.n - 1:,}, got {int(chosen.min())} to {int(chosen.max())}"
            )
        if len(self._gaps):
            chosen = chosen + np.searchsorted(self._gaps - np.arange(len(self._gaps)), chosen, side="right")
        ids: Int64 = chosen + (self.first + self.cut)
        return ids

    def are_valid(self, ids: Any) -> Bools:
        """Which of some ids are transitions."""
        asked = np.asarray(ids, np.int64)
        is_inside: Bools = (asked >= self.first + self.cut) & (asked < self.end)
        return is_inside & ~np.isin(asked - self.first - self.cut, self._gaps) if len(self._gaps) else is_inside

    def check(self, ids: Int64) -> None:
        """Refuse ids that are no transitions."""
        valid = self.are_valid(ids)
        if not valid.all():
            wrong = int(ids[np.argmin(valid)])
            if self.first <= wrong < self.end:
                raise IndexError(
                    f"step {wrong:,} has no successor: its recorder stopped there, or its frames were trimmed"
                )
            raise IndexError(f"step {wrong:,} is none of {self.first:,} to {self.end - 1:,}, which this stream holds")

    def have_successors(self, ids: Int64) -> Bools:
        """Whether something was seen behind steps that may be the last of their episodes."""
        if self._roles.next_obs:
            return np.ones(len(ids), np.bool_)
        found: Bools = np.any(self._look(ids), axis=1)
        return found

    def _look(self, ids: Int64) -> Bools:
        """Whether steps say that their episode ends, and whether they have a final observation, as [n, 2]."""
        roles, fields = self._roles, self._reader.fields
        finals = list(roles.final_obs.values())[:1]
        if not len(ids):
            return _NOT_LOOKED
        found = self._reader.read(Steps.single(ids), [*roles.ends, *finals], finals)
        ends = [found[fields[type_].name][:, 0].reshape(len(ids), -1).any(-1) for type_ in roles.ends]
        present = [found["present"][fields[type_].name][:, 0] for type_ in finals] or [np.zeros(len(ids), np.bool_)]
        return np.stack([np.any(ends, axis=0), present[0]], axis=1)


class KnownTransitions:
    """Roles that were found, and which steps are transitions, as long as a stream does not grow."""

    def __init__(self) -> None:
        self._roles: dict[Any, Roles] = {}
        self._ids: dict[tuple[int, int], tuple[Any, TransitionIds]] = {}
        self._reading: tuple[Any, Any, Transitions | None] = None, None, None

    def roles(self, ids: Mapping[str, int], given: Mapping[str, str | None], repeats_final: bool) -> Roles:
        """The roles that fields play."""
        key = tuple(given.items()), repeats_final
        if key not in self._roles:
            self._roles[key] = Roles.find(ids, given, repeats_final)
        return self._roles[key]

    def reading(self, reader: StepReader, how: Any, make: Callable[[], Transitions]) -> Transitions:
        """What ``make`` returned the last time, if it was asked for in the same way, and nothing was appended since."""
        at = reader.source, _reach(reader.view)
        known_at, known_how, reading = self._reading
        if reading is None or known_at != at or known_how != how:
            reading = make()
            self._reading = at, how, reading
        return reading

    def ids(self, reader: StepReader, roles: Roles, stack: int) -> TransitionIds:
        """The steps that are transitions now."""
        reach = _reach(reader.view)
        known, ids = self._ids.get((id(roles), stack), (None, None))
        if ids is None or known != reach:
            ids = TransitionIds(reader, roles, stack, ids)
            self._ids[id(roles), stack] = reach, ids
        return ids


def _reach(view: View) -> tuple[Any, ...]:
    """How far a stream reaches; it changes when breaks become known, too."""
    return view.reach, view.branches.n_records


@dataclass(frozen=True)
class Target:
    """What a transition is to hold: how many steps are summed, frames stacked, goals relabelled."""

    gamma: float = 0.99
    n_step: int = 1
    stack: int = 1
    hindsight: Hindsight | None = None


class Transitions:
    """Reads transitions out of the steps that a stream has at one moment."""

    def __init__(
        self, reader: StepReader, roles: Roles, ids: TransitionIds, episodes: Callable[[], Episodes], target: Target
    ) -> None:
        self.reader, self.roles, self.target, self.ids = reader, roles, target, ids
        self._episodes = episodes

    def read(self, ids: Int64, rng: np.random.Generator) -> Batch:
        """The transitions of these steps."""
        target, layout = self.target, self.ids.layout
        if layout.is_usable and target.n_step == 1 and target.stack == 1 and target.hindsight is None:
            batch = self._read_pairs(ids, layout)
            if batch is not None:
                return batch
        self.ids.check(ids)
        return self._read_generally(ids, rng)

    def _read_pairs(self, ids: Int64, layout: PairLayout) -> Batch | None:
        """The transitions, if all are laid out as expected."""
        found = layout.read(self.reader, self.ids, ids)
        if found is None:
            return None
        roles, reward = self.roles, found.now[self.roles.reward]
        return {
            "id": ids,
            "obs": _member_values(roles.obs, found.now),
            "action": _member_values(roles.action, found.now),
            "next_obs": _member_values(roles.obs, found.behind),
            "reward": reward,
            "terminated": found.terminated,
            "truncated": found.truncated,
            "discount": np.array([self.target.gamma, 0], _dtype_of_returns(reward)).take(found.terminated),
        }

    def _read_generally(self, ids: Int64, rng: np.random.Generator) -> Batch:
        roles, target = self.roles, self.target
        # One look at the steps for all that is read of them alone: each costs 20 us, whatever it reads.
        first = self.reader.read(Steps.single(ids), self._of_one_step())
        rewards, terminated, truncated, used = self._outcomes(ids, first)
        ended = terminated | truncated
        stops: Bools = np.any(ended, axis=1)
        last = used - 1
        rows = np.arange(len(ids))
        batch: Batch = {"id": ids}
        begins = self._bounds(ids)[0] if target.stack > 1 else ids
        obs = (
            self._parts(roles.obs, first) if target.stack == 1 else self._stacked(stack_ids(ids, begins, target.stack))
        )
        batch["obs"], lengths = self._value(roles.obs, obs)
        batch["action"], more = self._value(roles.action, self._parts(roles.action, first))
        next_obs = self._next_frames(ids + last, stops, begins)
        if target.hindsight is not None:
            rewards, batch["relabelled"] = self._relabel(ids, used, ended, rewards, obs, next_obs, rng)
            batch["obs"], _ = self._value(roles.obs, obs)
        batch["next_obs"], next_lengths = self._value(roles.obs, next_obs)
        dtype = _dtype_of_returns(rewards)
        batch["reward"] = rewards[:, 0]
        if target.n_step > 1:
            batch["reward"] = n_step_returns(rewards.astype(np.float64), used, target.gamma).astype(dtype)
        batch["terminated"], batch["truncated"] = (flags[rows, last] & stops for flags in (terminated, truncated))
        batch["discount"] = np.where(batch["terminated"], 0, target.gamma**used).astype(dtype)
        found = {"obs": lengths, "action": more, "next_obs": next_lengths}
        if any(each is not None for each in found.values()):
            batch["lengths"] = {name: each for name, each in found.items() if each is not None}
        return batch

    # One step, and those behind it --------------------------------------------------------------------------------

    def _of_one_step(self) -> list[int]:
        """The types that are read of the first step of a transition."""
        roles, target = self.roles, self.target
        types = [*roles.action.values(), *(roles.obs.values() if target.stack == 1 else ())]
        return types + ([roles.reward, *roles.ends] if target.n_step == 1 else [])

    def _outcomes(self, ids: Int64, first: Batch) -> tuple[NDArray[Any], Bools, Bools, Int64]:
        """Rewards and ends of ``n_step`` steps from each on, and how many of them count."""
        roles, n_step = self.roles, self.target.n_step
        counts = window = np.ones(len(ids), np.int64)
        found = first
        if n_step > 1:
            limits = self._limits(ids)
            counts = window = np.minimum(n_step, limits - ids)
            steps = Steps(ids, window, np.zeros(len(ids), np.int64), n_step)
            found = self.reader.read(steps, [roles.reward, *roles.ends])
            counts = np.minimum(counts, limits - ids - (0 if roles.next_obs else 1))
        rewards = self._named(found, roles.reward)
        terminated = self._named(found, roles.terminated) != 0
        truncated = np.zeros_like(terminated) if roles.truncated is None else self._named(found, roles.truncated) != 0
        if len(self.ids.cuts):
            is_cut = np.isin(ids + window - 1, self.ids.cuts)
            truncated[is_cut, window[is_cut] - 1] = True
        ended = terminated | truncated
        return rewards, terminated, truncated, np.where(ended.any(1), ended.argmax(1) + 1, counts)

    def _named(self, found: Batch, type_: int) -> NDArray[Any]:
        """A field of one number a step, as [n, n_steps]."""
        array: NDArray[Any] = found[self.reader.fields[type_].name]
        if array.ndim != 2:
            raise SchemaError(
                f"field {self.reader.fields[type_].name!r} holds {array.shape[2:]} numbers a step; this role is one"
            )
        return array

    def _limits(self, ids: Int64) -> Int64:
        """The number behind the last step that follows each without a break."""
        breaks = self.reader.view.breaks()
        if not len(breaks):
            return np.full(len(ids), self.ids.end)
        at = np.searchsorted(breaks, ids, side="right")
        return np.minimum(
            np.where(at < len(breaks), breaks[np.minimum(at, len(breaks) - 1)], self.ids.end), self.ids.end
        )

    def _bounds(self, ids: Int64) -> tuple[Int64, Int64]:
        episodes = self._episodes()
        episodes.update(self.reader.view)
        begins, ends = bounds_of(episodes, ids, self.ids.end)
        return np.maximum(begins, self.ids.first), np.minimum(ends, self.ids.end)

    # Observations -------------------------------------------------------------------------------------------------

    def _single(self, group: Group, ids: Int64) -> Batch:
        """The fields of a role in these steps, by their names in it, as [n, ...]; "name#" has ragged ones' lengths."""
        return self._parts(group, self.reader.read(Steps.single(ids), list(group.values())))

    def _parts(self, group: Group, found: Batch) -> Batch:
        parts: Batch = {}
        for path, type_ in group.items():
            name = self.reader.fields[type_].name
            parts[path] = found[name][:, 0]
            if name in found.get("lengths", {}):
                parts[f"{path}#"] = found["lengths"][name][:, 0]
        return parts

    def _behind(self, ids: Int64, ended: Bools) -> Batch:
        """What was seen behind steps, of which ``ended`` are the last of their episodes."""
        roles = self.roles
        if roles.next_obs:
            return self._single(roles.next_obs, ids)
        parts = self._single(roles.obs, np.where(ended, ids, ids + 1))
        if roles.final_obs and ended.any():
            final = self._single(roles.final_obs, ids[ended])
            for path, values in final.items():
                parts[path] = _put(parts[path], ended, values)
        return parts

    def _stacked(self, frames: Int64) -> Batch:
        parts = self._single(self.roles.obs, frames.reshape(-1))
        return {path: values.reshape(*frames.shape, *values.shape[1:]) for path, values in parts.items()}

    def _next_frames(self, ids: Int64, ended: Bools, begins: Int64) -> Batch:
        newest = self._behind(ids, ended)
        if self.target.stack == 1:
            return newest
        older = self._stacked(stack_ids(ids + 1, begins, self.target.stack)[:, :-1])
        return {path: np.concatenate([older[path], values[:, None]], axis=1) for path, values in newest.items()}

    @staticmethod
    def _value(group: Group, parts: Batch) -> tuple[Any, Any]:
        """A role as a user sees it, and the lengths of what is ragged in it, or None."""
        values = {path: parts[path] for path in group}
        lengths = {path: parts[f"{path}#"] for path in group if f"{path}#" in parts}
        if "" in group:
            return values[""], lengths.get("")
        return nested(values), nested(lengths) if lengths else None

    # Hindsight ----------------------------------------------------------------------------------------------------

    def _relabel(
        self,
        ids: Int64,
        used: Int64,
        ended: Bools,
        rewards: NDArray[Any],
        obs: Batch,
        next_obs: Batch,
        rng: np.random.Generator,
    ) -> tuple[NDArray[Any], Bools]:
        """Put goals that were reached into a share of the transitions; their rewards, and which they are."""
        hindsight = self.target.hindsight
        assert hindsight is not None
        goal, achieved = (self._member(name) for name in (hindsight.goal, hindsight.achieved))
        chosen = rng.random(len(ids)) < hindsight.ratio
        draws = rng.random(len(ids))[chosen]
        if not chosen.any():
            return rewards, chosen
        goals = self._goals(ids[chosen], draws, hindsight.strategy)[achieved]
        for parts in (obs, next_obs):
            frames = goals if self.target.stack == 1 else np.repeat(goals[:, None], self.target.stack, axis=1)
            parts[goal] = _put(parts[goal], chosen, frames)
        paid = rewards.copy()
        is_used = (np.arange(rewards.shape[1]) < used[:, None]) & chosen[:, None]
        steps = (ids[:, None] + np.arange(rewards.shape[1]))[is_used]
        reached = self._behind(steps, ended[is_used])[achieved]
        owners = np.repeat(np.arange(len(goals)), is_used.sum(1)[chosen])
        paid[is_used] = _rewards(hindsight, reached, goals[owners])
        return paid, chosen

    def _goals(self, ids: Int64, draws: NDArray[np.float64], strategy: str) -> Batch:
        """What was seen behind a step of each episode."""
        begins, ends = self._bounds(ids)
        has_final = self.ids.have_successors(ends - 1)
        usable = np.where(has_final, ends, ends - 1)
        steps = goal_steps(ids, begins, usable, strategy, draws)
        return self._behind(steps, has_final & (steps == ends - 1))

    def _member(self, name: str) -> str:
        for path in (name, name.partition(".")[2]):
            if path and path in self.roles.obs:
                return path
        raise SchemaError(
            f"hindsight needs {name!r} among the members of the observation, which are {sorted(self.roles.obs)}; name "
            "them "
            "with Hindsight(goal=, achieved=)"
        )


def _member_values(group: Group, values: Mapping[int, NDArray[Any]]) -> Any:
    """A role as a user sees it, of the values of its fields."""
    return values[group[""]] if "" in group else nested({path: values[type_] for path, type_ in group.items()})


def _dtype_of_returns(rewards: NDArray[Any]) -> np.dtype[Any]:
    """The dtype of what is computed of rewards."""
    return rewards.dtype if rewards.dtype.kind == "f" else np.dtype(np.float64)


def _rewards(hindsight: Hindsight, reached: NDArray[Any], goals: NDArray[Any]) -> NDArray[Any]:
    rewards = np.asarray(hindsight.reward(reached, goals))
    if rewards.shape != (len(goals),):
        raise SchemaError(
            f"Hindsight(reward=): for {len(goals)} goals it returned an array of shape {rewards.shape}; return one "
            "number each"
        )
    return rewards


def _put(values: NDArray[Any], where: Bools, new: NDArray[Any]) -> NDArray[Any]:
    """The array with some rows replaced; ragged ones are padded to the longer of the two."""
    shape = tuple(map(max, values.shape[1:], new.shape[1:]))
    if values.shape[1:] == shape == new.shape[1:]:
        values[where] = new
        return values
    wide = padded(values, shape)
    wide[where] = padded(new, shape)
    return wide
