"""Fitted outlier detectors: isolation forest, one-class SVM, autoencoder; scores, thresholds, files without pickle.

A detector learns what usual rows look like and gives each row a score, higher for stranger ones. The threshold is the
score that a share ``contamination`` of the rows it was fitted on exceeds; by default one in a hundred, because what
the libraries assume (14 % or half of all rows) is more than anyone can look at. A row with a number that is missing
or infinite cannot be scored: it is infinitely strange, and not learnt from.

scikit-learn or torch fits; what they learn (trees, support vectors, weights) is kept as arrays and scored here in
NumPy, so a saved detector needs neither library nor pickle, and scores on every machine as it did when it was fitted.

    isolation forest   rows that random cuts set apart quickly are strange
    one-class SVM      rows outside of a smooth border around the usual ones are strange; columns are standardized first
    autoencoder        rows that a small network cannot rebuild from a few numbers are strange
"""

from __future__ import annotations

import inspect
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from poolish.columns import columns_of
from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.guards.stats.outliers import Outliers, row_numbers
from poolish.guards.stats.serialization import load_arrays, save_arrays
from poolish.seeds import check_seed, generator

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


class Detector(ABC):
    """Fit, score, save. Subclasses learn arrays from a matrix, and score a matrix by them."""

    kind: ClassVar[str] = ""

    def __init__(self, *, contamination: float = 0.01, seed: int = 0) -> None:
        if not 0 < contamination < 0.5:
            raise ConfigError(f"contamination: the share of rows that are outliers, up to 0.5, got {contamination!r}")
        self.contamination, self.seed = float(contamination), check_seed(seed)
        self.threshold = float("nan")  #: a higher score is an outlier
        self.columns: list[str] | None = None  #: of the rows it was fitted on; None for a plain matrix
        self._arrays: Arrays = {}

    def fit(self, rows: Any) -> Self:
        """Learn from rows: a matrix, a table, a dict of columns or a list of dicts; columns that are not numbers stay
        out. The same rows and seed give the same detector.
        """
        columns, matrix = _matrix(rows, None)
        usable = matrix[np.isfinite(matrix).all(axis=1)]
        if len(usable) < 2 or not usable.shape[1]:
            raise SchemaError(
                f"{len(usable)} rows of {matrix.shape[1]} numbers without anything missing: at least 2 rows of 1 number"
            )
        arrays = self._learn(usable)
        scores = self._score(arrays, usable)
        threshold = float(np.quantile(scores, 1 - self.contamination))
        self._arrays, self.columns, self.threshold = arrays, columns, threshold
        return self

    def scores(self, rows: Any) -> Floats:
        """How strange each row is."""
        if not self._arrays:
            raise ConfigError(f"{type(self).__name__}: not fitted; call fit(rows) or load(path) first")
        _, matrix = _matrix(rows, self.columns)
        width = self._width(self._arrays)
        if matrix.shape[1] != width:
            raise SchemaError(f"rows of {matrix.shape[1]} numbers, fitted on rows of {width}")
        usable = np.isfinite(matrix).all(axis=1)
        scores = np.full(len(matrix), np.inf)
        if usable.any():
            scores[usable] = self._score(self._arrays, matrix[usable])
        return scores

    def mask(self, rows: Any) -> NDArray[np.bool_]:
        """Which rows are outliers."""
        return self.scores(rows) > self.threshold

    def outliers(self, rows: Any) -> Outliers:
        """Mask and scores at once."""
        scores = self.scores(rows)
        return Outliers(scores > self.threshold, scores, self.threshold, "poolish", self.kind)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to a file, in the layout of safetensors."""
        save_arrays(path, self.kind, *self.parts())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The detector that ``save`` wrote; needs NumPy only. What is damaged is a ``CorruptDataError``."""
        return cls.from_parts(*load_arrays(path, cls.kind), os.fspath(path))

    def parts(self) -> tuple[dict[str, Any], Arrays]:
        """The settings and arrays that a file of a fitted detector holds."""
        if not self._arrays:
            raise ConfigError(f"{type(self).__name__}: not fitted, so there is nothing to save; call fit(rows) first")
        settings = {"arguments": self.arguments(), "threshold": self.threshold, "columns": self.columns}
        return settings, self._arrays

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: Arrays, source: str) -> Self:
        """The detector that ``parts`` describes; parts that do not fit each other are a ``CorruptDataError``."""
        try:
            detector = cls(**settings["arguments"])
            detector.threshold = float(settings["threshold"])
            detector.columns = settings["columns"]
            cls._check(arrays)
            detector._arrays = arrays
            probe = detector._score(arrays, np.zeros((1, cls._width(arrays))))
            if probe.shape != (1,):
                raise ValueError("its arrays do not fit each other")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptDataError(f"{source}: no {cls.__name__} ({error}); fit and save it again") from error
        return detector

    # What a subclass says ------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """The settings it was made with, by name."""
        names = ("contamination", "seed", *inspect.signature(type(self)).parameters)
        return {name: getattr(self, name) for name in names}

    @abstractmethod
    def _learn(self, matrix: Floats) -> Arrays:
        """The arrays that say what usual rows look like."""

    @abstractmethod
    def _score(self, arrays: Mapping[str, NDArray[Any]], matrix: Floats) -> Floats:
        """How strange each row of a matrix is by those arrays."""

    @staticmethod  # noqa: B027  # most detectors have nothing to refuse
    def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
        """Refuse arrays that would lead outside of themselves."""

    @staticmethod
    def _width(arrays: Mapping[str, NDArray[Any]]) -> int:
        return int(arrays["centre"].size)


