"""Windows as a map-style dataset: each number means one window for ever, while the stream grows, wherever one reads."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from poolish import StreamStore
from poolish.errors import ConfigError, PoolishError
from tests.effort import times
from tests.rows.children import in_child
from tests.tokens.plain_stream import PlainField, PlainStream, Write, filled

pytestmark = pytest.mark.kernels

torch.set_num_threads(1)

FIELDS = {"x": "int64", "done": "bool"}
PLAIN_FIELDS = [PlainField("x", "int64"), PlainField("done", "bool")]


def steps_of(lengths: list[int], first: int = 0) -> list[Write]:
    """Episodes of so many steps, two tokens each; the values of x count the steps."""
    writes = []
    for length in lengths:
        for i in range(length):
            writes += [Write(first, 0, (first,)), Write(first, 1, (int(i == length - 1),))]
            first += 1
    return writes


def pair(path: Any = None, max_tokens: int | None = None) -> tuple[StreamStore, PlainStream]:
    return StreamStore(path, fields=FIELDS, max_tokens=max_tokens), PlainStream(PLAIN_FIELDS, max_tokens)


def starts_of(plain: PlainStream, width: int, stride: int, within: str | None) -> list[int]:
    """Every ``stride`` tokens from the beginning of an episode, or of the stream."""
    return [p for begin, end in plain.episodes(within) for p in range(begin, end - width + 1, stride)]


def windows_of(plain: PlainStream, starts: list[int], width: int) -> list[list[int]]:
    return [plain.tokens[start - plain.first :][:width] for start in starts]


def values(batches: Any) -> list[list[int]]:
    return [batch["values"].tolist() for batch in batches]


# What is in it ------------------------------------------------------------------------------------------------


@settings(max_examples=times(60))
@given(
    st.lists(st.integers(1, 6), max_size=8),
    st.integers(1, 7),
    st.none() | st.integers(1, 9),
    st.sampled_from([None, "done"]),
)
def test_windows_are_those_one_would_count_out(lengths, width, stride, within):
    """In order, ``stride`` apart (the width unless given), inside one episode if asked, with their types."""
    store, plain = pair()
    filled(store, plain, steps_of(lengths))
    dataset = store.as_dataset(width, stride, within)

    starts = starts_of(plain, width, stride or width, within)

    assert len(dataset) == len(starts)
    assert values(dataset) == windows_of(plain, starts, width)
    assert [batch["types"].tolist() for batch in dataset] == [plain.types[start:][:width] for start in starts]
    assert values(dataset[i] for i in range(-len(starts), 0)) == windows_of(plain, starts, width)
    assert values(dataset.__getitems__(range(len(starts)))) == windows_of(plain, starts, width)


@settings(max_examples=times(40))
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=10),
    st.integers(1, 6),
    st.integers(1, 7),
    st.sampled_from([None, "done"]),
)
def test_a_window_keeps_its_number_while_the_stream_grows(lengths, width, stride, within):
    """Looked at after every step: what was there is where it was, new windows come behind it."""
    store, plain = pair()
    dataset = store.as_dataset(width, stride, within)
    seen: list[list[int]] = []

    def look() -> None:
        assert len(dataset) == len(starts_of(plain, width, stride, within))
        now = values(dataset)
        assert now[: len(seen)] == seen
        seen[:] = now

    filled(store, plain, steps_of(lengths), look)

    assert seen == windows_of(plain, starts_of(plain, width, stride, within), width)


@settings(max_examples=times(40))
@given(
    st.lists(st.integers(1, 8), min_size=3, max_size=10),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([None, "done"]),
)
def test_in_a_bounded_stream_windows_leave_and_keep_their_numbers(lengths, width, stride, within):
    """A number whose tokens have left is an IndexError; every other one is the window that it always was."""
    everything = PlainStream(PLAIN_FIELDS)
    everything.append(steps_of(lengths))
    expected = windows_of(everything, starts_of(everything, width, stride, within), width)
    starts = starts_of(everything, width, stride, within)
    store, plain = pair(max_tokens=16)
    dataset = store.as_dataset(width, stride, within)

    filled(store, plain, steps_of(lengths), lambda: len(dataset))

    assert len(dataset) == len(expected)
    for copy in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert len(copy) == len(expected)
        for i, start in enumerate(starts):
            if start >= plain.first:
                assert copy[i]["values"].tolist() == expected[i]
            else:
                with pytest.raises(IndexError):
                    copy[i]
    again = store.as_dataset(width, stride, within)
    kept = [start for start in starts if start >= plain.first]  # windows begin at multiples of the stride, for ever
    expected = [expected[starts.index(start)] for start in kept]
    assert values(again) == (windows_of(plain, starts_of(plain, width, stride, within), width) if within else expected)


@pytest.mark.parametrize(("within", "stride"), [(None, 3), ("done", 1), ("done", 3)])
def test_a_copy_that_did_not_look_for_long_never_shows_another_window(within, stride):
    """A worker that waits while whole episodes come and go cannot count them any more: it says so, or it is right."""
    store, plain = pair(max_tokens=24)
    dataset = store.as_dataset(3, stride, within)
    idle = pickle.loads(pickle.dumps(dataset))

    filled(store, plain, steps_of([3, 4, 2, 5, 4, 3, 5]), lambda: len(dataset))

    n_shown = 0
    for i in range(len(dataset)):
        try:
            right = dataset[i]["values"].tolist()
        except IndexError:
            continue
        try:
            shown = idle[i]["values"].tolist()
        except (IndexError, PoolishError):
            continue
        assert shown == right
        n_shown += 1
    assert n_shown > 0 or within is not None


def test_a_window_never_lies_in_two_episodes():
    """Read from the values: x counts the episodes."""
    store = StreamStore(fields=FIELDS)
    numbers = np.arange(300)
    store.append_many(numbers, {"x": numbers // 7, "done": numbers % 7 == 6})

    batches = store.as_dataset(5, 2, within="done").__getitems__(range(43))

    assert all(len(set(b["values"][b["types"] == 0].tolist())) == 1 for b in batches)


# Numbers ------------------------------------------------------------------------------------------------------


def numbered(n: int = 10) -> StreamStore:
    store = StreamStore(fields={"x": "int64"})
    store.append_many(range(n), {"x": range(n)})
    return store


@pytest.mark.parametrize("i", [4, -5, 100, 2**62, -(2**62), 2**64, np.uint64(2**64 - 1)])
def test_a_number_outside_is_an_index_error(i):
    """So that ``for`` over numbers ends; the message says how many there are."""
    dataset = numbered().as_dataset(3, 2)

    with pytest.raises(IndexError, match="4"):
        dataset[i]
    with pytest.raises(IndexError, match="4"):
        dataset.__getitems__([0, i])


@pytest.mark.parametrize("i", [1.5, 1.0, True, "1", None, slice(2), [1], np.float64(1), np.array([0.5])], ids=repr)
def test_what_is_no_number_is_refused(i):
    """Never rounded, never taken for 1."""
    dataset = numbered().as_dataset(3, 2)

    with pytest.raises((IndexError, TypeError)):
        dataset[i]


def test_numbers_of_numpy_and_torch_are_numbers():
    """Samplers hand out these."""
    dataset = numbered().as_dataset(3, 2)

    for i in (1, np.int64(1), np.uint8(1), torch.tensor(1)):
        assert dataset[i]["values"].tolist() == [2, 3, 4]
    for i in ([1, -1], np.array([1, 3]), torch.tensor([1, 3]), (1, 3)):
        assert values(dataset.__getitems__(i)) == [[2, 3, 4], [6, 7, 8]]
    assert dataset.__getitems__([]) == []


@pytest.mark.parametrize(
    "bad", [{"width": 0}, {"width": 1.5}, {"width": True}, {"stride": 0}, {"stride": -1}, {"stride": "2"}]
)
def test_sizes_are_checked_when_it_is_made(bad):
    """A width or stride that makes no sense is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=next(iter(bad))):
        numbered().as_dataset(**{"width": 3, **bad})


