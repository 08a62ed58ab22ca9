"""Fingerprints of functions and objects: a cache key changes whenever something that decides a result does.

    function   code, defaults, closure, attributes, and the globals and modules that its code names
    class      its members, bases and metaclass
    object     its class and its state, as pickle would save them, with attributes that pickling leaves out; or what its
               ``__fingerprint__()`` returns
    data       its content, never its address

User code is followed through every function, class and module it reaches. An installed package is identified by name
and version. State that cannot be read (an open file, a lock, a random generator) raises ``Unfingerprintable``, and the
user passes a version instead. One digest serves recipes, disk caches and filters.

    digest   the walk over values and everything they reach
    code     the names in code, and the modules and libraries they lead to
    tables   fingerprints of Arrow tables by content; imported by name
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poolish.errors import ConfigError, Unfingerprintable
from poolish.fingerprints.code import qualified_name
from poolish.fingerprints.digest import Digest, Unknown

__all__ = [
    "MAX_BYTES",
    "MAX_VALUES",
    "check_attributes",
    "declared_version",
    "fingerprint",
    "function_fingerprint",
    "options_fingerprint",
    "qualified_name",
    "unfingerprintable",
]

#: Data in memory is identified by its content up to this many values and bytes: about a second of hashing.
MAX_VALUES, MAX_BYTES = 1_000_000, 1 << 28
_PASS_VERSION = "pass version=1, and another number whenever it changes"


def fingerprint(
    value: Any,
    what: str,
    *,
    version: Any = None,
    advice: str = _PASS_VERSION,
    max_values: int | None = None,
    max_bytes: int | None = None,
) -> str:
    """A digest of the content of ``value``; ``version`` replaces the content where that cannot be read.

    ``what`` names the value in the error, ``advice`` is what the user can do about it. More than ``max_values`` values
    or ``max_bytes`` bytes count as content that cannot be read.

    >>> fingerprint([1, 2], "a list") == fingerprint([1, 2], "a list") != fingerprint([2, 1], "a list")
    True
    >>> import threading
    >>> fingerprint(threading.Lock(), "step 'read'")
    Traceback (most recent call last):
    poolish.errors.Unfingerprintable: step 'read': cannot be fingerprinted for a cache, because it uses an object ...
    """
    digest = Digest(max_values=max_values, max_bytes=max_bytes)
    try:
        digest.add(value)
    except (Unknown, RecursionError, Unfingerprintable) as unknown:
        if version is not None:
            return f"version {version}"
        if isinstance(unknown, Unfingerprintable):  # of a part, which it names
            raise
        uses = str(unknown) if isinstance(unknown, Unknown) else "values nested too deeply"
        raise unfingerprintable(what, uses, advice) from None
    return digest.hexdigest()


def function_fingerprint(
    function: Callable[..., Any], what: str, version: Any = None, *, advice: str = _PASS_VERSION
) -> str:
    """The name and version of a function that has a version, else a digest of its code and of everything it uses.

    >>> def scaled(factor):
    ...     return lambda row: {**row, "x": row["x"] * factor}
    >>> function_fingerprint(scaled(2), "step 'scale'") == function_fingerprint(scaled(2), "step 'scale'")
    True
    >>> function_fingerprint(scaled(2), "step 'scale'") == function_fingerprint(scaled(3), "step 'scale'")
    False
    >>> function_fingerprint(str.upper, "step 'shout'", version=2)
    'version 2 of builtins.str.upper'
    """
    if version is None:
        return fingerprint(function, what, advice=advice)
    return f"version {version} of {qualified_name(function)}"


def options_fingerprint(options: Mapping[str, Any], what: str, version: Any = None) -> str:
    """Digests of the values of options, by name; the version replaces those that cannot be read."""
    return " ".join(f"{key}={fingerprint(options[key], what, version=version)}" for key in sorted(options))


def declared_version(function: Any) -> Any:
    """The attribute ``version`` of a function or callable object, where it is text or a number; else None."""
    own = getattr(function, "version", None)
    return own if isinstance(own, (str, int, float)) else None


def check_attributes(function: Any, what: str) -> None:
    """Raise a ConfigError if asking a callable for an attribute fails, as for a ``__getattr__`` that looks in a dict.

    >>> class Step(dict):
    ...     __getattr__ = dict.__getitem__
    >>> check_attributes(Step(), "step 'knead'")
    Traceback (most recent call last):
    poolish.errors.ConfigError: step 'knead': Step.__getattr__('__wrapped__') raises KeyError('__wrapped__'); ...
    """
    try:
        getattr(function, "__wrapped__", None)
    except Exception as error:
        kind = type(function).__qualname__
        raise ConfigError(
            f"{what}: {kind}.__getattr__('__wrapped__') raises {error!r}; let it raise AttributeError for names "
            "that it does not have"
        ) from error


def unfingerprintable(what: str, uses: str, advice: str) -> Unfingerprintable:
    """The error, with what the user can do about it."""
    error = Unfingerprintable(f"{what}: cannot be fingerprinted for a cache, because it uses {uses}; {advice}")
    error.uses = uses
    return error
