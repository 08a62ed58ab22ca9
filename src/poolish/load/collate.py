"""Samples in, one batch out: numbers and arrays are stacked, text stays a list, dicts and tuples are collated inside.

Arrays of one shape become one array; of several shapes a list of arrays. Namedtuples and dataclasses are collated field
by field and keep their class. The output is NumPy's; ``tensors`` converts it. Any other sample becomes the column
``value``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poolish.errors import SchemaError
from poolish.load.structures import field_names, field_values, is_structure, map_columns, rebuilt
from poolish.torch_bridge import from_array, is_torch_tensor


def collate(samples: Sequence[Any]) -> Any:
    """One batch of samples that are alike.

    >>> collate([{"x": np.zeros(2), "text": "rye"}, {"x": np.ones(2), "text": "wheat"}])
    {'x': array([[0., 0.], [1., 1.]]), 'text': ['rye', 'wheat']}
    >>> collate([(1.0, 0), (2.0, 1)])
    (array([1., 2.]), array([0, 1]))
    """
    first = samples[0] if samples else {}
    if isinstance(first, Mapping):
        return _columns(samples, first)
    if is_structure(first):
        return _structure(samples, first)
    if isinstance(first, tuple):
        return _tuple(samples, first)
    return {"value": column(samples)}


def _columns(samples: Sequence[Mapping[str, Any]], first: Mapping[str, Any]) -> dict[str, Any]:
    names = list(first)
    for i, sample in enumerate(samples):
        if not isinstance(sample, Mapping) or sample.keys() != first.keys():
            has = list(sample) if isinstance(sample, Mapping) else type(sample).__name__
            raise SchemaError(f"sample {i} of the batch has {has}, the first has {names}; pass a collate_fn")
    return {name: column([sample[name] for sample in samples]) for name in names}


def _structure(samples: Sequence[Any], first: Any) -> Any:
    for i, sample in enumerate(samples):
        if type(sample) is not type(first):
            raise SchemaError(
                f"sample {i} of the batch is of {type(sample).__name__}, the first is of {type(first).__name__} with "
                f"the fields {list(field_names(first))}; make them one class, or pass a collate_fn"
            )
    return rebuilt(first, (column(values) for values in zip(*map(field_values, samples), strict=True)))


def _tuple(samples: Sequence[Any], first: tuple[Any, ...]) -> tuple[Any, ...]:
    for i, sample in enumerate(samples):
        if not isinstance(sample, tuple) or len(sample) != len(first):
            raise SchemaError(
                f"sample {i} of the batch is no tuple of {len(first)} as the first one is; pass a collate_fn"
            )
    return tuple(column(list(values)) for values in zip(*samples, strict=True))


def column(values: Sequence[Any]) -> Any:
    """One column: an array where values are numbers or arrays of one shape, else a list."""
    first: Any = values[0] if values else None
    if isinstance(first, (bool, int, float, np.generic)) and not isinstance(first, (np.str_, np.bytes_)):
        return _numbers(values)
    if isinstance(first, np.ndarray) and first.dtype.kind in "biufc":
        alike = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return np.stack(values) if alike else list(values)
    if is_torch_tensor(first):
        import torch

        alike = all(is_torch_tensor(v) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return torch.stack(list(values)) if alike else list(values)
    if isinstance(first, Mapping) and all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
        return {name: column([value[name] for value in values]) for name in first}
    if type(first) is tuple and all(type(v) is tuple and len(v) == len(first) for v in values):
        return tuple(column(list(inner)) for inner in zip(*values, strict=True))
    if is_structure(first) and all(type(v) is type(first) for v in values):
        return rebuilt(first, (column(inner) for inner in zip(*map(field_values, values), strict=True)))
    return list(values)


def _numbers(values: Sequence[Any]) -> Any:
    """Whole numbers, fractions or flags; anything among them that is none of these leaves a list."""
    if any(isinstance(value, (str, bytes)) or value is None for value in values):
        return list(values)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):  # arrays among the numbers, or a number beyond 64 bits
        return list(values)
    return array if array.dtype.kind in "biufcmM" else list(values)


def chosen(columns: Any, numbers: Any) -> Any:
    """Some rows of a batch, by their numbers in it."""
    if isinstance(columns, Mapping):
        return {name: chosen(values, numbers) for name, values in columns.items()}
    if is_structure(columns):
        return rebuilt(columns, (chosen(values, numbers) for values in field_values(columns)))
    if isinstance(columns, tuple):
        return tuple(chosen(values, numbers) for values in columns)
    if isinstance(columns, np.ndarray) or is_torch_tensor(columns):
        return columns[numbers]
    return columns.take(numbers) if hasattr(columns, "take") else [columns[number] for number in numbers]


def empty_like(columns: Any) -> Any:
    """A batch of no rows, in the form of one that has some."""
    if isinstance(columns, Mapping):
        return {name: empty_like(values) for name, values in columns.items()}
    if is_structure(columns):
        return rebuilt(columns, map(empty_like, field_values(columns)))
    if isinstance(columns, tuple):
        return tuple(empty_like(values) for values in columns)
    try:
        return columns[:0]
    except (TypeError, IndexError):  # a collate_fn may give anything, such as one number for the whole batch
        return columns


def tensors(columns: Any) -> Any:
    """A batch with its numeric arrays as tensors, however nested; everything else stays as it is."""
    return map_columns(_tensor, columns)


def _tensor(values: Any) -> Any:
    is_numeric = isinstance(values, np.ndarray) and values.dtype.kind in "biufc"
    return from_array(values) if is_numeric else values
