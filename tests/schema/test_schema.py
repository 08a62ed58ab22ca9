"""Field and Schema: one description, every dialect, and a fingerprint that changes exactly when the meaning does."""

from __future__ import annotations

import pickle

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Array2D, ClassLabel, Features, List, Value

from poolish import Field, Schema
from poolish.errors import LimitExceeded, SchemaError, UnknownColumn
from poolish.schema import TensorType, canonical, describe, tensor_type

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
    *(f"{kind}64[{unit}]" for kind in ("datetime", "timedelta") for unit in ("s", "ms", "us", "ns")),
]
SHAPES = [None, (), (3,), (2, 0), (None,), (3, None, None), (1, 2, 3, 4, 5, 6)]

WIDE = Schema(
    [
        Field("text", "string"),
        Field("raw", "binary", nullable=True),
        Field("label", "int64", role="target"),
        Field("pixels", "uint8", shape=(3, None, None)),
        Field("embedding", "bfloat16", shape=(64,), nullable=True),
        Field("words", pa.list_(pa.string())),
        Field("pair", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.float32(), 2))])),
        Field("when", pa.timestamp("us", "UTC")),
        Field("price", pa.decimal128(10, 2)),
        Field("open", "null", nullable=True),
    ]
)


# -- fields


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_field_of_any_dtype_and_shape_survives_arrow(dtype):
    """What Arrow is told is what Arrow tells back, and a file of it too."""
    for shape in SHAPES:
        field = Field("x", dtype, shape=shape, nullable=True, role="input")
        schema = pa.schema([field.to_arrow()])

        written = pa.ipc.read_schema(schema.serialize())

        assert Field.from_arrow(field.to_arrow()) == field
        assert Field.from_arrow(written.field("x")) == field
        assert (field.dtype, field.role, field.nullable) == (dtype, "input", True)
        assert field.shape == shape if shape is not None else field.shape in (None, ())


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(
            ("int", "int64"),
            ("float", "float64"),
            ("str", "string"),
            ("text", "string"),
            ("bytes", "binary"),
            ("double", "float64"),
        ),
        *(
            (np.float32, "float32"),
            (np.dtype(">i4"), "int32"),
            (np.int8, "int8"),
            (float, "float64"),
            (int, "int64"),
            (bool, "bool"),
        ),
        *(
            (torch.float16, "float16"),
            (torch.bfloat16, "bfloat16"),
            (torch.bool, "bool"),
            (torch.float8_e5m2, "float8_e5m2"),
        ),
        *((pa.int16(), "int16"), (pa.string(), "string"), (pa.string_view(), "string"), (pa.large_binary(), "binary")),
        *((str, "string"), (bytes, "binary"), (complex, "complex128")),
    ],
    ids=str,
)
def test_a_dtype_may_be_written_as_any_library_writes_it(written, meant):
    """NumPy, torch, Arrow, Python's own types, and short names."""
    assert Field("x", written) == Field("x", meant)
    if meant not in ("string", "binary"):
        assert Field("x", written, shape=(2, None)) == Field("x", meant, shape=(2, None))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("x", "int65"), "'x'.*'int65'.*int64"),
        (("x", ""), "'x'.*unknown dtype"),
        (("x", None), "'x'.*None"),
        (("x", 5), "'x'.*5"),
        (("x", object), "'x'.*object"),
        (("x", "object"), "'x'.*object"),
        (("x", "V8"), "'x'.*V8"),
        (("x", "string", (3,)), "'x'.*string has no shape.*list"),
        (("x", "int64", (-1,)), r"'x'.*\(-1,\)"),
        (("x", "int64", (1.5,)), r"'x'.*1.5"),
        (("x", "int64", (True,)), "'x'.*True"),
        (("x", "int64", ("3",)), "'x'.*'3'"),
        (("x", "int64", 3), "'x'.*3"),
        (("x", pa.string(), (3,)), "'x'.*shape"),
        (("x", pa.list_(pa.int64()), (3,)), "'x'.*shape"),
        (("", "int64"), "not empty"),
        ((5, "int64"), "text.*int 5"),
        ((None, "int64"), "text.*NoneType"),
        (("\ud800", "int64"), "UTF-8"),
        (("x", pa.dense_union([pa.field("a", pa.int8())])), "'x'.*dense_union"),
        (("x", "int64", (2**40, 2**40)), "'x'"),
    ],
    ids=str,
)
def test_a_field_that_describes_nothing_is_refused(arguments, says):
    """By its name, with what would do."""
    with pytest.raises(SchemaError, match=says):
        Field(*arguments)


