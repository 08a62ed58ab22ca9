"""What was decided, in memory: the first rank decides, the others take what it saw."""

from __future__ import annotations

import gc

from poolish.load import FilteredDataset
from poolish.load import ledger as ledger_module
from poolish.load import order as order_module
from poolish.load.frozen import freeze
from poolish.load.ledger import Ledger, digest
from poolish.load.order import NOTHING, Order
from tests.load.loaders import buffer, extend, ranks, rows, whole


def test_the_first_rank_decides_for_all():
    """The second looks later, when there is more, and gets the same block."""
    ledger, order, source = Ledger(2), Order(1, 0), rows(5)
    first = ledger.settle(order, 0, NOTHING, freeze(source), "end")
    extend(source, 5)
    second = ledger.settle(Order(1, 0), 0, NOTHING, freeze(source), "end")

    assert first.ids.tolist() == second.ids.tolist()
    assert sorted(first.ids.tolist()) == list(range(5))


def test_an_empty_block_is_not_decided_by_who_reads_ahead():
    """Rows may come before somebody waits; then it is decided, once."""
    for world_size in (1, 2):
        ledger, order, source = Ledger(world_size), Order(1, 0), []
        assert ledger.settle(order, 0, NOTHING, freeze(source), "wait") is None
        extend(source, 2)
        block = ledger.settle(order, 0, NOTHING, freeze(source), "wait")
        assert sorted(block.ids.tolist()) == [0, 1]
        end = ledger.settle(order, 1, block.after, freeze(source), "end")
        assert end.is_empty
        assert end.seen.is_end


def test_every_decision_can_be_asked_for_again(monkeypatch):
    """Also where neighbouring blocks have seen the same: rows missing in the same places, or no rows at all."""
    monkeypatch.setattr(order_module, "BLOCK_ROWS", 8)
    source = FilteredDataset(buffer(40), lambda row: row["n"] % 2 == 0 and not 16 <= row["n"] < 32)
    for world_size in (1, 2):
        ledger, order, before, decided = Ledger(world_size), Order(1, 0, shuffle=False), NOTHING, []
        for number in range(6):
            block = ledger.settle(order, number, before, freeze(source), "end")
            decided.append(block)
            before = block.after
        for block in decided:
            seen = ledger.seen(0, block.number)
            again = order.decide(block.number, block.before, freeze(source), seen)
            assert again.ids.tolist() == block.ids.tolist()
            assert seen.is_end == block.seen.is_end


def test_nothing_is_told_of_blocks_that_were_never_decided():
    """Neither behind the last one nor of other epochs."""
    ledger = Ledger()
    ledger.settle(Order(1, 0), 0, NOTHING, freeze(rows(5)), "end")

    assert ledger.seen(0, 0) is not None
    assert ledger.seen(0, 1) is None
    assert ledger.seen(1, 0) is None


def test_a_ledger_in_memory_forgets_the_oldest(monkeypatch):
    """A run of many epochs does not fill the memory."""
    monkeypatch.setattr(ledger_module, "MAX_DECISIONS", 10)
    ledger = Ledger(2)
    for epoch in range(50):
        ledger.settle(Order(1, epoch), 0, NOTHING, freeze(rows(3)), "end")

    assert len(ledger._decided) <= 10
    assert ledger.seen(49, 0) is not None


def test_a_shared_ledger_goes_with_its_loaders():
    """A later run over the same rows decides for itself."""
    source = buffer(4)
    loaders = ranks(2, source, 1, follow=True)
    whole(loaders)
    del loaders
    gc.collect()
    extend(source, 4)

    assert sorted(whole(ranks(2, source, 1, follow=True))) == list(range(8))


def test_digests_tell_histories_apart():
    """Another cursor, another size, another end."""
    order = Order(1, 0)
    block = order.decide(0, NOTHING, freeze(range(2000)))
    other = order.decide(0, NOTHING, freeze(range(2001)))

    assert len({digest(NOTHING), digest(block.after), digest(other.after)}) == 3
    assert digest(block.after) == digest(Order(1, 0).decide(0, NOTHING, freeze(range(2000))).after)
