"""Reading the files that a workspace is configured with, and running those that are Python.

A ``.py`` file is the user's own program and is treated as one: nobody else may have written it, and what runs is
exactly what was looked at. A ``.toml`` file is data and never runs::

    path --> read_source: a regular file, small; of a .py also: not writable for everyone, owned by the user or root
                 |
              bytes --> names_in: the settings that the file gives    (.py by run_source, .toml by parse_toml)
                 `----> run_source: a module, the bytes having been executed in it

The bytes go from one step to the next, so a file that changes meanwhile changes nothing. That is also why Python's own
ways to run a file are not used: they read it a second time, and would take bytecode from ``__pycache__`` instead.
"""

from __future__ import annotations

import inspect
import os
import re
import stat
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import ExecutionLoader
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from poolish.errors import ConfigError

MAX_BYTES = 1_000_000


def read_source(path: Path) -> bytes:
    """The bytes of a ``.py`` or ``.toml`` file, after making sure that a ``.py`` is one that may be run.

    >>> path = folder / "config.py"
    >>> path.write_text("batch_size = 32")
    15
    >>> path.chmod(0o666)
    >>> read_source(path)
    Traceback (most recent call last):
    poolish.errors.ConfigError: .../config.py: this file is run, but everyone may write to it; look at what it says,
    then chmod o-w .../config.py
    """
    if path.suffix not in (".py", ".toml"):
        raise ConfigError(f"{path}: a config is a .py or .toml file, got {path.suffix or 'no suffix'!r}; rename it")
    try:
        source = _read(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
    if len(source) > MAX_BYTES:
        raise ConfigError(f"{path}: more than {MAX_BYTES:,} bytes; keep settings here and data in files of its own")
    return source


def _read(path: Path) -> bytes:
    # Without waiting, should it be a pipe.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_file(path, os.fstat(fd))
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    finally:
        os.close(fd)


def _check_file(path: Path, facts: os.stat_result) -> None:
    # The facts are those of the open file, so at the end of a link they are the target's. Of a folder that others may
    # write to nothing is asked: what they put there belongs to them, and is refused for that.
    if not stat.S_ISREG(facts.st_mode):
        raise ConfigError(f"{path}: not a regular file; give the path of a .py or .toml file")
    if path.suffix != ".py":
        return
    if facts.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path}: this file is run, but everyone may write to it; look at what it says, then chmod o-w {path}"
        )
    if facts.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path}: this file is run, so it must be yours (user id {os.geteuid()}) or root's, but it is that of "
            f"user id {facts.st_uid}; look at what it says, then copy it or chown {os.geteuid()} {path}"
        )


def names_in(path: Path, source: bytes) -> dict[str, Any]:
    """The settings that a file gives: of TOML all keys, of Python what is assigned to names without underscore.

    Modules, functions and classes are what a Python config is written with, not settings.

    >>> names_in(Path("config.py"), b"import math\\nlr = 2 * math.pi\\n_half = lr / 2\\ndef f(): ...")
    {'lr': 6.283185307179586}
    >>> names_in(Path("config.toml"), b"lr = 0.1\\n[stages]\\nfirst = [1, 2]")
    {'lr': 0.1, 'stages': {'first': [1, 2]}}
    """
    if path.suffix == ".toml":
        return _read_toml(path, source)
    module = run_source(path, source, f"poolish_config_{path.stem}")
    return {name: value for name, value in vars(module).items() if not name.startswith("_") and _is_setting(value)}


def _read_toml(path: Path, source: bytes) -> dict[str, Any]:
    from poolish.files.yaml_toml import parse_toml  # where it is needed: it loads PyYAML

    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: a config is text in UTF-8 ({error}); save it as that") from None
    told: dict[str, Any] = parse_toml(text, str(path), what="config")
    return told


def _is_setting(value: object) -> bool:
    is_code = inspect.ismodule(value) or inspect.isroutine(value) or inspect.isclass(value)
    # `from __future__ import annotations` and `from typing import Optional` leave objects behind too.
    return not is_code and type(value).__module__ not in ("__future__", "typing")


def run_source(path: Path, source: bytes, name: str, names: Mapping[str, Any] | None = None) -> ModuleType:
    """Execute what ``read_source`` gave as a module, in which ``names`` are set from the start.

    The module is in ``sys.modules`` afterwards, where dataclasses, pickle and inspect look for it; if the file fails,
    all is as it was before, and the error keeps its type and gains the place.

    >>> run_source(Path("twice.py"), b"twice = 2 * n", "twice", {"n": 21}).twice
    42
    """
    # A dot would make pickle look for a package.
    name = re.sub(r"\W", "_", name)
    loader = _CheckedSource(path, source)
    module = module_from_spec(cast(ModuleSpec, spec_from_file_location(name, path, loader=loader)))
    vars(module).update(names or {})
    with _registered(module):
        try:
            loader.exec_module(module)
        except Exception as error:
            error.add_note(f"while running {path}{_line(error, path)}")
            raise
    return module


class _CheckedSource(ExecutionLoader):
    """A loader for bytes that were read already."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_source(self, fullname: str) -> str:
        return decode_source(self._source)


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    except BaseException:
        sys.modules.pop(module.__name__, None)
        if before is not None:
            sys.modules[module.__name__] = before
        raise


def _line(error: Exception, path: Path) -> str:
    """Where in the file it happened: the last of its lines that the error came through."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [n for frame, n in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
