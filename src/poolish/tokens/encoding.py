"""Values to tokens, exactly or not at all, and one ``append`` checked as a whole before a byte of it is written.

The compiled kernels read the usual values themselves. Everything else comes here: to be converted (nested lists,
big-endian arrays, tensors, Arrow scalars) or to be refused with a sentence.

The rule of order is one comparison: each field-write lies behind the one before it, by (step, type). Within a step that
is the declaration order; a later append may go on with the last step, behind its last field.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish import kernels
from poolish.arguments import is_whole
from poolish.errors import NumberTooLarge, PoolishError, SchemaError
from poolish.tokens.fields import TokenField, type_of
from poolish.torch_bridge import is_torch_tensor

Int64 = NDArray[np.int64]

MAX_NESTING = 8


def encode_value(field: TokenField, value: Any) -> tuple[Int64, int]:
    """The tokens of one field-write, and whether it was one number (SCALAR) or many (SEQUENCE)."""
    flat, shape = flatten(field, value)
    _check_shape(field, shape, value)
    return encode_flat(field, flat), kernels.SEQUENCE if shape else kernels.SCALAR


def flatten(field: TokenField, value: Any, depth: int = 0) -> tuple[NDArray[Any] | list[Any], tuple[int, ...]]:
    """The numbers of a value in a row, as an array or a plain list, and the shape they came in."""
    value = as_array(field, value)
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1), value.shape
    if isinstance(value, (list, tuple)):
        return _flatten_list(field, value, depth)
    return [value], ()


def as_array(field: TokenField, value: Any) -> Any:
    """Arrays and everything that is one inside as an array of native numbers; anything else as it is."""
    if is_torch_tensor(value):
        value = _from_torch(field, value)
    elif isinstance(value, (pa.Array, pa.ChunkedArray, pa.Scalar)):
        value = _from_arrow(field, value)
    elif _is_arrow_series(value):
        value = _from_arrow(field, pa.chunked_array(value))
    elif not isinstance(value, (np.ndarray, list, tuple, int, float, str, bytes, np.generic)) and _is_arraylike(value):
        _refuse_missing(field, value)
        value = np.asarray(value)
    return native(field, value) if isinstance(value, np.ndarray) else value


def native(field: TokenField, array: NDArray[Any]) -> NDArray[Any]:
    """An array of numbers in this machine's byte order and of at most 8 bytes each, with the same values."""
    if array.dtype.kind not in "biuf":
        raise refusal(field, f"holds numbers, not {array.dtype}", array)
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise refusal(field, "takes no masked values", array)
    if array.dtype.itemsize > 8:  # long double
        narrow = array.astype(np.float64)
        if not np.array_equal(narrow.astype(array.dtype), array, equal_nan=True):
            raise refusal(field, "keeps float64 bits, and these are more precise", array)
        return narrow
    plain = np.asarray(array)  # of subclasses, the numbers
    return plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))


def encode_flat(field: TokenField, flat: NDArray[Any] | list[Any]) -> Int64:
    """Numbers in a row as tokens."""
    if isinstance(flat, list):
        kinds = set(map(type, flat))
        if kinds <= {float} or kinds <= {bool}:
            flat = np.array(flat, np.float64 if kinds <= {float} else np.bool_)
        else:
            return np.array([_encode_number(field, number) for number in flat], np.int64)
    tokens, bad = kernels.encode(flat, *field.slot[1:5])
    if bad >= 0:
        raise cannot_hold(field, flat[bad])
    return tokens


def _encode_number(field: TokenField, number: Any) -> int:
    if isinstance(number, np.ndarray) and number.ndim == 0:
        number = native(field, number)[()]
    elif is_torch_tensor(number) and number.ndim == 0:
        number = _from_torch(field, number)[()]
    if isinstance(number, np.generic):
        if number.dtype.kind not in "biuf" or number.dtype.itemsize > 8:
            number = native(field, np.asarray(number))[()]
        given = np.asarray([number])
    elif isinstance(number, (bool, int)):
        if not -(2**63) <= number < 2**64:
            return _encode_large(field, number)
        given = np.array([number], np.int64 if number < 2**63 else np.uint64)
    elif isinstance(number, float):
        given = np.array([number], np.float64)
    else:
        raise refusal(field, "holds numbers", number)
    tokens, bad = kernels.encode(given, *field.slot[1:5])
    if bad >= 0:
        raise cannot_hold(field, number)
    return int(tokens[0])


