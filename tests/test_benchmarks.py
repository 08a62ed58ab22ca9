"""Benchmarks follow the library: each can be imported, and names of poolish that it uses exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

from tests.import_graph import ROOT, imports

PROGRAMS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").rglob("*.py")])


def exists(name: str) -> bool:
    """Whether ``poolish.rows.access.gather_fn`` names a module, or something in one."""
    module, _, last = name.rpartition(".")
    if module and hasattr(importlib.import_module(module), last):
        return True
    return importlib.util.find_spec(name) is not None


def test_names_of_poolish_in_benchmarks_and_examples_exist():
    """Also those that a program imports inside functions."""

    def missing(path: Path) -> list[str]:
        found = [(name, line) for name, line in imports(ast.parse(path.read_text())) if name.startswith("poolish.")]
        return [f"{path.relative_to(ROOT)}:{line} {name}" for name, line in found if not exists(name)]

    assert [line for path in PROGRAMS for line in missing(path)] == []


def test_benchmarks_can_be_imported():
    """Peers that are not installed are no reason to fail."""
    names = [path.stem for path in (ROOT / "benchmarks").glob("bench_*.py")]

    for name in names:
        importlib.import_module(f"benchmarks.{name}")
