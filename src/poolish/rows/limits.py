"""How large a thing may be before it is refused, so that one bad sample cannot take the process down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one buffer; changed in code (``DatasetBuffer(limits=Limits(cell_bytes=1 << 30))``), never by data.

    >>> Limits().cell_bytes == 64 << 20
    True
    """

    cell_bytes: int = 64 << 20
    row_bytes: int = 256 << 20
    image_pixels: int = 64_000_000
    image_bytes: int = 256 << 20
