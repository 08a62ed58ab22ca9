"""The buffer by its first name: ``from dataset_buffer import DatasetBuffer`` is poolish's own class."""

from poolish.rows import DatasetBuffer, register_normalizer

__all__ = ["DatasetBuffer", "register_normalizer"]
