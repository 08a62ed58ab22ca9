"""Profile: what rows look like, column by column, in one pass; small, and two of them make one.

A profile of a reference freezes the bins of each column. Profiles made on it (``reference=``) count on those bins, so a
window of a stream is compared with it without the reference's rows, and windows are merged and subtracted exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from poolish import html
from poolish.errors import ConfigError, CorruptDataError, PoolishError, UnknownColumn
from poolish.files import checksum_hex, parse_json
from poolish.guards.bins import N_BINS, Bins
from poolish.guards.column_profile import ColumnProfile
from poolish.guards.column_profiling import SKETCHES, profile_of
from poolish.guards.columns import column_of, columns_of
from poolish.printable import printable

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
                    column_of(values), bins=_bins_for(name, bins), sketch=sketch, reference=known.get(name)
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

        Counts, histograms and moments are exact, or to rounding; range and quantiles become unknown.
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
        told = {"poolish_profile": VERSION, "checksum": checksum_of(columns), "columns": columns}
        return json.dumps(told, allow_nan=False, ensure_ascii=False)

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
        return "\n".join([f"Profile of {len(self)} columns", *lines])

    def _repr_html_(self) -> str:
        headers = ("column", "kind", "rows", "missing", "mean", "std", "min", "median", "max", "distinct", "histogram")
        rows = [[name, *_cells(column)] for name, column in self._columns.items()]
        return str(html.table(headers, rows, caption=f"Profile of {len(self)} columns"))


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
    figures = [_figure(getattr(column, word)) for word in ("mean", "std", "min", "median", "max")]
    if column.lengths is not None and not column.moments.n:
        figures = [
            f"length {_figure(getattr(column.lengths, word))}" for word in ("mean", "std", "min", "median", "max")
        ]
    return [column.kind, column.count, column.missing, *figures, _figure(column.distinct), _drawn(column)]


def _figure(value: Any) -> object:
    if value is None or value != value:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def _drawn(column: ColumnProfile) -> object:
    found = column.histogram
    if found is None or not len(found.counts):
        return ""
    return html.sparkline([0, *found.counts.tolist(), 0], title=repr(found))
