"""Benchmarks follow the library: each can be imported, and names of poolish that it uses exist.

In interpreters of their own: what they import reaches frameworks, some of which change the process that imports them
(torchrl sets how all later processes start).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys

from tests.import_graph import ROOT, imports

PROGRAMS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").rglob("*.py")])


def exists(name: str) -> bool:
    """Whether ``poolish.rows.access.gather_fn`` names a module, or something in one."""
    module, _, last = name.rpartition(".")
    if module and hasattr(importlib.import_module(module), last):
        return True
    return importlib.util.find_spec(name) is not None


def missing_names() -> list[str]:
    """Where programs import what poolish does not have."""
    return [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in PROGRAMS
        for name, line in imports(ast.parse(path.read_text()))
        if name.startswith("poolish.") and not exists(name)
    ]


def import_benchmarks() -> list[str]:
    """The benchmarks, each imported."""
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py"))
    return [importlib.import_module(f"benchmarks.{name}").__name__ for name in names]


def lines_of(function: str) -> list[str]:
    """What a function of this module returns in an interpreter of its own."""
    program = f"from tests import test_benchmarks; print(*test_benchmarks.{function}(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_names_of_poolish_in_benchmarks_and_examples_exist():
    """Also those that a program imports inside functions."""
    assert lines_of("missing_names") == [""]


def test_benchmarks_can_be_imported():
    """Peers that are not installed are no reason to fail."""
    assert "benchmarks.bench_import" in lines_of("import_benchmarks")
