"""Every Python program in the documents runs as a reader would run it.

The ``python`` blocks of one document are one program, run from top to bottom in an empty folder by an interpreter
of its own. Everything else in the document becomes an empty line, so a traceback names the document's own lines.
A block that is not a program says so by another language (``text``, ``console``, ``bash``).

A block with a name, ``python title=train.py``, is a file of that name. The console block below it has the commands that
start it; each of them is run in an empty folder that holds all files of the document.
"""

from __future__ import annotations

import copy
import os
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
        if block["tag"].split()[:1] in (["python"], ["py"]) and not title_of(block["tag"]):
            first = document.count("\n", 0, block.start("code"))
            code = textwrap.dedent(block["code"]).splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


def title_of(tag: str) -> str:
    """The file name that the tag of a block gives it, if any."""
    found = re.search(r"\btitle=(\S+\.py)$", tag.strip())
    return found[1] if found else ""


def files_of(document: str) -> dict[str, str]:
    """The document's programs that are files, by name."""
    blocks = [(title_of(block["tag"]), block["code"]) for block in BLOCK.finditer(document)]
    return {title: textwrap.dedent(code) for title, code in blocks if title}


def commands_of(document: str) -> list[str]:
    """The commands in the document that start one of its files."""
    console = "".join(block["code"] for block in BLOCK.finditer(document) if block["tag"].strip() == "console")
    lines = [line.removeprefix("$ ") for line in console.splitlines() if line.startswith("$ ")]
    return [line for line in lines if line.split()[-1] in files_of(document)]


#: What a command begins with, and the module of this interpreter that it stands for.
LAUNCHERS = {
    "python ": [],
    "torchrun ": ["-m", "torch.distributed.run"],
    "accelerate launch ": ["-m", "accelerate.commands.launch"],
}


def start(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a document with this interpreter."""
    while "=" in command.split()[0]:
        setting, command = command.split(maxsplit=1)
        environment = {**environment, **dict([setting.split("=")])}
    (launcher,) = [each for each in LAUNCHERS if command.startswith(each)]
    quiet = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    alone = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": ""}
    return subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], *command.removeprefix(launcher).split()],
        cwd=folder,
        env={**{name: value for name, value in {**os.environ, **quiet, **alone}.items() if value}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


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


COMMANDS = [(path, command) for path in DOCUMENTS for command in commands_of(path.read_text())]


@pytest.mark.parametrize(("document", "command"), COMMANDS, ids=[f"{path.name}: {line}" for path, line in COMMANDS])
def test_files_in_documents_run_by_their_commands(document: Path, command: str, tmp_path: Path):
    """A reader who saves the files of a document and types its commands gets what it promises."""
    text = document.read_text()
    for name, code in files_of(text).items():
        (tmp_path / name).write_text(code)
    first = commands_of(text)[0]  # it makes what the others need
    if command != first:
        assert start(first, tmp_path).returncode == 0

    done = start(command, tmp_path)

    assert done.returncode == 0, f"{document.name}: {command} fails:\n{done.stderr}"


def test_every_file_in_a_document_has_a_command():
    """A file that no command starts would never be run."""
    for document in DOCUMENTS:
        text = document.read_text()

        assert set(files_of(text)) == {command.split()[-1] for command in commands_of(text)}, document.name


def test_files_and_commands_are_found():
    """A title makes a file of a block; commands are those that end with one."""
    document = "```python title=a.py\nx = 1\n```\n```console\n$ python a.py\n1\n$ ls\n```\n```python\ny = 1\n```\n"

    assert files_of(document) == {"a.py": "x = 1\n"}
    assert commands_of(document) == ["python a.py"]
    assert program_of(document).split() == ["y", "=", "1"]


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
