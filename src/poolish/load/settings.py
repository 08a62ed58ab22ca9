"""The arguments of a Loader, checked once: each check returns what is kept, or says what to pass instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from poolish import seeds, torch_bridge
from poolish.arguments import check_whole
from poolish.errors import ConfigError
from poolish.files import check_name, local_path
from poolish.load.dataset import check_map_style
from poolish.load.dataset_state import has_state
from poolish.load.frozen import FIXED, LOCAL, SHARED, FrozenRows, fixed_by
from poolish.load.ledger import LedgerProtocol
from poolish.tokens.store import StreamStore

ACKNOWLEDGE = ("on_yield", "explicit")


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderSettings:
    """What a Loader was made with. Values are checked when one is made; ``Loader`` says what each of them means."""

    dataset: Any
    batch_size: int
    shuffle: bool
    batches: Any
    seed: int
    rank: int | None
    world_size: int | None
    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    prefetch_factor: int
    persistent_workers: bool
    journal: str | os.PathLike[str] | LedgerProtocol | None
    run: str | None
    output: str | None
    follow: bool
    acknowledge: str
    faults: Any
    device: Any
    guard: Any
    weights: Any
    sampler: Any
    epochs: int | None
    transform: Callable[..., Any] | None
    ids: bool | str

    def arguments(self) -> dict[str, Any]:
        """The same as keyword arguments of a Loader."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def checked(self) -> LoaderSettings:
        """The same with each value as the loader keeps it."""
        made = replace(
            self,
            dataset=check_dataset(self.dataset),
            batch_size=check_whole(self.batch_size, "batch_size", least=1),
            shuffle=bool(self.shuffle),
            seed=seeds.check_seed(self.seed),
            num_workers=check_whole(self.num_workers, "num_workers", least=0),
            collate_fn=check_callable(self.collate_fn, "collate_fn"),
            drop_last=bool(self.drop_last),
            timeout=check_timeout(self.timeout),
            worker_init_fn=check_callable(self.worker_init_fn, "worker_init_fn"),
            prefetch_factor=check_whole(self.prefetch_factor, "prefetch_factor", least=1),
            run=check_run(self.run),
            follow=bool(self.follow),
            acknowledge=check_acknowledge(self.acknowledge),
            faults=check_faults(self.faults),
            transform=check_callable(self.transform, "transform"),
            ids=check_ids(self.ids),
        )
        check_dataset_state(made.dataset, made.num_workers)
        check_batches(
            made.batches,
            follow=made.follow,
            batch_size=made.batch_size,
            shuffle=made.shuffle,
            drop_last=made.drop_last,
        )
        epochs = None if made.transform is not None else made.epochs
        check_sampling(
            made.weights, made.sampler, epochs, follow=made.follow, shuffle=made.shuffle, batches=made.batches
        )
        return made

    @property
    def shown_as(self) -> str:
        """What batches are made of: tensors where torch is installed, unless ``output`` says otherwise."""
        return self.output or ("torch" if torch_bridge.is_installed() else "numpy")

    @property
    def sampled(self) -> str | None:
        """Which argument draws the rows of an epoch; None where none does."""
        return "weights" if self.weights is not None else "sampler" if self.sampler is not None else None

    @property
    def ids_name(self) -> str | None:
        """The column that row ids are added as; None where they are not."""
        return self.ids if isinstance(self.ids, str) else "ids" if self.ids else None

    @property
    def is_explicit(self) -> bool:
        """Whether batches are acknowledged."""
        return self.acknowledge == "explicit"


# Values by themselves -------------------------------------------------------------------------------------------


def check_dataset(dataset: Any) -> Any:
    """Anything with a length and an index, or a stream, whose steps are rows."""
    if isinstance(dataset, StreamStore):
        return dataset
    if isinstance(dataset, Mapping):
        raise ConfigError("dataset is a dict, which has keys and no row numbers; append its columns to a DatasetBuffer")
    if isinstance(dataset, (pa.Table, pa.RecordBatch)):
        raise ConfigError(
            "dataset is an Arrow table, whose index gives columns, not rows; append it to a DatasetBuffer"
        )
    return check_map_style(dataset)


