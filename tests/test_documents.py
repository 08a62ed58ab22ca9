"""Every Python program in the documents runs as a reader would run it.

The ``python`` blocks of one document are one program, run from top to bottom in an empty folder by an interpreter
of its own. Everything else in the document becomes an empty line, so a traceback names the document's own lines.
A block that is not a program says so by another language (``text``, ``console``, ``bash``).
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

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


def run(document: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a document's programs in ``folder``."""
    script = folder.with_suffix(".programs") / document.name
    script.parent.mkdir()
    script.write_text(program_of(document.read_text()))
    return subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_in_documents_run(document: Path, tmp_path: Path):
    """Whoever copies the programs of a document, in order, gets what it promises."""
    done = run(document, tmp_path)

    assert done.returncode == 0, f"{document.relative_to(ROOT)} does not run:\n{done.stderr}"


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
