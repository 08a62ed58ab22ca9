"""What carries batches from providers to consumers.

    protocols    what every transport provides: Place, Log and its parts, Marks, Providers, Waker
    directory    queues in a directory: log (batches), directory_parts (small files, inotify)
    memory       queues in one process, ``memory://NAME``, without files
    batch_file   one batch as safetensors bytes, and the validator of batches
    meta         the description of a queue

An address without a scheme is a directory; ``register_transport`` adds others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from poolish.files import local_path
from poolish.transports.directory import DirectoryPlace, queue_folders
from poolish.transports.memory import SCHEME, MemoryPlace
from poolish.transports.meta import not_found
from poolish.transports.protocols import Place

__all__ = ["Place", "has_transport", "place_to_fill", "place_to_read", "queues_at", "register_transport"]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
#: Scheme -> opens the place of an address.
_TRANSPORTS: dict[str, Callable[[str], Place]] = {SCHEME: MemoryPlace}


def register_transport(scheme: str, open_place: Callable[[str], Place]) -> None:
    """Let addresses ``scheme://...`` name the places that ``open_place(address)`` returns."""
    _TRANSPORTS[scheme] = open_place


def has_transport(address: str | os.PathLike[str]) -> bool:
    """Whether an address has the scheme of a registered transport; any other is a path."""
    found = _SCHEME.match(address) if isinstance(address, str) else None
    return found is not None and found[1] in _TRANSPORTS


def place_to_fill(address: str | os.PathLike[str]) -> Place:
    """Where a provider of the dataset at an address publishes."""
    return _registered(address) or DirectoryPlace.of_dataset(_local(address, "provider path"))


def place_to_read(address: str | os.PathLike[str]) -> Place:
    """Where a consumer reads, given a dataset or its queue; ``QueueNotFound`` if there is none."""
    place = _registered(address)
    if place is None:
        return DirectoryPlace.find(_local(address, "DatasetConsumer path"))
    if not place.splits():
        raise not_found(str(place))
    return place


def queues_at(address: str | os.PathLike[str]) -> list[tuple[Place, str]]:
    """Place and split of the queues of a dataset, intact or not; a directory may also be a queue or one split of it."""
    if not has_transport(address):
        return [(DirectoryPlace(folder.parent), folder.name) for folder in queue_folders(address)]
    place = place_to_read(address)
    return [(place, split) for split in place.splits()]


def _registered(address: str | os.PathLike[str]) -> Place | None:
    if not has_transport(address):
        return None
    text = os.fspath(address)
    return _TRANSPORTS[text.partition("://")[0]](text)


def _local(address: str | os.PathLike[str], what: str) -> Path:
    return local_path(address, what, instead="the sources of a recipe")
