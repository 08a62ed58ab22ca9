"""Tests and fault injection for your own datasets, stores and providers.

A *behaviour suite* is a test class: derive from it and say how your object is made, and pytest runs the rest
(``DatasetBehaviour``, ``TransportBehaviour``). *Fault injection* kills your code at every write, makes writes fail, and
damages its files (``poolish.testing.faults``).
"""

from __future__ import annotations

from poolish.testing.datasets import DatasetBehaviour, same
from poolish.testing.faults import (
    WRITE_FAULTS,
    Canary,
    damages,
    every_faulty_write,
    every_kill_point,
    faulty_writes,
    in_child,
)
from poolish.testing.transports import TransportBehaviour

__all__ = [
    "WRITE_FAULTS",
    "Canary",
    "DatasetBehaviour",
    "TransportBehaviour",
    "damages",
    "every_faulty_write",
    "every_kill_point",
    "faulty_writes",
    "in_child",
    "same",
]
