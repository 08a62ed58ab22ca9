"""Barriers: steps that need all rows before they can decide about any.

    pieces, context --decide--> Decision --the bake acts on it--> rows that stay, a fitted row-local step, an order

A barrier decides and changes nothing, so ``explain`` runs the same decision on a sample. Anything with ``decide`` is a
barrier: pass an object as the step, or register a class, whose arguments are the options of the step. So is a suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish.errors import RecipeError, SchemaError, UnknownColumn
from poolish.recipes.fragment_rows import (
    Filter,
    FragmentRows,
    Int64,
    Mask,
    Prepared,
    Rejected,
    Step,
    Words,
    as_type,
    canonical_table,
    comparable_type,
    mixed,
    piece_at,
    place_of,
    raise_at,
    row_hashes,
    selected_rows,
)
from poolish.recipes.steps.row_local import RowStep, known, with_column

#: A sort key for each row of a fragment.
SortKey = Callable[[FragmentRows], Words]


@dataclass(frozen=True)
class BarrierContext:
    """What a barrier knows besides the rows.

    ``order`` lists the positions of all rows, counted through all pieces, in the order they have by now; None if that
    is the order of the pieces.
    """

    name: str
    seed: int = 0
    order: Int64 | None = None
    where: Filter | None = None
    on_error: str = "raise"

    def selected(self, pieces: Sequence[FragmentRows]) -> Mask:
        """Which rows of all pieces ``where`` selects."""
        return np.concatenate([selected_rows(piece, self.where) for piece in pieces] or [np.empty(0, bool)])

    def positions(self, pieces: Sequence[FragmentRows]) -> Int64:
        """The positions of the selected rows, in their order."""
        selected = self.selected(pieces)
        order = np.arange(len(selected)) if self.order is None else self.order
        found: Int64 = order[selected[order]]
        return found


@dataclass(frozen=True)
class Decision:
    """What a barrier decided.

    ``keep`` has True for each row of all pieces that stays; None keeps all. ``rejected`` has a reason for dropped rows,
    by position, that count as rejected. ``step`` is applied to the selected rows next. ``sort_key`` orders all rows
    from here on.
    """

    keep: Mask | None = None
    rejected: Mapping[int, str] = field(default_factory=dict)
    step: Step | None = None
    sort_key: SortKey | None = None


class Barrier(Protocol):
    """A step that needs all rows. It may also have ``estimate``, as ``Limit`` has, for ``explain``.

    >>> class Newest:
    ...     def __init__(self, n):
    ...         self.n = n
    ...     def decide(self, pieces, context):
    ...         keep = np.ones(sum(map(len, pieces)), bool)
    ...         keep[context.positions(pieces)[: -self.n]] = False
    ...         return Decision(keep)
    >>> from poolish import DatasetRecipe
    >>> recipe = DatasetRecipe("breads").add_ingredient("rye", [{"stars": stars} for stars in (1, 2, 3)])
    >>> recipe.prepare_step("newest", Newest, n=2).bake().buffer.to_pydict()
    {'stars': [2, 3]}
    """

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        """Decide about the rows of all fragments; rows that ``context.where`` does not select stay as they are."""


class Dedup:
    """Keeps the first of the rows that are equal in ``columns``, or in all of them."""

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._columns = None if columns is None else list(columns)

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        """Keep the first selected row of each kind, in the order that rows have by now."""
        selected, positions = context.selected(pieces), context.positions(pieces)
        if not len(positions):
            return Decision()
        ranks = np.empty(len(selected), np.int64)
        ranks[positions] = np.arange(len(positions))
        keep = ~selected
        keep[np.flatnonzero(selected)[self._firsts(pieces, selected, ranks[selected], context.name)]] = True
        return Decision(keep)

    def _firsts(self, pieces: Sequence[FragmentRows], selected: Mask, ranks: Int64, name: str) -> Int64:
        """Which of the selected rows have the lowest rank of their kind."""
        filled = [piece for piece in pieces if len(piece)]
        names = filled[0].table.column_names if self._columns is None else self._columns
        keys = _comparable([_keys(piece, names, name) for piece in filled], filled, name).filter(pa.array(selected))
        if any(pa.types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType) for field in keys.schema):
            keys = pa.table({"digest": pa.array(_digests(keys), pa.binary())})
        groups = keys.append_column("__rank", pa.array(ranks)).group_by(keys.column_names, use_threads=False)
        lowest = groups.aggregate([("__rank", "min")]).column("__rank_min").to_numpy()
        firsts: Int64 = np.flatnonzero(np.isin(ranks, lowest, assume_unique=True))
        return firsts


def _keys(piece: FragmentRows, names: Sequence[str], step: str) -> pa.Table:
    try:
        return canonical_table(piece.table.select(known(piece.table, names)))
    except Exception as error:
        raise_at(place_of(piece, step), error)


def _comparable(keys: list[pa.Table], pieces: Sequence[FragmentRows], step: str) -> pa.Table:
    """The keys of all pieces, in types in which they can be compared."""
    for i, name in enumerate(keys[0].column_names):
        columns = [table.column(i) for table in keys]
        if len({column.type for column in columns}) == 1:
            continue
        what = f"step {step!r}, column {name!r}"
        found_in: dict[pa.DataType, str] = {}
        for column, piece in zip(columns, pieces, strict=True):
            found_in.setdefault(column.type, piece.place)
        wanted = comparable_type(found_in, what, "cast it first")
        columns = [as_type(column, wanted, what, "cast it first") for column in columns]
        keys = [table.set_column(i, name, column) for table, column in zip(keys, columns, strict=True)]
    return pa.concat_tables(keys, promote_options="default")


def _digests(table: pa.Table) -> list[bytes]:
    """A digest for each row, of 128 bits: 64 would collide among 10^9 rows."""
    import xxhash

    columns = [column.to_pylist() for column in table.columns]
    return [xxhash.xxh3_128_digest(repr(row).encode()) for row in zip(*columns, strict=True)]


class Limit:
    """Keeps the first ``n`` rows."""

    def __init__(self, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise RecipeError(f"limit: n={n!r}; a whole number of rows")
        self._n = n

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        """Keep the first selected rows."""
        keep = np.ones(sum(map(len, pieces)), bool)
        keep[context.positions(pieces)[self._n :]] = False
        return Decision(keep)

    def estimate(self, n_rows: Sequence[float], *, is_shuffled: bool) -> list[float]:
        """How many rows of each ingredient stay, given how many are selected."""
        if is_shuffled:
            return [n * min(1.0, self._n / max(1.0, sum(n_rows))) for n in n_rows]
        left, kept = float(self._n), []
        for n in n_rows:
            kept.append(min(n, left))
            left -= kept[-1]
        return kept


class Shuffle:
    """Orders all rows by a hash of what they are, so that rows added later change no other row's place."""

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        """Order the rows from here on."""
        if context.where is not None:
            raise RecipeError(
                f"step {context.name!r}: rows are shuffled among all others, so where= has no meaning here"
            )
        seed, use = context.seed if self._seed is None else self._seed, f"shuffle {context.name}"

        def sort_key(piece: FragmentRows) -> Words:
            own = row_hashes(seed, use, piece.ingredient, piece.name, piece.rows)
            # Mixed, so that the rows one row became are spread like any others.
            return mixed(own ^ mixed(piece.subs.astype(np.uint64)))

        return Decision(sort_key=sort_key)


