"""Which files a path, a glob or a directory names, and what each is called below their root."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from poolish.errors import RecipeError
from poolish.recipes.sources.formats import FORMATS, format_of

#: Where data may come from besides the local disk; a path never loads a file system that is not named here.
PROTOCOLS = ("file", "memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "hf", "http", "https")

_GLOB = re.compile(r"[*?\[]")


def named_files(paths: tuple[str, ...], what: str) -> list[tuple[str, str]]:
    """Whole path and name of every file, in the order of names."""
    found = _named([_expanded(path, what) for path in paths])
    return sorted(set(found), key=lambda pair: (pair[1], pair[0]))


def _expanded(path: str, what: str) -> tuple[str, str, list[str]]:
    """What makes paths whole again, the root, and all files that a path, a glob or a directory names."""
    fs, inner, prefix = file_system(path, what)
    if prefix:
        fs.invalidate_cache()  # what a store listed earlier may not be what it holds now
    if format_of(inner) is not None and fs.isfile(inner):  # before wildcards: a name may well have brackets in it
        root, files, found = posixpath.dirname(inner), [inner], [inner]
    elif fs.isdir(inner):
        root, found = inner, [each for each in fs.find(inner) if format_of(each) is not None]
        files = [each for each in found if not _is_hidden(each, root)]
    elif fs.exists(inner):
        root, files, found = posixpath.dirname(inner), [inner], [inner]
    elif _GLOB.search(inner):
        root, pattern = _split(fs, inner)
        found = [each for each, info in fs.glob(pattern, detail=True).items() if info["type"] != "directory"]
        files = [each for each in found if not _is_hidden(each, root, inner[len(root) :])]
    else:
        root, files, found = "", [], []
    if found and not files:
        raise RecipeError(
            f"{what}: nothing but hidden files at {path}, {posixpath.relpath(min(found), root or '.')} for one; names "
            "that begin with '.' or '_' are left out unless the path itself has them: rename them, or name them"
        )
    if not files:
        if fs.isdir(inner):
            raise RecipeError(f"{what}: {path} is a directory without any file of {', '.join(FORMATS)}")
        raise RecipeError(f"{what}: no file at {path}; check the path, which is relative to {os.getcwd()}")
    return prefix, root, files


def _is_hidden(file: str, root: str, pattern: str = "") -> bool:
    """Whether a file or a folder above it, below the root, has a name by which programs mark what is not data.

    Checkpoints, copies of attributes, marks of success and unfinished writes begin with "." or "_". Who writes such a
    name into a pattern wants it.

    >>> _is_hidden("d/.ipynb_checkpoints/a.csv", "d"), _is_hidden("d/_old/a.csv", "d", "/_o*/*.csv")
    (True, False)
    """
    asked = [part for part in pattern.split("/") if part.startswith((".", "_"))]
    names = [name for name in file.removeprefix(root).split("/") if name.startswith((".", "_"))]
    return not all(any(fnmatchcase(name, part) for part in asked) for name in names)


def _split(fs: Any, inner: str) -> tuple[str, str]:
    """The directory above the first wildcard, and a pattern in which that directory means itself alone."""
    parts = inner.split("/")
    root = ""
    for i, part in enumerate(parts[:-1]):
        below = "/".join(parts[: i + 1])
        if _GLOB.search(part) and not fs.isdir(below):
            break
        root = below
    rest = inner[len(root) :]
    return root or ("/" if inner.startswith("/") else ""), glob.escape(root) + rest


def _named(expanded: list[tuple[str, str, list[str]]]) -> Iterator[tuple[str, str]]:
    """Whole path and name of each file: its path below what all roots of its file system have in common."""
    prefixes = {prefix for prefix, _, _ in expanded}
    for prefix in sorted(prefixes):
        root = posixpath.commonpath([each for other, each, _ in expanded if other == prefix])
        for file in {file for other, _, files in expanded if other == prefix for file in files}:
            name = posixpath.relpath(file, root) if root else file
            yield prefix + file, name if len(prefixes) == 1 else prefix + name


def file_system(path: str, what: str) -> tuple[Any, str, str]:
    """The file system of a path, the path in it, and what makes it whole again: nothing for files of this machine."""
    import fsspec

    protocol, separator, _ = path.partition("://")
    if not separator:
        return fsspec.filesystem("file"), os.path.abspath(path), ""
    if "::" in path:
        raise RecipeError(f"{what}: {path}: a path leads to one place; unpack what is inside of another file first")
    if protocol not in PROTOCOLS:
        raise RecipeError(f"{what}: {path}: data comes from {', '.join(PROTOCOLS)}, not from {protocol!r}")
    fs, inner = fsspec.core.url_to_fs(path)
    if protocol == "file":
        return fs, os.path.abspath(inner), ""
    return fs, inner, f"{protocol}://" if protocol not in ("http", "https") else ""
