"""Every program printed in the first three seeds runs as it stands, and does what its comments say."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

QUICK_START = """
from dataset_buffer.buffer import DatasetBuffer
import torch
from PIL import Image

buffer = DatasetBuffer(max_size=100, drop_strategy="oldest")

# Append samples
buffer.append([
    {"label": 0, "meta": "first"},
    {"label": 1, "meta": "second"},
])
buffer.append(
    {"label": 1, "meta": "third"},
    retain_prior=0.5,
    retain_prior_by="latest"
)

# Access buffer information
print(len(buffer))          # Total rows retained
print(buffer[0])            # Arrow slice as dict
batch = buffer.get_batch([0, len(buffer) - 1])  # Get a batch of rows
torch_batch = buffer.to_torch()                # Convert to PyTorch tensors
"""

CUSTOM_NORMALIZER = """
from dataset_buffer.buffer import register_normalizer

@register_normalizer(MySample)
def normalize_sample(sample: MySample):
    return {"text": sample.text, "score": sample.score}
"""

HUGGING_FACE = """
from dataset_buffer.buffer import DatasetBuffer
from datasets import Dataset

buffer = DatasetBuffer()
hf_dataset = Dataset.from_dict({"col1": [1, 2], "col2": ["a", "b"]})
buffer.append(hf_dataset)

hf_converted = buffer.to_hf_dataset()
print(hf_converted)
"""

STREAM = """
from stream_store import StreamStore
import numpy as np

store = StreamStore(fields=["action", "observation", "reward", "done"])

# Append one step (flat parallel sequences: one entry per field)
store.append(
    steps=[0, 0, 0, 0],
    names=["action", "observation", "reward", "done"],
    values=[1, np.array([0.1, -0.2, 0.05, 0.3]), 1.0, False],
)

# Sample by flat token indices (any shape)
batch = store[np.array([0, 1, 2, 3, 4])]
# batch["types"]  \u2192 int64 array of type IDs
# batch["values"] \u2192 int64 raw bits; use .view(np.float64) to reinterpret

# Convert to HuggingFace Dataset
ds = store.to_dataset()

