"""``python -m poolish`` is the ``poolish`` command."""

from __future__ import annotations

from poolish.cli import main

if __name__ == "__main__":
    main()