def _encode_large(field: TokenField, number: int) -> int:
    """An integer beyond 64 bits, which a float may hold all the same."""
    try:
        wide = float(number) if field.is_float else 0.0
    except OverflowError:
        wide = 0.0
    tokens, bad = kernels.encode(np.array([wide]), *field.slot[1:5])
    if int(wide) != number or bad >= 0:
        raise cannot_hold(field, number)
    return int(tokens[0])


def _flatten_list(field: TokenField, value: Sequence[Any], depth: int) -> tuple[list[Any], tuple[int, ...]]:
    """A list of numbers, or of lists that are all alike."""
    if depth == MAX_NESTING:
        raise refusal(field, f"is nested more than {MAX_NESTING} deep", value)
    parts = [part for part in value if isinstance(part, (list, tuple)) or _is_shaped(part)]
    if not parts:
        return list(value), (len(value),)
    if len(parts) != len(value):
        raise refusal(field, "holds numbers or lists, not both in one list", value)
    flattened = [flatten(field, part, depth + 1) for part in parts]
    shapes = {shape for _, shape in flattened}
    if len(shapes) > 1:
        raise refusal(field, f"needs rows that are alike, these have the shapes {sorted(shapes)}", value)
    flat = [number for numbers, _ in flattened for number in numbers]
    return flat, (len(parts), *shapes.pop())


def _check_shape(field: TokenField, shape: tuple[int, ...], value: Any) -> None:
    expected = field.shape
    if expected is None:
        if len(shape) > 1:
            raise refusal(field, "was declared by name only and holds one number or a list", value)
        return
    is_same = len(shape) == len(expected) and all(n in (None, m) for n, m in zip(expected, shape, strict=True))
    # An empty list says nothing of the dimensions inside it.
    is_empty = shape == (0,) and len(expected) > 1 and expected[0] in (None, 0)
    if not (is_same or is_empty):
        raise refusal(field, f"holds {_shape_in_words(expected)}", value)


def _shape_in_words(shape: tuple[int | None, ...]) -> str:
    if not shape:
        return "one number"
    if len(shape) == 1:
        return "a list of numbers" if shape[0] is None else f"{shape[0]} numbers"
    return f"arrays of shape ({', '.join('any' if n is None else str(n) for n in shape)})"


def refusal(field: TokenField, rule: str, value: Any) -> SchemaError:
    """The error for a value that does not fit its field."""
    return SchemaError(f"field {field.name!r} {rule}, got {shown(value)}; convert it before append")


def cannot_hold(field: TokenField, number: Any) -> SchemaError:
    """The error for a number that a field could only keep as another one."""
    if isinstance(number, np.generic):
        number = number.item()
    error = NumberTooLarge if isinstance(number, int) else SchemaError
    return error(f"field {field.name!r}: {field.dtype} cannot hold {number!r} exactly; convert it before append")


def shown(value: Any) -> str:
    """A value for a message: its type, and as much of it as fits."""
    kind = type(value).__name__
    try:
        if isinstance(value, np.ndarray) or is_torch_tensor(value):
            return f"{kind} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return f"{kind} {reprlib.repr(value)}"
    except Exception:  # the value's own repr fails; its type has to do
        return kind


def _is_shaped(value: Any) -> bool:
    return (isinstance(value, np.ndarray) or is_torch_tensor(value)) and value.ndim > 0


def _is_arraylike(value: Any) -> bool:
    return hasattr(value, "__array__") or isinstance(value, (memoryview, range)) or type(value).__module__ == "array"


def _from_torch(field: TokenField, tensor: Any) -> NDArray[Any]:
    if not tensor.is_cpu:
        raise refusal(field, f"takes tensors in main memory, this one is on {tensor.device}", tensor)
    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        # bfloat16 and its like are unknown to NumPy; float32 holds each of their values exactly.
        is_short = plain.is_floating_point() and plain.element_size() < 4
        array: NDArray[Any] = plain.float().numpy() if is_short else plain.numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise refusal(field, f"takes dense tensors ({error})", tensor) from None
    return array


