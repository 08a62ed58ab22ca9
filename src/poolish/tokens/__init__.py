"""Streams of tokens: recorded a step at a time, read in windows."""

from poolish.tokens.commits import Verified
from poolish.tokens.memmap_buffer import MemmapBuffer
from poolish.tokens.reading import Step
from poolish.tokens.sampling import Coverage
from poolish.tokens.store import StreamStore
from poolish.tokens.window_dataset import WindowDataset

__all__ = ["Coverage", "MemmapBuffer", "Step", "StreamStore", "Verified", "WindowDataset"]
