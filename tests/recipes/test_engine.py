"""An engine gives results in the order of tasks, loses none, and keeps nobody waiting once something failed."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from poolish import DatasetRecipe
from poolish.recipes.engine import LocalEngine
from tests.recipes.kitchen import cached, content, numbers, shelf, write


def test_results_come_in_the_order_of_tasks():
    """However long each takes, and only a few ahead of whoever takes them."""
    begun = []

    def slow(i):
        begun.append(i)
        time.sleep(0.001 * (i % 3))
        return i

    results = LocalEngine(4).run(slow, range(100))
    first = next(results)
    time.sleep(0.1)

    assert (first, len(begun)) == (0, 8)
    assert [first, *results] == list(range(100))


@pytest.mark.parametrize("n_workers", [1, 4])
def test_a_stop_iteration_does_not_end_a_bake(n_workers):
    """A function that runs out of something fails; it does not cut the rows short."""

    def fails(i):
        return next(iter(())) if i == 2 else i

    with pytest.raises(RuntimeError):
        list(LocalEngine(n_workers).run(fails, range(5)))


def wait_for_bakers():
    """Until nobody is at work any more."""
    for thread in threading.enumerate():
        if thread.name.startswith("poolish-bake"):
            thread.join(60)


def test_a_failure_waits_for_nobody():
    """One task fails while an earlier one takes for ever: the error comes at once and nothing more is begun."""
    release, begun, waited = threading.Event(), [], []

    def task(i):
        begun.append(i)
        if i == 0:
            release.wait(60)
            waited.append(i)
        if i == 1:
            raise ValueError("one")
        return i

    with pytest.raises(ValueError, match="one"):
        list(LocalEngine(2).run(task, range(1000)))

    assert not waited
    release.set()
    wait_for_bakers()
    assert sorted(begun) == [0, 1]


def test_who_stops_taking_results_waits_for_nobody():
    """Closing the results is enough."""
    release, begun, waited = threading.Event(), [], []

    def task(i):
        begun.append(i)
        if i:
            release.wait(60)
            waited.append(i)
        return i

    results = LocalEngine(2).run(task, range(1000))
    next(results)
    results.close()

    assert not waited
    release.set()
    wait_for_bakers()
    assert len(begun) <= 3


def test_ctrl_c_ends_a_bake_promptly():
    """Also where steps hang: the process is gone long before they would be done."""
    script = """
        import os, time
        from poolish.recipes.engine import LocalEngine
        def hang(i):
            os.write(1, b"begun\\n")
            time.sleep(60)
        try:
            list(LocalEngine(2).run(hang, range(10)))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"

    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=50)

    assert "interrupted" in told
    assert process.returncode == 0


def test_one_worker_is_the_caller_also_where_some_is_kept(tmp_path):
    """Steps may use what belongs to one thread, such as a connection."""
    for i in range(4):
        write(tmp_path / "data" / f"{i}.parquet", numbers(3, 10 * i))
    threads = set()

    def step(row):
        threads.add(threading.current_thread())
        return row

    recipe = DatasetRecipe("r").add_ingredient("a", str(tmp_path / "data")).prepare_step("s", step, version=1)
    first = recipe.bake(cache=tmp_path / "cache", engine=LocalEngine(1))
    write(tmp_path / "data" / "9.parquet", numbers(3, 90))
    second = recipe.bake(cache=tmp_path / "cache", engine=LocalEngine(1))

    assert threads == {threading.current_thread()}
    assert (cached(first), cached(second)) == ((0, 4), (4, 5))


@pytest.mark.parametrize("as_results", [list, iter, tuple])
def test_an_engine_is_whatever_gives_results_in_order(tmp_path, as_results):
    """Also one that gives them all at once."""

    class Plain:
        def run(self, function, tasks):
            return as_results([function(task) for task in tasks])

    shelf(tmp_path / "data", 3, 5)
    recipe = DatasetRecipe("r").add_ingredient("a", str(tmp_path / "data"), take=7)
    recipe.prepare_step("once", "dedup").prepare_step("more", "map", columns={"x": "x + 1"})

    assert content(recipe.bake(engine=Plain())) == content(recipe.bake())


def doubled(row):
    """A step that another process can import."""
    return {"x": 2 * row["x"]}


class Processes:
    """An engine of somebody else."""

    def run(self, function, tasks):
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            return list(pool.map(function, tasks))


def test_fragments_can_be_baked_in_other_processes(tmp_path):
    """What an engine is given can be sent there: the function and its tasks."""
    for i in range(3):
        write(tmp_path / f"{i}.parquet", numbers(5, 5 * i))
    recipe = DatasetRecipe("r").add_ingredient("a", tmp_path, take=8).prepare_step("double", doubled)
    recipe.prepare_step("once", "dedup").prepare_step("again", doubled)

    assert content(recipe.bake(engine=Processes())) == content(recipe.bake())
