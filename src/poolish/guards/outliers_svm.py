"""OneClassSVMOutliers: rows outside of a smooth border around the usual ones are strange.

scikit-learn finds the border. Kept are its support vectors and their weights, and the distance is computed here, so
that a saved detector needs neither scikit-learn nor pickle. Columns are standardized first: the kernel sees distances.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.guards.detector import Arrays, Detector, Floats, scaling, standardized
from poolish.seeds import generator

_BLOCK = 4_096


class OneClassSVMOutliers(Detector):
    """A one-class support vector machine with a Gaussian kernel; scores are above 0 outside of the border.

    ``nu`` is how many rows carry the border, at least. A tenth, not the contamination: with few of them a strange row
    among those fitted carries so much weight that it counts as usual. Fitting takes the square of the number of rows,
    so at most ``max_rows`` of them, drawn by the seed, are learnt from.

    >>> rows = np.concatenate([np.random.default_rng(0).standard_normal((500, 2)), [[9.0, 9.0]]])
    >>> detector = OneClassSVMOutliers(contamination=0.01).fit(rows)
    >>> bool(detector.mask(rows)[-1])
    True
    """

    kind: ClassVar[str] = "one_class_svm"

    def __init__(self, *, contamination: float = 0.01, nu: float = 0.1, max_rows: int = 10_000, seed: int = 0) -> None:
        super().__init__(contamination=contamination, seed=seed)
        if max_rows < 2 or not 0 < nu <= 1:
            raise ConfigError(f"max_rows: at least 2, nu: above 0 and up to 1; got {max_rows!r}, {nu!r}")
        self.nu, self.max_rows = float(nu), operator.index(max_rows)

    def arguments(self) -> dict[str, Any]:
        """The settings it was made with, by name."""
        return {**super().arguments(), "nu": self.nu, "max_rows": self.max_rows}

    def _learn(self, matrix: Floats) -> Arrays:
        try:
            from sklearn.svm import OneClassSVM
        except ImportError as error:
            raise ImportError(f"OneClassSVMOutliers: pip install poolish[guards] ({error})") from error

        arrays = scaling(matrix)
        if len(matrix) > self.max_rows:
            chosen = generator(self.seed, "one_class_svm").choice(len(matrix), self.max_rows, replace=False)
            matrix = matrix[np.sort(chosen)]
        scaled = standardized(arrays, matrix)
        gamma = 1.0 / scaled.shape[1]
        machine = OneClassSVM(kernel="rbf", gamma=gamma, nu=self.nu).fit(scaled)
        return {
            **arrays,
            "vectors": np.asarray(machine.support_vectors_, np.float64),
            "weights": np.asarray(machine.dual_coef_[0], np.float64),
            "border": np.array([float(machine.intercept_[0]), gamma]),
        }

    def _score(self, arrays: Mapping[str, NDArray[Any]], matrix: Floats) -> Floats:
        vectors, weights = arrays["vectors"], arrays["weights"]
        intercept, gamma = arrays["border"].tolist()
        scaled = standardized(arrays, matrix)
        squares = (vectors**2).sum(axis=1)
        scores = np.empty(len(scaled))
        with np.errstate(all="ignore"):
            for first in range(0, len(scaled), _BLOCK):
                block = scaled[first : first + _BLOCK]
                apart = (block**2).sum(axis=1)[:, None] + squares - 2 * block @ vectors.T
                # Beyond float64 a distance is infinite, and its kernel nothing.
                near = np.exp(-gamma * np.where(np.isfinite(apart), np.maximum(apart, 0), np.inf))
                scores[first : first + _BLOCK] = -(near @ weights + intercept)
        return scores

    @staticmethod
    def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
        vectors, width = arrays["vectors"], arrays["centre"].shape
        fits = (
            vectors.ndim == 2 and vectors.shape == (len(arrays["weights"]), *width) and arrays["spread"].shape == width
        )
        if not fits or arrays["border"].shape != (2,):
            raise ValueError("its support vectors do not fit its columns")
