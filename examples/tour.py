"""A tour of poolish: what `make run` shows."""

from poolish import show_versions

show_versions()
