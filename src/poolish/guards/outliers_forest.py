"""IsolationForestOutliers: rows that random cuts set apart quickly are strange.

scikit-learn grows the trees; what they are made of is kept as arrays and followed here in NumPy, so that a saved forest
needs neither scikit-learn nor pickle, and scores as it did on the day it was fitted.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.guards.detector import Arrays, Detector, Floats


class IsolationForestOutliers(Detector):
    """An isolation forest (Liu, Ting and Zhou); scores are the paper's, from 0 to 1, higher for stranger rows.

    >>> rows = np.concatenate([np.random.default_rng(0).standard_normal((500, 2)), [[9.0, 9.0]]])
    >>> detector = IsolationForestOutliers(contamination=0.01).fit(rows)
    >>> bool(detector.mask(rows)[-1])
    True
    """

    kind: ClassVar[str] = "isolation_forest"

    def __init__(
        self, *, contamination: float = 0.01, n_trees: int = 100, max_samples: int = 256, seed: int = 0
    ) -> None:
        super().__init__(contamination=contamination, seed=seed)
        if not 1 <= n_trees <= 10_000 or max_samples < 2:
            raise ConfigError(f"1 to 10,000 trees of at least 2 rows, got n_trees={n_trees}, max_samples={max_samples}")
        self.n_trees, self.max_samples = operator.index(n_trees), operator.index(max_samples)

    def arguments(self) -> dict[str, Any]:
        """The settings it was made with, by name."""
        return {**super().arguments(), "n_trees": self.n_trees, "max_samples": self.max_samples}

    def _learn(self, matrix: Floats) -> Arrays:
        try:
            from sklearn.ensemble import IsolationForest
        except ImportError as error:
            raise ImportError(f"IsolationForestOutliers: pip install poolish[guards] ({error})") from error

        n_rows = min(self.max_samples, len(matrix))
        forest = IsolationForest(n_estimators=self.n_trees, max_samples=n_rows, random_state=self.seed % 2**32)
        return as_arrays(forest.fit(_as_sklearn_reads(matrix)), matrix.shape[1])

    def _score(self, arrays: Mapping[str, NDArray[Any]], matrix: Floats) -> Floats:
        seen = _as_sklearn_reads(matrix)
        starts, feature, cut = arrays["starts"], arrays["feature"], arrays["cut"]
        left, right, depth = arrays["left"], arrays["right"], arrays["depth"]
        total = np.zeros(len(seen))
        rows = np.arange(len(seen))
        for start in starts:
            node = np.full(len(seen), start)
            moving = rows
            while len(moving):
                at = node[moving]
                inner = left[at] >= 0
                moving, at = moving[inner], at[inner]
                node[moving] = np.where(seen[moving, feature[at]] <= cut[at], left[at], right[at])
            total += depth[node]
        scores: Floats = 2.0 ** (-total / (len(starts) * float(arrays["usual_depth"][0])))
        return scores

    @staticmethod
    def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
        feature, left, right = arrays["feature"], arrays["left"], arrays["right"]
        n = len(feature)
        sizes = {len(arrays[name]) for name in ("feature", "cut", "left", "right", "depth")}
        here, inner = np.arange(n), left >= 0
        # Children lie behind their parent, so that every walk ends.
        leads_on = all(((side[inner] > here[inner]) & (side[inner] < n)).all() for side in (left, right))
        starts, width = arrays["starts"], int(arrays["width"][0])
        fits = ((feature[inner] >= 0) & (feature[inner] < width)).all() and ((starts >= 0) & (starts < n)).all()
        if sizes != {n} or not leads_on or not fits or not len(starts) or not 0 < width < 10**6:
            raise ValueError("its trees lead nowhere")

    @staticmethod
    def _width(arrays: Mapping[str, NDArray[Any]]) -> int:
        return int(arrays["width"][0])


def as_arrays(forest: Any, width: int) -> Arrays:
    """The trees of a fitted forest of scikit-learn, one behind the other."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("feature", "cut", "left", "right", "depth")}
    starts, n_before = [], 0
    for estimator, features in zip(forest.estimators_, forest.estimators_features_, strict=True):
        tree = estimator.tree_
        is_leaf = tree.children_left < 0
        starts.append(n_before)
        parts["feature"].append(np.where(is_leaf, 0, features[np.maximum(tree.feature, 0)]))
        parts["cut"].append(tree.threshold)
        for name, children in (("left", tree.children_left), ("right", tree.children_right)):
            parts[name].append(np.where(is_leaf, -1, children + n_before))
        parts["depth"].append(_depths(tree) + usual_depth(tree.n_node_samples))
        n_before += tree.node_count
    whole = {name: np.concatenate(trees) for name, trees in parts.items()}
    numbers = {name: whole[name].astype(np.int64) for name in ("feature", "left", "right")}
    return {
        **numbers,
        "cut": whole["cut"].astype(np.float64),
        "depth": whole["depth"].astype(np.float64),
        "starts": np.array(starts, np.int64),
        "width": np.array([width], np.int64),
        "usual_depth": usual_depth(np.array([forest._max_samples])),
    }


def usual_depth(n_rows: NDArray[Any]) -> Floats:
    """How deep a search among so many rows goes that finds nothing, on average.

    >>> usual_depth(np.array([1, 2, 256])).round(4)
    array([ 0.    ,  1.    , 10.2448])
    """
    n = np.maximum(np.asarray(n_rows, np.float64), 2.0)
    depth = 2.0 * (np.log(n - 1.0) + np.euler_gamma) - 2.0 * (n - 1.0) / n
    usual: Floats = np.where(np.asarray(n_rows) <= 1, 0.0, np.where(np.asarray(n_rows) == 2, 1.0, depth))
    return usual


def _depths(tree: Any) -> Floats:
    """How many cuts lead to each node; parents come before their children."""
    depths = np.zeros(tree.node_count)
    for node in np.flatnonzero(tree.children_left >= 0).tolist():
        depths[[tree.children_left[node], tree.children_right[node]]] = depths[node] + 1
    return depths


def _as_sklearn_reads(matrix: Floats) -> NDArray[np.float32]:
    """Rows as the trees compare them; beyond float32 at its end, where scikit-learn would refuse them."""
    largest = float(np.finfo(np.float32).max)
    return np.clip(matrix, -largest, largest).astype(np.float32)
