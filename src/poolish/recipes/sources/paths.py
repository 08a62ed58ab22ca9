"""Where files are: what a path, a glob or a directory names, here or behind fsspec, and whether a file has changed.

A stamp shows a change without reading the file: equal stamps, equal content. On this machine it is
``poolish.files.local_stamp``. Elsewhere it is the tag or version that a store gives an object, else its date. Where a
store notes none of these, it is the checksum of both ends of the file.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from poolish.errors import RecipeError
from poolish.files import checksum_hex
from poolish.formats import FORMATS, format_of, is_hidden

#: Where data may come from besides the local disk; a path never loads a file system that is not named here.
PROTOCOLS = ("file", "memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "hf", "http", "https")

#: What stores call a name of the content, then what they call a date; the first that is there counts.
_TAGS = (
    *("ETag", "etag", "generation", "blob_id", "md5Hash", "md5", "Content-MD5", "content_md5", "Digest", "checksum"),
    *("VersionId", "version_id", "versionId", "version"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "modified", "mtime"),
)

#: Files up to this size are looked at as a whole where a store notes nothing, larger ones at both ends.
SAMPLED_BYTES = 1 << 20

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
        files = [each for each in found if not is_hidden(each, root)]
    elif fs.exists(inner):
        root, files, found = posixpath.dirname(inner), [inner], [inner]
    elif _GLOB.search(inner):
        root, pattern = _split(fs, inner)
        found = [each for each, info in fs.glob(pattern, detail=True).items() if info["type"] != "directory"]
        files = [each for each in found if not is_hidden(each, root, inner[len(root) :])]
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


# Stamps -------------------------------------------------------------------------------------------------------------


def remote_stamp(fs: Any, path: str) -> str:
    """The stamp of a file in a file system of fsspec; never asks this machine about a path that is not its own."""
    info = fs.info(path)
    for name in _TAGS:
        if info.get(name):
            return f"{info.get('size')}:{name}:{info[name]}"
    return f"{info.get('size')}:{_modified(fs, path)}:{_sample(fs, path, info.get('size'))}"


def _modified(fs: Any, path: str) -> str:
    try:
        return str(fs.modified(path))
    except (NotImplementedError, AttributeError):
        return ""


def _sample(fs: Any, path: str, size: int | None) -> str:
    if size is None or size <= SAMPLED_BYTES:
        return checksum_hex(fs.cat_file(path))
    # The footer of a parquet file is at the end.
    ends = fs.cat_file(path, 0, SAMPLED_BYTES // 8), fs.cat_file(path, size - SAMPLED_BYTES, size)
    return checksum_hex(*ends)
