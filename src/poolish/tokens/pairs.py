"""Transitions of steps that all have the same fields: those of two steps lie side by side, so one look finds both.

    obs action reward terminated truncated | obs action reward ...          the step goes on: the next observation
    obs action reward terminated truncated | final_obs | obs action ...     it ends: the final one

One kernel reads them into the arrays of a batch; two looks at each step cost three times as much. The index proves the
layout; what does not have it (a field more or less) is left to the general way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.tokens.fields import TokenField
from poolish.tokens.steps import CARRIERS, in_declared_dtype

if TYPE_CHECKING:
    from poolish.tokens.steps import StepReader
    from poolish.tokens.transitions import Roles, TransitionIds

Int64 = NDArray[np.int64]
Arrays = dict[int, NDArray[Any]]

_END = 0  # stands for a type in the last line of a table, which says how many tokens there are


class Pairs(NamedTuple):
    """Fields by their types, as they are in steps, observations as they are behind them, and how the steps ended."""

    now: Arrays
    behind: Arrays
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class PairLayout:
    """Where the fields of a step are in its tokens, if each step has all of them but the final ones."""

    def __init__(self, fields: Sequence[TokenField], roles: Roles) -> None:
        self.fields, finals = fields, sorted(roles.final_obs.values())
        plain = [type_ for type_ in range(len(fields)) if type_ not in finals]
        ends = [fields[type_] for type_ in roles.ends]
        self.is_usable = bool(
            finals
            and not roles.next_obs
            and min(finals) > max(plain)
            and all(map(_size, fields))
            and all(field.shape == () and field.dtype != "float16" for field in ends)
            and all(fields[type_].dtype == fields[final].dtype for type_, final in _finals(roles).items())
            and all(_size(fields[type_]) == _size(fields[final]) for type_, final in _finals(roles).items())
        )
        if self.is_usable:
            self._describe(roles, plain, finals)

    def _describe(self, roles: Roles, plain: list[int], finals: list[int]) -> None:
        """Tables for the kernel."""
        self._plain, self._final = _table(plain, self.fields), _table(finals, self.fields)
        place, final_place = (dict(table[:-1].tolist()) for table in (self._plain, self._final))
        self._n_next = 1 + max(plain.index(type_) for type_ in roles.obs.values())
        flags = (roles.terminated, roles.truncated)
        self._flags = np.array(
            [number for type_ in flags for number in ((-1, 0) if type_ is None else (place[type_], self._kind(type_)))]
        )
        now = dict.fromkeys([*roles.obs.values(), *roles.action.values(), roles.reward])
        self._now = [(type_, place[type_], -1, *self._numbers(type_)) for type_ in now]
        self._next = [
            (type_, place[type_], final_place[final], *self._numbers(type_)) for type_, final in _finals(roles).items()
        ]

    def _kind(self, type_: int) -> int:
        """How a flag is compared with zero."""
        return {"float64": 1, "float32": 2}.get(self.fields[type_].dtype, 0)

    def _numbers(self, type_: int) -> tuple[int, bool, tuple[int, ...], np.dtype[Any]]:
        field = self.fields[type_]
        shape = tuple(size or 0 for size in field.shape or ())
        return _size(field), field.is_float, shape, CARRIERS[field.dtype]

    def read(self, reader: StepReader, found: TransitionIds, ids: Int64) -> Pairs | None:
        """What these steps hold; None if any is no transition, or laid out otherwise."""
        n, lanes = len(ids), reader.view.lanes
        now: Arrays = {}
        behind: Arrays = {}
        columns = []
        for into, wanted in ((now, self._now), (behind, self._next)):
            for type_, place, final_place, size, is_float, shape, dtype in wanted:
                values = into[type_] = np.empty((n, *shape), dtype)
                columns.append((place, final_place, size, is_float, values))
        terminated, truncated = np.empty(n, np.bool_), np.empty(n, np.bool_)
        bad = kernels.gather_pairs(
            lanes.data.room,
            lanes.index.room,
            reader.view.first_row,
            reader.view.rows,
            ids,
            *found.reach,
            found.lost_ids,
            found.cuts,
            self._plain,
            self._final,
            self._n_next,
            self._flags,
            columns,
            terminated.view(np.uint8),
            truncated.view(np.uint8),
        )
        reader.check_kept(ids)
        if bad >= 0:
            return None
        return Pairs(self._declared(now), self._declared(behind), terminated, truncated)

    def _declared(self, arrays: Arrays) -> Arrays:
        return {type_: in_declared_dtype(self.fields[type_], each) for type_, each in arrays.items()}


def _finals(roles: Roles) -> dict[int, int]:
    """For each observation the final one."""
    return {type_: roles.final_obs[path] for path, type_ in roles.obs.items()} if roles.final_obs else {}


def _size(field: TokenField) -> int:
    """How many tokens a field has, 0 if that varies."""
    shape = field.shape
    return 0 if shape is None or None in shape else int(np.prod([size or 0 for size in shape], dtype=np.int64))


def _table(types: Sequence[int], fields: Sequence[TokenField]) -> Int64:
    """Type and place of each field, and a last line with how many tokens they have."""
    ends = np.cumsum([0, *(_size(fields[type_]) for type_ in types)])
    return np.ascontiguousarray(np.stack([[*types, _END], ends], axis=1), np.int64)
