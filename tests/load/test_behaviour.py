"""Every dataset, every view, and every view of a view behaves like a dataset."""

from __future__ import annotations

import importlib
from pathlib import Path
from pkgutil import iter_modules

import pytest

from poolish import load
from poolish.errors import ConfigError
from poolish.load import views
from poolish.load.dataset import Dataset
from poolish.testing import DatasetBehaviour
from tests.effort import IS_SOAK
from tests.load.files import make_audio, make_cifar, make_images, make_text
from tests.load.sources import VIEWS, Rows, buffer, row

SOURCES = {
    "Rows": lambda folder: Rows(20),
    "Buffer": lambda folder: buffer(20),
    "WholeBuffer": lambda folder: buffer(20, holes=False),
    "Snapshot": lambda folder: buffer(20).snapshot(),
}


def suite(name: str, make) -> None:
    """A test class in this module."""
    globals()[f"Test{name}"] = type(f"Test{name}", (DatasetBehaviour,), {"make": lambda self, folder: make(folder)})


def of(view, source):
    return lambda folder: view(source(folder), folder)


suite("Rows", SOURCES["Rows"])
suite("Buffer", SOURCES["Buffer"])
suite("Snapshot", SOURCES["Snapshot"])
suite("List", lambda folder: tuple((n, f"row {n}") for n in range(7)))
for number, (view_name, view) in enumerate(VIEWS.items()):
    for k, (source_name, source) in enumerate(SOURCES.items()):
        # Rows are numbered, and a buffer has holes; what is like one of them comes in turns, and always in a soak.
        if IS_SOAK or k < 2 or (number + k) % 2:
            suite(f"{view_name}{source_name}", of(view, source))
    # A view of every view: over ids with holes, or over numbers, in turns.
    for k, (outer_name, outer) in enumerate(VIEWS.items()):
        if {view_name, outer_name} == {"OnDisk"}:  # one folder cannot serve two caches
            continue
        if (
            IS_SOAK or (k + list(VIEWS).index(view_name)) % 5 == 0
        ):  # each push a fifth of the pairs, all of them in a soak
            source_name = ("Buffer", "Rows")[(k + len(view_name)) % 2]
            suite(f"{outer_name}{view_name}{source_name}", of(outer, of(view, SOURCES[source_name])))
suite("ImageFolder", make_images)
suite("CIFAR10", make_cifar)
suite("TextLines", make_text)
suite("TextDocuments", lambda folder: make_text(folder, unit="document"))
suite("TextFiles", lambda folder: make_text(folder, unit="document", documents="file"))
suite("Audio", make_audio)
suite("CachedImages", lambda folder: VIEWS["OnDisk"](make_images(folder), folder))
suite("FilteredText", lambda folder: VIEWS["Subsetted"](make_text(folder), folder))


def test_every_view_is_registered_exported_and_behaves(tmp_path):
    """``load.VIEWS`` is complete: it has each public view of the package, and the suite above makes each of them."""
    modules = [importlib.import_module(f"poolish.load.views.{each.name}") for each in iter_modules(views.__path__)]
    public = {getattr(load, name) for name in load.__all__}
    homes = {module.__name__ for module in modules}
    made = {type(make(Rows(20), tmp_path)) for make in VIEWS.values()}
    elsewhere = {load.JoinedDataset, load.ResilientDataset}  # test_shards and views/test_resilient run the suite

    assert {each for each in public if each.__module__ in homes and isinstance(each, type)} <= {*load.VIEWS}
    assert {*load.VIEWS} <= public
    assert {*load.VIEWS} <= made | elsewhere


# The suite itself can fail --------------------------------------------------------------------------------------


class Broken(Rows):
    """A dataset with one thing wrong."""

    def __init__(self, wrong: str) -> None:
        super().__init__(9)
        self.wrong, self.n_asked, self.kept = wrong, 0, [row(n) for n in range(9)]

    def __getitem__(self, index):
        self.n_asked += 1
        if self.wrong == "forgets the end" and index >= 9:
            index = 0
        if self.wrong == "wraps round":
            index = int(index) % 9
        if self.wrong == "takes text" and isinstance(index, str):
            index = int(index)
        if self.wrong == "counts":
            return {"asked": self.n_asked}
        if self.wrong == "hands out its own":
            return self.kept[index]
        return super().__getitem__(index)

    def __getitems__(self, indices):
        rows = super().__getitems__(indices)
        return sorted(rows, key=lambda sample: sample["n"]) if self.wrong == "sorts" else rows

    def ids_of(self, numbers):
        return numbers[::-1] if self.wrong == "mixes ids" else numbers


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        ("forgets the end", "test_numbers_outside_are_index_errors"),
        ("wraps round", "test_numbers_outside_are_index_errors"),
        ("takes text", "test_what_is_no_number_is_a_type_error"),
        ("counts", "test_rows_do_not_depend_on_what_was_read_before"),
        ("counts", "test_threads_read_the_same_rows"),
        ("counts", "test_a_forked_process_reads_the_same_rows"),
        ("hands out its own", "test_changing_a_sample_changes_no_other"),
        ("sorts", "test_many_rows_are_those_rows"),
        ("mixes ids", "test_ids_find_the_same_rows"),
    ],
)
def test_a_broken_dataset_does_not_pass(wrong: str, test: str, tmp_path: Path):
    """Each of the tests can fail, and says so."""

    class Suite(DatasetBehaviour):
        def make(self, folder):
            return Broken(wrong)

    with pytest.raises(AssertionError):
        getattr(Suite(), test)(tmp_path)


def test_a_suite_needs_a_dataset(tmp_path: Path):
    """Whoever forgets ``make`` is told."""
    with pytest.raises(ConfigError, match=r"make\(folder\)"):
        DatasetBehaviour().test_length_is_a_number_of_rows(tmp_path)


def test_dataset_is_abstract():
    """A class without a length or an index is no dataset."""
    with pytest.raises(TypeError, match="abstract"):
        Dataset()