class Scale:
    """A scale fitted on the data: ``standardise`` or ``winsorize``, unless its parameters are given."""

    def __init__(self, kind: str, column: str, **options: Any) -> None:
        self._kind, self._column, self._options = kind, column, options

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        """Fit the parameters on the selected rows; the step that applies them is row-local."""
        parameters = self._fitted(pieces, context)
        options = {"column": self._column, **parameters}
        step = RowStep(self._kind, context.name, options, lambda table: (self._scaled(table, parameters), None))
        return Decision(step=step)

    def _fitted(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> dict[str, float]:
        names = ("low", "high") if self._kind == "winsorize" else ("mean", "std")
        if all(name in self._options for name in names):
            return {name: float(self._options[name]) for name in names}
        filled = [piece.keep(selected_rows(piece, context.where)) for piece in pieces if len(piece)]
        return self._fit(np.concatenate([np.empty(0), *(self._numbers(piece, context.name) for piece in filled)]))

    def _fit(self, values: NDArray[np.float64]) -> dict[str, float]:
        """Exact sums, so that parameters do not depend on how the data is cut."""
        present = values[~np.isnan(values)]
        if self._kind == "winsorize":
            low, high = self._options.get("lower", 0.01), self._options.get("upper", 0.99)
            edges = np.quantile(present, [low, high]) if len(present) else np.array([math.nan, math.nan])
            return {"low": float(edges[0]), "high": float(edges[1])}
        mean = math.fsum(present) / len(present) if len(present) else math.nan
        spread = math.sqrt(math.fsum((present - mean) ** 2) / len(present)) if len(present) else math.nan
        return {"mean": mean, "std": spread}

    def _numbers(self, piece: FragmentRows, step: str) -> NDArray[np.float64]:
        if self._column not in piece.table.column_names:
            raise UnknownColumn(
                f"{place_of(piece, step)}: no column {self._column!r}; there are {piece.table.column_names}"
            )
        column = piece.table.column(self._column)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
            raise RecipeError(
                f"{place_of(piece, step)}: column {self._column!r} holds {column.type}; a scale is for numbers, "
                "cast it first"
            )
        values: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
        return values

    def _scaled(self, table: pa.Table, parameters: Mapping[str, float]) -> pa.Table:
        values = table.column(self._column).to_numpy().astype(np.float64)
        if self._kind == "winsorize":
            values = np.clip(values, parameters["low"], parameters["high"])
        else:
            values = (values - parameters["mean"]) / (parameters["std"] or 1.0)
        nulls = table.column(self._column).is_null().to_numpy()
        return with_column(table, self._column, pa.array(values, pa.float64(), mask=nulls))


# Suites ---------------------------------------------------------------------------------------------------------------
#
# A verdict about a row may depend on that row alone: then each fragment is checked by itself (``prepare``). If it
# depends on others (a unique key, a mean, a drift), the suite is a barrier (``needs_all``, ``decide``).


#: Parts of a suite, and rules of a column, that look at many rows, or at whatever a function of the user's looks at.
_OF_MANY_ROWS = ("unique", "stat", "drift", "outliers", "checks")
_RULES_OF_MANY_ROWS = ("unique", "check")


def needs_all_rows(suite: Any) -> bool:
    """Whether a verdict about one row depends on others; yes, where the suite does not tell.

    >>> from poolish.guards import Suite
    >>> needs_all_rows(Suite().expect("x", at_least=0)), needs_all_rows(Suite().expect_unique("x"))
    (False, True)
    """
    if not hasattr(suite, "to_dict"):
        return True
    entries = suite.to_dict()
    if any(entries.get(part) for part in _OF_MANY_ROWS):
        return True
    return any(rule in entry for entry in entries.get("expect", ()) for rule in _RULES_OF_MANY_ROWS)


class SuiteStep:
    """A suite as a step: rows that it refuses are rejected, each with its reason."""

    def __init__(self, name: str, suite: Any) -> None:
        self._name, self._suite = name, suite
        self.needs_all = needs_all_rows(suite)

    @property
    def fingerprint(self) -> str:
        """That of the suite."""
        return f"validate {self._suite.fingerprint}"

    def prepare(self, piece: FragmentRows, on_error: str) -> Prepared:
        """Check the rows of one fragment; by default a bad one stops the bake."""
        keep, reasons = self._checked([piece], np.arange(len(piece)), on_error)
        if keep.all():
            return Prepared(piece.table, np.arange(len(piece)), [])
        rejected = [Rejected(int(piece.rows[i]), int(piece.subs[i]), reason) for i, reason in reasons.items()]
        return Prepared(piece.table.filter(pa.array(keep)), np.flatnonzero(keep), rejected)

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        """Check the selected rows together, in their order."""
        keep, rejected = self._checked(pieces, context.positions(pieces), context.on_error)
        return Decision(keep if rejected else None, rejected)

    def _checked(self, pieces: Sequence[FragmentRows], positions: Int64, on_error: str) -> tuple[Mask, dict[int, str]]:
        """Which of all rows stay, where those at ``positions`` are checked in that order, and why the others do not."""
        keep = np.ones(sum(map(len, pieces)), bool)
        if not len(positions):  # expectations hold for no rows
            return keep, {}
        result = self._suite.check(self._together(pieces, positions))
        bad = np.flatnonzero(~np.asarray(result.mask, bool))
        self._refuse(result, pieces, positions[bad], on_error)
        keep[positions[bad]] = False
        reasons = _reasons(result) if len(bad) else {}
        return keep, {int(positions[i]): reasons.get(i, "refused") for i in bad.tolist()}

    def _together(self, pieces: Sequence[FragmentRows], positions: Int64) -> pa.Table:
        tables = [canonical_table(piece.table) for piece in pieces if len(piece)]
        try:
            table = pa.concat_tables(tables, promote_options="default")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            names = ", ".join(dict.fromkeys(repr(piece.ingredient) for piece in pieces if len(piece)))
            raise SchemaError(
                f"step {self._name!r} checks rows of {names} together, and they have other types in the same column: "
                f"{error}; cast one of them first"
            ) from error
        if np.array_equal(positions, np.arange(table.num_rows)):
            return table
        return table.combine_chunks().take(pa.array(positions))  # from many chunks it costs 150 times as much

    def _refuse(self, result: Any, pieces: Sequence[FragmentRows], bad: Int64, on_error: str) -> None:
        """An error, unless there are rows to blame and they may be skipped."""
        is_passed = not _is_failed(result) and not len(bad)
        if is_passed or (on_error != "raise" and not _has_no_bad_rows(result, len(bad))):
            return
        if not len(bad):
            names = ", ".join(dict.fromkeys(repr(piece.ingredient) for piece in pieces))
            raise RecipeError(
                f"step {self._name!r}, ingredient {names}: {result}; no row is to blame, so none can be skipped; "
                "fix the data, or expect it with severity='warn'"
            )
        k, i = piece_at(pieces, int(bad[0]))
        more = f" and {len(bad) - 1} more do" if len(bad) > 1 else " does"
        raise RecipeError(
            f"{place_of(pieces[k], self._name, i)}{more} not pass: {result}; fix them, or bake with on_error='skip'"
        )


def _has_no_bad_rows(result: Any, n_bad: int) -> bool:
    """Whether something is wrong that no row is to blame for, as a mean is."""
    failures: Iterable[Any] = getattr(result, "failures", ())
    if any(each.severity != "warn" and each.bad is None for each in failures):
        return True
    return not n_bad and _is_failed(result)


def _is_failed(result: Any) -> bool:
    """Whether more than a warning was found; an object of another kind only says whether all is ok."""
    return bool(getattr(result, "failed", not result.ok))


def _reasons(result: Any) -> dict[int, str]:
    """Why each bad row was refused, as far as the result tells."""
    bad = result.bad_rows
    if not isinstance(bad, pa.Table) or not {"row", "reason"} <= set(bad.column_names):
        return {}
    pairs = zip(bad.column("row").to_pylist(), bad.column("reason").to_pylist(), strict=True)
    return {int(row): str(reason) for row, reason in pairs}


#: Built-in barriers and what makes them out of their options.
BARRIERS: dict[str, Callable[..., Barrier]] = {
    "dedup": Dedup,
    "limit": Limit,
    "shuffle": Shuffle,
    "winsorize": lambda **options: Scale("winsorize", **options),
    "standardise": lambda **options: Scale("standardise", **options),
}