def test_fields_are_values():
    """Equal when they say the same, usable as keys, and they cannot be changed."""
    field = Field("caf\u00e9", "float32", shape=[2, 3])

    assert field == Field("cafe\u0301", np.float32, shape=(2, 3))
    assert len({field, Field("caf\u00e9", "float32", shape=(2, 3))}) == 1
    assert repr(field) == "Field('café', float32[2, 3])"
    assert pickle.loads(pickle.dumps(field)) == field
    with pytest.raises(AttributeError):
        field.name = "x"


# -- schemas


def test_a_schema_is_a_row_of_fields_in_order():
    """By name and by position."""
    assert WIDE.names[:3] == ["text", "raw", "label"]
    assert (len(WIDE), list(WIDE)[2].role, WIDE["label"].dtype) == (10, "target", "int64")
    assert "label" in WIDE
    assert "nothing" not in WIDE
    with pytest.raises(UnknownColumn, match=r"'nothing'.*'text'"):
        WIDE["nothing"]


def test_names_stand_once():
    """In either of Unicode's forms."""
    for second in ("x", "x"):
        with pytest.raises(SchemaError, match="'x' stands there twice"):
            Schema([Field("x", "int64"), Field(second, "int8")])
    with pytest.raises(SchemaError, match="stands there twice"):
        Schema([Field("caf\u00e9", "int64"), Field("cafe\u0301", "int64")])


def test_4096_columns_are_the_most():
    """A limit that protects whoever reads the schema."""
    fields = [Field(f"c{i}", "int64") for i in range(4_097)]

    assert len(Schema(fields[:-1])) == 4_096
    with pytest.raises(LimitExceeded, match=r"4,097 columns.*4,096"):
        Schema(fields)


def test_a_schema_survives_arrow_pickle_and_a_file():
    """Names, types, nullability, roles and features."""
    again = Schema.from_arrow(WIDE.to_arrow())

    assert again == WIDE
    assert Schema.from_arrow(pa.ipc.read_schema(WIDE.to_arrow().serialize())) == WIDE
    assert pickle.loads(pickle.dumps(WIDE)) == WIDE
    assert (again.fingerprint, hash(again)) == (WIDE.fingerprint, hash(WIDE))


@pytest.mark.parametrize(
    "description",
    [
        Schema([Field("x", "int64"), Field("s", "string")]),
        [Field("x", "int64"), Field("s", "string")],
        (field for field in [Field("x", "int64"), Field("s", "string")]),
        {"x": "int64", "s": str},
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_describes_a_schema_makes_one(description):
    """Fields, a dict, a schema itself."""
    assert Schema.of(description) == Schema([Field("x", "int64"), Field("s", "string")])


def test_arrow_and_features_describe_nullable_columns():
    """Both allow nulls unless they say otherwise."""
    nullable = Schema([Field("x", "int64", nullable=True)])

    assert Schema.of(pa.schema([("x", pa.int64())])) == nullable
    assert Schema.of(pa.schema([pa.field("x", pa.int64(), nullable=False)])) == Schema([Field("x", "int64")])
    assert Schema.of(Features({"x": Value("int64")}))["x"].nullable


def test_a_schema_can_be_shown():
    """In a terminal and in a notebook, with names that are only text."""
    schema = Schema([Field("<b>", "int64", role="<i>"), Field("y", "float32", shape=(None,), nullable=True)])

    page = schema._repr_html_()

    assert repr(schema) == "Schema(<b>: int64, y: float32[?])"
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;" in page


# -- Arrow types

CANONICAL = {
    "string": (pa.string(), "text"),
    "string_view": (pa.string_view(), "text"),
    "binary": (pa.binary(), "bytes"),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "text"),
    "run ends": (pa.run_end_encoded(pa.int32(), pa.float32()), "float32"),
    "list": (pa.list_(pa.dictionary(pa.int8(), pa.string())), "list of text"),
    "list view": (pa.list_view(pa.int8()), "list of int8"),
    "map": (pa.map_(pa.string(), pa.int8()), "list of {key: text, value: int8}"),
    "fixed list of numbers": (pa.list_(pa.float32(), 4), "float32[4]"),
    "fixed list of text": (pa.list_(pa.string(), 4), "list of text"),
    "fixed list of bool": (pa.list_(pa.bool_(), 4), "list of bool"),
    "fixed_shape_tensor": (pa.fixed_shape_tensor(pa.int16(), (2, 3)), "int16[2, 3]"),
    "struct": (pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8(), 2))]), "{a: text, b: int8[2]}"),
    "json": (pa.json_(), "text"),
    "bool8": (pa.bool8(), "bool"),
}


