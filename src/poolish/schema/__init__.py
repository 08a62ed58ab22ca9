"""One description of a row or batch, and the Arrow types that hold it."""

from poolish.schema.fields import Field, Schema, column_name
from poolish.schema.types import (
    TensorType,
    bytes_of,
    canonical,
    describe,
    dtype_and_shape,
    is_resolved,
    is_tensor,
    numpy_dtype,
    offsets_of,
    readable,
    tensor_type,
)

__all__ = [
    "Field",
    "Schema",
    "TensorType",
    "bytes_of",
    "canonical",
    "column_name",
    "describe",
    "dtype_and_shape",
    "is_resolved",
    "is_tensor",
    "numpy_dtype",
    "offsets_of",
    "readable",
    "tensor_type",
]
