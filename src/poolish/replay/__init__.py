"""Experience replay: pacing between processes that record and processes that sample.

pacing    how many samples may be taken for each insert: SampleToInsertRatio, MinSize, Queue
counts    what pacing counts, in memory for threads or in a directory for processes
"""

from __future__ import annotations

from poolish.replay.pacing import MinSize, Queue, RateLimiter, SampleToInsertRatio

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio"]
