"""Feeds: the state of the last trained batch, however far a framework reads ahead, and wherever it stops."""

from __future__ import annotations

import itertools

import pytest

from poolish import DatasetConsumer
from poolish.errors import ConfigError
from poolish.integrations.feed import Feed
from tests.integrations import rows


def numbers(batches):
    return [batch["n"].tolist() for batch in batches]


def make(**options):
    return Feed(rows.loader(output="numpy", **options))


@pytest.mark.parametrize("acknowledge", ["on_yield", "explicit"])
@pytest.mark.parametrize("n_ahead", [0, 1, 3])
def test_the_state_is_that_of_the_last_trained_batch(acknowledge, n_ahead):
    """What was read ahead comes again, for a loader and however it acknowledges."""
    expected = numbers(rows.loader(output="numpy"))
    for n_trained in range(6 - n_ahead):
        feed = make(acknowledge=acknowledge)
        list(itertools.islice(feed, n_trained + n_ahead))
        for _ in range(n_trained):
            feed.trained()

        again = make(acknowledge=acknowledge)
        again.load_state_dict(feed.state_dict())
        assert numbers(again) == expected[n_trained:] or n_trained == 5


@pytest.mark.parametrize("acknowledge", ["on_checkpoint", "explicit"])
def test_a_new_pass_over_a_queue_begins_with_what_was_not_trained(tmp_path, acknowledge):
    """A framework that stops after a number of steps has read one batch more."""
    path = rows.queue(tmp_path, 5)
    with DatasetConsumer(path, output="numpy", acknowledge=acknowledge, timeout_s=10) as consumer:
        feed = Feed(consumer)
        first = numbers(itertools.islice(feed, 3))[:2]
        feed.trained()
        feed.trained()
        rest = [(batch["n"].tolist(), feed.trained()) for batch in feed]

        assert [n for batch in first + [batch for batch, _ in rest] for n in batch] == list(range(20))
        assert feed.is_over


def test_each_evaluation_reads_every_row_in_the_same_order():
    """Also after a pass that was left early, and for a shuffled loader."""
    feed = Feed(rows.loader(output="numpy"), is_evaluation=True)
    list(itertools.islice(feed, 2))

    assert numbers(feed) == numbers(feed)
    assert sorted(n for batch in numbers(feed) for n in batch) == list(range(rows.N_ROWS))


def test_the_framework_says_which_epoch_a_pass_is():
    """A pass that was cut short is not continued by the next epoch; epochs come in the order of their numbers."""
    whole = [numbers(epoch) for loader in [rows.loader(output="numpy")] for epoch in (loader, loader)]
    feed = make()
    cut = []
    for epoch in range(2):
        feed.set_epoch(epoch)
        for batch in itertools.islice(feed, 2):
            cut.append(batch["n"].tolist())
            feed.trained()

    assert cut == whole[0][:2] + whole[1][:2]


def test_a_longer_epoch_than_was_promised_is_an_error():
    """The framework would leave the rest out silently."""
    dataset = rows.buffer()
    feed = Feed(rows.loader(dataset, output="numpy"))
    assert (len(feed), len(list(feed))) == (5, 5)
    dataset.append(rows.samples(20, 28))

    with pytest.raises(ConfigError, match="the epoch has 7 batches, but the trainer asked when there were 5"):
        next(iter(feed))


def test_only_sources_of_batches_have_feeds_and_only_batches_in_flight_are_trained():
    """Errors that name what to pass."""
    with pytest.raises(ConfigError, match="list makes no batches; pass a poolish Loader"):
        Feed([1, 2])
    with pytest.raises(ConfigError, match="no batch is in flight"):
        make().trained()