def standardized(arrays: Mapping[str, NDArray[Any]], matrix: Floats) -> Floats:
    """Each column with mean 0 and standard deviation 1, as they were in the fit."""
    with np.errstate(all="ignore"):
        scaled: Floats = (matrix - arrays["centre"]) / arrays["spread"]
    return scaled


def scaling(matrix: Floats) -> Arrays:
    """What ``standardized`` needs; a column that never changes is left as it is."""
    with np.errstate(all="ignore"):
        spread = matrix.std(axis=0)
    return {"centre": matrix.mean(axis=0), "spread": np.where(spread > 0, spread, 1.0)}


def _matrix(rows: Any, names: list[str] | None) -> tuple[list[str] | None, Floats]:
    """Rows as a matrix of float64, missing numbers as NaN; columns with arrays give one number for each element."""
    if not isinstance(rows, Mapping) and hasattr(rows, "shape") and not hasattr(rows, "column_names"):
        array = np.asarray(rows.detach().cpu() if hasattr(rows, "detach") else rows)
        if array.ndim == 2 and array.dtype.kind in "biuf" and not hasattr(rows, "columns"):
            if names is not None:
                raise SchemaError(f"fitted on the columns {names}; pass rows with these names, not a matrix")
            return None, array.astype(np.float64)
    parts: dict[str, Floats] = {}
    for name, values in columns_of(rows, names).items():
        try:
            parts[name] = row_numbers(values)
        except SchemaError as error:
            if names is not None:
                error.add_note(f"in column {name!r}")
                raise
    if not parts:
        raise SchemaError("no column of these rows holds one number, or arrays of one shape, for each row")
    return list(parts), np.concatenate(list(parts.values()), axis=1)


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
    """The average depth of an unsuccessful search among this many rows.

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


_SVM_BLOCK = 4_096


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
            for first in range(0, len(scaled), _SVM_BLOCK):
                block = scaled[first : first + _SVM_BLOCK]
                apart = (block**2).sum(axis=1)[:, None] + squares - 2 * block @ vectors.T
                # Beyond float64 a distance is infinite, and its kernel nothing.
                near = np.exp(-gamma * np.where(np.isfinite(apart), np.maximum(apart, 0), np.inf))
                scores[first : first + _SVM_BLOCK] = -(near @ weights + intercept)
        return scores

    @staticmethod
    def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
        vectors, width = arrays["vectors"], arrays["centre"].shape
        fits = (
            vectors.ndim == 2 and vectors.shape == (len(arrays["weights"]), *width) and arrays["spread"].shape == width
        )
        if not fits or arrays["border"].shape != (2,):
            raise ValueError("its support vectors do not fit its columns")


_N_LAYERS = 4
_NETWORK_BLOCK = 16_384


class AutoencoderOutliers(Detector):
    """A network through a narrow middle of ``code`` numbers; the score is the mean squared error of what comes out.

    >>> angles = np.linspace(0, 6, 400)
    >>> rows = np.stack([np.cos(angles), np.sin(angles), np.cos(2 * angles)], axis=1)
    >>> detector = AutoencoderOutliers(seed=1, epochs=10).fit(rows)
    >>> detector.mask(np.full((1, 3), 5.0))
    array([ True])
    """

    kind: ClassVar[str] = "autoencoder"

    def __init__(
        self,
        *,
        contamination: float = 0.01,
        hidden: int = 32,
        code: int | None = None,
        epochs: int = 40,
        batch_size: int = 256,
        learning_rate: float = 1e-2,
        seed: int = 0,
    ) -> None:
        super().__init__(contamination=contamination, seed=seed)
        for name, number in (("hidden", hidden), ("code", code or 1), ("epochs", epochs), ("batch_size", batch_size)):
            if not isinstance(number, (int, np.integer)) or number < 1:
                raise ConfigError(f"{name}: a whole number from 1, got {number!r}")
        self.hidden, self.code, self.epochs = int(hidden), None if code is None else int(code), int(epochs)
        self.batch_size, self.learning_rate = int(batch_size), float(learning_rate)

    def _learn(self, matrix: Floats) -> Arrays:
        try:
            import torch
        except ImportError as error:
            raise ImportError(f"AutoencoderOutliers: pip install poolish[torch] ({error})") from error

        arrays = scaling(matrix)
        width = matrix.shape[1]
        sizes = [width, self.hidden, self.code or max(1, width // 2), self.hidden, width]
        rng = generator(self.seed, "autoencoder")
        # All randomness is drawn here: torch's own generator is the user's, and other draws must not shift ours.
        weights = [
            torch.tensor(rng.standard_normal((a, b)) / np.sqrt(a), dtype=torch.float64, requires_grad=True)
            for a, b in pairwise(sizes)
        ]
        biases = [torch.zeros(b, dtype=torch.float64, requires_grad=True) for b in sizes[1:]]
        data = torch.from_numpy(standardized(arrays, matrix))
        optimizer = torch.optim.Adam([*weights, *biases], lr=self.learning_rate)
        for _ in range(self.epochs):
            for chosen in np.array_split(rng.permutation(len(data)), max(len(data) // self.batch_size, 1)):
                batch = data[torch.from_numpy(chosen)]
                out = batch
                for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                    out = out @ weight + bias
                    out = torch.tanh(out) if i + 1 < _N_LAYERS else out
                optimizer.zero_grad()
                loss = ((out - batch) ** 2).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            arrays[f"weight{i}"], arrays[f"bias{i}"] = weight.detach().numpy().copy(), bias.detach().numpy().copy()
        return arrays

    def _score(self, arrays: Mapping[str, NDArray[Any]], matrix: Floats) -> Floats:
        scaled = standardized(arrays, matrix)
        scores = np.empty(len(scaled))
        with np.errstate(all="ignore"):
            for first in range(0, len(scaled), _NETWORK_BLOCK):
                block = scaled[first : first + _NETWORK_BLOCK]
                out = block
                for i in range(_N_LAYERS):
                    out = out @ arrays[f"weight{i}"] + arrays[f"bias{i}"]
                    out = np.tanh(out) if i + 1 < _N_LAYERS else out
                scores[first : first + _NETWORK_BLOCK] = ((out - block) ** 2).mean(axis=1)
        return np.where(np.isnan(scores), np.inf, scores)

    @staticmethod
    def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
        width = arrays["centre"].shape
        last = width
        for i in range(_N_LAYERS):
            weight, bias = arrays[f"weight{i}"], arrays[f"bias{i}"]
            if weight.ndim != 2 or weight.shape[:1] != last or bias.shape != weight.shape[1:]:
                raise ValueError("its layers do not fit each other")
            last = bias.shape
        if last != width or arrays["spread"].shape != width:
            raise ValueError("what comes out is not as wide as what goes in")


# Registry ----------------------------------------------------------------------------------------------------------

#: The detectors by the name that suites and files use.
DETECTORS: dict[str, type[Detector]] = {
    kind.kind: kind for kind in (IsolationForestOutliers, OneClassSVMOutliers, AutoencoderOutliers)
}

#: The options of each detector, with their defaults.
DETECTOR_OPTIONS: dict[str, dict[str, Any]] = {name: kind().arguments() for name, kind in DETECTORS.items()}
