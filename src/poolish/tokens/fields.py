"""What a stream's fields are: a name, a type id, and how numbers become tokens and come back.

    feature, dtype or name  --fields_of-->  TokenField  --slot-->  what the kernels need to know
                                                |--to_json / from_json-->  store.json
                                                `--to_schema-->  Hugging Face features, Arrow

A float field keeps the bits of a float64, an integer or bool field the int64. A field that was only named is float64,
and becomes scalar or sequence by what is first written to it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.errors import CorruptDataError, LimitExceeded, SchemaError, UnknownColumn
from poolish.kernels.reference_tokens import SCALAR, SEQUENCE, UNDECIDED, FieldTuple
from poolish.schema import Field, Schema, column_name, describe, dtype_and_shape, is_tensor
from poolish.tokens import specs
from poolish.tokens.specs import Shape

MAX_FIELDS = 256

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("bool", *INTEGERS, *FLOATS)

_ARROW = {name: pa.from_numpy_dtype(np.dtype(name)) for name in DTYPES}
_DTYPES = {type_: name for name, type_ in _ARROW.items()}


def decoded(tokens: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    """Tokens as numbers of a dtype: floats are the float64 whose bits a token holds, integers and bools the token."""
    with np.errstate(over="ignore", invalid="ignore"):  # tokens of other fields may be among them
        return as_numbers(tokens, dtype)


def as_numbers(tokens: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    """The same inside an ``np.errstate`` of the caller's: entering one costs 4 us, as much as to decode a batch."""
    return (tokens.view(np.float64) if dtype in FLOATS else tokens).astype(dtype)


@dataclass(frozen=True)
class TokenField:
    """One field of a stream.

    ``shape`` is () for one number, (None,) for a list of any length, (4,) or (None, 3) for arrays, and None until the
    first write decides.

    >>> reward = TokenField("reward", "float32")
    >>> reward.decode(np.array([1.5]).view(np.int64))
    array([1.5], dtype=float32)
    """

    name: str
    dtype: str = "float64"
    shape: Shape | None = ()
    feature: str | None = None

    @property
    def is_float(self) -> bool:
        """Whether tokens are the bits of float64 numbers."""
        return self.dtype in FLOATS

    @property
    def kind(self) -> int:
        """Scalar, sequence or undecided, as the kernels name it."""
        return UNDECIDED if self.shape is None else SEQUENCE if self.shape else SCALAR

    @property
    def slot(self) -> FieldTuple:
        """What the kernels need to know."""
        limit = float(np.finfo(self.dtype).max) if self.dtype in ("float16", "float32") else float("inf")
        low, high = _range(self.dtype)
        return self.name, self.is_float, limit, low, high, self.kind, self.shape or ()

    def decided(self, kind: int) -> TokenField:
        """The field, now scalar or sequence."""
        if self.shape is not None or kind == UNDECIDED:
            return self
        return dataclasses.replace(self, shape=() if kind == SCALAR else (None,))

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[Any]:
        """Tokens as the field's own numbers, in the shape they come in."""
        return decoded(tokens, self.dtype)

    def value(self, tokens: NDArray[np.int64]) -> Any:
        """One field-write as a user sees it: a Python number, or an array in the field's shape."""
        numbers = self.decode(np.ascontiguousarray(tokens))
        if not self.shape:
            return numbers[0].item() if len(numbers) == 1 and self.shape is not None else numbers
        return numbers if len(self.shape) == 1 else numbers.reshape([-1 if n is None else n for n in self.shape])

    def to_field(self) -> Field:
        """As poolish's schemas describe it; undecided fields count as lists."""
        if self.shape == ():
            return Field(self.name, self.dtype, nullable=True, feature=self.feature)
        if self.shape is None or self.shape == (None,):
            return Field(self.name, pa.large_list(_ARROW[self.dtype]), nullable=True, feature=self.feature)
        return Field(self.name, self.dtype, self.shape, nullable=True, feature=self.feature)

    def to_json(self) -> dict[str, Any]:
        """As store.json keeps it."""
        shape = None if self.shape is None else list(self.shape)
        return {"name": self.name, "dtype": self.dtype, "shape": shape, "feature": self.feature}

    @classmethod
    def from_json(cls, value: Any, place: str) -> TokenField:
        """Read back what ``to_json`` gave; anything else is a ``CorruptDataError``."""
        if isinstance(value, dict) and set(value) == {"name", "dtype", "shape", "feature"}:
            name, dtype, shape, feature = value["name"], value["dtype"], value["shape"], value["feature"]
            is_shape = shape is None or (isinstance(shape, list) and all(_is_size(n) for n in shape))
            if isinstance(name, str) and dtype in DTYPES and is_shape and isinstance(feature, str | None):
                return cls(name, dtype, None if shape is None else tuple(shape), feature)
        raise CorruptDataError(f"{place}: no field of a stream in {value!r}; restore the file from a copy")

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name}: {self.dtype}, scalar or sequence as first written"
        sizes = ", ".join("any" if n is None else str(n) for n in self.shape)
        return f"{self.name}: {self.dtype}" + (f"[{sizes}]" if self.shape else "")


