"""What ARCHITECTURE.md says about the code, derived from the code: the import graph and the modules on each code path.

``make graph`` writes both into the document, between ``<!-- name -->`` and ``<!-- end -->``;
``tests/test_architecture.py`` checks that they are current.
"""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.import_graph import ROOT, graph, package_of, sources, without_implied

# The import graph ---------------------------------------------------------------------------------------------


def package_graph() -> dict[str, set[str]]:
    """The packages and single modules of poolish with those that each imports."""
    edges: dict[str, set[str]] = {}
    for module, imported in graph(sources()).items():
        if module.startswith("poolish."):
            found = {package_of(other) for other in imported if other.startswith("poolish.")}
            edges.setdefault(package_of(module), set()).update(found - {package_of(module)})
    return edges


def drawn_graph() -> str:
    """One line for each package, the highest first, with what it imports directly (the rest is implied)."""
    edges = package_graph()
    heights = {package: _height(package, edges) for package in edges}
    direct = without_implied(edges)
    width = max(map(len, edges))
    order = sorted(edges, key=lambda package: (-heights[package], package))
    lines = [f"{heights[each]:>2}  {each:<{width}}  {'  '.join(sorted(direct[each])) or '-'}" for each in order]
    return "\n".join(lines)


def _height(package: str, edges: dict[str, set[str]]) -> int:
    return 1 + max((_height(each, edges) for each in edges.get(package, ())), default=-1)


# The code paths -----------------------------------------------------------------------------------------------


@contextmanager
def modules_entered() -> Iterator[list[str]]:
    """Collect the modules of poolish whose functions run in the block, on any thread, in the order of their first call.

    Compiled kernels have no Python frames, so the reference kernels do not count either.
    """
    entered: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        is_counted = module.startswith("poolish.") and package_of(module) != "kernels"
        is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)  # not the body of a module or class
        if event == "call" and is_counted and is_function and module not in entered:
            entered.append(module)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def append(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """A dict enters a buffer and is read back."""
    from poolish import DatasetBuffer

    buffer = DatasetBuffer()
    row = {"step": 1, "text": "rye", "reward": 0.5}
    yield "buffer.append(row), the first time", lambda: buffer.append(row)
    yield "buffer.append(row), later", lambda: buffer.append(row)
    yield "buffer[0]", lambda: buffer[0]


def guarded_append(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """The same with a suite in front of the buffer."""
    from poolish import DatasetBuffer, Suite

    buffer = DatasetBuffer(guard=Suite("rewards").expect("reward", between=(0, 1)))
    yield "buffer.append(row), guarded by a suite", lambda: buffer.append({"reward": 0.5})


def publish(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """A batch leaves a provider and arrives in a trainer."""
    import numpy as np

    from poolish import DataProviderBase, DatasetConsumer

    class Numbers(DataProviderBase):
        def build_meta(self) -> dict[str, Any]:
            return {"batch_schema": [{"name": "x", "dtype": "int64", "shape": [], "role": "input"}]}

        def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
            return {"x": rng.integers(100, size=self.batch_size)}

    config = {"dataset": "numbers", "batch_size": 4, "block_size": 1}
    with Numbers(config, path=folder) as provider:
        provider.publish("train")
        yield "provider.publish(split)", lambda: provider.publish("train")
        with DatasetConsumer(folder, output="numpy", timeout_s=10) as consumer:
            consumer.get_batch("train")
            yield "consumer.get_batch(split)", lambda: consumer.get_batch("train")


def load(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """A loader delivers rows of a buffer in a shuffled order."""
    from poolish import DatasetBuffer, Loader

    buffer = DatasetBuffer()
    buffer.append([{"x": float(i)} for i in range(64)])
    loader = Loader(buffer, batch_size=8, shuffle=True)
    batches = iter(loader)
    yield "next(batches), the first time", lambda: next(batches)
    yield "next(batches), later", lambda: next(batches)


def bake(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Two parquet files are filtered, transformed and baked into a buffer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from poolish import DatasetRecipe, col
    from poolish.recipes.engine import LocalEngine

    for name in ("wheat", "rye"):
        pq.write_table(pa.table({"x": range(100)}), folder / f"{name}.parquet")
    recipe = DatasetRecipe("bread", seed=0)
    recipe.add_ingredient("wheat", str(folder / "wheat.parquet"), where=col.x >= 10, take=0.5)
    recipe.add_ingredient("rye", str(folder / "rye.parquet"))
    recipe.prepare_step("double", "map", columns={"x": col.x * 2})
    yield "recipe.bake()", lambda: recipe.bake(engine=LocalEngine(n_workers=1))  # one thread: one order of modules


PATHS: dict[str, Callable[[Path], Iterator[tuple[str, Callable[[], object]]]]] = {
    "append": append,
    "guarded append": guarded_append,
    "publish to get_batch": publish,
    "a loader's batch": load,
    "a bake": bake,
}


def drawn_path(name: str) -> str:
    """The calls of one code path, each with the modules it enters, in order."""
    with tempfile.TemporaryDirectory() as folder:
        calls = []
        for title, call in PATHS[name](Path(folder)):
            with modules_entered() as entered:
                call()
            modules = "  ".join(module.removeprefix("poolish.") for module in entered)
            wrapped = textwrap.fill(modules, 112, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            calls.append(f"{title}: {len(entered)} modules\n{wrapped}")
        return "\n".join(calls)


# The document -------------------------------------------------------------------------------------------------


def current(document: str) -> str:
    """The document with the graph and the code paths as the source has them now."""

    def redrawn(block: re.Match[str]) -> str:
        drawn = drawn_graph() if block["name"] == "import graph" else drawn_path(block["name"])
        return f"<!-- {block['name']} -->\n```text\n{drawn}\n```\n<!-- end -->"

    return re.sub(r"<!-- (?P<name>[^>]+) -->\n.*?<!-- end -->", redrawn, document, flags=re.S)


if __name__ == "__main__":
    document = ROOT / "ARCHITECTURE.md"
    document.write_text(current(document.read_text()))
