"""The methods of a stream that read experience: decoded steps, sequences and transitions, ready to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish.arguments import check_whole
from poolish.errors import ConfigError, SchemaError
from poolish.tokens.drawing import Drawable
from poolish.tokens.reading import StreamReads, Within
from poolish.tokens.sampling import Coverage, Episodes, Weight
from poolish.tokens.sequence_transforms import SequenceContext, Transform
from poolish.tokens.sequences import KnownSequences, SequenceShape, bounds_of
from poolish.tokens.steps import Batch, StepReader, Steps, as_output, check_free, check_output, nested
from poolish.tokens.transforms import Hindsight, check_fraction
from poolish.tokens.transitions import (
    CONVENTIONS,
    KnownTransitions,
    Roles,
    Target,
    TransitionIds,
    Transitions,
    final_types,
    group_of,
)

Int64 = NDArray[np.int64]

_TAKEN = ("id", "mask", "lengths", "present", "return_to_go", "advantage", "value_target")


class ExperienceReads(StreamReads):
    """The methods of a stream that read experience."""

    _sequences: KnownSequences
    _known_transitions: KnownTransitions

    # Sequences ----------------------------------------------------------------------------------------------------

    @overload
    def sample(
        self,
        n: int,
        width: int,
        *,
        rng: np.random.Generator | None = None,
        start: str = "token",
        within: Within | None = None,
        weights: Sequence[Weight] | None = None,
        types: bool = True,
    ) -> dict[str, Int64]: ...
    @overload
    def sample(
        self,
        n: int,
        *,
        n_steps: int,
        rng: np.random.Generator | None = None,
        within: Within | None = None,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        short: str = "drop",
        overlap: int | None = None,
        burn_in: int = 0,
        transforms: Sequence[Transform] = (),
        output: str | None = None,
        device: Any = None,
    ) -> Batch: ...
    def sample(self, n: int, width: int | None = None, *, n_steps: int | None = None, **how: Any) -> Any:
        """``n`` random windows of ``width`` tokens, or sequences of ``n_steps`` steps, drawn with replacement.

        **Tokens** (``width``): each of all possible windows has the same chance. They begin at any token, or with
        ``start="step"`` where a step does. ``within="done"`` keeps each inside one episode: one ends with the step
        whose ``done`` is not zero; the last one may still be going on. ``weights`` are (first step, step behind the
        last, weight): the chance of a window is the weight of the range its start is in, and 0 outside of them. A step
        without tokens begins where the next one does, and that window counts for both.

        **Steps** (``n_steps``): decoded, in the declared dtypes and shapes, {"obs": float32[n, n_steps, 4], ...}. They
        lie inside episodes, which end at breaks and where a field of ``within`` is not zero. ``mask`` says which places
        hold a step, ``id`` is its number. ``short="pad"`` takes what is shorter too, zeros behind it. Sequences begin
        ``n_steps - overlap`` steps apart in each episode, by default one; ``burn_in`` steps come before each, as far as
        its episode has them. A field of varying length is padded, with ``lengths``; one that steps may lack is named in
        ``optional``. ``final_obs``, which last steps alone have, is read where ``fields`` or ``optional`` name it.
        ``output`` is "numpy", "torch" or "jax", ``device`` one of theirs.

        >>> from poolish import StreamStore
        >>> store = StreamStore(fields={"obs": ("float32", (2,)), "done": "bool"})
        >>> for step in range(6):
        ...     store.append(step, {"obs": [step, -step], "done": step % 3 == 2})
        >>> batch = store.sample(4, n_steps=3, within="done", rng=np.random.default_rng(0))
        >>> batch["obs"].shape, batch["id"].tolist()
        ((4, 3, 2), [[3, 4, 5], [3, 4, 5], [3, 4, 5], [0, 1, 2]])
        """
        if (width is None) == (n_steps is None):
            raise ConfigError("sample takes width=, in tokens, or n_steps=, in steps; give one of them")
        if n_steps is None:
            return super().sample(n, width, **how)  # type: ignore[arg-type]
        return self._sample_steps(n, n_steps, **how)

    def _sample_steps(
        self,
        n: int,
        n_steps: int,
        *,
        rng: np.random.Generator | None = None,
        within: Within | None = None,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        short: str = "drop",
        overlap: int | None = None,
        burn_in: int = 0,
        transforms: Sequence[Transform] = (),
        output: str | None = None,
        device: Any = None,
    ) -> Batch:
        n, rng = check_whole(n, "n", least=0, unit="sequences"), self._generator(rng)
        check_output(output, device)
        found = self._sequences_to_draw(n_steps, within, fields, optional, short, overlap, burn_in, transforms)
        return as_output(found.draw(n, rng), output, device)

    def _sequences_to_draw(
        self,
        n_steps: int,
        within: Within | None = None,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        short: str = "drop",
        overlap: int | None = None,
        burn_in: int = 0,
        transforms: Sequence[Transform] = (),
    ) -> Drawable:
        """The sequences of a shape that there are now."""
        shape = SequenceShape.of(n_steps, overlap, short, burn_in)
        reader = StepReader(self._read())
        types, absent = self._chosen_of_sequences(fields, optional)
        end = reader.complete_end([type_ for type_ in types if type_ not in absent])
        sequences = self._sequences.of(self._episodes_of(reader, within), shape)
        low, high = sequences.bounds(reader.view, end)

        def read(numbers: Int64) -> Batch:
            steps = sequences.select(reader.view, low + numbers, end)
            return self._sequence_batch(reader, steps, types, absent, within, end, transforms, None, None)

        return Drawable(max(0, high - low), read, lambda: sequences.nothing(reader.view))

    def sequences_at(
        self,
        ids: ArrayLike,
        n_steps: int,
        *,
        within: Within | None = None,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        burn_in: int = 0,
        transforms: Sequence[Transform] = (),
        output: str | None = None,
        device: Any = None,
    ) -> Batch:
        """The sequences that begin at these steps, as ``sample(n_steps=)`` gives them; shorter ones are padded."""
        shape = SequenceShape.of(n_steps, None, "pad", burn_in)
        reader = StepReader(self._read())
        types, absent = self._chosen_of_sequences(fields, optional)
        asked = self._numbers_of_steps(reader, ids)
        if asked.ndim != 1:
            raise ConfigError(f"ids are the first steps of sequences, in one row, got the shape {asked.shape}")
        end = reader.span[1]
        begins, ends = self._bounds(reader, within, asked, end)
        steps = shape.steps(asked, begins, ends)
        return self._sequence_batch(reader, steps, types, absent, within, end, transforms, output, device)

    def _sequence_batch(
        self,
        reader: StepReader,
        steps: Steps,
        types: list[int],
        absent: list[int],
        within: Within | None,
        end: int,
        transforms: Sequence[Transform],
        output: str | None,
        device: Any,
    ) -> Batch:
        check_output(output, device)
        check_free([reader.fields[type_].name for type_ in types], _TAKEN)
        batch = reader.read(steps, types, absent)
        batch["mask"], batch["id"] = steps.mask, steps.numbers
        if transforms:
            context = SequenceContext(reader, self._ids, steps, lambda ids: self._bounds(reader, within, ids, end))
            for transform in transforms:
                transform.apply(batch, context)
        return as_output(nested(batch), output, device)

    def fields_at(
        self,
        ids: ArrayLike,
        fields: Sequence[str] | None = None,
        *,
        optional: Sequence[str] = (),
        output: str | None = None,
        device: Any = None,
    ) -> Batch:
        """The fields of steps, given by their numbers in an array of any shape: {"obs": float32[*ids.shape, 4], ...}.

        >>> from poolish import StreamStore
        >>> store = StreamStore(fields={"obs": ("float32", (2,)), "action": "int64"})
        >>> store.append(0, {"obs": [0.5, 1.0], "action": 3})
        >>> store.fields_at([[0, 0]])["action"]
        array([[3, 3]])
        """
        check_output(output, device)
        reader = StepReader(self._read())
        asked = self._numbers_of_steps(reader, ids)
        types, absent = self._chosen(fields, optional)
        found = reader.read(Steps.single(asked.reshape(-1)), types, absent)
        shaped = {name: _reshaped(values, asked.shape) for name, values in found.items()}
        return as_output(nested(shaped), output, device)

    def sequence_coverage(
        self, n_steps: int, *, within: Within | None = None, short: str = "drop", overlap: int | None = None
    ) -> Coverage:
        """How many sequences ``sample(n_steps=)`` chooses from, and how many episodes are shorter than one."""
        reader = StepReader(self._read())
        shape = SequenceShape.of(n_steps, overlap, short, 0)
        return self._sequences.of(self._episodes_of(reader, within), shape).coverage(reader.view, reader.span[1])

    def episode_bounds(self, ids: ArrayLike, within: Within | None = None) -> tuple[Int64, Int64]:
        """The number of the first step of the episode that each step belongs to, and of the one behind its last.

        Of the episode that is still open, the end is that of the stream so far.
        """
        reader = StepReader(self._read())
        asked = self._numbers_of_steps(reader, ids)
        return self._bounds(reader, within, asked, reader.span[1])

    # Transitions --------------------------------------------------------------------------------------------------

    def transitions(
        self,
        n: int,
        *,
        rng: np.random.Generator | None = None,
        gamma: float = 0.99,
        n_step: int = 1,
        stack: int = 1,
        hindsight: Hindsight | None = None,
        repeat_final: bool = False,
        output: str | None = None,
        device: Any = None,
        **roles: str | None,
    ) -> Batch:
        """``n`` random transitions: obs, action, reward, next_obs, terminated, truncated, discount, and the step's id.

        The last step of an episode has its own transition, with the final observation that was recorded with it. Steps
        whose successor was lost are left out; ``transition_ids`` counts them. ``obs=``, ``action=``, ``reward=``,
        ``terminated=``, ``truncated=``, ``final_obs=`` and ``next_obs=`` name fields that are not called so.
        ``discount`` is ``gamma`` to the power of the steps summed, and 0 where the episode terminated. ``n_step`` sums
        rewards, fewer at the end of an episode; ``stack`` gives the newest frames of ``obs`` and ``next_obs``.

        >>> from poolish import StreamStore
        >>> fields = {"obs": "float32", "action": "int64", "reward": "float32", "terminated": "bool"}
        >>> store = StreamStore(fields={**fields, "final_obs": "float32"})
        >>> store.append(0, {"obs": 0.0, "action": 1, "reward": 1.0, "terminated": False})
        >>> store.append(1, {"obs": 0.5, "action": 0, "reward": 2.0, "terminated": True, "final_obs": 0.75})
        >>> batch = store.transitions_at([0, 1], gamma=0.9)
        >>> batch["next_obs"].tolist(), batch["discount"].round(2).tolist()
        ([0.5, 0.75], [0.8999999761581421, 0.0])
        """
        n = check_whole(n, "n", least=0, unit="transitions")
        generator = self._generator(rng)
        check_output(output, device)
        found = self._transitions_to_draw(generator, gamma, n_step, stack, hindsight, repeat_final, **roles)
        return as_output(found.draw(n, generator), output, device)

    def _transitions_to_draw(
        self,
        rng: np.random.Generator,
        gamma: float = 0.99,
        n_step: int = 1,
        stack: int = 1,
        hindsight: Hindsight | None = None,
        repeat_final: bool = False,
        **roles: str | None,
    ) -> Drawable:
        """The transitions that there are now."""
        reading = self._transitions(gamma, n_step, stack, hindsight, repeat_final, roles)
        return Drawable(reading.ids.n, lambda numbers: reading.read(reading.ids.select(numbers), rng), _no_transition)

    def transitions_at(
        self,
        ids: ArrayLike,
        *,
        rng: np.random.Generator | None = None,
        gamma: float = 0.99,
        n_step: int = 1,
        stack: int = 1,
        hindsight: Hindsight | None = None,
        repeat_final: bool = False,
        output: str | None = None,
        device: Any = None,
        **roles: str | None,
    ) -> Batch:
        """The transitions of these steps, as ``transitions`` gives them; a step that is none is an ``IndexError``."""
        asked = self._whole_numbers(ids)
        if asked.ndim != 1:
            raise ConfigError(f"ids are numbers of steps, in one row, got the shape {asked.shape}")
        check_output(output, device)
        reading = self._transitions(gamma, n_step, stack, hindsight, repeat_final, roles)
        return as_output(reading.read(asked, self._generator(rng)), output, device)

    def transition_ids(self, *, stack: int = 1, repeat_final: bool = False, **roles: str | None) -> TransitionIds:
        """Which steps are transitions, how many, and how many are none because what came behind them was lost."""
        stack = check_whole(stack, "stack", unit="frames")
        return self._known_transitions.ids(StepReader(self._read()), self._roles(roles, repeat_final), stack)

    def _transitions(
        self,
        gamma: float,
        n_step: int,
        stack: int,
        hindsight: Hindsight | None,
        repeat_final: bool,
        names: Mapping[str, Any],
    ) -> Transitions:
        reader = StepReader(self._read())
        numbers = gamma, n_step, stack
        # Their types, too: True is not a number of steps, and equals 1.
        how = [type(each) for each in numbers], numbers, hindsight, repeat_final, names
        return self._known_transitions.reading(reader, how, lambda: self._new_transitions(reader, *how[1:]))

    def _new_transitions(
        self,
        reader: StepReader,
        numbers: tuple[float, int, int],
        hindsight: Hindsight | None,
        repeat_final: bool,
        names: Mapping[str, Any],
    ) -> Transitions:
        gamma, n_step, stack = numbers
        target = Target(
            check_fraction(gamma, "gamma"),
            check_whole(n_step, "n_step", unit="steps"),
            check_whole(stack, "stack", unit="frames"),
            hindsight,
        )
        if hindsight is not None and not isinstance(hindsight, Hindsight):
            raise ConfigError(f"hindsight={hindsight!r}: give a poolish.tokens.Hindsight(reward)")
        roles = self._roles(names, repeat_final)
        ends = {type_: reader.fields[type_] for type_ in roles.ends}
        ids = self._known_transitions.ids(reader, roles, target.stack)
        starts = self._starts  # and not the stream itself, which keeps what is made here
        return Transitions(reader, roles, ids, lambda: starts.episodes(reader.view, ends), target)

    def _roles(self, names: Mapping[str, Any], repeat_final: bool) -> Roles:
        self._read()
        unknown = set(names) - set(CONVENTIONS)
        if unknown:
            raise TypeError(f"transitions take no argument {sorted(unknown)[0]!r}; roles are {', '.join(CONVENTIONS)}")
        return self._known_transitions.roles(self._ids, names, repeat_final)

    # Around -------------------------------------------------------------------------------------------------------

    def _generator(self, rng: Any) -> np.random.Generator:
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise ConfigError(f"rng={rng!r}: give a np.random.Generator, such as np.random.default_rng(0)")
        return self._rng if rng is None else rng

    def _chosen(self, fields: Sequence[str] | None, optional: Sequence[str]) -> tuple[list[int], list[int]]:
        """The types to read, and those of them that steps may lack."""
        chosen, absent = (self._group_types(names) for names in (fields, optional))
        types = list(range(len(self._fields))) if fields is None else chosen
        return list(dict.fromkeys([*types, *absent])), absent

    def _chosen_of_sequences(
        self, fields: Sequence[str] | None, optional: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """The same; final observations, which last steps alone have, only where they are named."""
        types, absent = self._chosen(fields, optional)
        finals = final_types(self._ids) if fields is None else set()
        return [type_ for type_ in types if type_ not in finals or type_ in absent], absent

    def _group_types(self, names: Sequence[str] | None) -> list[int]:
        if isinstance(names, str):
            raise SchemaError(f"fields are a list of names, got {names!r}; write [{names!r}]")
        return [
            type_ for name in names or () for type_ in (group_of(self._ids, name).values() or [self._type_of(name)])
        ]

    def _episodes_of(self, reader: StepReader, within: Within | None) -> Episodes:
        episodes = self._starts.episodes(reader.view, {} if within is None else self._ending(within))
        episodes.update(reader.view)
        return episodes

    def _bounds(self, reader: StepReader, within: Within | None, ids: Int64, end: int) -> tuple[Int64, Int64]:
        begins, ends = bounds_of(self._episodes_of(reader, within), ids, end)
        return np.maximum(begins, reader.span[0]), ends

    def _numbers_of_steps(self, reader: StepReader, ids: ArrayLike) -> Int64:
        asked = self._whole_numbers(ids)
        first, end = reader.span
        if asked.size and not first <= asked.min() <= asked.max() < end:
            wrong = int(asked.min()) if asked.min() < first else int(asked.max())
            raise IndexError(f"step number {wrong:,} of this stream, which holds {first:,} to {end - 1:,}")
        return asked


def _no_transition() -> ConfigError:
    return ConfigError(
        "this stream holds no transition yet: a step and its successor, or an ended episode; append more"
    )


def _reshaped(values: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(values, Mapping):
        return {name: _reshaped(each, shape) for name, each in values.items()}
    return values.reshape(*shape, *values.shape[2:])
