"""The imports of ``src/`` as a graph of modules, read from the source as syntax trees.

``tests/test_structure.py`` checks the graph: imports point down and form no cycle. ``tests/architecture.py`` draws it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"


@cache
def sources() -> dict[str, ast.Module]:
    """Every module in src by its dotted name, as a syntax tree."""
    return {module_name(path): ast.parse(path.read_text(), path) for path in sorted(SRC.rglob("*.py"))}


def module_name(path: Path) -> str:
    """``poolish.rows`` for src/poolish/rows/__init__.py."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """``rows`` for poolish.rows.columns; the top package itself is ''."""
    return module.split(".")[1] if module.count(".") else ""


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted names that a tree imports, with the line: ``from a.b import c`` is ``a.b.c``, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def run_nodes(tree: ast.AST, *, functions: bool) -> Iterator[ast.AST]:
    """The nodes that can run: nothing under ``if TYPE_CHECKING:``, and function bodies only if asked for."""
    for node in ast.iter_child_nodes(tree):
        if not functions and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            node = ast.Module(node.orelse, [])
        yield node
        yield from run_nodes(node, functions=functions)


def graph(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """The modules that each module imports at run time, also inside functions."""
    return {module: set(_imported(tree, trees.keys())) - {module} for module, tree in trees.items()}


def _imported(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    for node in run_nodes(tree, functions=True):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, _ in imports(node):
                yield from ([module] if (module := _longest_prefix(name, modules)) else [])


def _longest_prefix(name: str, modules: Collection[str]) -> str:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, each sorted (strongly connected components of two or more)."""
    reached = {node: _reachable(node, edges) for node in edges}
    groups = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in edges}
    return sorted(list(group) for group in groups if group)


def _reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def without_implied(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The transitive reduction: an edge stays only if no longer path leads to the same node."""
    reached = {node: _reachable(node, edges) for node in edges}
    return {
        node: {each for each in direct if not any(each in reached.get(other, ()) for other in direct - {each})}
        for node, direct in edges.items()
    }
