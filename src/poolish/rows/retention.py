"""Which rows stay and which go: policies as plain functions, numbers in, row numbers out.

Rows are numbered from 0, the oldest, and survivors keep their order. A range is kept without looking at single rows.
A policy by age or chance takes (number of rows, rows to pick, rng). A policy by column takes (the column's values, rows
to pick, rng); users name it with the column, as in ``"top:score"``. The buffer rejects nulls, NaN and non-numeric
values in that column, so every row has a rank. Ranking reads the whole column: O(rows) per append or 1,024 single rows.
``Ranking`` keeps the order of ``lowest`` between appends, so that a row that is driven out costs O(log rows).

To add a policy, write a function of one of these shapes and put it into the table for its shape below;
``tests/rows/test_retention.py`` then runs the shared suite on it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import kernels
from poolish.arguments import is_whole
from poolish.errors import ConfigError, SchemaError
from poolish.rows.access import gather_fn
from poolish.schema import Schema, describe

if TYPE_CHECKING:
    from poolish.rows.storage import StoredRows

RowNumbers = range | NDArray[np.int64]
Values = NDArray[Any]
Pick = Callable[[int, int, np.random.Generator], RowNumbers]
PickByColumn = Callable[[Values, int, np.random.Generator], RowNumbers]


def latest(n_rows: int, n_kept: int, rng: np.random.Generator) -> RowNumbers:
    """The newest ``n_kept`` rows.

    >>> latest(10, 3, np.random.default_rng(0))
    range(7, 10)
    """
    return range(n_rows - n_kept, n_rows)


def oldest(n_rows: int, n_kept: int, rng: np.random.Generator) -> RowNumbers:
    """The oldest ``n_kept`` rows.

    >>> oldest(10, 3, np.random.default_rng(0))
    range(0, 3)
    """
    return range(n_kept)


def random(n_rows: int, n_kept: int, rng: np.random.Generator) -> RowNumbers:
    """``n_kept`` rows, every row as likely as any other, in their old order.

    >>> random(10, 3, np.random.default_rng(0))
    array([5, 6, 9])
    """
    if n_kept > n_rows // 2:
        dropped = rng.choice(n_rows, n_rows - n_kept, replace=False, shuffle=False)
        return np.delete(np.arange(n_rows), dropped)
    return np.sort(rng.choice(n_rows, n_kept, replace=False, shuffle=False))


def lowest(values: Values, n: int, rng: np.random.Generator) -> RowNumbers:
    """The ``n`` rows with the lowest values; of equal ones the oldest.

    >>> lowest(np.array([2, 1, 1, 3, 1]), 2, np.random.default_rng(0))
    array([1, 2])
    """
    if n == 0 or n == len(values):
        return range(n)
    bound = np.partition(values, n - 1)[n - 1]
    below = np.flatnonzero(values < bound)
    return np.sort(np.concatenate((below, np.flatnonzero(values == bound)[: n - len(below)])))


def top(values: Values, n: int, rng: np.random.Generator) -> RowNumbers:
    """The ``n`` rows with the highest values; of equal ones the newest.

    >>> top(np.array([2, 1, 1, 3, 1]), 3, np.random.default_rng(0))
    array([0, 3, 4])
    """
    gone = lowest(values, len(values) - n, rng)
    return np.delete(np.arange(len(values)), gone)


#: Names for ``retain_prior_by=`` and ``retain(by=)``: the policy returns the rows to keep.
RETENTION: dict[str, Pick] = {"latest": latest, "oldest": oldest, "random": random}
RETENTION_BY_COLUMN: dict[str, PickByColumn] = {"top": top}

#: Names for ``drop_strategy=``: the policy returns the rows to drop.
DROP: dict[str, Pick] = {"oldest": oldest, "random": random}
DROP_BY_COLUMN: dict[str, PickByColumn] = {"lowest": lowest}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that a user named with ``argument``, and the column that it asks for, if any."""

    argument: str
    name: str
    column: str | None
    _pick: Pick | PickByColumn

    def pick(self, n_rows: int, n: int, rng: np.random.Generator, column_of: Callable[[str], pa.Array]) -> RowNumbers:
        """The numbers of ``n`` of the first ``n_rows`` rows; ``column_of`` returns a column of all rows."""
        first: Any = n_rows if self.column is None else self.ranks(column_of(self.column)[:n_rows])
        return self._pick(first, n, rng)

    @property
    def is_random(self) -> bool:
        """Whether it draws from the generator."""
        return self._pick is random

    @property
    def is_by_age(self) -> bool:
        """Whether it picks the oldest rows."""
        return self._pick is oldest

    def check_schema(self, schema: Schema | None) -> None:
        """ConfigError unless the schema has the policy's column, with numbers in it."""
        if self.column is None or schema is None:
            return
        if self.column not in schema:
            raise ConfigError(f"{self}: no column {self.column!r}; there are {schema.names}")
        type_ = schema[self.column].type
        if not (kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_null(type_)):
            raise ConfigError(f"{self}: column {self.column!r} holds {describe(type_)}; name a column of numbers")

    def ranks(self, values: pa.Array, first_row: int = 0) -> Values:
        """The values of the policy's column as numbers; SchemaError for the first null or NaN, which has no rank."""
        numbers: Values = values.to_numpy(zero_copy_only=False)
        unranked = np.isnan(numbers) if kinds.is_floating(values.type) else np.zeros(len(numbers), bool)
        if values.null_count:
            unranked = values.is_null().to_numpy(zero_copy_only=False) | unranked
        if unranked.any():
            row = int(unranked.argmax())
            raise self.unranked(values[row].as_py(), first_row + row)
        return numbers

    def check_ranks(
        self, schema: Schema, chunks: Sequence[Sequence[pa.Array]], chosen: Sequence[NDArray[np.int64] | None] | None
    ) -> None:
        """SchemaError for the first of the chosen rows that has no rank."""
        first_row, column = 0, schema.names.index(self.column or "")
        for arrays, places in zip(chunks, chosen or [None] * len(chunks), strict=True):
            values = arrays[column] if places is None else gather_fn(arrays[column])(places)
            self.ranks(values, first_row)
            first_row += len(values)

    def drawing(self, rng: np.random.Generator) -> np.random.Generator:
        """The generator, to draw from; a copy, so that a change that fails has not used up random numbers."""
        return copy.deepcopy(rng) if self.is_random else rng

    def unranked(self, value: object, row: int) -> SchemaError:
        """The error for a value without a rank."""
        return SchemaError(
            f"row {row}, column {self.column!r}: {self} cannot rank {value!r}; give every row a number, or leave it out"
        )

    def __str__(self) -> str:
        return f"{self.argument}={self.name!r}"


