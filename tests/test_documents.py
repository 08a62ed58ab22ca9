"""Every Python program in the documents runs as a reader would run it.

The ``python`` blocks of one document are one program, run from top to bottom in an empty folder by an interpreter
of its own. Everything else in the document becomes an empty line, so a traceback names the document's own lines.
A block that is not a program says so by another language (``text``, ``console``, ``bash``).
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
DOCUMENTS = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))

BLOCK = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<tag>[^\n`]*)\n(?P<code>.*?)^ *(?P=fence) *$", re.M | re.S)


def program_of(document: str) -> str:
    """The document's Python blocks, each on its own lines, and nothing else."""
    lines = [""] * (document.count("\n") + 1)
    for block in BLOCK.finditer(document):
        if block["tag"].split()[:1] in (["python"], ["py"]):
            first = document.count("\n", 0, block.start("code"))
            code = textwrap.dedent(block["code"]).splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


def run(document: Path, folder: Path, then: str = "") -> subprocess.CompletedProcess[str]:
    """Run a document's programs in ``folder``, and ``then`` something with what they have made."""
    script = folder.with_suffix(".programs") / document.name
    script.parent.mkdir()
    script.write_text(f"{program_of(document.read_text())}\n{then}")
    return subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def check_datasets(made: dict[str, Any]) -> None:
    """Raise unless all dataset classes among these globals pass the suite, as the instances that the program made."""
    from poolish.load import Dataset
    from poolish.testing import DatasetBehaviour

    classes = [each for each in made.values() if isinstance(each, type) and issubclass(each, Dataset)]
    for each in [each for each in classes if each.__module__ == "__main__"]:
        instances = [value for value in made.values() if type(value) is each]
        assert instances, f"{each.__name__}: the document makes none under a name of its own"
        suite = type("Suite", (DatasetBehaviour,), {"make": lambda self, folder, one=instances[0]: copy.deepcopy(one)})
        for test in [name for name in dir(suite) if name.startswith("test_")]:
            getattr(suite(), test)(Path(tempfile.mkdtemp(dir=".")))
        print(f"{each.__name__} passed the suite")


CHECK_DATASETS = f"""
import sys, time
sys.path.append({str(ROOT)!r})
from tests.test_documents import check_datasets
time.sleep = lambda seconds: None  # a dataset that is slow on purpose need not be so in all tests
check_datasets(dict(globals()))
"""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_in_documents_run(document: Path, tmp_path: Path):
    """Whoever copies the programs of a document, in order, gets what it promises."""
    done = run(document, tmp_path)

    assert done.returncode == 0, f"{document.relative_to(ROOT)} does not run:\n{done.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_datasets_in_documents_can_stand_for_each_other(document: Path, tmp_path: Path):
    """A dataset class that a reader copies passes the suite that the documents tell them to run."""
    if "Dataset):" not in program_of(document.read_text()):
        return

    done = run(document, tmp_path, CHECK_DATASETS)

    assert done.returncode == 0, f"a dataset in {document.name} fails the suite:\n{done.stderr}"
    assert " passed the suite" in done.stdout


def test_a_dataset_in_a_document_can_fail_the_suite(tmp_path: Path):
    """The check looks at the classes that are printed: one that wraps round is found."""
    document = tmp_path / "GUIDE.md"
    methods = "__len__, __getitem__ = lambda self: 9, lambda self, index: index % 9"
    body = f"from poolish.load import Dataset\nclass Rows(Dataset):\n    {methods}\nrows = Rows()"
    document.write_text(f"```python\n{body}\n```\n")
    folder = tmp_path / "empty"
    folder.mkdir()

    done = run(document, folder, CHECK_DATASETS)

    assert done.returncode == 1
    assert "should be a IndexError" in done.stderr


def test_failing_program_names_document_and_line(tmp_path: Path):
    """A broken program is found by the file and line where it stands."""
    document = tmp_path / "GUIDE.md"
    document.write_text("# Guide\n\n```python\nx = 1\n```\n\nNow\n\n```python\nx += 1\nassert x == 3\n```\n")
    folder = tmp_path / "empty"
    folder.mkdir()

    done = run(document, folder)

    assert done.returncode == 1
    assert 'GUIDE.md", line 11' in done.stderr


def test_only_python_blocks_are_programs():
    """Other blocks are for reading; blocks in lists and with a title are programs too."""
    document = """\
~~~python
a
~~~
```text
b
```
1. item
   ```python title=x
   c:
     d
   ```
````python
```
````
"""

    assert program_of(document).split("\n") == ["", "a", "", "", "", "", "", "", "c:", "  d", "", "", "```", "", ""]


def test_links_in_documents_lead_to_files():
    """A file that is moved takes its links along."""
    links = [
        (document, link)
        for document in DOCUMENTS
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text())
    ]

    assert len(links) > 20
    assert [(str(document), link) for document, link in links if not (document.parent / link).exists()] == []