@pytest.mark.parametrize("kind", CANONICAL)
def test_encodings_are_undone_and_lists_widened(kind):
    """One type for each meaning, and that type is its own canonical form."""
    type_, name = CANONICAL[kind]

    kept = canonical(type_)

    assert describe(kept) == name
    assert canonical(kept) == kept


def test_types_nest_sixteen_deep():
    """Seventeen levels are refused, in whatever they are wrapped."""
    for wrap in (pa.list_, lambda type_: pa.struct([("a", type_)]), lambda type_: pa.map_(pa.string(), type_)):
        type_ = pa.int64()
        for _ in range(17):
            type_ = wrap(type_)
        with pytest.raises(LimitExceeded, match="16"):
            canonical(type_)


# -- Hugging Face

FEATURES = [
    Features({"x": Value("int8"), "s": Value("large_string"), "c": ClassLabel(names=["a", "b"])}),
    Features(
        {"x": List(Value("int64"), length=3), "y": List(ClassLabel(names=["a"])), "z": Array2D((2, 3), "float32")}
    ),
    Features({"image": datasets.Image(), "nested": {"a": List({"b": Value("string")})}}),
    Features(
        {"t": datasets.Translation(["de", "en"]), "w": Value("timestamp[ns, tz=UTC]"), "d": Value("decimal128(10, 2)")}
    ),
    Features({"any": Array2D((None, 3), "bool"), "large": datasets.LargeList(Value("float16"))}),
]


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: ", ".join(f))
def test_features_survive(features):
    """Also through Arrow and back."""
    schema = Schema.from_features(features)

    assert schema.to_features() == features
    assert Schema.from_arrow(schema.to_arrow()).to_features() == features
    assert Schema.from_arrow(features.arrow_schema) == schema
    assert Schema.of(features) == schema


def test_fields_without_a_feature_get_the_one_their_type_asks_for():
    """Tensors become lists of a length or Array2D and up; dtypes that datasets lacks widen exactly."""
    schema = Schema(
        [
            Field("s", "string"),
            Field("v", "float32", shape=(3,)),
            Field("m", "bfloat16", shape=(2, 3)),
            Field("r", "int8", shape=(None, 2)),
            Field("b", "bool", shape=(2,)),
            Field("c", "complex64", shape=(2,)),
            Field("w", pa.list_(pa.string())),
        ]
    )

    assert schema.to_features() == Features(
        {
            "s": Value("string"),
            "v": List(Value("float32"), length=3),
            "m": Array2D((2, 3), "float32"),
            "r": Array2D((None, 2), "int8"),
            "b": List(Value("bool"), length=2),
            "c": Array2D((2, 2), "float32"),
            "w": List(Value("string")),
        }
    )


# -- batch_schema


