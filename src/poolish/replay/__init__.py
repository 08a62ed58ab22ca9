"""Experience replay: episodes recorded as streams, transitions drawn from them, and how fast one may follow the other.

    env -> EpisodeWriter -> StreamStore (obs, action, reward, terminated, truncated, final_obs) -> TransitionSampler

A step of the stream is a transition: an observation, the action that was taken, and what came of it. The observation
after it is that of the next step; only the last step of an episode keeps its own, as ``final_obs``.

buffer              the whole of it in one object, for a learner that adds and samples
episodes            what is recorded; recordings: read back an episode at a time
sampler             batches from one stream or several, uniformly or by priority
stream_priorities   priorities that a learner owns, in a side file (priority_file)
pacing              how many samples may be taken for each insert: SampleToInsertRatio, MinSize, Queue
counts              what pacing counts, in memory for threads or in a directory for processes
"""

from __future__ import annotations

from poolish.replay.buffer import ReplayBuffer
from poolish.replay.episodes import EpisodeWriter
from poolish.replay.pacing import MinSize, Queue, RateLimiter, SampleToInsertRatio
from poolish.replay.sampler import Prioritized, TransitionSampler
from poolish.replay.stream_priorities import StreamPriorities

__all__ = [
    "EpisodeWriter",
    "MinSize",
    "Prioritized",
    "Queue",
    "RateLimiter",
    "ReplayBuffer",
    "SampleToInsertRatio",
    "StreamPriorities",
    "TransitionSampler",
]
