"""Reference: what good rows look like to a suite, without the rows: a profile of its columns and its fitted detectors.

One file, in the layout of safetensors with a checksum, no pickle: to load and use it takes neither scikit-learn nor
torch, which only fitting needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from poolish.concurrency import cached_property
from poolish.errors import CorruptDataError
from poolish.guards.arrays_file import load_arrays, save_arrays
from poolish.guards.detector import Arrays, Detector
from poolish.guards.fitted_outliers import DETECTORS
from poolish.guards.profile import Profile

_KIND = "suite reference"
_PROFILE = "profile"


class Reference:
    """The profile and the detectors that ``Suite.fit`` made of good rows; immutable.

    >>> from poolish.guards import Suite
    >>> rows = {"x": np.random.default_rng(0).normal(size=500)}
    >>> suite = Suite("watch").outliers(columns=["x"], method="isolation_forest")
    >>> suite.fit(rows).reference.save(folder / "reference.safetensors")
    >>> suite.fit(Reference.load(folder / "reference.safetensors")).check({"x": [0.1, 9.0]}).failures[0].n_bad
    1
    """

    def __init__(self, profile: Profile, detectors: Mapping[str, Detector]) -> None:
        self.profile = profile  #: of the columns that the suite names
        self.detectors = dict(detectors)  #: by the check that each was fitted for

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with the profile and with everything a detector learnt."""
        settings, arrays = self._parts()
        whole = xxhash.xxh3_64(repr(settings).encode())
        for name in sorted(arrays):
            whole.update(name.encode())
            whole.update(np.ascontiguousarray(arrays[name]).tobytes())
        return whole.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all."""
        save_arrays(path, _KIND, *self._parts())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Reference:
        """The reference in a file; needs NumPy only. What is damaged is a ``CorruptDataError``."""
        settings, arrays = load_arrays(path, _KIND)
        source = os.fspath(path)
        try:
            profile = Profile.from_json(arrays.pop(_PROFILE).tobytes().decode())
            detectors = {
                key: DETECTORS[saved["kind"]].from_parts(saved["settings"], _of(arrays, number), source)
                for number, (key, saved) in enumerate(settings["detectors"].items())
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CorruptDataError(
                f"{source}: no reference of a suite ({error!r:.200}); fit and save it again"
            ) from error
        return cls(profile, detectors)

    def _parts(self) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {_PROFILE: np.frombuffer(self.profile.to_json().encode(), np.uint8)}
        saved = {}
        for number, (key, detector) in enumerate(self.detectors.items()):
            settings, own = detector.parts()
            saved[key] = {"kind": detector.kind, "settings": settings}
            arrays |= {f"{number}.{name}": array for name, array in own.items()}
        return {"detectors": saved}, arrays

    def __deepcopy__(self, memo: Any) -> Reference:
        return self

    def __repr__(self) -> str:
        kinds = ", ".join(each.kind for each in self.detectors.values())
        return f"<Reference of {len(self.profile)} columns{f', fitted: {kinds}' if kinds else ''}>"


def _of(arrays: Arrays, number: int) -> Arrays:
    start = f"{number}."
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
