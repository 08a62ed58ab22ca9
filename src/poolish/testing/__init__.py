"""Tests that you can run on your own parts: derive from a suite, say how one is made, and pytest does the rest."""

from __future__ import annotations

from poolish.testing.datasets import DatasetBehaviour, same

__all__ = ["DatasetBehaviour", "same"]
