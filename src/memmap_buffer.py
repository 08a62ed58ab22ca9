"""The name under which the buffer was first written about: `from memmap_buffer import MemmapBuffer`."""

from poolish.tokens import MemmapBuffer

__all__ = ["MemmapBuffer"]
