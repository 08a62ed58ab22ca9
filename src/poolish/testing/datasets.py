"""The behaviour of every dataset, as tests: a class that passes works wherever poolish takes a dataset.

    from poolish.testing import DatasetBehaviour

    class TestMyDataset(DatasetBehaviour):
        def make(self, folder):
            return MyDataset(folder)

The dataset needs five rows or more; each test makes a new one in an empty folder. Optional methods are tested only
where they exist, so lists and torch datasets can be tested as well.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np

from poolish.errors import ConfigError
from poolish.load.dataset import Dataset, samples
from poolish.load.frozen import ids_of, snapshot_rows
from poolish.testing.faults import in_child


class DatasetBehaviour:
    """The tests; give ``make``, and set to False what your dataset does not promise."""

    #: Whether it can be sent to a process that was not forked (a lambda inside it cannot).
    travels = True
    #: Whether callers may change the samples they read.
    gives_copies = True

    def make(self, folder: Path) -> Any:
        """The dataset to test."""
        raise ConfigError(f"{type(self).__name__}: write make(folder), which returns the dataset to test")

    # -- length and index

    def test_length_is_a_number_of_rows(self, tmp_path: Path) -> None:
        """There is a length, and it stays while nothing changes."""
        dataset = self.make(tmp_path)
        n_rows = len(dataset)
        assert n_rows >= 5, f"make a dataset of 5 rows or more, this has {n_rows}"
        read(dataset)
        assert len(dataset) == n_rows, "reading changed the length"

    def test_negative_numbers_count_from_the_end(self, tmp_path: Path) -> None:
        """As in a list."""
        dataset = self.make(tmp_path)
        n_rows = len(dataset)
        for i in range(n_rows):
            check(same(dataset[i - n_rows], dataset[i]), f"row {i - n_rows} is not row {i} of {n_rows}")

    def test_numbers_outside_are_index_errors(self, tmp_path: Path) -> None:
        """At both ends, near and far; a loop over the numbers then ends where the rows do."""
        dataset = self.make(tmp_path)
        n_rows = len(dataset)
        for number in (n_rows, -n_rows - 1, n_rows + 10**6, 10**18, -(10**18)):
            raises(IndexError, dataset.__getitem__, number)
            raises(IndexError, lambda wanted: samples(dataset, wanted), [0, number])

    def test_what_is_no_number_is_a_type_error(self, tmp_path: Path) -> None:
        """Never a row that the caller did not ask for."""
        dataset = self.make(tmp_path)
        if isinstance(dataset, Dataset):
            for index in (1.0, "1", None, (0,)):
                raises(TypeError, dataset.__getitem__, index)

    def test_numpy_integers_are_numbers(self, tmp_path: Path) -> None:
        """Samplers yield them."""
        dataset = self.make(tmp_path)
        check(same(dataset[np.int64(3)], dataset[3]), "dataset[np.int64(3)] is not dataset[3]")

    # -- many at once

    def test_many_rows_are_those_rows(self, tmp_path: Path) -> None:
        """``__getitems__`` gives what ``__getitem__`` gives: in that order, repeated, from the end, or none."""
        dataset = self.make(tmp_path)
        if not hasattr(dataset, "__getitems__"):
            return
        for numbers in ([], [0], [3, 1, 3, -1, 0], list(range(len(dataset)))):
            check(same(list(dataset.__getitems__(numbers)), [dataset[i] for i in numbers]), f"rows {numbers} differ")

    def test_iteration_is_all_rows(self, tmp_path: Path) -> None:
        """In order, and twice the same."""
        dataset = self.make(tmp_path)
        if isinstance(dataset, Dataset):
            expected = read(dataset)
            check(same(list(dataset), expected), "iterating gives other rows")
            check(same(list(dataset), expected), "iterating again gives other rows")

    def test_plus_puts_one_behind_the_other(self, tmp_path: Path) -> None:
        """With itself and with a list."""
        dataset = self.make(tmp_path)
        if isinstance(dataset, Dataset):
            expected = read(dataset)
            check(same(read(dataset + dataset), expected + expected), "dataset + dataset")
            others = ["rye"]
            check(same(read(dataset + others), expected + others), "dataset + list")

    # -- stateless

    def test_rows_do_not_depend_on_what_was_read_before(self, tmp_path: Path) -> None:
        """Any order, any number of times, and in a dataset made anew that is asked for the last row first."""
        dataset = self.make(tmp_path)
        expected = read(dataset)
        numbers = [i for i in range(len(expected)) for _ in range(2)]
        random.Random(0).shuffle(numbers)
        for i in numbers:
            check(same(dataset[i], expected[i]), f"row {i} is another one the next time")

    def test_threads_read_the_same_rows(self, tmp_path: Path) -> None:
        """Eight of them at once, over a dataset that has not been read yet."""
        dataset = self.make(tmp_path)

        def read_shuffled(seed: int) -> list[Any]:
            numbers = list(range(5 if seed % 2 else len(dataset)))
            random.Random(seed).shuffle(numbers)
            found = {i: dataset[i] for i in numbers}
            return [found[i] for i in sorted(found)]

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(read_shuffled, range(16)))
        expected = read(dataset)
        for seed, answer in enumerate(answers):
            check(same(answer, expected[:5] if seed % 2 else expected), "a thread read another row")

    def test_a_forked_process_reads_the_same_rows(self, tmp_path: Path) -> None:
        """As torch's workers do."""
        dataset = self.make(tmp_path)
        expected = read(dataset)
        status = in_child(lambda: check(same(read(dataset), expected), "the rows differ"))
        check(status == 0, "a forked process read other rows")

    def test_a_copy_that_travelled_reads_the_same_rows(self, tmp_path: Path) -> None:
        """As to workers that are spawned; a copy made before anything was read, and one made after."""
        if not self.travels:
            return
        dataset = self.make(tmp_path)
        early = bytes(ForkingPickler.dumps(dataset))
        expected = read(dataset)
        for sent in (early, bytes(ForkingPickler.dumps(dataset))):
            check(same(read(ForkingPickler.loads(sent)), expected), "the copy reads other rows")

    def test_changing_a_sample_changes_no_other(self, tmp_path: Path) -> None:
        """A caller may write into a writable sample, and no other caller sees it."""
        if not self.gives_copies:
            return
        dataset = self.make(tmp_path)
        expected = copy.deepcopy(read(dataset))
        for i in range(len(dataset)):
            spoil(dataset[i])
            spoil(samples(dataset, [i])[0])
            check(same(dataset[i], expected[i]), f"row {i} was changed by changing what it gave before")

    # -- repr, metadata and loading

    def test_repr_is_one_short_line(self, tmp_path: Path) -> None:
        """What it is and how long."""
        dataset = self.make(tmp_path)
        if isinstance(dataset, Dataset):
            shown = repr(dataset)
            check(type(dataset).__name__ in shown and f"{len(dataset):,}" in shown, f"repr says too little: {shown}")
            check("\n" not in shown and len(shown) < 400, f"repr is too long: {shown}")

    def test_metadata_describes_the_dataset(self, tmp_path: Path) -> None:
        """Name, rows, columns and version, as the rows are."""
        dataset = self.make(tmp_path)
        if isinstance(dataset, Dataset):
            metadata = dataset.metadata
            check(metadata["rows"] == len(dataset) and metadata["name"] == type(dataset).__name__, repr(metadata))
            first = dataset[0]
            check(metadata["columns"] == (list(first) if isinstance(first, dict) else None), repr(metadata))
            check(metadata["version"] == dataset.version, "the version changes by itself")

    def test_ids_find_the_same_rows(self, tmp_path: Path) -> None:
        """A loader reads by id, from rows frozen at one moment: each number has one, and it is that row."""
        dataset = self.make(tmp_path)
        expected = read(dataset)
        ids, rows = ids_of(dataset, range(len(expected))), snapshot_rows(dataset)
        alive = rows.alive(ids)
        check(len(rows) == len(expected), f"{len(rows)} rows frozen of {len(expected)}")
        check(len(set(ids.tolist())) == len(ids), "an id stands for two rows")
        check(alive is None or bool(alive.all()), "a row is not there when it is asked for by id")
        check(all(any(a <= i < b for a, b in rows.spans()) for i in ids.tolist()), "an id lies outside of the spans")
        check(same(rows.fetch(ids), expected), "an id gives another row than its number")
        check(same(rows.fetch(ids[::-1][:3]), expected[::-1][:3]), "ids in another order give other rows")

    def test_an_epoch_can_be_announced(self, tmp_path: Path) -> None:
        """Loaders do; and the same epoch is the same rows."""
        dataset = self.make(tmp_path)
        if isinstance(dataset, Dataset):
            dataset.set_epoch(1)
            expected = read(dataset)
            dataset.set_epoch(2)
            read(dataset)
            dataset.set_epoch(1)
            check(same(read(dataset), expected), "epoch 1 is another one the second time")

    def test_torch_loads_it(self, tmp_path: Path) -> None:
        """The DataLoader of torch takes it as a map-style dataset (where torch is installed)."""
        try:
            from torch.utils.data import DataLoader
        except ImportError:
            return
        dataset = self.make(tmp_path)
        expected = read(dataset)
        loader: Any = DataLoader(dataset, batch_size=3, collate_fn=list)
        check(same([sample for batch in loader for sample in batch], expected), "torch's DataLoader reads other rows")


