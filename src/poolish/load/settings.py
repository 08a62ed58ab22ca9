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
from poolish.load.dataset_state import below, has_state
from poolish.load.frozen import FIXED, LOCAL, SHARED, FrozenRows, fixed_by, snapshot_rows
from poolish.load.ledger import LedgerProtocol
from poolish.ranks import Share, is_launched
from poolish.rows.snapshot import Snapshot
from poolish.tokens.store import StreamStore
from poolish.tokens.stream_set import StreamSet

ACKNOWLEDGE = ("on_yield", "explicit")
#: What rows in memory are to the ranks of several processes: the same in each, or each rank's own.
SHARES = ("copy", "own")
#: What a rank does that has fewer steps than another, where each has rows of its own.
UNEVEN = ("stop", "repeat", "empty")
#: The journal that lives in the store of the process group.
GROUP = "group"


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
    group: Any
    mesh: Any
    shared: str | None
    uneven: str
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
            acknowledge=check_choice(self.acknowledge, "acknowledge", ACKNOWLEDGE),
            faults=check_faults(self.faults),
            shared=check_choice(self.shared, "shared", (None, *SHARES)),
            uneven=check_choice(self.uneven, "uneven", UNEVEN),
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
    """Anything with a length and an index, or one or several streams, whose steps are rows."""
    if isinstance(dataset, (StreamStore, StreamSet)):
        return dataset
    if isinstance(dataset, Mapping):
        raise ConfigError("dataset is a dict, which has keys and no row numbers; append its columns to a DatasetBuffer")
    if type(dataset).__name__ == "DataFrame":
        raise ConfigError(
            f"dataset is a DataFrame of {type(dataset).__module__.partition('.')[0]}, whose index gives columns, not "
            "rows; append it to a DatasetBuffer"
        )
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


def check_choice(value: Any, name: str, choices: tuple[Any, ...]) -> Any:
    """One of several names."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r}: one of {', '.join(repr(each) for each in choices if each is not None)}")
    return value


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


def check_shared(settings: LoaderSettings, share: Share) -> None:
    """Rows in the memory of several processes are declared to be copies, or each rank's own."""
    if settings.shared == "own" and share.n_processes > 1:
        if settings.follow:
            raise ConfigError(
                "shared='own' with follow=True: the epochs of the ranks would end at different steps; use "
                "follow=False, and an epoch is what each rank has when it begins"
            )
        if share.n_processes > share.world_size:
            raise ConfigError(
                f"shared='own' on a mesh: several processes are rank {share.rank} of {share.world_size}, and would "
                "read different rows where they must read the same; pass shared='copy', or broadcast from one of them"
            )
        if not share.peers:
            raise ConfigError(
                f"shared='own' on rank {share.rank} of {share.world_size}: ranks with rows of their own stay in step "
                "through a process group; call torch.distributed.init_process_group first, and read in the trainer's "
                "process (num_workers of the Loader are threads)"
            )
    if settings.shared is None and share.was_found and is_in_memory(settings.dataset):
        raise ConfigError(
            f"{type(settings.dataset).__name__} is in the memory of this process, and {share.source} says that it is "
            f"rank {share.rank} of {share.world_size}: pass shared='copy' if every process holds the same rows, and "
            "each rank reads its share of them, or shared='own' if each has rows of its own, all of which it reads"
        )


def check_no_shard(dataset: Any, share: Share) -> None:
    """A shard has been dealt to this rank already; what no argument asks for is not dealt again."""
    if share.world_size == 1 or share.source == "arguments":
        return
    shard: Any = getattr(dataset, "shard", None)
    if getattr(shard, "world_size", 1) > 1:
        raise ConfigError(
            f"{type(dataset).__name__} is the share of rank {shard.rank} of {shard.world_size}, and {share.source} "
            f"says that the loader deals rows to {share.world_size} ranks again; pass the whole dataset, or rank=0, "
            "world_size=1 to read all of the shard"
        )
    for part in below(dataset) or ():
        check_no_shard(part, share)


def is_in_memory(dataset: Any) -> bool:
    """Whether rows belong to one process: those of a buffer, of a snapshot, of a temporary stream, or views of them."""
    parts = below(dataset)
    if parts is not None:
        return any(map(is_in_memory, parts))
    return isinstance(dataset, Snapshot) or snapshot_rows(dataset).changes == LOCAL


def check_journal(journal: Any) -> str | os.PathLike[str] | LedgerProtocol | None:
    """A directory, "group", whatever keeps decisions as a journal does, or None."""
    if journal is None or journal == GROUP or hasattr(journal, "decide_block"):
        kept: str | LedgerProtocol | None = journal
        return kept
    if not isinstance(journal, (str, os.PathLike)):
        raise ConfigError(f"journal={journal!r}: pass a directory that all ranks can reach, or 'group'")
    return local_path(
        journal,
        "journal",
        instead="the sources of a recipe and save_dataset(), a journal is a directory that all ranks mount",
    )


def check_agreement(journal: Any, share: Share, *, changes: str, follow: bool) -> None:
    """Ranks can agree on what grows: through a journal, through their process group, or within one process."""
    if journal == GROUP and share.world_size > 1 and not share.peers:
        raise ConfigError(
            f"journal='group' on rank {share.rank} of {share.world_size}: there is no process group of these ranks "
            "in this process; call torch.distributed.init_process_group first, or pass journal=DIR. Worker "
            "processes of a DataLoader have none: use the loader's own num_workers, which are threads"
        )
    if journal is not None:
        return
    # Several loaders of one process may read a buffer that grows, without anything between them.
    is_seen_alike = changes == FIXED or (changes == LOCAL and not (follow and is_launched()))
    if share.world_size > 1 and not share.peers and not is_seen_alike:
        raise ConfigError(
            f"world_size={share.world_size} on a dataset that grows: ranks in different processes would see an "
            "append at different moments, and rows would be lost and repeated; pass journal=DIR, the same for all, "
            "or initialise torch.distributed before the first batch (journal='group')"
        )


def check_worker_processes(*, changes: str, follow: bool) -> None:
    """Several worker processes without a journal read only what stays as it is."""
    if changes == SHARED or (follow and changes != FIXED):
        raise ConfigError(
            "several worker processes on a dataset that grows: they would see an append at different moments, and "
            "rows would be lost and repeated; pass journal=DIR"
        )
