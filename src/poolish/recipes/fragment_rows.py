"""Rows on their way through a recipe: a table, and for each row where it came from and what was done to it.

Fragment        a part of a source, not read yet
FragmentRows    its rows, with their origins
Step            what is done to them: ``prepare(piece, on_error) -> Prepared``
BakedFragment   its rows after the row-local steps, with what was counted on the way; what a cache keeps
one_table       the rows of many fragments behind each other

With ``on_error="raise"`` a row that a step fails for is an error that names its place; otherwise it becomes a
``Rejected`` row. Steps work on many rows at once, so ``poolish.expressions.halving`` finds the ones that fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import seeds
from poolish.columns import one_chunk
from poolish.errors import CorruptDataError, RecipeError, SchemaError
from poolish.expressions import col
from poolish.rows import DatasetBuffer
from poolish.rows.cast import cast_exact
from poolish.rows.snapshot import Snapshot
from poolish.rows.values import ragged, resolve_null_type
from poolish.schema import Schema, dtype_and_shape, is_tensor, types
from poolish.schema.types import dictionary_decode, is_rare, unsliced

Mask = NDArray[np.bool_]

#: What steps may ask for as if it were a column, where the data has none of that name.
INGREDIENT = "ingredient"


class Filter(Protocol):
    """A condition on rows: an ``Expression``, or a function of a row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads, as far as they are known."""

    def mask(self, table: pa.Table) -> tuple[Mask, int]:
        """Which rows it is true for, and for how many the answer is unknown."""

    def bind(self, **constants: Any) -> Filter | bool:
        """The same with constants in place of columns, or the answer where these decide it for all rows."""


class Origin(NamedTuple):
    """Where rows of one part of one ingredient came from.

    ``rows`` are their numbers in the part, ``subs`` tell apart rows that one row became, ``steps`` has a bit for each
    step that was applied.
    """

    ingredient: str
    name: str
    rows: Int64
    subs: Int64
    steps: Int64


@dataclass(frozen=True)
class FragmentRows:
    """Rows of one part of one ingredient, with their ``Origin``.

    Rows where ``mask`` is false are pending removal; ``apply_mask`` removes them.
    """

    ingredient: str
    name: str
    table: pa.Table
    rows: Int64
    subs: Int64
    steps: Int64
    mask: Mask | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def read(cls, ingredient: str, name: str, table: pa.Table, rows: Int64) -> FragmentRows:
        """Rows as they come from a source."""
        nothing = np.zeros(len(rows), np.int64)
        return cls(ingredient, name, table, rows, nothing, nothing)

    @property
    def place(self) -> str:
        """Ingredient and file, for messages."""
        return f"ingredient {self.ingredient!r}{f', {self.name}' if self.name else ''}"

    @property
    def origin(self) -> Origin:
        """Where they came from, without what is in them."""
        return Origin(self.ingredient, self.name, self.rows, self.subs, self.steps)

    def keep(self, mask: Mask) -> FragmentRows:
        """The rows where ``mask`` is true."""
        if mask.all():
            return self
        return self.rows_of(np.flatnonzero(mask), self.table.filter(pa.array(mask)))

    def apply_mask(self) -> FragmentRows:
        """Apply the pending row mask."""
        return self if self.mask is None else replace(self, mask=None).keep(self.mask)

    def take(self, numbers: Int64) -> FragmentRows:
        """These rows, in this order."""
        return self.rows_of(numbers, self.table.take(pa.array(numbers)))

    def rows_of(self, numbers: Int64 | slice, table: pa.Table) -> FragmentRows:
        """Rows that came of these, with what is in them now."""
        return replace(self, table=table, rows=self.rows[numbers], subs=self.subs[numbers], steps=self.steps[numbers])

    def with_table(self, table: pa.Table) -> FragmentRows:
        """The same rows with other columns."""
        return replace(self, table=table)

    def slice(self, first: int, n_rows: int) -> FragmentRows:
        """Consecutive rows."""
        return self.rows_of(slice(first, first + n_rows), unsliced(self.table.slice(first, n_rows)))


def joined(pieces: list[FragmentRows]) -> FragmentRows:
    """Pieces of the same part behind each other."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    arrays = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("rows", "subs", "steps")}
    # Where one piece has nothing but nulls in a column, the others know its type.
    table = pa.concat_tables([piece.table for piece in pieces], promote_options="default")
    return FragmentRows(first.ingredient, first.name, table, **arrays)