def check_timeout(timeout: Any) -> float:
    """Seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ConfigError(f"timeout={timeout!r}: seconds to wait for a batch, 0 for as long as it takes")
    return timeout


def check_callable(function: Any, what: str) -> Any:
    """A function or None."""
    if function is not None and not callable(function):
        raise ConfigError(f"{what}={function!r}: a function, or None")
    return function


def check_ids(ids: Any) -> bool | str:
    """Whether row ids are a column of the batch, or the name that they have there."""
    if not isinstance(ids, (bool, str)) or ids == "":
        raise ConfigError(f'ids={ids!r}: True, the name of the column such as "row_id", or False')
    return ids


def check_acknowledge(acknowledge: Any) -> str:
    """When a batch counts as done."""
    if acknowledge not in ACKNOWLEDGE:
        raise ConfigError(f"acknowledge={acknowledge!r}: one of {', '.join(map(repr, ACKNOWLEDGE))}")
    return str(acknowledge)


def check_faults(faults: Any) -> Any:
    """Whatever reads as ``Faults`` do, or None."""
    if faults is not None and not hasattr(faults, "read"):
        raise ConfigError(f"faults={faults!r}: pass a poolish.guards.Faults")
    return faults


def check_run(run: Any) -> str | None:
    """The name of a training run, or None."""
    return None if run is None else str(check_name(run, "run"))


# Several together -----------------------------------------------------------------------------------------------


def check_batches(batches: Any, *, follow: bool, batch_size: int, shuffle: bool, drop_last: bool) -> Any:
    """Ready-made batches or None; beside them, nothing else may say what is in a batch."""
    if batches is None:
        return None
    clashing = {"follow": follow, "batch_size": batch_size != 1, "shuffle": shuffle, "drop_last": drop_last}
    given = [name for name, is_given in clashing.items() if is_given]
    if given:
        raise ConfigError(f"batches= decides what is in a batch, so {given[0]}= has no meaning beside it")
    if not hasattr(batches, "__len__") or not hasattr(batches, "__getitem__"):
        raise ConfigError(f"batches: {type(batches).__name__} has no length or no index; make it a list of lists")
    return batches


def check_sampling(weights: Any, sampler: Any, epochs: Any, **others: Any) -> None:
    """Weights, a sampler or neither; beside them, nothing else may say which rows an epoch has."""
    name = "weights" if weights is not None else "sampler"
    if epochs is not None and weights is None:
        raise ConfigError("epochs= is how far weights= and transform= go; views have epochs= of their own")
    if weights is None and sampler is None:
        return
    if weights is not None and sampler is not None:
        raise ConfigError("weights= and sampler=: both say which rows an epoch has; pass one of them")
    given = [other for other, value in others.items() if value is not None and value is not False]
    if "follow" in given:
        raise ConfigError(
            f"follow=True with {name}=: an epoch is drawn when it begins, so rows that are appended later cannot join "
            "it; use follow=False, and the next epoch draws from all rows"
        )
    if given:
        raise ConfigError(f"{name}= decides which rows an epoch has, so {given[0]}= has no meaning beside it")


def check_dataset_state(dataset: Any, num_workers: int) -> None:
    """A dataset with a state of its own, or none: threads that read ahead would be ahead of it."""
    if num_workers and has_state(dataset):
        raise ConfigError(
            f"num_workers={num_workers} on {type(dataset).__name__}, which has a state_dict, or looks at one that has: "
            "threads read ahead, so its state would be that of rows not delivered yet; use num_workers=0, or torch's "
            "DataLoader around it"
        )


def check_follow(follow: bool, dataset: Any, rows: FrozenRows) -> None:
    """Only what can grow is followed."""
    if follow and fixed_by(rows) is not None:
        raise ConfigError(
            f"follow=True on {type(dataset).__name__}: a subset, shuffle or mixture numbers the rows it was "
            "made of, so it cannot grow; pass what is below it, with shuffle=True"
        )


def check_rank(rank: int | None, world_size: int | None, changes: str) -> tuple[int, int]:
    """Which rank of how many; a buffer in memory is each process's own, so the environment does not cut it."""
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is None or world_size is None:
        rank, world_size = (0, 1) if changes == LOCAL else _rank_from_environment()
    rank, world_size = check_whole(rank, "rank", least=0), check_whole(world_size, "world_size", least=1)
    if rank >= world_size:
        raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0 to world_size - 1")
    return rank, world_size


def _rank_from_environment() -> tuple[int, int]:
    """RANK and WORLD_SIZE as torchrun and its kin set them; rank 0 of 1 where they are not set."""
    named = {name: os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
    for name, value in named.items():
        if not value.isdecimal():
            raise ConfigError(
                f"the environment says {name}={value!r}: a whole number; unset it, or pass rank= and world_size="
            )
    return int(named["RANK"]), int(named["WORLD_SIZE"])


def check_journal(
    journal: Any, *, world_size: int, changes: str, follow: bool
) -> str | os.PathLike[str] | LedgerProtocol | None:
    """A directory, whatever keeps decisions as a journal does, or None where ranks can agree without."""
    if journal is not None:
        if not isinstance(journal, (str, os.PathLike)) and not hasattr(journal, "decide_block"):
            raise ConfigError(f"journal={journal!r}: pass a directory that all ranks can reach")
        kept: str | os.PathLike[str] | LedgerProtocol = journal
        if not hasattr(journal, "decide_block"):
            kept = local_path(
                journal,
                "journal",
                instead="the sources of a recipe and save_dataset(), a journal is a directory that all ranks mount",
            )
        return kept
    if world_size > 1 and (changes == SHARED or (follow and _rank_from_environment()[1] > 1)):
        raise ConfigError(
            f"world_size={world_size} on a dataset that grows: ranks in different processes would see an "
            "append at different moments, and rows would be lost and repeated; pass journal=DIR, the same for all"
        )
    return None


def check_worker_processes(*, changes: str, follow: bool) -> None:
    """Several worker processes without a journal read only what stays as it is."""
    if changes == SHARED or (follow and changes != FIXED):
        raise ConfigError(
            "several worker processes on a dataset that grows: they would see an append at different moments, and "
            "rows would be lost and repeated; pass journal=DIR"
        )
