"""What ``import poolish`` costs over a bare interpreter; the target is 20 ms."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.harness import Measure, compare


def seconds_of(statement: str) -> float:
    """From the start of an interpreter to its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - begin


def over_bare(statement: str, pairs: int = 5) -> Measure:
    """Milliseconds that a statement adds to an interpreter that does nothing, by the median of a few pairs."""
    return lambda: median(seconds_of(statement) - seconds_of("pass") for _ in range(pairs)) * 1e3


def main() -> None:
    """Import the package, and import it to use a buffer."""
    compare("import poolish", "ms", over_bare("import poolish"), {"import numpy": over_bare("import numpy")})
    compare(
        "import DatasetBuffer",
        "ms",
        over_bare("from poolish import DatasetBuffer"),
        {"import pyarrow": over_bare("import pyarrow"), "import datasets": over_bare("import datasets")},
        rounds=3,
    )


if __name__ == "__main__":
    main()
