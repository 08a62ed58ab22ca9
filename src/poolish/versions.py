"""The installed versions, found without importing anything: the first lines of a useful bug report.

Versions are read from the packages' metadata, so asking for torch's does not cost an import of torch.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import TextIO

__all__ = ["installed_versions", "show_versions"]

#: Distribution names, as pip knows them: what poolish always needs, then what its extras bring.
CORE = ("numpy", "pyarrow", "pydantic", "pyyaml", "tomli-w", "cachetools", "tenacity", "xxhash", "fsspec")
OPTIONAL = (
    *("torch", "datasets", "huggingface_hub", "pillow", "soundfile"),
    *("scipy", "scikit-learn", "datasketches", "ray", "s3fs"),
    *("typer", "rich", "starlette", "uvicorn", "jinja2"),
    *("pandas", "polars", "safetensors"),
)


def show_versions(*, file: TextIO | None = None) -> None:
    """Print what is installed here, one line each, to ``file`` or to the screen. Paste it into a bug report.

    >>> show_versions()
    poolish ...
    kernels ...
    """
    versions = installed_versions()
    width = max(map(len, versions))
    for name, version in versions.items():
        print(f"{name:<{width}}  {version}", file=file or sys.stdout)


def installed_versions() -> dict[str, str]:
    """The same as a dict: poolish and its kernels, the machine, the core, then the optional libraries.

    A core library that is missing says so; an optional one is left out.

    >>> installed_versions()["numpy"] == metadata.version("numpy")
    True
    """
    from poolish import __version__

    core = {name: _version(name) or "missing" for name in CORE}
    optional = {name: version for name in OPTIONAL if (version := _version(name))}
    return {"poolish": __version__, "kernels": _kernels(), **_machine(), **core, **optional}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, str]:
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "processors": str(os.cpu_count()),
    }


def _kernels() -> str:
    try:
        from poolish.kernels import is_native
    except ImportError as error:  # a report about a broken install must not break on it
        return f"cannot be loaded: {error}"
    if is_native:
        return "native"
    if os.environ.get("POOLISH_PURE", "") not in ("", "0"):
        return "reference (POOLISH_PURE is set)"
    return "reference (not compiled: install poolish again where a C compiler is, to make it faster)"