# Load back (dataset columns must match store fields and be in construction order)
store2 = StreamStore(fields=["action", "observation", "reward", "done"])
store2.from_dataset(ds)
"""

STREAM_FIELDS = """
from stream_store import StreamStore
store = StreamStore(fields=["action", "observation", "reward", "done"])
# action=0, observation=1, reward=2, done=3
"""


def run(program: str) -> str:
    """What a program prints, in an interpreter of its own where every warning is an error."""
    answer = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_quick_start_runs_as_printed():
    """Half of two prior rows is the newer one; with the third that makes two."""
    program = QUICK_START + "print(batch['meta'].to_pylist(), torch_batch['label'].tolist(), torch_batch['meta'])"

    assert run(program).splitlines() == [
        "2",
        "{'label': 1, 'meta': 'second'}",
        "['second', 'third'] [1, 1] ['second', 'third']",
    ]


def test_the_custom_normalizer_runs_as_printed():
    """With the class that the seed leaves to its reader."""
    sample = textwrap.dedent(
        """
        class MySample:
            def __init__(self, text, score):
                self.text, self.score, self.secret = text, score, object()
        """
    )
    use = textwrap.dedent(
        """
        from dataset_buffer.buffer import DatasetBuffer
        buffer = DatasetBuffer()
        buffer.append([MySample("rye", 0.5), MySample("oat", 1.5)])
        print(buffer.to_pydict())
        """
    )

    assert run(sample + CUSTOM_NORMALIZER + use) == "{'text': ['rye', 'oat'], 'score': [0.5, 1.5]}\n"


def test_the_hugging_face_example_runs_as_printed():
    """The dataset that comes out is shown with the columns and rows that went in."""
    shown = run(HUGGING_FACE + "print(hf_converted.to_dict())")

    assert "features: ['col1', 'col2']" in shown
    assert "num_rows: 2" in shown
    assert shown.endswith("{'col1': [1, 2], 'col2': ['a', 'b']}\n")


@pytest.mark.parametrize(
    ("sample", "row"),
    [
        ("__import__('torch').tensor([1, 2])", "{'tensor': array([1, 2])}"),
        ("{'label': 0}", "{'label': 0}"),
        ("type('Plain', (), {'__init__': lambda self: setattr(self, 'a', 1)})()", "{'a': 1}"),
    ],
)
def test_the_normalization_table_of_the_seed_holds(sample, row):
    """Tensors become a column ``tensor``, dicts pass, other objects fall back to ``vars``."""
    assert (
        run(f"from dataset_buffer.buffer import DatasetBuffer as B\nb = B(); b.append({sample}); print(b[0])")
        == row + "\n"
    )


def test_the_stream_example_runs_as_printed():
    """Types and float64 bits as its comments say, and the second stream holds what the first one does."""
    shown = textwrap.dedent(
        """
        print(batch["types"].dtype, batch["types"].tolist())
        print(batch["values"].dtype, batch["values"].view(np.float64).tolist())
        print(ds.column_names, ds.to_dict())
        print(len(store2), store2.n_steps, np.array_equal(store[:]["values"], store2[:]["values"]))
        """
    )
    row = "{'action': [1.0], 'observation': [[0.1, -0.2, 0.05, 0.3]], 'reward': [1.0], 'done': [0.0]}"

    assert run(STREAM + shown).splitlines() == [
        "int64 [0, 1, 1, 1, 1]",
        "int64 [1.0, 0.1, -0.2, 0.05, 0.3]",
        f"['action', 'observation', 'reward', 'done'] {row}",
        "7 1 True",
    ]


def test_the_stream_fields_run_as_printed():
    """Type ids count in the order of construction; the second seed looks names up the other way round."""
    shown = "print(dict(store.field_to_type), dict(store._type_to_field))"

    assert run(STREAM_FIELDS + shown) == (
        "{'action': 0, 'observation': 1, 'reward': 2, 'done': 3} "
        "{0: 'action', 1: 'observation', 2: 'reward', 3: 'done'}\n"
    )


def test_the_design_of_the_stream_seed_holds():
    """Fields by ``define_fields``, floats as bits and integers as they are, and Hugging Face and back without loss."""
    program = """
    from datasets import List, Value
    from memmap_buffer import MemmapBuffer
    from stream_store import StreamStore
    fields = {"action": Value("int64"), "observation": List(Value("float32")), "done": Value("bool")}
    store = StreamStore()
    store.define_fields(fields)
    store.append([4, 4, 4, 9], ["action", "observation", "done", "action"], [2**53 + 1, [0.5, 1.5], True, -1])
    ds = store.to_dataset()
    print(store[[0, 3, 4]]["values"].tolist(), store.decode(store[[1, 2]]["values"], "observation").tolist())
    print(ds.features == fields, ds.to_dict())
    again = StreamStore(fields=fields)
    again.from_dataset(ds)
    print([dict(step) for step in again.steps(1)], again[:]["types"].tolist())
    buffer = MemmapBuffer()
    early = buffer[:]
    buffer.append([1, 2])
    print(len(early), len(buffer), buffer[:].tolist())
    """

    assert run(textwrap.dedent(program)).splitlines() == [
        "[9007199254740993, 1, -1] [0.5, 1.5]",
        "True {'action': [9007199254740993, -1], 'observation': [[0.5, 1.5], None], 'done': [True, None]}",
        "[{'action': -1}] [0, 1, 1, 2, 0]",
        "0 2 [1, 2]",
    ]


def test_the_old_names_are_the_new_ones():
    """``dataset_buffer``, ``stream_store`` and ``memmap_buffer`` are poolish under the names that the seeds use."""
    same = (
        "print(all(getattr(old, name) is getattr(poolish, name) for name in ('DatasetBuffer', 'register_normalizer')))"
    )

    assert run(f"import dataset_buffer.buffer as old, poolish; {same}") == "True\n"
    for module, name in (("stream_store", "StreamStore"), ("memmap_buffer", "MemmapBuffer")):
        assert run(f"import {module}, poolish; print({module}.{name} is poolish.{name})") == "True\n"


def test_rows_need_none_of_the_optional_libraries(tmp_path):
    """torch, datasets, PIL, pandas and polars may be absent: appending, reading, saving and showing still work."""
    program = textwrap.dedent(
        f"""
        import sys
        ABSENT = {{"torch", "datasets", "PIL", "pandas", "polars", "duckdb", "huggingface_hub"}}
        class NotInstalled:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ABSENT:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        sys.meta_path.insert(0, NotInstalled())
        import numpy as np, pyarrow as pa
        from poolish import DatasetBuffer, Field, Schema

        time = np.datetime64("2026-01-02T03:04:05.000000007", "ns")
        row = {{"n": 1, "t": "a", "x": np.zeros(2), "w": ["a"], "s": {{"a": None}}, "when": time}}
        buffer = DatasetBuffer(max_size=10, drop_strategy="random")
        buffer.append([row] * 12)
        buffer.append(row, retain_prior=0.5, retain_prior_by="random")
        buffer.append(pa.table(buffer)[1:2])
        buffer.update(buffer.ids[:1], {{"n": [5]}})
        buffer.save({str(tmp_path / "rows")!r})
        loaded = DatasetBuffer.load({str(tmp_path / "rows")!r})
        print(len(loaded), loaded[0]["n"], repr(loaded[0]["when"]), loaded.to_numpy(["when"])["when"][0])
        loaded.to_pydict(), loaded.to_numpy(), loaded.sample(2), loaded[1:3], list(loaded)
        repr(loaded), loaded._repr_html_()
        """
    )

    n_rows, n, *when = run(program).split(maxsplit=2)
    assert (n_rows, n) == ("7", "5")
    assert when[0].strip().endswith("2026-01-02T03:04:05.000000007")