def test_an_unknown_field_is_refused_when_it_is_made():
    """Not at the first window."""
    with pytest.raises(PoolishError, match="absent"):
        numbered().as_dataset(3, within="absent")


@pytest.mark.parametrize("within", [None, "done"])
def test_an_empty_stream_has_no_windows_yet(within):
    """Nor does a window that is wider than the stream fit; both may come."""
    store, plain = pair()
    dataset = store.as_dataset(4, within=within)

    assert (len(dataset), list(dataset)) == (0, [])
    with pytest.raises(IndexError):
        dataset[0]
    with pytest.raises(IndexError):
        dataset[-1]
    filled(store, plain, steps_of([1, 5]))
    assert len(dataset) == (3 if within is None else 2)


def test_windows_are_copies():
    """Writing to one changes no token."""
    store = numbered()
    dataset = store.as_dataset(3)

    dataset[0]["values"][:] = -1
    dataset.__getitems__([0, 1])[0]["values"][:] = -1

    assert store[:]["values"].tolist() == list(range(10))


# While it grows -----------------------------------------------------------------------------------------------


def test_a_reader_looks_what_is_new_when_it_is_asked_for_its_length(tmp_path):
    """``len`` and a number behind the old end see what was appended since; nobody calls refresh."""
    store, plain = pair(tmp_path / "s")
    filled(store, plain, steps_of([4]))
    reader = StreamStore.open(tmp_path / "s")
    datasets = [reader.as_dataset(4), reader.as_dataset(4, within="done")]
    assert [len(dataset) for dataset in datasets] == [2, 2]

    filled(store, plain, steps_of([5], 4))

    for dataset, within in zip(datasets, (None, "done"), strict=True):
        assert dataset[3]["values"].tolist() == windows_of(plain, starts_of(plain, 4, 4, within), 4)[3]
    assert [len(dataset) for dataset in datasets] == [4, 4]


