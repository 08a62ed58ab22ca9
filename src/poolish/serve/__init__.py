"""Batches that flow from processes that make data to processes that train on it, through a directory.

    provider  --publish-->  data/<dataset>/queue/<split>/000000000042.safetensors ...  --get_batch-->  consumer

No server: the directory is the queue, a log with one order for everybody. docs/serve.md teaches it and
docs/formats/queue.md specifies the files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from poolish.serve.consumer import DatasetConsumer
from poolish.serve.dataset_provider import DatasetProvider
from poolish.serve.inspection import purge_queue, queue_health, queue_status, verify_queue
from poolish.serve.provider import DataProvider, DataProviderBase

if TYPE_CHECKING:
    from poolish.serve.config import SharedConfig as SharedConfig
    from poolish.serve.config import check_config as check_config
    from poolish.serve.config import config_from_command_line as config_from_command_line
    from poolish.serve.config import load_config as load_config
    from poolish.serve.guarding import rejections as rejections

__all__ = [
    "DataProvider",
    "DataProviderBase",
    "DatasetConsumer",
    "DatasetProvider",
    "SharedConfig",
    "check_config",
    "config_from_command_line",
    "load_config",
    "purge_queue",
    "queue_health",
    "queue_status",
    "rejections",
    "verify_queue",
]

#: Name -> its module, for those that need pydantic (a fifth of a second to load) or the guards; a trainer that only
#: reads batches needs neither.
_LATE = {
    **dict.fromkeys(
        ("SharedConfig", "check_config", "config_from_command_line", "load_config"), "poolish.serve.config"
    ),
    "rejections": "poolish.serve.guarding",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module 'poolish.serve' has no attribute {name!r}")
        return getattr(import_module(_LATE[name]), name)
