"""Datasets that compose, and a loader whose order survives growth, crashes and a new world size.

``Loader`` is what trainers use. ``Dataset`` and its views write and combine datasets; batches and shards can be used
alone.
"""

from poolish.load.base import BaseDataset
from poolish.load.batch import Batch
from poolish.load.batching import RandomBatches, SequentialBatches, StratifiedBatches
from poolish.load.cached import CachedDataset
from poolish.load.cached import materialised as _materialised
from poolish.load.dataset import Dataset, Operations, check_index, provide
from poolish.load.loader import Loader
from poolish.load.media import CIFAR10, AudioDataset, ImageFolder, VisionDataset
from poolish.load.memory_cache import CacheAdvice, CacheStats
from poolish.load.memory_cache import fit as _fit
from poolish.load.micro_batches import AdaptiveBatches, GradientAccumulator
from poolish.load.padding import PaddedCollate
from poolish.load.resume_check import verify_resume
from poolish.load.shards import HorizontalShard, HybridShard, VerticalShard
from poolish.load.text import TextDataset
from poolish.load.views.composite import CompositeDataset
from poolish.load.views.filtered import FilteredDataset
from poolish.load.views.joined import JoinedDataset, joined
from poolish.load.views.single import (
    AdaptedDataset,
    ResilientDataset,
    ShuffledDataset,
    SubsettedDataset,
    TransformedDataset,
)

provide(Operations(CompositeDataset, _fit, _materialised))

#: Every class that looks at other datasets. The tests derive from it what is exported and must pass DatasetBehaviour.
VIEWS: tuple[type[Dataset], ...] = (
    AdaptedDataset,
    CachedDataset,
    CompositeDataset,
    FilteredDataset,
    JoinedDataset,
    ResilientDataset,
    ShuffledDataset,
    SubsettedDataset,
    TransformedDataset,
)

__all__ = [
    "CIFAR10",
    "AdaptedDataset",
    "AdaptiveBatches",
    "AudioDataset",
    "BaseDataset",
    "Batch",
    "CacheAdvice",
    "CacheStats",
    "CachedDataset",
    "CompositeDataset",
    "Dataset",
    "FilteredDataset",
    "GradientAccumulator",
    "HorizontalShard",
    "HybridShard",
    "ImageFolder",
    "JoinedDataset",
    "Loader",
    "PaddedCollate",
    "RandomBatches",
    "ResilientDataset",
    "SequentialBatches",
    "ShuffledDataset",
    "StratifiedBatches",
    "SubsettedDataset",
    "TextDataset",
    "TransformedDataset",
    "VerticalShard",
    "VisionDataset",
    "check_index",
    "joined",
    "verify_resume",
]
