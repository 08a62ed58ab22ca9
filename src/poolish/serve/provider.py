"""DataProviderBase: define a batch; everything between it and the trainer is done.

A subclass describes the batches (``build_meta``) and makes the next one (``sample_batch``). The base class numbers,
validates and publishes them, waits while the trainer has enough, and continues after a restart: the randomness of each
batch depends on (seed, split, provider name, number of batches made before), never on how often the process started.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from poolish.errors import ConfigError, DataRefused, QueueError, SchemaError, StoreFull
from poolish.files import check_name
from poolish.health import Health, Problem
from poolish.printable import printable
from poolish.seeds import generator
from poolish.serve.inspection import health_at
from poolish.serve.producer import Limits, SplitProducer
from poolish.serve.workspace import refuse_direct_run
from poolish.transports import has_transport, place_to_fill
from poolish.transports.batch_file import BatchValidator
from poolish.transports.meta import QueueMeta, batch_schema_of

if TYPE_CHECKING:
    from poolish.guards.checks.guard import Guard
    from poolish.schema import Schema
    from poolish.serve.config import SharedConfig
    from poolish.serve.guarding import ProviderGuard
    from poolish.transports.batch_columns import Columns
    from poolish.transports.protocols import Waker

_WAIT_S = 0.5
_OWN = {"config", "name", "dataset_path", "meta", "schema"}  # attributes that a config cannot have


class DataProviderBase:
    """Makes batches and publishes them to the queue of a dataset, ``<path>/queue/<split>``.

    ``config`` is what ``load_config`` gives, or a dict of the same names; each of its names is an attribute. ``path``
    is the dataset's directory, by default ``data/<dataset>`` of the config's workspace, or ``memory://NAME`` for
    consumers in this process. Several providers may fill one queue, each under its own ``name``. Once ``publish``
    returns, the batch survives ``kill -9``.

    ``guard`` (an argument, or an attribute of the class) checks every batch: a ``Suite``, or an object with its
    interface. Rejected rows go to ``<path>/quarantine/<split>`` with the reasons, never into the queue, and the
    provider continues until more than ``max_rejected`` was rejected: a number of batches, or a share of those made.

    >>> class Doubler(DataProviderBase):
    ...     def build_meta(self):
    ...         fields = [{"name": name, "dtype": "int64", "shape": [self.block_size]} for name in ("x", "y")]
    ...         return {"batch_schema": fields}
    ...
    ...     def sample_batch(self, split, rng):
    ...         x = rng.integers(10, size=(self.batch_size, self.block_size))
    ...         return {"x": x, "y": 2 * x}
    >>> with Doubler({"dataset": "numbers", "batch_size": 2, "block_size": 3}, path=folder) as provider:
    ...     provider.publish("train"), provider.publish("train")
    (0, 1)
    """

    def __init__(
        self,
        config: SharedConfig | Mapping[str, Any],
        *,
        path: str | os.PathLike[str] | None = None,
        name: str = "w0",
        guard: Guard | None = None,
        max_rejected: float | None = None,
    ) -> None:
        from poolish.serve.config import SharedConfig, check_config  # pydantic: a fifth of a second, only needed here

        self.config = config if isinstance(config, SharedConfig) else check_config(config)
        self.name = check_name(name, "provider")
        address = self.config.dataset_path if path is None else path
        self._place = place_to_fill(address)
        self.dataset_path = Path(address)
        self._producers: dict[str, SplitProducer] = {}
        self._making: dict[str, int] = {}
        self._waiting = ""
        self._pid = os.getpid()
        self._one_at_a_time = threading.RLock()
        self._waker: Waker | None = None
        self._guards: dict[str, ProviderGuard] = {}
        if guard is not None or max_rejected is not None:
            self._take_guard(guard, max_rejected)
        for setting, value in self.config.names().items():
            self._take(setting, value)
        self.setup()
        self.meta: dict[str, Any] = self.build_meta()
        self.schema: Schema = batch_schema_of(self.meta)
        self._validator = BatchValidator(self.schema)
        if self.guard is not None:
            self._checked_guard()  # that of the class is in use too, and does not change any more

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        refuse_direct_run(cls.__module__)

    # -- what a subclass says

    #: Checks every batch before it is published.
    guard: Guard | None = None

    #: Whether batches may have other numbers of rows than ``batch_size``.
    variable_rows: bool = False

    #: How much may be rejected: a number of batches, or a share of those made.
    max_rejected: float = 0.5

    def setup(self) -> None:
        """Read files, build tables: called once, when every name of the config is an attribute."""

    def build_meta(self) -> dict[str, Any]:
        """What the trainer should know, ``batch_schema`` at least; plain JSON values. Changing it makes a new queue."""
        raise ConfigError(f"{type(self).__name__} has no build_meta(); return a dict with 'batch_schema' from it")

    def sample_batch(self, split: str, rng: np.random.Generator) -> Mapping[str, Any]:
        """The next batch: arrays or tensors by name, each with ``batch_size`` rows of its schema's shape.

        Where rows differ in length (``shape`` begins with None): a list of arrays, a pair ``(values, offsets)``, a
        ``Ragged`` or an Arrow list array. Of text and bytes (dtype string, binary): a list, or an Arrow array.
        Take all randomness from ``rng``, which is this very batch's own, and the batch can be made again.
        """
        raise ConfigError(f"{type(self).__name__} has no sample_batch(split, rng); return arrays by name from it")

    def n_batches(self, split: str) -> int | None:
        """How many batches this provider makes of a split in its life (``max_batches``); None for no end."""
        return self.config.max_batches

    # -- making and publishing

    def batch_number(self, split: str) -> int:
        """How many batches this provider has made of a split before the one that it makes now; a restart counts on.

        What grows harder with time should depend on this and not on a count of its own.
        """
        return self._making[split] if split in self._making else self._producer(split).counter

    def make_batch(self, split: str, counter: int) -> Mapping[str, Any]:
        """This provider's batch number ``counter`` of a split, without publishing it: for tests and for a look."""
        self._making[split] = counter
        try:
            return self.sample_batch(split, generator(self.config.seed, "serve", split, self.name, counter))
        except Exception as error:
            error.add_note(f"while provider {self.name!r} made batch {counter} of split {split!r}")
            raise
        finally:
            del self._making[split]

    def publish(self, split: str) -> int:
        """Make the next batch of a split, publish it even if the backlog is full, and return its number.

        If it fails (a batch that does not fit the schema, a full disk) nothing happened, and the next call makes the
        same batch again. If the guard rejects it, it is quarantined, ``DataRefused`` is raised, and the next call makes
        the next one; ``run`` continues by itself.
        """
        if os.getpid() != self._pid:
            raise QueueError(
                f"{self!r} belongs to the process that this one was forked from; make one here, with a name"
            )
        with self._one_at_a_time:
            producer = self._producer(split)
            batch = self.make_batch(split, producer.counter)
            place = f"provider {self.name!r}, split {split!r}, batch {producer.counter}"
            columns, rows = self._validator.columns_of(batch, place)
            self._check_rows(rows, place)
            if self.guard is None:
                return producer.publish(columns, rows)
            return producer.publish(*self._admitted(split, columns, rows, place))

    def _check_rows(self, rows: int, place: str) -> None:
        expected = self.config.batch_size
        if rows != expected and not self.variable_rows:
            raise SchemaError(
                f"{place}, field {self.schema.names[0]!r}: expected {expected} rows (batch_size), got {rows}; return "
                "batch_size rows from sample_batch, or set variable_rows = True in the class"
            )

    def _admitted(self, split: str, columns: Columns, rows: int, place: str) -> tuple[Columns, int]:
        """What the guard lets pass; the rest is in quarantine, and all of it if this raises ``DataRefused``."""
        guard, producer = self._guard_of(split), self._producer(split)
        try:
            return guard.admit(columns, producer.metadata(rows), place)
        except DataRefused:
            producer.skip()
            raise
        finally:
            guard.check_budget(place)

    def _take_guard(self, guard: Guard | None, max_rejected: float | None) -> None:
        from poolish.guards.checks.guard import check_guard
        from poolish.serve.guarding import check_max_rejected

        if guard is not None:
            self.guard = check_guard(guard, type(self).__name__)
        if max_rejected is not None:
            self.max_rejected = check_max_rejected(max_rejected)

    def _checked_guard(self) -> Guard:
        from poolish.guards.checks.guard import check_guard

        if has_transport(str(self._place)):
            raise ConfigError(
                f"{self._place}: a guard quarantines rows in files; give the provider the path of a directory, or "
                "guard the consumer"
            )
        guard = check_guard(self.guard, f"{type(self).__name__}.guard")
        assert guard is not None
        return guard

    def _guard_of(self, split: str) -> ProviderGuard:
        if split not in self._guards:
            from poolish.serve.guarding import ProviderGuard, check_max_rejected

            folder = self.dataset_path / "quarantine" / split
            self._guards[split] = ProviderGuard(self._checked_guard(), folder, check_max_rejected(self.max_rejected))
        return self._guards[split]

    def run(
        self, *, stop: Callable[[], bool] = lambda: False, on_batch: Callable[[str, int], object] | None = None
    ) -> None:
        """Fill all splits as the trainer empties them, until ``stop()`` or until every split has ``n_batches``.

        The split with the least waiting comes first. ``on_batch(split, number)`` is called after each publish.
        """
        while not stop():
            unfinished = [split for split in self.config.splits if not self._is_finished(split)]
            if not unfinished:
                break
            split = self._least_backlogged(unfinished)
            if split is None:
                self._wait_for_room(unfinished)
                continue
            self._waiting = ""
            try:
                number = self.publish(split)
            except StoreFull as error:
                self._waiting = str(error)
                self._full_since = time.time() if self._full_since is None else self._full_since
                time.sleep(_WAIT_S)
                continue
            except DataRefused as error:
                if not _is_in_quarantine(error):
                    raise
                continue
            self._full_since = None
            if on_batch is not None:
                on_batch(split, number)

    @property
    def waiting(self) -> str:
        """What ``run`` waits for at the moment, in words; empty while it works."""
        return self._waiting

    def status(self) -> dict[str, dict[str, int]]:
        """By split: how many batches this provider made, and how many wait to be read.

        With a guard also how many batches it rejected as a whole, and how many rows, since it was started.
        """
        opened = list(self._producers.items())
        found = {split: {"made": producer.counter, "backlog": producer.backlog()} for split, producer in opened}
        for split, guard in self._guards.items():
            if split in found:
                found[split] |= {"rejected": guard.n_rejected, "rejected_rows": guard.n_rejected_rows}
        return found

    def health(self) -> Health:
        """What is wrong with the queue of each split, with this provider's counts; from any thread."""
        parts = {split: health_at(self._place, split).plus(**counts) for split, counts in self.status().items()}
        since = self._full_since
        full = None if since is None else Problem(self._waiting, since, f"make room on the disk of {self.dataset_path}")
        return Health.joined(parts).plus(full, waiting=self._waiting)

    #: Since when batches cannot be written because the disk is full; None while they can.
    _full_since: float | None = None

    def open(self) -> Self:
        """Make or open the queues of all splits, so that a trainer can start; publishing does so by itself."""
        for split in self.config.splits:
            self._producer(split)
        return self

    def close(self) -> None:
        """Note how far this came, and let another provider have the name."""
        with ExitStack() as closing:
            if self._waker is not None:
                closing.callback(self._waker.close)
                self._waker = None
            while self._producers:
                split, producer = self._producers.popitem()
                closing.callback(producer.close, self.n_batches(split))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {printable(self.dataset_path)}>"

    # -- inside

    def _take(self, setting: str, value: Any) -> None:
        own = getattr(type(self), setting, None)
        is_ours = hasattr(DataProviderBase, setting) or setting in _OWN or setting in self.__dict__
        if is_ours or callable(own) or isinstance(own, property):
            raise ConfigError(
                f"config name {setting!r} is taken: it is {type(self).__name__}.{setting}; choose another name"
            )
        setattr(self, setting, value)

    def _producer(self, split: str) -> SplitProducer:
        if split not in self._producers:
            if split not in self.config.splits:
                raise ConfigError(f"no split {split!r}; the config has {list(self.config.splits)}")
            limits = Limits(self.config.max_backlog, self.config.max_backlog_bytes, self.config.min_free_bytes)
            known = {**vars(limits), "durable": int(self.config.durability == "power"), **self._row_limits()}
            log = self._place.create(split, QueueMeta.of(split, self.meta, known, self._content(split)))
            self._producers[split] = SplitProducer(log, self.name, limits)
        return self._producers[split]

    def _row_limits(self) -> dict[str, int]:
        """How many rows a batch has, where that is known: a consumer refuses any other. A guard may drop some."""
        size = self.config.batch_size
        return {} if self.variable_rows else {"min_rows": size if self.guard is None else 0, "max_rows": size}

    def _content(self, split: str) -> dict[str, Any]:
        """What decides which batches come and may not change at a restart, beside what ``build_meta`` says."""
        return {"seed": self.config.seed, "batch_size": self.config.batch_size}

    def _is_finished(self, split: str) -> bool:
        n_batches = self.n_batches(split)
        return n_batches is not None and self._producer(split).counter >= n_batches

    def _least_backlogged(self, splits: list[str]) -> str | None:
        looks = {split: self._producer(split).look() for split in splits}
        with_room = [split for split, (_, why_wait) in looks.items() if why_wait is None]
        return min(with_room, key=looks.__getitem__) if with_room else None

    def _wait_for_room(self, splits: list[str]) -> None:
        """Wait until something has changed that may have made room, or for a moment."""
        producers = {split: self._producer(split) for split in splits}
        if self._waker is None:
            self._waker = producers[splits[0]].log.waker()
        for producer in producers.values():
            producer.wake(self._waker)
        # Checked after the waker was added: what changes from here on wakes it.
        reasons = {split: producer.look()[1] for split, producer in producers.items()}
        if None not in reasons.values():
            self._waiting = "; ".join(f"{split}: {why}" for split, why in reasons.items())
            for producer in producers.values():
                producer.log.check_same()
                producer.record()
            self._waker.wait(_WAIT_S)


def _is_in_quarantine(error: DataRefused) -> bool:
    """Whether this provider's own guard said so; a guard in ``sample_batch`` may refuse something as well."""
    from poolish.serve.guarding import Quarantined

    return isinstance(error, Quarantined)


#: The same under a shorter name.
DataProvider = DataProviderBase
