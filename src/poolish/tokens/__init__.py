"""Streams of tokens: recorded a step at a time, read in windows."""

from poolish.tokens.memmap_buffer import MemmapBuffer
from poolish.tokens.sampling import Coverage
from poolish.tokens.steps import Step
from poolish.tokens.store import StreamStore
from poolish.tokens.verify import Verified
from poolish.tokens.window_dataset import WindowDataset

__all__ = ["Coverage", "MemmapBuffer", "Step", "StreamStore", "Verified", "WindowDataset"]