def _is_arrow_series(value: Any) -> bool:
    """Whether this is a series of polars, or of pandas with a dtype of its own, whose nulls NumPy would make NaN.

    A pandas series over NumPy is left to NumPy: exported to Arrow, its NaN would become nulls.
    """
    is_series = hasattr(value, "__arrow_c_stream__") and not hasattr(value, "columns")
    return is_series and not isinstance(getattr(value, "dtype", None), np.dtype)


def _refuse_missing(field: TokenField, value: Any) -> None:
    """What pandas keeps in dtypes of its own may have values missing, which NumPy would make NaN."""
    if not hasattr(value, "isna"):
        return
    dtypes = [value.dtype] if hasattr(value, "dtype") else list(value.dtypes)
    if not all(isinstance(dtype, np.dtype) for dtype in dtypes) and np.any(value.isna()):
        raise refusal(field, "holds numbers and no nulls", value)


def _from_arrow(field: TokenField, value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if value.null_count:
        raise refusal(field, "holds numbers and no nulls", value.type)
    return value.to_numpy() if isinstance(value, pa.ChunkedArray) else value.to_numpy(zero_copy_only=False)


# One append ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedWrites:
    """Field-writes, encoded: a step, a type and a length for each, all their tokens, and the kind of each type."""

    steps: Int64
    types: Int64
    lengths: Int64
    tokens: Int64
    kinds: Mapping[int, int]


def encode_writes(
    fields: Sequence[TokenField], ids: Mapping[str, int], last: tuple[int, int], steps: Any, names: Any, values: Any
) -> EncodedWrites:
    """What an append would write behind ``last`` (a step and a type), or the error that says why it must not."""
    names, values = _listed(names, "names"), _listed(values, "values")
    steps = _steps(steps, len(names))
    if not len(steps) == len(names) == len(values):
        counts = f"{len(steps)} steps, {len(names)} names and {len(values)} values"
        raise SchemaError(f"append needs one step and one value for each name, got {counts}")
    types: list[int] = []
    kinds: dict[int, int] = {}
    parts: list[Int64] = []
    for i, (step, name, value) in enumerate(zip(steps, names, values, strict=True)):
        type_ = type_of(ids, name)
        check_order(fields, last, (step, type_))
        last = step, type_
        field = fields[type_].decided(kinds.get(type_, 0))
        try:
            tokens, kinds[type_] = encode_value(field, value)
        except PoolishError as error:
            raise type(error)(f"entry {i}, step {step}: {error}") from error.__cause__
        types.append(type_)
        parts.append(tokens)
    return EncodedWrites(
        np.array(steps, np.int64),
        np.array(types, np.int64),
        np.array([len(part) for part in parts], np.int64),
        np.concatenate(parts) if parts else np.empty(0, np.int64),
        kinds,
    )


def _listed(given: Any, what: str) -> list[Any]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise SchemaError(f"{what} is a list with one entry for each field, got {shown(given)}")
    return list(given)


def _steps(steps: Any, n: int) -> list[int]:
    is_one = isinstance(steps, (int, np.integer)) or getattr(steps, "ndim", 1) == 0
    return [step_number(step) for step in ([steps] * n if is_one else _listed(steps, "steps"))]


def step_number(step: Any) -> int:
    """A step as an int, if it is one: whole, not negative, below 2**63."""
    if is_whole(step) and 0 <= step < 2**63:
        return int(step)
    if not isinstance(step, (bool, np.bool_, int, np.integer)):
        with suppress(TypeError, AttributeError, RuntimeError):  # arrays and tensors of one whole number have an index
            return step_number(step.__index__())
    raise SchemaError(f"a step is a whole number from 0 to 2**63 - 1, got {shown(step)}; number steps from 0")


def check_order(fields: Sequence[TokenField], last: tuple[int, int], this: tuple[int, int]) -> None:
    """Refuse a field-write (a step and a type) that does not lie behind the last one."""
    if this > last:
        return
    (last_step, last_type), (step, type_) = last, this
    if step < last_step:
        raise SchemaError(f"step {step} comes after step {last_step}; steps never decrease, append them in order")
    names = [field.name for field in fields]
    raise SchemaError(
        f"step {step}: field {names[type_]!r} comes after {names[last_type]!r}; within a step each field is written "
        f"once, in the order {names}"
    )
