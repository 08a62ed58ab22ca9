"""The name under which the stream was first written about: `from stream_store import StreamStore`."""

from poolish.tokens import StreamStore

__all__ = ["StreamStore"]
