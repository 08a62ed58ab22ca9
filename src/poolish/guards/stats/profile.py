"""Profile: what rows look like, column by column, in one pass; small, and two of them make one.

A profile of a reference freezes the bins of each column. Profiles made on it (``reference=``) count on those bins, so a
window of a stream is compared with it without the reference's rows, and windows are merged and subtracted exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish import html
from poolish.columns import columns_of
from poolish.errors import ConfigError, CorruptDataError, PoolishError, UnknownColumn
from poolish.files import checksum_hex, parse_json
from poolish.guards.stats.column_profile import ColumnProfile, bounded, bounded_shapes, check_comparable
from poolish.guards.stats.drawing import draw, figure
from poolish.guards.stats.quantiles import N_EXACT, Quantiles, Ranks
from poolish.guards.stats.samples import N_BINS, Bins, ColumnSample, Histogram
from poolish.guards.stats.sketches import Distinct, Moments
from poolish.kernels import scan
from poolish.printable import counted, printable

VERSION = 1
_MOST_BINS = 1_000


class Profile(Mapping[str, ColumnProfile]):
    """The statistics of rows by column name; immutable.

    >>> profile = Profile.of({"x": [1.0, 2.0, 6.0, None], "word": ["a", "b", "a", "a"]})
    >>> profile["x"].mean, profile["x"].nulls, profile["word"].categories
    (3.0, 1, {'a': 3, 'b': 1})
    >>> both = profile.merge(Profile.of({"x": [3.0], "word": ["c"]}))
    >>> both["x"].median, both["word"].distinct
    (2.5, 3)
    >>> Profile.from_json(both.to_json()) == both
    True
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, ColumnProfile]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of(
        cls,
        rows_or_columns: Any,
        *,
        bins: int | Mapping[str, Any] = N_BINS,
        sketch: str = "auto",
        reference: Profile | None = None,
    ) -> Profile:
        """The profile of rows: a table, a buffer, a dict of columns (lists, arrays, tensors) or a list of dicts.

        ``bins`` is a number, or for some columns their inner edges; ``reference`` is the profile whose bins are used.
        ``sketch`` says what is kept for quantiles: "auto" all of 10,000 values and a summary of more, "exact" all
        values, "none" nothing.
        """
        if sketch not in SKETCHES:
            raise ConfigError(f"sketch: one of {', '.join(SKETCHES)}, got {sketch!r}")
        known: Mapping[str, ColumnProfile] = {} if reference is None else reference
        columns = {}
        for name, values in columns_of(rows_or_columns).items():
            try:
                columns[name] = profile_of(
                    ColumnSample.of(values), bins=_bins_for(name, bins), sketch=sketch, reference=known.get(name)
                )
            except Exception as error:
                error.add_note(f"while profiling column {name!r}")
                raise
        return cls(columns)

    def merge(self, other: Profile) -> Profile:
        """The profile of the rows of both; a column that one side does not have is as it is on the other."""
        return self._combine(other, ColumnProfile.merge, {**self._columns, **other._columns})

    def subtract(self, other: Profile) -> Profile:
        """The profile of the rows that are left without those of ``other``, which were a part of these.

        Counts and histograms are exact; range and quantiles become unknown. Moments lose digits where the part was most
        of the whole: ``profile[column].digits`` says how many are left, and what has fewer than three is NaN.
        """
        missing = [name for name in other if name not in self._columns]
        if missing:
            raise UnknownColumn(f"columns {missing}: the part has them and the whole has {list(self._columns)}")
        return self._combine(other, ColumnProfile.subtract, self._columns)

    def _combine(self, other: Profile, join: Any, columns: Mapping[str, ColumnProfile]) -> Profile:
        combined = dict(columns)
        for name in self._columns.keys() & other._columns.keys():
            try:
                combined[name] = join(self._columns[name], other._columns[name])
            except (PoolishError, ValueError) as error:
                error.add_note(f"in column {name!r}")
                raise
        return Profile(combined)

    def __getitem__(self, name: str) -> ColumnProfile:
        try:
            return self._columns[name]
        except KeyError:
            raise UnknownColumn(f"column {name!r}: this profile has {list(self._columns)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Profile) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> str:
        """The profile as text that ``from_json`` takes."""
        columns = {name: column.to_json() for name, column in self._columns.items()}
        state = {"poolish_profile": VERSION, "checksum": checksum_of(columns), "columns": columns}
        return json.dumps(state, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The profile that ``to_json`` wrote; anything else is a ``CorruptDataError``."""
        try:
            state = parse_json(text, "profile")
        except ValueError as error:
            raise CorruptDataError(f"no profile: {error}") from error
        if not isinstance(state, dict) or not isinstance(state.get("columns"), dict):
            raise CorruptDataError("no profile: pass what to_json() gave")
        if state.get("poolish_profile") != VERSION:
            raise CorruptDataError(
                f"a profile of version {state.get('poolish_profile')!r}, this poolish reads {VERSION}"
            )
        if state.get("checksum") != checksum_of(state["columns"]):
            raise CorruptDataError("a profile without its checksum: it was changed after to_json(); make it again")
        columns = {}
        for name, column in state["columns"].items():
            try:
                columns[name] = ColumnProfile.from_json(column)
            except CorruptDataError as error:
                error.add_note(f"in column {name!r}")
                raise
        return cls(columns)

    def __repr__(self) -> str:
        lines = [f"  {printable(name)}: {repr(column)[14:-1]}" for name, column in self._columns.items()]
        return "\n".join([f"Profile of {counted(len(self), 'column')}", *lines])

    def _repr_html_(self) -> str:
        headers = ("column", "kind", "rows", "missing", "mean", "std", "min", "median", "max", "distinct", "histogram")
        rows = [[name, *_cells(column)] for name, column in self._columns.items()]
        return str(html.table(headers, rows, caption=f"Profile of {counted(len(self), 'column')}"))


def checksum_of(columns: dict[str, Any]) -> str:
    """The checksum of the columns as JSON; the same however the text is indented and its keys are ordered."""
    return checksum_hex(json.dumps(columns, allow_nan=False, sort_keys=True).encode())


def _bins_for(name: str, bins: Any) -> int | Bins:
    chosen = bins.get(name, N_BINS) if isinstance(bins, Mapping) else bins
    return check_bins(chosen)


def check_bins(bins: Any) -> int | Bins:
    """A number of bins, or bins between given inner edges.

    >>> check_bins([0.0, 1.0]).edges
    array([0., 1.])
    """
    if isinstance(bins, Bins):
        return bins
    if isinstance(bins, int) and not isinstance(bins, bool):
        if 2 <= bins <= _MOST_BINS:
            return bins
        raise ConfigError(f"bins: from 2 to {_MOST_BINS:,}, got {bins}")
    try:
        return Bins.of_edges(bins)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"bins: a number, or inner edges that increase, got {bins!r:.80}") from error


def _cells(column: ColumnProfile) -> list[object]:
    is_length = column.lengths is not None and not column.moments.n
    measured = column.lengths if is_length and column.lengths is not None else column
    words = ("mean", "std", "min", "median", "max")
    figures = [figure(getattr(measured, word), is_exact=word not in measured.estimates) for word in words]
    shown = [f"length {each}" if is_length and each else each for each in figures]
    distinct = figure(column.distinct, is_exact="distinct" not in column.estimates)
    return [column.kind, column.count, column.missing, *shown, distinct, draw(column)]


#: What a profile keeps for quantiles.
SKETCHES = ("auto", "exact", "none")


def profile_of(
    column: ColumnSample, *, bins: int | Bins = N_BINS, sketch: str = "auto", reference: ColumnProfile | None = None
) -> ColumnProfile:
    """The profile of a column, counted on the bins of a reference if there is one."""
    given = bins if isinstance(bins, Bins) else None
    n_bins = len(bins) if isinstance(bins, Bins) else bins
    if reference is not None and column.kind not in ("null", "other") and reference.kind not in ("null", "other"):
        check_comparable(reference, column)
        given, n_bins = reference.own_bins(), reference.n_bins
    if column.numbers is not None:
        made = _of_numbers(column, given, n_bins, sketch)
    else:
        made = _of_others(column, n_bins)
        if given is not None:
            made = replace(made, frozen=column.histogram_on(given), has_own_bins=False)
    lengths = None
    if column.lengths is not None:
        lengths = profile_of(ColumnSample("number", len(column.lengths), numbers=column.lengths), sketch=sketch)
    shapes = None if column.shapes is None else bounded_shapes(column.shapes)
    return replace(made, lengths=lengths, shapes=shapes)


def _of_numbers(column: ColumnSample, given: Bins | None, n_bins: int, sketch: str) -> ColumnProfile:
    numbers, few = column.numbers, column.categories
    assert numbers is not None
    quantiles, own = _ordered(column, n_bins, sketch, has_bins=given is not None)
    bins = given or own
    edges = None if bins is None else bins.edges
    counts = None if edges is None else np.zeros(len(edges) + 1, np.int64)
    moments, low, high, (nan, above, below) = scan(numbers, edges, counts)
    if numbers.dtype.kind in "iu" and len(numbers):  # whole numbers beyond 2**53 are exact
        low, high = int(numbers.min()), int(numbers.max())
    frozen = None
    if bins is not None and counts is not None:
        frozen = Histogram(bins, counts, missing=column.nulls + nan, infinite=above + below)
    elif bins is not None:
        frozen = column.histogram_on(bins)
    return ColumnProfile(
        kind=column.kind,
        count=column.count,
        nulls=column.nulls,
        nan=nan,
        above=above,
        below=below,
        moments=Moments.from_tuple(moments),
        min=low,
        max=high,
        quantiles=quantiles,
        categories=few,
        counts_distinct=Distinct.of(column.words, unique=column.unique_words),
        n_bins=n_bins,
        frozen=frozen,
        has_own_bins=given is None,
    )


def _ordered(column: ColumnSample, n_bins: int, sketch: str, *, has_bins: bool) -> tuple[Quantiles | None, Bins | None]:
    """What is kept of the order, and the bins that must be made now, because the values are not kept."""
    if sketch == "none":
        return None, None if has_bins else _order_of(column, n_bins, sketch)[1]
    quantiles, own = _order_of(column, n_bins, sketch)
    return quantiles, None if has_bins or quantiles.is_exact else own


def _order_of(column: ColumnSample, n_bins: int, sketch: str) -> tuple[Quantiles, Bins]:
    numbers = column.numbers
    assert numbers is not None
    if len(numbers) > N_EXACT and sketch != "exact" and column.categories is None:
        shares = np.arange(1, n_bins) / n_bins
        ranks = Ranks.of(numbers, shares)
        if ranks is not None and ranks.n > N_EXACT:
            bins = Bins.between(np.array([ranks.quantile(share) for share in shares]), n_bins)
            return Quantiles.of_places(ranks.n, ranks.at, ranks.slack), bins
    n_exact = max(len(numbers), N_EXACT) if sketch == "exact" else N_EXACT
    return Quantiles.of_sorted(column.finite, n_exact=n_exact), column.own_bins(n_bins)


def _of_others(column: ColumnSample, n_bins: int) -> ColumnProfile:
    categories: dict[Any, int] | None = {} if column.kind == "null" else None
    distinct, n_uncategorized = None, 0
    if column.texts is not None:
        distinct = Distinct.of(_words_of(column.categories or {}))
        categories, n_uncategorized = bounded(column.categories or {})
    return ColumnProfile(
        column.kind,
        column.count,
        column.nulls,
        categories=categories,
        n_uncategorized=n_uncategorized,
        counts_distinct=distinct,
        n_bins=n_bins,
    )


def _words_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Texts as 64-bit words, by their hash."""
    import xxhash

    return np.array([xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) for text in texts], np.uint64)
