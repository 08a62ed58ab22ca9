"""The kernels are compiled where that is possible, and their absence stops nobody."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import runpy; runpy.run_path('setup.py', run_name='__main__')"


def can_compile(folder: Path) -> bool:
    """Whether there is a C compiler here that finds Python's headers."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    source = folder / "probe.c"
    source.write_text("#include <Python.h>\n")
    command = [*compiler, "-c", str(source), "-o", str(folder / "probe.o"), f"-I{sysconfig.get_path('include')}"]
    return shutil.which(compiler[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the build reads, with nothing built in it."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    return tmp_path


def build(checkout: Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", before + BUILD, "build_ext", "--inplace"],
        cwd=checkout,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def compiled(checkout: Path) -> list[Path]:
    return list((checkout / "src/poolish/kernels").glob("_*.so"))


def test_kernels_are_compiled_where_they_can_be(tmp_path: Path):
    """A source that no longer compiles is an error here, not a quiet and slower library."""
    if not can_compile(tmp_path):
        pytest.skip("no C compiler that finds Python.h")

    for name in ("_native", "_tokens", "_stats", "_replay"):
        found = importlib.util.find_spec(f"poolish.kernels.{name}")
        assert found is not None, "run make; see what the compiler says"


def test_build_survives_a_missing_compiler(checkout: Path):
    """Without a compiler the install succeeds, with NumPy kernels."""
    done = build(checkout, CC="false")

    assert done.returncode == 0, done.stderr
    assert compiled(checkout) == []


def test_build_survives_a_missing_cython(checkout: Path):
    """Without Cython too."""
    done = build(checkout, before="import sys; sys.modules['Cython'] = None; ")

    assert done.returncode == 0, done.stderr
    assert compiled(checkout) == []


def test_build_refuses_broken_kernels(checkout: Path):
    """A mistake in our own source is not mistaken for a missing compiler."""
    (checkout / "src/poolish/kernels/_native.pyx").write_text("cdef int oops(:\n")

    assert build(checkout).returncode != 0
