"""What may stand in for a sample: nothing of a schema, something between two neighbours, a copy.

A sample is a dict, a tuple or list, or a single value; its *columns* are the values one level down. Numbers that
measure (floats) can be averaged. Integers are as often names (a class, a token, an id) as amounts, and the class
between cat and dog is no animal; so integers, text and all the rest are taken over from one sample as they are.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from poolish.errors import ConfigError

if TYPE_CHECKING:
    from poolish.schema import Field, Schema

Sample = Any


def copied(sample: Sample) -> Sample:
    """A copy that shares no memory with the sample: whoever holds that may change it in place."""
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
    torch = sys.modules.get("torch")  # nobody can hold a tensor before torch is loaded
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
        told = json.loads(feature or "null")
    except ValueError:
        return None
    kind = told.get("_type") if isinstance(told, dict) else None
    return kind if kind in ("Image", "Audio", "Video") else None