def test_a_batch_schema_survives():
    """One JSON object per field."""
    promised = [
        {"name": "x", "dtype": "int64", "shape": [128], "role": "input"},
        {"name": "y", "dtype": "bfloat16", "shape": [4, 8]},
        {"name": "reward", "dtype": "float32", "shape": []},
    ]

    schema = Schema.from_batch_schema(promised)

    assert schema.to_batch_schema() == promised
    assert Schema.of(promised) == schema
    assert schema == Schema(
        [
            Field("x", "int64", shape=(128,), role="input"),
            Field("y", "bfloat16", shape=(4, 8)),
            Field("reward", "float32"),
        ]
    )


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (5, r"batch_schema\[1\].*'name'"),
        ("x", r"batch_schema\[1\].*'name'"),
        (None, r"batch_schema\[1\].*'name'"),
        ({}, r"batch_schema\[1\].*'name'"),
        ({"name": "y"}, r"batch_schema\[1\].*'dtype'"),
        ({"dtype": "int64"}, r"batch_schema\[1\].*'name'"),
        ({"name": "y", "dtype": "int65"}, r"batch_schema\[1\].*'int65'"),
        ({"name": "", "dtype": "int64"}, r"batch_schema\[1\].*not empty"),
        ({"name": 5, "dtype": "int64"}, r"batch_schema\[1\].*int 5"),
        ({"name": "y", "dtype": "int64", "shape": 3}, r"batch_schema\[1\].*shape.*3"),
        ({"name": "y", "dtype": "int64", "shape": [-1]}, r"batch_schema\[1\].*-1"),
        ({"name": "y", "dtype": "int64", "shape": "34"}, r"batch_schema\[1\].*'34'"),
        ({"name": "y", "dtype": "int64", "shape": [1.5]}, r"batch_schema\[1\].*1.5"),
        ({"name": "y", "dtype": "int64", "shape": None}, r"batch_schema\[1\].*shape.*None"),
        ({"name": "y", "dtype": "string", "shape": [2]}, r"batch_schema\[1\].*string"),
        ({"name": "y", "dtype": "int64", "role": 5}, r"batch_schema\[1\].*role.*5"),
        ({"name": "y", "dtype": "int64", "dim": 5}, r"batch_schema\[1\].*'dim'.*shape"),
        ({"name": "x", "dtype": "int64"}, "'x' stands there twice"),
    ],
    ids=str,
)
def test_a_bad_entry_of_a_batch_schema_is_named(entry, says):
    """By its place in the list, and with what is wrong."""
    with pytest.raises(SchemaError, match=says):
        Schema.from_batch_schema([{"name": "x", "dtype": "int64"}, entry])


@pytest.mark.parametrize("not_a_list", [5, None, "x", {"name": "x"}], ids=repr)
def test_a_batch_schema_is_a_list(not_a_list):
    """Anything else is told apart at once."""
    with pytest.raises(SchemaError, match="batch_schema"):
        Schema.from_batch_schema(not_a_list)


@pytest.mark.parametrize(
    "field",
    [Field("x", pa.date32()), Field("x", pa.list_(pa.int64())), Field("x", pa.struct([("a", pa.int8())]))],
    ids=repr,
)
def test_what_has_no_place_in_a_batch_is_refused(field):
    """Batches hold numbers with a shape, and text."""
    with pytest.raises(SchemaError, match=r"'x'.*batch"):
        Schema([field]).to_batch_schema()


def test_text_in_a_batch_schema_comes_back():
    """Text and bytes have a dtype and no shape."""
    schema = Schema([Field("text", "string", role="input"), Field("raw", "binary"), Field("ids", "int32", (None, 4))])

    promise = schema.to_batch_schema()

    assert promise[0] == {"name": "text", "dtype": "string", "role": "input"}
    assert Schema.from_batch_schema(promise) == schema
    with pytest.raises(SchemaError, match="string has no shape"):
        Schema.from_batch_schema([{"name": "text", "dtype": "string", "shape": [3]}])


def test_a_nullable_field_has_no_place_in_a_batch():
    """A tensor has no null, so a promise that allows one could not be kept."""
    with pytest.raises(SchemaError, match=r"'x'.*null"):
        Schema([Field("x", "int64", nullable=True)]).to_batch_schema()
    with pytest.raises(SchemaError, match=r"'x'.*null"):
        Schema([Field("x", "string", nullable=True)]).to_batch_schema()


