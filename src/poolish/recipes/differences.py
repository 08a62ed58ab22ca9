"""What changed: between two recipes, and between the rows that two bakes gave.

Rows are matched by what they are (ingredient, part of the source, number there, part of that row), then compared value
by value; nothing is hashed, so no two rows are ever mistaken for each other. All of it is done for whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.printable import printable
from poolish.recipes.description import Described, RecipeDescription
from poolish.recipes.fragment_rows import Int64, occurrences
from poolish.recipes.lineage import BakedRows

#: Rows that are compared at a time, so that two large tables are never copied as a whole.
COMPARED_ROWS = 262_144

Mask = NDArray[np.bool_]


# Recipes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecipeDifference:
    """What one recipe says and another does not."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, Mapping[str, tuple[str, str]]]
    is_reordered: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.is_reordered)

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines())) or "the same"

    def _lines(self) -> Iterator[str]:
        yield from (f"added    {name}" for name in self.added)
        yield from (f"removed  {name}" for name in self.removed)
        for name, changes in self.changed.items():
            yield f"changed  {name}: {'; '.join(_change(what, *pair) for what, pair in changes.items())}"
        if self.is_reordered:
            yield "changed  the order of instructions"


def _change(what: str, before: str, after: str) -> str:
    # Fingerprints of code mean nothing to a reader.
    is_short = before != after and len(before) + len(after) <= 200
    return f"{what} {before} -> {after}" if is_short else f"other {what}"


def recipe_difference(mine: RecipeDescription, previous: RecipeDescription) -> RecipeDifference:
    """From the previous recipe to this one."""
    now, before = mine.parts, previous.parts
    changed = {name: _changes(before[name], now[name]) for name in now if name in before}
    orders = [[name for name in one if name in other] for one, other in ((now, before), (before, now))]
    return RecipeDifference(
        added=tuple(name for name in now if name not in before),
        removed=tuple(name for name in before if name not in now),
        changed={name: changes for name, changes in changed.items() if changes},
        is_reordered=orders[0] != orders[1],
    )


def _changes(before: Mapping[str, Described], after: Mapping[str, Described]) -> dict[str, tuple[str, str]]:
    changes = {
        word: (said.text, after[word].text) for word, said in before.items() if said.meaning != after[word].meaning
    }
    if "version" in changes and before["code"].text == after["code"].text:
        changes.pop("code", None)  # the version stands for the code
    return changes