def drop_policy(name: str) -> Policy:
    """The policy that ``drop_strategy=`` names."""
    return _named(DROP, DROP_BY_COLUMN, name, "drop_strategy")


class Ranking:
    """The rows of a buffer in the order in which ``lowest`` drops them: a heap of (value, place).

    An entry counts while its row lives and has its value, so rows that leave in other ways, or get another value, only
    leave entries behind. Taking rows out changes the heap: ``serial`` says how often, and a buffer whose change was not
    published has another one, for which the heap is made anew.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.serial = 0
        self._keys, self._places = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._size = self._end = 0
        self._column: object = None

    def lowest(self, rows: StoredRows, n: int, serial: int) -> NDArray[np.int64]:
        """The places of ``n`` rows, which are not in the heap afterwards."""
        column = rows.columns[self._policy.column or ""]
        if column is not self._column or serial != self.serial or self._size > 2 * len(rows) + MIN_ENTRIES:
            self._column, self._size, self._end = column, 0, rows.start
        self.push(rows, np.arange(self._end, rows.end))
        self._end = rows.end
        self.serial += 1
        found = np.empty(0, np.int64)
        while len(found) < n:
            places, keys = np.empty(n - len(found), np.int64), np.empty(n - len(found), np.uint64)
            self._size = kernels.heap_pop(self._keys, self._places, self._size, keys, places)  # every row has an entry
            counts = rows.are_alive(places)
            counts[counts] = self._keys_at(rows, places[counts]) == keys[counts]
            found = np.unique(np.concatenate((found, places[counts])))
        return found

    def push(self, rows: StoredRows, changed: NDArray[np.int64]) -> None:
        """Enter rows that are new, or that have another value."""
        alive = changed[rows.are_alive(changed)]
        size = self._size + len(alive)
        if size > len(self._keys):
            keys, places = np.empty(2 * size, np.uint64), np.empty(2 * size, np.int64)
            keys[: self._size], places[: self._size] = self._keys[: self._size], self._places[: self._size]
            self._keys, self._places = keys, places
        new_keys = self._keys_at(rows, alive)
        self._size = kernels.heap_push(self._keys, self._places, self._size, new_keys, alive)

    def _keys_at(self, rows: StoredRows, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        values = gather_fn(rows.columns[self._policy.column or ""].view(0, rows.end))(places)
        return sort_keys(self._policy.ranks(values))


#: Entries that rows left behind are not worth a new heap while there are fewer.
MIN_ENTRIES = 4096


def sort_keys(values: Values) -> NDArray[np.uint64]:
    """Unsigned integers in the order of the values, which hold no NaN.

    >>> np.argsort(sort_keys(np.array([0.5, -np.inf, -2.0, 3.0])))
    array([1, 2, 0, 3])
    """
    if values.dtype.kind == "u":
        return values.astype(np.uint64)
    if values.dtype.kind == "i":
        return values.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # of two zeros one
    return np.where(bits >> np.uint64(63), ~bits, bits ^ np.uint64(1 << 63))


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the prior rows stays, and which."""

    fraction: float
    policy: Policy

    @classmethod
    def of(cls, fraction: float, by: str, argument: str = "retain_prior_by") -> Retention:
        """ConfigError if the fraction is above 1 or no number, or if the policy is unknown."""
        n_kept(0, fraction)
        return cls(fraction, _named(RETENTION, RETENTION_BY_COLUMN, by, argument))


