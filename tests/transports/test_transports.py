"""The transports pass the public suite, also where only values travel; the one in memory touches no file."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from poolish import DatasetConsumer, DatasetProvider, Suite
from poolish.errors import ConfigError, QueueNotFound
from poolish.testing import TransportBehaviour
from poolish.transports import memory, place_to_fill, register_transport
from poolish.transports.memory import MemoryLog
from poolish.transports.protocols import Watermark
from tests.faults import SYSTEM_CALLS


class TestDirectory(TransportBehaviour):
    """The queue in a directory."""

    def address(self, folder: Path) -> Path:
        return folder / "data"


class TestMemory(TransportBehaviour):
    """The queue in memory."""

    def address(self, folder: Path) -> str:
        return f"memory://{folder.parent.name}-{folder.name}"


class TestRemote(TransportBehaviour):
    """Queues of another process, as far as values can tell: what is passed and returned is pickled on the way."""

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch):
        monkeypatch.setattr("poolish.transports._TRANSPORTS", {"remote": RemotePlace})

    def address(self, folder: Path) -> str:
        return f"remote://{folder.parent.name}-{folder.name}"


class Remote:
    """Calls an object of the transport in memory; its other objects stay where they are and are called the same way."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._call, found) if callable(found) else passed(found)

    def __str__(self) -> str:
        return str(self._target).replace("memory://", "remote://")

    def _call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return passed(method(*sent(arguments), **sent(options)))
        except Exception as error:
            raise sent(error) from None


class RemoteLog(Remote):
    """The log of a queue: its batches are bytes."""

    def publish(self, buffers: Any, provider: str) -> int:
        """Bytes travel, buffers do not."""
        return self._call(self._target.publish, [b"".join(buffers)], provider)

    def read(self, number: int, allocate: Any = None) -> Any:
        """Memory is allocated on this side."""
        data = self._call(self._target.read, number)
        target = data if allocate is None else allocate(data.nbytes)
        target[:] = data
        return target

    def delete(self, numbers: Any) -> None:
        """A list travels, an iterator does not."""
        self._call(self._target.delete, list(numbers))

    def locked(self) -> Any:
        """Held by the other side for this one."""
        return self._target.locked()


class RemotePlace(Remote):
    """``remote://NAME`` is ``memory://NAME`` behind calls."""

    def __init__(self, address: str) -> None:
        super().__init__(memory.MemoryPlace(address.replace("remote://", "memory://")))


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def passed(value: Any) -> Any:
    if isinstance(value, MemoryLog):
        return RemoteLog(value)
    return Remote(value) if type(value).__module__ == memory.__name__ else sent(value)


def test_a_transport_that_lacks_a_method_cannot_be_made():
    """It is named at once, and not by a queue that loses batches later."""

    class Forgetful(MemoryLog):
        write_consumed = Watermark.write_consumed

    with pytest.raises(TypeError, match="write_consumed"):
        Forgetful(None)


@pytest.fixture
def address():
    """A queue in memory that is forgotten afterwards."""
    yield "memory://tests"
    place = place_to_fill("memory://tests")
    for split in place.splits():
        place.purge(split)


def serve(address: str) -> list[int]:
    """Publish some rows, read them, and acknowledge them."""
    rows = [{"row": i} for i in range(8)]
    with DatasetProvider(rows, path=address, batch_size=2, order="sequential", epochs=1, min_free_bytes=0) as provider:
        provider.run()
    with DatasetConsumer(address, output="numpy", timeout_s=30) as consumer:
        return [row for batch in consumer for row in batch["row"].tolist()]


def test_memory_touches_no_file(address, monkeypatch):
    """No call to the system for a file, from publishing to acknowledging."""
    serve(address)
    calls = list[str]()
    for name in (*SYSTEM_CALLS, "listdir", "scandir", "stat", "lstat", "pread", "preadv", "statvfs"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real, **k: (calls.append(name), real(*a, **k))[1])
    place = place_to_fill(address)
    place.purge("train")

    rows = serve(address)

    assert rows == list(range(8))
    assert calls == []


def test_a_forked_child_starts_without_queues(address):
    """It would read a copy that its parent no longer fills."""
    serve(address)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if place_to_fill(address).splits() == [] else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert place_to_fill(address).splits() == ["train"]


def test_a_queue_in_memory_has_a_name_and_a_provider(address):
    """A name that could be part of a path, and a queue before its consumer."""
    with pytest.raises(QueueNotFound, match="memory://tests"):
        DatasetConsumer(address)
    with pytest.raises(ConfigError):
        DatasetConsumer("memory://../x")


def test_a_guard_that_quarantines_needs_a_directory(address):
    """Rejected rows are kept in files, and are never dropped instead."""
    suite = Suite().expect("row", between=(1, 9))

    with pytest.raises(ConfigError, match="path of a directory"):
        DatasetProvider([{"row": i} for i in range(4)], path=address, batch_size=2, guard=suite)


def test_another_transport_can_be_registered(monkeypatch):
    """Its addresses are then accepted where a path is."""
    monkeypatch.setattr("poolish.transports._TRANSPORTS", {"memory": memory.MemoryPlace})
    register_transport("mine", lambda address: memory.MemoryPlace(f"memory://mine-{address.partition('://')[2]}"))

    assert serve("mine://x") == list(range(8))
    assert place_to_fill("memory://mine-x").purge("train") == 0


def test_a_queue_that_is_not_there_is_named_with_what_to_do():
    """Nothing prepares a queue in memory from outside."""
    with pytest.raises(QueueNotFound, match=r"memory://nothing; open a provider"):
        DatasetConsumer("memory://nothing", timeout_s=1).get_batch("train")