# Rows ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """What changed between two bakes: how many rows, and because of what.

    ``because`` is "nothing", "data", "recipe", "recipe and data", or "chance" where a step gives other rows each time.
    With "nothing" the rows are the same, whatever ``recipe`` and ``sources`` tell of.
    """

    added: int
    removed: int
    changed: int
    because: str
    recipe: RecipeDifference
    sources: tuple[str, ...]
    #: Whether rows that are in both bakes have another order among themselves.
    is_reordered: bool = False

    def __str__(self) -> str:
        changes = str(self.recipe).splitlines() if self.recipe else []
        changes += [f"changed  data of ingredient {name}" for name in self.sources]
        counts = f"{self.added:,} rows added, {self.removed:,} removed, {self.changed:,} changed"
        order = ", in another order" if self.is_reordered else ""
        has_no_effect = self.because == "nothing" and changes
        because = "the same rows, although" if has_no_effect else f"cause: {self.because}"
        return "\n  ".join(map(printable, [f"{counts}{order}; {because}", *changes]))


def cause(n_different: int, is_other_recipe: bool, is_other_data: bool) -> str:
    """Why rows are different.

    >>> cause(0, True, True), cause(3, True, True), cause(3, False, False)
    ('nothing', 'recipe and data', 'chance')
    """
    if not n_different:
        return "nothing"
    words = [word for word, is_it in (("recipe", is_other_recipe), ("data", is_other_data)) if is_it]
    return " and ".join(words) or "chance"


def matched(mine: BakedRows, theirs: BakedRows) -> tuple[Int64, Int64]:
    """Places of rows that are in both bakes, in one and in the other."""
    groups: dict[tuple[str, str], int] = {}
    keys = [_keys(rows, groups) for rows in (mine, theirs)]
    if all(np.array_equal(one, other) for one, other in zip(*keys, strict=True)):
        places = np.arange(len(mine.rows))
        return places, places
    counted = [[occurrences(*each), *each] for each in keys]
    n_mine = len(mine.rows)
    side = np.repeat([0, 1], [n_mine, len(theirs.rows)])
    both = [np.concatenate(pair) for pair in zip(*counted, strict=True)]
    order = np.lexsort([side, *both])
    is_same = np.ones(max(0, len(order) - 1), bool)
    for key in both:
        is_same &= np.diff(key[order]) == 0
    first = np.flatnonzero(is_same)
    return order[first], order[first + 1] - n_mine


def is_other_order(mine: Int64, theirs: Int64) -> bool:
    """Whether rows at these places of one bake stand in another order at those places of the other.

    >>> is_other_order(np.array([5, 0]), np.array([7, 2])), is_other_order(np.array([5, 0]), np.array([2, 7]))
    (False, True)
    """
    return bool(np.any(np.diff(theirs[np.argsort(mine)]) < 0))


def _keys(rows: BakedRows, groups: dict[tuple[str, str], int]) -> list[Int64]:
    """What tells rows apart, the last counting most: part of a row, row, and a number for ingredient and file."""
    codes = rows.ingredients * len(rows.part_names) + rows.names
    found, inverse = np.unique(codes, return_inverse=True)
    numbers = []
    for code in found.tolist():
        ingredient, part = divmod(code, len(rows.part_names))
        numbers.append(groups.setdefault((rows.ingredient_names[ingredient], rows.part_names[part]), len(groups)))
    return [rows.subs, rows.rows, np.array(numbers, np.int64)[inverse.ravel()]]


def n_changed(mine: pa.Table, theirs: pa.Table, my_rows: Int64, their_rows: Int64) -> int:
    """How many of the matched rows have other values; where columns or types differ, all have."""
    if sorted(mine.schema.names) != sorted(theirs.schema.names):
        return len(my_rows)
    theirs = theirs.select(mine.schema.names)
    if mine.schema.types != theirs.schema.types:
        return len(my_rows)
    n_found = 0
    for first in range(0, len(my_rows), COMPARED_ROWS):
        chosen = slice(first, first + COMPARED_ROWS)
        left, right = mine.take(pa.array(my_rows[chosen])), theirs.take(pa.array(their_rows[chosen]))
        is_other = np.zeros(left.num_rows, bool)
        for one, other in zip(left.columns, right.columns, strict=True):
            is_other |= differing(_whole(one), _whole(other))
        n_found += int(is_other.sum())
    return n_found


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)
    return found


def differing(left: pa.Array, right: pa.Array) -> Mask:
    """Where two arrays of one type do not hold the same; null is like null, NaN like NaN, and 0.0 is not -0.0.

    >>> differing(pa.array([1, None, 3]), pa.array([1, None, 4]))
    array([False, False,  True])
    """
    type_: Any = left.type
    if isinstance(type_, pa.BaseExtensionType):
        return differing(left.storage, right.storage)
    if kinds.is_dictionary(type_):
        return differing(left.dictionary_decode(), right.dictionary_decode())
    nulls = [side.is_null().to_numpy(zero_copy_only=False) for side in (left, right)]
    found: Mask = nulls[0] != nulls[1]
    if kinds.is_null(type_) or not len(left):
        return found
    both = ~(nulls[0] | nulls[1])
    if kinds.is_struct(type_):
        for one, other in zip(left.flatten(), right.flatten(), strict=True):
            found |= both & differing(one, other)
        return found
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        found |= _differing_lists(left, right, both)
    elif kinds.is_map(type_):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        found |= np.array([one != other for one, other in pairs], bool)
    elif kinds.is_floating(type_):
        found |= both & (_bits(left) != _bits(right))
    else:
        found |= pc.not_equal(left, right).fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _bits(values: pa.Array) -> NDArray[Any]:
    """Floats as the integers that have their bits; all NaN are one."""
    plain = (
        pc.if_else(values.is_valid(), values, pa.scalar(0.0).cast(values.type)).to_numpy(zero_copy_only=False).copy()
    )
    plain[np.isnan(plain)] = np.nan
    bits: NDArray[Any] = plain.view(f"u{plain.dtype.itemsize}")
    return bits


def _differing_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    lengths = [pc.list_value_length(side).fill_null(0).to_numpy(zero_copy_only=False) for side in (left, right)]
    found: Mask = both & (lengths[0] != lengths[1])
    comparable = np.flatnonzero(both & ~found)
    inner = [pc.list_flatten(side.take(pa.array(comparable))) for side in (left, right)]
    owners = np.repeat(comparable, lengths[0][comparable])
    found[owners[differing(*inner)]] = True
    return found
