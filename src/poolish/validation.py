"""Validation in four levels. Programs call it as ``poolish.guards.validate``; ``poolish check`` prints its result.

    data --sources--> file? --> format? --> statistics? --> meaning?      all of them, as long as there are rows
                      look      parse       suite, reference              guards/checks/levels.py

    file         parquet, Arrow (file or stream), JSON lines, csv, tsv, a saved DatasetBuffer; recognised by its first
                 bytes, else by its ending, and read as ``bake`` reads it
    directory    of such files; or a stream (store.json); or a queue, or a dataset that has one
    glob         every file and directory that it matches
    memory       a table, a buffer, a data frame, columns by name, a list of dicts: anything a ``Suite`` checks

Guards judge rows. Reading a stream or a queue takes packages above guards, so the function lives here and
``poolish.guards`` only names it. Everything is read as data, never as code.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.columns import NotTabular, TableView
from poolish.concurrency import cached_property
from poolish.errors import ConfigError, PoolishError, SchemaError
from poolish.files import checksum_hex, local_path
from poolish.formats import (
    FORMATS,
    check_exact,
    decompress,
    ending_of,
    is_blank,
    is_hidden,
    is_text,
    parse,
    read_parquet,
)
from poolish.guards.checks.distributions import Reference
from poolish.guards.checks.infer import infer
from poolish.guards.checks.levels import Findings, LevelReport, Validation, run_levels
from poolish.guards.checks.suite import Suite
from poolish.guards.checks.verdicts import Level, Verdict, level_named
from poolish.guards.stats.profile import Profile
from poolish.guards.stats.serialization import is_arrays_file
from poolish.printable import counted

__all__ = ["validate"]

#: Formats by their first bytes; a saved buffer is no source of recipes, so only validation knows it.
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"POOLROW1": "saved buffer"}
_ENDINGS = {**FORMATS, ".rows": "saved buffer"}
#: How many good samples a suite that the reference suggests takes for something else.
_FALSE_ALARMS = 0.02
_SUMS = {".sha256": ("sha256", 64), ".xxh3": ("xxh3", 16)}


def validate(data: Any, level: str | int = "meaning", *, suite: Any = None, reference: Any = None) -> Validation:
    """Check data level by level, each including the previous ones: 1 file, 2 format, 3 statistics, 4 meaning.

    ``data`` is a path (a file, a directory of files, a stream, a queue), a glob, or rows in memory (a table, a buffer,
    a data frame, columns by name, a list of dicts). ``suite`` is a ``Suite`` or the path of its file. ``reference`` is
    good data to compare with: a path, rows, a ``Profile``, or the ``Reference`` that a suite was fitted on. Without a
    suite the reference suggests one.

    Every level is checked and shown; only what cannot be read ends it. Nothing that is read is ever executed.

    >>> from poolish.guards import Suite, validate
    >>> suite = Suite("rewards").expect("reward", between=(-1, 1))
    >>> result = validate({"reward": [0.5, 7.0]}, level=3, suite=suite)
    >>> print(result)
    dict (in memory): failed
      file: ok
        in memory
      format: ok
        2 rows, 1 column: reward
      statistics: failed, 1 of 1 check failed
        error: reward is between -1 and 1: 1 of 2 rows are bad; row 1: 7.0
    >>> result.outcome, validate({"reward": [0.5, 7.0]}, level="format", suite=suite).outcome
    ('failed', 'ok')
    """
    wanted = level_named(level)
    known = _reference(reference)
    asked = _suite(suite, known)
    asked = None if asked is None else asked.fitted_on(known)
    return Validation([_report(source, wanted, asked, known) for source in sources(data)])


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
    name, accept = "as the reference", 1 - _FALSE_ALARMS / 2
    suite = Suite(name) if is_summary else infer(reference, accept=accept, name=name)
    return suite.drift(alpha=_FALSE_ALARMS / 2)


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
        if findings.problems:
            raise ConfigError(f"reference {found[0].name}: {'; '.join(findings.problems)}")
    return found[0].rows


def _report(source: Source, level: Level, suite: Suite | None, reference: Any) -> LevelReport:
    steps = {
        "file": source.look,
        "format": partial(_format, source, suite),
        "statistics": partial(_statistics, source, suite, reference),
        "meaning": partial(_meaning, source, suite),
    }
    return run_levels(source.name, source.kind, steps, level)  # type: ignore[arg-type]  # the keys are levels


def _format(source: Source, suite: Suite | None) -> Findings:
    findings = source.read()
    if findings.is_readable and suite is not None:
        findings.verdicts = suite.check_rows(source.rows, "format", only=True)
    return findings


def _statistics(source: Source, suite: Suite | None, reference: Any) -> Findings:
    if suite is None:
        return Findings(notes=["no expectations: pass a suite, or a reference to infer one from"], is_checked=False)
    of_rows = suite.check_rows(source.rows, "statistics", only=True)
    return _judged([*of_rows, *suite.check_columns(source.rows, reference, "statistics")])


def _meaning(source: Source, suite: Suite | None) -> Findings:
    return _judged([] if suite is None else suite.check_rows(source.rows, "meaning", only=True))


def _judged(verdicts: list[Verdict]) -> Findings:
    return Findings(verdicts=verdicts, is_checked=bool(verdicts))


# Sources ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Something to check: a name, what it is, and how its levels ``file`` and ``format`` are checked."""

    name: str
    kind: str
    look: Callable[[], Findings]
    parse: Callable[[], TableView]

    @cached_property
    def rows(self) -> TableView:
        """Its rows, read once."""
        return self.parse()

    def read(self) -> Findings:
        """The level ``format``: can it be read?"""
        try:
            rows = self.rows
        except (PoolishError, pa.ArrowException, ValueError, OSError) as error:
            return Findings([" ".join(str(error).split())[:500]], is_readable=False)
        size = f"{counted(len(rows), 'row')}, {counted(len(rows.names), 'column')}"
        return Findings(notes=[f"{size}: {', '.join(rows.names[:20])}"])


