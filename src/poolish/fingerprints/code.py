"""Names: those in the code of a function, and the modules and libraries they lead to."""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def qualified_name(function: Any) -> str:
    """The module and name of a function, class or callable object; of a partial, that of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or getattr(getattr(named, "__objclass__", None), "__module__", "")
    return f"{module}.{named.__qualname__}"


# Code and the names in it --------------------------------------------------------------------------------------------


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of all functions, classes and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def all_names(code: types.CodeType) -> set[str]:
    """The names in the code, and its text constants: ``getattr(module, "K")`` names K too."""
    texts = {text for each in _codes(code) for text in each.co_consts if isinstance(text, str)}
    return texts | {name for each in _codes(code) for name in each.co_names}


def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return [each for each in dis.get_instructions(code) if each.opname not in ("EXTENDED_ARG", "CACHE")]


def globals_of(code: types.CodeType) -> set[str]:
    """The names that the code looks up in its module or among the built-in functions."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    return {step.argval for each in _codes(code) for step in _instructions(each) if step.opname in loads}


def imports_of(code: types.CodeType, names: Mapping[str, Any]) -> set[str]:
    """The modules that the code imports when it runs, with the packages they are in and the submodules they give."""
    found: set[str] = set()
    for each in _codes(code):
        steps = _instructions(each)
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, wanted = steps[i - 2].argval, steps[i - 1].argval
                found |= _modules_of(step.argval, level, wanted or (), names)
    return found


def _modules_of(name: str, level: int, wanted: Iterable[str], names: Mapping[str, Any]) -> set[str]:
    if level:
        name = importlib.util.resolve_name("." * level + name, names.get("__package__") or "")
    parts = name.split(".")
    packages = {".".join(parts[: n + 1]) for n in range(len(parts))}
    if is_library(name):
        return {name}
    module = imported_module(name)
    return packages | {f"{name}.{each}" for each in wanted if each != "*" and not hasattr(module, each)}


def imported_module(name: str) -> types.ModuleType | None:
    """A module of the user's, imported as the function would do it; None for one that cannot be, and for a library."""
    if name in sys.modules or is_library(name):
        return sys.modules.get(name)
    try:
        return importlib.import_module(name)
    except Exception:  # the function reports it when it runs
        return None


# Libraries -----------------------------------------------------------------------------------------------------------


def library_name(value: Any) -> str | None:
    """The name and version of something that a library has under that name; None for everything else."""
    if isinstance(value, types.ModuleType):
        return versioned(value.__name__) if is_library(value.__name__) else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        module = value.__objclass__.__module__
    if not isinstance(module, str) or not isinstance(name, str) or not is_library(module):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # By name only if the name leads to it: a library may have made it around a function of the user's.
    return f"{versioned(module)} {name}" if found is value else None


def versioned(module: str) -> str:
    """The name of a library's module with the library's version."""
    return f"{module} {_version_of(module.partition('.')[0])}"


def _version_of(top: str) -> str:
    own = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(own, str):
        return own
    return platform.python_version() if top in sys.stdlib_module_names else _installed_version(top)


@functools.cache
def _installed_version(top: str) -> str:
    """The version of the distribution that installed a package."""
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(top, ())
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names)))


def is_library(module: str) -> bool:
    """Whether a module comes with Python, with poolish or from where packages are installed."""
    if module in ("__main__", "__mp_main__"):
        return False
    if module.partition(".")[0] == "poolish":
        return True
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if loaded is None:
        spec = _spec_of(module)
    elif spec is None:
        return _is_installed(getattr(loaded, "__file__", None) or "")
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen") or spec.loader is importlib.machinery.FrozenImporter:
        return True
    places = [spec.origin] if spec.has_location and spec.origin else [*(spec.submodule_search_locations or ())]
    return bool(places) and all(map(_is_installed, places))


def _spec_of(module: str) -> Any:
    """Where a module that is not loaded would come from; its packages are imported, as they would be with it."""
    try:
        return importlib.util.find_spec(module)
    except Exception:  # a package that cannot be imported, or that is a module
        return None


@functools.cache
def _is_installed(place: str) -> bool:
    """Whether a file lies in Python's own library or where packages are installed."""
    parts = pathlib.PurePath(place).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    stdlib = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return any(os.path.realpath(place).startswith(os.path.realpath(each) + os.sep) for each in stdlib)
