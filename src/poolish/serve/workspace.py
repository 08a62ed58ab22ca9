"""A workspace, the folder in which ``poolish prepare`` and a trainer run: its files, its provider, and making one.

<workspace>/
  config/validator.py                  checks of its own, optional
  data/<dataset>/prepare_streaming.py  the provider
  data/<dataset>/config/*.py, *.toml   defaults under the shared config, optional
  data/<dataset>/queue/                what the provider publishes

A ``.py`` file is the user's own program and is treated as one: only the user or root may have written it, and what
runs is exactly what was checked. A ``.toml`` file is data and never runs::

    path --> read_source: a regular file, small; of a .py also: not writable for everyone, owned by the user or root
                 |
              bytes --> names_in: the settings that the file gives    (.py by run_source, .toml by parse_toml)
                 `----> run_source: a module in which the bytes were executed

The bytes go from one step to the next, so a file that changes meanwhile changes nothing. That is also why Python's own
ways to run a file are not used: they read it a second time, and would take bytecode from ``__pycache__`` instead.
"""

from __future__ import annotations

import inspect
import os
import re
import secrets
import shutil
import stat
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.abc import ExecutionLoader
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from poolish.errors import ConfigError

if TYPE_CHECKING:
    from poolish.serve.config import SharedConfig

PROVIDER_FILE = "prepare_streaming.py"

#: As many datasets as an error names.
_MAX_NAMED = 20


def candidates(config_path: Path) -> tuple[Path, ...]:
    """Where a workspace is looked for: the current directory, the folder of the config, and the one above that.

    >>> candidates(Path("/pool/config/train.py"))[1:]
    (PosixPath('/pool/config'), PosixPath('/pool'))
    """
    folder = config_path.absolute().parent
    return tuple(dict.fromkeys([Path.cwd(), folder, folder.parent]))


def find_workspace(dataset: str | None, folders: Iterable[Path]) -> Path | None:
    """The first of the folders that has the dataset."""
    if dataset is None:
        return None
    return next((folder for folder in folders if dataset_folder(folder, dataset).is_dir()), None)


def dataset_folder(workspace: Path, dataset: str) -> Path:
    """The folder of a dataset."""
    return workspace / "data" / dataset


def default_files(workspace: Path, dataset: str) -> list[Path]:
    """The files of a dataset's defaults, in the order of their names; a later one overrides an earlier one."""
    folder = dataset_folder(workspace, dataset) / "config"
    found = [path for pattern in ("*.py", "*.toml") for path in folder.glob(pattern)]
    return sorted((path for path in found if not path.name.startswith((".", "_"))), key=lambda path: path.name)


def no_such_dataset(dataset: str, folders: Iterable[Path]) -> str:
    """What to say when none of the folders has the dataset: where it was looked for, and what there is.

    >>> (folder / "data" / "shakespeare").mkdir(parents=True)
    >>> print(no_such_dataset("shakespere", [folder]))
    dataset 'shakespere': there is no folder data/shakespere in ...; did you mean 'shakespeare'? There are: shakespeare
    """
    places = list(folders)
    names = sorted({name for place in places for name in _datasets(place)})
    nearest = get_close_matches(dataset, names, n=1)
    return (
        f"dataset {dataset!r}: there is no folder data/{dataset} in {', '.join(map(str, places))}; "
        + (
            f"did you mean {nearest[0]!r}? "
            if nearest
            else "correct the name, make the folder, or name the workspace. "
        )
        + f"There are: {', '.join(names[:_MAX_NAMED]) or 'none'}{', ...' if len(names) > _MAX_NAMED else ''}"
    )


def refuse_direct_run(module: str) -> None:
    """End the program if ``module`` is a provider's file that is run by itself: it would do nothing, and not say so.

    A file with a main part of its own (``if __name__ == "__main__"``) is left alone, and so is any other script.
    """
    if module != "__main__":
        return
    main = Path(getattr(sys.modules["__main__"], "__file__", None) or "").absolute()
    if main.name == PROVIDER_FILE and main.parent.parent.name == "data" and b"__main__" not in main.read_bytes():
        config = sys.argv[1] if len(sys.argv) > 1 else "CONFIG"
        raise SystemExit(
            f"{main}: a provider is not run by itself, that would fill no queue; from {main.parent.parent.parent} run "
            f"`poolish prepare {config}` (or `python prepare.py {config}`)"
        )


def _datasets(workspace: Path) -> list[str]:
    data = workspace / "data"
    if not data.is_dir():
        return []
    return [path.name for path in data.iterdir() if path.is_dir() and not path.name.startswith(".")]


# Reading and running its files --------------------------------------------------------------------------------

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
    # Without blocking, should it be a pipe.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_file(path, os.fstat(fd))
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    finally:
        os.close(fd)


def _check_file(path: Path, facts: os.stat_result) -> None:
    # The facts are those of the open file, so at the end of a link they are the target's. Of a folder that others may
    # write to nothing is required: what they put there belongs to them, and is refused for that.
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
            f"{path}: this file is run, so it must be yours (user id {os.geteuid()}) or root's, but "
            f"user id {facts.st_uid} owns it; look at what it says, then copy it or chown {os.geteuid()} {path}"
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
    values: dict[str, Any] = parse_toml(text, str(path), what="config")
    return values


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


