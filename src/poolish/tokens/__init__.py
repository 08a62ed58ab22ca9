"""Streams of tokens: recorded a step at a time, read in windows."""

from poolish.tokens.commits import Verified
from poolish.tokens.memmap_buffer import MemmapBuffer
from poolish.tokens.reading import Step
from poolish.tokens.sampling import Coverage
from poolish.tokens.sequence_transforms import GAE, FrameStack, RewardToGo
from poolish.tokens.store import StreamStore
from poolish.tokens.transforms import Hindsight
from poolish.tokens.transitions import TransitionIds
from poolish.tokens.window_dataset import WindowDataset

__all__ = [
    "GAE",
    "Coverage",
    "FrameStack",
    "Hindsight",
    "MemmapBuffer",
    "RewardToGo",
    "Step",
    "StreamStore",
    "TransitionIds",
    "Verified",
    "WindowDataset",
]
