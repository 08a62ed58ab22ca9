"""Accelerate: ``prepare`` makes a Loader or a DatasetConsumer what ``accelerator.prepare`` makes of a DataLoader.

``accelerator.prepare(DataLoader(loader, batch_size=None))`` deals the batches out to the processes, although the loader
has dealt out the rows already, so on several processes it is refused. ``prepare`` below leaves the dealing to the
loader, moves batches to the device, tells ``accumulate`` where the epoch ends, and registers the state for checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accelerate.state import GradientState, PartialState
from accelerate.utils import find_batch_size

from poolish.integrations.feed import Feed, Source, changed
from poolish.torch_bridge import DeviceStage

__all__ = ["PreparedLoader", "prepare"]


def prepare(accelerator: Any, source: Source, split: str = "train", *, is_evaluation: bool = False) -> PreparedLoader:
    """Return the batches of ``source`` on the accelerator's device, with a state that its checkpoints hold.

    ``accelerator.save_state`` and ``load_state`` store and restore the state, except of what is used for evaluation.
    """
    prepared = PreparedLoader(Feed(source, split, is_evaluation=is_evaluation), accelerator.device)
    if not is_evaluation:
        accelerator.register_for_checkpointing(prepared)
    return prepared


class PreparedLoader:
    """Batches on a device, for ``accelerator.accumulate``; the state is that of the batch the loop is at."""

    def __init__(self, feed: Feed, device: Any = None, change: Callable[[Any], Any] = lambda batch: batch) -> None:
        self.feed, self._stage, self._change = feed, DeviceStage(device, each=changed), change
        self._gradients = GradientState()
        #: What ``accelerator.accumulate`` and ``gather_for_metrics`` ask: whether this is the last batch, and how many
        #: rows of it count, where one process has them all (-1: unknown).
        self.end_of_dataloader, self.remainder = False, -1

    def __len__(self) -> int:
        """Batches of an epoch, for this process."""
        return len(self.feed)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch ``epoch``."""
        self.feed.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return int(self.feed.source.epoch)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:
        """One pass; one batch is read ahead, to know the last one when it comes."""
        self.end_of_dataloader, self.remainder = False, -1
        self._gradients._add_dataloader(self)
        try:
            batches = iter(self.feed)
            batch = next(batches, self)
            while batch is not self:
                after = next(batches, self)
                self.end_of_dataloader = after is self
                if self.end_of_dataloader and PartialState().num_processes == 1:
                    self.remainder = find_batch_size(batch) or -1
                if not self.feed.is_evaluation:
                    self.feed.trained()
                yield self._stage.finish(self._stage.begin(self._change(batch)))
                batch = after
        finally:
            self._gradients._remove_dataloader(self)

    def state_dict(self) -> dict[str, Any]:
        """Return where to continue: behind the batch that the loop is at."""
        return self.feed.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``."""
        self.feed.load_state_dict(state)

    def commit(self) -> None:
        """Declare the last checkpoint stored, after ``save_state``: a consumer's queue may delete what it covers."""
        self.feed.commit(self.state_dict())
