"""Levels: all that are asked for are checked and shown, as long as there is something to read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial

from poolish.guards import Suite
from poolish.guards.checks.levels import Findings, Validation, levels_through, run_levels
from poolish.guards.checks.verdicts import LEVELS

BAD = Suite().expect("a", at_least=5).check({"a": [1, 9]}).verdicts
GOOD = Suite().expect("a", at_least=0).check({"a": [1, 9]}).verdicts
WARNING = Suite().expect("a", at_least=5, severity="warn").check({"a": [1, 9]}).verdicts


def test_only_what_cannot_be_read_ends_the_levels():
    """Up to each level, with each one unreadable or none; and what was not checked is not called good."""
    for level, failing in itertools.product(LEVELS, [*LEVELS, None]):
        asked: list[str] = []

        report = run_levels("rows.csv", "csv", {each: step(each, failing, asked) for each in LEVELS}, level)

        wanted = levels_through(level)
        expected = wanted[: wanted.index(failing) + 1] if failing in wanted else wanted
        assert asked == expected
        assert report.ok == (failing not in wanted)
        assert report.stopped_at == (failing if failing in wanted else None)
        left = wanted[len(expected) :]
        assert report.skipped == left
        shown = report.to_json()["levels"]
        assert [level for level in wanted if shown[level]["outcome"] == "skipped"] == left
        assert str(report).count(f"skipped, because {failing} failed") == len(left)


def step(level: str, failing: str | None, asked: list[str]) -> Callable[[], Findings]:
    """The step of a level, which notes that it was asked."""

    def look() -> Findings:
        asked.append(level)
        return Findings(["it is broken"], is_readable=False) if level == failing else Findings(notes=["fine"])

    return look


def test_an_outcome_is_what_the_headline_says():
    """A failing check is "failed", one of severity warn is a "warning", and neither is called ok; nor is nothing."""
    cases = {"failed": [*WARNING, *BAD], "warning": WARNING, "ok": GOOD}
    for outcome, verdicts in cases.items():
        report = run_levels("x", "csv", {"statistics": partial(Findings, verdicts=verdicts)}, "meaning")

        found = Validation([report])

        assert (found.outcome, found.ok, found.failed) == (outcome, outcome == "ok", outcome == "failed")
        assert str(report).startswith(f"x (csv): {outcome}\n")
        assert f"\n  statistics: {outcome}, " in str(report)
        assert "\n  meaning: unchecked" in str(report)
        assert found.summary() == f"1 checked: 1 {outcome}"
    assert found.problems == []
    assert Validation([run_levels("x", "csv", {"format": partial(Findings, verdicts=WARNING)}, "format")]).warnings == [
        "x: warn: a is at least 5: 1 of 2 rows are bad; row 0: 1"
    ]


def test_a_check_that_could_not_judge_is_counted_in_the_headline():
    """Drift without a reference is no failure, and not silently ok."""
    unsure = Suite().drift().check({"a": [1]}).verdicts

    report = run_levels("x", "csv", {"statistics": lambda: Findings(verdicts=unsure)}, "statistics")

    assert str(report).startswith("x (csv): ok, 1 check inconclusive\n")
    assert "statistics: ok, 1 of 1 check inconclusive" in str(report)


def test_reports_are_text_json_and_a_page():
    """The page is whole, and runs nothing that a name says."""
    report = run_levels("<script>x</script>", "csv", {"format": lambda: Findings(verdicts=BAD)}, "format")

    found = Validation([report])
    shown = json.loads(found.to_json())
    html = found.to_html("check")

    assert shown["outcome"] == "failed"
    assert shown["reports"][0]["levels"]["format"]["verdicts"][0]["n_bad"] == 1
    assert html.startswith("<!doctype html>")
    assert "<script>" not in html
    assert "a is at least 5" in html
