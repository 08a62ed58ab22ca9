"""What counts as an array, a list or a dict in a row, whichever library made it.

torch is recognised without being imported: nobody can hold a tensor before torch is loaded.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poolish.errors import SchemaError
from poolish.rows import images
from poolish.rows.refusal import Refusal
from poolish.schema import column_name, numpy_dtype
from poolish.schema.arrow import MAX_NESTING
from poolish.schema.tensor import TENSOR_DTYPES

Array = np.ndarray[Any, Any]


def is_torch_tensor(value: object) -> bool:
    """Whether this is a ``torch.Tensor``."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Whether this is a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_torch_tensor(value)


def scalar(value: object) -> object:
    """The number in an array without dimensions; anything else as it is."""
    if isinstance(value, np.ndarray) and value.shape == ():
        return value[()]
    if is_torch_tensor(value) and value.ndim == 0:  # type: ignore[attr-defined]
        dtype, array = stored(value)
        return array[()] if dtype in ("bool", array.dtype.name) else value
    return value


def as_list(value: object) -> Sequence[Any] | None:
    """The elements, where a value is a list: lists, plain tuples, NumPy arrays of text or objects."""
    if isinstance(value, list) or (isinstance(value, tuple) and not is_named_tuple(value)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "USTO" and value.ndim > 0:
        listed: list[Any] = value.tolist()
        return listed
    return None


def as_dict(value: object) -> dict[str, Any] | None:
    """The parts, where a value is a record: mappings, dataclasses, named tuples."""
    if isinstance(value, Mapping):
        row = {_name(key): part for key, part in value.items()}
        if len(row) != len(value):
            raise Refusal("every key stands once", list(value), "rename the key that stands twice after normalising")
        return row
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    if is_named_tuple(value):
        return dict(value._asdict())  # type: ignore[attr-defined]
    return None


def _name(key: object) -> str:
    try:
        return column_name(key)
    except SchemaError:
        raise Refusal("keys are text that is not empty and has a UTF-8 form", key, "rename the key") from None


def held(value: Any, depth: int = 0) -> Any:
    """The value, or a copy where somebody could still change it: generators hand out one array again and again."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if is_torch_tensor(value):
        return value.detach().clone()
    if isinstance(value, bytearray):
        return bytes(value)
    if images.is_image(value):  # a file that is not decoded yet is decoded later, once its size has been checked
        return value if getattr(value, "tile", None) else value.copy()
    if depth > MAX_NESTING:  # it will be refused anyway
        return value
    if isinstance(value, list):
        if _UNCHANGING.issuperset(map(type, value)):
            return list(value)
        return [held(part, depth + 1) for part in value]
    if isinstance(value, dict):
        return {key: held(part, depth + 1) for key, part in value.items()}
    return value


_UNCHANGING = frozenset({int, float, bool, str, bytes, type(None)})


def is_dataclass(value: object) -> bool:
    """Whether this is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_named_tuple(value: object) -> bool:
    """Whether this is a named tuple: a record, where a plain tuple is a list."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def stored(value: Any) -> tuple[str, Array]:
    """The dtype's name, and the array that carries the bits, in native byte order, on the CPU.

    >>> stored(np.arange(2, dtype=">i4"))
    ('int32', array([0, 1], dtype=int32))
    """
    if is_torch_tensor(value):
        return _stored_tensor(value)
    array = np.asarray(value)
    if isinstance(value, np.ma.MaskedArray):
        raise Refusal(
            "a masked array hides values that a column would show", value, "fill it (value.filled(...)) first"
        )
    name = array.dtype.name
    if name not in TENSOR_DTYPES:
        raise Refusal(f"no column holds arrays of {name}", value, "convert it (astype) before append")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    carrier = numpy_dtype(name)
    return name, array if array.dtype == carrier else array.view(carrier)


def _stored_tensor(tensor: Any) -> tuple[str, Array]:
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or name not in TENSOR_DTYPES:
        advice = (
            "make it dense (to_dense())" if tensor.layout != torch.strided else "convert it (to(dtype)) before append"
        )
        raise Refusal(f"no column holds {tensor.layout} tensors of {name}", tensor, advice)
    carrier = numpy_dtype(name)
    try:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        if carrier.name != name:
            tensor = tensor.contiguous().view(torch.uint8 if carrier.itemsize == 1 else torch.int16)
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        rule = f"a column holds tensors that have values and one shape ({error})"
        raise Refusal(rule, type(tensor), "make it a plain tensor on the CPU") from error
    return name, array if array.dtype == carrier else array.view(carrier)
