"""Field and Schema: one description of a row or a batch, in every dialect that describes it.

Schema  <->  pa.Schema          what a buffer stores
        <->  datasets.Features  what Hugging Face calls it
        <->  batch_schema       what a provider promises: [{"name", "dtype", "shape", "role"}, ...]
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
import xxhash

from poolish import html
from poolish.concurrency import cached_property
from poolish.errors import BadText, LimitExceeded, SchemaError, UnknownColumn
from poolish.printable import printable
from poolish.schema import features as hf
from poolish.schema.types import (
    CARRIED,
    NATIVE,
    TENSOR_DTYPES,
    Shape,
    canonical,
    check_names,
    describe,
    dtype_and_shape,
    is_shape,
    is_tensor,
    tensor_type,
)

if TYPE_CHECKING:
    import datasets

MAX_COLUMNS = 4096

_SCALARS = {**NATIVE, "bool": pa.bool_(), "string": pa.large_string(), "binary": pa.large_binary(), "null": pa.null()}
_SCALAR_NAMES = {type_: name for name, type_ in _SCALARS.items()}
_ALIASES: dict[Any, str] = {
    str: "string",
    bytes: "binary",
    int: "int64",
    float: "float64",
    bool: "bool",
    "str": "string",
    "text": "string",
    "bytes": "binary",
    "int": "int64",
    "float": "float64",
    "double": "float64",
}


@dataclass(frozen=True)
class Field:
    """A named column: a dtype, and a shape where each value is an array.

    ``shape`` has a number for every dimension that is the same in all rows and ``None`` for one that varies. A
    ``nullable`` field may be None, and its key may be missing from a row. ``feature`` is the Hugging Face feature
    where it says more than the dtype (Image, ClassLabel), ``role`` what a trainer uses the field for.

    >>> Field("pixels", "uint8", shape=(3, None, None)).type.shape
    (3, None, None)
    >>> Field("tokens", pa.list_(pa.int32()))
    Field('tokens', list of int32)
    """

    name: str
    dtype: Any
    shape: Shape | None = None
    nullable: bool = False
    role: str | None = None
    feature: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", column_name(self.name))
        type_ = _type_from(self.dtype, self.shape, self.name)
        object.__setattr__(self, "_type", type_)
        if is_tensor(type_):
            dtype, shape = dtype_and_shape(type_)
            object.__setattr__(self, "dtype", dtype)
            object.__setattr__(self, "shape", shape)
        else:
            object.__setattr__(self, "dtype", _SCALAR_NAMES.get(type_, type_))

    @property
    def type(self) -> pa.DataType:
        """The Arrow type that holds this field's values."""
        type_: pa.DataType = self._type  # type: ignore[attr-defined]  # set in __post_init__
        return type_

    @property
    def label_names(self) -> list[str]:
        """The names of a ClassLabel feature, in the order of their numbers; empty for any other field."""
        if self.feature is None:
            return []
        try:
            feature = json.loads(self.feature)
        except ValueError:
            return []
        is_label = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        return list(feature.get("names") or ()) if is_label else []

    def to_arrow(self) -> pa.Field:
        """The Arrow field, with role and feature in its metadata."""
        known = {"poolish.role": self.role, "poolish.feature": self.feature}
        metadata = {key: value for key, value in known.items() if value is not None}
        return pa.field(self.name, self.type, self.nullable, metadata or None)

    @classmethod
    def from_arrow(cls, field: pa.Field) -> Field:
        """The field an Arrow field describes, in a type poolish keeps."""
        role, feature, unknown = (
            (field.metadata or {}).get(key, b"").decode(errors="replace") or None
            for key in (b"poolish.role", b"poolish.feature", b"ARROW:extension:name")
        )
        if unknown is not None:  # an unknown extension type, of which only the storage arrived
            raise SchemaError(f"column {field.name!r}: extension type {unknown} is unknown here; cast the column first")
        try:
            return cls(field.name, canonical(field.type), None, field.nullable, role, feature)
        except (SchemaError, LimitExceeded) as error:
            raise type(error)(f"column {field.name!r}: {error}") from None

    def __repr__(self) -> str:
        extra = f", nullable={self.nullable}" if self.nullable else ""
        return printable(f"Field({self.name!r}, {describe(self.type)}{extra})")


