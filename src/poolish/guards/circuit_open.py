"""The error of a breaker that is open: it stands alone, because who retries must know it without knowing breakers."""

from __future__ import annotations

from poolish.errors import PoolishError


class CircuitOpen(PoolishError, ConnectionError):
    """A source failed too often and is left alone for a while; ``probe_in_s`` says for how long.

    A ConnectionError: for who asked, the source cannot be reached. ``Retry`` does not retry it, ``Faults`` does handle
    it, so with ``on_batch="cached"`` a run goes on over a source that is down.
    """

    probe_in_s: float = 0.0
