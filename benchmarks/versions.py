"""Compares the hot paths of two versions: their processes take turns, and a table shows medians and ratios.

    python -m benchmarks.versions HEAD~20 .             # revisions, or directories that hold a checkout
    python -m benchmarks.versions 0.1.0 . --rounds 9

Each version is compiled and run in a directory of its own with this environment's libraries. A ratio above 1 means
that the second version is slower. Between equal versions ratios of 0.95 to 1.05 are noise on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

PATHS = Path(__file__).resolve().parent / "hot_paths.py"


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before")
    options.add_argument("after")
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = [compiled(name, Path(folder) / str(i)) for i, name in enumerate((chosen.before, chosen.after))]
        rounds = []
        for i in range(chosen.rounds):
            order = trees if i % 2 == 0 else trees[::-1]
            times = {tree: times_of(tree) for tree in order}
            rounds.append([times[tree] for tree in trees])
            print(f"round {i + 1} of {chosen.rounds}", file=sys.stderr)
    print(table(rounds))


def compiled(name: str, folder: Path) -> Path:
    """A copy of a revision or directory with its kernels compiled."""
    if Path(name).is_dir():
        ignored = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__")
        shutil.copytree(name, folder, ignore=ignored)
    else:
        folder.mkdir()
        archive = subprocess.run(["git", "archive", name], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=folder, check=True)
    return folder


def times_of(tree: Path) -> dict[str, float]:
    """Microseconds a call, measured in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    out = subprocess.run([sys.executable, PATHS], env=environment, cwd=tree, check=True, capture_output=True).stdout
    times: dict[str, float] = json.loads(out)
    return times


def table(rounds: list[list[dict[str, float]]]) -> str:
    """A Markdown table of the medians.

    >>> print(table([[{"append": 2.0}, {"append": 1.0}]]))
    | path | before, us | after, us | after / before |
    |---|---:|---:|---:|
    | append | 2 | 1 | 0.50 |
    """
    lines = ["| path | before, us | after, us | after / before |", "|---|---:|---:|---:|"]
    for name in rounds[0][0]:
        before, after = (median(pair[i][name] for pair in rounds) for i in (0, 1))
        ratio = median(pair[1][name] / pair[0][name] for pair in rounds)
        lines.append(f"| {name} | {before:.4g} | {after:.4g} | {ratio:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
