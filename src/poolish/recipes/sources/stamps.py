"""Has this file changed? A stamp says so without reading it: equal stamps, equal content.

On this machine it is ``poolish.files.local_stamp``. Elsewhere it is the tag or version that a store gives an
object, else its date. Where a store notes none of these, the beginning and the end of the file are looked at.
"""

from __future__ import annotations

from typing import Any

from poolish.errors import RecipeError
from poolish.files import checksum_hex

#: What stores call a name of the content, then what they call a date; the first that is there counts.
_TAGS = (
    *("ETag", "etag", "generation", "blob_id", "md5Hash", "md5", "Content-MD5", "content_md5", "Digest", "checksum"),
    *("VersionId", "version_id", "versionId", "version"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "modified", "mtime"),
)

#: Files up to this size are looked at as a whole where a store notes nothing, larger ones at both ends.
SAMPLED_BYTES = 1 << 20


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


def changed(what: str, path: str) -> RecipeError:
    """The error for a file that is not what it was when the bake began."""
    return RecipeError(f"{what}: {path} changed while it was read; bake again when it is complete")
