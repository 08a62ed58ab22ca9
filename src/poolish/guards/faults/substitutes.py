"""Substitutes for a sample that could not be read: a placeholder, an interpolation, a copy, or a synthetic one.

A sample is a dict, a tuple or list, or a single value; its *columns* are the values one level down. Numbers that
measure (floats) can be averaged. Integers are as often names (a class, a token, an id) as amounts, and the class
between cat and dog is no animal; so integers, text and all the rest are taken over from one sample as they are.

Synthetic samples are drawn from statistics, for a batch of which nothing could be read. Each number is drawn by itself
from a normal distribution with the mean and variance of its column, cut to the range that is known; integers are
rounded, and other values are those of a good sample. That keeps shapes, types and scales, and nothing else: no relation
between columns survives. The statistics are a profile's, or the moments of the first good samples, element by element
where all have the same shape.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolish import torch_bridge
from poolish.concurrency import Locked
from poolish.errors import ConfigError
from poolish.seeds import generator

if TYPE_CHECKING:
    from poolish.schema import Field, Schema

Sample = Any


def copied(sample: Sample) -> Sample:
    """A copy that shares no memory with the sample: its owner may change it in place."""
    if type(sample) in _UNCHANGING:
        return sample
    if type(sample) is dict:  # spelled out for the usual samples: deepcopy takes three times as long
        return {name: copied(value) for name, value in sample.items()}
    if type(sample) is np.ndarray and not sample.dtype.hasobject:
        return sample.copy()
    return copy.deepcopy(sample)


_UNCHANGING = {int, float, bool, str, bytes, complex, type(None)}


def columns(sample: Sample) -> dict[Any, Any]:
    """The values of a sample by name, place, or "" where it is a single value.

    >>> columns({"x": 1.0}), columns((1.0, 3)), columns(2.5)
    ({'x': 1.0}, {0: 1.0, 1: 3}, {'': 2.5})
    """
    if isinstance(sample, Mapping):
        return dict(sample)
    if isinstance(sample, (tuple, list)):
        return dict(enumerate(sample))
    return {"": sample}


def rebuilt(sample: Sample, values: Mapping[Any, Any]) -> Sample:
    """A sample of the same form, with these columns.

    >>> rebuilt((1.0, 3), {0: 5.0, 1: 4})
    (5.0, 4)
    """
    if isinstance(sample, Mapping):
        return dict(values)
    if isinstance(sample, (tuple, list)):
        kind = type(sample)
        return kind(*values.values()) if hasattr(kind, "_fields") else kind(values.values())
    return values[""]


def between(near: Sample, far: Sample, share: float) -> Sample:
    """The sample ``share`` of the way from ``near`` to ``far``: floats are averaged, all else is that of ``near``.

    >>> between({"speed": 1.0, "label": 3}, {"speed": 2.0, "label": 9}, 0.25)
    {'speed': 1.25, 'label': 3}
    """
    ours, theirs = columns(near), columns(far)
    if type(near) is not type(far) or ours.keys() != theirs.keys():
        return near
    return rebuilt(near, {name: _between(value, theirs[name], share) for name, value in ours.items()})


def _between(near: Any, far: Any, share: float) -> Any:
    if type(near) is not type(far) or not _measures(near) or not _measures(far):
        return near
    if np.shape(near) != np.shape(far) or getattr(near, "dtype", None) != getattr(far, "dtype", None):
        return near
    mixed = near + (far - near) * share
    return mixed.astype(near.dtype) if isinstance(near, np.ndarray | np.generic) else mixed


def _measures(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "fc"
    torch = torch_bridge.loaded()
    if torch is not None and isinstance(value, torch.Tensor):
        return bool(value.is_floating_point())
    return isinstance(value, float)


def placeholder_of(schema: Schema) -> dict[str, Any]:
    """A row of nothing: zeros, False, empty text and empty lists; dimensions that vary have length 0.

    >>> from poolish.schema import Field, Schema
    >>> placeholder_of(Schema([Field("x", "float32", shape=(2,)), Field("text", "string"), Field("label", "int64")]))
    {'x': array([0., 0.], dtype=float32), 'text': '', 'label': 0}
    """
    return {field.name: _nothing(field) for field in schema}


def _nothing(field: Field) -> Any:
    from poolish.schema import numpy_dtype, readable

    if (media := _media(field.feature)) is not None:
        raise ConfigError(f"column {field.name!r}: no bytes are no {media}; pass placeholder= with a whole sample")
    if field.shape is not None:
        shape = tuple(size or 0 for size in field.shape)
        return readable(np.zeros(shape, numpy_dtype(field.dtype)), field.dtype)
    return _zero(field.type, field.name)


def _zero(type_: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_struct(type_):
        return {part.name: _zero(part.type, name) for part in type_}
    if kinds.is_large_list(type_) or kinds.is_list(type_) or kinds.is_fixed_size_list(type_):
        return []
    for is_it, zero in ((kinds.is_null, None), (kinds.is_boolean, False), (kinds.is_floating, 0.0),
                        (kinds.is_large_string, ""), (kinds.is_large_binary, b"")):  # fmt: skip
        if is_it(type_):
            return zero
    try:
        return pa.scalar(0, type_).as_py()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(f"column {name!r}: {type_} has no zero; pass placeholder= with a whole sample") from error


def _media(feature: str | None) -> str | None:
    """``Image``, ``Audio`` or ``Video`` where that is what Hugging Face makes of a column."""
    try:
        described = json.loads(feature or "null")
    except ValueError:
        return None
    kind = described.get("_type") if isinstance(described, dict) else None
    return kind if kind in ("Image", "Audio", "Video") else None


#: Moments of this many samples are good to 3 % of a standard deviation; after them reading costs nothing extra again.
N_LEARNED = 1_000


@dataclass
class ElementMoments:
    """Count, mean, variance and range of a column, merged batch by batch."""

    n: int
    mean: Any
    squares: Any  #: the sum of squared distances from the mean
    min: Any
    max: Any

    @property
    def variance(self) -> Any:
        """The variance of what was seen."""
        return self.squares / self.n

    @classmethod
    def of(cls, values: NDArray[Any]) -> ElementMoments:
        """Of the samples in the first dimension.

        >>> ElementMoments.of(np.array([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]])).mean
        array([3., 0.])
        """
        values = values.astype(np.float64)
        mean = values.mean(axis=0)
        return cls(len(values), mean, ((values - mean) ** 2).sum(axis=0), values.min(axis=0), values.max(axis=0))

    def merge(self, other: ElementMoments) -> ElementMoments:
        """The moments of both, numerically stable (Chan)."""
        n, apart = self.n + other.n, other.mean - self.mean
        squares = self.squares + other.squares + apart**2 * (self.n * other.n / n)
        lowest, highest = np.minimum(self.min, other.min), np.maximum(self.max, other.max)
        return ElementMoments(n, self.mean + apart * (other.n / n), squares, lowest, highest)


class Synthesizer(Locked):
    """Learns what samples look like, and draws new ones; the same for the same seed, row and knowledge.

    >>> synthesizer = Synthesizer(seed=0)
    >>> synthesizer.learn([{"x": 1.0, "text": "a"}, {"x": 3.0, "text": "b"}])
    >>> sample = synthesizer.draw(17)
    >>> 1 <= sample["x"] <= 3, sample["text"]
    (True, 'a')
    """

    def __init__(self, *, seed: int, profile: Any = None) -> None:
        super().__init__()
        self._seed, self._profile = seed, profile
        self._template: Sample | None = None
        self._expected: Sample | None = None
        self._moments: dict[Any, ElementMoments | None] = {}
        self._n_left = N_LEARNED

    @property
    def knows_enough(self) -> bool:
        """Whether there is a sample to imitate, and statistics to draw from."""
        return self._model() is not None and (self._profile is not None or bool(self._moments))

    def expect(self, template: Sample) -> None:
        """Set what a sample looks like, until a good one has been seen."""
        self._expected = template

    def learn(self, samples: Sequence[Sample]) -> None:
        """Take in good samples, the first thousand of them."""
        if self._n_left <= 0 or not len(samples):
            return
        with self._lock:
            self._n_left -= len(samples)
            if self._template is None:
                self._template = copied(samples[0])
            if self._profile is None:
                found = {name: _moments([columns(s).get(name) for s in samples]) for name in columns(self._template)}
                self._moments = {name: _merged(self._moments, name, new) for name, new in found.items()}

    def draw(self, row: int) -> Sample:
        """A sample in place of that row."""
        rng = generator(self._seed, "synthetic", row)
        template = copied(self._model())
        drawn = {name: self._drawn(name, value, rng) for name, value in columns(template).items()}
        return rebuilt(template, drawn)

    def _model(self) -> Sample | None:
        """What a sample looks like: a good one, else what the schema says, else the columns of the profile."""
        if self._template is not None or self._expected is not None:
            return self._template if self._template is not None else self._expected
        if not hasattr(self._profile, "__iter__"):
            return None
        return {name: 0.0 for name in self._profile if self._known(name) is not None} or None

    def _drawn(self, name: Any, like: Any, rng: np.random.Generator) -> Any:
        values, known = _numbers(like), self._known(name)
        if values is None or known is None:
            return like
        spread = np.sqrt(np.maximum(np.asarray(known.variance, np.float64), 0))
        mean = np.asarray(known.mean, np.float64)
        drawn = mean + spread * rng.standard_normal(np.broadcast_shapes(mean.shape, values.shape))
        low, high = (getattr(known, side, None) for side in ("min", "max"))
        if low is not None and high is not None:
            drawn = np.clip(drawn, low, high)
        return _typed(drawn, like, values.dtype)

    def _known(self, name: Any) -> Any:
        if self._profile is None:
            return self._moments.get(name)
        try:
            column = self._profile[name]
        except KeyError:
            return None
        known: list[Any] = [getattr(column, word, None) for word in _NEEDED]
        has_both = all(isinstance(value, (int, float, np.ndarray, np.generic)) for value in known)
        # The moments of text, and of nothing but nulls, are NaN.
        return column if has_both and all(np.isfinite(value).all() for value in known) else None


_NEEDED = ("mean", "variance")


def _moments(values: list[Any]) -> ElementMoments | None:
    """The moments of a column; None if it holds no numbers, or not of one shape."""
    if any(_numbers(value) is None for value in values) or len({np.shape(value) for value in values}) != 1:
        return None
    stacked = np.stack([np.asarray(value) for value in values])
    return ElementMoments.of(stacked) if np.isfinite(stacked).all() else None


def _merged(known: Mapping[Any, ElementMoments | None], name: Any, new: ElementMoments | None) -> ElementMoments | None:
    old = known.get(name, new)
    if old is new or new is None or old is None or np.shape(old.mean) != np.shape(new.mean):
        return old
    return old.merge(new)


def _numbers(value: Any) -> NDArray[Any] | None:
    """The value as an array, if it is a number or an array of real numbers."""
    if isinstance(value, (str, bytes, list, tuple, Mapping)) or value is None:
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor on a device, or what is no array at all
        return None
    return array if array.dtype.kind in "iufb" else None


def _typed(drawn: NDArray[np.float64], like: Any, dtype: np.dtype[Any]) -> Any:
    """Drawn numbers as the type of a good value."""
    if dtype.kind == "b":
        drawn = np.asarray(drawn >= 0.5)
    elif dtype.kind in "iu":
        drawn = np.clip(np.rint(drawn), *_float_limits(dtype))
    array = drawn.astype(dtype)
    if isinstance(like, (bool, int, float)) and not isinstance(like, np.generic):
        return array.item() if array.ndim == 0 else array
    if isinstance(like, np.ndarray):
        return array
    return array[()] if isinstance(like, np.generic) else _as_tensor(array, like)


def _as_tensor(array: NDArray[Any], like: Any) -> Any:
    return like.new_tensor(array) if hasattr(like, "new_tensor") else array


def _float_limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The range of an integer type in floats: 2**63 - 1 has none, and the next one up would not fit."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return float(low), float(high) if int(float(high)) <= high else math.nextafter(float(high), 0.0)