def canonical(piece: FragmentRows) -> FragmentRows:
    """The same rows in the types that poolish keeps them in; an error names where they are from."""
    try:
        table = canonical_table(piece.table)
    except SchemaError as error:
        raise SchemaError(f"{piece.place}: {error}") from None
    for name, column in zip(table.column_names, table.columns, strict=True):
        if kinds.is_large_string(column.type):
            try:
                column.validate(full=True)  # not validated before: 5 GB/s
            except pa.ArrowInvalid as error:
                raise CorruptDataError(f"{piece.place}, column {name!r}: {error}; fix it or leave it out") from None
    return piece.with_table(table)


def canonical_table(table: pa.Table) -> pa.Table:
    """The same values in the types that poolish keeps them in, so that a step gives the same for all sources."""
    for each, column in zip(table.schema, table.columns, strict=True):
        if not each.nullable and column.null_count:  # Arrow lets anybody say so
            raise SchemaError(
                f"column {each.name!r} is declared not nullable and has {column.null_count:,} nulls; declare it "
                "nullable, or fill them"
            )
    wanted = Schema.of(table.schema).to_arrow()
    if table.schema.equals(wanted):
        return table
    for i, each in enumerate(table.schema):
        if kinds.is_dictionary(each.type) and is_rare(each.type):
            table = table.set_column(i, each.name, dictionary_decode(table.column(i), wanted.field(i).type))
    return table.cast(wanted)


def workable(table: pa.Table) -> pa.Table:
    """The same values in types that Arrow can filter: it cannot take rows of the views that polars keeps text in."""
    return unsliced(canonical_table(table) if any(map(is_rare, table.schema.types)) else table)


def rows_of(table: pa.Table) -> Snapshot:
    """The rows of a table, as functions of the user's get them."""
    buffer = DatasetBuffer()
    buffer.append(table)
    return buffer.snapshot()


def selected_rows(piece: FragmentRows, where: Filter | None) -> Mask:
    """Which rows of a piece a step's filter asks for; ``ingredient`` is known without being a column."""
    if where is None or not len(piece):  # a buffer that never had a row has no columns to ask about either
        return np.ones(len(piece), bool)
    bound = bound_to(piece, where)
    mask: Mask = np.full(len(piece), bound) if isinstance(bound, bool) else bound.mask(piece.table)[0]
    return mask


def bound_to(piece: FragmentRows, where: Filter) -> Filter | bool:
    """A step's filter with the name of the ingredient in it, or the answer where that decides it for all rows."""
    return where if INGREDIENT in piece.table.column_names else where.bind(ingredient=piece.ingredient)


@dataclass(frozen=True)
class Fragment:
    """A part of a source: plain data, so that it can be sent to another process."""

    name: str
    number: int
    n_rows: int | None
    fingerprint: str
    place: Mapping[str, Any]


