"""Compiles the kernels where it can. Everything else about the package is in ``pyproject.toml``.

``optional=True`` is what lets poolish install where there is no C compiler, no Python header or no Cython:
setuptools then reports the failed extension, goes on, and ``poolish.kernels`` falls back to NumPy.
An error in the ``.pyx`` itself is not forgiven: Cython raises it and the build stops.
"""

from glob import glob

from setuptools import Extension, setup

FOLDER = "src/poolish/kernels"

setup(
    ext_modules=[
        Extension(
            "poolish.kernels._native",
            [f"{FOLDER}/_native.pyx"],
            include_dirs=[FOLDER],
            depends=sorted(glob(f"{FOLDER}/*.h") + glob(f"{FOLDER}/*.pxd")),
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
