"""Lightning: a data module and a callback that make a Loader or a DatasetConsumer exact in ``lightning.Trainer``.

Lightning takes ``len`` batches an epoch, reads one ahead where there is no ``len``, and stores the state of its loaders
in its checkpoints. The data module gives it feeds (``poolish.integrations.feed``), whose state is that of the last
trained batch; the callback says which one that is. Fabric needs neither of them:
``fabric.setup_dataloaders(DataLoader(loader, batch_size=None))``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from poolish.errors import ConfigError
from poolish.integrations.feed import Feed, Source, is_source
from poolish.serve.consumer import DatasetConsumer

__all__ = ["LoaderCallback", "LoaderDataModule", "TrainerFeed"]


class TrainerFeed(Feed):
    """A feed as Lightning reads it, for a data module or model of your own: return one from ``train_dataloader``.

    For the other stages return ``TrainerFeed(loader, is_evaluation=True)``; pass ``LoaderCallback()`` to the trainer.
    """

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Lightning calls ``batch_sampler.sampler.set_epoch`` before each pass."""
        return SimpleNamespace(sampler=self)


class LoaderDataModule(LightningDataModule):
    """Loaders or consumers for each stage of a ``lightning.Trainer``; all of ``val`` is read at each validation.

    It brings its own ``LoaderCallback``. To make the loaders later, derive from it and assign ``train``, ``val``,
    ``test`` and ``predict`` in ``setup``. A ``DatasetConsumer`` gives its split of the same name, for ``val`` with
    ``Trainer(limit_val_batches=n)``, because a queue has no length.

    >>> from poolish import Loader
    >>> data = LoaderDataModule(Loader(list(range(8)), batch_size=2), val=Loader([1, 2], batch_size=2))
    >>> len(data.train_dataloader()), len(data.val_dataloader())
    (4, 1)
    """

    def __init__(
        self,
        train: Source | None = None,
        *,
        val: Source | None = None,
        test: Source | None = None,
        predict: Source | None = None,
    ) -> None:
        super().__init__()
        self.train, self.val, self.test, self.predict = train, val, test, predict

    def train_dataloader(self) -> TrainerFeed:
        """Return the batches to train on."""
        if self.train is None:
            raise ConfigError("LoaderDataModule has nothing to train on; pass a Loader or a DatasetConsumer as train=")
        feed = TrainerFeed(self.train)
        _ensure_callback(self.trainer)
        if self.trainer is not None:
            feed.set_epoch(self.trainer.current_epoch)
        return feed

    def val_dataloader(self) -> Any:
        """Return the batches to validate on."""
        return self._evaluated(self.val, "val")

    def test_dataloader(self) -> Any:
        """Return the batches to test on."""
        return self._evaluated(self.test, "test")

    def predict_dataloader(self) -> Any:
        """Return the batches to predict."""
        return self._evaluated(self.predict, "predict")

    def _evaluated(self, source: Source | None, split: str) -> Any:
        _ensure_callback(self.trainer)
        return [] if source is None else TrainerFeed(source, split, is_evaluation=True)


def _ensure_callback(trainer: Any) -> None:
    if trainer is not None and not any(isinstance(callback, LoaderCallback) for callback in trainer.callbacks):
        trainer.callbacks.insert(0, LoaderCallback())  # before those that store checkpoints


class LoaderCallback(Callback):
    """Acknowledges each batch after its training step, and commits what stored checkpoints cover.

    ``LoaderDataModule`` brings one. In a data module or model of your own, return a ``TrainerFeed`` from
    ``train_dataloader`` and pass this as a callback.
    """

    def __init__(self) -> None:
        self._stored: list[tuple[Feed, dict[str, Any]]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a loader that is not in a feed, and checkpoints that are stored at an unknown time."""
        for each in _flattened(trainer.train_dataloader):
            if is_source(each):
                raise ConfigError(
                    f"LoaderCallback: the trainer has a bare {type(each).__name__}; use trainer.fit(model, datamodule="
                    "LoaderDataModule(loader)), or return TrainerFeed(loader) from train_dataloader"
                )
        needs_commit = any(isinstance(feed.source, DatasetConsumer) for feed in _feeds(trainer))
        if needs_commit and isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            raise ConfigError(
                "a DatasetConsumer with AsyncCheckpointIO: batches may be deleted once a checkpoint is stored, and it "
                "does not say when that is; use the default checkpoint_io"
            )

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """A checkpoint that was begun before is stored by now."""
        self._commit()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """This batch is trained."""
        for feed in _feeds(trainer):
            feed.trained()

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the training with its queue; Lightning would begin one empty epoch after the other."""
        if any(feed.is_over for feed in _feeds(trainer)):
            trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note what the checkpoint covers."""
        self._stored = [(feed, feed.state_dict()) for feed in _feeds(trainer)]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last checkpoint is stored; rank 0, whose store the ranks agree through, waits for the others."""
        self._commit()
        trainer.strategy.barrier("poolish: fitted")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the ranks that still read."""
        trainer.strategy.barrier("poolish: validated")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the ranks that still read."""
        trainer.strategy.barrier("poolish: tested")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wait for the ranks that still read."""
        trainer.strategy.barrier("poolish: predicted")

    def _commit(self) -> None:
        for feed, state in self._stored:
            feed.commit(state)
        self._stored = []


def _feeds(trainer: Trainer) -> list[Feed]:
    return [each for each in _flattened(trainer.train_dataloader) if isinstance(each, Feed)]


def _flattened(loaders: Any) -> list[Any]:
    return [] if loaders is None else list(CombinedLoader(loaders).flattened)
