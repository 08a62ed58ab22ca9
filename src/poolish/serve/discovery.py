"""Find the provider class of a dataset: ``data/<dataset>/prepare_streaming.py`` is run as a module.

The settings of the shared config are globals of that module before its first line runs, so a provider may use
``mask_probability`` as if it were defined there. The class is the one named ``Provider``, else the only subclass of
``DataProviderBase`` that the file defines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from poolish.errors import ConfigError
from poolish.serve.config import SharedConfig
from poolish.serve.workspace import PROVIDER_FILE, no_such_dataset, read_source, run_source


def find_provider(config: SharedConfig, base: type[Any]) -> type[Any]:
    """The provider class of the config's dataset.

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