class Schema:
    """The fields of a row or batch, in order.

    >>> schema = Schema([Field("text", "string"), Field("embedding", "float32", shape=(64,))])
    >>> schema["embedding"].shape, schema.names
    ((64,), ['text', 'embedding'])
    >>> Schema.of({"text": "string", "label": "int64"})
    Schema(text: text, label: int64)
    """

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields = tuple(fields)
        if len(self.fields) > MAX_COLUMNS:
            raise LimitExceeded(
                f"{len(self.fields):,} columns, the limit is {MAX_COLUMNS:,}; nest them in a struct or a tensor"
            )
        check_names(self.names, "schema")
        self._by_name = {field.name: field for field in self.fields}
        self._arrow: pa.Schema | None = None

    @classmethod
    def of(cls, description: Any) -> Schema:
        """A schema from whatever describes one: Schema, pa.Schema, Features, {name: dtype}, Fields, batch_schema."""
        if isinstance(description, Schema):
            return description
        if isinstance(description, pa.Schema):
            return cls.from_arrow(description)
        if hf.is_features(description):
            return cls.from_features(description)
        if isinstance(description, Mapping):
            return cls(Field(name, dtype) for name, dtype in description.items())
        if not isinstance(description, Iterable) or isinstance(description, (str, bytes)):
            raise SchemaError(f"no schema in {description!r}; pass fields, {{name: dtype}}, a pa.Schema or Features")
        parts = list(description)
        if all(isinstance(part, Field) for part in parts):
            return cls(parts)
        return cls.from_batch_schema(parts)

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [field.name for field in self.fields]

    def __getitem__(self, name: str) -> Field:
        if name not in self._by_name:
            raise UnknownColumn.of(name, self.names)
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return printable("Schema(" + ", ".join(f"{field.name}: {describe(field.type)}" for field in self) + ")")

    def _repr_html_(self) -> str:
        rows = [(field.name, describe(field.type), "yes" if field.nullable else "", field.role or "") for field in self]
        return str(html.table(("column", "type", "nullable", "role"), rows))

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with any name, dtype, shape, nullability, role or feature, and with nothing else.

        >>> Schema.of({"x": "int64"}).fingerprint
        '96dd0d37ceec8683'
        """
        parts = [[f.name, _type_json(f.type), f.nullable, f.role, f.feature] for f in self]
        return xxhash.xxh3_64_hexdigest(json.dumps(parts, separators=(",", ":")).encode())

    # -- dialects

    def to_arrow(self) -> pa.Schema:
        """As Arrow describes it."""
        if self._arrow is None:
            self._arrow = pa.schema([field.to_arrow() for field in self])
        return self._arrow

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """From Arrow; Hugging Face's features, where the metadata carries them, are kept.

        >>> Schema.from_arrow(pa.schema([("words", pa.list_(pa.string()))]))
        Schema(words: list of text)
        """
        try:
            # Both: equal schemas may differ in metadata, and equal bytes in which extension types are known.
            key = hash(schema), schema.serialize().to_pybytes()
        except Exception:  # an extension type that is not hashable; the error below names it
            return _from_arrow.__wrapped__(schema, None)
        return _from_arrow(schema, key)

    def to_features(self) -> datasets.Features:
        """As Hugging Face describes it."""
        return hf.to_features(self.fields)

    @classmethod
    def from_features(cls, features: Mapping[str, Any]) -> Schema:
        """From Hugging Face's features."""
        return cls.from_arrow(hf.arrow_schema(features))

    def to_batch_schema(self) -> list[dict[str, Any]]:
        """As a provider promises it: one JSON object per field.

        >>> Schema([Field("x", "int64", shape=(128,), role="input")]).to_batch_schema()
        [{'name': 'x', 'dtype': 'int64', 'shape': [128], 'role': 'input'}]
        """
        return [_batch_field(field) for field in self]

    @classmethod
    def from_batch_schema(cls, batch_schema: Iterable[Mapping[str, Any]]) -> Schema:
        """From a provider's promise; every problem is named with the entry it is in."""
        if not isinstance(batch_schema, Iterable) or isinstance(batch_schema, (str, bytes, Mapping)):
            raise SchemaError(f"a batch_schema is a list of dicts, got {batch_schema!r}")
        return cls(_field_from_batch(entry, i) for i, entry in enumerate(batch_schema))


@lru_cache(maxsize=256)  # tables come in many batches, and a schema takes longer than a batch of a thousand rows
def _from_arrow(schema: pa.Schema, key: object) -> Schema:
    check_names(schema.names, "Arrow schema")
    fields = [Field.from_arrow(field) for field in schema]
    if hf.METADATA_KEY not in (schema.metadata or {}):
        return Schema(fields)
    hints = hf.features_in(schema)
    return Schema(hf.with_feature(field, hints.get(field.name)) for field in fields)