# -- fingerprints

PINNED = {
    "empty": (Schema([]), "831154110e30ac6a"),
    "int": (Schema.of({"x": "int64"}), "96dd0d37ceec8683"),
    "tensor": (Schema([Field("café", "float32", shape=(None, 3), nullable=True, role="input")]), "d59ed818eb44778d"),
    "wide": (WIDE, "9fb981abfcab42d3"),
}


@pytest.mark.parametrize("kind", PINNED)
def test_fingerprints_are_pinned(kind):
    """Queues and files carry them: changing one is a decision."""
    schema, fingerprint = PINNED[kind]

    assert schema.fingerprint == fingerprint


BASE = [Field("x", "int64"), Field("y", "float32", shape=(2, 3))]
VARIANTS = {
    "other name": [Field("z", "int64"), BASE[1]],
    "other case": [Field("X", "int64"), BASE[1]],
    "other dtype": [Field("x", "int32"), BASE[1]],
    "unsigned": [Field("x", "uint64"), BASE[1]],
    "tensor without dimensions": [Field("x", "complex64"), BASE[1]],
    "nullable": [Field("x", "int64", nullable=True), BASE[1]],
    "role": [Field("x", "int64", role="input"), BASE[1]],
    "other role": [Field("x", "int64", role="target"), BASE[1]],
    "feature": [Field("x", "int64", feature='{"_type": "ClassLabel", "names": ["a"]}'), BASE[1]],
    "other shape": [BASE[0], Field("y", "float32", shape=(3, 2))],
    "ragged": [BASE[0], Field("y", "float32", shape=(None, 3))],
    "other tensor dtype": [BASE[0], Field("y", "bfloat16", shape=(2, 3))],
    "list": [BASE[0], Field("y", pa.list_(pa.list_(pa.float32())))],
    "other order": BASE[::-1],
    "one more": [*BASE, Field("z", "int64")],
    "one less": BASE[:1],
    "text": [Field("x", "string"), BASE[1]],
    "bytes": [Field("x", "binary"), BASE[1]],
    "timestamp": [Field("x", pa.timestamp("us")), BASE[1]],
    "timestamp in seconds": [Field("x", pa.timestamp("s")), BASE[1]],
    "timestamp with zone": [Field("x", pa.timestamp("us", "UTC")), BASE[1]],
    "struct": [Field("x", pa.struct([("a", pa.int64())])), BASE[1]],
    "struct of another name": [Field("x", pa.struct([("b", pa.int64())])), BASE[1]],
    "struct that reads like two": [Field("x", pa.struct([("a: int64, b", pa.int64())])), BASE[1]],
    "struct of two": [Field("x", pa.struct([("a", pa.int64()), ("b", pa.int64())])), BASE[1]],
}


def test_a_fingerprint_changes_with_every_part():
    """All variants differ from each other, and so do the schemas themselves."""
    schemas = [Schema(BASE), *(Schema(fields) for fields in VARIANTS.values())]

    assert len({schema.fingerprint for schema in schemas}) == len(schemas)
    assert len(set(schemas)) == len(schemas)


def test_a_fingerprint_does_not_depend_on_how_the_schema_was_written():
    """Neither on the dialect nor on Unicode's form of a name."""
    assert Schema([Field("caf\u00e9", np.int64)]).fingerprint == Schema([Field("cafe\u0301", "int")]).fingerprint
    assert Schema.from_arrow(WIDE.to_arrow()).fingerprint == WIDE.fingerprint
    assert len(WIDE.fingerprint) == 16


