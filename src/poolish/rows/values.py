"""Python values of any library: recognise them, copy them, and infer the Arrow type of their column.

torch and PIL are recognised without importing them: their objects exist only after the library is loaded. The first
non-null value of a column decides its type. Later values resolve what was open: a column of nulls, an empty list, and,
within the first append, whether arrays have one shape or are ragged. ``encode`` decides whether a value fits.

PIL images become PNG. Size and format are checked before decoding, because a header of a hundred bytes can promise a
billion pixels; a truncated file is an error, never grey pixels. Only modes that PNG stores exactly are accepted.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish import torch_bridge
from poolish.errors import LimitExceeded, SchemaError
from poolish.rows.validate import Limits, ValueRejected
from poolish.schema import column_name, dtype_and_shape, is_tensor, numpy_dtype, tensor_type
from poolish.schema.types import MAX_NESTING, TENSOR_DTYPES, Shape
from poolish.torch_bridge import is_torch_tensor

Array = np.ndarray[Any, Any]


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
            raise ValueRejected(
                "every key stands once", list(value), "rename the key that stands twice after normalising"
            )
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
        raise ValueRejected("keys are text that is not empty and has a UTF-8 form", key, "rename the key") from None


def copy_mutable(value: Any, depth: int = 0) -> Any:
    """The value, or a copy where the caller could still change it: generators hand out one array again and again."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if is_torch_tensor(value):
        return value.detach().clone()
    if isinstance(value, bytearray):
        return bytes(value)
    if is_image(value):  # a file that is not decoded yet is decoded later, once its size has been checked
        return value if getattr(value, "tile", None) else value.copy()
    if depth > MAX_NESTING:  # it will be refused anyway
        return value
    if isinstance(value, list):
        if _UNCHANGING.issuperset(map(type, value)):
            return list(value)
        return [copy_mutable(part, depth + 1) for part in value]
    if isinstance(value, dict):
        return {key: copy_mutable(part, depth + 1) for key, part in value.items()}
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
        raise ValueRejected(
            "a masked array hides values that a column would show", value, "fill it (value.filled(...)) first"
        )
    name = array.dtype.name
    if name not in TENSOR_DTYPES:
        raise ValueRejected(f"no column holds arrays of {name}", value, "convert it (astype) before append")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    carrier = numpy_dtype(name)
    return name, array if array.dtype == carrier else array.view(carrier)


def _stored_tensor(tensor: Any) -> tuple[str, Array]:
    torch = torch_bridge.loaded()
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or name not in TENSOR_DTYPES:
        advice = (
            "make it dense (to_dense())" if tensor.layout != torch.strided else "convert it (to(dtype)) before append"
        )
        raise ValueRejected(f"no column holds {tensor.layout} tensors of {name}", tensor, advice)
    carrier = numpy_dtype(name)
    try:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        if carrier.name != name:
            tensor = tensor.contiguous().view(torch.uint8 if carrier.itemsize == 1 else torch.int16)
        array: Array = tensor.numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        rule = f"a column holds tensors that have values and one shape ({error})"
        raise ValueRejected(rule, type(tensor), "make it a plain tensor on the CPU") from error
    return name, array if array.dtype == carrier else array.view(carrier)


FORMATS = frozenset({"PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"})
_EXACT_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"})
_DECODED_BYTES = {"1": 1, "L": 1, "P": 1, "LA": 2, "I;16": 2, "RGB": 4, "RGBA": 4, "I": 4}


