"""What a framework iterates over in place of a loader or a consumer: it may read ahead, count, and stop anywhere.

next()      source --> in flight --trained()--> trained        the state stays before the oldest batch in flight
set_epoch   noted, and applied when the first batch of a pass is requested: frameworks call iter() long before
len         noted: a framework takes that many batches, so a pass of another length raises instead of losing rows
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from poolish.errors import ConfigError
from poolish.load.batch import Origin, labelled, map_columns
from poolish.load.loader import Loader
from poolish.serve.consumer import DatasetConsumer

Source = Loader | DatasetConsumer


def is_source(value: object) -> TypeGuard[Source]:
    """Return whether ``value`` makes batches: a ``Loader`` or a ``DatasetConsumer``."""
    return isinstance(value, Source)


def changed(change: Callable[[Any], Any], batch: Any) -> Any:
    """Return the batch with ``change`` applied to every value; a batch of a loader still knows its rows."""
    made = map_columns(change, batch)
    ids, position, step = (getattr(batch, name, None) for name in Origin._fields)
    if ids is None or position is None or step is None:
        return made
    return labelled(made, Origin(ids, position, step), ids)


class Feed:
    """The batches of a ``Loader``, or of one split of a ``DatasetConsumer``, for a framework's loop.

    Its state is that of the last batch that ``trained`` was called for, however far the framework reads ahead. Each
    pass of a fixed dataset is the epoch that ``set_epoch`` names, or the next one; with ``is_evaluation`` it is all
    rows from the first, every time. A loader that follows, and a consumer, continue.

    >>> feed = Feed(Loader([1, 2, 3], batch_size=2, output="numpy"))
    >>> batches = iter(feed)
    >>> next(batches)["value"].tolist(), next(batches)["value"].tolist()
    ([1, 2], [3])
    >>> feed.trained()
    >>> again = Feed(Loader([1, 2, 3], batch_size=2, output="numpy"))
    >>> again.load_state_dict(feed.state_dict())
    >>> [batch["value"].tolist() for batch in again]
    [[3]]
    """

    def __init__(self, source: Source, split: str = "train", *, is_evaluation: bool = False) -> None:
        if not is_source(source):
            raise ConfigError(f"{type(source).__name__} makes no batches; pass a poolish Loader or DatasetConsumer")
        self.source, self.split, self.is_evaluation = source, split, is_evaluation
        self._epoch: int | None = None
        self._has_begun = False
        #: Whether a queue has ended: its providers have finished, and every full round of batches is read.
        self.is_over = False
        self._n_promised: int | None = None
        self._in_flight: deque[dict[str, Any]] = deque()  # the state before each of them

    # -- what a framework asks for

    def __len__(self) -> int:
        """Batches of an epoch; a TypeError where only the end of the data shows it."""
        if isinstance(self.source, Loader) and not self.source.follow and not self._has_begun:
            self._enter_epoch(self.source)
        self._n_promised = len(self.source)  # type: ignore[arg-type]
        return self._n_promised

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch ``epoch``; a pass that continues a restored epoch ``epoch`` stays where it is."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """One pass, which begins when its first batch is requested."""
        batches = self._begin()
        while True:
            before = {} if self.is_evaluation else self.source.state_dict()
            try:
                batch = next(batches)
            except StopIteration:
                self.is_over = isinstance(self.source, DatasetConsumer)
                return
            if not self.is_evaluation:
                self._in_flight.append(before)
            yield batch

    # -- how far it is

    def trained(self) -> None:
        """Acknowledge the oldest batch in flight."""
        if not self._in_flight:
            raise ConfigError("no batch is in flight: every batch that was handed out is acknowledged already")
        if self._is_explicit and isinstance(self.source, DatasetConsumer):
            self.source.mark_trained(split=self.split)
        elif self._is_explicit:
            self.source.mark_trained()
        self._in_flight.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Return where to continue: behind the last trained batch."""
        if self._in_flight and not self._is_explicit:
            return self._in_flight[0]
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``; what was read ahead is forgotten."""
        self.source.load_state_dict(state)
        self._in_flight.clear()

    def commit(self, state: Mapping[str, Any]) -> None:
        """Declare a checkpoint that holds ``state`` safely stored: the queue may delete what it covers."""
        if isinstance(self.source, DatasetConsumer):
            self.source.commit(state)

    # -- inside

    @property
    def _is_explicit(self) -> bool:
        return bool(vars(self.source)["acknowledge"] == "explicit")

    @property
    def continues(self) -> bool:
        """Whether a new pass goes on behind the last batch, as that of a consumer does."""
        return isinstance(self.source, DatasetConsumer) or self.source.follow

    def _begin(self) -> Iterator[Any]:
        source, self._has_begun = self.source, True
        if self._in_flight and self.continues:
            source.load_state_dict(self.state_dict())  # read ahead in a pass that ended: these batches come again
        self._in_flight.clear()
        if isinstance(source, DatasetConsumer):
            return source.batches(self.split)
        if source.follow:
            return iter(source)
        self._enter_epoch(source)
        batches = iter(source)
        self._check_length(source)
        return batches

    def _enter_epoch(self, loader: Loader) -> None:
        if self.is_evaluation:
            loader.set_epoch(loader.epoch + 1)
            loader.set_epoch(0)
        elif self._epoch is not None:
            loader.set_epoch(self._epoch)

    def _check_length(self, loader: Loader) -> None:
        n_promised, n_now = self._n_promised, len(loader)
        if n_promised is not None and n_now != n_promised:
            raise ConfigError(
                f"{loader!r}: the epoch has {n_now} batches, but the trainer asked when there were {n_promised} and "
                "will take that many: the dataset has changed in between. Let it ask again for each epoch (Lightning: "
                "Trainer(reload_dataloaders_every_n_epochs=1)), or use follow=True and a number of steps (max_steps)"
            )
