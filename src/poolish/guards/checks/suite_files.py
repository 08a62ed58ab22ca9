"""Suites in YAML and TOML files, read by the strict readers of ``poolish.files``, under the names that a suite uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from poolish.errors import ConfigError
from poolish.files import local_path, publish
from poolish.files.yaml_toml import dump_toml, dump_yaml, parse_toml, parse_yaml, read_text

to_yaml = dump_yaml
to_toml = dump_toml

_INSTEAD = "fsspec.open(url), with the text of to_yaml() and from_yaml()"


def from_yaml(text: str, source: str = "suite") -> Any:
    """The values in YAML text."""
    return parse_yaml(text, source, what="suite")


def from_toml(text: str, source: str = "suite") -> Any:
    """The values in TOML text."""
    return parse_toml(text, source, what="suite")


def write(path: str | os.PathLike[str], told: dict[str, Any]) -> None:
    """Publish a suite as the ending of the file says."""
    place = local_path(path, "Suite.save", instead=_INSTEAD)
    text = (to_toml if _is_toml(place) else to_yaml)(told)
    with publish(place) as file:
        file.write(text.encode())


def read(path: str | os.PathLike[str]) -> Any:
    """The values in a file."""
    place = local_path(path, "Suite.load", instead=_INSTEAD)
    parse = from_toml if _is_toml(place) else from_yaml
    return parse(read_text(place, what="suite"), os.fspath(path))


def _is_toml(path: str | os.PathLike[str]) -> bool:
    ending = Path(path).suffix.lower()
    if ending not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{os.fspath(path)}: a suite is kept in a .yaml, .yml or .toml file")
    return ending == ".toml"
