"""The local hub is a hub to the real clients: what they push is what they load, and what is missing they call missing.

Importing ``datasets`` takes seconds, so one child process does all there is to do, and the tests look at its report.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.hub import local_hub

CLIENT = """
import json, sys
from datasets import Dataset, Features, get_dataset_split_names, load_dataset
from huggingface_hub import CommitOperationDelete, HfApi

def dataset(columns):
    return Dataset.from_dict(columns, Features.from_dict(asked["features"]))

def push(columns, split, **options):
    return dataset(columns).push_to_hub("user/rows", split=split, **options).oid

def load(split, **options):
    loaded = load_dataset("user/rows", split=split, **options)
    return {"rows": loaded.to_dict(), "features": loaded.features.to_dict(), "n_rows": len(loaded)}

def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return [type(error).__name__, str(error)]

asked = json.load(sys.stdin)
report = {"missing": error_of(load_dataset, "user/absent", split="train")}
report["missing without user"] = error_of(load_dataset, "absent", split="train")
report["missing info"] = error_of(HfApi().dataset_info, "user/absent")

first = push(asked["rows"], "train")
report["first"] = load("train")
report["unchanged"] = push(asked["rows"], "train") == first

push(asked["few rows"], "test")
report["splits"] = sorted(get_dataset_split_names("user/rows"))
report["test"] = load("test")
report["train beside test"] = load("train")

push(asked["few rows"], "train", num_shards=2)
report["replaced"] = load("train")
report["files"] = HfApi().list_repo_files("user/rows", repo_type="dataset")
report["old revision"] = load("train", revision=first)
report["old files"] = HfApi().list_repo_files("user/rows", repo_type="dataset", revision=first)
report["missing revision"] = error_of(load, "train", revision="absent")
deletion = CommitOperationDelete("README.md")
late = {"commit_message": "late", "parent_commit": first, "repo_type": "dataset"}
report["late"] = error_of(HfApi().create_commit, "user/rows", [deletion], **late)
report["streamed"] = list(load_dataset("user/rows", split="train", streaming=True))

json.dump(report, sys.stdout)
"""


def value(dtype: str) -> dict[str, str]:
    return {"dtype": dtype, "_type": "Value"}


def signed(n_bits: int) -> list[int]:
    """The ends of an integer type, and a number between."""
    return [-(2 ** (n_bits - 1)), 7, 2 ** (n_bits - 1) - 1]


#: Three rows of every type: a column's feature as the libraries write it down, and its values.
COLUMNS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    **{f"int{n_bits}": (value(f"int{n_bits}"), signed(n_bits)) for n_bits in (8, 16, 32, 64)},
    "float16": (value("float16"), [65504.0, -(2.0**-24), 0.5]),
    "float32": (value("float32"), [2.0**-149, -(2.0**127), 0.25]),
    "float64": (value("float64"), [5e-324, 0.1, -1.7976931348623157e308]),
    "bool": (value("bool"), [True, None, False]),
    "list": ({"feature": value("int32"), "_type": "List"}, [[1, None, 3], None, []]),
    "array": (
        {"shape": [2, 2], "dtype": "float32", "_type": "Array2D"},
        [[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.5], [1.0, 1.5]], [[9.0, 8.0], [7.0, 6.0]]],
    ),
}
FEATURES = {name: feature for name, (feature, _) in COLUMNS.items()}
ROWS = {name: values for name, (_, values) in COLUMNS.items()}
FEW_ROWS = {name: values[:2] for name, values in ROWS.items()}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a client met with that pushed and loaded, and what the hub was asked."""
    asked = {"features": FEATURES, "rows": ROWS, "few rows": FEW_ROWS}
    with local_hub() as hub:
        return hub.told_by(CLIENT, tmp_path_factory.mktemp("home"), asked)


def loaded(rows: dict[str, list[Any]]) -> dict[str, Any]:
    """How the client reports rows that came back as they were pushed."""
    return {"rows": rows, "features": FEATURES, "n_rows": len(rows["bool"])}


def test_what_was_pushed_is_loaded_exactly(report: dict[str, Any]) -> None:
    """Rows and features come back as they went, and Parquet travels as a large file."""
    assert report["first"] == loaded(ROWS)
    assert any(request.startswith("PUT /objects/") for request in report["requests"])


def test_second_split_stands_beside_the_first(report: dict[str, Any]) -> None:
    """Pushing one split leaves the other as it was."""
    assert report["splits"] == ["test", "train"]
    assert report["test"] == loaded(FEW_ROWS)
    assert report["train beside test"] == loaded(ROWS)


def test_pushing_again_replaces_and_keeps_the_past(report: dict[str, Any]) -> None:
    """The new files take the place of the old ones, which stay where somebody asks for their commit."""
    assert report["unchanged"], "a push that changes nothing should be no commit"
    assert report["replaced"] == loaded(FEW_ROWS)
    assert report["streamed"] == [dict(zip(FEW_ROWS, row, strict=True)) for row in zip(*FEW_ROWS.values(), strict=True)]
    assert sorted(report["files"]) == [
        "README.md",
        "data/test-00000-of-00001.parquet",
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
    ]
    assert report["old revision"] == loaded(ROWS)
    assert sorted(report["old files"]) == ["README.md", "data/train-00000-of-00001.parquet"]


def test_commit_on_an_old_state_is_refused(report: dict[str, Any]) -> None:
    """Who read the files before somebody else's push cannot undo that push without knowing."""
    kind, message = report["late"]

    assert kind == "HfHubHTTPError"
    assert "412" in message


def test_what_is_missing_is_the_clients_own_error(report: dict[str, Any]) -> None:
    """Both libraries say what does not exist, by its name or address."""
    absent = "doesn't exist on the Hub or cannot be accessed."
    kind, message = report["missing info"]

    assert report["missing"] == ["DatasetNotFoundError", f"Dataset 'user/absent' {absent}"]
    assert report["missing without user"] == ["DatasetNotFoundError", f"Dataset 'absent' {absent}"]
    assert report["missing revision"][0] == "DatasetNotFoundError"
    assert kind == "RepositoryNotFoundError"
    assert "/api/datasets/user/absent" in message
