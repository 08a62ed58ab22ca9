"""The ``poolish`` command, run as a user runs it."""
