"""What was decided, in memory: the first rank decides, the others take what it saw."""

from __future__ import annotations

import gc

import pytest

from poolish.load import FilteredDataset
from poolish.load import ledger as ledger_module
from poolish.load import order as order_module
from poolish.load.frozen import snapshot_rows
from poolish.load.ledger import Ledger, _History, digest
from poolish.load.order import NOTHING, ObservedBounds, Order
from tests.faults import in_own_process, interrupted_at_line
from tests.load.loaders import buffer, extend, ranks, rows, whole


def test_the_first_rank_decides_for_all():
    """The second looks later, when there is more, and gets the same block."""
    ledger, order, source = Ledger(2), Order(1, 0), rows(5)
    first = ledger.decide_block(order, 0, NOTHING, snapshot_rows(source), "end")
    extend(source, 5)
    second = ledger.decide_block(Order(1, 0), 0, NOTHING, snapshot_rows(source), "end")

    assert first.ids.tolist() == second.ids.tolist()
    assert sorted(first.ids.tolist()) == list(range(5))


def test_an_empty_block_is_not_decided_by_who_reads_ahead():
    """Rows may come before somebody waits; then it is decided, once."""
    for world_size in (1, 2):
        ledger, order, source = Ledger(world_size), Order(1, 0), []
        assert ledger.decide_block(order, 0, NOTHING, snapshot_rows(source), "wait") is None
        extend(source, 2)
        block = ledger.decide_block(order, 0, NOTHING, snapshot_rows(source), "wait")
        assert sorted(block.ids.tolist()) == [0, 1]
        end = ledger.decide_block(order, 1, block.after, snapshot_rows(source), "end")
        assert end.is_empty
        assert end.seen.is_end


def test_every_decision_can_be_asked_for_again(monkeypatch):
    """Also where neighbouring blocks have seen the same: rows missing in the same places, or no rows at all."""
    monkeypatch.setattr(order_module, "BLOCK_ROWS", 8)
    source = FilteredDataset(buffer(40), lambda row: row["n"] % 2 == 0 and not 16 <= row["n"] < 32)
    for world_size in (1, 2):
        ledger, order, before, decided = Ledger(world_size), Order(1, 0, shuffle=False), NOTHING, []
        for number in range(6):
            block = ledger.decide_block(order, number, before, snapshot_rows(source), "end")
            decided.append(block)
            before = block.after
        for block in decided:
            seen = ledger.seen(0, block.number)
            again = order.decide(block.number, block.before, snapshot_rows(source), seen)
            assert again.ids.tolist() == block.ids.tolist()
            assert seen.is_end == block.seen.is_end


def test_nothing_is_told_of_blocks_that_were_never_decided():
    """Neither behind the last one nor of other epochs."""
    ledger = Ledger()
    ledger.decide_block(Order(1, 0), 0, NOTHING, snapshot_rows(rows(5)), "end")

    assert ledger.seen(0, 0) is not None
    assert ledger.seen(0, 1) is None
    assert ledger.seen(1, 0) is None


@in_own_process
def test_an_interrupted_history_is_complete_after_the_next_attempt():
    """Ctrl-C before any line leaves a block unknown, never paired with what another block saw."""
    a, b, c = (ObservedBounds(((0, n),)) for n in (3, 4, 5))
    history, expected, n_interrupts = _History(), _History(), 0
    for number, seen in [(0, a), (1, b), (2, b), (3, c), (1, c), (2, a), (0, b), (1, a)]:
        known, former = [history.at(i) for i in range(number)], history.at(number)
        for k in range(1, 20):
            try:
                with interrupted_at_line(k, lambda path: path == ledger_module.__file__):
                    history.add(number, seen)
                break
            except KeyboardInterrupt:
                n_interrupts += 1
                assert history.at(number) in (None, seen) or (k == 1 and history.at(number) == former)
                assert [history.at(i) for i in range(number)] == known
        expected.add(number, seen)
        assert (
            [history.at(i) for i in range(5)] == [expected.at(i) for i in range(5)] == [*known, seen, *[None] * 9][:5]
        )
    assert n_interrupts > 20


def test_a_decision_that_was_interrupted_before_it_was_noted_is_noted_by_the_next_attempt(monkeypatch):
    """Of several ranks, too: what is decided and not in the history could never be audited."""
    ledger, interrupts, add = Ledger(2), [KeyboardInterrupt()], _History.add

    def interrupted(self, *arguments):
        if interrupts:
            raise interrupts.pop()
        add(self, *arguments)

    monkeypatch.setattr(_History, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.decide_block(Order(1, 0), 0, NOTHING, snapshot_rows(rows(5)), "end")
    block = ledger.decide_block(Order(1, 0), 0, NOTHING, snapshot_rows(rows(5)), "end")

    assert ledger.seen(0, 0) == block.seen


def test_a_ledger_in_memory_forgets_the_oldest(monkeypatch):
    """A run of many epochs does not fill the memory."""
    monkeypatch.setattr(ledger_module, "MAX_DECISIONS", 10)
    ledger = Ledger(2)
    for epoch in range(50):
        ledger.decide_block(Order(1, epoch), 0, NOTHING, snapshot_rows(rows(3)), "end")

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
    block = order.decide(0, NOTHING, snapshot_rows(range(2000)))
    other = order.decide(0, NOTHING, snapshot_rows(range(2001)))

    assert len({digest(NOTHING), digest(block.after), digest(other.after)}) == 3
    assert digest(block.after) == digest(Order(1, 0).decide(0, NOTHING, snapshot_rows(range(2000))).after)


def test_a_rank_that_looks_later_and_misses_rows_takes_the_blocks_decided_ahead(monkeypatch):
    """The first rank does not ask about them again, so their rows stay dealt as they were when it decided."""
    monkeypatch.setattr(order_module, "BLOCK_ROWS", 4)
    source = buffer(60)
    first, second = map(iter, ranks(2, source, 2, shuffle=True))
    seen = [*next(first).ids]  # the snapshot of its epoch
    source.retain(0.5)

    seen += [id_ for batches in (first, second) for batch in batches for id_ in batch.ids]

    assert len(seen) == len(set(seen))
    assert set(range(30, 60)) < set(seen) < set(range(60))
