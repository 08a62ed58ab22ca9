"""Priority trees: a plain list of priorities, drawn from in proportion, in O(log n)."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError
from poolish.priorities import PriorityTree

pytestmark = pytest.mark.kernels

operations = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(0, 40), st.sampled_from([None, 0.0, 0.5, 9.0])),
        st.tuples(st.just("update"), st.integers(0, 12), st.integers(0, 10**6)),
        st.tuples(st.just("clear"), st.integers(0, 60), st.integers(0, 60)),
        st.tuples(st.just("alpha"), st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.none()),
        st.tuples(st.just("taking"), st.integers(0, 10**6), st.none()),
    ),
    max_size=20,
)


@given(operations=operations)
def test_a_tree_is_a_list_of_priorities(operations):
    """Whatever is added, changed, cleared and moved: the same priorities, sum, largest and smallest."""
    tree, plain, alpha = PriorityTree(0.6, [2.0]), [2.0], 0.6

    for name, a, b in operations:
        rng = np.random.default_rng(a if isinstance(a, int) else 0)
        if name == "extend":
            tree.extend(a, b)
            plain += [(max(plain, default=0.0) or 1.0) if b is None else b] * a
        elif name == "update" and plain:
            items = np.random.default_rng(b).integers(0, len(plain), a)
            new = np.round(np.random.default_rng(b).random(a) * 4) / 4
            tree.update(items, new)
            for item, value in zip(items.tolist(), new.tolist(), strict=True):
                plain[item] = value
        elif name == "clear":
            first, last = sorted((min(a, len(plain)), min(b, len(plain))))
            tree.clear(first, last)
            plain[first:last] = [0.0] * (last - first)
        elif name == "alpha":
            tree.set_alpha(a)
            alpha = a
        elif name == "taking" and plain:
            kept = np.sort(rng.permutation(len(plain))[: rng.integers(1, len(plain) + 1)])
            tree, plain = tree.taking(kept), [plain[i] for i in kept]

    powers = [p**alpha for p in plain if p > 0]
    assert tree.priorities.tolist() == plain
    assert (len(tree), tree.largest, tree.alpha) == (len(plain), max(plain, default=0.0), alpha)
    assert tree.total == pytest.approx(sum(powers))
    assert tree.smallest == pytest.approx(min(powers, default=0.0))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_items_are_drawn_in_proportion_to_the_power_of_their_priority(alpha):
    """The frequencies pass a chi-square test, and the probabilities that are reported are the right ones."""
    priorities = np.array([0.0, 0.1, 1.0, 1.0, 0.0, 4.0, 0.5] * 9)
    tree, rng = PriorityTree(alpha, priorities), np.random.default_rng(11)

    draws = [tree.sample(1, rng) for _ in range(4_000)]  # singly, so that draws are independent

    shares = np.where(priorities > 0, priorities**alpha, 0)
    shares /= shares.sum()
    counts = np.bincount([int(draw.items[0]) for draw in draws], minlength=len(priorities))
    expected = 4_000 * shares[shares > 0]
    assert counts[shares == 0].sum() == 0
    assert ((counts[shares > 0] - expected) ** 2 / expected).sum() < 90  # 44 degrees of freedom: p = 5e-5
    assert all(draw.probabilities[0] == pytest.approx(shares[draw.items[0]]) for draw in draws)


def test_a_draw_of_many_has_every_item_as_often_as_its_share_to_within_one():
    """Stratified: an item whose share is k of n draws comes k times, give or take one."""
    tree = PriorityTree(1.0, np.arange(1.0, 51.0))

    draw = tree.sample(5_000, np.random.default_rng(0))

    expected = 5_000 * np.arange(1.0, 51.0) / 1_275
    assert np.abs(np.bincount(draw.items, minlength=50) - expected).max() < 2
    assert (np.diff(draw.items) >= 0).all()


@given(seed=st.integers(0, 50), beta=st.sampled_from([0.0, 0.4, 1.0]))
def test_importance_weights_undo_the_priorities(seed, beta):
    """A weight is (N P)^-beta over the largest of all items; with beta=1 the weighted mean is that of uniform draws."""
    rng = np.random.default_rng(seed)
    priorities, values = rng.random(40) + 0.01, rng.normal(size=40)
    tree = PriorityTree(0.7, priorities)

    draw = tree.sample(20_000, rng, beta=beta)

    shares = priorities**0.7 / (priorities**0.7).sum()
    weights = (40 * shares) ** -beta
    assert draw.weights == pytest.approx((weights / weights.max())[draw.items])
    if beta == 1.0:
        estimate = np.mean(values[draw.items] / (40 * draw.probabilities))
        assert estimate == pytest.approx(values.mean(), abs=0.02)


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf"), 1e300])
def test_a_priority_that_is_none_is_refused_by_name_and_changes_nothing(bad):
    """All or nothing, with the number of the item, or the name that its owner has for it."""
    tree = PriorityTree(0.6, [1.0, 2.0, 3.0])

    with pytest.raises(ValueError, match="the priority of 2 is"):
        tree.update([0, 2], [5.0, bad])
    with pytest.raises(ValueError, match="the priority of row id 70 is"):
        tree.update([0, 2], [5.0, bad], names=["row id 7", "row id 70"])

    assert tree.priorities.tolist() == [1.0, 2.0, 3.0]


def test_wrong_arguments_are_errors():
    """Items that there are not, values that are no numbers, exponents that are none, and nothing to draw."""
    tree = PriorityTree(0.6, [1.0, 2.0])

    with pytest.raises(IndexError, match="item 2 of 2"):
        tree.update([2], [1.0])
    with pytest.raises(IndexError, match="item -1 of 2"):
        tree.update([-1], [1.0])
    with pytest.raises(ValueError, match="shape"):
        tree.update([0], [1.0, 2.0])
    with pytest.raises(TypeError, match="priorities are numbers"):
        tree.update([0], ["high"])
    for exponent in (-1, float("nan"), float("inf"), "0.6", True):
        with pytest.raises(ConfigError, match="alpha is a finite number"):
            PriorityTree(exponent)
        with pytest.raises(ConfigError, match="beta is a finite number"):
            tree.sample(1, np.random.default_rng(0), beta=exponent)
    tree.clear(0, 2)
    with pytest.raises(ValueError, match="no priority is above 0"):
        tree.sample(1, np.random.default_rng(0))
    assert len(tree.sample(0, np.random.default_rng(0)).items) == 0
    with pytest.raises(ValueError, match="from 0, got -1"):
        tree.sample(-1, np.random.default_rng(0))


def test_no_power_vanishes_and_no_sum_is_infinite():
    """Priorities at both ends of a float stay drawable with any alpha."""
    tree = PriorityTree(3.0, [1e-300, 1e90])
    assert tree.smallest > 0
    assert tree.sample(100, np.random.default_rng(0)).items.tolist() == [1] * 100

    tree = PriorityTree(1.0, [1e279] * 100)
    assert np.isfinite(tree.total)
    with pytest.raises(ValueError, match="far below the largest float"):
        tree.set_alpha(2.0)
    assert tree.alpha == 1.0


def test_a_pickled_tree_is_a_copy():
    """With the same items, and memory of its own."""
    tree = PriorityTree(0.5, [1.0, 4.0])

    copy = pickle.loads(pickle.dumps(tree))
    copy.update([0], [9.0])

    assert (tree.total, copy.total) == (3.0, 5.0)
    assert (tree.priorities.tolist(), copy.priorities.tolist()) == ([1.0, 4.0], [9.0, 4.0])
