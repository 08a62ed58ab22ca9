"""Hugging Face features to and from fields. The only place where ``datasets`` is imported for its types.

``datasets`` refuses Arrow's ``fixed_shape_tensor``, so tensors are translated here: rank 1 to ``List(length=n)``,
rank 2 to 5 to ``Array2D`` ... ``Array5D``; dtypes it lacks (bfloat16, float8) widen to float32, complex numbers
become pairs.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import SchemaError
from poolish.schema.types import Shape, canonical, dtype_and_shape, is_tensor

if TYPE_CHECKING:
    import datasets

    from poolish.schema.fields import Field


#: Where ``datasets`` keeps features in the metadata of a schema.
METADATA_KEY = b"huggingface"

#: No description of features is longer; anything longer is not ours.
MAX_HINT_BYTES = 1_000_000


def is_features(value: object) -> bool:
    """Whether this is a ``datasets.Features``; none can exist before datasets is loaded."""
    module = sys.modules.get("datasets")
    return module is not None and isinstance(value, module.Features)


def arrow_schema(features: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema, with the features in its metadata."""
    import datasets

    return datasets.Features(features).arrow_schema


def features_in(schema: pa.Schema) -> dict[str, Any]:
    """The features that ``datasets`` left in the metadata of a schema, by column.

    They are a hint for the way back to Hugging Face; anything else in the metadata is ignored.
    """
    try:
        hint = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}")[:MAX_HINT_BYTES])
        features = hint["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def with_feature(field: Field, feature: Any) -> Field:
    """The field, remembering the feature it came with: an Arrow type alone would bring back another one."""
    return field if feature is None else dataclasses.replace(field, feature=json.dumps(feature))


def to_features(fields: Iterable[Field]) -> datasets.Features:
    """Features whose Arrow types hold exactly what the fields hold."""
    import datasets

    hint = {field.name: _feature(field) for field in fields}
    return datasets.Features(hint)


def _feature(field: Field) -> Any:
    import datasets

    try:
        hint = json.loads(field.feature or "null")
        hinted = datasets.Features.from_dict({"feature": hint})
        if hint is not None and _agrees(hinted.arrow_schema.field("feature").type, field.type):
            return hinted["feature"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        hint = _json_or_none(field.feature)  # no whole feature, but it may say where the images are
    return _with_images(hint, field.type, field.name)


def _json_or_none(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _with_images(hint: Any, type_: pa.DataType, name: str) -> Any:
    """The feature for a type, with Image where a hint of the same form says so."""
    import datasets

    hint = hint if isinstance(hint, dict) else {}
    if hint.get("_type") == "Image" and kinds.is_large_binary(type_):
        return datasets.Image()
    if hint.get("_type") == "List" and kinds.is_large_list(type_):
        return datasets.List(_with_images(hint.get("feature"), type_.value_type, name))
    if hint and "_type" not in hint and kinds.is_struct(type_):
        return {field.name: _with_images(hint.get(field.name), field.type, name) for field in type_}
    return feature_of(type_, name)


def _agrees(hinted: pa.DataType, type_: pa.DataType) -> bool:
    """Whether a hinted feature holds what the column holds; a column that was cast may still carry its old hint."""
    if kinds.is_large_binary(type_) and kinds.is_struct(hinted):  # an image, kept as its bytes
        return [field.name for field in hinted] == ["bytes", "path"]
    if kinds.is_large_list(type_) and hasattr(hinted, "value_type") and not is_tensor(hinted):
        return _agrees(hinted.value_type, type_.value_type)
    return bool(canonical(hinted) == type_)


def feature_of(type_: pa.DataType, name: str) -> Any:
    """The feature for an Arrow type."""
    import datasets

    if is_tensor(type_):
        return _tensor_feature(*dtype_and_shape(type_), name)
    if kinds.is_struct(type_):
        return {field.name: feature_of(field.type, name) for field in type_}
    if kinds.is_large_list(type_):
        return datasets.List(feature_of(type_.value_type, name))
    if isinstance(type_, pa.BaseExtensionType):
        return feature_of(type_.storage_type, name)
    return datasets.Value(_value_name(type_))


def _value_name(type_: pa.DataType) -> str:
    if kinds.is_large_string(type_):
        return "string"
    if kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_):
        return "binary"
    return {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}.get(type_) or str(type_)


#: dtypes that ``datasets`` does not know, and the smallest one it knows that holds every value of them.
WIDENED = {"bfloat16": "float32", "float8_e4m3fn": "float32", "float8_e5m2": "float32"}
PAIRS = {"complex64": "float32", "complex128": "float64"}


def _tensor_feature(dtype: str, shape: Shape, name: str) -> Any:
    import datasets

    if dtype in PAIRS:
        dtype, shape = PAIRS[dtype], (*shape, 2)
    dtype = WIDENED.get(dtype, dtype)
    value = datasets.Value(dtype.replace("datetime64", "timestamp").replace("timedelta64", "duration"))
    if len(shape) == 0:
        return value
    if len(shape) == 1:
        return datasets.List(value, length=-1 if shape[0] is None else shape[0])
    arrays = {2: "Array2D", 3: "Array3D", 4: "Array4D", 5: "Array5D"}
    if len(shape) not in arrays:
        raise SchemaError(
            f"column {name!r}: Hugging Face has no feature for rank {len(shape)}; reshape it to rank 5 or less"
        )
    if None in shape[1:]:
        return _nested_lists(value, shape)
    return getattr(datasets, arrays[len(shape)])(shape=shape, dtype=dtype)


def without_arrays(feature: Any) -> Any:
    """Lists in lists in place of an Array2D and its like, which cannot hold a null where its first dimension varies."""
    import datasets

    is_array = hasattr(feature, "shape") and hasattr(feature, "dtype")
    return _nested_lists(datasets.Value(feature.dtype), feature.shape) if is_array else feature


def _nested_lists(value: Any, shape: Shape) -> Any:
    """Only the first dimension of an Array2D may vary, so several ragged dimensions become lists of lists."""
    import datasets

    for _ in shape:
        value = datasets.List(value)
    return value


def is_dataset(value: object) -> bool:
    """Whether this is a ``datasets.Dataset``; none can exist before datasets is loaded."""
    module = sys.modules.get("datasets")
    return module is not None and isinstance(value, module.Dataset)


def batches(dataset: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset as Arrow, without a detour through Python; selections and shuffles are respected."""
    metadata = dataset.features.arrow_schema.metadata
    if len(dataset) == 0:  # no rows, but columns, and they decide the schema
        yield pa.RecordBatch.from_pylist([], schema=dataset.features.arrow_schema)
        return
    if dataset._indices is None:
        yield from dataset.data.table.replace_schema_metadata(metadata).to_batches()
        return
    for table in dataset.with_format("arrow").iter(batch_size=10_000):
        yield from table.replace_schema_metadata(metadata).to_batches()
