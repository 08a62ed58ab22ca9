"""JAX: batches as ``jax.Array`` on a device or sharded over several, without torch and without silent narrowing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from poolish.errors import SchemaError
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
    return jax.device_put(_narrowed(values), placement)


def _narrowed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in the type that JAX will give it, or an error if that changes a value."""
    dtype = jax.dtypes.canonicalize_dtype(values.dtype)
    if dtype == values.dtype:
        return values
    if dtype.kind == "f" or dtype.kind == "c":
        raise SchemaError(
            f"JAX would round {values.dtype} to {dtype}; declare the column as {dtype} (schema=), convert it in a "
            'transform, or set jax.config.update("jax_enable_x64", True)'
        )
    narrow = values.astype(dtype)
    if (narrow != values).any():
        wrong = values[narrow != values][0]
        raise SchemaError(
            f"JAX would cut {values.dtype} {wrong} to {dtype}; "
            'set jax.config.update("jax_enable_x64", True), or keep smaller numbers'
        )
    return narrow
