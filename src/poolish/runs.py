"""The identity of a training run, which states, journals and queue marks carry.

A run is one training from its first step to its last, through any number of kills and resumes. What ranks agreed on
during a run (the order of an epoch, how far a queue was read) means nothing to another run, so whatever is shared on
disk stores the id and refuses a different one. The id comes from the first of:

    a restored state        the run goes on; a different ``run=`` is refused
    ``run=``                what the user calls it
    TORCHELASTIC_RUN_ID     what torchrun calls it, through all its restarts (``none`` is torchrun's word for no id)
    the process group       a new id, agreed on by all ranks through the group's store, without a collective
    nothing of these        a new id where there is one rank; several must pass ``run=``

An object that is copied into worker processes creates its new id once, before it is copied, and passes it as
``created``: where there is one rank, the copies share it without asking a group.
"""

from __future__ import annotations

import os
import secrets

from poolish import torch_bridge
from poolish.errors import ConfigError, ResumeError
from poolish.files.documents import check_name

_KEY = "poolish/run"
_MAX_LENGTH = 128


def run_id(
    run: str | None,
    *,
    restored: str | None = None,
    created: str | None = None,
    world_size: int = 1,
    what: str = "this run",
) -> str:
    """The id of this process's run; ``restored`` is the one in a loaded state, ``what`` names the object in errors.

    >>> run_id("ppo-7"), run_id(None, restored="ppo-7")
    ('ppo-7', 'ppo-7')
    >>> run_id(None) == run_id(None)
    False
    >>> run_id("ppo-8", restored="ppo-7", what="loader")
    Traceback (most recent call last):
    poolish.errors.ResumeError: loader: the state belongs to run 'ppo-7', run= says 'ppo-8'; resume without run=, or
    start run 'ppo-8' without the state
    """
    if run is not None:
        check_name(run, "run")
    if restored is not None:
        if run not in (None, restored):
            raise ResumeError(
                f"{what}: the state belongs to run {restored!r}, run= says {run!r}; resume without run=, or start run "
                f"{run!r} without the state"
            )
        return restored
    if created is not None and world_size == 1:
        return run or _of_torchrun() or created
    found = run or _of_torchrun() or _of_group()
    if found is None and world_size > 1:
        raise ConfigError(
            f"{what}: {world_size} ranks share no run id; pass the same run='NAME' on every rank, start them with "
            "torchrun, or initialise torch.distributed first"
        )
    return found or new_run_id()


def new_run_id() -> str:
    """An id that no other run has."""
    return secrets.token_hex(8)


def _of_torchrun() -> str | None:
    found = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return None if found in ("", "none") else found[:_MAX_LENGTH]


def _of_group() -> str | None:
    """The id that all ranks of the process group agree on: the first to ask proposes one, the others take it."""
    store = torch_bridge.group_store()
    if store is None:
        return None
    agreed: bytes = store.compare_set(_KEY, "", new_run_id())
    return agreed.decode()
