"""What the examples in docstrings may use without saying so: ``folder``, an empty directory of their own."""

from __future__ import annotations

from typing import Any

import pytest

#: Loading one of these loads a framework: seconds, and a process that is slow to fork. ``tests/integrations`` runs
#: their examples in children.
collect_ignore = [
    f"src/poolish/integrations/{framework}.py"
    for framework in ("lightning", "transformers", "accelerate", "trl", "jax", "sb3", "torchrl")
]


@pytest.fixture(autouse=True)
def folder_for_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Examples that write files read better without the lines that make and remove a directory."""
    is_example = hasattr(request.node, "dtest")
    if is_example:
        doctest_namespace["folder"] = request.getfixturevalue("tmp_path")
