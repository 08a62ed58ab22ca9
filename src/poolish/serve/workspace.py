"""A new workspace from the templates: the smallest whole program that fills a queue and trains from it.

``templates/workspace`` holds the files, each with the suffix ``.template`` so that nothing takes them for programs of
poolish itself. ``NAME`` in a path and ``{{name}}``, ``{{config}}`` in a text become the workspace's own.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

from poolish.errors import ConfigError

_TEMPLATES = Path(__file__).parent / "templates" / "workspace"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SUFFIX = ".template"


def make_workspace(path: str | os.PathLike[str], name: str, *, is_toml: bool = False) -> list[Path]:
    """Write a workspace for a dataset ``name`` to a new folder, whole or not at all; its files.

    >>> files = make_workspace(folder / "char", "char")
    >>> [str(file.relative_to(folder)) for file in files][1:4]
    ['char/README.md', 'char/config/train_char.py', 'char/data/char/input.txt']
    """
    at = Path(path)
    config = f"config/train_{_checked(name)}.{'toml' if is_toml else 'py'}"
    if os.path.lexists(at):
        raise ConfigError(f"{at}: exists already; choose another name, or remove it")
    if not at.absolute().parent.is_dir():
        raise ConfigError(f"{at}: there is no folder {at.parent}; make it first")
    partial = at.with_name(f".{at.name}.{secrets.token_hex(4)}.partial")
    try:
        names = [_write(template, partial, name, config) for template in _chosen(is_toml)]
        os.rename(partial, at)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return sorted(at / made for made in names)


def _checked(name: str) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError(f"name {name!r}: use 1 to 64 letters, digits, _ and -, a letter first")


def _chosen(is_toml: bool) -> list[Path]:
    other = ".py.template" if is_toml else ".toml.template"
    found = sorted(_TEMPLATES.rglob(f"*{_SUFFIX}"))
    return [file for file in found if not (file.parent.name == "config" and file.name.endswith(other))]


def _write(template: Path, folder: Path, name: str, config: str) -> str:
    """Fill in one template; its path in the workspace."""
    made = str(template.relative_to(_TEMPLATES)).removesuffix(_SUFFIX).replace("NAME", name)
    made = ".gitignore" if made == "gitignore" else made  # packaging leaves out files that begin with a dot
    text = template.read_text(encoding="utf-8").replace("{{name}}", name).replace("{{config}}", config)
    (folder / made).parent.mkdir(parents=True, exist_ok=True)
    # Never writable for others, whatever the umask: such a file would not be run.
    fd = os.open(folder / made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return made
