"""The buffer where its first programs look for it: ``from dataset_buffer.buffer import DatasetBuffer``."""

from poolish.rows import DatasetBuffer, register_normalizer

__all__ = ["DatasetBuffer", "register_normalizer"]
