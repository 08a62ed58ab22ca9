"""Small JSON files, names, paths and sizes that come from outside: bounded, exact, and never trusted.

Python's own JSON reader takes the last of two equal keys, reads ``NaN`` and ``1e999``, and follows nesting until the
stack ends. Here each of these is an error that names the file.
"""

from __future__ import annotations

import errno as codes
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from poolish.errors import BadText, ConfigError, CorruptDataError, LimitExceeded
from poolish.files.publishing import publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_BYTES = 1_000_000
MAX_DEPTH = 64

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
#: ``s3://bucket``, ``simplecache::s3://bucket``, and ``s3:/bucket``, which is what ``Path`` makes of the first.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?::|/)")
#: Strings as one piece (an unfinished one to the end, so that no text is looked at twice), and brackets.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


def check_name(name: str, what: str = "name") -> str:
    """The name, if it may become part of a path: 1 to 128 of ``A-Z a-z 0-9 . _ -``, not starting with a dot.

    >>> check_name("w0", "provider")
    'w0'
    >>> check_name("../secrets", "provider")
    Traceback (most recent call last):
    poolish.errors.ConfigError: provider '../secrets': use 1 to 128 of A-Z a-z 0-9 . _ - and no dot at the start
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError(f"{what} {shorten(repr(name))}: use 1 to 128 of A-Z a-z 0-9 . _ - and no dot at the start")


def is_url(text: str) -> bool:
    """Whether a text names a place by a URL.

    >>> is_url("s3://bucket/runs"), is_url("user/dataset")
    (True, False)
    """
    return _URL.match(text) is not None


def local_path(path: str | os.PathLike[str], what: str, *, instead: str) -> Path:
    """``path`` as a ``Path``, if it names a place on this machine; a URL would silently become a directory ``s3:``.

    ``what`` is the argument it was passed as, ``instead`` what accepts URLs.

    >>> local_path("s3://bucket/runs", "StreamStore path", instead="save_dataset() and the sources of a recipe")
    Traceback (most recent call last):
    poolish.errors.ConfigError: StreamStore path 's3://bucket/runs': must be a local path; URLs are accepted by
    save_dataset() and the sources of a recipe
    """
    text = os.fspath(path)
    if isinstance(text, str) and _URL.match(text):
        raise ConfigError(f"{what} {shorten(repr(text))}: must be a local path; URLs are accepted by {instead}")
    return Path(text)


def read_json(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """What a JSON file says, exactly; a file that cannot be trusted is a ``CorruptDataError`` that says why.

    Refused: two equal keys, NaN, numbers beyond float64, anything but a regular file. Too large or too deep is a
    ``LimitExceeded``.
    """
    try:
        text = _read(path, max_bytes).decode("utf-8")
        return parse_json(text, path, max_depth=max_depth)
    except LimitExceeded:
        raise
    except ValueError as error:
        raise CorruptDataError(f"{os.fspath(path)}: not valid JSON ({error}); restore it or remove it") from error


def write_json(path: str | os.PathLike[str], value: Any, *, durable: bool = True, replace: bool = True) -> None:
    """Publish ``value`` as a JSON file, after proving that ``read_json`` gives the same value back.

    >>> write_json(folder / "state.json", {"position": 2**60 + 1})
    >>> read_json(folder / "state.json")
    {'position': 1152921504606846977}
    """
    data = _encode(value, path)
    with publish(path, durable=durable, replace=replace) as file:
        file.write(data)


def _encode(value: Any, path: str | os.PathLike[str]) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        error.add_note(f"while writing {os.fspath(path)}")
        raise
    # Python writes the key 1 as "1" and a tuple as a list without a word.
    if parse_json(text, path) != value:
        raise TypeError(f"{os.fspath(path)}: JSON would not give this value back; use str keys, and lists for tuples")
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadText(f"{os.fspath(path)}: {error}; remove the lone surrogate") from None
    check_size(len(data), path, "JSON file of poolish")
    return data


def parse_json(text: str, path: str | os.PathLike[str], *, max_depth: int = MAX_DEPTH) -> Any:
    """What JSON text says, exactly; a ValueError says why it cannot be trusted. ``path`` is where it came from."""
    # Most documents have too few brackets to be deep; to walk through them took most of the time of a journal's line.
    if text.count("[") + text.count("{") > max_depth and _depth(text) > max_depth:
        raise LimitExceeded(f"{os.fspath(path)}: nested more than {max_depth} deep; no file of poolish is")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)


def _depth(text: str) -> int:
    """How deep brackets are nested, counted before parsing: the parser itself would end at the end of the stack."""
    depth = deepest = 0
    for token in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        deepest = max(deepest, depth)
    return deepest


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"key {shorten(repr(name))} twice")
        members[name] = value
    return members


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{shorten(digits)} is beyond float64")
    return number


def _read(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    # Not through links, which may lead anywhere; and without waiting, should it be a pipe.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == codes.ELOOP:
            raise ValueError("a symbolic link, which is not followed") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(fd)
    check_size(len(data), path, "JSON file of poolish", max_bytes=max_bytes)
    return data


def check_size(n_bytes: int, path: str | os.PathLike[str], what: str, *, max_bytes: int = MAX_BYTES) -> None:
    """Refuse more than any ``what`` has."""
    if n_bytes > max_bytes:
        raise LimitExceeded(f"{os.fspath(path)}: more than {max_bytes:,} bytes; no {what} is so large")


def shorten(text: str) -> str:
    """At most 60 characters of a text, for messages."""
    return text if len(text) <= 60 else text[:57] + "..."


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All values with the names that they have, also within tables and lists."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, str(key))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves(each, name)
    else:
        yield name, value


# Sizes -----------------------------------------------------------------------------------------------------------


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?(?:([kmgt]?)i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(size: int | str) -> int:
    """How many bytes a size is; part of a byte is left off.

    kb, mb, gb and tb are powers of 1024, as in other loaders' "100gb", so they are the same as KiB, MiB, GiB and TiB.
    Capitals do not matter.

    >>> parse_bytes(4096), parse_bytes("64 MiB"), parse_bytes("1.5gb")
    (4096, 67108864, 1610612736)
    >>> parse_bytes("plenty")
    Traceback (most recent call last):
    poolish.errors.ConfigError: size 'plenty': write a number of bytes from 0, or text such as "64mb" or "1.5 GiB"
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    written = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if written is None:
        raise ConfigError(
            f'size {shorten(repr(size))}: write a number of bytes from 0, or text such as "64mb" or "1.5 GiB"'
        )
    number, unit = written.groups("")
    # Exactly: as a float, 0.1 TB would depend on how it is rounded.
    return int(Fraction(number) * 1024 ** _POWERS[unit.lower()])
