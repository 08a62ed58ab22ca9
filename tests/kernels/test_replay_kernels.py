"""Every kernel of the priority tree says what NumPy says, bit for bit, and the tree says what a plain list says."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.kernels import reference_replay
from poolish.kernels.reference_replay import FAN, layout_of

COMPILED: list[ModuleType] = []
if importlib.util.find_spec("poolish.kernels._replay") is not None:
    COMPILED.append(importlib.import_module("poolish.kernels._replay"))
IMPLEMENTATIONS = [reference_replay, *COMPILED]

each_kind = pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=lambda module: module.__name__.rpartition(".")[2])

sizes = st.sampled_from([1, 15, 16, 17, 255, 256, 257, 300, 4_096, 4_097, 70_000])


def grown(kernels: ModuleType, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A tree over these values, which are powers and priorities alike."""
    layout, n_numbers = layout_of(len(values))
    tree = np.zeros(n_numbers)
    tree[: len(values)] = tree[layout[0, 0] : layout[0, 0] + len(values)] = values
    kernels.refresh(tree, layout, 0, int(layout[0, 0]))
    return tree, layout


def values_of(seed: int, n: int, zeros: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < zeros, 0.0, 10 ** rng.uniform(-12, 6, n))


@each_kind
@given(n=sizes, seed=st.integers(0, 99), zeros=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_the_root_is_that_of_a_plain_list(kernels: ModuleType, n: int, seed: int, zeros: float):
    """Sum, largest and smallest positive of all items, and the same numbers in all nodes as in the reference."""
    values = values_of(seed, n, zeros)

    tree, layout = grown(kernels, values)

    total, largest, smallest = kernels.root(tree, layout)
    assert total == pytest.approx(values.sum(), rel=1e-12)
    assert (largest, smallest) == (values.max(initial=0), values[values > 0].min() if (values > 0).any() else 0.0)
    assert tree.tobytes() == grown(reference_replay, values)[0].tobytes()


@each_kind
@given(
    n=sizes, seed=st.integers(0, 99), n_set=st.sampled_from([0, 1, 7, 40, 600]), spread=st.sampled_from([1, 20, 10**9])
)
def test_items_that_are_set_leave_a_tree_as_if_grown_from_them(
    kernels: ModuleType, n: int, seed: int, n_set: int, spread: int
):
    """After any items in any order, duplicates included, whose last value counts."""
    values, rng = values_of(seed, n, 0.3), np.random.default_rng(seed + 1)
    tree, layout = grown(kernels, values)
    items = rng.integers(0, min(n, spread), n_set)
    new = values_of(seed + 2, n_set, 0.2)

    bad = kernels.set_items(tree, layout, items, new, new, np.empty_like(items))

    for item, value in zip(items.tolist(), new.tolist(), strict=True):
        values[item] = value
    assert bad == -1
    assert tree.tobytes() == grown(reference_replay, values)[0].tobytes()


@each_kind
@given(n=sizes, seed=st.integers(0, 99), zeros=st.sampled_from([0.0, 0.9]))
def test_a_mass_falls_to_the_item_in_whose_share_it_lies(kernels: ModuleType, n: int, seed: int, zeros: float):
    """As in the running sum of a plain list; masses at and beyond the end fall to the last item above 0."""
    values = np.floor(values_of(seed, n, zeros)) % 50  # whole numbers, whose sums are exact in any order
    values[0] = 3.0
    tree, layout = grown(kernels, values)
    masses = np.append(np.random.default_rng(seed).random(50) * values.sum(), [0.0, values.sum(), 2 * values.sum()])
    items, powers = np.empty(53, np.int64), np.empty(53)

    kernels.descend(tree, layout, masses, items, powers)

    expected = np.searchsorted(np.cumsum(values), masses, side="right")
    expected[-2:] = np.flatnonzero(values)[-1]
    assert items.tolist() == expected.tolist()
    assert powers.tolist() == values[items].tolist()


@each_kind
def test_no_kernel_leaves_the_tree(kernels: ModuleType):
    """Items beyond it change nothing and are named; ranges, lengths and layouts that do not fit are errors."""
    tree, layout = grown(kernels, np.ones(20))
    before = tree.tobytes()
    three, work = np.ones(3), np.empty(3, np.int64)

    assert kernels.set_items(tree, layout, np.array([0, 32, 1]), three, three, work) == 1
    assert kernels.set_items(tree, layout, np.array([-1, 0, 1]), three, three, work) == 0
    assert tree.tobytes() == before
    with pytest.raises(IndexError):
        kernels.refresh(tree, layout, 0, 33)
    with pytest.raises(IndexError):
        kernels.refresh(tree, layout, 3, 2)


@pytest.mark.parametrize("kernels", COMPILED, ids=str)
def test_compiled_kernels_refuse_what_is_no_tree(kernels: ModuleType):
    """A layout of another tree, or arrays of different lengths, which NumPy would notice by itself."""
    tree, layout = grown(kernels, np.ones(300))
    three = np.ones(3)

    with pytest.raises(IndexError):
        kernels.root(tree[:-1].copy(), layout)
    with pytest.raises(IndexError):
        kernels.root(tree, layout_of(10_000)[0])
    with pytest.raises(IndexError):
        kernels.set_items(tree, layout, np.zeros(3, np.int64), three, three, np.empty(2, np.int64))
    with pytest.raises(IndexError):
        kernels.descend(tree, layout, three, np.empty(3, np.int64), np.empty(2))


@each_kind
def test_a_bad_priority_is_found(kernels: ModuleType):
    """Negative, NaN, infinite and too large ones, the first of them."""
    nan, inf = float("nan"), float("inf")

    assert kernels.first_bad(np.array([0.0, 1.0, 5.0]), 5.0) == -1
    assert kernels.first_bad(np.empty(0), 5.0) == -1
    for bad in (nan, inf, -inf, -1e-300, 5.1):
        assert kernels.first_bad(np.array([0.0, 1.0, bad, nan]), 5.0) == 2


def test_a_layout_has_whole_nodes_on_each_level():
    """Every level is a multiple of 16 that covers the one below; the uppermost is one node."""
    for n in (0, 1, 16, 17, 256, 257, 4_097, 10**6, 10**8):
        layout, n_numbers = layout_of(n)
        assert layout[0, 0] >= n
        assert (layout[:, 0] % FAN == 0).all()
        assert layout[-1, 0] == FAN
        assert (layout[1:, 0] * FAN >= layout[:-1, 0]).all()
        assert n_numbers <= 2.25 * max(n, 1) + 32 + 3 * FAN * len(layout)


@each_kind
@given(steps=st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=9), st.integers(0, 9)), max_size=12))
def test_a_heap_gives_the_lowest_keys_and_of_equal_ones_the_lowest_places(kernels: ModuleType, steps: list):
    """However keys come and go; a plain sorted list says the same."""
    keys, places, size, expected = np.empty(120, np.uint64), np.empty(120, np.int64), 0, []
    rng = np.random.default_rng(len(steps))
    for new, n_popped in steps:
        new_keys = np.array([0, 1, 2**63, 2**64 - 1, 7, 8], np.uint64)[np.array(new, int)]
        new_places = rng.permutation(1_000)[: len(new)]
        size = kernels.heap_push(keys, places, size, new_keys, new_places)
        expected = sorted([*expected, *zip(new_keys.tolist(), new_places.tolist(), strict=True)])
        n = min(n_popped, size)
        out_keys, out_places = np.empty(n, np.uint64), np.empty(n, np.int64)

        size = kernels.heap_pop(keys, places, size, out_keys, out_places)

        assert list(zip(out_keys.tolist(), out_places.tolist(), strict=True)) == expected[:n]
        expected = expected[n:]
        assert size == len(expected)


@each_kind
def test_a_heap_has_no_entries_beyond_its_arrays(kernels: ModuleType):
    """Too many to enter, or to take out, is an error and changes nothing."""
    keys, places = np.zeros(2, np.uint64), np.zeros(2, np.int64)

    with pytest.raises(IndexError):
        kernels.heap_push(keys, places, 0, np.zeros(3, np.uint64), np.zeros(3, np.int64))
    with pytest.raises(IndexError):
        kernels.heap_push(keys, places, 0, np.zeros(1, np.uint64), np.zeros(2, np.int64))
    with pytest.raises(IndexError):
        kernels.heap_pop(keys, places, 1, np.zeros(2, np.uint64), np.zeros(2, np.int64))
    with pytest.raises(IndexError):
        kernels.heap_pop(keys, places, 3, np.zeros(1, np.uint64), np.zeros(1, np.int64))
