"""What a cache keeps comes back as it was, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetRecipe
from poolish.expressions import EVALUATOR_VERSION
from poolish.recipes import cache
from poolish.recipes.cache import Cache, key_of
from poolish.recipes.fragment_rows import BakedFragment, FragmentRows


def baked_piece(table, n_rows):
    """An entry with rows, counts, a reject and a threshold."""
    piece = FragmentRows("a", "x.parquet", table, np.arange(n_rows), np.arange(n_rows) * 2, np.arange(n_rows) * 3)
    return BakedFragment(piece, [{"in": n_rows, "out": n_rows}], [{"row": 1, "reason": "bad"}], threshold=77)


def told(baked):
    """All that an entry says, in plain Python."""
    piece = baked.piece
    arrays = [getattr(piece, name).tolist() for name in ("rows", "subs", "steps")]
    table = piece.table.to_pylist() if piece.table.num_columns else []
    return piece.ingredient, piece.name, table, arrays, baked.counts, baked.rejects, baked.threshold


@pytest.mark.parametrize("n_rows", [0, 1, 5])
@pytest.mark.parametrize("kind", ["columns", "none", "counted"])
def test_a_piece_comes_back_as_it_was(tmp_path, n_rows, kind):
    """With columns that are called like our own, and without any columns."""
    names = ("rows", "subs", "steps", "__row", "__sub", "__steps")
    table = pa.table({name: pa.array(range(n_rows), pa.int64()) for name in names})
    table = {"columns": table, "none": pa.table({}), "counted": table.select([])}[kind]
    cache, baked = Cache(tmp_path), baked_piece(table, n_rows)

    cache.put("ab12", baked)
    found = cache.get("ab12")

    assert told(found) == told(baked)
    assert found.is_cached
    assert found.piece.table.schema == table.schema
    assert found.piece.table.num_rows == n_rows
    assert cache.look("ab12") == (77, False)  # some were rejected: of fewer rows nobody knows how many would be

    cache.put("ab12", replace(baked, rejects=[]))
    assert cache.look("ab12") == (77, True)


def test_each_flipped_bit_is_seen(tmp_path):
    """A damaged entry is no entry, wherever the damage is, and is removed."""
    cache, baked = Cache(tmp_path), baked_piece(pa.table({"x": [1, 2, 3]}), 3)
    cache.put("ab12", baked)
    (place,) = tmp_path.rglob("*.piece")
    whole = place.read_bytes()
    n_line = whole.index(b"\n") + 1

    for i in range(len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 1 << i % 8
        place.write_bytes(damaged)
        if i < n_line:
            assert cache.look("ab12") is None, i
        assert cache.get("ab12") is None, i
        assert not place.exists()


def test_a_cut_entry_is_no_entry(tmp_path):
    """As a power cut leaves it."""
    cache = Cache(tmp_path)
    cache.put("ab12", baked_piece(pa.table({"x": [1, 2, 3]}), 3))
    (place,) = tmp_path.rglob("*.piece")
    whole = place.read_bytes()

    for n_bytes in range(0, len(whole), 7):
        place.write_bytes(whole[:n_bytes])
        assert cache.get("ab12") is None, n_bytes


def test_a_column_may_be_called_anything(tmp_path):
    """Columns called like what poolish keeps beside them are baked from the cache too."""
    recipe = DatasetRecipe("r").add_ingredient("a", pa.table({"__row": [5, 6], "__sub": [7, 8], "rows": [1, 2]}))

    first, second = (recipe.bake(cache=tmp_path).table.to_pylist() for _ in range(2))

    assert first == second == [{"__row": 5, "__sub": 7, "rows": 1}, {"__row": 6, "__sub": 8, "rows": 2}]


def test_results_of_an_earlier_poolish_are_never_found():
    """Keys of 0.1.0 covered less of what a function uses; the same parts have another key now."""
    parts = ["rye", "x > 1", 7]

    assert key_of(*parts) != blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=20).hexdigest()


def test_another_evaluator_finds_no_result_of_the_one_before(tmp_path, monkeypatch):
    """Expressions may mean something else since, so what was baked by them is baked again."""
    recipe = DatasetRecipe("r").add_ingredient("a", pa.table({"x": [1, 2]}), where="x / 0 > 1")
    recipe.bake(cache=tmp_path)
    same = str(recipe.bake(cache=tmp_path).report)

    monkeypatch.setattr(cache, "EVALUATOR_VERSION", EVALUATOR_VERSION + 1)
    other = str(recipe.bake(cache=tmp_path).report)

    assert "1 of 1 fragment from the cache" in same
    assert "from the cache" not in other
