"""Streams of tokens: recorded a step at a time, read in windows, one or several as one."""

from poolish.tokens.commits import Verified
from poolish.tokens.member_windows import MemberWindows
from poolish.tokens.members import Member
from poolish.tokens.memmap_buffer import MemmapBuffer
from poolish.tokens.reading import Step
from poolish.tokens.sampling import Coverage
from poolish.tokens.sequence_transforms import GAE, FrameStack, RewardToGo
from poolish.tokens.store import StreamStore
from poolish.tokens.stream_set import StreamSet
from poolish.tokens.transforms import Hindsight
from poolish.tokens.transitions import TransitionIds
from poolish.tokens.window_dataset import WindowDataset

__all__ = [
    "GAE",
    "Coverage",
    "FrameStack",
    "Hindsight",
    "Member",
    "MemberWindows",
    "MemmapBuffer",
    "RewardToGo",
    "Step",
    "StreamSet",
    "StreamStore",
    "TransitionIds",
    "Verified",
    "WindowDataset",
]
