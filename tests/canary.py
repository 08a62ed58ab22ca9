"""What sings when somebody unpickles it: for tests that data is never code."""

from __future__ import annotations

import os
from pathlib import Path


class Canary:
    """Unpickling one makes a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)
