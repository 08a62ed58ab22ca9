"""``poolish new``: a workspace that runs at once, and how to run it."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

from poolish.cli.screen import one_line
from poolish.serve.workspace import make_workspace


def new_workspace(path: Path, *, is_toml: bool = False) -> None:
    """Make it and say what to type next."""
    name = path.name
    made = make_workspace(path, name, is_toml=is_toml)
    console = Console(highlight=False)
    console.print(Text.assemble("made ", one_line(path, "bold"), f" with {len(made)} files:"))
    for file in made:
        console.print(one_line(f"  {file.relative_to(path)}", "dim"), soft_wrap=True)
    config = f"config/train_{name}.{'toml' if is_toml else 'py'}"
    _print_steps(console, path, config)


def _print_steps(console: Console, path: Path, config: str) -> None:
    enter = f"cd {shlex.quote(str(path))}"
    steps = [
        ("fill the queue, in one terminal:", [enter, f"python prepare.py {config}"]),
        ("train on it, in another:", [enter, f"python train.py {config}"]),
        ("and test the provider:", [enter, "pytest"]),
    ]
    for what, commands in steps:
        console.print(f"\n{what}")
        console.print(one_line(f"  {'; '.join(commands)}", "bold green"), soft_wrap=True)
