"""Transitions of small steps that all have the same fields: two steps lie side by side, so one window holds both.

    obs action reward terminated truncated | obs action reward ...          the step goes on: the next observation
    obs action reward terminated truncated | final_obs | obs action ...     it ends: the final one

Reading a window costs half of looking up each field of each step. The types of its tokens prove the layout; what does
not have it (a field more or less) is left to the general way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.tokens.fields import TokenField, as_numbers

if TYPE_CHECKING:
    from poolish.tokens.steps import StepReader

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Longer steps are copied field by field: their tokens cost more than looking them up.
MOST_TOKENS = 128


class PairLayout:
    """Where the fields of a step are in its tokens, if each step has all of them but the final ones."""

    def __init__(self, fields: Sequence[TokenField], finals: Sequence[int]) -> None:
        plain = [type_ for type_ in range(len(fields)) if type_ not in finals]
        sizes = {type_: _size(field) for type_, field in enumerate(fields)}
        self.fields, self.finals = fields, list(finals)
        self.places = _places(plain, sizes)
        self.width = sum(sizes[type_] for type_ in plain)
        self.final_places = _places(self.finals, sizes)
        self.final_width = sum(sizes[type_] for type_ in finals)
        self._types = np.repeat(plain, [sizes[type_] for type_ in plain])
        self._final_types = np.repeat(self.finals, [sizes[type_] for type_ in finals]).astype(np.int64)
        in_order = plain == sorted(plain) and (not finals or min(finals) > max(plain, default=-1))
        self.is_usable = bool(
            in_order and all(sizes.values()) and self.final_width <= self.width and 0 < self.width <= MOST_TOKENS
        )

    def windows(self, reader: StepReader, ids: Int64) -> tuple[Int64, Bools, Bools, Bools]:
        """The tokens of two steps each, and whether the first, the second, and a final observation are laid out so."""
        view, lanes = reader.view, reader.view.lanes
        begins = view.begins_of(ids)
        fits = begins + 2 * self.width <= view.tokens
        starts = np.where(fits, begins, view.first_token)
        values = np.empty((len(ids), 2 * self.width), np.int64)
        types = np.empty_like(values)
        args = lanes.data.room, lanes.types.room, view.first_token, view.tokens, starts, 2 * self.width, values, types
        if view.tokens - view.first_token < 2 * self.width or kernels.windows(*args) >= 0:
            nothing = np.zeros(len(ids), np.bool_)
            return values, nothing, nothing, nothing
        reader.check_kept(ids)
        first: Bools = (types[:, : self.width] == self._types).all(1) & fits
        second: Bools = (types[:, self.width :] == self._types).all(1)
        final: Bools = (types[:, self.width : self.width + self.final_width] == self._final_types).all(1)
        return values, first, second, final

    def decode(self, values: Int64, type_: int, offset: int = 0) -> NDArray[Any]:
        """A field of the windows, as [n, *shape]; inside an ``np.errstate``, for other tokens may be among them."""
        field = self.fields[type_]
        begin, end = (self.final_places if type_ in self.finals else self.places)[type_]
        tokens = np.ascontiguousarray(values[:, offset + begin : offset + end])
        numbers = as_numbers(tokens, field.dtype)
        return numbers.reshape(len(values), *(size or 0 for size in field.shape or ()))


def _size(field: TokenField) -> int:
    """How many tokens a field has, 0 if that varies."""
    shape = field.shape
    return 0 if shape is None or None in shape else int(np.prod([size or 0 for size in shape], dtype=np.int64))


def _places(types: Sequence[int], sizes: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    places, begin = {}, 0
    for type_ in types:
        places[type_] = begin, begin + sizes[type_]
        begin += sizes[type_]
    return places
