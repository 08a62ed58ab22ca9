"""ARCHITECTURE.md is current: its import graph and its code paths are those of the source."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.architecture import PATHS, modules_entered
from tests.import_graph import ROOT

PACKAGE = ROOT / "src" / "poolish"
REDRAW = (
    "import pathlib, tests.architecture as a; print(a.current(pathlib.Path('ARCHITECTURE.md').read_text()), end='')"
)


def test_graph_and_code_paths_in_the_document_are_current():
    """Redrawn by an interpreter of its own, whose caches are empty, the document stays as it is."""
    redrawn = subprocess.run(
        [sys.executable, "-c", REDRAW], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert redrawn.splitlines() == (ROOT / "ARCHITECTURE.md").read_text().splitlines(), "run `make graph`"


def test_the_document_has_the_graph_and_every_code_path():
    """Each of them once."""
    document = (ROOT / "ARCHITECTURE.md").read_text()

    assert [document.count(f"<!-- {name} -->") for name in ("import graph", *PATHS)] == [1] * (1 + len(PATHS))


def test_modules_are_counted_in_the_order_of_their_calls():
    """Once each, and those that only the interpreter loads are not among them."""
    from poolish import DatasetBuffer

    with modules_entered() as entered:
        DatasetBuffer().append({"x": 1})

    assert entered[0] == "poolish.rows.buffer"
    assert len(set(entered)) == len(entered)


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_the_documents_name_exist(name: str):
    """``rows/saved.py`` is src/poolish/rows/saved.py, if it is not a path from the top."""
    named = set(re.findall(r"`([\w/.]+(?:\.py|\.pyx|\.md|\.txt))`", (ROOT / name).read_text()))
    exists = {
        path: (ROOT / path).exists() or (PACKAGE / path).exists() or (PACKAGE / "kernels" / path).exists()
        for path in named
    }

    assert [path for path, is_there in sorted(exists.items()) if not is_there] == []
