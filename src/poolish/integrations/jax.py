"""JAX: batches as ``jax.Array`` on a device or sharded over several, without torch and without silent narrowing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from poolish import jax_bridge
from poolish.integrations.feed import changed

__all__ = ["on_device"]


def on_device(batches: Iterable[Any], placement: Any = None) -> Iterator[Any]:
    """Yield batches with each numeric column as a ``jax.Array``; text and lists stay as they are.

    ``batches`` is a ``Loader`` or ``DatasetConsumer`` with ``output="numpy"``; ``placement`` is a device or a sharding,
    by default JAX's default device. Nothing is read ahead: the state of the loader is that of the batch just yielded.
    JAX narrows 64-bit numbers silently; here integers that fit are narrowed and everything else is a ``SchemaError``.

    >>> from poolish import Loader
    >>> [batch["value"].sum().item() for batch in on_device(Loader([1, 2, 3], batch_size=2, output="numpy"))]
    [3, 3]
    """
    for batch in batches:
        yield changed(lambda values: _placed(values, placement), batch)


def _placed(values: Any, placement: Any) -> Any:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufc":
        return values
    return jax_bridge.on_device(values, placement)
