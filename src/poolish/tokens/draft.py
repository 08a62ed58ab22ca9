"""One ``append``, checked as a whole before a byte of it is written.

The rule of order is one comparison: each field-write lies behind the one before it, by (step, type). Within a step that
is the declaration order; a later append may go on with the last step, behind its last field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import PoolishError, SchemaError
from poolish.tokens.fields import TokenField, type_of
from poolish.tokens.values import encode_value, shown

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Draft:
    """Field-writes, encoded: a step, a type and a length for each, all their tokens, and the kind of each type."""

    steps: Int64
    types: Int64
    lengths: Int64
    tokens: Int64
    kinds: Mapping[int, int]


def draft(
    fields: Sequence[TokenField], ids: Mapping[str, int], last: tuple[int, int], steps: Any, names: Any, values: Any
) -> Draft:
    """What an append would write behind ``last`` (a step and a type), or the error that says why it must not."""
    names, values = _listed(names, "names"), _listed(values, "values")
    steps = _steps(steps, len(names))
    if not len(steps) == len(names) == len(values):
        counts = f"{len(steps)} steps, {len(names)} names and {len(values)} values"
        raise SchemaError(f"append needs one step and one value for each name, got {counts}")
    types: list[int] = []
    kinds: dict[int, int] = {}
    parts: list[Int64] = []
    for i, (step, name, value) in enumerate(zip(steps, names, values, strict=True)):
        type_ = type_of(ids, name)
        check_order(fields, last, (step, type_))
        last = step, type_
        field = fields[type_].decided(kinds.get(type_, 0))
        try:
            tokens, kinds[type_] = encode_value(field, value)
        except PoolishError as error:
            raise type(error)(f"entry {i}, step {step}: {error}") from error.__cause__
        types.append(type_)
        parts.append(tokens)
    return Draft(
        np.array(steps, np.int64),
        np.array(types, np.int64),
        np.array([len(part) for part in parts], np.int64),
        np.concatenate(parts) if parts else np.empty(0, np.int64),
        kinds,
    )


def _listed(given: Any, what: str) -> list[Any]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise SchemaError(f"{what} is a list with one entry for each field, got {shown(given)}")
    return list(given)


def _steps(steps: Any, n: int) -> list[int]:
    is_one = isinstance(steps, (int, np.integer)) or getattr(steps, "ndim", 1) == 0
    return [step_number(step) for step in ([steps] * n if is_one else _listed(steps, "steps"))]


def step_number(step: Any) -> int:
    """A step as an int, if it is one: whole, not negative, below 2**63."""
    if isinstance(step, (int, np.integer)) and not isinstance(step, bool) and 0 <= step < 2**63:
        return int(step)
    if not isinstance(step, (bool, np.bool_, int, np.integer)):
        with suppress(TypeError, AttributeError, RuntimeError):  # arrays and tensors of one whole number have an index
            return step_number(step.__index__())
    raise SchemaError(f"a step is a whole number from 0 to 2**63 - 1, got {shown(step)}; number steps from 0")


def check_order(fields: Sequence[TokenField], last: tuple[int, int], this: tuple[int, int]) -> None:
    """Refuse a field-write (a step and a type) that does not lie behind the last one."""
    if this > last:
        return
    (last_step, last_type), (step, type_) = last, this
    if step < last_step:
        raise SchemaError(f"step {step} comes after step {last_step}; steps never decrease, append them in order")
    names = [field.name for field in fields]
    raise SchemaError(
        f"step {step}: field {names[type_]!r} comes after {names[last_type]!r}; within a step each field is written "
        f"once, in the order {names}"
    )
