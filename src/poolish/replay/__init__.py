"""Experience replay: episodes recorded as streams, and transitions sampled from them.

    env -> EpisodeWriter -> StreamStore (obs, action, reward, terminated, truncated, final_obs)

A step of the stream is a transition: an observation, the action that was taken, and what came of it. The observation
after it is that of the next step; only the last step of an episode keeps its own, as ``final_obs``.
"""

from poolish.replay.buffer import ReplayBuffer as ReplayBuffer
from poolish.replay.episodes import EpisodeWriter as EpisodeWriter
from poolish.replay.sampler import Prioritized as Prioritized
from poolish.replay.sampler import TransitionSampler as TransitionSampler
from poolish.replay.stream_priorities import StreamPriorities as StreamPriorities

__all__ = ["EpisodeWriter", "Prioritized", "ReplayBuffer", "StreamPriorities", "TransitionSampler"]
