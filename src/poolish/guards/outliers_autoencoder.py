"""AutoencoderOutliers: rows that a small network cannot rebuild from a few numbers are strange.

torch trains it; the weights are kept as arrays and used here in NumPy, so that a saved detector needs neither torch nor
pickle, and scores the same on every machine that has NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.guards.detector import Arrays, Detector, Floats, scaling, standardized
from poolish.seeds import generator

_N_LAYERS = 4
_BLOCK = 16_384


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

    def arguments(self) -> dict[str, Any]:
        """The settings it was made with, by name."""
        names = ("hidden", "code", "epochs", "batch_size", "learning_rate")
        return {**super().arguments(), **{name: getattr(self, name) for name in names}}

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
            for first in range(0, len(scaled), _BLOCK):
                block = scaled[first : first + _BLOCK]
                out = block
                for i in range(_N_LAYERS):
                    out = out @ arrays[f"weight{i}"] + arrays[f"bias{i}"]
                    out = np.tanh(out) if i + 1 < _N_LAYERS else out
                scores[first : first + _BLOCK] = ((out - block) ** 2).mean(axis=1)
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
