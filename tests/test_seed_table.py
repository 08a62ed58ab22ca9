"""docs/seeds.md names a section that teaches each capability of the five texts, and a test that runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "seeds.md"
LINES = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and "::" in line]


def slugs(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_text_has_its_capabilities():
    assert len(re.findall(r"^## ", TABLE.read_text(), re.MULTILINE)) == 4
    assert len(LINES) > 60


@pytest.mark.parametrize("line", LINES, ids=[line.split("|")[1].strip()[:60] for line in LINES])
def test_what_a_line_names_exists(line: str):
    """The section that teaches it, and the test that runs it."""
    links, tests = re.findall(r"\]\(([^)#]+)#([^)]+)\)", line), re.findall(r"`([\w/]+\.py)::(\w+)`", line)

    assert links
    assert tests
    for path, anchor in links:
        assert anchor in slugs(TABLE.parent / path), f"no section {anchor} in {path}"
    for path, name in tests:
        assert re.search(rf"^ *def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), f"no {name} in {path}"