def selected(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    """The columns that are asked for, in that order; without any, the rows are still counted.

    >>> selected(pa.table({"n": [1], "meta": [{"lang": "en"}]}), ["meta.lang"]).column_names
    ['meta']
    >>> selected(pa.table({"n": [1, 2]}), []).num_rows
    2
    """
    if columns is None:
        return table
    tops = [name if name in table.column_names else col[name].top_columns(table.schema)[0] for name in columns]
    return table.select(list(dict.fromkeys(tops)))


def no_rows(schema: pa.Schema) -> pa.Table:
    """The columns of a schema with nothing in them."""
    return pa.Table.from_batches([types.no_rows(schema)])


def without_columns(n_rows: int) -> pa.Table:
    """A table that has rows and nothing in them."""
    return pa.table({"nothing": pa.nulls(n_rows)}).select([])


# Identity -----------------------------------------------------------------------------------------------------------


Int64 = NDArray[np.int64]
Words = NDArray[np.uint64]
#: Tables, each with the numbers that its rows have in their source.
NumberedTables = Iterator[tuple[pa.Table, Int64]]


def row_hashes(seed: int, use: str, ingredient: str, name: str, rows: Int64) -> Words:
    """A 64-bit number for each row of one part, spread evenly.

    >>> row_hashes(7, "pick", "web", "a.parquet", np.array([0, 1]))
    array([18446207444110842907,  2109248830805930466], dtype=uint64)
    """
    return mixed(rows.astype(np.uint64) + np.uint64(seeds.key(seed, "recipes", use, ingredient, name)))


def mixed(words: Words) -> Words:
    """Each word as another one that depends on all of its bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: Words = words ^ (words >> np.uint64(31))
    return hashed


def part_numbers(subs: Int64, use: str, numbers: Int64) -> Int64:
    """What tells apart rows that came of one row: the first keeps its name, the others get one of their own.

    ``numbers`` count the rows that one row became. The names depend on the row alone, not on what is baked with it.

    >>> part_numbers(np.array([0, 0, 0]), "split", np.array([0, 1, 2])).tolist()
    [0, 5071542493215320990, 4991020674228712865]
    """
    if not numbers.any():
        return subs
    words = mixed(subs.astype(np.uint64) ^ np.uint64(seeds.key(0, "recipes", "part", use)))
    named = (mixed(words + numbers.astype(np.uint64)) >> np.uint64(1)).astype(np.int64)
    found: Int64 = np.where(numbers == 0, subs, named)
    return found


def occurrences(*keys: Int64) -> Int64:
    """For each row how many rows with the same keys come before it.

    >>> occurrences(np.array([7, 8, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.lexsort(keys)
    is_new = np.ones(len(order), bool)
    is_new[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    firsts = np.flatnonzero(is_new)
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - firsts[np.cumsum(is_new) - 1]
    return found


def threshold_of(fraction: float) -> int:
    """Rows whose hash is below this are the fraction; of a larger one they are a part.

    >>> threshold_of(1.0) == 2**64, threshold_of(0.1) < threshold_of(0.2)
    (True, True)
    """
    return int(fraction * 2**64)


def below(hashes: Words, threshold: int) -> NDArray[np.bool_]:
    """Which hashes lie below a threshold of up to 2**64."""
    if threshold >= 2**64:
        return np.ones(len(hashes), bool)
    chosen: NDArray[np.bool_] = hashes < np.uint64(threshold)
    return chosen


# Steps and the rows that they fail for -------------------------------------------------------------------------------


class Rejected(NamedTuple):
    """A row that a step failed for."""

    row: int
    sub: int
    reason: str


class Prepared(NamedTuple):
    """The rows a step returns, the position of each one's parent in the input, and the rejected rows."""

    table: pa.Table
    parents: Int64
    rejected: list[Rejected]


class Step(Protocol):
    """A row-local step: what it does to a row depends on that row alone."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever its results do; raises ``Unfingerprintable`` if that cannot be known without a version."""

    def prepare(self, piece: FragmentRows, on_error: str) -> Prepared:
        """Apply the step to all rows of a fragment."""


class WrongResult(RecipeError):
    """A user's function returned the wrong thing, or nothing in time; reported as a RecipeError with its place."""


def place_of(piece: FragmentRows, step: str, first: int | None = None, last: int | None = None) -> str:
    """The ingredient, file, rows and step for an error message; without rows where all are concerned."""
    rows = ""
    if first is not None and last is not None and last > first:
        rows = f", rows {piece.rows[first]} to {piece.rows[last]}"
    elif first is not None:
        rows = f", row {piece.rows[first]}"
    return f"{piece.place}{rows}, step {step!r}"


def piece_at(pieces: Sequence[FragmentRows], position: int) -> tuple[int, int]:
    """The number of the piece that holds a row, and the row's position in it."""
    ends = np.cumsum([len(piece) for piece in pieces])
    k = int(np.searchsorted(ends, position, side="right"))
    return k, position - int(ends[k]) + len(pieces[k])


def rejected_row(piece: FragmentRows, i: int, error: Exception) -> Rejected:
    """Row ``i`` of a fragment, rejected because of an error."""
    kind = RecipeError if isinstance(error, WrongResult) else type(error)
    return Rejected(int(piece.rows[i]), int(piece.subs[i]), f"{kind.__name__}: {error}")


class Failures:
    """What becomes of rows that a step fails for: an error, or one more ``rejected``."""

    def __init__(self, piece: FragmentRows, step: str, on_error: str) -> None:
        self._piece, self._step, self._on_error = piece, step, on_error
        self.rejected: list[Rejected] = []

    def __call__(self, first: int, n_rows: int, error: Exception) -> None:
        """Reject a row, or raise with the place of all ``n_rows``."""
        if self._on_error == "raise":
            raise_at(place_of(self._piece, self._step, first, first + n_rows - 1), error)
        self.rejected.append(rejected_row(self._piece, first, error))


def raise_at(place: str, error: Exception) -> NoReturn:
    """Raise an error with its place: in the message of our errors, in a note on the user's."""
    if isinstance(error, WrongResult):
        raise RecipeError(f"{place}: {error}") from error.__cause__
    if isinstance(error, StopIteration):  # it would end the loop that asks for the next result
        raise RuntimeError(f"while baking {place}: StopIteration, from next() without a default") from error
    error.add_note(f"while baking {place}")
    raise error


# Baked rows ---------------------------------------------------------------------------------------------------------


@dataclass
class BakedFragment:
    """A fragment after its row-local steps, and what was counted on the way.

    ``threshold`` is up to which hash its rows were chosen: for a lower one it holds too, with fewer rows. ``given`` are
    the types of the columns before the steps.
    """

    piece: FragmentRows
    counts: list[dict[str, int]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    threshold: int = 2**64
    is_cached: bool = False
    given: dict[str, str] = field(default_factory=dict)
    #: How long reading took, and each step; not kept.
    seconds: list[float] = field(default_factory=list)


def is_one_to_one(counts: Sequence[dict[str, int]]) -> bool:
    """Whether no step dropped or added a row; as many out as in are not enough for that."""
    return all(count["alike"] for count in counts[1:])


# One table ----------------------------------------------------------------------------------------------------------


class TypesDiffer(Exception):
    """Table number ``place`` has a column of another type than those before it, and no type holds both."""

    def __init__(self, place: int, name: str, known: pa.DataType, other: pa.DataType) -> None:
        super().__init__(f"{name!r}: {known} and {other}")
        self.place, self.name, self.known, self.other = place, name, known, other


def joined_type(known: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds values of both, where only open parts or shapes differ; None if there is none.

    >>> joined_type(pa.large_list(pa.null()), pa.large_list(pa.int64()))
    LargeListType(large_list<item: int64>)
    >>> joined_type(pa.int64(), pa.float64())
    """
    if is_tensor(known) and is_tensor(other):
        (dtype, shape), (other_dtype, other_shape) = dtype_and_shape(known), dtype_and_shape(other)
        return ragged(known, other) if dtype == other_dtype and len(shape) == len(other_shape) else None
    settled = resolve_null_type(known, other)
    return settled if settled == resolve_null_type(other, known) else None


def joined_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables with the same columns behind each other; ``TypesDiffer`` where that cannot be."""
    schema = tables[0].schema
    if all(table.schema.equals(schema) for table in tables[1:]):
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    found = dict(zip(schema.names, schema.types, strict=True))
    for place, table in enumerate(tables):
        for name, known in found.items():
            other = table.schema.field(name).type
            both = known if known == other else joined_type(known, other)
            if both is None:
                raise TypesDiffer(place, name, known, other)
            found[name] = both
    return pa.concat_tables([_with_types(table, found) for table in tables], promote_options="default")


def _with_types(table: pa.Table, wanted: Mapping[str, pa.DataType]) -> pa.Table:
    """The columns in this order and these types."""
    fields, columns = [], []
    for name, type_ in wanted.items():
        column = table.column(name)
        fields.append(table.schema.field(name).with_type(type_))
        columns.append(column if column.type == type_ else cast_exact(one_chunk(column), type_))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def one_table(pieces: list[FragmentRows]) -> pa.Table:
    """The rows of all pieces behind each other; a SchemaError says which ingredient does not fit to the first."""
    if not pieces:
        return pa.table({})
    tables = []
    first: tuple[str, pa.Schema] | None = None
    filled = [piece for piece in pieces if len(piece)] or pieces[:1]
    for piece in filled:
        table = canonical_table(piece.table)
        if first is None:
            first = piece.ingredient, table.schema
        elif set(table.column_names) != set(first[1].names):
            raise SchemaError(
                f"{piece.place}{',' if piece.name else ''} has columns {table.column_names}, {first[0]!r} has "
                f"{first[1].names}; select, rename or drop until they are the same, or return the same columns for "
                "all rows from a function: row.get(...) where one may be missing"
            )
        tables.append(table.select(first[1].names))
    try:
        return joined_tables(tables)
    except TypesDiffer as both:
        raise SchemaError(
            f"{filled[both.place].place}, column {both.name!r}: {both.other}, where {filled[0].ingredient!r} has "
            f"{both.known}; cast one of them"
        ) from None


# Values of several types ----------------------------------------------------------------------------------------------


#: A step comes too late for a choice.
_ADVICE = "give the column one type in its source"


def comparable_type(found_in: Mapping[pa.DataType, str], what: str, advice: str = _ADVICE) -> pa.DataType:
    """The type in which values of these types can be compared, given where each was found; else a ``RecipeError``.

    Files without types (jsonl, csv) may have 1 in one and 0.5 in the next. Where one has nothing but nulls, or empty
    lists, the others know the type.

    >>> comparable_type({pa.int64(): "a.jsonl", pa.null(): "b.jsonl", pa.float64(): "c.jsonl"}, "column 'score'")
    DataType(double)
    """
    found = {type_: place for type_, place in found_in.items() if not kinds.is_null(type_)}
    if len(found) > 1 and all(map(_is_number, found)):
        return pa.int64() if all(map(kinds.is_integer, found)) else pa.float64()
    try:
        return pa.unify_schemas([pa.schema([("value", type_)]) for type_ in found_in]).field("value").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        pass
    found_types = ", ".join(f"{type_} in {place}" if place else str(type_) for type_, place in found.items())
    raise RecipeError(f"{what}: {found_types} cannot be compared with each other; {advice}")


def as_type(values: Any, type_: pa.DataType, what: str, advice: str = _ADVICE) -> Any:
    """Numbers in a type in which they can be compared; one that this type would round is a ``RecipeError``.

    Nulls get their type when they are joined with the others.
    """
    if values.type == type_ or not _is_number(values.type):
        return values
    try:
        return values.cast(type_)
    except pa.ArrowInvalid as error:
        raise RecipeError(f"{what}: {values.type} cannot be compared as {type_} exactly: {error}; {advice}") from None


def _is_number(type_: pa.DataType) -> bool:
    return bool(kinds.is_integer(type_) or kinds.is_floating(type_))