# -- the tensor type


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_type_tells_its_dtype_and_shape_in_json(dtype):
    """Any tool can read the metadata; poolish reads back the same type."""
    for shape in [(), (3,), (2, 3), (None,), (None, 3), (2, None, 0)]:
        type_ = TensorType(dtype, shape)

        again = TensorType.__arrow_ext_deserialize__(type_.storage_type, type_.__arrow_ext_serialize__())

        assert again == type_
        assert (again.dtype, again.shape, again.is_ragged) == (dtype, shape, None in shape)
        assert hash(again) == hash(type_)
        assert pickle.loads(pickle.dumps(type_)) == type_
        assert pa.ipc.read_schema(pa.schema([("x", type_)]).serialize()).field("x").type == type_


def test_tensor_types_are_told_apart():
    """Two are equal only if dtype and shape are."""
    types = [
        tensor_type(dtype, shape)
        for dtype in ("bool", "bfloat16", "uint16")
        for shape in ((2,), (3,), (None,), (None, 2))
    ]

    assert all((a == b) == (i == j) for i, a in enumerate(types) for j, b in enumerate(types))


HOSTILE = {
    "nothing": b"",
    "no JSON": b"dtype",
    "not UTF-8": b"\xff\xfe",
    "pickle": b"cos\nsystem\n(S'true'\ntR.",
    "list": b"[]",
    "number": b"5",
    "no dtype": b'{"shape": [2]}',
    "no shape": b'{"dtype": "bool"}',
    "unknown dtype": b'{"dtype": "object", "shape": [2]}',
    "dtype that is no text": b'{"dtype": ["bool"], "shape": [2]}',
    "negative size": b'{"dtype": "bool", "shape": [-2]}',
    "fractional size": b'{"dtype": "bool", "shape": [2.0]}',
    "size that is no number": b'{"dtype": "bool", "shape": ["2"]}',
    "size that is true": b'{"dtype": "bool", "shape": [true]}',
    "shape that is no list": b'{"dtype": "bool", "shape": 2}',
    "shape that is text": b'{"dtype": "bool", "shape": "2"}',
    "other storage": b'{"dtype": "bool", "shape": [3]}',
    "other storage dtype": b'{"dtype": "float32", "shape": [2]}',
    "huge": b'{"dtype": "bool", "shape": [' + b"1," * 50_000 + b"2]}",
    "enormous size": b'{"dtype": "bool", "shape": [' + b"9" * 5_000 + b"]}",
    "deep": b"[" * 60_000,
    "many dimensions": b'{"dtype": "bool", "shape": [' + b"1," * 20_000 + b"2]}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_metadata_of_a_tensor_is_refused(kind):
    """Whatever stands in a file: SchemaError, nothing else, and nothing runs."""
    with pytest.raises(SchemaError, match=r"poolish\.tensor"):
        TensorType.__arrow_ext_deserialize__(pa.list_(pa.uint8(), 2), HOSTILE[kind])


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_stream_with_hostile_metadata_cannot_be_opened(kind):
    """Through pyarrow the refusal arrives as an error of the reader, not as a crash."""
    field = pa.field(
        "x",
        pa.list_(pa.uint8(), 2),
        metadata={"ARROW:extension:name": "poolish.tensor", "ARROW:extension:metadata": HOSTILE[kind]},
    )
    stream = pa.schema([field]).serialize()

    with pytest.raises((SchemaError, pa.ArrowException, ValueError)):
        pa.ipc.read_schema(stream)


class Unhashable(pa.ExtensionType):
    """Somebody's type, which defines what is equal and nothing else."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "somebody.unhashable")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> pa.ExtensionType:
        return cls()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)


def test_a_type_of_somebodys_is_told_whatever_it_can_do():
    with pytest.raises(SchemaError, match="column 'a'"):
        Schema.from_arrow(pa.schema([("a", Unhashable())]))


def test_schemas_that_differ_only_in_what_is_said_about_fields_are_not_mixed_up():
    """They are read once each, and are equal for Arrow."""
    fields = [pa.field("a", pa.int64(), metadata=told) for told in ({"poolish.role": "x"}, {"poolish.role": "y"}, None)]
    schemas = [pa.schema([field]) for field in fields]

    assert [Schema.from_arrow(schema)["a"].role for schema in schemas * 2] == ["x", "y", None] * 2
    assert schemas[0] == schemas[1]
