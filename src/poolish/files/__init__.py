"""What every file of poolish is written and read with, so that each promise about files is kept in one place.

    publishing   a file or directory appears whole or not at all, and survives a power cut if asked to
    locks        one writer at a time, distinguished from one that was killed
    space        a full disk is an error where space is requested, never a signal later
    checksums    is this what was written? has this file changed? State files and append-only lines with a checksum
    documents    small JSON files, names, paths and sizes that come from outside
    membership   permanent numbers for the members of a dataset; imported by name
    storage_options  secrets of file systems behind URLs, shown to no one
    yaml_toml    files that people write, read strictly; imported by name, because PyYAML takes long to load

All of it works on paths and descriptors alone and knows nothing of rows, tokens or queues.
"""

from __future__ import annotations

from poolish.files.checksums import CHECKSUM, checksum, checksum_hex, is_rewritten, local_stamp
from poolish.files.documents import check_name, is_url, local_path, parse_bytes, parse_json, read_json, write_json
from poolish.files.locks import Lock
from poolish.files.publishing import Partial, publish, publish_directory, sweep, sync, sync_directory
from poolish.files.space import allocate, grow, open_regular, punch, raising_store_full, write_all, write_at
from poolish.files.storage_options import StorageOptions, concealing

__all__ = [
    "CHECKSUM",
    "Lock",
    "Partial",
    "StorageOptions",
    "allocate",
    "check_name",
    "checksum",
    "checksum_hex",
    "concealing",
    "grow",
    "is_rewritten",
    "is_url",
    "local_path",
    "local_stamp",
    "open_regular",
    "parse_bytes",
    "parse_json",
    "publish",
    "publish_directory",
    "punch",
    "raising_store_full",
    "read_json",
    "sweep",
    "sync",
    "sync_directory",
    "write_all",
    "write_at",
    "write_json",
]
