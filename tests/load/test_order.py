"""The order of an epoch: each id once, whatever comes and goes, decided by what was seen and by nothing else."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish.errors import ResumeError
from poolish.load import CompositeDataset
from poolish.load import order as order_module
from poolish.load.frozen import snapshot_rows
from poolish.load.order import NOTHING, BlocksAhead, ObservedBounds, Order
from tests.effort import times
from tests.load.loaders import buffer, rows

pytestmark = pytest.mark.kernels


def drawn(order: Order, frozen_at, n_blocks: int):
    """Blocks one after the other; ``frozen_at(k)`` is what there is when block k is decided."""
    parts, blocks = NOTHING, []
    for number in range(n_blocks):
        block = order.decide(number, parts, frozen_at(number))
        blocks.append(block)
        parts = block.after
    return blocks


@settings(max_examples=times(60))
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.sampled_from([1, 2, 7, 64, 1024]),
)
def test_growing_ranges_are_dealt_out_once(appends, seed, shuffle, size):
    """Rows appended before each block; then until nothing is left."""
    if size < 64:
        appends = [n % 50 for n in appends]
    ends = np.cumsum(appends)
    total = int(ends[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "BLOCK_ROWS", size)
        n_blocks = len(appends) + -(-total // size) + 1
        blocks = drawn(
            Order(seed, 3, shuffle=shuffle), lambda k: snapshot_rows(range(ends[min(k, len(ends) - 1)])), n_blocks
        )
    ids = np.concatenate([block.ids for block in blocks])

    assert sorted(ids.tolist()) == list(range(total))
    assert all(len(block.ids) <= size for block in blocks)
    assert blocks[-1].is_empty
    assert blocks[-1].seen.is_end
    if not shuffle and sorted(appends) == appends[:1]:
        assert ids.tolist() == list(range(total))


@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, *(2**k + d for k in (8, 10, 16, 18) for d in (-1, 0, 1))]
)
def test_around_powers_of_two_nothing_is_lost(n):
    """Where a cipher's width changes, a known library is no permutation."""
    blocks = drawn(Order(1, 0), lambda _: snapshot_rows(range(n)), -(-n // 1024))

    ids = np.concatenate([block.ids for block in blocks])
    assert len(ids) == n
    assert np.array_equal(np.sort(ids), np.arange(n))


def test_the_same_seen_gives_the_same_block():
    """Given what another has seen, also through JSON, and on rows that have changed since."""
    source = buffer(60, max_size=40, drop_strategy="random", seed=1)
    order = Order(9, 2)
    decided = order.decide(0, NOTHING, snapshot_rows(source))
    source.retain(0.3, by="random")
    source.append(rows(60, 90))

    again = Order(9, 2).decide(
        0, NOTHING, snapshot_rows(source), ObservedBounds.from_json(json.loads(json.dumps(decided.seen.to_json())))
    )

    assert again.ids.tolist() == decided.ids.tolist()
    assert (again.after.to_text(), again.after.ends) == (decided.after.to_text(), decided.after.ends)
    assert decided.is_fresh
    assert not again.is_fresh


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**40), st.integers(0, 2**40)), max_size=20))
def test_parts_come_back_from_their_text(parts):
    """Any ranges, in any order."""
    numbers = np.array([(start, size, cursor % size) for start, size, cursor in parts], np.int64).reshape(-1, 3)
    order = Order(1, 0)
    made = order_module.GenerationCursors((5,), *numbers.T.copy(), np.zeros(len(numbers), np.uint64))
    back = order.parts_from(made.to_text(), (5,))

    assert [back.starts.tolist(), back.sizes.tolist(), back.cursors.tolist()] == numbers.T.reshape(3, -1).tolist()
    assert back.ends == (5,)


@pytest.mark.parametrize("text", ["0,5,5", "0,0,0", "0,5,-1", "0,-2,0", "0,5", "x", "0,5,1,", "0,5,1,2"])
def test_text_that_is_no_parts_is_refused(text):
    """By a ResumeError, whatever is wrong with it."""
    with pytest.raises(ResumeError):
        Order(1, 0).parts_from(text, (5,))


