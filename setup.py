"""Compiles the kernels where it can. Everything else about the package is in ``pyproject.toml``.

``optional=True`` is what lets poolish install where there is no C compiler, no Python header or no Cython:
setuptools then reports the failed extension, goes on, and ``poolish.kernels`` falls back to NumPy.
An error in the ``.pyx`` itself is not forgiven: Cython raises it and the build stops.
"""

from glob import glob

import numpy
from setuptools import Extension, setup

FOLDER = "src/poolish/kernels"
HEADERS = sorted(glob(f"{FOLDER}/*.h") + glob(f"{FOLDER}/*.pxi"))


def kernels(name: str) -> Extension:
    """One compiled module of kernels."""
    return Extension(
        f"poolish.kernels.{name}",
        [f"{FOLDER}/{name}.pyx"],
        include_dirs=[FOLDER, numpy.get_include()],
        depends=HEADERS,
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=["-O3"],
        optional=True,
    )


setup(ext_modules=[kernels("_native"), kernels("_tokens"), kernels("_stats"), kernels("_replay")])