# Asking and comparing -----------------------------------------------------------------------------------------


def read(dataset: Any) -> list[Any]:
    """All samples, one by one."""
    return [dataset[i] for i in range(len(dataset))]


def same(a: Any, b: Any) -> bool:
    """Whether two samples are equal, arrays and tensors included: the same types, shapes and values, NaN like NaN.

    >>> same({"x": np.zeros(2)}, {"x": np.zeros(2)}), same({"x": np.zeros(2)}, {"x": [0.0, 0.0]})
    (True, False)
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "dtype") and hasattr(a, "shape"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and _same_values(np.asarray(a), np.asarray(b)))
    return bool(a == b) or (a != a and b != b)


def _same_values(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def spoil(sample: Any) -> None:
    """Change a sample as deep as it can be changed; what is read-only stays."""
    if isinstance(sample, dict):
        spoil_all(sample.values())
        sample.clear()
    elif isinstance(sample, (list, tuple)):
        spoil_all(sample)
        if isinstance(sample, list):
            sample.clear()
    elif isinstance(sample, np.ndarray) and sample.flags.writeable:
        sample.fill(1 if sample.dtype.kind in "biufc" and not sample.any() else 0)
    elif hasattr(sample, "zero_"):
        sample.zero_()


def spoil_all(values: Iterable[Any]) -> None:
    """Each of them."""
    for value in list(values):
        spoil(value)


def check(holds: bool, otherwise: str) -> None:
    """An assertion whose message is seen also where pytest does not rewrite it."""
    if not holds:
        raise AssertionError(otherwise)


def raises(expected: type[Exception], ask: Callable[[Any], Any], index: Any) -> None:
    """That asking for a row fails as it should."""
    try:
        answer = ask(index)
    except expected:
        return
    raise AssertionError(f"asked for {index!r}: should be a {expected.__name__}, and gave {answer!r}")