def test_tiny_appends_that_nobody_has_drawn_from_are_one_part(monkeypatch):
    """A thousand appends between two blocks are one range."""
    monkeypatch.setattr(order_module, "BLOCK_ROWS", 4)
    order, source = Order(1, 0), list(range(5))
    block = order.decide(0, NOTHING, snapshot_rows(source))
    for number in range(1, 4):
        source += range(1)
        block = order.decide(number, block.after, snapshot_rows(source))

    assert len(block.after.starts) <= 2


def test_old_and_new_rows_share_a_block_in_proportion():
    """100 old and 300 new rows: a quarter of a block is old, over many seeds."""
    n_old, n_draws = 0, 200
    for seed in range(n_draws):
        order = Order(seed, 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(order_module, "BLOCK_ROWS", 20)
            first = order.decide(0, NOTHING, snapshot_rows(range(120)))
            second = order.decide(1, first.after, snapshot_rows(range(420)))
        n_old += int((second.ids < 120).sum())

    assert abs(n_old / (20 * n_draws) - 0.25) < 0.04


def test_every_place_is_equally_likely():
    """Over many seeds each of 6 rows stands in each of 6 places about equally often."""
    n = times(3000)
    counts = Counter(
        (place, int(id_))
        for seed in range(n)
        for place, id_ in enumerate(Order(seed, 0).decide(0, NOTHING, snapshot_rows(range(6))).ids)
    )
    expected = n / 6
    chi2 = sum((counts[place, id_] - expected) ** 2 / expected for place in range(6) for id_ in range(6))

    assert chi2 < 70  # 25 degrees of freedom: once in a million


def test_a_dataset_with_other_parts_is_refused():
    """An epoch that began with one span cannot go on with two."""
    order = Order(1, 0)
    block = order.decide(0, NOTHING, snapshot_rows(range(5)))

    with pytest.raises(ResumeError, match="2 parts"):
        order.decide(1, block.after, snapshot_rows(CompositeDataset([[1], [2]])))


@pytest.mark.parametrize("shuffle", [True, False])
def test_blocks_ahead_have_the_ids_of_blocks_decided_one_by_one(shuffle, monkeypatch):
    """Any share of them, and at any offset the block that it lies in and what is left behind that one."""
    monkeypatch.setattr(order_module, "BLOCK_ROWS", 4)
    order, frozen = Order(7, 0, shuffle=shuffle, follow=False), snapshot_rows(rows(31))
    blocks = drawn(order, lambda k: frozen, 8)
    first = blocks[0]._replace(n_ahead=order.n_ahead(blocks[0], frozen))

    ahead, behind = BlocksAhead(order, first), np.concatenate([block.ids for block in blocks[1:]])

    assert (first.n_ahead, ahead.n_ids) == (7, 27)
    assert all(ahead.ids(a, 27, k).tolist() == behind[a::k].tolist() for a in range(27) for k in (1, 3, 8))
    for offset in range(1, 28):
        number = 1 + (offset - 1) // 4
        block, inside = ahead.at(offset)
        assert (block.number, block.ids.tolist(), block.seen) == (
            number,
            blocks[number].ids.tolist(),
            blocks[number].seen,
        )
        assert (inside, ahead.next_block(offset)[0]) == (offset - 4 * (number - 1), number + 1)
        assert ahead.next_block(offset)[1].key == block.after.key == blocks[number].after.key


def test_no_blocks_are_decided_ahead_where_rows_may_come_or_are_missing():
    """Growth joins at the next block, and a block without its dead rows is looked at by itself."""
    holey = buffer(5000)
    holey.retain(0.5, by="random")
    whole_, other = snapshot_rows(rows(5000)), snapshot_rows(holey)
    composite = snapshot_rows(CompositeDataset([rows(3000), rows(3000)]))

    def n_ahead(frozen, **options):
        order = Order(7, 0, **options)
        return order.n_ahead(order.decide(0, NOTHING, frozen), frozen)

    assert n_ahead(whole_, follow=False) == 4
    assert n_ahead(whole_, follow=True) == n_ahead(other, follow=False) == n_ahead(composite, follow=False) == 0