def _is_size(n: object) -> bool:
    return n is None or (isinstance(n, int) and not isinstance(n, bool) and n >= 0)


def _range(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    if dtype in FLOATS:
        return 0, 0
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), 2**63 - 1)  # a token is an int64, also where the feature is uint64


def fields_of(description: Any) -> tuple[TokenField, ...]:
    """The fields that names, specs (see specs.py), features or a schema describe, in order.

    >>> [str(field) for field in fields_of({"action": "int64", "observation": pa.list_(pa.float32())})]
    ['action: int64', 'observation: float32[any]']
    """
    if specs.is_space(description) and not isinstance(description, Mapping):
        raise SchemaError(f"fields {description!r}: name it, as in fields={{'obs': env.observation_space}}")
    if isinstance(description, np.dtype) and description.names:
        description = {name: description[name] for name in description.names}
    if isinstance(description, (str, bytes, set, frozenset)) or not isinstance(description, Iterable):
        raise SchemaError(f"fields {description!r}: give a list of names in order, or {{name: feature or dtype}}")
    if isinstance(description, Mapping):
        fields = [_field(name, declared) for name, declared in specs.leaves(description)]
    elif isinstance(description, (Schema, pa.Schema)):
        fields = [_from_schema(field) for field in Schema.of(description)]
    else:
        fields = [_named(declared) for declared in description]
    if not fields or len(fields) > MAX_FIELDS:
        raise LimitExceeded(
            f"{len(fields)} fields: a stream has 1 to {MAX_FIELDS}; put numbers of one kind in one field"
        )
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"field {name!r} is there twice; give each a name of its own")
    return tuple(fields)


def _named(declared: Any) -> TokenField:
    if isinstance(declared, TokenField):
        return declared
    return _from_schema(declared) if isinstance(declared, Field) else TokenField(column_name(declared), shape=None)


def _field(name: Any, declared: Any) -> TokenField:
    name = column_name(name)
    if declared is None:
        return TokenField(name, shape=None)
    if isinstance(declared, TokenField):
        return dataclasses.replace(declared, name=name)
    if isinstance(declared, specs.Spec):
        return _from_parts(name, *declared)
    if isinstance(declared, Field):
        return _from_schema(dataclasses.replace(declared, name=name))
    if _is_feature(declared):
        return _from_schema(Schema.from_features({name: declared})[name])
    return _from_schema(Field(name, declared))


def _is_feature(declared: Any) -> bool:
    """Whether this is a Hugging Face feature; [Value("int64")] is an old way to write a list of them."""
    inner = declared[0] if isinstance(declared, list) and len(declared) == 1 else declared
    return "datasets" in sys.modules and type(inner).__module__.split(".")[0] == "datasets"


def _from_schema(field: Field) -> TokenField:
    type_ = field.type
    if is_tensor(type_):
        dtype, shape = dtype_and_shape(type_)
    elif kinds.is_large_list(type_):
        inner = type_.value_type
        dtype, rest = dtype_and_shape(inner) if is_tensor(inner) else (_DTYPES.get(inner, ""), ())
        shape = (_declared_length(field.feature), *rest)
    else:
        dtype, shape = _DTYPES.get(type_, ""), ()
    return _from_parts(field.name, dtype or describe(type_), shape, field.feature)


def _from_parts(name: str, dtype: str, shape: Shape, feature: str | None = None) -> TokenField:
    if dtype not in DTYPES:
        raise SchemaError(
            f"field {name!r}: a stream holds numbers and bools, got {dtype}; "
            "encode it as numbers, or keep it in to_dataset(extra=...)"
        )
    if 0 in shape:
        raise SchemaError(f"field {name!r}: a shape of {shape} holds no numbers; leave the field out")
    if None in shape[1:]:
        raise SchemaError(
            f"field {name!r}: only the first dimension may vary, got {shape}; flatten it, and store the sizes"
        )
    return TokenField(name, dtype, shape, feature)


def _declared_length(feature: str | None) -> int | None:
    """How long a Hugging Face list of lists is, if it is declared; the Arrow type does not hold it."""
    declared = json.loads(feature or "null")
    length = declared.get("length", -1) if isinstance(declared, dict) and declared.get("_type") == "List" else -1
    return None if length < 0 else int(length)


def type_of(ids: Mapping[str, int], name: Any) -> int:
    """The type id of a name, in whichever of Unicode's forms it is written."""
    type_ = ids.get(name) if isinstance(name, str) else None
    if type_ is None and isinstance(name, str) and name and not name.isascii():
        type_ = ids.get(unicodedata.normalize("NFC", name))
    if type_ is None:
        raise UnknownColumn(f"no field {name!r} in this stream; there are {list(ids)}")
    return type_


def schema_of(fields: Sequence[TokenField]) -> Schema:
    """The schema of a dataset with a row for each step."""
    return Schema(field.to_field() for field in fields)


def decided(fields: Sequence[TokenField], kinds: bytes) -> tuple[TokenField, ...]:
    """The fields, scalar or sequence as they were first written."""
    return tuple(field.decided(kind) for field, kind in zip(fields, kinds, strict=True))
