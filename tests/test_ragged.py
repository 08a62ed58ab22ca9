"""Ragged: a column of rows of different lengths is two arrays that behave as the list of its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poolish.errors import SchemaError
from poolish.ragged import Ragged


def numbers(values: list, offsets: list[int], kind: str) -> Ragged:
    """A column of arrays, or of tensors."""
    column = Ragged(np.array(values), np.array(offsets))
    return column if kind == "numpy" else Ragged(torch.from_numpy(column.values), torch.from_numpy(column.offsets))


def rows_of(column: Ragged) -> list:
    return [row.tolist() for row in column]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("trailing", [(), (2,)])
def test_every_way_to_choose_rows_is_that_of_a_list(kind: str, trailing: tuple[int, ...]):
    """Random rows, chosen by a number, a slice, numbers or a mask: the same rows as those of the list."""
    rng = np.random.default_rng(7)
    for _ in range(30):
        lengths = rng.integers(0, 4, rng.integers(1, 7))
        rows = [rng.integers(9, size=(n, *trailing)) for n in lengths]
        column = numbers(np.concatenate(rows), [0, *np.cumsum(lengths)], kind)
        expected = [row.tolist() for row in rows]
        chosen = rng.integers(-len(rows), len(rows), 5)
        mask = rng.random(len(rows)) < 0.5

        assert rows_of(column) == [column[i].tolist() for i in range(len(rows))] == expected
        assert column[-1].tolist() == expected[-1]
        for part in (slice(1, 3), slice(2, None), slice(5, 2), slice(None, None, -1), slice(0, 6, 2)):
            assert rows_of(column[part]) == expected[part]
        assert rows_of(column[chosen]) == [expected[i] for i in chosen]
        assert rows_of(column[mask]) == [row for row, is_in in zip(expected, mask, strict=True) if is_in]
        assert column[chosen].lengths.tolist() == [len(expected[i]) for i in chosen]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_padding_keeps_the_values_and_fills_the_rest(kind: str):
    """Rows in front, the value behind them, for rows of any shape; a row that does not fit is an error."""
    column = numbers([[1, 1], [2, 2], [3, 3]], [0, 2, 2, 3], kind)

    assert column.padded(-1).tolist() == [[[1, 1], [2, 2]], [[-1, -1], [-1, -1]], [[3, 3], [-1, -1]]]
    assert column.padded(0, length=3).shape == (3, 3, 2)
    assert column[:0].padded().shape == (0, 0, 2)
    with pytest.raises(SchemaError, match=r"row 0 has 2 values, length=1"):
        column.padded(0, length=1)


def test_frameworks_move_a_column_as_they_move_a_tensor():
    """``to`` changes the dtype of the values and never that of the offsets."""
    column = numbers([1, 2, 3], [0, 1, 3], "torch").to(torch.float16)

    assert (column.values.dtype, column.offsets.dtype) == (torch.float16, torch.int64)
    assert column.nbytes == 3 * 2 + 3 * 8


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ([1, 3], "begin at 1"),
        ([0, 2, 1, 3], "row 1 has offsets that decrease, from 2 to 1"),
        ([0, 2], "end at 2, its values at 3"),
        ([0, 4], "end at 4, its values at 3"),
        ([], "no column"),
        ([[0, 3]], "no column"),
    ],
)
def test_wrong_offsets_are_named(offsets: list, problem: str):
    """Offsets that would give wrong rows are found before a row is taken."""
    found = Ragged(np.arange(3), np.array(offsets, np.int64)).problem()

    assert found is not None
    assert problem in found