def sources(data: Any) -> list[Source]:
    """What there is to check: at a path, in everything that a glob matches, or in memory."""
    if not isinstance(data, (str, os.PathLike)):
        return [_in_memory(data)]
    path = local_path(data, "validate", instead="the sources of a recipe; bake a copy and validate that")
    if glob.has_magic(str(path)) and not path.exists():
        return _matches(str(path))
    return _at(path)


def _matches(pattern: str) -> list[Source]:
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise ConfigError(f"{pattern}: no file matches it; quote the glob, and use ** for directories below")
    return [source for each in found for source in _at(Path(each))]


def _in_memory(data: Any) -> Source:
    """Rows that a program holds: nothing to open on the level ``file``; the format is that they are rows."""
    view = None
    try:
        view = TableView.of(data)
    except NotTabular:
        raise  # the caller's mistake
    except SchemaError:
        pass  # reported on the level ``format``

    def parsed() -> TableView:
        if isinstance(data, pa.Table):
            data.validate(full=True)
        return TableView.of(data) if view is None else view  # a query is computed once

    return Source(type(data).__name__, "in memory", lambda: Findings(notes=["in memory"]), parsed)


def _at(path: Path) -> list[Source]:
    if not path.is_dir():
        return [_file(path, str(path))]
    from poolish.tokens.directory import is_store

    if is_store(path):
        return [_stream(path)]
    if _is_queue(path):
        return list(_queues(path))
    named = (each for each in path.rglob("*") if ending_of(each.name) in _ENDINGS)
    files = sorted(each for each in named if not is_hidden(str(each), str(path)))
    if not files:
        raise ConfigError(f"{path}: nothing in it that could be checked: no stream, no queue, no {', '.join(_ENDINGS)}")
    return [_file(each, str(each)) for each in files]


# Files ------------------------------------------------------------------------------------------------------------


def _file(path: Path, name: str) -> Source:
    kind = _kind(path)
    return Source(name, kind, lambda: look_at(path), lambda: TableView.of(_parsed(path, kind)))


def _kind(path: Path) -> str:
    first = b""
    if path.is_file():  # opening a pipe would wait for a writer
        with suppress(OSError), path.open("rb") as file:
            first = file.read(8)
    by_magic = next((kind for magic, kind in _MAGIC.items() if first.startswith(magic)), None)
    return by_magic or _ENDINGS.get(ending_of(path.name), "unknown")


