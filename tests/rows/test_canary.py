"""Data is never code: whatever is appended or loaded, nothing in it is unpickled, imported or run.

Every case hides a pickle whose loading would leave a marker in the file system; the marker must not appear. (What a
saved file may hide is tried in ``test_saved``.)
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from contextlib import suppress

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch

from poolish import DatasetBuffer, Schema
from poolish.errors import CorruptDataError
from poolish.testing import Canary


@pytest.fixture
def payload(marker):
    return pickle.dumps(Canary(marker))


def test_the_canary_would_sing(payload, marker):
    """The control: whoever does unpickle leaves the marker."""
    pickle.loads(payload)

    assert marker.exists()


def told(name, metadata):
    return {b"ARROW:extension:name": name, b"ARROW:extension:metadata": metadata}


#: Where in a table somebody could leave a pickle, by what is made of it.
HIDING_PLACES = {
    "pyarrow's own pickled types": lambda p: (told(b"arrow.py_extension_type", p), None),
    "our tensors": lambda p: (told(b"poolish.tensor", p), None),
    "arrow's tensors": lambda p: (told(b"arrow.fixed_shape_tensor", p), None),
    "an unknown type": lambda p: (told(b"acme.type", p), None),
    "hugging face's arrays": lambda p: (told(b"datasets.features.features.Array2DExtensionType", p), None),
    "our note of a feature": lambda p: ({b"poolish.feature": p}, None),
    "our note of a role": lambda p: ({b"poolish.role": p}, None),
    "hugging face's notes": lambda p: (None, {b"huggingface": p}),
    "hugging face's features": lambda p: (
        None,
        {b"huggingface": json.dumps({"info": {"features": {"x": {"_type": p.decode("latin-1")}}}}).encode()},
    ),
    "pandas' notes": lambda p: (None, {b"pandas": p}),
}


def stream_with(metadata, table_metadata):
    """An Arrow stream as it would come over the wire, with whatever in its metadata."""
    field = pa.field("x", pa.list_(pa.uint8(), 2), metadata=metadata)
    schema = pa.schema([field], metadata=table_metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_arrays([pa.array([[1, 2]], field.type)], schema=schema))
    return sink.getvalue()


@pytest.mark.parametrize("place", HIDING_PLACES)
def test_a_table_runs_nothing(place, payload, marker):
    """Appended, converted and shown: it is refused or kept, and the canary is silent."""
    stream = stream_with(*HIDING_PLACES[place](payload))
    assert b"was-here" in stream.to_pybytes()

    with suppress(Exception):
        reader = pa.ipc.open_stream(stream)
        buffer = DatasetBuffer()
        buffer.append(reader)
        for convert in (buffer.to_hf_dataset, buffer.to_torch, buffer.to_pydict, buffer.to_numpy, buffer._repr_html_):
            with suppress(Exception):
                convert()
    with suppress(Exception):
        Schema.from_arrow(pa.ipc.read_schema(stream)).to_features()

    assert not marker.exists()


@pytest.mark.parametrize("cell", ["bytes", "text", "array", "object"])
def test_cells_are_only_values(cell, payload, marker):
    """Bytes that happen to be a pickle come back as bytes; an object is not pickled to keep it."""
    buffer = DatasetBuffer()
    value = {
        "bytes": payload,
        "text": payload.decode("latin-1"),
        "array": np.frombuffer(payload, np.uint8),
        "object": Canary(marker),
    }[cell]

    with suppress(ValueError):
        buffer.append({"x": value})
        buffer.append([{"x": value}])
    buffer.to_pydict(), buffer.to_hf_dataset().to_dict(), buffer.to_torch(), list(buffer), buffer._repr_html_()

    assert not marker.exists()
    assert len(buffer) == (0 if cell == "object" else 2)


def test_a_dataset_runs_nothing(payload, marker):
    """Its features and its rows are data."""
    given = datasets.Dataset.from_dict({"raw": [payload], "text": [payload.decode("latin-1")]})

    buffer = DatasetBuffer()
    buffer.append(given)
    buffer.append(given.select([0]))

    assert buffer.to_hf_dataset()["raw"][:] == [payload, payload]
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["pickle", "torch", "numpy", "numpy zip"])
def test_files_of_other_libraries_are_not_opened_their_way(kind, marker, tmp_path):
    """``load`` reads the one format it writes."""
    path = tmp_path / "file"
    canary = Canary(marker)
    if kind == "pickle":
        path.write_bytes(pickle.dumps(canary))
    elif kind == "torch":
        torch.save(canary, path)
    else:
        with path.open("wb") as file:
            (np.save if kind == "numpy" else np.savez)(file, np.array([canary], object))

    with pytest.raises(CorruptDataError):
        DatasetBuffer.load(path)

    assert not marker.exists()


def test_nothing_is_imported_by_a_name_found_in_data(tmp_path):
    """A feature or extension type may name any module; it is not looked for."""
    (tmp_path / "sung.py").write_text("import pathlib; pathlib.Path(__file__).with_name('was-here').touch()")
    program = """
import json, sys, pyarrow as pa
sys.path.insert(0, sys.argv[1])
from poolish import DatasetBuffer
for name in ("sung", "sung.Type"):
    feature = {"_type": name}
    features = {b"huggingface": json.dumps({"info": {"features": {"x": feature}}}).encode()}
    extension = {b"ARROW:extension:name": name.encode(), b"ARROW:extension:metadata": b""}
    for metadata in ({b"poolish.feature": json.dumps(feature).encode()}, extension, None):
        field = pa.field("x", pa.int64(), metadata=metadata)
        for table_metadata in (None, features):
            buffer = DatasetBuffer()
            try:
                buffer.append(pa.Table.from_arrays([pa.array([1])], schema=pa.schema([field], metadata=table_metadata)))
                buffer.to_hf_dataset()
            except ValueError:
                pass
print("sung" in sys.modules)
"""

    answer = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120)

    assert (answer.stdout, answer.returncode) == ("False\n", 0), answer.stderr
    assert not (tmp_path / "was-here").exists()
