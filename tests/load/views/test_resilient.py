"""ResilientDataset: a source that flaps, breaks and loses rows, and a loader that goes on all the same."""

from __future__ import annotations

import pytest

from poolish import DatasetBuffer
from poolish.errors import BudgetSpent, ConfigError
from poolish.guards import CircuitBreaker, CircuitOpen, Faults, Retry
from poolish.load import Loader, ResilientDataset, TransformedDataset
from poolish.testing import DatasetBehaviour


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Source:
    """Rows of which some fail so many times before they can be read; -1 is for ever."""

    def __init__(self, n_rows: int, failing: dict[int, int]) -> None:
        self.n_rows, self.failing, self.n_asked = n_rows, dict(failing), 0

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, i: int) -> dict[str, int]:
        self.n_asked += 1
        if self.failing.get(i, 0):
            self.failing[i] -= self.failing[i] > 0
            raise OSError(f"row {i} is away")
        return {"n": i}


def numbers(dataset: object) -> list[int]:
    return [row["n"] for row in dataset]  # type: ignore[attr-defined]


class TestResilient(DatasetBehaviour):
    """It is a dataset like any other."""

    gives_copies = False  # what is below hands out its own rows

    def make(self, folder):
        return ResilientDataset([{"n": i} for i in range(9)], retry=Retry(3), breaker=CircuitBreaker())


def test_an_attempt_that_fails_is_made_again():
    """As often as ``retry`` says, and no longer."""
    clock = Clock()
    retry = Retry(3, clock=clock, sleep=clock.sleep)

    assert numbers(ResilientDataset(Source(4, {2: 2}), retry=retry)) == [0, 1, 2, 3]
    with pytest.raises(OSError, match="row 2 is away"):
        numbers(ResilientDataset(Source(4, {2: -1}), retry=retry))
    assert clock.now > 0


def test_a_source_that_fails_is_left_alone_and_asked_again_later():
    """The breaker opens, refuses without asking, and after its time lets one read through."""
    clock = Clock()
    source = Source(4, dict.fromkeys(range(4), 5))
    breaker = CircuitBreaker(error_rate=0.5, window=4, cooldown=30.0, clock=clock)
    dataset = ResilientDataset(source, breaker=breaker)
    for _ in range(4):
        with pytest.raises(OSError, match="away"):
            dataset[0]

    n_asked = source.n_asked
    with pytest.raises(CircuitOpen):
        dataset[1]
    assert source.n_asked == n_asked
    source.failing = {}
    clock.sleep(31)

    assert dataset[1] == {"n": 1}
    assert breaker.state == "closed"


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults(on_sample="neighbour", budget=9), [0, 2, 2, 3]),
        (Faults(on_sample="placeholder", placeholder={"n": -1}, budget=9), [0, -1, 2, 3]),
    ],
)
def test_what_cannot_be_had_is_replaced_and_counted(faults, expected):
    """By the policy that the user chose."""
    dataset = ResilientDataset(Source(4, {1: -1}), faults=faults)

    assert numbers(dataset) == expected
    assert faults.n_failed == 1


def test_a_budget_ends_in_an_error():
    """Not a dataset of placeholders."""
    faults = Faults(on_sample="placeholder", placeholder={"n": -1}, budget=2)

    with pytest.raises(BudgetSpent):
        numbers(ResilientDataset(Source(9, dict.fromkeys(range(9), -1)), faults=faults))


def test_bugs_are_not_survived():
    """A TypeError is nobody's data."""

    def broken(row):
        return row["n"] + "text"

    dataset = ResilientDataset(
        TransformedDataset([{"n": 1}], broken), retry=Retry(3), faults=Faults(on_sample="neighbour")
    )

    with pytest.raises(TypeError):
        dataset[0]


def test_skipping_is_for_loaders():
    """A dataset has a row for every number."""
    with pytest.raises(ConfigError, match="Loader"):
        ResilientDataset([1], faults=Faults(on_sample="skip"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_reads_every_row_of_a_flapping_source_once(num_workers):
    """Retries change neither the order nor the rows, and resuming is as exact as without."""
    clock = Clock()
    source = Source(50, dict.fromkeys(range(0, 50, 3), 1))
    dataset = ResilientDataset(source, retry=Retry(4, clock=clock, sleep=clock.sleep))
    plain = [batch["n"].tolist() for batch in Loader(Source(50, {}), 7, shuffle=True, output="numpy")]

    read = [batch["n"].tolist() for batch in Loader(dataset, 7, shuffle=True, output="numpy", num_workers=num_workers)]

    assert read == plain


def test_neighbours_in_a_buffer_are_rows_that_are_there():
    """Ids with holes: the nearest living row stands in."""
    buffer = DatasetBuffer()
    buffer.append([{"n": i} for i in range(10)])
    buffer.retain(0.5, by="latest")

    def fail(row):
        if row["n"] == 5:
            raise ValueError("broken")
        return row

    dataset = ResilientDataset(TransformedDataset(buffer, fail), faults=Faults(on_sample="neighbour", budget=9))
    (batch,) = Loader(dataset, 9, output="numpy")

    assert batch["n"].tolist() == [6, 6, 7, 8, 9]
    assert batch.ids.tolist() == [5, 6, 7, 8, 9]
