"""Experience replay: episodes recorded as streams, transitions sampled from them, and how fast each side may go.

    env -> EpisodeWriter -> StreamStore (obs, action, reward, terminated, truncated, final_obs)

A step of the stream is a transition: an observation, the action that was taken, and what came of it. The observation
after it is that of the next step; only the last step of an episode keeps its own, as ``final_obs``.

pacing    how many samples may be taken for each insert: SampleToInsertRatio, MinSize, Queue
counts    what pacing counts, in memory for threads or in a directory for processes
"""

from poolish.replay.episodes import EpisodeWriter as EpisodeWriter
from poolish.replay.pacing import MinSize as MinSize
from poolish.replay.pacing import Queue as Queue
from poolish.replay.pacing import RateLimiter as RateLimiter
from poolish.replay.pacing import SampleToInsertRatio as SampleToInsertRatio
from poolish.replay.stream_priorities import StreamPriorities as StreamPriorities

__all__ = ["EpisodeWriter", "MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "StreamPriorities"]
