"""What the examples in docstrings may use without saying so: ``folder``, an empty directory of their own."""

from __future__ import annotations

from typing import Any

import pytest

#: Loading one of these loads a framework: seconds, and a process that is slow to fork; torchrl even sets how all later
#: processes start. ``tests/integrations`` runs them, and their examples, in children.
collect_ignore = [
    f"{place}.py"
    for framework in ("lightning", "transformers", "accelerate", "trl", "jax", "sb3", "torchrl")
    for place in (f"src/poolish/integrations/{framework}", f"tests/integrations/{framework}_runs")
]


@pytest.fixture(autouse=True)
def folder_for_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Examples that write files read better without the lines that make and remove a directory."""
    is_example = hasattr(request.node, "dtest")
    if is_example:
        doctest_namespace["folder"] = request.getfixturevalue("tmp_path")
