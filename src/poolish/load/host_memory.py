"""How much memory this process can still take, as Linux tells it: the machine's, and that of its control group.

In a container the machine may have plenty and the group nothing; the lesser of the two is what there is. Caches of
files are counted as free, because they are given back as soon as somebody needs the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["free_bytes"]


def free_bytes(root: str | Path = "/") -> int:
    """Bytes that can be taken without swapping; ``root`` is where ``proc`` and ``sys`` are.

    >>> free_bytes() > 0
    True
    """
    root = Path(root)
    free = [bytes_ for bytes_ in (_of_machine(root), *_of_groups(root)) if bytes_ is not None]
    # Systems without /proc tell at least how much memory there is.
    return max(0, min(free)) if free else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _of_machine(root: Path) -> int | None:
    kilobytes = _counts(root / "proc/meminfo").get("MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _of_groups(root: Path) -> Iterator[int | None]:
    """What is left to the group of this process, and to every group that this one is in."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:
            mount, limit, used, cached = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in kinds.split(","):
            mount, limit, used = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        else:
            continue
        # Inside a container the path may be that of the host, and is not there; the mount itself is the group then.
        group = Path(path.strip("/"))
        for folder in (root / mount / group, *(root / mount / parent for parent in group.parents), root / mount):
            most, taken = _number(folder / limit), _number(folder / used)
            if most is not None and taken is not None:
                yield most - taken + _counts(folder / "memory.stat").get(cached, 0)


def _counts(path: Path) -> dict[str, int]:
    words = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) >= 2 and line[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
