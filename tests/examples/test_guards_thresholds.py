"""The plots of docs/guards.md: drawn by one command, and the page shows what it drew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_plots_are_drawn(tmp_path: Path):
    """Whole SVG files, each of them on the page."""
    command = [sys.executable, str(ROOT / "examples" / "guards_thresholds.py"), str(tmp_path), "--rounds", "1"]

    subprocess.run(command, check=True, capture_output=True, timeout=100)

    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    page = (ROOT / "docs" / "guards.md").read_text()
    names = ("broken", "detection", "false_alarms", "far", "lost", "persist")
    assert drawn == [f"guards_{name}.svg" for name in names]
    for name in drawn:
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")
        assert f"({name})" in page
        assert (ROOT / "docs" / name).is_file()