def column_name(name: object) -> str:
    """A column name: text, in the one of Unicode's forms that compares equal when it looks equal."""
    if not isinstance(name, str) or not name:
        kind = type(name).__name__
        raise SchemaError(f"a column name is text that is not empty, got {kind} {name!r}; rename the key")
    if name.isascii():
        return name
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadText(f"a column name has a UTF-8 form, got {name!r}; rename the key") from None
    return unicodedata.normalize("NFC", name)


def _type_json(type_: pa.DataType) -> Any:
    """A type as JSON in which no name can be mistaken for a type."""
    if is_tensor(type_):
        return ["tensor", *dtype_and_shape(type_)]
    if kinds.is_large_list(type_):
        return ["list", _type_json(type_.value_type)]
    if kinds.is_struct(type_):
        return ["struct", *([field.name, _type_json(field.type)] for field in type_)]
    return _SCALAR_NAMES.get(type_) or str(type_)


def _type_from(dtype: Any, shape: Any, name: str) -> pa.DataType:
    if isinstance(dtype, pa.DataType):
        try:
            type_ = canonical(dtype)
        except (SchemaError, LimitExceeded) as error:
            raise type(error)(f"field {name!r}: {error}") from None
        return type_ if shape is None else _shaped(_SCALAR_NAMES.get(type_, str(type_)), shape, name)
    word = _dtype_word(dtype, name)
    if shape is not None:
        return _shaped(word, shape, name)
    return _SCALARS[word] if word in _SCALARS else tensor_type(word, ())


def _dtype_word(dtype: Any, name: str) -> str:
    word = _ALIASES.get(dtype, dtype) if isinstance(dtype, (str, type)) else dtype
    if word is not None and not isinstance(word, str):  # NumPy would take None for float64
        word = _numpy_name(word)
    if word not in _SCALARS and word not in CARRIED:
        known = ", ".join(sorted({*_SCALARS, *CARRIED}))
        raise SchemaError(f"field {name!r}: unknown dtype {dtype!r}; one of {known}, or any Arrow type")
    return str(word)


def _numpy_name(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        return str(dtype).removeprefix("torch.")


def _shaped(word: str, shape: Any, name: str) -> pa.DataType:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else shape
    if not is_shape(sizes):
        raise SchemaError(f"field {name!r}: shape {shape!r} is a tuple of sizes >= 0, or None where rows differ")
    if word not in TENSOR_DTYPES:
        raise SchemaError(f"field {name!r}: {word} has no shape; leave shape= out, or use pa.list_(...) for lists")
    return tensor_type(word, sizes)


def _batch_field(field: Field) -> dict[str, Any]:
    is_text = field.dtype in ("string", "binary")
    if not is_text and field.dtype not in TENSOR_DTYPES:
        held = describe(field.type)
        raise SchemaError(f"field {field.name!r}: batches cannot hold {held}; use text, or numbers with a shape")
    if field.nullable:
        raise SchemaError(f"field {field.name!r}: a batch has no nulls; declare it nullable=False")
    entry = {"name": field.name, "dtype": field.dtype} | ({} if is_text else {"shape": list(field.shape or ())})
    return entry if field.role is None else {**entry, "role": field.role}


def _field_from_batch(entry: Any, i: int) -> Field:
    if not isinstance(entry, Mapping) or "name" not in entry or "dtype" not in entry:
        raise SchemaError(f"batch_schema[{i}]: needs 'name' and 'dtype', got {entry!r}")
    unknown = sorted(set(entry) - {"name", "dtype", "shape", "role"})
    role = entry.get("role")
    if unknown or not isinstance(role, str | None):
        what = f"unknown key {unknown[0]!r}" if unknown else f"role {role!r} is no text"
        raise SchemaError(f"batch_schema[{i}] {entry['name']!r}: {what}; name, dtype, shape and role are known")
    shape = entry.get("shape", ())
    try:
        if shape is None:
            raise SchemaError(f"field {entry['name']!r}: shape None; leave it out where a row has one value")
        return Field(entry["name"], entry["dtype"], None if shape in ((), []) else shape, role=role)
    except SchemaError as error:
        raise type(error)(f"batch_schema[{i}]: {error}") from None
