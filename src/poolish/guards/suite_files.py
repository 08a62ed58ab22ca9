"""Suites in YAML and TOML files: plain values, read strictly.

YAML can do more than it should: two equal keys, references that make a small file expand to gigabytes, objects, ``no``
for false and ``1:30`` for ninety. Only mappings with unique keys, lists, text, numbers as JSON has them, true, false
and null come through here. TOML has none of the others.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
import yaml

from poolish.errors import ConfigError, LimitExceeded
from poolish.files import publish

MAX_BYTES = 1_000_000


def to_yaml(told: dict[str, Any]) -> str:
    """Plain values as YAML.

    >>> print(to_yaml({"suite": "s", "expect": [{"column": "x", "between": [0, 1.5]}]}), end="")
    suite: s
    expect:
    - column: x
      between: [0, 1.5]
    """
    return yaml.dump(told, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def from_yaml(text: str, source: str = "suite") -> Any:
    """The values in YAML text."""
    _check_size(len(text), source)
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigError(f"{source}: no YAML that a suite can be in: {why}") from None
    finally:
        loader.dispose()


def to_toml(told: dict[str, Any]) -> str:
    """Plain values as TOML."""
    return tomli_w.dumps(told)


def from_toml(text: str, source: str = "suite") -> Any:
    """The values in TOML text."""
    _check_size(len(text), source)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: no TOML: {error}") from None


def write(path: str | os.PathLike[str], told: dict[str, Any]) -> None:
    """Publish a suite as the ending of the file says."""
    text = (to_toml if _is_toml(path) else to_yaml)(told)
    with publish(path) as file:
        file.write(text.encode())


def read(path: str | os.PathLike[str]) -> Any:
    """The values in a file."""
    is_toml = _is_toml(path)
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{os.fspath(path)}: a suite is text in UTF-8 ({error})") from None
    return (from_toml if is_toml else from_yaml)(text, os.fspath(path))


def _is_toml(path: str | os.PathLike[str]) -> bool:
    ending = Path(path).suffix.lower()
    if ending not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{os.fspath(path)}: a suite is kept in a .yaml, .yml or .toml file")
    return ending == ".toml"


def _check_size(n: int, source: str) -> None:
    if n > MAX_BYTES:
        raise LimitExceeded(f"{source}: more than {MAX_BYTES:,} bytes; no suite is so large")


class _Loader(yaml.SafeLoader):
    """YAML without references, and with each key once."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("references (*name) are not read; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise yaml.YAMLError(f"key {twice!r} stands there twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """YAML with short lists on one line; text in quotes where any reader could take it for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> Any:
        # Outside of double quotes PyYAML reads each of these back as another character.
        is_odd = isinstance(value, str) and any(each in value for each in "\x85\u2028\u2029")
        return super().represent_scalar(tag, value, '"' if is_odd else style)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        is_flat = all(not isinstance(each, (dict, list)) for each in sequence)
        return super().represent_sequence(tag, sequence, flow_style=is_flat)


def _resolve_plainly() -> None:
    """Plain words mean what they mean in JSON, for who reads; who writes minds both meanings."""
    plain = {
        "tag:yaml.org,2002:bool": (r"true|false", "tf"),
        "tag:yaml.org,2002:null": (r"null|~|", ["n", "~", ""]),
        "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
        "tag:yaml.org,2002:float": (
            r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
            "-+0123456789.",
        ),
    }
    _Loader.yaml_implicit_resolvers = {}
    for tag, (pattern, first) in plain.items():
        for kind in (_Loader, _Dumper):
            kind.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))


_resolve_plainly()
