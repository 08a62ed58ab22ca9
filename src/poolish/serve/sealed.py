"""Small JSON files with a checksum of their content: a flipped bit is seen, not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex, read_json, write_json


def write_sealed(path: Path, value: dict[str, Any], *, durable: bool) -> None:
    """Publish a JSON object with a ``checksum`` member.

    >>> write_sealed(folder / "run.json", {"start": 8}, durable=False)
    >>> read_sealed(folder / "run.json")
    {'start': 8}
    """
    write_json(path, {**value, "checksum": _seal(value)}, durable=durable)


def read_sealed(path: Path) -> dict[str, Any]:
    """The object, without its checksum; a ``CorruptDataError`` if it is not what was written."""
    told = read_json(path)
    if not isinstance(told, dict):
        raise CorruptDataError(f"{path}: a JSON object was written there; restore it or remove it")
    noted = told.pop("checksum", None)
    found = _seal(told)
    if noted != found:
        raise CorruptDataError(f"{path}: its checksum is {found}, written was {noted!r}; restore it or remove it")
    return told


def _seal(value: dict[str, Any]) -> str:
    return checksum_hex(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii"))
