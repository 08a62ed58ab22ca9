"""What tests of recipes share as fixtures: a file system that is not on this disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system in memory, which is one for the whole process: emptied after each test."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]
