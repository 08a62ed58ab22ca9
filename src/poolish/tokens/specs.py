"""What a user may write for a field, taken apart: nested mappings, gymnasium spaces, dtypes with shapes, sample values.

    {"obs": Dict(position=Box(2,), mission=Text(20)), "action": Discrete(2), "reward": 0.5}
      --leaves-->  obs.position: float32[2]   obs.mission: uint8[any]   action: int64   reward: float64

Nested names are joined by dots, members of a tuple by their numbers, and values that are recorded are taken apart in
the same way. Text becomes its UTF-8 bytes. gymnasium is recognised without being imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from poolish.errors import SchemaError
from poolish.torch_bridge import is_torch_tensor

Shape = tuple[int | None, ...]

TEXT = "uint8"


class Spec(NamedTuple):
    """A dtype and the shape of one value."""

    dtype: str
    shape: Shape


def leaves(description: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Any, Any]]:
    """Each field's name, and a ``Spec`` or, where it is none of what this module knows, the declaration as it is.

    >>> list(leaves({"obs": {"x": ("float32", (2,)), "y": np.float64(0)}, "action": "int64"}))
    [('obs.x', Spec(dtype='float32', shape=(2,))), ('obs.y', Spec(dtype='float64', shape=())), ('action', 'int64')]
    """
    for name, declared in description.items():
        if prefix and not isinstance(name, str):
            raise SchemaError(f"field {prefix}{name!r}: names are strings; rename it")
        yield from _leaves(f"{prefix}{name}" if prefix else name, declared)


def _leaves(name: Any, declared: Any) -> Iterator[tuple[Any, Any]]:
    members = _members(name, declared)
    if members is None:
        yield name, _spec(name, declared)
    elif not members:
        raise SchemaError(f"field {name!r}: {type(declared).__name__} without members; leave the field out")
    else:
        yield from leaves(members, f"{name}.")


def _members(name: Any, declared: Any) -> Mapping[Any, Any] | None:
    """What a nested declaration is made of."""
    if is_space(declared):
        inner = getattr(declared, "spaces", None)
        if isinstance(inner, Mapping):
            return inner
        return None if inner is None else {str(i): space for i, space in enumerate(inner)}
    if isinstance(declared, np.dtype) and declared.names:
        return {member: declared[member] for member in declared.names}
    return declared if isinstance(declared, Mapping) else None


def is_space(declared: object) -> bool:
    """Whether this is a space of gymnasium (or of gym), without importing it."""
    return any(
        name in sys.modules and isinstance(declared, getattr(sys.modules[name], "Space", ()))
        for name in ("gymnasium.spaces", "gym.spaces")
    )


def _spec(name: Any, declared: Any) -> Any:
    if is_space(declared):
        return _spec_of_space(name, declared)
    if isinstance(declared, np.dtype) and declared.subdtype is not None:
        return Spec(declared.base.name, declared.shape)
    if isinstance(declared, tuple) and len(declared) == 2 and isinstance(declared[1], (tuple, list)):
        return _spec_of_pair(name, *declared)
    return _spec_of_value(declared)


def _spec_of_space(name: Any, space: Any) -> Spec:
    kind = type(space).__name__
    if any(parent.__name__ == "Text" for parent in type(space).__mro__):
        return Spec(TEXT, (None,))
    if space.dtype is None or space.shape is None:
        raise SchemaError(
            f"field {name!r}: a stream cannot hold {kind} spaces; flatten it with "
            "gymnasium.spaces.utils.flatten_space, "
            "or declare its parts as fields of their own"
        )
    return Spec(np.dtype(space.dtype).name, tuple(space.shape))


def _spec_of_pair(name: Any, dtype: Any, shape: Sequence[Any]) -> Spec:
    try:
        return Spec(np.dtype(dtype).name, tuple(None if size is None else int(size) for size in shape))
    except (TypeError, ValueError):
        raise SchemaError(
            f"field {name!r}: ({dtype!r}, {shape!r}) is no dtype and shape; write ('float32', (4,))"
        ) from None


def _spec_of_value(value: Any) -> Any:
    """The spec of a sample value; lists have any length, arrays exactly theirs."""
    if isinstance(value, (np.ndarray, np.generic)):
        return Spec(value.dtype.name, value.shape)
    if is_torch_tensor(value):
        return Spec(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    if isinstance(value, (bool, int, float)):
        return Spec(np.asarray(value).dtype.name, ())
    if isinstance(value, list) and value and all(isinstance(number, (bool, int, float)) for number in value):
        return Spec(np.asarray(value).dtype.name, (None,))
    return value


def flat_values(values: Mapping[Any, Any], known: Mapping[str, int], prefix: str = "") -> dict[Any, Any]:
    """One step's values by the names of fields: nested mappings and tuples are taken apart, text becomes bytes.

    >>> flat_values({"obs": {"x": 1, "goal": (2, "up")}}, {"obs.x": 0, "obs.goal.0": 1, "obs.goal.1": 2})
    {'obs.x': 1, 'obs.goal.0': 2, 'obs.goal.1': array([117, 112], dtype=uint8)}
    """
    flat: dict[Any, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}" if prefix else key
        if isinstance(value, Mapping) and name not in known:
            flat.update(flat_values(value, known, f"{name}."))
        elif isinstance(value, (tuple, list)) and name not in known and f"{name}.0" in known:
            flat.update(flat_values({str(i): part for i, part in enumerate(value)}, known, f"{name}."))
        else:
            flat[name] = np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else value
    return flat