def look_at(path: Path) -> Findings:
    """The level ``file``: it is there, a regular file, readable, not empty, and as its checksum says."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return Findings([f"{path}: not a regular file"], is_readable=False)
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return Findings([f"{path}: {error.strerror or error}"], is_readable=False)
    if found.st_size == 0:
        return Findings([f"{path}: it is empty"], is_readable=False)
    return _compare_sums(path, Findings(notes=[f"{counted(found.st_size, 'byte')}"]))


def _compare_sums(path: Path, findings: Findings) -> Findings:
    """Compare with ``<file>.sha256`` or ``<file>.xxh3`` beside it, as sha256sum and xxhsum write them."""
    for ending, (method, n_digits) in _SUMS.items():
        beside = path.with_name(path.name + ending)
        if not beside.is_file():
            continue
        stated = re.match(rb"[0-9a-fA-F]{%d}(?=\s|$)" % n_digits, beside.read_bytes()[:4096])
        if stated is None:
            findings.problems.append(f"{beside}: no {method} of {n_digits} digits in it")
            continue
        got = _digest(path, method)
        if got != stated[0].decode().lower():
            findings.problems.append(f"{path}: its {method} is {got}, {beside.name} says {stated[0].decode().lower()}")
        else:
            findings.notes.append(f"{method} is right")
    if not any(path.with_name(path.name + ending).is_file() for ending in _SUMS):
        findings.notes.append(f"no checksum beside it ({path.name}.sha256)")
    return findings


def _digest(path: Path, method: str) -> str:
    if method == "sha256":
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return checksum_hex(path.read_bytes())


def _parsed(path: Path, kind: str) -> Any:
    if kind == "unknown":
        raise ValueError(f"no format that is known here; known are {', '.join(_ENDINGS)}")
    if kind == "saved buffer":
        from poolish.rows import DatasetBuffer

        return DatasetBuffer.load(path).snapshot()
    if kind == "parquet":
        return read_parquet(str(path))
    data = decompress(path.read_bytes(), path.name)
    if is_text(kind) and is_blank(data):
        raise ValueError("there is nothing but space in it")
    table = parse(data, kind, str(path))
    check_exact(table, data, kind, str(path))
    return table


# Streams and queues -----------------------------------------------------------------------------------------------


def _stream(path: Path) -> Source:
    """A stream: every checksum on the first level, its fields as columns, a row for each step."""

    def verified() -> Findings:
        from poolish.tokens import StreamStore

        try:
            with StreamStore.open(path, mode="r") as store:
                return Findings(notes=[str(store.verify())])
        except (PoolishError, OSError) as error:
            return Findings([str(error)], is_readable=False)

    def rows() -> TableView:
        from poolish.tokens import StreamStore

        with StreamStore.open(path, mode="r") as store:
            return TableView.of(list(_steps(store)))

    return Source(str(path), "stream", verified, rows)


def _steps(store: Any) -> Iterator[dict[str, Any]]:
    for step in store.steps():
        yield {"step": step.number, **{name: _value(value) for name, value in step.items()}}


def _value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_queue(path: Path) -> bool:
    from poolish.transports.directory import queue_folders

    try:
        return bool(queue_folders(path))
    except PoolishError:
        return False


def _queues(path: Path) -> Iterator[Source]:
    """The splits of a queue: every batch verified on the first level, the rows of all of them together."""
    from poolish.transports.directory import queue_folders

    for folder in queue_folders(path):
        yield Source(str(folder), "queue", partial(_verified, folder), partial(_batches, folder))


def _verified(folder: Path) -> Findings:
    from poolish.serve import verify_queue

    try:
        problems = verify_queue(folder)[folder.name]
    except (PoolishError, OSError) as error:
        return Findings([str(error)], is_readable=False)
    return Findings(problems, notes=[] if problems else ["every batch is whole"], is_readable=not problems)


def _batches(folder: Path) -> TableView:
    from poolish.serve.inspection import read_batches

    parts = list(read_batches(folder))
    if not parts:
        return TableView({}, 0)
    return TableView.of({name: _joined([part[name] for part in parts]) for name in parts[0]})


def _joined(arrays: list[Any]) -> Any:
    """Arrays of all batches as one column; where their shapes differ, a list of arrays; of text a list."""
    if all(isinstance(array, np.ndarray) and array.shape[1:] == arrays[0].shape[1:] for array in arrays):
        return np.concatenate(arrays)
    return [row for array in arrays for row in array]