@pytest.mark.parametrize("within", [None, "done"])
def test_iterating_goes_on_as_long_as_something_comes(within):
    """A loop over the dataset sees what is appended during it, each window once."""
    store, plain = pair()
    filled(store, plain, steps_of([3]))
    seen = []

    for i, batch in enumerate(store.as_dataset(3, 2, within)):
        seen.append(batch["values"].tolist())
        if i < 4:
            filled(store, plain, steps_of([2], 3 + 2 * i))

    assert seen == windows_of(plain, starts_of(plain, 3, 2, within), 3)


@pytest.mark.parametrize("within", [None, "done"])
def test_a_pickled_dataset_is_the_same_windows(tmp_path, within):
    """Read in another process, it has the same numbers, and goes on with the stream."""
    store, plain = pair(tmp_path / "s")
    filled(store, plain, steps_of([3, 5]))
    dataset = store.as_dataset(4, 3, within)

    arrived = pickle.loads(pickle.dumps(dataset))
    assert values(arrived) == values(dataset)
    filled(store, plain, steps_of([4], 8))

    assert values(arrived) == values(dataset) == windows_of(plain, starts_of(plain, 4, 3, within), 4)
    assert in_child(values, dataset) == values(dataset)


def test_a_dataset_says_what_it_is():
    """How many, how wide, how far apart, of what."""
    shown = repr(numbered().as_dataset(3, 2))

    assert shown.startswith("<4 windows of 3 tokens, 2 apart")


# torch's DataLoader -------------------------------------------------------------------------------------------


def workers(start: str | None) -> dict[str, Any]:
    if start is None:
        return {}
    return {"num_workers": 2, "multiprocessing_context": start, "timeout": 60, "persistent_workers": True}


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
def test_a_loader_gives_every_window_once_while_the_stream_grows(start, tmp_path):
    """Each epoch has all windows there were when it began, in workers that stay, forked or spawned; as tensors."""
    store, plain = pair(tmp_path / "s" if start == "fork" else None)
    filled(store, plain, steps_of([9, 2, 7]))
    loader = DataLoader(store.as_dataset(4, 3, within="done"), batch_size=3, **workers(start))
    first = 18

    for length in (5, 8, 1):
        expected = windows_of(plain, starts_of(plain, 4, 3, "done"), 4)
        seen = []
        for i, batch in enumerate(loader):
            assert batch["values"].dtype == batch["types"].dtype == torch.int64
            seen += batch["values"].tolist()
            if i == 0:
                filled(store, plain, steps_of([length], first))
                first += length
        assert seen == expected


@pytest.mark.parametrize("start", [None, "fork"])
def test_a_shuffled_loader_gives_every_window_once_in_each_epoch(start):
    """The stream grows between the epochs. (torch's RandomSampler asks for the length twice in an epoch, so within one
    it must not grow.)"""
    store, plain = pair()
    filled(store, plain, steps_of([9, 2, 7]))
    dataset = store.as_dataset(4, 3)
    loader = DataLoader(
        dataset, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(0), **workers(start)
    )

    for first in (18, 23, 28):
        seen = [window for batch in loader for window in batch["values"].tolist()]
        expected = windows_of(plain, starts_of(plain, 4, 3, None), 4)
        filled(store, plain, steps_of([5], first))
        assert sorted(seen) == sorted(expected)
        assert seen != expected


def test_a_loader_asks_for_whole_batches():
    """One read for a batch is what makes it fast."""
    dataset = numbered(100).as_dataset(5)
    asked: list[int] = []

    class Counted(type(dataset)):
        def __getitems__(self, numbers):
            asked.append(len(numbers))
            return super().__getitems__(numbers)

    dataset.__class__ = Counted
    batches = list(DataLoader(dataset, batch_size=8))

    assert asked == [8, 8, 4]
    assert torch.cat([batch["values"] for batch in batches]).flatten().tolist() == list(range(100))


def test_a_batch_becomes_tensors_without_a_copy():
    """What ``sample`` and ``windows`` give lies in memory that torch can share and write to."""
    store = numbered(100)

    for batch in (store.windows([0, 5], 3), store.sample(4, 3), store[[1, 2]], store.as_dataset(3)[0]):
        for array in batch.values():
            tensor = torch.from_numpy(array)
            assert tensor.data_ptr() == array.ctypes.data
            tensor.zero_()
    assert store[:]["values"].tolist() == list(range(100))


def test_tensors_are_positions_and_starts():
    """What a sampler of torch's hands out can be read at, in any shape."""
    store = numbered(20)
    places = torch.arange(6).reshape(2, 3)

    assert store[places]["values"].tolist() == places.tolist()
    assert store.windows(torch.tensor([2, 4]), 2)["values"].tolist() == [[2, 3], [4, 5]]
    assert torch.equal(torch.from_numpy(store.windows(places, 2)["values"])[..., 0], places)
