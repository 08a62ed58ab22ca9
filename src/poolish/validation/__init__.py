"""Validation in four levels. Programs call it as ``poolish.guards.validate``; ``poolish check`` prints its result.

    data --sources--> file? --> format? --> statistics? --> meaning?      stops at the first level that fails
                      look      parse       suite, reference              guards/checks/levels.py

What is wrong with rows is for guards to say. To read a stream, a queue or a text as ``bake`` reads it takes the rooms
above guards, so the function lives here and ``poolish.guards`` only names it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from poolish.errors import ConfigError
from poolish.guards.checks.infer import infer
from poolish.guards.checks.levels import Findings, LevelReport, Validation, climb, level_named
from poolish.guards.checks.reference import Reference
from poolish.guards.checks.suite import Suite
from poolish.guards.checks.verdicts import Level
from poolish.guards.stats.profile import Profile
from poolish.guards.stats.serialization import is_arrays_file
from poolish.validation.sources import Source, sources

__all__ = ["validate"]


def validate(data: Any, level: str | int = "meaning", *, suite: Any = None, reference: Any = None) -> Validation:
    """Check data level by level, each including the previous ones: 1 file, 2 format, 3 statistics, 4 meaning.

    ``data`` is a path (a file, a directory of files, a stream, a queue), a glob, or rows in memory (a table, a buffer,
    a data frame, columns by name, a list of dicts). ``suite`` is a ``Suite`` or the path of its file. ``reference`` is
    good data to compare with: a path, rows, a ``Profile``, or the ``Reference`` that a suite was fitted on. Without a
    suite the reference suggests one.

    The first level that fails is the last one asked. Nothing that is read is ever executed.

    >>> from poolish.guards import Suite, validate
    >>> suite = Suite("rewards").expect("reward", between=(-1, 1))
    >>> result = validate({"reward": [0.5, 7.0]}, level=3, suite=suite)
    >>> print(result)
    dict (in memory): not ok
      file: ok
        in memory
      format: ok
        2 rows, 1 columns: reward
      statistics: failed, 1 checks
        error: reward is between -1 and 1: 1 of 2 rows are bad; row 1: 7.0
    >>> validate({"reward": [0.5, 7.0]}, level="format", suite=suite).ok
    True
    """
    wanted = level_named(level)
    known = _reference(reference)
    asked = _suite(suite, known)
    asked = None if asked is None else asked.fitted_on(known)
    return Validation([_climbed(source, wanted, asked, known) for source in sources(data)])


def _suite(suite: Any, reference: Any) -> Suite | None:
    """The suite, read if it is a file; without one, what the reference suggests."""
    if suite is None:
        return None if reference is None else _suggested(reference)
    if isinstance(suite, Suite):
        return suite
    if not isinstance(suite, (str, os.PathLike)):
        raise ConfigError(f"suite: a Suite, or the path of its .yaml or .toml file, got {type(suite).__name__}")
    try:
        return Suite.load(suite)
    except OSError as error:
        raise ConfigError(f"suite {os.fspath(suite)}: {error.strerror or error}") from None


def _suggested(reference: Any) -> Suite:
    is_summary = isinstance(reference, (Profile, Reference))
    suite = Suite("as the reference") if is_summary else infer(reference, name="as the reference")
    return suite.drift()


def _reference(reference: Any) -> Any:
    """The rows to compare with, read if they are files; a profile or what a suite was fitted on as it is."""
    if reference is None or isinstance(reference, (Profile, Reference)):
        return reference
    if isinstance(reference, (str, os.PathLike)) and is_arrays_file(reference):
        return Reference.load(reference)
    found = sources(reference)
    if len(found) != 1:
        raise ConfigError(f"reference {reference}: expected one file, stream or split of a queue, got {len(found)}")
    for findings in (found[0].look(), found[0].read()):
        if not findings.ok:
            raise ConfigError(f"reference {found[0].name}: {'; '.join(findings.problems)}")
    return found[0].rows


def _climbed(source: Source, level: Level, suite: Suite | None, reference: Any) -> LevelReport:
    steps = {
        "file": source.look,
        "format": partial(_format, source, suite),
        "statistics": partial(_statistics, source, suite, reference),
        "meaning": partial(_meaning, source, suite),
    }
    return climb(source.name, source.kind, steps, level)  # type: ignore[arg-type]  # the keys are levels


def _format(source: Source, suite: Suite | None) -> Findings:
    findings = source.read()
    if findings.ok and suite is not None:
        findings.verdicts = suite.check_rows(source.rows, "format", only=True)
    return findings


def _statistics(source: Source, suite: Suite | None, reference: Any) -> Findings:
    if suite is None:
        return Findings(notes=["no expectations: pass a suite, or a reference to infer one from"])
    of_rows = suite.check_rows(source.rows, "statistics", only=True)
    return Findings(verdicts=[*of_rows, *suite.check_columns(source.rows, reference, "statistics")])


def _meaning(source: Source, suite: Suite | None) -> Findings:
    return Findings() if suite is None else Findings(verdicts=suite.check_rows(source.rows, "meaning", only=True))
