"""Sizes as people write them: a number of bytes, or text with a unit."""

from __future__ import annotations

import re
from fractions import Fraction

from poolish.errors import ConfigError

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
        shown = repr(size) if len(repr(size)) <= 60 else repr(size)[:57] + "..."
        raise ConfigError(f'size {shown}: write a number of bytes from 0, or text such as "64mb" or "1.5 GiB"')
    number, unit = written.groups("")
    # Exactly: as a float, 0.1 TB would depend on how it is rounded.
    return int(Fraction(number) * 1024 ** _POWERS[unit.lower()])