def n_kept(n_rows: int, fraction: float) -> int:
    """How many of ``n_rows`` a fraction keeps: half to even; a negative fraction keeps none.

    >>> n_kept(5, 0.5), n_kept(7, 0.5), n_kept(3, -1)
    (2, 4, 0)
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float, np.integer, np.floating)):
        raise ConfigError(
            f"retain_prior is a number, got {type(fraction).__name__} {fraction!r}; pass a fraction from 0 to 1"
        )
    if not fraction <= 1:
        raise ConfigError(
            f"retain_prior is a fraction up to 1, got {fraction!r}; 0.5 keeps half, a negative number none"
        )
    return 0 if fraction < 0 else round(n_rows * float(fraction))  # float32 would round the number of rows


def _named(plain: Mapping[str, Pick], by_column: Mapping[str, PickByColumn], name: str, argument: str) -> Policy:
    kind, colon, column = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon and kind in plain:
        return Policy(argument, str(name), None, plain[kind])
    if column and kind in by_column:
        return Policy(argument, str(name), str(column), by_column[kind])
    known = [*map(repr, plain), *(f"'{kind}:COLUMN'" for kind in by_column)]
    raise ConfigError(f"{argument}={name!r} is unknown; one of {', '.join(known)}")


def check_bound(name: str, value: Any) -> int | None:
    """A bound as a whole number above 0, None for no bound; ConfigError for anything else."""
    if value is None:
        return None
    if not is_whole(value) or value < 1:
        unit = "rows" if name == "max_size" else "times"
        raise ConfigError(f"{name} is a whole number of {unit} above 0, or None for no bound, got {value!r}")
    return operator.index(value)
