"""The ``poolish`` command: make a workspace, fill a queue, look at one.

typer and rich come with ``pip install "poolish[cli]"``. They are loaded when a command runs, so importing this costs
nothing, and without them the command prints what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["main", "prepare_main"]

_NEEDED = {"typer", "rich", "click"}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command with these arguments (by default the program's own) and exit."""
    _run("app", argv, "poolish")


def prepare_main(argv: Sequence[str] | None = None) -> NoReturn:
    """``poolish prepare`` alone, for a workspace's own ``prepare.py``, and exit."""
    _run("prepare_app", argv, Path(sys.argv[0]).name or "prepare.py")


def _run(name: str, argv: Sequence[str] | None, program: str) -> NoReturn:
    try:
        app = getattr(_apps(), name)
        app(args=None if argv is None else list(argv), prog_name=program)
    except KeyboardInterrupt:  # while loading; a command that runs has its own way to end
        sys.exit(130)
    sys.exit(0)


def _apps() -> Any:
    try:
        return import_module("poolish.cli.app")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _NEEDED:
            raise
        sys.exit(f'the poolish command needs {error.name}, which is not installed: pip install "poolish[cli]"')
