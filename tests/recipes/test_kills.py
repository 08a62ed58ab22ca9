"""Killed at any moment: what was finished is kept, what was not is baked again, and nothing is left in the way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetRecipe, col
from poolish.recipes.engine import LocalEngine
from tests.effort import times
from tests.faults import signals
from tests.recipes.kitchen import cached, content, shelf

N_FILES = 12


def recipe_of(folder: Path) -> DatasetRecipe:
    """Some work for each file, and a barrier behind it."""
    recipe = DatasetRecipe("long", seed=2).add_ingredient("files", folder, where=col.score > 1, take=0.8)
    recipe.prepare_step("slow", slow).prepare_step("once", "dedup", columns=["x"])
    return recipe.add_ingredient("some", folder, take=20)


def slow(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Long enough to be killed in."""
    time.sleep(0.00005)
    return [row] * (1 + row["x"] % 2)


def baking(folder: Path, cache: Path, n_workers: int, say_begun: Callable[[], None]) -> int:
    """A child that bakes again and again, so that it is killed in the middle of it."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            say_begun()
            while True:
                recipe_of(folder).bake(cache=cache, engine=LocalEngine(n_workers))
                for entry in cache.rglob("*.piece"):  # so that there is something to do
                    if hash(entry.name) % 2:
                        entry.unlink(missing_ok=True)
        except KeyboardInterrupt:
            os._exit(9)
        finally:
            os._exit(1)
    return child


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_bake_that_was_killed_goes_on_from_what_it_finished(how, n_workers, tmp_path):
    """At random moments, many times, with one cache: the next bake gives the same bytes, whatever was left."""
    folder, cache = shelf(tmp_path / "data", N_FILES, 20), tmp_path / "cache"
    want = content(recipe_of(folder).bake())
    rng = np.random.default_rng(int(how) + n_workers)

    for i in range(times(4)):
        with signals() as (say_begun, wait_begun):
            child = baking(folder, cache, n_workers, say_begun)
            wait_begun()
        time.sleep(float(rng.uniform(0.0, 0.12)))
        os.kill(child, how)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in ((-9,) if how == signal.SIGKILL else (9, -2, 1)), code
        if i % 2:
            assert content(recipe_of(folder).bake(cache=cache)) == want

    assert content(recipe_of(folder).bake(cache=cache)) == want
    again = recipe_of(folder).bake(cache=cache)
    assert content(again) == want
    assert cached(again) == (2 * N_FILES, 2 * N_FILES)


def test_what_a_killed_bake_had_finished_is_not_baked_again(tmp_path):
    """The child dies at its seventh file: six are there, and only the others are baked."""
    folder, cache = shelf(tmp_path / "data", N_FILES, 5), tmp_path / "cache"

    def recipe(deadly: bool) -> DatasetRecipe:
        def step(row: dict[str, Any]) -> dict[str, Any]:
            if deadly and row["x"] == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            return row

        return DatasetRecipe("r").add_ingredient("a", folder).prepare_step("s", step, version=1)

    child = os.fork()
    if child == 0:
        recipe(True).bake(cache=cache, engine=LocalEngine(1))
        os._exit(0)
    _, status = os.waitpid(child, 0)

    result = recipe(False).bake(cache=cache)

    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert cached(result) == (6, N_FILES)
    assert content(result) == content(recipe(False).bake())


def test_a_step_that_fails_keeps_what_was_finished(tmp_path):
    """An exception is no reason to bake all again once the cause is gone."""
    folder, cache = shelf(tmp_path / "data", 6, 5), tmp_path / "cache"
    is_broken = [True]

    def step(row: dict[str, Any]) -> dict[str, Any]:
        if is_broken[0] and row["x"] == 20:
            raise OSError("the service is away")
        return row

    recipe = DatasetRecipe("r").add_ingredient("a", folder).prepare_step("s", step, version=1)
    with pytest.raises(OSError, match="away"):
        recipe.bake(cache=cache, engine=LocalEngine(1))
    is_broken[0] = False

    assert cached(recipe.bake(cache=cache)) == (4, 6)


def test_a_killed_bake_leaves_its_target_as_it_was(tmp_path):
    """A living buffer gets all rows or none; here the exception comes when most is baked."""
    folder = shelf(tmp_path / "data", 6, 5)
    buffer = DatasetBuffer()
    buffer.append(numbers_like(folder))
    before = buffer.to_pydict()

    def step(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == 29:
            raise KeyboardInterrupt
        return row

    with pytest.raises(KeyboardInterrupt):
        DatasetRecipe("r").add_ingredient("a", folder).prepare_step("s", step, version=1).bake(into=buffer)

    assert buffer.to_pydict() == before


def numbers_like(folder: Path) -> Any:
    return DatasetRecipe("r").add_ingredient("a", folder / "000.parquet").bake().table


def test_leftovers_of_the_dead_do_not_pile_up(tmp_path):
    """Half-written entries of killed bakes are removed by a later one; those of the living are not."""
    folder, cache = shelf(tmp_path / "data", 4, 5), tmp_path / "cache"
    recipe = DatasetRecipe("r").add_ingredient("a", folder)
    recipe.bake(cache=cache)
    for entry in list(cache.rglob("*.piece")):
        for i in range(3):
            (entry.parent / f".{entry.name}.{i:016x}.partial").write_bytes(b"half")
        entry.unlink()

    recipe.bake(cache=cache)
    recipe.bake(cache=cache)

    assert list(cache.rglob("*.partial")) == []


def test_a_bake_leaves_nothing_open(tmp_path):
    """Files, maps and threads go when the result goes."""
    folder = shelf(tmp_path / "data", 4, 5)
    for _ in range(2):
        recipe_of(folder).bake(cache=tmp_path / "cache")
    before = n_descriptors()

    for _ in range(5):
        recipe_of(folder).bake(cache=tmp_path / "cache", engine=LocalEngine(3))

    assert n_descriptors() <= before + 2


def test_a_cache_that_cannot_be_written_is_one_error(tmp_path):
    """A directory where an entry would go: an OSError that names a place, and the next bake without it works."""
    folder, cache = shelf(tmp_path / "data", 2, 5), tmp_path / "cache"
    recipe = DatasetRecipe("r").add_ingredient("a", folder)
    recipe.bake(cache=cache)
    for entry in list(cache.rglob("*.piece")):
        entry.unlink()
        entry.mkdir()
        (entry / "x").write_text("in the way")

    try:
        assert recipe.bake(cache=cache).table.num_rows == 10
    except OSError as error:
        assert str(cache) in str(error)  # noqa: PT017
    assert recipe.bake().table.num_rows == 10
