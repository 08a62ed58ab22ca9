"""Hugging Face's Trainer: a mixin with which ``train_dataset=`` and ``eval_dataset=`` take a Loader or a consumer.

The Trainer batches whatever it is given, and skips trained batches on resume by reading them again. The mixin gives it
ready batches and restores the loader's state, which each checkpoint holds in ``poolish.json``. ``accelerate`` still
skips: it is handed one placeholder for each batch that the state is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from poolish.errors import ConfigError, ResumeError
from poolish.files import read_json, write_json
from poolish.integrations.accelerate import PreparedLoader
from poolish.integrations.feed import Feed, Source, is_source
from poolish.load.loader import Loader
from poolish.serve.consumer import DatasetConsumer

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

__all__ = ["LoaderTrainerMixin"]

STATE_FILE = "poolish.json"


class LoaderTrainerMixin(_Trainer):
    """A ``transformers.Trainer`` that trains on ready batches: ``class MyTrainer(LoaderTrainerMixin, Trainer)``.

    Resuming (``train(resume_from_checkpoint=True)``) continues with the batch behind the last trained one. Batch size,
    order, workers and ranks are the loader's; the arguments of the same meaning apply to other datasets only. Columns
    that the model does not take are left out, as the Trainer does (``remove_unused_columns``).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._feed: Feed | None = None
        source: object = self.train_dataset
        if is_source(source):
            self._feed = Feed(source)
            self.add_callback(_Acknowledge(self._feed))

    # -- training

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> Any:
        """Train; with ``resume_from_checkpoint`` the loader continues where the checkpoint left it."""
        if self._feed is not None and resume_from_checkpoint:
            self._restore(self._feed, resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *arguments, **options)

    def _restore(self, feed: Feed, checkpoint: str | bool) -> None:
        output: str | None = self.args.output_dir
        folder: Any = get_last_checkpoint(output) if checkpoint is True else checkpoint  # type: ignore[no-untyped-call]
        if folder is None:
            return  # the Trainer says so
        path = Path(folder) / STATE_FILE
        try:
            feed.load_state_dict(read_json(path))
        except FileNotFoundError:
            raise ResumeError(
                f"{folder}: no {STATE_FILE}, so where the loader was is unknown; the checkpoint was written without "
                "LoaderTrainerMixin, or its process was killed while writing it: resume from the one before"
            ) from None

    def get_train_dataloader(self) -> Any:
        """The loader's batches, for the training loop."""
        if self._feed is None:
            return super().get_train_dataloader()
        return _FeedLoader(self._feed, self._without_unused_columns("Training"), self._n_to_skip)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and in a checkpoint the loader's state beside it."""
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None and self._feed is not None and self.args.should_save:
            write_json(Path(output_dir) / STATE_FILE, self._feed.state_dict())

    def _n_to_skip(self) -> int:
        """How many batches of this epoch the Trainer skips when it resumes, by its own count of steps."""
        assert self._feed is not None
        source: Any = self._feed.source
        accumulation = self.args.gradient_accumulation_steps
        try:
            n_batches = len(self._feed)
        except TypeError:
            return int(self.state.global_step) * accumulation
        steps = max(-(-n_batches // accumulation), 1)
        n_skipped = self.state.global_step % steps * accumulation
        n_trained = n_batches - source.remaining
        if n_skipped != n_trained:
            raise ResumeError(
                f"the checkpoint is of step {self.state.global_step}, by which the Trainer would skip {n_skipped} "
                f"batches of the epoch, but the loader had trained {n_trained}: go on with the same "
                "gradient_accumulation_steps, batch size, number of processes and rows"
            )
        return n_skipped

    # -- evaluation

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The batches to evaluate on."""
        found: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        named: Any = self.eval_dataset
        found = named[found] if isinstance(found, str) else found
        return self._evaluated(found, "val") if is_source(found) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The batches to predict."""
        if is_source(test_dataset):
            return self._evaluated(test_dataset, "test")
        return super().get_test_dataloader(test_dataset)

    def _evaluated(self, source: Source, split: str) -> PreparedLoader:
        if isinstance(source, DatasetConsumer) or source.follow:
            raise ConfigError(f"evaluation reads a whole dataset, {source!r} has no end; pass a Loader, follow=False")
        if self.args.world_size > 1:
            raise ConfigError(
                "evaluation on several processes gathers batches of one size; pass the rows, which the Trainer deals "
                "out and pads itself: eval_dataset=loader.dataset (of a DatasetBuffer: its snapshot())"
            )
        batch_size = vars(source)["batch_size"]
        if batch_size != self.args.eval_batch_size:
            raise ConfigError(
                f"the Trainer weighs losses by per_device_eval_batch_size={self.args.eval_batch_size}, the loader has "
                f"batch_size={batch_size}; make them equal"
            )
        feed = Feed(source, split, is_evaluation=True)
        return PreparedLoader(feed, change=self._without_unused_columns("Evaluation"))

    # -- both

    def num_examples(self, dataloader: Any) -> int:
        """Rows of an epoch, over all processes."""
        source = dataloader.feed.source if isinstance(dataloader, (_FeedLoader, PreparedLoader)) else None
        return len(source.dataset) if isinstance(source, Loader) else super().num_examples(dataloader)

    def _without_unused_columns(self, description: str) -> Callable[[Any], Any]:
        collate = self._get_collator_with_removed_columns(_only, description)
        return lambda batch: collate([batch])


def _only(batches: list[Any]) -> Any:
    return batches[0]


class _FeedLoader(DataLoader[Any]):
    """A feed as the Trainer's loops read it; ``accelerate`` is given its ``dataset`` when the Trainer resumes."""

    def __init__(self, feed: Feed, prepared: Callable[[Any], Any], n_to_skip: Callable[[], int]) -> None:
        super().__init__(_Batches(feed, prepared, n_to_skip), batch_size=None, collate_fn=_itself)
        self.feed = feed

    def __len__(self) -> int:
        return len(self.feed)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self.dataset.batches()  # type: ignore[attr-defined,no-any-return]

    def set_epoch(self, epoch: int) -> None:
        if not self.feed.continues:
            self.feed.set_epoch(epoch)


class _Batches(IterableDataset[Any]):
    """The epoch from its first batch: a placeholder for each that is trained, then the rest."""

    def __init__(self, feed: Feed, prepared: Callable[[Any], Any], n_to_skip: Callable[[], int]) -> None:
        self._feed, self._prepared, self._n_to_skip = feed, prepared, n_to_skip

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._n_to_skip()):
            yield None
        yield from self.batches()

    def batches(self) -> Iterator[Any]:
        return map(self._prepared, self._feed)


def _itself(batch: Any) -> Any:
    return batch


class _Acknowledge(TrainerCallback):
    """Acknowledges each batch after its step, and commits what stored checkpoints cover."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._feed.trained()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._feed.trained()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._feed.commit(self._feed.state_dict())
