"""Namedtuples and dataclasses as structures of fields: taken apart, and built again with other values.

A batch of such samples is an object of the same class with columns for values. It is built without calling the class:
``__init__``, ``__new__`` and ``__post_init__`` have seen every sample, and would mistake a column for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from poolish import torch_bridge


def is_namedtuple(value: object) -> bool:
    """Whether a value is a tuple whose fields have names."""
    return isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple)


def is_structure(value: object) -> bool:
    """Whether a value is a namedtuple, or an object of a dataclass."""
    return is_namedtuple(value) or (is_dataclass(value) and not isinstance(value, type))


def field_names(value: Any) -> tuple[str, ...]:
    """The fields of a structure, in their order."""
    return value._fields if is_namedtuple(value) else tuple(field.name for field in fields(value))


def field_values(value: Any) -> tuple[Any, ...]:
    """What the fields of a structure hold.

    >>> from typing import NamedTuple
    >>> class Loaf(NamedTuple):
    ...     flour: str
    ...     grams: int
    >>> field_values(Loaf("rye", 900))
    ('rye', 900)
    """
    return tuple(value) if is_namedtuple(value) else tuple(getattr(value, name) for name in field_names(value))


def rebuilt(like: Any, values: Iterable[Any]) -> Any:
    """A structure of the class of ``like`` with other values, in the order of its fields; frozen ones as well."""
    if is_namedtuple(like):
        return tuple.__new__(type(like), values)
    made = object.__new__(type(like))
    for name, value in zip(field_names(like), values, strict=True):
        object.__setattr__(made, name, value)
    return made


def map_columns(change: Callable[[Any], Any], columns: Any) -> Any:
    """A batch with ``change`` applied to every column, also inside dicts, tuples, dataclasses and lists of columns."""
    if isinstance(columns, Mapping):
        return {name: map_columns(change, values) for name, values in columns.items()}
    if is_structure(columns):
        return rebuilt(columns, (map_columns(change, values) for values in field_values(columns)))
    if type(columns) is tuple:
        return tuple(map_columns(change, values) for values in columns)
    if isinstance(columns, list) and columns and _is_array(columns[0]):
        return [change(values) for values in columns]
    return change(columns)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or torch_bridge.is_torch_tensor(value)
