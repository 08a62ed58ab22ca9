"""Masked characters: windows of a text in which some characters are hidden, and the hidden ones to be told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from poolish import DataProviderBase


def probability_at(number: int, stages: Iterable[Any], last: float) -> float:
    """How many of the characters of train batch ``number`` are masked: what its stage says, ``last`` after them all."""
    return next((stage.mask_probability for stage in stages if number < stage.until), last)


def choose_masked(shape: tuple[int, int], probability: float, rng: np.random.Generator) -> np.ndarray:
    """Which characters are masked; at least one in each window, because a loss over none would be no number."""
    is_masked = rng.random(shape) < probability
    is_masked[np.arange(shape[0]), rng.integers(shape[1], size=shape[0])] |= ~is_masked.any(axis=1)
    return is_masked


class CharDiffusionProvider(DataProviderBase):
    """Masks the characters of ``input.txt``; the names of the shared config are attributes of it."""

    def setup(self) -> None:
        """Read the text once; its last ``val_fraction`` is `val`, the rest `train`."""
        text = (self.dataset_path / "input.txt").read_text(encoding="utf-8")
        self.vocabulary = "".join(sorted(set(text)))
        self.mask_token_id = len(self.vocabulary)
        tokens = np.searchsorted(np.array(list(self.vocabulary)), np.array(list(text))).astype(np.int64)
        n_train = round(len(tokens) * (1 - self.val_fraction))
        self.tokens = {"train": tokens[:n_train], "val": tokens[n_train:]}

    def build_meta(self) -> dict[str, Any]:
        """What the trainer needs to know to build its model and to read what it answers."""
        shape = [self.block_size]
        return {
            "training_type": "MLM",
            "vocab_size": len(self.vocabulary) + 1,
            "mask_token_id": self.mask_token_id,
            "vocabulary": self.vocabulary,
            "batch_schema": [
                {"name": "x", "dtype": "int64", "shape": shape, "role": "input"},
                {"name": "y", "dtype": "int64", "shape": shape, "role": "target"},
            ],
        }

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Windows from anywhere in the text, masked as the stage of this very batch asks."""
        # By the batch's number, not by a count kept here: a provider that is started again is in the same stage.
        probability = self.mask_probability
        if split == "train":
            probability = probability_at(self.batch_number(split), self.stages, probability)
        tokens = self.tokens[split]
        starts = rng.integers(len(tokens) - self.block_size + 1, size=(self.batch_size, 1))
        windows = tokens[starts + np.arange(self.block_size)]
        is_masked = choose_masked(windows.shape, probability, rng)
        return {
            "x": np.where(is_masked, self.mask_token_id, windows),
            "y": np.where(is_masked, windows, self.ignore_index),
        }