def is_image(value: object) -> bool:
    """Whether this is a ``PIL.Image.Image``; none can exist before PIL is loaded."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def encode_png(image: Any, limits: Limits) -> bytes:
    """The image as a PNG that decodes to exactly the same pixels."""
    _check_size(image, limits)
    _check_form(image)
    _load(image)
    if image.mode == "I":
        image = _in_16_bits(image)
    sink = io.BytesIO()
    image.save(sink, "PNG")
    return sink.getvalue()


def _in_16_bits(image: Any) -> Any:
    """32-bit grey values as the 16 bits that PNG has, where none is lost."""
    if not all(0 <= edge <= 65535 for edge in image.getextrema()):
        raise ValueRejected("PNG holds 16 bits a pixel", image, "convert it to 16 bits, or append np.asarray(image)")
    return image.convert("I;16")


def _check_size(image: Any, limits: Limits) -> None:
    n_pixels = image.width * image.height
    n_bytes = n_pixels * _DECODED_BYTES.get(image.mode, 4)
    if n_pixels > limits.image_pixels or n_bytes > limits.image_bytes:
        rule = f"an image has at most {limits.image_pixels:,} pixels and {limits.image_bytes:,} bytes decoded"
        larger = f"Limits(image_pixels={n_pixels}, image_bytes={n_bytes})"
        raise ValueRejected(
            rule, image, f"resize it, or raise the limit: DatasetBuffer(limits={larger})", LimitExceeded
        )


def _check_form(image: Any) -> None:
    if image.format is not None and image.format not in FORMATS:
        raise ValueRejected(
            f"images come from {', '.join(sorted(FORMATS))}", image, f"convert the {image.format} file first"
        )
    if image.width == 0 or image.height == 0:
        raise ValueRejected("an image has at least one pixel", image, "leave the sample out")
    if getattr(image, "n_frames", 1) > 1:
        raise ValueRejected(
            "an image has one frame", image, "append [frame.copy() for frame in PIL.ImageSequence.Iterator(image)]"
        )
    if image.mode not in _EXACT_MODES:
        raise ValueRejected(
            f"PNG cannot hold mode {image.mode} exactly", image, "convert it (image.convert('RGB')) first"
        )


def _load(image: Any) -> None:
    """Decode now, and refuse a truncated file even where the process lets PIL fill it with grey."""
    from PIL import ImageFile

    lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueRejected(
            f"the image cannot be decoded ({error})", image, "leave the sample out or repair the file"
        ) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient


def type_of(value: object) -> pa.DataType:
    """The type of column that a value asks for; parts that only hold None stay open (``pa.null()``).

    >>> type_of({"x": 1.5, "tags": []})
    StructType(struct<x: double, tags: large_list<item: null>>)
    """
    return widen(pa.null(), value)


#: What the usual values need no further look for.
_PYTHON_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
}


def widen(known: pa.DataType, value: object, depth: int = 0) -> pa.DataType:
    """The type after one more value: open parts are settled, shapes that differ become ragged, nothing else changes."""
    if depth > MAX_NESTING:
        raise ValueRejected(
            f"values nest at most {MAX_NESTING} deep", "a deeper one", "flatten it before append", LimitExceeded
        )
    if value is None:
        return known
    if type(value) in _PYTHON_TYPES:
        return _PYTHON_TYPES[type(value)] if kinds.is_null(known) else known
    if is_array(value) and not isinstance(value, np.generic):
        return _widen_tensor(known, value, depth)
    row = as_dict(value)
    if row is not None:
        return _widen_struct(known, row, depth)
    values = as_list(value)
    if values is not None:
        return _widen_list(known, values, depth)
    return _scalar_type(value) if kinds.is_null(known) else known


def _widen_tensor(known: pa.DataType, value: object, depth: int) -> pa.DataType:
    values = as_list(value)
    if values is not None:
        return _widen_list(known, values, depth)
    dtype, array = stored(value)
    if array.shape == () and dtype in _SCALAR_DTYPES:
        return pa.from_numpy_dtype(array.dtype) if kinds.is_null(known) else known
    if kinds.is_null(known):
        return tensor_type(dtype, array.shape)
    if not is_tensor(known):
        return known
    known_dtype, shape = dtype_and_shape(known)
    if known_dtype != dtype or len(shape) != len(array.shape):
        return known
    return tensor_type(dtype, _common_shape(shape, array.shape))


def _common_shape(a: Shape, b: Shape) -> Shape:
    """The sizes that two shapes of one rank share; None for the others."""
    return tuple(size if size == other else None for size, other in zip(a, b, strict=True))


_SCALAR_DTYPES = frozenset(
    ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"]
)


def _widen_list(known: pa.DataType, values: Sequence[object], depth: int) -> pa.DataType:
    if not kinds.is_null(known) and not kinds.is_large_list(known):
        return known
    element = pa.null() if kinds.is_null(known) else known.value_type
    return pa.large_list(widen_all(element, values, depth + 1))


def _widen_struct(known: pa.DataType, row: dict[str, object], depth: int) -> pa.DataType:
    if kinds.is_null(known):
        return pa.struct([pa.field(name, widen(pa.null(), value, depth + 1)) for name, value in row.items()])
    if not kinds.is_struct(known):
        return known
    return pa.struct([pa.field(field.name, widen(field.type, row.get(field.name), depth + 1)) for field in known])


def widen_all(known: pa.DataType, values: Sequence[object], depth: int = 0) -> pa.DataType:
    """The type after many values; stops looking as soon as no value could change it."""
    for i, value in enumerate(values):
        if _is_settled(known):
            return known
        try:
            known = widen(known, value, depth)
        except ValueRejected as rejection:
            rejection.index = i
            raise
    return known


def _is_settled(type_: pa.DataType) -> bool:
    """Plain scalars cannot change any more; nested types may hold open parts, tensors may become ragged."""
    return not (kinds.is_null(type_) or is_tensor(type_) or kinds.is_nested(type_))


def _scalar_type(value: object) -> pa.DataType:
    if isinstance(value, (bool, np.bool_)):
        return pa.bool_()
    if isinstance(value, np.generic) and value.dtype.kind in "iuf":
        return _numpy_type(value)
    subclass_of = next((each for each in (int, float, str, bytes) if isinstance(value, each)), None)
    if subclass_of is not None:
        return _PYTHON_TYPES[subclass_of]
    if isinstance(value, bytearray) or is_bytes_view(value) or is_image(value):
        return pa.large_binary()
    if isinstance(value, (complex, np.complexfloating)):
        return tensor_type("complex128" if isinstance(value, complex) else value.dtype.name, ())
    return _other_type(value)


def _other_type(value: object) -> pa.DataType:
    """Times, decimals, UUIDs: whatever else Arrow takes for one value."""
    try:
        type_ = pa.scalar(value).type
    except (pa.ArrowException, TypeError, ValueError):
        type_ = None
    if type_ is None or isinstance(value, pa.Scalar) or kinds.is_nested(type_) or kinds.is_null(type_):
        raise ValueRejected(
            "a cell holds numbers, text, bytes, times, arrays, images, lists and dicts of these",
            value,
            "convert it, or register a normalizer for its class",
        )
    if kinds.is_decimal(type_):
        return pa.decimal128(38, type_.scale)  # the first value decides the scale; larger numbers of it may come
    if kinds.is_timestamp(type_) and getattr(value, "unit", None) == "ns":  # a pandas Timestamp
        return pa.timestamp("ns", type_.tz)
    return type_


def _numpy_type(value: np.generic) -> pa.DataType:
    try:
        return pa.from_numpy_dtype(value.dtype)
    except pa.ArrowNotImplementedError:
        raise ValueRejected(f"Arrow has no {value.dtype.name}", value, "convert it to float64 before append") from None


def resolve_null_type(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """``known`` with its open parts taken from ``other``.

    >>> resolve_null_type(pa.large_list(pa.null()), pa.large_list(pa.int64()))
    LargeListType(large_list<item: int64>)
    """
    if kinds.is_null(known):
        return other
    if kinds.is_large_list(known) and kinds.is_large_list(other):
        return pa.large_list(resolve_null_type(known.value_type, other.value_type))
    if kinds.is_struct(known) and kinds.is_struct(other):
        theirs = {field.name: field.type for field in other}
        return pa.struct([pa.field(f.name, resolve_null_type(f.type, theirs.get(f.name, pa.null()))) for f in known])
    return known


def ragged(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The tensor type that holds both, where only their shapes differ; otherwise ``known``."""
    if known == other or not (is_tensor(known) and is_tensor(other)):
        return known
    (dtype, shape), (other_dtype, other_shape) = dtype_and_shape(known), dtype_and_shape(other)
    if dtype != other_dtype or len(shape) != len(other_shape):
        return known
    return tensor_type(dtype, _common_shape(shape, other_shape))


def is_bytes_view(value: object) -> bool:
    """Whether this is a memoryview of bytes, not of numbers."""
    return isinstance(value, memoryview) and value.format in ("B", "b", "c")


def image_hint(values: Any) -> str | None:
    """Hugging Face's feature for a column of images, or of lists of images; None for any other."""
    if not isinstance(values, (list, tuple)):
        return None
    feature = next((hint for hint in map(_image_hint, values) if hint is not None), None)
    return None if feature is None else json.dumps(feature)


def _image_hint(value: Any, depth: int = 0) -> Any:
    """Hugging Face's feature for an image, or for a list of images; None for anything else."""
    if is_image(value):
        return {"_type": "Image"}
    if isinstance(value, (list, tuple)) and value and depth < MAX_NESTING:
        inner = _image_hint(value[0], depth + 1)
        return None if inner is None else {"_type": "List", "feature": inner}
    if isinstance(value, dict) and depth < MAX_NESTING:
        parts = {name: _image_hint(part, depth + 1) for name, part in value.items()}
        return parts if any(part is not None for part in parts.values()) else None
    return None
