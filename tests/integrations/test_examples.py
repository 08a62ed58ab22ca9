"""The examples in the docstrings of the integrations, run where their frameworks are loaded."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("framework", ["lightning", "transformers", "accelerate", "trl"])
def test_examples_in_docstrings_run(request, framework):
    """A reader who copies one gets what it shows."""
    zygote = request.getfixturevalue(f"in_{framework}")

    n_examples = zygote.run("examples", module=f"poolish.integrations.{framework}")

    assert n_examples >= {"lightning": 2, "trl": 5}.get(framework, 0)
