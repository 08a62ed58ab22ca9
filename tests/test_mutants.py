"""The table of mutants covers every invariant of the file formats, and fits the source and the tests as they are."""

from __future__ import annotations

import re

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant

FORMATS = sorted((ROOT / "docs" / "formats").glob("*.md"))


def test_every_invariant_has_a_guard_and_a_test():
    """What docs/formats says is never true, and nothing else, is in the table."""
    listed = [
        each for path in FORMATS for each in re.findall(r"^- \*\*([A-Z]\d+)\*\* ", path.read_text(), re.MULTILINE)
    ]

    assert len(listed) == len(set(listed))
    assert {mutant.invariant for mutant in MUTANTS} == set(listed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.invariant} {mutant.file}")
def test_a_mutant_fits_the_source_and_the_tests(mutant: Mutant):
    """Its guard is there once, replacing it changes something, and its test exists."""
    file, _, name = mutant.test.partition("::")

    assert (ROOT / mutant.path).read_text().count(mutant.guard) == 1
    assert mutant.broken != mutant.guard
    assert f"def {name}(" in (ROOT / file).read_text()
