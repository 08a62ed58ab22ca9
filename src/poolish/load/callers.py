"""Who iterates over a loader: what would batch its batches again, or deal its share out once more, is refused.

A loader looks like an iterable dataset to torch, so ``DataLoader(loader, batch_size=8)`` makes batches of batches, and
``accelerator.prepare(DataLoader(loader, None))`` hands each process a share of one process's share. Neither fails by
itself: rows are lost or stacked silently. Neither says so to the loader either, but both are on the stack when they
call ``iter``.
"""

from __future__ import annotations

import sys
from types import FrameType

from poolish.errors import ConfigError

#: From ``iter(loader)`` up to accelerate's loop there are this many frames of torch's DataLoader, and some to spare.
_DEPTH = 8


def check_caller(world_size: int) -> None:
    """Refuse a DataLoader that makes batches of a loader's batches, and one that deals out a rank's share."""
    if "torch.utils.data" not in sys.modules:
        return
    frame: FrameType | None = sys._getframe(2)  # the caller of the loader's __iter__
    for depth in range(_DEPTH):
        if frame is None:
            return
        module = frame.f_globals.get("__name__")
        if depth == 0 and module == "torch.utils.data._utils.fetch" and frame.f_locals.get("auto_collation"):
            raise ConfigError(
                "a Loader yields ready batches, and this DataLoader would make batches of them; write "
                "DataLoader(loader, batch_size=None). In Hugging Face's Trainer: class MyTrainer(LoaderTrainerMixin, "
                "Trainer), from poolish.integrations.transformers"
            )
        if world_size > 1 and module == "accelerate.data_loader" and _deals_out(frame):
            raise ConfigError(
                f"accelerate would deal out the batches of a Loader that is one of {world_size} ranks already, so rows "
                "would be lost; write prepare(accelerator, loader), from poolish.integrations.accelerate"
            )
        frame = frame.f_back


def _deals_out(frame: FrameType) -> bool:
    kind = type(frame.f_locals.get("self")).__name__
    return kind in {"IterableDatasetShard", "DataLoaderDispatcher"}
