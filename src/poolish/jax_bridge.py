"""Arrays as ``jax.Array`` without silent narrowing; the one module below the integrations that uses JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolish.errors import SchemaError


def on_device(values: np.ndarray[Any, Any], placement: Any = None) -> Any:
    """Return a numeric array as a ``jax.Array`` on a device, or sharded, if JAX's dtype for it keeps every value."""
    import jax

    return jax.device_put(_narrowed(values), placement)


def _narrowed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in the type that JAX will give it, or an error if that changes a value."""
    import jax

    dtype = jax.dtypes.canonicalize_dtype(values.dtype)
    if dtype == values.dtype:
        return values
    if dtype.kind == "f" or dtype.kind == "c":
        raise SchemaError(
            f"JAX would round {values.dtype} to {dtype}; declare the column as {dtype} (schema=), convert it in a "
            'transform, or set jax.config.update("jax_enable_x64", True)'
        )
    narrow: np.ndarray[Any, Any] = values.astype(dtype)
    if (narrow != values).any():
        wrong = values[narrow != values][0]
        raise SchemaError(
            f"JAX would cut {values.dtype} {wrong} to {dtype}; "
            'set jax.config.update("jax_enable_x64", True), or keep smaller numbers'
        )
    return narrow