# Finding the provider -----------------------------------------------------------------------------------------
#
# The settings of the shared config are globals of ``prepare_streaming.py`` before its first line runs, so a provider
# may use ``mask_probability`` as if it were defined there.


def find_provider(config: SharedConfig, base: type[Any]) -> type[Any]:
    """The provider class of the config's dataset: the one named ``Provider``, else the only subclass of ``base``.

    The file may import its neighbours. It is run only if the user or root owns it and not everyone may write to it.
    An error in it keeps its type and gains a note with the place, and no trace of the module is left.

    >>> from poolish.serve.config import load_config
    >>> char = folder / "data" / "char"
    >>> char.mkdir(parents=True)
    >>> _ = (char / "prepare_streaming.py").write_text("class CharProvider(dict):\\n    size = block_size")
    >>> _ = (folder / "config.toml").write_text('dataset = "char"\\nbatch_size = 4\\nblock_size = 8')
    >>> provider = find_provider(load_config(folder / "config.toml"), dict)
    >>> provider.__name__, provider.size
    ('CharProvider', 8)
    """
    path = _provider_file(config, base)
    with _importable(path.parent):
        module = run_source(path, read_source(path), f"poolish_provider_{config.dataset}", config.names())
    return _choose(module, path, base)


def _provider_file(config: SharedConfig, base: type[Any]) -> Path:
    folder = config.dataset_path
    if not folder.is_dir():
        raise ConfigError(no_such_dataset(config.dataset, [folder.parent.parent]))
    path = folder / PROVIDER_FILE
    if not path.exists():
        raise ConfigError(f"{path}: not found; write it, with a subclass of {base.__name__} that samples the batches")
    return path


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        # The file may have changed the list itself.
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _choose(module: ModuleType, path: Path, base: type[Any]) -> type[Any]:
    if hasattr(module, "Provider"):
        return _check_named(module.Provider, path, base)
    # A class that was only imported has another home.
    found = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }
    if not found:
        raise ConfigError(f"{path}: defines no subclass of {base.__name__}; write one, or import one as Provider")
    if len(found) > 1:
        names = ", ".join(sorted(provider.__name__ for provider in found))
        raise ConfigError(
            f"{path}: defines {len(found)} subclasses of {base.__name__} ({names}); name one of them Provider"
        )
    return found.pop()


def _check_named(provider: object, path: Path, base: type[Any]) -> type[Any]:
    if isinstance(provider, type) and issubclass(provider, base) and provider is not base:
        return provider
    raise ConfigError(f"{path}: Provider must subclass {base.__name__}, got {provider!r}; rename one of them")


# A new workspace ----------------------------------------------------------------------------------------------
#
# ``templates/workspace`` holds the files, each with the suffix ``.template`` so that no tool takes them for programs of
# poolish itself. ``NAME`` in a path and ``{{name}}``, ``{{config}}`` in a text become the workspace's own.

_TEMPLATES = Path(__file__).parent / "templates" / "workspace"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SUFFIX = ".template"


def make_workspace(path: str | os.PathLike[str], name: str, *, is_toml: bool = False) -> list[Path]:
    """Write a workspace for a dataset ``name`` to a new folder, whole or not at all; its files.

    >>> files = make_workspace(folder / "char", "char")
    >>> [str(file.relative_to(folder)) for file in files][1:4]
    ['char/README.md', 'char/config/train_char.py', 'char/data/char/input.txt']
    """
    at = Path(path)
    config = f"config/train_{_checked(name)}.{'toml' if is_toml else 'py'}"
    if os.path.lexists(at):
        raise ConfigError(f"{at}: exists already; choose another name, or remove it")
    if not at.absolute().parent.is_dir():
        raise ConfigError(f"{at}: there is no folder {at.parent}; make it first")
    partial = at.with_name(f".{at.name}.{secrets.token_hex(4)}.partial")
    try:
        names = [_write(template, partial, name, config) for template in _chosen(is_toml)]
        os.rename(partial, at)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return sorted(at / made for made in names)


def _checked(name: str) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError(f"name {name!r}: use 1 to 64 letters, digits, _ and -, a letter first")


def _chosen(is_toml: bool) -> list[Path]:
    other = ".py.template" if is_toml else ".toml.template"
    found = sorted(_TEMPLATES.rglob(f"*{_SUFFIX}"))
    return [file for file in found if not (file.parent.name == "config" and file.name.endswith(other))]


def _write(template: Path, folder: Path, name: str, config: str) -> str:
    """Fill in one template; its path in the workspace."""
    made = str(template.relative_to(_TEMPLATES)).removesuffix(_SUFFIX).replace("NAME", name)
    made = ".gitignore" if made == "gitignore" else made  # packaging leaves out files that begin with a dot
    text = template.read_text(encoding="utf-8").replace("{{name}}", name).replace("{{config}}", config)
    (folder / made).parent.mkdir(parents=True, exist_ok=True)
    # Never writable for others, whatever the umask: such a file would not be run.
    fd = os.open(folder / made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return made
