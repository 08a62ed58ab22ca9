"""Rows that change while you train: ``DatasetBuffer`` and what belongs to it."""

from poolish.rows.buffer import DatasetBuffer
from poolish.rows.normalizers import register_normalizer
from poolish.rows.sampling import Sample
from poolish.rows.snapshot import Found, Snapshot
from poolish.rows.validate import Limits

__all__ = ["DatasetBuffer", "Found", "Limits", "Sample", "Snapshot", "register_normalizer"]
