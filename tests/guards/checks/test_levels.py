"""Levels: each is asked only if the ones before it are well, and the report says where it stopped."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

from poolish.guards import Suite
from poolish.guards.checks.levels import Findings, Validation, levels_through, run_levels
from poolish.guards.checks.verdicts import LEVELS

BAD = Suite().expect("a", at_least=5).check({"a": [1, 9]}).verdicts
WARNING = Suite().expect("a", at_least=5, severity="warn").check({"a": [1, 9]}).verdicts


def test_the_first_level_that_fails_is_the_last_that_is_asked():
    """Up to each level, with each one failing or none; and what was not asked is not called good."""
    for level, failing in itertools.product(LEVELS, [*LEVELS, None]):
        asked: list[str] = []

        report = run_levels("rows.csv", "csv", {each: step(each, failing, asked) for each in LEVELS}, level)

        wanted = levels_through(level)
        expected = wanted[: wanted.index(failing) + 1] if failing in wanted else wanted
        assert asked == expected
        assert report.ok == (failing not in wanted)
        assert report.stopped_at == (failing if failing in wanted else None)
        left = wanted[len(expected) :]
        assert (f"stopped at {failing}; {', '.join(left)}: skipped" in str(report)) == bool(left)


def step(level: str, failing: str | None, asked: list[str]) -> Callable[[], Findings]:
    """The step of a level, which notes that it was asked."""

    def look() -> Findings:
        asked.append(level)
        return Findings(["it is broken"]) if level == failing else Findings(notes=["fine"])

    return look


def test_a_failing_check_stops_and_a_warning_does_not():
    """By its severity."""
    stopped = run_levels("x", "csv", {"statistics": lambda: Findings(verdicts=BAD)}, "meaning")
    passed = run_levels("x", "csv", {"statistics": lambda: Findings(verdicts=WARNING)}, "meaning")

    assert stopped.stopped_at == "statistics"
    assert passed.ok
    assert "warn: a is at least 5: 1 of 2 rows are bad; row 0: 1" in str(passed)


def test_reports_are_text_json_and_a_page():
    """The page is whole, and runs nothing that a name says."""
    report = run_levels("<script>x</script>", "csv", {"format": lambda: Findings(verdicts=BAD)}, "format")

    found = Validation([report])
    shown = json.loads(found.to_json())
    html = found.to_html("check")

    assert shown["ok"] is False
    assert shown["reports"][0]["levels"]["format"]["verdicts"][0]["n_bad"] == 1
    assert html.startswith("<!doctype html>")
    assert "<script>" not in html
    assert "a is at least 5" in html
